//! The fixtures, and modules made of them.

use std::path::{Path, PathBuf};

use profile::model::Module;

/// The path of a fixture.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// The bytes of a fixture.
pub(crate) fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).unwrap()
}

/// A loaded module.
pub(crate) fn module(path: &Path, managed: bool) -> Module {
    Module {
        path: path.to_str().unwrap().to_owned(),
        managed,
        id_bytes: Vec::new(),
        bias: 0,
        file_offset: 0,
    }
}
