//! Memory that an output takes for each sample, counted by the allocator.
//!
//! One test, because the count is of the whole process.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{HOSTILE, INTERVAL, RecordedProfile, profile_of};
use formats::{Format, OutputOptions, Profile};
use profile::model::Event;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which counts.
struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

// SAFETY: each call goes to the system's allocator with the arguments given by the caller. That
// allocator keeps the contract.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller's guarantees are those that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Returns the most bytes held at once while `format` is written, beside those held before.
fn peak(format: Format, profile: &Profile, options: &OutputOptions) -> usize {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    formats::write(format, profile, options, io::sink()).expect("a sink takes everything");
    PEAK.load(Ordering::Relaxed) - before
}

/// A profile in which neighbouring samples of a thread have different stacks, of a few.
fn profile_with(samples: usize) -> Profile {
    const THREADS: usize = 4;
    let sample = |at: usize| RecordedProfile {
        thread: (at % THREADS) as u32,
        stack: (0..40).map(|depth| depth + at / THREADS % 8).collect(),
        event: Event::Cpu,
        value: INTERVAL,
    };
    let samples: Vec<_> = (0..samples).map(sample).collect();
    profile_of(HOSTILE, THREADS as u32, &samples)
}

#[test]
fn no_output_holds_more_of_a_sample_than_it_lists() {
    // Powers of two: vectors that have doubled are full.
    const SAMPLES: usize = 1 << 14;
    let (one, two) = (profile_with(SAMPLES), profile_with(2 * SAMPLES));
    let tree = OutputOptions {
        tree: true,
        ..OutputOptions::default()
    };
    let json = OutputOptions {
        json: true,
        ..OutputOptions::default()
    };
    let plain = OutputOptions::default();
    for (format, options, bytes) in [
        (Format::Collapsed, &plain, 0),
        (Format::Text, &plain, 0),
        (Format::Text, &tree, 0),
        (Format::Text, &json, 0),
        (Format::Pprof, &plain, 0),
        // An index.
        (Format::Firefox, &plain, 4),
        // A stack and a weight; a vector that grows is copied.
        (Format::Speedscope, &plain, 16),
        // The page is packed in memory.
        (Format::Html, &plain, 16),
    ] {
        let more = peak(format, &two, options).saturating_sub(peak(format, &one, options));
        println!(
            "{format:?} {} bytes for a sample",
            more as f64 / SAMPLES as f64
        );
        // Numbers are longer texts where there are more samples.
        let allowed = bytes * SAMPLES + 64;
        assert!(
            more <= allowed,
            "{format:?} ({options:?}): {more} > {allowed}"
        );
    }
}
