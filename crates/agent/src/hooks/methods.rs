//! Numbers of hooked methods, which the shadow call trees contain in place of ids.
//!
//! The runtime passes the number to the hook (`FunctionIDMapper2`). A number identifies the runtime
//! as well as the function, so ids of two runtimes cannot be mixed up (rule 28 of the seeds).
//! Methods that may be unloaded are stored with their names. Others are named by the agent thread
//! when a tree first contains them.
//!
//! Invariants: a number never changes its meaning and is never reused. Loaded methods are kept, and
//! unloaded ones until the trees have been read once more. The lock is held for table operations
//! only, never during a call into a CLR.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::base::numbers::NumberMap;
use crate::model::MethodNames;

/// Maximum number of methods: about 100 bytes each with their entries, so about 12 MiB. Further
/// methods are not hooked.
const MAX_METHODS: usize = 128 * 1024;
/// From here on numbers have special meanings in a tree (`stack::NO_METHOD` and the like).
const MAX_NUMBER: u32 = u32::MAX - 16;

/// A hooked method.
#[derive(Clone, Debug)]
pub(crate) struct HookedMethod {
    pub(crate) runtime: u8,
    pub(crate) function: usize,
    /// Names of a method that may be unloaded, until the agent thread takes them.
    pub(crate) names: Option<Box<MethodNames>>,
    /// Whether it may be unloaded: the runtime must not be queried about it later.
    pub(crate) unloadable: bool,
    /// Whether it was unloaded.
    unloaded: bool,
}

#[derive(Debug, Default)]
struct MethodNumbers {
    methods: NumberMap<u32, HookedMethod>,
    next: u32,
    by_function: HashMap<(u8, usize), u32>,
    /// Numbers of methods by the module with which they are unloaded.
    by_module: HashMap<(u8, usize), Vec<u32>>,
    /// Numbers unloaded since the trees were last read, and before that.
    unloaded: Vec<u32>,
    forgettable: Vec<u32>,
    refused: u64,
}

/// All hooked methods of the process.
#[derive(Debug, Default)]
pub(crate) struct Methods {
    state: Mutex<MethodNumbers>,
}

impl Methods {
    fn state(&self) -> MutexGuard<'_, MethodNumbers> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the number of a function, if it has one.
    pub(super) fn number(&self, runtime: u8, function: usize) -> Option<u32> {
        self.state().by_function.get(&(runtime, function)).copied()
    }

    /// Assigns a number to a function. `unloadable`: the module with which it is unloaded, and its
    /// names. Returns `None` if there are too many.
    pub(super) fn insert(
        &self,
        runtime: u8,
        function: usize,
        unloadable: Option<(usize, Option<MethodNames>)>,
    ) -> Option<u32> {
        let mut state = self.state();
        let state = &mut *state;
        if let Some(known) = state.by_function.get(&(runtime, function)) {
            return Some(*known);
        }
        let number = state.next;
        if state.methods.len() >= MAX_METHODS || number >= MAX_NUMBER {
            state.refused += 1;
            return None;
        }
        state.next += 1;
        let (module, names) = unloadable.unzip();
        let method = HookedMethod {
            runtime,
            function,
            names: names.flatten().map(Box::new),
            unloadable: module.is_some(),
            unloaded: false,
        };
        state.methods.insert(number, method);
        state.by_function.insert((runtime, function), number);
        if let Some(module) = module {
            let of_module = state.by_module.entry((runtime, module)).or_default();
            of_module.push(number);
        }
        Some(number)
    }

    /// Marks a module's functions as unloaded: their ids may be reused.
    pub(super) fn module_unloaded(&self, runtime: u8, module: usize) {
        let mut state = self.state();
        let state = &mut *state;
        for number in state
            .by_module
            .remove(&(runtime, module))
            .unwrap_or_default()
        {
            if let Some(method) = state.methods.get_mut(&number) {
                method.unloaded = true;
                let key = (runtime, method.function);
                if state.by_function.get(&key) == Some(&number) {
                    state.by_function.remove(&key);
                }
                state.unloaded.push(number);
            }
        }
    }

    /// Whether the function of a number may still be called.
    pub(super) fn is_loaded(&self, number: u32) -> bool {
        self.state()
            .methods
            .get(&number)
            .is_some_and(|method| !method.unloaded)
    }

    /// Returns the method of a number, and takes its names.
    pub(crate) fn take(&self, number: u32) -> Option<HookedMethod> {
        let mut state = self.state();
        let method = state.methods.get_mut(&number)?;
        let names = method.names.take();
        Some(HookedMethod {
            names,
            ..method.clone()
        })
    }

    /// Begins a reading of all trees. It names the methods unloaded by now that a tree contains.
    pub(crate) fn begin_reading(&self) {
        let mut state = self.state();
        let state = &mut *state;
        state.forgettable.append(&mut state.unloaded);
    }

    /// Ends the reading of all trees. Returns the numbers that are no longer valid.
    pub(crate) fn end_reading(&self) -> Vec<u32> {
        let mut state = self.state();
        let state = &mut *state;
        let gone = std::mem::take(&mut state.forgettable);
        for number in &gone {
            state.methods.remove(number);
        }
        gone
    }

    /// Returns how many functions got no number since the last call.
    pub(crate) fn take_refused(&self) -> u64 {
        std::mem::take(&mut self.state().refused)
    }

    /// Returns the approximate bytes held.
    pub(crate) fn memory(&self) -> u64 {
        let state = self.state();
        let methods = state.methods.capacity() * (size_of::<HookedMethod>() + 5);
        (methods + state.by_function.capacity() * 25) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str) -> Option<MethodNames> {
        Some(MethodNames {
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
    #[test]
    fn methods_that_come_and_go_for_ever_find_room_for_ever() {
        let methods = Methods::default();
        for module in 0..300 {
            for function in 0..1000 {
                let names = Some((module, names("M")));
                assert!(methods.insert(0, module << 16 | function, names).is_some());
            }
            methods.module_unloaded(0, module);
            if module % 100 == 99 {
                methods.begin_reading();
                methods.end_reading();
            }
        }
        let state = methods.state();
        assert_eq!((state.methods.len(), state.next), (0, 300_000));
    }

    #[test]
    fn what_is_unloaded_while_trees_are_read_stays_for_the_next_reading() {
        let methods = Methods::default();
        let early = methods.insert(0, 1, Some((7, names("Early")))).unwrap();
        let late = methods.insert(0, 2, Some((8, names("Late")))).unwrap();
        methods.module_unloaded(0, 7);
        methods.begin_reading();
        methods.module_unloaded(0, 8);
        assert_eq!(methods.end_reading(), [early]);
        assert_eq!(methods.take(late).unwrap().names.unwrap().name, "Late");
        assert!(methods.take(early).is_none());
        methods.begin_reading();
        assert_eq!(methods.end_reading(), [late]);
    }
}
