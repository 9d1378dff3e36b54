//! Acceptance tests by tier, as filters of nextest.
//!
//! Unit, property and corpus tests of all crates are in the default tier. Of the acceptance tests,
//! which run real programs on real CLRs, the default tier has those of [`testkit::SMOKE`] on the
//! oldest and the newest runtime; the full tier has all of them on every runtime.

use testkit::{Runtime, SMOKE, Setup};

use crate::runtimes;

/// A runtime whose tests are the same as those of `net8` (an older patch of .NET 8) outside the
/// full tier.
const SAME_BAND: &str = "net8_0_";

/// The acceptance tests, among those of all crates.
const ACCEPTANCE: &str = "binary_id(testkit::acceptance)";

/// The names of the oldest and the newest runtime.
pub(crate) fn smoke_runtimes(setup: &Setup) -> Vec<&str> {
    let by_age = |a: &&Runtime, b: &&Runtime| runtimes::by_age(&a.version, &b.version);
    let all = || setup.runtimes.iter();
    let ends = [all().min_by(by_age), all().max_by(by_age)];
    let ends = ends.into_iter().flatten();
    ends.map(|runtime| runtime.name.as_str()).collect()
}

/// The tests of these runtimes, by the last part of their names; `none()` where there is none.
fn of_runtimes<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return "none()".to_owned();
    }
    format!("test(/::({})$/)", names.join("|"))
}

/// Smoke tests on the smoke runtimes.
fn smoke(setup: &Setup) -> String {
    let chosen = smoke_runtimes(setup);
    let others = setup.runtimes.iter().map(|runtime| runtime.name.as_str());
    let others = of_runtimes(others.filter(|name| !chosen.contains(name)));
    let names = SMOKE.join("|");
    format!("{ACCEPTANCE} & test(/^({names})(::|$)/) - {others}")
}

/// The default tier.
pub fn default(setup: &Setup) -> String {
    format!("(all() - {ACCEPTANCE}) + ({})", smoke(setup))
}

/// All acceptance tests that are not in the default tier, without the second runtime of .NET 8.
pub(crate) fn matrix(setup: &Setup) -> String {
    let names = setup.runtimes.iter().map(|runtime| runtime.name.as_str());
    let same = of_runtimes(names.filter(|name| name.starts_with(SAME_BAND)));
    format!("{ACCEPTANCE} - ({}) - {same}", smoke(setup))
}

/// The acceptance tests of the runtimes for musl: those of the default tier, or all.
pub(crate) fn on_musl(setup: &Setup, is_full: bool) -> String {
    let runtimes = setup.runtimes.iter().filter(|runtime| runtime.is_musl());
    let runtimes = of_runtimes(runtimes.map(|runtime| runtime.name.as_str()));
    match is_full {
        true => format!("{ACCEPTANCE} & {runtimes}"),
        false => format!(
            "{ACCEPTANCE} & test(/^({})::/) & {runtimes}",
            SMOKE.join("|")
        ),
    }
}

/// The tests of runtimes whose version begins so.
pub(crate) fn of_version(setup: &Setup, version: &str) -> String {
    of_runtimes(
        setup
            .of_version(Some(version))
            .map(|runtime| runtime.name.as_str()),
    )
}
