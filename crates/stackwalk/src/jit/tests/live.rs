//! Tests with JITted bodies of a running program, read from another process by its perf map.

use super::*;
use crate::gc_info::{Error, GcInfo, Home, Version};
use crate::rule::{Bp, Cfa};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use testkit::{Running, Runtime, workload};

/// Returns the equivalent of `own_memory::peek` for this process.
fn peek_of(pid: u32) -> impl Fn(u64, &mut [u8]) -> &[u8] {
    move |address, buffer| {
        let local = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let remote = libc::iovec {
            iov_base: address as *mut libc::c_void,
            iov_len: buffer.len(),
        };
        // SAFETY: one range each; the kernel checks both, and writes to the buffer no more than it
        // has.
        let read = unsafe { libc::process_vm_readv(pid as i32, &local, 1, &remote, 1, 0) };
        buffer.get(..read.max(0) as usize).unwrap()
    }
}

/// A body with all data that its header leads to.
struct Read {
    name: String,
    code: Vec<u8>,
    body: Body,
    info: GcInfo<'static>,
}

impl Read {
    fn is_state_machine(&self) -> bool {
        let name = &self.name;
        name.contains("Async>d__") && name.contains("::MoveNext()") && !name.contains("Box")
    }

    fn homes(&self) -> Vec<Home> {
        gc_info::this_homes(&self.info, &self.code, &self.body.functions.begins()).unwrap()
    }

    /// Returns the distance of the best home (slot of `this`) from the CFA.
    fn home_from_cfa(&self) -> Option<i32> {
        let home = self.homes().into_iter().next()?;
        let lookup = self.body.start + u64::from(home.live.first()?.start);
        let cfa = match self.body.rule(lookup, false) {
            Some(Rule::Frame {
                cfa: Cfa::Bp(offset),
                ..
            }) => offset,
            // Some codes omit the frame register: `lea rbp, [rsp + n]`.
            Some(Rule::Frame {
                cfa: Cfa::Sp(offset),
                ..
            }) => offset - self.frame_from_sp(),
            other => panic!("{}: {other:?}", self.name),
        };
        Some(home.offset - cfa)
    }

    fn frame_from_sp(&self) -> i32 {
        let mut decoder = Decoder::with_ip(64, &self.code, 0, DecoderOptions::NONE);
        let sets = |instruction: &Instruction| {
            instruction.mnemonic() == Mnemonic::Lea
                && instruction.op0_register() == Register::RBP
                && instruction.memory_base() == Register::RSP
        };
        let lea = decoder.iter().find(sets).unwrap();
        lea.memory_displacement64() as i32
    }
}

/// Reads all bodies of the program's perf map except stubs, as of a runtime that writes this
/// version.
fn read(pid: u32, version: Version) -> (Vec<Read>, Vec<(String, NoGcInfo)>) {
    let peek = peek_of(pid);
    let word = |address: u64| {
        let mut buffer = [0; 8];
        let bytes = peek(address, &mut buffer);
        u64::from_le_bytes(bytes.try_into().unwrap())
    };
    let map = std::fs::read_to_string(format!("/tmp/perf-{pid}.map")).unwrap();
    // The last line may be incomplete.
    let whole = &map[..map.rfind('\n').unwrap()];
    let (mut bodies, mut refused) = (Vec::new(), Vec::new());
    for line in whole.lines() {
        let mut parts = line.splitn(3, ' ');
        let mut hex = || {
            let digits = parts.next().unwrap().trim_start_matches("0x");
            u64::from_str_radix(digits, 16).unwrap()
        };
        let (start, length) = (hex(), hex());
        let name = parts.next().unwrap().to_owned();
        let tier = ["[QuickJitted]", "[Optimized", "[InstrumentedTier"];
        if !tier.iter().any(|tier| name.contains(tier)) {
            continue;
        }
        // The map does not contain the method; the header does.
        let method = word(word(start - 8) + 24);
        match gc_info_by(&peek, start, method, version) {
            Ok((body, info)) => {
                assert_eq!(u64::from(info.code_length()), length, "{name}");
                let mut code = vec![0; length as usize];
                assert_eq!(peek(start, &mut code).len(), length as usize);
                bodies.push(Read {
                    name,
                    code,
                    body,
                    info,
                });
            }
            Err(error) => refused.push((name, error)),
        }
    }
    (bodies, refused)
}

fn start(runtime: &Runtime, settings: &[(&str, &str)]) -> Running {
    let mut command = runtime.command(&workload("async").dll);
    command.arg("attached");
    // Settings that avoid collections, which would move the inspected objects.
    let always = [("PerfMapEnabled", "1"), ("GCgen0size", "10000000")];
    for (name, value) in settings.iter().chain(&always) {
        command.env(format!("DOTNET_{name}"), value);
        command.env(format!("COMPlus_{name}"), value);
    }
    Running::start(command)
}

/// Returns the version of GcInfo that a runtime writes.
fn version(runtime: &Runtime) -> Version {
    let major = runtime.version.split('.').next().unwrap();
    Version::of_runtime(major.parse().unwrap()).unwrap()
}

/// The program's async methods.
const MACHINES: [&str; 2] = ["<OuterAsync>", "<InnerAsync>"];

/// The body of this tier of an async method's state machine.
fn machine<'a>(bodies: &'a [Read], name: &str, tier: &str) -> Option<&'a Read> {
    bodies.iter().find(|read| {
        let is_machine = read.name.contains("::MoveNext()") && !read.name.contains("Box");
        is_machine && read.name.contains(name) && read.name.contains(tier)
    })
}

/// A resumed async method has a home for `this` in code of each tier: unoptimised, optimised at
/// once, and optimised while its loop ran (OSR).
#[test]
fn a_running_program_s_state_machines_have_a_home_for_this() {
    for runtime in Runtime::all() {
        let quick = [("TC_QuickJitForLoops", "1")];
        let optimised = [("TieredCompilation", "0")];
        let mut tiers = vec![("[QuickJitted]", &quick), ("[Optimized", &optimised)];
        if !runtime.is_core31() {
            tiers.push(("[OptimizedTier1OSR]", &quick));
        }
        for (tier, settings) in tiers {
            let program = start(&runtime, settings);
            let bodies = loop {
                let (bodies, refused) = read(program.pid(), version(&runtime));
                assert!(refused.is_empty(), "{refused:?}");
                // A busy machine gives the program less time until it says that it is ready.
                if MACHINES
                    .iter()
                    .all(|name| machine(&bodies, name, tier).is_some())
                {
                    break bodies;
                }
            };
            for name in MACHINES {
                let of = |tier: &str| machine(&bodies, name, tier).unwrap();
                let machine = of(tier);
                let homes = machine.homes();
                let best = homes.first().unwrap();
                let lives: u32 = best.live.iter().map(|live| live.end - live.start).sum();
                assert!(best.interior && lives * 5 > machine.body.len, "{homes:?}");
                assert!(homes[1..].iter().all(|home| !home.interior), "{homes:?}");
                assert_eq!(best.tracked, tier != "[QuickJitted]", "{homes:?}");
                if tier == "[OptimizedTier1OSR]" {
                    // It has the frame that the unoptimised code made, with `this` in the same
                    // slot.
                    assert!(machine.body.begins_on_a_frame() && !best.stored);
                    let before = of("[QuickJitted]");
                    assert_eq!(machine.home_from_cfa(), before.home_from_cfa());
                } else {
                    assert!(best.stored, "{homes:?}");
                }
            }
            assert!(program.end().1.success());
        }
    }
}

/// Bodies decoded as another version's are rejected, except for a few that fit both.
#[test]
fn a_running_program_s_bodies_are_not_read_as_another_version_s() {
    for runtime in Runtime::all() {
        let program = start(&runtime, &[]);
        let wrong = match version(&runtime) {
            Version::V4 => Version::V2,
            Version::V2 | Version::V3 => Version::V4,
        };
        let (bodies, refused) = loop {
            let (bodies, refused) = read(program.pid(), wrong);
            // So many are compiled sooner or later: the program runs until its input ends.
            if bodies.len() + refused.len() > 20 {
                break (bodies, refused);
            }
        };
        let all = bodies.len() + refused.len();
        assert!(bodies.len() * 50 < all, "{} of {all}", bodies.len());
        let by_length = |error: &NoGcInfo| matches!(error, NoGcInfo::Bytes(Error::OtherLength(_)));
        assert!(refused.iter().filter(|(_, error)| by_length(error)).count() * 2 > all);
        assert!(program.end().1.success());
    }
}

/// A traced thread.
struct Tracee(libc::pid_t);

impl Tracee {
    fn request(&self, request: libc::c_uint, data: *mut libc::c_void) -> bool {
        // SAFETY: the requests used write at most a `user_regs_struct`, which the caller has given.
        unsafe { libc::ptrace(request, self.0, std::ptr::null_mut::<libc::c_void>(), data) == 0 }
    }

    /// Whether the thread is running.
    fn runs(&self, pid: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{}/stat", self.0));
        stat.is_ok_and(|stat| stat.contains(") R "))
    }

    /// Stops the thread at any point, passes its registers to `then`, and lets it continue. `None`
    /// if it has ended.
    fn stopped<T>(&self, then: impl FnOnce(&libc::user_regs_struct) -> T) -> Option<T> {
        self.stopped_until(libc::PTRACE_CONT, then)
    }

    fn stopped_until<T>(
        &self,
        end: libc::c_uint,
        then: impl FnOnce(&libc::user_regs_struct) -> T,
    ) -> Option<T> {
        let mut status = 0;
        if !self.request(libc::PTRACE_INTERRUPT, std::ptr::null_mut()) {
            return None;
        }
        // SAFETY: writes the status.
        let waited = unsafe { libc::waitpid(self.0, &mut status, libc::__WALL) };
        if waited != self.0 || !libc::WIFSTOPPED(status) {
            return None;
        }
        // SAFETY: numbers only.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let known = self.request(libc::PTRACE_GETREGS, (&raw mut registers).cast());
        let answer = known.then(|| then(&registers));
        // A signal for which it was stopped is delivered.
        let signal = if status >> 16 == 0 {
            libc::WSTOPSIG(status)
        } else {
            0
        };
        self.request(end, signal as usize as *mut libc::c_void);
        answer
    }
}

/// Traces the program's threads that are not traced yet.
fn trace(pid: u32, threads: &mut Vec<Tracee>) {
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let task = task.unwrap().file_name();
        let thread = Tracee(task.to_string_lossy().parse().unwrap());
        let is_new = threads.iter().all(|known| known.0 != thread.0);
        if is_new && thread.request(libc::PTRACE_SEIZE, std::ptr::null_mut()) {
            threads.push(thread);
        }
    }
}

/// Statistics of frames of state machines' code. A frame that is unchanged since the thread's last
/// stop is not counted again, because the thread may be waiting in it.
#[derive(Default, Debug)]
struct Seen {
    /// Instruction and stack pointer of the frame last seen on each thread.
    last: std::collections::BTreeMap<libc::pid_t, (u64, u64)>,
    resumed: u32,
    first_runs: u32,
    not_live: u32,
    /// Names of bodies with frames of a resumed method.
    bodies: std::collections::BTreeSet<String>,
    wrong: Vec<String>,
    /// Wrong results while the thread was in the runtime. A running collection may have stored an
    /// object's new address before the object is there.
    moving: Vec<String>,
}

impl Seen {
    /// Checks a frame at `lookup` whose stack continues at `sp`. The pair has the thread and
    /// whether it was stopped in managed code, where no collection moves objects.
    fn frame(
        &mut self,
        peek: &impl Fn(u64, &mut [u8]) -> &[u8],
        (thread, is_in_managed): (libc::pid_t, bool),
        read: &Read,
        lookup: u64,
        sp: u64,
        bp: u64,
    ) {
        if self.last.insert(thread, (lookup, sp)) == Some((lookup, sp)) {
            return;
        }
        let offset = (lookup - read.body.start) as u32;
        let homes = read.homes();
        let home = homes.first().unwrap();
        if !home.live.iter().any(|live| live.contains(&offset)) {
            self.not_live += 1;
            return;
        }
        let words = |at: u64| {
            let mut buffer = [0; 64];
            let bytes = peek(at, &mut buffer).as_chunks::<8>().0;
            bytes
                .iter()
                .map(|word| u64::from_le_bytes(*word))
                .collect::<Vec<_>>()
        };
        let this = words(bp.wrapping_add_signed(home.offset.into()));
        let this = this.first().copied().unwrap_or(0);
        if (sp..sp + (8 << 20)).contains(&this) {
            self.first_runs += 1;
        // The builder refers to the box, which contains the state machine.
        } else if words(this)
            .iter()
            .any(|task| *task < this && this - task < 512)
        {
            self.resumed += 1;
            self.bodies.insert(read.name.clone());
        } else {
            let found = format!("{this:#x} at {offset} of {} ({home:?})", read.name);
            if is_in_managed {
                self.wrong.push(found);
            } else {
                self.moving.push(found);
            }
        }
    }
}

/// Checks the home of the youngest frame of a state machine.
fn look(
    bodies: &[Read],
    seen: &mut Seen,
    peek: &impl Fn(u64, &mut [u8]) -> &[u8],
    thread: libc::pid_t,
    registers: &libc::user_regs_struct,
) {
    let (mut ip, mut sp, mut bp) = (registers.rip, registers.rsp, registers.rbp);
    let at = |ip: u64| {
        let has = |read: &&Read| (read.body.start..read.body.end()).contains(&ip);
        bodies.iter().find(has)
    };
    let is_in_managed = at(ip).is_some();
    for depth in 0..64 {
        let lookup = ip - u64::from(depth > 0);
        if let Some(read) = at(lookup) {
            // State machines below have only completed an operation.
            if read.is_state_machine() {
                seen.frame(peek, (thread, is_in_managed), read, lookup, sp, bp);
                return;
            }
            // The OSR body continues on the unoptimised frame, without a return address between
            // them.
            if read.body.begins_on_a_frame() {
                return;
            }
        }
        let mut buffer = [0; 16];
        let &[next, back] = peek(bp, &mut buffer).as_chunks::<8>().0 else {
            return;
        };
        let next = u64::from_le_bytes(next);
        if bp < sp || next <= bp {
            return;
        }
        (ip, sp, bp) = (u64::from_le_bytes(back), bp + 16, next);
        if ip < 4096 {
            return;
        }
    }
}

/// At any stop of a running program, a home holds the state machine: in its box or, on its first
/// run, on the stack.
#[test]
fn homes_hold_the_state_machine_wherever_a_program_is_stopped() {
    // Methods keep their first code, are replaced over time, or are optimised at once.
    let first = [
        ("TC_QuickJitForLoops", "1"),
        ("TC_CallCountThreshold", "1000000"),
        ("TC_OnStackReplacement", "0"),
    ];
    let tiered = [("TC_QuickJitForLoops", "1")];
    let optimised = [("TieredCompilation", "0")];
    for runtime in Runtime::all() {
        for (settings, tier) in [
            (&first[..], "[QuickJitted]"),
            (&tiered, "[Optimized"),
            (&optimised, "[Optimized"),
        ] {
            let program = start(&runtime, settings);
            let pid = program.pid();
            let peek = peek_of(pid);
            let mut threads = Vec::new();
            let mut seen = Seen::default();
            let mut stops = 0;
            while seen.resumed < 60 {
                trace(pid, &mut threads);
                let (bodies, _) = read(pid, version(&runtime));
                for thread in (0..100)
                    .flat_map(|_| &threads)
                    .filter(|thread| thread.runs(pid))
                {
                    stops += 1;
                    thread.stopped(|registers| {
                        look(&bodies, &mut seen, &peek, thread.0, registers);
                    });
                }
                assert!(stops < 50_000, "{}: {seen:#?}", runtime.version);
            }
            for thread in &threads {
                thread.stopped_until(libc::PTRACE_DETACH, |_| ());
            }
            assert!(program.end().1.success());
            println!("{} {settings:?}: {stops} stops, {seen:#?}", runtime.version);
            assert!(seen.wrong.is_empty(), "{}: {seen:#?}", runtime.version);
            // A wrong home is wrong each time.
            let moving = seen.moving.len() as u32;
            assert!(
                moving * 20 <= seen.resumed,
                "{}: {seen:#?}",
                runtime.version
            );
            assert!(
                seen.bodies.iter().any(|name| name.contains(tier)),
                "{seen:#?}"
            );
            assert!(seen.not_live * 4 < seen.resumed, "{seen:#?}");
        }
    }
}

/// Registers of a frame, after its callees have preserved them.
struct Frame {
    ip: u64,
    sp: u64,
    bp: u64,
    /// Values of [`Saved::REGISTERS`].
    values: [u64; 5],
}

impl Frame {
    fn of(registers: &libc::user_regs_struct) -> Self {
        let r = registers;
        Self {
            ip: r.rip,
            sp: r.rsp,
            bp: r.rbp,
            values: [r.rbx, r.r12, r.r13, r.r14, r.r15],
        }
    }

    /// Returns the caller of this frame, which has code `code`, at `lookup`.
    fn caller(self, code: &Body, lookup: u64, word: impl Fn(u64) -> u64) -> Option<Self> {
        let Some(Rule::Frame { cfa, bp, .. }) = code.rule(lookup, false) else {
            return None;
        };
        let cfa = match cfa {
            Cfa::Sp(offset) => self.sp.wrapping_add_signed(offset.into()),
            Cfa::Bp(offset) => self.bp.wrapping_add_signed(offset.into()),
            _ => return None,
        };
        let mut values = self.values;
        for (value, offset) in values.iter_mut().zip(code.saved(lookup)?.offsets()) {
            if offset != 0 {
                *value = word(cfa.wrapping_add_signed(offset.into()));
            }
        }
        let bp = match bp {
            Bp::Same => self.bp,
            Bp::FromCfa(offset) => word(cfa.wrapping_add_signed(offset.into())),
            Bp::FromOwn(offset) => word(self.bp.wrapping_add_signed(offset.into())),
        };
        Some(Self {
            ip: word(cfa - 8),
            sp: cfa,
            bp,
            values,
        })
    }
}

/// The box is also in a frame of `box.MoveNext(Thread)`, the caller of the state machine: in a
/// register that its callees have saved. It is the box that the state machine's own home leads to.
#[test]
fn a_box_is_also_in_what_the_callees_of_its_frame_have_saved() {
    // All code is JITted and optimised, so that all frames are known.
    let settings = [("ReadyToRun", "0"), ("TieredCompilation", "0")];
    for runtime in Runtime::all() {
        let program = start(&runtime, &settings);
        let pid = program.pid();
        let peek = peek_of(pid);
        let word = |at: u64| {
            let mut buffer = [0; 8];
            let bytes = peek(at, &mut buffer).first_chunk();
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let (mut threads, mut stops, mut agree) = (Vec::new(), 0, 0);
        let (bodies, refused) = read(pid, version(&runtime));
        assert!(refused.is_empty());
        let body_at = |address: u64| {
            let has = |read: &&Read| (read.body.start..read.body.end()).contains(&address);
            bodies.iter().find(has)
        };
        // Returns the boxes that a stopped thread's frame of `box.MoveNext(Thread)` may have, and
        // the state machine.
        let look = |registers: &libc::user_regs_struct| {
            let mut frame = Frame::of(registers);
            let machine = body_at(frame.ip).filter(|read| read.is_state_machine())?;
            let home = machine.homes().into_iter().next()?;
            let offset = (frame.ip - machine.body.start) as u32;
            home.live.iter().find(|live| live.contains(&offset))?;
            let this = word(frame.bp.wrapping_add_signed(home.offset.into()));
            if (frame.sp..frame.sp + (8 << 20)).contains(&this) {
                // It runs for the first time: a box below is another machine's.
                return None;
            }
            let mut lookup = frame.ip;
            for _ in 0..6 {
                frame = frame.caller(&body_at(lookup)?.body, lookup, word)?;
                lookup = frame.ip.checked_sub(1)?;
                let read = body_at(lookup)?;
                // 8.0 writes some of these names without their last letter.
                // .NET 11 has a second argument.
                if !read.name.contains("Box`1[")
                    || !read.name.contains("(class System.Threading.Thread")
                {
                    continue;
                }
                let at = (frame.ip - read.body.start) as u32;
                let slots = gc_info::live_at_return(&read.info, at).unwrap().unwrap();
                let held = slots.iter().map(|slot| match slot.place {
                    gc_info::ReferencePlace::Register(number) => {
                        let known = Saved::REGISTERS.iter().position(|known| *known == number);
                        frame.values[known.unwrap()]
                    }
                    gc_info::ReferencePlace::Stack { offset, .. } => {
                        word(frame.bp.wrapping_add_signed(offset.into()))
                    }
                });
                return Some((this, held.collect::<Vec<_>>(), slots.clone()));
            }
            None
        };
        while agree < 20 {
            trace(pid, &mut threads);
            for thread in (0..20)
                .flat_map(|_| &threads)
                .filter(|thread| thread.runs(pid))
            {
                stops += 1;
                if let Some((this, held, slots)) = thread.stopped(look).flatten() {
                    let near = |held: &u64| *held < this && this - *held < 512;
                    let is_there = held.iter().any(near);
                    assert!(
                        is_there,
                        "{}: {this:#x} {held:x?} {slots:?}",
                        runtime.version
                    );
                    agree += 1;
                }
            }
            assert!(stops < 50_000, "{}: {agree} of {stops}", runtime.version);
        }
        for thread in &threads {
            thread.stopped_until(libc::PTRACE_DETACH, |_| ());
        }
        assert!(program.end().1.success());
        println!("{}: {agree} of {stops} stops", runtime.version);
    }
}
