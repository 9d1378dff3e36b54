//! Portable PDB: from (method, IL offset) to (document, line).
//!
//! Format: `docs/specs/PortablePdb-Metadata.md` of dotnet/runtime. Rows of the tables Document and
//! MethodDebugInformation are read on demand; `stepping` and `sources` read CustomDebugInformation.

use std::collections::{BTreeMap, BTreeSet};

use crate::metadata::{Bytes, Metadata};
use crate::pe::PdbId;
use crate::{sources, stepping};

const DOCUMENT: usize = 0x30;
const METHOD_DEBUG_INFORMATION: usize = 0x31;
/// Line of sequence points for compiler-generated code, which debuggers do not show.
const HIDDEN_LINE: u32 = 0x00fe_efee;
/// Maximum length of a document name. Longer names are left out.
const LONGEST_NAME: usize = 4096;

/// A portable PDB.
pub(crate) struct PortablePdb {
    bytes: Vec<u8>,
}

/// One visible sequence point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SequencePoint {
    il_offset: u32,
    document: u32,
    line: u32,
}

impl PortablePdb {
    /// Parses the bytes of a file. Returns `None` if it is not a portable PDB.
    pub(crate) fn new(bytes: Vec<u8>) -> Option<Self> {
        Metadata::parse(&bytes)?.pdb?;
        Some(Self { bytes })
    }

    /// Returns the id that its module must contain.
    pub(crate) fn id(&self) -> Option<PdbId> {
        Metadata::parse(&self.bytes)?
            .pdb?
            .get(..20)?
            .try_into()
            .ok()
    }

    /// Returns the bytes for checksums: with zeros for the id, which is made from a checksum.
    pub(crate) fn without_id(&self) -> Option<Vec<u8>> {
        let pdb = Metadata::parse(&self.bytes)?.pdb?;
        let id = pdb.get(..20)?.as_ptr_range();
        let start = (id.start as usize).checked_sub(self.bytes.as_ptr() as usize)?;
        let mut bytes = self.bytes.clone();
        bytes.get_mut(start..start.checked_add(20)?)?.fill(0);
        Some(bytes)
    }

    /// Returns source file and line of the code at `il_offset` of the method with `token`. They are
    /// those of the last visible sequence point at or before it, else (compiler-generated code
    /// before the first statement) of the first one.
    pub(crate) fn line(&self, token: u32, il_offset: u32) -> Option<(String, u32)> {
        // 0x06: MethodDef.
        if token >> 24 != 0x06 {
            return None;
        }
        let metadata = Metadata::parse(&self.bytes)?;
        let points = LineTables::new(&metadata)?.points(token & 0x00ff_ffff)?;
        let at_or_before = points.iter().rev().find(|p| p.il_offset <= il_offset);
        let point = at_or_before.or_else(|| points.first())?;
        let name = LineTables::new(&metadata)?.document_name(point.document)?;
        Some((name, point.line))
    }
}

impl PortablePdb {
    /// Source file and line of await number `state` of the async method whose `MoveNext` has this
    /// `token`.
    pub(crate) fn await_line(&self, token: u32, state: u32) -> Option<(String, u32)> {
        let metadata = Metadata::parse(&self.bytes)?;
        let offset = stepping::await_offset(&metadata, token & 0x00ff_ffff, state)?;
        self.line(token, offset)
    }

    /// Source text by name of file: of those of `files` that are in the PDB, as long as they are no
    /// more than `most` bytes together.
    pub(crate) fn sources(&self, files: &BTreeSet<&str>, most: usize) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut left = most;
        let Some(metadata) = Metadata::parse(&self.bytes) else {
            return found;
        };
        let Some(tables) = LineTables::new(&metadata) else {
            return found;
        };
        for document in 1..=metadata.rows(DOCUMENT) {
            let name = tables.document_name(document);
            if let Some(name) = name.filter(|name| files.contains(name.as_str()))
                && !found.contains_key(&name)
                && let Some(text) = sources::embedded(&metadata, document)
            {
                let Some(rest) = left.checked_sub(text.len()) else {
                    break;
                };
                left = rest;
                found.insert(name, text);
            }
        }
        found
    }
}

/// The two tables that are read.
struct LineTables<'m, 'a> {
    metadata: &'m Metadata<'a>,
    documents: &'a [u8],
    document_size: usize,
    methods: &'a [u8],
    method_size: usize,
    wide_document: bool,
}

impl<'m, 'a> LineTables<'m, 'a> {
    fn new(metadata: &'m Metadata<'a>) -> Option<Self> {
        // A table before Document would need its row size; a portable PDB has none.
        if (0..DOCUMENT).any(|table| metadata.rows(table) != 0) {
            return None;
        }
        let wide_document = metadata.rows(DOCUMENT) > 0xffff;
        let index = |wide: bool| if wide { 4 } else { 2 };
        let blob = index(metadata.has_wide_blobs());
        let guid = index(metadata.has_wide_guids());
        // Document: Name blob, HashAlgorithm guid, Hash blob, Language guid.
        let document_size = 2 * blob + 2 * guid;
        // MethodDebugInformation: Document index, SequencePoints blob.
        let method_size = index(wide_document) + blob;

        let mut cursor = Bytes(metadata.table_bytes());
        let count = |table| usize::try_from(metadata.rows(table)).ok();
        let documents = cursor.take(count(DOCUMENT)?.checked_mul(document_size)?)?;
        let methods = cursor.take(count(METHOD_DEBUG_INFORMATION)?.checked_mul(method_size)?)?;
        Some(Self {
            metadata,
            documents,
            document_size,
            methods,
            method_size,
            wide_document,
        })
    }

    /// Row `number` (from 1) of a table.
    fn row(table: &'a [u8], size: usize, number: u32) -> Option<Bytes<'a>> {
        let start = usize::try_from(number.checked_sub(1)?)
            .ok()?
            .checked_mul(size)?;
        table.get(start..start.checked_add(size)?).map(Bytes)
    }

    /// Visible sequence points of a method, by IL offset.
    fn points(&self, method: u32) -> Option<Vec<SequencePoint>> {
        let mut row = Self::row(self.methods, self.method_size, method)?;
        let document = row.index(self.wide_document)?;
        let blob = row.index(self.metadata.has_wide_blobs())?;
        if blob == 0 {
            return None;
        }
        let mut points = Vec::new();
        // A blob that ends in the middle still gives the points before.
        let _ = read_points(Bytes(self.metadata.blob(blob)?), document, &mut points);
        points.sort_by_key(|point| point.il_offset);
        Some(points)
    }

    fn document_name(&self, document: u32) -> Option<String> {
        let mut row = Self::row(self.documents, self.document_size, document)?;
        let blob = row.index(self.metadata.has_wide_blobs())?;
        let mut cursor = Bytes(self.metadata.blob(blob)?);
        let separator = cursor.u8()?;
        let mut name = Vec::new();
        let mut first = true;
        while !cursor.0.is_empty() {
            if !first && separator != 0 {
                name.push(separator);
            }
            first = false;
            let part = cursor.compressed()?;
            // Part 0 is the empty string.
            if part != 0 {
                name.extend_from_slice(self.metadata.blob(part)?);
            }
            if name.len() > LONGEST_NAME {
                return None;
            }
        }
        (!name.is_empty()).then(|| String::from_utf8_lossy(&name).into_owned())
    }
}

/// Decodes a sequence points blob into `points`, without the hidden ones.
fn read_points(
    mut cursor: Bytes<'_>,
    document: u32,
    points: &mut Vec<SequencePoint>,
) -> Option<()> {
    cursor.compressed()?; // local signature
    let mut document = if document == 0 {
        cursor.compressed()?
    } else {
        document
    };
    let mut il_offset = 0u32;
    let mut is_first = true;
    // Line and column of the last visible point.
    let mut start: Option<(u32, u32)> = None;
    while !cursor.0.is_empty() {
        let delta = cursor.compressed()?;
        if !is_first && delta == 0 {
            document = cursor.compressed()?;
            continue;
        }
        il_offset = if is_first {
            delta
        } else {
            il_offset.checked_add(delta)?
        };
        is_first = false;

        let lines = cursor.compressed()?;
        let columns = if lines == 0 {
            i64::from(cursor.compressed()?)
        } else {
            i64::from(cursor.compressed_signed()?)
        };
        if lines == 0 && columns == 0 {
            continue; // hidden
        }
        let (line, column) = match start {
            None => (cursor.compressed()?, cursor.compressed()?),
            Some((line, column)) => (
                line.checked_add_signed(cursor.compressed_signed()?)?,
                column.checked_add_signed(cursor.compressed_signed()?)?,
            ),
        };
        start = Some((line, column));
        if line != HIDDEN_LINE {
            points.push(SequencePoint {
                il_offset,
                document,
                line,
            });
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(bytes: &[u8], document: u32) -> Vec<(u32, u32, u32)> {
        let mut points = Vec::new();
        let _ = read_points(Bytes(bytes), document, &mut points);
        points
            .iter()
            .map(|p| (p.il_offset, p.document, p.line))
            .collect()
    }

    #[test]
    fn sequence_points() {
        // Local signature 0; IL 0, one line of 3 columns at 10:5.
        assert_eq!(points(&[0, 0, 0, 3, 10, 5], 1), [(0, 1, 10)]);
        // Then IL +4, 0 lines 2 columns, +1 line, -2 columns (rotated).
        assert_eq!(
            points(&[0, 0, 0, 3, 10, 5, 4, 0, 2, 2, 0x7d], 1),
            [(0, 1, 10), (4, 1, 11)]
        );
        // A hidden point at IL 0, then a visible one at IL 3.
        assert_eq!(points(&[0, 0, 0, 0, 3, 0, 1, 20, 1], 1), [(3, 1, 20)]);
        // The document changes in the middle; the first one is in the blob.
        assert_eq!(
            points(&[0, 7, 0, 0, 3, 10, 5, 0, 9, 2, 0, 1, 4, 0], 0),
            [(0, 7, 10), (2, 9, 12)]
        );
        // Cut in the middle: what came before.
        assert_eq!(points(&[0, 0, 0, 3, 10, 5, 4, 0], 1), [(0, 1, 10)]);
        assert_eq!(points(&[], 1), []);
    }
}
