//! Any bytes as coded records in whole blocks: decoded, imported, summed.
#![no_main]

mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::records(bytes));
