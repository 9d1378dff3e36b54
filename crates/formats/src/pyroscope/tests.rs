//! Requests under the rules of a real server (its `pkg/validation`): none would be refused, and
//! values are those of the profile.

use std::collections::BTreeSet;

use profile::model::{Stack, WalkEnd};
use profile::testing;

use super::*;
use crate::pprof::proto;

/// A profile of a request: its labels, and the pprof.
struct Decoded {
    labels: BTreeMap<String, String>,
    pprof: proto::Profile,
}

impl Decoded {
    fn text(&self, at: i64) -> &str {
        &self.pprof.string_table[at as usize]
    }

    /// `process_cpu:cpu:nanoseconds:cpu:nanoseconds`.
    fn types(&self) -> Vec<String> {
        let period = self.pprof.period_type.unwrap();
        let name = &self.labels["__name__"];
        let types = self.pprof.sample_type.iter();
        types
            .map(|one| {
                let of = [one.r#type, one.unit, period.r#type, period.unit];
                let of = of.map(|at| self.text(at).to_owned());
                format!("{name}:{}", of.join(":"))
            })
            .collect()
    }

    /// Checks the server's rules.
    fn assert_rules(&self) {
        assert!(self.labels.len() <= 30, "{:?}", self.labels);
        assert_eq!(self.labels["__delta__"], "false");
        assert!(self.labels.contains_key("service_name"));
        for (name, value) in &self.labels {
            assert!(name.len() <= 1_024 && value.len() <= 2_048 && !value.is_empty());
            assert!(
                name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'),
                "{name}"
            );
        }
        assert!(self.types().iter().all(|one| !one.contains('-')));
        assert!(self.pprof.time_nanos > 0 && self.pprof.period > 0);
        assert!(self.pprof.encode_to_vec().len() <= 2 << 20);
        assert!(self.pprof.sample.len() <= 16_000);
        assert!(self.pprof.function.iter().all(|function| function.id > 0));
        let locations: BTreeSet<u64> = self.pprof.location.iter().map(|one| one.id).collect();
        for sample in &self.pprof.sample {
            assert_eq!(sample.value.len(), self.pprof.sample_type.len());
            assert!(sample.label.is_empty());
            assert!(!sample.location_id.is_empty() && sample.location_id.len() <= 1_000);
            assert!(sample.location_id.iter().all(|id| locations.contains(id)));
            assert!(sample.value.iter().all(|value| *value >= 0));
        }
    }
}

fn decoded(profile: &Profile) -> Vec<Decoded> {
    let labels = |process: &Process| {
        vec![
            ("service_name".to_owned(), format!("app {}", process.pid)),
            ("host.name".to_owned(), "h".repeat(5_000)),
            ("empty".to_owned(), String::new()),
        ]
    };
    let requests = requests(profile, &OutputOptions::default(), &labels).unwrap();
    let requests = requests
        .iter()
        .map(|bytes| Request::decode(&bytes[..]).unwrap());
    requests
        .map(|mut request| {
            assert_eq!(request.series.len(), 1);
            let series = request.series.remove(0);
            assert_eq!(series.samples.len(), 1);
            let pairs = series
                .labels
                .into_iter()
                .map(|pair| (pair.name, pair.value));
            let decoded = Decoded {
                labels: pairs.collect(),
                pprof: proto::Profile::decode(&series.samples[0].raw_profile[..]).unwrap(),
            };
            decoded.assert_rules();
            decoded
        })
        .collect()
}

#[test]
fn types_are_those_that_pyroscope_knows() {
    let events = decoded(&testing::events().profile());
    let live = decoded(&testing::live().profile());
    let mut types: Vec<String> = events
        .iter()
        .chain(&live)
        .flat_map(Decoded::types)
        .collect();
    types.sort();
    types.dedup();
    insta::assert_snapshot!(types.join("\n"));
}

#[test]
fn values_are_those_of_the_profile() {
    for profile in [
        testing::events().profile(),
        testing::two_runtimes().profile(),
    ] {
        let mut sums: BTreeMap<String, i64> = BTreeMap::new();
        for one in decoded(&profile) {
            let last = one.types().pop().unwrap();
            let values = one
                .pprof
                .sample
                .iter()
                .filter_map(|sample| sample.value.last());
            *sums.entry(last).or_default() += values.sum::<i64>();
        }
        let mut expected: BTreeMap<String, i64> = BTreeMap::new();
        for sample in &profile.samples {
            let series = series_of(sample.event);
            let (name, unit) = *series.types.last().unwrap();
            let key = format!(
                "{}:{name}:{unit}:{}:{}",
                series.name, series.period.0, series.period.1
            );
            *expected.entry(key).or_default() += sample.value as i64;
        }
        assert_eq!(sums, expected);
    }
}

/// As many stacks and as deep as no server takes in one profile.
#[test]
fn large_profiles_are_split_and_deep_stacks_cut_at_the_root() {
    let mut profile = testing::tiny().profile();
    let mut sample = profile.samples[0];
    (sample.event, sample.value, sample.end) = (Event::Cpu, 1, WalkEnd::Root);
    (sample.logical, sample.detail) = (None, None);
    let (root, leaf) = (profile.stacks[0].frame, profile.stacks[1].frame);
    profile.samples.clear();
    profile.stacks.clear();
    // One deep stack, and 40,000 with it as their root.
    let mut parent = None;
    for depth in 0..1_500 {
        let frame = if depth == 0 { root } else { leaf };
        profile.stacks.push(Stack { parent, frame });
        parent = Some(StackId(depth));
    }
    profile.samples.push(profile::model::Sample {
        stack: StackId(1_499),
        ..sample
    });
    let shallow = 40_000;
    for at in 0..shallow {
        let stack = StackId(profile.stacks.len() as u32);
        let mut frame = profile.frames[leaf.0 as usize].clone();
        frame.line = at + 1;
        profile.frames.push(frame);
        let frame = profile::model::FrameId(profile.frames.len() as u32 - 1);
        profile.stacks.push(Stack {
            parent: Some(StackId(0)),
            frame,
        });
        profile
            .samples
            .push(profile::model::Sample { stack, ..sample });
    }
    let parts = decoded(&profile);
    assert!(parts.len() >= 3, "{}", parts.len());
    let samples = parts.iter().flat_map(|part| &part.pprof.sample);
    assert_eq!(
        samples.map(|sample| sample.value[0]).sum::<i64>(),
        i64::from(shallow) + 1
    );
    let deep: Vec<_> = parts
        .iter()
        .flat_map(|part| part.pprof.sample.iter().map(move |sample| (part, sample)))
        .filter(|(_, sample)| sample.location_id.len() > 2)
        .collect();
    let [(part, deep)] = deep[..] else {
        panic!("{}", deep.len());
    };
    assert_eq!(deep.location_id.len(), 1_000);
    let root = deep.location_id.last().unwrap();
    let root = part
        .pprof
        .location
        .iter()
        .find(|one| one.id == *root)
        .unwrap();
    let function = root.line[0].function_id;
    let function = part
        .pprof
        .function
        .iter()
        .find(|one| one.id == function)
        .unwrap();
    assert_eq!(part.text(function.name), "[truncated]");
}
