//! EventPipe session of the profiler: receives the runtime's own events (.NET 5 on).
//!
//! Uses `ICorProfilerInfo12`. The runtime calls back on the thread that raises an event, so its
//! stack can be walked. Output: decoded events, passed to `alloc`, `exception_event` and
//! `contention`. Invariant: only needed fields are read, and the runtime is not called, as
//! allocation events arrive inside the allocator.

use std::sync::Mutex;

use corprof::context::{Callback, MayTriggerGc};
use corprof::info::{EventPipeProviderConfig, EventPipeSession};
use corprof::{Cx, EventPipeEvent};
use recording::Event;

use super::alloc::{self, AllocTick, Allocated};
use super::exception_event::{self, ThrownException};
use super::{Events, Origin, contention, lock};

const PROVIDER: &str = "Microsoft-Windows-DotNETRuntime";

// Numbers and keywords: src/coreclr/vm/ClrEtwAll.man.
const ALLOCATION_TICK: u32 = 10;
const EXCEPTION_THROWN: u32 = 80;
const CONTENTION_STOP: u32 = 91;
const EXCEPTION_CATCH_START: u32 = 250;
const EXCEPTION_CATCH_STOP: u32 = 251;
const EXCEPTION_FILTER_START: u32 = 254;
const EXCEPTION_FILTER_STOP: u32 = 255;
const ALLOCATION_SAMPLED: u32 = 303;
pub(super) const KEYWORD_GC: u64 = 0x1;
pub(super) const KEYWORD_CONTENTION: u64 = 0x4000;
pub(super) const KEYWORD_EXCEPTION: u64 = 0x8000;
pub(super) const KEYWORD_ALLOCATION_SAMPLING: u64 = 0x800_0000_0000;
const LEVEL_CRITICAL: u32 = 1;
pub(super) const LEVEL_INFORMATIONAL: u32 = 4;
pub(super) const LEVEL_VERBOSE: u32 = 5;

/// A session with its keywords and level. Calls register the calling thread with the runtime.
#[derive(Debug, Default)]
pub(super) struct EventListener(Mutex<Option<ListenedTo>>);

#[derive(Debug)]
struct ListenedTo {
    /// Keywords and level.
    to: (u64, u32),
    /// `None` while it is paused.
    session: Option<EventPipeSession>,
}

impl EventListener {
    /// Returns the keywords and level of the session, unless it is paused.
    pub(super) fn now(&self) -> Option<(u64, u32)> {
        let asked = lock(&self.0);
        let asked = asked.as_ref()?;
        asked.session.as_ref().map(|_| asked.to)
    }

    /// Replaces the session by one with this keywords and level.
    ///
    /// # Errors
    /// The runtime's error: it reports no events then.
    pub(super) fn listen<'rt, C: MayTriggerGc>(
        &self,
        cx: &mut Cx<'rt, C>,
        to: Option<(u64, u32)>,
    ) -> corprof::Result<()> {
        self.pause(cx);
        let before = lock(&self.0).take();
        let samples = |(keywords, _)| keywords & KEYWORD_ALLOCATION_SAMPLING != 0;
        if before.is_some_and(|before| samples(before.to)) && !to.is_some_and(samples) {
            restore_ticks(cx);
        }
        if let Some(to) = to {
            let session = Some(start(cx, to)?);
            *lock(&self.0) = Some(ListenedTo { to, session });
        }
        Ok(())
    }

    /// Ends the session, and keeps its keywords and level for [`EventListener::resume`].
    pub(super) fn pause<'rt, C: MayTriggerGc>(&self, cx: &mut Cx<'rt, C>) {
        let session = lock(&self.0)
            .as_mut()
            .and_then(|asked| asked.session.take());
        if let Some(session) = session {
            let _ended = cx.info().event_pipe_stop_session(cx, session);
        }
    }

    /// Starts a paused session again. Returns whether that succeeded.
    pub(super) fn resume<'rt, C: MayTriggerGc>(&self, cx: &mut Cx<'rt, C>) -> bool {
        let to = lock(&self.0).as_ref().map(|asked| asked.to);
        let Some(Ok(session)) = to.map(|to| start(cx, to)) else {
            return false;
        };
        if let Some(asked) = lock(&self.0).as_mut() {
            asked.session = Some(session);
        }
        true
    }
}

/// Enables AllocationTick in the runtime again. While a session has the AllocationSampled keyword,
/// .NET 10 and 11 report AllocationTick to no session. The end of that session does not enable it
/// again, but the start of a session with the AllocationTick keyword does. The session here has a
/// level at which nothing is reported.
fn restore_ticks<'rt, C: MayTriggerGc>(cx: &mut Cx<'rt, C>) {
    if let Ok(session) = start(cx, (KEYWORD_GC, LEVEL_CRITICAL)) {
        let _ended = cx.info().event_pipe_stop_session(cx, session);
    }
}

/// Starts a session.
///
/// # Errors
/// The runtime's error.
fn start<'rt, C: MayTriggerGc>(
    cx: &mut Cx<'rt, C>,
    (keywords, level): (u64, u32),
) -> corprof::Result<EventPipeSession> {
    cx.info().event_pipe_start_session(
        cx,
        &[EventPipeProviderConfig {
            name: PROVIDER,
            keywords,
            level,
        }],
    )
}

/// Handles `EventPipeEventDelivered`.
pub(crate) fn delivered<'rt>(
    origin: Origin<'_>,
    cx: &mut Cx<'rt, Callback>,
    event: &EventPipeEvent<'_, 'rt>,
) {
    let events = origin.events;
    if !events.is_on() || !origin.own.is_runtime_provider(cx, event.provider) {
        return;
    }
    let mut data = EventFields(event.data);
    match event.id {
        ALLOCATION_TICK if wants_allocations(events) => {
            if let Some((tick, allocated)) = read_allocation_tick(&mut data, event.version) {
                alloc::tick(origin, cx, tick, &allocated);
            }
        }
        ALLOCATION_SAMPLED if wants_allocations(events) => {
            if let Some(allocated) = read_allocation_sampled(&mut data) {
                alloc::sampled(origin, cx, &allocated);
            }
        }
        CONTENTION_STOP if events.wants(Event::Contention) => {
            if let Some((managed, waited_ns)) = read_contention_stop(&mut data) {
                contention::waited(origin, cx, managed, waited_ns);
            }
        }
        EXCEPTION_THROWN if events.wants(Event::Exception) => {
            if let Some(thrown) = read_exception_thrown(&mut data) {
                exception_event::thrown(origin, cx, thrown);
            }
        }
        EXCEPTION_CATCH_START if events.wants(Event::Exception) => {
            if let Some(function) = read_method(&mut data) {
                exception_event::catch_begins(origin, cx, function);
            }
        }
        EXCEPTION_CATCH_STOP if events.wants(Event::Exception) => exception_event::catch_ends(),
        EXCEPTION_FILTER_START if events.wants(Event::Exception) => {
            exception_event::filter_begins();
        }
        EXCEPTION_FILTER_STOP if events.wants(Event::Exception) => exception_event::filter_ends(),
        _ => {}
    }
}

fn wants_allocations(events: &Events) -> bool {
    events.wants(Event::Alloc) || events.wants(Event::Live)
}

/// Whether a provider of this name is the runtime's.
pub(crate) fn is_runtime(name: &str) -> bool {
    name == PROVIDER
}

/// GCAllocationTick_V3 and later: amount u32, kind (heap) u32, instance u16, amount u64, type
/// pointer, type name, heap u32, address pointer; from version 4 the object's size u64.
fn read_allocation_tick<'a>(
    data: &mut EventFields<'a>,
    version: u32,
) -> Option<(AllocTick, Allocated<'a>)> {
    data.skip(4)?;
    let heap = data.u32()?;
    data.skip(2)?;
    let amount = data.u64()?;
    let class = data.u64()? as usize;
    let type_name = data.wide()?;
    data.skip(4)?;
    let address = data.u64()? as usize;
    let size = if version >= 4 {
        Some(data.u64()?)
    } else {
        None
    };
    let allocated = Allocated {
        class,
        type_name,
        size,
        address,
    };
    Some((AllocTick { heap, amount }, allocated))
}

/// AllocationSampled: kind u32, instance u16, type pointer, type name, address pointer, size u64,
/// offset of the sampled byte u64.
fn read_allocation_sampled<'a>(data: &mut EventFields<'a>) -> Option<Allocated<'a>> {
    data.skip(4 + 2)?;
    let class = data.u64()? as usize;
    let type_name = data.wide()?;
    let address = data.u64()? as usize;
    Some(Allocated {
        class,
        type_name,
        size: Some(data.u64()?),
        address,
    })
}

/// ContentionStop_V1: flags u8 (0 managed, 1 native), instance u16, nanoseconds f64.
fn read_contention_stop(data: &mut EventFields<'_>) -> Option<(bool, u64)> {
    let flags = data.u8()?;
    data.skip(2)?;
    let waited = f64::from_bits(data.u64()?);
    // A saturating cast: NaN becomes 0.
    Some((flags == 0, waited as u64))
}

/// ExceptionThrown_V1: type name, message (`NULL` if there is none), address, HRESULT, flags,
/// instance.
fn read_exception_thrown(data: &mut EventFields<'_>) -> Option<ThrownException> {
    let type_name = data.text()?.into();
    let message = data.text()?;
    Some(ThrownException {
        type_name,
        message: if message == "NULL" {
            String::new()
        } else {
            message
        },
    })
}

/// ExceptionCatchStart: entry u64, method pointer, the method's name, instance u16. The pointer is
/// the method's FunctionID (`MethodDesc`).
fn read_method(data: &mut EventFields<'_>) -> Option<usize> {
    data.skip(8)?;
    usize::try_from(data.u64()?).ok()
}

/// The fields of an event's data: consecutive, little-endian, unaligned.
struct EventFields<'a>(&'a [u8]);

/// A UTF-16 string in an event's data, undecoded. Most events are thinned out, and for the others
/// the runtime has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wide<'a>(&'a [u8]);

impl Wide<'_> {
    pub(super) fn to_text(self) -> String {
        let pairs = self.0.chunks_exact(2);
        let units: Vec<u16> = pairs
            .filter_map(|unit| Some(u16::from_le_bytes(*unit.first_chunk()?)))
            .collect();
        String::from_utf16_lossy(&units)
    }
}

impl<'a> EventFields<'a> {
    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (value, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*value)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a UTF-16 string up to a NUL.
    fn wide(&mut self) -> Option<Wide<'a>> {
        let units = self.0.chunks_exact(2);
        let length = 2 * units.take_while(|unit| *unit != [0, 0]).count();
        let text = self.0.get(..length)?;
        self.skip(length + 2)?;
        Some(Wide(text))
    }

    fn text(&mut self) -> Option<String> {
        self.wide().map(Wide::to_text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(text: &str) -> Vec<u8> {
        text.encode_utf16()
            .chain([0])
            .flat_map(u16::to_le_bytes)
            .collect()
    }

    /// Returns the same without its terminator.
    fn named(text: &str) -> Vec<u8> {
        let text = wide(text);
        text[..text.len() - 2].to_vec()
    }

    fn tick(size: Option<u64>) -> Vec<u8> {
        let mut data = vec![0xff; 4];
        data.extend(2u32.to_le_bytes());
        data.extend([0xff; 2]);
        data.extend(107_000u64.to_le_bytes());
        data.extend(0x1234u64.to_le_bytes());
        data.extend(wide("System.Byte[]"));
        data.extend([0xff; 4]);
        data.extend(0x5678u64.to_le_bytes());
        data.extend(size.into_iter().flat_map(u64::to_le_bytes));
        data
    }

    #[test]
    fn an_allocation_tick_of_each_version() {
        for (version, size) in [(3, None), (4, Some(1024))] {
            let data = tick(size);
            assert_eq!(
                read_allocation_tick(&mut EventFields(&data), version),
                Some((
                    AllocTick {
                        heap: 2,
                        amount: 107_000,
                    },
                    Allocated {
                        class: 0x1234,
                        type_name: Wide(&named("System.Byte[]")),
                        size,
                        address: 0x5678,
                    }
                ))
            );
        }
    }

    #[test]
    fn data_cut_short_is_no_event() {
        let data = tick(Some(24));
        for length in 0..data.len() {
            assert_eq!(
                read_allocation_tick(&mut EventFields(&data[..length]), 4),
                None,
                "{length}"
            );
        }
    }

    #[test]
    fn the_other_events() {
        let mut data = vec![0xff; 6];
        data.extend(0x1234u64.to_le_bytes());
        data.extend(wide("A.B`1[C]"));
        data.extend(0x5678u64.to_le_bytes());
        data.extend(48u64.to_le_bytes());
        data.extend([0xff; 8]);
        assert_eq!(
            read_allocation_sampled(&mut EventFields(&data)),
            Some(Allocated {
                class: 0x1234,
                type_name: Wide(&named("A.B`1[C]")),
                size: Some(48),
                address: 0x5678,
            })
        );
        for (message, expected) in [("a message", "a message"), ("NULL", "")] {
            let mut data = wide("A.B+C");
            data.extend(wide(message));
            data.extend([0xff; 8 + 4 + 2 + 2]);
            assert_eq!(
                read_exception_thrown(&mut EventFields(&data)),
                Some(ThrownException {
                    type_name: "A.B+C".into(),
                    message: expected.into(),
                })
            );
        }
        let mut data = vec![0xff; 8];
        data.extend(0x1234u64.to_le_bytes());
        data.extend(wide("void A.B()"));
        assert_eq!(read_method(&mut EventFields(&data)), Some(0x1234));
        let mut data = vec![0, 9, 0];
        data.extend(1234.5f64.to_le_bytes());
        assert_eq!(
            read_contention_stop(&mut EventFields(&data)),
            Some((true, 1234))
        );
    }
}
