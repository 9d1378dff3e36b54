//! Facts about a process that rules are matched against.
//!
//! Invariant: a fact that cannot be read is empty, and then only a rule that does not ask for it
//! matches.

use std::collections::HashMap;

use diagnostics::Target;

use crate::running;

/// Facts about a process.
pub(super) struct ProcessFacts {
    /// Its name, as `report --by process` shows it.
    pub(super) name: String,
    pub(super) user: String,
    /// The paths of its control groups.
    pub(super) cgroups: Vec<String>,
    /// Variables of its environment.
    pub(super) variables: HashMap<String, String>,
}

impl ProcessFacts {
    /// Reads the facts about a process.
    pub(super) fn of(target: &Target) -> ProcessFacts {
        let process = target.process();
        let words = running::command(target);
        let cgroups = process.cgroups().ok();
        let variables = process.environ().unwrap_or_default().into_iter();
        ProcessFacts {
            name: profile::names::process(&words).unwrap_or_default(),
            user: process.uid().map(running::user_name).unwrap_or_default(),
            cgroups: cgroups
                .into_iter()
                .flatten()
                .map(|group| group.pathname)
                .collect(),
            variables: variables
                .map(|(name, value)| {
                    (
                        name.to_string_lossy().into_owned(),
                        value.to_string_lossy().into_owned(),
                    )
                })
                .collect(),
        }
    }

    /// A variable of its environment.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }
}
