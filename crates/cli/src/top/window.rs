//! Sums of the last seconds of a recording in progress, for `sidewalk top`.
//!
//! Input: blocks from `record`, as they arrive. Output: [`WindowContent`], which `screen` draws.
//! Invariants: the window contains no older samples. A rate is the sum of the samples' weights,
//! divided by the recorded time of the window.

use std::collections::{HashMap, HashSet, VecDeque};

use profile::Import;
use profile::model::{Event, Frame, FrameId, FrameKind, Location, Profile, ThreadId};
use recording::{Reader, file_header};
use symbolize::Symbolizer;

use crate::names;

/// The content of the window, computed at one instant.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WindowContent {
    /// Length of the window in nanoseconds. Shorter than requested at the beginning.
    pub(crate) span_ns: u64,
    /// `pid name` of each process.
    pub(crate) processes: Vec<String>,
    /// Versions of the runtimes that are recorded.
    pub(crate) runtimes: Vec<String>,
    /// CPU time, in nanoseconds per second.
    pub(crate) cpu: u64,
    /// Bytes allocated per second.
    pub(crate) allocated: u64,
    /// Number of collections in the window, and the time for which they stopped the program, in
    /// nanoseconds per second.
    pub(crate) collections: u64,
    pub(crate) paused: u64,
    /// Number of waits for locks in the window, and their time, in nanoseconds per second.
    pub(crate) waits: u64,
    pub(crate) waited: u64,
    /// Exceptions in the window.
    pub(crate) exceptions: u64,
    /// CPU samples in the window.
    pub(crate) samples: u64,
    /// How many of these samples have a broken stack.
    pub(crate) broken: u64,
    pub(crate) threads: Vec<ThreadRow>,
    pub(crate) methods: Vec<MethodRow>,
}

/// A thread that used CPU time in the window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadRow {
    pub(crate) tid: u32,
    pub(crate) name: String,
    /// CPU time, in nanoseconds per second.
    pub(crate) cpu: u64,
    /// Bytes allocated per second.
    pub(crate) allocated: u64,
    /// Time of lock waits, in nanoseconds per second.
    pub(crate) waited: u64,
    /// The method with most of its time.
    pub(crate) hottest: String,
}

/// A method that is in a stack of the window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MethodRow {
    pub(crate) name: String,
    pub(crate) kind: CodeKind,
    /// CPU time in nanoseconds per second: as the leaf, and anywhere in the stack.
    pub(crate) own: u64,
    pub(crate) total: u64,
    /// Bytes allocated per second: by the method, and by it and its callees.
    pub(crate) own_allocated: u64,
    pub(crate) allocated: u64,
}

/// The kind of a method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum CodeKind {
    #[default]
    Managed,
    Runtime,
    Native,
    Other,
}

impl From<FrameKind> for CodeKind {
    fn from(kind: FrameKind) -> CodeKind {
        match kind {
            FrameKind::Managed => CodeKind::Managed,
            FrameKind::Runtime => CodeKind::Runtime,
            FrameKind::Native => CodeKind::Native,
            _ => CodeKind::Other,
        }
    }
}

/// A sliding window over the samples of the last seconds.
pub(crate) struct Window {
    reader: Reader<VecDeque<u8>>,
    import: Import,
    symbolizer: Symbolizer,
    /// The row of each frame, or [`NO_ROW`].
    of_frame: Vec<u32>,
    rows: HashMap<(String, CodeKind), u32>,
    names: Vec<(String, CodeKind)>,
    length_ns: u64,
    /// Earliest possible time of a sample.
    began_ns: u64,
}

/// Marks a frame that has not been looked up.
const NO_ROW: u32 = u32::MAX;

impl Window {
    /// Returns a window of this length that begins at `now_ns` (CLOCK_MONOTONIC).
    ///
    /// # Errors
    /// None in practice: the header is always valid.
    pub(crate) fn new(length_ns: u64, now_ns: u64) -> anyhow::Result<Window> {
        let header = VecDeque::from(file_header("sidewalk top"));
        let options = symbolize::LookupOptions {
            inlined: false,
            ..names::options()
        };
        Ok(Window {
            // Shown blocks are dropped, so the recording may be of any size.
            reader: Reader::open(header)?.with_unpack_limit(u64::MAX),
            import: Import::new(),
            symbolizer: Symbolizer::new(options),
            of_frame: Vec::new(),
            rows: HashMap::new(),
            names: Vec::new(),
            length_ns,
            began_ns: now_ns,
        })
    }

    /// Adds a whole block.
    ///
    /// # Errors
    /// The block cannot be read.
    pub(crate) fn block(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.reader.source_mut().extend(bytes);
        while let Some(item) = self.reader.next_item()? {
            self.import.item(&item);
        }
        Ok(())
    }

    /// Returns the content of the window that ends now.
    pub(crate) fn content(&mut self, now_ns: u64) -> WindowContent {
        let from_ns = now_ns.saturating_sub(self.length_ns);
        self.import.forget_samples_before(from_ns);
        let profile = self.import.profile_so_far();
        let span_ns = now_ns.saturating_sub(from_ns.max(self.began_ns)).max(1);
        let mut sums = Sums::default();
        let mut on_stack = HashSet::new();
        let mut content = WindowContent {
            span_ns,
            processes: processes(profile),
            runtimes: runtimes(profile),
            ..WindowContent::default()
        };
        for sample in &profile.samples {
            match sample.event {
                Event::Cpu => {
                    content.samples += 1;
                    let whole = matches!(
                        sample.end,
                        recording::WalkEnd::Root | recording::WalkEnd::Truncated
                    );
                    content.broken += u64::from(!whole);
                }
                Event::Alloc => {}
                Event::Gc => {
                    content.collections += 1;
                    content.paused += sample.value;
                    continue;
                }
                Event::Contention => {
                    content.waits += 1;
                    content.waited += sample.value;
                    sums.thread(sample.thread).waited += sample.value;
                    continue;
                }
                Event::Exception => {
                    content.exceptions += 1;
                    continue;
                }
                _ => continue,
            }
            let is_cpu = sample.event == Event::Cpu;
            on_stack.clear();
            let mut leaf = None;
            let mut next = Some(sample.stack);
            while let Some(id) = next {
                let stack = profile.stack(id);
                next = stack.parent;
                let row = row_of(
                    profile,
                    stack.frame,
                    &mut self.of_frame,
                    &mut self.rows,
                    &mut self.names,
                    &mut self.symbolizer,
                );
                leaf.get_or_insert(row);
                if on_stack.insert(row) {
                    let method = sums.method(row);
                    *(if is_cpu {
                        &mut method.total
                    } else {
                        &mut method.allocated
                    }) += sample.value;
                }
            }
            let thread = sums.thread(sample.thread);
            if is_cpu {
                content.cpu += sample.value;
                thread.cpu += sample.value;
                *thread.leaves.entry(leaf.unwrap_or(NO_ROW)).or_default() += sample.value;
            } else {
                content.allocated += sample.value;
                thread.allocated += sample.value;
            }
            if let Some(leaf) = leaf {
                let method = sums.method(leaf);
                *(if is_cpu {
                    &mut method.own
                } else {
                    &mut method.own_allocated
                }) += sample.value;
            }
        }
        let a_second = |value: u64| per_second(value, span_ns);
        for sum in [
            &mut content.cpu,
            &mut content.allocated,
            &mut content.paused,
            &mut content.waited,
        ] {
            *sum = a_second(*sum);
        }
        let name_of = |row: u32| {
            self.names
                .get(row as usize)
                .map_or_else(String::new, |(name, _)| name.clone())
        };
        content.threads = sums
            .threads
            .iter()
            .map(|(&id, sum)| {
                let thread = profile.thread(id);
                let hottest = sum
                    .leaves
                    .iter()
                    .max_by_key(|&(&row, &value)| (value, std::cmp::Reverse(row)));
                ThreadRow {
                    tid: thread.tid,
                    name: thread.name.clone(),
                    cpu: a_second(sum.cpu),
                    allocated: a_second(sum.allocated),
                    waited: a_second(sum.waited),
                    hottest: hottest.map_or_else(String::new, |(&row, _)| name_of(row)),
                }
            })
            .collect();
        content.methods = sums
            .methods
            .iter()
            .filter_map(|(&row, sum)| {
                let (name, kind) = self.names.get(row as usize)?.clone();
                Some(MethodRow {
                    name,
                    kind,
                    own: a_second(sum.own),
                    total: a_second(sum.total),
                    own_allocated: a_second(sum.own_allocated),
                    allocated: a_second(sum.allocated),
                })
            })
            .collect();
        content
    }
}

#[derive(Default)]
struct Sums {
    threads: HashMap<ThreadId, ThreadSum>,
    methods: HashMap<u32, MethodSum>,
}

impl Sums {
    fn thread(&mut self, id: ThreadId) -> &mut ThreadSum {
        self.threads.entry(id).or_default()
    }

    fn method(&mut self, row: u32) -> &mut MethodSum {
        self.methods.entry(row).or_default()
    }
}

#[derive(Default)]
struct ThreadSum {
    cpu: u64,
    allocated: u64,
    waited: u64,
    /// CPU time by the leaf's row.
    leaves: HashMap<u32, u64>,
}

#[derive(Default)]
struct MethodSum {
    own: u64,
    total: u64,
    own_allocated: u64,
    allocated: u64,
}

fn per_second(value: u64, span_ns: u64) -> u64 {
    let a_second = u128::from(value) * 1_000_000_000 / u128::from(span_ns);
    u64::try_from(a_second).unwrap_or(u64::MAX)
}

/// The row of a frame. Frames with the same name and kind share one, as in `--by method`.
fn row_of(
    profile: &Profile,
    id: FrameId,
    of_frame: &mut Vec<u32>,
    rows: &mut HashMap<(String, CodeKind), u32>,
    names: &mut Vec<(String, CodeKind)>,
    symbolizer: &mut Symbolizer,
) -> u32 {
    let index = id.0 as usize;
    if of_frame.len() <= index {
        of_frame.resize(profile.frames.len().max(index + 1), NO_ROW);
    }
    if of_frame[index] == NO_ROW {
        let frame = profile.frame(id);
        let key = (name(profile, frame, symbolizer), CodeKind::from(frame.kind));
        of_frame[index] = *rows.entry(key).or_insert_with_key(|key| {
            names.push(key.clone());
            u32::try_from(names.len() - 1).unwrap_or(NO_ROW - 1)
        });
    }
    of_frame[index]
}

fn name(profile: &Profile, frame: &Frame, symbolizer: &mut Symbolizer) -> String {
    if let (Location::Svma(svma), Some(module)) = (frame.location, frame.module) {
        let module = profile.module(module);
        if let Some(found) = symbolizer.native(module, svma).last() {
            return found.name.clone();
        }
        let unnamed = symbolizer.unnamed(module, svma);
        return unnamed.unwrap_or_else(|| symbolize::unnamed_function_name(module, svma));
    }
    profile.string(frame.name).to_owned()
}

fn processes(profile: &Profile) -> Vec<String> {
    let process_label = |process: &profile::model::Process| {
        let words: Vec<&str> = process.command.iter().map(String::as_str).collect();
        format!("{} {}", process.pid, words.join(" "))
    };
    profile.processes.iter().map(process_label).collect()
}

fn runtimes(profile: &Profile) -> Vec<String> {
    let recorded = profile.runtimes.iter().filter(|runtime| runtime.recorded);
    recorded.map(|runtime| runtime.version.clone()).collect()
}

#[cfg(test)]
pub(crate) mod tests;
