//! How many callbacks a CLR has made, by kind, and what CPU time they took on the program's threads.
//!
//! Each call is counted, one in some is timed, by the CPU clock of its thread: a callback that waits for a
//! lock of the runtime, or loses the processor, costs nothing then. The invariant: a call that is not timed
//! costs one relaxed addition, on a cache line that few threads share; no lock, no allocation.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// What callbacks are about.
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
/// ... and then one of so many. It has no divisor in common with the ways in which callbacks take
/// turns, such as start and end.
const ONE_OF: u64 = 61;

/// Threads are spread over so many counters of each kind.
const STRIPES: usize = 8;

/// What is counted of one kind by some of the threads, on a cache line of its own.
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
        let Some(stands_for) = stands_for(before) else {
            return callback();
        };
        let reading = reading_ns();
        let started = own_cpu_ns();
        let answer = callback();
        let took = own_cpu_ns().saturating_sub(started);
        let took = took.saturating_sub(reading);
        cell.cpu_ns
            .fetch_add(took.saturating_mul(stands_for), Ordering::Relaxed);
        answer
    }

    /// What was counted so far, in the order of [`CallbackKind::ALL`].
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

/// How many calls the one with this number stands for; `None`: it is not timed.
fn stands_for(number: u64) -> Option<u64> {
    match number {
        0..ALL_TIMED => Some(1),
        _ if number.is_multiple_of(ONE_OF) => Some(ONE_OF),
        _ => None,
    }
}

/// Where the calling thread counts, by the place of its stack: stacks are megabytes apart.
fn stripe() -> usize {
    let here = 0u8;
    let stack = (&raw const here).addr() as u64 >> 20;
    (stack.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as usize
}

/// What is measured of nothing: the clock is a system call, and half a callback long on some machines.
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
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid out-pointer; a thread's own clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
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

    #[test]
    fn each_call_is_counted_and_the_timed_ones_stand_for_all() {
        const CALLS: u64 = 2_000;
        const EACH: u64 = 20_000;
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
        assert!(share > 0.8, "{share}");
        let stood_for: u64 = (0..CALLS).filter_map(stands_for).sum();
        assert!(stood_for.abs_diff(CALLS) <= ONE_OF, "{stood_for}");
        assert_eq!(sum(&meter, CallbackKind::Loads), Calls::default());
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
