//! A CLR's code: registers its modules and the method bodies that its JIT compiler produces.
//!
//! Runs in callbacks and, for the catch-up and dynamic methods, on the agent thread. Methods are
//! named in `names`, when a sample contains them. Two kinds are named here: collectible code, whose
//! names cannot be queried later, and dynamic methods, named by the agent thread after a sample or
//! at their unload.
//!
//! Invariants: a body is added to the code index in the callback that follows its publication, and
//! removed before its unload callback returns. The name of a dynamic method is queried only while
//! its unload callback cannot return.

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

/// Number of code headers of a runtime that are read with checks and compared with the runtime's
/// data before headers are read without either.
const HEADERS_TO_TRUST: u32 = 32;

/// Code that is unloaded with its module, by module.
pub(super) type Unloadable = HashMap<usize, Vec<Range<u64>>>;

/// Dynamic methods reported to the agent thread, by FunctionID. A name query holds the lock: see
/// [`Clr::name_dynamic`].
pub(super) type NamedDynamics = NumberMap<usize, Range<u64>>;

impl Clr {
    /// Returns the facts about a module.
    pub(crate) fn module(&self, module: usize) -> Option<Arc<ManagedModule>> {
        lock(&self.modules).get(&module).cloned()
    }

    /// Whether an address is ReadyToRun code of a file truncated since its load. The runtime must
    /// not be queried about such code.
    pub(crate) fn is_cut_short_at(&self, map: &CodeMap, address: u64) -> bool {
        let has = |facts: &&Arc<ManagedModule>| {
            let code = facts.precompiled.as_ref();
            code.is_some_and(|code| code.contains(&address))
        };
        let facts = lock(&self.modules).values().find(has).cloned();
        match facts {
            // By the module's own image, and by the length of its file.
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

    /// Registers a module and its ReadyToRun code.
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

    /// Removes a module that is being unloaded, with its code, before the callback returns.
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

    /// Removes a dynamic method that is being unloaded, before the callback returns. Reports its
    /// name if a sample may contain it.
    pub(crate) fn dynamic_unloaded<'rt, C: Synchronous>(
        &self,
        program: &Program,
        cx: &Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) {
        self.gate.dynamic_method_unloading(function.raw());
        let runtime = self.number();
        // The method is intact until this returns (`RuntimeMethodHandle_Destroy`). An error means
        // that it was never compiled.
        let code = cx.info().get_code_info(cx, function).ok();
        let taken = code.as_ref().and_then(|code| {
            let start = code.start_address as u64;
            program.code.take_dynamic(start, runtime, function.raw())
        });
        // Only now: the agent thread no longer finds it in the map, or has queried it before this
        // lock is taken.
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

    /// Queries the name of the dynamic method at a sampled address, and reports its body to the
    /// agent thread. Does nothing if there is no such method or its name is known.
    ///
    /// Besides the unload gate, this is the only lock held over calls into the CLR. The unload of a
    /// dynamic method removes its body from the code map and then waits here, in cooperative mode,
    /// while its name is queried. These calls need no lock of the runtime's, and may be made at any
    /// time (`GetDynamicFunctionInfo`).
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
        // SAFETY: the id came from a callback of this runtime, and the method still exists: it is
        // in the code map, and its unload callback, which removes it, does not return while `named`
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

    /// Registers a compiled dynamic method. Returns false if it must be treated as other code.
    ///
    /// A dynamic method owned by a collectible module (an IL stub) is unloaded without a callback,
    /// so its name cannot be queried later.
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

    /// Returns the code ranges of its images, to be removed after the CLR's end or a detach.
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

    /// Drops the counts for a removed module.
    fn forget(&self, facts: Option<&ManagedModule>) {
        let collectible = facts.map_or(0, |facts| u32::from(facts.collectible));
        self.collectible.fetch_sub(collectible, Ordering::Relaxed);
    }

    /// Registers every body of a compiled function that is not known yet. Returns the tier of the
    /// last.
    ///
    /// Called in the callback that follows a compilation, and by [`Clr::catch_up`], which holds off
    /// unloads.
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
        // A dynamic method has only one body, so the cheaper query below suffices.
        let mut starts = if kind == MethodKind::Il {
            info.get_native_code_start_addresses(cx, function, rejit)
                .unwrap_or_default()
        } else {
            Vec::new()
        };
        if (self.gate.is_catching_up() || self.discovers_code())
            && let Some(later) = starts.get_mut(1..)
        {
            // The runtime lists the first body, then the newest first
            // (`MethodDescVersioningState::LinkNativeCodeVersionNode`). The order of compilation
            // shows their tiers.
            later.reverse();
        }
        if starts.is_empty()
            && let Ok(code) = info.get_code_info(cx, function)
        {
            starts.push(code.start_address);
        }
        let time_ns = proc::now_ns();
        // Each start is looked up once: after a compilation no part of the map is in the
        // processor's caches.
        let mut regions: Vec<Option<Region>> = if kind == MethodKind::Il {
            let map = program.code.map();
            starts.iter().map(|at| map.at_start(*at as u64)).collect()
        } else {
            // The only body of a dynamic method is new, whatever its address held before.
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
            if kind == MethodKind::Il {
                self.note_il(cx, function, rejit, start);
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
            // If several bodies are new, the next one's tier depends on this one.
            if at + 1 < starts.len()
                && let Some(region) = regions.get_mut(at)
            {
                *region = program.code.map().at_start(start);
            }
        }
        tier
    }

    /// Returns the tier of a new body; `regions` has the code at the starts of all current bodies
    /// of its method.
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

    /// Adds a body to the code index and to the list of its owner's unload.
    fn added(&self, program: &Program, body: CodeBody, trigger: UnloadTrigger, unwind: jit::Body) {
        let range = body.range.clone();
        let function = body.function;
        match trigger {
            // No code can be unloaded. Bodies of a catch-up are excluded, as they may be older.
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

    /// Returns the range and the unwind rules of a body that the runtime has just published. The
    /// runtime is queried until its headers have proven to agree.
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
        // SAFETY: as above. The header is read by system calls, and the runtime reports that the
        // code has this length.
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

    /// Returns the facts that must be read now, and what unloads the code. Permanent code has no
    /// facts: the agent thread queries them when a sample needs them.
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

/// The event that frees a body's memory.
enum UnloadTrigger {
    /// None: the code lives as long as the runtime.
    Runtime,
    /// The unload of a module.
    Module(usize),
    /// `DynamicMethodUnloaded`.
    Function,
}

/// Returns a number that is unique in this process.
fn next_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
