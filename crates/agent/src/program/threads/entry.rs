//! The table entry of each thread, and operations on it.
//!
//! The operations run under the lock of [`Threads`](super::Threads), so none calls a CLR or reads a
//! file.

use std::collections::hash_map::Entry as Slot;
use std::ops::Range;
use std::sync::Arc;

use sampler::{Route, Sampler, SlotId};
use smallvec::SmallVec;

use super::cpu::BlockingThread;
use super::short_lived::ShortLivedSampling;
use super::{StartedThread, ThreadChange};
use crate::base::numbers::NumberMap;
use crate::base::proc;
use crate::model::ManagedThread;
use crate::program::accounts::{Account, Accounts};
use crate::program::hijacks::{self, HijackPlaces};

/// A managed thread that runs on a kernel thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct ManagedRun {
    pub(super) id: ManagedThread,
    /// Its runtime's index in the table of hijacks.
    pub(super) place: Option<usize>,
}

#[derive(Debug)]
pub(super) struct ThreadEntry {
    pub(super) thread: u32,
    pub(super) slot: Option<SlotId>,
    /// Signal by which it is sampled, if it has a slot.
    pub(super) route: Route,
    /// Another thread is calling the sampler for it, outside the lock.
    pub(super) busy: bool,
    /// Managed threads that run on it: one for each CLR it has entered, mostly a single one.
    pub(super) managed: SmallVec<[ManagedRun; 1]>,
    pub(super) was_managed: bool,
    /// Addresses at which their runtimes keep replaced return addresses.
    pub(super) hijacks: HijackPlaces,
    /// The name is the CLR's, which takes precedence over the kernel's, truncated at 15 bytes.
    pub(super) named_by_clr: bool,
    pub(super) name: Arc<str>,
    /// Whether its stack is known, so that it is sampled.
    pub(super) armed: bool,
    /// Found in the last scan of /proc/self/task.
    pub(super) alive: bool,
    /// Whether it has used CPU time since its name was last read.
    pub(super) ran: bool,
    /// Number of threads for which its ticks stand while it is young. 0: other threads' ticks stand
    /// for it.
    pub(super) stands_for: u32,
    /// Whether a runtime has reported it and no scan has found it since.
    pub(super) is_young: bool,
    /// CPU time that no sample stands for.
    pub(super) account: Account,
}

#[derive(Debug, Default)]
pub(super) struct ThreadTable {
    pub(super) by_tid: NumberMap<u32, ThreadEntry>,
    pub(super) by_managed: NumberMap<ManagedThread, u32>,
    /// Names given before the thread was started, as `new Thread(…) { Name = … }` does.
    pub(super) names_ahead: NumberMap<ManagedThread, String>,
    /// The last kernel name of a thread. Most threads inherit the name of their creator.
    pub(super) last_name: Arc<str>,
    /// Queued changes. Filled only in a session.
    pub(super) news: Vec<ThreadChange>,
    /// Slot to thread number, until the sampler has closed the slot.
    pub(super) slots: NumberMap<SlotId, u32>,
    pub(super) next_thread: u32,
    /// Threads found to block the signal. Taken with each report.
    pub(super) blocking: Vec<BlockingThread>,
    /// Ended threads of a session, kept for their samples that are not written yet.
    pub(super) former: Vec<FormerThread>,
    /// Set for a session.
    pub(super) sampler: Option<&'static Sampler>,
    /// The last thread whose name a scan has read again.
    pub(super) last_named: u32,
    /// Whether some thread has no slot, or a slot and no known stack.
    pub(super) waiting: bool,
    /// Whether a thread that the last scan found has no clock any more.
    pub(super) some_went: bool,
    /// The kernel did not list the threads at the last scan.
    pub(super) cannot_look: bool,
    /// Set for a session.
    pub(super) accounts: Accounts,
    pub(super) short_lived: ShortLivedSampling,
}

#[derive(Debug)]
pub(super) struct FormerThread {
    pub(super) tid: u32,
    pub(super) thread: u32,
    pub(super) end_ns: u64,
}

impl ThreadTable {
    /// Interns a kernel name. Mostly it equals the name of the last thread.
    pub(super) fn shared(&mut self, name: &str) -> Arc<str> {
        if *self.last_name != *name {
            self.last_name = name.into();
        }
        Arc::clone(&self.last_name)
    }

    /// Registers a managed thread on its kernel thread. What is known of the stack depends on
    /// whether the callback ran on the thread itself.
    pub(super) fn managed_started(
        &mut self,
        started: StartedThread,
        is_session: bool,
    ) -> (u32, Option<Range<u64>>, bool) {
        let StartedThread {
            managed,
            tid,
            own,
            hijack,
            stands_for,
        } = started;
        // In theory a managed thread may move to another kernel thread. The old entry then stays as
        // a native one until a scan of /proc finds it ended.
        if let Some(old) = self.by_managed.insert(managed, tid)
            && old != tid
            && let Some(entry) = self.by_tid.get_mut(&old)
        {
            entry.leave(managed);
        }
        let name = self.names_ahead.remove(&managed);
        let own_name = own.as_ref().and_then(|own| own.name);
        let own_name = own_name.map(|name| self.shared(&name.text()));
        let (entry, is_new) = self.entry(tid);
        entry.alive = true;
        if let Some(name) = name {
            entry.name = name.into();
            entry.named_by_clr = true;
        } else if let Some(name) = own_name
            && !entry.named_by_clr
        {
            entry.name = name;
        }
        if is_new {
            entry.stands_for = stands_for;
            entry.is_young = true;
        }
        entry.leave(managed);
        entry.was_managed = true;
        entry.managed.push(ManagedRun {
            id: managed,
            place: hijack.map(|(place, _)| place),
        });
        if let Some((place, address)) = hijack
            && let Some(place) = entry.hijacks.get_mut(place)
        {
            *place = address;
        }
        entry.publish();
        let news = is_session.then(|| entry.named(tid));
        self.news.extend(news);
        let is_own = own.is_some();
        (tid, own.and_then(|own| own.stack), is_own)
    }

    /// Promotes threads that were left out of a crowd: they are sampled as others from here on.
    pub(super) fn promote_waiting(&mut self, is_session: bool) {
        for started in self.short_lived.take_promoted() {
            self.managed_started(started, is_session);
        }
    }

    /// Returns the entry of a thread, and whether it is new.
    pub(super) fn entry(&mut self, tid: u32) -> (&mut ThreadEntry, bool) {
        match self.by_tid.entry(tid) {
            Slot::Occupied(known) => (known.into_mut(), false),
            Slot::Vacant(free) => {
                let thread = self.next_thread;
                self.next_thread = self.next_thread.wrapping_add(1);
                let entry = ThreadEntry {
                    thread,
                    slot: None,
                    route: Route::Own,
                    busy: false,
                    managed: SmallVec::new(),
                    was_managed: false,
                    hijacks: HijackPlaces::default(),
                    named_by_clr: false,
                    name: Arc::default(),
                    armed: false,
                    alive: true,
                    ran: false,
                    stands_for: 1,
                    is_young: false,
                    account: self.accounts.account(tid),
                };
                (free.insert(entry), true)
            }
        }
    }

    /// Sets the kernel's name of a thread. Queues a change if the name differs or the thread
    /// `is_new`.
    pub(super) fn rename(
        &mut self,
        tid: u32,
        is_new: bool,
        name: Option<String>,
        is_session: bool,
    ) {
        let Some(entry) = self.by_tid.get_mut(&tid) else {
            return;
        };
        let renamed = name.filter(|name| !entry.named_by_clr && *entry.name != **name);
        if !is_new && renamed.is_none() {
            return;
        }
        if let Some(renamed) = renamed {
            entry.name = renamed.into();
        }
        let news = is_session.then(|| entry.named(tid));
        self.news.extend(news);
    }

    /// Stops sampling a thread, which may continue to run. With `news`, its end is queued. Returns
    /// its CPU clock.
    pub(super) fn release(&mut self, tid: u32, end_ns: u64, news: bool) -> Option<u64> {
        let entry = self.by_tid.get_mut(&tid)?;
        let slot = entry.slot.take();
        let own_tid = proc::own_tid();
        let cpu_ns = if tid == own_tid {
            Some(proc::own_cpu_ns())
        } else {
            proc::thread_cpu_ns(tid)
        };
        if let Some(sampler) = self.sampler {
            let reported = slot.map_or(0, |slot| sampler.reported_ns(slot));
            entry.account.settle(cpu_ns, reported);
            let account = &mut entry.account;
            self.accounts.close_account(account, entry.armed, sampler);
        }
        if std::mem::take(&mut entry.is_young)
            && let Some(cpu_ns) = cpu_ns
        {
            self.short_lived.record_lifetime(cpu_ns);
        }
        entry.stands_for = 1;
        if let Some(slot) = slot {
            hijacks::publish(slot, &HijackPlaces::default());
            if let Some(sampler) = self.sampler
                && sampler.unregister_by(slot, own_tid)
            {
                self.slots.remove(&slot);
            }
        }
        entry.armed = false;
        if news {
            self.news.push(ThreadChange::Ended {
                thread: entry.thread,
                managed: entry.was_managed,
                time_ns: end_ns,
                cpu_ns: cpu_ns.unwrap_or(0),
            });
        }
        cpu_ns
    }

    pub(super) fn end(&mut self, tid: u32, is_session: bool, is_recording: bool) {
        let end_ns = proc::now_ns();
        let cpu_ns = self.release(tid, end_ns, is_recording);
        let Some(entry) = self.by_tid.remove(&tid) else {
            return;
        };
        self.accounts.end_account(tid, &entry.account, cpu_ns);
        for managed in &entry.managed {
            self.by_managed.remove(&managed.id);
        }
        if is_session {
            self.former.push(FormerThread {
                tid,
                thread: entry.thread,
                end_ns,
            });
        }
    }
}

impl ThreadEntry {
    /// Removes a managed thread from this kernel thread. Its thread object is not read from now on.
    pub(super) fn leave(&mut self, id: ManagedThread) {
        let Some(at) = self.managed.iter().position(|managed| managed.id == id) else {
            return;
        };
        let left = self.managed.swap_remove(at);
        if let Some(place) = left.place.and_then(|place| self.hijacks.get_mut(place)) {
            *place = 0;
        }
        self.publish();
    }

    /// Publishes to the handler the addresses at which this thread's runtimes keep replaced return
    /// addresses.
    pub(super) fn publish(&self) {
        if let Some(slot) = self.slot {
            hijacks::publish(slot, &self.hijacks);
        }
    }

    pub(super) fn named(&self, tid: u32) -> ThreadChange {
        ThreadChange::Named {
            thread: self.thread,
            tid,
            name: Arc::clone(&self.name),
            managed: !self.managed.is_empty(),
            time_ns: proc::now_ns(),
        }
    }
}
