//! Shared parts of the sampler's tests: child processes, thread data, and a walk without unwinding.
//!
//! Each test runs in a child process of its own, because a process has one sampler, one handler and
//! one signal.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(unreachable_pub, reason = "a module that every test file includes")]

use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sampler::{
    Config, EngineChoice, Reader, SampleEvent, SampleView, Sampler, Scratch, SlotId, WalkResult,
};

const CHILD: &str = "SAMPLER_TEST_CHILD";

/// Runs `body` in a child process: this test binary again, with this test only.
pub fn in_child(test: &str, body: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        body();
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}: {}\n{text}", output.status);
    assert!(text.contains("1 passed"), "{test} did not run:\n{text}");
    println!("{text}");
}

pub fn tid() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() as u32 }
}

/// Returns the bounds of the calling thread's stack.
pub fn stack() -> Range<u64> {
    // SAFETY: the attributes are filled by pthread_getattr_np before they are read.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        assert_eq!(
            libc::pthread_getattr_np(libc::pthread_self(), &mut attributes),
            0
        );
        let (mut low, mut len) = (std::ptr::null_mut(), 0);
        assert_eq!(
            libc::pthread_attr_getstack(&attributes, &mut low, &mut len),
            0
        );
        libc::pthread_attr_destroy(&mut attributes);
        low as u64..low as u64 + len as u64
    }
}

pub fn clock(id: libc::clockid_t) -> u64 {
    // SAFETY: a valid out-pointer.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        assert_eq!(libc::clock_gettime(id, &mut time), 0);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

pub fn cpu_ns() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

pub fn now_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Burns CPU time of this thread.
#[inline(never)]
pub fn burn(time: Duration) {
    let until = cpu_ns() + time.as_nanos() as u64;
    while cpu_ns() < until {
        for n in 0..20_000u64 {
            std::hint::black_box(n);
        }
    }
}

/// Burns CPU time until `ready` holds. While other threads want the processor too, the kernel
/// checks a thread's timer rarely (after 0.4 s of its time, or more), so a test burns until it has
/// the ticks that it needs. The test fails after 100 s of this thread's CPU time.
pub fn burn_until(what: &str, mut ready: impl FnMut() -> bool) {
    let end = cpu_ns() + 100_000_000_000;
    while !ready() {
        assert!(cpu_ns() < end, "burned in vain for: {what}");
        burn(Duration::from_millis(10));
    }
}

/// Burns CPU time until there is a sample.
pub fn burn_until_sampled(reader: &mut Reader) -> Vec<(SlotId, Sample)> {
    let mut samples = Vec::new();
    burn_until("a sample", || {
        samples.extend(drain(reader));
        !samples.is_empty()
    });
    samples
}

pub const ROOT: u64 = 0x1000;

/// The walk of these tests: gives the interrupted instruction, then ROOT.
///
/// # Safety
/// As [`sampler::WalkFn`].
pub unsafe extern "C" fn leaf_walk(
    context: *const libc::ucontext_t,
    _stack_end: u64,
    _scratch: *mut Scratch,
    out: *mut u64,
    cap: usize,
) -> WalkResult {
    assert!(cap >= 2);
    // SAFETY: the context is valid, and `out` has room for two words.
    unsafe {
        *out = (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as u64;
        *out.add(1) = ROOT;
    }
    WalkResult {
        depth: 2,
        end: 0,
        reason: 0,
    }
}

/// An engine whose ticks do not depend on the reader.
pub const OWN_CLOCK: EngineChoice = EngineChoice::Timer;

/// Returns a configuration with a tick each millisecond, or as often as the kernel can.
pub fn config(max_depth: u32) -> Config {
    Config {
        engine: OWN_CLOCK,
        interval_ns: 1_000_000,
        max_depth,
        ..Config::default()
    }
}

pub fn start(engine: EngineChoice, hertz: u64) -> (&'static Sampler, Reader) {
    let config = Config {
        engine,
        interval_ns: 1_000_000_000 / hertz,
        ..config(64)
    };
    Sampler::start(config, leaf_walk).unwrap()
}

/// An owned copy of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub time_ns: u64,
    pub event: SampleEvent,
    pub value: u64,
    pub count: u32,
    pub end: u8,
    pub frames: Vec<u64>,
}

impl From<SampleView<'_>> for Sample {
    fn from(view: SampleView<'_>) -> Self {
        let SampleView {
            time_ns,
            event,
            value,
            count,
            end,
            frames,
        } = view;
        Self {
            time_ns,
            event,
            value,
            count,
            end,
            frames: frames.to_vec(),
        }
    }
}

/// Drains all samples.
pub fn drain(reader: &mut Reader) -> Vec<(SlotId, Sample)> {
    let mut samples = Vec::new();
    reader.clear_wake();
    reader.drain_all(|slot, view| samples.push((slot, view.into())), |_| {});
    samples
}

/// Waits for `ready` by polling; the test fails after a minute.
pub fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "waited in vain for: {what}"
        );
        std::thread::yield_now();
    }
}

/// A number that one thread sets and another waits for.
#[derive(Default)]
pub struct Flag(AtomicU64);

impl Flag {
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
    }
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
