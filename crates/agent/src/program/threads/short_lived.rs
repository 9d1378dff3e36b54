//! Random choice of the threads to sample in programs that start many short-lived ones.
//!
//! A thread that a runtime reports gets a timer, an entry in every table and a name, at some 15 µs.
//! If threads live for a tenth of a millisecond and hundreds start per second, that is too much for
//! a profiler. Of such a crowd one thread in a few is sampled, chosen at random. Its ticks also
//! stand for those that are left out. A thread that still runs at the agent thread's next scan is
//! promoted: it is sampled for itself from then on, as all threads are in a program without a
//! crowd.
//!
//! Slots and accounts are handled in the caller. Invariants: the choice is random only, so the
//! threads left out do not differ from those taken. Without a crowd no thread is left out.

use super::StartedThread;
use crate::base::numbers::NumberMap;
use crate::base::random::next_random;
use crate::model::ManagedThread;

/// The approximate cost of sampling a thread that does nothing (docs/overhead.md). CPU time.
const COST_NS: u64 = 15_000;
/// Sampling may cost at most 1/`SHARE` of the CPU time that the sampled threads use.
const SHARE: u64 = 30;
/// Maximum number of threads for which one stands. A tick that stands for more has little meaning.
const MOST: u64 = 16;

/// Length of the window in which starts are counted, nanoseconds.
const WINDOW_NS: u64 = 100_000_000;
/// Number of starts in a window that make a crowd. Fewer cost at most half a percent of a
/// processor, whatever they do.
const MANY: u32 = 32;

/// Approximate number of threads in the mean.
const LIVES: u64 = 16;

/// State of the random choice.
#[derive(Debug, Default)]
pub(super) struct ShortLivedSampling {
    /// Whether threads may be left out.
    is_wanted: bool,
    /// Start of the window, CLOCK_MONOTONIC.
    window_ns: u64,
    /// Number of threads that started in the window, and in the one before.
    started: u32,
    started_before: u32,
    /// Approximate mean CPU time of taken threads that ended before promotion; 0 while unknown.
    mean_ns: u64,
    /// State of the random generator; not 0 if threads may be left out.
    random: u64,
    /// Threads left out that have not ended.
    waiting: NumberMap<ManagedThread, StartedThread>,
    /// Number of threads left out that have ended.
    left_out: u64,
}

impl ShortLivedSampling {
    /// Configures the choice when a session begins or changes.
    pub(super) fn configure(&mut self, is_wanted: bool, seed: u64) {
        self.is_wanted = is_wanted;
        self.random = seed | 1;
    }

    /// Returns the number of threads for which a starting thread's ticks stand. `None`: it is left
    /// out.
    pub(super) fn choose(&mut self, now_ns: u64) -> Option<u32> {
        if !self.is_wanted {
            return Some(1);
        }
        if now_ns.saturating_sub(self.window_ns) >= WINDOW_NS {
            let is_next = now_ns.saturating_sub(self.window_ns) < 2 * WINDOW_NS;
            self.started_before = if is_next { self.started } else { 0 };
            (self.window_ns, self.started) = (now_ns, 0);
        }
        self.started = self.started.saturating_add(1);
        if self.started.max(self.started_before) < MANY || self.mean_ns == 0 {
            return Some(1);
        }
        let threads = (COST_NS * SHARE).div_ceil(self.mean_ns).clamp(1, MOST);
        let is_taken = next_random(&mut self.random).is_multiple_of(threads);
        is_taken.then_some(u32::try_from(threads).unwrap_or(1))
    }

    /// Adds a thread that is left out.
    pub(super) fn leave_out(&mut self, started: StartedThread) {
        self.waiting.insert(started.managed, started);
    }

    /// Handles the end of a managed thread. Returns whether it was left out.
    pub(super) fn thread_ended(&mut self, managed: ManagedThread) -> bool {
        let is_one = self.waiting.remove(&managed).is_some();
        self.left_out += u64::from(is_one);
        is_one
    }

    /// Records the CPU time of a taken thread that ended before promotion.
    pub(super) fn record_lifetime(&mut self, cpu_ns: u64) {
        let cpu_ns = cpu_ns.max(1);
        self.mean_ns = match self.mean_ns {
            0 => cpu_ns,
            mean => mean.saturating_mul(LIVES - 1).saturating_add(cpu_ns) / LIVES,
        };
    }

    /// Takes the left-out threads that still run, for promotion.
    pub(super) fn take_promoted(&mut self) -> Vec<StartedThread> {
        self.waiting.drain().map(|(_, started)| started).collect()
    }

    /// Whether threads wait for promotion.
    pub(super) fn has_promotable(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the number of threads that were left out until their ends.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Drops the threads of a CLR that has ended.
    pub(super) fn forget_runtime(&mut self, runtime: u8) {
        self.waiting.retain(|(of, _), _| *of != runtime);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of 10,000 threads with this interval and CPU time are taken, and for how
    /// many they stand.
    fn taken(apart_ns: u64, cpu_ns: u64) -> (u32, u32) {
        let mut short_lived = ShortLivedSampling::default();
        short_lived.configure(true, 7);
        let (mut taken, mut stands) = (0, 0);
        for n in 1..=10_000 {
            if let Some(threads) = short_lived.choose(n * apart_ns) {
                short_lived.record_lifetime(cpu_ns);
                taken += 1;
                stands += threads;
            }
        }
        (taken, stands)
    }

    #[test]
    fn some_of_many_short_threads_stand_for_all() {
        for (apart_ns, cpu_ns, least, most) in [
            // One in five of 100 µs each, one in sixteen of 1 µs.
            (150_000, 100_000, 1_900, 2_200),
            (150_000, 1_000, 550, 750),
            // Few, or long ones: all.
            (10_000_000, 100_000, 10_000, 10_000),
            (150_000, 450_000, 10_000, 10_000),
            (150_000, u64::MAX, 10_000, 10_000),
        ] {
            let (taken, stands) = taken(apart_ns, cpu_ns);
            let case = format!("{apart_ns} {cpu_ns}: {taken} stand for {stands}");
            assert!((least..=most).contains(&taken), "{case}");
            assert!((9_000..=11_000).contains(&stands), "{case}");
        }
    }

    #[test]
    fn a_pause_ends_the_sampling_of_few() {
        let mut short_lived = ShortLivedSampling::default();
        short_lived.configure(true, 7);
        short_lived.record_lifetime(1_000);
        for n in 0..100 {
            short_lived.choose(n);
        }
        assert!((0..20).any(|n| short_lived.choose(n).is_none()));
        assert!((0..20).all(|n| short_lived.choose(10 * WINDOW_NS + n).is_some()));
    }

    #[test]
    fn no_thread_is_left_out_where_that_is_not_wanted() {
        let mut short_lived = ShortLivedSampling::default();
        short_lived.record_lifetime(1_000);
        assert!((0..10_000).all(|n| short_lived.choose(n) == Some(1)));
    }
}
