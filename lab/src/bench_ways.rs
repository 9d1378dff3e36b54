//! The observers that the bench compares: none, Sidewalk, and the tools that users would take
//! instead.
//!
//! Nothing is measured here. Invariant: an observer adds to the front of a program's command line
//! and to its environment, and never changes the program's own arguments.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use testkit::Runtime;

use xtask::build::cargo;
use xtask::process::{on_path, run};

/// One way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Observer {
    /// Bare.
    None,
    /// Bare once more: how far two equal runs are apart.
    NoneAgain,
    /// By a profiler that is notified of methods, modules and threads and does nothing (corprof's
    /// example `silent`).
    EmptyProfiler,
    /// By Sidewalk, with these options.
    Sidewalk(&'static str),
    /// The runtime's own sampler, into a file: what `dotnet-trace collect` asks for.
    EventPipe,
    /// `perf record -F 99 -g` with the runtime's perf map.
    Perf,
}

/// Providers of dotnet-trace's profile `cpu-sampling`.
const EVENT_PIPE: &str = "Microsoft-DotNETCore-SampleProfiler:F00000000000:5,Microsoft-Windows-DotNETRuntime:14C14FCCBD:4";

impl Observer {
    /// How the row is called.
    pub(crate) fn name(self) -> String {
        match self {
            Observer::None => "none".to_owned(),
            Observer::NoneAgain => "none again".to_owned(),
            Observer::EmptyProfiler => "a profiler that is told and does nothing".to_owned(),
            Observer::Sidewalk(options) => format!("sidewalk {options}"),
            Observer::EventPipe => "EventPipe sampler".to_owned(),
            Observer::Perf => "perf -F 99 -g, perf map".to_owned(),
        }
    }

    /// Why it cannot be taken here.
    pub(crate) fn missing(self) -> Option<&'static str> {
        (self == Observer::Perf && on_path("perf").is_none()).then_some("perf is not installed")
    }

    /// The program's command line, watched; what is written goes below `folder`.
    pub(crate) fn command(self, runtime: &Runtime, dll: &Path, folder: &Path) -> Command {
        let out = |ending: &str| -> PathBuf { folder.join(format!("watched.{ending}")) };
        match self {
            Observer::None | Observer::NoneAgain => runtime.command(dll),
            Observer::EmptyProfiler => {
                let mut command = runtime.command(dll);
                command
                    .env("CORECLR_ENABLE_PROFILING", "1")
                    .env("CORECLR_PROFILER", "{0B1A3A52-5C0E-4E0B-9E6F-7C6A1D2F4B11}")
                    .env("CORECLR_PROFILER_PATH", empty_profiler());
                command
            }
            Observer::Sidewalk(options) => {
                let mut command = Command::new(testkit::sidewalk());
                command.args(["record", "--quiet"]);
                command.args(options.split_whitespace());
                command.arg("--output").arg(out("swk")).arg("--");
                runtime.add_to(&mut command, dll);
                command
            }
            Observer::EventPipe => {
                let mut command = runtime.command(dll);
                // .NET Core 3.1 knows the older prefix only.
                for prefix in ["DOTNET", "COMPlus"] {
                    command
                        .env(format!("{prefix}_EnableEventPipe"), "1")
                        .env(format!("{prefix}_EventPipeConfig"), EVENT_PIPE)
                        .env(format!("{prefix}_EventPipeOutputStreaming"), "1")
                        .env(format!("{prefix}_EventPipeOutputPath"), out("nettrace"));
                }
                command
            }
            Observer::Perf => {
                let mut command = Command::new("perf");
                command.args(["record", "-q", "-F", "99", "-g", "-o"]);
                command.arg(out("perf")).arg("--");
                runtime.add_to(&mut command, dll);
                command
                    .env("DOTNET_PerfMapEnabled", "1")
                    .env("COMPlus_PerfMapEnabled", "1");
                command
            }
        }
    }
}

/// The profiler of [`Observer::EmptyProfiler`], as [`build_empty_profiler`] leaves it.
fn empty_profiler() -> PathBuf {
    testkit::target_dir().join("release/examples/libsilent.so")
}

/// Builds it.
pub(crate) fn build_empty_profiler() -> Result<()> {
    run(&mut cargo(&[
        "build",
        "--release",
        "--package",
        "corprof",
        "--example",
        "silent",
    ]))
}
