//! IL maps of method bodies (native offset to IL offset), read from memory or from the runtime.
//!
//! Reading the map from memory (beside JIT-compiled code, or in the image) is some twenty times
//! faster. A query leaves the tables of the runtime's debugger in the program for good
//! (`stackwalk::debug_info`). The bytes are undocumented. Invariant: bytes are trusted only if many
//! maps of this CLR equalled the runtime's, with a new comparison now and then, and never if the IL
//! may have been changed.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use corprof::Cx;
use corprof::context::Synchronous;
use stackwalk::CodeMap;
use stackwalk::debug_info::{self, Format, Skipped};
use stackwalk::jit::{self, NoIlMap};

use super::{Clr, names};
use crate::model::IlMap;

/// Number of maps that are read with checks and compared with the runtime's before maps are read
/// without either.
const TO_TRUST: u32 = 32;
/// One in this many maps read without a query is compared again.
const AGAIN: u32 = 256;
/// Trust value: a map has differed.
const NEVER: u32 = u32::MAX;

/// Trust in one CLR's encoding of IL maps.
#[derive(Debug, Default)]
pub(super) struct IlMapTrust {
    /// The runtime's major version; 0 if unknown.
    major: AtomicU16,
    /// Number of JIT-compiled maps that equalled the runtime's, or [`NEVER`].
    read: AtomicU32,
    /// As `read`, for maps with more parts than most: the runtime's patchpoints before them, or six
    /// lengths.
    with_more: AtomicU32,
    /// As `read`, for maps of images, by their encoding there.
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
    /// Sets the runtime's major version.
    pub(crate) fn set_major(&self, major: u16) {
        self.il_maps.major.store(major, Ordering::Relaxed);
    }

    /// Returns the map of the body that begins at `code_start` to the IL of its file; empty if
    /// there is none. The code must be permanent.
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

    /// Reads the map from memory, without checks if it is trusted. The code must be permanent.
    fn read_beside(&self, function: usize, code_start: u64) -> Result<(Skipped, IlMap), NoIlMap> {
        let is_trusted =
            |trust: &AtomicU32| (TO_TRUST..NEVER).contains(&trust.load(Ordering::Relaxed));
        let knows_more = is_trusted(&self.il_maps.with_more);
        if is_trusted(&self.il_maps.read) {
            let (format, id) = (self.format()?, function as u64);
            let mut map = Vec::new();
            // SAFETY: the caller guarantees that the code is permanent. Many maps of this runtime
            // have equalled its own, and many with more parts where those are read.
            let read = unsafe {
                jit::il_map_of_known_header(code_start, id, format, knows_more, &mut map)
            };
            match read {
                // The map may have more parts: read below with checks.
                Err(NoIlMap::Bytes(debug_info::Error::Unknown)) if !knows_more => {}
                read => return read.map(|skipped| (skipped, names::il_map_of(map))),
            }
        }
        self.read_il_map(function, code_start)
    }

    /// Returns the map of the precompiled code that begins at `code_start`. It is empty if there is
    /// none or if the runtime must not be queried: it reads the image, and crashes on a truncated
    /// file.
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

    /// Reads the map from memory, with checks.
    ///
    /// # Errors
    /// The bytes are not understood.
    pub fn read_il_map(
        &self,
        function: usize,
        code_start: u64,
    ) -> Result<(Skipped, IlMap), NoIlMap> {
        let (mut map, format) = (Vec::new(), self.format()?);
        // SAFETY: the caller guarantees that the code is permanent. All bytes are read by system
        // calls.
        let skipped = unsafe { jit::il_map(code_start, function as u64, format, &mut map) }?;
        Ok((skipped, names::il_map_of(map)))
    }

    /// Queries the map from the runtime, in the file's IL; empty if the runtime has none.
    pub(crate) fn queried_il_map<C: Synchronous>(&self, cx: &Cx<'_, C>, code_start: u64) -> IlMap {
        let map = names::il_map(cx, code_start);
        map.map(|map| self.in_own_il(code_start, map))
            .unwrap_or_default()
    }

    /// Returns the encoding of this runtime's version.
    fn format(&self) -> Result<Format, NoIlMap> {
        let format = Format::of_major(self.il_maps.major.load(Ordering::Relaxed));
        format.ok_or(NoIlMap::Bytes(debug_info::Error::Unknown))
    }
}

/// Reads an image's map of the precompiled method that begins at `code_start`, and its format.
///
/// # Errors
/// The bytes are not understood.
pub fn read_precompiled(
    map: &CodeMap,
    code_start: u64,
) -> Result<(Format, IlMap), debug_info::Error> {
    let mut entries = Vec::new();
    let format = map.r2r_il_map(code_start, &mut entries)?;
    Ok((format, names::il_map_of(entries)))
}

/// Returns the map that was read, if that is trusted, else the runtime's map from `ask`. Empty if
/// the runtime must not be queried.
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

/// Returns the trust after a comparison: `known` is the trust before, `read` the map from memory,
/// `asked` the runtime's.
fn trusted_after(known: u32, read: &Result<IlMap, NoIlMap>, asked: &IlMap) -> u32 {
    match read {
        // An empty map, or one with a single entry, proves nothing.
        Ok(read) if read == asked && (known >= TO_TRUST || read.len() > 1) => next(known),
        Ok(read) if read == asked => known,
        // The map has parts that are not read.
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

/// Returns the next count, which never reaches [`NEVER`].
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
        // An unread map is queried and does not change the trust.
        let unread = || Err(NoIlMap::Bytes(debug_info::Error::Unknown));
        assert_eq!(one(unread(), Some(other.clone())), (other.clone(), 1));
        assert_eq!(one(unread(), None), (IlMap::default(), 1));
        for _ in TO_TRUST + 1..AGAIN {
            assert_eq!(one(Ok(map.clone()), Some(other.clone())), (map.clone(), 0));
        }
        // The runtime must not be queried now; then a different map.
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
            // Neither a map that proves nothing nor an unread map changes the trust.
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
        // The count never becomes [`NEVER`].
        let mut known = NEVER - 3;
        for _ in 0..5 {
            known = next(known);
            assert!((TO_TRUST..NEVER).contains(&known));
        }
    }
}
