//! Writes the counters of traced methods to the recording. Agent thread only.
//!
//! Invariant: a method is written before its calls, and each count once.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use recording::{Event, Record};

use super::table::{self, CallBatch};
use super::{Trace, lock, probes};
use crate::base::proc;
use crate::record::Recorder;

/// Writer of trace records, with the records that it has written in this session.
#[derive(Debug, Default)]
pub(crate) struct TraceWriter {
    /// Index among the session's methods, and the method's number in the table.
    counting: Vec<(u32, i32)>,
    /// Calls so far.
    calls: u64,
    /// CPU time of the process at the last write.
    cpu_ns: u64,
    /// Methods whose times the probes distort.
    distorted: HashSet<i32>,
    by_number: HashMap<i32, SlowCalls>,
}

/// Slow calls of a method.
#[derive(Debug, Default)]
struct SlowCalls {
    calls: u64,
    ns: u64,
    /// Number of these calls that were considered or reported as not kept.
    counted: u64,
    reported_ns: u64,
}

impl TraceWriter {
    /// Returns the number of counted calls, and the cost of their probes in nanoseconds. `None` if
    /// nothing was traced.
    pub(crate) fn cost(&self) -> Option<(u64, u64)> {
        let cost_ns = self.calls.saturating_mul(probes::cost_ps()) / 1_000;
        (!self.counting.is_empty()).then_some((self.calls, cost_ns))
    }

    /// Writes the new methods and counts.
    pub(crate) fn write(&mut self, trace: &Trace, recorder: &mut Recorder) {
        let fresh = {
            let mut state = lock(&trace.state);
            let traced = (0u32..).zip(&mut state.traced);
            let fresh = traced.filter(|(_, traced)| traced.fresh);
            let fresh = fresh.map(|(index, traced)| {
                traced.fresh = false;
                (index, traced.clone())
            });
            fresh.collect::<Vec<_>>()
        };
        for (index, traced) in fresh {
            recorder.record(&Record::Traced {
                traced: index,
                runtime: traced.runtime,
                token: traced.token.0,
                min_ns: traced.min_ns,
                module: Cow::Borrowed(&traced.module),
                type_name: Cow::Borrowed(&traced.type_name),
                name: Cow::Borrowed(&traced.name),
                refused: Cow::Borrowed(&traced.refused),
            });
            if let Some(number) = traced.number
                && !self.by_number.contains_key(&number)
            {
                self.counting.push((index, number));
                self.by_number.insert(number, SlowCalls::default());
            }
        }
        if self.counting.is_empty() {
            return;
        }
        probes::adjust();
        let cpu_ns = proc::process_cpu_ns();
        let used_ns = cpu_ns.saturating_sub(std::mem::replace(&mut self.cpu_ns, cpu_ns));
        let time_ns = proc::now_ns();
        let (mut limited, mut limited_ns) = (0u64, 0u64);
        for (index, number) in &self.counting {
            let Some(method) = table::method(*number) else {
                continue;
            };
            let batch = method.take();
            if let Some(slow) = self.by_number.get_mut(number) {
                let all_are = method.is_slow_from_0();
                let (calls, ns) = slow.not_kept(&batch, all_are, method);
                limited += calls;
                limited_ns += ns;
            }
            let calls = batch.calls();
            self.calls += calls;
            if is_distorted(calls, probes::cost_ps(), used_ns) && self.distorted.insert(*number) {
                recorder.note(&distorted_note(trace, *index, method, calls));
            }
            if batch.buckets.is_empty() && batch.sum_ns == 0 && batch.errors == 0 {
                continue;
            }
            recorder.record(&Record::Calls {
                traced: *index,
                time_ns,
                errors: batch.errors,
                sum_ns: batch.sum_ns,
                max_ns: batch.max_ns,
                buckets: Cow::Owned(batch.buckets),
            });
        }
        if limited > 0 {
            recorder.record(&Record::Limited {
                event: Event::TracedCall,
                count: limited,
                value: limited_ns,
            });
        }
    }
}

/// Whether the probes of a method's calls took a large part of the program's CPU time.
fn is_distorted(calls: u64, cost_ps: u64, used_ns: u64) -> bool {
    /// Maximum number of calls per second that is never a problem.
    const MANY: u64 = 100_000;
    /// The cost is too high above 1/`SHARE` of the CPU time.
    const SHARE: u64 = 10;
    let cost_ns = calls.saturating_mul(cost_ps) / 1_000;
    calls > MANY && cost_ns.saturating_mul(SHARE) > used_ns
}

/// Stops tracing the method if no pattern names it exactly, and notes that.
fn distorted_note(trace: &Trace, index: u32, method: &table::Method, calls: u64) -> String {
    let name = &method.name;
    let often = format!(
        "{name} was called {calls} times in about a second, and counting takes much of the program's time"
    );
    match trace.leave_out(index as usize) {
        true => format!("{often}: counting stopped then (a pattern without * continues to count)"),
        false => format!("{often}; trace what calls it instead"),
    }
}

impl SlowCalls {
    /// Slow calls of this batch that were skipped.
    fn not_kept(&mut self, batch: &CallBatch, all_are: bool, method: &table::Method) -> (u64, u64) {
        use std::sync::atomic::Ordering::Relaxed;
        if !all_are {
            return (batch.passed, batch.passed_ns);
        }
        self.calls += batch.calls();
        self.ns = self.ns.wrapping_add(batch.sum_ns);
        let (looked_at, ns) = (&method.offered, &method.offered_ns);
        self.counted += looked_at.swap(0, Relaxed);
        self.reported_ns = self.reported_ns.wrapping_add(ns.swap(0, Relaxed));
        let calls = self.calls.saturating_sub(self.counted);
        let ns = self.ns.saturating_sub(self.reported_ns);
        self.counted += calls;
        self.reported_ns = self.reported_ns.wrapping_add(ns);
        (calls, ns)
    }
}

#[cfg(test)]
mod tests {
    use super::is_distorted;

    #[test]
    fn tiny_methods_that_are_called_all_the_time_are_distorted() {
        const SECOND: u64 = 1_000_000_000;
        const COST_PS: u64 = 25_000;
        // A loop around a method of some instructions.
        assert!(is_distorted(20_000_000, COST_PS, SECOND));
        // Fewer calls beside other work, and few calls in a program that does nothing else.
        assert!(!is_distorted(1_000_000, COST_PS, SECOND));
        assert!(!is_distorted(90_000, COST_PS, 10_000_000));
    }
}
