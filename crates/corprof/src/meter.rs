//! How many callbacks a CLR has made, by kind, and what CPU time they took on the program's
//! threads.
//!
//! Each call is counted, one in some is timed. A callback that waits for a lock of the runtime, or
//! loses the processor, costs nothing then, so long ones are timed by the CPU clock of their
//! thread. That is a system call, which makes what comes after it slower; so short ones are timed
//! by the clock on the wall. The invariant: a call that is not timed costs one relaxed addition, on
//! a cache line that few threads share; no lock, no allocation.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// Kinds of callbacks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CallbackKind {
    /// The CLR starts or ends, `Initialize` most of all.
    Life = 0,
    /// Modules, assemblies, classes and application domains come and go.
    Loads = 1,
    /// A method is compiled, or its code goes.
    Jit = 2,
    /// Threads come and go.
    Threads = 3,
    /// An exception is on its way.
    Exceptions = 4,
    /// The runtime stops, collects, and goes on.
    Collections = 5,
    /// Objects are made.
    Allocations = 6,
    /// An event of the runtime's own tracing is delivered.
    Tracing = 7,
    /// All others.
    Others = 8,
}

impl CallbackKind {
    /// How many there are.
    pub const COUNT: usize = 9;

    /// All, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Life,
        Self::Loads,
        Self::Jit,
        Self::Threads,
        Self::Exceptions,
        Self::Collections,
        Self::Allocations,
        Self::Tracing,
        Self::Others,
    ];

    /// The name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Life => "start and end",
            Self::Loads => "loads",
            Self::Jit => "compilation",
            Self::Threads => "threads",
            Self::Exceptions => "exceptions",
            Self::Collections => "collections",
            Self::Allocations => "allocations",
            Self::Tracing => "tracing events",
            Self::Others => "others",
        }
    }

    /// Of the callback with this name, in snake case.
    pub(crate) const fn of(callback: &str) -> Self {
        const BY_WORD: [(&str, CallbackKind); 24] = [
            ("initialize", CallbackKind::Life),
            ("shutdown", CallbackKind::Life),
            ("profiler_", CallbackKind::Life),
            ("module_", CallbackKind::Loads),
            ("assembly_", CallbackKind::Loads),
            ("get_assembly", CallbackKind::Loads),
            ("class_", CallbackKind::Loads),
            ("app_domain_", CallbackKind::Loads),
            ("jit_", CallbackKind::Jit),
            ("rejit_", CallbackKind::Jit),
            ("get_rejit", CallbackKind::Jit),
            ("dynamic_method_", CallbackKind::Jit),
            ("function_unload", CallbackKind::Jit),
            ("thread_", CallbackKind::Threads),
            ("exception_", CallbackKind::Exceptions),
            ("runtime_", CallbackKind::Collections),
            ("garbage_", CallbackKind::Collections),
            ("moved_", CallbackKind::Collections),
            ("surviving_", CallbackKind::Collections),
            ("root_", CallbackKind::Collections),
            ("object_references", CallbackKind::Collections),
            ("object_allocated", CallbackKind::Allocations),
            ("objects_allocated", CallbackKind::Allocations),
            ("event_pipe_", CallbackKind::Tracing),
        ];
        let mut at = 0;
        while at < BY_WORD.len() {
            if begins(callback.as_bytes(), BY_WORD[at].0.as_bytes()) {
                return BY_WORD[at].1;
            }
            at += 1;
        }
        Self::Others
    }
}

const fn begins(text: &[u8], with: &[u8]) -> bool {
    let mut at = 0;
    while at < with.len() {
        if at >= text.len() || text[at] != with[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// Callbacks of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Calls {
    /// How many there were.
    pub count: u64,
    /// CPU time that they took, nanoseconds: that of the timed ones, each for those around it.
    pub cpu_ns: u64,
}

/// The first ones are all timed, since some kinds come seldom and are long ...
const ALL_TIMED: u64 = 8;
/// ... and then one of so many: at any place among these, as callbacks take turns, such as start
/// and end.
const ONE_OF: u64 = 61;

/// Threads are spread over so many counters of each kind.
const STRIPES: usize = 8;

/// Counts of one kind by some of the threads, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    count: AtomicU64,
    cpu_ns: AtomicU64,
}

/// The counters of one CLR.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    stripes: [[Cell; CallbackKind::COUNT]; STRIPES],
}

impl Meter {
    /// Runs a callback, and counts it.
    pub(crate) fn run<R>(&self, kind: CallbackKind, callback: impl FnOnce() -> R) -> R {
        let stripe = stripe();
        let Some(cell) = self
            .stripes
            .get(stripe)
            .and_then(|cells| cells.get(kind as usize))
        else {
            return callback();
        };
        let before = cell.count.fetch_add(1, Ordering::Relaxed);
        let Some(timed) = timed(before) else {
            return callback();
        };
        // Each of the two ways sees half of the timed calls and counts a part of them.
        let ((took, answer), stands_for) = match timed {
            Timed::First => (by_own_time(callback, 0), 1),
            Timed::ByTheWall => (by_the_wall(callback), 2 * ONE_OF),
            Timed::ByOwnTime => {
                let (took, answer) = by_own_time(callback, SHORT_NS);
                let mean = cell.cpu_ns.load(Ordering::Relaxed) / before.max(1);
                ((took, answer), stands_for(took, mean))
            }
        };
        cell.cpu_ns
            .fetch_add(took.saturating_mul(stands_for), Ordering::Relaxed);
        answer
    }

    /// The counts so far, in the order of [`CallbackKind::ALL`].
    pub(crate) fn calls(&self) -> [Calls; CallbackKind::COUNT] {
        let mut all = [Calls::default(); CallbackKind::COUNT];
        for cells in &self.stripes {
            for (sum, cell) in all.iter_mut().zip(cells) {
                sum.count += cell.count.load(Ordering::Relaxed);
                sum.cpu_ns += cell.cpu_ns.load(Ordering::Relaxed);
            }
        }
        all
    }
}

/// How a call is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Timed {
    /// One of the first, for itself.
    First,
    /// Counts if it is short.
    ByTheWall,
    /// Counts if it is not.
    ByOwnTime,
}

/// How the call with this number is timed; `None`: it is not. Which one and which way is by chance
/// (and the same each time): where the ways took turns as well, one of them would see all starts
/// and the other all ends.
fn timed(number: u64) -> Option<Timed> {
    if number < ALL_TIMED {
        return Some(Timed::First);
    }
    let chance = (number / ONE_OF).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let is_it = number % ONE_OF == (chance >> 1) % ONE_OF;
    is_it.then_some(match chance & 1 {
        0 => Timed::ByTheWall,
        _ => Timed::ByOwnTime,
    })
}

/// A call that is shorter by the clock on the wall has neither waited nor lost the processor for
/// long.
const SHORT_NS: u64 = 20_000;

/// A call that takes a millisecond, and so many times as long as others of its kind, met something
/// that the others have not: another machine had the processor, which the thread's clock does not
/// know, or a table grew.
const RARE_NS: u64 = 1_000_000;
const RARE_TIMES: u64 = 32;

/// For how many calls a timed one of `took` stands, where calls of its kind took `mean` so far. One
/// that is rare is counted for itself: for 122 it would be half of a short program.
fn stands_for(took: u64, mean: u64) -> u64 {
    let is_rare = took >= RARE_NS && took / RARE_TIMES >= mean;
    if is_rare { 1 } else { 2 * ONE_OF }
}

/// Runs a call: what it took by the wall, 0 if it was not short. This clock is read without a
/// system call; behind one all that a call does is slower, by half on some machines.
fn by_the_wall<R>(callback: impl FnOnce() -> R) -> (u64, R) {
    let started = now_ns(libc::CLOCK_MONOTONIC);
    let answer = callback();
    let took = now_ns(libc::CLOCK_MONOTONIC).saturating_sub(started);
    (if took < SHORT_NS { took } else { 0 }, answer)
}

/// Runs a call: what it took of a processor, 0 if it was shorter than `at_least` by the wall.
fn by_own_time<R>(callback: impl FnOnce() -> R, at_least: u64) -> (u64, R) {
    let reading = reading_ns();
    let own = own_cpu_ns();
    let started = now_ns(libc::CLOCK_MONOTONIC);
    let answer = callback();
    let on_the_wall = now_ns(libc::CLOCK_MONOTONIC).saturating_sub(started);
    let took = own_cpu_ns().saturating_sub(own).saturating_sub(reading);
    let took = took.min(on_the_wall);
    (if on_the_wall < at_least { 0 } else { took }, answer)
}

/// Where the calling thread counts, by the place of its stack: stacks are megabytes apart.
fn stripe() -> usize {
    let here = 0u8;
    let stack = (&raw const here).addr() as u64 >> 20;
    (stack.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as usize
}

/// Time between two readings of the clock: it is a system call, half a callback long on some
/// machines.
fn reading_ns() -> u64 {
    static READING: OnceLock<u64> = OnceLock::new();
    *READING.get_or_init(|| {
        let read = |_| {
            let before = own_cpu_ns();
            own_cpu_ns().saturating_sub(before)
        };
        (0..16).map(read).min().unwrap_or(0)
    })
}

/// CPU time of the calling thread.
fn own_cpu_ns() -> u64 {
    now_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid out-pointer; a thread's own clock and the monotonic one are always there.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burn(ns: u64) {
        let until = own_cpu_ns() + ns;
        while own_cpu_ns() < until {}
    }

    fn sum(meter: &Meter, kind: CallbackKind) -> Calls {
        meter.calls()[kind as usize]
    }

    #[test]
    fn kinds_are_known_by_the_callbacks_names() {
        for (callback, kind) in [
            ("jit_compilation_started", CallbackKind::Jit),
            ("dynamic_method_unloaded", CallbackKind::Jit),
            ("exception_thrown", CallbackKind::Exceptions),
            ("module_load_finished", CallbackKind::Loads),
            ("initialize_for_attach", CallbackKind::Life),
            ("object_references", CallbackKind::Collections),
            ("object_allocated", CallbackKind::Allocations),
            ("com_classic_vtable_created", CallbackKind::Others),
        ] {
            assert_eq!(CallbackKind::of(callback), kind, "{callback}");
        }
    }

    /// Calls that take turns, however many there are of each: both ways see each of them as often.
    #[test]
    fn calls_that_take_turns_are_timed_alike() {
        for turns in [2, 3, 4, 8, 61, 122] {
            let mut seen = vec![[0_u32; 2]; turns];
            let all = 122 * 100 * turns as u64;
            for number in ALL_TIMED..all {
                let seen = &mut seen[number as usize % turns];
                match timed(number) {
                    Some(Timed::ByTheWall) => seen[0] += 1,
                    Some(Timed::ByOwnTime) => seen[1] += 1,
                    _ => {}
                }
            }
            // 100 are right.
            for seen in seen.iter().flatten() {
                assert!((60..=140).contains(seen), "{turns}: {seen}");
            }
        }
    }

    #[test]
    fn a_call_that_lost_the_processor_to_another_machine_stands_for_itself() {
        const US: u64 = 1_000;
        for (took, mean, times) in [
            (20_000 * US, 2 * US, 1),
            (1_000 * US, 31 * US, 1),
            // Others take as long.
            (20_000 * US, 1_500 * US, 122),
            (1_000 * US, 32 * US, 122),
            // Long, and no more than that.
            (999 * US, 2 * US, 122),
            (21 * US, 2 * US, 122),
        ] {
            assert_eq!(stands_for(took, mean), times, "{took} beside {mean}");
        }
        // And a kind of which nothing is known yet.
        assert_eq!(stands_for(RARE_NS, 0), 1);
    }

    #[test]
    fn each_call_is_counted_and_the_timed_ones_stand_for_all() {
        const CALLS: u64 = 20_000;
        const EACH: u64 = SHORT_NS / 4;
        let meter = Meter::default();
        let before = own_cpu_ns();
        for _ in 0..CALLS {
            meter.run(CallbackKind::Jit, || burn(EACH));
        }
        let all = own_cpu_ns() - before;
        let jit = sum(&meter, CallbackKind::Jit);
        assert_eq!(jit.count, CALLS);
        // Not held from above: an interrupt in a timed one counts for 61.
        let share = jit.cpu_ns as f64 / all as f64;
        assert!(share > 0.7, "{share}");
        let timed = |how| {
            (0..CALLS)
                .filter(|number| timed(*number) == Some(how))
                .count() as u64
        };
        for how in [Timed::ByTheWall, Timed::ByOwnTime] {
            let stand_for = timed(how) * 2 * ONE_OF;
            assert!(
                stand_for.abs_diff(CALLS) <= 2 * ONE_OF,
                "{how:?}: {stand_for}"
            );
        }
        assert_eq!(timed(Timed::First), ALL_TIMED);
        assert_eq!(sum(&meter, CallbackKind::Loads), Calls::default());
    }

    #[test]
    fn long_calls_count_as_short_ones_do() {
        for each in [SHORT_NS / 10, SHORT_NS * 5] {
            let meter = Meter::default();
            let before = own_cpu_ns();
            let calls = 40 * 2 * ONE_OF;
            for _ in 0..calls {
                meter.run(CallbackKind::Jit, || burn(each));
            }
            let all = own_cpu_ns() - before;
            let share = sum(&meter, CallbackKind::Jit).cpu_ns as f64 / all as f64;
            // A machine that others use takes the processor away from some: these count by the
            // other way.
            assert!(share > 0.7, "{share} of calls of {each} ns");
        }
    }

    #[test]
    fn what_waits_costs_nothing_and_the_clock_is_not_in_it() {
        let meter = Meter::default();
        for _ in 0..ALL_TIMED {
            meter.run(CallbackKind::Threads, || {
                std::thread::sleep(core::time::Duration::from_millis(5));
            });
            meter.run(CallbackKind::Loads, || {});
        }
        let waits = sum(&meter, CallbackKind::Threads);
        assert!(waits.cpu_ns < 5_000_000, "{} ns of 40 ms", waits.cpu_ns);
        let nothing = sum(&meter, CallbackKind::Loads).cpu_ns / ALL_TIMED;
        assert!(nothing <= 2 * reading_ns(), "{nothing} ns");
    }

    #[test]
    fn threads_count_together() {
        let meter = Meter::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        meter.run(CallbackKind::Allocations, || {});
                    }
                });
            }
        });
        assert_eq!(sum(&meter, CallbackKind::Allocations).count, 40_000);
    }
}
