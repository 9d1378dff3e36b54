//! Tests of sampling under real system call filters, and after signals that were intercepted.
//!
//! Each test has its own process, because a filter remains until the process ends.

mod common;
use common::*;
use sampler::{EngineChoice, Reader, Route, SampleEvent, Sampler};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use syscalls::{Call, is_allowed};

const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

fn errno(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.unsigned_abs()
}

/// Installs a filter that gives these system calls of all threads this answer.
fn filter(numbers: &[libc::c_long], answer: u32) {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = vec![step(0x20, 0, 0, 0)];
    for number in numbers {
        steps.push(step(0x15, 0, 1, u32::try_from(*number).unwrap()));
        steps.push(step(0x06, 0, 0, answer));
    }
    steps.push(step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).unwrap(),
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: a valid program, which the kernel checks and copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let made = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        );
        assert_eq!(made, 0);
    }
}

/// A thread that burns until it is dropped, and runs functions sent to it in between.
struct Burner {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    tid: u32,
    stack: std::ops::Range<u64>,
}

impl Burner {
    fn new(mut between: impl FnMut() + Send + 'static) -> Burner {
        let (send, receive) = std::sync::mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            send.send((tid(), stack())).unwrap();
            while !stops.load(Ordering::Relaxed) {
                between();
                burn(Duration::from_micros(200));
            }
        });
        let (tid, stack) = receive.recv().unwrap();
        Burner {
            stop,
            thread: Some(thread),
            tid,
            stack,
        }
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Ticks until there are this many samples of this kind.
fn tick_until(reader: &mut Reader, event: SampleEvent, least: usize) {
    let mut count = 0;
    wait_until("samples", || {
        reader.tick(now_ns());
        let samples = drain(reader);
        let of_kind = samples.iter().filter(|(_, sample)| sample.event == event);
        count += of_kind.count();
        count >= least
    });
}

/// Checks that an unknown thread is found and sampled, by CPU and by wall time.
fn everything_is_sampled(engine: EngineChoice) {
    let config = sampler::Config {
        engine,
        wall_interval_ns: 1_000_000,
        ..config(64)
    };
    let (sampler, mut reader) = Sampler::start(config, leaf_walk).unwrap();
    let burner = Burner::new(|| {});
    let slot = sampler.register(burner.tid, None).unwrap();
    sampler.probe_stack(slot).unwrap();
    let mut is_settled = false;
    wait_until("the hello's answer", || {
        reader.settle_stack_probes(|_| is_settled = true);
        is_settled
    });
    tick_until(&mut reader, SampleEvent::Cpu, 20);
    tick_until(&mut reader, SampleEvent::Wall, 20);
    assert_eq!(sampler.unsent(), None);
    sampler.unregister(slot);
    sampler.stop();
    // The reader ends the timers of a thread that was in the handler.
    wait_until("the end of all timers", || {
        drain(&mut reader);
        !sampler.holds_timers()
    });
}

#[test]
fn signals_that_may_not_be_queued_come_by_timers() {
    in_child("signals_that_may_not_be_queued_come_by_timers", || {
        filter(&[libc::SYS_rt_tgsigqueueinfo], errno(libc::ENOSYS));
        syscalls::refresh();
        everything_is_sampled(EngineChoice::Clock);
    });
}

#[test]
fn a_filter_that_ends_programs_ends_none() {
    in_child("a_filter_that_ends_programs_ends_none", || {
        let calls = [
            libc::SYS_rt_tgsigqueueinfo,
            libc::SYS_process_vm_readv,
            libc::SYS_perf_event_open,
            libc::SYS_get_robust_list,
        ];
        filter(&calls, KILL);
        syscalls::refresh();
        everything_is_sampled(EngineChoice::Auto);
    });
}

#[test]
fn without_timers_there_are_clocks() {
    in_child("without_timers_there_are_clocks", || {
        filter(&[libc::SYS_timer_create], KILL);
        syscalls::refresh();
        everything_is_sampled(EngineChoice::Auto);
    });
}

#[test]
fn where_no_signal_can_be_sent_it_is_said_why() {
    in_child("where_no_signal_can_be_sent_it_is_said_why", || {
        filter(&[libc::SYS_rt_tgsigqueueinfo], errno(libc::ENOSYS));
        filter(&[libc::SYS_timer_create], KILL);
        syscalls::refresh();
        let (sampler, _reader) = start(EngineChoice::Clock, 1000);
        let slot = sampler.register(tid(), None).unwrap();
        assert!(sampler.probe_stack(slot).is_err());
        let unsent = sampler.unsent().unwrap();
        assert_eq!((unsent.queue, unsent.timer), (libc::ENOSYS, libc::EPERM));
    });
}

#[test]
fn a_filter_that_comes_while_threads_are_sampled_ends_none() {
    in_child(
        "a_filter_that_comes_while_threads_are_sampled_ends_none",
        || {
            let config = sampler::Config {
                wall_interval_ns: 1_000_000,
                ..config(64)
            };
            let (sampler, mut reader) = Sampler::start(config, leaf_walk).unwrap();
            let burner = Burner::new(|| {});
            sampler
                .register(burner.tid, Some(burner.stack.clone()))
                .unwrap();
            tick_until(&mut reader, SampleEvent::Wall, 5);
            let calls = [libc::SYS_rt_tgsigqueueinfo, libc::SYS_process_vm_readv];
            filter(&calls, KILL);
            // The calls have not been tried, and nothing is sent.
            assert!(!is_allowed(Call::RtTgsigqueueinfo));
            for _ in 0..20 {
                reader.tick(now_ns());
                burn(Duration::from_millis(1));
            }
            drain(&mut reader);
            syscalls::refresh();
            tick_until(&mut reader, SampleEvent::Wall, 20);
        },
    );
}

fn only(signal: i32) -> libc::sigset_t {
    // SAFETY: a set of our own.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, signal);
        set
    }
}

fn block(how: i32, signal: i32) {
    let set = only(signal);
    // SAFETY: this thread's mask.
    unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
}

/// Burns until a signal is in the calling thread's queue and removes it, so that its handler does
/// not run, as a debugger may do.
fn swallow(signal: i32) {
    let set = only(signal);
    burn_until("a signal", || {
        let mut pending = only(signal);
        // SAFETY: sets of our own.
        unsafe {
            libc::sigpending(&raw mut pending);
            libc::sigismember(&raw const pending, signal) == 1
        }
    });
    // SAFETY: waits for a signal of the set; nothing is asked of it.
    let taken = unsafe { libc::sigwaitinfo(&raw const set, std::ptr::null_mut()) };
    assert_eq!(taken, signal);
}

fn sampling_goes_on_after_a_lost_signal(engine: EngineChoice, event: SampleEvent) {
    let (sampler, mut reader) = start(engine, 1000);
    let signal = sampler.signal();
    const SAMPLED: u32 = 0;
    const SWALLOWS: u32 = 1;
    const HAS: u32 = 2;
    let phase = Arc::new(AtomicU32::new(SAMPLED));
    let its = Arc::clone(&phase);
    let burner = Burner::new(move || {
        if its.load(Ordering::Relaxed) == SWALLOWS {
            block(libc::SIG_BLOCK, signal);
            swallow(signal);
            block(libc::SIG_UNBLOCK, signal);
            its.store(HAS, Ordering::Relaxed);
        }
    });
    sampler
        .register(burner.tid, Some(burner.stack.clone()))
        .unwrap();
    tick_until(&mut reader, event, 5);
    phase.store(SWALLOWS, Ordering::Relaxed);
    wait_until("a signal to be lost", || {
        reader.tick(now_ns());
        drain(&mut reader);
        phase.load(Ordering::Relaxed) == HAS
    });
    tick_until(&mut reader, event, 20);
}

#[test]
fn a_thread_whose_tick_was_lost_is_sampled_on() {
    in_child("a_thread_whose_tick_was_lost_is_sampled_on", || {
        sampling_goes_on_after_a_lost_signal(EngineChoice::Clock, SampleEvent::Cpu);
    });
}

#[test]
fn a_thread_whose_wall_tick_was_lost_is_sampled_on() {
    in_child("a_thread_whose_wall_tick_was_lost_is_sampled_on", || {
        sampling_goes_on_after_a_lost_signal(EngineChoice::Wall, SampleEvent::Wall);
    });
}

#[test]
fn a_perf_tick_in_the_queue_of_a_stranger_is_not_lost() {
    in_child("a_perf_tick_in_the_queue_of_a_stranger_is_not_lost", || {
        let (sampler, mut reader) = start(EngineChoice::Perf, 1000);
        let slot = sampler
            .register_by(tid(), Some(stack()), Route::Own, true)
            .unwrap();
        let signal = sampler.signal_of(slot);
        block(libc::SIG_BLOCK, signal);
        // Time for many ticks, each time.
        for _ in 0..3 {
            burn(Duration::from_millis(50));
            reader.take_counters();
        }
        sampler.unregister(slot);
        let set = only(signal);
        let mut queued = 0;
        // SAFETY: a set and a time that are alive during the call.
        while unsafe {
            let at_once: libc::timespec = std::mem::zeroed();
            libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const at_once) > 0
        } {
            queued += 1;
        }
        assert_eq!(queued, 1);
    });
}

#[test]
fn a_thread_that_waits_is_not_woken_for_its_stack() {
    in_child("a_thread_that_waits_is_not_woken_for_its_stack", || {
        let (sampler, mut reader) = start(EngineChoice::Wall, 1000);
        let (send, receive) = std::sync::mpsc::channel();
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let [read, write] = ends;
        let thread = std::thread::spawn(move || {
            send.send((tid(), stack())).unwrap();
            let mut fd = libc::pollfd {
                fd: read,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one pollfd. A signal that is handled ends this.
            unsafe { libc::poll(&raw mut fd, 1, -1) }
        });
        let (other, bounds) = receive.recv().unwrap();
        let slot = sampler.register(other, None).unwrap();
        let mut settled = Vec::new();
        wait_until("it to wait", || {
            sampler.settle_waiting(&[slot], |slot| settled.push(slot));
            settled == [slot]
        });
        let found = sampler.stack_of(slot).unwrap();
        assert!(
            found.start >= bounds.start && found.end <= bounds.end,
            "{found:x?} {bounds:x?}"
        );
        assert!(found.end > bounds.end - 0x4000, "{found:x?} {bounds:x?}");
        // SAFETY: one byte.
        assert_eq!(unsafe { libc::write(write, b"x".as_ptr().cast(), 1) }, 1);
        assert_eq!(thread.join().unwrap(), 1, "it was woken");
        drain(&mut reader);
        assert_eq!(reader.take_counters().signals, 0);
    });
}
