//! Allocation events: which objects are sampled, and how many bytes each sample represents.
//!
//! Input: AllocationTick and AllocationSampled events (`event_pipe`) and `ObjectAllocated`
//! callbacks. Output: samples in the event queue (`queue`). For every source, the weights of a
//! type's samples add up, on average, to the bytes allocated for that type. AllocationTick alone
//! cannot achieve that for large objects (see [`tick`]). Those come from `ObjectAllocated`, which
//! the runtime can call for large objects alone. Invariant: the callbacks run on the allocating
//! thread in cooperative mode and do not block.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use corprof::context::{Callback, Cooperative};
use corprof::sys::CorPrfHandleType;
use corprof::{ClassId, ClassKey, Cx, EventMaskHigh, EventMaskLow, ObjectId};
use recording::Event;

use super::event_pipe::{
    KEYWORD_ALLOCATION_SAMPLING, KEYWORD_GC, LEVEL_INFORMATIONAL, LEVEL_VERBOSE, Wide,
};
use super::source::{EventSource, Need, RuntimeFacts, SourceQuery, SubscribeTime};
use super::{Origin, live};
use crate::base::proc;
use crate::base::random::next_random;

/// Bytes between two AllocationTick events of one heap (`etw_allocation_tick`,
/// src/coreclr/gc/gc.cpp), and the mean between two AllocationSampled events
/// (`AllocationSamplingKeyword`, docs/design/features/RandomizedAllocationSampling.md).
pub(crate) const TICK_BYTES: u64 = 100 * 1024;

/// The source of allocation events.
pub(super) struct Allocations;

impl EventSource for Allocations {
    fn event(&self) -> Event {
        Event::Alloc
    }

    fn need(&self, asked: SourceQuery<'_>) -> Result<Need, String> {
        let interval = asked.settings.alloc_interval;
        let runtime = asked.runtime;
        match (runtime.event_pipe, asked.how) {
            (false, SubscribeTime::Startup) => Ok(Need {
                low: EventMaskLow::ENABLE_OBJECT_ALLOCATED | EventMaskLow::MONITOR_OBJECT_ALLOCATED,
                interval,
                ..Need::nothing("ObjectAllocated callback")
            }),
            (false, SubscribeTime::Attached) => Err(format!(
                "no alloc samples of .NET {}: it reports allocations only to a profiler that was \
                 loaded at its start (.NET 5 and later: at any time)",
                runtime.version
            )),
            (true, _) => Ok(of_own_events(runtime, interval)),
        }
    }
}

/// Returns the needs of allocation events in a runtime with EventPipe sessions for profilers.
pub(super) fn of_own_events(runtime: &RuntimeFacts, interval: u64) -> Need {
    let interval = interval.max(TICK_BYTES);
    if runtime.major >= 10 {
        return Need {
            keywords: KEYWORD_ALLOCATION_SAMPLING,
            level: LEVEL_INFORMATIONAL,
            is_apart: true,
            interval,
            ..Need::nothing("AllocationSampled event")
        };
    }
    Need {
        high: EventMaskHigh::MONITOR_LARGEOBJECT_ALLOCATED,
        keywords: KEYWORD_GC,
        level: LEVEL_VERBOSE,
        // .NET 5 ends such a session by other code, which is untested, so its session is ended only
        // once.
        is_apart: runtime.major >= 6,
        interval,
        ..Need::nothing("AllocationTick event, ObjectAllocated for large objects")
    }
}

/// Sampling state of a thread that allocates.
struct ByteSampling {
    random: u64,
    /// Bytes until the next sample; `None` before the first object.
    left: Option<f64>,
}

thread_local! {
    static SAMPLING: RefCell<ByteSampling> = const {
        RefCell::new(ByteSampling { random: 0, left: None })
    };
}

impl ByteSampling {
    /// Returns a uniform random number in (0, 1].
    fn uniform(&mut self) -> f64 {
        if self.random == 0 {
            let here = (&raw const *self) as u64;
            self.random = (proc::now_ns() ^ here.rotate_left(32)) | 1;
        }
        let bits = next_random(&mut self.random) >> 11;
        (bits + 1) as f64 / (1u64 << 53) as f64
    }

    /// Returns the bytes that an object of `size` bytes represents, if it is sampled.
    ///
    /// Sampling points lie at random on the line of a thread's allocated bytes, `mean` apart on
    /// average. An object that contains a point is sampled. That has the probability 1 −
    /// e^(−size/mean), and the weight is the size divided by it.
    fn sample(&mut self, size: u64, mean: u64) -> Option<u64> {
        if mean == 0 {
            return Some(size);
        }
        let (size_, mean) = (size as f64, mean as f64);
        let left = match self.left {
            Some(left) => left,
            None => -mean * self.uniform().ln(),
        } - size_;
        if left > 0.0 {
            self.left = Some(left);
            return None;
        }
        self.left = Some(-mean * self.uniform().ln());
        let probability = -(-size_ / mean).exp_m1();
        Some(self.round(size_ / probability))
    }

    /// Thins out a sample of `bytes` bytes, so that each kept sample represents at least `interval`
    /// bytes.
    fn thin(&mut self, bytes: u64, interval: u64) -> Option<u64> {
        if bytes >= interval {
            return Some(bytes);
        }
        (self.uniform() * interval as f64 <= bytes as f64).then_some(interval)
    }

    /// Rounds to an integer, up or down at random, so that the average is exact.
    fn round(&mut self, value: f64) -> u64 {
        let whole = value.floor();
        let up = self.uniform() <= value - whole;
        whole as u64 + u64::from(up)
    }
}

fn sampling<R>(ask: impl FnOnce(&mut ByteSampling) -> Option<R>) -> Option<R> {
    SAMPLING
        .try_with(|own| ask(&mut *own.try_borrow_mut().ok()?))
        .ok()?
}

/// `ObjectAllocated`: every object on .NET Core 3.1; every object of the large object heap on .NET
/// 5 to 9.
pub(crate) fn object_allocated<'rt>(
    origin: Origin<'_>,
    cx: &mut Cx<'rt, Cooperative>,
    object: ObjectId<'rt>,
    class: ClassId<'rt>,
) {
    let events = origin.events;
    if !events.is_on() {
        return;
    }
    let Ok(size) = cx.info().get_object_size2(cx, object) else {
        return;
    };
    // The reported size lacks the allocator's rounding to the alignment of objects.
    let size = (size as u64).next_multiple_of(8);
    let Some(value) = sampling(|own| own.sample(size, events.alloc_interval())) else {
        return;
    };
    // First, while the object is at the callback's address.
    let make = |cx: &Cx<'rt, Cooperative>| {
        let kind = CorPrfHandleType::WEAK;
        cx.info().create_handle(cx, object, kind)
    };
    let name = |cx: &Cx<'rt, Cooperative>| origin.own.names.class(origin.clr, cx, class);
    live::allocated(origin, cx, value, size, make, name);
    origin.happened(cx, Event::Alloc, value, |cx| (name(cx), size_text(size)));
}

/// The heaps with separate byte counts, as numbered in events (`gc_oh_num`,
/// src/coreclr/gc/gcinterface.h).
pub(super) const LARGE_HEAP: u32 = 1;
const HEAPS: usize = 3;

/// Amount of the last tick of each heap, in bytes.
#[derive(Debug)]
pub(super) struct Ticks([AtomicU64; HEAPS]);

impl Ticks {
    pub(super) const fn new() -> Ticks {
        Ticks([const { AtomicU64::new(TICK_BYTES) }; HEAPS])
    }

    /// Returns the bytes that a tick's object represents: the amount of the previous tick.
    ///
    /// The heap counts up to [`TICK_BYTES`] or more, then restarts at 0. The probability that an
    /// object ends the count grows with its size, as it should. But a larger object also makes the
    /// count larger: with its own tick's amount it would represent bytes of smaller objects too
    /// (one in ten, for a thread with objects of 1 to 80 KB beside one with small ones). The
    /// previous amount is equal on average and independent of this object. No byte is lost; it only
    /// counts for the next tick.
    fn weigh(&self, heap: u32, amount: u64) -> u64 {
        match self.0.get(heap as usize) {
            Some(last) => last.swap(amount, Ordering::Relaxed),
            None => amount,
        }
    }
}

/// An event's facts about an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Allocated<'a> {
    /// Its ClassID.
    pub(super) class: usize,
    /// Its class name in the event, without the enclosing types of a nested class.
    pub(super) type_name: Wide<'a>,
    /// Size in bytes, if the event has it.
    pub(super) size: Option<u64>,
    /// Its address, now or a moment later.
    pub(super) address: usize,
}

/// The byte count of an AllocationTick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AllocTick {
    /// Heap number, `gc_oh_num`.
    pub(super) heap: u32,
    /// Bytes allocated on that heap since its last tick.
    pub(super) amount: u64,
}

/// Handles an AllocationTick and the object that was being allocated.
///
/// Ticks of large objects are left to [`object_allocated`]. An object of more than [`TICK_BYTES`]
/// ends every count, so slightly smaller ones would never be sampled beside it.
///
/// The heap counts whether or not a session exists (`gc_heap::try_allocate_more_space`,
/// src/coreclr/gc/gc.cpp). The first tick of a duty cycle's listening window is therefore like the
/// others.
pub(super) fn tick<'rt>(
    origin: Origin<'_>,
    cx: &mut Cx<'rt, Callback>,
    tick: AllocTick,
    allocated: &Allocated<'_>,
) {
    let times = origin.own.alloc_session.object();
    if tick.heap == LARGE_HEAP {
        return;
    }
    let events = origin.events;
    let bytes = events.ticks.weigh(tick.heap, tick.amount);
    let bytes = bytes.saturating_mul(times);
    if let Some(value) = sampling(|own| own.thin(bytes, events.alloc_interval())) {
        keep(origin, cx, value, allocated);
    }
}

/// Handles an AllocationSampled: an object of `size` bytes that contains a sampling point.
pub(super) fn sampled<'rt>(
    origin: Origin<'_>,
    cx: &mut Cx<'rt, Callback>,
    allocated: &Allocated<'_>,
) {
    let interval = origin.events.alloc_interval();
    let size = allocated.size.unwrap_or(0) as f64;
    let times = origin.own.alloc_session.object();
    let value = sampling(|own| {
        let probability = -(-size / TICK_BYTES as f64).exp_m1();
        let bytes = own.round(size / probability);
        own.thin(bytes.saturating_mul(times), interval)
    });
    if let Some(value) = value {
        keep(origin, cx, value, allocated);
    }
}

fn keep<'rt>(
    origin: Origin<'_>,
    cx: &mut Cx<'rt, Callback>,
    value: u64,
    allocated: &Allocated<'_>,
) {
    let name = |cx: &Cx<'rt, Callback>| -> Arc<str> {
        // SAFETY: this runtime has just reported the class (a ClassID is the address of the type's
        // MethodTable, which is the event's TypeID), and an object of it is being allocated.
        let key = unsafe { ClassKey::from_parts(cx.info().index(), allocated.class) };
        let class = key.and_then(|key| cx.info().id(key));
        match class {
            Some(class) => origin.own.names.class(origin.clr, cx, class),
            None => allocated.type_name.to_text().into(),
        }
    };
    let make = |cx: &Cx<'rt, Callback>| {
        let kind = CorPrfHandleType::WEAK;
        // SAFETY: the event is of an allocation on this thread, raised by the allocator in
        // cooperative mode (`gc_heap::adjust_limit_clr` for AllocationTick, `Alloc` of
        // src/coreclr/vm/gchelpers.cpp for AllocationSampled). The address is what it returns to
        // its caller. The only earlier call into the runtime in this callback is for a provider's
        // name.
        unsafe { cx.info().create_handle_at(cx, allocated.address, kind) }
    };
    // First, before any other call into the runtime.
    let size = allocated.size.unwrap_or(0);
    live::allocated(origin, cx, value, size, make, name);
    origin.happened(cx, Event::Alloc, value, |cx| {
        (name(cx), allocated.size.map(size_text).unwrap_or_default())
    });
}

/// Returns the bytes that a sample represents after `times` halvings of the sample set, if it is
/// kept.
pub(super) fn thinned(value: u64, times: u32) -> Option<u64> {
    if times == 0 {
        return Some(value);
    }
    let value = value.checked_shl(times).unwrap_or(u64::MAX);
    sampling(|own| (own.uniform() <= 0.5f64.powi(times.cast_signed())).then_some(value))
}

/// Returns an object's size for a detail's text.
pub(super) fn size_text(size: u64) -> String {
    format!("{size} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(seed: u64) -> ByteSampling {
        ByteSampling {
            random: seed,
            left: None,
        }
    }

    #[test]
    fn sums_by_size_are_right_on_average() {
        let mut own = own(7);
        // Small and large objects alternate in equal amounts; 64 MiB of each kind.
        let (mut small, mut large) = (0u64, 0u64);
        let total = 64u64 << 20;
        for _ in 0..total / (1 << 18) {
            for _ in 0..(1 << 18) / 32 {
                small += own.sample(32, 4096).unwrap_or(0);
            }
            large += own.sample(1 << 18, 4096).unwrap_or(0);
        }
        // 16,384 samples of small objects: standard deviation 0.8 %.
        let error = small.abs_diff(total) as f64 / total as f64;
        assert!(error < 0.03, "{small} of {total}");
        assert_eq!(large, total);
    }

    #[test]
    fn thinning_keeps_the_sum() {
        let mut own = own(9);
        let (mut sum, mut count) = (0u64, 0u64);
        for _ in 0..100_000 {
            if let Some(value) = own.thin(100_000, 500_000) {
                assert_eq!(value, 500_000);
                sum += value;
                count += 1;
            }
        }
        assert!((19_400..20_600).contains(&count), "{count}");
        assert_eq!(sum, count * 500_000);
        assert_eq!(own.thin(600_000, 500_000), Some(600_000));
        assert_eq!(own.thin(1, 0), Some(1));
    }

    #[test]
    fn a_tick_favours_no_size() {
        let mut own = own(11);
        let ticks = Ticks::new();
        // Allocations of a thread with small objects, and of one with arrays of all sizes.
        let (mut counted, mut weighed, mut ended_by) = ([0u64; 2], [0u64; 2], [0u64; 2]);
        let mut running = 0;
        for _ in 0..2_000_000 {
            let kind = usize::from(own.uniform() <= 0.2);
            let bytes = match kind {
                0 => 8 << 10,
                _ => (8 << 10) + (own.uniform() * 76_000.0) as u64,
            };
            counted[kind] += bytes;
            running += bytes;
            if running > TICK_BYTES {
                weighed[kind] += ticks.weigh(0, running);
                ended_by[kind] += running;
                running = 0;
            }
        }
        let error = |sums: [u64; 2], kind: usize| sums[kind] as f64 / counted[kind] as f64 - 1.0;
        let (small, large) = (error(weighed, 0), error(weighed, 1));
        assert!(small.abs() < 0.02 && large.abs() < 0.02, "{small} {large}");
        // For comparison: the error of the ticks' own amounts.
        let (small, large) = (error(ended_by, 0), error(ended_by, 1));
        assert!(small < -0.06 && large > 0.04, "{small} {large}");
    }

    #[test]
    fn heaps_count_apart_and_one_that_is_unknown_is_itself() {
        let ticks = Ticks::new();
        assert_eq!(ticks.weigh(0, 111_000), TICK_BYTES);
        assert_eq!(ticks.weigh(2, 222_000), TICK_BYTES);
        assert_eq!(ticks.weigh(0, 1), 111_000);
        assert_eq!(ticks.weigh(7, 333), 333);
    }

    #[test]
    fn no_interval_takes_every_object() {
        assert_eq!(own(3).sample(24, 0), Some(24));
    }
}
