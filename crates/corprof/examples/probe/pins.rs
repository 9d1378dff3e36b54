//! Test of `ThreadPins`: threads that end while they are being walked.
//!
//! The probe's own thread pins every known thread, suspends the runtime, walks the threads and
//! resumes. It then checks that `ThreadDestroyed` has not returned for any of them.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use corprof::context::{Callback, Startup};
use corprof::{AgentCx, Cx, Hresult, Result, Runtime, StackSnapshots, ThreadKey, ThreadPins};

#[derive(Default)]
pub(crate) struct Pinned {
    pins: ThreadPins,
    /// Live threads. `gone` has those whose `ThreadDestroyed` has returned.
    alive: Mutex<HashSet<ThreadKey>>,
    gone: Mutex<HashSet<ThreadKey>>,
    over: AtomicBool,
    walker: Mutex<Option<JoinHandle<()>>>,
    walks: AtomicU64,
    /// Number of times that `ThreadDestroyed` found a pin.
    waited: AtomicU64,
    /// Number of threads that ended while pinned.
    lost: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pinned {
    pub(crate) fn begin(&'static self, cx: &Cx<'_, Startup>, proof: StackSnapshots) -> Result<()> {
        let runtime = cx.info().runtime();
        let walker = corprof::spawn_agent_thread("probe", move |agent| {
            while !self.over.load(Ordering::Relaxed) {
                self.walk_all(agent, &runtime, &proof);
            }
        });
        *lock(&self.walker) = Some(walker.map_err(|_| Hresult::E_FAIL)?);
        Ok(())
    }

    fn walk_all(&self, agent: &mut AgentCx, runtime: &Runtime, proof: &StackSnapshots) {
        let known: Vec<ThreadKey> = lock(&self.alive).iter().copied().collect();
        let pins: Vec<_> = known
            .into_iter()
            .filter_map(|key| Some((key, self.pins.pin(key)?)))
            .collect();
        agent.enter(runtime, |cx| {
            let info = cx.info();
            // Busy or not started yet: retried in the next round.
            let Ok(mut suspension) = info.suspend_runtime(cx) else {
                return;
            };
            for thread in suspension.enum_threads().unwrap_or_default() {
                if pins.iter().any(|(key, _)| *key == info.key(thread)) {
                    let walked =
                        suspension.walk(proof, thread, |_, _| ControlFlow::<()>::Continue(()));
                    self.walks
                        .fetch_add(u64::from(walked.is_ok()), Ordering::Relaxed);
                }
            }
        });
        let gone = lock(&self.gone);
        let lost = pins.iter().filter(|(key, _)| gone.contains(key)).count();
        self.lost.fetch_add(lost as u64, Ordering::Relaxed);
    }

    pub(crate) fn created(&self, thread: ThreadKey) {
        // The runtime reuses ids.
        lock(&self.gone).remove(&thread);
        self.pins.created(thread);
        lock(&self.alive).insert(thread);
    }

    pub(crate) fn destroyed(&self, cx: &mut Cx<'_, Callback>, thread: ThreadKey) {
        lock(&self.alive).remove(&thread);
        if !self.pins.destroyed_within(cx, thread, Duration::ZERO) {
            self.waited.fetch_add(1, Ordering::Relaxed);
            self.pins.destroyed(cx, thread);
        }
        lock(&self.gone).insert(thread);
    }

    /// Ends the walks and returns a summary.
    pub(crate) fn end(&self) -> Result<String> {
        self.over.store(true, Ordering::Relaxed);
        let walker = lock(&self.walker).take();
        if let Some(walker) = walker {
            walker.join().map_err(|_| Hresult::E_FAIL)?;
        }
        let [walks, waited, lost] =
            [&self.walks, &self.waited, &self.lost].map(|count| count.load(Ordering::Relaxed));
        Ok(format!("walks {walks} waited {waited} lost {lost}"))
    }
}
