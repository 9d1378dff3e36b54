//! JIT bodies: reads the unwind rules of code that the CLR's JIT compiled.
//!
//! Input is a body's address, as reported by the runtime's JITCompilationFinished or found in its
//! heaps ([`crate::heaps`]); output is a [`Body`] for the code map. Invariant: private structures
//! of the runtime are used only if they are consistent in themselves and with the profiling API.
//! Otherwise the instructions of the prologue are decoded. If that fails, the frame pointer is
//! assumed, and the frame is marked.
//!
//! Source of the layout: dotnet/runtime `vm/codeman.h` (`CodeHeader`, `RealCodeHeader`),
//! `inc/win64unwind.h`, `jit/unwindamd64.cpp`; it holds on 3.1 and 8.

use crate::debug_info::{self, Skipped};
use crate::gc_info::{self, GcInfo};
use crate::own_memory::{peek, read_in_place};
use crate::rule::{FRAME_POINTER, Rule};
use crate::unwind_info::Saved;
use crate::{unwind_info, x86};
use functions::{Functions, FunctionsBuilder};

mod functions;
pub(crate) mod unreported;

/// Source of a body's unwind rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum RuleSource {
    /// The UNWIND_INFO that the JIT stored with the code.
    Header = 0,
    /// The decoded instructions of the prologue.
    Prologue = 1,
    /// None: the frame pointer is assumed.
    FramePointer = 2,
}

/// Why a code header was rejected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Mismatch {
    /// The memory before the code, or what it points to, cannot be read.
    Unreadable = 0,
    /// The word before the code is not a pointer to a code header.
    NoHeader = 1,
    /// No word of the header is the method that the profiling API reported.
    OtherMethod = 2,
    /// Ranges or unwind data are not consistent.
    Inconsistent = 3,
}

impl Mismatch {
    /// Returns the reason's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Mismatch::Unreadable => "unreadable code header",
            Mismatch::NoHeader => "no code header",
            Mismatch::OtherMethod => "code header of another method",
            Mismatch::Inconsistent => "inconsistent code header",
        }
    }
}

/// A body of JITted code with its unwind rules, for
/// [`CodeMap::add_jit_body`](crate::CodeMap::add_jit_body).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    start: u64,
    len: u32,
    source: RuleSource,
    functions: Functions,
}

/// Maximum size of a body that is accepted, bytes.
const MAX_BODY: u32 = 1 << 28;
/// Maximum number of functions of a body that is accepted.
const MAX_FUNCTIONS: usize = 4096;

/// Reads the body at `code_start` from the header that the runtime stores with it.
///
/// `function_id` is the FunctionID of the method, which the header must contain. Reads through a
/// system call, so unreadable memory is an error, not a fault. Not in a signal handler.
///
/// # Safety
/// `code_start` is the start of a body of code that the runtime published and keeps until it was
/// removed from the code map and [`CodeMap::quiesce`](crate::CodeMap::quiesce) returned.
pub unsafe fn body_from_header(code_start: u64, function_id: u64) -> Result<Body, Mismatch> {
    header_by(peek, code_start, function_id).map(|(body, _)| body)
}

/// [`body_from_header`] without a system call, some ten times faster. It assumes that the word
/// before the code is a pointer to readable memory.
///
/// # Safety
/// As of [`body_from_header`], and this runtime stores its headers as `body_from_header` reads
/// them: that has succeeded for other bodies of the same runtime.
pub unsafe fn body_from_known_header(code_start: u64, function_id: u64) -> Result<Body, Mismatch> {
    header_by(copy_at, code_start, function_id).map(|(body, _)| body)
}

/// Why a body's GcInfo cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoGcInfo {
    /// The code header was rejected.
    Header(Mismatch),
    /// The bytes that it points to were rejected.
    Bytes(gc_info::Error),
}

/// Bytes of GcInfo that are read at first, and at most. The largest known ones have some hundred
/// thousand.
const GC_INFO_BYTES: (usize, usize) = (2 << 10, 4 << 20);

/// Reads the body at `code_start` and its complete GcInfo, in a runtime that writes this version.
/// Like [`body_from_header`] it reads through system calls.
///
/// # Safety
/// As of [`body_from_header`].
pub unsafe fn gc_info(
    code_start: u64,
    function_id: u64,
    version: gc_info::Version,
) -> Result<(Body, GcInfo<'static>), NoGcInfo> {
    gc_info_by(peek, code_start, function_id, version)
}

/// [`gc_info()`] of any memory that `peek` reads.
fn gc_info_by(
    peek: impl Fn(u64, &mut [u8]) -> &[u8],
    code_start: u64,
    function_id: u64,
    version: gc_info::Version,
) -> Result<(Body, GcInfo<'static>), NoGcInfo> {
    let (body, at) = header_by(&peek, code_start, function_id).map_err(NoGcInfo::Header)?;
    let mut length = GC_INFO_BYTES.0;
    loop {
        let mut buffer = vec![0; length];
        let bytes = peek(at, &mut buffer).to_vec();
        let (whole, most) = (bytes.len() == length, length >= GC_INFO_BYTES.1);
        let info = gc_info::decode(bytes, version, body.len).and_then(|info| {
            info.check()?;
            Ok(info)
        });
        match info {
            Ok(info) => return Ok((body, info)),
            Err(gc_info::Error::Truncated) if whole && !most => length *= 8,
            Err(error) => return Err(NoGcInfo::Bytes(error)),
        }
    }
}

/// Why a body's IL map cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoIlMap {
    /// The code header was rejected.
    Header(Mismatch),
    /// The bytes that it points to were rejected.
    Bytes(debug_info::Error),
}

/// Maximum length of debug information that is read, bytes. Methods with thousands of statements
/// have more; for these the runtime's own function can be used.
const IL_MAP_BYTES: usize = 16 << 10;

/// Appends native and IL offset of the mapped places of the body at `code_start`, in a runtime that
/// uses `format`. Returns what was skipped. Like [`body_from_header`] it reads through system
/// calls. The code must be permanent, because the bytes must be.
///
/// # Safety
/// As of [`body_from_header`].
pub unsafe fn il_map(
    code_start: u64,
    function_id: u64,
    format: debug_info::Format,
    into: &mut Vec<(u32, u32)>,
) -> Result<Skipped, NoIlMap> {
    let Some(at) = debug_info_by(peek, code_start, function_id).map_err(NoIlMap::Header)? else {
        return Ok(Skipped::Nothing);
    };
    let mut buffer = vec![0; IL_MAP_BYTES];
    let bytes = peek(at, &mut buffer);
    debug_info::decode(bytes.iter().copied(), format, into).map_err(NoIlMap::Bytes)
}

/// [`il_map`] without a system call, some ten times faster. Debug information with more than the
/// common parts is decoded only if `knows_more`.
///
/// # Safety
/// As of [`il_map`], and this runtime writes headers and debug information as `il_map` reads them:
/// it has succeeded for other bodies of the same runtime, with the results of the runtime itself.
/// With `knows_more`, some of those bodies had more parts.
pub unsafe fn il_map_of_known_header(
    code_start: u64,
    function_id: u64,
    format: debug_info::Format,
    knows_more: bool,
    into: &mut Vec<(u32, u32)>,
) -> Result<Skipped, NoIlMap> {
    let Some(at) = debug_info_by(copy_at, code_start, function_id).map_err(NoIlMap::Header)? else {
        return Ok(Skipped::Nothing);
    };
    let mut first = [0];
    let first = copy_at(at, &mut first).first();
    if !knows_more && first.is_some_and(|first| format.begins_with_more(*first)) {
        return Err(NoIlMap::Bytes(debug_info::Error::Unknown));
    }
    let bytes = (at..).take(IL_MAP_BYTES).map_while(|at| {
        let mut byte = [0];
        copy_at(at, &mut byte).first().copied()
    });
    debug_info::decode(bytes, format, into).map_err(NoIlMap::Bytes)
}

/// Returns the address of a body's debug information: the first word of the header, if the header
/// is this method's. `None` if there is none, as for native-call methods that .NET 11 compiles.
fn debug_info_by(
    peek: impl Fn(u64, &mut [u8]) -> &[u8],
    code_start: u64,
    function_id: u64,
) -> Result<Option<u64>, Mismatch> {
    let header = Header::read(peek, code_start, function_id)?;
    let [debug_info, ..] = header.words;
    if header.method < 3 {
        return Err(Mismatch::OtherMethod);
    }
    Ok((debug_info != 0).then_some(debug_info))
}

/// The first words of a body's header. One of them is its method.
struct Header {
    at: u64,
    words: [u64; 5],
    /// Index of the word that is the method.
    method: usize,
}

impl Header {
    /// Reads the header by `peek`, which copies the readable bytes at an address.
    fn read(
        peek: impl Fn(u64, &mut [u8]) -> &[u8],
        code_start: u64,
        function_id: u64,
    ) -> Result<Header, Mismatch> {
        let mut buffer = [0; 8];
        if peek(code_start.wrapping_sub(8), &mut buffer).len() != 8 {
            return Err(Mismatch::Unreadable);
        }
        let at = u64::from_le_bytes(buffer);
        // Values up to 0xf are the kind of a stub.
        if at <= 0xf || at % 8 != 0 || function_id == 0 {
            return Err(Mismatch::NoHeader);
        }
        // The method follows three or four pointers, depending on the version. The count of unwind
        // structures comes after it, followed by at least one of these.
        let mut buffer = [0; 40];
        let (words, _) = peek(at, &mut buffer).as_chunks::<8>();
        let words: &[[u8; 8]; 5] = words.try_into().map_err(|_| Mismatch::Unreadable)?;
        let words = words.map(u64::from_le_bytes);
        let method = words.iter().position(|word| *word == function_id);
        Ok(Header {
            at,
            words,
            method: method.ok_or(Mismatch::OtherMethod)?,
        })
    }

    /// Returns the address and the number of its RUNTIME_FUNCTIONs.
    fn functions(&self, peek: impl Fn(u64, &mut [u8]) -> &[u8]) -> Result<(u64, usize), Mismatch> {
        let count_at = self.at + self.method as u64 * 8 + 8;
        let mut buffer = [0; 4];
        let count = peek(count_at, &mut buffer).first_chunk();
        let count = u32::from_le_bytes(*count.ok_or(Mismatch::Unreadable)?) as usize;
        if !(1..=MAX_FUNCTIONS).contains(&count) {
            return Err(Mismatch::Inconsistent);
        }
        Ok((count_at + 4, count))
    }
}

/// Size of a RUNTIME_FUNCTION, bytes.
const FUNCTION: usize = 12;

/// Reads the RUNTIME_FUNCTIONs of a body one by one. They are sorted and disjoint; the first is
/// where the code starts.
struct FunctionEntries {
    code_start: u64,
    base_rva: Option<u32>,
    end: u32,
}

/// A function's offsets from the body's start, and the address of its UNWIND_INFO.
#[derive(Clone, Copy)]
struct FunctionEntry {
    begin: u32,
    end: u32,
    info_at: u64,
}

impl FunctionEntries {
    const fn new(code_start: u64) -> Self {
        Self {
            code_start,
            base_rva: None,
            end: 0,
        }
    }

    /// Returns the next function. Async-signal-safe.
    fn next(&mut self, function: &[u8; FUNCTION]) -> Result<FunctionEntry, Mismatch> {
        let (words, _) = function.as_chunks::<4>();
        let words: &[[u8; 4]; 3] = words.try_into().map_err(|_| Mismatch::Inconsistent)?;
        let [begin, end, info] = words.map(u32::from_le_bytes);
        let base_rva = *self.base_rva.get_or_insert(begin);
        let (Some(begin), Some(end)) = (begin.checked_sub(base_rva), end.checked_sub(base_rva))
        else {
            return Err(Mismatch::Inconsistent);
        };
        if begin < self.end || end <= begin || end > MAX_BODY {
            return Err(Mismatch::Inconsistent);
        }
        self.end = end;
        let base = self.code_start.wrapping_sub(base_rva.into());
        Ok(FunctionEntry {
            begin,
            end,
            info_at: base.wrapping_add(info.into()),
        })
    }
}

impl FunctionEntry {
    /// Reads its UNWIND_INFO, into as much room as it takes. Async-signal-safe if `room` is.
    fn info<'b>(
        self,
        peek: impl Fn(u64, &mut [u8]) -> &[u8],
        room: impl FnOnce(usize) -> Option<&'b mut [u8]>,
    ) -> Result<&'b [u8], Mismatch> {
        let length = unwind_info::length(peek(self.info_at, &mut [0; 4]));
        let room = length.and_then(room).ok_or(Mismatch::Inconsistent)?;
        let bytes = peek(self.info_at, room);
        let info = unwind_info::UnwindInfo::parse(bytes).filter(|info| {
            info.chained.is_none() && u32::from(info.prologue_len) <= self.end - self.begin
        });
        let info = info.ok_or(Mismatch::Inconsistent)?;
        Ok(bytes.get(..info.len).unwrap_or_default())
    }
}

/// Buffer for bytes that are read. A small one is on the stack.
struct Buffer {
    few: [u8; 64],
    many: Vec<u8>,
}

impl Buffer {
    const fn new() -> Self {
        Self {
            few: [0; 64],
            many: Vec::new(),
        }
    }

    /// Returns `length` bytes with unspecified content.
    fn room(&mut self, length: usize) -> &mut [u8] {
        match self.few.get_mut(..length) {
            Some(few) => few,
            None => {
                self.many.resize(length, 0);
                &mut self.many
            }
        }
    }
}

/// Reads a body's header by `peek`, which copies the readable bytes at an address. Also returns the
/// address of the body's GcInfo. Only data that belongs to a valid header is read.
fn header_by(
    peek: impl Fn(u64, &mut [u8]) -> &[u8],
    code_start: u64,
    function_id: u64,
) -> Result<(Body, u64), Mismatch> {
    let header = Header::read(&peek, code_start, function_id)?;
    // The word before it is the address of the GcInfo.
    let gc_info = header.method.checked_sub(1);
    let gc_info = gc_info.and_then(|before| header.words.get(before));
    let gc_info = gc_info.copied().unwrap_or(0);
    let (at, count) = header.functions(&peek)?;
    let mut buffer = Buffer::new();
    let functions = peek(at, buffer.room(count * FUNCTION));
    if functions.len() != count * FUNCTION {
        return Err(Mismatch::Unreadable);
    }
    let (functions, _) = functions.as_chunks::<FUNCTION>();
    let (mut found, mut listing) = (
        FunctionsBuilder::new(count),
        FunctionEntries::new(code_start),
    );
    let mut buffer = Buffer::new();
    for function in functions {
        let listed = listing.next(function)?;
        let info = listed.info(&peek, |length| Some(buffer.room(length)))?;
        found.push(listed.begin, listed.end, info);
    }
    let body = Body {
        start: code_start,
        len: listing.end,
        source: RuleSource::Header,
        functions: found.into(),
    };
    Ok((body, gc_info))
}

/// Makes the body at `code_start` of `len` bytes from its instructions. Its source is
/// [`RuleSource::Prologue`], or [`RuleSource::FramePointer`] if the prologue cannot be decoded.
/// Funclets are not detected: they are unwound like the body's main part.
///
/// # Safety
/// As of [`body_from_header`]; all `len` bytes are readable.
pub unsafe fn body_from_code(code_start: u64, len: u32) -> Body {
    let len = len.min(MAX_BODY);
    // SAFETY: promised by the caller.
    let code = unsafe { std::slice::from_raw_parts(code_start as *const u8, len as usize) };
    let (source, infos) = match x86::prologue(code) {
        Some(prologue) => (RuleSource::Prologue, prologue.info),
        None => (RuleSource::FramePointer, Vec::new()),
    };
    Body {
        start: code_start,
        len,
        source,
        functions: Functions::one(len, &infos),
    }
}

impl Body {
    /// Returns the first address.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the first address after the body.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len.into())
    }

    /// Returns the source of its rules.
    pub fn source(&self) -> RuleSource {
        self.source
    }

    /// Whether other code has made the frame with which it is entered: a body that replaces a
    /// running loop (OSR). Its unwind codes then begin with those of that frame, without
    /// instructions for them (src/coreclr/jit, `genOSRRecordTier0CalleeSavedRegistersAndFrame`).
    /// Most such bodies without codes begin by reading that frame.
    pub fn begins_on_a_frame(&self) -> bool {
        match self.source {
            RuleSource::Header => unwind_info::UnwindInfo::parse(self.functions.infos())
                .is_some_and(|info| info.begins_on_a_frame()),
            _ => self.bytes_at(self.start).starts_with(&x86::OSR_ENTRY),
        }
    }

    /// Returns the slots that may hold `this` in the frame of this body with this GcInfo; see
    /// [`gc_info::this_homes`].
    pub fn this_homes(&self, info: &GcInfo<'_>) -> Result<Vec<gc_info::Home>, gc_info::Error> {
        gc_info::this_homes(info, self.bytes_at(self.start), &self.functions.begins())
    }

    /// Whether the instructions of the prologue agree with the rules of this body; `None` if they
    /// cannot be decoded. For tests and counters: one source verifies the other.
    pub fn agrees_with_code(&self) -> Option<bool> {
        let main = self.functions.at(0, self.len)?;
        let infos = self.functions.infos();
        let code = self.bytes_at(self.start);
        let decoded = x86::prologue(code.get(..main.end as usize)?)?;
        let known = unwind_info::UnwindInfo::parse(infos)?.prologue_end();
        // Compared at each instruction's end, as far as both sources have rules. Inside an
        // instruction no rule is needed.
        let (codes, _) = decoded.info.get(4..)?.as_chunks::<2>();
        let mut ends: Vec<u32> = codes.iter().map(|[end, _]| u32::from(*end)).collect();
        ends.retain(|end| *end <= u32::from(known));
        let said = |info: &[u8]| {
            let rules = ends.iter().chain(&[u32::MAX]);
            rules
                .map(|at| unwind_info::rule(info, *at, |_| &[]))
                .collect::<Vec<_>>()
        };
        let ours = said(infos);
        Some(ours == said(&decoded.info) || ours == said(&decoded.without_frame))
    }

    /// Returns the locations at which the frame of the function at `lookup` saves its caller's
    /// registers. Async-signal-safe.
    pub(crate) fn saved(&self, lookup: u64) -> Option<Saved> {
        let offset = u32::try_from(lookup.checked_sub(self.start)?).ok()?;
        let function = self.functions.at(offset, self.len)?;
        let info = self.functions.infos().get(function.info as usize..)?;
        // Saved registers are known from the JIT's own codes only.
        match self.source {
            RuleSource::Header => unwind_info::saved(info, offset - function.begin, |_| &[]),
            RuleSource::Prologue | RuleSource::FramePointer => None,
        }
    }

    /// Returns the rule for the instruction at `lookup`. Async-signal-safe.
    pub(crate) fn rule(&self, lookup: u64, exact: bool) -> Option<Rule> {
        let offset = u32::try_from(lookup.checked_sub(self.start)?).ok()?;
        let function = self.functions.at(offset, self.len)?;
        let into = offset - function.begin;
        let by_codes = || {
            if self.source == RuleSource::FramePointer {
                return Some(FRAME_POINTER);
            }
            let info = self.functions.infos().get(function.info as usize..)?;
            unwind_info::rule(info, into, |_| &[])
        };
        if !exact {
            return by_codes();
        }
        let begin = self.start + u64::from(function.begin);
        let body = self.start..self.end();
        let rest = || {
            self.bytes_at(lookup)
                .get(..(function.end - offset) as usize)
        };
        x86::interrupted((lookup, into), &body, rest, by_codes, |back| {
            let at = lookup.saturating_sub(back as u64);
            self.bytes_at(at.max(begin))
        })
    }

    /// Returns the code from `address` to the end of the body. Async-signal-safe.
    pub(crate) fn bytes_at(&self, address: u64) -> &[u8] {
        if !(self.start..self.end()).contains(&address) {
            return &[];
        }
        // SAFETY: the creator of the body guarantees that its code stays readable until it was
        // removed from the map and no walk can see it; the range was just checked.
        unsafe { std::slice::from_raw_parts(address as *const u8, (self.end() - address) as usize) }
    }

    /// Returns the size of its heap memory, bytes, without the body itself.
    pub(crate) fn bytes(&self) -> usize {
        self.functions.bytes()
    }
}

#[cfg(test)]
impl Body {
    /// Makes a body of one function with this UNWIND_INFO, consistent or not.
    pub(crate) fn of_parts(code: &'static [u8], info: Vec<u8>) -> Self {
        let len = code.len() as u32;
        Body {
            start: code.as_ptr() as u64,
            len,
            source: RuleSource::Header,
            functions: Functions::one(len, &info),
        }
    }

    /// Makes a body whose code is never read.
    pub(crate) fn at(start: u64, len: u32) -> Self {
        Body {
            start,
            len,
            source: RuleSource::Header,
            functions: Functions::one(len, &[1, 0, 0, 0]),
        }
    }
}

/// Copies the bytes at `address`. Only for [`body_from_known_header`] and
/// [`il_map_of_known_header`], whose callers vouch for the addresses.
fn copy_at(address: u64, buffer: &mut [u8]) -> &[u8] {
    // SAFETY: the callers promised that the header's pointers lead to readable memory that is what
    // this module takes it for, and `header_by` reads nothing but what is there then, see there;
    // `debug_info::decode` reads no byte behind those that were passed to it.
    unsafe { read_in_place(address, buffer) }
}

#[cfg(test)]
mod tests;
