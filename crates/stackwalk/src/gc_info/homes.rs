//! Stack slots (homes) that may hold `this` in a state machine's `MoveNext`, and their lifetimes.
//!
//! Input is a body's [`GcInfo`] and its code; output is a list of candidate slots, selected by how
//! the code uses them. The reader of a slot must check that it really holds the state machine.
//! Invariant: a home's `live` never includes an offset at which the slot is not written yet, or the
//! frame is removed already.
//!
//! `MoveNext` has try blocks, so the JIT keeps its `this` on the stack. The prologue stores the
//! argument register there, and the slot holds it as long as the GC treats it as live.

use super::{Error, GcInfo, ReferencePlace, ReferenceSlot, SlotBase};
use std::ops::Range;

/// Maximum number of homes per method body.
pub const MAX_HOMES: usize = 4;
/// Maximum number of live ranges per home. Beyond that the shortest are dropped.
pub const MAX_LIVE: usize = 8;
/// `rbp`, in the register numbers of the instruction set.
const RBP: u8 = 5;
/// Maximum code offset, in bytes, at which a body stores its arguments.
const PROLOGUE: u32 = 1024;

/// A stack slot that may hold `this`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Home {
    /// Offset of the slot from the frame's `rbp`.
    pub offset: i32,
    /// Whether it may point into an object or to the stack (`this` of a struct). If not, it is an
    /// object.
    pub interior: bool,
    /// Whether the GC tracks when it is live. If not, `live` is all between prologue and epilogues.
    pub tracked: bool,
    /// Whether the prologue stores the first argument's register there.
    pub stored: bool,
    /// Code offsets at which it holds its value, sorted. An offset is that of the instruction to
    /// run, or a return address minus
    /// [`Version::return_adjustment`](super::Version::return_adjustment).
    pub live: Vec<Range<u32>>,
}

impl Home {
    fn lives(&self) -> u32 {
        self.live.iter().map(|range| range.end - range.start).sum()
    }
}

/// Returns the stack slots that may hold `this` in the body with this GcInfo and code, the best
/// first. `entries` are the offsets at which its functions begin, sorted: 0, then its funclets'.
/// Empty for a body that is not framed by `rbp`.
pub fn this_homes(info: &GcInfo<'_>, code: &[u8], entries: &[u32]) -> Result<Vec<Home>, Error> {
    let mut homes = Vec::new();
    if info.frame_register() != Some(RBP) {
        return Ok(homes);
    }
    let code = code.get(..info.code_length() as usize).unwrap_or(code);
    let breaks = breaks(code, entries);
    let slots = || {
        let offset = |slot: &ReferenceSlot| match slot.place {
            ReferencePlace::Stack {
                base: SlotBase::FrameRegister,
                offset,
            } => Some((offset, *slot)),
            _ => None,
        };
        let slots = info.slots().iter().enumerate();
        slots.filter_map(move |(index, slot)| offset(slot).map(|(at, slot)| (index, at, slot)))
    };
    // After the prologue the register may hold anything. The prologue's end is not recorded for a
    // body that can be stopped at calls only. In an unoptimised body, the first store is that of
    // the argument.
    let prologue = match (info.interruptible().first(), info.safe_points()) {
        (Some(first), _) => first.start,
        (None, []) => PROLOGUE,
        (None, _) => 0,
    };
    let first_store = stores(code)
        .take_while(|(_, end)| *end <= prologue)
        .find(|(offset, _)| slots().any(|(_, slot, _)| slot == *offset));
    let lifetimes = info.lifetimes()?;
    for (index, offset, slot) in slots() {
        let stored = first_store.filter(|store| store.0 == offset);
        let live = match (lifetimes.get(index), stored) {
            (Some(lives), _) => joined(lives, info.interruptible(), &breaks),
            (None, Some((_, end))) => everywhere(info, end, &breaks),
            // The start of its lifetime is unknown.
            (None, None) => continue,
        };
        homes.push(Home {
            offset,
            interior: slot.interior,
            tracked: slot.tracked,
            stored: stored.is_some(),
            live: longest(live),
        });
    }
    homes.retain(|home| !home.live.is_empty());
    homes.sort_by_key(|home| {
        let rank = (home.stored, home.interior, home.lives());
        std::cmp::Reverse(rank)
    });
    homes.truncate(MAX_HOMES);
    Ok(homes)
}

/// Returns pairs of adjacent stack slots that hold whole objects wherever the body can be stopped,
/// as a stack structure with its address taken does. Each is the offset from the frame's `rbp` of
/// its first slot, sorted. Empty for a body that is not framed by `rbp`.
pub fn untracked_pairs(info: &GcInfo<'_>) -> Vec<i32> {
    if info.frame_register() != Some(RBP) {
        return Vec::new();
    }
    let mut offsets: Vec<i32> = info
        .slots()
        .iter()
        .filter(|slot| !slot.tracked && !slot.interior)
        .filter_map(|slot| match slot.place {
            ReferencePlace::Stack {
                base: SlotBase::FrameRegister,
                offset,
            } => Some(offset),
            _ => None,
        })
        .collect();
    offsets.sort_unstable();
    let is_pair = |at: &i32| {
        let next = at.checked_add(8);
        next.is_some_and(|next| offsets.binary_search(&next).is_ok())
    };
    offsets.iter().copied().filter(is_pair).collect()
}

/// Returns the slots that hold whole objects when the call returns to `offset`: callee-saved
/// registers, then stack slots, then those that are live everywhere. `None` if the state is
/// unknown.
pub fn live_at_return(info: &GcInfo<'_>, offset: u32) -> Result<Option<Vec<ReferenceSlot>>, Error> {
    let Some(live) = info.live_at_return(offset)? else {
        return Ok(None);
    };
    let tracked = live.iter().filter_map(|index| info.slots().get(*index));
    let untracked = info.slots().iter().filter(|slot| !slot.tracked);
    let slots = tracked.chain(untracked).copied();
    Ok(Some(slots.filter(is_kept).collect()))
}

/// Whether a slot holds a whole object over calls.
fn is_kept(slot: &ReferenceSlot) -> bool {
    let is_preserved = match slot.place {
        ReferencePlace::Register(register) => matches!(register, 3 | 5 | 12..=15),
        ReferencePlace::Stack { .. } => true,
    };
    is_preserved && !slot.interior
}

/// Returns the non-empty results of [`live_at_return`] for all return addresses: their offsets, and
/// the slots that hold whole objects there. For a body that can be stopped anywhere and has no safe
/// points, each entry is the offset range over which a slot's state is the same.
pub fn live_at_returns(info: &GcInfo<'_>) -> Result<Vec<(Range<u32>, ReferenceSlot)>, Error> {
    let adjustment = info.version().return_adjustment();
    let mut places: Vec<Range<u32>> = info
        .safe_points()
        .iter()
        .filter_map(|point| point.checked_add(adjustment))
        .map(|at| at..at.saturating_add(1))
        .collect();
    if places.is_empty() && info.interruptible().is_empty() {
        // The state is the same everywhere.
        places.push(adjustment..info.code_length().saturating_add(adjustment));
    }
    let mut found = Vec::new();
    if places.is_empty() {
        let behind = |range: &Range<u32>| {
            let [start, end] = [range.start, range.end].map(|at| at.saturating_add(adjustment));
            start..end
        };
        let lifetimes = info.lifetimes()?;
        for (index, slot) in info
            .slots()
            .iter()
            .enumerate()
            .filter(|(_, slot)| is_kept(slot))
        {
            let lives = match lifetimes.get(index) {
                Some(lives) if slot.tracked => lives,
                _ => info.interruptible(),
            };
            found.extend(lives.iter().map(|range| (behind(range), *slot)));
        }
    }
    for place in places {
        let slots = live_at_return(info, place.start)?.unwrap_or_default();
        found.extend(slots.into_iter().map(|slot| (place.clone(), slot)));
    }
    Ok(found)
}

/// Iterates over stores of `rdi` into the frame, `mov [rbp + offset], rdi`, at the start of the
/// code: the offset, and the end of the instruction. They are found by their bytes, so some may be
/// parts of other instructions. A slot with the same offset confirms one.
fn stores(code: &[u8]) -> impl Iterator<Item = (i32, u32)> {
    let head = code.get(..PROLOGUE as usize).unwrap_or(code);
    (0..head.len()).filter_map(|at| match head.get(at..)? {
        [0x48, 0x89, 0x7d, offset, ..] => Some((i32::from(*offset as i8), at as u32 + 4)),
        [0x48, 0x89, 0xbd, a, b, c, d, ..] => {
            Some((i32::from_le_bytes([*a, *b, *c, *d]), at as u32 + 7))
        }
        _ => None,
    })
}

/// Returns the offsets at which a frame ends or begins, sorted: epilogues (from the first pop to
/// the end of the leaving instruction) and starts of funclets. Epilogues are found by their bytes;
/// extra matches are harmless.
fn breaks(code: &[u8], entries: &[u32]) -> Vec<Range<u32>> {
    let mut found: Vec<Range<u32>> = entries.iter().map(|entry| *entry..*entry + 1).collect();
    for (at, byte) in code.iter().enumerate() {
        // `pop rbp` or `leave`, followed by a return, a jump or `vzeroupper`.
        let leaves = match code.get(at + 1) {
            Some(0xc3) => 1,
            Some(0xeb) => 2,
            Some(0xe9) => 5,
            Some(0xff | 0x48 | 0x49 | 0xc5) => 8,
            _ => continue,
        };
        if !matches!(byte, 0x5d | 0xc9) {
            continue;
        }
        let mut start = at;
        loop {
            start -= match code.get(..start).unwrap_or_default() {
                [.., 0x41, 0x5c..=0x5f] => 2,
                [.., 0x5b] => 1,
                _ => break,
            };
        }
        found.push(start as u32..(at + 1 + leaves) as u32);
    }
    found.sort_by_key(|range| range.start);
    found
}

/// Returns where a slot that the prologue writes by `from`, and that is used for nothing else,
/// holds its value: all instructions outside of prologues and epilogues.
fn everywhere(info: &GcInfo<'_>, from: u32, breaks: &[Range<u32>]) -> Vec<Range<u32>> {
    let mut live = if info.interruptible().is_empty() {
        // The end of a body without funclets, or of its main part.
        let mut end = info.code_length();
        let mut parts = Vec::new();
        let mut start = from;
        for part in breaks.iter().filter(|part| part.start > 0) {
            if part.end - part.start == 1 {
                end = end.min(part.start);
            }
            if part.start > start {
                parts.push(start..part.start);
            }
            start = start.max(part.end);
        }
        parts.push(start..info.code_length());
        parts
            .iter_mut()
            .for_each(|part| part.end = part.end.min(end));
        parts
    } else {
        let ranges = info.interruptible();
        joined(ranges, ranges, breaks)
    };
    live.iter_mut()
        .for_each(|range| range.start = range.start.max(from));
    live.retain(|range| range.start < range.end);
    live
}

/// Joins lifetimes across code that is not interruptible, except where a frame ends or begins. No
/// collection happens there, so a slot that is live on both sides keeps its value.
fn joined(
    lives: &[Range<u32>],
    interruptible: &[Range<u32>],
    breaks: &[Range<u32>],
) -> Vec<Range<u32>> {
    let mut joined: Vec<Range<u32>> = Vec::new();
    for life in lives {
        if let Some(last) = joined.last_mut() {
            let gap = last.end..life.start;
            let within = |ranges: &[Range<u32>]| {
                let behind = ranges.partition_point(|range| range.start < gap.start);
                let range = ranges.get(behind);
                range.is_some_and(|range| range.start < gap.end)
            };
            let starts = interruptible.partition_point(|range| range.end <= gap.start);
            let dead = interruptible
                .get(starts)
                .is_some_and(|range| range.start < gap.end);
            if !dead && !within(breaks) {
                last.end = life.end;
                continue;
            }
        }
        joined.push(life.clone());
    }
    joined
}

/// Returns the longest of sorted ranges, still sorted.
fn longest(mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    while ranges.len() > MAX_LIVE {
        let shortest =
            (0..ranges.len()).min_by_key(|index| ranges.get(*index).map_or(0, Range::len));
        ranges.remove(shortest.unwrap_or(0));
    }
    ranges
}
