//! Prints the texts of `sidewalk help`, `completions` and `man`.
//!
//! Invariant: verbs and options come from `args`, so a page or a completion cannot differ from the
//! command. Topics are separate texts; tests check that the names in them exist.

use std::ffi::OsString;
use std::io::{self, Write};

use anyhow::Result;
use clap::{Command, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::env::Shells;

use crate::args::{Cli, CompletionsArgs, HelpArgs, ManArgs};
use crate::topics;

/// Variable with which a shell's completion calls the tool, with the words so far.
const VARIABLE: &str = "SIDEWALK_COMPLETE";

/// A file on zsh's `fpath` is the body of the function `_sidewalk` until it has run once. This
/// addition completes at the first Tab, too.
const ZSH_FIRST_COMPLETION: &str = r#"
if [[ $funcstack[1] == _sidewalk ]]; then
    _clap_dynamic_completer_sidewalk "$@"
fi
"#;

/// Runs `sidewalk help TOPIC`. A verb is handled by its own `--help`.
pub(crate) fn run_help(args: &HelpArgs) -> Result<()> {
    let text = args.about.as_deref().and_then(topics::text);
    print(text.unwrap_or_default().as_bytes())
}

/// Prints the completions, if a shell's completion calls. Returns whether it does.
///
/// # Errors
/// The shell is unknown.
pub(crate) fn complete(arguments: &[OsString]) -> Result<bool, clap::Error> {
    let folder = std::env::current_dir().ok();
    CompleteEnv::with_factory(Cli::command)
        .var(VARIABLE)
        .bin("sidewalk")
        .try_complete(arguments.iter().cloned(), folder.as_deref())
}

/// Runs `sidewalk completions`.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<()> {
    let shells = Shells::builtins();
    let mut text = Vec::new();
    if let Some(shell) = shells.completer(args.shell) {
        shell.write_registration(VARIABLE, "sidewalk", "sidewalk", "sidewalk", &mut text)?;
    }
    if args.shell == "zsh" {
        text.extend_from_slice(ZSH_FIRST_COMPLETION.as_bytes());
    }
    print(&text)
}

/// Runs `sidewalk man`.
pub(crate) fn man(args: &ManArgs) -> Result<()> {
    let mut command = Cli::command();
    command.build();
    match args
        .verb
        .as_deref()
        .and_then(|verb| command.find_subcommand(verb))
    {
        Some(verb) => print(&page(&format!("sidewalk-{}", verb.get_name()), verb)?),
        None => print(&page("sidewalk", &command)?),
    }
}

/// Date of the last change of the page texts. Fixed, so that a version always makes the same pages.
const DATE: &str = "2026-11-23";

/// Makes a page of section 1.
fn page(name: &str, command: &Command) -> io::Result<Vec<u8>> {
    let man = clap_mangen::Man::new(command.clone())
        .title(name.to_uppercase())
        .section("1")
        .date(DATE)
        .source(concat!("sidewalk ", env!("CARGO_PKG_VERSION")))
        .manual("Sidewalk");
    let mut text = Vec::new();
    man.render(&mut text)?;
    // The text below the options' help begins with examples.
    let text = String::from_utf8_lossy(&text).replace("\n.SH EXTRA\n", "\n.SH EXAMPLES\n");
    Ok(remove_idle_breaks(&text).into_bytes())
}

/// Removes blanks at line ends, and line breaks beside empty lines, which break lines themselves:
/// `mandoc -T lint` warns of both.
fn remove_idle_breaks(page: &str) -> String {
    let lines: Vec<&str> = page.lines().map(str::trim_end).collect();
    let is_space = |at: usize| {
        lines
            .get(at)
            .is_some_and(|line| matches!(*line, ".sp" | ""))
    };
    let mut kept = String::new();
    for (at, line) in lines.iter().enumerate() {
        let is_idle =
            *line == ".br" && (is_space(at + 1) || at.checked_sub(1).is_some_and(is_space));
        if !is_idle {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

fn print(text: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    #[test]
    fn no_group_of_options_is_longer_than_a_screen() {
        for verb in args::verbs() {
            let mut command = Cli::command();
            command = command.term_width(100);
            command.build();
            let verb = command.find_subcommand_mut(&verb).unwrap();
            let text = verb.render_help().to_string();
            for group in text.split("\n\n") {
                assert!(group.lines().count() <= 24, "{group}");
            }
        }
    }
}
