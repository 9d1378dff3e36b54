//! [`Reader`]: the one consumer of all ring buffers, on the agent thread.
//!
//! Each registered thread has a slot with a ring buffer, which its signal handler fills. The reader
//! rebuilds stacks, passes samples to the caller and frees the slots of ended threads. The clocks
//! that it drives are in `clocks`. Invariants: only the reader moves `tail`, only it frees slots
//! that ever had data, and it never waits for a handler.

use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::counters::{Counters, DiscardReason};
use crate::engine;
use crate::global::{GLOBAL, MAX_SLOTS};
use crate::maps::{self, StackSearch};
use crate::protocol::{CLOSING, LIVE};
use crate::sampler::{self, SlotId};
use crate::slot::{READER_BUFFER, Slot, WAIT_FRAMES};
use crate::stack::{HEAD_WORDS, Head, Rebuilt};
use crate::sys;
use crate::waits;

/// The event for which a sample was taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SampleEvent {
    /// The thread used CPU time.
    Cpu,
    /// Time passed.
    Wall,
}

/// One sample, borrowed by the callback of [`Reader::drain_all`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleView<'a> {
    /// Time of the sample, CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// The event for which it was taken.
    pub event: SampleEvent,
    /// CPU time (wall: elapsed time) that it stands for, nanoseconds.
    pub value: u64,
    /// Number of intervals that it stands for: 1, or more if the timer ticks slower than requested,
    /// a signal was late, or an idle thread's samples were joined.
    pub count: u32,
    /// [`crate::WalkResult::end`].
    pub end: u8,
    /// The words that the walker wrote, leaf first.
    pub frames: &'a [u64],
}

/// The consumer's side of a sampler, owned by the agent thread. There is one per sampler.
#[derive(Debug)]
pub struct Reader {
    /// Counts of slots that were freed since the last `take_counters`.
    from_ended: [u64; 7],
    taken_discarded: [u64; DiscardReason::COUNT],
    taken_refused: [u64; 16],
    pub(crate) pending_signals: u64,
    /// Whether the agent thread's timer slack has been reduced.
    pub(crate) punctual: bool,
    /// Time of the last tick of CPU clocks, and the agent thread's own clock then.
    pub(crate) last_clock_tick: (u64, u64),
}

/// Maximum delay of the report of a thread's idle time.
const IDLE_FLUSH_NS: u64 = 1_000_000_000;

/// Slots below this index keep their memory when they are freed. Above it, the pages of a sampled
/// slot are returned to the kernel.
const KEPT_BLOCKS: usize = 64;

/// Maximum number of stack probes settled with one reading of the maps file.
const PROBE_BATCH: usize = 64;

impl Reader {
    pub(crate) fn new() -> Self {
        let mut reader = Self {
            from_ended: [0; 7],
            taken_discarded: [0; DiscardReason::COUNT],
            taken_refused: [0; 16],
            pending_signals: 0,
            punctual: false,
            last_clock_tick: (0, 0),
        };
        // Counts of an earlier sampler are dropped.
        for slot in (0..GLOBAL.used()).filter_map(|index| GLOBAL.slot(index)) {
            take_slot(slot);
        }
        reader.take_counters();
        reader
    }

    /// Returns a file descriptor (a socket, close-on-exec) to poll for reading. It becomes readable
    /// when a ring buffer is half full, a [`crate::Sampler::probe_stack`] was answered, many
    /// threads have ended, or [`crate::Sampler::wake`] was called. Then call [`Reader::clear_wake`]
    /// and drain. Drain at regular intervals too. Call this before each poll: the result is -1,
    /// which `poll` ignores, after the program has closed the descriptor.
    pub fn wake_fd(&self) -> i32 {
        GLOBAL.wake_read.get().unwrap_or(-1)
    }

    /// Makes [`Reader::wake_fd`] unreadable again. Call it before draining.
    pub fn clear_wake(&mut self) {
        if let Some(fd) = GLOBAL.wake_read.get() {
            sys::take_notices(fd);
        }
        GLOBAL.wake_flag.clear();
    }

    /// Sets whether the next sample, of any thread, makes [`Reader::wake_fd`] readable, once. For a
    /// reader that sleeps long because there were no samples.
    pub fn call_at_next_sample(&mut self, call: bool) {
        GLOBAL.call_at_next_sample.store(call, Ordering::Relaxed);
    }

    /// Passes each sample of each slot in use to `sink`, oldest first within a slot. Frees the
    /// slots of unregistered threads once they are empty and calls `closed` for each, after which
    /// the slot's index may be reused for another thread. Slots that
    /// [`crate::Sampler::unregister_by`] has closed are not reported.
    pub fn drain_all(
        &mut self,
        mut sink: impl FnMut(SlotId, SampleView<'_>),
        mut closed: impl FnMut(SlotId),
    ) {
        GLOBAL.ended.store(0, Ordering::Relaxed);
        for index in 0..GLOBAL.used() {
            if !GLOBAL.take_pending(index) {
                continue;
            }
            let Some(slot) = GLOBAL.slot(index) else {
                continue;
            };
            let (generation, flags) = slot.gate.peek();
            if flags & LIVE == 0 {
                continue;
            }
            let id = SlotId::new(generation, index);
            // Checked before draining: a quiet slot gets nothing more.
            let last = flags & CLOSING != 0 && slot.gate.quiet(generation);
            drain_slot(slot, last, |view| sink(id, view));
            if last {
                if self.free(id, slot) {
                    closed(id);
                    GLOBAL.push_free(index);
                }
            } else if flags & CLOSING != 0 {
                GLOBAL.mark_pending(index); // a handler is still inside
            }
        }
    }

    /// Returns the bytes mapped for threads, mainly ring buffers: the maximum that can be resident.
    pub fn memory(&self) -> usize {
        let used = GLOBAL.used();
        let blocks: usize = (0..used)
            .filter_map(|index| GLOBAL.slot(index))
            .map(|slot| slot.block_len.load(Ordering::Relaxed))
            .sum();
        blocks + used * size_of::<Slot>()
    }

    /// Passes the samples of one slot to `sink`. Does nothing for a stale one.
    pub fn drain(&mut self, id: SlotId, sink: impl FnMut(SampleView<'_>)) {
        if let Some(slot) = id.slot() {
            let (generation, flags) = slot.gate.peek();
            if generation == id.generation() && flags & LIVE != 0 {
                drain_slot(slot, false, sink);
            }
        }
    }

    /// Frees a quiet, drained slot. Returns false if its thread has freed it.
    fn free(&mut self, id: SlotId, slot: &Slot) -> bool {
        // First, because the slot could otherwise be another thread's. No thread gets it before it
        // is on the free list.
        if !slot.gate.free(id.generation()) {
            return false;
        }
        engine::end_timer(slot);
        for (sum, more) in self.from_ended.iter_mut().zip(take_slot(slot)) {
            *sum += more;
        }
        if id.index() >= KEPT_BLOCKS && slot.samples.load(Ordering::Relaxed) > 0 {
            let block = slot.block.load(Ordering::Relaxed);
            let len = slot.block_len.load(Ordering::Relaxed);
            // SAFETY: our own mapping, which is unused: the slot is quiet and not yet on the free
            // list. Its contents may become zero: `register` expects nothing of them.
            unsafe { libc::madvise(block.cast(), len, libc::MADV_DONTNEED) };
        }
        true
    }

    /// Finds the stacks of the threads that have answered a [`crate::Sampler::probe_stack`], starts
    /// to sample these threads, and calls `settled` for each. Reads `/proc/self/maps` once if there
    /// are any.
    ///
    /// A thread's stack ends at its control block. If the stack pointer is elsewhere, on a
    /// coroutine's stack, the thread's samples are refused ([`DiscardReason::OffStack`]) until it
    /// is back. The main thread's control block is elsewhere.
    pub fn settle_stack_probes(&mut self, mut settled: impl FnMut(SlotId)) {
        // AcqRel: pairs with the handler's store.
        if !GLOBAL.answered.swap(false, Ordering::AcqRel) {
            return;
        }
        const NO_THREAD: (u64, StackSearch, Range<u64>) = (0, StackSearch::NONE, 0..0);
        let mut waiting = [NO_THREAD; PROBE_BATCH];
        let mut count = 0;
        for index in 0..GLOBAL.used() {
            let Some(slot) = GLOBAL.slot(index) else {
                continue;
            };
            let (generation, flags) = slot.gate.peek();
            if flags & (LIVE | CLOSING) != LIVE || !slot.reader.is_probed.load(Ordering::Relaxed) {
                continue;
            }
            let Some(place) = waiting.get_mut(count) else {
                GLOBAL.answered.store(true, Ordering::Relaxed); // the others are settled next time
                break;
            };
            // Acquire: pairs with the Release in the handler.
            let sp = slot.probe_sp.swap(0, Ordering::Acquire);
            if sp != 0 {
                let id = u64::from(generation) << 32 | index as u64;
                let tid = slot.tid.load(Ordering::Relaxed);
                let looking = StackSearch {
                    sp,
                    thread_pointer: slot.probe_tp.load(Ordering::Relaxed),
                    is_main: tid == GLOBAL.pid.load(Ordering::Relaxed) as u32,
                };
                *place = (id, looking, 0..0);
                slot.reader.is_probed.store(false, Ordering::Relaxed);
                count += 1;
            }
        }
        let Some(waiting) = waiting
            .get_mut(..count)
            .filter(|waiting| !waiting.is_empty())
        else {
            return;
        };
        maps::for_each(|mapping| {
            for (_, looking, stack) in waiting.iter_mut() {
                if let Some(found) = looking.stack_in(mapping) {
                    *stack = found;
                }
            }
            true
        });
        for (id, _, stack) in waiting.iter() {
            let id = SlotId::new((id >> 32) as u32, (id & 0xffff) as usize);
            if !stack.is_empty() && sampler::set_stack(id, stack.clone()).is_ok() {
                settled(id);
            }
        }
    }

    /// Returns the counts since the last call.
    pub fn take_counters(&mut self) -> Counters {
        if GLOBAL.signal_taken.load(Ordering::Relaxed) {
            GLOBAL.discard(DiscardReason::SignalTaken);
        }
        let mut sums = core::mem::take(&mut self.from_ended);
        for slot in (0..GLOBAL.used().min(MAX_SLOTS)).filter_map(|index| GLOBAL.slot(index)) {
            if slot.gate.peek().1 & LIVE != 0 {
                for (sum, more) in sums.iter_mut().zip(take_slot(slot)) {
                    *sum += more;
                }
            }
        }
        let [
            samples,
            intervals,
            value_ns,
            handler_ns,
            signals,
            lost_ns,
            sent,
        ] = sums;
        let mut counters = Counters {
            samples,
            intervals,
            value_ns,
            handler_ns,
            signals,
            lost_ns,
            sent,
            ..Counters::default()
        };
        let since = |now: u64, taken: &mut u64| now - core::mem::replace(taken, now);
        for ((out, total), taken) in counters
            .discarded
            .iter_mut()
            .zip(&GLOBAL.discarded)
            .zip(&mut self.taken_discarded)
        {
            *out = since(total.load(Ordering::Relaxed), taken);
        }
        for ((out, total), taken) in counters
            .refused_by_walker
            .iter_mut()
            .zip(&GLOBAL.refused_by_walker)
            .zip(&mut self.taken_refused)
        {
            *out = since(total.load(Ordering::Relaxed), taken);
        }
        if GLOBAL.events.is_any_taken() {
            // The thread whose signals were not queued is unknown.
            let is_full = counters.discarded(DiscardReason::QueueFull) > 0;
            for slot in (0..GLOBAL.used()).filter_map(|index| GLOBAL.slot(index)) {
                engine::restart(slot, is_full);
            }
        }
        if let Some(out) = counters
            .discarded
            .get_mut(DiscardReason::SignalPending as usize)
        {
            *out += core::mem::take(&mut self.pending_signals);
        }
        counters
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `Sampler::start`.
        GLOBAL.has_reader.store(false, Ordering::Release);
    }
}

/// Returns the slot's counts since the last call, in the order of `Reader::from_ended`.
fn take_slot(slot: &Slot) -> [u64; 7] {
    let now = [
        &slot.samples,
        &slot.intervals,
        &slot.value_ns,
        &slot.handler_ns,
        &slot.signals,
        &slot.lost_ns,
        &slot.sent,
    ];
    let mut since = [0; 7];
    for ((out, now), taken) in since.iter_mut().zip(now).zip(&slot.reader.taken) {
        let total = now.load(Ordering::Relaxed);
        *out = total.wrapping_sub(taken.swap(total, Ordering::Relaxed));
    }
    since
}

/// Handles memory that the program has overwritten: drops the content, and requests that the
/// handler writes its next stack whole.
fn discard_damaged(slot: &Slot, rebuilt: &mut Rebuilt<'_>) {
    GLOBAL.discard(DiscardReason::RingDamaged);
    rebuilt.depth = 0;
    slot.write_whole.store(true, Ordering::Relaxed);
}

/// Passes the ring buffer's samples to `sink`, after the idle time before them.
pub(crate) fn drain_slot(slot: &Slot, last: bool, mut sink: impl FnMut(SampleView<'_>)) {
    let side = &slot.reader;
    let depth = slot.max_depth.load(Ordering::Relaxed) as usize;
    if slot.block.load(Ordering::Relaxed).is_null() {
        return;
    }
    // SAFETY: the slot is open or quiet, so it has a block with three buffers of `max_depth` words;
    // the third is touched by the one reader only.
    let buffer =
        unsafe { core::slice::from_raw_parts_mut(slot.stack_buffer(READER_BUFFER), depth) };
    let mut rebuilt = Rebuilt {
        buffer,
        depth: side.depth.load(Ordering::Relaxed) as usize,
    };
    let ring = slot.ring();
    let (mut at, mut left) = ring.available();

    let idle = side.idle_ns.load(Ordering::Relaxed);
    let idle_at = side.idle_at.load(Ordering::Relaxed);
    let mut idles = idle > 0;
    let tell_idle = |sink: &mut dyn FnMut(SampleView<'_>), stack: &[u64]| {
        side.idle_ns.store(0, Ordering::Relaxed);
        sink(SampleView {
            time_ns: side.idle_until.load(Ordering::Relaxed),
            event: SampleEvent::Wall,
            value: idle,
            count: side.idle_ticks.swap(0, Ordering::Relaxed).max(1),
            end: side.end.load(Ordering::Relaxed),
            frames: stack,
        });
    };

    // Placed among the samples in time order, as far as the samples it stands for are consecutive.
    let waited = side.wait_ns.load(Ordering::Relaxed);
    let mut waits = waited > 0 && (left > 0 || last || waited >= IDLE_FLUSH_NS);
    let until = side.wait_until.load(Ordering::Relaxed);
    let tell_wait = |sink: &mut dyn FnMut(SampleView<'_>)| {
        side.wait_ns.store(0, Ordering::Relaxed);
        let mut words = [0; WAIT_FRAMES];
        sink(SampleView {
            time_ns: until,
            event: SampleEvent::Wall,
            value: waited,
            count: side.wait_ticks.swap(0, Ordering::Relaxed).max(1),
            end: slot.wait_end.load(Ordering::Relaxed),
            frames: waits::words(slot, &mut words),
        });
    };

    if left > ring.words.len() as u64 {
        // The counts are invalid too.
        discard_damaged(slot, &mut rebuilt);
        at = at.wrapping_add(left);
        left = 0;
    }
    while left > 0 {
        if idles && at == idle_at {
            idles = false;
            tell_idle(&mut sink, rebuilt.last());
        }
        let head = Head::unpack(ring.read(at));
        let fresh = usize::from(head.fresh);
        let len = (HEAD_WORDS + fresh) as u64;
        let time_ns = ring.read(at.wrapping_add(1));
        if waits && time_ns > until {
            waits = false;
            tell_wait(&mut sink);
        }
        let value = ring.read(at.wrapping_add(2));
        let first_frame = at.wrapping_add(HEAD_WORDS as u64);
        let read = |index: usize| ring.read(first_frame.wrapping_add(index as u64));
        let frames = if len <= left {
            rebuilt.apply(fresh, usize::from(head.shared), read)
        } else {
            None
        };
        match frames {
            Some(frames) => {
                side.end.store(head.end, Ordering::Relaxed);
                let event = if head.wall {
                    SampleEvent::Wall
                } else {
                    SampleEvent::Cpu
                };
                sink(SampleView {
                    event,
                    time_ns,
                    value,
                    count: head.count,
                    end: head.end,
                    frames,
                });
                at = at.wrapping_add(len);
                left -= len;
            }
            None => {
                discard_damaged(slot, &mut rebuilt);
                at = at.wrapping_add(left);
                left = 0;
            }
        }
    }
    // More time may be added to it if the thread is still there. If the ring buffer was damaged,
    // the place is lost.
    if idles && (last || at != idle_at || idle >= IDLE_FLUSH_NS) {
        tell_idle(&mut sink, rebuilt.last());
    }
    if waits {
        tell_wait(&mut sink);
    }
    side.depth.store(rebuilt.depth as u32, Ordering::Relaxed);
    ring.consume(at);
}
