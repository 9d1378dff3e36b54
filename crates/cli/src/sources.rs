//! Source text of the lines that samples were taken on, from files that are on this machine.
//!
//! Names of files come from a recording, and what is read is put into a page that may be given to others: so it is
//! asked for, and only what is a regular file and named like source code is read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use profile::Profile;

/// Endings of source code that compilers for .NET and for native libraries write into debug information.
const ENDINGS: [&str; 15] = [
    "cs", "vb", "fs", "fsx", "razor", "cshtml", "c", "cc", "cpp", "cxx", "h", "hpp", "inl", "rs",
    "il",
];
/// Larger files are generated, or no source code.
const LARGEST: u64 = 4 << 20;

/// Text by name of the files of `profile`'s frames that are here.
pub(crate) fn read(profile: &Profile) -> BTreeMap<String, String> {
    let mut sources = BTreeMap::new();
    for frame in &profile.frames {
        let Some(file) = frame.file.filter(|_| frame.line > 0) else {
            continue;
        };
        let name = profile.string(file);
        if !sources.contains_key(name) {
            sources.insert(name.to_owned(), text(Path::new(name)));
        }
    }
    sources
        .into_iter()
        .filter_map(|(name, text)| Some((name, text?)))
        .collect()
}

fn text(path: &Path) -> Option<String> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    // Before it is opened: a FIFO would wait.
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
