//! The page in a real browser, as a user would use it. Pictures are left beside the page.

use std::path::Path;

use formats::{Format, OutputOptions};
use testkit::{Tools, stdout_of};

use crate::scenes::{compared, hostile, large, phased};
use crate::{file, file_with, node};

/// In a real browser, as a user would. Pictures are left beside the page.
#[test]
fn the_page_can_be_used_in_a_browser() {
    let page = file("browser", Format::Html, &large());
    let awaits = profile::testing::awaits().profile();
    let awaits = file("browser-awaits", Format::Html, &awaits);
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures");
    std::fs::create_dir_all(&pictures).expect("the folder for tests' files takes folders");
    let mut browser = node(&Tools::get(), "browser.mjs");
    stdout_of(
        browser
            .arg(testkit::chromium())
            .arg(pictures)
            .arg(page)
            .arg(awaits)
            .arg(compared()),
    );
}

/// A range of time, the heatmap, tracks, callers and callees, links: by mouse and by keyboard.
#[test]
fn the_page_shows_time_and_methods_in_a_browser() {
    let text = (1..60).map(|line| format!("\tline <b>{line}</b>; // \u{202e}\n"));
    let options = OutputOptions {
        sources: [("/src/app/Phases.cs".to_owned(), text.collect())].into(),
        ..OutputOptions::default()
    };
    let page = file_with("browser-phased", Format::Html, &phased(), &options);
    let inert = file("browser-hostile", Format::Html, &hostile());
    let live = profile::testing::live().profile();
    let live = file("browser-live", Format::Html, &live);
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures");
    std::fs::create_dir_all(&pictures).expect("the folder for tests' files takes folders");
    let mut browser = node(&Tools::get(), "time.mjs");
    stdout_of(
        browser
            .arg(testkit::chromium())
            .arg(pictures)
            .arg(page)
            .arg(inert)
            .arg(live),
    );
}

/// Each interaction by mouse and by keyboard, which lead to the same.
#[test]
fn the_page_can_be_used_by_mouse_and_by_keyboard() {
    let page = file("browser-hands", Format::Html, &phased());
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures");
    std::fs::create_dir_all(&pictures).expect("the folder for tests' files takes folders");
    let mut browser = node(&Tools::get(), "hands.mjs");
    stdout_of(browser.arg(testkit::chromium()).arg(pictures).arg(page));
}
