//! Any text as the names of a method.
#![no_main]

mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::names(bytes));
