//! The table of tracked objects, and their records. Agent thread only.
//!
//! An object is written at the first live-heap snapshot at which it is alive, so short-lived ones
//! cost the recording nothing. Invariants: at most [`MOST_FOLLOWED`] are tracked. If there would be
//! more, a random half is dropped, and the weight of the rest and of later objects doubles, so that
//! sums stay right on average. An object in the recording is alive until a record ends it.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use recording::{Event, Record};

use super::{Followed, Handle, MOST_FOLLOWED, text_of};
use crate::base::random::next_random;
use crate::clr::Runtimes;
use crate::events::sample::EventSample;
use crate::events::writer::Details;
use crate::events::{EventAnnouncement, Events};
use crate::record::{Recorder, Resolved};

/// The tracked objects.
#[derive(Default)]
pub(crate) struct LiveTable {
    entries: Vec<LiveObject>,
    next: u32,
    /// Recorded objects that were collected since the last snapshot.
    gone: Vec<u32>,
    /// Number of collections that had ended at the last check of the handles.
    swept: u64,
    /// Time of the next snapshot; 0 before the first sample.
    due_ns: u64,
    random: u64,
}

/// A tracked object.
struct LiveObject {
    handle: Handle,
    /// Its number in the recording, once written.
    reported: Option<u32>,
    is_alive: bool,
    thread: u32,
    stack: Resolved,
    time_ns: u64,
    /// Bytes that it represents.
    bytes: u64,
    size: u64,
    collections: u64,
    name: Arc<str>,
}

impl LiveTable {
    /// Starts the snapshot interval of a session with the live heap.
    pub(in crate::events) fn begin(&mut self, events: &Events, now_ns: u64) {
        if self.due_ns == 0 {
            self.due_ns = now_ns.saturating_add(events.live_interval());
            self.random = now_ns | 1;
        }
    }

    /// Tracks an object from now on.
    pub(in crate::events) fn follow(
        &mut self,
        events: &Events,
        recorder: &mut Recorder,
        (thread, stack): (u32, Resolved),
        sample: EventSample,
        followed: Followed,
    ) {
        if self.entries.len() >= MOST_FOLLOWED {
            self.thin(events, recorder, sample.time_ns);
        }
        // Its weight may have been computed before the others were thinned out.
        let mut bytes = sample.value;
        for _ in followed.thinned..events.handles.thinned.load(Relaxed) {
            if self.is_dropped() {
                return;
            }
            bytes = bytes.saturating_mul(2);
        }
        self.entries.push(LiveObject {
            handle: followed.handle,
            reported: None,
            is_alive: true,
            thread,
            stack,
            time_ns: sample.time_ns,
            bytes,
            size: followed.size,
            collections: followed.collections,
            name: sample.name,
        });
    }

    fn is_dropped(&mut self) -> bool {
        next_random(&mut self.random) >> 33 & 1 == 1
    }

    fn thin(&mut self, events: &Events, recorder: &mut Recorder, time_ns: u64) {
        let mut dropped = Vec::new();
        for mut entry in std::mem::take(&mut self.entries) {
            if self.is_dropped() {
                dropped.extend(entry.reported);
            } else {
                entry.bytes = entry.bytes.saturating_mul(2);
                self.entries.push(entry);
            }
        }
        if events.handles.thinned.fetch_add(1, Relaxed) == 0 {
            events.announce(EventAnnouncement::Note(format!(
                "live heap: more than {MOST_FOLLOWED} objects were followed, so a random half was \
                 dropped and the rest count twice (perhaps several times); a larger \
                 --alloc-interval avoids that"
            )));
        }
        recorder.record(&Record::Thinned {
            time_ns,
            allocations: Cow::Owned(dropped),
        });
    }

    /// Does what is due: checks the handles if there was a collection, and writes a snapshot. The
    /// `last` call always writes one.
    pub(in crate::events) fn round(
        &mut self,
        events: &Events,
        runtimes: &mut Runtimes<'_>,
        (recorder, details): (&mut Recorder, &mut Details),
        now_ns: u64,
        last: bool,
    ) {
        if self.due_ns == 0 {
            return;
        }
        let is_due = last || now_ns >= self.due_ns;
        let collections = events.collections.load(Relaxed);
        if is_due || collections != self.swept {
            self.swept = collections;
            self.sweep(runtimes);
        }
        if is_due {
            while self.due_ns <= now_ns {
                self.due_ns = self.due_ns.saturating_add(events.live_interval().max(1));
            }
            self.write_snapshot(recorder, details, collections, now_ns);
        }
        events.handles.release_unused(runtimes);
        let refused = events.handles.refused.swap(0, Relaxed);
        recorder.lost(Cow::Borrowed("no handle for a live object"), refused);
    }

    /// Finds the objects that are alive. Objects that the collector has not examined count as
    /// alive.
    fn sweep(&mut self, runtimes: &mut Runtimes<'_>) {
        let mut numbers: Vec<u8> = self.entries.iter().map(|one| one.handle.runtime).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers {
            let of_it = |entry: &&mut LiveObject| entry.handle.runtime == number;
            let asked = runtimes.with(number, |_, cx| {
                for entry in self.entries.iter_mut().filter(of_it) {
                    entry.is_alive = entry.handle.has_object(cx);
                }
            });
            if asked.is_none() {
                // The object lived until its runtime's end.
                for entry in self.entries.iter_mut().filter(of_it) {
                    entry.handle.forget();
                    entry.reported = None;
                    entry.is_alive = false;
                }
            }
        }
        let gone = &mut self.gone;
        self.entries.retain(|entry| {
            if !entry.is_alive {
                gone.extend(entry.reported);
            }
            entry.is_alive
        });
    }

    fn write_snapshot(
        &mut self,
        recorder: &mut Recorder,
        details: &mut Details,
        collections: u64,
        time_ns: u64,
    ) {
        /// Maximum per record: a block has room for many.
        const MOST: usize = 4096;
        for gone in std::mem::take(&mut self.gone).chunks(MOST) {
            recorder.record(&Record::Gone {
                time_ns,
                allocations: Cow::Borrowed(gone),
            });
        }
        for entry in self
            .entries
            .iter_mut()
            .filter(|entry| entry.reported.is_none())
        {
            let number = self.next;
            self.next = self.next.wrapping_add(1);
            entry.reported = Some(number);
            let name = Arc::clone(&entry.name);
            let detail = details.number(recorder, (Event::Live, name, text_of(entry.size)));
            recorder.count_broken(entry.stack.end);
            recorder.record(&Record::Survivor {
                allocation: number,
                thread: entry.thread,
                stack: entry.stack.stack,
                logical: entry.stack.logical,
                time_ns: entry.time_ns,
                end: entry.stack.end.end(),
                bytes: entry.bytes,
                size: entry.size,
                collections: entry.collections,
                detail: Some(detail),
            });
        }
        recorder.record(&Record::Instant {
            time_ns,
            collections,
        });
    }

    /// Ends the session: no object is tracked any more.
    pub(in crate::events) fn end(&mut self) {
        *self = LiveTable::default();
    }

    /// Returns the bytes held.
    pub(in crate::events) fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<LiveObject>() + self.gone.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::waker::Waker;
    use crate::events::live::Handles;
    use crate::model::EndCode;
    use crate::model::phase::new_phase;

    /// All weights were computed before anything was thinned out, as for samples on their way.
    #[test]
    fn what_is_too_much_is_thinned_out_and_the_sum_stays() {
        let (_writer, phase) = new_phase();
        let events = Events::new(phase, Box::leak(Box::new(Waker::new())));
        let mut recorder = Recorder::default();
        let mut table = LiveTable::default();
        table.begin(&events, 1);
        let stack = Resolved {
            stack: 0,
            logical: None,
            end: EndCode(0),
        };
        const OBJECTS: usize = 5 * MOST_FOLLOWED;
        for _ in 0..OBJECTS {
            let followed = Followed {
                handle: Handle {
                    runtime: 0,
                    raw: None,
                    of: Arc::<Handles>::default(),
                },
                size: 24,
                collections: 0,
                thinned: 0,
            };
            let sample = EventSample::for_test(Event::Live, 1000, 1);
            table.follow(&events, &mut recorder, (0, stack), sample, followed);
        }
        assert!(table.entries.len() <= MOST_FOLLOWED);
        let times = events.handles.thinned.load(Relaxed);
        assert!(times == 3, "{times}");
        let value = 1000 << times;
        assert!(table.entries.iter().all(|entry| entry.bytes == value));
        // Standard deviation 0.9 %.
        let sum = table.entries.len() as f64 * value as f64;
        let share = sum / (OBJECTS as f64 * 1000.0);
        assert!((0.95..1.05).contains(&share), "{share}");
    }
}
