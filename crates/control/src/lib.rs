//! The control socket: protocol between the tool and an agent in a running process.
//!
//! This crate has the path of the socket ([`socket_path`]), both ends ([`Listener`], [`connect`])
//! and the messages ([`Message`]). The agent and the tool share it, so that they always agree; they
//! decide what is requested and replied. Every session of a process starts over this socket, except
//! the first one of a program that was started with the agent. So only the path depends on
//! namespaces.
//!
//! Invariants: only the user of the process and root get a reply; a peer's data never takes more
//! than [`MAX_MESSAGE`] bytes of memory.

mod classes;
mod message;
mod socket;
mod socket_path;

pub use classes::{BASE, LoadMode, ProfilerSlot, class_of, clsid_text};
pub use message::{MAX_MESSAGE, Message, MessageReader, receive, send};
pub use socket::{Listener, Peer, connect, peer_of};
pub use socket_path::{socket_folder, socket_name, socket_path, start_time};

/// Version of the protocol, changed with each incompatible change.
pub const PROTOCOL: &str = "1";

/// Verbs of requests. Each request has [`keys::PROTOCOL`].
pub mod verb {
    /// Asks for the agent's state. Answered with [`super::reply::OK`] and the state's keys.
    pub const STATE: &str = "state";
    /// Starts recording. After [`super::reply::OK`] the stream belongs to the recording: the agent
    /// sends blocks, and the tool sends one byte `S` to stop.
    pub const RECORD: &str = "record";
    /// Changes the events of the running recording to these [`super::keys::EVENTS`]. The reply has
    /// the events that are recorded from then on.
    pub const CHANGE: &str = "change";
    /// Detaches the agent, if the runtimes permit it. The reply follows when that is done.
    pub const DETACH: &str = "leave";
    /// Client data of an attach.
    pub const ATTACH: &str = "attach";
}

/// Verbs of replies.
pub mod reply {
    /// The request is done, or has begun.
    pub const OK: &str = "ok";
    /// Another client is recording: [`super::keys::BY`].
    pub const BUSY: &str = "busy";
    /// The request is not possible: [`super::keys::WHY`].
    pub const REFUSED: &str = "refused";
}

/// Keys of values in messages.
pub mod keys {
    /// [`super::PROTOCOL`].
    pub const PROTOCOL: &str = "protocol";
    /// Path for the agent's socket, as the process sees it.
    pub const SOCKET: &str = "socket";
    /// `1` if the heap will be walked, for which a runtime must be prepared when the agent is
    /// loaded.
    pub const HEAP: &str = "heap";
    /// Settings of a recording, as in `SIDEWALK_CONFIG`.
    pub const CONFIG: &str = "config";
    /// Names of events, joined by commas.
    pub const EVENTS: &str = "events";
    /// `1` if the agent stays loaded after the recording.
    pub const STAY: &str = "stay";
    /// Process and user of the requesting tool.
    pub const WHO: &str = "who";
    /// The tool that is recording.
    pub const BY: &str = "by";
    /// Reason for a refusal, or for staying loaded.
    pub const WHY: &str = "why";
    /// Result of [`super::verb::DETACH`]: `left` or `idle`; `leaving` in a refusal.
    pub const HOW: &str = "how";
    /// State of the process: `idle`, `recording`, `leaving`.
    pub const PHASE: &str = "phase";
    /// The runtimes in the process: `8.0.4 attached, 3.1.23 started`.
    pub const RUNTIMES: &str = "runtimes";
    /// Signals of faults to whose handlers' masks the runtime's signal is added, as a set: bit
    /// N - 1 is signal N.
    pub const MASKED_FAULTS: &str = "masked-faults";
    /// Signals of faults whose handlers let the runtime's signal in, and cannot be changed; as
    /// `MASKED_FAULTS`.
    pub const OPEN_FAULTS: &str = "open-faults";
    /// Version of the agent.
    pub const VERSION: &str = "version";
}
