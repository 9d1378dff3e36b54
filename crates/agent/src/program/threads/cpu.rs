//! Compares each thread's CPU time with what its ticks have reported: [`Threads::settle_accounts`].
//!
//! Reads clocks and signal masks from the kernel. `accounts` evaluates them. Invariant: the lock is
//! not held during these reads.

use std::sync::{Arc, MutexGuard};

use sampler::{Sampler, SlotId};

use super::{ThreadTable, Threads};
use crate::base::proc;
use crate::program::accounts::{self, Report, UnattributedReason};

/// Minimum time between two reads of a thread's signal mask: less than between two reports.
const LOOK_NS: u64 = 500_000_000;

/// Maximum number of signal masks read for one report; each is a file.
pub(super) const MOST_SUSPECTS: usize = 64;

/// Returns the clocks of these threads and of the calling one, or of all threads if `ids` is empty.
/// Listing the threads costs more than reading all clocks.
fn clocks(ids: &mut Vec<u32>) -> Vec<(u32, u64)> {
    if ids.is_empty() {
        proc::thread_ids(ids);
    } else if !ids.contains(&proc::own_tid()) {
        ids.push(proc::own_tid());
    }
    let clock = |tid: &u32| Some((*tid, proc::thread_cpu_ns(*tid)?));
    ids.iter().filter_map(clock).collect()
}

/// A thread that blocks the signal by which it is sampled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockingThread {
    /// Kernel id.
    pub tid: u32,
    /// Name, if it has one.
    pub name: Arc<str>,
    /// The signal.
    pub signal: i32,
}

impl BlockingThread {
    /// Returns the note for users.
    pub fn note(&self) -> String {
        let name = match &*self.name {
            "" => String::new(),
            name => format!(" \"{name}\""),
        };
        let BlockingThread { tid, signal, .. } = self;
        format!("thread {tid}{name} blocks signal {signal}: it is not sampled while it does")
    }
}

/// Returns the signal by which a thread is sampled.
pub(super) fn signal_of(slot: Option<SlotId>, sampler: &Sampler) -> i32 {
    slot.map_or_else(|| sampler.signal(), |slot| sampler.signal_of(slot))
}

impl Threads {
    /// Opens the accounts of CPU time, as a thread is about to be sampled.
    pub(super) fn open_accounts<'a>(
        &'a self,
        state: MutexGuard<'a, ThreadTable>,
    ) -> MutexGuard<'a, ThreadTable> {
        drop(state);
        let mut ids = Vec::new();
        let clocks = clocks(&mut ids);
        let process_ns = proc::process_cpu_ns();
        let mut state = self.state();
        let all = &mut *state;
        if !all.accounts.is_open() {
            all.accounts.open(process_ns, &clocks);
            for (tid, entry) in &mut all.by_tid {
                entry.account = all.accounts.account(*tid);
            }
        }
        state
    }

    /// Compares the CPU time of threads with what their ticks have reported. Of threads with a
    /// large difference it checks whether they block the signal. `ids` is the result of the last
    /// scan, or empty. Agent thread only. Does nothing if no thread is sampled by its CPU time.
    pub fn settle_accounts(&self, ids: &mut Vec<u32>) {
        let Some(sampler) = self.sampler() else {
            return;
        };
        if !self.state().accounts.is_open() {
            return;
        }
        let clocks = clocks(ids);
        let process_ns = proc::process_cpu_ns();
        let (now, limit) = (proc::now_ns(), accounts::limit(sampler));
        let mut suspects = Vec::new();
        let mut state = self.state();
        state.some_went |= clocks.len() < ids.len();
        for (tid, clock) in &clocks {
            let Some(entry) = state.by_tid.get_mut(tid) else {
                continue;
            };
            let reported = entry.slot.map_or(0, |slot| sampler.reported_ns(slot));
            let held = entry.slot.and_then(|slot| sampler.held(slot));
            entry.account.held = held.or(entry.account.held);
            let used = entry.account.settle(Some(*clock), reported);
            entry.ran |= used > 0;
            let owes = entry.account.owed_ns() >= if entry.armed { limit } else { 1 };
            let is_due = now.saturating_sub(entry.account.looked_ns) >= LOOK_NS;
            if owes && used > 0 && is_due && suspects.len() < MOST_SUSPECTS {
                suspects.push(*tid);
            }
        }
        drop(state);
        self.check_signal_masks(&suspects, sampler);
        let mut state = self.state();
        let all = &mut *state;
        for (tid, entry) in &mut all.by_tid {
            if entry.account.is_newly_blocked(entry.armed, sampler) {
                all.blocking.push(BlockingThread {
                    tid: *tid,
                    name: Arc::clone(&entry.name),
                    signal: signal_of(entry.slot, sampler),
                });
            }
        }
        let accounts = all.by_tid.iter();
        let accounts = accounts.map(|(tid, entry)| (*tid, &entry.account, entry.armed));
        let agent = proc::own_tid();
        let others = if all.cannot_look {
            UnattributedReason::Unlisted
        } else {
            UnattributedReason::Ended
        };
        all.accounts
            .make_report(process_ns, agent, &clocks, accounts, (sampler, others));
    }

    /// Takes the threads that were found to block the signal since the last call.
    pub fn take_blocking(&self) -> Vec<BlockingThread> {
        std::mem::take(&mut self.state().blocking)
    }

    /// Checks which of these threads block the signal.
    pub(super) fn check_signal_masks(&self, suspects: &[u32], sampler: &Sampler) {
        let now = proc::now_ns();
        for &tid in suspects {
            let blocks = self.blocks(tid, sampler);
            if let Some(entry) = self.state().by_tid.get_mut(&tid) {
                entry.account.looked_ns = now;
                entry.account.blocks |= blocks;
            }
        }
    }

    /// Returns the findings of the session's last [`Threads::settle_accounts`].
    pub fn report(&self) -> Option<Report> {
        self.state().accounts.report().cloned()
    }
}
