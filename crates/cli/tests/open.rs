//! `sidewalk open`: a page for a browser, or its path.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use profile::testing::tiny;
use tempfile::TempDir;

/// A folder with `tiny.swk`, and one for programs.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tiny.swk"), tiny().file()).unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    folder
}

fn open(folder: &Path, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidewalk"));
    command
        .args(["open", "tiny.swk"])
        .current_dir(folder)
        .env("TMPDIR", folder)
        .env(
            "PATH",
            format!("{}:/usr/bin:/bin", folder.join("bin").to_str().unwrap()),
        );
    for name in ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).output().unwrap()
}

/// A program that tells through a FIFO what it was given.
fn browser(folder: &Path, name: &str) {
    let program = folder.join("bin").join(name);
    fs::write(&program, "#!/bin/sh\necho \"$1\" > told\n").unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let status = Command::new("mkfifo").arg(folder.join("told")).status();
    assert!(status.unwrap().success());
}

fn assert_page(path: &Path) {
    let page = fs::read_to_string(path).unwrap();
    assert!(page.contains("<title>") && page.contains("</html>"));
    let mode = fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it is its owner's alone");
}

#[test]
fn a_browser_opens_the_page() {
    for (variables, name) in [
        (&[("DISPLAY", ":9")][..], "xdg-open"),
        (&[("WAYLAND_DISPLAY", "w"), ("BROWSER", "fox")][..], "fox"),
    ] {
        let folder = folder();
        browser(folder.path(), name);
        let output = open(folder.path(), variables);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let told = fs::read_to_string(folder.path().join("told")).unwrap();
        assert_page(Path::new(told.trim_end()));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(told.trim_end()), "{said}");
    }
}

#[test]
fn without_a_browser_the_path_is_printed() {
    for (variables, why) in [
        (&[][..], "there is no display"),
        (&[("DISPLAY", "")][..], "there is no display"),
        (
            &[("DISPLAY", ":9"), ("BROWSER", "/none/such")][..],
            "/none/such does not start",
        ),
    ] {
        let folder = folder();
        let output = open(folder.path(), variables);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(why), "{said}");
        let path = String::from_utf8(output.stdout).unwrap();
        assert_page(&PathBuf::from(path.trim_end()));
    }
}
