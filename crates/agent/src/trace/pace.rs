//! Computes how many methods one ReJIT request contains, and the pause before the next request.
//!
//! Invariant: a request takes about [`BUDGET`] at most, or contains a single method.

use std::time::Duration;

use super::MatchedMethod;

/// Target duration of a request. Meanwhile the program may wait for locks that the runtime holds.
const BUDGET: Duration = Duration::from_millis(20);
/// Maximum number of methods in a request. A method that was inlined into others takes longer than
/// most.
const MOST: usize = 64;
/// Maximum pause after a request. The pause is as long as the request took.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Cost class of a method's request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum RequestKind {
    /// The method has one body.
    Plain,
    /// The runtime searches all assemblies for its instances.
    Generic,
}

impl RequestKind {
    pub(super) fn of(method: &MatchedMethod) -> RequestKind {
        /// `IMAGE_CEE_CS_CALLCONV_GENERIC`.
        const GENERIC: u8 = 0x10;
        let is_generic = method.signature.first().is_some_and(|by| by & GENERIC != 0);
        match is_generic || method.type_name.contains('`') {
            true => RequestKind::Generic,
            false => RequestKind::Plain,
        }
    }
}

/// Sizes of requests that take about the budget, adapted after each request.
#[derive(Debug)]
pub(super) struct RequestPace {
    plain: usize,
    generic: usize,
    /// The pause to make before the next request.
    owed: Duration,
}

impl Default for RequestPace {
    fn default() -> RequestPace {
        RequestPace {
            plain: 8,
            generic: 1,
            owed: Duration::ZERO,
        }
    }
}

impl RequestPace {
    pub(super) fn size(&self, kind: RequestKind) -> usize {
        match kind {
            RequestKind::Plain => self.plain,
            RequestKind::Generic => self.generic,
        }
    }

    /// Returns the next request for a queue of methods of these kinds: the kind of the first, and
    /// the number of methods.
    pub(super) fn next(
        &self,
        kinds: impl Iterator<Item = RequestKind>,
    ) -> Option<(RequestKind, usize)> {
        let mut kinds = kinds.peekable();
        let first = *kinds.peek()?;
        let some = kinds.take(self.size(first));
        Some((first, some.take_while(|kind| *kind == first).count()))
    }

    /// Adapts the size after a request for this many methods, which took this long.
    pub(super) fn after(&mut self, kind: RequestKind, count: usize, took: Duration) {
        let size = match kind {
            RequestKind::Plain => &mut self.plain,
            RequestKind::Generic => &mut self.generic,
        };
        self.owed = (self.owed + took).min(LONGEST_PAUSE);
        if took > BUDGET {
            let fits = count as u128 * BUDGET.as_nanos() / took.as_nanos();
            *size = usize::try_from(fits).unwrap_or(MOST).clamp(1, MOST);
        } else if took < BUDGET / 2 && count == *size {
            *size = (*size * 2).min(MOST);
        }
    }

    /// Takes the pause to make now.
    pub(super) fn pause(&mut self) -> Duration {
        std::mem::take(&mut self.owed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn requests_grow_while_they_are_fast_and_shrink_to_the_budget() {
        let mut pace = RequestPace::default();
        for expected in [16, 32, MOST, MOST] {
            pace.after(RequestKind::Plain, pace.size(RequestKind::Plain), MS);
            assert_eq!(pace.size(RequestKind::Plain), expected);
        }
        pace.after(RequestKind::Plain, MOST, 80 * MS);
        assert_eq!(pace.size(RequestKind::Plain), MOST / 4);
        // The last, smaller request of a module does not show that larger ones are fast.
        pace.after(RequestKind::Plain, 1, MS);
        assert_eq!(pace.size(RequestKind::Plain), MOST / 4);
        assert_eq!(pace.size(RequestKind::Generic), 1);
        pace.after(RequestKind::Generic, 1, 3000 * MS);
        assert_eq!(pace.size(RequestKind::Generic), 1);
        assert_eq!(pace.pause(), LONGEST_PAUSE);
        assert_eq!(pace.pause(), Duration::ZERO);
        pace.after(RequestKind::Plain, 1, 3 * MS);
        assert_eq!(pace.pause(), 3 * MS);
    }
}
