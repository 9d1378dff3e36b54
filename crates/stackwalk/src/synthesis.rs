//! Unwind rows for native code that has none, made from the code itself when its module is found.
//!
//! musl has no unwind tables, nor has some hand-written code. Compiled functions move the stack
//! pointer by constants, so what lies between it and the CFA (its *height*) can be worked out for
//! nearly every instruction: from where functions begin, and back from where they return (`flow`).
//! It reads no table and no symbol: a compiler's cold part of a function has one too. The
//! invariants: it says something only where everything that leads to an instruction agrees; all
//! work is bounded by the length of the code, and no code makes it fail.

use crate::cfi;
use crate::native::{NativeCode, NativeModule, Row, Rows};
use crate::rule::{Bp, Cfa, Rule};
use crate::x86::instruction::{Effect, decode};
use flow::{Flow, Frame, Saved};
use std::ops::Range;

mod flow;

/// Bytes of a module's code that are read; what lies behind has no rows.
const LONGEST: usize = 16 << 20;
/// Bytes that are looked at together. It takes some 15 times as much memory meanwhile.
const PIECE: usize = 1 << 20;

/// A decoded instruction, or a byte that is none.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// From the start of the code.
    at: u32,
    length: u8,
    effect: Effect,
}

impl Step {
    fn end(&self) -> u32 {
        self.at + u32::from(self.length)
    }

    /// The bytes at a distance from its end; `None` outside the code.
    fn target(&self, offset: i32, code: usize) -> Option<u32> {
        let target = self.end().checked_add_signed(offset)?;
        ((target as usize) < code).then_some(target)
    }

    /// Whether the next instruction is not run after it.
    fn is_last(&self) -> bool {
        matches!(
            self.effect,
            Effect::Jump(_) | Effect::JumpOut | Effect::JumpThrough | Effect::Return | Effect::Stop
        )
    }
}

/// The instructions of a piece of code, one behind the other.
struct Listing {
    /// Bytes of code.
    length: usize,
    steps: Vec<Step>,
    /// Where functions begin: what is called, and the program's entry. Sorted.
    starts: Vec<u32>,
    /// Where they may begin: what an address is taken of. Sorted.
    candidates: Vec<u32>,
}

impl Listing {
    /// Reads the code that lies at `start`, perhaps in the midst of an instruction. The program
    /// begins at `entry`.
    fn of(code: &[u8], start: u64, entry: u64, in_midst: bool) -> Self {
        let entry = entry
            .checked_sub(start)
            .filter(|into| *into < code.len() as u64);
        let mut starts = Vec::from_iter(entry.map(|into| into as u32));
        let mut candidates = Vec::new();
        for step in sweep(code, &[], in_midst) {
            match step.effect {
                Effect::Call(offset) => starts.extend(step.target(offset, code.len())),
                Effect::Address(offset) => candidates.extend(step.target(offset, code.len())),
                _ => {}
            }
        }
        for places in [&mut starts, &mut candidates] {
            places.sort_unstable();
            places.dedup();
        }
        Self {
            length: code.len(),
            steps: sweep(code, &starts, in_midst).collect(),
            starts,
            candidates,
        }
    }

    /// The number of the instruction that begins there.
    fn index(&self, at: u32) -> Option<usize> {
        self.steps.binary_search_by_key(&at, |step| step.at).ok()
    }
}

/// Behind bytes that are no instruction, which are data, so many are not believed: they may be read
/// from the middle of one.
const DATA: usize = 16;

/// Reads instruction after instruction. One begins at each of `starts`, whatever lies before.
fn sweep(code: &[u8], starts: &[u32], in_midst: bool) -> impl Iterator<Item = Step> {
    let (mut at, mut starts) = (0, starts.iter().copied().peekable());
    let (mut is_filled, mut doubted) = (false, if in_midst { DATA } else { 0 });
    let next = move || {
        let rest = code.get(at..).filter(|rest| !rest.is_empty())?;
        let start = u32::try_from(at).ok()?;
        while starts.next_if(|next| *next <= start).is_some() {
            doubted = 0;
        }
        let room = starts
            .peek()
            .map_or(rest.len(), |next| (next - start) as usize);
        // Zeros fill gaps, and two of them are an instruction that no compiler makes.
        is_filled = rest.starts_with(&[0, 0]) || is_filled && rest.starts_with(&[0]);
        let known = decode(rest).filter(|found| !is_filled && usize::from(found.length) <= room);
        let mut step = Step {
            at: start,
            length: known.map_or(1, |found| found.length),
            effect: known.map_or(Effect::Stop, |found| found.effect),
        };
        if known.is_none() && !is_filled {
            doubted = at + DATA;
        }
        if at < doubted {
            step.effect = Effect::Stop;
        }
        let next = rest.get(usize::from(step.length)..).unwrap_or_default();
        if step.effect == Effect::Call(0)
            && matches!(next, [0x58..=0x5f, ..] | [0x41, 0x58..=0x5f, ..])
        {
            // It pops its own address.
            step.effect = Effect::Move(-8);
        }
        at += usize::from(step.length);
        Some(step)
    };
    std::iter::from_fn(next)
}

/// The known state before an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    /// CFA − stack pointer.
    height: Option<i32>,
    frame: Frame,
    saved: Saved,
}

impl State {
    /// The rule, if what is known suffices.
    fn rule(self) -> Option<Rule> {
        let bp = match self.saved {
            Saved::Root => return Some(Rule::Root),
            Saved::Callers => Bp::Same,
            Saved::Slot(below) => Bp::FromCfa(-below),
            Saved::Unknown | Saved::Lost => return None,
        };
        let cfa = match (self.height, self.frame) {
            // A slot that the stack pointer has left may hold anything.
            (Some(height), _) if bp == Bp::Same || height >= self.saved.below() => Cfa::Sp(height),
            (None, Frame::At(below)) if bp != Bp::Same => Cfa::Bp(below),
            _ => return None,
        };
        Some(Rule::Frame {
            cfa,
            ra: -8,
            bp,
            assumed: false,
        })
    }
}

/// Adds the rows of code that lies at `start`, in order.
fn add_rows(rows: &mut Vec<Row>, start: u64, listing: &Listing) {
    let mut put = |at: u32, packed: u32| {
        if rows.last().map_or(0, |(_, last)| *last) != packed {
            rows.push((start + u64::from(at), packed));
        }
    };
    let mut end = 0;
    Flow::of(listing).each(&mut |step, state| {
        match (state.rule().and_then(Rule::pack), step.effect) {
            // Code that fills a gap never runs, and needs no row of its own.
            (None, Effect::Fill) => {}
            (packed, _) => put(step.at, packed.unwrap_or(0)),
        }
        end = step.end();
    });
    put(end, 0);
}

/// Makes rows of any bytes.
pub(crate) fn probe(bytes: &[u8], at: u64) {
    let listing = Listing::of(bytes, at, at, false);
    add_rows(&mut Vec::new(), at, &listing);
}

/// Makes rows for the code of a module that its tables do not describe: for all of it if they
/// describe less than half, else for what lies around a program's first instruction. `code` has
/// none yet.
pub(crate) fn rows(module: &NativeModule, code: &NativeCode) -> Rows {
    let entry = entry(module, code);
    let is_described = is_described(&module.code, code);
    if is_described && !is_in_gap(entry, module, code) {
        return Rows::NONE;
    }
    let mut rows = Vec::new();
    let wanted = |gap: &Range<u64>| !is_described || gap.contains(&entry);
    let gaps = gaps(&module.code, code).into_iter().filter(wanted);
    read(gaps, code, entry, &mut |start, listing| {
        add_rows(&mut rows, start, listing);
    });
    Rows::of(module.code.start, &rows)
}

/// Reads a module's code at these addresses piece by piece, up to the limit.
fn read(
    ranges: impl IntoIterator<Item = Range<u64>>,
    code: &NativeCode,
    entry: u64,
    each: &mut dyn FnMut(u64, &Listing),
) {
    let mut left = LONGEST;
    for range in ranges {
        for start in range.clone().step_by(PIECE) {
            let length = (range.end - start).min(PIECE as u64) as usize;
            let mut bytes = vec![0; length.min(left)];
            let length = code.code_at(start, &mut bytes).len();
            bytes.truncate(length);
            left -= length;
            let listing = Listing::of(&bytes, start, entry, start > range.start);
            each(start, &listing);
        }
    }
}

/// Whether tables describe at least half of these addresses. Such a module has few gaps, and to
/// fill those of a runtime's libraries took 0.25 s of a program's start.
fn is_described(all: &Range<u64>, code: &NativeCode) -> bool {
    let half = (all.end - all.start) / 2;
    let mut described = 0;
    cfi::functions(code).any(|(start, end)| {
        described += end.saturating_sub(start);
        described >= half
    })
}

/// Whether the module's code is there, and no table describes it.
fn is_in_gap(address: u64, module: &NativeModule, code: &NativeCode) -> bool {
    let table = || cfi::table_rule(code, address, &mut cfi::RowProgram::new());
    module.code.contains(&address) && table() == Ok(None)
}

/// Where the program begins, if this module is one, or its loader. Libraries have any address, most
/// of them none.
fn entry(module: &NativeModule, code: &NativeCode) -> u64 {
    let mut header = [0; 32];
    match code.code_at(module.range.start, &mut header) {
        [0x7f, b'E', b'L', b'F', .., a, b, c, d, e, f, g, h] => {
            u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]).wrapping_add(module.bias)
        }
        _ => 0,
    }
}

/// The parts of these addresses that the tables do not describe.
fn gaps(all: &Range<u64>, code: &NativeCode) -> Vec<Range<u64>> {
    let mut at = all.start;
    let mut gaps = Vec::new();
    let end = std::iter::once((all.end, all.end));
    for (start, end) in cfi::functions(code).chain(end) {
        // Less lies between functions because they begin at a multiple of 16.
        if start.saturating_sub(at) > 15 {
            gaps.push(at..start);
        }
        at = at.max(end);
    }
    gaps
}

#[cfg(test)]
mod tests;
