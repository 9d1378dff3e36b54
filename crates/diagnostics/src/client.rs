//! Client for the commands of a runtime's diagnostics socket.
//!
//! Each connection carries one command (a rule of the protocol). A runtime processes one command at
//! a time, on one thread.
//! Invariant: each command ends within the timeout that the client was made with.

use std::time::Duration;

use crate::protocol::{self, IpcCommand, Reply, put_text};
use crate::socket::{Stream, connect_to};
use crate::{Error, ProcessInfo, ProcessInfoVersion, RefusalCode, Target};

/// Length of a command line, in bytes, from which it may not fit into a reply.
const LONG_COMMAND: usize = 30_000;

/// The runtime behind a diagnostics socket. In a process with several CLRs, the first CLR owns the
/// socket.
pub struct Diagnostics<'a> {
    target: &'a Target,
    wait: Duration,
}

/// A profiler to attach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attach<'a> {
    /// CLSID of the profiler, in the memory layout of a GUID.
    pub clsid: [u8; 16],
    /// Path of the library in the target's view.
    pub library: &'a str,
    /// Client data for the profiler's `InitializeForAttach`. At most about 60 KiB, with the path.
    pub client_data: &'a [u8],
    /// How long the runtime waits for a background collection to end, if the profiler requests
    /// collections. Has no other effect.
    pub collection: Duration,
}

/// The files that a runtime writes for `perf`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PerfMap {
    /// A map and a jitdump.
    All,
    /// `jit-PID.dump` alone.
    JitDump,
    /// `perf-PID.map` alone.
    Map,
}

impl<'a> Diagnostics<'a> {
    /// Returns a client for this process. No command takes longer than `wait`.
    ///
    /// Does not connect: each command finds the socket anew.
    pub fn new(target: &'a Target, wait: Duration) -> Self {
        Self { target, wait }
    }

    /// Finds the socket and connects to it, but sends no command.
    ///
    /// # Errors
    /// No command could be sent; the error has the reason.
    pub fn probe(&self) -> Result<(), Error> {
        // The runtime treats a connection without a command as closed.
        self.connect().map(drop)
    }

    /// Returns the runtime's facts about the process. `None` for .NET Core 3.1, which lacks the
    /// command, and if the command line is too long for a reply.
    ///
    /// # Errors
    /// The runtime cannot be reached.
    pub fn process_info(&self) -> Result<Option<ProcessInfo>, Error> {
        for (command, generation) in [
            (IpcCommand::ProcessInfo3, ProcessInfoVersion::Third),
            (IpcCommand::ProcessInfo2, ProcessInfoVersion::Second),
            (IpcCommand::ProcessInfo, ProcessInfoVersion::First),
        ] {
            match ProcessInfo::read(&self.exchange(command, &[])?, generation)? {
                Ok(info) => return Ok(Some(info)),
                Err(RefusalCode::UNKNOWN_COMMAND) => {}
                // A reply is at most 64 KiB long, in UTF-16. A longer one fails in the runtime
                // (E_FAIL).
                Err(_) if self.target.command_length() >= LONG_COMMAND => return Ok(None),
                Err(answer) => return Err(self.refused(command, answer)),
            }
        }
        Ok(None)
    }

    /// Makes the runtime load a profiler. The reply comes when the profiler's `InitializeForAttach`
    /// and `ProfilerAttachComplete` have returned. After [`Error::NoAnswer`] the profiler may still
    /// be loaded.
    ///
    /// # Errors
    /// The runtime refuses (a HRESULT), or cannot be reached.
    pub fn attach_profiler(&self, attach: &Attach) -> Result<(), Error> {
        self.command(IpcCommand::AttachProfiler, &attach.payload())
    }

    /// Makes the runtime write its compiled methods, now and as more are compiled; .NET 8.
    ///
    /// # Errors
    /// As [`Diagnostics::attach_profiler`].
    pub fn enable_perf_map(&self, kind: PerfMap) -> Result<(), Error> {
        let kind: u32 = match kind {
            PerfMap::All => 1,
            PerfMap::JitDump => 2,
            PerfMap::Map => 3,
        };
        self.command(IpcCommand::EnablePerfMap, &kind.to_le_bytes())
    }

    /// Ends the writing of compiled methods; .NET 8.
    ///
    /// # Errors
    /// As [`Diagnostics::attach_profiler`].
    pub fn disable_perf_map(&self) -> Result<(), Error> {
        self.command(IpcCommand::DisablePerfMap, &[])
    }

    /// Resumes a runtime that waits at its start (`DOTNET_DiagnosticPorts`). Has no effect on a
    /// running one; .NET 5.
    ///
    /// # Errors
    /// As [`Diagnostics::attach_profiler`].
    pub fn resume_runtime(&self) -> Result<(), Error> {
        self.command(IpcCommand::ResumeRuntime, &[])
    }

    /// Sends a command whose reply is a HRESULT.
    fn command(&self, command: IpcCommand, payload: &[u8]) -> Result<(), Error> {
        let answer = self.exchange(command, payload)?;
        let code = match Reply::read(&answer)? {
            Reply::Ok(mut fields) => fields.u32()?,
            Reply::Error(code) => return Err(self.refused(command, RefusalCode(code))),
        };
        // The highest bit means failure.
        if code >> 31 == 1 {
            return Err(self.refused(command, RefusalCode(code)));
        }
        Ok(())
    }

    fn exchange(&self, command: IpcCommand, payload: &[u8]) -> Result<Vec<u8>, Error> {
        let message = protocol::message(command, payload)?;
        self.connect()?.exchange(&message, command.name())
    }

    fn connect(&self) -> Result<Stream, Error> {
        connect_to(self.target, self.wait)
    }

    fn refused(&self, command: IpcCommand, answer: RefusalCode) -> Error {
        Error::Refused {
            pid: self.target.pid(),
            command: command.name(),
            answer,
        }
    }
}

impl Attach<'_> {
    /// The lengths must be exact: the runtime checks that of the client data only against a
    /// maximum, and would read past the end of the data.
    fn payload(&self) -> Vec<u8> {
        let collection = u32::try_from(self.collection.as_millis()).unwrap_or(u32::MAX);
        let mut payload = Vec::new();
        payload.extend_from_slice(&collection.to_le_bytes());
        payload.extend_from_slice(&self.clsid);
        put_text(&mut payload, self.library);
        let length = u32::try_from(self.client_data.len()).unwrap_or(u32::MAX);
        payload.extend_from_slice(&length.to_le_bytes());
        payload.extend_from_slice(self.client_data);
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// In the order of `ds-profiler-protocol.c`: milliseconds, class, path, data.
    #[test]
    fn an_attach_is_what_the_runtime_reads() {
        let attach = Attach {
            clsid: [7; 16],
            library: "/a",
            client_data: b"xy",
            collection: Duration::from_secs(3),
        };
        let path = b"\x03\0\0\0/\0a\0\0\0";
        let expected = [&3000u32.to_le_bytes()[..], &[7; 16], path, b"\x02\0\0\0xy"];
        assert_eq!(attach.payload(), expected.concat());
    }

    proptest! {
        #[test]
        fn the_lengths_of_an_attach_are_exact(
            library in "[^\0]{0,30}",
            client_data in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let attach = Attach {
                clsid: [7; 16],
                library: &library,
                client_data: &client_data,
                collection: Duration::from_secs(3),
            };
            let payload = attach.payload();
            let units = library.encode_utf16().count() + 1;
            prop_assert_eq!(payload.len(), 4 + 16 + 4 + 2 * units + 4 + client_data.len());
            let at = 24 + 2 * units;
            let length = u32::from_le_bytes(payload[at..at + 4].try_into().unwrap());
            prop_assert_eq!(length as usize, client_data.len());
            prop_assert_eq!(&payload[at + 4..], &client_data[..]);
        }
    }
}
