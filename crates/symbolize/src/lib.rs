//! Symbolizer: names and lines for the frames of a profile, from the files that the program ran.
//!
//! Native frames get function names, inlined callees and lines from ELF symbols and DWARF; managed
//! frames get lines from portable PDBs. Names of managed methods come from the agent. The profiled
//! process is never read.
//!
//! Invariant: a file is used only if it is the one that was loaded. An ELF file must have the
//! recorded build-id, a .NET module the recorded MVID, a PDB the id in its module. A faulty file
//! gives an entry in the [`LookupReport`], never an error or a panic.
#![forbid(unsafe_code)]

mod apply;
mod check;
mod custom_debug;
mod debug_file;
mod demangle;
mod eh_frame;
mod elf;
mod file;
mod metadata;
mod pe;
mod portable_pdb;
mod signatures;
mod sources;
mod stepping;
mod symbolizer;

pub use apply::{symbolize, unnamed_function_name};
pub use check::{FileMismatch, check};
pub use demangle::demangle;
pub use pe::PdbId;
pub use symbolizer::{
    LookupReport, ManagedLine, MissingFile, ModuleReport, NativeSymbol, SymbolSource, Symbolizer,
};

use std::path::PathBuf;

/// Options of a lookup: what to look up, and the folders to search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupOptions {
    /// Whether to look up native frames.
    pub native: bool,
    /// Whether to add frames for inlined native functions.
    pub inlined: bool,
    /// Whether to look up source lines of managed frames.
    pub managed_lines: bool,
    /// Whether to look up the parameter types of managed methods.
    pub signatures: bool,
    /// Folders with separate debug files, in the layout of `/usr/lib/debug`.
    pub debug_folders: Vec<PathBuf>,
    /// The folder of files from symbol servers: `ID/debuginfo` by build-id, as other tools store
    /// it, and `ID/pdb`.
    pub fetched: Option<PathBuf>,
}

impl Default for LookupOptions {
    fn default() -> Self {
        Self {
            native: true,
            inlined: true,
            managed_lines: true,
            signatures: false,
            debug_folders: vec![PathBuf::from("/usr/lib/debug")],
            fetched: None,
        }
    }
}
