//! Column and row widths of the metadata tables (ECMA-335, partition II, 22 and 24.2.6).
//!
//! Widths depend on the row counts of other tables, so a column is described by what it refers to.

/// The type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Column {
    /// A number of this many bytes.
    Fixed(u8),
    /// An offset in `#Strings`.
    Text,
    /// A number in `#GUID`.
    Guid,
    /// An offset in `#Blob`.
    Blob,
    /// A row of this table.
    Row(u8),
    /// A row of one of several tables, selected by this many low bits.
    Coded(u8, &'static [u8]),
}

use Column::{Blob, Coded, Fixed, Guid, Row, Text};

pub(super) const MODULE: usize = 0x00;
pub(super) const TYPE_DEF: usize = 0x02;
const FIELD_PTR: usize = 0x03;
pub(super) const FIELD: usize = 0x04;
const METHOD_PTR: usize = 0x05;
pub(super) const METHOD_DEF: usize = 0x06;
pub(super) const NESTED_CLASS: usize = 0x29;
/// Number of known tables.
pub(super) const TABLES: usize = 0x2d;

/// Indirection tables, which compilers do not produce: rows are found through them.
pub(super) const DETOURS: [usize; 2] = [FIELD_PTR, METHOD_PTR];

const TYPE_DEF_OR_REF: Column = Coded(2, &[0x02, 0x01, 0x1b]);
const HAS_CONSTANT: Column = Coded(2, &[0x04, 0x08, 0x17]);
const HAS_CUSTOM_ATTRIBUTE: Column = Coded(
    5,
    &[
        0x06, 0x04, 0x01, 0x02, 0x08, 0x09, 0x0a, 0x00, 0x0e, 0x17, 0x14, 0x11, 0x1a, 0x1b, 0x20,
        0x23, 0x26, 0x27, 0x28, 0x2a, 0x2c, 0x2b,
    ],
);
const HAS_FIELD_MARSHAL: Column = Coded(1, &[0x04, 0x08]);
const HAS_DECL_SECURITY: Column = Coded(2, &[0x02, 0x06, 0x20]);
const MEMBER_REF_PARENT: Column = Coded(3, &[0x02, 0x01, 0x1a, 0x06, 0x1b]);
const HAS_SEMANTICS: Column = Coded(1, &[0x14, 0x17]);
const METHOD_DEF_OR_REF: Column = Coded(1, &[0x06, 0x0a]);
const MEMBER_FORWARDED: Column = Coded(1, &[0x04, 0x06]);
const IMPLEMENTATION: Column = Coded(2, &[0x26, 0x23, 0x27]);
const CUSTOM_ATTRIBUTE_TYPE: Column = Coded(3, &[0x06, 0x0a]);
const RESOLUTION_SCOPE: Column = Coded(2, &[0x00, 0x1a, 0x23, 0x01]);
const TYPE_OR_METHOD_DEF: Column = Coded(1, &[0x02, 0x06]);

/// Returns the columns of a table.
pub(super) const fn columns(table: usize) -> &'static [Column] {
    match table {
        MODULE => &[Fixed(2), Text, Guid, Guid, Guid],
        0x01 => &[RESOLUTION_SCOPE, Text, Text],
        TYPE_DEF => &[Fixed(4), Text, Text, TYPE_DEF_OR_REF, Row(0x04), Row(0x06)],
        FIELD_PTR => &[Row(0x04)],
        FIELD => &[Fixed(2), Text, Blob],
        METHOD_PTR => &[Row(0x06)],
        METHOD_DEF => &[Fixed(4), Fixed(2), Fixed(2), Text, Blob, Row(0x08)],
        0x07 => &[Row(0x08)],
        0x08 => &[Fixed(2), Fixed(2), Text],
        0x09 => &[Row(0x02), TYPE_DEF_OR_REF],
        0x0a => &[MEMBER_REF_PARENT, Text, Blob],
        0x0b => &[Fixed(2), HAS_CONSTANT, Blob],
        0x0c => &[HAS_CUSTOM_ATTRIBUTE, CUSTOM_ATTRIBUTE_TYPE, Blob],
        0x0d => &[HAS_FIELD_MARSHAL, Blob],
        0x0e => &[Fixed(2), HAS_DECL_SECURITY, Blob],
        0x0f => &[Fixed(2), Fixed(4), Row(0x02)],
        0x10 => &[Fixed(4), Row(0x04)],
        0x11 => &[Blob],
        0x12 => &[Row(0x02), Row(0x14)],
        0x13 => &[Row(0x14)],
        0x14 => &[Fixed(2), Text, TYPE_DEF_OR_REF],
        0x15 => &[Row(0x02), Row(0x17)],
        0x16 => &[Row(0x17)],
        0x17 => &[Fixed(2), Text, Blob],
        0x18 => &[Fixed(2), Row(0x06), HAS_SEMANTICS],
        0x19 => &[Row(0x02), METHOD_DEF_OR_REF, METHOD_DEF_OR_REF],
        0x1a => &[Text],
        0x1b => &[Blob],
        0x1c => &[Fixed(2), MEMBER_FORWARDED, Text, Row(0x1a)],
        0x1d => &[Fixed(4), Row(0x04)],
        0x1e => &[Fixed(4), Fixed(4)],
        0x1f => &[Fixed(4)],
        0x20 => &[Fixed(4), Fixed(8), Fixed(4), Blob, Text, Text],
        0x21 => &[Fixed(4)],
        0x22 => &[Fixed(4), Fixed(8)],
        0x23 => &[Fixed(8), Fixed(4), Blob, Text, Text, Blob],
        0x24 => &[Fixed(4), Row(0x23)],
        0x25 => &[Fixed(4), Fixed(8), Row(0x23)],
        0x26 => &[Fixed(4), Text, Blob],
        0x27 => &[Fixed(4), Fixed(4), Text, Text, IMPLEMENTATION],
        0x28 => &[Fixed(4), Fixed(4), Text, IMPLEMENTATION],
        NESTED_CLASS => &[Row(0x02), Row(0x02)],
        0x2a => &[Fixed(2), Fixed(2), TYPE_OR_METHOD_DEF, Text],
        0x2b => &[METHOD_DEF_OR_REF, Blob],
        0x2c => &[Row(0x2a), TYPE_DEF_OR_REF],
        _ => &[],
    }
}

/// The facts that determine the widths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes<'a> {
    /// The flags of the `#~` stream: wide strings 1, wide GUIDs 2, wide blobs 4.
    pub(super) heaps: u8,
    /// Rows of each table.
    pub(super) rows: &'a [u32; TABLES],
}

impl Sizes<'_> {
    /// Returns the width of a column, bytes.
    pub(super) fn width(self, column: Column) -> u32 {
        let wide = |is: bool| if is { 4 } else { 2 };
        let rows = |table: u8| self.rows.get(usize::from(table)).copied().unwrap_or(0);
        match column {
            Fixed(bytes) => u32::from(bytes),
            Text => wide(self.heaps & 1 != 0),
            Guid => wide(self.heaps & 2 != 0),
            Blob => wide(self.heaps & 4 != 0),
            Row(table) => wide(rows(table) > 0xffff),
            Coded(bits, tables) => {
                let most = tables.iter().map(|table| rows(*table)).max().unwrap_or(0);
                wide(most > 0xffff >> bits)
            }
        }
    }

    /// Returns the offset of a column in its row, and its width: 0 for none.
    pub(super) fn place(self, table: usize, column: usize) -> (u32, u32) {
        let all = columns(table);
        let before = all.iter().take(column).map(|one| self.width(*one)).sum();
        (before, all.get(column).map_or(0, |one| self.width(*one)))
    }

    /// Returns the width of a row.
    pub(super) fn row(self, table: usize) -> u32 {
        columns(table)
            .iter()
            .map(|column| self.width(*column))
            .sum()
    }
}
