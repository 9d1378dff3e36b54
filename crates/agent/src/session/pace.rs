//! How long the agent thread sleeps from one round to the next.
//!
//! It looks at no clock and no thread; it is told whether a round found anything. Invariants: what
//! a round found is followed by short rounds; without anything the rounds become longer, to a
//! bound, so that a program that sleeps is not woken for nothing.

/// Between two rounds, while the runtime starts and threads and modules come by the dozen.
const EARLY_NS: u64 = 10_000_000;
/// How long that takes.
const EARLY_LASTS_NS: u64 = 300_000_000;
/// Between two rounds while the program starts. Each wakes another processor, which the kernel then
/// has to notify of every change of the memory's mapping.
const START_NS: u64 = 30_000_000;
/// How long that takes, both together.
const START_LASTS_NS: u64 = 1_000_000_000;
/// Between two rounds later; a ring that fills up asks for one earlier.
const ROUND_NS: u64 = 100_000_000;
/// Between two rounds while an exception waits for its handler: the program may end by it, and is
/// then gone some tens of milliseconds after the throw.
const SEARCH_NS: u64 = 2_000_000;
/// How many times longer a round is than the last where nothing comes.
const GROWTH: u64 = 3;
/// Between two rounds at most. A native thread that others make without using CPU time themselves
/// is found so late.
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
    /// Nothing that was not known.
    Nothing,
    /// Something.
    Something,
    /// An exception that waits for its handler.
    Search,
}

impl Pace {
    /// Of a session that begins now.
    pub(super) fn new(now_ns: u64) -> Pace {
        Pace {
            start_ns: now_ns,
            round_ns: EARLY_NS,
        }
    }

    /// From the beginning of the last round to the next, nanoseconds.
    pub(super) fn round_ns(&self) -> u64 {
        self.round_ns
    }

    /// Whether the next round is far off, so that what happens meanwhile should call for an earlier
    /// one.
    pub(super) fn is_idle(&self) -> bool {
        self.round_ns > ROUND_NS
    }

    /// A round is over.
    pub(super) fn after(&mut self, now_ns: u64, found: RoundResult) {
        let short = match now_ns.saturating_sub(self.start_ns) {
            0..EARLY_LASTS_NS => EARLY_NS,
            EARLY_LASTS_NS..START_LASTS_NS => START_NS,
            START_LASTS_NS.. => ROUND_NS,
        };
        self.round_ns = match found {
            RoundResult::Search => SEARCH_NS,
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
        use RoundResult::{Nothing, Search, Something};
        let early = [Something, Nothing, Nothing, Nothing, Nothing, Nothing];
        assert_eq!(lengths(2000, &early), [10, 30, 90, 270, 500, 500]);
        assert_eq!(lengths(3000, &[Something, Nothing]), [10, 30]);
        assert_eq!(lengths(400_000_000, &[Nothing, Something]), [90, 30]);
        let later = [
            Nothing, Something, Nothing, Nothing, Nothing, Search, Nothing,
        ];
        assert_eq!(
            lengths(2_000_000_000, &later),
            [100, 100, 300, 500, 500, 2, 100]
        );
        assert!(!pace.is_idle());
    }
}
