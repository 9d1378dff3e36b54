//! Runtimes with so many threads that it is dear to be told when they stop.
//!
//! A runtime that tells when it stops (`COR_PRF_MONITOR_SUSPENDS`) calls back for each of its
//! threads too, when it stops and when it goes on; one that waits for a thread does so again and
//! again. With 6,000 threads that was up to a thousand million calls. There is no other way to be
//! told, so a runtime that has many threads is asked no more, and what needs it is left out, which
//! is said. Invariant: what is asked of a runtime again is asked without it, for as long as the
//! session lasts.

/// Threads of the process from which on no runtime of it is asked: with 25 ns a call, each stop
/// takes some 50 µs longer.
const MANY: u64 = 1_000;

/// The runtimes of a session that are not asked.
#[derive(Debug, Default)]
pub(super) struct ManyThreads(Vec<u8>);

impl ManyThreads {
    /// The process has so many threads, and these runtimes. Answers those that are asked no more
    /// from now on.
    pub(super) fn add(&mut self, threads: u64, mut runtimes: Vec<u8>) -> Vec<u8> {
        runtimes.retain(|number| threads > MANY && !self.has(*number));
        self.0.extend(&runtimes);
        runtimes
    }

    /// Whether this runtime is not asked.
    pub(super) fn has(&self, number: u8) -> bool {
        self.0.contains(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_runtime_of_a_process_with_many_threads_is_asked_no_more() {
        let mut many_threads = ManyThreads::default();
        assert_eq!(many_threads.add(MANY, vec![1, 2]), []);
        assert_eq!(many_threads.add(MANY + 1, vec![1]), [1]);
        assert_eq!(many_threads.add(MANY + 1, vec![1, 2]), [2]);
        assert_eq!(many_threads.add(6 * MANY, vec![1, 2]), []);
        assert!(many_threads.has(1) && !many_threads.has(3));
    }
}
