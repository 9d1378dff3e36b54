//! The Firefox Profiler's processed format: one track a thread, coloured by kind of frame.
//!
//! What the file looks like is the crate fxprof-processed-profile's matter. The invariant: every
//! sample of the event is there, at its time, with as many intervals as it stands for.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use fxprof_processed_profile as fx;
use profile::Profile;
use profile::model::{Event, FrameId, FrameKind, StackId, ThreadId, Tier};

use crate::labels::{Labels, kind_name, tier_name};
use crate::options::{Options, Weight};
use crate::select::Selection;
use crate::text::with_module;
use crate::visible::visible;

/// Writes one event of `profile` ([`Options::event`]).
///
/// Options: `event`, `title`; `weight`: `Samples` makes every sample one, else a sample of time
/// counts the intervals in its value, and one of allocation its bytes.
///
/// # Errors
/// Those of `out`.
pub fn write(profile: &Profile, options: &Options, mut out: impl Write) -> io::Result<()> {
    let labels = Labels::new(profile);
    let selection = Selection::new(profile, options, false);
    let start = profile
        .processes
        .iter()
        .map(|p| p.start_ns)
        .min()
        .unwrap_or(0);
    let since = |ns: u64| fx::Timestamp::from_nanos_since_reference(ns.saturating_sub(start));
    let unix = profile.processes.first().map_or(0, |p| p.start_unix_ns);
    let mut to = fx::Profile::new(
        &labels.title(options.title.as_deref()),
        fx::ReferenceTimestamp::from_duration_since_unix_epoch(Duration::from_nanos(unix)),
        fx::SamplingInterval::from_nanos(profile.health.interval_ns.max(1)),
    );
    to.set_os_name("Linux");
    // Names are in the file: there is nothing to be looked up.
    to.set_symbolicated(true);

    let processes: Vec<fx::ProcessHandle> = profile
        .processes
        .iter()
        .map(|p| {
            let handle = to.add_process(&visible(&p.name()), p.pid, since(p.start_ns));
            to.set_process_end_time(handle, since(p.end_ns));
            handle
        })
        .collect();
    let threads: Vec<fx::ThreadHandle> = profile
        .threads
        .iter()
        .map(|t| {
            let is_main = t.tid == profile.process(t.process).pid;
            let process = processes[t.process.0 as usize];
            let handle = to.add_thread(process, t.tid, since(t.start_ns), is_main);
            to.set_thread_name(handle, &visible(&t.name));
            if let Some(end) = t.end_ns {
                to.set_thread_end_time(handle, since(end));
            }
            if selection.by_value && selection.event == Event::Alloc {
                to.set_thread_samples_weight_type(handle, fx::WeightType::Bytes);
            }
            handle
        })
        .collect();

    let categories = Categories::new(&mut to);
    let mut stacks = Stacks {
        profile,
        labels: &labels,
        categories,
        frames: HashMap::new(),
        stacks: HashMap::new(),
    };
    for sample in selection.samples(profile) {
        let thread = threads[sample.thread.0 as usize];
        let stack = stacks.stack(&mut to, sample.thread, thread, sample.stack);
        let cpu = match sample.event {
            Event::Cpu => fx::CpuDelta::from_nanos(sample.value),
            _ => fx::CpuDelta::ZERO,
        };
        let weight = weight(profile, options, sample.event, sample.value);
        to.add_sample(thread, since(sample.time_ns), stack, cpu, weight);
    }
    serde_json::to_writer(&mut out, &to)?;
    out.flush()
}

/// The weight of a sample: intervals of time, bytes, else 1.
fn weight(profile: &Profile, options: &Options, event: Event, value: u64) -> i32 {
    let interval = profile.health.interval_ns;
    match event {
        _ if options.weight == Weight::Samples => 1,
        Event::Cpu | Event::Wall if Some(event) == profile.health.event && interval > 0 => {
            let intervals = value.saturating_add(interval / 2) / interval;
            i32::try_from(intervals.max(1)).unwrap_or(i32::MAX)
        }
        Event::Alloc => i32::try_from(value).unwrap_or(i32::MAX),
        _ => 1,
    }
}

/// One category for each kind of frame; tiers are subcategories of managed code.
struct Categories {
    kinds: Vec<(FrameKind, fx::CategoryPairHandle)>,
    tiers: Vec<(Tier, fx::CategoryPairHandle)>,
}

impl Categories {
    fn new(to: &mut fx::Profile) -> Self {
        let kinds = [
            (FrameKind::Managed, fx::CategoryColor::Green),
            (FrameKind::Runtime, fx::CategoryColor::Blue),
            (FrameKind::Native, fx::CategoryColor::Orange),
            (FrameKind::Stub, fx::CategoryColor::Purple),
            (FrameKind::Pseudo, fx::CategoryColor::Red),
            (FrameKind::Unknown, fx::CategoryColor::Gray),
        ];
        let mut tiers = Vec::new();
        let kinds = kinds
            .into_iter()
            .map(|(kind, color)| {
                let category = to.add_category(kind_name(kind), color);
                if kind == FrameKind::Managed {
                    tiers = TIERS
                        .iter()
                        .map(|&tier| (tier, to.add_subcategory(category, tier_name(tier))))
                        .collect();
                }
                (kind, category.into())
            })
            .collect();
        Self { kinds, tiers }
    }

    fn of(&self, kind: FrameKind, tier: Tier) -> fx::CategoryPairHandle {
        let tiers = self.tiers.iter().filter(|_| kind == FrameKind::Managed);
        let exact = tiers
            .into_iter()
            .find(|(t, _)| *t == tier)
            .map(|(_, pair)| *pair);
        let of_kind = || {
            self.kinds
                .iter()
                .find(|(k, _)| *k == kind)
                .map(|(_, pair)| *pair)
        };
        exact
            .or_else(of_kind)
            .unwrap_or(fx::CategoryHandle::OTHER.into())
    }
}

/// Tiers that are known.
const TIERS: [Tier; 8] = [
    Tier::Tier0,
    Tier::Tier0Instrumented,
    Tier::Tier1Instrumented,
    Tier::Tier1,
    Tier::Osr,
    Tier::ReadyToRun,
    Tier::Optimized,
    Tier::MinOpts,
];

/// Stacks and frames of each thread: the format shares none between threads.
struct Stacks<'a, 'p> {
    profile: &'p Profile,
    labels: &'a Labels<'p>,
    categories: Categories,
    frames: HashMap<(ThreadId, FrameId), fx::FrameHandle>,
    stacks: HashMap<(ThreadId, StackId), fx::StackHandle>,
}

impl Stacks<'_, '_> {
    fn stack(
        &mut self,
        to: &mut fx::Profile,
        thread: ThreadId,
        handle: fx::ThreadHandle,
        id: StackId,
    ) -> Option<fx::StackHandle> {
        // From the leaf to the first caller that is there, then back.
        let mut missing = Vec::new();
        let mut next = Some(id);
        let mut parent = None;
        while let Some(stack) = next {
            if let Some(&known) = self.stacks.get(&(thread, stack)) {
                parent = Some(known);
                break;
            }
            missing.push(stack);
            next = self.profile.stack(stack).parent;
        }
        for stack in missing.into_iter().rev() {
            let frame = self.frame(to, thread, handle, self.profile.stack(stack).frame);
            let made = to.intern_stack(handle, parent, frame);
            self.stacks.insert((thread, stack), made);
            parent = Some(made);
        }
        parent
    }

    fn frame(
        &mut self,
        to: &mut fx::Profile,
        thread: ThreadId,
        handle: fx::ThreadHandle,
        id: FrameId,
    ) -> fx::FrameHandle {
        if let Some(&known) = self.frames.get(&(thread, id)) {
            return known;
        }
        let frame = self.profile.frame(id);
        let name = self.labels.name(id);
        let native = matches!(frame.kind, FrameKind::Native | FrameKind::Runtime);
        let module = frame
            .module
            .filter(|_| native)
            .map(|m| self.profile.module(m).file_name());
        let label = match module {
            Some(module) => to.intern_string(&with_module(name, &visible(module))),
            None => to.intern_string(name),
        };
        let info = fx::FrameInfo {
            frame: fx::Frame::Label(label),
            category_pair: self.categories.of(frame.kind, frame.tier),
            flags: fx::FrameFlags::empty(),
        };
        let made = to.intern_frame(handle, info);
        self.frames.insert((thread, id), made);
        made
    }
}
