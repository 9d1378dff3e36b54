//! Native names with and without debug files, on a library whose answers are known
//! (`fixtures/small.cc`).

use std::fs;
use std::path::Path;

use crate::common::{fixture, module};
use symbolize::{LookupOptions, SymbolSource, Symbolizer};

const BUILD_ID: &str = "3e7227435ef740fae4939a67d2ab5b2a9ac9a16d";

/// `name file:line`, innermost first, joined by ` < `.
fn lookup(symbolizer: &mut Symbolizer, path: &Path, svma: u64) -> String {
    let found = symbolizer.native(&module(path, false), svma);
    let found: Vec<String> = found
        .iter()
        .map(|symbol| match symbol.line {
            0 => symbol.name.clone(),
            line => format!("{} {}:{line}", symbol.name, symbol.file),
        })
        .collect();
    found.join(" < ")
}

fn assert_names(symbolizer: &mut Symbolizer, path: &Path, table: &[(u64, &str)]) {
    for &(svma, expected) in table {
        assert_eq!(lookup(symbolizer, path, svma), expected, "{svma:x}");
    }
}

fn with_folders(folders: &[&Path]) -> Symbolizer {
    Symbolizer::new(LookupOptions {
        debug_folders: folders.iter().map(|folder| folder.to_path_buf()).collect(),
        ..LookupOptions::default()
    })
}

const INSIDE: [(u64, &str); 5] = [
    (
        0x1000,
        "innermost /fixture/small.cc:6 < middle /fixture/small.cc:10 < work::outer /fixture/small.cc:14",
    ),
    (0x1010, "plain_c /fixture/small.cc:26"),
    (0x102b, "work::twice<long> /fixture/small.cc:19"),
    (0x1030, ""),
    (0x0, ""),
];

#[test]
fn debug_file_by_its_link() {
    let mut symbolizer = with_folders(&[]);
    assert_names(&mut symbolizer, &fixture("small.so"), &INSIDE);
    assert_eq!(
        symbolizer.report().modules[0].source,
        SymbolSource::DebugInformation(fixture("small.so.debug"))
    );
}

#[test]
fn debug_file_by_build_id() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("lib/small.so");
    let debug = folder
        .path()
        .join("debug/.build-id")
        .join(&BUILD_ID[..2])
        .join(format!("{}.debug", &BUILD_ID[2..]));
    for path in [&library, &debug] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
    }
    fs::copy(fixture("small.so"), &library).unwrap();
    fs::copy(fixture("small.so.debug"), &debug).unwrap();
    let mut symbolizer = with_folders(&[&folder.path().join("debug")]);
    assert_names(&mut symbolizer, &library, &INSIDE);
    // Still found when the library itself is gone, by the recorded id.
    let mut gone = module(&library, false);
    gone.id_bytes = (0..20)
        .map(|at| u8::from_str_radix(&BUILD_ID[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    fs::remove_file(&library).unwrap();
    let mut symbolizer = with_folders(&[&folder.path().join("debug")]);
    assert_eq!(
        symbolizer.native(&gone, 0x102b)[0].name,
        "work::twice<long>"
    );
}

#[test]
fn without_debug_file_only_what_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("small.so");
    fs::copy(fixture("small.so"), &library).unwrap();
    let mut symbolizer = with_folders(&[]);
    assert_names(
        &mut symbolizer,
        &library,
        &[(0x1002, ""), (0x1010, "plain_c"), (0x102b, "")],
    );
    assert_eq!(
        symbolizer.report().modules[0].source,
        SymbolSource::ExportsOnly
    );
    // The unwind tables say where functions begin.
    let module = module(&library, false);
    for (svma, start) in [
        (0x1002, Some(0x1000)),
        (0x1010, Some(0x1007)),
        (0x102f, Some(0x102b)),
        (0x1030, None),
        (0xfff, None),
        (u64::MAX, None),
    ] {
        assert_eq!(symbolizer.function_start(&module, svma), start, "{svma:x}");
    }
}

/// musl's assembler exports functions without a size, and what lies behind one may be another.
#[test]
fn an_export_without_a_size_names_nothing_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("small.so");
    let mut bytes = crate::common::bytes("small.so");
    let symbol: [u64; 2] = [0x1007, 0x24];
    let symbol = symbol.map(u64::to_le_bytes).concat();
    let at = bytes.windows(16).position(|window| window == symbol);
    bytes[at.unwrap() + 8] = 0;
    fs::write(&library, bytes).unwrap();
    let table = [(0x1007, ""), (0x1010, ""), (0x102b, "")];
    assert_names(&mut with_folders(&[]), &library, &table);
}

#[test]
fn a_debug_file_of_another_build_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("small.so");
    fs::copy(fixture("small.so"), &library).unwrap();
    let mut debug = crate::common::bytes("small.so.debug");
    let id: Vec<u8> = (0..20)
        .map(|at| u8::from_str_radix(&BUILD_ID[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let at = debug.windows(20).position(|window| window == id).unwrap();
    debug[at] ^= 1;
    fs::write(folder.path().join("small.so.debug"), debug).unwrap();
    let mut symbolizer = with_folders(&[]);
    assert_eq!(lookup(&mut symbolizer, &library, 0x1002), "");
}

#[test]
fn inlined_functions_can_be_left_out() {
    let mut symbolizer = Symbolizer::new(LookupOptions {
        inlined: false,
        signatures: false,
        ..LookupOptions::default()
    });
    let found = lookup(&mut symbolizer, &fixture("small.so"), 0x1002);
    assert_eq!(found, "work::outer /fixture/small.cc:14");
}

#[test]
fn the_kernels_own_library() {
    let mut symbolizer = with_folders(&[]);
    let module = module(Path::new("[vdso]"), false);
    let mut names = std::collections::BTreeSet::new();
    for svma in 0..0x4000 {
        names.extend(
            symbolizer
                .native(&module, svma)
                .iter()
                .map(|s| s.name.clone()),
        );
    }
    assert!(names.contains("clock_gettime"), "{names:?}");
}
