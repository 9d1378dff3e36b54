//! Any bytes as a recording: read, split, imported, summed.
#![no_main]

mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::recording(bytes));
