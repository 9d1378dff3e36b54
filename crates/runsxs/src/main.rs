//! `runsxs`: several CLRs in one process. Everything is in the library, so that it can be tested.

use std::process::ExitCode;

fn main() -> ExitCode {
    runsxs::main()
}
