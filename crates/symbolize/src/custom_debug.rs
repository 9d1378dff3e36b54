//! Portable PDB: the table CustomDebugInformation, with compilers' facts about a method or
//! document.
//!
//! Format: `docs/specs/PortablePdb-Metadata.md` of dotnet/runtime. `stepping` and `sources`
//! interpret the values. Invariant: for any bytes, a lookup takes time logarithmic in the table's
//! size.

use crate::metadata::{Bytes, Metadata};

/// Tables of a portable PDB, in their order.
const DOCUMENT: usize = 0x30;
const METHOD_DEBUG_INFORMATION: usize = 0x31;
const LOCAL_SCOPE: usize = 0x32;
const LOCAL_VARIABLE: usize = 0x33;
const LOCAL_CONSTANT: usize = 0x34;
const IMPORT_SCOPE: usize = 0x35;
const STATE_MACHINE_METHOD: usize = 0x36;
const CUSTOM_DEBUG_INFORMATION: usize = 0x37;
/// MethodDef. Its rows are in the module.
const METHOD_DEF: usize = 0x06;
/// Tables that a HasCustomDebugInformation may refer to, by tag. MethodDef is tag 0.
const PARENTS: [usize; 27] = [
    METHOD_DEF,
    0x04,
    0x01,
    0x02,
    0x08,
    0x09,
    0x0a,
    0x00,
    0x0e,
    0x17,
    0x14,
    0x11,
    0x1a,
    0x1b,
    0x20,
    0x23,
    0x26,
    0x27,
    0x28,
    0x2a,
    0x2c,
    0x2b,
    DOCUMENT,
    LOCAL_SCOPE,
    LOCAL_VARIABLE,
    LOCAL_CONSTANT,
    IMPORT_SCOPE,
];
/// Bits of the tag.
const PARENT_BITS: u32 = 5;

/// Parent of the information.
#[derive(Clone, Copy)]
pub(crate) enum Parent {
    /// A row of MethodDef.
    Method(u32),
    /// A row of Document.
    Document(u32),
}

impl Parent {
    /// Returns the value as coded in the table: row, then tag.
    fn coded(self) -> Option<u32> {
        let (row, tag) = match self {
            Self::Method(row) => (row, 0),
            Self::Document(row) => (row, 22),
        };
        Some(row.checked_mul(1 << PARENT_BITS)? | tag)
    }
}

/// The table.
pub(crate) struct CustomDebug<'m, 'a> {
    metadata: &'m Metadata<'a>,
    table: &'a [u8],
    count: usize,
    size: usize,
    wide_parent: bool,
}

impl<'m, 'a> CustomDebug<'m, 'a> {
    pub(crate) fn new(metadata: &'m Metadata<'a>) -> Option<Self> {
        let counts = RowCounts::new(metadata)?;
        let index = |wide: bool| if wide { 4_usize } else { 2 };
        let of = |table| index(counts.rows(table) > 0xffff);
        let string = index(metadata.has_wide_strings());
        let blob = index(metadata.has_wide_blobs());
        let guid = index(metadata.has_wide_guids());
        let wide_parent = PARENTS
            .iter()
            .any(|&table| counts.rows(table) >> (16 - PARENT_BITS) != 0);
        // The rows before ours, in the order of tables.
        let sizes = [
            (DOCUMENT, 2 * blob + 2 * guid),
            (METHOD_DEBUG_INFORMATION, of(DOCUMENT) + blob),
            (
                LOCAL_SCOPE,
                of(METHOD_DEF) + of(IMPORT_SCOPE) + of(LOCAL_VARIABLE) + of(LOCAL_CONSTANT) + 8,
            ),
            (LOCAL_VARIABLE, 4 + string),
            (LOCAL_CONSTANT, string + blob),
            (IMPORT_SCOPE, of(IMPORT_SCOPE) + blob),
            (STATE_MACHINE_METHOD, 2 * of(METHOD_DEF)),
        ];
        let mut cursor = Bytes(metadata.table_bytes());
        let rows = |table| usize::try_from(metadata.rows(table)).ok();
        for (table, size) in sizes {
            cursor.take(rows(table)?.checked_mul(size)?)?;
        }
        let size = index(wide_parent) + guid + blob;
        let count = rows(CUSTOM_DEBUG_INFORMATION)?;
        Some(Self {
            metadata,
            table: cursor.take(count.checked_mul(size)?)?,
            count,
            size,
            wide_parent,
        })
    }

    /// Parent, kind and value of a row, from 0.
    fn row(&self, at: usize) -> Option<(u32, u32, u32)> {
        let mut cursor = Bytes(self.table.get(at.checked_mul(self.size)?..)?);
        let parent = cursor.index(self.wide_parent)?;
        let kind = cursor.index(self.metadata.has_wide_guids())?;
        Some((parent, kind, cursor.index(self.metadata.has_wide_blobs())?))
    }

    /// Information about `parent` of one kind (a GUID).
    pub(crate) fn value(&self, parent: Parent, kind: [u8; 16]) -> Option<&'a [u8]> {
        // The table is sorted by parent.
        let wanted = parent.coded()?;
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.row(middle)?.0 < wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let own = (low..self.count)
            .map_while(|at| self.row(at))
            .take_while(|(parent, ..)| *parent == wanted);
        // There is one of each kind; a damaged table may have any number.
        let mut own = own.take(64);
        let (.., value) = own.find(|&(_, of, _)| self.metadata.guid(of) == Some(kind))?;
        self.metadata.blob(value)
    }
}

/// How many rows each table has, those of the module too, which indexes are as wide as.
struct RowCounts<'m, 'a> {
    metadata: &'m Metadata<'a>,
    of_module: [u32; 64],
}

impl<'m, 'a> RowCounts<'m, 'a> {
    fn new(metadata: &'m Metadata<'a>) -> Option<Self> {
        // The id, the entry point; then which tables of the module, and their rows.
        let mut cursor = Bytes(metadata.pdb?.get(24..)?);
        let tables = cursor.u64()?;
        let mut of_module = [0; 64];
        for (table, rows) in of_module.iter_mut().enumerate() {
            if tables >> table & 1 == 1 {
                *rows = cursor.u32()?;
            }
        }
        Some(Self {
            metadata,
            of_module,
        })
    }

    fn rows(&self, table: usize) -> u32 {
        let own = self.metadata.rows(table);
        own.max(self.of_module.get(table).copied().unwrap_or_default())
    }
}
