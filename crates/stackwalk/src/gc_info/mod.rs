//! GcInfo decoder: where a managed body keeps references, as its compiler recorded it for the GC.
//!
//! Input is a byte slice, for x86-64, found by [`jit::gc_info`](crate::jit::gc_info()) or
//! [`pe::Image::gc_info`](crate::pe::Image::gc_info). It reads no code and no stack. It allocates
//! and a large body takes a while, so it must not run in signal handlers. Invariants: any bytes
//! give a result or an error, in time and memory bounded by the bytes and the length of the code. A
//! structure whose recorded code length is not the true one is an error, so another version's bytes
//! are rejected.
//!
//! Format, from dotnet/runtime `inc/gcinfotypes.h`, `inc/gcinfo.h` and `vm/gcinfodecoder.cpp`: a
//! header, the offsets of *safe points* (calls), *interruptible ranges* in which the state is known
//! at each instruction, the slots, and which slots are live at each safe point and in each chunk of
//! 64 bytes of the ranges. Slots that are not *tracked* count as live in the whole body.

mod bits;
mod homes;

use bits::Bits;
pub use homes::{
    Home, MAX_HOMES, MAX_LIVE, live_at_return, live_at_returns, this_homes, untracked_pairs,
};
use std::borrow::Cow;
use std::ops::Range;

/// Version of the GcInfo encoding. Version 1 ended before .NET Core 2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Version {
    /// Up to .NET 8.
    V2 = 2,
    /// .NET 9: the same bits.
    V3 = 3,
    /// Since .NET 10: without kinds of return, and with safe points as return addresses. .NET 11
    /// has version 5, for a change of the header on x86 only (`inc/gcinfo.h`).
    V4 = 4,
}

impl Version {
    /// Returns the version that the JIT of a runtime writes; `None` for unknown runtimes.
    pub fn of_runtime(major: u32) -> Option<Self> {
        match major {
            2..=8 => Some(Version::V2),
            9 => Some(Version::V3),
            10 | 11 => Some(Version::V4),
            _ => None,
        }
    }

    /// Returns the version in a ReadyToRun image, by the major version in its header; `None` for
    /// unknown versions. Those of .NET 10 have 16, those of .NET 11 have 26.
    pub fn of_image(major: u32) -> Option<Self> {
        match major {
            2..11 => Some(Version::V3),
            11..=26 => Some(Version::V4),
            _ => None,
        }
    }

    /// Returns the bytes to subtract from a return address before its state is looked up. Up to
    /// version 3 the state at a call is stored under the call's last byte.
    pub const fn return_adjustment(self) -> u32 {
        match self {
            Version::V2 | Version::V3 => 1,
            Version::V4 => 0,
        }
    }
}

/// Why bytes are not accepted as a body's GcInfo.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Error {
    /// The bytes end too early.
    Truncated,
    /// The recorded code length is this one: another body's, or another version's encoding.
    OtherLength(u32),
    /// The bytes are contradictory.
    Malformed(&'static str),
}

/// Base of a stack slot's offset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotBase {
    /// The stack pointer of the caller after the call.
    CallerSp,
    /// The body's own stack pointer.
    Sp,
    /// The frame register.
    FrameRegister,
}

/// Location of a reference.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReferencePlace {
    /// A register, by its number in instructions.
    Register(u8),
    /// A stack slot.
    Stack {
        /// The base of the offset.
        base: SlotBase,
        /// Bytes, a multiple of 8.
        offset: i32,
    },
}

/// A register or stack slot that holds a reference while it is live.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReferenceSlot {
    /// Its location.
    pub place: ReferencePlace,
    /// Whether it may point into an object, or to the stack.
    pub interior: bool,
    /// Whether the object that it points to is not moved.
    pub pinned: bool,
    /// Whether its lifetime is recorded. If not, it counts as live from the prologue's end to the
    /// epilogue.
    pub tracked: bool,
}

/// The hidden argument that gives the types for which a body of shared generic code runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Generics {
    /// A method table.
    MethodTable,
    /// An instantiated method.
    Method,
    /// `this`.
    This,
}

/// A body's GcInfo. The liveness functions read the bytes at each call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GcInfo<'a> {
    bytes: Cow<'a, [u8]>,
    version: Version,
    code_length: u32,
    frame_register: Option<u8>,
    generics: Option<(Generics, i32)>,
    safe_points: Box<[u32]>,
    interruptible: Box<[Range<u32>]>,
    slots: Box<[ReferenceSlot]>,
    tracked: usize,
    /// The bit after the slots.
    states: usize,
}

/// Maximum code length that is accepted, bytes.
const MAX_CODE: u32 = 1 << 24;
/// Maximum number of tracked slots that is accepted. The JIT tracks 1,024 variables, and 16
/// registers.
const MAX_TRACKED: u32 = 1 << 12;
/// Bytes of code in each chunk of the interruptible ranges.
const CHUNK: u32 = 64;
const RSP: u32 = 4;

mod flag {
    //! Bits of the header.
    pub(super) const SECURITY_OBJECT: u32 = 0x2;
    pub(super) const GS_COOKIE: u32 = 0x4;
    pub(super) const PSP_SYM: u32 = 0x8;
    pub(super) const GENERICS: u32 = 0x30;
    pub(super) const FRAME_REGISTER: u32 = 0x40;
    pub(super) const EDIT_AND_CONTINUE: u32 = 0x100;
    pub(super) const REVERSE_PINVOKE: u32 = 0x200;
}

/// Reads the fixed start: whether a long header follows, its flags, and the length of the code.
fn start(bits: &mut Bits<'_>, version: Version) -> Result<(bool, u32, u32), Error> {
    let fat = bits.bit()?;
    let flags = if fat {
        bits.take(10)?
    } else {
        u32::from(bits.bit()?) * flag::FRAME_REGISTER
    };
    if version != Version::V4 {
        // The kind of the return value.
        bits.take(if fat { 4 } else { 2 })?;
    }
    Ok((fat, flags, bits.unsigned(8)?))
}

/// Returns the body's length that the GcInfo at the start of `bytes` records.
pub fn code_length(bytes: &[u8], version: Version) -> Result<u32, Error> {
    let (_, _, length) = start(&mut Bits::new(bytes, 0), version)?;
    Ok(length)
}

/// Decodes the GcInfo at the start of `bytes`, which may be longer, of a body of `code_length`
/// bytes with its funclets.
pub fn decode<'a>(
    bytes: impl Into<Cow<'a, [u8]>>,
    version: Version,
    code_length: u32,
) -> Result<GcInfo<'a>, Error> {
    let bytes = bytes.into();
    let mut bits = Bits::new(&bytes, 0);
    let old = version != Version::V4;
    let (mut frame_register, mut generics) = (None, None);
    let (fat, flags, own_length) = start(&mut bits, version)?;
    if own_length != code_length || !(1..=MAX_CODE).contains(&own_length) {
        return Err(Error::OtherLength(own_length));
    }
    if !fat {
        frame_register = (flags != 0).then_some(5);
    } else {
        let has = |bit: u32| flags & bit != 0;
        let security_object = old && has(flag::SECURITY_OBJECT);
        if has(flag::GS_COOKIE) {
            // Lengths of prologue and epilogue.
            bits.unsigned(5)?;
            bits.unsigned(3)?;
        } else if security_object || has(flag::GENERICS) {
            bits.unsigned(5)?;
        }
        for present in [
            security_object,
            has(flag::GS_COOKIE),
            old && has(flag::PSP_SYM),
        ] {
            if present {
                bits.signed(6)?;
            }
        }
        let kind = match flags & flag::GENERICS {
            0 => None,
            0x10 => Some(Generics::MethodTable),
            0x20 => Some(Generics::Method),
            _ => Some(Generics::This),
        };
        if let Some(kind) = kind {
            generics = Some((kind, stack_offset(bits.signed(6)?)?));
        }
        if has(flag::FRAME_REGISTER) {
            let register = bits.unsigned(3)? ^ 5;
            frame_register = Some(register_number(register)?);
        }
        if has(flag::EDIT_AND_CONTINUE) {
            bits.unsigned(4)?;
        }
        if has(flag::REVERSE_PINVOKE) {
            bits.signed(6)?;
        }
        // The area for outgoing arguments.
        bits.unsigned(3)?;
    }

    let safe_point_count = bits.unsigned(2)?;
    let range_count = if fat { bits.unsigned(1)? } else { 0 };
    if safe_point_count > code_length || range_count > code_length {
        return Err(Error::Malformed("more places than code"));
    }
    let width = bits_for(code_length);
    let mut safe_points = Vec::new();
    for _ in 0..safe_point_count {
        let offset = bits.take(width)?;
        if safe_points.last().is_some_and(|last| offset <= *last) || offset > code_length {
            return Err(Error::Malformed("safe points out of order"));
        }
        safe_points.push(offset);
    }
    let mut interruptible = Vec::new();
    let mut end = 0u32;
    for _ in 0..range_count {
        let start = end.checked_add(bits.unsigned(6)?);
        let length = bits.unsigned(6)?.checked_add(1);
        let range = start
            .zip(length)
            .and_then(|(start, length)| Some(start..start.checked_add(length)?))
            .filter(|range| range.end <= code_length)
            .ok_or(Error::Malformed("a range outside of the code"))?;
        end = range.end;
        interruptible.push(range);
    }
    let (slots, tracked) = slots(&mut bits, frame_register.is_some())?;
    let states = bits.position();
    Ok(GcInfo {
        bytes,
        version,
        code_length,
        frame_register,
        generics,
        safe_points: safe_points.into(),
        interruptible: interruptible.into(),
        slots: slots.into(),
        tracked,
        states,
    })
}

/// Returns the number of bits of a number below `count`.
fn bits_for(count: u32) -> u32 {
    count
        .saturating_sub(1)
        .checked_ilog2()
        .map_or(0, |log| log + 1)
}

/// Converts a stack slot's number to an offset.
fn stack_offset(slot: i32) -> Result<i32, Error> {
    slot.checked_mul(8)
        .ok_or(Error::Malformed("a stack slot out of reach"))
}

fn register_number(register: u32) -> Result<u8, Error> {
    match u8::try_from(register) {
        Ok(number) if number < 16 && register != RSP => Ok(number),
        _ => Err(Error::Malformed("no such register")),
    }
}

/// Reads the table of slots: registers, tracked stack slots, other stack slots. Returns the slots
/// and how many are tracked.
fn slots(bits: &mut Bits<'_>, framed: bool) -> Result<(Vec<ReferenceSlot>, usize), Error> {
    let registers = if bits.bit()? { bits.unsigned(2)? } else { 0 };
    let (stack, untracked) = if bits.bit()? {
        (bits.unsigned(2)?, bits.unsigned(1)?)
    } else {
        (0, 0)
    };
    if registers.saturating_add(stack) > MAX_TRACKED {
        return Err(Error::Malformed("too many slots"));
    }
    // The first of each kind is stored in full, and a later one if the flags before it are set.
    let mut slots: Vec<ReferenceSlot> = Vec::new();
    let (mut number, mut flags) = (0, 0);
    for index in 0..registers {
        if index == 0 || flags != 0 {
            number = bits.unsigned(3)?;
            flags = bits.take(2)?;
        } else {
            number = bits.unsigned(2)?.saturating_add(number).saturating_add(1);
        }
        slots.push(ReferenceSlot {
            place: ReferencePlace::Register(register_number(number)?),
            interior: flags & 1 != 0,
            pinned: flags & 2 != 0,
            tracked: true,
        });
    }
    for (count, tracked) in [(stack, true), (untracked, false)] {
        let (mut number, mut flags) = (0i32, 0);
        for index in 0..count {
            let base = match bits.take(2)? {
                0 => SlotBase::CallerSp,
                1 => SlotBase::Sp,
                2 if framed => SlotBase::FrameRegister,
                _ => return Err(Error::Malformed("a slot based on nothing")),
            };
            if index == 0 || flags != 0 {
                number = bits.signed(6)?;
                flags = bits.take(2)?;
            } else {
                let delta = i32::try_from(bits.unsigned(4)?).ok();
                number = delta
                    .and_then(|delta| number.checked_add(delta))
                    .ok_or(Error::Malformed("a stack slot out of reach"))?;
            }
            slots.push(ReferenceSlot {
                place: ReferencePlace::Stack {
                    base,
                    offset: stack_offset(number)?,
                },
                interior: flags & 1 != 0,
                pinned: flags & 2 != 0,
                tracked,
            });
        }
    }
    let tracked = slots.iter().filter(|slot| slot.tracked).count();
    Ok((slots, tracked))
}

/// Reads the set of tracked slots, from one bit each or from runs: first the number of absent
/// slots, then the number of present ones, and so on.
fn set(bits: &mut Bits<'_>, slots: usize) -> Result<Vec<usize>, Error> {
    let mut set = Vec::new();
    if !bits.bit()? {
        for slot in 0..slots {
            if bits.bit()? {
                set.push(slot);
            }
        }
        return Ok(set);
    }
    let (dead, live) = if bits.bit()? { (2, 4) } else { (4, 2) };
    let mut at = bits.unsigned(dead)? as usize;
    while at < slots {
        let end = at + bits.unsigned(live)? as usize + 1;
        set.extend(at..end.min(slots));
        at = end;
        if at < slots {
            at += bits.unsigned(dead)? as usize + 1;
        }
    }
    if at != slots {
        return Err(Error::Malformed("a run behind the last slot"));
    }
    Ok(set)
}

/// A slot in a chunk of interruptible code.
#[derive(Clone, Copy, Debug)]
struct InChunk {
    slot: usize,
    /// Whether the slot is live at the chunk's end.
    last: bool,
    /// Offsets in the chunk at which its liveness changes, as bits.
    changes: u64,
}

impl InChunk {
    /// Whether the slot is live at this offset in the chunk.
    fn at(self, offset: u32) -> bool {
        let later = self.changes & (u64::MAX << offset) & !(1 << offset);
        self.last ^ (later.count_ones() % 2 == 1)
    }
}

/// Location of the chunks' states.
#[derive(Clone, Copy)]
struct Chunks<'a> {
    pointers: Bits<'a>,
    width: u32,
    count: u32,
}

impl<'a> GcInfo<'a> {
    /// Returns the version of its encoding.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the length of the body with its funclets, bytes.
    pub fn code_length(&self) -> u32 {
        self.code_length
    }

    /// Returns the register that frame-based slots are relative to, by its number in instructions.
    pub fn frame_register(&self) -> Option<u8> {
        self.frame_register
    }

    /// Returns the kind and the offset of the hidden argument of shared generic code: from the
    /// caller's stack pointer up to version 3, from the frame register (or the stack pointer)
    /// since.
    pub fn generics(&self) -> Option<(Generics, i32)> {
        self.generics
    }

    /// Returns the offsets at which the state of calls is known. Each plus
    /// [`Version::return_adjustment`] is a return address.
    pub fn safe_points(&self) -> &[u32] {
        &self.safe_points
    }

    /// Returns the ranges in which the state is known at each instruction.
    pub fn interruptible(&self) -> &[Range<u32>] {
        &self.interruptible
    }

    /// Returns all slots, the tracked ones first.
    pub fn slots(&self) -> &[ReferenceSlot] {
        &self.slots
    }

    /// Returns the indices of the tracked slots that are live when the call returns to `offset`, or
    /// `None` if the state is unknown. An unoptimised body has neither safe points nor ranges, and
    /// nothing tracked.
    pub fn live_at_return(&self, offset: u32) -> Result<Option<Vec<usize>>, Error> {
        let Some(lookup) = offset.checked_sub(self.version.return_adjustment()) else {
            return Ok(None);
        };
        match self.safe_points.binary_search(&lookup) {
            Ok(index) => self.live_at_safe_point(index).map(Some),
            Err(_) if self.safe_points.is_empty() && self.interruptible.is_empty() => {
                Ok((lookup < self.code_length).then(Vec::new))
            }
            Err(_) => self.live_at(lookup),
        }
    }

    /// Returns the indices of the tracked slots that are live before the instruction at `offset`,
    /// or `None` outside of interruptible ranges.
    pub fn live_at(&self, offset: u32) -> Result<Option<Vec<usize>>, Error> {
        let mut before = 0;
        for range in &self.interruptible {
            if range.contains(&offset) {
                let at = before + offset - range.start;
                let live = self.chunk(at / CHUNK)?;
                let live = live.iter().filter(|slot| slot.at(at % CHUNK));
                return Ok(Some(live.map(|slot| slot.slot).collect()));
            }
            before += range.end - range.start;
        }
        Ok(None)
    }

    /// Returns the live ranges of each tracked slot within the interruptible ranges, sorted, by its
    /// index.
    pub fn lifetimes(&self) -> Result<Vec<Vec<Range<u32>>>, Error> {
        // The chunks cover all ranges, concatenated.
        let mut lives = vec![Vec::<Range<u32>>::new(); self.tracked];
        let mut since = vec![None::<u32>; self.tracked];
        let Some(chunks) = self.chunks()? else {
            return Ok(lives);
        };
        let length = self.interruptible_length();
        let mut here = vec![None; self.tracked];
        for number in 0..chunks.count {
            let Some(slots) = self.own_chunk(&chunks, number)? else {
                continue;
            };
            here.fill(None);
            for slot in slots {
                if let Some(here) = here.get_mut(slot.slot) {
                    *here = Some(slot);
                }
            }
            let start = number * CHUNK;
            for ((slot, since), lives) in here.iter().zip(&mut since).zip(&mut lives) {
                let (first, mut changes) =
                    slot.map_or((false, 0), |slot| (slot.at(0), slot.changes & !1));
                if first != since.is_some() {
                    changes |= 1;
                }
                while changes != 0 {
                    let at = start + changes.trailing_zeros();
                    changes &= changes - 1;
                    match since.take() {
                        Some(since) => lives.push(since..at),
                        None => *since = Some(at),
                    }
                }
            }
        }
        for (since, lives) in since.iter().zip(&mut lives) {
            lives.extend(since.map(|since| since..length));
        }
        Ok(lives
            .into_iter()
            .map(|lives| self.in_code(&lives))
            .collect())
    }

    /// Converts places in the concatenated interruptible ranges to code offsets.
    fn in_code(&self, places: &[Range<u32>]) -> Vec<Range<u32>> {
        let mut found = Vec::new();
        let mut before = 0;
        let mut places = places.iter().peekable();
        for range in &self.interruptible {
            let end = before + (range.end - range.start);
            while let Some(place) = places.peek() {
                let common = place.start.max(before)..place.end.min(end);
                if !common.is_empty() {
                    let shift = |offset| range.start + (offset - before);
                    found.push(shift(common.start)..shift(common.end));
                }
                if place.end > end {
                    break;
                }
                places.next();
            }
            before = end;
        }
        found
    }

    /// Decodes everything once, to check that the bytes are complete.
    pub fn check(&self) -> Result<(), Error> {
        for index in 0..self.safe_points.len() {
            self.live_at_safe_point(index)?;
        }
        self.lifetimes().map(drop)
    }

    fn interruptible_length(&self) -> u32 {
        // The ranges are disjoint and inside of the code.
        self.interruptible
            .iter()
            .map(|range| range.end - range.start)
            .sum()
    }

    /// Returns the width of offsets into the safe points' states (0 if the states follow directly),
    /// and the bits that follow.
    fn safe_point_states(&self) -> Result<(u32, Bits<'_>), Error> {
        let mut bits = Bits::new(&self.bytes, self.states);
        let mut width = 0;
        if !self.safe_points.is_empty() && bits.bit()? {
            width = bits.unsigned(3)?.saturating_add(1);
            if width > 32 {
                return Err(Error::Malformed("an offset of too many bits"));
            }
        }
        Ok((width, bits))
    }

    fn live_at_safe_point(&self, index: usize) -> Result<Vec<usize>, Error> {
        if self.tracked == 0 {
            return Ok(Vec::new());
        }
        let (width, bits) = self.safe_point_states()?;
        if width == 0 {
            let mut bits = bits.skipped(index.saturating_mul(self.tracked));
            let mut live = Vec::new();
            for slot in 0..self.tracked {
                if bits.bit()? {
                    live.push(slot);
                }
            }
            return Ok(live);
        }
        let offset = bits.skipped(index * width as usize).take(width)?;
        let states = bits
            .skipped(self.safe_points.len() * width as usize)
            .aligned();
        set(&mut states.skipped(offset as usize), self.tracked)
    }

    /// Returns the location of the states of interruptible code; `None` if nothing is ever live.
    fn chunks(&self) -> Result<Option<Chunks<'_>>, Error> {
        if self.tracked == 0 || self.interruptible.is_empty() {
            return Ok(None);
        }
        let (width, bits) = self.safe_point_states()?;
        if width != 0 {
            return Err(Error::Malformed("safe points by reference beside ranges"));
        }
        let mut bits = bits.skipped(self.safe_points.len().saturating_mul(self.tracked));
        let width = bits.unsigned(3)?;
        if width > 32 {
            return Err(Error::Malformed("a chunk's pointer of too many bits"));
        }
        Ok((width != 0).then_some(Chunks {
            pointers: bits,
            width,
            count: self.interruptible_length().div_ceil(CHUNK),
        }))
    }

    /// Returns the slots that are live somewhere in the chunk with this number.
    fn chunk(&self, number: u32) -> Result<Vec<InChunk>, Error> {
        let Some(chunks) = self.chunks()? else {
            return Ok(Vec::new());
        };
        for found in (0..=number).rev() {
            let Some(mut slots) = self.own_chunk(&chunks, found)? else {
                continue;
            };
            if found != number {
                // The state is that of the previous chunk's end.
                slots.iter_mut().for_each(|slot| slot.changes = 0);
            }
            return Ok(slots);
        }
        Ok(Vec::new())
    }

    /// Returns the chunk's own state, if it has one.
    fn own_chunk(&self, chunks: &Chunks<'_>, number: u32) -> Result<Option<Vec<InChunk>>, Error> {
        let table = chunks.pointers;
        let at = |number: u32| number as usize * chunks.width as usize;
        let pointer = table.skipped(at(number)).take(chunks.width)?;
        let Some(offset) = pointer.checked_sub(1) else {
            return Ok(None);
        };
        let states = table.skipped(at(chunks.count)).aligned();
        let mut bits = states.skipped(offset as usize);
        let slots = set(&mut bits, self.tracked)?;
        let mut last = bits;
        let mut bits = bits.skipped(slots.len());
        let mut live = Vec::with_capacity(slots.len());
        for slot in slots {
            let last = last.bit()?;
            let mut changes = 0;
            while bits.bit()? {
                changes ^= 1 << bits.take(6)?;
            }
            live.push(InChunk {
                slot,
                last,
                changes,
            });
        }
        Ok(Some(live))
    }
}

#[cfg(test)]
mod tests;
