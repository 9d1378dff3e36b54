//! What makes one profiler's library of the agent's parts.

use corprof::context::Callback;
use corprof::{AgentCx, Cx};

use super::{Begun, Parts};
use crate::clr::Clr;
use crate::record::Channel;

/// Seen in a callback of each compilation.
pub type Watch = for<'rt> fn(&'static Parts, &Clr, &mut Cx<'rt, Callback>);

/// What makes one profiler's library of these parts: Sidewalk's, or the oracle's.
#[derive(Debug)]
pub struct Library {
    /// The agent thread, for the process's life.
    pub main: fn(&'static Parts, Begun, Channel, &mut AgentCx),
    /// Asked at each compilation.
    pub compiling: Option<Watch>,
}
