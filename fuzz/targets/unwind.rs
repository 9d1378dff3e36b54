//! Unwind tables of any bytes: parsed, run and evaluated without a panic, and in bounded time.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stackwalk::survey::probe(bytes));
