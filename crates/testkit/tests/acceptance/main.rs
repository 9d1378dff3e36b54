//! The acceptance tests: the real `sidewalk` and agent on real CLRs.
//!
//! They are one binary, so it links once. Each test locks the machine while it records
//! (`testkit::Machine`).

use testkit::Runtime;

/// Makes tests `NAME::RUNTIME` of `fn NAME(&Runtime)`.
macro_rules! tests_of {
    ($test:ident: $($runtime:ident),* $(,)?) => {
        mod $test {
            // Keeps the function used if no such runtime exists.
            const _: fn(&testkit::Runtime) = super::$test;
            $(
                #[test]
                fn $runtime() {
                    super::$test(&testkit::Runtime::named(stringify!($runtime)));
                }
            )*
        }
    };
}

/// Makes tests `NAME::net8` and `NAME::core31` of `fn NAME(&Runtime)`, for behaviour that depends
/// at most on the band of the runtime. Behaviour that can differ between any two runtimes uses
/// `on_each_runtime!`, which makes one test for each runtime of the set-up, such as
/// `NAME::net10_0_14`. Tests that need ASP.NET Core use `on_each_web_runtime!`.
macro_rules! on_net8_and_core31 {
    ($($test:ident),+ $(,)?) => {
        $(tests_of! { $test: net8, core31 })+
    };
}

include!(concat!(env!("OUT_DIR"), "/on_each_runtime.rs"));

mod abrupt;
mod agree;
mod app10;
mod async_chains;
mod async_web;
mod attach;
mod attached_tiers;
mod bad_input;
mod callers;
mod change;
mod command_line;
mod compatibility;
#[cfg(composite)]
mod composite;
mod containers;
mod cost;
mod crypto;
mod daemon;
mod deep;
mod diagnostics_socket;
mod doctor;
mod dump;
mod dumps;
mod events;
mod exports;
mod found;
mod held_up;
mod hot_reload;
mod house;
mod intervals;
mod limits;
mod list;
mod live;
mod mixed;
mod names;
mod outputs;
mod pages;
mod prose;
mod recipes;
mod refusals;
mod rules;
mod shadow;
mod shares;
mod side_by_side;
mod signals;
mod stacks;
mod stepper;
mod steps;
mod strays;
mod stress;
mod testing;
mod tiers;
mod top;
mod traced_async;
mod traced_framework;
mod tracing;
mod truncated;
mod unseen;
mod versions;
mod walkers;
mod wall;

/// Maximum percentage of broken walks. .NET Core 3.1's own code has no frame pointers, and some of
/// it has no unwind tables.
fn broken_limit(runtime: &Runtime) -> f64 {
    if runtime.is_core31() { 1.0 } else { 0.1 }
}

/// Maximum percentage of lost samples.
const LOST_LIMIT: f64 = 0.1;

/// The records of a recording, as many as stand in whole blocks by now; `None` where it has not
/// begun.
fn records(recording: &std::path::Path) -> Option<Vec<recording::Record<'static>>> {
    let file = std::fs::File::open(recording).ok()?;
    let mut reader = recording::Reader::open(file).ok()?;
    let mut records = Vec::new();
    while let Some(item) = reader.next_item().unwrap() {
        if let recording::Item::Record(_, record) = item {
            records.push(record.into_owned());
        }
    }
    Some(records)
}
