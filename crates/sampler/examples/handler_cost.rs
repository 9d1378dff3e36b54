//! Measures the cost of a sample in the handler, by depth and by how much the stack changes.
//!
//! `cargo run --release -p sampler --example handler_cost`
//!
//! The walk is a copy of prepared frames, so the rest is the sampler's own part: clock reads,
//! checks, comparing with the stack before, the ring buffer. Numbers are lower quartiles over
//! windows of 20 ms CPU time, in nanoseconds per signal, with the copy.

use sampler::{Config, EngineChoice, Sampler, Scratch, WalkResult};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static DEPTH: AtomicUsize = AtomicUsize::new(0);
static CHANGING: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn copy_walk(
    _: *const libc::ucontext_t,
    _: u64,
    _: *mut Scratch,
    out: *mut u64,
    cap: usize,
) -> WalkResult {
    let depth = DEPTH.load(Relaxed).min(cap);
    let changing = CHANGING.load(Relaxed).min(depth);
    let call = CALLS.fetch_add(1, Relaxed);
    for index in 0..depth {
        let frame = if index < changing {
            call * 4096 + index
        } else {
            index
        };
        // SAFETY: `out` has room for `cap` words.
        unsafe { *out.add(index) = frame as u64 };
    }
    WalkResult {
        depth: depth as u32,
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

fn main() {
    let config = Config {
        engine: EngineChoice::Auto,
        interval_ns: 100_000,
        max_depth: 2048,
        ring_len: 1 << 22,
        ..Config::default()
    };
    let (sampler, mut reader) = Sampler::start(config, copy_walk).expect("start");
    // SAFETY: no preconditions.
    let tid = unsafe { libc::gettid() } as u32;
    let top = &raw const config as u64;
    let slot = sampler
        .register(tid, Some(top - (1 << 19)..top + (1 << 16)))
        .expect("register");
    println!(
        "engine {}, {} CPUs",
        sampler.engine_name(),
        std::thread::available_parallelism().map_or(0, usize::from)
    );
    println!("depth changing  ns/signal  words/record");
    for (depth, changing) in [
        (1, 1),
        (10, 1),
        (40, 0),
        (40, 5),
        (40, 40),
        (200, 5),
        (200, 200),
        (1000, 5),
        (1000, 1000),
    ] {
        DEPTH.store(depth, Relaxed);
        CHANGING.store(changing, Relaxed);
        let mut costs = Vec::new();
        for _ in 0..15 {
            let until = cpu_ns() + 20_000_000;
            while cpu_ns() < until {
                for n in 0..2000 {
                    std::hint::black_box(n);
                }
            }
            reader.clear_wake();
            reader.drain_all(|_, _| {}, |_| {});
            let counters = reader.take_counters();
            assert_eq!(counters.lost(), 0, "{counters:?}");
            costs.extend(counters.handler_ns.checked_div(counters.signals));
        }
        costs.sort_unstable();
        let median = costs.get(costs.len() / 4).copied().unwrap_or(0);
        println!("{depth:5} {changing:8} {median:10} {:13}", 3 + changing);
    }
    sampler.unregister(slot);
}
