//! Tests of the stacks on which frames of our signals are written.
//!
//! It must never be a stack whose room is unknown, whatever other code does with signals, stacks
//! and handlers of faults.

mod common;

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{
    OWN_CLOCK, burn, burn_until, burn_until_sampled, drain, in_child, now_ns, stack, start, tid,
};
use sampler::{
    Counters, DiscardReason, EngineChoice, Error, HoldReason, Reader, Route, Sampler, SlotId,
};

fn action_of(signal: i32) -> libc::sigaction {
    // SAFETY: all-zero is a valid sigaction; a query only.
    unsafe {
        let mut action = zeroed();
        assert_eq!(libc::sigaction(signal, std::ptr::null(), &mut action), 0);
        action
    }
}

fn set_action(signal: i32, action: &libc::sigaction) {
    // SAFETY: an action of this test's, or one that was there.
    unsafe { assert_eq!(libc::sigaction(signal, action, null_mut()), 0) };
}

fn blocks(action: &libc::sigaction, signal: i32) -> bool {
    // SAFETY: a valid set.
    unsafe { libc::sigismember(&action.sa_mask, signal) == 1 }
}

/// Sets SA_ONSTACK as Go's runtime does to each handler that it finds.
fn set_onstack(signal: i32) {
    let mut action = action_of(signal);
    action.sa_flags |= libc::SA_ONSTACK;
    set_action(signal, &action);
}

fn sum(total: &mut Counters, new: Counters) {
    total.signals += new.signals;
    total.samples += new.samples;
    total.sent += new.sent;
    for (sum, new) in total.discarded.iter_mut().zip(new.discarded) {
        *sum += new;
    }
}

/// Makes a permanent alternate stack for this thread.
fn make_alternate(bytes: usize) {
    let memory = Box::leak(vec![0u8; bytes].into_boxed_slice());
    let alternate = libc::stack_t {
        ss_sp: memory.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: bytes,
    };
    // SAFETY: the memory is never freed.
    unsafe { assert_eq!(libc::sigaltstack(&alternate, null_mut()), 0) };
}

fn take_alternate() {
    let none = libc::stack_t {
        ss_sp: null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    // SAFETY: this thread is not on its alternate stack.
    unsafe { assert_eq!(libc::sigaltstack(&none, null_mut()), 0) };
}

/// Size of the checked area below a coroutine's stack.
const KNOWN_BYTES: usize = 16 * 1024;
const FILL: u8 = 0xa5;

type Body = Box<dyn FnMut() + Send>;
static BODY: Mutex<Option<Body>> = Mutex::new(None);

extern "C" fn coroutine() {
    let body = BODY.lock().unwrap().take();
    if let Some(mut body) = body {
        body();
    }
}

/// Runs `body` on a coroutine's stack of `bytes` bytes. Returns the number of bytes written below
/// it.
fn on_coroutine(bytes: usize, body: impl FnMut() + Send + 'static) -> usize {
    let mut block = vec![FILL; KNOWN_BYTES + bytes];
    *BODY.lock().unwrap() = Some(Box::new(body));
    // SAFETY: both contexts live until the coroutine has returned by `uc_link`; its stack lies in
    // `block`, which outlives it.
    unsafe {
        let mut main: libc::ucontext_t = zeroed();
        let mut own: libc::ucontext_t = zeroed();
        assert_eq!(libc::getcontext(&mut own), 0);
        own.uc_stack.ss_sp = block.as_mut_ptr().add(KNOWN_BYTES).cast::<c_void>();
        own.uc_stack.ss_size = bytes;
        own.uc_link = &raw mut main;
        libc::makecontext(&mut own, coroutine, 0);
        assert_eq!(libc::swapcontext(&mut main, &own), 0);
    }
    let hurt = block
        .iter()
        .take(KNOWN_BYTES)
        .position(|byte| *byte != FILL);
    hurt.map_or(0, |lowest| KNOWN_BYTES - lowest)
}

fn register(sampler: &Sampler, route: Route) -> SlotId {
    let registered = sampler.register_by(tid(), Some(stack()), route, true);
    registered.unwrap()
}

/// Burns without a call, on a stack with little room.
#[inline(never)]
fn spin(rounds: u64) {
    for n in 0..rounds {
        std::hint::black_box(n);
    }
}

#[test]
fn a_thread_of_a_clr_is_held_once_its_signal_was_on_the_alternate_stack() {
    let test = "a_thread_of_a_clr_is_held_once_its_signal_was_on_the_alternate_stack";
    in_child(test, || {
        let (sampler, mut reader) = start(OWN_CLOCK, 1000);
        let slot = register(sampler, Route::Shared);
        burn_until_sampled(&mut reader);
        set_onstack(sampler.signal());
        // One tick detects it.
        burn_until("a look", || sampler.held(slot).is_some());
        assert_eq!(sampler.held(slot), Some(HoldReason::Alternate));
        let (_, before) = (drain(&mut reader), reader.take_counters());
        burn(Duration::from_millis(200));
        sampler.recheck_signals();
        assert_eq!(reader.take_counters().signals, 0, "{before:?}");
        let refused = Err(Error::HoldReason(HoldReason::Alternate));
        assert_eq!(sampler.probe_stack(slot), refused);
        // A signal that the CLR itself sends is safe again.
        assert_eq!(action_of(sampler.signal()).sa_flags & libc::SA_ONSTACK, 0);
        sampler.recheck_signals();
        assert_eq!(sampler.held(slot), Some(HoldReason::Alternate));
        // A thread that has another signal is still sampled.
        let other = std::thread::spawn(move || register(sampler, Route::Own));
        assert_eq!(sampler.held(other.join().unwrap()), None);
        // The next sampler detects it too.
        sampler.stop();
        drop(reader);
        let (sampler, _reader) = start(OWN_CLOCK, 1000);
        let slot = register(sampler, Route::Shared);
        assert_eq!(sampler.held(slot), Some(HoldReason::Alternate));
    });
}

#[test]
fn a_small_stack_is_not_written_to() {
    in_child("a_small_stack_is_not_written_to", || {
        make_alternate(64 * 1024);
        let (sampler, reader) = start(OWN_CLOCK, 1000);
        let slot = register(sampler, Route::Own);
        let reader = std::sync::Arc::new(Mutex::new((reader, Counters::default())));
        let refused = |reader: &Mutex<(Reader, Counters)>| {
            let (reader, total) = &mut *reader.lock().unwrap();
            sum(total, reader.take_counters());
            total.discarded(DiscardReason::OffStack)
        };
        // Ticks come at random places: repeated until some have come there.
        while refused(&reader) < 5 {
            assert_eq!(on_coroutine(2048, || spin(20_000_000)), 0);
        }
        assert_eq!(sampler.held(slot), None);
        // It is sampled when it is back on its own stack.
        let (reader, total) = &mut *reader.lock().unwrap();
        drain(reader);
        burn_until_sampled(reader);
        assert_eq!(total.lost(), total.discarded(DiscardReason::OffStack));
    });
}

#[test]
fn a_thread_that_has_left_its_stack_is_left_alone_where_it_has_no_other() {
    let test = "a_thread_that_has_left_its_stack_is_left_alone_where_it_has_no_other";
    in_child(test, || {
        take_alternate();
        let (sampler, mut reader) = start(OWN_CLOCK, 1000);
        let slot = register(sampler, Route::Own);
        // There is room for one frame.
        while sampler.held(slot).is_none() {
            on_coroutine(64 * 1024, || spin(20_000_000));
        }
        assert_eq!(sampler.held(slot), Some(HoldReason::Strayed));
        let counters = reader.take_counters();
        assert_eq!(counters.discarded(DiscardReason::OffStack), 1);
        for _ in 0..5 {
            assert_eq!(on_coroutine(2048, || spin(20_000_000)), 0);
        }
        assert_eq!(
            sampler.probe_stack(slot),
            Err(Error::HoldReason(HoldReason::Strayed))
        );
        assert_eq!(reader.take_counters().signals, 0);
    });
}

/// The alternate stack of a thread that Rust's standard library has made.
#[test]
fn eight_kib_of_alternate_stack_are_enough_for_a_sample() {
    in_child(
        "eight_kib_of_alternate_stack_are_enough_for_a_sample",
        || {
            make_alternate(8192);
            let (sampler, mut reader) = start(OWN_CLOCK, 1000);
            register(sampler, Route::Own);
            burn_until_sampled(&mut reader);
            assert_eq!(reader.take_counters().lost(), 0);
        },
    );
}

unsafe extern "C" fn on_fault(_: i32) {}

#[test]
fn a_handler_of_faults_is_made_to_hold_the_signal_off() {
    in_child("a_handler_of_faults_is_made_to_hold_the_signal_off", || {
        let (sampler, mut reader) = start(OWN_CLOCK, 1000);
        let slot = register(sampler, Route::Shared);
        let signal = sampler.signal();
        let handler = |flags| {
            // SAFETY: all-zero is a valid sigaction.
            let mut action: libc::sigaction = unsafe { zeroed() };
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = flags;
            action
        };
        for fault in [
            libc::SIGSEGV,
            libc::SIGFPE,
            libc::SIGBUS,
            libc::SIGILL,
            libc::SIGTRAP,
        ] {
            let before = action_of(fault);
            // Without a stack of its own, the signal is as safe as elsewhere.
            set_action(fault, &handler(libc::SA_RESTART));
            sampler.recheck_signals();
            assert!(!blocks(&action_of(fault), signal));
            set_action(fault, &handler(libc::SA_ONSTACK | libc::SA_RESTART));
            sampler.recheck_signals();
            let found = action_of(fault);
            assert!(blocks(&found, signal) && !blocks(&found, signal + 1));
            let bit = 1 << (fault - 1);
            let open = || {
                let open = Sampler::open_handlers(signal);
                (open.masked & bit != 0, open.left & bit != 0)
            };
            assert_eq!(open(), (true, false));
            assert_eq!(found.sa_sigaction, on_fault as *const () as usize);
            let flags = libc::SA_ONSTACK | libc::SA_RESTART;
            assert_eq!(found.sa_flags & !0x0400_0000, flags);
            assert_eq!(sampler.held(slot), None);
            // The program may never return from this handler, and signals that it blocks would
            // remain blocked.
            set_action(fault, &handler(libc::SA_ONSTACK | libc::SA_NODEFER));
            sampler.recheck_signals();
            assert!(!blocks(&action_of(fault), signal));
            assert_eq!(sampler.held(slot), Some(HoldReason::Fault));
            assert_eq!(open(), (false, true));
            set_action(fault, &before);
            sampler.recheck_signals();
            assert_eq!(sampler.held(slot), None);
            // The one of before may be Rust's own, which lets the signal in.
            assert!(!open().1);
        }
        burn_until_sampled(&mut reader);
        // For frequent faults a tick does the check.
        set_action(libc::SIGSEGV, &handler(libc::SA_ONSTACK));
        burn_until("a tick", || blocks(&action_of(libc::SIGSEGV), signal));
    });
}

#[test]
fn a_perf_event_of_a_held_thread_stands_still() {
    in_child("a_perf_event_of_a_held_thread_stands_still", || {
        let (sampler, mut reader) = start(EngineChoice::Perf, 1000);
        let slot = register(sampler, Route::Shared);
        burn_until_sampled(&mut reader);
        let before = action_of(libc::SIGSEGV);
        // SAFETY: all-zero is a valid sigaction.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER;
        set_action(libc::SIGSEGV, &action);
        burn_until("a tick", || sampler.held(slot) == Some(HoldReason::Fault));
        reader.take_counters();
        // Nor is it considered a thread whose tick was lost.
        for _ in 0..3 {
            burn(Duration::from_millis(50));
            assert_eq!(reader.take_counters().signals, 0);
        }
        set_action(libc::SIGSEGV, &before);
        sampler.recheck_signals();
        assert_eq!(sampler.held(slot), None);
        drain(&mut reader);
        burn_until_sampled(&mut reader);
    });
}

#[test]
fn a_thread_in_a_handler_of_faults_has_its_signals_checked_before_they_are_sent() {
    let test = "a_thread_in_a_handler_of_faults_has_its_signals_checked_before_they_are_sent";
    in_child(test, || {
        let (sampler, mut reader) = start(EngineChoice::Timer, 1000);
        let slot = register(sampler, Route::Shared);
        burn_until_sampled(&mut reader);
        assert_eq!((reader.take_counters().sent, sampler.due_ns()), (0, None));
        // As in a handler of SIGSEGV.
        // SAFETY: changes this thread's mask.
        unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigaddset(&mut set, libc::SIGSEGV);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, null_mut());
        }
        burn_until("the reader's help", || sampler.due_ns().is_some());
        let before = reader.take_counters();
        let clock = std::thread::spawn(move || {
            let mut total = Counters::default();
            while total.samples < 3 {
                drain(&mut reader);
                reader.tick(now_ns());
                sum(&mut total, reader.take_counters());
            }
            set_onstack(sampler.signal());
            for _ in 0..10 {
                reader.tick(now_ns());
                burn(Duration::from_millis(5));
            }
            // One signal may have been on its way.
            sum(&mut total, reader.take_counters());
            let quiet = reader.take_counters();
            (total, quiet)
        });
        burn_until("samples", || clock.is_finished());
        let (total, quiet) = clock.join().unwrap();
        assert!(before.signals > 0);
        assert_eq!(total.sent, total.signals, "no timer is left");
        assert_eq!(quiet.signals, 0);
        assert_eq!(sampler.held(slot), Some(HoldReason::Alternate));
    });
}

/// A signal of one thread that a library has held back.
struct Kept(UnsafeCell<MaybeUninit<(libc::siginfo_t, libc::ucontext_t)>>);
// SAFETY: the one thread of the test and its own handler use it, which says by `HAS` who may.
unsafe impl Sync for Kept {}
static KEPT: Kept = Kept(UnsafeCell::new(MaybeUninit::uninit()));
/// Not 0 if there is a signal in it.
static HAS: AtomicU64 = AtomicU64::new(0);
static OURS: AtomicU64 = AtomicU64::new(0);
static KEEPS: AtomicU64 = AtomicU64::new(0);

type Handler = unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void);

/// Returns the sampler's handler.
fn ours() -> Handler {
    let address = OURS.load(Ordering::SeqCst) as usize;
    // SAFETY: the result of `Sampler::handler`.
    unsafe { std::mem::transmute::<usize, Handler>(address) }
}

unsafe extern "C" fn keep(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    if KEEPS.load(Ordering::SeqCst) == 0 {
        // SAFETY: the kernel's arguments.
        return unsafe { ours()(signal, info, context) };
    }
    if HAS.load(Ordering::SeqCst) == 0 {
        // SAFETY: both are the kernel's; the thread reads what is there only while `HAS` is set.
        unsafe { (*KEPT.0.get()).write((*info, *context.cast::<libc::ucontext_t>())) };
        HAS.store(1, Ordering::SeqCst);
    }
}

/// Burns below a frame of its own, so that the interrupted stack is gone afterwards.
#[inline(never)]
fn burn_deep() {
    let room = std::hint::black_box([0u8; 8192]);
    KEEPS.store(1, Ordering::SeqCst);
    burn(Duration::from_millis(20));
    KEEPS.store(0, Ordering::SeqCst);
    std::hint::black_box(room);
}

#[test]
fn a_signal_that_was_kept_back_is_refused() {
    in_child("a_signal_that_was_kept_back_is_refused", || {
        let (sampler, mut reader) = start(OWN_CLOCK, 1000);
        OURS.store(sampler.handler() as u64, Ordering::SeqCst);
        let mut action = action_of(sampler.signal());
        action.sa_sigaction = keep as *const () as usize;
        set_action(sampler.signal(), &action);
        register(sampler, Route::Shared);
        // A library that only passes the signal on is not a reason.
        burn_until_sampled(&mut reader);
        assert_eq!(reader.take_counters().lost(), 0);
        let mut called = 0;
        let mut total = Counters::default();
        while called < 5 {
            burn_deep();
            if HAS.load(Ordering::SeqCst) == 1 {
                // SAFETY: the handler has written it, and writes no more while `HAS` is set; copies
                // of the kernel's arguments on this thread.
                unsafe {
                    let (info, context) = (*KEPT.0.get()).assume_init_mut();
                    ours()(sampler.signal(), info, (&raw mut *context).cast());
                }
                HAS.store(0, Ordering::SeqCst);
                called += 1;
            }
            sum(&mut total, reader.take_counters());
        }
        assert_eq!(total.discarded(DiscardReason::StaleContext), called);
        assert_eq!(total.lost(), called, "{total:?}");
    });
}
