//! Formatting of numbers and short texts for people, used by every output.

use profile::Profile;

/// Returns a text cut at a maximum number of characters.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars()
        .take(most.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// `1 sample`, `2 samples`.
#[must_use]
pub fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns a readable amount in `unit` (one of [`unit_name`], or `samples`).
pub(crate) fn amount(value: u64, unit: &str) -> String {
    let x = value as f64;
    match unit {
        "nanoseconds" if value >= 1_000_000_000 => format!("{:.3} s", x / 1e9),
        "nanoseconds" if value >= 1_000_000 => format!("{:.2} ms", x / 1e6),
        "nanoseconds" if value >= 1_000 => format!("{:.2} µs", x / 1e3),
        "nanoseconds" => format!("{value} ns"),
        "bytes" if value >= 1 << 30 => format!("{:.2} GiB", x / (1_u64 << 30) as f64),
        "bytes" if value >= 1 << 20 => format!("{:.2} MiB", x / (1_u64 << 20) as f64),
        "bytes" if value >= 1 << 10 => format!("{:.2} KiB", x / 1024.0),
        "bytes" => format!("{value} B"),
        _ => value.to_string(),
    }
}

/// Returns the time from the first process's start to the last one's end, in nanoseconds.
pub(crate) fn duration_ns(profile: &Profile) -> u64 {
    let begin = profile.processes.iter().map(|p| p.start_ns).min();
    let end = profile.processes.iter().map(|p| p.end_ns).max();
    match (begin, end) {
        (Some(begin), Some(end)) => end.saturating_sub(begin),
        _ => 0,
    }
}

/// Returns `part` of `whole` in percent with two decimals, or `0.00 %` if `whole` is 0. A part
/// above 0 is never shown as 0 (`<0.01 %`), and an incomplete part never as 100 %.
pub fn percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0.00 %".to_owned();
    }
    let share = part as f64 * 100.0 / whole as f64;
    if share < 0.005 {
        "<0.01 %".to_owned()
    } else if part < whole && share >= 99.995 {
        ">99.99 %".to_owned()
    } else {
        format!("{share:.2} %")
    }
}

/// Converts nanoseconds to seconds.
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_never_hides_something() {
        for (part, whole, text) in [
            (0, 0, "0.00 %"),
            (0, 10, "0.00 %"),
            (1, 1_000_000, "<0.01 %"),
            (1, 8, "12.50 %"),
            (999_999, 1_000_000, ">99.99 %"),
            (7, 7, "100.00 %"),
            (u64::MAX, u64::MAX, "100.00 %"),
        ] {
            assert_eq!(percent(part, whole), text);
        }
    }
}
