//! A program whose assemblies are one ReadyToRun composite image, as Microsoft's `-composite`
//! container images are.
//!
//! It is `forms MILLISECONDS EXITCODE`: async orders that are priced, lists that are sorted, and
//! exceptions. Its code is in a file that is no module of the runtime.

use std::process::Command;

use testkit::chance::assert_at_most;
use testkit::{Machine, Recorded, Recorder, Setup, logical_stacks, test_folder};

use crate::LOST_LIMIT;
use crate::attach::record;

/// Maximum percentage of broken walks.
const BROKEN: f64 = 0.1;

fn forms() -> std::path::PathBuf {
    Setup::read().unwrap().composite.unwrap()
}

/// Maximum share of samples of resumed methods without their whole chain, for a reason of
/// docs/async.md; beyond it only by chance.
const INCOMPLETE: f64 = 0.01;

/// Asserts that each frame has a method, that chains are whole, and that each sample of the
/// program's own methods has who awaits them, up to `Main`, or says why not.
fn check(recorded: &Recorded) {
    let inspected = recorded.inspect();
    inspected.assert_honest(BROKEN, LOST_LIMIT);
    assert_eq!(inspected.number("unknown_frames"), 0.0);
    let number = |name: &str| inspected.json["async"][name].as_f64().unwrap();
    let (resumed, cut) = (number("samples"), number("cut"));
    assert_at_most("without a whole chain", cut, resumed, INCOMPLETE);
    let logical = logical_stacks(&recorded.recording, "cpu");
    for (method, caller) in [
        ("Forms.Orders.Price", "Forms.Orders.PlaceAsync"),
        ("Forms.Orders.Sort", "Forms.Program.Main"),
    ] {
        let own = logical.with(method);
        let called = own.with(caller).with("Forms.Program.Main");
        println!("{method}: {} of {}", called.total(), own.total());
        assert!(called.total() > 20, "{method}:\n{}", own.show(20));
        for (frames, _) in &own.stacks {
            let has = |name: &str| frames.iter().any(|frame| frame == name);
            let is_called = has(caller) && has("Forms.Program.Main");
            assert!(
                is_called || frames.iter().any(|frame| frame.starts_with("[async: ")),
                "{frames:?}"
            );
        }
    }
}

#[test]
fn stacks_are_whole_from_the_start() {
    let command = [forms().into_os_string(), "3000".into(), "3".into()];
    let recorded = Recorder::command("forms", command)
        .options(["-F", "499"])
        .run();
    assert_eq!(recorded.answer.status.code(), Some(3));
    assert!(recorded.answer.stdout.contains("forms done True"));
    check(&recorded);
}

#[test]
fn stacks_are_whole_by_an_attach() {
    let _alone = Machine::exclusive();
    let mut command = Command::new(forms());
    command.args(["20000", "0"]);
    // It says nothing before its end.
    let program = command.spawn();
    let mut program = program.unwrap();
    let recorded = record(
        program.id(),
        &test_folder("forms"),
        &["-d", "3s", "-F", "499"],
    );
    program.kill().unwrap();
    program.wait().unwrap();
    check(&recorded);
}
