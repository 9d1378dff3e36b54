//! The loaded ELF objects of the process: which of them are CLRs, their segments and thread-locals.
//!
//! Each call makes a new snapshot with the dynamic loader's list; nothing is cached. It must not be
//! called in a signal handler.

use std::ffi::{CStr, CString};
use std::ops::Range;

/// A loaded ELF object.
#[derive(Debug)]
pub(crate) struct Module {
    /// Executable segments.
    pub(crate) code: Vec<Range<usize>>,
    /// Writable segments, without the parts that the loader makes read-only after relocation.
    pub(crate) data: Vec<Range<usize>>,
    /// Module number of its thread-locals if the loader allocates them at a thread's first use. 0
    /// if it has none, or if every thread has them from its start.
    pub(crate) lazy_locals: usize,
    /// Whether the object is a CLR.
    pub(crate) is_clr: bool,
    /// Address and length of its table of functions (.eh_frame_hdr), if it has one.
    functions: Option<(usize, usize)>,
    name: CString,
}

impl Module {
    /// Whether `address` is in the object's code.
    pub(crate) fn runs(&self, address: usize) -> bool {
        self.code.iter().any(|range| range.contains(&address))
    }

    /// Returns the latest end of the function that begins at `start`: the begin of the next one.
    /// `None` if no known function begins there.
    ///
    /// The table is that of the Linux Standard Base, 10.6.2: a head of four bytes, a pointer, a
    /// count, and pairs of a function's begin and its description, relative to the table and
    /// sorted. Only the encodings that linkers write are read.
    pub(crate) fn function_end(&self, start: usize) -> Option<usize> {
        const HEAD: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        let (table, length) = self.functions?;
        // SAFETY: a segment of a CLR, which is never unloaded, of this length and readable.
        let bytes = unsafe { std::slice::from_raw_parts(table as *const u8, length) };
        let (head, rest) = bytes.split_at_checked(8)?;
        let (count, rows) = rest.split_at_checked(4)?;
        if head.get(..4)? != HEAD {
            return None;
        }
        let count = u32::from_le_bytes(count.try_into().ok()?) as usize;
        let rows = rows.get(..count.checked_mul(8)?)?;
        let begin = |at: usize| {
            let row = rows.get(at * 8..at * 8 + 4)?;
            let offset = i32::from_le_bytes(row.try_into().ok()?);
            Some(table.wrapping_add_signed(offset as isize))
        };
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if begin(middle)? < start {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (begin(low)? == start).then(|| begin(low + 1))?
    }

    /// Whether a word at `address` is in the object's data.
    pub(crate) fn holds_word(&self, address: usize) -> bool {
        let end = address.saturating_add(size_of::<usize>());
        self.data
            .iter()
            .any(|range| range.start <= address && end <= range.end)
    }
}

/// Maximum number of program headers that are read of an object. Linkers write a dozen.
const MOST_HEADERS: usize = 32;
/// Initial capacity, objects.
const OBJECTS: usize = 128;

/// Data of an object, copied while the loader holds its lock.
struct CopiedObject {
    base: usize,
    headers: [libc::Elf64_Phdr; MOST_HEADERS],
    count: usize,
    lazy_locals: usize,
    name: [u8; libc::PATH_MAX as usize],
    name_length: usize,
}

/// The copied objects, up to the capacity, and the number of all loaded objects.
struct CopiedObjects {
    objects: Vec<CopiedObject>,
    all: usize,
}

/// Returns all loaded objects.
///
/// Nothing is allocated while the loader holds its lock. An allocator that calls the loader with a
/// lock of its own held (a heap profiler) and this thread would deadlock.
pub(crate) fn loaded() -> Vec<Module> {
    let mut room = OBJECTS;
    let taken = loop {
        let mut taken = CopiedObjects {
            objects: Vec::with_capacity(room),
            all: 0,
        };
        // SAFETY: `take` gets the pointer that is given here, which is valid for the whole call and
        // used by no other code meanwhile.
        unsafe { libc::dl_iterate_phdr(Some(take), (&raw mut taken).cast()) };
        if taken.all <= room {
            break taken;
        }
        room = 2 * taken.all;
    };
    let mut modules: Vec<Module> = taken.objects.iter().map(module).collect();
    for module in &mut modules {
        module.is_clr = exports_dispenser(module);
    }
    modules
}

/// Copies an object. Allocates nothing.
///
/// # Safety
/// The contract of `dl_iterate_phdr`, and `taken` points to a `CopiedObjects` that no other code
/// uses.
unsafe extern "C" fn take(
    info: *mut libc::dl_phdr_info,
    size: libc::size_t,
    taken: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the contract above; the loader's structures live during the call, and the name, where
    // there is one, is a string.
    let (info, taken, name) = unsafe {
        let info = &*info;
        let name = if info.dlpi_name.is_null() {
            c""
        } else {
            CStr::from_ptr(info.dlpi_name)
        };
        (info, &mut *taken.cast::<CopiedObjects>(), name)
    };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    let is_program = taken.all == 0;
    taken.all += 1;
    if taken.objects.len() == taken.objects.capacity() {
        return 0;
    }
    // SAFETY: the loader gives this number of headers, and they stay mapped with the object, which
    // cannot be unloaded while the loader's lock is held for this call.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr as usize;
    // The field exists from glibc 2.4 and musl 1.1 on.
    let has_number = size >= std::mem::offset_of!(libc::dl_phdr_info, dlpi_tls_modid) + 8;
    let lazy_locals = if has_number && !is_program && !locals_are_static(base, headers) {
        info.dlpi_tls_modid
    } else {
        0
    };
    let mut object = CopiedObject {
        base,
        // SAFETY: numbers, of which zero is one.
        headers: unsafe { std::mem::zeroed() },
        count: headers.len().min(MOST_HEADERS),
        lazy_locals,
        name: [0; libc::PATH_MAX as usize],
        name_length: name.count_bytes().min(libc::PATH_MAX as usize),
    };
    for (to, from) in object.headers.iter_mut().zip(headers) {
        *to = *from;
    }
    for (to, from) in object.name.iter_mut().zip(name.to_bytes()) {
        *to = *from;
    }
    // Within the capacity: nothing is allocated.
    taken.objects.push(object);
    0
}

/// Returns the module that the copy of an object describes.
fn module(object: &CopiedObject) -> Module {
    let headers = object.headers.get(..object.count).unwrap_or_default();
    let range = |header: &libc::Elf64_Phdr| {
        let start = object.base.wrapping_add(header.p_vaddr as usize);
        start..start.saturating_add(header.p_memsz as usize)
    };
    let segments = |flag: u32| {
        headers
            .iter()
            .filter(move |header| header.p_type == libc::PT_LOAD && header.p_flags & flag != 0)
    };
    let relocated: Vec<Range<usize>> = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_GNU_RELRO)
        .map(range)
        .collect();
    let data = segments(libc::PF_W)
        .map(range)
        .flat_map(|segment| without(segment, &relocated))
        .collect();
    let name = object.name.get(..object.name_length).unwrap_or_default();
    Module {
        code: segments(libc::PF_X).map(range).collect(),
        data,
        lazy_locals: object.lazy_locals,
        is_clr: false,
        functions: headers
            .iter()
            .find(|header| header.p_type == libc::PT_GNU_EH_FRAME)
            .map(|header| (range(header).start, header.p_memsz as usize)),
        name: CString::new(name).unwrap_or_default(),
    }
}

/// Returns the parts of `segment` outside of `holes`.
fn without(segment: Range<usize>, holes: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut parts = vec![segment];
    for hole in holes {
        parts = parts
            .into_iter()
            .flat_map(|part| {
                [
                    part.start..hole.start.clamp(part.start, part.end),
                    hole.end.clamp(part.start, part.end)..part.end,
                ]
            })
            .filter(|part| !part.is_empty())
            .collect();
    }
    parts
}

/// Whether the object's flags say that its thread-locals are in every thread's static block.
fn locals_are_static(base: usize, headers: &[libc::Elf64_Phdr]) -> bool {
    const DT_NULL: i64 = 0;
    const DT_FLAGS: i64 = 30;
    const DF_STATIC_TLS: u64 = 0x10;
    let Some(dynamic) = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) else {
        return false;
    };
    let start = base.wrapping_add(dynamic.p_vaddr as usize) as *const [u64; 2];
    let length = dynamic.p_memsz as usize / size_of::<[u64; 2]>();
    // SAFETY: the object's dynamic section: pairs of words (Elf64_Dyn), mapped as long as the
    // object is, which the caller's `dl_iterate_phdr` keeps.
    let entries = unsafe { std::slice::from_raw_parts(start, length) };
    entries
        .iter()
        .map(|[tag, value]| (tag.cast_signed(), *value))
        .take_while(|(tag, _)| *tag != DT_NULL)
        .any(|(tag, value)| tag == DT_FLAGS && value & DF_STATIC_TLS != 0)
}

/// Whether the object exports `MetaDataGetDispenser`, as every CLR does: libcoreclr.so of all
/// versions, and single-file apps, whose program contains the CLR (seen in 3.1.23, 8.0.4, 10.0.12).
fn exports_dispenser(module: &Module) -> bool {
    let symbol = symbol_of(&module.name, c"MetaDataGetDispenser");
    // The lookup includes the libraries that the module depends on.
    symbol.is_some_and(|symbol| module.runs(symbol))
}

/// Returns the address of a symbol in a loaded library or in one that it depends on. The program
/// itself has the empty name. `None` if the library is not loaded or has no such symbol. Takes the
/// loader's lock, so it must not be called in handlers.
pub fn symbol_of(library: &CStr, symbol: &CStr) -> Option<usize> {
    let name = if library.is_empty() {
        std::ptr::null()
    } else {
        library.as_ptr()
    };
    // SAFETY: a string or, for the program itself, null; RTLD_NOLOAD loads nothing.
    let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: an open handle and a string.
    let found = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
    // SAFETY: closes the handle opened above; the library stays loaded, as others hold it.
    unsafe { libc::dlclose(handle) };
    (!found.is_null()).then_some(found as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_cut_out() {
        for (hole, parts) in [
            (0..0, &[(10, 20)][..]),
            (0..12, &[(12, 20)]),
            (12..14, &[(10, 12), (14, 20)]),
            (8..30, &[]),
            (30..40, &[(10, 20)]),
        ] {
            let left = without(10..20, std::slice::from_ref(&hole));
            let left: Vec<_> = left.iter().map(|part| (part.start, part.end)).collect();
            assert_eq!(left, parts, "{hole:?}");
        }
    }

    #[test]
    fn this_program_is_found_and_is_no_clr() {
        let modules = loaded();
        let here = this_program_is_found_and_is_no_clr as *const () as usize;
        let own = modules.iter().find(|module| module.runs(here)).unwrap();
        assert!(!own.is_clr && own.lazy_locals == 0);
        static WORD: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
        let end = own.function_end(here).unwrap();
        assert!(here < end && end - here < 1 << 16);
        assert_eq!(own.function_end(here + 1), None);
        assert!(own.holds_word((&raw const WORD) as usize));
        assert!(!own.holds_word(here));
        assert!(modules.iter().all(|module| !module.is_clr));
    }
}
