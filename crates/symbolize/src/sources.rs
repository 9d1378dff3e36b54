//! Portable PDB: source text that the compiler has put into it.
//!
//! Format: `docs/specs/PortablePdb-Metadata.md` of dotnet/runtime, EmbeddedSource of the table
//! CustomDebugInformation. Invariant: for any bytes, no text is longer than [`LARGEST_SOURCE`], and
//! a text that claims to be longer is not decompressed.

use std::io::Read;

use crate::custom_debug::{CustomDebug, Parent};
use crate::metadata::{Bytes, Metadata};

/// {0E8A571B-6926-466E-B4AD-8AB04611F5FE}, in the byte order of the GUID heap.
const EMBEDDED_SOURCE: [u8; 16] = [
    0x1b, 0x57, 0x8a, 0x0e, 0x26, 0x69, 0x6e, 0x46, 0xb4, 0xad, 0x8a, 0xb0, 0x46, 0x11, 0xf5, 0xfe,
];
/// Maximum length of a source text in bytes. Longer ones are generated, or no text.
pub(crate) const LARGEST_SOURCE: u32 = 4 << 20;

/// Returns the text of the document of this row (from 1), if the PDB contains it.
pub(crate) fn embedded(metadata: &Metadata<'_>, document: u32) -> Option<String> {
    let table = CustomDebug::new(metadata)?;
    let mut blob = Bytes(table.value(Parent::Document(document), EMBEDDED_SOURCE)?);
    let size = blob.u32()?;
    if size > LARGEST_SOURCE {
        return None;
    }
    let packed = blob.0;
    let unpacked = match size {
        0 if packed.len() > LARGEST_SOURCE as usize => return None,
        // Not compressed.
        0 => packed.to_vec(),
        _ => {
            let mut unpacked = Vec::new();
            flate2::read::DeflateDecoder::new(packed)
                .take(size.into())
                .read_to_end(&mut unpacked)
                .ok()?;
            (unpacked.len() == size as usize).then_some(unpacked)?
        }
    };
    Some(decoded(&unpacked))
}

/// Decodes text by its byte order mark, or as UTF-8 with replacement characters for invalid bytes.
fn decoded(bytes: &[u8]) -> String {
    let wide = |unit: fn([u8; 2]) -> u16| {
        let units = bytes[2..].chunks_exact(2);
        let units: Vec<u16> = units.map(|pair| unit([pair[0], pair[1]])).collect();
        String::from_utf16_lossy(&units)
    };
    match bytes {
        [0xff, 0xfe, ..] => wide(u16::from_le_bytes),
        [0xfe, 0xff, ..] => wide(u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest).into_owned(),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn texts_by_their_mark() {
        assert_eq!(decoded(b"class"), "class");
        assert_eq!(decoded(b"\xef\xbb\xbfclass \xc3\xa4"), "class \u{e4}");
        assert_eq!(decoded(b"\xff\xfec\0\xe4\0"), "c\u{e4}");
        assert_eq!(decoded(b"\xfe\xff\0c\0\xe4"), "c\u{e4}");
        assert_eq!(decoded(b"\xe4"), "\u{fffd}");
        assert_eq!(decoded(b"\xff\xfe"), "");
        assert_eq!(decoded(b""), "");
    }
}
