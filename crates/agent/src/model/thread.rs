//! Names for threads.

use sampler::SlotId;

/// A managed thread, named so that several CLRs cannot be confused: the runtime's number and
/// ThreadID.
pub type ManagedThread = (u8, usize);

/// A managed thread that is to be walked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTarget {
    /// ThreadID of the CLR that is stopped.
    pub managed: usize,
    /// The kernel's number.
    pub tid: u32,
    /// Its number in the process.
    pub thread: u32,
    /// Where the sampler knows it.
    pub slot: Option<SlotId>,
}
