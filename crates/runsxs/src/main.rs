//! `runsxs`: runs programs on several CLRs in one process. All code is in the library, for tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    runsxs::main()
}
