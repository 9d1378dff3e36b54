//! Due times of the reader's clock ticks, updated when a thread is registered while ticks pause.
//!
//! The checks of the threads are in `clocks`. Invariant: a thread that is registered while all
//! others wait has its first tick at the time it would have without the pause.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Timer;
use crate::global::GLOBAL;
use crate::slot::Slot;
use crate::sys;

/// Notes a newly sampled thread: the next tick is after an interval, also if ticks pause because
/// all other threads wait.
pub(crate) fn note_sampled_thread(slot: &Slot) {
    let wall = GLOBAL.wall_interval_ns.load(Ordering::Relaxed);
    let timer = Timer::from_word(slot.timer.load(Ordering::Relaxed));
    if wall == 0 && timer != Some(Timer::Clock) {
        return;
    }
    GLOBAL.sampled_threads.fetch_add(1, Ordering::SeqCst);
    let now = sys::monotonic_ns();
    let pull = |due: &AtomicU64, soon: u64| {
        due.load(Ordering::SeqCst) > soon && due.fetch_min(soon, Ordering::SeqCst) > soon
    };
    let interval = GLOBAL.interval_ns.load(Ordering::Relaxed);
    let wall = wall > 0 && pull(&GLOBAL.wall_due, last_wall_tick(now).saturating_add(wall));
    let clock = timer == Some(Timer::Clock) && pull(&GLOBAL.clock_due, now + interval);
    if wall || clock {
        GLOBAL.wake();
    }
}

/// Returns the time of the last wall tick, or when it would have been if ticks did not pause.
pub(crate) fn last_wall_tick(now_ns: u64) -> u64 {
    let last = GLOBAL.last_tick.load(Ordering::Relaxed);
    let interval = GLOBAL.wall_interval_ns.load(Ordering::Relaxed);
    let due = GLOBAL.wall_due.load(Ordering::Relaxed);
    if interval == 0 || due <= last.saturating_add(interval) {
        return last;
    }
    let since = now_ns.saturating_sub(last);
    last + (since - since % interval)
}
