//! A runtime's facts about itself: `ProcessInfo`, and the two longer ones that came after it.
//!
//! The command line is as the program was started, by whoever started it: nothing here is fit for a
//! terminal as it is. The invariant: fields that a runtime does not give are `None`, never guessed.

use crate::frame::{Fields, Frame};
use crate::{Answer, Error};

/// A runtime's facts about its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessInfo {
    /// The process's id as itself sees it.
    pub pid: u64,
    /// One of its own for each start of a runtime.
    pub cookie: [u8; 16],
    /// The command line, words joined by blanks.
    pub command_line: String,
    /// `Linux`.
    pub os: String,
    /// `x64`.
    pub arch: String,
    /// Name of the program's assembly; .NET 6.
    pub entry_assembly: Option<String>,
    /// Version of the CLR, such as `8.0.4`; .NET 6.
    pub version: Option<String>,
    /// The platform that the runtime was built for, such as `linux-musl-x64`; .NET 8.
    pub rid: Option<String>,
}

/// The command, one of three, that an answer is to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Generation {
    /// `ProcessInfo`.
    First,
    /// `ProcessInfo2`.
    Second,
    /// `ProcessInfo3`.
    Third,
}

impl ProcessInfo {
    /// Reads a whole answer.
    ///
    /// # Errors
    /// It is none, or one of the runtime's errors (`Ok(Err)`: its HRESULT).
    pub fn read(answer: &[u8], generation: Generation) -> Result<Result<Self, Answer>, Error> {
        match Frame::read(answer)? {
            Frame::Ok(fields) => Self::from_fields(fields, generation).map(Ok),
            Frame::Error(code) => Ok(Err(Answer(code))),
        }
    }

    fn from_fields(mut fields: Fields, generation: Generation) -> Result<Self, Error> {
        if generation == Generation::Third {
            // Its version: a later one has more fields at the end.
            fields.u32()?;
        }
        let mut info = Self {
            pid: fields.u64()?,
            cookie: fields.bytes()?,
            command_line: fields.text()?,
            os: fields.text()?,
            arch: fields.text()?,
            entry_assembly: None,
            version: None,
            rid: None,
        };
        if generation != Generation::First {
            info.entry_assembly = given(fields.text()?);
            info.version = given(fields.text()?);
        }
        if generation == Generation::Third {
            info.rid = given(fields.text()?);
        }
        Ok(info)
    }
}

/// A runtime that is starting has empty texts.
fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
