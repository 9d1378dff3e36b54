//! Scenario tests of a program started with the agent. The environment configures the first
//! session.

use std::ffi::c_void;
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::JoinHandle;

use control::{LoadMode, Message, ProfilerSlot, class_of, keys, reply, verb};
use corprof::sys::rules::RuntimeVersion;
use corprof::sys::{EventMaskLow, Guid, Hresult};
use fake_clr::{FakeClr, GetClassObject};

use crate::DllGetClassObject;
use crate::program::{
    ALWAYS, ALWAYS_HIGH, CLASS_LOADS, Program, Shop, agent_threads, connect, guid, print_panics,
    record_at, request, until,
};
use crate::recorded::Recording;

const REFUSED: Result<(), Hresult> = Err(Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION);

/// The tool's end of the connection. It replies to the agent with this byte, or closes the
/// connection.
fn listen(program: &Program, config: &str, answer: Option<u8>) -> JoinHandle<Recording> {
    let listener = UnixListener::bind(&program.socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    // SAFETY: no other thread of this process reads the environment yet.
    unsafe {
        std::env::set_var("SIDEWALK_SOCKET", &program.socket);
        std::env::set_var("SIDEWALK_CONFIG", config);
    }
    std::thread::spawn(move || {
        let mut accepted = None;
        until("the agent connects", || {
            accepted = listener.accept().ok();
            accepted.is_some()
        });
        let (mut stream, _) = accepted.unwrap();
        stream.set_nonblocking(false).unwrap();
        match answer {
            Some(byte) => stream.write_all(&[byte]).unwrap(),
            None => stream.shutdown(std::net::Shutdown::Both).unwrap(),
        }
        Recording::of(stream)
    })
}

fn start(clr: &FakeClr) -> Result<(), Hresult> {
    start_by(clr, DllGetClassObject)
}

/// Starts a CLR with this function of the agent, which has the contract of `DllGetClassObject`.
fn start_by(clr: &FakeClr, class: GetClassObject) -> Result<(), Hresult> {
    // SAFETY: the function that a CLR calls.
    let started = unsafe { clr.start_library(class) };
    print_panics();
    started
}

/// Loads a class and ends the program, and asserts that exactly this is recorded.
fn assert_is_recorded(shop: &Shop, tool: JoinHandle<Recording>) {
    shop.announce();
    shop.load_class();
    let recording = tool.join().unwrap().stop();
    assert_eq!(recording.stacks(), ["shop.dll!Shop.Cart.Main"]);
    shop.clr.shutdown();
    shop.assert_no_violations();
}

#[test]
fn the_first_session_starts_with_the_runtime_and_the_socket_serves_the_next() {
    let (program, shop) = (Program::new(), Shop::net8());
    let tool = listen(&program, CLASS_LOADS, Some(b'G'));
    assert_eq!(start(&shop.clr), Ok(()));
    let first = tool.join().unwrap();
    // The masks are set in `Initialize`.
    let wanted = (ALWAYS | EventMaskLow::MONITOR_CLASS_LOADS, ALWAYS_HIGH);
    assert_eq!(shop.clr.event_mask(), wanted);
    shop.announce();
    shop.load_class();
    let first = first.stop();
    first.assert_complete();
    assert_eq!(first.stacks(), ["shop.dll!Shop.Cart.Main"]);
    until("nothing is asked for any more", || {
        shop.clr.event_mask() == (ALWAYS, ALWAYS_HIGH)
    });
    // A runtime that starts with the agent needs no catch-up.
    assert_eq!(shop.clr.calls_of("EnumJITedFunctions"), []);

    // The path at which the tool finds the agent of a started process.
    let socket = control::socket_path(Path::new("/proc/self"), std::process::id()).unwrap();
    let second = record_at(&socket, CLASS_LOADS, false);
    shop.until_subscribed();
    shop.load_class();
    let second = second.stop();
    second.assert_complete();
    assert_eq!(second.stacks(), ["shop.dll!Shop.Cart.Main"]);
    // The agent cannot detach from a runtime that started with it.
    let mut stream = connect(&socket);
    control::send(&mut stream, &request(verb::DETACH)).unwrap();
    let why = "the runtime was started with it and cannot detach it";
    let stays = Message::new(reply::OK)
        .with(keys::HOW, "idle")
        .with(keys::WHY, why);
    assert_eq!(control::receive(&mut stream).unwrap(), stays);
    assert_eq!(shop.clr.calls_of("RequestProfilerDetach"), []);
    assert_eq!(agent_threads(), ["sidewalk"]);
    shop.clr.shutdown();
    shop.assert_no_violations();
}

#[test]
fn shutdown_ends_the_recording() {
    let (program, shop) = (Program::new(), Shop::net8());
    let tool = listen(&program, CLASS_LOADS, Some(b'G'));
    assert_eq!(start(&shop.clr), Ok(()));
    let recording = tool.join().unwrap();
    shop.announce();
    shop.load_class();
    // The recording is complete when this returns. The fake reports later calls.
    shop.clr.shutdown();
    let mut recording = recording;
    recording.until(|recorded| recorded.ends == 1);
    recording.records.assert_complete();
    assert_eq!(recording.records.stacks(), ["shop.dll!Shop.Cart.Main"]);
    recording.stop();
    shop.assert_no_violations();
}

#[test]
fn a_process_that_the_tool_refuses_is_left_alone() {
    let (program, shop) = (Program::new(), Shop::net8());
    let tool = listen(&program, CLASS_LOADS, None);
    assert_eq!(start(&shop.clr), REFUSED);
    drop(tool.join().unwrap());
    // The tool is contacted once per process.
    let other = FakeClr::new(RuntimeVersion::Net10);
    assert_eq!(start(&other), REFUSED);
    assert_eq!(agent_threads(), [""; 0]);
    assert_eq!((shop.clr.calls(), other.calls()), (0, 0));
    // Callbacks have no effect.
    shop.announce();
}

/// The agent's class for programs whose main profiler is another one.
extern "system" fn beside(_: *const Guid, iid: *const Guid, out: *mut *mut c_void) -> Hresult {
    let class = class_of(LoadMode::Startup, ProfilerSlot::Notification);
    // SAFETY: a live class; the other arguments are the runtime's own.
    unsafe { DllGetClassObject(&guid(class), iid, out) }
}

#[test]
fn a_runtime_that_has_us_is_not_recorded_beside_itself() {
    let (program, shop) = (Program::new(), Shop::net8());
    let tool = listen(&program, CLASS_LOADS, Some(b'G'));
    assert_eq!(start(&shop.clr), Ok(()));
    // The next request of the same runtime.
    let again = FakeClr::new(RuntimeVersion::Net8);
    assert_eq!(start_by(&again, beside), REFUSED);
    assert_eq!(again.calls(), 0);
    assert_is_recorded(&shop, tool);
}

#[test]
fn a_program_that_has_another_main_profiler_is_recorded_beside_it() {
    let (program, shop) = (Program::new(), Shop::net8());
    let tool = listen(&program, CLASS_LOADS, Some(b'G'));
    assert_eq!(start_by(&shop.clr, beside), Ok(()));
    assert_is_recorded(&shop, tool);
}

#[test]
fn a_version_policy_refuses_in_initialize() {
    let (program, ten) = (Program::new(), FakeClr::new(RuntimeVersion::Net10));
    let eight = Shop::net8();
    let tool = listen(
        &program,
        &format!("{CLASS_LOADS};runtimes=one=8"),
        Some(b'G'),
    );
    // The version is known in `Initialize`.
    assert_eq!(start(&ten), REFUSED);
    assert_eq!(start(&eight.clr), Ok(()));
    let recording = tool.join().unwrap();
    eight.announce();
    eight.load_class();
    let recorded = recording.stop();
    recorded.assert_complete();
    assert_eq!(
        recorded.runtimes,
        [
            (0, "10.0.0".into(), false, "Initialize".into()),
            (1, "8.0.0".into(), true, String::new()),
        ]
    );
    assert_eq!(recorded.samples[0].runtimes, [1]);
    eight.clr.shutdown();
    eight.assert_no_violations();
}

#[test]
fn the_first_policy_refuses_in_create_instance() {
    let (program, shop) = (Program::new(), Shop::net8());
    let tool = listen(
        &program,
        &format!("{CLASS_LOADS};runtimes=first"),
        Some(b'G'),
    );
    assert_eq!(start(&shop.clr), Ok(()));
    let other = FakeClr::new(RuntimeVersion::Net10);
    assert_eq!(start(&other), REFUSED);
    assert_eq!(
        other.calls(),
        0,
        "refused before it could be asked anything"
    );
    let recording = tool.join().unwrap();
    shop.announce();
    let recorded = recording.stop();
    recorded.assert_complete();
    assert_eq!(
        recorded.runtimes,
        [
            (0, "8.0.0".into(), true, String::new()),
            (1, "unknown".into(), false, "CreateInstance".into()),
        ]
    );
    shop.clr.shutdown();
    shop.assert_no_violations();
}

#[test]
fn an_exception_is_recorded_with_its_catcher() {
    let (program, shop) = (Program::new(), Shop::net8());
    let tool = listen(&program, "event=exception", Some(b'G'));
    assert_eq!(start(&shop.clr), Ok(()));
    let recording = tool.join().unwrap();
    shop.announce();
    let object = shop.clr.add_object(shop.class, 24);
    shop.in_main(|| {
        shop.clr.call(shop.add, || {
            assert_eq!(shop.clr.exception_thrown(object), Hresult::S_OK);
            assert_eq!(
                shop.clr.exception_search_catcher_found(shop.main),
                Hresult::S_OK
            );
        });
    });
    let recorded = recording.stop();
    recorded.assert_complete();
    assert_eq!(
        recorded.stacks(),
        ["shop.dll!Shop.Cart.Add < shop.dll!Shop.Cart.Main"]
    );
    assert_eq!(recorded.samples[0].detail, "Shop.Cart");
    assert_eq!(recorded.samples[0].text, "caught by Shop.Cart.Main");
    shop.clr.shutdown();
    shop.assert_no_violations();
}
