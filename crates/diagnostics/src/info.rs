//! The reply to `ProcessInfo`, `ProcessInfo2` and `ProcessInfo3`: a runtime's process facts.
//!
//! The command line contains whatever the program was started with. Escape every text before it is
//! printed on a terminal.
//! Invariant: fields that a runtime does not report are `None`, never guessed.

use crate::protocol::{Fields, Reply};
use crate::{Error, RefusalCode};

/// The facts that a runtime reports about its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessInfo {
    /// The process id in the process's own namespace.
    pub pid: u64,
    /// A GUID, new for each start of a runtime.
    pub cookie: [u8; 16],
    /// The command line, words separated by blanks.
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

/// The command of a reply, one of three.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessInfoVersion {
    /// `ProcessInfo`.
    First,
    /// `ProcessInfo2`.
    Second,
    /// `ProcessInfo3`.
    Third,
}

impl ProcessInfo {
    /// Reads a whole reply.
    ///
    /// # Errors
    /// The bytes are not a reply. An error of the runtime is `Ok(Err)` with its HRESULT.
    pub fn read(
        answer: &[u8],
        generation: ProcessInfoVersion,
    ) -> Result<Result<Self, RefusalCode>, Error> {
        match Reply::read(answer)? {
            Reply::Ok(fields) => Self::from_fields(fields, generation).map(Ok),
            Reply::Error(code) => Ok(Err(RefusalCode(code))),
        }
    }

    fn from_fields(mut fields: Fields, generation: ProcessInfoVersion) -> Result<Self, Error> {
        if generation == ProcessInfoVersion::Third {
            // The version of the reply. Later versions have more fields at the end.
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
        if generation != ProcessInfoVersion::First {
            info.entry_assembly = non_empty(fields.text()?);
            info.version = non_empty(fields.text()?);
        }
        if generation == ProcessInfoVersion::Third {
            info.rid = non_empty(fields.text()?);
        }
        Ok(info)
    }
}

/// A runtime that is still starting reports empty texts.
fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
