//! Which code the runtimes have made: for the handler at once, for the agent thread in order.
//!
//! Two readers want to know of a body. The signal handler asks the code map how to unwind an address
//! now; the agent thread asks [`CodeHistory`](super::CodeHistory) what an address was when a sample was
//! taken, and learns it from the changes that are queued here. Both are told in one place, so that they
//! cannot come apart.
//!
//! Dynamic methods come and go by the hundred thousand, and few of them are ever met by a walk. Only the code map is told of
//! them, with whose they are; the queue hears of one when a sample has met it.
//!
//! Invariants: a body is queued before it is in the code map, or the map says whose it is, and has left the map before its
//! removal is queued, so whatever a walk met is known to who resolves it; the lock is a leaf, held for a push;
//! the agent thread is called before the queue is long, so that it stays short for ever, with or
//! without a session.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use stackwalk::{ADDRESS, CodeMap, EXACT, Taken, is_behind_unknown_call, jit, lookup_address, pe};

use crate::base::proc;
use crate::base::wake::Wake;
use crate::model::phase::PhaseReader;
use crate::model::{CodeBody, Phase};

/// Which code is where. Static, because the handler must find it without a lock.
pub static CODE_MAP: CodeMap = CodeMap::new();

/// Changes at which the agent thread is called.
const CALL_AT: usize = 4096;

/// Room for the changes of a round, but for a program that compiles a lot: 64 KiB.
pub(super) const ROOM: usize = 1024;

/// Something that happened to the program's code.
#[derive(Clone, Debug)]
pub enum CodeChange {
    /// A body was added.
    Added(CodeBody),
    /// All bodies that start inside the range were removed.
    Removed {
        /// Addresses.
        range: Range<u64>,
        /// CLOCK_MONOTONIC.
        at_ns: u64,
    },
}

/// Whose a body of managed code is: the word that the code map keeps with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Number of the runtime.
    pub runtime: u8,
    /// FunctionID of a dynamic method whose names nobody has asked for; 0 for other code.
    pub unnamed: usize,
}

impl Owner {
    /// Bits of the word that say which runtime.
    const RUNTIME_BITS: u32 = u8::BITS;

    fn of_runtime(runtime: u8) -> Owner {
        Owner {
            runtime,
            unnamed: 0,
        }
    }

    fn of_dynamic(runtime: u8, function: usize) -> Owner {
        Owner {
            runtime,
            unnamed: function,
        }
    }

    fn word(self) -> u64 {
        u64::from(self.runtime) | (self.unnamed as u64) << Owner::RUNTIME_BITS
    }

    /// From the word of a JITted body or of an image.
    pub fn of_word(word: u64) -> Owner {
        Owner {
            // The lowest bits.
            runtime: word as u8,
            unnamed: (word >> Owner::RUNTIME_BITS) as usize,
        }
    }
}

/// Whether a runtime may be asked for the method at a word of a walk.
///
/// Of an address in ReadyToRun code that has never run it dies: it goes back from one method of the image to the one before
/// until it finds one that has run, and does not stop where its table begins (`ReadyToRunJitManager::JitCodeToMethodInfo`). What
/// was interrupted runs, and so does what a call returns to; a wrong unwind table may lead anywhere else.
pub(crate) fn may_be_asked_for(map: &CodeMap, word: u64) -> bool {
    let address = word & ADDRESS;
    let is_known = || map.lookup(lookup_address(word)).is_some();
    word & EXACT != 0
        || map.is_behind_call(address)
        || !is_known() && is_behind_unknown_call(address)
}

/// All code of the process.
pub struct CodeIndex {
    map: &'static CodeMap,
    changes: Mutex<Vec<CodeChange>>,
    phase: PhaseReader,
    wake: &'static Wake,
}

impl CodeIndex {
    /// Nothing known yet.
    pub fn new(phase: PhaseReader, wake: &'static Wake) -> CodeIndex {
        CodeIndex {
            map: &CODE_MAP,
            changes: Mutex::default(),
            phase,
            wake,
        }
    }

    /// For walks and look-ups.
    pub fn map(&self) -> &'static CodeMap {
        self.map
    }

    fn changes(&self) -> MutexGuard<'_, Vec<CodeChange>> {
        self.changes.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A body was compiled. In the callback that follows its publication.
    pub fn added(&self, body: CodeBody, unwind: jit::Body) {
        let owner = Owner::of_runtime(body.runtime);
        self.push([CodeChange::Added(body)]);
        self.map.add_jit_body(unwind, owner.word());
    }

    /// A dynamic method was compiled: as [`CodeIndex::added`], and nothing is known of it but whose it is. False, and nothing
    /// done, for an id that is none.
    pub fn dynamic_added(&self, unwind: jit::Body, runtime: u8, function: usize) -> bool {
        let owner = Owner::of_dynamic(runtime, function);
        let is_whole = function != 0 && Owner::of_word(owner.word()) == owner;
        is_whole && self.map.add_jit_body(unwind, owner.word())
    }

    /// A dynamic method goes, whose body starts there: as [`CodeIndex::removed`], and nothing is queued. `None` where the
    /// map has it not, or with its names.
    pub fn take_dynamic(&self, start: u64, runtime: u8, function: usize) -> Option<Taken> {
        let owner = Owner::of_dynamic(runtime, function);
        self.map
            .take_jit_body(start, |word| Owner::of_word(word) == owner)
    }

    /// All JITted code of a runtime that has ended goes.
    pub fn runtime_removed(&self, runtime: u8) {
        self.map
            .remove_jit_bodies(|word| Owner::of_word(word).runtime == runtime);
    }

    /// Bodies go. In the callback that announces it, before their memory is used again.
    pub fn removed(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let at_ns = proc::now_ns();
        for range in ranges {
            self.map.remove_range(range.clone());
            self.push([CodeChange::Removed { range, at_ns }]);
        }
    }

    /// An image with ReadyToRun code was loaded.
    pub fn image_added(&self, image: pe::Image, runtime: u8) {
        self.map.add_r2r(image, Owner::of_runtime(runtime).word());
    }

    /// It is about to be unmapped.
    pub fn image_removed(&self, code: Range<u64>) {
        self.map.remove_range(code);
    }

    /// Adds changes. Called in callbacks (rule 20 of the seeds: the CLR is not called while the lock is
    /// held).
    pub(crate) fn push(&self, new: impl IntoIterator<Item = CodeChange>) {
        if self.phase.get() == Phase::Left {
            return;
        }
        let mut changes = self.changes();
        let before = changes.len();
        changes.extend(new);
        let call = before < CALL_AT && changes.len() >= CALL_AT;
        drop(changes);
        if call {
            self.wake.ring();
        }
    }

    /// Changes that wait for the agent thread.
    #[cfg(test)]
    pub(crate) fn queued(&self) -> usize {
        self.changes().len()
    }

    /// What has happened since the last call, in order. Agent thread. `emptied` is what the call before
    /// gave: the queue lies in its memory from now on, so that a program that compiles without end finds
    /// no fresh pages there.
    pub fn take_changes(&self, mut emptied: Vec<CodeChange>) -> Vec<CodeChange> {
        emptied.clear();
        // Room is made here, so that no callback finds the queue full and copies it under the lock.
        emptied.reserve(ROOM);
        std::mem::replace(&mut *self.changes(), emptied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::phase::new_phase;
    use crate::target::history::tests::body;

    #[test]
    fn nothing_is_kept_where_nobody_takes_it() {
        let (writer, phase) = new_phase();
        let wake = Box::leak(Box::new(Wake::new()));
        let code = CodeIndex::new(phase, wake);
        code.push([CodeChange::Added(body(100..200, 1, 10))]);
        assert_eq!(
            code.take_changes(Vec::new()).len(),
            1,
            "an idle process keeps its code"
        );
        writer.change(&[Phase::Idle], Phase::Left).unwrap();
        code.push([CodeChange::Added(body(200..300, 1, 10))]);
        assert!(code.take_changes(Vec::new()).is_empty());
    }

    #[test]
    fn the_agent_thread_is_called_before_the_queue_is_long() {
        let (_writer, phase) = new_phase();
        let wake = Box::leak(Box::new(Wake::new()));
        let code = CodeIndex::new(phase, wake);
        for at in 0..CALL_AT as u64 {
            code.push([CodeChange::Added(body(at * 16..at * 16 + 8, 1, 10))]);
        }
        // Would not return if nobody had been called.
        wake.wait(&[], None);
    }
}
