//! Writes a made-up profile with many stacks, or with many samples, to try viewers with:
//! `cargo run --release -p formats --example synthesize -- STACKS [SAMPLES] FILE…`
//!
//! With SAMPLES, a web service of 24 threads at 999 Hz: requests of 40 kinds, each with stacks of
//! its own of which few are frequent; a stack stays for two and a half samples in the middle; load
//! comes and goes; every three seconds all wait for a collection.
//!
//! Not a benchmark and not a test; the names are like those of a web service. The same STACKS
//! makes the same files always.

use std::collections::HashSet;
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use formats::{Format, OutputOptions};
use profile::Builder;
use profile::model::{
    Event, Frame, FrameId, FrameKind, Health, Location, Module, ModuleId, Process, ProcessId,
    Profile, Runtime, RuntimeId, Sample, Thread, ThreadId, Tier, WalkEnd,
};

const MODULES: [(&str, FrameKind); 6] = [
    ("/app/Shop.Web.dll", FrameKind::Managed),
    (
        "/usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.4/System.Private.CoreLib.dll",
        FrameKind::Managed,
    ),
    (
        "/usr/share/dotnet/shared/Microsoft.AspNetCore.App/8.0.4/Microsoft.AspNetCore.Routing.dll",
        FrameKind::Managed,
    ),
    (
        "/usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.4/libcoreclr.so",
        FrameKind::Runtime,
    ),
    ("/usr/lib/x86_64-linux-gnu/libc.so.6", FrameKind::Native),
    (
        "/usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.4/libclrjit.so",
        FrameKind::Runtime,
    ),
];

const NAMESPACES: [&str; 6] = [
    "Shop.Web.Controllers",
    "System.Collections.Generic",
    "Microsoft.AspNetCore.Routing.Matching",
    "WKS::gc_heap",
    "",
    "Compiler",
];

const TYPES: [&str; 8] = [
    "Dictionary<int, string>",
    "CartController",
    "DfaMatcher",
    "List<T>.Enumerator",
    "Pipeline",
    "JsonSerializer",
    "Cache<Key, Value>",
    "OrderService.<>c",
];

const VERBS: [&str; 12] = [
    "Find",
    "Resize",
    "MoveNext",
    "Serialize",
    "Invoke",
    "Match",
    "Write",
    "ReadAsync",
    "Compare",
    "Allocate",
    "Copy",
    "Flush",
];

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }

    /// Small numbers mostly.
    fn skewed(&mut self, bound: u64) -> u64 {
        let (a, b) = (self.below(bound), self.below(bound));
        a * b / bound
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let stacks: usize = args
        .next()
        .ok_or("usage: synthesize STACKS FILE…")?
        .parse()?;
    let mut args = args.peekable();
    let samples = args.next_if(|arg| arg.parse::<usize>().is_ok());
    let profile = match samples {
        Some(samples) => long(stacks, samples.parse()?),
        None => synthesize(stacks),
    };
    eprintln!(
        "{} stack nodes, {} samples",
        profile.stacks.len(),
        profile.samples.len()
    );
    for path in args {
        let format = Format::from_path(Path::new(&path)).ok_or("no format has that ending")?;
        let out = BufWriter::new(File::create(&path)?);
        formats::write(format, &profile, &OutputOptions::default(), out)?;
    }
    Ok(())
}

fn synthesize(wanted: usize) -> Profile {
    let mut random = Random(0x5157_3A11);
    let mut b = Builder::new();
    let frames = frames(&mut b, &mut random);
    tables(&mut b.profile);
    let mut seen = HashSet::new();
    let mut time = 1_000_000_000_u64;
    let threads = b.profile.threads.len() as u64;
    while seen.len() < wanted {
        let thread = random.below(threads) as u32;
        let depth = 8 + random.below(52);
        // A frame calls few others, and most often the same one.
        let mut at = u64::from(thread % 3) * 41;
        let mut stack = None;
        for level in 0..depth {
            let callee = if level % 4 == 3 {
                random.skewed(7)
            } else {
                random.skewed(30) / 22
            };
            at = (at + callee + 1).wrapping_mul(2_654_435_761) % frames.len() as u64;
            stack = Some(b.stack(stack, frames[at as usize]));
        }
        let Some(stack) = stack else { continue };
        seen.insert(stack);
        let event = if random.below(12) == 0 {
            Event::Alloc
        } else {
            Event::Cpu
        };
        let value = if event == Event::Cpu {
            10_101_010
        } else {
            24 + random.below(9000)
        };
        let copies = 1 + random.skewed(12);
        for _ in 0..copies {
            time += 50_000;
            let thread = ThreadId(thread);
            let end = WalkEnd::Root;
            b.profile.samples.push(Sample {
                thread,
                stack,
                time_ns: time,
                event,
                value,
                end,
                logical: None,
                detail: None,
            });
        }
    }
    let samples = b.profile.samples.len() as u64;
    b.profile.processes[0].end_ns = time;
    b.profile.health = Health {
        samples,
        lost: vec![("ring full".into(), 12), ("no stack bounds".into(), 3)],
        broken: vec![("no unwind rule".into(), 7)],
        truncated: 2,
        frames: samples * 34,
        unknown_frames: 40,
        engine: "perf task-clock".into(),
        walker: "signal".into(),
        event: Some(Event::Cpu),
        interval_ns: 10_101_010,
        max_depth: 1024,
        agent_cpu_ns: 153_000_000,
        target_cpu_ns: samples * 10_101_010,
        agent_memory: 9 << 20,
        handler_ns: 88_000_000,
        notes: vec![],
        ..Health::default()
    };
    b.finish()
}

/// A service under load for as long as it takes to have `wanted` samples.
fn long(stacks: usize, wanted: usize) -> Profile {
    const KINDS: usize = 40;
    const INTERVAL: u64 = 1_001_001;
    let mut profile = synthesize(stacks);
    let samples = std::mem::take(&mut profile.samples);
    let mut seen = HashSet::new();
    let mut known: Vec<_> = samples.iter().map(|sample| sample.stack).collect();
    known.retain(|stack| seen.insert(*stack));
    let of_kind = known.len() / KINDS;
    profile.threads.truncate(1);
    for nth in 1..24 {
        profile.threads.push(Thread {
            tid: 4242 + nth,
            name: if nth < 4 {
                ".NET Server GC"
            } else {
                ".NET TP Worker"
            }
            .into(),
            ..profile.threads[0].clone()
        });
    }
    let mut random = Random(0xA11_0C8);
    // Kind of request and stack of each thread.
    let mut now = vec![(0, 0); profile.threads.len()];
    let begin = 1_000_000_000_u64;
    let mut time = begin;
    let sample = |thread: usize, time_ns, stack, event, value| Sample {
        thread: ThreadId(thread as u32),
        stack,
        time_ns,
        event,
        value,
        end: WalkEnd::Root,
        logical: None,
        detail: None,
    };
    while profile.samples.len() < wanted {
        time += INTERVAL;
        let second = (time - begin) / 1_000_000_000;
        let load = 40 + 25 * (second / 20 % 3);
        let waits = (time - begin) % 3_000_000_000 < 40_000_000;
        if waits && (time - begin) % 3_000_000_000 < INTERVAL {
            profile.samples.push(sample(
                1,
                time + 40_000_000,
                known[3],
                Event::Gc,
                40_000_000,
            ));
        }
        for (thread, (kind, stack)) in now.iter_mut().enumerate() {
            let is_collector = (1..4).contains(&thread);
            if is_collector != waits || (!waits && (thread as u64 * 100 / 24) > load) {
                continue;
            }
            if random.below(50) == 0 {
                *kind = random.skewed(KINDS as u64) as usize;
            }
            if random.below(5) < 2 {
                // The smaller, the more frequent.
                let at = random.skewed(of_kind as u64);
                *stack = *kind * of_kind + random.skewed(1 + at) as usize;
            }
            let jitter = random.below(30_000);
            let stack = if is_collector {
                known[thread]
            } else {
                known[*stack]
            };
            profile
                .samples
                .push(sample(thread, time + jitter, stack, Event::Cpu, INTERVAL));
        }
    }
    profile.samples.sort_by_key(|sample| sample.time_ns);
    profile.processes[0].end_ns = time;
    profile.health.samples = profile.samples.len() as u64;
    profile.health.interval_ns = INTERVAL;
    profile
}

fn frames(b: &mut Builder, random: &mut Random) -> Vec<FrameId> {
    let tiers = [
        Tier::Tier1,
        Tier::Tier1,
        Tier::ReadyToRun,
        Tier::Tier0,
        Tier::Osr,
    ];
    (0..3000)
        .map(|nth: u64| {
            let module = random.skewed(6) as usize;
            let kind = MODULES[module].1;
            let word = VERBS[(nth % 12) as usize];
            let name = match kind {
                FrameKind::Managed => format!(
                    "{}.{}.{word}{}",
                    NAMESPACES[module],
                    TYPES[(nth / 12 % 8) as usize],
                    nth / 96
                ),
                FrameKind::Runtime => format!(
                    "{}::{}_{nth}(unsigned long, int)",
                    NAMESPACES[module],
                    word.to_lowercase()
                ),
                _ => format!("__{}_{nth}_avx_unaligned_erms", word.to_lowercase()),
            };
            let managed = kind == FrameKind::Managed;
            let name = b.string(&name);
            let file =
                managed.then(|| b.string(&format!("/src/Shop/{}.cs", TYPES[(nth % 8) as usize])));
            b.frame(Frame {
                name,
                kind: if nth == 77 { FrameKind::Pseudo } else { kind },
                tier: if managed {
                    tiers[random.below(5) as usize]
                } else {
                    Tier::Unknown
                },
                module: Some(ModuleId(module as u32)),
                runtime: managed.then_some(RuntimeId(0)),
                file,
                line: if managed {
                    1 + random.below(400) as u32
                } else {
                    0
                },
                signature: None,
                inlined: false,
                location: Location::None,
            })
        })
        .collect()
}

fn tables(profile: &mut Profile) {
    profile.modules = MODULES
        .iter()
        .map(|&(path, kind)| Module {
            path: path.into(),
            managed: kind == FrameKind::Managed,
            id_bytes: vec![7; 20],
            bias: 0,
            file_offset: 0,
        })
        .collect();
    profile.runtimes = vec![Runtime {
        process: ProcessId(0),
        version: "8.0.4".into(),
        recorded: true,
        refused_by: String::new(),
    }];
    profile.processes = vec![Process {
        pid: 4242,
        parent: 1,
        command: vec![
            "/usr/bin/dotnet".into(),
            "/app/Shop.Web.dll".into(),
            "--urls=http://*:80".into(),
        ],
        start_unix_ns: 1_795_000_000_000_000_000,
        start_ns: 1_000_000_000,
        end_ns: 0,
        ended: true,
        recording: 0,
    }];
    profile.threads = (0..14)
        .map(|nth| Thread {
            process: ProcessId(0),
            tid: 4242 + nth,
            name: match nth {
                0 => "dotnet".into(),
                1 => ".NET Tiered Compilation Worker".into(),
                2 => ".NET Server GC".into(),
                _ => ".NET TP Worker".into(),
            },
            managed: nth > 2,
            start_ns: 0,
            end_ns: None,
            cpu_ns: None,
            state: None,
        })
        .collect();
}
