//! `protocol` under loom: every interleaving of a small scene.
//!
//! The scenes are tiny on purpose: loom's work grows with the power of their steps.

#[expect(dead_code, reason = "the scenes use parts of it")]
#[expect(
    clippy::duplicate_mod,
    reason = "compiled a second time, with loom's atomics"
)]
#[path = "protocol.rs"]
mod protocol;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

use self::protocol::{Bell, Enter, Gate, Ring};
use self::sync::{AtomicBool, AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

struct Memory {
    head: AtomicU64,
    tail: AtomicU64,
    words: Vec<AtomicU64>,
}

impl Memory {
    fn new(len: usize) -> Self {
        Self {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            words: (0..len).map(|_| AtomicU64::new(u64::MAX)).collect(),
        }
    }

    fn ring(&self) -> Ring<'_> {
        Ring {
            head: &self.head,
            tail: &self.tail,
            words: &self.words,
        }
    }
}

/// Records of two words, `[n, n + 100]`, through a ring of four: in order, whole, none twice, and
/// those that found no room are the only ones missing.
#[test]
fn records_arrive_whole_and_in_order() {
    loom::model(|| {
        let memory = Arc::new(Memory::new(4));
        let producer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let ring = memory.ring();
                let mut written = Vec::new();
                for n in 0..3 {
                    if let Some(record) = ring.reserve(2) {
                        record.put(0, n);
                        record.put(1, n + 100);
                        record.commit();
                        written.push(n);
                    }
                }
                written
            })
        };
        let mut read = Vec::new();
        let drain = |read: &mut Vec<u64>| {
            let ring = memory.ring();
            let (at, left) = ring.available();
            assert_eq!(left % 2, 0, "a half record is never visible");
            for record in 0..left / 2 {
                let first = ring.read(at + 2 * record);
                assert_eq!(ring.read(at + 2 * record + 1), first + 100);
                read.push(first);
            }
            ring.consume(at + left);
        };
        drain(&mut read);
        let written = producer.join().unwrap();
        drain(&mut read);
        assert_eq!(read, written);
        assert!(written.len() >= 2, "two records fit without the reader");
    });
}

/// A record larger than what is left is refused and changes nothing.
#[test]
fn a_full_ring_refuses() {
    loom::model(|| {
        let memory = Memory::new(4);
        let ring = memory.ring();
        assert!(ring.reserve(5).is_none());
        let record = ring.reserve(3).unwrap();
        record.put(0, 1);
        assert!(record.commit(), "from empty to three of four passes half");
        assert!(ring.reserve(2).is_none());
        assert!(ring.reserve(1).is_some());
        assert_eq!(ring.available(), (0, 3));
    });
}

/// A handler of the old thread, the thread's unregistering, and the reader that frees the slot and
/// opens it for the next thread: what the handler wrote is never mixed with the next thread's.
#[test]
fn a_slot_is_freed_only_when_nobody_is_inside() {
    loom::model(|| {
        struct Shared {
            gate: Gate,
            owner: AtomicU64,
        }
        let shared = Arc::new(Shared {
            gate: Gate(AtomicU64::new(0)),
            owner: AtomicU64::new(0),
        });
        let generation = shared.gate.open();
        let handler = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                if let Enter::In { .. } = shared.gate.enter(generation) {
                    shared.owner.store(7, Ordering::Relaxed);
                    shared.gate.leave();
                }
            })
        };
        let closer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.gate.close(generation))
        };
        // The reader.
        if shared.gate.quiet(generation) {
            shared.owner.store(0, Ordering::Relaxed);
            shared.gate.free(generation);
            let next = shared.gate.open();
            assert_ne!(next, generation);
            assert_eq!(shared.gate.enter(generation), Enter::Stale);
            assert_eq!(
                shared.owner.load(Ordering::Relaxed),
                0,
                "the old handler is still writing"
            );
        }
        handler.join().unwrap();
        assert!(closer.join().unwrap().is_ok());
    });
}

/// One arms a timer while another unregisters: exactly one of them (or the reader) ends it.
#[test]
fn a_timer_is_ended_once() {
    loom::model(|| {
        struct Shared {
            gate: Gate,
            timer: AtomicU64,
            ended: AtomicU64,
        }
        impl Shared {
            fn end(&self) {
                if self.timer.swap(0, Ordering::AcqRel) != 0 {
                    self.ended.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let shared = Arc::new(Shared {
            gate: Gate(AtomicU64::new(0)),
            timer: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        });
        let generation = shared.gate.open();
        let armer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                if shared.gate.begin_arm(generation) != Ok(true) {
                    return 0;
                }
                shared.gate.set_known();
                shared.timer.store(1, Ordering::Release);
                if shared.gate.end_arm() {
                    shared.end();
                }
                1
            })
        };
        if shared.gate.close(generation) == Ok(true) {
            shared.end();
        }
        let made = armer.join().unwrap();
        assert!(shared.gate.quiet(generation));
        shared.end(); // the reader, when it frees the slot
        assert_eq!(shared.ended.load(Ordering::Relaxed), made);
    });
}

/// A commit is either seen by the reader's drain or followed by a wake-up.
#[test]
fn no_commit_is_slept_through() {
    loom::model(|| {
        struct Shared {
            bell: Bell,
            memory: Memory,
            eventfd: AtomicU64,
        }
        let shared = Arc::new(Shared {
            bell: Bell(AtomicBool::new(true)), // rung once, and not answered yet
            memory: Memory::new(2),
            eventfd: AtomicU64::new(0),
        });
        let handler = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let ring = shared.memory.ring();
                ring.reserve(1).unwrap().commit();
                if shared.bell.ring() {
                    shared.eventfd.store(1, Ordering::Relaxed);
                }
            })
        };
        shared.bell.clear();
        let (_, seen) = shared.memory.ring().available();
        handler.join().unwrap();
        assert!(seen == 1 || shared.eventfd.load(Ordering::Relaxed) == 1);
    });
}
