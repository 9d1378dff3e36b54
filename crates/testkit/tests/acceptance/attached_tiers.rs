//! Tiers of code that was compiled before we came, body by body against what the runtime says of it
//! in its perf map.
//!
//! The oracle (a test profiler built from the agent's code) is attached. It reports each method
//! body that the agent found: address, the tier that the agent inferred, and whether the agent's IL
//! map equals the runtime's. The test then requests the perf map from the runtime. The bodies still
//! exist then.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::time::Duration;

use diagnostics::{Diagnostics, PerfMap, Target};
use testkit::{JitBodies, Runtime};

on_each_web_runtime!(tiers_of_code_from_before_are_those_of_the_perf_map);

/// Time limit, far longer than a response takes.
const WAIT: Duration = Duration::from_secs(20);

fn tiers_of_code_from_before_are_those_of_the_perf_map(runtime: &Runtime) {
    let (mut compared, mut agreed) = (0u32, 0u32);
    let (mut read, mut bodies) = (0, 0);
    // Bodies that are not in the perf map: the runtime has freed them meanwhile.
    let mut gone = Vec::new();
    // Differences by the runtime's tier and ours.
    let mut wrong: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (name, arguments) in [
        ("shares", &[][..]),
        ("generic", &[]),
        ("exceptions", &[]),
        ("mixed", &[]),
        ("roslyn", &["files=4"]),
    ] {
        let found = JitBodies::of_running(runtime, name, arguments);
        let reported = tiers_of_perf_map(found.pid());
        let (mut here, mut right) = (0, 0);
        let mut maps: HashMap<&str, usize> = HashMap::new();
        for body in &found.bodies {
            let Some((length, tier, line)) = reported.get(&body.start) else {
                gone.push(format!("{name}: {body:?}"));
                continue;
            };
            *maps.entry(&body.il_map).or_default() += 1;
            assert_eq!(*length, body.length, "{line}");
            here += 1;
            if *tier == body.tier {
                right += 1;
            } else {
                let which = ((*tier).to_owned(), body.tier.clone());
                wrong.entry(which).or_default().push(line.clone());
            }
        }
        println!(
            "{name}: {} bodies, {here} in the map, {right} agree",
            found.bodies.len()
        );
        let of = |how| maps.get(how).copied().unwrap_or(0);
        let (same, unknown) = (of("same"), of("unknown"));
        let (other, unread) = (of("other"), of("unread"));
        println!(
            "{name}: IL maps: {same} the same, {unknown} unknown, {other} others, {unread} unread"
        );
        // Unknown are those that .NET 10 writes too long (`debug_info::decode`).
        assert_eq!((other, unread), (0, 0), "{name}");
        read += same;
        bodies += found.bodies.len();
        compared += u32::try_from(here).unwrap();
        agreed += right;
    }
    for ((theirs, ours), lines) in &wrong {
        println!("{theirs}, {ours} to us: {}", lines.len());
        for line in lines.iter().take(10) {
            println!("    {line}");
        }
    }
    assert!(read * 100 >= bodies * 98, "{read} of {bodies} IL maps read");
    // For all programs together: one of the fifty bodies of a small program would exceed the limit.
    assert!(gone.len() * 100 <= bodies, "{bodies} bodies but {gone:?}");
    let share = f64::from(agreed) / f64::from(compared);
    println!("{agreed} of {compared} agree, {share:.4}");
    assert!(compared > 10_000 && share >= 0.99, "{share} of {compared}");
}

/// Length, tier and line of each body, by its start.
fn tiers_of_perf_map(pid: u32) -> HashMap<u64, (u64, &'static str, String)> {
    let target = Target::new(pid).unwrap();
    let diagnostics = Diagnostics::new(&target, WAIT);
    diagnostics.enable_perf_map(PerfMap::Map).unwrap();
    diagnostics.disable_perf_map().unwrap();
    let path = format!("/tmp/perf-{pid}.map");
    let map = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    // .NET 8 writes the modules too.
    let _modules = fs::remove_file(format!("/tmp/perfinfo-{pid}.map"));
    let mut reported = HashMap::new();
    for line in map.lines() {
        // ADDRESS SIZE instance int32 [shares] Workloads.Shares::Main(string[])[QuickJitted]
        let mut words = line.split(' ');
        let mut hex = || {
            let word = words.next().unwrap();
            u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap()
        };
        let (start, length) = (hex(), hex());
        let tier = line
            .strip_suffix(']')
            .and_then(|line| line.rsplit_once(")["));
        let tier = match tier.map(|(_, tier)| tier) {
            Some("QuickJitted") => "Tier0",
            Some("InstrumentedTier") => "Tier0Instrumented",
            Some("InstrumentedTierOptimized") => "Tier1Instrumented",
            Some("OptimizedTier1") => "Tier1",
            Some("OptimizedTier1OSR") => "Osr",
            Some("Optimized") => "Optimized",
            Some("MinOptJitted") => "MinOpts",
            // Stubs have none.
            _ => continue,
        };
        reported.insert(start, (length, tier, line.to_owned()));
    }
    reported
}
