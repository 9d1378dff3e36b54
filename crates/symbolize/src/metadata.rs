//! The physical layer of .NET metadata (ECMA-335 partition II, section 24), as far as debugging
//! needs it: the root, its streams, table row counts, heaps, and compressed integers.
//!
//! Shared by .NET modules (for the MVID) and portable PDBs. Every access is checked; a wrong
//! offset is `None`.

/// A cursor over bytes in which every read can fail.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    /// Returns the next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Reads a heap or table index of 2 or 4 bytes.
    pub(crate) fn index(&mut self, wide: bool) -> Option<u32> {
        if wide {
            self.u32()
        } else {
            self.u16().map(u32::from)
        }
    }

    /// Reads a compressed unsigned integer (II.23.2).
    pub(crate) fn compressed(&mut self) -> Option<u32> {
        self.compressed_with_width().map(|(value, _)| value)
    }

    /// Reads a compressed signed integer (II.23.2). It is rotated, so the sign is the lowest bit.
    pub(crate) fn compressed_signed(&mut self) -> Option<i32> {
        let (rotated, width) = self.compressed_with_width()?;
        let magnitude = i32::try_from(rotated >> 1).ok()?;
        let offset = match width {
            1 => 0x40,
            2 => 0x2000,
            _ => 0x1000_0000,
        };
        Some(if rotated & 1 == 0 {
            magnitude
        } else {
            magnitude - offset
        })
    }

    fn compressed_with_width(&mut self) -> Option<(u32, usize)> {
        let first = self.u8()?;
        let (value, width) = if first & 0x80 == 0 {
            (u32::from(first), 1)
        } else if first & 0xc0 == 0x80 {
            let second = self.u8()?;
            (u32::from(first & 0x3f) << 8 | u32::from(second), 2)
        } else if first & 0xe0 == 0xc0 {
            let rest = self.take(3)?;
            let value = rest.iter().fold(u32::from(first & 0x1f), |value, byte| {
                value << 8 | u32::from(*byte)
            });
            (value, 4)
        } else {
            return None;
        };
        Some((value, width))
    }
}

/// Number of table kinds that a 64-bit mask can name.
const TABLES: usize = 64;
/// Module, the first table of every .NET module.
const MODULE: usize = 0x00;

/// A parsed metadata root.
pub(crate) struct Metadata<'a> {
    /// `#Pdb`, in portable PDBs alone.
    pub(crate) pdb: Option<&'a [u8]>,
    strings: &'a [u8],
    blob: &'a [u8],
    guid: &'a [u8],
    /// Rows of each table.
    rows: [u32; TABLES],
    /// Bytes after the row counts.
    tables: &'a [u8],
    wide_strings: bool,
    wide_guid: bool,
    wide_blob: bool,
}

impl<'a> Metadata<'a> {
    /// Reads the root at the start of `bytes`.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        Self::assemble(bytes, |offset, size| {
            bytes.get(offset..offset.checked_add(size)?)
        })
    }

    /// Reads what [`Metadata::module_version_id`] needs, and little more, by `read` (offset from
    /// the root, size): CoreLib has megabytes of metadata.
    pub(crate) fn parse_module(
        size: usize,
        read: impl Fn(usize, usize) -> Option<&'a [u8]>,
    ) -> Option<Self> {
        // The streams' names and places; the counts of all tables and the row of the first; GUIDs,
        // of which a module has one.
        const MAX_ROWS: usize = 4096;
        Self::assemble(read(0, size.min(MAX_ROWS))?, |offset, size| {
            read(offset, size.min(MAX_ROWS))
        })
    }

    fn assemble(
        root: &'a [u8],
        content: impl Fn(usize, usize) -> Option<&'a [u8]>,
    ) -> Option<Self> {
        let mut cursor = Bytes(root);
        if cursor.u32()? != 0x424a_5342 {
            return None;
        }
        cursor.take(8)?;
        let version_length = usize::try_from(cursor.u32()?).ok()?;
        cursor.take(version_length)?;
        cursor.u16()?;
        let streams = cursor.u16()?;

        let mut metadata = Self {
            pdb: None,
            strings: &[],
            blob: &[],
            guid: &[],
            rows: [0; TABLES],
            tables: &[],
            wide_strings: false,
            wide_guid: false,
            wide_blob: false,
        };
        let mut table_stream = None;
        for _ in 0..streams {
            let offset = usize::try_from(cursor.u32()?).ok()?;
            let size = usize::try_from(cursor.u32()?).ok()?;
            let length = cursor.0.iter().take(32).position(|byte| *byte == 0)?;
            // The name and its zero, padded to four bytes.
            let padded = cursor.take((length + 4) & !3)?;
            let name = padded.get(..length)?;
            match name {
                b"#Pdb" => metadata.pdb = Some(content(offset, size)?),
                b"#Strings" => metadata.strings = content(offset, size)?,
                b"#Blob" => metadata.blob = content(offset, size)?,
                b"#GUID" => metadata.guid = content(offset, size)?,
                b"#~" | b"#-" => table_stream = Some(content(offset, size)?),
                _ => {}
            }
        }

        let mut cursor = Bytes(table_stream?);
        cursor.take(6)?;
        let heap_sizes = cursor.u8()?;
        cursor.u8()?;
        let valid = cursor.u64()?;
        cursor.u64()?;
        for (table, rows) in metadata.rows.iter_mut().enumerate() {
            if valid >> table & 1 == 1 {
                *rows = cursor.u32()?;
            }
        }
        // Bit 6: four more bytes follow the counts (edit and continue).
        if heap_sizes & 0x40 != 0 {
            cursor.u32()?;
        }
        metadata.wide_strings = heap_sizes & 1 != 0;
        metadata.wide_guid = heap_sizes & 2 != 0;
        metadata.wide_blob = heap_sizes & 4 != 0;
        metadata.tables = cursor.0;
        Some(metadata)
    }

    /// Rows of a table.
    pub(crate) fn rows(&self, table: usize) -> u32 {
        self.rows.get(table).copied().unwrap_or_default()
    }

    /// Start of the rows: those of the first table that has any follow the row counts.
    pub(crate) fn table_bytes(&self) -> &'a [u8] {
        self.tables
    }

    /// Blob heap indexes have four bytes.
    pub(crate) fn has_wide_blobs(&self) -> bool {
        self.wide_blob
    }

    /// GUID heap indexes have four bytes.
    pub(crate) fn has_wide_guids(&self) -> bool {
        self.wide_guid
    }

    /// The blob at `offset` of the blob heap.
    pub(crate) fn blob(&self, offset: u32) -> Option<&'a [u8]> {
        let mut cursor = Bytes(self.blob.get(usize::try_from(offset).ok()?..)?);
        let length = usize::try_from(cursor.compressed()?).ok()?;
        cursor.take(length)
    }

    /// Indexes into the heap of strings have four bytes.
    pub(crate) fn has_wide_strings(&self) -> bool {
        self.wide_strings
    }

    /// The string at `offset` of its heap.
    pub(crate) fn string(&self, offset: u32) -> Option<&'a str> {
        let rest = self.strings.get(usize::try_from(offset).ok()?..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(rest.get(..end)?).ok()
    }

    /// A coded index over these tables, with so many bits for which of them, has four bytes.
    fn is_wide(&self, tables: &[usize], bits: u32) -> bool {
        tables
            .iter()
            .any(|&table| self.rows(table) >> (16 - bits) != 0)
    }

    /// A ResolutionScope has four bytes: Module, ModuleRef, AssemblyRef, TypeRef.
    pub(crate) fn has_wide_scopes(&self) -> bool {
        self.is_wide(&[MODULE, 0x1a, 0x23, 0x01], 2)
    }

    /// The cells of a row (from 1) of one of the tables up to MethodDef, and what is behind them.
    pub(crate) fn row(&self, table: usize, row: u32) -> Option<Bytes<'a>> {
        let size = |wide: bool| if wide { 4_usize } else { 2 };
        let string = size(self.wide_strings);
        let type_def_or_ref = size(self.is_wide(&[0x02, 0x01, 0x1b], 2));
        // II.22: Module, TypeRef, TypeDef, FieldPtr, Field, MethodPtr, MethodDef.
        let sizes = [
            2 + string + 3 * size(self.wide_guid),
            size(self.has_wide_scopes()) + 2 * string,
            4 + 2 * string
                + type_def_or_ref
                + size(self.is_wide(&[0x04], 0))
                + size(self.is_wide(&[0x06], 0)),
            size(self.is_wide(&[0x04], 0)),
            2 + string + size(self.wide_blob),
            size(self.is_wide(&[0x06], 0)),
            8 + string + size(self.wide_blob) + size(self.is_wide(&[0x08], 0)),
        ];
        if row == 0 || row > self.rows(table) {
            return None;
        }
        let mut start = 0_usize;
        for (before, size) in sizes.iter().enumerate().take(table) {
            let rows = usize::try_from(self.rows(before)).ok()?;
            start = start.checked_add(rows.checked_mul(*size)?)?;
        }
        let row = usize::try_from(row - 1).ok()?;
        start = start.checked_add(row.checked_mul(*sizes.get(table)?)?)?;
        Some(Bytes(self.tables.get(start..)?))
    }

    /// The MVID: the GUID named by the one row of the Module table (II.22.30).
    pub(crate) fn module_version_id(&self) -> Option<[u8; 16]> {
        if self.rows(MODULE) == 0 {
            return None;
        }
        let mut row = Bytes(self.tables);
        row.u16()?;
        row.index(self.wide_strings)?;
        self.guid(row.index(self.wide_guid)?)
    }

    /// The GUID with this number, from 1, of its heap.
    pub(crate) fn guid(&self, number: u32) -> Option<[u8; 16]> {
        let number = usize::try_from(number).ok()?;
        let start = number.checked_sub(1)?.checked_mul(16)?;
        self.guid
            .get(start..start.checked_add(16)?)?
            .try_into()
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of ECMA-335 II.23.2.
    #[test]
    fn compressed_integers() {
        for (bytes, value) in [
            (&[0x03][..], 0x03),
            (&[0x7f], 0x7f),
            (&[0x80, 0x80], 0x80),
            (&[0xae, 0x57], 0x2e57),
            (&[0xbf, 0xff], 0x3fff),
            (&[0xc0, 0x00, 0x40, 0x00], 0x4000),
            (&[0xdf, 0xff, 0xff, 0xff], 0x1fff_ffff),
        ] {
            assert_eq!(Bytes(bytes).compressed(), Some(value), "{bytes:x?}");
        }
        for (bytes, value) in [
            (&[0x06][..], 3),
            (&[0x7b], -3),
            (&[0x80, 0x80], 64),
            (&[0x01], -64),
            (&[0xc0, 0x00, 0x40, 0x00], 8192),
            (&[0x80, 0x01], -8192),
            (&[0xdf, 0xff, 0xff, 0xfe], 268_435_455),
            (&[0xc0, 0x00, 0x00, 0x01], -268_435_456),
        ] {
            assert_eq!(Bytes(bytes).compressed_signed(), Some(value), "{bytes:x?}");
        }
        for bytes in [&[][..], &[0x80], &[0xc0, 0, 0], &[0xff]] {
            assert_eq!(Bytes(bytes).compressed(), None, "{bytes:x?}");
        }
    }
}
