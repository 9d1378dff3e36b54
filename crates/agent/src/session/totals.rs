//! Counters and totals of a session: lost samples, broken stacks, and the cost of recording.

use std::borrow::Cow;

use corprof::{CallbackKind, Calls};
use recording::{CostPart, Record};
use sampler::{Counters, DiscardReason, Sampler, Unsent};
use syscalls::{Call, Verdict};

use super::{AgentState, Session};
use crate::base::proc;
use crate::program::accounts::{self, Unattributed};

fn unattributed_text(claim: Unattributed) -> Record<'static> {
    Record::Unseen {
        reason: claim.reason.text(),
        threads: claim.threads,
        cpu_ns: claim.cpu_ns,
    }
}

/// The totals so far.
#[derive(Debug)]
pub(super) struct Totals {
    sampler: &'static Sampler,
    /// Cost of the delivery of one signal on this machine.
    delivery_ns: u64,
    /// CPU time of the agent thread and of the process before the session; 0 if the process has
    /// been recorded from its start.
    agent_before_ns: u64,
    target_before_ns: u64,
    handler_ns: u64,
    lost_ns: u64,
    /// Runs of the handler, and the kernel's time for them.
    ticks: u64,
    ticks_ns: u64,
    /// Callbacks by kind, and the number of each when last written.
    callbacks: [Calls; CallbackKind::COUNT],
    callbacks_reported: [u64; CallbackKind::COUNT],
    /// The amounts that were last written as unseen.
    unattributed: Vec<Unattributed>,
    /// The last written note on filters of system calls, and the one on signals that cannot be
    /// sent.
    forbidden: String,
    unsent: Option<Unsent>,
    /// Number of threads that notes say to block the signal.
    blocking: usize,
}

/// Maximum number of such threads.
const MAX_BLOCKING: usize = 8;

/// Lists the system calls that a filter forbids and the agent does without. Empty if there are
/// none.
fn forbidden() -> String {
    let each = Call::all().filter_map(|call| {
        let how = match syscalls::verdict(call) {
            Verdict::Refused(errno) => format!("errno {errno}"),
            Verdict::Ends => "would end the program".to_owned(),
            Verdict::Untried => "no child process could try it".to_owned(),
            Verdict::Unfiltered | Verdict::LetThrough => return None,
        };
        // Needed only with `--engine perf`, which reports it itself.
        let is_missed = call.is_optional() && call != Call::PerfEventOpen;
        is_missed.then(|| format!("{} ({how})", call.name()))
    });
    each.collect::<Vec<_>>().join(", ")
}

impl Totals {
    /// Returns the totals of a session that begins now, with these CLRs running. Agent thread only.
    pub(super) fn new(agent: &AgentState, sampler: &'static Sampler, running: &[u8]) -> Totals {
        // Earlier costs do not belong to this session.
        for known in agent.registry.known() {
            if let Some((clr, runtime)) = &known.reach
                && running.contains(&known.number)
            {
                clr.new_calls(runtime.calls());
            }
        }
        let before = |ns: fn() -> u64| if running.is_empty() { 0 } else { ns() };
        Totals {
            sampler,
            agent_before_ns: before(proc::own_cpu_ns),
            target_before_ns: before(proc::process_cpu_ns),
            delivery_ns: sampler.delivery_ns(),
            handler_ns: 0,
            lost_ns: 0,
            ticks: 0,
            ticks_ns: 0,
            callbacks: Default::default(),
            callbacks_reported: Default::default(),
            unattributed: Vec::new(),
            forbidden: String::new(),
            unsent: None,
            blocking: 0,
        }
    }

    fn add(&mut self, counters: &Counters) {
        self.handler_ns += counters.handler_ns;
        self.lost_ns += counters.lost_ns;
        self.ticks += counters.signals;
        self.ticks_ns += self.sampler.ticks_ns(counters, self.delivery_ns);
    }
}

impl Session<'_> {
    /// Detects filters of system calls, and writes which calls they forbid.
    pub(super) fn write_filters(&mut self) {
        syscalls::refresh();
        let forbidden = forbidden();
        if forbidden != self.totals.forbidden {
            self.recorder.note(&format!(
                "a system call filter (seccomp) forbids calls that the agent works without: {forbidden}"
            ));
            self.totals.forbidden = forbidden;
        }
        // Signals refused by a full queue (EAGAIN) are only counted.
        let unsent = self.totals.sampler.unsent();
        let unsent = unsent.filter(|unsent| unsent.queue != libc::EAGAIN);
        if let Some(unsent) = unsent
            && self.totals.unsent != Some(unsent)
        {
            self.totals.unsent = Some(unsent);
            let why = accounts::unsent_reason(unsent);
            self.recorder.note(&format!(
                "signals cannot be sent to threads, so they have no stacks: {why}"
            ));
        }
    }

    /// Writes counters and totals.
    pub(super) fn write_totals(&mut self) {
        self.write_filters();
        let counters = self.reader.take_counters();
        self.totals.add(&counters);
        for reason in DiscardReason::ALL {
            if reason.loses_sample() {
                let count = counters.discarded(reason);
                self.recorder.lost(Cow::Borrowed(reason.name()), count);
            }
        }
        for (reason, count) in self.walker.lost() {
            self.recorder.lost(reason, count);
        }
        // Callbacks that panicked in the agent. The thunk caught the panic and the CLR continued.
        for known in &self.clrs {
            if let Some((clr, runtime)) = &known.reach {
                let failed = clr.new_panics(runtime.panics());
                self.recorder
                    .lost(Cow::Borrowed("a callback of Sidewalk's failed"), failed);
                let new = clr.new_calls(runtime.calls());
                for (sum, new) in self.totals.callbacks.iter_mut().zip(new) {
                    sum.count += new.count;
                    sum.cpu_ns += new.cpu_ns;
                }
            }
        }
        self.trace.write(&self.agent.trace, self.recorder);
        self.recorder.write_broken();
        self.recorder.write_cut_chains();
        let due_ns = self.write_unattributed();
        let agent = self.agent;
        let memory = self.recorder.memory()
            + self.walker.memory()
            + self.events.memory(&agent.events)
            + (agent.program.code.map().memory().bytes + self.reader.memory()) as u64;
        self.write_cost();
        let totals = &self.totals;
        self.recorder.record(&Record::Stats {
            time_ns: proc::now_ns(),
            agent_cpu_ns: proc::own_cpu_ns().saturating_sub(totals.agent_before_ns),
            target_cpu_ns: proc::process_cpu_ns().saturating_sub(totals.target_before_ns),
            agent_memory: memory,
            handler_ns: totals.handler_ns,
            due_ns,
            lost_ns: totals.lost_ns,
        });
    }

    /// Writes the cost of recording so far, outside this thread.
    fn write_cost(&mut self) {
        let totals = &mut self.totals;
        let kinds = CallbackKind::ALL.iter().zip(&totals.callbacks);
        for ((kind, calls), reported) in kinds.zip(&mut totals.callbacks_reported) {
            if calls.count > *reported {
                *reported = calls.count;
                self.recorder.record(&Record::Cost {
                    part: CostPart::Callbacks,
                    modelled: false,
                    count: calls.count,
                    cpu_ns: calls.cpu_ns,
                    name: Cow::Borrowed(kind.name()),
                });
            }
        }
        let probes = self.trace.cost();
        let probes = probes.map(|(calls, cpu_ns)| (CostPart::Probes, true, calls, cpu_ns));
        let others = [
            (CostPart::Handlers, false, totals.ticks, totals.handler_ns),
            (CostPart::Ticks, true, totals.ticks, totals.ticks_ns),
        ];
        for (part, modelled, count, cpu_ns) in others.into_iter().chain(probes) {
            self.recorder.record(&Record::Cost {
                part,
                modelled,
                count,
                cpu_ns,
                name: Cow::Borrowed(""),
            });
        }
    }

    /// Writes which CPU time no sample stands for. Answers for how much they should.
    fn write_unattributed(&mut self) -> Option<u64> {
        let threads = &self.agent.program.threads;
        threads.settle_accounts(&mut self.ids);
        let left = MAX_BLOCKING - self.totals.blocking;
        for blocking in threads.take_blocking().iter().take(left) {
            self.totals.blocking += 1;
            self.recorder.note(&blocking.note());
        }
        let report = threads.report()?;
        // A thread that receives its delayed ticks owes nothing any more.
        for gone in &self.totals.unattributed {
            let is_still = report
                .claims
                .iter()
                .any(|claim| claim.reason == gone.reason);
            if !is_still {
                self.recorder.record(&unattributed_text(Unattributed {
                    threads: 0,
                    cpu_ns: 0,
                    ..*gone
                }));
            }
        }
        for claim in &report.claims {
            if !self.totals.unattributed.contains(claim) {
                self.recorder.record(&unattributed_text(*claim));
            }
        }
        self.totals.unattributed = report.claims;
        Some(report.due_ns)
    }
}
