//! Dumps as text and as JSON: each thread's stack and state, and the suspended async methods.
//!
//! Input is a recording in which the agent reported the state of each thread. Identical stacks are
//! shown once. [`waits`] names a thread's wait by its frames and its system call; an unknown wait
//! is not guessed. Invariant: every thread with a state is shown once, with its stack or the reason
//! why it has none.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use profile::Profile;
use profile::model::{Event, FrameId, FrameKind, ProcessId, StackId, Thread, ThreadId, WalkEnd};

use serde::Serialize;

use crate::health::summary;
use crate::labels::{Labels, kind_name};
use crate::text::notes;
use crate::visible::{visible, write_json};
use crate::wording::plural;

mod waits;

/// Threads of a process with the same stack.
#[derive(Debug)]
struct ThreadGroup {
    process: ProcessId,
    threads: Vec<ThreadId>,
    state: char,
    waits: String,
    missing: String,
    /// Frames, leaf first. Empty if there is no stack.
    frames: Vec<FrameId>,
}

/// Suspended async methods of a process that have the same stack.
#[derive(Debug)]
struct SuspendedGroup {
    process: ProcessId,
    count: u64,
    /// Frames, youngest method first.
    frames: Vec<FrameId>,
}

/// Whether the recording has a dump.
pub fn has_dump(profile: &Profile) -> bool {
    profile.threads.iter().any(|thread| thread.state.is_some())
}

/// Returns the dump as text. It ends with the summary ([`crate::summary`]).
pub fn dump_text(profile: &Profile) -> String {
    let labels = Labels::new(profile);
    let groups = thread_groups(profile, &labels);
    let suspended = suspended_groups(profile, &labels);
    let mut text = String::new();
    for (number, process) in profile.processes.iter().enumerate() {
        let id = ProcessId(number as u32);
        let own = || groups.iter().filter(move |group| group.process == id);
        let threads: usize = own().map(|group| group.threads.len()).sum();
        if threads == 0 {
            continue;
        }
        let stacks = own().filter(|group| !group.frames.is_empty()).count();
        let _ = writeln!(
            text,
            "{}: {}, {}",
            visible(&format!("{} (pid {})", process.name(), process.pid)),
            plural(threads as u64, "thread"),
            plural(stacks as u64, "different stack"),
        );
        for group in own() {
            write_group(&mut text, profile, &labels, group);
        }
        let suspended = suspended.iter().filter(|group| group.process == id);
        write_suspended(&mut text, profile, &labels, &suspended.collect::<Vec<_>>());
        text.push('\n');
    }
    for note in notes(profile) {
        let _ = writeln!(text, "note: {note}");
    }
    text.push_str(&summary(&profile.health));
    text.push('\n');
    text
}

fn write_group(text: &mut String, profile: &Profile, labels: &Labels<'_>, group: &ThreadGroup) {
    let who: Vec<String> = group
        .threads
        .iter()
        .map(|thread| {
            let Thread { name, tid, .. } = profile.thread(*thread);
            format!("{} (tid {tid})", visible(name))
        })
        .collect();
    let _ = write!(text, "\n{}: {}", who.join(", "), state_name(group.state));
    if !group.waits.is_empty() {
        let _ = write!(text, ", {}", group.waits);
    }
    text.push('\n');
    if !group.missing.is_empty() {
        let _ = writeln!(text, "    [no stack: {}]", visible(&group.missing));
    }
    write_frames(text, profile, labels, &group.frames);
}

/// Those of one process.
fn write_suspended(
    text: &mut String,
    profile: &Profile,
    labels: &Labels<'_>,
    groups: &[&SuspendedGroup],
) {
    let Some(sum) = groups
        .iter()
        .map(|group| group.count)
        .reduce(u64::saturating_add)
    else {
        return;
    };
    let _ = writeln!(
        text,
        "\n{}, {} different",
        plural(sum, "suspended async stack"),
        groups.len(),
    );
    for group in groups {
        let _ = writeln!(text, "\n{} suspended", group.count);
        write_frames(text, profile, labels, &group.frames);
    }
}

fn write_frames(text: &mut String, profile: &Profile, labels: &Labels<'_>, frames: &[FrameId]) {
    for frame in frames {
        let found = profile.frame(*frame);
        let module = found.module.map(|module| profile.module(module));
        let _ = write!(text, "    {}", labels.name(*frame));
        if let Some(module) = module {
            let _ = write!(text, "  [{}]", visible(module.file_name()));
        }
        if let Some(file) = labels.file(found)
            && found.line > 0
        {
            let _ = write!(text, "  {file}:{}", found.line);
        }
        text.push('\n');
    }
}

#[derive(Serialize)]
struct DumpJson<'a> {
    processes: Vec<DumpProcessJson>,
    stacks: Vec<GroupJson<'a>>,
    suspended: Vec<SuspendedJson<'a>>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct DumpProcessJson {
    pid: u32,
    command: Vec<String>,
}

#[derive(Serialize)]
struct GroupJson<'a> {
    pid: u32,
    threads: Vec<ThreadJson<'a>>,
    state: String,
    /// Null where it is not known, or the thread does not wait.
    waits_for: Option<&'a str>,
    /// Null where there is a stack.
    missing: Option<&'a str>,
    /// Leaf first.
    frames: Vec<FrameJson<'a>>,
}

#[derive(Serialize)]
struct SuspendedJson<'a> {
    pid: u32,
    count: u64,
    /// Frames, youngest method first.
    frames: Vec<FrameJson<'a>>,
}

#[derive(Serialize)]
struct ThreadJson<'a> {
    tid: u32,
    name: &'a str,
    managed: bool,
    syscall: Option<u32>,
    kernel_function: Option<&'a str>,
}

#[derive(Serialize)]
struct FrameJson<'a> {
    name: &'a str,
    kind: &'static str,
    module: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

/// The dump for programs, on one line.
pub fn dump_json(profile: &Profile) -> String {
    let labels = Labels::new(profile);
    let groups = thread_groups(profile, &labels);
    let some = |text: &'_ str| -> Option<()> { (!text.is_empty()).then_some(()) };
    let stacks = groups
        .iter()
        .map(|group| GroupJson {
            pid: profile.process(group.process).pid,
            threads: group
                .threads
                .iter()
                .map(|thread| {
                    let thread = profile.thread(*thread);
                    let state = thread.state.as_ref();
                    let wait = state.map_or("", |state| state.wait.as_str());
                    ThreadJson {
                        tid: thread.tid,
                        name: &thread.name,
                        managed: thread.managed,
                        syscall: state.and_then(|state| state.syscall),
                        kernel_function: some(wait).map(|()| wait),
                    }
                })
                .collect(),
            state: state_name(group.state).to_owned(),
            waits_for: some(&group.waits).map(|()| group.waits.as_str()),
            missing: some(&group.missing).map(|()| group.missing.as_str()),
            frames: frames_json(profile, &labels, &group.frames),
        })
        .collect();
    let suspended = suspended_groups(profile, &labels)
        .iter()
        .map(|group| SuspendedJson {
            pid: profile.process(group.process).pid,
            count: group.count,
            frames: frames_json(profile, &labels, &group.frames),
        })
        .collect();
    let processes = profile
        .processes
        .iter()
        .map(|process| DumpProcessJson {
            pid: process.pid,
            command: process.command.clone(),
        })
        .collect();
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = write_json(
        &mut text,
        &DumpJson {
            processes,
            stacks,
            suspended,
            notes: notes(profile),
        },
    );
    String::from_utf8_lossy(&text).into_owned()
}

fn frames_json<'a>(
    profile: &Profile,
    labels: &'a Labels<'_>,
    frames: &[FrameId],
) -> Vec<FrameJson<'a>> {
    let frames = frames.iter().map(|frame| {
        let found = profile.frame(*frame);
        FrameJson {
            name: labels.name(*frame),
            kind: kind_name(found.kind),
            module: found.module.map(|module| labels.module_path(module)),
            file: labels.file(found),
            line: (found.line > 0).then_some(found.line),
        }
    });
    frames.collect()
}

/// Suspended async methods, by process; the largest groups first. Methods that look the same are
/// one group: they have code of several tiers.
fn suspended_groups(profile: &Profile, labels: &Labels<'_>) -> Vec<SuspendedGroup> {
    let mut counts: BTreeMap<(ProcessId, StackId), u64> = BTreeMap::new();
    let samples = profile.samples.iter();
    for sample in samples.filter(|sample| sample.event == Event::Suspended) {
        let process = profile.thread(sample.thread).process;
        let stack = sample.logical.unwrap_or(sample.stack);
        let count = counts.entry((process, stack)).or_default();
        *count = count.saturating_add(sample.value);
    }
    let mut by_text: BTreeMap<(ProcessId, String), SuspendedGroup> = BTreeMap::new();
    for ((process, stack), count) in counts {
        let frames: Vec<FrameId> = profile.frames_of(stack).collect();
        let mut text = String::new();
        write_frames(&mut text, profile, labels, &frames);
        let group = by_text.entry((process, text)).or_insert(SuspendedGroup {
            process,
            count: 0,
            frames,
        });
        group.count = group.count.saturating_add(count);
    }
    let mut groups: Vec<SuspendedGroup> = by_text.into_values().collect();
    groups.sort_by_key(|group| (group.process, Reverse(group.count)));
    groups
}

/// Threads that did the same, by process: those with managed frames first, and in each the first
/// thread's.
fn thread_groups(profile: &Profile, labels: &Labels<'_>) -> Vec<ThreadGroup> {
    let mut stacks: BTreeMap<ThreadId, (StackId, WalkEnd)> = BTreeMap::new();
    let samples = profile.samples.iter();
    for sample in samples.filter(|sample| sample.event != Event::Suspended) {
        stacks
            .entry(sample.thread)
            .or_insert((sample.stack, sample.end));
    }
    let mut groups: Vec<ThreadGroup> = Vec::new();
    let mut threads: Vec<(ThreadId, &Thread)> = profile
        .threads
        .iter()
        .enumerate()
        .map(|(number, thread)| (ThreadId(number as u32), thread))
        .collect();
    threads.sort_by_key(|(_, thread)| (thread.process.0, thread.tid));
    for (id, thread) in threads {
        let Some(state) = &thread.state else { continue };
        let frames: Vec<FrameId> = match stacks.get(&id) {
            Some((stack, _)) => profile.frames_of(*stack).collect(),
            None => Vec::new(),
        };
        let missing = match frames.is_empty() {
            true if state.missing.is_empty() => "its stack could not be walked".to_owned(),
            true => state.missing.clone(),
            false => String::new(),
        };
        let waits = waits::wait_of(profile, labels, thread, &frames);
        let same = |group: &&mut ThreadGroup| {
            group.process == thread.process
                && group.state == state.code
                && group.waits == waits
                && group.missing == missing
                && group.frames == frames
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.threads.push(id),
            None => groups.push(ThreadGroup {
                process: thread.process,
                threads: vec![id],
                state: state.code,
                waits,
                missing,
                frames,
            }),
        }
    }
    let is_managed = |group: &ThreadGroup| {
        let mut kinds = group.frames.iter().map(|frame| profile.frame(*frame).kind);
        kinds.any(|kind| kind == FrameKind::Managed)
    };
    groups.sort_by_key(|group| (group.process.0, !is_managed(group)));
    groups
}

/// By proc(5).
fn state_name(code: char) -> &'static str {
    match code {
        'R' => "running",
        'S' | 'I' => "sleeping",
        'D' => "sleeping, uninterruptible",
        'T' | 't' => "stopped",
        'Z' | 'X' => "ended",
        _ => "state unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::model::WalkEnd;
    use profile::testing::{self, Scene};

    /// Groups with these numbers; the second one in two parts.
    fn scene() -> Scene {
        let mut scene = testing::awaits();
        let thread = scene.thread(0, "suspended async methods", true);
        let module = scene.native_module("/lib/x.so");
        let mut frame = |at, name| scene.native(module, at, name);
        let (root, leaf) = (frame(1, "root"), frame(2, "leaf"));
        let (short, long) = (scene.stack(&[root]), scene.stack(&[root, leaf]));
        for (stack, count) in [(short, 3), (long, 4), (long, 5)] {
            scene.sample(thread, stack, Event::Suspended, count, WalkEnd::Root);
        }
        scene
    }

    #[test]
    fn equal_stacks_are_one_group_and_the_largest_is_the_first() {
        let profile = scene().profile();
        let groups = suspended_groups(&profile, &Labels::new(&profile));
        let group_texts: Vec<_> = groups
            .iter()
            .map(|group| {
                let names = group.frames.iter().map(|frame| profile.name(*frame));
                (group.count, names.collect::<Vec<_>>())
            })
            .collect();
        let expected = [(9, vec!["leaf", "root"]), (3, vec!["root"])];
        assert_eq!(group_texts, expected);
        let without = testing::awaits().profile();
        assert!(suspended_groups(&without, &Labels::new(&without)).is_empty());
        // Found, not sampled.
        assert_eq!(profile.health.samples, without.health.samples);
    }
}
