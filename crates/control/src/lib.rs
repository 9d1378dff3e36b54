//! The control socket: how the tool talks to an agent that is in a process already.
//!
//! Where it lies ([`socket_path`]), who may use it ([`Listener`], [`connect`]), and what is said on
//! it ([`Message`]); the agent and the tool share this crate so that they cannot come apart. It
//! decides nothing: who is recorded, and what is answered, is theirs. Every session of a process
//! begins here but the first one of a started program, so that namespaces need nothing but the
//! path. Invariants: only the user whom the process runs as, and root, get an answer; nothing that
//! a peer sends makes us hold more than [`MAX_MESSAGE`] bytes.

mod classes;
mod message;
mod socket;
mod socket_path;

pub use classes::{BASE, LoadMode, ProfilerSlot, class_of, clsid_text};
pub use message::{MAX_MESSAGE, Message, MessageReader, receive, send};
pub use socket::{Listener, Peer, connect, peer_of};
pub use socket_path::{socket_folder, socket_name, socket_path, start_time};

/// Changes when what is said here changes so that the two sides misunderstand each other.
pub const PROTOCOL: &str = "1";

/// Verbs of requests. Each request has [`keys::PROTOCOL`].
pub mod verb {
    /// Asks for the agent's state. Answered with [`super::reply::OK`] and the state's keys.
    pub const STATE: &str = "state";
    /// Record from now on. After [`super::reply::OK`] the stream is the recording's: blocks come
    /// out, one byte `S` goes in.
    pub const RECORD: &str = "record";
    /// Record these [`super::keys::EVENTS`] from now on, in the recording that is being made;
    /// answered with those that are recorded then.
    pub const CHANGE: &str = "change";
    /// Leave the process, if its runtimes allow it. Answered when that is done.
    pub const DETACH: &str = "leave";
    /// Client data of an attach.
    pub const ATTACH: &str = "attach";
}

/// Verbs of answers.
pub mod reply {
    /// Done, or begun.
    pub const OK: &str = "ok";
    /// Another client records: [`super::keys::BY`].
    pub const BUSY: &str = "busy";
    /// Not possible: [`super::keys::WHY`].
    pub const REFUSED: &str = "refused";
}

/// Keys.
pub mod keys {
    /// [`super::PROTOCOL`].
    pub const PROTOCOL: &str = "protocol";
    /// Where the agent's socket is to be, as the process sees it.
    pub const SOCKET: &str = "socket";
    /// `1`: the heap will be walked, for which a runtime must be prepared when the agent comes.
    pub const HEAP: &str = "heap";
    /// Settings of a recording, as in `SIDEWALK_CONFIG`.
    pub const CONFIG: &str = "config";
    /// Names of events, joined by commas.
    pub const EVENTS: &str = "events";
    /// `1`: the agent stays when the recording is over.
    pub const STAY: &str = "stay";
    /// The asking tool's process and user.
    pub const WHO: &str = "who";
    /// The tool that records now.
    pub const BY: &str = "by";
    /// Why not, or why it stays.
    pub const WHY: &str = "why";
    /// `left` or `idle`.
    pub const HOW: &str = "how";
    /// State of the process: `idle`, `recording`, `leaving`.
    pub const PHASE: &str = "phase";
    /// The runtimes in the process: `8.0.4 attached, 3.1.23 started`.
    pub const RUNTIMES: &str = "runtimes";
    /// Version of the agent.
    pub const VERSION: &str = "version";
}
