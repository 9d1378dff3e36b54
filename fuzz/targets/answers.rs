//! Any bytes as what a runtime answers on its diagnostics socket: read without a panic, and into no more
//! than they are.
#![no_main]

#[path = "answer.rs"]
mod answer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| answer::check(bytes));
