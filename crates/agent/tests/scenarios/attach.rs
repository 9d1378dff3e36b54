//! Scenario tests of attach to a running program and of detach.

use std::os::unix::fs::PermissionsExt as _;

use control::{Message, keys, reply, verb};
use corprof::sys::{EventMaskHigh, EventMaskLow, Hresult};
use fake_clr::Status;

use crate::program::{
    ALWAYS_HIGH, ATTACHED, CLASS_LOADS, Program, Shop, agent_threads, attach_with, request, until,
};

#[test]
fn attach_requests_the_base_events_and_opens_the_socket() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    assert_eq!(shop.clr.event_mask(), (ATTACHED, ALWAYS_HIGH));
    let mode = std::fs::metadata(&program.socket).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);

    let state = program.ask(&request(verb::STATE));
    assert_eq!(state.verb, reply::OK);
    assert_eq!(state.get(keys::PHASE), Some("idle"));
    assert_eq!(state.get(keys::RUNTIMES), Some("8.0.0 attached"));
    assert_eq!(agent_threads(), ["sidewalk"]);
    // The catch-up reads the finalizer thread, which ends with this test.
    shop.clr.wait_for_calls("EnumJITedFunctions", 1);
    shop.assert_no_violations();
}

#[test]
fn detach_after_a_recording_clears_masks_and_removes_the_socket() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    let recording = program.record("event=class-load,gc");
    until("the session's events are asked for", || {
        shop.clr.event_mask()
            == (
                ATTACHED | EventMaskLow::MONITOR_CLASS_LOADS | EventMaskLow::MONITOR_SUSPENDS,
                ALWAYS_HIGH | EventMaskHigh::BASIC_GC,
            )
    });
    shop.load_class();
    let recorded = recording.stop();
    recorded.assert_complete();
    assert_eq!(recorded.stacks(), ["shop.dll!Shop.Cart.Main"]);

    shop.clr.wait_for_calls("RequestProfilerDetach", 1);
    // The masks are those of a process without a session.
    assert_eq!(shop.clr.event_mask(), (ATTACHED, ALWAYS_HIGH));
    assert_eq!(shop.clr.status(), Status::Detaching);
    assert_eq!(agent_threads(), ["sidewalk"]);
    program.finish_detach(&[&shop.clr]);
    assert_eq!(shop.clr.status(), Status::None);
    // The agent no longer receives callbacks.
    shop.load_class();
    assert_eq!(shop.clr.calls_of("RequestProfilerDetach").len(), 1);
    shop.assert_no_violations();
}

#[test]
fn a_killed_tool_leads_to_the_same_detach() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    let mut recording = program.record(CLASS_LOADS);
    recording.until(|runtime| !runtime.runtimes.is_empty());
    recording.hang_up();
    shop.clr.wait_for_calls("RequestProfilerDetach", 1);
    assert_eq!(shop.clr.event_mask(), (ATTACHED, ALWAYS_HIGH));
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}

#[test]
fn the_agent_can_attach_again_after_detach() {
    let (program, shop) = (Program::new(), Shop::net8());
    for _ in 0..3 {
        program.attach(&shop.clr);
        let recording = program.record(CLASS_LOADS);
        shop.until_subscribed();
        shop.load_class();
        let recorded = recording.stop();
        recorded.assert_complete();
        assert_eq!(recorded.stacks(), ["shop.dll!Shop.Cart.Main"]);
        let runtime = (0, "8.0.0".into(), true, String::new());
        assert_eq!(recorded.runtimes, [runtime], "the number is free again");
        program.finish_detach(&[&shop.clr]);
    }
    shop.assert_no_violations();
}

#[test]
fn a_leave_request_is_answered_after_detach() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    let clr = shop.clr.clone();
    let lets_go = std::thread::spawn(move || {
        clr.wait_for_calls("RequestProfilerDetach", 1);
        clr.finish_detach();
    });
    let answered = program.ask(&request(verb::DETACH));
    lets_go.join().unwrap();
    assert_eq!(
        answered,
        Message::new(reply::OK).with(keys::HOW, "left"),
        "not before the CLR has let it go"
    );
    assert!(!program.socket.exists());
    program.finish_detach(&[]);
    shop.assert_no_violations();
}

#[test]
fn an_invalid_attach_request_is_refused_without_residue() {
    let (program, shop) = (Program::new(), Shop::net8());
    let cases = [
        (Message::new("attach"), Hresult::E_INVALIDARG),
        (
            request("other").with(keys::SOCKET, "/x"),
            Hresult::E_INVALIDARG,
        ),
        (request(verb::ATTACH), Hresult::E_INVALIDARG),
        (
            Message::new(verb::ATTACH)
                .with(keys::PROTOCOL, "0")
                .with(keys::SOCKET, "/x"),
            Hresult::E_INVALIDARG,
        ),
        // A socket cannot be created in this folder.
        (
            request(verb::ATTACH).with(keys::SOCKET, "/proc/self/agent.sock"),
            Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION,
        ),
    ];
    for (data, expected) in cases {
        assert_eq!(attach_with(&shop.clr, &data), Err(expected), "{data:?}");
        assert_eq!(shop.clr.status(), Status::None);
        until("nobody stays", || agent_threads().is_empty());
    }
    // A valid attach request still succeeds.
    program.attach(&shop.clr);
    program.record(CLASS_LOADS).stop().assert_complete();
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}
