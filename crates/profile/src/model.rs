//! Data of a profile, from which every output is written: plain structs with public fields.
//!
//! Invariants: every id is an index into the table of its kind; `StackId`s form a forest in which a
//! parent's index is smaller than its child's.

/// Index into [`Profile::strings`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct StringId(pub u32);
/// Index into [`Profile::frames`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct FrameId(pub u32);
/// Index into [`Profile::stacks`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct StackId(pub u32);
/// Index into [`Profile::threads`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ThreadId(pub u32);
/// Index into [`Profile::modules`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ModuleId(pub u32);
/// Index into [`Profile::runtimes`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct RuntimeId(pub u32);
/// Index into [`Profile::details`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct DetailId(pub u32);
/// Index into [`Profile::processes`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ProcessId(pub u32);

use std::collections::BTreeMap;

pub use recording::{CostPart, Event, Tier, Unit, WalkEnd};

/// The kind of a frame, which decides its colour.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FrameKind {
    /// A managed method; its tier is in [`Frame::tier`].
    Managed,
    /// Code of the runtime itself (libcoreclr, libclrjit, the GC, System.*.Native).
    Runtime,
    /// Other native code.
    Native,
    /// IL stubs, precode, dispatch stubs.
    Stub,
    /// A frame that represents no code: `[broken: …]`, `[truncated]`.
    Pseudo,
    /// Unknown code.
    Unknown,
    /// The subject of an event, as the leaf of its stack: see [`crate::ops::with_details`].
    Detail,
    /// Between async methods, in logical stacks: `[Task.Run]`, `[WhenAll]`.
    Async,
}

/// One frame: everything a report may show of it. Two frames are the same frame iff all fields
/// are equal; `--by method` merges those that differ only in line and tier.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Frame {
    /// Readable name: `Namespace.Type.Method`, a demangled native function, `[truncated]`.
    pub name: StringId,
    /// Kind.
    pub kind: FrameKind,
    /// Tier of managed code.
    pub tier: Tier,
    /// Its module, where known.
    pub module: Option<ModuleId>,
    /// Its runtime, for managed frames and stubs.
    pub runtime: Option<RuntimeId>,
    /// Source file, where known.
    pub file: Option<StringId>,
    /// Source line, 0 where not known.
    pub line: u32,
    /// The types of its parameters (`(int, string)`), if looked up. They distinguish overloads.
    /// Part of the name only after [`crate::ops::with_signatures`].
    pub signature: Option<StringId>,
    /// Inlined into the frame that follows towards the root (native only).
    pub inlined: bool,
    /// Location by which a symbolizer can look it up.
    pub location: Location,
}

impl Frame {
    /// Returns a frame of which only this is known.
    #[must_use]
    pub fn new(name: StringId, kind: FrameKind) -> Frame {
        Frame {
            name,
            kind,
            tier: Tier::Unknown,
            module: None,
            runtime: None,
            file: None,
            line: 0,
            signature: None,
            inlined: false,
            location: Location::None,
        }
    }
}

/// The identity of a frame before it has a name or a line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Location {
    /// Nothing more to look up.
    None,
    /// Native: address in the ELF file of `Frame::module`.
    Svma(u64),
    /// Managed: MethodDef token and IL offset in `Frame::module`.
    Il {
        /// MethodDef token.
        token: u32,
        /// Bytes; `u32::MAX` where not known.
        offset: u32,
    },
    /// An awaiting async method: MethodDef token of its `MoveNext` in `Frame::module`, and the
    /// number of its await.
    Await {
        /// MethodDef token.
        token: u32,
        /// State of the state machine: the number of its await, from 0. Negative if it is at none.
        state: i32,
    },
    /// The subject of a frame of kind [`FrameKind::Detail`].
    Detail(DetailId),
}

/// A stack is a frame and the stack of its caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stack {
    /// The caller, `None` at the root.
    pub parent: Option<StackId>,
    /// The leaf.
    pub frame: FrameId,
}

/// A loaded file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// Full path.
    pub path: String,
    /// Whether it is a .NET module (else ELF).
    pub managed: bool,
    /// Build-id or MVID.
    pub id_bytes: Vec<u8>,
    /// Address minus svma.
    pub bias: u64,
    /// Offset in `path` at which the file begins.
    pub file_offset: u64,
}

/// A CLR of one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runtime {
    /// Process.
    pub process: ProcessId,
    /// `8.0.4`.
    pub version: String,
    /// Whether it is recorded. False: refused by policy.
    pub recorded: bool,
    /// Function in which it was refused, `CreateInstance` or `Initialize`; empty if not refused or
    /// unknown.
    pub refused_by: String,
}

/// A process of the recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Process id of the kernel.
    pub pid: u32,
    /// Process id of the parent.
    pub parent: u32,
    /// Words of the command line.
    pub command: Vec<String>,
    /// Start of recording, in nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// CLOCK_MONOTONIC at that instant.
    pub start_ns: u64,
    /// CLOCK_MONOTONIC of its last record.
    pub end_ns: u64,
    /// Whether its recording has an end ([`recording::Record::End`]). If not, it was killed or the
    /// file is cut.
    pub ended: bool,
    /// Index into [`Profile::recordings`]; 0 if the profile is of one recording.
    pub recording: usize,
}

/// A thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thread {
    /// Process.
    pub process: ProcessId,
    /// Thread id of the kernel.
    pub tid: u32,
    /// Name, never empty (`thread 1234` if it has none).
    pub name: String,
    /// Whether it has run managed code.
    pub managed: bool,
    /// First seen, nanoseconds of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// End, if known.
    pub end_ns: Option<u64>,
    /// CPU time it used while recorded, nanoseconds; known when it has ended.
    pub cpu_ns: Option<u64>,
    /// Its state when a stack of each thread was taken.
    pub state: Option<ThreadState>,
}

/// The state of a thread, as the kernel reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadState {
    /// `R`, `S`, `D`, … of proc(5); NUL if unknown.
    pub code: char,
    /// Number of the system call that it was in.
    pub syscall: Option<u32>,
    /// The kernel function in which it waited; empty if unknown.
    pub wait: String,
    /// Reason why it has no stack; empty if it has one.
    pub missing: String,
}

/// One sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Thread.
    pub thread: ThreadId,
    /// Leaf of the physical stack: the frames on the thread's stack.
    pub stack: StackId,
    /// Leaf of the logical stack (callers and awaiting methods), if it differs.
    /// [`crate::ops::with_stack_view`] selects one of both.
    pub logical: Option<StackId>,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The event that it was taken for.
    pub event: Event,
    /// Amount in the event's unit.
    pub value: u64,
    /// How the walk ended.
    pub end: WalkEnd,
    /// The subject of the event, if it has one.
    pub detail: Option<DetailId>,
}

/// The subject of an event's samples: the type of an exception or of an object, a collection, a
/// method that was compiled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Detail {
    /// The event.
    pub event: Event,
    /// The name under which samples are counted.
    pub name: StringId,
    /// The rest, such as an exception's message; may be empty.
    pub text: StringId,
}

/// An interval in which the runtime of a process was stopped for a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pause {
    /// Process.
    pub process: ProcessId,
    /// Time at which it resumed, nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Time from the request to stop until it had stopped, nanoseconds.
    pub stopping_ns: u64,
    /// Duration of the stop, nanoseconds.
    pub stopped_ns: u64,
}

/// An event of a process that was recorded for only part of the time, because the events of the
/// session were changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialEvent {
    /// Process.
    pub process: ProcessId,
    /// The event.
    pub event: Event,
    /// Time for which it was recorded, nanoseconds.
    pub on_ns: u64,
    /// Duration of the recording, nanoseconds.
    pub of_ns: u64,
}

/// A traced method: each call was counted and timed, or tracing it was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedMethod {
    /// Process.
    pub process: ProcessId,
    /// The CLR of the method. Methods of equal names in different CLRs are distinct.
    pub runtime: RuntimeId,
    /// Name.
    pub name: StringId,
    /// Full path of its module.
    pub module: StringId,
    /// MethodDef token.
    pub token: u32,
    /// Minimum duration of calls kept as samples, nanoseconds.
    pub min_ns: u64,
    /// Reason why its calls were not counted; empty if they were.
    pub refused: String,
    /// Calls that an exception ended.
    pub errors: u64,
    /// Sum of durations, nanoseconds.
    pub sum_ns: u64,
    /// Longest duration, nanoseconds.
    pub max_ns: u64,
    /// Numbers of calls by bucket of duration ([`recording::histogram`]).
    pub buckets: BTreeMap<u32, u64>,
}

impl TracedMethod {
    /// Returns the number of calls that have ended.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.buckets
            .values()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the mean duration of a call, in nanoseconds.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns / self.calls().max(1)
    }

    /// Returns the numbers of calls by powers of two of nanoseconds: index 0 is less than 64, 1 is
    /// 64 to 127, and so on. The last is all longer than an hour.
    #[must_use]
    pub fn octaves(&self) -> BTreeMap<u32, u64> {
        let mut octaves = BTreeMap::new();
        for (bucket, count) in self.buckets.iter().filter(|(_, count)| **count > 0) {
            let octave = octaves.entry(bucket / recording::histogram::OCTAVE);
            let calls: &mut u64 = octave.or_default();
            *calls = calls.saturating_add(*count);
        }
        octaves
    }

    /// Returns the minimum duration in one of [`TracedMethod::octaves`], nanoseconds.
    #[must_use]
    pub fn octave_ns(octave: u32) -> u64 {
        let bucket = octave.saturating_mul(recording::histogram::OCTAVE);
        recording::histogram::low(usize::try_from(bucket).unwrap_or(usize::MAX))
    }

    /// Returns the quantile of durations in thousandths, in nanoseconds, to 0.8 %.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// # use profile::model::{ProcessId, RuntimeId, StringId, TracedMethod};
    /// # let (process, runtime, text) = (ProcessId(0), RuntimeId(0), StringId(0));
    /// let buckets = (1..=10).map(|ns| (ns, 1)).collect();
    /// let method = TracedMethod {
    ///     // …
    /// #   process, runtime, name: text, module: text, token: 0, min_ns: 0, refused: String::new(), errors: 0,
    ///     sum_ns: 55,
    ///     max_ns: 10,
    ///     buckets,
    /// };
    /// assert_eq!((method.calls(), method.mean_ns()), (10, 5));
    /// assert_eq!([500, 900, 990, 1000].map(|part| method.quantile_ns(part)), [5, 9, 10, 10]);
    /// ```
    #[must_use]
    pub fn quantile_ns(&self, of_thousand: u64) -> u64 {
        let calls = u128::from(self.calls());
        let rank = (calls * u128::from(of_thousand)).div_ceil(1000);
        let mut below = 0u128;
        for (bucket, count) in &self.buckets {
            below += u128::from(*count);
            if below >= rank {
                let bucket = usize::try_from(*bucket).unwrap_or(usize::MAX);
                let last = bucket >= recording::histogram::BUCKETS - 1;
                let middle = recording::histogram::middle(bucket);
                return if last {
                    self.max_ns
                } else {
                    middle.min(self.max_ns)
                };
            }
        }
        self.max_ns
    }
}

/// The live heap of a process: a series of snapshots.
///
/// Samples of [`Event::Live`] are the objects alive at the last snapshot.
#[derive(Clone, PartialEq, Debug)]
pub struct LiveHeap {
    /// Process.
    pub process: ProcessId,
    /// By time.
    pub instants: Vec<LiveInstant>,
    /// Live objects by type at some snapshots, by time: the first, the last, and evenly spaced ones
    /// between them, as many as fit. In a time range: those inside it.
    pub moments: Vec<LiveMoment>,
    /// Time in CLOCK_MONOTONIC nanoseconds, and number of collections that had ended, if reported;
    /// by time.
    pub collections: Vec<(u64, u64)>,
}

/// A snapshot of the live heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveInstant {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Collections that had ended.
    pub collections: u64,
    /// Size of the live objects, bytes.
    pub bytes: u64,
}

/// The objects alive at a snapshot, by type.
#[derive(Clone, PartialEq, Debug)]
pub struct LiveMoment {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Collections that had ended.
    pub collections: u64,
    /// By type.
    pub types: BTreeMap<StringId, LiveSum>,
}

/// Sum of live objects.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LiveSum {
    /// Bytes.
    pub bytes: u64,
    /// Approximate number of objects. Objects of unknown size count as one each.
    pub objects: f64,
    /// Samples that represent them.
    pub samples: u64,
}

impl LiveSum {
    /// Adds a sample of an object of this size (0: unknown).
    pub fn add(&mut self, bytes: u64, size: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.objects += objects_in(bytes, size);
        self.samples += 1;
    }

    /// Removes a sample of an object.
    pub(crate) fn take(&mut self, bytes: u64, size: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.samples = self.samples.saturating_sub(1);
        self.objects = match self.samples {
            0 => 0.0,
            _ => self.objects - objects_in(bytes, size),
        };
    }

    /// Adds the numbers of another process.
    pub fn join(&mut self, other: LiveSum) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.objects += other.objects;
        self.samples = self.samples.saturating_add(other.samples);
    }
}

fn objects_in(bytes: u64, size: u64) -> f64 {
    match size {
        0 => 1.0,
        size => bytes as f64 / size as f64,
    }
}

impl LiveHeap {
    /// Returns the age at the last snapshot of an object allocated at this time: nanoseconds, and
    /// collections survived.
    #[must_use]
    pub fn age_of(&self, time_ns: u64) -> (u64, u64) {
        let Some(last) = self.instants.last() else {
            return (0, 0);
        };
        let behind = self.collections.partition_point(|(at, _)| *at <= time_ns);
        let before = behind
            .checked_sub(1)
            .and_then(|at| self.collections.get(at));
        let had_ended = before.map_or(0, |(_, ended)| *ended);
        (
            last.time_ns.saturating_sub(time_ns),
            last.collections.saturating_sub(had_ended),
        )
    }
}

/// The source of an event's samples.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SampleSource {
    /// The event.
    pub event: Event,
    /// e.g. `perf task-clock`, `AllocationTick`.
    pub source: String,
    /// Name of the walker that took their stacks.
    pub walker: String,
    /// Approximate amount that one sample represents, in the event's unit; 0 if every occurrence is
    /// sampled.
    pub interval: u64,
    /// Whether samples are taken at every `interval` of time, not at occurrences.
    pub by_time: bool,
}

/// Occurrences of an event that a limit dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitedEvents {
    /// The event.
    pub event: Event,
    /// How many.
    pub count: u64,
    /// The sum of their values, in the event's unit.
    pub value: u64,
}

/// All [`Pause`]s together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pauses {
    /// How many.
    pub count: u64,
    /// Total time for which runtimes were stopped, nanoseconds.
    pub total_ns: u64,
    /// Median duration of a stop, nanoseconds.
    pub median_ns: u64,
    /// The longest.
    pub longest_ns: u64,
    /// Total time to stop runtimes, nanoseconds.
    pub stopping_ns: u64,
}

/// CPU time that no sample represents, for one reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsampledTime {
    /// e.g. `threads that block our signal`; `unknown`.
    pub reason: String,
    /// Number of threads; 0 if not counted.
    pub threads: u64,
    /// Their CPU time, nanoseconds.
    pub cpu_ns: u64,
}

/// A part of the cost of recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Which.
    pub part: CostPart,
    /// Name of the subpart, e.g. `compilation`; empty where the part has none of its own.
    pub name: String,
    /// Whether it was computed from a model, not measured.
    pub modelled: bool,
    /// Calls, runs or ticks.
    pub count: u64,
    /// CPU time, nanoseconds.
    pub cpu_ns: u64,
}

/// The honest line, in numbers. Counts are over all processes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Health {
    /// Samples in the recording.
    pub samples: u64,
    /// Samples that could not be taken, by reason, most first.
    pub lost: Vec<(String, u64)>,
    /// Walks that did not reach the root, by reason, most first.
    pub broken: Vec<(String, u64)>,
    /// Walks cut at the depth allowed.
    pub truncated: u64,
    /// Samples in a resumed async method, with a chain (the methods that await it).
    pub chains: u64,
    /// Incomplete chains by reason, most first.
    pub chains_cut: Vec<(String, u64)>,
    /// Frames in all samples.
    pub frames: u64,
    /// Unknown frames in all samples.
    pub unknown_frames: u64,
    /// CPU time that samples should represent, nanoseconds: that of the processes while they were
    /// sampled, without the agents'. `None` if it is not sampled by signals, or a recording is too
    /// old.
    pub due_ns: Option<u64>,
    /// The part of it that samples represent.
    pub seen_ns: u64,
    /// The CPU time that no sample represents, if it exceeds the error of sampling; most first.
    pub unseen: Vec<UnsampledTime>,
    /// Process ids of processes without a final record. Up to the last tenth of a second of each is
    /// missing.
    pub abrupt: Vec<u32>,
    /// e.g. `perf task-clock`.
    pub engine: String,
    /// e.g. `signal`.
    pub walker: String,
    /// The event that is sampled by time, if known; the first of two.
    pub event: Option<Event>,
    /// Requested interval of that event, nanoseconds.
    pub interval_ns: u64,
    /// The time that most CPU samples represent, nanoseconds; 0 if there are too few.
    pub achieved_ns: u64,
    /// Depth at which stacks are cut.
    pub max_depth: u32,
    /// CPU time of the agents, nanoseconds.
    pub agent_cpu_ns: u64,
    /// CPU time of the processes, nanoseconds.
    pub target_cpu_ns: u64,
    /// Maximum memory of an agent, bytes.
    pub agent_memory: u64,
    /// Time in signal handlers, nanoseconds.
    pub handler_ns: u64,
    /// The cost of recording for the processes besides the agents' threads, if recorded: by part,
    /// most first in each. Handlers are always present.
    pub cost: Vec<Cost>,
    /// Distinct sources of samples of all processes, those by time first.
    pub sources: Vec<SampleSource>,
    /// Events that were recorded for a part of the time only.
    pub partial: Vec<PartialEvent>,
    /// Numbers of samples dropped by limits, by event.
    pub limited: Vec<LimitedEvents>,
    /// Stops of runtimes.
    pub pauses: Pauses,
    /// Notes for the reader, such as that a recording is cut.
    pub notes: Vec<String>,
}

/// A whole profile.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Profile {
    /// Interned strings.
    pub strings: Vec<String>,
    /// Interned frames.
    pub frames: Vec<Frame>,
    /// Interned stacks, parents before children.
    pub stacks: Vec<Stack>,
    /// Modules.
    pub modules: Vec<Module>,
    /// Runtimes.
    pub runtimes: Vec<Runtime>,
    /// Processes.
    pub processes: Vec<Process>,
    /// Threads.
    pub threads: Vec<Thread>,
    /// Interned details.
    pub details: Vec<Detail>,
    /// Samples by time.
    pub samples: Vec<Sample>,
    /// Stops of runtimes, by time.
    pub pauses: Vec<Pause>,
    /// Methods whose calls were counted.
    pub traced: Vec<TracedMethod>,
    /// The live heap, by process.
    pub live: Vec<LiveHeap>,
    /// The honest line.
    pub health: Health,
    /// File names of the merged recordings, if several ([`crate::merge`]).
    pub recordings: Vec<String>,
}

impl Profile {
    /// Text of a string.
    #[must_use]
    pub fn string(&self, id: StringId) -> &str {
        &self.strings[id.0 as usize]
    }

    /// A frame.
    #[must_use]
    pub fn frame(&self, id: FrameId) -> &Frame {
        &self.frames[id.0 as usize]
    }

    /// A frame's name.
    #[must_use]
    pub fn name(&self, id: FrameId) -> &str {
        self.string(self.frame(id).name)
    }

    /// A stack.
    #[must_use]
    pub fn stack(&self, id: StackId) -> Stack {
        self.stacks[id.0 as usize]
    }

    /// A module.
    #[must_use]
    pub fn module(&self, id: ModuleId) -> &Module {
        &self.modules[id.0 as usize]
    }

    /// A runtime.
    #[must_use]
    pub fn runtime(&self, id: RuntimeId) -> &Runtime {
        &self.runtimes[id.0 as usize]
    }

    /// The subject of an event.
    #[must_use]
    pub fn detail(&self, id: DetailId) -> Detail {
        self.details[id.0 as usize]
    }

    /// A process.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> &Process {
        &self.processes[id.0 as usize]
    }

    /// A thread.
    #[must_use]
    pub fn thread(&self, id: ThreadId) -> &Thread {
        &self.threads[id.0 as usize]
    }

    /// The frames of a stack, leaf first.
    pub fn frames_of(&self, stack: StackId) -> impl Iterator<Item = FrameId> + '_ {
        let mut next = Some(stack);
        std::iter::from_fn(move || {
            let Stack { parent, frame } = self.stack(next?);
            next = parent;
            Some(frame)
        })
    }
}

impl Module {
    /// Its build-id or MVID in hexadecimal digits, empty if it has none.
    #[must_use]
    pub fn id_digits(&self) -> String {
        let bytes = self.id_bytes.iter();
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Health {
    /// The source of an event's samples.
    #[must_use]
    pub fn source_of(&self, event: Event) -> Option<&SampleSource> {
        self.sources.iter().find(|source| source.event == event)
    }

    /// The time between two samples of an event that is sampled by time, nanoseconds.
    #[must_use]
    pub fn interval_of(&self, event: Event) -> Option<u64> {
        let mut by_time = self.sources.iter().filter(|source| source.by_time);
        let known = by_time.find(|source| source.event == event);
        known.map(|source| source.interval)
    }
}

impl Health {
    /// Whether the achieved interval is clearly longer than the requested one, for the event
    /// sampled by time.
    #[must_use]
    pub fn is_slower_than_asked(&self) -> bool {
        self.interval_ns > 0
            && self.achieved_ns > self.interval_ns.saturating_add(self.interval_ns / 4)
    }
}

impl Module {
    /// The last part of its path: `libc.so.6`.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

impl Process {
    /// The name to show, by its command line ([`crate::names::process`]); `process 1234` where
    /// there is none.
    #[must_use]
    pub fn name(&self) -> String {
        crate::command::process(&self.command).unwrap_or_else(|| format!("process {}", self.pid))
    }
}
