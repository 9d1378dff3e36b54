//! Table of the process's threads: their names, stacks, sampler slots and ends.
//!
//! Managed threads are registered in a callback, before they run a managed method. Native ones (of
//! the GC and of other libraries) are found by the agent thread in /proc/self/task. The table gives
//! the sampler the threads to sample and the recording their names; the samples themselves do not
//! pass through it. A slot is a registered thread as the handler sees it.
//!
//! Invariants: each kernel thread has at most one entry, and its number is never reused. The lock
//! is held for map operations only, never during a call into the CLR or the kernel. Without a
//! session nothing is queued, and only threads that a CLR reported are kept.

mod cpu;
mod entry;
mod short_lived;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use corprof::ThreadPins;
use sampler::{EngineKind, Error, Route, Sampler, SlotId};

use self::cpu::MOST_SUSPECTS;
use self::entry::{ThreadEntry, ThreadTable};
use self::short_lived::ShortLivedSampling;
use super::accounts::{self, Accounts};
use super::hijacks::{self, HijackPlaces};
use crate::base::numbers::NumberMap;
use crate::base::proc::{self, KernelName};
use crate::model::phase::PhaseReader;
use crate::model::{ManagedThread, ThreadTarget};

/// A change of a thread, for the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThreadChange {
    /// A new thread, or a new name or kind of a known one.
    Named {
        /// Number.
        thread: u32,
        /// The kernel's number.
        tid: u32,
        /// Empty while unknown.
        name: Arc<str>,
        /// Whether a CLR has reported it.
        managed: bool,
        /// CLOCK_MONOTONIC.
        time_ns: u64,
    },
    /// The thread has ended. No more samples arrive once its slot has been closed.
    Ended {
        /// Number.
        thread: u32,
        /// Whether a CLR had reported it.
        managed: bool,
        /// CLOCK_MONOTONIC.
        time_ns: u64,
        /// CPU time from its start to its end.
        cpu_ns: u64,
    },
}

/// A managed thread as its CLR reports it (`ThreadAssignedToOSThread`).
#[derive(Clone, Debug)]
pub struct StartedThread {
    /// Runtime and ThreadID.
    pub managed: ManagedThread,
    /// The kernel's number.
    pub tid: u32,
    /// Its own facts, if the callback runs on it.
    pub own: Option<OwnThread>,
    /// The runtime's index in the table of hijacks, and the address in the thread object.
    pub hijack: Option<(usize, u64)>,
    /// Number of threads for which its ticks stand: [`Threads::choose`].
    pub stands_for: u32,
}

/// Facts that a thread reads about itself without reading a file.
#[derive(Clone, Debug)]
pub struct OwnThread {
    /// The kernel's name of the thread.
    pub name: Option<KernelName>,
    /// From the lowest to one past the highest address.
    pub stack: Option<Range<u64>>,
}

impl OwnThread {
    /// Returns the facts of the calling thread. For callbacks.
    pub fn here() -> OwnThread {
        OwnThread {
            name: proc::own_name(),
            stack: proc::own_stack(),
        }
    }
}

/// When to list the threads again: [`Threads::schedule_scan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanSchedule {
    /// At once, as a thread waits to be sampled.
    Now,
    /// When their number has changed. Callbacks report a thread that ends while another starts.
    WhenTheirNumberChanges,
    /// Also at other times, as some ends are not reported.
    NowAndThen,
}

/// The threads whose stack range is queried: [`Threads::scan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StackProbes {
    /// None, as threads are not walked.
    NoThreads,
    /// Waiting threads, through the kernel.
    Waiting,
    /// Also the others, by a signal.
    All,
}

/// Maximum number of thread names that are read again at once.
const NAMES_AT_ONCE: usize = 32;

/// Maximum number of kept names of threads that are not started yet.
const NAMES_AHEAD: usize = 1024;

/// Marks a thread of the agent, until dropped: [`Threads::exclude_calling_thread`].
#[derive(Debug)]
pub struct AgentThreadGuard {
    threads: &'static Threads,
    tid: u32,
}

impl Drop for AgentThreadGuard {
    fn drop(&mut self) {
        self.threads.agent_threads().retain(|tid| *tid != self.tid);
    }
}

/// The table of threads.
#[derive(Debug)]
pub struct Threads {
    state: Mutex<ThreadTable>,
    phase: PhaseReader,
    /// The main thread's id.
    main: u32,
    /// The agent's own threads, which a CLR or the kernel also reports.
    agent_threads: Mutex<Vec<u32>>,
    /// Managed threads that are alive, and which of them are being walked by the agent thread.
    pub pins: ThreadPins,
}

impl Threads {
    /// Returns an empty table.
    pub fn new(phase: PhaseReader) -> Threads {
        Threads {
            state: Mutex::default(),
            phase,
            main: std::process::id(),
            agent_threads: Mutex::default(),
            pins: ThreadPins::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, ThreadTable> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Excludes the calling thread, one of the agent's, from the recording while the guard lives.
    /// Call before a CLR reports the thread.
    pub fn exclude_calling_thread(&'static self) -> AgentThreadGuard {
        let tid = proc::own_tid();
        self.agent_threads().push(tid);
        AgentThreadGuard { threads: self, tid }
    }

    /// Whether this is one of the agent's threads.
    pub fn is_agent_thread(&self, tid: u32) -> bool {
        self.agent_threads().contains(&tid)
    }

    fn agent_threads(&self) -> MutexGuard<'_, Vec<u32>> {
        self.agent_threads.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Begins a session with this sampler, and queues all known threads. Managed threads are
    /// sampled once [`Threads::scan`] has found them, or once they have registered themselves.
    pub fn begin(&self, sampler: &'static Sampler) {
        let mut state = self.state();
        let state = &mut *state;
        state.sampler = Some(sampler);
        state.accounts = Accounts::default();
        state.short_lived = ShortLivedSampling::default();
        state.former.clear();
        let all = state.by_tid.iter();
        state.news = all.map(|(tid, entry)| entry.named(*tid)).collect();
    }

    /// Stops sampling all threads, and queues the end of each. Native threads are dropped; the next
    /// session finds those that still run.
    pub fn end(&self) {
        let mut state = self.close_accounts();
        let tids: Vec<u32> = state.by_tid.keys().copied().collect();
        let end_ns = proc::now_ns();
        for tid in tids {
            let is_native = state
                .by_tid
                .get(&tid)
                .is_some_and(|entry| entry.managed.is_empty());
            if is_native {
                state.end(tid, true, true);
            } else {
                state.release(tid, end_ns, true);
            }
        }
    }

    /// Ends the session: drops the queued changes.
    pub fn forget_session(&self) {
        let mut state = self.state();
        state.sampler = None;
        state.accounts = Accounts::default();
        state.news = Vec::new();
        state.former = Vec::new();
        state.slots = NumberMap::default();
    }

    /// Stops sampling every thread, as no CLR is recorded now. A thread that still runs when a CLR
    /// is recorded again keeps its number.
    pub fn stop_sampling(&self) {
        let mut state = self.close_accounts();
        let tids: Vec<u32> = state.by_tid.keys().copied().collect();
        let now = proc::now_ns();
        for tid in tids {
            state.release(tid, now, true);
        }
    }

    /// Gives all threads entries, and closes the accounts: no thread is sampled any more.
    fn close_accounts(&self) -> MutexGuard<'_, ThreadTable> {
        let is_session = self.phase.get().is_session();
        self.state().promote_waiting(is_session);
        self.settle_accounts(&mut Vec::new());
        let mut state = self.state();
        state.accounts.close();
        state
    }

    /// Sets whether a random sample of short-lived threads may represent the others, which are then
    /// neither sampled nor reported. Only for sessions that record nothing but CPU time, and only
    /// if each thread has a timer, as the timers are the cost that this saves.
    pub fn allow_short_lived_sampling(&self, is_allowed: bool) {
        let mut state = self.state();
        let engine = state.sampler.map(Sampler::engine);
        let is_wanted = is_allowed && engine == Some(EngineKind::Timer);
        state.short_lived.configure(is_wanted, proc::now_ns());
    }

    /// Called by a managed thread as it starts. Returns the number of threads for which its ticks
    /// stand, including itself. `None`: it is left out, and its facts are kept until it ends or is
    /// promoted (sampled for itself).
    pub fn choose(
        &self,
        managed: ManagedThread,
        tid: u32,
        hijack: Option<(usize, u64)>,
    ) -> Option<u32> {
        if !self.phase.is_recording() {
            return Some(1);
        }
        let mut state = self.state();
        if state.by_tid.contains_key(&tid) {
            // Another CLR has reported it.
            return Some(1);
        }
        let chosen = state.short_lived.choose(proc::now_ns());
        if chosen.is_none() {
            state.short_lived.leave_out(StartedThread {
                managed,
                tid,
                own: None,
                hijack,
                stands_for: 0,
            });
        }
        chosen
    }

    /// Returns the number of threads of this session that were left out and have ended.
    pub fn left_out(&self) -> u64 {
        self.state().short_lived.left_out()
    }

    /// Registers a managed thread on its kernel thread (`ThreadAssignedToOSThread`).
    pub fn managed_started(&self, started: StartedThread) {
        let is_session = self.phase.get().is_session();
        let mut state = self.state();
        let (tid, stack, is_own) = state.managed_started(started, is_session);
        drop(state);
        self.arm(tid, stack, is_own);
    }

    /// Registers the calling thread, before any CLR has reported it.
    pub fn own_started(&self) {
        let (tid, own) = (proc::own_tid(), OwnThread::here());
        let is_session = self.phase.get().is_session();
        let mut state = self.state();
        let all = &mut *state;
        let name = own.name.map(|name| all.shared(&name.text()));
        let (entry, is_new) = all.entry(tid);
        if is_new {
            entry.name = name.unwrap_or_default();
            let news = is_session.then(|| entry.named(tid));
            all.news.extend(news);
        }
        drop(state);
        self.arm(tid, own.stack, true);
    }

    /// Gives a thread (maybe the calling one) a slot if it has none, and its stack if that is
    /// known. Runs outside the lock, as it requests a timer from the kernel.
    fn arm(&self, tid: u32, stack: Option<Range<u64>>, is_own: bool) {
        if !self.phase.is_recording() {
            return;
        }
        let mut state = self.state();
        let Some(sampler) = state.sampler else { return };
        if !state.accounts.is_open() && sampler.engine() != EngineKind::Wall {
            state = self.open_accounts(state);
        }
        let Some(entry) = state.by_tid.get_mut(&tid).filter(|entry| !entry.busy) else {
            return;
        };
        // The thread may run code of a CLR from the CLR's first callback on.
        let route = if entry.was_managed {
            Route::Shared
        } else {
            Route::Own
        };
        let is_other = entry.slot.is_some() && entry.route != route;
        if is_other {
            state.release(tid, proc::now_ns(), false);
        }
        let Some(entry) = state.by_tid.get_mut(&tid) else {
            return;
        };
        let (thread, known) = (entry.thread, entry.slot);
        if known.is_some() && (entry.armed || stack.is_none()) {
            return;
        }
        entry.busy = true;
        drop(state);
        let armed = stack.is_some();
        let done = match (known, stack) {
            // On failure the thread is not sampled, and the next scan tries again.
            (None, stack) => sampler.register_by(tid, stack, route, is_own),
            (Some(slot), Some(stack)) => sampler.set_stack(slot, stack).map(|()| slot),
            (Some(_), None) => Err(Error::StaleSlot),
        };
        let refused = done.err().filter(|error| {
            let ends = [Error::NoSuchThread, Error::Stopped, Error::StaleSlot];
            !ends.contains(error)
        });
        let done = done.ok();
        let clock = done.filter(|_| armed).and_then(|slot| {
            // Mostly the sampler has just read it.
            (sampler.accounted_cpu_ns(slot)).or_else(|| proc::thread_cpu_ns(tid))
        });
        let mut state = self.state();
        let all = &mut *state;
        // Meanwhile the thread, the session or all CLRs may have ended.
        let wanted = all.sampler.is_some() && self.phase.is_recording();
        let entry = all
            .by_tid
            .get_mut(&tid)
            .filter(|entry| entry.thread == thread);
        if let Some(entry) = entry {
            entry.busy = false;
            entry.account.refused = refused;
            if let Some(slot) = done
                && wanted
                && entry.slot == known
            {
                entry.slot = Some(slot);
                entry.route = route;
                if entry.stands_for > 1 {
                    sampler.set_thread_weight(slot, entry.stands_for);
                }
                if armed && !entry.armed {
                    let reported = sampler.reported_ns(slot);
                    all.accounts.armed(&mut entry.account, clock, reported);
                }
                entry.armed |= armed;
                entry.publish();
                all.slots.insert(slot, thread);
                return;
            }
        }
        drop(state);
        if let Some(slot) = done {
            sampler.unregister(slot);
        }
    }

    /// Handles the end of a managed thread (`ThreadDestroyed`). Its kernel thread is no longer
    /// sampled, unless another CLR has reported it too.
    pub fn managed_ended(&self, managed: ManagedThread) {
        let mut state = self.state();
        // Also called for threads that were never started.
        state.names_ahead.remove(&managed);
        if state.short_lived.thread_ended(managed) {
            return;
        }
        let Some(tid) = state.by_managed.remove(&managed) else {
            return;
        };
        let Some(entry) = state.by_tid.get_mut(&tid) else {
            return;
        };
        entry.leave(managed);
        let slot = entry.slot;
        // The main thread outlives its managed side (shutdown); others end now. A native thread
        // that only visited managed code is found again in /proc.
        if entry.managed.is_empty() && tid != self.main {
            let phase = self.phase.get();
            state.end(tid, phase.is_session(), self.phase.is_recording());
        }
        let sampler = state.sampler;
        drop(state);
        // On the thread itself no handler runs now, but one that the program jumped out of looks
        // like a running one.
        if let Some(slot) = slot
            && let Some(sampler) = sampler
            && sampler.is_in_handler(slot)
            && tid != proc::own_tid()
        {
            hijacks::wait_for_readers(sampler, slot);
        }
    }

    /// Sets a thread's name (`ThreadNameChanged`).
    pub fn managed_named(&self, managed: ManagedThread, name: String) {
        if name.is_empty() {
            return;
        }
        let mut state = self.state();
        let Some(tid) = state.by_managed.get(&managed).copied() else {
            if state.names_ahead.len() < NAMES_AHEAD {
                state.names_ahead.insert(managed, name);
            }
            return;
        };
        let is_session = self.phase.get().is_session();
        if let Some(entry) = state.by_tid.get_mut(&tid) {
            entry.name = name.into();
            entry.named_by_clr = true;
            let news = is_session.then(|| entry.named(tid));
            state.news.extend(news);
        }
    }

    /// Lists the kernel's threads and registers new native ones. Agent thread only. The stack range
    /// of a waiting thread is read from the kernel; other threads get a stack probe, a signal whose
    /// handler reports the range. [`StackProbes`] selects the threads.
    pub fn scan(&self, agent_tid: u32, ids: &mut Vec<u32>, probes: StackProbes) {
        let is_session = self.phase.get().is_session();
        {
            // Before the kernel's list is read: a thread that starts meanwhile may be missing in
            // the list, but its callback marks it as alive.
            let mut state = self.state();
            state.promote_waiting(is_session);
            for entry in state.by_tid.values_mut() {
                entry.alive = false;
            }
        }
        if !proc::thread_ids(ids) {
            // That is no evidence that a thread has ended.
            self.state().cannot_look = true;
            return;
        }
        ids.retain(|tid| *tid != agent_tid && !self.is_agent_thread(*tid));
        let mut unnamed: Vec<(u32, bool, Option<String>)> = Vec::new();
        let mut owing: Vec<(u32, Option<u64>)> = Vec::new();
        {
            let mut state = self.state();
            let sampler = state.sampler;
            let is_counted = state.accounts.is_open();
            state.some_went = false;
            for &tid in ids.iter() {
                let (entry, is_new) = state.entry(tid);
                entry.alive = true;
                let is_short_lived = entry.stands_for != 1;
                entry.is_young &= is_short_lived;
                if let Some(slot) = entry.slot.filter(|_| is_short_lived)
                    && let Some(sampler) = sampler
                {
                    sampler.set_thread_weight(slot, 1);
                }
                if is_short_lived || is_counted && (!entry.armed || entry.account.blocks) {
                    owing.push((tid, None));
                }
                if !entry.named_by_clr && (is_new || entry.name.is_empty()) {
                    unnamed.push((tid, is_new, None));
                }
            }
        }
        for (tid, _, name) in &mut unnamed {
            *name = proc::thread_name(*tid);
        }
        // The clock of one that ends before the next scan cannot be read later.
        for (tid, clock) in &mut owing {
            *clock = proc::thread_cpu_ns(*tid);
        }
        let mut suspects = Vec::new();
        let (mut arm, mut probed, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut state = self.state();
            let all = &mut *state;
            let sampler = all.sampler;
            for (tid, clock) in owing {
                if let Some(entry) = all.by_tid.get_mut(&tid) {
                    let reported = entry.slot.zip(sampler);
                    let reported = reported.map_or(0, |(slot, sampler)| sampler.reported_ns(slot));
                    let used = entry.account.settle(clock, reported);
                    if std::mem::replace(&mut entry.stands_for, 1) != 1 {
                        all.accounts.promoted(&mut entry.account);
                    }
                    entry.is_young = false;
                    // It has not responded to its stack probe within the maximum time.
                    let owes = entry.account.owed_ns() >= 2 * accounts::LEAST_NS;
                    let is_due = entry.account.looked_ns == 0;
                    if owes && used > 0 && is_due && suspects.len() < MOST_SUSPECTS {
                        suspects.push(tid);
                    }
                }
            }
            for (tid, is_new, name) in unnamed {
                all.rename(tid, is_new, name, is_session);
            }
            for (tid, entry) in &all.by_tid {
                match entry.slot {
                    _ if !entry.alive => gone.push(*tid),
                    None => arm.push(*tid),
                    Some(slot) if !entry.armed => probed.push(slot),
                    Some(_) => {}
                }
            }
            let is_recording = self.phase.is_recording();
            all.cannot_look = false;
            all.waiting = !arm.is_empty() || probes != StackProbes::NoThreads && !probed.is_empty();
            for tid in gone {
                all.end(tid, is_session, is_recording);
            }
        }
        if let Some(sampler) = self.sampler() {
            self.check_signal_masks(&suspects, sampler);
        }
        if !self.phase.is_recording() {
            return;
        }
        for tid in arm {
            self.arm(tid, None, false);
            let state = self.state();
            let entry = state.by_tid.get(&tid);
            probed.extend(entry.and_then(|entry| entry.slot.filter(|_| !entry.armed)));
        }
        if let Some(sampler) = self.sampler().filter(|_| probes != StackProbes::NoThreads) {
            let mut found = Vec::new();
            sampler.settle_waiting(&probed, |slot| found.push(slot));
            for slot in found.iter().copied() {
                self.is_settled(slot);
            }
            probed.retain(|slot| probes == StackProbes::All && !found.contains(slot));
            for slot in probed {
                let _gone = sampler.probe_stack(slot);
            }
        }
    }

    /// Returns the slot of a thread whose stack is known.
    pub fn armed_slot_of(&self, tid: u32) -> Option<SlotId> {
        let state = self.state();
        let entry = state.by_tid.get(&tid).filter(|entry| entry.armed)?;
        entry.slot
    }

    /// Reads the names of threads that have run since their names were last read. A few at a time,
    /// as each read opens a file. Agent thread only.
    pub fn refresh_names(&self) {
        let mut asked: Vec<(u32, Option<String>)> = Vec::new();
        {
            let mut state = self.state();
            // Without accounts it is unknown which threads have run.
            let any = !state.accounts.is_open();
            let after = state.last_named;
            let can = |entry: &ThreadEntry| !entry.named_by_clr && (any || entry.ran);
            let all = state.by_tid.iter();
            let all = all.filter(|(tid, entry)| **tid > after && can(entry));
            let mut tids: Vec<u32> = all.map(|(tid, _)| *tid).collect();
            tids.sort_unstable();
            tids.truncate(NAMES_AT_ONCE);
            // Starts again at the first once all names were read.
            let is_full = tids.len() == NAMES_AT_ONCE;
            state.last_named = tids.last().copied().filter(|_| is_full).unwrap_or(0);
            for tid in tids {
                if let Some(entry) = state.by_tid.get_mut(&tid) {
                    entry.ran = false;
                    asked.push((tid, None));
                }
            }
        }
        for (tid, name) in &mut asked {
            *name = proc::thread_name(*tid);
        }
        let is_session = self.phase.get().is_session();
        let mut state = self.state();
        for (tid, name) in asked {
            state.rename(tid, false, name, is_session);
        }
    }

    /// Returns when the next scan is needed. A scan may be needed although the number of threads is
    /// unchanged: a thread is not sampled yet, or one may have ended while another started.
    pub fn schedule_scan(&self) -> ScanSchedule {
        let state = self.state();
        if state.waiting || state.some_went || state.short_lived.has_promotable() {
            ScanSchedule::Now
        } else if state.accounts.is_open() {
            ScanSchedule::WhenTheirNumberChanges
        } else {
            ScanSchedule::NowAndThen
        }
    }

    /// Takes the stack ranges that probed threads have reported through the reader. Agent thread
    /// only.
    pub fn take_stack_probes(&self, reader: &mut sampler::Reader) {
        reader.settle_stack_probes(|slot| self.is_settled(slot));
    }

    /// Notes that the stack of this slot's thread has been found.
    fn is_settled(&self, slot: SlotId) {
        let mut state = self.state();
        let all = &mut *state;
        let mut entries = all.by_tid.iter_mut();
        let entry = entries.find(|(_, entry)| entry.slot == Some(slot));
        if let Some((tid, entry)) = entry {
            if !entry.armed {
                let clock = proc::thread_cpu_ns(*tid);
                let reported = all.sampler.map_or(0, |sampler| sampler.reported_ns(slot));
                all.accounts.armed(&mut entry.account, clock, reported);
            }
            entry.armed = true;
        }
    }

    /// Returns the managed threads of a CLR.
    pub fn managed_of(&self, runtime: u8) -> Vec<ThreadTarget> {
        let state = self.state();
        state
            .by_managed
            .iter()
            .filter(|((of, _), _)| *of == runtime)
            .filter_map(|((_, managed), tid)| {
                let entry = state.by_tid.get(tid)?;
                Some(ThreadTarget {
                    managed: *managed,
                    tid: *tid,
                    thread: entry.thread,
                    slot: entry.slot,
                })
            })
            .collect()
    }

    /// Returns the session's sampler, for queries during which no lock may be held.
    pub fn sampler(&self) -> Option<&'static Sampler> {
        self.state().sampler
    }

    /// Returns the addresses at which the calling thread's runtimes keep replaced return addresses.
    pub fn own_hijacks(&self) -> HijackPlaces {
        let state = self.state();
        let entry = state.by_tid.get(&proc::own_tid());
        entry.map_or_else(HijackPlaces::default, |entry| entry.hijacks)
    }

    /// Returns the number of a slot's thread.
    pub fn of_slot(&self, slot: SlotId) -> Option<u32> {
        self.state().slots.get(&slot).copied()
    }

    /// Returns the thread that had this kernel id at that time. Adds a thread that was not
    /// reported.
    pub fn at(&self, tid: u32, time_ns: u64) -> u32 {
        let is_session = self.phase.get().is_session();
        let mut state = self.state();
        let former = state
            .former
            .iter()
            .find(|former| former.tid == tid && time_ns <= former.end_ns);
        if let Some(former) = former {
            return former.thread;
        }
        let (entry, is_new) = state.entry(tid);
        let thread = entry.thread;
        let news = (is_new && is_session).then(|| entry.named(tid));
        state.news.extend(news);
        thread
    }

    /// Drops ended threads, once every sample taken before has been written.
    pub fn forget_former(&self, before_ns: u64) {
        let mut state = self.state();
        state.former.retain(|former| former.end_ns >= before_ns);
    }

    /// Returns the slot of a running kernel thread.
    pub fn slot_of(&self, tid: u32) -> Option<SlotId> {
        self.state().by_tid.get(&tid).and_then(|entry| entry.slot)
    }

    /// Whether a kernel thread blocks the signal by which it is sampled.
    pub fn blocks(&self, tid: u32, sampler: &Sampler) -> bool {
        proc::blocks(tid, cpu::signal_of(self.slot_of(tid), sampler))
    }

    /// Returns the number of a running kernel thread.
    pub fn number_of(&self, tid: u32) -> Option<u32> {
        self.state().by_tid.get(&tid).map(|entry| entry.thread)
    }

    /// Drops a slot that the sampler has closed and will not report again.
    pub fn slot_closed(&self, slot: SlotId) {
        self.state().slots.remove(&slot);
    }

    /// Takes the queued changes.
    pub fn take_changes(&self) -> Vec<ThreadChange> {
        let mut news = Vec::new();
        self.swap_news(&mut news);
        news
    }

    /// As [`Threads::take_changes`], but swaps in an empty list, so that no new one is allocated
    /// each time.
    pub fn swap_news(&self, empty: &mut Vec<ThreadChange>) {
        std::mem::swap(&mut self.state().news, empty);
    }

    /// Drops all threads: without a CLR and a session they will not be reported any more.
    pub fn forget_threads(&self) {
        let mut state = self.state();
        let left = std::mem::take(&mut *state);
        // Numbers are never used again.
        state.next_thread = left.next_thread;
    }

    /// Handles a CLR that has ended or been detached. Its threads are no longer managed, and its
    /// thread objects are not read from here on. Threads that still run belong to the host.
    pub fn runtime_ended(&self, runtime: u8) {
        let mut slots = Vec::new();
        let mut state = self.state();
        let all = &mut *state;
        all.by_managed.retain(|(of, _), _| *of != runtime);
        all.names_ahead.retain(|(of, _), _| *of != runtime);
        all.short_lived.forget_runtime(runtime);
        for entry in all.by_tid.values_mut() {
            let its: Vec<ManagedThread> = entry.managed.iter().map(|managed| managed.id).collect();
            for id in its.into_iter().filter(|(of, _)| *of == runtime) {
                entry.leave(id);
                slots.extend(entry.slot);
            }
        }
        let sampler = all.sampler;
        drop(state);
        for slot in slots {
            if let Some(sampler) = sampler {
                hijacks::wait_for_readers(sampler, slot);
            }
        }
    }
}

#[cfg(test)]
mod tests;
