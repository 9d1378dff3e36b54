//! OTLP profiles: requests of the OpenTelemetry protocol, version 1.10 and later.
//!
//! A request has one process, because a server that cannot take one profile may drop its whole
//! request. One profile for each event, with one value for each sample, because servers refuse
//! more. A sample is a stack: threads would be series of their own in a store.
//!
//! An OpenTelemetry Collector loses the strings of a resource on its way to some stores, and has
//! a batch with a number among them refused. So the service's name is an attribute of each sample
//! too, and no attribute of the resource is a number.
//!
//! Invariant: neither a command line nor an environment is written.

mod proto;

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use profile::Profile;
use profile::model::{
    Event, FrameId, FrameKind, Location, Module, ModuleId, Process, ProcessId, StackId,
};
use prost::Message as _;

use crate::labels::Labels;
use crate::options::OutputOptions;
use crate::pprof::value_name;
use crate::select::{unit_name, with_stack_view};

/// Attribute of the service's name.
pub const SERVICE_NAME: &str = "service.name";

/// Facts about processes and files that a profile does not have.
pub struct Facts<'a> {
    /// Attributes of a process's resource, by key. [`SERVICE_NAME`] should be among them.
    pub resource: &'a dyn Fn(&Process) -> Vec<(String, String)>,
    /// `process.executable.build_id.htlhash` of a module's file, in hexadecimal digits.
    pub file_hash: &'a dyn Fn(&Module) -> Option<String>,
    /// Version of the profiler.
    pub version: &'a str,
}

/// Maximum size of a request that is not split, in bytes. A Collector takes 20 MiB.
const MAX_BYTES: usize = 16 << 20;

/// Returns the requests for each process that has samples: one, or several if it would be too
/// large.
#[must_use]
pub fn requests(profile: &Profile, options: &OutputOptions, facts: &Facts<'_>) -> Vec<Vec<u8>> {
    requests_within(MAX_BYTES, profile, options, facts)
}

fn requests_within(
    most_bytes: usize,
    profile: &Profile,
    options: &OutputOptions,
    facts: &Facts<'_>,
) -> Vec<Vec<u8>> {
    let profile = with_stack_view(profile, options);
    let profile = profile::ops::with_details(profile.into_owned());
    type Sums = BTreeMap<StackId, u64>;
    let mut sums: BTreeMap<ProcessId, BTreeMap<u8, (Event, Sums)>> = BTreeMap::new();
    for sample in &profile.samples {
        let process = profile.thread(sample.thread).process;
        let events = sums.entry(process).or_default();
        let event = events.entry(sample.event as u8);
        let (_, stacks) = event.or_insert_with(|| (sample.event, Sums::new()));
        let sum = stacks.entry(sample.stack).or_default();
        *sum = sum.saturating_add(sample.value);
    }
    let labels = Labels::new(&profile);
    let mut requests = Vec::new();
    for (process, events) in sums {
        let events = events.into_values().map(|(event, stacks)| EventSums {
            event,
            stacks: stacks.into_iter().collect(),
        });
        let mut parts: Vec<Vec<EventSums>> = vec![events.collect()];
        while let Some(mut part) = parts.pop() {
            let encoder = Encoder::new(&profile, &labels, facts);
            let request = encoder.request(process, part.iter()).encode_to_vec();
            match part.as_mut_slice() {
                _ if request.len() <= most_bytes => requests.push(request),
                [one] if one.stacks.len() > 1 => {
                    let second = EventSums {
                        event: one.event,
                        stacks: one.stacks.split_off(one.stacks.len() / 2),
                    };
                    parts.extend([vec![second], part]);
                }
                [_, _, ..] => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
                _ => requests.push(request),
            }
        }
    }
    requests
}

/// Values of an event's samples by stack.
struct EventSums {
    event: Event,
    stacks: Vec<(StackId, u64)>,
}

struct Encoder<'p> {
    profile: &'p Profile,
    labels: &'p Labels<'p>,
    facts: &'p Facts<'p>,
    strings: Table<String>,
    attributes: Table<proto::Attribute>,
    functions: Table<proto::Function>,
    stacks: Table<proto::Stack>,
    mappings: Vec<proto::Mapping>,
    locations: Vec<proto::Location>,
    mapping_of: HashMap<ModuleId, i32>,
    location_of: HashMap<Vec<FrameId>, i32>,
}

/// Distinct entries in the order in which they came.
struct Table<T> {
    entries: Vec<T>,
    index: HashMap<T, i32>,
}

impl<T: Clone + Eq + Hash> Table<T> {
    /// A table whose entry 0 is `empty`.
    fn new(empty: T) -> Table<T> {
        let mut table = Table {
            entries: Vec::new(),
            index: HashMap::new(),
        };
        table.add(empty);
        table
    }

    fn add(&mut self, entry: T) -> i32 {
        let next = self.entries.len() as i32;
        *self.index.entry(entry).or_insert_with_key(|entry| {
            self.entries.push(entry.clone());
            next
        })
    }
}

impl<'p> Encoder<'p> {
    fn new(profile: &'p Profile, labels: &'p Labels<'p>, facts: &'p Facts<'p>) -> Encoder<'p> {
        Encoder {
            profile,
            labels,
            facts,
            strings: Table::new(String::new()),
            attributes: Table::new(proto::Attribute::default()),
            functions: Table::new(proto::Function::default()),
            stacks: Table::new(proto::Stack::default()),
            mappings: vec![proto::Mapping::default()],
            locations: vec![proto::Location::default()],
            mapping_of: HashMap::new(),
            location_of: HashMap::new(),
        }
    }

    fn request<'s>(
        mut self,
        process: ProcessId,
        events: impl Iterator<Item = &'s EventSums>,
    ) -> proto::Request {
        let process = self.profile.process(process);
        let mut resource = (self.facts.resource)(process);
        resource.sort();
        let service = resource.iter().find(|(key, _)| key == SERVICE_NAME);
        let service = service.map(|(_, name)| name.clone());
        let of_samples: Vec<i32> = service
            .map(|name| self.attribute(SERVICE_NAME, name))
            .into_iter()
            .collect();
        let profiles = events
            .map(|event| self.event(process, event, &of_samples))
            .collect();
        let attributes = resource.into_iter().map(|(key, value)| proto::KeyValue {
            key,
            value: Some(string_value(value)),
        });
        proto::Request {
            resource_profiles: vec![proto::ResourceProfiles {
                resource: Some(proto::Resource {
                    attributes: attributes.collect(),
                }),
                scope_profiles: vec![proto::ScopeProfiles {
                    scope: Some(proto::Scope {
                        name: "sidewalk".to_owned(),
                        version: self.facts.version.to_owned(),
                    }),
                    profiles,
                }],
            }],
            dictionary: Some(proto::Dictionary {
                mappings: self.mappings,
                locations: self.locations,
                functions: self.functions.entries,
                links: vec![proto::Link {}],
                strings: self.strings.entries,
                attributes: self.attributes.entries,
                stacks: self.stacks.entries,
            }),
        }
    }

    /// The profile of an event.
    fn event(&mut self, process: &Process, sums: &EventSums, of_samples: &[i32]) -> proto::Profile {
        let event = sums.event;
        // A `-` makes a name unreadable in some stores.
        let name = value_name(event).replace('-', "_");
        let value_type = proto::ValueType {
            type_strindex: self.strings.add(name),
            unit_strindex: self.strings.add(unit_name(event.unit()).to_owned()),
        };
        let source = self.profile.health.source_of(event);
        let period = source.map_or(0, |source| source.interval).max(1);
        let samples = sums.stacks.iter().map(|(stack, value)| proto::Sample {
            stack_index: self.stack(*stack),
            attribute_indices: of_samples.to_vec(),
            values: vec![signed(*value)],
        });
        proto::Profile {
            samples: samples.collect(),
            sample_type: Some(value_type),
            time_unix_nano: process.start_unix_ns,
            duration_nano: process.end_ns.saturating_sub(process.start_ns),
            // One of zero, or of another type, is misread or refused.
            period_type: Some(value_type),
            period: signed(period),
        }
    }

    fn stack(&mut self, stack: StackId) -> i32 {
        let profile = self.profile;
        let frames: Vec<FrameId> = profile.frames_of(stack).collect();
        let places = frames.split_inclusive(|&frame| !profile.frame(frame).inlined);
        let location_indices = places.map(|place| match self.location_of.get(place) {
            Some(known) => *known,
            None => self.location(place),
        });
        let location_indices = location_indices.collect();
        self.stacks.add(proto::Stack { location_indices })
    }

    /// A location, with the functions that are inlined there.
    fn location(&mut self, place: &[FrameId]) -> i32 {
        let profile = self.profile;
        let lines = place.iter().map(|&frame| proto::Line {
            function_index: self.function(frame),
            line: i64::from(profile.frame(frame).line),
        });
        let lines = lines.collect();
        let outermost = place.last().map(|&frame| profile.frame(frame));
        let module = outermost.and_then(|frame| frame.module);
        let mapping_index = module.map_or(0, |module| self.mapping(module));
        let address = match outermost.map(|frame| frame.location) {
            Some(Location::Svma(svma)) if mapping_index > 0 => svma,
            _ => 0,
        };
        if let Some(mapping) = self.mappings.get_mut(mapping_index as usize)
            && address > 0
        {
            mapping.memory_limit = mapping.memory_limit.max(address.saturating_add(1));
        }
        let kind = outermost.and_then(|frame| frame_type(frame.kind));
        let attribute_indices = kind
            .map(|kind| self.attribute("profile.frame.type", kind.to_owned()))
            .into_iter()
            .collect();
        let index = self.locations.len() as i32;
        self.locations.push(proto::Location {
            mapping_index,
            address,
            lines,
            attribute_indices,
        });
        self.location_of.insert(place.to_vec(), index);
        index
    }

    fn function(&mut self, frame: FrameId) -> i32 {
        let name = self.labels.name(frame).to_owned();
        let file = self.labels.file(self.profile.frame(frame));
        let function = proto::Function {
            name_strindex: self.strings.add(name),
            filename_strindex: self.strings.add(file.unwrap_or_default()),
        };
        self.functions.add(function)
    }

    fn mapping(&mut self, module: ModuleId) -> i32 {
        if let Some(known) = self.mapping_of.get(&module) {
            return *known;
        }
        let path = self.labels.module_path(module);
        let known = self.profile.module(module);
        let mut attribute_indices = Vec::new();
        if !known.managed && !known.id_bytes.is_empty() {
            let digits = known.id_digits();
            attribute_indices.push(self.attribute("process.executable.build_id.gnu", digits));
        }
        if let Some(hash) = (self.facts.file_hash)(known) {
            attribute_indices.push(self.attribute("process.executable.build_id.htlhash", hash));
        }
        let index = self.mappings.len() as i32;
        self.mappings.push(proto::Mapping {
            memory_limit: 0,
            filename_strindex: self.strings.add(path),
            attribute_indices,
        });
        self.mapping_of.insert(module, index);
        index
    }

    fn attribute(&mut self, key: &str, value: String) -> i32 {
        let attribute = proto::Attribute {
            key_strindex: self.strings.add(key.to_owned()),
            value: Some(string_value(value)),
        };
        self.attributes.add(attribute)
    }
}

fn string_value(text: String) -> proto::AnyValue {
    proto::AnyValue {
        string_value: Some(text),
    }
}

/// OTLP's numbers are signed.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// `profile.frame.type` of the semantic conventions.
fn frame_type(kind: FrameKind) -> Option<&'static str> {
    match kind {
        FrameKind::Managed | FrameKind::Stub | FrameKind::Async | FrameKind::Detail => {
            Some("dotnet")
        }
        FrameKind::Runtime | FrameKind::Native => Some("native"),
        FrameKind::Pseudo | FrameKind::Unknown => None,
    }
}

#[cfg(test)]
mod tests;
