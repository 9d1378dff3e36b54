//! The list of the process's CLRs: which are recorded, which were refused, which have ended.
//!
//! It decides once for each CLR, by the user's policy, and hands a CLR's end over to the agent
//! thread. (The project's seed articles call it the global profiler manager.) Code, threads and
//! samples are in other modules.
//!
//! Invariants: CLRs that start or end concurrently are decided under one lock, which is never held
//! over a call into a CLR. Of the policies `first` and `one` at most one CLR is recorded, under any
//! concurrency. A number belongs to one CLR for a whole session and is reused afterwards; so is a
//! place in the table of hijacks after the CLR's end. Neither runs out, however many CLRs start and
//! end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use control::LoadMode;
use corprof::Runtime;
use stackwalk::HIJACKS;

use super::Clr;
use crate::model::phase::PhaseReader;
use crate::model::{Phase, RuntimePolicy};

/// Time limit for which a CLR's shutdown waits until the agent thread has written the rest.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// A CLR of the process, for the agent thread.
#[derive(Clone, Debug)]
pub struct KnownClr {
    /// [`Clr::number`].
    pub number: u8,
    /// Its version, such as `8.0.4`.
    pub version: String,
    /// Whether its threads are sampled and its events written.
    pub recorded: bool,
    /// The call that refused it; empty if none did.
    pub refused_by: &'static str,
    /// Handle for calls into it; `None` once it has ended.
    pub reach: Option<(Arc<Clr>, Runtime)>,
    /// Whether its shutdown callback has begun. After the acknowledgement it must not be called any
    /// more.
    pub ending: bool,
    /// The CLR after its end, for what is still known of it.
    former: Option<Arc<Clr>>,
}

#[derive(Debug, Default)]
struct RegistryState {
    policy: RuntimePolicy,
    known: Vec<KnownClr>,
    /// Numbers of CLRs that were created and have not reached `Initialize` yet.
    claimed: Vec<u8>,
    /// The only CLR recorded under `first` and `one`.
    chosen: Option<u8>,
    /// The CLR in each place of the table of hijacks.
    places: [Option<u8>; HIJACKS],
    /// Attached CLRs whose catch-up has not begun.
    arrived: Vec<u8>,
    /// CLRs whose end the agent thread has processed, while a thread waits for that.
    acknowledged: Vec<u8>,
}

/// The CLRs that are ending.
#[derive(Debug)]
pub struct EndingRuntimes {
    /// Their numbers.
    pub numbers: Vec<u8>,
    /// Whether no other CLR can be called.
    pub is_last: bool,
}

/// The result of an admission in `Initialize`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    /// Index in the table of hijacks, if one was free.
    pub hijack_place: Option<usize>,
}

/// The list of all CLRs.
#[derive(Debug)]
pub struct Registry {
    state: Mutex<RegistryState>,
    changed: Condvar,
    phase: PhaseReader,
}

impl Registry {
    /// Creates an empty registry.
    pub fn new(phase: PhaseReader) -> Registry {
        Registry {
            state: Mutex::default(),
            changed: Condvar::new(),
            phase,
        }
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Applies a new session's policy to all CLRs, running ones too. Returns the CLRs that have
    /// ended and removes them. Their numbers are free, so the caller must remove their code before
    /// another CLR gets one.
    pub fn begin(&self, policy: RuntimePolicy) -> Vec<Arc<Clr>> {
        let mut state = self.state();
        let state = &mut *state;
        let gone = state.known.extract_if(.., |clr| clr.reach.is_none());
        let forgotten = gone.filter_map(|clr| clr.former).collect();
        state.chosen = None;
        let mut known = std::mem::take(&mut state.known);
        for clr in &mut known {
            clr.recorded = state.is_chosen(&policy, clr.number, &clr.version);
            if let Some((reached, _)) = &clr.reach {
                reached.set_recorded(clr.recorded);
            }
        }
        state.known = known;
        state.policy = policy;
        forgotten
    }

    /// Whether any running CLR is recorded.
    pub fn is_any_recorded(&self) -> bool {
        let state = self.state();
        state
            .known
            .iter()
            .any(|clr| clr.recorded && clr.reach.is_some())
    }

    /// `CreateInstance`: returns a number for this CLR, if it may have callbacks. Under `first`,
    /// only the first CLR gets one; `version` is called for a refused one.
    pub fn claim(&self, version: impl FnOnce() -> String) -> Option<u8> {
        if !self.phase.get().takes_runtimes() {
            return None;
        }
        let mut state = self.state();
        let number = state.free_number()?;
        state.claimed.push(number);
        if state.policy != RuntimePolicy::First || *state.chosen.get_or_insert(number) == number {
            return Some(number);
        }
        // May take the loader's lock, whose owner may wait for this lock.
        drop(state);
        let version = version();
        let mut state = self.state();
        state.list(KnownClr {
            number,
            version,
            recorded: false,
            refused_by: "CreateInstance",
            reach: None,
            ending: false,
            former: None,
        });
        None
    }

    /// `Initialize`: lists a CLR. Returns `None` if it is not recorded. Otherwise runs `begin`
    /// before any other CLR can start or end.
    pub fn admit(
        &self,
        clr: &Arc<Clr>,
        runtime: Runtime,
        version: String,
        begin: impl FnOnce(),
    ) -> Option<Admission> {
        let number = clr.number();
        let mut state = self.state();
        let state = &mut *state;
        let policy = state.policy.clone();
        let recorded =
            self.phase.get().takes_runtimes() && state.is_chosen(&policy, number, &version);
        clr.set_recorded(recorded);
        state.list(KnownClr {
            number,
            version,
            recorded,
            refused_by: if recorded { "" } else { "Initialize" },
            reach: recorded.then(|| (Arc::clone(clr), runtime)),
            ending: false,
            former: None,
        });
        if !recorded {
            return None;
        }
        begin();
        Some(Admission {
            hijack_place: state.take_place(number),
        })
    }

    /// `InitializeForAttach`: lists an attached CLR and sets its number. It is recorded if a
    /// session runs whose policy includes it, and by later sessions. Returns `None` if no agent
    /// thread exists to serve it.
    pub fn admit_attached(
        &self,
        clr: &Arc<Clr>,
        runtime: Runtime,
        version: String,
    ) -> Option<Admission> {
        let phase = self.phase.get();
        if phase == Phase::Left {
            return None;
        }
        let mut state = self.state();
        let state = &mut *state;
        let number = state.free_number()?;
        clr.set_number(number);
        let policy = state.policy.clone();
        let recorded = phase.takes_runtimes() && state.is_chosen(&policy, number, &version);
        clr.set_recorded(recorded);
        state.list(KnownClr {
            number,
            recorded,
            version,
            refused_by: "",
            reach: Some((Arc::clone(clr), runtime)),
            ending: false,
            former: None,
        });
        Some(Admission {
            hijack_place: state.take_place(number),
        })
    }

    /// Removes a CLR whose attach failed after its admission.
    pub fn refuse_attached(&self, number: u8) {
        let mut state = self.state();
        state.known.retain(|known| known.number != number);
        state.free_place(number);
    }

    /// `ProfilerAttachComplete`: the agent thread may run the catch-up.
    pub fn attach_complete(&self, number: u8) {
        self.state().arrived.push(number);
    }

    /// Returns the CLRs whose catch-up has not begun, and clears the list. Agent thread.
    pub fn take_newly_attached(&self) -> Vec<u8> {
        std::mem::take(&mut self.state().arrived)
    }

    /// Returns the running CLRs that were attached to, from which the agent may detach.
    pub fn attached(&self) -> Vec<u8> {
        let state = self.state();
        let running = state.known.iter().filter(|known| {
            let reach = known.reach.as_ref();
            !known.ending && reach.is_some_and(|(clr, _)| clr.arrival() == LoadMode::Attached)
        });
        running.map(|known| known.number).collect()
    }

    /// Whether no CLR is left and none is being created.
    pub fn is_vacant(&self) -> bool {
        let state = self.state();
        state.claimed.is_empty() && state.known.iter().all(|known| known.reach.is_none())
    }

    /// Removes and returns the CLRs that have ended, for use without a session. Their numbers are
    /// free, so the caller must remove their code before another CLR gets one.
    pub fn take_ended(&self) -> Vec<Arc<Clr>> {
        let mut state = self.state();
        let gone = state.known.extract_if(.., |clr| clr.reach.is_none());
        gone.filter_map(|clr| clr.former).collect()
    }

    /// Withdraws an admitted CLR from recording, because it refused a call that the agent needs.
    pub fn withdraw(&self, number: u8) {
        let mut state = self.state();
        if let Some(known) = state.find(number) {
            known.recorded = false;
            known.refused_by = "Initialize";
            known.reach = None;
        }
        if state.chosen == Some(number) {
            state.chosen = None;
        }
        state.free_place(number);
    }

    /// Returns the CLRs of this session known by now, in the order of their decisions.
    pub fn known(&self) -> Vec<KnownClr> {
        self.state().known.clone()
    }

    /// Returns the CLRs that can still be called.
    pub fn running(&self) -> Vec<u8> {
        let state = self.state();
        let running = state.known.iter().filter(|clr| clr.reach.is_some());
        running.map(|clr| clr.number).collect()
    }

    /// Returns the recorded CLRs that can still be called.
    pub fn recorded(&self) -> Vec<u8> {
        let state = self.state();
        let recorded = state
            .known
            .iter()
            .filter(|clr| clr.recorded && clr.reach.is_some());
        recorded.map(|clr| clr.number).collect()
    }

    /// Blocks a CLR's end until the agent thread, woken by `wake`, makes no more calls into it. The
    /// wait is bounded, so that a program's end does not hang.
    pub fn ends(&self, number: u8, wake: impl FnOnce()) {
        let mut state = self.state();
        match state.find(number) {
            Some(known) if known.reach.is_some() => known.ending = true,
            _ => return,
        }
        wake();
        let waited = self
            .changed
            .wait_timeout_while(state, CALL_TIMEOUT, |state| {
                !state.acknowledged.contains(&number) && self.phase.get() != Phase::Left
            });
        let (mut state, _) = waited.unwrap_or_else(|e| e.into_inner());
        state.acknowledged.retain(|other| *other != number);
    }

    /// Returns the CLRs that wait in [`Registry::ends`]. If no other CLR can be called, runs `rest`
    /// before another CLR can start.
    pub fn ending(&self, rest: impl FnOnce()) -> Option<EndingRuntimes> {
        let state = self.state();
        let reached = || state.known.iter().filter(|clr| clr.reach.is_some());
        let numbers: Vec<u8> = reached()
            .filter(|clr| clr.ending)
            .map(|clr| clr.number)
            .collect();
        if numbers.is_empty() {
            return None;
        }
        let is_last = reached().count() == numbers.len();
        if is_last {
            rest();
        }
        Some(EndingRuntimes { numbers, is_last })
    }

    /// Confirms that the agent thread makes no more calls into this CLR.
    pub fn acknowledge(&self, number: u8) {
        let mut state = self.state();
        if let Some(known) = state.find(number) {
            known.former = known.reach.take().map(|(clr, _)| clr);
        }
        state.free_place(number);
        state.acknowledged.push(number);
        self.changed.notify_all();
    }

    /// Releases all waiting threads at the agent thread's end ([`Phase::Left`]).
    pub fn agent_thread_ended(&self) {
        // Afterwards a thread that read the old phase is in its wait, and has released the lock.
        let _state = self.state();
        self.changed.notify_all();
    }
}

impl RegistryState {
    fn find(&mut self, number: u8) -> Option<&mut KnownClr> {
        self.known.iter_mut().find(|clr| clr.number == number)
    }

    /// Adds a CLR whose number was claimed.
    fn list(&mut self, clr: KnownClr) {
        self.claimed.retain(|number| *number != clr.number);
        self.known.push(clr);
    }

    /// Returns the lowest number that no CLR of this session has or had.
    fn free_number(&self) -> Option<u8> {
        (0..=u8::MAX).find(|number| {
            !self.claimed.contains(number) && self.known.iter().all(|clr| clr.number != *number)
        })
    }

    fn take_place(&mut self, number: u8) -> Option<usize> {
        let at = self.places.iter().position(Option::is_none)?;
        *self.places.get_mut(at)? = Some(number);
        Some(at)
    }

    fn free_place(&mut self, number: u8) {
        for place in &mut self.places {
            if *place == Some(number) {
                *place = None;
            }
        }
    }

    fn is_chosen(&mut self, policy: &RuntimePolicy, number: u8, version: &str) -> bool {
        match policy {
            RuntimePolicy::All => true,
            RuntimePolicy::Many(_) => policy.names(version),
            // Chosen by `claim`, or the first that is listed.
            RuntimePolicy::First => *self.chosen.get_or_insert(number) == number,
            RuntimePolicy::One(_) => {
                policy.names(version) && *self.chosen.get_or_insert(number) == number
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::phase::{PhaseWriter, new_phase};

    fn registry(policy: RuntimePolicy) -> (PhaseWriter, Registry) {
        let (writer, reader) = new_phase();
        writer.change(&[Phase::Idle], Phase::Waiting).unwrap();
        let registry = Registry::new(reader);
        registry.begin(policy);
        (writer, registry)
    }

    #[test]
    fn of_many_claims_at_once_first_takes_one() {
        let (_writer, registry) = registry(RuntimePolicy::First);
        let claimed: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16u8)
                .map(|index| {
                    let registry = &registry;
                    scope.spawn(move || registry.claim(|| index.to_string()))
                })
                .collect();
            threads
                .into_iter()
                .filter_map(|thread| thread.join().unwrap())
                .count()
        });
        assert_eq!(claimed, 1);
        let refused = registry.known();
        assert_eq!(refused.len(), 15);
        let mut versions: Vec<_> = refused.iter().map(|clr| clr.version.clone()).collect();
        versions.sort();
        versions.dedup();
        assert_eq!(versions.len(), 15);
        assert!(refused.iter().all(|clr| clr.refused_by == "CreateInstance"));
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
            let policy = RuntimePolicy::parse(policy);
            let (_writer, registry) = registry(policy.clone());
            let found: Vec<u8> = versions
                .iter()
                .filter_map(|version| {
                    let number = registry.claim(String::new)?;
                    let chosen = registry.state().is_chosen(&policy, number, version);
                    chosen.then_some(number)
                })
                .collect();
            assert_eq!(found, chosen, "{policy:?}");
        }
    }

    #[test]
    fn without_a_session_no_clr_is_taken_and_none_waits() {
        let (writer, registry) = registry(RuntimePolicy::All);
        writer.change(&[Phase::Waiting], Phase::Left).unwrap();
        registry.agent_thread_ended();
        assert!(registry.claim(String::new).is_none());
        registry.ends(0, || unreachable!("nobody to wake"));
        assert!(registry.ending(|| unreachable!("nobody rests")).is_none());
    }

    #[test]
    fn numbers_are_given_out_again_in_the_next_session() {
        let (_writer, registry) = registry(RuntimePolicy::All);
        for number in 0..=u8::MAX {
            assert_eq!(registry.claim(String::new), Some(number));
            let clr = KnownClr {
                number,
                version: String::new(),
                recorded: true,
                refused_by: "",
                reach: None,
                ending: false,
                former: None,
            };
            registry.state().list(clr);
        }
        assert_eq!(
            registry.claim(String::new),
            None,
            "all of them are in the recording"
        );
        registry.begin(RuntimePolicy::All);
        assert_eq!(registry.claim(String::new), Some(0));
    }

    #[test]
    fn the_fifth_clr_in_a_row_has_a_place_for_its_hijacks() {
        let (_writer, registry) = registry(RuntimePolicy::All);
        let mut state = registry.state();
        for number in 0..4 {
            assert_eq!(state.take_place(number), Some(usize::from(number)));
        }
        assert_eq!(
            state.take_place(4),
            None,
            "more at once than there are places"
        );
        state.free_place(2);
        assert_eq!(state.take_place(5), Some(2));
    }

    #[test]
    fn a_clr_that_has_ended_leaves_its_place_and_one_on_its_way_is_waited_for() {
        let (_writer, registry) = registry(RuntimePolicy::All);
        assert!(registry.is_vacant());
        let number = registry.claim(String::new).unwrap();
        assert!(!registry.is_vacant(), "its `Initialize` is to come");
        let clr = KnownClr {
            number,
            version: String::new(),
            recorded: true,
            refused_by: "",
            reach: None,
            ending: true,
            former: None,
        };
        registry.state().list(clr);
        assert!(registry.is_vacant());
        let places = (0..=HIJACKS).map(|_| registry.state().take_place(number));
        assert_eq!(places.last(), Some(None), "all are taken");
        registry.acknowledge(number);
        assert_eq!(registry.state().take_place(number + 1), Some(0));
    }
}
