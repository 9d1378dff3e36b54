//! Registers compiled code, in the code map (for the handler) and a queue (for the agent thread).
//!
//! A method body has two readers. The signal handler looks up in the code map how to unwind an
//! address now. The agent thread looks up in [`CodeHistory`](super::CodeHistory) what an address
//! was when a sample was taken; the changes queued here fill that history. Both are updated by the
//! same call, so they cannot disagree.
//!
//! Walks visit few of all compiled bodies. So two kinds are entered into the code map only: IL
//! methods whose code lives as long as their runtime, with all that is known of them
//! ([`CodeLifetime::Permanent`]); and dynamic methods (of which programs create and drop hundreds
//! of thousands), with their owner. A dynamic method is queued when a sample contains it. Other
//! code that can be unloaded is queued at once, since no runtime can be queried for it later.
//!
//! Invariants: a body is queued before it is in the code map, or the map describes it. It has left
//! the map before its removal is queued. So every body that a walk visited can be resolved. The
//! lock is a leaf, held for a push. The agent thread is woken before the queue is long, with or
//! without a session, so the queue stays short.

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

/// Number of queued changes at which the agent thread is woken.
const WAKE_AT: usize = 4096;

/// Reserved number of changes per round, 64 KiB. A program that compiles a lot needs more.
pub(super) const ROOM: usize = 1024;

/// A change of the program's code.
#[derive(Clone, Debug)]
pub enum CodeChange {
    /// A body was added.
    Added(CodeBody),
    /// All bodies that start inside the range were removed.
    Removed {
        /// Address range.
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
    /// The other words that the map stores of the body.
    pub body: CodeLifetime,
}

/// The entry of the code map for a body of managed code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodeLifetime {
    /// Nothing: the facts were queued. Also used for an image.
    Queued,
    /// FunctionID of a dynamic method whose name was not queried.
    Unnamed(usize),
    /// FunctionID and tier of an IL method whose code lives as long as its runtime.
    Permanent(usize, Tier),
}

impl Owner {
    /// Layout of the word, from the lowest bit: runtime, [`CodeLifetime`] with tier, FunctionID (a
    /// user-space pointer).
    const RUNTIME_BITS: u32 = u8::BITS;
    const CODE_BITS: u32 = u8::BITS;

    fn of_runtime(runtime: u8) -> Owner {
        Owner {
            runtime,
            body: CodeLifetime::Queued,
        }
    }

    /// Returns the word, or `None` for a FunctionID that is 0 or too large.
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

    /// Decodes the word of a JITted body or of an image.
    pub fn of_word(word: u64) -> Owner {
        let above = word >> Owner::RUNTIME_BITS;
        let function = (above >> Owner::CODE_BITS) as usize;
        // Truncation keeps the lowest bits.
        let (runtime, code) = (word as u8, above as u8);
        let body = match code.checked_sub(1) {
            Some(tier) => CodeLifetime::Permanent(function, Tier::from_code(tier)),
            None if function != 0 => CodeLifetime::Unnamed(function),
            None => CodeLifetime::Queued,
        };
        Owner { runtime, body }
    }
}

/// Returns the body at a region of the code map if it lives as long as its runtime, else `None`.
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

/// Whether a runtime may be queried for the method at a word of a walk.
///
/// The query crashes the runtime for an address in ReadyToRun code that has never run. It searches
/// the image backwards for a method that has run, and does not stop at the start of its table
/// (`ReadyToRunJitManager::JitCodeToMethodInfo`). Interrupted code has run, and so has code to
/// which a call returns. A wrong unwind table may lead to any other address.
pub fn can_query_runtime(map: &CodeMap, word: u64) -> bool {
    let address = word & ADDRESS;
    let is_known = || map.lookup(lookup_address(word)).is_some();
    word & EXACT != 0
        || map.is_behind_call(address)
        || !is_known() && is_behind_unknown_call(address)
}

/// The registry of compiled code in the process.
pub struct CodeIndex {
    map: &'static CodeMap,
    changes: Mutex<Vec<CodeChange>>,
    phase: PhaseReader,
    waker: &'static Waker,
}

impl CodeIndex {
    /// Returns an empty index.
    pub fn new(phase: PhaseReader, waker: &'static Waker) -> CodeIndex {
        CodeIndex {
            map: &CODE_MAP,
            changes: Mutex::default(),
            phase,
            waker,
        }
    }

    /// Returns the code map, for walks and look-ups.
    pub fn map(&self) -> &'static CodeMap {
        self.map
    }

    fn changes(&self) -> MutexGuard<'_, Vec<CodeChange>> {
        self.changes.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds a compiled body. Called in the callback that follows its publication.
    pub fn added(&self, body: CodeBody, unwind: jit::Body) {
        let owner = Owner::of_runtime(body.runtime);
        self.push([CodeChange::Added(body)]);
        self.map.add_jit_body(unwind, owner.word());
    }

    /// Adds a compiled IL method whose code lives as long as its runtime. As [`CodeIndex::added`],
    /// but all facts are stored in the map if they fit.
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
            // The end of the previous code here was not reported. If that code was queued, it is
            // removed now.
            let (range, at_ns) = (body.range, proc::now_ns());
            self.push([CodeChange::Removed { range, at_ns }]);
        }
    }

    /// Returns every body that lives as long as its runtime, for the runtimes that `of` selects.
    pub fn permanent_bodies(&self, of: impl Fn(u8) -> bool) -> Vec<CodeBody> {
        let mut all = Vec::new();
        self.map.each_jit_body(|region| {
            all.extend(permanent_body(&region).filter(|body| of(body.runtime)));
        });
        all
    }

    /// Returns a runtime that has a JITted body in the range.
    pub fn runtime_in(&self, range: &Range<u64>) -> Option<u8> {
        let region = self.map.jit_body_in(range)?;
        Some(Owner::of_word(region.user).runtime)
    }

    /// Adds a compiled dynamic method. As [`CodeIndex::added`], but only its owner is stored.
    /// Returns false, with no effect, for an invalid id.
    pub fn dynamic_added(&self, unwind: jit::Body, runtime: u8, function: usize) -> bool {
        let body = CodeLifetime::Unnamed(function);
        let word = Owner { runtime, body }.whole_word();
        word.is_some_and(|word| self.map.add_jit_body(unwind, word))
    }

    /// Removes the dynamic method whose body starts at `start`. As [`CodeIndex::removed`], but
    /// nothing is queued. `None` if the map does not have it, or not as an unnamed one.
    pub fn take_dynamic(&self, start: u64, runtime: u8, function: usize) -> Option<TakenBody> {
        let body = CodeLifetime::Unnamed(function);
        let owner = Owner { runtime, body };
        self.map
            .take_jit_body(start, |word| Owner::of_word(word) == owner)
    }

    /// Removes all JITted code of a runtime that has ended.
    pub fn runtime_removed(&self, runtime: u8) {
        self.map
            .remove_jit_bodies(|word| Owner::of_word(word).runtime == runtime);
    }

    /// Removes bodies. Called in the callback that announces the removal, before their memory is
    /// reused.
    pub fn removed(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let at_ns = proc::now_ns();
        for range in ranges {
            self.map.remove_range(range.clone());
            self.push([CodeChange::Removed { range, at_ns }]);
        }
    }

    /// Adds a loaded image with ReadyToRun code.
    pub fn image_added(&self, image: pe::Image, runtime: u8) {
        self.map.add_r2r(image, Owner::of_runtime(runtime).word());
    }

    /// Removes the code of an image that is about to be unmapped.
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

    /// Returns the number of queued changes.
    #[cfg(test)]
    pub(crate) fn queued(&self) -> usize {
        self.changes().len()
    }

    /// Takes the changes since the last call, in order. Agent thread. `emptied` is the list that
    /// the previous call returned. Its memory is reused for the queue, so that a program that
    /// compiles endlessly touches no fresh pages.
    pub fn take_changes(&self, mut emptied: Vec<CodeChange>) -> Vec<CodeChange> {
        emptied.clear();
        // Reserved here, so that no callback must grow the queue and copy it under the lock.
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
