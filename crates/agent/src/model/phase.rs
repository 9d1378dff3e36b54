//! The process's present activity: the one answer to "is it recording?".
//!
//! Callbacks, hooks and the agent thread read it ([`PhaseReader`]); only `session::phases` holds
//! the [`PhaseWriter`] and moves it. Invariant: there is one writer, and a phase is entered before
//! what it forbids is torn down, so code that has read the new phase does not begin what is about
//! to end.

use std::sync::atomic::{AtomicU8, Ordering};

/// The process's activity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    /// No session: nothing is sampled and nothing is kept for a recording.
    Idle = 0,
    /// A session, none of whose CLRs is running: one may start.
    Waiting = 1,
    /// A session that records a CLR.
    Recording = 2,
    /// A session that takes no more samples; what waits is being written.
    Draining = 3,
    /// The agent thread is gone: nothing is taken any more.
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

    /// There is a session, which wants to hear of threads and modules.
    pub fn is_session(self) -> bool {
        matches!(self, Phase::Waiting | Phase::Recording | Phase::Draining)
    }

    /// A CLR that asks now may be recorded.
    pub fn takes_runtimes(self) -> bool {
        matches!(self, Phase::Waiting | Phase::Recording)
    }
}

/// Reads the phase. From anywhere, the signal handler included: one load.
#[derive(Clone, Copy, Debug)]
pub struct PhaseReader(&'static AtomicU8);

/// Moves the phase. There is one.
#[derive(Debug)]
pub struct PhaseWriter(&'static AtomicU8);

/// The two ends of a new phase, which is [`Phase::Idle`]. They live as long as the process.
pub fn new_phase() -> (PhaseWriter, PhaseReader) {
    let cell: &'static AtomicU8 = Box::leak(Box::new(AtomicU8::new(Phase::Idle as u8)));
    (PhaseWriter(cell), PhaseReader(cell))
}

fn of_code(code: u8) -> Phase {
    let found = Phase::ALL.into_iter().find(|phase| *phase as u8 == code);
    found.unwrap_or(Phase::Left)
}

impl PhaseReader {
    /// The phase of now.
    #[inline]
    pub fn get(self) -> Phase {
        // Pairs with the writer: who sees the phase sees what was made ready for it.
        of_code(self.0.load(Ordering::Acquire))
    }

    /// Samples are taken.
    #[inline]
    pub fn is_recording(self) -> bool {
        self.0.load(Ordering::Acquire) == Phase::Recording as u8
    }
}

impl PhaseWriter {
    /// Moves to `next` if the phase is one of `from`; else it stays, which is answered.
    pub fn change(&self, from: &[Phase], next: Phase) -> Result<(), Phase> {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |code| {
                from.contains(&of_code(code)).then_some(next as u8)
            })
            .map(drop)
            .map_err(of_code)
    }
}
