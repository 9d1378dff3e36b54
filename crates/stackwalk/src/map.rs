//! The code map: address → the code it belongs to, readable in a signal handler at any time.
//!
//! It is not the rule cache, though it owns it, and it names nothing: `user` is the caller's own
//! word. The invariant: what a walk can reach was published whole and is freed only after a
//! grace period; writers serialise on one mutex that no walk ever takes.
//!
//! Two structures, because the two kinds of code differ: modules are few and large, so they lie in
//! one sorted array, of which a change makes another; JIT bodies are many and small and come and go
//! all the time, so they lie in chunks of 16 KiB of address space, each with its own bucket, in
//! which a body is one word that is stored or cleared.

use crate::cache::{ADDRESS_LIMIT, RuleCache};
use crate::grace::{Grace, Reader};
use crate::heaps::{Code as UntoldCode, CodeHeaps, Untold};
use crate::native::{Loaded, ModuleChange, NativeCode};
use crate::rule::Rule;
use crate::synthesis;
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
use modules::{Modules, Place};
use table::{Slot, Table};

/// Chunks of 16 KiB, in which some dozens of methods lie; an offset in one has 16 bits at most
/// ([`Bucket`]).
const CHUNK_SHIFT: u32 = 14;
/// No code lies below it: the kernel maps no such addresses (`vm.mmap_min_addr`).
const FIRST_ADDRESS: u64 = 1 << 16;

/// The kind of code that an address belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// An ELF module's code.
    Native = 0,
    /// A body of code that a JIT made.
    Jit = 1,
    /// A ReadyToRun image's code.
    ReadyToRun = 2,
}

/// Facts about an address, as [`CodeMap::lookup`] returns them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Kind of code.
    pub kind: Kind,
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// The word its owner gave when it was added.
    pub user: u64,
}

/// How much memory a [`CodeMap`] holds, for the recording's own account.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// JIT bodies in the map.
    pub jit_bodies: usize,
    /// Modules and images in the map.
    pub modules: usize,
    /// Bytes of private memory in all, the fixed part included, mapped files not.
    pub bytes: usize,
    /// Bytes thereof that wait for walks to end.
    pub retired_bytes: usize,
}

/// Where code is, and how it is unwound. Few are modules: these do not make the others larger.
pub(crate) enum Code {
    Jit(jit::Body),
    ReadyToRun(Box<pe::Image>),
    Native(Range<u64>, Box<NativeCode>),
}

impl Code {
    fn kind(&self) -> Kind {
        match self {
            Code::Jit(_) => Kind::Jit,
            Code::ReadyToRun(_) => Kind::ReadyToRun,
            Code::Native(..) => Kind::Native,
        }
    }

    /// Its addresses.
    pub(crate) fn range(&self) -> Range<u64> {
        match self {
            Code::Jit(body) => body.start()..body.end(),
            Code::ReadyToRun(image) => image.code(),
            Code::Native(range, _) => range.clone(),
        }
    }

    /// The rule for the instruction at `lookup`; `Ok(None)` where nothing is known of it. With
    /// `exact` the instruction is about to run. Async-signal-safe.
    pub(crate) fn rule(
        &self,
        lookup: u64,
        exact: bool,
        state: &mut cfi::State,
    ) -> Result<Option<Rule>, cfi::Unsupported> {
        match self {
            Code::Native(_, code) => cfi::rule(code, lookup, exact, state),
            Code::Jit(body) => Ok(body.rule(lookup, exact)),
            Code::ReadyToRun(image) => Ok(image.rule(lookup, exact)),
        }
    }
}

impl Code {
    /// Whether parts of it, or of its tables, cannot be read any more: their file is shorter than
    /// it was. To be asked before they are read. Async-signal-safe.
    pub(crate) fn is_cut_short(&self) -> bool {
        match self {
            // In memory of the runtime's own, and in copies.
            Code::Jit(_) | Code::Native(..) => false,
            Code::ReadyToRun(image) => image.is_cut_short(),
        }
    }
}

/// A region with its unwind information. What it says is immutable once published. One cache line:
/// it is made while a compiled method waits to run, and found by walks among thousands of others.
#[repr(align(64))]
pub(crate) struct Entry {
    pub(crate) code: Code,
    /// Its owner's word.
    user: u64,
    /// A walk came to it and looked for a rule: some may be in the cache, see
    /// [`CodeMap::keep_rule`].
    met: AtomicBool,
    /// Of JITted code: which block of [`Entries`] it lies in.
    block: u32,
}

const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    fn new(code: Code, user: u64) -> Self {
        Self {
            code,
            user,
            met: AtomicBool::new(false),
            block: 0,
        }
    }

    /// The answer of a look-up. Async-signal-safe.
    fn region(&self) -> Region {
        let Range { start, end } = self.code.range();
        Region {
            kind: self.code.kind(),
            start,
            end,
            user: self.user,
        }
    }

    /// A walk looks for a rule here. Async-signal-safe.
    pub(crate) fn meet(&self) {
        // Seldom the first: the line stays with all processors that read it.
        if !self.met.load(Ordering::Relaxed) {
            self.met.store(true, Ordering::Relaxed);
        }
    }
}

/// The body that [`CodeMap::take_jit_body`] took out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Where it was, and its owner's word.
    pub region: Region,
    /// A walk came to it: its addresses may be in stacks that have not been read yet.
    pub was_met: bool,
}

/// Memory that waits until no walk can hold it.
pub(crate) enum Retired {
    /// Of a JITted body, to be freed by [`Entries`].
    Jit(OwnedEntry),
    /// The entry of a module, a bucket, a table, a list of modules: freed by being dropped.
    Other(Box<dyn Any + Send>),
}

/// An entry that is published nowhere any more.
pub(crate) struct OwnedEntry(*const Entry);

// SAFETY: whoever has it is the only one that may free the entry, and an entry is `Send` (checked
// in `entries`).
unsafe impl Send for OwnedEntry {}

/// State that only writers touch.
struct Writer {
    /// Chunks of the current table that are taken.
    taken: usize,
    memory: Memory,
    /// Where JIT entries lie.
    entries: Entries,
}

impl Writer {
    /// A JIT entry that no walk can hold any more.
    fn free(&mut self, OwnedEntry(entry): OwnedEntry) {
        // SAFETY: `drop_entry` made it of an entry that `add_jit_body` had of `entries` and that is
        // published nowhere, once; a grace period has passed, so no walk has it.
        unsafe { self.entries.free(entry) };
    }
}

/// Address → code and its unwind rules, for any number of threads. `const`-constructible, so it
/// can be a `static` (about 160 KiB, zero at start).
///
/// Methods that change it take a mutex and allocate: never call them in a signal handler.
/// [`walk`](crate::walk()) and [`CodeMap::lookup`] may run at any time, in handlers too.
pub struct CodeMap {
    pub(crate) rules: RuleCache,
    pub(crate) grace: Grace<Retired>,
    /// Moves on whenever code goes away; see [`CodeMap::keep_rule`].
    epoch: AtomicU64,
    chunks: AtomicPtr<Table>,
    modules: AtomicPtr<Modules>,
    /// Where code is looked for that is not here.
    pub(crate) untold: Untold,
    writer: Mutex<Writer>,
    /// Taken before `writer`, and never by a walk.
    loaded: Mutex<Loaded>,
}

impl Default for CodeMap {
    fn default() -> Self {
        Self::new()
    }
}

impl CodeMap {
    /// An empty map.
    pub const fn new() -> Self {
        Self {
            rules: RuleCache::new(),
            grace: Grace::new(),
            epoch: AtomicU64::new(0),
            chunks: AtomicPtr::new(std::ptr::null_mut()),
            modules: AtomicPtr::new(std::ptr::null_mut()),
            untold: Untold::new(),
            writer: Mutex::new(Writer {
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

    /// Adds a JIT body; walks see it from now on. `user` is the caller's own word for it.
    ///
    /// Bodies that still lie in the same addresses are removed first (the code heap was used again
    /// without a notice). Answers false for a range that cannot be code (empty, or outside user
    /// space); nothing is added then.
    pub fn add_jit_body(&self, body: jit::Body, user: u64) -> bool {
        self.replace_jit_bodies(body, user).is_some()
    }

    /// [`CodeMap::add_jit_body`], which answers how many bodies it took the place of; `None` where
    /// nothing was added.
    pub fn replace_jit_bodies(&self, body: jit::Body, user: u64) -> Option<usize> {
        let range = body.start()..body.end();
        if !is_sound(&range) {
            return None;
        }
        let mut writer = self.lock();
        let replaced = self.remove_jit_overlapping(&mut writer, &range);
        let bytes = body.bytes() + size_of::<Entry>();
        let entry = writer.entries.add(Entry::new(Code::Jit(body), user));
        for chunk in chunks_of(&range) {
            self.publish(&mut writer, chunk, &range, entry);
        }
        writer.memory.jit_bodies += 1;
        writer.memory.bytes += bytes;
        // The announcement of its end finds it here from now on.
        self.untold.learned(range.start);
        Some(replaced)
    }

    /// Adds a ReadyToRun image. `user` is the caller's own word for it. Answers false if
    /// something else has its addresses: nothing is added then.
    pub fn add_r2r(&self, image: pe::Image, user: u64) -> bool {
        let code = Code::ReadyToRun(Box::new(image));
        self.add_module(&mut self.lock(), Entry::new(code, user))
    }

    /// Removes the JIT body or the image that starts at `start`. What walks can still see is
    /// freed later; the code itself must stay readable until [`CodeMap::quiesce`] says so.
    /// Answers whether there was one.
    pub fn remove(&self, start: u64) -> bool {
        match self.lookup(start) {
            Some(region) if region.start == start && region.kind != Kind::Native => {
                self.remove_range(start..region.end) > 0
            }
            _ => false,
        }
    }

    /// Removes all JIT bodies and ReadyToRun images that have an address in `range`; says how
    /// many. See [`CodeMap::remove`].
    pub fn remove_range(&self, range: Range<u64>) -> usize {
        let mut writer = self.lock();
        let bodies = self.remove_jit_overlapping(&mut writer, &range);
        let images = self.remove_modules(&mut writer, |code| {
            code.kind() != Kind::Native && overlap(&code.range(), &range)
        });
        bodies + images
    }

    /// Brings the list of native modules up to date with the dynamic linker's.
    ///
    /// `on_change` hears of each module that is gone (its answer does not matter), then of each
    /// that is new, and its answer becomes that module's `user`. It may use the map, but not call
    /// this method. Cheap when the linker's
    /// counters of loads and unloads have not moved. Takes the dynamic linker's lock: not in a
    /// signal handler, nor in a constructor of a library that is being loaded.
    ///
    /// Answers how many modules came or went.
    pub fn refresh_native(&self, on_change: &mut dyn FnMut(ModuleChange<'_>) -> u64) -> usize {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let (new, gone) = loaded.refresh();
        let changes = new.len() + gone.len();
        for module in gone {
            self.remove_modules(&mut self.lock(), |code| {
                code.kind() == Kind::Native && code.range().start == module.code.start
            });
            on_change(ModuleChange::Unloaded { module: &module });
        }
        for (module, mut code) in new {
            let user = on_change(ModuleChange::Loaded { module: &module });
            code.rows = synthesis::rows(&module, &code);
            let code = Code::Native(module.code.clone(), Box::new(code));
            self.add_module(&mut self.lock(), Entry::new(code, user));
        }
        changes
    }

    /// Forgets all native modules, whose tables take memory: the next [`CodeMap::refresh_native`]
    /// finds them anew.
    pub fn forget_native(&self) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        *loaded = Loaded::new();
        self.remove_modules(&mut self.lock(), |code| code.kind() == Kind::Native);
        drop(loaded);
        self.quiesce(64);
    }

    /// Adds the heaps of a runtime, in which unreported code is looked for from now on. False:
    /// there are too many runtimes.
    pub fn add_heaps(&self, heaps: CodeHeaps) -> bool {
        self.untold.add(heaps)
    }

    /// The body at an address, by its runtime's own records ([`CodeMap::add_heaps`]).
    /// Async-signal-safe.
    pub fn untold(&self, address: u64) -> Option<UntoldCode> {
        self.untold.code_at(address)
    }

    /// Removes a body that was never put into the map. Answers whether a walk may have found it in
    /// its runtime's heap, and its addresses may be in stacks that have not been read yet.
    pub fn take_untold(&self, start: u64) -> bool {
        let was_met = self.untold.was_met(start);
        self.untold.learned(start);
        was_met
    }

    /// All that walks had met a round ago has been read: see [`CodeMap::take_untold`]. To be called
    /// between two rounds in which all samples are read.
    pub fn age_untold(&self) {
        self.untold.age();
    }

    /// The code that `address` belongs to. Async-signal-safe.
    pub fn lookup(&self, address: u64) -> Option<Region> {
        let reader = self.grace.enter();
        self.find(&reader, address).map(Entry::region)
    }

    /// The JITted body that begins at `start`, or else the module that `start` is in: what there is
    /// of a method at an address that its runtime gives as the start of a body. Cheaper than
    /// [`CodeMap::lookup`] where nothing is known there yet. Async-signal-safe.
    pub fn at_start(&self, start: u64) -> Option<Region> {
        let reader = self.grace.enter();
        if let Some((chunk, bucket)) = self.bucket(&reader, start) {
            let (entry, is_page_theirs) = bucket.from(offset_in(chunk, start));
            // SAFETY: as in `find`.
            let region = entry.map(|entry| unsafe { (*entry).region() });
            if let Some(region) = region.filter(|region| region.start == start) {
                return Some(region);
            }
            // No page holds code that was JITted and a module's too.
            if is_page_theirs {
                return None;
            }
        }
        self.module(&reader, start).map(Entry::region)
    }

    /// Whether `address` is in a JITted body for which [`jit::Body::begins_on_a_frame`] holds.
    pub fn begins_on_a_frame(&self, address: u64) -> bool {
        let reader = self.grace.enter();
        let entry = self.find(&reader, address);
        entry
            .is_some_and(|entry| matches!(&entry.code, Code::Jit(body) if body.begins_on_a_frame()))
    }

    /// The start of the ReadyToRun function (or funclet) that `address` is in.
    /// Async-signal-safe.
    pub fn r2r_function_start(&self, address: u64) -> Option<u64> {
        let reader = self.grace.enter();
        match &self.find(&reader, address)?.code {
            Code::ReadyToRun(image) if !image.is_cut_short() => image.function_start(address),
            _ => None,
        }
    }

    /// The IL map of the ReadyToRun method whose code starts at `start`: [`pe::Image::il_map`].
    ///
    /// # Errors
    /// There is no such code, or what is said of it is not understood.
    pub fn r2r_il_map(
        &self,
        start: u64,
        into: &mut Vec<(u32, u32)>,
    ) -> Result<debug_info::Format, debug_info::Error> {
        let reader = self.grace.enter();
        match self.find(&reader, start).map(|entry| &entry.code) {
            Some(Code::ReadyToRun(image)) => image.il_map(start, into),
            _ => Err(debug_info::Error::Unknown),
        }
    }

    /// Where the frame of the managed code at `lookup` (of a caller, its return address less 1)
    /// keeps its caller's values of registers. `None` for native code, of which nothing is said,
    /// and where nothing is known. True behind the prologue and before the epilogue, as at every
    /// call. Async-signal-safe.
    pub fn saved_registers(&self, lookup: u64) -> Option<Saved> {
        let reader = self.grace.enter();
        match &self.find(&reader, lookup)?.code {
            Code::Jit(body) => body.saved(lookup),
            Code::ReadyToRun(image) if !image.is_cut_short() => image.saved(lookup),
            Code::ReadyToRun(_) | Code::Native(..) => None,
        }
    }

    /// Whether `address` is in code whose file is shorter than it was: neither we nor its owner can
    /// read all of it any more.
    pub fn is_cut_short(&self, address: u64) -> bool {
        let reader = self.grace.enter();
        let entry = self.find(&reader, address);
        entry.is_some_and(|entry| entry.code.is_cut_short())
    }

    /// Frees what no walk can see any more; says how many things still wait. Takes the writers'
    /// mutex, and waits for no walk. Call it now and then from the agent thread.
    pub fn reclaim(&self) -> usize {
        let mut gone = Vec::new();
        let mut writer = self.lock();
        let left = self.grace.reclaim(|what| match what {
            Retired::Jit(entry) => writer.free(entry),
            // Freed without the mutex: memory may be unmapped, which takes its time.
            Retired::Other(other) => gone.push(other),
        });
        drop(writer);
        left
    }

    /// Waits until every walk that was under way has ended, so that code which was removed
    /// before may be unmapped. Yields the processor at most `tries` times between looks; answers
    /// whether all is quiet. A walk takes microseconds, so more than a few tries mean that a
    /// thread was descheduled in its handler. Not in a signal handler.
    pub fn quiesce(&self, tries: usize) -> bool {
        (0..tries).any(|_| {
            let quiet = self.reclaim() == 0;
            if !quiet {
                std::thread::yield_now();
            }
            quiet
        }) || self.reclaim() == 0
    }

    /// The memory that the map holds. Takes the writers' mutex.
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

    /// The entry that `address` lies in, for as long as `reader` lives. Async-signal-safe.
    pub(crate) fn find<'reader>(
        &self,
        reader: &'reader Reader<'_>,
        address: u64,
    ) -> Option<&'reader Entry> {
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

    /// The bucket of the chunk that `address` lies in, and the chunk, where anything was JITted
    /// there. Async-signal-safe.
    fn bucket<'reader>(
        &self,
        _reader: &'reader Reader<'_>,
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

    /// The module that `address` lies in. Async-signal-safe.
    fn module<'reader>(
        &self,
        _reader: &'reader Reader<'_>,
        address: u64,
    ) -> Option<&'reader Entry> {
        // SAFETY: as in `bucket`.
        unsafe {
            let modules = self.modules.load(Ordering::Acquire).as_ref()?;
            modules.find(address)?.as_ref()
        }
    }

    /// The epoch to hand to [`CodeMap::keep_rule`], taken before the entry was found.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Keeps a rule that was worked out from `entry`, which was found after `epoch` was read.
    ///
    /// If code went away meanwhile the rule may be about that code, and its address may soon be
    /// other code: then it is taken out again. Whoever removes code moves the epoch before it asks
    /// whether the code has rules in the cache and clears them, so either it sees that there are
    /// some, or this sees the epoch.
    pub(crate) fn keep_rule(&self, entry: &Entry, address: u64, packed: u32, epoch: u64) {
        entry.meet();
        self.rules.put(address, packed);
        fence(Ordering::SeqCst);
        if self.epoch.load(Ordering::SeqCst) != epoch {
            self.rules.forget(address);
        }
    }

    /// Forgets the cached rules of all addresses in `range`: they will be worked out again. Code
    /// that is removed through this map's methods needs no such call. Callable at any time.
    pub fn forget_rules_in(&self, range: Range<u64>) {
        self.new_epoch();
        self.rules.invalidate(&range);
    }

    /// Begins an epoch: rules found until now may be gone, see [`CodeMap::keep_rule`].
    fn new_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // Every step of a writer leaves a map that is whole, so a poisoned one is usable.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a body to one of its chunks.
    fn publish(&self, writer: &mut Writer, chunk: u64, range: &Range<u64>, entry: *const Entry) {
        let offset = offset_in(chunk, range.start);
        // SAFETY: only writers free tables and buckets, after they unpublish them, and whoever has
        // the `Writer` holds the writers' mutex: both live.
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

    /// Takes a body out of all its chunks.
    fn unpublish(&self, writer: &mut Writer, table: &Table, entry: *const Entry) {
        // SAFETY: a published entry, and the caller has the `Writer`: no other code takes it out.
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

    /// Publishes something, or nothing, in place of what is published there, which is retired.
    fn set<T: Any + Send>(
        &self,
        writer: &mut Writer,
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
            self.retire(writer, Retired::Other(old), bytes);
        }
    }

    /// Something that takes so many bytes is published nowhere any more.
    fn retire(&self, writer: &mut Writer, what: Retired, bytes: usize) {
        writer.memory.bytes -= bytes;
        self.grace.retire(what, bytes, |what| match what {
            Retired::Jit(entry) => writer.free(entry),
            Retired::Other(other) => drop(other),
        });
    }

    /// The current table, at most half full; a larger one takes its place if need be, and chunks
    /// that hold nothing any more are left behind.
    fn table_with_room(&self, writer: &mut Writer) -> &Table {
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

    /// The chunks' table. For writers.
    fn table(&self, _writer: &Writer) -> Option<&Table> {
        // SAFETY: as in `publish`.
        unsafe { self.chunks.load(Ordering::Relaxed).as_ref() }
    }

    /// Removes every JIT body that overlaps `range`; says how many.
    fn remove_jit_overlapping(&self, writer: &mut Writer, range: &Range<u64>) -> usize {
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

    /// A body of a chunk that has an address in `range`.
    fn overlapping(
        &self,
        _writer: &Writer,
        slot: &Slot,
        range: &Range<u64>,
    ) -> Option<*const Entry> {
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
        let reaches = |entry: &*const Entry| {
            // SAFETY: the bucket has it, so it is published, and whoever has the `Writer` is the
            // only one to take it out and retire it.
            overlap(&unsafe { (**entry).code.range() }, range)
        };
        let (from_before, within) = bucket.around(first, behind);
        from_before.filter(reaches).or(within)
    }

    /// Adds to the sorted array of modules. False, and nothing added, if it overlaps another.
    fn add_module(&self, writer: &mut Writer, entry: Entry) -> bool {
        let range = entry.code.range();
        // SAFETY: as in `publish`, for the list of modules.
        let modules = unsafe { self.modules.load(Ordering::Relaxed).as_ref() };
        if !is_sound(&range) || modules.is_some_and(|modules| modules.overlaps(&range)) {
            return false;
        }
        writer.memory.modules += 1;
        writer.memory.bytes += size_of::<Entry>() + entry.code.bytes();
        let new = Modules::with(modules, &range, Box::into_raw(Box::new(entry)));
        self.set(writer, &self.modules, Some(new), Modules::bytes);
        true
    }

    /// Removes the modules and images that `which` picks; says how many.
    fn remove_modules(&self, writer: &mut Writer, which: impl Fn(&Code) -> bool) -> usize {
        // SAFETY: as in `publish`, for the list of modules.
        let Some(modules) = (unsafe { self.modules.load(Ordering::Relaxed).as_ref() }) else {
            return 0;
        };
        // SAFETY: a published place's entry lives as long as its list.
        let is_gone = |place: &&Place| which(unsafe { &(*place.entry).code });
        let gone: Vec<Place> = modules.places().iter().filter(is_gone).copied().collect();
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

    /// Retires an entry that is published nowhere any more, and forgets its rules. Answers whether
    /// a walk had come to it.
    fn drop_entry(&self, writer: &mut Writer, entry: *const Entry) -> bool {
        // SAFETY: it was published, and each caller drops it once: it is not freed before this has
        // retired it.
        let found = unsafe { &*entry };
        self.new_epoch();
        let was_met = found.met.load(Ordering::Relaxed);
        if was_met {
            self.rules.invalidate(&found.code.range());
        }
        let bytes = size_of::<Entry>() + found.code.bytes();
        let what = match found.code.kind() {
            Kind::Jit => {
                writer.memory.jit_bodies -= 1;
                Retired::Jit(OwnedEntry(entry))
            }
            Kind::Native | Kind::ReadyToRun => {
                writer.memory.modules -= 1;
                // SAFETY: made by `Box::into_raw` in `add_module`, as all that is not JITted; no
                // published list names it any more.
                Retired::Other(unsafe { Box::from_raw(entry.cast_mut()) })
            }
        };
        self.retire(writer, what, bytes);
        was_met
    }
}

#[cfg(test)]
impl CodeMap {
    /// Adds native code that no linker knows.
    pub(crate) fn add_native(&self, code: Range<u64>, native: NativeCode) -> bool {
        let code = Code::Native(code, Box::new(native));
        self.add_module(&mut self.lock(), Entry::new(code, 0))
    }
}

impl Drop for CodeMap {
    fn drop(&mut self) {
        self.remove_range(0..ADDRESS_LIMIT);
        let mut writer = self.lock();
        self.remove_modules(&mut writer, |_| true);
        let table = self.chunks.swap(std::ptr::null_mut(), Ordering::Relaxed);
        let modules = self.modules.swap(std::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw`; `&mut self` says that no thread reads them; all buckets
        // of the table and entries of the list are gone by the removals above.
        unsafe {
            if !table.is_null() {
                drop(Box::from_raw(table));
            }
            if !modules.is_null() {
                drop(Box::from_raw(modules));
            }
        }
        drop(writer);
        // All that was retired: no walk runs.
        self.reclaim();
    }
}

impl Code {
    /// Private memory behind it.
    fn bytes(&self) -> usize {
        match self {
            Code::Jit(body) => body.bytes(),
            Code::ReadyToRun(image) => size_of_val(&**image),
            Code::Native(_, code) => size_of_val(&**code) + code.bytes(),
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

/// How far into a chunk an address is; 0 for one before it.
fn offset_in(chunk: u64, address: u64) -> u16 {
    let offset = address.saturating_sub(chunk << CHUNK_SHIFT);
    u16::try_from(offset).unwrap_or(u16::MAX)
}

/// The chunks that a range touches.
fn chunks_of(range: &Range<u64>) -> Range<u64> {
    let last = range.end.saturating_sub(1).min(ADDRESS_LIMIT - 1) >> CHUNK_SHIFT;
    range.start >> CHUNK_SHIFT..last + 1
}

#[cfg(test)]
mod tests;
