//! One CLR in the process: its state, its code (`code`), and the names of its methods (`names`).
//!
//! `registry` lists all CLRs; `runtimes` calls one on the agent thread. Callbacks, events, sessions
//! and records are in other modules. Invariant: locks here are leaves, never held over a call into
//! the CLR (except the two that `catch_up` and `code` document).

pub mod async_types;
mod catch_up;
pub mod code;
mod code_discovery;
pub mod collection_times;
mod composites;
mod finalizer;
mod il;
pub mod il_maps;
pub mod names;
pub mod registry;
mod rewritten;
pub mod runtimes;
pub mod tiers;
pub mod version;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use control::LoadMode;
use corprof::{CallbackKind, Calls, StackSnapshots};

pub use self::registry::{Admission, KnownClr, Registry};
pub use self::runtimes::Runtimes;

use self::code::{NamedDynamics, Unloadable};
use self::code_discovery::CodeDiscovery;
use self::collection_times::CollectionTimes;
use self::composites::Composite;
use self::il_maps::IlMapTrust;
use self::rewritten::Rewritten;
use self::tiers::Tiering;
use crate::base::numbers::NumberMap;
use crate::model::ManagedModule;
use crate::program::chains::suspended::StoppedHeap;
use crate::program::chains::{self, AskedClasses, HeapGate, Survey, Types};
use crate::program::hijacks;

/// One CLR of the process.
#[derive(Debug)]
pub struct Clr {
    number: OnceLock<u8>,
    arrival: LoadMode,
    /// Whether another profiler is its main profiler.
    beside: bool,
    /// Whether the session's policy includes it.
    recorded: AtomicBool,
    gate: catch_up::UnloadGate,
    collection_times: CollectionTimes,
    modules: Mutex<NumberMap<usize, Arc<ManagedModule>>>,
    composites: Mutex<Vec<Composite>>,
    /// Number of collectible modules. Read at each compilation, so not counted each time.
    collectible: AtomicU32,
    unloadable: Mutex<Unloadable>,
    named_dynamics: Mutex<NamedDynamics>,
    rewritten: Mutex<Rewritten>,
    modifiable: AtomicBool,
    /// Its tiering mode: [`Tiering`].
    tiering: AtomicU8,
    /// Code headers read and verified since the last mismatch.
    headers_read: AtomicU32,
    /// Whether IL maps are read from memory instead of queried.
    il_maps: IlMapTrust,
    /// Offsets of the words in its thread objects that hold replaced return addresses.
    hijacks: hijacks::ThreadWords,
    /// Its index in the table of hijacks, if one was free.
    hijack_place: OnceLock<usize>,
    /// Whether the common classes of async chains are known (`async_types`).
    expected: AtomicU8,
    /// Facts about runtime async from its core library (`async_types`).
    runtime_async: OnceLock<async_types::RuntimeAsync>,
    /// How its code is discovered.
    discovery: CodeDiscovery,
    /// Results of its heap walks, while a survey is active.
    survey: Mutex<Option<Survey<'static, StoppedHeap>>>,
    asked_classes: Mutex<AskedClasses>,
    /// Set if a walker needs stack snapshots.
    snapshots: OnceLock<StackSnapshots>,
    /// Number of panics in its callbacks that were reported.
    panics_reported: AtomicU32,
    /// Cost of its callbacks at the last report.
    calls_reported: Mutex<[Calls; CallbackKind::COUNT]>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Clr {
    /// Creates a CLR with the number that the registry gave it at its start.
    pub fn new(number: u8) -> Clr {
        Clr::started(number, false)
    }

    /// Creates a CLR as [`Clr::new`]; `beside`: another profiler is its main profiler.
    pub fn started(number: u8, beside: bool) -> Clr {
        let clr = Clr::of(LoadMode::Startup, beside);
        clr.set_number(number);
        clr
    }

    /// Creates a CLR for an attach to a running runtime. The registry sets its number on admission.
    pub fn attached(beside: bool) -> Clr {
        Clr::of(LoadMode::Attached, beside)
    }

    fn of(arrival: LoadMode, beside: bool) -> Clr {
        Clr {
            number: OnceLock::new(),
            arrival,
            beside,
            recorded: AtomicBool::new(false),
            gate: catch_up::UnloadGate::default(),
            collection_times: CollectionTimes::default(),
            modules: Mutex::default(),
            composites: Mutex::default(),
            collectible: AtomicU32::new(0),
            unloadable: Mutex::default(),
            named_dynamics: Mutex::default(),
            rewritten: Mutex::default(),
            modifiable: AtomicBool::new(false),
            tiering: AtomicU8::new(Tiering::default() as u8),
            headers_read: AtomicU32::new(0),
            il_maps: IlMapTrust::default(),
            hijacks: hijacks::ThreadWords::default(),
            hijack_place: OnceLock::new(),
            expected: AtomicU8::new(0),
            runtime_async: OnceLock::new(),
            discovery: CodeDiscovery::default(),
            survey: Mutex::default(),
            asked_classes: Mutex::default(),
            snapshots: OnceLock::new(),
            panics_reported: AtomicU32::new(0),
            calls_reported: Mutex::default(),
        }
    }

    /// Returns its number: unique among the CLRs of a session, reused after the CLR's end.
    pub fn number(&self) -> u8 {
        // Only a refused CLR's number is read before it is set.
        self.number.get().copied().unwrap_or(u8::MAX)
    }

    pub(super) fn set_number(&self, number: u8) {
        let _once = self.number.set(number);
    }

    /// Whether the policy of the current or last session includes it.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::Relaxed)
    }

    pub(super) fn set_recorded(&self, recorded: bool) {
        self.recorded.store(recorded, Ordering::Relaxed);
    }

    /// Whether another profiler is its main profiler.
    pub fn is_beside(&self) -> bool {
        self.beside
    }

    /// Returns how the agent was loaded into it: at start-up or by attach.
    pub fn arrival(&self) -> LoadMode {
        self.arrival
    }

    /// Sets whether hot reload may change the IL of its methods.
    pub(crate) fn set_modifiable(&self, modifiable: bool) {
        self.modifiable.store(modifiable, Ordering::Relaxed);
    }

    /// Whether hot reload may change the IL of its methods.
    pub(super) fn is_modifiable(&self) -> bool {
        self.modifiable.load(Ordering::Relaxed)
    }

    /// Sets its tiering mode.
    pub(crate) fn set_tiering(&self, tiering: Tiering) {
        self.tiering.store(tiering as u8, Ordering::Relaxed);
    }

    /// Sets its index in the table of hijacks, from the registry.
    pub(crate) fn set_hijack_place(&self, place: Option<usize>) {
        if let Some(place) = place {
            let _once = self.hijack_place.set(place);
        }
    }

    /// Returns its index in the table of hijacks, and the address at which one of its thread
    /// objects keeps replaced return addresses.
    pub(crate) fn hijack_of(&self, thread: usize) -> Option<(usize, u64)> {
        let place = *self.hijack_place.get()?;
        Some((place, self.hijacks.of_new_thread(thread as u64)))
    }

    /// Returns its index among the CLRs that run at once.
    pub(crate) fn place(&self) -> Option<usize> {
        self.hijack_place.get().copied()
    }

    /// Returns the intervals of its collections.
    pub(crate) fn collection_times(&self) -> &CollectionTimes {
        &self.collection_times
    }

    /// Returns the heap gate for readers of its heap; `None` if it has no index.
    pub(crate) fn heap_gate(&self) -> Option<&'static HeapGate> {
        chains::gate(self.place()?)
    }

    /// Starts a survey: its heap walks search for suspended async methods, which no thread runs.
    pub(crate) fn begin_survey(&self, types: &'static Types) {
        *lock(&self.survey) = Some(Survey::new(StoppedHeap, types));
    }

    /// Runs `work` of a heap walk, if a survey is active. For callbacks of a collection; no other
    /// code takes this lock then.
    pub(crate) fn survey<R>(
        &self,
        walk: impl FnOnce(&mut Survey<'static, StoppedHeap>) -> R,
    ) -> Option<R> {
        lock(&self.survey).as_mut().map(walk)
    }

    /// Ends the survey and returns its results.
    pub(crate) fn end_survey(&self) -> Option<Survey<'static, StoppedHeap>> {
        lock(&self.survey).take()
    }

    /// Stores the proof that stacks of this CLR may be walked by `DoStackSnapshot`.
    pub(crate) fn set_snapshots(&self, proof: StackSnapshots) {
        let _once = self.snapshots.set(proof);
    }

    /// Returns the proof that stacks of this CLR may be walked by `DoStackSnapshot`, if the
    /// selected walker needs it.
    pub fn snapshots(&self) -> Option<&StackSnapshots> {
        self.snapshots.get()
    }

    /// Returns how many callbacks panicked since the last call; `all` is the total.
    pub(crate) fn new_panics(&self, all: u64) -> u64 {
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let before = self.panics_reported.swap(all, Ordering::Relaxed);
        u64::from(all.saturating_sub(before))
    }

    /// Returns the cost of its callbacks since the last call, by kind; `all` is the total.
    pub(crate) fn new_calls(
        &self,
        all: [Calls; CallbackKind::COUNT],
    ) -> [Calls; CallbackKind::COUNT] {
        let before = std::mem::replace(&mut *lock(&self.calls_reported), all);
        let mut new = all;
        for (new, before) in new.iter_mut().zip(before) {
            new.count = new.count.saturating_sub(before.count);
            new.cpu_ns = new.cpu_ns.saturating_sub(before.cpu_ns);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_that_failed_is_reported_once() {
        let clr = Clr::new(0);
        assert_eq!(clr.new_panics(0), 0);
        assert_eq!(clr.new_panics(3), 3);
        assert_eq!(clr.new_panics(3), 0);
        assert_eq!(clr.new_panics(5), 2);
        assert_eq!(clr.new_panics(u64::MAX), u64::from(u32::MAX) - 5);
    }

    #[test]
    fn a_clr_without_a_place_has_no_hijacks() {
        let clr = Clr::new(0);
        clr.set_hijack_place(None);
        assert_eq!(clr.hijack_of(0x1000), None);
    }
}
