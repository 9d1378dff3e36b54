//! The JITted bodies of one chunk of the address space, in no order.
//!
//! Not a map of anything: the code map decides which chunk has which bucket, and who may still read
//! an entry that is in none. Invariant: one atomic word is one whole body (where in the chunk it
//! begins, and where its entry is), so a reader sees a body or does not, whatever is put in or
//! taken out beside it meanwhile; only a bucket that is full is copied.
//!
//! Why not sorted: methods that are made and collected all the time (expression trees,
//! DynamicMethods) get addresses that were in use before, and each would move what lies behind it.
//! A chunk has some dozens of words in a row, which are read in less time than a method's entry is
//! fetched from memory.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::MapEntry;

/// Bits of a word that say where the entry is; those above say where in its chunk the body begins.
/// 0 is no body.
const ENTRY_BITS: u32 = 48;
const ENTRY: u64 = (1 << ENTRY_BITS) - 1;

/// Words in the first bucket of a chunk: two cache lines, as many methods of a kilobyte as a chunk
/// holds.
const FIRST: usize = 16;

/// Disjoint bodies of one chunk.
pub(super) struct Bucket {
    words: Box<[AtomicU64]>,
    /// The words behind these were never used.
    used: AtomicUsize,
    /// All words before this one are bodies. For writers.
    full: AtomicUsize,
    /// So many words are bodies. For writers.
    live: AtomicUsize,
    /// No body that was ever in it has an address from here on. For writers.
    end: AtomicU64,
}

/// The word of a body that begins at `offset` of its chunk, 0 for one that reaches into it.
fn word_of(offset: u16, entry: *const MapEntry) -> u64 {
    // A pointer of user space: `ADDRESS_LIMIT` is below 2^48.
    u64::from(offset) << ENTRY_BITS | entry as u64
}

fn entry_of(word: u64) -> Option<*const MapEntry> {
    let entry = (word & ENTRY) as *const MapEntry;
    (!entry.is_null()).then_some(entry)
}

impl Bucket {
    /// The words of `old`, with room for as much again.
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

    /// Size in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.words) + size_of::<Self>()
    }

    fn used(&self) -> &[AtomicU64] {
        // A reader that sees a number sees the words that were used by then, or later ones, which
        // are as good.
        let used = self.used.load(Ordering::Acquire);
        self.words.get(..used).unwrap_or_default()
    }

    /// All that is in it now.
    fn words(&self) -> impl Iterator<Item = u64> {
        // Pairs with the stores in `insert`: what an entry says was written before.
        let words = self.used().iter().map(|word| word.load(Ordering::Acquire));
        words.filter(|word| *word != 0)
    }

    /// The entries of all bodies that are in it now.
    pub(super) fn entries(&self) -> impl Iterator<Item = *const MapEntry> {
        self.words().filter_map(entry_of)
    }

    /// Whether nothing is in it. For writers.
    pub(super) fn is_empty(&self) -> bool {
        self.live.load(Ordering::Relaxed) == 0
    }

    /// Whether all that is in it lies before this address: where the next body of a heap that grows
    /// begins. For writers.
    pub(super) fn lies_before(&self, address: u64) -> bool {
        self.end.load(Ordering::Relaxed) <= address
    }

    /// The last body that begins at `offset` or before it. It need not reach so far.
    /// Async-signal-safe.
    pub(super) fn at(&self, offset: u16) -> Option<*const MapEntry> {
        self.around(offset, 0).0
    }

    /// [`at`](Self::at), and a body that begins behind `offset` and before `end`.
    pub(super) fn around(
        &self,
        offset: u16,
        end: u64,
    ) -> (Option<*const MapEntry>, Option<*const MapEntry>) {
        let limit = u64::from(offset) << ENTRY_BITS | ENTRY;
        let behind = end.min(u16::MAX.into()) << ENTRY_BITS;
        let (mut last, mut within) = (0, 0);
        for word in self.used() {
            // As in `words`. One that is 0 is as good as none here.
            let word = word.load(Ordering::Acquire);
            let is_before = word <= limit;
            last = if is_before { word.max(last) } else { last };
            let is_within = !is_before && word < behind;
            within = if is_within { word } else { within };
        }
        (entry_of(last), entry_of(within))
    }

    /// The body that begins at `offset`, or one that reaches into the chunk, for 0; and whether any
    /// lies in that offset's page.
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

    /// Adds a body that shares no address with another, up to the address `end`. False, and nothing
    /// done, where no room is left. For one writer at a time.
    pub(super) fn insert(&self, offset: u16, end: u64, entry: *const MapEntry) -> bool {
        let word = word_of(offset, entry);
        let used = self.used().len();
        let full = self.full.load(Ordering::Relaxed);
        let mut from_full = self.words.iter().enumerate().skip(full);
        // Behind `used` all are free.
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

    /// Takes a body out. Who has found it before may still read its entry. For one writer at a
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
