//! One CLR of the process: what is kept of it, its code (`code`) and its callbacks (`callbacks`).
//!
//! Invariant: its locks are leaves, never held over a call into the CLR.

mod callbacks;
mod code;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use corprof::context::{AgentThread, Callback, Startup};
use corprof::id::EventPipeProviderId;
use corprof::info::EventPipeSession;
use corprof::{Cx, EventMaskHigh, EventMaskLow, StackSnapshots};

pub(crate) use self::callbacks::ClrCallbacks;
pub(crate) use self::code::ModuleFacts;

use self::code::Unloadable;
use crate::agent::Agent;
use crate::events::exception::ExceptionFacts;
use crate::events::gc::Collector;
use crate::events::{self, EventNews, Events, NameCache, event_pipe};
use crate::hijacks;

/// One CLR.
pub(crate) struct Clr {
    agent: &'static Agent,
    index: u8,
    modules: Mutex<HashMap<usize, Arc<ModuleFacts>>>,
    /// How many of them are collectible: asked at each compilation, so not counted each time.
    collectible: AtomicU32,
    unloadable: Mutex<Unloadable>,
    /// It has instrumented tiers (.NET 8 on).
    instruments: AtomicBool,
    /// Code headers that have been read and believed since the last that was not.
    headers_read: AtomicU32,
    /// Where its thread objects keep replaced return addresses.
    hijacks: hijacks::Words,
    /// Set where a walker needs them.
    snapshots: OnceLock<StackSnapshots>,
    names: NameCache,
    exceptions: ExceptionFacts,
    collector: Collector,
    /// The provider of the runtime's own events, once it has been met.
    provider: AtomicUsize,
    session: OnceLock<EventPipeSession>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Clr {
    pub(crate) fn new(agent: &'static Agent, index: u8) -> Clr {
        Clr {
            agent,
            index,
            modules: Mutex::default(),
            collectible: AtomicU32::new(0),
            unloadable: Mutex::default(),
            instruments: AtomicBool::new(false),
            headers_read: AtomicU32::new(0),
            names: NameCache::default(),
            exceptions: ExceptionFacts::default(),
            collector: Collector::default(),
            provider: AtomicUsize::new(0),
            session: OnceLock::new(),
            hijacks: hijacks::Words::default(),
            snapshots: OnceLock::new(),
        }
    }

    pub(crate) fn events(&self) -> &'static Events {
        &self.agent.events
    }

    pub(crate) fn names(&self) -> &NameCache {
        &self.names
    }

    pub(crate) fn exceptions(&self) -> &ExceptionFacts {
        &self.exceptions
    }

    pub(crate) fn collector(&self) -> &Collector {
        &self.collector
    }

    /// Whether events of this provider are the runtime's own.
    pub(crate) fn is_runtime_provider<'rt>(
        &self,
        cx: &Cx<'rt, Callback>,
        provider: EventPipeProviderId<'rt>,
    ) -> bool {
        let known = self.provider.load(Ordering::Relaxed);
        if known != 0 {
            return known == provider.raw();
        }
        let is_ours = cx
            .info()
            .event_pipe_get_provider_info(cx, provider)
            .is_ok_and(|name| event_pipe::is_runtime(&name));
        if is_ours {
            self.provider.store(provider.raw(), Ordering::Relaxed);
        }
        is_ours
    }

    /// The proof that stacks of this CLR may be walked by `DoStackSnapshot`, where the walker that
    /// was asked for needs it.
    pub(crate) fn snapshots(&self) -> Option<&StackSnapshots> {
        self.snapshots.get()
    }

    /// See [`Threads::own_hijacks`](crate::threads::Threads::own_hijacks).
    pub(crate) fn own_hijacks(&self) -> hijacks::Places {
        self.agent.threads.own_hijacks()
    }

    pub(crate) fn index(&self) -> u8 {
        self.index
    }

    /// Asks for the events that need more than a bit in the event mask, and tells the recording
    /// where events come from.
    pub(super) fn begin_events<'rt>(
        &self,
        cx: &mut Cx<'rt, Startup>,
        wanted: events::Setup,
        version: &str,
    ) {
        let events = self.events();
        events.resume();
        for news in wanted.news {
            events.tell(news);
        }
        if let Some(keywords) = wanted.session {
            match event_pipe::start(cx, keywords) {
                Ok(session) => {
                    let _only = self.session.set(session);
                }
                Err(error) => events.tell(EventNews::Note(format!(
                    "no allocation and contention samples of .NET {version}: it let nobody listen \
                     to its events ({error})"
                ))),
            }
        }
    }

    /// The recording is over and the program goes on: no more callbacks for events. Agent thread
    /// only. What cannot be taken back (the slow allocation path of .NET Core 3.1) stays.
    pub(crate) fn end_events(&self, cx: &mut Cx<'_, AgentThread>) {
        let info = cx.info();
        if let Ok((low, high)) = info.get_event_mask2(cx) {
            let events_low = EventMaskLow::MONITOR_EXCEPTIONS
                | EventMaskLow::MONITOR_CLASS_LOADS
                | EventMaskLow::MONITOR_SUSPENDS
                | EventMaskLow::MONITOR_OBJECT_ALLOCATED;
            let events_high = EventMaskHigh::BASIC_GC
                | EventMaskHigh::MONITOR_EVENT_PIPE
                | EventMaskHigh::MONITOR_LARGEOBJECT_ALLOCATED;
            if low.intersects(events_low) || high.intersects(events_high) {
                // A runtime that refuses goes on calling, and nothing comes of it.
                let _refused = info.set_event_mask2(cx, low - events_low, high - events_high);
            }
        }
        if let Some(session) = self.session.get() {
            let _ended = info.event_pipe_stop_session(cx, *session);
        }
    }
}
