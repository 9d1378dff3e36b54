//! What a profiler sets up and asks about the runtime as a whole.

use super::{call, read_text};
use crate::context::{Context, Cx, Synchronous};
use crate::runtime::{Info, Result};
use crate::sys::{CorPrfRuntimeType, EventMaskHigh, EventMaskLow};

/// Answer of `GetRuntimeInformation`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuntimeInformation {
    /// Number that the runtime gives itself in its events.
    pub clr_instance_id: u16,
    /// Family of runtimes.
    pub runtime_type: CorPrfRuntimeType,
    /// Major version. CoreCLR 3.1 says 4 here (it counts as the desktop did): use `version`.
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
    /// The event masks in force (`GetEventMask2`, asynchronous).
    ///
    /// # Errors
    /// What the runtime answers.
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

    /// Which runtime this is (`GetRuntimeInformation`, synchronous).
    ///
    /// # Errors
    /// What the runtime answers.
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
        // 3.1 answers ERROR_INSUFFICIENT_BUFFER for a text buffer of length 0, so the text is asked
        // for with the rest.
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
}
