//! Waits for a client's session request in a process that runs the oracle's library.
//!
//! The session begins as Sidewalk's do, by a request on the control socket. The library itself then
//! runs it. [`agent_thread`](super::agent_thread) is not used, as it reads code changes into a
//! recorder of its own. Invariant: a client that connects when the attach is complete is answered
//! after the CLR's catch-up (its existing code, modules and threads).

use std::time::Duration;

use control::{Message, reply};
use corprof::AgentCx;

use super::clients::{Clients, Request, refused};
use super::{AgentState, Begun, begin};
use crate::base::waker;
use crate::model::Settings;
use crate::record::Channel;

/// Maximum wait for a client. The attaching tool may have been killed.
const GRACE: Duration = Duration::from_secs(10);

/// Waits for the first request for a session, and begins it. Returns it with the requested
/// configuration, as received. `None`: no client connected, or the session cannot begin.
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
