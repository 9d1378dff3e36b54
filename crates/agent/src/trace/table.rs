//! Table of the traced methods, with the counters that their probes increment.
//!
//! A method's number is permanent: it is a constant in the method's code, which stays in memory
//! when tracing ends. Counters are split by processor, so that threads do not share cache lines.
//! Their memory is allocated by the kernel page by page, as durations occur. Invariants: counting
//! takes no lock and allocates nothing. Each count is in exactly one batch, even if a batch is
//! taken during counting.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use recording::histogram::{BUCKETS, bucket};

/// Maximum number of methods that are ever traced in a process.
pub(super) const MAX_METHODS: usize = 16 * 1024;
/// Maximum number of parts of a method's counters.
const MAX_SHARDS: usize = 16;
/// Number of buckets per group.
const GROUP: usize = 64;
const _: () = assert!(BUCKETS.div_ceil(GROUP) <= 64);

/// Counters of a method on one processor.
#[repr(C, align(64))]
struct Shard {
    /// Bit set of the groups with buckets that may not be 0.
    groups: AtomicU64,
    errors: AtomicU64,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
    /// Slow calls that were skipped, as slower ones are kept.
    passed: AtomicU64,
    passed_ns: AtomicU64,
    /// Calls of a runtime-async method that have begun, minus those that have ended. It wraps, as a
    /// call may end on another processor.
    open: AtomicU64,
    buckets: [AtomicU32; BUCKETS],
}

/// A traced method.
#[derive(Debug)]
pub(super) struct Method {
    /// Name as in metadata: `Shop.Cart+Item.Checkout`.
    pub(super) name: Arc<str>,
    /// Minimum duration of a slow call. Shorter calls are only counted. [`NEVER`] while the method
    /// is not traced.
    pub(super) min_ns: AtomicU64,
    /// Number of slow calls that were considered, and their time.
    pub(super) offered: AtomicU64,
    pub(super) offered_ns: AtomicU64,
    shards: &'static [Shard],
}

/// Value of `min_ns` for a method that is not traced now.
pub(super) const NEVER: u64 = u64::MAX;

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard").finish_non_exhaustive()
    }
}

/// The methods by number. Probes read it, as the number is their only argument.
static METHODS: [AtomicPtr<Method>; MAX_METHODS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_METHODS];

/// Number of methods.
static COUNT: Mutex<usize> = Mutex::new(0);

/// Ended calls of one method since the last batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CallBatch {
    pub(super) errors: u64,
    pub(super) sum_ns: u64,
    pub(super) max_ns: u64,
    /// Index and count of each bucket.
    pub(super) buckets: Vec<(u32, u64)>,
    /// Slow calls that were skipped.
    pub(super) passed: u64,
    pub(super) passed_ns: u64,
}

impl CallBatch {
    /// Returns the number of calls.
    pub(super) fn calls(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

/// Returns the method with this number.
#[inline]
pub(super) fn method(number: i32) -> Option<&'static Method> {
    let place = METHODS.get(usize::try_from(number).ok()?)?;
    let method = place.load(Acquire); // pairs with `add`
    // SAFETY: null, or what `add` put there, which is never freed.
    unsafe { method.as_ref() }
}

/// Returns a method without a number, on which the cost of counting is measured. `None` if there is
/// no memory.
pub(super) fn unlisted() -> Option<&'static Method> {
    static METHOD: OnceLock<Option<Method>> = OnceLock::new();
    METHOD.get_or_init(|| new("".into())).as_ref()
}

fn new(name: Arc<str>) -> Option<Method> {
    Some(Method {
        name,
        min_ns: AtomicU64::new(NEVER),
        offered: AtomicU64::new(0),
        offered_ns: AtomicU64::new(0),
        shards: new_shards()?,
    })
}

/// Adds a method, not traced yet, and returns its number. `None` if there are too many, or no
/// memory.
pub(super) fn add(name: Arc<str>) -> Option<(i32, &'static Method)> {
    let mut count = COUNT.lock().unwrap_or_else(PoisonError::into_inner);
    let place = METHODS.get(*count)?;
    let number = i32::try_from(*count).ok()?;
    let method: &'static Method = Box::leak(Box::new(new(name)?));
    place.store(std::ptr::from_ref(method).cast_mut(), Release); // pairs with `method`
    *count += 1;
    Some((number, method))
}

/// Takes the numbers of unfinished calls of runtime-async methods, by the method's number, and
/// resets them to 0.
pub(super) fn take_open() -> Vec<(i32, u64)> {
    let count = *COUNT.lock().unwrap_or_else(PoisonError::into_inner);
    let numbers = 0..i32::try_from(count).unwrap_or(i32::MAX);
    let open = numbers.filter_map(|number| {
        let open = method(number)?.take_open();
        (open > 0).then_some((number, open))
    });
    open.collect()
}

/// Reserves address space for the counters of a method. Pages are allocated at the first count in
/// them.
fn new_shards() -> Option<&'static [Shard]> {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    let count = processors.next_power_of_two().clamp(1, MAX_SHARDS);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: requests new pages at any address.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            count * size_of::<Shard>(),
            access,
            flags,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the kernel gave that many bytes, of zeros, which are a valid `Shard` (atomic
    // integers); pages are aligned more than it needs; no other code has them, and they are never
    // given back.
    Some(unsafe { std::slice::from_raw_parts(start.cast::<Shard>(), count) })
}

impl Method {
    /// Whether each call of it is a slow one. Also valid when its last calls are taken after
    /// tracing.
    pub(super) fn is_slow_from_0(&self) -> bool {
        matches!(self.min_ns.load(Relaxed), 0 | NEVER)
    }

    /// Counts the end of a call, on the given processor (a recent one of the thread).
    #[inline]
    pub(super) fn count(&self, processor: u32, ns: u64, is_error: bool) {
        let Some(shard) = self.shard(processor) else {
            return;
        };
        let at = bucket(ns);
        if let Some(bucket) = shard.buckets.get(at) {
            // SeqCst, both: pairs with `take`. Either the group is marked when the count is stored,
            // or `take` reads it later and finds the count.
            bucket.fetch_add(1, SeqCst);
            let group = 1u64 << (at / GROUP);
            if shard.groups.load(SeqCst) & group == 0 {
                shard.groups.fetch_or(group, SeqCst);
            }
        }
        shard.sum_ns.fetch_add(ns, Relaxed);
        if ns > shard.max_ns.load(Relaxed) {
            shard.max_ns.fetch_max(ns, Relaxed);
        }
        if is_error {
            shard.errors.fetch_add(1, Relaxed);
        }
    }

    /// Counts a slow call that is not kept, as there are slower ones.
    #[inline]
    pub(super) fn pass(&self, processor: u32, ns: u64) {
        if let Some(shard) = self.shard(processor) {
            shard.passed.fetch_add(1, Relaxed);
            shard.passed_ns.fetch_add(ns, Relaxed);
        }
    }

    /// Counts the start of a call of a runtime-async method.
    #[inline]
    pub(super) fn has_begun(&self, processor: u32) {
        if let Some(shard) = self.shard(processor) {
            shard.open.fetch_add(1, Relaxed);
        }
    }

    /// Counts its end, on any thread.
    #[inline]
    pub(super) fn has_ended(&self, processor: u32) {
        if let Some(shard) = self.shard(processor) {
            shard.open.fetch_sub(1, Relaxed);
        }
    }

    fn take_open(&self) -> u64 {
        let shards = self.shards.iter();
        let open = shards.map(|shard| match shard.open.load(Relaxed) {
            // A page that is never written to is not allocated.
            0 => 0,
            _ => shard.open.swap(0, Relaxed),
        });
        let open = open.fold(0, u64::wrapping_add);
        // If calls end during the take.
        if open.cast_signed() < 0 { 0 } else { open }
    }

    #[inline]
    fn shard(&self, processor: u32) -> Option<&Shard> {
        self.shards
            .get(processor as usize & (self.shards.len().wrapping_sub(1)))
    }

    /// Takes the counts since the last time.
    pub(super) fn take(&self) -> CallBatch {
        let mut batch = CallBatch::default();
        for shard in self.shards {
            // Read only, if no call was counted: a page that is never written to is not allocated.
            let groups = match shard.groups.load(SeqCst) {
                0 => 0,
                _ => shard.groups.swap(0, SeqCst),
            };
            for (group, buckets) in shard.buckets.chunks(GROUP).enumerate() {
                if groups & 1 << group == 0 {
                    continue;
                }
                for (at, bucket) in buckets.iter().enumerate() {
                    let count = u64::from(bucket.swap(0, SeqCst));
                    if count > 0 {
                        let at = u32::try_from(group * GROUP + at).unwrap_or(u32::MAX);
                        batch.buckets.push((at, count));
                    }
                }
            }
            // The sums of calls of the previous batch may be in this one, as their buckets were
            // counted first.
            if shard.sum_ns.load(Relaxed) | shard.errors.load(Relaxed) | shard.passed.load(Relaxed)
                == 0
            {
                continue;
            }
            batch.errors += shard.errors.swap(0, AcqRel);
            batch.sum_ns = batch.sum_ns.wrapping_add(shard.sum_ns.swap(0, AcqRel));
            batch.max_ns = batch.max_ns.max(shard.max_ns.swap(0, AcqRel));
            batch.passed += shard.passed.swap(0, AcqRel);
            batch.passed_ns = batch
                .passed_ns
                .wrapping_add(shard.passed_ns.swap(0, AcqRel));
        }
        batch.buckets.sort_unstable();
        batch.buckets.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                first.1 += later.1;
            }
            same
        });
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn what_is_counted_is_taken_once() {
        let (number, method) = add("A.B".into()).unwrap();
        assert!(std::ptr::eq(super::method(number).unwrap(), method));
        assert!(super::method(-1).is_none() && super::method(i32::MAX).is_none());
        for ns in [0, 63, 64, 1_000, 1_000, 5_000_000_000] {
            method.count(u32::MAX, ns, ns == 64);
        }
        method.count(0, 1_000, true);
        method.pass(1, 7);
        let batch = method.take();
        assert_eq!((batch.calls(), batch.errors), (7, 2));
        assert_eq!((batch.sum_ns, batch.max_ns), (5_000_003_127, 5_000_000_000));
        assert_eq!(batch.buckets.len(), 5);
        assert_eq!(method.take(), CallBatch::default());
    }

    #[test]
    fn calls_that_go_on_are_taken_once() {
        let (number, method) = add("A.E".into()).unwrap();
        let of_it = || take_open().into_iter().find(|(one, _)| *one == number);
        for _ in 0..5 {
            method.has_begun(0);
        }
        method.has_ended(1);
        method.has_ended(0);
        assert_eq!(of_it(), Some((number, 3)));
        assert_eq!(of_it(), None);
    }

    #[test]
    fn the_longest_call_is_that_of_its_batch() {
        let (_, method) = add("A.D".into()).unwrap();
        method.count(0, 9_000, false);
        assert_eq!(method.take().max_ns, 9_000);
        method.count(0, 20, false);
        assert_eq!(method.take().max_ns, 20);
    }

    #[test]
    fn no_count_is_lost_while_it_is_taken() {
        const EACH: u64 = 200_000;
        let (_, method) = add("A.C".into()).unwrap();
        let done = AtomicBool::new(false);
        let mut calls = 0;
        std::thread::scope(|scope| {
            let counting: Vec<_> = (0..3u32)
                .map(|thread| {
                    scope.spawn(move || {
                        for n in 0..EACH {
                            method.count(thread, (n * 7919) % 100_000, false);
                        }
                    })
                })
                .collect();
            let taken = scope.spawn(|| {
                let mut taken = 0;
                while !done.load(Acquire) {
                    taken += method.take().calls();
                }
                taken
            });
            for thread in counting {
                thread.join().unwrap();
            }
            done.store(true, Release);
            calls += taken.join().unwrap();
        });
        calls += method.take().calls();
        assert_eq!(calls, 3 * EACH);
    }
}
