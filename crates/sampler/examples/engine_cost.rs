//! What sampling costs the program, by engine and rate, and what registering a thread costs.
//!
//! `cargo run --release -p sampler --example engine_cost`
//!
//! A loop's work per CPU second is measured with and without sampling, alternately; the ratio of
//! the medians is the slow-down. The walk takes one frame, so this is the price of the signals.

use sampler::{Config, EngineChoice, Sampler, Scratch, WalkResult};
use std::time::Instant;

unsafe extern "C" fn leaf_walk(
    context: *const libc::ucontext_t,
    _: u64,
    _: *mut Scratch,
    out: *mut u64,
    _: usize,
) -> WalkResult {
    // SAFETY: a valid context; room for at least one word.
    unsafe { *out = (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as u64 };
    WalkResult {
        depth: 1,
        end: 0,
        reason: 0,
    }
}

fn cpu_ns() -> u64 {
    // SAFETY: a valid out-pointer.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

fn tid() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() as u32 }
}

/// CPU nanoseconds for a fixed piece of work.
fn work() -> u64 {
    let before = cpu_ns();
    let mut state = 1u64;
    for _ in 0..30_000_000u64 {
        state = std::hint::black_box(state.wrapping_mul(6364136223846793005).wrapping_add(1));
    }
    cpu_ns() - before
}

fn median(mut values: Vec<u64>) -> f64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0) as f64
}

fn main() {
    println!(
        "engine                             Hz  samples/s  slow-down  register ns  unregister ns"
    );
    for engine in [EngineChoice::Auto, EngineChoice::Perf, EngineChoice::Timer] {
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
            let (mut with, mut without) = (Vec::new(), Vec::new());
            let (mut opening, mut closing) = (Vec::new(), Vec::new());
            for _ in 0..9 {
                without.push(work());
                let start = Instant::now();
                let slot = sampler
                    .register(tid(), Some(stack.clone()))
                    .expect("register");
                opening.push(start.elapsed().as_nanos() as u64);
                with.push(work());
                let start = Instant::now();
                sampler.unregister(slot);
                closing.push(start.elapsed().as_nanos() as u64);
                reader.drain_all(|_, _| {}, |_| {});
            }
            let counters = reader.take_counters();
            let rate = counters.samples as f64 * 1e9 / with.iter().sum::<u64>() as f64;
            println!(
                "{:30} {hertz:6} {rate:10.0} {:10.4} {:12.0} {:14.0}",
                sampler.engine_name(),
                median(with) / median(without),
                median(opening),
                median(closing)
            );
            sampler.stop();
        }
    }
}
