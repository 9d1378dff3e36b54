//! `runsxs` hosts several CLRs in one process and runs a program on each: the situation that a
//! profiler must be built for and that is hard to come by.
//!
//! It is a harness, not a replacement for `dotnet`: one shared framework, no NuGet packages, no
//! roll-forward. It depends on nothing else of ours but the handler of the activation signal.
//! Invariant: nothing of it is written to standard output, which belongs to the programs.

mod app;
mod args;
mod chain;
mod compat;
mod environ;
mod host;
mod lookup;
mod pipes;
mod run;

use std::process::ExitCode;

/// Exit code for a wrong command line, as `sidewalk` has it.
const WRONG_USAGE: u8 = 2;

/// The program.
pub fn main() -> ExitCode {
    let args = match args::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => {
            // Help and version are asked for, and go where answers go.
            let is_help = error.exit_code() == 0;
            let _ = error.print();
            return if is_help {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(WRONG_USAGE)
            };
        }
    };
    match run::run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("runsxs: {error:#}");
            ExitCode::FAILURE
        }
    }
}
