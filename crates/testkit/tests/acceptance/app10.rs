//! Recording of a third-party single-file app on .NET 10, with CoreCLR linked into its executable.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use testkit::{
    Inspected, Machine, Recorded, Recorder, Tools, run_sidewalk, sidewalk, start_in_time,
    stdout_of, test_folder,
};

/// Maximum percentage of broken walks while a runtime starts up.
const BROKEN: f64 = 1.0;

fn check(recorded: &Recorded) {
    let inspected = recorded.inspect();
    println!("{}", inspected.json);
    inspected.assert_honest(BROKEN, 0.5);
    let runtimes = inspected.json["runtimes"].to_string();
    assert!(runtimes.contains("10.0."), "{runtimes}");
    assert!(runtimes.contains("recorded"), "{runtimes}");
    // Whole stacks contain managed frames.
    let stacks = recorded.stacks();
    let managed = stacks
        .stacks
        .iter()
        .filter(|(frames, _)| frames.iter().any(|f| f.starts_with("System.")))
        .map(|(_, count)| count)
        .sum::<u64>();
    assert!(
        managed * 4 > stacks.total(),
        "{managed} of {} samples\n{}",
        stacks.total(),
        stacks.show(3)
    );
}

/// The app as a server on its standard input and output.
struct Server {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const HELLO: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05","#,
    r#""capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#,
);

impl Server {
    fn of(child: &mut Child) -> Server {
        Server {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
        }
    }

    /// One request, one line of answer.
    fn ask(&mut self, request: &str) -> serde_json::Value {
        writeln!(self.input, "{request}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{e}: {answer:?}"))
    }
}

#[test]
fn help_is_recorded_from_start_to_end() {
    let app = Tools::get().app10;
    let record = Recorder::command("help", [app.executable.into_os_string(), "--help".into()])
        .frequency(4999);
    let bare = record.run_bare_shared();
    let recorded = record.run();
    assert!(recorded.answer.status.success(), "{:?}", recorded.answer);
    assert_eq!(recorded.answer.stdout, bare.stdout);
    check(&recorded);
}

#[test]
fn events_of_net10_come_from_its_own_sources() {
    let app = Tools::get().app10;
    let record = Recorder::command("events", [app.executable.into_os_string(), "--help".into()])
        .options(["-e", "exception,alloc,jit", "--event-limit", "0"])
        .options(["--alloc-interval", "100k"]);
    let recorded = record.run();
    assert!(recorded.answer.status.success(), "{:?}", recorded.answer);
    let inspected = recorded.inspect();
    inspected.assert_honest(BROKEN, 0.5);
    let sources = inspected.json["sources"].to_string();
    assert!(sources.contains("AllocationSampled event"), "{sources}");
    for wanted in ["alloc", "jit"] {
        let found = inspected.event(wanted);
        assert!(
            found.is_some_and(|event| event["samples"].as_u64() > Some(0)),
            "{wanted}"
        );
    }
    // Its exceptions come from a network that is not there; where it is, it throws none.
    if inspected.event("exception").is_none() {
        return;
    }
    // The code by which .NET 9 and later throw is managed; it is not the method that threw.
    let path = recorded.convert_event("exception", "exceptions.collapsed");
    let stacks = std::fs::read_to_string(&path).unwrap();
    assert!(!stacks.contains("System.Runtime.EH"), "{stacks}");
}

/// As a user names it: by the file that runs, and by the name that it was started by.
#[test]
fn a_running_program_is_found_by_its_names() {
    let app = Tools::get().app10;
    let folder = test_folder("names");
    let file = folder.join("sidewalk-test-app");
    std::fs::copy(&app.executable, &file).unwrap();
    let link = folder.join("sidewalk-test-link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let mut command = Command::new(&link);
    let (mut child, _deadline) = start_in_time(
        command
            .args(["server", "start"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    let mut server = Server::of(&mut child);
    server.ask(HELLO);
    let recording = folder.join("recording.swk");
    for name in ["sidewalk-test-app", "sidewalk-test-link"] {
        let options = ["-e", "wall", "-d", "200ms", "-o"];
        let mut command = Command::new(sidewalk());
        command.args(["record", "--pid", name]).args(options);
        stdout_of(command.arg(&recording));
        let inspected = Inspected::of(&recording);
        let process = &inspected.json["processes"][0];
        assert_eq!(process["pid"], child.id(), "{name}: {}", inspected.json);
        let dumped = run_sidewalk(["dump", name]);
        assert!(dumped.contains("System.Threading."), "{name}: {dumped}");
    }
    drop(server);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_server_answers_while_it_is_recorded() {
    let app = Tools::get().app10;
    let record = Recorder::command(
        "server",
        [
            app.executable.into_os_string(),
            "server".into(),
            "start".into(),
        ],
    )
    .frequency(997);
    let (mut command, recording) = record.prepare();
    let machine = Machine::exclusive();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut server = Server::of(&mut child);
    let hello = server.ask(HELLO);
    assert_eq!(hello["result"]["serverInfo"]["name"], "Template MCP Server");
    for id in 1..=500 {
        let answer = server.ask(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#
        ));
        assert_eq!(
            (&answer["id"], answer["result"]["tools"].is_array()),
            (&id.into(), true)
        );
    }
    // The server ends when its input does.
    drop(server);
    let output = child.wait_with_output().unwrap();
    drop(machine);
    let recorded = Recorded::new(recording, output);
    assert!(recorded.answer.status.success(), "{:?}", recorded.answer);
    check(&recorded);
    assert!(Inspected::of(&recorded.recording).number("samples") >= 100.0);
}
