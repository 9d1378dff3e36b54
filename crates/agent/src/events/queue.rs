//! The bounded queue of event samples, from callbacks to the agent thread.
//!
//! Input: samples, on the program's threads. Output: batches, on the agent thread. Each event with
//! a rate limit has a reservoir (a random sample of fixed size), renewed at every batch. One bound
//! limits the bytes of all samples. Invariants: the lock is a leaf, held for a few list operations
//! and never over a call into the CLR. No thread waits for room. Dropped samples are counted: by
//! event if the limit dropped them, else as lost.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use recording::Event;

use super::sample::EventSample;
use crate::base::random::next_random;

/// Maximum bytes of queued samples.
const MAX_BYTES: usize = 8 << 20;
/// Bytes above which the agent thread is woken early.
const WAKE_BYTES: usize = MAX_BYTES / 4;
/// Minimum interval between early wake-ups for exceptions: one may be the program's last.
const WAKE_NS: u64 = 10_000_000;
/// Number of event queues, one per code of [`Event`].
const KINDS: usize = 16;

/// Where an accepted sample is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueuePlace {
    /// Appended.
    New,
    /// Replaces the sample at this index of its event.
    Instead(usize),
    /// Replaces the sample with the least value, if that is less than its own: for an event of
    /// which the largest are kept.
    Largest,
}

/// Count and value of an event's samples dropped by the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limited {
    pub(super) count: u64,
    pub(super) value: u64,
}

/// The samples that the agent thread takes at once.
#[derive(Debug, Default)]
pub(super) struct SampleBatch {
    pub(super) samples: Vec<EventSample>,
    pub(super) limited: Vec<(Event, Limited)>,
    /// Number of samples lost for lack of room.
    pub(super) lost: u64,
}

#[derive(Debug, Default)]
struct EventQueue {
    samples: Vec<EventSample>,
    /// Samples offered since the last batch.
    offered: u64,
    /// Maximum number of samples until the next batch; `u64::MAX` without a limit.
    room: u64,
    limited: Limited,
}

#[derive(Debug)]
struct QueueState {
    kinds: [EventQueue; KINDS],
    bytes: usize,
    lost: u64,
    woken: bool,
    random: u64,
    taken_ns: u64,
    /// Samples per second of each limited event; 0: no limit.
    limit: u64,
}

/// The queue of event samples.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    /// Duration up to which a traced call is dropped, readable without the lock.
    slowest: AtomicU64,
}

/// Whether the program determines the rate of an event. Other events are rare, or thinned out by
/// bytes.
fn is_limited(event: Event) -> bool {
    matches!(
        event,
        Event::Exception | Event::Contention | Event::Jit | Event::ClassLoad | Event::TracedCall
    )
}

impl QueueState {
    /// Returns an empty state with this limit, samples per second of each event; 0 for none.
    fn new(limit: u32, now_ns: u64) -> QueueState {
        let limit = u64::from(limit);
        let kinds = std::array::from_fn(|code| {
            let event = u8::try_from(code).ok().and_then(Event::from_code);
            let limited = limit > 0 && event.is_some_and(is_limited);
            EventQueue {
                room: if limited { limit } else { u64::MAX },
                ..EventQueue::default()
            }
        });
        QueueState {
            kinds,
            bytes: 0,
            lost: 0,
            woken: false,
            random: now_ns | 1,
            taken_ns: now_ns,
            limit,
        }
    }
}

impl Queue {
    /// Creates a queue with this limit, samples per second of each event; 0 for none.
    pub(super) fn new(limit: u32, now_ns: u64) -> Queue {
        Queue {
            state: Mutex::new(QueueState::new(limit, now_ns)),
            slowest: AtomicU64::new(0),
        }
    }

    /// Restarts with another limit and drops the contents.
    pub(super) fn begin(&self, limit: u32, now_ns: u64) {
        *self.state() = QueueState::new(limit, now_ns);
        self.slowest.store(0, Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns where to store a sample of this event, if it is to be taken. Each of the event's
    /// samples since the last batch is kept with the same probability (Vitter's algorithm R).
    pub(super) fn offer(&self, event: Event, value: u64) -> Option<QueuePlace> {
        let mut state = self.state();
        let state = &mut *state;
        let kind = state.kinds.get_mut(event as usize)?;
        kind.offered += 1;
        if kind.offered <= kind.room {
            return Some(QueuePlace::New);
        }
        let at = next_random(&mut state.random) % kind.offered;
        if at < kind.room {
            return usize::try_from(at).ok().map(QueuePlace::Instead);
        }
        kind.limited.count += 1;
        kind.limited.value = kind.limited.value.saturating_add(value);
        None
    }

    /// Whether a call of this duration may be among the slowest, judged without the lock.
    #[inline]
    pub(super) fn is_slow(&self, ns: u64) -> bool {
        let slowest = self.slowest.load(Relaxed);
        ns > slowest || slowest == 0
    }

    /// Stores a sample. Returns whether the agent thread should be woken.
    pub(super) fn push(&self, place: QueuePlace, sample: EventSample) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let bytes = sample.bytes();
        let (time_ns, is_exception) = (sample.time_ns, sample.event == Event::Exception);
        let Some(kind) = state.kinds.get_mut(sample.event as usize) else {
            return false;
        };
        let mut is_full = false;
        let old = match place {
            QueuePlace::Instead(at) => kind.samples.get_mut(at),
            QueuePlace::Largest if kind.samples.len() as u64 >= kind.room => {
                is_full = true;
                kind.samples.iter_mut().min_by_key(|one| one.value)
            }
            QueuePlace::New | QueuePlace::Largest => None,
        };
        if is_full && let Some(least) = old.as_ref().map(|old| old.value) {
            self.slowest.store(least, Relaxed);
            if least >= sample.value {
                kind.limited.count += 1;
                kind.limited.value = kind.limited.value.saturating_add(sample.value);
                return false;
            }
        }
        let freed = old.as_ref().map_or(0, |old| old.bytes());
        if state.bytes - freed + bytes > MAX_BYTES {
            state.lost += 1;
            return false;
        }
        state.bytes = state.bytes - freed + bytes;
        match old {
            Some(old) => {
                kind.limited.count += 1;
                kind.limited.value = kind.limited.value.saturating_add(old.value);
                *old = sample;
            }
            None => kind.samples.push(sample),
        }
        let urgent = state.bytes > WAKE_BYTES || time_ns > state.taken_ns + WAKE_NS && is_exception;
        let wake = urgent && !state.woken;
        state.woken |= wake;
        wake
    }

    /// Takes all samples. Agent thread only.
    pub(super) fn take(&self, now_ns: u64) -> SampleBatch {
        let mut batch = SampleBatch::default();
        let mut state = self.state();
        let state = &mut *state;
        let passed = now_ns.saturating_sub(state.taken_ns).min(1_000_000_000);
        let earned = (state.limit * passed).div_ceil(1_000_000_000);
        for (code, kind) in (0u8..).zip(&mut state.kinds) {
            if kind.room != u64::MAX {
                let kept = kind.samples.len() as u64;
                if Event::from_code(code) == Some(Event::TracedCall) {
                    // The next batch's slowest calls are assumed to be about as slow. If there were
                    // few calls, all of the next are accepted.
                    let least = kind.samples.iter().map(|one| one.value).min();
                    let slowest = least
                        .filter(|_| kept >= kind.room)
                        .map_or(0, |least| least / 2);
                    self.slowest.store(slowest, Relaxed);
                }
                kind.room = (kind.room.saturating_sub(kept) + earned).clamp(1, state.limit);
            }
            kind.offered = 0;
            if let Some(event) = Event::from_code(code)
                && kind.limited.count > 0
            {
                batch
                    .limited
                    .push((event, std::mem::take(&mut kind.limited)));
            }
            batch.samples.append(&mut kind.samples);
        }
        batch.lost = std::mem::take(&mut state.lost);
        state.bytes = 0;
        state.woken = false;
        state.taken_ns = now_ns;
        batch
    }

    /// Returns the bytes of queued samples.
    pub(super) fn bytes(&self) -> usize {
        self.state().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(event: Event, value: u64, frames: usize) -> EventSample {
        EventSample::for_test(event, value, frames)
    }

    fn feed(queue: &Queue, event: Event, values: std::ops::Range<u64>) {
        for value in values {
            if let Some(place) = queue.offer(event, value) {
                queue.push(place, sample(event, value, 3));
            }
        }
    }

    #[test]
    fn what_is_kept_and_what_is_limited_is_everything() {
        let queue = Queue::new(10, 0);
        feed(&queue, Event::Exception, 0..1000);
        feed(&queue, Event::Alloc, 0..50);
        let batch = queue.take(1_000_000_000);
        let kept = |event| batch.samples.iter().filter(move |s| s.event == event);
        assert_eq!(kept(Event::Exception).count(), 10);
        assert_eq!(kept(Event::Alloc).count(), 50);
        let sum: u64 = kept(Event::Exception).map(|s| s.value).sum();
        assert_eq!(
            batch.limited,
            [(
                Event::Exception,
                Limited {
                    count: 990,
                    value: 999 * 1000 / 2 - sum
                }
            )]
        );
        assert_eq!(batch.lost, 0);
        assert!(queue.take(1_000_000_001).samples.is_empty());
    }

    #[test]
    fn a_reservoir_prefers_no_sample() {
        let queue = Queue::new(100, 0);
        let mut sum = 0;
        let mut count = 0u64;
        for second in 1..=50u64 {
            feed(&queue, Event::Exception, 0..1000);
            let batch = queue.take(second * 1_000_000_000);
            count += batch.samples.len() as u64;
            sum += batch.samples.iter().map(|s| s.value).sum::<u64>();
        }
        assert_eq!(count, 5000);
        // 5,000 draws of a uniform value: standard deviation of the mean 4.1.
        let mean = sum / count;
        assert!((479..=520).contains(&mean), "{mean}");
    }

    #[test]
    fn of_traced_calls_the_slowest_are_kept() {
        let queue = Queue::new(10, 0);
        let passed = std::cell::Cell::new(0);
        let feed = |values: &mut dyn Iterator<Item = u64>| {
            for ns in values {
                match queue.is_slow(ns) {
                    true => drop(queue.push(QueuePlace::Largest, sample(Event::TracedCall, ns, 3))),
                    false => passed.set(passed.get() + 1),
                }
            }
        };
        // Unordered: 0 to 996, each once.
        feed(&mut (0..997).map(|n| n * 131 % 997));
        let batch = queue.take(1_000_000_000);
        let mut kept: Vec<u64> = batch.samples.iter().map(|one| one.value).collect();
        kept.sort_unstable();
        assert_eq!(kept, (987..997).collect::<Vec<_>>());
        let limited = batch
            .limited
            .first()
            .map_or(0, |(_, limited)| limited.count);
        feed(&mut [400, 900].into_iter());
        assert_eq!(limited + passed.get(), 997 - 10 + 1);
        // A call that was slow enough a moment ago is below the new limit once there is room.
        assert_eq!(queue.take(2_000_000_000).samples.len(), 1);
        feed(&mut [4].into_iter());
        assert_eq!(queue.take(3_000_000_000).samples.len(), 1);
    }

    #[test]
    fn room_comes_back_with_time() {
        let queue = Queue::new(100, 0);
        feed(&queue, Event::Jit, 0..1000);
        assert_eq!(queue.take(0).samples.len(), 100);
        feed(&queue, Event::Jit, 0..1000);
        assert_eq!(queue.take(200_000_000).samples.len(), 1);
        feed(&queue, Event::Jit, 0..1000);
        assert_eq!(queue.take(200_000_000).samples.len(), 20);
        assert!(queue.take(5_000_000_000).samples.is_empty());
        feed(&queue, Event::Jit, 0..1000);
        assert_eq!(queue.take(5_000_000_000).samples.len(), 100);
    }

    #[test]
    fn bytes_are_bounded_and_the_rest_is_lost() {
        let queue = Queue::new(0, 0);
        let mut woken = 0;
        let each = sample(Event::Alloc, 1, 1024).bytes();
        let fit = MAX_BYTES / each;
        for _ in 0..fit + 7 {
            let place = queue.offer(Event::Alloc, 1).unwrap();
            woken += u32::from(queue.push(place, sample(Event::Alloc, 1, 1024)));
        }
        assert_eq!(woken, 1);
        assert!(queue.bytes() <= MAX_BYTES);
        let batch = queue.take(1);
        assert_eq!((batch.samples.len(), batch.lost), (fit, 7));
        assert_eq!(queue.bytes(), 0);
    }
}
