//! Reads names from a module's metadata in memory, without a call into the runtime.
//!
//! `GetModuleMetaData`, even for reading, makes the runtime convert the module's metadata to its
//! writable form permanently (`Module::GetReadablePublicMetaDataInterface`,
//! src/coreclr/vm/ceeload.cpp, to `ConvertMDInternalToReadWrite`). From then on each look-up by the
//! JIT and the type loader takes a lock that all threads share. A program that compiled 20,000
//! methods became 3 to 5 % slower.
//!
//! Only what names need is read. Input that compilers do not produce (the uncompressed stream `#-`
//! of edit-and-continue) is rejected, and the caller queries the runtime instead. Format: ECMA-335,
//! partition II, 24 and 25.
//!
//! Invariants: every byte is read by a system call that tolerates unmapped pages. A module whose
//! file was truncated, or that is unloaded meanwhile, therefore gives no name and does no harm.
//! Every loop is bounded. Kept are the tables' offsets, each type's methods and enclosing type (a
//! search in the tables takes thirty system calls per name), the names of queried types, and the
//! pages read for these (`pieces`).

mod pieces;
mod schema;

use std::ops::Range;
use std::sync::{Mutex, OnceLock};

use memchr::memmem::Finder;
use stackwalk::own_memory;

use crate::base::numbers::NumberMap;
use pieces::Pieces;
use schema::{DETOURS, FIELD, METHOD_DEF, MODULE, NESTED_CLASS, Sizes, TABLES, TYPE_DEF};

/// Maximum length of a name, bytes.
const MAX_NAME: usize = 1024;
/// Maximum depth of nested types.
const MAX_NESTING: usize = 16;
/// Maximum size of all names of a module in which methods are searched, bytes. The largest known
/// modules have a tenth of it.
const MAX_STRINGS: u64 = 1 << 25;
/// Distance behind a module's base beyond which bytes are not kept, but read each time. All known
/// modules are shorter than a tenth of it.
const MAX_KEPT: u64 = 1 << 28;
/// Maximum number of types of a module. The largest known modules have a fifth of it.
const MAX_TYPES: u32 = 1 << 18;
/// Maximum number of streams and sections.
const MAX_LIST: u16 = 96;

/// A source of a module's bytes.
trait Bytes {
    /// Fills `into` with the bytes at an offset from the module's base, completely or not at all.
    fn read(&self, at: u64, into: &mut [u8]) -> Option<()>;
}

/// A module in this process, by its base.
#[derive(Clone, Copy, Debug)]
struct InProcess(u64);

impl Bytes for InProcess {
    fn read(&self, at: u64, into: &mut [u8]) -> Option<()> {
        let length = into.len();
        let read = own_memory::peek(self.0.checked_add(at)?, into);
        (read.len() == length).then_some(())
    }
}

/// Reads integers from bytes.
trait Numbers: Bytes {
    fn array<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes)?;
        Some(bytes)
    }
    fn u16(&self, at: u64) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }
    fn u32(&self, at: u64) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }
    fn u64(&self, at: u64) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// Reads a zero-terminated text of at most [`MAX_NAME`] bytes within `limit`.
    fn text(&self, at: u64, limit: u64) -> Option<String> {
        const AT_ONCE: u64 = 64;
        let mut bytes = Vec::new();
        let mut from = at;
        while from < limit && bytes.len() < MAX_NAME {
            // Not across the end of a page: the next one may be unmapped.
            let mut piece = [0u8; AT_ONCE as usize];
            let length = AT_ONCE.min(limit - from).min(4096 - from % 4096);
            let piece = piece.get_mut(..length as usize)?;
            self.read(from, piece)?;
            if let Some(end) = piece.iter().position(|byte| *byte == 0) {
                bytes.extend_from_slice(piece.get(..end)?);
                return Some(String::from_utf8_lossy(&bytes).into_owned());
            }
            bytes.extend_from_slice(piece);
            from += length;
        }
        None
    }
}

impl<T: Bytes> Numbers for T {}

/// The location of one table.
#[derive(Clone, Copy, Debug, Default)]
struct Table {
    /// Offset of the first row from the base.
    start: u64,
    rows: u32,
    width: u32,
}

/// The metadata of one module.
#[derive(Debug)]
pub struct Metadata {
    bytes: Pieces,
    parts: Parts,
    /// Names of queried types by row: most types are queried with several methods.
    type_names: Mutex<NumberMap<u32, Box<str>>>,
    /// Rows of the methods that match [`Metadata::begins_wanted`], in order.
    wanted_methods: OnceLock<Option<Box<[u32]>>>,
}

/// Locations of the metadata's parts, as offsets from the base.
#[derive(Clone, Debug)]
struct Parts {
    /// End of the last stream.
    end: u64,
    strings: Range<u64>,
    guids: u64,
    heaps: u8,
    rows: Box<[u32; TABLES]>,
    module: Table,
    type_def: Table,
    field: Table,
    method_def: Table,
    /// The types by row, from row 1 on.
    types: Box<[TypeRow]>,
}

/// The facts kept about a type.
#[derive(Clone, Copy, Debug, Default)]
struct TypeRow {
    /// Offsets in `#Strings`.
    name: u32,
    namespace: u32,
    /// First row of its methods.
    methods: u32,
    /// Row of the enclosing type; 0 for none.
    within: u32,
}

/// A table, read with one call.
struct Rows<'a> {
    bytes: Vec<u8>,
    number: usize,
    table: Table,
    sizes: Sizes<'a>,
}

impl Rows<'_> {
    fn read<'a>(
        bytes: &impl Bytes,
        number: usize,
        table: Table,
        sizes: Sizes<'a>,
    ) -> Option<Rows<'a>> {
        let length = u64::from(table.rows) * u64::from(table.width);
        let mut all = vec![0; usize::try_from(length).ok()?];
        bytes.read(table.start, &mut all)?;
        Some(Rows {
            bytes: all,
            number,
            table,
            sizes,
        })
    }

    /// Returns the values of these columns, row by row.
    fn columns<const N: usize>(&self, columns: [usize; N]) -> impl Iterator<Item = [u32; N]> {
        let places = columns.map(|column| self.sizes.place(self.number, column));
        let width = usize::try_from(self.table.width).unwrap_or(usize::MAX);
        self.bytes.chunks_exact(width.max(1)).map(move |row| {
            places.map(|(at, width)| {
                let from = row.get(at as usize..).unwrap_or_default();
                match (width, from) {
                    (2, [a, b, ..]) => u16::from_le_bytes([*a, *b]).into(),
                    (4, [a, b, c, d, ..]) => u32::from_le_bytes([*a, *b, *c, *d]),
                    _ => 0,
                }
            })
        })
    }
}

/// Reads all types of a module.
fn types(
    bytes: &impl Bytes,
    type_def: Table,
    nested: Table,
    sizes: Sizes<'_>,
) -> Option<Box<[TypeRow]>> {
    if type_def.rows > MAX_TYPES || nested.rows > MAX_TYPES {
        return None;
    }
    let rows = Rows::read(bytes, TYPE_DEF, type_def, sizes)?;
    let rows = rows.columns([1, 2, 5]);
    let mut types: Box<[TypeRow]> = rows
        .map(|[name, namespace, methods]| TypeRow {
            name,
            namespace,
            methods,
            within: 0,
        })
        .collect();
    for [inner, outer] in Rows::read(bytes, NESTED_CLASS, nested, sizes)?.columns([0, 1]) {
        let at = usize::try_from(inner.saturating_sub(1)).ok()?;
        if let Some(inner) = types.get_mut(at) {
            inner.within = outer;
        }
    }
    Some(types)
}

/// The names of a method.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MethodRow {
    /// Its name.
    pub name: String,
    /// `Namespace.Outer+Inner` of the type that declares it.
    pub type_name: String,
}

impl Metadata {
    /// Returns the metadata of the module that the runtime has at `base`: in file layout (`flat`),
    /// or laid out by section. `None` if the format is unknown.
    pub fn of_module(base: u64, flat: bool) -> Option<Metadata> {
        if base == 0 {
            return None;
        }
        let module = InProcess(base);
        let parts = Parts::find(&module, flat)?;
        Some(Metadata {
            bytes: Pieces::new(module, parts.end.min(MAX_KEPT)),
            parts,
            type_names: Mutex::default(),
            wanted_methods: OnceLock::new(),
        })
    }

    /// Returns the address of its last byte.
    pub fn last(&self) -> u64 {
        let end = self.bytes.base().saturating_add(self.parts.end);
        end.saturating_sub(1)
    }

    /// Returns the module's identity, as its PDB has it.
    pub fn mvid(&self) -> Option<[u8; 16]> {
        self.parts.mvid(&self.bytes)
    }

    /// Returns a MethodDef token's names.
    pub fn method(&self, token: u32) -> Option<MethodRow> {
        let (name, owner) = self.parts.method(&self.bytes, token)?;
        let type_name = self.type_in(owner)?;
        Some(MethodRow { name, type_name })
    }

    /// Whether a MethodDef token's own name begins with one of these texts, which are the same at
    /// each call. The first call searches all names of the module, so that the others need no
    /// system call. `None` if they cannot be read.
    pub fn begins_wanted<const N: usize>(&self, token: u32, texts: [&str; N]) -> Option<bool> {
        let row = row_of(token, METHOD_DEF)?;
        let find = || self.parts.methods_that_begin(&self.bytes, texts);
        let rows = self.wanted_methods.get_or_init(find).as_ref()?;
        Some(rows.binary_search(&row).is_ok())
    }

    /// Returns `Namespace.Outer+Inner` of a TypeDef token.
    pub fn type_name(&self, token: u32) -> Option<String> {
        self.type_in(row_of(token, TYPE_DEF)?)
    }

    /// Returns the name of the type in a row.
    fn type_in(&self, row: u32) -> Option<String> {
        let known = self.type_names.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(name) = known.get(&row) {
            return Some(String::from(&**name));
        }
        drop(known);
        let name = self.parts.type_name(&self.bytes, row)?;
        let mut known = self.type_names.lock().unwrap_or_else(|e| e.into_inner());
        known.insert(row, name.as_str().into());
        Some(name)
    }

    /// Returns `Namespace.Outer+Inner` of the nested type with this own name; `None` if there is
    /// none, or more than one.
    pub fn nested(&self, own_name: &str) -> Option<String> {
        let row = self.parts.nested(&self.bytes, own_name)?;
        self.type_in(row)
    }

    /// Returns the TypeDef tokens of the types with these full names, `Namespace.Outer+Inner`, in
    /// their order; `None` for a missing one. Reads all names of the module once.
    pub fn types_named<const N: usize>(&self, wholes: [&str; N]) -> [Option<u32>; N] {
        let own = wholes.map(|whole| whole.rsplit(['.', '+']).next().unwrap_or_default());
        let Some(names) = self.parts.strings_that_end(&self.bytes, own) else {
            return [None; N];
        };
        let mut found = [None; N];
        for (row, class) in (1u32..).zip(&self.parts.types) {
            for ((whole, names), found) in wholes.iter().zip(&names).zip(&mut found) {
                if found.is_none()
                    && names.contains(&class.name)
                    && self.type_in(row).as_deref() == Some(*whole)
                {
                    *found = Some((TYPE_DEF as u32) << 24 | row);
                }
            }
        }
        found
    }

    /// Returns the TypeDef token of the type that declares a MethodDef token's method.
    pub fn owner(&self, token: u32) -> Option<u32> {
        let row = row_of(token, METHOD_DEF).filter(|row| *row <= self.parts.method_def.rows)?;
        Some((TYPE_DEF as u32) << 24 | self.parts.owner(row)?)
    }

    /// Returns the token of the first method of this name that a TypeDef token's type declares.
    pub fn method_named(&self, token: u32, name: &str) -> Option<u32> {
        self.parts.method_named(&self.bytes, token, name)
    }

    /// Returns the token of the field of this name that a TypeDef token's type declares.
    pub fn field(&self, token: u32, name: &str) -> Option<u32> {
        self.parts.field(&self.bytes, token, name)
    }
}

/// Returns the row of a token of this table.
fn row_of(token: u32, table: usize) -> Option<u32> {
    let row = token & 0xff_ffff;
    (token >> 24 == table as u32 && row != 0).then_some(row)
}

/// Maps addresses in the loaded module to their actual locations.
struct Layout {
    /// RVA, length and file offset of each section; empty if the module is already laid out by
    /// section.
    sections: Vec<(u32, u32, u32)>,
}

impl Layout {
    fn at(&self, rva: u32) -> Option<u64> {
        if self.sections.is_empty() {
            return Some(rva.into());
        }
        let section = |(start, length, offset): &(u32, u32, u32)| {
            let within = rva.checked_sub(*start)?;
            (within < *length).then(|| u64::from(*offset) + u64::from(within))
        };
        self.sections.iter().find_map(section)
    }
}

impl Parts {
    /// Returns the row of the only nested type with this own name.
    fn nested(&self, bytes: &impl Numbers, own_name: &str) -> Option<u32> {
        let [names] = self.strings_that_end(bytes, [own_name])?;
        let all = self.types.iter().zip(1u32..);
        let mut found = all.filter(|(class, _)| class.within != 0 && names.contains(&class.name));
        let (_, row) = found.next()?;
        found.next().is_none().then_some(row)
    }

    /// Returns the rows of the methods whose own names begin with one of these texts, in order.
    fn methods_that_begin<const N: usize>(
        &self,
        bytes: &impl Bytes,
        texts: [&str; N],
    ) -> Option<Box<[u32]>> {
        if self.strings.end.checked_sub(self.strings.start)? > MAX_STRINGS {
            return None;
        }
        // Every occurrence counts: a name can be the end of a longer string, so it can begin
        // anywhere.
        let places = self.places_of(bytes, texts.map(|text| text.as_bytes().to_vec()))?;
        let mut places = places.concat();
        places.sort_unstable();
        let rows = Rows::read(bytes, METHOD_DEF, self.method_def, self.sizes())?;
        let rows = rows.columns([3]).zip(1u32..);
        let found = rows.filter(|([name], _)| places.binary_search(name).is_ok());
        Some(found.map(|(_, row)| row).collect())
    }

    /// Returns the offsets in `#Strings` at which each of these texts ends a string: a string may
    /// be the end of a longer one.
    fn strings_that_end<const N: usize>(
        &self,
        bytes: &impl Bytes,
        texts: [&str; N],
    ) -> Option<[Vec<u32>; N]> {
        if texts.iter().any(|text| text.len() > MAX_NAME) {
            return Some([const { Vec::new() }; N]);
        }
        self.places_of(bytes, texts.map(|text| [text.as_bytes(), &[0]].concat()))
    }

    /// Returns the offsets in `#Strings` of each of these. None may end as it begins, as only the
    /// first of two overlapping matches is found. Reads all strings, a piece at a time.
    fn places_of<const N: usize>(
        &self,
        bytes: &impl Bytes,
        wanted: [Vec<u8>; N],
    ) -> Option<[Vec<u32>; N]> {
        const AT_ONCE: u64 = 1 << 16;
        let mut found = [const { Vec::new() }; N];
        let finders = wanted.each_ref().map(Finder::new);
        let kept = wanted
            .iter()
            .map(|text| text.len().saturating_sub(1))
            .max()?;
        // The last bytes of the previous piece, which may begin a match, and the bytes that follow.
        let mut piece: Vec<u8> = Vec::new();
        let mut at = self.strings.start;
        while at < self.strings.end {
            let length = AT_ONCE.min(self.strings.end - at);
            let begin = piece.len();
            piece.resize(begin + length as usize, 0);
            bytes.read(at, piece.get_mut(begin..)?)?;
            let first = at - self.strings.start - begin as u64;
            for (finder, found) in finders.iter().zip(&mut found) {
                // The bytes before were searched already.
                let from = (begin + 1).saturating_sub(finder.needle().len());
                for place in finder.find_iter(piece.get(from..)?) {
                    found.push(u32::try_from(first + (from + place) as u64).ok()?);
                }
            }
            piece.drain(..piece.len().saturating_sub(kept));
            at += length;
        }
        Some(found)
    }

    fn find(bytes: &impl Numbers, flat: bool) -> Option<Parts> {
        let root = cli_metadata(bytes, flat)?;
        // "BSJB", versions, reserved, length of the version's text.
        if bytes.u32(root)? != 0x424a_5342 {
            return None;
        }
        let version = bytes.u32(root + 12)?;
        if version > 255 {
            return None;
        }
        let list = root + 16 + u64::from(version);
        let count = bytes.u16(list + 2)?.min(MAX_LIST);
        let mut at = list + 4;
        let (mut tables, mut strings, mut guids) = (None, None, None);
        let mut end = 0;
        for _ in 0..count {
            let start = root + u64::from(bytes.u32(at)?);
            let length = u64::from(bytes.u32(at + 4)?);
            let name = bytes.text(at + 8, at + 8 + 32)?;
            end = end.max(start.checked_add(length)?);
            match name.as_str() {
                "#~" => tables = Some(start),
                "#Strings" => strings = Some(start..start.checked_add(length)?),
                "#GUID" => guids = Some(start),
                _ => {}
            }
            at += 8 + (name.len() as u64 + 1).next_multiple_of(4);
        }
        Parts::read_tables(bytes, end, tables?, strings?, guids?)
    }

    fn read_tables(
        bytes: &impl Numbers,
        end: u64,
        tables: u64,
        strings: Range<u64>,
        guids: u64,
    ) -> Option<Parts> {
        let [heaps] = bytes.array::<1>(tables + 6)?;
        let present = bytes.u64(tables + 8)?;
        // Unknown tables have unknown widths. They sort behind the others, so they do not affect
        // the tables read here.
        let mut rows = Box::new([0u32; TABLES]);
        let mut at = tables + 24;
        for table in 0..64 {
            if present >> table & 1 == 0 {
                continue;
            }
            if let Some(rows) = rows.get_mut(table) {
                *rows = bytes.u32(at)?;
            }
            at += 4;
        }
        if DETOURS.iter().any(|table| rows.get(*table) != Some(&0)) {
            return None;
        }
        // An edit-and-continue stream has four bytes more here.
        if heaps & 0x40 != 0 {
            at += 4;
        }
        let sizes = Sizes { heaps, rows: &rows };
        let mut found = [Table::default(); TABLES];
        for (number, table) in found.iter_mut().enumerate() {
            *table = Table {
                start: at,
                rows: rows.get(number).copied().unwrap_or(0),
                width: sizes.row(number),
            };
            at = at.checked_add(u64::from(table.rows) * u64::from(table.width))?;
        }
        let table = |number: usize| found.get(number).copied();
        let types = types(bytes, table(TYPE_DEF)?, table(NESTED_CLASS)?, sizes)?;
        Some(Parts {
            end,
            strings,
            guids,
            heaps,
            module: table(MODULE)?,
            type_def: table(TYPE_DEF)?,
            field: table(FIELD)?,
            method_def: table(METHOD_DEF)?,
            types,
            rows,
        })
    }

    fn sizes(&self) -> Sizes<'_> {
        Sizes {
            heaps: self.heaps,
            rows: &self.rows,
        }
    }

    /// Reads a column of a row; rows count from 1.
    fn cell(
        &self,
        bytes: &impl Numbers,
        (number, table): (usize, Table),
        row: u32,
        column: usize,
    ) -> Option<u32> {
        if row == 0 || row > table.rows {
            return None;
        }
        let (before, width) = self.sizes().place(number, column);
        let at = table.start + u64::from(row - 1) * u64::from(table.width) + u64::from(before);
        match width {
            2 => bytes.u16(at).map(u32::from),
            4 => bytes.u32(at),
            _ => None,
        }
    }

    fn name(&self, bytes: &impl Numbers, offset: u32) -> Option<String> {
        let at = self.strings.start.checked_add(offset.into())?;
        bytes.text(at, self.strings.end)
    }

    fn mvid(&self, bytes: &impl Numbers) -> Option<[u8; 16]> {
        let number = self.cell(bytes, (MODULE, self.module), 1, 2)?;
        bytes.array(self.guids + u64::from(number.checked_sub(1)?) * 16)
    }

    /// Returns a method's name, and the row of its type.
    fn method(&self, bytes: &impl Numbers, token: u32) -> Option<(String, u32)> {
        let row = row_of(token, METHOD_DEF)?;
        let name = self.cell(bytes, (METHOD_DEF, self.method_def), row, 3)?;
        Some((self.name(bytes, name)?, self.owner(row)?))
    }

    /// Returns the type that declares a method.
    fn owner(&self, method: u32) -> Option<u32> {
        // The last type that does not begin after the method; types without methods begin where the
        // next does. The number of types up to that one is its row.
        let up_to = self.types.partition_point(|one| one.methods <= method);
        u32::try_from(up_to).ok().filter(|row| *row > 0)
    }

    fn type_name(&self, bytes: &impl Numbers, row: u32) -> Option<String> {
        let mut parts = Vec::new();
        let mut next = row;
        while next != 0 && parts.len() < MAX_NESTING {
            let at = usize::try_from(next - 1).ok()?;
            let found = self.types.get(at)?;
            let name = self.name(bytes, found.name)?;
            parts.push(match found.namespace {
                // The empty text.
                0 => name,
                namespace => match self.name(bytes, namespace)? {
                    namespace if namespace.is_empty() => name,
                    namespace => format!("{namespace}.{name}"),
                },
            });
            next = found.within;
        }
        parts.reverse();
        (!parts.is_empty()).then(|| parts.join("+"))
    }

    fn method_named(&self, bytes: &impl Numbers, token: u32, name: &str) -> Option<u32> {
        let owner = row_of(token, TYPE_DEF)?;
        let index = usize::try_from(owner).ok()?;
        let first = self.types.get(index.checked_sub(1)?)?.methods;
        let end = match self.types.get(index) {
            Some(next) => next.methods,
            None => self.method_def.rows.checked_add(1)?,
        };
        // A bound: no type has more.
        let mut rows = first..end.min(first.saturating_add(0xffff));
        let row = rows.find(|row| {
            let offset = self.cell(bytes, (METHOD_DEF, self.method_def), *row, 3);
            let found = offset.and_then(|offset| self.name(bytes, offset));
            found.as_deref() == Some(name)
        })?;
        Some((METHOD_DEF as u32) << 24 | row)
    }

    fn field(&self, bytes: &impl Numbers, token: u32, name: &str) -> Option<u32> {
        let owner = row_of(token, TYPE_DEF)?;
        let first = |of: u32| self.cell(bytes, (TYPE_DEF, self.type_def), of, 4);
        let end = match owner == self.type_def.rows {
            true => self.field.rows.checked_add(1)?,
            false => first(owner + 1)?,
        };
        // A bound: no type has more.
        let rows = first(owner)?..end.min(first(owner)?.saturating_add(0xffff));
        let is_it = |row: &u32| {
            let offset = self.cell(bytes, (FIELD, self.field), *row, 1);
            offset
                .and_then(|offset| self.name(bytes, offset))
                .as_deref()
                == Some(name)
        };
        let row = rows.into_iter().find(is_it)?;
        Some((FIELD as u32) << 24 | row)
    }
}

/// Returns the metadata's location from the CLI header: PE headers, directory 14 (ECMA-335 II.25.2,
/// 25.3).
fn cli_metadata(bytes: &impl Numbers, flat: bool) -> Option<u64> {
    if bytes.array::<2>(0)? != *b"MZ" {
        return None;
    }
    let pe = u64::from(bytes.u32(0x3c)?);
    if bytes.u32(pe)? != 0x4550 {
        return None;
    }
    let optional = pe + 24;
    // PE32 and PE32+ have different directory offsets.
    let directories = optional
        + match bytes.u16(optional)? {
            0x10b => 96,
            0x20b => 112,
            _ => return None,
        };
    let mut layout = Layout {
        sections: Vec::new(),
    };
    if flat {
        let first = optional + u64::from(bytes.u16(pe + 20)?);
        for index in 0..u64::from(bytes.u16(pe + 6)?.min(MAX_LIST)) {
            let at = first + index * 40;
            let (start, length, offset) = (
                bytes.u32(at + 12)?,
                bytes.u32(at + 16)?,
                bytes.u32(at + 20)?,
            );
            layout.sections.push((start, length, offset));
        }
    }
    let cli = layout.at(bytes.u32(directories + 14 * 8)?)?;
    if cli == 0 {
        return None;
    }
    layout.at(bytes.u32(cli + 8)?)
}

#[cfg(test)]
mod tests;
