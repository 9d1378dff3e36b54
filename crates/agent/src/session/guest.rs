//! A session of a library other than Sidewalk's, in a process that it was attached to: the
//! oracle's.
//!
//! It is begun as ours is, by who comes to the door; what is done in it is the library's. Not the
//! way of [`agent_thread`](super::agent_thread), which takes in code for a recording of its own.
//! Invariant: who comes when the attach is complete is answered when the past of the CLR is known.

use std::time::Duration;

use control::{Message, answer};
use corprof::AgentCx;

use super::visitors::{Request, Visitors, refused};
use super::{Begun, Parts, begin};
use crate::base::wake;
use crate::model::Settings;
use crate::record::Channel;

/// How long the agent waits for a client. The attaching tool may have been killed.
const GRACE: Duration = Duration::from_secs(10);

/// Waits for the first request for a session, and begins it. Returns it with the requested
/// configuration, as it was received. `None`: no client came, or it cannot begin.
pub fn await_session(parts: &'static Parts, cx: &mut AgentCx) -> Option<(Begun, Channel, String)> {
    let mut visitors = Visitors::default();
    loop {
        wake::hear_call();
        parts.catch_up(cx);
        for (request, mut visitor) in visitors.look(parts) {
            let Request::Record { config, .. } = request else {
                visitor.tell(&refused("it stays loaded until the process ends"));
                continue;
            };
            let begun = begin::begin(parts, Settings::parse(&config)).ok()?;
            visitor.tell(&Message::new(answer::OK));
            visitor.channel.becomes_tool().ok()?;
            return Some((begun, visitor.channel, config));
        }
        let mut fds = vec![parts.door.fd()];
        fds.extend(visitors.fds());
        if !parts.wake.wait(&fds, Some(GRACE)) {
            return None;
        }
    }
}
