//! Ticks driven by the agent thread: of wall time, and of CPU time for threads without a timer.
//!
//! At a tick it decides which threads to signal, at most one signal of a kind at a time to each
//! thread. The signal handler (`handler`) takes the sample. While all threads wait, ticks happen
//! only when one of them is due for a check. Invariants: a waiting thread is not woken to read its
//! CPU time. A thread that is registered while ticks pause has its next tick at the regular time.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::config::Error;
use crate::engine::Timer;
use crate::global::{GLOBAL, SignalRequest};
use crate::protocol::{CLOSING, KNOWN, LIVE};
use crate::reader::Reader;
use crate::sampler::{self, SlotId};
use crate::slot::{Slot, WallSignal};
use crate::sys;
use crate::waits::{self, WaitPlace, WaitState};

/// Maximum CPU time, since the handler returned, of a thread that went straight back to its wait:
/// the rest of the handler's signal return and of the system call's restart.
const IDLE_CPU_NS: u64 = 20_000;

/// Tolerance when a thread has used the whole time since the last tick, and was therefore preempted
/// just now. It covers the start of the agent thread, and is less than a thread runs before it
/// waits.
const LONG_WAIT_NS: u64 = 20_000;

/// Number of ticks after which a handler that has not returned is considered left by a jump of the
/// program.
const LEFT_TICKS: u32 = 16;
/// Number of ticks after which a missing signal is looked up in the thread's queue.
const LOST_TICKS: u8 = 16;

/// A clock that has not moved for some time is checked again after this part of that time ...
const LOOK_PART: u64 = 8;
/// ... and at the latest after this time.
const LONGEST_LOOK_NS: u64 = 100_000_000;

impl Reader {
    /// Performs the ticks, of wall time and of threads without a timer, that are due
    /// ([`crate::Sampler::due_ns`]). Call it right after [`Reader::drain_all`]. Late ticks are not
    /// repeated: each sample's value is the time that really passed.
    pub fn tick(&mut self, now_ns: u64) {
        if !self.punctual {
            self.punctual = true;
            sys::set_timer_slack();
        }
        let wall = GLOBAL.wall_interval_ns.load(Ordering::Relaxed);
        if wall > 0 {
            tick_if_due(&GLOBAL.wall_due, wall, now_ns, || {
                self.check_wall_clocks(now_ns)
            });
        }
        if GLOBAL.clocked.load(Ordering::Relaxed) > 0 {
            let interval = GLOBAL.interval_ns.load(Ordering::Relaxed);
            tick_if_due(&GLOBAL.clock_due, interval, now_ns, || {
                self.clock_tick(now_ns)
            });
        }
    }

    /// Takes CPU samples of threads without a timer: signals those that run at this moment and have
    /// used half an interval since their last sample (any time before their first). Returns the
    /// time of the next check of a thread.
    fn clock_tick(&mut self, now_ns: u64) -> u64 {
        if !GLOBAL.running() {
            return now_ns;
        }
        let own_ns = sys::own_cpu_ns();
        let last = core::mem::replace(&mut self.last_clock_tick, (now_ns, own_ns));
        let since = Since {
            tick_ns: last.0,
            others_ns: now_ns
                .saturating_sub(last.0)
                .saturating_sub(own_ns.saturating_sub(last.1)),
        };
        for_each_due(&GLOBAL.cpu_looks, now_ns, |id, slot, look| {
            // Acquire: pairs with the Release in `arm_clock`.
            let is_clocked =
                Timer::from_word(slot.timer.load(Ordering::Acquire)) == Some(Timer::Clock);
            if is_clocked {
                tick_cpu_of(id, slot, look, now_ns, since);
            }
            is_clocked
        })
    }

    /// Takes wall-clock samples. Call it once per interval, right after [`Reader::drain_all`]. It
    /// signals each registered thread that has used CPU time since its last sample, except threads
    /// that wait where they are known to have waited before ([`crate::Config::wait`]). For threads
    /// that are not signalled, the time is added to a repetition of their last sample. `drain*`
    /// returns it when the thread moves, when it ends, or after about a second. `now_ns` is
    /// CLOCK_MONOTONIC. Does nothing if no wall-clock samples are configured.
    pub fn wall_tick(&mut self, now_ns: u64) {
        self.check_wall_clocks(now_ns);
    }

    /// Returns the time of the next check of a thread.
    fn check_wall_clocks(&mut self, now_ns: u64) -> u64 {
        if GLOBAL.wall_interval_ns.load(Ordering::Relaxed) == 0 || !GLOBAL.running() {
            return now_ns;
        }
        GLOBAL.last_tick.store(now_ns, Ordering::Relaxed);
        for_each_due(&GLOBAL.wall_looks, now_ns, |id, slot, look| {
            self.tick_wall_of(id, slot, look, now_ns);
            true
        })
    }

    fn tick_wall_of(&mut self, id: SlotId, slot: &Slot, look: &AtomicU64, now_ns: u64) {
        let side = &slot.reader;
        // Acquire: pairs with the Release in the handler, whose words are read below.
        let under_way = slot.wall_signal.load(Ordering::Acquire);
        if under_way != WallSignal::NONE {
            self.pending_signals += 1;
            if under_way == WallSignal::SENT {
                // A signal that has not arrived is still in the queue, unless it was lost.
                if !sampler::is_lost(slot, &side.wall_misses, LOST_TICKS) {
                    return;
                }
            } else {
                let waited = side.waited.load(Ordering::Relaxed).saturating_add(1);
                side.waited.store(waited, Ordering::Relaxed);
                if waited < LEFT_TICKS {
                    return;
                }
            }
        }
        // The program must run for as long as the walk took.
        if now_ns < slot.wall_rest.load(Ordering::Relaxed) {
            return;
        }
        let interval = GLOBAL.wall_interval_ns.load(Ordering::Relaxed);
        let place = WaitPlace::of(slot);
        let tid = slot.tid.load(Ordering::Relaxed);
        let clock = sys::cpu_clock_of(tid);
        let cpu = sys::clock_ns(clock);
        let seen = side.cpu_seen.swap(cpu, Ordering::Relaxed);
        let looked = side.wall_looked.swap(now_ns, Ordering::Relaxed);
        let since = cpu.saturating_sub(slot.cpu_after.load(Ordering::Relaxed));
        let looks_idle = slot.wall_samples.load(Ordering::Relaxed) > 0
            && (since <= IDLE_CPU_NS || (cpu == seen && place == WaitPlace::Last));
        let is_still = match place {
            WaitPlace::Moves => false,
            // The second of two consecutive samples was taken where the thread waits: it looked
            // idle, and waited when the second signal was sent.
            WaitPlace::Last => looks_idle,
            WaitPlace::Known => cpu == seen,
        };
        if is_still {
            let still = side.wall_still.load(Ordering::Relaxed);
            let next = next_look(still, now_ns);
            look.store(next, Ordering::Relaxed);
            if next.saturating_sub(now_ns) > interval && !side.is_long.swap(true, Ordering::Relaxed)
            {
                let queued = sys::queued_ns(tid);
                side.wall_queued.store(queued, Ordering::Relaxed);
            }
            wait_on(id, slot, place, now_ns);
            return;
        }
        let was_long = side.is_long.swap(false, Ordering::Relaxed);
        if place != WaitPlace::Moves && now_ns.saturating_sub(looked) > interval + interval / 2 {
            // It has moved since that check, for as long as its clock shows, or would have with a
            // free processor. Before that, it waited.
            let ran = cpu.saturating_sub(seen);
            let queued = if was_long {
                let before = side.wall_queued.load(Ordering::Relaxed);
                sys::queued_ns(tid).saturating_sub(before)
            } else {
                0
            };
            let moved = ran.saturating_add(queued);
            wait_on(id, slot, place, now_ns.saturating_sub(moved));
        }
        side.wall_still.store(now_ns, Ordering::Relaxed);
        // The remembered stack is not read while a handler may be writing it.
        let found = if under_way == WallSignal::NONE {
            waits::check_wait(slot, tid, clock, cpu)
        } else {
            WaitState::Runs
        };
        if found == WaitState::Again {
            WaitPlace::Known.keep(slot);
            wait_on(id, slot, WaitPlace::Known, now_ns);
            return;
        }
        // A preempted thread has used no CPU time since its sample either, and may be anywhere, so
        // its kernel state is checked.
        let waits = || found == WaitState::Elsewhere || !sys::is_runnable(tid);
        let settles = if looks_idle && waits() {
            WaitPlace::Last
        } else {
            WaitPlace::Moves
        };
        settles.keep(slot);
        slot.wait_asked
            .store(found == WaitState::Elsewhere, Ordering::Relaxed);
        if let Err(Error::HoldReason(held)) = send_wall(slot, id) {
            GLOBAL.discard(held.reason());
            slot.wall_time.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Requests one wall-clock sample of a thread whose stack is known, whatever its state, if
    /// wall-clock samples are configured. Returns false if no signal was sent, because the last one
    /// is pending or the thread cannot be signalled.
    pub fn signal_once(&mut self, id: SlotId) -> bool {
        let Some(slot) = id.slot().filter(|_| GLOBAL.running()) else {
            return false;
        };
        let (generation, flags) = slot.gate.peek();
        let can_answer =
            generation == id.generation() && flags & (LIVE | KNOWN | CLOSING) == LIVE | KNOWN;
        // Acquire: pairs with the Release in the handler.
        let may_send = match slot.wall_signal.load(Ordering::Acquire) {
            WallSignal::NONE => true,
            WallSignal::SENT => sampler::is_lost(slot, &slot.reader.wall_misses, LOST_TICKS),
            _ => false,
        };
        can_answer && may_send && send_wall(slot, id).is_ok()
    }
}

fn send_wall(slot: &Slot, id: SlotId) -> Result<(), Error> {
    slot.reader.waited.store(0, Ordering::Relaxed);
    slot.reader.wall_misses.store(0, Ordering::Relaxed);
    slot.wall_signal.store(WallSignal::SENT, Ordering::Relaxed);
    sampler::send(slot, id, SignalRequest::Wall)
        .inspect_err(|_| slot.wall_signal.store(WallSignal::NONE, Ordering::Relaxed))
}

/// Performs a tick if it is due, and sets the next due time: after an interval or, if all threads
/// wait, at the next check of a thread, which `tick` returns.
fn tick_if_due(due: &AtomicU64, interval: u64, now_ns: u64, tick: impl FnOnce() -> u64) {
    let was_due = due.load(Ordering::Relaxed);
    if now_ns < was_due {
        return;
    }
    // SeqCst, here and in `due::note_sampled_thread`. A thread that is registered during the tick
    // and finds the old due time soon enough is detected here once the new one is stored.
    let sampled_threads = GLOBAL.sampled_threads.load(Ordering::SeqCst);
    let look = tick();
    let next = was_due.saturating_add(interval).max(now_ns);
    due.store(next.max(look), Ordering::SeqCst);
    if GLOBAL.sampled_threads.load(Ordering::SeqCst) != sampled_threads {
        due.fetch_min(next, Ordering::SeqCst);
    }
}

/// Calls `each` for the threads that can be sampled and are due for a check. `each` returns whether
/// the thread uses this clock. Returns the time of the next check.
fn for_each_due(
    looks: &'static [AtomicU64],
    now_ns: u64,
    mut each: impl FnMut(SlotId, &'static Slot, &'static AtomicU64) -> bool,
) -> u64 {
    let mut next = now_ns.saturating_add(LONGEST_LOOK_NS);
    for (index, look) in looks.iter().enumerate().take(GLOBAL.used()) {
        let at = look.load(Ordering::Relaxed);
        if now_ns < at {
            next = next.min(at);
            continue;
        }
        let Some(slot) = GLOBAL.slot(index) else {
            continue;
        };
        let (generation, flags) = slot.gate.peek();
        if flags & (LIVE | KNOWN | CLOSING) == LIVE | KNOWN
            && each(SlotId::new(generation, index), slot, look)
        {
            next = next.min(look.load(Ordering::Relaxed));
        }
    }
    next
}

/// Notes that the thread has waited at this place until `until_ns`.
fn wait_on(id: SlotId, slot: &Slot, place: WaitPlace, until_ns: u64) {
    let side = &slot.reader;
    let from = slot.wall_time.load(Ordering::Relaxed);
    if until_ns <= from {
        return;
    }
    if place != WaitPlace::Known {
        let (tail, unread) = slot.ring().available();
        let behind = tail.wrapping_add(unread);
        let reported = side.idle_ns.load(Ordering::Relaxed) == 0;
        if !reported && side.idle_at.load(Ordering::Relaxed) != behind {
            // Time that belongs to an earlier sample has not been read yet. It is read first, and
            // the next check covers this time.
            GLOBAL.wake();
            return;
        }
        side.idle_at.store(behind, Ordering::Relaxed);
    }
    slot.wall_time.store(until_ns, Ordering::Relaxed);
    let (ns, ticks, until) = match place {
        WaitPlace::Known => (&side.wait_ns, &side.wait_ticks, &side.wait_until),
        WaitPlace::Moves | WaitPlace::Last => (&side.idle_ns, &side.idle_ticks, &side.idle_until),
    };
    let interval = GLOBAL.wall_interval_ns.load(Ordering::Relaxed).max(1);
    let sum = ns.load(Ordering::Relaxed).saturating_add(until_ns - from);
    ns.store(sum, Ordering::Relaxed);
    let count = (sum.saturating_add(interval / 2) / interval).clamp(1, u32::MAX.into());
    ticks.store(count as u32, Ordering::Relaxed);
    until.store(until_ns, Ordering::Relaxed);
    GLOBAL.mark_pending(id.index());
}

/// Returns the time of the next check of a clock that has not moved since `still`. Clocks that have
/// not moved for long are checked together.
fn next_look(still: u64, now: u64) -> u64 {
    let wait = now.saturating_sub(still) / LOOK_PART;
    if wait < LONGEST_LOOK_NS {
        now + wait
    } else {
        let next = now + LONGEST_LOOK_NS;
        next - next % LONGEST_LOOK_NS
    }
}

/// Times since the last clock tick.
#[derive(Clone, Copy)]
struct Since {
    /// Time of the last tick.
    tick_ns: u64,
    /// Time since then, without the agent thread's own CPU time.
    others_ns: u64,
}

fn tick_cpu_of(id: SlotId, slot: &Slot, look: &AtomicU64, now_ns: u64, since: Since) {
    let side = &slot.reader;
    if slot.cpu_sent.load(Ordering::Relaxed)
        && !sampler::is_lost(slot, &side.cpu_misses, LOST_TICKS)
    {
        return;
    }
    let tid = slot.tid.load(Ordering::Relaxed);
    let clock = sys::cpu_clock_of(tid);
    let cpu = sys::clock_ns(clock);
    let seen = side.clock_seen.swap(cpu, Ordering::Relaxed);
    if cpu == seen {
        let still = side.clock_still.load(Ordering::Relaxed);
        look.store(next_look(still, now_ns), Ordering::Relaxed);
        return;
    }
    let moved_ns = side.clock_still.swap(now_ns, Ordering::Relaxed);
    let used = cpu.saturating_sub(slot.accounted_cpu.load(Ordering::Relaxed));
    let half = GLOBAL.interval_ns.load(Ordering::Relaxed) / 2;
    if used < half && !slot.first_tick.load(Ordering::Relaxed) {
        return;
    }
    // The clock of a running thread advances. A thread preempted by the agent has run until now.
    // The state of any other thread is read from a file.
    let has_run_on = moved_ns == since.tick_ns
        && cpu.saturating_sub(seen).saturating_add(LONG_WAIT_NS) >= since.others_ns;
    if sys::clock_ns(clock) == cpu && !has_run_on && !sys::is_runnable(tid) {
        return;
    }
    // The thread may have ended during this check.
    if Timer::from_word(slot.timer.load(Ordering::Relaxed)) != Some(Timer::Clock) {
        return;
    }
    slot.cpu_sent.store(true, Ordering::Relaxed);
    side.cpu_misses.store(0, Ordering::Relaxed);
    if sampler::send(slot, id, SignalRequest::Cpu).is_err() {
        slot.cpu_sent.store(false, Ordering::Relaxed);
    }
}
