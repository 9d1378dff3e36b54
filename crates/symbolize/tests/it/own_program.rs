//! Looks up functions of this very test program, whose answers are known.

use std::hint::black_box;
use std::path::Path;

use profile::model::Module;
use symbolize::{LookupOptions, SymbolSource, Symbolizer};

/// Line of `outer`.
const OUTER: u32 = line!() + 3;

#[inline(never)]
fn outer(value: u64) -> u64 {
    black_box(value) + 1
}

fn this_program() -> Module {
    let path = std::env::current_exe().unwrap();
    let path = path.to_str().unwrap().to_owned();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    // The first mapping is that of file offset 0 and address 0.
    let line = maps.lines().find(|line| line.ends_with(&path)).unwrap();
    let bias = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    Module {
        path,
        managed: false,
        id_bytes: Vec::new(),
        bias,
        file_offset: 0,
    }
}

fn svma_of_outer(module: &Module) -> u64 {
    let address: fn(u64) -> u64 = outer;
    black_box(outer(1));
    address as usize as u64 - module.bias
}

#[test]
fn function_file_and_line() {
    let module = this_program();
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    let found = symbolizer.native(&module, svma_of_outer(&module)).to_vec();
    assert_eq!(found.last().unwrap().name, "it::own_program::outer");
    assert!(
        found
            .last()
            .unwrap()
            .file
            .ends_with("tests/it/own_program.rs")
    );
    assert!((OUTER..OUTER + 3).contains(&found.last().unwrap().line));
    let report = symbolizer.report();
    assert_eq!(
        report.modules[0].source,
        SymbolSource::DebugInformation(module.path.clone().into())
    );
    assert_eq!((report.modules[0].lookups, report.modules[0].found), (1, 1));
}

#[test]
fn a_changed_file_is_not_believed() {
    let mut module = this_program();
    let svma = svma_of_outer(&module);
    module.id_bytes = vec![1; 20];
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    assert!(symbolizer.native(&module, svma).is_empty());
    assert_eq!(symbolizer.report().modules[0].source, SymbolSource::Changed);
}

#[test]
fn an_address_outside_every_function_has_no_name() {
    let module = this_program();
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    assert!(symbolizer.native(&module, 8).is_empty());
    assert!(symbolizer.native(&module, u64::MAX).is_empty());
}

#[test]
fn an_elf_file_inside_another_file() {
    let mut module = this_program();
    let svma = svma_of_outer(&module);
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive");
    let mut bytes = vec![0xee; 4096];
    bytes.extend(std::fs::read(Path::new(&module.path)).unwrap());
    std::fs::write(&archive, bytes).unwrap();
    module.path = archive.to_str().unwrap().to_owned();
    module.file_offset = 4096;
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    let found = symbolizer.native(&module, svma);
    assert_eq!(found.last().unwrap().name, "it::own_program::outer");
}

#[test]
fn what_is_no_regular_elf_file_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    std::fs::write(&text, "not ELF").unwrap();
    for path in [text.to_str().unwrap(), "/dev/zero", "/nowhere/at/all", ""] {
        let mut module = this_program();
        module.path = path.to_owned();
        let mut symbolizer = Symbolizer::new(LookupOptions::default());
        assert!(symbolizer.native(&module, 0x1000).is_empty());
        let source = &symbolizer.report().modules[0].source;
        assert!(
            matches!(source, SymbolSource::Unreadable(_)),
            "{path}: {source:?}"
        );
    }
}
