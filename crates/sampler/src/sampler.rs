//! [`Sampler`]: starts and stops sampling in the process, and registers threads.
//!
//! It runs on the program's own threads (in runtime callbacks) and on the agent thread; never in
//! the handler. Invariant: a thread's timer exists only while its slot is live, and a signal that
//! is on its way when the slot is freed finds another generation.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering, fence};

use crate::config::{Config, EngineChoice, EngineKind, Error, HoldReason, Scratch, WalkFn};
use crate::counters::DiscardReason;
use crate::due;
use crate::engine;
use crate::global::{self, GLOBAL, MAX_FDS, MAX_SLOTS, SignalRequest, SignalToken};
use crate::guard::{self, OpenHandlers};
use crate::handler;
use crate::protocol::{ARMING, BUSY, CLOSING, KNOWN, LIVE};
use crate::reader::Reader;
use crate::slot::Slot;
use crate::sync::AtomicU64;
use crate::sys;

/// A registered thread. Unique, also after its slot is reused for another thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotId(u64);

impl SlotId {
    pub(crate) const fn new(generation: u32, index: usize) -> Self {
        Self((generation as u64) << 32 | index as u64)
    }

    /// Upper bound (exclusive) of all indices.
    pub const LIMIT: usize = MAX_SLOTS;

    /// Returns a dense index, for tables. It may be reused for another thread after
    /// [`Reader::drain_all`] has reported the slot closed.
    pub const fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(crate) fn slot(self) -> Option<&'static Slot> {
        GLOBAL.slot(self.index())
    }

    /// Returns a number of the slot, if the slot is still this thread's. The check comes after the
    /// read.
    fn read(self, number: impl Fn(&Slot) -> &AtomicU64) -> Option<u64> {
        let slot = self.slot()?;
        let read = number(slot).load(Ordering::Relaxed);
        (slot.gate.peek().0 == self.generation()).then_some(read)
    }

    fn token(self, request: SignalRequest) -> u64 {
        SignalToken {
            generation: self.generation(),
            index: self.index() as u16,
            request,
        }
        .pack()
    }
}

/// The signal by which a thread is sampled: [`Sampler::register_by`]. The caller chooses it,
/// because it must know a stack with room for the signal's frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// [`Config::signal`], on the thread's current stack: for threads that run a CLR's code. While
    /// a CLR handles a fault on the thread's own stack, the alternate stack is still in use. While
    /// it runs on the alternate stack, it blocks this signal.
    Shared,
    /// A signal of our own, on the alternate stack of the thread if it has one: for all other
    /// threads. They may run on stacks of any size, such as a coroutine's or goroutine's.
    Own,
}

/// Why a signal could not be sent: the errno of each method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsent {
    /// Errno of `rt_tgsigqueueinfo`.
    pub queue: i32,
    /// Errno of `timer_create`; 0 if it was not called, because a timer would not have helped.
    pub timer: i32,
}

/// Owner of the signal's handler: [`Sampler::holder`].
#[derive(Clone, Copy)]
pub enum Holder {
    /// The sampler.
    Sampler,
    /// Other code, with this action.
    Other(libc::sigaction),
}

/// The running sampler. Its methods may be called on any thread, but not in a signal handler.
#[derive(Debug)]
pub struct Sampler {
    _private: (),
}

/// Bytes at the start of a thread's scratch that belong to the sampler.
const SCRATCH_HEAD: u32 = size_of::<Scratch>() as u32;

static SAMPLER: Sampler = Sampler { _private: () };

/// Number of unregistered slots at which the reader is woken, so that short-lived threads (a
/// millisecond) do not accumulate slots and memory between two drains.
const WAKE_AT_ENDED: u32 = 64;
/// Number of descriptors that are left to the program before a thread gets one of perf. When the
/// sampler starts, a runtime has loaded none of its assemblies, each of which takes two. A program
/// that fits a small limit must fit it with the agent too.
const KEPT_DESCRIPTORS: u64 = 64;

impl Sampler {
    /// Installs the handler and selects the engine. Samples no thread yet.
    ///
    /// One sampler per process: a second call gives [`Error::AlreadyStarted`] until
    /// [`Sampler::stop`] was called and the old [`Reader`] dropped. Threads still registered then
    /// are closed by the new reader's first [`Reader::drain_all`].
    pub fn start(config: Config, walk: WalkFn) -> Result<(&'static Sampler, Reader), Error> {
        check(&config)?;
        let claim = |from| {
            GLOBAL
                .state
                .compare_exchange(from, global::STARTING, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        if GLOBAL.has_reader.load(Ordering::Acquire)
            || !(claim(global::IDLE) || claim(global::STOPPED))
        {
            return Err(Error::AlreadyStarted);
        }
        match start(&config, walk) {
            Ok(()) => {
                GLOBAL.has_reader.store(true, Ordering::Relaxed);
                // Release: pairs with the Acquire in `Global::running`.
                GLOBAL.state.store(global::RUNNING, Ordering::Release);
                Ok((&SAMPLER, Reader::new()))
            }
            Err(error) => {
                GLOBAL.state.store(global::STOPPED, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Returns the engine in use.
    pub fn engine(&self) -> EngineKind {
        GLOBAL.engine()
    }

    /// Returns the engine's name for reports, e.g. `perf task-clock`.
    pub fn engine_name(&self) -> &'static str {
        self.engine().name()
    }

    /// Returns the shortest interval that the engine supports, nanoseconds: the kernel's tick for
    /// [`EngineKind::Timer`], 10 µs for perf. With a shorter interval, a sample stands for several
    /// ([`crate::SampleView::count`]): totals are right and detail is lost.
    pub fn resolution_ns(&self) -> u64 {
        match self.engine() {
            EngineKind::Timer => GLOBAL.tick_ns.load(Ordering::Relaxed),
            EngineKind::PerfTaskClock | EngineKind::PerfTaskClockUser => 10_000,
            EngineKind::Wall | EngineKind::Clock => 1,
        }
    }

    /// Registers thread `tid` of this process and, if `stack` is given, starts to sample it.
    /// `stack` is the thread's whole stack, low address to end (exclusive). Costs about 10 µs with
    /// perf, 3 µs with the other engines. The thread may be the calling one.
    ///
    /// Without `stack` the thread is not sampled until [`Sampler::set_stack`]; see
    /// [`Sampler::probe_stack`].
    pub fn register(&self, tid: u32, stack: Option<Range<u64>>) -> Result<SlotId, Error> {
        self.register_by(tid, stack, Route::Shared, false)
    }

    /// As [`Sampler::register`], with another route than [`Route::Shared`]. `is_own` says that
    /// `tid` is the calling thread's, which saves system calls.
    pub fn register_by(
        &self,
        tid: u32,
        stack: Option<Range<u64>>,
        route: Route,
        is_own: bool,
    ) -> Result<SlotId, Error> {
        if !GLOBAL.running() {
            return Err(Error::Stopped);
        }
        if tid == 0 || i32::try_from(tid).is_err() {
            return Err(Error::NoSuchThread); // to perf_event_open, 0 is the caller
        }
        let index = GLOBAL.pop_free().ok_or(Error::TooManyThreads)?;
        let slot = GLOBAL.slot(index).ok_or(Error::TooManyThreads)?;
        if let Err(error) = prepare(slot, index) {
            GLOBAL.push_free(index);
            return Err(error);
        }
        slot.tid.store(tid, Ordering::Relaxed);
        slot.on_own_signal
            .store(route == Route::Own, Ordering::Relaxed);
        let id = SlotId::new(slot.gate.open(), index);
        if let Some(stack) = stack
            && let Err(error) = set_stack_by(id, stack, is_own)
        {
            self.unregister(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Sets the stack of a thread that was registered without one, and starts to sample it. Does
    /// nothing if that is done already.
    pub fn set_stack(&self, id: SlotId, stack: Range<u64>) -> Result<(), Error> {
        set_stack(id, stack)
    }

    /// Returns the thread's stack, if it is known: low address to end.
    pub fn stack_of(&self, id: SlotId) -> Option<Range<u64>> {
        let slot = id.slot()?;
        let (generation, flags) = slot.gate.peek();
        let known = generation == id.generation() && flags & (LIVE | KNOWN) == LIVE | KNOWN;
        known.then(|| {
            slot.stack_low.load(Ordering::Relaxed)..slot.stack_high.load(Ordering::Relaxed)
        })
    }

    /// Stops sampling the thread. May be called by the thread itself or any other, while a signal
    /// is pending or being handled, after the thread has ended, and twice. The content of its ring
    /// buffer is still passed to [`Reader::drain_all`].
    pub fn unregister(&self, id: SlotId) {
        self.end(id, sys::own_tid(), false);
    }

    /// As [`Sampler::unregister`], for a caller that knows its own thread id, `own_tid`. Returns
    /// true if the slot is closed already, and no [`Reader`] will report it: it is the calling
    /// thread's, which never had a signal. So threads that live for microseconds need few slots,
    /// and the next thread finds them in its processor's cache.
    pub fn unregister_by(&self, id: SlotId, own_tid: u32) -> bool {
        self.end(id, own_tid, true)
    }

    fn end(&self, id: SlotId, own_tid: u32, may_close: bool) -> bool {
        let Some(slot) = id.slot() else { return false };
        let (generation, flags) = slot.gate.peek();
        let is_own = generation == id.generation()
            && flags & (LIVE | KNOWN | CLOSING | ARMING) == LIVE | KNOWN
            && slot.tid.load(Ordering::Relaxed) == own_tid;
        if is_own {
            // The calling thread, so no handler is inside. A tick that comes while the timer is
            // being ended is handled when the system call returns, and the slot must still be open
            // then. Such ticks are frequent for threads that live a millisecond.
            engine::end_timer(slot);
        }
        match slot.gate.close(id.generation()) {
            Ok(true) => {
                engine::end_timer(slot);
                if may_close && is_own && is_done(slot) && slot.gate.free(id.generation()) {
                    GLOBAL.push_free(id.index());
                    return true;
                }
            }
            Ok(false) => {} // the reader, or who arms it, ends the timer
            Err(()) => return false,
        }
        GLOBAL.mark_pending(id.index());
        if GLOBAL.ended.fetch_add(1, Ordering::Relaxed) + 1 >= WAKE_AT_ENDED {
            GLOBAL.wake();
        }
        false
    }

    /// Whether a thread still has a timer or a perf event of ours. After [`Sampler::stop`] this can
    /// be true for threads whose handler was running, or whose timer was being created. These
    /// timers end when the reader drains.
    pub fn holds_timers(&self) -> bool {
        GLOBAL.timers.is_any_taken() || GLOBAL.events.is_any_taken()
    }

    /// Whether the thread's handler runs at this moment, with the state from its beginning. If not,
    /// its next run will see what the caller stored before this call. For a caller that wants to
    /// free data that a walk may be reading. False on the thread itself.
    pub fn is_in_handler(&self, id: SlotId) -> bool {
        let Some(slot) = id.slot() else { return false };
        // With the handler's own change of the gate, which comes before its reads: either the
        // handler sees what was stored before this fence, or this function sees it inside.
        fence(Ordering::SeqCst);
        let (generation, flags) = slot.gate.peek();
        // The work that the handler did before it left is complete.
        fence(Ordering::Acquire);
        generation == id.generation() && flags & BUSY != 0
    }

    /// Sends one signal to the thread, whose handler only notes its stack pointer, and wakes the
    /// reader. [`Reader::settle_stack_probes`] then finds the stack's bounds and starts to sample
    /// the thread. A thread that blocks the signal never answers.
    pub fn probe_stack(&self, id: SlotId) -> Result<(), Error> {
        let slot = id.slot().ok_or(Error::StaleSlot)?;
        let (generation, flags) = slot.gate.peek();
        if generation != id.generation() || flags & LIVE == 0 {
            return Err(Error::StaleSlot);
        }
        slot.reader.is_probed.store(true, Ordering::Relaxed);
        // An earlier signal is still in the thread's queue.
        if slot.probe_sent.swap(true, Ordering::Relaxed)
            && !is_lost(slot, &slot.reader.probe_misses, LOST_REQUESTS)
        {
            return Ok(());
        }
        send(slot, id, SignalRequest::StackProbe)
            .inspect_err(|_| slot.probe_sent.store(false, Ordering::Relaxed))
    }

    /// Sets the number of threads that the thread's ticks of CPU time stand for, itself included:
    /// for a caller that registers a random sample of similar threads. The default is 1; 0 counts
    /// as 1. Does nothing for a stale slot.
    pub fn set_thread_weight(&self, id: SlotId, threads: u32) {
        if let Some(slot) = id.slot()
            && slot.gate.peek().0 == id.generation()
        {
            slot.threads.store(threads.max(1), Ordering::Relaxed);
        }
    }

    /// Returns the CPU time that the thread's ticks have stood for so far, lost ones included; 0
    /// for a stale slot.
    pub fn reported_ns(&self, id: SlotId) -> u64 {
        id.read(|slot| &slot.cpu_reported).unwrap_or(0)
    }

    /// Returns the thread's CPU clock when its ticks began to count, or at the last tick of an
    /// engine that reads it; `None` if no such clock was read, and for a stale slot.
    pub fn accounted_cpu_ns(&self, id: SlotId) -> Option<u64> {
        id.read(|slot| &slot.accounted_cpu)
            .filter(|clock| *clock > 0)
    }

    /// Returns the signal of [`Route::Shared`].
    pub fn signal(&self) -> i32 {
        GLOBAL.signal.load(Ordering::Relaxed)
    }

    /// Returns the signal that a thread gets.
    pub fn signal_of(&self, id: SlotId) -> i32 {
        id.slot()
            .map_or_else(|| self.signal(), |slot| GLOBAL.signal_of(slot))
    }

    /// Returns why a thread is not signalled now, or `None` if it is. Call it while the slot is the
    /// thread's.
    pub fn held(&self, id: SlotId) -> Option<HoldReason> {
        guard::hold_reason(&GLOBAL, id.slot()?)
    }

    /// Removes SA_ONSTACK from the signal by which CLRs interrupt their threads, if other code has
    /// set it. For use before a step that makes CLRs send the signal. The change is remembered.
    pub fn move_off_alternate_stack(signal: i32) {
        guard::undo_alternate_stack(&GLOBAL, signal);
    }

    /// Returns the handlers of faults that were installed without `signal`, by which CLRs interrupt
    /// their threads, in their masks.
    pub fn open_handlers(signal: i32) -> OpenHandlers {
        guard::open_handlers(signal)
    }

    /// Checks what other code has done to our signals and to the handlers of faults. Threads that
    /// may not be signalled are held, and those that may again are released. Call it at regular
    /// intervals; some ten system calls.
    pub fn recheck_signals(&self) {
        if guard::check_all(&GLOBAL) {
            fence(Ordering::SeqCst); // see `engine::pause`
            self.resume();
        }
    }

    fn resume(&self) {
        for slot in (0..GLOBAL.used()).filter_map(|index| GLOBAL.slot(index)) {
            let (_, flags) = slot.gate.peek();
            if flags & (LIVE | KNOWN | CLOSING) == LIVE | KNOWN {
                engine::resume(slot);
            }
        }
    }

    /// Returns the CPU time between two ticks, as requested or as the engine supports it.
    pub fn interval_ns(&self) -> u64 {
        let interval = GLOBAL.interval_ns.load(Ordering::Relaxed);
        interval.max(self.resolution_ns())
    }

    /// Returns why the last signal to a living thread could not be sent, since the start.
    pub fn unsent(&self) -> Option<Unsent> {
        let queue = GLOBAL.send_errno.load(Ordering::Relaxed);
        (queue != 0).then(|| Unsent {
            queue,
            timer: GLOBAL.timer_errno.load(Ordering::Relaxed),
        })
    }

    /// Returns the time of the next call of [`Reader::tick`], CLOCK_MONOTONIC, or `None` if no
    /// thread needs it. It may be later than an interval if all threads wait. [`Reader::wake_fd`]
    /// becomes readable when it becomes earlier.
    pub fn due_ns(&self) -> Option<u64> {
        let wall = GLOBAL.wall_interval_ns.load(Ordering::Relaxed) > 0;
        let clock = GLOBAL.clocked.load(Ordering::Relaxed) > 0;
        let wall = wall.then(|| GLOBAL.wall_due.load(Ordering::Relaxed));
        let clock = clock.then(|| GLOBAL.clock_due.load(Ordering::Relaxed));
        match (wall, clock) {
            (Some(wall), Some(clock)) => Some(wall.min(clock)),
            (wall, clock) => wall.or(clock),
        }
    }

    /// Returns the owner of the signal's handler. One system call.
    ///
    /// Call it at regular intervals: a CLR that starts installs its own handler over ours and
    /// passes on the signals that are not its own, until [`Sampler::move_to_top`]. If the handler
    /// is any other, call [`Sampler::yield_signal`].
    pub fn holder(&self) -> Holder {
        let action = sys::disposition(GLOBAL.signal.load(Ordering::Relaxed));
        if action.sa_sigaction == handler_address() {
            Holder::Sampler
        } else {
            Holder::Other(action)
        }
    }

    /// Whether the sampler has not been stopped.
    pub fn is_running(&self) -> bool {
        GLOBAL.running()
    }

    /// Returns the address of the handler, which is called before a CLR's.
    pub fn handler(&self) -> usize {
        handler_address()
    }

    /// Returns the address of the handler (for SA_SIGINFO) that gets the signals that are not ours;
    /// 0 for none.
    pub fn previous_handler(&self) -> usize {
        if GLOBAL.previous_takes_info.load(Ordering::Relaxed) {
            GLOBAL.previous.load(Ordering::Acquire) // pairs with `move_to_top`
        } else {
            0
        }
    }

    /// Installs our handler on top again. Signals that are not ours go to `previous` from now on: a
    /// handler for SA_SIGINFO that is never unloaded and does not call ours.
    pub fn move_to_top(&self, previous: usize) -> Result<(), Error> {
        if previous == handler_address() {
            return Ok(());
        }
        set_previous(previous, true);
        put_on_top(GLOBAL.signal.load(Ordering::Relaxed))
    }

    /// Stops sampling, because other code has taken the signal and would receive every signal of
    /// ours. As [`Sampler::stop`], and counted as [`crate::DiscardReason::SignalTaken`] from now
    /// on.
    pub fn yield_signal(&self) {
        GLOBAL.signal_taken.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Makes [`Reader::wake_fd`] readable. Allowed in a signal handler, where `errno` may change.
    pub fn wake(&self) {
        GLOBAL.wake();
    }

    /// As [`Sampler::wake`], for callers without a [`Sampler`]. Does nothing before the first one,
    /// or before [`Sampler::enable_waker`].
    pub fn wake_reader() {
        GLOBAL.wake();
    }

    /// Makes [`Sampler::wake_reader`] act on [`Sampler::waker_fd`] before anything is sampled.
    ///
    /// # Errors
    /// The system gives no descriptors.
    pub fn enable_waker() -> Result<(), Error> {
        make_wake()
    }

    /// [`Reader::wake_fd`], for callers without a reader.
    pub fn waker_fd() -> i32 {
        GLOBAL.wake_read.get().unwrap_or(-1)
    }

    /// [`Reader::clear_wake`], for callers without a reader.
    pub fn clear_waker() {
        if let Some(fd) = GLOBAL.wake_read.get() {
            sys::take_notices(fd);
        }
        GLOBAL.wake_flag.clear();
    }

    /// Returns the process's limit of descriptors; 0 if the kernel does not report it.
    pub fn descriptor_limit() -> u64 {
        sys::descriptor_limit()
    }

    /// Stops all timers. The handler remains installed and ignores late signals: with SIG_DFL a
    /// late signal would end the process. Slots remain registered until unregistered; ring buffers
    /// can still be drained.
    pub fn stop(&self) {
        let stopped = GLOBAL.state.compare_exchange(
            global::RUNNING,
            global::STOPPED,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if stopped.is_err() {
            return;
        }
        for index in 0..GLOBAL.used() {
            if let Some(slot) = GLOBAL.slot(index)
                && let Some(timer) = engine::Timer::from_word(slot.timer.load(Ordering::Acquire))
            {
                timer.stop(slot.perf_id.load(Ordering::Relaxed));
            }
        }
        engine::anchor(None);
    }
}

/// Number of unanswered requests to a thread after which its queue is checked for the signal.
pub(crate) const LOST_REQUESTS: u8 = 4;

/// Whether a signal that was sent to the thread and has not arrived is not on its way any more,
/// because a tracer of the thread has kept it. Call it while a signal is under way. `unseen` counts
/// the calls, and one in `after` of them asks the kernel. A signal in the queue arrives eventually,
/// so there are never more than two.
pub(crate) fn is_lost(slot: &Slot, unseen: &AtomicU8, after: u8) -> bool {
    let times = unseen.load(Ordering::Relaxed).saturating_add(1);
    if times < after {
        unseen.store(times, Ordering::Relaxed);
        return false;
    }
    unseen.store(0, Ordering::Relaxed);
    let tid = slot.tid.load(Ordering::Relaxed);
    !sys::is_pending(tid, GLOBAL.signal_of(slot))
}

/// Sends a signal of ours to a slot's thread: queued, or by a timer if queueing is refused.
pub(crate) fn send(slot: &Slot, id: SlotId, request: SignalRequest) -> Result<(), Error> {
    let pid = GLOBAL.pid.load(Ordering::Relaxed);
    let tid = slot.tid.load(Ordering::Relaxed);
    if let Some(held) = guard::hold_reason_now(&GLOBAL, slot) {
        return Err(Error::HoldReason(held));
    }
    let signal = GLOBAL.signal_of(slot);
    let token = id.token(request);
    let (errno, timer) = match sys::queue_signal(pid, tid, signal, token) {
        Ok(()) => return Ok(()),
        Err(libc::ESRCH) => return Err(Error::NoSuchThread),
        // A timer takes a place in the queue too.
        Err(libc::EAGAIN) => {
            GLOBAL.discard(DiscardReason::QueueFull);
            (libc::EAGAIN, 0)
        }
        Err(errno) => match engine::send_by_timer(slot, token, request) {
            Ok(()) => return Ok(()),
            // The kernel has no such thread.
            Err(libc::EINVAL) => return Err(Error::NoSuchThread),
            Err(timer) => (errno, timer),
        },
    };
    GLOBAL.send_errno.store(errno, Ordering::Relaxed);
    GLOBAL.timer_errno.store(timer, Ordering::Relaxed);
    Err(Error::Os {
        call: "rt_tgsigqueueinfo",
        errno,
    })
}

fn handler_address() -> usize {
    handler::on_signal as *const () as usize
}

fn check(config: &Config) -> Result<(), Error> {
    let checks = [
        (
            "wall_interval_ns",
            config.wall_interval_ns == 0
                || (100_000..=1_000_000_000).contains(&config.wall_interval_ns),
        ),
        (
            "interval_ns",
            (100_000..=1_000_000_000).contains(&config.interval_ns),
        ),
        (
            "signal",
            (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&config.signal),
        ),
        ("wait", config.wait.is_none() || config.trace.is_none()),
        ("max_depth", (1..=32768).contains(&config.max_depth)),
        ("ring_len", config.ring_len <= 1 << 28),
        ("scratch_len", config.scratch_len <= 1 << 20),
        ("min_stack_room", config.min_stack_room <= 1 << 20),
        ("shared_stack_room", config.shared_stack_room <= 1 << 20),
    ];
    match checks.iter().find(|(_, good)| !good) {
        Some((field, _)) => Err(Error::Config(field)),
        None => Ok(()),
    }
}

/// Starts everything except the state word.
fn start(config: &Config, walk: WalkFn) -> Result<(), Error> {
    map_tables()?;
    let ring_bytes = config
        .ring_len
        .max(4 * 8 * config.max_depth)
        .max(4096)
        .next_power_of_two();
    GLOBAL.ring_words.store(ring_bytes / 8, Ordering::Relaxed);
    GLOBAL.max_depth.store(config.max_depth, Ordering::Relaxed);
    GLOBAL
        .scratch_len
        .store(SCRATCH_HEAD + config.scratch_len, Ordering::Relaxed);
    GLOBAL
        .min_stack_room
        .store(config.min_stack_room, Ordering::Relaxed);
    GLOBAL
        .shared_stack_room
        .store(config.shared_stack_room, Ordering::Relaxed);
    GLOBAL
        .walk_alternate
        .store(config.walk_alternate_stack, Ordering::Relaxed);
    GLOBAL
        .interval_ns
        .store(config.interval_ns, Ordering::Relaxed);
    GLOBAL.tick_ns.store(sys::tick_ns(), Ordering::Relaxed);
    GLOBAL.signal.store(config.signal, Ordering::Relaxed);
    // SAFETY: getpid has no preconditions.
    GLOBAL
        .pid
        .store(unsafe { libc::getpid() }, Ordering::Relaxed);
    GLOBAL.walk.store(walk as usize, Ordering::Relaxed);
    let trace = config.trace.map_or(0, |trace| trace as usize);
    GLOBAL.trace.store(trace, Ordering::Relaxed);
    let wait = config.wait.map_or(0, |wait| wait as usize);
    GLOBAL.wait.store(wait, Ordering::Relaxed);
    let now = sys::monotonic_ns();
    GLOBAL.seed.store(now, Ordering::Relaxed);
    GLOBAL.last_tick.store(now, Ordering::Relaxed);
    GLOBAL.wall_due.store(now, Ordering::Relaxed);
    GLOBAL.clock_due.store(now, Ordering::Relaxed);
    sys::own_cpu_ns(); // the first call outside the handler
    GLOBAL.fd_floor.store(fd_floor(), Ordering::Relaxed);
    let spare = sys::free_descriptors().saturating_sub(KEPT_DESCRIPTORS);
    GLOBAL.events.of_free(spare, 8);
    GLOBAL.timers.of_free(sys::free_signals(), 4);
    make_wake()?;
    for (index, slot) in (0..GLOBAL.used()).filter_map(|index| Some((index, GLOBAL.slot(index)?))) {
        // Data left over from an earlier sampler.
        GLOBAL.mark_pending(index);
        let (generation, _) = slot.gate.peek();
        if slot.gate.close(generation) == Ok(true) {
            engine::end_timer(slot);
        }
    }
    install(config.signal)?;
    let kind = choose(config)?;
    let wall = if config.engine == EngineChoice::Wall {
        config.interval_ns
    } else {
        config.wall_interval_ns
    };
    GLOBAL.wall_interval_ns.store(wall, Ordering::Relaxed);
    GLOBAL.engine.store(kind as u8, Ordering::Relaxed);
    Ok(())
}

fn map_tables() -> Result<(), Error> {
    let none = |call| sys::last_error(call);
    if GLOBAL.table.load(Ordering::Acquire).is_null() {
        let table = sys::map_memory(MAX_SLOTS * size_of::<Slot>()).ok_or_else(|| none("mmap"))?;
        // Release: pairs with the Acquire in `Global::slot`.
        GLOBAL.table.store(table.cast(), Ordering::Release);
    }
    if GLOBAL.fd_table.load(Ordering::Acquire).is_null() {
        let table = sys::map_memory(MAX_FDS * 8).ok_or_else(|| none("mmap"))?;
        // Release: pairs with the Acquire in `Global::fd_entry`.
        GLOBAL.fd_table.store(table.cast(), Ordering::Release);
    }
    Ok(())
}

/// Returns the number above which our descriptors are placed: 1024 if the limit leaves room, or
/// none.
fn fd_floor() -> i32 {
    if sys::descriptor_limit() >= 4096 {
        1024
    } else {
        0
    }
}

fn make_wake() -> Result<(), Error> {
    if GLOBAL.wake_read.get().is_some() && GLOBAL.wake_send.get().is_some() {
        return Ok(());
    }
    let (read, send) = match sys::socket_to_itself() {
        Ok(socket) => {
            let socket = GLOBAL.move_up(socket);
            (socket, socket)
        }
        // Policies that forbid named sockets (AppArmor's) allow pairs.
        Err(_) => {
            let (read, send) = sys::socket_pair()?;
            (GLOBAL.move_up(read), GLOBAL.move_up(send))
        }
    };
    GLOBAL.wake_read.set(read);
    GLOBAL.wake_send.set(send);
    Ok(())
}

/// Selects the engine. docs/engines.md explains the order.
fn choose(config: &Config) -> Result<EngineKind, Error> {
    let probe = |user_only: bool| engine::probe_perf(user_only).map(|fd| engine::anchor(Some(fd)));
    match config.engine {
        EngineChoice::Wall | EngineChoice::None => Ok(EngineKind::Wall),
        EngineChoice::Timer | EngineChoice::Auto if !engine::may_have_timers() => {
            Ok(EngineKind::Clock)
        }
        EngineChoice::Timer => Ok(EngineKind::Timer),
        EngineChoice::Clock => Ok(EngineKind::Clock),
        EngineChoice::Auto => {
            let tick_ns = GLOBAL.tick_ns.load(Ordering::Relaxed);
            Ok(affordable(config.interval_ns, tick_ns, sys::is_virtual()))
        }
        EngineChoice::Perf => {
            catch_full_queue();
            probe(false)
                .map(|()| EngineKind::PerfTaskClock)
                .or_else(|_| probe(true).map(|()| EngineKind::PerfTaskClockUser))
        }
    }
}

/// Returns the engine whose cost is proportionate. An engine that ticks faster than the kernel
/// interrupts processors for it, and in a virtual machine each interrupt exits to the host and
/// returns.
fn affordable(interval_ns: u64, tick_ns: u64, is_virtual: bool) -> EngineKind {
    if interval_ns >= tick_ns || is_virtual {
        EngineKind::Timer
    } else {
        EngineKind::Clock
    }
}

/// Installs a handler of SIGIO in a program without one. If the user's queue of signals is full,
/// which other processes can cause too, the kernel sends a plain SIGIO in place of a perf event's
/// real-time signal (fs/fcntl.c, `send_sigio_to_task`). Without a handler it would end the program.
fn catch_full_queue() {
    let mut action = sys::disposition(libc::SIGIO);
    if action.sa_sigaction != libc::SIG_DFL {
        return;
    }
    action.sa_sigaction = handler::on_full_queue as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: a valid action whose handler keeps the rules of a handler; a failure leaves the
    // default.
    unsafe { libc::sigaction(libc::SIGIO, &raw const action, core::ptr::null_mut()) };
}

fn set_previous(handler: usize, takes_info: bool) {
    GLOBAL
        .previous_takes_info
        .store(takes_info, Ordering::Relaxed);
    // Release: pairs with the Acquire in `handler::pass_on`.
    GLOBAL.previous.store(handler, Ordering::Release);
}

/// Installs the handler, after storing the one before it.
fn install(signal: i32) -> Result<(), Error> {
    let action = sys::disposition(signal);
    if action.sa_sigaction != handler_address() {
        match action.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => set_previous(0, false),
            address => set_previous(address, action.sa_flags & libc::SA_SIGINFO != 0),
        }
    }
    GLOBAL.signal_taken.store(false, Ordering::Relaxed);
    GLOBAL.send_errno.store(0, Ordering::Relaxed);
    GLOBAL.timer_errno.store(0, Ordering::Relaxed);
    put_on_top(signal)?;
    GLOBAL.on_signal.store(handler_address(), Ordering::Relaxed);
    let own = guard::choose_own_signal(signal);
    GLOBAL.own_signal.store(own, Ordering::Relaxed);
    if own != 0 {
        install_own(own)?;
    }
    guard::check_all(&GLOBAL);
    Ok(())
}

/// Installs the handler of our own signal. Its frame has a separate stack, on which no other frame
/// must be placed: all other signals except faults are blocked while it runs.
fn install_own(signal: i32) -> Result<(), Error> {
    let mut action = sys::disposition(signal);
    action.sa_sigaction = handler_address();
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: a valid set; changes to it alone.
    unsafe {
        libc::sigfillset(&raw mut action.sa_mask);
        for fault in guard::FAULTS {
            libc::sigdelset(&raw mut action.sa_mask, fault);
        }
    }
    set_handler(signal, &action)
}

fn put_on_top(signal: i32) -> Result<(), Error> {
    // With the mask of the previous handler, which gets most of the signals; a CLR's mask is empty.
    // We block nothing ourselves, because the kernel would deliver blocked signals to another
    // thread.
    let mut action = sys::disposition(signal);
    action.sa_sigaction = handler_address();
    // No SA_ONSTACK: the thread's own stack has room, and the interrupted frames are next to ours.
    // It is recorded if other code has set the flag.
    guard::undo_alternate_stack(&GLOBAL, signal);
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    set_handler(signal, &action)
}

fn set_handler(signal: i32, action: &libc::sigaction) -> Result<(), Error> {
    // SAFETY: a valid action whose handler keeps the rules of a handler.
    if unsafe { libc::sigaction(signal, action, core::ptr::null_mut()) } != 0 {
        return Err(sys::last_error("sigaction"));
    }
    Ok(())
}

/// Sets up the block and fresh fields of a slot that was just taken.
fn prepare(slot: &Slot, index: usize) -> Result<(), Error> {
    let geometry = GLOBAL.geometry();
    let wanted = geometry.block_len();
    let old = slot.block.load(Ordering::Relaxed);
    let old_len = slot.block_len.load(Ordering::Relaxed);
    if old.is_null() || old_len != wanted || slot.geometry() != geometry.without_scratch() {
        if !old.is_null() {
            // SAFETY: our own mapping; the slot is off the free list and closed, so neither a
            // handler nor the reader looks at it.
            unsafe { libc::munmap(old.cast(), old_len) };
            slot.block.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
        let block = sys::map_memory(wanted).ok_or_else(|| sys::last_error("mmap"))?;
        slot.block.store(block, Ordering::Relaxed);
        slot.block_len.store(wanted, Ordering::Relaxed);
        slot.ring_words
            .store(geometry.ring_words, Ordering::Relaxed);
        slot.max_depth.store(geometry.max_depth, Ordering::Relaxed);
        // SAFETY: the block has room for the head and is aligned to a page; the slot is off the
        // free list and closed, so no other code looks at it.
        unsafe { (&raw mut (*slot.scratch()).slot).write(index) };
    }
    // A thread that a wall tick finds stands for a whole interval, however short it has lived.
    // Otherwise short threads would count for less than their share.
    slot.reset(due::last_wall_tick(sys::monotonic_ns()));
    for looks in [&GLOBAL.cpu_looks, &GLOBAL.wall_looks] {
        if let Some(look) = looks.get(index) {
            look.store(0, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Whether the reader neither has data of a closed slot nor checks it of its own accord, as it does
/// when it drives a clock or requests traces.
fn is_done(slot: &Slot) -> bool {
    GLOBAL.engine() == EngineKind::Timer
        && GLOBAL.wall_interval_ns.load(Ordering::Relaxed) == 0
        && GLOBAL.clocked.load(Ordering::Relaxed) == 0
        && GLOBAL.trace.load(Ordering::Relaxed) == 0
        && slot.is_untouched()
}

pub(crate) fn set_stack(id: SlotId, stack: Range<u64>) -> Result<(), Error> {
    set_stack_by(id, stack, false)
}

fn set_stack_by(id: SlotId, stack: Range<u64>, is_own: bool) -> Result<(), Error> {
    let slot = id.slot().ok_or(Error::StaleSlot)?;
    if !GLOBAL.running() {
        return Err(Error::Stopped);
    }
    match slot.gate.begin_arm(id.generation()) {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        Err(()) => return Err(Error::StaleSlot),
    }
    slot.stack_low.store(stack.start, Ordering::Relaxed);
    slot.stack_high.store(stack.end, Ordering::Relaxed);
    let tid = slot.tid.load(Ordering::Relaxed);
    slot.gate.set_known();
    let armed = engine::arm(slot, id.token(SignalRequest::Cpu), tid, is_own);
    if armed.is_err() {
        slot.gate.set_unknown();
    }
    if slot.gate.end_arm() || !GLOBAL.running() {
        engine::end_timer(slot);
    } else if armed.is_ok() {
        due::note_sampled_thread(slot);
    }
    armed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_the_machine_can_afford() {
        const TICK: u64 = 4_000_000;
        for (interval_ns, is_virtual, engine) in [
            (10_101_010, false, EngineKind::Timer),
            (10_101_010, true, EngineKind::Timer),
            (TICK, false, EngineKind::Timer),
            (TICK - 1, false, EngineKind::Clock),
            (1_001_001, false, EngineKind::Clock),
            (1_001_001, true, EngineKind::Timer),
        ] {
            let chosen = affordable(interval_ns, TICK, is_virtual);
            assert_eq!(chosen, engine, "{interval_ns} ns, virtual: {is_virtual}");
        }
    }
}
