//! Messages of the control socket: encoding, sending, receiving.
//!
//! Format: a 32-bit little-endian length, then that many bytes of text. The text is a verb, then
//! lines `key=value`.

use std::io::{self, Read, Write};

/// Maximum size of one message, in bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// A request or a reply.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// The verb: the first line.
    pub verb: String,
    pairs: Vec<(String, String)>,
}

impl Message {
    /// Creates a message with a verb only.
    pub fn new(verb: &str) -> Message {
        Message {
            verb: one_line(verb),
            pairs: Vec::new(),
        }
    }

    /// Adds a value, in which line ends become spaces.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Message {
        self.pairs.push((one_line(key), one_line(value)));
        self
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let mut pairs = self.pairs.iter();
        pairs
            .find(|(known, _)| known == key)
            .map(|(_, value)| &**value)
    }

    /// The text of the message, without the length.
    pub fn to_text(&self) -> String {
        let mut text = self.verb.clone();
        for (key, value) in &self.pairs {
            text.push('\n');
            text.push_str(key);
            text.push('=');
            text.push_str(value);
        }
        text
    }

    /// Parses the text of a message; `None` if it is malformed.
    pub fn parse(text: &[u8]) -> Option<Message> {
        let mut lines = std::str::from_utf8(text).ok()?.split('\n');
        let verb = lines.next()?.to_owned();
        let pairs = lines
            .map(|line| {
                let (key, value) = line.split_once('=')?;
                Some((key.to_owned(), value.to_owned()))
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Message { verb, pairs })
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r', '\0'], " ")
}

/// Sends a message.
///
/// # Errors
/// The peer has disconnected or does not read, or the message is too long.
pub fn send(mut to: impl Write, message: &Message) -> io::Result<()> {
    let text = message.to_text();
    let length = u32::try_from(text.len()).ok();
    let length = length.filter(|_| text.len() <= MAX_MESSAGE);
    let length = length.ok_or(io::ErrorKind::InvalidInput)?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    to.write_all(&bytes)
}

/// Waits for a message. Bytes after it are not read.
///
/// # Errors
/// The peer has disconnected, or sent something else.
pub fn receive(mut from: impl Read) -> io::Result<Message> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = length_of(length).ok_or(io::ErrorKind::InvalidData)?;
    let mut text = vec![0; length];
    from.read_exact(&mut text)?;
    Message::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn length_of(bytes: [u8; 4]) -> Option<usize> {
    let length = usize::try_from(u32::from_le_bytes(bytes)).ok()?;
    (length <= MAX_MESSAGE).then_some(length)
}

/// Assembles a message from pieces, for a reader that must not block.
#[derive(Debug, Default)]
pub struct MessageReader {
    bytes: Vec<u8>,
}

impl MessageReader {
    /// Number of bytes to read next, so that no byte after the message is read.
    pub fn bytes_wanted(&self) -> usize {
        match self.bytes.first_chunk::<4>() {
            None => 4 - self.bytes.len(),
            Some(length) => {
                let whole = length_of(*length).map_or(0, |length| length + 4);
                whole.saturating_sub(self.bytes.len())
            }
        }
    }

    /// Adds bytes that were read.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The message once it is complete; `None` before.
    ///
    /// # Errors
    /// The message is too long or malformed.
    pub fn message(&self) -> io::Result<Option<Message>> {
        let Some(length) = self.bytes.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = length_of(*length).ok_or(io::ErrorKind::InvalidData)?;
        let Some(text) = self.bytes.get(4..4 + length) else {
            return Ok(None);
        };
        match Message::parse(text) {
            Some(message) => Ok(Some(message)),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_arrives_and_nothing_behind_it_is_read() {
        let message = Message::new("record")
            .with("config", "event=cpu;runtimes=many=3.1,8")
            .with("who", "a\nb");
        let mut bytes = Vec::new();
        send(&mut bytes, &message).unwrap();
        bytes.extend_from_slice(b"blocks");
        let mut rest = &bytes[..];
        let read = receive(&mut rest).unwrap();
        assert_eq!(read.get("config"), Some("event=cpu;runtimes=many=3.1,8"));
        assert_eq!(read.get("who"), Some("a b"));
        assert_eq!(rest, b"blocks");

        let mut reader = MessageReader::default();
        let mut at = 0;
        while reader.message().unwrap().is_none() {
            assert!(reader.bytes_wanted() > 0);
            reader.add(&bytes[at..=at]);
            at += 1;
        }
        assert_eq!(reader.message().unwrap(), Some(read));
        assert_eq!((reader.bytes_wanted(), &bytes[at..]), (0, &b"blocks"[..]));
    }

    #[test]
    fn nonsense_is_refused_before_it_is_kept() {
        let mut reader = MessageReader::default();
        reader.add(&u32::MAX.to_le_bytes());
        assert_eq!(reader.bytes_wanted(), 0);
        assert!(reader.message().is_err());
        assert!(receive(&b"\xff\xff\xff\xff"[..]).is_err());
        assert!(receive(&b"\x02\0\0\0\xff\xff"[..]).is_err());
        assert!(Message::parse(b"verb\nno pair").is_none());
        let long = Message::new("x").with("k", &"v".repeat(MAX_MESSAGE));
        assert!(send(Vec::new(), &long).is_err());
    }
}
