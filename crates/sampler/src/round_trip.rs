//! Test of a slot from the handler's side to the reader's, on one thread.
//!
//! It uses any order of samples and drains, and any damage.

use core::sync::atomic::Ordering;
use proptest::prelude::*;

use crate::handler::{SampleWeight, write_record};
use crate::reader::{SampleEvent, drain_slot};
use crate::slot::{Geometry, Slot};

const MAX_DEPTH: u32 = 12;
const RING_WORDS: u32 = 64;

/// A slot with its own memory block.
struct Bench {
    slot: Box<Slot>,
    _block: Vec<[u64; 8]>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Sample {
    time_ns: u64,
    event: SampleEvent,
    value: u64,
    count: u32,
    end: u8,
    frames: Vec<u64>,
}

impl Bench {
    fn new() -> Self {
        let geometry = Geometry {
            traces: false,
            waits: false,
            ring_words: RING_WORDS,
            max_depth: MAX_DEPTH,
            scratch_len: 64,
        };
        let mut block = vec![[0u64; 8]; geometry.block_len() / 64];
        // SAFETY: all zero is a valid slot: atomics and nothing else.
        let slot: Box<Slot> = unsafe { Box::new_zeroed().assume_init() };
        slot.ring_words.store(RING_WORDS, Ordering::Relaxed);
        slot.max_depth.store(MAX_DEPTH, Ordering::Relaxed);
        slot.block
            .store(block.as_mut_ptr().cast(), Ordering::Relaxed);
        Self {
            slot,
            _block: block,
        }
    }

    /// Writes a sample as the handler does after a walk. Returns false if there is no room.
    fn write(&self, sample: &Sample) -> bool {
        let buffer = 1 - (self.slot.last_buffer.load(Ordering::Relaxed) & 1);
        let out = self.slot.stack_buffer(buffer.into());
        for (index, frame) in sample.frames.iter().enumerate() {
            // SAFETY: the buffer has MAX_DEPTH words, and no stack here is deeper.
            unsafe { out.add(index).write(*frame) };
        }
        let stands = SampleWeight {
            wall: sample.event == SampleEvent::Wall,
            value: sample.value,
            count: sample.count,
        };
        write_record(
            &self.slot,
            sample.frames.len(),
            sample.end,
            sample.time_ns,
            stands,
        )
        .is_ok()
    }

    fn drain(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        drain_slot(&self.slot, false, |view| {
            samples.push(Sample {
                time_ns: view.time_ns,
                event: view.event,
                value: view.value,
                count: view.count,
                end: view.end,
                frames: view.frames.to_vec(),
            });
        });
        samples
    }
}

fn sample() -> impl Strategy<Value = Sample> {
    let frames = prop::collection::vec(0u64..3, 0..=MAX_DEPTH as usize);
    (
        any::<u64>(),
        any::<bool>(),
        any::<u64>(),
        1u32..(1 << 23),
        any::<u8>(),
        frames,
    )
        .prop_map(|(time_ns, wall, value, count, end, frames)| Sample {
            time_ns,
            event: if wall {
                SampleEvent::Wall
            } else {
                SampleEvent::Cpu
            },
            value,
            count,
            end,
            frames,
        })
}

proptest! {
    /// Samples that found room are read unchanged and in order; nothing else is read.
    #[test]
    fn samples_survive(steps in prop::collection::vec(prop::option::weighted(0.8, sample()), 1..80)) {
        let bench = Bench::new();
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        let mut since_drain = 0;
        for step in steps {
            match step {
                Some(sample) => {
                    let written = bench.write(&sample);
                    // Four of the largest records always fit.
                    prop_assert!(written || since_drain >= 4);
                    since_drain += 1;
                    if written {
                        expected.push(sample);
                    }
                }
                None => {
                    got.extend(bench.drain());
                    prop_assert_eq!(&got, &expected);
                    since_drain = 0;
                }
            }
        }
        got.extend(bench.drain());
        prop_assert_eq!(got, expected);
    }

    /// With any damage to the ring and its counts, the reader returns, gives no stack deeper than
    /// possible, and is correct again after the next whole stack.
    #[test]
    fn damage_is_survived(
        before in prop::collection::vec(sample(), 0..6),
        damage in prop::collection::vec((0usize..RING_WORDS as usize + 3, any::<u64>()), 1..8),
        after in sample(),
    ) {
        let bench = Bench::new();
        for sample in &before {
            bench.write(sample);
        }
        for (place, value) in damage {
            match place.checked_sub(RING_WORDS as usize) {
                None => bench.slot.ring().words[place].store(value, Ordering::Relaxed),
                Some(0) => bench.slot.head.store(value, Ordering::Relaxed),
                Some(1) => bench.slot.reader.tail.store(value, Ordering::Relaxed),
                Some(_) => bench.slot.reader.depth.store(value as u32, Ordering::Relaxed),
            }
        }
        prop_assert!(bench.drain().iter().all(|s| s.frames.len() <= MAX_DEPTH as usize));
        // The first one may still refer to a stack that the reader lost. The reader requests a
        // whole one, which is the next.
        bench.write(&after);
        bench.drain();
        bench.slot.write_whole.store(true, Ordering::Relaxed);
        prop_assert!(bench.write(&after));
        prop_assert_eq!(bench.drain(), [after.clone()]);
        prop_assert!(bench.write(&after));
        prop_assert_eq!(bench.drain(), [after]);
    }
}
