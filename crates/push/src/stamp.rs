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

/// Parses a date of HTTP, `Sun, 06 Nov 1994 08:49:37 GMT`, to seconds since 1970.
pub(crate) fn seconds_of_http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (_, rest) = text.split_once(", ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, time, "GMT"] = words[..] else {
        return None;
    };
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let days_of_year = (year.checked_sub(1970)?).min(500) * 366;
    // A date is found by what it is the date of: the calendar is written once.
    let days = (days_of_year.saturating_sub(500)..=days_of_year + 366)
        .find(|days| date_of(*days) == (year, month, day))?;
    let parts: Vec<u64> = time
        .split(':')
        .map_while(|part| part.parse().ok())
        .collect();
    let [hour, minute, second] = parts[..] else {
        return None;
    };
    let is_time = hour < 24 && minute < 60 && second <= 60;
    is_time.then(|| days * 86_400 + hour * 3_600 + minute * 60 + second)
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
    fn dates_of_http() {
        for (date, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Tue, 29 Feb 2000 23:59:59 GMT", Some(951_868_799)),
            ("Sun, 29 Nov 2026 00:34:07 GMT", Some(1_795_912_447)),
            ("Fri, 31 Dec 2100 00:00:00 GMT", Some(4_133_894_400)),
            ("Sun, 31 Feb 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 24:49:37 GMT", None),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("Sun Nov  6 08:49:37 1994", None),
            ("120", None),
            ("", None),
        ] {
            assert_eq!(seconds_of_http_date(date), seconds, "{date}");
        }
    }

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
