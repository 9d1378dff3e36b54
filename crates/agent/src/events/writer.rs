//! Writes the queued event samples to the recording. Agent thread only.
//!
//! An exception is held back a little for the end of the search for its handler. Other samples are
//! written at once. Each detail (the subject of a sample) is written once, before its first use.
//! Invariant: both the samples that wait and the remembered details are bounded.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use recording::{Event, Record};

use super::live::table::LiveTable;
use super::queue::Limited;
use super::sample::{Catcher, EventSample};
use super::{EventAnnouncement, Events};
use crate::base::proc;
use crate::clr::Runtimes;
use crate::model::WalkedStack;
use crate::program::{Program, Threads};
use crate::record::Recorder;

/// CPU time that a thread may use for the search for a handler before the exception counts as
/// unhandled. It is short, as a program with an unhandled exception ends soon.
const SEARCH_CPU_NS: u64 = 5_000_000;
/// The same limit in elapsed time.
const SEARCH_NS: u64 = 1_000_000_000;
/// Maximum number of remembered details.
const MAX_DETAILS: usize = recording::limits::DETAILS;

type DetailKey = (Event, Arc<str>, String);

/// State of the event writer.
#[derive(Default)]
pub(crate) struct EventWriter {
    waiting: Vec<WaitingException>,
    /// Whether an exception has found no handler: the program may be about to end.
    urgent: bool,
    /// Catchers whose threads wait until their samples are sent.
    awaited: Vec<Arc<Catcher>>,
    /// Samples to write, each with its thread's number in the recording.
    ready: Vec<(u32, EventSample)>,
    limited: Vec<(Event, Limited)>,
    lost: u64,
    details: Details,
    sources: Vec<EventAnnouncement>,
    live: LiveTable,
}

/// The details of samples that were written.
#[derive(Default)]
pub(super) struct Details {
    known: HashMap<DetailKey, u32>,
    next: u32,
}

impl Details {
    /// Returns the number of a detail, and writes the detail first if it is new.
    pub(super) fn number(&mut self, recorder: &mut Recorder, key: DetailKey) -> u32 {
        if let Some(detail) = self.known.get(&key) {
            return *detail;
        }
        if self.known.len() >= MAX_DETAILS {
            self.known.clear();
        }
        let detail = self.next;
        self.next = self.next.wrapping_add(1);
        recorder.record(&Record::Detail {
            detail,
            event: key.0,
            name: Cow::Borrowed(&key.1),
            text: Cow::Borrowed(&key.2),
        });
        self.known.insert(key, detail);
        detail
    }
}

/// An exception whose handler search is in progress.
struct WaitingException {
    sample: EventSample,
    /// CPU time of its thread when it was first examined; `None` if the thread has ended.
    cpu_ns: Option<u64>,
}

impl WaitingException {
    fn new(sample: EventSample) -> WaitingException {
        WaitingException {
            // A system call, so only if needed.
            cpu_ns: sample
                .catcher
                .is_some()
                .then(|| proc::thread_cpu_ns(sample.tid))
                .flatten(),
            sample,
        }
    }

    fn is_searching(&self) -> bool {
        let catcher = self.sample.catcher.as_ref();
        catcher.is_some_and(|catcher| catcher.name().is_none())
    }

    /// Whether it is or will be stored in a task: it does not end the program.
    fn is_passed_on(&self) -> bool {
        let catcher = self.sample.catcher.as_ref();
        catcher.is_some_and(|catcher| catcher.is_passed_on())
    }

    /// Whether no catcher can be found any more.
    fn is_uncaught(&self) -> bool {
        let catcher = self.sample.catcher.as_ref();
        catcher.is_some_and(|catcher| catcher.is_uncaught())
    }

    /// Whether the thread has left the search since.
    fn is_over(&self, now_ns: u64) -> bool {
        let used = proc::thread_cpu_ns(self.sample.tid)
            .zip(self.cpu_ns)
            .map(|(now, then)| now.saturating_sub(then));
        used.is_none_or(|used| used > SEARCH_CPU_NS)
            || now_ns.saturating_sub(self.sample.time_ns) > SEARCH_NS
    }
}

impl EventWriter {
    /// Writes the new announcements about the events.
    pub(crate) fn announce(
        &mut self,
        events: &Events,
        walker: &'static str,
        recorder: &mut Recorder,
    ) {
        for news in events.take_announcements() {
            // A second CLR like the first adds nothing new.
            if self.sources.contains(&news) {
                continue;
            }
            match &news {
                EventAnnouncement::Source {
                    event,
                    source,
                    interval,
                } => recorder.record(&Record::Source {
                    event: *event,
                    source: Cow::Borrowed(source),
                    walker: Cow::Borrowed(walker),
                    interval: *interval,
                }),
                EventAnnouncement::Note(text) => recorder.note(text),
            }
            self.sources.push(news);
        }
    }

    /// Takes the queued samples, including waiting ones if this is the `last` call. Registers new
    /// threads in `threads`.
    pub(crate) fn collect(&mut self, events: &Events, threads: &Threads, now_ns: u64, last: bool) {
        let batch = events.queue.take(now_ns);
        self.limited.extend(batch.limited);
        self.lost += batch.lost;
        let waited = std::mem::take(&mut self.waiting);
        let fresh = batch.samples.into_iter().map(WaitingException::new);
        for one in waited.into_iter().chain(fresh) {
            let searching = one.is_searching();
            if searching && !last && !one.is_uncaught() && !one.is_over(now_ns) {
                self.waiting.push(one);
                continue;
            }
            if one.is_uncaught() {
                self.awaited.extend(one.sample.catcher.clone());
            }
            self.urgent |= searching && !one.is_passed_on();
            let sample = one.sample;
            let thread = threads.at(sample.tid, sample.time_ns);
            self.ready.push((thread, sample));
        }
    }

    /// Writes the samples taken by [`EventWriter::collect`].
    pub(crate) fn write(
        &mut self,
        events: &Events,
        program: &Program,
        runtimes: &mut Runtimes<'_>,
        recorder: &mut Recorder,
    ) {
        for (thread, mut sample) in std::mem::take(&mut self.ready) {
            if let Some(followed) = sample.followed.take() {
                let raw = walked_stack(thread, &sample, None);
                if let Some(stack) = recorder.resolve(program, runtimes, raw) {
                    let place = (thread, stack);
                    self.live.follow(events, recorder, place, sample, followed);
                }
                continue;
            }
            let key = (sample.event, Arc::clone(&sample.name), sample.full_text());
            let detail = self.details.number(recorder, key);
            let raw = walked_stack(thread, &sample, Some(detail));
            recorder.sample(program, runtimes, raw);
        }
        for (event, limited) in self.limited.drain(..) {
            recorder.record(&Record::Limited {
                event,
                count: limited.count,
                value: limited.value,
            });
        }
        let lost = std::mem::take(&mut self.lost);
        recorder.lost(Cow::Borrowed("event queue full"), lost);
    }

    /// Whether some exceptions wait for their handlers, so that the agent thread must return soon.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns and clears whether written records must be sent at once.
    pub(crate) fn take_urgent(&mut self) -> bool {
        std::mem::take(&mut self.urgent)
    }

    /// Releases the threads that wait for their samples, after these were sent.
    pub(crate) fn sent(&mut self) {
        for catcher in self.awaited.drain(..) {
            catcher.sent();
        }
    }

    /// Updates the live objects after the samples were written; `last` marks the session's end.
    pub(crate) fn update_live(
        &mut self,
        events: &Events,
        runtimes: &mut Runtimes<'_>,
        recorder: &mut Recorder,
        now_ns: u64,
        last: bool,
    ) {
        if events.wants(Event::Live) {
            self.live.begin(events, now_ns);
        }
        let to = (recorder, &mut self.details);
        self.live.round(events, runtimes, to, now_ns, last);
    }

    /// Ends the session and releases what it held in the CLRs.
    pub(crate) fn release(&mut self, events: &Events, runtimes: &mut Runtimes<'_>) {
        /// Time limit in milliseconds: handles cannot be destroyed during a collection.
        const RELEASE_TIMEOUT: u32 = 100;
        self.live.end();
        self.ready.clear();
        for waited in 0..RELEASE_TIMEOUT {
            if !events.has_late_handles() {
                break;
            }
            if waited > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            events.release_handles(runtimes);
        }
    }

    /// Returns the bytes held.
    pub(crate) fn memory(&self, events: &Events) -> u64 {
        let waiting: usize = self.waiting.iter().map(|one| one.sample.bytes()).sum();
        let details = self.details.known.capacity() * (size_of::<(DetailKey, u32)>() + 64);
        (waiting + details + self.live.memory() + events.queue.bytes()) as u64
    }
}

/// Returns a sample as the recorder's input.
fn walked_stack(thread: u32, sample: &EventSample, detail: Option<u32>) -> WalkedStack<'_> {
    WalkedStack {
        thread,
        time_ns: sample.time_ns,
        value: sample.value,
        event: sample.event,
        end: sample.end,
        frames: &sample.frames,
        detail,
    }
}
