//! Tests of signals that the handler refuses or passes on, and of state that it must preserve.

mod common;
use common::*;
use sampler::{
    Config, Counters, DiscardReason, HoldReason, Holder, Reader, Sampler, Scratch, WalkResult,
};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Sends a foreign signal to the calling thread.
fn send_foreign(signal: i32) {
    // SAFETY: sends a signal to this very thread.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
    assert_eq!(sent, 0);
}

fn install(signal: i32, handler: usize, flags: i32) {
    // SAFETY: a zeroed sigaction with a handler of the kind that `flags` says.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

#[test]
fn a_foreign_signal_without_an_earlier_handler_is_ignored() {
    in_child(
        "a_foreign_signal_without_an_earlier_handler_is_ignored",
        || {
            let (_, mut reader) = start(OWN_CLOCK, 100);
            for _ in 0..3 {
                send_foreign(libc::SIGRTMIN());
            }
            let counters = reader.take_counters();
            assert_eq!(counters.discarded(DiscardReason::Foreign), 3);
            assert_eq!(counters.signals, 0);
            assert_eq!(counters.lost(), 0);
        },
    );
}

#[test]
fn a_foreign_signal_reaches_the_earlier_handler() {
    in_child("a_foreign_signal_reaches_the_earlier_handler", || {
        static SEEN: AtomicI32 = AtomicI32::new(0);
        extern "C" fn with_info(
            signal: i32,
            info: *mut libc::siginfo_t,
            context: *mut libc::c_void,
        ) {
            // SAFETY: the kernel's siginfo.
            let code = unsafe { (*info).si_code };
            assert!(signal == libc::SIGRTMIN() && code == libc::SI_TKILL && !context.is_null());
            SEEN.fetch_add(1, Ordering::SeqCst);
        }
        install(
            libc::SIGRTMIN(),
            with_info as *const () as usize,
            libc::SA_SIGINFO,
        );
        let (sampler, mut reader) = start(OWN_CLOCK, 1000);
        let slot = sampler.register(tid(), Some(stack())).unwrap();
        let mut total = Total::default();
        burn_until("six samples", || total.take(&mut reader).samples > 5);
        assert_eq!(
            SEEN.load(Ordering::SeqCst),
            0,
            "our own ticks are not passed on"
        );
        send_foreign(libc::SIGRTMIN());
        assert_eq!(SEEN.load(Ordering::SeqCst), 1);
        sampler.unregister(slot);
        sampler.stop();
        send_foreign(libc::SIGRTMIN());
        assert_eq!(SEEN.load(Ordering::SeqCst), 2, "also after stop");
        let counters = total.take(&mut reader);
        assert_eq!(counters.discarded(DiscardReason::Chained), 2);
    });
}

#[test]
fn an_earlier_handler_without_siginfo_is_called_too() {
    in_child("an_earlier_handler_without_siginfo_is_called_too", || {
        static SEEN: AtomicI32 = AtomicI32::new(0);
        extern "C" fn plain(signal: i32) {
            SEEN.fetch_add(signal, Ordering::SeqCst);
        }
        install(libc::SIGRTMIN(), plain as *const () as usize, 0);
        let (_, _reader) = start(OWN_CLOCK, 1000);
        // The program's own POSIX timer with the same signal is foreign as well.
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: valid pointers; the timer signals this process once, at once.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_SIGNAL;
            event.sigev_signo = libc::SIGRTMIN();
            event.sigev_value.sival_ptr = 0x1234 as *mut libc::c_void;
            assert_eq!(
                libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer),
                0
            );
            let mut once: libc::itimerspec = std::mem::zeroed();
            once.it_value.tv_nsec = 1;
            assert_eq!(
                libc::timer_settime(timer, 0, &once, std::ptr::null_mut()),
                0
            );
        }
        wait_until("the timer", || {
            SEEN.load(Ordering::SeqCst) == libc::SIGRTMIN()
        });
    });
}

#[test]
fn errno_is_kept() {
    in_child("errno_is_kept", || {
        unsafe extern "C" fn rude_walk(
            context: *const libc::ucontext_t,
            end: u64,
            scratch: *mut Scratch,
            out: *mut u64,
            cap: usize,
        ) -> WalkResult {
            // SAFETY: this thread's errno; the arguments are passed on.
            unsafe {
                *libc::__errno_location() = 77;
                leaf_walk(context, end, scratch, out, cap)
            }
        }
        let config = Config {
            interval_ns: 100_000,
            ..config(8)
        };
        let (sampler, mut reader) = Sampler::start(config, rude_walk).unwrap();
        sampler.register(tid(), Some(stack())).unwrap();
        let mut samples = 0;
        // SAFETY: this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { errno.write_volatile(1234) };
        burn_until("six samples", || {
            // SAFETY: as above.
            assert_eq!(unsafe { errno.read_volatile() }, 1234);
            samples += reader.take_counters().samples;
            samples > 5
        });
    });
}

/// Samples, signals, lost time and discarded samples since the start.
#[derive(Default)]
struct Total(Counters);

impl Total {
    /// Adds the counts since the last call.
    fn take(&mut self, reader: &mut Reader) -> &Counters {
        let new = reader.take_counters();
        let sum = &mut self.0;
        sum.samples += new.samples;
        sum.signals += new.signals;
        sum.lost_ns += new.lost_ns;
        for (sum, new) in sum.discarded.iter_mut().zip(new.discarded) {
            *sum += new;
        }
        sum
    }
}

/// Registers this thread with the given stack and burns until more than five samples were refused,
/// all for this `reason`.
fn all_are_refused(stack: std::ops::Range<u64>, reason: DiscardReason) {
    let (sampler, mut reader) = start(OWN_CLOCK, 1000);
    let slot = sampler.register(tid(), Some(stack)).unwrap();
    let mut total = Total::default();
    burn_until("six refusals", || {
        total.take(&mut reader).discarded(reason) > 5
    });
    sampler.unregister(slot);
    let counters = total.take(&mut reader);
    assert_eq!(counters.lost(), counters.discarded(reason), "{counters:?}");
    assert_eq!(
        counters.signals,
        counters.samples + counters.lost(),
        "{counters:?}"
    );
    assert!(
        counters.lost_ns >= counters.lost() * 1_000_000,
        "{counters:?}"
    );
    assert_eq!(counters.samples, 0, "{counters:?}");
}

#[test]
fn a_stack_pointer_off_the_stack_is_refused() {
    in_child("a_stack_pointer_off_the_stack_is_refused", || {
        let (sampler, mut reader) = start(OWN_CLOCK, 1000);
        let slot = sampler.register(tid(), Some(0x1000..0x9000)).unwrap();
        burn_until("a refusal", || sampler.held(slot).is_some());
        burn(Duration::from_millis(50));
        let counters = reader.take_counters();
        // The thread is not sampled from then on.
        assert_eq!(sampler.held(slot), Some(HoldReason::Strayed));
        assert_eq!(counters.discarded(DiscardReason::OffStack), 1);
        assert_eq!((counters.signals, counters.samples), (1, 0));
    });
}

#[test]
fn a_stack_nearly_full_is_refused() {
    in_child("a_stack_nearly_full_is_refused", || {
        let here = 0u64;
        let low = &raw const here as u64 - 4096;
        // The handler's own frame and the kernel's take more than 1 KiB of the 4.
        all_are_refused(low..stack().end, DiscardReason::StackNearlyFull);
    });
}

/// Number of walks while a thread was on its alternate stack.
static ALTERNATE_WALKS: AtomicU64 = AtomicU64::new(0);

/// As `leaf_walk`, and counts walks on the alternate stack.
unsafe extern "C" fn counting_walk(
    context: *const libc::ucontext_t,
    end: u64,
    scratch: *mut Scratch,
    out: *mut u64,
    cap: usize,
) -> WalkResult {
    // SAFETY: the context is valid, the arguments are passed on.
    unsafe {
        let sp = (*context).uc_mcontext.gregs[libc::REG_RSP as usize] as u64;
        let low = (*context).uc_stack.ss_sp as u64;
        if (low..low + (*context).uc_stack.ss_size as u64).contains(&sp) {
            ALTERNATE_WALKS.fetch_add(1, Ordering::Relaxed);
        }
        leaf_walk(context, end, scratch, out, cap)
    }
}

/// Burns in handlers on the alternate stack until six ticks arrived there. `walk`: whether these
/// must be walked, or refused.
fn on_alternate_stack(walk: bool) {
    extern "C" fn burning(_: i32) {
        burn(Duration::from_millis(50));
    }
    let mut memory = vec![0u8; 256 * 1024];
    let alternate = libc::stack_t {
        ss_sp: memory.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: memory.len(),
    };
    // SAFETY: `memory` outlives its use as the alternate stack.
    unsafe { assert_eq!(libc::sigaltstack(&alternate, std::ptr::null_mut()), 0) };
    install(
        libc::SIGUSR2,
        burning as *const () as usize,
        libc::SA_ONSTACK,
    );
    let config = Config {
        walk_alternate_stack: walk,
        ..config(64)
    };
    let (sampler, reader) = Sampler::start(config, counting_walk).unwrap();
    let slot = sampler.register(tid(), Some(stack())).unwrap();
    let mut total = Total::default();
    let reader = Mutex::new(reader);
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The reader sends the ticks, because the thread's alternate stack has held a frame.
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                reader.lock().unwrap().tick(now_ns());
                std::thread::yield_now();
            }
        });
        burn_until("six ticks", || {
            send_foreign(libc::SIGUSR2);
            let counters = total.take(&mut reader.lock().unwrap());
            let refused = counters.discarded(DiscardReason::AlternateStack);
            let walked = ALTERNATE_WALKS.load(Ordering::Relaxed);
            let (hits, misses) = if walk {
                (walked, refused)
            } else {
                (refused, walked)
            };
            assert_eq!(misses, 0, "{counters:?}");
            hits > 5
        });
        has_ended.store(true, Ordering::Relaxed);
    });
    sampler.unregister(slot);
    let counters = total.take(&mut reader.lock().unwrap());
    let refused = counters.discarded(DiscardReason::AlternateStack);
    assert_eq!(counters.lost(), refused, "{counters:?}");
}

#[test]
fn the_alternate_stack_is_refused_or_walked_as_configured() {
    let test = "the_alternate_stack_is_refused_or_walked_as_configured";
    in_child(test, || on_alternate_stack(false));
}

#[test]
fn the_alternate_stack_is_walked_if_configured() {
    in_child("the_alternate_stack_is_walked_if_configured", || {
        on_alternate_stack(true);
    });
}

#[test]
fn a_nested_signal_is_counted() {
    static SAMPLER: OnceLock<(&'static Sampler, sampler::SlotId)> = OnceLock::new();
    static INVITATIONS: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn inviting_walk(
        context: *const libc::ucontext_t,
        end: u64,
        scratch: *mut Scratch,
        out: *mut u64,
        cap: usize,
    ) -> WalkResult {
        if let Some((sampler, slot)) = SAMPLER.get() {
            INVITATIONS.fetch_add(1, Ordering::Relaxed);
            // SAFETY: lets the signal in and asks for one, inside the handler.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&mut set, libc::SIGRTMIN());
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
            }
            sampler.probe_stack(*slot).unwrap();
        }
        // SAFETY: the arguments are passed on.
        unsafe { leaf_walk(context, end, scratch, out, cap) }
    }
    in_child("a_nested_signal_is_counted", || {
        let (sampler, mut reader) = Sampler::start(config(8), inviting_walk).unwrap();
        let slot = sampler.register(tid(), Some(stack())).unwrap();
        SAMPLER.set((sampler, slot)).unwrap();
        let mut total = Total::default();
        burn_until("six samples", || total.take(&mut reader).samples > 5);
        sampler.unregister(slot);
        let counters = total.take(&mut reader);
        let nested = counters.discarded(DiscardReason::Nested);
        // One probe for each walk, and ticks that arrive during a walk.
        assert!(
            nested >= INVITATIONS.load(Ordering::Relaxed),
            "{counters:?}"
        );
        assert!(counters.samples >= INVITATIONS.load(Ordering::Relaxed));
    });
}

#[test]
fn a_walk_knows_whose_it_is_and_others_know_of_it() {
    const NOBODY: u64 = u64::MAX;
    static WALKS: AtomicU64 = AtomicU64::new(NOBODY);
    static SEEN: AtomicI32 = AtomicI32::new(0);
    unsafe extern "C" fn patient_walk(
        context: *const libc::ucontext_t,
        end: u64,
        scratch: *mut Scratch,
        out: *mut u64,
        cap: usize,
    ) -> WalkResult {
        // SAFETY: the sampler gives a head.
        WALKS.store(unsafe { (*scratch).slot } as u64, Ordering::SeqCst);
        while SEEN.load(Ordering::SeqCst) == 0 {
            std::hint::spin_loop();
        }
        // SAFETY: the arguments are passed on.
        unsafe { leaf_walk(context, end, scratch, out, cap) }
    }
    in_child("a_walk_knows_whose_it_is_and_others_know_of_it", || {
        let (sampler, _reader) = Sampler::start(config(8), patient_walk).unwrap();
        // The first slot is this thread's, so that 0 would be wrong.
        let first = sampler.register(tid(), None).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let burning = std::thread::spawn(move || {
            let slot = sampler.register(tid(), Some(stack())).unwrap();
            sender.send(slot).unwrap();
            burn_until("the walk", || SEEN.load(Ordering::SeqCst) != 0);
            assert!(!sampler.is_in_handler(slot), "this is not the handler");
            sampler.unregister(slot);
        });
        let slot = receiver.recv().unwrap();
        wait_until("the walk", || sampler.is_in_handler(slot));
        wait_until("its word", || WALKS.load(Ordering::SeqCst) != NOBODY);
        assert!(sampler.is_in_handler(slot), "it waits for us");
        assert!(!sampler.is_in_handler(first));
        assert_eq!(WALKS.load(Ordering::SeqCst), slot.index() as u64);
        assert_ne!(slot.index(), first.index());
        SEEN.store(1, Ordering::SeqCst);
        burning.join().unwrap();
        assert!(!sampler.is_in_handler(slot));
    });
}

#[test]
fn a_refusal_of_the_walker_is_counted_by_its_code() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn choosy_walk(
        context: *const libc::ucontext_t,
        end: u64,
        scratch: *mut Scratch,
        out: *mut u64,
        cap: usize,
    ) -> WalkResult {
        let reason = match CALLS.fetch_add(1, Ordering::Relaxed) % 4 {
            0 => 3,
            1 => 200,
            _ => 0,
        };
        // SAFETY: the arguments are passed on.
        WalkResult {
            reason,
            ..unsafe { leaf_walk(context, end, scratch, out, cap) }
        }
    }
    in_child("a_refusal_of_the_walker_is_counted_by_its_code", || {
        let (sampler, mut reader) = Sampler::start(config(8), choosy_walk).unwrap();
        let slot = sampler.register(tid(), Some(stack())).unwrap();
        burn_until("21 walks", || CALLS.load(Ordering::Relaxed) > 20);
        sampler.unregister(slot);
        let counters = reader.take_counters();
        let calls = CALLS.load(Ordering::Relaxed);
        assert_eq!(counters.refused_by_walker[3], calls.div_ceil(4));
        assert_eq!(counters.refused_by_walker[15], (calls + 2) / 4);
        assert_eq!(
            counters.discarded(DiscardReason::Walker),
            counters.refused_by_walker.iter().sum::<u64>()
        );
        assert_eq!(counters.samples, drain(&mut reader).len() as u64);
    });
}

/// If a ring buffer is not drained it fills up: the reader is woken at half, written records are
/// read unchanged, and samples without room are counted.
#[test]
fn a_full_ring_drops_and_counts() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn deep_walk(
        _: *const libc::ucontext_t,
        _: u64,
        _: *mut Scratch,
        out: *mut u64,
        cap: usize,
    ) -> WalkResult {
        // Each stack differs from the one before at the root, so no frames are shared.
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        for index in 0..cap {
            // SAFETY: `out` has room for `cap` words.
            unsafe { *out.add(index) = call * 1000 + index as u64 };
        }
        WalkResult {
            depth: cap as u32,
            end: 9,
            reason: 0,
        }
    }
    in_child("a_full_ring_drops_and_counts", || {
        let config = Config {
            ring_len: 4096, // 512 words: 7 records of 67
            ..config(64)
        };
        let (sampler, mut reader) = Sampler::start(config, deep_walk).unwrap();
        let slot = sampler.register(tid(), Some(stack())).unwrap();
        burn_until("twelve walks", || CALLS.load(Ordering::Relaxed) > 11);
        sampler.unregister(slot);
        let fd = reader.wake_fd();
        let readable = || {
            let mut poll = libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one valid pollfd.
            unsafe { libc::poll(&mut poll, 1, 0) }
        };
        assert_eq!(readable(), 1, "half full woke the reader");
        let samples = drain(&mut reader);
        assert_eq!(samples.len(), 7);
        for (call, (_, sample)) in samples.iter().enumerate() {
            let expected: Vec<u64> = (0..64).map(|index| call as u64 * 1000 + index).collect();
            assert_eq!(sample.frames, expected);
            assert_eq!(sample.end, 9);
        }
        assert_eq!(readable(), 0, "and it is quiet again");
        let counters = reader.take_counters();
        assert_eq!(counters.samples, 7);
        assert_eq!(
            counters.discarded(DiscardReason::RingFull),
            CALLS.load(Ordering::Relaxed) - 7
        );
    });
}

#[test]
fn a_replaced_handler_is_noticed() {
    in_child("a_replaced_handler_is_noticed", || {
        let (sampler, mut reader) = start(OWN_CLOCK, 100);
        assert!(matches!(sampler.holder(), Holder::Sampler));
        install(libc::SIGRTMIN(), libc::SIG_IGN, 0);
        assert!(matches!(sampler.holder(), Holder::Other(_)));
        sampler.yield_signal();
        assert!(!sampler.is_running());
        let counters = reader.take_counters();
        assert_eq!(counters.discarded(DiscardReason::SignalTaken), 1);
        assert_eq!(counters.lost(), 1, "and it is said");
    });
}

#[test]
fn what_a_signal_costs_is_measured_and_counted_nowhere() {
    in_child(
        "what_a_signal_costs_is_measured_and_counted_nowhere",
        || {
            let (sampler, mut reader) = start(OWN_CLOCK, 100);
            let held_off = || {
                // SAFETY: a zeroed set to be filled in; a query only.
                unsafe {
                    let mut mask: libc::sigset_t = std::mem::zeroed();
                    libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
                    libc::sigismember(&mask, sampler.signal()) == 1
                }
            };
            // SAFETY: a set of this thread's own, with the one signal in it.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&mut set, sampler.signal());
                libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            }
            let cost = sampler.delivery_ns();
            // A signal enters the kernel twice, so it costs something, but less than a millisecond.
            assert!((100..1_000_000).contains(&cost), "{cost} ns");
            assert!(held_off(), "the mask is as it was");
            let counters = reader.take_counters();
            assert_eq!(counters.signals, 0);
            assert_eq!(counters.discarded.iter().sum::<u64>(), 0);
            println!("{cost} ns");
            // A handler of other code is not called.
            static CALLED: AtomicU64 = AtomicU64::new(0);
            extern "C" fn theirs(_: i32) {
                CALLED.fetch_add(1, Ordering::SeqCst);
            }
            install(sampler.signal(), theirs as *const () as usize, 0);
            assert!(sampler.delivery_ns() > 0);
            assert_eq!(CALLED.load(Ordering::SeqCst), 0);
        },
    );
}
