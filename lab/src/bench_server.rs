//! Cost of recording a web server: part of `cargo xtask bench`.
//!
//! One server for each way of watching, all alive at once, each under load for a moment in turn:
//! what the machine does meanwhile hits all alike. CPU time and requests are what the server says
//! of itself, so the load's own CPU time is not in it, nor that of a tool beside the process.
//! Invariant: every answer is checked; a wrong one ends the bench.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::{Client, Loaded, Runtime, SERVING, load};

use crate::bench::median;
use crate::bench_programs::{Headline, Spread};
use crate::bench_ways::Observer;

const WAYS: &[Observer] = &[
    Observer::None,
    Observer::NoneAgain,
    Observer::Sidewalk("-F 99"),
    Observer::Sidewalk("-F 99 --engine timer"),
    Observer::Sidewalk("-F 99 --engine perf"),
    Observer::Sidewalk("-F 999"),
    Observer::Sidewalk("-F 99 -e wall"),
    Observer::Sidewalk("-F 99 -e cpu,exception,alloc,contention,gc"),
    Observer::EventPipe,
    Observer::Perf,
];

/// Connections at once, as the load generators of web servers have them.
const CONNECTIONS: usize = 16;
/// How long a server is under load before anything counts: its code is compiled anew meanwhile.
const WARM_UP: Duration = Duration::from_secs(4);

/// A server that runs.
pub(crate) struct BenchServer {
    way: Observer,
    running: testkit::WebServer,
    bursts: Vec<Burst>,
}

/// A server's time under load.
pub(crate) struct Burst {
    pub(crate) cpu_us: f64,
    pub(crate) requests: f64,
    pub(crate) loaded: Loaded,
}

impl BenchServer {
    /// One that is watched in this way.
    pub(crate) fn start(runtime: &Runtime, way: Observer, folder: &Path) -> Result<BenchServer> {
        let workload = testkit::workload("webserver");
        let folder = folder.join(way.name().replace([' ', ','], "-"));
        std::fs::create_dir_all(&folder)?;
        let mut command = way.command(runtime, &workload.dll, &folder);
        command.stderr(Stdio::null());
        Ok(BenchServer {
            way,
            running: testkit::WebServer::start(command),
            bursts: Vec::new(),
        })
    }

    /// Its process: of a way that starts the program itself.
    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Load that does not count: code is compiled anew meanwhile.
    pub(crate) fn warm_up(&self) -> Result<()> {
        load(self.running.port(), SERVING, CONNECTIONS, WARM_UP)
            .with_context(|| format!("a server watched by {}", self.way.name()))?;
        Ok(())
    }

    /// CPU time in microseconds, and requests, so far.
    fn account(&self) -> Result<(f64, f64)> {
        let mut client = Client::connect(self.running.port())?;
        let text = client.get("cpu")?;
        let (cpu, requests) = text
            .split_once(' ')
            .context("/cpu answers no two numbers")?;
        Ok((cpu.parse::<f64>()? / 1000.0, requests.parse()?))
    }

    /// Its time under load for so long.
    pub(crate) fn burst(&self, duration: Duration) -> Result<Burst> {
        let before = self.account()?;
        let loaded = load(self.running.port(), SERVING, CONNECTIONS, duration)
            .with_context(|| format!("a server watched by {}", self.way.name()))?;
        let after = self.account()?;
        let requests = after.1 - before.1;
        // The second question for the account is among them.
        ensure!(
            (requests - loaded.requests as f64 - 1.0).abs() < 1.5,
            "the server counts {requests} requests, the load {}",
            loaded.requests
        );
        Ok(Burst {
            cpu_us: after.0 - before.0,
            requests,
            loaded,
        })
    }

    /// Ends it, and checks that it ended as it should.
    pub(crate) fn stop(self) {
        self.running.stop();
    }
}

/// The rows of one runtime as text, and what the page may lead with.
pub(crate) fn measure(
    runtime: &Runtime,
    pairs: usize,
    burst: Duration,
    folder: &Path,
    lead: &mut Vec<Headline>,
) -> Result<String> {
    let mut servers = Vec::new();
    for way in WAYS.iter().filter(|way| way.missing().is_none()) {
        eprintln!("web server on {}: {}", runtime.version, way.name());
        let server = BenchServer::start(runtime, *way, folder)?;
        server.warm_up()?;
        servers.push(server);
    }
    for number in 0..pairs {
        eprintln!(
            "web server on {}: round {} of {pairs}",
            runtime.version,
            number + 1
        );
        let count = servers.len();
        for step in 0..count {
            let server = &mut servers[(step + number) % count];
            let counted = server.burst(burst)?;
            server.bursts.push(counted);
        }
    }
    let mut out = String::new();
    let cpu = |burst: &Burst| burst.cpu_us / burst.requests;
    let rate = |burst: &Burst| burst.loaded.requests as f64 / burst.loaded.seconds;
    for server in &servers {
        let ratio = |of: &dyn Fn(&Burst) -> f64| {
            let both = server.bursts.iter().zip(&servers[0].bursts);
            Spread::of(both.map(|(with, bare)| of(with) / of(bare)))
        };
        let of = |pick: &dyn Fn(&Burst) -> f64| median(server.bursts.iter().map(pick));
        let (us, a_second) = (of(&cpu), of(&rate));
        let (p50, p99) = (of(&|b| b.loaded.p50_us), of(&|b| b.loaded.p99_us));
        let (cpus, rates) = (ratio(&cpu), ratio(&rate));
        let ratios = if server.way == Observer::None {
            [String::new(), String::new()]
        } else {
            [cpus.to_string(), rates.to_string()]
        };
        let [cpu_ratio, rate_ratio] = ratios;
        let _ = writeln!(
            out,
            "| {} | {} | {us:.1} µs | {cpu_ratio} | {a_second:.0} | {rate_ratio} | {p50:.0} µs | {p99:.0} µs |",
            runtime.version,
            server.way.name()
        );
        if matches!(server.way, Observer::Sidewalk(_)) {
            lead.push(Headline {
                what: format!(
                    "webserver on {}, {}, a request",
                    runtime.version,
                    server.way.name()
                ),
                cpu: cpus,
                wall: None,
            });
        }
    }
    for way in WAYS {
        if let Some(why) = way.missing() {
            let _ = writeln!(
                out,
                "| {} | {} | {why} | | | | | |",
                runtime.version,
                way.name()
            );
        }
    }
    for server in servers {
        server.stop();
    }
    Ok(out)
}

/// Head of the table of [`measure`].
pub(crate) const HEAD: &str = "\nA web server (ASP.NET Core on Kestrel: plain text, JSON, async services, regular expressions) under a load that checks each answer, 16 connections; one server for each row, all alive at \
     once, under load in turn. CPU time is the server's by its requests; ratios to the bare server of the same round.\n\n\
     | .NET | watched by | CPU time a request | ratio | requests a second | ratio | half within | 99 % within |\n\
     | --- | --- | --: | --: | --: | --: | --: | --: |\n";
