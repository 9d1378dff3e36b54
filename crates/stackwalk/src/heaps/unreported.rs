//! Unreported code: bodies that a walk finds in the code heaps before they are in the code map.
//!
//! A walk marks each body that it finds. The mark remains until the agent thread has added the body
//! to the code map ([`UnreportedCode::learned`]), or has read all stacks recorded up to the find
//! ([`UnreportedCode::age`]). When a body is unloaded, its mark tells the agent that a stack may
//! contain it. Invariants: nothing is locked, and every loop is bounded. If the table of marks is
//! full, every body counts as marked.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::{CodeHeaps, HeapCode};

/// Maximum number of runtimes.
const RUNTIMES: usize = 8;
/// Maximum number of marks.
const MARKS: usize = 4096;
/// Maximum number of places that are tried for a mark.
const TRIES: usize = 16;

/// The searched heaps, and the marks of found bodies.
pub(crate) struct UnreportedCode {
    /// Never freed, because a walk may be reading them.
    heaps: [AtomicPtr<CodeHeaps>; RUNTIMES],
    /// Starts of found bodies, with the generation of the find in the lowest bits; 0: free.
    marks: [AtomicU64; MARKS],
    generation: AtomicU64,
    /// Whether no body was found since the marks were empty.
    is_aged: AtomicBool,
    /// Whether there was no room for a mark, in this generation and in the last.
    is_full: [AtomicBool; 2],
}

/// Number of generations; it fits because code starts at multiples of 4 (`CODE_ALIGN`).
const GENERATIONS: u64 = 4;

impl UnreportedCode {
    pub(crate) const fn new() -> Self {
        Self {
            heaps: [const { AtomicPtr::new(std::ptr::null_mut()) }; RUNTIMES],
            marks: [const { AtomicU64::new(0) }; MARKS],
            generation: AtomicU64::new(0),
            is_aged: AtomicBool::new(true),
            is_full: [const { AtomicBool::new(false) }; 2],
        }
    }

    /// Adds the heaps of a runtime to the search, until the process ends. Returns false if there
    /// are too many runtimes.
    pub(crate) fn add(&self, heaps: CodeHeaps) -> bool {
        let new = Box::into_raw(Box::new(heaps));
        let null = std::ptr::null_mut();
        let mut places = self.heaps.iter();
        let added = places.any(|place| {
            // Release: pairs with the Acquire in `code_at`.
            place
                .compare_exchange(null, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        if !added {
            // SAFETY: made above, and stored nowhere.
            drop(unsafe { Box::from_raw(new) });
        }
        added
    }

    /// Returns the body at an address. Async-signal-safe.
    pub(crate) fn code_at(&self, address: u64) -> Option<HeapCode> {
        self.heaps.iter().find_map(|place| {
            // SAFETY: null, or made by `add` and never freed.
            let heaps = unsafe { place.load(Ordering::Acquire).as_ref() }?;
            heaps.code_at(address)
        })
    }

    fn places(&self, start: u64) -> impl Iterator<Item = &AtomicU64> {
        // Code starts at multiples of 16 or 32, with thousands of bodies next to each other.
        let first = (start >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        (0..TRIES).filter_map(move |at| self.marks.get((first as usize + at) % MARKS))
    }

    /// Marks a body that a walk has found. Async-signal-safe.
    pub(crate) fn mark_walked(&self, code: HeapCode) {
        let mark = code.start | self.generation.load(Ordering::Relaxed);
        self.is_aged.store(false, Ordering::Relaxed);
        for place in self.places(code.start) {
            let now = place.load(Ordering::Relaxed);
            if now == mark {
                return;
            }
            if now == 0 || start_of(now) == code.start {
                let order = Ordering::Relaxed;
                if place.compare_exchange(now, mark, order, order).is_ok() {
                    return;
                }
            }
        }
        self.is_full[0].store(true, Ordering::Relaxed);
    }

    /// Whether a walk may have found the body that starts there, in this generation or the last,
    /// since [`UnreportedCode::learned`].
    pub(crate) fn was_walked(&self, start: u64) -> bool {
        self.is_full.iter().any(|full| full.load(Ordering::Relaxed))
            || (self.places(start)).any(|place| start_of(place.load(Ordering::Relaxed)) == start)
    }

    /// Removes the mark of the body that starts there: it is in the map now, or unloaded.
    pub(crate) fn learned(&self, start: u64) {
        if self.is_aged.load(Ordering::Relaxed) {
            return;
        }
        for place in self.places(start) {
            let now = place.load(Ordering::Relaxed);
            if start_of(now) == start {
                let order = Ordering::Relaxed;
                let _other = place.compare_exchange(now, 0, order, order);
            }
        }
    }

    /// Begins the next generation: stacks that are still to be read contain no body that was found
    /// before the last one. One caller at a time.
    pub(crate) fn age(&self) {
        let order = Ordering::Relaxed;
        if self.is_aged.load(order) {
            return;
        }
        let last = self.generation.load(order);
        let next = (last + 1) % GENERATIONS;
        let [now, before] = &self.is_full;
        before.store(now.swap(false, order), order);
        self.generation.store(next, order);
        let mut is_empty = !before.load(order);
        self.is_aged.store(is_empty, order);
        for place in &self.marks {
            let mark = place.load(order);
            let generation = mark % GENERATIONS;
            let is_old = mark != 0 && generation != last && generation != next;
            if is_old && place.compare_exchange(mark, 0, order, order).is_ok() {
                continue;
            }
            is_empty &= mark == 0;
        }
        if !is_empty {
            self.is_aged.store(false, order);
        }
    }
}

fn start_of(mark: u64) -> u64 {
    mark & !(GENERATIONS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(start: u64) -> HeapCode {
        HeapCode {
            start,
            function: 1,
            may_go: true,
        }
    }

    #[test]
    fn a_body_is_marked_until_it_is_learned() {
        let unreported = Box::new(UnreportedCode::new());
        assert!(!unreported.was_walked(0x1000));
        unreported.mark_walked(code(0x1000));
        unreported.mark_walked(code(0x1000));
        unreported.mark_walked(code(0x1020));
        assert!(
            unreported.was_walked(0x1000)
                && unreported.was_walked(0x1020)
                && !unreported.was_walked(0x1040)
        );
        unreported.learned(0x1000);
        assert!(!unreported.was_walked(0x1000) && unreported.was_walked(0x1020));
    }

    #[test]
    fn a_body_is_marked_for_two_generations() {
        let unreported = Box::new(UnreportedCode::new());
        unreported.mark_walked(code(0x1000));
        unreported.age();
        unreported.mark_walked(code(0x1020));
        assert!(unreported.was_walked(0x1000) && unreported.was_walked(0x1020));
        unreported.age();
        assert!(!unreported.was_walked(0x1000) && unreported.was_walked(0x1020));
        unreported.mark_walked(code(0x1020));
        unreported.age();
        assert!(unreported.was_walked(0x1020));
        unreported.age();
        assert!(!unreported.was_walked(0x1020) && unreported.is_aged.load(Ordering::Relaxed));
    }

    #[test]
    fn where_there_is_no_room_everything_was_walked() {
        let unreported = Box::new(UnreportedCode::new());
        for number in 0..2 * MARKS as u64 {
            unreported.mark_walked(code(0x10_0000 + number * 32));
        }
        assert!(unreported.was_walked(8));
        unreported.age();
        assert!(unreported.was_walked(8));
        unreported.age();
        unreported.age();
        assert!(!unreported.was_walked(8) && unreported.is_aged.load(Ordering::Relaxed));
    }
}
