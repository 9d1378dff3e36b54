//! pprof: a gzipped protocol buffer, for `go tool pprof` and compatible readers.
//!
//! It has all events of a profile, each with its count and its value. Invariants: the values add up
//! to the profile's totals; methods have the same names as in other outputs.

pub(crate) mod proto;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufWriter, Write};

use flate2::{Compression, GzBuilder};
use profile::Profile;
use profile::model::{
    DetailId, Event, FrameId, Location, ModuleId, Process, StackId, ThreadId, Unit,
};
use profile::ops::{Weight, objects_of, runtime_labels};
use prost::Message;

use crate::check_size;
use crate::health::honest_line;
use crate::labels::{Labels, kind_name};
use crate::options::OutputOptions;
use crate::select::{Selection, events, unit_name, with_stack_view};
use crate::text::notes;
use crate::visible::visible;
use crate::wording::duration_ns;

/// Writes all events of `profile`. CPU time has the sample types `samples` and `cpu`. Other events
/// have their count and value under their name. As in Go's own profiles, allocations have
/// `alloc_objects` and `alloc_space`, live objects `inuse_objects` and `inuse_space`.
///
/// Labels of a sample: `thread`, `tid`, `process`, `pid`, and `runtime` (the CLR of the frame
/// nearest to the leaf that has one). Options: `event` (the default sample type), `title` (a
/// comment).
///
/// # Errors
/// Those of `out`, and `FileTooLarge` before anything is written.
pub fn write(profile: &Profile, options: &OutputOptions, out: impl Write) -> io::Result<()> {
    let profile = &*with_stack_view(profile, options);
    let with_subjects;
    let profile = match options.for_store {
        true => {
            with_subjects = profile::ops::with_details(profile.clone());
            &with_subjects
        }
        false => profile,
    };
    check_size(profile::ops::expanded_frames(profile))?;
    // The header has no time, so the same profile gives the same file.
    let gzip = GzBuilder::new().write(out, Compression::default());
    let mut gzip = BufWriter::with_capacity(1 << 16, gzip);
    let labels = Labels::new(profile);
    Encoder::new(profile, &labels, options.for_store).encode(options, &mut gzip)?;
    gzip.into_inner()?.finish()?.flush()
}

/// A profile of one event for a store that has names of its own.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    /// Types and units of a sample's values.
    pub(crate) types: &'static [(&'static str, &'static str)],
    /// Type and unit of the period.
    pub(crate) period: (&'static str, &'static str),
}

/// A sample of a [`Series`].
pub(crate) struct SeriesSample {
    pub(crate) stack: StackId,
    /// By type.
    pub(crate) values: Vec<u64>,
}

/// Returns samples of an event of one process as a pprof that is not compressed. There are no
/// labels, and nothing of the command line.
pub(crate) fn series(
    profile: &Profile,
    labels: &Labels<'_>,
    process: &Process,
    event: Event,
    series: &Series,
    samples: &[SeriesSample],
) -> Vec<u8> {
    let mut encoder = Encoder::new(profile, labels, true);
    let samples = samples.iter().map(|sample| {
        let frames: Vec<FrameId> = profile.frames_of(sample.stack).collect();
        proto::Sample {
            location_id: encoder.stack(&frames),
            value: sample.values.iter().map(|value| signed(*value)).collect(),
            label: Vec::new(),
        }
    });
    encoder.out.sample = samples.collect();
    let mut value_type = |(name, unit): (&str, &str)| proto::ValueType {
        r#type: encoder.string(name),
        unit: encoder.string(unit),
    };
    let sample_type = series.types.iter().map(|one| value_type(*one)).collect();
    let period_type = value_type(series.period);
    let source = profile.health.source_of(event);
    let out = proto::Profile {
        sample_type,
        period_type: Some(period_type),
        period: signed(source.map_or(0, |source| source.interval).max(1)),
        time_nanos: signed(process.start_unix_ns),
        duration_nanos: signed(process.end_ns.saturating_sub(process.start_ns)),
        ..encoder.out
    };
    out.encode_to_vec()
}

struct Encoder<'p> {
    profile: &'p Profile,
    labels: &'p Labels<'p>,
    /// Everything but the samples, which are written one by one.
    out: proto::Profile,
    strings: HashMap<String, i64>,
    /// Function ids by method and source file.
    functions: HashMap<(u32, i64), u64>,
    /// Location ids by frames, innermost first.
    locations: HashMap<Vec<FrameId>, u64>,
    mappings: HashMap<ModuleId, u64>,
    /// [`OutputOptions::for_store`].
    for_store: bool,
}

impl<'p> Encoder<'p> {
    fn new(profile: &'p Profile, labels: &'p Labels<'p>, for_store: bool) -> Self {
        let mut encoder = Self {
            profile,
            for_store,
            labels,
            out: proto::Profile::default(),
            strings: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            mappings: HashMap::new(),
        };
        // Entry 0 must be empty.
        encoder.string("");
        encoder
    }

    /// Writes the file. Messages of one type that follow each other are one message.
    fn encode(mut self, options: &OutputOptions, to: &mut impl Write) -> io::Result<()> {
        let profile = self.profile;
        let mut present: Vec<Event> = events(profile)
            .into_iter()
            .map(|(event, _)| event)
            .collect();
        if present.is_empty() {
            present.push(profile.health.event.unwrap_or(Event::Cpu));
        }
        let mut first_value = HashMap::new();
        for &event in &present {
            first_value.insert(event, self.out.sample_type.len());
            let types = self.value_types(event);
            self.out.sample_type.extend(types);
        }
        self.program();
        let sample_type = std::mem::take(&mut self.out.sample_type);
        let types = proto::Profile {
            sample_type,
            ..proto::Profile::default()
        };
        to.write_all(&types.encode_to_vec())?;
        self.samples(&first_value, types.sample_type.len(), to)?;

        let shown = Selection::new(profile, options, false);
        let event = if present.contains(&shown.event) {
            shown.event
        } else {
            present[0]
        };
        let is_time = self.for_store && event == Event::Cpu;
        let by_value = (shown.by_value || is_time) && has_value(event);
        let shown = if by_value {
            value_name(event)
        } else {
            count_name(event)
        };
        self.out.default_sample_type = self.string(&shown);
        let timed = profile.health.event.unwrap_or(present[0]);
        self.out.period_type = Some(proto::ValueType {
            r#type: self.string(timed.name()),
            unit: self.string(unit_name(timed.unit())),
        });
        self.out.period = signed(profile.health.interval_ns);
        self.out.time_nanos = profile
            .processes
            .first()
            .map_or(0, |p| signed(p.start_unix_ns));
        self.out.duration_nanos = signed(duration_ns(profile));
        let title = match (self.for_store, &options.title) {
            (true, None) => "sidewalk".to_owned(),
            (_, title) => self.labels.title(title.as_deref()),
        };
        let mut comments = vec![title];
        comments.extend(notes(profile));
        comments.push(honest_line(&profile.health));
        self.out.comment = comments
            .iter()
            .map(|comment| self.string(comment))
            .collect();
        to.write_all(&self.out.encode_to_vec())
    }

    /// pprof takes the first mapping for the program.
    fn program(&mut self) {
        let profile = self.profile;
        let Some(name) = profile.processes.first().map(|process| process.name()) else {
            return;
        };
        let program = profile
            .modules
            .iter()
            .position(|module| module.file_name() == name);
        if let Some(at) = program {
            self.mapping(ModuleId(at as u32));
        }
    }

    /// The count of an event's samples and its value; the value alone where that is a count too.
    fn value_types(&mut self, event: Event) -> Vec<proto::ValueType> {
        let mut types = vec![(count_name(event), "count")];
        if self.for_store && event == Event::Cpu {
            // Stores multiply a count by the period, but a sample stands for its own time.
            types.clear();
        }
        if has_value(event) {
            types.push((value_name(event), unit_name(event.unit())));
        }
        if self.for_store {
            for (name, _) in &mut types {
                *name = name.replace('-', "_");
            }
        }
        let pair = |(name, unit): (String, &str)| proto::ValueType {
            r#type: self.string(&name),
            unit: self.string(unit),
        };
        types.into_iter().map(pair).collect()
    }

    fn samples(
        &mut self,
        first_value: &HashMap<Event, usize>,
        types: usize,
        to: &mut impl Write,
    ) -> io::Result<()> {
        let profile = self.profile;
        type SampleKey = (ThreadId, StackId, u8, Option<DetailId>);
        let mut sums: BTreeMap<SampleKey, (Event, Weight, f64)> = BTreeMap::new();
        for sample in &profile.samples {
            let at = match self.for_store {
                true => (ThreadId(0), sample.stack, sample.event as u8, None),
                false => {
                    let thread = sample.thread;
                    (thread, sample.stack, sample.event as u8, sample.detail)
                }
            };
            let nothing = (sample.event, Weight::default(), 0.0);
            let (_, sum, objects) = sums.entry(at).or_insert(nothing);
            *sum += Weight::of(sample.value);
            if of_objects(sample.event) {
                *objects += objects_of(profile, sample);
            }
        }
        let runtimes = runtime_labels(profile);
        for ((thread, stack, _, detail), (event, sum, objects)) in sums {
            let mut value = vec![0; types];
            let first = first_value[&event];
            let has_count = !(self.for_store && event == Event::Cpu);
            // An event that is only counted may be counted many times by one sample.
            let count = signed(match event {
                // A cast to the nearest whole number that there is.
                event if of_objects(event) => objects.round() as u64,
                event if has_value(event) => sum.samples,
                _ => sum.value,
            });
            let numbers = [
                has_count.then_some(count),
                has_value(event).then_some(signed(sum.value)),
            ];
            let places = value.iter_mut().skip(first);
            for (place, number) in places.zip(numbers.into_iter().flatten()) {
                *place = number;
            }
            let frames: Vec<FrameId> = profile.frames_of(stack).collect();
            let location_id = self.stack(&frames);
            let mut label = match self.for_store {
                true => Vec::new(),
                false => self.thread_labels(thread),
            };
            let runtime = frames
                .iter()
                .find_map(|&frame| profile.frame(frame).runtime);
            if let Some(runtime) = runtime {
                let key = self.string("runtime");
                let str = self.string(&visible(&runtimes[runtime.0 as usize]));
                label.push(proto::Label { key, str, num: 0 });
            }
            let detail = detail.filter(|_| !self.for_store);
            if let Some(detail) = detail.map(|id| profile.detail(id)) {
                for (key, text) in [("detail", detail.name), ("detail text", detail.text)] {
                    let text = profile.string(text);
                    if key == "detail" || !text.is_empty() {
                        let key = self.string(key);
                        let str = self.string(&visible(text));
                        label.push(proto::Label { key, str, num: 0 });
                    }
                }
            }
            let sample = proto::Sample {
                location_id,
                value,
                label,
            };
            let sample = Some(sample);
            to.write_all(&proto::ProfileOfOne { sample }.encode_to_vec())?;
        }
        Ok(())
    }

    /// Locations, leaf first. Inlined functions share the location of the function that they are
    /// inlined into.
    fn stack(&mut self, frames: &[FrameId]) -> Vec<u64> {
        let profile = self.profile;
        frames
            .split_inclusive(|&frame| !profile.frame(frame).inlined)
            .map(|place| match self.locations.get(place) {
                Some(&id) => id,
                None => self.location(place),
            })
            .collect()
    }

    fn location(&mut self, place: &[FrameId]) -> u64 {
        let profile = self.profile;
        let line = place
            .iter()
            .map(|&frame| proto::Line {
                function_id: self.function(frame),
                line: i64::from(profile.frame(frame).line),
            })
            .collect();
        let outermost = place.last().map(|&frame| profile.frame(frame));
        let module = outermost.and_then(|frame| frame.module);
        let mapping_id = module.map_or(0, |module| self.mapping(module));
        let address = match (module, outermost.map(|frame| frame.location)) {
            (Some(module), Some(Location::Svma(svma))) => {
                profile.module(module).bias.wrapping_add(svma)
            }
            _ => 0,
        };
        let mapping = self
            .out
            .mapping
            .iter_mut()
            .find(|m| m.id == mapping_id && address != 0);
        if let (Some(mapping), Some(module)) = (mapping, module) {
            // Where the file is mapped; where it ends is not known, only how far we saw.
            mapping.memory_start = profile.module(module).bias;
            mapping.memory_limit = mapping.memory_limit.max(address.saturating_add(1));
        }
        let id = self.out.location.len() as u64 + 1;
        self.out.location.push(proto::Location {
            id,
            mapping_id,
            address,
            line,
        });
        self.locations.insert(place.to_vec(), id);
        id
    }

    fn function(&mut self, frame: FrameId) -> u64 {
        let profile = self.profile;
        let method = self.labels.method(frame);
        let file = self.labels.file(profile.frame(frame)).unwrap_or_default();
        let filename = self.string(&file);
        if let Some(&id) = self.functions.get(&(method, filename)) {
            return id;
        }
        let name = self.labels.name(frame).to_owned();
        // pprof takes names whose system name is the same for C++ and cuts what is in `<…>`.
        let frame = profile.frame(frame);
        let scope = match frame.module {
            Some(module) => visible(profile.module(module).file_name()).into_owned(),
            None => kind_name(frame.kind).to_owned(),
        };
        let id = self.out.function.len() as u64 + 1;
        let function = proto::Function {
            id,
            name: self.string(&name),
            system_name: self.string(&format!("{scope}!{name}")),
            filename,
        };
        self.out.function.push(function);
        self.functions.insert((method, filename), id);
        id
    }

    fn mapping(&mut self, module: ModuleId) -> u64 {
        if let Some(&id) = self.mappings.get(&module) {
            return id;
        }
        let path = self.labels.module_path(module);
        let module_of = self.profile.module(module);
        let build_id = module_of.id_digits();
        let id = self.out.mapping.len() as u64 + 1;
        let mapping = proto::Mapping {
            id,
            // Without addresses there is no range.
            memory_start: 0,
            memory_limit: 0,
            filename: self.string(&path),
            build_id: self.string(&build_id),
            // All that is known is here: pprof is not to look for the files.
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        };
        self.out.mapping.push(mapping);
        self.mappings.insert(module, id);
        id
    }

    fn thread_labels(&mut self, id: ThreadId) -> Vec<proto::Label> {
        let thread = self.profile.thread(id);
        let mut labels = Vec::with_capacity(5);
        let mut text = |encoder: &mut Self, key: &str, value: &str| {
            let (key, str) = (encoder.string(key), encoder.string(value));
            labels.push(proto::Label { key, str, num: 0 });
        };
        text(self, "thread", &visible(&thread.name));
        let process = self.profile.process(thread.process);
        text(self, "process", &visible(&process.name()));
        for (key, num) in [("tid", thread.tid), ("pid", process.pid)] {
            let key = self.string(key);
            labels.push(proto::Label {
                key,
                str: 0,
                num: i64::from(num),
            });
        }
        labels
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(&at) = self.strings.get(text) {
            return at;
        }
        let at = self.out.string_table.len() as i64;
        self.out.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), at);
        at
    }
}

/// The value of the event is an amount of something, not a count.
fn has_value(event: Event) -> bool {
    event.unit() != Unit::Count
}

/// Whether objects are counted, as many as the samples stand for.
pub(crate) fn of_objects(event: Event) -> bool {
    matches!(event, Event::Alloc | Event::Live)
}

/// The sample type of an event's values: where others have a name for it, theirs.
pub(crate) fn value_name(event: Event) -> String {
    match event {
        Event::Alloc => "alloc_space".to_owned(),
        Event::Live => "inuse_space".to_owned(),
        event => event.name().to_owned(),
    }
}

/// The sample type that counts an event's samples, or its objects.
fn count_name(event: Event) -> String {
    match event {
        Event::Cpu => "samples".to_owned(),
        Event::Alloc => "alloc_objects".to_owned(),
        Event::Live => "inuse_objects".to_owned(),
        event if has_value(event) => format!("{}-samples", event.name()),
        event => event.name().to_owned(),
    }
}

/// pprof's numbers are signed.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// The contents of a file, one thing a line, as a reader of pprof sees it.
    fn read(file: &[u8]) -> String {
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(file)
            .read_to_end(&mut bytes)
            .expect("it is gzip");
        let p = proto::Profile::decode(&bytes[..]).expect("it is a profile");
        let text = |at: i64| p.string_table[at as usize].as_str();
        assert_eq!(text(0), "");
        let mut lines = vec![
            format!(
                "types {}; default {}",
                p.sample_type
                    .iter()
                    .map(|t| format!("{}/{}", text(t.r#type), text(t.unit)))
                    .collect::<Vec<_>>()
                    .join(" "),
                text(p.default_sample_type)
            ),
            format!(
                "time {} duration {} period {}",
                p.time_nanos, p.duration_nanos, p.period
            ),
        ];
        lines.extend(p.comment.iter().map(|&c| format!("comment {}", text(c))));
        for m in &p.mapping {
            let range = format!("{:x}..{:x}", m.memory_start, m.memory_limit);
            lines.push(format!(
                "mapping {} {range} {} {}",
                m.id,
                text(m.filename),
                text(m.build_id)
            ));
        }
        for f in &p.function {
            let (name, system) = (text(f.name), text(f.system_name));
            lines.push(format!(
                "function {} {name} ({system}) {}",
                f.id,
                text(f.filename)
            ));
        }
        for l in &p.location {
            let code: Vec<String> = l
                .line
                .iter()
                .map(|line| format!("{}:{}", line.function_id, line.line))
                .collect();
            lines.push(format!(
                "location {} in {} at {:x}: {}",
                l.id,
                l.mapping_id,
                l.address,
                code.join(" ")
            ));
        }
        for s in &p.sample {
            let facts: Vec<String> = s
                .label
                .iter()
                .map(|l| match l.str {
                    0 => format!("{}={}", text(l.key), l.num),
                    str => format!("{}={}", text(l.key), text(str)),
                })
                .collect();
            lines.push(format!(
                "sample {:?} {:?} {}",
                s.value,
                s.location_id,
                facts.join(" ")
            ));
        }
        lines.join("\n")
    }

    fn written(profile: &Profile) -> String {
        let mut file = Vec::new();
        write(profile, &OutputOptions::default(), &mut file).expect("a Vec takes everything");
        read(&file)
    }

    #[test]
    fn files() {
        insta::assert_snapshot!("tiny", written(&profile::testing::tiny().profile()));
        insta::assert_snapshot!(
            "two_runtimes",
            written(&profile::testing::two_runtimes().profile())
        );
        insta::assert_snapshot!("events", written(&profile::testing::events().profile()));
        insta::assert_snapshot!("shadow", written(&profile::testing::shadow().profile()));
        insta::assert_snapshot!("live", written(&profile::testing::live().profile()));
        insta::assert_snapshot!("awaits", written(&profile::testing::awaits().profile()));
        insta::assert_snapshot!("empty", written(&Profile::default()));
    }

    /// Samples of one stack in two threads are one, and nothing names a thread, a subject or the
    /// command line.
    #[test]
    fn files_for_stores() {
        let mut profile = profile::testing::events().profile();
        profile.processes[0].command = vec!["app".into(), "--password=secret".into()];
        let options = OutputOptions {
            for_store: true,
            ..OutputOptions::default()
        };
        let mut file = Vec::new();
        write(&profile, &options, &mut file).expect("a Vec takes everything");
        let text = read(&file);
        assert!(!text.contains("secret"), "{text}");
        let types = text.lines().next().unwrap_or_default();
        assert!(
            !types.contains('-') && !types.contains(" samples/count"),
            "{types}"
        );
        insta::assert_snapshot!("for_stores", text);
    }

    /// Inlined functions are lines of the location that they are inlined into.
    #[test]
    fn inlined_functions_share_a_location() {
        let mut profile = profile::testing::tiny().profile();
        let memcpy = profile
            .frames
            .iter()
            .position(|f| profile.string(f.name).starts_with("__memmove"));
        let memcpy = memcpy.expect("the scene has it");
        profile.frames[memcpy].inlined = true;
        let text = written(&profile);
        let joined: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("location") && line.matches(':').count() > 2)
            .collect();
        insta::assert_snapshot!("inlined", joined.join("\n"));
    }
}
