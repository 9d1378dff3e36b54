//! Runs the fuzz corpus as a plain test: past findings and replies of real runtimes.

#[path = "../../../fuzz/targets/answer.rs"]
mod answer;

use std::fs;
use std::path::{Path, PathBuf};

use diagnostics::{ProcessInfo, ProcessInfoVersion};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/answers");
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn answers() {
    let files = files();
    assert!(files.len() >= 10, "only {} files", files.len());
    for file in files {
        println!("{}", file.display());
        answer::check(&fs::read(file).unwrap());
    }
}

/// File names have the command and the runtime of a reply.
#[test]
fn what_runtimes_have_answered_is_read() {
    let mut read = 0;
    for file in files() {
        let name = file.file_name().unwrap().to_str().unwrap();
        let Some((command, version)) = name.split_once('-') else {
            continue;
        };
        let generation = match command {
            "info1" => ProcessInfoVersion::First,
            "info2" => ProcessInfoVersion::Second,
            "info3" => ProcessInfoVersion::Third,
            _ => continue,
        };
        let info = ProcessInfo::read(&fs::read(&file).unwrap(), generation).unwrap();
        if version.starts_with("3.1") {
            assert!(info.is_err(), "{name}");
            continue;
        }
        let info = info.unwrap();
        assert_eq!(info.os, "Linux", "{name}");
        let reported = info.version.as_deref();
        let expected = (generation != ProcessInfoVersion::First).then_some(version);
        assert_eq!(reported, expected, "{name}");
        read += 1;
    }
    assert!(read >= 8, "{read}");
}
