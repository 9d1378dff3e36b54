//! Times in file names.

use std::time::{Duration, SystemTime};

/// The time as part of a file name, `20261129T003407.125Z`: order by name is order by time.
#[must_use]
pub fn utc_stamp(unix_ns: u64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(unix_ns);
    let text = humantime::format_rfc3339_millis(time).to_string();
    text.replace(['-', ':'], "")
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

/// Parses a date of HTTP, `Sun, 06 Nov 1994 08:49:37 GMT`, to seconds since 1970. The obsolete
/// forms have other lengths.
pub(crate) fn seconds_of_http_date(text: &str) -> Option<u64> {
    let time = httpdate::parse_http_date(text).ok();
    let time = time.filter(|_| text.len() == 29)?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.ok().map(|since| since.as_secs())
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
