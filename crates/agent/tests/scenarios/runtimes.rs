//! Scenario tests of two CLRs in one process.

use control::{keys, verb};
use corprof::sys::rules::RuntimeVersion;
use corprof::sys::{EventMaskLow, Hresult};
use fake_clr::Status;

use crate::program::{ALWAYS_HIGH, ATTACHED, CLASS_LOADS, Program, Shop, agent_threads, request};

fn both() -> (Shop, Shop) {
    (
        Shop::new(RuntimeVersion::Net8, "/app/eight.dll"),
        Shop::new(RuntimeVersion::Net10, "/app/ten.dll"),
    )
}

#[test]
fn two_runtimes_keep_their_methods_apart() {
    let (program, (eight, ten)) = (Program::new(), both());
    program.attach(&eight.clr);
    program.attach(&ten.clr);
    let state = program.ask(&request(verb::STATE));
    assert_eq!(
        state.get(keys::RUNTIMES),
        Some("8.0.0 attached, 10.0.0 attached")
    );
    assert_eq!(agent_threads(), ["sidewalk"], "one for both");
    // The metadata tokens are equal.
    let tokens = |shop: &Shop| shop.clr.function(shop.main).unwrap().token;
    assert_eq!(tokens(&eight), tokens(&ten));

    let recording = program.record(CLASS_LOADS);
    eight.until_subscribed();
    ten.until_subscribed();
    eight.load_class();
    ten.load_class();
    // One stack with frames of both runtimes.
    eight.in_main(|| ten.load_class());
    let recorded = recording.stop();
    recorded.assert_complete();
    let stacks: Vec<_> = recorded
        .samples
        .iter()
        .map(|one| (&*one.runtimes, one.managed.join(" < ")))
        .collect();
    let (in_eight, in_ten) = ("eight.dll!Shop.Cart.Main", "ten.dll!Shop.Cart.Main");
    assert_eq!(
        stacks,
        [
            (&[0][..], in_eight.to_owned()),
            (&[1][..], in_ten.to_owned()),
            (&[1, 0][..], format!("{in_ten} < {in_eight}")),
        ]
    );
    program.finish_detach(&[&eight.clr, &ten.clr]);
    eight.assert_no_violations();
    ten.assert_no_violations();
}

#[test]
fn the_shutdown_of_one_runtime_does_not_end_the_session() {
    let (program, (eight, ten)) = (Program::new(), both());
    program.attach(&eight.clr);
    program.attach(&ten.clr);
    let recording = program.record(CLASS_LOADS);
    eight.until_subscribed();
    ten.until_subscribed();
    eight.load_class();
    // The fake reports calls after this callback has returned.
    eight.clr.shutdown();
    ten.load_class();
    let recorded = recording.stop();
    recorded.assert_complete();
    assert_eq!(
        recorded.stacks(),
        ["eight.dll!Shop.Cart.Main", "ten.dll!Shop.Cart.Main"]
    );
    program.finish_detach(&[&ten.clr]);
    assert_eq!(eight.clr.calls_of("RequestProfilerDetach"), []);
    eight.assert_no_violations();
    ten.assert_no_violations();
}

#[test]
fn a_runtime_excluded_by_policy_is_not_recorded() {
    let (program, (eight, ten)) = (Program::new(), both());
    program.attach(&eight.clr);
    program.attach(&ten.clr);
    let recording = program.record("event=class-load,jit;runtimes=one=10");
    ten.until_subscribed();
    for shop in [&eight, &ten] {
        shop.load_class();
        // This callback is enabled in every CLR.
        shop.in_main(|| {
            assert_eq!(shop.clr.jit_compilation_started(shop.add), Hresult::S_OK);
            assert_eq!(shop.clr.jit_compilation_finished(shop.add), Hresult::S_OK);
        });
    }
    assert_eq!(eight.clr.event_mask(), (ATTACHED, ALWAYS_HIGH));
    let recorded = recording.stop();
    recorded.assert_complete();
    let expected = |number: u8, version: &str, is_recorded| {
        (number, version.to_owned(), is_recorded, String::new())
    };
    assert_eq!(
        recorded.runtimes,
        [expected(0, "8.0.0", false), expected(1, "10.0.0", true)]
    );
    assert_eq!(recorded.stacks(), ["ten.dll!Shop.Cart.Main"; 2]);
    program.finish_detach(&[&eight.clr, &ten.clr]);
    eight.assert_no_violations();
    ten.assert_no_violations();
}

#[test]
fn a_runtime_attached_during_a_session_is_recorded() {
    let (program, (eight, ten)) = (Program::new(), both());
    program.attach(&eight.clr);
    let mut recording = program.record(CLASS_LOADS);
    eight.until_subscribed();
    program.attach(&ten.clr);
    ten.until_subscribed();
    recording.until(|expected| expected.runtimes.len() == 2);
    ten.load_class();
    let recorded = recording.stop();
    recorded.assert_complete();
    assert_eq!(recorded.stacks(), ["ten.dll!Shop.Cart.Main"]);
    program.finish_detach(&[&eight.clr, &ten.clr]);
    eight.assert_no_violations();
    ten.assert_no_violations();
}

#[test]
fn the_agent_stays_until_the_last_runtime_detaches() {
    let (program, (eight, ten)) = (Program::new(), both());
    program.attach(&eight.clr);
    program.attach(&ten.clr);
    program.record(CLASS_LOADS).stop().assert_complete();
    for clr in [&eight.clr, &ten.clr] {
        clr.wait_for_calls("RequestProfilerDetach", 1);
        assert!(
            !clr.event_mask()
                .0
                .contains(EventMaskLow::MONITOR_CLASS_LOADS)
        );
    }
    eight.clr.finish_detach();
    assert_eq!(eight.clr.status(), Status::None);
    assert_eq!(agent_threads(), ["sidewalk"]);
    assert!(program.socket.exists());
    // The agent accepts no recording while it detaches.
    let refused = program.ask(&request(verb::RECORD).with(keys::CONFIG, CLASS_LOADS));
    assert_eq!(refused.get(keys::HOW), Some("leaving"));
    program.finish_detach(&[&ten.clr]);
    assert_eq!(ten.clr.thread_created(ten.thread), Hresult::S_OK);
    eight.assert_no_violations();
    ten.assert_no_violations();
}
