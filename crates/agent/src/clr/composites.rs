//! Composite ReadyToRun images: files that have the precompiled code of several modules, and are no
//! modules themselves.
//!
//! A runtime reports modules. Each names the file that has its code, in its own header; that file
//! is in memory since the first of them was loaded, and stays as long as the runtime
//! (`NativeImage::Open`, vm/nativeimage.cpp). Its address is not reported, so it is looked for
//! among the mappings: it may be mapped from its own file, from that of a program in one file, or
//! copied into memory without a name.
//!
//! Invariant: each is told to the code index once.

use std::ops::Range;
use std::path::Path;

use stackwalk::pe;

use super::{Clr, lock};
use crate::base::proc;
use crate::program::Program;

/// A composite image of a runtime.
#[derive(Debug)]
pub(super) struct Composite {
    /// The folder of its modules.
    folder: String,
    /// Its file's name.
    name: String,
    pub(super) base: u64,
    pub(super) code: Range<u64>,
}

impl Clr {
    /// Learns of the composite image of this name, which has the code of a module of this path.
    pub(super) fn learn_composite(&self, program: &Program, path: &str, name: String) {
        let folder = Path::new(path).parent().unwrap_or(Path::new(""));
        let is_this = |known: &Composite| known.name == name && Path::new(&known.folder) == folder;
        if lock(&self.composites).iter().any(is_this) {
            return;
        }
        let mappings = proc::mappings();
        let mut starts: Vec<_> = (mappings.iter())
            .filter(|mapping| mapping.readable && pe::is_composite(mapping.range.start, &name))
            .collect();
        // Other runtimes may have one of that name, from elsewhere.
        let file = folder.join(&name);
        starts.sort_by_key(|mapping| Path::new(&mapping.name) != file);
        let found = starts.into_iter().find_map(|mapping| {
            // SAFETY: such an image begins there, and a runtime keeps it to its end. Where it is
            // not laid out by section its code is not executable there, and it is dropped unread.
            let image = unsafe { pe::r2r_image(mapping.range.start) }.ok()?;
            let start = image.code().start;
            let is_loaded = proc::mapping_of(&mappings, start).is_some_and(|code| code.executable);
            let is_new = program.code.map().lookup(start).is_none();
            (is_loaded && is_new).then_some(image)
        });
        let Some(image) = found else {
            return;
        };
        lock(&self.composites).push(Composite {
            folder: folder.to_string_lossy().into_owned(),
            name,
            base: image.base(),
            code: image.code(),
        });
        program.code.image_added(image, self.number());
    }

    /// Address of the composite image that has this code.
    pub(super) fn composite_at(&self, address: u64) -> Option<u64> {
        let composites = lock(&self.composites);
        let mut found = composites.iter();
        let found = found.find(|composite| composite.code.contains(&address))?;
        Some(found.base)
    }
}
