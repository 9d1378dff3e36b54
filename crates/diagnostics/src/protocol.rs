//! Encoding and decoding of diagnostics protocol messages.
//!
//! Sockets are in `socket`. A message is a header of 20 bytes (magic, total length, command set,
//! command, two zero bytes) and a payload, all little-endian. A text is its number of UTF-16 units
//! with the final zero, followed by the units.
//! Invariant: decoding accepts any bytes and returns a value or an error. It never allocates more
//! than the length of its input.

use crate::Error;

const MAGIC: &[u8; 14] = b"DOTNET_IPC_V1\0";
/// Size of the header, in bytes.
pub(crate) const HEADER: usize = 20;
/// Maximum length of a message: the length field has 16 bits.
#[cfg(test)]
const MAX_BYTES: usize = u16::MAX as usize;

/// Command set of replies.
const SERVER: u8 = 0xff;
const OK: u8 = 0x00;
const ERROR: u8 = 0xff;

/// The commands of a runtime, as command set and command.
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

    /// Values from the protocol's document.
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

/// Encodes a command.
///
/// # Errors
/// The message would exceed the maximum length.
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

/// Appends a text in the protocol's encoding.
pub(crate) fn put_text(payload: &mut Vec<u8>, text: &str) {
    let units = text.encode_utf16().count() + 1;
    // A longer text exceeds the maximum message length, which is checked elsewhere.
    payload.extend_from_slice(&u32::try_from(units).unwrap_or(u32::MAX).to_le_bytes());
    for unit in text.encode_utf16().chain([0]) {
        payload.extend_from_slice(&unit.to_le_bytes());
    }
}

/// Returns the total length, in bytes, of the message that starts with this header.
///
/// # Errors
/// The bytes are not a header.
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

/// A runtime's reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply<'a> {
    /// The command succeeded.
    Ok(Fields<'a>),
    /// The command failed, with this HRESULT.
    Error(u32),
}

impl<'a> Reply<'a> {
    /// Reads a whole message.
    ///
    /// # Errors
    /// The message is not a reply, or its length field is wrong.
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

/// The unread part of a payload.
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

    /// Reads a text, without its final zero. Invalid UTF-16 is replaced.
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
