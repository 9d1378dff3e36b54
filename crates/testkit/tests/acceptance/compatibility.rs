//! Old profilers in a process with several CLRs: the table of `runsxs --compat`.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{Runtime, output_in_time, runsxs, target_dir, v2_agent, workload};

/// Makes the CLRs of the command load the old profiler, which writes into `log`.
fn with_old_profiler(command: &mut Command, log: &Path) {
    command
        .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
        .env("CORECLR_ENABLE_PROFILING", "1")
        .env("CORECLR_PROFILER", "{DB64E7B8-0E80-4F2E-9E87-6B0C2FB6DA21}")
        .env("CORECLR_PROFILER_PATH", v2_agent())
        .env("V2_AGENT_LOG", log);
}

fn log(name: &str) -> PathBuf {
    let folder = target_dir().join("acceptance");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{name}.log"));
    fs::remove_file(&path).ok();
    path
}

/// The article's table. V2 is .NET Core 3.1, V4 is .NET 8.
#[test]
fn the_six_rows() {
    let (old, new) = (Runtime::core31(), Runtime::net8());
    let loads = "loads the profiler";
    let not = "does not load the profiler";
    // The profiler's state in each CLR, and what its library counted: instances made, CLRs that
    // initialised one.
    for (setting, order, fates, created, initialized) in [
        (
            "EnableV2Profiler",
            [&old, &new],
            [loads, not],
            2,
            &[&old][..],
        ),
        (
            "EnableV2Profiler",
            [&new, &old],
            [loads, loads],
            3,
            &[&new, &old],
        ),
        ("DisableV2Profiler", [&old, &new], [loads, not], 2, &[&old]),
        ("DisableV2Profiler", [&new, &old], [not, loads], 2, &[&old]),
        ("PreventLoad", [&old, &new], [loads, not], 1, &[&old]),
        ("PreventLoad", [&new, &old], [not, loads], 1, &[&old]),
    ] {
        let row = format!("{setting} {} {}", order[0].version, order[1].version);
        let log = log(&format!("compatibility-{}", row.replace(' ', "-")));
        let mut command = Command::new(runsxs());
        command.args(["--st", "--compat", setting]);
        for runtime in order {
            command.arg(runtime.framework_dir());
            command.args([workload("calls").dll.as_os_str(), "rounds=1".as_ref()]);
        }
        with_old_profiler(&mut command, &log);
        // The runtime's own variable reaches no CLR: they would crash.
        command.env(
            "COMPlus_ProfAPI_ProfilerCompatibilitySetting",
            "PreventLoad",
        );
        let output = output_in_time(&mut command);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{row}: {} {stderr}", output.status);
        let reported: Vec<&str> = stderr.lines().collect();
        assert_eq!(reported.len(), 2, "{row}: {stderr}");
        for ((line, runtime), fate) in reported.iter().zip(order).zip(fates) {
            let expected = format!("runsxs: {} {fate}", runtime.version);
            assert!(line.starts_with(&expected), "{row}: {stderr}");
        }
        let text = fs::read_to_string(&log).unwrap();
        let count = |word: &str| text.lines().filter(|line| line.starts_with(word)).count();
        assert_eq!(count("created"), created, "{row}: {text}");
        assert_eq!(count("shutdown"), initialized.len(), "{row}: {text}");
        let libraries: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("initialized"))
            .filter_map(|line| line.rsplit(' ').next())
            .collect();
        let expected: Vec<String> = initialized
            .iter()
            .map(|runtime| runtime.framework_dir().join("libcoreclr.so"))
            .map(|path| path.canonicalize().unwrap().display().to_string())
            .collect();
        assert_eq!(libraries, expected, "{row}: {text}");
    }
}

#[test]
fn without_a_profiler_there_is_nothing_to_decide() {
    let new = Runtime::net8();
    let mut command = Command::new(runsxs());
    command
        .args(["--compat", "PreventLoad"])
        .arg(new.framework_dir())
        .arg(workload("calls").dll)
        .arg("")
        .env_remove("CORECLR_ENABLE_PROFILING");
    let output = output_in_time(&mut command);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("asks for none"), "{stderr}");
}

/// The reason why `--compat` exists. A version that is not in the list is one that has not been
/// tried.
#[test]
fn the_runtimes_own_setting_crashes_it() {
    for runtime in Runtime::all() {
        let version = runtime.version.as_str();
        let log = log(&format!("compatibility-own-{version}"));
        let run = |setting: &str| {
            let mut command = runtime.command(&workload("calls").dll);
            command.arg("rounds=1");
            with_old_profiler(&mut command, &log);
            command.env("COMPlus_ProfAPI_ProfilerCompatibilitySetting", setting);
            output_in_time(&mut command).status
        };
        assert!(run("EnableV2Profiler").success(), "{version}");
        assert!(run("DisableV2Profiler").success(), "{version}");
        let text = fs::read_to_string(&log).unwrap();
        let loaded = text.lines().filter(|line| line.starts_with("initialized"));
        assert_eq!(loaded.count(), 2, "{version} loads it under both: {text}");
        match version {
            "3.1.23" | "8.0.4" => {
                let signal = run("PreventLoad").signal();
                assert_eq!(
                    signal,
                    Some(11),
                    "{version} is fixed: say so in docs/side-by-side.md"
                );
            }
            _ => println!("{version}: not known to crash"),
        }
    }
}
