//! Signal handler: samples the interrupted thread with the walk given at start.
//!
//! Everything in this file, and everything it calls, runs in a signal handler on the sampled
//! thread, at any instruction of the program. Invariant: no lock, no allocation, no thread-local,
//! no panic, no wait; every loop is bounded; `errno` is restored. The signal's payload names the
//! slot (the state of one registered thread). The handler uses it only if its generation and the
//! stack pointer match.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::config::{WalkFn, WalkResult};
use crate::counters::DiscardReason;
use crate::engine::{self, Timer};
use crate::global::{GLOBAL, Global, SignalRequest, SignalToken};
use crate::guard;
use crate::protocol::Enter;
use crate::slot::{Slot, WallSignal};
use crate::stack::{HEAD_WORDS, Head, shared_root};
use crate::sys::{self, SignalInfo};
use crate::trace;
use crate::waits;

/// Sender of a signal.
enum SignalSource {
    /// The agent, with a token and the tick.
    Ours(SignalToken, Tick),
    /// The agent, to measure the cost of a signal.
    Priced,
    /// From other code.
    Foreign,
}

/// Data about a tick, from the kernel.
#[derive(Clone, Copy, Default)]
struct Tick {
    /// POSIX timer: number of ticks that this one stands for beyond the first.
    overrun: u32,
    /// Whether the reader sent it.
    sent: bool,
}

/// The handler as the kernel calls it.
///
/// It may run on a signal stack that is nearly full, so it and its callees use little of it before
/// [`run_walk`] has checked the room.
///
/// # Safety
/// Only as an SA_SIGINFO handler, or by a handler that got these arguments that way.
pub(crate) unsafe extern "C" fn on_signal(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let errno = sys::errno();
    let global = &GLOBAL;
    // SAFETY: the kernel gives a whole siginfo_t, whose layout SignalInfo has.
    let source = unsafe { source_of(global, info.cast::<SignalInfo>()) };
    match source {
        SignalSource::Ours(token, tick) => {
            if global.running() {
                let context = context.cast::<libc::ucontext_t>().cast_const();
                // SAFETY: `context` is the interrupted context of this very signal.
                unsafe { handle_own_signal(global, token, tick, context) };
            }
        }
        SignalSource::Priced => {}
        // Our own signal had no handler before.
        SignalSource::Foreign if signal != global.signal.load(Ordering::Relaxed) => {
            global.discard(DiscardReason::Foreign);
        }
        // SAFETY: the arguments are the kernel's own.
        SignalSource::Foreign => unsafe { pass_on(global, signal, info, context) },
    }
    sys::set_errno(errno);
}

/// Handler of SIGIO, which the kernel sends if it cannot queue a perf event's signal.
pub(crate) extern "C" fn on_full_queue(_signal: libc::c_int) {
    GLOBAL.discard(DiscardReason::QueueFull);
}

/// # Safety
/// `info` is valid.
unsafe fn source_of(global: &Global, info: *const SignalInfo) -> SignalSource {
    // SAFETY: the caller's promise.
    let info = unsafe { &*info };
    let tick = Tick {
        overrun: u32::try_from(info.second).unwrap_or(0),
        sent: info.first == sys::SENT || SignalToken::is_sent_by_timer(info.value),
    };
    let (token, tick) = match info.code {
        // Our timers, and signals that imitate one (`sys::queue_signal`). The token has a mark and
        // the slot's generation, which no other timer's value has by chance.
        libc::SI_TIMER if info.first == sys::PRICED => return SignalSource::Priced,
        libc::SI_TIMER => (SignalToken::unpack(info.value), tick),
        // POLL_IN … POLL_HUP: sent only by a descriptor with F_SETSIG.
        1..=6 => {
            let word = global
                .fd_entry(info.value as u32 as i32)
                .map_or(0, |entry| {
                    entry.load(Ordering::Acquire) // pairs with the Release in `arm_perf`
                });
            (SignalToken::unpack(word), Tick::default())
        }
        _ => (None, tick),
    };
    match token {
        Some(token) => SignalSource::Ours(token, tick),
        None => SignalSource::Foreign,
    }
}

/// Passes a signal to the handler that was installed before ours, in most cases the CLR's.
///
/// # Safety
/// The arguments are those of the signal.
unsafe fn pass_on(
    global: &Global,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let mark = info.cast::<SignalInfo>();
    let previous = global.previous.load(Ordering::Acquire); // pairs with `Sampler::move_to_top`
    // SAFETY: the caller's promise; the word is ours, see `SignalInfo::passed`. A handler that
    // stands above ours may get the signal from the one below, and give it to us again.
    let again = unsafe { (*mark).passed == sys::PASSED_ON };
    if previous == 0 || again {
        global.discard(DiscardReason::Foreign);
        return;
    }
    // SAFETY: as above.
    unsafe { (*mark).passed = sys::PASSED_ON };
    global.discard(DiscardReason::Chained);
    if global.trace.load(Ordering::Relaxed) != 0 {
        // A CLR suspends threads inside its handler, where the signal is blocked. They could not
        // answer a trace, which is requested just then. A signal of the CLR itself that arrives in
        // between finds native code and does nothing (`CheckActivationSafePoint`).
        sys::unblock_signal(signal);
    }
    if global.previous_takes_info.load(Ordering::Relaxed) {
        type Info = unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: `start` or `move_to_top` stored the address of a handler that had SA_SIGINFO.
        let handler = unsafe { core::mem::transmute::<usize, Info>(previous) };
        // SAFETY: it gets the kernel's arguments.
        unsafe { handler(signal, info, context) };
    } else {
        type Plain = unsafe extern "C" fn(libc::c_int);
        // SAFETY: as above, without SA_SIGINFO.
        let handler = unsafe { core::mem::transmute::<usize, Plain>(previous) };
        // SAFETY: as above.
        unsafe { handler(signal) };
    }
}

/// Handles a signal of ours.
///
/// # Safety
/// `context` is the context of the signal being handled.
unsafe fn handle_own_signal(
    global: &Global,
    token: SignalToken,
    tick: Tick,
    context: *const libc::ucontext_t,
) {
    let started = sys::monotonic_ns();
    let Some(slot) = global.slot(token.index as usize) else {
        global.discard(DiscardReason::UnknownThread);
        return;
    };
    let cookie = Cookie::default();
    let mut entered = slot.gate.enter(token.generation);
    // SAFETY: the caller's promise.
    if entered == Enter::Nested && unsafe { is_abandoned(slot, context) } {
        entered = slot.gate.take_over(token.generation);
    }
    let known = match entered {
        Enter::In { known } => known,
        Enter::Stale => {
            global.discard(DiscardReason::UnknownThread);
            return;
        }
        Enter::Nested => {
            note_arrival(slot, token.request, WallSignal::NONE);
            // Our signal arrives here only in a handler that the program is leaving by a jump. The
            // perf event has stopped itself and would never be restarted; the entered gate keeps it
            // open.
            if token.request == SignalRequest::Cpu
                && let Some(fd) = event_of(slot, tick)
            {
                engine::go_on(slot, fd, None);
            }
            global.discard(DiscardReason::Nested);
            return;
        }
    };
    cookie.place(slot, started);
    // SAFETY: the caller's promise; we are inside the gate.
    unsafe { run_inside_gate(global, slot, token, tick, context, started, known) };
    // A change since the last tick is detected before the next.
    let held = guard::hold_reason_now(global, slot);
    if !slot.on_own_signal.load(Ordering::Relaxed) && engine::is_timed_by_kernel(slot) {
        // SAFETY: the caller's promise; the kernel's set of signals has 64 bits, the first of this
        // field.
        let held_off = unsafe { (&raw const (*context).uc_sigmask).cast::<u64>().read() };
        // SAFETY: the caller's promise.
        let alternate = unsafe { alternate_stack(context) };
        if guard::handles_fault(held_off) || guard::has_held_frame(&alternate) {
            engine::replace_timer_by_clock(slot);
        }
    }
    if held.is_some() {
        engine::pause(slot);
    }
    cookie.remove();
    slot.gate.leave();
}

/// A word on the handler's stack that tells the thread's next handler whether this one is still
/// running. While we run, only our own signal is blocked, so that the program's signals go to the
/// same threads as without the agent. A handler that interrupts ours may end in `siglongjmp`.
#[derive(Default)]
struct Cookie(AtomicU64);

impl Cookie {
    fn place(&self, slot: &Slot, started: u64) {
        let value = started | 1;
        self.0.store(value, Ordering::Relaxed);
        slot.cookie.store(value, Ordering::Relaxed);
        slot.cookie_at
            .store(self.0.as_ptr() as u64, Ordering::Relaxed);
    }

    fn remove(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Whether the program has jumped out of the handler that is inside the slot's gate, so that the
/// handler's stack is gone. In doubt it is considered running, and the thread is not sampled at
/// this moment.
///
/// # Safety
/// `context` is the context of the signal being handled, on the slot's thread.
unsafe fn is_abandoned(slot: &Slot, context: *const libc::ucontext_t) -> bool {
    let at = slot.cookie_at.load(Ordering::Relaxed);
    let stack = slot.stack_low.load(Ordering::Relaxed)..slot.stack_high.load(Ordering::Relaxed);
    // SAFETY: the caller's promise.
    let sp = unsafe { stack_pointer(context) };
    if !stack.contains(&sp) || at == 0 {
        return false;
    }
    if !stack.contains(&at) {
        return true; // it ran on a signal stack that the thread has left
    }
    // Above the word the handler's stack is free. Below it, the word may have been overwritten.
    // SAFETY: the word lies on the stack of this thread, between its stack pointer and its end, and
    // is aligned, as it was a Cookie.
    sp > at
        || unsafe { &*(at as *const AtomicU64) }.load(Ordering::Relaxed)
            != slot.cookie.load(Ordering::Relaxed)
}

/// Notes that a signal sent to the thread is no longer in its queue, so that the next may be sent.
fn note_arrival(slot: &Slot, request: SignalRequest, wall: u8) {
    match request {
        SignalRequest::Wall => slot.wall_signal.store(wall, Ordering::Relaxed),
        SignalRequest::StackProbe => slot.probe_sent.store(false, Ordering::Relaxed),
        SignalRequest::Trace => slot.trace_sent.store(false, Ordering::Relaxed),
        SignalRequest::Cpu => slot.cpu_sent.store(false, Ordering::Relaxed),
    }
}

/// Maximum time that one run of the handler counts for: the deepest and coldest walk takes half of
/// it. A run that takes longer by the clock has lost the processor, to other threads or to the
/// disk.
const LONGEST_RUN_NS: u64 = 200_000;

/// Runs the part of the handler that is inside the slot's gate (its lock-free ownership word, see
/// `protocol`).
///
/// # Safety
/// `context` is the context of the signal being handled; the caller is inside the slot's gate.
unsafe fn run_inside_gate(
    global: &Global,
    slot: &Slot,
    token: SignalToken,
    tick: Tick,
    context: *const libc::ucontext_t,
    started: u64,
    known: bool,
) {
    note_arrival(slot, token.request, WallSignal::ARRIVED);
    // Any signal answers a requested trace, whatever its own request.
    // SAFETY: the caller's promise.
    unsafe { trace::answer(global, slot, context, started, known) };
    if token.request == SignalRequest::Trace {
        return;
    }
    if token.request == SignalRequest::StackProbe {
        slot.probe_tp.store(thread_pointer(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `Reader::settle_stack_probes`.
        // SAFETY: the caller's promise.
        slot.probe_sp
            .store(unsafe { stack_pointer(context) }, Ordering::Release);
        // Release: pairs with the swap in `Reader::settle_stack_probes`.
        global.answered.store(true, Ordering::Release);
        global.wake();
        return;
    }

    if token.request == SignalRequest::Cpu && skips_tick(slot, tick) {
        return;
    }
    // The weight of this signal is computed first, sample or not.
    let mut weight = settle_weight(global, slot, token.request, tick, started);
    if !weight.wall {
        weight = weight.times(slot.threads.load(Ordering::Relaxed));
        Slot::add(&slot.cpu_reported, weight.value);
    }
    let outcome = if known {
        // SAFETY: the caller's promise; we are inside the gate and the bounds are known.
        unsafe { sample(global, slot, context, started, weight) }
    } else {
        Err(DiscardReason::NoStackBounds)
    };
    match outcome {
        Ok(()) => {
            global.mark_pending(token.index.into());
            let call = &global.call_at_next_sample;
            if call.load(Ordering::Relaxed) && call.swap(false, Ordering::Relaxed) {
                global.wake();
            }
            Slot::add(&slot.samples, 1);
            Slot::add(&slot.intervals, weight.count.into());
            Slot::add(&slot.value_ns, weight.value);
            if weight.wall {
                Slot::add(&slot.wall_samples, 1);
                let wait = global.wait.load(Ordering::Relaxed);
                if wait != 0 {
                    waits::remember(slot, |out, cap| {
                        // SAFETY: the caller's promise; we are inside the gate and the bounds are
                        // known. The block was made with room for `cap` frames of a wait, as `wait`
                        // was there before the first slot; `start` stored a WalkFn in it before it
                        // set RUNNING.
                        unsafe { run_walk(global, slot, context, wait, out, cap) }
                    });
                }
                slot.cpu_after.store(sys::own_cpu_ns(), Ordering::Relaxed);
            }
        }
        Err(reason) => {
            global.discard(reason);
            Slot::add(&slot.lost_ns, weight.value);
        }
    }
    Slot::add(&slot.signals, 1);
    Slot::add(&slot.sent, tick.sent.into());
    let took = sys::monotonic_ns().saturating_sub(started);
    Slot::add(&slot.handler_ns, took.min(LONGEST_RUN_NS));
    // A POSIX timer has the kernel's tick between two signals, longer than any walk.
    if token.request == SignalRequest::Cpu && (tick.sent || event_of(slot, tick).is_some()) {
        let interval = global.interval_ns.load(Ordering::Relaxed).max(1);
        if may_fill(took, interval) {
            // By the thread's own clock, because it may have been preempted.
            let accounted = slot.accounted_cpu.load(Ordering::Relaxed);
            let spent = sys::own_cpu_ns().saturating_sub(accounted);
            let ticks = ticks_to_skip(spent, interval);
            slot.ticks_to_skip.store(ticks, Ordering::Relaxed);
        }
    }
    if token.request == SignalRequest::Wall {
        let interval = global.wall_interval_ns.load(Ordering::Relaxed);
        if may_fill(took, interval) {
            let rest = took.min(LONGEST_RUN_NS);
            let until = started.saturating_add(took).saturating_add(rest);
            slot.wall_rest.store(until, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `Reader::wall_tick`.
        slot.wall_signal.store(WallSignal::NONE, Ordering::Release);
    }
}

/// Whether a walk of this duration leaves the program less than half of an interval.
fn may_fill(took: u64, interval: u64) -> bool {
    took.saturating_mul(2) >= interval
}

/// Returns the number of ticks to skip after a walk that took this much CPU time, so that the
/// program runs for as long, or for an interval. The first of them arrived during the walk and is
/// delivered at once.
fn ticks_to_skip(spent: u64, interval: u64) -> u64 {
    if may_fill(spent, interval) {
        spent / interval + 2
    } else {
        0
    }
}

/// Returns the descriptor of the perf event that sent this tick; `None` for a tick of another kind.
fn event_of(slot: &Slot, tick: Tick) -> Option<i32> {
    let timer = Timer::from_word(slot.timer.load(Ordering::Acquire)); // pairs with `arm_*`
    match timer {
        Some(Timer::Perf(fd)) if !tick.sent => Some(fd),
        _ => None,
    }
}

/// Whether this tick is one of those to skip. The next sample stands for its time too.
///
/// Walks that take as long as an interval would otherwise follow each other without an instruction
/// of the program in between, without end: cold walks, or deep ones, at 10,000 Hz on a loaded
/// machine.
fn skips_tick(slot: &Slot, tick: Tick) -> bool {
    let left = slot.ticks_to_skip.load(Ordering::Relaxed);
    if left == 0 {
        return false;
    }
    match event_of(slot, tick) {
        Some(fd) => engine::go_on(slot, fd, None),
        None if tick.sent => {}
        // The event is being ended: no later tick could stand for this one's time.
        None => return false,
    }
    slot.ticks_to_skip.store(left - 1, Ordering::Relaxed);
    Slot::add(&slot.signals, 1);
    Slot::add(&slot.sent, tick.sent.into());
    true
}

/// The weight of one signal.
#[derive(Clone, Copy)]
pub(crate) struct SampleWeight {
    pub(crate) wall: bool,
    pub(crate) value: u64,
    pub(crate) count: u32,
}

impl SampleWeight {
    /// Returns the same weight for each of this many threads.
    fn times(self, threads: u32) -> SampleWeight {
        SampleWeight {
            wall: self.wall,
            value: self.value.saturating_mul(threads.into()),
            count: self.count.saturating_mul(threads).min(Head::MAX_COUNT),
        }
    }
}

/// Computes the weight of a signal, and restarts the timer.
fn settle_weight(
    global: &Global,
    slot: &Slot,
    request: SignalRequest,
    tick: Tick,
    now: u64,
) -> SampleWeight {
    if request == SignalRequest::Wall {
        let interval = global.wall_interval_ns.load(Ordering::Relaxed).max(1);
        let value = now.saturating_sub(slot.wall_time.swap(now, Ordering::Relaxed));
        let count = value.saturating_add(interval / 2) / interval;
        return SampleWeight {
            wall: true,
            value,
            count: count.clamp(1, Head::MAX_COUNT.into()) as u32,
        };
    }
    let interval = global.interval_ns.load(Ordering::Relaxed).max(1);
    let first = slot.first_tick.swap(false, Ordering::Relaxed);
    let timer = Timer::from_word(slot.timer.load(Ordering::Acquire)); // pairs with `arm_*`
    let weight = |value: u64| SampleWeight {
        wall: false,
        value,
        count: (value.saturating_add(interval / 2) / interval).clamp(1, Head::MAX_COUNT.into())
            as u32,
    };
    match timer {
        // Also while the timer is being ended.
        _ if tick.sent => {
            let cpu = sys::own_cpu_ns();
            let used = cpu.saturating_sub(slot.accounted_cpu.swap(cpu, Ordering::Relaxed));
            // A thread uses an interval on average before its first tick and after its last one. A
            // tick that finds a short thread at all must count it for those that were not found.
            return weight(if first { used.max(interval) } else { used });
        }
        // The event has stopped itself, so a second tick is never under way.
        Some(Timer::Perf(fd)) => {
            let cpu = sys::own_cpu_ns();
            let before = slot.accounted_cpu.swap(cpu, Ordering::Relaxed);
            let value = if first {
                interval // after a random part of one
            } else {
                cpu.saturating_sub(before)
            };
            engine::go_on(slot, fd, first.then_some(interval));
            return weight(value);
        }
        Some(Timer::Posix(_)) if first => {
            let kernel_tick = global.tick_ns.load(Ordering::Relaxed);
            let armed = slot.accounted_cpu.load(Ordering::Relaxed);
            let cpu = sys::own_cpu_ns().saturating_sub(armed);
            if cpu < kernel_tick {
                return weight(engine::first_value(cpu, kernel_tick, interval));
            }
        }
        // None: the timer is being ended, and this was its last tick.
        Some(Timer::Posix(_) | Timer::Clock) | None => {}
    }
    let count = u64::from(tick.overrun.saturating_add(1).min(Head::MAX_COUNT));
    weight(count * interval)
}

/// Walks the stack and writes the record.
///
/// # Safety
/// `context` is the context of the signal being handled; the caller is inside the slot's gate.
unsafe fn sample(
    global: &Global,
    slot: &Slot,
    context: *const libc::ucontext_t,
    now: u64,
    weight: SampleWeight,
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
    if write_record(slot, depth as usize, end, now, weight)? {
        global.wake();
    }
    Ok(())
}

/// Size of the page that may be missing at the low end of a signal stack.
const GUARD: u64 = 4096;

/// Walks the interrupted stack if it is safe.
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
    let (sp, alternate) = unsafe { (stack_pointer(context), alternate_stack(context)) };
    let stack = slot.stack_low.load(Ordering::Relaxed)..slot.stack_high.load(Ordering::Relaxed);
    let word = MaybeUninit::<u64>::uninit();
    let here = word.as_ptr() as u64;
    let place = HandlerFrame {
        here,
        context: context as u64,
        sp,
    };
    if place.is_stale(&alternate) {
        return Err(DiscardReason::StaleContext);
    }
    let needed = global.room_for(slot);
    if stack.contains(&sp) {
        if alternate.contains(&here) {
            // Our own signal: nothing comes on top of it. The lowest page may be a guard page, as
            // in those of the CLR, and is checked where it would matter.
            let room = here.saturating_sub(alternate.start);
            let lowest = alternate.start.next_multiple_of(size_of::<u64>() as u64);
            if room < needed || room < needed + GUARD && !sys::is_readable(lowest) {
                return Err(DiscardReason::StackNearlyFull);
            }
        } else if here.saturating_sub(stack.start) < needed {
            return Err(DiscardReason::StackNearlyFull);
        }
    } else if alternate.contains(&sp) {
        // Its lowest page may be a guard page. Its owner has sized it for other handlers than ours.
        let room = here.saturating_sub(alternate.start);
        if !global.walk_alternate.load(Ordering::Relaxed) || room < GUARD + 2 * needed {
            return Err(DiscardReason::AlternateStack);
        }
    } else {
        // On a coroutine's stack, where our frame was written too unless it is on a stack of its
        // own.
        let is_apart = alternate.contains(&here);
        slot.strayed.fetch_or(!is_apart, Ordering::Relaxed);
        return Err(DiscardReason::OffStack);
    }
    if walk == 0 {
        return Err(DiscardReason::Walker);
    }
    // SAFETY: the caller's promise.
    let walk = unsafe { core::mem::transmute::<usize, WalkFn>(walk) };
    // SAFETY: the context is valid, `scratch` is the slot's own block, which only the handler
    // inside the gate touches; the rest is the caller's promise.
    Ok(unsafe { walk(context, stack.end, slot.scratch(), out, cap) })
}

/// Writes the stack in the buffer that does not hold the last stack. Returns true if the ring
/// buffer became half full.
///
/// The caller is inside the slot's gate and has filled the buffer with `depth` frames.
pub(crate) fn write_record(
    slot: &Slot,
    depth: usize,
    end: u8,
    now: u64,
    weight: SampleWeight,
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
        wall: weight.wall,
        fresh: fresh as u16,
        shared: shared as u16,
        end,
        count: weight.count,
    };
    record.put(0, head.pack());
    record.put(1, now);
    record.put(2, weight.value);
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

/// Returns the thread's alternate stack; empty if it has none.
///
/// # Safety
/// `context` is valid.
unsafe fn alternate_stack(context: *const libc::ucontext_t) -> Range<u64> {
    // SAFETY: the caller's promise; the kernel saves the thread's sigaltstack there.
    let stack = unsafe { (*context).uc_stack };
    if stack.ss_flags & libc::SS_DISABLE != 0 {
        return 0..0;
    }
    let low = stack.ss_sp as u64;
    low..low.saturating_add(stack.ss_size as u64)
}

/// Stack addresses of the handler, of the kernel's signal frame, and of the interrupted code.
struct HandlerFrame {
    here: u64,
    context: u64,
    sp: u64,
}

/// Limit of a signal frame's size. The largest has 12 KiB, with all of x86-64's state.
const LARGEST_FRAME: u64 = 64 * 1024;

impl HandlerFrame {
    /// Whether the kernel cannot have made this frame for the interrupted code just now. The kernel
    /// writes the context below the interrupted stack pointer, or to the top of the alternate
    /// stack, and our frames are below it. A library that holds signals back calls the handler
    /// later with a copy, when the stack that the copy describes is gone.
    fn is_stale(&self, alternate: &Range<u64>) -> bool {
        let top = if alternate.contains(&self.here) && !alternate.contains(&self.sp) {
            alternate.end
        } else {
            self.sp
        };
        !(self.here < self.context && self.context < top && top - self.context <= LARGEST_FRAME)
    }
}

/// Returns the thread control block's address, which is at the upper end of a pthread's stack (with
/// glibc and musl). Reads the first word of the thread's own block; uses no thread-local variable.
fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: on x86-64 the word at fs:0 is the control block's own address (System V ABI,
    // thread-local storage); every thread of a libc has one.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_that_stands_for_threads_has_the_time_and_the_count_of_each() {
        let weight = |value, count| SampleWeight {
            wall: false,
            value,
            count,
        };
        let all = weight(1_500, 2).times(4);
        assert_eq!((all.value, all.count), (6_000, 8));
        let most = weight(u64::MAX, Head::MAX_COUNT).times(2);
        assert_eq!((most.value, most.count), (u64::MAX, Head::MAX_COUNT));
    }

    #[test]
    fn a_context_that_is_not_below_the_interrupted_code_is_stale() {
        let alternate = 0x10_0000..0x10_4000;
        let place = |here, context, sp| HandlerFrame { here, context, sp };
        for (place, is_stale) in [
            // On the same stack, on the alternate one, on that one already.
            (place(0x7000_0000, 0x7000_0200, 0x7000_1000), false),
            (place(0x10_2000, 0x10_2200, 0x7000_1000), false),
            (place(0x10_1000, 0x10_1200, 0x10_2000), false),
            // The stack pointer is below our own frame: that code has returned.
            (place(0x7000_2000, 0x7000_2200, 0x7000_1000), true),
            // A copy elsewhere.
            (place(0x7000_0000, 0x5000_0000, 0x7000_1000), true),
            (place(0x7000_0000, 0x7100_0000, 0x7000_1000), true),
            (place(0x6f00_0000, 0x6f00_0200, 0x7000_1000), true),
        ] {
            assert_eq!(place.is_stale(&alternate), is_stale, "{:#x}", place.sp);
        }
    }

    #[test]
    fn a_walk_that_fills_its_interval_lets_as_many_ticks_pass() {
        assert_eq!(ticks_to_skip(499, 1_000), 0);
        // The tick that arrived during the walk, and one for the program.
        assert_eq!(ticks_to_skip(500, 1_000), 2);
        assert_eq!(ticks_to_skip(2_500, 1_000), 4);
    }
}
