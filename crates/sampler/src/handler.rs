//! The signal handler.
//!
//! Everything in this file, and everything it calls, runs in a signal handler on the sampled
//! thread, at any instruction of the program: no lock, no allocation, no thread-local, no panic, no
//! wait; every loop is bounded; `errno` is put back. It finds its slot by what the signal carries,
//! not by asking who the thread is, and believes that only after the slot's generation and the
//! stack pointer agree.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use crate::config::{WalkFn, WalkResult};
use crate::counters::DiscardReason;
use crate::engine::{self, Timer};
use crate::global::{Ask, GLOBAL, Global, Token};
use crate::protocol::Enter;
use crate::slot::{Phase, Slot};
use crate::stack::{HEAD_WORDS, Head, shared_root};
use crate::sys::{self, SignalInfo};
use crate::trace;

/// From whom a signal came.
enum Source {
    /// From us, for this slot.
    Ours(Token, Tick),
    /// From a timer of ours that was ended meanwhile.
    Late,
    /// From somebody else.
    Foreign,
}

/// What the kernel says about a tick.
#[derive(Clone, Copy, Default)]
struct Tick {
    /// POSIX timer: ticks that this one stands for beyond the first.
    overrun: u32,
    /// perf: the event has stopped itself and wants a new allowance.
    exhausted: bool,
}

/// The handler as the kernel calls it.
///
/// # Safety
/// Only as an SA_SIGINFO handler, or by a handler that got these arguments that way.
pub(crate) unsafe extern "C" fn on_signal(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let errno = sys::errno();
    let started = sys::monotonic_ns();
    let global = &GLOBAL;
    // SAFETY: the kernel gives a whole siginfo_t, whose layout SignalInfo has.
    let source = unsafe { source_of(global, info.cast::<SignalInfo>()) };
    match source {
        Source::Ours(
            Token {
                ask: Ask::Probe, ..
            },
            _,
        ) => {
            global.probe_ticks.fetch_add(1, Ordering::Relaxed);
        }
        Source::Ours(token, tick) => {
            if global.running() {
                let context = context.cast::<libc::ucontext_t>().cast_const();
                // SAFETY: `context` is the interrupted context of this very signal.
                unsafe { ours(global, token, tick, context, started) };
            }
        }
        Source::Late => global.discard(DiscardReason::UnknownThread),
        // SAFETY: the arguments are the kernel's own.
        Source::Foreign => unsafe { pass_on(global, signal, info, context) },
    }
    sys::set_errno(errno);
}

/// # Safety
/// `info` is valid.
unsafe fn source_of(global: &Global, info: *const SignalInfo) -> Source {
    // SAFETY: the caller's promise.
    let info = unsafe { &*info };
    let token = match info.code {
        libc::SI_TIMER => Token::unpack(info.value),
        libc::SI_QUEUE if info.first == global.pid.load(Ordering::Relaxed) => {
            Token::unpack(info.value)
        }
        // POLL_IN … POLL_HUP: only a descriptor with F_SETSIG sends these.
        1..=6 => {
            let word = global
                .fd_entry(info.value as u32 as i32)
                .map_or(0, |entry| {
                    entry.load(Ordering::Acquire) // pairs with the Release in `arm_perf`
                });
            return match Token::unpack(word) {
                Some(token) => {
                    const POLL_HUP: i32 = 6;
                    Source::Ours(
                        token,
                        Tick {
                            overrun: 0,
                            exhausted: info.code == POLL_HUP,
                        },
                    )
                }
                None => Source::Late,
            };
        }
        _ => None,
    };
    match token {
        Some(token) if info.code == libc::SI_TIMER => {
            let overrun = u32::try_from(info.second).unwrap_or(0);
            Source::Ours(
                token,
                Tick {
                    overrun,
                    exhausted: false,
                },
            )
        }
        Some(token) => Source::Ours(token, Tick::default()),
        None => Source::Foreign,
    }
}

/// # Safety
/// The arguments are those of the signal.
unsafe fn pass_on(
    global: &Global,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let previous = global.previous.load(Ordering::Acquire);
    if previous == 0 {
        global.discard(DiscardReason::Foreign);
        return;
    }
    global.discard(DiscardReason::Chained);
    if global.previous_takes_info.load(Ordering::Relaxed) {
        type Info = unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: `start` stored the address of the installed handler, which had SA_SIGINFO.
        let handler = unsafe { core::mem::transmute::<usize, Info>(previous) };
        // SAFETY: it gets what the kernel gave.
        unsafe { handler(signal, info, context) };
    } else {
        type Plain = unsafe extern "C" fn(libc::c_int);
        // SAFETY: as above, without SA_SIGINFO.
        let handler = unsafe { core::mem::transmute::<usize, Plain>(previous) };
        // SAFETY: as above.
        unsafe { handler(signal) };
    }
}

/// A signal of ours.
///
/// # Safety
/// `context` is the context of the signal being handled.
unsafe fn ours(
    global: &Global,
    token: Token,
    tick: Tick,
    context: *const libc::ucontext_t,
    started: u64,
) {
    let Some(slot) = global.slot(token.index as usize) else {
        global.discard(DiscardReason::UnknownThread);
        return;
    };
    let known = match slot.gate.enter(token.generation) {
        Enter::In { known } => known,
        Enter::Stale => {
            global.discard(DiscardReason::UnknownThread);
            return;
        }
        Enter::Nested => {
            global.discard(DiscardReason::Nested);
            return;
        }
    };
    // Whatever the signal was sent for: while one is pending, another is not queued.
    // SAFETY: the caller's promise; we are inside the gate.
    unsafe { trace::answer(global, slot, context, started, known) };
    if token.ask == Ask::Trace {
        slot.gate.leave();
        return;
    }
    if token.ask == Ask::Hello {
        // SAFETY: the caller's promise.
        slot.hello_tp.store(thread_pointer(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `Reader::settle_hellos`.
        // SAFETY: the caller's promise.
        slot.hello_sp
            .store(unsafe { stack_pointer(context) }, Ordering::Release);
        slot.gate.leave();
        global.wake();
        return;
    }

    // What this signal stands for is settled first, sample or not.
    let Some(stands) = stands_for(global, slot, token.ask, tick, started) else {
        slot.gate.leave();
        return;
    };
    let outcome = if known {
        // SAFETY: the caller's promise; we are inside the gate and the bounds are known.
        unsafe { sample(global, slot, context, started, stands) }
    } else {
        Err(DiscardReason::NoStackBounds)
    };
    match outcome {
        Ok(()) => {
            Slot::add(&slot.samples, 1);
            Slot::add(&slot.intervals, stands.count.into());
            Slot::add(&slot.value_ns, stands.value);
            if stands.wall {
                Slot::add(&slot.wall_samples, 1);
                slot.cpu_after.store(sys::own_cpu_ns(), Ordering::Relaxed);
            }
        }
        Err(reason) => {
            global.discard(reason);
            Slot::add(&slot.lost_ns, stands.value);
        }
    }
    Slot::add(&slot.signals, 1);
    Slot::add(
        &slot.handler_ns,
        sys::monotonic_ns().saturating_sub(started),
    );
    if token.ask == Ask::Wall {
        // Release: pairs with the Acquire in `Reader::wall_tick`.
        slot.pending.store(false, Ordering::Release);
    }
    slot.gate.leave();
}

/// What one signal stands for.
#[derive(Clone, Copy)]
pub(crate) struct Stands {
    pub(crate) wall: bool,
    pub(crate) value: u64,
    pub(crate) count: u32,
}

/// Settles it, and lets the timer go on after its first tick. `None`: a tick too many.
fn stands_for(global: &Global, slot: &Slot, ask: Ask, tick: Tick, now: u64) -> Option<Stands> {
    if ask == Ask::Wall {
        let interval = global.wall_interval_ns.load(Ordering::Relaxed).max(1);
        let value = now.saturating_sub(slot.wall_time.swap(now, Ordering::Relaxed));
        let count = value.saturating_add(interval / 2) / interval;
        return Some(Stands {
            wall: true,
            value,
            count: count.clamp(1, Head::MAX_COUNT.into()) as u32,
        });
    }
    let interval = global.interval_ns.load(Ordering::Relaxed).max(1);
    let before = slot.last_time.swap(now, Ordering::Relaxed);
    let elapsed = now.saturating_sub(before);
    let phase = slot.phase.load(Ordering::Relaxed);
    let first = phase == Phase::First as u8;
    slot.phase.store(
        if first { Phase::Second } else { Phase::Steady } as u8,
        Ordering::Relaxed,
    );
    let timer = Timer::from_word(slot.timer.load(Ordering::Acquire)); // pairs with `arm_*`
    let count = match timer {
        Some(Timer::Perf(_)) if phase == Phase::Second as u8 && elapsed < interval / 4 * 3 => {
            // The event's clock was set back at the first tick, so a second one cannot come before
            // a whole interval: this one was under way already, at the random period.
            slot.last_time.store(before, Ordering::Relaxed);
            slot.phase.store(phase, Ordering::Relaxed);
            return None;
        }
        Some(Timer::Perf(fd)) => {
            if first || tick.exhausted {
                engine::go_on(fd, interval);
            }
            if first {
                slot.accounted_cpu
                    .store(sys::own_cpu_ns(), Ordering::Relaxed);
                1
            } else {
                perf_count(slot, interval, elapsed)
            }
        }
        Some(Timer::Posix(_)) => {
            if first {
                let kernel_tick = global.tick_ns.load(Ordering::Relaxed);
                let armed = slot.accounted_cpu.load(Ordering::Relaxed);
                let cpu = sys::own_cpu_ns().saturating_sub(armed);
                if cpu < kernel_tick {
                    let value = engine::first_value(cpu, kernel_tick, interval);
                    let count = (value / interval).clamp(1, Head::MAX_COUNT.into()) as u32;
                    return Some(Stands {
                        wall: false,
                        value,
                        count,
                    });
                }
            }
            tick.overrun.saturating_add(1)
        }
        // The timer is being ended; this was its last tick.
        None => tick.overrun.saturating_add(1),
    };
    let count = count.min(Head::MAX_COUNT);
    Some(Stands {
        wall: false,
        value: u64::from(count) * interval,
        count,
    })
}

/// How many ticks a perf signal stands for. Signals of one number do not queue, so ticks that come
/// while one is pending (the thread blocked it, or waited for a processor in the kernel) are
/// merged. CPU time never runs faster than real time, so this can only have happened when two
/// intervals have passed; only then is the thread's CPU clock read.
fn perf_count(slot: &Slot, interval: u64, elapsed: u64) -> u32 {
    let accounted = slot.accounted_cpu.load(Ordering::Relaxed);
    let (count, accounted) = if elapsed < 2 * interval {
        (1, accounted.saturating_add(interval))
    } else {
        let cpu = sys::own_cpu_ns();
        let count = (cpu.saturating_sub(accounted) / interval).max(1);
        // The event's clock may run ahead of the CPU clock (it counts time stolen by the
        // hypervisor); the lead must not eat a later gap.
        (
            count,
            accounted
                .saturating_add(count.saturating_mul(interval))
                .min(cpu.saturating_add(interval)),
        )
    };
    slot.accounted_cpu.store(accounted, Ordering::Relaxed);
    count.min(u64::from(Head::MAX_COUNT)) as u32
}

/// Walks and writes the record.
///
/// # Safety
/// `context` is the context of the signal being handled; the caller is inside the slot's gate.
unsafe fn sample(
    global: &Global,
    slot: &Slot,
    context: *const libc::ucontext_t,
    now: u64,
    stands: Stands,
) -> Result<(), DiscardReason> {
    let walk = global.walk.load(Ordering::Relaxed);
    let max_depth = slot.max_depth.load(Ordering::Relaxed) as usize;
    let last_buffer = slot.last_buffer.load(Ordering::Relaxed) & 1;
    let out = slot.stack_buffer(usize::from(1 - last_buffer));
    // SAFETY: the caller's promise; `out` has room for `max_depth` words, and only the handler
    // inside the gate touches it; `start` stored a WalkFn in `walk` before it set RUNNING.
    let WalkResult { depth, end, reason } =
        unsafe { run_walk(global, slot, context, walk, out, max_depth)? };
    if reason != 0 {
        let index = usize::from(reason).min(global.refused_by_walker.len() - 1);
        if let Some(counter) = global.refused_by_walker.get(index) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        return Err(DiscardReason::Walker);
    }
    if write_record(slot, depth as usize, end, now, stands)? {
        global.wake();
    }
    Ok(())
}

/// Walks the interrupted stack if it may be walked.
///
/// # Safety
/// `context` is the context of the signal being handled; the caller is inside the slot's gate;
/// `walk` is 0 or a [`WalkFn`] that `out` has `cap` places for.
pub(crate) unsafe fn run_walk(
    global: &Global,
    slot: &Slot,
    context: *const libc::ucontext_t,
    walk: usize,
    out: *mut u64,
    cap: usize,
) -> Result<WalkResult, DiscardReason> {
    // SAFETY: the caller's promise.
    let sp = unsafe { stack_pointer(context) };
    let low = slot.stack_low.load(Ordering::Relaxed);
    let high = slot.stack_high.load(Ordering::Relaxed);
    let floor = if (low..high).contains(&sp) {
        low
    } else {
        // SAFETY: the caller's promise.
        match unsafe { alternate_stack_floor(context, sp) } {
            Some(floor) if global.walk_alternate.load(Ordering::Relaxed) => floor,
            Some(_) => return Err(DiscardReason::AlternateStack),
            None => return Err(DiscardReason::OffStack),
        }
    };
    let here = MaybeUninit::<u64>::uninit();
    let room = (here.as_ptr() as u64).saturating_sub(floor);
    if room < u64::from(global.min_stack_room.load(Ordering::Relaxed)) {
        return Err(DiscardReason::StackNearlyFull);
    }
    if walk == 0 {
        return Err(DiscardReason::Walker);
    }
    // SAFETY: the caller's promise.
    let walk = unsafe { core::mem::transmute::<usize, WalkFn>(walk) };
    // SAFETY: the context is valid, `scratch` is the slot's own block, which only the handler
    // inside the gate touches; the rest is the caller's promise.
    Ok(unsafe { walk(context, high, slot.scratch(), out, cap) })
}

/// Writes the stack that lies in the buffer which is not the last one's. True: the ring became
/// half full.
///
/// The caller is inside the slot's gate and has filled the buffer with `depth` frames.
pub(crate) fn write_record(
    slot: &Slot,
    depth: usize,
    end: u8,
    now: u64,
    stands: Stands,
) -> Result<bool, DiscardReason> {
    let max_depth = slot.max_depth.load(Ordering::Relaxed) as usize;
    let depth = depth.min(max_depth);
    let last_buffer = slot.last_buffer.load(Ordering::Relaxed) & 1;
    let whole = slot.write_whole.load(Ordering::Relaxed);
    let last_depth = if whole {
        0
    } else {
        (slot.last_depth.load(Ordering::Relaxed) as usize).min(max_depth)
    };
    let frames = |buffer: u8, len: usize| {
        // SAFETY: each of the slot's buffers has `max_depth` words, zeroed when they were mapped;
        // the handler inside the gate alone touches these two.
        unsafe { core::slice::from_raw_parts(slot.stack_buffer(usize::from(buffer)), len) }
    };
    let new = frames(1 - last_buffer, depth);
    let last = frames(last_buffer, last_depth);
    let shared = shared_root(new, last);
    let fresh = depth - shared;

    let ring = slot.ring();
    let Some(record) = ring.reserve(HEAD_WORDS + fresh) else {
        GLOBAL.wake();
        return Err(DiscardReason::RingFull);
    };
    let head = Head {
        wall: stands.wall,
        fresh: fresh as u16,
        shared: shared as u16,
        end,
        count: stands.count,
    };
    record.put(0, head.pack());
    record.put(1, now);
    record.put(2, stands.value);
    for (index, frame) in new.iter().take(fresh).enumerate() {
        record.put(HEAD_WORDS + index, *frame);
    }
    let half_full = record.commit();
    slot.last_depth.store(depth as u32, Ordering::Relaxed);
    slot.last_buffer.store(1 - last_buffer, Ordering::Relaxed);
    if whole {
        slot.write_whole.store(false, Ordering::Relaxed);
    }
    Ok(half_full)
}

/// # Safety
/// `context` is valid.
unsafe fn stack_pointer(context: *const libc::ucontext_t) -> u64 {
    // SAFETY: the caller's promise; REG_RSP is an index into gregs.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RSP as usize] as u64 }
}

/// The low end of the alternate stack if `sp` lies on it.
///
/// # Safety
/// `context` is valid.
unsafe fn alternate_stack_floor(context: *const libc::ucontext_t, sp: u64) -> Option<u64> {
    // SAFETY: the caller's promise; the kernel saves the thread's sigaltstack there.
    let stack = unsafe { &raw const (*context).uc_stack };
    // SAFETY: as above.
    let (flags, low, len) = unsafe {
        (
            (*stack).ss_flags,
            (*stack).ss_sp as u64,
            (*stack).ss_size as u64,
        )
    };
    let on = flags & libc::SS_DISABLE == 0 && sp.wrapping_sub(low) < len;
    on.then_some(low)
}

/// The thread control block's address, which lies at the upper end of a pthread's stack (glibc
/// and musl place it there). Reads the thread's own register-relative first word; touches no
/// thread-local variable.
fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: on x86-64 the word at fs:0 is the control block's own address (System V ABI,
    // thread-local storage); every thread of a libc has one.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}
