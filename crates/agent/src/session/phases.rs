//! The phases of the process, and the functions that change them. No other module does.
//!
//! ```text
//!          begin            a CLR starts
//!   Idle ────────▶ Waiting ─────────────▶ Recording
//!    ▲                │ ▲ the last one ends    │
//!    │ over           │ └──────────────────────┤
//!    └── Draining ◀───┴──── drain ◀────────────┘        any ── leave ──▶ Left
//! ```

use crate::model::Phase;
use crate::model::phase::{PhaseReader, PhaseWriter, new_phase};

/// Changes the phase.
#[derive(Debug)]
pub struct Phases(PhaseWriter);

impl Phases {
    /// Returns the phases of a process without a session, and a reader of them.
    pub fn new() -> (Phases, PhaseReader) {
        let (writer, reader) = new_phase();
        (Phases(writer), reader)
    }

    /// Begins a session. Returns false if a session runs or the agent thread has ended.
    pub(super) fn begin(&self) -> bool {
        self.0.change(&[Phase::Idle], Phase::Waiting).is_ok()
    }

    /// Notes that a CLR is recorded from here on, unless the session is about to end.
    pub fn runtime_starts(&self) {
        let _ends = self
            .0
            .change(&[Phase::Waiting, Phase::Recording], Phase::Recording);
    }

    /// Notes that the last recorded CLR ends.
    pub(super) fn runtimes_rest(&self) {
        let _ends = self.0.change(&[Phase::Recording], Phase::Waiting);
    }

    /// Ends sampling.
    pub(super) fn drain(&self) {
        let _was_idle = self
            .0
            .change(&[Phase::Waiting, Phase::Recording], Phase::Draining);
    }

    /// Ends the session.
    pub(super) fn over(&self) {
        let _left = self.0.change(&[Phase::Draining], Phase::Idle);
    }

    /// Notes that the agent thread has ended.
    pub fn leave(&self) {
        let _from_any = self.0.change(
            &[
                Phase::Idle,
                Phase::Waiting,
                Phase::Recording,
                Phase::Draining,
            ],
            Phase::Left,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_follow_each_other_and_nothing_follows_the_end() {
        let (phases, phase) = Phases::new();
        assert_eq!(phase.get(), Phase::Idle);
        for _ in 0..2 {
            assert!(phases.begin());
            assert!(!phases.begin(), "one at a time");
            assert_eq!(phase.get(), Phase::Waiting);
            phases.runtime_starts();
            assert!(phase.is_recording());
            phases.runtimes_rest();
            assert_eq!(phase.get(), Phase::Waiting);
            phases.runtime_starts();
            phases.drain();
            assert_eq!(phase.get(), Phase::Draining);
            phases.runtime_starts();
            assert_eq!(phase.get(), Phase::Draining, "a CLR that comes too late");
            assert!(!phases.begin());
            phases.over();
            assert_eq!(phase.get(), Phase::Idle);
        }
        phases.runtime_starts();
        assert_eq!(phase.get(), Phase::Idle, "nobody records");
        phases.leave();
        assert_eq!(phase.get(), Phase::Left);
        assert!(!phases.begin());
        phases.over();
        assert_eq!(phase.get(), Phase::Left);
    }

    #[test]
    fn what_each_phase_allows() {
        for (phase, session, runtimes) in [
            (Phase::Idle, false, false),
            (Phase::Waiting, true, true),
            (Phase::Recording, true, true),
            (Phase::Draining, true, false),
            (Phase::Left, false, false),
        ] {
            assert_eq!(
                (phase.is_session(), phase.takes_runtimes()),
                (session, runtimes)
            );
        }
    }
}
