//! Where in its IL each instruction of a body comes from: read beside the code or in its image, or
//! asked of the runtime.
//!
//! Reading is some twenty times faster, and asking leaves the tables of the runtime's debugger
//! behind in the program for good (`stackwalk::debug_info`). But the bytes are the runtime's own
//! affair. Invariant: they are believed only of a CLR whose answers they have equalled, many times
//! and again now and then, and never where the IL may have been changed.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use corprof::Cx;
use corprof::context::Synchronous;
use stackwalk::CodeMap;
use stackwalk::debug_info::{self, Format, Skipped};
use stackwalk::jit::{self, NoIlMap};

use super::{Clr, names};
use crate::model::IlMap;

/// How many maps are read with care, and held against what the runtime answers, before they are
/// read fast and alone.
const TO_TRUST: u32 = 32;
/// Of those that are read alone, one in so many is held against the answer.
const AGAIN: u32 = 256;
/// They have differed.
const NEVER: u32 = u32::MAX;

/// The trust in a CLR's way to write them.
#[derive(Debug, Default)]
pub(super) struct IlMapTrust {
    /// The runtime's major version, 0 where it is not known.
    major: AtomicU16,
    /// Maps of what was JITted that were as the runtime said, or [`NEVER`].
    read: AtomicU32,
    /// The same where they have more parts than most: something of the runtime's own before them,
    /// or six lengths.
    with_more: AtomicU32,
    /// The same of images, by the way in which they are written there.
    plain: AtomicU32,
    packed: AtomicU32,
    sized: AtomicU32,
}

impl IlMapTrust {
    fn of_jitted(&self, skipped: Skipped) -> &AtomicU32 {
        match skipped {
            Skipped::Nothing => &self.read,
            Skipped::Patchpoints | Skipped::Lengths => &self.with_more,
        }
    }

    fn of_images(&self, format: Format) -> &AtomicU32 {
        match format {
            Format::Plain | Format::Flagged => &self.plain,
            Format::Packed | Format::PackedPlain => &self.packed,
            Format::Sized => &self.sized,
        }
    }
}

impl Clr {
    /// The runtime's major version.
    pub(crate) fn set_major(&self, major: u16) {
        self.il_maps.major.store(major, Ordering::Relaxed);
    }

    /// The map of the body of a function that begins at `code_start`, of its file's IL; empty where
    /// there is none. The code must be there for good.
    pub(crate) fn il_map<C: Synchronous>(
        &self,
        cx: &Cx<'_, C>,
        function: usize,
        code_start: u64,
    ) -> IlMap {
        let never = self.il_maps.read.load(Ordering::Relaxed) == NEVER;
        if never || self.is_beside() || self.is_rewritten(code_start) {
            return self.queried_il_map(cx, code_start);
        }
        let (skipped, read) = match self.read_beside(function, code_start) {
            Ok((skipped, map)) => (skipped, Ok(map)),
            Err(error) => (Skipped::Nothing, Err(error)),
        };
        trusted(self.il_maps.of_jitted(skipped), read, || {
            Some(self.queried_il_map(cx, code_start))
        })
    }

    /// As the bytes beside the code have it, read fast where they are trusted. The code must be
    /// there for good.
    fn read_beside(&self, function: usize, code_start: u64) -> Result<(Skipped, IlMap), NoIlMap> {
        let is_trusted =
            |trust: &AtomicU32| (TO_TRUST..NEVER).contains(&trust.load(Ordering::Relaxed));
        let knows_more = is_trusted(&self.il_maps.with_more);
        if is_trusted(&self.il_maps.read) {
            let (format, id) = (self.format()?, function as u64);
            let mut map = Vec::new();
            // SAFETY: the caller says that the code is there for good; the maps of many bodies of
            // this runtime have been as it said, and of many with more parts where they are read.
            let read = unsafe {
                jit::il_map_of_known_header(code_start, id, format, knows_more, &mut map)
            };
            match read {
                // These, perhaps.
                Err(NoIlMap::Bytes(debug_info::Error::Unknown)) if !knows_more => {}
                read => return read.map(|skipped| (skipped, names::il_map_of(map))),
            }
        }
        self.read_il_map(function, code_start)
    }

    /// The map of the precompiled code of a method that begins at `code_start`; empty where there
    /// is none, or where the runtime must not be asked for it: it looks for it in the image, and
    /// dies of a file that was cut short.
    pub(crate) fn precompiled_il_map<C: Synchronous>(
        &self,
        cx: &Cx<'_, C>,
        map: &CodeMap,
        code_start: u64,
    ) -> IlMap {
        let ask = || {
            let is_cut_short = self.is_cut_short_at(map, code_start);
            (!is_cut_short).then(|| self.queried_il_map(cx, code_start))
        };
        match read_precompiled(map, code_start) {
            Ok((format, read)) if !self.is_beside() => {
                trusted(self.il_maps.of_images(format), Ok(read), ask)
            }
            _ => ask().unwrap_or_default(),
        }
    }

    /// As the bytes beside the code have it, read with care.
    ///
    /// # Errors
    /// They are not understood.
    pub fn read_il_map(
        &self,
        function: usize,
        code_start: u64,
    ) -> Result<(Skipped, IlMap), NoIlMap> {
        let (mut map, format) = (Vec::new(), self.format()?);
        // SAFETY: whoever asks says that the code is there for good; all is read by system calls.
        let skipped = unsafe { jit::il_map(code_start, function as u64, format, &mut map) }?;
        Ok((skipped, names::il_map_of(map)))
    }

    /// As the runtime says, in the IL of the file; empty where it says nothing.
    pub(crate) fn queried_il_map<C: Synchronous>(&self, cx: &Cx<'_, C>, code_start: u64) -> IlMap {
        let map = names::il_map(cx, code_start);
        map.map(|map| self.in_own_il(code_start, map))
            .unwrap_or_default()
    }

    /// As this runtime's version writes them.
    fn format(&self) -> Result<Format, NoIlMap> {
        let format = Format::of_major(self.il_maps.major.load(Ordering::Relaxed));
        format.ok_or(NoIlMap::Bytes(debug_info::Error::Unknown))
    }
}

/// Reads an image's map of the precompiled method that begins at `code_start`, and its format.
///
/// # Errors
/// It is not understood.
pub fn read_precompiled(
    map: &CodeMap,
    code_start: u64,
) -> Result<(Format, IlMap), debug_info::Error> {
    let mut entries = Vec::new();
    let format = map.r2r_il_map(code_start, &mut entries)?;
    Ok((format, names::il_map_of(entries)))
}

/// Returns the map that was read, where that is trusted, else the runtime's map, by `ask`; empty
/// where it must not be asked.
fn trusted(
    trust: &AtomicU32,
    read: Result<IlMap, NoIlMap>,
    ask: impl FnOnce() -> Option<IlMap>,
) -> IlMap {
    let order = Ordering::Relaxed;
    let known = trust.load(order);
    let need_not_ask = (TO_TRUST..NEVER).contains(&known) && !known.is_multiple_of(AGAIN);
    match read {
        Ok(map) if need_not_ask => {
            trust.store(next(known), order);
            map
        }
        read => {
            let asked = ask();
            if let Some(asked) = asked.as_ref().filter(|_| known != NEVER && !need_not_ask) {
                trust.store(trusted_after(known, &read, asked), order);
            }
            asked.unwrap_or_default()
        }
    }
}

/// How far a CLR is trusted, where it was so far, that has answered `asked` of a body of which was
/// `read`.
fn trusted_after(known: u32, read: &Result<IlMap, NoIlMap>, asked: &IlMap) -> u32 {
    match read {
        // An empty one, or one of a single place, proves nothing.
        Ok(read) if read == asked && (known >= TO_TRUST || read.len() > 1) => next(known),
        Ok(read) if read == asked => known,
        // More than is read, or what is never read.
        Err(NoIlMap::Bytes(debug_info::Error::Unknown | debug_info::Error::Truncated)) => {
            if known >= TO_TRUST {
                next(known)
            } else {
                known
            }
        }
        Ok(_) | Err(_) => NEVER,
    }
}

/// One more, and never so many that it means something else.
fn next(known: u32) -> u32 {
    if known >= NEVER - 1 {
        TO_TRUST
    } else {
        known + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stackwalk::jit::Mismatch;

    #[test]
    fn what_is_read_is_held_against_the_answer_until_it_is_trusted_and_then_now_and_again() {
        let trust = AtomicU32::new(0);
        let map: IlMap = vec![(0, 0), (8, 3)].into();
        let mut asked = 0;
        let mut one = |read: Result<IlMap, NoIlMap>, answer: Option<IlMap>| {
            let before = asked;
            let found = trusted(&trust, read, || {
                asked += 1;
                answer
            });
            (found, asked - before)
        };
        for _ in 0..TO_TRUST {
            assert_eq!(one(Ok(map.clone()), Some(map.clone())), (map.clone(), 1));
        }
        let other: IlMap = vec![(0, 7)].into();
        assert_eq!(one(Ok(map.clone()), Some(other.clone())), (map.clone(), 0));
        // A map that is not read is asked for, and is no reason for anything.
        let unread = || Err(NoIlMap::Bytes(debug_info::Error::Unknown));
        assert_eq!(one(unread(), Some(other.clone())), (other.clone(), 1));
        assert_eq!(one(unread(), None), (IlMap::default(), 1));
        for _ in TO_TRUST + 1..AGAIN {
            assert_eq!(one(Ok(map.clone()), Some(other.clone())), (map.clone(), 0));
        }
        // The runtime must not be asked at this moment; and then it is another.
        assert_eq!(one(Ok(map.clone()), None), (IlMap::default(), 1));
        assert_eq!(
            one(Ok(map.clone()), Some(other.clone())),
            (other.clone(), 1)
        );
        assert_eq!(one(Ok(map.clone()), Some(other.clone())), (other, 1));
        assert_eq!(trust.load(Ordering::Relaxed), NEVER);
    }

    #[test]
    fn a_reader_is_trusted_after_equal_answers_and_never_after_a_different_one() {
        let map: IlMap = vec![(0, 0), (8, 3)].into();
        let other: IlMap = vec![(0, 0), (8, 4)].into();
        let one: IlMap = vec![(0, 0)].into();
        let mut known = 0;
        for _ in 0..TO_TRUST {
            assert!(known < TO_TRUST);
            // A map that proves nothing, and one that is not read, is no step.
            known = trusted_after(known, &Ok(one.clone()), &one);
            known = trusted_after(known, &Ok(IlMap::default()), &IlMap::default());
            let unread = Err(NoIlMap::Bytes(debug_info::Error::Unknown));
            known = trusted_after(known, &unread, &map);
            known = trusted_after(known, &Ok(map.clone()), &map);
        }
        assert_eq!(known, TO_TRUST);
        let unread = Err(NoIlMap::Bytes(debug_info::Error::Truncated));
        assert_eq!(trusted_after(AGAIN, &unread, &map), AGAIN + 1);
        assert_eq!(trusted_after(AGAIN, &Ok(map.clone()), &map), AGAIN + 1);
        for known in [0, TO_TRUST - 1, AGAIN, 2 * AGAIN] {
            let mismatch = Err(NoIlMap::Header(Mismatch::OtherMethod));
            let contradicts = Err(NoIlMap::Bytes(debug_info::Error::Inconsistent));
            for read in [Ok(other.clone()), mismatch, contradicts] {
                assert_eq!(trusted_after(known, &read, &map), NEVER);
            }
        }
        // However many there have been, it is no other word.
        let mut known = NEVER - 3;
        for _ in 0..5 {
            known = next(known);
            assert!((TO_TRUST..NEVER).contains(&known));
        }
    }
}
