//! Changes the events of a running session (`record --pid PID --change -e LIST`): the events are
//! those of the time for which they were asked, and the recording says for how long that was.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output};

use recording::{Event, Item, Reader, Record};
use testkit::{Inspected, Running, Runtime, only_child, sidewalk, stdout_of, test_folder};

use crate::attach::{
    ends_well, has_left, record, recording_in, running, send, start, timers, until,
};

on_each_runtime!(exceptions_are_recorded_while_they_are_asked_for);
on_net8_and_core31!(
    allocations_are_added_or_refused_by_name,
    what_is_sampled_by_time_stays,
);

fn change(pid: u32, events: &str) -> Output {
    let mut tool = Command::new(sidewalk());
    tool.args(["record", "--pid", &pid.to_string()]);
    tool.args(["--change", "-e", events]).output().unwrap()
}

pub(crate) fn changed(pid: u32, events: &str) {
    let output = change(pid, events);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{message}");
    let expected = format!("events of process {pid} from now on: {events}");
    assert!(message.contains(&expected), "{message}");
}

/// Returns the message of a refused change.
fn refused(pid: u32, events: &str) -> String {
    let output = change(pid, events);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

/// Facts about events in a recording, finished or not.
#[derive(Default)]
struct EventTimeline {
    /// Changes: time, events before, events after.
    changes: Vec<(u64, Vec<Event>, Vec<Event>)>,
    /// Times of samples by event.
    samples: BTreeMap<u8, Vec<u64>>,
    /// Number of samples dropped by a limit.
    limited: u64,
    /// Number of totals records. The agent writes one per second.
    stats: usize,
}

impl EventTimeline {
    fn of(folder: &Path) -> EventTimeline {
        let file = File::open(recording_in(folder)).unwrap();
        let mut reader = Reader::open(file).unwrap();
        let mut timeline = EventTimeline::default();
        while let Some(item) = reader.next_item().unwrap() {
            match item {
                Item::Record(
                    _,
                    Record::Change {
                        time_ns,
                        before,
                        after,
                    },
                ) => timeline.changes.push((
                    time_ns,
                    Event::from_bits(before).collect(),
                    Event::from_bits(after).collect(),
                )),
                Item::Record(_, Record::Sample { event, time_ns, .. }) => {
                    timeline
                        .samples
                        .entry(event as u8)
                        .or_default()
                        .push(time_ns);
                }
                Item::Record(_, Record::Limited { count, .. }) => timeline.limited += count,
                Item::Record(_, Record::Stats { .. }) => timeline.stats += 1,
                _ => {}
            }
        }
        timeline
    }

    fn samples(&self, event: Event) -> &[u64] {
        self.samples
            .get(&(event as u8))
            .map_or(&[], |samples| samples.as_slice())
    }
}

/// Ctrl-C ends the recording.
pub(crate) fn stop(mut tool: Child, folder: &Path) -> (String, Inspected) {
    send("-INT", tool.id());
    let status = tool.wait().unwrap();
    let message = std::io::read_to_string(tool.stderr.take().unwrap()).unwrap();
    assert!(
        status.success() && message.contains("the agent has detached"),
        "{status}: {message}"
    );
    (message, Inspected::of(&recording_in(folder)))
}

fn exceptions_are_recorded_while_they_are_asked_for(runtime: &Runtime) {
    let program = running(runtime, "exceptions", &["soon"]);
    let pid = program.pid();
    let folder = test_folder("changed");
    let tool = start(pid, &folder, &[]);
    let seconds = |count: usize| {
        until("totals", || EventTimeline::of(&folder).stats >= count);
    };
    seconds(1);
    changed(pid, "cpu,exception");
    until("exceptions", || {
        EventTimeline::of(&folder).samples(Event::Exception).len() > 200
    });
    changed(pid, "cpu");
    let until_now = EventTimeline::of(&folder).stats;
    seconds(until_now + 2);
    // Repeats the events in force, which changes nothing.
    changed(pid, "cpu");
    let (message, inspected) = stop(tool, &folder);
    let timeline = EventTimeline::of(&folder);
    let (with, without) = (vec![Event::Cpu, Event::Exception], vec![Event::Cpu]);
    let [(on, before, then), (off, then_before, after)] = &timeline.changes[..] else {
        panic!("{:?}", timeline.changes);
    };
    assert_eq!((before, then), (&without, &with));
    assert_eq!((then_before, after), (&with, &without));
    let exceptions = timeline.samples(Event::Exception);
    assert!(exceptions.iter().all(|time| (on..=off).contains(&time)));
    // All of that time: it throws thousands a second.
    let (first, last) = (exceptions.iter().min(), exceptions.iter().max());
    let (early, late) = (first.unwrap() - on, off - last.unwrap());
    assert!(early.max(late) < 200_000_000, "{early} ns, {late} ns");
    // Time is sampled before, between and after.
    let times = timeline.samples(Event::Cpu);
    assert!(times.iter().any(|time| time < on) && times.iter().any(|time| time > off));
    let expected = "exception was recorded for ";
    assert!(message.contains(expected), "{message}");
    let partial = &inspected.json["partial"];
    let on_s = (off - on) as f64 / 1e9;
    assert_eq!(partial[0]["event"], "exception", "{partial}");
    assert!((partial[0]["on_s"].as_f64().unwrap() - on_s).abs() < 0.01);
    assert!(partial[0]["of_s"].as_f64().unwrap() > on_s + 1.0);
    assert_eq!(partial.as_array().unwrap().len(), 1, "{partial}");
    until("the timers to go", || timers(pid) == 0);
    ends_well(program, "\nmeasured thrown");
}

fn allocations_are_added_or_refused_by_name(runtime: &Runtime) {
    let program = running(runtime, "alloc", &["soon"]);
    let pid = program.pid();
    let folder = test_folder("added");
    let tool = start(pid, &folder, &[]);
    if runtime.is_core31() {
        let message = refused(pid, "cpu,alloc,gc");
        let expected = format!("no alloc samples of .NET {}", runtime.version);
        assert!(message.contains(&expected), "{message}");
        // As a whole.
        changed(pid, "cpu,gc");
        until("collections", || {
            !EventTimeline::of(&folder).samples(Event::Gc).is_empty()
        });
    } else {
        changed(pid, "cpu,alloc");
        until("allocations", || {
            EventTimeline::of(&folder).samples(Event::Alloc).len() > 20
        });
        // The runtime's own events are listened to without a break.
        changed(pid, "cpu,alloc,contention,gc,jit");
        until("collections", || {
            !EventTimeline::of(&folder).samples(Event::Gc).is_empty()
        });
    }
    let (message, inspected) = stop(tool, &folder);
    let sources = inspected.json["sources"].to_string();
    assert!(sources.contains("\"gc\""), "{sources}: {message}");
    assert_eq!(
        sources.contains("\"alloc\""),
        !runtime.is_core31(),
        "{sources}"
    );
    ends_well(program, "\nmeasured");
}

fn what_is_sampled_by_time_stays(runtime: &Runtime) {
    let program = running(runtime, "shares", &["soon"]);
    let pid = program.pid();
    assert!(refused(pid, "cpu").contains("is not being recorded"));
    let folder = test_folder("stays");
    let tool = start(pid, &folder, &["-e", "cpu,gc"]);
    for events in ["gc", "cpu,wall", "wall,exception"] {
        let message = refused(pid, events);
        assert!(message.contains("this one has cpu"), "{events}: {message}");
    }
    stop(tool, &folder);
    assert_eq!(EventTimeline::of(&folder).changes, []);
    // One that stays and does nothing.
    let recorded = record(pid, &folder, &["-d", "100ms", "--stay"]);
    assert!(!has_left(&recorded));
    assert!(refused(pid, "cpu").contains("nobody records it"));
    ends_well(program, "share ");
}

#[test]
fn a_started_program_is_changed_as_one_that_was_attached_to() {
    let runtime = Runtime::net8();
    let folder = test_folder("started");
    let mut command = runtime.command(&testkit::workload("exceptions").dll);
    command.args(["attached", "soon"]);
    let mut tool = Command::new(sidewalk());
    tool.args(["record", "-o"]).arg(recording_in(&folder));
    tool.arg("--")
        .arg(command.get_program())
        .args(command.get_args());
    let environment = command.get_envs();
    tool.envs(environment.filter_map(|(key, value)| Some((key, value?))));
    let tool = Running::start(tool);
    changed(only_child(tool.pid()).unwrap(), "cpu,exception");
    until("exceptions", || {
        EventTimeline::of(&folder).samples(Event::Exception).len() > 20
    });
    ends_well(tool, "\nmeasured thrown");
}

#[test]
fn another_user_changes_nothing() {
    let program = running(&Runtime::net8(), "exceptions", &["soon"]);
    let pid = program.pid();
    let folder = test_folder("other");
    let tool = start(pid, &folder, &[]);
    // A folder from which every user may run it.
    let public = tempfile::tempdir().unwrap();
    for file in [sidewalk(), testkit::agent()] {
        let copy = public.path().join(file.file_name().unwrap());
        fs::copy(file, &copy).unwrap();
        fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(public.path(), Permissions::from_mode(0o755)).unwrap();
    let mut stranger = Command::new("setpriv");
    stranger.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    stranger.arg(public.path().join("sidewalk"));
    stranger.args(["record", "--pid", &pid.to_string()]);
    let output = stranger.args(["--change", "-e", "cpu,exception"]).output();
    let output = output.unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("another user"), "{message}");
    let (_, inspected) = stop(tool, &folder);
    assert_eq!(inspected.json["partial"].to_string(), "[]");
    assert_eq!(EventTimeline::of(&folder).changes, []);
    ends_well(program, "\nmeasured thrown");
}

#[test]
fn what_a_change_cannot_have_is_said_before_anybody_is_asked() {
    let mut tool = Command::new(sidewalk());
    tool.args(["record", "--pid", "1", "--change"]);
    let without = tool.output().unwrap();
    assert_eq!(without.status.code(), Some(2));
    let message = String::from_utf8(without.stderr).unwrap();
    assert!(message.contains("--event <LIST>"), "{message}");
    let with = tool.args(["-e", "gc", "-F", "99"]).output().unwrap();
    assert_eq!(with.status.code(), Some(2));
    let help = stdout_of(Command::new(sidewalk()).args(["record", "--help"]));
    assert!(help.contains("--change"), "{help}");
}
