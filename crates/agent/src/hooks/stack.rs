//! One thread's shadow stack and call tree.
//!
//! The thread itself writes them, in hooks and callbacks. The agent thread reads the tree, and a
//! signal handler on the thread reads [`ShadowStack::current`]. Methods and times are plain numbers
//! here: `methods` maps the former, `clock` the latter.
//!
//! A frame is identified by its caller's stack pointer, which the hooks pass. Stacks grow down, so
//! a frame has ended if its caller's stack pointer is not above that of a new call, whether or not
//! a hook reported its end. This repairs the stack after missed hooks and exception callbacks.
//!
//! Invariants: one writer, so counters need no read-modify-write. A node's method and parent never
//! change once [`ShadowStack::nodes_ready`] includes it. No lock, no allocation, no system call.
//! Memory is reserved when the thread is registered, and populated as the tree grows.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use Ordering::Relaxed;

/// The tree's root: the thread outside every hooked method.
pub(crate) const ROOT: u32 = 0;
/// The node for calls without room for a node of their own.
pub(crate) const FULL: u32 = 1;
/// Special method number: none, the root.
pub(crate) const NO_METHOD: u32 = u32::MAX;
/// Special method number: all calls below a stack of maximum depth.
pub(crate) const TRUNCATED: u32 = u32::MAX - 1;
/// Special method number: all calls without room in the tree.
pub(crate) const NO_ROOM: u32 = u32::MAX - 2;

/// Maximum number of nodes per tree.
pub(crate) const MAX_NODES: u32 = 128 * 1024;
/// Maximum number of nodes of all trees: 32 bytes each and up to 16 in the index, so 48 MiB.
const MAX_ALL_NODES: i64 = 1024 * 1024;
/// Number of nodes that a thread takes from [`MAX_ALL_NODES`] at a time.
const NODES_AT_ONCE: u32 = 256;
/// Entries of the first index. Its successors, each twice as large, follow it in memory.
const FIRST_INDEX: u32 = 256;
/// Entries of all indexes together: the last has two per node.
const ALL_INDEXES: usize = 4 * MAX_NODES as usize;

/// Number of nodes that threads may still take.
static NODES_LEFT: AtomicI64 = AtomicI64::new(MAX_ALL_NODES);

/// A call path: a method called by the path `parent`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Node {
    /// Number of calls.
    pub(crate) calls: AtomicU64,
    /// Time spent in it, excluding its callees, ticks.
    pub(crate) ticks: AtomicU64,
    /// Number of the method.
    pub(crate) method: AtomicU32,
    /// Its caller's node.
    pub(crate) parent: AtomicU32,
    /// The child called last, 0 for none.
    latest: AtomicU32,
    _pad: u32,
}

/// A call that has not returned.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct ShadowFrame {
    /// Stack pointer of its caller.
    caller: AtomicUsize,
    /// FunctionID.
    function: AtomicUsize,
    node: AtomicU32,
    /// [`UNWINDING`], [`FILTER`], [`ASYNC`], [`RESUMES`].
    flags: AtomicU32,
}

/// The second pass of an exception has reached this frame.
const UNWINDING: u32 = 1;
/// Not a call: a filter of the method runs, on top of the stack that threw.
const FILTER: u32 = 2;

/// A method of runtime async, which is entered again when it is resumed.
pub(super) const ASYNC: u32 = 4;
/// A method that resumes its callees.
pub(super) const RESUMES: u32 = 8;

/// The shadow stack and call tree of a thread.
#[derive(Debug)]
pub(crate) struct ShadowStack {
    /// Unique in the process; 0 while it belongs to no thread.
    pub(crate) serial: AtomicU32,
    /// Number of the thread in the recording.
    pub(crate) thread: AtomicU32,
    /// The thread's id in the kernel.
    pub(crate) tid: AtomicU32,
    /// Whether times are recorded.
    timed: bool,
    max_depth: u32,
    depth: AtomicU32,
    /// The node of the running call.
    current: AtomicU32,
    /// Time up to which ticks have been charged to nodes.
    charged: AtomicU64,

    /// A run of calls without frames, because the stack is too deep or the tree is full. The fields
    /// are its outermost caller's stack pointer (0: no run), and the number of calls that have not
    /// returned.
    run_caller: AtomicUsize,
    run_calls: AtomicU64,
    /// Frames without hooks that are being unwound, and filters that got no frame.
    unhooked_unwinding: AtomicU32,
    filters_skipped: AtomicU32,
    /// Number of frames found ended, and of returns without a call. For tests and debugging.
    pub(crate) healed: AtomicU64,

    /// Number of complete nodes.
    ready: AtomicU32,
    /// Number of nodes that it may have before it takes more from [`NODES_LEFT`].
    taken: AtomicU32,
    /// Entries of the index in use, a power of two; the index begins at this number minus
    /// [`FIRST_INDEX`].
    index_len: AtomicU32,
    nodes: &'static [Node],
    frames: &'static [ShadowFrame],
    index: &'static [AtomicU32],
}

/// Adds to a counter with a single writer.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
}

fn hash(parent: u32, method: u32) -> u32 {
    let both = u64::from(parent) << 32 | u64::from(method);
    // 2^64 / golden ratio; its high bits depend on all of `both`.
    (both.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

impl ShadowStack {
    /// Reserves memory for a stack, without a thread. `None` if the system has none.
    pub(crate) fn reserve(max_depth: u32, timed: bool) -> Option<ShadowStack> {
        Some(ShadowStack {
            serial: AtomicU32::new(0),
            thread: AtomicU32::new(0),
            tid: AtomicU32::new(0),
            timed,
            max_depth,
            depth: AtomicU32::new(0),
            current: AtomicU32::new(ROOT),
            charged: AtomicU64::new(0),
            run_caller: AtomicUsize::new(0),
            run_calls: AtomicU64::new(0),
            unhooked_unwinding: AtomicU32::new(0),
            filters_skipped: AtomicU32::new(0),
            healed: AtomicU64::new(0),
            ready: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            index_len: AtomicU32::new(FIRST_INDEX),
            nodes: memory::reserve(MAX_NODES as usize)?,
            frames: memory::reserve(max_depth as usize)?,
            index: memory::reserve(ALL_INDEXES)?,
        })
    }

    /// Assigns it to a thread. The caller has exclusive access. `now` in ticks.
    pub(crate) fn begin(&self, serial: u32, thread: u32, tid: u32, now: u64) {
        self.thread.store(thread, Relaxed);
        self.tid.store(tid, Relaxed);
        self.charged.store(now, Relaxed);
        for (node, method) in self.nodes.iter().zip([NO_METHOD, NO_ROOM]) {
            node.method.store(method, Relaxed);
        }
        self.ready.store(2, Relaxed);
        self.serial.store(serial, Ordering::Release);
    }

    /// Releases it after its thread's end, and returns its pages to the system.
    pub(crate) fn end(&self) {
        NODES_LEFT.fetch_add(i64::from(self.taken.load(Relaxed)), Relaxed);
        for word in [
            &self.serial,
            &self.depth,
            &self.current,
            &self.ready,
            &self.taken,
            &self.unhooked_unwinding,
            &self.filters_skipped,
        ] {
            word.store(0, Relaxed);
        }
        self.run_caller.store(0, Relaxed);
        self.run_calls.store(0, Relaxed);
        self.healed.store(0, Relaxed);
        self.index_len.store(FIRST_INDEX, Relaxed);
        memory::clear(self.nodes);
        memory::clear(self.frames);
        memory::clear(self.index);
    }

    /// Returns the node of the running call. Callable from a signal handler on the thread, at any
    /// instruction.
    pub(crate) fn current(&self) -> u32 {
        self.current.load(Relaxed)
    }

    /// Returns the time up to which ticks have been charged to nodes. For the last reading of a
    /// thread that may still run.
    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Relaxed)
    }

    /// Returns the number of nodes of the tree. Only the counters of these nodes can change.
    pub(crate) fn nodes_ready(&self) -> u32 {
        self.ready.load(Ordering::Acquire) // pairs with the Release in `add_child`
    }

    /// Returns a node.
    pub(crate) fn node(&self, node: u32) -> Option<&'static Node> {
        self.nodes.get(node as usize)
    }

    /// Returns the approximate bytes in use.
    pub(crate) fn memory(&self) -> u64 {
        u64::from(self.ready.load(Relaxed)) * size_of::<Node>() as u64
            + 8 * u64::from(self.index_len.load(Relaxed))
            + size_of::<ShadowStack>() as u64
    }

    /// Records that a method begins, or that one of runtime async is resumed. `caller` is its
    /// caller's stack pointer, `flags` are those of its frame.
    #[inline]
    pub(crate) fn enter_as(
        &self,
        method: u32,
        flags: u32,
        function: usize,
        caller: usize,
        now: u64,
    ) {
        self.charge(now);
        if self.run_caller.load(Relaxed) != 0 && self.still_in_run(caller) {
            add(&self.run_calls, 1);
            self.count(self.current());
            return;
        }
        let mut depth = self.depth.load(Relaxed);
        if let Some(top) = self.frame(depth.wrapping_sub(1))
            && top.caller.load(Relaxed) <= caller
        {
            depth = self.depth_at(depth, caller);
        }
        let parent = self.node_at(depth);
        if depth >= self.max_depth {
            self.begin_run(depth, parent, TRUNCATED, caller);
            return;
        }
        let Some(node) = self.child(parent, method) else {
            self.begin_run(depth, parent, NO_ROOM, caller);
            return;
        };
        let is_resumed = flags & ASYNC != 0
            && self
                .frame(depth.wrapping_sub(1))
                .is_some_and(|top| top.flags.load(Relaxed) & RESUMES != 0);
        if !is_resumed {
            self.count(node);
        }
        self.push(depth, node, function, caller, flags);
    }

    /// Records that a method returns, or ends with a tail call.
    #[inline]
    pub(crate) fn leave(&self, function: usize, caller: usize, now: u64) {
        self.charge(now);
        let depth = self.depth.load(Relaxed);
        if self.run_caller.load(Relaxed) == 0
            && let Some(top) = self.frame(depth.wrapping_sub(1))
            && top.caller.load(Relaxed) == caller
            && top.flags.load(Relaxed) & FILTER == 0
        {
            self.pop_to(depth - 1);
            return;
        }
        self.leave_slowly(function, caller);
    }

    #[cold]
    fn leave_slowly(&self, function: usize, caller: usize) {
        let run = self.run_caller.load(Relaxed);
        if run != 0 {
            match caller.cmp(&run) {
                std::cmp::Ordering::Less => {
                    let calls = self.run_calls.load(Relaxed);
                    self.run_calls
                        .store(calls.saturating_sub(1).max(1), Relaxed);
                    return;
                }
                std::cmp::Ordering::Equal => {
                    self.end_run();
                    return;
                }
                std::cmp::Ordering::Greater => self.end_run(),
            }
        }
        // Frames above it ended unreported.
        let mut depth = self.depth.load(Relaxed);
        while let Some(top) = self.frame(depth.wrapping_sub(1))
            && (top.caller.load(Relaxed) < caller || top.flags.load(Relaxed) & FILTER != 0)
        {
            depth -= 1;
            add(&self.healed, 1);
        }
        match self.frame(depth.wrapping_sub(1)) {
            Some(top)
                if top.caller.load(Relaxed) == caller || top.function.load(Relaxed) == function =>
            {
                depth -= 1;
            }
            // Its call began before the recording.
            _ => add(&self.healed, 1),
        }
        self.pop_to(depth);
    }

    /// `ExceptionThrown`.
    pub(crate) fn thrown(&self) {
        self.unhooked_unwinding.store(0, Relaxed);
    }

    /// `ExceptionUnwindFunctionEnter`.
    pub(crate) fn unwind_begins(&self, function: usize, now: u64) {
        self.charge(now);
        if self.run_caller.load(Relaxed) != 0 {
            return;
        }
        let mut depth = self.depth.load(Relaxed);
        // A filter has no part in the second pass, unless it threw the exception.
        while let Some(top) = self.frame(depth.wrapping_sub(1))
            && top.flags.load(Relaxed) & FILTER != 0
            && top.function.load(Relaxed) != function
        {
            depth -= 1;
        }
        self.pop_to(depth);
        match self.frame(depth.wrapping_sub(1)) {
            Some(top) if top.function.load(Relaxed) == function => {
                top.flags
                    .store(top.flags.load(Relaxed) | UNWINDING, Relaxed);
            }
            _ => bump(&self.unhooked_unwinding, 1),
        }
    }

    /// `ExceptionUnwindFunctionLeave`: the frame has ended.
    pub(crate) fn unwind_ends(&self, now: u64) {
        self.charge(now);
        if self.run_caller.load(Relaxed) != 0 {
            let calls = self.run_calls.load(Relaxed).saturating_sub(1);
            self.run_calls.store(calls, Relaxed);
            if calls == 0 {
                self.end_run();
            }
            return;
        }
        if self.unhooked_unwinding.load(Relaxed) > 0 {
            bump(&self.unhooked_unwinding, -1);
            return;
        }
        let depth = self.depth.load(Relaxed);
        if let Some(top) = self.frame(depth.wrapping_sub(1))
            && top.flags.load(Relaxed) & UNWINDING != 0
        {
            self.pop_to(depth - 1);
        }
    }

    /// `ExceptionCatcherEnter`: the frame remains, its handler runs.
    pub(crate) fn caught(&self, function: usize, now: u64) {
        self.charge(now);
        let depth = self.depth.load(Relaxed);
        match self.frame(depth.wrapping_sub(1)) {
            Some(top) if top.function.load(Relaxed) == function => {
                top.flags
                    .store(top.flags.load(Relaxed) & !UNWINDING, Relaxed);
            }
            _ if self.unhooked_unwinding.load(Relaxed) > 0 => {
                bump(&self.unhooked_unwinding, -1);
            }
            _ => {}
        }
    }

    /// `ExceptionSearchFilterEnter`: a filter of the method runs, on top of the stack that threw.
    /// It is not counted as a call, but is the caller of its callees. `method` is `None` for a
    /// method without hooks.
    pub(crate) fn filter_begins(&self, method: Option<u32>, function: usize, now: u64) {
        self.charge(now);
        let depth = self.depth.load(Relaxed);
        let parent = self.node_at(depth);
        let node = method.and_then(|method| self.child(parent, method));
        // All its callees are below the frame that threw.
        let caller = self
            .frame(depth.wrapping_sub(1))
            .map_or(usize::MAX, |top| top.caller.load(Relaxed));
        match node {
            Some(node) if self.run_caller.load(Relaxed) == 0 && depth < self.max_depth => {
                self.push(depth, node, function, caller, FILTER);
            }
            _ => bump(&self.filters_skipped, 1),
        }
    }

    /// `ExceptionSearchFilterLeave`.
    pub(crate) fn filter_ends(&self, now: u64) {
        self.charge(now);
        if self.filters_skipped.load(Relaxed) > 0 {
            bump(&self.filters_skipped, -1);
            return;
        }
        let mut depth = self.depth.load(Relaxed);
        while let Some(top) = self.frame(depth.wrapping_sub(1)) {
            depth -= 1;
            if top.flags.load(Relaxed) & FILTER != 0 {
                self.run_caller.store(0, Relaxed);
                self.pop_to(depth);
                return;
            }
        }
    }

    /// Charges the ticks since the last event to the call that ran.
    #[inline]
    fn charge(&self, now: u64) {
        if !self.timed {
            return;
        }
        let before = self.charged.load(Relaxed);
        // Clocks that differ between processors must not produce negative times.
        if now > before {
            self.charged.store(now, Relaxed);
            if let Some(node) = self.node(self.current()) {
                add(&node.ticks, now - before);
            }
        }
    }

    fn frame(&self, at: u32) -> Option<&'static ShadowFrame> {
        self.frames.get(at as usize)
    }

    /// Returns the node of the stack's top.
    fn node_at(&self, depth: u32) -> u32 {
        self.frame(depth.wrapping_sub(1))
            .map_or(ROOT, |top| top.node.load(Relaxed))
    }

    fn count(&self, node: u32) {
        if let Some(node) = self.node(node) {
            add(&node.calls, 1);
        }
    }

    #[inline]
    fn push(&self, depth: u32, node: u32, function: usize, caller: usize, flags: u32) {
        if let Some(frame) = self.frame(depth) {
            frame.caller.store(caller, Relaxed);
            frame.function.store(function, Relaxed);
            frame.node.store(node, Relaxed);
            frame.flags.store(flags, Relaxed);
            self.depth.store(depth + 1, Relaxed);
            self.run(node);
        }
    }

    #[inline]
    fn pop_to(&self, depth: u32) {
        self.depth.store(depth, Relaxed);
        self.run(self.node_at(depth));
    }

    #[inline]
    fn run(&self, node: u32) {
        // A handler on this thread that reads the number must see a complete node. Release costs
        // nothing here; the fence prevents reordering by the compiler.
        fence(Ordering::Release);
        self.current.store(node, Relaxed);
    }

    /// Returns the depth of the stack without the frames that a call at `caller` proves to have
    /// ended.
    #[cold]
    fn depth_at(&self, mut depth: u32, caller: usize) -> u32 {
        while let Some(top) = self.frame(depth.wrapping_sub(1))
            && top.caller.load(Relaxed) <= caller
        {
            depth -= 1;
            add(&self.healed, 1);
        }
        depth
    }

    /// Whether a call at `caller` is within the run of calls without frames; ends the run if not.
    #[cold]
    fn still_in_run(&self, caller: usize) -> bool {
        let still = caller < self.run_caller.load(Relaxed);
        if !still {
            add(&self.healed, 1);
            self.end_run();
        }
        still
    }

    /// Begins a run of calls without frames, with a call at `depth`.
    #[cold]
    fn begin_run(&self, depth: u32, parent: u32, why: u32, caller: usize) {
        let node = match why {
            TRUNCATED => self.child(parent, TRUNCATED).unwrap_or(FULL),
            _ => FULL,
        };
        self.run_caller.store(caller, Relaxed);
        self.run_calls.store(1, Relaxed);
        self.depth.store(depth, Relaxed);
        self.count(node);
        self.run(node);
    }

    fn end_run(&self) {
        self.run_caller.store(0, Relaxed);
        self.run_calls.store(0, Relaxed);
        self.pop_to(self.depth.load(Relaxed));
    }

    /// Returns the node of `method` called by `parent`; `None` if there is no room for it.
    #[inline]
    fn child(&self, parent: u32, method: u32) -> Option<u32> {
        let above = self.node(parent)?;
        let latest = above.latest.load(Relaxed);
        // Node 0 is the root, whose method is never passed here.
        if self.node(latest)?.method.load(Relaxed) == method {
            return Some(latest);
        }
        let child = self.find(parent, method)?;
        above.latest.store(child, Relaxed);
        Some(child)
    }

    #[inline(never)]
    fn find(&self, parent: u32, method: u32) -> Option<u32> {
        let entry = self.entry_of(parent, method)?;
        match entry.load(Relaxed) {
            0 => self.add_child(entry, parent, method),
            known => Some(known),
        }
    }

    /// Returns the index entry of a node, or the free entry for it.
    fn entry_of(&self, parent: u32, method: u32) -> Option<&'static AtomicU32> {
        let length = self.index_len.load(Relaxed);
        let begin = (length - FIRST_INDEX) as usize;
        let index = self.index.get(begin..begin + length as usize)?;
        let mask = length - 1;
        let mut at = hash(parent, method) & mask;
        // Half of the entries are free, so the loop ends.
        for _ in 0..length {
            let entry = index.get(at as usize)?;
            let known = entry.load(Relaxed);
            let node = self.node(known)?;
            if known == 0
                || node.parent.load(Relaxed) == parent && node.method.load(Relaxed) == method
            {
                return Some(entry);
            }
            at = (at + 1) & mask;
        }
        None
    }

    #[cold]
    fn add_child(&self, entry: &AtomicU32, parent: u32, method: u32) -> Option<u32> {
        let number = self.ready.load(Relaxed);
        if number >= self.taken.load(Relaxed) && !self.take_more() {
            return None;
        }
        let node = self.node(number)?;
        node.method.store(method, Relaxed);
        node.parent.store(parent, Relaxed);
        self.ready.store(number + 1, Ordering::Release); // pairs with `nodes_ready`
        entry.store(number, Relaxed);
        let length = self.index_len.load(Relaxed);
        if 2 * (number + 1) > length {
            self.grow_index(2 * length);
        }
        Some(number)
    }

    fn take_more(&self) -> bool {
        let taken = self.taken.load(Relaxed);
        if taken >= MAX_NODES {
            return false;
        }
        if NODES_LEFT.fetch_sub(NODES_AT_ONCE.into(), Relaxed) < NODES_AT_ONCE.into() {
            NODES_LEFT.fetch_add(NODES_AT_ONCE.into(), Relaxed);
            return false;
        }
        self.taken.store(taken + NODES_AT_ONCE, Relaxed);
        true
    }

    fn grow_index(&self, length: u32) {
        if (length - FIRST_INDEX) as usize + length as usize > self.index.len() {
            return;
        }
        self.index_len.store(length, Relaxed);
        for number in 2..self.ready.load(Relaxed) {
            let Some(node) = self.node(number) else {
                return;
            };
            let (parent, method) = (node.parent.load(Relaxed), node.method.load(Relaxed));
            if let Some(entry) = self.entry_of(parent, method) {
                entry.store(number, Relaxed);
            }
        }
    }
}

/// Adds to a small counter with a single writer.
fn bump(counter: &AtomicU32, by: i32) {
    counter.store(counter.load(Relaxed).saturating_add_signed(by), Relaxed);
}

/// Memory that is zero until it is written, and mapped for the life of the process.
mod memory {
    use super::{AtomicU32, Node, ShadowFrame};

    /// A type for which all-zero bytes are a valid value.
    ///
    /// # Safety
    /// All-zero bytes are a value of the type; every part of it is atomic or never written.
    pub(super) unsafe trait Zeroed: Sync {}
    // SAFETY: atomics, and padding that is never written.
    unsafe impl Zeroed for Node {}
    // SAFETY: atomics.
    unsafe impl Zeroed for ShadowFrame {}
    // SAFETY: an atomic.
    unsafe impl Zeroed for AtomicU32 {}

    /// Reserves room for `count` values. Pages are populated at the first write.
    pub(super) fn reserve<T: Zeroed>(count: usize) -> Option<&'static [T]> {
        // SAFETY: a new private mapping that no other code uses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * size_of::<T>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: page-aligned, zeroed, of that length, never unmapped. All-zero is a valid value,
        // and the memory is shared only through atomics (`Zeroed`).
        Some(unsafe { std::slice::from_raw_parts(start.cast::<T>(), count) })
    }

    /// Zeroes memory from [`reserve`] and returns its pages to the system.
    pub(super) fn clear<T: Zeroed>(values: &'static [T]) {
        // SAFETY: our own private anonymous mapping, whose pages read as zero afterwards; all-zero
        // is a value of every element, and elements are atomics, so a reader sees one or the other.
        unsafe {
            libc::madvise(
                values.as_ptr().cast_mut().cast(),
                size_of_val(values),
                libc::MADV_DONTNEED,
            )
        };
    }
}

#[cfg(test)]
mod tests;
