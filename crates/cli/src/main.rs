//! The binary `sidewalk`. Everything is in the library, where tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    sidewalk_cli::run(std::env::args_os())
}
