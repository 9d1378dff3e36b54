//! Tests that no text from outside controls the user's terminal.
//!
//! Inputs: names in a recording, names of files, words of the command line. Outputs: stdout, stderr
//! and all text formats.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

use proptest::prelude::*;
use recording::{
    Event, Frame, MethodKind, ModuleKind, ProcessKey, Record, Tier, WalkEnd, Writer, file_header,
};

/// Whether a character controls a terminal, changes the text direction or ends a line. Listed
/// independently of the product, whose list is tested.
fn acts(c: char) -> bool {
    matches!(c as u32,
        0..=0x1f | 0x7f..=0x9f | 0xad | 0x61c | 0x180e | 0x200b..=0x200f | 0x2028..=0x202e
        | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb | 0xe0000..=0xe007f)
}

/// Generates hostile names: letters between control characters.
fn name() -> impl Strategy<Value = String> {
    let acting: Vec<char> = (0..0xe_0080)
        .filter_map(char::from_u32)
        .filter(|c| acts(*c))
        .collect();
    let c = prop_oneof![
        3 => prop::sample::select(acting),
        // CSI, and the beginnings of our messages.
        2 => prop::sample::select(vec!['\u{1b}', '\u{9b}', '\n', '\r', '\u{202e}', '[', ';', '"', '\\']),
        3 => prop::char::range('a', 'z'),
        1 => any::<char>(),
    ];
    prop::collection::vec(c, 1..12).prop_map(|chars| chars.into_iter().collect())
}

/// Generates hostile file names.
fn file_name() -> impl Strategy<Value = String> {
    name().prop_map(|name| name.replace(['/', '\0'], "_"))
}

/// Returns a recording in which every name is one of `names`.
fn recording(names: &[String]) -> Vec<u8> {
    let mut next = names.iter().cycle();
    let mut name = || next.next().unwrap().clone().into();
    let two_words = format!("{}\0{}", names[0], names[1]);
    let records = [
        Record::Process {
            pid: 7,
            parent: 1,
            command: two_words.into(),
            unix_ns: 1,
            time_ns: 1,
        },
        Record::Engine {
            engine: name(),
            walker: name(),
            event: Event::Cpu,
            interval_ns: 1_000_000,
            max_depth: 64,
        },
        Record::Source {
            event: Event::Exception,
            source: name(),
            walker: name(),
            interval: 0,
        },
        Record::Runtime {
            runtime: 0,
            version: name(),
            recorded: true,
            refused_by: "".into(),
        },
        Record::Runtime {
            runtime: 1,
            version: name(),
            recorded: false,
            refused_by: name(),
        },
        Record::Thread {
            thread: 0,
            tid: 7,
            name: name(),
            managed: true,
            time_ns: 1,
        },
        Record::Module {
            module: 0,
            kind: ModuleKind::Native,
            runtime: None,
            path: name(),
            bias: 0,
            id_bytes: (&[1, 2, 3][..]).into(),
            file_offset: 0,
        },
        Record::Module {
            module: 1,
            kind: ModuleKind::Managed,
            runtime: Some(0),
            path: name(),
            bias: 0,
            id_bytes: (&[1; 16][..]).into(),
            file_offset: 0,
        },
        Record::Method {
            method: 0,
            runtime: 0,
            kind: MethodKind::Il,
            module: Some(1),
            token: 0x0600_0001,
            type_name: name(),
            name: name(),
        },
        Record::Frame {
            frame: 0,
            value: Frame::Managed {
                method: 0,
                tier: Tier::Tier1,
                il_offset: Some(3),
            },
        },
        Record::Frame {
            frame: 1,
            value: Frame::Native {
                module: 0,
                svma: 64,
            },
        },
        Record::Frame {
            frame: 2,
            value: Frame::Stub {
                runtime: 0,
                name: name(),
            },
        },
        Record::Frame {
            frame: 3,
            value: Frame::Pseudo { text: name() },
        },
        Record::Frame {
            frame: 4,
            value: Frame::Native {
                module: 0,
                svma: 128,
            },
        },
        Record::Symbol {
            frame: 4,
            name: name(),
            file: name(),
            line: 3,
        },
        Record::Detail {
            detail: 0,
            event: Event::Exception,
            name: name(),
            text: name(),
        },
        Record::Lost {
            reason: name(),
            count: 2,
        },
        Record::Broken {
            reason: name(),
            count: 1,
        },
        Record::AsyncCut {
            reason: name(),
            count: 1,
        },
        Record::Frame {
            frame: 5,
            value: Frame::AsyncMark { text: name() },
        },
        Record::Frame {
            frame: 6,
            value: Frame::Async {
                method: 0,
                state: 0,
            },
        },
        Record::Note { text: name() },
    ];
    // No `End` record: a note about its absence contains the process's name.
    let stacks = (0..7).map(|frame| Record::Stack {
        stack: frame,
        parent: frame.checked_sub(1),
        frame,
    });
    let samples = (0..5).map(|stack| Record::Sample {
        thread: 0,
        stack,
        time_ns: 10 + u64::from(stack),
        event: if stack == 3 {
            Event::Exception
        } else {
            Event::Cpu
        },
        value: 1_000_000,
        end: WalkEnd::Root,
        detail: (stack == 3).then_some(0),
        logical: (stack == 4).then_some(6),
    });
    let mut writer = Writer::new(ProcessKey(7));
    for record in records.into_iter().chain(stacks).chain(samples) {
        let _ = writer.push(&record);
    }
    let mut file = file_header("a test");
    writer.take_block_into(&mut file);
    file
}

/// Checks that no line looks like a message of the tool, and that no control character remains.
#[track_caller]
fn check(what: &str, text: &[u8]) {
    let text = std::str::from_utf8(text).expect("we write UTF-8");
    let found = text.chars().find(|&c| c != '\n' && acts(c));
    assert_eq!(found, None, "{what}: {text:?}");
}

fn run(folder: &Path, arguments: &[&OsStr]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_sidewalk"))
        .args(arguments)
        .current_dir(folder)
        .env("SIDEWALK_AGENT", std::env::current_exe().unwrap())
        .env_remove("CORECLR_ENABLE_PROFILING")
        .output()
        .unwrap();
    let what = format!("{arguments:?}");
    assert!(
        output.status.code().is_some_and(|code| code <= 2),
        "{what}: {output:?}"
    );
    check(&what, &output.stdout);
    check(&what, &output.stderr);
    output
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 12,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_from_outside_acts(
        names in prop::collection::vec(name(), 24),
        file in file_name(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let recorded = format!("./{file}.swk");
        std::fs::write(folder.path().join(&recorded), recording(&names)).unwrap();
        let run = |words: &[&str]| {
            let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
            run(folder.path(), &words)
        };
        for by in ["method", "line", "module", "runtime", "thread", "process", "event", "detail", "recording"] {
            for more in [&["--tree", "--no-native"][..], &["--json", "--tree"]] {
                let output = run(&[&["report", "--by", by, &recorded], more].concat());
                prop_assert_eq!(output.status.code(), Some(0));
            }
        }
        prop_assert_eq!(run(&["inspect", &recorded]).status.code(), Some(0));
        prop_assert_eq!(run(&["inspect", "--json", &recorded]).status.code(), Some(0));
        for ending in ["html", "speedscope.json", "firefox.json", "collapsed", "txt", "pb.gz"] {
            let out = format!("./{file}.{ending}");
            let output = run(&["convert", &recorded, "-o", &out]);
            prop_assert_eq!(output.status.code(), Some(0));
            if ending != "pb.gz" {
                check(&out, &std::fs::read(folder.path().join(&out)).unwrap());
            }
        }
        for more in [&["--all"][..], &["--json"], &["--fail-on", "+0% *"]] {
            let output = run(&[&["diff", &recorded, &recorded], more].concat());
            prop_assert_eq!(output.status.code(), Some(0));
        }
        // Errors and notes.
        let missing = format!("./missing{file}/x.html");
        run(&["report", &missing]);
        run(&["convert", &recorded, "-o", &missing]);
        run(&[&file]);
        run(&["report", &recorded, &file]);
        run(&["report", "--by", &file, &recorded]);
        run(&["record", "-o", &file, "--", "true"]);
        run(&["record", "-o", &recorded, "--", "true"]);
        run(&["record", "--", &recorded]);
        run(&["record", "--", &file]);
        run(&["record", "--runtimes", &file, "--", "true"]);
    }
}

/// A name that looks like a message of the tool stays on one line with the text before it.
#[test]
fn a_file_name_cannot_forge_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let name = "./x\nsidewalk: error: your disk is full\n";
    let output = run(folder.path(), &[OsStr::new("report"), OsStr::new(name)]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    let begins: BTreeSet<&str> = stderr.lines().filter_map(|l| l.get(..27)).collect();
    assert_eq!(
        begins,
        BTreeSet::from(["sidewalk: error: cannot rea"]),
        "{stderr}"
    );
}
