//! Check of a file from a symbol server: whether it is the requested one and harmless to read.
//!
//! The check runs before any name is read, and decompresses nothing. Invariant: a file that passes
//! has the requested id, is as long as its own tables say, and does not decompress to more than its
//! length explains.

use std::fmt;
use std::path::Path;

use sha2::{Digest, Sha256, Sha384, Sha512};

use crate::elf::Elf;
use crate::file::{PartialFile, read_limited};
use crate::portable_pdb::PortablePdb;
use crate::symbolizer::{LARGEST_PDB_FILE, MissingFile, hex};

/// Reason why a file is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileMismatch {
    /// The file is incomplete or has another format. The text is the reason.
    Damaged(String),
    /// The file is of another build, with this id.
    OtherBuild(String),
    /// The PDB's checksum differs from the one in the module.
    WrongSum,
    /// The file has neither symbols nor debug information.
    NoNames,
}

impl fmt::Display for FileMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(why) => write!(f, "it is damaged or no such file ({why})"),
            Self::OtherBuild(id) if id.is_empty() => f.write_str("it has no id"),
            Self::OtherBuild(id) => write!(f, "it belongs to another build, {id}"),
            Self::WrongSum => f.write_str("its bytes are not those that the module names"),
            Self::NoNames => f.write_str("it holds no names"),
        }
    }
}

/// Checks the file at `path` against the wanted one.
///
/// # Errors
/// The file is not the wanted one.
pub fn check(path: &Path, wanted: &MissingFile) -> Result<(), FileMismatch> {
    match wanted {
        MissingFile::DebugFile { build_id, .. } => {
            let damaged = |why: String| FileMismatch::Damaged(why);
            let file = PartialFile::open(path, 0).map_err(|error| damaged(error.to_string()))?;
            Elf::check(&file).map_err(damaged)?;
            let elf = Elf::read(&file, false).map_err(damaged)?;
            if elf.build_id != *build_id {
                return Err(FileMismatch::OtherBuild(hex(&elf.build_id)));
            }
            let has_names = elf.has_symbols() || elf.claims_debug_information;
            if has_names {
                Ok(())
            } else {
                Err(FileMismatch::NoNames)
            }
        }
        MissingFile::Pdb { id, checksums, .. } => {
            let bytes = read_limited(path, LARGEST_PDB_FILE)
                .map_err(|error| FileMismatch::Damaged(error.to_string()))?;
            let pdb = PortablePdb::new(bytes)
                .ok_or_else(|| FileMismatch::Damaged("no portable PDB".to_owned()))?;
            let found = pdb.id().unwrap_or_default();
            if found != *id {
                return Err(FileMismatch::OtherBuild(hex(&found)));
            }
            let known = checksums.iter().find_map(|(algorithm, sum)| {
                let bytes = pdb.without_id()?;
                let found = match algorithm.to_ascii_uppercase().as_str() {
                    "SHA256" => Sha256::digest(&bytes).to_vec(),
                    "SHA384" => Sha384::digest(&bytes).to_vec(),
                    "SHA512" => Sha512::digest(&bytes).to_vec(),
                    // Another one says nothing to us.
                    _ => return None,
                };
                Some(found == *sum)
            });
            if known == Some(false) {
                Err(FileMismatch::WrongSum)
            } else {
                Ok(())
            }
        }
    }
}
