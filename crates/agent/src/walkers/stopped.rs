//! Suspends one runtime, walks the requested threads in the requested ways, and resumes it.
//!
//! Runs on the agent thread, for the walkers `suspend` and `seeded` and for the oracle. The caller
//! decides when to suspend and makes samples of the result.
//!
//! Invariants: between `SuspendRuntime` and `ResumeRuntime` no lock is taken and nothing is
//! allocated. All memory is reserved before; what does not fit is truncated and counted. Every
//! walked thread is pinned, so that its `ThreadDestroyed` waits. Two CLRs are never suspended at
//! once.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use corprof::context::Suspended;
use corprof::{
    Cx, Registers, RuntimeIndex, SnapshotFrame, StackSnapshots, SuspendError, Suspension, ThreadId,
    ThreadKey, ThreadPin, WalkError,
};
use sampler::{Reader, Sampler, TraceRefused};
use stackwalk::{CodeMap, Traced};

use super::seed::{self, SeedState};
use crate::base::proc;
use crate::clr::Runtimes;
use crate::model::ThreadTarget;
use crate::program::Program;

/// Maximum number of frames of all threads in one stop: 2 MiB, of which only the used part is
/// touched.
const ROOM: usize = 64 * 1024;
/// Maximum number of managed threads.
const MAX_THREADS: usize = 4096;
/// Maximum time that a runtime stays suspended for threads that do not respond to a walk request.
const TRACE_WAIT_NS: u64 = 20_000_000;
/// Number of missed requests in a row after which a thread counts as blocking the signal. If the
/// runtime stayed suspended for it at each stop, the program would make no progress.
const UNRESPONSIVE_AFTER: u32 = 3;
/// Number of stops after which such a thread is requested again.
const RETRY_AFTER: u32 = 256;

/// The ways in which a thread is walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WalkKinds {
    /// `DoStackSnapshot` without a seed.
    pub plain: bool,
    /// The agent's own walk, in a signal handler.
    pub trace: bool,
    /// `DoStackSnapshot` with a seed from that walk.
    pub seeded: bool,
}

/// A frame as `DoStackSnapshot` reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameRecord {
    /// FunctionID; 0 for a run of unmanaged frames.
    pub function: usize,
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
}

/// Result of one `DoStackSnapshot`. The frames are in [`StoppedWalker::frames`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotWalk {
    /// Index range of the frames.
    pub frames: Range<usize>,
    /// Whether the walk was truncated: too deep, or no room.
    pub cut: bool,
    /// The runtime's refusal.
    pub error: Option<WalkError>,
}

/// Result of the agent's own walk of a thread. The frames are in [`StoppedWalker::traces`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnTrace {
    /// Index range of the frames.
    pub frames: Range<usize>,
    /// How the walk ended, as an [`crate::model::EndCode`].
    pub end: u8,
}

/// The observation of one thread.
#[derive(Debug)]
pub struct ObservedThread {
    /// The thread.
    pub target: ThreadTarget,
    /// Without a seed.
    pub plain: Option<SnapshotWalk>,
    /// Our own walk.
    pub trace: Option<Result<OwnTrace, TraceRefused>>,
    /// The outcome of its seed.
    pub seed: SeedState,
    /// With it.
    pub seeded: Option<SnapshotWalk>,
    asked: bool,
}

/// Times of one suspension of a runtime, nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuntimeStop {
    /// CLOCK_MONOTONIC when the runtime was suspended.
    pub at_ns: u64,
    /// From the request until the runtime was suspended.
    pub stopping_ns: u64,
    /// Duration of the suspension.
    pub stopped_ns: u64,
    /// CLOCK_MONOTONIC when it resumed.
    pub end_ns: u64,
}

/// Reason why a CLR was not suspended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotStopped {
    /// It ends, has ended, or its snapshots are not enabled.
    Gone,
    /// The runtime refused.
    Refused(SuspendError),
}

/// The agent's own walk of a stopped thread.
#[derive(Clone, Copy)]
pub struct OwnWalk<'a> {
    /// The code map: the code at each address.
    pub map: &'static CodeMap,
    /// Number of the runtime that is stopped.
    pub runtime: u8,
    /// Leaf first.
    pub trace: &'a [Traced],
    /// The thread's stack.
    pub stack: &'a Range<u64>,
}

/// Additional work with each thread while its runtime is suspended, before the walk with a seed. No
/// lock, no allocation.
pub trait ExtraWalk {
    /// Walks one thread.
    fn walk<'rt>(
        &mut self,
        suspension: &mut Suspension<'_, 'rt>,
        proof: &StackSnapshots,
        id: ThreadId<'rt>,
        own: &OwnWalk<'_>,
    );
}

/// No extra walk.
#[derive(Clone, Copy, Debug)]
pub struct NoExtraWalk;

impl ExtraWalk for NoExtraWalk {
    fn walk<'rt>(
        &mut self,
        _: &mut Suspension<'_, 'rt>,
        _: &StackSnapshots,
        _: ThreadId<'rt>,
        _: &OwnWalk<'_>,
    ) {
    }
}

/// Facts that a walk needs, read before the runtime is suspended.
struct StopContext {
    map: &'static CodeMap,
    sampler: Option<&'static Sampler>,
    runtime: u8,
}

/// Buffers of one stop, reused for each.
pub struct StoppedWalker {
    program: &'static Program,
    max_depth: usize,
    /// Frames of `DoStackSnapshot`.
    pub frames: Vec<FrameRecord>,
    /// Frames of the agent's own walks.
    pub traces: Vec<Traced>,
    /// Sorted by ThreadID.
    pub seen: Vec<ObservedThread>,
    pins: Vec<ThreadPin<'static>>,
    /// Threads that did not respond, with the number of stops since they last did.
    unresponsive: HashMap<u32, u32>,
}

impl StoppedWalker {
    /// Creates a walker for the threads of `program`, with stacks of at most `max_depth` frames.
    pub fn new(program: &'static Program, max_depth: u32) -> StoppedWalker {
        StoppedWalker {
            program,
            max_depth: max_depth as usize,
            frames: Vec::with_capacity(ROOM),
            traces: Vec::new(),
            seen: Vec::new(),
            pins: Vec::new(),
            unresponsive: HashMap::new(),
        }
    }

    /// Drops the results of earlier stops.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.traces.clear();
        self.seen.clear();
    }

    /// Suspends a CLR, walks `targets` and resumes the CLR. Targets that the CLR does not list (any
    /// more) have no outcome in [`StoppedWalker::seen`].
    pub fn stop(
        &mut self,
        runtimes: &mut Runtimes<'_>,
        reader: &mut Reader,
        runtime: u8,
        ways: WalkKinds,
        targets: impl Iterator<Item = ThreadTarget>,
        more: &mut impl ExtraWalk,
    ) -> Result<RuntimeStop, NotStopped> {
        let index = runtimes.index_of(runtime).ok_or(NotStopped::Gone)?;
        let program = self.program;
        self.prepare(index, ways, targets);
        let place = StopContext {
            map: program.code.map(),
            sampler: program.threads.sampler(),
            runtime,
        };
        let stopped = runtimes.with(runtime, |clr, cx| {
            let proof = *clr.snapshots()?;
            let info = cx.info();
            let mut ids: Vec<ThreadId<'_>> = Vec::with_capacity(MAX_THREADS);
            let wished_ns = proc::now_ns();
            let mut suspension = match info.suspend_runtime(cx) {
                Ok(suspension) => suspension,
                Err(error) => return Some(Err(error)),
            };
            let at_ns = proc::now_ns();
            // From here to `resume`: no lock, no allocation.
            if ways.trace || ways.seeded {
                self.take_traces(reader, at_ns.saturating_add(TRACE_WAIT_NS));
            }
            let _all = suspension.enum_threads_into(&mut ids);
            for id in &ids {
                let found = self
                    .seen
                    .binary_search_by_key(&id.raw(), |seen| seen.target.managed);
                if let Ok(found) = found {
                    self.walk(&place, &mut suspension, &proof, *id, found, ways, more);
                }
            }
            let _resumed = suspension.resume();
            let end_ns = proc::now_ns();
            Some(Ok(RuntimeStop {
                at_ns,
                stopping_ns: at_ns.saturating_sub(wished_ns),
                stopped_ns: end_ns.saturating_sub(at_ns),
                end_ns,
            }))
        });
        self.pins.clear();
        if ways.trace || ways.seeded {
            self.note_unresponsive();
        }
        match stopped.flatten() {
            None => Err(NotStopped::Gone),
            Some(Err(error)) => Err(NotStopped::Refused(error)),
            Some(Ok(stop)) => Ok(stop),
        }
    }

    /// Reserves all memory, and pins each thread so that it is not destroyed.
    fn prepare(
        &mut self,
        index: RuntimeIndex,
        ways: WalkKinds,
        targets: impl Iterator<Item = ThreadTarget>,
    ) {
        self.clear();
        for target in targets.take(MAX_THREADS) {
            // SAFETY: the id came from `ThreadAssignedToOSThread` of this runtime and
            // `ThreadDestroyed` was not reported for it.
            let key = unsafe { ThreadKey::from_parts(index, target.managed) };
            let Some(pin) = key.and_then(|key| self.program.threads.pins.pin(key)) else {
                continue;
            };
            self.pins.push(pin);
            self.seen.push(ObservedThread {
                target,
                plain: None,
                trace: None,
                seed: SeedState::None,
                seeded: None,
                asked: false,
            });
        }
        self.seen.sort_unstable_by_key(|seen| seen.target.managed);
        if ways.trace || ways.seeded {
            self.traces.reserve(ROOM);
        }
    }

    /// Records which threads have responded. After the runtime has resumed, as this may allocate.
    fn note_unresponsive(&mut self) {
        if self.unresponsive.len() > MAX_THREADS {
            self.unresponsive.clear();
        }
        for seen in &self.seen {
            let thread = seen.target.thread;
            match seen.trace {
                Some(Err(TraceRefused::NoAnswer)) => {
                    *self.unresponsive.entry(thread).or_insert(0) += 1
                }
                Some(_) => drop(self.unresponsive.remove(&thread)),
                None => {}
            }
        }
    }

    /// Makes each thread walk itself.
    fn take_traces(&mut self, reader: &mut Reader, deadline_ns: u64) {
        for seen in &mut self.seen {
            let stops = self
                .unresponsive
                .get(&seen.target.thread)
                .copied()
                .unwrap_or(0);
            let is_unresponsive = stops >= UNRESPONSIVE_AFTER && !stops.is_multiple_of(RETRY_AFTER);
            seen.asked = !is_unresponsive
                && seen
                    .target
                    .slot
                    .is_some_and(|slot| reader.request_trace(slot).is_ok());
        }
        for seen in &mut self.seen {
            let Some(slot) = seen.target.slot else {
                continue;
            };
            if !seen.asked {
                seen.trace = Some(Err(TraceRefused::NoAnswer));
                continue;
            }
            seen.trace = Some(reader.await_trace(slot, deadline_ns).and_then(|view| {
                let start = self.traces.len();
                if self.traces.capacity() - start < view.frames.len() {
                    return Err(TraceRefused::NoAnswer);
                }
                let frames = view.frames.iter().map(|[word, sp, bp]| Traced {
                    word: *word,
                    sp: *sp,
                    bp: *bp,
                });
                self.traces.extend(frames);
                Ok(OwnTrace {
                    frames: start..self.traces.len(),
                    end: view.end,
                })
            }));
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one call, whose locals these are"
    )]
    fn walk<'rt>(
        &mut self,
        place: &StopContext,
        suspension: &mut Suspension<'_, 'rt>,
        proof: &StackSnapshots,
        id: ThreadId<'rt>,
        at: usize,
        ways: WalkKinds,
        more: &mut impl ExtraWalk,
    ) {
        let StoppedWalker {
            max_depth,
            frames,
            traces,
            seen,
            ..
        } = self;
        let Some(seen) = seen.get_mut(at) else {
            return;
        };
        if ways.plain {
            seen.plain = Some(snap(frames, *max_depth, |each| {
                suspension.walk_with_registers(proof, id, each)
            }));
        }
        if ways.seeded {
            let trace = match &seen.trace {
                Some(Ok(trace)) => traces.get(trace.frames.clone()),
                _ => None,
            };
            let stack = seen
                .target
                .slot
                .zip(place.sampler)
                .and_then(|(slot, sampler)| sampler.stack_of(slot));
            let own = trace.zip(stack.as_ref()).map(|(trace, stack)| OwnWalk {
                map: place.map,
                runtime: place.runtime,
                trace,
                stack,
            });
            if let Some(own) = &own {
                more.walk(suspension, proof, id, own);
            }
            let found = match &own {
                Some(own) => seed::of_trace(own.map, own.runtime, own.trace, own.stack),
                None => Err(SeedState::None),
            };
            let (state, walked) = match found {
                Ok(seed) => {
                    let walked = snap(frames, *max_depth, |each| {
                        suspension.walk_seeded(proof, id, &seed, each)
                    });
                    (SeedState::of_answer(walked.error), Some(walked))
                }
                Err(state) => (state, None),
            };
            seen.seed = state;
            // The first managed frame may be a dynamic method, which the runtime neither reports
            // nor accepts as a seed. It then walks without the seed.
            let refused = matches!(
                walked,
                None | Some(SnapshotWalk {
                    error: Some(WalkError::Seed(_)),
                    ..
                })
            );
            seen.seeded = if refused {
                Some(snap(frames, *max_depth, |each| {
                    suspension.walk_with_registers(proof, id, each)
                }))
            } else {
                walked
            };
        }
    }
}

type Each<'f> = dyn for<'c, 'rt> FnMut(
        &mut Cx<'rt, Suspended>,
        SnapshotFrame<'c, 'rt>,
        &Registers,
    ) -> ControlFlow<()>
    + 'f;

/// Runs one `DoStackSnapshot` into `frames`, without growing it.
fn snap(
    frames: &mut Vec<FrameRecord>,
    max_depth: usize,
    walk: impl FnOnce(&mut Each<'_>) -> corprof::Walked<()>,
) -> SnapshotWalk {
    let start = frames.len();
    let room = max_depth.min(frames.capacity() - start);
    let mut each = |_: &mut Cx<'_, Suspended>, frame: SnapshotFrame<'_, '_>, regs: &Registers| {
        if frames.len() - start >= room {
            return ControlFlow::Break(());
        }
        let (function, ip) = match frame {
            SnapshotFrame::Managed { function, ip, .. } => (function.raw(), ip),
            SnapshotFrame::UnmanagedRun { ip } => (0, ip),
        };
        frames.push(FrameRecord {
            function,
            ip: ip as u64,
            sp: regs.rsp,
        });
        ControlFlow::Continue(())
    };
    let walked = walk(&mut each);
    SnapshotWalk {
        frames: start..frames.len(),
        cut: matches!(walked, Ok(ControlFlow::Break(()))),
        error: walked.err(),
    }
}
