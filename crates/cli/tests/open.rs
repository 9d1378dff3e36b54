//! Tests of `sidewalk open`: it shows a page in a browser, or prints the page's path.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use profile::testing::{Scene, tiny, tree};
use tempfile::TempDir;

/// Makes a folder with `tiny.swk` and `tree.swk`, and one for programs.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tiny.swk"), tiny().file()).unwrap();
    fs::write(folder.path().join("tree.swk"), tree().file()).unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    folder
}

fn open(folder: &Path, variables: &[(&str, &str)]) -> Output {
    open_with(folder, &["tiny.swk"], variables)
}

fn open_with(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidewalk"));
    command
        .arg("open")
        .args(arguments)
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

/// Makes a fake browser that writes its argument to a FIFO.
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
        let reported = fs::read_to_string(folder.path().join("told")).unwrap();
        assert_page(Path::new(reported.trim_end()));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(reported.trim_end()), "{message}");
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
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(why), "{message}");
        let path = String::from_utf8(output.stdout).unwrap();
        assert_page(&PathBuf::from(path.trim_end()));
    }
}

#[test]
fn the_page_shows_the_chosen_part() {
    let folder = folder();
    let output = open_with(folder.path(), &["tree.swk", "--process", "App"], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let note = "10 of 100 samples are shown: --process 'App'";
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains(note), "{message}");
    let path = String::from_utf8(output.stdout).unwrap();
    let data = decoded(Path::new(path.trim_end()));
    assert!(data.contains(note) && data.contains("Worker"), "{data}");
    assert!(!data.contains("Tools.compile"), "{data}");
    // With nothing to show there is no page.
    let output = open_with(folder.path(), &["tree.swk", "--focus", "Nowhere"], &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("--focus 'Nowhere' matches nothing"),
        "{message}"
    );
}

/// Returns the decoded page of a recording whose samples are in the fixture `Sources.dll`. `more`
/// are further arguments.
fn page_of_sources(folder: &Path, more: &[&str]) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../symbolize/tests/fixtures");
    for name in ["Sources.dll", "Sources.pdb"] {
        fs::copy(fixtures.join(name), folder.join(name)).unwrap();
    }
    let path = folder.join("Sources.dll").to_str().unwrap().to_owned();
    let mut scene = Scene::new(1, &["dotnet", "sources.dll"]);
    let runtime = scene.runtime("8.0.33");
    let module = scene.managed_module(runtime, path.leak());
    let thread = scene.thread(1, "main", true);
    // Tokens count from 0x06000001; those of the fixture are among them.
    for _ in 0..7 {
        let method = scene.method(runtime, module, "Sources", "Method");
        let frame = scene.managed(method, recording::Tier::Tier1, 0);
        let stack = scene.stack(&[frame]);
        scene.samples(thread, stack, 10);
    }
    scene.end();
    fs::write(folder.join("sources.swk"), scene.file()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_sidewalk"))
        .args(["convert", "sources.swk", "-o", "sources.html"])
        .args(more)
        .current_dir(folder)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    decoded(&folder.join("sources.html"))
}

/// Returns the data of a page.
fn decoded(page: &Path) -> String {
    let page = fs::read_to_string(page).unwrap();
    let (_, data) = page.split_once("data-encoding=\"plain\">").unwrap();
    let (data, _) = data.split_once('<').unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("data"), data).unwrap();
    let decoded = Command::new("base64")
        .args(["-d", "data"])
        .current_dir(folder.path())
        .output();
    String::from_utf8_lossy(&decoded.unwrap().stdout).into_owned()
}

/// Text that exists only in a PDB is in the page, if requested.
#[test]
fn the_page_has_sources_that_are_in_a_pdb() {
    let folder = tempfile::tempdir().unwrap();
    let text = "public static int Add(int a, int b) => a + b;";
    let without = page_of_sources(folder.path(), &[]);
    assert!(without.contains("/fixture/Short.cs"), "{without}");
    assert!(!without.contains(text), "{without}");
    let with = page_of_sources(folder.path(), &["--sources"]);
    assert!(with.contains(text), "{with}");
}
