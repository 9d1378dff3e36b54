//! Counts a CLR's callbacks by kind and estimates their CPU time on the program's threads.
//!
//! Each call is counted, and about one in 61 is timed. Long calls are timed with the CPU clock of
//! their thread, so that time spent waiting for a lock or a processor is not counted. Reading that
//! clock is a system call, which slows the code after it. Short calls are therefore timed with the
//! monotonic clock.
//!
//! Invariant: a call that is not timed costs one relaxed addition, on a cache line that few threads
//! share. It takes no lock and allocates nothing.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// Kinds of callbacks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CallbackKind {
    /// Start and end of the CLR, mainly `Initialize`.
    Life = 0,
    /// Loads and unloads of modules, assemblies, classes and application domains.
    Loads = 1,
    /// Compilation of a method and unloading of its code.
    Jit = 2,
    /// Start and end of threads.
    Threads = 3,
    /// Stages of an exception.
    Exceptions = 4,
    /// Suspensions and garbage collections.
    Collections = 5,
    /// Allocations of objects.
    Allocations = 6,
    /// Delivery of EventPipe events.
    Tracing = 7,
    /// All others.
    Others = 8,
}

impl CallbackKind {
    /// Number of kinds.
    pub const COUNT: usize = 9;

    /// All kinds, by number.
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

    /// The kind of the callback with this name, in snake case.
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
    /// Number of calls.
    pub count: u64,
    /// Estimated CPU time in nanoseconds: each timed call stands for the calls around it.
    pub cpu_ns: u64,
}

/// Number of first calls that are all timed, because some kinds are rare and long.
const ALL_TIMED: u64 = 8;
/// After that, one call in each group of this size is timed, at a varying position, because kinds
/// of calls alternate, such as start and end.
const ONE_OF: u64 = 61;

/// Number of counters per kind, over which threads are spread.
const STRIPES: usize = 8;

/// Counts of one kind for some of the threads, on its own cache line.
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
    /// Runs a callback and counts it.
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
        // Each of the two clocks gets half of the timed calls, and counts some of these.
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
    /// One of the first: it stands only for itself.
    First,
    /// By the monotonic clock; counts if the call is short.
    ByTheWall,
    /// By the thread's CPU clock; counts if the call is not short.
    ByOwnTime,
}

/// How the call with this number is timed; `None` if it is not. Call and clock are chosen
/// pseudo-randomly, and identically in each run. If the clocks alternated, one could time all
/// starts and the other all ends.
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

/// A call that is shorter than this by the monotonic clock has hardly waited for a lock or a
/// processor.
const SHORT_NS: u64 = 20_000;

/// A call is rare if it takes this long and [`RARE_TIMES`] times the mean of its kind. Causes are a
/// table that grew, or another virtual machine on the processor, which the thread's clock does not
/// subtract.
const RARE_NS: u64 = 1_000_000;
const RARE_TIMES: u64 = 32;

/// Number of calls for which a timed call of `took` stands, if calls of its kind took `mean` so
/// far. A rare call stands only for itself: multiplied by 122 it would be half of a short program.
fn stands_for(took: u64, mean: u64) -> u64 {
    let is_rare = took >= RARE_NS && took / RARE_TIMES >= mean;
    if is_rare { 1 } else { 2 * ONE_OF }
}

/// Runs a call; returns its time by the monotonic clock, 0 if it was not short. This clock is read
/// without a system call. After a system call the code runs slower, by half on some machines.
fn by_the_wall<R>(callback: impl FnOnce() -> R) -> (u64, R) {
    let started = now_ns(libc::CLOCK_MONOTONIC);
    let answer = callback();
    let took = now_ns(libc::CLOCK_MONOTONIC).saturating_sub(started);
    (if took < SHORT_NS { took } else { 0 }, answer)
}

/// Runs a call; returns its CPU time, 0 if it was shorter than `at_least` by the monotonic clock.
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

/// The calling thread's counter index, from its stack address: stacks are megabytes apart.
fn stripe() -> usize {
    let here = 0u8;
    let stack = (&raw const here).addr() as u64 >> 20;
    (stack.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as usize
}

/// Time between two readings of the CPU clock: a system call, which takes half as long as a
/// callback on some machines.
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

    /// If several calls alternate, both clocks time each of them equally often.
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
            // 100 is the exact share.
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
            // Other calls take as long.
            (20_000 * US, 1_500 * US, 122),
            (1_000 * US, 32 * US, 122),
            // Below `RARE_NS`.
            (999 * US, 2 * US, 122),
            (21 * US, 2 * US, 122),
        ] {
            assert_eq!(stands_for(took, mean), times, "{took} beside {mean}");
        }
        // A kind without calls so far.
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
        // No upper bound: an interrupt in a timed call counts 61 times.
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
            // On a shared machine some calls lose the processor; the other clock counts these.
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
