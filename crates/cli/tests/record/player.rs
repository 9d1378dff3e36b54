//! The recorded program (player): performs the actions in its arguments, one after the other.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, ExitCode};

use recording::{Event, Frame, MethodKind, ModuleKind, ProcessKey, Record, Tier, WalkEnd, Writer};

/// First argument of a test program that runs as the player.
pub(crate) const PLAY: &str = "--play";

/// State of the simulated agent of one process.
struct Agent {
    stream: UnixStream,
    writer: Writer,
}

/// Performs the actions. The exit code is that of `exit=N`, else 0.
pub(crate) fn play(actions: &[String]) -> ExitCode {
    let mut agent: Option<Agent> = None;
    for action in actions {
        let (verb, value) = action.split_once('=').unwrap_or((action, ""));
        match verb {
            "print" => print_line(value),
            // Without a line end.
            "write" => {
                let mut out = io::stdout();
                out.write_all(value.as_bytes()).unwrap();
                out.flush().unwrap();
            }
            "print-error" => eprintln!("{value}"),
            "print-variable" => print_line(&format!(
                "{value}={}",
                std::env::var(value).unwrap_or_else(|_| "(not set)".into())
            )),
            "print-status" => {
                let status = std::fs::read_to_string("/proc/self/status").unwrap();
                let line = status.lines().find(|line| line.starts_with(value)).unwrap();
                print_line(line);
            }
            // Only the variables that were set when the program was started.
            "print-descriptors" => {
                let mut open: Vec<_> = std::fs::read_dir("/proc/self/fd")
                    .unwrap()
                    .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
                    .filter(|target| !target.starts_with("/proc"))
                    .map(|target| target.to_string_lossy().into_owned())
                    .map(|target| target.split(':').next().unwrap_or_default().to_owned())
                    .collect();
                open.sort();
                print_line(&open.join(" "));
            }
            "make-folder" => std::fs::create_dir(value).unwrap(),
            "echo" => {
                let mut line = String::new();
                io::stdin().read_line(&mut line).unwrap();
                print_line(line.trim_end());
            }
            "connect" => agent = connect(),
            "samples" => {
                if let Some(agent) = &mut agent {
                    agent.samples(value.parse().unwrap());
                }
            }
            "note" => {
                if let Some(agent) = &mut agent {
                    agent.push(&Record::Note { text: value.into() });
                    agent.flush().unwrap();
                }
            }
            "door" => {
                let path =
                    control::socket_path(Path::new("/proc/self"), std::process::id()).unwrap();
                std::mem::forget(UnixListener::bind(&path).unwrap());
                print_line(path.to_str().unwrap());
            }
            "library" => agent.as_mut().unwrap().library(value),
            "end" => {
                if let Some(mut agent) = agent.take() {
                    agent.end();
                }
            }
            // Simulates the agent of a runtime that the policy excludes.
            "refused" => {
                if let Some(agent) = &mut agent {
                    agent.push(&Record::Runtime {
                        runtime: 0,
                        version: "8.0.4".into(),
                        recorded: false,
                        refused_by: "CreateInstance".into(),
                    });
                }
            }
            // A method of --trace, and why it cannot be traced.
            "traced" => agent.as_mut().unwrap().push(&Record::Traced {
                traced: 0,
                runtime: 0,
                token: 0x0600_0001,
                min_ns: 0,
                module: "app.dll".into(),
                type_name: "App.Program".into(),
                name: "Main".into(),
                refused: value.into(),
            }),
            "garbage" => {
                let agent = agent.as_mut().unwrap();
                agent.stream.write_all(&[0xab; 4096]).unwrap();
            }
            "half" => {
                let agent = agent.as_mut().unwrap();
                agent.push(&Record::Note {
                    text: "half".into(),
                });
                let block = agent.writer.take_block().unwrap();
                agent.stream.write_all(&block[..block.len() / 2]).unwrap();
            }
            // Samples until the tool closes the connection.
            "flood" => {
                let agent = agent.as_mut().unwrap();
                while agent.try_samples(5_000).is_ok() {}
                print_line("flood is over");
            }
            "stopped" => {
                if let Some(mut agent) = agent.take() {
                    let mut word = [0; 1];
                    let count = agent.stream.read(&mut word).unwrap();
                    print_line(&format!(
                        "tool said {:?}",
                        String::from_utf8_lossy(&word[..count])
                    ));
                    if count == 1 {
                        agent.samples(1);
                        agent.end();
                    }
                }
            }
            "signal" => await_signal(value),
            "signals" => print_signals(),
            "die" => {
                let own = nix::unistd::Pid::this();
                nix::sys::signal::kill(own, value.parse::<nix::sys::signal::Signal>().unwrap())
                    .unwrap();
            }
            "child" => {
                let actions = value.split(',');
                let child = std::env::current_exe().unwrap();
                Command::new(child)
                    .arg(PLAY)
                    .args(actions)
                    .status()
                    .unwrap();
            }
            // A process that outlives this one.
            "daemon" => {
                let actions = value.split(',');
                let child = std::env::current_exe().unwrap();
                #[expect(clippy::zombie_processes, reason = "init reaps it: it outlives us")]
                let mut child = Command::new(child)
                    .arg(PLAY)
                    .args(actions)
                    .stdout(std::process::Stdio::piped())
                    .spawn()
                    .unwrap();
                // It writes a byte when it is connected.
                let mut byte = [0];
                child.stdout.take().unwrap().read_exact(&mut byte).unwrap();
            }
            // Forks a child that continues in the same program with all descriptors, as pre-forking
            // servers do. It prints its process id, and closes our output, which a test reads.
            "fork" => fork(),
            "orphan" => orphan(),
            "tell-parent" => signal_parent(value.parse().unwrap()),
            "ask-parent" => signal_parent_and_wait(value.parse().unwrap()),
            "exit" => return ExitCode::from(value.parse::<u8>().unwrap()),
            _ => panic!("what is {action}?"),
        }
    }
    ExitCode::SUCCESS
}

fn print_line(text: &str) {
    // The reader may have closed the pipe.
    let mut out = io::stdout();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Prints `ready`, and each received signal.
fn await_signal(names: &str) {
    let signals = names
        .split('+')
        .map(|name| name.parse::<nix::sys::signal::Signal>().unwrap() as i32);
    let mut signals = signal_hook::iterator::Signals::new(signals).unwrap();
    print_line("ready");
    let got = signals.forever().next().unwrap();
    print_line(nix::sys::signal::Signal::try_from(got).unwrap().as_str());
}

/// Prints its process id and each ending signal that arrives, until SIGTERM.
fn print_signals() {
    use nix::libc::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).unwrap();
    print_line(&format!("process {}", std::process::id()));
    for signal in signals.forever() {
        print_line(nix::sys::signal::Signal::try_from(signal).unwrap().as_str());
        if signal == SIGTERM {
            return;
        }
    }
}

/// Makes an orphan, lets it end, and waits until it has been reaped.
fn orphan() {
    let (reader, writer) = io::pipe().unwrap();
    let shell = Command::new("sh")
        .args(["-c", "exec 3<&0; cat <&3 >/dev/null & echo $!"])
        .stdin(reader)
        // With a captured stream, the wait would also include the orphan.
        .stderr(std::process::Stdio::inherit())
        .output();
    let pid = String::from_utf8(shell.unwrap().stdout).unwrap();
    let pid = std::path::Path::new("/proc").join(pid.trim());
    assert!(pid.exists());
    drop(writer);
    while pid.exists() {
        std::thread::yield_now();
    }
    print_line("it is gone");
}

fn signal_parent(signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::getppid(), signal).unwrap();
}

/// Sends the signal to the parent, and waits for it.
fn signal_parent_and_wait(signal: nix::sys::signal::Signal) {
    let mut signals = signal_hook::iterator::Signals::new([signal as i32]).unwrap();
    signal_parent(signal);
    let got = signals.forever().next().unwrap();
    print_line(nix::sys::signal::Signal::try_from(got).unwrap().as_str());
}

fn fork() {
    // SAFETY: this program has one thread, and the child only closes two files and sleeps.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Parent { child } => print_line(&child.to_string()),
        nix::unistd::ForkResult::Child => {
            let nothing = std::fs::File::open("/dev/null").unwrap();
            rustix::stdio::dup2_stdout(&nothing).unwrap();
            rustix::stdio::dup2_stderr(&nothing).unwrap();
            // Longer than the tool could wait for it, but not for ever, in case nothing ends it.
            std::thread::sleep(std::time::Duration::from_secs(60));
            std::process::exit(0);
        }
    }
}

fn connect() -> Option<Agent> {
    // No agent: played without the tool.
    let path = std::env::var_os("SIDEWALK_SOCKET")?;
    let Ok(mut stream) = UnixStream::connect(path) else {
        print_line("no tool");
        return None;
    };
    let mut word = [0];
    match stream.read(&mut word) {
        Ok(1) if word == *b"G" => {}
        _ => {
            print_line("not recorded");
            return None;
        }
    }
    let pid = std::process::id();
    let mut agent = Agent {
        stream,
        writer: Writer::new(ProcessKey(u64::from(pid) << 32 | 1)),
    };
    let records = [
        Record::Process {
            pid,
            parent: std::os::unix::process::parent_id(),
            command: "dotnet\0app.dll".into(),
            unix_ns: 1_700_000_000_000_000_000,
            time_ns: 1_000,
        },
        Record::Engine {
            engine: "played".into(),
            walker: "signal".into(),
            event: Event::Cpu,
            interval_ns: 10_101_010,
            max_depth: 1024,
        },
        Record::Runtime {
            runtime: 0,
            version: "8.0.4".into(),
            recorded: true,
            refused_by: "".into(),
        },
        Record::Thread {
            thread: 0,
            tid: pid,
            name: "main".into(),
            managed: true,
            time_ns: 1_000,
        },
        Record::Method {
            method: 0,
            runtime: 0,
            kind: MethodKind::Il,
            module: None,
            token: 0x0600_0001,
            type_name: "App.Program".into(),
            name: "Main".into(),
        },
        Record::Frame {
            frame: 0,
            value: Frame::Managed {
                method: 0,
                tier: Tier::Tier1,
                il_offset: None,
            },
        },
        Record::Stack {
            stack: 0,
            parent: None,
            frame: 0,
        },
    ];
    for record in &records {
        agent.push(record);
    }
    agent.flush().unwrap();
    Some(agent)
}

impl Agent {
    fn push(&mut self, record: &Record<'_>) {
        let _ = self.writer.push(record);
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.writer.take_block() {
            Some(block) => self.stream.write_all(&block),
            None => Ok(()),
        }
    }

    fn try_samples(&mut self, count: u64) -> io::Result<()> {
        for number in 0..count {
            self.push(&Record::Sample {
                thread: 0,
                stack: 0,
                time_ns: 2_000 + number,
                event: Event::Cpu,
                value: 10_101_010,
                end: WalkEnd::Root,
                detail: None,
                logical: None,
            });
        }
        self.flush()
    }

    /// A sample at each address (in hexadecimal digits) of `PATH@BUILD-ID@ADDRESS@…`.
    fn library(&mut self, value: &str) {
        let mut parts = value.split('@');
        let path = parts.next().unwrap();
        let id = parts.next().unwrap();
        let id: Vec<u8> = (0..id.len() / 2)
            .map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        self.push(&Record::Module {
            module: 0,
            kind: ModuleKind::Native,
            runtime: None,
            path: path.into(),
            bias: 0x7f00_0000_0000,
            id_bytes: id.into(),
            file_offset: 0,
        });
        for (number, address) in (1..).zip(parts) {
            let svma = u64::from_str_radix(address, 16).unwrap();
            let (frame, stack) = (number, number);
            self.push(&Record::Frame {
                frame,
                value: Frame::Native { module: 0, svma },
            });
            self.push(&Record::Stack {
                stack,
                parent: Some(0),
                frame,
            });
            self.push(&Record::Sample {
                thread: 0,
                stack,
                time_ns: 2_000,
                event: Event::Cpu,
                value: 10_101_010,
                end: WalkEnd::Root,
                detail: None,
                logical: None,
            });
        }
        self.flush().unwrap();
    }

    fn samples(&mut self, count: u64) {
        self.try_samples(count).unwrap();
    }

    fn end(&mut self) {
        self.push(&Record::End { time_ns: 9_000_000 });
        // The tool may have ended.
        let _ = self.flush();
    }
}
