//! Tables of one process during import: what its ids mean.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use recording::{CostPart, Event, Frame as RecordedFrame, ProcessKey, WalkEnd};

use super::LOST_FRAME;
use super::live::LiveHeapImport;
use super::suspended;
use super::totals::StackSummary;
use super::unsampled::CpuTimeAccount;
use crate::builder::Builder;
use crate::ids::IdTable;
use crate::model::{
    Cost, DetailId, Frame, FrameId, FrameKind, Location, ModuleId, Process, ProcessId, Runtime,
    RuntimeId, Sample, StackId, StringId, Thread, ThreadId,
};
use crate::names::{self, AsyncRole};

/// Maximum number of parts of a process's cost; an agent has eleven.
pub(super) const MAX_COSTS: usize = 50;

/// The tables of one process.
pub(super) struct ProcessImport {
    pub(super) key: ProcessKey,
    pub(super) id: ProcessId,
    pub(super) opened: bool,
    pub(super) modules: IdTable<(ModuleId, FrameKind)>,
    pub(super) methods: IdTable<Method>,
    pub(super) frames: IdTable<FrameId>,
    pub(super) stacks: IdTable<ImportedStack>,
    /// Replaces the stacks if only totals are needed.
    pub(super) nodes: IdTable<StackSummary>,
    pub(super) threads: IdTable<ThreadId>,
    pub(super) details: IdTable<DetailId>,
    /// Index of traced methods.
    pub(super) traced: IdTable<u32>,
    pub(super) runtimes: HashMap<u8, RuntimeId>,
    /// [`names::AGENT_FRAME`], once seen.
    agent_frame: Option<FrameId>,
    pub(super) agent_cpu_ns: u64,
    pub(super) target_cpu_ns: u64,
    pub(super) handler_ns: u64,
    /// By part and name.
    pub(super) cost: BTreeMap<(CostPart, String), Cost>,
    /// Compares samples with the CPU time.
    pub(super) account: CpuTimeAccount,
    /// Set if the events of the session were changed.
    pub(super) switched: Option<EventSwitches>,
    pub(super) live: LiveHeapImport,
}

/// Duration for which each event was recorded.
#[derive(Clone, Copy, Default)]
pub(super) struct EventSwitches {
    /// Time of the last change.
    since_ns: u64,
    /// Bit mask of the events since then.
    now: u32,
    /// Bit mask of all events that were recorded.
    all: u32,
    /// Nanoseconds by event code.
    on_ns: [u64; 32],
}

impl EventSwitches {
    /// Changes the events at `time_ns`.
    fn change(&mut self, time_ns: u64, before: u32, after: u32) {
        let passed = time_ns.saturating_sub(self.since_ns);
        for (code, on_ns) in self.on_ns.iter_mut().enumerate() {
            if before & 1 << code != 0 {
                *on_ns = on_ns.saturating_add(passed);
            }
        }
        self.all |= before | after;
        self.now = after;
        self.since_ns = self.since_ns.max(time_ns);
    }

    /// The events that were not recorded all the time, and for how long each was.
    pub(super) fn partial(mut self, start_ns: u64, end_ns: u64) -> Vec<(Event, u64)> {
        self.change(end_ns, self.now, self.now);
        let of_ns = end_ns.saturating_sub(start_ns);
        Event::from_bits(self.all)
            .map(|event| (event, self.on_ns[event as usize]))
            .filter(|(_, on_ns)| *on_ns < of_ns)
            .collect()
    }
}

#[derive(Clone, Copy)]
pub(super) struct Method {
    pub(super) name: StringId,
    pub(super) role: AsyncRole,
    pub(super) kind: FrameKind,
    pub(super) module: Option<ModuleId>,
    pub(super) runtime: Option<RuntimeId>,
    pub(super) token: u32,
}

#[derive(Clone, Copy)]
pub(super) struct ImportedStack {
    pub(super) id: StackId,
    /// Part of it lay in a damaged block.
    pub(super) lost: bool,
}

impl ProcessImport {
    pub(super) fn new(key: ProcessKey, builder: &mut Builder) -> ProcessImport {
        let id = ProcessId(builder.profile.processes.len() as u32);
        builder.profile.processes.push(Process {
            pid: 0,
            parent: 0,
            command: Vec::new(),
            start_unix_ns: 0,
            start_ns: 0,
            end_ns: 0,
            ended: false,
            recording: 0,
        });
        ProcessImport {
            key,
            id,
            opened: false,
            modules: IdTable::default(),
            methods: IdTable::default(),
            frames: IdTable::default(),
            stacks: IdTable::default(),
            nodes: IdTable::default(),
            threads: IdTable::default(),
            details: IdTable::default(),
            traced: IdTable::default(),
            runtimes: HashMap::new(),
            agent_frame: None,
            agent_cpu_ns: 0,
            target_cpu_ns: 0,
            handler_ns: 0,
            cost: BTreeMap::new(),
            account: CpuTimeAccount::default(),
            switched: None,
            live: LiveHeapImport::default(),
        }
    }

    /// Other events are recorded from here on.
    pub(super) fn changed(&mut self, builder: &mut Builder, time_ns: u64, before: u32, after: u32) {
        self.extend_lifetime(builder, time_ns);
        let start_ns = builder.profile.processes[self.id.0 as usize].start_ns;
        let switched = self.switched.get_or_insert(EventSwitches {
            since_ns: start_ns,
            ..EventSwitches::default()
        });
        switched.change(time_ns, before, after);
    }

    pub(super) fn extend_lifetime(&self, builder: &mut Builder, time_ns: u64) {
        let process = &mut builder.profile.processes[self.id.0 as usize];
        if process.start_ns == 0 {
            process.start_ns = time_ns;
        }
        process.end_ns = process.end_ns.max(time_ns);
    }

    /// The last word on a part and name holds.
    pub(super) fn set_cost(&mut self, cost: Cost) {
        let key = (cost.part, cost.name.clone());
        if self.cost.len() < MAX_COSTS || self.cost.contains_key(&key) {
            self.cost.insert(key, cost);
        }
    }

    /// The runtime with this index, defined or (behind a lost block) not.
    pub(super) fn runtime(&mut self, builder: &mut Builder, index: u8) -> RuntimeId {
        *self.runtimes.entry(index).or_insert_with(|| {
            let table = &mut builder.profile.runtimes;
            table.push(Runtime {
                process: self.id,
                version: "unknown".to_owned(),
                recorded: true,
                refused_by: String::new(),
            });
            RuntimeId(table.len() as u32 - 1)
        })
    }

    pub(super) fn thread(&mut self, builder: &mut Builder, index: u32) -> ThreadId {
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
            state: None,
        });
        self.threads.set(index, thread);
        thread
    }

    /// A sample with these stacks (the physical one and the logical one), without its time, event
    /// and value; and whether part of it lay in a damaged block.
    pub(super) fn sample(
        &mut self,
        builder: &mut Builder,
        thread: u32,
        (stack, logical): (u32, Option<u32>),
        end: WalkEnd,
        detail: Option<u32>,
    ) -> (Sample, bool) {
        let thread = self.thread(builder, thread);
        let stack = match self.stacks.get(stack) {
            Some(known) => known,
            None => {
                let frame = lost_frame(builder);
                ImportedStack {
                    id: builder.stack(None, frame),
                    lost: true,
                }
            }
        };
        // One that cannot be told is none: the other one is there.
        let logical = logical.and_then(|id| self.stacks.get(id));
        let logical = logical.filter(|known| !known.lost);
        let detail = detail.and_then(|id| self.details.get(id));
        let detail = detail.map(|id| suspended::detail(builder, id, stack.id));
        let sample = Sample {
            thread,
            stack: stack.id,
            logical: logical.map(|known| known.id),
            time_ns: 0,
            event: Event::Cpu,
            value: 0,
            end: if stack.lost { WalkEnd::Broken } else { end },
            detail,
        };
        (sample, stack.lost)
    }

    /// A sample where no stacks are kept: it has the recording's numbers for them.
    pub(super) fn sample_without_stack(
        &mut self,
        builder: &mut Builder,
        thread: u32,
        (stack, logical): (u32, Option<u32>),
        end: WalkEnd,
        detail: Option<u32>,
    ) -> (Sample, bool) {
        let sample = Sample {
            thread: self.thread(builder, thread),
            stack: StackId(stack),
            logical: logical.map(StackId),
            time_ns: 0,
            event: Event::Cpu,
            value: 0,
            end,
            detail: detail.and_then(|id| self.details.get(id)),
        };
        let lost = self.nodes.get(stack).is_none_or(|node| node.lost);
        (sample, lost)
    }

    /// The frame, and what its method is to async methods.
    pub(super) fn frame(
        &mut self,
        builder: &mut Builder,
        frame: &RecordedFrame<'_>,
    ) -> (FrameId, AsyncRole) {
        let method = match frame {
            RecordedFrame::Managed { method, .. } => self.methods.get(*method),
            _ => None,
        };
        let role = method.map_or(AsyncRole::Plain, |method| method.role);
        (self.frame_of(builder, frame), role)
    }

    fn frame_of(&mut self, builder: &mut Builder, frame: &RecordedFrame<'_>) -> FrameId {
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
                    ..Frame::new(method.name, method.kind)
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
                        ..Frame::new(name, kind)
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
                    ..Frame::new(name, kind)
                })
            }
            RecordedFrame::Stub { runtime, name } => {
                let runtime = Some(self.runtime(builder, *runtime));
                let name = builder.string(&names::bracketed(name));
                builder.frame(Frame {
                    runtime,
                    ..Frame::new(name, FrameKind::Stub)
                })
            }
            RecordedFrame::Unknown { address: _ } => {
                let name = builder.string("[unknown]");
                builder.frame(Frame::new(name, FrameKind::Unknown))
            }
            RecordedFrame::Async { method, state } => {
                let Some(method) = self.methods.get(*method) else {
                    return lost_frame(builder);
                };
                let (token, state) = (method.token, *state);
                let location = match method.module {
                    Some(_) if token != 0 => Location::Await { token, state },
                    _ => Location::None,
                };
                builder.frame(Frame {
                    module: method.module,
                    runtime: method.runtime,
                    location,
                    ..Frame::new(method.name, method.kind)
                })
            }
            RecordedFrame::AsyncMark { text } => {
                let kind = match text.starts_with(names::ASYNC_CUT) {
                    // The stack is not whole.
                    true => FrameKind::Pseudo,
                    false => FrameKind::Async,
                };
                let name = builder.string(&names::bracketed(text));
                builder.frame(Frame::new(name, kind))
            }
            RecordedFrame::Pseudo { text } => {
                let kind = match &**text {
                    names::GENERATED_CODE => FrameKind::Native,
                    _ => FrameKind::Pseudo,
                };
                let name = builder.string(&names::pseudo(text));
                builder.frame(Frame::new(name, kind))
            }
        }
    }

    /// The frame that stands for all of the agent's own.
    pub(super) fn is_agent(&self, frame: FrameId) -> bool {
        self.agent_frame == Some(frame)
    }

    pub(super) fn stack(
        &mut self,
        builder: &mut Builder,
        parent: Option<u32>,
        frame: u32,
    ) -> ImportedStack {
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
        // Calls of the agent inside itself are not shown.
        if let Some(parent) = parent.filter(|_| Some(frame) == self.agent_frame)
            && builder.profile.stack(parent).frame == frame
        {
            return ImportedStack { id: parent, lost };
        }
        ImportedStack {
            id: builder.stack(parent, frame),
            lost,
        }
    }
}

pub(super) fn lost_frame(builder: &mut Builder) -> FrameId {
    let name = builder.string(LOST_FRAME);
    builder.frame(Frame::new(name, FrameKind::Pseudo))
}
