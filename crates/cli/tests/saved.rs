//! Tests of verbs on existing recordings, of help texts and of errors, as users see them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use profile::testing::{Scene, tiny, tree};
use tempfile::TempDir;

/// Makes a folder with `tiny.swk`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tiny.swk"), tiny().file()).unwrap();
    folder
}

fn sidewalk(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sidewalk"))
        .args(arguments)
        .current_dir(folder)
        .env("COLUMNS", "100")
        .output()
        .unwrap()
}

/// Returns the command line, exit code, stdout and stderr of a run.
fn shown(folder: &Path, arguments: &[&str]) -> String {
    let output = sidewalk(folder, arguments);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    format!(
        "$ sidewalk {}\nexit code {}\n--- stdout\n{}--- stderr\n{}",
        arguments.join(" "),
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr)
    )
}

/// Returns the same of several runs, one after the other.
fn all_shown(folder: &Path, cases: &[&[&str]]) -> String {
    let all: Vec<String> = cases
        .iter()
        .map(|arguments| shown(folder, arguments))
        .collect();
    all.join("\n")
}

#[test]
fn help() {
    let folder = folder();
    for verb in ["record", "report", "convert", "open", "diff", "inspect"] {
        insta::assert_snapshot!(
            format!("help-{verb}"),
            shown(folder.path(), &[verb, "--help"])
        );
    }
    insta::assert_snapshot!("help", shown(folder.path(), &["--help"]));
    let fetch = shown(folder.path(), &["symbols", "fetch", "--help"]);
    insta::assert_snapshot!("help-symbols-fetch", fetch);
}

#[test]
fn wrong_usage() {
    let folder = folder();
    let cases: [&[&str]; 17] = [
        &[],
        &["undo", "1"],
        &["record"],
        &["record", "--unknown", "--", "x"],
        &["record", "-e", "cpu,itimer", "--", "x"],
        &["record", "--walker", "frame-pointer", "--", "x"],
        &["record", "--alloc-interval", "1t", "--", "x"],
        &["record", "--alloc-interval", "1m", "--", "x"],
        &["record", "--event-limit", "9", "-e", "wall", "--", "x"],
        &["record", "-o", "x.png", "--", "x"],
        &["record", "-F", "20000", "--", "x"],
        &["record", "-i", "10", "--", "x"],
        &["record", "--runtimes", "one=3,8", "--", "x"],
        &["report", "--by", "colour", "tiny.swk"],
        &["report", "--async", "both", "tiny.swk"],
        &["convert", "tiny.swk"],
        &["convert", "tiny.swk", "-o", "out"],
    ];
    insta::assert_snapshot!(all_shown(folder.path(), &cases));
}

#[test]
fn bad_input() {
    let folder = folder();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("text.swk", b"not a recording");
    write("empty.swk", b"");
    let mut newer = recording::file_header("a newer one");
    newer[8] = 9;
    write("newer.swk", &newer);
    let cases: [&[&str]; 10] = [
        &["report", "missing.swk"],
        &["report", "tiny.swk", "--event", "alloc"],
        &["convert", "tiny.swk", "-e", "wall", "-o", "x.html"],
        &["report", "."],
        &["report", "text.swk"],
        &["report", "empty.swk"],
        &["inspect", "newer.swk"],
        &["convert", "tiny.swk", "-o", "missing/x.html"],
        &["convert", "tiny.swk", "-o", "copy.swk"],
        &["convert", "missing.swk", "-o", "x.html"],
    ];
    insta::assert_snapshot!(all_shown(folder.path(), &cases));
    // Nothing is left behind.
    assert!(!folder.path().join("x.html").exists());
}

#[test]
fn a_part_of_a_recording_is_chosen() {
    let folder = folder();
    std::fs::write(folder.path().join("tree.swk"), tree().file()).unwrap();
    let cases: [&[&str]; 13] = [
        &["report", "tree.swk", "--by", "process"],
        &["report", "tree.swk", "--process", "app"],
        &[
            "report",
            "tree.swk",
            "--process",
            "dotnet*",
            "--process",
            "12",
            "--by",
            "thread",
        ],
        &[
            "report", "tree.swk", "--thread", "worker", "--sort", "total",
        ],
        &[
            "report",
            "tree.swk",
            "--focus",
            "Tools\\.compile|Worker",
            "--ignore",
            "Worker",
        ],
        &[
            "convert",
            "tree.swk",
            "-o",
            "-",
            "--process",
            "VBCSCompiler",
        ],
        &["diff", "tree.swk", "tree.swk", "--process", "App"],
        &["report", "tree.swk", "--process", "Ap"],
        &[
            "report",
            "tree.swk",
            "--process",
            "App",
            "--thread",
            "build",
        ],
        &["report", "tree.swk", "--focus", "Nowhere"],
        &["convert", "tree.swk", "-o", "-", "--ignore", "Main"],
        &["report", "tree.swk", "--focus", "a(b"],
        &["diff", "tree.swk", "tree.swk", "--focus", "Nowhere"],
    ];
    insta::assert_snapshot!(all_shown(folder.path(), &cases));
}

#[test]
fn a_cut_recording_is_read_as_far_as_it_goes() {
    let folder = folder();
    let mut scene = Scene::new(1, &["x"]);
    let thread = scene.thread(1, "main", false);
    let frame = scene.frame(recording::Frame::Unknown { address: 1 });
    let stack = scene.stack(&[frame]);
    scene.samples(thread, stack, 20_000);
    let file = scene.file();
    let cut = folder.path().join("cut.swk");
    std::fs::write(&cut, &file[..file.len() - 7]).unwrap();
    let output = sidewalk(folder.path(), &["report", "cut.swk"]);
    assert_eq!(output.status.code(), Some(0));
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("the file ends inside a block"), "{stdout}");
    assert_eq!(output.stderr, b"", "nothing is said twice");
}

/// Changed bytes of a recording give at worst an error message.
#[test]
fn fuzzed_recordings() {
    let folder = folder();
    let file = tiny().file();
    for seed in 0..24_usize {
        let mut bytes = file.clone();
        for step in 0..8 {
            let at = (seed * 7919 + step * 104_729) % bytes.len();
            bytes[at] = bytes[at].wrapping_add((seed * 31 + step + 1) as u8);
        }
        std::fs::write(folder.path().join("fuzzed.swk"), bytes).unwrap();
        for verb in ["report", "inspect"] {
            let output = sidewalk(folder.path(), &[verb, "fuzzed.swk"]);
            assert!(
                matches!(output.status.code(), Some(0 | 1)),
                "seed {seed}: {output:?}"
            );
        }
    }
}

#[test]
fn report_in_all_its_forms() {
    let folder = folder();
    let report = |arguments: &[&str]| {
        let output = sidewalk(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty());
        String::from_utf8(output.stdout).unwrap()
    };
    let all = report(&["report", "tiny.swk"]);
    assert!(
        all.contains("Sample.Worker.Hash") && all.contains("libc.so.6"),
        "{all}"
    );
    assert!(
        all.lines()
            .any(|line| line.starts_with("100 samples, 3 lost")),
        "{all}"
    );
    let managed = report(&["report", "--no-native", "tiny.swk"]);
    assert!(
        managed.contains("Sample.Worker.Hash") && !managed.contains("libc.so.6"),
        "{managed}"
    );
    assert_eq!(
        report(&["report", "--no-native", "--native", "tiny.swk"]),
        all
    );
    assert!(
        report(&["report", "--top", "1", "tiny.swk"])
            .lines()
            .count()
            < all.lines().count()
    );
    assert!(report(&["report", "--tree", "tiny.swk"]).lines().count() > all.lines().count());
    for by in ["line", "module", "thread", "runtime", "event", "process"] {
        let output = sidewalk(folder.path(), &["report", "--by", by, "tiny.swk"]);
        assert_eq!(output.status.code(), Some(0), "{by}: {output:?}");
    }
    for arguments in [
        &["report", "--json", "tiny.swk"][..],
        &["inspect", "--json", "tiny.swk"],
    ] {
        let output = sidewalk(folder.path(), arguments);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(json.is_object());
    }
}

/// A recording of several events: one is reported, any can be chosen, and all outputs are told.
#[test]
fn events_can_be_chosen() {
    let folder = folder();
    let file = profile::testing::events().file();
    std::fs::write(folder.path().join("events.swk"), file).unwrap();
    let cases: [&[&str]; 6] = [
        &["report", "events.swk", "--top", "1"],
        &["report", "events.swk", "--event", "exception"],
        &["report", "events.swk", "-e", "alloc", "--by", "method"],
        &["report", "events.swk", "--by", "event"],
        &["report", "events.swk", "-e", "call"],
        &["inspect", "events.swk"],
    ];
    insta::assert_snapshot!(all_shown(folder.path(), &cases));
    let convert = [
        "-q",
        "convert",
        "events.swk",
        "-e",
        "gc",
        "-o",
        "gc.collapsed",
    ];
    assert_eq!(sidewalk(folder.path(), &convert).status.code(), Some(0));
    let stacks = std::fs::read_to_string(folder.path().join("gc.collapsed")).unwrap();
    assert_eq!(
        stacks,
        "Shop.Program.Main;Shop.Catalog.Load;generation_2 9300000\n\
         Shop.Program.Main;Shop.Order.Parse;generation_0 700000\n"
    );
}

/// The second program differs from `tiny`: all methods of one are gone, those of the other new.
#[test]
fn recordings_are_compared() {
    let folder = folder();
    let file = profile::testing::awaits().file();
    std::fs::write(folder.path().join("other.swk"), file).unwrap();
    let cases: [&[&str]; 8] = [
        &["diff", "tiny.swk", "tiny.swk"],
        &["diff", "tiny.swk", "other.swk", "--all", "--top", "4"],
        &[
            "diff",
            "tiny.swk",
            "other.swk",
            "-q",
            "--fail-on",
            "+5% Shop.*",
            "-o",
            "diff.json",
        ],
        &["diff", "tiny.swk", "tiny.swk", "-e", "exception"],
        &["diff", "tiny.swk"],
        &["diff", "tiny.swk", "missing.swk"],
        &["diff", "tiny.swk", "tiny.swk", "--fail-on", "5% x"],
        &["report", "tiny.swk", "other.swk", "--by", "recording"],
    ];
    insta::assert_snapshot!(all_shown(folder.path(), &cases));
    let text = std::fs::read(folder.path().join("diff.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(json["before"]["recordings"][0], "tiny.swk");
    for side in ["before", "after"] {
        let rows = json["rows"].as_array().unwrap().iter();
        let sum: f64 = rows.map(|row| row["self"][side].as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{side}: {sum}");
    }
}

#[test]
fn inspect_says_which_files_have_no_names() {
    let folder = folder();
    let mut scene = Scene::new(1, &["x"]);
    let thread = scene.thread(1, "main", false);
    let module = scene.native_module("/gone/libgone.so");
    let frame = scene.frame(recording::Frame::Native { module, svma: 16 });
    let stack = scene.stack(&[frame]);
    scene.samples(thread, stack, 1);
    scene.end();
    std::fs::write(folder.path().join("gone.swk"), scene.file()).unwrap();
    let output = sidewalk(folder.path(), &["inspect", "gone.swk"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains(
            "unnamed     1 place or line in /gone/libgone.so: there is no such file here"
        ),
        "{text}"
    );
    assert!(
        text.lines().last().unwrap().starts_with("1 sample, 0 lost"),
        "{text}"
    );
}

#[test]
fn convert_to_everything() {
    let folder = folder();
    let outputs: Vec<PathBuf> = formats::Format::ALL
        .iter()
        .map(|format| PathBuf::from(format!("out{}", format.ending())))
        .collect();
    let mut arguments = vec!["convert", "tiny.swk"];
    for output in &outputs {
        arguments.extend(["-o", output.to_str().unwrap()]);
    }
    let output = sidewalk(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for output in &outputs {
        assert!(
            folder.path().join(output).metadata().unwrap().len() > 0,
            "{output:?}"
        );
    }
    // Hidden temporary files are gone.
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        outputs.len() + 1
    );
}

#[test]
fn convert_writes_to_what_is_no_file() {
    let folder = folder();
    let link = folder.path().join("out.collapsed");
    std::os::unix::fs::symlink("/dev/stdout", &link).unwrap();
    let output = sidewalk(
        folder.path(),
        &["-q", "convert", "tiny.swk", "-o", "out.collapsed"],
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!output.stdout.is_empty());
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("/dev/full", &link).unwrap();
    let output = sidewalk(
        folder.path(),
        &["convert", "tiny.swk", "-o", "out.collapsed"],
    );
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_dash_is_stdout() {
    let folder = folder();
    for (format, file) in [
        (None, "x.collapsed"),
        (Some("collapsed"), "x.collapsed"),
        (Some("pb.gz"), "x.pb.gz"),
        (Some(".html"), "x.html"),
        (Some("txt"), "x.txt"),
        (Some("speedscope.json"), "x.speedscope.json"),
        (Some("firefox.json"), "x.firefox.json"),
    ] {
        let mut words = vec!["convert", "tiny.swk", "-o", "-", "-o", file];
        if let Some(format) = format {
            words.extend(["--format", format]);
        }
        let output = sidewalk(folder.path(), &words);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(
            output.stdout,
            std::fs::read(folder.path().join(file)).unwrap()
        );
        assert!(!folder.path().join("-").exists());
    }
    let output = sidewalk(
        folder.path(),
        &["convert", "tiny.swk", "-o", "x.html", "--format", "txt"],
    );
    assert_eq!(output.status.code(), Some(2));
}

/// The page contains the recording's command line.
#[test]
fn outputs_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let shared = std::fs::Permissions::from_mode(0o644);
    std::fs::write(path("old.html"), "an older page that others may read").unwrap();
    std::fs::set_permissions(path("old.html"), shared).unwrap();
    let words = [
        "convert", "tiny.swk", "-o", "x.html", "x.txt", "x.pb.gz", "old.html",
    ];
    assert_eq!(sidewalk(folder.path(), &words).status.code(), Some(0));
    for (name, mode) in [
        ("x.html", 0o600),
        ("x.txt", 0o600),
        ("x.pb.gz", 0o600),
        ("old.html", 0o644),
    ] {
        let found = std::fs::metadata(path(name)).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{name}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = folder();
    let status = Command::new("sh")
        .arg("-c")
        .arg("{ \"$0\" report tiny.swk; echo $? >code; } | true; cat code")
        .arg(env!("CARGO_BIN_EXE_sidewalk"))
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(status.stdout, b"0\n", "{status:?}");
}

#[test]
fn colours() {
    let folder = folder();
    let stderr =
        |arguments: &[&str]| String::from_utf8(sidewalk(folder.path(), arguments).stderr).unwrap();
    assert!(
        stderr(&["--color", "always", "report", "x.swk"]).starts_with("\x1b[1;31msidewalk: error")
    );
    assert!(stderr(&["--color", "never", "report", "x.swk"]).starts_with("sidewalk: error"));
    assert!(stderr(&["report", "x.swk"]).starts_with("sidewalk: error: "));
}

/// Each node of a chain of calls has a sample. The recording is small, but it has five thousand
/// million frames when written out.
#[test]
fn a_deep_chain_is_refused_where_it_would_fill_the_disk() {
    use recording::{Event, Frame, WalkEnd};
    let folder = folder();
    let mut scene = Scene::new(1, &["x"]);
    let thread = scene.thread(1, "main", false);
    let frames = [1, 2].map(|address| {
        scene.frame(Frame::Pseudo {
            text: format!("f{address}").into(),
        })
    });
    let mut parent = None;
    for at in 0..100_000 {
        let stack = at;
        scene.push(recording::Record::Stack {
            stack,
            parent,
            frame: frames[at as usize % 2],
        });
        scene.sample(thread, stack, Event::Cpu, 1_000, WalkEnd::Root);
        parent = Some(stack);
    }
    std::fs::write(folder.path().join("chain.swk"), scene.file()).unwrap();
    for name in ["x.collapsed", "x.pb.gz", "x.speedscope.json"] {
        let output = sidewalk(folder.path(), &["convert", "chain.swk", "-o", name]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("cut them with --max-depth"), "{stderr}");
        assert!(!folder.path().join(name).exists());
    }
    let words = [
        "convert",
        "chain.swk",
        "--max-depth",
        "50",
        "-o",
        "x.collapsed",
        "x.pb.gz",
        "x.speedscope.json",
        "x.firefox.json",
        "x.html",
        "x.txt",
    ];
    assert_eq!(sidewalk(folder.path(), &words).status.code(), Some(0));
    let text = std::fs::read_to_string(folder.path().join("x.collapsed")).unwrap();
    let deepest = text
        .lines()
        .max_by_key(|line| line.matches(';').count())
        .unwrap();
    assert_eq!(deepest.matches(';').count(), 50);
    assert!(deepest.starts_with("[truncated];"), "{deepest}");
    // Every sample is still there.
    let sum: u64 = text
        .lines()
        .map(|l| l.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum();
    assert_eq!(sum, 100_000);
}

/// lz4 expands one byte to 255, and a record of a few bytes takes more in memory.
#[test]
fn a_recording_that_unpacks_to_too_much_is_refused() {
    use recording::{Event, ProcessKey, PushOutcome, Record, WalkEnd, Writer};
    let folder = folder();
    let mut file = recording::file_header("a test");
    let mut writer = Writer::new(ProcessKey(7));
    for _ in 0..4_000_000 {
        let sample = Record::Sample {
            thread: 0,
            stack: 0,
            time_ns: 1,
            event: Event::Cpu,
            value: 1,
            end: WalkEnd::Root,
            detail: None,
            logical: None,
        };
        if writer.push(&sample) != PushOutcome::Added {
            writer.take_block_into(&mut file);
        }
    }
    writer.take_block_into(&mut file);
    assert!(file.len() < 1 << 20, "{} bytes", file.len());
    std::fs::write(folder.path().join("bomb.swk"), file).unwrap();
    for verb in ["report", "inspect"] {
        let output = sidewalk(folder.path(), &[verb, "bomb.swk"]);
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            stderr.contains("unpacks to more than 16777216 bytes"),
            "{stderr}"
        );
        assert!(stderr.contains("--max-size"), "{stderr}");
    }
    let output = sidewalk(folder.path(), &["inspect", "bomb.swk", "--max-size", "1g"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn values_that_overflow_are_no_panic_and_no_nonsense() {
    use recording::{Event, WalkEnd};
    let folder = folder();
    let mut scene = Scene::new(1, &["x"]);
    let thread = scene.thread(1, "main", false);
    let frame = scene.frame(recording::Frame::Unknown { address: 1 });
    let stack = scene.stack(&[frame]);
    for _ in 0..3 {
        scene.sample(thread, stack, Event::Cpu, u64::MAX - 1, WalkEnd::Root);
    }
    for _ in 0..2 {
        scene.push(recording::Record::Stats {
            time_ns: u64::MAX,
            agent_cpu_ns: u64::MAX,
            target_cpu_ns: u64::MAX,
            agent_memory: u64::MAX,
            handler_ns: u64::MAX,
            due_ns: Some(u64::MAX - 1),
            lost_ns: u64::MAX,
        });
        for reason in ["threads that block our signal", "unknown"] {
            scene.push(recording::Record::Unseen {
                reason: reason.into(),
                threads: u64::MAX,
                cpu_ns: u64::MAX,
            });
        }
        scene.push(recording::Record::Lost {
            reason: "ring full".into(),
            count: u64::MAX,
        });
        scene.push(recording::Record::Limited {
            event: Event::Alloc,
            count: u64::MAX,
            value: u64::MAX,
        });
    }
    std::fs::write(folder.path().join("huge.swk"), scene.file()).unwrap();
    let output = sidewalk(folder.path(), &["inspect", "huge.swk"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = sidewalk(folder.path(), &["report", "huge.swk", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["rows"][0]["self"], i64::MAX);
    let all = [
        "convert",
        "huge.swk",
        "-o",
        "x.collapsed",
        "x.pb.gz",
        "x.speedscope.json",
        "x.firefox.json",
        "x.html",
        "x.txt",
    ];
    assert_eq!(sidewalk(folder.path(), &all).status.code(), Some(0));
}

/// A single-file app has a hundred modules that exist in no file of their own.
#[test]
fn modules_without_a_file_are_one_line_of_inspect() {
    let folder = folder();
    let mut scene = Scene::new(1, &["app"]);
    let clr = scene.runtime("10.0.12");
    let thread = scene.thread(1, "main", true);
    for number in 0..100 {
        let path: &'static str = Box::leak(format!("/app/Module{number}.dll").into_boxed_str());
        let module = scene.managed_module(clr, path);
        let method = scene.method(clr, module, "A", "B");
        let frame = scene.managed(method, recording::Tier::Tier1, 3);
        let stack = scene.stack(&[frame]);
        scene.samples(thread, stack, 1);
    }
    scene.end();
    std::fs::write(folder.path().join("app.swk"), scene.file()).unwrap();
    let output = sidewalk(folder.path(), &["inspect", "app.swk"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("unnamed"))
        .collect();
    assert_eq!(
        lines,
        [
            "unnamed     100 places or lines in /app/Module0.dll and 99 more: there is no such file here"
        ]
    );
}

/// All waits are for managed locks. The test checks whose.
#[test]
fn a_report_of_contention_names_methods() {
    let folder = folder();
    let file = profile::testing::events().file();
    std::fs::write(folder.path().join("events.swk"), file).unwrap();
    let output = sidewalk(folder.path(), &["report", "events.swk", "-e", "contention"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("  Shop.Program.Main\n"), "{text}");
    assert!(!text.contains("  monitor\n"), "{text}");
}

#[test]
fn a_long_command_line_is_cut() {
    let folder = folder();
    let argument: &'static str = Box::leak("x".repeat(100_000).into_boxed_str());
    let mut scene = Scene::new(1, &["csc", argument]);
    let thread = scene.thread(1, "main", true);
    let frame = scene.frame(recording::Frame::Unknown { address: 1 });
    let stack = scene.stack(&[frame]);
    scene.samples(thread, stack, 1);
    scene.end();
    std::fs::write(folder.path().join("long.swk"), scene.file()).unwrap();
    for verb in ["report", "inspect"] {
        let output = sidewalk(folder.path(), &[verb, "long.swk"]);
        assert!(
            output.stdout.len() < 4_000,
            "{verb}: {} bytes",
            output.stdout.len()
        );
    }
    // Programs that read the output get all of it.
    let output = sidewalk(folder.path(), &["inspect", "--json", "long.swk"]);
    assert!(output.stdout.len() > 5_000);
}

/// `-F 999` on a machine where only the kernel's tick is available.
#[test]
fn fewer_samples_than_asked_for_are_said() {
    use recording::{Event, Record, WalkEnd};
    let folder = folder();
    let mut scene = Scene::new(1, &["x"]);
    scene.push(Record::Engine {
        engine: "timer_create".into(),
        walker: "signal".into(),
        event: Event::Cpu,
        interval_ns: 10_000_000,
        max_depth: 64,
    });
    let thread = scene.thread(1, "main", true);
    let frame = scene.frame(recording::Frame::Unknown { address: 1 });
    let stack = scene.stack(&[frame]);
    for _ in 0..100 {
        scene.sample(thread, stack, Event::Cpu, 40_000_000, WalkEnd::Root);
    }
    scene.end();
    std::fs::write(folder.path().join("slow.swk"), scene.file()).unwrap();
    let of = |words: &[&str]| String::from_utf8(sidewalk(folder.path(), words).stdout).unwrap();
    let report = of(&["report", "slow.swk"]);
    let last = report.lines().last().unwrap();
    assert!(
        last.contains("asked for 100 samples a second, got 25"),
        "{last}"
    );
    let inspect = of(&["inspect", "slow.swk"]);
    assert!(
        inspect.contains("interval    10.00 ms asked for, 40.00 ms got\n"),
        "{inspect}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&of(&["inspect", "--json", "slow.swk"])).unwrap();
    assert_eq!(json["achieved_interval_ns"], 40_000_000);
    // Nothing is printed if everything is as requested.
    assert!(!of(&["report", "tiny.swk"]).contains("asked for"));
}

#[test]
fn help_is_a_verb_too() {
    let folder = folder();
    let of = |words: &[&str]| sidewalk(folder.path(), words);
    assert_eq!(of(&["help"]), of(&["--help"]));
    assert_eq!(of(&["help", "record"]), of(&["record", "--help"]));
    assert_eq!(of(&["help"]).status.code(), Some(0));
}

#[test]
fn readable_names_in_the_texts_of_exceptions() {
    use recording::{Event, Frame};
    let folder = folder();
    let mut scene = Scene::new(1, &["x"]);
    let thread = scene.thread(1, "main", true);
    let pseudo = scene.frame(Frame::Pseudo {
        text: "by frame pointer".into(),
    });
    let frame = scene.frame(Frame::Unknown { address: 1 });
    let stack = scene.stack(&[pseudo, frame]);
    let text = "No way; caught by App.Client+<CallRemoteAsync>d__4.MoveNext";
    let detail = scene.detail(Event::Exception, "System.Exception", text);
    scene.about(thread, stack, Event::Exception, 1, detail);
    scene.end();
    std::fs::write(folder.path().join("x.swk"), scene.file()).unwrap();
    let output = sidewalk(folder.path(), &["report", "x.swk", "--tree"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("No way; caught by App.Client.CallRemoteAsync\n"),
        "{text}"
    );
    assert!(text.contains("[callers may be missing here]"), "{text}");
    assert!(
        !text.contains("d__4") && !text.contains("by frame pointer"),
        "{text}"
    );
}

/// Compares the logical stacks and the physical stacks of the same samples.
#[test]
fn either_stack_of_async_methods() {
    let folder = folder();
    let file = profile::testing::awaits().file();
    std::fs::write(folder.path().join("awaits.swk"), file).unwrap();
    let of = |words: &[&str]| {
        let output = sidewalk(folder.path(), words);
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let dispatch = "System.Threading.ThreadPoolWorkQueue.Dispatch";
    for (verb, last) in [("report", "--tree"), ("convert", "-o-")] {
        let physical = of(&[verb, "awaits.swk", "--async", "physical", last]);
        assert!(
            physical.contains(dispatch) && !physical.contains("[Task.Run]"),
            "{physical}"
        );
        for words in [&[][..], &["--async", "logical"]] {
            let logical = of(&[&[verb, "awaits.swk", last], words].concat());
            assert!(
                !logical.contains(dispatch) && logical.contains("[Task.Run]"),
                "{logical}"
            );
            assert!(logical.contains("[async: gate closed]"), "{logical}");
        }
        // If each sample has only one stack, there is no choice of stacks.
        let one = |stacks| of(&[verb, "tiny.swk", "--async", stacks, last]);
        assert_eq!(one("physical"), one("logical"));
    }
    // Frames that are in no stack any more are the ones that `--no-native` takes out of both.
    let without = |stacks| {
        of(&[
            "convert",
            "awaits.swk",
            "--no-native",
            "--async",
            stacks,
            "-o-",
        ])
    };
    for stacks in ["logical", "physical"] {
        let text = without(stacks);
        assert!(!text.contains("start_thread"), "{text}");
        let sum: u64 = text
            .lines()
            .map(|l| l.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum();
        assert_eq!(sum, 60);
    }
    // Overloads apart: what is folded stays folded.
    let signatures = of(&["convert", "awaits.swk", "--signatures", "-o-"]);
    assert_eq!(signatures, of(&["convert", "awaits.swk", "-o-"]));
    let json: serde_json::Value =
        serde_json::from_str(&of(&["inspect", "--json", "awaits.swk"])).unwrap();
    assert_eq!(json["async"]["samples"], 36);
    assert_eq!(json["async"]["cut"], 6);
    assert_eq!(json["async"]["cut_reasons"]["gate closed"], 5);
    let json: serde_json::Value =
        serde_json::from_str(&of(&["inspect", "--json", "tiny.swk"])).unwrap();
    assert!(json.get("async").is_none());
}
