//! Rates and values of each engine, on real threads.

mod common;
use common::*;
use sampler::{Config, EngineChoice, EngineKind, Error, Sampler};
use std::time::Duration;

/// Burns on this thread and gives (samples, sum of values / CPU time used, mean count).
fn rate(engine: EngineChoice, hertz: u64, time: Duration) -> (usize, f64, f64) {
    let (sampler, mut reader) = start(engine, hertz);
    let slot = sampler.register(tid(), Some(stack())).unwrap();
    let before = cpu_ns();
    let mut samples = Vec::new();
    for _ in 0..10 {
        burn(time / 10);
        samples.extend(drain(&mut reader));
    }
    let used = cpu_ns() - before;
    sampler.unregister(slot);
    samples.extend(drain(&mut reader));
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
    let sum: u64 = samples.iter().map(|(_, s)| s.value).sum();
    let count: u64 = samples.iter().map(|(_, s)| u64::from(s.count)).sum();
    let ratio = sum as f64 / used as f64;
    println!("{} samples, ratio {ratio:.3}", samples.len());
    (samples.len(), ratio, count as f64 / samples.len() as f64)
}

/// Whether the kernel lets this process count kernel time. Where it does not, that is what the
/// engines are tested for: the automatic choice is the timer, and perf, when asked for by name, says
/// that it sees user time only or why it cannot be had.
fn perf_allowed() -> bool {
    let engine_of = |choice| {
        let config = Config {
            engine: choice,
            ..Config::default()
        };
        let started = Sampler::start(config, leaf_walk).map(|(sampler, _reader)| {
            let kind = sampler.engine();
            sampler.stop();
            kind
        });
        println!("{choice:?}: {started:?}");
        started
    };
    let auto = engine_of(EngineChoice::Auto).unwrap();
    match engine_of(EngineChoice::Perf) {
        Ok(EngineKind::PerfTaskClock) => {
            assert_eq!(auto, EngineKind::PerfTaskClock);
            true
        }
        Ok(kind) => {
            assert_eq!(
                (kind, auto),
                (EngineKind::PerfTaskClockUser, EngineKind::Timer)
            );
            let (samples, ratio, _) = rate(EngineChoice::Perf, 1000, Duration::from_secs(1));
            assert!(samples > 200 && ratio < 1.15, "{samples} {ratio}");
            false
        }
        Err(error) => {
            assert_eq!(auto, EngineKind::Timer);
            assert!(
                matches!(
                    error,
                    Error::Os {
                        call: "perf_event_open",
                        ..
                    }
                ),
                "{error}"
            );
            false
        }
    }
}

#[test]
fn perf_reaches_1000_hertz() {
    in_child("perf_reaches_1000_hertz", || {
        if perf_allowed() {
            let (samples, ratio, _) = rate(EngineChoice::Perf, 1000, Duration::from_secs(1));
            // On a loaded machine ticks are merged; far more than any kernel tick gives, all the
            // same.
            assert!((500..=1200).contains(&samples), "{samples}");
            assert!((0.9..=1.15).contains(&ratio), "{ratio}");
        }
    });
}

#[test]
fn perf_reaches_10000_hertz() {
    in_child("perf_reaches_10000_hertz", || {
        if perf_allowed() {
            let (samples, ratio, _) = rate(EngineChoice::Perf, 10_000, Duration::from_millis(500));
            assert!((2500..=6000).contains(&samples), "{samples}");
            assert!((0.85..=1.15).contains(&ratio), "{ratio}");
        }
    });
}

#[test]
fn timer_values_add_up_at_a_rate_it_reaches() {
    in_child("timer_values_add_up_at_a_rate_it_reaches", || {
        let (samples, ratio, _) = rate(EngineChoice::Timer, 100, Duration::from_secs(2));
        assert!((100..=220).contains(&samples), "{samples}");
        assert!((0.9..=1.1).contains(&ratio), "{ratio}");
    });
}

#[test]
fn timer_values_add_up_at_a_rate_it_cannot_reach() {
    in_child("timer_values_add_up_at_a_rate_it_cannot_reach", || {
        let (samples, ratio, count) = rate(EngineChoice::Timer, 5000, Duration::from_secs(2));
        assert!((0.9..=1.1).contains(&ratio), "{ratio}");
        // Whatever the kernel's tick is, it is coarser than 200 µs.
        assert!(samples < 5000 && count > 1.5, "{samples} {count}");
    });
}

/// Where a tick of perf costs more than is allowed, the automatic choice is the timer.
#[test]
fn a_dear_tick_is_not_taken() {
    in_child("a_dear_tick_is_not_taken", || {
        if !perf_allowed() {
            return;
        }
        let choose = |interval_ns, tick_cost_limit_ns| {
            let config = Config {
                interval_ns,
                tick_cost_limit_ns,
                ..Config::default()
            };
            let (sampler, mut reader) = Sampler::start(config, leaf_walk).unwrap();
            let chosen = (sampler.engine(), sampler.tick_cost_ns());
            sampler.stop();
            let counters = reader.take_counters();
            assert_eq!((counters.signals, counters.lost()), (0, 0), "{counters:?}");
            println!("{interval_ns} {tick_cost_limit_ns}: {chosen:?}");
            chosen
        };
        let (engine, cost) = choose(1_000_000, 1);
        assert_eq!(engine, EngineKind::Timer);
        // No machine enters the kernel twice and a handler in less; preempted, it may be more.
        assert!(
            cost.is_some_and(|ns| (300..100_000_000).contains(&ns)),
            "{cost:?}"
        );
        let (engine, cost) = choose(1_000_000, u64::MAX);
        assert!(engine == EngineKind::PerfTaskClock && cost.is_some());
        // Not measured: no limit, or a rate at which it does not matter.
        assert_eq!(choose(1_000_000, 0), (EngineKind::PerfTaskClock, None));
        assert_eq!(choose(10_000_000, 1), (EngineKind::PerfTaskClock, None));
    });
}
