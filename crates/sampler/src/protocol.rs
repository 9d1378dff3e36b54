//! Lock-free protocols between threads, and between a thread and its own signal handler.
//!
//! The words are in the slot (`slot`); the handler (`handler`) and the reader (`reader`) follow the
//! protocols. The file is compiled twice: with the processor's atomics and, for the tests, with
//! loom's, which tries every interleaving.
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
//! | `leave` | Release | `quiet` Acquire | the handler's writes are seen before the slot is freed |
//! | `end_arm` | AcqRel | `quiet` Acquire | the timer is seen by the code that frees the slot |
//! | `close` | AcqRel | `end_arm` AcqRel | the later of the two sees the other and ends the timer |
//!
//! # The ring: samples from the handler to the reader
//!
//! One producer (the handler inside the gate), one consumer (the reader). `head` and `tail` count
//! words since the slot was opened and never wrap; a word is at index `count & mask`.
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
//! `claim` swaps true in, and a caller that finds false wakes the reader. `clear` swaps false in
//! before the ring buffers are read. Both are AcqRel: if a handler finds the flag set, the reader
//! whose `clear` comes later sees its commit.

use super::sync::{AtomicBool, AtomicU64, Ordering};

/// The slot is in use.
pub(crate) const LIVE: u64 = 1;
/// Stack bounds are known.
pub(crate) const KNOWN: u64 = 2;
/// The slot is unregistered; the handler may not enter.
pub(crate) const CLOSING: u64 = 4;
/// The handler is inside.
pub(crate) const BUSY: u64 = 8;
/// A timer is being created.
pub(crate) const ARMING: u64 = 16;

const fn generation_of(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Result of [`Gate::enter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Enter {
    /// Inside; [`Gate::leave`] must follow. `known`: whether the stack bounds may be read.
    In { known: bool },
    /// Refused: another generation, free, or closing.
    Stale,
    /// The handler is inside already.
    Nested,
}

/// The word that determines who may access a slot.
#[repr(transparent)]
pub(crate) struct Gate(pub(crate) AtomicU64);

impl Gate {
    /// Returns generation and flags, as a hint. Not for decisions.
    pub(crate) fn peek(&self) -> (u32, u64) {
        let word = self.0.load(Ordering::Relaxed);
        (generation_of(word), word & 0xffff_ffff)
    }

    /// Opens a free slot that the caller has taken off the free list. Returns the new generation,
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

    /// Applies `change` until it succeeds or `change` refuses. A slot's word changes a few times in
    /// a generation, so the bound on attempts is never reached; if it is, the result is a refusal.
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

    /// Enters the slot. Handler.
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

    /// As [`Gate::enter`], if that found a handler inside that will never leave because the program
    /// has jumped out of its own handler, which had interrupted ours. Only on the slot's own
    /// thread.
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

    /// Leaves the slot. Handler.
    pub(crate) fn leave(&self) {
        // Release: pairs with the Acquire in `quiet`.
        self.0.fetch_and(!BUSY, Ordering::Release);
    }

    /// Reserves the creation of the timer, once per generation. `Ok(false)`: it exists or is being
    /// created. While ARMING is set the slot is not freed.
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

    /// Withdraws the stack bounds, because the timer could not be created. Only between `set_known`
    /// and `end_arm`.
    pub(crate) fn set_unknown(&self) {
        self.0.fetch_and(!KNOWN, Ordering::Relaxed);
    }

    /// Notes that the timer is created and stored in the slot. Returns true if the slot was closed
    /// in the meantime: the caller must end the timer.
    pub(crate) fn end_arm(&self) -> bool {
        // AcqRel: Release pairs with `quiet`; Acquire and Release with `close`.
        self.0.fetch_and(!ARMING, Ordering::AcqRel) & CLOSING != 0
    }

    /// Closes the slot for the handler. `Ok(true)`: no handler is inside and no timer is being
    /// created, so the caller may end the timer now. `Ok(false)`: the code that frees the slot ends
    /// it. `Err`: the slot was not open.
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

    /// Whether the slot is closed with no handler inside, so that no producer can come any more.
    pub(crate) fn quiet(&self, generation: u32) -> bool {
        // Acquire: pairs with the Release in `leave` and `end_arm`.
        is_quiet(self.0.load(Ordering::Acquire), generation)
    }

    /// Marks a quiet slot free. Returns true if this call has freed it: the caller finally returns
    /// it to the free list. The generation is kept, so that the next `open` increments it.
    pub(crate) fn free(&self, generation: u32) -> bool {
        // Acquire: as in `quiet`. The slot reaches its next user through the free list
        // (Release/Acquire there).
        let freed = self.update(Ordering::Acquire, |word| {
            is_quiet(word, generation).then_some(u64::from(generation) << 32)
        });
        freed.is_ok()
    }
}

/// [`Gate::quiet`] of a gate's word.
fn is_quiet(word: u64, generation: u32) -> bool {
    generation_of(word) == generation && word & (LIVE | CLOSING | BUSY | ARMING) == LIVE | CLOSING
}

/// Both ends of a ring buffer, borrowed. `words.len()` is a power of two.
pub(crate) struct Ring<'a> {
    pub(crate) head: &'a AtomicU64,
    pub(crate) tail: &'a AtomicU64,
    pub(crate) words: &'a [AtomicU64],
}

/// Room for one record, not yet visible to the reader. Dropping it without `commit` releases it.
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

    /// Reserves room for `len` words, or returns `None` if there is none. Producer.
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

    /// Returns the position of the first committed word, and the number of committed words.
    /// Consumer.
    pub(crate) fn available(&self) -> (u64, u64) {
        let tail = self.tail.load(Ordering::Relaxed); // our own word
        // Acquire: pairs with the Release in `commit`.
        (tail, self.head.load(Ordering::Acquire).wrapping_sub(tail))
    }

    /// Returns one word from the range of `available`. Consumer.
    pub(crate) fn read(&self, at: u64) -> u64 {
        self.word(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Releases everything below `tail` to the producer. Consumer.
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

    /// Makes the record visible. Returns true if the ring buffer went from less than half full to
    /// half full.
    pub(crate) fn commit(self) -> bool {
        // Release: pairs with the Acquire in `available`.
        self.ring
            .head
            .store(self.start.wrapping_add(self.len), Ordering::Release);
        let half = self.ring.words.len() as u64 / 2;
        self.used_before < half && self.used_before + self.len >= half
    }
}

/// Flag that allows at most one wake-up under way.
#[repr(transparent)]
pub(crate) struct WakeFlag(pub(crate) AtomicBool);

impl WakeFlag {
    /// Sets the flag. Returns true if the caller must wake the reader.
    pub(crate) fn claim(&self) -> bool {
        // AcqRel: pairs with `clear`.
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Clears the flag. The reader checks everything after this.
    pub(crate) fn clear(&self) {
        // AcqRel: pairs with `claim`.
        self.0.swap(false, Ordering::AcqRel);
    }
}
