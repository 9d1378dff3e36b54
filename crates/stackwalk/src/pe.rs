//! ReadyToRun images: reads the unwind rules of code that was compiled ahead of time.
//!
//! Input is a PE image that the runtime has mapped section by section. It is read in place; little
//! more than the section list is copied. Invariant: every read is inside a section, and sections
//! are inside the image. Callers check `Image::is_cut_short` just before a read.
//!
//! Format: "PE Format" of Microsoft; the header of ReadyToRun images from dotnet/runtime
//! `docs/design/coreclr/botr/readytorun-format.md`.

use crate::gc_info::{self, GcInfo};
use crate::rule::Rule;
use crate::unwind_info::Saved;
use crate::{own_memory, unwind_info, x86};
use std::ops::Range;
use std::sync::OnceLock;

mod il_maps;

use il_maps::IlMaps;

/// A ReadyToRun image, for [`CodeMap::add_r2r`](crate::CodeMap::add_r2r).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    base: u64,
    /// RVAs of the sections, and of the headers.
    sections: Box<[Range<u32>]>,
    /// RVAs of executable sections, from the first to the last.
    code: Range<u32>,
    /// RVA and number of the RUNTIME_FUNCTIONs.
    functions: (u32, u32),
    /// RVA of the last byte that is in the file.
    last: u32,
    /// RVA of its export directory; 0 if it has none.
    exports: u32,
    /// RVA and size of the CLR's own header.
    clr: (u32, u32),
    /// RVA of each [`RUN`]th function; filled by the first [`Image::function_start`].
    begins: OnceLock<Box<[u32]>>,
    /// Location of its IL maps, if it has any; filled by the first [`Image::il_map`].
    il_maps: OnceLock<Option<IlMaps>>,
}

/// Why an image is not a ReadyToRun image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum NotReadyToRun {
    /// No PE32+ image is mapped at the address.
    NotAnImage = 0,
    /// The image is for another machine.
    OtherMachine = 1,
    /// The image has no code of its own: IL only.
    NoCode = 2,
    /// The image's tables lead outside of it.
    Malformed = 3,
}

/// IMAGE_FILE_MACHINE_AMD64, and the same value marked for Linux (exclusive-or 0x7b79).
const MACHINES: [u16; 2] = [0x8664, 0x8664 ^ 0x7b79];
const EXECUTABLE: u32 = 0x2000_0000;
/// IMAGE_DIRECTORY_ENTRY_EXPORT
const EXPORTS: usize = 0;
/// IMAGE_DIRECTORY_ENTRY_EXCEPTION
const EXCEPTION: usize = 3;
/// IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR
const CLR: usize = 14;
const MAX_SECTIONS: u16 = 96;

/// READYTORUN_SECTION_OWNER_COMPOSITE_EXECUTABLE
const OWNER: u32 = 116;
/// READYTORUN_SECTION_COMPONENT_ASSEMBLIES
const COMPONENTS: u32 = 115;
/// Maximum number of sections that is accepted.
const MAX_R2R_SECTIONS: u32 = 64;
/// Maximum length of a file name.
const MAX_NAME: usize = 255;

/// Returns the file name of the composite image that has the code of the image at `base`; `None` if
/// the image is not a component of one.
///
/// # Safety
/// As [`r2r_image`].
pub unsafe fn composite_of(base: u64) -> Option<String> {
    // SAFETY: an image begins with at least one page of headers.
    let page = unsafe { own_memory::copy(base, 4096) }?;
    let image = layout(base, &page).ok()?;
    image.text_at(image.r2r_section(OWNER)?)
}

/// Whether a composite image begins at `start` that was made under this file name. Any address is
/// allowed: all reads are through the kernel. False if the kernel does not support them.
pub fn is_composite(start: u64, name: &str) -> bool {
    let mut page = [0; 4096];
    let Ok(image) = layout(start, own_memory::peek(start, &mut page)) else {
        return false;
    };
    // IMAGE_EXPORT_DIRECTORY: Name.
    let own_name = || image.text_at(image.u32_at(image.exports.checked_add(12)?)?);
    image.r2r_section(COMPONENTS).is_some() && own_name().as_deref() == Some(name)
}

/// Reads the headers of the image at `base`.
///
/// # Safety
/// `base` is where the runtime has mapped an image in its loaded layout (not as a flat file), as
/// GetModuleInfo2 names it without the flag COR_PRF_MODULE_FLAT_LAYOUT; it stays mapped until it
/// was removed from the code map and [`CodeMap::quiesce`](crate::CodeMap::quiesce) returned.
pub unsafe fn r2r_image(base: u64) -> Result<Image, NotReadyToRun> {
    if base == 0 {
        return Err(NotReadyToRun::NotAnImage);
    }
    // SAFETY: an image begins with at least one page of headers.
    let page = unsafe { own_memory::copy(base, 4096) }.ok_or(NotReadyToRun::Malformed)?;
    let image = parse(base, &page)?;
    if image.is_cut_short() {
        return Err(NotReadyToRun::Malformed);
    }
    Ok(image)
}

/// As [`r2r_image`], with the first bytes of the image.
fn parse(base: u64, headers: &[u8]) -> Result<Image, NotReadyToRun> {
    let image = layout(base, headers)?;
    let (table, count) = image.functions;
    if count == 0 || image.code.is_empty() {
        return Err(NotReadyToRun::NoCode);
    }
    if image.rva_bytes(table).len() < count as usize * 12 {
        return Err(NotReadyToRun::Malformed);
    }
    Ok(image)
}

/// Reads an image's layout from its first bytes, with or without code.
fn layout(base: u64, headers: &[u8]) -> Result<Image, NotReadyToRun> {
    use NotReadyToRun::{Malformed, NotAnImage, OtherMachine};
    let u16_at = |at: usize| {
        Some(u16::from_le_bytes(
            headers.get(at..)?.first_chunk()?.to_owned(),
        ))
    };
    let u32_at = |at: usize| {
        Some(u32::from_le_bytes(
            headers.get(at..)?.first_chunk()?.to_owned(),
        ))
    };
    if !headers.starts_with(b"MZ") {
        return Err(NotAnImage);
    }
    let pe = u32_at(0x3c).ok_or(NotAnImage)? as usize;
    let optional = pe.checked_add(24).ok_or(NotAnImage)?;
    // "PE\0\0", and the magic number of PE32+.
    if u32_at(pe) != Some(0x4550) || u16_at(optional) != Some(0x20b) {
        return Err(NotAnImage);
    }
    if !u16_at(pe + 4).is_some_and(|machine| MACHINES.contains(&machine)) {
        return Err(OtherMachine);
    }
    let directory = |index: usize| {
        let known = u32_at(optional + 108)? as usize;
        let at = optional + 112 + index * 8;
        (index < known).then_some((u32_at(at)?, u32_at(at + 4)?))
    };
    let (table, table_len) = directory(EXCEPTION).unwrap_or_default();
    let image_len = u32_at(optional + 56).ok_or(Malformed)?;
    let headers_len = u32_at(optional + 60).ok_or(Malformed)?;
    let count = u16_at(pe + 6)
        .filter(|count| *count <= MAX_SECTIONS)
        .ok_or(Malformed)?;
    let first = optional + usize::from(u16_at(pe + 20).ok_or(Malformed)?);
    let mut sections = Vec::from([Range {
        start: 0,
        end: headers_len.min(image_len),
    }]);
    let mut code = None::<Range<u32>>;
    // File offset and RVA.
    let mut last = (0, headers_len.saturating_sub(1));
    for index in 0..usize::from(count) {
        let at = first + index * 40;
        let field = |offset: usize| u32_at(at + offset).ok_or(Malformed);
        // The mapped part has the smaller number of pages of the two sizes. The rest is zeroed or
        // absent.
        let (virtual_len, start, raw_len) = (field(8)?, field(12)?, field(16)?);
        let len = if virtual_len == 0 {
            raw_len
        } else {
            virtual_len
        };
        let end = start
            .checked_add(len)
            .filter(|end| *end <= image_len)
            .ok_or(Malformed)?;
        if raw_len.min(len) > 0 {
            last = last.max((field(20)?, start + raw_len.min(len) - 1));
        }
        if field(36)? & EXECUTABLE != 0 && start < end {
            let hull = code.map_or(start..end, |old| old.start.min(start)..old.end.max(end));
            code = Some(hull);
        }
        sections.push(start..end);
    }
    if base.checked_add(image_len.into()).is_none() {
        return Err(Malformed);
    }
    Ok(Image {
        base,
        sections: sections.into(),
        code: code.unwrap_or_default(),
        functions: (table, table_len / 12),
        last: last.1,
        exports: directory(EXPORTS).unwrap_or_default().0,
        clr: directory(CLR).unwrap_or_default(),
        begins: OnceLock::new(),
        il_maps: OnceLock::new(),
    })
}

/// Number of RUNTIME_FUNCTIONs from one in [`Image::begins`] to the next.
const RUN: u32 = 64;

/// Returns a field of a RUNTIME_FUNCTION.
fn field(entry: &[u8; 12], at: usize) -> u32 {
    let bytes = entry.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes))
}

/// A RUNTIME_FUNCTION.
struct RuntimeFunction {
    begin: u32,
    end: u32,
    unwind: u32,
}

impl Image {
    /// Returns the address of the image.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns the addresses of its executable sections, from the first to the last.
    pub fn code(&self) -> Range<u64> {
        self.base + u64::from(self.code.start)..self.base + u64::from(self.code.end)
    }

    /// Returns the address of the last byte that is in its file.
    pub fn last(&self) -> u64 {
        self.base.wrapping_add(self.last.into())
    }

    /// Whether its file was truncated, so that parts of it cannot be read. Async-signal-safe.
    pub(crate) fn is_cut_short(&self) -> bool {
        own_memory::is_one_missing(self.base, self.last())
    }

    /// Returns the number of its functions and funclets.
    pub fn functions(&self) -> usize {
        self.functions.1 as usize
    }

    /// Returns the bytes from an RVA to the end of its section; empty if it is in no section.
    fn rva_bytes(&self, rva: u32) -> &[u8] {
        let Some((at, length)) = self.place(rva) else {
            return &[];
        };
        // SAFETY: inside a section of a mapped image, which the creator of this value guarantees to
        // keep until no walk can see it.
        unsafe { std::slice::from_raw_parts(at as *const u8, length) }
    }

    /// Returns the address of an RVA, and the number of bytes to the end of its section.
    fn place(&self, rva: u32) -> Option<(u64, usize)> {
        let section = self
            .sections
            .iter()
            .find(|section| section.contains(&rva))?;
        let length = (section.end - rva) as usize;
        Some((self.base.wrapping_add(rva.into()), length))
    }

    /// Returns the major version of its ReadyToRun header. Not in a signal handler.
    pub fn major(&self) -> Option<u32> {
        Some(self.u32_at(self.header()?.checked_add(4)?)? & 0xffff)
    }

    /// Returns the RVA of its ReadyToRun header.
    fn header(&self) -> Option<u32> {
        // IMAGE_COR20_HEADER: ManagedNativeHeader.
        if self.clr.1 < 72 {
            return None;
        }
        let header = self.u32_at(self.clr.0.checked_add(64)?)?;
        // "RTR\0", then the major and the minor version.
        (self.u32_at(header)? == 0x0052_5452).then_some(header)
    }

    /// Returns the RVA of a section of its ReadyToRun header.
    fn r2r_section(&self, kind: u32) -> Option<u32> {
        let header = self.header()?;
        // After "RTR\0", two versions, and flags.
        let count = self.u32_at(header.checked_add(12)?)?;
        let mut section = header.checked_add(16)?;
        for _ in 0..count.min(MAX_R2R_SECTIONS) {
            if self.u32_at(section)? == kind {
                return self.u32_at(section.checked_add(4)?);
            }
            section = section.checked_add(12)?;
        }
        None
    }

    /// Copies the zero-terminated text at an RVA.
    fn text_at(&self, rva: u32) -> Option<String> {
        let (at, length) = self.place(rva)?;
        // SAFETY: inside a section of an image, or of what looks like one and the kernel reads
        // (`is_composite`).
        let copy = unsafe { own_memory::copy(at, length.min(MAX_NAME + 1)) }?;
        let text = std::ffi::CStr::from_bytes_until_nul(&copy).ok()?;
        Some(text.to_str().ok()?.to_owned())
    }

    /// Copies the four bytes at an RVA. Their page may become unreadable at any time.
    fn u32_at(&self, rva: u32) -> Option<u32> {
        let (at, _) = self.place(rva).filter(|place| place.1 >= 4)?;
        // SAFETY: as in `text_at`.
        let copy = unsafe { own_memory::copy(at, 4) }?;
        Some(u32::from_le_bytes(*copy.first_chunk()?))
    }

    /// Returns the GcInfo of the method whose code starts at `start`. It is stored after the
    /// UNWIND_INFO of its first function, which always has a personality routine.
    ///
    /// Not in a signal handler. Check [`CodeMap::is_cut_short`](crate::CodeMap::is_cut_short) just
    /// before.
    pub fn gc_info(&self, start: u64) -> Result<GcInfo<'_>, gc_info::Error> {
        use gc_info::Error::Malformed;
        let version = self.major().and_then(gc_info::Version::of_image);
        let version = version.ok_or(Malformed("an image of no known version"))?;
        let rva = start
            .checked_sub(self.base)
            .and_then(|rva| u32::try_from(rva).ok());
        let function = rva
            .and_then(|rva| self.find(rva).filter(|function| function.begin == rva))
            .ok_or(Malformed("no function starts there"))?;
        let unwind = self.rva_bytes(function.unwind);
        let info = unwind_info::UnwindInfo::parse(unwind).filter(|info| info.chained.is_none());
        let behind = info.ok_or(Malformed("unwind codes"))?.len + 4;
        let bytes = unwind.get(behind..).unwrap_or_default();
        // The method's end is that of one of its funclets.
        let length = gc_info::code_length(bytes, version)?;
        let last = function.begin.checked_add(length);
        let end = last
            .and_then(|last| self.find(last.checked_sub(1)?))
            .map(|last| last.end);
        if length == 0 || end != last {
            return Err(gc_info::Error::OtherLength(length));
        }
        gc_info::decode(bytes, version, length)
    }

    /// Returns the slots that may hold `this` in the frame of the method whose code starts at
    /// `start` and which has this GcInfo; see [`gc_info::this_homes`].
    pub fn this_homes(
        &self,
        start: u64,
        info: &GcInfo<'_>,
    ) -> Result<Vec<gc_info::Home>, gc_info::Error> {
        let rva = start
            .checked_sub(self.base)
            .and_then(|rva| u32::try_from(rva).ok());
        let rva = rva.ok_or(gc_info::Error::Malformed("no code of this image"))?;
        let table = self.table();
        let first = table.partition_point(|entry| field(entry, 0) < rva);
        let rest = table.get(first..).unwrap_or_default();
        let offsets = rest.iter().map(|entry| field(entry, 0) - rva);
        let entries: Vec<u32> = offsets
            .take_while(|offset| *offset < info.code_length())
            .collect();
        gc_info::this_homes(info, self.bytes_at(start), &entries)
    }

    /// Returns the code from `address` to the end of its section. Async-signal-safe.
    pub(crate) fn bytes_at(&self, address: u64) -> &[u8] {
        let rva = address
            .checked_sub(self.base)
            .and_then(|rva| u32::try_from(rva).ok());
        rva.map_or(&[], |rva| self.rva_bytes(rva))
    }

    /// Returns the RUNTIME_FUNCTIONs, sorted.
    fn table(&self) -> &[[u8; 12]] {
        let bytes = self.rva_bytes(self.functions.0);
        let table = bytes.get(..self.functions.1 as usize * 12);
        table.unwrap_or_default().as_chunks::<12>().0
    }

    fn find(&self, rva: u32) -> Option<RuntimeFunction> {
        let table = self.table();
        let behind = table.partition_point(|entry| field(entry, 0) <= rva);
        let entry = table.get(behind.checked_sub(1)?)?;
        let function = RuntimeFunction {
            begin: field(entry, 0),
            end: field(entry, 4),
            unwind: field(entry, 8),
        };
        (function.begin..function.end)
            .contains(&rva)
            .then_some(function)
    }

    /// Returns the start of the function that contains `address`. Not in a signal handler: it
    /// copies all bytes it reads, because their page may become unreadable at any time.
    pub(crate) fn function_start(&self, address: u64) -> Option<u64> {
        let (_, begin) = self.function_at(address)?;
        Some(self.base + u64::from(begin))
    }

    /// Returns the function that contains `address`, and the RVA of its start. As
    /// [`Image::function_start`].
    fn function_at(&self, address: u64) -> Option<(u32, u32)> {
        let rva = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let begins = self.begins.get_or_init(|| {
            let entries = self.entries(0, self.functions.1).unwrap_or_default();
            let all = entries.as_chunks::<12>().0;
            let firsts = all.iter().step_by(RUN as usize);
            firsts.map(|entry| field(entry, 0)).collect()
        });
        let behind = u32::try_from(begins.partition_point(|begin| *begin <= rva)).ok()?;
        let first = behind.checked_sub(1)? * RUN;
        let run = self.entries(first, RUN)?;
        let run = run.as_chunks::<12>().0;
        let before = run
            .partition_point(|entry| field(entry, 0) <= rva)
            .checked_sub(1)?;
        let entry = run.get(before)?;
        let begin = field(entry, 0);
        let is_in = (begin..field(entry, 4)).contains(&rva);
        is_in.then_some((first + u32::try_from(before).ok()?, begin))
    }

    /// Copies up to `count` RUNTIME_FUNCTIONs.
    fn entries(&self, first: u32, count: u32) -> Option<Vec<u8>> {
        let (table, all) = self.functions;
        let count = count.min(all.checked_sub(first)?);
        let at = self.base + u64::from(table) + u64::from(first) * 12;
        // SAFETY: in the table, which lies in the image (`parse`).
        unsafe { own_memory::copy(at, count as usize * 12) }
    }

    /// Returns where the frame of the function at `lookup` saves its caller's registers.
    /// Async-signal-safe.
    pub(crate) fn saved(&self, lookup: u64) -> Option<Saved> {
        let rva = u32::try_from(lookup.checked_sub(self.base)?).ok()?;
        let function = self.find(rva)?;
        let info = self.rva_bytes(function.unwind);
        unwind_info::saved(info, rva - function.begin, |rva| self.rva_bytes(rva))
    }

    /// Returns the rule for the instruction at `lookup`. Async-signal-safe.
    pub(crate) fn rule(&self, lookup: u64, exact: bool) -> Option<Rule> {
        let rva = u32::try_from(lookup.checked_sub(self.base)?).ok()?;
        let function = self.find(rva)?;
        let into = rva - function.begin;
        let by_codes = || {
            unwind_info::rule(self.rva_bytes(function.unwind), into, |rva| {
                self.rva_bytes(rva)
            })
        };
        if !exact {
            return by_codes();
        }
        let begin = self.base + u64::from(function.begin);
        let body = begin..begin + u64::from(function.end - function.begin);
        let rest = || self.rva_bytes(rva).get(..(function.end - rva) as usize);
        x86::interrupted((lookup, into), &body, rest, by_codes, |back| {
            let at = rva.saturating_sub(u32::try_from(back).unwrap_or(0));
            self.rva_bytes(at.max(function.begin))
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
