//! Messages of the diagnostics protocol, as bytes.
//!
//! No socket here. A message is a header of 20 bytes (magic, length of all, command set, command,
//! two bytes of nothing) and a payload, all little-endian; a text is its number of UTF-16 units
//! with the final zero, then the units. The invariant: reading takes any bytes and either gives
//! what they say or an error; it never allocates more than it was given.

use crate::Error;

const MAGIC: &[u8; 14] = b"DOTNET_IPC_V1\0";
/// Bytes before the payload.
pub(crate) const HEADER: usize = 20;
/// A message is not longer: its length has 16 bits.
#[cfg(test)]
const MAX_BYTES: usize = u16::MAX as usize;

/// Command set of answers.
const SERVER: u8 = 0xff;
const OK: u8 = 0x00;
const ERROR: u8 = 0xff;

/// The commands that a runtime answers: command set and command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IpcCommand {
    AttachProfiler,
    ProcessInfo,
    ResumeRuntime,
    ProcessInfo2,
    EnablePerfMap,
    DisablePerfMap,
    ProcessInfo3,
}

impl IpcCommand {
    fn number(self) -> [u8; 2] {
        match self {
            IpcCommand::AttachProfiler => [3, 1],
            IpcCommand::ProcessInfo => [4, 0],
            IpcCommand::ResumeRuntime => [4, 1],
            IpcCommand::ProcessInfo2 => [4, 4],
            IpcCommand::EnablePerfMap => [4, 5],
            IpcCommand::DisablePerfMap => [4, 6],
            IpcCommand::ProcessInfo3 => [4, 8],
        }
    }

    /// As the protocol's document has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            IpcCommand::AttachProfiler => "AttachProfiler",
            IpcCommand::ProcessInfo => "ProcessInfo",
            IpcCommand::ResumeRuntime => "ResumeRuntime",
            IpcCommand::ProcessInfo2 => "ProcessInfo2",
            IpcCommand::EnablePerfMap => "EnablePerfMap",
            IpcCommand::DisablePerfMap => "DisablePerfMap",
            IpcCommand::ProcessInfo3 => "ProcessInfo3",
        }
    }
}

/// The bytes of a command.
///
/// # Errors
/// They are more than a message can have.
pub(crate) fn message(command: IpcCommand, payload: &[u8]) -> Result<Vec<u8>, Error> {
    let bytes = HEADER + payload.len();
    let Ok(length) = u16::try_from(bytes) else {
        return Err(Error::TooLong { bytes });
    };
    let mut message = Vec::with_capacity(bytes);
    message.extend_from_slice(MAGIC);
    message.extend_from_slice(&length.to_le_bytes());
    message.extend_from_slice(&command.number());
    message.extend_from_slice(&[0, 0]);
    message.extend_from_slice(payload);
    Ok(message)
}

/// Appends a text as the protocol has it.
pub(crate) fn put_text(payload: &mut Vec<u8>, text: &str) {
    let units = text.encode_utf16().count() + 1;
    // One that does not fit is far beyond what a message takes, and refused there.
    payload.extend_from_slice(&u32::try_from(units).unwrap_or(u32::MAX).to_le_bytes());
    for unit in text.encode_utf16().chain([0]) {
        payload.extend_from_slice(&unit.to_le_bytes());
    }
}

/// How many bytes the message that starts with this header has.
///
/// # Errors
/// It is no header.
pub(crate) fn length_of(header: &[u8; HEADER]) -> Result<usize, Error> {
    let (magic, rest) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(Error::Malformed(
            "it does not have the form of the protocol",
        ));
    }
    let length = match rest {
        [low, high, ..] => usize::from(u16::from_le_bytes([*low, *high])),
        _ => 0,
    };
    if length < HEADER {
        return Err(Error::Malformed("the answer is shorter than its header"));
    }
    Ok(length)
}

/// An answer of a runtime.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply<'a> {
    /// It has done what it was asked for.
    Ok(Fields<'a>),
    /// It has not: its HRESULT.
    Error(u32),
}

impl<'a> Reply<'a> {
    /// Reads a whole message.
    ///
    /// # Errors
    /// It is no answer, or its length is not the one that it says.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, Error> {
        let Some((header, payload)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(Error::Malformed("the answer is shorter than its header"));
        };
        if length_of(header)? != bytes.len() {
            return Err(Error::Malformed(
                "the answer has another length than its header says",
            ));
        }
        let mut fields = Fields { rest: payload };
        match (header[16], header[17]) {
            (SERVER, OK) => Ok(Reply::Ok(fields)),
            (SERVER, ERROR) => Ok(Reply::Error(fields.u32()?)),
            _ => Err(Error::Malformed("it is a command, not an answer")),
        }
    }
}

/// The rest of a payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl Fields<'_> {
    pub(crate) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let Some((first, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(Error::Malformed("the answer ends too soon"));
        };
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Error> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// A text without its final zero; what is not UTF-16 is replaced.
    pub(crate) fn text(&mut self) -> Result<String, Error> {
        let units = self.u32()? as usize;
        let bytes = units
            .checked_mul(2)
            .and_then(|bytes| self.rest.split_at_checked(bytes));
        let Some((text, rest)) = bytes else {
            return Err(Error::Malformed("a text is longer than the answer"));
        };
        self.rest = rest;
        let (units, _) = text.as_chunks::<2>();
        let units = units.iter().map(|unit| u16::from_le_bytes(*unit));
        let mut text: String = char::decode_utf16(units)
            .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect();
        if text.ends_with('\0') {
            text.pop();
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ProcessInfo, ProcessInfoVersion};
    use proptest::prelude::*;

    /// Any message with this command and payload.
    fn raw(set: u8, command: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(HEADER + payload.len()).unwrap();
        let head = [&MAGIC[..], &length.to_le_bytes(), &[set, command, 0, 0]];
        [&head.concat(), payload].concat()
    }

    #[test]
    fn a_command_is_what_the_document_shows() {
        let message = message(IpcCommand::ProcessInfo2, b"").unwrap();
        assert_eq!(message, b"DOTNET_IPC_V1\0\x14\x00\x04\x04\x00\x00");
    }

    #[test]
    fn a_text_counts_its_zero() {
        let mut payload = Vec::new();
        put_text(&mut payload, "a\u{1d11e}");
        assert_eq!(payload, b"\x04\0\0\0a\0\x34\xd8\x1e\xdd\0\0");
    }

    #[test]
    fn a_message_has_at_most_64_kib() {
        let most = MAX_BYTES - HEADER;
        assert!(message(IpcCommand::ProcessInfo, &vec![0; most]).is_ok());
        assert!(matches!(
            message(IpcCommand::ProcessInfo, &vec![0; most + 1]),
            Err(Error::TooLong { bytes: 65_536 })
        ));
    }

    #[test]
    fn answers() {
        let error = raw(0xff, 0xff, &0x8013_1385_u32.to_le_bytes());
        assert_eq!(Reply::read(&error).unwrap(), Reply::Error(0x8013_1385));
        for bad in [
            raw(0xff, 0xff, b"abc"),
            raw(4, 0, b""),
            raw(0xff, 1, b""),
            raw(0xff, 0, b"")[..19].to_vec(),
            [&raw(0xff, 0, b"")[..], b"x"].concat(),
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        ] {
            assert!(matches!(Reply::read(&bad), Err(Error::Malformed(_))));
        }
    }

    #[test]
    fn a_text_longer_than_the_answer_is_refused() {
        for units in [1, 0x8000_0000, u32::MAX] {
            let message = raw(0xff, 0, &units.to_le_bytes());
            let Reply::Ok(mut fields) = Reply::read(&message).unwrap() else {
                panic!("it is an error");
            };
            assert!(matches!(fields.text(), Err(Error::Malformed(_))));
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text in "[^\0]{0,40}") {
            let mut payload = Vec::new();
            put_text(&mut payload, &text);
            let message = raw(0xff, 0, &payload);
            let Reply::Ok(mut fields) = Reply::read(&message).unwrap() else {
                panic!("it is an error");
            };
            prop_assert_eq!(fields.text().unwrap(), text);
            prop_assert!(fields.bytes::<1>().is_err());
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Reply::read(&bytes);
            for generation in [ProcessInfoVersion::First, ProcessInfoVersion::Second, ProcessInfoVersion::Third] {
                let answer = raw(0xff, 0, &bytes);
                if let Ok(Ok(info)) = ProcessInfo::read(&answer, generation) {
                    // A UTF-16 unit is at most three bytes of UTF-8.
                    prop_assert!(info.command_line.len() <= bytes.len() * 3 / 2);
                }
            }
        }
    }
}
