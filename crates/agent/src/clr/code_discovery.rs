//! Disables JIT callbacks of runtimes that compile many methods; code is then found from samples.
//!
//! JIT callbacks cost a program that compiles tens of thousands of methods one to two percent, half
//! of it in the runtime. Most methods are never sampled. From .NET 10 on a runtime's own records
//! locate its code ([`stackwalk::heaps`]). After some thousand methods its JIT callbacks are
//! therefore disabled. A walk then finds unreported code in the records, and the agent thread
//! registers the body when a sample contains it (`catch_up`, [`Clr::discover`]).
//!
//! Callbacks stay enabled in a program that compiles fewer methods, has collectible modules, or has
//! more than a few async methods: those must be known before a sample contains them. They also stay
//! enabled in a program with hot reload, whose new bodies the records attribute to the old version.
//! Costs: the first samples of an async method have no chain (the awaiting methods behind it),
//! which is counted. A dynamic method that is unloaded at once may have no name.
//!
//! Invariants: callbacks are disabled only after walks have begun to search the records. The
//! records are trusted only if they have led to bodies that callbacks reported.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use corprof::context::AgentThread;
use corprof::{Cx, EventMaskLow};
use stackwalk::Region;
use stackwalk::heaps::CodeHeaps;

use super::{Clr, version};
use crate::program::Program;
use crate::program::code::{CodeLifetime, Owner};

/// Reported bodies with which the records are compared: minimum and maximum.
const TO_HOLD: (usize, usize) = (16, 256);

/// Callbacks may be disabled if at most one in this many methods is async.
const ASYNC_IN: u64 = 200;

/// How code of a CLR is discovered.
#[derive(Debug, Default)]
pub(super) struct CodeDiscovery {
    /// The runtime's code records, once searched for.
    heaps: OnceLock<Option<CodeHeaps>>,
    /// Whether its JIT callbacks are disabled.
    are_jit_callbacks_off: AtomicBool,
    /// Whether it has had a collectible module.
    has_collectible: AtomicBool,
    /// Number of bodies of async chains, reported or discovered.
    of_chains: AtomicU64,
}

impl CodeDiscovery {
    /// Returns its code records, if discovery uses them.
    fn heaps(&self) -> Option<&CodeHeaps> {
        self.heaps.get()?.as_ref()
    }

    /// Returns the FunctionID of the body at an address, if the runtime may be queried about it.
    /// Code that may be unloaded must be a dynamic method's, whose unload is reported.
    pub(super) fn function_at(&self, address: u64) -> Option<u64> {
        let code = self.heaps()?.code_at(address)?;
        let may_ask = !code.may_go || !self.has_collectible.load(Ordering::Relaxed);
        may_ask.then_some(code.function)
    }
}

impl Clr {
    /// Records that a collectible module was loaded. Its code must be reported, as it is unloaded
    /// without a callback.
    pub(super) fn note_collectible(&self) {
        self.discovery
            .has_collectible
            .store(true, Ordering::Relaxed);
    }

    /// Whether samples may contain unreported code of this CLR, because its callbacks were
    /// disabled.
    pub(crate) fn discovers_code(&self) -> bool {
        self.discovery.heaps().is_some()
    }

    /// Records that a session has enabled its JIT callbacks again.
    pub(crate) fn note_jit_callbacks_enabled(&self) {
        self.discovery
            .are_jit_callbacks_off
            .store(false, Ordering::Relaxed);
    }

    /// Counts a body of async chains.
    pub(super) fn note_async_body(&self) {
        self.discovery.of_chains.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether to disable (true) or enable its JIT callbacks; `None` if that is already in
    /// force. `reported` is the number of methods reported so far, `wanted` the number after which
    /// the session allows disabling.
    ///
    /// Callbacks are also enabled for a moment if something must be learned on a program thread
    /// ([`Clr::learn_expected`]), and again if many of the discovered methods are async.
    pub(crate) fn pending_jit_callbacks_switch(
        &self,
        reported: u64,
        wanted: Option<u32>,
    ) -> Option<bool> {
        let disable = wanted.is_some_and(|wanted| reported >= u64::from(wanted))
            && self.discovery.of_chains.load(Ordering::Relaxed) * ASYNC_IN <= reported
            && !matches!(self.discovery.heaps.get(), Some(None))
            && !self.discovery.has_collectible.load(Ordering::Relaxed)
            && !self.is_modifiable()
            && !self.expects();
        (self.discovery.are_jit_callbacks_off.load(Ordering::Relaxed) != disable).then_some(disable)
    }

    /// Disables its JIT callbacks, if its code can be discovered, or enables them.
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
                // A later call tries again.
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

/// Returns some bodies that a CLR has reported, each with its FunctionID.
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

/// Returns the code records of a CLR and adds them to the code map for walks. `None` if it has no
/// known records or they lack reported bodies.
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
    // Fewer agree if dynamic methods were unloaded meanwhile.
    (agreed * 2 >= TO_HOLD.0).then_some(())?;
    map.add_heaps(heaps).then_some(heaps)
}
