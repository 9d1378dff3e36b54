//! Parameter types of methods, which distinguish overloads, from a module's metadata (ECMA-335
//! partition II, 22.26 for MethodDef, 23.2 for signatures).
//!
//! Parameter names and return types are not read. Invariant: a malformed signature gives none, in
//! time bounded by its length.

use std::fmt::Write as _;

use crate::metadata::{Bytes, Metadata};

/// Maximum nesting of types. Compilers write a few levels.
const DEEPEST: usize = 32;
/// Maximum number of parameters that the runtime accepts.
const MAX_PARAMETERS: u32 = 1 << 16;
/// Maximum length of a signature. Longer ones are not useful.
const LONGEST: usize = 400;

const TYPE_REF: usize = 0x01;
const TYPE_DEF: usize = 0x02;
const METHOD_DEF: usize = 0x06;

/// Returns the parameter types, such as `(int, string[])`, of the method with this MethodDef token.
pub(crate) fn signature(metadata: &Metadata<'_>, token: u32) -> Option<String> {
    let (table, row) = (token >> 24, token & 0x00ff_ffff);
    if table as usize != METHOD_DEF {
        return None;
    }
    let mut cells = metadata.row(METHOD_DEF, row)?;
    // RVA, implementation flags, flags, name.
    cells.take(8)?;
    let name = cells.index(metadata.has_wide_strings())?;
    // The body of an async method or iterator. The source's parameters are on another method.
    if metadata.string(name)? == "MoveNext" {
        return None;
    }
    let blob = cells.index(metadata.has_wide_blobs())?;
    let mut bytes = Bytes(metadata.blob(blob)?);
    let convention = bytes.u8()?;
    const GENERIC: u8 = 0x10;
    if convention & GENERIC != 0 {
        bytes.compressed()?;
    }
    let parameters = bytes.compressed()?;
    if parameters > MAX_PARAMETERS {
        return None;
    }
    let mut ignored = String::new();
    write_type(metadata, &mut bytes, &mut ignored, 0)?;
    let mut text = String::from("(");
    for nth in 0..parameters {
        if nth > 0 {
            text.push_str(", ");
        }
        if text.len() > LONGEST {
            text.push('…');
            break;
        }
        write_type(metadata, &mut bytes, &mut text, 0)?;
    }
    text.push(')');
    Some(text)
}

fn write_type(
    metadata: &Metadata<'_>,
    bytes: &mut Bytes<'_>,
    text: &mut String,
    depth: usize,
) -> Option<()> {
    if depth > DEEPEST {
        return None;
    }
    let inner =
        |bytes: &mut Bytes<'_>, text: &mut String| write_type(metadata, bytes, text, depth + 1);
    let name = match bytes.u8()? {
        0x01 => "void",
        0x02 => "bool",
        0x03 => "char",
        0x04 => "sbyte",
        0x05 => "byte",
        0x06 => "short",
        0x07 => "ushort",
        0x08 => "int",
        0x09 => "uint",
        0x0a => "long",
        0x0b => "ulong",
        0x0c => "float",
        0x0d => "double",
        0x0e => "string",
        0x16 => "TypedReference",
        0x18 => "nint",
        0x19 => "nuint",
        0x1b => return function_pointer(metadata, bytes, text, depth),
        0x1c => "object",
        0x0f => {
            inner(bytes, text)?;
            "*"
        }
        0x10 => {
            text.push_str("ref ");
            return inner(bytes, text);
        }
        0x11 | 0x12 => {
            let name = type_name(metadata, bytes.compressed()?)?;
            text.push_str(&name);
            ""
        }
        // Parameters of a generic type, and of a generic method, have their names elsewhere.
        kind @ (0x13 | 0x1e) => {
            let number = bytes.compressed()?;
            // Writing to a String cannot fail.
            let _ = write!(text, "{}{number}", if kind == 0x13 { "T" } else { "M" });
            ""
        }
        0x14 => {
            inner(bytes, text)?;
            let rank = bytes.compressed()?;
            for _ in 0..bytes.compressed()? {
                bytes.compressed()?;
            }
            for _ in 0..bytes.compressed()? {
                bytes.compressed_signed()?;
            }
            text.push('[');
            text.extend(std::iter::repeat_n(',', rank.clamp(1, 32) as usize - 1));
            "]"
        }
        0x15 => {
            bytes.u8()?;
            let name = type_name(metadata, bytes.compressed()?)?;
            let count = bytes.compressed()?;
            text.push_str(&name);
            text.push('<');
            for nth in 0..count {
                if nth > 0 {
                    text.push_str(", ");
                }
                inner(bytes, text)?;
            }
            ">"
        }
        0x1d => {
            inner(bytes, text)?;
            "[]"
        }
        // Modifiers: the type is behind them.
        0x1f | 0x20 => {
            bytes.compressed()?;
            return inner(bytes, text);
        }
        0x41 | 0x45 => return inner(bytes, text),
        _ => return None,
    };
    text.push_str(name);
    Some(())
}

/// `delegate*<int, void>`: its parameters, then what it returns.
fn function_pointer(
    metadata: &Metadata<'_>,
    bytes: &mut Bytes<'_>,
    text: &mut String,
    depth: usize,
) -> Option<()> {
    bytes.u8()?;
    let parameters = bytes.compressed()?;
    let mut returned = String::new();
    write_type(metadata, bytes, &mut returned, depth + 1)?;
    text.push_str("delegate*<");
    for _ in 0..parameters.min(MAX_PARAMETERS) {
        write_type(metadata, bytes, text, depth + 1)?;
        text.push_str(", ");
    }
    text.push_str(&returned);
    text.push('>');
    Some(())
}

/// The name, without namespace and number of parameters, of what a TypeDefOrRef names.
fn type_name(metadata: &Metadata<'_>, coded: u32) -> Option<String> {
    let row = coded >> 2;
    let name = match coded & 3 {
        0 => {
            let mut cells = metadata.row(TYPE_DEF, row)?;
            cells.take(4)?;
            cells.index(metadata.has_wide_strings())?
        }
        1 => {
            let mut cells = metadata.row(TYPE_REF, row)?;
            cells.index(metadata.has_wide_scopes())?;
            cells.index(metadata.has_wide_strings())?
        }
        _ => return None,
    };
    let name = metadata.string(name)?;
    Some(name.split('`').next().unwrap_or(name).to_owned())
}
