//! Encoder of IL method bodies: computes offsets and lengthens short branches where needed.
//!
//! An unchanged body is written with the same bytes of code.
//!
//! Invariants: the output reads back as the same lines; a branch never becomes shorter.

use super::read::{
    CATCH, FAULT, FILTER, FINALLY, INIT_LOCALS, MORE_SECTIONS, SECTION_CLAUSES, SECTION_FAT,
};
use super::{Body, Clause, Handler, Label, Line, Operand, OperandKind, WriteError};
use crate::sys::CorIlMap;

/// Maximum size of the code: the CLR requires that it fits into an `int`.
const MAX_CODE: u64 = i32::MAX as u64;
/// Size of a fat clause. A fat section states its size in 24 bits, including its four-byte header.
const FAT_CLAUSE: usize = 24;
const SMALL_CLAUSE: usize = 12;
const MAX_CLAUSES: usize = (0xff_ffff - 4) / FAT_CLAUSE;
/// Maximum number of layout rounds, each of which lengthens at least one branch. After that all
/// remaining short branches become long; only artificial code needs so many rounds.
const ROUNDS: u32 = 16;

/// The bytes of a written body, and the map of its offsets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    bytes: Vec<u8>,
    map: Vec<(u32, u32)>,
    code_size: u32,
}

impl Written {
    /// Header, code and clauses.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As [`Written::bytes`], by value.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Size of the code in bytes.
    pub fn code_size(&self) -> u32 {
        self.code_size
    }

    /// Old and new offset of each line of the original, in the order of the new code.
    pub fn offsets(&self) -> &[(u32, u32)] {
        &self.map
    }

    /// Maps an offset of the new code to one of the old code. For an inserted line this is the
    /// offset of the last original line before it; `None` before the first.
    pub fn old_offset(&self, new: u32) -> Option<u32> {
        let before = self.map.partition_point(|(_, at)| *at <= new);
        let (old, _) = self.map.get(before.checked_sub(1)?)?;
        Some(*old)
    }

    /// The map for `SetILInstrumentedCodeMap`.
    pub fn code_map(&self) -> Vec<CorIlMap> {
        let entry = |(old_offset, new_offset): &(u32, u32)| CorIlMap {
            old_offset: *old_offset,
            new_offset: *new_offset,
            accurate: 1,
        };
        self.map.iter().map(entry).collect()
    }
}

/// Offsets of the lines.
struct Layout {
    /// By label: index of its line.
    lines: Vec<u32>,
    /// Offset of each line, and of the end of the code.
    offsets: Vec<u32>,
    /// By line: whether a short branch is written in its long form.
    widened: Vec<bool>,
}

/// Marks a label that no line has.
const NONE: u32 = u32::MAX;

impl Body {
    /// Encodes the body.
    ///
    /// # Errors
    /// A label of no line or of two lines, a range that ends before it begins, or too much code.
    pub fn write(&self) -> Result<Written, WriteError> {
        let layout = self.layout()?;
        let code_size = layout.end();
        let tiny = !self.fat_header
            && code_size < 64
            && self.max_stack <= 8
            && self.locals.is_none()
            && !self.init_locals
            && self.clauses.is_empty();
        let mut bytes = Vec::with_capacity(code_size as usize + 16 + 28 * self.clauses.len());
        if tiny {
            bytes.push((code_size as u8) << 2 | 2);
        } else {
            self.write_fat_header(code_size, &mut bytes);
        }
        for (index, line) in self.lines.iter().enumerate() {
            layout.write_line(index, line, &mut bytes)?;
        }
        if !self.clauses.is_empty() {
            self.write_clauses(&layout, &mut bytes)?;
        }
        let offsets = self.lines.iter().zip(&layout.offsets);
        let map = offsets.filter_map(|(line, new)| Some((line.origin?, *new)));
        Ok(Written {
            map: map.collect(),
            bytes,
            code_size,
        })
    }

    fn write_fat_header(&self, code_size: u32, bytes: &mut Vec<u8>) {
        let mut flags = 0x3003u16;
        if self.init_locals {
            flags |= INIT_LOCALS;
        }
        if !self.clauses.is_empty() {
            flags |= MORE_SECTIONS;
        }
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&self.max_stack.to_le_bytes());
        bytes.extend_from_slice(&code_size.to_le_bytes());
        let locals = self.locals.map_or(0, |token| token.0);
        bytes.extend_from_slice(&locals.to_le_bytes());
    }

    fn write_clauses(&self, layout: &Layout, bytes: &mut Vec<u8>) -> Result<(), WriteError> {
        let count = self.clauses.len();
        if count > MAX_CLAUSES {
            return Err(WriteError::Clauses(count));
        }
        let clauses = self.clauses.iter().map(|clause| layout.clause(clause));
        let clauses: Vec<WrittenClause> = clauses.collect::<Result<_, _>>()?;
        let size = |each: usize| (4 + each * count) as u32;
        let small = !self.fat_clauses
            && size(SMALL_CLAUSE) <= 0xff
            && clauses.iter().all(WrittenClause::is_small);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        if small {
            bytes.extend_from_slice(&[SECTION_CLAUSES, size(SMALL_CLAUSE) as u8, 0, 0]);
        } else {
            let [low, middle, high, _] = size(FAT_CLAUSE).to_le_bytes();
            bytes.extend_from_slice(&[SECTION_CLAUSES | SECTION_FAT, low, middle, high]);
        }
        for clause in &clauses {
            clause.write(small, bytes);
        }
        Ok(())
    }

    fn layout(&self) -> Result<Layout, WriteError> {
        let mut lines = vec![NONE; self.labels as usize];
        for (index, line) in self.lines.iter().enumerate() {
            match lines.get_mut(line.label.0 as usize) {
                Some(at) if *at == NONE => *at = index as u32,
                Some(_) => return Err(WriteError::LabelTwice(line.label)),
                // A label of another body.
                None => return Err(WriteError::NoSuchLabel(line.label)),
            }
        }
        let mut layout = Layout {
            lines,
            offsets: vec![0; self.lines.len() + 1],
            widened: vec![false; self.lines.len()],
        };
        for round in 0.. {
            layout.place(&self.lines)?;
            if !layout.widen(&self.lines, round >= ROUNDS)? {
                break;
            }
        }
        Ok(layout)
    }
}

impl Layout {
    fn end(&self) -> u32 {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Computes the offset of each line.
    fn place(&mut self, lines: &[Line]) -> Result<(), WriteError> {
        let mut at = 0u64;
        let mut offsets = self.offsets.iter_mut();
        for (line, widened) in lines.iter().zip(&self.widened) {
            if let Some(offset) = offsets.next() {
                *offset = at as u32;
            }
            at += line.instruction.size() + if *widened { 3 } else { 0 };
            if at > MAX_CODE {
                return Err(WriteError::CodeSize);
            }
        }
        if let Some(end) = offsets.next() {
            *end = at as u32;
        }
        Ok(())
    }

    /// Lengthens short branches that do not reach, or all. Returns whether there were any.
    fn widen(&mut self, lines: &[Line], all: bool) -> Result<bool, WriteError> {
        let mut any = false;
        for (index, line) in lines.iter().enumerate() {
            let is_short = line.instruction.opcode().operand() == OperandKind::ShortTarget;
            let Operand::Target(target) = line.instruction.operand() else {
                continue;
            };
            if !is_short || self.widened.get(index) == Some(&true) {
                continue;
            }
            let distance = self.distance(index, *target)?;
            if (all || i8::try_from(distance).is_err())
                && let Some(widened) = self.widened.get_mut(index)
            {
                *widened = true;
                any = true;
            }
        }
        Ok(any)
    }

    /// Offset of the line with this label.
    fn offset(&self, label: Label) -> Result<u32, WriteError> {
        if label == Label::END {
            return Ok(self.end());
        }
        let line = self.lines.get(label.0 as usize).copied();
        let offset = line.and_then(|line| self.offsets.get(line as usize));
        offset.copied().ok_or(WriteError::NoSuchLabel(label))
    }

    /// Distance from the end of a line to the begin of another.
    fn distance(&self, line: usize, to: Label) -> Result<i64, WriteError> {
        if to == Label::END {
            return Err(WriteError::NoSuchLabel(to));
        }
        let end = self.offsets.get(line + 1).copied().unwrap_or(0);
        Ok(i64::from(self.offset(to)?) - i64::from(end))
    }

    fn write_line(&self, index: usize, line: &Line, out: &mut Vec<u8>) -> Result<(), WriteError> {
        let widened = self.widened.get(index) == Some(&true);
        let mut opcode = line.instruction.opcode();
        if widened {
            opcode = opcode.long_form();
        }
        let [high, low] = opcode.number().to_be_bytes();
        if opcode.size() == 2 {
            out.push(high);
        }
        out.push(low);
        match line.instruction.operand() {
            Operand::None => {}
            Operand::Int8(value) => out.push(*value as u8),
            Operand::UInt8(value) => out.push(*value),
            Operand::Int32(value) => out.extend_from_slice(&value.to_le_bytes()),
            Operand::Int64(value) => out.extend_from_slice(&value.to_le_bytes()),
            Operand::Float32(bits) => out.extend_from_slice(&bits.to_le_bytes()),
            Operand::Float64(bits) => out.extend_from_slice(&bits.to_le_bytes()),
            Operand::Variable(number) => match opcode.operand() {
                OperandKind::ShortVariable => out.push(*number as u8),
                _ => out.extend_from_slice(&number.to_le_bytes()),
            },
            Operand::Token(token) => out.extend_from_slice(&token.0.to_le_bytes()),
            Operand::Target(target) => {
                let distance = self.distance(index, *target)?;
                match opcode.operand() {
                    OperandKind::ShortTarget => out.push(distance as u8),
                    _ => out.extend_from_slice(&(distance as i32).to_le_bytes()),
                }
            }
            Operand::Switch(targets) => {
                out.extend_from_slice(&(targets.len() as u32).to_le_bytes());
                for target in targets {
                    let distance = self.distance(index, *target)? as i32;
                    out.extend_from_slice(&distance.to_le_bytes());
                }
            }
        }
        Ok(())
    }

    fn clause(&self, clause: &Clause) -> Result<WrittenClause, WriteError> {
        let range = |from: Label, to: Label| {
            let start = self.offset(from)?;
            let length = self.offset(to)?.checked_sub(start);
            Ok((start, length.ok_or(WriteError::Backwards(from))?))
        };
        let (kind, what) = match clause.handler {
            Handler::Catch(class) => (CATCH, class.0),
            Handler::Filter(start) => (FILTER, self.offset(start)?),
            Handler::Finally => (FINALLY, 0),
            Handler::Fault => (FAULT, 0),
        };
        Ok(WrittenClause {
            kind,
            tries: range(clause.try_start, clause.try_end)?,
            handles: range(clause.handler_start, clause.handler_end)?,
            what,
        })
    }
}

/// A clause as numbers: ranges are begin and length.
struct WrittenClause {
    kind: u32,
    tries: (u32, u32),
    handles: (u32, u32),
    what: u32,
}

impl WrittenClause {
    fn is_small(&self) -> bool {
        let fits = |(start, length): (u32, u32)| start <= 0xffff && length <= 0xff;
        fits(self.tries) && fits(self.handles)
    }

    fn write(&self, small: bool, out: &mut Vec<u8>) {
        let ranges = [self.tries, self.handles];
        if small {
            out.extend_from_slice(&(self.kind as u16).to_le_bytes());
            for (start, length) in ranges {
                out.extend_from_slice(&(start as u16).to_le_bytes());
                out.push(length as u8);
            }
        } else {
            out.extend_from_slice(&self.kind.to_le_bytes());
            for (start, length) in ranges {
                out.extend_from_slice(&start.to_le_bytes());
                out.extend_from_slice(&length.to_le_bytes());
            }
        }
        out.extend_from_slice(&self.what.to_le_bytes());
    }
}
