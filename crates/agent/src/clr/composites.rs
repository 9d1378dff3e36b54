//! Composite ReadyToRun images: files that hold the precompiled code of several modules.
//!
//! Such a file is not a module, and the runtime reports only modules. Each module's header names
//! the file with its code. The file is in memory from the load of the first module to the runtime's
//! end (`NativeImage::Open`, vm/nativeimage.cpp). Its address is not reported, so it is searched in
//! the mappings. It may be mapped from its own file, mapped from a single-file program, or copied
//! into unnamed memory.
//!
//! Invariant: each composite image is reported to the code index once.

use std::ops::Range;
use std::path::Path;

use stackwalk::pe;

use super::{Clr, lock};
use crate::base::proc;
use crate::program::Program;

/// A composite image loaded by a runtime.
#[derive(Debug)]
pub(super) struct Composite {
    /// Folder of its modules.
    folder: String,
    /// File name.
    name: String,
    pub(super) base: u64,
    pub(super) code: Range<u64>,
}

impl Clr {
    /// Registers the composite image of this name, which has the code of the module at `path`.
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
        // Other runtimes may have loaded one of the same name from another folder.
        let file = folder.join(&name);
        starts.sort_by_key(|mapping| Path::new(&mapping.name) != file);
        let found = starts.into_iter().find_map(|mapping| {
            // SAFETY: such an image begins there, and a runtime keeps it to its end. If it is not
            // laid out by section, its code is not executable there, and the image is dropped
            // unread.
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

    /// Returns the address of the composite image that contains this code.
    pub(super) fn composite_at(&self, address: u64) -> Option<u64> {
        let composites = lock(&self.composites);
        let mut found = composites.iter();
        let found = found.find(|composite| composite.code.contains(&address))?;
        Some(found.base)
    }
}
