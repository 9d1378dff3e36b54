//! Connected clients whose request has not arrived or has not been answered yet.
//!
//! Agent thread only. No call blocks for a client: a request is read once it has arrived
//! completely. Invariant: an idle client occupies one descriptor. At most [`MOST`] clients wait;
//! the oldest is dropped for a new one.

use std::os::fd::RawFd;
use std::time::Duration;

use control::{Message, MessageReader, PROTOCOL, Peer, keys, reply, verb};

use sampler::Sampler;

use super::AgentState;
use crate::model::Phase;
use crate::record::Channel;

/// Maximum number of waiting clients.
const MOST: usize = 4;
/// Maximum time until an answer is accepted.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// A connected client, which may send a request.
#[derive(Debug)]
pub(crate) struct Client {
    pub(super) channel: Channel,
    peer: Peer,
    incoming: MessageReader,
}

/// A client's request.
#[derive(Debug)]
pub(super) enum Request {
    /// Record with this configuration.
    Record {
        config: String,
        stay: bool,
        who: String,
    },
    /// Record these events from now on, in the running session.
    Change { events: String },
    /// Detach the agent.
    Leave,
}

/// The connected clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    waiting: Vec<Client>,
    /// Clients to notify after the agent has detached.
    pub(super) detach_requests: Vec<Client>,
}

impl Client {
    /// Sends a message. Errors are ignored, as the client may have disconnected.
    pub(super) fn reply(&mut self, message: &Message) {
        let mut bytes = Vec::new();
        if control::send(&mut bytes, message).is_ok() {
            let _gone = self.channel.send(&bytes);
        }
    }

    /// Receives a message. Returns `None` while it is incomplete, and an error if it cannot be
    /// completed.
    fn receive(&mut self) -> Result<Option<Message>, ()> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(message) = self.incoming.message().map_err(drop)? {
                return Ok(Some(message));
            }
            let wanted = self.incoming.bytes_wanted().min(buffer.len());
            let room = buffer.get_mut(..wanted).ok_or(())?;
            match self.channel.receive(room) {
                Ok(0) => return Err(()),
                Ok(got) => self.incoming.add(buffer.get(..got).ok_or(())?),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
                Err(_) => return Err(()),
            }
        }
    }
}

impl Clients {
    /// Returns the descriptors for `poll`.
    pub(super) fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.waiting.iter().map(|client| client.channel.fd())
    }

    /// Answers requests that need no decision. Returns the others to the caller.
    pub(super) fn poll(&mut self, agent: &AgentState) -> Vec<(Request, Client)> {
        while let Some((stream, peer)) = agent.control_socket.accept() {
            let Ok(channel) = Channel::from_client(stream, ANSWER_TIMEOUT) else {
                continue;
            };
            if self.waiting.len() >= MOST {
                self.waiting.remove(0);
            }
            self.waiting.push(Client {
                channel,
                peer,
                incoming: MessageReader::default(),
            });
        }
        let mut requests = Vec::new();
        for mut client in std::mem::take(&mut self.waiting) {
            match client.receive() {
                Ok(None) => self.waiting.push(client),
                Ok(Some(message)) => requests.extend(take(agent, &message, client)),
                Err(()) => {}
            }
        }
        requests
    }
}

/// Returns the request if the caller must decide about it.
fn take(agent: &AgentState, message: &Message, mut client: Client) -> Option<(Request, Client)> {
    if message.get(keys::PROTOCOL) != Some(PROTOCOL) {
        let why = concat!(
            "the agent in the process is that of sidewalk ",
            env!("CARGO_PKG_VERSION")
        );
        client.reply(&refused(why));
        return None;
    }
    let busy = agent.phase.get() != Phase::Idle;
    match &*message.verb {
        verb::STATE => {
            client.reply(&state(agent));
            None
        }
        verb::CHANGE if !busy => {
            client.reply(&refused("nobody records it"));
            None
        }
        verb::CHANGE => {
            let events = message.get(keys::EVENTS).unwrap_or_default().to_owned();
            Some((Request::Change { events }, client))
        }
        verb::RECORD | verb::DETACH if busy => {
            client.reply(&Message::new(reply::BUSY).with(keys::BY, &agent.recorded_by()));
            None
        }
        verb::RECORD => {
            let who = message.get(keys::WHO).map_or_else(
                || format!("process {}", client.peer.pid),
                |who| who.chars().take(200).collect(),
            );
            let request = Request::Record {
                config: message.get(keys::CONFIG).unwrap_or_default().to_owned(),
                stay: message.get(keys::STAY) == Some("1"),
                who,
            };
            Some((request, client))
        }
        verb::DETACH => Some((Request::Leave, client)),
        _ => {
            client.reply(&refused("the agent in the process does not know how"));
            None
        }
    }
}

/// Returns a refusal with its reason.
pub(super) fn refused(why: &str) -> Message {
    Message::new(reply::REFUSED).with(keys::WHY, why)
}

fn state(agent: &AgentState) -> Message {
    let phase = match agent.phase.get() {
        Phase::Idle => "idle",
        Phase::Left => "failed",
        _ => "recording",
    };
    let known = agent.registry.known();
    let runtimes = known.iter().filter_map(|known| {
        let (clr, _) = known.reach.as_ref()?;
        let arrival = match clr.arrival() {
            control::LoadMode::Attached => "attached",
            control::LoadMode::Startup => "started",
        };
        Some(format!("{} {arrival}", known.version))
    });
    let open = Sampler::open_handlers(activation::signal_number());
    Message::new(reply::OK)
        .with(keys::VERSION, env!("CARGO_PKG_VERSION"))
        .with(keys::PHASE, phase)
        .with(keys::BY, &agent.recorded_by())
        .with(keys::RUNTIMES, &runtimes.collect::<Vec<_>>().join(", "))
        .with(keys::MASKED_FAULTS, &open.masked.to_string())
        .with(keys::OPEN_FAULTS, &open.left.to_string())
}
