//! Reads source text of sampled lines, from PDBs or else from files on this machine.
//!
//! A recording contains file names, and the text goes into a page that may be given to others. So
//! sources are read only on request, and only from regular files with a name like source code.
//! Invariant: no more text is kept than [`MAX_TOGETHER`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use profile::Profile;
use symbolize::Symbolizer;

use crate::names;

/// File name endings of source code in the debug information of .NET and native compilers.
const ENDINGS: [&str; 15] = [
    "cs", "vb", "fs", "fsx", "razor", "cshtml", "c", "cc", "cpp", "cxx", "h", "hpp", "inl", "rs",
    "il",
];
/// Maximum file size in bytes. Larger files are generated, or not source code.
const LARGEST: u64 = 4 << 20;

/// Maximum size of all texts together, in bytes. No program has a tenth of that on its stacks.
const MAX_TOGETHER: usize = 256 << 20;

/// Text of the files of `profile`'s frames, by file name: as it was compiled if the module's PDB
/// contains it, else as the file is on this machine.
pub(crate) fn read(profile: &Profile) -> BTreeMap<String, String> {
    let mut wanted: BTreeMap<Option<u32>, BTreeSet<&str>> = BTreeMap::new();
    for frame in profile.frames.iter().filter(|frame| frame.line > 0) {
        if let Some(file) = frame.file {
            let module = frame.module.map(|module| module.0);
            wanted
                .entry(module)
                .or_default()
                .insert(profile.string(file));
        }
    }
    let mut sources = BTreeMap::new();
    let mut left = MAX_TOGETHER;
    let mut symbolizer = Symbolizer::new(names::options());
    for (module, files) in &wanted {
        let module = module.and_then(|module| profile.modules.get(module as usize));
        let Some(module) = module.filter(|module| module.managed) else {
            continue;
        };
        for (name, text) in symbolizer.sources(module, files, left) {
            left = left.saturating_sub(text.len());
            sources.entry(name).or_insert(text);
        }
    }
    let files: BTreeSet<&str> = wanted.into_values().flatten().collect();
    for name in files {
        if !sources.contains_key(name)
            && let Some(text) = text(Path::new(name))
            && let Some(rest) = left.checked_sub(text.len())
        {
            left = rest;
            sources.insert(name.to_owned(), text);
        }
    }
    sources
}

fn text(path: &Path) -> Option<String> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    // Checked before opening: opening a FIFO would block.
    let is_file = fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= LARGEST);
    if !path.is_absolute() || !ENDINGS.contains(&ending.as_str()) || !is_file {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path)
        .ok()?
        .take(LARGEST)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
