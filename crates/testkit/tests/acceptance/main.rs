//! The acceptance tests: the real `sidewalk` and agent on real CLRs.
//!
//! One binary, so that it links once; each test takes the machine for itself
//! while it records (`testkit::Machine`).

use testkit::Runtime;

/// Makes tests `NAME::net8` and `NAME::core31` of `fn NAME(&Runtime)`.
macro_rules! on_each_runtime {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[test]
            fn net8() {
                super::$name(&testkit::Runtime::net8());
            }
            #[test]
            fn core31() {
                super::$name(&testkit::Runtime::core31());
            }
        }
    )+};
}

mod agree;
mod app10;
mod bad_input;
mod callers;
mod command_line;
mod compatibility;
mod deep;
mod events;
mod exports;
mod house;
mod limits;
mod mixed;
mod names;
mod outputs;
mod rules;
mod shadow;
mod shares;
mod side_by_side;
mod stress;
mod tiers;
mod walkers;

/// How many percent of walks may break: .NET Core 3.1's own code keeps no
/// frame pointers and some of it has no unwind tables.
fn broken_limit(runtime: &Runtime) -> f64 {
    if runtime.is_core31() { 1.0 } else { 0.1 }
}

/// How many percent of samples may be lost.
const LOST_LIMIT: f64 = 0.1;
