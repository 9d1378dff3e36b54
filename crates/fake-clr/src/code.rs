//! Code heap of the fake runtime: real machine code of functions, for calls and stack walks.
//!
//! A body has the frame of unoptimised JIT code and the code header of the runtime (`CodeHeader`,
//! `RealCodeHeader` of `vm/codeman.h`). It calls a given function and returns. Invariant: the next
//! body of the same size reuses freed memory.

use core::ffi::c_void;
use core::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::FakeClr;

/// Size of a heap in bytes.
const SIZE: usize = 1 << 20;
/// Bytes before the code of a body: its header, its unwind information, and the pointer to the
/// header.
const BEFORE: usize = 0x80;

/// `push rbp; mov rbp, rsp; mov rax, rdi; mov rdi, rsi; call rax; pop rbp; ret`
const CODE: [u8; 14] = [
    0x55, 0x48, 0x8b, 0xec, 0x48, 0x8b, 0xc7, 0x48, 0x8b, 0xfe, 0xff, 0xd0, 0x5d, 0xc3,
];
/// `UNWIND_INFO` of that prologue: `UWOP_SET_FPREG` at 4, `UWOP_PUSH_NONVOL` of rbp at 1.
const UNWIND: [u8; 8] = [0x01, 0x04, 0x02, 0x05, 0x04, 0x03, 0x01, 0x50];

/// Signature of a body: a function, and its argument.
type Code = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void);

/// Memory for code, writable and executable.
pub(crate) struct CodeHeap {
    start: usize,
    used: usize,
    free: Vec<Range<usize>>,
}

impl CodeHeap {
    pub(crate) fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let rights = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: a new mapping, whose address no other code has.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), SIZE, rights, flags, -1, 0) };
        assert!(start != libc::MAP_FAILED, "no memory for code");
        Self {
            start: start.expose_provenance(),
            used: 0,
            free: Vec::new(),
        }
    }

    /// Adds a body of this function with `size` bytes of code.
    pub(crate) fn add(&mut self, function: usize, size: usize) -> Range<usize> {
        let again = self.free.iter().rposition(|body| body.len() == size);
        let body = match again {
            Some(at) => self.free.remove(at),
            None => {
                let start = self.start + self.used + BEFORE;
                self.used += BEFORE + size;
                assert!(self.used <= SIZE, "the code heap is full");
                start..start + size
            }
        };
        let mut bytes = vec![0xcc; BEFORE + size];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &[0; 24]); // debug information, exception clauses, GcInfo: none
        put(24, &function.to_le_bytes());
        // One RUNTIME_FUNCTION: first byte, end, and its unwind information 0x40 bytes before the
        // code.
        let rva = BEFORE as u32;
        put(32, &1u32.to_le_bytes());
        put(36, &rva.to_le_bytes());
        put(40, &(rva + size as u32).to_le_bytes());
        put(44, &(rva - 0x40).to_le_bytes());
        put(BEFORE - 0x40, &UNWIND);
        put(BEFORE - 8, &(body.start - BEFORE).to_le_bytes());
        put(BEFORE, &CODE);
        // SAFETY: the range is within this heap's mapping, and no thread runs a body before it is
        // written.
        unsafe {
            let to = core::ptr::with_exposed_provenance_mut::<u8>(body.start - BEFORE);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        body
    }

    /// Frees a body that no thread runs any more.
    pub(crate) fn free(&mut self, body: Range<usize>) {
        self.free.push(body);
    }
}

impl Drop for CodeHeap {
    fn drop(&mut self) {
        let start = core::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: this heap's mapping; the runtime is dropped, so no thread runs its code.
        unsafe { libc::munmap(start, SIZE) };
    }
}

impl FakeClr {
    /// Calls the newest body of a function, which calls `f`. The frame on the stack is real.
    pub fn call<R>(&self, function: usize, f: impl FnOnce() -> R) -> R {
        let body = self.shared.lock().world.newest_body(function);
        let body = body.expect("the function has no code");
        let mut task = Task {
            f: Some(f),
            result: None,
        };
        // SAFETY: the code heap wrote this code, which keeps the C calling convention. It exists
        // until the function is unloaded, which no script does while it runs. `run` gets a task of
        // its own types.
        unsafe {
            let code: Code =
                core::mem::transmute(core::ptr::with_exposed_provenance::<()>(body.start));
            code(task.entry(), (&raw mut task).cast());
        }
        match task.result {
            Some(Ok(result)) => result,
            Some(Err(panic)) => resume_unwind(panic),
            None => unreachable!("the code has called `run`"),
        }
    }
}

struct Task<F, R> {
    f: Option<F>,
    result: Option<std::thread::Result<R>>,
}

impl<F: FnOnce() -> R, R> Task<F, R> {
    fn entry(&self) -> unsafe extern "C" fn(*mut c_void) {
        run::<F, R>
    }
}

/// Runs the function of a task. No panic leaves, because the caller's frame has no unwind table.
///
/// # Safety
/// `task` points to a [`Task`] of these types.
unsafe extern "C" fn run<F: FnOnce() -> R, R>(task: *mut c_void) {
    // SAFETY: guaranteed by the caller.
    let task = unsafe { &mut *task.cast::<Task<F, R>>() };
    if let Some(f) = task.f.take() {
        task.result = Some(catch_unwind(AssertUnwindSafe(f)));
    }
}
