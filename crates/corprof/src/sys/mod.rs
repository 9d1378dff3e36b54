//! The raw contract of the CLR Profiling API: interfaces, slots, structures, flags and error codes
//! as `corprof.idl`, `corhdr.h`, `cor.h` and `corerror.h` of the runtime have them.
//!
//! It is not safe and does not try to be: that is the rest of the crate. The invariant: every
//! layout and every slot number in here is asserted at compile time.

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
