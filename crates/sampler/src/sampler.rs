//! [`Sampler`]: start, register, unregister, stop.
//!
//! It runs on the program's own threads (in runtime callbacks) and on the agent thread; never in
//! the handler. The invariant: a thread's timer exists only while its slot is live, and a signal
//! on its way when the slot is given back finds another generation.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering, fence};

use crate::config::{Config, EngineChoice, EngineKind, Error, HoldReason, Scratch, WalkFn};
use crate::counters::DiscardReason;
use crate::due;
use crate::engine;
use crate::global::{self, GLOBAL, MAX_FDS, MAX_SLOTS, SignalRequest, SignalToken};
use crate::guard;
use crate::handler;
use crate::protocol::{ARMING, BUSY, CLOSING, KNOWN, LIVE};
use crate::reader::Reader;
use crate::slot::Slot;
use crate::sync::AtomicU64;
use crate::sys;

/// A registered thread. Stays unique when its slot is used again for another thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotId(u64);

impl SlotId {
    pub(crate) const fn new(generation: u32, index: usize) -> Self {
        Self((generation as u64) << 32 | index as u64)
    }

    /// All indices are below this.
    pub const LIMIT: usize = MAX_SLOTS;

    /// A dense index, for tables. It comes back for another thread after
    /// [`Reader::drain_all`] has called the slot closed.
    pub const fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(crate) fn slot(self) -> Option<&'static Slot> {
        GLOBAL.slot(self.index())
    }

    /// A number of the slot, if it is still this thread's; read before that is asked.
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

/// By which signal a thread is sampled: [`Sampler::register_by`]. A signal's frame has to have
/// room, and only who knows the thread can say where there is some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// By [`Config::signal`], on the stack where the thread is: for those that run a CLR's code.
    /// While a CLR handles a fault on the thread's own stack, the alternate one is still in use,
    /// and where it is on that one, it holds this signal off.
    Shared,
    /// By a signal of our own, on the alternate stack of the thread if it has one: for all others.
    /// What they run on, a coroutine's stack or a goroutine's, may be as small as they like.
    Own,
}

/// Why a signal could not be sent: the errno of each way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsent {
    /// Of `rt_tgsigqueueinfo`.
    pub queue: i32,
    /// Of `timer_create`; 0 where it was not asked, as a timer would not have helped.
    pub timer: i32,
}

/// The owner of the signal's handler: [`Sampler::holder`].
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

/// Bytes of a thread's scratch that are the sampler's.
const SCRATCH_HEAD: u32 = size_of::<Scratch>() as u32;

static SAMPLER: Sampler = Sampler { _private: () };

/// Unregistered slots at which the reader is woken, so that threads that live a millisecond do
/// not pile up slots and memory between two drains.
const WAKE_AT_ENDED: u32 = 64;
/// So many descriptors are the program's before any thread gets one of perf. At our start a runtime
/// has loaded none of its assemblies, each of which takes two, and a program that fits a small
/// limit by itself is to fit it with us.
const KEPT_DESCRIPTORS: u64 = 64;

impl Sampler {
    /// Installs the handler and chooses the engine. Samples no thread yet.
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

    /// The engine at work.
    pub fn engine(&self) -> EngineKind {
        GLOBAL.engine()
    }

    /// The engine's name for reports, e.g. `perf task-clock`.
    pub fn engine_name(&self) -> &'static str {
        self.engine().name()
    }

    /// The shortest interval that the engine can tell apart, nanoseconds: the kernel's tick for
    /// [`EngineKind::Timer`], 10 µs for perf. Samples of a shorter interval stand for several
    /// ([`crate::SampleView::count`]), so totals stay right and detail is lost.
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

    /// As [`Sampler::register`], which takes [`Route::Shared`]. `is_own` says that `tid` is the
    /// calling thread's: then there is less to ask of the kernel.
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

    /// Tells the stack of a thread that was registered without one, and starts to sample it. Does
    /// nothing if that is done already.
    pub fn set_stack(&self, id: SlotId, stack: Range<u64>) -> Result<(), Error> {
        set_stack(id, stack)
    }

    /// The thread's stack, if it is known: low address to end.
    pub fn stack_of(&self, id: SlotId) -> Option<Range<u64>> {
        let slot = id.slot()?;
        let (generation, flags) = slot.gate.peek();
        let known = generation == id.generation() && flags & (LIVE | KNOWN) == LIVE | KNOWN;
        known.then(|| {
            slot.stack_low.load(Ordering::Relaxed)..slot.stack_high.load(Ordering::Relaxed)
        })
    }

    /// Stops sampling the thread. May be called by the thread itself or any other, while a
    /// signal is pending or being handled, after the thread is gone, and twice. What its ring
    /// holds is still given to [`Reader::drain_all`].
    pub fn unregister(&self, id: SlotId) {
        self.end(id, sys::own_tid(), false);
    }

    /// As [`Sampler::unregister`], for who knows that `own_tid` is the calling thread. True: the
    /// slot is closed already, and no [`Reader`] will name it, as there was never a signal for that
    /// thread and it is the calling one. So the slots of threads that live for microseconds are
    /// few, and the next thread finds them in its processor's cache.
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
            // Our own thread, so no handler is inside. A tick that comes while the timer is being
            // ended is handled when the system call returns, and the slot must still be open then:
            // for threads that live a millisecond those ticks are not few.
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

    /// Whether a thread still has a timer or a perf event of ours. After [`Sampler::stop`] those of
    /// threads whose handler ran just then, or that were about to get one: what is left ends as the
    /// reader drains.
    pub fn holds_timers(&self) -> bool {
        GLOBAL.timers.is_any_taken() || GLOBAL.events.is_any_taken()
    }

    /// Whether the thread's handler runs at this moment, because of whatever was true when it
    /// began. If not, it will see what the caller has stored before the call: for who wants to
    /// take something away that a walk may be reading. False on the thread itself.
    pub fn is_in_handler(&self, id: SlotId) -> bool {
        let Some(slot) = id.slot() else { return false };
        // With the handler's own change of the gate, which comes before it reads: either it sees
        // what was stored before this fence, or this sees it inside.
        fence(Ordering::SeqCst);
        let (generation, flags) = slot.gate.peek();
        // The work that the handler did before it left is done.
        fence(Ordering::Acquire);
        generation == id.generation() && flags & BUSY != 0
    }

    /// Sends one signal to the thread, whose handler only notes its stack pointer. The reader is
    /// woken; [`Reader::settle_stack_probes`] then finds the stack's bounds and starts to sample
    /// the thread. A thread that blocks the signal never answers.
    pub fn probe_stack(&self, id: SlotId) -> Result<(), Error> {
        let slot = id.slot().ok_or(Error::StaleSlot)?;
        let (generation, flags) = slot.gate.peek();
        if generation != id.generation() || flags & LIVE == 0 {
            return Err(Error::StaleSlot);
        }
        slot.reader.is_probed.store(true, Ordering::Relaxed);
        // An earlier one is in the thread's queue still.
        if slot.probe_sent.swap(true, Ordering::Relaxed)
            && !is_lost(slot, &slot.reader.probe_misses, LOST_REQUESTS)
        {
            return Ok(());
        }
        send(slot, id, SignalRequest::StackProbe)
            .inspect_err(|_| slot.probe_sent.store(false, Ordering::Relaxed))
    }

    /// The thread's ticks of CPU time stand for so many threads from here on, itself among them:
    /// for who registers one of many that are alike, chosen by chance. 1 where nothing else was
    /// said; 0 is taken for 1. Nothing happens for a stale slot.
    pub fn set_thread_weight(&self, id: SlotId, threads: u32) {
        if let Some(slot) = id.slot()
            && slot.gate.peek().0 == id.generation()
        {
            slot.threads.store(threads.max(1), Ordering::Relaxed);
        }
    }

    /// CPU time that the thread's ticks have stood for so far, those among them that were lost too;
    /// 0 for a stale slot.
    pub fn reported_ns(&self, id: SlotId) -> u64 {
        id.read(|slot| &slot.cpu_reported).unwrap_or(0)
    }

    /// The thread's CPU clock when its ticks began to count, or at the last tick of an engine that
    /// looks at it then; `None` where no such clock was read, and for a stale slot.
    pub fn accounted_cpu_ns(&self, id: SlotId) -> Option<u64> {
        id.read(|slot| &slot.accounted_cpu)
            .filter(|clock| *clock > 0)
    }

    /// The signal of [`Route::Shared`].
    pub fn signal(&self) -> i32 {
        GLOBAL.signal.load(Ordering::Relaxed)
    }

    /// The signal that a thread gets.
    pub fn signal_of(&self, id: SlotId) -> i32 {
        id.slot()
            .map_or_else(|| self.signal(), |slot| GLOBAL.signal_of(slot))
    }

    /// Why a thread is not signalled now; `None`: it is. To be asked while the slot is the
    /// thread's.
    pub fn held(&self, id: SlotId) -> Option<HoldReason> {
        guard::hold_reason(&GLOBAL, id.slot()?)
    }

    /// Puts a signal that CLRs interrupt their threads by off the alternate stack, where other code
    /// has put it there, before anything is done for which they do. It is not forgotten.
    pub fn move_off_alternate_stack(signal: i32) {
        guard::undo_alternate_stack(&GLOBAL, signal);
    }

    /// Looks what others have made of our signals, and of the handlers of faults: threads that may
    /// not be signalled are held, those that may again go on. To be called at regular intervals;
    /// some ten system calls.
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

    /// CPU time between two ticks, as asked for or as the engine reaches it.
    pub fn interval_ns(&self) -> u64 {
        let interval = GLOBAL.interval_ns.load(Ordering::Relaxed);
        interval.max(self.resolution_ns())
    }

    /// Why the last signal could not be sent to a living thread, since the start.
    pub fn unsent(&self) -> Option<Unsent> {
        let queue = GLOBAL.send_errno.load(Ordering::Relaxed);
        (queue != 0).then(|| Unsent {
            queue,
            timer: GLOBAL.timer_errno.load(Ordering::Relaxed),
        })
    }

    /// When [`Reader::tick`] is to be called next, CLOCK_MONOTONIC; `None`: no thread needs it.
    /// Later than an interval where all threads wait; [`Reader::wake_fd`] becomes readable when it
    /// is sooner again.
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

    /// The owner of the signal's handler now. One system call.
    ///
    /// To be called at regular intervals: a CLR that starts puts its own handler over ours and
    /// passes on to it what is not its own, until [`Sampler::move_to_top`]. If the handler is any
    /// other, call [`Sampler::yield_signal`].
    pub fn holder(&self) -> Holder {
        let action = sys::disposition(GLOBAL.signal.load(Ordering::Relaxed));
        if action.sa_sigaction == handler_address() {
            Holder::Sampler
        } else {
            Holder::Other(action)
        }
    }

    /// Whether it has not been stopped.
    pub fn is_running(&self) -> bool {
        GLOBAL.running()
    }

    /// Address of the handler, which stands above that of a CLR.
    pub fn handler(&self) -> usize {
        handler_address()
    }

    /// Address of the handler (for SA_SIGINFO) that gets the signals that are not ours; 0 for none.
    pub fn previous_handler(&self) -> usize {
        if GLOBAL.previous_takes_info.load(Ordering::Relaxed) {
            GLOBAL.previous.load(Ordering::Acquire) // pairs with `move_to_top`
        } else {
            0
        }
    }

    /// Puts our handler on top again; signals that are not ours go to `previous` from here on, a
    /// handler for SA_SIGINFO that is never unloaded and does not call ours.
    pub fn move_to_top(&self, previous: usize) -> Result<(), Error> {
        if previous == handler_address() {
            return Ok(());
        }
        set_previous(previous, true);
        put_on_top(GLOBAL.signal.load(Ordering::Relaxed))
    }

    /// Stops sampling, as other code has taken the signal: no more of ours are sent, as they would
    /// all reach it. As [`Sampler::stop`], and counted as [`crate::DiscardReason::SignalTaken`]
    /// from here on.
    pub fn yield_signal(&self) {
        GLOBAL.signal_taken.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Makes [`Reader::wake_fd`] readable. Allowed in a signal handler, where `errno` may change.
    pub fn wake(&self) {
        GLOBAL.wake();
    }

    /// As [`Sampler::wake`], for who has no [`Sampler`] in his hands; nothing before the first one,
    /// or [`Sampler::enable_waker`].
    pub fn wake_reader() {
        GLOBAL.wake();
    }

    /// Makes [`Sampler::wake_reader`] heard at [`Sampler::waker_fd`] although nothing has been
    /// sampled yet.
    ///
    /// # Errors
    /// The system gives no descriptors.
    pub fn enable_waker() -> Result<(), Error> {
        make_wake()
    }

    /// [`Reader::wake_fd`], for who waits without a reader.
    pub fn waker_fd() -> i32 {
        GLOBAL.wake_read.get().unwrap_or(-1)
    }

    /// [`Reader::clear_wake`], for who waits without a reader.
    pub fn clear_waker() {
        if let Some(fd) = GLOBAL.wake_read.get() {
            sys::take_notices(fd);
        }
        GLOBAL.wake_flag.clear();
    }

    /// How many descriptors this process may have; 0 where the kernel does not say.
    pub fn descriptor_limit() -> u64 {
        sys::descriptor_limit()
    }

    /// Stops all timers. The handler stays installed and ignores what still arrives: putting
    /// SIG_DFL back would let a late signal end the process. Slots stay registered until
    /// unregistered; rings can still be drained.
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

/// After so many questions that a thread has not answered it is looked whether the signal is in its
/// queue.
pub(crate) const LOST_REQUESTS: u8 = 4;

/// Whether a signal that was sent to the thread and has not come is no longer on its way: a tracer
/// of the thread has kept it. To be called while one is under way; `unseen` counts, and one in
/// `after` times the kernel is asked. A signal in the queue comes, so there are never more than
/// two.
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

/// Sends a signal of ours to a slot's thread: queued, or by a timer where that is refused.
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
        // A timer takes a place too.
        Err(libc::EAGAIN) => {
            GLOBAL.discard(DiscardReason::QueueFull);
            (libc::EAGAIN, 0)
        }
        Err(errno) => match engine::send_by_timer(slot, token, request) {
            Ok(()) => return Ok(()),
            // The kernel knows no such thread.
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

/// Everything but the state word.
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
        // Left over from an earlier sampler.
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

/// The number above which our descriptors go: 1024 where the limit leaves room, else none.
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
        // Policies that forbid sockets with names (AppArmor's) leave pairs.
        Err(_) => {
            let (read, send) = sys::socket_pair()?;
            (GLOBAL.move_up(read), GLOBAL.move_up(send))
        }
    };
    GLOBAL.wake_read.set(read);
    GLOBAL.wake_send.set(send);
    Ok(())
}

/// docs/engines.md says why in this order.
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

/// The engine that costs no more than the samples are worth: what ticks faster than the kernel
/// interrupts processors for it, and in a virtual machine each interrupt is a way out of it and
/// back.
fn affordable(interval_ns: u64, tick_ns: u64, is_virtual: bool) -> EngineKind {
    if interval_ns >= tick_ns || is_virtual {
        EngineKind::Timer
    } else {
        EngineKind::Clock
    }
}

/// When the user's queue of signals is full, which others can fill too, the kernel sends a plain
/// SIGIO in place of a perf event's real-time signal (fs/fcntl.c, `send_sigio_to_task`), which ends
/// a program that does not handle it. It is counted in one that does not.
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

/// Installs the handler, after noting the one before it.
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

/// Installs the handler of the signal that is ours alone. Its frame has a place of its own, where
/// nothing else is to come on top of it: all else is held off while it runs, but for faults.
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
    // With the mask of who had it, as he gets most of what comes; a CLR's is empty. We hold nothing
    // off ourselves: what cannot be delivered to this thread the kernel gives to another one.
    let mut action = sys::disposition(signal);
    action.sa_sigaction = handler_address();
    // No SA_ONSTACK: on the thread's own stack there is room, and the interrupted frames are next
    // to ours. It is not forgotten that other code has set it.
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

/// Gives a slot that was just taken its block and fresh fields.
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
    // A thread that a wall tick finds is worth a whole interval, however short it has lived;
    // else short threads would count for less than their share.
    slot.reset(due::last_wall_tick(sys::monotonic_ns()));
    for looks in [&GLOBAL.cpu_looks, &GLOBAL.wall_looks] {
        if let Some(look) = looks.get(index) {
            look.store(0, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Whether the reader neither has anything of a closed slot nor looks at it of its own accord, as
/// it does where it drives a clock or asks for traces.
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
