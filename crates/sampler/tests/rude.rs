//! Tests with hostile programs: jumps out of handlers, closed descriptors, exhausted limits.

mod common;
use common::*;
use sampler::{DiscardReason, EngineChoice, Reader, Sampler, Scratch, WalkResult};
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

// `with_way_back(back, run)` calls `run`. It returns 0 when `run` returns, and 1 when
// `jump_back(back)` was called in it: longjmp, without a function that returns twice. `*back` is 0
// whenever the frame to which it leads does not exist. A jump that is interrupted by another one is
// harmless.
std::arch::global_asm!(
    ".globl with_way_back",
    "with_way_back:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rdi",
    "mov [rdi], rsp",
    "call rsi",
    "xor eax, eax",
    "2:",
    "mov rdi, [rsp]",
    "mov qword ptr [rdi], 0",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    ".globl jump_back",
    "jump_back:",
    "mov rsp, [rdi]",
    "mov eax, 1",
    "jmp 2b",
);
unsafe extern "C" {
    fn with_way_back(back: *mut u64, run: extern "C" fn()) -> i32;
    fn jump_back(back: *const u64) -> !;
}

static BACK: AtomicU64 = AtomicU64::new(0);
static WALKS: AtomicU64 = AtomicU64::new(0);
static JUMPS: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicU64 = AtomicU64::new(0);

/// A walk that a signal interrupts.
unsafe extern "C" fn interrupted_walk(
    context: *const libc::ucontext_t,
    end: u64,
    scratch: *mut Scratch,
    out: *mut u64,
    cap: usize,
) -> WalkResult {
    WALKS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: a signal to this thread, which has a handler for it; the rest is passed on.
    unsafe {
        libc::raise(libc::SIGUSR1);
        leaf_walk(context, end, scratch, out, cap)
    }
}

fn on_usr1(handler: usize) {
    // SAFETY: a zeroed sigaction with a handler that takes a number.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        let installed = libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
        assert_eq!(installed, 0);
    }
}

/// The kernel delivers a signal that a thread blocks to another one, which does not expect it.
#[test]
fn no_signal_but_ours_is_held_off_in_the_handler() {
    unsafe extern "C" fn looking_walk(
        context: *const libc::ucontext_t,
        end: u64,
        scratch: *mut Scratch,
        out: *mut u64,
        cap: usize,
    ) -> WalkResult {
        // SAFETY: asks for this thread's mask; the rest is passed on.
        unsafe {
            let mut held: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut held);
            for signal in 1..=libc::SIGRTMAX() {
                if libc::sigismember(&held, signal) == 1 {
                    HELD.fetch_or(1 << signal, Ordering::SeqCst);
                }
            }
            WALKS.fetch_add(1, Ordering::SeqCst);
            leaf_walk(context, end, scratch, out, cap)
        }
    }
    in_child("no_signal_but_ours_is_held_off_in_the_handler", || {
        let (sampler, _reader) = Sampler::start(at(EngineChoice::Timer), looking_walk).unwrap();
        let slot = sampler.register(tid(), Some(stack())).unwrap();
        burn_until("four walks", || WALKS.load(Ordering::SeqCst) > 3);
        sampler.unregister(slot);
        assert_eq!(HELD.load(Ordering::SeqCst), 1 << libc::SIGRTMIN());
    });
}

fn at(engine: EngineChoice) -> sampler::Config {
    sampler::Config {
        engine,
        ..config(64)
    }
}

/// Leaves the handler in which it is called as siglongjmp does: back to a caller that has not
/// returned, with no signal blocked. The skipped frames belong to the sampler and the kernel and
/// need no clean-up.
///
/// Returns if there is no such caller: a tick may also come before `with_way_back` is called or
/// after it has returned.
fn leave_by_jump(before: impl FnOnce()) {
    if BACK.load(Ordering::SeqCst) == 0 {
        return;
    }
    JUMPS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the mask of before, then `BACK`: it is not 0, so `with_way_back` has filled it in on
    // this thread and not returned. No handler in between changes that, as a jump of one would end
    // this one too.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        before();
        jump_back(BACK.as_ptr());
    }
}

/// Lets handlers be left by jumps until `enough` of (left handlers, nested ticks). Returns these
/// two numbers.
fn are_left(engine: EngineChoice, enough: impl Fn(u64, u64) -> bool) -> (u64, u64) {
    extern "C" fn burn_on() {
        burn(Duration::from_secs(10));
    }
    WALKS.store(0, Ordering::SeqCst);
    JUMPS.store(0, Ordering::SeqCst);
    let (sampler, mut reader) = Sampler::start(at(engine), interrupted_walk).unwrap();
    let slot = sampler.register(tid(), Some(stack())).unwrap();
    let (mut left, mut nested, mut samples) = (0, 0, 0);
    let mut count = |reader: &mut Reader| {
        drain(reader);
        let counters = reader.take_counters();
        samples += counters.samples;
        nested += counters.discarded(DiscardReason::Nested);
        nested
    };
    let end = cpu_ns() + 60_000_000_000;
    while !enough(left, count(&mut reader)) {
        // SAFETY: `burn_on` takes nothing and owns nothing.
        let jumped = unsafe { with_way_back(BACK.as_ptr(), burn_on) };
        assert_eq!(jumped, 1, "{engine:?}: no tick after {left} jumps");
        left += 1;
        assert!(cpu_ns() < end, "{engine:?}: never enough of {left}");
    }
    sampler.unregister(slot);
    count(&mut reader);
    sampler.stop();
    // Each walk was left by a jump or became a sample.
    assert_eq!(
        WALKS.load(Ordering::SeqCst),
        JUMPS.load(Ordering::SeqCst) + samples
    );
    (left, nested)
}

/// The abandoned handler never leaves its slot, and the next one detects that.
#[test]
fn a_thread_whose_handlers_are_jumped_out_of_is_sampled_on() {
    extern "C" fn jump(_: i32) {
        leave_by_jump(|| {});
    }
    in_child(
        "a_thread_whose_handlers_are_jumped_out_of_is_sampled_on",
        || {
            on_usr1(jump as *const () as usize);
            for (engine, wanted) in [(EngineChoice::Timer, 30), (EngineChoice::Perf, 300)] {
                let (left, nested) = are_left(engine, |left, _| left >= wanted);
                // A tick may come while the handler is being left, which takes less than a
                // hundredth of an interval. If it took a twentieth, half of 30 would have one with
                // a chance of less than 1e-9.
                assert!(nested * 2 <= left, "{engine:?}: {nested} of {left}");
            }
        },
    );
}

/// The tick comes between a handler's return of our signal and its jump, while our frames are still
/// there.
#[test]
fn a_tick_in_a_handler_that_is_being_left_is_not_the_last() {
    extern "C" fn jump_late(_: i32) {
        leave_by_jump(|| burn(Duration::from_millis(20)));
    }
    in_child(
        "a_tick_in_a_handler_that_is_being_left_is_not_the_last",
        || {
            on_usr1(jump_late as *const () as usize);
            for engine in [EngineChoice::Timer, EngineChoice::Perf] {
                // Each has one or several or, with other busy threads, none.
                are_left(engine, |left, nested| left >= 10 && nested >= 10);
            }
        },
    );
}

fn open_descriptors() -> Vec<i32> {
    let names = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut open: Vec<i32> = names
        .map(|entry| {
            entry
                .unwrap()
                .file_name()
                .to_str()
                .unwrap()
                .parse()
                .unwrap()
        })
        .collect();
    // The descriptor of the directory itself is closed by now.
    // SAFETY: a query only.
    open.retain(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0);
    open
}

/// closefrom(3): our descriptors are closed, and their numbers are the program's.
#[test]
fn files_that_got_our_numbers_are_left_alone() {
    in_child("files_that_got_our_numbers_are_left_alone", || {
        for engine in [EngineChoice::Timer, EngineChoice::Perf] {
            let before = open_descriptors();
            let (sampler, mut reader) = start(engine, 1000);
            let slot = sampler.register(tid(), Some(stack())).unwrap();
            burn(Duration::from_millis(50));
            let ours: Vec<i32> = open_descriptors()
                .into_iter()
                .filter(|fd| !before.contains(fd))
                .collect();
            // The descriptor that wakes the reader, and the event of the ticks.
            let least = 1 + usize::from(engine == EngineChoice::Perf);
            assert!(ours.len() >= least, "{ours:?}");
            let mut files: Vec<File> = ours
                .iter()
                .map(|fd| {
                    let file = tempfile();
                    // SAFETY: closes our descriptor, as a program that does not know it might, and
                    // gives its number to a file.
                    unsafe {
                        assert_eq!(libc::dup2(file.as_raw_fd(), *fd), *fd);
                        File::from_raw_fd(*fd)
                    }
                })
                .collect();
            // All operations on descriptors: waking, ticking, ending.
            for _ in 0..100 {
                sampler.wake();
                reader.clear_wake();
            }
            assert_eq!(reader.wake_fd(), -1);
            if engine == EngineChoice::Perf {
                burn(Duration::from_millis(50));
            } else {
                // Timers need no descriptor.
                let mut samples = 0;
                burn_until("six samples", || {
                    samples += drain(&mut reader).len();
                    samples > 5
                });
            }
            sampler.unregister(slot);
            drain(&mut reader);
            sampler.stop();
            for (fd, file) in ours.iter().zip(&mut files) {
                // SAFETY: a query only.
                let open = unsafe { libc::fcntl(*fd, libc::F_GETFD) };
                assert!(open >= 0, "{fd} was closed");
                let mut text = Vec::new();
                file.rewind().unwrap();
                file.read_to_end(&mut text).unwrap();
                assert!(text.is_empty(), "{fd} was written to");
            }
            drop(reader);
        }
    });
}

/// A program that needs nearly all descriptors of a small limit gets no perf event.
#[test]
fn a_small_limit_is_all_the_programs() {
    in_child("a_small_limit_is_all_the_programs", || {
        for (limit, any) in [(48, false), (4096, true)] {
            // SAFETY: a valid rlimit.
            unsafe {
                let few = libc::rlimit {
                    rlim_cur: limit,
                    rlim_max: 4096,
                };
                assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &few), 0);
            }
            let (sampler, mut reader) = start(EngineChoice::Perf, 1000);
            let before = open_descriptors().len();
            let slot = sampler.register(tid(), Some(stack())).unwrap();
            let taken = open_descriptors().len() - before;
            assert_eq!(taken > 0, any, "{taken} of {limit}");
            let mut samples = 0;
            burn_until("six samples", || {
                samples += drain(&mut reader).len();
                samples > 5
            });
            sampler.unregister(slot);
            sampler.stop();
            drop(reader);
        }
    });
}

/// A sample whose signal does not fit into the user's queue is counted by its reason.
#[test]
fn a_full_queue_of_signals_is_said() {
    in_child("a_full_queue_of_signals_is_said", || {
        let config = sampler::Config {
            wall_interval_ns: 1_000_000,
            ..at(EngineChoice::Wall)
        };
        let (sampler, mut reader) = Sampler::start(config, leaf_walk).unwrap();
        let slot = sampler.register(tid(), Some(stack())).unwrap();
        // SAFETY: a valid rlimit.
        unsafe {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            assert_eq!(libc::setrlimit(libc::RLIMIT_SIGPENDING, &none), 0);
        }
        let mut full = 0;
        burn_until("six full queues", || {
            reader.tick(now_ns());
            full += reader.take_counters().discarded(DiscardReason::QueueFull);
            full > 5
        });
        sampler.unregister(slot);
        sampler.stop();
    });
}

fn tempfile() -> File {
    // SAFETY: a name; the descriptor is new.
    unsafe {
        let fd = libc::memfd_create(c"file".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    }
}

/// A thread that blocks the signal gets at most one of each kind: the queue belongs to the whole
/// user, and a CLR that finds it full ends the program.
#[test]
fn signals_do_not_pile_up_on_a_thread_that_blocks_them() {
    in_child(
        "signals_do_not_pile_up_on_a_thread_that_blocks_them",
        || {
            for engine in [EngineChoice::Timer, EngineChoice::Perf] {
                let config = sampler::Config {
                    wall_interval_ns: 1_000_000,
                    ..at(engine)
                };
                let (sampler, mut reader) = Sampler::start(config, leaf_walk).unwrap();
                let stop = Flag::new();
                std::thread::scope(|scope| {
                    let (send, receive) = std::sync::mpsc::channel();
                    let stop = &stop;
                    let thread = scope.spawn(move || {
                        mask(libc::SIG_BLOCK);
                        let slot = sampler.register(tid(), Some(stack())).unwrap();
                        send.send(slot).unwrap();
                        burn_until("the end", || stop.get() == 1);
                        // Nothing is sent from now on.
                        sampler.unregister(slot);
                        let mut queued = 0;
                        while take_pending() {
                            queued += 1;
                        }
                        queued
                    });
                    let slot = receive.recv().unwrap();
                    for _ in 0..100 {
                        drain(&mut reader);
                        reader.wall_tick(now_ns());
                        sampler.probe_stack(slot).unwrap();
                        burn(Duration::from_millis(1));
                    }
                    stop.set(1);
                    // A wall-clock signal, a probe, and perhaps a tick. New kernels drop a signal
                    // of a deleted timer.
                    let queued = thread.join().unwrap();
                    assert!((2..=3).contains(&queued), "{engine:?}: {queued}");
                });
                sampler.stop();
                drop(reader);
            }
        },
    );
}

/// Returns the set with the sampler's signal.
fn own_signal() -> libc::sigset_t {
    // SAFETY: a set that is made here.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGRTMIN());
        set
    }
}

/// Blocks or unblocks the sampler's signal on this thread.
fn mask(how: i32) {
    // SAFETY: this thread's own mask.
    let changed = unsafe { libc::pthread_sigmask(how, &own_signal(), std::ptr::null_mut()) };
    assert_eq!(changed, 0);
}

/// Takes one of the sampler's signals from this thread's queue, if there is one.
fn take_pending() -> bool {
    // SAFETY: a set and a time that are alive during the call.
    unsafe {
        let at_once: libc::timespec = std::mem::zeroed();
        libc::sigtimedwait(&own_signal(), std::ptr::null_mut(), &at_once) > 0
    }
}

/// Whether one of the sampler's signals is in this thread's queue.
fn is_pending() -> bool {
    // SAFETY: a set to be filled in.
    unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        assert_eq!(libc::sigpending(&mut pending), 0);
        libc::sigismember(&pending, libc::SIGRTMIN()) == 1
    }
}

/// A signal that is pending at `execve` must not reach the new program, which has no handler for
/// it.
#[test]
fn a_signal_under_way_does_not_outlive_exec() {
    const TEST: &str = "a_signal_under_way_does_not_outlive_exec";
    const AFTER: &str = "SAMPLER_TEST_AFTER_EXEC";
    in_child(TEST, || {
        if std::env::var_os(AFTER).is_some() {
            mask(libc::SIG_UNBLOCK); // a pending signal would arrive now
            return;
        }
        let config = sampler::Config {
            wall_interval_ns: 1_000_000,
            ..at(EngineChoice::Timer)
        };
        let (sampler, mut reader) = Sampler::start(config, leaf_walk).unwrap();
        mask(libc::SIG_BLOCK);
        let slot = sampler.register(tid(), Some(stack())).unwrap();
        burn_until("a tick to be pending", is_pending);
        sampler.probe_stack(slot).unwrap();
        reader.wall_tick(now_ns());
        let error = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
            .env(AFTER, "1")
            .exec();
        panic!("{error}");
    });
}
