//! Benchmark: time that reading an async chain adds to a stack walk, by the chain's depth.
//!
//! Prints nanoseconds as `key=value` lines for `cargo xtask bench`. A chain is the list of methods
//! that await a resumed one. Each of 30 frames is looked up in the table of async methods' bodies.
//! The tenth was resumed, and its chain is read. The objects have the layout of a runtime's, each
//! of a class of its own, pages apart. `warm`: all data is in the processor's caches. `cold`: none
//! of it is, as after other work. The walk itself is not measured.

use std::arch::x86_64::{_mm_clflush, _mm_mfence};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Instant;

use agent::model::chain::{CHAIN_WORDS, ChainEnd, split};
use agent::program::chains::finder::AsyncFrameFinder;
use agent::program::chains::{
    AsyncBody, ChainTables, CodeRole, LinkKind, MachineHome, TaskAt, gate, prepare,
};
use stackwalk::{CodeMap, Out as _};

/// Layout of a task and its box in .NET 8, in words.
const CONTINUATION: u64 = 4;
const FLAGS: u64 = 6;
const MACHINE: u64 = 8;
/// Offset of the builder in the state machine. The builder begins with its task.
const BUILDER: u64 = 1;
/// Words from one object to the next: a page and three cache lines.
const STRIDE: u64 = 512 + 24;

const FRAMES: usize = 30;
/// Index of the resumed frame.
const RESUMED: usize = 10;
const CODE: u64 = 0x7f12_3456_0000;
/// Empty: no frame of the bench is in it.
static CODE_MAP: CodeMap = CodeMap::new();

/// A chain of `depth` methods in memory, each awaiting the one before.
struct Made {
    words: Vec<u64>,
    depth: u64,
}

impl Made {
    fn new(tables: &ChainTables, depth: u64) -> Made {
        let mut made = Made {
            words: vec![0; usize::try_from((2 * depth + 1) * STRIDE).unwrap()],
            depth,
        };
        for link in 0..depth {
            let (object, class) = (made.object(link), made.class(link));
            made.set(object, class);
            // `MethodTable::m_BaseSize`.
            made.set(class, 0x60 << 32);
            if link + 1 < depth {
                made.set(object + 8 * CONTINUATION, made.object(link + 1));
            }
            made.set(object + 8 * (MACHINE + BUILDER), object);
            let task = TaskAt {
                continuation: 8 * CONTINUATION as u16,
                flags: 8 * FLAGS as u16,
                state: 0,
            };
            let kind = LinkKind::Box {
                task,
                state: 8 * MACHINE as u16,
                machine: 8 * MACHINE as u16,
            };
            assert!(tables.types.learn(class, kind));
        }
        made
    }

    fn at(&self, place: u64) -> u64 {
        self.words.as_ptr() as u64 + 8 * place
    }

    fn object(&self, link: u64) -> u64 {
        self.at(2 * link * STRIDE)
    }

    fn class(&self, link: u64) -> u64 {
        self.at((2 * link + 1) * STRIDE)
    }

    fn set(&mut self, at: u64, value: u64) {
        let place = (at - self.at(0)) / 8;
        self.words[usize::try_from(place).unwrap()] = value;
    }

    /// Takes all of it out of the caches.
    fn forget(&self) {
        for link in 0..self.depth {
            for at in [self.object(link), self.class(link)] {
                for line in 0..3 {
                    // SAFETY: within `words`.
                    unsafe { _mm_clflush((at + 64 * line) as *const u8) };
                }
            }
        }
        // SAFETY: every processor of this architecture has it.
        unsafe { _mm_mfence() };
    }
}

fn main() {
    let tables = prepare();
    let gate = gate(0).unwrap();
    gate.watch();
    gate.open();
    assert!(
        tables.bodies.add(AsyncBody {
            code: CodeRole::OfValue,
            range: CODE..CODE + 0x400,
            gate: 0,
            runtime: 0,
            homes: [MachineHome {
                from_bp: -8,
                live: [0..0x80, 0x80..0x400].into(),
                is_guess: false,
            }]
            .into(),
            held: [].into(),
            class: 0,
            builder: Some(8 * BUILDER as u16),
            task_found_at: AtomicU32::new(0),
            object: None,
            is_gone: AtomicBool::new(false),
        })
    );
    let mut out = [0; 64 + CHAIN_WORDS];
    assert_eq!(walk(tables, 0, &[0; 64], &mut out), FRAMES);
    let clock = median((0..10_000).map(|_| timed(|| ())).collect());
    for depth in [1, 10, 50, 200] {
        let made = Made::new(tables, depth);
        let mut stack = [0; 64];
        // Where the state machine's address is: below the frame pointer.
        stack[3] = made.object(0) + 8 * MACHINE;
        for (state, runs) in [("warm", 20_000), ("cold", 2000)] {
            let mut times = Vec::with_capacity(runs);
            for run in 0..runs + 100 {
                if state == "cold" {
                    made.forget();
                }
                let mut words = 0;
                let time = timed(|| words = walk(tables, CODE, &stack, &mut out));
                let (frames, chain) = split(&out[..words]);
                let chain = chain.unwrap();
                assert_eq!(
                    (frames.len(), chain.links.len() as u64, chain.end),
                    (FRAMES, depth, ChainEnd::Root)
                );
                if run >= 100 {
                    times.push(time.saturating_sub(clock));
                }
            }
            times.sort_unstable();
            let at = |percent: usize| times[(times.len() - 1) * percent / 100];
            let key = format!("chain_ns_{state}_depth{depth}");
            println!("{key}_p50={}", at(50));
            println!("{key}_p99={}", at(99));
            println!("{key}_max={}", at(100));
            println!("{key}_frames={FRAMES}");
        }
    }
}

/// Does the handler's work beside a walk, which has found [`FRAMES`] frames; the resumed one is of
/// the code at `resumed`. Returns the number of words then.
fn walk(tables: &'static ChainTables, resumed: u64, stack: &[u64; 64], out: &mut [u64]) -> usize {
    let mut inside = 0;
    let (low, end) = (stack.as_ptr() as u64, stack.as_ptr_range().end as u64);
    let mut finder = AsyncFrameFinder::new(tables, &CODE_MAP, 0, end, out, &mut inside).unwrap();
    for depth in 0..FRAMES {
        let word = match depth {
            RESUMED => resumed + 0x100,
            // Each in a piece of code of its own.
            _ => CODE + 0x10_0000 + (depth as u64) * 0x400,
        };
        assert!(finder.put(depth, black_box(word), low, low + 32));
    }
    finder.finish(FRAMES)
}

fn timed(run: impl FnOnce()) -> u64 {
    let start = Instant::now();
    run();
    start.elapsed().as_nanos() as u64
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}
