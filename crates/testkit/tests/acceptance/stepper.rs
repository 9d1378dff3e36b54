//! Stops a process at a given system call (a step) and kills it or another process there.
//!
//! A step is the instant before or after a system call of a thread, selected by the call and its
//! subject: the file, the socket, the message. Tool and agent interact only by system calls, so
//! `ptrace` is enough and neither has test code. In the program only two threads and their children
//! are traced: the one that serves the diagnostics socket, and the agent thread. The others run
//! untouched. Invariant: when [`Stepper::run_to_end`] returns, no thread is traced.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// Time limit, longer than any tool runs in these tests.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The thread or process that makes a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Actor {
    /// `sidewalk record`.
    Tool,
    /// The runtime's thread that serves the diagnostics socket. It loads the agent.
    Runtime,
    /// The agent thread.
    Agent,
    /// The runtime's thread that detaches profilers.
    Detach,
}

/// Whether a step is before or after the system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edge {
    Before,
    After,
}

/// A step: the `nth` occurrence of a system call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) actor: Actor,
    pub(crate) edge: Edge,
    call: &'static str,
    /// Part of the subject's text.
    subject: &'static str,
    nth: usize,
}

impl Step {
    /// The step before a call. [`Step::nth`] selects the occurrence.
    pub(crate) const fn before(
        name: &'static str,
        actor: Actor,
        call: &'static str,
        subject: &'static str,
    ) -> Step {
        Step {
            name,
            actor,
            edge: Edge::Before,
            call,
            subject,
            nth: 1,
        }
    }

    /// After it.
    pub(crate) const fn after(
        name: &'static str,
        actor: Actor,
        call: &'static str,
        subject: &'static str,
    ) -> Step {
        Step {
            edge: Edge::After,
            ..Step::before(name, actor, call, subject)
        }
    }

    /// Not the first one.
    pub(crate) const fn nth(self, nth: usize) -> Step {
        Step { nth, ..self }
    }
}

/// The outcome for the tool.
#[derive(Debug)]
pub(crate) struct StepOutcome {
    /// Whether it came to the step.
    pub(crate) reached: bool,
    pub(crate) status: ExitStatus,
    pub(crate) message: String,
    /// The calls that were seen, for who looks for a step.
    pub(crate) calls: Vec<String>,
    /// The thread by which the runtime lets go, if it was seen.
    pub(crate) detach: Option<i32>,
}

/// A traced thread.
struct TracedThread {
    tid: i32,
    /// `None`: one that the runtime's has started, until it says who it is.
    actor: Option<Actor>,
    is_detach: bool,
    /// The command of the runtime's protocol that it has sent or received last.
    command: String,
    /// The subject of the call that it is in, as was seen before it.
    call: Option<Call>,
}

impl TracedThread {
    fn new(tid: i32, actor: Option<Actor>) -> TracedThread {
        TracedThread {
            tid,
            actor,
            is_detach: actor == Some(Actor::Detach),
            command: String::new(),
            call: None,
        }
    }
}

#[derive(Clone, Debug)]
struct Call {
    name: &'static str,
    kind: ArgumentKind,
    arguments: [u64; 6],
    subject: String,
}

/// One tool, and one program that it comes to.
pub(crate) struct Stepper {
    step: Step,
    target: u32,
    threads: Vec<TracedThread>,
    /// The process that is traced, or of which threads are.
    traced: u32,
    seen: usize,
    calls: Vec<String>,
}

impl Stepper {
    /// Runs `tool`, which comes to the process `target`, to its end, and calls `at_step` with the
    /// tool's number when the step is reached. `detach`: what an earlier [`StepOutcome`] says of
    /// this process.
    pub(crate) fn run_to_end(
        step: Step,
        target: u32,
        detach: Option<i32>,
        tool: Command,
        at_step: impl FnOnce(u32) + Send,
    ) -> StepOutcome {
        // A tracer is a thread: when it ends, who was traced is not any more.
        std::thread::scope(|scope| {
            let stepper = Stepper {
                step,
                target,
                threads: Vec::new(),
                traced: target,
                seen: 0,
                calls: Vec::new(),
            };
            let tracer = scope.spawn(move || stepper.run(detach, tool, at_step));
            tracer.join().unwrap()
        })
    }

    fn run(
        mut self,
        detach: Option<i32>,
        mut tool: Command,
        at_step: impl FnOnce(u32),
    ) -> StepOutcome {
        tool.stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let is_tool = self.step.actor == Actor::Tool;
        if is_tool {
            // SAFETY: between fork and exec, ptrace alone is called.
            unsafe { tool.pre_exec(|| ptrace_ok(libc::PTRACE_TRACEME, 0, 0, 0)) };
        } else {
            self.seize(diagnostics_thread(self.target), Actor::Runtime)
                .unwrap();
            if let Some(tid) = detach {
                // .NET Core 3.1 starts another one for each attach.
                let _has_ended = self.seize(tid, Actor::Detach);
            }
        }
        let mut child = tool.spawn().unwrap();
        let pid = child.id();
        if is_tool {
            self.traced = pid;
            let tid = pid.cast_signed();
            self.threads.push(TracedThread::new(tid, Some(Actor::Tool)));
            assert_eq!(wait_for(tid).0, tid);
            ptrace_ok(libc::PTRACE_SETOPTIONS, tid, 0, OPTIONS).unwrap();
            resume(tid, 0);
        }
        let mut stderr = child.stderr.take().unwrap();
        let message = std::thread::spawn(move || {
            let mut message = String::new();
            stderr.read_to_string(&mut message).unwrap();
            message
        });
        let watch = KillTimer::over(pid);
        let mut at_step = Some(at_step);
        let status = loop {
            let (tid, status) = wait_for(-1);
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                self.threads.retain(|thread| thread.tid != tid);
                if tid == pid.cast_signed() {
                    break ExitStatus::from_raw(status);
                }
                continue;
            }
            let signal = libc::WSTOPSIG(status);
            let event = status >> 16;
            if signal == libc::SIGTRAP | 0x80 {
                if self.is_at_step(tid)
                    && let Some(at_step) = at_step.take()
                {
                    at_step(pid);
                }
                resume(tid, 0);
            } else if event == libc::PTRACE_EVENT_CLONE {
                self.add_clone(tid);
                resume(tid, 0);
            } else if event != 0 {
                // That it is traced, or has been stopped: not for it.
                self.entry(tid);
                resume(tid, 0);
            } else {
                let is_exec = is_tool && signal == libc::SIGTRAP;
                resume(tid, if is_exec { 0 } else { signal });
            }
        };
        drop(watch);
        // It may have been the last one to hold it.
        drop(child);
        let seen = self.threads.iter().find(|thread| thread.is_detach);
        StepOutcome {
            detach: seen.map(|thread| thread.tid).or(detach),
            reached: at_step.is_none(),
            status,
            message: message.join().unwrap(),
            calls: self.calls,
        }
    }

    /// Begins to trace a thread that runs.
    fn seize(&mut self, tid: i32, actor: Actor) -> std::io::Result<()> {
        ptrace_ok(libc::PTRACE_SEIZE, tid, 0, OPTIONS)?;
        ptrace_ok(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
        self.threads.push(TracedThread::new(tid, Some(actor)));
        Ok(())
    }

    fn add_clone(&mut self, by: i32) {
        let mut tid: libc::c_ulong = 0;
        let place = (&raw mut tid) as u64;
        if ptrace_ok(libc::PTRACE_GETEVENTMSG, by, 0, place).is_ok() {
            self.entry(i32::try_from(tid).unwrap());
        }
    }

    fn entry(&mut self, tid: i32) -> &mut TracedThread {
        let index = self.threads.iter().position(|thread| thread.tid == tid);
        let index = index.unwrap_or_else(|| {
            let actor = (self.step.actor == Actor::Tool).then_some(Actor::Tool);
            self.threads.push(TracedThread::new(tid, actor));
            self.threads.len() - 1
        });
        &mut self.threads[index]
    }

    /// A thread is at a call: whether that is the step.
    fn is_at_step(&mut self, tid: i32) -> bool {
        let Some(info) = call_of(tid) else {
            return false;
        };
        let traced = self.traced;
        let thread = self.entry(tid);
        let actor = thread.actor.unwrap_or_else(|| {
            let path = format!("/proc/{traced}/task/{tid}/comm");
            let comm = fs::read_to_string(path).unwrap_or_default();
            if comm.trim_end() == "sidewalk" {
                thread.actor = Some(Actor::Agent);
                Actor::Agent
            } else {
                thread.is_detach = true;
                Actor::Detach
            }
        });
        let (edge, mut call) = match info {
            Info::Entry(number, arguments) => {
                let Some((_, name, kind)) = CALLS.iter().find(|call| call.0 == number) else {
                    thread.call = None;
                    return false;
                };
                let call = Call {
                    name,
                    kind: *kind,
                    arguments,
                    subject: subject_of(traced, *kind, &arguments, None),
                };
                thread.call = Some(call.clone());
                (Edge::Before, call)
            }
            Info::Exit(result) => {
                let Some(mut call) = thread.call.take() else {
                    return false;
                };
                if result < 0 {
                    return false;
                }
                let subject = subject_of(traced, call.kind, &call.arguments, Some(result));
                if !subject.is_empty() {
                    call.subject = subject;
                }
                if call.name == "prctl" && call.subject == "sidewalk" {
                    thread.actor = Some(Actor::Agent);
                    thread.is_detach = false;
                }
                (Edge::After, call)
            }
        };
        let actor = thread.actor.unwrap_or(actor);
        if let Some(command) = call.subject.strip_prefix(COMMAND_SENT) {
            command.clone_into(&mut thread.command);
        } else if call.subject == COMMAND_ANSWERED {
            call.subject = format!("{COMMAND_ANSWERED}{}", thread.command);
        }
        self.calls
            .push(format!("{actor:?} {edge:?} {} {}", call.name, call.subject));
        let step = self.step;
        let fits = (step.actor, step.edge, step.call) == (actor, edge, call.name)
            // A command of one letter is all that is said.
            && (call.subject == step.subject || step.subject.len() != 1 && call.subject.contains(step.subject));
        self.seen += usize::from(fits);
        fits && self.seen == step.nth
    }
}

/// The tracer hears of calls apart from signals, and of threads that are started.
const OPTIONS: u64 = (libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE) as u64;

/// The way in which a call's subject is determined.
#[derive(Clone, Copy, Debug)]
enum ArgumentKind {
    Nothing,
    /// The text at this argument.
    Text(usize),
    /// The socket's path at this argument.
    Socket(usize),
    /// Bytes that are sent: at this argument, so long as the next one says.
    Sent(usize),
    /// Bytes that have been received: at this argument, so long as the result says.
    Received(usize),
    /// Seconds and nanoseconds at this argument, or that there are none.
    Time(usize),
}

/// The calls that steps are made of.
const CALLS: [(i64, &str, ArgumentKind); 22] = [
    (libc::SYS_openat, "openat", ArgumentKind::Text(1)),
    // By which musl opens.
    (libc::SYS_open, "openat", ArgumentKind::Text(0)),
    (libc::SYS_connect, "connect", ArgumentKind::Socket(1)),
    (libc::SYS_bind, "bind", ArgumentKind::Socket(1)),
    (libc::SYS_listen, "listen", ArgumentKind::Nothing),
    (libc::SYS_accept4, "accept4", ArgumentKind::Nothing),
    (libc::SYS_sendto, "send", ArgumentKind::Sent(1)),
    (libc::SYS_write, "write", ArgumentKind::Sent(1)),
    (libc::SYS_recvfrom, "receive", ArgumentKind::Received(1)),
    (libc::SYS_read, "read", ArgumentKind::Received(1)),
    (libc::SYS_rename, "rename", ArgumentKind::Text(1)),
    (libc::SYS_renameat, "rename", ArgumentKind::Text(3)),
    (libc::SYS_renameat2, "rename", ArgumentKind::Text(3)),
    (libc::SYS_unlink, "unlink", ArgumentKind::Text(0)),
    (libc::SYS_prctl, "prctl", ArgumentKind::Text(1)),
    (libc::SYS_futex, "futex", ArgumentKind::Time(3)),
    (libc::SYS_process_vm_readv, "readv", ArgumentKind::Nothing),
    (libc::SYS_rt_tgsigqueueinfo, "signal", ArgumentKind::Nothing),
    (
        libc::SYS_timer_create,
        "timer_create",
        ArgumentKind::Nothing,
    ),
    (
        libc::SYS_timer_settime,
        "timer_settime",
        ArgumentKind::Nothing,
    ),
    (
        libc::SYS_timer_delete,
        "timer_delete",
        ArgumentKind::Nothing,
    ),
    (libc::SYS_exit, "exit", ArgumentKind::Nothing),
];

/// Prefix of the subject of messages of the diagnostics protocol, before the command: 3.1 attaches
/// a profiler.
const COMMAND_SENT: &str = "asks ";
const COMMAND_ANSWERED: &str = "answers ";

/// Describes the subject of a call. `result`: it has been made.
fn subject_of(pid: u32, kind: ArgumentKind, arguments: &[u64; 6], result: Option<i64>) -> String {
    let memory = |at: u64, length: usize| {
        let mut bytes = vec![0; length];
        let file = fs::File::open(format!("/proc/{pid}/mem"));
        let got = file.and_then(|file| file.read_at(&mut bytes, at));
        bytes.truncate(got.unwrap_or(0));
        bytes
    };
    let text = |bytes: &[u8]| {
        // A message of the runtime's: `DOTNET_IPC_V1`, its length, a command of two numbers.
        if let Some(rest) = bytes.strip_prefix(b"DOTNET_IPC_V1\0") {
            return match rest {
                [_, _, 255, ..] => COMMAND_ANSWERED.to_owned(),
                [_, _, set, command, ..] => format!("{COMMAND_SENT}{set}.{command}"),
                _ => String::new(),
            };
        }
        let text: String = String::from_utf8_lossy(bytes).into_owned();
        text.replace(|c: char| c.is_control(), ".")
    };
    let until_nul = |bytes: Vec<u8>| {
        let end = bytes.iter().position(|byte| *byte == 0);
        text(&bytes[..end.unwrap_or(bytes.len())])
    };
    let is_over = result.is_some();
    match kind {
        // Memory at these arguments has other contents afterwards.
        ArgumentKind::Text(_) | ArgumentKind::Socket(_) | ArgumentKind::Sent(_) if is_over => {
            String::new()
        }
        ArgumentKind::Text(index) => until_nul(memory(arguments[index], 256)),
        ArgumentKind::Socket(index) => until_nul(memory(arguments[index] + 2, 108)),
        ArgumentKind::Sent(index) => {
            let length = arguments[index + 1].min(64);
            text(&memory(arguments[index], length as usize))
        }
        ArgumentKind::Received(index) => match result {
            None => String::new(),
            Some(0) => "its end".to_owned(),
            Some(length) => text(&memory(arguments[index], length.min(64) as usize)),
        },
        ArgumentKind::Time(index) if !is_over && arguments[index] != 0 => {
            let bytes = memory(arguments[index], 16);
            let part = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            if bytes.len() == 16 {
                format!("{}.{:09} s", part(0), part(8))
            } else {
                String::new()
            }
        }
        ArgumentKind::Time(_) | ArgumentKind::Nothing => String::new(),
    }
}

/// The thread of a runtime that waits at its diagnostics socket.
pub(crate) fn diagnostics_thread(pid: u32) -> i32 {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let prefix = format!("/dotnet-diagnostic-{pid}-");
    let inodes: Vec<String> = sockets
        .lines()
        .filter(|line| line.contains(&prefix))
        .filter_map(|line| line.split_whitespace().nth(6))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let is_it = |fd: i32| {
        let link = fs::read_link(format!("/proc/{pid}/fd/{fd}"));
        link.is_ok_and(|link| inodes.iter().any(|inode| link.as_os_str() == &**inode))
    };
    let waits_there = |tid: &str| {
        // `7 0x… 0x1 …`: the number of the call and its arguments.
        let call = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
        let mut words = call.split_whitespace();
        let number: i64 = words.next()?.parse().ok()?;
        let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let (first, second) = (argument()?, argument()?);
        match number {
            libc::SYS_poll => (0..second.min(8)).any(|index| {
                let mut entry = [0; 4];
                let read = memory.read_exact_at(&mut entry, first + index * 8);
                read.is_ok() && is_it(i32::from_le_bytes(entry))
            }),
            // .NET Core 3.1.
            libc::SYS_accept | libc::SYS_accept4 => is_it(first as i32),
            _ => false,
        }
        .then_some(())
    };
    let deadline = std::time::Instant::now() + TIME_LIMIT;
    loop {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        for task in tasks.flatten() {
            let tid = task.file_name().into_string().unwrap();
            if waits_there(&tid).is_some() {
                return tid.parse().unwrap();
            }
        }
        assert!(
            std::time::Instant::now() < deadline,
            "no thread of {pid} waits at its diagnostics socket ({inodes:?})"
        );
        std::thread::yield_now();
    }
}

/// Ends a tool that does not end.
struct KillTimer(Option<(std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>)>);

impl KillTimer {
    fn over(pid: u32) -> KillTimer {
        let (over, is_over) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            if is_over.recv_timeout(TIME_LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                kill(pid);
            }
        });
        KillTimer(Some((over, thread)))
    }
}

impl Drop for KillTimer {
    fn drop(&mut self) {
        if let Some((over, thread)) = self.0.take() {
            drop(over);
            let _ = thread.join();
        }
    }
}

/// As `kill -9` does.
pub(crate) fn kill(pid: u32) {
    // SAFETY: a system call on numbers.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
}

pub(crate) enum Info {
    Entry(i64, [u64; 6]),
    Exit(i64),
}

/// Returns the position of a stopped thread and its system call.
pub(crate) fn info_of(tid: i32) -> Option<libc::ptrace_syscall_info> {
    // SAFETY: plain numbers, of which any bits are a value.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let place = (&raw mut info) as u64;
    let size = size_of_val(&info) as u64;
    ptrace_ok(libc::PTRACE_GET_SYSCALL_INFO, tid, size, place).ok()?;
    Some(info)
}

pub(crate) fn call_of(tid: i32) -> Option<Info> {
    let info = info_of(tid)?;
    // SAFETY: `op` says which part of the union the kernel has filled.
    unsafe {
        match info.op {
            libc::PTRACE_SYSCALL_INFO_ENTRY => Some(Info::Entry(
                info.u.entry.nr.cast_signed(),
                info.u.entry.args,
            )),
            libc::PTRACE_SYSCALL_INFO_EXIT => Some(Info::Exit(info.u.exit.sval)),
            _ => None,
        }
    }
}

/// To its next call, with this signal. It may have been killed meanwhile.
pub(crate) fn resume(tid: i32, signal: i32) {
    let _killed = ptrace_ok(libc::PTRACE_SYSCALL, tid, 0, signal as u64);
}

pub(crate) fn ptrace_ok(
    request: libc::c_uint,
    tid: i32,
    address: u64,
    data: u64,
) -> std::io::Result<()> {
    // SAFETY: where `data` is an address (GETEVENTMSG, GET_SYSCALL_INFO), callers give that of a
    // value of theirs of the size that the request writes; the other requests take numbers.
    let done = unsafe { libc::ptrace(request, tid, address, data) };
    if done < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// The next thing that happens to `tid`, or to any child or traced thread of this thread's.
pub(crate) fn wait_for(tid: i32) -> (i32, i32) {
    loop {
        let mut status = 0;
        let options = libc::__WALL | libc::__WNOTHREAD;
        // SAFETY: `status` is ours.
        let got = unsafe { libc::waitpid(tid, &raw mut status, options) };
        if got > 0 {
            return (got, status);
        }
        let error = std::io::Error::last_os_error();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::Interrupted,
            "waitpid: {error}"
        );
    }
}
