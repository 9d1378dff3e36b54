//! Accounts of CPU time that no sample represents, by thread and reason.
//!
//! Input: the CPU time of each thread from the kernel's clocks, and the time that its ticks have
//! reported. Output: the difference, with the reason (signal blocked, thread not found in time, …).
//! The choice of sampled threads is made elsewhere (`threads`). Invariant: the clocks of all
//! running threads, of ended threads and of the agent thread add up to the process's CPU time. The
//! agent thread's time is charged to no thread. A thread's difference is between two exact numbers,
//! so its error is at most the unfinished interval. A thread that blocked the signal for a while
//! owes nothing once its ticks have arrived.

use std::borrow::Cow;

use sampler::{Error, HoldReason, Sampler, Unsent};

use crate::base::numbers::NumberMap;

/// Reason why no sample represents some CPU time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnattributedReason {
    /// The thread blocks the signal.
    Blocks,
    /// The sampler could not register the thread.
    Refused(Error),
    /// The kernel refuses to send signals.
    Unsent(Unsent),
    /// The program has installed a handler of its own for the signal.
    Taken,
    /// The thread's stack may have no room for a signal frame.
    HoldReason(HoldReason),
    /// Used before the thread was found and its stack known.
    Early,
    /// Used by threads after they were last listed, or by threads that never were.
    Ended,
    /// Used by threads that cannot be listed.
    Unlisted,
    /// Used by sampled threads that ended before a tick, beyond what ticks of other such threads
    /// represent.
    Short,
    /// The thread should have been sampled.
    Unknown,
}

impl UnattributedReason {
    /// Returns the text for reports.
    pub fn text(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            UnattributedReason::Blocks => "threads that block our signal",
            UnattributedReason::Refused(error) => {
                return format!("threads that could not be registered: {error}").into();
            }
            UnattributedReason::Unsent(unsent) if unsent.queue == libc::EAGAIN => {
                "threads whose signals cannot be queued (ulimit -i is used up)"
            }
            UnattributedReason::Unsent(unsent) => {
                return format!(
                    "threads that signals cannot be sent to: {}",
                    unsent_reason(unsent)
                )
                .into();
            }
            UnattributedReason::Taken | UnattributedReason::HoldReason(HoldReason::Taken) => {
                "signal taken by the program"
            }
            UnattributedReason::HoldReason(HoldReason::Alternate) => {
                "threads of the runtime, whose signal another library put on the alternate stack"
            }
            UnattributedReason::HoldReason(HoldReason::Fault) => {
                "threads of the runtime, whose fault handler lets our signal in"
            }
            UnattributedReason::HoldReason(HoldReason::Strayed) => {
                "threads that left their stack for a coroutine's and have no alternate stack"
            }
            UnattributedReason::Early => "threads before they were sampled",
            UnattributedReason::Ended => "threads that ended before they were sampled",
            UnattributedReason::Unlisted => {
                "threads that cannot be listed: no descriptor is left (ulimit -n is used up)"
            }
            UnattributedReason::Short => "threads that ended between two ticks",
            UnattributedReason::Unknown => "unknown",
        })
    }
}

/// Returns the reason why a signal cannot be sent.
pub fn unsent_reason(unsent: Unsent) -> String {
    let Unsent { queue, timer } = unsent;
    format!("rt_tgsigqueueinfo: errno {queue}; timer_create: errno {timer}")
}

/// CPU time of one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unattributed {
    /// Reason.
    pub reason: UnattributedReason,
    /// Number of threads; 0 if unknown.
    pub threads: u64,
    /// CPU time.
    pub cpu_ns: u64,
}

/// The contents of a report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// CPU time that samples should represent.
    pub due_ns: u64,
    /// CPU time that no sample represents, so far.
    pub claims: Vec<Unattributed>,
}

/// Maximum sampling error of one thread. A smaller difference is not reported.
pub const LEAST_NS: u64 = 30_000_000;

/// A thread's debt: CPU time used and not reported by ticks. Negative if a tick stood for more than
/// was used since the last one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// Its clock when the account was opened.
    base_ns: u64,
    /// Its clock at the last update.
    clock_ns: u64,
    /// The time that its ticks had reported at the last update.
    reported_ns: u64,
    owed_ns: i64,
    /// Whether it was found to block the signal.
    pub blocks: bool,
    /// Whether [`Account::is_newly_blocked`] has said so.
    is_noted: bool,
    /// Set while it is not signalled, or if it was not for some time.
    pub held: Option<HoldReason>,
    /// The sampler's reason for not registering it.
    pub refused: Option<Error>,
    /// Time of the last read of its signal mask, CLOCK_MONOTONIC.
    pub looked_ns: u64,
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

impl Account {
    /// Opens the account of a thread whose clock is at `clock_ns`.
    pub fn opened(clock_ns: u64) -> Account {
        Account {
            base_ns: clock_ns,
            clock_ns,
            ..Account::default()
        }
    }

    /// Updates the account with the thread's clock (`None`: it has ended) and the time that its
    /// ticks have reported. Returns the CPU time used since the last update.
    pub fn settle(&mut self, clock_ns: Option<u64>, reported_ns: u64) -> u64 {
        let clock_ns = clock_ns.unwrap_or(self.clock_ns).max(self.clock_ns);
        let used = clock_ns - self.clock_ns;
        self.clock_ns = clock_ns;
        let reported = reported_ns.saturating_sub(self.reported_ns);
        self.reported_ns = reported_ns;
        let owed = self.owed_ns.saturating_add(signed(used));
        self.owed_ns = owed.saturating_sub(signed(reported));
        used
    }

    /// Returns its debt.
    pub fn owed_ns(&self) -> u64 {
        u64::try_from(self.owed_ns).unwrap_or(0)
    }

    /// CPU time since the account was opened.
    pub fn used_ns(&self) -> u64 {
        self.clock_ns - self.base_ns
    }

    /// Whether it owes more than the error of sampling because it blocks the signal. Once.
    pub fn is_newly_blocked(&mut self, armed: bool, sampler: &Sampler) -> bool {
        let is_blocked = self.blocks
            && self.owed_ns() >= LEAST_NS
            && self.reason(armed, sampler) == UnattributedReason::Blocks;
        is_blocked && !std::mem::replace(&mut self.is_noted, true)
    }

    fn reason(&self, armed: bool, sampler: &Sampler) -> UnattributedReason {
        match (self.refused, sampler.unsent()) {
            (Some(error), _) if !armed => UnattributedReason::Refused(error),
            _ if !sampler.is_running() => UnattributedReason::Taken,
            _ if let Some(held) = self.held => UnattributedReason::HoldReason(held),
            _ if self.blocks => UnattributedReason::Blocks,
            (_, Some(unsent)) => UnattributedReason::Unsent(unsent),
            _ if !armed => UnattributedReason::Early,
            _ => UnattributedReason::Unknown,
        }
    }
}

/// The accounts of a session. Nothing is counted while they are closed.
#[derive(Debug, Default)]
pub struct Accounts {
    /// The process's clock when they were opened.
    open: Option<u64>,
    /// Start values of the clocks of threads without an account, by kernel id.
    bases: NumberMap<u32, u64>,
    /// Time due in completed periods.
    due_ns: u64,
    /// The settled claims.
    settled: Vec<Unattributed>,
    /// CPU time of threads with settled accounts, up to the last read of their clocks.
    ended_ns: u64,
    /// Sum of the debts of sampled threads at their ends, each less than [`limit`]. About zero.
    /// Negative if ticks arrived after the last read of the clock, or stood for threads without an
    /// account. Positive if ticks missed threads.
    ends_ns: i64,
    ends: u64,
    report: Report,
}

fn add(claims: &mut Vec<Unattributed>, reason: UnattributedReason, threads: u64, cpu_ns: u64) {
    if cpu_ns == 0 {
        return;
    }
    match claims.iter_mut().find(|known| known.reason == reason) {
        Some(known) => {
            known.threads += threads;
            known.cpu_ns = known.cpu_ns.saturating_add(cpu_ns);
        }
        None => claims.push(Unattributed {
            reason,
            threads,
            cpu_ns,
        }),
    }
}

impl Accounts {
    /// Whether anything is counted.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Opens the accounts with the present clocks of the process and of all its threads.
    pub fn open(&mut self, process_ns: u64, clocks: &[(u32, u64)]) {
        self.open = Some(process_ns);
        self.bases = clocks.iter().copied().collect();
        self.ended_ns = 0;
        (self.ends_ns, self.ends) = (0, 0);
    }

    /// Opens an account for a thread.
    pub fn account(&mut self, tid: u32) -> Account {
        Account::opened(self.bases.remove(&tid).unwrap_or(0))
    }

    /// Notes that the thread is sampled from here on.
    pub fn armed(&mut self, account: &mut Account, clock_ns: Option<u64>, reported_ns: u64) {
        if !self.is_open() {
            return;
        }
        account.settle(clock_ns, 0);
        let reason = if account.blocks {
            UnattributedReason::Blocks
        } else {
            UnattributedReason::Early
        };
        add(&mut self.settled, reason, 1, account.owed_ns());
        (account.reported_ns, account.owed_ns) = (reported_ns, 0);
    }

    /// Handles a thread of a crowd (see `threads::short_lived`) that is sampled for itself from
    /// here on. Its debt or surplus so far is charged to the crowd. Settle the account before.
    pub fn promoted(&mut self, account: &mut Account) {
        if !self.is_open() {
            return;
        }
        self.ends_ns = self.ends_ns.saturating_add(account.owed_ns);
        self.ends += 1;
        account.owed_ns = 0;
    }

    /// Notes that the thread is not sampled from here on. Settle the account before.
    pub fn close_account(&mut self, account: &mut Account, armed: bool, sampler: &Sampler) {
        if !self.is_open() {
            return;
        }
        let owed = account.owed_ns();
        if armed && owed < limit(sampler) {
            self.ends_ns = self.ends_ns.saturating_add(account.owed_ns);
            self.ends += 1;
        } else {
            add(&mut self.settled, account.reason(armed, sampler), 1, owed);
        }
        (account.reported_ns, account.owed_ns) = (0, 0);
    }

    /// Closes the account of a thread that will not be updated again. If its clock still runs, the
    /// clock's value is kept in `bases`.
    pub fn end_account(&mut self, tid: u32, account: &Account, clock_ns: Option<u64>) {
        if !self.is_open() {
            return;
        }
        self.ended_ns = self.ended_ns.saturating_add(account.used_ns());
        if let Some(clock_ns) = clock_ns {
            self.bases.insert(tid, clock_ns);
        }
    }

    /// Makes the report, just after the clocks of the process and of all its threads were read.
    /// `accounts` are the settled accounts of the threads that have one, with whether the thread is
    /// armed. `others` is the reason for threads whose clocks no longer exist.
    pub fn make_report<'a>(
        &mut self,
        process_ns: u64,
        agent_tid: u32,
        clocks: &[(u32, u64)],
        accounts: impl Iterator<Item = (u32, &'a Account, bool)>,
        (sampler, others): (&Sampler, UnattributedReason),
    ) {
        let Some(opened_ns) = self.open else { return };
        let used_ns = process_ns.saturating_sub(opened_ns);
        let mut claims = self.settled.clone();
        let mut unattributed: NumberMap<u32, u64> = clocks.iter().copied().collect();
        let mut live_ns = 0u64;
        for (tid, account, armed) in accounts {
            unattributed.remove(&tid);
            live_ns = live_ns.saturating_add(account.used_ns());
            let owed = account.owed_ns();
            if !armed || owed >= limit(sampler) {
                add(&mut claims, account.reason(armed, sampler), 1, owed);
            }
        }
        let bases = &self.bases;
        let since =
            |(tid, clock): (&u32, &u64)| clock.saturating_sub(bases.get(tid).copied().unwrap_or(0));
        let agent_ns = unattributed.remove_entry(&agent_tid);
        let agent_ns = agent_ns.map_or(0, |(tid, clock)| since((&tid, &clock)));
        let strange_ns: u64 = unattributed.iter().map(since).sum();
        let threads = unattributed.len() as u64;
        add(&mut claims, UnattributedReason::Early, threads, strange_ns);
        self.bases
            .retain(|tid, _| unattributed.contains_key(tid) || *tid == agent_tid);
        // The rest of the process's clock was used by threads that have ended, after the last read
        // of their clocks.
        let known_ns = live_ns + agent_ns + strange_ns + self.ended_ns;
        let overreported_ns = self.ends_ns.min(0);
        let unread = signed(used_ns.saturating_sub(known_ns)).saturating_add(overreported_ns);
        let reason = if sampler.is_running() {
            others
        } else {
            UnattributedReason::Taken
        };
        let cpu_ns = u64::try_from(unread).unwrap_or(0);
        add(&mut claims, reason, 0, cpu_ns);
        let cpu_ns = u64::try_from(self.ends_ns).unwrap_or(0);
        if cpu_ns >= limit(sampler) {
            add(&mut claims, UnattributedReason::Short, self.ends, cpu_ns);
        }
        self.report = Report {
            due_ns: self.due_ns + used_ns.saturating_sub(agent_ns),
            claims,
        };
    }

    /// Closes the accounts. The claims of the last report become settled.
    pub fn close(&mut self) {
        if self.open.take().is_some() {
            self.due_ns = self.report.due_ns;
            self.settled = self.report.claims.clone();
        }
    }

    /// Returns the last report, or `None` if nothing was counted.
    pub fn report(&self) -> Option<&Report> {
        (self.is_open() || self.due_ns > 0).then_some(&self.report)
    }
}

/// Returns the maximum debt of a sampled thread: some intervals.
pub fn limit(sampler: &Sampler) -> u64 {
    sampler.interval_ns().saturating_mul(3).max(LEAST_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_owes_what_its_ticks_have_not_reported() {
        let mut account = Account::opened(1_000);
        assert_eq!(account.settle(Some(1_500), 0), 500);
        assert_eq!((account.owed_ns(), account.used_ns()), (500, 500));
        // It unblocks the signal: the next tick reports all of the time, and a bit more.
        assert_eq!(account.settle(Some(1_600), 620), 100);
        assert_eq!(account.owed_ns(), 0);
        account.settle(Some(1_700), 620);
        assert_eq!(account.owed_ns(), 80);
        // It has ended: the last read of its clock counts.
        assert_eq!(account.settle(None, 700), 0);
        assert_eq!((account.owed_ns(), account.used_ns()), (0, 700));
    }

    #[test]
    fn what_a_thread_used_before_the_accounts_were_opened_is_not_counted() {
        let mut accounts = Accounts::default();
        assert!(accounts.report().is_none());
        accounts.open(9_000, &[(7, 4_000)]);
        let mut account = accounts.account(7);
        account.settle(Some(4_100), 0);
        assert_eq!(account.owed_ns(), 100);
        // Used once: a later thread with the same id is another one.
        assert_eq!(accounts.account(7).used_ns(), 0);
        accounts.armed(&mut account, Some(4_250), 0);
        let early = Unattributed {
            reason: UnattributedReason::Early,
            threads: 1,
            cpu_ns: 250,
        };
        assert_eq!(accounts.settled, [early]);
        assert_eq!(account.owed_ns(), 0);
    }

    #[test]
    fn only_time_that_no_clock_shows_is_due_to_threads_that_ended() {
        const MS: u64 = 1_000_000;
        const AGENT: u32 = 9;
        let (sampler, _reader) = crate::program::tests::sampler();
        let mut accounts = Accounts::default();
        accounts.open(50 * MS, &[(1, 0), (2, 0), (AGENT, 0)]);
        let mut ended = accounts.account(1);
        ended.settle(Some(400 * MS), 400 * MS);
        accounts.end_account(1, &ended, None);
        let mut live = accounts.account(2);
        live.settle(Some(300 * MS), 300 * MS);
        // Of 900 ms the agent has used 100, and the clock of another 100 no longer exists.
        let clocks = [(2, 300 * MS), (AGENT, 100 * MS)];
        let known = [(2, &live, true)].into_iter();
        let others = (sampler, UnattributedReason::Ended);
        accounts.make_report(950 * MS, AGENT, &clocks, known, others);
        let report = accounts.report().unwrap();
        assert_eq!(report.due_ns, 800 * MS);
        let unread = Unattributed {
            reason: UnattributedReason::Ended,
            threads: 0,
            cpu_ns: 100 * MS,
        };
        assert_eq!(report.claims, [unread]);
        sampler.stop();
    }
}
