//! Interpreter of native unwind tables: `.eh_frame_hdr` and `.eh_frame`, run in the signal handler.
//!
//! Input is an address in a module; output is the unwind [`Rule`] there. It tracks the CFA, the
//! return address, `rbp`, and one more register if requested. Rules of other registers are skipped.
//! Expressions become rules where possible (`expression`). The tests compare it with `gimli` for
//! every row of every module of the test process. Invariant: it reads only the slices that
//! [`NativeCode::bytes_at`] and `code_at` return, and every loop is bounded by their length.
//!
//! Why not gimli: its rows hold every register, so its working memory is ten times as large and a
//! row takes several times as long. Nothing else of it would be used.
//!
//! Format: LSB core specification, "Exception Frames"; DWARF 5, section 6.4.

use crate::native::NativeCode;
use crate::rule::{Base, Bp, Cfa, LEAF, Rule};
use crate::x86::{self, instruction::decode};
use cursor::Cursor;
use expression::{Value, Values, symbolic};

pub(crate) use expression::CfiFrame;

mod cursor;
mod expression;

/// The table is malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unsupported;

const RBP: u64 = 6;
const RSP: u64 = 7;
const RETURN_ADDRESS: u64 = 16;

/// An expression: its address in the module and its length, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    at: u64,
    len: u64,
}

/// Location of a register's value in the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SavedRule {
    /// In the register, unchanged.
    Same,
    Undefined,
    /// At CFA + offset.
    Offset(i64),
    /// The value is CFA + offset.
    IsOffset(i64),
    /// At the address that the expression evaluates to.
    Expression(Span),
    /// The value is the expression's result.
    IsExpression(Span),
    /// In another register.
    Register(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CfaRule {
    Register(u64, i64),
    Expression(Span),
}

/// The tracked part of a table row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct UnwindRow {
    cfa: CfaRule,
    ra: SavedRule,
    bp: SavedRule,
    /// The register that [`register_home`] requests.
    tracked: SavedRule,
}

impl UnwindRow {
    const START: UnwindRow = UnwindRow {
        cfa: CfaRule::Register(RSP, 8),
        ra: SavedRule::Undefined,
        bp: SavedRule::Same,
        tracked: SavedRule::Same,
    };

    fn saved(&mut self, register: u64, tracked: u64) -> Option<&mut SavedRule> {
        match register {
            RBP => Some(&mut self.bp),
            RETURN_ADDRESS => Some(&mut self.ra),
            _ => (register == tracked).then_some(&mut self.tracked),
        }
    }
}

/// Maximum nesting of `DW_CFA_remember_state`; compilers use one level.
const REMEMBERED: usize = 4;

/// Working memory of [`rule`].
#[derive(Debug)]
pub(crate) struct RowProgram {
    row: UnwindRow,
    initial: UnwindRow,
    remembered: [UnwindRow; REMEMBERED],
    depth: usize,
    /// The last row before the found one whose CFA is in `rbp`.
    framed: Option<UnwindRow>,
    /// DWARF number of the register in [`UnwindRow::tracked`].
    tracked: u64,
    /// Whether the row is that of a signal frame: its caller was interrupted and made no call.
    signal: bool,
    /// The first address of the found row, according to its program: an instruction begins there.
    from: u64,
    /// The first address after it; at most the end of its function.
    pub(crate) until: u64,
    values: Values,
}

impl RowProgram {
    pub(crate) const fn new() -> Self {
        Self {
            row: UnwindRow::START,
            initial: UnwindRow::START,
            remembered: [UnwindRow::START; REMEMBERED],
            depth: 0,
            framed: None,
            tracked: RSP,
            signal: false,
            from: 0,
            until: 0,
            values: [0; expression::DEPTH],
        }
    }
}

/// Returns the rule for the instruction at `address` of a module, or `Ok(None)` if there is none.
/// With `exact` the instruction has not run yet. Async-signal-safe.
///
/// In an epilogue the instructions decide, not the table: clang before 9, which compiled the native
/// libraries of .NET Core 3.1, does not describe epilogues. Two of three `ret` there have the row
/// from before `pop rbp`.
pub(crate) fn rule(
    code: &NativeCode,
    address: u64,
    exact: bool,
    state: &mut RowProgram,
) -> Result<Option<Rule>, Unsupported> {
    let mut window = [0; WINDOW];
    let mut after_pop = false;
    if exact {
        let (around, before) = around(code, address, &mut window);
        let from = |bytes: usize| {
            let at = before.checked_sub(bytes);
            at.and_then(|at| around.get(at..)).unwrap_or_default()
        };
        if let Some(rule) = x86::epilogue(from(0), address, &(0..0), false) {
            return Ok(Some(rule));
        }
        // In these tables the last row still describes the removed frame.
        if let Some(register) = x86::landing(from(0), from) {
            return Ok(Some(Rule::Landing(register)));
        }
        after_pop = x86::is_jump_after_pop(from(1));
    }
    match table_rule(code, address, state) {
        Ok(Some(Rule::Frame {
            cfa: Cfa::Bp(_), ..
        })) if after_pop && is_instruction(code, address.wrapping_sub(1), state.from) => {
            Ok(Some(LEAF))
        }
        Ok(Some(LEAF)) if !exact => Ok(Some(return_rule_at_end(code, address, state))),
        Ok(None) if is_signal_return(code, address, exact) => Ok(Some(Rule::SignalFrame)),
        Ok(None) => Ok(code.synthesised(address)),
        rule => rule,
    }
}

/// Maximum distance over which code is decoded, bytes.
const LONGEST_ROW: u64 = 1 << 18;

/// Whether an instruction begins at `address`, if one does at `from`: a byte may also be within
/// another instruction. Async-signal-safe.
fn is_instruction(code: &NativeCode, address: u64, from: u64) -> bool {
    let (mut at, mut window) = (from, [0; 128]);
    while at < address && address - from <= LONGEST_ROW {
        let (start, mut rest) = (at, code.code_at(at, &mut window));
        // Code that the window cuts off is none.
        while at < address
            && let Some(found) = decode(rest)
        {
            at += u64::from(found.length);
            rest = rest.get(usize::from(found.length)..).unwrap_or_default();
        }
        if at == start {
            return false;
        }
    }
    at == address
}

/// Whether an address without a table is that of the C library's return from a signal handler
/// (musl's `__restore_rt`, which has none), by its two instructions. A handler returns to the first
/// of them, and a return address is looked up one byte below.
fn is_signal_return(code: &NativeCode, address: u64, exact: bool) -> bool {
    let mut window = [0; x86::SIGNAL_RETURN.len()];
    let mut is_there = |start: Option<u64>| {
        start.is_some_and(|start| code.code_at(start, &mut window) == x86::SIGNAL_RETURN)
    };
    match exact {
        true => [0, x86::SIGNAL_RETURN_CALL]
            .iter()
            .any(|before| is_there(address.checked_sub(*before))),
        false => is_there(address.checked_add(1)),
    }
}

/// Number of code bytes read before an instruction, for instructions that may have run before it.
const BEFORE: usize = 8;
const WINDOW: usize = BEFORE + 64;

/// Returns the code around an instruction, and how many of its bytes are before the instruction.
fn around<'a>(code: &NativeCode, address: u64, window: &'a mut [u8; WINDOW]) -> (&'a [u8], usize) {
    let start = address.saturating_sub(BEFORE as u64);
    match code.code_at(start, window).len() {
        // The module's code begins here, so nothing is before it.
        0 => (code.code_at(address, window), 0),
        length => (window.get(..length).unwrap_or_default(), BEFORE),
    }
}

/// Returns the rule of a call for which the table says that only the return address is on the
/// stack. No call is made in that state, because the stack would not be aligned for it (System V
/// ABI of x86-64, section 3.2.2). The call is in code after the function's `ret`, where a
/// hand-written table still has the row of the `ret` (the rare path of `UMThunkStub` of .NET Core
/// 3.1). The frame of the function applies.
fn return_rule_at_end(code: &NativeCode, address: u64, state: &RowProgram) -> Rule {
    state
        .framed
        .and_then(|row| to_rule(code, row, address))
        .unwrap_or(LEAF)
}

/// A caller that was computed from the registers and memory of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Caller {
    pub(crate) cfa: u64,
    pub(crate) ip: u64,
    pub(crate) bp: u64,
    /// Whether it was interrupted: its instruction has not run yet.
    pub(crate) exact: bool,
}

/// Evaluates the row for which [`rule`] has just returned [`Rule::Evaluate`]. `None` if that needs
/// an unknown register or memory that may not be read. Async-signal-safe.
pub(crate) fn evaluate(
    code: &NativeCode,
    frame: &impl CfiFrame,
    state: &mut RowProgram,
) -> Option<Caller> {
    let RowProgram { row, values, .. } = state;
    let cfa = match row.cfa {
        CfaRule::Register(register, offset) => {
            frame.register(register)?.wrapping_add_signed(offset)
        }
        CfaRule::Expression(span) => expression::evaluate(code, span, None, frame, values)?,
    };
    let mut value = |register: u64, saved: SavedRule| match saved {
        // Undefined: the function has overwritten it, so any value is acceptable.
        SavedRule::Same | SavedRule::Undefined => frame.register(register),
        SavedRule::Offset(offset) => frame.word(cfa.wrapping_add_signed(offset)),
        SavedRule::IsOffset(offset) => Some(cfa.wrapping_add_signed(offset)),
        SavedRule::Expression(span) => {
            frame.word(expression::evaluate(code, span, Some(cfa), frame, values)?)
        }
        SavedRule::IsExpression(span) => expression::evaluate(code, span, Some(cfa), frame, values),
        SavedRule::Register(other) => frame.register(other),
    };
    Some(Caller {
        cfa,
        ip: value(RETURN_ADDRESS, row.ra)?,
        bp: value(RBP, row.bp)?,
        exact: state.signal,
    })
}

/// Location of a caller's register.
pub(crate) enum RegisterHome {
    /// Still in the register.
    Same,
    /// At CFA + this offset.
    At(i64),
}

/// Returns where the code at `address` keeps a register of its caller, by its DWARF number. `None`
/// if the table has no such simple rule. Async-signal-safe.
pub(crate) fn register_home(
    code: &NativeCode,
    address: u64,
    register: u64,
    state: &mut RowProgram,
) -> Option<RegisterHome> {
    state.tracked = register;
    let rule = table_rule(code, address, state);
    state.tracked = RSP;
    rule.ok()??;
    match state.row.tracked {
        SavedRule::Same => Some(RegisterHome::Same),
        SavedRule::Offset(at) => Some(RegisterHome::At(at)),
        _ => None,
    }
}

/// Returns the table's rule at `address`; `Ok(None)` if it has none.
pub(crate) fn table_rule(
    code: &NativeCode,
    address: u64,
    state: &mut RowProgram,
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
    state.row = UnwindRow::START;
    state.depth = 0;
    state.framed = None;
    state.signal = fde.cie.signal;
    let mut program = fde.cie.program;
    run(&mut program, &fde, u64::MAX, state).ok_or(Unsupported)?;
    state.initial = state.row;
    let mut program = fde.program;
    run(&mut program, &fde, address, state).ok_or(Unsupported)?;
    state.until = state.until.min(fde.end);
    if state.signal {
        return Ok(Some(signal_rule(code, state.row, address)));
    }
    let rule = to_rule(code, state.row, address).unwrap_or(Rule::Evaluate);
    Ok(Some(corrected(code, fde.start, rule)))
}

/// Corrects the rule in two functions of the runtime whose tables are wrong; returns any other
/// `rule` unchanged. The code is read only if the table's rule is one of theirs.
///
/// The stub that a hijacked method returns to is not called. Its first push makes room for the
/// return address, which `OnHijackWorker` fills in. Its table describes the push as that of a
/// register, so the return address is expected one word too high.
///
/// `RtlRestoreContext` pushes `rbp` and does not make it a frame pointer, although its table says
/// so. Later it loads another frame's value into `rbp`.
fn corrected(code: &NativeCode, function: u64, rule: Rule) -> Rule {
    let mut window = [0; 32];
    match rule {
        Rule::Frame {
            cfa: Cfa::Sp(offset @ 8..),
            ra: -8,
            bp: Bp::Same,
            assumed: false,
        } if x86::is_hijack_stub(code.code_at(function, &mut window)) => {
            Rule::HijackStub(offset - 8)
        }
        Rule::Frame {
            cfa: Cfa::Bp(0),
            ra: -8,
            bp: bp @ Bp::FromCfa(-16),
            assumed: false,
        } if x86::restores_context(code.code_at(function, &mut window)) => Rule::Frame {
            cfa: Cfa::Sp(16),
            ra: -8,
            bp,
            assumed: false,
        },
        rule => rule,
    }
}

/// Returns the rule of code that the kernel's signal frame returns to. The C library's code has
/// expressions for all registers. One identifies it: the instruction pointer's place in a
/// `ucontext_t` at the stack pointer. Other tables are evaluated.
fn signal_rule(code: &NativeCode, row: UnwindRow, address: u64) -> Rule {
    const RIP_IN_CONTEXT: i64 = 40 + 8 * libc::REG_RIP as i64;
    match row.ra {
        SavedRule::Undefined => Rule::Root,
        SavedRule::Expression(span)
            if symbolic(code, span, address) == Some(Value::Register(RSP, RIP_IN_CONTEXT)) =>
        {
            Rule::SignalFrame
        }
        _ => Rule::Evaluate,
    }
}

/// Iterates over start and end of every function in the binary search table, in order.
pub(crate) fn functions(code: &NativeCode) -> impl Iterator<Item = (u64, u64)> {
    search_table(code)
        .unwrap_or_default()
        .iter()
        .filter_map(|entry| {
            let (_, fde) = relative(entry);
            let fde = Fde::parse(code, code.eh_frame_hdr.checked_add_signed(fde.into())?)?;
            Some((fde.start, fde.end))
        })
}

/// Decodes an entry of the search table: a function's start and its FDE, relative to the header.
fn relative(entry: &[u8; 8]) -> (i32, i32) {
    let [a, b, c, d, e, f, g, h] = *entry;
    (
        i32::from_le_bytes([a, b, c, d]),
        i32::from_le_bytes([e, f, g, h]),
    )
}

/// Returns the binary search table of `.eh_frame_hdr`.
fn search_table(code: &NativeCode) -> Option<&[[u8; 8]]> {
    if code.eh_frame_hdr == 0 {
        return None;
    }
    let mut header = Cursor::new(code, code.eh_frame_hdr);
    let [version, eh_frame_encoding, count_encoding, table_encoding] = header.array()?;
    // 0x3b: signed four bytes relative to the header, the only encoding that linkers write.
    if version != 1 || table_encoding != 0x3b {
        return None;
    }
    header.format(eh_frame_encoding)?;
    let count = header.format(count_encoding)?;
    let (table, _) = header.take(count.checked_mul(8)?)?.bytes.as_chunks::<8>();
    Some(table)
}

/// Whether a function begins at `address`, according to the search table. Async-signal-safe.
pub(crate) fn begins_at(code: &NativeCode, address: u64) -> bool {
    let wanted = address.wrapping_sub(code.eh_frame_hdr).cast_signed();
    let start = |entry: &[u8; 8]| i64::from(relative(entry).0);
    search_table(code).is_some_and(|table| table.binary_search_by_key(&wanted, start).is_ok())
}

/// Returns the address of the FDE for `address`.
fn find_fde(code: &NativeCode, address: u64) -> Option<u64> {
    let table = search_table(code)?;
    let wanted = address.wrapping_sub(code.eh_frame_hdr).cast_signed();
    let behind = table.partition_point(|entry| i64::from(relative(entry).0) <= wanted);
    let (_, fde) = relative(table.get(behind.checked_sub(1)?)?);
    code.eh_frame_hdr.checked_add_signed(fde.into())
}

/// The needed parts of a CIE.
struct Cie<'a> {
    code_align: u64,
    data_align: i64,
    pointer_encoding: u8,
    /// Whether FDEs have augmentation data, after their length.
    augmented: bool,
    /// Whether its code is the return from a signal handler.
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

/// Returns the bytes of a CIE or FDE after its length.
fn entry(code: &NativeCode, at: u64) -> Option<Cursor<'_>> {
    let mut cursor = Cursor::new(code, at);
    match cursor.u32()? {
        // The end of the section, or the 64-bit format, which no toolchain writes here.
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
                    // Unknown letters end the parsing, but their length is known.
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

/// Runs a program up to the row that applies at `address`.
#[inline(never)]
fn run(
    program: &mut Cursor<'_>,
    fde: &Fde<'_>,
    address: u64,
    state: &mut RowProgram,
) -> Option<()> {
    let mut location = fde.start;
    (state.from, state.until) = (location, u64::MAX);
    let (cie, tracked) = (&fde.cie, state.tracked);
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
                set(row, tracked, low, SavedRule::Offset(offset));
            }
            // DW_CFA_restore
            (3, _) => restore(row, tracked, &state.initial, low),
            // DW_CFA_nop
            (_, 0x00) => {}
            // DW_CFA_set_loc
            (_, 0x01) => {
                location = program.pointer(cie.pointer_encoding)?;
                if location > address {
                    state.until = location;
                    return Some(());
                }
                state.from = location;
            }
            // DW_CFA_advance_loc1, 2, 4
            (_, 0x02) => advance = Some(program.u8()?.into()),
            (_, 0x03) => advance = Some(program.u16()?.into()),
            (_, 0x04) => advance = Some(program.u32()?.into()),
            // DW_CFA_offset_extended
            (_, 0x05) => {
                let register = program.uleb()?;
                let offset = factored(program.uleb()?);
                set(row, tracked, register, SavedRule::Offset(offset));
            }
            // DW_CFA_restore_extended
            (_, 0x06) => restore(row, tracked, &state.initial, program.uleb()?),
            // DW_CFA_undefined
            (_, 0x07) => set(row, tracked, program.uleb()?, SavedRule::Undefined),
            // DW_CFA_same_value
            (_, 0x08) => set(row, tracked, program.uleb()?, SavedRule::Same),
            // DW_CFA_register
            (_, 0x09) => {
                let register = program.uleb()?;
                let other = program.uleb()?;
                set(row, tracked, register, SavedRule::Register(other));
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
                row.cfa = CfaRule::Expression(span(program)?);
            }
            // DW_CFA_expression
            (_, 0x10) => {
                let register = program.uleb()?;
                set(
                    row,
                    tracked,
                    register,
                    SavedRule::Expression(span(program)?),
                );
            }
            // DW_CFA_offset_extended_sf
            (_, 0x11) => {
                let register = program.uleb()?;
                let offset = program.sleb()?.wrapping_mul(cie.data_align);
                set(row, tracked, register, SavedRule::Offset(offset));
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
            (_, 0x14) => {
                let register = program.uleb()?;
                let offset = factored(program.uleb()?);
                set(row, tracked, register, SavedRule::IsOffset(offset));
            }
            (_, 0x15) => {
                let register = program.uleb()?;
                let offset = program.sleb()?.wrapping_mul(cie.data_align);
                set(row, tracked, register, SavedRule::IsOffset(offset));
            }
            // DW_CFA_val_expression
            (_, 0x16) => {
                let register = program.uleb()?;
                set(
                    row,
                    tracked,
                    register,
                    SavedRule::IsExpression(span(program)?),
                );
            }
            // DW_CFA_GNU_args_size
            (_, 0x2e) => drop(program.uleb()?),
            _ => return None,
        }
        if let Some(units) = advance {
            location = location.wrapping_add(units.wrapping_mul(cie.code_align));
            if location > address {
                state.until = location;
                return Some(());
            }
            state.from = location;
            if matches!(state.row.cfa, CfaRule::Register(RBP, _)) {
                state.framed = Some(state.row);
            }
        }
    }
    Some(())
}

/// Reads an expression that follows its length.
fn span(program: &mut Cursor<'_>) -> Option<Span> {
    let len = program.uleb()?;
    let at = program.at;
    program.take(len)?;
    Some(Span { at, len })
}

fn set(row: &mut UnwindRow, tracked: u64, register: u64, saved: SavedRule) {
    if let Some(slot) = row.saved(register, tracked) {
        *slot = saved;
    }
}

fn restore(row: &mut UnwindRow, tracked: u64, initial: &UnwindRow, register: u64) {
    let mut initial = *initial;
    if let (Some(slot), Some(saved)) = (
        row.saved(register, tracked),
        initial.saved(register, tracked),
    ) {
        *slot = *saved;
    }
}

/// Converts a row to a rule; `None` if it needs [`evaluate`].
#[inline(never)]
fn to_rule(code: &NativeCode, row: UnwindRow, ip: u64) -> Option<Rule> {
    if row.ra == SavedRule::Undefined {
        return Some(Rule::Root);
    }
    let cfa = match row.cfa {
        CfaRule::Register(register, offset) => Value::Register(register, offset),
        CfaRule::Expression(span) => symbolic(code, span, ip)?,
    };
    let narrow = |offset: i64| i32::try_from(offset).ok();
    let cfa = match cfa {
        Value::Register(RSP, offset) => Cfa::Sp(narrow(offset)?),
        Value::Register(RBP, offset) => Cfa::Bp(narrow(offset)?),
        Value::Register(register, offset) => Cfa::Other(
            u8::try_from(register)
                .ok()
                .filter(|register| *register < 16)?,
            narrow(offset)?,
        ),
        Value::Word(RBP, at, 0) => Cfa::Slot(narrow(at)?),
        Value::Word(RBP, at, add) => Cfa::Word(Base::Bp, narrow(at)?, narrow(add)?),
        Value::Word(RSP, at, add) => Cfa::Word(Base::Sp, narrow(at)?, narrow(add)?),
        _ => return None,
    };
    // The address of an expression, relative to the CFA if possible.
    let relative = |span: Span| match (symbolic(code, span, ip)?, cfa) {
        (Value::Register(RSP, offset), Cfa::Sp(base))
        | (Value::Register(RBP, offset), Cfa::Bp(base)) => {
            Some(Bp::FromCfa(narrow(offset.checked_sub(base.into())?)?))
        }
        (Value::Register(RBP, offset), _) => Some(Bp::FromOwn(narrow(offset)?)),
        _ => None,
    };
    let ra = match row.ra {
        SavedRule::Offset(offset) => narrow(offset)?,
        SavedRule::Expression(span) => match relative(span)? {
            Bp::FromCfa(offset) => offset,
            Bp::Same | Bp::FromOwn(_) => return None,
        },
        _ => return None,
    };
    let bp = match row.bp {
        // Undefined: the function has overwritten it, so any value is acceptable.
        SavedRule::Same | SavedRule::Undefined => Bp::Same,
        SavedRule::Offset(offset) => Bp::FromCfa(narrow(offset)?),
        SavedRule::Expression(span) => relative(span)?,
        _ => return None,
    };
    // gcc does not record that a pop has restored a register. A slot below the stack pointer
    // belongs to a popped register.
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
