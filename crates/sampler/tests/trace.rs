//! Tests of traces: a thread answers a request for its stack, or the wait ends at its deadline.

mod common;
use common::*;
use sampler::{
    Config, DiscardReason, EngineChoice, Error, Reader, Sampler, Scratch, TraceRefused, WalkResult,
};
use std::sync::mpsc::channel;

/// A walk of two frames of three words: the interrupted instruction, and ROOT.
unsafe extern "C" fn two_frames(
    context: *const libc::ucontext_t,
    _stack_end: u64,
    _scratch: *mut Scratch,
    out: *mut u64,
    cap: usize,
) -> WalkResult {
    assert!(cap >= 2);
    // SAFETY: the context is valid, and `out` has room for two frames.
    unsafe {
        let registers = (*context).uc_mcontext.gregs;
        let at = |register: i32| registers[register as usize] as u64;
        let frames = [
            [at(libc::REG_RIP), at(libc::REG_RSP), at(libc::REG_RBP)],
            [ROOT, u64::MAX, 0],
        ];
        out.cast::<[[u64; 3]; 2]>().write(frames);
    }
    WalkResult {
        depth: 2,
        end: 7,
        reason: 0,
    }
}

fn start_with_traces(engine: EngineChoice) -> (&'static Sampler, Reader) {
    let config = Config {
        engine,
        trace: Some(two_frames),
        ..config(64)
    };
    Sampler::start(config, leaf_walk).unwrap()
}

fn soon() -> u64 {
    now_ns() + 10_000_000_000
}

#[test]
fn a_thread_that_waits_and_one_that_runs_answer_each_time() {
    in_child(
        "a_thread_that_waits_and_one_that_runs_answer_each_time",
        || {
            // With ticks too: while one signal is pending, another is not queued.
            let (sampler, mut reader) = start_with_traces(EngineChoice::Timer);
            let stop = Flag::new();
            std::thread::scope(|scope| {
                let (registered, slots) = channel();
                let (ending, end) = channel::<()>();
                let stop = &stop;
                let of_busy = registered.clone();
                scope.spawn(move || {
                    let slot = sampler.register(tid(), Some(stack())).unwrap();
                    of_busy.send((slot, stack())).unwrap();
                    while stop.get() == 0 {
                        std::hint::black_box(0);
                    }
                    sampler.unregister(slot);
                });
                scope.spawn(move || {
                    let slot = sampler.register(tid(), Some(stack())).unwrap();
                    registered.send((slot, stack())).unwrap();
                    // Until the other end is dropped.
                    assert!(end.recv().is_err());
                    sampler.unregister(slot);
                });
                let threads: Vec<_> = slots.iter().take(2).collect();
                for _ in 0..500 {
                    for (slot, _) in &threads {
                        reader.request_trace(*slot).unwrap();
                    }
                    for (slot, stack) in &threads {
                        let trace = reader.await_trace(*slot, soon()).unwrap();
                        let [leaf, root] = trace.frames else {
                            panic!("{trace:?}");
                        };
                        assert!(stack.contains(&leaf[1]), "{leaf:x?} on {stack:x?}");
                        assert_eq!((root[0], trace.end), (ROOT, 7));
                    }
                    drain(&mut reader);
                }
                drop(ending);
                stop.set(1);
            });
        },
    );
}

#[test]
fn who_cannot_answer_is_not_waited_for() {
    in_child("who_cannot_answer_is_not_waited_for", || {
        let (sampler, mut reader) = start_with_traces(EngineChoice::Wall);
        std::thread::scope(|scope| {
            let (registered, slots) = channel();
            let (open, opened) = channel::<()>();
            let (ending, end) = channel::<()>();
            scope.spawn(move || {
                // SAFETY: plain calls on a live, local signal set.
                let change = |how| unsafe {
                    let mut set: libc::sigset_t = std::mem::zeroed();
                    libc::sigemptyset(&mut set);
                    libc::sigaddset(&mut set, libc::SIGRTMIN());
                    libc::pthread_sigmask(how, &set, std::ptr::null_mut());
                };
                change(libc::SIG_BLOCK);
                let slot = sampler.register(tid(), Some(stack())).unwrap();
                registered.send(slot).unwrap();
                opened.recv().unwrap();
                change(libc::SIG_UNBLOCK);
                registered.send(slot).unwrap();
                assert!(end.recv().is_err());
                sampler.unregister(slot);
            });
            let slot = slots.recv().unwrap();
            reader.request_trace(slot).unwrap();
            let refused = reader.await_trace(slot, now_ns());
            assert_eq!(refused, Err(TraceRefused::NoAnswer));
            // The late signal finds that its request was withdrawn; the next request is answered.
            open.send(()).unwrap();
            slots.recv().unwrap();
            reader.request_trace(slot).unwrap();
            assert_eq!(reader.await_trace(slot, soon()).unwrap().frames.len(), 2);
            drop(ending);
        });
        // Its stack is unknown.
        let slot = sampler.register(tid(), None).unwrap();
        reader.request_trace(slot).unwrap();
        let refused = reader.await_trace(slot, soon());
        assert_eq!(
            refused,
            Err(TraceRefused::Discarded(DiscardReason::NoStackBounds))
        );
        sampler.unregister(slot);
        drain(&mut reader);
        assert_eq!(reader.request_trace(slot), Err(Error::StaleSlot));
    });
}

#[test]
fn without_a_walk_for_traces_nobody_asks() {
    in_child("without_a_walk_for_traces_nobody_asks", || {
        let (sampler, mut reader) = start(EngineChoice::Wall, 100);
        let slot = sampler.register(tid(), Some(stack())).unwrap();
        assert_eq!(reader.request_trace(slot), Err(Error::StaleSlot));
        sampler.unregister(slot);
    });
}
