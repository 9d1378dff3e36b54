//! Native modules: lists the loaded ELF modules and copies their unwind tables.
//!
//! Input is the dynamic linker's list (`dl_iterate_phdr`), read on the agent thread; output is
//! [`NativeModule`]s with the bytes that `cfi` interprets. Symbols are not read here. Invariant: a
//! walk reads a module's tables from a copy, and its code through the kernel, never as memory of
//! the loaded module. So neither `dlclose` on another thread nor truncating the file causes a fault
//! in a walk.
//!
//! The file is not mapped, because dumps and debuggers find a module by the lowest mapping of its
//! file, and would use a second mapping instead (ClrMD, `createdump`, `libmscordaccore.so`). A copy
//! of the tables costs an eighth of the module's code: 0.8 MB for libcoreclr.so.

use crate::own_memory;
use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A native module as the dynamic linker lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NativeModule {
    /// Its file: for the main program the target of `/proc/self/exe`, for the vdso `[vdso]`.
    pub path: PathBuf,
    /// Address in the process − address in the file (base AVMA − base SVMA).
    pub bias: u64,
    /// Addresses of its segments, from the first to the last.
    pub range: Range<u64>,
    /// Addresses of its executable segments, from the first to the last.
    pub code: Range<u64>,
    /// The linker's build id; empty if it has none.
    pub build_id: Vec<u8>,
}

/// A change that [`CodeMap::refresh_native`](crate::CodeMap::refresh_native) found.
#[derive(Debug)]
pub enum ModuleChange<'a> {
    /// The module is new. The return value becomes its [`Region::user`](crate::Region).
    Loaded {
        /// The module.
        module: &'a NativeModule,
    },
    /// The module was unloaded. The return value is ignored.
    Unloaded {
        /// The module.
        module: &'a NativeModule,
    },
}

/// Readable bytes of a part of a module's addresses, valid until they are dropped.
struct ModuleBytes {
    /// Address in the loaded module.
    avma: u64,
    at: *mut u8,
    len: usize,
    /// Whether the bytes are a mapping of their own. If not, they are the loaded module itself:
    /// only of the vdso, which is never unloaded.
    is_copy: bool,
}

// SAFETY: memory that is not written to once it is filled, with no thread affinity.
unsafe impl Send for ModuleBytes {}
// SAFETY: as above.
unsafe impl Sync for ModuleBytes {}

impl ModuleBytes {
    /// Allocates zeroed room for a copy, in a mapping that is returned to the kernel when dropped
    /// (`malloc` would keep it). `None` for no bytes.
    fn room(avma: u64, len: usize) -> Option<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of no file, at a place of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
        (at != libc::MAP_FAILED).then(|| ModuleBytes {
            avma,
            at: at.cast(),
            len,
            is_copy: true,
        })
    }

    /// Copies bytes from memory.
    fn of(avma: u64, bytes: &[u8]) -> Option<Self> {
        let mut part = ModuleBytes::room(avma, bytes.len())?;
        part.room_mut().copy_from_slice(bytes);
        Some(part)
    }

    /// Copies bytes from a file.
    fn of_file(file: &File, avma: u64, offset: u64, len: usize) -> Option<Self> {
        let mut part = ModuleBytes::room(avma, len)?;
        file.read_exact_at(part.room_mut(), offset).ok()?;
        Some(part)
    }

    fn room_mut(&mut self) -> &mut [u8] {
        if !self.is_copy {
            return &mut [];
        }
        // SAFETY: mapped by `room` for `len` bytes, unmapped by `drop` alone, and borrowed by
        // `self`.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped by `room` for `len` bytes and unmapped by `drop` alone; or the vdso's,
        // which `ListedModule::code` took from its readable segments.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl Drop for ModuleBytes {
    fn drop(&mut self) {
        if self.is_copy {
            // SAFETY: this mapping is ours alone.
            unsafe { libc::munmap(self.at.cast(), self.len) };
        }
    }
}

/// A module's unwind tables, and access to its code.
pub(crate) struct NativeCode {
    parts: Box<[ModuleBytes]>,
    /// Address of `.eh_frame_hdr`; 0 if the module has none.
    pub(crate) eh_frame_hdr: u64,
}

impl NativeCode {
    /// Returns the copied bytes from `avma` to the end of their part; empty if there are none.
    /// Async-signal-safe.
    pub(crate) fn bytes_at(&self, avma: u64) -> &[u8] {
        let found = self.parts.iter().find_map(|part| {
            let into = usize::try_from(avma.checked_sub(part.avma)?).ok()?;
            part.bytes().get(into..).filter(|rest| !rest.is_empty())
        });
        found.unwrap_or_default()
    }

    /// Returns the code from `address` on, as much as fits into `window` and is readable: the
    /// module may be unloaded. Async-signal-safe.
    pub(crate) fn code_at<'a>(&self, address: u64, window: &'a mut [u8]) -> &'a [u8] {
        let copied = self.bytes_at(address);
        if copied.is_empty() {
            return own_memory::peek(address, window);
        }
        let length = copied.len().min(window.len());
        let (Some(into), Some(copied)) = (window.get_mut(..length), copied.get(..length)) else {
            return &[];
        };
        into.copy_from_slice(copied);
        into
    }

    /// Returns the size of its private memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        let copies = self.parts.iter().filter(|part| part.is_copy);
        copies.map(|part| part.len).sum::<usize>() + size_of_val(&*self.parts)
    }
}

/// A module of one scan of the linker's list. It has no pointers into the module, which may be
/// unloaded as soon as the linker's lock is released.
struct ListedModule {
    module: NativeModule,
    segments: Vec<LoadSegment>,
    /// Address (0 if there is none) and length of `.eh_frame_hdr`.
    eh_frame_hdr: (u64, u64),
    /// The program headers, and the first bytes of `.eh_frame_hdr`, to verify the file.
    headers: Vec<u8>,
    hdr_start: Vec<u8>,
    /// The readable segment that holds unwind tables, if a copy was requested.
    copy: Option<ModuleBytes>,
    vdso: bool,
}

/// A PT_LOAD.
#[derive(Clone)]
struct LoadSegment {
    avma: u64,
    file_offset: u64,
    file_len: u64,
}

/// The modules of the last scan.
pub(crate) struct Loaded {
    /// `dlpi_adds`, `dlpi_subs` of the last scan.
    counters: Option<(u64, u64)>,
    modules: Vec<NativeModule>,
    /// The main program's file.
    program: Option<PathBuf>,
}

/// New modules with their code, and unloaded modules.
type Changes = (Vec<(NativeModule, NativeCode)>, Vec<NativeModule>);

/// Maximum bytes that are copied of a module. A module with larger tables is listed without rules.
const COPY_LIMIT: u64 = 32 << 20;

impl Loaded {
    pub(crate) const fn new() -> Self {
        Self {
            counters: None,
            modules: Vec::new(),
            program: None,
        }
    }

    /// Compares the linker's list with the last scan.
    pub(crate) fn refresh(&mut self) -> Changes {
        let mut look = LinkerScan {
            known: self.counters,
            counters: None,
            seen: Vec::new(),
            unreadable: Vec::new(),
            copy: &|_| false,
        };
        look.run();
        if self.counters.is_some() && self.counters == look.counters {
            return (Vec::new(), Vec::new());
        }
        self.counters = look.counters;
        let mut seen = std::mem::take(&mut look.seen);
        let program = self.program.get_or_insert_with(|| {
            let link = PathBuf::from("/proc/self/exe");
            std::fs::read_link(&link).unwrap_or(link)
        });
        for seen in &mut seen {
            if seen.module.path.as_os_str().is_empty() {
                seen.module.path.clone_from(program);
            }
        }
        let gone = (self.modules.iter())
            .filter(|old| seen.iter().all(|new| new.module != **old))
            .filter(|old| !look.unreadable.contains(&old.bias))
            .cloned()
            .collect();
        let known = std::mem::take(&mut self.modules);
        // A module whose file was truncated is still loaded, and its frames keep its name.
        let unreadable = |old: &&NativeModule| look.unreadable.contains(&old.bias);
        self.modules = (seen.iter().map(|seen| &seen.module))
            .chain(known.iter().filter(unreadable))
            .cloned()
            .collect();
        let mut new = Vec::new();
        let mut without_file = HashMap::new();
        for seen in seen
            .into_iter()
            .filter(|seen| !known.contains(&seen.module))
        {
            match seen.code() {
                Some(code) => new.push((seen.module, code)),
                None => drop(without_file.insert(seen.module.range.start, seen.module)),
            }
        }
        if !without_file.is_empty() {
            // A second scan copies their tables under the linker's lock, so that only these modules
            // cost memory.
            let starts: Vec<u64> = without_file.keys().copied().collect();
            let copy = |start: u64| starts.contains(&start);
            let mut look = LinkerScan {
                known: None,
                counters: None,
                seen: Vec::new(),
                unreadable: Vec::new(),
                copy: &copy,
            };
            look.run();
            for seen in look.seen {
                // Same range and build id: it has not been replaced in between.
                if let Some(module) = without_file.remove(&seen.module.range.start)
                    && module.build_id == seen.module.build_id
                    && module.range == seen.module.range
                {
                    new.push((module, seen.copied()));
                }
            }
        }
        (new, gone)
    }
}

/// Scan of the linker's list by `dl_iterate_phdr`.
///
/// The linker holds a lock during the scan. A replaced allocator (a heap profiler) may wait for
/// that lock with its own lock held, so nothing is allocated until the linker's lock is released.
/// Modules are copied into room allocated before, and read afterwards. If the room was too small,
/// the scan is repeated with as much as was needed.
struct LinkerScan<'a> {
    /// If the counters are equal to these, nothing has changed.
    known: Option<(u64, u64)>,
    counters: Option<(u64, u64)>,
    seen: Vec<ListedModule>,
    /// Biases of modules that cannot be read, or have no code.
    unreadable: Vec<u64>,
    /// Whether to copy the module with this start of its range.
    copy: &'a dyn Fn(u64) -> bool,
}

/// Initial room, modules and bytes: a web server has some 80 modules of 1 KiB each.
const ROOM: (usize, usize) = (256, 256 << 10);
/// Maximum number of scans. Modules may be loaded meanwhile, but finally all must fit.
const MAX_SCANS: u32 = 8;

/// Copies of the modules, made under the linker's lock.
struct CopyRoom<'a> {
    known: Option<(u64, u64)>,
    counters: Option<(u64, u64)>,
    copy: &'a dyn Fn(u64) -> bool,
    modules: Vec<CopiedModule>,
    bytes: Vec<u8>,
    /// Number of modules, and bytes, that were needed.
    needed: (usize, usize),
}

/// A module under the linker's lock: positions of its parts in the room.
#[derive(Default)]
struct CopiedModule {
    bias: u64,
    is_unreadable: bool,
    name: Range<usize>,
    headers: Range<usize>,
    notes: [Range<usize>; MAX_NOTES],
    hdr_start: Range<usize>,
    /// Address and copy of the readable segment that holds the unwind tables, if it was requested.
    copy: (u64, Range<usize>),
}

/// Maximum number of note segments that are searched for a build id.
const MAX_NOTES: usize = 4;
/// Maximum length of a file name.
const MAX_NAME: usize = libc::PATH_MAX as usize;
/// Maximum length of notes that are read, bytes. A build id takes 36.
const MAX_NOTE: u64 = 4096;

impl CopyRoom<'_> {
    /// Copies `length` bytes at `address` into the room, or only counts them if the room is full.
    /// `None` if they cannot be read.
    ///
    /// # Safety
    /// `length` bytes are mapped there, though their file may have been truncated.
    unsafe fn take(&mut self, address: u64, length: usize) -> Option<Range<usize>> {
        self.needed.1 += length;
        let start = self.bytes.len();
        if self.bytes.capacity() - start < length {
            return Some(0..0);
        }
        // Within the capacity: nothing is allocated.
        self.bytes.resize(start + length, 0);
        let room = self.bytes.get_mut(start..)?;
        // SAFETY: the caller's promise.
        unsafe { own_memory::copy_into(address, room) }?;
        Some(start..start + length)
    }

    /// Copies the parts of a module; `None` if one cannot be read. Allocates nothing.
    ///
    /// # Safety
    /// `info` describes a module that stays mapped during the call.
    unsafe fn take_module(&mut self, info: &libc::dl_phdr_info) -> Option<CopiedModule> {
        let bias = info.dlpi_addr;
        if info.dlpi_phdr.is_null() {
            return None;
        }
        let mut raw = CopiedModule {
            bias,
            ..CopiedModule::default()
        };
        if !info.dlpi_name.is_null() {
            // SAFETY: a string that the linker keeps as long as the module.
            let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
            let length = name.len().min(MAX_NAME);
            // SAFETY: as above.
            raw.name = unsafe { self.take(name.as_ptr() as u64, length) }?;
        }
        let length = usize::from(info.dlpi_phnum) * size_of::<libc::Elf64_Phdr>();
        // SAFETY: the linker's own description of its program headers, which lie in the module.
        raw.headers = unsafe { self.take(info.dlpi_phdr as u64, length) }?;
        if raw.headers.is_empty() {
            return Some(raw);
        }
        let headers = raw.headers.clone();
        let header = |room: &Self, at: usize| header(room.bytes.get(headers.clone())?, at);
        let count = usize::from(info.dlpi_phnum);
        let (mut range_start, mut hdr) = (u64::MAX, None);
        let mut notes = 0..MAX_NOTES;
        for at in 0..count {
            let phdr = header(self, at)?;
            let start = bias.wrapping_add(phdr.p_vaddr);
            match phdr.p_type {
                libc::PT_LOAD => range_start = range_start.min(start),
                libc::PT_GNU_EH_FRAME => hdr = Some((start, phdr.p_memsz)),
                libc::PT_NOTE => {
                    if let Some(place) = notes.next().and_then(|at| raw.notes.get_mut(at)) {
                        let length = phdr.p_filesz.min(MAX_NOTE) as usize;
                        // SAFETY: a note segment lies in a loaded, readable segment.
                        *place = unsafe { self.take(start, length) }?;
                    }
                }
                _ => {}
            }
        }
        let Some((hdr, length)) = hdr else {
            return Some(raw);
        };
        // SAFETY: the linker reports that these bytes are the module's .eh_frame_hdr, loaded and
        // readable.
        raw.hdr_start = unsafe { self.take(hdr, length.min(4096) as usize) }?;
        if !(self.copy)(range_start) {
            return Some(raw);
        }
        // Unwind tables only: copies of code and data are not needed without a file.
        for at in 0..count {
            let phdr = header(self, at)?;
            let start = bias.wrapping_add(phdr.p_vaddr);
            let length = phdr.p_filesz.min(phdr.p_memsz);
            let is_wanted = phdr.p_type == libc::PT_LOAD
                && phdr.p_flags & libc::PF_R != 0
                && (start..start.saturating_add(length)).contains(&hdr)
                && length <= COPY_LIMIT;
            if is_wanted {
                // SAFETY: a loaded readable segment; the module stays mapped during this call.
                let copied = unsafe { self.take(start, length as usize) }?;
                raw.copy = (start, copied);
            }
        }
        Some(raw)
    }
}

/// Reads a program header. Any bytes are a valid one.
fn header(headers: &[u8], at: usize) -> Option<libc::Elf64_Phdr> {
    const SIZE: usize = size_of::<libc::Elf64_Phdr>();
    let bytes = headers.get(at * SIZE..at.checked_add(1)? * SIZE)?;
    // SAFETY: as many bytes as a header has, of which each combination is one.
    Some(unsafe { bytes.as_ptr().cast::<libc::Elf64_Phdr>().read_unaligned() })
}

impl LinkerScan<'_> {
    fn run(&mut self) {
        // In most cases nothing has changed, which needs no room.
        let (mut modules, mut bytes) = if self.known.is_some() { (0, 0) } else { ROOM };
        for _ in 0..MAX_SCANS {
            let mut room = CopyRoom {
                known: self.known,
                counters: None,
                copy: self.copy,
                modules: Vec::with_capacity(modules),
                bytes: Vec::with_capacity(bytes),
                needed: (0, 0),
            };
            // SAFETY: `each` fits the callback's type and does not unwind: it uses no code that
            // panics.
            unsafe { libc::dl_iterate_phdr(Some(each), std::ptr::from_mut(&mut room).cast()) };
            let is_whole = room.needed.0 <= modules && room.needed.1 <= bytes;
            // More than was needed, because others may be loaded meanwhile, and headers that did
            // not fit were not read.
            modules = ROOM.0.max(2 * room.needed.0.max(modules));
            bytes = ROOM.1.max(2 * room.needed.1.max(bytes));
            if is_whole {
                self.read(&room);
                return;
            }
        }
    }

    /// Describes the modules in the room. The linker's lock has been released.
    fn read(&mut self, room: &CopyRoom<'_>) {
        self.counters = room.counters;
        for raw in &room.modules {
            let seen = (!raw.is_unreadable).then(|| describe(raw, &room.bytes, self.copy));
            match seen.flatten() {
                Some(seen) => self.seen.push(seen),
                None => self.unreadable.push(raw.bias),
            }
        }
    }
}

/// Callback of `dl_iterate_phdr`: copies one module. Allocates nothing.
unsafe extern "C" fn each(
    info: *mut libc::dl_phdr_info,
    size: usize,
    room: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the linker gives a valid `info` of `size` bytes for the call; `room` is that of
    // `LinkerScan::run`, which nothing else uses meanwhile.
    let (info, room) = unsafe { (&*info, &mut *room.cast::<CopyRoom<'_>>()) };
    if size < size_of::<libc::dl_phdr_info>() {
        return 1;
    }
    let counters = (info.dlpi_adds, info.dlpi_subs);
    room.counters = Some(counters);
    if room.known == Some(counters) {
        return 1;
    }
    // SAFETY: the linker's lock is held during this call, so the module stays mapped.
    let raw = unsafe { room.take_module(info) };
    room.needed.0 += 1;
    if room.modules.len() < room.modules.capacity() {
        room.modules.push(raw.unwrap_or(CopiedModule {
            bias: info.dlpi_addr,
            is_unreadable: true,
            ..CopiedModule::default()
        }));
    }
    0
}

/// Describes a module from its copied parts; `None` if it has no code.
fn describe(raw: &CopiedModule, bytes: &[u8], copy: &dyn Fn(u64) -> bool) -> Option<ListedModule> {
    let bias = raw.bias;
    let headers = bytes.get(raw.headers.clone())?;
    let (mut range, mut code) = (None::<Range<u64>>, None::<Range<u64>>);
    let hull = |old: Option<Range<u64>>, new: Range<u64>| match old {
        Some(old) => Some(old.start.min(new.start)..old.end.max(new.end)),
        None => Some(new),
    };
    let mut segments = Vec::new();
    let mut eh_frame_hdr = (0, 0);
    let mut build_id = Vec::new();
    let mut notes = raw.notes.iter();
    for at in 0..headers.len() / size_of::<libc::Elf64_Phdr>() {
        let phdr = header(headers, at)?;
        let start = bias.wrapping_add(phdr.p_vaddr);
        let end = start.checked_add(phdr.p_memsz)?;
        match phdr.p_type {
            libc::PT_LOAD => {
                range = hull(range, start..end);
                if phdr.p_flags & libc::PF_X != 0 {
                    code = hull(code, start..end);
                }
                segments.push(LoadSegment {
                    avma: start,
                    file_offset: phdr.p_offset,
                    file_len: phdr.p_filesz.min(phdr.p_memsz),
                });
            }
            libc::PT_GNU_EH_FRAME => eh_frame_hdr = (start, phdr.p_filesz),
            libc::PT_NOTE => {
                let note = notes.next().and_then(|note| bytes.get(note.clone()));
                if let Some(note) = note.filter(|_| build_id.is_empty()) {
                    build_id = build_id_of(note, phdr.p_align).unwrap_or_default().to_vec();
                }
            }
            _ => {}
        }
    }
    let (range, code) = (range?, code?);
    let name = bytes.get(raw.name.clone()).unwrap_or_default();
    // The kernel's own: linux-vdso.so.1, a name without a file.
    let vdso = name.starts_with(b"linux-vdso") || name.starts_with(b"linux-gate");
    // The main program has no name here. The caller adds it.
    let path = match vdso {
        true => PathBuf::from("[vdso]"),
        false => PathBuf::from(OsStr::from_bytes(name)),
    };
    let copy = if copy(range.start) {
        let (avma, at) = &raw.copy;
        ModuleBytes::of(*avma, bytes.get(at.clone()).unwrap_or_default())
    } else {
        None
    };
    Some(ListedModule {
        module: NativeModule {
            path,
            bias,
            range,
            code,
            build_id,
        },
        segments,
        eh_frame_hdr,
        headers: headers.to_vec(),
        hdr_start: bytes
            .get(raw.hdr_start.clone())
            .unwrap_or_default()
            .to_vec(),
        copy,
        vdso,
    })
}

/// Returns the descriptor of the note NT_GNU_BUILD_ID.
fn build_id_of(mut notes: &[u8], align: u64) -> Option<&[u8]> {
    let align = if align == 8 { 8 } else { 4 };
    let word = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    loop {
        let (name_len, len, kind) = (word(notes, 0)?, word(notes, 4)?, word(notes, 8)?);
        let start = 12usize
            .checked_add(name_len)?
            .checked_next_multiple_of(align)?;
        let end = start.checked_add(len)?;
        if kind == 3 && notes.get(12..)?.starts_with(b"GNU\0") {
            return notes.get(start..end);
        }
        notes = notes.get(end.checked_next_multiple_of(align)?..)?;
    }
}

impl ListedModule {
    /// Returns the module's code with its tables from its file; `None` if the file is not the
    /// loaded one, or cannot be read.
    fn code(&self) -> Option<NativeCode> {
        let (hdr_at, hdr_len) = self.eh_frame_hdr;
        let parts = if self.vdso {
            // It has no file and is never unloaded.
            let part = |load: &LoadSegment| ModuleBytes {
                avma: load.avma,
                at: load.avma as *mut u8,
                len: load.file_len as usize,
                is_copy: false,
            };
            self.segments.iter().map(part).collect()
        } else {
            // Non-blocking, in case the path is not a regular file any more.
            let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
            let mut options = File::options();
            let file = options.read(true).custom_flags(flags);
            let file = file.open(&self.module.path).ok()?;
            // The program headers begin where e_phoff says (offset 32 of an ELF64 header).
            let mut phoff = [0; 8];
            file.read_exact_at(&mut phoff, 32).ok()?;
            let mut headers = vec![0; self.headers.len()];
            let phoff = u64::from_le_bytes(phoff);
            file.read_exact_at(&mut headers, phoff).ok()?;
            if headers != self.headers {
                return None;
            }
            match hdr_at {
                0 => Box::default(),
                _ => self.tables(&file, hdr_at..hdr_at.checked_add(hdr_len)?)?,
            }
        };
        Some(NativeCode {
            parts,
            eh_frame_hdr: hdr_at,
        })
    }

    /// Copies `.eh_frame_hdr`, which is at these addresses, and `.eh_frame`.
    fn tables(&self, file: &File, hdr: Range<u64>) -> Option<Box<[ModuleBytes]>> {
        let hdr = self.part(file, hdr)?;
        if !hdr.bytes().starts_with(&self.hdr_start) {
            return None;
        }
        let Some(frames) = frames(hdr.bytes(), hdr.avma) else {
            // A search table in a form that no linker writes, or an empty one.
            return Some(Box::new([hdr]));
        };
        // The last entry ends after its length field.
        let last = self.part(file, frames.end..frames.end.checked_add(4)?)?;
        let length = u32::from_le_bytes(last.bytes().try_into().ok()?);
        let end = frames.end.checked_add(4 + u64::from(length))?;
        Some(Box::new([hdr, self.part(file, frames.start..end)?]))
    }

    /// Copies the file's bytes for these addresses.
    fn part(&self, file: &File, range: Range<u64>) -> Option<ModuleBytes> {
        let len = range.end.checked_sub(range.start)?;
        let (into, load) = self.segments.iter().find_map(|load| {
            let into = range.start.checked_sub(load.avma)?;
            (into.checked_add(len)? <= load.file_len).then_some((into, load))
        })?;
        let offset = load.file_offset.checked_add(into)?;
        let len = usize::try_from(len).ok().filter(|_| len <= COPY_LIMIT)?;
        ModuleBytes::of_file(file, range.start, offset, len)
    }

    /// Returns the module's code with its tables copied from memory, or without tables.
    fn copied(self) -> NativeCode {
        NativeCode {
            parts: self.copy.into_iter().collect(),
            eh_frame_hdr: self.eh_frame_hdr.0,
        }
    }
}

/// Returns the used part of an `.eh_frame` with this `.eh_frame_hdr` at `at`: up to the *start* of
/// the last entry in the search table. `None` if the table is empty.
fn frames(hdr: &[u8], at: u64) -> Option<Range<u64>> {
    // The version, and encodings: of the address of `.eh_frame` (four bytes, signed, from their own
    // place), of the number of entries (four bytes), and of the table (signed four bytes relative
    // to the header). No linker writes others.
    let rest = hdr.strip_prefix(&[1, 0x1b, 0x03, 0x3b])?;
    let (words, _) = rest.as_chunks::<4>();
    let [eh_frame, count, table @ ..] = words else {
        return None;
    };
    let table = table.get(..(u32::from_le_bytes(*count) as usize).checked_mul(2)?)?;
    // Each entry: a function, and its place in `.eh_frame`.
    let entries = || {
        table
            .iter()
            .skip(1)
            .step_by(2)
            .map(|place| i32::from_le_bytes(*place))
    };
    let place = |entry: i32| at.checked_add_signed(entry.into());
    let (first, last) = (place(entries().min()?)?, place(entries().max()?)?);
    let eh_frame = place(4)?.checked_add_signed(i32::from_le_bytes(*eh_frame).into())?;
    Some(first.min(eh_frame)..last)
}

impl NativeCode {
    /// Makes a module of bytes at `avma` that begin with an `.eh_frame_hdr`. For tests and probes.
    pub(crate) fn of_bytes(bytes: &[u8], avma: u64) -> Self {
        Self {
            parts: ModuleBytes::of(avma, bytes).into_iter().collect(),
            eh_frame_hdr: avma,
        }
    }
}

/// Opens a module's file as if loaded at address 0; `None` if it is not for x86-64.
pub(crate) fn open(path: &Path) -> Option<(NativeModule, NativeCode)> {
    const X86_64: [u8; 2] = [62, 0];
    let file = std::fs::read(path).ok()?;
    let u64_at = |at: usize| Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?));
    // 64 bits, little-endian.
    if !file.starts_with(b"\x7fELF\x02\x01") || *file.get(18..)?.first_chunk()? != X86_64 {
        return None;
    }
    let phoff = usize::try_from(u64_at(32)?).ok()?;
    let count = usize::from(*file.get(56)?);
    let (mut parts, mut eh_frame_hdr, mut code) = (Vec::new(), 0, None::<Range<u64>>);
    for index in 0..count {
        let at = phoff.checked_add(index * 56)?;
        let kind_and_flags = u64_at(at)?;
        let (avma, len) = (u64_at(at + 16)?, u64_at(at + 32)?);
        match kind_and_flags as u32 {
            libc::PT_LOAD => {
                let range = avma..avma.checked_add(len)?;
                if (kind_and_flags >> 32) as u32 & libc::PF_X != 0 {
                    code = Some(code.map_or(range.clone(), |code| {
                        code.start.min(range.start)..code.end.max(range.end)
                    }));
                }
                let bytes = file.get(u64_at(at + 8)? as usize..)?;
                parts.extend(ModuleBytes::of(
                    avma,
                    bytes.get(..len as usize).unwrap_or(bytes),
                ));
            }
            libc::PT_GNU_EH_FRAME => eh_frame_hdr = avma,
            _ => {}
        }
    }
    let module = NativeModule {
        path: path.into(),
        bias: 0,
        range: 0..0,
        code: code?,
        build_id: Vec::new(),
    };
    let code = NativeCode {
        parts: parts.into(),
        eh_frame_hdr,
    };
    Some((module, code))
}
