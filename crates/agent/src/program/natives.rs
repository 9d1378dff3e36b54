//! Numbered list of the native modules that the process has loaded, and a queue of changes to it.
//!
//! The code map finds modules (`dl_iterate_phdr`). Here each has a number, so that a session that
//! begins later gets all modules and a running one gets the changes. Invariants: the list holds the
//! loaded modules, and nothing after detach. Changes are queued only while a session reads them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use stackwalk::{ModuleChange, NativeModule};

use super::code::CODE_MAP;
use crate::model::Phase;
use crate::model::phase::PhaseReader;

/// A native module was loaded or unloaded.
#[derive(Clone, Debug)]
pub enum NativeChange {
    /// Loaded, with this number, which is never reused.
    Loaded(u32, Arc<NativeModule>),
    /// Unloaded: the module with this number.
    Unloaded(u32, Arc<NativeModule>),
}

#[derive(Debug, Default)]
struct ModuleQueue {
    /// By start address, which is unique among loaded modules.
    loaded: HashMap<u64, (u32, Arc<NativeModule>)>,
    changes: Vec<NativeChange>,
    next: u32,
}

/// The loaded native modules.
#[derive(Debug)]
pub struct NativeModules {
    state: Mutex<ModuleQueue>,
    phase: PhaseReader,
}

impl NativeModules {
    /// Returns an empty list.
    pub fn new(phase: PhaseReader) -> NativeModules {
        NativeModules {
            state: Mutex::default(),
            phase,
        }
    }

    fn state(&self) -> MutexGuard<'_, ModuleQueue> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Detects loaded and unloaded native modules. Takes the loader's lock briefly. Cheap without
    /// changes, so that callbacks call it too and a module is known before much of its code has
    /// run.
    pub fn refresh(&self) {
        CODE_MAP
            .refresh_native(&mut |change| u64::from(self.state().note(&change, self.phase.get())));
    }

    /// Frees the memory of the modules at detach, when no walk runs any more. Agent thread.
    pub fn forget_all(&self) {
        CODE_MAP.forget_native();
        let mut state = self.state();
        state.loaded = HashMap::new();
        state.changes = Vec::new();
    }

    /// Takes the changes since the last call. Agent thread.
    pub fn take_changes(&self) -> Vec<NativeChange> {
        std::mem::take(&mut self.state().changes)
    }

    /// Begins a session: [`NativeModules::take_changes`] reports every module that is loaded, and
    /// every change from now on.
    pub fn announce_all(&self) {
        let mut state = self.state();
        let mut all: Vec<_> = state.loaded.values().cloned().collect();
        all.sort_by_key(|(number, _)| *number);
        state.changes = all
            .into_iter()
            .map(|(number, module)| NativeChange::Loaded(number, module))
            .collect();
    }

    /// Ends a session: drops the queued changes.
    pub fn forget_changes(&self) {
        self.state().changes = Vec::new();
    }
}

impl ModuleQueue {
    /// Records a change. Returns the number of a loaded module.
    fn note(&mut self, change: &ModuleChange<'_>, phase: Phase) -> u32 {
        let (number, change) = match change {
            ModuleChange::Loaded { module } => {
                let module = Arc::new((*module).clone());
                let number = self.next;
                self.next = self.next.wrapping_add(1);
                self.loaded
                    .insert(module.range.start, (number, Arc::clone(&module)));
                (number, Some(NativeChange::Loaded(number, module)))
            }
            ModuleChange::Unloaded { module } => {
                let gone = self.loaded.remove(&module.range.start);
                let change = gone.map(|(number, module)| NativeChange::Unloaded(number, module));
                (0, change)
            }
        };
        if phase.is_session() {
            self.changes.extend(change);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::phase::new_phase;

    fn module(start: u64) -> NativeModule {
        NativeModule {
            path: "/lib/libx.so".into(),
            bias: start,
            range: start..start + 0x1000,
            code: start..start + 0x800,
            build_id: Vec::new(),
        }
    }

    #[test]
    fn a_second_session_gets_all_that_is_loaded_and_an_idle_process_keeps_nothing_else() {
        let (writer, phase) = new_phase();
        let natives = NativeModules::new(phase);
        let load = |start| {
            let module = module(start);
            natives
                .state()
                .note(&ModuleChange::Loaded { module: &module }, phase.get())
        };
        let unload = |start| {
            let module = module(start);
            natives
                .state()
                .note(&ModuleChange::Unloaded { module: &module }, phase.get());
        };
        writer.change(&[Phase::Idle], Phase::Recording).unwrap();
        assert_eq!((load(0x1000), load(0x5000)), (0, 1));
        assert_eq!(natives.take_changes().len(), 2);
        writer.change(&[Phase::Recording], Phase::Idle).unwrap();
        natives.forget_changes();
        for _ in 0..1000 {
            load(0x9000);
            unload(0x9000);
        }
        unload(0x1000);
        assert_eq!(natives.state().changes.capacity(), 0);
        natives.announce_all();
        let reported = natives.take_changes();
        assert!(
            matches!(reported.as_slice(), [NativeChange::Loaded(1, module)] if module.range.start == 0x5000),
            "{reported:?}"
        );
    }
}
