//! Cost of recording, as text at the end of reports and as keys in JSON.
//!
//! It is given in percent of what the program would have used without us: the CPU time of the
//! processes minus the cost. Invariant: parts that were not measured are named and never count as
//! 0.

use std::collections::BTreeMap;

use profile::model::{CostPart, Health};
use serde::Serialize;

use crate::wording::{percent, seconds};

/// CPU time by part, nanoseconds.
pub(crate) struct CostSummary {
    agent_ns: u64,
    handlers_ns: u64,
    /// `None` if the recording is older than this count.
    callbacks_ns: Option<u64>,
    ticks_ns: Option<u64>,
    /// `None` if no method was traced, or the recording is older than this count.
    probes_ns: Option<u64>,
    /// Parts that were computed from a model, not measured.
    modelled: Vec<CostPart>,
    /// Whether call hooks were in use. Their cost is high and in no part.
    has_hooks: bool,
    ended_abruptly: bool,
    /// CPU time of the processes without the agent.
    program_ns: u64,
}

impl CostSummary {
    pub(crate) fn of(health: &Health) -> CostSummary {
        let sum = |part: CostPart| {
            let of_part = health.cost.iter().filter(|cost| cost.part == part);
            of_part
                .map(|cost| cost.cpu_ns)
                .reduce(|sum, ns| sum.saturating_add(ns))
        };
        // Current recordings report ticks even if there were none.
        let ticks_ns = sum(CostPart::Ticks);
        let mut modelled: Vec<CostPart> = health
            .cost
            .iter()
            .filter_map(|cost| cost.modelled.then_some(cost.part))
            .collect();
        modelled.sort_unstable();
        modelled.dedup();
        let mut cost = CostSummary {
            agent_ns: health.agent_cpu_ns,
            handlers_ns: sum(CostPart::Handlers).unwrap_or(health.handler_ns),
            callbacks_ns: ticks_ns.map(|_| sum(CostPart::Callbacks).unwrap_or(0)),
            ticks_ns,
            probes_ns: sum(CostPart::Probes),
            modelled,
            has_hooks: health.walker.contains("shadow"),
            ended_abruptly: !health.abrupt.is_empty(),
            program_ns: 0,
        };
        cost.program_ns = health.target_cpu_ns.saturating_sub(cost.total_ns());
        cost
    }

    fn total_ns(&self) -> u64 {
        [
            Some(self.agent_ns),
            self.callbacks_ns,
            Some(self.handlers_ns),
            self.ticks_ns,
            self.probes_ns,
        ]
        .into_iter()
        .flatten()
        .fold(0, u64::saturating_add)
    }

    fn is_modelled(&self, part: CostPart) -> bool {
        self.modelled.contains(&part)
    }

    /// `cost 1.30 % of the program's 10.000 s`; or that it is not known.
    pub(crate) fn total(&self) -> String {
        if !self.is_known() {
            let why = if self.ended_abruptly {
                ": the process ended before it reported"
            } else {
                ""
            };
            return format!("cost not known{why}");
        }
        let mut text = format!("cost {}", self.amount(self.total_ns()));
        let program = seconds(self.program_ns);
        if self.is_in_percent() {
            text.push_str(&format!(" of the program's {program:.3} s"));
        } else if self.program_ns > 0 {
            text.push_str(&format!(" beside the program's {program:.3} s"));
        }
        text
    }

    /// Whether any agent has reported its cost: every agent uses some time.
    fn is_known(&self) -> bool {
        self.total_ns() > 0 || self.program_ns > 0
    }

    /// Whether it is said in percent: a program that does nothing is no measure.
    fn is_in_percent(&self) -> bool {
        self.program_ns > self.total_ns()
    }

    fn amount(&self, ns: u64) -> String {
        if self.is_in_percent() {
            percent(ns, self.program_ns)
        } else {
            format!("{:.3} s", seconds(ns))
        }
    }

    /// [`Cost::total`] with its parts: `cost 1.30 % of the program's 10.000 s (agent 0.40,
    /// callbacks 0.50, handlers 0.30, ticks 0.10 modelled)`.
    pub(crate) fn text(&self) -> String {
        let mut text = self.total();
        if !self.is_known() {
            return text;
        }
        let part = |name: &str, ns: Option<u64>, part: Option<CostPart>| {
            let amount = self.amount(ns?);
            let amount = amount.strip_suffix(" %").unwrap_or(&amount);
            let how = match part {
                Some(part) if self.is_modelled(part) => " modelled",
                _ => "",
            };
            Some(format!("{name} {amount}{how}"))
        };
        let parts = [
            part("agent", Some(self.agent_ns), None),
            part("callbacks", self.callbacks_ns, Some(CostPart::Callbacks)),
            part("handlers", Some(self.handlers_ns), Some(CostPart::Handlers)),
            part("ticks", self.ticks_ns, Some(CostPart::Ticks)),
            part("probes", self.probes_ns, Some(CostPart::Probes)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        text.push_str(&format!(" ({}", parts.join(", ")));
        if self.ticks_ns.is_none() {
            text.push_str("; callbacks and ticks not counted");
        }
        if self.has_hooks {
            text.push_str("; call hooks not counted");
        }
        text.push(')');
        text
    }
}

/// `cost` of `inspect --json`.
#[derive(Serialize)]
pub(crate) struct CostJson {
    agent_s: f64,
    /// Null where the recording is older than this count, as for ticks.
    callbacks_s: Option<f64>,
    handlers_s: f64,
    ticks_s: Option<f64>,
    /// Null where no method was traced.
    probes_s: Option<f64>,
    total_s: f64,
    /// Of what the program used without us; null where that is not known.
    percent: Option<f64>,
    /// The keys that were reckoned, not measured.
    modelled: Vec<&'static str>,
    /// Parts that cost something and are in none of these keys.
    not_counted: Vec<&'static str>,
    /// Runs of the signal handler.
    handlers: u64,
    /// Callbacks by what they are about.
    callbacks: BTreeMap<String, CallsJson>,
}

#[derive(Serialize)]
struct CallsJson {
    count: u64,
    cpu_s: f64,
}

impl CostJson {
    pub(crate) fn new(health: &Health) -> CostJson {
        let cost = CostSummary::of(health);
        let of_part = |part: CostPart| health.cost.iter().filter(move |cost| cost.part == part);
        let total_ns = cost.total_ns();
        let program = cost.program_ns;
        CostJson {
            agent_s: seconds(cost.agent_ns),
            callbacks_s: cost.callbacks_ns.map(seconds),
            handlers_s: seconds(cost.handlers_ns),
            ticks_s: cost.ticks_ns.map(seconds),
            probes_s: cost.probes_ns.map(seconds),
            total_s: seconds(total_ns),
            percent: (program > 0).then(|| total_ns as f64 * 100.0 / program as f64),
            modelled: cost
                .modelled
                .iter()
                .map(|part| match part {
                    CostPart::Callbacks => "callbacks_s",
                    CostPart::Handlers => "handlers_s",
                    CostPart::Ticks => "ticks_s",
                    CostPart::Probes => "probes_s",
                })
                .collect(),
            not_counted: match (cost.ticks_ns.is_none(), cost.has_hooks) {
                (false, false) => vec![],
                (false, true) => vec!["call hooks"],
                (true, false) => vec!["callbacks", "ticks"],
                (true, true) => vec!["callbacks", "ticks", "call hooks"],
            },
            handlers: of_part(CostPart::Handlers)
                .fold(0, |sum: u64, cost| sum.saturating_add(cost.count)),
            callbacks: of_part(CostPart::Callbacks)
                .map(|cost| {
                    let (count, cpu_s) = (cost.count, seconds(cost.cpu_ns));
                    (cost.name.clone(), CallsJson { count, cpu_s })
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::model::Cost as OfPart;

    fn of(part: CostPart, name: &str, cpu_ms: u64) -> OfPart {
        OfPart {
            part,
            name: name.to_owned(),
            modelled: part == CostPart::Ticks,
            count: 1_000,
            cpu_ns: cpu_ms * 1_000_000,
        }
    }

    fn health() -> Health {
        Health {
            agent_cpu_ns: 40_000_000,
            target_cpu_ns: 10_130_000_000,
            cost: vec![
                of(CostPart::Callbacks, "compilation", 40),
                of(CostPart::Callbacks, "loads", 10),
                of(CostPart::Handlers, "", 30),
                of(CostPart::Ticks, "", 10),
            ],
            ..Health::default()
        }
    }

    #[test]
    fn the_whole_is_held_against_the_program_without_it() {
        assert_eq!(
            CostSummary::of(&health()).text(),
            "cost 1.30 % of the program's 10.000 s (agent 0.40, callbacks 0.50, handlers 0.30, ticks \
             0.10 modelled)"
        );
    }

    #[test]
    fn probes_are_a_part_where_methods_were_traced() {
        let mut traced = health();
        traced.target_cpu_ns += 5_000_000_000;
        traced.cost.push(OfPart {
            modelled: true,
            ..of(CostPart::Probes, "", 5_000)
        });
        assert_eq!(
            CostSummary::of(&traced).text(),
            "cost 51.30 % of the program's 10.000 s (agent 0.40, callbacks 0.50, handlers 0.30, ticks \
             0.10 modelled, probes 50.00 modelled)"
        );
        let json = CostJson::new(&traced);
        assert_eq!(json.probes_s, Some(5.0));
        assert_eq!(json.modelled, ["ticks_s", "probes_s"]);
    }

    #[test]
    fn what_was_not_counted_is_said() {
        let older = Health {
            cost: vec![],
            handler_ns: 30_000_000,
            walker: "shadow".into(),
            ..health()
        };
        assert_eq!(
            CostSummary::of(&older).text(),
            "cost 0.70 % of the program's 10.060 s (agent 0.40, handlers 0.30; callbacks and ticks not \
             counted; call hooks not counted)"
        );
    }

    #[test]
    fn a_program_that_does_nothing_is_no_measure() {
        let much = Health {
            target_cpu_ns: 140_000_000,
            ..health()
        };
        assert_eq!(
            CostSummary::of(&much).text(),
            "cost 0.130 s beside the program's 0.010 s (agent 0.040 s, callbacks 0.050 s, handlers 0.030 s, \
             ticks 0.010 s modelled)"
        );
        let nothing = Health {
            target_cpu_ns: 0,
            ..health()
        };
        assert_eq!(
            CostSummary::of(&nothing).text(),
            "cost 0.130 s (agent 0.040 s, callbacks 0.050 s, handlers 0.030 s, ticks 0.010 s modelled)"
        );
    }
}
