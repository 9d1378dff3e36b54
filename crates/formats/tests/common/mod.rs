//! Profiles that scenes of records cannot make: any names, any shape.

use profile::Builder;
use profile::model::{
    Detail, Event, Frame, FrameKind, Health, Location, Module, ModuleId, Process, ProcessId,
    Profile, Runtime, RuntimeId, Sample, SampleSource, Thread, ThreadId, Tier, WalkEnd,
};

/// Names that try to leave their place.
pub(crate) const HOSTILE: &[&str] = &[
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "-->]]>&lt;&amp;",
    "\"'`${alert(1)}\\",
    "a;b;c",
    "looks like a count 12",
    "two\nlines 7\r\n",
    "tab\tbell\u{7}nul\0escape\u{1b}[31m",
    "paragraph\u{2028}separator\u{2029}",
    "\u{202e}gnp.exe\u{202c}\u{2066}rtl\u{2069}",
    "zero\u{200b}width\u{feff}",
    "",
    " ",
    "日本語のメソッド名<中文, Ελληνικά>",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢👩‍👩‍👧",
    "__proto__",
    "constructor",
    "{{data}}{{script}}",
    "%s%n%d",
    "#comment 5",
];

/// Time between two samples by time, nanoseconds.
pub(crate) const INTERVAL: u64 = 1_000_000;

/// One sample of a profile made by [`profile_of`].
#[derive(Clone, Debug)]
pub(crate) struct RecordedProfile {
    /// Index into the threads.
    pub(crate) thread: u32,
    /// Indices into the names, root first; not empty.
    pub(crate) stack: Vec<usize>,
    /// The event that it is for.
    pub(crate) event: Event,
    /// Amount.
    pub(crate) value: u64,
}

/// A profile of one process per two threads in which everything that can have a name has one of
/// `names`.
pub(crate) fn profile_of(names: &[&str], threads: u32, samples: &[RecordedProfile]) -> Profile {
    let mut b = Builder::new();
    let name = |at: usize| names[at % names.len()].to_owned();
    let processes = threads.div_ceil(2).max(1);
    b.profile.processes = (0..processes)
        .map(|nth| Process {
            pid: 100 + nth,
            parent: 1,
            command: vec![name(nth as usize), name(nth as usize + 1)],
            start_unix_ns: 1_700_000_000_000_000_000,
            start_ns: 1_000,
            end_ns: 5_000_000_000,
            ended: nth == 0,
            recording: 0,
        })
        .collect();
    b.profile.runtimes = (0..processes)
        .map(|nth| Runtime {
            process: ProcessId(nth),
            version: name(nth as usize),
            recorded: true,
            refused_by: String::new(),
        })
        .collect();
    b.profile.threads = (0..threads)
        .map(|nth| Thread {
            process: ProcessId(nth / 2),
            tid: 100 + nth,
            name: name(nth as usize),
            managed: nth % 2 == 0,
            start_ns: 1_000,
            end_ns: None,
            cpu_ns: None,
            state: None,
        })
        .collect();
    b.profile.modules = names
        .iter()
        .map(|path| Module {
            path: format!("/srv/{path}/{path}"),
            managed: true,
            id_bytes: vec![1, 2, 3],
            bias: 0,
            file_offset: 0,
        })
        .collect();
    let kinds = [
        FrameKind::Managed,
        FrameKind::Runtime,
        FrameKind::Native,
        FrameKind::Stub,
        FrameKind::Pseudo,
        FrameKind::Unknown,
    ];
    let frames: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(at, text)| {
            let string = b.string(text);
            let kind = kinds[at % kinds.len()];
            let managed = kind == FrameKind::Managed;
            b.frame(Frame {
                name: string,
                kind,
                tier: if managed { Tier::Tier1 } else { Tier::Unknown },
                module: (at % 4 != 3).then_some(ModuleId(at as u32)),
                runtime: managed.then_some(RuntimeId(at as u32 % processes)),
                file: (at % 3 != 2).then_some(string),
                line: at as u32,
                signature: None,
                inlined: at % 7 == 6,
                location: Location::None,
            })
        })
        .collect();
    for (at, taken) in samples.iter().enumerate() {
        let stack: Vec<_> = taken
            .stack
            .iter()
            .map(|&f| frames[f % frames.len()])
            .collect();
        let stack = b.stack_of(&stack).expect("stacks are not empty");
        let by_time = matches!(taken.event, Event::Cpu | Event::Wall);
        let detail = (!by_time && at % 4 != 3).then(|| {
            let (about, text) = (b.string(&name(at / 2)), b.string(&name(at)));
            b.detail(Detail {
                event: taken.event,
                name: about,
                text,
            })
        });
        b.profile.samples.push(Sample {
            thread: ThreadId(taken.thread % threads),
            stack,
            time_ns: 1_000_000 * at as u64,
            logical: None,
            event: taken.event,
            value: taken.value,
            end: WalkEnd::Root,
            detail,
        });
    }
    b.profile.health = Health {
        samples: samples.len() as u64,
        lost: vec![(name(0), 3), (name(1), 1)],
        broken: vec![(name(2), 1)],
        engine: name(3),
        walker: name(4),
        event: Some(Event::Cpu),
        interval_ns: INTERVAL,
        sources: [Event::Cpu, Event::Wall]
            .map(|event| SampleSource {
                event,
                source: name(3),
                walker: name(4),
                interval: INTERVAL,
                by_time: true,
            })
            .into(),
        notes: vec![name(5), name(6)],
        ..Health::default()
    };
    b.finish()
}

/// The profile in which every third sample has another way up to the root, with a name of its own
/// on top and some of `names` as reasons.
#[allow(dead_code, reason = "not all tests look at both stacks")]
pub(crate) fn awaited(profile: Profile, names: &[&str]) -> Profile {
    let mut b = Builder::from_profile(profile);
    for at in (1..b.profile.samples.len()).step_by(3) {
        let stack = b.profile.samples[at].stack;
        let mut frames: Vec<_> = b.profile.frames_of(stack).collect();
        frames.truncate(frames.len().div_ceil(2));
        // Of no other frame's name: pprof would take the two for one.
        let mark = b.string(&format!("{}~", names[at % names.len()]));
        frames.push(b.frame(Frame::new(mark, FrameKind::Async)));
        frames.reverse();
        b.profile.samples[at].logical = b.stack_of(&frames);
    }
    let health = &mut b.profile.health;
    health.chains = b.profile.samples.len() as u64 / 3;
    health.chains_cut = vec![(names[0].to_owned(), 1), (names[6].to_owned(), 2)];
    b.finish()
}
