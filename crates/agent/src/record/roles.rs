//! Roles of methods in exception handling, runtime events and tasks, determined by their names.
//!
//! The kind of a stack is recognised by frames that only the runtime's own methods have. No runtime
//! is queried. Invariant: a frame has the roles of its method, which never change.

use crate::clr::async_types;
use crate::model::MethodNames;

const EVENT_SOURCE: &str = "System.Diagnostics.Tracing.NativeRuntimeEventSource";

/// A set of roles.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Roles(u16);

impl Roles {
    /// Part of the runtime's managed exception handling.
    pub(super) const DISPATCH: Roles = Roles(1);
    /// Resumes async methods.
    pub(super) const RESUMER: Roles = Roles(1 << 1);
    /// The `MoveNext` of a task's box, a [`RESUMER`](Roles::RESUMER) that belongs to tasks only.
    pub(super) const OWN_RESUMER: Roles = Roles(1 << 2);
    /// On the stack of a task between the method that runs it and the code that it runs.
    pub(super) const OF_TASK: Roles = Roles(1 << 3);
    /// Runs a task.
    pub(super) const RUNNER: Roles = Roles(1 << 4);
    /// Takes tasks from a queue.
    pub(super) const DISPATCHER: Roles = Roles(1 << 5);
    /// Dispatches continuations of runtime async.
    pub(super) const CONTINUER: Roles = Roles(1 << 6);
    /// On the stack between a [`CONTINUER`](Roles::CONTINUER) and the method that it resumes.
    pub(super) const RESUME_STUB: Roles = Roles(1 << 7);
    /// Method of the runtime's library that suspends an awaiting method.
    pub(super) const OF_AWAIT: Roles = Roles(1 << 8);
    /// A worker of `Parallel.ForEachAsync`, which is not awaited.
    pub(super) const WORKER: Roles = Roles(1 << 10);
    /// The `MoveNext` of a state machine or of an enumerator.
    pub(super) const MACHINE: Roles = Roles(1 << 11);
    /// Reports the class library's work by an event of the runtime: lock waits, from .NET 9 on.
    pub(super) const EVENT_SOURCE: Roles = Roles(1 << 9);

    /// Returns the roles of a method.
    pub(super) fn of(names: &MethodNames) -> Roles {
        let is_own = names.name == "MoveNext" && names.type_name.contains("StateMachineBox`1");
        let roles = [
            (Roles::DISPATCH, names.type_name == "System.Runtime.EH"),
            (Roles::RESUMER, async_types::is_resumer(names)),
            (Roles::OWN_RESUMER, is_own),
            (Roles::OF_TASK, async_types::is_of_task(names)),
            (Roles::RUNNER, async_types::runs_tasks(names)),
            (Roles::DISPATCHER, async_types::dispatches(names)),
            (
                Roles::CONTINUER,
                async_types::dispatches_continuations(names),
            ),
            (Roles::RESUME_STUB, async_types::resumes_continuation(names)),
            (Roles::OF_AWAIT, async_types::is_of_await(names)),
            (Roles::MACHINE, names.name == "MoveNext" && !is_own),
            (Roles::WORKER, async_types::is_worker(names)),
            (Roles::EVENT_SOURCE, names.type_name == EVENT_SOURCE),
        ];
        let bits = roles.iter().filter(|(_, has)| *has).map(|(role, _)| role.0);
        Roles(bits.fold(0, |all, bit| all | bit))
    }

    /// Whether `self` has all of these roles.
    pub(super) fn has(self, roles: Roles) -> bool {
        self.0 & roles.0 == roles.0
    }

    /// Whether the set is empty.
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }
}
