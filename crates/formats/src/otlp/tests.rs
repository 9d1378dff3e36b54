//! Requests as a decoder reads them that is not ours (crate `opentelemetry-proto`).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{
    Location, Mapping, ProfilesDictionary, Stack,
};
use profile::testing;
use prost::Message as _;

use super::*;

fn decoded(profile: &Profile) -> Vec<ExportProfilesServiceRequest> {
    decoded_within(MAX_BYTES, profile)
}

fn decoded_within(most_bytes: usize, profile: &Profile) -> Vec<ExportProfilesServiceRequest> {
    let resource = |process: &Process| {
        let name = format!("service of {}", process.pid);
        vec![
            (SERVICE_NAME.to_owned(), name),
            ("process.runtime.name".to_owned(), ".NET".to_owned()),
        ]
    };
    let facts = Facts {
        resource: &resource,
        file_hash: &|module| module.path.contains("libc").then(|| "0123".to_owned()),
        version: "1.2.3",
    };
    let requests = requests_within(most_bytes, profile, &OutputOptions::default(), &facts);
    requests
        .iter()
        .map(|bytes| ExportProfilesServiceRequest::decode(&bytes[..]).unwrap())
        .collect()
}

/// The names of a stack's functions, leaf first.
fn functions(dictionary: &ProfilesDictionary, stack: &Stack) -> Vec<String> {
    let location = |at: &i32| &dictionary.location_table[*at as usize];
    let lines = stack
        .location_indices
        .iter()
        .flat_map(|at| &location(at).lines);
    lines
        .map(|line| {
            let function = &dictionary.function_table[line.function_index as usize];
            dictionary.string_table[function.name_strindex as usize].clone()
        })
        .collect()
}

fn attributes(dictionary: &ProfilesDictionary, indices: &[i32]) -> String {
    let mut text = String::new();
    for at in indices {
        let attribute = &dictionary.attribute_table[*at as usize];
        let key = &dictionary.string_table[attribute.key_strindex as usize];
        let value = attribute
            .value
            .as_ref()
            .and_then(|value| value.value.as_ref());
        let Some(Value::StringValue(value)) = value else {
            panic!("{value:?}");
        };
        let _ = write!(text, " {key}={value}");
    }
    text
}

/// Checks what servers refuse, misread or die of.
fn assert_rules(request: &ExportProfilesServiceRequest) {
    let dictionary = request.dictionary.as_ref().unwrap();
    assert_eq!(dictionary.mapping_table[0], Mapping::default());
    assert_eq!(dictionary.location_table[0], Location::default());
    assert_eq!(dictionary.stack_table[0], Stack::default());
    assert_eq!(dictionary.function_table[0], Default::default());
    assert_eq!(dictionary.attribute_table[0], Default::default());
    assert_eq!(dictionary.link_table, [Default::default()]);
    assert_eq!(dictionary.string_table[0], "");
    let in_range = |at: i32, length: usize| assert!((0..length as i32).contains(&at));
    for location in &dictionary.location_table {
        in_range(location.mapping_index, dictionary.mapping_table.len());
    }
    for resource in &request.resource_profiles {
        for attribute in &resource.resource.as_ref().unwrap().attributes {
            let value = attribute.value.as_ref().unwrap().value.as_ref().unwrap();
            assert!(!attribute.key.is_empty() && attribute.key_strindex == 0);
            assert!(matches!(value, Value::StringValue(_)), "{value:?}");
        }
        for scope in &resource.scope_profiles {
            assert_eq!(scope.scope.as_ref().unwrap().name, "sidewalk");
            for profile in &scope.profiles {
                let (of, period) = (profile.sample_type.unwrap(), profile.period_type.unwrap());
                let name = &dictionary.string_table[of.type_strindex as usize];
                assert!(
                    !name.is_empty() && !name.contains('-') && name != "samples",
                    "{name}"
                );
                assert_eq!(of, period);
                assert!(profile.period > 0 && profile.duration_nano > 0);
                for sample in &profile.samples {
                    assert_eq!(
                        (sample.values.len(), sample.timestamps_unix_nano.len()),
                        (1, 0)
                    );
                    in_range(sample.stack_index, dictionary.stack_table.len());
                    let of_sample = attributes(dictionary, &sample.attribute_indices);
                    assert!(
                        of_sample.starts_with(" service.name=service of "),
                        "{of_sample}"
                    );
                }
            }
        }
    }
}

/// Sums by event and function, of the leaf and of the whole stack.
type Sums = BTreeMap<(String, String), (u64, u64)>;

fn add(sums: &mut Sums, event: &str, names: &[String], value: u64) {
    let mut seen: Vec<&String> = names.iter().collect();
    seen.sort();
    seen.dedup();
    for name in seen {
        let sum = sums.entry((event.to_owned(), name.clone())).or_default();
        sum.1 += value;
        sum.0 += if names.first() == Some(name) {
            value
        } else {
            0
        };
    }
}

/// The values of all samples, sorted.
fn values_of(requests: &[ExportProfilesServiceRequest]) -> Vec<i64> {
    let resources = requests.iter().flat_map(|one| &one.resource_profiles);
    let scopes = resources.flat_map(|one| &one.scope_profiles);
    let profiles = scopes.flat_map(|one| &one.profiles);
    let samples = profiles.flat_map(|one| &one.samples);
    let mut values: Vec<i64> = samples.map(|sample| sample.values[0]).collect();
    values.sort_unstable();
    values
}

#[test]
fn sums_are_those_of_the_profile() {
    for profile in [
        testing::tiny().profile(),
        testing::two_runtimes().profile(),
        testing::events().profile(),
        testing::shadow().profile(),
        testing::live().profile(),
        testing::awaits().profile(),
    ] {
        let mut decoded_sums = Sums::new();
        let whole = decoded(&profile);
        // Each sample alone is too large.
        let parts = decoded_within(1, &profile);
        assert_eq!(parts.len(), values_of(&whole).len());
        for part in &parts {
            assert_rules(part);
        }
        assert_eq!(values_of(&parts), values_of(&whole));
        for request in whole {
            assert_rules(&request);
            let dictionary = request.dictionary.as_ref().unwrap();
            for resource in &request.resource_profiles {
                for one in resource
                    .scope_profiles
                    .iter()
                    .flat_map(|scope| &scope.profiles)
                {
                    let event = one.sample_type.unwrap().type_strindex;
                    let event = &dictionary.string_table[event as usize];
                    for sample in &one.samples {
                        let stack = &dictionary.stack_table[sample.stack_index as usize];
                        let names = functions(dictionary, stack);
                        add(&mut decoded_sums, event, &names, sample.values[0] as u64);
                    }
                }
            }
        }
        let profile = with_stack_view(&profile, &OutputOptions::default()).into_owned();
        let profile = profile::ops::with_details(profile);
        let labels = Labels::new(&profile);
        let mut sums = Sums::new();
        for sample in &profile.samples {
            let frames = profile.frames_of(sample.stack);
            let names: Vec<String> = frames.map(|frame| labels.name(frame).to_owned()).collect();
            let event = value_name(sample.event).replace('-', "_");
            add(&mut sums, &event, &names, sample.value);
        }
        assert_eq!(decoded_sums, sums);
    }
}

#[test]
fn requests_as_a_decoder_reads_them() {
    let mut text = String::new();
    for request in decoded(&testing::tiny().profile()) {
        let dictionary = request.dictionary.as_ref().unwrap();
        let string = |at: i32| &dictionary.string_table[at as usize];
        for mapping in &dictionary.mapping_table[1..] {
            let attributes = attributes(dictionary, &mapping.attribute_indices);
            let _ = writeln!(
                text,
                "mapping {}{attributes}",
                string(mapping.filename_strindex)
            );
        }
        for location in &dictionary.location_table[1..] {
            let attributes = attributes(dictionary, &location.attribute_indices);
            let line = &location.lines[0];
            let function = &dictionary.function_table[line.function_index as usize];
            let _ = writeln!(
                text,
                "location in {} at {:x}: {} {}:{}{attributes}",
                location.mapping_index,
                location.address,
                string(function.name_strindex),
                string(function.filename_strindex),
                line.line
            );
        }
        for resource in &request.resource_profiles {
            for attribute in &resource.resource.as_ref().unwrap().attributes {
                let value = attribute.value.as_ref().unwrap().value.as_ref();
                let _ = writeln!(text, "resource {} {value:?}", attribute.key);
            }
            for one in resource
                .scope_profiles
                .iter()
                .flat_map(|scope| &scope.profiles)
            {
                let of = one.sample_type.unwrap();
                let (name, unit) = (string(of.type_strindex), string(of.unit_strindex));
                let (time, duration) = (one.time_unix_nano, one.duration_nano);
                let _ = writeln!(
                    text,
                    "{name}/{unit} {} at {time} for {duration}",
                    one.period
                );
                for sample in &one.samples {
                    let stack = &dictionary.stack_table[sample.stack_index as usize];
                    let stack = functions(dictionary, stack).join(" < ");
                    let _ = writeln!(text, "sample {:?} {stack}", sample.values);
                }
            }
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn no_command_line_is_written() {
    let mut profile = testing::tiny().profile();
    for process in &mut profile.processes {
        process.command = vec!["app".into(), "--password=secret".into()];
    }
    let facts = Facts {
        resource: &|_| Vec::new(),
        file_hash: &|_| None,
        version: "",
    };
    for bytes in requests(&profile, &OutputOptions::default(), &facts) {
        let has_it = bytes.windows(6).any(|part| part == b"secret");
        assert!(!has_it);
    }
}
