//! `liboracle.so`: a test profiler built from the agent's code, which compares the agent's walkers.
//!
//! `cargo xtask agree` and the tests use it. It is not part of the product, because this code would
//! be dangerous in `libsidewalk.so`.
//!
//! It reads the agent's settings and two more. `random_seeds` is the number of invalid seeds
//! (register contexts from which a walk begins) to try. `bodies=1` reports all known code instead
//! of walking. Its walker is `seeded`, for which the runtimes get the event flags of every kind of
//! walk.

mod agree;
mod costs;
mod random_seeds;

use agent::Library;
use agent::record::Channel;
use agent::session::{AgentEnd, AgentState, Begun, oracle_session};
use corprof::AgentCx;
use dlmalloc::GlobalDlmalloc;

use crate::agree::WalkerComparison;

/// The agent's allocator: the walks that are timed allocate, and the `malloc` of musl is slow.
#[global_allocator]
static HEAP: GlobalDlmalloc = GlobalDlmalloc;

static ORACLE: Library = Library {
    main,
    compiling: Some(costs::measure),
};

corprof::export_profiler!(|request| agent::create(request, &ORACLE));

fn main(agent: &'static AgentState, first: Option<(Begun, Channel)>, cx: &mut AgentCx) -> AgentEnd {
    let (begun, channel, settings) = match first {
        Some((begun, channel)) => {
            let settings = std::env::var("SIDEWALK_CONFIG").unwrap_or_default();
            (begun, channel, settings)
        }
        None => match oracle_session::await_session(agent, cx) {
            Some(session) => session,
            None => return AgentEnd::Over,
        },
    };
    let number = |name: &str| {
        let mut pairs = settings.split(';').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(key, _)| *key == name);
        found.and_then(|(_, number)| number.parse().ok())
    };
    let (random_seeds, bodies) = (number("random_seeds"), number("bodies"));
    let agree = WalkerComparison::new(agent, begun, channel, random_seeds.unwrap_or(0));
    if bodies == Some(1) {
        agree.write_bodies(cx);
    } else {
        agree.run(cx);
    }
    AgentEnd::Over
}
