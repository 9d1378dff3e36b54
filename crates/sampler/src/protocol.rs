//! Every protocol between threads, and between a thread and its own handler, in one place.
//!
//! It is not the slot (`slot`) that holds these words, nor the handler (`handler`) or the reader
//! (`reader`) that follow them. The file is compiled twice: with the processor's atomics, and, for
//! the tests, with loom's, which tries every interleaving.
//!
//! # The gate: who may touch a slot
//!
//! One word: the generation in the high half, flags in the low half.
//!
//! ```text
//!            open()                 begin_arm()/set_known()/end_arm()
//!   FREE ─────────────▶ LIVE ──────────────────────────────────────────▶ LIVE|KNOWN
//!    ▲  new generation   │  (ARMING meanwhile: a timer is being made)       │
//!    │                   └───────────────┬──────────────────────────────────┘
//!    │ free(): only when                 │ close()
//!    │ neither BUSY nor ARMING           ▼
//!    └───────────────────────────── LIVE|CLOSING   (enter() refuses from here on)
//!
//!   the handler:  enter() ── BUSY set ──▶ … walk, ring … ── leave() ──▶ BUSY cleared
//! ```
//!
//! | write | order | pairs with | so that |
//! | --- | --- | --- | --- |
//! | `open` store | Release | `enter`, `begin_arm` Acquire | the slot's fresh fields are seen |
//! | `set_known` | Release | `enter` Acquire | the stack bounds are seen with KNOWN |
//! | `leave` | Release | `quiet` Acquire | all the handler wrote is seen before the slot is freed |
//! | `end_arm` | AcqRel | `quiet` Acquire | the timer is seen by who frees the slot |
//! | `close` | AcqRel | `end_arm` AcqRel | whoever comes second sees the other and ends the timer |
//!
//! # The ring: samples from the handler to the reader
//!
//! One producer (the handler inside the gate), one consumer (the reader). `head` and `tail` count
//! words since the slot was opened and never wrap; a word lies at `count & mask`.
//!
//! ```text
//!   handler:  tail (Acquire) → room? → words (Relaxed) → head (Release)
//!   reader:   head (Acquire) → words (Relaxed) → tail (Release)
//! ```
//!
//! | write | order | pairs with | so that |
//! | --- | --- | --- | --- |
//! | `head` by the handler | Release | `head` by the reader, Acquire | the words are there before they are read |
//! | `tail` by the reader | Release | `tail` by the handler, Acquire | the words are read before they are overwritten |
//!
//! # The wake flag: waking the reader
//!
//! `claim` swaps true in, and who finds false wakes the reader; `clear` swaps false in before the
//! rings are read. Both are AcqRel: a handler that finds the flag already set has its commit seen
//! by the reader whose `clear` comes later.

use super::sync::{AtomicBool, AtomicU64, Ordering};

/// Slot is in use.
pub(crate) const LIVE: u64 = 1;
/// Stack bounds are known.
pub(crate) const KNOWN: u64 = 2;
/// Unregistered; the handler stays out.
pub(crate) const CLOSING: u64 = 4;
/// The handler is inside.
pub(crate) const BUSY: u64 = 8;
/// A timer is being made.
pub(crate) const ARMING: u64 = 16;

const fn generation_of(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Answer of [`Gate::enter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Enter {
    /// Inside; [`Gate::leave`] must follow. `known`: the stack bounds may be read.
    In { known: bool },
    /// Another generation, free, or closing.
    Stale,
    /// The handler is inside already.
    Nested,
}

/// The word that says who may touch a slot.
#[repr(transparent)]
pub(crate) struct Gate(pub(crate) AtomicU64);

impl Gate {
    /// The word now, for a first look. Decides nothing.
    pub(crate) fn peek(&self) -> (u32, u64) {
        let word = self.0.load(Ordering::Relaxed);
        (generation_of(word), word & 0xffff_ffff)
    }

    /// Opens a free slot that the caller has taken off the free list. Gives the new generation,
    /// never 0.
    pub(crate) fn open(&self) -> u32 {
        let generation = generation_of(self.0.load(Ordering::Relaxed))
            .wrapping_add(1)
            .max(1);
        // Release: pairs with the Acquire in `enter` and `begin_arm`.
        self.0
            .store((u64::from(generation) << 32) | LIVE, Ordering::Release);
        generation
    }

    /// Applies `change` until it holds or `change` refuses. A slot's word changes a handful of
    /// times in a generation, so the bound is never met; meeting it is a refusal.
    fn update(
        &self,
        success: Ordering,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, Option<u64>> {
        let mut word = self.0.load(Ordering::Relaxed);
        for _ in 0..16 {
            let Some(next) = change(word) else {
                return Err(Some(word));
            };
            match self
                .0
                .compare_exchange(word, next, success, Ordering::Relaxed)
            {
                Ok(_) => return Ok(next),
                Err(now) => word = now,
            }
        }
        Err(None)
    }

    /// The handler asks to come in.
    pub(crate) fn enter(&self, generation: u32) -> Enter {
        // Acquire: pairs with the Release in `open` and `set_known`.
        let entered = self.update(Ordering::Acquire, |word| {
            let usable =
                generation_of(word) == generation && word & (LIVE | CLOSING | BUSY) == LIVE;
            usable.then_some(word | BUSY)
        });
        match entered {
            Ok(word) => Enter::In {
                known: word & KNOWN != 0,
            },
            Err(Some(word))
                if generation_of(word) == generation && word & (LIVE | BUSY) == LIVE | BUSY =>
            {
                Enter::Nested
            }
            Err(_) => Enter::Stale,
        }
    }

    /// Instead of [`Gate::enter`] where it found the handler inside that will never leave: the
    /// program has jumped out of a handler of its own that had interrupted it. Only on the slot's
    /// own thread.
    pub(crate) fn take_over(&self, generation: u32) -> Enter {
        // Acquire: as in `enter`.
        let word = self.0.load(Ordering::Acquire);
        if generation_of(word) == generation && word & (LIVE | CLOSING | BUSY) == LIVE | BUSY {
            Enter::In {
                known: word & KNOWN != 0,
            }
        } else {
            Enter::Stale
        }
    }

    /// The handler leaves.
    pub(crate) fn leave(&self) {
        // Release: pairs with the Acquire in `quiet`.
        self.0.fetch_and(!BUSY, Ordering::Release);
    }

    /// Reserves the making of the timer, once per generation. `Ok(false)`: it is made or being
    /// made. While ARMING is set the slot is not freed.
    pub(crate) fn begin_arm(&self, generation: u32) -> Result<bool, ()> {
        // Acquire: pairs with the Release in `open`.
        let begun = self.update(Ordering::Acquire, |word| {
            let usable = generation_of(word) == generation
                && word & (LIVE | CLOSING | KNOWN | ARMING) == LIVE;
            usable.then_some(word | ARMING)
        });
        match begun {
            Ok(_) => Ok(true),
            Err(Some(word))
                if generation_of(word) == generation
                    && word & (LIVE | CLOSING) == LIVE
                    && word & (KNOWN | ARMING) != 0 =>
            {
                Ok(false)
            }
            Err(_) => Err(()),
        }
    }

    /// Publishes the stack bounds. Only between `begin_arm` and `end_arm`.
    pub(crate) fn set_known(&self) {
        // Release: pairs with the Acquire in `enter`.
        self.0.fetch_or(KNOWN, Ordering::Release);
    }

    /// Takes the stack bounds back: the timer could not be made. Only between `set_known` and
    /// `end_arm`.
    pub(crate) fn set_unknown(&self) {
        self.0.fetch_and(!KNOWN, Ordering::Relaxed);
    }

    /// The timer is made and noted in the slot. True: the slot was closed meanwhile, and the
    /// caller ends the timer.
    pub(crate) fn end_arm(&self) -> bool {
        // AcqRel: Release pairs with `quiet`; Acquire and Release with `close`.
        self.0.fetch_and(!ARMING, Ordering::AcqRel) & CLOSING != 0
    }

    /// Closes the slot for the handler. `Ok(true)`: no handler is inside and none arms, so the
    /// caller may end the timer now; `Ok(false)`: the code that frees the slot does; `Err`: it was
    /// not open.
    pub(crate) fn close(&self, generation: u32) -> Result<bool, ()> {
        // AcqRel: pairs with `end_arm`.
        let closed = self.update(Ordering::AcqRel, |word| {
            let usable = generation_of(word) == generation && word & (LIVE | CLOSING) == LIVE;
            usable.then_some(word | CLOSING)
        });
        match closed {
            Ok(word) => Ok(word & (BUSY | ARMING) == 0),
            Err(_) => Err(()),
        }
    }

    /// Whether the slot is closed, and no handler inside: no producer will come any more.
    pub(crate) fn quiet(&self, generation: u32) -> bool {
        // Acquire: pairs with the Release in `leave` and `end_arm`.
        is_quiet(self.0.load(Ordering::Acquire), generation)
    }

    /// Marks a quiet slot free. True: this call has freed it, and the caller gives it back to the
    /// free list when done with it. The generation stays, so that the next `open` counts on.
    pub(crate) fn free(&self, generation: u32) -> bool {
        // Acquire: as in `quiet`. The slot reaches its next user through the free list
        // (Release/Acquire there).
        let freed = self.update(Ordering::Acquire, |word| {
            is_quiet(word, generation).then_some(u64::from(generation) << 32)
        });
        freed.is_ok()
    }
}

/// The test of [`Gate::quiet`], on a gate's word.
fn is_quiet(word: u64, generation: u32) -> bool {
    generation_of(word) == generation && word & (LIVE | CLOSING | BUSY | ARMING) == LIVE | CLOSING
}

/// Both ends of a ring, lent. `words.len()` is a power of two.
pub(crate) struct Ring<'a> {
    pub(crate) head: &'a AtomicU64,
    pub(crate) tail: &'a AtomicU64,
    pub(crate) words: &'a [AtomicU64],
}

/// Room for one record, not yet visible to the reader. Dropping it without `commit` gives it
/// back.
pub(crate) struct Reserved<'r, 'a> {
    ring: &'r Ring<'a>,
    start: u64,
    len: u64,
    used_before: u64,
}

impl<'a> Ring<'a> {
    fn word(&self, at: u64) -> Option<&AtomicU64> {
        self.words
            .get(at as usize & self.words.len().wrapping_sub(1))
    }

    /// Producer: room for `len` words, or `None` when there is none.
    pub(crate) fn reserve(&self, len: usize) -> Option<Reserved<'_, 'a>> {
        let start = self.head.load(Ordering::Relaxed); // our own word
        // Acquire: pairs with the Release in `consume`.
        let used_before = start.wrapping_sub(self.tail.load(Ordering::Acquire));
        let room = (self.words.len() as u64).checked_sub(used_before)?;
        (len as u64 <= room).then_some(Reserved {
            ring: self,
            start,
            len: len as u64,
            used_before,
        })
    }

    /// Consumer: how many words are committed, and where they begin.
    pub(crate) fn available(&self) -> (u64, u64) {
        let tail = self.tail.load(Ordering::Relaxed); // our own word
        // Acquire: pairs with the Release in `commit`.
        (tail, self.head.load(Ordering::Acquire).wrapping_sub(tail))
    }

    /// Consumer: one word of what `available` gave.
    pub(crate) fn read(&self, at: u64) -> u64 {
        self.word(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Consumer: gives everything below `tail` back to the producer.
    pub(crate) fn consume(&self, tail: u64) {
        // Release: pairs with the Acquire in `reserve`.
        self.tail.store(tail, Ordering::Release);
    }
}

impl Reserved<'_, '_> {
    /// Writes word `index` of the record.
    pub(crate) fn put(&self, index: usize, value: u64) {
        debug_assert!(
            (index as u64) < self.len,
            "a record stays inside its reservation"
        );
        if let Some(word) = self.ring.word(self.start.wrapping_add(index as u64)) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Makes the record visible. True: it took the ring from less than half full to half full.
    pub(crate) fn commit(self) -> bool {
        // Release: pairs with the Acquire in `available`.
        self.ring
            .head
            .store(self.start.wrapping_add(self.len), Ordering::Release);
        let half = self.ring.words.len() as u64 / 2;
        self.used_before < half && self.used_before + self.len >= half
    }
}

/// At most one wake-up under way.
#[repr(transparent)]
pub(crate) struct WakeFlag(pub(crate) AtomicBool);

impl WakeFlag {
    /// True: the caller wakes the reader.
    pub(crate) fn claim(&self) -> bool {
        // AcqRel: pairs with `clear`.
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// The reader will look at everything from here on.
    pub(crate) fn clear(&self) {
        // AcqRel: pairs with `claim`.
        self.0.swap(false, Ordering::AcqRel);
    }
}
