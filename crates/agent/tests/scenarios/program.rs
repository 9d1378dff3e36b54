//! Test support: the profiled program, which is the test's own process, and the tool's end of the
//! control socket.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use control::{LoadMode, Message, PROTOCOL, ProfilerSlot, class_of, keys, reply, verb};
use corprof::sys::rules::RuntimeVersion;
use corprof::sys::{EventMaskHigh, EventMaskLow, Guid, Hresult};
use fake_clr::{FakeClr, Finalizer, Status, Thread};

use crate::DllGetClassObject;
use crate::recorded::Recording;

/// Upper bound of every wait. The awaited events take milliseconds.
pub(crate) const END: Duration = Duration::from_secs(20);

/// The event mask without a session (`events::subscription::ALWAYS`).
pub(crate) const ALWAYS: EventMaskLow = EventMaskLow::MONITOR_THREADS
    .union(EventMaskLow::MONITOR_MODULE_LOADS)
    .union(EventMaskLow::MONITOR_JIT_COMPILATION);
/// The same after attach. Stack snapshots can only be enabled during attach.
pub(crate) const ATTACHED: EventMaskLow = ALWAYS.union(EventMaskLow::ENABLE_STACK_SNAPSHOT);
/// The high half of both.
pub(crate) const ALWAYS_HIGH: EventMaskHigh = EventMaskHigh::MONITOR_DYNAMIC_FUNCTION_UNLOADS;

/// Settings of most scenarios. Each class load gives exactly one sample, with the stack of the
/// thread that raises the callback.
pub(crate) const CLASS_LOADS: &str = "event=class-load";

/// This process.
pub(crate) struct Program {
    folder: PathBuf,
    /// Path of the agent's control socket.
    pub(crate) socket: PathBuf,
}

impl Program {
    pub(crate) fn new() -> Program {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        assert!(
            !TAKEN.swap(true, Ordering::Relaxed),
            "the agent is one per process, so each of these tests needs one: `cargo nextest run -p agent`"
        );
        let folder = std::env::temp_dir().join(format!("sidewalk-scenario-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("agent.sock");
        Program { folder, socket }
    }

    /// Client data of the attach command.
    pub(crate) fn client_data(&self) -> Message {
        let socket = self.socket.to_str().unwrap();
        request(verb::ATTACH).with(keys::SOCKET, socket)
    }

    /// Attaches the agent to a running CLR.
    pub(crate) fn attach(&self, clr: &FakeClr) {
        attach_with(clr, &self.client_data()).unwrap();
    }

    /// Sends a request to the agent and returns the answer.
    pub(crate) fn ask(&self, message: &Message) -> Message {
        let mut stream = connect(&self.socket);
        control::send(&mut stream, message).unwrap();
        control::receive(&mut stream).unwrap()
    }

    /// Starts a recording after which the agent detaches.
    pub(crate) fn record(&self, config: &str) -> Recording {
        record_at(&self.socket, config, false)
    }

    /// Starts a recording after which the agent remains attached.
    pub(crate) fn record_and_stay(&self, config: &str) -> Recording {
        record_at(&self.socket, config, true)
    }

    /// Waits for the detach requests, completes them, and waits until the agent's threads and
    /// socket are gone.
    pub(crate) fn finish_detach(&self, clrs: &[&FakeClr]) {
        until("the agent asks to be let go", || {
            clrs.iter().all(|clr| clr.status() == Status::Detaching)
        });
        for clr in clrs {
            clr.finish_detach();
        }
        until("the agent leaves", || {
            agent_threads().is_empty() && !self.socket.exists()
        });
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A failed test keeps its folder for inspection.
        if !std::thread::panicking() {
            std::fs::remove_dir_all(&self.folder).unwrap();
        }
    }
}

/// Starts a recording at a socket.
pub(crate) fn record_at(socket: &Path, config: &str, stay: bool) -> Recording {
    let mut stream = connect(socket);
    let mut message = request(verb::RECORD)
        .with(keys::CONFIG, config)
        .with(keys::WHO, "the test");
    if stay {
        message = message.with(keys::STAY, "1");
    }
    control::send(&mut stream, &message).unwrap();
    let answered = control::receive(&mut stream).unwrap();
    assert_eq!(answered, Message::new(reply::OK));
    Recording::of(stream)
}

/// A request without arguments.
pub(crate) fn request(verb: &str) -> Message {
    Message::new(verb).with(keys::PROTOCOL, PROTOCOL)
}

pub(crate) fn connect(socket: &Path) -> UnixStream {
    let stream = control::connect(socket).unwrap();
    stream.set_read_timeout(Some(END)).unwrap();
    stream
}

/// Attaches the agent with this client data.
pub(crate) fn attach_with(clr: &FakeClr, data: &Message) -> Result<(), Hresult> {
    let class = class_of(LoadMode::Attached, ProfilerSlot::Main);
    // SAFETY: the function that a CLR calls.
    let attached =
        unsafe { clr.attach_library(DllGetClassObject, guid(class), data.to_text().as_bytes()) };
    print_panics();
    attached
}

/// Restores the panic hook. The agent silences it, and the test shares its copy of the standard
/// library.
pub(crate) fn print_panics() {
    drop(std::panic::take_hook());
}

/// A GUID from its bytes in memory.
pub(crate) fn guid(bytes: [u8; 16]) -> Guid {
    let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
    Guid {
        data1: u32::from_le_bytes([a, b, c, d]),
        data2: u16::from_le_bytes([e, f]),
        data3: u16::from_le_bytes([g, h]),
        data4: rest,
    }
}

/// Names of the agent's threads.
pub(crate) fn agent_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let mut own: Vec<_> = names.map(|name| name.trim_end().to_owned()).collect();
    own.retain(|name| name.starts_with("sidewalk"));
    own.sort();
    own
}

/// Waits until the condition holds.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + END;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::yield_now();
    }
}

pub(crate) fn own_tid() -> u32 {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// A CLR with a module, a class, two methods and a managed thread, which is the test's own thread.
pub(crate) struct Shop {
    pub(crate) clr: FakeClr,
    pub(crate) module: usize,
    pub(crate) class: usize,
    pub(crate) main: usize,
    pub(crate) add: usize,
    pub(crate) thread: Thread,
    /// Idle until the test ends.
    pub(crate) finalizer: Finalizer,
}

impl Shop {
    /// A CLR with `Shop.Cart.Main` and `Shop.Cart.Add` in this module file.
    pub(crate) fn new(version: RuntimeVersion, path: &str) -> Shop {
        let clr = FakeClr::new(version);
        let module = clr.add_module(path);
        let class = clr.add_named_class(module, "Shop.Cart");
        let main = clr.add_named_function(class, "Main");
        let add = clr.add_named_function(class, "Add");
        let thread = clr.add_thread();
        clr.set_os_thread(thread, own_tid());
        let finalizer = clr.start_finalizer();
        Shop {
            clr,
            module,
            class,
            main,
            add,
            thread,
            finalizer,
        }
    }

    /// A .NET 8 runtime with `/app/shop.dll`.
    pub(crate) fn net8() -> Shop {
        Shop::new(RuntimeVersion::Net8, "/app/shop.dll")
    }

    /// Runs `f` below `Main`.
    pub(crate) fn in_main<R>(&self, f: impl FnOnce() -> R) -> R {
        self.clr
            .on_thread(self.thread, || self.clr.call(self.main, f))
    }

    /// Raises `ClassLoadFinished` below `Main`.
    pub(crate) fn load_class(&self) {
        self.in_main(|| self.load_class_here());
    }

    /// Raises `ClassLoadFinished` on the current stack.
    pub(crate) fn load_class_here(&self) {
        assert_eq!(self.clr.class_load_finished(self.class), Hresult::S_OK);
    }

    /// Raises the callbacks of a runtime start: thread, module, compiled methods.
    pub(crate) fn announce(&self) {
        let clr = &self.clr;
        let answers = clr.on_thread(self.thread, || {
            [
                clr.thread_created(self.thread),
                clr.thread_assigned_to_os_thread(self.thread),
                clr.module_load_finished(self.module),
                clr.jit_compilation_finished(self.main),
                clr.jit_compilation_finished(self.add),
            ]
        });
        assert_eq!(answers, [Hresult::S_OK; 5]);
    }

    /// Waits until the event mask contains class loads.
    pub(crate) fn until_subscribed(&self) {
        until("class loads are asked for", || {
            let (low, _) = self.clr.event_mask();
            low.contains(EventMaskLow::MONITOR_CLASS_LOADS)
        });
    }

    /// Asserts that no call was refused, crashed or deadlocked.
    pub(crate) fn assert_no_violations(&self) {
        assert_no_violations(&self.clr);
    }
}

/// As [`Shop::assert_no_violations`].
pub(crate) fn assert_no_violations(clr: &FakeClr) {
    assert_eq!(clr.crashes(), Vec::<String>::new());
    assert_eq!(clr.refusals(), []);
    assert_eq!(clr.deadlocks(), 0);
    assert!(!clr.is_suspended());
}

/// Sends raw bytes.
pub(crate) fn send_bytes(stream: &mut UnixStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
}
