//! Numbers and texts as people read them, for every output. It knows no output and no file.

use profile::Profile;

/// At most so many characters of a text.
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
pub(crate) fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// An amount in `unit` (one of [`unit_name`]'s, or `samples`) as people read it.
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

/// From the first process's begin to the last one's end, nanoseconds.
pub(crate) fn duration_ns(profile: &Profile) -> u64 {
    let begin = profile.processes.iter().map(|p| p.start_ns).min();
    let end = profile.processes.iter().map(|p| p.end_ns).max();
    match (begin, end) {
        (Some(begin), Some(end)) => end.saturating_sub(begin),
        _ => 0,
    }
}
