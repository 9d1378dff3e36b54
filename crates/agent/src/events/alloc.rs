//! Allocation: which objects are sampled, and how many bytes each sample stands for.
//!
//! Three sources, one rule: a sample's value is what makes the sum over all samples of a type
//! equal, on average, to the bytes allocated for that type. Invariant: the callbacks here run on
//! the allocating thread in cooperative mode and do not block.

use std::cell::RefCell;

use corprof::context::{Callback, Cooperative};
use corprof::{ClassId, ClassKey, Cx, ObjectId, RuntimeIndex};
use recording::Event;

use crate::clr::Clr;
use crate::proc;
use crate::random::next_random;

/// Bytes between two AllocationTick events of one heap (`etw_allocation_tick`, src/coreclr/gc/gc.cpp),
/// and the mean between two AllocationSampled events
/// (`AllocationSamplingKeyword`, docs/design/features/RandomizedAllocationSampling.md).
pub(crate) const TICK_BYTES: u64 = 100 * 1024;

/// What a thread that allocates keeps.
struct Allocator {
    random: u64,
    /// Bytes until the next sample; none before the first object.
    left: Option<f64>,
}

thread_local! {
    static ALLOCATOR: RefCell<Allocator> = const {
        RefCell::new(Allocator { random: 0, left: None })
    };
}

impl Allocator {
    /// Uniform in (0, 1].
    fn uniform(&mut self) -> f64 {
        if self.random == 0 {
            let here = (&raw const *self) as u64;
            self.random = (proc::now_ns() ^ here.rotate_left(32)) | 1;
        }
        let bits = next_random(&mut self.random) >> 11;
        (bits + 1) as f64 / (1u64 << 53) as f64
    }

    /// Whether an object of `size` bytes is sampled, and the bytes that it then stands for.
    ///
    /// The bytes of a thread are a line on which points lie at random, `mean` apart on average; an
    /// object with a point in it is sampled. That has the probability 1 − e^(−size/mean), and the
    /// value is the size divided by it.
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

    /// A sample of `bytes` bytes, thinned out so that samples stand for `interval` bytes at least.
    fn thin(&mut self, bytes: u64, interval: u64) -> Option<u64> {
        if bytes >= interval {
            return Some(bytes);
        }
        (self.uniform() * interval as f64 <= bytes as f64).then_some(interval)
    }

    /// To a whole number, up or down by chance, so that nothing is lost on average.
    fn round(&mut self, value: f64) -> u64 {
        let whole = value.floor();
        let up = self.uniform() <= value - whole;
        whole as u64 + u64::from(up)
    }
}

fn allocator<R>(ask: impl FnOnce(&mut Allocator) -> Option<R>) -> Option<R> {
    ALLOCATOR
        .try_with(|own| ask(&mut *own.try_borrow_mut().ok()?))
        .ok()?
}

/// `ObjectAllocated`: every object of the program, .NET Core 3.1.
pub(crate) fn object_allocated<'rt>(
    clr: &Clr,
    cx: &mut Cx<'rt, Cooperative>,
    object: ObjectId<'rt>,
    class: ClassId<'rt>,
) {
    let events = clr.events();
    if !events.is_on() {
        return;
    }
    let Ok(size) = cx.info().get_object_size2(cx, object) else {
        return;
    };
    // The allocator rounds up to the alignment of objects; the runtime does not say so.
    let size = (size as u64).next_multiple_of(8);
    let Some(value) = allocator(|own| own.sample(size, events.alloc_interval())) else {
        return;
    };
    if let Some(place) = events.offer(Event::Alloc, value) {
        let name = clr.names().class(cx, class);
        let sample = events.sample(clr, cx, Event::Alloc, value, name, size_text(size));
        events.push(place, sample);
    }
}

/// What an event says of an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Allocated {
    /// ClassID.
    pub(super) class: usize,
    /// Its class as the event names it: without the types that it is nested in.
    pub(super) type_name: String,
    /// Bytes, where the event says it.
    pub(super) size: Option<u64>,
}

/// An AllocationTick: `amount` bytes have been allocated on its heap since the last one, and this
/// is the object that was being allocated then.
pub(super) fn tick<'rt>(clr: &Clr, cx: &mut Cx<'rt, Callback>, amount: u64, allocated: &Allocated) {
    let interval = clr.events().alloc_interval();
    if let Some(value) = allocator(|own| own.thin(amount, interval)) {
        keep(clr, cx, value, allocated);
    }
}

/// An AllocationSampled: an object of `size` bytes in which a sampling point lay.
pub(super) fn sampled<'rt>(clr: &Clr, cx: &mut Cx<'rt, Callback>, allocated: &Allocated) {
    let interval = clr.events().alloc_interval();
    let size = allocated.size.unwrap_or(0) as f64;
    let value = allocator(|own| {
        let probability = -(-size / TICK_BYTES as f64).exp_m1();
        let bytes = own.round(size / probability);
        own.thin(bytes, interval)
    });
    if let Some(value) = value {
        keep(clr, cx, value, allocated);
    }
}

fn keep<'rt>(clr: &Clr, cx: &mut Cx<'rt, Callback>, value: u64, allocated: &Allocated) {
    let events = clr.events();
    let Some(place) = events.offer(Event::Alloc, value) else {
        return;
    };
    let runtime = RuntimeIndex(u32::from(clr.index()));
    // SAFETY: this runtime has just told of the class (a ClassID is the address of the type's
    // MethodTable, which is what the event's TypeID is), and an object of it is being made.
    let key = unsafe { ClassKey::from_parts(runtime, allocated.class) };
    let class = key.and_then(|key| cx.info().id(key));
    let name = match class {
        Some(class) => clr.names().class(cx, class),
        None => allocated.type_name.as_str().into(),
    };
    let text = allocated.size.map(size_text).unwrap_or_default();
    let sample = events.sample(clr, cx, Event::Alloc, value, name, text);
    events.push(place, sample);
}

fn size_text(size: u64) -> String {
    format!("{size} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(seed: u64) -> Allocator {
        Allocator {
            random: seed,
            left: None,
        }
    }

    #[test]
    fn sums_by_size_are_right_on_average() {
        let mut own = own(7);
        // Small and large objects in turn, as much of each; 64 MiB of each kind.
        let (mut small, mut large) = (0u64, 0u64);
        let total = 64u64 << 20;
        for _ in 0..total / (1 << 18) {
            for _ in 0..(1 << 18) / 32 {
                small += own.sample(32, 4096).unwrap_or(0);
            }
            large += own.sample(1 << 18, 4096).unwrap_or(0);
        }
        // 16,384 samples of small objects: deviation 0.8 %.
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
    fn no_interval_takes_every_object() {
        assert_eq!(own(3).sample(24, 0), Some(24));
    }
}
