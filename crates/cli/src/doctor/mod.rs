//! `sidewalk doctor [PID]`: checks what recording, attaching and perf need, by trying each.
//!
//! Problems are reported with a fix, not repaired.
//! Invariants: no check guesses from a version or a setting if it can be tried. A trial leaves
//! nothing behind. The exit code is 1 if recording would not work.

mod machine;
mod process;
mod trial;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use formats::visible;

use crate::args::DoctorArgs;
use crate::record::EmbeddedAgents;

/// The result of a trial.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Finding {
    /// Works. The text says how.
    Ok(String),
    /// Recording works without it. The text says what is missing, and the fix.
    Limited(String),
    /// Recording does not work without it. The text says what is wrong, and the fix.
    NotOk(String),
}

/// One check, printed as one line.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Check {
    /// The requirement of recording that was checked.
    what: &'static str,
    finding: Finding,
}

impl Check {
    fn ok(what: &'static str, how: impl Into<String>) -> Self {
        let finding = Finding::Ok(how.into());
        Self { what, finding }
    }

    fn limited(what: &'static str, how: impl Into<String>) -> Self {
        let finding = Finding::Limited(how.into());
        Self { what, finding }
    }

    fn not_ok(what: &'static str, why: impl Into<String>) -> Self {
        let finding = Finding::NotOk(why.into());
        Self { what, finding }
    }

    fn line(&self) -> String {
        let (state, text) = match &self.finding {
            Finding::Ok(text) => ("ok", text),
            Finding::Limited(text) => ("limited", text),
            Finding::NotOk(text) => ("not ok", text),
        };
        // One line for each check, whatever a path or an error contains.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{state:<8} {:<18} {}\n", self.what, visible(&text))
    }
}

/// Runs the verb. The exit code is 1 if recording would not work.
pub(crate) fn run(args: &DoctorArgs, embedded: EmbeddedAgents) -> Result<ExitCode> {
    let mut checks = machine::checks(embedded);
    if let Some(pid) = args.pid {
        // Obstacles to recording programs that are started here do not affect a running process.
        checks.retain(|check| check.what != machine::ENVIRONMENT);
        checks.extend(process::checks(pid, embedded));
    }
    let text: String = checks.iter().map(Check::line).collect();
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(exit_code(&checks))
}

fn exit_code(checks: &[Check]) -> ExitCode {
    let fails = |check: &Check| matches!(check.finding, Finding::NotOk(_));
    if checks.iter().any(fails) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_one_line_and_acts_on_no_terminal() {
        let check = Check::not_ok("agent", "a\nb \x1b[2J");
        assert_eq!(check.line(), "not ok   agent              a b \\u{1b}[2J\n");
    }

    #[test]
    fn only_what_recording_needs_fails() {
        let fine = [Check::ok("a", "x"), Check::limited("b", "y")];
        assert_eq!(exit_code(&fine), ExitCode::SUCCESS);
        let broken = [Check::ok("a", "x"), Check::not_ok("b", "y")];
        assert_eq!(exit_code(&broken), ExitCode::FAILURE);
    }
}
