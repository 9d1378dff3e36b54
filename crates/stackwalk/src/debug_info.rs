//! Decoder of a method body's IL map: the IL offsets of its native instructions.
//!
//! Input is the runtime's compressed debug information, stored with JITted code, or in an image for
//! precompiled methods. Output is a list of pairs of native and IL offset.
//!
//! `GetILToNativeMapping3` of the runtime would be the alternative. For each call it builds its
//! debugger's tables of the method, of IL map and variables, and keeps them. That takes 8 µs, a
//! fifth of the agent's whole time in a compiler, and some hundred bytes of the program's memory
//! for each sampled method.
//!
//! The module `jit` finds the bytes. The caller must verify that they have the assumed format, by
//! comparing with the runtime's results for the same bodies. Invariants: every loop is bounded by
//! the bytes. An incomplete map is an error, never a partial result.
//!
//! Format: dotnet/runtime `vm/debuginfostore.cpp` (`CompressDebugInfo`), `inc/nibblestream.h`,
//! docs/design/datacontracts/DebugInfo.md. A byte of flags (since .NET 5) is followed by the
//! lengths of two parts and the first part. Its entries are three numbers each, or have a fixed
//! number of bits (.NET 10). Images have no flags. Since .NET 11 JITted code has none either: a
//! length of 0 announces the lengths of six parts, of which the first is the IL map.

/// The version of the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// Numbers of nibbles, .NET Core 3.1.
    Plain,
    /// Numbers of nibbles after a byte of flags, .NET 5 to 9.
    Flagged,
    /// Entries of a fixed number of bits, after a byte of flags, .NET 10.
    Packed,
    /// Entries of a fixed number of bits, in images for .NET 10.
    PackedPlain,
    /// As [`Format::PackedPlain`] with one more source bit per entry, after two lengths or six:
    /// .NET 11 and its images.
    Sized,
}

impl Format {
    /// Returns the format of a runtime of this major version; `None` for unknown versions.
    pub const fn of_major(major: u16) -> Option<Format> {
        match major {
            0..=4 => Some(Format::Plain),
            5..=9 => Some(Format::Flagged),
            10 => Some(Format::Packed),
            11 => Some(Format::Sized),
            _ => None,
        }
    }

    /// Returns the format of an image with this major version of the ReadyToRun format; `None` for
    /// unknown versions. Images have no flags (`ReadyToRunJitManager::GetBoundariesAndVars`).
    pub const fn of_image(major: u32) -> Option<Format> {
        match major {
            // Up to .NET 9 (docs/design/datacontracts/DebugInfo.md: packed from 16 on, .NET 10).
            2..=10 => Some(Format::Plain),
            11..=16 => Some(Format::PackedPlain),
            17..=26 => Some(Format::Sized),
            _ => None,
        }
    }

    /// Whether this first byte announces more than the two common parts.
    pub(crate) const fn begins_with_more(self, first: u8) -> bool {
        match self {
            Format::Flagged | Format::Packed => first == PATCHPOINTS,
            Format::Sized => first & 0xf == SIX_LENGTHS as u8,
            Format::Plain | Format::PackedPlain => false,
        }
    }

    const fn has_flags(self) -> bool {
        matches!(self, Format::Flagged | Format::Packed)
    }

    const fn is_packed(self) -> bool {
        matches!(self, Format::Packed | Format::PackedPlain | Format::Sized)
    }

    /// Number of source bits of an entry. The first of them marks a call.
    const fn source_bits(self) -> u32 {
        match self {
            Format::Sized => 3,
            _ => 2,
        }
    }
}

/// Why a body's IL map cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Error {
    /// The data is longer than the given bytes.
    Truncated,
    /// It has parts that are not supported (inlining, IL of a profiler), or more bytes than its
    /// entries.
    Unknown,
    /// The data contradicts itself.
    Inconsistent,
}

/// Data before the entries, in addition to flags and two lengths.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Skipped {
    /// Nothing.
    Nothing,
    /// Variable locations of a method that may be replaced in a loop. They are laid out like a
    /// class of the runtime in memory, which may be larger in a later version (`PatchpointInfo`,
    /// inc/patchpointinfo.h).
    Patchpoints,
    /// Lengths of more parts, which follow the two common ones (.NET 11).
    Lengths,
}

/// `EXTRA_DEBUG_INFO_PATCHPOINT`
const PATCHPOINTS: u8 = 1;
/// `DEBUG_INFO_FAT`: stored in place of the first part's length.
const SIX_LENGTHS: u32 = 0;
/// Bytes of a `PatchpointInfo` between the number of its variables and their data.
const BEHIND_VARIABLES: u32 = 20;
/// Bytes of each variable.
const VARIABLE: u32 = 4;
/// Maximum number of variables that is accepted.
const MAX_VARIABLES: u32 = 1 << 12;

/// `ICorDebugInfo::MAX_MAPPING_VALUE`: IL offsets are stored plus this number. The three lower
/// values are prologue, epilogue, and none.
const BIAS: u32 = 3;
/// Special IL offsets are equal to or above this, as unsigned numbers.
const SPECIAL: u32 = 0xffff_fff0;
/// `ICorDebugInfo::CALL_INSTRUCTION`: flag of separate entries that the runtime does not report to
/// profilers.
const CALL: u32 = 0x10;
/// Maximum number of entries that is accepted.
const MAX_ENTRIES: u32 = 1 << 20;

/// The bytes, and how many of them may still be read.
struct Stream<I> {
    bytes: I,
    left: u32,
    /// The second half of the byte that was read last, if it was not read yet.
    half: Option<u8>,
}

impl<I: Iterator<Item = u8>> Stream<I> {
    fn byte(&mut self) -> Result<u8, Error> {
        self.left = self.left.checked_sub(1).ok_or(Error::Inconsistent)?;
        self.bytes.next().ok_or(Error::Truncated)
    }

    fn nibble(&mut self) -> Result<u8, Error> {
        match self.half.take() {
            Some(half) => Ok(half),
            None => {
                let byte = self.byte()?;
                self.half = Some(byte >> 4);
                Ok(byte & 0xf)
            }
        }
    }

    /// Reads a number: three bits a nibble, highest first, and one bit that says whether more
    /// follow.
    fn number(&mut self) -> Result<u32, Error> {
        let mut number = 0u64;
        loop {
            let nibble = self.nibble()?;
            number = number << 3 | u64::from(nibble & 7);
            if number > u64::from(u32::MAX) {
                return Err(Error::Inconsistent);
            }
            if nibble & 8 == 0 {
                return Ok(number as u32);
            }
        }
    }

    /// Reads the number of bits of a field, which is stored minus one.
    fn width(&mut self) -> Result<u32, Error> {
        match self.number()? {
            less @ ..=31 => Ok(less + 1),
            _ => Err(Error::Inconsistent),
        }
    }

    fn skip(&mut self, bytes: u32) -> Result<(), Error> {
        (0..bytes).try_for_each(|_| self.byte().map(drop))
    }

    fn patchpoints(&mut self, format: Format) -> Result<(), Error> {
        // The saved registers and, in .NET 10, the position of the method's first code.
        self.skip(if format.is_packed() { 16 } else { 8 })?;
        let mut variables = [0; 4];
        for byte in &mut variables {
            *byte = self.byte()?;
        }
        let variables = u32::from_le_bytes(variables);
        if variables > MAX_VARIABLES {
            return Err(Error::Unknown);
        }
        self.skip(BEHIND_VARIABLES + variables * VARIABLE)
    }

    /// Reads the length of the entries, in formats with two lengths, with or without flags.
    fn length(&mut self, format: Format) -> Result<(u32, Skipped), Error> {
        let mut skipped = Skipped::Nothing;
        if format.has_flags() {
            match self.byte()? {
                0 => {}
                PATCHPOINTS => {
                    self.patchpoints(format)?;
                    skipped = Skipped::Patchpoints;
                }
                _ => return Err(Error::Unknown),
            }
        }
        let length = self.number()?;
        if length == u32::MAX {
            return Err(Error::Unknown);
        }
        if length != 0 {
            let _variables = self.number()?;
        }
        Ok((length, skipped))
    }

    /// Reads the length of the entries of [`Format::Sized`]. All other parts follow them:
    /// variables, patchpoints, inlining, suspension points of async methods.
    fn lengths(&mut self) -> Result<(u32, Skipped), Error> {
        let first = self.number()?;
        if first != SIX_LENGTHS {
            let _variables = self.number()?;
            return Ok((first, Skipped::Nothing));
        }
        let mut lengths = [0; 6];
        for length in &mut lengths {
            *length = self.number()?;
        }
        match lengths {
            [entries, _, 0, ..] => Ok((entries, Skipped::Lengths)),
            // There is a separate map of the file's IL: the first one describes IL that a profiler
            // changed.
            _ => Err(Error::Unknown),
        }
    }

    /// Aligns to a byte, at which the next part begins.
    fn align(&mut self) {
        self.half = None;
    }
}

/// Appends native and IL offset of each mapped place to `into`, in order. Returns the skipped data.
/// On an error `into` may have some more entries. Reads only as many of `bytes` as their header
/// announces.
pub fn decode(
    bytes: impl Iterator<Item = u8>,
    format: Format,
    into: &mut Vec<(u32, u32)>,
) -> Result<Skipped, Error> {
    let mut stream = Stream {
        bytes,
        left: u32::MAX,
        half: None,
    };
    let (length, skipped) = match format {
        Format::Sized => stream.lengths()?,
        _ => stream.length(format)?,
    };
    if length == 0 {
        return Ok(skipped);
    }
    stream.align();
    stream.left = length;
    let count = stream.number()?;
    if count == 0 || count > MAX_ENTRIES {
        return Err(Error::Inconsistent);
    }
    let first = into.len();
    let mut keep = |native: u32, il: u32, is_call: bool| {
        if il < SPECIAL && !is_call {
            into.push((native, il));
        }
    };
    let mut native = 0u32;
    if format.is_packed() {
        let (native_bits, il_bits) = (stream.width()?, stream.width()?);
        stream.align();
        let (mut bits, mut known) = (0u128, 0);
        let mut take = |stream: &mut Stream<_>, count: u32| {
            while known < count {
                bits |= u128::from(stream.byte()?) << known;
                known += 8;
            }
            let taken = (bits & ((1 << count) - 1)) as u32;
            bits >>= count;
            known -= count;
            Ok(taken)
        };
        for _ in 0..count {
            let source = take(&mut stream, format.source_bits())?;
            let step = take(&mut stream, native_bits)?;
            native = native.checked_add(step).ok_or(Error::Inconsistent)?;
            let il = take(&mut stream, il_bits)?.wrapping_sub(BIAS);
            keep(native, il, source & 1 != 0);
        }
    } else {
        for _ in 0..count {
            native = native
                .checked_add(stream.number()?)
                .ok_or(Error::Inconsistent)?;
            let il = stream.number()?.wrapping_sub(BIAS);
            let source = stream.number()?;
            keep(native, il, source & CALL != 0);
        }
    }
    if stream.left != 0 && format.is_packed() {
        // Entries of five to seven bits. If one needs less than the free bits of a byte, .NET 10
        // counts its bits below zero and appends some thirty bytes of nothing
        // (`CompressBoundaries`). The entries after it are read from those.
        return Err(Error::Unknown);
    }
    if stream.left != 0 {
        return Err(Error::Inconsistent);
    }
    // They are sorted by native offset already. The runtime orders those with the same one.
    if let Some(new) = into.get_mut(first..) {
        new.sort_unstable();
    }
    Ok(skipped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Writes nibbles, and whole bytes between them.
    #[derive(Default)]
    struct Writer {
        bytes: Vec<u8>,
        half: bool,
    }

    impl Writer {
        fn nibble(&mut self, nibble: u8) {
            match self.bytes.last_mut().filter(|_| self.half) {
                Some(last) => *last |= nibble << 4,
                None => self.bytes.push(nibble),
            }
            self.half = !self.half;
        }

        fn number(&mut self, number: u32) {
            let groups = (32 - number.leading_zeros()).max(1).div_ceil(3);
            for group in (0..groups).rev() {
                let more = if group > 0 { 8 } else { 0 };
                self.nibble((number >> (3 * group) & 7) as u8 | more);
            }
        }

        fn align(&mut self) {
            self.half = false;
        }
    }

    /// Native offset, IL offset, and whether it is that of a call.
    type Entry = (u32, u32, bool);

    fn part(entries: &[Entry], format: Format) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.number(entries.len() as u32);
        let mut last = 0;
        if format.is_packed() {
            let width = |most: u32| (32 - most.leading_zeros()).max(1);
            let steps = entries.windows(2).map(|pair| pair[1].0 - pair[0].0);
            let native_bits = width(steps.max().unwrap_or(0).max(entries[0].0));
            let il_bits = width(
                entries
                    .iter()
                    .map(|e| e.1.wrapping_add(BIAS))
                    .max()
                    .unwrap(),
            );
            writer.number(native_bits - 1);
            writer.number(il_bits - 1);
            writer.align();
            let (mut bits, mut known) = (0u128, 0);
            let source_bits = format.source_bits();
            for (native, il, is_call) in entries {
                bits |= u128::from(u8::from(*is_call)) << known;
                // In other entries the highest bit has a meaning that does not matter here.
                bits |= u128::from(!is_call) << (known + source_bits - 1);
                known += source_bits;
                bits |= u128::from(native - last) << known;
                bits |= u128::from(il.wrapping_add(BIAS)) << (known + native_bits);
                known += native_bits + il_bits;
                last = *native;
                while known >= 8 {
                    writer.bytes.push(bits as u8);
                    bits >>= 8;
                    known -= 8;
                }
            }
            if known > 0 {
                writer.bytes.push(bits as u8);
            }
        } else {
            for (native, il, is_call) in entries {
                writer.number(native - last);
                writer.number(il.wrapping_add(BIAS));
                writer.number(if *is_call { CALL } else { 3 });
                last = *native;
            }
        }
        writer.bytes
    }

    fn encode(entries: &[Entry], format: Format) -> Vec<u8> {
        let part = match entries {
            [] => Vec::new(),
            _ => part(entries, format),
        };
        let mut writer = Writer::default();
        if format.has_flags() {
            writer.bytes.push(0);
        }
        if part.is_empty() && format == Format::Sized {
            writer.number(SIX_LENGTHS);
        }
        writer.number(part.len() as u32);
        writer.number(7);
        if part.is_empty() && format == Format::Sized {
            (0..4).for_each(|_| writer.number(0));
        }
        writer.bytes.extend(part);
        writer.bytes.extend([0xee; 7]);
        writer.bytes
    }

    fn read(bytes: &[u8], format: Format) -> Result<Vec<(u32, u32)>, Error> {
        let mut found = Vec::new();
        decode(bytes.iter().copied(), format, &mut found).map(|_| found)
    }

    const FORMATS: [Format; 5] = [
        Format::Plain,
        Format::Flagged,
        Format::Packed,
        Format::PackedPlain,
        Format::Sized,
    ];

    proptest! {
        #[test]
        fn what_was_written_is_read(
            steps in proptest::collection::vec(
                (0u32..70_000, prop_oneof![0u32..5000, Just(u32::MAX), Just(u32::MAX - 2)], any::<bool>()),
                0..60,
            ),
        ) {
            let entries: Vec<Entry> = steps.iter().scan(0, |at, (step, il, is_call)| {
                *at += step;
                Some((*at, *il, *is_call))
            }).collect();
            let mut expected: Vec<(u32, u32)> = entries
                .iter()
                .filter(|(_, il, is_call)| *il < SPECIAL && !is_call)
                .map(|(native, il, _)| (*native, *il))
                .collect();
            expected.sort_unstable();
            for format in FORMATS {
                let bytes = encode(&entries, format);
                prop_assert_eq!(read(&bytes, format), Ok(expected.clone()));
                // With fewer bytes than announced nothing is read, and with more only the announced
                // ones.
                let said = bytes.len() - 7;
                if !entries.is_empty() {
                    prop_assert_eq!(read(&bytes[..said - 1], format), Err(Error::Truncated));
                    prop_assert_eq!(read(&bytes[..said], format), Ok(expected.clone()));
                }
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for format in FORMATS {
                let _whatever = read(&bytes, format);
            }
        }
    }

    #[test]
    fn patchpoints_are_skipped() {
        let entries = [(0, 0, false), (9, 4, false)];
        for (format, variables) in [(Format::Flagged, 0), (Format::Packed, 3u32)] {
            let mut bytes = encode(&entries, format);
            let before = if format == Format::Packed { 16 } else { 8 };
            let mut patchpoints = vec![0xab; before];
            patchpoints.extend(variables.to_le_bytes());
            patchpoints.extend(vec![0xcd; 20 + 4 * variables as usize]);
            bytes[0] = 1;
            bytes.splice(1..1, patchpoints);
            let mut found = Vec::new();
            let skipped = decode(bytes.iter().copied(), format, &mut found);
            assert_eq!(skipped, Ok(Skipped::Patchpoints));
            assert_eq!(found, [(0, 0), (9, 4)]);
            // More variables than bytes, and more than a method has.
            bytes[1 + before] = 200;
            assert_eq!(read(&bytes, format), Err(Error::Truncated));
            bytes[3 + before] = 1;
            assert_eq!(read(&bytes, format), Err(Error::Unknown));
        }
    }

    #[test]
    fn parts_behind_the_entries_are_left_alone() {
        let entries = [(0, 0, false), (4, 2, true), (9, 4, false)];
        let entries_part = part(&entries, Format::Sized);
        let sized = |lengths: [u32; 6]| {
            let mut writer = Writer::default();
            for number in [SIX_LENGTHS].into_iter().chain(lengths) {
                writer.number(number);
            }
            writer.bytes.extend(&entries_part);
            writer.bytes.extend([0xee; 40]);
            let mut found = Vec::new();
            let read = decode(writer.bytes.iter().copied(), Format::Sized, &mut found);
            (read, found)
        };
        let length = entries_part.len() as u32;
        let whole = (Ok(Skipped::Lengths), vec![(0, 0), (9, 4)]);
        assert_eq!(sized([length, 7, 0, 0, 0, 0]), whole);
        assert_eq!(sized([length, 7, 0, 24, 300, 9]), whole);
        assert_eq!(sized([0, 7, 0, 0, 0, 9]), (Ok(Skipped::Lengths), vec![]));
        // IL that a profiler inserted.
        let (read, found) = sized([length, 7, 5, 0, 0, 0]);
        assert_eq!((read, found), (Err(Error::Unknown), vec![]));
        // A length other than that of the entries.
        let (read, _) = sized([length - 1, 7, 0, 0, 0, 0]);
        assert_eq!(read, Err(Error::Inconsistent));
        let (read, _) = sized([length + 1, 7, 0, 0, 0, 0]);
        assert_eq!(read, Err(Error::Unknown));
        assert!(Format::Sized.begins_with_more(0x30) && !Format::Sized.begins_with_more(3));
    }

    #[test]
    fn the_formats_of_runtimes_and_images_are_known_or_refused() {
        use Format::{Flagged, Packed, PackedPlain, Plain, Sized};
        let runtimes = [3, 5, 9, 10, 11, 12, u16::MAX].map(Format::of_major);
        let known = [Plain, Flagged, Flagged, Packed, Sized].map(Some);
        assert_eq!(
            (&runtimes[..5], &runtimes[5..]),
            (&known[..], &[None; 2][..])
        );
        let images = [2, 11, 16, 17, 26, 1, 27].map(Format::of_image);
        let known = [Plain, PackedPlain, PackedPlain, Sized, Sized].map(Some);
        assert_eq!((&images[..5], &images[5..]), (&known[..], &[None; 2][..]));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        // Inlining, and parts of a later runtime.
        for flags in [2, 3, 4, 0x80] {
            let mut bytes = encode(&[(0, 0, false)], Format::Flagged);
            bytes[0] = flags;
            assert_eq!(read(&bytes, Format::Flagged), Err(Error::Unknown));
            assert_eq!(read(&bytes, Format::Packed), Err(Error::Unknown));
        }
        // IL that a profiler inserted: `DEBUG_INFO_BOUNDS_HAS_INSTRUMENTED_BOUNDS`.
        let mut writer = Writer::default();
        writer.bytes.push(0);
        writer.number(u32::MAX);
        assert_eq!(read(&writer.bytes, Format::Packed), Err(Error::Unknown));
        // A length other than that of the entries.
        let entries = [(0, 0, false), (9, 4, false)];
        let mut bytes = encode(&entries, Format::Flagged);
        bytes[1] += 1;
        assert_eq!(read(&bytes, Format::Flagged), Err(Error::Inconsistent));
        // A length too short for them: nothing after it is read.
        bytes[1] -= 2;
        let mut taken = 0;
        let counted = bytes.iter().copied().inspect(|_| taken += 1);
        let result = decode(counted, Format::Flagged, &mut Vec::new());
        // The flags, and one byte with both lengths.
        let said = 2 + usize::from(bytes[1] & 0xf);
        assert_eq!((result, taken), (Err(Error::Inconsistent), said));
        // An invalid number.
        assert_eq!(read(&[0xff; 40], Format::Plain), Err(Error::Inconsistent));
        assert_eq!(read(&[], Format::Plain), Err(Error::Truncated));
        // `Object..ctor` of .NET 10: three entries of five bits in 36 bytes.
        let mut constructor = vec![0, 0x4c, 3, 3, 1, 0x4a, 0x0b];
        constructor.resize(3 + 36, 0);
        assert_eq!(read(&constructor, Format::Packed), Err(Error::Unknown));
        // More bits than any number has.
        for width in [32, u32::MAX] {
            let mut writer = Writer::default();
            writer.bytes.extend([0, 4]);
            for number in [1, 0, width] {
                writer.number(number);
            }
            assert_eq!(
                read(&writer.bytes, Format::Packed),
                Err(Error::Inconsistent)
            );
        }
    }
}
