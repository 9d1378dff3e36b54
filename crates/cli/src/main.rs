//! The binary `sidewalk`. Everything is in the library, where tests reach it, but for the agent.

use std::process::ExitCode;

include!(concat!(env!("OUT_DIR"), "/carried.rs"));

fn main() -> ExitCode {
    sidewalk_cli::run(std::env::args_os(), CARRIED)
}
