//! Roles of methods on the way of an exception, of an event or of a task, by their names.
//!
//! Stacks are told apart by frames that only the runtime's own methods make. Nothing here is asked
//! of a runtime. Invariant: a frame has the roles of its method, which never change.

use crate::clr::async_types;
use crate::model::MethodNames;

const EVENT_SOURCE: &str = "System.Diagnostics.Tracing.NativeRuntimeEventSource";

/// A set of roles.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Roles(u16);

impl Roles {
    /// Of the runtime's managed exception handling.
    pub(super) const DISPATCH: Roles = Roles(1);
    /// It resumes async methods.
    pub(super) const RESUMER: Roles = Roles(1 << 1);
    /// Tasks' own `MoveNext` among those, which is none but a task's.
    pub(super) const OWN_RESUMER: Roles = Roles(1 << 2);
    /// A task has it on the stack between who runs it and what it runs.
    pub(super) const OF_TASK: Roles = Roles(1 << 3);
    /// It runs a task.
    pub(super) const RUNNER: Roles = Roles(1 << 4);
    /// It takes tasks from a queue.
    pub(super) const DISPATCHER: Roles = Roles(1 << 5);
    /// It dispatches continuations of runtime async.
    pub(super) const CONTINUER: Roles = Roles(1 << 6);
    /// It stands between those and the methods that they resume.
    pub(super) const RESUME_STUB: Roles = Roles(1 << 7);
    /// The runtime's library suspends in it what awaits something.
    pub(super) const OF_AWAIT: Roles = Roles(1 << 8);
    /// A worker that is not awaited, of `Parallel.ForEachAsync`.
    pub(super) const WORKER: Roles = Roles(1 << 10);
    /// A state machine's own, or an enumerator's.
    pub(super) const MACHINE: Roles = Roles(1 << 11);
    /// It reports the class library's work by an event of the runtime's: waits for locks, from .NET
    /// 9 on.
    pub(super) const EVENT_SOURCE: Roles = Roles(1 << 9);

    /// Those of a method.
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

    /// Whether all of these are among them.
    pub(super) fn has(self, roles: Roles) -> bool {
        self.0 & roles.0 == roles.0
    }

    /// Whether there is none.
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }
}
