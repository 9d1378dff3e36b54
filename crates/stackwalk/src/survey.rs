//! Survey of a library's code by kind of unwind rule, for tests and measurements.
//!
//! It reads a library's file like a walk reads a module, row by row of its unwind tables, and
//! reports how a walk would leave each row. Walks do not use it. Invariant: every byte of a
//! function that the tables describe is in exactly one [`LeaveRow`].

use crate::cfi::{self, CfiFrame};
use crate::native::{self, NativeCode};
use crate::rule::{Cfa, Rule};
use std::ops::Range;
use std::path::Path;

/// How a walk leaves a frame whose instruction is in a [`LeaveRow`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LeaveMethod {
    /// Not at all: the outermost frame.
    Root,
    /// By a rule that fits into the cache.
    Packed,
    /// By a rule that does not fit into the cache.
    Unpacked,
    /// By evaluating the table with the frame's registers and memory.
    Evaluated,
    /// By a register other than stack and frame pointer. It is known in an interrupted frame, and
    /// in a caller if its callee preserved it.
    Register,
    /// By the context that the kernel saved.
    Signal,
    /// Impossible: the table is malformed.
    Malformed,
    /// Impossible: an expression has unknown operations.
    UnknownExpression,
}

/// A run of code with one rule.
#[derive(Debug)]
pub struct LeaveRow<'a> {
    /// Addresses in the file's own address space.
    pub range: Range<u64>,
    /// The bytes of the range, from the file.
    pub code: &'a [u8],
    /// How the row is left.
    pub way: LeaveMethod,
}

/// Calls `each` for every row of the library at `path`. Returns the size of its executable
/// segments, bytes, or `None` if it is not an x86-64 library with unwind tables.
pub fn survey(path: &Path, each: &mut dyn FnMut(LeaveRow<'_>)) -> Option<u64> {
    let (module, code) = native::open(path)?;
    rows(&code, each)?;
    Some(module.code.end - module.code.start)
}

/// Reads any bytes as unwind tables, as a walk would at every row. For fuzzing: it must return.
pub fn probe(bytes: &[u8]) {
    const AT: u64 = 0x10000;
    // Directly, and as the program of a function in sound tables.
    let mut framed = SOUND.to_vec();
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    framed.extend(len.wrapping_add(13).to_le_bytes());
    framed.extend(FUNCTION);
    framed.extend(bytes);
    for bytes in [bytes.to_vec(), framed] {
        let code = NativeCode::of_bytes(&bytes, AT);
        let mut left = 4096;
        let mut state = cfi::RowProgram::new();
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
/// The rest of the FDE after its length: 0x20000 to 0x20100.
const FUNCTION: [u8; 13] = [27, 0, 0, 0, 0xcd, 0xff, 0, 0, 0, 1, 0, 0, 0];

/// Frame whose registers and memory hold any values.
struct AnyFrame;

impl CfiFrame for AnyFrame {
    fn register(&self, _: u64) -> Option<u64> {
        Some(8)
    }
    fn word(&self, _: u64) -> Option<u64> {
        Some(8)
    }
}

/// Calls `each` for every row of the tables; `None` if there are none.
fn rows(code: &NativeCode, each: &mut dyn FnMut(LeaveRow<'_>)) -> Option<()> {
    let mut state = cfi::RowProgram::new();
    let mut tell = |start: u64, end: u64, way: LeaveMethod| {
        let code = code.bytes_at(start);
        let len = (end - start) as usize;
        each(LeaveRow {
            range: start..end,
            code: code.get(..len).unwrap_or(code),
            way,
        });
    };
    // If the tables of functions overlap, the walk uses the later one.
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
                    tell(at, end, LeaveMethod::Malformed);
                    break;
                }
                Ok(Some(Rule::Root)) => LeaveMethod::Root,
                Ok(Some(Rule::SignalFrame)) => LeaveMethod::Signal,
                Ok(Some(Rule::Evaluate)) => match cfi::evaluate(code, &AnyFrame, &mut state) {
                    Some(_) => LeaveMethod::Evaluated,
                    None => LeaveMethod::UnknownExpression,
                },
                Ok(Some(Rule::Frame {
                    cfa: Cfa::Other(..),
                    ..
                })) => LeaveMethod::Register,
                Ok(Some(rule)) if rule.pack().is_some() => LeaveMethod::Packed,
                Ok(Some(_)) => LeaveMethod::Unpacked,
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

    /// The probe's own tables are sound: the function is found and its program is run.
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
                (0x20000..0x20004, LeaveMethod::Packed),
                (0x20004..0x20100, LeaveMethod::Evaluated)
            ]
        );
        probe(&program);
        probe(&[]);
    }
}
