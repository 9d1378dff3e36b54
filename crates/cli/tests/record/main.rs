//! `sidewalk record` against a program that plays the agent's part.
//!
//! No .NET is needed: the recorded program is this test program again, started with
//! `--play ACTION…`, which speaks the agents' side of the protocol through `recording::Writer`.
//! It has its own `main` for that.

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
