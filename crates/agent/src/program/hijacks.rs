//! Table of the addresses at which the runtimes keep the return addresses that they have replaced.
//!
//! The signal handler reads it. Each sampled thread has one entry for each of the [`HIJACKS`] CLRs
//! that can run at once: an address inside that CLR's own thread object (`stackwalk` documents the
//! contents). The callbacks that fill it are handled in `threads` and `clr`.
//!
//! A CLR gets its index when it is admitted and returns it when it has ended or been detached, so a
//! fifth CLR after four others has one. More than [`HIJACKS`] CLRs at once have none.
//!
//! Invariant: an entry is in the table only while its thread object lives, from the callback that
//! announced the thread to `ThreadDestroyed`.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use sampler::{Sampler, SlotId};
use stackwalk::HIJACKS;

/// Entries of one thread, by the CLR's index; 0 for none.
pub type HijackPlaces = [u64; HIJACKS];

/// By [`SlotId::index`]. 128 KiB of zeros; only pages of existing threads are touched.
static TABLE: [[AtomicU64; HIJACKS]; SlotId::LIMIT] =
    [const { [const { AtomicU64::new(0) }; HIJACKS] }; SlotId::LIMIT];

/// Number of times that [`wait_for_readers`] yields its time slice.
const READER_TIMEOUT: usize = 1000;

/// Offset of the words in the thread objects of one CLR; equal in all of them. 0: not known yet.
#[derive(Debug, Default)]
pub struct ThreadWords(AtomicU64);

impl ThreadWords {
    /// Returns the address of the words in the object of a new thread, or 0 if it is not known. A
    /// ThreadID is the object's address. Callback `ThreadAssignedToOSThread`.
    pub fn of_new_thread(&self, thread: u64) -> u64 {
        let known = self.0.load(Ordering::Relaxed);
        let offset = if known == 0 {
            let found = stackwalk::hijack_offset(thread).unwrap_or(0);
            self.0.store(found, Ordering::Relaxed);
            found
        } else {
            known
        };
        if offset == 0 {
            0
        } else {
            thread.wrapping_add(offset)
        }
    }
}

/// Sets the entries of a thread.
pub fn publish(slot: SlotId, places: &HijackPlaces) {
    if let Some(row) = TABLE.get(slot.index()) {
        for (word, place) in row.iter().zip(places) {
            word.store(*place, Ordering::Relaxed);
        }
    }
}

/// Returns the entries of the thread in whose handler this runs. `index` is the sampler's
/// ([`sampler::Scratch::slot`]).
pub fn of_interrupted(index: usize) -> HijackPlaces {
    // Pairs with the fence in `Sampler::is_in_handler`: the handler is marked as running before it
    // reads.
    fence(Ordering::SeqCst);
    TABLE.get(index).map_or([0; HIJACKS], |row| {
        row.each_ref().map(|word| word.load(Ordering::Relaxed))
    })
}

/// Returns when no walk of this thread can still read an entry that was just removed.
///
/// A walk reads the entry only if it finds the runtime's stub on the thread's stack, and a thread
/// with such a frame is not destroyed. So the wait matters only if a thread object of one CLR ends
/// while another CLR has hijacked the same thread. It is short: a walk takes microseconds.
pub fn wait_for_readers(sampler: &Sampler, slot: SlotId) {
    for _ in 0..READER_TIMEOUT {
        if !sampler.is_in_handler(slot) {
            return;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread object as its constructor initialises it.
    fn object(words_at: usize) -> Vec<u64> {
        let mut object = vec![7; 512];
        object[words_at] = 0xcccc_cccc_cccc_cccc;
        object[words_at + 1] = 0xcccc_cccc_cccc_cccc;
        object
    }

    #[test]
    fn the_words_are_learned_from_the_first_thread_that_shows_them() {
        let words = ThreadWords::default();
        let at = |object: &[u64]| object.as_ptr() as u64;
        let strange = [7u64; 512];
        assert_eq!(words.of_new_thread(at(&strange)), 0);
        let first = object(40);
        assert_eq!(words.of_new_thread(at(&first)), at(&first) + 320);
        // The offset is known now and not searched again: a thread that has run already has the
        // same offset.
        assert_eq!(words.of_new_thread(at(&strange)), at(&strange) + 320);
    }

    #[test]
    fn an_index_out_of_range_has_no_places() {
        assert_eq!(of_interrupted(SlotId::LIMIT), [0; HIJACKS]);
        assert_eq!(of_interrupted(usize::MAX), [0; HIJACKS]);
        assert_eq!(of_interrupted(SlotId::LIMIT - 1), [0; HIJACKS]);
    }
}
