//! Walks out of a library that has no unwind tables: at each of its instructions, one by one, the
//! whole stack is found, and nothing of it is guessed.

use stackwalk::{BY_FRAME_POINTER, CodeMap, End, HEURISTIC, ModuleChange, Scratch, Stack};
use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

/// The frames that compilers make: none, pushed registers, a frame pointer, a table of cases, an
/// array whose length is known late, arguments on the stack, a call that does not return.
const SOURCE: &str = r#"
static long leaf(long a) { return a * 3 + 1; }
static long (*volatile chosen)(long) = leaf;
__attribute__((noinline)) static long many(long a, long b, long c, long d, long e, long f,
                                           long g, long h) {
    return a + b * c - d + (e ^ f) + g * h;
}
__attribute__((noinline)) static long array(long n, long (*call)(long)) {
    volatile long room[n + 1];
    for (long i = 0; i <= n; i++) room[i] = call(i);
    return room[n / 2] + many(n, 1, 2, 3, 4, 5, 6, 7);
}
__attribute__((noinline, noreturn)) static void never(long code) {
    for (;;) __asm__ volatile("hlt" : : "a"(code));
}
__attribute__((noinline)) static long cases(long n, long (*call)(long)) {
    switch (n) {
    case 0: return call(n) + 1;
    case 1: return array(3, call) * 2;
    case 2: return call(n) + call(n + 1);
    case 3: return many(n, n, n, n, n, call(n), n, n);
    case 4: return call(1) - array(2, call);
    case 5: { long a = call(2); return a > 100 ? a : many(a, a, 1, 1, 1, 1, 1, call(a)); }
    case 99: never(n);
    default: return n;
    }
}
long work(long depth) {
    if (depth == 0) return array(4, chosen);
    long sum = work(depth - 1);
    for (long n = 0; n < 7; n++) sum += cases(n, chosen) ^ sum;
    return sum;
}
"#;

static MAP: CodeMap = CodeMap::new();
const DEPTH: usize = 256;

/// The state of the handler of single steps.
struct Steps {
    code: Range<u64>,
    stack: Stack,
    scratch: Scratch,
    out: [u64; DEPTH],
    seen: Vec<u64>,
    /// The return address out of the library, and where walks went wrong.
    outside: Vec<u64>,
    wrong: Vec<(u64, End)>,
    steps: usize,
}

struct Shared(UnsafeCell<Option<Steps>>);

// SAFETY: one thread alone runs the steps; see `on_step`.
unsafe impl Sync for Shared {}

static STEPS: Shared = Shared(UnsafeCell::new(None));

extern "C" fn on_step(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: set before the first step; the one thread that steps is in this handler, which does
    // not nest.
    let Some(steps) = (unsafe { (*STEPS.0.get()).as_mut() }) else {
        return;
    };
    // SAFETY: a handler with SA_SIGINFO gets a context.
    let (regs, alt) = unsafe { stackwalk::regs_from_ucontext(context.cast()) };
    if !steps.code.contains(&regs.ip) {
        return;
    }
    let stack = Stack {
        alt,
        ..steps.stack.clone()
    };
    // SAFETY: this thread's own registers and stack.
    let walk = unsafe { stackwalk::walk(&MAP, regs, &stack, &mut steps.scratch, &mut steps.out) };
    let frames = &steps.out[..walk.depth];
    let guessed = frames
        .iter()
        .any(|frame| frame & (BY_FRAME_POINTER | HEURISTIC) != 0);
    let behind = frames
        .iter()
        .rposition(|frame| steps.code.contains(&stackwalk::lookup_address(*frame)))
        .map_or(0, |last| last + 1);
    let outside = &frames[behind..];
    if steps.steps == 0 {
        steps.outside.extend_from_slice(outside);
    }
    if walk.end != End::Root || guessed || steps.outside != outside {
        steps.wrong.push((regs.ip, walk.end));
    }
    steps.steps += 1;
    steps.seen.push(regs.ip);
}

#[test]
fn each_instruction_is_left_whole() {
    for (name, options) in [
        ("fast", &["-O2", "-fomit-frame-pointer"][..]),
        ("small", &["-Os", "-fomit-frame-pointer"]),
        ("framed", &["-O1", "-fno-omit-frame-pointer"]),
        ("plain", &["-O0"]),
    ] {
        step_through(name, options);
    }
}

fn step_through(name: &str, options: &[&str]) {
    let folder = std::env::temp_dir().join(format!("without-tables-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, library) = (folder.join("work.c"), folder.join(format!("{name}.so")));
    std::fs::write(&source, SOURCE).unwrap();
    let compiled = Command::new("cc")
        .args([
            "-shared",
            "-fPIC",
            "-fno-asynchronous-unwind-tables",
            "-fno-unwind-tables",
        ])
        .args(["-fno-stack-protector", "-nostdlib"])
        .args(options)
        .arg("-o")
        .args([&library, &source])
        .status()
        .expect("cc runs: install a C compiler");
    assert!(compiled.success());
    let path = CString::new(library.as_os_str().as_bytes()).unwrap();
    // SAFETY: a library of this test's own, which has no initialiser.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{library:?}");
    let mut code = None;
    MAP.refresh_native(&mut |change| {
        if let ModuleChange::Loaded { module } = change
            && module.path == library
        {
            code = Some(module.code.clone());
        }
        0
    });
    // SAFETY: looks up a name in the open library, whose function is so.
    let work: extern "C" fn(i64) -> i64 =
        unsafe { std::mem::transmute(libc::dlsym(handle, c"work".as_ptr())) };
    let expected = work(6);
    let end = {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let here = &raw const code as u64;
        let line = maps.lines().map(|line| line.split(['-', ' ']));
        line.filter_map(|mut parts| {
            let parse = |part: Option<&str>| u64::from_str_radix(part?, 16).ok();
            Some((parse(parts.next())?, parse(parts.next())?))
        })
        .find(|(start, end)| (*start..*end).contains(&here))
        .unwrap()
        .1
    };
    // SAFETY: no step is under way.
    unsafe {
        *STEPS.0.get() = Some(Steps {
            code: code.unwrap(),
            stack: Stack {
                low: 0,
                end,
                alt: None,
            },
            scratch: Scratch::new(),
            out: [0; DEPTH],
            seen: Vec::with_capacity(1 << 20),
            outside: Vec::with_capacity(DEPTH),
            wrong: Vec::with_capacity(1 << 20),
            steps: 0,
        });
    }
    // SAFETY: a handler for the trap that this thread's own flag makes; the flag is set for the
    // one call, and what is pushed is popped by the same block.
    let found = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_step as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(
            libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()),
            0
        );
        std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
        let found = work(6);
        std::arch::asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq");
        found
    };
    assert_eq!(found, expected);
    // SAFETY: the steps have ended.
    let steps = unsafe { (*STEPS.0.get()).take() }.unwrap();
    let different = BTreeSet::from_iter(&steps.seen).len();
    assert!(
        different > 100 && steps.steps > 1000,
        "{name}: {different}, {}",
        steps.steps
    );
    assert!(!steps.outside.is_empty());
    let wrong = BTreeSet::from_iter(steps.wrong.iter().map(|(ip, _)| ip - steps.code.start));
    assert!(
        wrong.is_empty(),
        "{name}: {} of {} steps, at {wrong:x?} of {library:?}: {:?}",
        steps.wrong.len(),
        steps.steps,
        steps.wrong.first()
    );
    // SAFETY: opened above, used no more.
    unsafe { libc::dlclose(handle) };
    std::fs::remove_dir_all(&folder).unwrap();
}
