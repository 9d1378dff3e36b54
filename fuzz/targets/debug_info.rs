//! Debug information of any bytes, in each format: read without a panic, in order, from no more bytes than there are.
//!
//! The first byte is the format.

#![no_main]

use stackwalk::debug_info::{Format, decode};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((format, rest)) = bytes.split_first() else {
        return;
    };
    let format = [Format::Plain, Format::Flagged, Format::Packed][usize::from(format % 3)];
    let mut map = Vec::new();
    if decode(rest.iter().copied(), format, &mut map).is_ok() {
        assert!(map.is_sorted());
        // What lies behind them changes nothing.
        let mut again = Vec::new();
        let longer = rest.iter().copied().chain([0x5a; 16]);
        assert_eq!(decode(longer, format, &mut again), Ok(()));
        assert_eq!(map, again);
    }
});
