//! Raw FFI definitions of the CLR Profiling API: interfaces, structures, flags, error codes.
//!
//! Source: `corprof.idl`, `corhdr.h`, `cor.h` and `corerror.h` of the runtime. Calls through these
//! definitions are unsafe; the rest of the crate wraps them safely.
//!
//! Invariant: every layout and every slot number in this module is asserted at compile time.

mod callback;
mod com;
mod context;
mod flags;
mod hresult;
mod info;
mod metadata;
mod objects;
mod types;

pub mod rules;

pub use callback::*;
pub use com::*;
pub use context::*;
pub use flags::*;
pub use hresult::*;
pub use info::*;
pub use metadata::*;
pub use objects::*;
pub use types::*;
