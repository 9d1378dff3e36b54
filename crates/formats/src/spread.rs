//! Distribution of traced calls over durations: a strip of cells per method, all on one scale.
//!
//! A cell is one or several powers of two of nanoseconds. Invariants: the scale covers the shortest
//! to the longest call of all methods; a cell with a call is never drawn empty.

use std::ops::RangeInclusive;

use profile::model::TracedMethod;

/// Bar characters by height, from none.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The common scale of several methods' strips (histograms of call durations).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpreadScale {
    octaves: RangeInclusive<u32>,
    /// Number of powers of two per cell.
    step: u32,
}

impl SpreadScale {
    /// Returns the scale for methods, or `None` if none was called.
    pub(crate) fn of<'a>(
        methods: impl IntoIterator<Item = &'a TracedMethod>,
        most_cells: u32,
    ) -> Option<SpreadScale> {
        let octaves = methods
            .into_iter()
            .flat_map(|one| one.octaves().into_keys());
        let (low, high) = octaves.fold(None, |range: Option<(u32, u32)>, at| {
            let (low, high) = range.unwrap_or((at, at));
            Some((low.min(at), high.max(at)))
        })?;
        Some(SpreadScale {
            octaves: low..=high,
            step: (high - low + 1).div_ceil(most_cells.max(1)),
        })
    }

    /// Returns the start of each cell in nanoseconds, then the end of the last one.
    pub(crate) fn bounds(&self) -> Vec<u64> {
        let cells = (self.octaves.end() - self.octaves.start()) / self.step + 1;
        (0..=cells)
            .map(|cell| TracedMethod::octave_ns(self.octaves.start() + cell * self.step))
            .collect()
    }

    /// Returns the number of calls by cell.
    pub(crate) fn cells(&self, method: &TracedMethod) -> Vec<u64> {
        let mut cells = vec![0u64; self.bounds().len() - 1];
        for (octave, count) in method.octaves() {
            let at = octave.checked_sub(*self.octaves.start());
            if let Some(cell) = at.and_then(|at| cells.get_mut((at / self.step) as usize)) {
                *cell = cell.saturating_add(count);
            }
        }
        cells
    }

    /// Returns the cells as bars. Height is the logarithm of the count, so that one call in a
    /// million is visible.
    pub(crate) fn bars(&self, method: &TracedMethod) -> String {
        let cells = self.cells(method);
        let most = cells.iter().copied().max().unwrap_or(0);
        let last = (BARS.len() - 1) as f64;
        let height = |count: u64| match (count, most) {
            (0, _) => 0,
            (_, ..=1) => BARS.len() - 1,
            _ => (1.0 + (last - 1.0) * (count as f64).ln() / (most as f64).ln()).round() as usize,
        };
        let bar = |count: &u64| BARS.get(height(*count)).copied().unwrap_or('█');
        cells.iter().map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::model::{ProcessId, RuntimeId, StringId};

    /// Of buckets, of which 64 are a power of two.
    fn method(calls: &[(u32, u64)]) -> TracedMethod {
        TracedMethod {
            process: ProcessId(0),
            runtime: RuntimeId(0),
            name: StringId(0),
            module: StringId(0),
            token: 0x0600_0001,
            min_ns: 0,
            refused: String::new(),
            errors: 0,
            sum_ns: 0,
            max_ns: 0,
            buckets: calls.iter().copied().collect(),
        }
    }

    #[test]
    fn methods_have_one_scale() {
        let quick = method(&[(100, 1_000_000), (128, 900), (191, 100)]);
        let slow = method(&[(192, 1)]);
        let scale = SpreadScale::of([&quick, &slow], 20).unwrap();
        assert_eq!(scale.bounds(), [64, 128, 256, 512]);
        assert_eq!(scale.cells(&quick), [1_000_000, 1000, 0]);
        assert_eq!(
            (scale.bars(&quick), scale.bars(&slow)),
            ("█▅ ".into(), "  █".into())
        );
        assert_eq!(SpreadScale::of([&method(&[])], 20), None);
    }

    #[test]
    fn there_are_never_more_cells_and_no_call_is_without() {
        let wide = method(&[(0, 1), (1000, 5), (64 * 37 - 1, 1)]);
        for most in [1, 2, 7, 16, 37, 100] {
            let scale = SpreadScale::of([&wide], most).unwrap();
            let cells = scale.cells(&wide);
            assert!(cells.len() <= most as usize, "{most}");
            assert_eq!(cells.iter().sum::<u64>(), 7);
            let bounds = scale.bounds();
            assert!(bounds.is_sorted() && bounds.len() == cells.len() + 1);
            assert_eq!(scale.bars(&wide).chars().count(), cells.len());
            let filled = scale.bars(&wide).chars().filter(|bar| *bar != ' ').count();
            assert_eq!(filled, cells.iter().filter(|count| **count > 0).count());
        }
    }
}
