//! The fake finalizer thread, on which the runtime unloads code; idle unless the script uses it.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::state::rejit::own_tid;
use crate::{FakeClr, Thread};

type FinalizerTask = Box<dyn FnOnce() + Send>;

/// An operating system thread with the name of the .NET finalizer thread, and a managed thread.
#[derive(Debug)]
pub struct Finalizer {
    /// The managed thread.
    pub thread: Thread,
    work: Option<Sender<FinalizerTask>>,
    handle: Option<JoinHandle<()>>,
}

impl FakeClr {
    /// Starts the finalizer thread. Without one, a profiler cannot know whether code is being
    /// unloaded.
    pub fn start_finalizer(&self) -> Finalizer {
        let (work, works) = channel::<FinalizerTask>();
        let (sender, receiver) = channel();
        let handle = std::thread::Builder::new().name(".NET Finalizer".into());
        let handle = handle.spawn(move || {
            let _started = sender.send(own_tid());
            for work in works {
                work();
            }
        });
        let thread = self.add_thread();
        let tid = receiver.recv().expect("the thread has started");
        self.set_os_thread(thread, tid);
        Finalizer {
            thread,
            work: Some(work),
            handle: handle.ok(),
        }
    }
}

impl Finalizer {
    /// Runs `f` on this thread and waits for the result.
    pub fn run<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> R {
        let (sender, receiver) = channel();
        let work: FinalizerTask = Box::new(move || {
            let _nobody_waits = sender.send(f());
        });
        let sent = self.work.as_ref().map(|works| works.send(work));
        assert!(matches!(sent, Some(Ok(()))), "the thread has ended");
        receiver.recv().expect("`f` has panicked")
    }
}

impl Drop for Finalizer {
    fn drop(&mut self) {
        self.work = None;
        if let Some(handle) = self.handle.take() {
            let _panicked = handle.join();
        }
    }
}
