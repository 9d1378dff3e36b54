//! Tests of sessions without a CLR: the test samples its own threads and makes the CLR's callbacks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use recording::WalkEnd;

use super::*;
use crate::events::sample::EventSample;
use crate::model::Phase;
use crate::program::threads::StartedThread;
use crate::record::decoded::{DecodedRecording, listen};

/// The agent state of this test's process, for one test at a time: the process has one sampler and
/// one code map.
struct Process {
    agent: &'static AgentState,
    _alone: MutexGuard<'static, ()>,
}

static STATE: OnceLock<&'static AgentState> = OnceLock::new();
/// The agent thread's recorder between two sessions.
static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);
static ALONE: Mutex<()> = Mutex::new(());

impl Process {
    fn alone() -> Process {
        Process {
            agent: STATE.get_or_init(|| {
                let agent = AgentState::new(Settings::default());
                agent.waker.register_for_handler();
                agent
            }),
            _alone: ALONE.lock().unwrap_or_else(|e| e.into_inner()),
        }
    }
}

/// A running session on an agent thread, as `process` starts it.
struct Running {
    agent: &'static AgentState,
    say: std::os::unix::net::UnixStream,
    reads: JoinHandle<DecodedRecording>,
    runs: JoinHandle<()>,
}

impl Running {
    fn begin(agent: &'static AgentState, settings: &str) -> Running {
        let begun = begin::begin(agent, Settings::parse(settings)).unwrap();
        let (channel, say, reads) = listen();
        let runs = corprof::spawn_agent_thread("sidewalk", move |cx: &mut AgentCx| {
            let mut recorder = RECORDER.lock().unwrap().take().unwrap_or_default();
            Session::new(
                agent,
                begun,
                channel,
                &mut recorder,
                &mut Clients::default(),
            )
            .run(cx);
            agent_thread::idle_round(agent, &mut recorder, cx);
            *RECORDER.lock().unwrap() = Some(recorder);
        });
        // As a CLR's `Initialize` does.
        agent.phases.runtime_starts();
        Running {
            agent,
            say,
            reads,
            runs: runs.unwrap(),
        }
    }

    /// Sends the tool's stop command.
    fn stop(mut self) -> DecodedRecording {
        use std::io::Write as _;
        self.say.write_all(b"S").unwrap();
        self.runs.join().unwrap();
        assert_eq!(self.agent.phase.get(), Phase::Idle);
        drop(self.say);
        self.reads.join().unwrap()
    }
}

#[inline(never)]
fn burn_cpu(until: &AtomicBool) {
    while !until.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// Starts a thread of this name that uses CPU time until it is stopped.
fn burner(name: &str, stop: &'static AtomicBool) -> JoinHandle<()> {
    let named = std::thread::Builder::new().name(name.into());
    named.spawn(move || burn_cpu(stop)).unwrap()
}

/// Waits until this process has used this much CPU time.
fn until_burnt(ns: u64) {
    let begin = proc::process_cpu_ns();
    let deadline = Instant::now() + Duration::from_secs(20);
    while proc::process_cpu_ns() - begin < ns {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
}

fn thread_of(decoded: &DecodedRecording, name: &str) -> Option<u32> {
    let mut threads = decoded.threads.iter();
    threads
        .find(|(_, (known, _))| known == name)
        .map(|(thread, _)| *thread)
}

#[test]
fn a_second_session_with_other_events_stands_alone() {
    let process = Process::alone();
    let agent = process.agent;
    static STOP: AtomicBool = AtomicBool::new(false);
    let burns = burner("burner", &STOP);

    let first = Running::begin(agent, "event=cpu;interval_ns=4000000;engine=timer");
    assert!(
        matches!(
            begin::begin(agent, Settings::default()),
            Err(NotBegun::Busy)
        ),
        "one at a time"
    );
    until_burnt(600_000_000);
    assert!(
        !agent
            .events
            .take_sample(EventSample::for_test(Event::Exception, 1, 1)),
        "not asked for"
    );
    let first = first.stop();

    // Events in between belong to no session.
    assert!(
        !agent
            .events
            .take_sample(EventSample::for_test(Event::Gc, 1, 1))
    );
    let between = std::thread::spawn(|| ());
    between.join().unwrap();

    let second = Running::begin(
        agent,
        "event=wall,exception;interval_ns=5000000;max_depth=3",
    );
    until_burnt(300_000_000);
    for _ in 0..5 {
        let mut sample = EventSample::for_test(Event::Exception, 1, 2);
        sample.tid = proc::own_tid();
        sample.time_ns = proc::now_ns();
        assert!(agent.events.take_sample(sample));
    }
    let second = second.stop();
    STOP.store(true, Ordering::Relaxed);
    burns.join().unwrap();

    for (decoded, engines) in [(&first, &[Event::Cpu][..]), (&second, &[Event::Wall][..])] {
        assert_eq!((decoded.processes, decoded.ends), (1, 1));
        assert_eq!(decoded.engines, engines);
        assert!(decoded.stats >= 1);
        assert!(
            decoded
                .modules
                .iter()
                .any(|name| name.starts_with("libc.so"))
        );
        // Every reported thread has ended in the recording.
        assert!(decoded.threads.values().all(|(_, ended)| *ended));
    }
    assert_eq!(first.samples.len(), first.of(Event::Cpu).len());
    let burner = thread_of(&first, "burner").unwrap();
    let burnt: u64 = first
        .samples
        .iter()
        .filter(|sample| sample.thread == burner)
        .map(|sample| sample.value)
        .sum();
    assert!(burnt > 100_000_000, "{burnt}");
    assert!(
        first
            .samples
            .iter()
            .any(|sample| sample.end == WalkEnd::Root)
    );

    let exceptions = second.of(Event::Exception);
    assert_eq!(exceptions.len(), 5);
    let details = exceptions.iter().map(|sample| sample.detail.as_deref());
    assert!(details.eq([Some("x"); 5]));
    assert!(
        second
            .of(Event::Wall)
            .iter()
            .all(|sample| sample.stack.len() <= 4)
    );
    assert_eq!(second.of(Event::Wall).len() + 5, second.samples.len());
    let burner = thread_of(&second, "burner").expect("a thread that was there before");
    assert!(
        second
            .of(Event::Wall)
            .iter()
            .any(|sample| sample.thread == burner)
    );
}

#[test]
fn a_session_whose_tool_is_gone_leaves_an_idle_process() {
    let process = Process::alone();
    let agent = process.agent;
    let mut running = Running::begin(agent, "event=cpu,gc;engine=timer");
    let tid = proc::own_tid();
    agent.program.threads.own_started();
    // The connection ends in the middle, as with a killed tool.
    running.say.shutdown(std::net::Shutdown::Both).unwrap();
    running.runs.join().unwrap();
    assert_eq!(agent.phase.get(), Phase::Idle);
    assert!(agent.program.threads.sampler().is_none());
    assert_eq!(
        agent.program.threads.number_of(tid),
        None,
        "no CLR knows it"
    );
    assert!(agent.program.threads.take_changes().is_empty());
    running = Running::begin(agent, "event=cpu;engine=timer");
    running.stop();
}

#[test]
fn the_last_clr_s_end_is_written_before_it_is_released() {
    let process = Process::alone();
    let agent = process.agent;
    let running = Running::begin(agent, "event=cpu;engine=timer");
    agent.program.threads.managed_started(StartedThread {
        managed: (7, 0x100),
        tid: proc::own_tid(),
        own: Some(crate::program::threads::OwnThread::here()),
        hijack: None,
        stands_for: 1,
    });
    agent
        .program
        .threads
        .managed_named((7, 0x100), "managed one".into());
    let decoded = running.stop();
    let thread = thread_of(&decoded, "managed one").unwrap();
    assert!(decoded.threads[&thread].1);
    // It stays in the table while its CLR does.
    assert_eq!(
        agent.program.threads.number_of(proc::own_tid()),
        Some(thread)
    );
    agent.program.threads.runtime_ended(7);
}

/// Resident memory of this process, bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// An hour of a busy program after its recording ended, at the speed of the callbacks: 100 threads
/// and 250 methods per second start and end, with libraries and exceptions. The agent thread wakes
/// for code only.
#[test]
fn a_program_that_goes_on_for_an_hour_after_its_recording_keeps_its_memory() {
    const SECONDS: usize = 3600;
    let process = Process::alone();
    let agent = process.agent;
    let begun = begin::begin(agent, Settings::parse("event=cpu,exception;engine=timer")).unwrap();
    let (channel, mut say, reads) = listen();
    // For the life of the process, as in a program that was started with the agent.
    agent.set_started();
    corprof::spawn_agent_thread("sidewalk", move |cx: &mut AgentCx| {
        agent_thread::main(agent, Some((begun, channel)), cx);
    })
    .unwrap();
    agent.phases.runtime_starts();
    std::io::Write::write_all(&mut say, b"S").unwrap();
    let decoded = reads.join().unwrap();
    assert_eq!(decoded.ends, 1);
    // The recording ends a moment before the session.
    while agent.phase.get() != Phase::Idle {
        std::thread::yield_now();
    }

    let code = vec![0xccu8; 1 << 20].leak();
    let base = code.as_ptr() as u64;
    let churn = |seconds: std::ops::Range<usize>| {
        for second in seconds {
            for at in 0..100 {
                let managed = (7, second * 100 + at + 1);
                agent
                    .program
                    .threads
                    .managed_named(managed, format!("worker {at}"));
                agent.program.threads.managed_started(StartedThread {
                    managed,
                    // A number that no thread of the kernel has.
                    tid: (1 << 23) + at as u32,
                    own: None,
                    hijack: Some((0, 0x1000)),
                    stands_for: 1,
                });
                agent
                    .program
                    .threads
                    .at((1 << 23) + at as u32, proc::now_ns());
                agent.program.threads.managed_ended(managed);
            }
            for at in 0..250u64 {
                let range = base + at * 4096..base + at * 4096 + 3000;
                let body = crate::model::CodeBody {
                    code_start: range.start,
                    range: range.clone(),
                    runtime: 7,
                    function: second * 250 + at as usize,
                    kind: recording::MethodKind::Dynamic,
                    tier: recording::Tier::Optimized,
                    added_ns: proc::now_ns(),
                    collectible: None,
                };
                // SAFETY: the range is within `code`, which is leaked.
                let unwind = unsafe { stackwalk::jit::body_from_code(range.start, 3000) };
                agent.program.code.added(body, unwind);
                agent.program.code.removed([range]);
            }
            agent.program.natives.refresh();
            // A real second leaves the agent thread more time than this loop. It must have been
            // woken.
            while agent.program.code.queued() > 8192 {
                std::thread::yield_now();
            }
            agent
                .events
                .announce(EventAnnouncement::Note("nobody reads this".into()));
            assert!(
                !agent
                    .events
                    .take_sample(EventSample::for_test(Event::Exception, 1, 100))
            );
        }
    };
    churn(0..SECONDS / 10);
    let before = resident();
    churn(SECONDS / 10..SECONDS);
    let after = resident();
    assert!(
        after < before + (4 << 20),
        "{} KiB before, {} KiB after",
        before >> 10,
        after >> 10
    );
}

/// If the agent thread fails, samples end, callbacks queue nothing, and no CLR waits for it.
#[test]
fn nothing_is_kept_for_an_agent_thread_that_has_failed() {
    // An agent state of its own, as this cannot be undone.
    let agent = AgentState::new(Settings::default());
    let _alone = Process::alone();
    let begun = begin::begin(agent, Settings::parse("event=cpu,exception;engine=timer")).unwrap();
    agent.phases.runtime_starts();
    assert!(
        agent
            .events
            .take_sample(EventSample::for_test(Event::Exception, 1, 1))
    );
    let failed = corprof::spawn_agent_thread("sidewalk", move |_: &mut AgentCx| {
        let _rings = begun;
        agent_thread::clean_up(agent);
    });
    failed.unwrap().join().unwrap();
    assert_eq!(agent.phase.get(), Phase::Left);
    assert!(
        !agent
            .events
            .take_sample(EventSample::for_test(Event::Exception, 1, 1))
    );
    agent
        .events
        .announce(EventAnnouncement::Note("nobody reads this".into()));
    agent.program.threads.own_started();
    assert!(agent.program.threads.take_changes().iter().all(|news| {
        // Events from before it are not reported, and nothing new is added.
        !matches!(news, ThreadChange::Named { .. })
    }));
    assert!(matches!(
        begin::begin(agent, Settings::default()),
        Err(NotBegun::Busy)
    ));
    assert_eq!(agent.registry.claim(String::new), None);
    agent.registry.ends(0, || unreachable!("nobody to wake"));
}
