//! The agent thread: drains the rings, resolves, writes, and looks after threads and modules.
//!
//! One per process. It has never run managed code, so every call it makes into a CLR is
//! synchronous, and it may wait for a lock of the CLR: then the rings fill up and what does not
//! fit is counted, but nobody waits for it (only a CLR's shutdown does, for a bounded time).

use std::borrow::Cow;
use std::time::Duration;

use corprof::context::AgentThread;
use corprof::{AgentCx, Cx};
use recording::{Event, Record};
use sampler::{DiscardReason, Reader};

use crate::agent::{Agent, hear_call};
use crate::channel::Command;
use crate::clr::Clr;
use crate::config;
use crate::events::EventWriter;
use crate::outlet::Outlet;
use crate::proc;
use crate::registry::KnownClr;
use crate::resolve::{EndCode, RawSample, Resolver};
use crate::shadow::Pen;
use crate::threads::ThreadNews;
use crate::walkers::{self, Round, Sink, Walker};

/// Between two rounds, while the program starts and threads and modules come by the dozen.
const EARLY_ROUND: Duration = Duration::from_millis(10);
/// Between two rounds later; a ring that fills up asks for one earlier.
const ROUND: Duration = Duration::from_millis(100);
/// Between two rounds while an exception waits for its handler: the program may end by it, and is
/// then gone some tens of milliseconds after the throw.
const SEARCH_ROUND: Duration = Duration::from_millis(2);
/// How long "early" is.
const EARLY_NS: u64 = 1_000_000_000;
/// Between two looks at /proc/self/task.
const SCAN_NS: u64 = 100_000_000;
/// Between two blocks, when there is little to say.
const FLUSH_NS: u64 = 500_000_000;
/// Between two looks at thread names, and two records of totals.
const STATS_NS: u64 = 1_000_000_000;

/// The CLRs, for the resolver to ask.
pub(crate) struct Runtimes<'a> {
    cx: &'a mut AgentCx,
    known: &'a [KnownClr],
    /// The list of now, once a CLR was met that is not in `known`: it started after that was made.
    newer: Vec<KnownClr>,
}

impl<'a> Runtimes<'a> {
    pub(crate) fn new(cx: &'a mut AgentCx, known: &'a [KnownClr]) -> Runtimes<'a> {
        Runtimes {
            cx,
            known,
            newer: Vec::new(),
        }
    }

    /// The CLRs that are recorded and can be asked.
    pub(crate) fn recorded(&self) -> Vec<u8> {
        self.known
            .iter()
            .filter(|clr| clr.recorded && clr.reach.is_some() && !clr.ending)
            .map(|clr| clr.index)
            .collect()
    }

    /// The CLR of a process that has one, recorded.
    pub(crate) fn only(&self) -> Option<u8> {
        match self.known {
            [clr] if clr.recorded => Some(clr.index),
            _ => None,
        }
    }

    /// Asks one CLR; `None` where it has ended.
    pub(crate) fn with<R>(
        &mut self,
        runtime: u8,
        ask: impl for<'rt> FnOnce(&Clr, &mut Cx<'rt, AgentThread>) -> R,
    ) -> Option<R> {
        let is_it = |clr: &&KnownClr| clr.index == runtime;
        if self.known.iter().chain(&self.newer).find(is_it).is_none() {
            self.newer = Agent::get()?.registry.known();
        }
        let known = self.known.iter().chain(&self.newer).find(is_it)?;
        let (clr, runtime) = known.reach.as_ref()?;
        Some(self.cx.enter(runtime, |cx| ask(clr, cx)))
    }
}

/// What walkers give, on its way into the recording.
struct ToRecording<'a> {
    agent: &'static Agent,
    outlet: &'a mut Outlet,
    resolver: &'a mut Resolver,
    broken: &'a mut [u64; 256],
}

impl Sink for ToRecording<'_> {
    fn stack(&mut self, runtimes: &mut Runtimes<'_>, stack: RawSample<'_>) {
        if stack.end.reason().is_some()
            && let Some(count) = self.broken.get_mut(usize::from(stack.end.0))
        {
            *count += 1;
        }
        self.resolver
            .sample(self.outlet, runtimes, &self.agent.births, stack);
    }

    fn record(&mut self, record: &Record<'_>) {
        self.outlet.push(record);
    }

    fn pen<'s, 'r>(&'s mut self, runtimes: &'s mut Runtimes<'r>) -> Pen<'s, 'r> {
        Pen {
            outlet: self.outlet,
            resolver: self.resolver,
            runtimes,
        }
    }
}

/// The agent thread's state.
pub(crate) struct Drain {
    agent: &'static Agent,
    reader: Reader,
    outlet: Outlet,
    resolver: Resolver,
    clrs: Vec<KnownClr>,
    announced: usize,
    broken: [u64; 256],
    walker: Box<dyn Walker>,
    events: EventWriter,
    tid: u32,
    ids: Vec<u32>,
    start_ns: u64,
    scan_due: u64,
    flush_due: u64,
    stats_due: u64,
    handler_ns: u64,
}

impl Drain {
    pub(crate) fn new(agent: &'static Agent, reader: Reader, outlet: Outlet) -> Drain {
        let now = proc::now_ns();
        Drain {
            agent,
            reader,
            outlet,
            resolver: Resolver::new(agent),
            clrs: Vec::new(),
            announced: 0,
            broken: [0; 256],
            walker: walkers::of(agent),
            events: EventWriter::default(),
            tid: proc::own_tid(),
            ids: Vec::new(),
            start_ns: now,
            scan_due: now,
            flush_due: now + FLUSH_NS,
            stats_due: now + STATS_NS,
            handler_ns: 0,
        }
    }

    /// Runs until the tool says stop or is gone.
    pub(crate) fn run(mut self, cx: &mut AgentCx) {
        self.open();
        loop {
            self.wait();
            match self.outlet.command() {
                Command::None => {}
                Command::Stop => {
                    self.close(cx);
                    return;
                }
                Command::Gone => {
                    self.agent.stop();
                    self.end_events(cx);
                    return;
                }
            }
            self.round(cx);
            self.farewells(cx);
        }
    }

    fn open(&mut self) {
        self.outlet.push(&Record::Process {
            pid: std::process::id(),
            parent: std::os::unix::process::parent_id(),
            command: Cow::Owned(proc::command_line()),
            unix_ns: proc::unix_ns(),
            time_ns: proc::now_ns(),
        });
        let config = &self.agent.config;
        for event in [Event::Cpu, Event::Wall] {
            if config.events.has(event) {
                self.outlet.push(&Record::Engine {
                    engine: Cow::Borrowed(self.walker.engine(event)),
                    walker: Cow::Borrowed(self.walker.name()),
                    event,
                    interval_ns: config.interval_ns,
                    max_depth: config.max_depth,
                });
            }
        }
        if config.walker == config::Walker::Shadow {
            self.outlet.push(&Record::Source {
                event: Event::Call,
                source: Cow::Borrowed("enter, leave and tailcall hooks"),
                walker: Cow::Borrowed(self.walker.name()),
                interval: 0,
            });
        }
        if config.walker == config::Walker::Snapshot && !walkers::timed(config).is_empty() {
            // The tool refuses this before it starts; another one may not.
            let text = "walker snapshot takes no stacks by time: those were taken by signal";
            self.outlet.push(&Record::Note {
                text: Cow::Borrowed(text),
            });
        }
        self.outlet.flush();
    }

    /// Sleeps until a ring is half full, somebody calls, or the next round is due.
    fn wait(&mut self) {
        let now = proc::now_ns();
        let early = now.saturating_sub(self.start_ns) < EARLY_NS;
        let round = if self.events.is_waiting() {
            SEARCH_ROUND
        } else if early {
            EARLY_ROUND
        } else {
            ROUND
        };
        let mut timeout = round;
        if let Some(due) = self.walker.due_ns() {
            timeout = timeout.min(Duration::from_nanos(due.saturating_sub(now)));
        }
        let rings = Some(self.reader.wake_fd());
        self.agent.wait(self.outlet.fd(), rings, timeout);
    }

    /// One round: everything that is due.
    fn round(&mut self, cx: &mut AgentCx) {
        let now = proc::now_ns();
        self.announce();
        hear_call();
        self.agent.refresh_natives();
        if now >= self.scan_due {
            self.scan_due = now + SCAN_NS;
            let names = now + SCAN_NS >= self.stats_due;
            let threads = &self.agent.threads;
            let greet = self.agent.config.walker != config::Walker::Suspend;
            threads.scan(self.agent.sampler, self.tid, &mut self.ids, names, greet);
        }
        self.agent.threads.take_hellos(&mut self.reader);
        self.drain(cx, false);
        self.agent.map.reclaim();
        if now >= self.stats_due {
            self.stats_due = now + STATS_NS;
            self.totals();
        }
        if now >= self.flush_due || self.events.take_urgent() {
            self.flush_due = now + FLUSH_NS;
            self.outlet.flush();
        }
    }

    /// Tells the recording of CLRs that are new.
    fn announce(&mut self) {
        self.clrs = self.agent.registry.known();
        for clr in self.clrs.iter().skip(self.announced) {
            self.outlet.push(&Record::Runtime {
                runtime: clr.index,
                version: Cow::Borrowed(&clr.version),
                recorded: clr.recorded,
                refused_by: Cow::Borrowed(clr.refused_by),
            });
        }
        let all_refused = self.clrs.iter().all(|clr| clr.reach.is_none());
        if self.announced < self.clrs.len() && all_refused {
            // There is no CLR's end to come.
            self.outlet.push(&Record::End {
                time_ns: proc::now_ns(),
            });
            self.outlet.flush();
        }
        self.announced = self.clrs.len();
        let walker = self.agent.events.walker().name();
        self.events
            .announce(&self.agent.events, walker, &mut self.outlet);
    }

    fn thread_news(&mut self) {
        for news in self.agent.threads.take_news() {
            match news {
                ThreadNews::Named {
                    thread,
                    tid,
                    name,
                    managed,
                    time_ns,
                } => self.outlet.push(&Record::Thread {
                    thread,
                    tid,
                    name: Cow::Owned(name),
                    managed,
                    time_ns,
                }),
                ThreadNews::Ended {
                    thread,
                    managed,
                    time_ns,
                    cpu_ns,
                } => {
                    if managed {
                        self.walker.thread_ended(thread, cpu_ns);
                    }
                    self.outlet.push(&Record::ThreadEnd {
                        thread,
                        time_ns,
                        cpu_ns,
                    });
                }
            }
        }
    }

    /// Empties the rings and the queue of events; what waits for something waits no longer if this
    /// is the `last` time.
    fn drain(&mut self, cx: &mut AgentCx, last: bool) {
        let drained_ns = proc::now_ns();
        self.reader.clear_wake();
        self.events
            .collect(&self.agent.events, &self.agent.threads, drained_ns, last);
        self.resolver.absorb(&self.agent.births);
        self.resolver.absorb_natives(&mut self.outlet);
        self.thread_news();
        let mut closed = Vec::new();
        let mut round = Round {
            agent: self.agent,
            runtimes: Runtimes::new(cx, &self.clrs),
            reader: &mut self.reader,
            closed: &mut closed,
            now_ns: drained_ns,
        };
        let mut sink = ToRecording {
            agent: self.agent,
            outlet: &mut self.outlet,
            resolver: &mut self.resolver,
            broken: &mut self.broken,
        };
        self.walker.round(&mut round, &mut sink);
        if last {
            self.walker.finish(&mut round, &mut sink);
        }
        self.events.write(&mut round.runtimes, &mut sink);
        for slot in closed {
            self.agent.threads.slot_closed(slot);
        }
        // What waits in the queues is younger.
        self.agent
            .threads
            .forget_former(drained_ns.saturating_sub(STATS_NS));
        self.resolver.forget_dead(drained_ns);
        self.thread_news();
    }

    /// Writes counters and totals.
    fn totals(&mut self) {
        let counters = self.reader.take_counters();
        self.handler_ns += counters.handler_ns;
        for reason in DiscardReason::ALL {
            let count = counters.discarded(reason);
            if count > 0 && reason.loses_sample() {
                self.outlet.push(&Record::Lost {
                    reason: Cow::Borrowed(reason.name()),
                    count,
                });
            }
        }
        for (reason, count) in self.walker.lost() {
            if count > 0 {
                self.outlet.push(&Record::Lost { reason, count });
            }
        }
        for (code, count) in (0u8..=255).zip(self.broken.iter_mut()) {
            if *count > 0
                && let Some(reason) = EndCode(code).reason()
            {
                self.outlet.push(&Record::Broken {
                    reason: Cow::Borrowed(reason),
                    count: std::mem::take(count),
                });
            }
        }
        let memory = self.resolver.memory()
            + self.walker.memory()
            + self.outlet.memory()
            + self.events.memory(&self.agent.events)
            + (self.agent.map.memory().bytes + self.reader.memory()) as u64;
        self.outlet.push(&Record::Stats {
            time_ns: proc::now_ns(),
            agent_cpu_ns: proc::own_cpu_ns(),
            target_cpu_ns: proc::process_cpu_ns(),
            agent_memory: memory,
            handler_ns: self.handler_ns,
        });
    }

    /// CLRs that are ending: writes what still needs them, then lets them go.
    fn farewells(&mut self, cx: &mut AgentCx) {
        let Agent {
            registry,
            threads,
            sampler,
            events,
            ..
        } = self.agent;
        // Nobody is left to record after the last one; another CLR of this process goes on.
        let rest = || {
            events.rest();
            threads.rest(sampler);
        };
        let Some(farewell) = registry.farewell(rest) else {
            return;
        };
        self.announce();
        self.drain(cx, true);
        self.totals();
        if farewell.is_last {
            self.outlet.push(&Record::End {
                time_ns: proc::now_ns(),
            });
        }
        self.outlet.flush();
        for index in farewell.ending {
            threads.runtime_ended(index);
            registry.acknowledge(index);
        }
    }

    /// Stops for good, by the tool's wish.
    fn close(&mut self, cx: &mut AgentCx) {
        self.agent.stop();
        self.announce();
        self.drain(cx, true);
        self.totals();
        self.outlet.push(&Record::End {
            time_ns: proc::now_ns(),
        });
        self.outlet.close();
        self.end_events(cx);
    }

    /// Asks the CLRs for no more events than they told of anyway.
    fn end_events(&mut self, cx: &mut AgentCx) {
        let mut runtimes = Runtimes::new(cx, &self.clrs);
        for runtime in runtimes.recorded() {
            runtimes.with(runtime, |clr, cx| clr.end_events(cx));
        }
    }
}
