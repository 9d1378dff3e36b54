//! Tests of `sidewalk record` with a program that simulates the agent.
//!
//! No .NET is needed. The recorded program is this test program itself, started with `--play
//! ACTION…`. It speaks the agents' side of the protocol through `recording::Writer`, and has its
//! own `main` for that.

mod first_process;
mod player;
mod servers;
mod terminal;
mod tests;

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments
        .get(1)
        .is_some_and(|argument| argument == player::PLAY)
    {
        return player::play(&arguments[2..]);
    }
    let arguments = libtest_mimic::Arguments::from_args();
    libtest_mimic::run(&arguments, tests::all()).exit_code()
}
