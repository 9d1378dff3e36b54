//! Finds the youngest resumed async method of a stack during the walk, and reads its chain.
//!
//! The chain is the list of methods that await the resumed one. Frames arrive leaf first. An async
//! method whose state machine is on the thread's stack is in its first run: its callers are the
//! physical ones, and the search continues. An async method whose state machine is in its task was
//! resumed: older frames are those of the code that resumed it, and the chain begins at the task.
//! Any other finding ends the search: a missing chain is better than another task's chain.
//!
//! Invariants: an address that may not be an object's is read through the kernel, which does not
//! fault. Objects are read only inside the heap gate. Runs in the signal handler, without locks or
//! allocations.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use stackwalk::{CodeMap, Out, lookup_address, own_memory};

use super::bodies::{AsyncBody, CodeRole, HeldIn};
use super::reader::{ChainReader, Heap};
use super::types::LinkKind;
use super::{ChainTables, HeapGate, gate};
use crate::model::chain::{CHAIN_WORDS, ChainBegin, ChainEnd, ChainHead};

/// Maximum time inside the gate, in ticks of the processor's clock: some 200 µs.
const LONGEST: u64 = 600_000;
/// Maximum time charged for a link, some 10 µs. A longer one was preempted, and the thread that
/// closes the gate has already waited for the end of that.
const LONGEST_LINK: u64 = 30_000;
/// Maximum number of bytes in a task before its state machine.
const MOST_BEFORE: u64 = 1 << 16;

/// Maximum number of frames between an async method and the code of its task that resumes it: those
/// of the ExecutionContext.
const MOST_BETWEEN: usize = 4;

/// Numbers of registers in instructions.
const RBX: u8 = 3;
const RDI: u8 = 7;

const PAGE: u64 = 4096;

/// Maximum number of reads through the kernel for one sample, some 130 µs. A method of a known type
/// needs two or three.
const MOST_QUESTIONS: u32 = 64;

/// Number of fields of a state machine that are read at once, and maximum number of such reads.
const PIECE: usize = 8;
const MOST_PIECES: u64 = 32;

/// Whether an object can be at the address.
pub(super) fn is_plausible(at: u64) -> bool {
    at.is_multiple_of(8) && (0x1_0000..1 << 47).contains(&at)
}

/// Heap objects, read by plain loads inside the gate.
struct GatedHeap<'g> {
    gate: &'g HeapGate,
    /// Time at which the previous link had been read.
    last: Cell<u64>,
    spent: Cell<u64>,
}

fn ticks() -> u64 {
    // SAFETY: every processor of this architecture has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

impl Heap for GatedHeap<'_> {
    fn word(&self, at: u64) -> Option<u64> {
        if !is_plausible(at) || !self.gate.holds() {
            return None;
        }
        // SAFETY: the address is a field of an object that a live object refers to, or of its
        // class; the gate keeps the collector from moving or freeing either, and classes that can
        // go away end a chain before they are read.
        Some(unsafe { (at as *const u64).read_volatile() })
    }

    fn is_late(&self) -> bool {
        let now = ticks();
        let link = now.saturating_sub(self.last.replace(now));
        let spent = self.spent.get().saturating_add(link.min(LONGEST_LINK));
        self.spent.set(spent);
        spent >= LONGEST
    }
}

/// Heap objects, read through the kernel at 2 µs per call on a virtual machine.
pub(super) struct CheckedHeap {
    /// Remaining number of kernel calls.
    pub(super) left: Cell<u32>,
}

impl Heap for CheckedHeap {
    fn word(&self, at: u64) -> Option<u64> {
        let [word] = self.words_at(at)?;
        Some(word)
    }

    fn is_late(&self) -> bool {
        self.left.get() == 0
    }
}

impl CheckedHeap {
    /// Reads words at an unverified address. `None` also if no kernel call is left.
    pub(super) fn words_at<const N: usize>(&self, at: u64) -> Option<[u64; N]> {
        let mut words = [0u64; N];
        (self.words_into(at, &mut words)? == N).then_some(words)
    }

    /// Reads as many words as are mapped at an unverified address. Returns their number.
    pub(super) fn words_into<const N: usize>(
        &self,
        at: u64,
        words: &mut [u64; N],
    ) -> Option<usize> {
        if !is_plausible(at) {
            return None;
        }
        self.spend(1)?;
        // SAFETY: an array of words is as many bytes, and any bytes are words.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of::<[u64; N]>())
        };
        Some(own_memory::peek(at, bytes).len() / 8)
    }

    /// Counts kernel calls. `None` if fewer are left.
    pub(super) fn spend(&self, questions: u32) -> Option<()> {
        self.left.set(self.left.get().checked_sub(questions)?);
        Some(())
    }

    /// Returns the method table of a possible object at `at`. The word at `field` is its address
    /// and has just been read.
    fn table_named_at(&self, field: u64, at: u64) -> Option<u64> {
        if !is_plausible(at) {
            return None;
        }
        let word = if at / PAGE == field / PAGE {
            // SAFETY: aligned, and in the page of a word that has just been read, in the gate: no
            // heap memory is released meanwhile.
            unsafe { (at as *const u64).read_volatile() }
        } else {
            let [word] = self.words_at(at)?;
            word
        };
        Some(word & !7)
    }
}

/// The result of the search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FoundChain {
    /// Number of frames before the chain: the method's callees and its own frame.
    callers: usize,
    links: usize,
    end: ChainEnd,
    begin: ChainBegin,
}

impl FoundChain {
    /// Returns the chain of the resumed frame at a depth, with the number of its links and their
    /// end.
    fn at(depth: usize, (links, end): (usize, ChainEnd)) -> FoundChain {
        FoundChain {
            callers: depth + 1,
            links,
            end,
            begin: ChainBegin::Method,
        }
    }
}

/// Address of a word on the thread's stack. Only [`AsyncFrameFinder::place`] makes one.
#[derive(Clone, Copy)]
pub(super) struct StackWord(u64);

impl StackWord {
    pub(super) fn read(self) -> u64 {
        // SAFETY: aligned, and between the stack pointer of a frame of the walk and the stack's
        // end, as the walk's own reads.
        unsafe { (self.0 as *const u64).read_volatile() }
    }
}

/// Receives the frames of a walk, and checks each for an async method.
pub struct AsyncFrameFinder<'a> {
    /// Frames, up to `room`; behind them room for a chain.
    pub(super) out: &'a mut [u64],
    pub(super) room: usize,
    pub(super) tables: &'static ChainTables,
    /// End of the thread's stack.
    pub(super) stack_end: u64,
    /// Index of the gate that the handler is inside of, plus 1. Read by the code that detects a
    /// handler that never returned.
    inside: &'a mut u32,
    found: Option<FoundChain>,
    /// The previous frame, whose state machine is an object. It was resumed if this frame is of
    /// code that resumes.
    undecided: Option<AsyncFrame>,
    /// The frame that begins a chain if no older one does and the agent thread confirms it: the
    /// youngest that runs a task, else the youngest whose next frame is in unknown code.
    unsure: Option<AsyncFrame>,
    /// The resumed frame, if its home is not known. The task's frame that resumes it may hold its
    /// task.
    without_home: Option<(AsyncFrame, ChainEnd)>,
    code: &'static CodeMap,
    pub(super) careful: CheckedHeap,
    /// The interrupted registers (`uc_mcontext.gregs`); 0 where they are not known.
    registers: u64,
    /// The youngest frame of a promise's own code.
    pub(super) promise: Option<AsyncFrame>,
    /// Stack pointers of the last frames, by the lowest bits of their depths.
    pub(super) sps: [u64; KEPT],
}

/// Number of frames whose stack pointers are kept.
pub(super) const KEPT: usize = 16;

/// A word that a frame keeps.
#[derive(Clone, Copy)]
enum KeptWord {
    /// On the stack.
    Here(StackWord),
    /// In a register that no younger frame has saved.
    Register(u64),
}

impl KeptWord {
    fn read(self) -> u64 {
        match self {
            KeptWord::Here(place) => place.read(),
            KeptWord::Register(value) => value,
        }
    }
}

/// A frame of an async method.
#[derive(Clone, Copy)]
pub(super) struct AsyncFrame {
    pub(super) body: &'static AsyncBody,
    pub(super) depth: usize,
    lookup: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
}

impl Out for AsyncFrameFinder<'_> {
    #[inline(always)]
    fn put(&mut self, depth: usize, word: u64, sp: u64, bp: u64) -> bool {
        let Some(slot) = self.out.get_mut(depth).filter(|_| depth < self.room) else {
            return false;
        };
        *slot = word;
        if let Some(kept) = self.sps.get_mut(depth % KEPT) {
            *kept = sp;
        }
        if self.found.is_none() {
            let lookup = lookup_address(word);
            let body = self.tables.bodies.at(lookup);
            if body.is_some() || self.undecided.is_some() || self.without_home.is_some() {
                self.look(body, depth, lookup, sp, bp);
            }
        }
        true
    }

    #[inline(always)]
    fn word(&self, at: usize) -> Option<u64> {
        self.out.get(at).copied()
    }
}

impl<'a> AsyncFrameFinder<'a> {
    /// Creates a finder that writes into `out`, which has room for frames and, behind them, a
    /// chain. `registers` are those of the walked context ([`stackwalk::Regs::all`]). `inside`
    /// belongs to the thread and is 0 at first. `None` if there is no room for a chain.
    pub fn new(
        tables: &'static ChainTables,
        code: &'static CodeMap,
        registers: u64,
        stack_end: u64,
        out: &'a mut [u64],
        inside: &'a mut u32,
    ) -> Option<AsyncFrameFinder<'a>> {
        // The program has jumped out of the handler that was inside.
        let left = std::mem::take(inside);
        if let Some(gate) = (left as usize).checked_sub(1).and_then(gate) {
            gate.leave();
        }
        let room = out.len().checked_sub(CHAIN_WORDS)?;
        Some(AsyncFrameFinder {
            out,
            room,
            tables,
            stack_end,
            inside,
            found: None,
            undecided: None,
            unsure: None,
            without_home: None,
            code,
            careful: CheckedHeap {
                left: Cell::new(MOST_QUESTIONS),
            },
            registers,
            promise: None,
            sps: [0; KEPT],
        })
    }

    /// Appends the chain to the `depth` frames of a completed walk. Returns the number of words.
    pub fn finish(mut self, depth: usize) -> usize {
        self.cannot_tell_task();
        if self.found.is_none()
            && let Some(frame) = self.unsure.take()
        {
            if frame.body.code == CodeRole::OfTask {
                self.visit_running(frame);
            } else {
                self.visit_resumed(frame);
                self.cannot_tell_task();
                if let Some(found) = &mut self.found {
                    found.begin = ChainBegin::MethodIfResumed;
                }
            }
        }
        let Some(found) = self.found else {
            return depth;
        };
        let head = ChainHead {
            older: u16::try_from(depth.saturating_sub(found.callers)).unwrap_or(u16::MAX),
            links: u16::try_from(found.links).unwrap_or(0),
            end: found.end,
            begin: found.begin,
        };
        // Downwards, as there are no more frames than room for them.
        let links = self.room..self.room.saturating_add(found.links);
        if depth > self.room || links.end >= self.out.len() {
            return depth;
        }
        self.out.copy_within(links, depth);
        let end = depth.saturating_add(found.links);
        match self.out.get_mut(end) {
            Some(slot) => *slot = head.pack(),
            None => return depth,
        }
        end + 1
    }

    /// Handles a frame of code in the table, or the next older frame of an undecided one.
    #[cold]
    #[inline(never)]
    fn look(
        &mut self,
        body: Option<&'static AsyncBody>,
        depth: usize,
        lookup: u64,
        sp: u64,
        bp: u64,
    ) {
        if let Some((frame, _)) = self.without_home {
            let is_near = depth - frame.depth <= MOST_BETWEEN;
            match body {
                Some(body) if body.code.holds_tasks() && is_near => self.visit_task(AsyncFrame {
                    body,
                    depth,
                    lookup,
                    sp,
                    bp,
                }),
                None if is_near => {}
                _ => self.cannot_tell_task(),
            }
            return;
        }
        let before = self.undecided.take();
        let Some(body) = body else {
            // Precompiled code that resumes methods is entered only after a sample contained it.
            // The agent thread will decide.
            self.unsure = self.unsure.or(before);
            return;
        };
        let here = AsyncFrame {
            body,
            depth,
            lookup,
            sp,
            bp,
        };
        match (body.code, before) {
            (CodeRole::Resumer, Some(before)) => {
                self.visit_resumed(before);
                if self.without_home.is_some() {
                    self.visit_task(here);
                }
            }
            (CodeRole::Resumer, None) => self.visit_resumer(here),
            (CodeRole::TaskHolder, before) => self.unsure = self.unsure.or(before),
            (CodeRole::Promise, before) => {
                self.unsure = self.unsure.or(before);
                self.promise = self.promise.or(Some(here));
            }
            (CodeRole::Dispatcher, _) => self.visit_dispatcher(here),
            (CodeRole::OfObject, _) => self.undecided = Some(here),
            (CodeRole::OfValue, _) => self.visit_resumed(here),
            (CodeRole::OfTask, _) => {
                let is_first = |known: &AsyncFrame| known.body.code == CodeRole::OfTask;
                self.unsure = self.unsure.filter(is_first).or(Some(here));
            }
        }
    }

    /// Returns the word at an address, if it is on this stack at or above `sp`.
    pub(super) fn place(&self, sp: u64, at: u64) -> Option<StackWord> {
        let last = self.stack_end.saturating_sub(8);
        let is_here = (sp..=last).contains(&at) && at.is_multiple_of(8);
        is_here.then_some(StackWord(at))
    }

    /// Returns the word of a frame at an offset from its frame pointer.
    fn place_of(&self, frame: &AsyncFrame, from_bp: i32) -> Option<StackWord> {
        let at = frame.bp.wrapping_add_signed(from_bp.into());
        self.place(frame.sp, at)
    }

    /// Runs a function inside the gate of a body's runtime. `None` if the gate is closed.
    fn inside<R>(
        &mut self,
        body: &AsyncBody,
        read: impl FnOnce(&mut Self, &'static HeapGate) -> R,
    ) -> Option<R> {
        let gate = gate(body.gate)?;
        *self.inside = u32::try_from(body.gate + 1).unwrap_or(0);
        let done = gate.enter().then(|| {
            let done = read(self, gate);
            gate.leave();
            done
        });
        *self.inside = 0;
        done
    }

    /// Handles a frame of an async method. It is in its first run if its state machine is on the
    /// stack, else it was resumed.
    fn visit_resumed(&mut self, frame: AsyncFrame) {
        let body = frame.body;
        let mut end = ChainEnd::NotLive;
        for home in body.homes_at(frame.lookup) {
            let Some(place) = self.place_of(&frame, home.from_bp) else {
                end = ChainEnd::Strange;
                continue;
            };
            if (frame.sp..self.stack_end).contains(&place.read()) {
                // First run.
                return;
            }
            let read = self.inside(body, |finder, gate| {
                // Read again inside the gate: the object may have moved.
                let this = place.read();
                if let Some(task) = finder.task_of(body, this) {
                    let chain = finder.chain(gate, body, task, this);
                    return Some(finder.or_awaiter(&frame, task, chain));
                }
                let table = finder.unknown_box(body, this)?;
                Some(finder.read_chain(gate, |reader| reader.last(table, ChainEnd::Unknown)))
            });
            match read {
                Some(Some(chain)) => {
                    self.found = Some(FoundChain::at(frame.depth, chain));
                    return;
                }
                Some(None) => end = self.end_without_task(),
                None => {
                    end = ChainEnd::GateClosed;
                    break;
                }
            }
        }
        if end == ChainEnd::NotLive && self.is_called(&frame) {
            return;
        }
        self.without_home = Some((frame, end));
        if end == ChainEnd::GateClosed {
            self.cannot_tell_task();
        }
    }

    /// Whether an async method without a live home is in its first run. Its state machine is then
    /// on the stack, in its caller's frame. The slot that will be or was its home shows that, as
    /// the collector does not change addresses of the stack.
    fn is_called(&self, frame: &AsyncFrame) -> bool {
        let callers = frame.bp.max(frame.sp)..self.stack_end;
        let offset = frame.lookup.wrapping_sub(frame.body.range.start);
        let starts = frame.body.homes.iter().filter_map(|home| home.live.first());
        let Some(start) = starts.map(|live| u64::from(live.start)).min() else {
            return false;
        };
        if frame.body.code != CodeRole::OfValue {
            return false;
        }
        if offset < start {
            // Not stored yet.
            return frame.depth == 0
                && self
                    .register(RDI)
                    .is_some_and(|this| (frame.sp..self.stack_end).contains(&this));
        }
        let homes = frame.body.homes.iter().filter(|home| !home.is_guess);
        let mut places = homes.filter_map(|home| self.place_of(frame, home.from_bp));
        places.any(|place| callers.contains(&place.read()))
    }

    /// Returns an interrupted register, numbered as in instructions.
    pub(super) fn register(&self, register: u8) -> Option<u64> {
        // Indices in `gregs` of the registers, in the order of their numbers in instructions.
        const PLACES: [usize; 16] = [13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7];
        let index = *PLACES.get(usize::from(register))?;
        let at = (self.registers as *const i64).wrapping_add(index);
        // SAFETY: `AsyncFrameFinder::new` was given the registers of a context, which are 23 words.
        (self.registers != 0).then(|| unsafe { at.read() }.cast_unsigned())
    }

    /// Returns the reference that a frame keeps where a collection would look for it. The frame has
    /// made a call or is the youngest.
    fn kept(&self, frame: &AsyncFrame, held: HeldIn) -> Option<KeptWord> {
        let register = match held {
            HeldIn::FromBp(offset) => return self.place_of(frame, offset).map(KeptWord::Here),
            HeldIn::Register(register) => register,
        };
        // The oldest callee that uses the register has saved it.
        for depth in (0..frame.depth).rev().take(KEPT - 1) {
            let word = self.out.get(depth)?;
            let saved = self.code.saved_registers(lookup_address(*word))?;
            if let Some(offset) = saved.from_cfa(register) {
                let [sp, cfa] = [depth, depth + 1].map(|depth| self.sps.get(depth % KEPT).copied());
                let at = cfa?.wrapping_add_signed(offset.into());
                return self.place(sp?, at).map(KeptWord::Here);
            }
        }
        (frame.depth < KEPT)
            .then(|| self.register(register))?
            .map(KeptWord::Register)
    }

    /// Handles a frame of a task's own code, which is about to resume its method or has done so. No
    /// younger frame is known to be resumed.
    fn visit_resumer(&mut self, resumer: AsyncFrame) {
        let body = resumer.body;
        let is_youngest = resumer.depth == 0;
        let registers = [RDI, RBX, 12, 13, 14, 15].map(HeldIn::Register);
        let class = (body.class != 0 && is_youngest).then_some(body.class);
        let anywhere = registers.iter().filter(|_| class.is_some());
        let held = body.held_at(resumer.lookup).filter(|_| !is_youngest);
        for held in held.chain(anywhere.copied()) {
            let Some(kept) = self.kept(&resumer, held) else {
                continue;
            };
            let read = self.inside(body, |finder, gate| {
                let task = kept.read();
                let [table] = finder.careful.words_at(task)?;
                let is_it = match class {
                    Some(class) => table & !7 == class,
                    None => matches!(
                        finder.careful().kind(table & !7),
                        Some(
                            LinkKind::Box { .. }
                                | LinkKind::Worker { .. }
                                | LinkKind::Object { .. }
                        )
                    ),
                };
                is_it.then(|| finder.read_chain(gate, |reader| reader.read(task)))
            });
            if let Some(Some(chain)) = read {
                self.found = Some(FoundChain {
                    callers: resumer.depth,
                    begin: ChainBegin::Resumer,
                    ..FoundChain::at(resumer.depth, chain)
                });
                return;
            }
        }
    }

    /// Ends the search without a task for the resumed frame.
    fn cannot_tell_task(&mut self) {
        if let Some((frame, end)) = self.without_home.take() {
            self.found = Some(FoundChain::at(frame.depth, (0, end)));
        }
    }

    /// Handles a frame of a task's own code, a caller of the resumed frame without a home. It has
    /// the task in one of its GC references. The agent thread checks that it is that method's task.
    fn visit_task(&mut self, resumer: AsyncFrame) {
        let Some((frame, _)) = self.without_home else {
            return;
        };
        let body = resumer.body;
        // The slots that hold, or held, its state machine. An object that a collection has moved
        // since is not found.
        let is_its = |finder: &Self, machine: u64| {
            frame.body.homes.iter().any(|home| {
                let place = finder.place_of(&frame, home.from_bp);
                place.is_some_and(|place| place.read() == machine)
            })
        };
        let mut candidate = None;
        for held in body.held_at(resumer.lookup) {
            let Some(kept) = self.kept(&resumer, held) else {
                continue;
            };
            let read = self.inside(body, |finder, _| {
                let task = kept.read();
                match finder.kind_at(task)? {
                    LinkKind::Box { machine, .. }
                    | LinkKind::Worker { machine, .. }
                    | LinkKind::Pooled { machine, .. } => {
                        Some(is_its(finder, task + u64::from(machine)))
                    }
                    kind => (kind.is_awaited() && body.code == CodeRole::Resumer).then_some(false),
                }
            });
            match read {
                Some(Some(true)) => {
                    candidate = Some(kept);
                    break;
                }
                Some(Some(false)) => candidate = candidate.or(Some(kept)),
                Some(None) => {}
                None => {
                    self.without_home = Some((frame, ChainEnd::GateClosed));
                    return self.cannot_tell_task();
                }
            }
        }
        let Some(kept) = candidate else {
            return;
        };
        let read = self.inside(body, |finder, gate| {
            let task = kept.read();
            finder.is_task(task).then(|| {
                let chain = finder.read_chain(gate, |reader| reader.read(task));
                finder.or_awaiter(&frame, task, chain)
            })
        });
        match read {
            Some(Some(chain)) => {
                self.without_home = None;
                self.found = Some(FoundChain::at(frame.depth, chain));
            }
            Some(None) => {}
            None => {
                self.without_home = Some((frame, ChainEnd::GateClosed));
                self.cannot_tell_task();
            }
        }
    }

    /// Handles a frame that runs a task, on a thread without a resumed async method.
    fn visit_running(&mut self, frame: AsyncFrame) {
        let body = frame.body;
        let mut found = (0, ChainEnd::NotLive);
        for home in body.homes_at(frame.lookup) {
            found = (0, ChainEnd::Strange);
            let Some(place) = self.place_of(&frame, home.from_bp) else {
                continue;
            };
            let held = place.read();
            let read = self.inside(body, |finder, gate| {
                // The address of the thread's `t_currentTask`, which refers to the task. In
                // unoptimised code: the task itself.
                let task = finder
                    .careful
                    .words_at(held)
                    .map_or(0, |[task]: [u64; 1]| task);
                let task = [task, held].into_iter().find(|task| finder.is_task(*task));
                task.map(|task| finder.read_chain(gate, |reader| reader.read(task)))
            });
            match read {
                Some(Some(chain)) => {
                    found = chain;
                    break;
                }
                Some(None) => found = (0, self.end_without_task()),
                None => {
                    found = (0, ChainEnd::GateClosed);
                    break;
                }
            }
        }
        self.found = Some(FoundChain {
            begin: ChainBegin::Task,
            ..FoundChain::at(frame.depth, found)
        });
    }

    /// Handles a frame that dispatches continuations of runtime async. Its callee is a resumed
    /// method, unless the agent thread decides otherwise.
    fn visit_dispatcher(&mut self, frame: AsyncFrame) {
        let mut found = None;
        let mut end = ChainEnd::NotLive;
        for home in frame.body.homes_at(frame.lookup) {
            let at = frame.bp.wrapping_add_signed(home.from_bp.into());
            let place = |at: Option<u64>| self.place(frame.sp, at?);
            let (Some(outer), Some(next), Some(task)) = (
                place(at.checked_sub(8)),
                place(Some(at)),
                place(at.checked_add(8)),
            ) else {
                continue;
            };
            let read = self.inside(frame.body, |finder, gate| {
                let (outer, next, task) = (outer.read(), next.read(), task.read());
                // Its dispatcher is an older frame.
                let is_outer = outer == 0 || (at..finder.stack_end).contains(&outer);
                let is_next = next == 0 || finder.is_suspended(next);
                let is_it = is_outer && is_next && finder.is_dispatched(task);
                is_it.then(|| {
                    let chain =
                        finder.read_chain(gate, |reader| reader.read_dispatched(next, task));
                    ((next, task), finder.or_awaiter(&frame, task, chain))
                })
            });
            match (read, found) {
                (None, _) => {
                    found = None;
                    end = ChainEnd::GateClosed;
                    break;
                }
                (Some(None), _) => end = self.end_without_task(),
                // Another possible slot with the same content.
                (Some(Some((here, _))), Some((before, _))) if here == before => {}
                (Some(Some(_)), Some(_)) => {
                    found = None;
                    end = ChainEnd::Strange;
                    break;
                }
                (Some(Some(here)), None) => found = Some(here),
            }
        }
        if frame.depth == 0 && found.is_none() {
            // It may not have resumed anything yet. An older frame was resumed.
            return;
        }
        let chain = found.map_or((0, end), |(_, chain)| chain);
        self.found = Some(FoundChain {
            callers: frame.depth,
            begin: ChainBegin::Dispatcher,
            ..FoundChain::at(frame.depth, chain)
        });
    }

    /// Whether a runtime-async continuation is at an unverified address, or an object of a class
    /// that is not known yet.
    fn is_suspended(&self, at: u64) -> bool {
        match self.kind_at(at) {
            Some(LinkKind::Suspended(_) | LinkKind::OfAwait { .. }) => true,
            Some(_) => false,
            None => {
                let table = self
                    .careful
                    .words_at(at)
                    .map_or(0, |[table]: [u64; 1]| table & !7);
                self.careful().is_class(table)
            }
        }
    }

    /// Whether a task that a dispatcher may run is at an unverified address.
    fn is_dispatched(&self, at: u64) -> bool {
        matches!(
            self.kind_at(at),
            Some(LinkKind::Runtime(_) | LinkKind::Task(_))
        )
    }

    /// Returns the kind of the object at an unverified address.
    pub(super) fn kind_at(&self, at: u64) -> Option<LinkKind> {
        let [table] = self.careful.words_at(at)?;
        self.careful().kind(table & !7)
    }

    /// Returns the end of a chain for a word that was not found to be a task.
    fn end_without_task(&self) -> ChainEnd {
        if self.careful.is_late() {
            ChainEnd::TooSlow
        } else {
            ChainEnd::Strange
        }
    }

    /// Whether there is a task at an address that may be anything.
    fn is_task(&self, at: u64) -> bool {
        self.kind_at(at).is_some_and(LinkKind::is_awaited)
    }

    fn chain(
        &mut self,
        gate: &HeapGate,
        body: &AsyncBody,
        task: u64,
        this: u64,
    ) -> (usize, ChainEnd) {
        self.read_chain(gate, |reader| match body.code {
            // Its continuation is in the state machine, of which only the code may be known yet.
            CodeRole::OfObject => reader.read_object(task, this, body.object),
            _ => reader.read(task),
        })
    }

    fn read_chain(
        &mut self,
        gate: &HeapGate,
        read: impl FnOnce(&mut ChainReader<'_, GatedHeap<'_>>) -> ChainEnd,
    ) -> (usize, ChainEnd) {
        let heap = GatedHeap {
            gate,
            last: Cell::new(ticks()),
            spent: Cell::new(0),
        };
        let mut reader = ChainReader {
            heap: &heap,
            types: &self.tables.types,
            links: self.out.get_mut(self.room..).unwrap_or_default(),
            count: 0,
        };
        let end = read(&mut reader);
        (reader.count, end)
    }

    /// Returns the task that contains a state machine at `this`: the one to which its builder
    /// refers, if it contains `this`.
    fn task_of(&self, body: &AsyncBody, this: u64) -> Option<u64> {
        if !is_plausible(this) {
            return None;
        }
        let Some(builder) = body.builder else {
            return self.task_anywhere(body, this);
        };
        // 3.1 has a value task's result before the field that names the task.
        let at = this.checked_add(builder.into())?;
        let named: [u64; 4] = self
            .careful
            .words_at(at)
            .or_else(|| self.careful.words_at(at).map(|[first]| [first, 0, 0, 0]))?;
        let named = (at..).step_by(8).zip(named);
        let mut tasks = named.filter(|(field, task)| match body.code {
            CodeRole::OfObject => self.refers(*task, this),
            _ => self.holds(*field, *task, this),
        });
        tasks.next().map(|(_, task)| task)
    }

    /// Returns the unknown class of the object in which a state machine at `this` seems to lie. The
    /// class of a box without a task, whose code several types share, is not reported earlier. The
    /// returned word is certainly a class, as it derives from `object`.
    fn unknown_box(&self, body: &AsyncBody, this: u64) -> Option<u64> {
        let at = this.checked_add(body.builder?.into())?;
        let [task] = self.careful.words_at(at)?;
        if body.code != CodeRole::OfValue || task >= this || this - task >= MOST_BEFORE {
            return None;
        }
        let [first] = self.careful.words_at::<1>(task)?;
        let table = first & !7;
        let types = &self.tables.types;
        (types.get(table).is_none() && self.careful().is_class(table)).then_some(table)
    }

    /// Returns the task that contains a state machine at `this`, by a search of its fields for a
    /// reference to the task.
    fn task_anywhere(&self, body: &AsyncBody, this: u64) -> Option<u64> {
        let found = body.task_found_at.load(Ordering::Relaxed);
        if let Some(before) = found.checked_sub(1) {
            let field = this.checked_add(before.into())?;
            if let Some([task]) = self.careful.words_at(field)
                && self.holds(field, task, this)
            {
                return Some(task);
            }
        }
        for piece in 0..MOST_PIECES {
            let first = this.checked_add(piece * (8 * PIECE as u64))?;
            let fields: [u64; PIECE] = self.careful.words_at(first)?;
            let mut fields = (first..).step_by(8).zip(fields);
            if let Some((field, task)) =
                fields.find(|(field, task)| self.holds(*field, *task, this))
            {
                let before = u32::try_from(field - this).ok()?;
                body.task_found_at.store(before + 1, Ordering::Relaxed);
                return Some(task);
            }
        }
        None
    }

    /// Returns a reader that may read any address.
    fn careful(&self) -> ChainReader<'_, CheckedHeap> {
        ChainReader {
            heap: &self.careful,
            types: &self.tables.types,
            links: &mut [],
            count: 0,
        }
    }

    /// Whether the task at `task` has the object at `this` for its state machine.
    fn refers(&self, task: u64, this: u64) -> bool {
        let Some([table]) = self.careful.words_at(task) else {
            return false;
        };
        let table = table & !7;
        if let Some(LinkKind::Object { machine, .. }) = self.tables.types.get(table) {
            let field = task.checked_add(machine.into());
            return field.and_then(|at| self.careful.words_at(at)) == Some([this]);
        }
        // A task of a class that is not known yet, with a field that refers to the state machine.
        let is_task = matches!(self.careful().kind(table), Some(LinkKind::Task(_)));
        let fields: Option<[u64; 16]> = self.careful.words_at(task);
        is_task && fields.is_some_and(|fields| fields.contains(&this))
    }

    /// Whether the task at `task`, which the word at `field` names, has its state machine at
    /// `this`.
    fn holds(&self, field: u64, task: u64, this: u64) -> bool {
        if task >= this || this - task >= MOST_BEFORE {
            return false;
        }
        let Some(table) = self.careful.table_named_at(field, task) else {
            return false;
        };
        match self.tables.types.get(table) {
            Some(
                LinkKind::Box { machine, .. }
                | LinkKind::Worker { machine, .. }
                | LinkKind::Pooled { machine, .. },
            ) => task + u64::from(machine) == this,
            Some(LinkKind::Task(_)) | None => {
                // A box of a class that is not known yet: derived from a task, and large enough.
                let Some([first]) = self.careful.words_at::<1>(table) else {
                    return false;
                };
                // `MethodTable::m_BaseSize`.
                let size = first >> 32;
                match self.careful().kind(table) {
                    Some(LinkKind::Box { machine, .. } | LinkKind::Worker { machine, .. }) => {
                        task + u64::from(machine) == this
                    }
                    Some(LinkKind::Task(_)) => this < task + size,
                    _ => false,
                }
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_questions_are_asked_for_a_sample_and_no_more() {
        let word = 7u64;
        let at = &raw const word as u64;
        let careful = CheckedHeap { left: Cell::new(2) };
        // A word that cannot be an address needs no kernel call.
        assert_eq!(careful.words_at::<1>(at + 1), None);
        assert_eq!(careful.words_at(at), Some([7]));
        assert!(!careful.is_late());
        // No memory is there, which is a result.
        assert_eq!(careful.words_at::<1>(0x1_0000), None);
        assert!(careful.is_late());
        assert_eq!(careful.words_at::<1>(at), None);
    }
}
