//! One run of the soak: a program, the runtime's settings, the options of `sidewalk record`,
//! and circumstances. Chosen at random, by the seed and the number of the run alone.
//!
//! Nothing is started here. Invariant: the bare and the recorded command line of a plan differ by
//! `sidewalk record … --` and nothing else.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use testkit::{Runtime, Setup, runsxs, sidewalk, workload};

/// Choices of all runs.
pub(crate) struct Choices {
    runtimes: Vec<Runtime>,
    /// Version and executable of the single-file app.
    app: Option<(String, String)>,
    programs: Vec<String>,
}

impl Choices {
    /// Of a set-up: all its runtimes and its app, and these workloads or all.
    pub(crate) fn new(setup: &Setup, only: &[String]) -> Result<Choices> {
        let mut programs = testkit::oracle_programs()?;
        for name in only {
            ensure!(programs.contains(name), "no workload is called {name}");
        }
        if !only.is_empty() {
            programs.retain(|name| only.contains(name));
        }
        ensure!(!programs.is_empty(), "there is no workload");
        let app = setup.tools.as_ref().filter(|_| only.is_empty());
        Ok(Choices {
            runtimes: setup.runtimes.clone(),
            app: app.map(|tools| {
                let executable = tools.app10.executable.display().to_string();
                (tools.app10.version.clone(), executable)
            }),
            programs,
        })
    }
}

/// One run.
pub(crate) struct Plan {
    /// Its number.
    pub(crate) number: u64,
    /// The workload, and how it runs.
    pub(crate) program: String,
    /// The runtime's version, or both where there are two.
    pub(crate) runtime: String,
    /// Settings of the runtime, options and circumstances, in short.
    pub(crate) title: String,
    /// Whether .NET Core 3.1 is in it, whose own code has fewer unwind tables.
    pub(crate) has_core31: bool,
    /// How many threads burn the processors beside it.
    pub(crate) burners: usize,
    /// Whether there must be samples: not where the program's runtime is left out, its signal is
    /// blocked, or hardly a tick is due.
    pub(crate) is_sampled: bool,
    /// Around all: `env … prlimit … taskset …`.
    outer: Vec<String>,
    /// `record` and its options.
    options: Vec<String>,
    /// Around the program alone.
    inner: Vec<String>,
    /// The program.
    command: Vec<String>,
}

impl Plan {
    /// The plan of a run.
    pub(crate) fn new(choices: &Choices, seed: u64, number: u64, folder: &Path) -> Result<Plan> {
        // Two runs must not look like each other.
        let mut rng = Rng::with_seed(
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03),
        );
        rng.u64(..);
        let (program, runtime, versions, mut command, sets) = program(choices, &mut rng)?;
        let mut title = Vec::new();
        let mut outer = vec!["env".to_owned()];
        outer.extend(sets);
        let has_core31 = versions.iter().any(|version| version.starts_with("3.1."));
        outer.extend(settings(&mut rng, folder, has_core31, &mut title));
        let mut inner = Vec::new();
        let mut is_sampled = true;
        circumstances(
            &mut rng,
            has_core31,
            versions.len(),
            &mut outer,
            &mut inner,
            &mut title,
            &mut is_sampled,
        );
        let burners = if rng.u32(..6) == 0 {
            rng.usize(1..=4)
        } else {
            0
        };
        if burners > 0 {
            title.push(format!("{burners} burners"));
        }
        let options = options(&mut rng, &versions, &program, &mut title, &mut is_sampled);
        if let Some(seconds) = command.last_mut().filter(|last| *last == SECONDS) {
            *seconds = format!("{:.1}", 0.4 + rng.f64() * 1.6);
        }
        Ok(Plan {
            number,
            has_core31,
            program,
            runtime,
            title: title.join(", "),
            burners,
            is_sampled,
            outer,
            options,
            inner,
            command,
        })
    }

    /// The program without us.
    pub(crate) fn bare(&self) -> Vec<String> {
        [&self.outer[..], &self.inner, &self.command].concat()
    }

    /// The program with us; the recording goes to `out`.
    pub(crate) fn recorded(&self, out: &Path) -> Vec<String> {
        let mut words = self.outer.clone();
        words.extend([sidewalk().display().to_string(), "record".to_owned()]);
        words.extend(self.options.iter().cloned());
        words.extend(["--quiet", "-o"].map(str::to_owned));
        words.extend([out.display().to_string(), "--".to_owned()]);
        words.extend(self.inner.iter().chain(&self.command).cloned());
        words
    }
}

/// Stands for a time that is chosen later.
const SECONDS: &str = "SECONDS";

type Program = (String, String, Vec<String>, Vec<String>, Vec<String>);

/// Name, runtime, versions, command, and what `env` sets for it.
fn program(choices: &Choices, rng: &mut Rng) -> Result<Program> {
    let runtimes = &choices.runtimes;
    let pick = |rng: &mut Rng| {
        let at = rng.usize(..runtimes.len());
        runtimes.get(at).context("set-up found no runtime")
    };
    if let Some((version, executable)) = &choices.app
        && rng.usize(..=runtimes.len() * 4) == 0
    {
        let command = vec![executable.clone(), "--help".to_owned()];
        let name = format!("{version} app");
        let sets = vec!["DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1".to_owned()];
        return Ok((
            "app --help".to_owned(),
            name,
            vec![version.clone()],
            command,
            sets,
        ));
    }
    let workload_of = |rng: &mut Rng| {
        let at = rng.usize(..choices.programs.len());
        choices.programs[at].clone()
    };
    let first = pick(rng)?;
    let name = workload_of(rng);
    if rng.u32(..12) == 0
        && let second = pick(rng)?
        && second.version != first.version
    {
        let other = workload_of(rng);
        let mut command = vec![runsxs().display().to_string()];
        if rng.u32(..3) == 0 {
            command.push("--st".to_owned());
        }
        for (runtime, name) in [(first, &name), (second, &other)] {
            command.push(runtime.framework_dir().display().to_string());
            command.push(workload(name).dll.display().to_string());
            command.push(arguments(rng, name).0.replace(SECONDS, "1.0"));
        }
        let versions = vec![first.version.clone(), second.version.clone()];
        let sets = sets_of(&first.command(&workload(&name).dll));
        let both = format!("{name} + {other}");
        return Ok((both, versions.join(" + "), versions, command, sets));
    }
    let (argument, label) = arguments(rng, &name);
    let started = first.command(&workload(&name).dll);
    let mut command = vec![started.get_program().to_string_lossy().into_owned()];
    command.extend(started.get_args().map(|a| a.to_string_lossy().into_owned()));
    command.extend(argument.split(' ').map(str::to_owned));
    let sets = sets_of(&started);
    Ok((
        label,
        first.version.clone(),
        vec![first.version.clone()],
        command,
        sets,
    ))
}

/// A workload's arguments, the time last, and what the run is called.
fn arguments(rng: &mut Rng, name: &str) -> (String, String) {
    let fixed = |argument: &str, label: &str| (argument.to_owned(), format!("{name}{label}"));
    match (name, rng.u32(..4)) {
        // Their answers depend on how long they run, or a round is long.
        ("calltree", _) => fixed("rounds=20", ""),
        ("leak", _) => fixed("rounds=50", ""),
        ("exceptions", 0) => fixed("rounds=1 crash", " crash"),
        ("nullref", 0) => fixed(&format!("thread {SECONDS}"), " thread"),
        ("shares", 0) => fixed(&format!("threads {SECONDS}"), " threads"),
        ("deep", 0) => fixed(&format!("depth=200 {SECONDS}"), " depth=200"),
        _ => fixed(SECONDS, ""),
    }
}

/// Variables that a command sets and removes, as words of `env`.
fn sets_of(command: &Command) -> Vec<String> {
    let mut words = Vec::new();
    // `env` wants what it takes away first.
    for (key, value) in command.get_envs() {
        if value.is_none() {
            words.extend(["-u".to_owned(), key.to_string_lossy().into_owned()]);
        }
    }
    for (key, value) in command.get_envs() {
        if let Some(value) = value {
            words.push(format!("{}={}", key.display(), value.display()));
        }
    }
    words
}

/// Settings of the runtime, under both of the names that they have had.
fn settings(
    rng: &mut Rng,
    folder: &Path,
    has_core31: bool,
    title: &mut Vec<String>,
) -> Vec<String> {
    let trace = folder.join("trace.{pid}.nettrace").display().to_string();
    // Names, values, and one of how many runs has it.
    let all: [(&str, &[&str], u32); 13] = [
        ("gcServer", &["1"], 5),
        ("gcConcurrent", &["0"], 4),
        ("TieredCompilation", &["0"], 6),
        ("TC_QuickJitForLoops", &["0", "1"], 5),
        ("ReadyToRun", &["0"], 8),
        ("TieredPGO", &["0", "1"], 5),
        ("TC_OnStackReplacement", &["0", "1"], 6),
        ("OSR_HitLimit", &["1"], 8),
        ("EnableWriteXorExecute", &["0"], 5),
        ("EnableEventPipe", &["1"], 6),
        ("GCgen0size", &["40000", "4000000"], 6),
        ("LegacyExceptionHandling", &["1"], 6),
        ("DefaultStackSize", &["30000"], 6),
    ];
    let mut words = Vec::new();
    for (name, values, often) in all {
        // 3.1.23 crashes by it, without us.
        if rng.u32(..often) != 0 || (name == "EnableEventPipe" && has_core31) {
            continue;
        }
        let value = values[rng.usize(..values.len())];
        title.push(format!("{name}={value}"));
        let mut pairs = vec![(name, value)];
        if name == "EnableEventPipe" {
            pairs.push(("EventPipeOutputPath", trace.as_str()));
        }
        for (name, value) in pairs {
            for prefix in ["DOTNET", "COMPlus"] {
                words.push(format!("{prefix}_{name}={value}"));
            }
        }
    }
    words
}

/// Limits, signals and processors.
fn circumstances(
    rng: &mut Rng,
    has_core31: bool,
    programs: usize,
    outer: &mut Vec<String>,
    inner: &mut Vec<String>,
    title: &mut Vec<String>,
    is_sampled: &mut bool,
) {
    let mut limits = Vec::new();
    if rng.u32(..6) == 0 {
        // Two programs have what each would have alone. The agent has two, one more for moments,
        // and three of 256; the workload with most files needs 55.
        let files = [60, 64, 100, 256][rng.usize(..4)] * programs;
        limits.push(format!("--nofile={files}"));
    }
    if rng.u32(..8) == 0 {
        let queued = [0, 1, 10][rng.usize(..3)];
        // 3.1 ends itself where it cannot queue the signal that stops a thread: by any collection,
        // without us too.
        if !has_core31 {
            limits.push(format!("--sigpending={queued}"));
        }
    }
    if rng.u32(..8) == 0 {
        limits.push(format!("--stack={}", 2 << 20));
    }
    let mut words = Vec::new();
    if !limits.is_empty() {
        title.extend(limits.iter().cloned());
        words.push("prlimit".to_owned());
        words.append(&mut limits);
    }
    if rng.u32(..6) == 0 {
        title.push("one CPU".to_owned());
        let cpu = rng.u32(..2).to_string();
        words.extend(["taskset", "-c", &cpu].map(str::to_owned));
    }
    let mut signals = Vec::new();
    if rng.u32(..8) == 0 {
        signals.push("--ignore-signal=PIPE,CHLD,USR1,HUP".to_owned());
    }
    if rng.u32(..12) == 0 {
        signals.push("--block-signal=PROF".to_owned());
        *is_sampled = false;
    }
    if !signals.is_empty() {
        title.extend(signals.iter().cloned());
        words.push("env".to_owned());
        words.append(&mut signals);
    }
    // Around the tool too, or around the program alone.
    if rng.bool() {
        outer.extend(words);
    } else {
        if !words.is_empty() {
            title.push("the program alone".to_owned());
        }
        inner.extend(words);
    }
}

/// Options of `sidewalk record`.
fn options(
    rng: &mut Rng,
    versions: &[String],
    program: &str,
    title: &mut Vec<String>,
    is_sampled: &mut bool,
) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut add = |name: &str, value: &str| words.extend([name.to_owned(), value.to_owned()]);
    let walkers = [
        "signal", "signal", "signal", "suspend", "seeded", "snapshot", "shadow",
    ];
    let walker = walkers[rng.usize(..walkers.len())];
    add("--walker", walker);
    let mut events: Vec<&str> = match (walker, rng.u32(..8)) {
        ("snapshot", _) => vec!["exception"],
        (_, 0 | 1) => vec!["wall"],
        ("signal", 2) => vec!["cpu", "wall"],
        _ => vec!["cpu"],
    };
    if rng.u32(..3) == 0 {
        for event in [
            "exception",
            "alloc",
            "contention",
            "gc",
            "jit",
            "class-load",
            "module-load",
        ] {
            if rng.bool() && !events.contains(&event) {
                events.push(event);
            }
        }
    }
    add("-e", &events.join(","));
    if walker != "snapshot" {
        let hertz = ["1", "99", "99", "999", "4999", "10000"][rng.usize(..6)];
        add("--frequency", hertz);
        if events.contains(&"cpu") && rng.bool() {
            add("--engine", ["perf", "timer", "clocks"][rng.usize(..3)]);
        }
    }
    if rng.u32(..4) == 0 {
        add("--max-depth", ["1", "10", "100", "8192"][rng.usize(..4)]);
    }
    // Both are refused where they have nothing to say.
    let clocks = ["cpu", "wall"];
    if rng.u32(..2) == 0 && events.iter().any(|event| !clocks.contains(event)) {
        add("--event-limit", ["0", "50"][rng.usize(..2)]);
    }
    if rng.bool() && events.contains(&"alloc") {
        add("--alloc-interval", ["16k", "100k"][rng.usize(..2)]);
    }
    if rng.u32(..6) == 0 {
        let own = &versions[rng.usize(..versions.len())];
        let policy = match rng.u32(..4) {
            0 => "first".to_owned(),
            1 => format!("one={own}"),
            2 => format!("many={}", versions.join(",")),
            _ => {
                *is_sampled = false;
                "one=7.7".to_owned()
            }
        };
        add("--runtimes", &policy);
    }
    if rng.u32(..10) == 0 {
        add("--duration", "500ms");
        *is_sampled = false;
    }
    if walker == "signal" && rng.u32(..4) == 0 {
        words.push("--no-async-stacks".to_owned());
    }
    let needs_methods =
        |word: &String| word.contains("jit") || word.contains("exception") || word == "--trace";
    if walker == "signal" && rng.u32(..2) == 0 && !words.iter().any(needs_methods) {
        words.push(["--find-code=never", "--find-code=0"][rng.usize(..2)].to_owned());
    }
    // An exception that is never thrown, or a program that is over before the first tick.
    if walker == "snapshot" || words.contains(&"1".to_owned()) || program.contains("crash") {
        *is_sampled = false;
    }
    title.push(words.join(" "));
    words
}

/// A command line as a shell takes it.
pub(crate) fn shell(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    let quoted = words.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
impl Plan {
    /// Of a program, with nothing around it.
    pub(crate) fn of(program: &str) -> Plan {
        Plan {
            number: 0,
            program: program.to_owned(),
            runtime: String::new(),
            title: String::new(),
            has_core31: false,
            burners: 0,
            is_sampled: true,
            outer: vec!["env".to_owned()],
            options: Vec::new(),
            inner: Vec::new(),
            command: vec!["true".to_owned()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(seed: u64) -> Vec<String> {
        let mut rng = Rng::with_seed(seed);
        let (mut words, mut inner, mut title) = (Vec::new(), Vec::new(), Vec::new());
        let mut is_sampled = true;
        words.extend(settings(
            &mut rng,
            Path::new("/x"),
            seed.is_multiple_of(2),
            &mut title,
        ));
        circumstances(
            &mut rng,
            seed.is_multiple_of(2),
            1,
            &mut words,
            &mut inner,
            &mut title,
            &mut is_sampled,
        );
        words.extend(inner);
        let versions = ["8.0.4".to_owned()];
        words.extend(options(
            &mut rng,
            &versions,
            "leaf",
            &mut title,
            &mut is_sampled,
        ));
        words
    }

    #[test]
    fn a_seed_always_chooses_the_same() {
        for seed in 0..100 {
            assert_eq!(chosen(seed), chosen(seed));
        }
        assert_ne!(chosen(1), chosen(2));
    }

    #[test]
    fn everything_is_chosen_sooner_or_later() {
        let all: Vec<String> = (0..2000).flat_map(chosen).collect();
        for word in [
            "DOTNET_gcServer=1",
            "COMPlus_TieredCompilation=0",
            "DOTNET_TieredPGO=0",
            "DOTNET_EnableEventPipe=1",
            "DOTNET_EnableWriteXorExecute=0",
            "prlimit",
            "--nofile=60",
            "--sigpending=0",
            "taskset",
            "--block-signal=PROF",
            "suspend",
            "seeded",
            "snapshot",
            "shadow",
            "wall",
            "timer",
            "10000",
            "--no-async-stacks",
            "--find-code=never",
            "--find-code=0",
            "one=8.0.4",
        ] {
            assert!(all.iter().any(|known| known == word), "{word}");
        }
    }

    #[test]
    fn a_shell_takes_what_is_printed() {
        let words = ["env", "A=it's {pid}", "x"].map(str::to_owned);
        assert_eq!(shell(&words), r"env 'A=it'\''s {pid}' x");
    }
}
