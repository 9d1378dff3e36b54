//! Instructions one by one: how long each is, and what it does to the stack pointer, the frame
//! pointer and the flow of control.
//!
//! It is used for rows of code without tables (`synthesis`), and by walks for what lies before an
//! instruction (`cfi`), so it is async-signal-safe. It names no operation. The invariant: an
//! instruction that may write either register is never [`Effect::None`]; one that is not known is
//! no instruction. The tests hold it against iced-x86 over the code of libraries and over random
//! bytes. Why not iced-x86 itself: its tables would make the agent a third larger, for two
//! registers of sixteen.
//!
//! Intel SDM volume 2, chapter 2 (encoding) and appendix A (opcode maps).

/// The effect of an instruction on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// Nothing.
    None,
    /// Nothing at all: it fills a gap.
    Fill,
    /// Adds to the stack pointer.
    Move(i32),
    /// Pushes the frame pointer.
    PushBp,
    /// Pops the frame pointer.
    PopBp,
    /// Stores the frame pointer at `rsp + offset`.
    StoreBp(i32),
    /// Loads the frame pointer from `rsp + offset`.
    LoadBp(i32),
    /// The frame pointer becomes `rsp + offset`.
    BpFromSp(i32),
    /// The stack pointer becomes `rbp + offset`.
    SpFromBp(i32),
    /// `mov rsp, rbp; pop rbp`
    Leave,
    /// The frame pointer becomes 0.
    BpZero,
    /// The frame pointer becomes something else.
    BpLost,
    /// The stack pointer becomes something else.
    SpLost,
    /// Both do.
    BothLost,
    /// Takes an address, so far from the instruction's end.
    Address(i32),
    /// Calls what is so far from the instruction's end.
    Call(i32),
    /// Calls what a word holds that is so far from the instruction's end: another library's.
    CallOut(i32),
    /// Calls through a register or a table.
    CallThrough,
    /// Jumps so far.
    Jump(i32),
    /// Jumps so far, or not.
    Branch(i32),
    /// Jumps through a word at a fixed place: into another function.
    JumpOut,
    /// Jumps through a register or a table.
    JumpThrough,
    /// Returns.
    Return,
    /// Nothing is known of what runs next.
    Stop,
}

/// A decoded instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Instruction {
    pub(crate) length: u8,
    pub(crate) effect: Effect,
}

const SP: u8 = 4;
const BP: u8 = 5;

/// Prefixes, those of VEX and EVEX as if they were legacy ones.
#[derive(Clone, Copy, Default)]
struct Prefixes {
    /// 66: operands of 16 bits.
    word: bool,
    /// 67: addresses of 32 bits.
    short_address: bool,
    /// F3 or F2.
    repeat: u8,
    rex: u8,
    /// The register in VEX.vvvv.
    extra: u8,
    encoding: Encoding,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Encoding {
    #[default]
    Legacy,
    Vex,
    Evex,
}

impl Prefixes {
    fn wide(self) -> bool {
        self.rex & 8 != 0
    }
}

/// Where a memory operand is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Register(u8),
    /// A register with an offset, and nothing else.
    Base(u8, i32),
    /// So far from the instruction's end.
    Relative(i32),
    Other,
}

/// A ModRM byte with what follows it.
#[derive(Clone, Copy)]
struct ModRm {
    register: u8,
    place: Place,
    length: usize,
}

fn i32_at(code: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(*code.get(at..)?.first_chunk()?))
}

fn i8_at(code: &[u8], at: usize) -> Option<i32> {
    Some(code.get(at)?.cast_signed().into())
}

impl ModRm {
    fn parse(code: &[u8], prefixes: Prefixes) -> Option<Self> {
        let byte = *code.first()?;
        let rex = prefixes.rex;
        let register = byte >> 3 & 7 | (rex & 4) << 1;
        let (mode, rm) = (byte >> 6, byte & 7);
        let extended = (rex & 1) << 3;
        if mode == 3 {
            return Some(Self {
                register,
                place: Place::Register(rm | extended),
                length: 1,
            });
        }
        let (mut base, mut indexed, mut at) = (rm | extended, false, 1);
        let mut none = mode == 0 && rm == 5;
        if rm == 4 {
            let sib = *code.get(1)?;
            at = 2;
            base = sib & 7 | extended;
            indexed = (sib >> 3 & 7 | (rex & 2) << 2) != 4;
            none = mode == 0 && sib & 7 == 5;
        }
        let (offset, bytes) = match mode {
            0 if none => (i32_at(code, at)?, 4),
            0 => (0, 0),
            // EVEX scales it.
            1 => (i8_at(code, at)?, 1),
            _ => (i32_at(code, at)?, 4),
        };
        let scaled = prefixes.encoding == Encoding::Evex && mode == 1;
        let place = match (none, rm) {
            _ if indexed || prefixes.short_address || scaled => Place::Other,
            (true, 5) => Place::Relative(offset),
            (true, _) => Place::Other,
            (false, _) => Place::Base(base, offset),
        };
        Some(Self {
            register,
            place,
            length: at + bytes,
        })
    }

    /// The register that is the operand, if it is one.
    fn rm(&self) -> Option<u8> {
        match self.place {
            Place::Register(register) => Some(register),
            _ => None,
        }
    }

    /// The operation, where the register field says it.
    fn operation(&self) -> u8 {
        self.register & 7
    }
}

/// The effect on the two registers if all of these are written.
fn lost(written: &[Option<u8>]) -> Effect {
    let has = |register| written.contains(&Some(register));
    match (has(SP), has(BP)) {
        (false, false) => Effect::None,
        (true, false) => Effect::SpLost,
        (false, true) => Effect::BpLost,
        (true, true) => Effect::BothLost,
    }
}

/// The longest instruction.
const LONGEST: usize = 15;

/// The instruction that `code` begins with; `None` if that is none, or is not known.
pub(crate) fn decode(code: &[u8]) -> Option<Instruction> {
    let code = code.get(..LONGEST).unwrap_or(code);
    let mut prefixes = Prefixes::default();
    let mut at = 0;
    let opcode = loop {
        let byte = *code.get(at)?;
        at += 1;
        match byte {
            0x66 => prefixes.word = true,
            0x67 => prefixes.short_address = true,
            0xf2 | 0xf3 => prefixes.repeat = byte,
            0xf0 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 => {}
            0x40..=0x4f => {
                prefixes.rex = byte;
                continue;
            }
            _ => break byte,
        }
        // Only right before the opcode does it mean anything.
        prefixes.rex = 0;
    };
    let (map, opcode) = match opcode {
        0x0f => {
            let second = *code.get(at)?;
            at += 1;
            match second {
                0x38 | 0x3a => {
                    at += 1;
                    let map = if second == 0x38 { 2 } else { 3 };
                    (map, *code.get(at - 1)?)
                }
                _ => (1, second),
            }
        }
        0xc4 | 0xc5 | 0x62 => vex(opcode, code, &mut at, &mut prefixes)?,
        // AMD's XOP, which is no pop to memory.
        0x8f if code.get(at).is_some_and(|next| next & 31 > 7) => {
            vex(opcode, code, &mut at, &mut prefixes)?
        }
        _ => (0, opcode),
    };
    let rest = code.get(at..)?;
    let (effect, length) = match (map, prefixes.encoding) {
        (0, _) => {
            // The one for 64 bits counts more.
            prefixes.word &= !prefixes.wide();
            one_byte(opcode, rest, prefixes)?
        }
        (1, Encoding::Legacy) => two_bytes(opcode, rest, prefixes)?,
        _ => three_bytes(map, opcode, rest, prefixes)?,
    };
    let length = at + length;
    (length <= code.len()).then_some(Instruction {
        length: length as u8,
        effect,
    })
}

/// Reads a VEX, EVEX or XOP prefix: the opcode map and the opcode.
fn vex(kind: u8, code: &[u8], at: &mut usize, prefixes: &mut Prefixes) -> Option<(u8, u8)> {
    // They allow no prefix of these before them.
    if prefixes.rex != 0 || prefixes.word || prefixes.repeat != 0 {
        return None;
    }
    let byte = |into: usize| code.get(*at + into).copied();
    let first = byte(0)?;
    // R, X and B are stored inverted.
    let mut rex = !first >> 5 & 7;
    let (map, rest, length) = match kind {
        0xc5 => {
            rex &= 4;
            (1, first, 1)
        }
        0xc4 | 0x8f => (first & 31, byte(1)?, 2),
        _ => (first & 7, byte(1)?, 3),
    };
    if kind != 0xc5 {
        rex |= rest >> 4 & 8;
    }
    if kind == 0x62 && (first & 8 != 0 || rest & 4 == 0) {
        return None;
    }
    prefixes.encoding = if kind == 0x62 {
        Encoding::Evex
    } else {
        Encoding::Vex
    };
    prefixes.rex = rex | 0x40;
    prefixes.extra = !rest >> 3 & 15;
    match rest & 3 {
        1 => prefixes.word = true,
        2 => prefixes.repeat = 0xf3,
        3 => prefixes.repeat = 0xf2,
        _ => {}
    }
    let known = match prefixes.encoding {
        Encoding::Evex => matches!(map, 1..=3 | 5 | 6),
        _ if kind == 0x8f => matches!(map, 8..=10),
        _ => matches!(map, 1..=3),
    };
    let opcode = byte(length)?;
    *at += length + 1;
    known.then_some((map, opcode))
}

/// The opcodes without an escape: effect, and length behind the opcode.
fn one_byte(opcode: u8, rest: &[u8], prefixes: Prefixes) -> Option<(Effect, usize)> {
    // Immediates of four bytes, two with 66; a ModRM byte; nothing more.
    let (word, full) = (prefixes.word, if prefixes.word { 2 } else { 4 });
    let in_opcode = opcode & 7 | (prefixes.rex & 1) << 3;
    // Registers of one byte: without REX the fourth and fifth are halves of others.
    let byte_sized = |register: Option<u8>| register.filter(|_| prefixes.rex != 0);
    let plain = |effect, length| Some((effect, length));
    match opcode {
        // Arithmetic of eight kinds, each with six forms.
        0x00..=0x3f if opcode & 7 < 4 => {
            let modrm = ModRm::parse(rest, prefixes)?;
            let target = if opcode & 2 == 0 {
                modrm.rm()
            } else {
                Some(modrm.register)
            };
            let effect = match opcode {
                0x38..=0x3b => Effect::None,
                0x31 | 0x33 if modrm.register == BP && modrm.rm() == Some(BP) && !word => {
                    Effect::BpZero
                }
                _ if opcode & 1 == 0 => lost(&[byte_sized(target)]),
                _ => lost(&[target]),
            };
            plain(effect, modrm.length)
        }
        0x04 | 0x0c | 0x14 | 0x1c | 0x24 | 0x2c | 0x34 | 0x3c => plain(Effect::None, 1),
        0x05 | 0x0d | 0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d => plain(Effect::None, full),
        0x50..=0x5f if word => plain(Effect::BothLost, 0),
        0x50..=0x57 if in_opcode == BP => plain(Effect::PushBp, 0),
        0x50..=0x57 => plain(Effect::Move(-8), 0),
        0x58..=0x5f => plain(
            match in_opcode {
                BP => Effect::PopBp,
                SP => Effect::SpLost,
                _ => Effect::Move(8),
            },
            0,
        ),
        0x63 => {
            let modrm = ModRm::parse(rest, prefixes)?;
            plain(lost(&[Some(modrm.register)]), modrm.length)
        }
        0x68 | 0x6a => {
            let effect = if word {
                Effect::SpLost
            } else {
                Effect::Move(-8)
            };
            plain(effect, if opcode == 0x68 { full } else { 1 })
        }
        0x69 | 0x6b => {
            let modrm = ModRm::parse(rest, prefixes)?;
            let immediate = if opcode == 0x69 { full } else { 1 };
            plain(lost(&[Some(modrm.register)]), modrm.length + immediate)
        }
        0x90 if in_opcode == 0 && prefixes.repeat == 0 => plain(Effect::Fill, 0),
        0x6c..=0x6f | 0x90 | 0x98 | 0x99 | 0x9b | 0x9e | 0x9f => plain(Effect::None, 0),
        0x70..=0x7f | 0xe0..=0xe3 => plain(Effect::Branch(i8_at(rest, 0)?), 1),
        0x80 | 0x81 | 0x83 => immediate_arithmetic(opcode, rest, prefixes),
        0x84 | 0x85 => plain(Effect::None, ModRm::parse(rest, prefixes)?.length),
        0x86..=0x8f => moves(opcode, rest, prefixes),
        0x91..=0x97 => plain(lost(&[Some(in_opcode)]), 0),
        0x9c | 0x9d if word => plain(Effect::SpLost, 0),
        0x9c => plain(Effect::Move(-8), 0),
        0x9d => plain(Effect::Move(8), 0),
        0xa0..=0xa3 => plain(Effect::None, if prefixes.short_address { 4 } else { 8 }),
        0xa4..=0xa7 | 0xaa..=0xaf => plain(Effect::None, 0),
        0xa8 => plain(Effect::None, 1),
        0xa9 => plain(Effect::None, full),
        0xb0..=0xb7 => plain(lost(&[byte_sized(Some(in_opcode))]), 1),
        0xb8..=0xbf if prefixes.wide() => plain(lost(&[Some(in_opcode)]), 8),
        0xb8..=0xbf => plain(lost(&[Some(in_opcode)]), full),
        0xc0 | 0xc1 | 0xd0..=0xd3 => {
            let modrm = ModRm::parse(rest, prefixes)?;
            let target = match opcode & 1 {
                0 => byte_sized(modrm.rm()),
                _ => modrm.rm(),
            };
            plain(lost(&[target]), modrm.length + usize::from(opcode < 0xd0))
        }
        0xc2 => plain(Effect::Stop, 2),
        0xc3 => plain(Effect::Return, 0),
        0xc6 | 0xc7 => {
            let modrm = ModRm::parse(rest, prefixes)?;
            let (target, immediate) = match opcode {
                0xc6 => (byte_sized(modrm.rm()), 1),
                _ => (modrm.rm(), full),
            };
            let effect = match (modrm.operation(), opcode, rest.first()) {
                (0, ..) => lost(&[target]),
                // xabort
                (_, 0xc6, Some(0xf8)) => Effect::None,
                // xbegin: jumps there with all registers as they are now
                (_, _, Some(0xf8)) if !word => Effect::Branch(i32_at(rest, 1)?),
                _ => return None,
            };
            plain(effect, modrm.length + immediate)
        }
        0xc8 => plain(Effect::BothLost, 3),
        0xc9 if word => plain(Effect::BothLost, 0),
        0xc9 => plain(Effect::Leave, 0),
        0xca => plain(Effect::Stop, 2),
        0xcb | 0xcc | 0xcf | 0xf1 | 0xf4 => plain(Effect::Stop, 0),
        0xcd | 0xe4..=0xe7 => plain(Effect::None, 1),
        0xd7 | 0xec..=0xef | 0xf5 | 0xf8..=0xfd => plain(Effect::None, 0),
        0xd8..=0xdf => plain(Effect::None, ModRm::parse(rest, prefixes)?.length),
        0xe8 => plain(Effect::Call(i32_at(rest, 0)?), 4),
        0xe9 => plain(Effect::Jump(i32_at(rest, 0)?), 4),
        0xeb => plain(Effect::Jump(i8_at(rest, 0)?), 1),
        0xf6 | 0xf7 => {
            let modrm = ModRm::parse(rest, prefixes)?;
            let immediate = match (modrm.operation(), opcode) {
                (0 | 1, 0xf6) => 1,
                (0 | 1, _) => full,
                _ => 0,
            };
            let target = modrm.rm().filter(|_| matches!(modrm.operation(), 2 | 3));
            let target = if opcode == 0xf6 {
                byte_sized(target)
            } else {
                target
            };
            plain(lost(&[target]), modrm.length + immediate)
        }
        0xfe | 0xff => through(opcode, rest, prefixes),
        _ => None,
    }
}

/// Arithmetic with an immediate operand.
fn immediate_arithmetic(opcode: u8, rest: &[u8], prefixes: Prefixes) -> Option<(Effect, usize)> {
    let modrm = ModRm::parse(rest, prefixes)?;
    let (value, bytes) = match opcode {
        0x81 if prefixes.word => (0, 2),
        0x81 => (i32_at(rest, modrm.length)?, 4),
        _ => (i8_at(rest, modrm.length)?, 1),
    };
    let target = match opcode {
        0x80 => modrm.rm().filter(|_| prefixes.rex != 0),
        _ => modrm.rm(),
    };
    let whole = opcode != 0x80 && prefixes.wide() && target == Some(SP);
    let effect = match modrm.operation() {
        7 => Effect::None,
        0 if whole => Effect::Move(value),
        5 if whole => value.checked_neg().map_or(Effect::SpLost, Effect::Move),
        _ => lost(&[target]),
    };
    Some((effect, modrm.length + bytes))
}

/// `xchg`, `mov`, `lea` and `pop` to memory.
fn moves(opcode: u8, rest: &[u8], prefixes: Prefixes) -> Option<(Effect, usize)> {
    let modrm = ModRm::parse(rest, prefixes)?;
    let (register, rm) = (modrm.register, modrm.rm());
    let short = |register: Option<u8>| register.filter(|_| prefixes.rex != 0);
    let whole = prefixes.wide();
    let moved = |to: u8, from: u8| match (to, from) {
        (SP, BP) if whole => Effect::SpFromBp(0),
        (BP, SP) if whole => Effect::BpFromSp(0),
        _ => lost(&[Some(to)]),
    };
    let effect = match (opcode, modrm.place) {
        (0x86, _) => lost(&[short(rm), short(Some(register))]),
        (0x87, _) => lost(&[rm, Some(register)]),
        (0x88, _) => lost(&[short(rm)]),
        (0x89, Place::Register(to)) => moved(to, register),
        (0x89, Place::Base(SP, offset)) if register == BP && whole => Effect::StoreBp(offset),
        (0x89, _) => Effect::None,
        (0x8a, _) => lost(&[short(Some(register))]),
        (0x8b, Place::Register(from)) => moved(register, from),
        (0x8b, Place::Base(SP, offset)) if register == BP && whole => Effect::LoadBp(offset),
        (0x8b, _) => lost(&[Some(register)]),
        (0x8c, _) => lost(&[rm]),
        (0x8d, Place::Register(_)) => return None,
        (0x8d, Place::Base(SP, offset)) if whole && register == SP => Effect::Move(offset),
        (0x8d, Place::Base(SP, offset)) if whole && register == BP => Effect::BpFromSp(offset),
        (0x8d, Place::Base(BP, offset)) if whole && register == SP => Effect::SpFromBp(offset),
        (0x8d, Place::Relative(offset)) if whole && !matches!(register, SP | BP) => {
            Effect::Address(offset)
        }
        (0x8d, _) => lost(&[Some(register)]),
        (0x8e, _) => Effect::None,
        // 8f with another operation is the prefix of AMD's XOP.
        (0x8f, _) if modrm.operation() != 0 => return None,
        (0x8f, _) if prefixes.word => Effect::BothLost,
        (0x8f, Place::Register(BP)) => Effect::PopBp,
        (0x8f, Place::Register(SP)) => Effect::SpLost,
        _ => Effect::Move(8),
    };
    Some((effect, modrm.length))
}

/// `inc`, `dec`, and jumps, calls and pushes through a register or memory.
fn through(opcode: u8, rest: &[u8], prefixes: Prefixes) -> Option<(Effect, usize)> {
    let modrm = ModRm::parse(rest, prefixes)?;
    let effect = match (modrm.operation(), opcode) {
        (0 | 1, 0xfe) => lost(&[modrm.rm().filter(|_| prefixes.rex != 0)]),
        (_, 0xfe) | (7, _) => return None,
        (0 | 1, _) => lost(&[modrm.rm()]),
        (2, _) => match modrm.place {
            Place::Relative(offset) => Effect::CallOut(offset),
            _ => Effect::CallThrough,
        },
        (4, _) if matches!(modrm.place, Place::Relative(_)) => Effect::JumpOut,
        (4, _) => Effect::JumpThrough,
        (6, _) if prefixes.word => Effect::SpLost,
        (6, _) => Effect::Move(-8),
        _ => Effect::Stop,
    };
    Some((effect, modrm.length))
}

/// The opcodes behind 0F.
fn two_bytes(opcode: u8, rest: &[u8], prefixes: Prefixes) -> Option<(Effect, usize)> {
    let none = |length| Some((Effect::None, length));
    match opcode {
        0x05 | 0x06 | 0x08 | 0x09 | 0x0e | 0x30..=0x34 | 0x37 | 0x77 | 0xa2 => {
            return none(0);
        }
        0x07 | 0x0b | 0x35 | 0xaa => return Some((Effect::Stop, 0)),
        0x80..=0x8f => return Some((Effect::Branch(i32_at(rest, 0)?), 4)),
        0xa0 | 0xa8 if prefixes.word => return Some((Effect::SpLost, 0)),
        0xa1 | 0xa9 if prefixes.word => return Some((Effect::SpLost, 0)),
        0xa0 | 0xa8 => return Some((Effect::Move(-8), 0)),
        0xa1 | 0xa9 => return Some((Effect::Move(8), 0)),
        0xc8..=0xcf => {
            let register = opcode & 7 | (prefixes.rex & 1) << 3;
            return Some((lost(&[Some(register)]), 0));
        }
        0x04 | 0x0a | 0x0c | 0x24..=0x27 | 0x36 | 0x38..=0x3f | 0x7a | 0x7b | 0xa6 | 0xa7 => {
            return None;
        }
        _ => {}
    }
    let modrm = ModRm::parse(rest, prefixes)?;
    let immediate = matches!(opcode, 0x0f | 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6);
    let length = modrm.length + usize::from(immediate);
    // F2 0F 78 (AMD's insertq) has two.
    let length = length
        + if opcode == 0x78 && (prefixes.word || prefixes.repeat == 0xf2) {
            2
        } else {
            0
        };
    let (register, rm) = (Some(modrm.register), modrm.rm());
    let short = rm.filter(|_| prefixes.rex != 0);
    let effect = match opcode {
        0xb9 | 0xff => Effect::Stop,
        0x1f => Effect::Fill,
        0x02 | 0x03 | 0x40..=0x4f | 0x50 | 0x2c | 0x2d | 0xaf | 0xb2 | 0xb4..=0xb8 => {
            lost(&[register])
        }
        0xbc..=0xbf | 0xc5 | 0xd7 => lost(&[register]),
        0x90..=0x9f | 0xb0 => lost(&[short]),
        0xc0 => lost(&[short, register.filter(|_| prefixes.rex != 0)]),
        0xc1 => lost(&[rm, register]),
        // Control registers have no memory operand, whatever the mode says.
        0x20..=0x23 => {
            let byte = *rest.first()?;
            return Some((lost(&[Some(byte & 7 | (prefixes.rex & 1) << 3)]), 1));
        }
        0x00
        | 0x01
        | 0x1e
        | 0x78
        | 0x7e
        | 0xa4
        | 0xa5
        | 0xab..=0xae
        | 0xb1
        | 0xb3
        | 0xba
        | 0xbb
        | 0xc7 => lost(&[rm]),
        _ => Effect::None,
    };
    Some((effect, length))
}

/// The opcodes behind 0F 38 and 0F 3A, and all of VEX and EVEX.
fn three_bytes(map: u8, opcode: u8, rest: &[u8], prefixes: Prefixes) -> Option<(Effect, usize)> {
    let legacy = prefixes.encoding == Encoding::Legacy;
    if map == 1 && opcode == 0x77 {
        return Some((Effect::None, 0));
    }
    let modrm = ModRm::parse(rest, prefixes)?;
    let immediate = match map {
        1 => matches!(opcode, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6),
        3 | 8 => true,
        _ => false,
    };
    let immediate = if map == 10 { 4 } else { usize::from(immediate) };
    let (register, rm) = (Some(modrm.register), modrm.rm());
    let extra = Some(prefixes.extra);
    let effect = match (map, opcode) {
        (1, 0x2c | 0x2d | 0x50 | 0x78 | 0x79 | 0x93 | 0xc5 | 0xd7) => lost(&[register]),
        (5, 0x2c | 0x2d | 0x78 | 0x79) => lost(&[register]),
        (1 | 5, 0x7e) | (3, 0x14..=0x17) => lost(&[rm]),
        (2, 0xf0 | 0xf1 | 0xf6 | 0xfa) if legacy => lost(&[register]),
        (2, 0xe0..=0xef | 0xf2 | 0xf5..=0xf7) | (3, 0xf0) => lost(&[register, extra]),
        (2, 0xf3) => lost(&[extra]),
        (9, 0x01 | 0x02 | 0x12) | (10, 0x10 | 0x12) => lost(&[register, rm, extra]),
        _ => Effect::None,
    };
    Some((effect, modrm.length + immediate))
}

#[cfg(test)]
mod tests;
