//! A CLR's code: its modules, and the bodies that its compiler makes.
//!
//! Methods are not named here, except those whose names cannot be asked for later (collectible
//! code), and dynamic methods, which are named when a sample has met them: by the agent thread, or
//! at their end.
//!
//! Invariants: a body is told to the code index in the callback that follows its publication, and
//! taken out of it before its unload callback returns; the name of a dynamic method is asked for
//! only while its unload callback cannot return.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use corprof::context::{AgentThread, Context, MayTriggerGc, Synchronous};
use corprof::{Cx, FunctionId, FunctionKey, ModuleFlags, ModuleId, RejitId};
use recording::{MethodKind, Tier};
use stackwalk::{CodeKind, CodeMap, Region, jit, pe};

use super::tiers::{self, Tiering};
use super::{Clr, lock, names};
use crate::base::numbers::NumberMap;
use crate::base::proc;
use crate::model::method::UNKNOWN_NS;
use crate::model::{CodeBody, CollectibleFacts, FileAtLoad, ManagedModule};
use crate::program::code::{CodeChange, CodeLifetime, Owner};
use crate::program::{Program, chains};

/// How many code headers of a runtime are read with care, and held against what it answers, before
/// they are read fast and alone.
const HEADERS_TO_TRUST: u32 = 32;

/// Code that goes when its module goes, by module.
pub(super) type Unloadable = HashMap<usize, Vec<Range<u64>>>;

/// Dynamic methods of which the agent thread has been told, by FunctionID. Whoever asks for the
/// name of one holds the lock: see [`Clr::name_dynamic`].
pub(super) type NamedDynamics = NumberMap<usize, Range<u64>>;

impl Clr {
    /// Returns the facts about a module.
    pub(crate) fn module(&self, module: usize) -> Option<Arc<ManagedModule>> {
        lock(&self.modules).get(&module).cloned()
    }

    /// Whether an address is ReadyToRun code of a file that has become shorter since it was loaded:
    /// the runtime must not be asked about it.
    pub(crate) fn is_cut_short_at(&self, map: &CodeMap, address: u64) -> bool {
        let has = |facts: &&Arc<ManagedModule>| {
            let code = facts.precompiled.as_ref();
            code.is_some_and(|code| code.contains(&address))
        };
        let facts = lock(&self.modules).values().find(has).cloned();
        match facts {
            // By the same pages, and by the length of its file.
            Some(facts) => facts.is_cut_short(),
            None => map.is_cut_short(address),
        }
    }

    /// Whether any module's code may be unloaded.
    pub(crate) fn any_collectible(&self) -> bool {
        self.collectible.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn is_collectible(&self, module: usize) -> bool {
        self.module(module).is_some_and(|facts| facts.collectible)
    }

    /// Learns of a module and of the ReadyToRun code in it.
    pub(crate) fn module_loaded<'rt, C: Context>(
        &self,
        program: &Program,
        cx: &Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) {
        let info = cx.info();
        let Ok(Some(found)) = info.get_module_info2(cx, module) else {
            return;
        };
        let base = found.base_address as u64;
        let known = self.module(module.raw());
        if known.is_some_and(|known| known.base == base) {
            return;
        }
        let is_laid_out = base != 0 && !found.flags.contains(ModuleFlags::FLAT_LAYOUT);
        // SAFETY: the runtime has loaded an image at this base, laid out by section, and
        // keeps it until ModuleUnloadStarted (COR_PRF_MODULE_FLAGS, GetModuleInfo2).
        let image = is_laid_out.then(|| unsafe { pe::r2r_image(base) }.ok());
        let image = image.flatten();
        if is_laid_out
            && image.is_none()
            // SAFETY: as above.
            && let Some(composite) = unsafe { pe::composite_of(base) }
        {
            self.learn_composite(program, &found.path, composite);
        }
        let facts = Arc::new(ManagedModule {
            serial: next_serial(),
            runtime: self.number(),
            file: FileAtLoad::of(&found.path),
            path: found.path,
            base,
            precompiled: image.as_ref().map(pe::Image::code),
            last: image.as_ref().map_or(0, pe::Image::last),
            flat: found.flags.contains(ModuleFlags::FLAT_LAYOUT),
            metadata: OnceLock::new(),
            mvid: OnceLock::new(),
            mapped: OnceLock::new(),
            collectible: found.flags.contains(ModuleFlags::COLLECTIBLE),
        });
        let collectible = u32::from(facts.collectible);
        self.collectible.fetch_add(collectible, Ordering::Relaxed);
        if facts.collectible {
            self.note_collectible();
        }
        let replaced = lock(&self.modules).insert(module.raw(), facts);
        self.forget(replaced.as_deref());
        if let Some(image) = image {
            program.code.image_added(image, self.number());
        }
    }

    /// A module is being unloaded: its code goes, before the callback returns.
    pub(crate) fn module_unloaded(&self, program: &Program, module: ModuleId<'_>) {
        let facts = {
            let _held = self.gate.module_unloading();
            lock(&self.modules).remove(&module.raw())
        };
        let ranges = lock(&self.unloadable).remove(&module.raw());
        program.code.removed(ranges.unwrap_or_default());
        self.forget(facts.as_deref());
        if let Some(code) = facts.and_then(|facts| facts.precompiled.clone()) {
            program.code.image_removed(code);
        }
        // The code is unmapped once the callback has returned.
        program.code.map().quiesce(64);
    }

    /// A dynamic method is being unloaded: its code goes, before the callback returns. What it was
    /// is told where a sample may have met it.
    pub(crate) fn dynamic_unloaded<'rt, C: Synchronous>(
        &self,
        program: &Program,
        cx: &Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) {
        self.gate.dynamic_method_unloading(function.raw());
        let runtime = self.number();
        // The method is whole until this returns (`RuntimeMethodHandle_Destroy`). An error: it was
        // never compiled.
        let code = cx.info().get_code_info(cx, function).ok();
        let taken = code.as_ref().and_then(|code| {
            let start = code.start_address as u64;
            program.code.take_dynamic(start, runtime, function.raw())
        });
        // Only now: the agent thread finds it in the map no more, or has asked before this goes on.
        let named = lock(&self.named_dynamics).remove(&function.raw());
        if let Some(range) = named {
            program.code.removed([range]);
            return;
        }
        let met = taken.filter(|taken| taken.was_walked);
        let met = met.map(|taken| taken.region.start..taken.region.end);
        let unreported = || {
            let code = code.filter(|_| self.discovers_code())?;
            let start = code.start_address as u64;
            let was_walked = program.code.map().take_unreported(start);
            was_walked.then(|| start..start + code.size as u64)
        };
        let Some(range) = met.or_else(unreported) else {
            return;
        };
        let body = self.dynamic_body(range.clone(), cx, function);
        program.code.push([
            CodeChange::Added(body),
            CodeChange::Removed {
                range,
                at_ns: proc::now_ns(),
            },
        ]);
    }

    /// Asks for the name of the dynamic method at an address that a sample has met, so that the
    /// agent thread hears of its body. Nothing happens where there is none, or nothing to ask.
    ///
    /// The one other lock that is held over calls into the CLR, beside the gate: the end of a
    /// dynamic method takes its body out of the code map and then waits here, in cooperative mode,
    /// while its name is asked for. These calls need no lock of the runtime's, and can be made at
    /// any time (`GetDynamicFunctionInfo`).
    pub(crate) fn name_dynamic(&self, program: &Program, cx: &Cx<'_, AgentThread>, address: u64) {
        let mut named = lock(&self.named_dynamics);
        let Some(region) = program.code.map().lookup(address) else {
            return;
        };
        let owner = Owner::of_word(region.user);
        let CodeLifetime::Unnamed(unnamed) = owner.body else {
            return;
        };
        if region.kind != CodeKind::Jit
            || owner.runtime != self.number()
            || named.contains_key(&unnamed)
        {
            return;
        }
        // SAFETY: the id came from a callback of this runtime, and the method is there: it is in
        // the code map, and its unload callback, which takes it out, does not return while `named`
        // is held.
        let key = unsafe { FunctionKey::from_parts(cx.info().index(), unnamed) };
        let Some(function) = key.and_then(|key| cx.info().id(key)) else {
            return;
        };
        let range = region.start..region.end;
        let body = self.dynamic_body(range.clone(), cx, function);
        named.insert(unnamed, range);
        program.code.push([CodeChange::Added(body)]);
    }

    fn dynamic_body<'rt, C: Synchronous>(
        &self,
        range: Range<u64>,
        cx: &Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) -> CodeBody {
        CodeBody {
            code_start: range.start,
            range,
            runtime: self.number(),
            function: function.raw(),
            kind: MethodKind::Dynamic,
            // Never tiered (`MethodDesc::DetermineAndSetIsEligibleForTieredCompilation`).
            tier: Tier::Optimized,
            added_ns: UNKNOWN_NS,
            collectible: Some(dynamic_facts(cx, function)),
        }
    }

    /// A dynamic method was compiled. False: it must be treated as other code.
    ///
    /// One that a collectible module keeps (a stub in IL) goes without a word, so its name cannot
    /// be asked for later.
    fn dynamic_compiled<'rt, C: MayTriggerGc>(
        &self,
        program: &Program,
        cx: &mut Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) -> bool {
        if self.any_collectible() {
            return false;
        }
        let Ok(code) = cx.info().get_code_info(cx, function) else {
            return true;
        };
        let Some((_, unwind)) = self.body_at(cx, function, code.start_address) else {
            return true;
        };
        program
            .code
            .dynamic_added(unwind, self.number(), function.raw())
    }

    /// The CLR has ended or been left: the code of its images is no more.
    pub(crate) fn images(&self) -> Vec<Range<u64>> {
        let own = |facts: &Arc<ManagedModule>| facts.precompiled.clone();
        let mut all: Vec<_> = lock(&self.modules).values().filter_map(own).collect();
        all.extend(
            lock(&self.composites)
                .iter()
                .map(|image| image.code.clone()),
        );
        all
    }

    /// A module's facts hold no longer.
    fn forget(&self, facts: Option<&ManagedModule>) {
        let collectible = facts.map_or(0, |facts| u32::from(facts.collectible));
        self.collectible.fetch_sub(collectible, Ordering::Relaxed);
    }

    /// A function was compiled: learns of every body of it that is not known yet. Answers the tier
    /// of the last.
    ///
    /// Called in the callback that follows a compilation, and by [`Clr::catch_up`], which holds
    /// unloads off.
    pub(crate) fn compiled<'rt, C: MayTriggerGc>(
        &self,
        program: &Program,
        cx: &mut Cx<'rt, C>,
        function: FunctionId<'rt>,
        rejit: RejitId,
        kind: MethodKind,
    ) -> Option<Tier> {
        if kind != MethodKind::Il && self.dynamic_compiled(program, cx, function) {
            return Some(Tier::Optimized);
        }
        let info = cx.info();
        let mut tier = None;
        // A dynamic method has one body for ever: the question below is the cheapest.
        let mut starts = if kind == MethodKind::Il {
            info.get_native_code_start_addresses(cx, function, rejit)
                .unwrap_or_default()
        } else {
            Vec::new()
        };
        if (self.gate.is_catching_up() || self.discovers_code())
            && let Some(later) = starts.get_mut(1..)
        {
            // The first, then the newest (`MethodDescVersioningState::LinkNativeCodeVersionNode`):
            // the order of their making shows their tiers.
            later.reverse();
        }
        if starts.is_empty()
            && let Ok(code) = info.get_code_info(cx, function)
        {
            starts.push(code.start_address);
        }
        let time_ns = proc::now_ns();
        // Each start is looked up once: behind a compilation nothing of the map is in the
        // processor's caches.
        let mut regions: Vec<Option<Region>> = if kind == MethodKind::Il {
            let map = program.code.map();
            starts.iter().map(|at| map.at_start(*at as u64)).collect()
        } else {
            // The one body of a dynamic method is new, whatever its addresses were before.
            Vec::new()
        };
        for (at, &code_start) in starts.iter().enumerate() {
            let start = code_start as u64;
            let known = regions.get(at).copied().flatten();
            if known.is_some_and(|known| known.kind != CodeKind::Native) {
                continue;
            }
            let Some((range, unwind)) = self.body_at(cx, function, code_start) else {
                continue;
            };
            if rejit != RejitId::ORIGINAL {
                self.note_recompiled(cx, function, start);
            } else if kind == MethodKind::Il && self.modifiable.load(Ordering::Relaxed) {
                self.note_recompiled_under_hot_reload(cx, function, start);
            }
            let (facts, trigger) = self.collectible_facts(cx, function, kind, start);
            let of_this = self.tier(program, &unwind, kind, &regions);
            tier = Some(of_this);
            let body = CodeBody {
                range: range.clone(),
                runtime: self.number(),
                function: function.raw(),
                code_start: start,
                kind,
                tier: of_this,
                added_ns: time_ns,
                collectible: facts,
            };
            if let Some(tables) = chains::tables_if_wanted()
                && self.learn_body(cx, tables, &body)
            {
                self.note_async_body();
            }
            self.added(program, body, trigger, unwind);
            // Where more than one is new, this is what the next comes after.
            if at + 1 < starts.len()
                && let Some(region) = regions.get_mut(at)
            {
                *region = program.code.map().at_start(start);
            }
        }
        tier
    }

    /// The tier of a new body, given what lies at the starts of all bodies that its method has by
    /// now.
    fn tier(
        &self,
        program: &Program,
        unwind: &jit::Body,
        kind: MethodKind,
        regions: &[Option<Region>],
    ) -> Tier {
        if kind != MethodKind::Il {
            // Never tiered (MethodDesc::DetermineAndSetIsEligibleForTieredCompilation).
            return Tier::Optimized;
        }
        let all = || regions.iter().flatten();
        let length = usize::try_from(unwind.end() - unwind.start()).map_or(0, |all| all.min(16));
        // SAFETY: the runtime has just published this code and keeps it at least until this
        // callback returns; `length` is within it.
        let code = unsafe { std::slice::from_raw_parts(unwind.start() as *const u8, length) };
        let is_earlier_step = |region: &&Region| {
            region.kind == CodeKind::Jit
                && match Owner::of_word(region.user).body {
                    CodeLifetime::Permanent(_, tier) => tier != Tier::Osr,
                    CodeLifetime::Queued | CodeLifetime::Unnamed(_) => {
                        !program.code.map().begins_on_a_frame(region.start)
                    }
                }
        };
        tiers::of_body(tiers::Evidence {
            code,
            on_stack: unwind.begins_on_a_frame(),
            earlier: all().filter(is_earlier_step).count(),
            precompiled: all().any(|region| region.kind == CodeKind::ReadyToRun),
            tiering: Tiering::of(self.tiering.load(Ordering::Relaxed)),
        })
    }

    /// Makes a body known: to its owner's unload, and to the code index.
    fn added(&self, program: &Program, body: CodeBody, trigger: UnloadTrigger, unwind: jit::Body) {
        let range = body.range.clone();
        let function = body.function;
        match trigger {
            // Nothing can go, whatever it is made of; and what is caught up with is not sure to be
            // that young.
            UnloadTrigger::Runtime if !self.any_collectible() && !self.gate.is_catching_up() => {
                program.code.add_permanent(body, unwind);
                return;
            }
            UnloadTrigger::Runtime => {}
            UnloadTrigger::Module(module) => lock(&self.unloadable)
                .entry(module)
                .or_default()
                .push(range),
            UnloadTrigger::Function => {
                lock(&self.named_dynamics).insert(function, range);
            }
        }
        program.code.added(body, unwind);
    }

    /// Where a body is that the runtime has just published, and its unwind rules. The runtime is
    /// asked until its headers have proven to say the same.
    fn body_at<'rt, C: MayTriggerGc>(
        &self,
        cx: &mut Cx<'rt, C>,
        function: FunctionId<'rt>,
        code_start: usize,
    ) -> Option<(Range<u64>, jit::Body)> {
        let start = code_start as u64;
        let function = function.raw() as u64;
        let trusted = self.headers_read.load(Ordering::Relaxed) >= HEADERS_TO_TRUST;
        // SAFETY: the code has just been published and stays until its unload callback; the header
        // before it belongs to the same allocation. This runtime's headers have been read in the
        // checked way many times without a mismatch.
        if trusted && let Ok(body) = unsafe { jit::body_from_known_header(start, function) } {
            return Some((start..body.end(), body));
        }
        let ranges = cx.info().get_code_info4(cx, code_start).ok()?;
        let found = ranges
            .iter()
            .find(|range| range.start_address == code_start)?;
        let range = start..start.saturating_add(found.size as u64);
        let length = u32::try_from(found.size).unwrap_or(u32::MAX);
        // SAFETY: as above; the header is read by system calls, and the runtime says that the code
        // is so long.
        let (body, is_right) = match unsafe { jit::body_from_header(start, function) } {
            Ok(body) => {
                let is_right = body.end() == range.end;
                (body, is_right)
            }
            // SAFETY: as above.
            Err(_) => (unsafe { jit::body_from_code(start, length) }, false),
        };
        if is_right {
            self.headers_read.fetch_add(1, Ordering::Relaxed);
        } else {
            self.headers_read.store(0, Ordering::Relaxed);
        }
        Some((range, body))
    }

    /// Returns the facts that must be taken now, and the event that takes the code away. No facts
    /// for code that stays: the agent thread asks when a sample needs them.
    fn collectible_facts<'rt, C: MayTriggerGc>(
        &self,
        cx: &mut Cx<'rt, C>,
        function: FunctionId<'rt>,
        kind: MethodKind,
        start: u64,
    ) -> (Option<Arc<CollectibleFacts>>, UnloadTrigger) {
        if kind != MethodKind::Il {
            return (Some(dynamic_facts(cx, function)), UnloadTrigger::Function);
        }
        if !self.any_collectible() {
            return (None, UnloadTrigger::Runtime);
        }
        match names::collectible_owner(self, cx, function) {
            Some(module) => {
                let facts = CollectibleFacts {
                    names: names::of_function(self, cx, function),
                    il_map: names::il_map(cx, start).unwrap_or_default(),
                };
                (Some(Arc::new(facts)), UnloadTrigger::Module(module))
            }
            None => (None, UnloadTrigger::Runtime),
        }
    }
}

/// Returns the facts about a dynamic method.
fn dynamic_facts<'rt, C: Synchronous>(
    cx: &Cx<'rt, C>,
    function: FunctionId<'rt>,
) -> Arc<CollectibleFacts> {
    Arc::new(CollectibleFacts {
        names: names::of_dynamic(cx, function),
        il_map: Box::default(),
    })
}

/// The event that takes a body's memory back.
enum UnloadTrigger {
    /// None: it stays as long as the runtime.
    Runtime,
    /// The unload of a module.
    Module(usize),
    /// `DynamicMethodUnloaded`.
    Function,
}

/// A number that this process has not seen.
fn next_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
