//! Finds the IL maps of precompiled methods in their ReadyToRun image.
//!
//! `debug_info` decodes them. The caller must verify that the format is the assumed one, as for
//! JITted code. Invariants: all reads are through the kernel, if it supports that, so a truncated
//! file gives an error and no fault. Nothing outside of the image's sections is read.
//!
//! Format: dotnet/runtime `docs/design/coreclr/botr/readytorun-format.md`
//! (READYTORUN_SECTION_DEBUG_INFO), `vm/readytoruninfo.cpp` (`ReadyToRunInfo::GetDebugInfo`),
//! `vm/nativeformatreader.h` (`NativeArray`).

use super::Image;
use crate::debug_info::{self, Error, Format};
use crate::own_memory::peek;

/// READYTORUN_SECTION_DEBUG_INFO
const DEBUG_INFO: u32 = 105;
/// Number of elements of one tree of an array.
const BLOCK: u32 = 16;
/// Bytes of a map that are read at first, sufficient for most.
const FEW: usize = 256;
/// Maximum bytes of a map that are read.
const MANY: usize = 16 << 10;

/// An image's array of maps, by function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IlMaps {
    format: Format,
    /// RVA of its trees' offsets.
    base: u32,
    /// Number of functions in the array.
    count: u32,
    /// Size of an offset, bytes.
    size: u32,
}

impl Image {
    /// Appends native and IL offset of the mapped places in the method whose code starts at
    /// `start`; none if the image has no map of it. Returns the format. On an error, `into` may
    /// have some more entries. Not in a signal handler.
    pub fn il_map(&self, start: u64, into: &mut Vec<(u32, u32)>) -> Result<Format, Error> {
        let maps = self.il_maps.get_or_init(|| self.find_il_maps());
        let maps = maps.ok_or(Error::Unknown)?;
        let (index, begin) = self.function_at(start).ok_or(Error::Unknown)?;
        if self.base + u64::from(begin) != start {
            return Err(Error::Unknown);
        }
        let Some(at) = self.map_of(&maps, index)? else {
            return Ok(maps.format);
        };
        let known = into.len();
        for most in [FEW, MANY] {
            let mut buffer = vec![0; most];
            let bytes = self.peek(at, &mut buffer).iter().copied();
            match debug_info::decode(bytes, maps.format, into) {
                Err(Error::Truncated) if most != MANY => into.truncate(known),
                read => return read.map(|_| maps.format),
            }
        }
        Err(Error::Truncated)
    }

    /// Finds the maps through the image's own header.
    fn find_il_maps(&self) -> Option<IlMaps> {
        let format = Format::of_image(self.major()?)?;
        let (head, base) = self.number(self.r2r_section(DEBUG_INFO)?)?;
        Some(IlMaps {
            format,
            base,
            count: head >> 2,
            size: 1 << (head & 3).min(2),
        })
    }

    /// Returns the RVA of a function's map; `None` if it has none.
    fn map_of(&self, maps: &IlMaps, index: u32) -> Result<Option<u32>, Error> {
        if index >= maps.count {
            return Ok(None);
        }
        let found = || {
            let mut buffer = [0; 4];
            let place = maps.base.checked_add(index / BLOCK * maps.size)?;
            let wanted = buffer.get_mut(..maps.size as usize)?;
            let all = wanted.len();
            if self.peek(place, wanted).len() != all {
                return None;
            }
            let mut at = maps.base.checked_add(u32::from_le_bytes(buffer))?;
            let mut bit = BLOCK / 2;
            while bit > 0 {
                let (node, behind) = self.number(at)?;
                match (index & bit != 0, node & 2 != 0, node & 1 != 0) {
                    (true, true, _) => at = at.checked_add(node >> 2)?,
                    (false, _, true) => at = behind,
                    // A leaf in place of a tree with one element.
                    _ if node & 3 == 0 && node >> 2 == index % BLOCK => return Some(Some(behind)),
                    _ => return Some(None),
                }
                bit /= 2;
            }
            Some(Some(at))
        };
        let Some(element) = found().ok_or(Error::Truncated)? else {
            return Ok(None);
        };
        // Methods with equal maps share one. The number is the distance back to it.
        let (back, behind) = self.number(element).ok_or(Error::Truncated)?;
        match back {
            0 => Ok(Some(behind)),
            _ => element
                .checked_sub(back)
                .map(Some)
                .ok_or(Error::Inconsistent),
        }
    }

    /// Decodes a number of one to five bytes, by the lowest bits of the first. Returns it and its
    /// end (`NativeReader::DecodeUnsigned`).
    fn number(&self, rva: u32) -> Option<(u32, u32)> {
        let mut buffer = [0; 5];
        let bytes = self.peek(rva, &mut buffer);
        let ones = bytes.first()?.trailing_ones();
        let (length, number) = match ones {
            0..4 => {
                let length = ones as usize + 1;
                let mut word = [0; 4];
                word.get_mut(..length)?
                    .copy_from_slice(bytes.get(..length)?);
                (length, u32::from_le_bytes(word) >> length)
            }
            4 => (5, u32::from_le_bytes(*bytes.get(1..)?.first_chunk()?)),
            _ => return None,
        };
        Some((number, rva.checked_add(u32::try_from(length).ok()?)?))
    }

    /// Reads the readable bytes at an RVA, up to the end of its section.
    fn peek<'b>(&self, rva: u32, buffer: &'b mut [u8]) -> &'b [u8] {
        let (at, left) = self.place(rva).unwrap_or_default();
        let most = buffer.len().min(left);
        let Some(buffer) = buffer.get_mut(..most).filter(|buffer| !buffer.is_empty()) else {
            return &[];
        };
        peek(at, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pe::tests::core_libraries;

    /// Nearly all maps are decoded, with offsets inside their methods, funclets included. The
    /// comparison with the runtime's results is in `agree`.
    #[test]
    fn maps_of_real_images_lie_within_their_methods() {
        for library in core_libraries() {
            let image = &library.image;
            let (mut read, mut unread) = (0, 0);
            for entry in image.table() {
                let field = |at| crate::pe::field(entry, at);
                let begin = field(0);
                let mut map = Vec::new();
                match image.il_map(image.base + u64::from(begin), &mut map) {
                    Ok(_) => {
                        read += usize::from(!map.is_empty());
                        assert!(map.is_sorted(), "{begin:#x}: {map:?}");
                        if let Some((last, _)) = map.last() {
                            let info = image.gc_info(image.base + u64::from(begin)).unwrap();
                            assert!(*last <= info.code_length(), "{begin:#x}: {map:?}");
                        }
                    }
                    // A bug of the runtime, .NET 10 (`debug_info::decode`).
                    Err(error) => {
                        assert_eq!(error, Error::Unknown, "{begin:#x}");
                        unread += 1;
                    }
                }
            }
            let version = library.version;
            println!(
                "{version}: {read} of {} functions have a map, {unread} not read",
                image.functions()
            );
            assert!(read * 100 >= image.functions() * 85, "{version}: {read}");
            assert!(unread * 100 <= read, "{version}: {unread}");
        }
    }

    #[test]
    fn where_no_method_begins_is_no_map() {
        let library = core_libraries().next().unwrap();
        let image = &library.image;
        let begin = crate::pe::field(&image.table()[0], 0);
        let start = image.base + u64::from(begin);
        let mut map = Vec::new();
        for at in [start + 1, start - 1, image.base, 0, u64::MAX] {
            assert_eq!(image.il_map(at, &mut map), Err(Error::Unknown), "{at:#x}");
        }
        assert!(map.is_empty());
    }

    /// Any bytes in the array and the maps: no panic, no endless loop, no read outside of the
    /// image.
    #[test]
    fn any_bytes_are_read_or_refused() {
        let mut library = core_libraries().next().unwrap();
        let sound = library.image.find_il_maps().unwrap();
        let functions = library.image.functions() as u32;
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..40 {
            let mut spoilt = library.bytes.clone();
            for _ in 0..2000 {
                // The array's head, its offsets and trees, and the data after them.
                let reach = 1 << random.u32(2..21);
                let at = sound.base as usize - 4 + random.usize(..reach);
                if let Some(byte) = spoilt.get_mut(at) {
                    *byte = random.u8(..);
                }
            }
            std::mem::swap(&mut library.bytes, &mut spoilt);
            // SAFETY: laid out as the runtime does, but for bytes that are not its headers; kept
            // beside the image.
            let Ok(image) = (unsafe { crate::pe::r2r_image(library.bytes.as_ptr() as u64) }) else {
                continue;
            };
            for _ in 0..200 {
                let entry = image.table()[random.u32(..functions) as usize];
                let start = image.base + u64::from(crate::pe::field(&entry, 0));
                let _whatever = image.il_map(start, &mut Vec::new());
            }
        }
    }
}
