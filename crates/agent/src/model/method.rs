//! Facts about methods, their compiled bodies, and their modules.

use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, OnceLock};

use recording::{MethodKind, Tier};

use crate::base::metadata::Metadata;
use crate::base::proc;
use stackwalk::own_memory::is_one_missing;

/// Time of a body whose compilation was not observed: before all samples.
pub const UNKNOWN_NS: u64 = 0;

/// One contiguous range of JITted code.
#[derive(Clone, Debug)]
pub struct CodeBody {
    /// Address range.
    pub range: Range<u64>,
    /// Number of the runtime.
    pub runtime: u8,
    /// FunctionID.
    pub function: usize,
    /// Address at which the runtime knows this body (hot part's start).
    pub code_start: u64,
    /// IL, dynamic or stub.
    pub kind: MethodKind,
    /// Its tier.
    pub tier: Tier,
    /// CLOCK_MONOTONIC when it was added, or [`UNKNOWN_NS`].
    pub added_ns: u64,
    /// Facts about code that may be unloaded (dynamic methods, collectible modules). The runtime
    /// must not be queried about it later, so they are read when it is added, or at its unload.
    pub collectible: Option<Arc<CollectibleFacts>>,
}

/// Facts about unloadable code, known in advance.
#[derive(Clone, Debug)]
pub struct CollectibleFacts {
    /// Its names; `None` if the runtime had none.
    pub names: Option<MethodNames>,
    /// Its IL map.
    pub il_map: IlMap,
}

/// A body's map from native code to IL: native start offset, IL offset; sorted.
pub type IlMap = Box<[(u32, u32)]>;

/// The names of a method in metadata form.
#[derive(Clone, Debug)]
pub struct MethodNames {
    /// Its module, if it has one.
    pub module: Option<Arc<ManagedModule>>,
    /// MethodDef token, 0 if there is none.
    pub token: u32,
    /// Namespace and type name.
    pub type_name: String,
    /// Method name.
    pub name: String,
}

/// The identity and length of a file when the runtime loaded it.
#[derive(Clone, Copy, Debug)]
pub struct FileAtLoad {
    device: u64,
    inode: u64,
    length: u64,
}

impl FileAtLoad {
    /// Returns the facts about the file at `path`; `None` if there is none.
    pub fn of(path: &str) -> Option<FileAtLoad> {
        let file = std::fs::metadata(path).ok()?;
        Some(FileAtLoad {
            device: file.dev(),
            inode: file.ino(),
            length: file.len(),
        })
    }

    /// Whether it has become shorter. False if another file has its name by now, as the mapped file
    /// is then unknown.
    fn is_shorter(&self, path: &str) -> bool {
        FileAtLoad::of(path).is_some_and(|now| {
            (now.device, now.inode) == (self.device, self.inode) && now.length < self.length
        })
    }
}

/// Facts about a managed module.
#[derive(Debug)]
pub struct ManagedModule {
    /// Unique in the process, as ModuleIDs are reused.
    pub serial: u64,
    /// Number of the runtime.
    pub runtime: u8,
    /// Path of its file; empty for one created in memory.
    pub path: String,
    /// Base address, 0 if it is not in memory.
    pub base: u64,
    /// Address range of its ReadyToRun code.
    pub precompiled: Option<Range<u64>>,
    /// Address of the last byte of its file, if it is laid out by section and has code; else 0.
    pub last: u64,
    /// Its file when the module was registered; `None` if there is none.
    pub file: Option<FileAtLoad>,
    /// Whether it is in file layout in memory, not laid out by section.
    pub flat: bool,
    /// Its metadata, once read; `None` if the runtime must be queried.
    pub metadata: OnceLock<Option<Metadata>>,
    /// Its identity (MVID), once read.
    pub mvid: OnceLock<[u8; 16]>,
    /// Address ranges of its file's mappings, once read.
    pub mapped: OnceLock<Box<[Range<u64>]>>,
    /// Whether it can be unloaded.
    pub collectible: bool,
}

impl ManagedModule {
    /// Returns its metadata, read in place; `None` if no image is in memory or its format is
    /// unknown.
    pub fn metadata(&self) -> Option<&Metadata> {
        let known = self
            .metadata
            .get_or_init(|| Metadata::of_module(self.base, self.flat));
        known.as_ref()
    }

    /// Whether its file has become shorter than at the load. The runtime reads the file in place
    /// and crashes at missing pages, so it must not be queried then.
    pub fn is_cut_short(&self) -> bool {
        // While a file is being truncated, its length changes first; its pages disappear one
        // mapping after the other.
        if self.file.is_some_and(|file| file.is_shorter(&self.path)) {
            return true;
        }
        if self.last != 0 {
            return is_one_missing(self.base, self.last);
        }
        if self.base == 0 {
            return false;
        }
        let last = match self.metadata() {
            // The metadata is behind all code.
            Some(metadata) => metadata.last(),
            None => {
                let mappings = proc::mappings();
                let mapping = proc::mapping_of(&mappings, self.base);
                mapping.map_or(self.base, |mapping| mapping.range.end.saturating_sub(1))
            }
        };
        is_one_missing(self.base, last)
    }
}
