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
        // Held to the end: several threads load modules at the same time.
        let mut composites = lock(&self.composites);
        if composites.iter().any(is_this) {
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
        composites.push(Composite {
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

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;
    use std::sync::Barrier;

    use fake_clr::small_image;

    use super::*;
    use crate::base::waker::Waker;
    use crate::model::phase::new_phase;

    const COMPONENTS: u32 = 115;
    /// Code of the image.
    const CODE: u64 = 0x1008;

    /// Maps an image as the runtime does; never unmapped.
    fn mapped(name: &str, is_executable: bool) -> u64 {
        let name = format!("{name}\0");
        let image = small_image((COMPONENTS, &[0; 16]), name.as_bytes(), true);
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // With a page around it, so that it is a mapping of its own.
        let length = image.len() + 2 * 4096;
        // SAFETY: a new mapping, in which the image fits behind the first page.
        unsafe {
            let place = libc::mmap(null_mut(), length, access, flags, -1, 0).cast::<u8>();
            assert!(!std::ptr::eq(place, libc::MAP_FAILED.cast()));
            let base = place.add(4096);
            base.copy_from(image.as_ptr(), image.len());
            let executable = if is_executable { libc::PROT_EXEC } else { 0 };
            let access = libc::PROT_READ | executable;
            assert_eq!(libc::mprotect(base.cast(), image.len(), access), 0);
            base as u64
        }
    }

    fn program() -> &'static Program {
        let waker = Box::leak(Box::new(Waker::new()));
        let (_, phase) = new_phase();
        Box::leak(Box::new(Program::new(phase, waker)))
    }

    fn is_known(program: &Program, base: u64) -> bool {
        program.code.map().lookup(base + CODE).is_some()
    }

    #[test]
    fn an_image_is_found_where_its_code_can_run() {
        const NAME: &str = "found.r2r.dll";
        let (program, clr) = (program(), Clr::new(1));
        let flat = mapped(NAME, false);
        let learn = |clr: &Clr, module: &str| {
            clr.learn_composite(program, module, NAME.to_owned());
            clr.images().len()
        };
        // A file that the program itself reads.
        assert_eq!(learn(&clr, "/app/one.dll"), 0);
        assert!(!is_known(program, flat));
        let base = mapped(NAME, true);
        assert_eq!(learn(&clr, "/app/one.dll"), 1);
        assert!(is_known(program, base));
        assert_eq!(clr.composite_at(base + CODE), Some(base));
        assert_eq!(clr.composite_at(flat + CODE), None);
        // Another of its modules.
        assert_eq!(learn(&clr, "/app/two.dll"), 1);
        // One of the same name in another folder, and another runtime with its own.
        let second = mapped(NAME, true);
        assert_eq!(learn(&clr, "/plugin/one.dll"), 2);
        assert_eq!(clr.composite_at(second + CODE), Some(second));
        let (other, third) = (Clr::new(2), mapped(NAME, true));
        assert_eq!(learn(&other, "/app/one.dll"), 1);
        assert_eq!(other.composite_at(third + CODE), Some(third));
        assert_eq!(other.composite_at(base + CODE), None);
    }

    #[test]
    fn modules_that_are_loaded_at_once_have_one_image() {
        let program = program();
        for round in 0..50 {
            let name = format!("round{round}.r2r.dll");
            let base = mapped(&name, true);
            let (clr, together) = (Clr::new(1), Barrier::new(2));
            std::thread::scope(|scope| {
                for module in ["/app/one.dll", "/app/two.dll"] {
                    let (clr, together, name) = (&clr, &together, &name);
                    scope.spawn(move || {
                        together.wait();
                        clr.learn_composite(program, module, name.clone());
                    });
                }
            });
            assert_eq!(clr.images().len(), 1);
            assert!(is_known(program, base));
        }
    }
}
