//! The share of a library's code that can be walked, by kind of rule: for tests and measurements.
//!
//! It is no part of a walk. It reads a library's file as a walk reads a module's, row by row of its
//! unwind tables, so that what it says is what a walk would do there. The invariant: every byte of
//! a function that the tables know is in exactly one [`Row`].

use crate::cfi::{self, Frame};
use crate::native::{self, NativeCode};
use crate::rule::{Cfa, Rule};
use crate::synthesis;
use std::ops::Range;
use std::path::Path;

/// How a frame is left whose instruction lies in a [`Row`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Way {
    /// There is nothing to leave: the outermost frame.
    Root,
    /// By a rule that the cache keeps.
    Packed,
    /// By a rule that the cache cannot keep.
    Unpacked,
    /// By the table, evaluated with the frame's registers and memory.
    Evaluated,
    /// By a register other than stack and frame pointer: known where the frame was interrupted,
    /// and of a caller where its callee has kept it.
    Register,
    /// By the context that the kernel has saved.
    Signal,
    /// Not: the table is malformed.
    Malformed,
    /// Not: an expression has operations that are not known.
    UnknownExpression,
}

/// A run of code with one rule.
#[derive(Debug)]
pub struct Row<'a> {
    /// Addresses in the file's own address space.
    pub range: Range<u64>,
    /// The bytes there, as the file has them.
    pub code: &'a [u8],
    /// How it is left.
    pub way: Way,
}

/// Tells `each` of every row of the library at `path`, and answers how many bytes its executable
/// segments have; `None` if it is no x86-64 library with unwind tables.
pub fn survey(path: &Path, each: &mut dyn FnMut(Row<'_>)) -> Option<u64> {
    let (module, code) = native::open(path)?;
    rows(&code, each)?;
    Some(module.code.end - module.code.start)
}

/// Reads any bytes as unwind tables, as a walk would at every row, and as code that has none. For
/// fuzzing: what must hold is that it returns.
pub fn probe(bytes: &[u8]) {
    const AT: u64 = 0x10000;
    synthesis::probe(bytes, AT);
    // As they are, and as the program of a function in sound tables.
    let mut framed = SOUND.to_vec();
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    framed.extend(len.wrapping_add(13).to_le_bytes());
    framed.extend(FUNCTION);
    framed.extend(bytes);
    for bytes in [bytes.to_vec(), framed] {
        let code = NativeCode::of_bytes(&bytes, AT);
        let mut left = 4096;
        let mut state = cfi::State::new();
        rows(&code, &mut |row| {
            left -= i32::from(left > 0);
            if left > 0 {
                for exact in [false, true] {
                    let rule = cfi::rule(&code, row.range.start, exact, &mut state);
                    rule.ok().flatten().and_then(Rule::pack);
                }
            }
        });
    }
}

/// An `.eh_frame_hdr` at 0x10000 with one entry, and its CIE: `zR`, code align 1, data align −8,
/// CFA = rsp + 8, return address at CFA − 8.
const SOUND: [u8; 43] = [
    1, 0x1b, 3, 0x3b, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 43, 0, 0, 0, // header
    19, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0,
];
/// The rest of the FDE behind its length: 0x20000 to 0x20100.
const FUNCTION: [u8; 13] = [27, 0, 0, 0, 0xcd, 0xff, 0, 0, 0, 1, 0, 0, 0];

/// Any register, any memory.
struct Anything;

impl Frame for Anything {
    fn register(&self, _: u64) -> Option<u64> {
        Some(8)
    }
    fn word(&self, _: u64) -> Option<u64> {
        Some(8)
    }
}

/// Tells `each` of every row of the tables; `None` if there are none.
fn rows(code: &NativeCode, each: &mut dyn FnMut(Row<'_>)) -> Option<()> {
    let mut state = cfi::State::new();
    let mut tell = |start: u64, end: u64, way: Way| {
        let code = code.bytes_at(start);
        let len = (end - start) as usize;
        each(Row {
            range: start..end,
            code: code.get(..len).unwrap_or(code),
            way,
        });
    };
    // Where the tables of functions overlap the walk takes the later one.
    let mut functions = cfi::functions(code).peekable();
    functions.peek()?;
    while let Some((start, end)) = functions.next() {
        let end = functions.peek().map_or(end, |(next, _)| end.min(*next));
        let mut at = start;
        while at < end {
            let rule = cfi::table_rule(code, at, &mut state);
            let until = state.until.clamp(at + 1, end);
            let way = match rule {
                Err(cfi::Unsupported) | Ok(None) => {
                    tell(at, end, Way::Malformed);
                    break;
                }
                Ok(Some(Rule::Root)) => Way::Root,
                Ok(Some(Rule::SignalFrame)) => Way::Signal,
                Ok(Some(Rule::Evaluate)) => match cfi::evaluate(code, &Anything, &mut state) {
                    Some(_) => Way::Evaluated,
                    None => Way::UnknownExpression,
                },
                Ok(Some(Rule::Frame {
                    cfa: Cfa::Other(..),
                    ..
                })) => Way::Register,
                Ok(Some(rule)) if rule.pack().is_some() => Way::Packed,
                Ok(Some(_)) => Way::Unpacked,
            };
            tell(at, until, way);
            at = until;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probe's own tables are sound: the function is found, and its program decides.
    #[test]
    fn what_is_probed_is_run_as_a_program() {
        // CFA = rsp + 48; after four bytes CFA = *(rsp + 8 × r9)
        let program = [
            0x0e, 48, 0x44, 0x0f, 8, 0x77, 0, 0x79, 0, 0x38, 0x1e, 0x22, 0x06,
        ];
        let mut bytes = SOUND.to_vec();
        bytes.extend((13 + program.len() as u32).to_le_bytes());
        bytes.extend(FUNCTION);
        bytes.extend(program);
        let mut found = Vec::new();
        let code = NativeCode::of_bytes(&bytes, 0x10000);
        assert!(rows(&code, &mut |row| found.push((row.range, row.way))).is_some());
        assert_eq!(
            found,
            [
                (0x20000..0x20004, Way::Packed),
                (0x20004..0x20100, Way::Evaluated)
            ]
        );
        probe(&program);
        probe(&[]);
    }
}
