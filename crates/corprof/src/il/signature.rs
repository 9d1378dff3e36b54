//! Signatures of methods and locals: parser, types and encoder (ECMA-335 II.23.2).
//!
//! The grammar is the CLR's, which is wider than the specification: modifiers may precede any type,
//! as compilers write them.
//!
//! Invariant: a parsed signature encodes to the same bytes, if its numbers were in the shortest
//! form, as all compilers write them.

use super::bytes::Bytes;
use super::compressed::{write_compressed, write_compressed_signed};
use super::{ReadError, ReadErrorKind};
use crate::id::Token;

/// Maximum nesting depth of types. The CLR refuses the names of such types far below this depth.
const MAX_DEPTH: u32 = 128;

const PTR: u8 = 0x0f;
const BY_REF: u8 = 0x10;
const VALUE_TYPE: u8 = 0x11;
const CLASS: u8 = 0x12;
const VAR: u8 = 0x13;
const ARRAY: u8 = 0x14;
const GENERIC_INST: u8 = 0x15;
const FN_PTR: u8 = 0x1b;
const SZ_ARRAY: u8 = 0x1d;
const MVAR: u8 = 0x1e;
const REQUIRED: u8 = 0x1f;
const OPTIONAL: u8 = 0x20;
const SENTINEL: u8 = 0x41;
const PINNED: u8 = 0x45;

/// The first byte of a signature of locals.
const LOCALS: u8 = 0x07;
/// The first byte of the arguments of a generic method.
const INSTANCE: u8 = 0x0a;
const GENERIC: u8 = 0x10;
const HAS_THIS: u8 = 0x20;
const EXPLICIT_THIS: u8 = 0x40;

/// A primitive type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "their names say it all")]
pub enum Primitive {
    Void = 0x01,
    Boolean = 0x02,
    Char = 0x03,
    Int8 = 0x04,
    UInt8 = 0x05,
    Int16 = 0x06,
    UInt16 = 0x07,
    Int32 = 0x08,
    UInt32 = 0x09,
    Int64 = 0x0a,
    UInt64 = 0x0b,
    Float32 = 0x0c,
    Float64 = 0x0d,
    String = 0x0e,
    TypedByRef = 0x16,
    IntPtr = 0x18,
    UIntPtr = 0x19,
    Object = 0x1c,
}

impl Primitive {
    const fn new(element: u8) -> Option<Self> {
        Some(match element {
            0x01 => Self::Void,
            0x02 => Self::Boolean,
            0x03 => Self::Char,
            0x04 => Self::Int8,
            0x05 => Self::UInt8,
            0x06 => Self::Int16,
            0x07 => Self::UInt16,
            0x08 => Self::Int32,
            0x09 => Self::UInt32,
            0x0a => Self::Int64,
            0x0b => Self::UInt64,
            0x0c => Self::Float32,
            0x0d => Self::Float64,
            0x0e => Self::String,
            0x16 => Self::TypedByRef,
            0x18 => Self::IntPtr,
            0x19 => Self::UIntPtr,
            0x1c => Self::Object,
            _ => return None,
        })
    }
}

/// Tables of a type's token, by the two low bits of its coded form.
const TABLES: [u8; 3] = [Token::TYPE_DEF, Token::TYPE_REF, Token::TYPE_SPEC];

/// The token of a type's definition, reference or specification.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TypeToken(Token);

impl TypeToken {
    /// `None` for a token of another table.
    pub fn new(token: Token) -> Option<Self> {
        TABLES.contains(&token.table()).then_some(Self(token))
    }

    /// The token.
    pub const fn token(self) -> Token {
        self.0
    }

    fn read(bytes: &mut Bytes<'_>) -> Result<Self, ReadError> {
        let start = bytes.at();
        let coded = bytes.compressed()?;
        let wrong = ReadError {
            offset: start,
            kind: ReadErrorKind::TypeToken(coded),
        };
        let table = TABLES.get(coded as usize & 3).ok_or(wrong)?;
        // 29 bits, less two, are more than a token has.
        match coded >> 2 {
            row @ 0..0x100_0000 => Ok(Self(Token(u32::from(*table) << 24 | row))),
            _ => Err(wrong),
        }
    }

    fn write(self, out: &mut Vec<u8>) {
        let tag = TABLES.iter().position(|table| *table == self.0.table());
        // `new` refuses other tables.
        number(self.0.row() << 2 | tag.unwrap_or(0) as u32, out);
    }
}

/// A type of a signature.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    /// A primitive type.
    Primitive(Primitive),
    /// A class.
    Class(TypeToken),
    /// A value type.
    ValueType(TypeToken),
    /// A generic type with its arguments.
    Generic {
        /// Whether the type is a value type.
        is_value: bool,
        /// The generic type.
        definition: TypeToken,
        /// The type arguments.
        arguments: Vec<Type>,
    },
    /// A generic parameter of the type (`VAR`).
    TypeParameter(u32),
    /// A generic parameter of the method (`MVAR`).
    MethodParameter(u32),
    /// An unmanaged pointer.
    Pointer(Box<Type>),
    /// A managed reference.
    ByRef(Box<Type>),
    /// A one-dimensional array with lower bound 0.
    Array(Box<Type>),
    /// Any other array.
    GeneralArray {
        /// Element type.
        element: Box<Type>,
        /// Number of dimensions.
        rank: u32,
        /// Sizes of the first dimensions, as far as stated.
        sizes: Vec<u32>,
        /// Lower bounds of the first dimensions, as far as stated.
        lower_bounds: Vec<i32>,
    },
    /// A pointer to a method.
    FunctionPointer(Box<MethodSignature>),
    /// A type with a modifier (`modreq`, `modopt`).
    Modified {
        /// Whether a compiler that does not know the modifier must not use the type (`modreq`).
        is_required: bool,
        /// The modifier.
        modifier: TypeToken,
        /// The modified type.
        of: Box<Type>,
    },
    /// A local that pins its object.
    Pinned(Box<Type>),
}

impl Type {
    /// `long`
    pub const INT64: Self = Self::Primitive(Primitive::Int64);
    /// `int`
    pub const INT32: Self = Self::Primitive(Primitive::Int32);
    /// `void`
    pub const VOID: Self = Self::Primitive(Primitive::Void);
    /// `nint`
    pub const INT_PTR: Self = Self::Primitive(Primitive::IntPtr);

    /// Parses the signature of a type specification. It must use all bytes.
    ///
    /// # Errors
    /// The error, with its offset.
    pub fn of_specification(bytes: &[u8]) -> Result<Self, ReadError> {
        let mut bytes = Bytes::new(bytes);
        let read = Self::read(&mut bytes, 0)?;
        all(&bytes).map(|()| read)
    }

    /// Parses the signature of an instance of a generic method: the type arguments. It must use all
    /// bytes.
    ///
    /// # Errors
    /// The error, with its offset.
    pub fn of_instance(bytes: &[u8]) -> Result<Vec<Self>, ReadError> {
        let mut bytes = Bytes::new(bytes);
        let first = bytes.u8()?;
        if first != INSTANCE {
            return Err(bytes.error(1, ReadErrorKind::Convention(first)));
        }
        let arguments = list(&mut bytes, |bytes| Self::read(bytes, 0))?;
        all(&bytes).map(|()| arguments)
    }

    /// Encodes the signature, such as that of a type specification.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    /// Whether the type is `void`, with or without modifiers (the return type of an `init` accessor
    /// has one).
    pub fn is_void(&self) -> bool {
        match self {
            Self::Primitive(Primitive::Void) => true,
            Self::Modified { of, .. } => of.is_void(),
            _ => false,
        }
    }

    fn read(bytes: &mut Bytes<'_>, depth: u32) -> Result<Self, ReadError> {
        if depth >= MAX_DEPTH {
            return Err(bytes.error(0, ReadErrorKind::TooDeep));
        }
        let inner = |bytes: &mut Bytes<'_>| Self::read(bytes, depth + 1).map(Box::new);
        Ok(match bytes.u8()? {
            CLASS => Self::Class(TypeToken::read(bytes)?),
            VALUE_TYPE => Self::ValueType(TypeToken::read(bytes)?),
            VAR => Self::TypeParameter(bytes.compressed()?),
            MVAR => Self::MethodParameter(bytes.compressed()?),
            PTR => Self::Pointer(inner(bytes)?),
            BY_REF => Self::ByRef(inner(bytes)?),
            SZ_ARRAY => Self::Array(inner(bytes)?),
            PINNED => Self::Pinned(inner(bytes)?),
            modifier @ (REQUIRED | OPTIONAL) => Self::Modified {
                is_required: modifier == REQUIRED,
                modifier: TypeToken::read(bytes)?,
                of: inner(bytes)?,
            },
            GENERIC_INST => {
                let is_value = match bytes.u8()? {
                    VALUE_TYPE => true,
                    CLASS => false,
                    other => return Err(bytes.error(1, ReadErrorKind::ElementType(other))),
                };
                Self::Generic {
                    is_value,
                    definition: TypeToken::read(bytes)?,
                    arguments: list(bytes, |bytes| Self::read(bytes, depth + 1))?,
                }
            }
            ARRAY => Self::GeneralArray {
                element: inner(bytes)?,
                rank: bytes.compressed()?,
                sizes: list(bytes, |bytes| bytes.compressed())?,
                lower_bounds: list(bytes, |bytes| bytes.compressed_signed())?,
            },
            FN_PTR => {
                Self::FunctionPointer(Box::new(MethodSignature::read_from(bytes, depth + 1)?))
            }
            element => {
                let primitive = Primitive::new(element);
                let unknown = ReadErrorKind::ElementType(element);
                Self::Primitive(primitive.ok_or(bytes.error(1, unknown))?)
            }
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Primitive(primitive) => out.push(*primitive as u8),
            Self::Class(class) => named(CLASS, *class, out),
            Self::ValueType(class) => named(VALUE_TYPE, *class, out),
            Self::TypeParameter(index) => numbered(VAR, *index, out),
            Self::MethodParameter(index) => numbered(MVAR, *index, out),
            Self::Pointer(of) => of.write_behind(PTR, out),
            Self::ByRef(of) => of.write_behind(BY_REF, out),
            Self::Array(of) => of.write_behind(SZ_ARRAY, out),
            Self::Pinned(of) => of.write_behind(PINNED, out),
            Self::Modified {
                is_required,
                modifier,
                of,
            } => {
                named(
                    if *is_required { REQUIRED } else { OPTIONAL },
                    *modifier,
                    out,
                );
                of.write(out);
            }
            Self::Generic {
                is_value,
                definition,
                arguments,
            } => {
                out.push(GENERIC_INST);
                named(if *is_value { VALUE_TYPE } else { CLASS }, *definition, out);
                count(arguments.len(), out);
                arguments.iter().for_each(|argument| argument.write(out));
            }
            Self::GeneralArray {
                element,
                rank,
                sizes,
                lower_bounds,
            } => {
                element.write_behind(ARRAY, out);
                number(*rank, out);
                count(sizes.len(), out);
                sizes.iter().for_each(|size| number(*size, out));
                count(lower_bounds.len(), out);
                for bound in lower_bounds {
                    let bound = (*bound).clamp(-0x1000_0000, 0x0fff_ffff);
                    let _ = write_compressed_signed(bound, out);
                }
            }
            Self::FunctionPointer(signature) => {
                out.push(FN_PTR);
                signature.write(out);
            }
        }
    }

    fn write_behind(&self, element: u8, out: &mut Vec<u8>) {
        out.push(element);
        self.write(out);
    }
}

/// Calling convention.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Convention {
    /// The runtime's own.
    Managed = 0x0,
    /// C.
    C = 0x1,
    /// `stdcall`; the same as C except on 32-bit Windows.
    StdCall = 0x2,
    /// `thiscall`.
    ThisCall = 0x3,
    /// `fastcall`.
    FastCall = 0x4,
    /// The runtime's own with a variable number of arguments.
    VarArg = 0x5,
    /// The platform's default, or as the modifiers of the return type state (.NET 5 on).
    Unmanaged = 0x9,
    /// C with a variable number of arguments.
    NativeVarArg = 0xb,
}

impl Convention {
    const fn new(kind: u8) -> Option<Self> {
        Some(match kind {
            0x0 => Self::Managed,
            0x1 => Self::C,
            0x2 => Self::StdCall,
            0x3 => Self::ThisCall,
            0x4 => Self::FastCall,
            0x5 => Self::VarArg,
            0x9 => Self::Unmanaged,
            0xb => Self::NativeVarArg,
            _ => return None,
        })
    }
}

/// The signature of a method, or of a call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MethodSignature {
    /// Calling convention.
    pub convention: Convention,
    /// Whether the method has a `this`.
    pub has_this: bool,
    /// Whether `this` is among the parameters.
    pub explicit_this: bool,
    /// Number of generic parameters; `None` if the method is not generic.
    pub generic_arity: Option<u32>,
    /// Return type.
    pub return_type: Type,
    /// Types of the parameters.
    pub parameters: Vec<Type>,
    /// Number of fixed parameters, for a call with a variable number of arguments.
    pub sentinel: Option<usize>,
}

impl MethodSignature {
    /// The signature of a static method or a native function.
    pub fn new(convention: Convention, return_type: Type, parameters: Vec<Type>) -> Self {
        Self {
            convention,
            has_this: false,
            explicit_this: false,
            generic_arity: None,
            return_type,
            parameters,
            sentinel: None,
        }
    }

    /// Parses a signature. It must use all bytes.
    ///
    /// # Errors
    /// The error, with its offset.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        let mut bytes = Bytes::new(bytes);
        let signature = Self::read_from(&mut bytes, 0)?;
        all(&bytes).map(|()| signature)
    }

    fn read_from(bytes: &mut Bytes<'_>, depth: u32) -> Result<Self, ReadError> {
        if depth >= MAX_DEPTH {
            return Err(bytes.error(0, ReadErrorKind::TooDeep));
        }
        let first = bytes.u8()?;
        let wrong = bytes.error(1, ReadErrorKind::Convention(first));
        let convention = Convention::new(first & 0x0f).filter(|_| first & 0x80 == 0);
        let convention = convention.ok_or(wrong)?;
        let generic_arity = match first & GENERIC {
            0 => None,
            _ => Some(bytes.compressed()?),
        };
        let count = bytes.compressed()?;
        let return_type = Type::read(bytes, depth + 1)?;
        let mut parameters = Vec::new();
        let mut sentinel = None;
        for index in 0..count {
            if bytes.peek() == Some(SENTINEL) && sentinel.is_none() {
                bytes.u8()?;
                sentinel = Some(index as usize);
            }
            parameters.push(Type::read(bytes, depth + 1)?);
        }
        Ok(Self {
            convention,
            has_this: first & HAS_THIS != 0,
            explicit_this: first & EXPLICIT_THIS != 0,
            generic_arity,
            return_type,
            parameters,
            sentinel,
        })
    }

    /// Encodes the signature.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        out.push(
            self.convention as u8
                | flag(self.generic_arity.is_some(), GENERIC)
                | flag(self.has_this, HAS_THIS)
                | flag(self.explicit_this, EXPLICIT_THIS),
        );
        if let Some(arity) = self.generic_arity {
            number(arity, out);
        }
        count(self.parameters.len(), out);
        self.return_type.write(out);
        for (index, parameter) in self.parameters.iter().enumerate() {
            if self.sentinel == Some(index) {
                out.push(SENTINEL);
            }
            parameter.write(out);
        }
    }
}

/// The types of a method's locals.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct LocalSignature {
    /// Types, by number of the local.
    pub locals: Vec<Type>,
}

impl LocalSignature {
    /// Parses a signature. It must use all bytes.
    ///
    /// # Errors
    /// The error, with its offset.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        let mut bytes = Bytes::new(bytes);
        let first = bytes.u8()?;
        if first != LOCALS {
            return Err(bytes.error(1, ReadErrorKind::Convention(first)));
        }
        let locals = list(&mut bytes, |bytes| Type::read(bytes, 0))?;
        all(&bytes).map(|()| Self { locals })
    }

    /// Appends a local and returns its number; `None` if a method cannot have another local.
    pub fn append(&mut self, local: Type) -> Option<u16> {
        // 0xfffe is the highest that `ldloc` takes (III.3.43).
        let number = u16::try_from(self.locals.len()).ok()?;
        if number == u16::MAX {
            return None;
        }
        self.locals.push(local);
        Some(number)
    }

    /// Encodes the signature.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![LOCALS];
        count(self.locals.len(), &mut out);
        self.locals.iter().for_each(|local| local.write(&mut out));
        out
    }
}

fn named(element: u8, token: TypeToken, out: &mut Vec<u8>) {
    out.push(element);
    token.write(out);
}

fn numbered(element: u8, index: u32, out: &mut Vec<u8>) {
    out.push(element);
    number(index, out);
}

/// Appends a number; a number that is too high is replaced by the highest possible.
fn number(value: u32, out: &mut Vec<u8>) {
    let _ = write_compressed(value.min(super::compressed::LIMIT - 1), out);
}

fn count(length: usize, out: &mut Vec<u8>) {
    number(u32::try_from(length).unwrap_or(u32::MAX), out);
}

/// Reads a count and that many parts, each at least one byte long.
fn list<T>(
    bytes: &mut Bytes<'_>,
    mut read: impl FnMut(&mut Bytes<'_>) -> Result<T, ReadError>,
) -> Result<Vec<T>, ReadError> {
    let mut parts = Vec::new();
    for _ in 0..bytes.compressed()? {
        parts.push(read(bytes)?);
    }
    Ok(parts)
}

fn all(bytes: &Bytes<'_>) -> Result<(), ReadError> {
    match bytes.is_empty() {
        true => Ok(()),
        false => Err(bytes.error(0, ReadErrorKind::Trailing)),
    }
}
