//! Scenario tests of the control socket: malformed and unknown requests, several clients at once.

use std::io::{ErrorKind, Read as _};

use control::{MAX_MESSAGE, Message, keys, reply, verb};

use crate::program::{CLASS_LOADS, Program, Shop, agent_threads, connect, request, send_bytes};

/// Whether the agent closes the connection without an answer.
fn is_closed(stream: &mut std::os::unix::net::UnixStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => rest.is_empty(),
        // A close with unread bytes resets the connection.
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn malformed_requests_are_closed_and_the_next_is_served() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    let longest = u32::try_from(MAX_MESSAGE).unwrap();
    let cases: [&[u8]; 4] = [
        // Longer than the limit.
        &(longest + 1).to_le_bytes(),
        &u32::MAX.to_le_bytes(),
        // Invalid UTF-8; a line without `=`.
        b"\x02\0\0\0\xff\xff",
        b"\x0c\0\0\0state\nno pair",
    ];
    for bytes in cases {
        let mut stream = connect(&program.socket);
        send_bytes(&mut stream, bytes);
        assert!(is_closed(&mut stream), "{bytes:?}");
    }
    // An incomplete message, then a close.
    let mut half = connect(&program.socket);
    send_bytes(&mut half, b"\x20\0\0\0state");
    drop(half);
    assert_eq!(program.ask(&request(verb::STATE)).verb, reply::OK);
    assert_eq!(agent_threads(), ["sidewalk"]);
    program.record(CLASS_LOADS).stop().assert_complete();
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}

#[test]
fn unknown_requests_are_refused_with_a_reason() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    let version = env!("CARGO_PKG_VERSION");
    let other = format!("the agent in the process is that of sidewalk {version}");
    for (message, why) in [
        (Message::new(verb::STATE), other.as_str()),
        (Message::new(verb::RECORD).with(keys::PROTOCOL, "0"), &other),
        (
            Message::new(verb::DETACH).with(keys::PROTOCOL, "99"),
            &other,
        ),
        (
            request("dance"),
            "the agent in the process does not know how",
        ),
        (
            request(verb::CHANGE).with(keys::EVENTS, "gc"),
            "nobody records it",
        ),
    ] {
        let refused = Message::new(reply::REFUSED).with(keys::WHY, why);
        assert_eq!(program.ask(&message), refused, "{message:?}");
    }
    assert_eq!(shop.clr.calls_of("RequestProfilerDetach"), []);
    program.record(CLASS_LOADS).stop().assert_complete();
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}

#[test]
fn a_second_tool_is_told_who_records() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    let recording = program.record(CLASS_LOADS);
    shop.until_subscribed();
    let busy = Message::new(reply::BUSY).with(keys::BY, "the test");
    for verb in [verb::RECORD, verb::DETACH] {
        let message = request(verb).with(keys::CONFIG, "event=gc");
        assert_eq!(program.ask(&message), busy);
    }
    let state = program.ask(&request(verb::STATE));
    assert_eq!(state.get(keys::PHASE), Some("recording"));
    assert_eq!(state.get(keys::BY), Some("the test"));
    shop.load_class();
    let recorded = recording.stop();
    recorded.assert_complete();
    assert_eq!(recorded.stacks(), ["shop.dll!Shop.Cart.Main"]);
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}

#[test]
fn silent_peers_are_dropped_oldest_first() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    // One more than the agent keeps.
    let mut idle: Vec<_> = (0..5).map(|_| connect(&program.socket)).collect();
    let mut first = idle.remove(0);
    assert!(is_closed(&mut first), "the oldest goes");
    // The others are still served.
    for stream in &mut idle {
        control::send(&mut *stream, &request(verb::STATE)).unwrap();
        assert_eq!(control::receive(&mut *stream).unwrap().verb, reply::OK);
    }
    program.record(CLASS_LOADS).stop().assert_complete();
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}
