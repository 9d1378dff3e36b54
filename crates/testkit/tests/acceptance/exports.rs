//! What the agent exports into the program.

use std::process::Command;

use testkit::agent;

/// The CLR calls these two; nothing else may leak into the program's scope.
const ALLOWED: [&str; 2] = ["DllGetClassObject", "DllMain"];

#[test]
fn the_agent_exports_only_what_the_clr_calls() {
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(agent())
        .output()
        .expect("nm of binutils, which the linker comes with");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let symbols: Vec<&str> = text.lines().filter_map(|l| l.split(' ').next()).collect();
    assert!(symbols.contains(&"DllGetClassObject"), "{symbols:?}");
    let others: Vec<_> = symbols.iter().filter(|s| !ALLOWED.contains(s)).collect();
    assert!(others.is_empty(), "the agent exports {others:?}");
}
