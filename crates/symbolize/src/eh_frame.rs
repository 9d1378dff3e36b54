//! Function starts from `.eh_frame`, which files without symbols have too.
//!
//! Only the ranges of its entries are read. Crate `stackwalk` unwinds.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use gimli::{EndianArcSlice, UnwindSection};
use object::read::elf::{ElfFile, FileHeader};
use object::read::{Object, ObjectSection, ReadCacheRange};
use object::{Endianness, SectionKind};

use crate::elf::{LARGEST_SECTION, Reader, endian};
use crate::file::ByteSource;

/// The `.eh_frame` section and its address.
pub(crate) struct UnwindTables {
    section: gimli::EhFrame<Reader>,
    bases: gimli::BaseAddresses,
    /// Functions by start address. Parsed on first use.
    functions: OnceCell<Vec<Range<u64>>>,
}

impl UnwindTables {
    /// Copies the section of a file, if it has one.
    pub(crate) fn of<'data, H>(
        elf: &ElfFile<'data, H, ReadCacheRange<'data, ByteSource>>,
    ) -> Option<Self>
    where
        H: FileHeader<Endian = Endianness>,
    {
        let section = elf
            .section_by_name(".eh_frame")
            .filter(|section| section.kind() != SectionKind::UninitializedData)?;
        if section.size() > LARGEST_SECTION {
            return None;
        }
        let bytes: Arc<[u8]> = section.data().ok()?.into();
        let mut eh_frame = gimli::EhFrame::from(EndianArcSlice::new(bytes, endian(elf)));
        eh_frame.set_address_size(if elf.is_64() { 8 } else { 4 });
        let mut bases = gimli::BaseAddresses::default().set_eh_frame(section.address());
        if let Some(text) = elf.section_by_name(".text") {
            bases = bases.set_text(text.address());
        }
        Some(Self {
            section: eh_frame,
            bases,
            functions: OnceCell::new(),
        })
    }

    /// Returns the start of the function that contains `svma`.
    pub(crate) fn function_start(&self, svma: u64) -> Option<u64> {
        let functions = self.functions.get_or_init(|| self.parse());
        let after = functions.partition_point(|range| range.start <= svma);
        let range = functions.get(after.checked_sub(1)?)?;
        range.contains(&svma).then_some(range.start)
    }

    fn parse(&self) -> Vec<Range<u64>> {
        let mut functions = Vec::new();
        let mut entries = self.section.entries(&self.bases);
        while let Ok(Some(entry)) = entries.next() {
            let gimli::CieOrFde::Fde(partial) = entry else {
                continue;
            };
            // An unreadable entry is skipped, the others are still valid.
            if let Ok(fde) = partial.parse(|section, bases, at| section.cie_from_offset(bases, at))
            {
                let start = fde.initial_address();
                functions.push(start..start.saturating_add(fde.len()));
            }
        }
        functions.sort_by_key(|range| range.start);
        functions
    }
}
