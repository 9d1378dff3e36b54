//! The calls of `ICorProfilerInfo`, each with the context that it needs.
//!
//! One file for each subject; this one has what they share. The invariant: a method calls only a
//! slot that the runtime has, with buffers of the lengths that it states.

mod code;
pub(crate) mod enumerate;
mod event_pipe;
mod fields;
mod functions;
mod heap;
mod il;
mod modules;
mod setup;
mod threads;
mod types;

pub use event_pipe::{EventPipeEventDefinition, EventPipeProviderConfig, EventPipeSession};
pub use fields::ClassLayout;
pub use functions::{DynamicFunctionInfo, FunctionInfo};
pub use heap::{ArrayInfo, ObjectHandle, StringLayout};
pub use il::{IlBody, MethodMalloc};
pub use modules::{AppDomainInfo, AssemblyInfo, ModuleInfo};
pub use setup::RuntimeInformation;
pub use types::{ArrayClass, ClassInfo};

use crate::runtime::Result;
use crate::sys::Hresult;

/// Calls a slot of the runtime's interface, or returns `E_NOINTERFACE` from the function when the
/// runtime is too old to have it. Evaluates to the method's answer.
macro_rules! call {
    ($info:expr, $method:ident($($arg:expr),* $(,)?)) => {{
        let this = $info.with_slot(core::mem::offset_of!($crate::sys::ICorProfilerInfo15Vtbl, $method))?;
        // SAFETY: `with_slot` answers for the slot; the pointers among the arguments are those of
        // live locals of the types and lengths that the contract names; the context was proven.
        unsafe { $crate::sys::ICorProfilerInfo15::$method(this $(, $arg)*) }
    }};
}
pub(crate) use call;

/// What a runtime that has not got so far answers is no failure: `None` for
/// `CORPROF_E_DATAINCOMPLETE`.
pub(crate) fn complete<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Hresult::CORPROF_E_DATAINCOMPLETE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a list whose length only the runtime knows. `read` gets the buffer, its length and where
/// to put the whole length.
pub(crate) fn read_list<T: Clone>(
    first_guess: u32,
    empty: T,
    mut read: impl FnMut(*mut T, u32, &mut u32) -> Result<Hresult>,
) -> Result<Vec<T>> {
    let mut capacity = first_guess;
    loop {
        let mut list = vec![empty.clone(); capacity as usize];
        let mut length = 0;
        let pointer = if capacity == 0 {
            core::ptr::null_mut()
        } else {
            list.as_mut_ptr()
        };
        let answer = read(pointer, capacity, &mut length)?;
        if length <= capacity {
            answer.ok()?;
            list.truncate(length as usize);
            return Ok(list);
        }
        if answer.is_err() && answer != Hresult::E_INSUFFICIENT_BUFFER {
            return Err(answer);
        }
        capacity = length;
    }
}

/// Reads a UTF-16 text, whose length as the runtime counts it has the NUL at its end.
pub(crate) fn read_text(
    mut read: impl FnMut(*mut u16, u32, &mut u32) -> Result<Hresult>,
) -> Result<String> {
    let mut units = read_list(260, 0u16, &mut read)?;
    if let Some(end) = units.iter().position(|unit| *unit == 0) {
        units.truncate(end);
    }
    Ok(String::from_utf16_lossy(&units))
}

/// A text for the runtime: UTF-16 with a NUL at its end.
pub(crate) fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// A copy of memory that the runtime lends.
///
/// # Safety
/// `start` is null or points to `length` readable bytes.
pub(crate) unsafe fn bytes(start: *const u8, length: u32) -> Vec<u8> {
    if start.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(start, length as usize) }.to_vec()
}
