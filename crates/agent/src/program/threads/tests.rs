//! Tests of the thread table: names, slots, ends and reused kernel ids.

use super::*;
use crate::model::Phase;
use crate::model::phase::{PhaseWriter, new_phase};

/// A number that no thread of the kernel has: above the limit of `kernel.pid_max`.
const NO_THREAD: u32 = 1 << 23;

fn threads(phase: Phase) -> (PhaseWriter, Threads) {
    let (writer, reader) = new_phase();
    writer.change(&[Phase::Idle], phase).unwrap();
    (writer, Threads::new(reader))
}

fn started(managed: ManagedThread, tid: u32) -> StartedThread {
    StartedThread {
        managed,
        tid,
        own: None,
        hijack: None,
        stands_for: 1,
    }
}

/// Returns the changes as text: names, and numbers of threads that ended.
fn reported(threads: &Threads) -> Vec<String> {
    let news = threads.take_changes().into_iter();
    news.map(|news| match news {
        ThreadChange::Named {
            thread,
            name,
            managed,
            ..
        } => format!(
            "{thread} {name:?} {}",
            if managed { "managed" } else { "native" }
        ),
        ThreadChange::Ended { thread, .. } => format!("{thread} ended"),
    })
    .collect()
}

#[test]
fn a_name_that_comes_before_the_thread_is_kept_for_it() {
    let (_writer, threads) = threads(Phase::Recording);
    threads.managed_named((0, 0x100), "worker".into());
    threads.managed_started(started((0, 0x100), NO_THREAD));
    assert_eq!(reported(&threads), [r#"0 "worker" managed"#]);
    threads.managed_named((0, 0x100), "renamed".into());
    threads.managed_named((0, 0x100), String::new());
    assert_eq!(reported(&threads), [r#"0 "renamed" managed"#]);
}

#[test]
fn a_kernel_number_that_is_used_again_is_another_thread() {
    let (_writer, threads) = threads(Phase::Recording);
    threads.managed_started(started((0, 0x100), NO_THREAD));
    let before_ns = proc::now_ns();
    threads.managed_ended((0, 0x100));
    threads.managed_started(started((0, 0x200), NO_THREAD));
    assert_eq!(threads.number_of(NO_THREAD), Some(1));
    // A late sample of the first thread.
    assert_eq!(threads.at(NO_THREAD, before_ns), 0);
    assert_eq!(threads.at(NO_THREAD, proc::now_ns()), 1);
    threads.forget_former(proc::now_ns());
    assert_eq!(threads.at(NO_THREAD, before_ns), 1);
    let news = reported(&threads);
    assert_eq!(news, [r#"0 "" managed"#, "0 ended", r#"1 "" managed"#]);
}

#[test]
fn a_thread_of_two_clrs_stays_until_it_has_ended_in_both() {
    let (_writer, threads) = threads(Phase::Recording);
    threads.managed_started(started((0, 0x100), NO_THREAD));
    threads.managed_started(started((1, 0x900), NO_THREAD));
    assert_eq!(threads.managed_of(0).len(), 1);
    assert_eq!(threads.managed_of(1).len(), 1);
    threads.managed_ended((0, 0x100));
    assert_eq!(threads.managed_of(0).len(), 0);
    assert_eq!(threads.number_of(NO_THREAD), Some(0));
    threads.managed_ended((1, 0x900));
    assert_eq!(threads.number_of(NO_THREAD), None);
}

#[test]
fn a_clr_that_is_left_takes_its_hijacks_along() {
    let (_writer, threads) = threads(Phase::Recording);
    let tid = proc::own_tid();
    for (runtime, place) in [(0, 0), (1, 3)] {
        threads.managed_started(StartedThread {
            hijack: Some((place, 0x1000 + place as u64)),
            ..started((runtime, 0x100), tid)
        });
    }
    assert_eq!(threads.own_hijacks(), [0x1000, 0, 0, 0x1003]);
    threads.runtime_ended(1);
    assert_eq!(threads.own_hijacks(), [0x1000, 0, 0, 0]);
    assert!(threads.managed_of(1).is_empty());
    // The same address under a later CLR with the same index.
    threads.managed_started(StartedThread {
        hijack: Some((3, 0x2000)),
        ..started((1, 0x100), tid)
    });
    assert_eq!(threads.own_hijacks(), [0x1000, 0, 0, 0x2000]);
}

#[test]
fn an_idle_process_keeps_the_threads_that_run_and_nothing_else() {
    let (writer, threads) = threads(Phase::Recording);
    threads.managed_started(started((0, 1), NO_THREAD));
    threads.at(NO_THREAD + 1, 0);
    threads.end();
    threads.forget_session();
    writer.change(&[Phase::Recording], Phase::Idle).unwrap();
    assert_eq!(
        threads.number_of(NO_THREAD + 1),
        None,
        "no CLR tells of its end"
    );
    for at in 2..100_000 {
        threads.managed_started(started((0, at), NO_THREAD + 2));
        threads.managed_named((0, at), "x".into());
        threads.managed_ended((0, at));
    }
    let state = threads.state();
    assert_eq!(state.by_tid.len(), 1);
    assert_eq!(state.by_managed.len(), 1);
    assert_eq!((state.news.capacity(), state.former.capacity()), (0, 0));
    assert!(state.slots.is_empty() && state.names_ahead.is_empty());
}

#[test]
fn a_thread_that_outlives_a_session_is_news_of_the_next_one() {
    let (writer, threads) = threads(Phase::Recording);
    threads.managed_started(started((0, 1), NO_THREAD));
    threads.managed_named((0, 1), "stays".into());
    reported(&threads);
    threads.end();
    assert_eq!(reported(&threads), ["0 ended"]);
    threads.forget_session();
    writer.change(&[Phase::Recording], Phase::Idle).unwrap();
    threads.managed_started(started((0, 2), NO_THREAD + 1));
    let (sampler, reader) = crate::program::tests::sampler();
    writer.change(&[Phase::Idle], Phase::Recording).unwrap();
    threads.begin(sampler);
    let mut news = reported(&threads);
    news.sort();
    assert_eq!(news, [r#"0 "stays" managed"#, r#"1 "" managed"#]);
    sampler.stop();
    drop(reader);
}

#[test]
fn a_thread_left_out_is_registered_when_it_is_promoted() {
    let (_writer, threads) = threads(Phase::Recording);
    threads.state().short_lived.configure(true, 7);
    threads.state().short_lived.record_lifetime(1_000);
    let mut ids = 1..10_000;
    let mut left_out = || {
        let is_left_out = |id: &usize| {
            let tid = NO_THREAD + *id as u32;
            threads.choose((0, *id), tid, Some((1, 0x40))).is_none()
        };
        ids.find(is_left_out).unwrap()
    };
    let (short, long) = (left_out(), left_out());
    threads.managed_named((0, long), "long".into());
    threads.managed_ended((0, short));
    assert!(reported(&threads).is_empty());
    assert_eq!(
        (threads.left_out(), threads.schedule_scan()),
        (1, ScanSchedule::Now)
    );
    threads.runtime_ended(1);
    threads.end();
    assert_eq!(reported(&threads), [r#"0 "long" managed"#, "0 ended"]);
    let known = threads.managed_of(0);
    assert_eq!(known.first().map(|known| known.managed), Some(long));
    assert_eq!(threads.schedule_scan(), ScanSchedule::NowAndThen);
    // The end of a CLR removes them.
    left_out();
    threads.runtime_ended(0);
    assert_eq!(threads.schedule_scan(), ScanSchedule::NowAndThen);
}

#[test]
fn a_scan_promotes_threads_that_were_left_out() {
    let (_writer, threads) = threads(Phase::Recording);
    threads.state().short_lived.configure(true, 7);
    threads.state().short_lived.record_lifetime(1_000);
    let own = proc::own_tid();
    let left_out = (1..10_000).find(|id| threads.choose((0, *id), own, None).is_none());
    threads.scan(0, &mut Vec::new(), StackProbes::NoThreads);
    let known = threads.managed_of(0);
    let known = known.first().map(|known| (known.managed, known.tid));
    assert_eq!(known, left_out.map(|id| (id, own)));
    let state = threads.state();
    let entry = state.by_tid.get(&own).unwrap();
    assert_eq!((entry.alive, entry.stands_for), (true, 1));
}

#[test]
fn no_thread_is_left_out_that_another_clr_knows() {
    let (_writer, threads) = threads(Phase::Recording);
    threads.state().short_lived.configure(true, 7);
    threads.state().short_lived.record_lifetime(1_000);
    threads.managed_started(started((0, 1), NO_THREAD));
    assert!((2..1_000).all(|id| threads.choose((1, id), NO_THREAD, None) == Some(1)));
    assert!((2..1_000).any(|id| threads.choose((1, id), NO_THREAD + 1, None).is_none()));
}

#[test]
fn a_thread_that_blocks_the_signal_is_named() {
    let of = |name: &str| {
        let name = name.into();
        let (tid, signal) = (4711, 34);
        cpu::BlockingThread { tid, name, signal }.note()
    };
    let blocks = "blocks signal 34: it is not sampled while it does";
    assert_eq!(of("pump"), format!("thread 4711 \"pump\" {blocks}"));
    assert_eq!(of(""), format!("thread 4711 {blocks}"));
}
