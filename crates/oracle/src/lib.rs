//! `liboracle.so`: a profiler made of the agent's parts that holds its walkers against each other, for
//! `cargo xtask agree` and the tests.
//!
//! Not in the product: what is here would be dead weight, and dangerous, in `libsidewalk.so`. It reads the
//! agent's settings and one of its own, `random_seeds`; its walker is `seeded`, which has the runtimes asked
//! for what each way of walking needs.

mod agree;
mod costs;
mod random_seeds;

use agent::Library;
use agent::record::Channel;
use agent::session::{Begun, End, Parts};
use corprof::AgentCx;

static ORACLE: Library = Library {
    main,
    compiling: Some(costs::measure),
};

corprof::export_profiler!(|request| agent::create(request, &ORACLE));

fn main(parts: &'static Parts, first: Option<(Begun, Channel)>, cx: &mut AgentCx) -> End {
    let Some((begun, channel)) = first else {
        // Nobody attaches the oracle.
        return End::Over;
    };
    let settings = std::env::var("SIDEWALK_CONFIG").unwrap_or_default();
    let random_seeds = settings
        .split(';')
        .find_map(|pair| pair.strip_prefix("random_seeds="))
        .and_then(|number| number.parse().ok());
    agree::Agree::new(parts, begun, channel, random_seeds.unwrap_or(0)).run(cx);
    End::Over
}
