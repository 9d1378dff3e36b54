//! Where `this` is: in the frame of a state machine's `MoveNext`, and live across a call.
//!
//! It chooses slots by how they are used; whether one truly holds the state machine is for who
//! reads it to check. The invariant: a home's `live` never has a place where the slot is not
//! written yet, or the frame is gone already.
//!
//! `MoveNext` has try blocks, so the JIT keeps its `this` on the stack: the register that brings it
//! is stored in the prologue, and the slot then holds it for as long as the collector is told so.

use super::{Error, GcInfo, ReferencePlace, ReferenceSlot, SlotBase};
use std::ops::Range;

/// Most homes that are told for a body.
pub const MAX_HOMES: usize = 4;
/// Most places that are told for a home; more are left out, the shortest first.
pub const MAX_LIVE: usize = 8;
/// `rbp` in the numbering of the instruction set.
const RBP: u8 = 5;
/// Bytes from the start of a body in which its arguments are stored at most.
const PROLOGUE: u32 = 1024;

/// A stack slot that may hold `this`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Home {
    /// Where the slot is from the frame's `rbp`.
    pub offset: i32,
    /// It may point into an object or to the stack: `this` of a struct. Else it is an object.
    pub interior: bool,
    /// The collector knows when it is live; otherwise `live` is all between prologue and epilogues.
    pub tracked: bool,
    /// The prologue stores the first argument's register there.
    pub stored: bool,
    /// Offsets in the code at which it holds its value, sorted: of the instruction that is to run,
    /// or of a return address less
    /// [`Version::return_adjustment`](super::Version::return_adjustment).
    pub live: Vec<Range<u32>>,
}

impl Home {
    fn lives(&self) -> u32 {
        self.live.iter().map(|range| range.end - range.start).sum()
    }
}

/// The stack slots that may hold `this` in the body with this GcInfo and these bytes of code, the
/// best first. `entries` are the offsets at which its functions begin, sorted: 0, then its
/// funclets'. Empty for a body that is not framed by `rbp`.
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
    // Behind the prologue the register may hold anything. Where that ends is not recorded for a
    // body that can be stopped at calls alone; if that was not optimised, the first store is the
    // argument's.
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
            // It is not known since when.
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

/// Pairs of neighbouring stack slots that hold whole objects wherever the body can be stopped, as a
/// structure on the stack whose address was taken does: offsets from the frame's `rbp` of the first
/// of each pair, sorted. Empty for a body that is not framed by `rbp`.
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

/// The slots that hold whole objects when the call returns to `offset`: registers that calls
/// preserve, then stack slots, then those that are live everywhere. `None` where the state is not
/// known.
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

/// Returns what [`live_at_return`] says at each place of its own, if it says something: return
/// addresses, as offsets, and slots that hold whole objects at them. Of a body that can be stopped
/// anywhere, and has no such places, from where to where it says the same of a slot.
pub fn live_at_returns(info: &GcInfo<'_>) -> Result<Vec<(Range<u32>, ReferenceSlot)>, Error> {
    let adjustment = info.version().return_adjustment();
    let mut places: Vec<Range<u32>> = info
        .safe_points()
        .iter()
        .filter_map(|point| point.checked_add(adjustment))
        .map(|at| at..at.saturating_add(1))
        .collect();
    if places.is_empty() && info.interruptible().is_empty() {
        // The same everywhere.
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

/// Stores of `rdi` into the frame, `mov [rbp + offset], rdi`, at the start of the code: the offset,
/// and where the instruction ends. Found by their bytes, so some may be parts of others; a slot of
/// the same offset tells.
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

/// Where a frame ends or begins, sorted: its epilogues, each from the first pop to the end of what
/// leaves, and the starts of funclets. Epilogues are found by their bytes; too many do no harm.
fn breaks(code: &[u8], entries: &[u32]) -> Vec<Range<u32>> {
    let mut found: Vec<Range<u32>> = entries.iter().map(|entry| *entry..*entry + 1).collect();
    for (at, byte) in code.iter().enumerate() {
        // `pop rbp` or `leave`, then a return, a jump or `vzeroupper`.
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

/// Where a slot holds its value that the prologue writes by `from`, and that is never another's:
/// where instructions are known to be neither of a prologue nor of an epilogue.
fn everywhere(info: &GcInfo<'_>, from: u32, breaks: &[Range<u32>]) -> Vec<Range<u32>> {
    let mut live = if info.interruptible().is_empty() {
        // Of a body without funclets, or of its main part.
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

/// Lifetimes, joined over what is not interruptible between them: no collection comes there, so
/// what is live on both sides is kept. Not where a frame ends or begins.
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

/// The longest of sorted ranges, still sorted.
fn longest(mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    while ranges.len() > MAX_LIVE {
        let shortest =
            (0..ranges.len()).min_by_key(|index| ranges.get(*index).map_or(0, Range::len));
        ranges.remove(shortest.unwrap_or(0));
    }
    ranges
}
