//! The code that the runtimes have made: for the handler at once, for the agent thread in order.
//!
//! Two readers want to know of a body. The signal handler asks the code map how to unwind an
//! address now; the agent thread asks [`CodeHistory`](super::CodeHistory) what an address was when
//! a sample was taken, and learns it from the changes that are queued here. Both are told in one
//! place, so that they cannot come apart.
//!
//! Few of all compiled bodies are ever met by a walk. So most are entered into the code map only:
//! methods in IL whose code stays as long as their runtime, with all there is to know of them
//! ([`CodeLifetime::Permanent`]); and dynamic methods, which come and go by the hundred thousand,
//! with their owner. One of these is queued when a sample has met it. Other code that can go is
//! queued at once, since no runtime can be asked about it later.
//!
//! Invariants: a body is queued before it is in the code map, or the map says what it is, and has
//! left the map before its removal is queued, so whatever a walk met is known to who resolves it;
//! the lock is a leaf, held for a push; the agent thread is called before the queue is long, so
//! that it stays short for ever, with or without a session.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use recording::{MethodKind, Tier};
use stackwalk::{
    ADDRESS, CodeKind, CodeMap, EXACT, Region, TakenBody, is_behind_unknown_call, jit,
    lookup_address, pe,
};

use crate::base::proc;
use crate::base::waker::Waker;
use crate::model::method::UNKNOWN_NS;
use crate::model::phase::PhaseReader;
use crate::model::{CodeBody, Phase};

/// The code map: the code at each address. Static, because the handler must find it without a lock.
pub static CODE_MAP: CodeMap = CodeMap::new();

/// Changes at which the agent thread is called.
const WAKE_AT: usize = 4096;

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

/// The owner of a body of managed code: the word that the code map keeps with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Number of the runtime.
    pub runtime: u8,
    /// The map's further knowledge of it.
    pub body: CodeLifetime,
}

/// The known facts about a body of managed code where it was put into the code map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodeLifetime {
    /// All that is known was queued; also of an image.
    Queued,
    /// FunctionID of a dynamic method whose names were not asked for.
    Unnamed(usize),
    /// FunctionID and tier of a method in IL whose code stays as long as its runtime.
    Permanent(usize, Tier),
}

impl Owner {
    /// Bits of the word, from the lowest: which runtime, which [`CodeLifetime`] with which tier,
    /// and the FunctionID, a pointer of user space.
    const RUNTIME_BITS: u32 = u8::BITS;
    const CODE_BITS: u32 = u8::BITS;

    fn of_runtime(runtime: u8) -> Owner {
        Owner {
            runtime,
            body: CodeLifetime::Queued,
        }
    }

    /// Its word; `None` for an id that has no room there, or is none.
    fn whole_word(self) -> Option<u64> {
        let word = self.word();
        (Owner::of_word(word) == self).then_some(word)
    }

    fn word(self) -> u64 {
        let (code, function) = match self.body {
            CodeLifetime::Queued => (0, 0),
            CodeLifetime::Unnamed(function) => (0, function),
            CodeLifetime::Permanent(function, tier) => (1 + tier as u8, function),
        };
        let above = (function as u64) << Owner::CODE_BITS | u64::from(code);
        u64::from(self.runtime) | above << Owner::RUNTIME_BITS
    }

    /// From the word of a JITted body or of an image.
    pub fn of_word(word: u64) -> Owner {
        let above = word >> Owner::RUNTIME_BITS;
        let function = (above >> Owner::CODE_BITS) as usize;
        // The lowest bits of each.
        let (runtime, code) = (word as u8, above as u8);
        let body = match code.checked_sub(1) {
            Some(tier) => CodeLifetime::Permanent(function, Tier::from_code(tier)),
            None if function != 0 => CodeLifetime::Unnamed(function),
            None => CodeLifetime::Queued,
        };
        Owner { runtime, body }
    }
}

/// The body at a region of the code map that stays as long as its runtime; `None` for any other.
pub fn permanent_body(region: &Region) -> Option<CodeBody> {
    let owner = Owner::of_word(region.user);
    match owner.body {
        CodeLifetime::Permanent(function, tier) if region.kind == CodeKind::Jit => Some(CodeBody {
            range: region.start..region.end,
            runtime: owner.runtime,
            function,
            code_start: region.start,
            kind: MethodKind::Il,
            tier,
            added_ns: UNKNOWN_NS,
            collectible: None,
        }),
        _ => None,
    }
}

/// Whether a runtime may be asked for the method at a word of a walk.
///
/// Of an address in ReadyToRun code that has never run it dies: it goes back from one method of the
/// image to the one before until it finds one that has run, and does not stop where its table
/// begins (`ReadyToRunJitManager::JitCodeToMethodInfo`). What was interrupted runs, and so does
/// what a call returns to; a wrong unwind table may lead anywhere else.
pub fn can_query_runtime(map: &CodeMap, word: u64) -> bool {
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
    waker: &'static Waker,
}

impl CodeIndex {
    /// Nothing known yet.
    pub fn new(phase: PhaseReader, waker: &'static Waker) -> CodeIndex {
        CodeIndex {
            map: &CODE_MAP,
            changes: Mutex::default(),
            phase,
            waker,
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

    /// A method in IL was compiled whose code stays as long as its runtime: as
    /// [`CodeIndex::added`], and all that is known is kept in the map where it has room there.
    pub fn add_permanent(&self, body: CodeBody, unwind: jit::Body) {
        let owner = Owner {
            runtime: body.runtime,
            body: CodeLifetime::Permanent(body.function, body.tier),
        };
        let is_all = body.kind == MethodKind::Il
            && body.collectible.is_none()
            && body.code_start == body.range.start
            && body.range == (unwind.start()..unwind.end());
        let Some(word) = owner.whole_word().filter(|_| is_all) else {
            self.added(body, unwind);
            return;
        };
        if self.map.replace_jit_bodies(unwind, word) > Some(0) {
            // The end of the code that was there was not reported: if it was queued, that holds no
            // longer.
            let (range, at_ns) = (body.range, proc::now_ns());
            self.push([CodeChange::Removed { range, at_ns }]);
        }
    }

    /// Every body of a runtime that stays as long as it does.
    pub fn permanent_bodies(&self, of: impl Fn(u8) -> bool) -> Vec<CodeBody> {
        let mut all = Vec::new();
        self.map.each_jit_body(|region| {
            all.extend(permanent_body(&region).filter(|body| of(body.runtime)));
        });
        all
    }

    /// A runtime that has a body of JITted code in the range.
    pub fn runtime_in(&self, range: &Range<u64>) -> Option<u8> {
        let region = self.map.jit_body_in(range)?;
        Some(Owner::of_word(region.user).runtime)
    }

    /// A dynamic method was compiled: as [`CodeIndex::added`], and nothing is known of it but whose
    /// it is. False, and nothing done, for an id that is none.
    pub fn dynamic_added(&self, unwind: jit::Body, runtime: u8, function: usize) -> bool {
        let body = CodeLifetime::Unnamed(function);
        let word = Owner { runtime, body }.whole_word();
        word.is_some_and(|word| self.map.add_jit_body(unwind, word))
    }

    /// A dynamic method goes, whose body starts there: as [`CodeIndex::removed`], and nothing is
    /// queued. `None` where the map has it not, or with its names.
    pub fn take_dynamic(&self, start: u64, runtime: u8, function: usize) -> Option<TakenBody> {
        let body = CodeLifetime::Unnamed(function);
        let owner = Owner { runtime, body };
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

    /// Adds changes. Called in callbacks (rule 20 of the seeds: the CLR is not called while the
    /// lock is held).
    pub(crate) fn push(&self, new: impl IntoIterator<Item = CodeChange>) {
        if self.phase.get() == Phase::Left {
            return;
        }
        let mut changes = self.changes();
        let before = changes.len();
        changes.extend(new);
        let call = before < WAKE_AT && changes.len() >= WAKE_AT;
        drop(changes);
        if call {
            self.waker.wake();
        }
    }

    /// Changes that wait for the agent thread.
    #[cfg(test)]
    pub(crate) fn queued(&self) -> usize {
        self.changes().len()
    }

    /// Takes the changes since the last call, in order. Agent thread. `emptied` is the list that
    /// the call before gave: the queue lies in its memory from now on, so that a program that
    /// compiles without end finds no fresh pages there.
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
    use crate::program::history::tests::body;

    #[test]
    fn a_word_says_whose_code_it_is() {
        let functions = [0x1000, 0x7fff_ffff_fff8];
        for function in functions {
            let tiers = Tier::ALL.map(|tier| CodeLifetime::Permanent(function, tier));
            for body in tiers.into_iter().chain([CodeLifetime::Unnamed(function)]) {
                for runtime in [0, 1, 255] {
                    let owner = Owner { runtime, body };
                    let word = owner.whole_word().expect("there is room for it");
                    assert_eq!(Owner::of_word(word), owner);
                }
            }
        }
        let no_word = [
            CodeLifetime::Unnamed(0),
            CodeLifetime::Unnamed(1 << 48),
            CodeLifetime::Permanent(1 << 48, Tier::Tier0),
        ];
        for body in no_word {
            let owner = Owner { runtime: 3, body };
            assert_eq!(owner.whole_word(), None, "{body:?}");
        }
        let image = Owner::of_runtime(9);
        assert_eq!(Owner::of_word(image.word()), image);
    }

    #[test]
    fn nothing_is_kept_that_is_not_taken() {
        let (writer, phase) = new_phase();
        let waker = Box::leak(Box::new(Waker::new()));
        let code = CodeIndex::new(phase, waker);
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
        let waker = Box::leak(Box::new(Waker::new()));
        let code = CodeIndex::new(phase, waker);
        for at in 0..WAKE_AT as u64 {
            code.push([CodeChange::Added(body(at * 16..at * 16 + 8, 1, 10))]);
        }
        // Would not return if the agent thread had not been called.
        waker.wait(&[], None);
    }
}
