//! EventPipe calls: in-process sessions, and providers of the profiler's own events.
//!
//! They belong to `ICorProfilerInfo12` (.NET 5 on).

use core::ptr;

use super::{call, read_text, wide};
use crate::context::{Cx, MayTriggerGc, Synchronous};
use crate::id::{EventPipeEventId, EventPipeProviderId, Id, RuntimeIndex};
use crate::runtime::{Info, Result};
use crate::sys::{
    CorPrfEventData, CorPrfEventpipeParamDesc, CorPrfEventpipeProviderConfig, EventPipeSessionID,
    Guid, Hresult,
};

/// A provider whose events a session receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventPipeProviderConfig<'a> {
    /// Name, such as `Microsoft-Windows-DotNETRuntime`.
    pub name: &'a str,
    /// Keywords that select events.
    pub keywords: u64,
    /// Level, from 1 (critical) to 5 (verbose).
    pub level: u32,
}

/// A session of [`Info::event_pipe_start_session`]. It can be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventPipeSession {
    runtime: RuntimeIndex,
    raw: EventPipeSessionID,
}

/// An event that the profiler defines.
#[derive(Clone, Copy, Debug)]
pub struct EventPipeEventDefinition<'a> {
    /// Name.
    pub name: &'a str,
    /// Number in the provider.
    pub id: u32,
    /// Keywords.
    pub keywords: u64,
    /// Version of its parameters.
    pub version: u32,
    /// Level, from 1 (critical) to 5 (verbose).
    pub level: u32,
    /// Opcode.
    pub opcode: u8,
    /// Whether the runtime adds the stack.
    pub with_stack: bool,
    /// Name and type (`COR_PRF_EVENTPIPE_PARAM_TYPE`) of each parameter.
    pub parameters: &'a [(&'a str, u32)],
}

impl<'rt> Info<'rt> {
    /// Starts a session (`EventPipeStartSession`, may trigger a GC). The runtime then passes the
    /// events of these providers to [`crate::Callbacks::event_pipe_event_delivered`], on the thread
    /// that raises them, if the mask has [`crate::EventMaskHigh::MONITOR_EVENT_PIPE`].
    ///
    /// The calling thread gets a `Thread` object (`ep_rt_thread_setup`), and is no longer treated
    /// as native: outside of callbacks the runtime refuses its synchronous calls from then on. A
    /// later look-up of code by address ([`Info::get_function_from_ip`]) on this thread can
    /// deadlock. The look-up waits for a collection while it holds the reader lock of the code
    /// ranges, for which the collector waits (`ExecutionManager::DeleteRange`). So start and stop
    /// sessions while the profiler is initialised, or on a thread used only for that.
    ///
    /// # Errors
    /// The failure that the runtime reports; `E_NOINTERFACE` before .NET 5.
    pub fn event_pipe_start_session<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        providers: &[EventPipeProviderConfig<'_>],
    ) -> Result<EventPipeSession> {
        let names: Vec<Vec<u16>> = providers
            .iter()
            .map(|provider| wide(provider.name))
            .collect();
        let configs: Vec<CorPrfEventpipeProviderConfig> = providers
            .iter()
            .zip(&names)
            .map(|(provider, name)| config(provider, name))
            .collect();
        let length = u32::try_from(configs.len()).map_err(|_| Hresult::E_INVALIDARG)?;
        let mut raw = EventPipeSessionID::default();
        call!(
            self,
            event_pipe_start_session(length, configs.as_ptr(), 0, &mut raw)
        )
        .ok()?;
        Ok(EventPipeSession {
            runtime: self.index(),
            raw,
        })
    }

    /// Adds a provider to a session (`EventPipeAddProviderToSession`, may trigger a GC).
    ///
    /// # Errors
    /// `E_INVALIDARG` for a session of another runtime; otherwise the failure that the runtime
    /// reports.
    pub fn event_pipe_add_provider_to_session<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        session: EventPipeSession,
        provider: EventPipeProviderConfig<'_>,
    ) -> Result<()> {
        if session.runtime != self.index() {
            return Err(Hresult::E_INVALIDARG);
        }
        let name = wide(provider.name);
        let config = config(&provider, &name);
        call!(
            self,
            event_pipe_add_provider_to_session(session.raw, config)
        )
        .ok()
    }

    /// Stops a session (`EventPipeStopSession`, may trigger a GC). It has the same effect on the
    /// calling thread as [`Info::event_pipe_start_session`].
    ///
    /// # Errors
    /// `E_INVALIDARG` for a session of another runtime; otherwise the failure that the runtime
    /// reports.
    pub fn event_pipe_stop_session<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        session: EventPipeSession,
    ) -> Result<()> {
        if session.runtime != self.index() {
            return Err(Hresult::E_INVALIDARG);
        }
        call!(self, event_pipe_stop_session(session.raw)).ok()
    }

    /// Creates a provider for the profiler's events (`EventPipeCreateProvider`, may trigger a GC).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn event_pipe_create_provider<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        name: &str,
    ) -> Result<EventPipeProviderId<'rt>> {
        let name = wide(name);
        let mut provider = 0;
        call!(
            self,
            event_pipe_create_provider(name.as_ptr(), &mut provider)
        )
        .ok()?;
        Id::new(provider).ok_or(Hresult::E_FAIL)
    }

    /// The name of a provider (`EventPipeGetProviderInfo`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn event_pipe_get_provider_info<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        provider: EventPipeProviderId<'rt>,
    ) -> Result<String> {
        read_text(|buffer, capacity, length| {
            Ok(call!(
                self,
                event_pipe_get_provider_info(provider.raw(), capacity, length, buffer)
            ))
        })
    }

    /// Declares an event (`EventPipeDefineEvent`, may trigger a GC).
    ///
    /// # Errors
    /// `E_INVALIDARG` for a parameter that is an object.
    pub fn event_pipe_define_event<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        provider: EventPipeProviderId<'rt>,
        event: &EventPipeEventDefinition<'_>,
    ) -> Result<EventPipeEventId<'rt>> {
        let event_name = wide(event.name);
        let names: Vec<Vec<u16>> = event
            .parameters
            .iter()
            .map(|(name, _)| wide(name))
            .collect();
        let parameters: Vec<CorPrfEventpipeParamDesc> = event
            .parameters
            .iter()
            .zip(&names)
            .map(|((_, kind), name)| CorPrfEventpipeParamDesc {
                kind: *kind,
                element_kind: 0,
                name: name.as_ptr(),
            })
            .collect();
        let length = u32::try_from(parameters.len()).map_err(|_| Hresult::E_INVALIDARG)?;
        let mut id = 0;
        call!(
            self,
            event_pipe_define_event(
                provider.raw(),
                event_name.as_ptr(),
                event.id,
                event.keywords,
                event.version,
                event.level,
                event.opcode,
                event.with_stack.into(),
                length,
                parameters.as_ptr(),
                &mut id,
            )
        )
        .ok()?;
        Id::new(id).ok_or(Hresult::E_FAIL)
    }

    /// Raises an event, one slice for each parameter (`EventPipeWriteEvent`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn event_pipe_write_event<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        event: EventPipeEventId<'rt>,
        data: &[&[u8]],
        activity: Option<&Guid>,
    ) -> Result<()> {
        let runs: Vec<CorPrfEventData> = data
            .iter()
            .map(|run| CorPrfEventData {
                pointer: run.as_ptr().expose_provenance() as u64,
                size: u32::try_from(run.len()).unwrap_or(u32::MAX),
                reserved: 0,
            })
            .collect();
        let length = u32::try_from(runs.len()).map_err(|_| Hresult::E_INVALIDARG)?;
        call!(
            self,
            event_pipe_write_event(
                event.raw(),
                length,
                runs.as_ptr(),
                activity.map_or(ptr::null(), |activity| activity),
                ptr::null(),
            )
        )
        .ok()
    }
}

fn config(provider: &EventPipeProviderConfig<'_>, name: &[u16]) -> CorPrfEventpipeProviderConfig {
    CorPrfEventpipeProviderConfig {
        provider_name: name.as_ptr(),
        keywords: provider.keywords,
        logging_level: provider.level,
        filter_data: ptr::null(),
    }
}
