//! Sessions: from "record" to "stop", any number of times in a process, one at a time.
//!
//! [`begin`](begin::begin) starts one for the whole process; `Session` is the agent thread's side,
//! which drains the rings, resolves, writes, and looks after threads and modules until the tool
//! says stop or is gone; [`agent_thread`] runs one after the other, and sleeps in between.
//!
//! The agent thread has never run managed code, so every call it makes into a CLR is synchronous,
//! and it may wait for a lock of the CLR: then the rings fill up and what does not fit is counted,
//! but no thread of the program waits for it (only a CLR's shutdown does, for a bounded time).

pub mod agent_thread;
pub(crate) mod arrival;
pub mod begin;
mod change;
mod crowds;
mod door;
mod dump;
pub mod guest;
mod library;
mod pace;
mod parts;
pub mod phases;
pub mod signal;
mod suspended;
mod totals;
mod visitors;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use control::{Message, answer, keys};
use corprof::{AgentCx, CallbackKind, EventMaskLow};
use recording::{Event, Record};
use sampler::{Reader, Sampler};

pub use self::begin::{Begun, NotBegun};
pub use self::library::{End, Library, Watch};
pub use self::parts::Parts;

use self::crowds::Crowds;
use self::pace::{Found, Pace};
use self::totals::Totals;
use self::visitors::{Request, Visitors};
use crate::base::{proc, wake};
use crate::clr::collecting::Collected;
use crate::clr::{KnownClr, Runtimes};
use crate::events::source::{How, RuntimeFacts};
use crate::events::subscription::{self, Subscription};
use crate::events::{EventNews, EventWriter, Turns};
use crate::hooks;
use crate::model::{Settings, WalkerKind};
use crate::program::threads::{Greet, Scan, ThreadNews};
use crate::record::{Channel, Command, Recorder};
use crate::trace::{self, TraceWriter};
use crate::walkers::{self, Making, Round, Walker};

/// Between two looks at /proc/self/task.
const SCAN_NS: u64 = 100_000_000;
/// Between two blocks at least, when there is little to say: with a round, what an abrupt end takes
/// with it.
const FLUSH_NS: u64 = 50_000_000;
/// Between two looks at thread names, and two records of totals.
const STATS_NS: u64 = 1_000_000_000;
/// How long handlers that ran as the session stopped are waited for: they take microseconds, but
/// may be preempted.
const LAST_TIMERS_NS: u64 = 100_000_000;
/// Calls of a CLR about a method that it compiles: when it begins and when it has ended. When a
/// dynamic one goes is a third.
const CALLS_OF_A_METHOD: u64 = 2;

/// A session, on the agent thread.
pub(crate) struct Session<'a> {
    parts: &'static Parts,
    recorder: &'a mut Recorder,
    /// Clients that connect while we record.
    visitors: &'a mut Visitors,
    settings: Arc<Settings>,
    reader: Reader,
    clrs: Vec<KnownClr>,
    announced: usize,
    /// CLRs that ran before the session.
    running: Vec<u8>,
    walker: Box<dyn Walker>,
    events: EventWriter,
    turns: Turns,
    crowds: Crowds,
    trace: TraceWriter,
    /// Collections on their way to the recording.
    collected: Vec<Collected>,
    /// The events have been changed since the last totals.
    changed: bool,
    totals: Totals,
    tid: u32,
    ids: Vec<u32>,
    /// Empty, for the next news of threads.
    thread_news: Vec<ThreadNews>,
    /// Threads at the last scan.
    thread_count: u64,
    pace: Pace,
    /// When the last round began, and the next is due.
    round_ns: u64,
    round_due: u64,
    scan_due: u64,
    flush_due: u64,
    stats_due: u64,
}

impl<'a> Session<'a> {
    /// The session that has begun, which writes to `channel` by `recorder`.
    pub(crate) fn new(
        parts: &'static Parts,
        begun: Begun,
        channel: Channel,
        recorder: &'a mut Recorder,
        visitors: &'a mut Visitors,
    ) -> Session<'a> {
        let now = proc::now_ns();
        let Begun {
            settings,
            reader,
            sampler,
            forgotten,
            running,
        } = begun;
        recorder.new_epoch(channel);
        recorder.begin_chains(settings.has_chains());
        for clr in forgotten {
            recorder.forget_runtime(&parts.program, &clr);
        }
        let walker = walkers::make(&Making {
            program: &parts.program,
            settings: &settings,
            sampler,
            shadow: parts.shadow.as_ref(),
            now_ns: now,
        });
        let totals = Totals::new(parts, sampler, &running);
        Session {
            parts,
            recorder,
            visitors,
            settings,
            reader,
            clrs: Vec::new(),
            announced: 0,
            running,
            walker,
            events: EventWriter::default(),
            turns: Turns::new(now),
            crowds: Crowds::default(),
            trace: TraceWriter::default(),
            collected: Vec::new(),
            changed: false,
            totals,
            tid: proc::own_tid(),
            ids: Vec::new(),
            thread_news: Vec::new(),
            thread_count: 0,
            pace: Pace::new(now),
            round_ns: now,
            round_due: now,
            scan_due: now,
            flush_due: now + FLUSH_NS,
            stats_due: now + STATS_NS,
        }
    }

    /// Runs until the tool says stop or is gone.
    pub(crate) fn run(mut self, cx: &mut AgentCx) {
        self.open();
        self.subscribe_running(cx);
        self.learn_what_was_there(cx);
        loop {
            let is_called = self.wait();
            if !is_called && self.only_ticks() {
                continue;
            }
            match self.recorder.command() {
                Command::None => {}
                Command::Stop => {
                    if self.settings.dump {
                        self.dump(cx);
                    }
                    if self.settings.suspended {
                        self.suspended(cx);
                    }
                    self.close(cx);
                    break;
                }
                Command::Gone => {
                    begin::stop(self.parts);
                    self.reader.drain_all(|_, _| {}, |_| {});
                    break;
                }
            }
            self.round(cx, is_called);
            self.endings(cx);
        }
        // Where no stop was requested.
        self.parts.trace.end(&self.parts.events);
        // First, so that the tool does not wait for a CLR that takes its time with what follows.
        self.recorder.close();
        // While the runtimes tell when they collect.
        let mut runtimes = Runtimes::new(cx, &self.parts.registry, &self.clrs);
        self.events.release(&self.parts.events, &mut runtimes);
        self.unsubscribe(cx);
        self.end_timers();
        begin::forget(self.parts);
    }

    /// Threads whose handler ran as the session stopped keep their timers until the reader looks
    /// again: after this session there may be none.
    fn end_timers(&mut self) {
        let until = proc::now_ns().saturating_add(LAST_TIMERS_NS);
        let sampler = self.parts.sampler();
        while sampler.is_some_and(Sampler::holds_timers) && proc::now_ns() < until {
            self.reader.drain_all(|_, _| {}, |_| {});
            self.parts.wake.wait(&[], Some(Duration::from_millis(1)));
        }
    }

    /// Says what this is a recording of.
    fn open(&mut self) {
        self.recorder.record(&Record::Process {
            pid: std::process::id(),
            parent: std::os::unix::process::parent_id(),
            command: Cow::Owned(proc::command_line()),
            unix_ns: proc::unix_ns(),
            time_ns: proc::now_ns(),
        });
        for event in self.settings.timed() {
            self.recorder.record(&Record::Engine {
                engine: Cow::Borrowed(self.walker.engine(event)),
                walker: Cow::Borrowed(self.walker.name()),
                event,
                interval_ns: self.settings.interval_ns,
                max_depth: self.settings.max_depth,
            });
        }
        if self.settings.walker == WalkerKind::Shadow {
            self.recorder.record(&Record::Source {
                event: Event::Call,
                source: Cow::Borrowed("enter, leave and tailcall hooks"),
                walker: Cow::Borrowed(self.walker.name()),
                interval: 0,
            });
        }
        if self.settings.walker == WalkerKind::Snapshot && !self.settings.timed().is_empty() {
            // The tool refuses this before it starts; another one may not.
            self.recorder
                .note("walker snapshot takes no stacks by time: those were taken by signal");
        }
        self.recorder.flush();
    }

    /// Ticks, if there is nothing else to do before the next round: at high rates that would cost
    /// more than the samples.
    fn only_ticks(&mut self) -> bool {
        let now = proc::now_ns();
        now < self.round_due && self.walker.tick(&mut self.reader, now)
    }

    /// Sleeps until a ring is half full, a client connects, or something is due. False: the latter.
    fn wait(&mut self) -> bool {
        let now = proc::now_ns();
        self.round_due = self.round_ns.saturating_add(self.pace.round_ns());
        let mut timeout = Duration::from_nanos(self.round_due.saturating_sub(now));
        if let Some(due) = self.walker.due_ns() {
            timeout = timeout.min(Duration::from_nanos(due.saturating_sub(now)));
        }
        let own = [
            self.recorder.fd(),
            self.reader.wake_fd(),
            self.parts.door.fd(),
        ];
        let mut others = [-1; 8];
        let fds = own.into_iter().chain(self.visitors.fds());
        for (other, fd) in others.iter_mut().zip(fds) {
            *other = fd;
        }
        self.parts.wake.wait(&others, Some(timeout))
    }

    /// Answers the clients. The kernel says when there may be one ([`Session::wait`]): it makes a
    /// socket before it sees that there is none.
    fn visitors(&mut self, cx: &mut AgentCx) {
        for (request, mut visitor) in self.visitors.look(self.parts) {
            let answer = match request {
                Request::Change { events } => self.change(&events, cx),
                // All other requests are refused now.
                Request::Record { .. } | Request::Leave => {
                    Message::new(answer::BUSY).with(keys::BY, &self.parts.recorded_by())
                }
            };
            visitor.tell(&answer);
        }
    }

    /// One round: everything that is due. No client has connected where it is not called for.
    fn round(&mut self, cx: &mut AgentCx, is_called: bool) {
        let now = proc::now_ns();
        self.round_ns = now;
        let written = self.recorder.written();
        self.announce();
        wake::hear_call();
        if is_called {
            self.visitors(cx);
        }
        self.newcomers(cx);
        signal::look_after(self.parts);
        let program = &self.parts.program;
        program.natives.refresh();
        if now >= self.scan_due {
            self.scan_due = now + SCAN_NS;
            let now_and_then = now + SCAN_NS >= self.stats_due;
            let count = proc::thread_count();
            let is_other = count == 0 || count != self.thread_count;
            let scans = match program.threads.want_scan() {
                Scan::Now => true,
                Scan::WhenTheirNumberChanges => is_other,
                Scan::NowAndThen => is_other || now_and_then,
            };
            if scans {
                self.thread_count = count;
                // A greeting wakes who waits. A dump reads what they do first, and greets them
                // then; events are reported by the threads themselves.
                let are_walked = self.settings.walker != WalkerKind::Suspend
                    && !self.settings.dump
                    && !self.settings.timed().is_empty();
                let greet = if are_walked {
                    Greet::All
                } else {
                    Greet::Nobody
                };
                program.threads.scan(self.tid, &mut self.ids, greet);
            }
            if now_and_then {
                program.threads.look_at_names();
            }
            self.look_at_crowds(cx, count);
        }
        program.threads.take_hellos(&mut self.reader);
        let has_code = self.drain(cx, false);
        program.code.map().reclaim();
        program.code.map().age_untold();
        self.be_silent_or_tell(cx);
        if self.parts.trace.take_settled() {
            // A reader of the recording while it is made knows from when on calls are counted.
            self.trace.write(&self.parts.trace, self.recorder);
            self.flush_due = now;
        }
        let found = if self.events.is_waiting() {
            Found::Search
        } else if has_code || self.recorder.written() != written {
            Found::Something
        } else {
            Found::Nothing
        };
        self.pace.after(now, found);
        self.reader.call_at_next_sample(self.pace.dozes());
        if now >= self.stats_due {
            self.stats_due = now + STATS_NS;
            self.tell_totals();
            self.confirm_change(cx);
            let mut runtimes = Runtimes::new(cx, &self.parts.registry, &self.clrs);
            let threads = &self.parts.program.threads;
            self.turns
                .look(&self.parts.events, threads, &mut runtimes, now);
        }
        if now >= self.flush_due || self.events.take_urgent() {
            self.flush_due = now + FLUSH_NS;
            self.recorder.flush();
            self.events.sent();
        }
    }

    /// CLRs that we were sent to while this session runs.
    fn newcomers(&mut self, cx: &mut AgentCx) {
        let arrived = self.parts.catch_up(cx);
        if !arrived.is_empty() && self.parts.registry.is_any_recorded() {
            self.parts.phases.runtime_starts();
            self.running = arrived;
            self.subscribe_running(cx);
        }
    }

    /// Tells the recording of CLRs that are new.
    fn announce(&mut self) {
        self.clrs = self.parts.registry.known();
        for clr in self.clrs.iter().skip(self.announced) {
            self.recorder.record(&Record::Runtime {
                runtime: clr.number,
                version: Cow::Borrowed(&clr.version),
                recorded: clr.recorded,
                refused_by: Cow::Borrowed(clr.refused_by),
            });
        }
        let all_refused = self.clrs.iter().all(|clr| clr.reach.is_none());
        if self.announced < self.clrs.len() && all_refused {
            // There is no CLR's end to come.
            self.tell_end();
            self.recorder.flush();
        }
        self.announced = self.clrs.len();
        let walker = self.settings.event_walker().name();
        self.events
            .announce(&self.parts.events, walker, self.recorder);
    }

    fn tell_end(&mut self) {
        let left_out = self.parts.program.threads.left_out();
        if left_out > 0 {
            self.recorder.note(&format!(
                "{left_out} threads that lived shortly were not sampled and are not listed: others of their kind, chosen by chance, stand for them"
            ));
        }
        self.recorder.record(&Record::End {
            time_ns: proc::now_ns(),
        });
    }

    fn thread_news(&mut self) {
        self.parts.program.threads.swap_news(&mut self.thread_news);
        for news in self.thread_news.drain(..) {
            match news {
                ThreadNews::Named {
                    thread,
                    tid,
                    name,
                    managed,
                    time_ns,
                } => self.recorder.record(&Record::Thread {
                    thread,
                    tid,
                    name: Cow::Borrowed(&name),
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
                    self.recorder.record(&Record::ThreadEnd {
                        thread,
                        time_ns,
                        cpu_ns,
                    });
                }
            }
        }
    }

    /// Empties the rings and the queue of events; what waits for something waits no longer if this
    /// is the `last` time. Answers whether code came or went.
    fn drain(&mut self, cx: &mut AgentCx, last: bool) -> bool {
        let drained_ns = proc::now_ns();
        let program = &self.parts.program;
        self.reader.clear_wake();
        self.events
            .collect(&self.parts.events, &program.threads, drained_ns, last);
        let has_code = self.recorder.absorb_code(program);
        self.recorder.absorb_natives(program);
        self.thread_news();
        let mut round = Round {
            program,
            runtimes: Runtimes::new(cx, &self.parts.registry, &self.clrs),
            reader: &mut self.reader,
            closed: Vec::new(),
            now_ns: drained_ns,
        };
        self.walker.round(&mut round, self.recorder);
        if last {
            self.walker.finish(&mut round, self.recorder);
        }
        let events = &self.parts.events;
        self.events
            .write(events, program, &mut round.runtimes, self.recorder);
        let runtimes = &mut round.runtimes;
        self.events
            .look_at_live(events, runtimes, self.recorder, drained_ns, last);
        for (clr, _) in self.clrs.iter().filter_map(|known| known.reach.as_ref()) {
            clr.collecting().take(&mut self.collected);
        }
        for one in self.collected.drain(..) {
            self.recorder.record(&Record::Collected {
                thread: program.threads.at(one.tid, one.from_ns),
                time_ns: one.from_ns,
                ns: one.ns,
            });
        }
        for slot in round.closed {
            program.threads.slot_closed(slot);
        }
        // Entries that wait in the queues are younger.
        program
            .threads
            .forget_former(drained_ns.saturating_sub(STATS_NS));
        self.recorder.forget_removed(drained_ns);
        self.thread_news();
        has_code
    }

    /// Disables reports of compiled methods in CLRs that compile many, or enables them again. They
    /// are disabled where the session needs them for nothing else.
    fn be_silent_or_tell(&self, cx: &mut AgentCx) {
        let after = self.settings.finds_code_after();
        for known in self.clrs.iter().filter(|known| known.recorded) {
            let Some((clr, runtime)) = &known.reach else {
                continue;
            };
            let calls = runtime.calls();
            let calls = calls.get(CallbackKind::Jit as usize);
            let told = calls.map_or(0, |calls| calls.count / CALLS_OF_A_METHOD);
            if let Some(silent) = clr.is_to_be_silent(told, after) {
                let mut runtimes = Runtimes::new(cx, &self.parts.registry, &self.clrs);
                let program = &self.parts.program;
                runtimes.with(known.number, |clr, cx| clr.be_silent(program, cx, silent));
            }
        }
    }

    /// CLRs that are ending: writes what still needs them, then lets them go.
    fn endings(&mut self, cx: &mut AgentCx) {
        let Parts {
            registry,
            program,
            phases,
            ..
        } = self.parts;
        // No CLR is left to record after the last one; another CLR of this process goes on.
        let rest = || {
            phases.runtimes_rest();
            program.threads.rest();
        };
        let Some(ending) = registry.ending(rest) else {
            return;
        };
        self.turns.end(&ending.numbers);
        if ending.is_last {
            self.parts.trace.sum_up(&self.parts.events);
        }
        self.announce();
        self.drain(cx, true);
        self.tell_totals();
        if ending.is_last {
            self.tell_end();
        }
        self.recorder.flush();
        for number in ending.numbers {
            self.parts.let_go(number);
        }
    }

    /// Stops for good, by the tool's wish.
    fn close(&mut self, cx: &mut AgentCx) {
        // While calls are counted still: the notes of it are announced with the rest.
        self.parts.trace.end(&self.parts.events);
        begin::stop(self.parts);
        self.announce();
        self.drain(cx, true);
        self.tell_totals();
        self.tell_end();
    }

    /// Asks CLRs that run already for what this session wants: those of a process that had another
    /// session, or that we were attached to.
    fn subscribe_running(&mut self, cx: &mut AgentCx) {
        let settings = Arc::clone(&self.settings);
        let recorded = self.parts.registry.recorded();
        let mut running = std::mem::take(&mut self.running);
        running.retain(|number| recorded.contains(number));
        for trouble in self.subscribe(cx, &running, |facts| {
            subscription::of_session(&settings, How::Attached, facts, hooks::EVENTS)
        }) {
            self.parts.events.tell(EventNews::Note(trouble));
        }
        self.trace_running(cx, &running);
        for known in &self.clrs {
            let reach = known.reach.as_ref();
            if running.contains(&known.number)
                && reach.is_some_and(|(clr, _)| clr.gave_up_on_code())
            {
                self.parts.events.tell(EventNews::Note(format!(
                    "methods that .NET {} compiled before the attach are named from their first sample on: \
                     the program discarded compiled code each time its methods were to be listed",
                    known.version
                )));
            }
        }
    }

    /// Traces methods of modules that were loaded before the session. Those that are loaded from
    /// here on are reported.
    fn trace_running(&mut self, cx: &mut AgentCx, running: &[u8]) {
        let parts = self.parts;
        if !parts.trace.is_wanted() {
            return;
        }
        let mut runtimes = Runtimes::new(cx, &parts.registry, &self.clrs);
        for number in running {
            let Some(own) = parts.trace.of(*number) else {
                continue;
            };
            runtimes.with(*number, |clr, cx| {
                trace::enable(&own, clr, &parts.events, cx);
                parts.trace.running(clr, &own, &parts.events, cx);
            });
        }
    }

    /// Before threads that run already are sampled, which the first round sees to: code that was
    /// compiled before the session.
    fn learn_what_was_there(&mut self, cx: &mut AgentCx) {
        self.recorder.absorb_code(&self.parts.program);
        let mut runtimes = Runtimes::new(cx, &self.parts.registry, &self.clrs);
        self.recorder
            .learn_async_bodies(&self.parts.program, &mut runtimes);
    }

    /// Asks the CLRs for no more events than they report anyway.
    fn unsubscribe(&mut self, cx: &mut AgentCx) {
        let running = self.parts.registry.running();
        let _refusals = self.subscribe(cx, &running, |_| subscription::of_idle());
    }

    /// Runtimes with so many threads that it is dear to know when they stop are asked no more.
    fn look_at_crowds(&mut self, cx: &mut AgentCx, threads: u64) {
        let mut runtimes = Runtimes::new(cx, &self.parts.registry, &self.clrs);
        for number in self.crowds.look(threads, runtimes.recorded()) {
            let asked = runtimes.with(number, |clr, cx| {
                // First: no callback closes it from then on.
                if let Some(gate) = clr.heap_gate() {
                    gate.ignore();
                }
                subscription::ask_for_no_stops(cx)
            });
            let Some((own, true)) = self.parts.events.of(number).zip(asked) else {
                continue;
            };
            self.parts.events.tell(EventNews::Note(format!(
                "callers of resumed async methods of .NET {}, its collections and which objects live are left out from here on: the \
                 process has {threads} threads, and to know when it collects costs a call for each of them",
                own.facts.version
            )));
        }
    }

    /// Asks each of these CLRs for what is `wanted` of it. Answers what could not be had.
    fn subscribe(
        &mut self,
        cx: &mut AgentCx,
        numbers: &[u8],
        wanted: impl Fn(&RuntimeFacts) -> Subscription,
    ) -> Vec<String> {
        self.turns.end(numbers);
        self.clrs = self.parts.registry.known();
        let mut runtimes = Runtimes::new(cx, &self.parts.registry, &self.clrs);
        let mut trouble = Vec::new();
        for &number in numbers {
            let Some(own) = self.parts.events.of(number) else {
                continue;
            };
            let mut wanted = wanted(&own.facts);
            if self.crowds.has(number) {
                wanted.low = wanted.low - EventMaskLow::MONITOR_SUSPENDS;
            }
            self.parts.events.tell_all(&wanted);
            let tells = wanted.low.contains(EventMaskLow::MONITOR_SUSPENDS);
            let minds = self.settings.minds_collections() && tells;
            let gate = runtimes.with(number, |clr, _| clr.heap_gate()).flatten();
            if let Some(gate) = gate.filter(|_| !minds) {
                gate.ignore();
            }
            let refused = match subscription::changes_session(&own, &wanted) {
                false => runtimes.with(number, |_, cx| subscription::apply(cx, &own, &wanted)),
                true => {
                    let its = Arc::clone(&own);
                    let asked =
                        runtimes.apart(number, move |cx| subscription::apply(cx, &its, &wanted));
                    asked.map(|asked| {
                        asked.unwrap_or_else(|error| {
                            Some(format!(
                                "the events of .NET {} stay as they were: there was no thread to ask for others ({error})",
                                own.facts.version
                            ))
                        })
                    })
                }
            };
            if let Some(gate) = gate.filter(|_| minds) {
                gate.watch();
                // Once round, so that it opens: until then the state of the runtime is not known.
                runtimes.with(number, |_, cx| drop(cx.info().suspend_runtime(cx)));
            }
            runtimes.with(number, |clr, _| clr.tells_again());
            trouble.extend(refused.flatten());
        }
        trouble
    }
}

#[cfg(test)]
mod tests;
