//! Numbers about a recording that goes on, in the text format of Prometheus (`--metrics`).
//!
//! Invariants: only this machine is answered, one request at a time, each within [`PATIENCE`]. The
//! number of series is bounded; none is of a process, a thread or a method. No number is a secret,
//! and addresses are shown without their queries.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use profile::Profile;
use push::DeliveryWatch;

use super::worker::Outcome;

/// Time that a client has to send its request, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum length of a request.
const MAX_REQUEST: usize = 8 * 1024;
/// Maximum number of reasons of lost samples.
const MAX_REASONS: usize = 100;

/// The numbers of all intervals so far.
#[derive(Default)]
pub(super) struct Numbers {
    /// Of the last interval.
    processes: u64,
    /// By event.
    samples: BTreeMap<&'static str, u64>,
    /// By reason.
    lost: BTreeMap<String, u64>,
    broken: u64,
    /// CPU time of agents and of handlers in the processes, nanoseconds.
    cost_ns: [u64; 2],
    processes_ns: u64,
    outcome: Outcome,
}

impl Numbers {
    /// Adds an interval.
    pub(super) fn add(&mut self, profile: &Profile) {
        let health = &profile.health;
        self.processes = profile.processes.len() as u64;
        for sample in &profile.samples {
            *self.samples.entry(sample.event.name()).or_default() += 1;
        }
        for (reason, count) in &health.lost {
            let is_known = self.lost.contains_key(reason);
            let reason = match is_known || self.lost.len() < MAX_REASONS {
                true => reason.as_str(),
                false => "others",
            };
            *self.lost.entry(reason.to_owned()).or_default() += count;
        }
        self.broken += health.broken.iter().map(|(_, count)| count).sum::<u64>();
        self.cost_ns[0] += health.agent_cpu_ns;
        self.cost_ns[1] += health.handler_ns;
        self.processes_ns += health.target_cpu_ns;
    }

    pub(super) fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

/// The thread that answers.
pub(super) struct MetricsServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    numbers: Mutex<Numbers>,
    /// The stores that are pushed to.
    stores: Vec<(String, DeliveryWatch)>,
    is_over: AtomicBool,
}

impl MetricsServer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(super) fn start(
        listener: TcpListener,
        stores: Vec<(String, DeliveryWatch)>,
    ) -> Result<MetricsServer> {
        let shared = Arc::new(Shared {
            numbers: Mutex::default(),
            stores,
            is_over: AtomicBool::new(false),
        });
        let address = listener.local_addr()?;
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("metrics".into());
        let thread = thread
            .spawn(move || serve(&listener, &for_thread))
            .context("cannot start a thread")?;
        Ok(MetricsServer {
            address,
            shared,
            thread: Some(thread),
        })
    }

    /// Changes the numbers.
    pub(super) fn update(&self, change: impl FnOnce(&mut Numbers)) {
        change(&mut self.shared.numbers());
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release); // pairs with `serve`
        // Wakes the thread. If there is no connection to be had, the process ends without it.
        if TcpStream::connect_timeout(&self.address, PATIENCE).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ended = thread.join();
        }
    }
}

impl Shared {
    fn numbers(&self) -> std::sync::MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(listener: &TcpListener, shared: &Shared) {
    for stream in listener.incoming() {
        if shared.is_over.load(Ordering::Acquire) {
            return;
        }
        match stream {
            // A client that hangs up misses its answer.
            Ok(stream) => drop(answer(stream, shared)),
            // Out of descriptors, for example: not in a loop without a pause.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (status, body) = match read_path(&mut stream)?.as_deref() {
        Some("/metrics") => ("200 OK", text(shared)),
        Some(_) => ("404 Not Found", "the numbers are at /metrics\n".to_owned()),
        None => ("400 Bad Request", "GET /metrics\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Reads a request. Returns its path without a query; `None` if it is no GET.
fn read_path(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") && request.len() < MAX_REQUEST {
        let length = stream.read(&mut part)?;
        if length == 0 {
            break;
        }
        request.extend_from_slice(part.get(..length).unwrap_or_default());
    }
    let request = String::from_utf8_lossy(&request);
    let path = request
        .strip_prefix("GET ")
        .and_then(|rest| rest.split([' ', '?', '\r']).next());
    Ok(path.map(str::to_owned))
}

/// A family of series: labels and values.
type Series = Vec<(String, f64)>;

fn text(shared: &Shared) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, series: Series| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in series {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let numbers = shared.numbers();
    let one = |value: f64| vec![(String::new(), value)];
    let of = |label: &str, values: Vec<(&str, u64)>| -> Series {
        let series = values.into_iter();
        series
            .map(|(name, value)| (format!("{{{label}=\"{}\"}}", escaped(name)), value as f64))
            .collect()
    };
    family(
        "sidewalk_processes",
        "gauge",
        "Processes in the last interval.",
        one(numbers.processes as f64),
    );
    let samples = numbers
        .samples
        .iter()
        .map(|(event, count)| (*event, *count));
    family(
        "sidewalk_samples_total",
        "counter",
        "Samples by event.",
        of("event", samples.collect()),
    );
    let lost = numbers.lost.iter();
    family(
        "sidewalk_lost_samples_total",
        "counter",
        "Samples that could not be taken, by reason.",
        of(
            "reason",
            lost.map(|(reason, count)| (&**reason, *count)).collect(),
        ),
    );
    family(
        "sidewalk_broken_stacks_total",
        "counter",
        "Stacks that end early.",
        one(numbers.broken as f64),
    );
    let seconds = |ns: u64| ns as f64 / 1e9;
    let cost = ["agent", "handlers"].into_iter().zip(numbers.cost_ns);
    family(
        "sidewalk_cost_cpu_seconds_total",
        "counter",
        "CPU time of recording in the processes.",
        cost.map(|(part, ns)| (format!("{{part=\"{part}\"}}"), seconds(ns)))
            .collect(),
    );
    family(
        "sidewalk_processes_cpu_seconds_total",
        "counter",
        "CPU time of the processes, with that of recording.",
        one(seconds(numbers.processes_ns)),
    );
    let outcome = numbers.outcome;
    family(
        "sidewalk_intervals_total",
        "counter",
        "Intervals by result.",
        of(
            "result",
            vec![
                ("written", outcome.written),
                ("failed", outcome.failed),
                ("dropped", outcome.dropped),
            ],
        ),
    );
    drop(numbers);
    let stores = shared.stores.iter();
    let stores: Vec<_> = stores
        .map(|(address, watch)| (escaped(address), watch.delivery(), watch.waiting()))
        .collect();
    let mut profiles = Vec::new();
    for (target, delivery, _) in &stores {
        for (result, count) in [
            ("sent", delivery.sent),
            ("refused", delivery.refused),
            ("dropped", delivery.dropped),
            ("rejected", delivery.rejected_profiles),
        ] {
            let labels = format!("{{target=\"{target}\",result=\"{result}\"}}");
            profiles.push((labels, count as f64));
        }
    }
    family(
        "sidewalk_push_profiles_total",
        "counter",
        "Pushed profiles by result.",
        profiles,
    );
    let of_stores = |value: &dyn Fn(&push::Delivery, (u64, u64)) -> u64| -> Series {
        let series = stores.iter();
        series
            .map(|(target, delivery, waiting)| {
                let labels = format!("{{target=\"{target}\"}}");
                (labels, value(delivery, *waiting) as f64)
            })
            .collect()
    };
    family(
        "sidewalk_push_bytes_total",
        "counter",
        "Bytes of the profiles that were sent.",
        of_stores(&|delivery, _| delivery.sent_bytes),
    );
    family(
        "sidewalk_push_retries_total",
        "counter",
        "Tries after the first one.",
        of_stores(&|delivery, _| delivery.retries),
    );
    family(
        "sidewalk_push_waiting_profiles",
        "gauge",
        "Profiles in memory or in the spool.",
        of_stores(&|_, (profiles, _)| profiles),
    );
    family(
        "sidewalk_push_waiting_bytes",
        "gauge",
        "Their bytes.",
        of_stores(&|_, (_, bytes)| bytes),
    );
    let (cpu, resident) = own_use();
    family(
        "process_cpu_seconds_total",
        "counter",
        "CPU time of this tool.",
        one(cpu),
    );
    family(
        "process_resident_memory_bytes",
        "gauge",
        "Resident memory of this tool.",
        one(resident),
    );
    text
}

/// CPU time of this process in seconds, and its resident memory in bytes. 0 if unknown.
fn own_use() -> (f64, f64) {
    let Ok(stat) = procfs::process::Process::myself().and_then(|own| own.stat()) else {
        return (0.0, 0.0);
    };
    let cpu = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
    (cpu, (stat.rss * procfs::page_size()) as f64)
}

/// Escapes a label's value.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn numbers_add_up_and_are_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = MetricsServer::start(listener, Vec::new()).unwrap();
        let mut profile = Profile::default();
        profile.health.agent_cpu_ns = 2_500_000_000;
        profile.health.target_cpu_ns = 100_000_000_000;
        for reason in 0..MAX_REASONS as u64 + 7 {
            profile.health.lost.push((format!("\"{reason:03}\\"), 1));
        }
        for _ in 0..2 {
            server.update(|numbers| numbers.add(&profile));
        }
        let outcome = Outcome {
            written: 2,
            ..Outcome::default()
        };
        server.update(|numbers| numbers.set_outcome(outcome));
        let answer = ask(address, "GET /metrics?x HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        for line in [
            "sidewalk_lost_samples_total{reason=\"\\\"000\\\\\"} 2",
            "sidewalk_lost_samples_total{reason=\"others\"} 14",
            "sidewalk_cost_cpu_seconds_total{part=\"agent\"} 5",
            "sidewalk_processes_cpu_seconds_total 200",
            "sidewalk_intervals_total{result=\"written\"} 2",
        ] {
            assert!(answer.contains(&format!("\n{line}\n")), "{line}: {answer}");
        }
        let series = answer.matches("\nsidewalk_lost_samples_total{").count();
        assert_eq!(series, MAX_REASONS + 1);
        let resident = answer.split("process_resident_memory_bytes ").last();
        let resident: f64 = resident.unwrap().trim().parse().unwrap();
        assert!(resident > 1e6, "{resident}");
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400"));
        drop(TcpStream::connect(address).unwrap());
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }
}
