//! Where the runtimes keep the return addresses that they have replaced, thread by thread.
//!
//! A table that the signal handler reads: for each thread of the sampler one place for each of the
//! [`HIJACKS`] CLRs that run at once, an address inside that CLR's own thread object (`stackwalk`
//! says what lies there). It knows no threads and hears no callbacks; `threads` and `clr` do.
//!
//! A CLR gets its place when it is admitted and gives it back when it has ended or been left, so
//! that the fifth CLR in a row has one; more at once than places go without.
//!
//! Invariant: a place is in the table only while its thread object lives, from the callback that
//! announced it to `ThreadDestroyed`.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use sampler::{Sampler, SlotId};
use stackwalk::HIJACKS;

/// The places of one thread, by the CLR's place in the row; 0 for none.
pub type HijackPlaces = [u64; HIJACKS];

/// By [`SlotId::index`]. 128 KiB of zeros, touched where there are threads.
static TABLE: [[AtomicU64; HIJACKS]; SlotId::LIMIT] =
    [const { [const { AtomicU64::new(0) }; HIJACKS] }; SlotId::LIMIT];

/// How often [`wait_for_readers`] gives its time slice away.
const READER_TIMEOUT: usize = 1000;

/// Where the thread objects of one CLR have the words; the same in all of them.
#[derive(Debug, Default)]
pub struct ThreadWords(AtomicU64);

impl ThreadWords {
    /// The place in the object of a thread that has just come, 0 if it is not known. A ThreadID is
    /// that object's address. Callback `ThreadAssignedToOSThread`.
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

/// Says where the thread's runtimes keep them from now on.
pub fn publish(slot: SlotId, places: &HijackPlaces) {
    if let Some(row) = TABLE.get(slot.index()) {
        for (word, place) in row.iter().zip(places) {
            word.store(*place, Ordering::Relaxed);
        }
    }
}

/// The places of the thread whose handler this runs in. `index` is what the sampler says
/// ([`sampler::Scratch::slot`]).
pub fn of_interrupted(index: usize) -> HijackPlaces {
    // Pairs with the fence in `Sampler::is_in_handler`: we are known to be inside before we read.
    fence(Ordering::SeqCst);
    TABLE.get(index).map_or([0; HIJACKS], |row| {
        row.each_ref().map(|word| word.load(Ordering::Relaxed))
    })
}

/// After a place was taken out: returns when no walk of this thread can still read there.
///
/// A walk reads there only where it meets the runtime's stub on the thread's stack, and a thread
/// with such a frame is not destroyed. So this is for a thread object of one CLR that ends while
/// another CLR has hijacked the same thread, and it ends on its own: a walk takes microseconds.
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

    /// A thread object as its constructor leaves it.
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
        // From now on the words are not looked for: a thread that has run already has them at the
        // same place.
        assert_eq!(words.of_new_thread(at(&strange)), at(&strange) + 320);
    }

    #[test]
    fn an_index_out_of_range_has_no_places() {
        assert_eq!(of_interrupted(SlotId::LIMIT), [0; HIJACKS]);
        assert_eq!(of_interrupted(usize::MAX), [0; HIJACKS]);
        assert_eq!(of_interrupted(SlotId::LIMIT - 1), [0; HIJACKS]);
    }
}
