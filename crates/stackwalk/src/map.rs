//! The code map: maps an address to its code and unwind rules; read in the signal handler.
//!
//! The agent adds and removes code; walks look it up. The map owns the rule cache
//! ([`crate::cache`]). It has no names: `user` is a word of the caller for each region. Invariant:
//! data that a walk can reach was published whole and is freed only after a grace period. Writers
//! serialise on one mutex that walks never take.
//!
//! Modules and JIT bodies have separate structures. Modules are few and large: they are in one
//! sorted array, which each change replaces. JIT bodies are many and small, and are added and
//! removed all the time. They are in buckets, one for each chunk of 16 KiB of address space, in
//! which a body is one word that is stored or cleared.

use crate::cache::{ADDRESS_LIMIT, RuleCache};
use crate::grace::{Grace, WalkGuard};
use crate::heaps::{CodeHeaps, HeapCode, UnreportedCode};
use crate::native::{Loaded, ModuleChange, NativeCode};
use crate::rule::Rule;
use crate::unwind_info::Saved;
use crate::{cfi, debug_info, jit, pe};
use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

mod bodies;
mod bucket;
mod entries;
mod modules;
mod table;

use bucket::Bucket;
use entries::Entries;
use modules::{ModulePlace, Modules};
use table::{ChunkSlot, Table};

/// Chunks of 16 KiB hold some dozens of methods. An offset in a chunk has at most 16 bits
/// ([`Bucket`]).
const CHUNK_SHIFT: u32 = 14;
/// Lowest address of code: the kernel maps nothing below (`vm.mmap_min_addr`).
const FIRST_ADDRESS: u64 = 1 << 16;

/// Kind of the code at an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CodeKind {
    /// An ELF module's code.
    Native = 0,
    /// A body of code that a JIT made.
    Jit = 1,
    /// A ReadyToRun image's code.
    ReadyToRun = 2,
}

/// The result of [`CodeMap::lookup`] for an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Kind of code.
    pub kind: CodeKind,
    /// First address.
    pub start: u64,
    /// First address after the code.
    pub end: u64,
    /// The caller's word, given when the code was added.
    pub user: u64,
}

/// Memory use of a [`CodeMap`], for the recording's statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// JIT bodies in the map.
    pub jit_bodies: usize,
    /// Modules and images in the map.
    pub modules: usize,
    /// Bytes of private memory, with the fixed part and without mapped files.
    pub bytes: usize,
    /// Bytes thereof that are freed when running walks have ended.
    pub retired_bytes: usize,
}

/// Location of code and its unwind rules. Modules are few and boxed, so they do not enlarge the
/// other variants.
pub(crate) enum RegionCode {
    Jit(jit::Body),
    ReadyToRun(Box<pe::Image>),
    Native(Range<u64>, Box<NativeCode>),
}

impl RegionCode {
    fn kind(&self) -> CodeKind {
        match self {
            RegionCode::Jit(_) => CodeKind::Jit,
            RegionCode::ReadyToRun(_) => CodeKind::ReadyToRun,
            RegionCode::Native(..) => CodeKind::Native,
        }
    }

    /// Returns the code's addresses.
    pub(crate) fn range(&self) -> Range<u64> {
        match self {
            RegionCode::Jit(body) => body.start()..body.end(),
            RegionCode::ReadyToRun(image) => image.code(),
            RegionCode::Native(range, _) => range.clone(),
        }
    }

    /// Returns the rule for the instruction at `lookup`; `Ok(None)` if there is none. With `exact`
    /// the instruction has not run yet. Async-signal-safe.
    pub(crate) fn rule(
        &self,
        lookup: u64,
        exact: bool,
        state: &mut cfi::RowProgram,
    ) -> Result<Option<Rule>, cfi::Unsupported> {
        match self {
            RegionCode::Native(_, code) => cfi::rule(code, lookup, exact, state),
            RegionCode::Jit(body) => Ok(body.rule(lookup, exact)),
            RegionCode::ReadyToRun(image) => Ok(image.rule(lookup, exact)),
        }
    }
}

impl RegionCode {
    /// Whether parts of the code or its tables cannot be read any more because their file was
    /// truncated. Check this before reading them. Async-signal-safe.
    pub(crate) fn is_cut_short(&self) -> bool {
        match self {
            // In the runtime's own memory, and in copies.
            RegionCode::Jit(_) | RegionCode::Native(..) => false,
            RegionCode::ReadyToRun(image) => image.is_cut_short(),
        }
    }
}

/// A region with its unwind information, immutable once published except for `walked`. It is one
/// cache line, because it is created while a compiled method waits to run, and walks look it up
/// among thousands of others.
#[repr(align(64))]
pub(crate) struct MapEntry {
    pub(crate) code: RegionCode,
    /// The caller's word.
    user: u64,
    /// Whether a walk looked up a rule here. Some rules may then be cached; see
    /// [`CodeMap::keep_rule`].
    walked: AtomicBool,
    /// Block of [`Entries`] that contains the entry of JITted code.
    block: u32,
}

const _: () = assert!(size_of::<MapEntry>() == 64);

impl MapEntry {
    fn new(code: RegionCode, user: u64) -> Self {
        Self {
            code,
            user,
            walked: AtomicBool::new(false),
            block: 0,
        }
    }

    /// Returns the result of a look-up. Async-signal-safe.
    fn region(&self) -> Region {
        let Range { start, end } = self.code.range();
        Region {
            kind: self.code.kind(),
            start,
            end,
            user: self.user,
        }
    }

    /// Marks that a walk looked up a rule here. Async-signal-safe.
    pub(crate) fn mark_walked(&self) {
        // Rarely the first time, so the cache line can stay shared between processors.
        if !self.walked.load(Ordering::Relaxed) {
            self.walked.store(true, Ordering::Relaxed);
        }
    }
}

/// The body that [`CodeMap::take_jit_body`] removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakenBody {
    /// Its addresses and the caller's word.
    pub region: Region,
    /// Whether a walk found it: its addresses may be in stacks that have not been read yet.
    pub was_walked: bool,
}

/// Memory to free when no walk can hold it any more.
pub(crate) enum RetiredMemory {
    /// A JITted body, freed by [`Entries`].
    Jit(OwnedEntry),
    /// The entry of a module, a bucket, a table, or a list of modules, freed by dropping it.
    Other(Box<dyn Any + Send>),
}

/// An entry that is not published any more.
pub(crate) struct OwnedEntry(*const MapEntry);

// SAFETY: only its holder may free the entry, and an entry is `Send` (checked in `entries`).
unsafe impl Send for OwnedEntry {}

/// State that only writers use.
struct MapWriter {
    /// Number of used chunks in the current table.
    taken: usize,
    memory: Memory,
    /// Storage of JIT entries.
    entries: Entries,
}

impl MapWriter {
    /// Frees a JIT entry that no walk can hold any more.
    fn free(&mut self, OwnedEntry(entry): OwnedEntry) {
        // SAFETY: `drop_entry` made it of an entry that `add_jit_body` had of `entries` and that is
        // published nowhere, once; a grace period has passed, so no walk has it.
        unsafe { self.entries.free(entry) };
    }
}

/// Maps addresses to code and its unwind rules, for any number of threads. `const`-constructible,
/// so it can be a `static` (about 160 KiB, zero at start).
///
/// Methods that change it take a mutex and allocate: never call them in a signal handler.
/// [`walk`](crate::walk()) and [`CodeMap::lookup`] may run at any time, also in handlers.
pub struct CodeMap {
    pub(crate) rules: RuleCache,
    pub(crate) grace: Grace<RetiredMemory>,
    /// Incremented whenever code is removed; see [`CodeMap::keep_rule`].
    epoch: AtomicU64,
    chunks: AtomicPtr<Table>,
    modules: AtomicPtr<Modules>,
    /// Where code that is not in the map is searched.
    pub(crate) unreported: UnreportedCode,
    writer: Mutex<MapWriter>,
    /// Taken before `writer`, and never by a walk.
    loaded: Mutex<Loaded>,
}

impl Default for CodeMap {
    fn default() -> Self {
        Self::new()
    }
}

impl CodeMap {
    /// Creates an empty map.
    pub const fn new() -> Self {
        Self {
            rules: RuleCache::new(),
            grace: Grace::new(),
            epoch: AtomicU64::new(0),
            chunks: AtomicPtr::new(std::ptr::null_mut()),
            modules: AtomicPtr::new(std::ptr::null_mut()),
            unreported: UnreportedCode::new(),
            writer: Mutex::new(MapWriter {
                taken: 0,
                memory: Memory {
                    jit_bodies: 0,
                    modules: 0,
                    bytes: 0,
                    retired_bytes: 0,
                },
                entries: Entries::new(),
            }),
            loaded: Mutex::new(Loaded::new()),
        }
    }

    /// Adds a JIT body, visible to walks at once. `user` is the caller's word for it.
    ///
    /// Bodies at the same addresses are removed first (the code heap was reused without a
    /// callback). Returns false, and adds nothing, for a range that cannot be code (empty, or
    /// outside user space).
    pub fn add_jit_body(&self, body: jit::Body, user: u64) -> bool {
        self.replace_jit_bodies(body, user).is_some()
    }

    /// As [`CodeMap::add_jit_body`]. Returns the number of replaced bodies, or `None` if nothing
    /// was added.
    pub fn replace_jit_bodies(&self, body: jit::Body, user: u64) -> Option<usize> {
        let range = body.start()..body.end();
        if !is_sound(&range) {
            return None;
        }
        let mut writer = self.lock();
        let replaced = self.remove_jit_overlapping(&mut writer, &range);
        let bytes = body.bytes() + size_of::<MapEntry>();
        let entry = writer
            .entries
            .add(MapEntry::new(RegionCode::Jit(body), user));
        for chunk in chunks_of(&range) {
            self.publish(&mut writer, chunk, &range, entry);
        }
        writer.memory.jit_bodies += 1;
        writer.memory.bytes += bytes;
        // The callback of its unload finds it here from now on.
        self.unreported.learned(range.start);
        Some(replaced)
    }

    /// Adds a ReadyToRun image. `user` is the caller's word for it. Returns false, and adds
    /// nothing, if its addresses are in use.
    pub fn add_r2r(&self, image: pe::Image, user: u64) -> bool {
        let code = RegionCode::ReadyToRun(Box::new(image));
        self.add_module(&mut self.lock(), MapEntry::new(code, user))
    }

    /// Removes the JIT body or the image that starts at `start`. Data that walks can still see is
    /// freed later. The code itself must stay readable until [`CodeMap::quiesce`] returns true.
    /// Returns whether there was one.
    pub fn remove(&self, start: u64) -> bool {
        match self.lookup(start) {
            Some(region) if region.start == start && region.kind != CodeKind::Native => {
                self.remove_range(start..region.end) > 0
            }
            _ => false,
        }
    }

    /// Removes all JIT bodies and ReadyToRun images that have an address in `range`. Returns their
    /// number. See [`CodeMap::remove`].
    pub fn remove_range(&self, range: Range<u64>) -> usize {
        let mut writer = self.lock();
        let bodies = self.remove_jit_overlapping(&mut writer, &range);
        let images = self.remove_modules(&mut writer, |code| {
            code.kind() != CodeKind::Native && overlap(&code.range(), &range)
        });
        bodies + images
    }

    /// Updates the list of native modules from the dynamic linker's.
    ///
    /// Calls `on_change` for each unloaded module (its return value is ignored), then for each new
    /// one, whose return value becomes that module's `user`. `on_change` may use the map, but not
    /// call this method. Cheap if the linker's counters of loads and unloads have not changed.
    /// Takes the dynamic linker's lock: not for signal handlers, nor for a constructor of a library
    /// that is being loaded.
    ///
    /// Returns the number of loaded and unloaded modules.
    pub fn refresh_native(&self, on_change: &mut dyn FnMut(ModuleChange<'_>) -> u64) -> usize {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let (new, gone) = loaded.refresh();
        let changes = new.len() + gone.len();
        for module in gone {
            self.remove_modules(&mut self.lock(), |code| {
                code.kind() == CodeKind::Native && code.range().start == module.code.start
            });
            on_change(ModuleChange::Unloaded { module: &module });
        }
        for (module, code) in new {
            let user = on_change(ModuleChange::Loaded { module: &module });
            let code = RegionCode::Native(module.code.clone(), Box::new(code));
            self.add_module(&mut self.lock(), MapEntry::new(code, user));
        }
        changes
    }

    /// Removes all native modules and their tables from memory. The next
    /// [`CodeMap::refresh_native`] adds them again.
    pub fn forget_native(&self) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        *loaded = Loaded::new();
        self.remove_modules(&mut self.lock(), |code| code.kind() == CodeKind::Native);
        drop(loaded);
        self.quiesce(64);
    }

    /// Adds the heaps of a runtime, in which walks search unreported code from now on. Returns
    /// false if there are too many runtimes.
    pub fn add_heaps(&self, heaps: CodeHeaps) -> bool {
        self.unreported.add(heaps)
    }

    /// Returns the body at an address from its runtime's own records ([`CodeMap::add_heaps`]).
    /// Async-signal-safe.
    pub fn unreported_code(&self, address: u64) -> Option<HeapCode> {
        self.unreported.code_at(address)
    }

    /// Removes the mark of a body that was never added to the map. Returns whether a walk may have
    /// found it in its runtime's heap, so that its addresses may be in stacks that have not been
    /// read yet.
    pub fn take_unreported(&self, start: u64) -> bool {
        let was_walked = self.unreported.was_walked(start);
        self.unreported.learned(start);
        was_walked
    }

    /// Forgets bodies that walks found before the last call; see [`CodeMap::take_unreported`]. Call
    /// it between two rounds (complete readings of all samples).
    pub fn age_unreported(&self) {
        self.unreported.age();
    }

    /// Returns the code that contains `address`. Async-signal-safe.
    pub fn lookup(&self, address: u64) -> Option<Region> {
        let reader = self.grace.enter();
        self.find(&reader, address).map(MapEntry::region)
    }

    /// Returns the JITted body that begins at `start`, or else the module that contains `start`.
    /// For an address that the runtime reports as the start of a body. Cheaper than
    /// [`CodeMap::lookup`] if the body is unknown. Async-signal-safe.
    pub fn at_start(&self, start: u64) -> Option<Region> {
        let reader = self.grace.enter();
        if let Some((chunk, bucket)) = self.bucket(&reader, start) {
            let (entry, is_page_theirs) = bucket.from(offset_in(chunk, start));
            // SAFETY: as in `find`.
            let region = entry.map(|entry| unsafe { (*entry).region() });
            if let Some(region) = region.filter(|region| region.start == start) {
                return Some(region);
            }
            // No page holds both JITted code and a module's.
            if is_page_theirs {
                return None;
            }
        }
        self.module(&reader, start).map(MapEntry::region)
    }

    /// Whether `address` is in a JITted body for which [`jit::Body::begins_on_a_frame`] holds.
    pub fn begins_on_a_frame(&self, address: u64) -> bool {
        let reader = self.grace.enter();
        let entry = self.find(&reader, address);
        entry.is_some_and(
            |entry| matches!(&entry.code, RegionCode::Jit(body) if body.begins_on_a_frame()),
        )
    }

    /// Returns the start of the ReadyToRun function (or funclet) that contains `address`.
    /// Async-signal-safe.
    pub fn r2r_function_start(&self, address: u64) -> Option<u64> {
        let reader = self.grace.enter();
        match &self.find(&reader, address)?.code {
            RegionCode::ReadyToRun(image) if !image.is_cut_short() => image.function_start(address),
            _ => None,
        }
    }

    /// Returns the IL map of the ReadyToRun method whose code starts at `start`:
    /// [`pe::Image::il_map`].
    ///
    /// # Errors
    /// There is no such code, or its map cannot be decoded.
    pub fn r2r_il_map(
        &self,
        start: u64,
        into: &mut Vec<(u32, u32)>,
    ) -> Result<debug_info::Format, debug_info::Error> {
        let reader = self.grace.enter();
        match self.find(&reader, start).map(|entry| &entry.code) {
            Some(RegionCode::ReadyToRun(image)) => image.il_map(start, into),
            _ => Err(debug_info::Error::Unknown),
        }
    }

    /// Returns where the frame of the managed code at `lookup` saves its caller's registers. For a
    /// caller, `lookup` is its return address − 1. `None` for native code and if the rules are
    /// unknown. Valid after the prologue and before the epilogue, as at every call.
    /// Async-signal-safe.
    pub fn saved_registers(&self, lookup: u64) -> Option<Saved> {
        let reader = self.grace.enter();
        match &self.find(&reader, lookup)?.code {
            RegionCode::Jit(body) => body.saved(lookup),
            RegionCode::ReadyToRun(image) if !image.is_cut_short() => image.saved(lookup),
            RegionCode::ReadyToRun(_) | RegionCode::Native(..) => None,
        }
    }

    /// Whether `address` is in code whose file was truncated, so that parts of it are not readable
    /// any more.
    pub fn is_cut_short(&self, address: u64) -> bool {
        let reader = self.grace.enter();
        let entry = self.find(&reader, address);
        entry.is_some_and(|entry| entry.code.is_cut_short())
    }

    /// Frees data that no walk can see any more. Returns the number of items that remain. Takes the
    /// writers' mutex, and does not wait for walks. Call it periodically from the agent thread.
    pub fn reclaim(&self) -> usize {
        let mut gone = Vec::new();
        let mut writer = self.lock();
        let left = self.grace.reclaim(|what| match what {
            RetiredMemory::Jit(entry) => writer.free(entry),
            // Freed without the mutex, because unmapping memory takes time.
            RetiredMemory::Other(other) => gone.push(other),
        });
        drop(writer);
        left
    }

    /// Waits until all walks that were running have ended, so that code removed before may be
    /// unmapped. Yields the processor at most `tries` times. Returns whether all those walks have
    /// ended. A walk takes microseconds, so if a few tries are not enough, a thread was descheduled
    /// in its handler. Not in a signal handler.
    pub fn quiesce(&self, tries: usize) -> bool {
        (0..tries).any(|_| {
            let quiet = self.reclaim() == 0;
            if !quiet {
                std::thread::yield_now();
            }
            quiet
        }) || self.reclaim() == 0
    }

    /// Returns the map's memory use. Takes the writers' mutex.
    pub fn memory(&self) -> Memory {
        let writer = self.lock();
        let retired_bytes = self.grace.waiting();
        Memory {
            bytes: writer.memory.bytes
                + writer.entries.spare_bytes()
                + retired_bytes
                + size_of::<Self>(),
            retired_bytes,
            ..writer.memory
        }
    }

    /// Returns the entry that contains `address`, for the lifetime of `reader`. Async-signal-safe.
    pub(crate) fn find<'reader>(
        &self,
        reader: &'reader WalkGuard<'_>,
        address: u64,
    ) -> Option<&'reader MapEntry> {
        let in_chunk = || {
            let (chunk, bucket) = self.bucket(reader, address)?;
            let entry = bucket.at(offset_in(chunk, address))?;
            // SAFETY: a bucket had it, and the reader was counted before that was looked at: see
            // `bucket`.
            let entry = unsafe { entry.as_ref() }?;
            entry.code.range().contains(&address).then_some(entry)
        };
        in_chunk().or_else(|| self.module(reader, address))
    }

    /// Returns the bucket of the chunk that contains `address`, and the chunk, if it has JITted
    /// code. Async-signal-safe.
    fn bucket<'reader>(
        &self,
        _reader: &'reader WalkGuard<'_>,
        address: u64,
    ) -> Option<(u64, &'reader Bucket)> {
        if address >= ADDRESS_LIMIT {
            return None;
        }
        let chunk = address >> CHUNK_SHIFT;
        // SAFETY: the pointers were published by `set` with AcqRel, and those in a bucket by
        // `Bucket::insert` with Release; they point to values that are retired, not freed, when
        // unpublished; the reader was counted before this load, so they live as long as it does.
        unsafe {
            let table = self.chunks.load(Ordering::Acquire).as_ref()?;
            let bucket = table.slot(chunk)?.bucket.load(Ordering::Acquire).as_ref()?;
            Some((chunk, bucket))
        }
    }

    /// Returns the module that contains `address`. Async-signal-safe.
    fn module<'reader>(
        &self,
        _reader: &'reader WalkGuard<'_>,
        address: u64,
    ) -> Option<&'reader MapEntry> {
        // SAFETY: as in `bucket`.
        unsafe {
            let modules = self.modules.load(Ordering::Acquire).as_ref()?;
            modules.find(address)?.as_ref()
        }
    }

    /// Returns the epoch for [`CodeMap::keep_rule`]. Read it before the entry is looked up.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Caches a rule of `entry`, which was found after `epoch` was read.
    ///
    /// If code was removed in the meantime, the rule may belong to it, and its address may soon be
    /// that of other code, so the rule is removed again. A writer that removes code first
    /// increments the epoch, and then checks whether the code has cached rules and clears them. So
    /// either the writer sees the rules, or this function sees the new epoch.
    pub(crate) fn keep_rule(&self, entry: &MapEntry, address: u64, packed: u32, epoch: u64) {
        entry.mark_walked();
        self.rules.put(address, packed);
        fence(Ordering::SeqCst);
        if self.epoch.load(Ordering::SeqCst) != epoch {
            self.rules.forget(address);
        }
    }

    /// Removes the cached rules of all addresses in `range`; they are computed again when needed.
    /// The map's own methods of removal do this themselves. Callable at any time.
    pub fn forget_rules_in(&self, range: Range<u64>) {
        self.new_epoch();
        self.rules.invalidate(&range);
    }

    /// Begins an epoch: rules found until now may be outdated, see [`CodeMap::keep_rule`].
    fn new_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, MapWriter> {
        // Every step of a writer leaves a consistent map, so a poisoned one is usable.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a body to one of its chunks.
    fn publish(
        &self,
        writer: &mut MapWriter,
        chunk: u64,
        range: &Range<u64>,
        entry: *const MapEntry,
    ) {
        let offset = offset_in(chunk, range.start);
        // SAFETY: only writers free tables and buckets, after they unpublish them, and the holder
        // of the `MapWriter` holds the writers' mutex: both live.
        let known = unsafe {
            let table = self.chunks.load(Ordering::Relaxed).as_ref();
            let slot = table.and_then(|table| table.slot(chunk));
            slot.and_then(|slot| slot.bucket.load(Ordering::Relaxed).as_ref())
        };
        if known.is_some_and(|bucket| bucket.insert(offset, range.end, entry)) {
            return;
        }
        let table = self.table_with_room(writer);
        let Some(slot) = table.slot(chunk) else {
            return;
        };
        if slot.chunk.load(Ordering::Relaxed) == 0 {
            slot.chunk.store(chunk, Ordering::Release);
            writer.taken += 1;
        }
        let bucket = Bucket::grown(known);
        let has_room = bucket.insert(offset, range.end, entry);
        debug_assert!(has_room, "a bucket grows by one word at least");
        self.set(writer, &slot.bucket, Some(bucket), Bucket::bytes);
    }

    /// Removes a body from all its chunks.
    fn unpublish(&self, writer: &mut MapWriter, table: &Table, entry: *const MapEntry) {
        // SAFETY: a published entry, and the caller has the `MapWriter`: no other code takes it
        // out.
        let range = unsafe { (*entry).code.range() };
        for chunk in chunks_of(&range) {
            let slot = table.slot(chunk);
            // SAFETY: as in `publish`.
            let bucket =
                slot.and_then(|slot| unsafe { slot.bucket.load(Ordering::Relaxed).as_ref() });
            let (Some(slot), Some(bucket)) = (slot, bucket) else {
                continue;
            };
            bucket.remove(entry);
            if bucket.is_empty() {
                self.set(writer, &slot.bucket, None, Bucket::bytes);
            }
        }
    }

    /// Publishes a value or null in place of the present one, which is retired.
    fn set<T: Any + Send>(
        &self,
        writer: &mut MapWriter,
        place: &AtomicPtr<T>,
        new: Option<T>,
        bytes: fn(&T) -> usize,
    ) {
        writer.memory.bytes += new.as_ref().map_or(0, bytes);
        let new = new.map_or(std::ptr::null_mut(), |new| Box::into_raw(Box::new(new)));
        let old = place.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: made by `Box::into_raw` above, unpublished just now, retired once.
            let old = unsafe { Box::from_raw(old) };
            let bytes = bytes(&old);
            self.retire(writer, RetiredMemory::Other(old), bytes);
        }
    }

    /// Retires an item of `bytes` bytes that is not published any more.
    fn retire(&self, writer: &mut MapWriter, what: RetiredMemory, bytes: usize) {
        writer.memory.bytes -= bytes;
        self.grace.retire(what, bytes, |what| match what {
            RetiredMemory::Jit(entry) => writer.free(entry),
            RetiredMemory::Other(other) => drop(other),
        });
    }

    /// Returns the current table, at most half full. If needed, a larger one replaces it, without
    /// the empty chunks.
    fn table_with_room(&self, writer: &mut MapWriter) -> &Table {
        let table = self.table(writer);
        if let Some(table) = table
            && (writer.taken + 1) * 2 <= table.slots().len()
        {
            return table;
        }
        let live = || {
            table
                .into_iter()
                .flat_map(|table| table.slots())
                .filter_map(|slot| {
                    let bucket = slot.bucket.load(Ordering::Relaxed);
                    (!bucket.is_null()).then(|| (slot.chunk.load(Ordering::Relaxed), bucket))
                })
        };
        let taken = live().count();
        let new = Table::with_capacity(((taken + 1) * 4).max(256));
        for (chunk, bucket) in live() {
            if let Some(slot) = new.slot(chunk) {
                slot.chunk.store(chunk, Ordering::Relaxed);
                slot.bucket.store(bucket, Ordering::Relaxed);
            }
        }
        writer.taken = taken;
        self.set(writer, &self.chunks, Some(new), Table::bytes);
        // SAFETY: published just now; freed only by a later writer, and the caller holds the
        // writers' mutex for as long as it uses the reference.
        unsafe { &*self.chunks.load(Ordering::Relaxed) }
    }

    /// Returns the chunks' table, for writers.
    fn table(&self, _writer: &MapWriter) -> Option<&Table> {
        // SAFETY: as in `publish`.
        unsafe { self.chunks.load(Ordering::Relaxed).as_ref() }
    }

    /// Removes every JIT body that overlaps `range`. Returns their number.
    fn remove_jit_overlapping(&self, writer: &mut MapWriter, range: &Range<u64>) -> usize {
        let Some(table) = self.table(writer) else {
            return 0;
        };
        let mut removed = 0;
        for slot in table.slots_of(chunks_of(range)) {
            while let Some(entry) = self.overlapping(writer, slot, range) {
                self.unpublish(writer, table, entry);
                self.drop_entry(writer, entry);
                removed += 1;
            }
        }
        removed
    }

    /// Returns a body of a chunk that has an address in `range`.
    fn overlapping(
        &self,
        _writer: &MapWriter,
        slot: &ChunkSlot,
        range: &Range<u64>,
    ) -> Option<*const MapEntry> {
        let chunk = slot.chunk.load(Ordering::Relaxed);
        // SAFETY: as in `publish`.
        let bucket = unsafe { slot.bucket.load(Ordering::Relaxed).as_ref() }?;
        if bucket.lies_before(range.start) {
            return None;
        }
        let base = chunk << CHUNK_SHIFT;
        let (first, behind) = (
            offset_in(chunk, range.start),
            range.end.saturating_sub(base),
        );
        let reaches = |entry: &*const MapEntry| {
            // SAFETY: the bucket has it, so it is published, and the holder of the `MapWriter` is
            // the only one to take it out and retire it.
            overlap(&unsafe { (**entry).code.range() }, range)
        };
        let (from_before, within) = bucket.around(first, behind);
        from_before.filter(reaches).or(within)
    }

    /// Adds to the sorted array of modules. Returns false, and adds nothing, if it overlaps
    /// another.
    fn add_module(&self, writer: &mut MapWriter, entry: MapEntry) -> bool {
        let range = entry.code.range();
        // SAFETY: as in `publish`, for the list of modules.
        let modules = unsafe { self.modules.load(Ordering::Relaxed).as_ref() };
        if !is_sound(&range) || modules.is_some_and(|modules| modules.overlaps(&range)) {
            return false;
        }
        writer.memory.modules += 1;
        writer.memory.bytes += size_of::<MapEntry>() + entry.code.bytes();
        let new = Modules::with(modules, &range, Box::into_raw(Box::new(entry)));
        self.set(writer, &self.modules, Some(new), Modules::bytes);
        true
    }

    /// Removes the modules and images that `which` selects. Returns their number.
    fn remove_modules(&self, writer: &mut MapWriter, which: impl Fn(&RegionCode) -> bool) -> usize {
        // SAFETY: as in `publish`, for the list of modules.
        let Some(modules) = (unsafe { self.modules.load(Ordering::Relaxed).as_ref() }) else {
            return 0;
        };
        // SAFETY: a published place's entry lives as long as its list.
        let is_gone = |place: &&ModulePlace| which(unsafe { &(*place.entry).code });
        let gone: Vec<ModulePlace> = modules.places().iter().filter(is_gone).copied().collect();
        if gone.is_empty() {
            return 0;
        }
        let left = modules.without(&gone);
        self.set(writer, &self.modules, Some(left), Modules::bytes);
        for place in &gone {
            self.drop_entry(writer, place.entry);
        }
        gone.len()
    }

    /// Retires an entry that is not published any more, and removes its cached rules. Returns
    /// whether a walk had found it.
    fn drop_entry(&self, writer: &mut MapWriter, entry: *const MapEntry) -> bool {
        // SAFETY: it was published, and each caller drops it once: it is not freed before this has
        // retired it.
        let found = unsafe { &*entry };
        self.new_epoch();
        let was_walked = found.walked.load(Ordering::Relaxed);
        if was_walked {
            self.rules.invalidate(&found.code.range());
        }
        let bytes = size_of::<MapEntry>() + found.code.bytes();
        let what = match found.code.kind() {
            CodeKind::Jit => {
                writer.memory.jit_bodies -= 1;
                RetiredMemory::Jit(OwnedEntry(entry))
            }
            CodeKind::Native | CodeKind::ReadyToRun => {
                writer.memory.modules -= 1;
                // SAFETY: made by `Box::into_raw` in `add_module`, as all that is not JITted; no
                // published list names it any more.
                RetiredMemory::Other(unsafe { Box::from_raw(entry.cast_mut()) })
            }
        };
        self.retire(writer, what, bytes);
        was_walked
    }
}

#[cfg(test)]
impl CodeMap {
    /// Adds native code that the linker does not list.
    pub(crate) fn add_native(&self, code: Range<u64>, native: NativeCode) -> bool {
        let code = RegionCode::Native(code, Box::new(native));
        self.add_module(&mut self.lock(), MapEntry::new(code, 0))
    }
}

impl Drop for CodeMap {
    fn drop(&mut self) {
        self.remove_range(0..ADDRESS_LIMIT);
        let mut writer = self.lock();
        self.remove_modules(&mut writer, |_| true);
        let table = self.chunks.swap(std::ptr::null_mut(), Ordering::Relaxed);
        let modules = self.modules.swap(std::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw`; `&mut self` shows that no thread reads them; all buckets
        // of the table and entries of the list were removed above.
        unsafe {
            if !table.is_null() {
                drop(Box::from_raw(table));
            }
            if !modules.is_null() {
                drop(Box::from_raw(modules));
            }
        }
        drop(writer);
        // All retired items, because no walk runs.
        self.reclaim();
    }
}

impl RegionCode {
    /// Returns the size of its private memory, bytes.
    fn bytes(&self) -> usize {
        match self {
            RegionCode::Jit(body) => body.bytes(),
            RegionCode::ReadyToRun(image) => size_of_val(&**image),
            RegionCode::Native(_, code) => size_of_val(&**code) + code.bytes(),
        }
    }
}

/// Whether two ranges have an address in common.
fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Whether a range can be code: not empty, and in user space.
fn is_sound(range: &Range<u64>) -> bool {
    range.start < range.end && range.start >= FIRST_ADDRESS && range.end <= ADDRESS_LIMIT
}

/// Returns the offset of an address in a chunk; 0 for one before it.
fn offset_in(chunk: u64, address: u64) -> u16 {
    let offset = address.saturating_sub(chunk << CHUNK_SHIFT);
    u16::try_from(offset).unwrap_or(u16::MAX)
}

/// Returns the chunks that a range touches.
fn chunks_of(range: &Range<u64>) -> Range<u64> {
    let last = range.end.saturating_sub(1).min(ADDRESS_LIMIT - 1) >> CHUNK_SHIFT;
    range.start >> CHUNK_SHIFT..last + 1
}

#[cfg(test)]
mod tests;
