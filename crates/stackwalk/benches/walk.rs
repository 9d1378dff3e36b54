//! Benchmark of walks: nanoseconds per walk, by depth.
//!
//! The output is `key=value` lines for `cargo xtask bench`. The stack consists of 64 different
//! functions, so that the rules are in different cache lines as in a real program. `warm`: all
//! rules are in the rule cache. `cold`: none is (every frame is unwound from `.eh_frame`). The
//! clock's own cost is measured and subtracted.

use stackwalk::{ADDRESS, CodeMap, End, Regs, Scratch, Stack};
use std::hint::black_box;
use std::time::Instant;

static MAP: CodeMap = CodeMap::new();

#[inline(never)]
fn level<const N: usize>(depth: usize, leaf: &mut dyn FnMut()) -> usize {
    if depth == 0 {
        leaf();
        return N;
    }
    // Code after the call, different in each, prevents tail calls and merging of the functions.
    black_box(LEVELS[depth % 64](depth - 1, leaf)) + N
}

type Level = fn(usize, &mut dyn FnMut()) -> usize;

macro_rules! levels {
    ($($n:literal)*) => { [$(level::<$n>),*] };
}

static LEVELS: [Level; 64] = levels!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34
    35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
);

fn stack() -> Stack {
    // SAFETY: plain calls with valid pointers.
    unsafe {
        let mut attributes = std::mem::zeroed();
        libc::pthread_getattr_np(libc::pthread_self(), &mut attributes);
        let (mut low, mut len) = (std::ptr::null_mut(), 0);
        libc::pthread_attr_getstack(&attributes, &mut low, &mut len);
        libc::pthread_attr_destroy(&mut attributes);
        Stack {
            low: low as u64,
            end: low as u64 + len as u64,
            alt: None,
        }
    }
}

fn main() {
    MAP.refresh_native(&mut |_| 0);
    let clock = median(&mut (0..10_000).map(|_| timed(|| ())).collect::<Vec<_>>());
    for depth in [10, 40, 200, 1000] {
        for (state, walks) in [("warm", 20_000), ("cold", 300)] {
            let (mut times, mut frames) = (Vec::with_capacity(walks), 0);
            let mut out = vec![0; 4096];
            let mut scratch = Scratch::new();
            let stack = stack();
            // The frames below the recursion count too: the depth is the walk's, not the loop's.
            LEVELS[0](depth - below(), &mut || {
                for round in 0..walks + 10 {
                    if state == "cold" {
                        MAP.forget_rules_in(0..1 << 47);
                    }
                    let mut run = || {
                        let regs = here();
                        // SAFETY: the registers of this thread, here; the stack is its own.
                        unsafe { stackwalk::walk(&MAP, regs, &stack, &mut scratch, &mut out) }
                    };
                    let mut walk = None;
                    let time = timed(|| walk = Some(run()));
                    let walk = walk.unwrap();
                    assert_eq!(
                        walk.end,
                        End::Root,
                        "{:x?}",
                        out[..walk.depth].last().map(|at| at & ADDRESS)
                    );
                    frames = walk.depth;
                    if round >= 10 {
                        times.push(time.saturating_sub(clock));
                    }
                }
            });
            times.sort_unstable();
            let at = |percent: usize| times[(times.len() - 1) * percent / 100];
            let key = format!("walk_ns_{state}_depth{depth}");
            println!("{key}_p50={}", at(50));
            println!("{key}_p99={}", at(99));
            println!("{key}_max={}", at(100));
            println!("{key}_frames={frames}");
        }
    }
}

/// Returns the number of frames that the walk finds below the recursion.
fn below() -> usize {
    7
}

fn timed(run: impl FnOnce()) -> u64 {
    let start = Instant::now();
    run();
    start.elapsed().as_nanos() as u64
}

fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Returns the registers at this point.
#[inline(always)]
fn here() -> Regs {
    let (ip, sp, bp): (u64, u64, u64);
    // SAFETY: reads three registers.
    unsafe {
        std::arch::asm!(
            "lea {}, [rip]", "mov {}, rsp", "mov {}, rbp",
            out(reg) ip, out(reg) sp, out(reg) bp, options(nomem, nostack)
        );
    }
    Regs { ip, sp, bp, all: 0 }
}
