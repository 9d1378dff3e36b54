//! The HTML page of a real program, tested in Chromium.

use std::process::Command;

use testkit::{Recorder, Runtime, Tools, chromium, repository, stdout_of};

/// The program uses the CPU in one method, waits in another, uses the CPU in a third, and collects
/// garbage every half second.
#[test]
fn a_range_of_the_page_is_a_phase_of_the_program() {
    let recorded = Recorder::workload(&Runtime::net8(), "phases", &[])
        .options(["-e", "wall,gc"])
        .frequency(199)
        .run_complete();
    let page = recorded.convert("phases.html");
    let folder = page.parent().expect("a file has a folder");
    let mut node = Command::new(Tools::get().node);
    node.arg(repository().join("crates/formats/tests/viewers/phases.mjs"))
        .arg(chromium())
        .arg(folder)
        .arg(&page)
        .arg(recorded.answer.measured("collections").to_string())
        .arg(recorded.answer.measured("longest_unknown_ms").to_string());
    for phase in recorded.answer.lines("phase") {
        node.args(phase);
    }
    println!("{}", stdout_of(&mut node));
}
