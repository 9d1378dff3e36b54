//! Tests of names and lines from symbol servers, for a stripped library of known functions.
//!
//! The library is made by the machine's C compiler and objcopy. The servers are real ones on local
//! ports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use symbolserver::testing::{TestResponse, TestServer};
use tempfile::TempDir;

use crate::tests::{Ran, Scene, scene};

/// `hot` has no exported name. The tests know its lines.
const SOURCE: &str = "\
static __attribute__((noinline)) int hot(int x)
{
    return x * 3;
}

int entry(int x)
{
    return hot(x) + 1;
}
";
const TAG: &str = "\"1\"";
/// Offset of an address after a function's first statement, in bytes.
const INSIDE: u64 = 12;

pub(crate) fn all() -> Vec<Trial> {
    let trial = |name: &'static str, run: fn()| {
        Trial::test(format!("servers::{name}"), move || {
            run();
            Ok(())
        })
    };
    vec![
        trial(
            "fetched_names_and_lines_are_in_reports",
            fetched_names_and_lines_are_in_reports,
        ),
        trial(
            "record_with_symbols_keeps_names_in_the_recording",
            record_with_symbols_keeps_names,
        ),
        trial(
            "a_server_that_fails_leaves_the_report_as_it_was",
            a_server_that_fails,
        ),
        trial(
            "interrupt_ends_the_fetching_and_keeps_the_recording",
            interrupt_ends_the_fetching,
        ),
        trial(
            "nobody_is_asked_unless_a_user_asks",
            nobody_is_asked_unless_a_user_asks,
        ),
        trial("a_process_files_are_fetched", a_process_files_are_fetched),
        trial(
            "wrong_servers_are_told_before_the_program_starts",
            wrong_servers_are_told,
        ),
    ]
}

/// A stripped library, its debug file, and its addresses.
struct Library {
    folder: TempDir,
    path: PathBuf,
    debug: Vec<u8>,
    build_id: String,
    /// Addresses in `hot` and `entry`, after their first instructions.
    addresses: [u64; 2],
}

fn run(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = testkit::output_in_time(command.stdin(Stdio::null()));
    assert!(
        status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(stdout).unwrap()
}

impl Library {
    fn build() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("work.c"), SOURCE).unwrap();
        let build_id = "00112233445566778899aabbccddeeff00112233".to_owned();
        run(Command::new("cc")
            .args(["-g", "-O0", "-shared", "-fPIC", "-o"])
            .arg(at("libwork.so"))
            .arg(at("work.c"))
            .arg(format!("-Wl,--build-id=0x{build_id}")));
        let symbols = run(Command::new("nm").arg(at("libwork.so")));
        let address = |name: &str| {
            let line = symbols
                .lines()
                .find(|line| line.ends_with(&format!(" {name}")))
                .unwrap();
            u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap() + INSIDE
        };
        let addresses = [address("hot"), address("entry")];
        let objcopy = || Command::new("objcopy");
        run(objcopy()
            .arg("--only-keep-debug")
            .args([at("libwork.so"), at("kept")]));
        run(objcopy().arg("--strip-all").arg(at("libwork.so")));
        let debug = fs::read(at("kept")).unwrap();
        fs::remove_file(at("kept")).unwrap();
        Self {
            path: at("libwork.so"),
            folder,
            debug,
            build_id,
            addresses,
        }
    }

    fn by_key(&self) -> String {
        format!("/_.debug/elf-buildid-sym-{}/_.debug", self.build_id)
    }

    fn by_build_id(&self) -> String {
        format!("/buildid/{}/debuginfo", self.build_id)
    }

    /// Returns the player's action that puts its samples into the library.
    fn action(&self) -> String {
        let [hot, entry] = self.addresses;
        format!(
            "library={}@{}@{hot:x}@{entry:x}",
            self.path.to_string_lossy(),
            self.build_id
        )
    }

    /// Returns a scene that records samples in the library, into `x.swk`.
    fn scene(&self, options: &[&str]) -> Scene {
        let options = [&["-o", "x.swk"], options].concat();
        let scene = scene(&options, &["connect", &self.action(), "end"]);
        self.with_servers(scene)
    }

    /// Adds an environment without symbol servers, and with its own folder for fetched files.
    fn with_servers(&self, mut scene: Scene) -> Scene {
        alone(&mut scene.command, self.folder.path());
        scene
    }

    fn sidewalk(&self, recorded: &Ran, arguments: &[&str], server: &TestServer) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidewalk"));
        alone(&mut command, self.folder.path());
        command
            .env("SIDEWALK_SYMBOL_SERVERS", server.address())
            .env("DEBUGINFOD_TIMEOUT", "1")
            .current_dir(recorded.folder.path())
            .args(arguments);
        testkit::output_in_time(command.stdin(Stdio::null()))
    }

    fn report(&self, recorded: &Ran) -> String {
        let nobody = TestServer::new();
        let by_method = self.sidewalk(recorded, &["report", "x.swk"], &nobody);
        let by_line = self.sidewalk(recorded, &["report", "--by", "line", "x.swk"], &nobody);
        assert!(nobody.requests().is_empty());
        let text = |output: Output| String::from_utf8(output.stdout).unwrap();
        text(by_method) + &text(by_line)
    }
}

fn alone(command: &mut Command, folder: &Path) {
    for variable in [
        "DEBUGINFOD_URLS",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ] {
        command.env_remove(variable);
    }
    command
        .env("SIDEWALK_SYMBOL_SERVERS", "http://127.0.0.1:9")
        .env("DEBUGINFOD_CACHE_PATH", folder.join("cache"));
}

fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

fn fetched_names_and_lines_are_in_reports() {
    for debuginfod in [false, true] {
        let library = Library::build();
        let recorded = library.scene(&[]).run();
        let start = library.addresses[0] - INSIDE;
        let before = library.report(&recorded);
        assert_has(&before, &[&format!("libwork.so+{start:#x}"), "entry"]);
        assert!(
            !before.contains("hot") && !before.contains("work.c"),
            "{before}"
        );

        let server = TestServer::new();
        let path = match debuginfod {
            true => library.by_build_id(),
            false => library.by_key(),
        };
        server.put(&path, TestResponse::File(library.debug.clone(), TAG));
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidewalk"));
        alone(&mut command, library.folder.path());
        command
            .current_dir(recorded.folder.path())
            .args(["symbols", "fetch", "x.swk"]);
        match debuginfod {
            true => command.env("SIDEWALK_SYMBOL_SERVERS", "").env(
                "DEBUGINFOD_URLS",
                format!("ima:enforcing {}", server.address()),
            ),
            false => command.args(["--server", &server.address()]),
        };
        let text = run(&mut command);
        assert_has(
            &text,
            &["fetched   libwork.so", &library.build_id, &server.address()],
        );
        assert_eq!(server.requested_paths(), [path]);

        let after = library.report(&recorded);
        assert_has(&after, &["hot", "entry", "work.c:3", "work.c:8"]);
        assert!(!after.contains("libwork.so+"), "{after}");
        // The library may be deleted.
        fs::remove_file(&library.path).unwrap();
        assert_eq!(library.report(&recorded), after);
    }
}

fn record_with_symbols_keeps_names() {
    let library = Library::build();
    let server = TestServer::new();
    server.put(
        &library.by_key(),
        TestResponse::File(library.debug.clone(), TAG),
    );
    let mut scene = library.scene(&["--symbols"]);
    scene
        .command
        .env("SIDEWALK_SYMBOL_SERVERS", server.address());
    let recorded = scene.run();
    assert!(recorded.status.success(), "{}", recorded.stderr);
    assert_has(&recorded.stderr, &["symbols: 1 of 1 missing files fetched"]);
    // Also without the library and the folder.
    fs::remove_dir_all(library.folder.path()).unwrap();
    assert_has(
        &library.report(&recorded),
        &["hot", "entry", "work.c:3", "work.c:8"],
    );
}

fn a_server_that_fails() {
    let library = Library::build();
    let recorded = library.scene(&[]).run();
    let before = library.report(&recorded);
    let mut other = library.debug.clone();
    let id = [0x00, 0x11, 0x22, 0x33, 0x44, 0x55];
    let at = other.windows(6).position(|window| window == id).unwrap();
    other[at] = 0xee;
    let half = library.debug[..library.debug.len() / 2].to_vec();
    for (answer, code, reported) in [
        (TestResponse::Status(404), 0, "not found libwork.so"),
        (TestResponse::Status(500), 1, "it answers 500"),
        (
            TestResponse::File(other, TAG),
            1,
            "it belongs to another build, ee11",
        ),
        (
            TestResponse::File(half, TAG),
            1,
            "it is damaged or no such file",
        ),
        (TestResponse::NoReply, 1, "it sent nothing for 1 s"),
    ] {
        let server = TestServer::new();
        server.put("*", answer.clone());
        let output = library.sidewalk(&recorded, &["symbols", "fetch", "x.swk"], &server);
        assert_eq!(output.status.code(), Some(code), "{answer:?}");
        assert_has(&String::from_utf8(output.stdout).unwrap(), &[reported]);
        assert_eq!(library.report(&recorded), before, "{answer:?}");
    }
    // No server listens there.
    let server = TestServer::new();
    let arguments = [
        "symbols",
        "fetch",
        "x.swk",
        "--server",
        "http://127.0.0.1:9",
    ];
    let output = library.sidewalk(&recorded, &arguments, &server);
    assert_eq!(output.status.code(), Some(1));
    assert_has(
        &String::from_utf8(output.stdout).unwrap(),
        &["it cannot be reached", "HTTPS_PROXY"],
    );
    assert_eq!(library.report(&recorded), before);
    // For a process with several files, no file is reported as not found if no server could be
    // queried.
    let pid = std::process::id().to_string();
    let arguments = ["symbols", "fetch", &pid, "--server", "http://127.0.0.1:9"];
    let output = library.sidewalk(&recorded, &arguments, &server);
    let reported = String::from_utf8(output.stdout).unwrap();
    assert!(!reported.contains("not found"), "{reported}");
    assert_has(&reported, &["it cannot be reached"]);
    // A recorded program still ends normally.
    let recorded = library.scene(&["--symbols"]).run();
    assert!(recorded.status.success(), "{}", recorded.stderr);
    assert_has(
        &recorded.stderr,
        &["warning: libwork.so", "it cannot be reached", "0 of 1"],
    );
    assert_eq!(library.report(&recorded), before);
}

fn interrupt_ends_the_fetching() {
    let library = Library::build();
    let server = TestServer::new();
    server.put("*", TestResponse::NoReply);
    let mut scene = library.scene(&["--symbols"]);
    scene
        .command
        .env("SIDEWALK_SYMBOL_SERVERS", server.address())
        .env("DEBUGINFOD_TIMEOUT", "600");
    let running = scene.start();
    while server.requests().is_empty() {
        std::thread::yield_now();
    }
    running.signal(Signal::SIGINT);
    let recorded = running.finish();
    assert_has(&recorded.stderr, &["stopped", "wrote x.swk"]);
    assert_has(&library.report(&recorded), &["libwork.so+", "entry"]);
}

fn nobody_is_asked_unless_a_user_asks() {
    let library = Library::build();
    let server = TestServer::new();
    let mut scene = library.scene(&["-o", "x.html", "-o", "x.collapsed"]);
    scene
        .command
        .env("SIDEWALK_SYMBOL_SERVERS", server.address())
        .env("DEBUGINFOD_URLS", server.address());
    let recorded = scene.run();
    for verb in ["report", "inspect"] {
        let output = library.sidewalk(&recorded, &[verb, "x.swk"], &server);
        assert!(output.status.success());
    }
    assert_eq!(server.requested_paths(), [""; 0]);
}

fn a_process_files_are_fetched() {
    let library = Library::build();
    let server = TestServer::new();
    server.put(
        &library.by_key(),
        TestResponse::File(library.debug.clone(), TAG),
    );
    // Runs with the library loaded until its input ends.
    let mut program = Command::new("cat")
        .env("LD_PRELOAD", &library.path)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = program.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"x").unwrap();
    // It echoes a byte of its input when the library is loaded and it runs.
    std::io::Read::read_exact(program.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let pid = program.id().to_string();
    let recorded = library.scene(&[]).run();
    let output = library.sidewalk(&recorded, &["symbols", "fetch", &pid], &server);
    drop(input);
    program.wait().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_has(&text, &["fetched   libwork.so"]);
    assert_has(&library.report(&recorded), &["work.c:3"]);
}

fn wrong_servers_are_told() {
    let library = Library::build();
    for (name, value, reported) in [
        (
            "SIDEWALK_SYMBOL_SERVERS",
            "example.org",
            "does not begin with https://",
        ),
        (
            "DEBUGINFOD_URLS",
            "file:///srv/debug",
            "does not begin with https://",
        ),
        ("DEBUGINFOD_MAXSIZE", "1G", "DEBUGINFOD_MAXSIZE is 1G"),
        (
            "SIDEWALK_SYMBOL_SERVERS",
            "",
            "no symbol server is configured",
        ),
    ] {
        let mut scene = library.scene(&["--symbols"]);
        scene.command.env(name, value);
        let recorded = scene.run();
        assert_eq!(recorded.status.code(), Some(1), "{}", recorded.stderr);
        assert_has(&recorded.stderr, &[reported]);
        assert!(!recorded.folder.path().join("x.swk").exists());
        assert_eq!(recorded.stdout, "");
    }
}
