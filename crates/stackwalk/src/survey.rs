//! What share of a library's code can be walked, and by which kind of rule: for tests and
//! measurements.
//!
//! It is no part of a walk. It reads a library's file as a walk reads a module's, row by row of its
//! unwind tables, so that what it says is what a walk would do there. The invariant: every byte of a
//! function that the tables know is in exactly one [`Row`].

use crate::cfi::{self, Frame};
use crate::native;
use crate::rule::{Cfa, Rule};
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
    let (module, code) = native::open(path)?;
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
    let mut functions = cfi::functions(&code).peekable();
    functions.peek()?;
    while let Some((start, end)) = functions.next() {
        let end = functions.peek().map_or(end, |(next, _)| end.min(*next));
        let mut at = start;
        while at < end {
            let rule = cfi::table_rule(&code, at, &mut state);
            let until = state.until.clamp(at + 1, end);
            let way = match rule {
                Err(cfi::Unsupported) | Ok(None) => {
                    tell(at, end, Way::Malformed);
                    break;
                }
                Ok(Some(Rule::Root)) => Way::Root,
                Ok(Some(Rule::SignalFrame)) => Way::Signal,
                Ok(Some(Rule::Evaluate)) => match cfi::evaluate(&code, &Anything, &mut state) {
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
    Some(module.code.end - module.code.start)
}
