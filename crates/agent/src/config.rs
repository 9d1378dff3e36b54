//! What the tool asked for, from `SIDEWALK_CONFIG`.
//!
//! It is not the command line: the tool has checked that. Unknown keys are skipped, so that an
//! older agent works under a newer tool; a value that cannot be read keeps its default.

/// How to record this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Sample by time passed instead of CPU time used.
    pub(crate) wall: bool,
    /// Nanoseconds between two samples of a thread.
    pub(crate) interval_ns: u64,
    /// Frames kept of a stack, counted from the leaf.
    pub(crate) max_depth: u32,
    /// `auto`, `perf` or `timer`.
    pub(crate) engine: String,
    /// Who walks the stacks of samples that are taken by time.
    pub(crate) walker: Walker,
    /// Which runtimes of the process are recorded.
    pub(crate) runtimes: RuntimePolicy,
}

/// Who walks. The tool refuses what does not go together; what reaches the agent all the same is
/// done by [`Walker::Signal`] and said in a note of the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Walker {
    /// Our own, in a signal handler on the thread that is walked.
    #[default]
    Signal,
    /// `DoStackSnapshot` of the current thread, in callbacks: for the stacks of events.
    Snapshot,
    /// `SuspendRuntime`, then `DoStackSnapshot` of each thread.
    Suspend,
    /// As `Suspend`, with the native frames of our own walk between the managed ones.
    Seeded,
    /// Enter, leave and tailcall hooks.
    Shadow,
    /// All that can walk a stopped thread, at the same instant, for `cargo xtask agree`. Not on
    /// the command line.
    Agree,
}

impl Walker {
    const ALL: [Walker; 6] = [
        Walker::Signal,
        Walker::Snapshot,
        Walker::Suspend,
        Walker::Seeded,
        Walker::Shadow,
        Walker::Agree,
    ];

    /// As the command line and the recording name it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Walker::Signal => "signal",
            Walker::Snapshot => "snapshot",
            Walker::Suspend => "suspend",
            Walker::Seeded => "seeded",
            Walker::Shadow => "shadow",
            Walker::Agree => "agree",
        }
    }
}

/// The seeds' pick first, pick one, pick many, pick all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RuntimePolicy {
    /// The first CLR that starts.
    First,
    /// CLRs whose version begins with one of these.
    Versions(Vec<String>),
    /// Every CLR.
    All,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            wall: false,
            interval_ns: 10_101_010,
            max_depth: 1024,
            engine: "auto".into(),
            walker: Walker::Signal,
            runtimes: RuntimePolicy::All,
        }
    }
}

impl Config {
    /// Reads `key=value;key=value`.
    pub(crate) fn parse(text: &str) -> Config {
        let mut config = Config::default();
        for (key, value) in text.split(';').filter_map(|pair| pair.split_once('=')) {
            match key {
                "event" => config.wall = value == "wall",
                "interval_ns" => {
                    if let Ok(ns) = value.parse::<u64>() {
                        // 1 Hz to 10,000 Hz.
                        config.interval_ns = ns.clamp(100_000, 1_000_000_000);
                    }
                }
                "max_depth" => {
                    if let Ok(depth) = value.parse::<u32>() {
                        config.max_depth = depth.clamp(1, 32_768);
                    }
                }
                "engine" => config.engine = value.into(),
                "walker" => {
                    let known = Walker::ALL.iter().find(|walker| walker.name() == value);
                    config.walker = known.copied().unwrap_or(config.walker);
                }
                "runtimes" => config.runtimes = RuntimePolicy::parse(value),
                _ => {}
            }
        }
        config
    }
}

impl RuntimePolicy {
    fn parse(text: &str) -> RuntimePolicy {
        match text.split_once('=') {
            None if text == "first" => RuntimePolicy::First,
            Some(("one" | "many", list)) => {
                RuntimePolicy::Versions(list.split(',').map(str::to_owned).collect())
            }
            _ => RuntimePolicy::All,
        }
    }

    /// Whether to record the CLR of `version` when `already` others are recorded.
    pub(crate) fn admits(&self, version: &str, already: usize) -> bool {
        match self {
            RuntimePolicy::First => already == 0,
            RuntimePolicy::All => true,
            RuntimePolicy::Versions(list) => list.iter().any(|want| {
                version
                    .strip_prefix(want.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_tool_writes() {
        let config = Config::parse(
            "event=wall;interval_ns=1000000;max_depth=64;engine=timer;walker=suspend;\
             runtimes=many=3.1,8;new=1",
        );
        assert_eq!(
            config,
            Config {
                wall: true,
                interval_ns: 1_000_000,
                max_depth: 64,
                engine: "timer".into(),
                walker: Walker::Suspend,
                runtimes: RuntimePolicy::Versions(vec!["3.1".into(), "8".into()]),
            }
        );
    }

    #[test]
    fn nonsense_keeps_the_defaults() {
        assert_eq!(
            Config::parse("interval_ns=x;;=;max_depth;walker=x"),
            Config::default()
        );
        assert_eq!(Config::parse("interval_ns=1").interval_ns, 100_000);
    }

    #[test]
    fn a_version_is_a_prefix_by_parts() {
        let many = RuntimePolicy::parse("many=3.1,8");
        for (version, admitted) in [
            ("3.1.23", true),
            ("8.0.4", true),
            ("8", true),
            ("80.0.1", false),
            ("3.10.0", false),
        ] {
            assert_eq!(many.admits(version, 1), admitted, "{version}");
        }
        assert!(RuntimePolicy::First.admits("8.0.4", 0));
        assert!(!RuntimePolicy::First.admits("3.1.23", 1));
    }
}
