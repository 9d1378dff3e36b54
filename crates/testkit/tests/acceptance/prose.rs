//! Counts of comments that break the mechanical rules of CONTRIBUTING.md, by crate.
//!
//! Input: all Rust sources. The test fails if a count exceeds its entry in [`LEFT`]. Invariant: the
//! numbers of [`LEFT`] only shrink.

use std::fs;
use std::path::Path;

use testkit::repository;

/// Remaining violations by crate: comment lines that open with a free relative ("What …", "Whoever
/// …"); "nobody", "somebody", "anybody"; "told of", "tells of"; comment lines over 100 columns.
const LEFT: &[(&str, [usize; 4])] = &[
    ("agent", [0, 0, 0, 4]),
    ("oracle", [0, 0, 0, 5]),
    ("profile", [0, 0, 0, 2]),
    ("recording", [0, 2, 3, 0]),
    ("sampler", [0, 0, 0, 4]),
    ("stackwalk", [0, 0, 0, 1]),
    ("symbolserver", [0, 5, 1, 0]),
    ("testkit", [0, 3, 2, 0]),
];

const LONGEST: usize = 100;
const OPENINGS: [&str; 6] = ["What ", "Whatever ", "Who ", "Whoever ", "Whose ", "Which "];
const PERSONS: [&str; 3] = ["nobody", "somebody", "anybody"];
const TOLD: [&str; 3] = ["told of", "tells of", "tell of"];

/// Returns the text of a line that consists of a comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim_start())
}

fn count(folder: &Path, counts: &mut [usize; 4]) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            count(&path, counts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            for line in fs::read_to_string(&path).unwrap().lines() {
                let Some(text) = comment(line) else { continue };
                let lower = text.to_lowercase();
                let of = |words: &[&str]| -> usize {
                    words.iter().map(|word| lower.matches(word).count()).sum()
                };
                counts[0] += usize::from(OPENINGS.iter().any(|word| text.starts_with(word)));
                counts[1] += of(&PERSONS);
                counts[2] += of(&TOLD);
                counts[3] += usize::from(line.chars().count() > LONGEST);
            }
        }
    }
}

/// Returns the names and folders of all crates.
fn crates() -> Vec<(String, std::path::PathBuf)> {
    let crates = fs::read_dir(repository().join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path());
    let beside = ["lab", "xtask"].map(|name| repository().join(name));
    let mut all: Vec<_> = crates
        .chain(beside)
        .map(|path| {
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                path,
            )
        })
        .collect();
    all.sort();
    all
}

#[test]
fn comments_do_not_get_worse() {
    let mut now = String::new();
    let mut worse = Vec::new();
    for (name, folder) in crates() {
        let mut counts = [0; 4];
        count(&folder, &mut counts);
        now += &format!("    ({name:?}, {counts:?}),\n");
        let left = LEFT.iter().find(|(left, _)| *left == name);
        let left = left.map_or([0; 4], |(_, left)| *left);
        if counts.iter().zip(left).any(|(count, left)| *count > left) {
            worse.push(format!("{name}: {counts:?}, at most {left:?}"));
        }
    }
    assert!(worse.is_empty(), "{worse:#?}\nall of today:\n{now}");
}
