//! A recording's records in, a profile out.
//!
//! No IO: feed it what a [`recording::Reader`] gives. The invariants: no record, whatever its ids,
//! makes it fail; every sample of the recording is a sample of the profile; what could not be told
//! (undefined ids behind a lost block) is shown as the frame `[lost: damaged block]` and counted.

use std::collections::BTreeMap;
use std::io;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use recording::{
    Damage, Frame as RecordedFrame, Item, MethodKind, ModuleKind, ProcessKey, Reader, Record, Tier,
    WalkEnd,
};

use crate::builder::Builder;
use crate::ids::IdTable;
use crate::model::{
    Frame, FrameId, FrameKind, Location, Module, ModuleId, Process, ProcessId, Profile, Runtime,
    RuntimeId, Sample, StackId, StringId, Thread, ThreadId,
};
use crate::names;
use crate::rewrite::{Replacement, replace_frames};

/// Text of the pseudo frame that stands for what a damaged block took with it.
pub const LOST_FRAME: &str = "[lost: damaged block]";

/// Damages that get a note of their own; the rest is summed up.
const MAX_DAMAGE_NOTES: usize = 10;

/// The most notes of a profile; a hostile recording may ask for millions.
const MAX_NOTES: usize = 100;

/// Makes a profile of a stream of records.
///
/// ```
/// # use recording::{ProcessKey, Record, Writer, file_header, Reader};
/// # let mut file = file_header("doc");
/// # let mut writer = Writer::new(ProcessKey(1));
/// # let _ = writer.push(&Record::Note { text: "n".into() });
/// # writer.take_block_into(&mut file);
/// let profile = profile::Import::read(Reader::open(file.as_slice())?)?;
/// assert_eq!(profile.samples.len(), 0);
/// # Ok::<(), recording::OpenError>(())
/// ```
#[derive(Default)]
pub struct Import {
    builder: Builder,
    processes: Vec<State>,
    by_key: HashMap<ProcessKey, usize>,
    /// Records come in blocks of one process: the index of the last one.
    last: usize,
    modules: HashMap<(String, bool, Vec<u8>, u64), ModuleId>,
    symbols: HashMap<FrameId, Symbols>,
    lost: BTreeMap<String, u64>,
    broken: BTreeMap<String, u64>,
    damages: u64,
    newer_records: u64,
    lost_samples: u64,
}

/// A frame of the recording that a symbolizer can look up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Origin {
    /// The process that has it.
    pub process: ProcessKey,
    /// Its id there ([`Record::Frame`]).
    pub recorded: u32,
    /// The frame of the profile, whose module and location say what to look up.
    pub frame: FrameId,
}

/// What the ids of one process mean.
struct State {
    key: ProcessKey,
    id: ProcessId,
    opened: bool,
    modules: IdTable<(ModuleId, FrameKind)>,
    methods: IdTable<Method>,
    frames: IdTable<FrameId>,
    stacks: IdTable<KnownStack>,
    threads: IdTable<ThreadId>,
    runtimes: HashMap<u8, RuntimeId>,
    /// [`names::AGENT_FRAME`], once seen.
    agent_frame: Option<FrameId>,
    agent_cpu_ns: u64,
    target_cpu_ns: u64,
    handler_ns: u64,
}

#[derive(Clone, Copy)]
struct Method {
    name: StringId,
    kind: FrameKind,
    module: Option<ModuleId>,
    runtime: Option<RuntimeId>,
    token: u32,
}

#[derive(Clone, Copy)]
struct KnownStack {
    id: StackId,
    /// Part of it lay in a damaged block.
    lost: bool,
}

/// What the tool looked up for a frame.
struct Symbols {
    /// The process and frame whose records these are: frames of several are one frame here.
    of: (ProcessKey, u32),
    innermost_first: Vec<Symbol>,
}

struct Symbol {
    name: StringId,
    file: Option<StringId>,
    line: u32,
}

impl Import {
    /// Nothing imported yet.
    #[must_use]
    pub fn new() -> Import {
        Import::default()
    }

    /// Reads a recording to its end.
    ///
    /// # Errors
    /// The reader's source fails. Damage in the recording is no error: it is in
    /// [`crate::model::Health::notes`].
    pub fn read<R: io::Read>(mut reader: Reader<R>) -> io::Result<Profile> {
        let mut import = Import::new();
        while let Some(item) = reader.next_item()? {
            import.item(&item);
        }
        Ok(import.finish())
    }

    /// Takes what a reader gave.
    pub fn item(&mut self, item: &Item<'_>) {
        match item {
            Item::Record(process, record) => self.record(*process, record),
            Item::Newer(_) => self.newer_records += 1,
            Item::Damage(damage) => self.damage(damage),
        }
    }

    /// Takes a record of a process.
    pub fn record(&mut self, key: ProcessKey, record: &Record<'_>) {
        let index = self.process(key);
        let Import {
            builder, processes, ..
        } = self;
        let state = &mut processes[index];
        match record {
            Record::Process {
                pid,
                parent,
                command,
                unix_ns,
                time_ns,
            } => {
                state.opened = true;
                let process = &mut builder.profile.processes[state.id.0 as usize];
                process.pid = *pid;
                process.parent = *parent;
                process.command = command
                    .trim_end_matches('\0')
                    .split('\0')
                    .map(str::to_owned)
                    .collect();
                process.start_unix_ns = *unix_ns;
                process.start_ns = *time_ns;
                state.saw(builder, *time_ns);
            }
            Record::Engine {
                engine,
                walker,
                event,
                interval_ns,
                max_depth,
            } => {
                let health = &mut builder.profile.health;
                add_name(&mut health.engine, engine);
                add_name(&mut health.walker, walker);
                health.event.get_or_insert(*event);
                if health.interval_ns == 0 {
                    health.interval_ns = *interval_ns;
                }
                health.max_depth = health.max_depth.max(*max_depth);
            }
            Record::Runtime {
                runtime,
                version,
                recorded,
            } => {
                let (process, version) = (state.id, version.to_string());
                let value = Runtime {
                    process,
                    version,
                    recorded: *recorded,
                };
                let id = state.runtime(builder, *runtime);
                builder.profile.runtimes[id.0 as usize] = value;
            }
            Record::Thread {
                thread,
                tid,
                name,
                managed,
                time_ns,
            } => {
                state.saw(builder, *time_ns);
                let id = state.thread(builder, *thread);
                let known = &mut builder.profile.threads[id.0 as usize];
                known.tid = *tid;
                known.name = if name.is_empty() {
                    format!("thread {tid}")
                } else {
                    name.to_string()
                };
                known.managed |= *managed;
                known.start_ns = known.start_ns.min(*time_ns);
            }
            Record::ThreadEnd {
                thread,
                time_ns,
                cpu_ns,
            } => {
                state.saw(builder, *time_ns);
                let id = state.thread(builder, *thread);
                let known = &mut builder.profile.threads[id.0 as usize];
                known.end_ns = Some(*time_ns);
                known.cpu_ns = Some(*cpu_ns);
            }
            Record::Module {
                module,
                kind,
                runtime: _,
                path,
                bias,
                id_bytes,
                file_offset,
            } => {
                let managed = *kind == ModuleKind::Managed;
                let key = (path.to_string(), managed, id_bytes.to_vec(), *file_offset);
                // The bias is the process's own: a library that two processes load is one module.
                let id = match self.modules.entry(key) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(place) => {
                        let table = &mut builder.profile.modules;
                        let id = ModuleId(table.len() as u32);
                        table.push(Module {
                            path: path.to_string(),
                            managed,
                            id_bytes: id_bytes.to_vec(),
                            bias: *bias,
                            file_offset: *file_offset,
                        });
                        *place.insert(id)
                    }
                };
                state.modules.set(*module, (id, names::native_kind(path)));
            }
            Record::Method {
                method,
                runtime,
                kind,
                module,
                token,
                type_name,
                name,
            } => {
                let name = builder.string(&names::method(*kind, type_name, name));
                let value = Method {
                    name,
                    kind: match kind {
                        MethodKind::IlStub => FrameKind::Stub,
                        MethodKind::Il | MethodKind::Dynamic => FrameKind::Managed,
                    },
                    module: module.and_then(|id| Some(state.modules.get(id)?.0)),
                    runtime: Some(state.runtime(builder, *runtime)),
                    token: *token,
                };
                state.methods.set(*method, value);
            }
            Record::Frame { frame, value } => {
                let id = state.frame(builder, value);
                state.frames.set(*frame, id);
            }
            Record::Stack {
                stack,
                parent,
                frame,
            } => {
                let known = state.stack(builder, *parent, *frame);
                state.stacks.set(*stack, known);
            }
            Record::Sample {
                thread,
                stack,
                time_ns,
                event,
                value,
                end,
            } => {
                state.saw(builder, *time_ns);
                let thread = state.thread(builder, *thread);
                let stack = match state.stacks.get(*stack) {
                    Some(known) => known,
                    None => {
                        let frame = lost_frame(builder);
                        KnownStack {
                            id: builder.stack(None, frame),
                            lost: true,
                        }
                    }
                };
                let end = if stack.lost { WalkEnd::Broken } else { *end };
                self.lost_samples += u64::from(stack.lost);
                let (time_ns, event, value) = (*time_ns, *event, *value);
                let sample = Sample {
                    thread,
                    stack: stack.id,
                    time_ns,
                    event,
                    value,
                    end,
                };
                builder.profile.samples.push(sample);
            }
            Record::Lost { reason, count } => add_count(&mut self.lost, reason, *count),
            Record::Broken { reason, count } => add_count(&mut self.broken, reason, *count),
            Record::Stats {
                time_ns,
                agent_cpu_ns,
                target_cpu_ns,
                agent_memory,
                handler_ns,
            } => {
                state.saw(builder, *time_ns);
                state.agent_cpu_ns = *agent_cpu_ns;
                state.target_cpu_ns = *target_cpu_ns;
                state.handler_ns = *handler_ns;
                let health = &mut builder.profile.health;
                health.agent_memory = health.agent_memory.max(*agent_memory);
            }
            Record::Note { text } => note(&mut builder.profile.health.notes, text.to_string()),
            Record::End { time_ns } => {
                state.saw(builder, *time_ns);
                builder.profile.processes[state.id.0 as usize].ended = true;
            }
            &Record::Symbol {
                frame: recorded,
                ref name,
                ref file,
                ref line,
            } => {
                let known = state.frames.get(recorded);
                // Only what can be looked up can have been: never a pseudo frame.
                let known =
                    known.filter(|id| builder.profile.frame(*id).location != Location::None);
                if let Some(frame) = known {
                    let name = builder.string(name);
                    let file = (!file.is_empty()).then(|| builder.string(file));
                    let symbol = Symbol {
                        name,
                        file,
                        line: *line,
                    };
                    let of = (key, recorded);
                    let symbols = self.symbols.entry(frame).or_insert(Symbols {
                        of,
                        innermost_first: Vec::new(),
                    });
                    // The same code in another process: its symbols are the same ones again.
                    if symbols.of == of {
                        symbols.innermost_first.push(symbol);
                    }
                }
            }
        }
    }

    fn process(&mut self, key: ProcessKey) -> usize {
        if self
            .processes
            .get(self.last)
            .is_none_or(|state| state.key != key)
        {
            let Import {
                builder,
                processes,
                by_key,
                ..
            } = self;
            self.last = *by_key.entry(key).or_insert_with(|| {
                processes.push(State::new(key, builder));
                processes.len() - 1
            });
        }
        self.last
    }

    /// Takes a damage of the recording.
    pub fn damage(&mut self, damage: &Damage) {
        self.damages += 1;
        if self.damages as usize <= MAX_DAMAGE_NOTES {
            let whose = damage.process.and_then(|key| {
                let state = &self.processes[*self.by_key.get(&key)?];
                Some(self.builder.profile.process(state.id).pid)
            });
            let mut text = format!("recording damaged: {damage}");
            if let Some(pid) = whose {
                text.push_str(&format!(" (process {pid})"));
            }
            note(&mut self.builder.profile.health.notes, text);
        }
    }

    /// The frames that a symbolizer can look up and that have no symbol in the recording, by process
    /// and id: for a tool that adds [`Record::Symbol`]s to a recording, so that it can be read where
    /// the files are not. [`Import::profile`] has the frames that they name.
    #[must_use]
    pub fn origins(&self) -> Vec<Origin> {
        let mut origins = Vec::new();
        for state in &self.processes {
            for (recorded, frame) in state.frames.iter() {
                let known = self.symbols.contains_key(&frame);
                let place = self.builder.profile.frame(frame).location;
                if !known && place != Location::None {
                    origins.push(Origin {
                        process: state.key,
                        recorded,
                        frame,
                    });
                }
            }
        }
        origins.sort_unstable();
        origins
    }

    /// What has been imported, before symbols are applied: the frames that [`Import::origins`] name.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.builder.profile
    }

    /// The profile of all that was taken.
    #[must_use]
    pub fn finish(mut self) -> Profile {
        self.finish_processes();
        self.mark_single_file_runtimes();
        self.finish_health();
        let Import {
            builder, symbols, ..
        } = self;
        let mut builder = builder;
        if !symbols.is_empty() {
            let replacements = symbols
                .into_iter()
                .map(|(id, found)| {
                    (
                        id,
                        symbolized(builder.profile.frame(id), &found.innermost_first),
                    )
                })
                .map(|(id, frames)| (id, Replacement::Frames(frames)))
                .collect();
            builder = Builder::from_profile(replace_frames(builder.finish(), &replacements));
        }
        builder.finish()
    }

    fn finish_processes(&mut self) {
        let profile = &mut self.builder.profile;
        if self.processes.is_empty() {
            let text = "the recording is empty: no .NET process ever sent anything";
            note(&mut profile.health.notes, text.to_owned());
        }
        for state in &self.processes {
            profile.health.agent_cpu_ns += state.agent_cpu_ns;
            profile.health.target_cpu_ns += state.target_cpu_ns;
            profile.health.handler_ns += state.handler_ns;
            let process = &profile.processes[state.id.0 as usize];
            let (pid, name) = (process.pid, process.name());
            if !state.opened {
                let text = "the first block of a process is missing: its name is not known";
                note(&mut profile.health.notes, text.to_owned());
            }
            if !process.ended {
                let text = format!(
                    "process {pid} ({name}) did not say that it ended: it was killed, it ended \
                     without shutting its runtime down, or the recording was cut"
                );
                note(&mut profile.health.notes, text);
            }
        }
    }

    /// The program file of a single-file app holds the runtime: its native frames are the runtime's.
    fn mark_single_file_runtimes(&mut self) {
        let profile = &mut self.builder.profile;
        for state in self
            .processes
            .iter()
            .filter(|state| !state.runtimes.is_empty())
        {
            let modules = || {
                state
                    .modules
                    .values()
                    .map(|(id, _)| (id, &profile.modules[id.0 as usize]))
            };
            if modules().any(|(_, module)| module.file_name() == "libcoreclr.so") {
                continue;
            }
            let command = &profile.processes[state.id.0 as usize].command;
            let program = command
                .first()
                .and_then(|word| word.rsplit('/').next())
                .unwrap_or("");
            let holders: Vec<ModuleId> = modules()
                .filter(|(_, module)| !module.managed && !program.is_empty())
                .filter(|(_, module)| module.file_name() == program)
                .map(|(id, _)| id)
                .collect();
            if holders.is_empty() {
                continue;
            }
            for frame in &mut profile.frames {
                let inside = frame.module.is_some_and(|module| holders.contains(&module));
                if inside && frame.kind == FrameKind::Native {
                    frame.kind = FrameKind::Runtime;
                }
            }
        }
    }

    fn finish_health(&mut self) {
        let profile = &mut self.builder.profile;
        // Parents come first, so one pass gives each stack's sums.
        let mut sums: Vec<(u32, u32, FrameId)> = Vec::with_capacity(profile.stacks.len());
        for stack in &profile.stacks {
            let kind = profile.frames[stack.frame.0 as usize].kind;
            let (frames, unknown, root) = stack
                .parent
                .map_or((0, 0, stack.frame), |parent| sums[parent.0 as usize]);
            let is_frame = u32::from(kind != FrameKind::Pseudo);
            let is_unknown = u32::from(kind == FrameKind::Unknown);
            sums.push((frames + is_frame, unknown + is_unknown, root));
        }
        let mut broken: HashMap<FrameId, u64> = HashMap::new();
        let health = &mut profile.health;
        health.samples = profile.samples.len() as u64;
        for sample in &profile.samples {
            let (frames, unknown, root) = sums[sample.stack.0 as usize];
            health.frames += u64::from(frames);
            health.unknown_frames += u64::from(unknown);
            match sample.end {
                WalkEnd::Root => {}
                WalkEnd::Truncated => health.truncated += 1,
                WalkEnd::Broken => *broken.entry(root).or_default() += 1,
            }
        }
        // The stacks say why they broke; the counts of the agent also cover walks whose samples
        // were lost.
        let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
        for (root, count) in broken {
            let root = &profile.frames[root.0 as usize];
            let reason = match root.kind {
                FrameKind::Pseudo => names::pseudo_reason(&profile.strings[root.name.0 as usize]),
                _ => "no reason given",
            };
            add_count(&mut reasons, reason, count);
        }
        for (reason, count) in std::mem::take(&mut self.broken) {
            let known = reasons.entry(reason).or_default();
            *known = count.max(*known);
        }
        health.broken = most_first(reasons);
        health.lost = most_first(std::mem::take(&mut self.lost));
        if self.lost_samples > 0 {
            let text = format!(
                "{} samples have frames that lay in a damaged block",
                self.lost_samples
            );
            note(&mut health.notes, text);
        }
        if self.newer_records > 0 {
            let text = format!(
                "{} records of a newer version of sidewalk were passed over",
                self.newer_records
            );
            note(&mut health.notes, text);
        }
        if self.damages as usize > MAX_DAMAGE_NOTES {
            let text = format!("recording damaged at {} places in all", self.damages);
            note(&mut health.notes, text);
        }
    }
}

impl State {
    fn new(key: ProcessKey, builder: &mut Builder) -> State {
        let id = ProcessId(builder.profile.processes.len() as u32);
        builder.profile.processes.push(Process {
            pid: 0,
            parent: 0,
            command: Vec::new(),
            start_unix_ns: 0,
            start_ns: 0,
            end_ns: 0,
            ended: false,
        });
        State {
            key,
            id,
            opened: false,
            modules: IdTable::default(),
            methods: IdTable::default(),
            frames: IdTable::default(),
            stacks: IdTable::default(),
            threads: IdTable::default(),
            runtimes: HashMap::new(),
            agent_frame: None,
            agent_cpu_ns: 0,
            target_cpu_ns: 0,
            handler_ns: 0,
        }
    }

    fn saw(&self, builder: &mut Builder, time_ns: u64) {
        let process = &mut builder.profile.processes[self.id.0 as usize];
        if process.start_ns == 0 {
            process.start_ns = time_ns;
        }
        process.end_ns = process.end_ns.max(time_ns);
    }

    /// The runtime with this index, defined or (behind a lost block) not.
    fn runtime(&mut self, builder: &mut Builder, index: u8) -> RuntimeId {
        *self.runtimes.entry(index).or_insert_with(|| {
            let table = &mut builder.profile.runtimes;
            table.push(Runtime {
                process: self.id,
                version: "unknown".to_owned(),
                recorded: true,
            });
            RuntimeId(table.len() as u32 - 1)
        })
    }

    fn thread(&mut self, builder: &mut Builder, index: u32) -> ThreadId {
        if let Some(thread) = self.threads.get(index) {
            return thread;
        }
        let table = &mut builder.profile.threads;
        let thread = ThreadId(table.len() as u32);
        table.push(Thread {
            process: self.id,
            tid: 0,
            name: LOST_FRAME.to_owned(),
            managed: false,
            start_ns: u64::MAX,
            end_ns: None,
            cpu_ns: None,
        });
        self.threads.set(index, thread);
        thread
    }

    fn frame(&mut self, builder: &mut Builder, frame: &RecordedFrame<'_>) -> FrameId {
        match frame {
            RecordedFrame::Managed {
                method,
                tier,
                il_offset,
            } => {
                let Some(method) = self.methods.get(*method) else {
                    return lost_frame(builder);
                };
                let location = match method.module {
                    Some(_) if method.token != 0 => {
                        let offset = il_offset.unwrap_or(u32::MAX);
                        Location::Il {
                            token: method.token,
                            offset,
                        }
                    }
                    _ => Location::None,
                };
                builder.frame(Frame {
                    tier: *tier,
                    module: method.module,
                    runtime: method.runtime,
                    location,
                    ..plain(method.name, method.kind)
                })
            }
            RecordedFrame::Native { module, svma } => {
                let Some((module, kind)) = self.modules.get(*module) else {
                    return lost_frame(builder);
                };
                let path = &builder.profile.module(module).path;
                if names::is_agent(path) {
                    // Our own frames are one thing to the reader, whatever the address.
                    let name = builder.string(names::AGENT_FRAME);
                    let frame = builder.frame(Frame {
                        module: Some(module),
                        ..plain(name, kind)
                    });
                    self.agent_frame = Some(frame);
                    return frame;
                }
                let name = format!("{}+{svma:#x}", builder.profile.module(module).file_name());
                let name = builder.string(&name);
                let (module, location) = (Some(module), Location::Svma(*svma));
                builder.frame(Frame {
                    module,
                    location,
                    ..plain(name, kind)
                })
            }
            RecordedFrame::Stub { runtime, name } => {
                let runtime = Some(self.runtime(builder, *runtime));
                let name = builder.string(&names::bracketed(name));
                builder.frame(Frame {
                    runtime,
                    ..plain(name, FrameKind::Stub)
                })
            }
            RecordedFrame::Unknown { address: _ } => {
                let name = builder.string("[unknown]");
                builder.frame(plain(name, FrameKind::Unknown))
            }
            RecordedFrame::Pseudo { text } => {
                let name = builder.string(&names::bracketed(text));
                builder.frame(plain(name, FrameKind::Pseudo))
            }
        }
    }

    fn stack(&mut self, builder: &mut Builder, parent: Option<u32>, frame: u32) -> KnownStack {
        let mut lost = false;
        let parent = match parent {
            None => None,
            Some(parent) => match self.stacks.get(parent) {
                Some(known) => {
                    lost = known.lost;
                    Some(known.id)
                }
                None => {
                    lost = true;
                    let frame = lost_frame(builder);
                    Some(builder.stack(None, frame))
                }
            },
        };
        let frame = match self.frames.get(frame) {
            Some(frame) => frame,
            None => {
                lost = true;
                lost_frame(builder)
            }
        };
        lost |= builder.profile.name(frame) == LOST_FRAME;
        // What the agent calls inside itself is nobody's concern.
        if let Some(parent) = parent.filter(|_| Some(frame) == self.agent_frame)
            && builder.profile.stack(parent).frame == frame
        {
            return KnownStack { id: parent, lost };
        }
        KnownStack {
            id: builder.stack(parent, frame),
            lost,
        }
    }
}

fn plain(name: StringId, kind: FrameKind) -> Frame {
    Frame {
        name,
        kind,
        tier: Tier::Unknown,
        module: None,
        runtime: None,
        file: None,
        line: 0,
        inlined: false,
        location: Location::None,
    }
}

fn lost_frame(builder: &mut Builder) -> FrameId {
    let name = builder.string(LOST_FRAME);
    builder.frame(plain(name, FrameKind::Pseudo))
}

/// The frames that a frame is once its symbols are known, innermost first. A managed frame has one
/// symbol, for its line, and keeps its name.
fn symbolized(frame: &Frame, symbols: &[Symbol]) -> Vec<Frame> {
    if let (FrameKind::Managed, [symbol, ..]) = (frame.kind, symbols) {
        let (file, line, location) = (symbol.file, symbol.line, Location::None);
        return vec![Frame {
            file,
            line,
            location,
            ..frame.clone()
        }];
    }
    let last = symbols.len() - 1;
    let each = symbols.iter().enumerate().map(|(index, symbol)| Frame {
        name: symbol.name,
        file: symbol.file,
        line: symbol.line,
        inlined: index != last,
        location: Location::None,
        ..frame.clone()
    });
    each.collect()
}

/// Engines or walkers of one profile are named up to this length, bytes.
const MAX_NAMES: usize = 1000;

/// `a` and then `b` makes `a, b`; the same again changes nothing.
fn add_name(names: &mut String, name: &str) {
    if names.is_empty() {
        name.clone_into(names);
    } else if names.len() < MAX_NAMES && !names.split(", ").any(|known| known == name) {
        names.push_str(", ");
        names.push_str(name);
    }
}

fn add_count(counts: &mut BTreeMap<String, u64>, reason: &str, count: u64) {
    match counts.get_mut(reason) {
        Some(known) => *known = known.saturating_add(count),
        None => {
            counts.insert(reason.to_owned(), count);
        }
    }
}

fn most_first(counts: BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let mut counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

fn note(notes: &mut Vec<String>, text: String) {
    if notes.contains(&text) {
        return;
    }
    match notes.len() {
        0..MAX_NOTES => notes.push(text),
        MAX_NOTES => notes.push("there is more to tell than these notes".to_owned()),
        _ => {}
    }
}
