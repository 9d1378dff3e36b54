//! GcInfo of any bytes, as each version's: read, and asked everything, without a panic and in bounded time.
//!
//! The first byte is the version, the next two how long the code is, and as many bytes as the fourth are
//! code.

#![no_main]

use stackwalk::gc_info::{Version, decode, live_at_return, live_at_returns, this_homes};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&[version, low, high, code], rest)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let version = [Version::V2, Version::V3, Version::V4][usize::from(version % 3)];
    let code_length = u32::from(u16::from_le_bytes([low, high]));
    let (code, rest) = rest.split_at(rest.len().min(code.into()));
    let Ok(info) = decode(rest, version, code_length) else {
        return;
    };
    let whole = info.check().is_ok();
    let lifetimes = info.lifetimes();
    let _ = live_at_returns(&info);
    for offset in 0..=code_length {
        let _ = live_at_return(&info, offset);
        if let (Ok(lifetimes), Ok(Some(live)), true) = (&lifetimes, info.live_at(offset), whole) {
            let lives = |slot: &usize| lifetimes[*slot].iter().any(|life| life.contains(&offset));
            assert!(live.iter().all(lives), "one answer at {offset}");
        }
    }
    for home in this_homes(&info, code, &[0, code_length / 2]).unwrap_or_default() {
        assert!(home.live.is_sorted_by(|a, b| a.end <= b.start));
        assert!(home.live.iter().all(|live| live.end <= code_length));
    }
});
