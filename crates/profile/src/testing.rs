//! Scenes: canonical recordings and profiles for tests of this and other crates.
//!
//! A scene is made of records, as a real profile is: [`records`](Scene::records) serves tests of
//! files, [`profile`](Scene::profile) tests of outputs. Invariant: a scene is deterministic; many
//! snapshots depend on it.

use recording::{
    CostPart, Event, Frame, MethodKind, ModuleKind, ProcessKey, PushOutcome, Record, Tier, WalkEnd,
    Writer, file_header,
};

use crate::import::Import;
use crate::model::Profile;

/// 10 ms, the interval of all scenes.
pub const INTERVAL: u64 = 10_000_000;

/// The instant at which scenes begin, CLOCK_MONOTONIC.
const START: u64 = 5_000_000_000;

/// A recording in memory, being written.
///
/// The methods return ids as records use them and define each thing once, in order.
#[derive(Default)]
pub struct Scene {
    records: Vec<(ProcessKey, Record<'static>)>,
    current: Ids,
    clock: u64,
    /// How far the clock was moved against the wall clock, nanoseconds.
    moved: i64,
}

/// The next id of each kind in the process that is being written.
#[derive(Default)]
struct Ids {
    process: u64,
    threads: u32,
    modules: u32,
    methods: u32,
    frames: u32,
    stacks: u32,
    details: u32,
    runtimes: u8,
}

impl Scene {
    /// Begins a process.
    #[must_use]
    pub fn new(pid: u32, command: &[&str]) -> Scene {
        let mut scene = Scene {
            clock: START,
            ..Scene::default()
        };
        scene.process(pid, 1, command);
        scene
    }

    /// Begins a further process; what follows belongs to it.
    pub fn process(&mut self, pid: u32, parent: u32, command: &[&str]) {
        self.current = Ids {
            process: u64::from(pid),
            ..Ids::default()
        };
        self.push(Record::Process {
            pid,
            parent,
            command: command.join("\0").into(),
            unix_ns: (1_700_000_000_000_000_000 + self.clock - START)
                .wrapping_sub_signed(self.moved),
            time_ns: self.clock,
        });
        self.push(Record::Engine {
            engine: "perf task-clock".into(),
            walker: "signal".into(),
            event: Event::Cpu,
            interval_ns: INTERVAL,
            max_depth: 1024,
        });
    }

    /// Moves the clock for the processes that begin later, as another time namespace does.
    pub fn move_clock(&mut self, by_ns: i64) {
        self.clock = self.clock.saturating_add_signed(by_ns);
        self.moved += by_ns;
    }

    /// When the last sample was taken, nanoseconds.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Adds any record.
    pub fn push(&mut self, record: Record<'static>) {
        self.records
            .push((ProcessKey(self.current.process), record));
    }

    /// Defines a runtime that is recorded.
    pub fn runtime(&mut self, version: &'static str) -> u8 {
        let runtime = self.current.runtimes;
        self.current.runtimes += 1;
        self.push(Record::Runtime {
            runtime,
            version: version.into(),
            recorded: true,
            refused_by: "".into(),
        });
        runtime
    }

    /// Defines a thread.
    pub fn thread(&mut self, tid: u32, name: &'static str, managed: bool) -> u32 {
        let thread = self.current.threads;
        self.current.threads += 1;
        let time_ns = self.clock;
        self.push(Record::Thread {
            thread,
            tid,
            name: name.into(),
            managed,
            time_ns,
        });
        thread
    }

    /// Defines a native module; its build-id is made of its path.
    pub fn native_module(&mut self, path: &'static str) -> u32 {
        self.module(ModuleKind::Native, None, path)
    }

    /// Defines a .NET module.
    pub fn managed_module(&mut self, runtime: u8, path: &'static str) -> u32 {
        self.module(ModuleKind::Managed, Some(runtime), path)
    }

    fn module(&mut self, kind: ModuleKind, runtime: Option<u8>, path: &'static str) -> u32 {
        let module = self.current.modules;
        self.current.modules += 1;
        let id_bytes: Vec<u8> = path.bytes().rev().take(8).collect();
        self.push(Record::Module {
            module,
            kind,
            runtime,
            path: path.into(),
            bias: 0x7F00_0000_0000 + u64::from(module) * 0x100_0000,
            id_bytes: id_bytes.into(),
            file_offset: 0,
        });
        module
    }

    /// Defines a method of IL and returns its id. Names as metadata has them.
    pub fn method(
        &mut self,
        runtime: u8,
        module: u32,
        type_name: &'static str,
        name: &'static str,
    ) -> u32 {
        let method = self.current.methods;
        self.current.methods += 1;
        self.push(Record::Method {
            method,
            runtime,
            kind: MethodKind::Il,
            module: Some(module),
            token: 0x0600_0001 + method,
            type_name: type_name.into(),
            name: name.into(),
        });
        method
    }

    /// Defines a managed frame.
    pub fn managed(&mut self, method: u32, tier: Tier, il_offset: u32) -> u32 {
        self.frame(Frame::Managed {
            method,
            tier,
            il_offset: Some(il_offset),
        })
    }

    /// Defines a native frame with its symbol.
    pub fn native(&mut self, module: u32, svma: u64, name: &'static str) -> u32 {
        let frame = self.frame(Frame::Native { module, svma });
        self.push(Record::Symbol {
            frame,
            name: name.into(),
            file: "".into(),
            line: 0,
        });
        frame
    }

    /// Defines any frame.
    pub fn frame(&mut self, value: Frame<'static>) -> u32 {
        let frame = self.current.frames;
        self.current.frames += 1;
        self.push(Record::Frame { frame, value });
        frame
    }

    /// Defines the stack of these frames, root first.
    pub fn stack(&mut self, frames: &[u32]) -> u32 {
        let mut parent = None;
        for &frame in frames {
            let stack = self.current.stacks;
            self.current.stacks += 1;
            self.push(Record::Stack {
                stack,
                parent,
                frame,
            });
            parent = Some(stack);
        }
        parent.expect("a stack has frames")
    }

    /// Takes `count` CPU samples of whole stacks, one each 10 ms.
    pub fn samples(&mut self, thread: u32, stack: u32, count: u32) {
        for _ in 0..count {
            self.sample(thread, stack, Event::Cpu, INTERVAL, WalkEnd::Root);
        }
    }

    /// Takes one sample, 10 ms after the one before.
    pub fn sample(&mut self, thread: u32, stack: u32, event: Event, value: u64, end: WalkEnd) {
        self.take(thread, stack, event, value, end, (None, None));
    }

    /// Takes `count` CPU samples with a logical stack, one each 10 ms.
    pub fn awaited(&mut self, thread: u32, stack: u32, logical: u32, count: u32) {
        for _ in 0..count {
            let stacks = (None, Some(logical));
            self.take(thread, stack, Event::Cpu, INTERVAL, WalkEnd::Root, stacks);
        }
    }

    /// Takes one sample that is about something, 10 ms after the one before.
    pub fn about(&mut self, thread: u32, stack: u32, event: Event, value: u64, detail: u32) {
        let of = (Some(detail), None);
        self.take(thread, stack, event, value, WalkEnd::Root, of);
    }

    /// Defines what samples are about.
    pub fn detail(&mut self, event: Event, name: &'static str, text: &'static str) -> u32 {
        let detail = self.current.details;
        self.current.details += 1;
        self.push(Record::Detail {
            detail,
            event,
            name: name.into(),
            text: text.into(),
        });
        detail
    }

    fn take(
        &mut self,
        thread: u32,
        stack: u32,
        event: Event,
        value: u64,
        end: WalkEnd,
        (detail, logical): (Option<u32>, Option<u32>),
    ) {
        self.clock += INTERVAL;
        let time_ns = self.clock;
        self.push(Record::Sample {
            thread,
            stack,
            time_ns,
            event,
            value,
            end,
            detail,
            logical,
        });
    }

    /// Ends the process: statistics, goodbye.
    pub fn end(&mut self) {
        self.ended(None, 0);
    }

    /// As [`Scene::end`]; samples should stand for so much CPU time, and lost ones would have for
    /// so much of it.
    pub fn end_of(&mut self, due_ns: u64, lost_ns: u64) {
        self.ended(Some(due_ns), lost_ns);
    }

    fn ended(&mut self, due_ns: Option<u64>, lost_ns: u64) {
        let time_ns = self.clock;
        for (part, name, count, cpu_ns) in [
            (CostPart::Callbacks, "compilation", 300, 900_000),
            (CostPart::Callbacks, "loads", 20, 1_100_000),
            (CostPart::Handlers, "", 100, 400_000),
            (CostPart::Ticks, "", 100, 200_000),
        ] {
            self.push(Record::Cost {
                part,
                modelled: part == CostPart::Ticks,
                count,
                cpu_ns,
                name: name.into(),
            });
        }
        self.push(Record::Stats {
            time_ns,
            agent_cpu_ns: 2_500_000,
            target_cpu_ns: time_ns - START,
            agent_memory: 3 << 20,
            handler_ns: 400_000,
            due_ns,
            lost_ns,
        });
        self.push(Record::End { time_ns });
    }

    /// The records.
    #[must_use]
    pub fn records(&self) -> &[(ProcessKey, Record<'static>)] {
        &self.records
    }

    /// The recording as a file.
    #[must_use]
    pub fn file(&self) -> Vec<u8> {
        let mut file = file_header("sidewalk testing");
        let mut writers: Vec<Writer> = Vec::new();
        for (process, record) in &self.records {
            let at = writers
                .iter()
                .position(|writer| writer.process() == *process);
            let at = at.unwrap_or_else(|| {
                writers.push(Writer::new(*process));
                writers.len() - 1
            });
            if writers[at].push(record) != PushOutcome::Added {
                writers[at].take_block_into(&mut file);
            }
        }
        for writer in &mut writers {
            writer.take_block_into(&mut file);
        }
        file
    }

    /// The profile that the records are.
    #[must_use]
    pub fn profile(&self) -> Profile {
        let mut import = Import::new();
        for (process, record) in &self.records {
            import.record(*process, record);
        }
        import.finish()
    }
}

/// One process, three threads, 100 samples: 60 in `Sample.Worker.Hash`, 25 in
/// `Sample.Worker.Parse` below it (optimised), 5 in native `memcpy`, 4 in the GC on a thread of
/// its own, 3 in a write barrier, 2 broken and 1 cut; 3 samples lost.
#[must_use]
pub fn tiny() -> Scene {
    let mut scene = Scene::new(4242, &["/opt/dotnet/dotnet", "sample.dll", "--fast"]);
    let runtime = scene.runtime("8.0.4");
    let libc = scene.native_module("/usr/lib/x86_64-linux-gnu/libc.so.6");
    let clr = scene.native_module("/opt/dotnet/shared/Microsoft.NETCore.App/8.0.4/libcoreclr.so");
    let corelib = scene.managed_module(
        runtime,
        "/opt/dotnet/shared/Microsoft.NETCore.App/8.0.4/System.Private.CoreLib.dll",
    );
    let app = scene.managed_module(runtime, "/srv/app/sample.dll");
    let main_thread = scene.thread(4242, ".NET Main", true);
    let worker_thread = scene.thread(4250, "", true);
    let gc_thread = scene.thread(4251, ".NET Server GC", false);

    let program = scene.method(runtime, app, "Sample.Program", "Main");
    let hash = scene.method(runtime, app, "Sample.Worker", "Hash");
    let parse = scene.method(runtime, app, "Sample.Worker", "Parse");
    let start = scene.method(runtime, corelib, "System.Threading.Thread", "StartCallback");

    let libc_start = scene.native(libc, 0x2_7CD0, "__libc_start_main");
    let run_main = scene.native(clr, 0x1A_0010, "RunMain");
    let call = scene.native(clr, 0x2F_3444, "CallDescrWorkerInternal");
    let thread_start = scene.native(libc, 0x8_9134, "start_thread");
    let memcpy = scene.native(libc, 0x9_C120, "__memmove_avx_unaligned_erms");
    let gc = scene.native(
        clr,
        0x44_5AB0,
        "SVR::gc_heap::mark_object_simple(unsigned char**)",
    );
    let main_frame = scene.managed(program, Tier::Tier0, 12);
    let start_frame = scene.managed(start, Tier::ReadyToRun, 30);
    let hash_frame = scene.managed(hash, Tier::Tier1, 44);
    let hash_osr = scene.managed(hash, Tier::Osr, 44);
    let parse_frame = scene.managed(parse, Tier::Tier1, 7);
    let barrier = scene.frame(Frame::Stub {
        runtime,
        name: "write barrier".into(),
    });
    let broken = scene.frame(Frame::Pseudo {
        text: "broken: no unwind rule".into(),
    });
    let truncated = scene.frame(Frame::Pseudo {
        text: "truncated".into(),
    });

    let main_root = [libc_start, run_main, call, main_frame];
    let on = |root: &[u32], rest: &[u32]| [root, rest].concat();
    let hash_stack = scene.stack(&on(&main_root, &[hash_frame]));
    let hash_osr_stack = scene.stack(&on(&main_root, &[hash_osr]));
    scene.samples(main_thread, hash_osr_stack, 10);
    scene.samples(main_thread, hash_stack, 30);
    let worker_root = [thread_start, start_frame];
    let worker_stack = scene.stack(&on(&worker_root, &[hash_frame]));
    scene.samples(worker_thread, worker_stack, 20);
    let parse_stack = scene.stack(&on(&worker_root, &[hash_frame, parse_frame]));
    scene.samples(worker_thread, parse_stack, 25);
    let memcpy_stack = scene.stack(&on(&main_root, &[hash_frame, memcpy]));
    scene.samples(main_thread, memcpy_stack, 5);
    let gc_stack = scene.stack(&[thread_start, gc]);
    scene.samples(gc_thread, gc_stack, 4);
    let barrier_stack = scene.stack(&on(&main_root, &[hash_frame, barrier]));
    scene.samples(main_thread, barrier_stack, 3);
    let broken_stack = scene.stack(&[broken, gc]);
    for _ in 0..2 {
        scene.sample(
            gc_thread,
            broken_stack,
            Event::Cpu,
            INTERVAL,
            WalkEnd::Broken,
        );
    }
    let cut_stack = scene.stack(&[truncated, hash_frame, parse_frame]);
    scene.sample(
        worker_thread,
        cut_stack,
        Event::Cpu,
        INTERVAL,
        WalkEnd::Truncated,
    );
    scene.push(Record::Broken {
        reason: "no unwind rule".into(),
        count: 2,
    });
    scene.push(Record::Lost {
        reason: "ring full".into(),
        count: 2,
    });
    scene.push(Record::Lost {
        reason: "no stack bounds".into(),
        count: 1,
    });
    scene.end();
    scene
}

/// The processes that `dotnet run` starts: the SDK's command, its compiler server, and the app.
///
/// 60, 30 and 10 samples, each process with a thread of its own and a pause; all of them have a
/// `Tools.Step`.
#[must_use]
pub fn tree() -> Scene {
    let commands: [(u32, &[&str], &'static str, u32); 3] = [
        (
            10,
            &["/opt/dotnet/dotnet", "run", "--project", "App"],
            "build",
            60,
        ),
        (
            11,
            &["/opt/dotnet/dotnet", "exec", "/sdk/VBCSCompiler.dll"],
            "compile",
            30,
        ),
        (12, &["/srv/app/bin/App"], "Worker", 10),
    ];
    let mut scene = Scene {
        clock: START,
        ..Scene::default()
    };
    for (pid, command, name, samples) in commands {
        scene.process(pid, 1, command);
        let runtime = scene.runtime("8.0.4");
        let module = scene.managed_module(runtime, "/srv/x/Tools.dll");
        let idle = scene.thread(pid, ".NET Main", true);
        let thread = scene.thread(pid + 100, name, true);
        let main = scene.method(runtime, module, "Program", "Main");
        let step = scene.method(runtime, module, "Tools", "Step");
        let own = scene.method(runtime, module, "Tools", name);
        let main = scene.managed(main, Tier::Tier0, 1);
        let step = scene.managed(step, Tier::Tier1, 2);
        let own = scene.managed(own, Tier::Tier1, 3);
        let short = scene.stack(&[main, step]);
        let long = scene.stack(&[main, own, step]);
        scene.samples(idle, short, samples / 2);
        scene.samples(thread, long, samples / 2);
        let time_ns = scene.clock;
        scene.push(Record::Pause {
            time_ns,
            stopping_ns: 1,
            stopped_ns: 2,
        });
        scene.end();
    }
    scene
}

/// One process with two CLRs: a method of 8.0.4 calls through native code into one of 3.1.23,
/// which calls back; both have a `Shared.Step`. 40 samples, and 10 exceptions thrown.
#[must_use]
pub fn two_runtimes() -> Scene {
    let mut scene = Scene::new(77, &["/usr/bin/host"]);
    let new = scene.runtime("8.0.4");
    let old = scene.runtime("3.1.23");
    let bridge = scene.native_module("/srv/bridge/libbridge.so");
    let new_app = scene.managed_module(new, "/srv/new/App.dll");
    let old_app = scene.managed_module(old, "/srv/old/App.dll");
    let thread = scene.thread(77, "host", true);
    let main = scene.method(new, new_app, "App.Program", "Main");
    let new_step = scene.method(new, new_app, "Shared", "Step");
    let old_step = scene.method(old, old_app, "Shared", "Step");
    let main = scene.managed(main, Tier::Tier0, 1);
    let new_step = scene.managed(new_step, Tier::Tier1, 2);
    let old_step = scene.managed(old_step, Tier::Optimized, 3);
    let cross = scene.native(bridge, 0x1234, "bridge_call");
    let only_new = scene.stack(&[main, new_step]);
    let into_old = scene.stack(&[main, new_step, cross, old_step]);
    let and_back = scene.stack(&[main, new_step, cross, old_step, cross, new_step]);
    scene.samples(thread, only_new, 10);
    scene.samples(thread, into_old, 20);
    scene.samples(thread, and_back, 10);
    for _ in 0..10 {
        scene.sample(thread, into_old, Event::Exception, 1, WalkEnd::Root);
    }
    scene.end();
    scene
}

/// One process with every event there is: 20 CPU and 10 wall samples; 6 exceptions of two types,
/// one with two messages; 8 allocations of three types, 2 collections, 3 compilations, 1 wait for a
/// lock, a class and a module loaded. Limits kept 4 exceptions and 3 MiB of allocations out; the
/// runtime was stopped 3 times.
#[must_use]
pub fn events() -> Scene {
    let mut scene = Scene::new(303, &["/opt/dotnet/dotnet", "shop.dll"]);
    scene.push(Record::Engine {
        engine: "wall timer".into(),
        walker: "signal".into(),
        event: Event::Wall,
        interval_ns: 2 * INTERVAL,
        max_depth: 1024,
    });
    for (event, source, walker, interval) in [
        (Event::Exception, "ExceptionThrown callback", "snapshot", 0),
        (Event::Alloc, "AllocationTick", "signal", 100 << 10),
        (Event::Gc, "RuntimeSuspend callbacks", "signal", 0),
    ] {
        scene.push(Record::Source {
            event,
            source: source.into(),
            walker: walker.into(),
            interval,
        });
    }
    let runtime = scene.runtime("8.0.4");
    let app = scene.managed_module(runtime, "/srv/shop/shop.dll");
    let clr = scene.native_module("/opt/dotnet/shared/Microsoft.NETCore.App/8.0.4/libcoreclr.so");
    let main_thread = scene.thread(303, ".NET Main", true);
    let worker_thread = scene.thread(310, "Worker", true);
    let main = scene.method(runtime, app, "Shop.Program", "Main");
    let parse = scene.method(runtime, app, "Shop.Order", "Parse");
    let load = scene.method(runtime, app, "Shop.Catalog", "Load");
    let main = scene.managed(main, Tier::Tier0, 3);
    let parse = scene.managed(parse, Tier::Tier1, 9);
    let load = scene.managed(load, Tier::Tier0, 4);
    let wait = scene.native(clr, 0x51_0020, "AwareLock::EnterEpilog(Thread*, int)");
    let parsing = scene.stack(&[main, parse]);
    let loading = scene.stack(&[main, load]);
    let waiting = scene.stack(&[main, load, wait]);

    scene.samples(main_thread, parsing, 14);
    scene.samples(worker_thread, loading, 6);
    for _ in 0..10 {
        scene.sample(
            worker_thread,
            waiting,
            Event::Wall,
            2 * INTERVAL,
            WalkEnd::Root,
        );
    }
    let exception = Event::Exception;
    let not_a_number =
        "The input string 'x' was not in a correct format.; caught by Shop.Order.Parse";
    let empty = "The input string '' was not in a correct format.; caught by Shop.Order.Parse";
    let x = scene.detail(exception, "System.FormatException", not_a_number);
    let nothing = scene.detail(exception, "System.FormatException", empty);
    let gone = scene.detail(exception, "System.IO.FileNotFoundException", "");
    for detail in [x, x, nothing, x] {
        scene.about(main_thread, parsing, exception, 1, detail);
    }
    for _ in 0..2 {
        scene.about(worker_thread, loading, exception, 1, gone);
    }
    let text = scene.detail(Event::Alloc, "System.String", "");
    let order = scene.detail(Event::Alloc, "Shop.Order", "");
    let bytes = scene.detail(
        Event::Alloc,
        "System.Collections.Generic.Dictionary`2+Entry[System.Int32,Shop.Item][]",
        "5242904 bytes",
    );
    for _ in 0..4 {
        scene.about(main_thread, parsing, Event::Alloc, 100 << 10, text);
    }
    for _ in 0..3 {
        scene.about(main_thread, parsing, Event::Alloc, 100 << 10, order);
    }
    scene.about(worker_thread, loading, Event::Alloc, 5 << 20, bytes);
    let young = scene.detail(Event::Gc, "generation 0", "allocation");
    let full = scene.detail(Event::Gc, "generation 2", "induced");
    scene.about(main_thread, parsing, Event::Gc, 700_000, young);
    scene.about(main_thread, loading, Event::Gc, 9_300_000, full);
    for (method, ns) in [
        ("Shop.Order.Parse (tier 0)", 300_000),
        ("Shop.Catalog+<>c.<Load>b__0_0 (tier 0)", 450_000),
        ("Shop.Order.Parse (tier 1)", 2_100_000),
    ] {
        let compiled = scene.detail(Event::Jit, method, "");
        scene.about(main_thread, parsing, Event::Jit, ns, compiled);
    }
    let lock = scene.detail(Event::Contention, "monitor", "");
    scene.about(worker_thread, waiting, Event::Contention, 42_000_000, lock);
    let class = scene.detail(Event::ClassLoad, "Shop.Catalog", "");
    scene.about(main_thread, loading, Event::ClassLoad, 1, class);
    let module = scene.detail(Event::ModuleLoad, "shop.dll", "/srv/shop/shop.dll");
    scene.about(main_thread, loading, Event::ModuleLoad, 1, module);

    for (event, count, value) in [
        (exception, 3, 3),
        (Event::Alloc, 30, 3 << 20),
        (exception, 1, 1),
    ] {
        scene.push(Record::Limited {
            event,
            count,
            value,
        });
    }
    for (after, stopping_ns, stopped_ns) in [
        (1, 40_000, 900_000),
        (2, 60_000, 4_000_000),
        (3, 50_000, 1_100_000),
    ] {
        scene.push(Record::Pause {
            time_ns: START + after * 25_000_000,
            stopping_ns,
            stopped_ns,
        });
    }
    scene.end();
    scene
}

/// A live heap beside allocations.
///
/// It is reported at two instants, with one object that is gone by the second one, one that is not
/// followed any more, and twice the weight for the rest.
#[must_use]
pub fn live() -> Scene {
    let mut scene = Scene::new(304, &["/opt/dotnet/dotnet", "leak.dll"]);
    for event in [Event::Alloc, Event::Live] {
        scene.push(Record::Source {
            event,
            source: "AllocationTick event".into(),
            walker: "signal".into(),
            interval: 1000,
        });
    }
    let runtime = scene.runtime("8.0.4");
    let app = scene.managed_module(runtime, "/srv/leak/leak.dll");
    let thread = scene.thread(304, ".NET Main", true);
    let main = scene.method(runtime, app, "Shop.Program", "Main");
    let add = scene.method(runtime, app, "Shop.Cart", "Add");
    let main = scene.managed(main, Tier::Tier1, 3);
    let add = scene.managed(add, Tier::Tier1, 9);
    let adding = scene.stack(&[main, add]);
    let text = scene.detail(Event::Alloc, "System.String", "40 bytes");
    for _ in 0..5 {
        scene.about(thread, adding, Event::Alloc, 1000, text);
    }
    let items = scene.detail(Event::Live, "Shop.Cart+Item", "100 bytes");
    let texts = scene.detail(Event::Live, "System.String", "40 bytes");
    let survivor = |allocation, detail, after_ms: u64, collections| Record::Survivor {
        allocation,
        thread,
        stack: adding,
        logical: None,
        time_ns: START + after_ms * 1_000_000,
        end: WalkEnd::Root,
        bytes: 1000,
        size: if detail == items { 100 } else { 40 },
        collections,
        detail: Some(detail),
    };
    let at = |ms: u64| START + ms * 1_000_000;
    for record in [
        survivor(0, items, 2_000, 1),
        survivor(1, texts, 2_500, 2),
        survivor(2, texts, 2_600, 2),
        Record::Instant {
            time_ns: at(3_000),
            collections: 4,
        },
        Record::Gone {
            time_ns: at(4_000),
            allocations: vec![2, 77].into(),
        },
        Record::Thinned {
            time_ns: at(4_000),
            allocations: vec![1].into(),
        },
        survivor(3, items, 3_500, 5),
        Record::Instant {
            time_ns: at(5_000),
            collections: 9,
        },
        Record::Gone {
            time_ns: at(6_000),
            allocations: vec![0].into(),
        },
        Record::Instant {
            time_ns: at(6_000),
            collections: 11,
        },
    ] {
        scene.push(record);
    }
    scene.end();
    scene
}

/// A program as walker `shadow` records it: exact calls (`Tree.Walk` 1 + 2 + 4 of itself), and
/// where the CPU time went, which `Tree.Leaf` has none of.
#[must_use]
pub fn shadow() -> Scene {
    let mut scene = Scene::new(404, &["/opt/dotnet/dotnet", "tree.dll"]);
    let runtime = scene.runtime("8.0.4");
    let app = scene.managed_module(runtime, "/srv/tree/tree.dll");
    let thread = scene.thread(404, ".NET Main", true);
    let main = scene.method(runtime, app, "Tree", "Main");
    let walk = scene.method(runtime, app, "Tree", "Walk");
    let leaf = scene.method(runtime, app, "Tree", "Leaf");
    let main = scene.managed(main, Tier::Tier0, 0);
    let walk = scene.managed(walk, Tier::Tier0, 0);
    let leaf = scene.managed(leaf, Tier::Tier0, 0);
    let in_main = scene.stack(&[main]);
    let first = scene.stack(&[main, walk]);
    let second = scene.stack(&[main, walk, walk]);
    let third = scene.stack(&[main, walk, walk, walk]);
    let bottom = scene.stack(&[main, walk, walk, walk, leaf]);
    for (stack, calls, cpu) in [
        (in_main, 1, 2_000_000),
        (first, 1, 1_000_000),
        (second, 2, 3_000_000),
        (third, 4, 6_500_000),
        (bottom, 8, 0),
    ] {
        scene.sample(thread, stack, Event::Call, calls, WalkEnd::Root);
        if cpu > 0 {
            scene.sample(thread, stack, Event::Cpu, cpu, WalkEnd::Root);
        }
    }
    scene.end();
    scene
}

/// A program of which most was not seen, and a process that gave no sample at all.
#[must_use]
pub fn unseen() -> Scene {
    let mut scene = Scene::new(77, &["dotnet", "/srv/relay.dll"]);
    let runtime = scene.runtime("8.0.4");
    let module = scene.managed_module(runtime, "/srv/relay.dll");
    let main = scene.thread(77, "main", true);
    let method = scene.method(runtime, module, "Relay.Program", "Main");
    let frame = scene.managed(method, Tier::Tier1, 3);
    let stack = scene.stack(&[frame]);
    for _ in 0..100 {
        scene.sample(main, stack, Event::Cpu, INTERVAL, WalkEnd::Root);
    }
    for (reason, threads, cpu_ns) in [
        // A sum that did not last.
        ("signal taken by the program", 1, 500_000_000),
        ("signal taken by the program", 0, 0),
        ("threads that block our signal", 2, 1_970_000_000),
        ("threads before they were sampled", 1, 40_000_000),
    ] {
        scene.push(Record::Unseen {
            reason: reason.into(),
            threads,
            cpu_ns,
        });
    }
    scene.end_of(3_200_000_000, 100_000_000);
    scene.process(78, 77, &["dotnet", "/srv/helper.dll"]);
    scene.thread(78, "main", true);
    scene.push(Record::Unseen {
        reason: "threads that could not be registered: timer_create failed with errno 1".into(),
        threads: 1,
        cpu_ns: 400_000_000,
    });
    scene.end_of(400_000_000, 0);
    scene
}

/// An async program: 10 samples of `Shop.Cart.Burn` below `Checkout` and `Main` before anything was
/// awaited, 30 of the same in a `Buy` that was resumed, with the chain `Main`, `Checkout`,
/// `[Task.Run]`, 5 whose chain was cut, 15 of a thread that runs nothing async; and a cut of which
/// no sample tells.
#[must_use]
pub fn awaits() -> Scene {
    let mut scene = Scene::new(4711, &["/opt/dotnet/dotnet", "shop.dll"]);
    let runtime = scene.runtime("8.0.33");
    let libc = scene.native_module("/usr/lib/x86_64-linux-gnu/libc.so.6");
    let corelib = scene.managed_module(
        runtime,
        "/opt/dotnet/shared/Microsoft.NETCore.App/8.0.33/System.Private.CoreLib.dll",
    );
    let app = scene.managed_module(runtime, "/srv/app/shop.dll");
    let main_thread = scene.thread(4711, "main", true);
    let worker = scene.thread(4712, ".NET TP Worker", true);
    let plain = scene.thread(4713, "plain", true);

    let start = scene.native(libc, 0x8_9134, "start_thread");
    let mut called = |module, type_name, name, tier| {
        let method = scene.method(runtime, module, type_name, name);
        (method, scene.managed(method, tier, 9))
    };
    let builders = "System.Runtime.CompilerServices.AsyncMethodBuilderCore";
    let (_, entry) = called(app, "Shop.Program", "<Main>", Tier::Tier0);
    let (_, main) = called(app, "Shop.Program", "Main", Tier::Tier0);
    let (_, start_main) = called(
        corelib,
        builders,
        "Start[Shop.Program+<Main>d__0]",
        Tier::Tier0,
    );
    let (main_body, in_main) = called(app, "Shop.Program+<Main>d__0", "MoveNext", Tier::Tier0);
    let (_, checkout) = called(app, "Shop.Cart", "Checkout", Tier::Tier1);
    let (_, start_checkout) = called(corelib, builders, "Start[System.__Canon]", Tier::Tier1);
    let (checkout_body, in_checkout) =
        called(app, "Shop.Cart+<Checkout>d__7", "MoveNext", Tier::Tier1);
    let (_, in_buy) = called(app, "Shop.Cart+<Buy>d__8", "MoveNext", Tier::Tier1);
    let (_, burn) = called(app, "Shop.Cart", "Burn", Tier::Tier1);
    let (_, dispatch) = called(
        corelib,
        "System.Threading.ThreadPoolWorkQueue",
        "Dispatch",
        Tier::ReadyToRun,
    );
    let (_, box_next) = called(
        corelib,
        "System.Runtime.CompilerServices.AsyncTaskMethodBuilder`1+AsyncStateMachineBox`1\
         [System.Int32,Shop.Cart+<Buy>d__8]",
        "MoveNext",
        Tier::Tier1,
    );
    let awaits = |method, state| Frame::Async { method, state };
    let main_awaits = scene.frame(awaits(main_body, 0));
    let checkout_awaits = scene.frame(awaits(checkout_body, 1));
    let mut mark = |text: &'static str| scene.frame(Frame::AsyncMark { text: text.into() });
    let run = mark("Task.Run");
    let blocks = mark("blocking wait");
    let closed = mark("async: gate closed");

    let first_run = [
        start,
        entry,
        main,
        start_main,
        in_main,
        checkout,
        start_checkout,
        in_checkout,
        burn,
    ];
    let first_run = scene.stack(&first_run);
    scene.samples(main_thread, first_run, 10);
    let physical = scene.stack(&[start, dispatch, box_next, in_buy, burn]);
    let logical = scene.stack(&[blocks, main_awaits, checkout_awaits, run, in_buy, burn]);
    scene.awaited(worker, physical, logical, 30);
    let cut = scene.stack(&[closed, in_buy, burn]);
    scene.awaited(worker, physical, cut, 5);
    let alone = scene.stack(&[start, burn]);
    scene.samples(plain, alone, 15);
    for (reason, count) in [("gate closed", 5), ("type not known yet", 1)] {
        scene.push(Record::AsyncCut {
            reason: reason.into(),
            count,
        });
    }
    scene.end();
    scene
}

/// Recursion: `Deep.Program.Down` calls itself 5,000 times, sampled at the bottom 8 times, and 2
/// samples that were cut at 1,024 frames.
#[must_use]
pub fn deep() -> Scene {
    let mut scene = Scene::new(99, &["/opt/dotnet/dotnet", "deep.dll"]);
    let runtime = scene.runtime("8.0.4");
    let app = scene.managed_module(runtime, "/srv/app/deep.dll");
    let thread = scene.thread(99, ".NET Main", true);
    let main = scene.method(runtime, app, "Deep.Program", "Main");
    let down = scene.method(runtime, app, "Deep.Program", "Down");
    let main = scene.managed(main, Tier::Tier0, 5);
    let down = scene.managed(down, Tier::Tier1, 9);
    let truncated = scene.frame(Frame::Pseudo {
        text: "truncated".into(),
    });
    let mut whole = vec![main];
    whole.resize(5_001, down);
    let whole = scene.stack(&whole);
    scene.samples(thread, whole, 8);
    let mut cut = vec![truncated];
    cut.resize(1_025, down);
    let cut = scene.stack(&cut);
    for _ in 0..2 {
        scene.sample(thread, cut, Event::Cpu, INTERVAL, WalkEnd::Truncated);
    }
    scene.end();
    scene
}
