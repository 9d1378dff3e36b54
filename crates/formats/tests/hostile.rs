//! Names from the profiled program are data in every format.
//!
//! The HTML page's own tests are beside its module; that a browser agrees is tried by `viewers`.

mod common;

use common::{HOSTILE, RecordedProfile, awaited, profile_of};
use formats::{Format, GroupBy, OutputOptions, Profile, StackView};
use profile::model::Event;
use profile::ops::Counts;

/// Every hostile name as process, thread, runtime, module, file, frame, reason and note.
fn hostile() -> Profile {
    let stacks = (0..HOSTILE.len()).map(|at| RecordedProfile {
        thread: at as u32,
        stack: vec![at, at + 1, at + 2],
        event: Event::Cpu,
        value: 1_000_000,
    });
    profile_of(HOSTILE, HOSTILE.len() as u32, &stacks.collect::<Vec<_>>())
}

fn written(format: Format, options: &OutputOptions) -> String {
    let mut out = Vec::new();
    formats::write(format, &hostile(), options, &mut out).expect("a Vec takes everything");
    String::from_utf8(out).expect("text formats are UTF-8")
}

/// Characters that a terminal obeys or that turn text around.
fn acts(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{200b}' | '\u{feff}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[test]
fn nothing_acts_in_text() {
    for by in GroupBy::ALL {
        let options = OutputOptions {
            by: Some(by),
            tree: true,
            top: 1000,
            ..OutputOptions::default()
        };
        let text = written(Format::Text, &options);
        assert_eq!(text.chars().find(|&c| acts(c)), None, "{}", by.name());
    }
    for profile in [hostile(), awaited(hostile(), HOSTILE)] {
        let inspect = formats::inspect_text(&profile, &Counts::of(&profile));
        assert_eq!(inspect.chars().find(|&c| acts(c)), None);
    }
}

#[test]
fn every_row_is_one_line() {
    let options = OutputOptions {
        top: 1000,
        ..OutputOptions::default()
    };
    let text = written(Format::Text, &options);
    let table: Vec<&str> = text
        .split("\n\n")
        .nth(1)
        .expect("a table")
        .lines()
        .collect();
    assert_eq!(table.len(), 1 + HOSTILE.len());
    assert!(text.ends_with('\n') && !text.ends_with("\n\n"));
    let counts = text.lines().rev().nth(1).expect("the line of counts");
    assert!(
        counts.starts_with(&format!("{} samples, 4 lost", HOSTILE.len())),
        "{counts}"
    );
}

#[test]
fn honest_lines_are_one_line() {
    assert_eq!(formats::honest_line(&hostile().health).lines().count(), 1);
    let inspect = formats::inspect_text(&hostile(), &Counts::of(&hostile()));
    assert!(inspect.ends_with(&format!("{}\n", formats::honest_line(&hostile().health))));
}

/// A flame graph tool sees as many stacks, frames and samples as there are.
#[test]
fn collapsed_lines_keep_their_shape() {
    for (threads, processes) in [(false, false), (true, false), (true, true)] {
        for annotate in [false, true] {
            let options = OutputOptions {
                threads,
                processes,
                annotate,
                ..OutputOptions::default()
            };
            let text = written(Format::Collapsed, &options);
            assert_eq!(text.chars().find(|&c| acts(c)), None);
            let mut total = 0;
            for line in text.lines() {
                let (stack, count) = line.rsplit_once(' ').expect("a space before the count");
                total += count.parse::<u64>().expect("a count");
                let frames: Vec<&str> = stack.split(';').collect();
                assert_eq!(
                    frames.len(),
                    3 + usize::from(threads) + usize::from(processes),
                    "{line}"
                );
                assert!(frames.iter().all(|f| !f.is_empty()), "{line}");
                // Tools take a number before the count for the count of another profile.
                let (_, before) = stack.rsplit_once(' ').unwrap_or(("", stack));
                assert!(before.parse::<f64>().is_err(), "{line}");
            }
            assert_eq!(total, HOSTILE.len() as u64);
        }
    }
}

#[test]
fn json_formats_keep_names_as_strings() {
    for format in [Format::Speedscope, Format::Firefox] {
        let text = written(format, &OutputOptions::default());
        let value: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        assert!(value.is_object());
        assert!(text.contains("日本語のメソッド名"), "{format:?}");
        assert_eq!(text.chars().find(|&c| acts(c)), None, "{format:?}");
    }
    let options = OutputOptions {
        json: true,
        tree: true,
        ..OutputOptions::default()
    };
    let report = written(Format::Text, &options);
    serde_json::from_str::<serde_json::Value>(&report).expect("it is JSON");
    // A program reads these: names as they are, escaped by JSON.
    let inspect = formats::inspect_json(&hostile(), &Counts::of(&hostile()));
    let value: serde_json::Value = serde_json::from_str(&inspect).expect("it is JSON");
    assert_eq!(value["processes"][0]["command"][0], HOSTILE[0]);
}

/// The marks between async methods, and the reasons why a chain is not whole, are names too.
#[test]
fn logical_stacks_are_as_inert() {
    let profile = awaited(hostile(), HOSTILE);
    for stacks in StackView::ALL {
        let options = OutputOptions {
            stacks,
            tree: true,
            top: 1000,
            ..OutputOptions::default()
        };
        for format in [
            Format::Text,
            Format::Collapsed,
            Format::Speedscope,
            Format::Firefox,
        ] {
            let mut out = Vec::new();
            formats::write(format, &profile, &options, &mut out).expect("a Vec takes everything");
            let text = String::from_utf8(out).expect("text formats are UTF-8");
            assert_eq!(text.chars().find(|&c| acts(c)), None, "{format:?}");
            if format == Format::Collapsed {
                let counts = text
                    .lines()
                    .map(|line| line.rsplit_once(' ').expect("a count").1);
                let sum: u64 = counts
                    .map(|count| count.parse::<u64>().expect("a number"))
                    .sum();
                assert_eq!(sum, HOSTILE.len() as u64);
            }
        }
    }
    assert_eq!(formats::honest_line(&profile.health).lines().count(), 1);
    no_name_is_in(&page_of(&profile));
}

fn page_of(profile: &Profile) -> String {
    let mut out = Vec::new();
    formats::write(Format::Html, profile, &OutputOptions::default(), &mut out)
        .expect("a Vec takes everything");
    String::from_utf8(out).expect("a page is UTF-8")
}

#[test]
fn no_name_is_in_the_page_but_in_its_title() {
    no_name_is_in(&page_of(&hostile()));
}

fn no_name_is_in(page: &str) {
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script").count(), 2);
    assert!(
        !page.contains("<img") && !page.contains("<!--") && !page.contains("onerror=alert(1)>")
    );
    assert!(!page.contains("日本語"));
    assert_eq!(page.chars().find(|&c| acts(c)), None);
}
