//! A web server under load: whoever burns in a service has its handler, and the handler Kestrel's loop, in
//! its logical stack.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use testkit::{Client, Inspected, Machine, Record, Runtime, load, stdout_of};

on_each_web_runtime!(services_have_their_handlers);

/// Percent of the samples of leaves that must have their handler and Kestrel's loop.
const WHOLE: f64 = 99.9;
const LOOP: &str =
    "Microsoft.AspNetCore.Server.Kestrel.Core.Internal.Http.HttpProtocol.ProcessRequests";

fn services_have_their_handlers(runtime: &Runtime) {
    let program = Record::workload(runtime, "webserver", &[])
        .frequency(2999)
        .options(["--async-stacks"]);
    let (mut command, recording) = program.prepare();
    let machine = Machine::alone();
    let mut server = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(server.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let port = line.trim().strip_prefix("port ").unwrap().parse().unwrap();
    let loaded = load(port, &["burn"], 12, Duration::from_secs(8)).unwrap();
    Client::connect(port).unwrap().get("stop").unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    let ended = server.wait_with_output().unwrap();
    drop(machine);
    assert!(ended.status.success(), "{}", ended.status);
    assert!(rest.contains("result served all"), "{rest}");
    println!(
        "{} requests; {}",
        loaded.requests,
        Inspected::of(&recording).number("samples")
    );

    let mut convert = Command::new(testkit::sidewalk());
    convert
        .arg("convert")
        .arg(&recording)
        .args(["--async", "logical", "-o", "-"]);
    let (mut all, mut whole) = (0, 0);
    let mut others: BTreeMap<String, u64> = BTreeMap::new();
    for line in stdout_of(&mut convert).lines() {
        let (stack, count) = line.rsplit_once(' ').expect("a count");
        let count: u64 = count.parse().expect("a number");
        let frames: Vec<&str> = stack.split(';').collect();
        let place = |begin: &str| frames.iter().position(|frame| frame.starts_with(begin));
        let Some(leaf) = place("Workloads.Burning.Leaf") else {
            continue;
        };
        all += count;
        let (serve, handler) = (
            place("Workloads.Burning.Serve"),
            place("Workloads.WebServer.Main.lambda"),
        );
        let in_order = [place(LOOP), handler, serve, Some(leaf)];
        if in_order.iter().all(Option::is_some) && in_order.is_sorted() {
            whole += count;
        } else {
            let shown = stack.chars().rev().take(400).collect::<Vec<_>>();
            *others.entry(shown.into_iter().rev().collect()).or_default() += count;
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
    assert!(all >= 3_000, "{all} samples are too few");
    let percent = whole as f64 * 100.0 / all as f64;
    assert!(
        percent >= WHOLE,
        "{percent:.3} % of {all} samples have their handler and Kestrel's loop:\n{text}"
    );
}
