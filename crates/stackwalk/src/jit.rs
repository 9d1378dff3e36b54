//! JIT bodies: how code that the CLR's JIT made is unwound.
//!
//! It does not find bodies (the runtime's JITCompilationFinished does) and does not keep them
//! (the code map does). The invariant: what the runtime's private structures say is believed only
//! where it is consistent in itself and with what the profiling API said; else the instructions
//! of the prologue are read; else the frame pointer is assumed, and the frame says so.
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

/// Where a body's unwind rules come from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum RuleSource {
    /// The UNWIND_INFO that the JIT left beside the code.
    Header = 0,
    /// The decoded instructions of the prologue.
    Prologue = 1,
    /// None: the frame pointer is assumed.
    FramePointer = 2,
}

/// Why a code header was not believed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Mismatch {
    /// The memory before the code, or what it points to, cannot be read.
    Unreadable = 0,
    /// The word before the code is no pointer to a code header.
    NoHeader = 1,
    /// No word of the header is the method that the profiling API named.
    OtherMethod = 2,
    /// Ranges or unwind data are not consistent.
    Inconsistent = 3,
}

impl Mismatch {
    /// The reason as reports print it.
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

/// Largest body that is believed. Bytes.
const MAX_BODY: u32 = 1 << 28;
/// Most functions that are believed.
const MAX_FUNCTIONS: usize = 4096;

/// The body at `code_start` from the header that the runtime keeps beside it.
///
/// `function_id` is the FunctionID of the method, which the header must name. Reads memory that
/// may not be readable by a system call, so a wrong guess is an error, not a fault. Not in a
/// signal handler.
///
/// # Safety
/// `code_start` is the start of a body of code that the runtime published and keeps until it was
/// removed from the code map and [`CodeMap::quiesce`](crate::CodeMap::quiesce) returned.
pub unsafe fn body_from_header(code_start: u64, function_id: u64) -> Result<Body, Mismatch> {
    header_by(peek, code_start, function_id).map(|(body, _)| body)
}

/// [`body_from_header`] without a system call, some ten times faster: it believes that the word
/// before the code is a pointer to readable memory.
///
/// # Safety
/// As of [`body_from_header`], and this runtime keeps its headers as `body_from_header` reads
/// them: that has succeeded for other bodies of the same runtime.
pub unsafe fn body_from_known_header(code_start: u64, function_id: u64) -> Result<Body, Mismatch> {
    header_by(copy_at, code_start, function_id).map(|(body, _)| body)
}

/// Why a body's GcInfo is not known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoGcInfo {
    /// The code header was not believed.
    Header(Mismatch),
    /// The bytes that it points to were not believed.
    Bytes(gc_info::Error),
}

/// Bytes of GcInfo that are read at first, and at most. The largest that are known have some
/// hundred thousand.
const GC_INFO_BYTES: (usize, usize) = (2 << 10, 4 << 20);

/// The body at `code_start`, and its GcInfo in a runtime that writes this version; all that can be
/// asked of it is there. As [`body_from_header`] it reads by system calls.
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

/// [`gc_info()`] of whatever memory `peek` reads.
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

/// Why a body's IL map is not known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoIlMap {
    /// The code header was not believed.
    Header(Mismatch),
    /// The bytes that it points to were not believed.
    Bytes(debug_info::Error),
}

/// Bytes of debug information that are read at most. Of methods with thousands of statements there
/// are more; the runtime may be asked about these.
const IL_MAP_BYTES: usize = 16 << 10;

/// Appends native offset and IL offset of the places in the body at `code_start` that have one, in
/// a runtime that writes them so, and answers what was skipped. As [`body_from_header`] it reads by
/// system calls; code that is here for good is meant, as the bytes must be.
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

/// [`il_map`] without a system call, some ten times faster. One with more than the common parts
/// only where `knows_more` says that it may.
///
/// # Safety
/// As of [`il_map`], and this runtime writes headers and debug information as that reads them: it
/// has succeeded for other bodies of the same runtime, and said of them what the runtime says; for
/// such with more parts if these are to be read too.
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

/// Where the debug information of a body is: the first word of the header, if the header is this
/// method's. `None` where there is none, as of methods that call native code and that .NET 11
/// compiles as they are.
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

/// The first words of a body's header, one of which is its method.
struct Header {
    at: u64,
    words: [u64; 5],
    /// Index of the word that is the method.
    method: usize,
}

impl Header {
    /// By `peek`, which copies as much as is readable at an address.
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
        // Up to 0xf the word is the kind of a stub.
        if at <= 0xf || at % 8 != 0 || function_id == 0 {
            return Err(Mismatch::NoHeader);
        }
        // The method comes after three or four pointers, depending on the version; the count of
        // unwind structures comes after it, and one of these at least.
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

    /// Where its RUNTIME_FUNCTIONs begin, and how many there are.
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

/// Bytes of a RUNTIME_FUNCTION.
const FUNCTION: usize = 12;

/// The RUNTIME_FUNCTIONs of a body, one after the other: sorted and disjoint, the first where the
/// code starts.
struct FunctionEntries {
    code_start: u64,
    base_rva: Option<u32>,
    end: u32,
}

/// One of them: offsets from the body's start, and where its UNWIND_INFO is.
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

    /// The next. Async-signal-safe.
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
    /// Its UNWIND_INFO, read into so much room as it takes. Async-signal-safe, if `room` is.
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

/// Room for bytes that are read: for few it is on the stack.
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

    /// So many bytes, whatever was in them.
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

/// Reads a body's header by `peek`, which copies as much as is readable at an address; and says
/// where the body's GcInfo is. Of a header that is one, nothing is read that does not belong to it.
fn header_by(
    peek: impl Fn(u64, &mut [u8]) -> &[u8],
    code_start: u64,
    function_id: u64,
) -> Result<(Body, u64), Mismatch> {
    let header = Header::read(&peek, code_start, function_id)?;
    // The word before it is where the GcInfo is.
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

/// The body at `code_start` of `len` bytes from its instructions; its source is
/// [`RuleSource::Prologue`], or [`RuleSource::FramePointer`] if they say nothing. Funclets are not
/// seen so: they are unwound like the body's main part.
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
    /// First address.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// First address behind the body.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len.into())
    }

    /// Where its rules come from.
    pub fn source(&self) -> RuleSource {
        self.source
    }

    /// Whether it is entered with a frame that other code has made: a body that replaces a running
    /// loop (OSR). Its unwind codes then begin with those of that frame, which no instruction of
    /// its own makes (src/coreclr/jit, `genOSRRecordTier0CalleeSavedRegistersAndFrame`); without
    /// codes, most of them begin by reading that frame.
    pub fn begins_on_a_frame(&self) -> bool {
        match self.source {
            RuleSource::Header => unwind_info::UnwindInfo::parse(self.functions.infos())
                .is_some_and(|info| info.begins_on_a_frame()),
            _ => self.bytes_at(self.start).starts_with(&x86::OSR_ENTRY),
        }
    }

    /// Where `this` may be in the frame of this body, which has this GcInfo: see
    /// [`gc_info::this_homes`].
    pub fn this_homes(&self, info: &GcInfo<'_>) -> Result<Vec<gc_info::Home>, gc_info::Error> {
        gc_info::this_homes(info, self.bytes_at(self.start), &self.functions.begins())
    }

    /// Whether the instructions of the prologue say the same as the rules of this body: `None`
    /// where they say nothing. For tests and counters: one source checks the other.
    pub fn agrees_with_code(&self) -> Option<bool> {
        let main = self.functions.at(0, self.len)?;
        let infos = self.functions.infos();
        let code = self.bytes_at(self.start);
        let decoded = x86::prologue(code.get(..main.end as usize)?)?;
        let known = unwind_info::UnwindInfo::parse(infos)?.prologue_end();
        // At each instruction's end, as far as both know them; inside an instruction nothing is.
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

    /// Where the frame of the function at `lookup` keeps its caller's registers. Async-signal-safe.
    pub(crate) fn saved(&self, lookup: u64) -> Option<Saved> {
        let offset = u32::try_from(lookup.checked_sub(self.start)?).ok()?;
        let function = self.functions.at(offset, self.len)?;
        let info = self.functions.infos().get(function.info as usize..)?;
        // Nothing is known of registers where there are no codes of the JIT's own.
        match self.source {
            RuleSource::Header => unwind_info::saved(info, offset - function.begin, |_| &[]),
            RuleSource::Prologue | RuleSource::FramePointer => None,
        }
    }

    /// The rule for the instruction at `lookup`. Async-signal-safe.
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

    /// The code from `address` to the end of the body. Async-signal-safe.
    pub(crate) fn bytes_at(&self, address: u64) -> &[u8] {
        if !(self.start..self.end()).contains(&address) {
            return &[];
        }
        // SAFETY: whoever made the body promised that its code stays readable until it was
        // removed from the map and no walk can see it; the range was just checked.
        unsafe { std::slice::from_raw_parts(address as *const u8, (self.end() - address) as usize) }
    }

    /// Private memory behind it, itself not counted.
    pub(crate) fn bytes(&self) -> usize {
        self.functions.bytes()
    }
}

#[cfg(test)]
impl Body {
    /// One function with this UNWIND_INFO, consistent or not.
    pub(crate) fn of_parts(code: &'static [u8], info: Vec<u8>) -> Self {
        let len = code.len() as u32;
        Body {
            start: code.as_ptr() as u64,
            len,
            source: RuleSource::Header,
            functions: Functions::one(len, &info),
        }
    }

    /// A body of code that is never read.
    pub(crate) fn at(start: u64, len: u32) -> Self {
        Body {
            start,
            len,
            source: RuleSource::Header,
            functions: Functions::one(len, &[1, 0, 0, 0]),
        }
    }
}

/// Copies what lies at `address`. Only for [`body_from_known_header`] and
/// [`il_map_of_known_header`], whose callers vouch for the addresses.
fn copy_at(address: u64, buffer: &mut [u8]) -> &[u8] {
    // SAFETY: the callers promised that the header's pointers lead to readable memory that is what
    // this module takes it for, and `header_by` reads nothing but what is there then, see there;
    // `debug_info::decode` reads no byte behind those that were passed to it.
    unsafe { read_in_place(address, buffer) }
}

#[cfg(test)]
mod tests;
