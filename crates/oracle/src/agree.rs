//! Walks stopped threads with every walker at the same instant, and reports all results.
//!
//! Runs on the agent thread. It suspends each CLR at random moments. Each managed thread then walks
//! itself (walker `signal`), and `DoStackSnapshot` walks it with and without a seed (`seeded`,
//! `suspend`). The output is lines of text over the tool's socket, in place of a recording. `cargo
//! xtask agree` compares the walks.
//!
//! | line | meaning |
//! | --- | --- |
//! | `R runtime version` | a CLR |
//! | `T runtime stopping_ns stopped_ns` | time to suspend it, time suspended |
//! | `B reason` | it could not be suspended |
//! | `W tid trace plain seeded seed` | a thread, and how its walks ended |
//! | `s kind flags ip sp bp function` | a frame of the agent's own walk, leaf first; kinds: `n`ative, `m`anaged, `d`ynamic, stub of a `r`eady-to-run image, `u`nknown |
//! | `p ip sp function` | a frame of `DoStackSnapshot`; function 0: a run of unmanaged frames |
//! | `q ip sp function` | a frame of `DoStackSnapshot` with a seed |
//! | `d ip code name` | code at an address of a thread whose walks differ: 16 bytes before it and 16 from it on |
//! | `F refused walked` | number of random seeds refused and walked since the last such line |
//! | `C walks frames ns frames ns` | synchronous walks in callbacks since the last such line: total frames and nanoseconds of `DoStackSnapshot`, then of the agent's walk |
//! | `I same other unread` | number of IL maps in images of precompiled methods that equal the runtime's map, differ, or were not read, since the last such line |
//! | `.` | end of a thread |
//! | `M start length tier map` | with `bodies=1`, when the tool requests a stop: a JIT-compiled body, and whether its IL map as the agent reads it is the `same` as the runtime's, an`other`, `unknown` (it has parts that are not read), or `unread` |

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use agent::base::numbers::NumberMap;
use agent::base::random::next_random;
use agent::base::{proc, waker};
use agent::clr::{Runtimes, il_maps, names};
use agent::model::{CodeBody, EndCode};
use agent::program::CodeHistory;
use agent::program::code::{CodeLifetime, Owner, can_query_runtime, permanent_body};
use agent::program::threads::StackProbes;
use agent::record::{Channel, Command};
use agent::session::{AgentState, Begun, begin};
use agent::walkers::seed::SeedState;
use agent::walkers::stopped::{FrameRecord, NotStopped, ObservedThread, StoppedWalker, WalkKinds};
use corprof::context::Synchronous;
use corprof::{AgentCx, Cx, FunctionId, FunctionKey, RejitId};
use recording::MethodKind;
use sampler::{Reader, SlotId};
use stackwalk::debug_info;
use stackwalk::jit::NoIlMap;
use stackwalk::{
    ADDRESS, BY_FRAME_POINTER, CodeKind, CodeMap, EXACT, HEURISTIC, Traced, lookup_address,
    own_memory,
};

use crate::costs;
use crate::random_seeds::RandomSeeds;

/// Time between two scans of /proc/self/task.
const SCAN_NS: u64 = 50_000_000;
/// Maximum random time between two suspensions, in microseconds.
const PAUSE_US: u64 = 3000;
/// Maximum number of threads reported with code and names, because a wrong walker is wrong often.
const MAX_DETAILS: u32 = 300;

/// Meaning of an address at the time of a stop.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Meaning {
    kind: char,
    /// FunctionID of a managed frame.
    function: usize,
}

/// The agent thread's state in place of a session.
pub(crate) struct WalkerComparison {
    agent: &'static AgentState,
    reader: Reader,
    channel: Channel,
    stopped: StoppedWalker,
    history: CodeHistory,
    /// ReadyToRun functions by start address; 0 for a stub.
    precompiled: NumberMap<u64, usize>,
    image_maps: ImageMaps,
    names: HashMap<(u8, usize), String>,
    text: String,
    random: u64,
    seeds: RandomSeeds,
    details_left: u32,
    announced: usize,
    tid: u32,
    ids: Vec<u32>,
    closed: Vec<SlotId>,
    scan_due: u64,
}

/// Counts of IL maps of precompiled methods: those in the image that equal the runtime's map, those
/// that differ, and those that could not be read.
#[derive(Debug, Default)]
struct ImageMaps {
    same: u64,
    other: u64,
    unread: u64,
}

impl ImageMaps {
    fn compare<C: Synchronous>(&mut self, cx: &Cx<'_, C>, map: &CodeMap, code_start: u64) {
        let asked = names::il_map(cx, code_start).unwrap_or_default();
        match il_maps::read_precompiled(map, code_start) {
            Ok((_, read)) if read == asked => self.same += 1,
            Ok(_) => self.other += 1,
            Err(_) => self.unread += 1,
        }
    }
}

/// Compares the IL map of a body as the agent reads it with the runtime's map.
fn compare_il_map(runtimes: &mut Runtimes<'_>, body: &CodeBody) -> &'static str {
    let compared = runtimes.with(body.runtime, |clr, cx| {
        let asked = names::il_map(cx, body.code_start).unwrap_or_default();
        match clr.read_il_map(body.function, body.code_start) {
            Ok((_, read)) if read == asked => "same",
            Ok(_) => "other",
            Err(NoIlMap::Bytes(debug_info::Error::Unknown)) => "unknown",
            Err(_) => "unread",
        }
    });
    compared.unwrap_or("unread")
}

impl WalkerComparison {
    /// Takes over a begun session; `random_seeds` is the number of invalid seeds to try.
    pub(crate) fn new(
        agent: &'static AgentState,
        begun: Begun,
        channel: Channel,
        random_seeds: u32,
    ) -> WalkerComparison {
        WalkerComparison {
            agent,
            stopped: StoppedWalker::new(&agent.program, begun.settings.max_depth),
            reader: begun.reader,
            channel,
            history: CodeHistory::default(),
            precompiled: NumberMap::default(),
            image_maps: ImageMaps::default(),
            names: HashMap::new(),
            text: String::new(),
            random: u64::from(std::process::id()) << 32 | 0x9e37_79b9,
            seeds: RandomSeeds::new(random_seeds),
            details_left: MAX_DETAILS,
            announced: 0,
            tid: proc::own_tid(),
            ids: Vec::new(),
            closed: Vec::new(),
            scan_due: 0,
        }
    }

    /// Suspends and walks until the tool requests a stop or disconnects.
    pub(crate) fn run(mut self, cx: &mut AgentCx) {
        loop {
            self.pause();
            if self.channel.command() != Command::None {
                begin::stop(self.agent);
                return;
            }
            self.absorb_changes();
            let known = self.agent.registry.known();
            for clr in known.iter().skip(self.announced) {
                let _ = writeln!(self.text, "R {} {}", clr.number, clr.version);
            }
            self.announced = known.len();
            let mut runtimes = Runtimes::new(cx, &self.agent.registry, &known);
            for runtime in runtimes.recorded() {
                self.stop(&mut runtimes, runtime);
            }
            let [walks, theirs, theirs_ns, own, own_ns] = costs::take();
            if walks > 0 {
                let _ = writeln!(self.text, "C {walks} {theirs} {theirs_ns} {own} {own_ns}");
            }
            let ImageMaps {
                same,
                other,
                unread,
            } = std::mem::take(&mut self.image_maps);
            if same + other + unread > 0 {
                let _ = writeln!(self.text, "I {same} {other} {unread}");
            }
            for clr in known.iter().filter(|clr| clr.ending && clr.reach.is_some()) {
                self.agent.registry.acknowledge(clr.number);
            }
            if self.channel.send(self.text.as_bytes()).is_err() {
                return;
            }
            self.text.clear();
        }
    }

    /// Waits until the tool requests a stop, then reports all known code.
    pub(crate) fn write_bodies(mut self, cx: &mut AgentCx) {
        loop {
            self.pause();
            self.absorb_changes();
            match self.channel.command() {
                Command::None => {}
                Command::Stop => break,
                Command::Gone => {
                    begin::stop(self.agent);
                    return;
                }
            }
        }
        let known = self.agent.registry.known();
        let mut runtimes = Runtimes::new(cx, &self.agent.registry, &known);
        let permanent = self.agent.program.code.permanent_bodies(|_| true);
        for body in self.history.live().chain(&permanent) {
            if body.kind == MethodKind::Il {
                let Range { start, end } = body.range;
                let (length, tier) = (end - start, body.tier);
                let map = compare_il_map(&mut runtimes, body);
                let _ = writeln!(self.text, "M {start:x} {length:x} {tier:?} {map}");
            }
        }
        let _gone = self.channel.send(self.text.as_bytes());
        begin::stop(self.agent);
    }

    /// Waits a random time, or until a wake-up.
    fn pause(&mut self) {
        let us = next_random(&mut self.random) % PAUSE_US;
        let timeout = Duration::from_micros(us);
        self.agent.waker.wait(&[self.channel.fd()], Some(timeout));
    }

    /// Handles new threads, modules and bodies.
    fn absorb_changes(&mut self) {
        let now = proc::now_ns();
        waker::clear_handler_wake();
        let program = &self.agent.program;
        program.natives.refresh();
        let threads = &program.threads;
        if now >= self.scan_due {
            self.scan_due = now + SCAN_NS;
            threads.scan(self.tid, &mut self.ids, StackProbes::All);
        }
        threads.take_stack_probes(&mut self.reader);
        self.reader.clear_wake();
        let closed = &mut self.closed;
        self.reader.drain_all(|_, _| {}, |slot| closed.push(slot));
        for slot in self.closed.drain(..) {
            threads.slot_closed(slot);
        }
        let _unwanted = (threads.take_changes(), program.natives.take_changes());
        self.history.absorb(&program.code);
        self.history.forget_removed(now);
        program.code.map().reclaim();
    }

    fn stop(&mut self, runtimes: &mut Runtimes<'_>, runtime: u8) {
        let ways = WalkKinds {
            plain: true,
            trace: true,
            seeded: true,
        };
        let targets = self.agent.program.threads.managed_of(runtime);
        let stopped = self.stopped.stop(
            runtimes,
            &mut self.reader,
            runtime,
            ways,
            targets.into_iter(),
            &mut self.seeds,
        );
        let pause = match stopped {
            Ok(pause) => pause,
            Err(NotStopped::Gone) => return,
            Err(NotStopped::Refused(error)) => {
                let _ = writeln!(self.text, "B {error}");
                return;
            }
        };
        let _ = writeln!(
            self.text,
            "T {runtime} {} {}",
            pause.stopping_ns, pause.stopped_ns
        );
        let (refused, walked) = self.seeds.take();
        if refused + walked > 0 {
            let _ = writeln!(self.text, "F {refused} {walked}");
        }
        self.history.absorb(&self.agent.program.code);
        for seen in std::mem::take(&mut self.stopped.seen) {
            if seen.plain.is_some() {
                self.write_thread(runtimes, runtime, &seen, pause.at_ns);
            }
        }
    }

    /// Writes the walks of one thread.
    fn write_thread(
        &mut self,
        runtimes: &mut Runtimes<'_>,
        runtime: u8,
        seen: &ObservedThread,
        time_ns: u64,
    ) {
        let trace = match &seen.trace {
            Some(Ok(trace)) => match EndCode(trace.end).reason() {
                None => "root".to_owned(),
                Some(reason) => format!("broken:{}", reason.replace(' ', "_")),
            },
            Some(Err(refused)) => format!("none:{refused:?}").replace(' ', "_"),
            None => "none".to_owned(),
        };
        let answer = |snap: &Option<agent::walkers::stopped::SnapshotWalk>| match snap {
            None => "none".to_owned(),
            Some(snap) => match snap.error {
                None => "ok".to_owned(),
                Some(error) => format!("{error:?}").replace(' ', "_"),
            },
        };
        let seed = match seen.seed {
            SeedState::None => "none".to_owned(),
            SeedState::Given => "given".to_owned(),
            SeedState::SeedRefusal(refused) => format!("refused:{refused:?}"),
        };
        let _ = writeln!(
            self.text,
            "W {} {trace} {} {} {seed}",
            seen.target.tid,
            answer(&seen.plain),
            answer(&seen.seeded)
        );
        let own: Vec<Traced> = match &seen.trace {
            Some(Ok(trace)) => self.stopped.traces.get(trace.frames.clone()),
            _ => None,
        }
        .unwrap_or_default()
        .to_vec();
        let mut functions = Vec::new();
        for frame in &own {
            let meaning = self.meaning(runtimes, runtime, frame.word, time_ns);
            let mut flags = String::new();
            for (flag, letter) in [(EXACT, 'e'), (BY_FRAME_POINTER, 'b'), (HEURISTIC, 'h')] {
                if frame.word & flag != 0 {
                    flags.push(letter);
                }
            }
            if flags.is_empty() {
                flags.push('-');
            }
            if meaning.kind == 'm' {
                functions.push(meaning.function);
            }
            let _ = writeln!(
                self.text,
                "s {} {flags} {:x} {:x} {:x} {:x}",
                meaning.kind,
                frame.word & ADDRESS,
                frame.sp,
                frame.bp,
                meaning.function
            );
        }
        let mut differs = false;
        let mut addresses: Vec<u64> = own.iter().map(|frame| frame.word & ADDRESS).collect();
        for (letter, snap) in [('p', &seen.plain), ('q', &seen.seeded)] {
            let Some(snap) = snap else { continue };
            let frames: &[FrameRecord] = self
                .stopped
                .frames
                .get(snap.frames.clone())
                .unwrap_or_default();
            let theirs = frames.iter().map(|frame| frame.function);
            differs |= !theirs
                .filter(|function| *function != 0)
                .eq(functions.iter().copied());
            for frame in frames {
                addresses.push(frame.ip);
                let _ = writeln!(
                    self.text,
                    "{letter} {:x} {:x} {:x}",
                    frame.ip, frame.sp, frame.function
                );
            }
        }
        if differs && self.details_left > 0 {
            self.details_left -= 1;
            addresses.sort_unstable();
            addresses.dedup();
            for address in addresses {
                self.detail(runtimes, runtime, address, time_ns);
            }
        }
        self.text.push_str(".\n");
    }

    /// Meaning of a frame's word while the runtime is suspended.
    fn meaning(
        &mut self,
        runtimes: &mut Runtimes<'_>,
        runtime: u8,
        word: u64,
        time_ns: u64,
    ) -> Meaning {
        let lookup = lookup_address(word);
        let none = |kind| Meaning { kind, function: 0 };
        let program = &self.agent.program;
        let of_body = |history: &CodeHistory| {
            let permanent = || permanent_body(&program.code.map().lookup(lookup)?);
            let body = history.at(lookup, time_ns).cloned().or_else(permanent)?;
            if body.kind != MethodKind::Il {
                return Some(none('d'));
            }
            Some(Meaning {
                kind: if body.runtime == runtime { 'm' } else { 'n' },
                function: body.function,
            })
        };
        if let Some(meaning) = of_body(&self.history) {
            return meaning;
        }
        match program.code.map().lookup(lookup) {
            Some(region) if region.kind == CodeKind::Native => none('n'),
            Some(region) if region.kind == CodeKind::ReadyToRun => {
                if Owner::of_word(region.user).runtime != runtime {
                    return none('n');
                }
                let start = program.code.map().r2r_function_start(lookup);
                let start = start.unwrap_or(lookup);
                let is_known = self.precompiled.contains_key(&start);
                if !is_known && !can_query_runtime(program.code.map(), word) {
                    return none('r');
                }
                let function = match self.precompiled.get(&start) {
                    Some(function) => *function,
                    None => {
                        let found = runtimes.with(runtime, |_, cx| {
                            let ip = usize::try_from(lookup).ok()?;
                            let function = cx.info().get_function_from_ip(cx, ip).ok()?;
                            let original = RejitId::ORIGINAL;
                            let starts = cx
                                .info()
                                .get_native_code_start_addresses(cx, function, original)
                                .unwrap_or_default();
                            // The method's start; `start` may be that of a funclet.
                            if let Some(at) = starts.into_iter().filter(|at| *at <= ip).max() {
                                let map = program.code.map();
                                self.image_maps.compare(cx, map, at as u64);
                            }
                            Some(function.raw())
                        });
                        let function = found.flatten().unwrap_or(0);
                        self.precompiled.insert(start, function);
                        function
                    }
                };
                Meaning {
                    kind: if function == 0 { 'r' } else { 'm' },
                    function,
                }
            }
            Some(region)
                if matches!(Owner::of_word(region.user).body, CodeLifetime::Unnamed(_)) =>
            {
                none('d')
            }
            // A dynamic method or a stub from before the attach: known from the next walk on.
            _ if runtimes.discover(program, lookup) => {
                self.history.absorb(&program.code);
                let is_dynamic = program.code.map().lookup(lookup).is_some();
                let or_dynamic = if is_dynamic { 'd' } else { 'u' };
                of_body(&self.history).unwrap_or(none(or_dynamic))
            }
            _ => none('u'),
        }
    }

    /// Writes code and name of an address.
    fn detail(&mut self, runtimes: &mut Runtimes<'_>, runtime: u8, address: u64, time_ns: u64) {
        let mut code = String::new();
        match code_around(address) {
            Some(bytes) => {
                for (at, byte) in bytes.iter().enumerate() {
                    let _ = write!(code, "{}{byte:02x}", if at == 16 { "|" } else { "" });
                }
            }
            None => code.push('-'),
        }
        let meaning = self.meaning(runtimes, runtime, address, time_ns);
        let name = if meaning.function == 0 {
            native_name(address)
        } else {
            self.name(runtimes, runtime, meaning.function)
        };
        let _ = writeln!(self.text, "d {address:x} {code} {name}");
    }

    fn name(&mut self, runtimes: &mut Runtimes<'_>, runtime: u8, function: usize) -> String {
        let key = (runtime, function);
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let names = runtimes.with(runtime, |clr, cx| {
            // SAFETY: the id came from this runtime a moment ago. Only the oracle resolves names
            // here, and its workloads' collectible code is named when it is compiled.
            let key = unsafe { FunctionKey::from_parts(cx.info().index(), function) }?;
            let function: FunctionId<'_> = cx.info().id(key)?;
            names::of_function(clr, cx, function)
        });
        let name = names.flatten().map_or_else(
            || "?".to_owned(),
            |names| format!("{}.{}", names.type_name, names.name),
        );
        self.names.insert(key, name.clone());
        name
    }
}

/// Reads 16 bytes before an address and 16 from it on, with a system call, which is safe for an
/// unmapped address.
fn code_around(address: u64) -> Option<[u8; 32]> {
    let mut bytes = [0u8; 32];
    let from = address.checked_sub(16)?;
    let read = own_memory::peek(from, &mut bytes).len();
    (read == 32).then_some(bytes)
}

/// `libcoreclr.so+0x1234` with the nearest exported symbol.
fn native_name(address: u64) -> String {
    // SAFETY: all-zero is a valid Dl_info; dladdr fills it in and stores no pointer to it.
    let found = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        (libc::dladdr(address as *const libc::c_void, &raw mut info) != 0).then_some(info)
    };
    let text = |pointer: *const libc::c_char| {
        // SAFETY: the strings of a Dl_info live as long as the module; the caller stores none.
        (!pointer.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(pointer) }.to_string_lossy())
    };
    match found {
        None => "?".to_owned(),
        Some(info) => {
            let file = text(info.dli_fname).unwrap_or_default();
            let file = file.rsplit('/').next().unwrap_or_default();
            let offset = address.wrapping_sub(info.dli_fbase as u64);
            match text(info.dli_sname) {
                Some(symbol) => format!("{file}+{offset:#x} {symbol}"),
                None => format!("{file}+{offset:#x}"),
            }
        }
    }
}
