//! Measures the time that a sample takes from the program, and the cost of registering a thread.
//!
//! By engine and rate: `cargo run --release -p sampler --example engine_cost`
//!
//! The thread reads the clock all the time. A sample leaves a gap between two readings: timer
//! interrupt, signal, handler, and the return. The walk takes one frame. The output is quartiles of
//! the gaps, so that on a busy machine the lower one is still about the sample and not about other
//! processes. With `timer_create` the gap includes the kernel's own tick, which happens anyway.

use sampler::{Config, EngineChoice, Sampler, Scratch, WalkResult};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

static WALKS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn leaf_walk(
    context: *const libc::ucontext_t,
    _: u64,
    _: *mut Scratch,
    out: *mut u64,
    _: usize,
) -> WalkResult {
    WALKS.fetch_add(1, Relaxed);
    // SAFETY: a valid context; room for at least one word.
    unsafe { *out = (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as u64 };
    WalkResult {
        depth: 1,
        end: 0,
        reason: 0,
    }
}

fn clock(id: libc::clockid_t) -> u64 {
    // SAFETY: a valid out-pointer.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(id, &mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

fn tid() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() as u32 }
}

/// Returns the gaps that samples leave within `ns` of this thread's CPU time.
fn holes(ns: u64) -> Vec<u64> {
    let until = clock(libc::CLOCK_THREAD_CPUTIME_ID) + ns;
    let mut holes = Vec::with_capacity(20_000);
    while clock(libc::CLOCK_THREAD_CPUTIME_ID) < until {
        let (mut last, mut seen) = (clock(libc::CLOCK_MONOTONIC), WALKS.load(Relaxed));
        for _ in 0..20_000 {
            let mut now = clock(libc::CLOCK_MONOTONIC);
            let walks = WALKS.load(Relaxed);
            if walks != seen {
                // The gap may be between the clock and the count.
                now = clock(libc::CLOCK_MONOTONIC);
                holes.push(now - last);
                seen = walks;
            }
            last = now;
        }
    }
    holes
}

fn quartiles(mut values: Vec<u64>) -> [f64; 3] {
    values.sort_unstable();
    [1, 2, 3].map(|q| values.get(values.len() * q / 4).copied().unwrap_or(0) as f64 / 1000.0)
}

fn main() {
    println!(
        "engine                Hz  samples/s   µs per sample (quartiles)   register µs  unregister µs"
    );
    for engine in [EngineChoice::Perf, EngineChoice::Timer, EngineChoice::Clock] {
        for hertz in [99, 999, 4999, 10_000] {
            let config = Config {
                engine,
                interval_ns: 1_000_000_000 / hertz,
                ..Config::default()
            };
            let Ok((sampler, mut reader)) = Sampler::start(config, leaf_walk) else {
                continue;
            };
            let top = &raw const config as u64;
            let stack = top - (1 << 19)..top + (1 << 16);
            let (mut opening, mut closing, mut all) = (Vec::new(), Vec::new(), Vec::new());
            let before = clock(libc::CLOCK_THREAD_CPUTIME_ID);
            for _ in 0..20 {
                let start = Instant::now();
                let slot = sampler
                    .register(tid(), Some(stack.clone()))
                    .expect("register");
                opening.push(start.elapsed().as_nanos() as u64);
                let done = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    if engine == EngineChoice::Clock {
                        // The agent thread's part.
                        scope.spawn(|| {
                            while !done.load(Relaxed) {
                                std::thread::sleep(Duration::from_nanos(config.interval_ns));
                                reader.tick(clock(libc::CLOCK_MONOTONIC));
                            }
                        });
                    }
                    all.extend(holes(50_000_000));
                    done.store(true, Relaxed);
                });
                let start = Instant::now();
                sampler.unregister(slot);
                closing.push(start.elapsed().as_nanos() as u64);
                reader.drain_all(|_, _| {}, |_| {});
            }
            let used = clock(libc::CLOCK_THREAD_CPUTIME_ID) - before;
            let rate = reader.take_counters().samples as f64 * 1e9 / used as f64;
            let [low, middle, high] = quartiles(all);
            let ([_, opening, _], [_, closing, _]) = (quartiles(opening), quartiles(closing));
            println!(
                "{:17} {hertz:6} {rate:10.0}   {low:8.1} {middle:8.1} {high:8.1} {opening:13.1} {closing:14.1}",
                sampler.engine_name(),
            );
            sampler.stop();
        }
    }
}
