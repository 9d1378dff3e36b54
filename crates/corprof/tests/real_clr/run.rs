//! Runs a program on a real CLR with a profiler of `examples/`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use testkit::{Runtime, workload};

/// The runtimes on which the table of call rules is checked. Its column for .NET 10 comes from the
/// source only. It has none for .NET 9, which permits some calls that 8 refuses, and where a
/// P/Invoke may be part of its caller's frame.
pub(crate) fn checked() -> [Runtime; 2] {
    [Runtime::net8(), Runtime::core31()]
}

/// The program's printed result, and the profiler's output.
pub(crate) struct Run {
    pub(crate) results: Vec<String>,
    pub(crate) lines: Vec<String>,
}

impl Run {
    /// The rest of each line that begins with `key`.
    pub(crate) fn of(&self, key: &str) -> Vec<&str> {
        self.lines
            .iter()
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
            .collect()
    }
    pub(crate) fn one(&self, key: &str) -> &str {
        match self.of(key)[..] {
            [line] => line,
            ref lines => panic!("{key}: {lines:?} in {:?}", self.lines),
        }
    }
}

pub(crate) fn library(example: &str) -> PathBuf {
    // Next to `deps`, where this test is: `cargo test -p corprof` builds both.
    let path = std::env::current_exe()
        .unwrap()
        .with_file_name("../examples")
        .join(format!("lib{example}.so"));
    assert!(
        path.is_file(),
        "{}: run `cargo build -p corprof --examples` first",
        path.display()
    );
    path
}

pub(crate) fn run(
    runtime: &Runtime,
    example: &str,
    mode: &str,
    program: &str,
    argument: &str,
) -> Run {
    run_with(
        runtime,
        example,
        program,
        argument,
        &[("CORPROF_PROBE", mode)],
    )
}

/// Runs with these variables in the environment.
pub(crate) fn run_with(
    runtime: &Runtime,
    example: &str,
    program: &str,
    argument: &str,
    variables: &[(&str, &str)],
) -> Run {
    // Under plain `cargo test` several tests of one process may run the same program.
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let out = std::env::temp_dir().join(format!(
        "corprof-{example}-{program}-{}-{}-{}",
        runtime.version,
        std::process::id(),
        RUNS.fetch_add(1, Ordering::Relaxed)
    ));
    let mut command = runtime.command(&workload(program).dll);
    command.arg(argument);
    if !example.is_empty() {
        command
            .env("CORECLR_ENABLE_PROFILING", "1")
            .env("CORECLR_PROFILER", "{DB64E7B8-0E80-4F2E-9E87-6B0C2FB6DA21}")
            .env("CORECLR_PROFILER_PATH", library(example))
            .env("MINIMAL_OUT", &out)
            .env("COUNTS_OUT", &out)
            .env("CORPROF_PROBE_OUT", &out)
            .envs(variables.iter().copied());
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} on {} with {example} {variables:?}: {}\n{text}{}",
        runtime.version,
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let lines = std::fs::read_to_string(&out).unwrap_or_default();
    let _ = std::fs::remove_file(&out);
    Run {
        results: text
            .lines()
            .filter(|line| line.starts_with("result "))
            .map(str::to_owned)
            .collect(),
        lines: lines.lines().map(str::to_owned).collect(),
    }
}

/// Runs with a profiler and without; checks that the results are the same.
pub(crate) fn run_both(runtime: &Runtime, example: &str, mode: &str, program: &str) -> Run {
    let bare = run(runtime, "", "", program, "rounds=2");
    let profiled = run(runtime, example, mode, program, "rounds=2");
    assert!(!bare.results.is_empty());
    assert_eq!(bare.results, profiled.results);
    profiled
}
