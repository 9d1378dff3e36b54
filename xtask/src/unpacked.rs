//! Programs that no registry of packages has, which CI unpacks into the cache beside the runtimes.
//!
//! Tests that need one exist only where it is. Set-up prints what is absent.

use std::path::PathBuf;

use testkit::{DumpReader, Runtime, Setup, unpacked};

use crate::runtimes;

/// The folder of Microsoft's ClrMD and the reader around it.
const CLRMD: &str = "clrmd";
/// The first version that can run the reader.
const FIRST: &str = "10.0";
/// The folder of the composite program.
const COMPOSITE: &str = "composite-10.0.12";

/// Notes what is there, and prints what is not.
pub(crate) fn find(setup: &mut Setup) {
    for runtime in &mut setup.runtimes {
        let folder = runtime.framework_dir();
        let parts = ["createdump", "libmscordaccore.so"];
        let has_parts = parts.iter().all(|part| folder.join(part).is_file());
        runtime.dumps = has_parts && !runtime.is_core31();
        let why = match (runtime.is_core31(), has_parts) {
            // With Sidewalk and without (ClrMD 4.2).
            (true, _) => "ClrMD does not read crash dumps of it".to_owned(),
            (_, false) => format!("{} lacks {}", folder.display(), parts.join(" or ")),
            _ => continue,
        };
        eprintln!("no tests dumps:: that read on {}: {why}", runtime.version);
    }
    setup.dump_reader = dump_reader(&setup.runtimes);
    if setup.dump_reader.is_none() {
        eprintln!("no tests dumps:: that read: {CLRMD} or a runtime {FIRST} or later is absent");
    }
    setup.composite = unpacked(COMPOSITE).map(|folder| folder.join("forms"));
    if setup.composite.is_none() {
        eprintln!("no tests composite:: of a whole program: {COMPOSITE} is absent");
    }
}

fn dump_reader(all: &[Runtime]) -> Option<DumpReader> {
    let dll: PathBuf = unpacked(CLRMD)?.join("clrmd.dll");
    let newest = all
        .iter()
        .max_by(|a, b| runtimes::by_age(&a.version, &b.version))?;
    let is_enough = runtimes::by_age(&newest.version, FIRST).is_ge();
    is_enough.then(|| DumpReader {
        dll,
        runtime: newest.name.clone(),
    })
}
