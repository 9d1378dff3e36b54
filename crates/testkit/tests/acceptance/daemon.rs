//! `sidewalk agent`: the processes that its configuration names are recorded, now and later, and
//! no others; when it ends, it has left them all.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use testkit::{Running, Runtime, own_address, sidewalk, stdout_of, test_folder, workload};

use crate::attach::{ends_well, send, until};
use crate::intervals::files;

on_net8_and_core31!(
    processes_of_a_machine_are_recorded_and_left,
    a_configuration_that_is_wrong_changes_nothing,
    no_secret_is_anywhere,
);

/// Starts a program with a variable by which the configuration finds it, and a secret in another.
fn program(runtime: &Runtime, mark: &str) -> Running {
    let mut command = runtime.command(&workload("exceptions").dll);
    command.arg("attached").env("SIDEWALK_TEST_MARK", mark);
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "k=s3cret-of-program");
    Running::start(command)
}

/// Writes a configuration with these rules. Other programs of this machine fit none of them.
fn configure(folder: &Path, rules: &[(String, bool)]) -> PathBuf {
    let mut text = format!(
        "[options]\nevery = '200ms'\nshort-intervals = true\noutput = '{}/x.swk'\n\
         push = 'file://{0}/pushed'\nmetrics = '{}'\n",
        folder.display(),
        metrics_address(),
    );
    for (mark, is_recorded) in rules {
        text.push_str(&format!(
            "[[process]]\nname = 'exceptions'\nrecord = {is_recorded}\n\
             environment = {{ SIDEWALK_TEST_MARK = '{mark}' }}\n"
        ));
    }
    let file = folder.join("agent.toml");
    fs::write(&file, text).unwrap();
    file
}

fn metrics_address() -> SocketAddr {
    own_address(9464)
}

/// The agent's answer about itself. `None` if it does not answer.
fn numbers() -> Option<String> {
    let mut stream = TcpStream::connect(metrics_address()).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The number of a series.
fn metric(series: &str) -> Option<f64> {
    let answer = numbers()?;
    let line = answer.lines().find_map(|line| line.strip_prefix(series))?;
    Some(line.trim().parse().unwrap())
}

/// Starts the agent, with secrets in its environment.
fn agent(config: &Path) -> Child {
    let mut agent = Command::new(sidewalk());
    agent.arg("agent").arg("--config").arg(config);
    agent.env("PYROSCOPE_BASIC_AUTH_USER", "me");
    agent.env("PYROSCOPE_BASIC_AUTH_PASSWORD", "s3cret-password");
    agent.env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret-variable");
    agent.stdin(Stdio::null()).stderr(Stdio::piped());
    agent.spawn().unwrap()
}

/// Ends the agent. Returns its messages.
fn end(mut agent: Child) -> String {
    send("-TERM", agent.id());
    let mut messages = String::new();
    let mut stderr = agent.stderr.take().unwrap();
    stderr.read_to_string(&mut messages).unwrap();
    let status = agent.wait().unwrap();
    assert!(status.success(), "{status}: {messages}");
    messages
}

/// The finished intervals. One that is being written is hidden.
fn intervals(folder: &Path) -> Vec<PathBuf> {
    let mut files = files(folder, ".swk");
    files.retain(|file| !file.file_name().unwrap().to_str().unwrap().starts_with('.'));
    files
}

/// Process ids of the processes with samples in the finished intervals.
fn recorded(folder: &Path) -> BTreeSet<u32> {
    let mut pids = BTreeSet::new();
    for file in intervals(folder) {
        let mut inspect = Command::new(sidewalk());
        let report = stdout_of(inspect.args(["inspect", "--json"]).arg(&file));
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let processes = report["processes"].as_array().unwrap().iter();
        let sampled = processes.filter(|one| one["samples"].as_u64() > Some(0));
        pids.extend(sampled.map(|one| one["pid"].as_u64().unwrap() as u32));
    }
    pids
}

/// Whether a process is being recorded, as `sidewalk list` says.
fn is_recorded(pid: u32) -> bool {
    let list = stdout_of(Command::new(sidewalk()).args(["list", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let mut processes = list["processes"].as_array().unwrap().iter();
    let process = processes.find(|one| one["pid"].as_u64() == Some(pid.into()));
    process.is_some_and(|one| one["recorded_by"].is_string())
}

fn processes_of_a_machine_are_recorded_and_left(runtime: &Runtime) {
    let folder = test_folder("machine");
    let mark = |name: &str| format!("{name} {}", folder.display());
    let (wanted, late, unwanted) = (mark("wanted"), mark("late"), mark("unwanted"));
    let rules = |is_late_recorded| {
        [
            (late.clone(), is_late_recorded),
            (unwanted.clone(), false),
            (wanted.clone(), true),
        ]
    };
    let first = program(runtime, &wanted);
    let third = program(runtime, &unwanted);
    let config = configure(&folder, &rules(true));
    let checked = stdout_of(
        Command::new(sidewalk())
            .args(["agent", "--check", "--config"])
            .arg(&config),
    );
    let line = |pid: u32, decision: &str| format!("{pid}  exceptions.dll: {decision}\n");
    assert!(
        checked.contains(&line(first.pid(), "rule 3: recorded"))
            && checked.contains(&line(third.pid(), "rule 2: not recorded")),
        "{checked}"
    );
    let agent = agent(&config);
    until("the first", || recorded(&folder).contains(&first.pid()));
    let second = program(runtime, &late);
    until("the second", || recorded(&folder).contains(&second.pid()));
    let samples = "sidewalk_samples_total{event=\"cpu\"}";
    until("numbers of both", || {
        metric("sidewalk_processes ") == Some(2.0)
    });
    assert!(metric(samples) > Some(0.0));
    configure(&folder, &rules(false));
    send("-HUP", agent.id());
    until("the second to be left", || !is_recorded(second.pid()));
    until("the first again", || is_recorded(first.pid()));
    until("numbers of one", || {
        metric("sidewalk_processes ") == Some(1.0)
    });
    let messages = end(agent);
    assert_eq!(metric("sidewalk_processes "), None);
    assert!(!messages.contains("warning"), "{messages}");
    assert!(!is_recorded(first.pid()), "{messages}");
    assert_eq!(
        recorded(&folder),
        BTreeSet::from([first.pid(), second.pid()])
    );
    let maps = fs::read_to_string(format!("/proc/{}/maps", third.pid())).unwrap();
    assert!(!maps.contains("libsidewalk"));
    let pushed = fs::read_dir(folder.join("pushed")).unwrap().count();
    assert_eq!(pushed, intervals(&folder).len());
    for program in [first, second, third] {
        ends_well(program, "\nmeasured rounds");
    }
}

fn a_configuration_that_is_wrong_changes_nothing(runtime: &Runtime) {
    let folder = test_folder("wrong");
    let mark = folder.display().to_string();
    let program = program(runtime, &mark);
    let config = configure(&folder, &[(mark, true)]);
    let agent = agent(&config);
    until("samples", || recorded(&folder).contains(&program.pid()));
    fs::write(&config, "[options]\nfrequency = 0\n").unwrap();
    send("-HUP", agent.id());
    let before = intervals(&folder).len();
    // The interval that the signal ends, and two of the next recording.
    until("more intervals", || intervals(&folder).len() > before + 2);
    let messages = end(agent);
    assert!(
        messages.contains("the configuration stays as it was") && messages.contains("frequency"),
        "{messages}"
    );
    ends_well(program, "\nmeasured rounds");
}

/// Profiles wait in the spool, since no server listens. Each place in which a token could be read
/// is searched for it.
fn no_secret_is_anywhere(runtime: &Runtime) {
    let folder = test_folder("secrets");
    let secrets = folder.join("secrets");
    fs::create_dir(&secrets).unwrap();
    let (token, headers) = (secrets.join("token"), secrets.join("headers"));
    fs::write(&token, "s3cret-token").unwrap();
    fs::write(&headers, "X-Key: s3cret-header\n").unwrap();
    let mark = folder.display().to_string();
    let program = program(runtime, &mark);
    let config = configure(&folder, &[(mark, true)]);
    let text = fs::read_to_string(&config).unwrap();
    let places = format!(
        "push = ['otlp+http://127.0.0.1:9', 'pyroscope+http://127.0.0.1:9', \
         'pprof+http://127.0.0.1:9/in?key=s3cret-query']\npush-spool = '{0}/spool'\n\
         push-token-file = '{0}/secrets/token'\npush-header-file = '{0}/secrets/headers'\n",
        folder.display()
    );
    let pushed = text
        .lines()
        .find(|line| line.starts_with("push ="))
        .unwrap();
    fs::write(&config, text.replace(&format!("{pushed}\n"), &places)).unwrap();
    let agent = agent(&config);
    until("profiles that wait", || {
        let target = "{target=\"http://127.0.0.1:9/in\"}";
        metric(&format!("sidewalk_push_waiting_profiles{target}")) >= Some(2.0)
    });
    let numbers = numbers().unwrap();
    let words = fs::read_to_string(format!("/proc/{}/cmdline", agent.id())).unwrap();
    send("-TERM", agent.id());
    let output = agent.wait_with_output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("stay in the spool"), "{messages}");
    for text in [&numbers, &words, &*messages] {
        assert!(!text.contains("s3cret"), "{text}");
    }
    fs::remove_dir_all(&secrets).unwrap();
    fs::remove_file(&config).unwrap();
    let mut files = 0;
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            let unpacked = unpack(&bytes);
            for bytes in [&bytes, &unpacked] {
                let has_secret = bytes.windows(6).any(|part| part == b"s3cret");
                assert!(!has_secret, "{}", path.display());
            }
            files += 1;
        }
    }
    assert!(files > 3, "{files}");
    ends_well(program, "\nmeasured rounds");
}

/// The content of a compressed body, or of a recording. Empty if it is neither.
fn unpack(bytes: &[u8]) -> Vec<u8> {
    let mut unpacked = Vec::new();
    if bytes.starts_with(b"\x1f\x8b") {
        let mut decoder = flate2::read::GzDecoder::new(bytes);
        decoder.read_to_end(&mut unpacked).unwrap();
    } else if let Ok(reader) = recording::Reader::open(bytes) {
        unpacked = format!("{:?}", items(reader)).into_bytes();
    }
    unpacked
}

fn items(mut reader: recording::Reader<&[u8]>) -> Vec<String> {
    let mut items = Vec::new();
    while let Ok(Some(item)) = reader.next_item() {
        items.push(format!("{item:?}"));
    }
    items
}
