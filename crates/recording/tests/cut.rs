//! Intervals of a stream: together they are the stream, and each can be read alone.
//!
//! Invariant: the stream is cut at random, and records come late and in disorder as an agent's do.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use recording::{
    ClockReading, CostPart, Cutter, Event, Frame, Item, MethodKind, ModuleKind, ProcessKey, Reader,
    Record, Tier, WalkEnd, file_header, limits,
};

/// Offset of the wall clock.
const UNIX: u64 = 1_700_000_000_000_000_000;

fn clocks(time_ns: u64) -> ClockReading {
    ClockReading {
        time_ns,
        unix_ns: UNIX + time_ns,
    }
}

/// Content of an interval or a stream, with ids replaced by what they mean.
#[derive(Default, Debug, PartialEq, Clone)]
struct Content {
    /// Sorted samples.
    samples: Vec<String>,
    /// Times of the samples.
    times: Vec<u64>,
    /// Counts and totals by name.
    sums: BTreeMap<String, u64>,
    /// Live objects at the last snapshot.
    live: BTreeMap<String, u64>,
    /// Processes, and when each begins by both clocks.
    begun: Vec<(u64, u64, u64)>,
    ended: Vec<u64>,
}

/// The meaning of the ids of one process.
#[derive(Default)]
struct Meaning {
    threads: HashMap<u32, String>,
    modules: HashMap<u32, String>,
    methods: HashMap<u32, String>,
    frames: HashMap<u32, String>,
    stacks: HashMap<u32, String>,
    details: HashMap<u32, String>,
    alive: BTreeMap<u32, (String, u64)>,
    totals: BTreeMap<String, u64>,
}

impl Meaning {
    fn stack(&self, stack: u32) -> &str {
        &self.stacks[&stack]
    }
}

impl Content {
    /// Decodes the records of a stream or of an interval. Panics if an id has no meaning.
    fn of<'a>(records: impl IntoIterator<Item = (ProcessKey, Record<'a>)>) -> Content {
        let mut content = Content::default();
        let mut processes: BTreeMap<ProcessKey, Meaning> = BTreeMap::new();
        for (key, record) in records {
            let is_first = !processes.contains_key(&key);
            let known = processes.entry(key).or_default();
            assert_eq!(
                is_first,
                matches!(record, Record::Process { .. }),
                "{record:?}"
            );
            let mut add = |name: String, value: u64| {
                *content.sums.entry(format!("{} {name}", key.0)).or_default() += value;
            };
            match record {
                Record::Process {
                    time_ns, unix_ns, ..
                } => content.begun.push((key.0, time_ns, unix_ns)),
                Record::Thread { thread, name, .. } => {
                    known.threads.insert(thread, name.into_owned());
                }
                Record::Module { module, path, .. } => {
                    known.modules.insert(module, path.into_owned());
                }
                Record::Method {
                    method,
                    module,
                    name,
                    ..
                } => {
                    let module = module.map_or("", |module| &*known.modules[&module]);
                    let name = format!("{module}!{name}");
                    known.methods.insert(method, name);
                }
                Record::Frame { frame, value } => {
                    let name = match value {
                        Frame::Managed { method, .. } => known.methods[&method].clone(),
                        Frame::Native { module, svma } => {
                            format!("{}+{svma}", known.modules[&module])
                        }
                        other => format!("{other:?}"),
                    };
                    assert!(known.frames.insert(frame, name).is_none(), "frame twice");
                }
                Record::Stack {
                    stack,
                    parent,
                    frame,
                } => {
                    let parent = parent.map_or("", |parent| known.stack(parent));
                    let text = format!("{parent};{}", known.frames[&frame]);
                    assert!(known.stacks.insert(stack, text).is_none(), "stack twice");
                }
                Record::Detail { detail, name, .. } => {
                    known.details.insert(detail, name.into_owned());
                }
                Record::Sample {
                    thread,
                    stack,
                    time_ns,
                    event,
                    value,
                    detail,
                    logical,
                    ..
                } => {
                    let logical = logical.map_or("", |logical| known.stack(logical));
                    let detail = detail.map_or("", |detail| &*known.details[&detail]);
                    let (thread, stack) = (&known.threads[&thread], known.stack(stack));
                    let name = event.name();
                    content.times.push(time_ns);
                    content.samples.push(format!(
                        "{} {thread} {stack} {logical} {detail} {name} {value} {time_ns}",
                        key.0
                    ));
                }
                Record::Lost { reason, count } => add(format!("lost {reason}"), count),
                Record::Limited { event, count, .. } => {
                    add(format!("limited {}", event.name()), count);
                }
                Record::Calls {
                    traced, buckets, ..
                } => {
                    let calls = buckets.iter().map(|(_, calls)| calls).sum();
                    add(format!("calls {traced}"), calls);
                }
                Record::Stats {
                    target_cpu_ns,
                    due_ns,
                    ..
                } => {
                    known.totals.insert("cpu".into(), target_cpu_ns);
                    known.totals.insert("due".into(), due_ns.unwrap());
                }
                Record::Unseen { reason, cpu_ns, .. } => {
                    known.totals.insert(format!("unseen {reason}"), cpu_ns);
                }
                Record::Cost { count, name, .. } => {
                    known.totals.insert(format!("cost {name}"), count);
                }
                Record::Survivor {
                    allocation,
                    thread,
                    stack,
                    bytes,
                    ..
                } => {
                    // The thread may get another name later.
                    assert!(known.threads.contains_key(&thread));
                    let text = format!("{allocation} {thread} {}", known.stack(stack));
                    known.alive.insert(allocation, (text, bytes));
                }
                Record::Gone { allocations, .. } => {
                    allocations
                        .iter()
                        .for_each(|gone| drop(known.alive.remove(gone)));
                }
                Record::Thinned { allocations, .. } => {
                    allocations
                        .iter()
                        .for_each(|gone| drop(known.alive.remove(gone)));
                    known.alive.values_mut().for_each(|(_, bytes)| *bytes *= 2);
                }
                Record::End { time_ns } => content.ended.push(time_ns),
                _ => {}
            }
        }
        for (key, known) in processes {
            for (name, value) in known.totals {
                *content.sums.entry(format!("{} {name}", key.0)).or_default() += value;
            }
            let alive = known.alive.into_values();
            content
                .live
                .extend(alive.map(|(text, bytes)| (format!("{} {text}", key.0), bytes)));
        }
        content.sums.retain(|_, value| *value > 0);
        content.samples.sort();
        content
    }

    fn of_file(file: &[u8]) -> Content {
        let mut records = Vec::new();
        let mut reader = Reader::open(file).unwrap();
        while let Some(item) = reader.next_item().unwrap() {
            match item {
                Item::Record(key, record) => records.push((key, record.into_owned())),
                other => panic!("{other:?}"),
            }
        }
        Content::of(records)
    }
}

/// A step of an agent.
#[derive(Clone, Debug)]
enum Step {
    Sample {
        thread: u8,
        frames: Vec<u8>,
        late: u8,
        value: u16,
        awaited: bool,
    },
    Rename(u8),
    Lost(u8),
    Totals,
    Calls(u8),
    Snapshot(u8),
    /// The tables start again.
    Forget,
    /// Time passes, and the tool cuts if it is time.
    Wait(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let frames = prop::collection::vec(0..12u8, 1..6);
    let sample = (0..4u8, frames, 0..60u8, 1..999u16, any::<bool>());
    prop_oneof![
        12 => sample.prop_map(|(thread, frames, late, value, awaited)| Step::Sample {
            thread, frames, late, value, awaited
        }),
        1 => (0..4u8).prop_map(Step::Rename),
        1 => (1..9u8).prop_map(Step::Lost),
        3 => Just(Step::Totals),
        1 => (1..9u8).prop_map(Step::Calls),
        2 => any::<u8>().prop_map(Step::Snapshot),
        1 => Just(Step::Forget),
        6 => (1..40u8).prop_map(Step::Wait),
    ]
}

/// An agent that writes as the real one does.
struct Agent {
    key: ProcessKey,
    now_ns: u64,
    threads: Vec<u8>,
    frames: HashMap<u8, u32>,
    stacks: HashMap<(Option<u32>, u32), u32>,
    next: [u32; 3],
    due_ns: u64,
    alive: Vec<u32>,
    allocations: u32,
    last: Option<(u32, u32)>,
}

impl Agent {
    fn new(key: u64, write: &mut impl FnMut(ProcessKey, Record<'static>)) -> Agent {
        let agent = Agent {
            key: ProcessKey(key),
            now_ns: 1_000,
            threads: Vec::new(),
            frames: HashMap::new(),
            stacks: HashMap::new(),
            next: [0; 3],
            due_ns: 0,
            alive: Vec::new(),
            allocations: 0,
            last: None,
        };
        for record in [
            Record::Process {
                pid: 7,
                parent: 1,
                command: "app".into(),
                unix_ns: UNIX + 1_000,
                time_ns: 1_000,
            },
            Record::Runtime {
                runtime: 0,
                version: "10.0.0".into(),
                recorded: true,
                refused_by: "".into(),
            },
            Record::Module {
                module: 0,
                kind: ModuleKind::Native,
                runtime: None,
                path: "libc.so".into(),
                bias: 0,
                id_bytes: vec![1].into(),
                file_offset: 0,
            },
            Record::Module {
                module: 1,
                kind: ModuleKind::Managed,
                runtime: Some(0),
                path: "app.dll".into(),
                bias: 0,
                id_bytes: vec![2].into(),
                file_offset: 0,
            },
        ] {
            write(agent.key, record);
        }
        agent.totals(write);
        agent
    }

    fn thread(&mut self, thread: u8, write: &mut impl FnMut(ProcessKey, Record<'static>)) -> u32 {
        if !self.threads.contains(&thread) {
            self.threads.push(thread);
            self.name_thread(thread, "first", write);
        }
        u32::from(thread)
    }

    fn name_thread(
        &self,
        thread: u8,
        name: &str,
        write: &mut impl FnMut(ProcessKey, Record<'static>),
    ) {
        write(
            self.key,
            Record::Thread {
                thread: thread.into(),
                tid: thread.into(),
                name: format!("{name} {thread}").into(),
                managed: true,
                time_ns: self.now_ns,
            },
        );
    }

    fn frame(&mut self, frame: u8, write: &mut impl FnMut(ProcessKey, Record<'static>)) -> u32 {
        if let Some(known) = self.frames.get(&frame) {
            return *known;
        }
        let [next, method, _] = &mut self.next;
        let number = *next;
        *next += 1;
        let value = if frame < 4 {
            Frame::Native {
                module: 0,
                svma: frame.into(),
            }
        } else {
            *method += 1;
            write(
                self.key,
                Record::Method {
                    method: *method - 1,
                    runtime: 0,
                    kind: MethodKind::Il,
                    module: Some(1),
                    token: frame.into(),
                    type_name: "T".into(),
                    name: format!("M{frame}").into(),
                },
            );
            Frame::Managed {
                method: *method - 1,
                tier: Tier::Tier1,
                il_offset: None,
            }
        };
        write(
            self.key,
            Record::Frame {
                frame: number,
                value,
            },
        );
        self.frames.insert(frame, number);
        number
    }

    fn stack(&mut self, frames: &[u8], write: &mut impl FnMut(ProcessKey, Record<'static>)) -> u32 {
        let mut parent = None;
        for frame in frames {
            let frame = self.frame(*frame, write);
            let known = self.stacks.get(&(parent, frame)).copied();
            let stack = known.unwrap_or_else(|| {
                let stack = self.next[2];
                self.next[2] += 1;
                self.stacks.insert((parent, frame), stack);
                write(
                    self.key,
                    Record::Stack {
                        stack,
                        parent,
                        frame,
                    },
                );
                stack
            });
            parent = Some(stack);
        }
        parent.unwrap()
    }

    fn step(&mut self, step: &Step, write: &mut impl FnMut(ProcessKey, Record<'static>)) {
        match step {
            Step::Sample {
                thread,
                frames,
                late,
                value,
                awaited,
            } => {
                let thread = self.thread(*thread, write);
                let stack = self.stack(frames, write);
                let logical = awaited.then(|| self.stack(&[5, 6, 7], write));
                self.due_ns += u64::from(*value);
                self.last = Some((thread, stack));
                write(
                    self.key,
                    Record::Sample {
                        thread,
                        stack,
                        time_ns: self.now_ns - u64::from(*late),
                        event: Event::Cpu,
                        value: (*value).into(),
                        end: WalkEnd::Root,
                        detail: None,
                        logical,
                    },
                );
            }
            Step::Rename(thread) if self.threads.contains(thread) => {
                self.name_thread(*thread, &format!("at {}", self.now_ns), write);
            }
            Step::Rename(_) => {}
            Step::Lost(count) => write(
                self.key,
                Record::Lost {
                    reason: "ring full".into(),
                    count: (*count).into(),
                },
            ),
            Step::Totals => self.totals(write),
            Step::Calls(calls) => {
                write(
                    self.key,
                    Record::Calls {
                        traced: 3,
                        time_ns: self.now_ns,
                        errors: 0,
                        sum_ns: 1,
                        max_ns: 1,
                        buckets: vec![(1, u64::from(*calls))].into(),
                    },
                );
                write(
                    self.key,
                    Record::Limited {
                        event: Event::Alloc,
                        count: (*calls).into(),
                        value: 1,
                    },
                );
            }
            Step::Snapshot(choice) => self.snapshot(*choice, write),
            Step::Forget => {
                self.frames.clear();
                self.stacks.clear();
            }
            Step::Wait(_) => {}
        }
    }

    fn totals(&self, write: &mut impl FnMut(ProcessKey, Record<'static>)) {
        let (time_ns, due_ns) = (self.now_ns, self.due_ns);
        write(
            self.key,
            Record::Stats {
                time_ns,
                agent_cpu_ns: 0,
                target_cpu_ns: due_ns + time_ns,
                agent_memory: 5,
                handler_ns: 0,
                due_ns: Some(due_ns),
                lost_ns: 0,
            },
        );
        write(
            self.key,
            Record::Unseen {
                reason: "unknown".into(),
                threads: 1,
                cpu_ns: time_ns,
            },
        );
        write(
            self.key,
            Record::Cost {
                part: CostPart::Ticks,
                modelled: true,
                count: due_ns,
                cpu_ns: due_ns,
                name: "tick".into(),
            },
        );
    }

    fn snapshot(&mut self, choice: u8, write: &mut impl FnMut(ProcessKey, Record<'static>)) {
        let Some((thread, stack)) = self.last else {
            return;
        };
        let time_ns = self.now_ns;
        let gone = match (choice % 3, self.alive.is_empty()) {
            (0, false) => vec![
                self.alive
                    .swap_remove(usize::from(choice) % self.alive.len()),
            ],
            _ => Vec::new(),
        };
        if choice.is_multiple_of(5) {
            let allocations = gone.into();
            write(
                self.key,
                Record::Thinned {
                    time_ns,
                    allocations,
                },
            );
        } else {
            let allocations = gone.into();
            write(
                self.key,
                Record::Gone {
                    time_ns,
                    allocations,
                },
            );
        }
        let allocation = self.allocations;
        self.allocations += 1;
        self.alive.push(allocation);
        write(
            self.key,
            Record::Survivor {
                allocation,
                thread,
                stack,
                logical: None,
                time_ns: time_ns / 2,
                end: WalkEnd::Root,
                bytes: 10,
                size: 1,
                collections: 0,
                detail: None,
            },
        );
        write(
            self.key,
            Record::Instant {
                time_ns,
                collections: 0,
            },
        );
    }

    fn end(&self, write: &mut impl FnMut(ProcessKey, Record<'static>)) {
        self.totals(write);
        let time_ns = self.now_ns;
        write(self.key, Record::End { time_ns });
    }
}

/// The intervals of what two agents write, of this length, cut so much later than they end.
fn cut(steps: &[(bool, Step)], length_ns: u64, settle_ns: u64) -> (Content, Vec<Content>) {
    let mut stream: Vec<(ProcessKey, Record<'static>)> = Vec::new();
    let mut cutter = Cutter::new(clocks(1_000), 1_000 + length_ns);
    let mut end_ns = 1_000 + length_ns;
    let mut files = Vec::new();
    let mut write = |cutter: &mut Cutter, key, record: Record<'static>| {
        cutter.record(key, &record);
        stream.push((key, record));
    };
    let mut agents: Vec<Agent> = Vec::new();
    for key in [1, 2] {
        agents.push(Agent::new(key, &mut |key, record| {
            write(&mut cutter, key, record)
        }));
    }
    let mut file = file_header("test");
    for (second, step) in steps {
        if let Step::Wait(time) = step {
            agents
                .iter_mut()
                .for_each(|agent| agent.now_ns += u64::from(*time));
        }
        let agent = &mut agents[usize::from(*second)];
        agent.step(step, &mut |key, record| write(&mut cutter, key, record));
        let now_ns = agents[0].now_ns;
        cutter.take_blocks(&mut file);
        while now_ns >= end_ns + settle_ns {
            end_ns += length_ns;
            cutter.cut(clocks(now_ns), end_ns, &mut file);
            files.push(std::mem::replace(&mut file, file_header("test")));
        }
    }
    for agent in &agents {
        agent.end(&mut |key, record| write(&mut cutter, key, record));
    }
    let now_ns = agents[0].now_ns;
    while cutter.has_next() || now_ns >= end_ns {
        end_ns += length_ns;
        cutter.cut(clocks(now_ns), end_ns, &mut file);
        files.push(std::mem::replace(&mut file, file_header("test")));
    }
    cutter.finish(now_ns, &mut file);
    files.push(file);
    let intervals = files.iter().map(|file| Content::of_file(file)).collect();
    (Content::of(stream), intervals)
}

proptest! {
    #[test]
    fn intervals_add_up_to_the_stream(
        steps in prop::collection::vec((any::<bool>(), step()), 1..200),
        length_ns in 30..400u64,
        settle_ns in 0..80u64,
    ) {
        let (whole, intervals) = cut(&steps, length_ns, settle_ns);
        let mut samples: Vec<_> = intervals.iter().flat_map(|one| one.samples.clone()).collect();
        samples.sort();
        prop_assert_eq!(&samples, &whole.samples);
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (name, value) in intervals.iter().flat_map(|one| &one.sums) {
            *sums.entry(name.clone()).or_default() += value;
        }
        prop_assert_eq!(&sums, &whole.sums);
        // The live heap is a state: the last interval of a process ends with it.
        let mut live: BTreeMap<String, u64> = BTreeMap::new();
        for interval in &intervals {
            for (key, ..) in &interval.begun {
                live.retain(|text, _| !text.starts_with(&format!("{key} ")));
            }
            live.extend(interval.live.clone());
        }
        prop_assert_eq!(&live, &whole.live);
        let mut start_ns = 1_000;
        for (at, interval) in intervals.iter().enumerate() {
            let end_ns = start_ns + length_ns;
            for (_, begun_ns, unix_ns) in &interval.begun {
                prop_assert_eq!(*begun_ns, start_ns);
                prop_assert_eq!(*unix_ns, UNIX + begun_ns);
            }
            for ended_ns in &interval.ended {
                prop_assert!(*ended_ns >= start_ns && *ended_ns <= end_ns);
            }
            // Late ones may be older than the interval; newer ones only if it is cut too late.
            let is_last = at + 1 == intervals.len() || settle_ns + 40 > length_ns;
            prop_assert!(interval.times.iter().all(|time| is_last || *time < end_ns));
            if settle_ns >= 60 {
                prop_assert!(interval.times.iter().all(|time| at == 0 || *time >= start_ns));
            }
            start_ns = end_ns;
        }
    }
}

/// CPU time that is due is that of the interval's samples, although totals come at other times.
#[test]
fn due_time_is_that_of_the_samples() {
    let sample = |thread| Step::Sample {
        thread,
        frames: vec![4, 5],
        late: 0,
        value: 10,
        awaited: false,
    };
    let mut steps = Vec::new();
    for at in 0..100 {
        steps.extend([(false, sample(0)), (false, Step::Wait(10))]);
        if at % 7 == 3 {
            steps.push((false, Step::Totals));
        }
    }
    let (_, intervals) = cut(&steps, 100, 40);
    for interval in &intervals {
        let due = interval.sums.get("1 due").copied().unwrap_or(0);
        assert_eq!(due, 10 * interval.samples.len() as u64);
    }
    assert!(intervals.len() >= 10);
}

#[test]
fn a_killed_process_has_no_end_and_no_later_interval() {
    let mut cutter = Cutter::new(clocks(1_000), 1_100);
    let mut agent = Agent::new(1, &mut |key, record| cutter.record(key, &record));
    let sample = Step::Sample {
        thread: 0,
        frames: vec![4],
        late: 0,
        value: 1,
        awaited: false,
    };
    agent.step(&sample, &mut |key, record| cutter.record(key, &record));
    cutter.disconnected(ProcessKey(1));
    let mut first = file_header("test");
    cutter.cut(clocks(1_150), 1_200, &mut first);
    let first = Content::of_file(&first);
    assert_eq!((first.samples.len(), first.ended.len()), (1, 0));
    let mut second = file_header("test");
    cutter.cut(clocks(1_250), 1_300, &mut second);
    assert_eq!(second, file_header("test"));
}

/// A program that never stops making new stacks.
#[test]
fn old_definitions_are_dropped() {
    let mut cutter = Cutter::new(clocks(1_000), 1_001);
    let mut agent = Agent::new(1, &mut |key, record| cutter.record(key, &record));
    agent.thread(0, &mut |key, record| cutter.record(key, &record));
    let frame = agent.frame(4, &mut |key, record| cutter.record(key, &record));
    let (mut stack, mut end_ns) = (0, 1_001);
    let write = |cutter: &mut Cutter, parent, stack| {
        cutter.record(
            ProcessKey(1),
            &Record::Stack {
                stack,
                parent,
                frame,
            },
        );
    };
    write(&mut cutter, None, 0);
    let limit = u32::try_from(limits::STACKS).unwrap();
    for _ in 0..12 {
        for _ in 0..limit / 2 {
            stack += 1;
            write(&mut cutter, Some(0), stack);
        }
        for used in [stack, stack - limit / 2 + 1] {
            cutter.record(
                ProcessKey(1),
                &Record::Sample {
                    thread: 0,
                    stack: used,
                    time_ns: end_ns - 1,
                    event: Event::Cpu,
                    value: 1,
                    end: WalkEnd::Root,
                    detail: None,
                    logical: None,
                },
            );
        }
        let mut file = file_header("test");
        end_ns += 1;
        cutter.cut(clocks(end_ns), end_ns, &mut file);
        assert_eq!(Content::of_file(&file).samples.len(), 2);
    }
    assert!(
        cutter.definitions() < 4 * limits::STACKS,
        "{}",
        cutter.definitions()
    );
}

/// It is not in the interval that has ended and is not cut yet.
#[test]
fn a_process_begins_between_the_end_of_an_interval_and_its_cut() {
    for has_ended in [false, true] {
        let mut cutter = Cutter::new(clocks(500), 900);
        let mut agent = Agent::new(1, &mut |key, record| cutter.record(key, &record));
        let lost = Step::Lost(3);
        agent.step(&lost, &mut |key, record| cutter.record(key, &record));
        if has_ended {
            agent.end(&mut |key, record| cutter.record(key, &record));
        }
        let mut first = file_header("test");
        cutter.cut(clocks(1_000), 1_300, &mut first);
        assert_eq!(first, file_header("test"));
        let mut second = file_header("test");
        cutter.finish(1_200, &mut second);
        let second = Content::of_file(&second);
        assert_eq!(second.begun, [(1, 1_000, UNIX + 1_000)]);
        assert_eq!(second.sums.get("1 lost ring full"), Some(&3));
        assert_eq!(second.ended.len(), usize::from(has_ended));
    }
}

/// An interval that begins after the clock was set has the new time.
#[test]
fn a_step_of_the_wall_clock_is_followed_and_noise_is_not() {
    let mut cutter = Cutter::new(clocks(1_000), 2_000);
    let _agent = Agent::new(1, &mut |key, record| cutter.record(key, &record));
    let mut begun = Vec::new();
    let (hour, noise) = (3_600_000_000_000, 999_999);
    for (at, offset) in [noise, 0, hour, hour, hour + noise].into_iter().enumerate() {
        let end_ns = 2_000 + 1_000 * at as u64;
        let mut file = file_header("test");
        let now = ClockReading {
            time_ns: end_ns,
            unix_ns: UNIX + end_ns + offset,
        };
        cutter.cut(now, end_ns + 1_000, &mut file);
        let (_, time_ns, unix_ns) = Content::of_file(&file).begun[0];
        begun.push(unix_ns - UNIX - time_ns);
    }
    // The interval that was open had begun by the old time.
    assert_eq!(begun, [0, 0, 0, 0, hour]);
}
