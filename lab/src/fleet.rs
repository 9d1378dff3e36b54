//! `cargo xtask fleet`: profiles of three processes, pushed to a real OpenTelemetry Collector.
//!
//! The Collector (lab/collector, pinned modules) has the OTLP receiver and an exporter that writes
//! each request that arrives into a folder. What is in the folder is held against the local
//! recordings of the same intervals: each method's own and total values must be equal, process by
//! process and event by event. A second round restarts the Collector meanwhile.
//! Invariant: the intervals of a round are as many as those of an hour of `--every 15s`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Profile, ProfilesDictionary, ResourceProfiles,
};
use prost::Message as _;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{Recorder, Runtime, own_address, sidewalk, stdout_of};
use xtask::build::{BuildProfile, build};
use xtask::setup;

const USAGE: &str = "usage: cargo xtask fleet [--seconds N] [--runtime VERSION]";

/// Programs and the events that are recorded of them.
const PROGRAMS: [(&str, &str); 3] = [
    ("exceptions", "cpu,exception"),
    ("alloc", "cpu,alloc"),
    ("contention", "cpu,wall,contention"),
];
/// Time of an interval. 240 of them, as in an hour of `--every 15s`, take 48 s.
const EVERY: &str = "200ms";
const SECONDS: u32 = 48;
/// Time in which the Collector must listen.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn run(arguments: &[&str], roots: &[PathBuf]) -> Result<()> {
    let mut seconds = SECONDS;
    let mut only: Option<&str> = None;
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        let mut value = || rest.next().copied().context(USAGE);
        match argument {
            "--seconds" => seconds = value()?.parse().context(USAGE)?,
            "--runtime" => only = Some(value()?),
            _ => bail!("{USAGE}"),
        }
    }
    let setup = crate::set_up(setup::Scope::Workloads, roots)?;
    build(BuildProfile::Release, false)?;
    let folder = testkit::test_folder("fleet");
    let program = build_collector()?;
    let runtime = setup.of_version(only).last();
    let runtime = runtime.context("there is no such runtime")?;
    for restarts in [false, true] {
        let title = match restarts {
            false => "the Collector runs",
            true => "the Collector is restarted three times",
        };
        println!("\n.NET {}, {seconds} s, {title}", runtime.version);
        let folder = folder.join(if restarts { "restarted" } else { "running" });
        round(runtime, &program, &folder, seconds, restarts)?;
    }
    Ok(())
}

/// Builds the Collector of lab/collector.
fn build_collector() -> Result<PathBuf> {
    let program = testkit::repository().join("target/fleet/collector");
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-ldflags=-s -w", "-o"]);
    go.arg(&program).arg(".");
    go.current_dir(testkit::repository().join("lab/collector"));
    println!("building the Collector, for some minutes the first time");
    let status = go.status().context(
        "there is no Go here to build a Collector with; the test profiles_sent_over_http_add_up \
         reads the same requests with another decoder",
    )?;
    ensure!(status.success(), "the Collector cannot be built");
    Ok(program)
}

/// A Collector that runs.
struct Collector {
    program: PathBuf,
    config: PathBuf,
    address: SocketAddr,
    child: Child,
}

impl Collector {
    fn start(program: &Path, folder: &Path) -> Result<Collector> {
        let received = folder.join("received");
        fs::create_dir_all(&received)?;
        let address = own_address(4318);
        let config = folder.join("collector.yaml");
        let text = format!(
            "receivers:\n  otlp:\n    protocols:\n      http:\n        endpoint: {address}\n\
             exporters:\n  folder:\n    path: {}\n\
             service:\n  pipelines:\n    profiles:\n      \
             receivers: [otlp]\n      exporters: [folder]\n",
            received.display()
        );
        fs::write(&config, text)?;
        let child = spawn(program, &config, address)?;
        Ok(Collector {
            program: program.to_owned(),
            config,
            address,
            child,
        })
    }

    /// Ends it, and starts it anew after a while.
    fn restart(&mut self, pause: Duration) -> Result<()> {
        self.end()?;
        std::thread::sleep(pause);
        self.child = spawn(&self.program, &self.config, self.address)?;
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the Collector ended with {status}");
        Ok(())
    }
}

fn spawn(program: &Path, config: &Path, address: SocketAddr) -> Result<Child> {
    let mut collector = Command::new(program);
    collector.arg(config);
    let log = fs::File::options()
        .create(true)
        .append(true)
        .open(config.with_extension("log"))?;
    let mut child = collector.stdin(Stdio::null()).stderr(log).spawn()?;
    let since = Instant::now();
    while TcpStream::connect(address).is_err() {
        if let Some(status) = child.try_wait()? {
            let log = config.with_extension("log");
            bail!("the Collector ended with {status}: see {}", log.display());
        }
        ensure!(since.elapsed() < PATIENCE, "the Collector does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(child)
}

/// Values by event, then by method: own and total.
type Values = BTreeMap<String, BTreeMap<String, (i64, i64)>>;

fn round(
    runtime: &Runtime,
    program: &Path,
    folder: &Path,
    seconds: u32,
    restarts: bool,
) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut collector = Collector::start(program, folder)?;
    let url = format!("otlp+http://{}", collector.address);
    let recordings = std::thread::scope(|scope| {
        let threads: Vec<_> = PROGRAMS
            .iter()
            .map(|(program, events)| {
                let url = &url;
                scope.spawn(move || {
                    let recorder = Recorder::workload(runtime, program, &[&seconds.to_string()])
                        .options(["-e", events, "--push", url, "--event-limit=0"])
                        .options(["--every", EVERY, "--short-intervals"])
                        .environment("OTEL_SERVICE_NAME", program);
                    recorder.run_complete()
                })
            })
            .collect();
        if restarts {
            for _ in 0..3 {
                std::thread::sleep(Duration::from_secs(u64::from(seconds) / 5));
                collector.restart(Duration::from_secs(2))?;
            }
        }
        let recordings = threads.into_iter().map(|thread| thread.join());
        let recordings: Vec<_> = recordings.collect();
        Ok::<_, anyhow::Error>(recordings)
    })?;
    collector.end()?;
    let mut received = read_received(&folder.join("received"))?;
    println!(
        "\n| program | intervals | event | methods | own value, both | \n| --- | --: | --- | --: | --: |"
    );
    for ((program, events), recorded) in PROGRAMS.iter().zip(recordings) {
        let Ok(recorded) = recorded else {
            bail!("{program} could not be recorded");
        };
        let parent = recorded.recording.parent().context("no folder")?;
        let intervals = intervals(parent)?;
        let there = received.remove(*program).unwrap_or_default();
        for event in events.split(',') {
            let here = read_local(&intervals, event)?;
            let there = there.get(type_of(event)).cloned().unwrap_or_default();
            // A subject (a type) is a leaf of its own there, so a method has no own value.
            let has_subjects = !matches!(event, "cpu" | "wall");
            for (name, (own, total)) in &here {
                let found = there.get(name).copied().unwrap_or_default();
                ensure!(
                    total.is_none_or(|total| found.1 == total) && (has_subjects || found.0 == *own),
                    "{program}, {event}, {name}: {own} and {total:?} here, {found:?} there"
                );
            }
            let own: i64 = here.values().map(|(own, _)| own).sum();
            ensure!(
                own == there.values().map(|(own, _)| own).sum::<i64>()
                    && (has_subjects || here.len() == there.len()),
                "{program}, {event}: there is more than here"
            );
            println!(
                "| {program} | {} | {event} | {} | {own} |",
                intervals.len(),
                here.len()
            );
            ensure!(own > 0, "{program} has no {event}");
        }
    }
    ensure!(received.is_empty(), "others: {:?}", received.keys());
    Ok(())
}

/// The name of an event's values in OTLP (docs/fleet.md).
fn type_of(event: &str) -> &str {
    match event {
        "alloc" => "alloc_space",
        other => other,
    }
}

fn intervals(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "swk") {
            files.push(path);
        }
    }
    ensure!(!files.is_empty(), "there is no interval");
    Ok(files)
}

/// The values of an event in local recordings. A name that several modules have (`clock_gettime`
/// of libc and of the kernel) has no total: a stack may have it twice.
fn read_local(files: &[PathBuf], event: &str) -> Result<BTreeMap<String, (i64, Option<i64>)>> {
    let mut report = Command::new(sidewalk());
    report.args(["report", "--json", "--top", "1000000", "--by", "method"]);
    report.args(["--event", event]).args(files);
    let report: serde_json::Value = serde_json::from_str(&stdout_of(&mut report))?;
    let rows = report["rows"].as_array().context("no rows")?;
    let mut values = BTreeMap::new();
    for row in rows {
        let name = row["name"].as_str().context("no name")?;
        let number = |key: &str| row[key].as_i64().context("no number");
        let (own, total) = (number("self")?, number("total")?);
        values
            .entry(name.to_owned())
            .and_modify(|value: &mut (i64, Option<i64>)| *value = (value.0 + own, None))
            .or_insert((own, Some(total)));
    }
    Ok(values)
}

/// The values that arrived, by service.
fn read_received(folder: &Path) -> Result<HashMap<String, Values>> {
    let mut services: HashMap<String, Values> = HashMap::new();
    for entry in fs::read_dir(folder)? {
        let bytes = fs::read(entry?.path())?;
        let request = ExportProfilesServiceRequest::decode(&*bytes)?;
        let dictionary = request.dictionary.context("no dictionary")?;
        for resource in &request.resource_profiles {
            let values = services
                .entry(service_of(resource, &dictionary)?)
                .or_default();
            let scopes = resource.scope_profiles.iter();
            for profile in scopes.flat_map(|scope| &scope.profiles) {
                add(profile, &dictionary, values)?;
            }
        }
    }
    Ok(services)
}

fn string(dictionary: &ProfilesDictionary, index: i32) -> Result<&str> {
    let string = dictionary.string_table.get(usize::try_from(index)?);
    string.map(String::as_str).context("no such string")
}

/// The service's name. The Collector refers to the dictionary for the strings of a resource.
fn service_of(resource: &ResourceProfiles, dictionary: &ProfilesDictionary) -> Result<String> {
    let attributes = resource.resource.iter().flat_map(|one| &one.attributes);
    for KeyValue {
        key,
        value,
        key_strindex,
        ..
    } in attributes
    {
        let key = match key.is_empty() {
            true => string(dictionary, *key_strindex)?,
            false => key,
        };
        if key == "service.name" {
            return match value {
                Some(AnyValue {
                    value: Some(Value::StringValue(name)),
                }) => Ok(name.clone()),
                Some(AnyValue {
                    value: Some(Value::StringValueStrindex(index)),
                }) => Ok(string(dictionary, *index)?.to_owned()),
                other => bail!("service.name is {other:?}"),
            };
        }
    }
    bail!("a resource has no service.name")
}

fn add(profile: &Profile, dictionary: &ProfilesDictionary, values: &mut Values) -> Result<()> {
    let sample_type = profile.sample_type.as_ref().context("no type")?;
    let of_type = string(dictionary, sample_type.type_strindex)?;
    let methods = values.entry(of_type.to_owned()).or_default();
    for sample in &profile.samples {
        let [value] = sample.values[..] else {
            bail!("a sample has {} values", sample.values.len());
        };
        let stack = &dictionary.stack_table[usize::try_from(sample.stack_index)?];
        let mut names = Vec::new();
        for location in &stack.location_indices {
            let location = &dictionary.location_table[usize::try_from(*location)?];
            for line in &location.lines {
                let function = &dictionary.function_table[usize::try_from(line.function_index)?];
                names.push(string(dictionary, function.name_strindex)?);
            }
        }
        let leaf = names.first().context("an empty stack")?;
        methods.entry((*leaf).to_owned()).or_default().0 += value;
        for name in names.into_iter().collect::<BTreeSet<_>>() {
            methods.entry(name.to_owned()).or_default().1 += value;
        }
    }
    Ok(())
}
