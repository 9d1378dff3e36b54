//! Heap gate: keeps the signal handler from reading heap objects while the collector moves them.
//!
//! The collector moves objects only between `RuntimeSuspendStarted` and `RuntimeResumeStarted`. A
//! handler that reads the heap first increments the number of readers, then checks whether the gate
//! is closed. The callback closes the gate and waits until no reader is inside, as the collector
//! waits for any thread that runs managed code. The handler never waits.
//!
//! Invariants: a read inside the gate is before or after all moving, never during it. The callback
//! waits for a bounded time. A reader that does not leave in that time (the program jumped out of a
//! handler that had interrupted the agent's) breaks the gate, which then stays closed for good. A
//! reader that was only late detects that before its next read.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Number of checks without yielding the processor: a reader takes some microseconds.
const SPINS: u32 = 2000;
/// Number of checks that yield the processor.
const YIELDS: u32 = 200;
/// Number of checks with a sleep between them. Counted, not timed, so that a process that is
/// stopped meanwhile still makes all of them.
const SLEEPS: u32 = 2000;
const SLEEP: Duration = Duration::from_micros(500);

/// One runtime's gate.
#[derive(Debug)]
pub struct HeapGate {
    closed: AtomicBool,
    /// Whether the callbacks that close and open it are enabled.
    watched: AtomicBool,
    broken: AtomicBool,
    readers: AtomicU32,
    /// Number of closings, and total time waited for readers.
    closings: AtomicU64,
    waits: AtomicU64,
}

impl HeapGate {
    /// Returns a closed gate, as nothing is known of the runtime yet.
    pub const fn new() -> HeapGate {
        HeapGate {
            closed: AtomicBool::new(true),
            watched: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            readers: AtomicU32::new(0),
            closings: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    /// Enters the gate as a reader. Returns `false` if it is closed. After `true` call
    /// [`HeapGate::leave`]. Async-signal-safe.
    pub fn enter(&self) -> bool {
        // SeqCst, as the store and the load of `close`: at least one of the two sides sees the
        // other.
        self.readers.fetch_add(1, Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            self.leave();
            return false;
        }
        true
    }

    /// Leaves the gate, for a reader, or for one that is known not to return. Async-signal-safe.
    pub fn leave(&self) {
        // Release: the reads happen before `close` sees the new count.
        self.readers.fetch_sub(1, Ordering::Release);
    }

    /// Whether a reader inside may continue. Async-signal-safe.
    pub fn holds(&self) -> bool {
        !self.broken.load(Ordering::Relaxed)
    }

    /// Closes the gate, as the runtime is about to stop: when this returns no handler reads. In the
    /// callback.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.closings.fetch_add(1, Ordering::Relaxed);
        let is_empty = || self.readers.load(Ordering::SeqCst) == 0;
        if self.broken.load(Ordering::Relaxed) || is_empty() {
            return;
        }
        self.waits.fetch_add(1, Ordering::Relaxed);
        for look in 0..SPINS + YIELDS + SLEEPS {
            if is_empty() {
                return;
            }
            match look {
                0..SPINS => std::hint::spin_loop(),
                _ if look < SPINS + YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(SLEEP),
            }
        }
        self.broken.store(true, Ordering::SeqCst);
    }

    /// Opens the gate as the runtime resumes. In the callback.
    pub fn open(&self) {
        if self.watched.load(Ordering::SeqCst) && !self.broken.load(Ordering::Relaxed) {
            self.closed.store(false, Ordering::SeqCst);
            // Between the two, another thread may have turned off the callbacks.
            if !self.watched.load(Ordering::SeqCst) {
                self.closed.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Notes that suspension callbacks are enabled. The present state of the runtime is unknown, so
    /// the gate stays closed until the runtime has resumed once.
    pub fn watch(&self) {
        if self.readers.load(Ordering::SeqCst) == 0 {
            self.broken.store(false, Ordering::Relaxed);
        }
        self.watched.store(true, Ordering::SeqCst);
    }

    /// Closes the gate until [`HeapGate::watch`], as the runtime has ended or its callbacks are
    /// off.
    pub fn close_for_good(&self) {
        self.watched.store(false, Ordering::SeqCst);
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Whether it has been broken.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

impl Default for HeapGate {
    fn default() -> HeapGate {
        HeapGate::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_gate_is_closed_until_it_is_opened() {
        let gate = HeapGate::new();
        assert!(!gate.enter());
        gate.open();
        assert!(!gate.enter(), "nobody would close it again");
        gate.watch();
        assert!(!gate.enter(), "it may be stopping right now");
        gate.open();
        assert!(gate.enter());
        gate.leave();
        gate.close();
        assert!(!gate.enter());
        gate.open();
        gate.close_for_good();
        assert!(!gate.enter());
        gate.open();
        assert!(!gate.enter());
        assert_eq!(gate.readers.load(Ordering::Relaxed), 0);
    }

    /// A reader never sees a half-written value of the collector's.
    #[test]
    fn no_handler_reads_while_objects_move() {
        let gate = Arc::new(HeapGate::new());
        let heap = Arc::new([const { AtomicU64::new(0) }; 64]);
        let stop = Arc::new(AtomicBool::new(false));
        gate.watch();
        gate.open();
        let reads = Arc::new(AtomicU64::new(0));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (gate, heap, stop) = (Arc::clone(&gate), Arc::clone(&heap), Arc::clone(&stop));
                let reads = Arc::clone(&reads);
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        if gate.enter() {
                            let first = heap[0].load(Ordering::Relaxed);
                            let same = heap.iter().all(|w| w.load(Ordering::Relaxed) == first);
                            gate.leave();
                            assert!(same, "an object moved under a reader");
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        let mut round = 0;
        while round < 3000 || reads.load(Ordering::Relaxed) < 3000 {
            round += 1;
            gate.close();
            for word in heap.iter() {
                word.store(round, Ordering::Relaxed);
            }
            gate.open();
            assert!(!readers.iter().all(|reader| reader.is_finished()));
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(!gate.is_broken());
    }

    #[test]
    fn a_reader_that_never_leaves_breaks_the_gate_and_does_not_hang_the_program() {
        let gate = HeapGate::new();
        gate.watch();
        gate.open();
        assert!(gate.enter());
        assert!(gate.holds());
        gate.close();
        assert!(gate.is_broken() && !gate.holds());
        gate.open();
        assert!(!gate.enter());
        // Waits until no reader is inside.
        gate.watch();
        assert!(gate.is_broken());
        gate.leave();
        gate.watch();
        gate.open();
        assert!(gate.enter());
    }
}
