//! `runsxs`: a test host that runs programs on several CLRs in one process.
//!
//! A profiler must handle several CLRs in a process, which is hard to set up otherwise. `runsxs`
//! does not replace `dotnet`: it has one shared framework, no NuGet packages and no roll-forward.
//!
//! Invariant: it writes nothing to standard output, which belongs to the programs.

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

/// Exit code for a wrong command line, the same as that of `sidewalk`.
const WRONG_USAGE: u8 = 2;

/// Entry point of the program.
pub fn main() -> ExitCode {
    let args = match args::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => {
            // Requested help and version go to standard output.
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
