//! The parts of the agent that differ between the profilers' libraries.

use corprof::context::Callback;
use corprof::{AgentCx, Cx};

use super::{AgentState, Begun};
use crate::clr::Clr;
use crate::record::Channel;

/// Seen in a callback of each compilation.
pub type Watch = for<'rt> fn(&'static AgentState, &Clr, &mut Cx<'rt, Callback>);

/// How the agent thread ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgentEnd {
    /// No CLR is left: we are out of the process, and may come again.
    Away,
    /// It failed, or cannot be asked for another session: no CLR is looked after any more.
    Over,
}

/// One profiler's library of these parts: Sidewalk's, or the oracle's.
#[derive(Debug)]
pub struct Library {
    /// The agent thread, from when we come until no CLR is left: with the session that has begun,
    /// or none yet.
    pub main: fn(&'static AgentState, Option<(Begun, Channel)>, &mut AgentCx) -> AgentEnd,
    /// Asked at each compilation.
    pub compiling: Option<Watch>,
}
