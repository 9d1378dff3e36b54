//! A runtime that stands still, and what can be seen of its threads then.
//!
//! It stops one CLR, walks the threads it is told to in the ways it is told to, and lets the CLR
//! go on. It decides nothing about time or samples, and names nothing.
//!
//! Invariants: between `SuspendRuntime` and `ResumeRuntime` no lock is taken and nothing is
//! allocated (all room is there before; what does not fit is cut and counted); every thread that
//! is walked is pinned, so that its `ThreadDestroyed` waits; two CLRs are never stopped at once.

use std::ops::{ControlFlow, Range};

use corprof::context::Suspended;
use corprof::{
    Cx, Registers, SnapshotFrame, SuspendError, Suspension, ThreadId, ThreadKey, ThreadPin,
    WalkError,
};
use sampler::{Reader, SlotId, TraceRefused};
use stackwalk::Traced;

use super::seed::{self, SeedState};
use crate::agent::Agent;
use crate::drain::Runtimes;
use crate::proc;

/// Most frames of one stop, all threads: 2 MiB, touched as far as it is used.
const ROOM: usize = 64 * 1024;
/// Most managed threads that are listed.
const MAX_THREADS: usize = 4096;
/// How long a stopped runtime is held for threads that do not answer a request for a trace.
const TRACE_WAIT_NS: u64 = 20_000_000;

/// A thread to be walked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// ThreadID of the CLR that is stopped.
    pub(crate) managed: usize,
    /// The kernel's number.
    pub(crate) tid: u32,
    /// Its number in the recording.
    pub(crate) thread: u32,
    /// Where the sampler knows it.
    pub(crate) slot: Option<SlotId>,
}

/// In which ways a thread is walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ways {
    /// `DoStackSnapshot` without a seed.
    pub(crate) plain: bool,
    /// Our own walk, in a signal handler.
    pub(crate) trace: bool,
    /// `DoStackSnapshot` with a seed from that walk.
    pub(crate) seeded: bool,
    /// So many seeds that are wrong in some way are offered for each thread, to see them refused.
    pub(crate) random_seeds: u32,
}

/// A frame as `DoStackSnapshot` tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SnapFrame {
    /// FunctionID; 0 for a run of unmanaged frames.
    pub(crate) function: usize,
    pub(crate) ip: u64,
    pub(crate) sp: u64,
}

/// The outcome of one `DoStackSnapshot`; the frames lie in [`Stopped::frames`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snap {
    pub(crate) frames: Range<usize>,
    /// It was cut: too deep, or no room.
    pub(crate) cut: bool,
    pub(crate) error: Option<WalkError>,
}

/// Our own walk of a thread; the frames lie in [`Stopped::traces`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) frames: Range<usize>,
    /// As [`crate::resolve::EndCode`] has it.
    pub(crate) end: u8,
}

/// What was seen of one thread.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) target: Target,
    pub(crate) plain: Option<Snap>,
    pub(crate) trace: Option<Result<Trace, TraceRefused>>,
    pub(crate) seed: SeedState,
    pub(crate) seeded: Option<Snap>,
    asked: bool,
}

/// How long a runtime stood, nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pause {
    /// CLOCK_MONOTONIC when it stood.
    pub(crate) at_ns: u64,
    pub(crate) stopping_ns: u64,
    pub(crate) stopped_ns: u64,
    /// CLOCK_MONOTONIC when it went on.
    pub(crate) end_ns: u64,
}

/// Why a CLR was not stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotStopped {
    /// It ends, has ended, or its snapshots are not enabled.
    Gone,
    /// It would not.
    Refused(SuspendError),
}

/// Room for one stop, used again for each.
pub(crate) struct Stopped {
    max_depth: usize,
    pub(crate) frames: Vec<SnapFrame>,
    pub(crate) traces: Vec<Traced>,
    /// Sorted by ThreadID.
    pub(crate) seen: Vec<Seen>,
    pins: Vec<ThreadPin<'static>>,
    /// Seeds that were made up: refused before the runtime was asked, and given to it.
    pub(crate) random_seeds: (u32, u32),
    random: u64,
}

impl Stopped {
    pub(crate) fn new(max_depth: u32) -> Stopped {
        Stopped {
            max_depth: max_depth as usize,
            frames: Vec::with_capacity(ROOM),
            traces: Vec::new(),
            seen: Vec::new(),
            pins: Vec::new(),
            random_seeds: (0, 0),
            random: 0x2545_f491_4f6c_dd1d,
        }
    }

    /// Forgets what was seen before.
    pub(crate) fn clear(&mut self) {
        self.frames.clear();
        self.traces.clear();
        self.seen.clear();
    }

    /// Stops a CLR, walks `targets`, lets it go on. Those that it does not list (any more) are
    /// not in [`Stopped::seen`] with an outcome.
    pub(crate) fn stop(
        &mut self,
        agent: &'static Agent,
        runtimes: &mut Runtimes<'_>,
        reader: &mut Reader,
        runtime: u8,
        ways: Ways,
        targets: impl Iterator<Item = Target>,
    ) -> Result<Pause, NotStopped> {
        self.prepare(agent, runtime, ways, targets);
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
                let at = self
                    .seen
                    .binary_search_by_key(&id.raw(), |seen| seen.target.managed);
                if let Ok(at) = at {
                    self.walk(agent, &mut suspension, &proof, *id, at, runtime, ways);
                }
            }
            let _resumed = suspension.resume();
            let end_ns = proc::now_ns();
            Some(Ok(Pause {
                at_ns,
                stopping_ns: at_ns.saturating_sub(wished_ns),
                stopped_ns: end_ns.saturating_sub(at_ns),
                end_ns,
            }))
        });
        self.pins.clear();
        match stopped.flatten() {
            None => Err(NotStopped::Gone),
            Some(Err(error)) => Err(NotStopped::Refused(error)),
            Some(Ok(pause)) => Ok(pause),
        }
    }

    /// Makes all room, and pins each thread so that it stays.
    fn prepare(
        &mut self,
        agent: &'static Agent,
        runtime: u8,
        ways: Ways,
        targets: impl Iterator<Item = Target>,
    ) {
        self.clear();
        for target in targets.take(MAX_THREADS) {
            let index = corprof::RuntimeIndex(u32::from(runtime));
            // SAFETY: the id came from `ThreadAssignedToOSThread` of this runtime and has not been
            // told to be destroyed.
            let key = unsafe { ThreadKey::from_parts(index, target.managed) };
            let Some(pin) = key.and_then(|key| agent.pins.pin(key)) else {
                continue;
            };
            self.pins.push(pin);
            self.seen.push(Seen {
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

    /// Has each thread walk itself.
    fn take_traces(&mut self, reader: &mut Reader, deadline_ns: u64) {
        for seen in &mut self.seen {
            seen.asked = seen
                .target
                .slot
                .is_some_and(|slot| reader.ask_trace(slot).is_ok());
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
                Ok(Trace {
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
        agent: &'static Agent,
        suspension: &mut Suspension<'_, 'rt>,
        proof: &corprof::StackSnapshots,
        id: ThreadId<'rt>,
        at: usize,
        runtime: u8,
        ways: Ways,
    ) {
        let Stopped {
            max_depth,
            frames,
            traces,
            seen,
            random_seeds,
            random,
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
                .and_then(|slot| agent.sampler.stack_of(slot));
            let found = match (trace, &stack) {
                (Some(trace), Some(stack)) => seed::of_trace(agent.map, runtime, trace, stack),
                _ => Err(SeedState::None),
            };
            if let (Some(trace), Some(stack)) = (trace, &stack)
                && let Some(right) = seed::candidate(agent.map, runtime, trace)
            {
                for _ in 0..ways.random_seeds {
                    let wrong = seed::spoil(right, trace, stack, random);
                    match seed::check(agent.map, runtime, trace, stack, wrong) {
                        Err(_) => random_seeds.0 += 1,
                        Ok(seed) => {
                            random_seeds.1 += 1;
                            let start = frames.len();
                            let _walked = snap(frames, *max_depth, |each| {
                                suspension.walk_seeded(proof, id, &seed, each)
                            });
                            frames.truncate(start);
                        }
                    }
                }
            }
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
            // The first managed frame may be a dynamic method, which the runtime does not tell of
            // and takes for no seed: it finds its own way then.
            let refused = matches!(
                walked,
                None | Some(Snap {
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

/// One `DoStackSnapshot` into `frames`, within their room.
fn snap(
    frames: &mut Vec<SnapFrame>,
    max_depth: usize,
    walk: impl FnOnce(&mut Each<'_>) -> corprof::Walked<()>,
) -> Snap {
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
        frames.push(SnapFrame {
            function,
            ip: ip as u64,
            sp: regs.rsp,
        });
        ControlFlow::Continue(())
    };
    let walked = walk(&mut each);
    Snap {
        frames: start..frames.len(),
        cut: matches!(walked, Ok(ControlFlow::Break(()))),
        error: walked.err(),
    }
}
