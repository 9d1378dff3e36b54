//! The command line of Sidewalk: arguments, launching, receiving, output.
//!
//! Composition only: the stream is `recording`'s, the model `profile`'s, names `symbolize`'s, files
//! `formats`'. The invariant: results go to stdout, messages to stderr, and the exit code is 0
//! (done), 1 (failed, the message says what and what to do), 2 (wrong usage), or after
//! `record -- COMMAND` the command's own.
#![deny(unsafe_code)]

mod args;
mod console;
mod output;
mod record;
mod saved;
mod units;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

pub use record::AGENT_CLSID;

use crate::args::{Cli, Command};
use crate::console::Console;

/// Runs the command line `arguments` (the first is the program's name) and returns the exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let parsed = Cli::try_parse_from(arguments).and_then(|cli| match &cli.command {
        Command::Record(args) => match args.contradiction() {
            Some(text) => Err(Cli::command().error(ErrorKind::ArgumentConflict, text)),
            None => Ok(cli),
        },
        _ => Ok(cli),
    });
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // Help that nobody reads to its end is no failure.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let console = Console::new(cli.quiet, cli.color);
    let result = match cli.command {
        Command::Record(args) => record::run(&args, &console),
        Command::Report(args) => saved::report(&args, &console).map(|()| ExitCode::SUCCESS),
        Command::Convert(args) => saved::convert(&args, &console).map(|()| ExitCode::SUCCESS),
        Command::Inspect(args) => saved::inspect(&args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        console.error(&error);
        ExitCode::FAILURE
    })
}

/// The reader of our output has gone, as `head` does: it has what it wanted.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
