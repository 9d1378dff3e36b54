//! Lookups of names and lines by module and address, with a cache of the files read.
//!
//! One [`Symbolizer`] serves many lookups; a file is read on its first one. `apply` adds the
//! results to a profile, and the command line to a recording.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use profile::model::Module;

use crate::LookupOptions;
use crate::apply::{unnamed_code_name, unnamed_function_name};
use crate::debug_file;
use crate::elf::Elf;
use crate::file::{PartialFile, read_limited};
use crate::metadata::Metadata;
use crate::pe::{ModuleDebug, PdbId};
use crate::portable_pdb::PortablePdb;
use crate::signatures::signature;

/// Maximum size of PDB files that are read, in bytes.
pub(crate) const LARGEST_PDB_FILE: u64 = 512 << 20;

/// A native function at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeSymbol {
    /// Demangled name, never empty.
    pub name: String,
    /// Source file, empty where not known.
    pub file: String,
    /// Line, 0 where not known.
    pub line: u32,
}

/// A source line of a managed method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedLine {
    /// Source file as the compiler knew it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
}

/// Source of a module's names and lines, or the reason why there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SymbolSource {
    /// DWARF and symbols, from this file.
    DebugInformation(PathBuf),
    /// A full symbol table, from this file.
    SymbolTable(PathBuf),
    /// Only exported names. Most functions have none.
    ExportsOnly,
    /// This portable PDB.
    Pdb(PathBuf),
    /// The portable PDB inside the module.
    EmbeddedPdb,
    /// The file is missing or has another format. The text is the reason.
    Unreadable(String),
    /// The file differs from the loaded one in build-id or MVID.
    Changed,
    /// The file has no symbols, or the module no PDB.
    NoSymbols,
    /// The PDB at this path belongs to another build.
    PdbOfOtherBuild(PathBuf),
}

/// Result for one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleReport {
    /// Its path.
    pub path: String,
    /// It is a .NET module.
    pub managed: bool,
    /// Where its symbols came from.
    pub source: SymbolSource,
    /// Addresses looked up.
    pub lookups: u64,
    /// Addresses for which something was found.
    pub found: u64,
}

/// A file with names or lines that is not here, and by what it is known elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingFile {
    /// The debug file of an ELF file.
    DebugFile {
        /// The ELF file's path.
        of: String,
        /// Its build-id: 2 to 64 bytes.
        build_id: Vec<u8>,
    },
    /// The portable PDB of a .NET module.
    Pdb {
        /// The module's path.
        of: String,
        /// Path as written in the module; untrusted.
        name: String,
        /// Its id.
        id: PdbId,
        /// Checksum by the module: the algorithm's name, and the sum.
        checksums: Vec<(String, Vec<u8>)>,
    },
}

impl MissingFile {
    /// The path of what it is of.
    #[must_use]
    pub fn of(&self) -> &str {
        match self {
            Self::DebugFile { of, .. } | Self::Pdb { of, .. } => of,
        }
    }

    /// Its id in hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> String {
        match self {
            Self::DebugFile { build_id, .. } => hex(build_id),
            Self::Pdb { id, .. } => hex(id),
        }
    }

    /// Where it is looked for in the folder of what servers gave ([`LookupOptions::fetched`]). Made
    /// of digits alone: no name that a stranger gave a file is part of a path.
    #[must_use]
    pub fn relative_path(&self) -> PathBuf {
        let kind = match self {
            Self::DebugFile { .. } => "debuginfo",
            Self::Pdb { .. } => "pdb",
        };
        Path::new(&self.id()).join(kind)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Build-ids of other lengths are not requested from any server.
const BUILD_ID_LENGTHS: std::ops::RangeInclusive<usize> = 2..=64;

/// Results of all lookups, in the order in which modules were first asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupReport {
    /// The modules.
    pub modules: Vec<ModuleReport>,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    path: String,
    file_offset: u64,
    id_bytes: Vec<u8>,
}

struct NativeModule {
    /// In order of preference: the debug file, then the file itself.
    files: Vec<Elf>,
    missing: Option<MissingFile>,
    /// The first of the files came from a server.
    is_fetched: bool,
    report: ModuleReport,
    cache: HashMap<u64, Vec<NativeSymbol>>,
}

struct ManagedModule {
    pdb: Option<PortablePdb>,
    missing: Option<MissingFile>,
    report: ModuleReport,
    cache: HashMap<(u32, MethodPosition), Option<ManagedLine>>,
}

/// A place in a managed method.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum MethodPosition {
    Il(u32),
    Await(u32),
}

/// Looks up names and lines.
pub struct Symbolizer {
    options: LookupOptions,
    native: HashMap<Key, NativeModule>,
    managed: HashMap<Key, ManagedModule>,
    /// Metadata of .NET modules, `None` where it cannot be read or is of another build.
    metadata: HashMap<Key, Option<Vec<u8>>>,
    order: Vec<(bool, Key)>,
}

impl Symbolizer {
    /// Opens nothing yet.
    #[must_use]
    pub fn new(options: LookupOptions) -> Self {
        Self {
            options,
            native: HashMap::new(),
            managed: HashMap::new(),
            metadata: HashMap::new(),
            order: Vec::new(),
        }
    }

    /// Opens the files of these native modules, several at a time: unpacking the debug information
    /// of one libc takes as long as all the rest. Those that are not opened here are when they are
    /// asked for.
    pub fn open(&mut self, modules: &[&Module]) {
        let mut wanted: Vec<&Module> = Vec::new();
        for module in modules {
            let is_new = !self.native.contains_key(&key(module));
            if is_new && !wanted.iter().any(|other| key(other) == key(module)) {
                wanted.push(module);
            }
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicUsize::new(0);
        let options = &self.options;
        let open = || {
            let mut opened = Vec::new();
            while let Some(module) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                opened.push((key(module), open_native(module, options)));
            }
            opened
        };
        let opened: Vec<(Key, NativeModule)> = std::thread::scope(|scope| {
            let others = 1..threads.min(wanted.len());
            let others: Vec<_> = others.map(|_| scope.spawn(open)).collect();
            let mut opened = open();
            for other in others {
                // A file that made a thread panic is opened again, by whoever asks for it.
                opened.extend(other.join().unwrap_or_default());
            }
            opened
        });
        // In the order in which they were asked for, whoever was faster.
        let mut opened: HashMap<Key, NativeModule> = opened.into_iter().collect();
        for module in wanted {
            if let Some(native) = opened.remove(&key(module)) {
                self.order.push((false, key(module)));
                self.native.insert(key(module), native);
            }
        }
    }

    /// The native function at `svma` of `module`, preceded by those inlined there, innermost
    /// first. Empty where nothing is known.
    pub fn native(&mut self, module: &Module, svma: u64) -> &[NativeSymbol] {
        let inlined = self.options.inlined;
        let native = self.native_of(module);
        native.report.lookups += 1;
        let found = native.cache.entry(svma).or_insert_with(|| {
            let mut found = native
                .files
                .iter()
                .map(|file| file.lookup(svma))
                .find(|found| !found.is_empty())
                .unwrap_or_default();
            let exported = native
                .files
                .iter()
                .find_map(|file| file.exported_name(svma));
            if let (Some(outermost), Some(exported)) = (found.last_mut(), exported) {
                exported.clone_into(&mut outermost.name);
            }
            if !inlined && found.len() > 1 {
                found.drain(..found.len() - 1);
            }
            found
        });
        native.report.found += u64::from(!found.is_empty());
        found
    }

    /// Where the native function that holds `svma` begins, for files without symbols: by their
    /// unwind tables.
    pub fn function_start(&mut self, module: &Module, svma: u64) -> Option<u64> {
        // Opened by `native`, which is asked first.
        let native = self.native.get(&key(module))?;
        native
            .files
            .iter()
            .find_map(|file| file.function_start(svma))
    }

    /// Name of the code at `svma` where there is no symbol: where its function starts, by the
    /// unwind tables; else the library alone, so that its samples are one row. `None` if the file
    /// is not here to say so.
    pub fn unnamed(&mut self, module: &Module, svma: u64) -> Option<String> {
        if let Some(start) = self.function_start(module, svma) {
            return Some(unnamed_function_name(module, start));
        }
        let is_here = !self.native.get(&key(module))?.files.is_empty();
        is_here.then(|| unnamed_code_name(module))
    }

    /// The source line of the code at `il_offset` of the method `token` of `module`.
    pub fn managed_line(
        &mut self,
        module: &Module,
        token: u32,
        il_offset: u32,
    ) -> Option<&ManagedLine> {
        self.line_of(module, token, MethodPosition::Il(il_offset))
    }

    /// The source line of await number `state` (from 0, in the order of the code) of the async
    /// method whose state machine's `MoveNext` is the method `token` of `module`.
    pub fn await_line(&mut self, module: &Module, token: u32, state: i32) -> Option<&ManagedLine> {
        let state = u32::try_from(state).ok()?;
        self.line_of(module, token, MethodPosition::Await(state))
    }

    fn line_of(
        &mut self,
        module: &Module,
        token: u32,
        place: MethodPosition,
    ) -> Option<&ManagedLine> {
        let managed = self.managed(module);
        managed.report.lookups += 1;
        let pdb = &managed.pdb;
        let found = managed.cache.entry((token, place)).or_insert_with(|| {
            let pdb = pdb.as_ref()?;
            let (file, line) = match place {
                MethodPosition::Il(offset) => pdb.line(token, offset)?,
                MethodPosition::Await(state) => pdb.await_line(token, state)?,
            };
            Some(ManagedLine { file, line })
        });
        managed.report.found += u64::from(found.is_some());
        found.as_ref()
    }

    /// Source text by name of file: of those of `files`, named as lines name them, that the
    /// compiler has put into the PDB of the managed `module`. One that is larger than 4 MiB is left
    /// out, and those behind the one with which they are more than `limit` bytes together.
    pub fn sources(
        &mut self,
        module: &Module,
        files: &BTreeSet<&str>,
        limit: usize,
    ) -> BTreeMap<String, String> {
        let pdb = self.managed(module).pdb.as_ref();
        pdb.map(|pdb| pdb.sources(files, limit)).unwrap_or_default()
    }

    /// The types of the parameters of the method `token` of `module`: `(int, string)`.
    pub fn signature(&mut self, module: &Module, token: u32) -> Option<String> {
        let bytes = self.metadata.entry(key(module)).or_insert_with(|| {
            let file = PartialFile::open(Path::new(&module.path), module.file_offset).ok()?;
            let bytes = ModuleDebug::metadata(&file)?;
            let version = Metadata::parse(bytes)?.module_version_id();
            let recorded = <[u8; 16]>::try_from(module.id_bytes.as_slice()).ok();
            (recorded.is_none() || version == recorded).then(|| bytes.to_vec())
        });
        signature(&Metadata::parse(bytes.as_deref()?)?, token)
    }

    /// A file of a module that is missing here and may be on a server: the debug file of a native
    /// one without debug information, a managed one's PDB.
    pub fn missing(&mut self, module: &Module) -> Option<&MissingFile> {
        if module.managed {
            self.managed(module).missing.as_ref()
        } else {
            self.native_of(module).missing.as_ref()
        }
    }

    /// Whether a server gave a debug file of this native module, since its names may have been
    /// looked up.
    pub(crate) fn is_fetched(&mut self, module: &Module) -> bool {
        // Nothing is opened for a file of which there is none.
        let fetched = self.options.fetched.as_deref();
        let is_there = fetched.is_some_and(|folder| {
            !module.id_bytes.is_empty()
                && fetched_debug_file(folder, &module.path, &module.id_bytes).exists()
        });
        is_there && self.native_of(module).is_fetched
    }

    fn native_of(&mut self, module: &Module) -> &mut NativeModule {
        let (order, options) = (&mut self.order, &self.options);
        self.native.entry(key(module)).or_insert_with(|| {
            order.push((false, key(module)));
            open_native(module, options)
        })
    }

    fn managed(&mut self, module: &Module) -> &mut ManagedModule {
        let (order, options) = (&mut self.order, &self.options);
        self.managed.entry(key(module)).or_insert_with(|| {
            order.push((true, key(module)));
            open_managed(module, options)
        })
    }

    /// Results of all lookups so far.
    #[must_use]
    pub fn report(&self) -> LookupReport {
        let modules = self.order.iter().filter_map(|(is_managed, key)| {
            if *is_managed {
                self.managed.get(key).map(|m| m.report.clone())
            } else {
                self.native.get(key).map(|n| n.report.clone())
            }
        });
        LookupReport {
            modules: modules.collect(),
        }
    }
}

fn key(module: &Module) -> Key {
    Key {
        path: module.path.clone(),
        file_offset: module.file_offset,
        id_bytes: module.id_bytes.clone(),
    }
}

fn open_native(module: &Module, options: &LookupOptions) -> NativeModule {
    let OpenedFiles {
        files,
        source,
        build_id,
        is_fetched,
    } = native_files(module, options);
    let is_complete = match &source {
        SymbolSource::DebugInformation(_) => true,
        // All that is wanted of the C library.
        SymbolSource::SymbolTable(found_at) => found_at != Path::new(&module.path),
        _ => false,
    };
    // `[vdso]` is no file.
    let has_file = module.path.starts_with('/');
    let missing =
        (!is_complete && has_file && BUILD_ID_LENGTHS.contains(&build_id.len())).then(|| {
            MissingFile::DebugFile {
                of: module.path.clone(),
                build_id,
            }
        });
    NativeModule {
        files,
        missing,
        is_fetched,
        report: ModuleReport {
            path: module.path.clone(),
            managed: false,
            source,
            lookups: 0,
            found: 0,
        },
        cache: HashMap::new(),
    }
}

/// The files of a native module.
struct OpenedFiles {
    files: Vec<Elf>,
    source: SymbolSource,
    build_id: Vec<u8>,
    is_fetched: bool,
}

/// Where the debug file of the ELF file at `of` lies that a server gave.
fn fetched_debug_file(folder: &Path, of: &str, build_id: &[u8]) -> PathBuf {
    let missing = MissingFile::DebugFile {
        of: of.to_owned(),
        build_id: build_id.to_vec(),
    };
    folder.join(missing.relative_path())
}

fn native_files(module: &Module, options: &LookupOptions) -> OpenedFiles {
    let path = Path::new(&module.path);
    let own = PartialFile::open(path, module.file_offset)
        .map_err(|error| error.to_string())
        .and_then(|file| Elf::read(&file, true));
    // Without the file itself its debug file may still be there, found by the recorded id.
    let own = match own {
        Ok(own) if !module.id_bytes.is_empty() && own.build_id != module.id_bytes => {
            Err(SymbolSource::Changed)
        }
        Ok(own) => Ok(own),
        Err(why) => Err(SymbolSource::Unreadable(why)),
    };
    let build_id = match &own {
        Ok(own) => own.build_id.clone(),
        Err(_) => module.id_bytes.clone(),
    };
    let link = own.as_ref().ok().and_then(|own| own.debug_link.as_deref());

    let separate = if build_id.is_empty() || own.as_ref().is_ok_and(Elf::has_debug_information) {
        None
    } else {
        let fetched = options.fetched.as_deref();
        let fetched = fetched.map(|folder| fetched_debug_file(folder, &module.path, &build_id));
        debug_file::candidates(path, &build_id, link, &options.debug_folders)
            .into_iter()
            .map(|candidate| (candidate, false))
            .chain(fetched.map(|candidate| (candidate, true)))
            .find_map(|(candidate, is_fetched)| {
                let file = PartialFile::open(&candidate, 0).ok()?;
                let elf = Elf::read(&file, !is_c_library(path)).ok()?;
                (elf.build_id == build_id && elf.has_symbols())
                    .then_some((candidate, elf, is_fetched))
            })
    };

    let describe = |elf: &Elf, path: &Path| {
        if elf.has_debug_information() {
            SymbolSource::DebugInformation(path.to_owned())
        } else if elf.has_symbol_table {
            SymbolSource::SymbolTable(path.to_owned())
        } else if elf.has_symbols() {
            SymbolSource::ExportsOnly
        } else {
            SymbolSource::NoSymbols
        }
    };
    let (files, source, is_fetched) = match (separate, own) {
        (Some((found_at, elf, is_fetched)), own) => {
            let source = describe(&elf, &found_at);
            let files = std::iter::once(elf).chain(own.ok()).collect();
            (files, source, is_fetched)
        }
        (None, Ok(own)) => {
            let source = describe(&own, path);
            (vec![own], source, false)
        }
        (None, Err(source)) => (Vec::new(), source, false),
    };
    OpenedFiles {
        files,
        source,
        build_id,
        is_fetched,
    }
}

/// Of the C library, names are enough: its lines are of sources that users do not have at hand, and
/// to unpack them from its debug file takes longer than all that a short recording needs beside
/// them.
fn is_c_library(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ["libc.so", "libm.so", "libpthread.so", "ld-linux-"]
        .iter()
        .any(|library| name.starts_with(library))
}

fn open_managed(module: &Module, options: &LookupOptions) -> ManagedModule {
    let (source, pdb, missing) = find_pdb(module, options);
    ManagedModule {
        pdb,
        missing,
        report: ModuleReport {
            path: module.path.clone(),
            managed: true,
            source,
            lookups: 0,
            found: 0,
        },
        cache: HashMap::new(),
    }
}

/// Its PDB, or why there is none, and which one would be it.
fn find_pdb(
    module: &Module,
    options: &LookupOptions,
) -> (SymbolSource, Option<PortablePdb>, Option<MissingFile>) {
    let path = Path::new(&module.path);
    let debug = PartialFile::open(path, module.file_offset)
        .map_err(|error| error.to_string())
        .and_then(|file| ModuleDebug::read(&file));
    let debug = match debug {
        Ok(debug) => debug,
        Err(why) => return (SymbolSource::Unreadable(why), None, None),
    };
    if let Ok(recorded) = <[u8; 16]>::try_from(module.id_bytes.as_slice())
        && debug.mvid.is_some_and(|mvid| mvid != recorded)
    {
        return (SymbolSource::Changed, None, None);
    }
    let expected = debug.code_view.as_ref().map(|(_, id)| *id);
    // An embedded PDB is part of the module that was just checked; a CodeView entry beside it
    // names the same id, and where it does not the file has been tampered with.
    if let Some(pdb) = debug.embedded.and_then(PortablePdb::new)
        && (expected.is_none() || pdb.id() == expected)
    {
        return (SymbolSource::EmbeddedPdb, Some(pdb), None);
    }
    let Some((recorded_path, id)) = debug.code_view else {
        return (SymbolSource::NoSymbols, None, None);
    };
    let missing = MissingFile::Pdb {
        of: module.path.clone(),
        name: name_in(&recorded_path).to_owned(),
        id,
        checksums: debug.checksums,
    };
    let fetched = options.fetched.as_deref();
    let fetched = fetched.map(|folder| folder.join(missing.relative_path()));
    let candidates = pdb_candidates(path, &recorded_path);
    let mut other_build = None;
    for candidate in candidates.into_iter().chain(fetched) {
        let Ok(bytes) = read_limited(&candidate, LARGEST_PDB_FILE) else {
            continue;
        };
        match PortablePdb::new(bytes) {
            Some(pdb) if pdb.id() == Some(id) => {
                return (SymbolSource::Pdb(candidate), Some(pdb), None);
            }
            _ => other_build = Some(candidate),
        }
    }
    let source = other_build.map_or(SymbolSource::NoSymbols, SymbolSource::PdbOfOtherBuild);
    (source, None, Some(missing))
}

/// The name at the end of a path that was written on Windows or here.
fn name_in(recorded: &str) -> &str {
    recorded.rsplit(['/', '\\']).next().unwrap_or(recorded)
}

/// Beside the module under the recorded name, beside it under its own name, then the path that
/// the compiler wrote to.
fn pdb_candidates(module: &Path, recorded: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let name = name_in(recorded);
    if let Some(folder) = module.parent()
        && !name.is_empty()
        && name != ".."
    {
        found.push(folder.join(name));
    }
    found.push(module.with_extension("pdb"));
    if recorded.starts_with('/') {
        found.push(PathBuf::from(recorded));
    }
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_the_c_library() {
        for (path, is_one) in [
            ("/lib/x86_64-linux-gnu/libc.so.6", true),
            ("/lib64/ld-linux-x86-64.so.2", true),
            ("/lib/x86_64-linux-gnu/libm.so.6", true),
            ("/usr/lib/libcoreclr.so", false),
            ("/app/libcrypto.so.3", false),
            ("/app/libc", false),
        ] {
            assert_eq!(is_c_library(Path::new(path)), is_one, "{path}");
        }
    }
}
