//! Test reader of assembly files: finds the method bodies and signatures.
//!
//! It reads PE headers, metadata tables and blobs (ECMA-335 II.24 and 25) as far as needed. Row
//! widths come from the agent's table of columns.

use std::path::Path;

use crate::schema::{METHOD_DEF, Sizes, TABLES};

const STAND_ALONE_SIG: usize = 0x11;

/// An assembly.
pub(crate) struct Image {
    bytes: Vec<u8>,
    /// RVA, size and file offset.
    sections: Vec<(usize, usize, usize)>,
    heaps: u8,
    rows: [u32; TABLES],
    /// Start of each table.
    tables: [usize; TABLES],
    blobs: usize,
}

/// A method with a body.
pub(crate) struct Method<'a> {
    pub(crate) token: u32,
    pub(crate) signature: &'a [u8],
    /// From the body's header to the end of the file's section.
    pub(crate) body: &'a [u8],
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes(*bytes[at..].first_chunk().unwrap()).into()
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()) as usize
}

impl Image {
    /// Opens a file; `None` if it is not a managed assembly.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let bytes = std::fs::read(path).unwrap();
        if !bytes.starts_with(b"MZ") {
            return None;
        }
        let pe = u32_at(&bytes, 0x3c);
        let optional = pe + 24;
        let directories = match u16_at(&bytes, optional) {
            0x10b => optional + 96,
            _ => optional + 112,
        };
        let headers = optional + u16_at(&bytes, pe + 20);
        let sections = (0..u16_at(&bytes, pe + 6)).map(|index| {
            let at = headers + index * 40;
            let [rva, size, offset] = [12, 16, 20].map(|field| u32_at(&bytes, at + field));
            (rva, size, offset)
        });
        let mut image = Self {
            sections: sections.collect(),
            heaps: 0,
            rows: [0; TABLES],
            tables: [0; TABLES],
            blobs: 0,
            bytes,
        };
        let cli = u32_at(&image.bytes, directories + 14 * 8);
        if cli == 0 {
            return None;
        }
        let (cli, _) = image.at(cli);
        let (metadata, _) = image.at(u32_at(&image.bytes, cli + 8));
        image.open_metadata(metadata);
        Some(image)
    }

    /// File offset of an RVA, and the end of its section.
    fn at(&self, rva: usize) -> (usize, usize) {
        let mut sections = self.sections.iter();
        let section = sections.find(|(start, size, _)| (*start..start + size).contains(&rva));
        let (start, size, offset) = section.unwrap();
        (offset + rva - start, offset + size)
    }

    fn open_metadata(&mut self, root: usize) {
        let bytes = &self.bytes;
        let mut at = root + 16 + u32_at(bytes, root + 12);
        let streams = u16_at(bytes, at + 2);
        at += 4;
        let mut tables = 0;
        for _ in 0..streams {
            let offset = root + u32_at(bytes, at);
            let name = &bytes[at + 8..];
            let name = &name[..name.iter().position(|byte| *byte == 0).unwrap()];
            match name {
                b"#~" => tables = offset,
                b"#Blob" => self.blobs = offset,
                _ => {}
            }
            at += 8 + (name.len() + 1).next_multiple_of(4);
        }
        assert_ne!(tables, 0, "compilers write compressed tables");
        self.heaps = bytes[tables + 6];
        let present = u64::from_le_bytes(*bytes[tables + 8..].first_chunk().unwrap());
        let mut at = tables + 24;
        for table in 0..64 {
            if present >> table & 1 != 0 {
                self.rows[table] = u32_at(bytes, at) as u32;
                at += 4;
            }
        }
        for table in 0..TABLES {
            self.tables[table] = at;
            at += (self.sizes().row(table) * self.rows[table]) as usize;
        }
    }

    fn sizes(&self) -> Sizes<'_> {
        Sizes {
            heaps: self.heaps,
            rows: &self.rows,
        }
    }

    fn cell(&self, table: usize, row: u32, column: usize) -> usize {
        let (before, width) = self.sizes().place(table, column);
        let row = (row - 1) * self.sizes().row(table);
        let at = self.tables[table] + (row + before) as usize;
        match width {
            2 => u16_at(&self.bytes, at),
            _ => u32_at(&self.bytes, at),
        }
    }

    fn blob(&self, offset: usize) -> &[u8] {
        let blob = &self.bytes[self.blobs + offset..];
        let (length, head) = corprof::il::read_compressed(blob).unwrap();
        &blob[head..][..length as usize]
    }

    /// Every method that has a body.
    pub(crate) fn methods(&self) -> impl Iterator<Item = Method<'_>> {
        (1..=self.rows[METHOD_DEF]).filter_map(|row| {
            let rva = self.cell(METHOD_DEF, row, 0);
            // Code that is not IL has an RVA too: `miNative`, `miRuntime`.
            let is_il = self.cell(METHOD_DEF, row, 1) & 3 == 0;
            (rva != 0 && is_il).then(|| {
                let (start, end) = self.at(rva);
                Method {
                    token: (METHOD_DEF as u32) << 24 | row,
                    signature: self.blob(self.cell(METHOD_DEF, row, 4)),
                    body: &self.bytes[start..end],
                }
            })
        })
    }

    /// The blob of a stand-alone signature.
    pub(crate) fn signature(&self, token: u32) -> &[u8] {
        assert_eq!(token >> 24, STAND_ALONE_SIG as u32);
        self.blob(self.cell(STAND_ALONE_SIG, token & 0xff_ffff, 0))
    }
}
