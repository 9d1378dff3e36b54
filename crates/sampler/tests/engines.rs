//! Tests of each engine's rates and sample values, on real threads.

mod common;
use common::*;
use sampler::{Config, DiscardReason, EngineChoice, EngineKind, Error, Reader, Sampler, SlotId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The CPU time of each slot's thread at its last walk.
static WALKED_AT: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// As `leaf_walk`, and records the CPU time. Ticks may come late on a busy machine, but each sample
/// stands for the time up to its walk.
unsafe extern "C" fn noting_walk(
    context: *const libc::ucontext_t,
    stack_end: u64,
    scratch: *mut sampler::Scratch,
    out: *mut u64,
    cap: usize,
) -> sampler::WalkResult {
    // SAFETY: the sampler gives a head; the arguments are passed on.
    unsafe {
        let slot = (*scratch).slot;
        WALKED_AT[slot].store(cpu_ns(), Ordering::SeqCst);
        leaf_walk(context, stack_end, scratch, out, cap)
    }
}

fn start_noting(engine: EngineChoice, hertz: u64) -> (&'static Sampler, Reader) {
    let config = Config {
        engine,
        interval_ns: 1_000_000_000 / hertz,
        ..config(64)
    };
    Sampler::start(config, noting_walk).unwrap()
}

/// Checks that the samples of a thread stand for the CPU time it used between `armed` and its last
/// walk, except for the first interval, whose length is random, and the kernel's ticks.
fn assert_adds_up(sampler: &Sampler, slot: SlotId, armed: u64, sum: u64) {
    const KERNEL_TICK: u64 = 10_000_000;
    let used = WALKED_AT[slot.index()].load(Ordering::SeqCst) - armed;
    let off = sum.abs_diff(used);
    println!("samples stand for {sum} of {used} ns, {off} off");
    let most = 2 * sampler.interval_ns() + 2 * KERNEL_TICK;
    assert!(off <= most, "{sum} of {used} ns");
    assert!(used > 8 * most, "{used} ns are too few for {most}");
}

struct Rate {
    /// CPU time that the median sample stands for.
    median: u64,
    /// Average number of intervals of a sample.
    count: f64,
}

/// Burns on this thread until it has used `time` and has had `least` samples.
fn rate(engine: EngineChoice, hertz: u64, time: Duration, least: usize) -> Rate {
    let (sampler, mut reader) = start_noting(engine, hertz);
    let armed = cpu_ns();
    let slot = sampler.register(tid(), Some(stack())).unwrap();
    let mut samples = Vec::new();
    burn_until("enough samples", || {
        samples.extend(drain(&mut reader));
        samples.len() >= least && cpu_ns() - armed >= time.as_nanos() as u64
    });
    sampler.unregister(slot);
    samples.extend(drain(&mut reader));
    let used = cpu_ns() - armed;
    let counters = reader.take_counters();
    println!("{} {hertz} Hz: {counters:?}", sampler.engine_name());
    assert_eq!(counters.lost(), 0, "{counters:?}");
    assert_eq!(counters.samples as usize, samples.len());
    assert!(
        samples
            .iter()
            .all(|(id, s)| *id == slot && s.frames.len() == 2 && s.frames[1] == ROOT)
    );
    assert!(
        samples
            .windows(2)
            .all(|pair| pair[0].1.time_ns < pair[1].1.time_ns)
    );
    // At most the requested rate. The engine and this test read two clocks of the kernel, which
    // differ by some microseconds at each switch of threads.
    let most = used / sampler.interval_ns();
    let most = most + most / 50 + 2;
    assert!(samples.len() as u64 <= most, "{} of {most}", samples.len());
    let sum: u64 = samples.iter().map(|(_, s)| s.value).sum();
    assert_adds_up(sampler, slot, armed, sum);
    let count: u64 = samples.iter().map(|(_, s)| u64::from(s.count)).sum();
    let mut values: Vec<u64> = samples.iter().map(|(_, s)| s.value).collect();
    values.sort_unstable();
    let median = values[values.len() / 2];
    println!("{} samples, half of {median} ns or less", samples.len());
    Rate {
        median,
        count: count as f64 / samples.len() as f64,
    }
}

/// Whether the kernel allows this process to count kernel time. If not, perf reports that it sees
/// user time only, or why it is not available.
fn perf_allowed() -> bool {
    let config = Config {
        engine: EngineChoice::Perf,
        ..Config::default()
    };
    let started = Sampler::start(config, leaf_walk).map(|(sampler, _reader)| {
        let kind = sampler.engine();
        sampler.stop();
        kind
    });
    println!("{started:?}");
    match started {
        Ok(EngineKind::PerfTaskClock) => true,
        Ok(kind) => {
            assert_eq!(kind, EngineKind::PerfTaskClockUser);
            rate(EngineChoice::Perf, 1000, Duration::from_secs(1), 200);
            false
        }
        Err(error) => {
            let call = "perf_event_open";
            let refused = matches!(error, Error::Os { call: found, .. } if found == call);
            assert!(refused, "{error}");
            false
        }
    }
}

/// A loaded machine merges some ticks. Even so, half of the samples are less than two intervals
/// after the one before, which is impossible with the kernel's tick.
#[test]
fn perf_reaches_1000_hertz() {
    in_child("perf_reaches_1000_hertz", || {
        if perf_allowed() {
            let rate = rate(EngineChoice::Perf, 1000, Duration::from_secs(1), 200);
            assert!(rate.median < 2_000_000, "{}", rate.median);
        }
    });
}

#[test]
fn perf_reaches_10000_hertz() {
    in_child("perf_reaches_10000_hertz", || {
        if perf_allowed() {
            let rate = rate(EngineChoice::Perf, 10_000, Duration::from_millis(500), 1000);
            assert!(rate.median < 200_000, "{}", rate.median);
        }
    });
}

#[test]
fn timer_values_add_up_at_a_rate_it_reaches() {
    in_child("timer_values_add_up_at_a_rate_it_reaches", || {
        rate(EngineChoice::Timer, 100, Duration::from_secs(2), 4);
    });
}

#[test]
fn timer_values_add_up_at_a_rate_it_cannot_reach() {
    in_child("timer_values_add_up_at_a_rate_it_cannot_reach", || {
        let rate = rate(EngineChoice::Timer, 5000, Duration::from_secs(2), 4);
        // Any kernel's tick is coarser than 200 µs.
        assert!(rate.count > 1.5, "{}", rate.count);
    });
}

/// The kernel's tick has no additional cost, so it is used while it is fine enough, and where other
/// interrupts are expensive. `affordable`'s own test covers both kinds of machine.
#[test]
fn the_engine_follows_from_the_rate() {
    in_child("the_engine_follows_from_the_rate", || {
        let chosen = |interval_ns| {
            let config = Config {
                interval_ns,
                ..Config::default()
            };
            let (sampler, _reader) = Sampler::start(config, leaf_walk).unwrap();
            let chosen = (sampler.engine(), sampler.due_ns());
            sampler.stop();
            chosen
        };
        // From 10 ms at 100 Hz to 1 ms at 1000 Hz. Without threads the reader has nothing to do.
        assert_eq!(chosen(10_100_000), (EngineKind::Timer, None));
        // The kernel reports it too, in its own way.
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let is_virtual = cpu.split_whitespace().any(|flag| flag == "hypervisor");
        let fast = if is_virtual {
            EngineKind::Timer
        } else {
            EngineKind::Clock
        };
        assert_eq!(chosen(200_000), (fast, None));
    });
}

/// The reader's loop: ticks and drains until `ended`, which gets the number of samples.
fn drive(
    sampler: &Sampler,
    reader: &mut Reader,
    ended: impl Fn(usize) -> bool,
) -> Vec<(SlotId, Sample)> {
    let mut samples = Vec::new();
    loop {
        samples.extend(drain(reader));
        if ended(samples.len()) {
            return samples;
        }
        reader.tick(now_ns());
        if let Some(due) = sampler.due_ns() {
            std::thread::sleep(Duration::from_nanos(due.saturating_sub(now_ns())));
        }
    }
}

/// A thread that burns all the time and one that burns some of the time, with the agent's clock.
#[test]
fn clock_values_add_up_and_hit_what_runs() {
    in_child("clock_values_add_up_and_hit_what_runs", || {
        let (sampler, mut reader) = start_noting(EngineChoice::Clock, 2000);
        let stop = AtomicBool::new(false);
        let used = [const { AtomicU64::new(0) }; 2];
        let left = AtomicU64::new(2);
        let mut restarts = 0;
        let mut samples = Vec::new();
        std::thread::scope(|scope| {
            let (stop, left) = (&stop, &left);
            let threads = [0, 1].map(|index| {
                let (used, pause) = (&used[index], [0, 300][index]);
                scope.spawn(move || {
                    let armed = cpu_ns();
                    let slot = sampler.register(tid(), Some(stack())).unwrap();
                    let mut restarts = 0u32;
                    while !stop.load(Ordering::SeqCst) {
                        burn(Duration::from_micros(200));
                        used.store(cpu_ns() - armed, Ordering::SeqCst);
                        if pause > 0 {
                            // A signal would interrupt this.
                            let time = libc::timespec {
                                tv_sec: 0,
                                tv_nsec: pause * 1000,
                            };
                            // SAFETY: a valid time; the remaining time is not requested.
                            restarts += u32::from(
                                unsafe { libc::nanosleep(&time, std::ptr::null_mut()) } != 0,
                            );
                        }
                    }
                    sampler.unregister(slot);
                    left.fetch_sub(1, Ordering::SeqCst);
                    (slot, armed, restarts)
                })
            });
            // A slow machine needs longer for as many samples.
            samples = drive(sampler, &mut reader, |samples| {
                let enough = |used: &AtomicU64| used.load(Ordering::SeqCst) > 700_000_000;
                if samples > 300 && used.iter().all(enough) {
                    stop.store(true, Ordering::SeqCst);
                }
                left.load(Ordering::SeqCst) == 0
            });
            for thread in threads {
                let (slot, armed, interrupted) = thread.join().unwrap();
                let values = samples.iter().filter(|(id, _)| *id == slot);
                let sum = values.map(|(_, sample)| sample.value).sum();
                assert_adds_up(sampler, slot, armed, sum);
                restarts += interrupted;
            }
        });
        println!("{} samples, {restarts} sleeps interrupted", samples.len());
        // Some fall asleep between the check and the signal.
        assert!(
            restarts < samples.len() as u32 / 5,
            "{restarts} of {}",
            samples.len()
        );
        // A signal may be on its way to each thread at the time it is unregistered.
        let counters = reader.take_counters();
        let late = counters.discarded(DiscardReason::UnknownThread);
        assert!(late <= 2, "{counters:?}");
        assert_eq!(counters.lost(), late, "{counters:?}");
    });
}

/// Three intervals of 10,000 Hz.
const SLOW_WALK_NS: u64 = 300_000;

/// A walk that takes this much CPU time.
///
/// # Safety
/// As [`sampler::WalkFn`].
unsafe extern "C" fn slow_walk(
    context: *const libc::ucontext_t,
    stack_end: u64,
    scratch: *mut sampler::Scratch,
    out: *mut u64,
    cap: usize,
) -> sampler::WalkResult {
    // SAFETY: the caller's promise.
    let walked = unsafe { noting_walk(context, stack_end, scratch, out, cap) };
    let until = cpu_ns() + SLOW_WALK_NS;
    while cpu_ns() < until {}
    walked
}

/// However long a walk takes, the program makes progress between two walks, and each sample stands
/// for the time since the last.
fn moves_between_slow_walks(engine: EngineChoice) {
    // The program's own instructions, as a measure that does not include the walks.
    let work = |blocks: u64| {
        for n in 0..blocks * 100_000 {
            std::hint::black_box(n);
        }
    };
    let config = Config {
        engine,
        interval_ns: 100_000,
        ..config(64)
    };
    let (sampler, mut reader) = Sampler::start(config, slow_walk).unwrap();
    let (stop, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let (samples, slot, armed, used) = std::thread::scope(|scope| {
        let (stop, ended) = (&stop, &ended);
        let thread = scope.spawn(move || {
            // Long enough for the reader to detect the thread.
            let (start, mut blocks) = (cpu_ns(), 0);
            while cpu_ns() - start < 40_000_000 {
                work(1);
                blocks += 1;
            }
            let armed = cpu_ns();
            let slot = sampler.register(tid(), Some(stack())).unwrap();
            // As many as take 0.4 s on this processor, and more until there are enough samples.
            let mut used = 0;
            while used == 0 || !stop.load(Ordering::SeqCst) {
                work(10 * blocks);
                used = cpu_ns() - armed;
            }
            sampler.unregister(slot);
            ended.store(true, Ordering::SeqCst);
            (slot, armed, used)
        });
        let samples = drive(sampler, &mut reader, |samples| {
            stop.fetch_or(samples > 10, Ordering::SeqCst);
            ended.load(Ordering::SeqCst)
        });
        let (slot, armed, used) = thread.join().unwrap();
        (samples, slot, armed, used)
    });
    println!("{}: {} samples", sampler.engine_name(), samples.len());
    let walks = samples.len() as u64 * SLOW_WALK_NS;
    assert!(walks * 10 < used * 7, "{walks} of {used} ns in walks");
    if engine != EngineChoice::Wall {
        // Time without a walk is in the next sample.
        let reported = samples.iter().map(|(_, sample)| sample.value).sum();
        assert_adds_up(sampler, slot, armed, reported);
    }
}

#[test]
fn a_program_moves_between_walks_longer_than_an_interval_of_the_wall_clock() {
    in_child(
        "a_program_moves_between_walks_longer_than_an_interval_of_the_wall_clock",
        || moves_between_slow_walks(EngineChoice::Wall),
    );
}

#[test]
fn a_program_moves_between_walks_longer_than_an_interval_of_clocks() {
    in_child(
        "a_program_moves_between_walks_longer_than_an_interval_of_clocks",
        || {
            moves_between_slow_walks(EngineChoice::Clock);
        },
    );
}

#[test]
fn a_program_moves_between_walks_longer_than_an_interval_of_perf() {
    in_child(
        "a_program_moves_between_walks_longer_than_an_interval_of_perf",
        || {
            if perf_allowed() {
                moves_between_slow_walks(EngineChoice::Perf);
            }
        },
    );
}

#[test]
fn ticks_of_one_thread_stand_for_as_many_as_was_said() {
    in_child("ticks_of_one_thread_stand_for_as_many_as_was_said", || {
        let (sampler, mut reader) = start_noting(EngineChoice::Timer, 100);
        let slot = sampler.register(tid(), Some(stack())).unwrap();
        let mut sum = 0;
        let mut next_tick = |of: &str| {
            let reported = sampler.reported_ns(slot);
            burn_until(of, || sampler.reported_ns(slot) != reported);
            // A tick may hit this thread at any of these steps.
            let least = sampler.reported_ns(slot);
            sum += drain(&mut reader).iter().map(|(_, s)| s.value).sum::<u64>();
            let most = sampler.reported_ns(slot);
            assert!((least..=most).contains(&sum), "{least} {sum} {most}");
        };
        next_tick("the first tick");
        let mut times = |threads: u32| {
            // Measured from a tick to a tick, because ticks may come late.
            let before = WALKED_AT[slot.index()].load(Ordering::SeqCst);
            let reported = sampler.reported_ns(slot);
            sampler.set_thread_weight(slot, threads);
            burn(Duration::from_millis(500));
            next_tick("the last tick");
            let used = WALKED_AT[slot.index()].load(Ordering::SeqCst) - before;
            (sampler.reported_ns(slot) - reported) as f64 / used as f64
        };
        for (threads, least, most) in [(5, 4.5, 5.5), (1, 0.9, 1.1), (0, 0.9, 1.1)] {
            let found = times(threads);
            assert!((least..most).contains(&found), "{threads}: {found}");
        }
        sampler.unregister(slot);
    });
}
