//! Options that select samples to show: `--process`, `--thread`, `--focus` and `--ignore`.
//!
//! All verbs that show a recording share them. `profile::ops::Filter` does the matching.
//! Invariants: the result states what was left out. If nothing is left, the error has the reason
//! and the available names.

use anyhow::{Result, bail};
use clap::Args;
use profile::Profile;
use profile::ops::{Filter, GroupBy, StackView, totals};
use regex::Regex;

/// Help heading of these options.
const PART: &str = "Filters";
/// Maximum number of names that an error lists.
const MAX_NAMES: usize = 10;

/// The part of a recording that is shown. Each option may be given several times; a match of any of
/// its values is enough.
#[derive(Args, Debug, Default)]
pub(crate) struct FilterArgs {
    /// Only processes of this name, as --by process shows it (* is a wildcard), or PID; may be
    /// given several times, as the three below
    #[arg(long, value_name = "NAME|PID", value_parser = NamePattern::parse, help_heading = PART)]
    pub(crate) process: Vec<NamePattern>,

    /// Only threads of this name (* is a wildcard) or TID
    #[arg(long, value_name = "NAME|TID", value_parser = NamePattern::parse, help_heading = PART)]
    pub(crate) thread: Vec<NamePattern>,

    /// Only stacks with a frame whose name matches
    #[arg(long, value_name = "REGEX", value_parser = regex, help_heading = PART)]
    pub(crate) focus: Vec<Regex>,

    /// Only stacks without a frame whose name matches
    #[arg(long, value_name = "REGEX", value_parser = regex, help_heading = PART)]
    pub(crate) ignore: Vec<Regex>,
}

/// A pattern for a process or thread by name or id. `*` stands for anything, and `.dll` at the end
/// of a name may be omitted.
#[derive(Clone, Debug)]
pub(crate) struct NamePattern {
    text: String,
    regex: Regex,
}

impl NamePattern {
    /// Parses a pattern from the command line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("expected a name or a number".into());
        }
        let parts: Vec<String> = text.split('*').map(regex::escape).collect();
        let regex = Regex::new(&format!(r"^(?i:{})(?:\.dll)?$", parts.join(".*")));
        Ok(Self {
            text: text.to_owned(),
            regex: regex.map_err(|error| error.to_string())?,
        })
    }

    /// Whether a process or thread of this name matches.
    pub(crate) fn is_match(&self, name: &str) -> bool {
        self.regex.is_match(name)
    }

    /// The pattern as typed.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Parses a regular expression from the command line.
pub(crate) fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| {
        // The library marks the position of the error, and describes it in the last line.
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default().trim();
        let what = last.strip_prefix("error: ").unwrap_or(last);
        format!("not a regular expression: {what}")
    })
}

/// The selected part of a recording.
pub(crate) struct FilteredProfile {
    pub(crate) profile: Profile,
    /// Why nothing is left, if nothing is.
    pub(crate) nothing_left: Option<String>,
}

impl FilteredProfile {
    /// Returns the profile.
    ///
    /// # Errors
    /// Nothing is left in the profile.
    pub(crate) fn some(self) -> Result<Profile> {
        match self.nothing_left {
            Some(why) => bail!("{why}"),
            None => Ok(self.profile),
        }
    }
}

/// Options with the same filter, and what to list if no sample is left.
struct FilterStep {
    description: String,
    filter: Filter,
    of: &'static str,
    by: GroupBy,
}

impl FilterArgs {
    /// Removes what was not selected, and adds the number of remaining samples to the profile's
    /// notes.
    pub(crate) fn apply(&self, mut profile: Profile, stacks: StackView) -> FilteredProfile {
        let steps = self.steps(stacks);
        let whole = profile.samples.len();
        let mut nothing_left = None;
        for step in &steps {
            let there_is = step.available(&profile);
            profile = step.filter.apply(profile);
            // A dump has threads without a stack.
            let has_threads = profile.threads.iter().any(|thread| thread.state.is_some());
            if profile.samples.is_empty() && !has_threads && nothing_left.is_none() {
                nothing_left = Some(format!("{} matches nothing: {there_is}", step.description));
            }
        }
        if !steps.is_empty() {
            let left = profile.samples.len();
            let description: Vec<&str> = steps.iter().map(|step| &*step.description).collect();
            let description = format!(
                "{left} of {whole} samples are shown: {}",
                description.join(" ")
            );
            profile.health.notes.insert(0, description);
        }
        FilteredProfile {
            profile,
            nothing_left,
        }
    }

    /// Whether any option was given.
    pub(crate) fn is_any_given(&self) -> bool {
        !self.steps(StackView::default()).is_empty()
    }

    /// Returns the filter of each given option.
    fn steps(&self, stacks: StackView) -> Vec<FilterStep> {
        let names = |names: &[NamePattern]| names.iter().map(|name| name.regex.clone()).collect();
        let typed = |names: &[NamePattern]| names.iter().map(|name| name.text.clone()).collect();
        let written = |regexes: &[Regex]| regexes.iter().map(Regex::to_string).collect();
        let whole = || Filter {
            stacks,
            ..Filter::default()
        };
        let rows: [(&str, Vec<String>, Filter, &'static str, GroupBy); 4] = [
            (
                "--process",
                typed(&self.process),
                Filter {
                    process: names(&self.process),
                    ..whole()
                },
                "processes",
                GroupBy::Process,
            ),
            (
                "--thread",
                typed(&self.thread),
                Filter {
                    thread: names(&self.thread),
                    ..whole()
                },
                "threads",
                GroupBy::Thread,
            ),
            (
                "--focus",
                written(&self.focus),
                Filter {
                    frame: self.focus.clone(),
                    ..whole()
                },
                "methods",
                GroupBy::Method,
            ),
            (
                "--ignore",
                written(&self.ignore),
                Filter {
                    no_frame: self.ignore.clone(),
                    ..whole()
                },
                "methods",
                GroupBy::Method,
            ),
        ];
        let given = rows.into_iter().filter(|row| !row.1.is_empty());
        let steps = given.map(|(option, words, filter, of, by)| {
            let description = words.iter().map(|word| format!("{option} '{word}'"));
            FilterStep {
                description: description.collect::<Vec<_>>().join(" "),
                filter,
                of,
                by,
            }
        });
        steps.collect()
    }
}

impl FilterStep {
    /// `there are samples of the processes a (1), b (2) and 3 more`.
    fn available(&self, profile: &Profile) -> String {
        let rows = totals(profile, self.by, |_| true);
        if rows.is_empty() {
            return "earlier filters left no samples".to_owned();
        }
        let names: Vec<String> = rows
            .iter()
            .take(MAX_NAMES)
            .map(|row| formats::visible(&row.group.label).into_owned())
            .collect();
        let more = match rows.len().saturating_sub(MAX_NAMES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!(
            "the recording has the {} {}{more}",
            self.of,
            names.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of such a regex is a comment, after which nothing can be appended.
    #[test]
    fn regexes_are_taken_as_they_are() {
        let choice = |focus: &[&str]| FilterArgs {
            focus: focus.iter().map(|text| regex(text).unwrap()).collect(),
            ..FilterArgs::default()
        };
        let left = |focus: &[&str]| {
            let whole = profile::testing::tree().profile();
            let chosen = choice(focus).apply(whole, StackView::Logical);
            chosen.profile.samples.len()
        };
        let worker = left(&["Tools[.]Worker"]);
        assert!(worker > 0);
        assert_eq!(left(&["(?x) Tools [.] Worker # that one"]), worker);
        assert_eq!(left(&["(?x) Nowhere # it is", "Worker"]), worker);
        assert_eq!(left(&["(?x) Nowhere # it is"]), 0);
    }
}
