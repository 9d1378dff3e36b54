//! Calls about the runtime as a whole: event masks, version, environment, detach.

use super::{call, read_text, wide};
use crate::context::{Context, Cx, MayTriggerGc, Synchronous};
use crate::runtime::{Info, Result};
use crate::sys::{CorPrfRuntimeType, EventMaskHigh, EventMaskLow, Hresult};

/// Result of `GetRuntimeInformation`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuntimeInformation {
    /// Number of the runtime in its own events.
    pub clr_instance_id: u16,
    /// Family of runtimes.
    pub runtime_type: CorPrfRuntimeType,
    /// Major version. CoreCLR 3.1 returns 4, as .NET Framework does: use `version`.
    pub major: u16,
    /// Minor version.
    pub minor: u16,
    /// Build number.
    pub build: u16,
    /// Revision.
    pub qfe: u16,
    /// Version as text.
    pub version: String,
}

impl<'rt> Info<'rt> {
    /// The current event masks (`GetEventMask2`, asynchronous).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_event_mask2<C: Context>(
        self,
        _: &Cx<'rt, C>,
    ) -> Result<(EventMaskLow, EventMaskHigh)> {
        let (mut low, mut high) = (0, 0);
        call!(self, get_event_mask2(&mut low, &mut high)).ok()?;
        Ok((
            EventMaskLow::from_bits_retain(low),
            EventMaskHigh::from_bits_retain(high),
        ))
    }

    /// Sets the event masks (`SetEventMask2`, asynchronous).
    ///
    /// # Errors
    /// `E_FAIL` for a change of an immutable flag after `Initialize`,
    /// `CORPROF_E_UNSUPPORTED_FOR_ATTACHING_PROFILER` for a flag that an attached profiler may not
    /// set.
    pub fn set_event_mask2<C: Context>(
        self,
        _: &Cx<'rt, C>,
        low: EventMaskLow,
        high: EventMaskHigh,
    ) -> Result<()> {
        call!(self, set_event_mask2(low.bits(), high.bits())).ok()
    }

    /// Identity of the runtime (`GetRuntimeInformation`, synchronous).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_runtime_information<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
    ) -> Result<RuntimeInformation> {
        let mut found = RuntimeInformation {
            clr_instance_id: 0,
            runtime_type: CorPrfRuntimeType(0),
            major: 0,
            minor: 0,
            build: 0,
            qfe: 0,
            version: String::new(),
        };
        // 3.1 returns ERROR_INSUFFICIENT_BUFFER for a text buffer of length 0, so the text is read
        // with the rest.
        found.version = read_text(|buffer, capacity, length| {
            Ok(call!(
                self,
                get_runtime_information(
                    &mut found.clr_instance_id,
                    &mut found.runtime_type,
                    &mut found.major,
                    &mut found.minor,
                    &mut found.build,
                    &mut found.qfe,
                    capacity,
                    length,
                    buffer,
                )
            ))
        })?;
        Ok(found)
    }

    /// Requests the profiler's detach (`RequestProfilerDetach`, synchronous, may trigger a GC). The
    /// runtime calls [`crate::Callbacks::profiler_detach_succeeded`] when it is done.
    ///
    /// A detach is impossible once the profiler has set a flag of `IMMUTABLE`, a hook or IL, or
    /// enabled ReJIT ([`crate::enable_rejit`]), even if the flag was cleared again.
    ///
    /// Stop the profiler's threads and signal handlers first: the runtime unloads the library, and
    /// waits only for its own callbacks.
    ///
    /// # Errors
    /// `CORPROF_E_IMMUTABLE_FLAGS_SET`, `CORPROF_E_IRREVERSIBLE_INSTRUMENTATION_PRESENT`.
    pub fn request_profiler_detach<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        expected: core::time::Duration,
    ) -> Result<()> {
        let milliseconds = u32::try_from(expected.as_millis()).unwrap_or(u32::MAX);
        call!(self, request_profiler_detach(milliseconds)).ok()
    }

    /// A variable of the runtime's copy of the environment (`GetEnvironmentVariable`); `None` if it
    /// is not set.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_environment_variable<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        name: &str,
    ) -> Result<Option<String>> {
        /// `HRESULT_FROM_WIN32(ERROR_ENVVAR_NOT_FOUND)`.
        const NOT_FOUND: Hresult = Hresult::from_bits(0x8007_00cb);
        let name = wide(name);
        let value = read_text(|buffer, capacity, length| {
            Ok(call!(
                self,
                get_environment_variable(name.as_ptr(), capacity, length, buffer)
            ))
        });
        match value {
            Ok(value) => Ok(Some(value)),
            Err(NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets, or with `None` removes, a variable of the runtime's copy of the environment
    /// (`SetEnvironmentVariable`). On Linux `getenv` does not see it.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn set_environment_variable<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        name: &str,
        value: Option<&str>,
    ) -> Result<()> {
        let name = wide(name);
        let value = value.map(wide);
        let value = value
            .as_ref()
            .map_or(core::ptr::null(), |value| value.as_ptr());
        call!(self, set_environment_variable(name.as_ptr(), value)).ok()
    }
}
