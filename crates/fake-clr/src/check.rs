//! Checks at the head of each fake method, from the call rules table `corprof::sys::rules`.
//!
//! Source: the macros `PROFILER_TO_CLR_ENTRYPOINT_*` and `AreCallbackStateFlagsSet` of
//! `vm/proftoeeinterfaceimpl.{cpp,inl}`, and the additional checks of some methods.

use corprof::sys::Hresult;
use corprof::sys::rules::{CallRule, Entry, RuntimeVersion};

use crate::state::{ClrState, RunningThread, Shared, Status, os_thread};

/// A call that the check refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The method.
    pub method: &'static str,
    /// The result.
    pub answer: Hresult,
}

/// Checks a call; `Ok` accepts it.
pub(crate) fn admit(shared: &Shared, state: &ClrState, rule: &CallRule) -> Result<(), Hresult> {
    let running = shared.running();
    let entry = rule.entry(shared.version);
    match entry {
        Entry::Absent => return Err(Hresult::E_NOINTERFACE),
        Entry::NotImplemented => return Err(Hresult::E_NOTIMPL),
        Entry::Unchecked => return Ok(()),
        _ => {}
    }
    // ForceGC checks the thread before its macro does.
    if rule.name == "ForceGC" {
        if !state.started {
            return Err(Hresult::CORPROF_E_NOT_YET_AVAILABLE);
        }
        if running.is_some_and(|running| !running.forced) {
            return Err(Hresult::CORPROF_E_UNSUPPORTED_CALL_SEQUENCE);
        }
    }
    if state.status == Status::Detaching {
        return Err(Hresult::CORPROF_E_PROFILER_DETACHING);
    }
    if state.attached && !rule.after_attach() {
        return Err(Hresult::CORPROF_E_UNSUPPORTED_FOR_ATTACHING_PROFILER);
    }
    match entry {
        Entry::InitOnly if state.status != Status::InitializingForStartup => {
            return Err(Hresult::CORPROF_E_CALL_ONLY_FROM_INIT);
        }
        Entry::Sync if !has_state(running, false) => {
            return Err(Hresult::CORPROF_E_UNSUPPORTED_CALL_SEQUENCE);
        }
        Entry::SyncTriggers if !has_state(running, true) => {
            return Err(Hresult::CORPROF_E_UNSUPPORTED_CALL_SEQUENCE);
        }
        _ => {}
    }
    own_check(shared, state, rule, running)
}

/// `AreCallbackStateFlagsSet`: accepts every thread that is unknown to the runtime.
fn has_state(running: Option<RunningThread>, triggers: bool) -> bool {
    running.is_none_or(|running| {
        running.forced || (running.in_callback && (!triggers || running.in_triggers_scope))
    })
}

/// Additional checks of individual methods.
fn own_check(
    shared: &Shared,
    state: &ClrState,
    rule: &CallRule,
    running: Option<RunningThread>,
) -> Result<(), Hresult> {
    let refused = Err(Hresult::CORPROF_E_UNSUPPORTED_CALL_SEQUENCE);
    match rule.name {
        // AllowObjectInspection.
        "GetObjectSize" | "GetObjectSize2" | "GetArrayObjectInfo" | "GetClassFromObject" => {
            if state.waits.collector().is_some() {
                return Ok(());
            }
            match running {
                None => Err(Hresult::CORPROF_E_NOT_MANAGED_THREAD),
                Some(running) if !running.cooperative => refused,
                Some(_) => Ok(()),
            }
        }
        // ThreadStore::HoldingThreadStore.
        "EnumModules" | "GetAppDomainsContainingModule"
            if state.suspended_by == Some(os_thread()) =>
        {
            refused
        }
        "SuspendRuntime" | "EnumerateGCHeapObjects"
            if shared.version == RuntimeVersion::Net10
                && running.is_some_and(|running| {
                    !running.forced && running.in_callback && !running.in_triggers_scope
                }) =>
        {
            refused
        }
        "ResumeRuntime" if state.suspended_by.is_none() => refused,
        "SuspendRuntime" | "ResumeRuntime" if !state.started => {
            Err(Hresult::CORPROF_E_RUNTIME_UNINITIALIZED)
        }
        _ => Ok(()),
    }
}
