//! Subscriptions: the event flags and EventPipe sessions that a session requests from a CLR.
//!
//! Input: the settings, the facts about the CLR, and when the session subscribes. Output: a
//! [`Subscription`], with notes for the recording. Most functions here are pure; `apply` changes
//! a running CLR on the agent thread. Invariants: nothing unneeded is requested. Flags from
//! start-up that cannot be cleared are always included, as the runtime refuses every mask without
//! them.

use corprof::context::AgentThread;
use corprof::{Cx, EventMaskHigh, EventMaskLow};

use super::exception::callbacks_are_safe;
use super::source::{RuntimeFacts, SOURCES, SourceQuery, SubscribeTime};
use super::{ClrEvents, EventAnnouncement};
use crate::model::{EventSet, Settings, WalkerKind};

/// The flags and sessions for one CLR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// `COR_PRF_MONITOR`.
    pub low: EventMaskLow,
    /// `COR_PRF_HIGH_MONITOR`.
    pub high: EventMaskHigh,
    /// Keywords and level of the EventPipe session.
    pub session: Option<(u64, u32)>,
    /// Keywords and level of a separate session for allocations, which may be paused and resumed.
    pub sampled: Option<(u64, u32)>,
    /// Announcements for the recording.
    pub news: Vec<EventAnnouncement>,
}

/// The flags that keep the code, module and thread tables current, with or without a session.
const ALWAYS: (EventMaskLow, EventMaskHigh) = (
    EventMaskLow::MONITOR_THREADS
        .union(EventMaskLow::MONITOR_MODULE_LOADS)
        .union(EventMaskLow::MONITOR_JIT_COMPILATION),
    EventMaskHigh::MONITOR_DYNAMIC_FUNCTION_UNLOADS,
);

/// Returns what the selected events need of a CLR.
pub fn of_events(settings: &Settings, how: SubscribeTime, runtime: &RuntimeFacts) -> Subscription {
    let mut all = Subscription {
        low: EventMaskLow::empty(),
        high: EventMaskHigh::empty(),
        session: None,
        sampled: None,
        news: Vec::new(),
    };
    let asked = SourceQuery {
        settings,
        how,
        runtime,
    };
    for source in SOURCES {
        if !settings.events.has(source.event()) {
            continue;
        }
        match source.need(asked) {
            Ok(need) => {
                all.low |= need.low;
                all.high |= need.high;
                if need.keywords != 0 {
                    let session = match need.is_apart {
                        true => &mut all.sampled,
                        false => &mut all.session,
                    };
                    let (keywords, level) = session.unwrap_or_default();
                    *session = Some((keywords | need.keywords, level.max(need.level)));
                    all.high |= EventMaskHigh::MONITOR_EVENT_PIPE;
                }
                all.news.push(EventAnnouncement::Source {
                    event: source.event(),
                    source: need.source,
                    interval: need.interval,
                });
            }
            Err(text) => all.news.push(EventAnnouncement::Note(text)),
        }
    }
    all
}

/// Returns everything that a session needs of a CLR. `hooks` is what the walker `shadow` needs.
///
/// Stack snapshots, which some walkers need, are not included. `corprof` enables them at start-up
/// or attach and returns a proof. Later they are unavailable, and a note reports that.
pub fn of_session(
    settings: &Settings,
    how: SubscribeTime,
    runtime: &RuntimeFacts,
    hooks: EventMaskLow,
) -> Subscription {
    let mut all = of_events(settings, how, runtime);
    all.low |= ALWAYS.0;
    all.high |= ALWAYS.1;
    if settings.needs_collection_times() {
        all.low |= EventMaskLow::MONITOR_SUSPENDS;
    }
    match (how, settings.walker) {
        (SubscribeTime::Startup, WalkerKind::Shadow) if callbacks_are_safe(runtime) => {
            all.low |= hooks
        }
        (SubscribeTime::Startup, WalkerKind::Shadow) => {
            all.low |= hooks - EventMaskLow::MONITOR_EXCEPTIONS;
            all.news.push(EventAnnouncement::Note(format!(
                "walker shadow of .NET {}: calls of catch and finally blocks are shown below the \
                 method that threw, because this runtime's exception callbacks may crash the \
                 program",
                runtime.version
            )));
        }
        (SubscribeTime::Attached, walker)
            if walker == WalkerKind::Shadow || settings.needs_snapshots() && !runtime.snapshots =>
        {
            all.news.push(EventAnnouncement::Note(format!(
                "walker {} of .NET {}: it is unavailable after attach; start the program with \
                 sidewalk record",
                walker.name(),
                runtime.version
            )));
        }
        _ => {}
    }
    all
}

/// Returns the flags for a CLR without a session.
pub fn of_idle() -> Subscription {
    Subscription {
        low: ALWAYS.0,
        high: ALWAYS.1,
        session: None,
        sampled: None,
        news: Vec::new(),
    }
}

/// Returns the masks that replace `now` in a running runtime: all of `wanted` that can be set now,
/// and all of `now` that cannot be cleared.
fn masks(
    now: (EventMaskLow, EventMaskHigh),
    wanted: &Subscription,
) -> (EventMaskLow, EventMaskHigh) {
    // Besides the runtime's immutable flags, hooks are kept, as code compiled with them is. So are
    // snapshots and ReJIT, whose proofs were given out.
    let low_kept = EventMaskLow::IMMUTABLE
        | EventMaskLow::MONITOR_ENTERLEAVE
        | EventMaskLow::ENABLE_REJIT
        | EventMaskLow::ENABLE_STACK_SNAPSHOT;
    let high_kept = EventMaskHigh::IMMUTABLE;
    (
        now.0.intersection(low_kept) | (wanted.low - low_kept),
        now.1.intersection(high_kept) | (wanted.high - high_kept),
    )
}

/// Whether [`apply`] starts or ends an EventPipe session. The runtime registers the thread that
/// does so as its own (`ep_rt_thread_setup`).
pub(crate) fn changes_session(own: &ClrEvents, wanted: &Subscription) -> bool {
    own.session.now() != wanted.session || own.alloc_session.now() != wanted.sampled
}

/// Replaces a running CLR's subscription by `wanted`. Returns a note about what failed. Flags that
/// cannot be cleared (the slow allocation path of .NET Core 3.1) are kept.
pub(crate) fn apply(
    cx: &mut Cx<'_, AgentThread>,
    own: &ClrEvents,
    wanted: &Subscription,
) -> Option<String> {
    let info = cx.info();
    let mut trouble = None;
    if let Ok(now) = info.get_event_mask2(cx) {
        let (low, high) = masks(now, wanted);
        if (low, high) != now
            && let Err(error) = info.set_event_mask2(cx, low, high)
        {
            // After a refusal the old mask stays in force, and the callbacks are ignored.
            trouble = Some(format!(
                "some events of .NET {} are unavailable: the runtime refused them ({error})",
                own.facts.version
            ));
        }
    }
    let sampled = (own.alloc_session.now() != wanted.sampled)
        .then(|| own.alloc_session.listen(cx, wanted.sampled));
    let steady =
        (own.session.now() != wanted.session).then(|| own.session.listen(cx, wanted.session));
    for begun in sampled.into_iter().chain(steady) {
        if let Err(error) = begun {
            trouble = Some(no_session(&own.facts, error));
        }
    }
    trouble
}

/// Disables the suspend callbacks of a running CLR. Returns whether it did.
pub(crate) fn disable_suspend_events(cx: &mut Cx<'_, AgentThread>) -> bool {
    let info = cx.info();
    let Ok((low, high)) = info.get_event_mask2(cx) else {
        return false;
    };
    // After a refusal the callbacks continue.
    low.contains(EventMaskLow::MONITOR_SUSPENDS)
        && info
            .set_event_mask2(cx, low - EventMaskLow::MONITOR_SUSPENDS, high)
            .is_ok()
}

/// Returns why none of these running CLRs can deliver some event of `events`, in the words of its
/// source. `None` if each is available in at least one of them, or there is no CLR yet.
pub(crate) fn refusal(
    settings: &Settings,
    events: EventSet,
    runtimes: &[&RuntimeFacts],
) -> Option<String> {
    let wanted = SOURCES.iter().filter(|source| events.has(source.event()));
    wanted
        .filter_map(|source| {
            let mut why = None;
            for runtime in runtimes {
                let asked = SourceQuery {
                    settings,
                    how: SubscribeTime::Attached,
                    runtime,
                };
                match source.need(asked) {
                    Ok(_) => return None,
                    Err(text) => why = Some(text),
                }
            }
            why
        })
        .next()
}

/// Starts the EventPipe sessions of a CLR at its start.
pub(crate) fn start_session<'rt>(
    cx: &mut Cx<'rt, corprof::context::Startup>,
    own: &ClrEvents,
    wanted: &Subscription,
) -> Option<String> {
    let begun = own.session.listen(cx, wanted.session);
    let begun = begun.and_then(|()| own.alloc_session.listen(cx, wanted.sampled));
    begun.err().map(|error| no_session(&own.facts, error))
}

fn no_session(runtime: &RuntimeFacts, error: corprof::Hresult) -> String {
    format!(
        "no allocations, lock waits and (from .NET 9 on) exceptions of .NET {}: the runtime \
         refused an event session ({error})",
        runtime.version
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks;
    use recording::Event;

    fn facts(major: u16, event_pipe: bool) -> RuntimeFacts {
        RuntimeFacts {
            version: "x".into(),
            major,
            event_pipe,
            handles: major >= 7 && event_pipe,
            snapshots: false,
        }
    }

    fn of(list: &str, major: u16, event_pipe: bool) -> Subscription {
        let settings = Settings::parse(&format!("event={list}"));
        of_events(&settings, SubscribeTime::Startup, &facts(major, event_pipe))
    }

    #[test]
    fn nothing_is_asked_for_that_was_not_chosen() {
        for list in ["cpu", "wall", "cpu,wall", "jit", "module-load"] {
            let setup = of(list, 8, true);
            assert!(setup.low.is_empty() && setup.high.is_empty(), "{list}");
            assert_eq!(setup.session, None, "{list}");
        }
        assert_eq!(of("cpu,wall", 8, true).news, []);
        let settings = Settings::parse("event=cpu");
        let plain = of_session(
            &settings,
            SubscribeTime::Startup,
            &facts(8, true),
            hooks::EVENTS,
        );
        assert_eq!(plain, of_idle());
    }

    #[test]
    fn collection_stays_concurrent() {
        let setup = of("gc,exception,alloc,contention,class-load", 8, true);
        assert!(!setup.low.contains(EventMaskLow::MONITOR_GC));
        assert!(!setup.low.contains(EventMaskLow::ENABLE_OBJECT_ALLOCATED));
        assert!(setup.high.contains(EventMaskHigh::BASIC_GC));
        assert_eq!(setup.session, Some((0x4000, 4)));
        assert_eq!(setup.sampled, Some((0x1, 5)));
        assert_eq!(setup.news.len(), 5);
        let old = of("alloc,contention", 5, true);
        assert_eq!((old.session, old.sampled), (Some((0x4001, 5)), None));
    }

    /// Exception callbacks may end the program (dotnet/runtime issue 132462).
    #[test]
    fn no_callback_is_asked_for_that_harms_the_program() {
        let every = "cpu,wall,exception,alloc,contention,gc,jit,class-load,module-load";
        for (major, is_asked) in [(4, true), (8, true), (9, false), (10, false), (11, false)] {
            for walker in ["signal", "suspend", "shadow"] {
                let settings = Settings::parse(&format!("event={every};walker={walker}"));
                let runtime = facts(major, major > 4);
                for how in [SubscribeTime::Startup, SubscribeTime::Attached] {
                    let low = of_session(&settings, how, &runtime, hooks::EVENTS).low;
                    let exceptions = low.contains(EventMaskLow::MONITOR_EXCEPTIONS);
                    assert_eq!(exceptions, is_asked, "{walker} of {major}, {how:?}");
                }
            }
        }
        assert_eq!(of("exception", 9, true).session, Some((0x8000, 4)));
    }

    #[test]
    fn large_objects_are_reported_where_the_events_are_not_enough() {
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
                EventAnnouncement::Source {
                    event: Event::Alloc,
                    interval: 524_288,
                    ..
                },
                EventAnnouncement::Note(note)
            ] if note.starts_with("no contention samples of .NET x")
        ));
    }

    /// `COR_PRF_ALLOWABLE_AFTER_ATTACH` and its high half, for 3.x and for 5 and later
    /// (src/coreclr/inc/corprof.idl).
    #[test]
    fn nothing_is_asked_of_a_running_clr_that_it_would_refuse() {
        for (major, event_pipe, high) in [(4, false, 0x76), (8, true, 0xf6), (10, true, 0xf6)] {
            for walker in ["signal", "snapshot", "suspend", "seeded", "shadow"] {
                let every = "cpu,wall,exception,alloc,contention,gc,jit,class-load,module-load";
                let settings = Settings::parse(&format!("event={every};walker={walker}"));
                let facts = facts(major, event_pipe);
                let asked = of_session(&settings, SubscribeTime::Attached, &facts, hooks::EVENTS);
                let strange = (asked.low.bits() & !0x1005_02fe, asked.high.bits() & !high);
                assert_eq!(strange, (0, 0), "{walker} of {major}");
                let is_said = asked.news.iter().any(
                    |news| matches!(news, EventAnnouncement::Note(text) if text.starts_with("walker ")),
                );
                assert_eq!(is_said, walker != "signal", "{walker}");
            }
        }
        // Snapshots that an attach enabled are available.
        let attached = RuntimeFacts {
            snapshots: true,
            ..facts(8, true)
        };
        for (walker, is_said) in [("suspend", false), ("shadow", true)] {
            let settings = Settings::parse(&format!("event=cpu;walker={walker}"));
            let asked = of_session(&settings, SubscribeTime::Attached, &attached, hooks::EVENTS);
            assert_eq!(asked.news.is_empty(), !is_said, "{walker}");
        }
        // The notes name the event that 3.1 cannot deliver after its start.
        let settings = Settings::parse("event=alloc");
        let asked = of_session(
            &settings,
            SubscribeTime::Attached,
            &facts(4, false),
            hooks::EVENTS,
        );
        assert!(
            matches!(asked.news.as_slice(), [EventAnnouncement::Note(text)] if text.starts_with("no alloc samples of .NET x")),
            "{:?}",
            asked.news
        );
    }

    #[test]
    fn what_no_runtime_can_deliver_is_refused_and_what_one_can_is_not() {
        let settings = Settings::parse("event=alloc,exception");
        let (old, new) = (facts(4, false), facts(8, true));
        let why = |runtimes: &[&RuntimeFacts]| refusal(&settings, settings.events, runtimes);
        assert!(why(&[&old]).is_some_and(|text| text.starts_with("no alloc samples of .NET x")));
        assert_eq!(why(&[&old, &new]), None);
        assert_eq!(why(&[]), None);
        let exceptions = EventSet::of(&[Event::Exception]);
        assert_eq!(refusal(&settings, exceptions, &[&old]), None);
    }

    #[test]
    fn a_second_session_asks_for_its_own_events_and_keeps_what_cannot_be_taken_back() {
        let runtime = facts(8, true);
        let first = Settings::parse("event=exception,gc,alloc;walker=shadow");
        let second = Settings::parse("event=contention,class-load");
        let first = of_session(&first, SubscribeTime::Startup, &runtime, hooks::EVENTS);
        let second = of_session(&second, SubscribeTime::Attached, &runtime, hooks::EVENTS);
        let now = masks((first.low, first.high), &second);
        let expected =
            second.low | EventMaskLow::MONITOR_ENTERLEAVE | EventMaskLow::DISABLE_INLINING;
        assert_eq!(now, (expected, second.high));
        assert!(!now.0.contains(EventMaskLow::MONITOR_EXCEPTIONS));
        assert_eq!(second.session, Some((0x4000, 4)));
        // Without a session neither is requested.
        let idle = masks(now, &of_idle());
        let kept = EventMaskLow::MONITOR_ENTERLEAVE | EventMaskLow::DISABLE_INLINING;
        assert_eq!(idle, (ALWAYS.0 | kept, ALWAYS.1));
    }
}
