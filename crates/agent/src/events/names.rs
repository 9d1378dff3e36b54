//! Cache of class and method names that callbacks need repeatedly.
//!
//! A query of the runtime for a name takes several microseconds. Invariants: the lock is a leaf,
//! never held over a call into the CLR. A name is removed before its id can be reused (unload of a
//! collectible module). At most [`MAX`] names are kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use corprof::context::Synchronous;
use corprof::{ClassId, Cx, FunctionId};

use crate::clr::{Clr, names};

/// Maximum number of names; the cache is cleared when it is full.
const MAX: usize = 8192;

type ById = HashMap<usize, Arc<str>>;

/// The cached names of one CLR.
#[derive(Debug, Default)]
pub(crate) struct NameCache {
    classes: Mutex<ById>,
    functions: Mutex<ById>,
}

fn lock(names: &Mutex<ById>) -> MutexGuard<'_, ById> {
    names.lock().unwrap_or_else(|e| e.into_inner())
}

fn remember(names: &Mutex<ById>, id: usize, name: &Arc<str>) {
    let mut names = lock(names);
    if names.len() >= MAX {
        names.clear();
    }
    names.insert(id, Arc::clone(name));
}

impl NameCache {
    /// Returns the name of a class with its type arguments.
    pub(crate) fn class<'rt, C: Synchronous>(
        &self,
        clr: &Clr,
        cx: &Cx<'rt, C>,
        class: ClassId<'rt>,
    ) -> Arc<str> {
        if let Some(name) = lock(&self.classes).get(&class.raw()) {
            return Arc::clone(name);
        }
        let name: Arc<str> = names::of_class(clr, cx, class).into();
        remember(&self.classes, class.raw(), &name);
        name
    }

    /// Returns `Type.Method` of a method.
    pub(crate) fn function<'rt, C: Synchronous>(
        &self,
        clr: &Clr,
        cx: &Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) -> Arc<str> {
        if let Some(name) = lock(&self.functions).get(&function.raw()) {
            return Arc::clone(name);
        }
        match names::of_function(clr, cx, function) {
            Some(found) => {
                let name: Arc<str> = format!("{}.{}", found.type_name, found.name).into();
                remember(&self.functions, function.raw(), &name);
                name
            }
            // Not cached: the unload of a dynamic method is reported too late.
            None => names::of_dynamic(cx, function)
                .map_or_else(|| "?".into(), |found| found.name.into()),
        }
    }

    /// Clears the cache, because ids are about to be reused.
    pub(crate) fn forget(&self) {
        lock(&self.classes).clear();
        lock(&self.functions).clear();
    }
}
