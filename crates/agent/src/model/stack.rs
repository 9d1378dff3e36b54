//! A stack as a walker leaves it: addresses with marks, before they are resolved to names.

use std::borrow::Cow;

use recording::{Event, WalkEnd};

/// A word of a stack stands for a whole run of unmanaged frames, of which a walker knows no more;
/// beside [`stackwalk::EXACT`] and its kin. The address is where the run begins, or 0.
pub const NATIVE_RUN: u64 = 1 << 60;

/// How a walk ended, from the word that the walk function gave the sampler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EndCode(pub u8);

impl EndCode {
    const ROOT: u8 = 0;
    const TRUNCATED: u8 = 1;
    const BROKEN: u8 = 2;

    /// The stack is whole.
    pub const ROOT_END: EndCode = EndCode(Self::ROOT);
    /// It broke at code of a library that the code map did not hold yet. Only the recorder can
    /// tell, by which time it does.
    pub const NOT_READ_YET: EndCode = EndCode(u8::MAX);
    /// It was cut.
    pub const TRUNCATED_END: EndCode = EndCode(Self::TRUNCATED);

    /// For the handler.
    pub fn of(end: stackwalk::End) -> u8 {
        match end {
            stackwalk::End::Root => Self::ROOT,
            stackwalk::End::Truncated => Self::TRUNCATED,
            stackwalk::End::Broken(reason) => Self::BROKEN + reason as u8,
        }
    }

    /// It broke at code that the code map did not hold.
    pub fn is_unknown_code(self) -> bool {
        self.0 == Self::of(stackwalk::End::Broken(stackwalk::Reason::UnknownCode))
    }

    /// As the recording has it.
    pub fn end(self) -> WalkEnd {
        match self.0 {
            Self::ROOT => WalkEnd::Root,
            Self::TRUNCATED => WalkEnd::Truncated,
            _ => WalkEnd::Broken,
        }
    }

    /// The reason, if broken.
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

    /// Returns the frame that stands in the place of the frames that are missing.
    pub fn pseudo(self) -> Option<Cow<'static, str>> {
        match self.0 {
            Self::ROOT => None,
            Self::TRUNCATED => Some(Cow::Borrowed("truncated")),
            _ => Some(Cow::Owned(format!("broken: {}", self.reason()?))),
        }
    }
}

/// A sample whose stack has been walked and not been named.
#[derive(Clone, Copy, Debug)]
pub struct WalkedStack<'a> {
    /// Number of the thread in the process.
    pub thread: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    /// In the event's unit.
    pub value: u64,
    /// The event that it was taken for.
    pub event: Event,
    /// How the walk ended.
    pub end: EndCode,
    /// Words of the walk, leaf first.
    pub frames: &'a [u64],
    /// The subject of the event, written before.
    pub detail: Option<u32>,
}
