//! Probes: functions that traced methods call at their start, return and exceptional exit.
//!
//! State machines of async methods also call them at their completion. A probe counts and times
//! calls. A traced method calls it as a P/Invoke, so it runs on the program's thread in preemptive
//! mode; the method's number is a constant in the code. The number is unique in the process, also
//! with several CLRs. Invariants: counting takes no lock, allocates nothing, and makes no call into
//! the CLR, nor into the kernel if the processor's own clock can be used. No panic leaves a probe.
//! A call that began before the session is not counted.

use std::arch::x86_64::{__cpuid, __get_cpuid_max, __rdtscp};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};

use super::pending::{Pending, ReturnOutcome};
use super::table::{self, Method, NEVER};
use crate::base::processor::Processor;
use crate::events::Events;
use crate::hooks::Clock;
use crate::program::Program;

/// The targets of slow calls, and the clocks.
struct TraceGlobals {
    program: &'static Program,
    events: &'static Events,
    clock: Clock,
    processor: Option<Processor>,
    /// Whether the processor has rdtscp, which reads its number with its clock and takes twice as
    /// long as rdtsc.
    has_rdtscp: bool,
    /// Calls of async methods that have not ended.
    pending: Pending,
}

/// Set once, before the first method is requested.
static GLOBALS: AtomicPtr<TraceGlobals> = AtomicPtr::new(std::ptr::null_mut());
/// Ticks at which the session began; 0 without a session.
static SESSION_START: AtomicU64 = AtomicU64::new(0);
/// Ticks at which the running or last session began.
static LAST_SESSION_START: AtomicU64 = AtomicU64::new(0);
/// Cost of the probes of a call, measured at the start of the session; picoseconds.
static COST_PS: AtomicU64 = AtomicU64::new(0);
/// Additional cost of the two calls to the probes, picoseconds. Only managed code can measure it
/// (`cargo xtask bench --only traced`: calls "as any native function").
const CALLS_PS: u64 = 8_000;
/// Nanoseconds per 2^32 ticks.
static RATE: AtomicU64 = AtomicU64::new(1 << 32);

fn globals() -> Option<&'static TraceGlobals> {
    let globals = GLOBALS.load(Acquire); // pairs with `begin`
    // SAFETY: null, or what `begin` has leaked.
    unsafe { globals.as_ref() }
}

/// Begins a session that traces. Agent thread, or before it exists.
pub(super) fn begin(program: &'static Program, events: &'static Events) {
    if GLOBALS.load(Relaxed).is_null() {
        let made = Box::into_raw(Box::new(TraceGlobals {
            program,
            events,
            clock: Clock::new(),
            processor: Processor::find(),
            has_rdtscp: has_rdtscp(),
            pending: Pending::new(),
        }));
        GLOBALS.store(made, Release); // pairs with `globals`
    }
    adjust();
    if let Some(globals) = globals() {
        // Drops calls entered while the last session ended.
        globals.pending.clear(0);
        table::take_open();
        COST_PS.store(globals.cost_ps() + CALLS_PS, Relaxed);
        let now = globals.clock.now().max(1);
        LAST_SESSION_START.store(now, Relaxed);
        SESSION_START.store(now, Release);
    }
}

/// Takes the number of unfinished calls of the session by method, and the number of calls for which
/// there was no room. Also after [`end`].
pub(super) fn not_ended() -> (BTreeMap<i32, u64>, u64) {
    let since = LAST_SESSION_START.load(Relaxed);
    let Some(globals) = globals() else {
        return Default::default();
    };
    let (mut open, no_room) = globals.pending.clear(since);
    for (number, count) in table::take_open() {
        *open.entry(number).or_default() += count;
    }
    (open, no_room)
}

/// Returns the approximate cost of the probes of a call; picoseconds.
pub(super) fn cost_ps() -> u64 {
    COST_PS.load(Relaxed)
}

/// Ends the session: nothing is counted from here on.
pub(super) fn end() {
    SESSION_START.store(0, Release);
}

/// Calibrates ticks to nanoseconds over all the time so far. The first calibration takes a
/// millisecond.
pub(super) fn adjust() {
    const SCALE: u64 = 1 << 32;
    if let Some(globals) = globals() {
        globals.clock.has_run_for(1_000_000);
        RATE.store(globals.clock.rate().ns(SCALE), Relaxed);
    }
}

/// Name of the clock, for reports.
pub(super) fn source() -> &'static str {
    match globals().is_some_and(|globals| globals.clock.is_tsc()) {
        true => "probes in methods' code, timed by the time stamp counter",
        false => "probes in methods' code, timed by CLOCK_MONOTONIC",
    }
}

fn nanoseconds(ticks: u64) -> u64 {
    let ns = (u128::from(ticks) * u128::from(RATE.load(Relaxed))) >> 32;
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Whether there is the instruction (CPUID 8000_0001h, EDX bit 27).
fn has_rdtscp() -> bool {
    const LEAF: u32 = 0x8000_0001;
    let (highest, _) = __get_cpuid_max(0x8000_0000);
    highest >= LEAF && __cpuid(LEAF).edx & (1 << 27) != 0
}

impl TraceGlobals {
    /// Returns the time and the number of the processor. The number is arbitrary if it cannot be
    /// read.
    #[inline]
    fn now(&self) -> (u64, u32) {
        if let Some(processor) = self.processor {
            return (self.clock.now(), processor.now());
        }
        if self.has_rdtscp && self.clock.is_tsc() {
            let mut processor = 0;
            // SAFETY: the processor has the instruction, and the counter is a clock; it writes the
            // number that Linux has set for this processor.
            let ticks = unsafe { __rdtscp(&raw mut processor) };
            // Above the lowest twelve bits is the memory node.
            return (ticks, processor & 0xfff);
        }
        (self.clock.now(), 0)
    }
}

impl TraceGlobals {
    /// Measures the minimum cost of counting a call, as other threads use the processor too.
    fn cost_ps(&'static self) -> u64 {
        const ROUNDS: u64 = 8;
        const CALLS: u64 = 256;
        let Some(method) = table::unlisted() else {
            return 0;
        };
        let round = |_| {
            let began = self.clock.now();
            for _ in 0..CALLS {
                let began = self.clock.now();
                let (now, processor) = self.now();
                count(self, method, processor, now.saturating_sub(began), false);
            }
            nanoseconds(self.clock.now().saturating_sub(began))
        };
        (0..ROUNDS).map(round).min().unwrap_or(0) * 1_000 / CALLS
    }
}

/// The enter probe. Returns the start of the call, which the other probes get; 0 for a call that is
/// not counted.
pub(super) extern "C" fn enter(_method: i32) -> i64 {
    if SESSION_START.load(Relaxed) == 0 {
        return 0;
    }
    globals().map_or(0, |globals| globals.clock.now().cast_signed())
}

/// The leave probe.
pub(super) extern "C" fn leave(began: i64, method: i32) {
    ended(began.cast_unsigned(), method, false, false);
}

/// The fault probe, called when an exception leaves the method.
pub(super) extern "C" fn fault(began: i64, method: i32) {
    ended(began.cast_unsigned(), method, true, false);
}

/// The enter probe of a method compiled with runtime async, which may be suspended before it ends.
pub(super) extern "C" fn enter_async(number: i32) -> i64 {
    let began = enter(number);
    if let Some((method, globals)) = counts(began.cast_unsigned(), number) {
        method.has_begun(globals.now().1);
    }
    began
}

/// The leave probe of such a method, on any thread.
pub(super) extern "C" fn leave_async(began: i64, method: i32) {
    ended(began.cast_unsigned(), method, false, true);
}

/// The fault probe of such a method.
pub(super) extern "C" fn fault_async(began: i64, method: i32) {
    ended(began.cast_unsigned(), method, true, true);
}

/// Replaces the leave probe if a method returns a completed task.
pub(super) extern "C" fn leave_completed(began: i64, is_success: i32, method: i32) {
    ended(began.cast_unsigned(), method, is_success == 0, false);
}

/// Replaces the leave probe if a method returns a task that has not completed.
pub(super) extern "C" fn leave_pending(began: i64, task: i32, number: i32) {
    let began = began.cast_unsigned();
    let Some((method, globals)) = counts(began, number) else {
        return;
    };
    if let ReturnOutcome::Completed(ended, is_error) = globals.pending.returned(number, task, began)
    {
        let (_, processor) = globals.now();
        count(
            globals,
            method,
            processor,
            ended.saturating_sub(began),
            is_error,
        );
    }
}

/// Called by a state machine that is about to complete a task that its method has returned.
pub(super) extern "C" fn completes(task: i32, is_error: i32, number: i32) {
    // The call belongs to the session if it began in the session.
    let session = SESSION_START.load(Acquire);
    let Some((method, globals)) = counts(session, number) else {
        return;
    };
    let (now, processor) = globals.now();
    let is_error = is_error != 0;
    let began = globals.pending.completed(number, task, now, is_error);
    if let Some(began) = began.filter(|began| *began >= session) {
        count(
            globals,
            method,
            processor,
            now.saturating_sub(began),
            is_error,
        );
    }
}

/// Returns the method for which a call that began at `began` is counted, or `None` if it is not
/// counted.
#[inline]
fn counts(began: u64, number: i32) -> Option<(&'static Method, &'static TraceGlobals)> {
    let session = SESSION_START.load(Acquire);
    if began == 0 || session == 0 || began < session {
        return None;
    }
    let (method, globals) = (table::method(number)?, globals()?);
    (method.min_ns.load(Relaxed) != NEVER).then_some((method, globals))
}

/// Counts the end of a call. If it was counted as open, it no longer is.
#[inline(always)]
fn ended(began: u64, number: i32, is_error: bool, was_open: bool) {
    if let Some((method, globals)) = counts(began, number) {
        let (now, processor) = globals.now();
        if was_open {
            method.has_ended(processor);
        }
        count(
            globals,
            method,
            processor,
            now.saturating_sub(began),
            is_error,
        );
    }
}

#[inline(always)]
fn count(
    globals: &'static TraceGlobals,
    method: &'static Method,
    processor: u32,
    ticks: u64,
    is_error: bool,
) {
    let ns = nanoseconds(ticks);
    let min_ns = method.min_ns.load(Relaxed);
    method.count(processor, ns, is_error);
    if ns >= min_ns {
        keep_if_slowest(globals, method, processor, ns, is_error, min_ns);
    }
}

#[inline]
fn keep_if_slowest(
    globals: &'static TraceGlobals,
    method: &'static Method,
    processor: u32,
    ns: u64,
    is_error: bool,
    min_ns: u64,
) {
    if globals.events.may_keep_call_of(ns) {
        push_slow_call(globals, method, ns, is_error);
    } else if min_ns > 0 {
        // If all calls are slow, the skipped ones follow from the difference.
        method.pass(processor, ns);
    }
}

#[cold]
#[inline(never)]
fn push_slow_call(
    globals: &'static TraceGlobals,
    method: &'static Method,
    ns: u64,
    is_error: bool,
) {
    method.offered.fetch_add(1, Relaxed);
    method.offered_ns.fetch_add(ns, Relaxed);
    let kept = catch_unwind(AssertUnwindSafe(|| {
        globals
            .events
            .call_ended(globals.program, &method.name, ns, is_error);
    }));
    if let Err(panic) = kept {
        // Dropping a panic's payload may panic again.
        std::mem::forget(panic);
    }
}
