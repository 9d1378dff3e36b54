//! The stack walk: from a thread's registers to its frames, one unwind rule per frame.
//!
//! It runs in the signal handler, on the interrupted thread. The rules come from the rule cache and
//! the [`CodeMap`]. Output is the frames' addresses; symbolizing them is not part of this crate.
//! Invariants: stack memory is read within a [`Window`] only. The stack pointer rises with every
//! frame on one stack, and a walk changes stacks at most once, so a walk terminates.

use crate::cache::ADDRESS_LIMIT;
use crate::cfi::CfiFrame as _;
use crate::map::{CodeMap, MapEntry, RegionCode};
use crate::rule::{Base, Bp, Cfa, FRAME_POINTER, LEAF, Rule, Usual};
use crate::{cfi, jit, x86};
use std::ops::Range;

pub use hijack::{HIJACKS, hijack_offset};

/// Mask of the address in a word that [`walk`] writes.
pub const ADDRESS: u64 = (1 << 48) - 1;
/// Flag: the address is an instruction that has not run yet, not a return address. The source line
/// of an exact frame is that of the address itself; of any other frame, that of the address − 1.
pub const EXACT: u64 = 1 << 63;
/// Returns the address at which a word written by [`walk`] is looked up: the interrupted
/// instruction, or the call that is to return. Async-signal-safe.
#[inline]
pub fn lookup_address(word: u64) -> u64 {
    (word & ADDRESS).saturating_sub(u64::from(word & EXACT == 0))
}

/// Flag: the frame was found by the frame pointer because its callee's code has no unwind rule. A
/// frame between the two may be missing.
pub const BY_FRAME_POINTER: u64 = 1 << 62;
/// Flag: the frame was found at the top of the stack, because its callee was interrupted in code
/// without an unwind rule.
pub const HEURISTIC: u64 = 1 << 61;

/// The registers that a walk needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Regs {
    /// Instruction pointer: the instruction that would run next.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer, `rbp`.
    pub bp: u64,
    /// Address of all registers of the interrupted context (`uc_mcontext.gregs`), readable during
    /// the walk; 0 if unknown. Needed for hand-written functions that keep their caller's stack
    /// pointer in another register.
    pub all: u64,
}

/// Bounds of a thread's stacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stack {
    /// Lowest address that the thread's stack can reach, 0 if not known.
    pub low: u64,
    /// First address above the thread's stack. All memory from the stack pointer up to it is
    /// readable.
    pub end: u64,
    /// The alternate signal stack (`uc_stack` of the interrupted context), if there is one.
    pub alt: Option<Range<u64>>,
}

/// Working memory of a walk, one per thread. It lies in memory allocated beforehand, because the
/// stack of a signal handler may be small. Needs no preparation. Only its counters keep their
/// values between walks.
#[derive(Debug)]
pub struct Scratch {
    /// Addresses at which runtimes store the return addresses they replaced on this thread's stack:
    /// words in the thread's own thread objects ([`hijack_offset`]), 0 for none. The caller sets
    /// them before a walk, under the contract of [`walk`].
    pub hijacks: [u64; HIJACKS],
    pub(crate) cfi: cfi::RowProgram,
    /// Number of frames whose rule was not cached, since the scratch was created.
    pub cold: u64,
}

impl Scratch {
    /// Creates a scratch, to be stored with its thread.
    pub const fn new() -> Self {
        Self {
            hijacks: [0; HIJACKS],
            cfi: cfi::RowProgram::new(),
            cold: 0,
        }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// The result of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walk {
    /// Number of words of `out` that are frames.
    pub depth: usize,
    /// How the walk ended.
    pub end: End,
}

/// How a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// At the thread's root: the stack is complete.
    Root,
    /// `out` is full, and there is at least one more frame.
    Truncated,
    /// The last frame's caller could not be found.
    Broken(Reason),
}

/// Why a walk stopped before the root.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Reason {
    /// The stack pointer is outside the given stacks, or is not aligned.
    OffStack = 0,
    /// A rule led outside the stack's bounds, or not upwards.
    OutOfBounds = 1,
    /// The code is known but has no unwind rule, and the frame pointer gives no caller.
    NoRule = 2,
    /// The code is unknown, and the frame pointer gives no caller.
    UnknownCode = 3,
    /// The return address is not a user-space address.
    BadReturnAddress = 4,
    /// The kernel's signal frame does not have the expected form.
    BadSignalFrame = 5,
    /// The unwind table needs a register that is not tracked, or is malformed.
    UnsupportedRule = 6,
    /// The code's file was truncated, so neither the code nor its unwind table can be read.
    CutShort = 7,
    /// The return address is 0, and no thread begins there.
    Zero = 8,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 9] = [
        Reason::OffStack,
        Reason::OutOfBounds,
        Reason::NoRule,
        Reason::UnknownCode,
        Reason::BadReturnAddress,
        Reason::BadSignalFrame,
        Reason::UnsupportedRule,
        Reason::CutShort,
        Reason::Zero,
    ];

    /// Returns the reason's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::OffStack => "stack pointer outside the stack",
            Reason::OutOfBounds => "frame outside the stack",
            Reason::NoRule => "no unwind rule",
            Reason::UnknownCode => "unknown code",
            Reason::BadReturnAddress => "bad return address",
            Reason::BadSignalFrame => "bad signal frame",
            Reason::UnsupportedRule => "unsupported unwind rule",
            Reason::CutShort => "code of a file that was cut short",
            Reason::Zero => "return address of 0",
        }
    }
}

/// A frame of [`trace`]: its address with its stack and frame pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Traced {
    /// The address with its flags, as [`walk`] writes it.
    pub word: u64,
    /// The frame's stack pointer: the interrupted one for the leaf; for any other frame, its value
    /// after the callee has returned.
    pub sp: u64,
    /// The frame pointer (`rbp`) at that point.
    pub bp: u64,
}

/// Receiver of a walk's frames. Its functions must be async-signal-safe.
pub trait Out {
    /// Stores frame number `depth`, with the word of [`walk`] and the pointers of [`trace`].
    /// Returns false if there is no room.
    fn put(&mut self, depth: usize, word: u64, sp: u64, bp: u64) -> bool;
    /// Returns the word of a stored frame.
    fn word(&self, at: usize) -> Option<u64>;
}

impl Out for [u64] {
    #[inline(always)]
    fn put(&mut self, depth: usize, word: u64, _sp: u64, _bp: u64) -> bool {
        let slot = self.get_mut(depth);
        let fits = slot.is_some();
        if let Some(slot) = slot {
            *slot = word;
        }
        fits
    }
    #[inline(always)]
    fn word(&self, at: usize) -> Option<u64> {
        self.get(at).copied()
    }
}

impl Out for [Traced] {
    fn put(&mut self, depth: usize, word: u64, sp: u64, bp: u64) -> bool {
        let slot = self.get_mut(depth);
        let fits = slot.is_some();
        if let Some(slot) = slot {
            *slot = Traced { word, sp, bp };
        }
        fits
    }
    fn word(&self, at: usize) -> Option<u64> {
        self.get(at).map(|frame| frame.word)
    }
}

/// Reads memory at addresses that a [`Window`] has checked.
pub(crate) trait Load {
    /// Returns the word at `address`.
    ///
    /// # Safety
    /// `address` is 8-aligned and the eight bytes are readable.
    unsafe fn load(&self, address: u64) -> u64;
    /// Whether a frame interrupted at `sp` may be read below it, in its red zone.
    fn reaches_below(&self, sp: u64, stack: &Stack) -> bool;
}

/// This process's memory.
struct Process;

impl Load for Process {
    #[inline(always)]
    unsafe fn load(&self, address: u64) -> u64 {
        // SAFETY: promised by the caller. Volatile: the word may belong to another function's
        // live frame, which the compiler must not reason about.
        unsafe { (address as *const u64).read_volatile() }
    }

    /// True on the handler's own stack only: the walk itself runs below, so everything in between
    /// is mapped. Other stacks give no such guarantee.
    fn reaches_below(&self, sp: u64, stack: &Stack) -> bool {
        let here = 0u8;
        let here = &raw const here as u64;
        let apart = stack
            .alt
            .as_ref()
            .is_some_and(|alt| alt.contains(&here) != alt.contains(&sp));
        here < sp && !apart
    }
}

/// The part of a stack that may be read.
#[derive(Clone, Copy)]
struct Window {
    low: u64,
    /// Last address at which a whole word fits.
    last: u64,
}

impl Window {
    fn new(low: u64, end: u64) -> Option<Window> {
        let last = end.checked_sub(8)?;
        (low.is_multiple_of(8) && low <= last).then_some(Window { low, last })
    }

    /// Reads a word of a stack. The only other place that does is the fast path in [`walk_in`].
    #[inline(always)]
    fn word(&self, memory: &impl Load, address: u64) -> Option<u64> {
        if address < self.low || address > self.last || !address.is_multiple_of(8) {
            return None;
        }
        // SAFETY: aligned and between the interrupted stack pointer and the stack's end, which the
        // caller of `walk` guarantees.
        Some(unsafe { memory.load(address) })
    }
}

/// Walks a stack from `regs` into `out`, leaf first. Returns the depth and how the walk ended.
///
/// Each word of `out` is an address ([`ADDRESS`]) with the flags [`EXACT`], [`BY_FRAME_POINTER`]
/// and [`HEURISTIC`]. Async-signal-safe: no lock, no allocation, no libc; at most `out.len()`
/// frames.
///
/// # Safety
/// `regs` are those of the calling thread at a point where it is stopped: it runs this in a signal
/// handler, or it captured them itself in a caller. All memory from `regs.sp` to the end of the
/// stack that contains it (`stack.end`, or the end of `stack.alt`) is mapped and readable. If
/// `stack.alt` contains it, so is the thread's stack from the stack pointer that the signal
/// interrupted. `regs.all` is 0 or the address of a `gregset_t` that stays readable until the walk
/// has ended. Each of `scratch.hijacks` is 0 or the address of two aligned words that stay readable
/// until the walk has ended.
pub unsafe fn walk(
    map: &CodeMap,
    regs: Regs,
    stack: &Stack,
    scratch: &mut Scratch,
    out: &mut [u64],
) -> Walk {
    walk_in(&Process, map, regs, stack, scratch, out)
}

/// As [`walk`], with the stack and frame pointers of each frame. A seed of `DoStackSnapshot` and a
/// merge by stack pointer need them.
///
/// # Safety
/// As [`walk`].
pub unsafe fn trace(
    map: &CodeMap,
    regs: Regs,
    stack: &Stack,
    scratch: &mut Scratch,
    out: &mut [Traced],
) -> Walk {
    walk_in(&Process, map, regs, stack, scratch, out)
}

/// As [`walk`], into any receiver of frames, which may inspect each one during the walk.
///
/// # Safety
/// As [`walk`].
pub unsafe fn walk_into(
    map: &CodeMap,
    regs: Regs,
    stack: &Stack,
    scratch: &mut Scratch,
    out: &mut impl Out,
) -> Walk {
    walk_in(&Process, map, regs, stack, scratch, out)
}

/// The frame that a step starts from.
#[derive(Clone, Copy)]
struct Here {
    ip: u64,
    sp: u64,
    bp: u64,
    /// Whether its instruction has not run yet.
    exact: bool,
}

/// The frame that a step leads to.
#[derive(Clone, Copy)]
struct To {
    ip: u64,
    sp: u64,
    bp: u64,
}

/// Result of a step.
enum Step {
    To {
        regs: To,
        flags: u64,
    },
    /// The frame's return address was replaced. This is the original one.
    Instead(u64),
    Root,
    /// The return address is 0. The CFA.
    Zero(u64),
    Broken(Reason),
}

impl Step {
    /// Step to a caller whose address was read.
    #[inline(always)]
    fn to(regs: To, flags: u64) -> Step {
        match regs.ip {
            0 => Step::Zero(regs.sp),
            1..ADDRESS_LIMIT => Step::To { regs, flags },
            _ => Step::Broken(Reason::BadReturnAddress),
        }
    }
}

/// [`walk`] over any kind of memory.
pub(crate) fn walk_in(
    memory: &impl Load,
    map: &CodeMap,
    regs: Regs,
    stack: &Stack,
    scratch: &mut Scratch,
    out: &mut (impl Out + ?Sized),
) -> Walk {
    let on_alt = stack.alt.as_ref().filter(|alt| alt.contains(&regs.sp));
    let end = on_alt.map_or(stack.end, |alt| alt.end);
    let mut walker = Walker {
        memory,
        map,
        stack,
        scratch,
        on_alt: on_alt.is_some(),
        window: Window { low: 0, last: 0 },
        bottom: 0,
        callee: None,
        assumed: 0,
        all: regs.all,
    };
    let window = if on_alt.is_some() || regs.sp >= stack.low {
        Window::new(regs.sp, end)
    } else {
        None
    };
    let (mut flags, mut depth) = (EXACT, 0);
    // Three locals, not a struct, so that they stay in registers from one frame to the next.
    let Regs {
        mut ip,
        mut sp,
        mut bp,
        all: _,
    } = regs;
    let end = loop {
        if !out.put(depth, ip & ADDRESS | flags, sp, bp) {
            break End::Truncated;
        }
        depth += 1;
        if depth == 1 {
            match window {
                Some(window) => (walker.window, walker.bottom) = (window, window.low),
                None => break End::Broken(Reason::OffStack),
            }
        }
        // Fast path: a cached rule of the usual kind. It serves nearly all frames, by a few
        // dependent loads with no branch on the kind of frame.
        let exact = flags & EXACT != 0;
        let lookup = ip.wrapping_sub(u64::from(!exact));
        if let Some(usual) = map.rules.get(lookup).and_then(Usual::new) {
            let cfa = usual.cfa(sp, bp);
            let bp_slot = cfa.wrapping_sub(usual.bp_below());
            let ra_slot = cfa.wrapping_sub(8);
            let last = walker.window.last;
            if cfa <= sp || ra_slot > last || bp_slot < sp || bp_slot > ra_slot || cfa & 7 != 0 {
                break End::Broken(Reason::OutOfBounds);
            }
            // SAFETY: both slots are aligned as the CFA is, and sp <= bp_slot <= ra_slot <= last,
            // which is the window as `Window::word` checks it.
            let (ra, saved_bp) = unsafe { (memory.load(ra_slot), memory.load(bp_slot)) };
            bp = if usual.same_bp() { bp } else { saved_bp };
            flags = if usual.assumed() { BY_FRAME_POINTER } else { 0 };
            (ip, sp) = (ra, cfa);
            match ip {
                1..ADDRESS_LIMIT => continue,
                0 => break end_at_zero(cfa, stack),
                _ => break End::Broken(Reason::BadReturnAddress),
            }
        }
        walker.window.low = sp;
        walker.callee = depth.checked_sub(2).and_then(|at| out.word(at));
        match walker.step(Here { ip, sp, bp, exact }, lookup) {
            Step::To { regs, flags: how } => (ip, sp, bp, flags) = (regs.ip, regs.sp, regs.bp, how),
            Step::Instead(true_ip) => (ip, flags, depth) = (true_ip, 0, depth.saturating_sub(1)),
            Step::Root => break End::Root,
            Step::Zero(cfa) => break end_at_zero(cfa, stack),
            Step::Broken(reason) => break End::Broken(reason),
        }
    };
    Walk { depth, end }
}

/// Greatest distance of a thread's first frame from the end of its stack, bytes. The ABI aligns its
/// CFA to 16 bytes (System V ABI of x86-64, section 3.2.2), and what starts a thread leaves it a
/// few words above.
const STACK_TOP: u64 = 64;

/// Returns how a walk ends at a return address of 0 that an unwind rule led to. A thread that was
/// started without a caller has one at the top of its stack. Elsewhere it is memory that is not
/// written yet or not part of a frame, or the code moves its stack without its table saying so.
#[cold]
#[inline(never)]
fn end_at_zero(cfa: u64, stack: &Stack) -> End {
    match stack.end.checked_sub(cfa) {
        Some(..=STACK_TOP) => End::Root,
        _ => End::Broken(Reason::Zero),
    }
}

struct Walker<'a, M> {
    memory: &'a M,
    map: &'a CodeMap,
    stack: &'a Stack,
    scratch: &'a mut Scratch,
    on_alt: bool,
    /// The readable part, from the current frame's stack pointer up.
    window: Window,
    /// Stack pointer at which this stack's part of the walk began.
    bottom: u64,
    /// The word of `out` before the current frame's: the callee.
    callee: Option<u64>,
    /// Number of consecutive steps by the frame pointer through unknown code.
    assumed: u32,
    /// Address of all registers of the frame that was interrupted last; 0 if unknown.
    all: u64,
}

/// The known registers and memory of a frame.
struct KnownFrame<'a, M> {
    memory: &'a M,
    stack: &'a Stack,
    window: Window,
    all: u64,
    here: Here,
}

impl<M: Load> cfi::CfiFrame for KnownFrame<'_, M> {
    fn register(&self, register: u64) -> Option<u64> {
        let here = self.here;
        match register {
            6 => return Some(here.bp),
            7 => return Some(here.sp),
            16 => return Some(here.ip),
            _ => {}
        }
        let index = *GREGS.get(usize::try_from(register).ok()?)?;
        (here.exact && self.all != 0).then(|| {
            // SAFETY: `all` is guaranteed by the caller of `walk`, or lies in the window that
            // `leave_signal` has checked to the end of the context's registers.
            unsafe { self.memory.load(self.all.wrapping_add(index as u64 * 8)) }
        })
    }

    /// Returns a word from the frame's stack pointer up, or in its red zone.
    fn word(&self, address: u64) -> Option<u64> {
        let here = self.here;
        let below = here.sp.wrapping_sub(address);
        let mut window = self.window;
        if here.exact
            && (1..=RED_ZONE.unsigned_abs().into()).contains(&below)
            && self.memory.reaches_below(here.sp, self.stack)
        {
            window.low = address;
        }
        window.word(self.memory, address)
    }
}

/// Maximum number of consecutive frames of unknown code that are accepted.
const ASSUMED_LIMIT: u32 = 16;

impl<'a, M: Load> Walker<'a, M> {
    /// Slow path: a rule of another kind, or one that is not cached.
    #[inline(never)]
    fn step(&mut self, here: Here, lookup: u64) -> Step {
        match self.map.rules.get(lookup).and_then(Rule::unpack) {
            Some(rule) => self.apply(rule, here),
            None => self.step_cold(here, lookup),
        }
    }

    /// Steps to the caller by a known rule.
    fn apply(&mut self, rule: Rule, here: Here) -> Step {
        let (cfa, ra, bp, assumed) = match rule {
            Rule::Root => return Step::Root,
            Rule::SignalFrame => return self.leave_signal(here),
            Rule::HijackStub(offset) => return self.leave_hijack_stub(here, offset),
            Rule::Landing(register) => return self.step_landing(here, register.into()),
            // This rule is never cached, and one found in the table has been evaluated already.
            Rule::Evaluate => return Step::Broken(Reason::UnsupportedRule),
            Rule::Frame {
                cfa,
                ra,
                bp,
                assumed,
            } => (cfa, ra, bp, assumed),
        };
        let cfa = match cfa {
            Cfa::Sp(offset) => here.sp.checked_add_signed(offset.into()),
            Cfa::Bp(offset) => here.bp.checked_add_signed(offset.into()),
            Cfa::Slot(offset) => (here.bp.checked_add_signed(offset.into()))
                .and_then(|address| self.known_frame(here).word(address)),
            Cfa::Word(base, at, add) => {
                let base = match base {
                    Base::Sp => here.sp,
                    Base::Bp => here.bp,
                };
                (base.checked_add_signed(at.into()))
                    .and_then(|address| self.known_frame(here).word(address))
                    .and_then(|word| word.checked_add_signed(add.into()))
            }
            Cfa::Other(register, offset) => {
                let register = register.into();
                (self.known_frame(here).register(register))
                    .or_else(|| self.saved_by_callee(here, register))
                    .and_then(|value| value.checked_add_signed(offset.into()))
                    .filter(|cfa| here.exact || self.is_caller_at(*cfa, ra))
            }
        };
        if cfa.is_none()
            && let Rule::Frame {
                cfa: Cfa::Other(..),
                ..
            } = rule
        {
            return self.guess(here, Reason::UnsupportedRule);
        }
        let mut flags = if assumed { BY_FRAME_POINTER } else { 0 };
        if ra <= -8 - RED_ZONE {
            // A frame made for a fault: its "return address" is the instruction that faulted, and
            // its CFA that instruction's stack pointer (the runtime's `CallSignalHandlerWrapper`,
            // pal/src/arch/amd64/signalhandlerhelper.cpp).
            flags |= EXACT;
            self.all = 0;
        }
        self.caller_at(here, cfa, ra, bp, flags)
            .unwrap_or(Step::Broken(Reason::OutOfBounds))
    }

    /// Steps to the frame that the next instruction jumps to. This is the only step that does not
    /// go up the stack. It happens at most once per interruption, because only three registers of
    /// the next frame are known.
    #[cold]
    #[inline(never)]
    fn step_landing(&mut self, here: Here, register: u64) -> Step {
        let Some(ip) = self.known_frame(here).register(register) else {
            return self.guess(here, Reason::UnsupportedRule);
        };
        self.all = 0;
        let Here { sp, bp, .. } = here;
        match Step::to(To { ip, sp, bp }, EXACT) {
            // The address is not a return address, so 0 does not mean the root.
            Step::Zero(_) => Step::Broken(Reason::BadReturnAddress),
            step => step,
        }
    }

    /// Returns the known registers and memory of a frame.
    fn known_frame(&self, here: Here) -> KnownFrame<'a, M> {
        KnownFrame {
            memory: self.memory,
            stack: self.stack,
            window: self.window,
            all: self.all,
            here,
        }
    }

    /// Returns the step to the caller whose frame begins at `cfa`, or `None` if that is not upwards
    /// on this stack.
    fn caller_at(
        &mut self,
        here: Here,
        cfa: Option<u64>,
        ra: i32,
        bp: Bp,
        flags: u64,
    ) -> Option<Step> {
        let cfa = cfa.filter(|cfa| *cfa > here.sp && cfa.is_multiple_of(8))?;
        let ip = self
            .window
            .word(self.memory, cfa.checked_add_signed(ra.into())?)?;
        let bp = match bp {
            Bp::Same => here.bp,
            Bp::FromCfa(at) => self
                .window
                .word(self.memory, cfa.checked_add_signed(at.into())?)?,
            Bp::FromOwn(at) => self
                .window
                .word(self.memory, here.bp.checked_add_signed(at.into())?)?,
        };
        self.window.low = cfa;
        Some(Step::to(To { ip, sp: cfa, bp }, flags))
    }

    /// Steps to the caller by a rule that must be looked up first.
    #[cold]
    #[inline(never)]
    fn step_cold(&mut self, here: Here, lookup: u64) -> Step {
        self.scratch.cold += 1;
        let map = self.map;
        let epoch = map.epoch();
        let reader = map.grace.enter();
        let Some(entry) = map.find(&reader, lookup) else {
            return self.step_unreported(here, lookup);
        };
        entry.mark_walked();
        if entry.code.is_cut_short() {
            return self.guess(here, Reason::CutShort);
        }
        let before_stub = hijack::is_before_stub(&entry.code, lookup);
        if before_stub
            && !here.exact
            && let Some(step) = self.step_hijacked(here, lookup)
        {
            return step;
        }
        self.assumed = 0;
        match entry.code.rule(lookup, here.exact, &mut self.scratch.cfi) {
            Ok(Some(Rule::Evaluate)) => self.step_evaluated(&entry.code, here),
            Ok(Some(rule)) => {
                if let Some(packed) = rule.pack()
                    && !before_stub
                {
                    map.keep_rule(entry, lookup, packed, epoch);
                }
                self.apply(rule, here)
            }
            Ok(None) => self.guess(here, Reason::NoRule),
            Err(cfi::Unsupported) => self.guess(here, Reason::UnsupportedRule),
        }
    }

    /// Steps to the caller of a frame in code that is not in the map: by its runtime's records, or
    /// by a guess.
    #[cold]
    #[inline(never)]
    fn step_unreported(&mut self, here: Here, lookup: u64) -> Step {
        let Some(code) = self.map.unreported_code(lookup) else {
            return self.guess(here, Reason::UnknownCode);
        };
        let Some(rule) = jit::unreported::rule(code, lookup, here.exact) else {
            return self.guess(here, Reason::NoRule);
        };
        self.map.unreported.mark_walked(code);
        self.assumed = 0;
        self.apply(rule, here)
    }

    /// Steps to the caller of a frame whose table, read just before, must be evaluated with the
    /// frame's registers and memory.
    #[cold]
    #[inline(never)]
    fn step_evaluated(&mut self, code: &RegionCode, here: Here) -> Step {
        let known_frame = self.known_frame(here);
        let caller = match code {
            RegionCode::Native(_, code) => cfi::evaluate(code, &known_frame, &mut self.scratch.cfi),
            RegionCode::Jit(_) | RegionCode::ReadyToRun(_) => None,
        };
        let Some(caller) = caller else {
            return self.guess(here, Reason::UnsupportedRule);
        };
        let cfi::Caller { cfa, ip, bp, exact } = caller;
        if cfa <= here.sp || !cfa.is_multiple_of(8) || cfa > self.window.last.wrapping_add(8) {
            return Step::Broken(Reason::OutOfBounds);
        }
        self.window.low = cfa;
        let flags = if exact {
            self.all = 0;
            EXACT
        } else {
            0
        };
        Step::to(To { ip, sp: cfa, bp }, flags)
    }

    /// Returns a frame's register that its callee preserved. The callee may have saved it: the
    /// dynamic linker's trampoline for lazily bound functions has its frame in `rbx`. Or an
    /// interrupted callee has not changed it: OpenSSL's assembler calls its own functions, which do
    /// not touch the register that holds the caller's frame.
    fn saved_by_callee(&mut self, here: Here, register: u64) -> Option<u64> {
        let callee = self.callee.filter(|_| !here.exact)?;
        let exact = callee & EXACT != 0;
        let lookup = (callee & ADDRESS).checked_sub(u64::from(!exact))?;
        let reader = self.map.grace.enter();
        let RegionCode::Native(_, code) = &self.map.find(&reader, lookup)?.code else {
            return None;
        };
        match cfi::register_home(code, lookup, register, &mut self.scratch.cfi)? {
            // The callee's CFA is this frame's stack pointer. The slot is below it, in the part
            // that was walked already.
            cfi::RegisterHome::At(below) => Window {
                low: self.bottom,
                last: self.window.last,
            }
            .word(self.memory, here.sp.checked_add_signed(below)?),
            cfi::RegisterHome::Same => self.known_frame(Here { exact, ..here }).register(register),
        }
    }

    /// Whether the return address slot of `cfa` holds a plausible return address. A register of a
    /// frame that was not interrupted may hold anything.
    fn is_caller_at(&self, cfa: u64, ra: i32) -> bool {
        let slot = cfa.checked_add_signed(ra.into());
        let ip = slot.and_then(|slot| self.window.word(self.memory, slot));
        ip.is_some_and(|ip| self.map.is_behind_call(ip))
    }

    /// Guesses the caller of code without a rule. Every caller found here is marked, by
    /// [`HEURISTIC`] or [`BY_FRAME_POINTER`].
    fn guess(&mut self, here: Here, reason: Reason) -> Step {
        if here.exact {
            // Stubs push at most two words, and most push none, so the return address is at the
            // top. Frames of compiled functions may contain old return addresses. There it must be
            // that of a call to this very function, before it has pushed anything.
            let is_compiled = self.is_native(here.ip);
            let pushed = if is_compiled { 0..1 } else { 0..3u64 };
            for slot in pushed.map(|pushed| here.sp.wrapping_add(pushed * 8)) {
                if let Some(ip) = self.window.word(self.memory, slot)
                    && self.map.is_behind_call(ip)
                    && (!is_compiled || self.map.is_behind_call_of(ip, here.ip))
                {
                    let cfa = slot.checked_add(8);
                    return self
                        .caller_at(here, cfa, LEAF_RA, Bp::Same, HEURISTIC)
                        .unwrap_or(Step::Broken(reason));
                }
            }
        }
        let saved_ip = here
            .bp
            .checked_add(8)
            .and_then(|slot| self.window.word(self.memory, slot));
        let Some(ip) = saved_ip else {
            return Step::Broken(reason);
        };
        if !self.map.is_behind_call(ip) {
            self.assumed += 1;
            let known = {
                let reader = self.map.grace.enter();
                self.map.find(&reader, ip.wrapping_sub(1)).is_some()
            };
            // A return address in known code would follow a call.
            if known || self.assumed > ASSUMED_LIMIT {
                return Step::Broken(reason);
            }
        }
        match self.apply(FRAME_POINTER, here) {
            // A guessed zero is not the root.
            Step::Broken(_) | Step::Zero(_) => Step::Broken(reason),
            step => step,
        }
    }

    /// Whether `ip` is in known native code.
    fn is_native(&self, ip: u64) -> bool {
        let reader = self.map.grace.enter();
        let entry = self.map.find(&reader, ip);
        entry.is_some_and(|entry| matches!(entry.code, RegionCode::Native(..)))
    }

    /// Steps from the kernel's signal frame to the interrupted registers.
    #[cold]
    #[inline(never)]
    fn leave_signal(&mut self, here: Here) -> Step {
        let at = |offset: u64| {
            here.sp
                .checked_add(offset)
                .and_then(|slot| self.window.word(self.memory, slot))
        };
        let registers = (|| {
            // Code and stack segment of a 64-bit user thread, and the FPU state above them.
            let segments = at(UC_SEGMENTS)?;
            let fpu = at(UC_FPU)?;
            let user = segments as u16 == USER_CODE_SEGMENT;
            let fpu_near = fpu == 0 || (here.sp..=self.window.last).contains(&fpu);
            let ip = at(UC_RIP)?;
            (user && fpu_near && (1..ADDRESS_LIMIT).contains(&ip)).then_some(To {
                ip,
                sp: at(UC_RSP)?,
                bp: at(UC_RBP)?,
            })
        })();
        let Some(to) = registers else {
            return Step::Broken(Reason::BadSignalFrame);
        };
        let window = if self.on_alt
            && !self
                .stack
                .alt
                .as_ref()
                .is_some_and(|alt| alt.contains(&to.sp))
        {
            self.on_alt = false;
            let low = to.sp.max(self.stack.low);
            Window::new(to.sp, self.stack.end).filter(|_| low == to.sp)
        } else {
            Window::new(to.sp, self.window.last.saturating_add(8)).filter(|_| to.sp > here.sp)
        };
        match window {
            Some(window) => {
                self.window = window;
                self.bottom = window.low;
                self.all = here.sp.wrapping_add(UC_GREGS);
                Step::To {
                    regs: to,
                    flags: EXACT,
                }
            }
            None => Step::Broken(Reason::BadSignalFrame),
        }
    }
}

/// Size in bytes of the area below the stack pointer that belongs to the interrupted function
/// (System V ABI of x86-64, section 3.2.2).
const RED_ZONE: i32 = 128;

/// Indexes of the registers in a `gregset_t`, by their DWARF numbers: `rax` … `r15`.
const GREGS: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RDX,
    libc::REG_RCX,
    libc::REG_RBX,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_RBP,
    libc::REG_RSP,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Offset of the return address from the CFA: the word below it.
const LEAF_RA: i32 = match LEAF {
    Rule::Frame { ra, .. } => ra,
    _ => -8,
};

// Offsets in the kernel's `struct ucontext` of x86-64 (asm/ucontext.h, asm/sigcontext.h): flags,
// link and the stack are 40 bytes, followed by the registers.
const UC_GREGS: u64 = 40;
const UC_RBP: u64 = 40 + 8 * libc::REG_RBP as u64;
const UC_RSP: u64 = 40 + 8 * libc::REG_RSP as u64;
const UC_RIP: u64 = 40 + 8 * libc::REG_RIP as u64;
const UC_SEGMENTS: u64 = 40 + 8 * libc::REG_CSGSFS as u64;
const UC_FPU: u64 = 40 + 8 * 23;
/// `__USER_CS`
const USER_CODE_SEGMENT: u16 = 0x33;

impl CodeMap {
    /// Whether `address` is in known code and the instruction before it is a call, as for a return
    /// address. Async-signal-safe; the code must not be unmapped meanwhile.
    pub fn is_behind_call(&self, address: u64) -> bool {
        let reader = self.grace.enter();
        let Some(before) = address.checked_sub(1) else {
            return false;
        };
        let Some(entry) = self.find(&reader, before) else {
            return self.unreported_code(before).is_some() && is_behind_unknown_call(address);
        };
        !entry.code.is_cut_short() && x86::ends_in_call(entry.code_before(address, &mut [0; 8]))
    }

    /// Whether the instruction before `address`, in known code, is a direct call of the function
    /// that contains `ip`. It does not know the function's bounds, so the result is an estimate.
    /// Async-signal-safe, as [`CodeMap::is_behind_call`].
    fn is_behind_call_of(&self, address: u64, ip: u64) -> bool {
        let reader = self.grace.enter();
        let entry = address
            .checked_sub(1)
            .and_then(|before| self.find(&reader, before))
            .filter(|entry| !entry.code.is_cut_short());
        let mut window = [0; 8];
        let before = entry.map(|entry| entry.code_before(address, &mut window));
        let target = before.and_then(|before| x86::direct_call_target(before, address));
        target.is_some_and(|target| {
            ip.checked_sub(target)
                .is_some_and(|into| into < LONGEST_LEAF)
        })
    }
}

/// Maximum distance of an instruction from the start of a function without a frame, bytes.
const LONGEST_LEAF: u64 = 4096;

/// As [`CodeMap::is_behind_call`], for unknown code, which may be unmapped: the kernel reads it.
/// Async-signal-safe.
pub fn is_behind_unknown_call(address: u64) -> bool {
    const LONGEST: usize = 8;
    let mut before = [0; LONGEST];
    let found = crate::own_memory::peek(address.wrapping_sub(LONGEST as u64), &mut before);
    found.len() == LONGEST && x86::ends_in_call(found)
}

impl MapEntry {
    /// Returns up to 8 bytes of code that end before `address`.
    fn code_before<'a>(&'a self, address: u64, window: &'a mut [u8; 8]) -> &'a [u8] {
        let start = address.saturating_sub(8).max(self.code.range().start);
        let bytes = match &self.code {
            RegionCode::Native(_, code) => code.code_at(start, window),
            RegionCode::Jit(body) => body.bytes_at(start),
            RegionCode::ReadyToRun(image) => image.bytes_at(start),
        };
        bytes
            .get(..address.saturating_sub(start) as usize)
            .unwrap_or_default()
    }
}

/// Returns the registers and the alternate stack of an interrupted context. The registers are valid
/// for as long as the context is.
///
/// The alternate stack is the thread's own, as it was set when the signal arrived; `None` if it has
/// none. Async-signal-safe.
///
/// # Safety
/// `context` is the third argument of a handler installed with SA_SIGINFO, still valid.
pub unsafe fn regs_from_ucontext(context: *const libc::ucontext_t) -> (Regs, Option<Range<u64>>) {
    // SAFETY: promised by the caller.
    let context = unsafe { &*context };
    let [.., bp, _, _, _, _, sp, ip, _, _, _, _, _, _] = context.uc_mcontext.gregs;
    let stack = &context.uc_stack;
    let start = stack.ss_sp as u64;
    let on = stack.ss_flags & libc::SS_DISABLE == 0 && stack.ss_size > 0;
    let alt = start
        .checked_add(stack.ss_size as u64)
        .filter(|_| on)
        .map(|end| start..end);
    (
        Regs {
            ip: ip as u64,
            sp: sp as u64,
            bp: bp as u64,
            all: context.uc_mcontext.gregs.as_ptr() as u64,
        },
        alt,
    )
}

pub(crate) mod hijack;
#[cfg(test)]
mod tests;
