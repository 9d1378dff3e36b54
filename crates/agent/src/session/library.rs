//! Differences between the profiler libraries built from this crate: Sidewalk's and the oracle's.

use corprof::context::Callback;
use corprof::{AgentCx, Cx};

use super::{AgentState, Begun};
use crate::clr::Clr;
use crate::record::Channel;

/// Called in the callback of each compilation.
pub type Watch = for<'rt> fn(&'static AgentState, &Clr, &mut Cx<'rt, Callback>);

/// Reason why the agent thread ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgentEnd {
    /// No CLR is left. The agent has detached and may be attached again.
    Away,
    /// The thread failed, or cannot run another session. No CLR is served any more.
    Over,
}

/// A profiler library: Sidewalk's, or the oracle's.
#[derive(Debug)]
pub struct Library {
    /// Body of the agent thread, which runs until no CLR is left. The argument is the session that
    /// has begun, if any.
    pub main: fn(&'static AgentState, Option<(Begun, Channel)>, &mut AgentCx) -> AgentEnd,
    /// Called at each compilation.
    pub compiling: Option<Watch>,
}
