//! The calls of `ICorProfilerInfo`, each with the context token that it requires.
//!
//! One file per subject; this file has the shared helpers. The calls are methods of
//! [`crate::Info`].
//!
//! Invariant: a method calls only a slot that the runtime has, and states the true lengths of its
//! buffers.

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
/// runtime is too old to have it. Evaluates to the method's result.
macro_rules! call {
    ($info:expr, $method:ident($($arg:expr),* $(,)?)) => {{
        let this = $info.with_slot(core::mem::offset_of!($crate::sys::ICorProfilerInfo15Vtbl, $method))?;
        // SAFETY: `with_slot` has checked the slot; the pointers among the arguments are those of
        // live locals of the types and lengths that the contract names; the caller has the context
        // token.
        unsafe { $crate::sys::ICorProfilerInfo15::$method(this $(, $arg)*) }
    }};
}
pub(crate) use call;

/// Maps `CORPROF_E_DATAINCOMPLETE` (the runtime does not have the data yet) to `None`.
pub(crate) fn complete<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Hresult::CORPROF_E_DATAINCOMPLETE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a list whose length only the runtime knows. `read` gets a buffer, its length and a pointer
/// for the full length. Up to N items are read at once, on the stack.
pub(crate) fn read_list<T: Copy, const N: usize>(
    empty: T,
    read: impl FnMut(*mut T, u32, &mut u32) -> Result<Hresult>,
) -> Result<Vec<T>> {
    with_list::<T, N, _>(empty, read, <[T]>::to_vec)
}

/// As [`read_list`], but converts the items with `take`.
fn with_list<T: Copy, const N: usize, R>(
    empty: T,
    mut read: impl FnMut(*mut T, u32, &mut u32) -> Result<Hresult>,
    take: impl FnOnce(&[T]) -> R,
) -> Result<R> {
    let mut first = [empty; N];
    let mut longer = Vec::new();
    let mut list = first.as_mut_slice();
    loop {
        let capacity = list.len() as u32;
        let mut length = 0;
        let answer = read(list.as_mut_ptr(), capacity, &mut length)?;
        if length <= capacity {
            answer.ok()?;
            return Ok(take(list.get(..length as usize).unwrap_or_default()));
        }
        if answer.is_err() && answer != Hresult::E_INSUFFICIENT_BUFFER {
            return Err(answer);
        }
        longer.resize(length as usize, empty);
        list = longer.as_mut_slice();
    }
}

/// Reads a UTF-16 text. The runtime's count includes the NUL at its end.
pub(crate) fn read_text(
    read: impl FnMut(*mut u16, u32, &mut u32) -> Result<Hresult>,
) -> Result<String> {
    with_list::<u16, 260, _>(0, read, |units| {
        let units = units.split(|unit| *unit == 0).next().unwrap_or_default();
        // Reserves the capacity at once: most texts are ASCII, and some are read while the program
        // waits.
        let mut text = String::with_capacity(units.len());
        let chars = char::decode_utf16(units.iter().copied());
        text.extend(chars.map(|read| read.unwrap_or(char::REPLACEMENT_CHARACTER)));
        text
    })
}

/// Converts a text for the runtime: UTF-16 with a NUL at its end.
pub(crate) fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// Copies memory that the runtime lends.
///
/// # Safety
/// `start` is null or points to `length` readable bytes.
pub(crate) unsafe fn bytes(start: *const u8, length: u32) -> Vec<u8> {
    if start.is_null() {
        return Vec::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { core::slice::from_raw_parts(start, length as usize) }.to_vec()
}
