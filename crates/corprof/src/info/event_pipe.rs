//! EventPipe sessions of the profiler's own, in the process (`ICorProfilerInfo12`, .NET 5 on).

use core::ptr;

use super::call;
use crate::context::{Cx, MayTriggerGc};
use crate::runtime::{Info, Result};
use crate::sys::{CorPrfEventpipeProviderConfig, EventPipeSessionID};

/// A provider that a session listens to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventPipeProviderConfig<'a> {
    /// Its name, such as `Microsoft-Windows-DotNETRuntime`.
    pub name: &'a str,
    /// Which of its events, by keyword.
    pub keywords: u64,
    /// How detailed: 1 critical to 5 verbose.
    pub level: u32,
}

impl<'rt> Info<'rt> {
    /// `EventPipeStartSession`: has the events of these providers delivered to
    /// [`crate::Callbacks::event_pipe_event_delivered`], on the thread that raises them, as soon as
    /// the mask has [`crate::EventMaskHigh::MONITOR_EVENT_PIPE`].
    ///
    /// # Errors
    /// What the runtime answers; `E_NOINTERFACE` before .NET 5.
    pub fn event_pipe_start_session<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        providers: &[EventPipeProviderConfig<'_>],
    ) -> Result<EventPipeSessionID> {
        let names: Vec<Vec<u16>> = providers
            .iter()
            .map(|provider| provider.name.encode_utf16().chain([0]).collect())
            .collect();
        let configs: Vec<CorPrfEventpipeProviderConfig> = providers
            .iter()
            .zip(&names)
            .map(|(provider, name)| CorPrfEventpipeProviderConfig {
                provider_name: name.as_ptr(),
                keywords: provider.keywords,
                logging_level: provider.level,
                filter_data: ptr::null(),
            })
            .collect();
        let mut session = EventPipeSessionID::default();
        call!(
            self,
            eventpipe_start_session(
                u32::try_from(configs.len()).unwrap_or(0),
                configs.as_ptr(),
                0,
                &mut session
            )
        )
        .ok()?;
        Ok(session)
    }
}
