//! Stacks of a recording, parsed from the collapsed format, and queries on them for assertions.

use std::collections::BTreeMap;

/// Stacks with their numbers of samples.
#[derive(Debug, Clone, Default)]
pub struct Stacks {
    /// Frames leaf first, and samples.
    pub stacks: Vec<(Vec<String>, u64)>,
}

/// Whether a frame's name is `method` (`Namespace.Type.Method`), with or without type arguments,
/// parameters or a tier mark after it.
pub fn is_method(frame: &str, method: &str) -> bool {
    frame.strip_prefix(method).is_some_and(|rest| {
        rest.chars()
            .next()
            .is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '.')
    })
}

/// Whether a frame stands for a broken walk or unknown code.
pub fn is_hole(frame: &str) -> bool {
    frame.starts_with("[broken") || frame.starts_with("[unknown")
}

/// Checks a stack (leaf first) against `pattern`: `unmanaged` matches one or more frames that are
/// not the program's, `unmanaged?` any number. After the last element only the runtime's start-up
/// frames may follow.
///
/// # Errors
/// The first difference from the pattern.
pub fn is_stack(frames: &[String], pattern: &[&str]) -> Result<(), String> {
    let own = |frame: &String| frame.starts_with("Workloads.");
    let mut rest = frames;
    for part in pattern.iter().chain(&["unmanaged"]) {
        let strangers = rest.iter().take_while(|f| !own(f)).count();
        match *part {
            "unmanaged" | "unmanaged?" => {
                if let Some(hole) = rest[..strangers].iter().find(|f| is_hole(f)) {
                    return Err(format!("a hole, {hole}"));
                }
                if strangers == 0 && *part == "unmanaged" {
                    return Err(format!("no unmanaged frame before {:?}", rest.first()));
                }
                rest = &rest[strangers..];
            }
            method => match rest.split_first() {
                Some((frame, others)) if is_method(frame, method) => rest = others,
                other => return Err(format!("{:?} where {method} should be", other.map(|o| o.0))),
            },
        }
    }
    match rest.first() {
        None => Ok(()),
        Some(frame) => Err(format!("{frame} below the root")),
    }
}

impl Stacks {
    /// Reads the collapsed format: `root;…;leaf COUNT` in each line.
    ///
    /// # Panics
    /// When a line is not of that form.
    pub fn from_collapsed(text: &str) -> Stacks {
        let stacks = text
            .lines()
            .map(|line| {
                let (frames, count) = line
                    .rsplit_once(' ')
                    .unwrap_or_else(|| panic!("not collapsed: {line}"));
                let count = count
                    .parse()
                    .unwrap_or_else(|e| panic!("not collapsed: {line}: {e}"));
                (frames.split(';').rev().map(str::to_owned).collect(), count)
            })
            .collect();
        Stacks { stacks }
    }

    /// Total number of samples.
    pub fn total(&self) -> u64 {
        self.stacks.iter().map(|(_, count)| count).sum()
    }

    /// Returns the stacks with a frame of `method`.
    #[must_use]
    pub fn with(&self, method: &str) -> Stacks {
        let keep = |frames: &Vec<String>| frames.iter().any(|f| is_method(f, method));
        Stacks {
            stacks: self
                .stacks
                .iter()
                .filter(|(f, _)| keep(f))
                .cloned()
                .collect(),
        }
    }

    /// Returns the number of samples by caller of `method`. The pseudo-name `(nothing)` is for
    /// frames of `method` that end the stack.
    pub fn callers(&self, method: &str) -> BTreeMap<String, u64> {
        let mut callers = BTreeMap::new();
        for (frames, count) in &self.stacks {
            for (i, frame) in frames.iter().enumerate() {
                if is_method(frame, method) {
                    let caller = frames.get(i + 1).map_or("(nothing)", String::as_str);
                    *callers.entry(caller.to_owned()).or_insert(0) += count;
                }
            }
        }
        callers
    }

    /// Returns the `n` most frequent stacks as text, for messages.
    pub fn show(&self, n: usize) -> String {
        let mut stacks = self.stacks.clone();
        stacks.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        stacks
            .iter()
            .take(n)
            .map(|(frames, count)| {
                let shown: Vec<&str> = frames.iter().take(40).map(String::as_str).collect();
                format!("{count} samples of\n    {}\n", shown.join("\n    "))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_a_method_whatever_follows_the_name() {
        let table = [
            ("Workloads.Leaf.LeafAdd", true),
            ("Workloads.Leaf.LeafAdd(long, int)", true),
            ("Workloads.Leaf.LeafAdd<int>", true),
            ("Workloads.Leaf.LeafAdd [tier-1]", true),
            ("Workloads.Leaf.LeafAddMore", false),
            ("Workloads.Leaf.LeafAdd.Inner", false),
            ("Other.Workloads.Leaf.LeafAdd", false),
        ];
        for (frame, expected) in table {
            assert_eq!(
                is_method(frame, "Workloads.Leaf.LeafAdd"),
                expected,
                "{frame}"
            );
        }
    }

    #[test]
    fn callers_are_counted_per_frame() {
        let stacks = Stacks::from_collapsed("main;a;leaf 3\nmain;b;leaf 1\nleaf 2\nmain;a 5\n");
        let callers = stacks.callers("leaf");
        assert_eq!(
            callers.into_iter().collect::<Vec<_>>(),
            [
                ("(nothing)".to_owned(), 2),
                ("a".to_owned(), 3),
                ("b".to_owned(), 1)
            ]
        );
        assert_eq!(stacks.total(), 11);
        assert_eq!(stacks.with("a").total(), 8);
    }

    #[test]
    fn the_pattern_itself() {
        let pattern = [
            "unmanaged?",
            "Workloads.Mixed.D",
            "unmanaged",
            "Workloads.Mixed.C",
            "Workloads.Mixed.B",
        ];
        let table: [(&str, bool); 7] = [
            (
                "Workloads.Mixed.D;qsort;Workloads.Mixed.C;Workloads.Mixed.B;start",
                true,
            ),
            (
                "memcmp;Workloads.Mixed.D;a;b;Workloads.Mixed.C;Workloads.Mixed.B;start",
                true,
            ),
            (
                "Workloads.Mixed.D;Workloads.Mixed.C;Workloads.Mixed.B;start",
                false,
            ),
            ("Workloads.Mixed.D;qsort;Workloads.Mixed.B;start", false),
            (
                "Workloads.Mixed.D;qsort;Workloads.Mixed.C;x;Workloads.Mixed.B;start",
                false,
            ),
            (
                "Workloads.Mixed.D;[broken: x];Workloads.Mixed.C;Workloads.Mixed.B;start",
                false,
            ),
            (
                "Workloads.Mixed.D;qsort;Workloads.Mixed.C;Workloads.Mixed.B",
                false,
            ),
        ];
        for (stack, expected) in table {
            let frames: Vec<String> = stack.split(';').map(str::to_owned).collect();
            assert_eq!(is_stack(&frames, &pattern).is_ok(), expected, "{stack}");
        }
    }
}
