//! A session of a library other than Sidewalk's, in a process that it was attached to: the
//! oracle's.
//!
//! It is begun as ours is, by a client of the control socket; what is done in it is the library's.
//! Not the way of [`agent_thread`](super::agent_thread), which takes in code for a recording of its
//! own. Invariant: who comes when the attach is complete is answered when the past of the CLR is
//! known.

use std::time::Duration;

use control::{Message, reply};
use corprof::AgentCx;

use super::clients::{Clients, Request, refused};
use super::{AgentState, Begun, begin};
use crate::base::waker;
use crate::model::Settings;
use crate::record::Channel;

/// How long the agent waits for a client. The attaching tool may have been killed.
const GRACE: Duration = Duration::from_secs(10);

/// Waits for the first request for a session, and begins it. Returns it with the requested
/// configuration, as it was received. `None`: no client came, or it cannot begin.
pub fn await_session(
    agent: &'static AgentState,
    cx: &mut AgentCx,
) -> Option<(Begun, Channel, String)> {
    let mut clients = Clients::default();
    loop {
        waker::clear_handler_wake();
        agent.catch_up(cx);
        for (request, mut client) in clients.poll(agent) {
            let Request::Record { config, .. } = request else {
                client.reply(&refused("it stays loaded until the process ends"));
                continue;
            };
            let begun = begin::begin(agent, Settings::parse(&config)).ok()?;
            client.reply(&Message::new(reply::OK));
            client.channel.promote_to_tool().ok()?;
            return Some((begun, client.channel, config));
        }
        let mut fds = vec![agent.control_socket.fd()];
        fds.extend(clients.fds());
        if !agent.waker.wait(&fds, Some(GRACE)) {
            return None;
        }
    }
}
