//! Parsers for the times, rates, sizes and choices that users type.
//!
//! Each parser is a clap value parser: its error is the text after "invalid value". The module also
//! formats times and sizes for messages.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use nix::sys::signal::Signal;
use recording::Event;

/// Units of time with their nanoseconds, longest name first.
const UNITS: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Shortest and longest sampling interval of the agent: 10,000 Hz and 1 Hz.
const INTERVALS_NS: std::ops::RangeInclusive<u64> = 100_000..=1_000_000_000;

/// Parses a time such as `30s`, `1.5m` or `500ms`. A bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let ns = nanoseconds(text, Some(1_000_000_000))?;
    if ns == 0 {
        return Err("must be longer than 0".into());
    }
    Ok(Duration::from_nanos(ns))
}

/// Parses a port of this machine: `9464`, `127.0.0.1:9464` or `[::1]:9464`. Other machines are not
/// answered, so other addresses are refused.
pub(crate) fn loopback(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse().map(|port| (Ipv4Addr::LOCALHOST, port).into());
    let address: SocketAddr = port
        .or_else(|_| text.parse())
        .map_err(|_| "expected a port, such as 9464")?;
    if !address.ip().is_loopback() {
        return Err("expected a port: only this machine is answered (127.0.0.1 or [::1])".into());
    }
    Ok(address)
}

/// Parses a time since a beginning, such as `0`, `30s` or `500ms`. A bare number is seconds.
pub(crate) fn offset(text: &str) -> Result<Duration, String> {
    nanoseconds(text, Some(1_000_000_000)).map(Duration::from_nanos)
}

/// Parses a signal that may end a recording: USR1 or USR2, with `SIG` before it or without.
pub(crate) fn end_signal(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    match name.strip_prefix("SIG").unwrap_or(&name) {
        "USR1" => Ok(Signal::SIGUSR1),
        "USR2" => Ok(Signal::SIGUSR2),
        _ => Err("expected USR1 or USR2".into()),
    }
}

/// Parses a sampling interval, in nanoseconds.
pub(crate) fn interval(text: &str) -> Result<u64, String> {
    let ns = nanoseconds(text, None)?;
    if INTERVALS_NS.contains(&ns) {
        Ok(ns)
    } else {
        Err("must be from 100us to 1s".into())
    }
}

/// Methods to trace: a pattern, and the minimum duration of recorded calls in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Traced {
    pub(crate) pattern: String,
    pub(crate) min_ns: u64,
}

/// Parses `Namespace.Type.Method` or `/regex/`, optionally followed by `:50ms`.
pub(crate) fn traced(text: &str) -> Result<Traced, String> {
    let form = "expected Namespace.Type.Method with * as wildcard, or /REGEX/, and an optional \
                time, such as Shop.Cart.*:50ms";
    let is_regex = |text: &str| text.len() > 2 && text.starts_with('/') && text.ends_with('/');
    let (pattern, min_ns) = match text.rsplit_once(':') {
        Some((pattern, min)) if !is_regex(text) => (
            pattern,
            nanoseconds(min, None).map_err(|why| format!("{min} {why}"))?,
        ),
        _ => (text, 0),
    };
    let is_name = |c: char| !c.is_whitespace() && !c.is_control() && !";:/\\()[]{}|^?".contains(c);
    let fits = match is_regex(pattern) {
        true => !pattern.chars().any(char::is_control),
        false => pattern.contains(['.', '*']) && pattern.chars().all(is_name),
    };
    if !fits || pattern.len() > 4096 {
        return Err(form.into());
    }
    Ok(Traced {
        pattern: pattern.to_owned(),
        min_ns,
    })
}

/// The sampling interval for `hz` samples a second, in nanoseconds.
pub(crate) fn interval_of(hz: u16) -> u64 {
    1_000_000_000 / u64::from(hz.max(1))
}

fn nanoseconds(text: &str, bare: Option<u64>) -> Result<u64, String> {
    let wrong = || "expected a number and a unit, such as 30s, 5m or 500ms".to_owned();
    let digits = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, scale)) => *scale,
        None if unit.is_empty() => bare.ok_or_else(wrong)?,
        None => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let ns = number * scale as f64;
    // At most a hundred years, which also keeps the conversion exact enough.
    if ns > 3.2e18 {
        return Err("is too long".into());
    }
    Ok(ns.round() as u64)
}

/// Events that `record --event` takes, in the order in which help texts name them.
pub(crate) const RECORDED: [Event; 10] = [
    Event::Cpu,
    Event::Wall,
    Event::Exception,
    Event::Alloc,
    Event::Live,
    Event::Contention,
    Event::Gc,
    Event::Jit,
    Event::ClassLoad,
    Event::ModuleLoad,
];

/// Parses an event that can be recorded.
pub(crate) fn recorded_event(text: &str) -> Result<Event, String> {
    one_of(&RECORDED, text)
}

/// Parses an event that a recording may contain.
pub(crate) fn event(text: &str) -> Result<Event, String> {
    let mut all = RECORDED.to_vec();
    all.extend([Event::Call, Event::TracedCall, Event::Suspended]);
    one_of(&all, text)
}

fn one_of(events: &[Event], text: &str) -> Result<Event, String> {
    let found = events.iter().find(|event| event.name() == text);
    found.copied().ok_or_else(|| {
        let names: Vec<_> = events.iter().map(|event| event.name()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Parses a size such as `512k`, `4m` or `1g` (of 1024), or a number of bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err("expected a number of bytes, such as 512k or 4m".into()),
    };
    let wrong = |_| "expected a number of bytes, such as 512k or 4m".to_owned();
    let number: u64 = number.parse().map_err(wrong)?;
    match number.checked_mul(1 << shift) {
        Some(0) => Err("must be more than 0".into()),
        Some(bytes) if bytes <= 1 << 40 => Ok(bytes),
        _ => Err("must be at most 1024g".into()),
    }
}

/// Values that `--engine` takes.
pub(crate) const ENGINES: [&str; 4] = ["auto", "timer", "clocks", "perf"];

/// Parses an engine, by its name in the agent's configuration.
pub(crate) fn engine(text: &str) -> Result<&'static str, String> {
    let found = ENGINES.into_iter().find(|name| *name == text);
    found.ok_or_else(|| "expected auto, timer, clocks or perf".into())
}

/// Values that `--walker` takes.
pub(crate) const WALKERS: [&str; 5] = ["signal", "suspend", "seeded", "snapshot", "shadow"];

/// Parses a walker, by its name in the agent's configuration.
pub(crate) fn walker(text: &str) -> Result<&'static str, String> {
    let found = WALKERS.into_iter().find(|name| *name == text);
    found.ok_or_else(|| format!("expected one of {}", WALKERS.join(", ")))
}

/// When a runtime may stop reporting compiled code, if the code can be found otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FindCode {
    /// After this many compiled methods.
    After(u32),
    Never,
}

/// Parses a number of methods, or `never`.
pub(crate) fn find_code(text: &str) -> Result<FindCode, String> {
    match text {
        "never" => Ok(FindCode::Never),
        number => number
            .parse()
            .map(FindCode::After)
            .map_err(|_| "expected a number of methods, or never".to_owned()),
    }
}

/// Parses the choice of recorded runtimes in a process, into the form of the agent's configuration.
pub(crate) fn runtimes(text: &str) -> Result<String, String> {
    let versions = |list: &str| {
        !list.is_empty()
            && list.split(',').all(|version| {
                !version.is_empty()
                    && version
                        .chars()
                        .all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-')
            })
    };
    let known = match text.split_once('=') {
        None => matches!(text, "all" | "first"),
        Some(("one", version)) => versions(version) && !version.contains(','),
        Some(("many", list)) => versions(list),
        Some(_) => false,
    };
    if known {
        Ok(text.to_owned())
    } else {
        Err("expected all, first, one=VERSION or many=VERSION,VERSION".into())
    }
}

/// Formats seconds for messages: `0.42 s`, `12 s`, `3 min 5 s`.
pub(crate) fn seconds(time: Duration) -> String {
    let whole = time.as_secs();
    if whole >= 60 {
        format!("{} min {} s", whole / 60, whole % 60)
    } else if whole >= 10 {
        format!("{whole} s")
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

/// Formats bytes for messages: `512 B`, `34 KiB`, `1.5 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    let (kib, mib) = (1 << 10, 1 << 20);
    if count < kib {
        format!("{count} B")
    } else if count < mib {
        format!("{} KiB", count / kib)
    } else {
        format!("{:.1} MiB", count as f64 / mib as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_this_machine() {
        for (text, address) in [
            ("9464", "127.0.0.1:9464"),
            ("127.0.0.2:1", "127.0.0.2:1"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(loopback(text).unwrap().to_string(), address);
        }
        for wrong in ["", "x", "0.0.0.0:1", "10.0.0.1:80", "70000", "localhost:80"] {
            assert!(loopback(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        for (text, ms) in [
            ("30s", 30_000),
            ("5m", 300_000),
            ("500ms", 500),
            ("1.5s", 1_500),
            ("2", 2_000),
            ("0.25", 250),
            ("1h", 3_600_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "s",
            "-1s",
            "1 s",
            "1d",
            "0",
            "0s",
            "1.2.3s",
            "1e9h",
            "999999999h",
            "٣s",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn methods_after_which_code_is_found() {
        assert_eq!(find_code("0"), Ok(FindCode::After(0)));
        assert_eq!(find_code("never"), Ok(FindCode::Never));
        for text in ["", "-1", "3k", "Never"] {
            assert!(find_code(text).is_err(), "{text}");
        }
    }

    #[test]
    fn intervals() {
        assert_eq!(interval("10ms"), Ok(10_000_000));
        assert_eq!(interval("100us"), Ok(100_000));
        assert_eq!(interval("1s"), Ok(1_000_000_000));
        for text in ["10", "99us", "1.1s", "0ms"] {
            assert!(interval(text).is_err(), "{text}");
        }
        assert_eq!(interval_of(99), 10_101_010);
        assert_eq!(interval_of(10_000), 100_000);
    }

    #[test]
    fn methods_to_trace() {
        for (text, pattern, min_ns) in [
            ("Shop.Cart.Checkout", "Shop.Cart.Checkout", 0),
            ("Shop.*.Checkout:50ms", "Shop.*.Checkout", 50_000_000),
            ("*", "*", 0),
            ("Shop.Cart..ctor:1us", "Shop.Cart..ctor", 1_000),
            ("Program.<Main>$", "Program.<Main>$", 0),
            ("/Cart:Till;x/", "/Cart:Till;x/", 0),
            ("/^A.B$/:2s", "/^A.B$/", 2_000_000_000),
        ] {
            let expected = Traced {
                pattern: pattern.to_owned(),
                min_ns,
            };
            assert_eq!(traced(text), Ok(expected), "{text}");
        }
        for text in [
            "", "Checkout", "A.B:", "A.B:5", "A.B:fast", "A.B(int)", "//", "A B.C", "A::B",
        ] {
            assert!(traced(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("1", 1),
            ("512k", 512 << 10),
            ("512K", 512 << 10),
            ("4mb", 4 << 20),
            ("2GiB", 2 << 30),
            ("1024g", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "k",
            "0",
            "0k",
            "1.5m",
            "-1",
            "1025g",
            "99999999999999999999",
            "5t",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn events() {
        for event_of in RECORDED {
            assert_eq!(recorded_event(event_of.name()), Ok(event_of));
            assert_eq!(event(event_of.name()), Ok(event_of));
        }
        // Calls come from a walker and cannot be chosen as an event.
        assert!(recorded_event("call").is_err());
        assert_eq!(event("call"), Ok(Event::Call));
        assert_eq!(event("traced-call"), Ok(Event::TracedCall));
        assert!(recorded_event("traced-call").is_err());
        for text in ["", "CPU", "cpu ", "itimer"] {
            assert!(event(text).is_err(), "{text}");
        }
    }

    #[test]
    fn policies() {
        for text in ["all", "first", "one=8.0.4", "many=3.1,8", "one=9.0.0-rc.1"] {
            assert_eq!(runtimes(text).as_deref(), Ok(text));
        }
        for text in [
            "",
            "one",
            "one=",
            "one=3,8",
            "many=,",
            "some=8",
            "all;event=wall",
            "one=8;x=y",
        ] {
            assert!(runtimes(text).is_err(), "{text}");
        }
    }
}
