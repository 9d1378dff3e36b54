//! The Firefox Profiler's processed format: one track a thread, coloured by kind of frame.
//!
//! The samples of the main event are their thread's track. A further event that is sampled by time
//! or by bytes, and calls, have a track of their own beside it (`Worker (wall)`), because a track
//! has one unit. Rare events are markers with a stack. Invariants: every sample of the main event
//! is in the file, at its time, weighted by the intervals that it represents; tracks are made and
//! written one after the other, so memory beside the profile is four bytes for each sample and
//! stack, and the tables of one track.

mod categories;
mod file;
mod json;
mod tables;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};

use profile::Profile;
use profile::model::{Event, FrameKind, Pause, Sample, ThreadId, Unit};

use self::categories::Categories;
use self::file::File;
use self::tables::SharedTables;
use crate::labels::{FrameKeys, Labels};
use crate::options::{OutputOptions, WeightBy};
use crate::select::{Selection, with_details_shown};
use crate::text::with_module;
use crate::visible::visible;

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
    let categories = Categories::new(profile);
    let samples = SamplesByThread::new(profile);
    let shared = shared_tables(profile, &labels, &categories);
    let tracks = Tracks::new(profile, &samples, selection, options.weight);
    let file = File {
        profile,
        start_ns: start_ns(profile),
        title: &labels.title(options.title.as_deref()),
        categories: &categories,
        shared: &shared,
        samples: &samples,
        tracks: &tracks,
        counts_samples: options.weight == WeightBy::Samples,
    };
    file.write(&mut out)?;
    out.flush()
}

/// Time 0 of the file.
fn start_ns(profile: &Profile) -> u64 {
    let starts = profile.processes.iter().map(|process| process.start_ns);
    starts.min().unwrap_or(0)
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

/// Labels and categories of frames, and stacks of them.
fn shared_tables(profile: &Profile, labels: &Labels, categories: &Categories) -> SharedTables {
    let label = |id| {
        let frame = profile.frame(id);
        let name = labels.name(id);
        let native = matches!(frame.kind, FrameKind::Native | FrameKind::Runtime);
        match frame.module.filter(|_| native) {
            Some(module) => with_module(name, &visible(profile.module(module).file_name())),
            None => name.to_owned(),
        }
    };
    let of = |id| (label(id), categories.of(profile.frame(id)));
    let keys = FrameKeys::new(profile, of);
    SharedTables::new(profile, &keys, keys.first.iter().map(|&id| of(id)))
}

/// The samples of each thread, by time.
struct SamplesByThread {
    /// Indices of samples, by thread.
    order: Vec<u32>,
}

impl SamplesByThread {
    fn new(profile: &Profile) -> Self {
        let mut order: Vec<u32> = (0..profile.samples.len() as u32).collect();
        order.sort_unstable_by_key(|&at| (profile.samples[at as usize].thread, at));
        Self { order }
    }

    fn of<'p>(
        &self,
        profile: &'p Profile,
        thread: ThreadId,
    ) -> impl ExactSizeIterator<Item = &'p Sample> {
        let of = |at: &u32| profile.samples[*at as usize].thread;
        let from = self.order.partition_point(|at| of(at) < thread);
        let to = self.order.partition_point(|at| of(at) <= thread);
        self.order[from..to]
            .iter()
            .map(|&at| &profile.samples[at as usize])
    }
}

/// A row of the timeline: samples of one event of a thread.
struct Track<'p> {
    thread: ThreadId,
    /// The event of its samples.
    event: Event,
    name: String,
    /// Thread id, with a suffix where another track has the same.
    tid: String,
    is_main: bool,
    start_ns: u64,
    end_ns: Option<u64>,
    weighs_bytes: bool,
    /// Whether the thread's rare events are on it.
    has_markers: bool,
    /// Those of its process, if they are on it.
    pauses: Vec<&'p Pause>,
}

impl Track<'_> {
    /// The samples that are markers of it.
    fn markers<'p>(
        &self,
        profile: &'p Profile,
        samples: &SamplesByThread,
    ) -> impl Iterator<Item = &'p Sample> {
        let all = samples.of(profile, self.thread);
        all.filter(|sample| self.has_markers && is_marker(sample.event))
    }
}

/// All tracks, in the order of the file.
struct Tracks<'p> {
    list: Vec<Track<'p>>,
    /// By process: the process id, with a suffix where another process has the same.
    pids: Vec<String>,
    /// Indices of the tracks to show first. The Firefox Profiler opens with the tracks that it
    /// takes for busy, by a measure made for browsers.
    visible: Vec<usize>,
}

impl<'p> Tracks<'p> {
    fn new(
        profile: &'p Profile,
        samples: &SamplesByThread,
        selection: Selection,
        weight: WeightBy,
    ) -> Self {
        let mut tids = UniqueIds::default();
        let mut list: Vec<Track<'p>> = Vec::new();
        let mut processes_seen = HashSet::new();
        for (id, thread) in (0..).map(ThreadId).zip(&profile.threads) {
            // Pauses are on the first track of their process: every thread of it stood.
            let first = processes_seen.insert(thread.process);
            let pauses = profile.pauses.iter();
            list.push(Track {
                thread: id,
                event: selection.event,
                name: visible(&thread.name).into_owned(),
                tid: tids.unique(thread.tid),
                is_main: thread.tid == profile.process(thread.process).pid,
                start_ns: thread.start_ns,
                end_ns: thread.end_ns,
                weighs_bytes: selection.by_value && selection.event.unit() == Unit::Bytes,
                has_markers: true,
                pauses: pauses
                    .filter(|pause| first && pause.process == thread.process)
                    .collect(),
            });
        }
        // Tracks of further events, where there are samples for them.
        let mut beside: BTreeMap<(u8, ThreadId), usize> = BTreeMap::new();
        for sample in &profile.samples {
            if sample.event == selection.event || !is_track(sample.event) {
                continue;
            }
            let of = profile.thread(sample.thread);
            beside
                .entry((sample.event as u8, sample.thread))
                .or_insert_with(|| {
                    let is_bytes = sample.event.unit() == Unit::Bytes;
                    list.push(Track {
                        thread: sample.thread,
                        event: sample.event,
                        name: format!("{} ({})", visible(&of.name), sample.event.name()),
                        tid: tids.unique(of.tid),
                        is_main: false,
                        start_ns: of.start_ns,
                        end_ns: None,
                        weighs_bytes: is_bytes && weight != WeightBy::Samples,
                        has_markers: false,
                        pauses: Vec::new(),
                    });
                    list.len() - 1
                });
        }
        let shown = busiest(profile, samples, &beside);
        let mut pids = UniqueIds::default();
        let pids: Vec<String> = profile
            .processes
            .iter()
            .map(|process| pids.unique(process.pid))
            .collect();
        let (list, place_of) = sorted(profile, list, &pids);
        Self {
            list,
            pids,
            visible: shown.into_iter().map(|track| place_of[track]).collect(),
        }
    }
}

/// Sorts tracks as the field's tools do: by process and thread in the order of their start, the
/// main thread first. Returns the new place of each, too.
fn sorted<'p>(
    profile: &Profile,
    list: Vec<Track<'p>>,
    pids: &[String],
) -> (Vec<Track<'p>>, Vec<usize>) {
    let mut list: Vec<(usize, Track<'p>)> = list.into_iter().enumerate().collect();
    let start = start_ns(profile);
    list.sort_by(|(_, a), (_, b)| {
        let of_process = |track: &Track<'p>| {
            let process = profile.thread(track.thread).process.0 as usize;
            (profile.processes[process].start_ns, &pids[process])
        };
        // A thread cannot be older than its process.
        let in_process = |track: &Track<'p>| (!track.is_main, track.start_ns.max(start));
        let by_process = of_process(a).cmp(&of_process(b));
        let by_start = by_process.then_with(|| in_process(a).cmp(&in_process(b)));
        by_start.then_with(|| (&a.name, &a.tid).cmp(&(&b.name, &b.tid)))
    });
    let mut place_of = vec![0; list.len()];
    for (place, (before, _)) in list.iter().enumerate() {
        place_of[*before] = place;
    }
    (list.into_iter().map(|(_, track)| track).collect(), place_of)
}

/// Returns the tracks of the threads with most samples, with those beside them.
fn busiest(
    profile: &Profile,
    samples: &SamplesByThread,
    beside: &BTreeMap<(u8, ThreadId), usize>,
) -> Vec<usize> {
    /// More would not be seen anyway.
    const MAX_THREADS: usize = 50;
    let count = |thread: &ThreadId| samples.of(profile, *thread).len();
    let mut busiest: Vec<ThreadId> = (0..profile.threads.len() as u32)
        .map(ThreadId)
        .filter(|thread| count(thread) > 0)
        .collect();
    busiest.sort_by_key(|thread| std::cmp::Reverse(count(thread)));
    let mut tracks = Vec::new();
    for thread in busiest.into_iter().take(MAX_THREADS) {
        tracks.push(thread.0 as usize);
        let others = beside.iter().filter(|((_, of), _)| *of == thread);
        tracks.extend(others.map(|(_, &track)| track));
    }
    tracks
}

/// Ids of the system as texts, each text once: a second `12` is `12.1`.
#[derive(Default)]
struct UniqueIds {
    used: HashMap<u32, u32>,
}

impl UniqueIds {
    fn unique(&mut self, id: u32) -> String {
        let used = self.used.entry(id).or_default();
        *used += 1;
        match *used - 1 {
            0 => id.to_string(),
            suffix => format!("{id}.{suffix}"),
        }
    }
}
