//! The handler allocates nothing: `malloc` and its family are this file's own, and count.

mod common;
use common::*;
use sampler::EngineChoice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

static WATCHING: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut libc::c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut libc::c_void;
    fn __libc_realloc(old: *mut libc::c_void, len: usize) -> *mut libc::c_void;
    fn __libc_free(old: *mut libc::c_void);
}

fn note() {
    if WATCHING.load(Ordering::Relaxed) {
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

#[test]
fn the_handler_allocates_nothing() {
    in_child("the_handler_allocates_nothing", || {
        for engine in [OWN_CLOCK, EngineChoice::Timer] {
            let (sampler, mut reader) = start(engine, 5000);
            // The test's harness waits in a join meanwhile.
            let slot = sampler.register(tid(), Some(stack())).unwrap();
            WATCHING.store(true, Ordering::SeqCst);
            burn(Duration::from_millis(200));
            WATCHING.store(false, Ordering::SeqCst);
            let calls = CALLS.load(Ordering::SeqCst);
            sampler.unregister(slot);
            let samples = reader.take_counters().samples;
            assert!(samples > 10, "{samples}");
            assert_eq!(calls, 0);
            sampler.stop();
            drop(reader);
        }
        // The guard guards: an allocation is seen.
        WATCHING.store(true, Ordering::SeqCst);
        drop(std::hint::black_box(vec![1u8; 100]));
        WATCHING.store(false, Ordering::SeqCst);
        assert_eq!(CALLS.load(Ordering::SeqCst), 2);
    });
}
