//! Native modules: which are loaded, and where the bytes of their unwind tables are.
//!
//! It does not interpret the tables (`cfi`) and names no symbol. The invariant: a walk reads a
//! module's tables from a private read-only mapping of its *file*, or from a copy, never from
//! the loaded module itself: `dlclose` on one thread cannot pull them away under a walk on
//! another. Such a mapping costs address space and page cache, no private memory. A file can be cut
//! short: who reads a mapping asks [`NativeCode::is_cut_short`] a moment before, and the module
//! itself is read by the kernel.

use crate::own_memory;
use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A native module as the dynamic linker lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NativeModule {
    /// Its file; for the main program what `/proc/self/exe` names, for the vdso `[vdso]`.
    pub path: PathBuf,
    /// Address in the process − address in the file (base AVMA − base SVMA).
    pub bias: u64,
    /// The addresses that its segments cover, from the first to the last.
    pub range: Range<u64>,
    /// The addresses that its executable segments cover, from the first to the last.
    pub code: Range<u64>,
    /// The linker's build id; empty if it has none.
    pub build_id: Vec<u8>,
}

/// What [`CodeMap::refresh_native`](crate::CodeMap::refresh_native) found.
#[derive(Debug)]
pub enum ModuleChange<'a> {
    /// It is new. Answer with the word that [`Region::user`](crate::Region) shall hold.
    Loaded {
        /// The module.
        module: &'a NativeModule,
    },
    /// It is gone. The answer does not matter.
    Unloaded {
        /// The module.
        module: &'a NativeModule,
    },
}

/// Bytes that stay readable until dropped.
enum Bytes {
    /// A mapping of a file: address and length, for `munmap`.
    Mapped(*const u8, usize),
    /// The loaded module itself; only for the vdso, which is never unloaded.
    Loaded(*const u8, usize),
    Copied(Box<[u8]>),
}

// SAFETY: read-only memory with no thread affinity.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            // SAFETY: mapped by `map_file` for `len` bytes, unmapped by `drop` alone.
            Bytes::Mapped(at, len) => unsafe { std::slice::from_raw_parts(*at, *len) },
            // SAFETY: `describe` took them from the vdso's readable segment.
            Bytes::Loaded(at, len) => unsafe { std::slice::from_raw_parts(*at, *len) },
            Bytes::Copied(bytes) => bytes,
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Bytes::Mapped(at, len) = self {
            // SAFETY: this mapping is ours and nobody else has it.
            unsafe { libc::munmap(at.cast_mut().cast(), *len) };
        }
    }
}

/// Part of a module's address range whose bytes we have.
struct Segment {
    /// Where the loaded module has it.
    avma: u64,
    len: u64,
    /// Where in `Bytes` it begins.
    offset: usize,
}

/// Where a module's code and unwind tables can be read.
pub(crate) struct NativeCode {
    bytes: Bytes,
    segments: Box<[Segment]>,
    /// Address of `.eh_frame_hdr`, 0 if it has none.
    pub(crate) eh_frame_hdr: u64,
}

impl NativeCode {
    /// Whether its file is shorter than it was, so that parts of it cannot be read.
    /// Async-signal-safe.
    pub(crate) fn is_cut_short(&self) -> bool {
        match &self.bytes {
            Bytes::Mapped(at, len) => {
                let end = |segment: &Segment| (segment.offset as u64).saturating_add(segment.len);
                let end = self.segments.iter().map(end).max().unwrap_or(0);
                let first = *at as u64;
                end > *len as u64
                    || own_memory::is_one_missing(first, first + end.saturating_sub(1))
            }
            Bytes::Loaded(..) | Bytes::Copied(_) => false,
        }
    }

    /// The bytes from `avma` to the end of its segment, as the file has them. Empty where there
    /// are none. Async-signal-safe.
    pub(crate) fn bytes_at(&self, avma: u64) -> &[u8] {
        let all = self.bytes.get();
        let found = self.segments.iter().find_map(|segment| {
            let into = avma.checked_sub(segment.avma)?;
            if into >= segment.len {
                return None;
            }
            let start = segment.offset.checked_add(into as usize)?;
            let end = segment.offset.checked_add(segment.len as usize)?;
            all.get(start..end.min(all.len()))
        });
        found.unwrap_or_default()
    }

    /// Asks the kernel to bring the unwind tables into the page cache and to map them, so that the
    /// handler does not wait for a disk and takes no page fault. Nothing else of a program touches them before it throws.
    fn read_ahead(&self) {
        const PAGE: usize = 4096;
        let tables = self.bytes_at(self.eh_frame_hdr);
        let start = tables.as_ptr() as usize & !(PAGE - 1);
        let len = (tables.as_ptr() as usize - start) + tables.len();
        if matches!(self.bytes, Bytes::Mapped(..)) && !tables.is_empty() {
            // A page that is not mapped yet costs the handler a fault, which takes longer than the
            // frame that it is for. Kernels before 5.14 do not know the first advice. Neither
            // faults where the file has been cut short.
            for advice in [libc::MADV_POPULATE_READ, libc::MADV_WILLNEED] {
                // SAFETY: whole pages of our own mapping; the advice changes no memory. What it
                // answers does not matter.
                if unsafe { libc::madvise(start as *mut libc::c_void, len, advice) } == 0 {
                    break;
                }
            }
        }
    }

    /// Private memory behind it.
    pub(crate) fn bytes(&self) -> usize {
        let copied = match &self.bytes {
            Bytes::Copied(bytes) => bytes.len(),
            Bytes::Mapped(..) | Bytes::Loaded(..) => 0,
        };
        copied + size_of_val(&*self.segments)
    }
}

/// What one look at the linker's list says of a module. Owned: nothing in it points into the
/// module, which may be gone as soon as the linker's lock is released.
struct Seen {
    module: NativeModule,
    segments: Vec<Load>,
    eh_frame_hdr: u64,
    /// The program headers, and the first bytes of `.eh_frame_hdr`: the file must have the same.
    headers: Vec<u8>,
    hdr_start: Vec<u8>,
    /// The readable segments that hold unwind tables, if a copy was asked for.
    copy: Option<(Box<[u8]>, Vec<Segment>)>,
    vdso: bool,
}

/// A PT_LOAD.
#[derive(Clone)]
struct Load {
    avma: u64,
    file_offset: u64,
    file_len: u64,
}

/// The modules that the last look found.
pub(crate) struct Loaded {
    /// `dlpi_adds`, `dlpi_subs` of the last look.
    counters: Option<(u64, u64)>,
    modules: Vec<NativeModule>,
    /// The main program's file.
    program: Option<PathBuf>,
}

/// Modules with their code, and modules that are gone.
type Changes = (Vec<(NativeModule, NativeCode)>, Vec<NativeModule>);

/// At most this much is copied of a module whose file cannot be read.
const COPY_LIMIT: u64 = 32 << 20;

impl Loaded {
    pub(crate) const fn new() -> Self {
        Self {
            counters: None,
            modules: Vec::new(),
            program: None,
        }
    }

    /// Compares the linker's list with the last one.
    pub(crate) fn refresh(&mut self) -> Changes {
        let mut look = Look {
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
        // One whose file has been cut short is where it was: its frames have its name.
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
            // Their tables are copied under the linker's lock, in a second look, so that only
            // these modules cost memory.
            let starts: Vec<u64> = without_file.keys().copied().collect();
            let copy = |start: u64| starts.contains(&start);
            let mut look = Look {
                known: None,
                counters: None,
                seen: Vec::new(),
                unreadable: Vec::new(),
                copy: &copy,
            };
            look.run();
            for seen in look.seen {
                // The same range with the same build: it has not been replaced in between.
                if let Some(module) = without_file.remove(&seen.module.range.start)
                    && module.build_id == seen.module.build_id
                    && module.range == seen.module.range
                    && let Some(code) = seen.copied()
                {
                    new.push((module, code));
                }
            }
        }
        (new, gone)
    }
}

/// Looks at the linker's list by `dl_iterate_phdr`.
///
/// The linker holds a lock meanwhile, and whoever replaces the program's allocator (a heap profiler) may wait
/// for that lock with a lock of its own held: so nothing is allocated until the lock is released. Modules are
/// copied into room that was there before, and read afterwards; where the room did not suffice, once more
/// into as much as was needed.
struct Look<'a> {
    /// With these counters there is nothing to see.
    known: Option<(u64, u64)>,
    counters: Option<(u64, u64)>,
    seen: Vec<Seen>,
    /// The biases of modules that cannot be read, or have no code.
    unreadable: Vec<u64>,
    /// Which modules, by the start of their range, are to be copied.
    copy: &'a dyn Fn(u64) -> bool,
}

/// Room for so many modules and bytes at first: a web server has some 80 modules of 1 KiB each.
const ROOM: (usize, usize) = (256, 256 << 10);
/// Modules come while we look: in the end they must fit.
const MOST_LOOKS: u32 = 8;

/// What is copied of the modules under the linker's lock.
struct Room<'a> {
    known: Option<(u64, u64)>,
    counters: Option<(u64, u64)>,
    copy: &'a dyn Fn(u64) -> bool,
    modules: Vec<Raw>,
    bytes: Vec<u8>,
    /// Modules and bytes that there are.
    needed: (usize, usize),
}

/// A module under the linker's lock: where in the room its parts are.
#[derive(Default)]
struct Raw {
    bias: u64,
    is_unreadable: bool,
    name: Range<usize>,
    headers: Range<usize>,
    notes: [Range<usize>; MOST_NOTES],
    hdr_start: Range<usize>,
    /// The readable segment that holds the unwind tables and its address, if it was to be copied.
    copy: (u64, Range<usize>),
}

/// Segments with notes that are looked at for a build id.
const MOST_NOTES: usize = 4;
/// Longest name of a file.
const MOST_NAME: usize = libc::PATH_MAX as usize;
/// Most bytes of notes: a build id takes 36.
const MOST_NOTE: u64 = 4096;

impl Room<'_> {
    /// Copies so many bytes at an address into the room. Counts them where there is none. `None`: they cannot be
    /// read.
    ///
    /// # Safety
    /// So many bytes are mapped there, though their file may have been cut short.
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

    /// Copies the parts of a module; `None` where one cannot be read. Allocates nothing.
    ///
    /// # Safety
    /// `info` describes a module that stays mapped during the call.
    unsafe fn take_module(&mut self, info: &libc::dl_phdr_info) -> Option<Raw> {
        let bias = info.dlpi_addr;
        if info.dlpi_phdr.is_null() {
            return None;
        }
        let mut raw = Raw {
            bias,
            ..Raw::default()
        };
        if !info.dlpi_name.is_null() {
            // SAFETY: a string that the linker keeps as long as the module.
            let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
            let length = name.len().min(MOST_NAME);
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
        let mut notes = 0..MOST_NOTES;
        for at in 0..count {
            let phdr = header(self, at)?;
            let start = bias.wrapping_add(phdr.p_vaddr);
            match phdr.p_type {
                libc::PT_LOAD => range_start = range_start.min(start),
                libc::PT_GNU_EH_FRAME => hdr = Some((start, phdr.p_memsz)),
                libc::PT_NOTE => {
                    if let Some(place) = notes.next().and_then(|at| raw.notes.get_mut(at)) {
                        let length = phdr.p_filesz.min(MOST_NOTE) as usize;
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
        // SAFETY: the linker says that these bytes are the module's .eh_frame_hdr, loaded and readable.
        raw.hdr_start = unsafe { self.take(hdr, length.min(4096) as usize) }?;
        if !(self.copy)(range_start) {
            return Some(raw);
        }
        // Unwind tables only: code and data of the module are of no use without a file.
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

/// A program header; any bytes are one.
fn header(headers: &[u8], at: usize) -> Option<libc::Elf64_Phdr> {
    const SIZE: usize = size_of::<libc::Elf64_Phdr>();
    let bytes = headers.get(at * SIZE..at.checked_add(1)? * SIZE)?;
    // SAFETY: as many bytes as a header has, of which each combination is one.
    Some(unsafe { bytes.as_ptr().cast::<libc::Elf64_Phdr>().read_unaligned() })
}

impl Look<'_> {
    fn run(&mut self) {
        // Mostly nothing has changed, which needs no room.
        let (mut modules, mut bytes) = if self.known.is_some() { (0, 0) } else { ROOM };
        for _ in 0..MOST_LOOKS {
            let mut room = Room {
                known: self.known,
                counters: None,
                copy: self.copy,
                modules: Vec::with_capacity(modules),
                bytes: Vec::with_capacity(bytes),
                needed: (0, 0),
            };
            // SAFETY: `each` fits the callback's type and does not unwind: it uses no code that panics.
            unsafe { libc::dl_iterate_phdr(Some(each), std::ptr::from_mut(&mut room).cast()) };
            let is_whole = room.needed.0 <= modules && room.needed.1 <= bytes;
            // More than was needed: others may come meanwhile, and headers that did not fit were not read.
            modules = ROOM.0.max(2 * room.needed.0.max(modules));
            bytes = ROOM.1.max(2 * room.needed.1.max(bytes));
            if is_whole {
                self.read(&room);
                return;
            }
        }
    }

    /// Describes the modules in the room. The linker's lock is released.
    fn read(&mut self, room: &Room<'_>) {
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

/// The callback of `dl_iterate_phdr`: takes one module. Allocates nothing.
unsafe extern "C" fn each(
    info: *mut libc::dl_phdr_info,
    size: usize,
    room: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the linker gives a valid `info` of `size` bytes for the call; `room` is that of
    // `Look::run`, used by nobody else meanwhile.
    let (info, room) = unsafe { (&*info, &mut *room.cast::<Room<'_>>()) };
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
        room.modules.push(raw.unwrap_or(Raw {
            bias: info.dlpi_addr,
            is_unreadable: true,
            ..Raw::default()
        }));
    }
    0
}

/// What a module's copied parts say of it; `None` where it has no code.
fn describe(raw: &Raw, bytes: &[u8], copy: &dyn Fn(u64) -> bool) -> Option<Seen> {
    let bias = raw.bias;
    let headers = bytes.get(raw.headers.clone())?;
    let (mut range, mut code) = (None::<Range<u64>>, None::<Range<u64>>);
    let hull = |old: Option<Range<u64>>, new: Range<u64>| match old {
        Some(old) => Some(old.start.min(new.start)..old.end.max(new.end)),
        None => Some(new),
    };
    let mut segments = Vec::new();
    let mut eh_frame_hdr = 0;
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
                segments.push(Load {
                    avma: start,
                    file_offset: phdr.p_offset,
                    file_len: phdr.p_filesz.min(phdr.p_memsz),
                });
            }
            libc::PT_GNU_EH_FRAME => eh_frame_hdr = start,
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
    // The main program has no name here, and gets it from its caller.
    let path = match vdso {
        true => PathBuf::from("[vdso]"),
        false => PathBuf::from(OsStr::from_bytes(name)),
    };
    let copy = copy(range.start).then(|| {
        let (avma, at) = &raw.copy;
        let copied = bytes.get(at.clone()).unwrap_or_default();
        let segment = Segment {
            avma: *avma,
            len: copied.len() as u64,
            offset: 0,
        };
        (copied.into(), vec![segment])
    });
    Some(Seen {
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

/// The descriptor of the note NT_GNU_BUILD_ID.
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

impl Seen {
    /// The module's code with its tables, from its file; `None` if the file is not the one that
    /// was loaded, or cannot be read.
    fn code(&self) -> Option<NativeCode> {
        if self.vdso {
            // It has no file and never goes away.
            let segments: Box<[Segment]> = (self.segments.iter())
                .map(|load| Segment {
                    avma: load.avma,
                    len: load.file_len,
                    offset: (load.avma - self.module.range.start) as usize,
                })
                .collect();
            let len = self.module.range.end - self.module.range.start;
            let bytes = Bytes::Loaded(self.module.range.start as *const u8, len as usize);
            return Some(NativeCode {
                bytes,
                segments,
                eh_frame_hdr: self.eh_frame_hdr,
            });
        }
        let segments: Box<[Segment]> = (self.segments.iter())
            .map(|load| Segment {
                avma: load.avma,
                len: load.file_len,
                offset: load.file_offset as usize,
            })
            .collect();
        let code = NativeCode {
            bytes: map_file(&self.module.path)?,
            segments,
            eh_frame_hdr: self.eh_frame_hdr,
        };
        if code.is_cut_short() {
            return None;
        }
        let file = code.bytes.get();
        // The program headers begin where e_phoff says (offset 32 of an ELF64 header).
        let phoff = u64::from_le_bytes(file.get(32..40)?.try_into().ok()?) as usize;
        if !file.get(phoff..)?.starts_with(&self.headers) {
            return None;
        }
        let same = self.eh_frame_hdr == 0
            || code
                .bytes_at(self.eh_frame_hdr)
                .starts_with(&self.hdr_start);
        if same {
            code.read_ahead();
        }
        same.then_some(code)
    }

    /// The module's code with a copy of its tables.
    fn copied(self: &Seen) -> Option<NativeCode> {
        let (bytes, parts) = self.copy.as_ref()?;
        let segments = (parts.iter())
            .map(|part| Segment {
                avma: part.avma,
                len: part.len,
                offset: part.offset,
            })
            .collect();
        let bytes = Bytes::Copied(bytes.clone());
        Some(NativeCode {
            bytes,
            segments,
            eh_frame_hdr: self.eh_frame_hdr,
        })
    }
}

/// Maps a whole file read-only. Pages come in as they are touched.
fn map_file(path: &Path) -> Option<Bytes> {
    // Non-blocking, in case something else than a file is there by now.
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .ok()?;
    let len = usize::try_from(file.metadata().ok()?.len())
        .ok()
        .filter(|len| *len > 0)?;
    // SAFETY: a new private read-only mapping at a place of the kernel's choice.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    (at != libc::MAP_FAILED).then(|| Bytes::Mapped(at.cast_const().cast(), len))
}

impl NativeCode {
    /// Bytes at `avma` that begin with an `.eh_frame_hdr`. For tests and probes.
    pub(crate) fn of_bytes(bytes: Vec<u8>, avma: u64) -> Self {
        let segment = Segment {
            avma,
            len: bytes.len() as u64,
            offset: 0,
        };
        Self {
            bytes: Bytes::Copied(bytes.into()),
            segments: Box::new([segment]),
            eh_frame_hdr: avma,
        }
    }
}

/// A module's file, as if it were loaded at address 0; `None` if it is none for x86-64.
pub(crate) fn open(path: &Path) -> Option<(NativeModule, NativeCode)> {
    const X86_64: [u8; 2] = [62, 0];
    let bytes = map_file(path)?;
    let file = bytes.get();
    let u64_at = |at: usize| Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?));
    // 64 bits, little end first.
    if !file.starts_with(b"\x7fELF\x02\x01") || *file.get(18..)?.first_chunk()? != X86_64 {
        return None;
    }
    let phoff = usize::try_from(u64_at(32)?).ok()?;
    let count = usize::from(*file.get(56)?);
    let (mut segments, mut eh_frame_hdr, mut code) = (Vec::new(), 0, None::<Range<u64>>);
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
                segments.push(Segment {
                    avma,
                    len,
                    offset: u64_at(at + 8)? as usize,
                });
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
        bytes,
        segments: segments.into(),
        eh_frame_hdr,
    };
    Some((module, code))
}
