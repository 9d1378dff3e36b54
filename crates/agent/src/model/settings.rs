//! The session settings that the tool passes to the agent, parsed from `SIDEWALK_CONFIG`.
//!
//! The tool has validated the command line. Unknown keys are skipped, so that an older agent works
//! with a newer tool. A value that cannot be parsed keeps its default.

use recording::Event;

/// Settings of a session in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The sampled events.
    pub events: EventSet,
    /// Nanoseconds between two samples of a thread, for the events that are sampled by time.
    pub interval_ns: u64,
    /// Approximate allocated bytes per sample; 0: every reported object.
    pub alloc_interval: u64,
    /// Nanoseconds between two live-heap snapshots.
    pub live_interval_ns: u64,
    /// Maximum samples per second of each other event; 0: no limit.
    pub event_limit: u32,
    /// Maximum number of frames of a stack, counted from the leaf.
    pub max_depth: u32,
    /// `auto`, `perf` or `timer`.
    pub engine: String,
    /// The walker of time-based samples.
    pub walker: WalkerKind,
    /// The recorded runtimes of the process.
    pub runtimes: RuntimePolicy,
    /// Whether to record only one stack of each thread, at the session's end.
    pub dump: bool,
    /// Whether a dump includes the stacks of suspended async methods, which no thread runs.
    pub suspended: bool,
    /// Whether samples of async methods have the chain of their awaiting methods.
    pub chains: bool,
    /// Number of reported methods after which a runtime's JIT callbacks may be disabled: code is
    /// then discovered from samples.
    pub find_code: Option<u32>,
    /// Methods whose calls are counted and timed.
    pub trace: Vec<TracePattern>,
    /// Maximum number of traced methods.
    pub trace_limit: u32,
}

/// A pattern of methods to trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracePattern {
    /// The user's pattern, without the time.
    pub text: String,
    /// Minimum duration of calls that are kept with their stacks, nanoseconds.
    pub min_ns: u64,
}

impl TracePattern {
    /// Parses `50000000:Shop.*.Checkout`. The separator of settings is written as `%3b`, and `%` as
    /// `%25`.
    fn parse(text: &str) -> Option<TracePattern> {
        let (min_ns, text) = text.split_once(':')?;
        Some(TracePattern {
            min_ns: min_ns.parse().ok()?,
            text: text.replace("%3b", ";").replace("%25", "%"),
        })
    }
}

/// The walker. The tool refuses invalid combinations. If one reaches the agent,
/// [`WalkerKind::Signal`] is used and a note in the recording reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WalkerKind {
    /// The agent's own, in a signal handler on the walked thread.
    #[default]
    Signal,
    /// `DoStackSnapshot` of the current thread, in callbacks: for the stacks of events.
    Snapshot,
    /// `SuspendRuntime`, then `DoStackSnapshot` of each thread.
    Suspend,
    /// As `Suspend`, with the native frames of the agent's own walk between the managed ones.
    Seeded,
    /// Enter, leave and tailcall hooks.
    Shadow,
}

impl WalkerKind {
    const ALL: [WalkerKind; 5] = [
        WalkerKind::Signal,
        WalkerKind::Snapshot,
        WalkerKind::Suspend,
        WalkerKind::Seeded,
        WalkerKind::Shadow,
    ];

    /// Returns the name on the command line and in recordings.
    pub const fn name(self) -> &'static str {
        match self {
            WalkerKind::Signal => "signal",
            WalkerKind::Snapshot => "snapshot",
            WalkerKind::Suspend => "suspend",
            WalkerKind::Seeded => "seeded",
            WalkerKind::Shadow => "shadow",
        }
    }
}

/// A set of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventSet(u16);

impl EventSet {
    /// Returns the set of these events.
    pub const fn of(events: &[Event]) -> EventSet {
        let mut set = 0;
        let mut rest = events;
        while let [first, others @ ..] = rest {
            set |= 1 << *first as u16;
            rest = others;
        }
        EventSet(set)
    }

    /// No event.
    pub const NONE: EventSet = EventSet(0);

    /// Returns one bit for each event, by its code.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the set of these bits.
    pub const fn of_bits(bits: u16) -> EventSet {
        EventSet(bits)
    }

    /// Whether the set contains the event.
    pub const fn has(self, event: Event) -> bool {
        self.0 & 1 << event as u16 != 0
    }

    /// Returns the events, ordered by code.
    pub fn iter(self) -> impl Iterator<Item = Event> {
        (0..16)
            .filter_map(Event::from_code)
            .filter(move |event| self.has(*event))
    }

    /// Parses `cpu,exception`. Unknown names are skipped; `None` if none is left.
    fn parse(text: &str) -> Option<EventSet> {
        let set = text.split(',').fold(0, |set, name| {
            set | EventSet::named(name).map_or(0, EventSet::bits)
        });
        (set != 0).then_some(EventSet(set))
    }

    /// Parses `cpu,exception`.
    ///
    /// # Errors
    /// A name that this agent does not know.
    pub fn parse_strictly(text: &str) -> Result<EventSet, String> {
        text.split(',').try_fold(EventSet::NONE, |set, name| {
            let event = EventSet::named(name);
            event
                .map(|event| EventSet(set.0 | event.0))
                .ok_or_else(|| name.to_owned())
        })
    }

    fn named(name: &str) -> Option<EventSet> {
        let mut all = EventSet(u16::MAX).iter();
        let event = all.find(|event| event.name() == name)?;
        Some(EventSet::of(&[event]))
    }

    /// Returns the union with `others`.
    pub const fn with(self, others: EventSet) -> EventSet {
        EventSet(self.0 | others.0)
    }

    /// Returns the set without `others`.
    pub const fn without(self, others: EventSet) -> EventSet {
        EventSet(self.0 & !others.0)
    }

    /// Returns the names, such as `cpu,exception`.
    pub fn names(self) -> String {
        let names: Vec<_> = self.iter().map(Event::name).collect();
        names.join(",")
    }
}

/// The recorded CLRs of a process; the seeds' pick first, pick one, pick many, pick all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RuntimePolicy {
    /// The first CLR that starts.
    First,
    /// The first CLR whose version begins with this.
    One(String),
    /// CLRs whose version begins with one of these.
    Many(Vec<String>),
    /// Every CLR.
    #[default]
    All,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            events: EventSet::of(&[Event::Cpu]),
            interval_ns: 10_101_010,
            alloc_interval: 512 * 1024,
            live_interval_ns: 10_000_000_000,
            event_limit: 1000,
            max_depth: 1024,
            engine: "auto".into(),
            walker: WalkerKind::Signal,
            runtimes: RuntimePolicy::All,
            dump: false,
            suspended: false,
            chains: false,
            find_code: None,
            trace: Vec::new(),
            trace_limit: 1000,
        }
    }
}

impl Settings {
    /// Parses `key=value;key=value`.
    pub fn parse(text: &str) -> Settings {
        let mut settings = Settings::default();
        for (key, value) in text.split(';').filter_map(|pair| pair.split_once('=')) {
            match key {
                "event" => settings.events = EventSet::parse(value).unwrap_or(settings.events),
                "interval_ns" => {
                    if let Ok(ns) = value.parse::<u64>() {
                        // 1 Hz to 10,000 Hz.
                        settings.interval_ns = ns.clamp(100_000, 1_000_000_000);
                    }
                }
                "max_depth" => {
                    if let Ok(depth) = value.parse::<u32>() {
                        settings.max_depth = depth.clamp(1, 32_768);
                    }
                }
                "alloc_interval" => {
                    if let Ok(bytes) = value.parse::<u64>() {
                        settings.alloc_interval = bytes.min(1 << 40);
                    }
                }
                "live_interval_ns" => {
                    if let Ok(ns) = value.parse::<u64>() {
                        // 0.1 s to a day.
                        settings.live_interval_ns = ns.clamp(100_000_000, 86_400_000_000_000);
                    }
                }
                "event_limit" => {
                    settings.event_limit = value.parse().unwrap_or(settings.event_limit);
                }
                "engine" => settings.engine = value.into(),
                "walker" => {
                    let known = WalkerKind::ALL.iter().find(|walker| walker.name() == value);
                    settings.walker = known.copied().unwrap_or(settings.walker);
                }
                "dump" => settings.dump = value == "1",
                "suspended" => settings.suspended = value == "1",
                "async" => settings.chains = value == "1",
                "find_code" => settings.find_code = value.parse().ok(),
                "trace" => settings.trace.extend(TracePattern::parse(value)),
                "trace_limit" => {
                    settings.trace_limit = value.parse().unwrap_or(settings.trace_limit);
                }
                "runtimes" => settings.runtimes = RuntimePolicy::parse(value),
                _ => {}
            }
        }
        if !settings.trace.is_empty() {
            settings.events = settings.events.with(EventSet::of(&[Event::TracedCall]));
        }
        settings
    }
}

impl Settings {
    /// Returns the time-based events.
    pub fn timed(&self) -> Vec<Event> {
        [Event::Cpu, Event::Wall]
            .into_iter()
            .filter(|event| self.events.has(*event))
            .collect()
    }

    /// Whether threads are sampled by signals, instead of suspending one CLR at a time.
    pub fn is_by_signal(&self) -> bool {
        !matches!(self.walker, WalkerKind::Suspend | WalkerKind::Seeded)
    }

    /// Whether short-lived threads may be represented by a random sample: no setting needs each
    /// thread.
    pub fn allows_short_lived_sampling(&self) -> bool {
        self.events == EventSet::of(&[Event::Cpu])
            && self.walker == WalkerKind::Signal
            && !self.dump
            && self.trace.is_empty()
    }

    /// Whether samples have async chains, which only the `signal` walker reads.
    pub fn has_chains(&self) -> bool {
        self.chains && self.walker == WalkerKind::Signal && !self.dump
    }

    /// Returns the number of methods after which a runtime's JIT callbacks may be disabled. Needs a
    /// walker that finds unreported code, and no event that needs each method. An exception's stack
    /// needs the methods that dispatch it, which are removed from it, from the first one on.
    pub fn jit_callback_limit(&self) -> Option<u32> {
        let events = [Event::Exception, Event::Jit];
        let needs_each =
            events.iter().any(|event| self.events.has(*event)) || !self.trace.is_empty();
        self.find_code
            .filter(|_| self.walker == WalkerKind::Signal && !needs_each)
    }

    /// Whether collections must be tracked, to read the heap or to destroy handles between them.
    pub fn needs_collection_times(&self) -> bool {
        self.has_chains() || self.events.has(Event::Live)
    }

    /// Whether the walkers call `DoStackSnapshot`.
    pub fn needs_snapshots(&self) -> bool {
        matches!(
            self.walker,
            WalkerKind::Snapshot | WalkerKind::Suspend | WalkerKind::Seeded
        )
    }

    /// Returns the walker of events that are not time-based.
    pub fn event_walker(&self) -> WalkerKind {
        match self.walker {
            WalkerKind::Snapshot => WalkerKind::Snapshot,
            _ => WalkerKind::Signal,
        }
    }
}

impl RuntimePolicy {
    /// Parses `first`, `one=8.0`, `many=3.1,8`; everything else is `all`.
    pub fn parse(text: &str) -> RuntimePolicy {
        match text.split_once('=') {
            None if text == "first" => RuntimePolicy::First,
            Some(("one", version)) => RuntimePolicy::One(version.to_owned()),
            Some(("many", list)) => {
                RuntimePolicy::Many(list.split(',').map(str::to_owned).collect())
            }
            _ => RuntimePolicy::All,
        }
    }

    /// Whether the user named this version. A prefix names all versions that begin with it.
    pub fn names(&self, version: &str) -> bool {
        let wanted = match self {
            RuntimePolicy::First | RuntimePolicy::All => return true,
            RuntimePolicy::One(wanted) => std::slice::from_ref(wanted),
            RuntimePolicy::Many(wanted) => wanted,
        };
        wanted.iter().any(|wanted| {
            version
                .strip_prefix(wanted.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_tool_writes() {
        let settings = Settings::parse(
            "event=wall,alloc,later;interval_ns=1000000;max_depth=64;engine=timer;walker=suspend;\
             runtimes=many=3.1,8;new=1;alloc_interval=100;event_limit=0;dump=1;suspended=1;async=1;find_code=9;\
             live_interval_ns=2000000000;\
             trace=50:A.B;trace=0:/a%3b%253b:/;trace=x:A;trace_limit=7",
        );
        assert_eq!(
            settings,
            Settings {
                events: EventSet::of(&[Event::Alloc, Event::Wall, Event::TracedCall]),
                interval_ns: 1_000_000,
                alloc_interval: 100,
                live_interval_ns: 2_000_000_000,
                event_limit: 0,
                max_depth: 64,
                engine: "timer".into(),
                walker: WalkerKind::Suspend,
                runtimes: RuntimePolicy::Many(vec!["3.1".into(), "8".into()]),
                dump: true,
                suspended: true,
                chains: true,
                find_code: Some(9),
                trace: [(50, "A.B"), (0, "/a;%3b:/")]
                    .map(|(min_ns, text)| TracePattern {
                        text: text.into(),
                        min_ns,
                    })
                    .into(),
                trace_limit: 7,
            }
        );
    }

    #[test]
    fn code_is_found_where_nothing_is_wanted_of_each_method() {
        for (text, after) in [
            ("event=cpu", None),
            ("event=cpu;find_code=9", Some(9)),
            ("event=wall,alloc,gc;find_code=9", Some(9)),
            ("event=cpu,jit;find_code=9", None),
            ("event=cpu,exception;find_code=9", None),
            ("event=cpu;find_code=9;walker=seeded", None),
            ("event=cpu;find_code=9;trace=0:A.B", None),
        ] {
            assert_eq!(Settings::parse(text).jit_callback_limit(), after, "{text}");
        }
    }

    #[test]
    fn numbers_are_kept_within_their_limits() {
        let least = Settings::parse("interval_ns=1;max_depth=0;live_interval_ns=1");
        assert_eq!(
            (least.interval_ns, least.max_depth, least.live_interval_ns),
            (100_000, 1, 100_000_000)
        );
        let all = "interval_ns=18446744073709551615;max_depth=4294967295;\
                   alloc_interval=18446744073709551615;live_interval_ns=18446744073709551615";
        let most = Settings::parse(all);
        // 1 Hz, one day.
        assert_eq!(most.interval_ns, 1_000_000_000);
        assert_eq!(most.live_interval_ns, 24 * 3600 * 1_000_000_000);
        assert_eq!((most.max_depth, most.alloc_interval), (32_768, 1 << 40));
    }

    #[test]
    fn nonsense_keeps_the_defaults() {
        assert_eq!(
            Settings::parse(
                "interval_ns=x;;=;max_depth;walker=x;event=;event=later;event_limit=-1"
            ),
            Settings::default()
        );
        assert_eq!(Settings::parse("interval_ns=1").interval_ns, 100_000);
    }

    #[test]
    fn every_event_is_read_by_its_name() {
        let all = EventSet(u16::MAX);
        for event in all.iter() {
            let settings = Settings::parse(&format!("event={}", event.name()));
            assert_eq!(settings.events, EventSet::of(&[event]));
            assert_eq!(settings.events.iter().collect::<Vec<_>>(), [event]);
        }
        let three = EventSet::parse("gc,jit,class-load").unwrap();
        assert!(three.has(Event::Jit) && !three.has(Event::Cpu));
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
            assert_eq!(many.names(version), admitted, "{version}");
            let first = RuntimePolicy::parse("one=3.1");
            assert_eq!(first.names(version), version == "3.1.23");
        }
    }
}
