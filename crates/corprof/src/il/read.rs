//! Parser of IL method bodies, from an image or from `GetILFunctionBody`.
//!
//! Format: ECMA-335 II.25.4. Where it is ambiguous, the parser follows the CLR (`DecoderInit` of
//! `src/coreclr/inc/corhlpr.cpp`).
//!
//! Invariant: for any bytes, time and memory are linear in their number.

use super::bytes::Bytes;
use super::opcode::TWO_BYTES;
use super::{
    Body, Clause, Handler, Instruction, Label, Opcode, Operand, OperandKind, ReadError,
    ReadErrorKind,
};
use crate::id::Token;

/// Low bits of the first byte.
const TINY: u8 = 2;
const FAT: u8 = 3;
/// Flags of a fat header.
pub(super) const MORE_SECTIONS: u16 = 0x08;
pub(super) const INIT_LOCALS: u16 = 0x10;
/// Kind of a section.
pub(super) const SECTION_CLAUSES: u8 = 0x01;
const SECTION_KIND: u8 = 0x3f;
pub(super) const SECTION_FAT: u8 = 0x40;
const SECTION_MORE: u8 = 0x80;
/// Kinds of clauses.
pub(super) const CATCH: u32 = 0;
pub(super) const FILTER: u32 = 1;
pub(super) const FINALLY: u32 = 2;
pub(super) const FAULT: u32 = 4;

/// Marks an offset at which no instruction begins.
const INSIDE: u32 = u32::MAX;

impl Body {
    /// Reads the body at the start of `bytes`, header first; later bytes are ignored.
    ///
    /// # Errors
    /// The error, with its offset.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        Self::read_prefix(bytes).map(|(body, _)| body)
    }

    /// As [`Body::read`]; also returns the body's length in bytes, which an image does not state
    /// elsewhere.
    ///
    /// As in the CLR, only clauses of the first section after the code count; later sections are
    /// skipped.
    ///
    /// # Errors
    /// The error, with its offset.
    pub fn read_prefix(bytes: &[u8]) -> Result<(Self, usize), ReadError> {
        let mut bytes = Bytes::new(bytes);
        let first = bytes.u8()?;
        let mut body = Self::new();
        let (code_size, more) = match first & 3 {
            TINY => (u32::from(first >> 2), false),
            FAT => body.read_fat_header(first, &mut bytes)?,
            _ => return Err(bytes.error(1, ReadErrorKind::Header(first))),
        };
        let start = bytes.at();
        let code = bytes.take(code_size as usize)?;
        let lines = body.read_code(code, start)?;
        if more {
            body.read_sections(&mut bytes, &lines)?;
        }
        Ok((body, bytes.at()))
    }

    /// Returns the size of the code, and whether sections follow.
    fn read_fat_header(
        &mut self,
        first: u8,
        bytes: &mut Bytes<'_>,
    ) -> Result<(u32, bool), ReadError> {
        let second = bytes.u8()?;
        let (flags, words) = (
            u16::from_le_bytes([first, second]),
            usize::from(second >> 4),
        );
        if words < 3 {
            return Err(bytes.error(1, ReadErrorKind::HeaderSize(second >> 4)));
        }
        self.fat_header = true;
        self.max_stack = bytes.u16()?;
        let code_size = bytes.u32()?;
        let locals = Token(bytes.u32()?);
        self.locals = (locals.0 != 0).then_some(locals);
        self.init_locals = flags & INIT_LOCALS != 0;
        bytes.take((words - 3) * 4)?;
        Ok((code_size, flags & MORE_SECTIONS != 0))
    }

    /// Fills in the lines. Returns the index of the line that begins at each offset of the code,
    /// and at its end.
    fn read_code(&mut self, code: &[u8], start: usize) -> Result<Vec<u32>, ReadError> {
        let mut lines = vec![INSIDE; code.len() + 1];
        let mut bytes = Bytes::new(code);
        while !bytes.is_empty() {
            let at = bytes.at();
            let instruction = read_instruction(&mut bytes).map_err(|error| ReadError {
                offset: error.offset + start,
                ..error
            })?;
            if let Some(line) = lines.get_mut(at) {
                *line = self.lines.len() as u32;
            }
            let mut line = self.line(instruction);
            line.origin = u32::try_from(at).ok();
            self.lines.push(line);
        }
        if let Some(end) = lines.last_mut() {
            *end = Label::END.0;
        }
        // Until here, targets are offsets.
        for line in &mut self.lines {
            let origin = line.origin.unwrap_or(0) as usize;
            for target in line.instruction.targets_mut() {
                let inside = ReadErrorKind::InsideInstruction(target.0);
                match lines.get(target.0 as usize) {
                    Some(&index) if index != INSIDE => *target = Label(index),
                    _ => {
                        return Err(ReadError {
                            offset: start + origin,
                            kind: inside,
                        });
                    }
                }
            }
        }
        Ok(lines)
    }

    fn read_sections(&mut self, bytes: &mut Bytes<'_>, lines: &[u32]) -> Result<(), ReadError> {
        let mut is_first = true;
        loop {
            bytes.align()?;
            let kind = bytes.u8()?;
            let fat = kind & SECTION_FAT != 0;
            let [low, middle, high] = bytes.array()?;
            let size = match fat {
                true => u32::from_le_bytes([low, middle, high, 0]),
                false => u32::from(low),
            };
            let Some(content) = size.checked_sub(4) else {
                return Err(bytes.error(4, ReadErrorKind::SectionSize(size)));
            };
            let is_clauses = is_first && kind & SECTION_KIND == SECTION_CLAUSES;
            // Computed as in the CLR: some compilers do not include the header in the size.
            let count = if is_clauses {
                size / if fat { 24 } else { 12 }
            } else {
                0
            };
            let start = bytes.at();
            for _ in 0..count {
                let clause = read_clause(bytes, fat, lines)?;
                self.clauses.push(clause);
            }
            if is_clauses {
                self.fat_clauses = fat;
            }
            let read = bytes.at() - start;
            bytes.take((content as usize).saturating_sub(read))?;
            is_first = false;
            if kind & SECTION_MORE == 0 {
                return Ok(());
            }
        }
    }
}

/// Reads an instruction. Its targets are offsets in the code, stored as labels.
fn read_instruction(bytes: &mut Bytes<'_>) -> Result<Instruction, ReadError> {
    let begin = bytes.at();
    let number = match bytes.u8()? {
        TWO_BYTES => u16::from_be_bytes([TWO_BYTES, bytes.u8()?]),
        one => u16::from(one),
    };
    let opcode = Opcode::new(number).ok_or(ReadError {
        offset: begin,
        kind: ReadErrorKind::Opcode(number),
    })?;
    let operand = match opcode.operand() {
        OperandKind::None => Operand::None,
        OperandKind::Int8 => Operand::Int8(bytes.u8()? as i8),
        OperandKind::UInt8 => Operand::UInt8(bytes.u8()?),
        OperandKind::Int32 => Operand::Int32(bytes.i32()?),
        OperandKind::Int64 => Operand::Int64(bytes.i64()?),
        OperandKind::Float32 => Operand::Float32(bytes.u32()?),
        OperandKind::Float64 => Operand::Float64(bytes.i64()? as u64),
        OperandKind::ShortVariable => Operand::Variable(bytes.u8()?.into()),
        OperandKind::Variable => Operand::Variable(bytes.u16()?),
        OperandKind::Token => Operand::Token(Token(bytes.u32()?)),
        OperandKind::ShortTarget => {
            let distance = i64::from(bytes.u8()? as i8);
            Operand::Target(target(bytes, begin, bytes.at(), distance)?)
        }
        OperandKind::Target => {
            let distance = i64::from(bytes.i32()?);
            Operand::Target(target(bytes, begin, bytes.at(), distance)?)
        }
        OperandKind::Switch => {
            let count = bytes.u32()? as usize;
            let size = count.checked_mul(4).ok_or(ReadError {
                offset: begin,
                kind: ReadErrorKind::Truncated,
            })?;
            let distances = bytes.take(size)?;
            let next = bytes.at();
            let target = |distance: &[u8; 4]| {
                target(bytes, begin, next, i64::from(i32::from_le_bytes(*distance)))
            };
            let (distances, _) = distances.as_chunks::<4>();
            Operand::Switch(distances.iter().map(target).collect::<Result<_, _>>()?)
        }
    };
    Ok(Instruction::known(opcode, operand))
}

/// The target offset of a branch at `begin`. The position after the last instruction is an error.
fn target(bytes: &Bytes<'_>, begin: usize, next: usize, distance: i64) -> Result<Label, ReadError> {
    let to = next as i64 + distance;
    let offset = u32::try_from(to).ok().filter(|to| bytes.holds(*to));
    let offset = offset.ok_or(ReadError {
        offset: begin,
        kind: ReadErrorKind::TargetOutside(to),
    })?;
    Ok(Label(offset))
}

fn read_clause(bytes: &mut Bytes<'_>, fat: bool, lines: &[u32]) -> Result<Clause, ReadError> {
    let start = bytes.at();
    let (kind, tries, handles) = match fat {
        true => {
            let kind = bytes.u32()?;
            let tries = (bytes.u32()?, bytes.u32()?);
            (kind, tries, (bytes.u32()?, bytes.u32()?))
        }
        false => {
            let kind = bytes.u16()?.into();
            let tries = (bytes.u16()?.into(), bytes.u8()?.into());
            (kind, tries, (bytes.u16()?.into(), bytes.u8()?.into()))
        }
    };
    let what = bytes.u32()?;
    let wrong = |kind| ReadError {
        offset: start,
        kind,
    };
    let label = |offset: u32| match lines.get(offset as usize) {
        Some(&INSIDE) if offset as usize + 1 < lines.len() => {
            Err(wrong(ReadErrorKind::InsideInstruction(offset)))
        }
        Some(&index) => Ok(Label(index)),
        None => Err(wrong(ReadErrorKind::RangeOutside(offset.into()))),
    };
    let range = |(from, length): (u32, u32)| {
        let end = u64::from(from) + u64::from(length);
        let to = u32::try_from(end).map_err(|_| wrong(ReadErrorKind::RangeOutside(end)))?;
        Ok((label(from)?, label(to)?))
    };
    let handler = match kind {
        CATCH => Handler::Catch(Token(what)),
        FILTER => Handler::Filter(label(what)?),
        FINALLY => Handler::Finally,
        FAULT => Handler::Fault,
        other => return Err(wrong(ReadErrorKind::Clause(other))),
    };
    let ((try_start, try_end), (handler_start, handler_end)) = (range(tries)?, range(handles)?);
    Ok(Clause {
        handler,
        try_start,
        try_end,
        handler_start,
        handler_end,
    })
}
