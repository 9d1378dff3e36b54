//! Encoder of GcInfo in all variants of the format, and tests that the decoder reads what it wrote.

use super::super::*;
use proptest::prelude::*;

/// A stream of bits, least significant first.
#[derive(Default)]
struct Writer(Vec<bool>);

impl Writer {
    fn bits(&mut self, value: u32, width: u32) {
        self.0.extend((0..width).map(|bit| value >> bit & 1 != 0));
    }

    fn unsigned(&mut self, mut value: u32, base: u32) {
        loop {
            let rest = value >> base;
            self.bits(value & ((1 << base) - 1), base);
            self.bits(u32::from(rest != 0), 1);
            if rest == 0 {
                return;
            }
            value = rest;
        }
    }

    fn signed(&mut self, mut value: i32, base: u32) {
        loop {
            let rest = value >> base;
            let sign = value >> (base - 1) & 1 != 0;
            let more = !(rest == 0 && !sign || rest == -1 && sign);
            self.bits(value as u32 & ((1 << base) - 1), base);
            self.bits(u32::from(more), 1);
            if !more {
                return;
            }
            value = rest;
        }
    }

    fn align(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(8), false);
    }

    fn bytes(&self) -> Vec<u8> {
        let byte = |bits: &[bool]| (0..).zip(bits).map(|(at, bit)| u8::from(*bit) << at).sum();
        self.0.chunks(8).map(byte).collect()
    }
}

/// The content to encode.
#[derive(Clone, Debug)]
pub(super) struct Body {
    version: Version,
    length: u32,
    fat: bool,
    framed: bool,
    /// GS cookie, generics (0 to 3), security object, PSPSym, edit and continue, reverse P/Invoke.
    extras: (bool, u8, bool, bool, bool, bool),
    registers: Vec<(u8, u8)>,
    /// Base, number and flags of each tracked slot.
    tracked: Vec<(u8, i32, u8)>,
    untracked: Vec<(u8, i32, u8)>,
    /// Offset of each safe point, and the slots live there.
    safe_points: Vec<(u32, Vec<bool>)>,
    indirect: bool,
    runs: bool,
    ranges: Vec<Range<u32>>,
    /// Liveness of each slot, over the concatenated interruptible ranges.
    lives: Vec<Vec<bool>>,
    /// Whether chunks are also written if nothing changes.
    all_chunks: bool,
}

impl Body {
    fn slots(&self) -> Vec<ReferenceSlot> {
        let slot = |place, flags: u8, tracked| ReferenceSlot {
            place,
            interior: flags & 1 != 0,
            pinned: flags & 2 != 0,
            tracked,
        };
        let stack = |(base, number, flags): &(u8, i32, u8), tracked| {
            let base =
                [SlotBase::CallerSp, SlotBase::Sp, SlotBase::FrameRegister][usize::from(*base)];
            slot(
                ReferencePlace::Stack {
                    base,
                    offset: number * 8,
                },
                *flags,
                tracked,
            )
        };
        let registers = self.registers.iter();
        registers
            .map(|(number, flags)| slot(ReferencePlace::Register(*number), *flags, true))
            .chain(self.tracked.iter().map(|known| stack(known, true)))
            .chain(self.untracked.iter().map(|known| stack(known, false)))
            .collect()
    }

    fn tracked(&self) -> usize {
        self.registers.len() + self.tracked.len()
    }

    fn set(&self, out: &mut Writer, live: &[bool]) {
        if !self.runs {
            out.bits(0, 1);
            live.iter().for_each(|live| out.bits(u32::from(*live), 1));
            return;
        }
        out.bits(1, 1);
        // The kind of the first group determines the widths of both.
        let swapped = live.len() % 2 == 1;
        out.bits(u32::from(swapped), 1);
        let width = |alive: bool| if alive != swapped { 2 } else { 4 };
        let mut at = 0;
        let mut alive = false;
        while at < live.len() {
            let run = live[at..].iter().take_while(|live| **live == alive).count();
            let first = at == 0 && !alive;
            out.unsigned((run - usize::from(!first)) as u32, width(alive));
            at += run;
            alive = !alive;
            if first && run == 0 {
                continue;
            }
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = Writer::default();
        let (cookie, generics, security, psp_sym, edit, reverse) = self.extras;
        let old = self.version != Version::V4;
        let (security, psp_sym) = (security && old, psp_sym && old);
        out.bits(u32::from(self.fat), 1);
        if self.fat {
            let flags = [
                (security, 0x2),
                (cookie, 0x4),
                (psp_sym, 0x8),
                (self.framed, 0x40),
                (edit, 0x100),
                (reverse, 0x200),
            ];
            let flags = flags
                .iter()
                .map(|(set, bit)| u32::from(*set) * bit)
                .sum::<u32>();
            out.bits(flags | u32::from(generics) << 4, 10);
        } else {
            out.bits(u32::from(self.framed), 1);
        }
        if old {
            out.bits(1, if self.fat { 4 } else { 2 });
        }
        out.unsigned(self.length, 8);
        if self.fat {
            if cookie {
                out.unsigned(40, 5);
                out.unsigned(9, 3);
            } else if security || generics != 0 {
                out.unsigned(17, 5);
            }
            for (present, slot) in [
                (security, -3),
                (cookie, -70),
                (psp_sym, 2),
                (generics != 0, -4),
            ] {
                if present {
                    out.signed(slot, 6);
                }
            }
            if self.framed {
                out.unsigned(0, 3);
            }
            if edit {
                out.unsigned(30, 4);
            }
            if reverse {
                out.signed(-9, 6);
            }
            out.unsigned(6, 3);
        }
        out.unsigned(self.safe_points.len() as u32, 2);
        if self.fat {
            out.unsigned(self.ranges.len() as u32, 1);
        }
        let width = bits_for(self.length);
        self.safe_points
            .iter()
            .for_each(|point| out.bits(point.0, width));
        let mut end = 0;
        for range in &self.ranges {
            out.unsigned(range.start - end, 6);
            out.unsigned(range.end - range.start - 1, 6);
            end = range.end;
        }
        self.write_slots(&mut out);
        if self.tracked() > 0 {
            self.write_states(&mut out);
        }
        out.bytes()
    }

    fn write_slots(&self, out: &mut Writer) {
        out.bits(u32::from(!self.registers.is_empty()), 1);
        if !self.registers.is_empty() {
            out.unsigned(self.registers.len() as u32, 2);
        }
        let stack = self.tracked.len() + self.untracked.len() > 0;
        out.bits(u32::from(stack), 1);
        if stack {
            out.unsigned(self.tracked.len() as u32, 2);
            out.unsigned(self.untracked.len() as u32, 1);
        }
        let mut last = None::<(u8, u8)>;
        for (number, flags) in &self.registers {
            match last {
                Some((before, 0)) => out.unsigned(u32::from(number - before - 1), 2),
                _ => {
                    out.unsigned(u32::from(*number), 3);
                    out.bits((*flags).into(), 2);
                }
            }
            last = Some((*number, *flags));
        }
        for slots in [&self.tracked, &self.untracked] {
            let mut last = None::<(i32, u8)>;
            for (base, number, flags) in slots {
                out.bits((*base).into(), 2);
                match last {
                    Some((before, 0)) => out.unsigned((number - before) as u32, 4),
                    _ => {
                        out.signed(*number, 6);
                        out.bits((*flags).into(), 2);
                    }
                }
                last = Some((*number, *flags));
            }
        }
    }

    fn write_states(&self, out: &mut Writer) {
        let states = |live: &[bool]| {
            let mut state = Writer::default();
            self.set(&mut state, live);
            state.0
        };
        if !self.safe_points.is_empty() {
            out.bits(u32::from(self.indirect), 1);
        }
        if self.indirect && !self.safe_points.is_empty() {
            let mut all = Vec::new();
            let mut offsets = Vec::new();
            for (_, live) in &self.safe_points {
                offsets.push(all.len() as u32);
                all.extend(states(live));
            }
            let width = bits_for(all.len() as u32 + 1).max(1);
            out.unsigned(width - 1, 3);
            offsets.iter().for_each(|offset| out.bits(*offset, width));
            out.align();
            out.0.extend(all);
        } else {
            for (_, live) in &self.safe_points {
                live.iter().for_each(|live| out.bits(u32::from(*live), 1));
            }
        }
        let length = self.lives.first().map_or(0, Vec::len);
        if self.ranges.is_empty() {
            return;
        }
        let mut pointers = Vec::new();
        let mut all = Vec::new();
        let mut before = vec![false; self.tracked()];
        for start in (0..length).step_by(64) {
            let end = (start + 64).min(length);
            let chunk: Vec<&[bool]> = self.lives.iter().map(|live| &live[start..end]).collect();
            let changes = (before.iter().zip(&chunk))
                .any(|(before, chunk)| chunk.iter().any(|live| live != before));
            let live: Vec<bool> = chunk.iter().map(|chunk| chunk.contains(&true)).collect();
            if !changes && !self.all_chunks {
                pointers.push(0);
                continue;
            }
            pointers.push(all.len() as u32 + 1);
            all.extend(states(&live));
            let named = || chunk.iter().zip(&live).filter(|(_, live)| **live);
            all.extend(named().map(|(chunk, _)| *chunk.last().unwrap()));
            for (chunk, _) in named() {
                for at in (1..chunk.len()).filter(|at| chunk[*at] != chunk[at - 1]) {
                    let mut change = Writer::default();
                    change.bits(1, 1);
                    change.bits(at as u32, 6);
                    all.extend(change.0);
                }
                all.push(false);
            }
            before = chunk.iter().map(|chunk| *chunk.last().unwrap()).collect();
        }
        let width = bits_for(all.len() as u32 + 1);
        out.unsigned(width, 3);
        if width == 0 {
            return;
        }
        pointers
            .iter()
            .for_each(|pointer| out.bits(*pointer, width));
        out.align();
        out.0.extend(all);
    }
}

fn version() -> impl Strategy<Value = Version> {
    prop::sample::select(vec![Version::V2, Version::V3, Version::V4])
}

/// Generates sorted numbers. Slots after one without flags share its flags.
fn slots(framed: bool) -> impl Strategy<Value = Vec<(u8, i32, u8)>> {
    let bases = if framed { 3u8 } else { 2 };
    let slot = (0..bases, -300..300i32, 0..4u8);
    prop::collection::vec(slot, 0..7).prop_map(|mut slots| {
        slots.sort_by_key(|slot| (std::cmp::Reverse(slot.2), slot.1));
        slots
    })
}

pub(super) fn body() -> impl Strategy<Value = Body> {
    let shape = (
        version(),
        2..5_000u32,
        any::<bool>(),
        any::<bool>(),
        any::<(bool, bool, bool, bool, bool)>(),
        0..4u8,
    );
    shape.prop_flat_map(|(version, length, fat, framed, extras, generics)| {
        let registers = prop::collection::btree_set(
            prop::sample::select(vec![0u8, 1, 2, 3, 5, 6, 7, 8, 11, 12, 13, 14, 15]),
            0..6,
        );
        let ends = prop::collection::btree_set(0..length, 0..8);
        let points = prop::collection::btree_set(0..length, 0..12);
        let ways = any::<(bool, bool, bool)>();
        let seeds = any::<(u64, u64)>();
        let parts = (
            registers,
            slots(framed),
            slots(framed),
            ends,
            points,
            ways,
            seeds,
        );
        parts.prop_map(
            move |(registers, tracked, untracked, ends, points, ways, seeds)| {
                let mut random = seeds.0 | 1;
                let mut next = move || {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random
                };
                let flagged = seeds.1 % 3;
                let registers: Vec<(u8, u8)> = registers
                    .into_iter()
                    .map(|number| (number, if flagged == 0 { 0 } else { flagged as u8 }))
                    .collect();
                let ends: Vec<u32> = ends.into_iter().collect();
                let ranges: Vec<Range<u32>> = if fat {
                    ends.as_chunks::<2>()
                        .0
                        .iter()
                        .map(|[a, b]| *a..*b)
                        .collect()
                } else {
                    Vec::new()
                };
                let count = registers.len() + tracked.len();
                let total: u32 = ranges.iter().map(|range| range.end - range.start).sum();
                let lives = (0..count).map(|_| {
                    let mut alive = false;
                    let live = |_| {
                        alive ^= next() % 90 == 0;
                        alive
                    };
                    (0..total).map(live).collect()
                });
                let lives = lives.collect();
                let safe_points = points
                    .into_iter()
                    .filter(|point| !ranges.iter().any(|range| range.contains(point)))
                    .map(|point| (point, (0..count).map(|_| next() % 3 == 0).collect()))
                    .collect();
                Body {
                    version,
                    length,
                    fat,
                    framed,
                    extras: (extras.0, generics, extras.1, extras.2, extras.3, extras.4),
                    registers,
                    tracked,
                    untracked,
                    safe_points,
                    indirect: ways.0 && ranges.is_empty(),
                    runs: ways.1,
                    ranges,
                    lives,
                    all_chunks: ways.2,
                }
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn what_is_written_is_read(body in body()) {
        let bytes = body.write();
        let info = decode(&bytes[..], body.version, body.length).unwrap();
        info.check().unwrap();
        prop_assert_eq!(info.frame_register(), body.framed.then_some(5));
        prop_assert_eq!(info.slots(), body.slots());
        prop_assert_eq!(info.interruptible(), &body.ranges[..]);
        let points: Vec<u32> = body.safe_points.iter().map(|point| point.0).collect();
        prop_assert_eq!(info.safe_points(), &points[..]);
        let kinds = [None, Some(Generics::MethodTable), Some(Generics::Method), Some(Generics::This)];
        let generics = kinds[usize::from(body.extras.1)].filter(|_| body.fat);
        prop_assert_eq!(info.generics(), generics.map(|kind| (kind, -32)));

        let indices = |live: &[bool]| (0..live.len()).filter(|at| live[*at]).collect::<Vec<_>>();
        for (point, live) in &body.safe_points {
            let at = point + body.version.return_adjustment();
            prop_assert_eq!(info.live_at_return(at).unwrap(), Some(indices(live)));
        }
        // All of them at once, if no place between them has a state of its own.
        let returns = live_at_returns(&info).unwrap();
        for offset in 0..=body.length {
            let slots = returns.iter().filter(|(at, _)| at.contains(&offset));
            let slots = slots.map(|(_, slot)| *slot).collect::<Vec<_>>();
            let is_one = points.iter().any(|point| point + body.version.return_adjustment() == offset);
            let everywhere = points.is_empty();
            let expected = match (is_one || everywhere, live_at_return(&info, offset).unwrap()) {
                (true, Some(expected)) => expected,
                _ => Vec::new(),
            };
            prop_assert_eq!(slots, expected, "{}", offset);
        }
        let lifetimes = info.lifetimes().unwrap();
        let mut before = 0;
        for offset in 0..=body.length {
            let range = body.ranges.iter().find(|range| range.contains(&offset));
            let live = range.map(|range| {
                let at = (before + offset - range.start) as usize;
                if offset + 1 == range.end {
                    before += range.end - range.start;
                }
                indices(&body.lives.iter().map(|live| live[at]).collect::<Vec<_>>())
            });
            let in_lifetimes = |slot: &usize| {
                lifetimes[*slot].iter().any(|life| life.contains(&offset))
            };
            let all = (0..lifetimes.len()).filter(in_lifetimes).collect::<Vec<_>>();
            prop_assert_eq!(&all, &live.clone().unwrap_or_default());
            prop_assert_eq!(info.live_at(offset).unwrap(), live);
        }
    }

    /// Truncated, inverted or misinterpreted bytes give a result or an error, never a panic.
    #[test]
    fn damaged_bytes_are_an_error_at_worst(
        body in body(),
        cut in any::<prop::sample::Index>(),
        turned in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        read_as in version(),
        code in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let whole = body.write();
        let mut bytes = whole.clone();
        for (at, value) in turned {
            *at.get_mut(&mut bytes) ^= value;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        let length = code_length(&bytes, read_as).unwrap_or(body.length);
        if let Ok(info) = decode(bytes, read_as, length) {
            let _ = (info.check(), info.lifetimes());
            let _ = (this_homes(&info, &code, &[0, 40]), live_at_returns(&info));
            for offset in (0..length.min(3_000)).step_by(7) {
                let _ = (info.live_at(offset), live_at_return(&info, offset));
            }
        }
        // Missing parts are detected.
        let half = &whole[..whole.len() / 2];
        let read = decode(half, body.version, body.length).and_then(|info| info.check());
        prop_assert!(matches!(read, Ok(()) | Err(Error::Truncated)));
    }
}
