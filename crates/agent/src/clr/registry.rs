//! The CLRs of the process: which are recorded, which were refused, which have ended.
//!
//! The seeds' article calls it the global profiler manager. It decides once for each CLR, by the
//! policy that the user chose, and it is where a CLR's end meets the agent thread. It knows nothing
//! of code, threads or samples. Invariants: what CLRs that start or end at the same moment find out
//! of each other is decided under one lock, which is never held while a CLR is called; of `first`
//! and `one` at most one CLR is recorded, whatever happens at the same time; a number is one CLR's
//! for a whole session, and given out again after it, as is a place in the table of hijacks after
//! the CLR's end, so neither runs out however often CLRs come and go.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use control::LoadMode;
use corprof::Runtime;
use stackwalk::HIJACKS;

use super::Clr;
use crate::model::phase::PhaseReader;
use crate::model::{Phase, RuntimePolicy};

/// How long a CLR's shutdown waits for the agent thread to write the rest.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// A CLR of the process as the agent thread sees it.
#[derive(Clone, Debug)]
pub struct KnownClr {
    /// [`Clr::number`].
    pub number: u8,
    /// `8.0.4`.
    pub version: String,
    /// Its threads are sampled, its events are written.
    pub recorded: bool,
    /// The call that was answered with a refusal; empty where none was.
    pub refused_by: &'static str,
    /// The way to ask it; none once it has ended.
    pub reach: Option<(Arc<Clr>, Runtime)>,
    /// Its shutdown callback has begun; once acknowledged it must not be called any more.
    pub ending: bool,
    /// It has ended; for what is still known of it.
    former: Option<Arc<Clr>>,
}

#[derive(Debug, Default)]
struct RegistryState {
    policy: RuntimePolicy,
    known: Vec<KnownClr>,
    /// Numbers of CLRs that have been created and not been heard of since.
    claimed: Vec<u8>,
    /// The one CLR that `first` and `one` record.
    chosen: Option<u8>,
    /// The CLR in each place of the table of hijacks.
    places: [Option<u8>; HIJACKS],
    /// CLRs that we have come to and whose past is not known yet.
    arrived: Vec<u8>,
    /// CLRs whose end the agent thread has taken in, while a thread waits for that.
    acknowledged: Vec<u8>,
}

/// CLRs that are ending.
#[derive(Debug)]
pub struct EndingRuntimes {
    /// Their numbers.
    pub numbers: Vec<u8>,
    /// No other CLR is being recorded.
    pub is_last: bool,
}

/// The outcome of a CLR's `Initialize`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    /// A place in the table of hijacks, if one was free.
    pub hijack_place: Option<usize>,
}

/// All CLRs.
#[derive(Debug)]
pub struct Registry {
    state: Mutex<RegistryState>,
    changed: Condvar,
    phase: PhaseReader,
}

impl Registry {
    /// None yet.
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

    /// A session begins: its policy decides from here on, about CLRs that are there already too.
    /// Those that have ended are forgotten and answered: their numbers are free, and their code
    /// must go before another one has it.
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

    /// Whether any CLR that runs is recorded.
    pub fn is_any_recorded(&self) -> bool {
        let state = self.state();
        state
            .known
            .iter()
            .any(|clr| clr.recorded && clr.reach.is_some())
    }

    /// `CreateInstance`: the number of this CLR, if it may have callbacks. With `first`, only the
    /// first one that asks; `version` is asked for where one is refused.
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
        // May take the loader's lock, which a thread that waits for ours may hold.
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

    /// `Initialize`: lists a CLR; `None`: it is not to be recorded. Else `begin` is run before any
    /// other CLR can start or end.
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

    /// `InitializeForAttach`: lists a CLR that we have come to while it runs, and gives it its
    /// number. It is recorded if a session is under way whose policy wants it, and by the sessions
    /// to come. `None`: there is no agent thread to look after it.
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

    /// One that was let in for attaching does not get so far: it is as if it had never been there.
    pub fn refuse_attached(&self, number: u8) {
        let mut state = self.state();
        state.known.retain(|known| known.number != number);
        state.free_place(number);
    }

    /// `ProfilerAttachComplete`: the agent thread may ask for what was there before us.
    pub fn attach_complete(&self, number: u8) {
        self.state().arrived.push(number);
    }

    /// CLRs whose past is not known yet. Agent thread.
    pub fn take_newly_attached(&self) -> Vec<u8> {
        std::mem::take(&mut self.state().arrived)
    }

    /// CLRs that we came to while they ran, and may leave.
    pub fn attached(&self) -> Vec<u8> {
        let state = self.state();
        let running = state.known.iter().filter(|known| {
            let reach = known.reach.as_ref();
            !known.ending && reach.is_some_and(|(clr, _)| clr.arrival() == LoadMode::Attached)
        });
        running.map(|known| known.number).collect()
    }

    /// Whether no CLR is left, and none is about to come.
    pub fn is_vacant(&self) -> bool {
        let state = self.state();
        state.claimed.is_empty() && state.known.iter().all(|known| known.reach.is_none())
    }

    /// Without a session: the CLRs that have ended. Their numbers are free, and their code must go
    /// before another one has them.
    pub fn take_ended(&self) -> Vec<Arc<Clr>> {
        let mut state = self.state();
        let gone = state.known.extract_if(.., |clr| clr.reach.is_none());
        gone.filter_map(|clr| clr.former).collect()
    }

    /// A CLR that was admitted is not recorded after all: it has refused what we need.
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

    /// The CLRs of this session known by now, in the order of their decisions.
    pub fn known(&self) -> Vec<KnownClr> {
        self.state().known.clone()
    }

    /// CLRs that can still be called.
    pub fn running(&self) -> Vec<u8> {
        let state = self.state();
        let running = state.known.iter().filter(|clr| clr.reach.is_some());
        running.map(|clr| clr.number).collect()
    }

    /// Recorded CLRs that can still be called.
    pub fn recorded(&self) -> Vec<u8> {
        let state = self.state();
        let recorded = state
            .known
            .iter()
            .filter(|clr| clr.recorded && clr.reach.is_some());
        recorded.map(|clr| clr.number).collect()
    }

    /// A CLR ends: waits until the agent thread, woken by `wake`, will not call it again. Bounded,
    /// as a program's end must not hang.
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

    /// Returns the CLRs that wait in [`Registry::ends`]. If no CLR is recorded without them, `rest`
    /// is run before another CLR can start.
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

    /// The agent thread will not call this CLR again.
    pub fn acknowledge(&self, number: u8) {
        let mut state = self.state();
        if let Some(known) = state.find(number) {
            known.former = known.reach.take().map(|(clr, _)| clr);
        }
        state.free_place(number);
        state.acknowledged.push(number);
        self.changed.notify_all();
    }

    /// The agent thread has ended ([`Phase::Left`]): no thread waits for it.
    pub fn agent_thread_ended(&self) {
        // A thread that looked at the phase before and waits now holds the lock no more.
        let _state = self.state();
        self.changed.notify_all();
    }
}

impl RegistryState {
    fn find(&mut self, number: u8) -> Option<&mut KnownClr> {
        self.known.iter_mut().find(|clr| clr.number == number)
    }

    /// Adds a CLR, whose number was claimed.
    fn list(&mut self, clr: KnownClr) {
        self.claimed.retain(|number| *number != clr.number);
        self.known.push(clr);
    }

    /// The lowest number that no CLR of this session has or had.
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
            // Chosen by `claim`, or the first that is there already.
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
