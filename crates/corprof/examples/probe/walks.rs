//! Stack walks of the test profiler, with results for `tests/real_clr/walks.rs`.
//!
//! It walks the current thread in callbacks, from valid and invalid seeds, every thread during a
//! suspension, and through the raw layer.

use std::ffi::c_void;
use std::ops::ControlFlow;

use corprof::context::{Callback, Context, Cooperative, Startup, Synchronous};
use corprof::sys::{
    CONTEXT_CONTROL, CONTEXT_INTEGER, ContextAmd64, CorPrfFrameInfo, Hresult, ICorProfilerInfo15,
    SnapshotFlags,
};
use corprof::{
    AgentCx, Cx, FunctionId, FunctionKey, Info, Registers, Seed, SnapshotFrame, WalkError,
};

use crate::Shared;

/// A reported frame: method (`None` for a run of unmanaged frames), address, registers.
type Frame = (Option<FunctionKey>, usize, Registers);

/// Result of a walk through the raw layer.
#[derive(Default)]
struct RawWalk {
    frames: u32,
    /// Number of frames with a register context.
    contexts: u32,
    /// Number of the frame at which the callback returns S_FALSE.
    stop_at: u32,
}

unsafe extern "system" fn on_raw_frame(
    _function: usize,
    _ip: usize,
    _info: CorPrfFrameInfo,
    size: u32,
    context: *mut u8,
    walk: *mut c_void,
) -> Hresult {
    // SAFETY: the runtime passes back the pointer that `raw_walk` gave it, during that call.
    let walk = unsafe { &mut *walk.cast::<RawWalk>() };
    walk.frames += 1;
    walk.contexts += u32::from(!context.is_null() && size > 0);
    if walk.frames == walk.stop_at {
        Hresult::S_FALSE
    } else {
        Hresult::S_OK
    }
}

/// Walks the calling thread with `DoStackSnapshot`, through the raw layer.
fn raw_walk(
    info: Info<'_>,
    flags: SnapshotFlags,
    seed: Option<&Registers>,
    stop_at: u32,
) -> (Hresult, RawWalk) {
    let mut walk = RawWalk {
        stop_at,
        ..RawWalk::default()
    };
    let mut context = ContextAmd64::ZERO;
    let size = seed.map_or(0, |from| {
        context.context_flags = CONTEXT_CONTROL | CONTEXT_INTEGER;
        context.rip = from.rip;
        context.rsp = from.rsp;
        context.rbp = from.rbp;
        size_of::<ContextAmd64>() as u32
    });
    let Some((this, _)) = info.as_raw() else {
        return (Hresult::E_NOINTERFACE, walk);
    };
    let seed = if size == 0 {
        std::ptr::null()
    } else {
        (&raw const context).cast()
    };
    // SAFETY: an asynchronous call; all its arguments are alive until it returns, and the context
    // is as large as that of any runtime.
    let answer = unsafe {
        ICorProfilerInfo15::do_stack_snapshot(
            this.as_ptr(),
            0,
            Some(on_raw_frame),
            flags.bits(),
            (&raw mut walk).cast(),
            seed,
            size,
        )
    };
    (answer, walk)
}

impl Shared {
    /// The names of a walk, leaf first; `unmanaged` for a run.
    fn frames<'rt, C: Context>(
        &self,
        cx: &mut Cx<'rt, C>,
        from: Option<&Seed>,
    ) -> Result<Vec<Frame>, WalkError> {
        let info = cx.info();
        let Some(proof) = self.snapshots.get() else {
            return Err(WalkError::NotEnabled);
        };
        let mut frames = Vec::new();
        let each =
            |_: &mut Cx<'rt, C::Walk>, frame: SnapshotFrame<'_, 'rt>, registers: &Registers| {
                frames.push(match frame {
                    SnapshotFrame::Managed { function, ip, .. } => {
                        (Some(info.key(function)), ip, *registers)
                    }
                    SnapshotFrame::UnmanagedRun { ip } => (None, ip, *registers),
                });
                ControlFlow::<()>::Continue(())
            };
        let _whole = match from {
            Some(seed) => info.walk_seeded(cx, proof, seed, each)?,
            None => info.walk_current_with_registers(cx, proof, each)?,
        };
        Ok(frames)
    }

    fn show<'rt, C: Synchronous>(&self, cx: &Cx<'rt, C>, frames: &[Frame]) -> String {
        let names: Vec<String> = frames
            .iter()
            .map(|(function, ..)| match function {
                Some(key) => cx
                    .info()
                    .id(*key)
                    .map_or_else(|| "?".to_owned(), |id| self.name(cx, id)),
                None => "unmanaged".to_owned(),
            })
            .collect();
        names.join(" ")
    }

    /// Runs in a slow-path hook, which is synchronous.
    pub(crate) fn synchronous<'rt>(&self, cx: &mut Cx<'rt, Callback>) {
        let Ok(frames) = self.frames(cx, None) else {
            self.say("walk failed");
            return;
        };
        self.say(format_args!("stack {}", self.show(cx, &frames)));
        for (function, ip, registers) in &frames {
            let what = function.map_or("run", |_| "managed");
            self.say(format_args!(
                "frame {what} {ip:x} {:x} {:x}",
                registers.rip, registers.rsp
            ));
        }
        self.raw(cx.info());
        // Stops after two frames.
        if let Some(proof) = self.snapshots.get() {
            let mut seen = 0;
            let info = cx.info();
            let stopped = info.walk_current(cx, proof, |cx, _| {
                seen += 1;
                // The frame callback is as synchronous as the walk.
                if info.get_runtime_information(cx).is_err() {
                    self.say("frame callback refused");
                }
                if seen == 2 {
                    ControlFlow::Break(seen)
                } else {
                    ControlFlow::Continue(())
                }
            });
            self.say(format_args!("stopped {stopped:?}"));
        }
        self.offer_second(cx, "seeded_lower", &frames);
        // Native code as a seed, without corprof's check.
        let native = Registers {
            rip: libc::qsort as *const () as u64,
            ..frames
                .first()
                .map_or_else(Registers::default, |frame| frame.2)
        };
        let (answer, walk) = raw_walk(cx.info(), SnapshotFlags::empty(), Some(&native), 0);
        self.say(format_args!("native_seed {answer} frames {}", walk.frames));
        // A seed at the first managed frame finds the same stack from there.
        let Some(at) = frames.iter().position(|(function, ..)| function.is_some()) else {
            return;
        };
        let registers = frames[at].2;
        let stack = stack_bounds(&registers);
        let code = frames[at]
            .0
            .and_then(|key| cx.info().id(key))
            .and_then(|function| code_body(cx, function, registers.rip as usize));
        let Some(code) = code else {
            self.say("no code body");
            return;
        };
        // SAFETY: the registers are those of a frame that returns after this hook does.
        let seed = unsafe { Seed::new(registers, code.clone(), stack.clone()) };
        match self.frames(cx, Some(&seed)) {
            Ok(seeded) => self.say(format_args!("seeded {}", self.show(cx, &seeded))),
            Err(error) => self.say(format_args!("seeded {error:?}")),
        }
        // Invalid seeds, random with a fixed start value: refused, or walked without harm.
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut counts = [0u32; 3];
        for round in 0..4000 {
            let mut bad = registers;
            match round % 8 {
                0 => bad.rip = next(),
                1 => bad.rsp = next(),
                2 => bad.rbp = next(),
                3 => bad.rsp = registers.rsp.wrapping_add(next() % 8) | 1,
                4 => bad.rbp = stack.start as u64 + next() % (stack.len() as u64),
                5 => bad.rip = (code.end as u64).wrapping_add(next() % 4096),
                6 => bad.rip = (code.start as u64).wrapping_sub(1 + next() % 4096),
                _ => {
                    bad.rbp = next();
                    bad.rbx = next();
                    bad.r12 = next();
                    bad.r13 = next();
                    bad.r14 = next();
                    bad.r15 = next();
                }
            }
            // SAFETY: wrong values are either refused, or do not affect the unwinding of this
            // frame.
            let seed = unsafe { Seed::new(bad, code.clone(), stack.clone()) };
            counts[match self.frames(cx, Some(&seed)) {
                Ok(_) => 0,
                Err(WalkError::Seed(_)) => 1,
                Err(_) => 2,
            }] += 1;
        }
        self.say(format_args!(
            "bad_seeds walked {} refused {} failed {}",
            counts[0], counts[1], counts[2]
        ));
    }

    /// Calls that the typed layer does not offer.
    fn raw(&self, info: Info<'_>) {
        let plain = SnapshotFlags::empty();
        let with_registers = SnapshotFlags::REGISTER_CONTEXT;
        let ways = [
            ("raw_plain", plain, None, 0),
            ("raw_registers", with_registers, None, 0),
            ("raw_stopped", plain, None, 2),
        ];
        for (name, flags, seed, stop_at) in ways {
            let (answer, walk) = raw_walk(info, flags, seed, stop_at);
            self.say(format_args!(
                "{name} {answer} frames {} contexts {}",
                walk.frames, walk.contexts
            ));
        }
    }

    /// Runs in `Initialize`, before any managed code.
    pub(crate) fn in_initialize(&self, cx: &mut Cx<'_, Startup>) {
        let info = cx.info();
        if let Some(proof) = self.snapshots.get() {
            let walked = info.walk_current(cx, proof, |_, _| ControlFlow::<()>::Continue(()));
            self.say(format_args!("initialize {walked:?}"));
        }
    }

    /// Runs while the JIT compiles `Mixed.D`, in preemptive mode: offers a seed of a caller further
    /// down.
    pub(crate) fn while_compiling(&self, cx: &mut Cx<'_, Callback>) {
        let Ok(frames) = self.frames(cx, None) else {
            self.say("compiling failed");
            return;
        };
        self.say(format_args!("compiling {}", self.show(cx, &frames)));
        self.offer_second(cx, "compiling_seeded", &frames);
    }

    /// Walks with the second managed frame as a seed, and writes the result.
    fn offer_second(&self, cx: &mut Cx<'_, Callback>, what: &str, frames: &[Frame]) {
        let second = frames.iter().filter(|(function, ..)| function.is_some());
        let Some((Some(key), _, registers)) = second.clone().nth(1) else {
            self.say(format_args!("{what} no second frame"));
            return;
        };
        let body = cx
            .info()
            .id(*key)
            .and_then(|function| code_body(cx, function, registers.rip as usize));
        let Some(body) = body else {
            self.say(format_args!("{what} no code body"));
            return;
        };
        // SAFETY: the registers are those of a frame that returns after this callback does.
        let seed = unsafe { Seed::new(*registers, body, stack_bounds(registers)) };
        match self.frames(cx, Some(&seed)) {
            Ok(seeded) => self.say(format_args!("{what} {}", self.show(cx, &seeded))),
            Err(error) => self.say(format_args!("{what} {error:?}")),
        }
    }

    /// Counts the result of an unseeded walk in this callback, by place.
    pub(crate) fn tally<'rt, C: Context>(&self, cx: &mut Cx<'rt, C>, place: &'static str) {
        let mut frames = 0;
        let info = cx.info();
        let Some(proof) = self.snapshots.get() else {
            return;
        };
        let walked = info.walk_current(cx, proof, |_, frame| {
            frames += u32::from(matches!(frame, SnapshotFrame::Managed { .. }));
            ControlFlow::<()>::Continue(())
        });
        let answer = match walked {
            Ok(_) if frames > 0 => "walked".to_owned(),
            Ok(_) => "walked nothing".to_owned(),
            Err(error) => format!("{error:?}"),
        };
        *self.tallies().entry((place, answer)).or_default() += 1;
    }

    /// Where an exception is thrown: stores a seed for the dispatch, from the frame of `Main`,
    /// which no exception leaves.
    pub(crate) fn remember_main<'rt>(&self, cx: &mut Cx<'rt, Cooperative>) {
        let Ok(frames) = self.frames(cx, None) else {
            return;
        };
        let mut managed = frames.iter().filter(|(function, ..)| function.is_some());
        let Some((Some(key), _, registers)) = managed.next_back() else {
            return;
        };
        let info = cx.info();
        let main = info.id(*key);
        let bodies = main.and_then(|main| info.get_code_info2(cx, main).ok());
        let rip = registers.rip as usize;
        let body = bodies.into_iter().flatten().find_map(|part| {
            let range = part.start_address..part.start_address + part.size;
            range.contains(&rip).then_some(range)
        });
        if let Some(body) = body {
            // SAFETY: the registers of a frame that does not return before the exception is caught;
            // only the thread itself uses the seed, before that.
            let seed = unsafe { Seed::new(*registers, body, stack_bounds(registers)) };
            *self.seed() = Some(seed);
        }
    }

    /// As `tally`, with that seed, while an exception is dispatched.
    pub(crate) fn tally_seeded<'rt, C: Context>(&self, cx: &mut Cx<'rt, C>, place: &'static str) {
        let Some(seed) = self.seed().clone() else {
            return;
        };
        let answer = match self.frames(cx, Some(&seed)) {
            Ok(frames) => {
                let managed = frames.iter().filter(|(function, ..)| function.is_some());
                format!("walked {}", managed.count())
            }
            Err(error) => format!("{error:?}"),
        };
        *self.tallies().entry((place, answer)).or_default() += 1;
    }

    /// Runs on the profiler's own thread: walks every thread during a suspension. Returns whether
    /// the main thread could be walked.
    pub(crate) fn suspended(&self, agent: &mut AgentCx) -> bool {
        let (Some(runtime), Some(proof)) = (self.runtime.get(), self.snapshots.get()) else {
            return false;
        };
        agent.enter(runtime, |cx| {
            let info = cx.info();
            // Without a suspension other threads cannot be walked on this platform.
            let pause = std::time::Duration::from_millis(1);
            let mut stacks = Vec::new();
            let mut suspension = match info.suspend_runtime_with_retries(cx, 10_000, pause) {
                Ok(suspension) => suspension,
                Err(error) => {
                    self.say(format_args!("suspension {error:?}"));
                    return false;
                }
            };
            for thread in suspension.enum_threads().unwrap_or_default() {
                let mut stack = Vec::new();
                let walked = suspension.walk(proof, thread, |cx, frame| {
                    stack.push(match frame {
                        SnapshotFrame::Managed { function, ip, .. } => {
                            // Asynchronous calls are permitted while suspended.
                            let same = cx.info().get_function_from_ip(cx, ip - 1);
                            (Some(info.key(function)), usize::from(same == Ok(function)))
                        }
                        SnapshotFrame::UnmanagedRun { .. } => (None, 0),
                    });
                    ControlFlow::<()>::Continue(())
                });
                let main = Some(info.key(thread)) == self.main_thread.get().copied();
                stacks.push((main, walked, stack));
            }
            let resumed = suspension.resume();
            self.say(format_args!("resumed {resumed:?}"));
            let walked_main = stacks
                .iter()
                .any(|(main, walked, _)| *main && walked.is_ok());
            for (main, walked, stack) in stacks {
                let names: Vec<String> = stack
                    .iter()
                    .map(|(key, _)| match key.and_then(|key| info.id(key)) {
                        Some(function) => self.name(cx, function),
                        None => "unmanaged".to_owned(),
                    })
                    .collect();
                let which = if main { "main" } else { "other" };
                self.say(format_args!(
                    "suspended {which} {walked:?} {}",
                    names.join(" ")
                ));
            }
            walked_main
        })
    }
}

/// Stack of the calling thread: the memory mapping that contains the stack pointer.
fn stack_bounds(registers: &Registers) -> std::ops::Range<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let sp = registers.rsp as usize;
    for line in maps.lines() {
        let Some((range, _)) = line.split_once(' ') else {
            continue;
        };
        let Some((start, end)) = range.split_once('-') else {
            continue;
        };
        if let (Ok(start), Ok(end)) = (
            usize::from_str_radix(start, 16),
            usize::from_str_radix(end, 16),
        ) && (start..end).contains(&sp)
        {
            return start..end;
        }
    }
    0..0
}

/// The code body of a function that contains an address.
fn code_body<'rt>(
    cx: &mut Cx<'rt, Callback>,
    function: FunctionId<'rt>,
    ip: usize,
) -> Option<std::ops::Range<usize>> {
    let info = cx.info();
    let starts = info
        .get_native_code_start_addresses(cx, function, corprof::RejitId::ORIGINAL)
        .ok()?;
    for start in starts {
        for part in info.get_code_info4(cx, start).ok()? {
            let range = part.start_address..part.start_address + part.size;
            if range.contains(&ip) {
                return Some(range);
            }
        }
    }
    None
}
