//! The Firefox Profiler's processed format: one track a thread, coloured by kind of frame.
//!
//! The crate fxprof-processed-profile writes the file. The samples of the main event are their
//! thread's track. A further event that is sampled by time or by bytes, and calls, have a track of
//! their own beside it (`Worker (wall)`), because a track has one unit. Rare events are markers
//! with a stack. Invariant: every sample of the main event is in the file, at its time, weighted by
//! the intervals that it represents.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::time::Duration;

use fxprof_processed_profile as fx;
use profile::Profile;
use profile::model::{
    Event, Frame, FrameId, FrameKind, Pause, Sample, StackId, StringId, ThreadId, Tier, Unit,
};
use profile::ops::Runtimes;

use crate::labels::{Labels, kind_name, tier_name};
use crate::options::{OutputOptions, WeightBy};
use crate::select::{Selection, unit_name, with_details_shown};
use crate::text::with_module;
use crate::visible::{visible, write_json};
use crate::wording::amount;

/// Writes `profile`, the samples of [`OutputOptions::event`] as the tracks of threads.
///
/// Options: `event`, `details`, `title`; `weight`: `Samples` makes every sample one, else a sample
/// of time counts the intervals in its value, and one of allocation its bytes.
///
/// # Errors
/// Those of `out`.
pub fn write(profile: &Profile, options: &OutputOptions, mut out: impl Write) -> io::Result<()> {
    let profile = &*with_details_shown(profile, options);
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
    // The file contains all names, so the reader looks up none.
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
            if selection.by_value && selection.event.unit() == Unit::Bytes {
                to.set_thread_samples_weight_type(handle, fx::WeightType::Bytes);
            }
            handle
        })
        .collect();
    // Tracks of further events, where there are samples for them.
    let mut beside: BTreeMap<(u8, ThreadId), fx::ThreadHandle> = BTreeMap::new();
    for sample in &profile.samples {
        if sample.event == selection.event || !is_track(sample.event) {
            continue;
        }
        let of = profile.thread(sample.thread);
        beside
            .entry((sample.event as u8, sample.thread))
            .or_insert_with(|| {
                let process = processes[of.process.0 as usize];
                let handle = to.add_thread(process, of.tid, since(of.start_ns), false);
                let name = format!("{} ({})", visible(&of.name), sample.event.name());
                to.set_thread_name(handle, &name);
                if sample.event.unit() == Unit::Bytes && options.weight != WeightBy::Samples {
                    to.set_thread_samples_weight_type(handle, fx::WeightType::Bytes);
                }
                handle
            });
    }

    show_busiest(&mut to, profile, &threads, &beside);
    let categories = Categories::new(&mut to, profile);
    let mut stacks = StackTable {
        profile,
        labels: &labels,
        categories,
        frames: HashMap::new(),
        stacks: HashMap::new(),
    };
    let mut weights = SampleWeights {
        profile,
        samples: options.weight == WeightBy::Samples,
        left: HashMap::new(),
    };
    for sample in &profile.samples {
        let thread = threads[sample.thread.0 as usize];
        if is_marker(sample.event) {
            let stack = stacks.stack(&mut to, thread, sample.stack);
            let marker = EventMarker::new(&mut to, stacks.categories.events, profile, sample);
            let at = match sample.event.unit() {
                Unit::Nanoseconds => {
                    let begin = sample.time_ns.saturating_sub(sample.value);
                    fx::MarkerTiming::Interval(since(begin), since(sample.time_ns))
                }
                _ => fx::MarkerTiming::Instant(since(sample.time_ns)),
            };
            let marker = to.add_marker(thread, at, marker);
            to.set_marker_stack(thread, marker, stack);
        }
        let thread = if sample.event == selection.event {
            thread
        } else if let Some(&thread) = beside.get(&(sample.event as u8, sample.thread)) {
            thread
        } else {
            continue;
        };
        let stack = stacks.stack(&mut to, thread, sample.stack);
        let cpu = match sample.event {
            Event::Cpu => fx::CpuDelta::from_nanos(sample.value),
            _ => fx::CpuDelta::ZERO,
        };
        let weight = weights.of(thread, sample.event, sample.value);
        to.add_sample(thread, since(sample.time_ns), stack, cpu, weight);
    }
    for pause in &profile.pauses {
        // On the process's first track: every thread of it stood.
        let first = profile
            .threads
            .iter()
            .position(|t| t.process == pause.process);
        let Some(&thread) = first.and_then(|at| threads.get(at)) else {
            continue;
        };
        let begin = pause.time_ns.saturating_sub(pause.stopped_ns);
        let at = fx::MarkerTiming::Interval(since(begin), since(pause.time_ns));
        let marker = EventMarker::pause(&mut to, stacks.categories.events, pause);
        to.add_marker(thread, at, marker);
    }
    write_json(&mut out, &to)?;
    out.flush()
}

/// Events whose samples add up to something over time: they are the samples of a track.
fn is_track(event: Event) -> bool {
    matches!(
        event,
        Event::Cpu | Event::Wall | Event::Alloc | Event::Live | Event::Call
    )
}

/// Events that happen now and then.
fn is_marker(event: Event) -> bool {
    !matches!(event, Event::Cpu | Event::Wall | Event::Call)
}

/// One event, at its time on its thread.
struct EventMarker {
    category: fx::CategoryHandle,
    /// The event.
    name: fx::StringHandle,
    about: fx::StringHandle,
    text: fx::StringHandle,
    value: fx::StringHandle,
}

impl EventMarker {
    fn new(
        to: &mut fx::Profile,
        category: fx::CategoryHandle,
        profile: &Profile,
        sample: &Sample,
    ) -> Self {
        let detail = sample.detail.map(|id| profile.detail(id));
        let string_handle = |string: Option<StringId>| {
            let text = string.map_or("", |id| profile.string(id));
            if text.is_empty() {
                Cow::Borrowed("")
            } else {
                visible(text)
            }
        };
        let about = string_handle(detail.map(|detail| detail.name));
        let text = string_handle(detail.map(|detail| detail.text));
        let value = amount(sample.value, unit_name(sample.event.unit()));
        Self {
            category,
            name: to.intern_string(sample.event.name()),
            about: to.intern_string(&about),
            text: to.intern_string(&text),
            value: to.intern_string(&value),
        }
    }

    fn pause(to: &mut fx::Profile, category: fx::CategoryHandle, pause: &Pause) -> Self {
        let time = |ns| amount(ns, "nanoseconds");
        let text = format!("{} until it had stopped", time(pause.stopping_ns));
        Self {
            category,
            name: to.intern_string("runtime stopped"),
            about: to.intern_string("for a walk"),
            text: to.intern_string(&text),
            value: to.intern_string(&time(pause.stopped_ns)),
        }
    }
}

impl fx::StaticSchemaMarker for EventMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "sidewalk event";
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.about}");
    const TABLE_LABEL: Option<&'static str> =
        Some("{marker.data.about} {marker.data.text} {marker.data.value}");
    const FIELDS: &'static [fx::StaticSchemaMarkerField] = &[
        fx::StaticSchemaMarkerField {
            key: "about",
            label: "About",
            format: fx::MarkerFieldFormat::String,
            flags: fx::MarkerFieldFlags::SEARCHABLE,
        },
        fx::StaticSchemaMarkerField {
            key: "text",
            label: "Text",
            format: fx::MarkerFieldFormat::SanitizedString,
            flags: fx::MarkerFieldFlags::SEARCHABLE,
        },
        fx::StaticSchemaMarkerField {
            key: "value",
            label: "Value",
            format: fx::MarkerFieldFormat::String,
            flags: fx::MarkerFieldFlags::empty(),
        },
    ];

    fn name(&self, _: &mut fx::Profile) -> fx::StringHandle {
        self.name
    }

    fn category(&self, _: &mut fx::Profile) -> fx::CategoryHandle {
        self.category
    }

    fn string_field_value(&self, field: u32) -> fx::StringHandle {
        match field {
            0 => self.about,
            1 => self.text,
            _ => self.value,
        }
    }

    fn number_field_value(&self, _: u32) -> f64 {
        // No field is a number.
        0.0
    }
}

/// Weights of samples, as integers.
///
/// They are intervals of time, bytes or pieces; 1 for an event that takes time of its own. A sample
/// of time need not be whole intervals (walker `shadow` measures it): what is left over goes to the
/// next sample of its track, so that a track's weights add up to its time.
struct SampleWeights<'p> {
    profile: &'p Profile,
    /// Each sample is one.
    samples: bool,
    /// By track: nanoseconds that no sample weighs yet, or that samples weigh too much.
    left: HashMap<fx::ThreadHandle, i128>,
}

impl SampleWeights<'_> {
    fn of(&mut self, track: fx::ThreadHandle, event: Event, value: u64) -> i32 {
        if self.samples {
            return 1;
        }
        if event.unit() != Unit::Nanoseconds {
            return i32::try_from(value).unwrap_or(i32::MAX);
        }
        let interval = i128::from(self.profile.health.interval_of(event).unwrap_or(0));
        if interval == 0 {
            return 1;
        }
        let left = self.left.entry(track).or_default();
        let due = *left + i128::from(value);
        let intervals = (due + interval / 2).div_euclid(interval).max(0);
        *left = due - intervals * interval;
        i32::try_from(intervals).unwrap_or(i32::MAX)
    }
}

/// One category for each kind of frame; tiers are subcategories of managed code. Where frames of
/// several CLRs occur, managed code and stubs of each are a category of their own.
struct Categories {
    runtimes: Runtimes,
    kinds: Vec<(FrameKind, fx::CategoryPairHandle)>,
    /// By the CLR that frames are told apart by; `None` is code of no CLR, or of the only one.
    managed: Vec<(Option<u32>, fx::CategoryPairHandle, TierPairs)>,
    stubs: Vec<(u32, fx::CategoryPairHandle)>,
    /// Of markers.
    events: fx::CategoryHandle,
}

type TierPairs = Vec<(Tier, fx::CategoryPairHandle)>;

/// Colours of managed code by CLR, the first where there is one.
const MANAGED: [fx::CategoryColor; 4] = [
    fx::CategoryColor::Green,
    fx::CategoryColor::Yellow,
    fx::CategoryColor::LightGreen,
    fx::CategoryColor::Brown,
];

/// The Firefox Profiler opens with the tracks that it takes for busy, by a measure made for
/// browsers: it is told which to show.
fn show_busiest(
    to: &mut fx::Profile,
    profile: &Profile,
    threads: &[fx::ThreadHandle],
    beside: &BTreeMap<(u8, ThreadId), fx::ThreadHandle>,
) {
    /// More would not be seen anyway.
    const MAX_TRACKS: usize = 50;
    let mut samples = vec![0_u64; threads.len()];
    for sample in &profile.samples {
        samples[sample.thread.0 as usize] += 1;
    }
    let mut busiest: Vec<usize> = (0..threads.len()).filter(|&at| samples[at] > 0).collect();
    busiest.sort_by_key(|&at| std::cmp::Reverse(samples[at]));
    for (nth, &at) in busiest.iter().take(MAX_TRACKS).enumerate() {
        to.add_initial_visible_thread(threads[at]);
        if nth == 0 {
            to.add_initial_selected_thread(threads[at]);
        }
        let tracks = beside.iter().filter(|((_, of), _)| of.0 as usize == at);
        for (_, &track) in tracks {
            to.add_initial_visible_thread(track);
        }
    }
}

impl Categories {
    fn new(to: &mut fx::Profile, profile: &Profile) -> Self {
        let runtimes = Runtimes::new(profile);
        let mut managed = Vec::new();
        let mut add = |to: &mut fx::Profile, runtime, name: &str, color| {
            let category = to.add_category(name, color);
            let known = Tier::ALL.into_iter().filter(|tier| *tier != Tier::Unknown);
            let tiers = known
                .map(|tier| (tier, to.add_subcategory(category, tier_name(tier))))
                .collect();
            managed.push((runtime, category.into(), tiers));
        };
        add(to, None, kind_name(FrameKind::Managed), MANAGED[0]);
        let mut stubs = Vec::new();
        if runtimes.several {
            for (at, label) in (0..).zip(&runtimes.labels) {
                let name = |kind| format!("{} [{}]", kind_name(kind), visible(label));
                let color = MANAGED[at as usize % MANAGED.len()];
                add(to, Some(at), &name(FrameKind::Managed), color);
                let stub = to.add_category(&name(FrameKind::Stub), fx::CategoryColor::Purple);
                stubs.push((at, stub.into()));
            }
        }
        let kinds = [
            (FrameKind::Runtime, fx::CategoryColor::Blue),
            (FrameKind::Native, fx::CategoryColor::Orange),
            (FrameKind::Stub, fx::CategoryColor::Purple),
            (FrameKind::Pseudo, fx::CategoryColor::Red),
            (FrameKind::Unknown, fx::CategoryColor::Gray),
            (FrameKind::Detail, fx::CategoryColor::Magenta),
            (FrameKind::Async, fx::CategoryColor::LightBlue),
        ];
        let has_async = profile.frames.iter().any(|f| f.kind == FrameKind::Async);
        let kinds = kinds
            .into_iter()
            .filter(|(kind, _)| {
                // Nothing is about anything in most profiles, and nothing awaits in many.
                match kind {
                    FrameKind::Detail => !profile.details.is_empty(),
                    FrameKind::Async => has_async,
                    _ => true,
                }
            })
            .map(|(kind, color)| (kind, to.add_category(kind_name(kind), color).into()))
            .collect();
        let has_markers = !profile.pauses.is_empty()
            || profile.samples.iter().any(|sample| is_marker(sample.event));
        let events = if has_markers {
            to.add_category("events", fx::CategoryColor::Magenta)
        } else {
            fx::CategoryHandle::OTHER
        };
        Self {
            runtimes,
            kinds,
            managed,
            stubs,
            events,
        }
    }

    fn of(&self, frame: &Frame) -> fx::CategoryPairHandle {
        let runtime = self.runtimes.label_index(frame);
        let found = match frame.kind {
            FrameKind::Managed => {
                let of_runtime = self.managed.iter().find(|(of, ..)| *of == runtime);
                of_runtime.map(|(_, category, tiers)| {
                    let exact = tiers.iter().find(|(tier, _)| *tier == frame.tier);
                    exact.map_or(*category, |(_, pair)| *pair)
                })
            }
            FrameKind::Stub if runtime.is_some() => {
                let of_runtime = self.stubs.iter().find(|(of, _)| Some(*of) == runtime);
                of_runtime.map(|(_, pair)| *pair)
            }
            kind => {
                let of_kind = self.kinds.iter().find(|(of, _)| *of == kind);
                of_kind.map(|(_, pair)| *pair)
            }
        };
        found.unwrap_or(fx::CategoryHandle::OTHER.into())
    }
}

/// Stacks and frames of each thread: the format shares none between threads.
struct StackTable<'a, 'p> {
    profile: &'p Profile,
    labels: &'a Labels<'p>,
    categories: Categories,
    frames: HashMap<(fx::ThreadHandle, FrameId), fx::FrameHandle>,
    stacks: HashMap<(fx::ThreadHandle, StackId), fx::StackHandle>,
}

impl StackTable<'_, '_> {
    fn stack(
        &mut self,
        to: &mut fx::Profile,
        thread: fx::ThreadHandle,
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
            let frame = self.frame(to, thread, self.profile.stack(stack).frame);
            let made = to.intern_stack(thread, parent, frame);
            self.stacks.insert((thread, stack), made);
            parent = Some(made);
        }
        parent
    }

    fn frame(
        &mut self,
        to: &mut fx::Profile,
        thread: fx::ThreadHandle,
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
            category_pair: self.categories.of(frame),
            flags: fx::FrameFlags::empty(),
        };
        let made = to.intern_frame(thread, info);
        self.frames.insert((thread, id), made);
        made
    }
}
