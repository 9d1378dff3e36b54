//! Traced methods for the page: numbers, and the distribution of call durations.

use profile::Profile;
use profile::model::TracedMethod;
use serde::Serialize;

use crate::spread::SpreadScale;
use crate::text::traced::{COLUMNS, name, numbers, ranked, time};

/// Maximum number of cells of a strip.
const MAX_CELLS: u32 = 37;
/// Maximum number of methods in the page.
const MAX_METHODS: usize = 1000;

#[derive(Serialize)]
pub(super) struct TracedHead {
    /// The meanings of the columns of `methods`.
    columns: Vec<&'static str>,
    /// The meaning of each cell of a strip.
    cells: Vec<String>,
    methods: Vec<MethodHead>,
}

#[derive(Serialize)]
struct MethodHead {
    name: String,
    says: Vec<String>,
    /// Calls by cell.
    cells: Vec<u64>,
}

/// Returns the traced methods, or `None` if no call was counted.
pub(super) fn head(profile: &Profile) -> Option<TracedHead> {
    let called = |one: &&TracedMethod| one.refused.is_empty() && one.calls() > 0;
    let methods: Vec<_> = ranked(profile)
        .into_iter()
        .filter(called)
        .take(MAX_METHODS)
        .collect();
    let scale = SpreadScale::of(methods.iter().copied(), MAX_CELLS)?;
    let method = |one: &TracedMethod| MethodHead {
        name: name(profile, one),
        says: numbers(one).into(),
        cells: scale.cells(one),
    };
    let bounds = scale.bounds();
    let between = bounds.windows(2).filter_map(|pair| match pair {
        [from, to] => Some(format!("{} to {}", time(*from), time(*to))),
        _ => None,
    });
    Some(TracedHead {
        columns: COLUMNS.into(),
        cells: between.collect(),
        methods: methods.iter().copied().map(method).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::model::{ProcessId, RuntimeId, StringId};

    #[test]
    fn methods_that_were_called_have_a_strip() {
        let mut profile = profile::testing::tiny().profile();
        assert!(head(&profile).is_none());
        let mut method = |name: &str, calls: &[(u64, u64)], refused: &str| {
            profile.strings.push(name.to_owned());
            // Below 128 each nanosecond has its own bucket. Bucket 192 begins at 256 ns, with four
            // in each.
            let bucket = |ns: u64| match ns {
                ..128 => ns as u32,
                _ => 192 + (ns as u32 - 256) / 4,
            };
            profile.traced.push(TracedMethod {
                process: ProcessId(0),
                runtime: RuntimeId(0),
                name: StringId(profile.strings.len() as u32 - 1),
                module: StringId(0),
                token: 0x0600_0001,
                min_ns: 0,
                refused: refused.to_owned(),
                errors: 1,
                sum_ns: calls.iter().map(|(ns, count)| ns * count).sum(),
                max_ns: calls.iter().map(|(ns, _)| *ns).max().unwrap_or(0),
                buckets: calls
                    .iter()
                    .map(|(ns, count)| (bucket(*ns), *count))
                    .collect(),
            });
        };
        method("Shop.Quick", &[(70, 9)], "");
        method("Shop.Slow", &[(300, 1), (90, 3)], "");
        method("Shop.Never", &[], "");
        method("Shop.Native", &[], "it has no IL");
        let head = head(&profile).expect("two were called");
        assert_eq!(
            head.cells,
            ["64 ns to 128 ns", "128 ns to 256 ns", "256 ns to 512 ns"]
        );
        let [quick, slow] = &head.methods[..] else {
            panic!("{} methods", head.methods.len());
        };
        assert!(quick.name.starts_with("Shop.Quick"));
        assert_eq!(quick.cells, [9, 0, 0]);
        assert_eq!(slow.cells, [3, 0, 1]);
        assert_eq!(slow.says[..4], ["4", "1", "570 ns", "142 ns"]);
        assert_eq!(slow.says.len(), head.columns.len());
    }
}
