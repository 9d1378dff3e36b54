//! The fuzz corpus as a plain test: what fuzzing once found stays found.

#[path = "../../../fuzz/targets/body.rs"]
mod body;

use std::fs;
use std::path::Path;

fn each(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let files: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(
        files.len() >= 10,
        "{} has only {} files",
        folder.display(),
        files.len()
    );
    for file in files {
        println!("{}", file.display());
        check(&fs::read(file).unwrap());
    }
}

#[test]
fn recordings() {
    each("recording", body::recording);
}

#[test]
fn records() {
    each("records", body::records);
}

#[test]
fn names() {
    each("names", body::names);
}
