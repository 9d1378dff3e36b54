//! Starts a program with the oracle (the test profiler `liboracle.so`), or attaches the oracle.
//!
//! The result, `WithOracle`, owns the process and the socket on which the oracle writes its lines.
//! [`agree`](mod@crate::agree) and [`bodies`] parse the lines. Invariant: the program ends when the
//! value is dropped, also when a test fails.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use control::{LoadMode, Message, PROTOCOL, ProfilerSlot, class_of, clsid_text, keys, reply, verb};
use diagnostics::{Attach, Diagnostics, Target};

use crate::layout::{oracle, target_dir};
use crate::running::Running;
use crate::runtime::Runtime;
use crate::workload::workload;

/// Seconds for which the program runs if nothing ends it earlier.
const PROGRAM_SECONDS: &str = "600";
/// For the workload `deep`, because the text of a stack of 5,000 frames has megabytes.
const DEPTH: &str = "depth=300";
/// Time limit of an attach, and of each read from the oracle.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A program and the socket of the oracle in it.
pub(crate) struct WithOracle {
    pub(crate) stream: UnixStream,
    program: OracleProgram,
}

enum OracleProgram {
    Started(KillOnDrop),
    Attached(Running),
}

/// A program that is killed when the value is dropped.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a path that is unique to this run.
fn fresh_socket(runtime: &Runtime, program: &str) -> PathBuf {
    let folder = target_dir().join("agree");
    std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let (version, own) = (&runtime.version, std::process::id());
    let socket = folder.join(format!("{program}-{version}-{own}.socket"));
    let _ = std::fs::remove_file(&socket);
    socket
}

impl WithOracle {
    /// Starts a workload with the oracle.
    pub(crate) fn started(runtime: &Runtime, program: &str, settings: &str) -> WithOracle {
        let socket = fresh_socket(runtime, program);
        let listener =
            UnixListener::bind(&socket).unwrap_or_else(|e| panic!("{}: {e}", socket.display()));
        let class = class_of(LoadMode::Startup, ProfilerSlot::Main);
        let mut command = runtime.command(&workload(program).dll);
        command
            .args([PROGRAM_SECONDS, DEPTH])
            .env("CORECLR_ENABLE_PROFILING", "1")
            .env("CORECLR_PROFILER", clsid_text(class))
            .env("CORECLR_PROFILER_PATH", oracle())
            .env("SIDEWALK_SOCKET", &socket)
            .env("SIDEWALK_CONFIG", settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let program = OracleProgram::Started(KillOnDrop(child));
        let (mut stream, _) = listener.accept().unwrap_or_else(|e| panic!("{e}"));
        stream.write_all(b"G").unwrap_or_else(|e| panic!("{e}"));
        let _ = std::fs::remove_file(&socket);
        set_read_timeout(&stream);
        WithOracle { stream, program }
    }

    /// Attaches the oracle to a workload that has reported that it is running.
    pub(crate) fn attached(
        runtime: &Runtime,
        program: &str,
        arguments: &[&str],
        settings: &str,
    ) -> WithOracle {
        let socket = fresh_socket(runtime, program);
        let mut command = runtime.command(&workload(program).dll);
        command.args(["attached", DEPTH]).args(arguments);
        let program = Running::start(command);
        let stream =
            attach(program.pid(), &socket, settings).unwrap_or_else(|e| panic!("{program:?}: {e}"));
        WithOracle {
            stream,
            program: OracleProgram::Attached(program),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        match &self.program {
            OracleProgram::Started(KillOnDrop(child)) => child.id(),
            OracleProgram::Attached(program) => program.pid(),
        }
    }

    /// The process's line in `/proc/PID/stat`, for messages.
    pub(crate) fn process_state(&self) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        stat.map_or_else(|e| e.to_string(), |stat| stat.chars().take(40).collect())
    }
}

fn set_read_timeout(stream: &UnixStream) {
    stream
        .set_read_timeout(Some(TIMEOUT))
        .unwrap_or_else(|e| panic!("{e}"));
}

fn attach(pid: u32, socket: &Path, settings: &str) -> Result<UnixStream, String> {
    let error_text = |error: &dyn std::fmt::Display| error.to_string();
    let request = |verb| Message::new(verb).with(keys::PROTOCOL, PROTOCOL);
    let target = Target::new(pid).map_err(|e| error_text(&e))?;
    let data = request(verb::ATTACH).with(keys::SOCKET, &socket.to_string_lossy());
    Diagnostics::new(&target, TIMEOUT)
        .attach_profiler(&Attach {
            clsid: class_of(LoadMode::Attached, ProfilerSlot::Main),
            library: &oracle().to_string_lossy(),
            client_data: data.to_text().as_bytes(),
            collection: TIMEOUT,
        })
        .map_err(|e| error_text(&e))?;
    let stream = control::connect(socket).map_err(|e| error_text(&e))?;
    set_read_timeout(&stream);
    control::send(&stream, &request(verb::RECORD).with(keys::CONFIG, settings))
        .map_err(|e| error_text(&e))?;
    let answer = control::receive(&stream).map_err(|e| error_text(&e))?;
    if answer.verb == reply::OK {
        Ok(stream)
    } else {
        Err(format!("{answer:?}"))
    }
}

/// A JIT-compiled method body, as the agent knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JitBody {
    /// Start address.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// The name of its `recording::Tier`.
    pub tier: String,
    /// The agent's IL map compared with the runtime's: `same`, `other`, `unknown` or `unread`.
    pub il_map: String,
}

/// A running program, and the method bodies that the agent found in it on attach.
pub struct JitBodies {
    with_oracle: WithOracle,
    /// Without dynamic methods and stubs, which have no tiers.
    pub bodies: Vec<JitBody>,
}

impl JitBodies {
    /// Attaches the oracle to a running workload and reads the bodies.
    ///
    /// # Panics
    /// When the workload cannot be started, or the attach fails.
    pub fn of_running(runtime: &Runtime, program: &str, arguments: &[&str]) -> JitBodies {
        let settings = "walker=seeded;bodies=1";
        let mut with_oracle = WithOracle::attached(runtime, program, arguments, settings);
        let stream = &mut with_oracle.stream;
        stream.write_all(b"S").unwrap_or_else(|e| panic!("{e}"));
        let mut bodies = Vec::new();
        for line in BufReader::new(&*stream).lines() {
            let line = line.unwrap_or_else(|e| panic!("{program}: {e}"));
            let body = body(&line);
            bodies.push(body.unwrap_or_else(|| panic!("{program}: not a body: {line}")));
        }
        JitBodies {
            with_oracle,
            bodies,
        }
    }

    /// Process id of the program.
    pub fn pid(&self) -> u32 {
        self.with_oracle.pid()
    }
}

fn body(line: &str) -> Option<JitBody> {
    let mut words = line.strip_prefix("M ")?.split(' ');
    let mut hex = || u64::from_str_radix(words.next()?, 16).ok();
    Some(JitBody {
        start: hex()?,
        length: hex()?,
        tier: words.next()?.to_owned(),
        il_map: words.next()?.to_owned(),
    })
}
