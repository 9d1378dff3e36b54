//! EventPipe sessions of the fake runtime, which deliver no events.
//!
//! Modelled on `EventPipeStartSession` and `ep_rt_thread_setup`: the call registers the calling
//! thread with the runtime.

use std::sync::Arc;

use corprof::sys::{CorPrfEventpipeProviderConfig, EventPipeSessionID, Hresult};

use crate::FakeClr;
use crate::state::Shared;
use crate::state::rejit::list;

impl Shared {
    pub(crate) fn start_session(
        self: &Arc<Self>,
        count: u32,
        providers: *const CorPrfEventpipeProviderConfig,
    ) -> Result<EventPipeSessionID, Hresult> {
        // SAFETY: by the API contract `providers` has `count` elements.
        let providers = unsafe { list(providers, count) };
        let [provider] = &*providers else {
            return Err(Hresult::E_NOTIMPL);
        };
        let wanted = (provider.keywords, provider.logging_level);
        self.note([wanted.0, u64::from(wanted.1)]);
        self.adopt(false);
        let sessions = &mut self.lock().event_sessions;
        let number = sessions.last_key_value().map_or(1, |(last, _)| last + 1);
        sessions.insert(number, wanted);
        Ok(number)
    }

    pub(crate) fn stop_session(
        self: &Arc<Self>,
        session: EventPipeSessionID,
    ) -> Result<(), Hresult> {
        self.adopt(false);
        if self.lock().event_sessions.remove(&session).is_none() {
            self.crash("EventPipeStopSession was given a session that is over");
            return Err(Hresult::E_INVALIDARG);
        }
        Ok(())
    }
}

impl FakeClr {
    /// Keywords and level of the active EventPipe sessions.
    pub fn event_sessions(&self) -> Vec<(u64, u32)> {
        let state = self.shared.lock();
        state.event_sessions.values().copied().collect()
    }
}
