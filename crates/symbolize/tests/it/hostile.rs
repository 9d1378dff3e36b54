//! Damaged files: whatever is in them, lookups end, and do not panic.

use std::path::PathBuf;

use crate::common::{bytes, module};
use proptest::collection::vec;
use proptest::prelude::*;
use symbolize::{LookupOptions, Symbolizer};
use tempfile::TempDir;

/// Bytes overwritten, and the length that is left.
type Damage = (Vec<(prop::sample::Index, u8)>, Option<prop::sample::Index>);

fn damage() -> impl Strategy<Value = Damage> {
    let interesting = prop_oneof![Just(0), Just(0xff), Just(0x80), Just(0x7f), any::<u8>()];
    (
        vec((any::<prop::sample::Index>(), interesting), 1..24),
        prop::option::weighted(0.2, any::<prop::sample::Index>()),
    )
}

fn damaged(name: &str, (changes, cut): &Damage) -> Vec<u8> {
    let mut content = bytes(name);
    for (at, value) in changes {
        let at = at.index(content.len());
        content[at] = *value;
    }
    if let Some(cut) = cut {
        content.truncate(cut.index(content.len()));
    }
    content
}

/// A folder with the fixtures, those in `damages` damaged.
fn folder(damages: &[(&str, &Damage)]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "Lines.dll",
        "Lines.pdb",
        "Embedded.dll",
        "Awaits.dll",
        "Awaits.pdb",
        "Sources.dll",
        "Sources.pdb",
        "small.so",
        "small.so.debug",
    ] {
        let content = damages
            .iter()
            .find(|(damaged, _)| *damaged == name)
            .map_or_else(|| bytes(name), |(_, how)| damaged(name, how));
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let path = folder.path().to_owned();
    (folder, path)
}

fn ask_managed(path: PathBuf) {
    let module = module(&path, true);
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    for method in 0..12 {
        for il_offset in [0, 1, 30, 100, u32::MAX] {
            symbolizer.managed_line(&module, 0x0600_0000 | method, il_offset);
        }
    }
}

fn ask_awaits(path: PathBuf) {
    let module = module(&path, true);
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    for method in 0..0x30 {
        for state in [0, 1, 3, 100, -1] {
            symbolizer.await_line(&module, 0x0600_0000 | method, state);
        }
    }
}

fn ask_sources(path: PathBuf) {
    let module = module(&path, true);
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    let files = ["/fixture/Lines.cs", "/fixture/Short.cs"].into();
    for (_, text) in symbolizer.sources(&module, &files, 1 << 30) {
        // A byte that is no UTF-8 becomes three bytes.
        assert!(text.len() <= 3 * (4 << 20));
    }
}

fn ask_native(path: PathBuf) {
    let module = module(&path, false);
    let mut symbolizer = Symbolizer::new(LookupOptions {
        debug_folders: Vec::new(),
        ..LookupOptions::default()
    });
    for svma in (0..0x1100).step_by(3).chain([u64::MAX]) {
        symbolizer.native(&module, svma);
        symbolizer.function_start(&module, svma);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn modules_and_pdbs(dll in damage(), pdb in damage(), embedded in damage()) {
        let (_kept, path) = folder(&[("Lines.dll", &dll), ("Embedded.dll", &embedded)]);
        ask_managed(path.join("Lines.dll"));
        ask_managed(path.join("Embedded.dll"));
        let (_kept, path) = folder(&[("Lines.pdb", &pdb)]);
        ask_managed(path.join("Lines.dll"));
    }

    #[test]
    fn awaits(dll in damage(), pdb in damage()) {
        let (_kept, path) = folder(&[("Awaits.dll", &dll)]);
        ask_awaits(path.join("Awaits.dll"));
        let (_kept, path) = folder(&[("Awaits.pdb", &pdb)]);
        ask_awaits(path.join("Awaits.dll"));
    }

    #[test]
    fn sources(pdb in damage()) {
        let (_kept, path) = folder(&[("Sources.pdb", &pdb)]);
        ask_sources(path.join("Sources.dll"));
    }

    #[test]
    fn elf_files(library in damage(), debug in damage()) {
        let (_kept, path) = folder(&[("small.so", &library)]);
        ask_native(path.join("small.so"));
        let (_kept, path) = folder(&[("small.so.debug", &debug)]);
        ask_native(path.join("small.so"));
        ask_native(path.join("small.so.debug"));
    }

    #[test]
    fn names(symbol in "(_Z|_R|_ZN)?[ -~]{0,200}", unicode in "\\PC{0,50}") {
        prop_assert!(symbolize::demangle(&symbol).len() <= 4096);
        prop_assert!(symbolize::demangle(&unicode).len() <= 4096);
    }
}
