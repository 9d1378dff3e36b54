//! Identifiers of managed threads.

use sampler::SlotId;

/// A managed thread, unique among several CLRs: the runtime's number and the ThreadID.
pub type ManagedThread = (u8, usize);

/// A managed thread to be walked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTarget {
    /// ThreadID in the suspended CLR.
    pub managed: usize,
    /// The kernel's thread id.
    pub tid: u32,
    /// Its number in the process.
    pub thread: u32,
    /// Its slot in the sampler, if it has one.
    pub slot: Option<SlotId>,
}
