//! Checks of the files that `cargo xtask dist` has made, by third-party tools.
//!
//! A test exists for each file in `target/dist`. Without files no test exists that would have to be
//! skipped. `cargo xtask dist` makes the same checks by its own reader. Another test checks that
//! the tools' output is parsed correctly, on every machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Arguments, Trial};
use testkit::target_dir;

/// The glibc version of RHEL 7, Ubuntu 14.04 and Debian 8.
const NEWEST: (u32, u32) = (2, 17);

fn main() -> std::process::ExitCode {
    let mut trials = vec![trial("a_newer_glibc_is_seen", a_newer_glibc_is_seen)];
    if let Some(archive) = archive() {
        trials.push(Trial::test(
            "binaries_and_agent_need_no_newer_glibc",
            move || {
                binaries_and_agent_need_no_newer_glibc(&archive);
                Ok(())
            },
        ));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(name: &str, run: fn()) -> Trial {
    Trial::test(name, move || {
        run();
        Ok(())
    })
}

fn archive() -> Option<PathBuf> {
    let entries = fs::read_dir(target_dir().join("dist")).ok()?;
    let mut files = entries.flatten().map(|entry| entry.path());
    files.find(|path| path.to_str().is_some_and(|path| path.ends_with(".tar.gz")))
}

/// Returns the glibc versions that a file needs, from `objdump -T`.
fn needed(file: &Path) -> Vec<(u32, u32)> {
    let output = Command::new("objdump")
        .arg("-T")
        .arg(file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let versions = text.lines().filter_map(|line| {
        let (_, version) = line.split_once("GLIBC_")?;
        let version = version.split([')', ' ']).next()?;
        let mut parts = version.split('.').map(|part| part.parse().ok());
        // GLIBC_PRIVATE and similar names are not versions.
        Some((parts.next()??, parts.next()??))
    });
    let versions: Vec<_> = versions.collect();
    assert!(!versions.is_empty(), "{text}");
    versions
}

/// Checks a file that was built for this machine, where glibc is newer.
fn a_newer_glibc_is_seen() {
    let own = std::env::current_exe().unwrap();
    assert!(needed(&own).iter().max() > Some(&NEWEST));
    assert!(diagnostics::newest_glibc(&own) > Some(NEWEST));
}

fn binaries_and_agent_need_no_newer_glibc(archive: &Path) {
    let folder = target_dir().join("released");
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("xzf")
        .arg(archive)
        .arg("-C")
        .arg(&folder)
        .arg("--strip-components=1");
    assert!(tar.status().unwrap().success());
    // Its agent is in it: unpacked by itself, where a program would be given it.
    let (cache, temporary) = (folder.join("cache"), folder.join("tmp"));
    fs::create_dir_all(&temporary).unwrap();
    let answer = Command::new(folder.join("sidewalk"))
        .arg("doctor")
        .env("HOME", &folder)
        .env("XDG_CACHE_HOME", &cache)
        .env("TMPDIR", &temporary)
        .env_remove("SIDEWALK_AGENT")
        .output()
        .unwrap();
    let reported = String::from_utf8(answer.stdout).unwrap();
    let agent = reported.split_whitespace().find_map(|word| {
        let path = Path::new(word.trim_end_matches([',', ';', ':']));
        let name = path.file_name()?.to_str()?;
        (name.starts_with("libsidewalk") && path.is_file()).then(|| path.to_owned())
    });
    let agent = agent.unwrap_or_else(|| panic!("no agent is named in\n{reported}"));
    let tool = diagnostics::newest_glibc(&folder.join("sidewalk"));
    assert_eq!(tool, None, "the tool is static");
    for file in [folder.join("runsxs"), agent] {
        let newest = needed(&file).into_iter().max();
        assert!(newest <= Some(NEWEST), "{}: {newest:?}", file.display());
        assert_eq!(
            diagnostics::newest_glibc(&file),
            newest,
            "{}",
            file.display()
        );
    }
}
