//! Test reader of a recording: decodes every record and checks that it can be read on its own.

use std::collections::{HashMap, HashSet};
use std::io::{Cursor, Read as _};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use recording::{Event, Frame, Item, Reader, Record, WalkEnd, file_header};

use super::Channel;

/// One sample with its stack by name, leaf first.
#[derive(Clone, Debug)]
pub(crate) struct DecodedSample {
    pub(crate) event: Event,
    pub(crate) thread: u32,
    pub(crate) value: u64,
    pub(crate) stack: Vec<String>,
    /// The logical stack, if the sample has one.
    pub(crate) logical: Option<Vec<String>>,
    pub(crate) detail: Option<String>,
    pub(crate) end: WalkEnd,
}

/// A recording that was read to its end.
#[derive(Debug, Default)]
pub(crate) struct DecodedRecording {
    pub(crate) samples: Vec<DecodedSample>,
    /// Names (latest first) of each thread by its number, and whether the thread has ended.
    pub(crate) threads: HashMap<u32, (String, bool)>,
    pub(crate) modules: Vec<String>,
    pub(crate) notes: Vec<String>,
    pub(crate) sources: Vec<Event>,
    pub(crate) engines: Vec<Event>,
    pub(crate) lost: HashMap<String, u64>,
    /// Incomplete chains by reason.
    pub(crate) cut: HashMap<String, u64>,
    pub(crate) processes: u32,
    pub(crate) ends: u32,
    pub(crate) stats: u32,
    /// Records that name frames and stacks.
    pub(crate) frames: usize,
    pub(crate) stacks: usize,
}

/// Returns a channel, and a thread that decodes what is sent over it until it is closed.
pub(crate) fn listen() -> (Channel, UnixStream, JoinHandle<DecodedRecording>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let say = theirs.try_clone().unwrap();
    let reads = std::thread::spawn(move || read(theirs));
    (Channel::from(ours), say, reads)
}

/// Reads to the end. Panics if a number is used before this recording defines it.
fn read(stream: UnixStream) -> DecodedRecording {
    let mut reader = Reader::open(Cursor::new(file_header("test")).chain(stream)).unwrap();
    let mut decoded = DecodedRecording::default();
    let mut modules: HashMap<u32, String> = HashMap::new();
    let mut methods: HashMap<u32, String> = HashMap::new();
    let mut frames: HashMap<u32, String> = HashMap::new();
    let mut stacks: HashMap<u32, Vec<String>> = HashMap::new();
    let mut details: HashMap<u32, String> = HashMap::new();
    let mut started = HashSet::new();
    while let Some(item) = reader.next_item().unwrap() {
        let record = match item {
            Item::Record(_, record) => record,
            Item::Damage(damage) => panic!("{damage:?}"),
            _ => continue,
        };
        match record {
            Record::Process { .. } => decoded.processes += 1,
            Record::End { .. } => decoded.ends += 1,
            Record::Stats { .. } => decoded.stats += 1,
            Record::Engine { event, .. } => decoded.engines.push(event),
            Record::Source { event, .. } => decoded.sources.push(event),
            Record::Note { text } => decoded.notes.push(text.into_owned()),
            Record::Lost { reason, count } => {
                *decoded.lost.entry(reason.into_owned()).or_default() += count;
            }
            Record::AsyncCut { reason, count } => {
                *decoded.cut.entry(reason.into_owned()).or_default() += count;
            }
            Record::Thread { thread, name, .. } => {
                started.insert(thread);
                decoded.threads.insert(thread, (name.into_owned(), false));
            }
            Record::ThreadEnd { thread, .. } => {
                let known = decoded.threads.get_mut(&thread);
                known.expect("a thread that was never told of ends").1 = true;
            }
            Record::Module { module, path, .. } => {
                let name = path.rsplit('/').next().unwrap().to_owned();
                decoded.modules.push(name.clone());
                assert!(
                    modules.insert(module, name).is_none(),
                    "module {module} twice"
                );
            }
            Record::Method {
                method,
                module,
                type_name,
                name,
                ..
            } => {
                if let Some(module) = module {
                    assert!(modules.contains_key(&module), "module {module} is not told");
                }
                methods.insert(method, format!("{type_name}.{name}"));
            }
            Record::Frame { frame, value } => {
                decoded.frames += 1;
                let name = match value {
                    Frame::Native { module, .. } => modules[&module].clone(),
                    Frame::Managed {
                        method, il_offset, ..
                    } => match il_offset {
                        Some(offset) => format!("{} IL {offset}", methods[&method]),
                        None => methods[&method].clone(),
                    },
                    Frame::Stub { name, .. } => format!("stub {name}"),
                    Frame::Pseudo { text } | Frame::AsyncMark { text } => format!("[{text}]"),
                    Frame::Async { method, state } => format!("{} await {state}", methods[&method]),
                    Frame::Unknown { address } => format!("{address:#x}"),
                };
                assert!(frames.insert(frame, name).is_none(), "frame {frame} twice");
            }
            Record::Stack {
                stack,
                parent,
                frame,
            } => {
                decoded.stacks += 1;
                let mut names = vec![frames[&frame].clone()];
                if let Some(parent) = parent {
                    names.extend(stacks[&parent].iter().cloned());
                }
                assert!(stacks.insert(stack, names).is_none(), "stack {stack} twice");
            }
            Record::Detail { detail, name, .. } => {
                details.insert(detail, name.into_owned());
            }
            Record::Sample {
                thread,
                stack,
                event,
                value,
                end,
                detail,
                logical,
                ..
            } => {
                assert!(started.contains(&thread), "thread {thread} is not told");
                decoded.samples.push(DecodedSample {
                    event,
                    thread,
                    value,
                    stack: stacks[&stack].clone(),
                    logical: logical.map(|logical| stacks[&logical].clone()),
                    detail: detail.map(|detail| details[&detail].clone()),
                    end,
                });
            }
            _ => {}
        }
    }
    decoded
}

impl DecodedRecording {
    /// Samples of an event.
    pub(crate) fn of(&self, event: Event) -> Vec<&DecodedSample> {
        let samples = self.samples.iter();
        samples.filter(|sample| sample.event == event).collect()
    }
}
