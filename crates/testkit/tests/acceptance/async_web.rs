//! A web server under load: whoever burns in a service has its handler, and the handler Kestrel's
//! loop, in its logical stack.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use testkit::chance::deviation;
use testkit::{
    AsyncKind, Inspected, Machine, Recorder, Runtime, WebServer, load, logical_stacks, test_folder,
    workload_of_kind,
};

use crate::async_chains::FIRST_MET;
use crate::attach::{has_left, record};

on_each_web_runtime!(
    services_have_their_handlers,
    services_have_their_handlers_by_attaching,
    short_methods_have_their_request,
);

/// Minimum percentage of leaf samples with their handler and Kestrel's loop.
const WHOLE: f64 = 99.9;
const LOOP: &str =
    "Microsoft.AspNetCore.Server.Kestrel.Core.Internal.Http.HttpProtocol.ProcessRequests";

/// Minimum number of leaf samples.
const ENOUGH: u64 = 1_000;

on_each_runtime_async!(
    services_of_runtime_async_have_their_handlers,
    services_of_runtime_async_have_their_handlers_by_attaching,
);

fn services_have_their_handlers(runtime: &Runtime) {
    started(runtime, AsyncKind::StateMachine);
}

fn services_have_their_handlers_by_attaching(runtime: &Runtime) {
    attached(runtime, AsyncKind::StateMachine);
}

fn services_of_runtime_async_have_their_handlers(runtime: &Runtime) {
    for kind in AsyncKind::WITH_RUNTIME_ASYNC {
        started(runtime, kind);
    }
}

fn services_of_runtime_async_have_their_handlers_by_attaching(runtime: &Runtime) {
    for kind in AsyncKind::WITH_RUNTIME_ASYNC {
        attached(runtime, kind);
    }
}

fn started(runtime: &Runtime, kind: AsyncKind) {
    let program = workload_of_kind("webserver", kind).dll;
    let name = format!("webserver{}", kind.folder());
    let program = Recorder::program(runtime, &name, &program, &[]).frequency(2999);
    let (command, recording) = program.prepare();
    let machine = Machine::exclusive();
    let server = WebServer::start(command);
    let loaded = load(server.port(), &["burn"], 12, Duration::from_secs(8)).unwrap();
    server.stop();
    drop(machine);
    let requests = loaded.requests;
    println!(
        "{requests} requests; {}",
        Inspected::of(&recording).number("samples")
    );
    assert_whole(&recording, least(kind));
}

/// Covers methods that were compiled, and methods that were waiting, before the attach.
fn attached(runtime: &Runtime, kind: AsyncKind) {
    let machine = Machine::exclusive();
    let server = WebServer::start(runtime.command(&workload_of_kind("webserver", kind).dll));
    // All that a request needs has been compiled, and compiled again, by then.
    load(server.port(), &["burn"], 12, Duration::from_secs(1)).unwrap();
    let folder = test_folder("async-web-attached");
    let options = ["-d", "5s", "-F", "2999", "--engine", "perf"];
    let (recorded, requests) =
        server.under_load(&["burn"], 12, || record(server.pid(), &folder, &options));
    println!("{requests} requests");
    assert!(has_left(&recorded), "{}", recorded.answer.stderr);
    server.stop();
    drop(machine);
    assert_whole(&recorded.recording, least(kind));
}

fn least(kind: AsyncKind) -> f64 {
    match kind {
        AsyncKind::StateMachine => WHOLE,
        AsyncKind::Runtime | AsyncKind::Mixed => FIRST_MET,
    }
}

/// Nearly all samples of leaves, `least` percent of them, have their handler, and Kestrel's loop.
fn assert_whole(recording: &Path, least: f64) {
    let (mut all, mut whole) = (0, 0);
    let mut others: BTreeMap<String, u64> = BTreeMap::new();
    for (frames, count) in logical_stacks(recording, "cpu").stacks {
        // The oldest of that name.
        let place = |begin: &str| frames.iter().rposition(|frame| frame.starts_with(begin));
        let Some(leaf) = place("Workloads.Burning.Leaf") else {
            continue;
        };
        all += count;
        let (serve, handler) = (
            place("Workloads.Burning.Serve"),
            place("Workloads.WebServer.Main.lambda"),
        );
        let in_order = [Some(leaf), serve, handler, place(LOOP)];
        if in_order.iter().all(Option::is_some) && in_order.is_sorted() {
            whole += count;
        } else {
            let shown = frames.join(" < ").chars().take(400).collect();
            *others.entry(shown).or_default() += count;
        }
    }
    let mut others: Vec<_> = others.into_iter().collect();
    others.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let text: String = others
        .iter()
        .take(8)
        .map(|(stack, count)| format!("{count} {stack}\n"))
        .collect();
    println!("{whole} of {all} are whole\n{text}");
    assert!(all >= ENOUGH, "{all} samples are too few");
    let percent = whole as f64 * 100.0 / all as f64;
    let missing = (all - whole) as f64;
    let allowed = 1.0 - least / 100.0;
    assert!(
        missing <= all as f64 * allowed + deviation(all as f64, allowed),
        "{percent:.3} % of {all} samples have their handler and Kestrel's loop:\n{text}"
    );
}

/// Requests to `/cart` of a recording, enough for [`ENOUGH_SHORT`] samples.
const REQUESTS: u64 = 200_000;
/// Minimum number of samples of short methods.
const ENOUGH_SHORT: u64 = 5_000;
/// Minimum percentage of these samples with their request. 87 to 92 % on a busy machine
/// (2026-11-28).
const SHORT: f64 = 85.0;

/// The methods of a request to `/cart`, which take some instructions each: most samples are of the
/// code that resumes them and of the code that notifies those who await them.
const METHODS: [&str; 3] = [
    "Workloads.Carts.CheckOut",
    "Workloads.Carts.AskPrice",
    "Workloads.Carts.ReserveLine",
];

/// Their names, and that of the handler, in the names of boxes.
const METHODS_BETWEEN: [&str; 4] = [
    "<Carts.CheckOut>",
    "<Carts.AskPrice>",
    "<Carts.ReserveLine>",
    "<WebServer.Main.lambda#",
];

fn short_methods_have_their_request(runtime: &Runtime) {
    let mut kinds = vec![AsyncKind::StateMachine];
    if runtime.runtime_async {
        kinds.extend(AsyncKind::WITH_RUNTIME_ASYNC);
    }
    for kind in kinds {
        let program = workload_of_kind("webserver", kind).dll;
        let name = format!("webserver-short{}", kind.folder());
        let recorder = Recorder::program(runtime, &name, &program, &[]).frequency(9999);
        let (command, recording) = recorder.prepare();
        let machine = Machine::exclusive();
        let server = WebServer::start(command);
        let mut requests = 0;
        while requests < REQUESTS {
            let second = Duration::from_secs(1);
            requests += load(server.port(), &["cart"], 12, second).unwrap().requests;
        }
        server.stop();
        drop(machine);
        println!("{} {kind:?}: {requests} requests", runtime.version);
        assert_have_request(&recording);
    }
}

/// Prints the reasons of the samples of short methods that have no request.
fn assert_have_request(recording: &Path) {
    let (mut all, mut whole) = (0, 0);
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    let mut others: BTreeMap<String, u64> = BTreeMap::new();
    for (frames, count) in logical_stacks(recording, "cpu").stacks {
        let of = |begin: &str| frames.iter().rposition(|frame| frame.starts_with(begin));
        let end = frames.last().map_or("", |frame| frame.as_str());
        let method = METHODS.into_iter().filter_map(of).min();
        // The runtime's code between two methods names the method that it resumes.
        let is_between = |frame: &String| METHODS_BETWEEN.iter().any(|of| frame.contains(of));
        let is_between = end == "[async: between two methods]" && frames.iter().any(is_between);
        if method.is_none() && !is_between {
            continue;
        }
        all += count;
        let in_order = [method, of("Workloads.WebServer.Main.lambda"), of(LOOP)];
        if in_order.iter().all(Option::is_some) && in_order.is_sorted() {
            whole += count;
        } else {
            *reasons.entry(end.to_owned()).or_default() += count;
            let shown = frames.join(" < ").chars().take(600).collect();
            *others.entry(shown).or_default() += count;
        }
    }
    println!("{whole} of {all} have their request");
    for (counts, most) in [(reasons, 20), (others, 12)] {
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (what, count) in counts.into_iter().take(most) {
            println!("{count:>7} {what}");
        }
    }
    assert!(all >= ENOUGH_SHORT, "{all} samples are too few");
    let share = SHORT / 100.0;
    let least = all as f64 * share - deviation(all as f64, share);
    assert!(whole as f64 >= least, "{whole} of {all} have their request");
}
