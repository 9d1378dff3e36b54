//! Tiers as we read them, against what the runtime says of itself in its perf map.

use std::collections::BTreeMap;
use std::fs;

use testkit::{Recorded, Recorder, Runtime};

on_each_runtime!(tiers_are_those_of_the_perf_map);

/// Number of compilations by method and tier.
type Compiled = BTreeMap<String, BTreeMap<String, u64>>;

fn tiers_are_those_of_the_perf_map(runtime: &Runtime) {
    let (mut agreed, mut wrong) = (0, Vec::new());
    for workload in ["shares", "leaf", "frameless", "exceptions", "gc"] {
        let recorded = Recorder::workload(runtime, workload, &["2"])
            .options(["-e", "jit", "--event-limit", "0"])
            .environment("DOTNET_PerfMapEnabled", "1")
            .environment("COMPlus_PerfMapEnabled", "1")
            .run_complete();
        let (reported, read) = (tiers_of_perf_map(&recorded), tiers_of_recording(&recorded));
        for (method, tiers) in &reported {
            for (tier, count) in tiers {
                let ours = read.get(method).and_then(|tiers| tiers.get(tier));
                if ours == Some(count) {
                    agreed += 1;
                } else {
                    wrong.push(format!("{method}, {tier}: {count}, {ours:?}"));
                }
            }
        }
        // The first picture of a newcomer shows loops that were hot from the start.
        if workload == "shares" && !runtime.is_core31() {
            for method in ["BurnHalf", "BurnQuarter", "BurnFifth", "BurnTwentieth"] {
                for tier in ["tier 0", "OSR", "tier 0 instrumented", "tier 1"] {
                    let tiers = &read[&format!("Workloads.Shares.{method}")];
                    assert!(tiers.contains_key(tier), "{method}, {tier}: {read:#?}");
                }
            }
        }
    }
    let share = f64::from(agreed) / (f64::from(agreed) + wrong.len() as f64);
    println!("{agreed} agree, {share:.3}; {wrong:#?}");
    // The rest looks like another tier, or is lines of the map that ran into each other.
    let limit = if runtime.is_core31() { 0.75 } else { 0.9 };
    assert!(agreed > 100 && share > limit, "{share}: {wrong:#?}");
}

/// Whether a method's name is the same in metadata and for users.
fn is_plain(method: &str) -> bool {
    method.starts_with("Workloads.") && !method.contains(['<', '+', '`', '|'])
}

fn tiers_of_perf_map(recorded: &Recorded) -> Compiled {
    let pid = &recorded.inspect().json["processes"][0]["pid"];
    let path = format!("/tmp/perf-{pid}.map");
    let map = fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    fs::remove_file(&path).unwrap();
    let mut compiled = Compiled::new();
    for line in String::from_utf8_lossy(&map).lines() {
        // ADDRESS SIZE int32 [shares] Workloads.Shares::Main(string[])[QuickJitted]
        let Some((_, method)) = line.split_once("] Workloads.") else {
            continue;
        };
        // Threads write at once, now and then into each other's lines.
        let Some((name, rest)) = method.split_once('(') else {
            continue;
        };
        let Some((_, tier)) = rest.rsplit_once(")[") else {
            continue;
        };
        let name = format!("Workloads.{}", name.replace("::", "."));
        let tier = match tier.split(']').next().unwrap() {
            "QuickJitted" => "tier 0",
            "InstrumentedTier" => "tier 0 instrumented",
            "OptimizedTier1" => "tier 1",
            "OptimizedTier1OSR" => "OSR",
            "Optimized" => "optimized",
            _ => continue,
        };
        if is_plain(&name) {
            let tiers = compiled.entry(name).or_default();
            *tiers.entry(tier.to_owned()).or_default() += 1;
        }
    }
    // One that was optimised at once, by its own wish, is of no tier to us.
    for tiers in compiled.values_mut().filter(|tiers| tiers.len() == 1) {
        if let Some(count) = tiers.remove("tier 1") {
            tiers.insert("optimized".to_owned(), count);
        }
    }
    compiled
}

fn tiers_of_recording(recorded: &Recorded) -> Compiled {
    let options = ["--event", "jit", "--by", "detail", "--top", "100000"];
    let report = recorded.report(&options);
    let mut compiled = Compiled::new();
    for row in report["rows"].as_array().unwrap() {
        let Some((method, tier)) = row["name"].as_str().unwrap().rsplit_once(" (") else {
            continue;
        };
        if is_plain(method) {
            let tiers = compiled.entry(method.to_owned()).or_default();
            let count = row["self_samples"].as_u64().unwrap();
            tiers.insert(tier.trim_end_matches(')').to_owned(), count);
        }
    }
    compiled
}
