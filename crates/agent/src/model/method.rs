//! Methods, the code that the compiler makes of them, and the modules that they come from.

use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, OnceLock};

use recording::{MethodKind, Tier};

use crate::base::metadata::Metadata;
use crate::base::proc;
use stackwalk::own_memory::is_one_missing;

/// The time of a body that was added without being noticed then: before all samples.
pub const UNKNOWN_NS: u64 = 0;

/// One contiguous piece of JITted code.
#[derive(Clone, Debug)]
pub struct CodeBody {
    /// Addresses.
    pub range: Range<u64>,
    /// Number of the runtime.
    pub runtime: u8,
    /// FunctionID.
    pub function: usize,
    /// Address at which the runtime knows this body (hot part's start).
    pub code_start: u64,
    /// IL, dynamic or stub.
    pub kind: MethodKind,
    /// How far compiled.
    pub tier: Tier,
    /// CLOCK_MONOTONIC when it was added, or [`UNKNOWN_NS`].
    pub added_ns: u64,
    /// For code that may be unloaded (dynamic methods, collectible modules): the runtime must not
    /// be asked about it later, so this was asked when it was added, or at its end.
    pub collectible: Option<Arc<CollectibleFacts>>,
}

/// Facts about unloadable code, known from the start.
#[derive(Clone, Debug)]
pub struct CollectibleFacts {
    /// Its names; none where the runtime had none.
    pub names: Option<MethodNames>,
    /// Its map to IL.
    pub il_map: IlMap,
}

/// A body's map from native code to IL: native start offset, IL offset; sorted.
pub type IlMap = Box<[(u32, u32)]>;

/// A method's names as metadata has them.
#[derive(Clone, Debug)]
pub struct MethodNames {
    /// Its module, where it has one.
    pub module: Option<Arc<ManagedModule>>,
    /// MethodDef token, 0 where there is none.
    pub token: u32,
    /// Namespace and type.
    pub type_name: String,
    /// Method.
    pub name: String,
}

/// A file, as it was when the runtime loaded it.
#[derive(Clone, Copy, Debug)]
pub struct FileAtLoad {
    device: u64,
    inode: u64,
    length: u64,
}

impl FileAtLoad {
    /// `None` where there is no such file.
    pub fn of(path: &str) -> Option<FileAtLoad> {
        let file = std::fs::metadata(path).ok()?;
        Some(FileAtLoad {
            device: file.dev(),
            inode: file.ino(),
            length: file.len(),
        })
    }

    /// Whether it has become shorter. False where another file has its name by now: what is mapped
    /// is not that one.
    fn is_shorter(&self, path: &str) -> bool {
        FileAtLoad::of(path).is_some_and(|now| {
            (now.device, now.inode) == (self.device, self.inode) && now.length < self.length
        })
    }
}

/// Facts about a managed module.
#[derive(Debug)]
pub struct ManagedModule {
    /// Unique in the process for all time: ModuleIDs are used again.
    pub serial: u64,
    /// Number of the runtime.
    pub runtime: u8,
    /// Its file; empty for one that was made in memory.
    pub path: String,
    /// Where it was loaded, 0 where it was not.
    pub base: u64,
    /// Its ReadyToRun code.
    pub precompiled: Option<Range<u64>>,
    /// Address of the last byte of its file, where it is laid out by section and has code; else 0.
    pub last: u64,
    /// Its file as it was when it was learned of; `None` where there is none.
    pub file: Option<FileAtLoad>,
    /// It is in memory as its file is, not laid out by section.
    pub flat: bool,
    /// Its names, once they were asked for; `None` where the runtime must be asked.
    pub metadata: OnceLock<Option<Metadata>>,
    /// Its identity, once it was asked for.
    pub mvid: OnceLock<[u8; 16]>,
    /// Where its file is in memory, once that was asked for.
    pub mapped: OnceLock<Box<[Range<u64>]>>,
    /// It can be unloaded.
    pub collectible: bool,
}

impl ManagedModule {
    /// Its names, read in place; `None` where there is no image in memory, or none that is
    /// understood.
    pub fn metadata(&self) -> Option<&Metadata> {
        let known = self
            .metadata
            .get_or_init(|| Metadata::of_module(self.base, self.flat));
        known.as_ref()
    }

    /// Whether its file has become shorter than it was when it was loaded. The runtime reads it
    /// where it lies, and dies of what is not there any more, so it must not be asked then.
    pub fn is_cut_short(&self) -> bool {
        // While a file is being cut, its length is right first; its pages go one mapping after the
        // other.
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
            // It lies behind all code.
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
