//! The clocks that the agent thread drives: wall time, and the CPU time of threads that have no
//! timer.
//!
//! It decides which threads are signalled at a tick, never more than one signal of a kind at a time
//! to each; what the signal then does is the handler's. While all threads wait there are no ticks
//! but those at which one of them is to be looked at. The invariants: a thread that waits is not
//! woken for the sake of its CPU time; one that is registered while there are no ticks has the next
//! one when it would have been.

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

/// A thread that used no more CPU time than this since the handler left it went straight back to
/// where it waited: what remains of the handler's signal return and the system call's restart.
const IDLE_CPU_NS: u64 = 20_000;

/// A thread that has used all the time since the last tick but this has been put aside just now. As
/// much as the agent thread needs to come, and less than a thread runs before it waits.
const LONG_WAIT_NS: u64 = 20_000;

/// Ticks after which a handler that has not returned is taken for one that the program has jumped
/// out of.
const LEFT_TICKS: u32 = 16;
/// Ticks after which it is looked whether a signal that has not come is in the thread's queue.
const LOST_TICKS: u8 = 16;

/// A clock that has stood still for some time is looked at again after this part of that time ...
const LOOK_PART: u64 = 8;
/// ... and after so long at the latest.
const LONGEST_LOOK_NS: u64 = 100_000_000;

impl Reader {
    /// Ticks, of wall time and of threads without a timer, as far as they are due
    /// ([`crate::Sampler::due_ns`]): call it right after [`Reader::drain_all`]. Late ones are not
    /// made up for: each sample's value is the time really passed.
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

    /// CPU samples of threads without a timer: signals those that run at this moment and have used
    /// half an interval since their last sample, any time at all before their first. Answers when
    /// the next thread is to be looked at.
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

    /// Wall-clock samples: call it once per interval, right after [`Reader::drain_all`]. Signals
    /// each registered thread that has used CPU time since its last sample, but for those that wait
    /// where they are known to have waited before ([`crate::Config::wait`]); for the others the
    /// time is added to a repeat of that sample, which comes out of `drain*` when the thread moves,
    /// when it ends, or after about a second. `now_ns` is CLOCK_MONOTONIC. Does nothing when no
    /// wall-clock samples are configured.
    pub fn wall_tick(&mut self, now_ns: u64) {
        self.check_wall_clocks(now_ns);
    }

    /// Answers when the next thread is to be looked at.
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
                // A signal that has not arrived is in the queue still, and comes.
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
        // The program is to run for as long as our walk took.
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
            // Two samples in a row of a thread that looks idle, and waited when the second was sent
            // for: that was taken where it waits.
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
            // It has moved since that look, for as long as its clock says, or would have if there
            // had been a processor for it; before, it waited.
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
        // While a handler may be at it, what it remembers is not read.
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
        // One that lost the processor to another has used none since its sample either, and is
        // anywhere: it may be about to wait.
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

    /// Asks a thread whose stack is known for one wall-clock sample, whatever it does, where
    /// wall-clock samples are configured. False: it was not asked now, as it has not answered yet,
    /// or cannot be.
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

/// Ticks if it is time to, and says when it is again: after an interval, or, where all threads
/// wait, when the first of them is to be looked at, which `tick` answers.
fn tick_if_due(due: &AtomicU64, interval: u64, now_ns: u64, tick: impl FnOnce() -> u64) {
    let was_due = due.load(Ordering::Relaxed);
    if now_ns < was_due {
        return;
    }
    // SeqCst, here and in `due::note_sampled_thread`: who comes during the tick and finds the old
    // time to be soon enough is seen to have come when the new one is there.
    let sampled_threads = GLOBAL.sampled_threads.load(Ordering::SeqCst);
    let look = tick();
    let next = was_due.saturating_add(interval).max(now_ns);
    due.store(next.max(look), Ordering::SeqCst);
    if GLOBAL.sampled_threads.load(Ordering::SeqCst) != sampled_threads {
        due.fetch_min(next, Ordering::SeqCst);
    }
}

/// The threads that can be sampled and are to be looked at; `each` answers whether it is one of its
/// own. Answers when the next one is to be looked at.
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

/// Until `until_ns` the thread has waited at this place.
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
            // Time that belongs to an earlier sample has not been read: that is to be done first,
            // and the next look covers this time.
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

/// When a clock that stands still since `still` is looked at again. Those that have stood still for
/// long are looked at together.
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
    /// When it was.
    tick_ns: u64,
    /// Time since then, without that which the agent thread has used.
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
    // On a processor its clock goes on; one that has been put aside for us has run until now; any
    // other has to be asked for, by a file.
    let has_run_on = moved_ns == since.tick_ns
        && cpu.saturating_sub(seen).saturating_add(LONG_WAIT_NS) >= since.others_ns;
    if sys::clock_ns(clock) == cpu && !has_run_on && !sys::is_runnable(tid) {
        return;
    }
    // The thread may have been ended while we looked.
    if Timer::from_word(slot.timer.load(Ordering::Relaxed)) != Some(Timer::Clock) {
        return;
    }
    slot.cpu_sent.store(true, Ordering::Relaxed);
    side.cpu_misses.store(0, Ordering::Relaxed);
    if sampler::send(slot, id, SignalRequest::Cpu).is_err() {
        slot.cpu_sent.store(false, Ordering::Relaxed);
    }
}
