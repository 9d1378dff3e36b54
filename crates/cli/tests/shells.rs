//! Tests of the output of `sidewalk completions` and `sidewalk man` with real readers.
//!
//! The readers are bash, zsh, man and mandoc. `cargo xtask setup --all` installs missing ones.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use testkit::{Running, Runtime};

const SIDEWALK: &str = env!("CARGO_BIN_EXE_sidewalk");

/// Returns `PATH` with the binary's folder first, as after an installation.
fn path() -> std::ffi::OsString {
    let own = Path::new(SIDEWALK).parent().unwrap().to_owned();
    let others = std::env::var_os("PATH").unwrap();
    std::env::join_paths([own].into_iter().chain(std::env::split_paths(&others))).unwrap()
}

fn run(command: &mut Command) -> Output {
    command
        .env("PATH", path())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; cargo xtask setup --all installs it"))
}

fn printed(arguments: &[&str]) -> String {
    let output = run(Command::new(SIDEWALK).args(arguments));
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns bash's completions of the last word, as if Tab were pressed there. Calls the function
/// that the script registered as bash does.
fn bash(folder: &Path, words: &[&str]) -> Vec<String> {
    let script = r#"
        source <(sidewalk completions bash) || exit 3
        registered=$(complete -p sidewalk) || exit 4
        [[ $registered =~ -F\ ([^ ]+) ]] || exit 5
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
        "${BASH_REMATCH[1]}" sidewalk "${!#}" "${@: -2:1}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", script, "bash"]).args(words);
    let output = run(command.current_dir(folder));
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// Returns the line that zsh shows after Tab was pressed at its end. The shell runs on its own
/// terminal (`zpty`), with the script where `compinit` searches for one.
fn zsh(folder: &Path, line: &str) -> String {
    let functions = folder.join("functions");
    fs::create_dir_all(&functions).unwrap();
    fs::write(
        functions.join("_sidewalk"),
        printed(&["completions", "zsh"]),
    )
    .unwrap();
    let rc = r#"
        fpath=($FUNCTIONS $fpath)
        autoload -Uz compinit && compinit -u -D
        bindkey '^I' complete-word
        told() { print -r -- "<<$BUFFER>>"; exit }
        zle -N told
        bindkey '^O' told
        PS1='ready>'
    "#;
    fs::write(folder.join(".zshrc"), rc).unwrap();
    let script = r#"
        zmodload zsh/zpty
        zpty shell zsh -i
        # Reads until the shell asks; then types, and reads until it has told.
        zpty -r shell said '*ready>*'
        zpty -w -n shell "$1"$'\t\x0f'
        zpty -r shell all '*>>*'
        print -r -- "$all"
    "#;
    let mut command = Command::new("zsh");
    command
        .args(["-f", "-c", script, "zsh", line])
        .current_dir(folder)
        .env("ZDOTDIR", folder)
        .env("FUNCTIONS", functions)
        .env("TERM", "dumb");
    let output = run(&mut command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let reported = text
        .rsplit_once("<<")
        .and_then(|(_, rest)| rest.split_once(">>"));
    reported
        .unwrap_or_else(|| panic!("{output:?}"))
        .0
        .to_owned()
}

fn folder_with_recordings() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["shop.swk", "shop.html", "other.swk"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    folder
}

#[test]
fn bash_completes_processes_recordings_options_and_lists() {
    let folder = folder_with_recordings();
    let of = |words: &[&str]| bash(folder.path(), words);
    let running = Running::waits(&Runtime::net8());
    let pid = running.pid().to_string();
    let begun = &pid[..pid.len() - 1];
    for verb in [&["record", "--pid"][..], &["top"], &["dump"], &["doctor"]] {
        let offered = of(&[&["sidewalk"], verb, &[begun]].concat());
        assert!(offered.contains(&pid), "{verb:?}: {pid}: {offered:?}");
        // Not this test, which is no .NET program.
        let ours = std::process::id().to_string();
        assert!(!of(&[&["sidewalk"], verb, &[""]].concat()).contains(&ours));
    }
    running.end_well();
    assert_eq!(of(&["sidewalk", "report", "sh"]), ["shop.swk"]);
    assert_eq!(
        of(&["sidewalk", "convert", ""])[..2],
        ["other.swk", "shop.swk"]
    );
    assert_eq!(of(&["sidewalk", "rep"]), ["report"]);
    assert_eq!(of(&["sidewalk", "record", "--walker", "s"]).len(), 5);
    assert_eq!(of(&["sidewalk", "record", "-e", "cpu,al"]), ["cpu,alloc"]);
    assert_eq!(of(&["sidewalk", "help", "wal"]), ["walkers"]);
    let programs = of(&["sidewalk", "record", "--", "mandoc"]);
    assert!(programs.contains(&"mandoc".to_owned()), "{programs:?}");
    assert_eq!(
        of(&["sidewalk", "record", "--", "cat", "shop.h"]),
        ["shop.html"]
    );
}

#[test]
fn zsh_completes_a_process_and_a_recording() {
    let folder = folder_with_recordings();
    let of = |line: &str| zsh(folder.path(), line);
    assert_eq!(of("sidewalk report sh"), "sidewalk report shop.swk ");
    let running = Running::waits(&Runtime::net8());
    let pid = running.pid().to_string();
    // All its digits: another process may begin with the same.
    let typed = format!("sidewalk record --pid {pid}");
    assert_eq!(of(&typed), format!("{typed} "));
    running.end_well();
    assert_eq!(
        of("sidewalk record --no-ch"),
        "sidewalk record --no-children "
    );
}

#[test]
fn manual_pages_render_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let help = printed(&["--help"]);
    let verbs = help.split_once("Commands:\n").unwrap().1;
    let verbs = verbs.split_once("\n\n").unwrap().0;
    let verbs = verbs.lines().filter_map(|line| {
        let word = line.strip_prefix("  ")?.split(' ').next()?;
        (!word.is_empty()).then_some(word)
    });
    let pages: Vec<Vec<&str>> = std::iter::once(vec!["man"])
        .chain(verbs.map(|verb| vec!["man", verb]))
        .collect();
    assert!(pages.len() > 10, "{pages:?}");
    for words in pages {
        let name = format!("{}.1", words.join("-"));
        let file: PathBuf = folder.path().join(name);
        let page = printed(&words);
        fs::write(&file, &page).unwrap();
        let lint = run(Command::new("mandoc")
            .args(["-T", "lint", "-W", "warning"])
            .arg(&file));
        let message = String::from_utf8_lossy(&lint.stdout);
        assert!(
            lint.status.success() && message.is_empty(),
            "{words:?}: {message}"
        );
        let man = run(Command::new("man")
            .args(["--warnings=all", "-l"])
            .arg(&file)
            .envs([
                ("LC_ALL", "C.UTF-8"),
                ("MANWIDTH", "100"),
                ("MANPAGER", "cat"),
            ]));
        let shown = String::from_utf8_lossy(&man.stdout);
        let message = String::from_utf8_lossy(&man.stderr);
        assert!(
            man.status.success() && message.is_empty(),
            "{words:?}: {message}"
        );
        assert!(
            shown.contains("SYNOPSIS") && shown.contains("xample"),
            "{shown}"
        );
    }
}

/// Tests the linters themselves: they must detect an error.
#[test]
fn a_page_with_a_mistake_is_seen() {
    let mut mandoc = Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = mandoc.stdin.take().unwrap();
    stdin
        .write_all(b".TH X 1 yesterday\n.SH NAME\nx \\- y\n")
        .unwrap();
    drop(stdin);
    assert!(!mandoc.wait_with_output().unwrap().stdout.is_empty());
}
