//! Other tools read a program that is or was recorded: dumps, and ClrMD as debuggers use it.
//!
//! They look for the runtime among the mapped files, so one file of a module that is mapped once
//! more makes all of them fail.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Child;

use tempfile::TempDir;
use testkit::{Recorder, Running, Runtime, Setup, only_child, output_in_time, test_folder};

use crate::attach::{has_agent_thread, has_left, record, send, start, until};

on_each_dumped_runtime!(
    a_program_is_read_before_while_and_after_it_is_recorded,
    a_program_is_read_after_many_recordings,
    a_started_program_is_read_after_its_recording,
    a_dump_of_a_crash_is_read,
);
on_each_runtime!(the_agents_library_alone_is_mapped_afterwards);

/// How often a program is recorded before it is read.
const ROUNDS: u32 = 20;

/// The findings of a reader: the number of managed frames on all stacks.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    managed_frames: u32,
}

/// Reads a process, by its id, or a dump with ClrMD.
fn read(runtime: &Runtime, what: impl AsRef<OsStr>) -> Found {
    let what = what.as_ref();
    let reader = Setup::read().unwrap().dump_reader.unwrap();
    let mut command = Runtime::named(&reader.runtime).command(&reader.dll);
    command.arg(what);
    command.arg(runtime.framework_dir().join("libmscordaccore.so"));
    let output = output_in_time(&mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{what:?}: {text}");
    let mut words = text.split_whitespace().skip_while(|word| *word != "frames");
    let number = words.nth(1).and_then(|word| word.parse().ok());
    Found {
        managed_frames: number.unwrap_or_else(|| panic!("{what:?}: {text}")),
    }
}

/// Takes a dump of a process, with `kind` an option of `createdump`, and reads it.
fn dump(runtime: &Runtime, pid: u32, kind: &str) -> Found {
    let folder = for_dumps();
    let file = folder.path().join("program.dmp");
    let mut command = runtime.own_program("createdump");
    command.arg(kind).arg("-f").arg(&file).arg(pid.to_string());
    let output = output_in_time(&mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "createdump {kind}: {text}");
    read(runtime, &file)
}

/// A folder that does not outlive its test, as dumps are large.
fn for_dumps() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Minidumps, dumps with the heap, triage dumps, full dumps.
const KINDS: [&str; 4] = ["--normal", "--withheap", "--triage", "--full"];

fn by_pid_and_dump(runtime: &Runtime, pid: u32) -> [Found; 2] {
    [
        read(runtime, pid.to_string()),
        dump(runtime, pid, "--withheap"),
    ]
}

fn end(mut tool: Child) {
    send("-INT", tool.id());
    assert!(tool.wait().unwrap().success());
}

fn a_program_is_read_before_while_and_after_it_is_recorded(runtime: &Runtime) {
    let program = Running::waits(runtime);
    let pid = program.pid();
    let folder = test_folder("read");
    let before = by_pid_and_dump(runtime, pid);
    assert!(before[0].managed_frames > 0, "{before:?}");
    let tool = start(pid, &folder, &["-e", "wall,exception"]);
    assert_eq!(by_pid_and_dump(runtime, pid), before, "meanwhile");
    end(tool);
    until("the agent's thread to end", || !has_agent_thread(pid));
    assert_eq!(by_pid_and_dump(runtime, pid), before, "afterwards");
    for kind in KINDS {
        let after = dump(runtime, pid, kind);
        assert_eq!(after, before[1], "{kind}");
    }
    program.end_well();
}

fn a_program_is_read_after_many_recordings(runtime: &Runtime) {
    let program = Running::waits(runtime);
    let pid = program.pid();
    let folder = test_folder("rounds");
    let before = by_pid_and_dump(runtime, pid);
    for number in 0..ROUNDS {
        let recorded = record(pid, &folder, &["-d", "100ms", "-e", "cpu,exception"]);
        let message = &recorded.answer.stderr;
        assert!(has_left(&recorded), "round {number}: {message}");
    }
    assert_eq!(by_pid_and_dump(runtime, pid), before);
    program.end_well();
}

fn a_started_program_is_read_after_its_recording(runtime: &Runtime) {
    let folder = test_folder("started");
    let program = Running::waits(runtime);
    let before = by_pid_and_dump(runtime, program.pid());
    program.end_well();
    let (mut command, _) = Recorder::workload(runtime, "waits", &[])
        .options(["-d", "1s"])
        .prepare();
    let said = folder.join("said");
    command.stderr(fs::File::create(&said).unwrap());
    let tool = Running::start(command);
    let pid = only_child(tool.pid()).unwrap();
    until("the end of the recording", || {
        fs::read_to_string(&said).is_ok_and(|said| said.contains("continues"))
    });
    assert_eq!(by_pid_and_dump(runtime, pid), before);
    tool.end_well();
}

/// The runtime itself takes it, as it ends.
fn a_dump_of_a_crash_is_read(runtime: &Runtime) {
    let folder = for_dumps();
    let file = folder.path().join("crash.dmp");
    let recorded = Recorder::workload(runtime, "rude", &["0.05", "throws"])
        .options(["-e", "cpu,exception"])
        .environment("DOTNET_DbgEnableMiniDump", "1")
        .environment("DOTNET_DbgMiniDumpName", file.to_str().unwrap())
        .run();
    let stderr = &recorded.answer.stderr;
    assert_eq!(
        recorded.answer.status.signal(),
        Some(libc::SIGABRT),
        "{stderr}"
    );
    let found = read(runtime, &file);
    assert!(found.managed_frames > 0, "{found:?}");
}

/// The files that a process has mapped: path, offset and rights of each mapping, with their number.
fn mapped_files(pid: u32) -> BTreeMap<String, usize> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut found = BTreeMap::new();
    for line in maps.lines() {
        // Addresses, rights, offset, device, inode, name.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, rights, offset, _, _, path, ..] = words[..] else {
            continue;
        };
        // The memory for the runtime's own code, of which it maps more as it compiles.
        if !path.contains("doublemapper") {
            *found
                .entry(format!("{path} {offset} {rights}"))
                .or_default() += 1;
        }
    }
    found
}

/// As docs/attach.md says.
fn the_agents_library_alone_is_mapped_afterwards(runtime: &Runtime) {
    let program = Running::waits(runtime);
    let pid = program.pid();
    let before = mapped_files(pid);
    let folder = test_folder("mapped");
    for number in 0..2 {
        let recorded = record(pid, &folder, &["-d", "100ms", "-e", "cpu,exception"]);
        assert!(has_left(&recorded), "{}", recorded.answer.stderr);
        until("the agent's thread to end", || !has_agent_thread(pid));
        let mut after = mapped_files(pid);
        let library = testkit::agent();
        let is_library = |line: &String| line.starts_with(library.to_str().unwrap());
        let beginnings: usize = (after.iter())
            .filter(|(line, _)| is_library(line) && line.contains(" 00000000 "))
            .map(|(_, count)| count)
            .sum();
        assert_eq!(beginnings, 1, "{after:?}");
        after.retain(|line, _| !is_library(line));
        assert_eq!(after, before, "after recording {number}");
    }
    program.end_well();
}
