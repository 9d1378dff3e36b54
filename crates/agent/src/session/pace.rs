//! Computes how long the agent thread sleeps between two rounds (drains of the ring buffers).
//!
//! Pure arithmetic: the caller passes the time and whether the round found anything. Invariants: a
//! round that found something is followed by short rounds. Otherwise rounds become longer, up to a
//! bound, so that an idle program is not woken for nothing.

/// Time between two rounds while the runtime starts and threads and modules appear by the dozen.
const EARLY_NS: u64 = 10_000_000;
/// Duration of that phase.
const EARLY_LASTS_NS: u64 = 300_000_000;
/// Time between two rounds while the program starts. Each wakes another processor, which the kernel
/// must then notify of every change of the memory mapping.
const START_NS: u64 = 30_000_000;
/// End of the start, counted from the session's beginning.
const START_LASTS_NS: u64 = 1_000_000_000;
/// Time between two rounds later. A ring buffer that fills up causes an earlier round.
const ROUND_NS: u64 = 100_000_000;
/// Time between two rounds while an exception waits for its handler. If the exception ends the
/// program, it exits some tens of milliseconds after the throw.
const SEARCH_NS: u64 = 2_000_000;
/// Time between two rounds after one that learned a class or a method of async chains. Until then
/// such samples have no whole chain, and one unknown class hides the next.
const LEARNED_NS: u64 = 2_000_000;
/// Factor by which a round is longer than the last if nothing was found.
const GROWTH: u64 = 3;
/// Maximum time between two rounds. It is also the delay until a native thread is found if the
/// threads that start it use no CPU time.
const LONGEST_NS: u64 = 500_000_000;

/// The pace of a session.
#[derive(Debug)]
pub(super) struct Pace {
    start_ns: u64,
    round_ns: u64,
}

/// The result of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RoundResult {
    /// Nothing new.
    Nothing,
    /// Something new.
    Something,
    /// A class or a method of async chains that the handler did not know.
    Learned,
    /// An exception that waits for its handler.
    Search,
}

impl Pace {
    /// Returns the pace of a session that begins now.
    pub(super) fn new(now_ns: u64) -> Pace {
        Pace {
            start_ns: now_ns,
            round_ns: EARLY_NS,
        }
    }

    /// Returns the time from the beginning of the last round to the next, nanoseconds.
    pub(super) fn round_ns(&self) -> u64 {
        self.round_ns
    }

    /// Whether the next round is so late that new work should cause an earlier one.
    pub(super) fn is_idle(&self) -> bool {
        self.round_ns > ROUND_NS
    }

    /// Computes the next interval after a round.
    pub(super) fn after(&mut self, now_ns: u64, found: RoundResult) {
        let short = match now_ns.saturating_sub(self.start_ns) {
            0..EARLY_LASTS_NS => EARLY_NS,
            EARLY_LASTS_NS..START_LASTS_NS => START_NS,
            START_LASTS_NS.. => ROUND_NS,
        };
        self.round_ns = match found {
            RoundResult::Search => SEARCH_NS,
            RoundResult::Learned => LEARNED_NS,
            RoundResult::Something => short,
            RoundResult::Nothing => (self.round_ns * GROWTH).clamp(short, LONGEST_NS),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_become_longer_while_nothing_comes_and_short_again() {
        let mut pace = Pace::new(1000);
        let mut lengths = |now_ns, found: &[RoundResult]| -> Vec<u64> {
            let each = found.iter().map(|found| {
                pace.after(now_ns, *found);
                pace.round_ns() / 1_000_000
            });
            each.collect()
        };
        use RoundResult::{Learned, Nothing, Search, Something};
        let early = [Something, Nothing, Nothing, Nothing, Nothing, Nothing];
        assert_eq!(lengths(2000, &early), [10, 30, 90, 270, 500, 500]);
        assert_eq!(lengths(3000, &[Something, Nothing]), [10, 30]);
        assert_eq!(lengths(400_000_000, &[Nothing, Something]), [90, 30]);
        let later = [
            Nothing, Something, Nothing, Nothing, Nothing, Search, Nothing, Learned, Something,
        ];
        assert_eq!(
            lengths(2_000_000_000, &later),
            [100, 100, 300, 500, 500, 2, 100, 2, 100]
        );
        assert!(!pace.is_idle());
    }
}
