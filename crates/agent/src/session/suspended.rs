//! Second part of a dump, on request: the stacks of suspended async methods.
//!
//! No thread runs these methods. Each runtime is requested to run two collections of all
//! generations. At the end of each it walks its heap and reports objects by callbacks
//! (`program::chains::suspended`). The first walk finds classes, the second one tasks. Each request
//! is made on a short-lived thread, as the runtime registers the requesting thread. Invariant: if
//! the runtime refuses, its event mask is restored, and the reason for the missing stacks is
//! written.

use std::borrow::Cow;

use corprof::{AgentCx, EventMaskLow, Hresult};
use recording::Record;

use super::Session;
use crate::base::proc;
use crate::clr::Runtimes;
use crate::program::chains::suspended::{ChainGroups, StoppedHeap};
use crate::program::chains::{self, Survey};

/// Events of a heap walk, and those that report how long the runtime was suspended.
const WALKS: EventMaskLow = EventMaskLow::MONITOR_GC.union(EventMaskLow::MONITOR_SUSPENDS);

impl Session<'_> {
    /// Writes the stacks of suspended async methods, which no thread runs.
    pub(super) fn suspended(&mut self, cx: &mut AgentCx) {
        self.recorder.no_thread(proc::now_ns());
        let numbers = Runtimes::new(cx, &self.agent.registry, &self.clrs).recorded();
        for number in numbers {
            let time_ns = proc::now_ns();
            let (groups, left_out) = match self.survey(cx, number) {
                Ok(found) => found,
                Err(why) => {
                    let version = self.clrs.iter().find(|clr| clr.number == number);
                    let version = version.map_or("", |clr| &clr.version);
                    self.recorder.note(&format!(
                        "no suspended async methods of .NET {version}: {why}"
                    ));
                    continue;
                }
            };
            let mut runtimes = Runtimes::new(cx, &self.agent.registry, &self.clrs);
            let program = &self.agent.program;
            for (words, count) in groups {
                let chain = (number, &*words);
                self.recorder
                    .suspended(program, &mut runtimes, chain, (time_ns, count));
            }
            if left_out > 0 {
                self.recorder.note(&format!(
                    "{left_out} suspended async methods are not shown: there are too many, or too many different stacks"
                ));
            }
        }
    }

    /// Returns the findings of two walks of a runtime's heap.
    ///
    /// # Errors
    /// The reason why the walk failed.
    fn survey(&mut self, cx: &mut AgentCx, number: u8) -> Result<ChainGroups, String> {
        let tables = chains::prepare();
        let mut runtimes = Runtimes::new(cx, &self.agent.registry, &self.clrs);
        let begun = runtimes.with(number, |clr, cx| {
            let info = cx.info();
            let before = info.get_event_mask2(cx)?;
            info.set_event_mask2(cx, before.0 | WALKS, before.1)?;
            clr.begin_survey(&tables.types);
            Ok::<_, Hresult>(before)
        });
        let before = match begun {
            Some(Ok(before)) => before,
            Some(Err(refusal)) => return Err(refused(refusal)),
            None => return Err(ENDED.to_owned()),
        };
        let begun_ns = proc::now_ns();
        let walked = walk(&mut runtimes, number, |survey| survey.walks() > 0).and_then(|()| {
            runtimes.with(number, |clr, cx| {
                let found = clr.survey(|survey| survey.take_classes());
                clr.learn_heap_classes(cx, &tables.types, &found.unwrap_or_default(), begun_ns);
            });
            walk(&mut runtimes, number, |survey| survey.is_over())
        });
        let ended = runtimes.with(number, |clr, cx| {
            let restored = cx.info().set_event_mask2(cx, before.0, before.1);
            let mut stops = Vec::new();
            clr.collection_times().take(&mut stops);
            (clr.end_survey(), stops, restored)
        });
        let (survey, stops, restored) = ended.ok_or(ENDED)?;
        if let Err(refusal) = restored {
            self.recorder.note(&format!(
                "the runtime walks its heap at each collection until the agent detaches: it \
                 refused to stop that ({refusal})"
            ));
        }
        for stop in stops {
            self.recorder.record(&Record::Pause {
                time_ns: stop.from_ns.saturating_add(stop.ns),
                stopping_ns: 0,
                stopped_ns: stop.ns,
            });
        }
        walked?;
        Ok(survey.ok_or(ENDED)?.into_groups())
    }
}

const ENDED: &str = "it has ended";

/// Makes the runtime run a collection, at the end of which its heap has been walked.
fn walk(
    runtimes: &mut Runtimes<'_>,
    number: u8,
    is_walked: impl Fn(&Survey<'static, StoppedHeap>) -> bool,
) -> Result<(), String> {
    let collected = runtimes.on_own_thread(number, |cx| cx.info().force_gc(cx));
    let collected = collected.ok_or(ENDED)?;
    let collected =
        collected.map_err(|error| format!("no thread could be started for that ({error})"));
    if let Err(refusal) = collected? {
        return Err(format!("it refused to collect ({refusal})"));
    }
    let walked = runtimes.with(number, |clr, _| clr.survey(|survey| is_walked(survey)));
    match walked.flatten() {
        Some(true) => Ok(()),
        _ => Err("it collected but did not walk its whole heap".to_owned()),
    }
}

/// Returns the reason for which a runtime refuses walks of its heap.
fn refused(refusal: Hresult) -> String {
    let why: Cow<'static, str> = match refusal {
        Hresult::CORPROF_E_CONCURRENT_GC_NOT_PROFILABLE => Cow::Borrowed(
            "with concurrent collections the runtime allows no heap walk to an agent that was \
             loaded at its start (DOTNET_gcConcurrent=0 allows it)",
        ),
        other => Cow::Owned(format!("it allows no heap walk ({other})")),
    };
    why.into_owned()
}
