//! The recording phase of the process: whether it is idle, recording, draining, …
//!
//! Callbacks, hooks and the agent thread read it ([`PhaseReader`]). Only `session::phases` has the
//! [`PhaseWriter`]. Invariant: there is one writer. A phase is set before the things that it
//! forbids are torn down, so code that has read the new phase does not start what is about to end.

use std::sync::atomic::{AtomicU8, Ordering};

/// The recording phase of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    /// No session: nothing is sampled and nothing is kept for a recording.
    Idle = 0,
    /// A session in which no CLR runs yet: one may start.
    Waiting = 1,
    /// A session that records a CLR.
    Recording = 2,
    /// A session that takes no more samples; queued ones are being written.
    Draining = 3,
    /// The agent thread has ended: nothing is recorded any more.
    Left = 4,
}

impl Phase {
    const ALL: [Phase; 5] = [
        Phase::Idle,
        Phase::Waiting,
        Phase::Recording,
        Phase::Draining,
        Phase::Left,
    ];

    /// Whether there is a session, for which threads and modules are recorded.
    pub fn is_session(self) -> bool {
        matches!(self, Phase::Waiting | Phase::Recording | Phase::Draining)
    }

    /// Whether a CLR that starts now may be recorded.
    pub fn takes_runtimes(self) -> bool {
        matches!(self, Phase::Waiting | Phase::Recording)
    }
}

/// Reads the phase. Callable from anywhere, the signal handler included: one load.
#[derive(Clone, Copy, Debug)]
pub struct PhaseReader(&'static AtomicU8);

/// Changes the phase. There is one instance.
#[derive(Debug)]
pub struct PhaseWriter(&'static AtomicU8);

/// Creates the writer and the reader of a new phase, [`Phase::Idle`]. They live as long as the
/// process.
pub fn new_phase() -> (PhaseWriter, PhaseReader) {
    let cell: &'static AtomicU8 = Box::leak(Box::new(AtomicU8::new(Phase::Idle as u8)));
    (PhaseWriter(cell), PhaseReader(cell))
}

fn of_code(code: u8) -> Phase {
    let found = Phase::ALL.into_iter().find(|phase| *phase as u8 == code);
    found.unwrap_or(Phase::Left)
}

impl PhaseReader {
    /// Returns the current phase.
    #[inline]
    pub fn get(self) -> Phase {
        // Acquire: pairs with the writer. A thread that reads the phase sees what was prepared for
        // it.
        of_code(self.0.load(Ordering::Acquire))
    }

    /// Whether samples are taken.
    #[inline]
    pub fn is_recording(self) -> bool {
        self.0.load(Ordering::Acquire) == Phase::Recording as u8
    }
}

impl PhaseWriter {
    /// Changes to `next` if the phase is one of `from`; else returns the current phase as an error.
    pub fn change(&self, from: &[Phase], next: Phase) -> Result<(), Phase> {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |code| {
                from.contains(&of_code(code)).then_some(next as u8)
            })
            .map(drop)
            .map_err(of_code)
    }
}
