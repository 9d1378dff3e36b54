//! Decoder of Windows x64 UNWIND_INFO, which the CLR's compilers write on Linux too.
//!
//! Input is a slice that starts with one structure, found by `jit` or `pe`. Invariants: each code
//! is at least two bytes, so every loop is bounded by 255 codes. A structure with any unknown part
//! gives `None`, never a partial rule.
//!
//! Format: "x64 exception handling" of the Windows ABI; the Unix-only code 11,
//! UWOP_SET_FPREG_LARGE, from the runtime's `inc/win64unwind.h`. A rule needs `rbp` only: the JIT
//! uses no other frame register on Unix. [`Saved`] has the locations of the other registers.

use crate::rule::{Bp, Cfa, Rule};

const PUSH_NONVOL: u8 = 0;
const ALLOC_LARGE: u8 = 1;
const ALLOC_SMALL: u8 = 2;
const SET_FPREG: u8 = 3;
const SAVE_NONVOL: u8 = 4;
const SAVE_NONVOL_FAR: u8 = 5;
const EPILOG: u8 = 6;
const SAVE_XMM128: u8 = 8;
const SAVE_XMM128_FAR: u8 = 9;
const SET_FPREG_LARGE: u8 = 11;
/// `rbp`, in the register numbers of the instruction set.
const RBP: u8 = 5;
const CHAINED: u8 = 4;

/// Returns the length of the structure that begins with these bytes, with its chained
/// RUNTIME_FUNCTION: at most 528 bytes.
pub(crate) fn length(bytes: &[u8]) -> Option<usize> {
    let &[head, _, count, _] = bytes.first_chunk::<4>()?;
    let chained = if (head >> 3) & CHAINED != 0 { 12 } else { 0 };
    Some(4 + codes_len(count) + chained)
}

/// Returns the length of `count` codes, two bytes each, padded to four.
fn codes_len(count: u8) -> usize {
    usize::from(count).next_multiple_of(2) * 2
}

/// A validated view of a structure's fixed part.
#[derive(Clone, Copy)]
pub(crate) struct UnwindInfo<'a> {
    pub(crate) prologue_len: u8,
    frame_register: u8,
    /// FrameOffset × 16.
    frame_offset: i64,
    codes: &'a [[u8; 2]],
    /// The RUNTIME_FUNCTION {begin, end, unwind data} whose codes continue these.
    pub(crate) chained: Option<[u32; 3]>,
    /// Length up to the end of the codes (and of the chained function), bytes.
    pub(crate) len: usize,
}

/// One code with its operand.
struct Op {
    /// Offset of the end of its instruction from the function's start.
    at: u8,
    op: u8,
    info: u8,
    operand: i64,
}

impl<'a> UnwindInfo<'a> {
    /// Parses the structure at the start of `bytes`.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (&[head, prologue_len, count, frame], rest) = bytes.split_first_chunk::<4>()?;
        let (version, flags) = (head & 7, head >> 3);
        let frame_register = frame & 15;
        if !(1..=2).contains(&version) || flags > 7 || ![0, RBP].contains(&frame_register) {
            return None;
        }
        let (codes, _) = rest
            .split_at_checked(usize::from(count) * 2)?
            .0
            .as_chunks::<2>();
        let codes_len = codes_len(count);
        let chained = if flags & CHAINED != 0 {
            let (words, _) = rest.get(codes_len..codes_len + 12)?.as_chunks::<4>();
            let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
            Some([words.next()?, words.next()?, words.next()?])
        } else {
            None
        };
        let len = length(bytes)?;
        let info = Self {
            prologue_len,
            frame_register,
            frame_offset: i64::from(frame >> 4) * 16,
            codes,
            chained,
            len,
        };
        // Every code must be known, with its operands inside.
        info.ops().all(|op| op.is_some()).then_some(info)
    }

    /// Returns the end of the last instruction that has a code. SizeOfProlog is smaller in some
    /// images of 3.1.
    pub(crate) fn prologue_end(&self) -> u8 {
        self.ops().flatten().map(|op| op.at).max().unwrap_or(0)
    }

    /// Whether the codes describe a push before the first instruction.
    pub(crate) fn begins_on_a_frame(&self) -> bool {
        let pushes = |op: Op| matches!(op.op, PUSH_NONVOL | ALLOC_SMALL | ALLOC_LARGE);
        self.ops().flatten().any(|op| op.at == 0 && pushes(op))
    }

    /// Iterates over the codes, last instruction first; `None` for an unknown one.
    fn ops(&self) -> impl Iterator<Item = Option<Op>> + use<'a> {
        let mut codes = self.codes.iter();
        std::iter::from_fn(move || {
            let &[at, op] = codes.next()?;
            let mut slot = || codes.next().map(|slot| u16::from_le_bytes(*slot));
            let mut far = || Some(i64::from(slot()?) | i64::from(slot()?) << 16);
            let (op, info) = (op & 15, op >> 4);
            let operand = match (op, info) {
                (PUSH_NONVOL | SET_FPREG, _) => Some(0),
                (ALLOC_SMALL, _) => Some(i64::from(info) * 8 + 8),
                (SAVE_NONVOL | SAVE_XMM128 | EPILOG, _) => slot().map(|word| i64::from(word) * 8),
                (ALLOC_LARGE, 0) => slot().map(|word| i64::from(word) * 8),
                (ALLOC_LARGE, 1) | (SAVE_NONVOL_FAR | SAVE_XMM128_FAR, _) => far(),
                (SET_FPREG_LARGE, _) => far().map(|units| units * 16),
                _ => None,
            };
            Some(operand.map(|operand| Op {
                at,
                op,
                info,
                operand,
            }))
        })
    }
}

/// An address during the walk through the codes, as register + offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CfaAddress {
    Sp(i64),
    Bp(i64),
}

impl CfaAddress {
    pub(crate) fn plus(self, offset: i64) -> Self {
        match self {
            CfaAddress::Sp(base) => CfaAddress::Sp(base.wrapping_add(offset)),
            CfaAddress::Bp(base) => CfaAddress::Bp(base.wrapping_add(offset)),
        }
    }
}

/// Returns the rule with the return address at `ra` and the caller's `rbp` at `bp` (or in the
/// register).
pub(crate) fn rule_at(ra: CfaAddress, bp: Option<CfaAddress>) -> Option<Rule> {
    let (cfa, base) = match ra {
        CfaAddress::Sp(offset) => (Cfa::Sp(i32::try_from(offset.checked_add(8)?).ok()?), offset),
        CfaAddress::Bp(offset) => (Cfa::Bp(i32::try_from(offset.checked_add(8)?).ok()?), offset),
    };
    let bp = match (bp, ra) {
        (None, _) => Bp::Same,
        (Some(CfaAddress::Sp(at)), CfaAddress::Sp(_))
        | (Some(CfaAddress::Bp(at)), CfaAddress::Bp(_)) => {
            Bp::FromCfa(i32::try_from(at.checked_sub(base)?.checked_sub(8)?).ok()?)
        }
        (Some(CfaAddress::Bp(at)), CfaAddress::Sp(_)) => Bp::FromOwn(i32::try_from(at).ok()?),
        (Some(CfaAddress::Sp(_)), CfaAddress::Bp(_)) => return None,
    };
    Some(Rule::Frame {
        cfa,
        ra: -8,
        bp,
        assumed: false,
    })
}

/// Where a frame saves its caller's callee-saved registers, except `rbp`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Saved {
    /// Offsets of rbx, r12, r13, r14, r15 from the frame's CFA, all below it. 0 if the register
    /// still has the caller's value.
    from_cfa: [i32; 5],
}

impl Saved {
    /// The registers, by their numbers in instructions, in the order of the offsets.
    pub const REGISTERS: [u8; 5] = [3, 12, 13, 14, 15];

    /// Returns the offset of a register's saved value from the frame's CFA (the stack pointer of
    /// the caller after the call). `None` if the frame does not save it, so that it has the value
    /// that the callee left.
    pub fn from_cfa(&self, register: u8) -> Option<i32> {
        let at = Self::REGISTERS
            .iter()
            .position(|known| *known == register)?;
        self.from_cfa.get(at).copied().filter(|offset| *offset != 0)
    }

    /// Returns the offsets of all of [`Saved::REGISTERS`], 0 for one that is not saved.
    pub fn offsets(&self) -> [i32; 5] {
        self.from_cfa
    }
}

/// Maximum length of a chain of structures.
const CHAIN_LIMIT: usize = 8;

/// Returns the rule for the instruction at `offset` from the function's start, whose structure is
/// at the start of `info`. `chained` returns the structure at an image's RVA. Async-signal-safe.
pub(crate) fn rule<'a>(
    info: &'a [u8],
    offset: u32,
    chained: impl Fn(u32) -> &'a [u8],
) -> Option<Rule> {
    let mut bp = None;
    let ra = frame(info, offset, chained, |register, place| {
        if register == RBP {
            bp = Some(place);
        }
    })?;
    rule_at(ra, bp)
}

/// Returns the registers that the frame has saved at `offset` from the function's start; as for
/// [`rule`].
pub(crate) fn saved<'a>(
    info: &'a [u8],
    offset: u32,
    chained: impl Fn(u32) -> &'a [u8],
) -> Option<Saved> {
    let mut places = [None; 5];
    let ra = frame(info, offset, chained, |register, place| {
        let index = Saved::REGISTERS.iter().position(|known| *known == register);
        if let Some(known) = index.and_then(|index| places.get_mut(index)) {
            *known = Some(place);
        }
    })?;
    let mut saved = Saved::default();
    for (offset, place) in saved.from_cfa.iter_mut().zip(places) {
        let from_ra = match (place, ra) {
            (None, _) => continue,
            (Some(CfaAddress::Sp(at)), CfaAddress::Sp(ra))
            | (Some(CfaAddress::Bp(at)), CfaAddress::Bp(ra)) => at.checked_sub(ra)?,
            _ => return None,
        };
        *offset = i32::try_from(from_ra.checked_sub(8)?)
            .ok()
            .filter(|offset| *offset < 0)?;
    }
    Some(saved)
}

/// Undoes the codes that have run by `offset`. Reports each saved register with its location, the
/// earliest save last. Returns the location of the return address.
fn frame<'a>(
    info: &'a [u8],
    offset: u32,
    chained: impl Fn(u32) -> &'a [u8],
    mut saves: impl FnMut(u8, CfaAddress),
) -> Option<CfaAddress> {
    let mut info = UnwindInfo::parse(info)?;
    // A chained structure belongs to code whose prologue has completed.
    let mut offset = offset;
    let mut at = CfaAddress::Sp(0);
    for _ in 0..CHAIN_LIMIT {
        let ran = |op: &Op| u32::from(op.at) <= offset;
        // The base of the frame register, once it is set.
        let set = info
            .ops()
            .flatten()
            .find(|op| matches!(op.op, SET_FPREG | SET_FPREG_LARGE) && ran(op));
        let base = match &set {
            Some(_) if info.frame_register == 0 => return None,
            Some(op) if op.op == SET_FPREG_LARGE => CfaAddress::Bp(-op.operand),
            Some(_) => CfaAddress::Bp(-info.frame_offset),
            None => at,
        };
        for op in info.ops() {
            let op = op?;
            if !ran(&op) {
                continue;
            }
            match op.op {
                PUSH_NONVOL => {
                    saves(op.info, at);
                    at = at.plus(8);
                }
                ALLOC_SMALL | ALLOC_LARGE => at = at.plus(op.operand),
                SET_FPREG | SET_FPREG_LARGE => at = base,
                SAVE_NONVOL | SAVE_NONVOL_FAR => saves(op.info, base.plus(op.operand)),
                _ => {}
            }
        }
        match info.chained {
            None => return Some(at),
            Some([_, _, rva]) => {
                info = UnwindInfo::parse(chained(rva))?;
                offset = u32::MAX;
            }
        }
    }
    None
}

/// Writes a structure for a prologue that was decoded from instructions.
#[derive(Clone)]
pub(crate) struct Builder {
    /// (end of the instruction, op, info, operand slots), first instruction first.
    ops: Vec<(u8, u8, u8, Vec<u16>)>,
    frame: u8,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            ops: Vec::new(),
            frame: 0,
        }
    }

    pub(crate) fn push(&mut self, at: u8, register: u8) {
        self.ops.push((at, PUSH_NONVOL, register, Vec::new()));
    }

    pub(crate) fn alloc(&mut self, at: u8, bytes: u32) {
        let units = bytes / 8;
        let (op, info, operand) = match units {
            0 => return,
            1..=16 => (ALLOC_SMALL, (units - 1) as u8, Vec::new()),
            17..=0xffff => (ALLOC_LARGE, 0, vec![units as u16]),
            _ => (ALLOC_LARGE, 1, vec![bytes as u16, (bytes >> 16) as u16]),
        };
        self.ops.push((at, op, info, operand));
    }

    /// Adds the code of `rbp = rsp + offset`.
    pub(crate) fn set_frame(&mut self, at: u8, offset: u32) -> Option<()> {
        if !offset.is_multiple_of(16) {
            return None;
        }
        let units = offset / 16;
        if units < 15 {
            self.frame = RBP | (units as u8) << 4;
            self.ops.push((at, SET_FPREG, 0, Vec::new()));
        } else {
            self.frame = RBP | 15 << 4;
            self.ops.push((
                at,
                SET_FPREG_LARGE,
                0,
                vec![units as u16, (units >> 16) as u16],
            ));
        }
        Some(())
    }

    /// Returns the same structure without `rbp`.
    pub(crate) fn without_frame(mut self) -> Self {
        self.ops
            .retain(|op| op.1 != SET_FPREG && op.1 != SET_FPREG_LARGE);
        self.frame = 0;
        self
    }

    pub(crate) fn finish(self, prologue_len: u8) -> Option<Vec<u8>> {
        let count = self.ops.iter().map(|op| 1 + op.3.len()).sum::<usize>();
        let mut bytes = vec![1, prologue_len, u8::try_from(count).ok()?, self.frame];
        for (at, op, info, operand) in self.ops.iter().rev() {
            bytes.extend([*at, op | info << 4]);
            operand
                .iter()
                .for_each(|word| bytes.extend(word.to_le_bytes()));
        }
        if count % 2 == 1 {
            bytes.extend([0, 0]);
        }
        Some(bytes)
    }
}
