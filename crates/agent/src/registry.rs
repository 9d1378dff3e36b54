//! The CLRs of the process: which are recorded, which were refused, which have ended.
//!
//! The seeds' article calls it the global profiler manager. It decides once for each CLR, by the
//! policy that the user chose, and it is where a CLR's end meets the agent thread. It knows nothing
//! of code, threads or samples. Invariants: what CLRs that start or end at the same moment find out
//! of each other is decided under one lock, which is never held while a CLR is called; of `first`
//! and `one` at most one CLR is recorded, whatever happens at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use corprof::Runtime;

use crate::clr::Clr;
use crate::config::RuntimePolicy;

/// How long a CLR's shutdown waits for the agent thread to write the rest.
const FAREWELL: Duration = Duration::from_secs(3);

/// A CLR of the process as the agent thread sees it.
#[derive(Clone)]
pub(crate) struct KnownClr {
    pub(crate) index: u8,
    pub(crate) version: String,
    pub(crate) recorded: bool,
    /// The call that was answered with a refusal; empty where none was.
    pub(crate) refused_by: &'static str,
    /// The way to ask it; none once it has ended.
    pub(crate) reach: Option<(Arc<Clr>, Runtime)>,
    /// Its shutdown callback has begun; once acknowledged it must not be called any more.
    pub(crate) ending: bool,
}

#[derive(Default)]
struct State {
    known: Vec<KnownClr>,
    /// The one CLR that `first` and `one` record.
    chosen: Option<u8>,
    /// CLRs whose end the agent thread has taken in.
    acknowledged: Vec<u8>,
}

/// CLRs that are ending.
pub(crate) struct Farewell {
    pub(crate) ending: Vec<u8>,
    /// No other CLR is being recorded.
    pub(crate) is_last: bool,
}

/// All CLRs.
pub(crate) struct Registry {
    policy: RuntimePolicy,
    state: Mutex<State>,
    changed: Condvar,
    /// The agent thread has ended: nobody is recorded or acknowledged any more.
    over: AtomicBool,
}

impl Registry {
    pub(crate) fn new(policy: RuntimePolicy) -> Registry {
        Registry {
            policy,
            state: Mutex::default(),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn is_over(&self) -> bool {
        // Pairs with the store in `end`.
        self.over.load(Ordering::Acquire)
    }

    /// `CreateInstance`: whether this CLR may have callbacks. With `first`, only the first one that
    /// asks; `version` is asked for where one is refused.
    pub(crate) fn claim(&self, index: u8, version: impl FnOnce() -> String) -> bool {
        if self.is_over() {
            return false;
        }
        if self.policy != RuntimePolicy::First {
            return true;
        }
        let mut state = self.state();
        if *state.chosen.get_or_insert(index) == index {
            return true;
        }
        // May take the loader's lock, which somebody who waits for ours may hold.
        drop(state);
        let version = version();
        self.state().known.push(KnownClr {
            index,
            version,
            recorded: false,
            refused_by: "CreateInstance",
            reach: None,
            ending: false,
        });
        false
    }

    /// `Initialize`: lists a CLR, and says whether it is to be recorded. If so, `begin` is run before
    /// anybody else can start or end.
    pub(crate) fn admit(
        &self,
        clr: &Arc<Clr>,
        runtime: Runtime,
        version: String,
        begin: impl FnOnce(),
    ) -> bool {
        let index = clr.index();
        let mut state = self.state();
        let recorded = !self.is_over() && state.chooses(&self.policy, index, &version);
        state.known.push(KnownClr {
            index,
            version,
            recorded,
            refused_by: if recorded { "" } else { "Initialize" },
            reach: recorded.then(|| (Arc::clone(clr), runtime)),
            ending: false,
        });
        if recorded {
            begin();
        }
        recorded
    }

    /// A CLR that was admitted is not recorded after all: it has refused what we need.
    pub(crate) fn withdraw(&self, index: u8) {
        let mut state = self.state();
        if let Some(known) = state.find(index) {
            known.recorded = false;
            known.refused_by = "Initialize";
            known.reach = None;
        }
        if state.chosen == Some(index) {
            state.chosen = None;
        }
    }

    /// The CLRs known by now, in the order of their decisions.
    pub(crate) fn known(&self) -> Vec<KnownClr> {
        self.state().known.clone()
    }

    /// CLRs that can still be called.
    pub(crate) fn running(&self) -> Vec<u8> {
        let state = self.state();
        let running = state.known.iter().filter(|clr| clr.reach.is_some());
        running.map(|clr| clr.index).collect()
    }

    /// A CLR ends: waits until the agent thread, woken by `wake`, will not call it again. Bounded,
    /// as a program's end must not hang.
    pub(crate) fn ends(&self, index: u8, wake: impl FnOnce()) {
        let mut state = self.state();
        match state.find(index) {
            Some(known) if known.reach.is_some() => known.ending = true,
            _ => return,
        }
        wake();
        let waited = self.changed.wait_timeout_while(state, FAREWELL, |state| {
            !state.acknowledged.contains(&index) && !self.is_over()
        });
        drop(waited);
    }

    /// The CLRs that wait in [`Registry::ends`]. If nobody is recorded without them, `rest` is run
    /// before another CLR can start.
    pub(crate) fn farewell(&self, rest: impl FnOnce()) -> Option<Farewell> {
        let state = self.state();
        let reached = || state.known.iter().filter(|clr| clr.reach.is_some());
        let ending: Vec<u8> = reached()
            .filter(|clr| clr.ending)
            .map(|clr| clr.index)
            .collect();
        if ending.is_empty() {
            return None;
        }
        let is_last = reached().count() == ending.len();
        if is_last {
            rest();
        }
        Some(Farewell { ending, is_last })
    }

    /// The agent thread will not call this CLR again.
    pub(crate) fn acknowledge(&self, index: u8) {
        let mut state = self.state();
        if let Some(known) = state.find(index) {
            known.reach = None;
        }
        state.acknowledged.push(index);
        self.changed.notify_all();
    }

    /// The agent thread has ended.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
        // Whoever looked before the store and waits now holds the lock no more.
        let _state = self.state();
        self.changed.notify_all();
    }
}

impl State {
    fn find(&mut self, index: u8) -> Option<&mut KnownClr> {
        self.known.iter_mut().find(|clr| clr.index == index)
    }

    fn chooses(&mut self, policy: &RuntimePolicy, index: u8, version: &str) -> bool {
        match policy {
            RuntimePolicy::All => true,
            RuntimePolicy::Many(_) => policy.names(version),
            // Chosen by `claim`.
            RuntimePolicy::First => self.chosen.is_none_or(|chosen| chosen == index),
            RuntimePolicy::One(_) => {
                policy.names(version) && *self.chosen.get_or_insert(index) == index
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_claims_at_once_first_takes_one() {
        let registry = Registry::new(RuntimePolicy::First);
        let claimed: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16u8)
                .map(|index| {
                    let registry = &registry;
                    scope.spawn(move || registry.claim(index, || index.to_string()))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| usize::from(thread.join().unwrap()))
                .sum()
        });
        assert_eq!(claimed, 1);
        let refused = registry.known();
        assert_eq!(refused.len(), 15);
        assert!(refused.iter().all(|clr| {
            clr.version == clr.index.to_string() && clr.refused_by == "CreateInstance"
        }));
    }

    #[test]
    fn one_takes_exactly_one_and_many_all_that_it_names() {
        for (policy, versions, chosen) in [
            ("one=8", &["3.1.23", "8.0.4", "8.0.10"][..], &[1][..]),
            ("one=9", &["3.1.23", "8.0.4"], &[]),
            (
                "many=3.1,8",
                &["3.1.23", "10.0.1", "8.0.4", "8.0.10"],
                &[0, 2, 3],
            ),
            ("first", &["3.1.23", "8.0.4"], &[0]),
            ("all", &["3.1.23", "8.0.4"], &[0, 1]),
        ] {
            let registry = Registry::new(RuntimePolicy::parse(policy));
            let found: Vec<u8> = (0u8..)
                .zip(versions)
                .filter(|(index, version)| {
                    registry.claim(*index, String::new)
                        && registry.state().chooses(&registry.policy, *index, version)
                })
                .map(|(index, _)| index)
                .collect();
            assert_eq!(found, chosen, "{policy}");
        }
    }

    #[test]
    fn after_the_end_nobody_is_taken_and_nobody_waits() {
        let registry = Registry::new(RuntimePolicy::All);
        registry.end();
        assert!(!registry.claim(0, String::new));
        registry.ends(0, || unreachable!("nobody to wake"));
        assert!(registry.farewell(|| unreachable!("nobody rests")).is_none());
    }
}
