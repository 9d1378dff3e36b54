//! Records of a recording: one enum, with a variant for each kind of fact that the agent reports.
//!
//! `codec` encodes records; crate `profile` makes a profile of them. Invariant: a record refers
//! only to ids that earlier records of the same process defined, so a stream that is cut behind a
//! whole block can be read up to there.
//!
//! Ids (`module`, `method`, `frame`, `stack`, `thread`) are dense, start at 0 and belong to one
//! process of the recording. Times are nanoseconds of CLOCK_MONOTONIC; [`Record::Process`] ties
//! them to the wall clock.

use std::borrow::Cow;

/// Identity of a process in a recording. Made by the agent at start; unique even
/// when a pid is used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ProcessKey(pub u64);

/// Tier to which a method body was compiled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Tier {
    /// Not known.
    Unknown = 0,
    /// Quick, unoptimised code.
    Tier0 = 1,
    /// Tier-0 code with counters.
    Tier0Instrumented = 2,
    /// Tier-1 code with counters (from hot ReadyToRun code).
    Tier1Instrumented = 3,
    /// Optimised code after call counting.
    Tier1 = 4,
    /// Optimised code entered in the middle of a running tier-0 loop.
    Osr = 5,
    /// Code compiled ahead of time.
    ReadyToRun = 6,
    /// Optimised at once, tiering not used.
    Optimized = 7,
    /// Not optimised at all (debug build, or minimal options).
    MinOpts = 8,
}

/// Kind of a [`Record::Method`]'s code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum MethodKind {
    /// IL of a module, JITted or ReadyToRun.
    Il = 0,
    /// A DynamicMethod.
    Dynamic = 1,
    /// A stub in IL that the runtime made (P/Invoke marshalling, delegate shuffles, …).
    IlStub = 2,
}

/// Kind of a [`Record::Module`]'s file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ModuleKind {
    /// An ELF object.
    Native = 0,
    /// A .NET module.
    Managed = 1,
}

/// A part of the cost of recording in the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum CostPart {
    /// Callbacks of the runtime, on the program's threads.
    Callbacks = 0,
    /// Signal handlers, walks included.
    Handlers = 1,
    /// The kernel's cost of a tick: the interrupt, and the signal's way to the handler and back.
    Ticks = 2,
    /// Probes of traced methods, on the program's threads.
    Probes = 3,
}

/// One frame, as the agent resolved it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Frame<'a> {
    /// A managed method.
    Managed {
        /// [`Record::Method`].
        method: u32,
        /// Tier of the body that ran.
        tier: Tier,
        /// IL offset of the instruction (of the call, for a frame that is not the leaf), where
        /// the runtime has a map. Bytes.
        il_offset: Option<u32>,
    },
    /// Native code.
    Native {
        /// [`Record::Module`] of kind native.
        module: u32,
        /// Address as the ELF file has it (stated virtual memory address). Already moved back
        /// into the call instruction where the frame is a caller, so look it up as it is.
        svma: u64,
    },
    /// Code that the runtime generated and that is no method: precode, dispatch and jump stubs,
    /// write barriers.
    Stub {
        /// [`Record::Runtime`].
        runtime: u8,
        /// Its kind, e.g. `write barrier`.
        name: Cow<'a, str>,
    },
    /// Code that belongs to nothing that we know.
    Unknown {
        /// Its address.
        address: u64,
    },
    /// Where a walk ended other than at the thread's root: `broken: no unwind rule`,
    /// `truncated`. Shown in square brackets.
    Pseudo {
        /// The text without brackets.
        text: Cow<'a, str>,
    },
    /// An async method that awaits the one called from here. Only in logical stacks
    /// ([`Record::Sample`]); it is suspended, not running.
    Async {
        /// [`Record::Method`] of its state machine's `MoveNext`.
        method: u32,
        /// `<>1__state` of the state machine: which of its awaits, from 0 in the order of the IL.
        state: i32,
    },
    /// How one async frame comes to the next, or why there is none: `Task.Run`, `WhenAll`,
    /// `blocking wait`, `async: gate closed`. Only in logical stacks. Shown in square brackets.
    AsyncMark {
        /// The text without brackets.
        text: Cow<'a, str>,
    },
}

/// Event of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Event {
    /// The thread used CPU time. Value: nanoseconds.
    Cpu = 0,
    /// Time passed, running or not. Value: nanoseconds.
    Wall = 1,
    /// An exception was thrown. Value: 1.
    Exception = 2,
    /// Memory was allocated. Value: bytes.
    Alloc = 3,
    /// A lock was waited for. Value: nanoseconds.
    Contention = 4,
    /// A garbage collection. Value: nanoseconds of pause.
    Gc = 5,
    /// A method was compiled. Value: nanoseconds.
    Jit = 6,
    /// A class was loaded. Value: 1.
    ClassLoad = 7,
    /// A module was loaded. Value: 1.
    ModuleLoad = 8,
    /// A method was called, counted exactly (walker `shadow`). Value: calls.
    Call = 9,
    /// A call of a traced method that was kept with its stack ([`Record::Traced`]). Value:
    /// nanoseconds.
    TracedCall = 10,
    /// An object that was sampled when it was allocated, and is alive at the end
    /// ([`Record::Survivor`]). Value: bytes.
    Live = 11,
    /// Async methods that nobody ran, when a walk of the heap found them. Value: how many have this
    /// stack, which is of who awaits them.
    Suspended = 12,
}

/// How a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum WalkEnd {
    /// At the thread's root: the stack is whole.
    Root = 0,
    /// Cut at the depth that the user allowed.
    Truncated = 1,
    /// Anywhere else; the last frame is a [`Frame::Pseudo`] that says why.
    Broken = 2,
}

/// One fact of a recording.
#[derive(Clone, PartialEq, Debug)]
pub enum Record<'a> {
    /// First record of each process.
    Process {
        /// Process id.
        pid: u32,
        /// Parent's process id.
        parent: u32,
        /// The command line, words joined by NUL as the kernel has it.
        command: Cow<'a, str>,
        /// Wall clock at `time_ns`: nanoseconds since 1970.
        unix_ns: u64,
        /// CLOCK_MONOTONIC at the same instant.
        time_ns: u64,
    },
    /// How samples are taken.
    Engine {
        /// e.g. `perf task-clock`, `timer_create`, with what a reader must know (`user time only`).
        engine: Cow<'a, str>,
        /// The walker's name, `signal`.
        walker: Cow<'a, str>,
        /// The event that is sampled by time ([`Event::Cpu`] or [`Event::Wall`]).
        event: Event,
        /// Interval asked for.
        interval_ns: u64,
        /// Depth at which stacks are cut.
        max_depth: u32,
    },
    /// A CLR of this process.
    Runtime {
        /// Its index, dense from 0.
        runtime: u8,
        /// `8.0.4`.
        version: Cow<'a, str>,
        /// Recorded, or refused by policy.
        recorded: bool,
        /// Where it was refused: `CreateInstance` or `Initialize`. Empty where it was not, or a
        /// recording is older than this field.
        refused_by: Cow<'a, str>,
    },
    /// A thread.
    Thread {
        /// Its id in the recording.
        thread: u32,
        /// Id of the kernel.
        tid: u32,
        /// Its name; empty where it has none. A later record for the same id renames it.
        name: Cow<'a, str>,
        /// It has run managed code.
        managed: bool,
        /// When we first saw it.
        time_ns: u64,
    },
    /// A thread ended.
    ThreadEnd {
        /// Its id in the recording.
        thread: u32,
        /// When.
        time_ns: u64,
        /// CPU time it used while recorded, nanoseconds.
        cpu_ns: u64,
    },
    /// A loaded file.
    Module {
        /// Its id.
        module: u32,
        /// Native or managed.
        kind: ModuleKind,
        /// The runtime that loaded it, for a managed one.
        runtime: Option<u8>,
        /// Full path, or a name where there is no file.
        path: Cow<'a, str>,
        /// Address minus svma (native) or the image base (managed).
        bias: u64,
        /// ELF build-id, or the MVID of a .NET module. Empty where there is none.
        id_bytes: Cow<'a, [u8]>,
        /// Offset in `path` at which the file begins (a library inside an archive, a module
        /// inside a single-file app).
        file_offset: u64,
    },
    /// A managed method. Names are the metadata's own; `profile` makes them readable.
    Method {
        /// Its id.
        method: u32,
        /// The runtime.
        runtime: u8,
        /// Its kind.
        kind: MethodKind,
        /// Its module, where it has one.
        module: Option<u32>,
        /// MethodDef token, 0 where there is none.
        token: u32,
        /// Namespace and type as metadata has them, nested types joined by `+`, generic
        /// arguments of the type, where known, as `[A,B]` behind the whole name:
        /// `System.Collections.Generic.Dictionary`2+Enumerator[System.Int32,System.__Canon]`.
        type_name: Cow<'a, str>,
        /// Method name as metadata has it, generic arguments behind it in `[…]`.
        name: Cow<'a, str>,
    },
    /// A frame.
    Frame {
        /// Its id.
        frame: u32,
        /// Its kind.
        value: Frame<'a>,
    },
    /// A stack: `frame` called from the stack `parent`.
    Stack {
        /// Its id.
        stack: u32,
        /// The caller's stack; `None` where `frame` is the root.
        parent: Option<u32>,
        /// The leaf of this stack.
        frame: u32,
    },
    /// One sample.
    Sample {
        /// [`Record::Thread`].
        thread: u32,
        /// [`Record::Stack`].
        stack: u32,
        /// When; the end of it, for what takes time.
        time_ns: u64,
        /// Its event.
        event: Event,
        /// Amount in the event's unit, scaled to what the sample stands for.
        value: u64,
        /// How the walk ended.
        end: WalkEnd,
        /// [`Record::Detail`], for an event that has one.
        detail: Option<u32>,
        /// The logical stack, where it is another one than `stack`: the frames of `stack` from its
        /// leaf to the youngest async method that was resumed, and then, instead of who resumed it,
        /// who awaits it ([`Frame::Async`], [`Frame::AsyncMark`]) up to the root of the chain. A
        /// chain that is not whole has one too; its root says why.
        logical: Option<u32>,
    },
    /// Subject of an event's samples, written once for all that share it.
    Detail {
        /// Its id.
        detail: u32,
        /// The event whose samples refer to it.
        event: Event,
        /// Name under which samples are counted: the type of an exception or of an object, a class,
        /// a module, a generation, a method with its tier behind it (`Type.Method (tier 1)`). Types
        /// and methods as metadata names them.
        name: Cow<'a, str>,
        /// The rest: an exception's message and whether it was caught, an object's size, a
        /// collection's reason. May be empty.
        text: Cow<'a, str>,
    },
    /// Where the samples of an event come from. One for each event but those of
    /// [`Record::Engine`].
    Source {
        /// The event.
        event: Event,
        /// e.g. `AllocationTick`, `ExceptionThrown callback`.
        source: Cow<'a, str>,
        /// Name of the walker that takes their stacks.
        walker: Cow<'a, str>,
        /// About how much of the event's unit one sample stands for; 0 where each one is taken.
        interval: u64,
    },
    /// Events that happened and were not kept as samples, because of a limit, since the last such
    /// record of the same event.
    Limited {
        /// The event.
        event: Event,
        /// How many.
        count: u64,
        /// The sum of their values, in the event's unit.
        value: u64,
    },
    /// Somebody has changed what is recorded, while it was: from here on `after`, where it was
    /// `before`. Each is a set: bit n stands for the event with code n. Without such a record a
    /// process has the same events from its first record to its last.
    Change {
        /// When.
        time_ns: u64,
        /// The events until then.
        before: u32,
        /// The events from then on.
        after: u32,
    },
    /// The runtime was stopped for a walk (walkers `suspend`, `seeded`).
    Pause {
        /// When it went on.
        time_ns: u64,
        /// From the wish to stop it until it stood, nanoseconds.
        stopping_ns: u64,
        /// How long it stood, nanoseconds.
        stopped_ns: u64,
    },
    /// Samples that could not be taken, since the last such record of the same reason.
    Lost {
        /// e.g. `ring full`, `no stack bounds`.
        reason: Cow<'a, str>,
        /// How many.
        count: u64,
    },
    /// Walks that ended neither at the root nor by truncation, by reason, since the last such
    /// record (the samples themselves are [`Record::Sample`]s).
    Broken {
        /// The reason, as in the pseudo-frame.
        reason: Cow<'a, str>,
        /// How many.
        count: u64,
    },
    /// Logical stacks that are not whole, by reason, since the last such record of the same reason
    /// (they are [`Record::Sample`]'s `logical` all the same, where one could be begun).
    AsyncCut {
        /// The reason, as in [`Frame::AsyncMark`] without `async: `.
        reason: Cow<'a, str>,
        /// How many.
        count: u64,
    },
    /// Totals since the process is recorded (since its start, where it was recorded from then on);
    /// the last one holds.
    Stats {
        /// When.
        time_ns: u64,
        /// CPU time of the agent's own thread, nanoseconds.
        agent_cpu_ns: u64,
        /// CPU time of the whole process, nanoseconds.
        target_cpu_ns: u64,
        /// Memory that the agent holds in the process, bytes.
        agent_memory: u64,
        /// Nanoseconds spent in the signal handler, all threads.
        handler_ns: u64,
        /// CPU time that samples of [`Event::Cpu`] should stand for: that of the process without
        /// the agent's own thread, while samples were taken. `None` where no signal takes them, or
        /// a recording is older than this field.
        due_ns: Option<u64>,
        /// Of it, what the samples counted in [`Record::Lost`] would have stood for.
        lost_ns: u64,
    },
    /// CPU time that no sample stands for, so far; the last one of a reason holds.
    Unseen {
        /// e.g. `threads that block our signal`.
        reason: Cow<'a, str>,
        /// How many threads; 0 where they cannot be counted.
        threads: u64,
        /// Their CPU time, nanoseconds.
        cpu_ns: u64,
    },
    /// A part of what recording has cost the process so far, beside the agent's own thread; the
    /// last one of a part and name holds.
    Cost {
        /// The part.
        part: CostPart,
        /// It was reckoned, not measured.
        modelled: bool,
        /// How many calls, runs or ticks.
        count: u64,
        /// CPU time, nanoseconds.
        cpu_ns: u64,
        /// Subdivision of the part, e.g. `compilation`; empty where it has none.
        name: Cow<'a, str>,
    },
    /// A thread's state in the kernel when the stack of each thread was taken.
    ThreadState {
        /// [`Record::Thread`].
        thread: u32,
        /// When.
        time_ns: u64,
        /// `R`, `S`, `D`, … of proc(5); 0 where it is not known.
        state: u8,
        /// Number of the system call that it was in.
        syscall: Option<u32>,
        /// The kernel's function in which it waited; empty where that is not told.
        wait: Cow<'a, str>,
        /// Why there is no stack of it; empty where there is one.
        missing: Cow<'a, str>,
    },
    /// A method whose calls are counted and timed, each one, by what was written into its code; or
    /// that was to be.
    Traced {
        /// Its id, dense from 0. One runtime's: methods of the same name in two runtimes are two.
        traced: u32,
        /// [`Record::Runtime`].
        runtime: u8,
        /// MethodDef token.
        token: u32,
        /// Calls that took less have no sample, nanoseconds; they are counted all the same.
        min_ns: u64,
        /// Full path of its module, or a name where there is no file.
        module: Cow<'a, str>,
        /// As [`Record::Method`] has it.
        type_name: Cow<'a, str>,
        /// As [`Record::Method`] has it.
        name: Cow<'a, str>,
        /// Why its calls are not counted; empty where they are.
        refused: Cow<'a, str>,
    },
    /// Calls of a traced method that have ended since the last such record of it.
    Calls {
        /// [`Record::Traced`].
        traced: u32,
        /// When this was added up.
        time_ns: u64,
        /// Of them, those that an exception ended.
        errors: u64,
        /// Their durations together, nanoseconds.
        sum_ns: u64,
        /// The longest, nanoseconds.
        max_ns: u64,
        /// How many took how long: pairs of a bucket ([`crate::histogram`]) and a number, by
        /// bucket, each once. All of them together are the calls.
        buckets: Cow<'a, [(u32, u64)]>,
    },
    /// A thread collected garbage: what it ran in that time outside managed code was the collector.
    Collected {
        /// [`Record::Thread`].
        thread: u32,
        /// From when on.
        time_ns: u64,
        /// For how long, nanoseconds.
        ns: u64,
    },
    /// An object that was sampled when it was allocated, is alive at the instant that follows, and
    /// was not told of before. It is alive until [`Record::Gone`] or [`Record::Thinned`] has its
    /// number.
    Survivor {
        /// Its number, one of the process's, never used again.
        allocation: u32,
        /// [`Record::Thread`] that allocated it.
        thread: u32,
        /// [`Record::Stack`] by which it was allocated, as [`Record::Sample`] has it.
        stack: u32,
        /// The logical one, as [`Record::Sample`] has it.
        logical: Option<u32>,
        /// When it was allocated.
        time_ns: u64,
        /// How the walk ended.
        end: WalkEnd,
        /// Bytes that it stands for.
        bytes: u64,
        /// Its own size, bytes; 0 where that is not told.
        size: u64,
        /// Collections of its runtime that had ended when it was allocated, of those that were
        /// counted.
        collections: u64,
        /// [`Record::Detail`]: its type.
        detail: Option<u32>,
    },
    /// Survivors that have been collected since the instant before.
    Gone {
        /// When that was found.
        time_ns: u64,
        /// Numbers of [`Record::Survivor`]s.
        allocations: Cow<'a, [u32]>,
    },
    /// There were too many to follow: of all that were told, these are not followed any more,
    /// chosen by chance, and each of the others stands for twice as many bytes from here on.
    Thinned {
        /// When.
        time_ns: u64,
        /// Numbers of [`Record::Survivor`]s.
        allocations: Cow<'a, [u32]>,
    },
    /// All that was told of the live heap so far is how it was at this instant.
    Instant {
        /// When.
        time_ns: u64,
        /// Collections that have ended since they are counted.
        collections: u64,
    },
    /// Something a reader should be told (`a profiler was already set: …`).
    Note {
        /// One sentence.
        text: Cow<'a, str>,
    },
    /// The process ended, or the recording of it was stopped: nothing follows for this process.
    End {
        /// When.
        time_ns: u64,
    },
    /// A symbol looked up after recording, so that the file can be read on another machine.
    /// Written by the tool, not the agent.
    Symbol {
        /// [`Record::Frame`], native or managed.
        frame: u32,
        /// Demangled function name; inlined functions are further records for the same frame,
        /// innermost first. Of no meaning for a managed frame, which has one such record for its
        /// line.
        name: Cow<'a, str>,
        /// Source file, empty where not known.
        file: Cow<'a, str>,
        /// Line, 0 where not known.
        line: u32,
    },
}

impl Tier {
    /// Each tier once, by code.
    pub const ALL: [Tier; 9] = [
        Tier::Unknown,
        Tier::Tier0,
        Tier::Tier0Instrumented,
        Tier::Tier1Instrumented,
        Tier::Tier1,
        Tier::Osr,
        Tier::ReadyToRun,
        Tier::Optimized,
        Tier::MinOpts,
    ];

    /// The tier with this code; a code of a newer version is [`Tier::Unknown`].
    #[must_use]
    pub fn from_code(code: u8) -> Tier {
        let known = Self::ALL.get(usize::from(code));
        known.copied().unwrap_or(Tier::Unknown)
    }
}

impl MethodKind {
    /// The kind with this code; a code of a newer version is [`MethodKind::Il`].
    #[must_use]
    pub fn from_code(code: u8) -> MethodKind {
        match code {
            1 => MethodKind::Dynamic,
            2 => MethodKind::IlStub,
            _ => MethodKind::Il,
        }
    }
}

impl ModuleKind {
    /// The kind with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<ModuleKind> {
        match code {
            0 => Some(ModuleKind::Native),
            1 => Some(ModuleKind::Managed),
            _ => None,
        }
    }
}

impl CostPart {
    /// The part with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<CostPart> {
        match code {
            0 => Some(CostPart::Callbacks),
            1 => Some(CostPart::Handlers),
            2 => Some(CostPart::Ticks),
            3 => Some(CostPart::Probes),
            _ => None,
        }
    }
}

impl Event {
    /// The events of a set: bit n stands for the one with code n. Those of a newer version are left
    /// out.
    pub fn from_bits(bits: u32) -> impl Iterator<Item = Event> {
        (0..32u8)
            .filter(move |code| bits & 1 << code != 0)
            .filter_map(Event::from_code)
    }

    /// The event with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Event> {
        Some(match code {
            0 => Event::Cpu,
            1 => Event::Wall,
            2 => Event::Exception,
            3 => Event::Alloc,
            4 => Event::Contention,
            5 => Event::Gc,
            6 => Event::Jit,
            7 => Event::ClassLoad,
            8 => Event::ModuleLoad,
            9 => Event::Call,
            10 => Event::TracedCall,
            11 => Event::Live,
            12 => Event::Suspended,
            _ => return None,
        })
    }
}

impl Event {
    /// Its name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Event::Cpu => "cpu",
            Event::Wall => "wall",
            Event::Exception => "exception",
            Event::Alloc => "alloc",
            Event::Contention => "contention",
            Event::Gc => "gc",
            Event::Jit => "jit",
            Event::ClassLoad => "class-load",
            Event::ModuleLoad => "module-load",
            Event::Call => "call",
            Event::TracedCall => "traced-call",
            Event::Live => "live",
            Event::Suspended => "suspended",
        }
    }

    /// Unit of a [`Record::Sample`]'s value.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Event::Cpu
            | Event::Wall
            | Event::Contention
            | Event::Gc
            | Event::Jit
            | Event::TracedCall => Unit::Nanoseconds,
            Event::Alloc | Event::Live => Unit::Bytes,
            Event::Exception
            | Event::ClassLoad
            | Event::ModuleLoad
            | Event::Call
            | Event::Suspended => Unit::Count,
        }
    }
}

/// Unit of a sample's value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unit {
    /// Time.
    Nanoseconds,
    /// Memory.
    Bytes,
    /// Pieces.
    Count,
}

impl WalkEnd {
    /// The end with this code; a code of a newer version is [`WalkEnd::Broken`].
    #[must_use]
    pub fn from_code(code: u8) -> WalkEnd {
        match code {
            0 => WalkEnd::Root,
            1 => WalkEnd::Truncated,
            _ => WalkEnd::Broken,
        }
    }
}

impl Frame<'_> {
    /// The same frame without borrowing.
    #[must_use]
    pub fn into_owned(self) -> Frame<'static> {
        match self {
            Frame::Managed {
                method,
                tier,
                il_offset,
            } => Frame::Managed {
                method,
                tier,
                il_offset,
            },
            Frame::Native { module, svma } => Frame::Native { module, svma },
            Frame::Stub { runtime, name } => Frame::Stub {
                runtime,
                name: owned(name),
            },
            Frame::Unknown { address } => Frame::Unknown { address },
            Frame::Pseudo { text } => Frame::Pseudo { text: owned(text) },
            Frame::Async { method, state } => Frame::Async { method, state },
            Frame::AsyncMark { text } => Frame::AsyncMark { text: owned(text) },
        }
    }
}

impl Record<'_> {
    /// The same record without borrowing.
    #[must_use]
    pub fn into_owned(self) -> Record<'static> {
        match self {
            Record::Process {
                pid,
                parent,
                command,
                unix_ns,
                time_ns,
            } => Record::Process {
                pid,
                parent,
                command: owned(command),
                unix_ns,
                time_ns,
            },
            Record::Engine {
                engine,
                walker,
                event,
                interval_ns,
                max_depth,
            } => Record::Engine {
                engine: owned(engine),
                walker: owned(walker),
                event,
                interval_ns,
                max_depth,
            },
            Record::Runtime {
                runtime,
                version,
                recorded,
                refused_by,
            } => Record::Runtime {
                runtime,
                version: owned(version),
                recorded,
                refused_by: owned(refused_by),
            },
            Record::Thread {
                thread,
                tid,
                name,
                managed,
                time_ns,
            } => Record::Thread {
                thread,
                tid,
                name: owned(name),
                managed,
                time_ns,
            },
            Record::ThreadEnd {
                thread,
                time_ns,
                cpu_ns,
            } => Record::ThreadEnd {
                thread,
                time_ns,
                cpu_ns,
            },
            Record::Module {
                module,
                kind,
                runtime,
                path,
                bias,
                id_bytes,
                file_offset,
            } => Record::Module {
                module,
                kind,
                runtime,
                path: owned(path),
                bias,
                id_bytes: Cow::Owned(id_bytes.into_owned()),
                file_offset,
            },
            Record::Method {
                method,
                runtime,
                kind,
                module,
                token,
                type_name,
                name,
            } => Record::Method {
                method,
                runtime,
                kind,
                module,
                token,
                type_name: owned(type_name),
                name: owned(name),
            },
            Record::Frame { frame, value } => Record::Frame {
                frame,
                value: value.into_owned(),
            },
            Record::Stack {
                stack,
                parent,
                frame,
            } => Record::Stack {
                stack,
                parent,
                frame,
            },
            Record::Sample {
                thread,
                stack,
                time_ns,
                event,
                value,
                end,
                detail,
                logical,
            } => Record::Sample {
                thread,
                stack,
                time_ns,
                event,
                value,
                end,
                detail,
                logical,
            },
            Record::Detail {
                detail,
                event,
                name,
                text,
            } => Record::Detail {
                detail,
                event,
                name: owned(name),
                text: owned(text),
            },
            Record::Source {
                event,
                source,
                walker,
                interval,
            } => Record::Source {
                event,
                source: owned(source),
                walker: owned(walker),
                interval,
            },
            Record::Limited {
                event,
                count,
                value,
            } => Record::Limited {
                event,
                count,
                value,
            },
            Record::Change {
                time_ns,
                before,
                after,
            } => Record::Change {
                time_ns,
                before,
                after,
            },
            Record::Pause {
                time_ns,
                stopping_ns,
                stopped_ns,
            } => Record::Pause {
                time_ns,
                stopping_ns,
                stopped_ns,
            },
            Record::Lost { reason, count } => Record::Lost {
                reason: owned(reason),
                count,
            },
            Record::Broken { reason, count } => Record::Broken {
                reason: owned(reason),
                count,
            },
            Record::AsyncCut { reason, count } => Record::AsyncCut {
                reason: owned(reason),
                count,
            },
            Record::Stats {
                time_ns,
                agent_cpu_ns,
                target_cpu_ns,
                agent_memory,
                handler_ns,
                due_ns,
                lost_ns,
            } => Record::Stats {
                time_ns,
                agent_cpu_ns,
                target_cpu_ns,
                agent_memory,
                handler_ns,
                due_ns,
                lost_ns,
            },
            Record::Unseen {
                reason,
                threads,
                cpu_ns,
            } => Record::Unseen {
                reason: owned(reason),
                threads,
                cpu_ns,
            },
            Record::Cost {
                part,
                modelled,
                count,
                cpu_ns,
                name,
            } => Record::Cost {
                part,
                modelled,
                count,
                cpu_ns,
                name: owned(name),
            },
            Record::ThreadState {
                thread,
                time_ns,
                state,
                syscall,
                wait,
                missing,
            } => Record::ThreadState {
                thread,
                time_ns,
                state,
                syscall,
                wait: owned(wait),
                missing: owned(missing),
            },
            Record::Traced {
                traced,
                runtime,
                token,
                min_ns,
                module,
                type_name,
                name,
                refused,
            } => Record::Traced {
                traced,
                runtime,
                token,
                min_ns,
                module: owned(module),
                type_name: owned(type_name),
                name: owned(name),
                refused: owned(refused),
            },
            Record::Calls {
                traced,
                time_ns,
                errors,
                sum_ns,
                max_ns,
                buckets,
            } => Record::Calls {
                traced,
                time_ns,
                errors,
                sum_ns,
                max_ns,
                buckets: Cow::Owned(buckets.into_owned()),
            },
            Record::Collected {
                thread,
                time_ns,
                ns,
            } => Record::Collected {
                thread,
                time_ns,
                ns,
            },
            Record::Survivor {
                allocation,
                thread,
                stack,
                logical,
                time_ns,
                end,
                bytes,
                size,
                collections,
                detail,
            } => Record::Survivor {
                allocation,
                thread,
                stack,
                logical,
                time_ns,
                end,
                bytes,
                size,
                collections,
                detail,
            },
            Record::Gone {
                time_ns,
                allocations,
            } => Record::Gone {
                time_ns,
                allocations: Cow::Owned(allocations.into_owned()),
            },
            Record::Thinned {
                time_ns,
                allocations,
            } => Record::Thinned {
                time_ns,
                allocations: Cow::Owned(allocations.into_owned()),
            },
            Record::Instant {
                time_ns,
                collections,
            } => Record::Instant {
                time_ns,
                collections,
            },
            Record::Note { text } => Record::Note { text: owned(text) },
            Record::End { time_ns } => Record::End { time_ns },
            Record::Symbol {
                frame,
                name,
                file,
                line,
            } => Record::Symbol {
                frame,
                name: owned(name),
                file: owned(file),
                line,
            },
        }
    }
}

fn owned(text: Cow<'_, str>) -> Cow<'static, str> {
    Cow::Owned(text.into_owned())
}
