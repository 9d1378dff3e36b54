//! Several CLRs in one process: `runsxs` alone and under `sidewalk record`.
//!
//! SIDEWALK_SXS_RUNS sets how often tests for race conditions repeat (default: 2; 50 in `cargo
//! xtask stress --side-by-side`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use testkit::{
    AsyncKind, Machine, ProgramOutput, Recorded, Recorder, Runtime, Stacks, is_hole, is_method,
    logical_stacks, output_in_time, runsxs, test_folder, workload, workload_of_kind,
};

use crate::LOST_LIMIT;
use crate::async_chains::ChainSums;
use crate::shadow::{assert_known_tree, assert_no_call_lost, calls};

pub(crate) fn runs() -> usize {
    let runs = std::env::var("SIDEWALK_SXS_RUNS");
    runs.map_or(2, |runs| runs.parse().expect("a number of runs"))
}

/// A program on a CLR, and the file of its output.
struct Program<'a> {
    runtime: &'a Runtime,
    dll: PathBuf,
    arguments: String,
    out: PathBuf,
}

/// A command line of `runsxs`.
pub(crate) struct SideBySide {
    name: String,
    words: Vec<String>,
    outs: Vec<PathBuf>,
}

impl SideBySide {
    /// Runs workloads with their arguments. With `meet` they wait for each other.
    pub(crate) fn new(
        name: &str,
        options: &[&str],
        programs: &[(&Runtime, &str, &str)],
        meet: bool,
    ) -> SideBySide {
        let programs: Vec<(&Runtime, PathBuf, &str)> = programs
            .iter()
            .map(|(runtime, name, arguments)| (*runtime, workload(name).dll, *arguments))
            .collect();
        SideBySide::of_programs(name, options, &programs, meet)
    }

    /// Runs assemblies.
    fn of_programs(
        name: &str,
        options: &[&str],
        programs: &[(&Runtime, PathBuf, &str)],
        meet: bool,
    ) -> SideBySide {
        let folder = test_folder(&format!("{name}-side"));
        let programs: Vec<Program<'_>> = programs
            .iter()
            .zip(0..)
            .map(|((runtime, dll, arguments), place)| {
                let out = folder.join(format!("out-{place}"));
                let meeting = format!("meet={}:{}", folder.display(), programs.len());
                Program {
                    runtime,
                    dll: dll.clone(),
                    arguments: format!(
                        "{arguments} out={} {}",
                        out.display(),
                        if meet { &meeting } else { "" }
                    ),
                    out,
                }
            })
            .collect();
        let mut words = vec![runsxs().display().to_string()];
        words.extend(options.iter().map(|&option| option.to_owned()));
        for program in &programs {
            words.extend([
                program.runtime.framework_dir().display().to_string(),
                program.dll.display().to_string(),
                program.arguments.clone(),
            ]);
        }
        SideBySide {
            name: name.to_owned(),
            words,
            outs: programs.into_iter().map(|program| program.out).collect(),
        }
    }

    fn record(&self) -> Recorder {
        // Files by which the programs of the previous run met are stale.
        for out in &self.outs {
            for entry in fs::read_dir(out.parent().unwrap()).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        }
        Recorder::command(&self.name, self.words.clone())
            .environment("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
    }

    /// Runs alone and answers what each program printed.
    fn alone(&self) -> Vec<ProgramOutput> {
        let answer = self.record().run_bare();
        self.answers(&answer)
    }

    pub(crate) fn recorded(&self, options: &[&str]) -> (Recorded, Vec<ProgramOutput>) {
        let recorded = self.record().options(options).run();
        let answers = self.answers(&recorded.answer);
        (recorded, answers)
    }

    /// The programs' own output; of `runsxs` there must be none.
    fn answers(&self, answer: &ProgramOutput) -> Vec<ProgramOutput> {
        assert!(
            answer.status.success() && answer.stdout.is_empty(),
            "{:?}: {}\n{}{}",
            self.words,
            answer.status,
            answer.stdout,
            answer.stderr
        );
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        self.outs
            .iter()
            .map(|out| ProgramOutput {
                stdout: read(out),
                ..answer.clone()
            })
            .inspect(ProgramOutput::assert_complete)
            .collect()
    }
}

pub(crate) fn both() -> (Runtime, Runtime) {
    (Runtime::core31(), Runtime::net8())
}

/// One recorded runtime or refused one, as `inspect` has it: version, outcome, where refused.
fn outcomes(recorded: &Recorded) -> Vec<(String, String, String)> {
    let json = recorded.inspect().json;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    json["runtimes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| {
            (
                text(&r["version"]),
                text(&r["outcome"]),
                text(&r["refused_by"]),
            )
        })
        .collect()
}

#[test]
fn every_order_alone_and_recorded() {
    let (old, new) = both();
    let expected = |runtime: &Runtime, name, arguments: &[&str]| {
        let bare = Recorder::workload(runtime, name, arguments).run_bare();
        bare.assert_complete();
        bare.results().concat().join(" ")
    };
    let programs = [
        (&old, "calls", "rounds=20"),
        (&new, "exceptions", "rounds=20"),
    ];
    let expected: Vec<String> = programs
        .iter()
        .map(|(runtime, name, arguments)| expected(runtime, name, &[arguments]))
        .collect();
    for reversed in [false, true] {
        let (mut programs, mut expected) = (programs, expected.clone());
        if reversed {
            programs.reverse();
            expected.reverse();
        }
        for options in [&[][..], &["--st"], &["--stagger", "20ms"]] {
            let side = SideBySide::new("order", options, &programs, false);
            for run in 0..runs() {
                let same = |answers: Vec<ProgramOutput>| {
                    for (answer, expected) in answers.iter().zip(&expected) {
                        let results = answer.results().concat().join(" ");
                        assert_eq!(&results, expected, "{options:?} run {run}");
                    }
                };
                same(side.alone());
                let (recorded, answers) =
                    side.recorded(&["--frequency", "999", "--engine", "clocks"]);
                same(answers);
                let inspected = recorded.inspect();
                assert!(
                    inspected.json["processes"][0]["ended"] == true,
                    "{}",
                    inspected.json
                );
                let found = outcomes(&recorded);
                assert!(
                    found.len() == 2 && found.iter().all(|(_, outcome, _)| outcome == "recorded"),
                    "{found:?}"
                );
            }
        }
    }
}

#[test]
fn each_policy_records_what_it_says() {
    let (old, new) = both();
    let programs = [(&old, "shares", "0.3"), (&new, "shares", "0.3")];
    let (v3, v8) = (old.version.as_str(), new.version.as_str());
    let recorded = |version: &str| (version.to_owned(), "recorded".to_owned(), String::new());
    let refused =
        |version: &str, by: &str| (version.to_owned(), "refused".to_owned(), by.to_owned());
    let create = "CreateInstance";
    let initialize = "Initialize";
    for (policy, expected) in [
        ("all", [recorded(v3), recorded(v8)]),
        ("first", [recorded(v3), refused(v8, create)]),
        ("one=3.1", [recorded(v3), refused(v8, initialize)]),
        ("one=8.0", [refused(v3, initialize), recorded(v8)]),
        ("many=3.1,8", [recorded(v3), recorded(v8)]),
        ("many=8,9", [refused(v3, initialize), recorded(v8)]),
        ("one=9", [refused(v3, initialize), refused(v8, initialize)]),
    ] {
        for options in [&["--st"][..], &[]] {
            if policy == "first" && options.is_empty() {
                // The first runtime is chance then: `first_and_one_take_one_of_two_at_once`.
                continue;
            }
            let side = SideBySide::new("policy", options, &programs, false);
            let how = [
                "--runtimes",
                policy,
                "--frequency",
                "999",
                "--engine",
                "clocks",
                "--quiet",
            ];
            let recording = side.record().options(how).run();
            let mut answer = recording.answer.clone();
            if expected.iter().all(|(_, outcome, _)| outcome == "refused") {
                // The programs have run; a run in which none was recorded is no success of the
                // tool's.
                assert_eq!(answer.status.code(), Some(1), "{policy}");
                assert!(
                    answer.stderr.contains("leaves out .NET"),
                    "{}",
                    answer.stderr
                );
                answer.status = ExitStatus::default();
            }
            side.answers(&answer);
            let mut found = outcomes(&recording);
            if options.is_empty() {
                // In the order of their starts, which is chance.
                found.sort();
            }
            assert_eq!(found, expected, "{policy} {options:?}");
            let json = recording.inspect().json;
            for runtime in json["runtimes"].as_array().unwrap() {
                let samples = runtime["samples"].as_u64().unwrap();
                let is_recorded = runtime["outcome"] == "recorded";
                assert_eq!(samples > 0, is_recorded, "{policy} {options:?}: {json}");
            }
        }
    }
}

/// Two that a policy would take both, starting at the same instant: it takes one.
#[test]
fn first_and_one_take_one_of_two_at_once() {
    let (old, new) = both();
    let programs = [(&old, "shares", "0.1"), (&new, "shares", "0.1")];
    for policy in ["first", "one=3.1"] {
        for _ in 0..runs() {
            let side = SideBySide::new("race", &[], &programs, false);
            let (recording, _) = side.recorded(&["--runtimes", policy, "--quiet"]);
            let found = outcomes(&recording);
            let taken = found.iter().filter(|(_, o, _)| o == "recorded").count();
            assert!(found.len() == 2 && taken == 1, "{policy}: {found:?}");
        }
    }
}

/// Percent of the samples of leaves that have exactly their chain; in each runtime the first ones
/// of a class have none.
const EXACT: f64 = 98.0;

/// Both run the same program of async methods at the same time: a sample's logical stack is of its
/// runtime, and exact.
#[test]
fn each_chain_of_async_methods_is_its_runtime_s() {
    let (old, new) = both();
    let kind = AsyncKind::StateMachine;
    assert_chains_are_their_own([&old, &new], kind);
}

on_each_runtime_async!(chains_of_runtime_async_beside_another_runtime);

/// The same beside the newest of the other runtimes, which has no runtime async.
fn chains_of_runtime_async_beside_another_runtime(runtime: &Runtime) {
    let mut others = Runtime::all().into_iter().rev();
    let other = others.find(|other| !other.runtime_async);
    let other = other.expect("set-up brings runtimes without runtime async");
    assert_chains_are_their_own([&other, runtime], AsyncKind::Runtime);
}

/// Both run `asyncchains`, whose methods are compiled so for the second one.
fn assert_chains_are_their_own([old, new]: [&Runtime; 2], kind: AsyncKind) {
    let dll = |kind| workload_of_kind("asyncchains", kind).dll;
    let programs = [
        (old, dll(AsyncKind::StateMachine), "rounds=30"),
        (new, dll(kind), "rounds=30"),
    ];
    let name = format!("chains{}", kind.folder());
    let side = SideBySide::of_programs(&name, &[], &programs, false);
    let options = ["--frequency", "4999", "--engine", "perf"];
    let (recorded, answers) = side.recorded(&options);
    let stacks = logical_stacks(&recorded.recording, "cpu");
    for (runtime, answer) in [old, new].into_iter().zip(&answers) {
        let found = ChainSums::of(answer, &of_runtime(&stacks, runtime));
        let (exact, all) = found.sums();
        println!("{}: {exact} of {all}", runtime.version);
        assert!(all >= 2_000, "{all} samples on {}", runtime.version);
        let percent = exact as f64 * 100.0 / all as f64;
        assert!(
            percent >= EXACT,
            "{percent:.2} % of {all} on {}:\n{}",
            runtime.version,
            found.table()
        );
    }
}

/// The stacks in which a runtime's code is, without the mark that says so. The program's methods in
/// them are all of that runtime.
fn of_runtime(stacks: &Stacks, runtime: &Runtime) -> Stacks {
    let mark = format!(" [{}]", runtime.version);
    let plain = |frame: &String| frame.strip_suffix(&mark).unwrap_or(frame).to_owned();
    let is_marked = |frame: &String| frame.ends_with(&mark);
    let is_other = |frame: &String| frame.starts_with("Workloads.") && !is_marked(frame);
    let marked = stacks.stacks.iter();
    let marked = marked.filter(|(frames, _)| frames.iter().any(is_marked));
    let of_it = marked.map(|(frames, count)| {
        assert!(!frames.iter().any(is_other), "{frames:#?}");
        (frames.iter().map(plain).collect(), *count)
    });
    Stacks {
        stacks: of_it.collect(),
    }
}

/// Number of transitions of the chain between the CLRs.
const CROSSINGS: usize = 7;

/// Whether a stack (leaf first) is the known one: `Burn` in the last CLR, then `Step` and the
/// host's native function in turns, each `Step` in its own CLR, and the host's start.
fn is_chain(frames: &[String], versions: [&str; 2]) -> Result<(), String> {
    let of = |crossing: usize| versions[crossing % versions.len()];
    let mut rest = frames.iter().peekable();
    let mut expect = |wanted: &str, version: Option<&str>, skip: bool| {
        for frame in rest.by_ref() {
            let is_it = is_method(frame, wanted)
                && version.is_none_or(|version| frame.ends_with(&format!("[{version}]")));
            if is_it {
                return Ok(());
            }
            let is_own = frame.starts_with("Workloads.") || frame.starts_with("runsxs_chain_");
            if !skip || is_own || is_hole(frame) {
                return Err(format!("{frame} where {wanted} {version:?} should be"));
            }
        }
        Err(format!("the stack ends before {wanted} {version:?}"))
    };
    expect("Workloads.Chain.Burn", Some(of(CROSSINGS)), true)?;
    for crossing in (0..=CROSSINGS).rev() {
        let skip = crossing < CROSSINGS;
        expect("Workloads.Chain.Step", Some(of(crossing)), skip)?;
        expect("runsxs_chain_cross", None, true)?;
    }
    expect("main", None, true).or_else(|_| expect("_start", None, true))
}

#[test]
fn the_pattern_of_a_chain() {
    let step = |version| format!("Workloads.Chain.Step [{version}]");
    let mut good = vec!["Workloads.Chain.Burn [b]".to_owned()];
    for crossing in (0..=CROSSINGS).rev() {
        good.push(step(if crossing % 2 == 1 { "b" } else { "a" }));
        good.push("[IL stub]".into());
        good.push("runsxs_chain_cross".into());
        good.push("UMThunkStub".into());
    }
    good.push("runsxs::main".into());
    good.push("main".into());
    assert_eq!(is_chain(&good, ["a", "b"]), Ok(()));
    assert!(is_chain(&good, ["b", "a"]).is_err());
    for at in 0..good.len() {
        let mut less = good.clone();
        let gone = less.remove(at);
        let is_known = gone.contains("Chain") || gone.contains("chain_cross") || gone == "main";
        assert_eq!(
            is_chain(&less, ["a", "b"]).is_err(),
            is_known,
            "without {gone}"
        );
    }
    good[6] = "[unknown]".into();
    assert!(is_chain(&good, ["a", "b"]).is_err());
}

#[test]
fn a_chain_through_both_is_the_known_stack() {
    let (old, new) = both();
    for (first, second) in [(&old, &new), (&new, &old)] {
        let crossings = CROSSINGS.to_string();
        let chain = |r: &Runtime| {
            [
                r.framework_dir().display().to_string(),
                workload("chain").dll.display().to_string(),
                String::new(),
            ]
        };
        let mut words = vec![runsxs().display().to_string()];
        words.extend(["--chain", &crossings, "--burn", "4s"].map(str::to_owned));
        words.extend(chain(first));
        words.extend(chain(second));
        let name = format!("chain-{}", first.version);
        let recorded = Recorder::command(&name, words).frequency(1999).run();
        assert!(
            recorded.answer.status.success(),
            "{}",
            recorded.answer.stderr
        );
        let hot = recorded.stacks().with("Workloads.Chain.Burn");
        let total = hot.total();
        assert!(total >= 1000, "{total} samples are too few");
        let versions = [first.version.as_str(), second.version.as_str()];
        let mut wrong = Stacks::default();
        for (frames, count) in &hot.stacks {
            if let Err(why) = is_chain(frames, versions) {
                println!("{count} samples: {why}");
                wrong.stacks.push((frames.clone(), *count));
            }
        }
        println!(
            "{versions:?}: {} of {total} are another stack",
            wrong.total()
        );
        assert!(wrong.total() * 1000 <= total, "{}", wrong.show(3));
    }
}

/// Milliseconds that a collection may take (the median of 100).
const PAUSE: f64 = 50.0;

#[test]
fn collections_of_each_stay_fast() {
    let (old, new) = both();
    let programs = [
        (&old, "pauses", "rounds=100"),
        (&new, "pauses", "rounds=100"),
    ];
    let fast = |how: &str, answers: Vec<ProgramOutput>| {
        for (answer, (runtime, ..)) in answers.iter().zip(programs) {
            let median = answer.measured("median_ms");
            println!(
                "{how}: {} median {median} ms, longest {} ms",
                runtime.version,
                answer.measured("longest_ms")
            );
            assert!(median <= PAUSE, "{how}: {}", answer.stdout);
        }
    };
    for reversed in [&["--stagger", "300ms"][..], &[]] {
        fast(
            "alone",
            SideBySide::new("alone", reversed, &programs, true).alone(),
        );
        // Any other host: then the agent serves them.
        let mut options = vec!["--no-activation-fix"];
        options.extend(reversed);
        let side = SideBySide::new("agent", &options, &programs, true);
        fast("recorded", side.recorded(&["--quiet"]).1);
    }
}

/// Percentage points between our share and the program's.
const TOLERANCE: f64 = 2.0;

#[test]
fn shares_of_each_at_once() {
    let (old, new) = both();
    let programs = [(&old, "shares", "8"), (&new, "shares", "8")];
    let side = SideBySide::new("shares", &[], &programs, true);
    let (recorded, answers) = side.recorded(&["--engine", "perf", "--frequency", "4999"]);
    recorded.inspect().assert_honest(1.0, LOST_LIMIT);
    let stacks = recorded.stacks();
    let versions = [&old.version, &new.version];
    for (answer, version) in answers.iter().zip(versions) {
        let ours = |method: &str| {
            let mark = format!("[{version}]");
            let has = |frames: &Vec<String>| {
                frames
                    .iter()
                    .any(|frame| is_method(frame, method) && frame.ends_with(&mark))
            };
            let found = stacks.stacks.iter().filter(|(frames, _)| has(frames));
            found.map(|(_, count)| *count).sum::<u64>() as f64
        };
        let total = ours("Workloads.Shares.Rounds");
        assert!(total >= 500.0, "{total} samples on {version} are too few");
        for line in answer.lines("share") {
            let own: f64 = line[1].parse().unwrap();
            let share = ours(line[0]) * 100.0 / total;
            println!("{version} {} {own:.2} {share:.2}", line[0]);
            assert!(
                (own - share).abs() <= TOLERANCE,
                "{version} {line:?}: {share:.2} %"
            );
        }
    }
    for (frames, count) in &stacks.stacks {
        let marked = |version: &String| {
            let mark = format!("[{version}]");
            frames.iter().any(|frame| frame.ends_with(&mark))
        };
        // No thread of this program runs code of both.
        assert!(
            !(marked(&old.version) && marked(&new.version)),
            "{count} samples of\n{}",
            frames.join("\n")
        );
    }
}

/// Both start at the same instant; one is shut down while the other is sampled.
#[test]
fn started_at_once_and_one_shut_down_under_sampling() {
    let (old, new) = both();
    for run in 0..4 * runs() {
        let (mut brief, mut long) = (&old, &new);
        if run % 2 == 1 {
            (brief, long) = (long, brief);
        }
        let programs = [(brief, "calls", "rounds=3"), (long, "gc", "0.4")];
        let side = SideBySide::new("ends", &[], &programs, false);
        let (recorded, _) =
            side.recorded(&["--frequency", "4999", "--engine", "clocks", "--quiet"]);
        let inspected = recorded.inspect();
        assert!(
            inspected.json["processes"][0]["ended"] == true,
            "{}",
            inspected.json
        );
        let lost: f64 = inspected.json["lost_reasons"]
            .as_object()
            .unwrap()
            .values()
            .map(|count| count.as_f64().unwrap())
            .sum();
        assert_eq!(lost, inspected.number("lost"), "{}", inspected.json);
        assert!(inspected.number("samples") > 0.0, "{}", inspected.json);
        println!("run {run}: {}", inspected.json["reasons"]);
    }
}

/// Both CLRs run the same program, so method names are equal. Both have hooks.
#[test]
fn rule_28_hooks_of_two_runtimes_do_not_mix() {
    let (old, new) = both();
    let programs = [
        (&old, "calltree", "rounds=20"),
        (&new, "calltree", "rounds=30"),
    ];
    let side = SideBySide::new("hooks", &[], &programs, true);
    let (recorded, answers) = side.recorded(&["--walker", "shadow"]);
    assert_no_call_lost(&recorded);
    let tree = calls(&recorded);
    for ((runtime, ..), answer) in programs.iter().zip(&answers) {
        assert_known_tree(&tree, answer, &format!(" [{}]", runtime.version));
    }
}

/// Each CLR makes exceptions of the faults of its own threads, also when a sample comes meanwhile
/// and the other CLR was loaded later.
#[test]
fn null_references_of_each_stay_exceptions() {
    let (old, new) = both();
    let arguments = "0.7 thread";
    let programs = [(&old, "nullref", arguments), (&new, "nullref", arguments)];
    for options in [&[][..], &["--no-activation-fix"]] {
        for reversed in [false, true] {
            let mut programs = programs;
            if reversed {
                programs.reverse();
            }
            let mut options = options.to_vec();
            options.extend(["--stagger", "300ms"]);
            let side = SideBySide::new("faults", &options, &programs, true);
            for _ in 0..runs() {
                let (_, answers) =
                    side.recorded(&["--frequency", "2999", "--engine", "clocks", "--quiet"]);
                let results: Vec<_> = answers.iter().map(ProgramOutput::results).collect();
                assert_eq!(results[0], results[1], "{options:?}");
            }
        }
    }
}

#[test]
fn what_is_missing_is_said() {
    let (_, new) = both();
    let framework = new.framework_dir().display().to_string();
    let calls = workload("calls").dll.display().to_string();
    let library = new.framework_dir().join("System.Console.dll");
    let library = library.display().to_string();
    for (words, code, why) in [
        (&["9.9", calls.as_str(), ""][..], 1, "no .NET runtime 9.9"),
        (
            &["/nowhere", &calls, ""],
            1,
            "neither a version nor a folder",
        ),
        (&["/", &calls, ""], 1, "no libcoreclr.so"),
        (
            &[&framework, "/nowhere.dll", ""],
            1,
            "no program /nowhere.dll",
        ),
        (&[&framework, &library, ""], 1, "no entry point"),
        (&[&framework, "/proc/self/exe", ""], 1, "no .NET assembly"),
        (
            &[&framework, &calls, "", &framework, &calls, ""],
            1,
            "named twice",
        ),
        (&[&framework, &calls], 2, "three words"),
        (
            &["--chain", "2", &framework, &calls, ""],
            1,
            "no static Workloads.Chain.Step",
        ),
    ] {
        let mut command = std::process::Command::new(runsxs());
        let machine = Machine::exclusive();
        let output = output_in_time(command.args(words));
        drop(machine);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
        assert!(stderr.contains(why), "{words:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn the_first_code_that_is_not_0_is_the_exit_code() {
    let (old, new) = both();
    // `chain` run as a program ends with 1.
    let folder = test_folder("codes-side");
    let words = |first: (&Runtime, &str), second: (&Runtime, &str)| {
        [first, second].map(|(runtime, name)| {
            [
                runtime.framework_dir().display().to_string(),
                workload(name).dll.display().to_string(),
                format!("rounds=1 out={}", folder.join("out").display()),
            ]
        })
    };
    for (first, second, code) in [
        ("calls", "calls", 0),
        ("chain", "calls", 1),
        ("calls", "chain", 1),
    ] {
        for option in [&[][..], &["--st"]] {
            let mut command = std::process::Command::new(runsxs());
            command.args(option);
            for words in words((&old, first), (&new, second)) {
                command.args(words);
            }
            let output = output_in_time(&mut command);
            assert_eq!(
                output.status.code(),
                Some(code),
                "{first} {second} {output:?}"
            );
        }
    }
}
