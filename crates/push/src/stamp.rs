//! Times in file names.

/// The time as part of a file name, `20261129T003407.125Z`: order by name is order by time.
#[must_use]
pub fn utc_stamp(unix_ns: u64) -> String {
    let ms = unix_ns / 1_000_000;
    let (days, of_day) = (ms / 86_400_000, ms % 86_400_000);
    let (year, month, day) = date_of(days);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, ms) = (of_day / 1_000 % 60, of_day % 1_000);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{ms:03}Z")
}

/// Returns the stamp at the end of a name, if there is one.
pub(crate) fn stamp_in(name: &str) -> Option<&str> {
    let at = name.rfind('-')? + 1;
    let stamp = name.get(at..)?;
    let form = "00000000T000000.000Z";
    let fits = |(byte, form): (u8, u8)| match form {
        b'0' => byte.is_ascii_digit(),
        form => byte == form,
    };
    let is_one = stamp.len() == form.len() && stamp.bytes().zip(form.bytes()).all(fits);
    is_one.then_some(stamp)
}

/// Year, month and day of a number of days since 1970, in the Gregorian calendar.
fn date_of(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps() {
        for (seconds, stamp) in [
            (0, "19700101T000000.007Z"),
            (951_782_399, "20000228T235959.007Z"),
            (951_782_400, "20000229T000000.007Z"),
            (1_798_761_599, "20261231T235959.007Z"),
            (4_107_542_400, "21000301T000000.007Z"),
        ] {
            assert_eq!(utc_stamp(seconds * 1_000_000_000 + 7_000_000), stamp);
            assert_eq!(stamp_in(&format!("sidewalk-a-b-7-{stamp}")), Some(stamp));
        }
        for name in [
            "",
            "a",
            "a-",
            "a-20000228T235959Z",
            "a-2000022éT235959.007Z",
        ] {
            assert_eq!(stamp_in(name), None, "{name}");
        }
    }
}
