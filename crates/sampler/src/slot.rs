//! Slot: the state of one registered thread, shared by its handler and the reader.
//!
//! The slot's memory block has the ring buffer and the stack buffers. `protocol` defines who may
//! access which word when. Invariant: the fields under "handler" are written only between `enter`
//! and `leave` of the slot's gate, its lock-free ownership word (or by `register`, before `open`).
//! Those under "reader" are written only by the one [`crate::Reader`]. So all are Relaxed.

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use crate::config::Scratch;
use crate::protocol::{Gate, Ring};

/// No timer.
pub(crate) const NO_TIMER: u64 = 0;

/// All zero is a free slot that was never used: the table is fresh anonymous memory.
#[repr(C, align(64))]
pub(crate) struct Slot {
    pub(crate) gate: Gate,
    /// Written by `register` before `open`.
    pub(crate) tid: AtomicU32,
    /// Link of the free list: index + 1, 0 = end.
    pub(crate) next_free: AtomicU32,
    /// Written between `begin_arm` and `set_known`.
    pub(crate) stack_low: AtomicU64,
    pub(crate) stack_high: AtomicU64,
    /// [`crate::engine::Timer`] as a word; swapped, so that exactly one party ends it.
    pub(crate) timer: AtomicU64,
    /// The value that the timer's signals carry. Written before `timer`.
    pub(crate) token: AtomicU64,
    /// The memory block, kept when the slot is free. Changed only by `register`.
    pub(crate) block: AtomicPtr<u8>,
    pub(crate) block_len: AtomicUsize,
    /// Geometry of the block, written by `register` before `open`.
    pub(crate) ring_words: AtomicU32,
    pub(crate) max_depth: AtomicU32,

    // Handler.
    pub(crate) head: AtomicU64,
    /// Depth of the last committed stack, in the buffer `last_buffer`.
    pub(crate) last_depth: AtomicU32,
    pub(crate) last_buffer: AtomicU8,
    /// Whether the first tick, after a random part of the interval, is still to come.
    pub(crate) first_tick: AtomicBool,
    /// Value and address of the cookie that the handler inside the gate has put on its stack.
    pub(crate) cookie: AtomicU64,
    pub(crate) cookie_at: AtomicU64,
    /// Time up to which wall-clock samples account for the thread. Written by the reader too, but
    /// only while no wall-clock signal is under way (`wall_signal`).
    pub(crate) wall_time: AtomicU64,
    /// CPU time of the thread up to which samples stand for it (perf), or when its timer was armed.
    pub(crate) accounted_cpu: AtomicU64,
    /// Number of ticks to skip before the next walk, because the last one took so long.
    pub(crate) ticks_to_skip: AtomicU64,
    /// Whether the route is [`crate::Route::Own`]. Written by `register` before `open`.
    pub(crate) on_own_signal: AtomicBool,
    /// Whether the thread has run on a foreign stack without having an alternate one. It is not
    /// signalled any more.
    pub(crate) strayed: AtomicBool,
    /// Whether its timer is stopped until the thread may be signalled again.
    pub(crate) paused: AtomicBool,
    /// Number of threads whose CPU time its ticks stand for. Written by the code that registers it.
    pub(crate) threads: AtomicU32,
    pub(crate) samples: AtomicU64,
    pub(crate) intervals: AtomicU64,
    pub(crate) value_ns: AtomicU64,
    pub(crate) handler_ns: AtomicU64,
    pub(crate) signals: AtomicU64,
    pub(crate) lost_ns: AtomicU64,
    /// Number of the `signals` that the reader sent.
    pub(crate) sent: AtomicU64,
    /// CPU time that ticks have stood for, samples and lost ones.
    pub(crate) cpu_reported: AtomicU64,
    /// Stack pointer and thread pointer from `probe_stack`; pointer 0 = none.
    pub(crate) probe_sp: AtomicU64,
    pub(crate) probe_tp: AtomicU64,
    /// CPU time of the thread when the handler left it after a wall-clock sample.
    pub(crate) cpu_after: AtomicU64,
    /// No wall-clock sample is taken before this time, because the last one took so long.
    pub(crate) wall_rest: AtomicU64,
    /// Number of wall-clock samples committed.
    pub(crate) wall_samples: AtomicU64,

    /// State of the trace: a constant of [`crate::trace`], whose text says who may change it.
    pub(crate) trace_state: AtomicU8,
    /// How the trace ended, and why there is none (0: there is one). Written between WRITING and
    /// DONE.
    pub(crate) trace_end: AtomicU8,
    pub(crate) trace_refused: AtomicU8,
    pub(crate) trace_depth: AtomicU32,
    /// CLOCK_MONOTONIC of the trace.
    pub(crate) trace_time: AtomicU64,

    /// Set by the reader, cleared by the handler: the next record must not share frames with the
    /// one before.
    pub(crate) write_whole: AtomicBool,
    /// [`WallSignal`]: set by the reader before it sends one, advanced by the handler.
    pub(crate) wall_signal: AtomicU8,
    // Set by the sender of a signal for a trace or a stack probe before it is sent, cleared by the
    // handler.
    pub(crate) trace_sent: AtomicBool,
    pub(crate) probe_sent: AtomicBool,
    /// The same for a tick of the reader's.
    pub(crate) cpu_sent: AtomicBool,
    /// Timers that send it signals if these cannot be queued, as words: ticks of the reader, and
    /// all others. Swapped, like `timer`.
    pub(crate) senders: [AtomicU32; 2],
    /// The id of the perf event behind the descriptor in `timer`.
    pub(crate) perf_id: AtomicU64,

    // Waits (`waits`): the reader requests that the handler of its next wall-clock signal records
    // the stack ...
    pub(crate) wait_asked: AtomicBool,
    /// ... which has this depth; 0: none.
    pub(crate) wait_depth: AtomicU32,
    pub(crate) wait_end: AtomicU8,

    // Reader.
    pub(crate) reader: ReaderSide,
}

/// State of a thread's wall-clock signal. Real-time signals queue, so no second one is sent while
/// one is under way.
pub(crate) struct WallSignal;

impl WallSignal {
    /// No signal is under way.
    pub(crate) const NONE: u8 = 0;
    /// The signal was sent.
    pub(crate) const SENT: u8 = 1;
    /// The signal is being handled, unless the program has jumped out of the handler.
    pub(crate) const ARRIVED: u8 = 2;
}

/// The reader's words, on their own cache line.
#[repr(C, align(64))]
pub(crate) struct ReaderSide {
    pub(crate) tail: AtomicU64,
    /// Depth of the last stack read.
    pub(crate) depth: AtomicU32,
    pub(crate) end: AtomicU8,
    /// [`crate::waits::WaitPlace`]: where the thread waits.
    pub(crate) place: AtomicU8,
    /// Whether a stack probe was sent and its result not taken yet.
    pub(crate) is_probed: AtomicBool,
    pub(crate) idle_ticks: AtomicU32,
    /// Number of wall ticks during which the signal has been in the handler.
    pub(crate) waited: AtomicU32,
    /// Number of checks for a missing signal of each kind (`sampler::is_lost`).
    pub(crate) wall_misses: AtomicU8,
    pub(crate) cpu_misses: AtomicU8,
    pub(crate) probe_misses: AtomicU8,
    pub(crate) trace_misses: AtomicU8,
    pub(crate) idle_ns: AtomicU64,
    pub(crate) idle_until: AtomicU64,
    /// Position in the ring after which idle time belongs: that of the sample before it.
    pub(crate) idle_at: AtomicU64,
    pub(crate) cpu_seen: AtomicU64,
    /// The thread's clock at the reader's last check, and the time since which it has not moved.
    pub(crate) clock_seen: AtomicU64,
    pub(crate) clock_still: AtomicU64,
    /// Wall clock: time since which the thread waits, and time of the last check of its clock.
    pub(crate) wall_still: AtomicU64,
    pub(crate) wall_looked: AtomicU64,
    /// Whether it has waited for so long that it is checked less often than at each tick, and how
    /// long it had waited for a processor then.
    pub(crate) is_long: AtomicBool,
    pub(crate) wall_queued: AtomicU64,
    /// As `idle_*`, for the stack that the handler has recorded.
    pub(crate) wait_ns: AtomicU64,
    pub(crate) wait_until: AtomicU64,
    pub(crate) wait_ticks: AtomicU32,
    /// Number of consecutive checks at which it waited elsewhere.
    pub(crate) wait_misses: AtomicU32,
    /// Counts that were read already.
    pub(crate) taken: [AtomicU64; 7],
}

/// Layout of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    pub(crate) ring_words: u32,
    pub(crate) max_depth: u32,
    pub(crate) scratch_len: u32,
    /// Whether there is room for a trace, at the block's end.
    pub(crate) traces: bool,
    /// Whether there is room for the stack of a wait, at the block's end; never with `traces`.
    pub(crate) waits: bool,
}

impl Geometry {
    const fn ring_bytes(self) -> usize {
        self.ring_words as usize * 8
    }

    /// Returns the geometry that [`Slot::geometry`] gives for a block made from this.
    pub(crate) const fn without_scratch(self) -> Self {
        Self {
            scratch_len: 0,
            traces: false,
            waits: false,
            ..self
        }
    }

    /// Returns the size of one stack buffer, in whole cache lines.
    const fn stack_bytes(self) -> usize {
        (self.max_depth as usize * 8).next_multiple_of(64)
    }

    /// Returns the size of a buffer for a trace: three words a frame, whole cache lines.
    const fn trace_bytes(self) -> usize {
        if self.traces {
            3 * self.stack_bytes()
        } else {
            0
        }
    }

    /// Returns the size of a buffer for the stack of a wait.
    const fn wait_bytes(self) -> usize {
        if self.waits { WAIT_BYTES } else { 0 }
    }

    /// Returns the size of the whole block: ring, two stack buffers of the handler, one of the
    /// reader, scratch, trace or wait.
    pub(crate) const fn block_len(self) -> usize {
        let scratch = (self.scratch_len as usize).next_multiple_of(64);
        let walks = self.wait_bytes() + self.trace_bytes();
        (self.ring_bytes() + 3 * self.stack_bytes() + scratch + walks).next_multiple_of(4096)
    }

    const fn stack_offset(self, buffer: usize) -> usize {
        self.ring_bytes() + buffer * self.stack_bytes()
    }

    const fn scratch_offset(self) -> usize {
        self.stack_offset(3)
    }
}

/// Maximum number of frames of a wait (`waits`). Threads of a pool have twenty to thirty. A thread
/// with more is woken each time.
pub(crate) const WAIT_FRAMES: usize = 64;
/// Size of these frames, bytes.
const WAIT_BYTES: usize = WAIT_FRAMES * size_of::<[u64; 3]>();

/// Index of the reader's stack buffer; 0 and 1 are the handler's.
pub(crate) const READER_BUFFER: usize = 2;

impl Slot {
    /// Returns the geometry of the block in use. The scratch is last, so its length does not matter
    /// here.
    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            ring_words: self.ring_words.load(Ordering::Relaxed),
            max_depth: self.max_depth.load(Ordering::Relaxed),
            scratch_len: 0,
            traces: false,
            waits: false,
        }
    }

    /// Returns the ring. The slot must be open (or quiet), so that it has a block.
    pub(crate) fn ring(&self) -> Ring<'_> {
        let block = self.block.load(Ordering::Relaxed);
        let len = self.ring_words.load(Ordering::Relaxed) as usize;
        let words: &[AtomicU64] = if block.is_null() {
            &[]
        } else {
            // SAFETY: `register` mapped the block with at least `ring_words` words at its start,
            // zeroed, page-aligned, before the slot was opened, and it stays mapped until
            // `register` takes the slot off the free list again; words of a ring are only ever
            // touched as atomics.
            unsafe { core::slice::from_raw_parts(block.cast::<AtomicU64>(), len) }
        };
        Ring {
            head: &self.head,
            tail: &self.reader.tail,
            words,
        }
    }

    /// Returns stack buffer `buffer` (0, 1: the handler's; 2: the reader's), `max_depth` words.
    pub(crate) fn stack_buffer(&self, buffer: usize) -> *mut u64 {
        let block = self.block.load(Ordering::Relaxed);
        block
            .wrapping_add(self.geometry().stack_offset(buffer))
            .cast::<u64>()
    }

    /// Returns the room for a trace of `max_depth` frames. Only for a block that was made with it.
    pub(crate) fn trace_buffer(&self) -> *mut [u64; 3] {
        let block = self.block.load(Ordering::Relaxed);
        let len = self.block_len.load(Ordering::Relaxed);
        let bytes = 3 * self.geometry().stack_bytes();
        block
            .wrapping_add(len.wrapping_sub(bytes))
            .cast::<[u64; 3]>()
    }

    /// Returns the room for the stack of a wait, [`WAIT_FRAMES`] frames of three words. Only for a
    /// block that was made with it.
    pub(crate) fn wait_buffer(&self) -> *mut u64 {
        let block = self.block.load(Ordering::Relaxed);
        let len = self.block_len.load(Ordering::Relaxed);
        block
            .wrapping_add(len.wrapping_sub(WAIT_BYTES))
            .cast::<u64>()
    }

    /// Returns the walker's memory.
    pub(crate) fn scratch(&self) -> *mut Scratch {
        let block = self.block.load(Ordering::Relaxed);
        block
            .wrapping_add(self.geometry().scratch_offset())
            .cast::<Scratch>()
    }

    /// Resets the fields for the next thread. `accounted` is the time from which wall-clock samples
    /// count. The caller has taken the slot off the free list.
    pub(crate) fn reset(&self, accounted: u64) {
        let zero64 = [
            &self.stack_low,
            &self.stack_high,
            &self.timer,
            &self.head,
            &self.accounted_cpu,
            &self.ticks_to_skip,
            &self.samples,
            &self.intervals,
            &self.value_ns,
            &self.handler_ns,
            &self.signals,
            &self.lost_ns,
            &self.sent,
            &self.cpu_reported,
            &self.probe_sp,
            &self.probe_tp,
            &self.cpu_after,
            &self.wall_rest,
            &self.wall_samples,
            &self.cookie,
            &self.cookie_at,
            &self.perf_id,
            &self.reader.tail,
            &self.reader.idle_ns,
            &self.reader.idle_until,
            &self.reader.idle_at,
            &self.reader.cpu_seen,
            &self.reader.clock_seen,
            &self.reader.clock_still,
            &self.reader.wall_still,
            &self.reader.wall_looked,
            &self.reader.wall_queued,
            &self.reader.wait_ns,
            &self.reader.wait_until,
        ];
        for word in zero64.into_iter().chain(&self.reader.taken) {
            word.store(0, Ordering::Relaxed);
        }
        for word in [
            &self.last_depth,
            &self.reader.depth,
            &self.reader.idle_ticks,
            &self.reader.waited,
            &self.reader.wait_ticks,
            &self.reader.wait_misses,
            &self.wait_depth,
        ]
        .into_iter()
        .chain(&self.senders)
        {
            word.store(0, Ordering::Relaxed);
        }
        for word in [
            &self.last_buffer,
            &self.reader.end,
            &self.reader.place,
            &self.reader.wall_misses,
            &self.reader.cpu_misses,
            &self.reader.probe_misses,
            &self.reader.trace_misses,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for flag in [
            &self.write_whole,
            &self.on_own_signal,
            &self.strayed,
            &self.paused,
            &self.trace_sent,
            &self.probe_sent,
            &self.cpu_sent,
            &self.wait_asked,
            &self.reader.is_probed,
            &self.reader.is_long,
        ] {
            flag.store(false, Ordering::Relaxed);
        }
        self.first_tick.store(true, Ordering::Relaxed);
        self.threads.store(1, Ordering::Relaxed);
        self.wall_signal.store(WallSignal::NONE, Ordering::Relaxed);
        self.trace_state.store(0, Ordering::Relaxed);
        self.wall_time.store(accounted, Ordering::Relaxed);
    }

    /// Whether no signal has come since `reset`, and the reader has nothing to report of it. For a
    /// closed slot.
    pub(crate) fn is_untouched(&self) -> bool {
        let counters = [
            &self.signals,
            &self.head,
            &self.lost_ns,
            &self.reader.idle_ns,
            &self.reader.wait_ns,
        ];
        counters
            .into_iter()
            .all(|counter| counter.load(Ordering::Relaxed) == 0)
            && !self.probe_sent.load(Ordering::Relaxed)
            && !self.reader.is_probed.load(Ordering::Relaxed)
    }

    /// Adds to a counter that has one writer.
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.store(
            counter.load(Ordering::Relaxed).wrapping_add(amount),
            Ordering::Relaxed,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_small() {
        assert!(size_of::<Slot>() <= 512, "{}", size_of::<Slot>());
    }

    /// Lists all fields by name, so that for each new one it must be decided whether a thread
    /// leaves data in it.
    #[test]
    fn nothing_is_left_in_a_slot_of_the_thread_before() {
        let mut slot = Box::<Slot>::new_uninit();
        // SAFETY: bytes of 1 are valid for each field: atomics of numbers, flags and a pointer.
        let slot = unsafe {
            let bytes = slot.as_mut_ptr().cast::<u8>();
            bytes.write_bytes(1, size_of::<Slot>());
            slot.assume_init()
        };
        slot.reset(7);
        let Slot {
            // The slot's own, and set by `register`.
            gate: _,
            tid: _,
            next_free: _,
            token: _,
            block: _,
            block_len: _,
            ring_words: _,
            max_depth: _,
            stack_low,
            stack_high,
            timer,
            senders,
            head,
            last_depth,
            last_buffer,
            first_tick,
            cookie,
            cookie_at,
            wall_time,
            accounted_cpu,
            ticks_to_skip,
            on_own_signal,
            strayed,
            paused,
            threads,
            samples,
            intervals,
            value_ns,
            handler_ns,
            signals,
            lost_ns,
            sent,
            cpu_reported,
            probe_sp,
            probe_tp,
            cpu_after,
            wall_rest,
            wall_samples,
            trace_state,
            // Valid only with a trace.
            trace_end: _,
            trace_refused: _,
            trace_depth: _,
            trace_time: _,
            write_whole,
            wall_signal,
            trace_sent,
            probe_sent,
            cpu_sent,
            perf_id,
            wait_asked,
            wait_depth,
            // Valid only with a wait.
            wait_end: _,
            reader,
        } = &*slot;
        let ReaderSide {
            tail,
            depth,
            end,
            place,
            is_probed,
            idle_ticks,
            waited,
            wall_misses,
            cpu_misses,
            probe_misses,
            trace_misses,
            idle_ns,
            idle_until,
            idle_at,
            cpu_seen,
            clock_seen,
            clock_still,
            wall_still,
            wall_looked,
            is_long,
            wall_queued,
            wait_ns,
            wait_until,
            wait_ticks,
            wait_misses,
            taken,
        } = reader;
        let words = [
            stack_low,
            stack_high,
            timer,
            head,
            cookie,
            cookie_at,
            accounted_cpu,
            ticks_to_skip,
            samples,
            intervals,
            value_ns,
            handler_ns,
            signals,
            lost_ns,
            sent,
            cpu_reported,
            probe_sp,
            probe_tp,
            cpu_after,
            wall_rest,
            wall_samples,
            perf_id,
            tail,
            idle_ns,
            idle_until,
            idle_at,
            cpu_seen,
            clock_seen,
            clock_still,
            wall_still,
            wall_looked,
            wall_queued,
            wait_ns,
            wait_until,
        ];
        for (at, word) in words.into_iter().chain(taken).enumerate() {
            assert_eq!(word.load(Ordering::Relaxed), 0, "number {at} of 64 bits");
        }
        let halves = [
            last_depth,
            wait_depth,
            depth,
            idle_ticks,
            waited,
            wait_ticks,
            wait_misses,
        ];
        for (at, half) in halves.into_iter().chain(senders).enumerate() {
            assert_eq!(half.load(Ordering::Relaxed), 0, "number {at} of 32 bits");
        }
        let bytes = [
            last_buffer,
            trace_state,
            wall_signal,
            end,
            place,
            wall_misses,
            cpu_misses,
            probe_misses,
            trace_misses,
        ];
        for (at, byte) in bytes.into_iter().enumerate() {
            assert_eq!(byte.load(Ordering::Relaxed), 0, "number {at} of 8 bits");
        }
        let flags = [
            on_own_signal,
            strayed,
            paused,
            write_whole,
            trace_sent,
            probe_sent,
            cpu_sent,
            wait_asked,
            is_probed,
            is_long,
        ];
        for (at, flag) in flags.into_iter().enumerate() {
            assert!(!flag.load(Ordering::Relaxed), "flag {at}");
        }
        assert!(first_tick.load(Ordering::Relaxed));
        assert_eq!(threads.load(Ordering::Relaxed), 1);
        assert_eq!(wall_time.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn parts_of_a_block_do_not_overlap_and_are_aligned() {
        for max_depth in [1, 7, 64, 2048, 32768] {
            for (scratch_len, traces, waits) in [
                (0, false, true),
                (1, true, false),
                (4096, false, false),
                (10_000, true, false),
                (3000, false, true),
            ] {
                let g = Geometry {
                    ring_words: 8192,
                    max_depth,
                    scratch_len,
                    traces,
                    waits,
                };
                let trace = if traces { max_depth as usize * 24 } else { 0 };
                let parts = [
                    (0, g.ring_bytes()),
                    (g.stack_offset(0), max_depth as usize * 8),
                    (g.stack_offset(1), max_depth as usize * 8),
                    (g.stack_offset(2), max_depth as usize * 8),
                    (g.scratch_offset(), scratch_len as usize),
                    (
                        g.block_len() - g.trace_bytes() - g.wait_bytes(),
                        if waits { WAIT_BYTES } else { 0 },
                    ),
                    (g.block_len() - g.trace_bytes(), trace),
                ];
                for pair in parts.windows(2) {
                    assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{g:?}");
                }
                assert!(parts[6].0 + parts[6].1 <= g.block_len());
                assert!(parts.iter().all(|p| p.0 % 64 == 0), "{g:?}");
            }
        }
    }
}
