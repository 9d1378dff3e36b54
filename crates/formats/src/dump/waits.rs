//! Table of what a thread waits for, by its frames or its system call, and the lookup in it.

use profile::Profile;
use profile::model::{FrameId, FrameKind, Thread};

use crate::labels::Labels;

/// Prefix of a frame's name, and the description of the wait. Compared are the frames from the leaf
/// to the first method of the program. The match nearest to the root counts, because it is the most
/// specific.
const BY_FRAME: &[(&str, &str)] = &[
    // Waits of the program through the class library.
    ("System.Threading.Monitor.Enter", "waits for a lock"),
    ("System.Threading.Monitor.ReliableEnter", "waits for a lock"),
    ("System.Threading.Monitor.TryEnter", "waits for a lock"),
    ("System.Threading.Lock.", "waits for a lock"),
    (
        "System.Threading.Monitor.Wait",
        "waits for a pulse of a lock",
    ),
    // The method that implements it since .NET 11. A tail jump to it leaves no other frame.
    (
        "System.Threading.Condition.Wait",
        "waits for a pulse of a lock",
    ),
    ("System.Threading.Thread.Sleep", "waits for time to pass"),
    ("System.Threading.Thread.Join", "waits for a thread to end"),
    (
        "System.Threading.WaitHandle.WaitAny",
        "waits for one of several events",
    ),
    (
        "System.Threading.WaitHandle.WaitAll",
        "waits for several events",
    ),
    ("System.Threading.WaitHandle.WaitOne", "waits for an event"),
    (
        "System.Threading.WaitHandle.WaitMultiple",
        "waits for several events",
    ),
    (
        "System.Threading.ManualResetEventSlim.Wait",
        "waits for an event",
    ),
    (
        "System.Threading.CountdownEvent.Wait",
        "waits for a countdown",
    ),
    (
        "System.Threading.Barrier.SignalAndWait",
        "waits at a barrier",
    ),
    (
        "System.Threading.SemaphoreSlim.Wait",
        "waits for a semaphore",
    ),
    (
        "System.Threading.ReaderWriterLockSlim.",
        "waits for a lock for readers and a writer",
    ),
    ("System.Threading.SpinWait.", "spins"),
    ("System.Threading.SpinLock.", "waits for a spin lock"),
    ("System.Threading.Tasks.Task.Wait", "waits for a task"),
    (
        "System.Threading.Tasks.Task.InternalWait",
        "waits for a task",
    ),
    (
        "System.Threading.Tasks.Task.SpinThenBlockingWait",
        "waits for a task",
    ),
    (
        "System.Runtime.CompilerServices.TaskAwaiter",
        "waits for a task",
    ),
    (
        "System.Collections.Concurrent.BlockingCollection",
        "waits for an item",
    ),
    (
        "System.Diagnostics.Process.WaitForExit",
        "waits for a process to end",
    ),
    ("System.Console.Read", "reads the console"),
    ("System.Net.Sockets.Socket.Accept", "waits for a connection"),
    (
        "System.Net.Sockets.Socket.Receive",
        "waits for data of a socket",
    ),
    (
        "System.Net.Sockets.Socket.Connect",
        "waits for a connection",
    ),
    ("System.IO.RandomAccess.Read", "reads a file"),
    // The class library's own threads.
    (
        "System.Threading.PortableThreadPool+WorkerThread.",
        "waits for work of the thread pool",
    ),
    (
        "System.Threading.PortableThreadPool.WorkerThread.",
        "waits for work of the thread pool",
    ),
    (
        "System.Threading.PortableThreadPool+GateThread.",
        "manages the thread pool",
    ),
    (
        "System.Threading.PortableThreadPool.GateThread.",
        "manages the thread pool",
    ),
    (
        "System.Threading.LowLevelLifoSemaphore.",
        "waits for work of the thread pool",
    ),
    (
        "System.Threading.TimerQueue.",
        "waits for a timer to be due",
    ),
    (
        "System.Net.Sockets.SocketAsyncEngine.",
        "waits for any socket",
    ),
    // The runtime, where its symbols are there.
    ("AwareLock::Enter", "waits for a lock"),
    ("JIT_MonEnter", "waits for a lock"),
    ("JIT_MonReliableEnter", "waits for a lock"),
    (
        "Thread::RareDisablePreemptiveGC",
        "waits for a collection to end",
    ),
    (
        "WKS::GCHeap::WaitUntilGCComplete",
        "waits for a collection to end",
    ),
    (
        "SVR::GCHeap::WaitUntilGCComplete",
        "waits for a collection to end",
    ),
    (
        "FinalizerThread::WaitForFinalizerEvent",
        "waits for objects to finalize",
    ),
    (
        "FinalizerThread::FinalizerThreadWorker",
        "waits for objects to finalize",
    ),
    ("ds_ipc_stream_factory", "waits for diagnostic commands"),
    (
        "TieredCompilation",
        "recompiles methods, or waits for methods to recompile",
    ),
];

/// Waits by system call, where no frame says more. Numbers of x86-64.
const BY_CALL: &[(u32, &str)] = &[
    (0, "reads"),
    (1, "writes"),
    (2, "opens a file or a pipe"),
    (7, "polls"),
    (17, "reads a file"),
    (18, "writes a file"),
    (19, "reads"),
    (20, "writes"),
    (23, "polls"),
    (34, "waits for a signal"),
    (35, "waits for time to pass"),
    (42, "waits for a connection"),
    (43, "waits for a connection"),
    (44, "sends"),
    (45, "receives"),
    (46, "sends"),
    (47, "receives"),
    (61, "waits for a process to end"),
    (74, "waits for a disk"),
    (75, "waits for a disk"),
    (128, "waits for a signal"),
    (202, "waits (futex)"),
    (230, "waits for time to pass"),
    (232, "waits for any of several files or sockets (epoll)"),
    (247, "waits for a process to end"),
    (257, "opens a file or a pipe"),
    (270, "polls"),
    (271, "polls"),
    (281, "waits for any of several files or sockets (epoll)"),
    (288, "waits for a connection"),
    (441, "waits for any of several files or sockets (epoll)"),
];

/// The activities of threads of the runtime's own where no frame says more, since its symbols are
/// not there as a rule: their names, as far as the kernel keeps them (vm/, `SetThreadName` and
/// `PAL_CreateThread`).
const BY_NAME: &[(&str, &str)] = &[
    (".NET Finalizer", "waits for objects to finalize"),
    (".NET Tiered Com", "waits for methods to recompile"),
    (".NET Tiered JIT", "waits for methods to recompile"),
    (".NET SynchManag", "manages waits of the runtime"),
    (".NET EventPipe", "waits for diagnostic commands"),
    (".NET DebugPipe", "waits for a debugger"),
    (".NET Debugger", "waits for a debugger"),
    (".NET SigHandler", "waits for a signal"),
    (".NET Server GC", "waits for a collection to start"),
    (".NET BGC", "waits for a collection to start"),
    (".NET Timer", "waits for a timer to be due"),
    (".NET TP Gate", "manages the thread pool"),
    (".NET TP Worker", "waits for work of the thread pool"),
];

const FUTEX: u32 = 202;

/// The module of the class library's core.
const CORE: &str = "System.Private.CoreLib.dll";

/// Returns what a thread with these frames, leaf first, waits for; empty where it does not wait or
/// that is not known.
pub(super) fn wait_of(
    profile: &Profile,
    labels: &Labels<'_>,
    thread: &Thread,
    frames: &[FrameId],
) -> String {
    let Some(state) = &thread.state else {
        return String::new();
    };
    if state.code == 'R' {
        return String::new();
    }
    let mut by_frame = "";
    // The runtime was called by the program itself, and by no wait of the class library's.
    let mut is_below_program = false;
    let mut has_runtime = false;
    for frame in frames {
        let found = profile.frame(*frame);
        let name = labels.name(*frame);
        if let Some((_, what)) = BY_FRAME.iter().find(|(begin, _)| name.starts_with(begin)) {
            by_frame = what;
        }
        match found.kind {
            FrameKind::Runtime => has_runtime = true,
            FrameKind::Managed => {
                let module = found
                    .module
                    .map(|module| profile.module(module).file_name());
                let is_library = module == Some(CORE) || name.starts_with("System.");
                if !is_library {
                    is_below_program = has_runtime;
                    break;
                }
                has_runtime = false;
            }
            _ => {}
        }
    }
    if !by_frame.is_empty() {
        return by_frame.to_owned();
    }
    if state.syscall == Some(FUTEX) && is_below_program {
        return "waits in the runtime: for a lock (Monitor), a class constructor, or a collection"
            .to_owned();
    }
    if let Some((_, what)) = BY_NAME.iter().find(|(name, _)| thread.name == *name) {
        return (*what).to_owned();
    }
    let by_call = state.syscall.and_then(|call| {
        let known = BY_CALL.iter().find(|(number, _)| *number == call);
        known.map(|(_, what)| *what)
    });
    match by_call {
        Some(what) => what.to_owned(),
        None if is_unreadable(profile, thread) => "what it waits for cannot be read".to_owned(),
        None => String::new(),
    }
}

/// Whether the kernel reported the system call of no thread of the process: it does not where the
/// process has privileges of its own.
fn is_unreadable(profile: &Profile, thread: &Thread) -> bool {
    let has_syscall = |other: &Thread| {
        let call = other.state.as_ref().and_then(|state| state.syscall);
        other.process == thread.process && call.is_some()
    };
    !profile.threads.iter().any(has_syscall)
}
