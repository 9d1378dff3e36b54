//! Changes the event set of a running session, at a client's request.
//!
//! Only the events that CLRs report change. Threads keep the timers and clocks that they got when
//! the session began. Invariants: a request that cannot be fulfilled is refused as a whole, with a
//! text for the user. The recording contains the time of each change, so that no event is taken to
//! cover the whole session.

use std::sync::Arc;

use control::{Message, keys, reply};
use corprof::AgentCx;
use recording::{Event, Record};

use super::Session;
use super::clients::refused;
use crate::base::proc;
use crate::events::EventAnnouncement;
use crate::events::source::SubscribeTime;
use crate::events::subscription::{self, Subscription};
use crate::hooks;
use crate::model::{EventSet, Settings};

/// Events that cannot change while a session runs.
const FIXED: EventSet = EventSet::of(&[Event::Cpu, Event::Wall, Event::Call]);

impl Session<'_> {
    /// Records `events` from here on. Returns the reply.
    pub(super) fn change(&mut self, events: &str, cx: &mut AgentCx) -> Message {
        let events = match EventSet::parse_strictly(events) {
            Ok(events) => events,
            Err(name) => {
                let name: String = name.chars().take(40).collect();
                return refused(&format!("the agent in the process knows no event {name}"));
            }
        };
        // Method tracing lasts for the whole session, whatever else is requested.
        let traced = EventSet::of(&[Event::TracedCall]);
        let others = self.settings.events.without(traced);
        let events = events
            .without(traced)
            .with(self.settings.events.without(others));
        if let Some(why) = refusal_reason(&self.settings, events) {
            return refused(&why);
        }
        let before = self.settings.events;
        let settings = Settings {
            events,
            ..Settings::clone(&self.settings)
        };
        let running = self.agent.registry.recorded();
        let known: Vec<_> = running
            .iter()
            .filter_map(|number| self.agent.events.of(*number))
            .collect();
        let facts: Vec<_> = known.iter().map(|own| &own.facts).collect();
        if let Some(why) = subscription::refusal(&settings, events.without(before), &facts) {
            return refused(&why);
        }
        let mut trouble = Vec::new();
        if events != before {
            let added = Settings {
                events: events.without(before),
                ..settings.clone()
            };
            let settings = Arc::new(settings);
            // For CLRs that start from here on.
            self.agent.set_settings(Arc::clone(&settings));
            let threads = &self.agent.program.threads;
            threads.allow_short_lived_sampling(settings.allows_short_lived_sampling());
            self.settings = Arc::clone(&settings);
            self.agent.events.change(events);
            self.recorder.record(&Record::Change {
                time_ns: proc::now_ns(),
                before: before.bits().into(),
                after: events.bits().into(),
            });
            // `news` is for the added events only, as the recording already describes what existed
            // before.
            trouble = self.subscribe(cx, &running, |facts| Subscription {
                news: subscription::of_events(&added, SubscribeTime::Attached, facts).news,
                ..subscription::of_session(&settings, SubscribeTime::Attached, facts, hooks::EVENTS)
            });
            for trouble in &trouble {
                self.agent
                    .events
                    .announce(EventAnnouncement::Note(trouble.clone()));
            }
            self.changed = true;
        }
        Message::new(reply::OK)
            .with(keys::EVENTS, &events.names())
            .with(keys::WHY, &trouble.join("; "))
    }

    /// Sets the event masks of the last change again, if it was recent: a CLR that just started may
    /// have set its own mask to the earlier events.
    pub(super) fn confirm_change(&mut self, cx: &mut AgentCx) {
        if std::mem::take(&mut self.changed) {
            let settings = Arc::clone(&self.settings);
            let running = self.agent.registry.recorded();
            let _told = self.subscribe(cx, &running, |facts| Subscription {
                news: Vec::new(),
                ..subscription::of_session(&settings, SubscribeTime::Attached, facts, hooks::EVENTS)
            });
        }
    }
}

/// Returns the reason why a session with these settings cannot continue with these events.
fn refusal_reason(settings: &Settings, events: EventSet) -> Option<String> {
    if settings.dump {
        return Some("it only takes one stack of each thread".to_owned());
    }
    let fixed = settings.events.without(settings.events.without(FIXED));
    let wanted = events.without(events.without(FIXED));
    if wanted == fixed {
        return None;
    }
    let has = match fixed.names() {
        none if none.is_empty() => "neither".to_owned(),
        names => names,
    };
    Some(format!(
        "cpu and wall cannot be switched during a recording, and this one has {has}: keep that, or \
         start another recording"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sampled_by_time_stays_as_it_is() {
        for (now, wanted, can) in [
            ("cpu", "cpu,exception", true),
            ("cpu,exception", "cpu", true),
            ("exception", "gc,alloc", true),
            ("cpu", "exception", false),
            ("exception", "cpu,exception", false),
            ("cpu", "wall", false),
            ("cpu,wall,gc", "wall,cpu", true),
        ] {
            let settings = Settings::parse(&format!("event={now}"));
            let events = EventSet::parse_strictly(wanted).unwrap();
            let why = refusal_reason(&settings, events);
            assert_eq!(why.is_none(), can, "{now} to {wanted}: {why:?}");
        }
        let dump = Settings::parse("event=wall;dump=1");
        assert!(refusal_reason(&dump, EventSet::of(&[Event::Wall])).is_some());
        assert_eq!(EventSet::parse_strictly("cpu,later"), Err("later".into()));
        assert!(EventSet::parse_strictly("").is_err());
    }
}
