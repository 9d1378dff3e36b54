//! Byte encoding of one record: encode and decode.
//!
//! `block`, `writer` and `reader` handle blocks of records. `docs/recording-format.md` has the
//! table of kinds and fields. Invariant: [`decode`] of [`encode`]'s bytes, with the same
//! [`Deltas`], returns the same record.
//!
//! Rules of change: a kind's number is never reused. New fields go at the end of a body; if an
//! older body ends before a field, the reader uses its default. Each record has a length, by which
//! a reader skips unknown kinds.

use std::borrow::Cow;

use crate::record::{CostPart, Event, Frame, MethodKind, ModuleKind, Record, Tier, WalkEnd};
use crate::wire::{BodyReader, Malformed, put_bytes, put_delta, put_str, put_varint};

pub(crate) const KIND_SAMPLE: u8 = 1;
pub(crate) const KIND_STACK: u8 = 2;
pub(crate) const KIND_FRAME: u8 = 3;
pub(crate) const KIND_THREAD: u8 = 4;
pub(crate) const KIND_THREAD_END: u8 = 5;
pub(crate) const KIND_LOST: u8 = 6;
pub(crate) const KIND_BROKEN: u8 = 7;
pub(crate) const KIND_METHOD: u8 = 8;
pub(crate) const KIND_MODULE: u8 = 9;
pub(crate) const KIND_PROCESS: u8 = 10;
pub(crate) const KIND_ENGINE: u8 = 11;
pub(crate) const KIND_RUNTIME: u8 = 12;
pub(crate) const KIND_STATS: u8 = 13;
pub(crate) const KIND_NOTE: u8 = 14;
pub(crate) const KIND_END: u8 = 15;
pub(crate) const KIND_SYMBOL: u8 = 16;
pub(crate) const KIND_DETAIL: u8 = 17;
pub(crate) const KIND_SOURCE: u8 = 18;
pub(crate) const KIND_LIMITED: u8 = 19;
pub(crate) const KIND_PAUSE: u8 = 20;
pub(crate) const KIND_UNSEEN: u8 = 21;
pub(crate) const KIND_COST: u8 = 22;
pub(crate) const KIND_THREAD_STATE: u8 = 23;
pub(crate) const KIND_CHANGE: u8 = 24;
pub(crate) const KIND_ASYNC_CUT: u8 = 25;
pub(crate) const KIND_TRACED: u8 = 26;
pub(crate) const KIND_CALLS: u8 = 27;
pub(crate) const KIND_SURVIVOR: u8 = 28;
pub(crate) const KIND_GONE: u8 = 29;
pub(crate) const KIND_THINNED: u8 = 30;
pub(crate) const KIND_INSTANT: u8 = 31;
const KIND_COLLECTED: u8 = 32;

/// Set in a head byte that holds kind (3 bits) and length (4 bits) at once.
const SHORT_HEAD: u8 = 0x80;

/// Base values of relative numbers. They are reset in every block, so a block can be read without
/// the one before it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Deltas {
    time: u64,
    next_frame: u64,
    next_stack: u64,
    sample_thread: u64,
    sample_stack: u64,
    sample_value: u64,
    next_allocation: u64,
}

/// Appends the head of a record: its kind and the length of its body.
pub(crate) fn put_head(out: &mut Vec<u8>, kind: u8, length: usize) {
    if kind < 8 && length < 16 {
        out.push(SHORT_HEAD | kind << 4 | length as u8);
    } else {
        out.push(kind);
        put_varint(out, length as u64);
    }
}

/// Reads a record's head, and takes its body's bytes off `block`.
pub(crate) fn take_record<'a>(block: &mut BodyReader<'a>) -> Result<(u8, &'a [u8]), Malformed> {
    let head = block.byte()?;
    let (kind, length) = if head & SHORT_HEAD != 0 {
        ((head >> 4) & 7, usize::from(head & 15))
    } else {
        (
            head,
            usize::try_from(block.varint()?).map_err(|_| Malformed)?,
        )
    };
    Ok((kind, block.take(length)?))
}

impl Deltas {
    fn put_time(&mut self, out: &mut Vec<u8>, time: u64) {
        put_delta(out, self.time, time);
        self.time = time;
    }

    fn take_time(&mut self, body: &mut BodyReader<'_>) -> Result<u64, Malformed> {
        self.time = body.delta(self.time)?;
        Ok(self.time)
    }
}

/// Appends the body of `record` to `out` and returns its kind.
pub(crate) fn encode(record: &Record<'_>, deltas: &mut Deltas, out: &mut Vec<u8>) -> u8 {
    match record {
        Record::Sample {
            thread,
            stack,
            time_ns,
            event,
            value,
            end,
            detail,
            logical,
        } => {
            let same_value = *value == deltas.sample_value;
            out.push(*end as u8 | u8::from(same_value) << 2 | (*event as u8) << 3);
            put_delta(out, deltas.sample_thread, u64::from(*thread));
            put_delta(out, deltas.sample_stack, u64::from(*stack));
            deltas.put_time(out, *time_ns);
            if !same_value {
                put_varint(out, *value);
            }
            // Most samples have neither, and then they take no room.
            if detail.is_some() || logical.is_some() {
                put_option(out, detail.map(u64::from));
            }
            if logical.is_some() {
                put_option(out, logical.map(u64::from));
            }
            deltas.sample_thread = u64::from(*thread);
            deltas.sample_stack = u64::from(*stack);
            deltas.sample_value = *value;
            KIND_SAMPLE
        }
        Record::Stack {
            stack,
            parent,
            frame,
        } => {
            put_delta(out, deltas.next_stack, u64::from(*stack));
            deltas.next_stack = u64::from(*stack) + 1;
            put_varint(out, u64::from(*frame));
            // A parent is older than its child, so the distance back is positive and 0 is free
            // to say "none"; the shift by one below keeps any other value readable too.
            match parent {
                None => put_varint(out, 0),
                Some(parent) => {
                    let back = i64::from(*stack) - i64::from(*parent);
                    put_varint(out, 1 + ((back << 1) ^ (back >> 63)) as u64);
                }
            }
            KIND_STACK
        }
        Record::Frame { frame, value } => {
            put_delta(out, deltas.next_frame, u64::from(*frame));
            deltas.next_frame = u64::from(*frame) + 1;
            encode_frame(value, out);
            KIND_FRAME
        }
        Record::Thread {
            thread,
            tid,
            name,
            managed,
            time_ns,
        } => {
            put_varint(out, u64::from(*thread));
            put_varint(out, u64::from(*tid));
            out.push(u8::from(*managed));
            deltas.put_time(out, *time_ns);
            put_str(out, name);
            KIND_THREAD
        }
        Record::ThreadEnd {
            thread,
            time_ns,
            cpu_ns,
        } => {
            put_varint(out, u64::from(*thread));
            deltas.put_time(out, *time_ns);
            put_varint(out, *cpu_ns);
            KIND_THREAD_END
        }
        Record::Lost { reason, count } => {
            put_varint(out, *count);
            put_str(out, reason);
            KIND_LOST
        }
        Record::Broken { reason, count } => {
            put_varint(out, *count);
            put_str(out, reason);
            KIND_BROKEN
        }
        Record::AsyncCut { reason, count } => {
            put_varint(out, *count);
            put_str(out, reason);
            KIND_ASYNC_CUT
        }
        Record::Method {
            method,
            runtime,
            kind,
            module,
            token,
            type_name,
            name,
        } => {
            put_varint(out, u64::from(*method));
            out.push(*runtime);
            out.push(*kind as u8);
            put_option(out, module.map(u64::from));
            put_varint(out, u64::from(*token));
            put_str(out, type_name);
            put_str(out, name);
            KIND_METHOD
        }
        Record::Module {
            module,
            kind,
            runtime,
            path,
            bias,
            id_bytes,
            file_offset,
        } => {
            put_varint(out, u64::from(*module));
            out.push(*kind as u8);
            put_option(out, runtime.map(u64::from));
            put_varint(out, *bias);
            put_varint(out, *file_offset);
            put_bytes(out, id_bytes);
            put_str(out, path);
            KIND_MODULE
        }
        Record::Process {
            pid,
            parent,
            command,
            unix_ns,
            time_ns,
        } => {
            put_varint(out, u64::from(*pid));
            put_varint(out, u64::from(*parent));
            put_varint(out, *unix_ns);
            deltas.put_time(out, *time_ns);
            put_str(out, command);
            KIND_PROCESS
        }
        Record::Engine {
            engine,
            walker,
            event,
            interval_ns,
            max_depth,
        } => {
            put_str(out, engine);
            put_str(out, walker);
            out.push(*event as u8);
            put_varint(out, *interval_ns);
            put_varint(out, u64::from(*max_depth));
            KIND_ENGINE
        }
        Record::Runtime {
            runtime,
            version,
            recorded,
            refused_by,
        } => {
            out.push(*runtime);
            out.push(u8::from(*recorded));
            put_str(out, version);
            if !refused_by.is_empty() {
                put_str(out, refused_by);
            }
            KIND_RUNTIME
        }
        Record::Stats {
            time_ns,
            agent_cpu_ns,
            target_cpu_ns,
            agent_memory,
            handler_ns,
            due_ns,
            lost_ns,
        } => {
            deltas.put_time(out, *time_ns);
            put_varint(out, *agent_cpu_ns);
            put_varint(out, *target_cpu_ns);
            put_varint(out, *agent_memory);
            put_varint(out, *handler_ns);
            put_option(out, *due_ns);
            put_varint(out, *lost_ns);
            KIND_STATS
        }
        Record::Unseen {
            reason,
            threads,
            cpu_ns,
        } => {
            put_varint(out, *threads);
            put_varint(out, *cpu_ns);
            put_str(out, reason);
            KIND_UNSEEN
        }
        Record::Cost {
            part,
            modelled,
            count,
            cpu_ns,
            name,
        } => {
            out.push(*part as u8);
            out.push(u8::from(*modelled));
            put_varint(out, *count);
            put_varint(out, *cpu_ns);
            put_str(out, name);
            KIND_COST
        }
        Record::ThreadState {
            thread,
            time_ns,
            state,
            syscall,
            wait,
            missing,
        } => {
            put_varint(out, u64::from(*thread));
            deltas.put_time(out, *time_ns);
            out.push(*state);
            put_option(out, syscall.map(u64::from));
            put_str(out, wait);
            put_str(out, missing);
            KIND_THREAD_STATE
        }
        Record::Traced {
            traced,
            runtime,
            token,
            min_ns,
            module,
            type_name,
            name,
            refused,
        } => {
            put_varint(out, u64::from(*traced));
            out.push(*runtime);
            put_varint(out, u64::from(*token));
            put_varint(out, *min_ns);
            for text in [module, type_name, name, refused] {
                put_str(out, text);
            }
            KIND_TRACED
        }
        Record::Calls {
            traced,
            time_ns,
            errors,
            sum_ns,
            max_ns,
            buckets,
        } => {
            put_varint(out, u64::from(*traced));
            deltas.put_time(out, *time_ns);
            put_varint(out, *errors);
            put_varint(out, *sum_ns);
            put_varint(out, *max_ns);
            put_varint(out, buckets.len() as u64);
            let mut last = 0;
            for (bucket, count) in buckets.iter() {
                put_delta(out, last, u64::from(*bucket));
                put_varint(out, *count);
                last = u64::from(*bucket);
            }
            KIND_CALLS
        }
        Record::Collected {
            thread,
            time_ns,
            ns,
        } => {
            put_varint(out, u64::from(*thread));
            deltas.put_time(out, *time_ns);
            put_varint(out, *ns);
            KIND_COLLECTED
        }
        Record::Survivor {
            allocation,
            thread,
            stack,
            logical,
            time_ns,
            end,
            bytes,
            size,
            collections,
            detail,
        } => {
            out.push(*end as u8);
            put_delta(out, deltas.next_allocation, u64::from(*allocation));
            deltas.next_allocation = u64::from(*allocation) + 1;
            put_delta(out, deltas.sample_thread, u64::from(*thread));
            put_delta(out, deltas.sample_stack, u64::from(*stack));
            deltas.sample_thread = u64::from(*thread);
            deltas.sample_stack = u64::from(*stack);
            deltas.put_time(out, *time_ns);
            for number in [bytes, size, collections] {
                put_varint(out, *number);
            }
            put_option(out, detail.map(u64::from));
            put_option(out, logical.map(u64::from));
            KIND_SURVIVOR
        }
        Record::Gone {
            time_ns,
            allocations,
        } => {
            deltas.put_time(out, *time_ns);
            put_ids(out, allocations);
            KIND_GONE
        }
        Record::Thinned {
            time_ns,
            allocations,
        } => {
            deltas.put_time(out, *time_ns);
            put_ids(out, allocations);
            KIND_THINNED
        }
        Record::Instant {
            time_ns,
            collections,
        } => {
            deltas.put_time(out, *time_ns);
            put_varint(out, *collections);
            KIND_INSTANT
        }
        Record::Note { text } => {
            put_str(out, text);
            KIND_NOTE
        }
        Record::End { time_ns } => {
            deltas.put_time(out, *time_ns);
            KIND_END
        }
        Record::Symbol {
            frame,
            name,
            file,
            line,
        } => {
            put_varint(out, u64::from(*frame));
            put_varint(out, u64::from(*line));
            put_str(out, name);
            put_str(out, file);
            KIND_SYMBOL
        }
        Record::Detail {
            detail,
            event,
            name,
            text,
        } => {
            put_varint(out, u64::from(*detail));
            out.push(*event as u8);
            put_str(out, name);
            put_str(out, text);
            KIND_DETAIL
        }
        Record::Source {
            event,
            source,
            walker,
            interval,
        } => {
            out.push(*event as u8);
            put_varint(out, *interval);
            put_str(out, source);
            put_str(out, walker);
            KIND_SOURCE
        }
        Record::Limited {
            event,
            count,
            value,
        } => {
            out.push(*event as u8);
            put_varint(out, *count);
            put_varint(out, *value);
            KIND_LIMITED
        }
        Record::Change {
            time_ns,
            before,
            after,
        } => {
            deltas.put_time(out, *time_ns);
            put_varint(out, u64::from(*before));
            put_varint(out, u64::from(*after));
            KIND_CHANGE
        }
        Record::Pause {
            time_ns,
            stopping_ns,
            stopped_ns,
        } => {
            deltas.put_time(out, *time_ns);
            put_varint(out, *stopping_ns);
            put_varint(out, *stopped_ns);
            KIND_PAUSE
        }
    }
}

/// Appends a count, then each number relative to the one before.
fn put_ids(out: &mut Vec<u8>, ids: &[u32]) {
    put_varint(out, ids.len() as u64);
    let mut last = 0;
    for id in ids {
        put_delta(out, last, u64::from(*id));
        last = u64::from(*id);
    }
}

fn take_ids(body: &mut BodyReader<'_>) -> Result<Vec<u32>, Malformed> {
    let count = usize::try_from(body.varint()?).map_err(|_| Malformed)?;
    // Each takes a byte at least: what a damaged length says is not believed.
    let mut ids = Vec::with_capacity(count.min(body.0.len()));
    let mut last = 0;
    for _ in 0..count {
        let id = body.delta32(last)?;
        last = u64::from(id);
        ids.push(id);
    }
    Ok(ids)
}

fn put_option(out: &mut Vec<u8>, value: Option<u64>) {
    put_varint(out, value.map_or(0, |value| value.saturating_add(1)));
}

const FRAME_MANAGED: u8 = 0;
const FRAME_NATIVE: u8 = 1;
const FRAME_STUB: u8 = 2;
const FRAME_UNKNOWN: u8 = 3;
const FRAME_PSEUDO: u8 = 4;
const FRAME_ASYNC: u8 = 5;
const FRAME_ASYNC_MARK: u8 = 6;

fn encode_frame(frame: &Frame<'_>, out: &mut Vec<u8>) {
    match frame {
        Frame::Managed {
            method,
            tier,
            il_offset,
        } => {
            out.push(FRAME_MANAGED);
            put_varint(out, u64::from(*method));
            out.push(*tier as u8);
            put_option(out, il_offset.map(u64::from));
        }
        Frame::Native { module, svma } => {
            out.push(FRAME_NATIVE);
            put_varint(out, u64::from(*module));
            put_varint(out, *svma);
        }
        Frame::Stub { runtime, name } => {
            out.push(FRAME_STUB);
            out.push(*runtime);
            put_str(out, name);
        }
        Frame::Unknown { address } => {
            out.push(FRAME_UNKNOWN);
            put_varint(out, *address);
        }
        Frame::Pseudo { text } => {
            out.push(FRAME_PSEUDO);
            put_str(out, text);
        }
        Frame::Async { method, state } => {
            out.push(FRAME_ASYNC);
            put_varint(out, u64::from(*method));
            put_delta(out, 0, i64::from(*state) as u64);
        }
        Frame::AsyncMark { text } => {
            out.push(FRAME_ASYNC_MARK);
            put_str(out, text);
        }
    }
}

/// Reads the body of a record.
///
/// `Ok(None)`: a kind or a value that only a newer version knows; the record is to be skipped.
pub(crate) fn decode<'a>(
    kind: u8,
    body: &'a [u8],
    deltas: &mut Deltas,
) -> Result<Option<Record<'a>>, Malformed> {
    let mut body = BodyReader(body);
    let body = &mut body;
    Ok(Some(match kind {
        KIND_SAMPLE => {
            let flags = body.byte()?;
            let thread = body.delta32(deltas.sample_thread)?;
            let stack = body.delta32(deltas.sample_stack)?;
            let time_ns = deltas.take_time(body)?;
            let value = if flags & 4 == 0 {
                body.varint()?
            } else {
                deltas.sample_value
            };
            deltas.sample_thread = u64::from(thread);
            deltas.sample_stack = u64::from(stack);
            deltas.sample_value = value;
            let Some(event) = Event::from_code(flags >> 3) else {
                return Ok(None);
            };
            let end = WalkEnd::from_code(flags & 3);
            let detail = take_later_option32(body)?;
            let logical = take_later_option32(body)?;
            Record::Sample {
                thread,
                stack,
                time_ns,
                event,
                value,
                end,
                detail,
                logical,
            }
        }
        KIND_STACK => {
            let stack = body.delta32(deltas.next_stack)?;
            deltas.next_stack = u64::from(stack) + 1;
            let frame = body.varint32()?;
            let parent = match body.varint()? {
                0 => None,
                coded => {
                    let coded = coded - 1;
                    let back = (coded >> 1) as i64 ^ -((coded & 1) as i64);
                    let parent = i64::from(stack).checked_sub(back).ok_or(Malformed)?;
                    Some(u32::try_from(parent).map_err(|_| Malformed)?)
                }
            };
            Record::Stack {
                stack,
                parent,
                frame,
            }
        }
        KIND_FRAME => {
            let frame = body.delta32(deltas.next_frame)?;
            deltas.next_frame = u64::from(frame) + 1;
            Record::Frame {
                frame,
                value: decode_frame(body)?,
            }
        }
        KIND_THREAD => {
            let (thread, tid) = (body.varint32()?, body.varint32()?);
            let managed = body.byte()? != 0;
            let time_ns = deltas.take_time(body)?;
            Record::Thread {
                thread,
                tid,
                name: body.text()?,
                managed,
                time_ns,
            }
        }
        KIND_THREAD_END => {
            let thread = body.varint32()?;
            let time_ns = deltas.take_time(body)?;
            Record::ThreadEnd {
                thread,
                time_ns,
                cpu_ns: body.varint()?,
            }
        }
        KIND_LOST => {
            let count = body.varint()?;
            Record::Lost {
                reason: body.text()?,
                count,
            }
        }
        KIND_BROKEN => {
            let count = body.varint()?;
            Record::Broken {
                reason: body.text()?,
                count,
            }
        }
        KIND_ASYNC_CUT => {
            let count = body.varint()?;
            Record::AsyncCut {
                reason: body.text()?,
                count,
            }
        }
        KIND_METHOD => Record::Method {
            method: body.varint32()?,
            runtime: body.byte()?,
            kind: MethodKind::from_code(body.byte()?),
            module: take_option32(body)?,
            token: body.varint32()?,
            type_name: body.text()?,
            name: body.text()?,
        },
        KIND_MODULE => {
            let module = body.varint32()?;
            let Some(kind) = ModuleKind::from_code(body.byte()?) else {
                return Ok(None);
            };
            let runtime = match take_option32(body)? {
                None => None,
                Some(runtime) => Some(u8::try_from(runtime).map_err(|_| Malformed)?),
            };
            let (bias, file_offset) = (body.varint()?, body.varint()?);
            let id_bytes = Cow::Borrowed(body.bytes()?);
            let path = body.text()?;
            Record::Module {
                module,
                kind,
                runtime,
                path,
                bias,
                id_bytes,
                file_offset,
            }
        }
        KIND_PROCESS => {
            let (pid, parent, unix_ns) = (body.varint32()?, body.varint32()?, body.varint()?);
            let time_ns = deltas.take_time(body)?;
            Record::Process {
                pid,
                parent,
                command: body.text()?,
                unix_ns,
                time_ns,
            }
        }
        KIND_ENGINE => {
            let (engine, walker) = (body.text()?, body.text()?);
            let Some(event) = Event::from_code(body.byte()?) else {
                return Ok(None);
            };
            let (interval_ns, max_depth) = (body.varint()?, body.varint32()?);
            Record::Engine {
                engine,
                walker,
                event,
                interval_ns,
                max_depth,
            }
        }
        KIND_RUNTIME => {
            let (runtime, recorded) = (body.byte()?, body.byte()? != 0);
            Record::Runtime {
                runtime,
                version: body.text()?,
                recorded,
                refused_by: if body.0.is_empty() {
                    Cow::Borrowed("")
                } else {
                    body.text()?
                },
            }
        }
        KIND_STATS => Record::Stats {
            time_ns: deltas.take_time(body)?,
            agent_cpu_ns: body.varint()?,
            target_cpu_ns: body.varint()?,
            agent_memory: body.varint()?,
            handler_ns: body.varint()?,
            due_ns: match body.0.is_empty() {
                true => None,
                false => body.varint()?.checked_sub(1),
            },
            lost_ns: match body.0.is_empty() {
                true => 0,
                false => body.varint()?,
            },
        },
        KIND_UNSEEN => {
            let (threads, cpu_ns) = (body.varint()?, body.varint()?);
            Record::Unseen {
                reason: body.text()?,
                threads,
                cpu_ns,
            }
        }
        KIND_COST => {
            let Some(part) = CostPart::from_code(body.byte()?) else {
                return Ok(None);
            };
            Record::Cost {
                part,
                modelled: body.byte()? != 0,
                count: body.varint()?,
                cpu_ns: body.varint()?,
                name: body.text()?,
            }
        }
        KIND_THREAD_STATE => Record::ThreadState {
            thread: body.varint32()?,
            time_ns: deltas.take_time(body)?,
            state: body.byte()?,
            syscall: take_option32(body)?,
            wait: body.text()?,
            missing: body.text()?,
        },
        KIND_TRACED => Record::Traced {
            traced: body.varint32()?,
            runtime: body.byte()?,
            token: body.varint32()?,
            min_ns: body.varint()?,
            module: body.text()?,
            type_name: body.text()?,
            name: body.text()?,
            refused: body.text()?,
        },
        KIND_CALLS => {
            let traced = body.varint32()?;
            let time_ns = deltas.take_time(body)?;
            let (errors, sum_ns, max_ns) = (body.varint()?, body.varint()?, body.varint()?);
            let count = usize::try_from(body.varint()?).map_err(|_| Malformed)?;
            // Each takes two bytes at least: what a damaged length says is not believed.
            let mut buckets = Vec::with_capacity(count.min(body.0.len() / 2));
            let mut last = 0;
            for _ in 0..count {
                let bucket = body.delta32(last)?;
                last = u64::from(bucket);
                buckets.push((bucket, body.varint()?));
            }
            Record::Calls {
                traced,
                time_ns,
                errors,
                sum_ns,
                max_ns,
                buckets: Cow::Owned(buckets),
            }
        }
        KIND_COLLECTED => Record::Collected {
            thread: body.varint32()?,
            time_ns: deltas.take_time(body)?,
            ns: body.varint()?,
        },
        KIND_SURVIVOR => {
            let end = WalkEnd::from_code(body.byte()? & 3);
            let allocation = body.delta32(deltas.next_allocation)?;
            deltas.next_allocation = u64::from(allocation) + 1;
            let thread = body.delta32(deltas.sample_thread)?;
            let stack = body.delta32(deltas.sample_stack)?;
            deltas.sample_thread = u64::from(thread);
            deltas.sample_stack = u64::from(stack);
            let time_ns = deltas.take_time(body)?;
            let (bytes, size, collections) = (body.varint()?, body.varint()?, body.varint()?);
            let (detail, logical) = (take_option32(body)?, take_option32(body)?);
            Record::Survivor {
                allocation,
                thread,
                stack,
                logical,
                time_ns,
                end,
                bytes,
                size,
                collections,
                detail,
            }
        }
        KIND_GONE => Record::Gone {
            time_ns: deltas.take_time(body)?,
            allocations: Cow::Owned(take_ids(body)?),
        },
        KIND_THINNED => Record::Thinned {
            time_ns: deltas.take_time(body)?,
            allocations: Cow::Owned(take_ids(body)?),
        },
        KIND_INSTANT => Record::Instant {
            time_ns: deltas.take_time(body)?,
            collections: body.varint()?,
        },
        KIND_NOTE => Record::Note { text: body.text()? },
        KIND_END => Record::End {
            time_ns: deltas.take_time(body)?,
        },
        KIND_SYMBOL => {
            let (frame, line) = (body.varint32()?, body.varint32()?);
            Record::Symbol {
                frame,
                name: body.text()?,
                file: body.text()?,
                line,
            }
        }
        KIND_DETAIL => {
            let detail = body.varint32()?;
            let Some(event) = Event::from_code(body.byte()?) else {
                return Ok(None);
            };
            Record::Detail {
                detail,
                event,
                name: body.text()?,
                text: body.text()?,
            }
        }
        KIND_SOURCE => {
            let Some(event) = Event::from_code(body.byte()?) else {
                return Ok(None);
            };
            let interval = body.varint()?;
            Record::Source {
                event,
                source: body.text()?,
                walker: body.text()?,
                interval,
            }
        }
        KIND_LIMITED => {
            let Some(event) = Event::from_code(body.byte()?) else {
                return Ok(None);
            };
            Record::Limited {
                event,
                count: body.varint()?,
                value: body.varint()?,
            }
        }
        KIND_CHANGE => Record::Change {
            time_ns: deltas.take_time(body)?,
            before: body.varint32()?,
            after: body.varint32()?,
        },
        KIND_PAUSE => Record::Pause {
            time_ns: deltas.take_time(body)?,
            stopping_ns: body.varint()?,
            stopped_ns: body.varint()?,
        },
        _ => return Ok(None),
    }))
}

fn take_option32(body: &mut BodyReader<'_>) -> Result<Option<u32>, Malformed> {
    match body.varint()? {
        0 => Ok(None),
        value => u32::try_from(value - 1).map(Some).map_err(|_| Malformed),
    }
}

/// A field that is left out at the end of a body, or that an older body does not have.
fn take_later_option32(body: &mut BodyReader<'_>) -> Result<Option<u32>, Malformed> {
    match body.0.is_empty() {
        true => Ok(None),
        false => take_option32(body),
    }
}

fn decode_frame<'a>(body: &mut BodyReader<'a>) -> Result<Frame<'a>, Malformed> {
    Ok(match body.byte()? {
        FRAME_MANAGED => Frame::Managed {
            method: body.varint32()?,
            tier: Tier::from_code(body.byte()?),
            il_offset: take_option32(body)?,
        },
        FRAME_NATIVE => Frame::Native {
            module: body.varint32()?,
            svma: body.varint()?,
        },
        FRAME_STUB => Frame::Stub {
            runtime: body.byte()?,
            name: body.text()?,
        },
        FRAME_UNKNOWN => Frame::Unknown {
            address: body.varint()?,
        },
        FRAME_PSEUDO => Frame::Pseudo { text: body.text()? },
        FRAME_ASYNC => Frame::Async {
            method: body.varint32()?,
            state: i32::try_from(body.delta(0)? as i64).map_err(|_| Malformed)?,
        },
        FRAME_ASYNC_MARK => Frame::AsyncMark { text: body.text()? },
        // The frame must stay defined: stacks refer to it.
        _ => Frame::Pseudo {
            text: Cow::Borrowed("a kind of frame of a newer version"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kind and body of each record that the golden file of version 1 does not have, byte by byte
    /// as the table of `docs/recording-format.md` says. A fault that writer and reader share shows
    /// here alone.
    #[test]
    fn records_of_later_kinds_are_the_bytes_of_the_table() {
        let ids = || Cow::Borrowed(&[5u32, 3][..]);
        let (time_ns, text) = (2, |text: &'static str| Cow::Borrowed(text));
        let records: [(u8, &[u8], Record<'_>); 16] = [
            (
                17,
                &[7, 2, 1, b'a', 2, b'b', b'c'],
                Record::Detail {
                    detail: 7,
                    event: Event::Exception,
                    name: text("a"),
                    text: text("bc"),
                },
            ),
            (
                18,
                &[3, 0x80, 1, 1, b's', 1, b'w'],
                Record::Source {
                    event: Event::Alloc,
                    source: text("s"),
                    walker: text("w"),
                    interval: 128,
                },
            ),
            (
                19,
                &[4, 5, 6],
                Record::Limited {
                    event: Event::Contention,
                    count: 5,
                    value: 6,
                },
            ),
            (
                20,
                &[4, 5, 6],
                Record::Pause {
                    time_ns,
                    stopping_ns: 5,
                    stopped_ns: 6,
                },
            ),
            (
                21,
                &[3, 9, 1, b'r'],
                Record::Unseen {
                    reason: text("r"),
                    threads: 3,
                    cpu_ns: 9,
                },
            ),
            (
                22,
                &[2, 1, 8, 9, 1, b'n'],
                Record::Cost {
                    part: CostPart::Ticks,
                    modelled: true,
                    count: 8,
                    cpu_ns: 9,
                    name: text("n"),
                },
            ),
            (
                23,
                &[1, 4, b'S', 203, 1, 1, b'f', 1, b'm'],
                Record::ThreadState {
                    thread: 1,
                    time_ns,
                    state: b'S',
                    syscall: Some(202),
                    wait: text("f"),
                    missing: text("m"),
                },
            ),
            (
                24,
                &[4, 1, 5],
                Record::Change {
                    time_ns,
                    before: 1,
                    after: 5,
                },
            ),
            (
                25,
                &[3, 1, b'r'],
                Record::AsyncCut {
                    reason: text("r"),
                    count: 3,
                },
            ),
            (
                26,
                &[7, 1, 9, 8, 1, b'm', 1, b't', 1, b'n', 1, b'r'],
                Record::Traced {
                    traced: 7,
                    runtime: 1,
                    token: 9,
                    min_ns: 8,
                    module: text("m"),
                    type_name: text("t"),
                    name: text("n"),
                    refused: text("r"),
                },
            ),
            (
                27,
                &[7, 4, 1, 8, 9, 2, 10, 3, 4, 1],
                Record::Calls {
                    traced: 7,
                    time_ns,
                    errors: 1,
                    sum_ns: 8,
                    max_ns: 9,
                    buckets: Cow::Borrowed(&[(5, 3), (7, 1)]),
                },
            ),
            (
                28,
                &[2, 8, 2, 6, 4, 100, 24, 9, 8, 6],
                Record::Survivor {
                    allocation: 4,
                    thread: 1,
                    stack: 3,
                    logical: Some(5),
                    time_ns,
                    end: WalkEnd::Broken,
                    bytes: 100,
                    size: 24,
                    collections: 9,
                    detail: Some(7),
                },
            ),
            (
                29,
                &[4, 2, 10, 3],
                Record::Gone {
                    time_ns,
                    allocations: ids(),
                },
            ),
            (
                30,
                &[4, 2, 10, 3],
                Record::Thinned {
                    time_ns,
                    allocations: ids(),
                },
            ),
            (
                31,
                &[4, 9],
                Record::Instant {
                    time_ns,
                    collections: 9,
                },
            ),
            (
                32,
                &[1, 4, 9],
                Record::Collected {
                    thread: 1,
                    time_ns,
                    ns: 9,
                },
            ),
        ];
        for (kind, bytes, record) in records {
            let mut body = Vec::new();
            let written = encode(&record, &mut Deltas::default(), &mut body);
            assert_eq!((written, &*body), (kind, bytes), "{record:?}");
            let read = decode(kind, bytes, &mut Deltas::default());
            assert_eq!(read, Ok(Some(record)));
        }
    }
}
