//! Functions and lines of one ELF file.
//!
//! Opening copies everything needed, so the file can be closed. Invariant: a lookup of an address
//! outside every symbol returns no name. It does not return the name of the exported function
//! before it: libcoreclr.so without its debug file has a few dozen exports for megabytes of code.

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use gimli::{EndianArcSlice, RunTimeEndian};
use object::elf::{FileHeader32, FileHeader64, SHF_EXECINSTR};
use object::read::elf::{ElfFile, FileHeader, Sym, SymbolTable};
use object::read::{
    CompressionFormat, Object, ObjectSection, ObjectSymbol, ReadCacheRange, ReadRef,
};
use object::{Endianness, FileKind, SectionFlags, SectionKind, SymbolKind, SymbolSection};

use crate::demangle::demangle;
use crate::eh_frame::UnwindTables;
use crate::file::{ByteSource, PartialFile};
use crate::symbolizer::NativeSymbol;

/// Maximum size of a section that is read, unpacked, in bytes.
pub(crate) const LARGEST_SECTION: u64 = 1 << 30;

/// Limit on the unpacked sections of a small file, bytes.
const SMALLEST_BUDGET: u64 = 64 << 20;
/// Limit on the unpacked sections of a large file, bytes.
const LARGEST_BUDGET: u64 = 4 << 30;
/// Maximum compression factor. Debug information compresses to a third or a tenth.
const MAX_COMPRESSION: u64 = 32;

/// Returns the limit on all unpacked sections of a file of this length. A file that claims more is
/// an attack on the reader's memory.
fn budget(length: u64) -> u64 {
    length
        .saturating_mul(MAX_COMPRESSION)
        .clamp(SMALLEST_BUDGET, LARGEST_BUDGET)
}

/// One function of a symbol table.
struct ElfFunction {
    start: u64,
    /// Exclusive. If the symbol has no size, the start of the next symbol.
    end: u64,
    name: Box<str>,
}

pub(crate) type Reader = EndianArcSlice<RunTimeEndian>;

/// Contents of one ELF file.
pub(crate) struct Elf {
    /// NT_GNU_BUILD_ID, empty if there is none.
    pub(crate) build_id: Vec<u8>,
    /// File name in `.gnu_debuglink`.
    pub(crate) debug_link: Option<String>,
    /// Whether it has a full symbol table, not only dynamic symbols.
    pub(crate) has_symbol_table: bool,
    /// Whether it has a DWARF section, read or not.
    pub(crate) claims_debug_information: bool,
    /// Address ranges of code. DWARF of functions that the linker dropped is outside of them, near
    /// address 0.
    code: Vec<Range<u64>>,
    /// Functions by start, not overlapping unless the file's symbols do.
    functions: Vec<ElfFunction>,
    /// The functions of dynamic symbols alone: the names that programmers call.
    exported: Vec<ElfFunction>,
    /// `.eh_frame` and its address.
    unwind_tables: Option<UnwindTables>,
    dwarf: Option<addr2line::Context<Reader>>,
}

impl Elf {
    /// Reads the symbols of `file`, and its debug information if `lines` are wanted.
    ///
    /// # Errors
    /// It is not an ELF file that can be read; the text says why.
    pub(crate) fn read(file: &PartialFile, lines: bool) -> Result<Self, String> {
        let data = file.range();
        let kind = FileKind::parse(data).map_err(|e| e.to_string())?;
        match kind {
            FileKind::Elf64 => Self::parse::<FileHeader64<Endianness>>(data, lines),
            FileKind::Elf32 => Self::parse::<FileHeader32<Endianness>>(data, lines),
            other => Err(format!("not an ELF file but {other:?}")),
        }
    }

    fn parse<'data, H>(data: ReadCacheRange<'data, ByteSource>, lines: bool) -> Result<Self, String>
    where
        H: FileHeader<Endian = Endianness>,
    {
        let elf = ElfFile::<'data, H, ReadCacheRange<'data, ByteSource>>::parse(data)
            .map_err(|e| e.to_string())?;
        let build_id = elf.build_id().ok().flatten().unwrap_or_default().to_vec();
        let debug_link = elf
            .gnu_debuglink()
            .ok()
            .flatten()
            .map(|(name, _)| String::from_utf8_lossy(name).into_owned());
        let has_symbol_table = elf.symbols().next().is_some();
        let code = elf
            .sections()
            .filter(is_code)
            .map(|section| section.address()..section.address().saturating_add(section.size()))
            .collect();
        let claims_debug_information = elf
            .section_by_name(".debug_info")
            .is_some_and(|section| section.kind() != SectionKind::UninitializedData);
        let functions = symbol_functions(&elf, has_symbol_table);
        let exported = symbol_functions(&elf, false);
        let unwind_tables = UnwindTables::of(&elf);
        let dwarf = if lines { dwarf(&elf) } else { None };
        Ok(Self {
            build_id,
            debug_link,
            has_symbol_table,
            claims_debug_information,
            code,
            functions,
            exported,
            unwind_tables,
            dwarf,
        })
    }

    /// Whether `file` is all there, and does not unpack to more than is sane.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub(crate) fn check(file: &PartialFile) -> Result<(), String> {
        let data = file.range();
        match FileKind::parse(data).map_err(|e| e.to_string())? {
            FileKind::Elf64 => Self::check_sections::<FileHeader64<Endianness>>(data),
            FileKind::Elf32 => Self::check_sections::<FileHeader32<Endianness>>(data),
            other => Err(format!("not an ELF file but {other:?}")),
        }
    }

    fn check_sections<'data, H>(data: ReadCacheRange<'data, ByteSource>) -> Result<(), String>
    where
        H: FileHeader<Endian = Endianness>,
    {
        let elf = ElfFile::<'data, H, ReadCacheRange<'data, ByteSource>>::parse(data)
            .map_err(|e| e.to_string())?;
        let length = data.len().map_err(|()| "it has no length".to_owned())?;
        let mut unpacked = 0u64;
        for section in elf.sections() {
            let Some((start, size)) = section.file_range() else {
                continue;
            };
            if start.checked_add(size).is_none_or(|end| end > length) {
                return Err("it is cut short".to_owned());
            }
            let packed = section.compressed_file_range().map_err(|e| e.to_string())?;
            if packed.format != CompressionFormat::None {
                unpacked = unpacked.saturating_add(packed.uncompressed_size);
            }
        }
        if unpacked > budget(length) {
            return Err(format!("{length} bytes that unpack to {unpacked}"));
        }
        Ok(())
    }

    /// It has DWARF for at least one unit.
    pub(crate) fn has_debug_information(&self) -> bool {
        self.dwarf.is_some()
    }

    /// Has any name at all.
    pub(crate) fn has_symbols(&self) -> bool {
        !self.functions.is_empty() || self.dwarf.is_some()
    }

    /// The function at `svma` and those inlined there, innermost first. Empty where not known.
    pub(crate) fn lookup(&self, svma: u64) -> Vec<NativeSymbol> {
        if !self.code.iter().any(|range| range.contains(&svma)) {
            return Vec::new();
        }
        let mut found = self.dwarf_frames(svma);
        let symbol = function_at(&self.functions, svma);
        match (found.last_mut(), symbol) {
            // The outermost DWARF frame may have a line and no name.
            (Some(outermost), Some(name)) if outermost.name.is_empty() => {
                outermost.name = demangle(name).into_owned();
            }
            (None, Some(name)) => found.push(NativeSymbol {
                name: demangle(name).into_owned(),
                file: String::new(),
                line: 0,
            }),
            _ => {}
        }
        if found.iter().any(|frame| frame.name.is_empty()) {
            found.retain(|frame| !frame.name.is_empty());
        }
        found
    }

    fn dwarf_frames(&self, svma: u64) -> Vec<NativeSymbol> {
        let mut found = Vec::new();
        let Some(context) = &self.dwarf else {
            return found;
        };
        let Ok(mut frames) = context.find_frames(svma).skip_all_loads() else {
            return found;
        };
        while let Ok(Some(frame)) = frames.next() {
            let name = frame
                .function
                .as_ref()
                .and_then(|function| {
                    function
                        .raw_name()
                        .ok()
                        .map(|raw| demangle(&raw).into_owned())
                })
                .unwrap_or_default();
            let (file, line) = frame.location.map_or((String::new(), 0), |location| {
                (
                    location.file.unwrap_or_default().to_owned(),
                    location.line.unwrap_or_default(),
                )
            });
            // A C function that its own debug information has inlined into itself: two aliases
            // of it (libc's read). Overloads of C++ share a name too and are two functions.
            let is_again = found
                .last()
                .is_some_and(|inner| inner.name == name && !name.contains("::"));
            if is_again {
                continue;
            }
            found.push(NativeSymbol { name, file, line });
            if found.len() >= MAX_INLINED {
                break;
            }
        }
        found
    }

    /// The name under which the function at `svma` is exported, where it is a plain C name.
    /// Debug information calls functions by what they are named inside (`__GI___read`).
    pub(crate) fn exported_name(&self, svma: u64) -> Option<&str> {
        let name = function_at(&self.exported, svma)?;
        match demangle(name) {
            Cow::Borrowed(plain) => Some(plain),
            Cow::Owned(_) => None,
        }
    }

    /// Where the function that holds `svma` begins, by the unwind tables.
    pub(crate) fn function_start(&self, svma: u64) -> Option<u64> {
        self.unwind_tables.as_ref()?.function_start(svma)
    }
}

fn function_at(functions: &[ElfFunction], svma: u64) -> Option<&str> {
    let after = functions.partition_point(|f| f.start <= svma);
    // Symbols may nest (a label inside a function): the nearest one that still holds.
    functions[..after]
        .iter()
        .rev()
        .take(MAX_NESTED)
        .find(|f| svma < f.end)
        .map(|f| &*f.name)
}

pub(crate) fn endian<'data, H>(
    elf: &ElfFile<'data, H, ReadCacheRange<'data, ByteSource>>,
) -> RunTimeEndian
where
    H: FileHeader<Endian = Endianness>,
{
    if elf.is_little_endian() {
        RunTimeEndian::Little
    } else {
        RunTimeEndian::Big
    }
}

/// Not by `kind()`: in a debug file the code sections are empty (SHT_NOBITS).
fn is_code<'data>(section: &impl ObjectSection<'data>) -> bool {
    match section.flags() {
        SectionFlags::Elf { sh_flags, .. } => sh_flags.contains(SHF_EXECINSTR),
        _ => false,
    }
}

/// Deeper inlining than this is not real.
const MAX_INLINED: usize = 256;
/// How many preceding symbols are tried before an address counts as outside of all.
const MAX_NESTED: usize = 16;

/// The names of a symbol table, read at once: a name alone costs two calls of the kernel, and a
/// libc has ten thousand.
struct SymbolNames<'data>(&'data [u8]);

impl<'data> SymbolNames<'data> {
    fn of<H>(
        elf: &ElfFile<'data, H, ReadCacheRange<'data, ByteSource>>,
        table: &SymbolTable<'data, H, ReadCacheRange<'data, ByteSource>>,
    ) -> Self
    where
        H: FileHeader<Endian = Endianness>,
    {
        let section = elf.section_by_index(table.string_section());
        let bytes = section.ok().filter(|s| s.size() <= LARGEST_SECTION);
        Self(bytes.and_then(|s| s.data().ok()).unwrap_or_default())
    }

    fn at(&self, offset: u32) -> Option<&'data str> {
        let rest = self.0.get(usize::try_from(offset).ok()?..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    }
}

/// The functions of the dynamic symbols, and of the symbol table if `full`.
fn symbol_functions<'data, H>(
    elf: &ElfFile<'data, H, ReadCacheRange<'data, ByteSource>>,
    full: bool,
) -> Vec<ElfFunction>
where
    H: FileHeader<Endian = Endianness>,
{
    struct Candidate<'n> {
        start: u64,
        size: u64,
        preference: u8,
        name: &'n str,
        section_end: u64,
    }
    let mut candidates: Vec<Candidate<'data>> = Vec::new();
    let mut add =
        |symbol: object::read::elf::ElfSymbol<'data, '_, H, ReadCacheRange<'data, ByteSource>>,
         names: &SymbolNames<'data>| {
            let is_function = match symbol.kind() {
                // Where one without a size ends (musl's assembler) only a full table tells.
                SymbolKind::Text => full || symbol.size() > 0,
                // Assembly without `.type`: only a full table tells code labels from the rest.
                SymbolKind::Unknown => full && symbol.size() == 0,
                _ => false,
            };
            let SymbolSection::Section(index) = symbol.section() else {
                return;
            };
            if !is_function || symbol.address() == 0 {
                return;
            }
            let Ok(section) = elf.section_by_index(index) else {
                return;
            };
            if !is_code(&section) {
                return;
            }
            let endian = elf.endian();
            let Some(name) = names.at(symbol.elf_symbol().st_name(endian)) else {
                return;
            };
            if name.is_empty() || name.starts_with('$') || name.starts_with(".L") {
                return;
            }
            candidates.push(Candidate {
                start: symbol.address(),
                size: symbol.size(),
                preference: u8::from(symbol.size() == 0) * 2 + u8::from(symbol.is_local()),
                name,
                section_end: section.address().saturating_add(section.size()),
            });
        };
    if full {
        let names = SymbolNames::of(elf, elf.elf_symbol_table());
        elf.symbols().for_each(|symbol| add(symbol, &names));
    }
    let names = SymbolNames::of(elf, elf.elf_dynamic_symbol_table());
    elf.dynamic_symbols().for_each(|symbol| add(symbol, &names));

    // Of several names for one address: sized before unsized, global before local, fewer leading
    // underscores, then alphabetical, so that the result is stable. Weak or strong does not matter:
    // libc's `madvise` is weak and its `__madvise` strong.
    candidates.sort_by_key(|c| {
        let underscores = c.name.bytes().take_while(|b| *b == b'_').count();
        (c.start, c.preference, underscores, c.name)
    });
    candidates.dedup_by_key(|c| c.start);
    let starts: Vec<u64> = candidates.iter().map(|c| c.start).collect();
    candidates
        .iter()
        .enumerate()
        .map(|(index, c)| {
            let end = if c.size > 0 {
                c.start.saturating_add(c.size)
            } else {
                let next = starts.get(index + 1).copied().unwrap_or(u64::MAX);
                next.min(c.section_end)
            };
            ElfFunction {
                start: c.start,
                end,
                name: c.name.into(),
            }
        })
        .collect()
}

/// The sections that tell functions, what is inlined in them, and lines. Not where variables are.
const NEEDED_SECTIONS: [gimli::SectionId; 10] = [
    gimli::SectionId::DebugAbbrev,
    gimli::SectionId::DebugAddr,
    gimli::SectionId::DebugAranges,
    gimli::SectionId::DebugInfo,
    gimli::SectionId::DebugLine,
    gimli::SectionId::DebugLineStr,
    gimli::SectionId::DebugRanges,
    gimli::SectionId::DebugRngLists,
    gimli::SectionId::DebugStr,
    gimli::SectionId::DebugStrOffsets,
];

/// A section's bytes, unpacked where it is packed, in memory that they stay in; `budget` is what of
/// the file may still be unpacked.
fn unpacked<'data>(section: &impl ObjectSection<'data>, budget: &Cell<u64>) -> Option<Arc<[u8]>> {
    let packed = section.compressed_data().ok()?;
    if packed.uncompressed_size > LARGEST_SECTION {
        return None;
    }
    if packed.format != CompressionFormat::None {
        budget.set(budget.get().checked_sub(packed.uncompressed_size)?);
    }
    if packed.format != CompressionFormat::Zlib {
        return packed.decompress().ok().map(|bytes| Arc::from(&*bytes));
    }
    let size = usize::try_from(packed.uncompressed_size).ok()?;
    // Of a known length, so it is one allocation.
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, size).collect();
    let mut inflate = flate2::Decompress::new(true);
    let status = inflate
        .decompress(
            packed.data,
            Arc::get_mut(&mut bytes)?,
            flate2::FlushDecompress::Finish,
        )
        .ok()?;
    (status == flate2::Status::StreamEnd && inflate.total_out() == packed.uncompressed_size)
        .then_some(bytes)
}

fn dwarf<'data, H>(
    elf: &ElfFile<'data, H, ReadCacheRange<'data, ByteSource>>,
) -> Option<addr2line::Context<Reader>>
where
    H: FileHeader<Endian = Endianness>,
{
    let endian = endian(elf);
    let budget = Cell::new(budget(elf.data().len().ok()?));
    let load = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let section = elf
            .section_by_name(id.name())
            .filter(|_| NEEDED_SECTIONS.contains(&id))
            .filter(|section| section.kind() != SectionKind::UninitializedData);
        let bytes = section
            .and_then(|section| unpacked(&section, &budget))
            .unwrap_or_else(|| Arc::from(&[][..]));
        Ok(EndianArcSlice::new(bytes, endian))
    };
    elf.section_by_name(".debug_info")
        .filter(|section| section.kind() != SectionKind::UninitializedData)?;
    let dwarf = gimli::Dwarf::load(load).ok()?;
    addr2line::Context::from_dwarf(dwarf).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_its_first_address_and_not_the_one_behind_it() {
        let function = |start, end, name: &str| ElfFunction {
            start,
            end,
            name: name.into(),
        };
        // A label in a function, a gap, the next one.
        let functions = [
            function(0x10, 0x40, "outer"),
            function(0x20, 0x28, "label"),
            function(0x50, 0x60, "next"),
        ];
        for (svma, name) in [
            (0xf, None),
            (0x10, Some("outer")),
            (0x20, Some("label")),
            (0x27, Some("label")),
            (0x28, Some("outer")),
            (0x3f, Some("outer")),
            (0x40, None),
            (0x50, Some("next")),
            (0x60, None),
        ] {
            assert_eq!(function_at(&functions, svma), name, "{svma:x}");
        }
    }
}
