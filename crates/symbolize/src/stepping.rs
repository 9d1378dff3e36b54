//! Portable PDB: where the awaits of an async method are.
//!
//! Format: `docs/specs/PortablePdb-Metadata.md` of dotnet/runtime, MethodSteppingInformation of the table
//! CustomDebugInformation. It knows no lines (`portable_pdb` does). The invariant: whatever the bytes, an answer
//! in time that grows with the logarithm of the table.

use crate::metadata::{Bytes, Metadata};

/// {54FD2AC5-E925-401A-9C2A-F94F171072F8}, as it lies in a heap.
const METHOD_STEPPING_INFORMATION: [u8; 16] = [
    0xc5, 0x2a, 0xfd, 0x54, 0x25, 0xe9, 0x1a, 0x40, 0x9c, 0x2a, 0xf9, 0x4f, 0x17, 0x10, 0x72, 0xf8,
];
/// Tables of a portable PDB, in their order.
const DOCUMENT: usize = 0x30;
const METHOD_DEBUG_INFORMATION: usize = 0x31;
const LOCAL_SCOPE: usize = 0x32;
const LOCAL_VARIABLE: usize = 0x33;
const LOCAL_CONSTANT: usize = 0x34;
const IMPORT_SCOPE: usize = 0x35;
const STATE_MACHINE_METHOD: usize = 0x36;
const CUSTOM_DEBUG_INFORMATION: usize = 0x37;
/// MethodDef, whose rows the module has.
const METHOD_DEF: usize = 0x06;
/// What a HasCustomDebugInformation may be, by tag: tables of the module and of the PDB. MethodDef is tag 0.
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

/// The IL offset at which the method of row `method` (of MethodDef) suspends in its await number `state`;
/// compilers number awaits in the order of their code.
pub(crate) fn await_offset(metadata: &Metadata<'_>, method: u32, state: u32) -> Option<u32> {
    let mut blob = Bytes(stepping_information(metadata, method)?);
    // The handler that catches what nobody else does.
    blob.u32()?;
    let mut offsets = Vec::new();
    while !blob.0.is_empty() {
        let offset = blob.u32()?;
        blob.u32()?;
        // Goes on in another method: none of ours.
        (blob.compressed()? == method).then_some(())?;
        offsets.push(offset);
    }
    offsets.sort_unstable();
    offsets.get(usize::try_from(state).ok()?).copied()
}

/// The value of the method's MethodSteppingInformation.
fn stepping_information<'a>(metadata: &Metadata<'a>, method: u32) -> Option<&'a [u8]> {
    let counts = Counts::new(metadata)?;
    let wide_string = metadata.has_wide_strings();
    let wide_blob = metadata.has_wide_blobs();
    let wide_guid = metadata.has_wide_guids();
    let index = |wide: bool| if wide { 4_usize } else { 2 };
    let of = |table| index(counts.rows(table) > 0xffff);
    let (string, blob, guid) = (index(wide_string), index(wide_blob), index(wide_guid));
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
    let table = cursor.take(count.checked_mul(size)?)?;
    let row = |at: usize| {
        let mut cursor = Bytes(table.get(at.checked_mul(size)?..)?);
        let parent = cursor.index(wide_parent)?;
        Some((parent, cursor.index(wide_guid)?, cursor.index(wide_blob)?))
    };
    // The table is sorted by parent.
    let wanted = method.checked_shl(PARENT_BITS)?;
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if row(middle)?.0 < wanted {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let own = (low..count)
        .map_while(row)
        .take_while(|(parent, ..)| *parent == wanted);
    // A method has one of each kind; a damaged table may have any number.
    let mut own = own.take(64);
    let (.., value) =
        own.find(|&(_, kind, _)| metadata.guid(kind) == Some(METHOD_STEPPING_INFORMATION))?;
    metadata.blob(value)
}

/// How many rows each table has, those of the module too, which indexes are as wide as.
struct Counts<'m, 'a> {
    metadata: &'m Metadata<'a>,
    of_module: [u32; 64],
}

impl<'m, 'a> Counts<'m, 'a> {
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
