//! Finds time for which the whole program stood still: stopped by a signal or a debugger, frozen
//! with its control group, or with its machine.
//!
//! The kernel does not report it. The agent thread notices it by a wait of its own that took longer
//! than it should have. Time for which the thread was runnable and had no processor does not count,
//! so that a busy machine is not mistaken for it (`schedstat`, the kernel's
//! Documentation/scheduler/sched-stats.rst).
//! Invariant: what is found is a part of the true time. It lacks at most one wait of the thread,
//! and what the thread was queued for since [`Watch::refresh`].

use std::ops::Range;

/// Shortest time that is reported.
const LEAST_NS: u64 = 1_000_000_000;
/// Maximum number of notes for each session.
const MAX_NOTES: u32 = 10;

/// The watch over a thread's waits.
#[derive(Default)]
pub(super) struct Watch {
    /// Time for which the thread has been queued, as it was read last.
    queued_ns: u64,
    count: u32,
    total_ns: u64,
}

impl Watch {
    /// Sets the time for which the thread has been queued so far. To be called about once a second.
    pub(super) fn refresh(&mut self, queued_ns: u64) {
        self.queued_ns = queued_ns;
    }

    /// Looks at a wait that was to end at `due_ns` and ended at `now_ns`. `queued` reads the time
    /// for which the thread has been queued so far, 0 if that is unknown.
    pub(super) fn after_wait(
        &mut self,
        due_ns: u64,
        now_ns: u64,
        queued: impl FnOnce() -> u64,
    ) -> Option<Range<u64>> {
        let late_ns = now_ns.saturating_sub(due_ns);
        if late_ns < LEAST_NS {
            return None;
        }
        let queued_ns = queued();
        let before_ns = std::mem::replace(&mut self.queued_ns, queued_ns);
        let end_ns = now_ns.saturating_sub(queued_ns.saturating_sub(before_ns));
        let stood_ns = end_ns.saturating_sub(due_ns);
        if queued_ns == 0 || stood_ns < LEAST_NS {
            return None;
        }
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(stood_ns);
        Some(due_ns..end_ns)
    }

    /// The note about what was found last, if there were not too many.
    pub(super) fn note(&self, stood: &Range<u64>, has_traces: bool) -> Option<String> {
        let calls = match has_traces {
            true => "; traced calls are longer by it",
            false => "",
        };
        (self.count <= MAX_NOTES).then(|| {
            format!(
                "the program stood still for {:.1} s (stopped by a signal or a debugger, or \
                 frozen): waits are without that time{calls}",
                seconds(stood.end - stood.start)
            )
        })
    }

    /// The note at the end, if there were too many for notes of their own.
    pub(super) fn last_note(&self) -> Option<String> {
        (self.count > MAX_NOTES).then(|| {
            format!(
                "the program stood still {} times, for {:.1} s in all",
                self.count,
                seconds(self.total_ns)
            )
        })
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_late_end_of_a_wait_is_standstill_unless_the_thread_was_queued() {
        let mut watch = Watch::default();
        watch.refresh(2 * S);
        for (due, now, queued, expected) in [
            (10 * S, 10 * S + 999_999_999, 2 * S, None),
            // Never asked for before.
            (
                10 * S,
                15 * S,
                2 * S + S / 10,
                Some(10 * S..15 * S - S / 10),
            ),
            // A busy machine.
            (20 * S, 25 * S, 7 * S, None),
            // The kernel does not report it.
            (30 * S, 35 * S, 0, None),
            (40 * S, 41 * S, S, None),
            (40 * S, 42 * S, S, Some(40 * S..42 * S)),
            (50 * S, 49 * S, S, None),
        ] {
            assert_eq!(watch.after_wait(due, now, || queued), expected, "{due}");
        }
        let first = watch.note(&(10 * S..15 * S), true).unwrap();
        assert_eq!(
            first,
            "the program stood still for 5.0 s (stopped by a signal or a debugger, or frozen): \
             waits are without that time; traced calls are longer by it"
        );
        assert_eq!(watch.last_note(), None);
        for _ in 0..9 {
            watch.after_wait(0, 2 * S, || S);
        }
        assert_eq!(watch.note(&(0..2 * S), false), None);
        assert_eq!(
            watch.last_note().unwrap(),
            "the program stood still 11 times, for 24.9 s in all"
        );
    }
}
