//! Symbols that the agent exports into the program, and those that it takes from there.

use std::path::Path;
use std::process::Command;

use testkit::{Recorder, Running, Runtime, agent, run_sidewalk, test_folder, watched_malloc};

use crate::attach;

on_net8_and_core31!(
    the_programs_malloc_is_not_called,
    the_malloc_of_a_running_program_is_not_called,
);

/// The allocation functions of the C library. Their memory belongs to the program.
const MALLOC: [&str; 12] = [
    "aligned_alloc",
    "calloc",
    "fopen",
    "free",
    "getline",
    "malloc",
    "memalign",
    "opendir",
    "posix_memalign",
    "realloc",
    "realpath",
    "strdup",
];

/// The CLR calls these two. No other symbol may leak into the program's scope.
const ALLOWED: [&str; 2] = ["DllGetClassObject", "DllMain"];

/// Returns the names of the agent's dynamic symbols of one sort.
fn symbols(sort: &str) -> Vec<String> {
    let output = Command::new("nm")
        .args(["--dynamic", "--format=posix", sort])
        .arg(agent())
        .output()
        .expect("nm of binutils, which the linker comes with");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text
        .lines()
        .filter_map(|line| line.split([' ', '@']).next());
    names.map(str::to_owned).collect()
}

#[test]
fn the_agent_exports_only_what_the_clr_calls() {
    let symbols = symbols("--defined-only");
    assert!(
        symbols.iter().any(|s| s == "DllGetClassObject"),
        "{symbols:?}"
    );
    let others: Vec<_> = symbols
        .iter()
        .filter(|s| !ALLOWED.contains(&s.as_str()))
        .collect();
    assert!(others.is_empty(), "the agent exports {others:?}");
}

#[test]
fn the_agent_has_memory_of_its_own() {
    let symbols = symbols("--undefined-only");
    assert!(symbols.iter().any(|s| s == "syscall"), "{symbols:?}");
    let found: Vec<_> = symbols
        .iter()
        .filter(|s| MALLOC.contains(&s.as_str()))
        .collect();
    assert!(found.is_empty(), "the agent asks the program for {found:?}");
}

/// Beside an allocator that unwinds stacks as heap profilers do, with a lock of its own held for
/// which a thread may wait that holds the linker's.
fn the_programs_malloc_is_not_called(runtime: &Runtime) {
    let folder = tempfile::tempdir().unwrap();
    let recorded = Recorder::workload(runtime, "shares", &["1"])
        .environment("LD_PRELOAD", &watched_malloc().to_string_lossy())
        .environment("WATCHED_MALLOC", &folder.path().to_string_lossy())
        .run_complete();
    assert!(recorded.inspect().number("samples") > 0.0);
    assert_not_called(folder.path());
}

/// By attaching, for samples, events and a dump.
fn the_malloc_of_a_running_program_is_not_called(runtime: &Runtime) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = runtime.command(&testkit::workload("shares").dll);
    command
        .arg("attached")
        .env("LD_PRELOAD", watched_malloc())
        .env("WATCHED_MALLOC", folder.path());
    let program = Running::start(command);
    for options in [&["-e", "cpu,exception"][..], &["-e", "wall"]] {
        let options = [&["-d", "500ms"], options].concat();
        let recorded = attach::record(program.pid(), &test_folder("watched"), &options);
        assert!(attach::has_left(&recorded), "{}", recorded.answer.stderr);
        assert!(recorded.inspect().number("samples") > 0.0);
    }
    let dump = run_sidewalk(["dump", &program.pid().to_string()]);
    assert!(dump.contains("Workloads.Shares."), "{dump}");
    attach::ends_well(program, "\nmeasured rounds");
    assert_not_called(folder.path());
}

/// The program, which has written its calls into the folder, had none from the agent.
fn assert_not_called(folder: &Path) {
    // The tool's is there too.
    let calls: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .filter(|calls| calls.contains("libcoreclr.so"))
        .collect();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert!(!calls[0].contains("libsidewalk.so"), "{calls:?}");
}
