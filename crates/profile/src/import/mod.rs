//! Importer: records of a recording in, a profile out.
//!
//! It does no IO: the caller feeds the items of a [`recording::Reader`]. Invariants: no record
//! fails the import, whatever its ids. Every sample of the recording is a sample of the profile.
//! Undefined ids (behind a lost block) become the frame `[lost: damaged block]` and are counted.

mod collected;
mod health;
mod live;
mod logical;
mod process;
mod suspended;
mod totals;
mod unsampled;

use std::collections::BTreeMap;
use std::io;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use recording::{
    Damage, Event, Item, MethodKind, ModuleKind, ProcessKey, Reader, Record, histogram,
};

use self::collected::CollectionSpan;
use self::health::{add_count, add_limited, add_name, add_source, note};
use self::live::Survivor;
use self::process::{Method, ProcessImport};
pub use self::totals::Totals;
use self::totals::{SampleCounter, SampleSums};
use crate::builder::Builder;
use crate::clocks;
use crate::model::{
    Cost, Detail, Frame, FrameId, FrameKind, LimitedEvents, Location, Module, ModuleId, Pause,
    Profile, Runtime, SampleSource, StringId, ThreadState, TracedMethod,
};
use crate::names::{self, AsyncRole};
use crate::rewrite::{Replacement, replace_frames};

/// Text of the pseudo frame that replaces frames lost with a damaged block.
pub const LOST_FRAME: &str = "[lost: damaged block]";

/// Number of damages with a note of their own; the rest share one note.
const MAX_DAMAGE_NOTES: usize = 10;

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
    processes: Vec<ProcessImport>,
    by_key: HashMap<ProcessKey, usize>,
    /// Records come in blocks of one process: the index of the last one.
    last: usize,
    modules: HashMap<(String, bool, Vec<u8>, u64), ModuleId>,
    symbols: HashMap<FrameId, Symbols>,
    /// Whether native functions that the recording names without a line can be looked up again.
    keeps_locations: bool,
    /// Of frames that are not [`AsyncRole::Plain`].
    roles: HashMap<FrameId, AsyncRole>,
    collected: Vec<CollectionSpan>,
    /// Sums over samples for the honest line.
    sample_sums: SampleSums,
    /// Set if stacks and samples are only counted.
    counting: Option<SampleCounter>,
    chains_cut: BTreeMap<String, u64>,
    lost: BTreeMap<String, u64>,
    broken: BTreeMap<String, u64>,
    damages: u64,
    newer_records: u64,
    lost_samples: u64,
    /// The sum of all samples' values, at most [`MAX_VALUE`].
    values: u64,
}

/// Maximum sum of all samples' values: 292 years, 8 EiB.
const MAX_VALUE: u64 = i64::MAX as u64;

/// A frame of the recording that a symbolizer can look up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Origin {
    /// The process of the frame.
    pub process: ProcessKey,
    /// Its id in that process ([`Record::Frame`]).
    pub recorded: u32,
    /// The frame of the profile, whose module and location say what to look up.
    pub frame: FrameId,
}

/// Symbols that the tool looked up for a frame.
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
    pub fn read<R: io::Read>(reader: Reader<R>) -> io::Result<Profile> {
        Ok(Import::new().with_all(reader)?.finish())
    }

    /// The same for a reader that may have symbols which the recorder had not: native functions
    /// whose lines the recording does not tell keep their place, to be looked up again.
    ///
    /// # Errors
    /// Those of [`Import::read`].
    pub fn read_with_locations<R: io::Read>(reader: Reader<R>) -> io::Result<Profile> {
        let import = Import {
            keeps_locations: true,
            ..Import::default()
        };
        Ok(import.with_all(reader)?.finish())
    }

    /// Imports all items of a reader.
    fn with_all<R: io::Read>(mut self, mut reader: Reader<R>) -> io::Result<Import> {
        while let Some(item) = reader.next_item()? {
            self.item(&item);
        }
        Ok(self)
    }

    /// The profile as imported so far, for a picture of now. Not finished: health is not filled in,
    /// samples are in the order in which they came, and the symbols that were looked up are not in
    /// it.
    #[must_use]
    pub fn profile_so_far(&self) -> &Profile {
        &self.builder.profile
    }

    /// Removes samples older than this (nanoseconds of CLOCK_MONOTONIC), for a live view. What they
    /// refer to is kept.
    pub fn forget_samples_before(&mut self, time_ns: u64) {
        let samples = &mut self.builder.profile.samples;
        samples.retain(|sample| sample.time_ns >= time_ns);
    }

    /// Imports an item of a reader.
    pub fn item(&mut self, item: &Item<'_>) {
        match item {
            Item::Record(process, record) => self.record(*process, record),
            Item::Newer(_) => self.newer_records += 1,
            Item::Damage(damage) => self.damage(damage),
        }
    }

    /// Imports a record of a process.
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
                state.extend_lifetime(builder, *time_ns);
            }
            Record::Engine {
                engine,
                walker,
                event,
                interval_ns,
                max_depth,
            } => {
                let health = &mut builder.profile.health;
                state.account.sampled_every(*event, *interval_ns);
                add_name(&mut health.engine, engine);
                add_name(&mut health.walker, walker);
                health.event.get_or_insert(*event);
                if health.interval_ns == 0 {
                    health.interval_ns = *interval_ns;
                }
                health.max_depth = health.max_depth.max(*max_depth);
                add_source(
                    &mut health.sources,
                    SampleSource {
                        event: *event,
                        source: engine.to_string(),
                        walker: walker.to_string(),
                        interval: *interval_ns,
                        by_time: true,
                    },
                );
            }
            Record::Runtime {
                runtime,
                version,
                recorded,
                refused_by,
            } => {
                let (process, version) = (state.id, version.to_string());
                let value = Runtime {
                    process,
                    version,
                    recorded: *recorded,
                    refused_by: refused_by.to_string(),
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
                state.extend_lifetime(builder, *time_ns);
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
                state.extend_lifetime(builder, *time_ns);
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
                name: raw,
            } => {
                let name = builder.string(&names::method(*kind, type_name, raw));
                let value = Method {
                    name,
                    role: names::async_role(*kind, type_name, raw),
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
                let (id, role) = state.frame(builder, value);
                if role != AsyncRole::Plain {
                    self.roles.insert(id, role);
                }
                state.frames.set(*frame, id);
            }
            Record::Stack {
                stack,
                parent,
                frame,
            } => {
                if let Some(counting) = &mut self.counting {
                    counting.stack(state, builder, (*stack, *parent, *frame));
                    return;
                }
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
                detail,
                logical,
            } => {
                state.extend_lifetime(builder, *time_ns);
                state.account.sampled(*event, *value);
                // Outputs add values up, some in signed numbers.
                let value = (*value).min(MAX_VALUE - self.values);
                self.values += value;
                let stacks = (*stack, *logical);
                if let Some(counting) = &mut self.counting {
                    // It may have a thread that no record has named.
                    state.thread(builder, *thread);
                    let what = (*event, value, *end);
                    let lost = counting.sample(&mut self.sample_sums, state, builder, what, stacks);
                    self.lost_samples += u64::from(lost);
                    return;
                }
                let (mut sample, lost) = state.sample(builder, *thread, stacks, *end, *detail);
                (sample.time_ns, sample.event, sample.value) = (*time_ns, *event, value);
                self.lost_samples += u64::from(lost);
                builder.profile.samples.push(sample);
            }
            Record::Collected {
                thread,
                time_ns,
                ns,
            } => {
                state.extend_lifetime(builder, *time_ns);
                if self.counting.is_some() {
                    return;
                }
                self.collected.push(CollectionSpan {
                    thread: state.thread(builder, *thread),
                    from_ns: *time_ns,
                    to_ns: time_ns.saturating_add(*ns),
                });
            }
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
            } => {
                state.extend_lifetime(builder, *time_ns);
                let stacks = (*stack, *logical);
                let (mut sample, lost) = match &self.counting {
                    None => state.sample(builder, *thread, stacks, *end, *detail),
                    Some(_) => state.sample_without_stack(builder, *thread, stacks, *end, *detail),
                };
                (sample.time_ns, sample.event, sample.value) = (*time_ns, Event::Live, *bytes);
                self.lost_samples += u64::from(lost);
                let type_name = sample.detail.map(|id| builder.profile.detail(id).name);
                let survivor = Survivor {
                    sample,
                    type_name,
                    size: *size,
                };
                state.live.add(*allocation, survivor, *collections);
            }
            Record::Gone {
                time_ns,
                allocations,
            } => {
                state.extend_lifetime(builder, *time_ns);
                state.live.remove(allocations);
            }
            Record::Thinned {
                time_ns,
                allocations,
            } => {
                state.extend_lifetime(builder, *time_ns);
                state.live.thin(allocations);
            }
            Record::Instant {
                time_ns,
                collections,
            } => {
                state.extend_lifetime(builder, *time_ns);
                state.live.instant(*time_ns, *collections);
            }
            Record::AsyncCut { reason, count } => {
                add_count(&mut self.chains_cut, reason, *count);
            }
            Record::Lost { reason, count } => add_count(&mut self.lost, reason, *count),
            Record::Broken { reason, count } => add_count(&mut self.broken, reason, *count),
            Record::Stats {
                time_ns,
                agent_cpu_ns,
                target_cpu_ns,
                agent_memory,
                handler_ns,
                due_ns,
                lost_ns,
            } => {
                state.extend_lifetime(builder, *time_ns);
                state.account.stats(*due_ns, *lost_ns);
                state.agent_cpu_ns = *agent_cpu_ns;
                state.target_cpu_ns = *target_cpu_ns;
                state.handler_ns = *handler_ns;
                let health = &mut builder.profile.health;
                health.agent_memory = health.agent_memory.max(*agent_memory);
            }
            Record::Unseen {
                reason,
                threads,
                cpu_ns,
            } => state.account.claim(reason, *threads, *cpu_ns),
            Record::ThreadState {
                thread,
                time_ns,
                state: code,
                syscall,
                wait,
                missing,
            } => {
                state.extend_lifetime(builder, *time_ns);
                let id = state.thread(builder, *thread);
                builder.profile.threads[id.0 as usize].state = Some(ThreadState {
                    code: char::from(*code),
                    syscall: *syscall,
                    wait: wait.clone().into_owned(),
                    missing: missing.clone().into_owned(),
                });
            }
            Record::Cost {
                part,
                modelled,
                count,
                cpu_ns,
                name,
            } => state.set_cost(Cost {
                part: *part,
                name: name.clone().into_owned(),
                modelled: *modelled,
                count: *count,
                cpu_ns: *cpu_ns,
            }),
            Record::Detail {
                detail,
                event,
                name,
                text,
            } => {
                let event = *event;
                let name = builder.string(&names::detail(event, name));
                let text = builder.string(&names::detail_text(event, text));
                let id = builder.detail(Detail { event, name, text });
                state.details.set(*detail, id);
            }
            Record::Traced {
                traced,
                runtime,
                token,
                min_ns,
                module,
                type_name,
                name: raw,
                refused,
            } => {
                let name = builder.string(&names::method(MethodKind::Il, type_name, raw));
                let module = builder.string(module);
                let runtime = state.runtime(builder, *runtime);
                let all = &mut builder.profile.traced;
                // A known method changes where its runtime cannot compile it after all.
                match state
                    .traced
                    .get(*traced)
                    .and_then(|at| all.get_mut(at as usize))
                {
                    Some(known) => known.refused = refused.to_string(),
                    None => {
                        state.traced.set(*traced, all.len() as u32);
                        all.push(TracedMethod {
                            process: state.id,
                            runtime,
                            name,
                            module,
                            token: *token,
                            min_ns: *min_ns,
                            refused: refused.to_string(),
                            errors: 0,
                            sum_ns: 0,
                            max_ns: 0,
                            buckets: BTreeMap::new(),
                        });
                    }
                }
            }
            Record::Calls {
                traced,
                time_ns,
                errors,
                sum_ns,
                max_ns,
                buckets,
            } => {
                state.extend_lifetime(builder, *time_ns);
                let all = &mut builder.profile.traced;
                // Of one that was lost with its block there is no name.
                if let Some(at) = state.traced.get(*traced)
                    && let Some(known) = all.get_mut(at as usize)
                {
                    known.errors = known.errors.saturating_add(*errors);
                    known.sum_ns = known.sum_ns.saturating_add(*sum_ns);
                    known.max_ns = known.max_ns.max(*max_ns);
                    for (bucket, count) in buckets.iter() {
                        let bucket = (*bucket).min(histogram::BUCKETS as u32 - 1);
                        let known = known.buckets.entry(bucket).or_default();
                        *known = known.saturating_add(*count);
                    }
                }
            }
            Record::Source {
                event,
                source,
                walker,
                interval,
            } => add_source(
                &mut builder.profile.health.sources,
                SampleSource {
                    event: *event,
                    source: source.to_string(),
                    walker: walker.to_string(),
                    interval: *interval,
                    by_time: false,
                },
            ),
            &Record::Limited {
                event,
                count,
                value,
            } => add_limited(
                &mut builder.profile.health.limited,
                LimitedEvents {
                    event,
                    count,
                    value,
                },
            ),
            &Record::Change {
                time_ns,
                before,
                after,
            } => state.changed(builder, time_ns, before, after),
            &Record::Pause {
                time_ns,
                stopping_ns,
                stopped_ns,
            } => {
                state.extend_lifetime(builder, time_ns);
                builder.profile.pauses.push(Pause {
                    process: state.id,
                    time_ns,
                    stopping_ns,
                    stopped_ns,
                });
            }
            Record::Note { text } => note(&mut builder.profile.health.notes, text.to_string()),
            Record::End { time_ns } => {
                state.extend_lifetime(builder, *time_ns);
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
                processes.push(ProcessImport::new(key, builder));
                processes.len() - 1
            });
        }
        self.last
    }

    /// Imports a damage of the recording.
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

    /// The frames that a symbolizer can look up and that have no symbol in the recording, by
    /// process and id: for a tool that adds [`Record::Symbol`]s to a recording, so that it can be
    /// read where the files are not. [`Import::profile`] has the frames that they name.
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

    /// Turns the objects that are alive at the end into samples.
    fn finish_live(&mut self) {
        for index in 0..self.processes.len() {
            let state = &mut self.processes[index];
            let (samples, heap) = std::mem::take(&mut state.live).finish(state.id);
            for mut sample in samples {
                let state = &mut self.processes[index];
                state.account.sampled(sample.event, sample.value);
                if self.counting.is_some() {
                    let stacks = (sample.stack.0, sample.logical.map(|logical| logical.0));
                    self.count_live(index, (sample.event, sample.value, sample.end), stacks);
                    continue;
                }
                sample.value = sample.value.min(MAX_VALUE - self.values);
                self.values += sample.value;
                self.builder.profile.samples.push(sample);
            }
            self.builder.profile.live.extend(heap);
        }
    }

    /// The imported profile before symbols are applied: the frames that [`Import::origins`] name.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.builder.profile
    }

    /// Gives frames the first of their symbols where they stand, for who has no stacks.
    fn name_frames(&mut self) {
        for (id, found) in std::mem::take(&mut self.symbols) {
            let frame = &mut self.builder.profile.frames[id.0 as usize];
            let first = symbolized(frame, &found.innermost_first, self.keeps_locations);
            if let Some(named) = first.into_iter().next() {
                *frame = named;
            }
        }
    }

    /// Completes the profile after the last record: health, and samples of live objects.
    fn finish_sums(&mut self) {
        self.finish_live();
        self.finish_processes();
        self.mark_single_file_runtimes();
        self.finish_health();
    }

    /// Returns the profile of all imported records.
    #[must_use]
    pub fn finish(mut self) -> Profile {
        self.finish_sums();
        let Import {
            builder,
            symbols,
            roles,
            keeps_locations,
            collected,
            ..
        } = self;
        let mut builder = builder;
        // By the names that methods have, before anything is added to them.
        logical::fold(&mut builder, &roles);
        collected::mark(&mut builder, collected);
        clocks::align(&mut builder.profile);
        if !symbols.is_empty() {
            let replacements = symbols
                .into_iter()
                .map(|(id, found)| {
                    let frame = builder.profile.frame(id);
                    let frames = symbolized(frame, &found.innermost_first, keeps_locations);
                    (id, frames)
                })
                .map(|(id, frames)| (id, Replacement::Frames(frames)))
                .collect();
            builder = Builder::from_profile(replace_frames(builder.finish(), &replacements));
        }
        builder.finish()
    }
}

/// The frames that a frame is once its symbols are known, innermost first. A managed frame has one
/// symbol, for its line, and keeps its name.
fn symbolized(frame: &Frame, symbols: &[Symbol], keeps_locations: bool) -> Vec<Frame> {
    if let (FrameKind::Managed, [symbol, ..]) = (frame.kind, symbols) {
        let (file, line) = (symbol.file, symbol.line);
        // Its line needs no more looking up; what tells which method it is stays.
        let location = match frame.location {
            Location::Il { token, .. } => {
                let offset = u32::MAX;
                Location::Il { token, offset }
            }
            // That it waits is told from it.
            Location::Await { .. } => frame.location,
            _ => Location::None,
        };
        return vec![Frame {
            file,
            line,
            location,
            ..frame.clone()
        }];
    }
    let location = match symbols {
        [Symbol { line: 0, .. }] if keeps_locations => frame.location,
        _ => Location::None,
    };
    let last = symbols.len() - 1;
    let each = symbols.iter().enumerate().map(|(index, symbol)| Frame {
        name: symbol.name,
        file: symbol.file,
        line: symbol.line,
        inlined: index != last,
        location,
        ..frame.clone()
    });
    each.collect()
}
