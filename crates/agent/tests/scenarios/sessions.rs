//! Scenario tests of consecutive sessions, and of event changes during a session.

use control::{Message, keys, reply, verb};
use corprof::sys::{EventMaskHigh, EventMaskLow, Hresult};
use recording::Event;

use crate::program::{ALWAYS_HIGH, ATTACHED, CLASS_LOADS, Program, Shop, request, until};

#[test]
fn a_second_session_contains_nothing_of_the_first() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    let first = program.record_and_stay(CLASS_LOADS);
    shop.until_subscribed();
    shop.load_class();
    shop.clr.thread_name_changed(shop.thread, "cashier");
    let first = first.stop();
    first.assert_complete();
    until("nothing is asked for any more", || {
        shop.clr.event_mask() == (ATTACHED, ALWAYS_HIGH)
    });
    // Events between sessions are dropped. Code changes are not.
    shop.load_class();
    let later = shop.clr.add_named_function(shop.class, "Later");
    shop.in_main(|| {
        assert_eq!(shop.clr.jit_compilation_finished(later), Hresult::S_OK);
    });

    let second = program.record("event=module-load");
    let seen = shop.clr.calls_of("EnumJITedFunctions").len();
    let module = shop.clr.add_module("/app/late.dll");
    let mut second = second;
    second.until(|recorded| !recorded.runtimes.is_empty());
    shop.in_main(|| {
        shop.clr.call(later, || {
            assert_eq!(shop.clr.module_load_finished(module), Hresult::S_OK);
        });
        // The second session does not record class loads.
        shop.load_class_here();
    });
    let second = second.stop();
    second.assert_complete();
    assert_eq!(seen, 1, "the past is asked for once");
    let events = |recorded: &crate::recorded::Recorded| -> Vec<_> {
        let samples = recorded.samples.iter();
        samples.map(|one| (one.event, one.detail.clone())).collect()
    };
    assert_eq!(events(&first), [(Event::ClassLoad, "Shop.Cart".into())]);
    assert_eq!(events(&second), [(Event::ModuleLoad, "late.dll".into())]);
    assert_eq!(
        second.stacks(),
        ["shop.dll!Shop.Cart.Later < shop.dll!Shop.Cart.Main"]
    );
    for recorded in [&first, &second] {
        let names = recorded.threads.values().map(|(_, name, _)| name.as_str());
        assert_eq!(names.filter(|name| *name == "cashier").count(), 1);
        // Each thread of a recording ends with it.
        assert!(recorded.threads.values().all(|(.., ended)| *ended));
        assert_eq!(recorded.sources.len(), 1);
    }
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}

#[test]
fn events_can_be_changed_during_a_session() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    let recording = program.record(CLASS_LOADS);
    shop.until_subscribed();
    shop.load_class();
    let change = |events| program.ask(&request(verb::CHANGE).with(keys::EVENTS, events));

    let changed = change("gc,exception,module-load");
    assert_eq!(changed.verb, reply::OK, "{changed:?}");
    assert_eq!(changed.get(keys::EVENTS), Some("exception,gc,module-load"));
    // The masks are set before the answer is sent.
    assert_eq!(
        shop.clr.event_mask(),
        (
            ATTACHED | EventMaskLow::MONITOR_EXCEPTIONS | EventMaskLow::MONITOR_SUSPENDS,
            ALWAYS_HIGH | EventMaskHigh::BASIC_GC
        )
    );
    shop.load_class();
    let module = shop.clr.add_module("/app/late.dll");
    shop.in_main(|| {
        assert_eq!(shop.clr.module_load_finished(module), Hresult::S_OK);
    });

    for (events, why) in [
        ("cpu", "cpu and wall cannot be switched during a recording"),
        ("gc,later", "the agent in the process knows no event later"),
    ] {
        let refused = change(events);
        assert_eq!(refused.verb, reply::REFUSED);
        let said = refused.get(keys::WHY).unwrap();
        assert!(said.starts_with(why), "{said}");
    }
    let changed = change("class-load");
    assert_eq!(changed.verb, reply::OK);
    shop.until_subscribed();
    shop.load_class();
    let recorded = recording.stop();
    recorded.assert_complete();
    let samples: Vec<_> = recorded.samples.iter().map(|one| one.event).collect();
    assert_eq!(
        samples,
        [Event::ClassLoad, Event::ModuleLoad, Event::ClassLoad]
    );
    let bits = |events: &[Event]| events.iter().fold(0, |all, one| all | 1 << *one as u32);
    let first = bits(&[Event::ClassLoad]);
    let other = bits(&[Event::Exception, Event::Gc, Event::ModuleLoad]);
    assert_eq!(recorded.changes, [(first, other), (other, first)]);

    until("the agent asks to be let go", || {
        !shop.clr.calls_of("RequestProfilerDetach").is_empty()
    });
    assert_eq!(
        change("gc"),
        Message::new(reply::REFUSED).with(keys::WHY, "nobody records it")
    );
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}

#[test]
fn event_pipe_sessions_start_and_stop_on_their_own_thread() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    // `ContentionKeyword`, level informational.
    let recording = program.record("event=contention");
    until("a session has begun", || {
        shop.clr.event_sessions() == [(0x4000, 4)]
    });
    let wanted = EventMaskHigh::MONITOR_EVENT_PIPE;
    assert!(shop.clr.event_mask().1.contains(wanted));
    recording.stop().assert_complete();
    shop.clr.wait_for_calls("RequestProfilerDetach", 1);
    assert_eq!(shop.clr.event_sessions(), []);
    assert_eq!(shop.clr.event_mask(), (ATTACHED, ALWAYS_HIGH));
    for (method, count) in [("EventPipeStartSession", 1), ("EventPipeStopSession", 1)] {
        let calls = shop.clr.calls_of(method);
        assert_eq!(calls.len(), count);
        // These calls turn their thread into a thread of the runtime.
        assert!(
            calls.iter().all(|call| call.thread == "sidewalk-events"),
            "{calls:?}"
        );
    }
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}

/// A suspend callback costs two calls for each thread of the process.
#[test]
fn a_runtime_of_a_process_with_many_threads_is_not_asked_when_it_stops() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    let mut recording = program.record("event=gc");
    let is_asked = || {
        let (low, _) = shop.clr.event_mask();
        low.contains(EventMaskLow::MONITOR_SUSPENDS)
    };
    until("it is asked", is_asked);
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let ends = std::sync::Mutex::new(ends);
    std::thread::scope(|scope| {
        for _ in 0..1001 {
            let waits = std::thread::Builder::new().stack_size(64 << 10);
            waits
                .spawn_scoped(scope, || ends.lock().unwrap().recv().is_err())
                .unwrap();
        }
        until("it is not asked", || !is_asked());
        recording.until(|recorded| !recorded.notes.is_empty());
        // It is not enabled by a change of events either.
        let changed = program.ask(&request(verb::CHANGE).with(keys::EVENTS, "gc,class-load"));
        assert_eq!(changed.verb, reply::OK);
        assert!(!is_asked());
        drop(end);
    });
    let recorded = recording.stop();
    assert!(
        recorded.notes[0].contains("are not recorded from here on: with 10"),
        "{:?}",
        recorded.notes
    );
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}
