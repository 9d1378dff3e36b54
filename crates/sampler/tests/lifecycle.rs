//! Tests of thread starts and ends, threads without a known stack, fork, stop, and restart.

mod common;
use common::*;
use sampler::{Config, DiscardReason, EngineChoice, Error, Route, Sampler, SlotId};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Returns how long this thread has waited for a processor, nanoseconds.
fn queued_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Threads that live a millisecond count for the CPU time they use, their slots are reused, and
/// memory is bounded. If other threads want the processors too they count for less, 0.3 to 0.8
/// (docs/engines.md).
fn churn(engine: EngineChoice) {
    let (sampler, mut reader) = start(engine, 99);
    let used = Arc::new(AtomicU64::new(0));
    let queued = Arc::new(AtomicU64::new(0));
    let threads = 2000;
    let (mut sum, mut squares) = (0, 0.0);
    let mut closed = HashSet::new();
    let mut highest = 0;
    let mut drain_now = |reader: &mut sampler::Reader| {
        reader.clear_wake();
        reader.drain_all(
            |_, view| {
                sum += view.value;
                squares += (view.value as f64).powi(2);
            },
            |slot| {
                highest = highest.max(slot.index());
                assert!(closed.insert(slot), "closed twice");
            },
        );
    };
    for round in 0..threads / 2 {
        let pair = [(); 2].map(|()| {
            let (used, queued) = (Arc::clone(&used), Arc::clone(&queued));
            std::thread::spawn(move || {
                let before = cpu_ns();
                let slot = sampler.register(tid(), Some(stack())).unwrap();
                burn(Duration::from_millis(1));
                used.fetch_add(cpu_ns() - before, Ordering::Relaxed);
                sampler.unregister(slot);
                sampler.unregister(slot);
                queued.fetch_add(queued_ns(), Ordering::Relaxed);
            })
        });
        for thread in pair {
            thread.join().unwrap();
        }
        if round % 20 == 0 {
            drain_now(&mut reader);
        }
    }
    drain_now(&mut reader);
    drain_now(&mut reader);
    assert_eq!(closed.len(), threads);
    assert!(highest < 64, "slots are used again: {highest}");
    let counters = reader.take_counters();
    let used = used.load(Ordering::Relaxed) as f64;
    let ratio = sum as f64 / used;
    let queued = queued.load(Ordering::Relaxed) as f64 / used;
    println!("ratio {ratio:.3}, queued {queued:.3}, {counters:?}");
    assert_eq!(counters.lost(), 0, "{counters:?}");
    assert_eq!(counters.value_ns, sum);
    // Each thread has at most one tick, so the variance of the sum is at most that of its squares.
    // 6.2 standard deviations have a chance of less than 1e-9. The 2 s of CPU time give about 200
    // samples, so one is 7 %.
    let chance = 6.2 * f64::sqrt(squares) / used;
    assert!(ratio < 1.05 + chance, "{ratio}, by chance {chance}");
    // Alone they wait for a fiftieth of their time. If they waited longer than they ran, 0.3 to 1.1
    // was measured.
    let lowest = if queued < 1.0 { 0.95 - chance } else { 0.0 };
    assert!(ratio > lowest, "{ratio}, by chance {chance}");
}

#[test]
fn short_threads_count_for_their_share_perf() {
    in_child("short_threads_count_for_their_share_perf", || {
        churn(OWN_CLOCK)
    });
}

#[test]
fn short_threads_count_for_their_share_timer() {
    in_child("short_threads_count_for_their_share_timer", || {
        churn(EngineChoice::Timer)
    });
}

/// The slot of a thread that ends without a signal is reused at once, without the reader. If the
/// thread had a signal, or another thread unregisters it, the reader closes the slot.
#[test]
fn a_slot_without_a_signal_is_used_again_at_once() {
    in_child("a_slot_without_a_signal_is_used_again_at_once", || {
        // Hardly any of these threads has a tick.
        let (sampler, mut reader) = start(EngineChoice::Timer, 1);
        let life = move || {
            let own = tid();
            let slot = sampler
                .register_by(own, Some(stack()), Route::Shared, true)
                .unwrap();
            (slot, sampler.unregister_by(slot, own))
        };
        let lives: Vec<(SlotId, bool)> = (0..200)
            .map(|_| std::thread::spawn(life).join().unwrap())
            .collect();
        let ids: HashSet<SlotId> = lives.iter().map(|(slot, _)| *slot).collect();
        assert_eq!(ids.len(), 200, "ids are not used again");
        let left: HashSet<SlotId> = lives
            .iter()
            .filter_map(|(slot, closed)| (!closed).then_some(*slot))
            .collect();
        println!("{} of 200 had a tick", left.len());
        assert!(left.len() < 100);
        let highest = lives.iter().map(|(slot, _)| slot.index()).max();
        assert!(highest <= Some(left.len()), "{highest:?}");
        let mut closed = HashSet::new();
        reader.drain_all(|_, _| {}, |slot| assert!(closed.insert(slot)));
        assert_eq!(closed, left);
        let (slot, _) = lives[0];
        assert_eq!(sampler.probe_stack(slot), Err(Error::StaleSlot));
        assert!(!sampler.unregister_by(slot, tid()), "it is not open");

        // Unregistered by another thread, and after a sample.
        let other = std::thread::spawn(move || {
            let own = tid();
            sampler
                .register_by(own, Some(stack()), Route::Shared, true)
                .unwrap()
        });
        let slot = other.join().unwrap();
        assert!(!sampler.unregister_by(slot, tid()));
        let own = tid();
        let sampled = sampler
            .register_by(own, Some(stack()), Route::Shared, true)
            .unwrap();
        burn_until_sampled(&mut reader);
        assert!(!sampler.unregister_by(sampled, own));
        let mut closed = HashSet::new();
        reader.drain_all(|_, _| {}, |slot| assert!(closed.insert(slot)));
        assert!(closed.contains(&sampled), "{closed:?}");
    });
}

/// Unregisters another thread at any moment, while it is sampled at 10,000 Hz.
#[test]
fn unregistering_from_outside_is_safe() {
    in_child("unregistering_from_outside_is_safe", || {
        let (sampler, mut reader) = start(OWN_CLOCK, 10_000);
        let stop = Arc::new(AtomicBool::new(false));
        let target = {
            let (stop, (send, receive)) = (Arc::clone(&stop), std::sync::mpsc::channel());
            let thread = std::thread::spawn(move || {
                send.send((tid(), stack())).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    burn(Duration::from_millis(1));
                }
            });
            (receive.recv().unwrap(), thread)
        };
        let ((tid, stack), thread) = target;
        let mut live: Option<SlotId> = None;
        let mut samples = 0u64;
        let mut rounds = 0;
        // A busy machine has few ticks.
        while rounds < 500 || samples <= 5 {
            rounds += 1;
            assert!(rounds < 20_000, "{samples} samples");
            let slot = sampler.register(tid, Some(stack.clone())).unwrap();
            // A few of these take as long as the kernel's tick.
            let until = now_ns() + 2_000_000;
            while now_ns() < until {}
            sampler.unregister(slot);
            live = Some(slot);
            reader.drain_all(
                |id, view| {
                    assert_eq!(id, slot);
                    assert_eq!(view.frames.len(), 2);
                    samples += 1;
                },
                |_| {},
            );
            wait_until("the slot to be closed", || {
                let mut closed = false;
                reader.drain_all(|_, _| samples += 1, |id| closed |= id == slot);
                closed || sampler.probe_stack(slot) == Err(Error::StaleSlot)
            });
        }
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        let counters = reader.take_counters();
        println!("{samples} {counters:?}");
        assert_eq!(counters.samples, samples);
        assert_eq!(
            counters.lost(),
            counters.discarded(DiscardReason::UnknownThread)
        );
        // A stale id does nothing.
        let stale = live.unwrap();
        sampler.unregister(stale);
        assert_eq!(sampler.set_stack(stale, 0..1), Err(Error::StaleSlot));
        reader.drain(stale, |_| panic!("nothing is there"));
    });
}

/// A thread known by its tid only: its stack is found by a probe.
#[test]
fn a_stranger_is_asked_for_its_stack() {
    in_child("a_stranger_is_asked_for_its_stack", || {
        let (sampler, mut reader) = start(OWN_CLOCK, 1000);
        let (send, receive) = std::sync::mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                send.send((tid(), stack())).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    burn(Duration::from_millis(1));
                }
            })
        };
        let (other, bounds) = receive.recv().unwrap();
        // The other thread runs; the main thread of the process waits in a join.
        // SAFETY: no preconditions.
        let main = unsafe { libc::getpid() } as u32;
        let slots = [other, main].map(|tid| sampler.register(tid, None).unwrap());
        for slot in slots {
            sampler.probe_stack(slot).unwrap();
        }
        let mut settled = 0;
        wait_until("both answers", || {
            reader.settle_stack_probes(|_| settled += 1);
            settled == 2
        });
        let mut samples = Vec::new();
        wait_until("samples", || {
            samples.extend(drain(&mut reader));
            samples.len() >= 20
        });
        assert!(
            samples.iter().all(|(id, _)| *id == slots[0]),
            "the waiting thread is not sampled"
        );
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        assert!(!bounds.is_empty());
        let counters = reader.take_counters();
        assert_eq!(counters.lost(), 0, "{counters:?}");
    });
}

#[test]
fn a_thread_that_is_gone_is_refused() {
    in_child("a_thread_that_is_gone_is_refused", || {
        for engine in [OWN_CLOCK, EngineChoice::Timer] {
            let (sampler, mut reader) = start(engine, 100);
            let gone = std::thread::spawn(tid).join().unwrap();
            // The kernel may need a moment to remove the thread.
            wait_until("the thread to be gone", || {
                sampler.register(gone, Some(0x1000..0x2000)) == Err(Error::NoSuchThread)
            });
            drain(&mut reader);
            sampler.stop();
            drop(reader);
        }
    });
}

/// A thread id that belongs to another process by now: that process gets no signal.
#[test]
fn a_thread_of_another_process_is_refused() {
    in_child("a_thread_of_another_process_is_refused", || {
        // With the signal's default action, one signal would end it.
        struct Killed(std::process::Child);
        impl Drop for Killed {
            fn drop(&mut self) {
                let _ = self.0.kill();
                let _ = self.0.wait();
            }
        }
        let mut other = Killed(
            std::process::Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .spawn()
                .unwrap(),
        );
        for engine in [OWN_CLOCK, EngineChoice::Timer] {
            let (sampler, reader) = start(engine, 10_000);
            for tid in [other.0.id(), 0, u32::MAX] {
                let refused = sampler.register(tid, Some(0x1000..0x2000));
                assert_eq!(refused, Err(Error::NoSuchThread));
            }
            burn(Duration::from_millis(50));
            sampler.stop();
            drop(reader);
        }
        assert!(other.0.try_wait().unwrap().is_none(), "it lives");
    });
}

/// A forked child has no timers, ignores stray signals, and does not disturb the parent.
#[test]
fn a_forked_child_is_left_alone() {
    in_child("a_forked_child_is_left_alone", || {
        let (sampler, mut reader) = start(OWN_CLOCK, 1000);
        let slot = sampler.register(tid(), Some(stack())).unwrap();
        burn_until_sampled(&mut reader);
        let before = reader.take_counters();
        assert!(before.samples > 0);
        // SAFETY: the child uses nothing but this thread, and ends by _exit.
        match unsafe { libc::fork() } {
            0 => {
                burn(Duration::from_millis(50));
                // SAFETY: signals to itself; then the end.
                unsafe {
                    libc::raise(libc::SIGRTMIN());
                    let here = reader.take_counters();
                    let good = here.samples == 0 && here.signals == 0;
                    sampler.unregister(slot);
                    libc::_exit(if good { 0 } else { 1 });
                }
            }
            child => {
                assert!(child > 0);
                let mut status = 0;
                // SAFETY: a valid out-pointer. Restarted by hand: ticks may interrupt it.
                wait_until("the child", || unsafe {
                    libc::waitpid(child, &mut status, 0) == child
                });
                assert_eq!(status, 0, "the child was sampled, or died");
            }
        }
        // The parent is still sampled.
        burn_until_sampled(&mut reader);
    });
}

#[test]
fn a_waiting_thread_gives_no_cpu_samples() {
    in_child("a_waiting_thread_gives_no_cpu_samples", || {
        let (sampler, mut reader) = start(OWN_CLOCK, 1000);
        let (send, receive) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let slot = sampler.register(tid(), Some(stack())).unwrap();
            send.send(slot).unwrap();
            wait.recv().unwrap();
            sampler.unregister(slot);
        });
        let waiting = receive.recv().unwrap();
        let own = sampler.register(tid(), Some(stack())).unwrap();
        burn(Duration::from_millis(300));
        let mut samples = Vec::new();
        let of = |samples: &[(SlotId, _)], slot| {
            let of_slot = samples.iter().filter(|(id, _)| *id == slot);
            of_slot.count()
        };
        while of(&samples, own) <= 10 {
            samples.extend(burn_until_sampled(&mut reader));
        }
        let waiting = of(&samples, waiting);
        assert!(waiting <= 1, "{waiting}");
        go.send(()).unwrap();
        thread.join().unwrap();
    });
}

/// A blocked `read` is restarted (SA_RESTART); the program does not see EINTR.
#[test]
fn a_restartable_call_is_restarted() {
    in_child("a_restartable_call_is_restarted", || {
        let (sampler, mut reader) = start(EngineChoice::Wall, 1000);
        let mut pipe = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let (send, receive) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            send.send(sampler.register(tid(), Some(stack())).unwrap())
                .unwrap();
            let mut byte = 0u8;
            // SAFETY: one writable byte.
            let got = unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) };
            (got, std::io::Error::last_os_error(), byte)
        });
        receive.recv().unwrap();
        // Each tick interrupts the thread until it counts as idle: at least two ticks.
        let mut signals = 0;
        wait_until("two samples", || {
            drain(&mut reader);
            reader.wall_tick(now_ns());
            signals += reader.take_counters().samples;
            signals >= 2
        });
        // SAFETY: one readable byte.
        unsafe { libc::write(pipe[1], b"x".as_ptr().cast(), 1) };
        let (got, error, byte) = thread.join().unwrap();
        assert_eq!((got, byte), (1, b'x'), "{error}");
    });
}

#[test]
fn one_sampler_at_a_time_and_again_after_stop() {
    in_child("one_sampler_at_a_time_and_again_after_stop", || {
        let config = |max_depth| Config {
            engine: OWN_CLOCK,
            interval_ns: 2_000_000,
            max_depth,
            ..Config::default()
        };
        let (sampler, mut reader) = Sampler::start(config(16), leaf_walk).unwrap();
        assert_eq!(
            Sampler::start(config(16), leaf_walk).unwrap_err(),
            Error::AlreadyStarted
        );
        let old = sampler.register(tid(), Some(stack())).unwrap();
        burn_until_sampled(&mut reader);
        sampler.stop();
        drain(&mut reader);
        burn(Duration::from_millis(20));
        assert!(
            drain(&mut reader).is_empty(),
            "nobody is sampled after stop"
        );
        assert_eq!(sampler.register(tid(), Some(stack())), Err(Error::Stopped));
        assert_eq!(
            Sampler::start(config(16), leaf_walk).unwrap_err(),
            Error::AlreadyStarted
        );
        drop(reader);

        // Again, with another geometry; the thread left over is closed.
        let (sampler, mut reader) = Sampler::start(config(512), leaf_walk).unwrap();
        let mut closed = Vec::new();
        reader.drain_all(
            |_, _| panic!("nothing was sampled"),
            |slot| closed.push(slot),
        );
        assert_eq!(closed, [old]);
        let slot = sampler.register(tid(), Some(stack())).unwrap();
        assert_eq!(slot.index(), old.index());
        assert_ne!(slot, old);
        burn_until_sampled(&mut reader);
    });
}

#[test]
fn bad_configurations_are_named() {
    in_child("bad_configurations_are_named", || {
        let good = Config::default();
        let bad = [
            (
                "interval_ns",
                Config {
                    interval_ns: 0,
                    ..good
                },
            ),
            (
                "interval_ns",
                Config {
                    interval_ns: 2_000_000_000,
                    ..good
                },
            ),
            (
                "signal",
                Config {
                    signal: libc::SIGPROF,
                    ..good
                },
            ),
            (
                "signal",
                Config {
                    signal: libc::SIGSEGV,
                    ..good
                },
            ),
            (
                "signal",
                Config {
                    signal: libc::SIGKILL,
                    ..good
                },
            ),
            (
                "max_depth",
                Config {
                    max_depth: 0,
                    ..good
                },
            ),
            (
                "max_depth",
                Config {
                    max_depth: 40_000,
                    ..good
                },
            ),
            (
                "ring_len",
                Config {
                    ring_len: u32::MAX,
                    ..good
                },
            ),
        ];
        for (field, config) in bad {
            assert_eq!(
                Sampler::start(config, leaf_walk).unwrap_err(),
                Error::Config(field)
            );
        }
        assert!(
            Sampler::start(good, leaf_walk).is_ok(),
            "a refusal leaves nothing behind"
        );
    });
}

/// If descriptors run out, a thread gets the slower timer.
#[test]
fn without_descriptors_a_timer_is_used() {
    in_child("without_descriptors_a_timer_is_used", || {
        let (sampler, mut reader) = start(OWN_CLOCK, 100);
        // SAFETY: a valid rlimit.
        unsafe {
            let none = libc::rlimit {
                rlim_cur: 3,
                rlim_max: 3,
            };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &none), 0);
        }
        let slot = sampler.register(tid(), Some(stack())).unwrap();
        let before = cpu_ns();
        burn(Duration::from_millis(500));
        let mut value = reader.take_counters().value_ns;
        // If other threads want the processor too, the kernel checks a thread's timer rarely: after
        // up to 0.4 s of its time (measured), and then for all of that. So this waits for the next
        // tick.
        loop {
            burn(Duration::from_millis(10));
            let more = reader.take_counters().value_ns;
            value += more;
            let used = cpu_ns() - before;
            if more > 0 {
                let ratio = value as f64 / used as f64;
                assert!((0.8..=1.2).contains(&ratio), "{value} of {used} ns");
                break;
            }
            assert!(used < 10_000_000_000, "no tick after {used} ns");
        }
        sampler.unregister(slot);
    });
}

#[test]
fn more_threads_than_slots_are_refused() {
    in_child("more_threads_than_slots_are_refused", || {
        let (sampler, mut reader) = start(EngineChoice::Timer, 100);
        let mut slots: Vec<SlotId> = (0..4096)
            .map(|_| sampler.register(tid(), None).unwrap())
            .collect();
        assert_eq!(sampler.register(tid(), None), Err(Error::TooManyThreads));
        let last = slots.pop().unwrap();
        sampler.unregister(last);
        assert_eq!(
            sampler.register(tid(), None),
            Err(Error::TooManyThreads),
            "not drained yet"
        );
        drain(&mut reader);
        assert_eq!(sampler.register(tid(), None).unwrap().index(), last.index());
    });
}

/// Makes `bind` return EACCES for every socket of this process, as policies may.
fn forbid_names_of_sockets() {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let instruction = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = [
        // The system call's number is the first word.
        instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, libc::SYS_bind as u32),
        instruction(
            BPF_RET | BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EACCES as u32,
        ),
        instruction(BPF_RET | BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: numbers, and a filter that is alive during the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
            0
        );
    }
}

#[test]
fn where_sockets_get_no_names_the_reader_is_woken_too() {
    in_child("where_sockets_get_no_names_the_reader_is_woken_too", || {
        forbid_names_of_sockets();
        let (sampler, mut reader) = start(EngineChoice::Timer, 99);
        let readable = |fd| {
            let (events, revents) = (libc::POLLIN, 0);
            let mut poll = libc::pollfd {
                fd,
                events,
                revents,
            };
            // SAFETY: one valid pollfd.
            unsafe { libc::poll(&raw mut poll, 1, 0) }
        };
        assert_eq!(readable(reader.wake_fd()), 0);
        sampler.wake();
        assert_eq!(readable(reader.wake_fd()), 1);
        reader.clear_wake();
        assert_eq!(readable(reader.wake_fd()), 0);
    });
}
