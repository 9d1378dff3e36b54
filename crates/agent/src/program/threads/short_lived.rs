//! Threads that are made by the thousand: which of them are sampled from their start.
//!
//! A thread that a runtime reports gets a timer, a place in every table and a name: some 15 µs.
//! Where threads live for a tenth of a millisecond and hundreds of them are made in a second, that
//! is more than a profiler may cost. Of such a crowd one in a few is taken, by chance, and its
//! ticks stand for those that are left out. Whoever is still there when the agent thread next looks
//! is grown up: it is sampled for itself from then on, as all threads are that are made one now and
//! then.
//!
//! It knows no slots and no accounts. Invariants: chance alone decides, so those that are left out
//! are like those that are taken; without a crowd no thread is left out.

use super::StartedThread;
use crate::base::numbers::NumberMap;
use crate::base::random::next_random;
use crate::model::ManagedThread;

/// The approximate cost of sampling a thread that does nothing (docs/overhead.md). CPU time.
const COST_NS: u64 = 15_000;
/// Sampled threads are to cost this part of what they use, at most.
const SHARE: u64 = 30;
/// So many threads one stands for at most: a tick of one that stands for more says little.
const MOST: u64 = 16;

/// Threads are counted for so long, nanoseconds.
const WINDOW_NS: u64 = 100_000_000;
/// So many in a window are a crowd. Fewer cost half a percent of a processor at most, whatever they
/// do.
const MANY: u32 = 32;

/// How many lives the mean is about.
const LIVES: u64 = 16;

/// The choice of threads from the crowd.
#[derive(Debug, Default)]
pub(super) struct ShortLivedSampling {
    /// No thread is left out while this is false.
    is_wanted: bool,
    /// When the window began, CLOCK_MONOTONIC.
    window_ns: u64,
    /// Threads that started in it, and in the one before.
    started: u32,
    started_before: u32,
    /// CPU time of those that were taken and did not grow up, about; 0 while nothing is known.
    mean_ns: u64,
    /// Not 0 where threads may be left out.
    random: u64,
    /// Those that were left out and have not ended.
    waiting: NumberMap<ManagedThread, StartedThread>,
    /// Those that were left out and have ended.
    left_out: u64,
}

impl ShortLivedSampling {
    /// A session begins or changes.
    pub(super) fn configure(&mut self, is_wanted: bool, seed: u64) {
        self.is_wanted = is_wanted;
        self.random = seed | 1;
    }

    /// A thread starts: for how many its ticks are to stand. `None`: it is left out.
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

    /// One that is left out.
    pub(super) fn leave_out(&mut self, started: StartedThread) {
        self.waiting.insert(started.managed, started);
    }

    /// A managed thread has ended. Answers whether it was one of those that are left out.
    pub(super) fn thread_ended(&mut self, managed: ManagedThread) -> bool {
        let is_one = self.waiting.remove(&managed).is_some();
        self.left_out += u64::from(is_one);
        is_one
    }

    /// One that was taken has ended before it grew up, having used so much CPU time.
    pub(super) fn record_lifetime(&mut self, cpu_ns: u64) {
        let cpu_ns = cpu_ns.max(1);
        self.mean_ns = match self.mean_ns {
            0 => cpu_ns,
            mean => mean.saturating_mul(LIVES - 1).saturating_add(cpu_ns) / LIVES,
        };
    }

    /// Those that were left out and are still there: they are grown up.
    pub(super) fn take_promoted(&mut self) -> Vec<StartedThread> {
        self.waiting.drain().map(|(_, started)| started).collect()
    }

    /// Whether some are waiting to be taken.
    pub(super) fn has_promotable(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many were left out for good.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// A CLR has ended.
    pub(super) fn forget_runtime(&mut self, runtime: u8) {
        self.waiting.retain(|(of, _), _| *of != runtime);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of 10,000 threads that start so far apart and use so much are taken, and for how
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
