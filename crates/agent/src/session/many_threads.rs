//! Turns off suspension callbacks in processes with many threads, where each callback is costly.
//!
//! With `COR_PRF_MONITOR_SUSPENDS` a runtime also calls back for each of its threads when it stops
//! and when it continues. A runtime that waits for a thread repeats this. With 6,000 threads that
//! was up to a thousand million calls. The runtime offers no other notification, so it is turned
//! off in processes with many threads. What depends on it is left out of the recording, with a
//! note. Invariant: a runtime stays in this list for the rest of the session, and every later event
//! mask of it leaves the flag out.

/// Number of threads of the process above which the flag is not set: with 25 ns a call, each stop
/// takes some 50 µs longer.
const MANY: u64 = 1_000;

/// The runtimes of a session without suspension callbacks.
#[derive(Debug, Default)]
pub(super) struct ManyThreads(Vec<u8>);

impl ManyThreads {
    /// Updates the list for a process with so many threads and these runtimes. Returns the runtimes
    /// that were added.
    pub(super) fn add(&mut self, threads: u64, mut runtimes: Vec<u8>) -> Vec<u8> {
        runtimes.retain(|number| threads > MANY && !self.has(*number));
        self.0.extend(&runtimes);
        runtimes
    }

    /// Whether this runtime is in the list.
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
