//! Counters and totals of a session: what was lost, what broke, what it cost.

use std::borrow::Cow;

use recording::Record;
use sampler::DiscardReason;

use super::Session;
use crate::base::proc;
use crate::target::accounts::Claim;

fn unseen(claim: Claim) -> Record<'static> {
    Record::Unseen {
        reason: claim.reason.text(),
        threads: claim.threads,
        cpu_ns: claim.cpu_ns,
    }
}

/// What has been summed up so far.
#[derive(Debug, Default)]
pub(super) struct Totals {
    handler_ns: u64,
    lost_ns: u64,
    /// What was said to be unseen.
    unseen: Vec<Claim>,
}

impl Session<'_> {
    /// Writes counters and totals.
    pub(super) fn tell_totals(&mut self) {
        let counters = self.reader.take_counters();
        self.totals.handler_ns += counters.handler_ns;
        self.totals.lost_ns += counters.lost_ns;
        for reason in DiscardReason::ALL {
            if reason.loses_sample() {
                let count = counters.discarded(reason);
                self.recorder.lost(Cow::Borrowed(reason.name()), count);
            }
        }
        for (reason, count) in self.walker.lost() {
            self.recorder.lost(reason, count);
        }
        // Callbacks that failed inside us; the thunk has caught them and the CLR went on.
        for known in &self.clrs {
            if let Some((clr, runtime)) = &known.reach {
                let failed = clr.new_panics(runtime.panics());
                self.recorder
                    .lost(Cow::Borrowed("a callback of Sidewalk's failed"), failed);
            }
        }
        self.recorder.tell_broken();
        let due_ns = self.tell_unseen();
        let parts = self.parts;
        let memory = self.recorder.memory()
            + self.walker.memory()
            + self.events.memory(&parts.events)
            + (parts.target.code.map().memory().bytes + self.reader.memory()) as u64;
        self.recorder.record(&Record::Stats {
            time_ns: proc::now_ns(),
            agent_cpu_ns: proc::own_cpu_ns(),
            target_cpu_ns: proc::process_cpu_ns(),
            agent_memory: memory,
            handler_ns: self.totals.handler_ns,
            due_ns,
            lost_ns: self.totals.lost_ns,
        });
    }

    /// Writes which CPU time no sample stands for. Answers for how much they should.
    fn tell_unseen(&mut self) -> Option<u64> {
        let threads = &self.parts.target.threads;
        threads.look(&mut self.ids);
        let report = threads.report()?;
        // A thread that takes its ticks at last owes nothing any more.
        for gone in &self.totals.unseen {
            let is_still = report
                .claims
                .iter()
                .any(|claim| claim.reason == gone.reason);
            if !is_still {
                self.recorder.record(&unseen(Claim {
                    threads: 0,
                    cpu_ns: 0,
                    ..*gone
                }));
            }
        }
        for claim in &report.claims {
            if !self.totals.unseen.contains(claim) {
                self.recorder.record(&unseen(*claim));
            }
        }
        self.totals.unseen = report.claims;
        Some(report.due_ns)
    }
}
