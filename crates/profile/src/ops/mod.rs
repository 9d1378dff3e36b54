//! Operations on profiles for reports: sums, trees, filters, comparison.
//!
//! Text layout is in `formats` and `cli`. Invariants: the self sums of any grouping add up to all
//! samples; every order is deterministic.

mod counts;
mod depth;
mod details;
mod diff;
mod filter;
mod group;
mod live;
mod runtime_work;
mod signatures;
mod stack_view;
mod totals;
mod tree;

pub use counts::Counts;
pub(crate) use counts::{RuntimeSets, add, most_first};
pub use depth::{cut, depths, expanded_frames};
pub use details::{has_details, texts, with_details};
pub use diff::{AmountPair, Diff, DiffRequest, DiffRow, ERROR, Scaling, Side, diff, merge_sides};
pub use filter::{Filter, begin_ns, begin_unix_ns, duration_threshold, without_native};
pub use group::{Group, GroupBy, Groups, Runtimes, runtime_labels};
pub use live::{LiveType, live_types, objects_of, size_in};
pub use runtime_work::with_runtime_work;
pub(crate) use runtime_work::{GC_FRAME, mark};
pub use signatures::with_signatures;
pub use stack_view::{StackView, has_logical, with_stack_view};
pub use totals::{TotalsRow, events, main_event, main_of, order, totals};
pub use tree::{Direction, Node, Tree};

/// Number of samples and sum of their values, in the unit of their event. The sum over several
/// events has no meaning.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Weight {
    /// Sum of the values (nanoseconds, bytes, pieces).
    pub value: u64,
    /// Samples.
    pub samples: u64,
}

impl Weight {
    /// Returns the weight of one sample with this value.
    #[must_use]
    pub fn of(value: u64) -> Weight {
        Weight { value, samples: 1 }
    }
}

impl std::ops::AddAssign for Weight {
    fn add_assign(&mut self, other: Weight) {
        self.value = self.value.saturating_add(other.value);
        self.samples = self.samples.saturating_add(other.samples);
    }
}
