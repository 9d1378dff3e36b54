//! Contract between the agent and [`super::Cutter`]: how far back a record refers.
//!
//! An agent empties a table of definitions before it has written this many since the table was
//! empty, and writes what it needs again under new numbers. So a definition is of no use once so
//! many newer ones exist, unless something that waits in the agent (a sampled object until a
//! snapshot finds it alive) or its last sample refers to it.

/// Stacks.
pub const STACKS: usize = 128 * 1024;
/// Frames.
pub const FRAMES: usize = 64 * 1024;
/// Methods, and managed modules.
pub const METHODS: usize = 64 * 1024;
/// Details of events.
pub const DETAILS: usize = 16 * 1024;
