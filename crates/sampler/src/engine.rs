//! CPU timers of threads: a signal for each interval of a thread's CPU time.
//!
//! It creates, stops and ends one thread's timer (perf event, POSIX timer, or the reader's clock).
//! The signal handler (`handler`) takes the samples. Invariant: a [`Timer`] is in its slot's
//! `timer` word. Only the code that swaps it out ends it, so it is ended exactly once.
//!
//! **Phase.** The first tick of each thread comes after a random part of the interval, and every
//! tick stands for a whole interval. Otherwise a thread that lives shorter than one interval would
//! never be sampled, and a program made of such threads would look idle.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use syscalls::Call;

use crate::config::{EngineKind, Error, HoldReason};
use crate::global::{GLOBAL, Global, SignalRequest, SignalToken};
use crate::guard;
use crate::slot::{NO_TIMER, Slot};
use crate::sys;

const PERF_BIT: u64 = 1 << 63;
const POSIX_BIT: u64 = 1 << 62;
const CLOCK_BIT: u64 = 1 << 61;

/// A thread's timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// Descriptor of a perf event.
    Perf(i32),
    /// The kernel's id of a POSIX timer.
    Posix(i32),
    /// No timer of its own: the reader checks the thread's clock.
    Clock,
}

impl Timer {
    pub(crate) fn to_word(self) -> u64 {
        match self {
            Self::Perf(fd) => PERF_BIT | u64::from(fd as u32),
            Self::Posix(id) => POSIX_BIT | u64::from(id as u32),
            Self::Clock => CLOCK_BIT,
        }
    }

    pub(crate) fn from_word(word: u64) -> Option<Self> {
        if word & PERF_BIT != 0 {
            Some(Self::Perf(word as u32 as i32))
        } else if word & POSIX_BIT != 0 {
            Some(Self::Posix(word as u32 as i32))
        } else if word & CLOCK_BIT != 0 {
            Some(Self::Clock)
        } else {
            None
        }
    }

    /// Ends the timer. The caller has swapped it out of its slot, whose thread's token is `token`.
    fn end(self, token: u64, perf_id: u64) {
        match self {
            Self::Perf(fd) => {
                // If not, the program has closed it, and the number may belong to a file of the
                // program.
                if perf::id(fd) == perf_id {
                    sys::close(fd);
                }
                GLOBAL.events.release();
                // After the close, so that a tick during it still finds its slot. If the number
                // belongs to another thread's event by now, the entry is that event's.
                if let Some(entry) = GLOBAL.fd_entry(fd) {
                    let _ = entry.compare_exchange(token, 0, Ordering::Relaxed, Ordering::Relaxed);
                }
            }
            Self::Posix(id) => {
                // SAFETY: deletes a timer of ours by its kernel id; no memory is involved.
                unsafe { libc::syscall(libc::SYS_timer_delete, id) };
                GLOBAL.timers.release();
            }
            Self::Clock => {
                GLOBAL.clocked.fetch_sub(1, Ordering::Relaxed);
                // Pending signals of the calling thread are delivered when a system call returns,
                // while the slot is still open.
                sys::own_tid();
            }
        }
    }

    /// Stops the timer without ending it.
    pub(crate) fn stop(self, perf_id: u64) {
        match self {
            Self::Perf(fd) => {
                if perf::id(fd) == perf_id {
                    // SAFETY: an ioctl without argument on a perf_event fd.
                    unsafe { libc::ioctl(fd, perf::IOC_DISABLE, 0) };
                }
            }
            Self::Posix(id) => {
                set_timer(id, 0, 0);
            }
            Self::Clock => {}
        }
    }
}

/// Whether system call filters allow timers.
pub(crate) fn may_have_timers() -> bool {
    syscalls::are_allowed(&[Call::TimerCreate, Call::TimerSettime, Call::TimerDelete])
}

/// Takes the timer out of the slot and ends it, with the timers that send signals to its thread.
pub(crate) fn end_timer(slot: &Slot) {
    for sender in &slot.senders {
        end_sender(sender.swap(0, Ordering::AcqRel));
    }
    // AcqRel: the code that gets the timer sees it whole; later code sees none.
    if let Some(timer) = Timer::from_word(slot.timer.swap(NO_TIMER, Ordering::AcqRel)) {
        timer.end(
            slot.token.load(Ordering::Relaxed),
            slot.perf_id.load(Ordering::Relaxed),
        );
    }
}

/// Creates and starts the timer of a slot, whose thread may be the calling one (`is_own`). Called
/// between `set_known` and `end_arm`.
pub(crate) fn arm(slot: &Slot, token: u64, tid: u32, is_own: bool) -> Result<(), Error> {
    let interval = GLOBAL.interval_ns.load(Ordering::Relaxed);
    let kind = GLOBAL.engine();
    slot.token.store(token, Ordering::Relaxed);
    if GLOBAL.signal_of(slot) == 0 {
        return Err(Error::HoldReason(HoldReason::Taken));
    }
    // If no descriptor, memory or queue place is left, the thread gets a timer that needs fewer of
    // them.
    let perf = match kind {
        EngineKind::Wall => return Ok(()),
        EngineKind::Clock => return arm_clock(slot, tid),
        EngineKind::Timer => None,
        EngineKind::PerfTaskClock => Some(false),
        EngineKind::PerfTaskClockUser => Some(true),
    };
    let is_held = guard::hold_reason_now(&GLOBAL, slot).is_some();
    if let Some(user_only) = perf
        && !is_held
    {
        match arm_perf(slot, token, tid, interval, user_only) {
            Err(Error::Os {
                errno: libc::EMFILE | libc::ENFILE | libc::ENOMEM,
                ..
            }) => {}
            other => return other,
        }
    }
    match arm_posix(slot, token, tid, is_own, interval) {
        Err(Error::Os {
            call: "timer_create",
            ..
        }) => arm_clock(slot, tid),
        other => other,
    }
}

/// A sender's word: the timer's number plus one in the low bits, and the request of its signals
/// above.
const SENDER_NUMBER: u32 = (1 << 28) - 1;

fn end_sender(word: u32) {
    if let Some(id) = (word & SENDER_NUMBER).checked_sub(1) {
        Timer::Posix(id.cast_signed()).end(0, 0);
    }
}

/// Sends a signal of ours by a timer of the thread that expires at once, for a sandbox that refuses
/// `rt_tgsigqueueinfo`. Like a queued signal it carries the token, and `execve` drops it; neither
/// is true of `tgkill`. At most one is under way. Not for the handler.
pub(crate) fn send_by_timer(slot: &Slot, token: u64, request: SignalRequest) -> Result<(), i32> {
    let [of_cpu, of_others] = &slot.senders;
    let place = if request == SignalRequest::Cpu {
        of_cpu
    } else {
        of_others
    };
    let kind = (request as u32) << SENDER_NUMBER.count_ones();
    let known = place.load(Ordering::Acquire); // pairs with the store below
    let id = if known & !SENDER_NUMBER == kind {
        (known & SENDER_NUMBER).wrapping_sub(1).cast_signed()
    } else {
        end_sender(place.swap(0, Ordering::AcqRel));
        let tid = slot.tid.load(Ordering::Relaxed);
        let id = make_posix(
            libc::CLOCK_MONOTONIC,
            tid,
            GLOBAL.signal_of(slot),
            SignalToken::sent_by_timer(token),
        )?;
        let number = id.cast_unsigned().wrapping_add(1);
        if number == 0 || number > SENDER_NUMBER {
            Timer::Posix(id).end(0, 0);
            return Err(libc::EAGAIN);
        }
        place.store(number | kind, Ordering::Release);
        id
    };
    if set_timer(id, 1, 0) {
        Ok(())
    } else {
        Err(sys::errno())
    }
}

/// Lets the reader check the thread's clock from now on.
fn arm_clock(slot: &Slot, tid: u32) -> Result<(), Error> {
    if !sys::is_own_thread(GLOBAL.pid.load(Ordering::Relaxed), tid) {
        return Err(Error::NoSuchThread);
    }
    let cpu = sys::clock_ns(sys::cpu_clock_of(tid));
    slot.accounted_cpu.store(cpu, Ordering::Relaxed);
    slot.timer.store(Timer::Clock.to_word(), Ordering::Release);
    begin_clock();
    Ok(())
}

fn begin_clock() {
    if GLOBAL.clocked.fetch_add(1, Ordering::Relaxed) == 0 {
        GLOBAL.wake(); // the reader sleeps while no thread needs it
    }
}

/// Creates a timer that signals the thread with this token, not running.
fn make_posix(clock: libc::clockid_t, tid: u32, signal: i32, token: u64) -> Result<i32, i32> {
    if !may_have_timers() {
        return Err(syscalls::refusal(Call::TimerCreate));
    }
    // SAFETY: all-zero is a valid sigevent.
    let mut event: libc::sigevent = unsafe { core::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = signal;
    event.sigev_notify_thread_id = tid as i32;
    event.sigev_value = libc::sigval {
        sival_ptr: token as usize as *mut libc::c_void,
    };
    // Each timer keeps a place in the user's queue of signals. A CLR that finds no place for its
    // own signal ends the program (3.1) or continues without it.
    if !GLOBAL.timers.take() {
        return Err(libc::EAGAIN);
    }
    let mut id: i32 = -1;
    // SAFETY: valid pointers to a sigevent and to an int, as the kernel's call (which, unlike
    // glibc's, writes an int and allocates nothing) asks for.
    let made =
        unsafe { libc::syscall(libc::SYS_timer_create, clock, &raw const event, &raw mut id) };
    if made != 0 {
        let errno = sys::errno();
        GLOBAL.timers.release();
        return Err(errno);
    }
    Ok(id)
}

fn arm_posix(slot: &Slot, token: u64, tid: u32, is_own: bool, interval: u64) -> Result<(), Error> {
    let id = make_posix(sys::cpu_clock_of(tid), tid, GLOBAL.signal_of(slot), token).map_err(
        |errno| match errno {
            // The clock of a thread that has ended.
            libc::EINVAL | libc::ESRCH => Error::NoSuchThread,
            errno => Error::Os {
                call: "timer_create",
                errno,
            },
        },
    )?;
    // Start of the first tick's value; see `first_value`. The kernel reads the caller's own clock
    // faster than one by number.
    let cpu = if is_own {
        sys::own_cpu_ns()
    } else {
        sys::clock_ns(sys::cpu_clock_of(tid))
    };
    slot.accounted_cpu.store(cpu, Ordering::Relaxed);
    slot.timer
        .store(Timer::Posix(id).to_word(), Ordering::Release);
    // The kernel checks the timer at its own tick only; `first_value` compensates for it.
    let tick = GLOBAL.tick_ns.load(Ordering::Relaxed);
    let phase = random_below(interval).saturating_sub(tick).max(1);
    if guard::hold_reason(&GLOBAL, slot).is_some() {
        pause(slot);
        return Ok(());
    }
    if set_timer(id, phase, interval) {
        return Ok(());
    }
    let error = sys::last_error("timer_settime");
    end_timer(slot);
    Err(error)
}

/// Returns the weight of the first sample of a POSIX timer, when `cpu` ns (less than a tick) have
/// passed since it was armed.
///
/// The kernel tests the timer at its tick. So it finds a thread that lives a fraction of a tick
/// with the probability (lifetime / tick). The timer has expired by then with the probability
/// min(1, (tick + cpu) / interval), because its phase is uniform in the interval less one tick. A
/// tick that hits a running thread must stand for one tick on average; so a sample stands for tick
/// / probability. From the second tick on that is the interval.
pub(crate) fn first_value(cpu: u64, tick: u64, interval: u64) -> u64 {
    let covered = (tick + cpu).min(interval).max(1);
    (u128::from(interval) * u128::from(tick) / u128::from(covered)) as u64
}

fn set_timer(id: i32, first: u64, interval: u64) -> bool {
    let time = |ns: u64| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    };
    let setting = libc::itimerspec {
        it_interval: time(interval),
        it_value: time(first),
    };
    // SAFETY: a valid itimerspec; the old value is not requested.
    unsafe {
        libc::syscall(
            libc::SYS_timer_settime,
            id,
            0,
            &raw const setting,
            core::ptr::null_mut::<libc::itimerspec>(),
        ) == 0
    }
}

fn arm_perf(
    slot: &Slot,
    token: u64,
    tid: u32,
    interval: u64,
    user_only: bool,
) -> Result<(), Error> {
    let phase = random_below(interval).max(perf::MIN_PERIOD_NS);
    let none_left = Error::Os {
        call: "perf_event_open",
        errno: libc::EMFILE,
    };
    if !GLOBAL.events.take() {
        return Err(none_left);
    }
    let fd = perf::open(tid, phase, user_only).inspect_err(|_| GLOBAL.events.release())?;
    let Some(entry) = GLOBAL.fd_entry(fd) else {
        sys::close(fd);
        GLOBAL.events.release();
        return Err(none_left);
    };
    slot.perf_id.store(perf::id(fd), Ordering::Relaxed);
    // The signal finds the slot through this entry. The kernel's system calls below order the store
    // before the first signal.
    entry.store(token, Ordering::Release);
    slot.timer
        .store(Timer::Perf(fd).to_word(), Ordering::Release);
    match perf::direct(fd, tid, GLOBAL.signal_of(slot), perf::ONE_TICK) {
        Ok(()) => Ok(()),
        Err(error) => {
            end_timer(slot);
            Err(error)
        }
    }
}

/// Allows one more tick after one has arrived. `period` is the interval from now on. Handler.
pub(crate) fn go_on(slot: &Slot, fd: i32, period: Option<u64>) {
    if perf::id(fd) != slot.perf_id.load(Ordering::Relaxed) {
        return; // the program has closed it
    }
    // SAFETY: IOC_PERIOD reads one u64; IOC_REFRESH takes a number; `fd` is our perf_event, which
    // we do not close while the handler is inside the slot's gate.
    unsafe {
        if let Some(period) = &period {
            libc::ioctl(fd, perf::IOC_PERIOD, core::ptr::from_ref(period));
        }
        libc::ioctl(fd, perf::IOC_REFRESH, perf::ONE_TICK);
    }
}

/// Stops the timer of a thread that may not be signalled now. Handler, inside the slot's gate, or
/// before its timer has run.
pub(crate) fn pause(slot: &Slot) {
    // Acquire: pairs with the Release in `arm_*`.
    if let Some(timer) = Timer::from_word(slot.timer.load(Ordering::Acquire)) {
        timer.stop(slot.perf_id.load(Ordering::Relaxed));
    }
    slot.paused.store(true, Ordering::Relaxed);
    // With the fence in `Sampler::recheck_signals`: either that function sees the pause, or this
    // one sees that the thread may be signalled.
    fence(Ordering::SeqCst);
    resume(slot);
}

/// Whether the kernel sends the thread's ticks by a POSIX timer. Handler.
pub(crate) fn is_timed_by_kernel(slot: &Slot) -> bool {
    let timer = Timer::from_word(slot.timer.load(Ordering::Relaxed));
    matches!(timer, Some(Timer::Posix(_)))
}

/// Replaces the timer of a thread that has faults by the reader's clock. The reader checks
/// [`guard`] right before it sends a signal; the kernel cannot. Handler, inside the slot's gate.
pub(crate) fn replace_timer_by_clock(slot: &Slot) {
    // Acquire: pairs with the Release in `arm_posix`.
    let word = slot.timer.load(Ordering::Acquire);
    let Some(Timer::Posix(id)) = Timer::from_word(word) else {
        return;
    };
    let cpu = sys::own_cpu_ns();
    slot.accounted_cpu.store(cpu, Ordering::Relaxed);
    let clock = Timer::Clock.to_word();
    // Release: pairs with the Acquire that finds the clock. On failure the timer is being ended.
    let changed = slot
        .timer
        .compare_exchange(word, clock, Ordering::Release, Ordering::Relaxed);
    if changed.is_ok() {
        begin_clock();
        Timer::Posix(id).end(0, 0);
    }
}

/// Restarts the timer of a thread that may be signalled again, if it was paused.
pub(crate) fn resume(slot: &Slot) {
    if guard::hold_reason(&GLOBAL, slot).is_some() || !slot.paused.swap(false, Ordering::Relaxed) {
        return;
    }
    let interval = GLOBAL.interval_ns.load(Ordering::Relaxed);
    // Acquire: pairs with the Release in `arm_*`. If the number was reused, it is another timer of
    // ours, whose next tick then comes a part of an interval later.
    match Timer::from_word(slot.timer.load(Ordering::Acquire)) {
        Some(Timer::Posix(id)) => drop(set_timer(id, interval, interval)),
        // It continues with its remaining tick.
        Some(Timer::Perf(fd)) if perf::id(fd) == slot.perf_id.load(Ordering::Relaxed) => {
            // SAFETY: an ioctl without argument on a perf_event fd.
            unsafe { libc::ioctl(fd, perf::IOC_ENABLE, 0) };
        }
        Some(Timer::Perf(_) | Timer::Clock) | None => {}
    }
}

/// Keeps this event open until the next call, and closes the previous one.
pub(crate) fn anchor(fd: Option<i32>) {
    let id = fd.map_or(0, perf::id);
    let old = GLOBAL.anchor_fd.swap(fd.unwrap_or(-1), Ordering::AcqRel);
    let old_id = GLOBAL.anchor_id.swap(id, Ordering::AcqRel);
    // If not, the program has closed it.
    if old >= 0 && perf::id(old) == old_id {
        sys::close(old);
    }
}

/// Number of intervals without a tick after which the last tick of a perf event is checked.
const LOST_INTERVALS: u64 = 16;

/// Allows a slot's perf event one more tick, if its last signal was lost: because the kernel had no
/// place for it (`is_certain`), or because a tracer kept it. In the second case the thread has used
/// much more than an interval since its last tick, and no signal is in its queue.
pub(crate) fn restart(slot: &Slot, is_certain: bool) {
    if slot.paused.load(Ordering::Relaxed) {
        return;
    }
    // Acquire: pairs with the Release in `arm_perf`.
    let Some(Timer::Perf(fd)) = Timer::from_word(slot.timer.load(Ordering::Acquire)) else {
        return;
    };
    let is_lost = || {
        let tid = slot.tid.load(Ordering::Relaxed);
        let used = sys::clock_ns(sys::cpu_clock_of(tid))
            .saturating_sub(slot.accounted_cpu.load(Ordering::Relaxed));
        let interval = GLOBAL.interval_ns.load(Ordering::Relaxed);
        used >= interval.saturating_mul(LOST_INTERVALS)
            && !sys::is_pending(tid, GLOBAL.signal_of(slot))
    };
    if is_certain || is_lost() {
        go_on(slot, fd, None);
    }
}

/// Whether perf_event is available for the calling thread, with or without kernel time. Returns the
/// descriptor, not counting. The caller keeps it open: as long as one event exists the kernel does
/// not patch its scheduler hooks in and out again, which stops all processors for a moment.
pub(crate) fn probe_perf(user_only: bool) -> Result<i32, Error> {
    perf::open(0, 1_000_000_000, user_only)
}

/// Returns a number in 0..bound, different for each call: splitmix64 over a counter and the clock.
fn random_below(bound: u64) -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let state = STATE.fetch_add(STEP, Ordering::Relaxed) ^ GLOBAL.seed.load(Ordering::Relaxed);
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    ((u128::from(z) * u128::from(bound)) >> 64) as u64
}

impl Global {
    /// Returns the entry of a perf descriptor in the table from descriptors to slots. Handler.
    pub(crate) fn fd_entry(&self, fd: i32) -> Option<&'static AtomicU64> {
        let table = self.fd_table.load(Ordering::Acquire);
        let index = usize::try_from(fd)
            .ok()
            .filter(|index| *index < crate::global::MAX_FDS)?;
        if table.is_null() {
            return None;
        }
        // SAFETY: the table has MAX_FDS words, zeroed at start, and is never unmapped.
        Some(unsafe { &*table.add(index) })
    }
}

mod perf {
    //! perf_event_open: the software task clock.

    use core::sync::atomic::Ordering;
    use syscalls::Call;

    use crate::config::Error;
    use crate::global::GLOBAL;
    use crate::sys;

    /// The kernel's own minimum (kernel/events/core.c, `perf_swevent_start_hrtimer`).
    pub(super) const MIN_PERIOD_NS: u64 = 10_000;

    const TYPE_SOFTWARE: u32 = 1;
    const SW_TASK_CLOCK: u64 = 1;
    const FLAG_FD_CLOEXEC: u64 = 8;
    const BIT_DISABLED: u64 = 1 << 0;
    const BIT_EXCLUDE_KERNEL: u64 = 1 << 5;
    const BIT_EXCLUDE_HV: u64 = 1 << 6;

    pub(super) const IOC_ENABLE: libc::Ioctl = 0x2400;
    pub(super) const IOC_DISABLE: libc::Ioctl = 0x2401;
    pub(super) const IOC_REFRESH: libc::Ioctl = 0x2402;
    pub(super) const IOC_PERIOD: libc::Ioctl = 0x4008_2404;
    const IOC_ID: libc::Ioctl = 0x8008_2407_u32 as libc::Ioctl;

    /// Returns the id of the perf event behind a descriptor; 0 if it is not one. Handler.
    pub(super) fn id(fd: i32) -> u64 {
        let mut id = 0u64;
        // SAFETY: IOC_ID writes one u64; other files refuse it.
        let asked = unsafe { libc::ioctl(fd, IOC_ID, &raw mut id) };
        if asked == 0 { id } else { 0 }
    }

    /// An event stops itself after one tick (POLL_HUP) until the handler restarts it. Real-time
    /// signals queue, so a second one is never under way.
    pub(super) const ONE_TICK: i32 = 1;

    const F_SETSIG: i32 = 10;
    const F_SETOWN_EX: i32 = 15;
    const F_OWNER_TID: i32 = 0;

    /// `struct perf_event_attr` up to PERF_ATTR_SIZE_VER5 (include/uapi/linux/perf_event.h); the
    /// kernel takes the length from `size`.
    #[repr(C)]
    struct Attributes {
        kind: u32,
        size: u32,
        config: u64,
        sample_period: u64,
        sample_type: u64,
        read_format: u64,
        flags: u64,
        wakeup_events: u32,
        bp_type: u32,
        config1: u64,
        config2: u64,
        branch_sample_type: u64,
        sample_regs_user: u64,
        sample_stack_user: u32,
        clockid: i32,
        sample_regs_intr: u64,
        aux_watermark: u32,
        sample_max_stack: u16,
        reserved: u16,
    }

    const _: () = assert!(size_of::<Attributes>() == 112);

    #[repr(C)]
    struct FdOwner {
        kind: i32,
        pid: i32,
    }

    /// Opens a task clock that does not count yet, with its descriptor in the upper range.
    pub(super) fn open(tid: u32, period: u64, user_only: bool) -> Result<i32, Error> {
        if !syscalls::is_allowed(Call::PerfEventOpen) {
            return Err(Error::Os {
                call: "perf_event_open",
                errno: syscalls::refusal(Call::PerfEventOpen),
            });
        }
        let exclude = if user_only {
            BIT_EXCLUDE_KERNEL | BIT_EXCLUDE_HV
        } else {
            0
        };
        let attributes = Attributes {
            kind: TYPE_SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: SW_TASK_CLOCK,
            sample_period: period,
            sample_type: 0,
            read_format: 0,
            flags: BIT_DISABLED | exclude,
            wakeup_events: 1,
            bp_type: 0,
            config1: 0,
            config2: 0,
            branch_sample_type: 0,
            sample_regs_user: 0,
            sample_stack_user: 0,
            clockid: 0,
            sample_regs_intr: 0,
            aux_watermark: 0,
            sample_max_stack: 0,
            reserved: 0,
        };
        // SAFETY: a valid attribute block of the size it states; no group, any CPU.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                tid,
                -1,
                -1,
                FLAG_FD_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(match sys::errno() {
                libc::ESRCH => Error::NoSuchThread,
                errno => Error::Os {
                    call: "perf_event_open",
                    errno,
                },
            });
        }
        // The kernel returns the lowest free number, so at least this many are in use.
        if fd as u64 > sys::descriptor_limit() / 2 {
            sys::close(fd as i32);
            return Err(Error::Os {
                call: "perf_event_open",
                errno: libc::EMFILE,
            });
        }
        Ok(GLOBAL.move_up(fd as i32))
    }

    /// Directs the signal to the thread and lets the clock run for `ticks` ticks.
    ///
    /// O_ASYNC alone gives one signal for each overflow (kernel/events/core.c,
    /// `__perf_event_overflow`: a wake-up with `pending_kill` for each when fasync is set).
    /// IOC_REFRESH adds the number after which the event stops with POLL_HUP.
    pub(super) fn direct(fd: i32, tid: u32, signal: i32, ticks: i32) -> Result<(), Error> {
        let owner = FdOwner {
            kind: F_OWNER_TID,
            pid: tid as i32,
        };
        // SAFETY: fcntl and ioctl on our own descriptor; F_SETOWN_EX reads one f_owner_ex.
        unsafe {
            if libc::fcntl(fd, F_SETOWN_EX, &raw const owner) != 0 {
                return Err(match sys::errno() {
                    libc::ESRCH => Error::NoSuchThread,
                    errno => Error::Os {
                        call: "fcntl F_SETOWN_EX",
                        errno,
                    },
                });
            }
            if libc::fcntl(fd, F_SETSIG, signal) != 0 {
                return Err(sys::last_error("fcntl F_SETSIG"));
            }
            if libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK) != 0 {
                return Err(sys::last_error("fcntl F_SETFL"));
            }
            // The event belongs to the thread that had this number when it was opened. If the
            // listed thread has ended, another process may have got its number, and must not get
            // the signal.
            if !sys::is_own_thread(GLOBAL.pid.load(Ordering::Relaxed), tid) {
                return Err(Error::NoSuchThread);
            }
            if libc::ioctl(fd, IOC_REFRESH, ticks) != 0 {
                return Err(sys::last_error("ioctl PERF_EVENT_IOC_REFRESH"));
            }
        }
        Ok(())
    }

    impl crate::global::Global {
        /// Moves a descriptor above those that the program will get. The program's own numbers are
        /// then the same as without the agent, and select(), which is limited to descriptors below
        /// 1024, keeps its range. If that fails the descriptor is unchanged.
        pub(crate) fn move_up(&self, fd: i32) -> i32 {
            let floor = self.fd_floor.load(Ordering::Relaxed);
            if floor <= 0 || fd >= floor {
                return fd;
            }
            // SAFETY: duplicates our own descriptor.
            let moved = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor) };
            if moved < 0 {
                return fd;
            }
            sys::close(fd);
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_timer_survives_its_word() {
        for timer in [
            Timer::Perf(0),
            Timer::Perf(i32::MAX),
            Timer::Posix(0),
            Timer::Posix(77),
            Timer::Clock,
        ] {
            assert_eq!(Timer::from_word(timer.to_word()), Some(timer));
        }
        assert_eq!(Timer::from_word(NO_TIMER), None);
    }

    proptest! {
        #[test]
        fn random_stays_below(bound in 1u64..1_000_000_000) {
            prop_assert!(random_below(bound) < bound);
        }

        /// Averaged over all positions of the kernel's tick in a short life, the first sample's
        /// value is the CPU time used.
        #[test]
        fn the_first_value_is_unbiased(life in 1u64..4_000_000, interval in 100_000u64..100_000_000) {
            let tick = 4_000_000u64;
            let steps = 2000u64;
            let mut expected = 0.0;
            for step in 0..steps {
                let cpu = life * step / steps; // CPU time when the tick comes
                let probability = ((tick + cpu).min(interval)) as f64 / interval as f64;
                expected += probability * first_value(cpu, tick, interval) as f64;
            }
            let seen = life as f64 / tick as f64;
            let mean = expected / steps as f64 * seen;
            prop_assert!((mean / life as f64 - 1.0).abs() < 0.01, "{mean} for {life}");
        }
    }
}
