//! Portable PDB: where the awaits of an async method are.
//!
//! Format: `docs/specs/PortablePdb-Metadata.md` of dotnet/runtime, MethodSteppingInformation of the
//! table CustomDebugInformation. `portable_pdb` reads lines. Invariant: for any bytes, a lookup
//! takes time logarithmic in the table's size.

use crate::custom_debug::{CustomDebug, Parent};
use crate::metadata::{Bytes, Metadata};

/// {54FD2AC5-E925-401A-9C2A-F94F171072F8}, in the byte order of the GUID heap.
const METHOD_STEPPING_INFORMATION: [u8; 16] = [
    0xc5, 0x2a, 0xfd, 0x54, 0x25, 0xe9, 0x1a, 0x40, 0x9c, 0x2a, 0xf9, 0x4f, 0x17, 0x10, 0x72, 0xf8,
];

/// Returns the IL offset at which the method of row `method` (of MethodDef) suspends in its await
/// number `state`. Compilers number awaits in the order of their code.
pub(crate) fn await_offset(metadata: &Metadata<'_>, method: u32, state: u32) -> Option<u32> {
    let mut blob = Bytes(
        CustomDebug::new(metadata)?.value(Parent::Method(method), METHOD_STEPPING_INFORMATION)?,
    );
    // Offset of the catch-all handler.
    blob.u32()?;
    let mut offsets = Vec::new();
    while !blob.0.is_empty() {
        let offset = blob.u32()?;
        blob.u32()?;
        // Resumes in another method: ignored.
        (blob.compressed()? == method).then_some(())?;
        offsets.push(offset);
    }
    offsets.sort_unstable();
    offsets.get(usize::try_from(state).ok()?).copied()
}
