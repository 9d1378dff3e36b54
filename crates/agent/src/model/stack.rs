//! A walked stack before its addresses are resolved to names, and how its walk ended.

use std::borrow::Cow;

use recording::{Event, WalkEnd};

/// Mark of a word that represents a run of unmanaged frames of which the walker knows no more. It
/// differs from [`stackwalk::EXACT`] and its kin. The address is the start of the run, or 0.
pub const NATIVE_RUN: u64 = 1 << 60;

/// How a walk ended, from the walk function's result to the sampler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EndCode(pub u8);

impl EndCode {
    const ROOT: u8 = 0;
    const TRUNCATED: u8 = 1;
    const BROKEN: u8 = 2;

    /// The stack is complete.
    pub const ROOT_END: EndCode = EndCode(Self::ROOT);
    /// The walk broke at code of a library that was not in the code map yet. Set by the recorder,
    /// which knows the library by then.
    pub const NOT_READ_YET: EndCode = EndCode(u8::MAX);
    /// The stack was truncated.
    pub const TRUNCATED_END: EndCode = EndCode(Self::TRUNCATED);

    /// Returns the code of a walk's end. For the signal handler.
    pub fn of(end: stackwalk::End) -> u8 {
        match end {
            stackwalk::End::Root => Self::ROOT,
            stackwalk::End::Truncated => Self::TRUNCATED,
            stackwalk::End::Broken(reason) => Self::BROKEN + reason as u8,
        }
    }

    /// Whether the walk broke at code that was not in the code map.
    pub fn is_unknown_code(self) -> bool {
        self.0 == Self::of(stackwalk::End::Broken(stackwalk::Reason::UnknownCode))
    }

    /// Returns the end as recorded.
    pub fn end(self) -> WalkEnd {
        match self.0 {
            Self::ROOT => WalkEnd::Root,
            Self::TRUNCATED => WalkEnd::Truncated,
            _ => WalkEnd::Broken,
        }
    }

    /// Returns the reason, if the walk broke.
    pub fn reason(self) -> Option<&'static str> {
        let code = self.0.checked_sub(Self::BROKEN)?;
        if self == Self::NOT_READ_YET {
            return Some("library not read yet");
        }
        Some(
            stackwalk::Reason::ALL
                .iter()
                .find(|reason| **reason as u8 == code)
                .map_or("unknown reason", |reason| reason.name()),
        )
    }

    /// Returns the pseudo-frame that replaces the missing frames.
    pub fn pseudo(self) -> Option<Cow<'static, str>> {
        match self.0 {
            Self::ROOT => None,
            Self::TRUNCATED => Some(Cow::Borrowed("truncated")),
            _ => Some(Cow::Owned(format!("broken: {}", self.reason()?))),
        }
    }
}

/// A sample with a walked, unresolved stack.
#[derive(Clone, Copy, Debug)]
pub struct WalkedStack<'a> {
    /// Number of the thread in the process.
    pub thread: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    /// Weight in the event's unit.
    pub value: u64,
    /// The event for which it was taken.
    pub event: Event,
    /// How the walk ended.
    pub end: EndCode,
    /// Words of the walk, leaf first.
    pub frames: &'a [u64],
    /// Number of the event's detail, written before.
    pub detail: Option<u32>,
}
