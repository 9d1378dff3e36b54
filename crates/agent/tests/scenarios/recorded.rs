//! Test support: reads a recording as the tool receives it. A record that refers to an undefined id
//! fails the test.

use std::collections::{BTreeMap, HashMap};
use std::io::{Chain, Cursor, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use recording::{Event, Frame, Item, ModuleKind, Reader, Record, WalkEnd, file_header};

use crate::program::END;

/// One sample.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sample {
    pub(crate) event: Event,
    /// Kernel id of its thread.
    pub(crate) tid: u32,
    /// Managed frames, leaf first: `shop.dll!Shop.Cart.Add`.
    pub(crate) managed: Vec<String>,
    /// Runtimes of these frames.
    pub(crate) runtimes: Vec<u8>,
    /// Number of stub frames and unknown frames.
    pub(crate) unknown: usize,
    pub(crate) end: WalkEnd,
    /// Name and text of its detail.
    pub(crate) detail: String,
    pub(crate) text: String,
}

/// A runtime: number, version, whether it is recorded, and the call that refused it.
pub(crate) type RuntimeEntry = (u8, String, bool, String);

/// A traced method: name, reason of a refusal, number of calls and of errors.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Traced {
    pub(crate) name: String,
    pub(crate) refused: String,
    pub(crate) calls: u64,
    pub(crate) errors: u64,
}

/// The records read so far.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) processes: u32,
    pub(crate) ends: u32,
    pub(crate) runtimes: Vec<RuntimeEntry>,
    /// By id: kernel id, last name, and whether the thread has ended.
    pub(crate) threads: BTreeMap<u32, (u32, String, bool)>,
    /// Managed modules: runtime and path.
    pub(crate) modules: Vec<(u8, String)>,
    /// Managed methods, in the order of their records.
    pub(crate) methods: Vec<String>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) sources: Vec<Event>,
    /// Events before and after each change.
    pub(crate) changes: Vec<(u32, u32)>,
    pub(crate) notes: Vec<String>,
    pub(crate) lost: BTreeMap<String, u64>,
    pub(crate) traced: BTreeMap<u32, Traced>,
}

/// Names by id.
#[derive(Default)]
struct Numbers {
    modules: HashMap<u32, String>,
    methods: HashMap<u32, (u8, String)>,
    frames: HashMap<u32, Named>,
    stacks: HashMap<u32, Vec<u32>>,
    details: HashMap<u32, (String, String)>,
}

#[derive(Clone)]
enum Named {
    Managed(u8, String),
    Native,
    Unknown,
}

/// A recording in progress.
pub(crate) struct Recording {
    stream: UnixStream,
    reader: Reader<Chain<Cursor<Vec<u8>>, UnixStream>>,
    numbers: Numbers,
    pub(crate) records: Recorded,
}

impl Recording {
    /// Reads the recording from a stream.
    pub(crate) fn of(stream: UnixStream) -> Recording {
        stream.set_read_timeout(Some(END)).unwrap();
        let blocks = Cursor::new(file_header("test").to_vec()).chain(stream.try_clone().unwrap());
        Recording {
            stream,
            reader: Reader::open(blocks).unwrap(),
            numbers: Numbers::default(),
            records: Recorded::default(),
        }
    }

    /// Reads until the condition holds.
    pub(crate) fn until(&mut self, has_said: impl Fn(&Recorded) -> bool) {
        // The agent sends totals each second, so a read timeout alone would not end this.
        let end = Instant::now() + END;
        while !has_said(&self.records) {
            assert!(Instant::now() < end, "not in time: {:#?}", self.records);
            assert!(self.read_one(), "it ends with {:#?}", self.records);
        }
    }

    /// Sends the stop byte and reads to the end.
    pub(crate) fn stop(mut self) -> Recorded {
        self.stream.write_all(b"S").unwrap();
        self.rest()
    }

    /// Reads to the end.
    pub(crate) fn rest(mut self) -> Recorded {
        while self.read_one() {}
        self.records
    }

    /// Closes the connection, as a killed tool does.
    pub(crate) fn hang_up(self) {
        self.stream.shutdown(std::net::Shutdown::Both).unwrap();
    }

    fn read_one(&mut self) -> bool {
        match self.reader.next_item().unwrap() {
            None => return false,
            Some(Item::Damage(damage)) => panic!("{damage:?}"),
            Some(Item::Record(_, record)) => self.numbers.take(record, &mut self.records),
            Some(_) => {}
        }
        true
    }
}

impl Numbers {
    fn take(&mut self, record: Record<'_>, into: &mut Recorded) {
        match record {
            Record::Process { .. } => into.processes += 1,
            Record::End { .. } => into.ends += 1,
            Record::Note { text } => into.notes.push(text.into_owned()),
            Record::Source { event, .. } => into.sources.push(event),
            Record::Change { before, after, .. } => into.changes.push((before, after)),
            Record::Lost { reason, count } => {
                *into.lost.entry(reason.into_owned()).or_default() += count;
            }
            Record::Runtime {
                runtime,
                version,
                recorded,
                refused_by,
            } => into.runtimes.push((
                runtime,
                version.into_owned(),
                recorded,
                refused_by.into_owned(),
            )),
            Record::Thread {
                thread, tid, name, ..
            } => {
                into.threads.insert(thread, (tid, name.into_owned(), false));
            }
            Record::ThreadEnd { thread, .. } => into.threads.get_mut(&thread).unwrap().2 = true,
            Record::Module {
                module,
                kind,
                runtime,
                path,
                ..
            } => {
                let file = path.rsplit('/').next().unwrap_or_default();
                assert_eq!(self.modules.insert(module, file.to_owned()), None);
                if kind == ModuleKind::Managed {
                    into.modules.push((runtime.unwrap(), path.into_owned()));
                }
            }
            Record::Method {
                method,
                runtime,
                module,
                type_name,
                name,
                ..
            } => {
                let name = match module {
                    Some(module) => format!("{}!{type_name}.{name}", self.modules[&module]),
                    None => name.into_owned(),
                };
                into.methods.push(name.clone());
                assert_eq!(self.methods.insert(method, (runtime, name)), None);
            }
            Record::Frame { frame, value } => {
                let named = match value {
                    Frame::Managed { method, .. } => {
                        let (runtime, name) = self.methods[&method].clone();
                        Named::Managed(runtime, name)
                    }
                    Frame::Stub { .. } | Frame::Unknown { .. } => Named::Unknown,
                    _ => Named::Native,
                };
                self.frames.insert(frame, named);
            }
            Record::Stack {
                stack,
                parent,
                frame,
            } => {
                let mut frames = vec![frame];
                if let Some(parent) = parent {
                    frames.extend(&self.stacks[&parent]);
                }
                self.stacks.insert(stack, frames);
            }
            Record::Detail {
                detail, name, text, ..
            } => {
                self.details
                    .insert(detail, (name.into_owned(), text.into_owned()));
            }
            Record::Sample {
                thread,
                stack,
                event,
                end,
                detail,
                ..
            } => {
                let about = detail.map(|detail| self.details[&detail].clone());
                let (detail, text) = about.unwrap_or_default();
                let mut sample = Sample {
                    event,
                    tid: into.threads[&thread].0,
                    managed: Vec::new(),
                    runtimes: Vec::new(),
                    unknown: 0,
                    end,
                    detail,
                    text,
                };
                for frame in &self.stacks[&stack] {
                    match self.frames[frame].clone() {
                        Named::Managed(runtime, name) => {
                            sample.runtimes.push(runtime);
                            sample.managed.push(name);
                        }
                        Named::Unknown => sample.unknown += 1,
                        Named::Native => {}
                    }
                }
                into.samples.push(sample);
            }
            Record::Traced {
                traced,
                type_name,
                name,
                refused,
                ..
            } => {
                let known = into.traced.entry(traced).or_default();
                known.name = format!("{type_name}.{name}");
                known.refused = refused.into_owned();
            }
            Record::Calls {
                traced,
                errors,
                buckets,
                ..
            } => {
                let known = into.traced.get_mut(&traced).unwrap();
                known.calls += buckets.iter().map(|(_, count)| count).sum::<u64>();
                known.errors += errors;
            }
            _ => {}
        }
    }
}

impl Recorded {
    /// The managed frames of each sample, joined.
    pub(crate) fn stacks(&self) -> Vec<String> {
        let stacks = self.samples.iter().map(|sample| sample.managed.join(" < "));
        stacks.collect()
    }

    /// Asserts one start, one end, no lost samples, and complete stacks.
    pub(crate) fn assert_complete(&self) {
        assert_eq!((self.processes, self.ends), (1, 1));
        let mut lost = self.lost.clone();
        // Not a sample: a registration signal that reached its thread after the session had
        // stopped.
        lost.remove("after the runtime had released the thread");
        assert_eq!(lost, BTreeMap::new());
        for sample in &self.samples {
            assert_eq!(
                (sample.end, sample.unknown),
                (WalkEnd::Root, 0),
                "{sample:?}"
            );
        }
    }
}
