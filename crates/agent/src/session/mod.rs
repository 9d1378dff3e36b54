//! Sessions: the time from "record" to "stop". A process can have many, one at a time.
//!
//! [`begin`](begin::begin) starts a session for the whole process. `Session` is the agent thread's
//! side: until the tool sends stop or exits, it drains the ring buffers, resolves addresses, writes
//! records, and follows threads and modules. Each such pass is a round. [`agent_thread`] runs one
//! session after the other, and sleeps in between.
//!
//! The agent thread has never run managed code, so every call it makes into a CLR is synchronous.
//! It may block on a lock of the CLR. The ring buffers then fill up and samples that do not fit are
//! counted as lost. No thread of the program waits for the agent thread, except a CLR's shutdown,
//! for a bounded time.

mod agent_state;
pub mod agent_thread;
pub(crate) mod arrival;
pub mod begin;
mod change;
mod clients;
mod control_socket;
mod dump;
mod library;
mod many_threads;
pub mod oracle_session;
mod pace;
pub mod phases;
pub mod signal;
mod standstill;
mod suspended;
mod totals;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use control::{Message, keys, reply};
use corprof::{AgentCx, CallbackKind, EventMaskLow};
use recording::{Event, Record};
use sampler::{Reader, Sampler};

pub use self::agent_state::AgentState;
pub use self::begin::{Begun, NotBegun};
pub use self::library::{AgentEnd, Library, Watch};

use self::clients::{Clients, Request};
use self::many_threads::ManyThreads;
use self::pace::{Pace, RoundResult};
use self::totals::Totals;
use crate::base::{proc, waker};
use crate::clr::collection_times::CollectionTime;
use crate::clr::{KnownClr, Runtimes};
use crate::events::source::{RuntimeFacts, SubscribeTime};
use crate::events::subscription::{self, Subscription};
use crate::events::{DutyCycle, EventAnnouncement, EventWriter};
use crate::hooks;
use crate::model::{Settings, WalkerKind};
use crate::program::threads::{ScanSchedule, StackProbes, ThreadChange};
use crate::record::{Channel, Command, Recorder};
use crate::trace::{self, TraceWriter};
use crate::walkers::{self, Round, Walker, WalkerInputs};

/// Time between two scans of /proc/self/task, nanoseconds.
const SCAN_NS: u64 = 100_000_000;
/// Minimum time between two blocks when few records are written. An abrupt end loses at most this
/// and one round.
const FLUSH_NS: u64 = 50_000_000;
/// Time between two reads of thread names, and between two records of totals.
const STATS_NS: u64 = 1_000_000_000;
/// Maximum wait for handlers that run as the session stops. They take microseconds, but may be
/// preempted.
const LAST_TIMERS_NS: u64 = 100_000_000;
/// Callbacks per compiled method: at the start and at the end. The unload of a dynamic method is a
/// third.
const CALLS_OF_A_METHOD: u64 = 2;

/// A session, on the agent thread.
pub(crate) struct Session<'a> {
    agent: &'static AgentState,
    recorder: &'a mut Recorder,
    /// Clients that connect during the session.
    clients: &'a mut Clients,
    settings: Arc<Settings>,
    reader: Reader,
    clrs: Vec<KnownClr>,
    announced: usize,
    /// CLRs that ran before the session.
    running: Vec<u8>,
    walker: Box<dyn Walker>,
    events: EventWriter,
    duty_cycle: DutyCycle,
    many_threads: ManyThreads,
    trace: TraceWriter,
    /// Collections that are not written yet.
    collected: Vec<CollectionTime>,
    /// Whether the events have changed since the last totals.
    changed: bool,
    totals: Totals,
    standstill: standstill::Watch,
    tid: u32,
    ids: Vec<u32>,
    /// Empty list, to be swapped with the next thread changes.
    thread_news: Vec<ThreadChange>,
    /// Threads at the last scan.
    thread_count: u64,
    pace: Pace,
    /// Start of the last round, and due time of the next.
    round_ns: u64,
    round_due: u64,
    scan_due: u64,
    flush_due: u64,
    stats_due: u64,
}

impl<'a> Session<'a> {
    /// Creates the agent thread's side of a session that has begun. It writes to `channel` by
    /// `recorder`.
    pub(crate) fn new(
        agent: &'static AgentState,
        begun: Begun,
        channel: Channel,
        recorder: &'a mut Recorder,
        clients: &'a mut Clients,
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
            recorder.forget_runtime(&agent.program, &clr);
        }
        let walker = walkers::make(&WalkerInputs {
            program: &agent.program,
            settings: &settings,
            sampler,
            shadow: agent.shadow.as_ref(),
            now_ns: now,
        });
        let totals = Totals::new(agent, sampler, &running);
        Session {
            agent,
            recorder,
            clients,
            settings,
            reader,
            clrs: Vec::new(),
            announced: 0,
            running,
            walker,
            events: EventWriter::default(),
            duty_cycle: DutyCycle::new(now),
            many_threads: ManyThreads::default(),
            trace: TraceWriter::default(),
            collected: Vec::new(),
            changed: false,
            totals,
            standstill: standstill::Watch::default(),
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

    /// Runs until the tool sends stop or exits.
    pub(crate) fn run(mut self, cx: &mut AgentCx) {
        self.open();
        self.subscribe_running(cx);
        self.learn_existing_code(cx);
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
                    begin::stop(self.agent);
                    self.reader.drain_all(|_, _| {}, |_| {});
                    break;
                }
            }
            self.round(cx, is_called);
            self.release_ending_runtimes(cx);
        }
        // If no stop was requested.
        self.agent.trace.end(&self.agent.events);
        // First, so that the tool does not wait for a CLR that is slow in the steps below.
        self.recorder.close();
        // While the runtimes still report collections.
        let mut runtimes = Runtimes::new(cx, &self.agent.registry, &self.clrs);
        self.events.release(&self.agent.events, &mut runtimes);
        self.unsubscribe(cx);
        self.end_timers();
        begin::forget(self.agent);
    }

    /// Releases the timers of threads whose handler ran as the session stopped. They are kept until
    /// the next drain, and there may be none after this session.
    fn end_timers(&mut self) {
        let until = proc::now_ns().saturating_add(LAST_TIMERS_NS);
        let sampler = self.agent.sampler();
        while sampler.is_some_and(Sampler::holds_timers) && proc::now_ns() < until {
            self.reader.drain_all(|_, _| {}, |_| {});
            self.agent.waker.wait(&[], Some(Duration::from_millis(1)));
        }
    }

    /// Writes the description of the process and the session.
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
            // The tool refuses this before it starts; another client may not.
            self.recorder
                .note("walker snapshot takes no stacks by time: those were taken by signal");
        }
        self.recorder.flush();
    }

    /// Sends ticks only, if no round is due. At high rates a round per tick would cost more than
    /// the samples.
    fn only_ticks(&mut self) -> bool {
        let now = proc::now_ns();
        now < self.round_due && self.walker.tick(&mut self.reader, now)
    }

    /// Sleeps until a ring buffer is half full, a client connects, or a round is due. Returns false
    /// in the last case.
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
            self.agent.control_socket.fd(),
        ];
        let mut others = [-1; 8];
        let fds = own.into_iter().chain(self.clients.fds());
        for (other, fd) in others.iter_mut().zip(fds) {
            *other = fd;
        }
        let is_woken = self.agent.waker.wait(&others, Some(timeout));
        self.notice_standstill(now.saturating_add(timeout.as_nanos() as u64));
        is_woken
    }

    /// Notices that the program stood still in the wait that was to end at `due_ns`. Called before
    /// samples that were taken after it are written.
    fn notice_standstill(&mut self, due_ns: u64) {
        let tid = self.tid;
        let queued = || sampler::queued_ns(tid);
        let stood = self.standstill.after_wait(due_ns, proc::now_ns(), queued);
        if let Some(stood) = stood {
            let has_traces = !self.settings.trace.is_empty();
            if let Some(note) = self.standstill.note(&stood, has_traces) {
                self.recorder.note(&note);
            }
            self.recorder.leave_out(stood);
        }
    }

    /// Answers the clients. Called only if [`Session::wait`] was woken, as the kernel creates a
    /// socket to accept a client before it finds that there is none.
    fn answer_clients(&mut self, cx: &mut AgentCx) {
        for (request, mut client) in self.clients.poll(self.agent) {
            let answer = match request {
                Request::Change { events } => self.change(&events, cx),
                // All other requests are refused now.
                Request::Record { .. } | Request::Leave => {
                    Message::new(reply::BUSY).with(keys::BY, &self.agent.recorded_by())
                }
            };
            client.reply(&answer);
        }
    }

    /// Runs one round: does everything that is due. `is_called`: the thread was woken, so a client
    /// may have connected.
    fn round(&mut self, cx: &mut AgentCx, is_called: bool) {
        let now = proc::now_ns();
        self.round_ns = now;
        let written = self.recorder.records_written();
        self.announce();
        waker::clear_handler_wake();
        if is_called {
            self.answer_clients(cx);
        }
        self.add_runtimes(cx);
        signal::recheck(self.agent);
        let program = &self.agent.program;
        program.natives.refresh();
        if now >= self.scan_due {
            self.scan_due = now + SCAN_NS;
            let now_and_then = now + SCAN_NS >= self.stats_due;
            let count = proc::thread_count();
            let is_other = count == 0 || count != self.thread_count;
            let scans = match program.threads.schedule_scan() {
                ScanSchedule::Now => true,
                ScanSchedule::WhenTheirNumberChanges => is_other,
                ScanSchedule::NowAndThen => is_other || now_and_then,
            };
            if scans {
                self.thread_count = count;
                // A stack probe (a signal that makes a thread report its stack range) wakes a
                // waiting thread. A dump first reads the states of threads, then probes them. Event
                // stacks are walked by the threads themselves.
                let are_walked = self.settings.walker != WalkerKind::Suspend
                    && !self.settings.dump
                    && !self.settings.timed().is_empty();
                let probes = if are_walked {
                    StackProbes::All
                } else {
                    StackProbes::NoThreads
                };
                program.threads.scan(self.tid, &mut self.ids, probes);
            }
            if now_and_then {
                program.threads.refresh_names();
            }
            self.drop_suspend_events(cx, count);
        }
        program.threads.take_stack_probes(&mut self.reader);
        let has_code = self.drain(cx, false);
        program.code.map().reclaim();
        program.code.map().age_unreported();
        self.switch_jit_callbacks(cx);
        if self.agent.trace.take_settled() {
            // A live reader of the recording sees from when on calls are counted.
            self.trace.write(&self.agent.trace, self.recorder);
            self.flush_due = now;
        }
        let found = if self.events.is_waiting() {
            RoundResult::Search
        } else if self.recorder.take_learned() {
            RoundResult::Learned
        } else if has_code || self.recorder.records_written() != written {
            RoundResult::Something
        } else {
            RoundResult::Nothing
        };
        self.pace.after(now, found);
        self.reader.call_at_next_sample(self.pace.is_idle());
        if now >= self.stats_due {
            self.stats_due = now + STATS_NS;
            self.standstill.refresh(sampler::queued_ns(self.tid));
            self.write_totals();
            self.confirm_change(cx);
            let mut runtimes = Runtimes::new(cx, &self.agent.registry, &self.clrs);
            let threads = &self.agent.program.threads;
            self.duty_cycle
                .update(&self.agent.events, threads, &mut runtimes, now);
        }
        if now >= self.flush_due || self.events.take_urgent() {
            self.flush_due = now + FLUSH_NS;
            self.recorder.flush();
            self.events.sent();
        }
    }

    /// Handles CLRs that were attached during this session.
    fn add_runtimes(&mut self, cx: &mut AgentCx) {
        let arrived = self.agent.catch_up(cx);
        if !arrived.is_empty() && self.agent.registry.is_any_recorded() {
            self.agent.phases.runtime_starts();
            self.running = arrived;
            self.subscribe_running(cx);
        }
    }

    /// Writes the new CLRs to the recording.
    fn announce(&mut self) {
        self.clrs = self.agent.registry.known();
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
            // No CLR's end is pending.
            self.announce_end();
            self.recorder.flush();
        }
        self.announced = self.clrs.len();
        let walker = self.settings.event_walker().name();
        self.events
            .announce(&self.agent.events, walker, self.recorder);
    }

    fn announce_end(&mut self) {
        let left_out = self.agent.program.threads.left_out();
        if left_out > 0 {
            self.recorder.note(&format!(
                "{left_out} short-lived threads were not sampled and are not listed: a random \
                 sample of such threads represents them"
            ));
        }
        if let Some(note) = self.standstill.last_note() {
            self.recorder.note(&note);
        }
        self.recorder.record(&Record::End {
            time_ns: proc::now_ns(),
        });
    }

    fn thread_news(&mut self) {
        self.agent.program.threads.swap_news(&mut self.thread_news);
        for news in self.thread_news.drain(..) {
            match news {
                ThreadChange::Named {
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
                ThreadChange::Ended {
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

    /// Drains the ring buffers and the queue of events. Entries that wait for others are written if
    /// this is the `last` time. Returns whether code was added or removed.
    fn drain(&mut self, cx: &mut AgentCx, last: bool) -> bool {
        let drained_ns = proc::now_ns();
        let program = &self.agent.program;
        self.reader.clear_wake();
        self.events
            .collect(&self.agent.events, &program.threads, drained_ns, last);
        let has_code = self.recorder.absorb_code(program);
        self.recorder.absorb_natives(program);
        self.thread_news();
        let mut round = Round {
            program,
            runtimes: Runtimes::new(cx, &self.agent.registry, &self.clrs),
            reader: &mut self.reader,
            closed: Vec::new(),
            now_ns: drained_ns,
        };
        self.walker.round(&mut round, self.recorder);
        if last {
            self.walker.finish(&mut round, self.recorder);
        }
        let events = &self.agent.events;
        self.events
            .write(events, program, &mut round.runtimes, self.recorder);
        let runtimes = &mut round.runtimes;
        self.events
            .update_live(events, runtimes, self.recorder, drained_ns, last);
        for (clr, _) in self.clrs.iter().filter_map(|known| known.reach.as_ref()) {
            clr.collection_times().take(&mut self.collected);
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

    /// Disables JIT callbacks in CLRs that compile many methods, or enables them again. They are
    /// disabled only if the session has no other use for them.
    fn switch_jit_callbacks(&self, cx: &mut AgentCx) {
        let after = self.settings.jit_callback_limit();
        for known in self.clrs.iter().filter(|known| known.recorded) {
            let Some((clr, runtime)) = &known.reach else {
                continue;
            };
            let calls = runtime.calls();
            let calls = calls.get(CallbackKind::Jit as usize);
            let reported = calls.map_or(0, |calls| calls.count / CALLS_OF_A_METHOD);
            if let Some(disable) = clr.pending_jit_callbacks_switch(reported, after) {
                let mut runtimes = Runtimes::new(cx, &self.agent.registry, &self.clrs);
                let program = &self.agent.program;
                runtimes.with(known.number, |clr, cx| {
                    clr.switch_jit_callbacks(program, cx, disable)
                });
            }
        }
    }

    /// Writes what still needs the CLRs that are ending, then releases them.
    fn release_ending_runtimes(&mut self, cx: &mut AgentCx) {
        let AgentState {
            registry,
            program,
            phases,
            ..
        } = self.agent;
        // After the last recorded CLR no CLR is left to record; other CLRs of the process continue.
        let rest = || {
            phases.runtimes_rest();
            program.threads.stop_sampling();
        };
        let Some(ending) = registry.ending(rest) else {
            return;
        };
        self.duty_cycle.end(&ending.numbers);
        if ending.is_last {
            self.agent.trace.sum_up(&self.agent.events);
        }
        self.announce();
        self.drain(cx, true);
        self.write_totals();
        if ending.is_last {
            self.announce_end();
        }
        self.recorder.flush();
        for number in ending.numbers {
            self.agent.release_runtime(number);
        }
    }

    /// Ends the session at the tool's request.
    fn close(&mut self, cx: &mut AgentCx) {
        // While calls are still counted, so that its notes are announced with the rest.
        self.agent.trace.end(&self.agent.events);
        begin::stop(self.agent);
        self.announce();
        self.drain(cx, true);
        self.write_totals();
        self.announce_end();
    }

    /// Sets the event mask of this session in CLRs that run already: after an earlier session, or
    /// after an attach.
    fn subscribe_running(&mut self, cx: &mut AgentCx) {
        let settings = Arc::clone(&self.settings);
        let recorded = self.agent.registry.recorded();
        let mut running = std::mem::take(&mut self.running);
        running.retain(|number| recorded.contains(number));
        for trouble in self.subscribe(cx, &running, |facts| {
            subscription::of_session(&settings, SubscribeTime::Attached, facts, hooks::EVENTS)
        }) {
            self.agent.events.announce(EventAnnouncement::Note(trouble));
        }
        self.trace_running(cx, &running);
        for known in &self.clrs {
            let reach = known.reach.as_ref();
            if running.contains(&known.number)
                && reach.is_some_and(|(clr, _)| clr.has_given_up_on_code())
            {
                self.agent.events.announce(EventAnnouncement::Note(format!(
                    "methods that .NET {} compiled before the attach are named at their first \
                     sample, because the program unloaded code whenever its methods were listed",
                    known.version
                )));
            }
        }
    }

    /// Traces methods of modules that were loaded before the session. Those that are loaded from
    /// here on are reported.
    fn trace_running(&mut self, cx: &mut AgentCx, running: &[u8]) {
        let agent = self.agent;
        if !agent.trace.is_wanted() {
            return;
        }
        let code = self.recorder.existing_code(&agent.program);
        let mut runtimes = Runtimes::new(cx, &agent.registry, &self.clrs);
        for number in running {
            let Some(own) = agent.trace.of(*number) else {
                continue;
            };
            runtimes.with(*number, |clr, cx| {
                trace::enable(&own, clr, &agent.events, cx);
                agent.trace.running(clr, &own, (&code, &agent.events), cx);
            });
        }
    }

    /// Enters the code that was compiled before the session. Must precede the first round, which
    /// begins to sample the running threads.
    fn learn_existing_code(&mut self, cx: &mut AgentCx) {
        self.recorder.absorb_code(&self.agent.program);
        let mut runtimes = Runtimes::new(cx, &self.agent.registry, &self.clrs);
        self.recorder
            .learn_async_bodies(&self.agent.program, &mut runtimes);
    }

    /// Resets the event masks of the CLRs to those without a session.
    fn unsubscribe(&mut self, cx: &mut AgentCx) {
        let running = self.agent.registry.running();
        let _refusals = self.subscribe(cx, &running, |_| subscription::of_idle());
    }

    /// Turns off suspension callbacks in runtimes with too many threads ([`ManyThreads`]).
    fn drop_suspend_events(&mut self, cx: &mut AgentCx, threads: u64) {
        let mut runtimes = Runtimes::new(cx, &self.agent.registry, &self.clrs);
        for number in self.many_threads.add(threads, runtimes.recorded()) {
            let asked = runtimes.with(number, |clr, cx| {
                // First: no callback closes it from then on.
                if let Some(gate) = clr.heap_gate() {
                    gate.close_for_good();
                }
                subscription::disable_suspend_events(cx)
            });
            let Some((own, true)) = self.agent.events.of(number).zip(asked) else {
                continue;
            };
            self.agent.events.announce(EventAnnouncement::Note(format!(
                "async callers, gc and live events of .NET {} are not recorded from here on: with \
                 {threads} threads, each collection would cost a callback per thread",
                own.facts.version
            )));
        }
    }

    /// Sets the event mask of each of these CLRs to `wanted`. Returns the refusals.
    fn subscribe(
        &mut self,
        cx: &mut AgentCx,
        numbers: &[u8],
        wanted: impl Fn(&RuntimeFacts) -> Subscription,
    ) -> Vec<String> {
        self.duty_cycle.end(numbers);
        self.clrs = self.agent.registry.known();
        let mut runtimes = Runtimes::new(cx, &self.agent.registry, &self.clrs);
        let mut trouble = Vec::new();
        for &number in numbers {
            let Some(own) = self.agent.events.of(number) else {
                continue;
            };
            let mut wanted = wanted(&own.facts);
            if self.many_threads.has(number) {
                wanted.low = wanted.low - EventMaskLow::MONITOR_SUSPENDS;
            }
            self.agent.events.announce_sources(&wanted);
            let tells = wanted.low.contains(EventMaskLow::MONITOR_SUSPENDS);
            let minds = self.settings.needs_collection_times() && tells;
            let gate = runtimes.with(number, |clr, _| clr.heap_gate()).flatten();
            if let Some(gate) = gate.filter(|_| !minds) {
                gate.close_for_good();
            }
            let refused = match subscription::changes_session(&own, &wanted) {
                false => runtimes.with(number, |_, cx| subscription::apply(cx, &own, &wanted)),
                true => {
                    let its = Arc::clone(&own);
                    let asked = runtimes
                        .on_own_thread(number, move |cx| subscription::apply(cx, &its, &wanted));
                    asked.map(|asked| {
                        asked.unwrap_or_else(|error| {
                            Some(format!(
                                "the events of .NET {} were not changed: no thread could be \
                                 started for that ({error})",
                                own.facts.version
                            ))
                        })
                    })
                }
            };
            if let Some(gate) = gate.filter(|_| minds) {
                gate.watch();
                // Suspends and resumes once, so that the gate opens: before that the state of the
                // runtime is unknown.
                runtimes.with(number, |_, cx| drop(cx.info().suspend_runtime(cx)));
            }
            runtimes.with(number, |clr, _| clr.note_jit_callbacks_enabled());
            trouble.extend(refused.flatten());
        }
        trouble
    }
}

#[cfg(test)]
mod tests;
