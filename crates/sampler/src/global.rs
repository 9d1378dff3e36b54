//! Process-wide state of the sampler: its settings, the table of slots, and the free list.
//!
//! The handler, the reader and `Sampler` read it without locks; it contains no logic of sampling.
//! Invariant: the tables are mapped once and never unmapped, because a late signal may access them
//! at any time.
//!
//! `state` is stored with Release after everything else is in place and loaded with Acquire by the
//! handler and by [`crate::Sampler`]'s methods, so code that sees RUNNING sees the rest. The free
//! list's head is pushed with Release and popped with Acquire, so a slot's last user is done before
//! its next begins. A tag in the high half makes a stale pop fail.

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use crate::config::EngineKind;
use crate::counters::DiscardReason;
use crate::protocol::WakeFlag;
use crate::slot::{Geometry, Slot};
use crate::sys;

/// Maximum number of registered threads, including threads that have ended and are not drained yet.
pub(crate) const MAX_SLOTS: usize = 4096;
/// Perf events use descriptors below this number only.
pub(crate) const MAX_FDS: usize = 16384;

pub(crate) const IDLE: u32 = 0;
pub(crate) const STARTING: u32 = 1;
pub(crate) const RUNNING: u32 = 2;
pub(crate) const STOPPED: u32 = 3;

pub(crate) struct Global {
    pub(crate) state: AtomicU32,
    pub(crate) has_reader: AtomicBool,
    pub(crate) table: AtomicPtr<Slot>,
    pub(crate) fd_table: AtomicPtr<AtomicU64>,
    /// Slots with a lower index have been used at least once.
    pub(crate) used: AtomicU32,
    free: AtomicU64,
    /// Number of slots that are unregistered and not drained since.
    pub(crate) ended: AtomicU32,

    pub(crate) walk: AtomicUsize,
    /// The walk for traces; 0 if none.
    pub(crate) trace: AtomicUsize,
    /// The walk that records the stacks of waiting threads; 0 if none.
    pub(crate) wait: AtomicUsize,
    /// Number of answered traces; the reader waits on it (futex).
    pub(crate) traced: AtomicU32,
    pub(crate) engine: AtomicU8,
    pub(crate) interval_ns: AtomicU64,
    /// Nanoseconds between wall-clock samples; 0 for none.
    pub(crate) wall_interval_ns: AtomicU64,
    pub(crate) tick_ns: AtomicU64,
    /// The signal by which CLRs interrupt their threads, shared with them.
    pub(crate) signal: AtomicI32,
    /// The agent's own signal, for all other threads; 0 if none was free.
    pub(crate) own_signal: AtomicI32,
    /// Address of our handler of both.
    pub(crate) on_signal: AtomicUsize,
    /// [`crate::HoldReason`] as a number: why threads are not sent this signal; 0 if they are.
    /// First for the shared signal, then for our own.
    pub(crate) shared_held: AtomicU8,
    pub(crate) own_held: AtomicU8,
    /// Whether other code has set SA_ONSTACK on the shared signal.
    pub(crate) moved: AtomicBool,
    pub(crate) pid: AtomicI32,
    pub(crate) ring_words: AtomicU32,
    pub(crate) max_depth: AtomicU32,
    pub(crate) scratch_len: AtomicU32,
    pub(crate) min_stack_room: AtomicU32,
    pub(crate) shared_stack_room: AtomicU32,
    pub(crate) walk_alternate: AtomicBool,
    pub(crate) seed: AtomicU64,
    pub(crate) fd_floor: AtomicI32,
    /// Our share of perf events, and of POSIX timers.
    pub(crate) events: Share,
    pub(crate) timers: Share,
    pub(crate) anchor_fd: AtomicI32,
    pub(crate) anchor_id: AtomicU64,
    /// Number of threads without a timer of their own, whose clocks the reader checks.
    pub(crate) clocked: AtomicU32,
    /// Slots with data for the reader, by index: samples, waited time, or an end. In one array, so
    /// that slots of sleeping threads are not touched.
    pending: [AtomicBool; MAX_SLOTS],
    /// Whether the next sample wakes the reader.
    pub(crate) call_at_next_sample: AtomicBool,
    /// Whether a stack probe was answered.
    pub(crate) answered: AtomicBool,
    /// Times of the reader's next check of a slot's clock, for CPU and wall time, by index. In
    /// arrays, so that slots that are not due cost nothing. Zero for a new thread.
    pub(crate) cpu_looks: [AtomicU64; MAX_SLOTS],
    pub(crate) wall_looks: [AtomicU64; MAX_SLOTS],
    /// Times of the reader's next ticks.
    pub(crate) wall_due: AtomicU64,
    pub(crate) clock_due: AtomicU64,
    /// Number of threads that have become subject to the reader's checks.
    pub(crate) sampled_threads: AtomicU32,
    /// Time of the last wall tick.
    pub(crate) last_tick: AtomicU64,

    /// The sockets that wake the reader: one it reads from, and one to send to. They are the same
    /// if possible ([`sys::socket_to_itself`]).
    pub(crate) wake_read: Descriptor,
    pub(crate) wake_send: Descriptor,
    pub(crate) wake_flag: WakeFlag,

    /// Address of the handler for signals that are not ours; 0 if none.
    pub(crate) previous: AtomicUsize,
    pub(crate) previous_takes_info: AtomicBool,
    /// Whether other code has taken the signal.
    pub(crate) signal_taken: AtomicBool,
    /// Errno of the last signal that could not be sent: of `rt_tgsigqueueinfo`, and of
    /// `timer_create`.
    pub(crate) send_errno: AtomicI32,
    pub(crate) timer_errno: AtomicI32,

    pub(crate) discarded: [AtomicU64; DiscardReason::COUNT],
    pub(crate) refused_by_walker: [AtomicU64; 16],
}

pub(crate) static GLOBAL: Global = Global {
    state: AtomicU32::new(IDLE),
    has_reader: AtomicBool::new(false),
    table: AtomicPtr::new(core::ptr::null_mut()),
    fd_table: AtomicPtr::new(core::ptr::null_mut()),
    used: AtomicU32::new(0),
    free: AtomicU64::new(0),
    ended: AtomicU32::new(0),
    walk: AtomicUsize::new(0),
    trace: AtomicUsize::new(0),
    wait: AtomicUsize::new(0),
    traced: AtomicU32::new(0),
    engine: AtomicU8::new(0),
    interval_ns: AtomicU64::new(0),
    wall_interval_ns: AtomicU64::new(0),
    tick_ns: AtomicU64::new(0),
    signal: AtomicI32::new(0),
    own_signal: AtomicI32::new(0),
    on_signal: AtomicUsize::new(0),
    shared_held: AtomicU8::new(0),
    own_held: AtomicU8::new(0),
    moved: AtomicBool::new(false),
    pid: AtomicI32::new(0),
    ring_words: AtomicU32::new(0),
    max_depth: AtomicU32::new(0),
    scratch_len: AtomicU32::new(0),
    min_stack_room: AtomicU32::new(0),
    shared_stack_room: AtomicU32::new(0),
    walk_alternate: AtomicBool::new(false),
    seed: AtomicU64::new(0),
    fd_floor: AtomicI32::new(0),
    events: Share::new(),
    timers: Share::new(),
    anchor_fd: AtomicI32::new(-1),
    anchor_id: AtomicU64::new(0),
    clocked: AtomicU32::new(0),
    pending: [const { AtomicBool::new(false) }; MAX_SLOTS],
    call_at_next_sample: AtomicBool::new(false),
    answered: AtomicBool::new(false),
    cpu_looks: [const { AtomicU64::new(0) }; MAX_SLOTS],
    wall_looks: [const { AtomicU64::new(0) }; MAX_SLOTS],
    wall_due: AtomicU64::new(0),
    clock_due: AtomicU64::new(0),
    sampled_threads: AtomicU32::new(0),
    last_tick: AtomicU64::new(0),
    wake_read: Descriptor::new(),
    wake_send: Descriptor::new(),
    wake_flag: WakeFlag(AtomicBool::new(false)),
    previous: AtomicUsize::new(0),
    previous_takes_info: AtomicBool::new(false),
    signal_taken: AtomicBool::new(false),
    send_errno: AtomicI32::new(0),
    timer_errno: AtomicI32::new(0),
    discarded: [const { AtomicU64::new(0) }; DiscardReason::COUNT],
    refused_by_walker: [const { AtomicU64::new(0) }; 16],
};

/// Our share of a resource that is limited for the program.
pub(crate) struct Share {
    taken: AtomicU32,
    most: AtomicU32,
}

impl Share {
    const fn new() -> Self {
        Self {
            taken: AtomicU32::new(0),
            most: AtomicU32::new(0),
        }
    }

    /// Sets the share to one in `part` of the free amount.
    pub(crate) fn of_free(&self, free: u64, part: u64) {
        let most = u32::try_from(free / part.max(1)).unwrap_or(u32::MAX);
        let taken = self.taken.load(Ordering::Relaxed);
        self.most
            .store(most.saturating_add(taken), Ordering::Relaxed);
    }

    /// Takes one unit, if one is left.
    pub(crate) fn take(&self) -> bool {
        let most = self.most.load(Ordering::Relaxed);
        let taken = self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < most).then_some(taken + 1)
            });
        taken.is_ok()
    }

    pub(crate) fn is_any_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn release(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A descriptor of ours. The program may close descriptors it does not know (`closefrom`) and get
/// the same number for its own file.
pub(crate) struct Descriptor {
    fd: AtomicI32,
    /// [`sys::identity`].
    identity: AtomicU64,
}

impl Descriptor {
    const fn new() -> Self {
        Self {
            fd: AtomicI32::new(-1),
            identity: AtomicU64::new(0),
        }
    }

    pub(crate) fn set(&self, fd: i32) {
        self.identity.store(sys::identity(fd), Ordering::Relaxed);
        self.fd.store(fd, Ordering::Relaxed);
    }

    /// Returns the descriptor, if it is still ours. Handler.
    pub(crate) fn get(&self) -> Option<i32> {
        let fd = self.fd.load(Ordering::Relaxed);
        let ours = fd >= 0 && sys::identity(fd) == self.identity.load(Ordering::Relaxed);
        ours.then_some(fd)
    }
}

/// Payload of a signal: generation, a mark that identifies our signals, the request, and the slot's
/// index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SignalToken {
    pub(crate) generation: u32,
    pub(crate) index: u16,
    pub(crate) request: SignalRequest,
}

/// The request that one of our signals carries to the handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SignalRequest {
    /// A CPU sample, at a tick of the thread's CPU clock.
    Cpu = 1,
    /// A wall-clock sample.
    Wall = 2,
    /// The stack pointer, for a thread with an unknown stack.
    StackProbe = 3,
    /// A walk with the stack pointer of each frame, at once.
    Trace = 5,
}

impl SignalToken {
    const MARK: u64 = 0x5ad;

    pub(crate) fn pack(self) -> u64 {
        u64::from(self.generation) << 32
            | Self::MARK << 20
            | (self.request as u64) << 16
            | u64::from(self.index)
    }

    /// Bit of a word: the signal was sent by a timer that expires at once, and is not a tick.
    const BY_TIMER: u64 = 1 << 19;

    /// Returns the word of a signal that is sent by a timer.
    pub(crate) fn sent_by_timer(word: u64) -> u64 {
        word | Self::BY_TIMER
    }

    /// Whether a word with a token is one of [`SignalToken::sent_by_timer`].
    pub(crate) fn is_sent_by_timer(word: u64) -> bool {
        word & Self::BY_TIMER != 0
    }

    pub(crate) fn unpack(word: u64) -> Option<Self> {
        if (word >> 20) & 0xfff != Self::MARK {
            return None;
        }
        let request = match (word >> 16) & 0x7 {
            1 => SignalRequest::Cpu,
            2 => SignalRequest::Wall,
            3 => SignalRequest::StackProbe,
            5 => SignalRequest::Trace,
            _ => return None,
        };
        Some(Self {
            generation: (word >> 32) as u32,
            index: word as u16,
            request,
        })
    }
}

impl Global {
    pub(crate) fn running(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNNING
    }

    pub(crate) fn engine(&self) -> EngineKind {
        match self.engine.load(Ordering::Relaxed) {
            1 => EngineKind::PerfTaskClock,
            2 => EngineKind::PerfTaskClockUser,
            4 => EngineKind::Wall,
            5 => EngineKind::Clock,
            _ => EngineKind::Timer,
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            ring_words: self.ring_words.load(Ordering::Relaxed),
            max_depth: self.max_depth.load(Ordering::Relaxed),
            scratch_len: self.scratch_len.load(Ordering::Relaxed),
            traces: self.trace.load(Ordering::Relaxed) != 0,
            waits: self.wait.load(Ordering::Relaxed) != 0,
        }
    }

    /// Returns the signal that a thread gets. Handler.
    pub(crate) fn signal_of(&self, slot: &Slot) -> i32 {
        if slot.on_own_signal.load(Ordering::Relaxed) {
            self.own_signal.load(Ordering::Relaxed)
        } else {
            self.signal.load(Ordering::Relaxed)
        }
    }

    /// Returns the bytes of stack that a walk of the thread needs. Handler.
    pub(crate) fn room_for(&self, slot: &Slot) -> u64 {
        let more = if slot.on_own_signal.load(Ordering::Relaxed) {
            0
        } else {
            self.shared_stack_room.load(Ordering::Relaxed)
        };
        u64::from(self.min_stack_room.load(Ordering::Relaxed)) + u64::from(more)
    }

    /// Counts one discarded signal. Handler.
    pub(crate) fn discard(&self, reason: DiscardReason) {
        if let Some(counter) = self.discarded.get(reason as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a slot by index. Handler.
    pub(crate) fn slot(&self, index: usize) -> Option<&'static Slot> {
        let table = self.table.load(Ordering::Acquire);
        if table.is_null() || index >= MAX_SLOTS {
            return None;
        }
        // SAFETY: the table has MAX_SLOTS slots, zeroed (a valid value of every field) at start,
        // and is never unmapped; slots are shared and hold atomics only.
        Some(unsafe { &*table.add(index) })
    }

    /// Marks that a slot has data for the reader. Handler.
    pub(crate) fn mark_pending(&self, index: usize) {
        if let Some(flag) = self.pending.get(index) {
            // Release: pairs with `take_pending`; the data was stored before.
            flag.store(true, Ordering::Release);
        }
    }

    /// Whether a slot has data; clears the mark, because the reader looks at the slot now.
    pub(crate) fn take_pending(&self, index: usize) -> bool {
        // A load alone does not take the cache line away from its writers. Acquire, AcqRel: pair
        // with `mark_pending`.
        self.pending
            .get(index)
            .is_some_and(|flag| flag.load(Ordering::Acquire) && flag.swap(false, Ordering::AcqRel))
    }

    /// Returns the number of slots used at least once.
    pub(crate) fn used(&self) -> usize {
        (self.used.load(Ordering::Acquire) as usize).min(MAX_SLOTS)
    }

    /// Wakes the reader unless a wake-up is under way. Handler.
    pub(crate) fn wake(&self) {
        if self.wake_flag.claim()
            && let Some(fd) = self.wake_send.get()
        {
            sys::notify(fd);
        }
    }

    /// Takes a slot: one used before, or a new one.
    pub(crate) fn pop_free(&self) -> Option<usize> {
        let mut head = self.free.load(Ordering::Acquire);
        while let Some(index) = (head as u32 as usize).checked_sub(1) {
            let next = self.slot(index)?.next_free.load(Ordering::Relaxed);
            let tagged = (head & !0xffff_ffff).wrapping_add(1 << 32) | u64::from(next);
            // Acquire: pairs with the Release in `push_free`.
            match self
                .free
                .compare_exchange(head, tagged, Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
        let taken = self
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |used| {
                ((used as usize) < MAX_SLOTS).then_some(used + 1)
            });
        taken.ok().map(|used| used as usize)
    }

    /// Returns a slot to the free list. The caller has freed its gate.
    pub(crate) fn push_free(&self, index: usize) {
        let Some(slot) = self.slot(index) else { return };
        let mut head = self.free.load(Ordering::Relaxed);
        loop {
            slot.next_free.store(head as u32, Ordering::Relaxed);
            let tagged = (head & !0xffff_ffff).wrapping_add(1 << 32) | (index as u64 + 1);
            // Release: pairs with the Acquire in `pop_free`.
            match self
                .free
                .compare_exchange(head, tagged, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_and_other_words_are_none() {
        for request in [
            SignalRequest::Cpu,
            SignalRequest::Wall,
            SignalRequest::StackProbe,
            SignalRequest::Trace,
        ] {
            for (generation, index) in [(1, 0), (u32::MAX, 4095), (77, 12)] {
                let token = SignalToken {
                    generation,
                    index,
                    request,
                };
                assert_eq!(SignalToken::unpack(token.pack()), Some(token));
                let sent = SignalToken::sent_by_timer(token.pack());
                assert_eq!(SignalToken::unpack(sent), Some(token));
                assert!(
                    SignalToken::is_sent_by_timer(sent)
                        && !SignalToken::is_sent_by_timer(token.pack())
                );
            }
        }
        for word in [0, 1, u64::MAX, 0x7fff_dead_beef, 42 << 32] {
            assert_eq!(SignalToken::unpack(word), None);
        }
    }
}
