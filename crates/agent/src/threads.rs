//! The threads of the process, from the CLR's callbacks and from the kernel.
//!
//! Managed threads register themselves in a callback, before they run a managed method; native
//! ones (the GC's, those that other libraries make) are found by the agent thread in
//! /proc/self/task. This module does not sample; it tells the sampler whom to sample and the
//! recording who they are.
//!
//! Invariants: each kernel thread has at most one entry; its number in the recording is never
//! used again; the lock is held for map operations only, never while the CLR is called.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use sampler::{Sampler, SlotId};

use crate::hijacks::{self, Places};
use crate::proc;
use crate::walkers::Target;

/// A managed thread, named so that several CLRs cannot be confused: runtime and ThreadID.
pub(crate) type ManagedThread = (u8, usize);

/// What the recording must be told of threads, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ThreadNews {
    /// A new thread, or a new name or kind of a known one.
    Named {
        thread: u32,
        tid: u32,
        name: String,
        managed: bool,
        time_ns: u64,
    },
    /// No more samples of this thread will come once its slot has been closed.
    Ended {
        thread: u32,
        /// A CLR knew it.
        managed: bool,
        time_ns: u64,
        cpu_ns: u64,
    },
}

#[derive(Debug)]
struct Entry {
    thread: u32,
    slot: Option<SlotId>,
    /// Managed threads that run on it: one for each CLR it has entered.
    managed: Vec<ManagedThread>,
    was_managed: bool,
    /// Where these keep replaced return addresses.
    hijacks: Places,
    /// A name from the CLR beats the kernel's, which is cut at 15 bytes.
    named_by_clr: bool,
    name: String,
    /// Its stack is known, so it is sampled.
    armed: bool,
    /// Seen in the last look at /proc/self/task.
    alive: bool,
}

/// How many names of threads that are not started yet are kept.
const NAMES_AHEAD: usize = 1024;

#[derive(Default)]
struct State {
    by_tid: HashMap<u32, Entry>,
    by_managed: HashMap<ManagedThread, u32>,
    /// Names given before the thread was started, as `new Thread(…) { Name = … }` does.
    names_ahead: HashMap<ManagedThread, String>,
    news: Vec<ThreadNews>,
    /// Slot to thread number, until the sampler has closed the slot.
    slots: HashMap<SlotId, u32>,
    next_thread: u32,
    /// Threads that have ended, for samples of theirs that are still to be written.
    former: Vec<Former>,
    /// Some CLR is recorded; else nobody is sampled.
    awake: bool,
}

#[derive(Debug)]
struct Former {
    tid: u32,
    thread: u32,
    end_ns: u64,
}

/// All threads.
#[derive(Default)]
pub(crate) struct Threads {
    state: Mutex<State>,
}

impl State {
    fn entry(&mut self, tid: u32, kernel_name: impl FnOnce() -> Option<String>) -> &mut Entry {
        match self.by_tid.entry(tid) {
            Slot::Occupied(known) => known.into_mut(),
            Slot::Vacant(free) => {
                let thread = self.next_thread;
                self.next_thread = self.next_thread.wrapping_add(1);
                let entry = Entry {
                    thread,
                    slot: None,
                    managed: Vec::new(),
                    was_managed: false,
                    hijacks: Places::default(),
                    named_by_clr: false,
                    name: kernel_name().unwrap_or_default(),
                    armed: false,
                    alive: true,
                };
                self.news.push(named(tid, &entry));
                free.insert(entry)
            }
        }
    }

    fn end(&mut self, tid: u32, sampler: &Sampler) {
        if let Some(entry) = self.by_tid.remove(&tid) {
            for managed in &entry.managed {
                self.by_managed.remove(managed);
            }
            if let Some(slot) = entry.slot {
                hijacks::publish(slot, &Places::default());
                sampler.unregister(slot);
            }
            let end_ns = proc::now_ns();
            self.former.push(Former {
                tid,
                thread: entry.thread,
                end_ns,
            });
            if self.awake {
                self.news.push(ended(tid, &entry, end_ns));
            }
        }
    }
}

fn ended(tid: u32, entry: &Entry, time_ns: u64) -> ThreadNews {
    ThreadNews::Ended {
        thread: entry.thread,
        managed: entry.was_managed,
        time_ns,
        cpu_ns: proc::thread_cpu_ns(tid).unwrap_or(0),
    }
}

impl Entry {
    /// A managed thread runs here no more: nothing of it is read from now on.
    fn leave(&mut self, managed: ManagedThread) {
        self.managed.retain(|m| *m != managed);
        if let Some(place) = self.hijacks.get_mut(usize::from(managed.0)) {
            *place = 0;
        }
        self.publish();
    }

    /// Tells the handler where this thread's runtimes keep replaced return addresses.
    fn publish(&self) {
        if let Some(slot) = self.slot {
            hijacks::publish(slot, &self.hijacks);
        }
    }
}

fn named(tid: u32, entry: &Entry) -> ThreadNews {
    ThreadNews::Named {
        thread: entry.thread,
        tid,
        name: entry.name.clone(),
        managed: !entry.managed.is_empty(),
        time_ns: proc::now_ns(),
    }
}

impl Threads {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A managed thread got its kernel thread (`ThreadAssignedToOSThread`). `own_stack` is given
    /// when the callback runs on that thread; `hijacks` is where its runtime keeps what it
    /// replaces on the stack, 0 if not known.
    pub(crate) fn managed_started(
        &self,
        sampler: &Sampler,
        managed: ManagedThread,
        tid: u32,
        own_stack: Option<Range<u64>>,
        hijacks: u64,
    ) {
        let mut state = self.state();
        let state = &mut *state;
        // A managed thread may move to another kernel thread in theory; then the old entry stays
        // as a native one until /proc says it is gone.
        if let Some(old) = state.by_managed.insert(managed, tid)
            && old != tid
            && let Some(entry) = state.by_tid.get_mut(&old)
        {
            entry.leave(managed);
        }
        let name = state.names_ahead.remove(&managed);
        let awake = state.awake;
        let entry = state.entry(tid, || proc::thread_name(tid));
        entry.alive = true;
        if let Some(name) = name {
            entry.name = name;
            entry.named_by_clr = true;
        }
        if !entry.managed.contains(&managed) {
            entry.was_managed = true;
            entry.managed.push(managed);
        }
        let news = named(tid, entry);
        if let Some(place) = entry.hijacks.get_mut(usize::from(managed.0)) {
            *place = hijacks;
        }
        entry.publish();
        if !awake {
            // A thread of a CLR that has ended.
        } else if let Some(stack) = own_stack {
            arm(sampler, tid, entry, Some(stack));
        } else if entry.slot.is_none() {
            arm(sampler, tid, entry, None);
        }
        let (slot, thread) = (entry.slot, entry.thread);
        state.news.push(news);
        if let Some(slot) = slot {
            state.slots.insert(slot, thread);
        }
    }

    /// The calling thread, before any CLR has told of it.
    pub(crate) fn native_started(&self, sampler: &Sampler, tid: u32, stack: Option<Range<u64>>) {
        let mut state = self.state();
        let state = &mut *state;
        let entry = state.entry(tid, || proc::thread_name(tid));
        arm(sampler, tid, entry, stack);
        if let (Some(slot), thread) = (entry.slot, entry.thread) {
            state.slots.insert(slot, thread);
        }
    }

    /// A managed thread is gone (`ThreadDestroyed`). Its kernel thread is sampled no more unless
    /// another CLR knows it too.
    pub(crate) fn managed_ended(&self, sampler: &Sampler, managed: ManagedThread) {
        let mut state = self.state();
        // Also told of threads that were never started.
        state.names_ahead.remove(&managed);
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
        if entry.managed.is_empty() && tid != std::process::id() {
            state.end(tid, sampler);
        }
        drop(state);
        if let Some(slot) = slot
            && tid != proc::own_tid()
        {
            hijacks::wait_for_readers(sampler, slot);
        }
    }

    /// A thread got a name (`ThreadNameChanged`).
    pub(crate) fn managed_named(&self, managed: ManagedThread, name: String) {
        let mut state = self.state();
        let Some(tid) = state.by_managed.get(&managed).copied() else {
            if !name.is_empty() && state.names_ahead.len() < NAMES_AHEAD {
                state.names_ahead.insert(managed, name);
            }
            return;
        };
        if let Some(entry) = state.by_tid.get_mut(&tid)
            && !name.is_empty()
        {
            entry.name = name;
            entry.named_by_clr = true;
            let news = named(tid, entry);
            state.news.push(news);
        }
    }

    /// Looks which threads the kernel has. Agent thread only. New native ones are registered and
    /// greeted, so that their next signal tells where their stack is. With `names`, looks for new
    /// names of known threads too, which costs a file read for each.
    /// With `greet` unset no signal is sent: nobody wants to walk them.
    pub(crate) fn scan(
        &self,
        sampler: &Sampler,
        agent_tid: u32,
        ids: &mut Vec<u32>,
        names: bool,
        greet: bool,
    ) {
        proc::thread_ids(ids);
        let mut state = self.state();
        let state = &mut *state;
        for entry in state.by_tid.values_mut() {
            entry.alive = false;
        }
        for &tid in ids.iter().filter(|tid| **tid != agent_tid) {
            let entry = state.entry(tid, || proc::thread_name(tid));
            entry.alive = true;
            if names
                && !entry.named_by_clr
                && let Some(name) = proc::thread_name(tid)
                && name != entry.name
            {
                entry.name = name;
                let news = named(tid, entry);
                state.news.push(news);
            }
            let Some(entry) = state.by_tid.get_mut(&tid).filter(|_| state.awake) else {
                continue;
            };
            if entry.slot.is_none() {
                arm(sampler, tid, entry, None);
            }
            if greet
                && !entry.armed
                && let Some(slot) = entry.slot
            {
                let _gone = sampler.hello(slot);
            }
            if let (Some(slot), thread) = (entry.slot, entry.thread) {
                state.slots.insert(slot, thread);
            }
        }
        let gone: Vec<u32> = state
            .by_tid
            .iter()
            .filter(|(_, entry)| !entry.alive)
            .map(|(tid, _)| *tid)
            .collect();
        for tid in gone {
            state.end(tid, sampler);
        }
    }

    /// Takes the answers of threads that were greeted, whose stacks the reader finds. Agent thread
    /// only.
    pub(crate) fn take_hellos(&self, reader: &mut sampler::Reader) {
        reader.settle_hellos(|slot| {
            let mut state = self.state();
            let entry = state
                .by_tid
                .values_mut()
                .find(|entry| entry.slot == Some(slot));
            if let Some(entry) = entry {
                entry.armed = true;
            }
        });
    }

    /// The managed threads of a CLR.
    pub(crate) fn managed_of(&self, runtime: u8) -> Vec<Target> {
        let state = self.state();
        state
            .by_managed
            .iter()
            .filter(|((of, _), _)| *of == runtime)
            .filter_map(|((_, managed), tid)| {
                let entry = state.by_tid.get(tid)?;
                Some(Target {
                    managed: *managed,
                    tid: *tid,
                    thread: entry.thread,
                    slot: entry.slot,
                })
            })
            .collect()
    }

    /// Where the runtimes of the calling thread keep replaced return addresses.
    pub(crate) fn own_hijacks(&self) -> Places {
        let state = self.state();
        let entry = state.by_tid.get(&proc::own_tid());
        entry.map_or_else(Places::default, |entry| entry.hijacks)
    }

    /// The thread of a slot.
    pub(crate) fn of_slot(&self, slot: SlotId) -> Option<u32> {
        self.state().slots.get(&slot).copied()
    }

    /// The thread that had this id of the kernel at that time. One that nobody has told of is
    /// known from here on.
    pub(crate) fn at(&self, tid: u32, time_ns: u64) -> u32 {
        let mut state = self.state();
        let former = state
            .former
            .iter()
            .find(|former| former.tid == tid && time_ns <= former.end_ns);
        match former {
            Some(former) => former.thread,
            None => state.entry(tid, || proc::thread_name(tid)).thread,
        }
    }

    /// Every sample taken before has been written.
    pub(crate) fn forget_former(&self, before_ns: u64) {
        let mut state = self.state();
        state.former.retain(|former| former.end_ns >= before_ns);
    }

    /// The number of a kernel thread that lives.
    pub(crate) fn number_of(&self, tid: u32) -> Option<u32> {
        self.state().by_tid.get(&tid).map(|entry| entry.thread)
    }

    /// The sampler will not name this slot again.
    pub(crate) fn slot_closed(&self, slot: SlotId) {
        self.state().slots.remove(&slot);
    }

    /// What the recording must be told.
    pub(crate) fn take_news(&self) -> Vec<ThreadNews> {
        std::mem::take(&mut self.state().news)
    }

    /// A CLR has ended. Its threads are its own no more; those that are left are the host's.
    pub(crate) fn runtime_ended(&self, runtime: u8) {
        let mut state = self.state();
        let state = &mut *state;
        state.by_managed.retain(|(of, _), _| *of != runtime);
        state.names_ahead.retain(|(of, _), _| *of != runtime);
        for entry in state.by_tid.values_mut() {
            entry.managed.retain(|(of, _)| *of != runtime);
        }
    }

    /// Stops sampling every thread until [`Threads::resume`]: no CLR is recorded. A thread that is
    /// still there then stays the same thread of the recording.
    pub(crate) fn rest(&self, sampler: &Sampler) {
        let mut state = self.state();
        let state = &mut *state;
        state.awake = false;
        let now = proc::now_ns();
        for (tid, entry) in &mut state.by_tid {
            if let Some(slot) = entry.slot.take() {
                sampler.unregister(slot);
            }
            entry.armed = false;
            state.news.push(ended(*tid, entry, now));
        }
    }

    /// Threads are sampled again: a CLR is recorded.
    pub(crate) fn resume(&self) {
        self.state().awake = true;
    }

    /// Stops sampling every thread.
    pub(crate) fn end_all(&self, sampler: &Sampler) {
        let mut state = self.state();
        let tids: Vec<u32> = state.by_tid.keys().copied().collect();
        for tid in tids {
            state.end(tid, sampler);
        }
    }
}

/// Gives the thread a slot if it has none, and its stack if that is known by now.
fn arm(sampler: &Sampler, tid: u32, entry: &mut Entry, stack: Option<Range<u64>>) {
    match (entry.slot, stack) {
        (None, stack) => {
            let armed = stack.is_some();
            // No slot left: the thread is not sampled; the scan tries again.
            if let Ok(slot) = sampler.register(tid, stack) {
                entry.slot = Some(slot);
                entry.publish();
                entry.armed = armed;
            }
        }
        (Some(slot), Some(stack)) if !entry.armed => {
            entry.armed = sampler.set_stack(slot, stack).is_ok();
        }
        _ => {}
    }
}
