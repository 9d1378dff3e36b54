//! One CLR: what is kept of it, its code (`code`), how it is named (`names`), and the list of all
//! (`registry`) with the way to ask one (`runtimes`).
//!
//! It hears no callbacks and knows no events, sessions or records. Invariant: its locks are leaves,
//! never held over a call into the CLR.

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
use crate::program::chains::{self, HeapGate, Survey, Types};
use crate::program::hijacks;

/// One CLR.
#[derive(Debug)]
pub struct Clr {
    number: OnceLock<u8>,
    arrival: LoadMode,
    /// Another profiler is its main one.
    beside: bool,
    /// The policy of the session includes it.
    recorded: AtomicBool,
    gate: catch_up::UnloadGate,
    collection_times: CollectionTimes,
    modules: Mutex<NumberMap<usize, Arc<ManagedModule>>>,
    composites: Mutex<Vec<Composite>>,
    /// How many modules are collectible: asked at each compilation, so not counted each time.
    collectible: AtomicU32,
    unloadable: Mutex<Unloadable>,
    named_dynamics: Mutex<NamedDynamics>,
    rewritten: Mutex<Rewritten>,
    modifiable: AtomicBool,
    /// Its treatment of hot code: [`Tiering`].
    tiering: AtomicU8,
    /// Code headers that have been read and believed since the last that was not.
    headers_read: AtomicU32,
    /// Whether IL maps are read beside the code.
    il_maps: IlMapTrust,
    /// Where its thread objects keep replaced return addresses.
    hijacks: hijacks::ThreadWords,
    /// Its place in the table of those, where there was one.
    hijack_place: OnceLock<usize>,
    /// Whether the usual classes of chains are known (`async_types`).
    expected: AtomicU8,
    /// The facts about runtime async from its library (`async_types`).
    runtime_async: OnceLock<async_types::RuntimeAsync>,
    /// How its code becomes known.
    discovery: CodeDiscovery,
    /// The findings of walks of its heap, while they are wanted.
    survey: Mutex<Option<Survey<'static, StoppedHeap>>>,
    /// Set where a walker needs them.
    snapshots: OnceLock<StackSnapshots>,
    /// Callbacks of it in which we have panicked, as far as they were reported.
    panics_reported: AtomicU32,
    /// The cost of its callbacks when that was last reported.
    calls_reported: Mutex<[Calls; CallbackKind::COUNT]>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Clr {
    /// The CLR that the registry gave this number, at its start.
    pub fn new(number: u8) -> Clr {
        Clr::started(number, false)
    }

    /// The same; `beside` another profiler, or not.
    pub fn started(number: u8, beside: bool) -> Clr {
        let clr = Clr::of(LoadMode::Startup, beside);
        clr.set_number(number);
        clr
    }

    /// One that we come to while it runs; the registry gives it a number when it lets us in.
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
            snapshots: OnceLock::new(),
            panics_reported: AtomicU32::new(0),
            calls_reported: Mutex::default(),
        }
    }

    /// Its number: unique among the CLRs of a session, given out again when it has ended.
    pub fn number(&self) -> u8 {
        // Only a refused one is asked for its number before there is one.
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

    /// Another profiler is its main one.
    pub fn is_beside(&self) -> bool {
        self.beside
    }

    /// How we came to it.
    pub fn arrival(&self) -> LoadMode {
        self.arrival
    }

    /// Whether its methods may get other IL by hot reload.
    pub(crate) fn set_modifiable(&self, modifiable: bool) {
        self.modifiable.store(modifiable, Ordering::Relaxed);
    }

    /// Sets its treatment of hot code.
    pub(crate) fn set_tiering(&self, tiering: Tiering) {
        self.tiering.store(tiering as u8, Ordering::Relaxed);
    }

    /// Its place in the table of replaced return addresses, from the registry.
    pub(crate) fn set_hijack_place(&self, place: Option<usize>) {
        if let Some(place) = place {
            let _once = self.hijack_place.set(place);
        }
    }

    /// Where one of its thread objects keeps replaced return addresses: its place in the table, and
    /// the address.
    pub(crate) fn hijack_of(&self, thread: usize) -> Option<(usize, u64)> {
        let place = *self.hijack_place.get()?;
        Some((place, self.hijacks.of_new_thread(thread as u64)))
    }

    /// Its place among the CLRs that run at once.
    pub(crate) fn place(&self) -> Option<usize> {
        self.hijack_place.get().copied()
    }

    /// When its collections were.
    pub(crate) fn collection_times(&self) -> &CollectionTimes {
        &self.collection_times
    }

    /// Where readers of its heap come in; `None` where it has no place.
    pub(crate) fn heap_gate(&self) -> Option<&'static HeapGate> {
        chains::gate(self.place()?)
    }

    /// From here on walks of its heap look for suspended async methods, which no thread runs.
    pub(crate) fn begin_survey(&self, types: &'static Types) {
        *lock(&self.survey) = Some(Survey::new(StoppedHeap, types));
    }

    /// Does the work of such walks, where one is wanted. In callbacks of a collection; all else
    /// keeps away then.
    pub(crate) fn survey<R>(
        &self,
        walk: impl FnOnce(&mut Survey<'static, StoppedHeap>) -> R,
    ) -> Option<R> {
        lock(&self.survey).as_mut().map(walk)
    }

    /// No more of them.
    pub(crate) fn end_survey(&self) -> Option<Survey<'static, StoppedHeap>> {
        lock(&self.survey).take()
    }

    /// Stacks of this CLR may be walked by `DoStackSnapshot`.
    pub(crate) fn set_snapshots(&self, proof: StackSnapshots) {
        let _once = self.snapshots.set(proof);
    }

    /// The proof that stacks of this CLR may be walked by `DoStackSnapshot`, where the walker that
    /// was asked for needs it.
    pub fn snapshots(&self) -> Option<&StackSnapshots> {
        self.snapshots.get()
    }

    /// Callbacks that panicked since the last call, of so many in all.
    pub(crate) fn new_panics(&self, all: u64) -> u64 {
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let before = self.panics_reported.swap(all, Ordering::Relaxed);
        u64::from(all.saturating_sub(before))
    }

    /// Returns the cost of its callbacks since the last call, of so much in all, by kind.
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
