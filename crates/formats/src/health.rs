//! Health of a recording as text: the summary at the end of every report, and the honest line.

use profile::model::{Health, SampleSource, Unit, UnsampledTime};

use crate::cost::CostSummary;
use crate::select::unit_name;
use crate::visible::visible;
use crate::wording::{amount, percent, plural, seconds};

/// Maximum width of a summary line, in columns.
const COLUMNS: usize = 100;

/// Returns the last lines of a report: number of samples, missing samples and cost of recording;
/// then a second line with faults, if any. Each has at most 100 columns. [`honest_line`]
/// has all details.
pub fn summary(health: &Health) -> String {
    let mut first = count_line(health);
    let faults = faults(health);
    if !faults.is_empty() {
        first.push('\n');
        first.push_str(&fault_line(&faults));
    }
    first
}

/// Returns `990 samples, 10 lost (1.00 %), 5 broken (0.51 %), 812 async; cost 1.21 % of the
/// program's 9.880 s`, or less if the numbers are long.
fn count_line(health: &Health) -> String {
    let (lost, broken) = (sum(&health.lost), sum(&health.broken));
    let due = health.samples.saturating_add(lost);
    let part = |what: &str, count, has_share| match count {
        0 => format!("0 {what}"),
        _ if has_share => format!("{count} {what} ({})", percent(count, due)),
        _ => format!("{count} {what}"),
    };
    let line = |has_chains, has_shares| {
        let chains = match health.chains {
            chains if chains > 0 && has_chains => format!(", {chains} async"),
            _ => String::new(),
        };
        format!(
            "{}, {}, {}{chains}; {}",
            plural(health.samples, "sample"),
            part("lost", lost, has_shares),
            part("broken", broken, has_shares),
            CostSummary::of(health).total()
        )
    };
    let shorter = [(true, true), (false, true)];
    let mut shorter = shorter
        .iter()
        .map(|(chains, shares)| line(*chains, *shares));
    let fitting = shorter.find(|line| fits(line));
    fitting.unwrap_or_else(|| line(false, false))
}

fn fits(line: &str) -> bool {
    line.chars().count() <= COLUMNS
}

/// Returns the faults, worst first: a short text, and one with the reasons.
fn faults(health: &Health) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    let mut add = |short: String, long: String| {
        let bare = |text: String| text.trim_start_matches([',', ';', ' ']).to_owned();
        if !long.is_empty() {
            faults.push((bare(short), bare(long)));
        }
    };
    let unseen = seconds(unseen_ns(health));
    add(
        format!("{unseen:.2} s of CPU time not sampled"),
        not_sampled(health),
    );
    let without_reasons = |text: &str| text.split(" (").next().unwrap_or_default().to_owned();
    let mut add_as_it_is = |text: String| add(text.clone(), text);
    add_as_it_is(abrupt_ends(health));
    add_as_it_is(without_reasons(&slower_than_asked(health)));
    for (what, reasons) in [("lost", &health.lost), ("broken", &health.broken)] {
        if sum(reasons) > 0 {
            let each = reasons.iter().filter(|(_, count)| *count > 0);
            let each: Vec<String> = each
                .map(|(reason, count)| format!("{} {count}", visible(reason)))
                .collect();
            add(String::new(), format!("{what}: {}", each.join(", ")));
        }
    }
    let mut add_as_it_is = |text: String| add(text.clone(), text);
    add_as_it_is(unknown_frames(health));
    let cut = sum(&health.chains_cut);
    if cut > 0 {
        let share = percent(cut, health.chains);
        let stacks = plural(cut, "async stack");
        add_as_it_is(format!("{stacks} without all callers ({share})"));
    }
    if health.truncated > 0 {
        add_as_it_is(format!("{} truncated", health.truncated));
    }
    let all = limited(health);
    add(without_reasons(&all), all);
    faults
}

/// As much of it as a line holds: with the reasons, else in short, else the worst.
fn fault_line(faults: &[(String, String)]) -> String {
    const MORE: &str = "… (`sidewalk inspect` has all)";
    let long: Vec<&str> = faults.iter().map(|(_, long)| &**long).collect();
    let long = long.join("; ");
    if fits(&long) {
        return long;
    }
    let short = faults.iter().map(|(short, _)| &**short);
    let short: Vec<&str> = short.filter(|short| !short.is_empty()).collect();
    let first = |count| -> String {
        let parts = short.iter().take(count).chain([&MORE]);
        parts.copied().collect::<Vec<_>>().join("; ")
    };
    let mut lines = (0..=short.len()).rev().map(first);
    lines.find(|line| fits(line)).unwrap_or_default()
}

/// Returns all counts of a recording's health as one line, without a line end.
///
/// In this order: samples, lost, broken and truncated ones, in percent of samples and lost, each
/// with its reasons, most first; samples in resumed async methods, and those of them without all
/// callers; events left out by limits; unsampled CPU time, with the reasons; processes that ended
/// abruptly; engine and walker; source and walker of each event that is not sampled by time; pauses
/// of runtimes; the cost of recording.
pub fn honest_line(health: &Health) -> String {
    let lost = sum(&health.lost);
    let broken = sum(&health.broken);
    let due = health.samples.saturating_add(lost);
    let mut line = format!(
        "{}, {}, {}, {} truncated ({})",
        plural(health.samples, "sample"),
        share("lost", lost, due, &health.lost),
        share("broken", broken, due, &health.broken),
        health.truncated,
        percent(health.truncated, due),
    );
    line.push_str(&unknown_frames(health));
    line.push_str(&chains(health));
    line.push_str(&limited(health));
    line.push_str(&not_sampled(health));
    line.push_str(&abrupt_ends(health));
    let by_event: Vec<&SampleSource> = health.sources.iter().filter(|s| !s.by_time).collect();
    let walker = named(&health.walker);
    if !health.engine.is_empty() || by_event.is_empty() {
        line.push_str(&format!(
            "; engine {}, walker {walker}",
            named(&health.engine)
        ));
    } else {
        line.push_str(&format!("; walker {walker}"));
    }
    line.push_str(&slower_than_asked(health));
    for source in by_event {
        line.push_str(&format!("; {}", source_text(source)));
        if source.walker != health.walker {
            line.push_str(&format!(", walker {}", named(&source.walker)));
        }
    }
    line.push_str(&pauses(health));
    line.push_str(&format!("; {}", CostSummary::of(health).text()));
    line
}

/// `, 34 of 1782 frames unknown (1.91 %)`: code that could not be identified.
fn unknown_frames(health: &Health) -> String {
    let (unknown, frames) = (health.unknown_frames, health.frames);
    if unknown == 0 {
        return String::new();
    }
    let share = percent(unknown, frames);
    format!(", {unknown} of {frames} frames unknown ({share})")
}

/// `, 812 in resumed async methods, of which 3 without their whole chain (0.37 %: gate closed 2,
/// depth 1)`.
fn chains(health: &Health) -> String {
    if health.chains == 0 {
        return String::new();
    }
    let cut = sum(&health.chains_cut);
    format!(
        ", {} in resumed async methods, of which {}",
        health.chains,
        share(
            "without their whole chain",
            cut,
            health.chains,
            &health.chains_cut
        ),
    )
}

/// `; not sampled: 1.97 s, 2 threads that block our signal`, where it is more than the error of
/// sampling.
fn not_sampled(health: &Health) -> String {
    let each: Vec<String> = health.unseen.iter().map(unsampled_text).collect();
    match &each[..] {
        [] => String::new(),
        [one] => format!("; not sampled: {one}"),
        several => {
            let all = seconds(unseen_ns(health));
            format!("; not sampled: {all:.2} s ({})", several.join("; "))
        }
    }
}

/// `; process 4242 ended abruptly: up to its last 0.1 s is missing`: what the agent had not sent
/// yet.
fn abrupt_ends(health: &Health) -> String {
    match &health.abrupt[..] {
        [] => String::new(),
        [pid] => format!("; process {pid} ended abruptly: up to its last 0.1 s is missing"),
        several => format!(
            "; {} processes ended abruptly: up to the last 0.1 s of each is missing",
            several.len()
        ),
    }
}

/// CPU time that no sample stands for, all reasons together.
pub(crate) fn unseen_ns(health: &Health) -> u64 {
    let each = health.unseen.iter();
    each.fold(0, |sum, unseen| sum.saturating_add(unseen.cpu_ns))
}

/// `1.97 s, 2 threads that block our signal`.
pub(crate) fn unsampled_text(unseen: &UnsampledTime) -> String {
    let (time, reason) = (seconds(unseen.cpu_ns), visible(&unseen.reason));
    let threads = match unseen.threads {
        0 => String::new(),
        threads => format!("{threads} "),
    };
    let one = match &*reason {
        "threads that block our signal" => Some("1 thread that blocks our signal"),
        "threads before they were sampled" => Some("1 thread before it was sampled"),
        _ => None,
    };
    match (unseen.threads, one, reason.strip_prefix("threads ")) {
        (1, Some(one), _) => format!("{time:.2} s, {one}"),
        (1, None, Some(rest)) => format!("{time:.2} s, 1 thread {rest}"),
        (_, _, Some(_)) => format!("{time:.2} s, {threads}{reason}"),
        _ => format!("{time:.2} s, {reason}"),
    }
}

/// `, 4 limited (exception 1, alloc 3 of 1.50 MiB)`: what happened and was not kept.
fn limited(health: &Health) -> String {
    let each: Vec<String> = health
        .limited
        .iter()
        .filter(|limited| limited.count > 0)
        .map(|limited| {
            let (name, unit) = (limited.event.name(), limited.event.unit());
            match unit {
                Unit::Count => format!("{name} {}", limited.count),
                _ => format!(
                    "{name} {} of {}",
                    limited.count,
                    amount(limited.value, unit_name(unit))
                ),
            }
        })
        .collect();
    if each.is_empty() {
        return String::new();
    }
    let all = health
        .limited
        .iter()
        .fold(0, |sum: u64, limited| sum.saturating_add(limited.count));
    format!(", {all} limited ({})", each.join(", "))
}

/// `; asked for 999 samples a second, got 275 (…)`, where that is so.
fn slower_than_asked(health: &Health) -> String {
    if !health.is_slower_than_asked() {
        return String::new();
    }
    let hz = |ns: u64| (1e9 / ns as f64).round();
    // The slowest tick of Linux is 100 Hz: where samples are rarer still, threads ended before one.
    const SLOWEST_TICK_NS: u64 = 11_000_000;
    let by_timers = health.engine.contains("timer");
    let why = match by_timers {
        true if health.achieved_ns > SLOWEST_TICK_NS => {
            "timers tick with the kernel, and most threads were shorter-lived than a tick; totals \
             stay right"
        }
        true => {
            "timers tick with the kernel, and each sample stands for more time; --engine clocks \
             samples as often as asked, at a higher cost"
        }
        false => "the others were merged into these",
    };
    format!(
        "; asked for {} samples a second, got {} ({why})",
        hz(health.interval_ns),
        hz(health.achieved_ns),
    )
}

/// `alloc from AllocationTick every 100.00 KiB`.
pub(crate) fn source_text(source: &SampleSource) -> String {
    let mut text = format!("{} from {}", source.event.name(), named(&source.source));
    if source.interval > 0 {
        let every = amount(source.interval, unit_name(source.event.unit()));
        text.push_str(&format!(" every {every}"));
    }
    text
}

/// How often and how long runtimes were stopped.
fn pauses(health: &Health) -> String {
    let pauses = &health.pauses;
    if pauses.count == 0 {
        return String::new();
    }
    let time = |ns| amount(ns, "nanoseconds");
    format!(
        "; {} (median {}, longest {}, together {})",
        plural(pauses.count, "pause"),
        time(pauses.median_ns),
        time(pauses.longest_ns),
        time(pauses.total_ns),
    )
}

/// The sum over all reasons.
pub(crate) fn sum(reasons: &[(String, u64)]) -> u64 {
    reasons
        .iter()
        .fold(0, |sum, (_, count)| sum.saturating_add(*count))
}

fn named(name: &str) -> std::borrow::Cow<'_, str> {
    if name.is_empty() {
        "unknown".into()
    } else {
        visible(name)
    }
}

fn share(what: &str, count: u64, due: u64, reasons: &[(String, u64)]) -> String {
    let mut text = format!("{count} {what} ({}", percent(count, due));
    let mut before = ": ";
    for (reason, count) in reasons.iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!("{before}{} {count}", visible(reason)));
        before = ", ";
    }
    text.push(')');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_of_samples_and_lost() {
        let health = Health {
            samples: 990,
            lost: vec![("ring full".into(), 9), ("no stack bounds".into(), 1)],
            broken: vec![("no unwind rule".into(), 5)],
            truncated: 2,
            engine: "perf task-clock".into(),
            walker: "signal".into(),
            agent_cpu_ns: 120_000_000,
            target_cpu_ns: 10_000_000_000,
            ..Health::default()
        };
        assert_eq!(
            honest_line(&health),
            "990 samples, 10 lost (1.00 %: ring full 9, no stack bounds 1), 5 broken (0.50 %: no \
             unwind rule 5), 2 truncated (0.20 %); engine perf task-clock, walker signal; cost \
             1.21 % of the program's 9.880 s (agent 1.21, handlers 0.00; callbacks and ticks not counted)"
        );
    }

    #[test]
    fn a_summary_says_in_two_lines_whether_anything_is_wrong() {
        let fine = Health {
            samples: 990,
            chains: 812,
            agent_cpu_ns: 120_000_000,
            target_cpu_ns: 10_000_000_000,
            ..Health::default()
        };
        let counted = "990 samples, 0 lost, 0 broken, 812 async; cost 1.21 % of the \
                       program's 9.880 s";
        assert_eq!(summary(&fine), counted);
        let reasons = |each: &[(&str, u64)]| -> Vec<(String, u64)> {
            each.iter()
                .map(|(why, count)| ((*why).to_owned(), *count))
                .collect()
        };
        let some = Health {
            lost: reasons(&[("ring full", 9), ("no\nbounds", 1)]),
            chains_cut: reasons(&[("gate closed", 2)]),
            ..fine.clone()
        };
        let said = "990 samples, 10 lost (1.00 %), 0 broken, 812 async; cost 1.21 % of the \
                    program's 9.880 s\nlost: ring full 9, no\\u{a}bounds 1; 2 async stacks without \
                    all callers (0.25 %)";
        assert_eq!(summary(&some), said);
        let many = Health {
            broken: reasons(&[
                ("no unwind rule", 5),
                ("bad return address", 6),
                ("depth", 7),
            ]),
            abrupt: vec![7],
            truncated: 3,
            frames: 100,
            unknown_frames: 3,
            ..some
        };
        let text = summary(&many);
        let second = text.lines().nth(1).unwrap();
        assert!(
            second.starts_with("process 7 ended abruptly: up to its last 0.1 s is"),
            "{second}"
        );
        assert!(
            second.ends_with("; … (`sidewalk inspect` has all)"),
            "{second}"
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= COLUMNS),
            "{text}"
        );
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn frames_of_unknown_code_are_said() {
        let line = |unknown_frames| {
            honest_line(&Health {
                samples: 100,
                frames: 1782,
                unknown_frames,
                ..Health::default()
            })
        };
        assert!(!line(0).contains("unknown (") && !line(0).contains("frames"));
        let expected_part = "0 truncated (0.00 %), 34 of 1782 frames unknown (1.91 %); engine";
        assert!(line(34).contains(expected_part), "{}", line(34));
    }

    #[test]
    fn chains_that_are_not_whole_are_said() {
        let line = |chains, cut: &[(&str, u64)]| {
            honest_line(&Health {
                samples: 1000,
                chains,
                chains_cut: cut.iter().map(|(why, n)| ((*why).to_owned(), *n)).collect(),
                ..Health::default()
            })
        };
        assert!(!line(0, &[]).contains("async"));
        let whole = "0 truncated (0.00 %), 812 in resumed async methods, of which 0 without their whole \
                     chain (0.00 %); engine";
        assert!(line(812, &[]).contains(whole), "{}", line(812, &[]));
        let cut = line(812, &[("gate closed", 2), ("de\npth", 1)]);
        let expected_part =
            "of which 3 without their whole chain (0.37 %: gate closed 2, de\\u{a}pth 1); engine";
        assert!(cut.contains(expected_part), "{cut}");
    }

    #[test]
    fn abrupt_ends_are_said() {
        let line = |abrupt: &[u32]| {
            honest_line(&Health {
                abrupt: abrupt.to_vec(),
                ..Health::default()
            })
        };
        assert!(!line(&[]).contains("abruptly"));
        let one = "; process 7 ended abruptly: up to its last 0.1 s is missing; engine";
        assert!(line(&[7]).contains(one), "{}", line(&[7]));
        assert!(line(&[7, 8]).contains("; 2 processes ended abruptly: up to the last 0.1 s of"));
    }

    #[test]
    fn one_sample_is_one_and_a_cost_that_nobody_told_is_not_nothing() {
        let health = Health {
            samples: 1,
            abrupt: vec![7],
            ..Health::default()
        };
        let line = honest_line(&health);
        assert!(line.starts_with("1 sample, 0 lost"), "{line}");
        assert!(
            line.ends_with("; cost not known: the process ended before it reported"),
            "{line}"
        );
    }

    #[test]
    fn always_one_line() {
        let health = Health {
            lost: vec![("a\nb".into(), u64::MAX), ("c\r".into(), 3)],
            engine: "x\u{2028}y".into(),
            ..Health::default()
        };
        let line = honest_line(&health);
        assert!(
            !line.chars().any(|c| c.is_control() || c == '\u{2028}'),
            "{line}"
        );
    }
}
