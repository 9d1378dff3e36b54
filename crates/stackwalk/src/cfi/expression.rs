//! Evaluator of DWARF expressions in unwind tables, without a frame or with one.
//!
//! [`symbolic`] evaluates an expression without registers. Expressions of compilers, the linker and
//! OpenSSL's assembler reduce to a register and an offset, or to the word there; these become
//! ordinary rules. [`evaluate`] handles the others, with the registers and the memory of one frame.
//! Operations that describe locations (`DW_OP_reg…`, pieces, `DW_OP_fbreg`, calls) have no meaning
//! in an unwind table and are not supported. Invariants: an expression takes at most [`STEPS`]
//! operations and [`DEPTH`] values, whatever its jumps. Memory is read by [`CfiFrame::word`] only.
//! Both functions are async-signal-safe.
//!
//! Format: DWARF 5, section 2.5; values are 64 bits without a type.

use super::cursor::Cursor;
use super::{RETURN_ADDRESS, Span};
use crate::native::NativeCode;

/// A value that was computed without reading a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Constant(i64),
    /// Register + offset.
    Register(u64, i64),
    /// The word at register + offset, plus an addend.
    Word(u64, i64, i64),
}

/// Maximum number of values on the stack.
pub(crate) const DEPTH: usize = 16;
/// Maximum number of operations of an expression; the longest that toolchains write has a dozen.
const STEPS: usize = 128;

/// Storage for the values of an expression.
pub(crate) type Values = [u64; DEPTH];

/// A frame whose table is evaluated.
pub(crate) trait CfiFrame {
    /// Returns a register by its DWARF number, if it is known.
    fn register(&self, register: u64) -> Option<u64>;
    /// Returns the word at `address`, if it may be read.
    fn word(&self, address: u64) -> Option<u64>;
}

/// Returns the literal that an operation pushes. The cursor is after the operation.
fn literal(op: u8, cursor: &mut Cursor<'_>) -> Option<i64> {
    Some(match op {
        // DW_OP_lit0 … 31
        0x30..=0x4f => i64::from(op) - 0x30,
        // DW_OP_const1u … const8s, constu, consts
        0x08 => cursor.u8()?.into(),
        0x09 => cursor.u8()?.cast_signed().into(),
        0x0a => cursor.u16()?.into(),
        0x0b => cursor.u16()?.cast_signed().into(),
        0x0c => cursor.u32()?.into(),
        0x0d => cursor.u32()?.cast_signed().into(),
        0x0e | 0x0f => cursor.u64()?.cast_signed(),
        0x10 => cursor.uleb()?.cast_signed(),
        0x11 => cursor.sleb()?,
        _ => return None,
    })
}

/// Returns the value of the expression at `span` for the instruction at `ip`, or `None` if it
/// depends on the frame's registers.
// Not inlined, because its values would lie in the frame of every cold step.
#[inline(never)]
pub(super) fn symbolic(code: &NativeCode, span: Span, ip: u64) -> Option<Value> {
    let mut cursor = Cursor::new(code, span.at).take(span.len)?;
    let mut stack = [Value::Constant(0); 8];
    let mut depth = 0usize;
    while let Some(op) = cursor.u8() {
        let top = |below: usize| stack.get(depth.checked_sub(below)?).copied();
        let (pops, value) = match op {
            0x08..=0x11 | 0x30..=0x4f => (0, Value::Constant(literal(op, &mut cursor)?)),
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
                Value::Register(register, offset) => (1, Value::Word(register, offset, 0)),
                Value::Constant(_) | Value::Word(..) => return None,
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
        (Value::Word(register, at, offset), Value::Constant(addend))
        | (Value::Constant(addend), Value::Word(register, at, offset)) => {
            Value::Word(register, at, offset.wrapping_add(addend))
        }
        _ => return None,
    })
}

/// The stack of values.
struct ValueStack<'a> {
    values: &'a mut Values,
    depth: usize,
}

impl ValueStack<'_> {
    fn push(&mut self, value: u64) -> Option<()> {
        *self.values.get_mut(self.depth)? = value;
        self.depth += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<u64> {
        self.depth = self.depth.checked_sub(1)?;
        self.values.get(self.depth).copied()
    }

    /// Returns the value that is `below` others from the top.
    fn at(&self, below: usize) -> Option<u64> {
        let index = self.depth.checked_sub(1)?.checked_sub(below)?;
        self.values.get(index).copied()
    }

    fn set(&mut self, below: usize, value: u64) -> Option<()> {
        let index = self.depth.checked_sub(1)?.checked_sub(below)?;
        *self.values.get_mut(index)? = value;
        Some(())
    }
}

/// Evaluates the expression at `span` with a frame's registers and memory. `first` is the initial
/// stack (the CFA, if the table says so). `None` if a value is unknown, not readable, or malformed.
#[inline(never)]
pub(super) fn evaluate(
    code: &NativeCode,
    span: Span,
    first: Option<u64>,
    frame: &impl CfiFrame,
    values: &mut Values,
) -> Option<u64> {
    let whole = Cursor::new(code, span.at).take(span.len)?;
    let mut cursor = whole;
    let mut stack = ValueStack { values, depth: 0 };
    if let Some(first) = first {
        stack.push(first)?;
    }
    for _ in 0..STEPS {
        let Some(op) = cursor.u8() else {
            return stack.pop();
        };
        match op {
            0x08..=0x11 | 0x30..=0x4f => stack.push(literal(op, &mut cursor)?.cast_unsigned())?,
            // DW_OP_breg0 … 31, bregx
            0x70..=0x8f | 0x92 => {
                let register = match op {
                    0x92 => cursor.uleb()?,
                    _ => u64::from(op) - 0x70,
                };
                let offset = cursor.sleb()?;
                stack.push(frame.register(register)?.wrapping_add_signed(offset))?;
            }
            // DW_OP_deref
            0x06 => {
                let address = stack.pop()?;
                stack.push(frame.word(address)?)?;
            }
            // DW_OP_deref_size: within one word, because memory is read by words.
            0x94 => {
                let size = u64::from(cursor.u8()?);
                let address = stack.pop()?;
                let into = if size == 8 { 0 } else { address % 8 };
                if !(1..=8).contains(&size) || into + size > 8 {
                    return None;
                }
                let word = frame.word(address - into)? >> (into * 8);
                stack.push(word & u64::MAX >> (64 - size * 8))?;
            }
            // DW_OP_dup, drop, over, pick
            0x12 => stack.push(stack.at(0)?)?,
            0x13 => drop(stack.pop()?),
            0x14 => stack.push(stack.at(1)?)?,
            0x15 => {
                let below = cursor.u8()?.into();
                stack.push(stack.at(below)?)?;
            }
            // DW_OP_swap
            0x16 => {
                let (top, under) = (stack.at(0)?, stack.at(1)?);
                stack.set(0, under)?;
                stack.set(1, top)?;
            }
            // DW_OP_rot: the top goes under the two below it
            0x17 => {
                let (top, second, third) = (stack.at(0)?, stack.at(1)?, stack.at(2)?);
                stack.set(0, second)?;
                stack.set(1, third)?;
                stack.set(2, top)?;
            }
            // DW_OP_abs, neg, not, plus_uconst
            0x19 => {
                let value = stack.pop()?.cast_signed().wrapping_abs();
                stack.push(value.cast_unsigned())?;
            }
            0x1f => {
                let value = stack.pop()?.wrapping_neg();
                stack.push(value)?;
            }
            0x20 => {
                let value = !stack.pop()?;
                stack.push(value)?;
            }
            0x23 => {
                let addend = cursor.uleb()?;
                let value = stack.pop()?.wrapping_add(addend);
                stack.push(value)?;
            }
            // DW_OP_and … xor, eq … ne
            0x1a..=0x1e | 0x21 | 0x22 | 0x24..=0x27 | 0x29..=0x2e => {
                let (right, left) = (stack.pop()?, stack.pop()?);
                stack.push(of_two(op, left, right)?)?;
            }
            // DW_OP_bra, skip
            0x28 | 0x2f => {
                let by = i64::from(cursor.u16()?.cast_signed());
                if op == 0x2f || stack.pop()? != 0 {
                    let to = cursor.at.checked_add_signed(by)?;
                    cursor = whole;
                    cursor.take(to.checked_sub(whole.at)?)?;
                }
            }
            // DW_OP_nop
            0x96 => {}
            _ => return None,
        }
    }
    // The last operation may have been the last allowed one.
    cursor.bytes.is_empty().then(|| stack.pop()).flatten()
}

/// Applies an operation to two values. Division and comparisons are signed, the remainder is not.
fn of_two(op: u8, left: u64, right: u64) -> Option<u64> {
    let (l, r) = (left.cast_signed(), right.cast_signed());
    let shift = u32::try_from(right).ok().filter(|by| *by < 64);
    Some(match op {
        0x1a => left & right,
        // Division by zero has no result.
        0x1b if r == 0 => return None,
        0x1b => l.wrapping_div(r).cast_unsigned(),
        0x1c => left.wrapping_sub(right),
        0x1d => left.checked_rem(right)?,
        0x1e => left.wrapping_mul(right),
        0x21 => left | right,
        0x22 => left.wrapping_add(right),
        0x24 => shift.map_or(0, |by| left << by),
        0x25 => shift.map_or(0, |by| left >> by),
        0x26 => (l >> shift.unwrap_or(63)).cast_unsigned(),
        0x27 => left ^ right,
        0x29 => u64::from(l == r),
        0x2a => u64::from(l >= r),
        0x2b => u64::from(l > r),
        0x2c => u64::from(l <= r),
        0x2d => u64::from(l < r),
        0x2e => u64::from(l != r),
        _ => return None,
    })
}

#[cfg(test)]
pub(super) mod tests;
