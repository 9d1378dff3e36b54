//! Code that is found where samples meet it: a runtime that compiles very many methods is asked to
//! report them no longer.
//!
//! The reports of each method cost a program that compiles tens of thousands of them one to two
//! percent, half of it in the runtime; and most are never sampled. From .NET 10 on a runtime's own
//! records say where its code is ([`stackwalk::heaps`]). So after some thousand methods it need not
//! report any more: a walk finds code that was not reported, and the agent thread learns of a body
//! when a sample has met it (`catch_up`, [`Clr::discover`]).
//!
//! A program that compiles less is recorded as on every other runtime, and so is one that has
//! modules that can be unloaded, or of whose methods more than a few are async: those must be known
//! before a sample meets them. What is lost: the first samples of an async method have no chain,
//! which is counted; a dynamic method that goes at once may have no name. Invariant: JIT
//! callbacks are disabled only when walks look for its code already; and records are believed only
//! when they have led to bodies that it has reported.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use corprof::context::AgentThread;
use corprof::{Cx, EventMaskLow};
use stackwalk::Region;
use stackwalk::heaps::CodeHeaps;

use super::{Clr, version};
use crate::program::Program;
use crate::program::code::{CodeLifetime, Owner};

/// Bodies of which a runtime has told that its records are held against: at least, and at most.
const TO_HOLD: (usize, usize) = (16, 256);

/// One in so many methods may be async where a runtime need not report more.
const ASYNC_IN: u64 = 200;

/// How code of a CLR becomes known.
#[derive(Debug, Default)]
pub(super) struct CodeDiscovery {
    /// Where its code is recorded, once that was looked for.
    heaps: OnceLock<Option<CodeHeaps>>,
    /// It has been asked to report no more methods.
    are_jit_callbacks_off: AtomicBool,
    /// It has had a module that can be unloaded.
    has_collectible: AtomicBool,
    /// Bodies that chains of async methods are about, reported or met.
    of_chains: AtomicU64,
}

impl CodeDiscovery {
    /// Its records, if code is looked for there.
    fn heaps(&self) -> Option<&CodeHeaps> {
        self.heaps.get()?.as_ref()
    }

    /// The FunctionID of the body at an address, if it can be asked about: what may go is a dynamic
    /// method's, of whose end the runtime tells.
    pub(super) fn function_at(&self, address: u64) -> Option<u64> {
        let code = self.heaps()?.code_at(address)?;
        let may_ask = !code.may_go || !self.has_collectible.load(Ordering::Relaxed);
        may_ask.then_some(code.function)
    }
}

impl Clr {
    /// A module of it can be unloaded, from now on. Code compiled for such a one must be reported,
    /// as it goes without a callback.
    pub(super) fn note_collectible(&self) {
        self.discovery
            .has_collectible
            .store(true, Ordering::Relaxed);
    }

    /// Whether code of it may be discovered that it has not reported, as JIT callbacks are
    /// disabled.
    pub(crate) fn discovers_code(&self) -> bool {
        self.discovery.heaps().is_some()
    }

    /// It has been asked for the events of a session, and reports methods again.
    pub(crate) fn note_jit_callbacks_enabled(&self) {
        self.discovery
            .are_jit_callbacks_off
            .store(false, Ordering::Relaxed);
    }

    /// A body of it is one that chains are about.
    pub(super) fn note_async_body(&self) {
        self.discovery.of_chains.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether to disable JIT callbacks; `None` if that is already in force. It has
    /// reported `reported` methods; the session wants no more than `wanted`.
    ///
    /// It reports for a moment also when something is to be learned on a thread of the program's
    /// ([`Clr::learn_expected`]). It reports again when many of the methods that are met are async.
    pub(crate) fn pending_jit_callbacks_switch(
        &self,
        reported: u64,
        wanted: Option<u32>,
    ) -> Option<bool> {
        let disable = wanted.is_some_and(|wanted| reported >= u64::from(wanted))
            && self.discovery.of_chains.load(Ordering::Relaxed) * ASYNC_IN <= reported
            && !matches!(self.discovery.heaps.get(), Some(None))
            && !self.discovery.has_collectible.load(Ordering::Relaxed)
            && !self.expects();
        (self.discovery.are_jit_callbacks_off.load(Ordering::Relaxed) != disable).then_some(disable)
    }

    /// Disables JIT callbacks, if its code can be discovered, or enables them.
    pub(crate) fn switch_jit_callbacks(
        &self,
        program: &Program,
        cx: &Cx<'_, AgentThread>,
        disable: bool,
    ) {
        let info = cx.info();
        if disable && self.discovery.heaps.get().is_none() {
            let known = known_bodies(program, self.number());
            if known.len() < TO_HOLD.0 {
                // It is asked for again.
                return;
            }
            let heaps = || find_heaps(program, cx, &known);
            self.discovery.heaps.get_or_init(heaps);
        }
        if disable && self.discovery.heaps().is_none() {
            return;
        }
        let Ok((low, high)) = info.get_event_mask2(cx) else {
            return;
        };
        let jit = EventMaskLow::MONITOR_JIT_COMPILATION;
        let low = if disable { low - jit } else { low | jit };
        if info.set_event_mask2(cx, low, high).is_ok() {
            self.discovery
                .are_jit_callbacks_off
                .store(disable, Ordering::Relaxed);
        }
    }
}

/// Some bodies that a CLR has reported, each with its method.
fn known_bodies(program: &Program, runtime: u8) -> Vec<(Region, u64)> {
    let mut known = Vec::new();
    program.code.map().each_jit_body(|region| {
        let owner = Owner::of_word(region.user);
        let (CodeLifetime::Unnamed(function) | CodeLifetime::Permanent(function, _)) = owner.body
        else {
            return;
        };
        if owner.runtime == runtime && known.len() < TO_HOLD.1 {
            known.push((region, function as u64));
        }
    });
    known
}

/// The records of a CLR, in which walks look for code from now on. `None`: it has none that are
/// known, or bodies that are there are not in them.
fn find_heaps(
    program: &Program,
    cx: &Cx<'_, AgentThread>,
    known: &[(Region, u64)],
) -> Option<CodeHeaps> {
    let contract = version::contract_of(cx.info())?;
    let heaps = CodeHeaps::of_runtime(contract).ok()?;
    let map = program.code.map();
    let mut agreed = 0;
    for (region, function) in known {
        if heaps.agree(&(region.start..region.end), *function) {
            agreed += 1;
        } else if map.at_start(region.start).as_ref() == Some(region) {
            return None;
        }
    }
    // Fewer where dynamic methods have gone meanwhile.
    (agreed * 2 >= TO_HOLD.0).then_some(())?;
    map.add_heaps(heaps).then_some(heaps)
}
