//! Loom tests of `protocol`: every interleaving of small scenes.
//!
//! The scenes are tiny because loom's work grows exponentially with their steps. Each memory order
//! of `protocol` was weakened in turn, and a scene failed, with two exceptions. Loom never lets a
//! load pass a later store, so it cannot distinguish the ring's `tail` (Release, Acquire) from
//! Relaxed. It always gives a read-modify-write the latest value, so `end_arm` passes as Relaxed.

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

use self::protocol::{Enter, Gate, Ring, WakeFlag};
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

/// Writes records of two words, `[n, n + 100]`, and returns those for which there was room.
fn produce(memory: &Memory, records: u64) -> Vec<u64> {
    let ring = memory.ring();
    let mut written = Vec::new();
    for n in 0..records {
        if let Some(record) = ring.reserve(2) {
            record.put(0, n);
            record.put(1, n + 100);
            record.commit();
            written.push(n);
        }
    }
    written
}

fn consume(memory: &Memory, read: &mut Vec<u64>) {
    let ring = memory.ring();
    let (at, left) = ring.available();
    assert_eq!(left % 2, 0, "a half record is never visible");
    for record in 0..left / 2 {
        let first = ring.read(at + 2 * record);
        assert!(first < 100, "a word is read before it is there");
        assert_eq!(ring.read(at + 2 * record + 1), first + 100);
        read.push(first);
    }
    ring.consume(at + left);
}

/// Records pass a ring of two records in order, whole and once; only those without room are
/// missing. Both ways round, because loom only searches interleavings in which the later thread's
/// accesses come earlier.
#[test]
fn records_arrive_whole_and_in_order() {
    loom::model(|| {
        let memory = Arc::new(Memory::new(4));
        let reader = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let mut read = Vec::new();
                consume(&memory, &mut read);
                consume(&memory, &mut read);
                read
            })
        };
        let written = produce(&memory, 3);
        let mut read = reader.join().unwrap();
        consume(&memory, &mut read);
        assert_eq!(read, written);
        assert!(written.len() >= 2, "two records fit without the reader");
    });
    loom::model(|| {
        let memory = Arc::new(Memory::new(4));
        let producer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || produce(&memory, 4))
        };
        let mut read = Vec::new();
        consume(&memory, &mut read);
        let written = producer.join().unwrap();
        consume(&memory, &mut read);
        assert_eq!(read, written);
    });
}

/// The scenes cover their cases: the reader sees no record, one, and two; the producer finds the
/// ring full, and finds room that the reader made.
#[test]
fn the_scenes_are_not_empty() {
    use std::collections::HashSet;
    use std::sync::{Arc as StdArc, Mutex};
    let seen = StdArc::new(Mutex::new(HashSet::new()));
    let note = StdArc::clone(&seen);
    loom::model(move || {
        let memory = Arc::new(Memory::new(4));
        let reader = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let mut read = Vec::new();
                consume(&memory, &mut read);
                read.len()
            })
        };
        let written = produce(&memory, 3).len();
        note.lock()
            .unwrap()
            .insert((reader.join().unwrap(), written));
    });
    let seen = seen.lock().unwrap();
    for (read, written) in [(0, 2), (1, 2), (2, 2), (1, 3), (2, 3)] {
        assert!(
            seen.contains(&(read, written)),
            "({read}, {written}) is missing in {seen:?}"
        );
    }
}

/// A record larger than the free room is refused and changes nothing.
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

/// The thread that leaves a slot, or the reader that finds it closed, frees it: exactly one of
/// them.
#[test]
fn a_slot_is_freed_once() {
    loom::model(|| {
        let gate = Arc::new(Gate(AtomicU64::new(0)));
        let generation = gate.open();
        let other = Arc::clone(&gate);
        let reader = thread::spawn(move || other.quiet(generation) && other.free(generation));
        let closed = gate.close(generation) == Ok(true);
        let by_thread = closed && gate.free(generation);
        let by_reader = reader.join().unwrap();
        assert!(by_thread ^ by_reader);
    });
}

/// A handler of the old thread runs while the slot is closed, freed and opened for the next thread.
/// All the handler's writes are visible before the slot is freed, and none comes after.
#[test]
fn a_slot_is_freed_only_when_nobody_is_inside() {
    struct Shared {
        gate: Gate,
        written: AtomicU64,
    }
    fn handler(shared: &Shared, generation: u32) -> u64 {
        let mut entered = 0;
        for _ in 0..2 {
            if let Enter::In { .. } = shared.gate.enter(generation) {
                entered += 1;
                shared.written.store(entered, Ordering::Relaxed);
                shared.gate.leave();
            }
        }
        entered
    }
    /// Returns the data that was seen in a freed slot.
    fn owner(shared: &Shared, generation: u32) -> Option<u64> {
        assert!(shared.gate.close(generation).is_ok());
        if !shared.gate.quiet(generation) {
            return None;
        }
        let seen = shared.written.load(Ordering::Relaxed);
        assert!(shared.gate.free(generation));
        let next = shared.gate.open();
        assert_ne!(next, generation);
        assert_eq!(shared.gate.enter(generation), Enter::Stale);
        Some(seen)
    }
    let shared = || {
        let shared = Shared {
            gate: Gate(AtomicU64::new(0)),
            written: AtomicU64::new(0),
        };
        let generation = shared.gate.open();
        (Arc::new(shared), generation)
    };
    loom::model(move || {
        let (shared, generation) = shared();
        let other = Arc::clone(&shared);
        let owner = thread::spawn(move || owner(&other, generation));
        let entered = handler(&shared, generation);
        let seen = owner.join().unwrap();
        assert!(
            seen.is_none_or(|seen| seen == entered),
            "{seen:?} {entered}"
        );
    });
    loom::model(move || {
        let (shared, generation) = shared();
        let other = Arc::clone(&shared);
        let handler = thread::spawn(move || handler(&other, generation));
        let seen = owner(&shared, generation);
        let entered = handler.join().unwrap();
        assert!(
            seen.is_none_or(|seen| seen == entered),
            "{seen:?} {entered}"
        );
    });
}

/// The stack bounds are visible when the handler sees that they are known, and the slot's fresh
/// fields when it enters.
#[test]
fn what_is_published_is_seen() {
    struct Shared {
        gate: Gate,
        fresh: AtomicU64,
        bounds: AtomicU64,
    }
    loom::model(|| {
        let shared = Arc::new(Shared {
            gate: Gate(AtomicU64::new(0)),
            fresh: AtomicU64::new(0),
            bounds: AtomicU64::new(0),
        });
        let other = Arc::clone(&shared);
        let handler = thread::spawn(move || {
            // The first generation's number is 1.
            if let Enter::In { known } = other.gate.enter(1) {
                assert_eq!(other.fresh.load(Ordering::Relaxed), 7);
                if known {
                    assert_eq!(other.bounds.load(Ordering::Relaxed), 8);
                }
                other.gate.leave();
            }
        });
        shared.fresh.store(7, Ordering::Relaxed);
        let generation = shared.gate.open();
        assert_eq!(generation, 1);
        assert_eq!(shared.gate.begin_arm(generation), Ok(true));
        shared.bounds.store(8, Ordering::Relaxed);
        shared.gate.set_known();
        assert!(!shared.gate.end_arm());
        assert_eq!(shared.gate.begin_arm(generation), Ok(false));
        handler.join().unwrap();
    });
}

/// One thread arms a timer while another unregisters. Exactly one of them, or the reader, ends it,
/// before the reader frees the slot.
#[test]
fn a_timer_is_ended_once() {
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
    fn armer(shared: &Shared, generation: u32) -> u64 {
        if shared.gate.begin_arm(generation) != Ok(true) {
            return 0;
        }
        shared.gate.set_known();
        shared.timer.store(1, Ordering::Release);
        if shared.gate.end_arm() {
            shared.end();
        }
        1
    }
    fn closer(shared: &Shared, generation: u32) {
        if shared.gate.close(generation) == Ok(true) {
            shared.end();
        }
    }
    let scene = || {
        let shared = Shared {
            gate: Gate(AtomicU64::new(0)),
            timer: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        };
        let generation = shared.gate.open();
        (Arc::new(shared), generation)
    };
    loom::model(move || {
        let (shared, generation) = scene();
        let other = Arc::clone(&shared);
        let armer = thread::spawn(move || armer(&other, generation));
        closer(&shared, generation);
        let made = armer.join().unwrap();
        assert!(shared.gate.quiet(generation));
        assert_eq!(shared.ended.load(Ordering::Relaxed), made);
    });
    loom::model(move || {
        let (shared, generation) = scene();
        let other = Arc::clone(&shared);
        let closer = thread::spawn(move || closer(&other, generation));
        let made = armer(&shared, generation);
        closer.join().unwrap();
        assert!(shared.gate.quiet(generation));
        assert_eq!(shared.ended.load(Ordering::Relaxed), made);
    });
}

/// A commit is either seen by the reader's drain or followed by a wake-up.
#[test]
fn no_commit_is_slept_through() {
    loom::model(|| {
        struct Shared {
            wake_flag: WakeFlag,
            memory: Memory,
            eventfd: AtomicU64,
        }
        let shared = Arc::new(Shared {
            wake_flag: WakeFlag(AtomicBool::new(true)), // set once, and not cleared yet
            memory: Memory::new(2),
            eventfd: AtomicU64::new(0),
        });
        let handler = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let ring = shared.memory.ring();
                ring.reserve(1).unwrap().commit();
                if shared.wake_flag.claim() {
                    shared.eventfd.store(1, Ordering::Relaxed);
                }
            })
        };
        shared.wake_flag.clear();
        let (_, seen) = shared.memory.ring().available();
        handler.join().unwrap();
        assert!(seen == 1 || shared.eventfd.load(Ordering::Relaxed) == 1);
    });
}
