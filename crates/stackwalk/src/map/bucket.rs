//! Bucket: the JITted bodies of one chunk of the address space, in no order.
//!
//! The code map assigns buckets to chunks, and frees entries when no walk reads them. Invariant:
//! one atomic word is one whole body (its offset in the chunk, and its entry's address). A reader
//! sees a body or not, whatever is added or removed meanwhile. Only a full bucket is copied.
//!
//! Buckets are not sorted, because methods that are created and collected all the time (expression
//! trees, DynamicMethods) reuse addresses, and each would move the words behind it. A chunk has
//! some dozens of consecutive words. Reading them takes less time than fetching a method's entry
//! from memory.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::MapEntry;

/// Bits of a word for the entry's address. The bits above are the body's offset in its chunk. 0 is
/// no body.
const ENTRY_BITS: u32 = 48;
const ENTRY: u64 = (1 << ENTRY_BITS) - 1;

/// Words in the first bucket of a chunk: two cache lines, as many methods of a kilobyte as fit into
/// a chunk.
const FIRST: usize = 16;

/// The bodies of one chunk. They are disjoint.
pub(super) struct Bucket {
    words: Box<[AtomicU64]>,
    /// The words from this index on were never used.
    used: AtomicUsize,
    /// All words before this index are bodies. For writers.
    full: AtomicUsize,
    /// Number of words that are bodies. For writers.
    live: AtomicUsize,
    /// No body that was ever in the bucket has an address from here on. For writers.
    end: AtomicU64,
}

/// Makes the word of a body that begins at `offset` of its chunk; 0 for one that begins before.
fn word_of(offset: u16, entry: *const MapEntry) -> u64 {
    // A pointer of user space: `ADDRESS_LIMIT` is below 2^48.
    u64::from(offset) << ENTRY_BITS | entry as u64
}

fn entry_of(word: u64) -> Option<*const MapEntry> {
    let entry = (word & ENTRY) as *const MapEntry;
    (!entry.is_null()).then_some(entry)
}

impl Bucket {
    /// Copies the words of `old`, with room for as many again.
    pub(super) fn grown(old: Option<&Bucket>) -> Bucket {
        let live = || old.into_iter().flat_map(Bucket::words);
        let used = live().count();
        let mut words = Vec::with_capacity((used * 2).max(FIRST));
        words.extend(live().map(AtomicU64::new));
        words.resize_with(words.capacity(), AtomicU64::default);
        Bucket {
            words: words.into_boxed_slice(),
            used: AtomicUsize::new(used),
            full: AtomicUsize::new(used),
            live: AtomicUsize::new(used),
            end: AtomicU64::new(old.map_or(0, |old| old.end.load(Ordering::Relaxed))),
        }
    }

    /// Returns the size, bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.words) + size_of::<Self>()
    }

    fn used(&self) -> &[AtomicU64] {
        // A reader that sees a length sees the words that were used by then, or newer ones, which
        // are valid too.
        let used = self.used.load(Ordering::Acquire);
        self.words.get(..used).unwrap_or_default()
    }

    /// Iterates over all words that are bodies.
    fn words(&self) -> impl Iterator<Item = u64> {
        // Pairs with the stores in `insert`: the entry was written before its word.
        let words = self.used().iter().map(|word| word.load(Ordering::Acquire));
        words.filter(|word| *word != 0)
    }

    /// Iterates over the entries of all bodies.
    pub(super) fn entries(&self) -> impl Iterator<Item = *const MapEntry> {
        self.words().filter_map(entry_of)
    }

    /// Whether the bucket is empty. For writers.
    pub(super) fn is_empty(&self) -> bool {
        self.live.load(Ordering::Relaxed) == 0
    }

    /// Whether all bodies are before this address, at which the next body of a growing heap begins.
    /// For writers.
    pub(super) fn lies_before(&self, address: u64) -> bool {
        self.end.load(Ordering::Relaxed) <= address
    }

    /// Returns the last body that begins at `offset` or before it. The body may end before
    /// `offset`. Async-signal-safe.
    pub(super) fn at(&self, offset: u16) -> Option<*const MapEntry> {
        self.around(offset, 0).0
    }

    /// As [`at`](Self::at), with a body that begins behind `offset` and before `end`.
    pub(super) fn around(
        &self,
        offset: u16,
        end: u64,
    ) -> (Option<*const MapEntry>, Option<*const MapEntry>) {
        let limit = u64::from(offset) << ENTRY_BITS | ENTRY;
        let behind = end.min(u16::MAX.into()) << ENTRY_BITS;
        let (mut last, mut within) = (0, 0);
        for word in self.used() {
            // As in `words`. A word of 0 does not matter here.
            let word = word.load(Ordering::Acquire);
            let is_before = word <= limit;
            last = if is_before { word.max(last) } else { last };
            let is_within = !is_before && word < behind;
            within = if is_within { word } else { within };
        }
        (entry_of(last), entry_of(within))
    }

    /// Returns the body that begins at `offset` (for 0: or one that begins before the chunk), and
    /// whether any body is in that offset's page.
    pub(super) fn from(&self, offset: u16) -> (Option<*const MapEntry>, bool) {
        const PAGE: u32 = ENTRY_BITS + 12;
        let mut is_page_theirs = false;
        let wanted = u64::from(offset);
        for word in self.words() {
            if word >> ENTRY_BITS == wanted {
                return (entry_of(word), true);
            }
            is_page_theirs |= word >> PAGE == wanted >> 12;
        }
        (None, is_page_theirs)
    }

    /// Adds a body that shares no address with another, up to the address `end`. Returns false, and
    /// does nothing, if no room is left. For one writer at a time.
    pub(super) fn insert(&self, offset: u16, end: u64, entry: *const MapEntry) -> bool {
        let word = word_of(offset, entry);
        let used = self.used().len();
        let full = self.full.load(Ordering::Relaxed);
        let mut from_full = self.words.iter().enumerate().skip(full);
        // All words behind `used` are free.
        let free = from_full.find(|(_, word)| word.load(Ordering::Relaxed) == 0);
        let Some((at, free)) = free else {
            return false;
        };
        free.store(word, Ordering::Release);
        self.full.store(at + 1, Ordering::Relaxed);
        self.live
            .store(self.live.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let end = end.max(self.end.load(Ordering::Relaxed));
        self.end.store(end, Ordering::Relaxed);
        if at == used {
            self.used.store(used + 1, Ordering::Release);
        }
        true
    }

    /// Removes a body. A reader that found it before may still read its entry. For one writer at a
    /// time.
    pub(super) fn remove(&self, entry: *const MapEntry) {
        let mut words = self.used().iter().enumerate();
        let its = words.find(|(_, word)| entry_of(word.load(Ordering::Relaxed)) == Some(entry));
        if let Some((at, word)) = its {
            word.store(0, Ordering::Release);
            self.live
                .store(self.live.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            let full = self.full.load(Ordering::Relaxed);
            self.full.store(full.min(at), Ordering::Relaxed);
        }
    }
}
