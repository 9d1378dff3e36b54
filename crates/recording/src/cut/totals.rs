//! Totals of a process since its start, and what of them each interval has had.
//!
//! Invariant: the totals of the intervals add up to the last ones that the agent sent.

use std::collections::BTreeMap;

use super::Out;
use crate::record::{CostPart, Event, Record};

/// Maximum number of reasons and of parts of the cost; an agent has less than twenty.
const MAX_NAMES: usize = 100;

/// The totals of [`Record::Stats`].
#[derive(Clone, Copy, Default)]
struct Stats {
    agent_cpu_ns: u64,
    target_cpu_ns: u64,
    handler_ns: u64,
    due_ns: u64,
    lost_ns: u64,
}

/// The totals of one process.
#[derive(Default)]
pub(super) struct Totals {
    last: Option<Stats>,
    given: Stats,
    /// Whether the agent says what CPU samples should stand for.
    has_due: bool,
    agent_memory: u64,
    /// CPU time of samples in the current interval that came after the last totals.
    sampled_after: u64,
    /// CPU time of samples in the next interval: before the last totals, and after them.
    next_before: u64,
    next_after: u64,
    /// Threads, CPU time, and the time that intervals have had, by reason.
    unseen: BTreeMap<String, (u64, u64, u64)>,
    cost: BTreeMap<(CostPart, String), Cost>,
}

/// A part of the cost.
#[derive(Default)]
struct Cost {
    modelled: bool,
    count: u64,
    cpu_ns: u64,
    given_count: u64,
    given_ns: u64,
}

impl Totals {
    /// Counts a sample.
    pub(super) fn sampled(&mut self, event: Event, value: u64, in_next: bool) {
        if event != Event::Cpu {
            return;
        }
        let sum = match in_next {
            true => &mut self.next_after,
            false => &mut self.sampled_after,
        };
        *sum = sum.saturating_add(value);
    }

    /// Takes a record of totals.
    pub(super) fn add(&mut self, record: &Record<'_>) {
        match record {
            Record::Stats {
                agent_cpu_ns,
                target_cpu_ns,
                agent_memory,
                handler_ns,
                due_ns,
                lost_ns,
                ..
            } => {
                self.last = Some(Stats {
                    agent_cpu_ns: *agent_cpu_ns,
                    target_cpu_ns: *target_cpu_ns,
                    handler_ns: *handler_ns,
                    due_ns: due_ns.unwrap_or(0),
                    lost_ns: *lost_ns,
                });
                self.has_due = due_ns.is_some();
                self.agent_memory = *agent_memory;
                self.sampled_after = 0;
                self.next_before = self.next_before.saturating_add(self.next_after);
                self.next_after = 0;
            }
            Record::Unseen {
                reason,
                threads,
                cpu_ns,
            } => {
                let has_room = self.unseen.len() < MAX_NAMES;
                if !has_room && !self.unseen.contains_key(&**reason) {
                    return;
                }
                let known = self.unseen.entry(reason.to_string()).or_default();
                (known.0, known.1) = (*threads, *cpu_ns);
            }
            Record::Cost {
                part,
                modelled,
                count,
                cpu_ns,
                name,
            } => {
                let key = (*part, name.to_string());
                if self.cost.len() >= MAX_NAMES && !self.cost.contains_key(&key) {
                    return;
                }
                let known = self.cost.entry(key).or_default();
                known.modelled |= modelled;
                (known.count, known.cpu_ns) = (*count, *cpu_ns);
            }
            _ => {}
        }
    }

    /// Writes the totals of the interval that ends. The agent sends its own once a second, not at
    /// the end of the interval: in between, samples say how much CPU time passed.
    pub(super) fn write(&mut self, out: &mut Out<'_>, time_ns: u64) {
        if self.last.is_none() {
            // The agent has sent no totals yet: this interval has none.
            let due_ns = self.given.due_ns.saturating_add(self.sampled_after);
            self.given.due_ns = due_ns.saturating_sub(self.next_before);
        }
        if let Some(last) = self.last {
            let mut now = last;
            let due_ns = last.due_ns.saturating_add(self.sampled_after);
            now.due_ns = due_ns.saturating_sub(self.next_before);
            // Never less than earlier intervals have had.
            let since = |now: &mut u64, given: &mut u64| {
                *now = (*now).max(*given);
                let part = *now - *given;
                *given = *now;
                part
            };
            out.push(&Record::Stats {
                time_ns,
                agent_cpu_ns: since(&mut now.agent_cpu_ns, &mut self.given.agent_cpu_ns),
                target_cpu_ns: since(&mut now.target_cpu_ns, &mut self.given.target_cpu_ns),
                agent_memory: self.agent_memory,
                handler_ns: since(&mut now.handler_ns, &mut self.given.handler_ns),
                due_ns: {
                    let due_ns = since(&mut now.due_ns, &mut self.given.due_ns);
                    self.has_due.then_some(due_ns)
                },
                lost_ns: since(&mut now.lost_ns, &mut self.given.lost_ns),
            });
        }
        for (reason, (threads, cpu_ns, given)) in &mut self.unseen {
            if *cpu_ns > *given {
                out.push(&Record::Unseen {
                    reason: reason.as_str().into(),
                    threads: *threads,
                    cpu_ns: *cpu_ns - *given,
                });
                *given = *cpu_ns;
            }
        }
        for ((part, name), cost) in &mut self.cost {
            out.push(&Record::Cost {
                part: *part,
                modelled: cost.modelled,
                count: cost.count.saturating_sub(cost.given_count),
                cpu_ns: cost.cpu_ns.saturating_sub(cost.given_ns),
                name: name.as_str().into(),
            });
            cost.given_count = cost.count.max(cost.given_count);
            cost.given_ns = cost.cpu_ns.max(cost.given_ns);
        }
        self.sampled_after = self.next_after;
        (self.next_before, self.next_after) = (0, 0);
    }
}
