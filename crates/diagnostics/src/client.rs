//! Commands that a runtime answers.
//!
//! One connection is one command (the protocol's rule); the runtime answers one at a time, all from
//! one thread. The invariant: each command ends within the time that the client was made for.

use std::time::Duration;

use crate::protocol::{self, IpcCommand, Reply, put_text};
use crate::socket::{Stream, connect_to};
use crate::{Error, ProcessInfo, ProcessInfoVersion, RefusalCode, Target};

/// So many bytes of a command line may be too many for an answer.
const LONG_COMMAND: usize = 30_000;

/// A runtime that answers on its diagnostics socket. A process with several CLRs has one: that of
/// the first.
pub struct Diagnostics<'a> {
    target: &'a Target,
    wait: Duration,
}

/// A profiler to attach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attach<'a> {
    /// The class of the library, as a GUID lies in memory.
    pub clsid: [u8; 16],
    /// The library, as the target sees it.
    pub library: &'a str,
    /// The data that the profiler is given in `InitializeForAttach`; at most about 60 KiB, with the
    /// path.
    pub client_data: &'a [u8],
    /// How long the runtime waits for a background collection to end, if the profiler asks for
    /// collections; nothing else.
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
    /// Of this process; no command takes longer than `wait`.
    ///
    /// Nothing is connected to: each command finds the socket anew.
    pub fn new(target: &'a Target, wait: Duration) -> Self {
        Self { target, wait }
    }

    /// Finds the socket and connects to it, and asks for nothing.
    ///
    /// # Errors
    /// Why no command could be sent.
    pub fn probe(&self) -> Result<(), Error> {
        // A runtime takes a connection that says nothing for one that has ended.
        self.connect().map(drop)
    }

    /// Returns the runtime's facts about the process: `None` of .NET Core 3.1, which has no such
    /// command, and where its command line is too long for an answer.
    ///
    /// # Errors
    /// It cannot be asked.
    pub fn process_info(&self) -> Result<Option<ProcessInfo>, Error> {
        for (command, generation) in [
            (IpcCommand::ProcessInfo3, ProcessInfoVersion::Third),
            (IpcCommand::ProcessInfo2, ProcessInfoVersion::Second),
            (IpcCommand::ProcessInfo, ProcessInfoVersion::First),
        ] {
            match ProcessInfo::read(&self.exchange(command, &[])?, generation)? {
                Ok(info) => return Ok(Some(info)),
                Err(RefusalCode::UNKNOWN_COMMAND) => {}
                // An answer is at most 64 KiB long, in UTF-16: the runtime fails instead (E_FAIL).
                Err(_) if self.target.command_length() >= LONG_COMMAND => return Ok(None),
                Err(answer) => return Err(self.refused(command, answer)),
            }
        }
        Ok(None)
    }

    /// Makes the runtime load a profiler. The answer comes when the profiler's
    /// `InitializeForAttach` and `ProfilerAttachComplete` have returned; after [`Error::NoAnswer`]
    /// it may still be loaded.
    ///
    /// # Errors
    /// The runtime refuses (a HRESULT), or cannot be asked.
    pub fn attach_profiler(&self, attach: &Attach) -> Result<(), Error> {
        self.command(IpcCommand::AttachProfiler, &attach.payload())
    }

    /// Makes the runtime write all methods that it has compiled, and those that it compiles from
    /// now on; .NET 8.
    ///
    /// # Errors
    /// As those of [`Diagnostics::attach_profiler`].
    pub fn enable_perf_map(&self, kind: PerfMap) -> Result<(), Error> {
        let kind: u32 = match kind {
            PerfMap::All => 1,
            PerfMap::JitDump => 2,
            PerfMap::Map => 3,
        };
        self.command(IpcCommand::EnablePerfMap, &kind.to_le_bytes())
    }

    /// Ends that; .NET 8.
    ///
    /// # Errors
    /// As those of [`Diagnostics::attach_profiler`].
    pub fn disable_perf_map(&self) -> Result<(), Error> {
        self.command(IpcCommand::DisablePerfMap, &[])
    }

    /// Lets a runtime run that waits for it since its start (`DOTNET_DiagnosticPorts`); does
    /// nothing to one that runs; .NET 5.
    ///
    /// # Errors
    /// As those of [`Diagnostics::attach_profiler`].
    pub fn resume_runtime(&self) -> Result<(), Error> {
        self.command(IpcCommand::ResumeRuntime, &[])
    }

    /// A command whose answer is a HRESULT.
    fn command(&self, command: IpcCommand, payload: &[u8]) -> Result<(), Error> {
        let answer = self.exchange(command, payload)?;
        let code = match Reply::read(&answer)? {
            Reply::Ok(mut fields) => fields.u32()?,
            Reply::Error(code) => return Err(self.refused(command, RefusalCode(code))),
        };
        // The highest bit says that it failed.
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
    /// Exact in its lengths: the runtime checks that of the client data only upwards and would read
    /// past its end.
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

    /// As `ds-profiler-protocol.c` reads it: milliseconds, the class, the path, the data.
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
