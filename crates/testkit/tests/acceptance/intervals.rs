//! Recordings that are cut into intervals while they run (`record --every`): together they have
//! what the program counts itself, no time is in two of them, and each can be read alone. They are
//! pushed to where they are wanted.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use prost::Message as _;
use recording::Record;
use testkit::{Recorder, Runtime, sidewalk, stdout_of, test_folder};

use crate::attach::{ends_well, running, send, until};
use crate::records;

on_each_runtime!(intervals_of_a_program_add_up_to_its_own_count);
on_net8_and_core31!(
    intervals_of_an_attached_program,
    profiles_sent_over_http_add_up,
    profiles_in_a_folder_are_limited,
);

/// Options that cut often: some intervals have no totals of the agent.
const OFTEN: [&str; 4] = ["--every", "200ms", "--short-intervals", "--event-limit=0"];

/// The files of the intervals with this ending, by time.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_str().unwrap().ends_with(ending));
    files.sort();
    files
}

/// Checks that intervals follow each other without a gap. Returns how many there are.
fn assert_no_gap(files: &[PathBuf]) -> usize {
    let mut last = None;
    for file in files {
        let (mut begin, mut end, mut newest) = (None, None, 0);
        for record in records(file).unwrap() {
            match record {
                Record::Process { time_ns, .. } => begin = Some(time_ns),
                Record::End { time_ns } => end = Some(time_ns),
                Record::Sample { time_ns, .. } => newest = newest.max(time_ns),
                _ => {}
            }
        }
        let name = file.display();
        assert!(begin.is_some() && end >= begin, "{name}");
        assert!(last.is_none() || begin == last, "a gap before {name}");
        assert!(newest <= end.unwrap(), "{name}");
        last = end;
    }
    files.len()
}

/// The samples of an event by name of the frames' methods, self and total, in these recordings.
fn samples(files: &[PathBuf], event: &str) -> BTreeMap<String, (u64, u64)> {
    let mut report = Command::new(sidewalk());
    report.args([
        "report", "--json", "--top", "100000", "--event", event, "--by", "method",
    ]);
    let report = stdout_of(report.args(files));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let rows = report["rows"].as_array().unwrap().iter();
    let number = |row: &serde_json::Value, key: &str| row[key].as_u64().unwrap();
    rows.map(|row| {
        let counts = (number(row, "self_samples"), number(row, "total_samples"));
        (row["name"].as_str().unwrap().to_owned(), counts)
    })
    .collect()
}

fn intervals_of_a_program_add_up_to_its_own_count(runtime: &Runtime) {
    let recorder = Recorder::workload(runtime, "exceptions", &["2"])
        .options(["-e", "cpu,exception"])
        .options(OFTEN);
    let recorded = recorder.run_complete();
    let intervals = files(recorded.recording.parent().unwrap(), ".swk");
    // The program runs 2 s, and the longest interval is one of 0.2 s and the time until its cut.
    assert!(assert_no_gap(&intervals) >= 3, "{intervals:?}");
    let thrown = recorded.answer.measured("thrown") as u64;
    let by_method = samples(&intervals, "exception");
    let of = |name: &str| {
        let row = by_method.iter().find(|(method, _)| method.contains(name));
        row.map_or((0, 0), |(_, counts)| *counts)
    };
    assert_eq!(of("Exceptions.Main").1, thrown);
    assert_eq!(of("Exceptions.CatchDeep").1, thrown / 4);
    // The same from each alone.
    let mut alone = 0;
    for interval in &intervals {
        let inspect = stdout_of(Command::new(sidewalk()).arg("inspect").arg(interval));
        assert!(
            !inspect.contains("damaged") && !inspect.contains("did not say"),
            "{inspect}"
        );
        let is_one = |record: &Record<'_>| {
            matches!(
                record,
                Record::Sample {
                    event: recording::Event::Exception,
                    ..
                }
            )
        };
        let has_one = records(interval).unwrap().iter().any(is_one);
        if has_one {
            let rows = samples(std::slice::from_ref(interval), "exception");
            alone += rows
                .iter()
                .find(|(method, _)| method.contains("Exceptions.Main"))
                .map_or(0, |(_, counts)| counts.1);
        }
    }
    assert_eq!(alone, thrown);
}

fn intervals_of_an_attached_program(runtime: &Runtime) {
    let folder = test_folder("intervals-attached");
    let program = running(runtime, "exceptions", &[]);
    let pid = program.pid();
    let mut tool = Command::new(sidewalk());
    tool.args(["record", "--pid", &pid.to_string(), "-e", "cpu"]);
    tool.args(&OFTEN[..3]).arg("-o").arg(folder.join("x.swk"));
    tool.arg("-o").arg(folder.join("x.collapsed"));
    tool.arg("--until-signal").stderr(Stdio::piped());
    let tool = tool.spawn().unwrap();
    until("four intervals", || files(&folder, ".swk").len() >= 4);
    send("-USR1", tool.id());
    let output = tool.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{message}");
    assert!(
        message.contains("the agent has detached from process"),
        "{message}"
    );
    let intervals = files(&folder, ".swk");
    assert_no_gap(&intervals);
    assert_eq!(files(&folder, ".collapsed").len(), intervals.len());
    let by_method = samples(&intervals, "cpu");
    let main = by_method
        .iter()
        .find(|(method, _)| method.contains("Exceptions.Main"));
    assert!(
        main.is_some_and(|(_, counts)| counts.1 > 0),
        "{by_method:?}"
    );
    ends_well(program, "\nmeasured rounds");
}

fn profiles_in_a_folder_are_limited(runtime: &Runtime) {
    let folder = test_folder("pushed").join("made");
    let url = format!("file://{}", folder.display());
    let recorded = Recorder::workload(runtime, "exceptions", &["2"])
        .options(["-e", "exception", "--push", &url, "--keep", "3"])
        .options(OFTEN)
        .run_complete();
    let messages = recorded.answer.stderr.lines();
    let pushed: Vec<&str> = messages
        .filter_map(|line| line.strip_prefix("sidewalk: wrote "))
        .filter(|path| path.ends_with(".pb.gz"))
        .collect();
    assert!(pushed.len() > 3, "{pushed:?}");
    let left: Vec<String> = files(&folder, "")
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    assert_eq!(left, pushed[pushed.len() - 3..]);
}

/// Requests that a server accepted: head and body.
type Accepted = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Starts a server that is busy at first. Returns its port.
fn busy_server() -> (u16, Accepted) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepted = Accepted::default();
    let shared = Arc::clone(&accepted);
    std::thread::spawn(move || {
        let mut is_busy = true;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
            let head = head.to_lowercase();
            let length = head.split("content-length: ").nth(1).unwrap();
            let mut body = vec![0; length.lines().next().unwrap().parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let status = match std::mem::take(&mut is_busy) {
                true => "503 Busy",
                false => {
                    shared.lock().unwrap().push((head, body));
                    "200 OK"
                }
            };
            let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (port, accepted)
}

fn profiles_sent_over_http_add_up(runtime: &Runtime) {
    let token = test_folder("token").join("token");
    fs::write(&token, "t0ken\n").unwrap();
    let (otlp, otlp_accepted) = busy_server();
    let (pprof, pprof_accepted) = busy_server();
    let (pyroscope, pyroscope_accepted) = busy_server();
    let otlp = format!("otlp+http://127.0.0.1:{otlp}");
    let pyroscope = format!("pyroscope+http://127.0.0.1:{pyroscope}");
    let pprof = format!("pprof+http://127.0.0.1:{pprof}/ingest?name=shop");
    let recorded = Recorder::workload(runtime, "exceptions", &["2"])
        .options(["-e", "exception", "--push", &otlp, "--push", &pprof])
        .options(["--push", &pyroscope])
        .options(["--push-token-file", token.to_str().unwrap()])
        .environment("PYROSCOPE_TENANT_ID", "ten4nt")
        .environment("PYROSCOPE_LABELS", "zone:z1")
        .options(OFTEN)
        .environment("OTEL_SERVICE_NAME", "the-shop")
        .environment("ANOTHER", "s3cret")
        .run_complete();
    assert!(!recorded.answer.stderr.contains("t0ken"));
    let thrown = recorded.answer.measured("thrown") as i64;
    let mut sum = 0;
    let mut times = Vec::new();
    let accepted = otlp_accepted.lock().unwrap();
    for (head, body) in accepted.iter() {
        assert!(
            head.starts_with("post /v1development/profiles http/1.1"),
            "{head}"
        );
        assert!(
            head.contains("\r\nauthorization: bearer t0ken\r\n"),
            "{head}"
        );
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&body[..])
            .read_to_end(&mut bytes)
            .unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("the-shop") && !text.contains("s3cret"));
        let request = ExportProfilesServiceRequest::decode(&bytes[..]).unwrap();
        let dictionary = request.dictionary.unwrap();
        let has_main = |stack: i32| {
            let stack = &dictionary.stack_table[stack as usize];
            let locations = stack.location_indices.iter();
            let lines = locations.flat_map(|at| &dictionary.location_table[*at as usize].lines);
            let mut functions = lines.map(|line| {
                let function = &dictionary.function_table[line.function_index as usize];
                &dictionary.string_table[function.name_strindex as usize]
            });
            functions.any(|name| name.contains("Exceptions.Main"))
        };
        let scopes = request
            .resource_profiles
            .iter()
            .flat_map(|one| &one.scope_profiles);
        for profile in scopes.flat_map(|scope| &scope.profiles) {
            times.push((profile.time_unix_nano, profile.duration_nano));
            let samples = profile
                .samples
                .iter()
                .filter(|sample| has_main(sample.stack_index));
            sum += samples.map(|sample| sample.values[0]).sum::<i64>();
        }
    }
    assert_eq!(sum, thrown);
    // No interval is in two of them. One without an exception is none.
    times.sort_unstable();
    assert!(times.len() > 3, "{times:?}");
    for pair in times.windows(2) {
        // The wall clock may be corrected between them.
        let end = pair[0].0 + pair[0].1;
        assert!(end <= pair[1].0 + pair[1].1 / 2, "{times:?}");
    }
    let accepted = pyroscope_accepted.lock().unwrap();
    // An interval has exceptions alone, so it is one request.
    assert_eq!(accepted.len(), times.len());
    for (head, body) in accepted.iter() {
        assert!(
            head.starts_with("post /push.v1.pusherservice/push http/1.1"),
            "{head}"
        );
        assert!(head.contains("\r\nx-scope-orgid: ten4nt\r\n"), "{head}");
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&body[..])
            .read_to_end(&mut bytes)
            .unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("the-shop") && text.contains("zone") && text.contains("z1"));
        assert!(!text.contains("s3cret") && !text.contains("ten4nt"));
    }
    // The third one has the same intervals.
    let accepted = pprof_accepted.lock().unwrap();
    assert_eq!(accepted.len(), times.len());
    let (head, body) = &accepted[0];
    assert!(
        head.starts_with("post /ingest?name=shop http/1.1"),
        "{head}"
    );
    assert!(body.starts_with(b"\x1f\x8b"));
}
