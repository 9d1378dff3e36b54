//! Reader of a ReadyToRun image's methods by name, for tests.
//!
//! It implements only the needed parts of ECMA-335 (partition II, 24) and of the table of entry
//! points (`docs/design/coreclr/botr/readytorun-format.md`).

use crate::pe::Image;
use crate::pe::tests::{CoreLibrary, core_libraries, libraries};

/// A method with its own code.
pub(super) struct Method {
    /// Name of its type, without enclosing types.
    pub(super) type_name: String,
    pub(super) name: String,
    /// Address of its code.
    pub(super) start: u64,
}

/// An image in the runtime's memory layout, and its methods.
pub(super) struct CoreLib {
    /// The runtime's version.
    pub(super) version: String,
    pub(super) image: Image,
    pub(super) methods: Vec<Method>,
    _bytes: Vec<u8>,
}

/// Returns the core libraries of all installed runtimes.
pub(super) fn all() -> impl Iterator<Item = CoreLib> {
    core_libraries().map(with_methods)
}

/// Returns those of runtimes in which async methods are state machines. Since .NET 11 the core
/// library uses runtime async.
pub(super) fn with_state_machines() -> impl Iterator<Item = CoreLib> {
    let name = |runtime: &testkit::Runtime| {
        let major: u32 = runtime.version.split('.').next().unwrap().parse().unwrap();
        match major {
            ..11 => "System.Private.CoreLib.dll",
            _ => "System.Text.Json.dll",
        }
    };
    libraries(name).map(with_methods)
}

fn with_methods(library: CoreLibrary) -> CoreLib {
    CoreLib {
        version: library.version,
        methods: methods(&library.bytes, &library.image),
        image: library.image,
        _bytes: library.bytes,
    }
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes(*bytes[at..].first_chunk().unwrap()).into()
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()) as usize
}

/// Decodes a number of one to five bytes, by the lowest bits of the first. Returns it and its end.
fn number(bytes: &[u8], at: usize) -> (usize, usize) {
    let zeros = bytes[at].trailing_ones() as usize;
    if zeros >= 4 {
        return (u32_at(bytes, at + 1), at + 5);
    }
    let mut buffer = [0; 4];
    buffer[..=zeros].copy_from_slice(&bytes[at..=at + zeros]);
    (
        u32::from_le_bytes(buffer) as usize >> (zeros + 1),
        at + zeros + 1,
    )
}

/// Returns the position of the element with this index in an array of 16-ary trees.
fn element(bytes: &[u8], array: usize, index: usize) -> Option<usize> {
    let (head, base) = number(bytes, array);
    if index >= head >> 2 {
        return None;
    }
    let mut at = base
        + match head & 3 {
            0 => usize::from(bytes[base + index / 16]),
            1 => u16_at(bytes, base + index / 16 * 2),
            _ => u32_at(bytes, base + index / 16 * 4),
        };
    for bit in [8, 4, 2, 1] {
        let (node, next) = number(bytes, at);
        match (index & bit != 0, node & 2 != 0, node & 1 != 0) {
            (true, true, _) => at += node >> 2,
            (false, _, true) => at = next,
            _ if node & 3 == 0 && node >> 2 == index & 15 => return Some(next),
            _ => return None,
        }
    }
    Some(at)
}

/// Returns all methods that have their own code, without instances of generic ones.
fn methods(bytes: &[u8], image: &Image) -> Vec<Method> {
    let optional = u32_at(bytes, 0x3c) + 24;
    let directory = |index: usize| u32_at(bytes, optional + 112 + index * 8);
    let (functions, clr) = (directory(3), directory(14));
    let header = u32_at(bytes, clr + 64);
    let entries = (0..u32_at(bytes, header + 12))
        .map(|index| header + 16 + index * 12)
        .find(|at| u32_at(bytes, *at) == 103)
        .map(|at| u32_at(bytes, at + 4));

    let root = u32_at(bytes, clr + 8);
    let mut at = root + 16 + u32_at(bytes, root + 12);
    let (mut tables, mut strings) = (0, 0);
    at += 4;
    for _ in 0..u16_at(bytes, at - 2) {
        let name: Vec<u8> = bytes[at + 8..]
            .iter()
            .copied()
            .take_while(|b| *b != 0)
            .collect();
        match name.as_slice() {
            b"#~" => tables = root + u32_at(bytes, at),
            b"#Strings" => strings = root + u32_at(bytes, at),
            _ => {}
        }
        at += 8 + (name.len() + 1).next_multiple_of(4);
    }
    let wide = |bit: u8| if bytes[tables + 6] & bit != 0 { 4 } else { 2 };
    let (string, guid, blob) = (wide(1), wide(2), wide(4));
    let valid = u32_at(bytes, tables + 8) | u32_at(bytes, tables + 12) << 32;
    let mut rows = [0; 64];
    let mut at = tables + 24;
    for (index, rows) in rows.iter_mut().enumerate() {
        if valid >> index & 1 != 0 {
            *rows = u32_at(bytes, at);
            at += 4;
        }
    }
    let index = |tables: &[usize], bits: u32| {
        let most = tables.iter().map(|table| rows[*table]).max().unwrap_or(0);
        if most >> (16 - bits) == 0 { 2 } else { 4 }
    };
    // Module, TypeRef, TypeDef, FieldPtr, Field, MethodPtr, MethodDef.
    let type_def_or_ref = index(&[2, 1, 0x1b], 2);
    let sizes = [
        2 + string + 3 * guid,
        index(&[0, 0x1a, 0x23, 1], 2) + 2 * string,
        4 + 2 * string + type_def_or_ref + index(&[4], 0) + index(&[6], 0),
        index(&[4], 0),
        2 + string + blob,
        index(&[6], 0),
        8 + string + blob + index(&[8], 0),
    ];
    let starts: Vec<usize> = (0..7)
        .map(|table| {
            at + (0..table)
                .map(|before| sizes[before] * rows[before])
                .sum::<usize>()
        })
        .collect();
    let cell = |at: usize, width: usize| match width {
        2 => u16_at(bytes, at),
        _ => u32_at(bytes, at),
    };
    let text = |at: usize| {
        let at = strings + cell(at, string);
        let text: Vec<u8> = bytes[at..]
            .iter()
            .copied()
            .take_while(|b| *b != 0)
            .collect();
        String::from_utf8(text).unwrap()
    };
    let method_list = 4 + 2 * string + type_def_or_ref + index(&[4], 0);
    let first_method =
        |row: usize| cell(starts[2] + row * sizes[2] + method_list, index(&[6], 0)) - 1;
    let mut found = Vec::new();
    for row in 0..rows[2] {
        let end = if row + 1 < rows[2] {
            first_method(row + 1)
        } else {
            rows[6]
        };
        for method in first_method(row)..end {
            let Some(entry) = entries.and_then(|array| element(bytes, array, method)) else {
                continue;
            };
            let (id, _) = number(bytes, entry);
            let function = if id & 1 != 0 { id >> 2 } else { id >> 1 };
            found.push(Method {
                type_name: text(starts[2] + row * sizes[2] + 4),
                name: text(starts[6] + method * sizes[6] + 8),
                start: image.base() + u32_at(bytes, functions + function * 12) as u64,
            });
        }
    }
    found
}
