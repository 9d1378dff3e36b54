//! Bodies that the JIT of a running program has made, read from outside, as its perf map names them.

use super::*;
use crate::gc_info::{Error, GcInfo, Home, Version};
use crate::rule::Cfa;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use testkit::{Running, Runtime, workload};

/// What `own_memory::peek` is for this process.
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
        // SAFETY: one range each; the kernel checks both, and writes to the buffer no more than it has.
        let read = unsafe { libc::process_vm_readv(pid as i32, &local, 1, &remote, 1, 0) };
        buffer.get(..read.max(0) as usize).unwrap()
    }
}

/// A body with all that its header leads to.
struct Read {
    name: String,
    code: Vec<u8>,
    body: Body,
    info: GcInfo<'static>,
}

impl Read {
    fn homes(&self) -> Vec<Home> {
        gc_info::this_homes(&self.info, &self.code, &self.body.entries()).unwrap()
    }

    /// The best home's distance from the CFA.
    fn home_from_cfa(&self) -> Option<i32> {
        let home = self.homes().into_iter().next()?;
        let lookup = self.body.start + u64::from(home.live.first()?.start);
        let cfa = match self.body.rule(lookup, false) {
            Some(Rule::Frame {
                cfa: Cfa::Bp(offset),
                ..
            }) => offset,
            // Some say nothing of the frame register: `lea rbp, [rsp + n]`.
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

/// Reads all bodies that the program's perf map has, but for stubs, as of a runtime that writes this version.
fn read(pid: u32, version: Version) -> (Vec<Read>, Vec<(String, NoGcInfo)>) {
    let peek = peek_of(pid);
    let word = |address: u64| {
        let mut buffer = [0; 8];
        let bytes = peek(address, &mut buffer);
        u64::from_le_bytes(bytes.try_into().unwrap())
    };
    let map = std::fs::read_to_string(format!("/tmp/perf-{pid}.map")).unwrap();
    // The last line may be half written.
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
        // Which method it is is not the map's to say: the header's own word.
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
    for (name, value) in settings.iter().chain(&[("PerfMapEnabled", "1")]) {
        command.env(format!("DOTNET_{name}"), value);
        command.env(format!("COMPlus_{name}"), value);
    }
    Running::start(command)
}

/// How a runtime writes GcInfo.
fn version(runtime: &Runtime) -> Version {
    let major = runtime.version.split('.').next().unwrap();
    Version::of_runtime(major.parse().unwrap()).unwrap()
}

/// `this` of an async method that is resumed, in code of each tier: what is not optimised, optimised at once,
/// and optimised while its loop ran (OSR).
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
            let (bodies, refused) = read(program.pid(), version(&runtime));
            assert!(refused.is_empty() && bodies.len() > 20, "{refused:?}");
            for name in ["<OuterAsync>", "<InnerAsync>"] {
                let of = |tier: &str| {
                    let wanted = |read: &&Read| {
                        let named =
                            read.name.contains("::MoveNext()") && !read.name.contains("Box");
                        named && read.name.contains(name) && read.name.contains(tier)
                    };
                    let found = bodies.iter().find(wanted);
                    found.unwrap_or_else(|| panic!("{}: no {name} {tier}", runtime.version))
                };
                let machine = of(tier);
                let homes = machine.homes();
                let best = homes.first().unwrap();
                let lives: u32 = best.live.iter().map(|live| live.end - live.start).sum();
                assert!(best.interior && lives * 5 > machine.body.len, "{homes:?}");
                assert!(homes[1..].iter().all(|home| !home.interior), "{homes:?}");
                assert_eq!(best.tracked, tier != "[QuickJitted]", "{homes:?}");
                if tier == "[OptimizedTier1OSR]" {
                    // It has the frame that the quick code had made, and `this` is where that left it.
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

/// A runtime's bodies read as another one's would be: refused, but for a few that look like both.
#[test]
fn a_running_program_s_bodies_are_not_read_as_another_version_s() {
    for runtime in Runtime::all() {
        let program = start(&runtime, &[]);
        let wrong = match version(&runtime) {
            Version::V4 => Version::V2,
            Version::V2 | Version::V3 => Version::V4,
        };
        let (bodies, refused) = read(program.pid(), wrong);
        let all = bodies.len() + refused.len();
        assert!(
            all > 20 && bodies.len() * 50 < all,
            "{} of {all}",
            bodies.len()
        );
        let by_length = |error: &NoGcInfo| matches!(error, NoGcInfo::Bytes(Error::OtherLength(_)));
        assert!(refused.iter().filter(|(_, error)| by_length(error)).count() * 2 > all);
        assert!(program.end().1.success());
    }
}
