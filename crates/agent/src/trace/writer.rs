//! From the counters to the recording. Agent thread only.
//!
//! Invariant: a method is told before its calls; each count is told once.

use std::borrow::Cow;
use std::collections::HashMap;

use recording::{Event, Record};

use super::table::{self, Batch};
use super::{Trace, lock, probes};
use crate::base::proc;
use crate::record::Recorder;

/// What has been told in this session.
#[derive(Debug, Default)]
pub(crate) struct TraceWriter {
    /// Index among the session's methods, and where they count.
    counting: Vec<(u32, i32)>,
    by_number: HashMap<i32, Slow>,
}

/// Slow calls of a method.
#[derive(Debug, Default)]
struct Slow {
    calls: u64,
    ns: u64,
    /// Of them, how many were looked at or told as not kept.
    told: u64,
    told_ns: u64,
}

impl TraceWriter {
    /// Writes what is new.
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
                self.by_number.insert(number, Slow::default());
            }
        }
        if self.counting.is_empty() {
            return;
        }
        probes::adjust();
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

impl Slow {
    /// Slow calls of this batch that were not even looked at.
    fn not_kept(&mut self, batch: &Batch, all_are: bool, method: &table::Method) -> (u64, u64) {
        use std::sync::atomic::Ordering::Relaxed;
        if !all_are {
            return (batch.passed, batch.passed_ns);
        }
        self.calls += batch.calls();
        self.ns = self.ns.wrapping_add(batch.sum_ns);
        let (looked_at, ns) = (&method.offered, &method.offered_ns);
        self.told += looked_at.swap(0, Relaxed);
        self.told_ns = self.told_ns.wrapping_add(ns.swap(0, Relaxed));
        let calls = self.calls.saturating_sub(self.told);
        let ns = self.ns.saturating_sub(self.told_ns);
        self.told += calls;
        self.told_ns = self.told_ns.wrapping_add(ns);
        (calls, ns)
    }
}
