//! Which method a number in the shadow trees stands for.
//!
//! Compiled code brings the number along (`FunctionIDMapper2`), so a number says the runtime as well
//! as the function, and ids of two runtimes cannot be mixed up (rule 28 of the seeds). Methods that
//! may be unloaded bring their names; others are named by the agent thread when a tree first has
//! them.
//!
//! Invariants: a number never changes its meaning; the lock is held for table operations only,
//! never while a CLR is called.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::bodies::Names;

/// Most methods: 64 bytes each and their entry in the map, so about 12 MiB. What comes later is not
/// hooked.
const MAX_METHODS: usize = 128 * 1024;

/// A hooked method.
#[derive(Clone, Debug)]
pub(super) struct Method {
    pub(super) runtime: u8,
    pub(super) function: usize,
    /// Its names, until the agent thread has taken them; for a method that may be unloaded.
    pub(super) names: Option<Box<Names>>,
    /// It may be unloaded: the runtime must not be asked about it later.
    pub(super) unloadable: bool,
    /// It has been.
    unloaded: bool,
}

#[derive(Default)]
struct State {
    methods: Vec<Method>,
    by_function: HashMap<(u8, usize), u32>,
    /// Numbers of methods by the module that takes them along.
    by_module: HashMap<(u8, usize), Vec<u32>>,
    refused: u64,
}

/// All hooked methods of the process.
#[derive(Default)]
pub(super) struct Methods {
    state: Mutex<State>,
}

impl Methods {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The number of a function, if it has one.
    pub(super) fn number(&self, runtime: u8, function: usize) -> Option<u32> {
        self.state().by_function.get(&(runtime, function)).copied()
    }

    /// Gives a function a number. `unloadable`: the module that takes it along, and its names.
    /// `None`: there are too many.
    pub(super) fn insert(
        &self,
        runtime: u8,
        function: usize,
        unloadable: Option<(usize, Option<Names>)>,
    ) -> Option<u32> {
        let mut state = self.state();
        let state = &mut *state;
        if let Some(known) = state.by_function.get(&(runtime, function)) {
            return Some(*known);
        }
        let number = state.methods.len();
        if number >= MAX_METHODS {
            state.refused += 1;
            return None;
        }
        let number = u32::try_from(number).ok()?;
        let (module, names) = unloadable.unzip();
        state.methods.push(Method {
            runtime,
            function,
            names: names.flatten().map(Box::new),
            unloadable: module.is_some(),
            unloaded: false,
        });
        state.by_function.insert((runtime, function), number);
        if let Some(module) = module {
            state
                .by_module
                .entry((runtime, module))
                .or_default()
                .push(number);
        }
        Some(number)
    }

    /// A module is being unloaded: its functions' ids may be given out again.
    pub(super) fn module_unloaded(&self, runtime: u8, module: usize) {
        let mut state = self.state();
        let state = &mut *state;
        for number in state
            .by_module
            .remove(&(runtime, module))
            .unwrap_or_default()
        {
            if let Some(method) = state.methods.get_mut(number as usize) {
                method.unloaded = true;
                let key = (runtime, method.function);
                if state.by_function.get(&key) == Some(&number) {
                    state.by_function.remove(&key);
                }
            }
        }
    }

    /// Whether the function behind a number may still be called.
    pub(super) fn is_loaded(&self, number: u32) -> bool {
        self.state()
            .methods
            .get(number as usize)
            .is_some_and(|method| !method.unloaded)
    }

    /// What a number stands for; takes its names along.
    pub(super) fn take(&self, number: u32) -> Option<Method> {
        let mut state = self.state();
        let method = state.methods.get_mut(number as usize)?;
        let names = method.names.take();
        Some(Method {
            names,
            ..method.clone()
        })
    }

    /// How many functions found no number, since the last call.
    pub(super) fn take_refused(&self) -> u64 {
        std::mem::take(&mut self.state().refused)
    }

    /// Bytes held, about.
    pub(super) fn memory(&self) -> u64 {
        let state = self.state();
        (state.methods.capacity() * size_of::<Method>() + state.by_function.capacity() * 25) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str) -> Option<Names> {
        Some(Names {
            module: None,
            token: 0,
            type_name: String::new(),
            name: name.into(),
        })
    }

    #[test]
    fn the_same_id_of_two_runtimes_is_two_methods() {
        let methods = Methods::default();
        let first = methods.insert(0, 0x1000, None).unwrap();
        let second = methods.insert(1, 0x1000, None).unwrap();
        assert_ne!(first, second);
        assert_eq!(methods.insert(0, 0x1000, None), Some(first));
        assert_eq!(methods.number(1, 0x1000), Some(second));
        assert_eq!(methods.take(second).unwrap().runtime, 1);
    }

    #[test]
    fn an_id_that_is_given_out_again_is_another_method() {
        let methods = Methods::default();
        let old = methods.insert(0, 0x1000, Some((7, names("Old")))).unwrap();
        let other = methods
            .insert(0, 0x2000, Some((8, names("Other"))))
            .unwrap();
        methods.module_unloaded(0, 7);
        assert!(!methods.is_loaded(old));
        assert!(methods.is_loaded(other));
        assert_eq!(methods.number(0, 0x1000), None);
        let new = methods.insert(0, 0x1000, Some((9, names("New")))).unwrap();
        assert_ne!(new, old);
        // Both keep their names for the agent thread.
        assert_eq!(methods.take(old).unwrap().names.unwrap().name, "Old");
        assert_eq!(methods.take(new).unwrap().names.unwrap().name, "New");
        assert!(methods.take(new).unwrap().names.is_none());
        assert!(methods.take(other).unwrap().unloadable);
    }
}
