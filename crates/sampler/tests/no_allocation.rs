//! Test that the handler allocates nothing.
//!
//! `malloc` and its family are defined in this file and count the calls that a thread makes while
//! it is in the handler. Allocations of other threads do not count.

mod common;
use common::*;
use sampler::{Reader, Sampler, Scratch, WalkResult};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of allocator calls from within the handler.
static CALLS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // No destructor and a constant initial value: a plain access to the executable's own
    // thread-local storage, which is safe in a signal handler.
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Address of the sampler's handler, which [`in_handler`] calls.
static HANDLER: AtomicUsize = AtomicUsize::new(0);

extern "C" fn in_handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Handler = unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: `watch_handler` stored the address of the handler that the sampler had installed with
    // SA_SIGINFO; it gets the kernel's arguments.
    unsafe {
        let handler = std::mem::transmute::<usize, Handler>(HANDLER.load(Ordering::Relaxed));
        IN_HANDLER.set(true);
        handler(signal, info, context);
        IN_HANDLER.set(false);
    }
}

/// Wraps [`in_handler`] around the sampler's handler.
fn watch_handler(sampler: &Sampler) {
    // SAFETY: a zeroed sigaction to be filled in, which goes back with another handler of the same
    // kind.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let signal = sampler.signal();
        assert_eq!(libc::sigaction(signal, std::ptr::null(), &mut action), 0);
        assert_ne!(action.sa_flags & libc::SA_SIGINFO, 0);
        HANDLER.store(action.sa_sigaction, Ordering::Relaxed);
        action.sa_sigaction = in_handler as *const () as usize;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut libc::c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut libc::c_void;
    fn __libc_realloc(old: *mut libc::c_void, len: usize) -> *mut libc::c_void;
    fn __libc_free(old: *mut libc::c_void);
}

fn note() {
    if IN_HANDLER.get() {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: takes malloc's place with malloc's behaviour.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(len: usize) -> *mut libc::c_void {
    note();
    // SAFETY: passed on.
    unsafe { __libc_malloc(len) }
}

// SAFETY: takes calloc's place with calloc's behaviour.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, len: usize) -> *mut libc::c_void {
    note();
    // SAFETY: passed on.
    unsafe { __libc_calloc(count, len) }
}

// SAFETY: takes realloc's place with realloc's behaviour.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut libc::c_void, len: usize) -> *mut libc::c_void {
    note();
    // SAFETY: passed on.
    unsafe { __libc_realloc(old, len) }
}

// SAFETY: takes free's place with free's behaviour.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(old: *mut libc::c_void) {
    note();
    // SAFETY: passed on.
    unsafe { __libc_free(old) }
}

/// Registers this thread and burns until it has been sampled more than ten times. Allocates nothing
/// meanwhile, because an allocating walk may interrupt it.
fn sample_some(sampler: &Sampler, reader: &mut Reader) -> u64 {
    let (tid, stack) = (tid(), stack());
    watch_handler(sampler);
    let slot = sampler.register(tid, Some(stack)).unwrap();
    let mut samples = 0;
    burn_until("more than ten samples", || {
        samples += reader.take_counters().samples;
        samples > 10
    });
    sampler.unregister(slot);
    samples + reader.take_counters().samples
}

#[test]
fn the_handler_allocates_nothing() {
    in_child("the_handler_allocates_nothing", || {
        let (sampler, mut reader) = start(OWN_CLOCK, 5000);
        sample_some(sampler, &mut reader);
        assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    });
}

/// Shows that the test above can fail.
#[test]
fn an_allocation_in_the_handler_is_counted() {
    unsafe extern "C" fn allocating_walk(
        context: *const libc::ucontext_t,
        end: u64,
        scratch: *mut Scratch,
        out: *mut u64,
        cap: usize,
    ) -> WalkResult {
        // Safe here only because the interrupted thread allocates nothing.
        drop(std::hint::black_box(vec![1u8; 100]));
        // SAFETY: the arguments are passed on.
        unsafe { leaf_walk(context, end, scratch, out, cap) }
    }
    in_child("an_allocation_in_the_handler_is_counted", || {
        let (sampler, mut reader) = Sampler::start(config(64), allocating_walk).unwrap();
        let samples = sample_some(sampler, &mut reader);
        assert_eq!(CALLS.load(Ordering::SeqCst), 2 * samples);
    });
}
