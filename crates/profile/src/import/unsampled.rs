//! Unsampled CPU time: the kernel's CPU time of a process minus the time its samples represent.
//!
//! There is one [`CpuTimeAccount`] per process. Agents report reasons why CPU time was not sampled,
//! each with an amount. Invariants: a difference is reported only if it exceeds the sampling error;
//! the reported reasons, `unknown` among them, account for all of it but [`LEAST_NS`].

use std::collections::BTreeMap;

use recording::Event;

use crate::model::{Health, UnsampledTime};

/// Maximum number of reasons per process, as a recording may be damaged. An agent has seven.
const MAX_REASONS: usize = 50;

/// CPU time of one process.
#[derive(Default)]
pub(super) struct CpuTimeAccount {
    interval_ns: u64,
    /// Whether it was sampled by time, and not for events alone.
    is_timed: bool,
    samples: u64,
    /// Time that its CPU samples represent.
    sampled_ns: u64,
    /// `sampled_ns` when the agent last reported its totals.
    seen_ns: u64,
    /// CPU time by the kernel's clocks, in these totals.
    due_ns: Option<u64>,
    /// CPU time of lost samples, in these totals.
    lost_ns: u64,
    /// Threads and CPU time by reason, as reported by the agent.
    claims: BTreeMap<String, (u64, u64)>,
}

/// Maximum length of the kernel's own tick, at which it checks timers.
const TICK_NS: u64 = 10_000_000;

impl CpuTimeAccount {
    pub(super) fn sampled_every(&mut self, event: Event, interval_ns: u64) {
        self.is_timed = true;
        if event == Event::Cpu {
            self.interval_ns = interval_ns;
        }
    }

    pub(super) fn sampled(&mut self, event: Event, value: u64) {
        self.samples += 1;
        if event == Event::Cpu {
            self.sampled_ns = self.sampled_ns.saturating_add(value);
        }
    }

    /// Adds totals, which cover the same time as the records before them.
    pub(super) fn stats(&mut self, due_ns: Option<u64>, lost_ns: u64) {
        self.due_ns = due_ns;
        self.lost_ns = lost_ns;
        self.seen_ns = self.sampled_ns;
    }

    pub(super) fn claim(&mut self, reason: &str, threads: u64, cpu_ns: u64) {
        if self.claims.len() < MAX_REASONS || self.claims.contains_key(reason) {
            self.claims.insert(reason.to_owned(), (threads, cpu_ns));
        }
    }

    /// Returns the error of sampling for `threads` threads, in nanoseconds. Each thread is off by
    /// at most one interval at its end, or is one sample by chance. The number of such chances is
    /// at most the number of samples due. The result is three standard deviations of their sum,
    /// plus the disagreement between engines and clocks.
    fn error_ns(&self, due_ns: u64, threads: u64) -> u64 {
        let unit = self.interval_ns.max(TICK_NS);
        let chances = (due_ns / unit).min(threads) + 1;
        let chance = 3.0 * (chances as f64).sqrt() * unit as f64;
        (chance as u64).max(due_ns / 50).max(50_000_000)
    }

    /// Adds the due and the missing time to `health`.
    pub(super) fn add_to(&self, health: &mut Health, threads: u64) {
        let Some(due_ns) = self.due_ns.filter(|_| self.interval_ns > 0) else {
            return;
        };
        let all = health.due_ns.unwrap_or(0).saturating_add(due_ns);
        health.due_ns = Some(all);
        health.seen_ns = health.seen_ns.saturating_add(self.seen_ns);
        let missing = due_ns
            .saturating_sub(self.seen_ns)
            .saturating_sub(self.lost_ns);
        // Thread by thread it is known exactly, whatever other threads were oversampled by.
        let named: u64 = self
            .claims
            .values()
            .fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns));
        let unseen_ns = missing.max(named.min(due_ns));
        if unseen_ns <= self.error_ns(due_ns, threads) {
            return;
        }
        let mut left = unseen_ns;
        let mut claims: Vec<_> = self.claims.iter().collect();
        claims.sort_by_key(|(_, (_, cpu_ns))| std::cmp::Reverse(*cpu_ns));
        for (reason, &(threads, cpu_ns)) in claims {
            let cpu_ns = cpu_ns.min(left);
            if cpu_ns >= LEAST_NS && reason != UNKNOWN {
                left -= cpu_ns;
                add(&mut health.unseen, reason, threads, cpu_ns);
            }
        }
        if left >= LEAST_NS {
            add(&mut health.unseen, UNKNOWN, 0, left);
        }
    }

    /// The note on a process that gave no sample by time, though it should have.
    pub(super) fn no_samples_note(&self) -> Option<String> {
        if self.samples > 0 || !self.is_timed {
            return None;
        }
        Some(match self.due_ns {
            Some(due_ns) => format!(", of {:.3} s of CPU time", due_ns as f64 / 1e9),
            None => String::new(),
        })
    }
}

/// The reason for the time that no other reason explains.
const UNKNOWN: &str = "unknown";

/// Less than this is not worth a reason of its own in a line, nanoseconds.
const LEAST_NS: u64 = 5_000_000;

fn add(all: &mut Vec<UnsampledTime>, reason: &str, threads: u64, cpu_ns: u64) {
    match all.iter_mut().find(|known| known.reason == reason) {
        Some(known) => {
            known.threads = known.threads.saturating_add(threads);
            known.cpu_ns = known.cpu_ns.saturating_add(cpu_ns);
        }
        None => all.push(UnsampledTime {
            reason: reason.to_owned(),
            threads,
            cpu_ns,
        }),
    }
}
