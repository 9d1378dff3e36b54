//! What a CLR is asked for, so that the chosen events come, and what must be said about it.

use corprof::{EventMaskHigh, EventMaskLow};
use recording::Event;

use super::alloc::TICK_BYTES;
use super::event_pipe;
use super::{EventNews, Events};

/// What to ask of one CLR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) low: EventMaskLow,
    pub(crate) high: EventMaskHigh,
    /// Keywords and level of a session with the runtime's own events.
    pub(crate) session: Option<(u64, u32)>,
    /// What the recording is to be told.
    pub(crate) news: Vec<EventNews>,
}

/// What a CLR needs for the chosen events. `major` is its version, `event_pipe` whether it lets a
/// profiler listen to its own events (`ICorProfilerInfo12`).
pub(crate) fn setup(events: &Events, version: &str, major: u16, event_pipe: bool) -> Setup {
    let interval = events.alloc_interval();
    let mut setup = Setup {
        low: EventMaskLow::empty(),
        high: EventMaskHigh::empty(),
        session: None,
        news: Vec::new(),
    };
    for event in events.wanted.iter() {
        let source = match event {
            Event::Exception => {
                setup.low |= EventMaskLow::MONITOR_EXCEPTIONS;
                ("ExceptionThrown callback", 0)
            }
            Event::Gc => {
                setup.low |= EventMaskLow::MONITOR_SUSPENDS;
                setup.high |= EventMaskHigh::BASIC_GC;
                ("RuntimeSuspendStarted to RuntimeResumeFinished", 0)
            }
            // Compilations are told of in any case.
            Event::Jit => ("JITCompilationStarted to JITCompilationFinished", 0),
            Event::ClassLoad => {
                setup.low |= EventMaskLow::MONITOR_CLASS_LOADS;
                ("ClassLoadFinished callback", 0)
            }
            // As are modules.
            Event::ModuleLoad => ("ModuleLoadFinished callback", 0),
            Event::Alloc if !event_pipe => {
                setup.low |=
                    EventMaskLow::ENABLE_OBJECT_ALLOCATED | EventMaskLow::MONITOR_OBJECT_ALLOCATED;
                ("ObjectAllocated callback", interval)
            }
            Event::Alloc if major >= 10 => ("AllocationSampled event", interval.max(TICK_BYTES)),
            Event::Alloc => {
                setup.high |= EventMaskHigh::MONITOR_LARGEOBJECT_ALLOCATED;
                (
                    "AllocationTick event, ObjectAllocated for large objects",
                    interval.max(TICK_BYTES),
                )
            }
            Event::Contention if !event_pipe => {
                setup.news.push(EventNews::Note(format!(
                    "no contention samples of .NET {version}: it tells a profiler of no lock waits \
                     (.NET 5 and later do)"
                )));
                continue;
            }
            Event::Contention => ("ContentionStop event", 0),
            Event::Cpu | Event::Wall | Event::Call => continue,
        };
        setup.news.push(EventNews::Source {
            event,
            source: source.0,
            interval: source.1,
        });
    }
    let (alloc, contention) = (events.wants(Event::Alloc), events.wants(Event::Contention));
    if event_pipe && (alloc || contention) {
        setup.high |= EventMaskHigh::MONITOR_EVENT_PIPE;
        setup.session = Some(event_pipe::keywords(alloc, contention, major >= 10));
    }
    setup
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use stackwalk::CodeMap;

    static MAP: CodeMap = CodeMap::new();

    fn of(list: &str, major: u16, event_pipe: bool) -> Setup {
        let events = Events::new(&Config::parse(&format!("event={list}")), &MAP, -1);
        setup(&events, "x", major, event_pipe)
    }

    #[test]
    fn nothing_is_asked_for_that_was_not_chosen() {
        for list in ["cpu", "wall", "cpu,wall", "jit", "module-load"] {
            let setup = of(list, 8, true);
            assert!(setup.low.is_empty() && setup.high.is_empty(), "{list}");
            assert_eq!(setup.session, None, "{list}");
        }
        assert_eq!(of("cpu,wall", 8, true).news, []);
    }

    #[test]
    fn collection_stays_concurrent() {
        let setup = of("gc,exception,alloc,contention,class-load", 8, true);
        assert!(!setup.low.contains(EventMaskLow::MONITOR_GC));
        assert!(!setup.low.contains(EventMaskLow::ENABLE_OBJECT_ALLOCATED));
        assert!(setup.high.contains(EventMaskHigh::BASIC_GC));
        assert_eq!(setup.session, Some((0x4001, 5)));
        assert_eq!(setup.news.len(), 5);
    }

    #[test]
    fn large_objects_are_told_of_where_the_events_are_not_enough() {
        let large = EventMaskHigh::MONITOR_LARGEOBJECT_ALLOCATED;
        for (major, event_pipe, asked) in [(4, false, false), (8, true, true), (10, true, false)] {
            let setup = of("alloc", major, event_pipe);
            assert_eq!(setup.high.contains(large), asked, "{major}");
        }
        assert!(!of("contention", 8, true).high.contains(large));
    }

    #[test]
    fn core_31_counts_objects_and_refuses_contention_aloud() {
        let setup = of("alloc,contention", 4, false);
        assert!(setup.low.contains(EventMaskLow::ENABLE_OBJECT_ALLOCATED));
        assert!(!setup.high.contains(EventMaskHigh::MONITOR_EVENT_PIPE));
        assert_eq!(setup.session, None);
        assert!(matches!(
            setup.news.as_slice(),
            [
                EventNews::Source {
                    event: Event::Alloc,
                    interval: 524_288,
                    ..
                },
                EventNews::Note(note)
            ] if note.starts_with("no contention samples of .NET x")
        ));
    }
}
