//! The live heap: which of the objects that were sampled as they were allocated are still there.
//!
//! Each sampled object gets a weak handle of the runtime, in the callback that reports its
//! allocation, while it stays where it is. The collector empties the handle when it takes the
//! object; the agent thread looks from time to time which are empty ([`table`]), and never at what
//! is in them. Invariants: no handle keeps an object alive (they are long weak ones); at most
//! [`MOST_HELD`] are held, and whatever becomes of a sample, its handle is given back while its
//! runtime lets us, and never while it collects; no collection is asked for.

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

/// Most objects that are followed.
const MOST_FOLLOWED: usize = 16 * 1024;
/// Most handles: those of objects that are followed, and of samples on their way.
const MOST_HELD: usize = 2 * MOST_FOLLOWED;

/// The live heap.
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
        // The end of a collection.
        need.high |= EventMaskHigh::BASIC_GC;
        Ok(need)
    }
}

/// The handles that we hold in the CLRs of the process.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    held: AtomicUsize,
    /// How often all samples have been thinned out to half of them in this session.
    thinned: AtomicU32,
    /// Objects that are not followed because there was no handle for them, since last told.
    refused: AtomicU64,
    /// Of samples that are gone: to be given back. A leaf, held for list operations.
    left: Mutex<Vec<(u8, ObjectHandle)>>,
}

impl Handles {
    fn forget_runtime(&self) -> MutexGuard<'_, Vec<(u8, ObjectHandle)>> {
        self.left.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A session begins.
    pub(super) fn begin(&self) {
        self.thinned.store(0, Relaxed);
        self.refused.store(0, Relaxed);
    }

    /// Whether any is held.
    pub(super) fn is_any(&self) -> bool {
        self.held.load(Relaxed) > 0
    }

    /// Room for one more.
    fn reserve(&self) -> bool {
        let one_more = |held| (held < MOST_HELD).then_some(held + 1);
        self.held.fetch_update(Relaxed, Relaxed, one_more).is_ok()
    }

    fn finish_release(&self, count: usize) {
        self.held.fetch_sub(count, Relaxed);
    }

    /// Gives back those that are no longer in use, as far as that can be done now. Agent thread.
    pub(super) fn release_unused(&self, runtimes: &mut Runtimes<'_>) {
        let mut left = std::mem::take(&mut *self.forget_runtime());
        left.sort_by_key(|(runtime, _)| *runtime);
        while let Some(runtime) = left.last().map(|(runtime, _)| *runtime) {
            let first = left.partition_point(|(other, _)| *other < runtime);
            let handles: Vec<_> = left.split_off(first).into_iter().map(|it| it.1).collect();
            let all = handles.len();
            // With a runtime that has ended they are gone.
            let later = runtimes.with(runtime, |clr, cx| destroy(clr, cx, handles));
            let later = later.unwrap_or_default();
            self.finish_release(all.saturating_sub(later.len()));
            self.forget_runtime()
                .extend(later.into_iter().map(|handle| (runtime, handle)));
        }
    }
}

/// Gives handles back to their runtime while it does not collect; answers those that have to wait.
fn destroy(
    clr: &Clr,
    cx: &mut Cx<'_, AgentThread>,
    handles: Vec<ObjectHandle>,
) -> Vec<ObjectHandle> {
    // Where no callback reports when it collects they wait for good: no more than `MOST_HELD`.
    let Some(gate) = clr.heap_gate() else {
        return handles;
    };
    for_each_inside(gate, handles, |handle| {
        // SAFETY: inside the gate, which the callback that comes before a collection closes; it
        // waits until the gate is empty. One that has given up waiting has broken the gate, which
        // is looked at before each handle.
        let _refused = unsafe { cx.info().destroy_handle_between_collections(cx, handle) };
    })
}

/// Does something with one item after the other while the gate is open, and never stays inside for
/// long; answers the items that are left when it is closed.
fn for_each_inside<T>(gate: &HeapGate, mut items: Vec<T>, mut each: impl FnMut(T)) -> Vec<T> {
    /// A collection waits for so many at most, 100 ns each.
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

/// A handle of an object. It is given back, whoever drops it.
#[derive(Debug)]
pub(super) struct Handle {
    runtime: u8,
    raw: Option<ObjectHandle>,
    of: Arc<Handles>,
}

impl Handle {
    /// Whether its object has not been collected, as far as its runtime says.
    fn has_object(&self, cx: &Cx<'_, AgentThread>) -> bool {
        let raw = self.raw.as_ref();
        raw.is_some_and(|raw| cx.info().handle_has_object(cx, raw).unwrap_or(true))
    }

    /// Its runtime is gone, and it is too.
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

/// A sample's handle of an object that is to be followed.
#[derive(Debug)]
pub(crate) struct Followed {
    handle: Handle,
    /// Bytes, its own; 0 where that is not told.
    size: u64,
    /// Collections that had ended.
    collections: u64,
    /// How often the others had been thinned out when it was weighed.
    thinned: u32,
}

/// An object of `size` bytes that stands for `value` is being allocated. `make` makes its handle,
/// and must be the first that asks the runtime for anything; `say` answers its type.
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

/// Returns the text of an object's detail beside its type.
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

    /// A collection waits for threads inside; then the gate lets no thread in, and what was not
    /// given back is kept.
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
                // The gate lets no thread in any more: it is being closed, or is closed.
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

    /// On average nothing is lost and nothing is won.
    #[test]
    fn thinned_samples_stand_for_all() {
        assert_eq!(thinned(100, 0), Some(100));
        for times in [1, 3] {
            let sum: u64 = (0..100_000).filter_map(|_| thinned(100, times)).sum();
            // 12,500 samples at least: deviation 0.9 %.
            assert!(sum.abs_diff(10_000_000) < 400_000, "{sum}");
        }
    }
}
