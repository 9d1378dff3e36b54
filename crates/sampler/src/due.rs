//! When the clocks that the reader drives tick next, for a thread that comes while they rest.
//!
//! It looks at no thread; `clocks` does. The invariant: who is registered while all others wait has
//! his first tick when it would have been without the rest.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Timer;
use crate::global::GLOBAL;
use crate::slot::Slot;
use crate::sys;

/// A thread is sampled from here on: there is a tick after an interval, if there have been none for
/// all the others that wait.
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

/// When the last wall tick was, or would have been while there are none because all threads wait.
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
