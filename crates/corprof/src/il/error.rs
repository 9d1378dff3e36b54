//! Errors of reading and writing IL, with their position.

use core::fmt;

use super::Label;

/// Reason why bytes are not a valid method body or signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadError {
    /// Offset of the first invalid byte.
    pub offset: usize,
    /// The kind of error.
    pub kind: ReadErrorKind,
}

/// Kinds of errors in IL bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReadErrorKind {
    /// The bytes end too early.
    Truncated,
    /// A header that is neither tiny nor fat; its first byte.
    Header(u8),
    /// A fat header that states a size of less than three words.
    HeaderSize(u8),
    /// An unknown instruction.
    Opcode(u16),
    /// A branch to an offset outside of the code.
    TargetOutside(i64),
    /// A branch or clause bound in the middle of an instruction; that offset in the code.
    InsideInstruction(u32),
    /// A section after the code that is too short for its own header; the size that it states.
    SectionSize(u32),
    /// An exception clause of an unknown kind.
    Clause(u32),
    /// A range of an exception clause that ends outside of the code.
    RangeOutside(u64),
    /// A calling convention that this kind of signature does not have.
    Convention(u8),
    /// An element type that does not exist, or is not valid at this position.
    ElementType(u8),
    /// A number whose first byte encodes no valid length.
    Number(u8),
    /// A reference to a type without a valid table.
    TypeToken(u32),
    /// Types nested deeper than any runtime loads.
    TooDeep,
    /// Bytes after the end.
    Trailing,
}

impl fmt::Display for ReadErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("it ends too early"),
            Self::Header(byte) => write!(f, "{byte:#04x} begins no method header"),
            Self::HeaderSize(words) => write!(f, "a fat header of {words} words"),
            Self::Opcode(number) => write!(f, "{number:#x} is no instruction"),
            Self::TargetOutside(to) => write!(f, "a branch to {to}, outside of the code"),
            Self::InsideInstruction(to) => write!(f, "IL_{to:04x} is within an instruction"),
            Self::SectionSize(size) => write!(f, "a section of {size} bytes"),
            Self::Clause(flags) => write!(f, "an exception clause of kind {flags:#x}"),
            Self::RangeOutside(end) => write!(f, "a range to {end}, outside of the code"),
            Self::Convention(byte) => write!(f, "calling convention {byte:#04x}"),
            Self::ElementType(byte) => write!(f, "element type {byte:#04x}"),
            Self::Number(byte) => write!(f, "{byte:#04x} begins no compressed number"),
            Self::TypeToken(coded) => write!(f, "{coded:#x} names no type"),
            Self::TooDeep => f.write_str("types nested too deep"),
            Self::Trailing => f.write_str("bytes are left over"),
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.offset, self.kind)
    }
}

impl core::error::Error for ReadError {}

/// Reason why a body cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WriteError {
    /// A reference to a label that no line has.
    NoSuchLabel(Label),
    /// Two lines have the same label.
    LabelTwice(Label),
    /// A clause's range ends before it begins.
    Backwards(Label),
    /// The code has more than 2³¹ bytes.
    CodeSize,
    /// More exception clauses than the format can count.
    Clauses(usize),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchLabel(label) => write!(f, "no line has the label {label:?}"),
            Self::LabelTwice(label) => write!(f, "two lines have the label {label:?}"),
            Self::Backwards(label) => write!(f, "the range from {label:?} on ends before it"),
            Self::CodeSize => f.write_str("the code has more than 2^31 bytes"),
            Self::Clauses(count) => write!(f, "{count} exception clauses"),
        }
    }
}

impl core::error::Error for WriteError {}
