//! Unwind rules of native code: `.eh_frame_hdr` and `.eh_frame`, interpreted in the handler.
//!
//! It tracks of a row the CFA, the return address and `rbp` (and `rbx`, which a trampoline of the
//! dynamic linker needs); what else a table says is skipped over. It is not a DWARF library: the tests hold it against `gimli` over every
//! row of every module of the test process. The invariant: it reads only the slices that
//! [`NativeCode::bytes_at`] gives, and every loop is bounded by their length.
//!
//! Why not gimli itself: its rows hold every register, so that its working memory is ten times
//! this one's, and a row takes several times as long; nothing else of it would be used.
//!
//! Format: LSB core specification, "Exception Frames"; DWARF 5, section 6.4.

use crate::native::NativeCode;
use crate::rule::{Bp, Cfa, LEAF, Rule};
use crate::x86;

/// The table says something that a [`Rule`] cannot say, or is malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unsupported;

const RBX: u64 = 3;
const RBP: u64 = 6;
const RSP: u64 = 7;
const RETURN_ADDRESS: u64 = 16;

/// Where a register's value of the caller is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Saved {
    /// In the register, as it is.
    Same,
    Undefined,
    /// At CFA + offset.
    Offset(i64),
    /// At the address that the expression gives: its place in the module, and its length.
    Expression(u64, u64),
    /// In any other way.
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CfaRule {
    Register(u64, i64),
    Expression(u64, u64),
}

/// One row of the table, as far as it is tracked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Row {
    cfa: CfaRule,
    ra: Saved,
    bp: Saved,
    /// Tracked for [`saved_rbx`] alone.
    bx: Saved,
}

impl Row {
    const START: Row = Row {
        cfa: CfaRule::Register(RSP, 8),
        ra: Saved::Undefined,
        bp: Saved::Same,
        bx: Saved::Same,
    };

    fn saved(&mut self, register: u64) -> Option<&mut Saved> {
        match register {
            RBP => Some(&mut self.bp),
            RBX => Some(&mut self.bx),
            RETURN_ADDRESS => Some(&mut self.ra),
            _ => None,
        }
    }
}

/// How deep `DW_CFA_remember_state` may nest; compilers use one level.
const REMEMBERED: usize = 4;

/// Working memory of [`rule`].
#[derive(Debug)]
pub(crate) struct State {
    row: Row,
    initial: Row,
    remembered: [Row; REMEMBERED],
    depth: usize,
    /// The last row before the one found whose CFA is in `rbp`.
    framed: Option<Row>,
}

impl State {
    pub(crate) const fn new() -> Self {
        Self {
            row: Row::START,
            initial: Row::START,
            remembered: [Row::START; REMEMBERED],
            depth: 0,
            framed: None,
        }
    }
}

/// The rule for the instruction at `address` of a module; `Ok(None)` where nothing is known of it.
/// With `exact` the instruction is about to run. Async-signal-safe.
///
/// In an epilogue the instructions decide, not the table: clang before 9, which made the native
/// libraries of .NET Core 3.1, describes none. Two of three `ret` in them have a row that was true
/// before `pop rbp`.
pub(crate) fn rule(
    code: &NativeCode,
    address: u64,
    exact: bool,
    state: &mut State,
) -> Result<Option<Rule>, Unsupported> {
    if exact && let Some(rule) = x86::epilogue(code.bytes_at(address), address, &(0..0), false) {
        return Ok(Some(rule));
    }
    let rule = table_rule(code, address, state);
    if exact
        && matches!(
            rule,
            Ok(Some(Rule::Frame {
                cfa: Cfa::Bp(_),
                ..
            }))
        )
        && x86::is_jump_after_pop(code.bytes_at(address.saturating_sub(1)))
    {
        return Ok(Some(LEAF));
    }
    match rule {
        Ok(Some(LEAF)) if !exact => Ok(Some(behind_the_end(code, address, state))),
        rule => rule,
    }
}

/// The rule of a call for which the table says that nothing is on the stack but the return
/// address. No call is made in that state, because the stack would not be aligned for it (System V
/// ABI of x86-64, section 3.2.2): it is made from code behind the function's end, where a table
/// written by hand still has the row of the `ret` above (`UMThunkStub` of .NET Core 3.1, whose rare
/// path lies there). The function's frame holds.
fn behind_the_end(code: &NativeCode, address: u64, state: &State) -> Rule {
    state
        .framed
        .and_then(|row| to_rule(code, row, address))
        .unwrap_or(LEAF)
}

/// A frame whose CFA is `rbx + cfa`, with the rest of its rule.
pub(crate) struct FromRbx {
    pub(crate) cfa: i64,
    pub(crate) ra: i32,
    pub(crate) bp: Bp,
}

/// What a call of [`rule`] that answered [`Unsupported`] found, if it is a frame that `rbx` leads
/// to: the dynamic linker's trampoline for functions that are bound when they are first called.
pub(crate) fn from_rbx(state: &State) -> Option<FromRbx> {
    let (CfaRule::Register(RBX, cfa), Saved::Offset(ra)) = (state.row.cfa, state.row.ra) else {
        return None;
    };
    let bp = match state.row.bp {
        Saved::Same => Bp::Same,
        Saved::Offset(at) => Bp::FromCfa(at.try_into().ok()?),
        _ => return None,
    };
    let ra = ra.try_into().ok()?;
    Some(FromRbx { cfa, ra, bp })
}

/// Where, relative to its CFA, the code at `address` has saved its caller's `rbx`.
pub(crate) fn saved_rbx(code: &NativeCode, address: u64, state: &mut State) -> Option<i64> {
    table_rule(code, address, state).ok()??;
    match state.row.bx {
        Saved::Offset(at) => Some(at),
        _ => None,
    }
}

/// The rule at `address` as the module's table has it; `Ok(None)` where it has nothing.
fn table_rule(
    code: &NativeCode,
    address: u64,
    state: &mut State,
) -> Result<Option<Rule>, Unsupported> {
    let Some(fde_at) = find_fde(code, address) else {
        return Ok(None);
    };
    let Some(fde) = Fde::parse(code, fde_at) else {
        return Err(Unsupported);
    };
    if !(fde.start..fde.end).contains(&address) {
        return Ok(None);
    }
    if fde.cie.signal {
        return Ok(Some(Rule::SignalFrame));
    }
    state.row = Row::START;
    state.depth = 0;
    state.framed = None;
    let mut program = fde.cie.program;
    run(&mut program, &fde, u64::MAX, state).ok_or(Unsupported)?;
    state.initial = state.row;
    let mut program = fde.program;
    run(&mut program, &fde, address, state).ok_or(Unsupported)?;
    let rule = to_rule(code, state.row, address).ok_or(Unsupported)?;
    if x86::is_hijack_stub(code.bytes_at(fde.start)) {
        return Ok(hijacked(rule));
    }
    Ok(Some(rule))
}

/// The rule in the stub that a hijacked method returns to: nobody called it, so it makes room for
/// the return address itself, by its first push, and `OnHijackWorker` fills that in. Its table
/// takes the push for one of a register and looks one word too high.
fn hijacked(rule: Rule) -> Option<Rule> {
    match rule {
        Rule::Frame {
            cfa: Cfa::Sp(offset @ 8..),
            ra: -8,
            bp: Bp::Same,
            assumed: false,
        } => Some(Rule::HijackStub(offset - 8)),
        _ => None,
    }
}

/// Bytes of a module with their address.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    bytes: &'a [u8],
    at: u64,
}

impl<'a> Cursor<'a> {
    fn new(code: &'a NativeCode, at: u64) -> Self {
        Self {
            bytes: code.bytes_at(at),
            at,
        }
    }

    fn take(&mut self, len: u64) -> Option<Cursor<'a>> {
        let (head, tail) = self.bytes.split_at_checked(usize::try_from(len).ok()?)?;
        let taken = Cursor {
            bytes: head,
            at: self.at,
        };
        self.bytes = tail;
        self.at = self.at.wrapping_add(len);
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N as u64)?.bytes.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        let [byte] = self.array()?;
        Some(byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn uleb(&mut self) -> Option<u64> {
        let mut value = 0u64;
        let mut shift = 0u32;
        loop {
            let byte = self.u8()?;
            // Bits beyond the 64th are dropped, as every reader does.
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift = shift.saturating_add(7);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
    }

    fn sleb(&mut self) -> Option<i64> {
        let mut value = 0u64;
        let mut shift = 0u32;
        loop {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift = shift.saturating_add(7);
            if byte & 0x80 == 0 {
                let sign = u64::MAX.checked_shl(shift).unwrap_or(0);
                return Some(
                    (if byte & 0x40 != 0 {
                        value | sign
                    } else {
                        value
                    })
                    .cast_signed(),
                );
            }
        }
    }

    /// A value in one of the DW_EH_PE formats, not yet applied to anything.
    fn format(&mut self, encoding: u8) -> Option<u64> {
        Some(match encoding & 0x0f {
            0x00 | 0x04 => self.u64()?,
            0x01 => self.uleb()?,
            0x02 => self.u16()?.into(),
            0x03 => self.u32()?.into(),
            0x09 => self.sleb()?.cast_unsigned(),
            0x0a => i64::from(self.u16()?.cast_signed()).cast_unsigned(),
            0x0b => i64::from(self.u32()?.cast_signed()).cast_unsigned(),
            0x0c => self.u64()?,
            _ => return None,
        })
    }

    /// A pointer to code: absolute or relative to its own place. Indirect ones are not code.
    fn pointer(&mut self, encoding: u8) -> Option<u64> {
        let at = self.at;
        let value = self.format(encoding)?;
        match encoding & 0xf0 {
            0x00 => Some(value),
            0x10 => Some(at.wrapping_add(value)),
            _ => None,
        }
    }
}

/// Where the FDE for `address` is, by the binary search table of `.eh_frame_hdr`.
fn find_fde(code: &NativeCode, address: u64) -> Option<u64> {
    if code.eh_frame_hdr == 0 {
        return None;
    }
    let mut header = Cursor::new(code, code.eh_frame_hdr);
    let [version, eh_frame_encoding, count_encoding, table_encoding] = header.array()?;
    // 0x3b: signed four bytes relative to the header; no linker writes anything else.
    if version != 1 || table_encoding != 0x3b {
        return None;
    }
    header.format(eh_frame_encoding)?;
    let count = header.format(count_encoding)?;
    let (table, _) = header.take(count.checked_mul(8)?)?.bytes.as_chunks::<8>();
    let relative = |entry: &[u8; 8]| {
        let [a, b, c, d, e, f, g, h] = *entry;
        (
            i32::from_le_bytes([a, b, c, d]),
            i32::from_le_bytes([e, f, g, h]),
        )
    };
    let wanted = address.wrapping_sub(code.eh_frame_hdr).cast_signed();
    let behind = table.partition_point(|entry| i64::from(relative(entry).0) <= wanted);
    let (_, fde) = relative(table.get(behind.checked_sub(1)?)?);
    code.eh_frame_hdr.checked_add_signed(fde.into())
}

/// A CIE, as far as it is needed.
struct Cie<'a> {
    code_align: u64,
    data_align: i64,
    pointer_encoding: u8,
    /// FDEs have augmentation data, after their length.
    augmented: bool,
    /// Its code is the return from a signal handler.
    signal: bool,
    program: Cursor<'a>,
}

/// An FDE with its CIE.
struct Fde<'a> {
    start: u64,
    end: u64,
    cie: Cie<'a>,
    program: Cursor<'a>,
}

/// A CIE's or FDE's own bytes, after the length.
fn entry(code: &NativeCode, at: u64) -> Option<Cursor<'_>> {
    let mut cursor = Cursor::new(code, at);
    match cursor.u32()? {
        // The end of the section, and the 64-bit format, which no toolchain writes here.
        0 | 0xffff_ffff => None,
        len => cursor.take(len.into()),
    }
}

impl<'a> Cie<'a> {
    fn parse(code: &'a NativeCode, at: u64) -> Option<Self> {
        let mut cursor = entry(code, at)?;
        let id = cursor.u32()?;
        let version = cursor.u8()?;
        if id != 0 || !(1..=3).contains(&version) {
            return None;
        }
        let len = cursor.bytes.iter().position(|byte| *byte == 0)?;
        let augmentation = cursor.take(len as u64)?.bytes;
        cursor.u8()?;
        let code_align = cursor.uleb()?;
        let data_align = cursor.sleb()?;
        let ra = if version == 1 {
            cursor.u8()?.into()
        } else {
            cursor.uleb()?
        };
        if ra != RETURN_ADDRESS {
            return None;
        }
        let mut cie = Cie {
            code_align,
            data_align,
            pointer_encoding: 0,
            augmented: false,
            signal: false,
            program: cursor,
        };
        if let Some(letters) = augmentation.strip_prefix(b"z") {
            cie.augmented = true;
            let len = cursor.uleb()?;
            let mut data = cursor.take(len)?;
            cie.program = cursor;
            for letter in letters {
                match letter {
                    b'R' => cie.pointer_encoding = data.u8()?,
                    b'L' => drop(data.u8()?),
                    b'P' => {
                        let encoding = data.u8()?;
                        data.format(encoding)?;
                    }
                    b'S' => cie.signal = true,
                    // Unknown letters end what can be parsed; their length is known, though.
                    _ => break,
                }
            }
        } else if !augmentation.is_empty() {
            return None;
        }
        Some(cie)
    }
}

impl<'a> Fde<'a> {
    fn parse(code: &'a NativeCode, at: u64) -> Option<Self> {
        let mut cursor = entry(code, at)?;
        let cie_at = cursor.at.wrapping_sub(cursor.u32()?.into());
        let cie = Cie::parse(code, cie_at)?;
        let start = cursor.pointer(cie.pointer_encoding)?;
        let len = cursor.format(cie.pointer_encoding & 0x0f)?;
        if cie.augmented {
            let len = cursor.uleb()?;
            cursor.take(len)?;
        }
        Some(Fde {
            start,
            end: start.checked_add(len)?,
            cie,
            program: cursor,
        })
    }
}

/// Runs a program up to the row that holds at `address`.
fn run(program: &mut Cursor<'_>, fde: &Fde<'_>, address: u64, state: &mut State) -> Option<()> {
    let mut location = fde.start;
    let cie = &fde.cie;
    let factored = |offset: u64| offset.cast_signed().wrapping_mul(cie.data_align);
    while let Some(op) = program.u8() {
        let low = u64::from(op & 0x3f);
        let mut advance = None;
        let row = &mut state.row;
        match (op >> 6, op & 0x3f) {
            // DW_CFA_advance_loc
            (1, _) => advance = Some(low),
            // DW_CFA_offset
            (2, _) => {
                let offset = factored(program.uleb()?);
                set(row, low, Saved::Offset(offset));
            }
            // DW_CFA_restore
            (3, _) => restore(row, &state.initial, low),
            // DW_CFA_nop
            (_, 0x00) => {}
            // DW_CFA_set_loc
            (_, 0x01) => {
                location = program.pointer(cie.pointer_encoding)?;
                if location > address {
                    return Some(());
                }
            }
            // DW_CFA_advance_loc1, 2, 4
            (_, 0x02) => advance = Some(program.u8()?.into()),
            (_, 0x03) => advance = Some(program.u16()?.into()),
            (_, 0x04) => advance = Some(program.u32()?.into()),
            // DW_CFA_offset_extended
            (_, 0x05) => {
                let register = program.uleb()?;
                let offset = factored(program.uleb()?);
                set(row, register, Saved::Offset(offset));
            }
            // DW_CFA_restore_extended
            (_, 0x06) => restore(row, &state.initial, program.uleb()?),
            // DW_CFA_undefined
            (_, 0x07) => set(row, program.uleb()?, Saved::Undefined),
            // DW_CFA_same_value
            (_, 0x08) => set(row, program.uleb()?, Saved::Same),
            // DW_CFA_register
            (_, 0x09) => {
                let register = program.uleb()?;
                program.uleb()?;
                set(row, register, Saved::Other);
            }
            // DW_CFA_remember_state
            (_, 0x0a) => {
                *state.remembered.get_mut(state.depth)? = *row;
                state.depth += 1;
            }
            // DW_CFA_restore_state
            (_, 0x0b) => {
                state.depth = state.depth.checked_sub(1)?;
                *row = *state.remembered.get(state.depth)?;
            }
            // DW_CFA_def_cfa
            (_, 0x0c) => {
                let register = program.uleb()?;
                row.cfa = CfaRule::Register(register, program.uleb()?.cast_signed());
            }
            // DW_CFA_def_cfa_register
            (_, 0x0d) => {
                let register = program.uleb()?;
                let CfaRule::Register(_, offset) = row.cfa else {
                    return None;
                };
                row.cfa = CfaRule::Register(register, offset);
            }
            // DW_CFA_def_cfa_offset
            (_, 0x0e) => {
                let offset = program.uleb()?.cast_signed();
                let CfaRule::Register(register, _) = row.cfa else {
                    return None;
                };
                row.cfa = CfaRule::Register(register, offset);
            }
            // DW_CFA_def_cfa_expression
            (_, 0x0f) => {
                let len = program.uleb()?;
                row.cfa = CfaRule::Expression(program.at, len);
                program.take(len)?;
            }
            // DW_CFA_expression
            (_, 0x10) => {
                let register = program.uleb()?;
                let len = program.uleb()?;
                set(row, register, Saved::Expression(program.at, len));
                program.take(len)?;
            }
            // DW_CFA_offset_extended_sf
            (_, 0x11) => {
                let register = program.uleb()?;
                let offset = program.sleb()?.wrapping_mul(cie.data_align);
                set(row, register, Saved::Offset(offset));
            }
            // DW_CFA_def_cfa_sf
            (_, 0x12) => {
                let register = program.uleb()?;
                row.cfa = CfaRule::Register(register, program.sleb()?.wrapping_mul(cie.data_align));
            }
            // DW_CFA_def_cfa_offset_sf
            (_, 0x13) => {
                let offset = program.sleb()?.wrapping_mul(cie.data_align);
                let CfaRule::Register(register, _) = row.cfa else {
                    return None;
                };
                row.cfa = CfaRule::Register(register, offset);
            }
            // DW_CFA_val_offset, DW_CFA_val_offset_sf
            (_, 0x14 | 0x15) => {
                let register = program.uleb()?;
                // A signed and an unsigned LEB128 have the same length.
                program.uleb()?;
                set(row, register, Saved::Other);
            }
            // DW_CFA_val_expression
            (_, 0x16) => {
                let register = program.uleb()?;
                let len = program.uleb()?;
                program.take(len)?;
                set(row, register, Saved::Other);
            }
            // DW_CFA_GNU_args_size
            (_, 0x2e) => drop(program.uleb()?),
            _ => return None,
        }
        if let Some(units) = advance {
            location = location.wrapping_add(units.wrapping_mul(cie.code_align));
            if location > address {
                return Some(());
            }
            if matches!(state.row.cfa, CfaRule::Register(RBP, _)) {
                state.framed = Some(state.row);
            }
        }
    }
    Some(())
}

fn set(row: &mut Row, register: u64, saved: Saved) {
    if let Some(slot) = row.saved(register) {
        *slot = saved;
    }
}

fn restore(row: &mut Row, initial: &Row, register: u64) {
    let mut initial = *initial;
    if let (Some(slot), Some(saved)) = (row.saved(register), initial.saved(register)) {
        *slot = *saved;
    }
}

/// A value that an expression has worked out without reading any register.
#[derive(Clone, Copy)]
enum Value {
    Constant(i64),
    /// Register + offset.
    Register(u64, i64),
    /// The word at register + offset.
    At(u64, i64),
}

/// Evaluates an expression for the instruction at `ip`. It knows what compilers and the linker
/// write: PLT entries, slots of realigned frames.
fn evaluate(code: &NativeCode, at: u64, len: u64, ip: u64) -> Option<Value> {
    let mut cursor = Cursor::new(code, at).take(len)?;
    let mut stack = [Value::Constant(0); 8];
    let mut depth = 0usize;
    while let Some(op) = cursor.u8() {
        let top = |below: usize| stack.get(depth.checked_sub(below)?).copied();
        let (pops, value) = match op {
            // DW_OP_lit0 … 31
            0x30..=0x4f => (0, Value::Constant(i64::from(op) - 0x30)),
            // DW_OP_const1u … const8s
            0x08 => (0, Value::Constant(cursor.u8()?.into())),
            0x09 => (0, Value::Constant(cursor.u8()?.cast_signed().into())),
            0x0a => (0, Value::Constant(cursor.u16()?.into())),
            0x0b => (0, Value::Constant(cursor.u16()?.cast_signed().into())),
            0x0c => (0, Value::Constant(cursor.u32()?.into())),
            0x0d => (0, Value::Constant(cursor.u32()?.cast_signed().into())),
            0x0e | 0x0f => (0, Value::Constant(cursor.u64()?.cast_signed())),
            0x10 => (0, Value::Constant(cursor.uleb()?.cast_signed())),
            0x11 => (0, Value::Constant(cursor.sleb()?)),
            // DW_OP_breg0 … 31
            0x70..=0x8f => {
                let (register, offset) = (u64::from(op) - 0x70, cursor.sleb()?);
                let value = if register == RETURN_ADDRESS {
                    Value::Constant(ip.cast_signed().wrapping_add(offset))
                } else {
                    Value::Register(register, offset)
                };
                (0, value)
            }
            // DW_OP_deref
            0x06 => match top(1)? {
                Value::Register(register, offset) => (1, Value::At(register, offset)),
                Value::Constant(_) | Value::At(..) => return None,
            },
            // DW_OP_plus_uconst
            0x23 => {
                let addend = cursor.uleb()?.cast_signed();
                (1, sum(top(1)?, Value::Constant(addend))?)
            }
            // DW_OP_plus
            0x22 => (2, sum(top(2)?, top(1)?)?),
            // DW_OP_and, minus, shl, ge
            0x1a | 0x1c | 0x24 | 0x2a => {
                let (Value::Constant(left), Value::Constant(right)) = (top(2)?, top(1)?) else {
                    return None;
                };
                let value = match op {
                    0x1a => left & right,
                    0x1c => left.wrapping_sub(right),
                    0x24 => left.checked_shl(u32::try_from(right).ok()?).unwrap_or(0),
                    _ => i64::from(left >= right),
                };
                (2, Value::Constant(value))
            }
            _ => return None,
        };
        depth = depth.checked_sub(pops)?;
        *stack.get_mut(depth)? = value;
        depth += 1;
    }
    stack.get(depth.checked_sub(1)?).copied()
}

fn sum(left: Value, right: Value) -> Option<Value> {
    Some(match (left, right) {
        (Value::Constant(left), Value::Constant(right)) => {
            Value::Constant(left.wrapping_add(right))
        }
        (Value::Register(register, offset), Value::Constant(addend))
        | (Value::Constant(addend), Value::Register(register, offset)) => {
            Value::Register(register, offset.wrapping_add(addend))
        }
        _ => return None,
    })
}

fn to_rule(code: &NativeCode, row: Row, ip: u64) -> Option<Rule> {
    if row.ra == Saved::Undefined {
        return Some(Rule::Root);
    }
    let cfa = match row.cfa {
        CfaRule::Register(register, offset) => Value::Register(register, offset),
        CfaRule::Expression(at, len) => evaluate(code, at, len, ip)?,
    };
    let cfa = match cfa {
        Value::Register(RSP, offset) => Cfa::Sp(offset.try_into().ok()?),
        Value::Register(RBP, offset) => Cfa::Bp(offset.try_into().ok()?),
        Value::At(RBP, offset) => Cfa::Slot(offset.try_into().ok()?),
        _ => return None,
    };
    // An address that an expression gives, relative to the CFA where that is possible.
    let relative = |at: u64, len: u64| match (evaluate(code, at, len, ip)?, cfa) {
        (Value::Register(RSP, offset), Cfa::Sp(base))
        | (Value::Register(RBP, offset), Cfa::Bp(base)) => Some(Bp::FromCfa(
            offset.checked_sub(base.into())?.try_into().ok()?,
        )),
        (Value::Register(RBP, offset), _) => Some(Bp::FromOwn(offset.try_into().ok()?)),
        _ => None,
    };
    let ra = match row.ra {
        Saved::Offset(offset) => offset.try_into().ok()?,
        Saved::Expression(at, len) => match relative(at, len)? {
            Bp::FromCfa(offset) => offset,
            Bp::Same | Bp::FromOwn(_) => return None,
        },
        Saved::Same | Saved::Undefined | Saved::Other => return None,
    };
    let bp = match row.bp {
        // Undefined: the function has destroyed it; whatever it holds is as good.
        Saved::Same | Saved::Undefined => Bp::Same,
        Saved::Offset(offset) => Bp::FromCfa(offset.try_into().ok()?),
        Saved::Expression(at, len) => relative(at, len)?,
        Saved::Other => return None,
    };
    // gcc does not say that a pop has restored a register: a slot below the stack pointer is one
    // that was popped.
    let bp = match (cfa, bp) {
        (Cfa::Sp(base), Bp::FromCfa(at)) if base.checked_add(at)? < 0 => Bp::Same,
        _ => bp,
    };
    Some(Rule::Frame {
        cfa,
        ra,
        bp,
        assumed: false,
    })
}

#[cfg(test)]
pub(crate) mod tests;
