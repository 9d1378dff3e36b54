//! The binary `sidewalk`. It passes its embedded agent to the library, which does everything else.

use std::process::ExitCode;

include!(concat!(env!("OUT_DIR"), "/carried.rs"));

fn main() -> ExitCode {
    sidewalk_cli::run(std::env::args_os(), CARRIED)
}
