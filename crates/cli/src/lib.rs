//! The command line of Sidewalk: arguments, starting programs, receiving data, writing output.
//!
//! Other crates do the work: `recording` has the stream, `profile` the model, `symbolize` the
//! names, `formats` the files.
//! Invariant: results go to stdout and messages to stderr. The exit code is 0 (success), 1
//! (failure; the message says what happened and what to do), 2 (wrong usage), or after `record --
//! COMMAND` that of the command.
#![deny(unsafe_code)]

mod args;
mod candidates;
mod clock;
mod console;
mod diff;
mod doctor;
mod dump;
mod filter_args;
mod help;
mod list;
mod memory;
mod names;
mod open;
mod output;
mod record;
mod resolved_path;
mod running;
mod saved;
mod sources;
mod symbols;
mod tested;
mod top;
mod topics;
mod units;
mod version;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

pub use record::{AGENT_CLSID, EmbeddedAgent, EmbeddedAgents};

use crate::args::{Cli, Command, HelpArgs, SymbolsVerb, apply_format};
use crate::console::Console;

/// Runs the command line `arguments` (the first is the program's name) and returns the exit code.
/// `embedded` are the agents that the binary has in it; others are looked for beside the binary.
pub fn run(arguments: impl IntoIterator<Item = OsString>, embedded: EmbeddedAgents) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match help::complete(&arguments) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            let _ = error.print();
            return ExitCode::FAILURE;
        }
    }
    if version::is_asked(&arguments) {
        return print_result(version::text(embedded));
    }
    let cli = match parse(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // An error repeats the typed words, which a script may have made from any file's name.
            // So the error is made from the same words with control characters escaped.
            let visible: Vec<OsString> = arguments.iter().map(escaped_word).collect();
            // Help that is not read to its end is not a failure.
            let _ = match parse(&visible) {
                _ if visible == arguments => error.print(),
                Err(error) => error.print(),
                Ok(_) => {
                    let text = error.render().to_string();
                    io::stderr().write_all(formats::visible_lines(&text).as_bytes())
                }
            };
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let console = Console::new(cli.quiet, cli.color);
    let result = match cli.command {
        Command::Record(args) => record::run(&args, embedded, &console),
        Command::Start(args) => record::start(&args, &console),
        Command::Stop(args) => record::stop(&args, &console).map(|()| ExitCode::SUCCESS),
        Command::Agent(args) => record::run_agent(&args, embedded, &console),
        Command::Report(args) => saved::report(&args).map(|()| ExitCode::SUCCESS),
        Command::Convert(args) => saved::convert(&args, &console).map(|()| ExitCode::SUCCESS),
        Command::Open(args) => open::run(&args, &console).map(|()| ExitCode::SUCCESS),
        Command::Diff(args) => diff::run(&args, &console),
        Command::Doctor(args) => doctor::run(&args, embedded),
        Command::Top(args) => record::run_top(&args, embedded, &console),
        Command::List(args) => list::run(&args, &console).map(|()| ExitCode::SUCCESS),
        Command::Inspect(args) => saved::inspect(&args).map(|()| ExitCode::SUCCESS),
        Command::Help(args) => help::run_help(&args).map(|()| ExitCode::SUCCESS),
        Command::Completions(args) => help::completions(&args).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => help::man(&args).map(|()| ExitCode::SUCCESS),
        Command::Symbols(args) => match args.verb {
            SymbolsVerb::Fetch(args) => symbols::fetch(&args, &console),
        },
        Command::Dump(args) => dump::run(&args, embedded, &console).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        console.error(&error);
        ExitCode::FAILURE
    })
}

/// Prints a result, or the error.
fn print_result(text: anyhow::Result<String>) -> ExitCode {
    match text.and_then(|text| Ok(io::stdout().write_all(text.as_bytes())?)) {
        Err(error) if !is_broken_pipe(&error) => {
            Console::new(false, console::Color::Auto).error(&error);
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let mut cli = Cli::try_parse_from(arguments)?;
    // `sidewalk help record` is `sidewalk record --help`.
    if let (Command::Help(HelpArgs { about }), [program, ..]) = (&cli.command, arguments)
        && about.as_deref().and_then(topics::text).is_none()
    {
        let words = [Some(program.clone()), about.as_ref().map(OsString::from)];
        let words = words.into_iter().flatten().chain(["--help".into()]);
        return Cli::try_parse_from(words);
    }
    let contradiction = match &mut cli.command {
        Command::Record(args) => args.contradiction().or_else(|| match args.has_folder() {
            true => None,
            false => apply_format(&mut args.outputs, args.format),
        }),
        Command::Convert(args) => apply_format(&mut args.outputs, args.format),
        _ => None,
    };
    match contradiction {
        Some(text) => Err(Cli::command().error(ErrorKind::ArgumentConflict, text)),
        None => Ok(cli),
    }
}

/// A word of the command line without terminal control characters. An empty word stays empty.
fn escaped_word(word: &OsString) -> OsString {
    if word.is_empty() {
        return OsString::new();
    }
    console::escaped(word).into()
}

/// Whether the reader of our output has closed the pipe, as `head` does when it has enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
