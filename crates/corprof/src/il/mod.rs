//! IL: reads, changes and writes method bodies and signatures, without a runtime.
//!
//! - [`Body`] is the body of a method: lines of [`Instruction`]s with labels, and exception
//!   [`Clause`]s. A branch names a label, so lines can be inserted, replaced and removed freely.
//!   [`Body::write`] computes the distances and lengthens short branches that do not reach.
//! - [`MethodSignature`], [`LocalSignature`] and [`Type`] are the signatures in the metadata.
//! - [`Body::wrap`] puts [`Probes`] (inserted calls) around a method, and [`Body::with_enter`] one
//!   at its begin. [`Body::wrap_asking`] checks on the returned value, such as a task, whether the
//!   call has ended.
//!
//! Types and stack are not verified, so the caller must insert correct IL. Malformed bytes are a
//! [`ReadError`] with the offset, never a panic. Reading takes linear time.
//!
//! [`crate::Info::get_il_function_body`] returns the input,
//! [`crate::FunctionControl::set_il_function_body`] takes the output.
//!
//! ```
//! use corprof::Token;
//! use corprof::il::{Body, LocalSignature, MethodSignature, Probe, Probes, Type};
//!
//! // static int Twice(int n) => n * 2, as a compiler leaves it: a tiny header and four bytes.
//! let body = Body::read(&[0x12, 0x02, 0x18, 0x5a, 0x2a])?;
//! let signature = MethodSignature::read(&[0x00, 0x01, 0x08, 0x08])?;
//!
//! // In a profiler: addresses of functions, and tokens from the module's metadata.
//! let (enter, leave, fault) = (0x7000_1000, 0x7000_2000, 0x7000_3000);
//! let (enter_signature, leave_signature) = (Token(0x1100_0001), Token(0x1100_0002));
//! let probes = Probes {
//!     enter: Probe::calli(0, &[17], enter, enter_signature),
//!     leave: Probe::calli(1, &[], leave, leave_signature),
//!     fault: Probe::calli(1, &[], fault, leave_signature),
//!     token: Some(Type::INT64),
//! };
//! let wrapped = body.wrap(&signature, &LocalSignature::default(), &probes)?;
//!
//! // Two new locals: the token of `enter`, and the result.
//! let locals = wrapped.locals().expect("it has new locals").to_bytes();
//! assert_eq!(locals, [0x07, 0x02, 0x0a, 0x08]);
//! let new = wrapped.with_locals(Token(0x1100_0003)).write()?;
//! // The `ldarg.0` at offset 0 moved behind the probe.
//! assert_eq!(new.offsets()[0], (0, 18));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod body;
mod bytes;
mod compressed;
mod error;
mod instruction;
mod listing;
mod opcode;
mod read;
mod signature;
mod wrap;
mod write;

pub use body::{Body, Clause, Handler, Line};
pub use compressed::{
    read_compressed, read_compressed_signed, write_compressed, write_compressed_signed,
};
pub use error::{ReadError, ReadErrorKind, WriteError};
pub use instruction::{Instruction, Label, Operand};
pub use opcode::{Flow, Opcode, OperandKind};
pub use signature::{Convention, LocalSignature, MethodSignature, Primitive, Type, TypeToken};
pub use wrap::{
    Caution, NotStraight, Outcome, Probe, ProbeCall, Probes, Refusal, Wrapped, probe_signature,
};
pub use write::Written;
