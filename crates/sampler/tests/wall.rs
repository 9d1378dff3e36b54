//! Tests of the wall engine: all threads are counted, and waiting threads cost nothing.

mod common;
use common::*;
use sampler::{
    Config, DiscardReason, EngineChoice, SampleEvent, Sampler, Scratch, SlotId, WalkResult,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Time, samples and ticks by slot.
type Sums = HashMap<SlotId, (u64, u64, u64)>;

/// Ticks for `time` at `interval`, draining each time.
fn run(reader: &mut sampler::Reader, time: Duration, interval: Duration) -> Sums {
    run_until(reader, time, interval, |_| true)
}

/// As [`run`], and longer until there is `enough`.
fn run_until(
    reader: &mut sampler::Reader,
    time: Duration,
    interval: Duration,
    mut enough: impl FnMut(&Sums) -> bool,
) -> Sums {
    let mut sums = Sums::new();
    let begin = now_ns();
    let end = begin + time.as_nanos() as u64;
    let mut next = begin;
    while !enough(&sums) || now_ns() < end {
        assert!(now_ns() - begin < 100_000_000_000, "never enough: {sums:?}");
        next += interval.as_nanos() as u64;
        while now_ns() < next {
            std::thread::sleep(Duration::from_nanos(next.saturating_sub(now_ns())));
        }
        reader.drain_all(
            |slot, view| {
                assert!(!view.frames.is_empty());
                let sum = sums.entry(slot).or_default();
                sum.0 += view.value;
                sum.1 += 1;
                sum.2 += u64::from(view.count);
            },
            |_| {},
        );
        reader.wall_tick(now_ns());
    }
    sums
}

#[test]
fn without_an_engine_nobody_ticks() {
    in_child("without_an_engine_nobody_ticks", || {
        let (sampler, mut reader) = start(EngineChoice::None, 1000);
        let _slot = sampler.register(tid(), Some(stack())).unwrap();
        assert_eq!(sampler.due_ns(), None);
        let mut samples = 0;
        for _ in 0..50 {
            burn(Duration::from_millis(2));
            reader.tick(now_ns());
            reader.drain_all(|_, _| samples += 1, |_| {});
        }
        assert_eq!(samples, 0);
        assert_eq!(reader.take_counters().signals, 0);
    });
}

#[test]
fn waiting_threads_count_and_cost_nothing() {
    in_child("waiting_threads_count_and_cost_nothing", || {
        let (sampler, mut reader) = start(EngineChoice::Wall, 100);
        let stop = Arc::new(AtomicBool::new(false));
        let busy = {
            let (stop, (send, receive)) = (Arc::clone(&stop), std::sync::mpsc::channel());
            let thread = std::thread::spawn(move || {
                send.send(sampler.register(tid(), Some(stack())).unwrap())
                    .unwrap();
                while !stop.load(Ordering::Relaxed) {
                    burn(Duration::from_millis(1));
                }
            });
            (receive.recv().unwrap(), thread)
        };
        let waiting: Vec<_> = (0..20)
            .map(|_| {
                let (send, receive) = std::sync::mpsc::channel();
                let (go, wait) = std::sync::mpsc::channel::<()>();
                let thread = std::thread::spawn(move || {
                    send.send(sampler.register(tid(), Some(stack())).unwrap())
                        .unwrap();
                    wait.recv().unwrap();
                });
                (receive.recv().unwrap(), go, thread)
            })
            .collect();

        let time = Duration::from_secs(3);
        let sums = run(&mut reader, time, Duration::from_millis(10));
        let counters = reader.take_counters();
        println!("{counters:?}\n{sums:?}");
        assert_eq!(counters.lost(), 0, "{counters:?}");
        let share = |slot: &SlotId| sums[slot].0 as f64 / time.as_nanos() as f64;
        assert!((0.9..=1.1).contains(&share(&busy.0)), "{}", share(&busy.0));
        let mut records = 0;
        for (slot, _, _) in &waiting {
            // Up to the last flush of idle time.
            assert!((0.6..=1.1).contains(&share(slot)), "{}", share(slot));
            records += sums[slot].1;
        }
        let own_signals = counters.signals - sums[&busy.0].1.min(counters.signals);
        // 20 threads × 300 ticks would be 6000 signals.
        assert!(
            own_signals < 600,
            "{own_signals} signals for waiting threads"
        );
        assert!(records < 600, "{records} records for waiting threads");

        // The idle time of a thread that ends is reported.
        for (_, go, thread) in waiting {
            go.send(()).unwrap();
            thread.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        busy.1.join().unwrap();
    });
}

/// Address of the "return address" of a thread of the tests below.
static CALLER_AT: AtomicU64 = AtomicU64::new(0);

/// Number of calls of `leaf_and_caller`.
static WALKS: AtomicU64 = AtomicU64::new(0);

/// As `leaf_walk`, with the word at `CALLER_AT` as the caller.
unsafe extern "C" fn leaf_and_caller(
    context: *const libc::ucontext_t,
    stack_end: u64,
    scratch: *mut Scratch,
    out: *mut u64,
    cap: usize,
) -> WalkResult {
    // SAFETY: the contract is the same; `out` has room for two words.
    unsafe {
        let walked = leaf_walk(context, stack_end, scratch, out, cap);
        let caller = CALLER_AT.load(Ordering::Relaxed) as *const u64;
        if !caller.is_null() {
            *out.add(1) = caller.read_volatile();
        }
        WALKS.fetch_add(1, Ordering::Relaxed);
        walked
    }
}

/// The same for [`Config::wait`].
unsafe extern "C" fn leaf_and_caller_where_they_lie(
    context: *const libc::ucontext_t,
    _stack_end: u64,
    _scratch: *mut Scratch,
    out: *mut u64,
    cap: usize,
) -> WalkResult {
    assert!(cap >= 2);
    let caller = CALLER_AT.load(Ordering::Relaxed);
    // SAFETY: the context is valid, and `out` has room for two frames.
    unsafe {
        let registers = (*context).uc_mcontext.gregs;
        let [ip, sp] = [libc::REG_RIP, libc::REG_RSP].map(|at| registers[at as usize] as u64);
        let word = (caller as *const u64).read_volatile();
        out.cast::<[[u64; 3]; 2]>()
            .write([[ip, sp, ip], [word, caller, word]]);
    }
    WalkResult {
        depth: 2,
        end: 0,
        reason: 0,
    }
}

/// Totals of a thread that works and waits in turn, for two callers in turn.
struct Worked {
    /// Number of waits, and of those that a signal ended.
    waits: u64,
    interrupted: u64,
    /// Time in which it worked, in which it waited for each caller, and in total.
    worked_ns: u64,
    waited_ns: [u64; 2],
    lived_ns: u64,
    /// Time from the last sample of each work to its end, which the sample of the wait includes.
    tails_ns: u64,
    /// Time from the end of each wait until the thread ran again. To the sampler it works already.
    late_ns: u64,
    /// Time for which other threads had had its processor at the first check in each work. The
    /// kernel reports it when the thread has the processor back.
    unsaid_ns: u64,
    /// Time of the samples by caller, and of those that were taken while it worked.
    callers: [u64; 2],
    working: u64,
}

const CALLERS: [u64; 2] = [0x1111, 0x2222];
const WORKING: u64 = 0x3333;
const INTERVAL_NS: u64 = 10_000_000;

/// As `burn`; records the intervals in which other threads had the processor.
fn burn_noting(time: Duration, away: &mut Vec<(u64, u64)>) {
    let until = cpu_ns() + time.as_nanos() as u64;
    let mut before = now_ns();
    while cpu_ns() < until {
        for n in 0..5_000u64 {
            std::hint::black_box(n);
        }
        let now = now_ns();
        if now - before > 1_000_000 {
            away.push((before, now));
        }
        before = now;
    }
}

/// Runs `work` and `wait`, `turns` times in turn for each caller, during `time`, at 100 Hz. The
/// thread calls `first` before that, and `last` at the end of each work.
fn work_and_wait(
    with_waits: bool,
    time: Duration,
    [work, wait]: [Duration; 2],
    turns: u64,
    [first, last]: [fn(); 2],
) -> Worked {
    let config = Config {
        engine: EngineChoice::Wall,
        interval_ns: INTERVAL_NS,
        wait: with_waits.then_some(leaf_and_caller_where_they_lie as sampler::WalkFn),
        ..config(64)
    };
    let (sampler, mut reader) = Sampler::start(config, leaf_and_caller).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let thread = {
        let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
        std::thread::spawn(move || {
            first();
            let caller = AtomicU64::new(WORKING);
            CALLER_AT.store(caller.as_ptr() as u64, Ordering::Relaxed);
            let slot = sampler.register(tid(), Some(stack())).unwrap();
            let began = now_ns();
            let (mut waits, mut interrupted, mut worked_ns) = (0, 0, 0);
            let mut waited_ns = [0; 2];
            let mut late_ns = 0;
            let (mut works, mut away) = (Vec::new(), Vec::new());
            while !stop.load(Ordering::Relaxed) {
                // Varied between a half and three halves, so that ticks and waits do not
                // synchronise.
                let from = now_ns();
                burn_noting(work * (50 + (waits * 37 % 101) as u32) / 100, &mut away);
                last();
                let end = now_ns();
                worked_ns += end - from;
                works.push((from, end));
                caller.store(CALLERS[(waits / turns % 2) as usize], Ordering::Relaxed);
                let from = now_ns();
                let until = from + wait.as_nanos() as u64;
                while now_ns() < until {
                    let left = (until - now_ns()).div_ceil(1_000_000);
                    // SAFETY: waits for no descriptor.
                    let ended = unsafe { libc::poll(std::ptr::null_mut(), 0, left as i32) };
                    // A call that has ended in time also returns an error when a signal comes
                    // before the thread has a processor again.
                    interrupted += u64::from(ended < 0 && now_ns() < until);
                }
                caller.store(WORKING, Ordering::Relaxed);
                late_ns += now_ns() - until;
                waited_ns[(waits / turns % 2) as usize] += now_ns() - from;
                waits += 1;
                done.store(waits, Ordering::Relaxed);
            }
            let lived_ns = now_ns() - began;
            sampler.unregister(slot);
            let times = (worked_ns, waited_ns, lived_ns, late_ns);
            (waits, interrupted, times, works, away)
        })
    };
    let (mut callers, mut working, mut sampled) = ([0; 2], 0, Vec::new());
    let mut take = |reader: &mut sampler::Reader| {
        for (_, sample) in drain(reader) {
            match CALLERS
                .iter()
                .position(|caller| sample.frames.get(1) == Some(caller))
            {
                Some(caller) => callers[caller] += sample.value,
                None => {
                    working += sample.value;
                    sampled.push(sample.time_ns);
                }
            }
        }
    };
    let began = now_ns();
    let end = began + time.as_nanos() as u64;
    // Two turns of each caller, which take a slow machine longer.
    let least = turns.saturating_mul(4);
    let short_of_turns = || turns < u64::MAX && done.load(Ordering::Relaxed) < least;
    let mut rounds = 0;
    let mut looks = Vec::new();
    while now_ns() < end || short_of_turns() {
        assert!(now_ns() - began < 300_000_000_000, "it waited too rarely");
        let due = sampler.due_ns().unwrap();
        let left = due.saturating_sub(now_ns());
        let (fd, events, revents) = (reader.wake_fd(), libc::POLLIN, 0);
        let mut wake = libc::pollfd {
            fd,
            events,
            revents,
        };
        let left = libc::timespec {
            tv_sec: 0,
            tv_nsec: left as i64,
        };
        // SAFETY: one pollfd and a time, alive during the call; no mask.
        let called = unsafe { libc::ppoll(&mut wake, 1, &left, std::ptr::null()) } > 0;
        rounds += 1;
        // Like the agent, which ticks more often than it drains ring buffers.
        if called || rounds % 10 == 0 {
            take(&mut reader);
        }
        let now = now_ns();
        if now >= sampler.due_ns().unwrap() {
            looks.push(now);
        }
        reader.tick(now);
    }
    stop.store(true, Ordering::Relaxed);
    let (waits, interrupted, times, works, away) = thread.join().unwrap();
    take(&mut reader);
    let (worked_ns, waited_ns, lived_ns, late_ns) = times;
    let tail_of = |(from, end): &(u64, u64)| {
        let last = sampled.iter().rev().find(|time| *time <= end);
        end - last.map_or(*from, |last| *last.max(from))
    };
    let tails_ns = works.iter().map(tail_of).sum();
    let unsaid_at = |(from, _): &(u64, u64)| {
        let look = looks.iter().find(|look| *look >= from)?;
        let at = away
            .iter()
            .find(|(left, back)| left <= look && look <= back)?;
        Some(look - at.0)
    };
    let unsaid_ns = works.iter().filter_map(unsaid_at).sum();
    Worked {
        waits,
        interrupted,
        worked_ns,
        waited_ns,
        lived_ns,
        tails_ns,
        late_ns,
        unsaid_ns,
        callers,
        working,
    }
}

fn part(of: u64, all: u64) -> f64 {
    of as f64 / all as f64
}

/// A pool's worker: its wait is reported repeatedly, and the program's `poll` is not ended by our
/// signals.
#[test]
fn a_thread_that_waits_where_it_did_is_not_woken() {
    in_child("a_thread_that_waits_where_it_did_is_not_woken", || {
        let (time, ms) = (Duration::from_secs(4), Duration::from_millis);
        let it = work_and_wait(true, time, [ms(2), ms(4)], u64::MAX, [|| (); 2]);
        println!("{} of {} waits interrupted", it.interrupted, it.waits);
        println!("{:?} working {} of {}", it.callers, it.working, it.lived_ns);
        // It waits four of six milliseconds: if it were woken, half of the waits would be
        // interrupted.
        let interrupted = part(it.interrupted, it.waits);
        assert!(interrupted < 0.2, "{interrupted}");
        let all = part(it.callers[0] + it.callers[1] + it.working, it.lived_ns);
        assert!((0.95..=1.01).contains(&all), "{all}");
        assert_eq!(it.callers[1], 0);
        let working = part(it.working, it.worked_ns);
        println!("{working}");
        assert!((0.7..=1.35).contains(&working), "{working}");
    });
}

/// The same instruction and stack pointer with another return address: two stacks, each with its
/// own time.
#[test]
fn a_wait_for_another_caller_is_another_wait() {
    in_child("a_wait_for_another_caller_is_another_wait", || {
        let (time, ms) = (Duration::from_secs(5), Duration::from_millis);
        let it = work_and_wait(true, time, [ms(1), ms(4)], 200, [|| (); 2]);
        println!("{} of {} waits interrupted", it.interrupted, it.waits);
        println!("{:?} working {} of {}", it.callers, it.working, it.lived_ns);
        assert!(it.interrupted < it.waits / 4, "{}", it.interrupted);
        // Both include work after their last samples, more of it on a busy machine.
        let first = |by: [u64; 2]| part(by[0], by[0] + by[1]);
        let (reported, waited) = (first(it.callers), first(it.waited_ns));
        println!("{reported} {waited}");
        assert!((reported - waited).abs() < 0.1, "{reported} {waited}");
        assert!(
            it.callers
                .iter()
                .zip(it.waited_ns)
                .all(|(reported, waited)| part(*reported, waited) > 0.8)
        );
    });
}

/// It works 4 of 47 ms. It is first checked after some of its sleep, and must stand for its work in
/// all of them.
#[test]
fn a_thread_that_works_a_little_now_and_then_is_seen_for_as_long_as_it_works() {
    in_child(
        "a_thread_that_works_a_little_now_and_then_is_seen_for_as_long_as_it_works",
        || {
            let (time, ms) = (Duration::from_secs(12), Duration::from_millis);
            let it = work_and_wait(false, time, [ms(4), ms(43)], u64::MAX, [|| (); 2]);
            let working = part(it.working, it.worked_ns);
            println!("{working} {:?} of {}", it.callers, it.lived_ns);
            // Some 250 times 4 ms, detected in two of five of them.
            assert!((0.5..=1.5).contains(&working), "{working}");
            let all = part(it.callers[0] + it.working, it.lived_ns);
            assert!((0.9..=1.01).contains(&all), "{all}");
        },
    );
}

/// Runs this thread on the first of its allowed processors only.
fn settle() {
    // SAFETY: this thread's own processors, in a set that is alive during the calls.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&all), &mut all), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &all));
        libc::CPU_SET(first.unwrap(), &mut one);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &one), 0);
    }
}

/// Shares that processor, with a tenth of it for this thread.
fn lag_behind() {
    settle();
    // SAFETY: this thread's own priority.
    assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) }, 0);
}

/// Compares the reported work of a thread with its real work. It works and waits next to a thread
/// that would use the whole processor, and must wait at least a given number of times.
///
/// Each work must be reported to within one and a half intervals, except for what the sampler
/// cannot know: the time after its last sample (part of the wait's sample), the delay of the thread
/// itself, and the time for which it had lost the processor at the first check. The thread and the
/// reader measure these, so a busy machine may have any amount of them.
fn working_beside_another(
    with_waits: bool,
    time: Duration,
    work_wait: [Duration; 2],
    last: fn(),
    least: u64,
) {
    let stop = Arc::new(AtomicBool::new(false));
    let other = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            settle();
            while !stop.load(Ordering::Relaxed) {
                std::hint::black_box(());
            }
        })
    };
    let it = work_and_wait(with_waits, time, work_wait, u64::MAX, [lag_behind, last]);
    stop.store(true, Ordering::Relaxed);
    other.join().unwrap();
    let reported = it.working + it.tails_ns;
    let each = it.waits * INTERVAL_NS * 3 / 2;
    let (least_ns, most_ns) = (
        it.worked_ns.saturating_sub(each + it.unsaid_ns),
        it.worked_ns + each + it.late_ns,
    );
    println!(
        "{} of {} ns, {} waits; told {reported} of {least_ns} to {most_ns}: tails {}, late {}, unsaid {}",
        it.working, it.worked_ns, it.waits, it.tails_ns, it.late_ns, it.unsaid_ns
    );
    assert!(it.waits >= least, "{}", it.waits);
    assert!(
        (least_ns..=most_ns).contains(&reported),
        "{reported} of {least_ns} to {most_ns}"
    );
}

/// A lock that spins, yields, and finally waits: sampled before and after the yield it has not
/// moved, but it did not wait there either.
fn yields_before_it_waits(with_waits: bool) {
    let (time, ms) = (Duration::from_secs(6), Duration::from_millis);
    let last = || {
        // No walk runs any more at the end.
        let until = now_ns() + 50_000_000;
        let walks = WALKS.load(Ordering::Relaxed);
        while WALKS.load(Ordering::Relaxed) == walks && now_ns() < until {
            std::hint::black_box(());
        }
        std::thread::yield_now();
    };
    working_beside_another(with_waits, time, [ms(20), ms(400)], last, 1);
}

#[test]
fn a_thread_that_yields_before_it_waits_has_not_waited_where_it_yielded() {
    in_child(
        "a_thread_that_yields_before_it_waits_has_not_waited_where_it_yielded",
        || {
            yields_before_it_waits(true);
        },
    );
}

#[test]
fn a_thread_that_yields_before_it_waits_and_is_woken_to_say_where_has_not_waited_where_it_yielded()
{
    in_child(
        "a_thread_that_yields_before_it_waits_and_is_woken_to_say_where_has_not_waited_where_it_yielded",
        || yields_before_it_waits(false),
    );
}

/// After a long wait, in which it is rarely checked, it gets a tenth of a processor. The time it
/// waits for the processor is not part of its wait.
#[test]
fn a_thread_that_begins_to_work_on_a_busy_machine_has_not_waited_until_then() {
    in_child(
        "a_thread_that_begins_to_work_on_a_busy_machine_has_not_waited_until_then",
        || {
            let (time, ms) = (Duration::from_secs(11), Duration::from_millis);
            working_beside_another(true, time, [ms(30), ms(900)], || (), 1);
        },
    );
}

/// The stack of a thread that moved must not be repeated.
#[test]
fn a_thread_that_moves_is_sampled_anew() {
    in_child("a_thread_that_moves_is_sampled_anew", || {
        let (sampler, mut reader) = start(EngineChoice::Wall, 1000);
        let (send, receive) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let moving = Arc::new(Flag::new());
        let thread = {
            let moving = Arc::clone(&moving);
            std::thread::spawn(move || {
                let slot = sampler.register(tid(), Some(stack())).unwrap();
                send.send(slot).unwrap();
                wait.recv().unwrap();
                while moving.get() == 0 {
                    std::hint::black_box(());
                }
                sampler.unregister(slot);
            })
        };
        let slot = receive.recv().unwrap();
        let before = run(
            &mut reader,
            Duration::from_millis(300),
            Duration::from_millis(1),
        );
        let idle_signals = reader.take_counters().signals;
        go.send(()).unwrap();
        let after = run_until(
            &mut reader,
            Duration::from_millis(300),
            Duration::from_millis(1),
            |sums| sums.get(&slot).is_some_and(|sum| sum.1 > 12),
        );
        let busy_signals = reader.take_counters().signals;
        moving.set(1);
        thread.join().unwrap();
        let rest = drain(&mut reader);
        println!("{before:?} {idle_signals} {after:?} {busy_signals} {rest:?}");
        assert!(idle_signals < 60, "{idle_signals}");
        assert!(busy_signals > 10, "{busy_signals}");
        let total = after[&slot].0 + before.get(&slot).map_or(0, |s| s.0);
        assert!(total > 500_000_000, "{total}");
    });
}

/// A thread that blocks the signal loses no time: the next sample covers it.
#[test]
fn a_blocked_signal_loses_no_time() {
    in_child("a_blocked_signal_loses_no_time", || {
        let (sampler, mut reader) = start(EngineChoice::Wall, 1000);
        let (send, receive) = std::sync::mpsc::channel();
        let open = Arc::new(Flag::new());
        let thread = {
            let open = Arc::clone(&open);
            std::thread::spawn(move || {
                // SAFETY: this thread's own signal mask.
                let mask = |how| unsafe {
                    let mut set: libc::sigset_t = std::mem::zeroed();
                    libc::sigaddset(&mut set, libc::SIGRTMIN());
                    libc::pthread_sigmask(how, &set, std::ptr::null_mut());
                };
                mask(libc::SIG_BLOCK);
                let slot = sampler.register(tid(), Some(stack())).unwrap();
                send.send(slot).unwrap();
                while open.get() == 0 {
                    std::hint::black_box(());
                }
                mask(libc::SIG_UNBLOCK);
                while open.get() == 1 {
                    std::hint::black_box(());
                }
            })
        };
        let slot = receive.recv().unwrap();
        let registered = now_ns();
        let mut rounds = 0;
        let blocked = run_until(
            &mut reader,
            Duration::from_millis(200),
            Duration::from_millis(1),
            |_| {
                rounds += 1;
                rounds > 100
            },
        );
        assert!(blocked.is_empty());
        let counters = reader.take_counters();
        assert!(
            counters.discarded(DiscardReason::SignalPending) > 50,
            "{counters:?}"
        );
        assert_eq!(counters.lost(), 0);
        let blocked_ns = now_ns() - registered;
        open.set(1);
        let after = run_until(
            &mut reader,
            Duration::from_millis(100),
            Duration::from_millis(1),
            |sums| sums.contains_key(&slot),
        );
        open.set(2);
        thread.join().unwrap();
        assert!(after[&slot].0 > blocked_ns, "{after:?} of {blocked_ns}");
    });
}

/// As `leaf_walk`, with the thread's CPU time instead of ROOT.
unsafe extern "C" fn clock_walk(
    context: *const libc::ucontext_t,
    stack_end: u64,
    scratch: *mut Scratch,
    out: *mut u64,
    cap: usize,
) -> WalkResult {
    // SAFETY: the contract is the same; `out` has room for two words.
    unsafe {
        let walked = leaf_walk(context, stack_end, scratch, out, cap);
        *out.add(1) = cpu_ns();
        walked
    }
}

/// CPU and wall-clock samples of the same threads, each with its own time.
#[test]
fn cpu_and_wall_go_together() {
    in_child("cpu_and_wall_go_together", || {
        let config = Config {
            wall_interval_ns: 2_000_000,
            ..config(64)
        };
        let (interval, wall_interval) = (config.interval_ns, config.wall_interval_ns);
        let before = now_ns();
        let (sampler, mut reader) = Sampler::start(config, clock_walk).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (send, receive) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let busy = {
            let (stop, send) = (Arc::clone(&stop), send.clone());
            std::thread::spawn(move || {
                let armed = (cpu_ns(), now_ns());
                let slot = sampler.register(tid(), Some(stack())).unwrap();
                send.send((slot, armed)).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    burn(Duration::from_millis(1));
                }
            })
        };
        let (busy_slot, (armed_cpu, armed)) = receive.recv().unwrap();
        let waiting = std::thread::spawn(move || {
            let slot = sampler.register(tid(), Some(stack())).unwrap();
            send.send((slot, (0, 0))).unwrap();
            wait.recv().unwrap();
        });
        let (waiting_slot, _) = receive.recv().unwrap();

        let started = now_ns();
        let mut sums: HashMap<(SlotId, SampleEvent), u64> = HashMap::new();
        let (mut ticks, mut last_cpu, mut last_wall) = (0, 0, 0);
        let mut take = |reader: &mut sampler::Reader| {
            for (slot, sample) in drain(reader) {
                *sums.entry((slot, sample.event)).or_default() += sample.value;
                if (slot, sample.event) == (busy_slot, SampleEvent::Cpu) {
                    last_cpu = sample.frames[1];
                    ticks += 1;
                } else if slot == busy_slot {
                    last_wall = sample.time_ns;
                }
            }
            ticks
        };
        wait_until("ticks", || {
            std::thread::sleep(Duration::from_millis(2));
            let ticks = take(&mut reader);
            reader.wall_tick(now_ns());
            ticks > 3 && now_ns() - started > 1_500_000_000
        });
        stop.store(true, Ordering::Relaxed);
        busy.join().unwrap();
        let elapsed = now_ns() - started;
        take(&mut reader);
        println!(
            "{sums:?} up to {last_cpu} and {last_wall}, elapsed {elapsed} {:?}",
            reader.take_counters()
        );
        let sum = |slot, event| sums.get(&(slot, event)).copied().unwrap_or(0);
        // Up to the last sample, which may be late on a busy machine, within part of an interval
        // and a tick of the kernel.
        let (cpu, used) = (sum(busy_slot, SampleEvent::Cpu), last_cpu - armed_cpu);
        assert!(
            cpu.abs_diff(used) < 2 * interval + 20_000_000,
            "{cpu} of {used}"
        );
        // From the last tick before the thread was registered, or from the start.
        let wall = sum(busy_slot, SampleEvent::Wall);
        let (least, most) = (last_wall - armed, last_wall - before);
        assert!(wall + 3 * wall_interval >= least, "{wall} of {least}");
        assert!(wall <= most + 3 * wall_interval, "{wall} of {most}");
        let share = |slot, event, of: u64| sum(slot, event) as f64 / of as f64;
        // Up to the last flush of idle time, at most a second ago.
        let idle = share(waiting_slot, SampleEvent::Wall, elapsed);
        assert!((0.25..=1.1).contains(&idle), "{idle}");
        assert!(share(waiting_slot, SampleEvent::Cpu, used) < 0.05);
        go.send(()).unwrap();
        waiting.join().unwrap();
    });
}

/// A hundred threads whose ring buffers have been written completely, with deep stacks.
#[test]
fn a_hundred_threads_take_less_than_ten_mebibytes() {
    unsafe extern "C" fn deep_walk(
        _: *const libc::ucontext_t,
        _: u64,
        scratch: *mut Scratch,
        out: *mut u64,
        cap: usize,
    ) -> WalkResult {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        // Nothing is shared with the stack before.
        for index in 0..cap.min(200) {
            // SAFETY: `out` has room for `cap` words.
            unsafe { *out.add(index) = call * 1000 + index as u64 };
        }
        // SAFETY: the scratch has the 4096 bytes of the configuration behind its head.
        unsafe { scratch.add(1).cast::<u8>().add(4095).write(1) };
        WalkResult {
            depth: 200,
            end: 0,
            reason: 0,
        }
    }
    fn resident_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("RssAnon"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
    in_child("a_hundred_threads_take_less_than_ten_mebibytes", || {
        let config = Config {
            engine: EngineChoice::Wall,
            interval_ns: 1_000_000,
            max_depth: 1024,
            ..Config::default()
        };
        let (sampler, mut reader) = Sampler::start(config, deep_walk).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let start = Arc::new(Barrier::new(101));
        let threads: Vec<_> = (0..100)
            .map(|_| {
                let (stop, start) = (Arc::clone(&stop), Arc::clone(&start));
                std::thread::spawn(move || {
                    let (tid, stack) = (tid(), stack());
                    start.wait(); // measured
                    start.wait();
                    sampler.register(tid, Some(stack)).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        start.wait();
        let before = resident_kib();
        start.wait();
        let mut samples: HashMap<SlotId, u32> = HashMap::new();
        // 64 KiB are 8192 words; a record has 203.
        wait_until("every ring to be full once", || {
            reader.drain_all(
                |slot, view| {
                    assert_eq!(view.frames.len(), 200);
                    *samples.entry(slot).or_default() += 1;
                },
                |_| {},
            );
            reader.wall_tick(now_ns());
            samples.len() == 100 && samples.values().all(|count| *count > 41)
        });
        let grown = resident_kib() - before;
        println!("{grown} KiB");
        assert!((6400..10 * 1024).contains(&grown), "{grown} KiB");
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// Ticks whenever a tick is due or the reader is woken, until `ended`. Returns the number of ticks
/// and, by slot, the sum of the samples and the time of the last one.
fn ticks(
    sampler: &Sampler,
    reader: &mut sampler::Reader,
    ended: impl Fn() -> bool,
) -> (u32, HashMap<SlotId, (u64, u64)>) {
    let (mut ticks, mut values) = (0, HashMap::<SlotId, (u64, u64)>::new());
    while !ended() {
        let due = sampler.due_ns().expect("a clock is asked for");
        let left = due.saturating_sub(now_ns()).div_ceil(1_000_000);
        let mut wake = libc::pollfd {
            fd: reader.wake_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd, alive during the call.
        unsafe { libc::poll(&mut wake, 1, left as i32) };
        reader.clear_wake();
        reader.drain_all(
            |slot, view| {
                let (value, last) = values.entry(slot).or_default();
                *value += view.value;
                *last = view.time_ns;
            },
            |_| {},
        );
        if now_ns() >= sampler.due_ns().unwrap() {
            ticks += 1;
        }
        reader.tick(now_ns());
    }
    (ticks, values)
}

#[test]
fn while_all_threads_wait_there_are_few_ticks_and_who_comes_then_is_sampled_at_once() {
    in_child(
        "while_all_threads_wait_there_are_few_ticks_and_who_comes_then_is_sampled_at_once",
        || {
            let config = Config {
                engine: EngineChoice::Wall,
                ..config(64)
            };
            let interval = config.interval_ns;
            let (sampler, mut reader) = Sampler::start(config, leaf_and_caller).unwrap();
            let until = |end: u64| move || now_ns() >= end;
            let waiting: Vec<_> = (0..3)
                .map(|_| {
                    let (send, receive) = std::sync::mpsc::channel();
                    let (go, wait) = std::sync::mpsc::channel::<()>();
                    let thread = std::thread::spawn(move || {
                        send.send(sampler.register(tid(), Some(stack())).unwrap())
                            .unwrap();
                        wait.recv().unwrap();
                    });
                    (receive.recv().unwrap(), go, thread)
                })
                .collect();
            let begin = now_ns();
            let (early, mut sums) = ticks(sampler, &mut reader, until(begin + 1_500_000_000));
            let (late, more) = ticks(sampler, &mut reader, until(now_ns() + 1_000_000_000));
            println!("{early} ticks, then {late} in a second");
            // 1,000 with the configured interval.
            assert!(late <= 25, "{late}");

            // Begins between two of the present ticks, lives for at least 40 ms, and ends after a
            // sample.
            let busy = std::thread::spawn(move || {
                let begin = now_ns();
                let slot = sampler.register(tid(), Some(stack())).unwrap();
                // The next tick is as early as if ticks had never paused.
                let due = sampler.due_ns().unwrap();
                assert!(due <= now_ns() + interval, "{due}");
                let walks = WALKS.load(Ordering::Relaxed);
                while now_ns() - begin < 40_000_000 || WALKS.load(Ordering::Relaxed) == walks {
                    std::hint::black_box(());
                }
                sampler.unregister(slot);
                (slot, begin, now_ns() - begin)
            });
            let (_, mut busy_sums) = ticks(sampler, &mut reader, || busy.is_finished());
            let (busy, busy_begin, lived) = busy.join().unwrap();
            for (slot, sample) in drain(&mut reader) {
                let (value, last) = busy_sums.entry(slot).or_default();
                *value += sample.value;
                *last = sample.time_ns;
            }
            let (value, last) = busy_sums[&busy];
            let sampled = last - busy_begin;
            println!("{value} of {lived}, last sample at {sampled}");
            // The tick before it, if there had been one, is at most an interval old.
            assert!(value <= lived + 2 * interval, "{value} of {lived}");
            assert!(value + 2 * interval >= sampled, "{value} of {sampled}");

            for map in [more, busy_sums] {
                for (slot, (value, _)) in map {
                    sums.entry(slot).or_default().0 += value;
                }
            }
            for (slot, go, thread) in waiting {
                go.send(()).unwrap();
                thread.join().unwrap();
                let all = sums[&slot].0 as f64 / (now_ns() - begin) as f64;
                // Except for the time since idle time was last reported, at most a second.
                assert!((0.55..=1.02).contains(&all), "{all}");
            }
        },
    );
}
