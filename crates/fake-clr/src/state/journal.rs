//! Journal of the profiler's calls, and scripts that run on other threads during a call.
//!
//! Invariant: the wait of a call for such a script is bounded.

use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::FakeClr;
use crate::state::{ClrState, Shared};

/// Maximum wait. A script that takes longer is assumed to wait for a lock of the profiler.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// One call of the profiler that passed the call rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The method.
    pub method: &'static str,
    /// Name of the calling thread; empty if it has none.
    pub thread: String,
    /// Arguments of some methods: masks, open flags, tokens, milliseconds, keywords and level.
    pub arguments: Vec<u64>,
    /// Whether the call has returned.
    pub is_over: bool,
}

/// The moment of a call at which a script runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum When {
    Before,
    After,
}

/// A script that runs on its own thread during a call.
pub(crate) type Meanwhile = Box<dyn FnOnce() + Send>;

impl Shared {
    /// Adds arguments to the journal entry of the current call on this thread.
    pub(crate) fn note(&self, arguments: impl IntoIterator<Item = u64>) {
        let thread = own_name();
        let journal = &mut self.lock().journal;
        if let Some(call) = journal.iter_mut().rfind(|call| call.thread == thread) {
            call.arguments.extend(arguments);
        }
    }

    /// Runs the script that was set for this moment, if any.
    pub(crate) fn meanwhile(&self, method: &'static str, when: When) {
        let Some(f) = self.lock().meanwhile.remove(&(method, when)) else {
            return;
        };
        let (sender, receiver) = channel();
        // Not joined: a script that waits for a lock of the profiler never ends.
        std::thread::spawn(move || {
            f();
            let _nobody_waits = sender.send(());
        });
        if receiver.recv_timeout(CALL_TIMEOUT).is_err() {
            self.crash(&format!(
                "another thread did not get on while {method} was called"
            ));
        }
    }
}

pub(crate) fn own_name() -> String {
    let thread = std::thread::current();
    thread.name().unwrap_or_default().to_owned()
}

impl FakeClr {
    /// All calls that passed the call rules, in order.
    pub fn journal(&self) -> Vec<Call> {
        self.shared.lock().journal.clone()
    }

    /// The calls of one method.
    pub fn calls_of(&self, method: &str) -> Vec<Call> {
        let mut calls = self.journal();
        calls.retain(|call| call.method == method);
        calls
    }

    /// Waits until this many calls of a method have returned.
    ///
    /// # Panics
    /// If that takes more than twenty seconds.
    pub fn wait_for_calls(&self, method: &str, count: usize) {
        let state = self.shared.lock();
        let are_missing = |state: &mut ClrState| {
            let calls = state.journal.iter();
            calls
                .filter(|call| call.method == method && call.is_over)
                .count()
                < count
        };
        let changed = &self.shared.changed;
        let waited = changed.wait_timeout_while(state, CALL_TIMEOUT, are_missing);
        let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        assert!(!waited.timed_out(), "{method} was not called");
    }

    /// Runs `f` on another thread during the next call of a method, and waits for it. `f` simulates
    /// the other threads of a program. If the profiler holds a lock that `f` needs,
    /// [`FakeClr::crashes`] reports it.
    pub fn meanwhile(&self, method: &'static str, f: impl FnOnce() + Send + 'static) {
        let known = &mut self.shared.lock().meanwhile;
        known.insert((method, When::Before), Box::new(f));
    }

    /// As [`FakeClr::meanwhile`], after the method has done its work and before it returns.
    pub fn after(&self, method: &'static str, f: impl FnOnce() + Send + 'static) {
        let known = &mut self.shared.lock().meanwhile;
        known.insert((method, When::After), Box::new(f));
    }

    /// The public handle of a runtime.
    pub(crate) fn of(shared: &Arc<Shared>) -> FakeClr {
        FakeClr {
            shared: Arc::clone(shared),
        }
    }
}
