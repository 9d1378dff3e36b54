//! Tests of a `sidewalk` with an embedded agent, against real runtimes.
//!
//! The tested tool is this test program itself, started by a link named `sidewalk`. It reads the
//! agent from a file, which `main.rs` would include, so that no second build of the agent is
//! needed. The rest is the product's code. The agent is that of the release build, as in the
//! acceptance tests.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::{Running, Runtime, Setup, agent, workload};

/// Variables with the paths of the embedded agents.
const CARRIED: &str = "SIDEWALK_TEST_CARRIED";
const CARRIED_FOR_MUSL: &str = "SIDEWALK_TEST_CARRIED_FOR_MUSL";

type TestOnRuntime = fn(&Runtime);

fn main() -> ExitCode {
    let program = std::env::args_os().next().map(PathBuf::from);
    if program.is_some_and(|program| program.ends_with("sidewalk")) {
        let carried = |variable: &str| {
            let agent = fs::read(std::env::var_os(variable)?).unwrap();
            Some(sidewalk_cli::EmbeddedAgent {
                hash: diagnostics::hash_of(&agent).leak(),
                content: agent.leak(),
            })
        };
        let carried = sidewalk_cli::EmbeddedAgents {
            glibc: carried(CARRIED),
            musl: carried(CARRIED_FOR_MUSL),
        };
        return sidewalk_cli::run(std::env::args_os(), carried);
    }
    let setup = Setup::read().unwrap_or_else(|why| panic!("{why}"));
    let on_each: [(&str, TestOnRuntime); 2] = [
        ("a_carried_agent_records", a_carried_agent_records),
        ("a_path_for_both_agents_records", a_path_for_both_agents),
    ];
    let mut trials = Vec::new();
    // Both agents that are carried here are for glibc.
    let on_glibc = |runtime: &Runtime| !runtime.is_musl();
    for runtime in setup.runtimes.into_iter().filter(on_glibc) {
        for (name, test) in on_each {
            let runtime = runtime.clone();
            trials.push(Trial::test(
                format!("{name}::{}", runtime.name),
                move || {
                    test(&runtime);
                    Ok(())
                },
            ));
        }
    }
    let others: [(&str, fn()); 3] = [
        ("an_agent_that_is_named_comes_first", an_agent_that_is_named),
        (
            "an_older_agent_stays_as_long_as_a_process_has_it",
            an_older_agent_stays,
        ),
        ("nothing_is_needed_beside_the_binary", nothing_beside),
    ];
    trials.extend(others.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// An installed `sidewalk` with nothing beside it, and a user's cache.
struct Installed {
    folder: TempDir,
}

impl Installed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let here = std::env::current_exe().unwrap();
        symlink(here, folder.path().join("sidewalk")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command of the tool with that agent embedded.
    fn command(&self, carried: &Path) -> Command {
        let mut command = Command::new(self.path("sidewalk"));
        command
            .env(CARRIED, carried)
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env_remove("SIDEWALK_AGENT")
            .env_remove("SIDEWALK_AGENT_MUSL")
            .current_dir(self.folder.path());
        command
    }

    /// The names of the unpacked agents.
    fn agents(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("cache/sidewalk/agents")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

fn answer(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Records programs, `script` with the command line of a workload as its arguments.
fn record(command: &mut Command, output: &str, script: &str, runtime: &Runtime) -> Output {
    let program = runtime.command(&workload("shares").dll);
    command
        .args(["record", "-o", output, "--", "sh", "-c", script, "sh"])
        .arg(program.get_program())
        .args(program.get_args());
    for (name, value) in program.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    answer(command)
}

fn a_carried_agent_records(runtime: &Runtime) {
    let installed = Installed::new();
    let mut command = installed.command(&agent());
    record(&mut command, "shares.collapsed", "exec \"$@\"", runtime);
    let stacks = fs::read_to_string(installed.path("shares.collapsed")).unwrap();
    assert!(stacks.contains("Workloads.Shares."), "{stacks}");
    // The agent recognises its own file by the name: no frame belongs to that library.
    assert!(!stacks.contains("libsidewalk"), "{stacks}");
    let agents = installed.agents();
    assert_eq!(agents.len(), 1, "{agents:?}");
    let unpacked = installed.path("cache/sidewalk/agents").join(&agents[0]);
    assert_eq!(fs::read(unpacked).unwrap(), fs::read(agent()).unwrap());
}

/// The environment of a command, and of what it starts, has one path for two agents.
fn a_path_for_both_agents(runtime: &Runtime) {
    let installed = Installed::new();
    let tool = || {
        let mut command = installed.command(&agent());
        // No program on musl is started here.
        command.env(CARRIED_FOR_MUSL, testkit::v2_agent());
        command
    };
    let script = "echo path $CORECLR_PROFILER_PATH; \"$@\" 0.5 && \"$@\" 0.5";
    let output = record(&mut tool(), "both.swk", script, runtime);
    let text = String::from_utf8(output.stdout).unwrap();
    let path = text.lines().find_map(|line| line.strip_prefix("path "));
    let agents = installed.path("cache/sidewalk/agents");
    let start = format!("{}/links-", agents.to_str().unwrap());
    assert!(
        path.is_some_and(|path| path.starts_with(&start) && path.ends_with("/$LIB/libsidewalk.so")),
        "{text}"
    );
    let report = answer(tool().args(["report", "--json", "--by", "process", "both.swk"]));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["rows"].as_array().unwrap().len(), 2, "{report}");
    // The two libraries are left.
    let left = installed.agents();
    assert!(
        left.len() == 2 && left.iter().all(|name| name.ends_with(".so")),
        "{left:?}"
    );
    let doctor = answer(tool().arg("doctor"));
    let text = String::from_utf8(doctor.stdout).unwrap();
    assert!(
        text.contains(&format!("agent              {}/", agents.to_str().unwrap())),
        "{text}"
    );
}

fn an_agent_that_is_named() {
    let installed = Installed::new();
    let mut command = installed.command(&agent());
    command.env("SIDEWALK_AGENT", "/no/such/agent.so");
    let output = command.args(["record", "--", "true"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("/no/such/agent.so"), "{text}");
    assert!(!installed.path("cache").exists());
}

fn nothing_beside() {
    let installed = Installed::new();
    let output = answer(installed.command(&agent()).arg("doctor"));
    let text = String::from_utf8(output.stdout).unwrap();
    let agents = installed.path("cache/sidewalk/agents");
    let expected = format!("agent              {}/", agents.to_str().unwrap());
    assert!(text.contains(&expected), "{text}");
    let output = answer(installed.command(&agent()).args(["--version", "--verbose"]));
    let text = String::from_utf8(output.stdout).unwrap();
    let name = installed.agents().concat();
    let hash = name
        .trim_start_matches("libsidewalk-")
        .trim_end_matches(".so");
    assert!(text.contains(&format!("\nagent     {hash}, ")), "{text}");
    assert!(text.contains("\nglibc     sidewalk 2."), "{text}");
}

/// A process still maps the agent of an older `sidewalk` when a newer one runs.
fn an_older_agent_stays() {
    let installed = Installed::new();
    let runtime = Runtime::net8();
    let running = Running::waits(&runtime);
    // Bytes after a library's end are not loaded.
    let newer = installed.path("newer.so");
    fs::copy(agent(), &newer).unwrap();
    let mut file = File::options().append(true).open(&newer).unwrap();
    file.write_all(b"newer").unwrap();
    drop(file);
    let record = |carried: &Path, output: &str| {
        let mut command = installed.command(carried);
        command.args(["record", "-e", "wall", "-d", "1s", "--pid"]);
        command.arg(running.pid().to_string()).args(["-o", output]);
        answer(&mut command);
    };
    record(&agent(), "first.swk");
    let old = installed.agents();
    assert_eq!(old.len(), 1);
    // The agent has detached, but its library is still mapped.
    record(&newer, "second.swk");
    let both = installed.agents();
    assert!(both.len() == 2 && both.contains(&old[0]), "{both:?}");
    running.end_well();
    answer(installed.command(&newer).arg("doctor"));
    let left = installed.agents();
    assert!(left.len() == 1 && left[0] != old[0], "{left:?}");
}
