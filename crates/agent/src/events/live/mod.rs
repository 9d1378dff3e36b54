//! The live heap: tracks which sampled allocations are still alive.
//!
//! Each sampled object gets a weak handle of the runtime, in the callback that reports its
//! allocation, while it does not move. The collector clears the handle when it frees the object.
//! The agent thread checks from time to time which handles are empty ([`table`]), and never reads
//! the objects.
//!
//! Invariants: no handle keeps an object alive (they are long weak ones). At most [`MOST_HELD`] are
//! held. The handle of every sample, dropped or not, is destroyed while its runtime allows it, and
//! never during a collection. No collection is triggered.

pub(super) mod table;

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use corprof::context::{AgentThread, Synchronous};
use corprof::info::ObjectHandle;
use corprof::{Cx, EventMaskHigh};
use recording::Event;

use super::Origin;
use super::alloc::{of_own_events, size_text, thinned};
use super::source::{EventSource, Need, SourceQuery};
use crate::clr::{Clr, Runtimes};
use crate::program::chains::HeapGate;

/// Maximum number of tracked objects.
const MOST_FOLLOWED: usize = 16 * 1024;
/// Maximum number of handles: those of tracked objects, and of samples on their way.
const MOST_HELD: usize = 2 * MOST_FOLLOWED;

/// The source of live-heap samples.
pub(super) struct LiveHeap;

impl EventSource for LiveHeap {
    fn event(&self) -> Event {
        Event::Live
    }

    fn need(&self, asked: SourceQuery<'_>) -> Result<Need, String> {
        let runtime = asked.runtime;
        if !runtime.handles {
            return Err(format!(
                "no live samples of .NET {}: it has no weak handles for profilers, which follow \
                 objects (.NET 7 and later have them)",
                runtime.version
            ));
        }
        let mut need = of_own_events(runtime, asked.settings.alloc_interval);
        // The callback at the end of a collection.
        need.high |= EventMaskHigh::BASIC_GC;
        Ok(need)
    }
}

/// The handles that the agent holds in the process's CLRs.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    held: AtomicUsize,
    /// Number of times in this session that all samples were thinned out by half.
    thinned: AtomicU32,
    /// Number of objects without a handle since the last report, which are not tracked.
    refused: AtomicU64,
    /// Handles of dropped samples, to be destroyed. A leaf lock, held for list operations.
    left: Mutex<Vec<(u8, ObjectHandle)>>,
}

impl Handles {
    fn forget_runtime(&self) -> MutexGuard<'_, Vec<(u8, ObjectHandle)>> {
        self.left.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Starts a session.
    pub(super) fn begin(&self) {
        self.thinned.store(0, Relaxed);
        self.refused.store(0, Relaxed);
    }

    /// Whether any handle is held.
    pub(super) fn is_any(&self) -> bool {
        self.held.load(Relaxed) > 0
    }

    /// Reserves room for one more handle.
    fn reserve(&self) -> bool {
        let one_more = |held| (held < MOST_HELD).then_some(held + 1);
        self.held.fetch_update(Relaxed, Relaxed, one_more).is_ok()
    }

    fn finish_release(&self, count: usize) {
        self.held.fetch_sub(count, Relaxed);
    }

    /// Destroys unused handles, as far as possible now. Agent thread.
    pub(super) fn release_unused(&self, runtimes: &mut Runtimes<'_>) {
        let mut left = std::mem::take(&mut *self.forget_runtime());
        left.sort_by_key(|(runtime, _)| *runtime);
        while let Some(runtime) = left.last().map(|(runtime, _)| *runtime) {
            let first = left.partition_point(|(other, _)| *other < runtime);
            let handles: Vec<_> = left.split_off(first).into_iter().map(|it| it.1).collect();
            let all = handles.len();
            // Handles of a runtime that has ended no longer exist.
            let later = runtimes.with(runtime, |clr, cx| destroy(clr, cx, handles));
            let later = later.unwrap_or_default();
            self.finish_release(all.saturating_sub(later.len()));
            self.forget_runtime()
                .extend(later.into_iter().map(|handle| (runtime, handle)));
        }
    }
}

/// Destroys handles while their runtime does not collect. Returns those that are left.
fn destroy(
    clr: &Clr,
    cx: &mut Cx<'_, AgentThread>,
    handles: Vec<ObjectHandle>,
) -> Vec<ObjectHandle> {
    // Without a callback for collections the handles are kept for good: no more than `MOST_HELD`.
    let Some(gate) = clr.heap_gate() else {
        return handles;
    };
    for_each_inside(gate, handles, |handle| {
        // SAFETY: inside the heap gate. The callback before a collection closes the gate and waits
        // until it is empty. If that wait timed out, the gate is broken, which is checked before
        // each handle.
        let _refused = unsafe { cx.info().destroy_handle_between_collections(cx, handle) };
    })
}

/// Applies `each` to the items while the heap gate is open, inside the gate only briefly. Returns
/// the items that are left when the gate is closed.
fn for_each_inside<T>(gate: &HeapGate, mut items: Vec<T>, mut each: impl FnMut(T)) -> Vec<T> {
    /// Maximum number of items for which a collection waits, 100 ns each.
    const AT_ONCE: usize = 16;
    while !items.is_empty() && gate.enter() {
        for _ in 0..AT_ONCE {
            if !gate.holds() {
                break;
            }
            let Some(item) = items.pop() else { break };
            each(item);
        }
        gate.leave();
    }
    items
}

/// A handle of an object. Dropping it schedules its destruction.
#[derive(Debug)]
pub(super) struct Handle {
    runtime: u8,
    raw: Option<ObjectHandle>,
    of: Arc<Handles>,
}

impl Handle {
    /// Whether its object is still alive, according to the runtime.
    fn has_object(&self, cx: &Cx<'_, AgentThread>) -> bool {
        let raw = self.raw.as_ref();
        raw.is_some_and(|raw| cx.info().handle_has_object(cx, raw).unwrap_or(true))
    }

    /// Forgets a handle that has ended with its runtime.
    fn forget(&mut self) {
        if self.raw.take().is_some() {
            self.of.finish_release(1);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.of.forget_runtime().push((self.runtime, raw));
        }
    }
}

/// A sample's handle of an object to track.
#[derive(Debug)]
pub(crate) struct Followed {
    handle: Handle,
    /// The object's own bytes; 0 if unknown.
    size: u64,
    /// Number of collections that had ended at its allocation.
    collections: u64,
    /// Number of thinnings when its weight was computed.
    thinned: u32,
}

/// Handles the allocation of an object of `size` bytes that represents `value`. `make` creates its
/// handle and must be the first call into the runtime; `say` returns its type.
pub(super) fn allocated<'rt, C: Synchronous>(
    origin: Origin<'_>,
    cx: &mut Cx<'rt, C>,
    value: u64,
    size: u64,
    make: impl FnOnce(&Cx<'rt, C>) -> corprof::Result<ObjectHandle>,
    say: impl FnOnce(&Cx<'rt, C>) -> Arc<str>,
) {
    let events = origin.events;
    if !events.wants(Event::Live) {
        return;
    }
    let times = events.handles.thinned.load(Relaxed);
    let Some(value) = thinned(value, times) else {
        return;
    };
    let Some(place) = events.offer(Event::Live, value) else {
        return;
    };
    if !events.handles.reserve() {
        events.handles.refused.fetch_add(1, Relaxed);
        return;
    }
    let Ok(raw) = make(cx) else {
        events.handles.finish_release(1);
        events.handles.refused.fetch_add(1, Relaxed);
        return;
    };
    let followed = Followed {
        handle: Handle {
            runtime: origin.clr.number(),
            raw: Some(raw),
            of: Arc::clone(&events.handles),
        },
        size,
        collections: events.collections.load(Relaxed),
        thinned: times,
    };
    let name = say(cx);
    let mut sample = origin.sample(cx, Event::Live, value, name, String::new());
    sample.followed = Some(followed);
    events.push(place, sample);
}

/// Returns the text of an object's detail, besides its type.
fn text_of(size: u64) -> String {
    match size {
        0 => String::new(),
        size => size_text(size),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn room_for_handles_is_bounded_and_comes_back() {
        let handles = Handles::default();
        assert_eq!(
            (0..MOST_HELD + 7).filter(|_| handles.reserve()).count(),
            MOST_HELD
        );
        handles.finish_release(2);
        assert!(handles.reserve() && handles.reserve() && !handles.reserve());
    }

    /// A collection waits for threads inside; the gate then admits no thread, and the remaining
    /// handles are kept.
    #[test]
    fn nothing_is_given_back_while_it_collects() {
        const ALL: usize = 1000;
        let gate = HeapGate::new();
        let items = || (0..ALL).collect::<Vec<_>>();
        let refused = |_| panic!("the gate is closed");
        assert_eq!(for_each_inside(&gate, items(), refused).len(), ALL);
        gate.watch();
        gate.open();
        let mut given = 0;
        let left = for_each_inside(&gate, items(), |_| given += 1);
        assert_eq!((given, left.len()), (ALL, 0));

        let (started, collection_times) = (AtomicBool::new(false), AtomicBool::new(false));
        given = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !started.load(Relaxed) {
                    std::hint::spin_loop();
                }
                gate.close();
                collection_times.store(true, Relaxed);
            });
            let left = for_each_inside(&gate, items(), |_| {
                assert!(!collection_times.load(Relaxed));
                given += 1;
                started.store(true, Relaxed);
                // The gate admits no thread any more: it is being closed, or is closed.
                while gate.enter() {
                    gate.leave();
                }
            });
            assert_eq!(given + left.len(), ALL);
            assert!((1..=16).contains(&given), "{given}");
        });
        assert_eq!(for_each_inside(&gate, items(), refused).len(), ALL);
        assert!(!gate.is_broken());
    }

    /// Thinning leaves the average sum unchanged.
    #[test]
    fn thinned_samples_stand_for_all() {
        assert_eq!(thinned(100, 0), Some(100));
        for times in [1, 3] {
            let sum: u64 = (0..100_000).filter_map(|_| thinned(100, times)).sum();
            // 12,500 samples at least: standard deviation 0.9 %.
            assert!(sum.abs_diff(10_000_000) < 400_000, "{sum}");
        }
    }
}
