//! A CLR's code: its modules, and the bodies that its compiler makes.
//!
//! Methods are not named here, except those whose names cannot be asked for later (collectible
//! code).
//!
//! Invariant: a body is pushed to [`Births`] before it is in the code map, and both happen in
//! the callback that follows its publication; it leaves the map before its unload callback
//! returns.
//!
//! [`Births`]: crate::bodies::Births

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use corprof::context::{Callback, Context};
use corprof::{Cx, FunctionId, Hresult, ModuleFlags, ModuleId, RejitId};
use recording::{Event, MethodKind, Tier};
use stackwalk::{Kind, Region, jit, pe};

use super::{Clr, lock};
use crate::bodies::{Body, Change, Taken};
use crate::events;
use crate::names;
use crate::proc;
use crate::tiers;

/// What is known of a managed module.
#[derive(Debug)]
pub(crate) struct ModuleFacts {
    /// Unique in the process for all time: ModuleIDs are used again.
    pub(crate) serial: u64,
    pub(crate) runtime: u8,
    pub(crate) path: String,
    pub(crate) base: u64,
    /// Its ReadyToRun code.
    pub(super) precompiled: Option<Range<u64>>,
    pub(crate) mvid: OnceLock<[u8; 16]>,
    collectible: bool,
}

/// How many code headers of a runtime are read with care before they are read fast.
const HEADERS_TO_TRUST: u32 = 32;

/// Code that goes when its module, or the dynamic method itself, goes.
#[derive(Default)]
pub(super) struct Unloadable {
    pub(super) by_module: HashMap<usize, Vec<Range<u64>>>,
    pub(super) by_function: HashMap<usize, Vec<Range<u64>>>,
}

impl Clr {
    /// What is known of a module.
    pub(crate) fn module(&self, module: usize) -> Option<Arc<ModuleFacts>> {
        lock(&self.modules).get(&module).cloned()
    }

    /// Whether any module's code may be unloaded.
    pub(crate) fn any_collectible(&self) -> bool {
        self.collectible.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn is_collectible(&self, module: usize) -> bool {
        self.module(module).is_some_and(|facts| facts.collectible)
    }

    /// Learns of a module and of the ReadyToRun code in it.
    pub(super) fn module_loaded<'rt, C: Context>(&self, cx: &Cx<'rt, C>, module: ModuleId<'rt>) {
        let info = cx.info();
        let Ok(Some(found)) = info.get_module_info2(cx, module) else {
            return;
        };
        let base = found.base_address as u64;
        let known = self.module(module.raw());
        if known.is_some_and(|known| known.base == base) {
            return;
        }
        let image = if base != 0 && !found.flags.contains(ModuleFlags::FLAT_LAYOUT) {
            // SAFETY: the runtime has loaded an image at this base, laid out by section, and
            // keeps it until ModuleUnloadStarted (COR_PRF_MODULE_FLAGS, GetModuleInfo2).
            unsafe { pe::r2r_image(base) }.ok()
        } else {
            None
        };
        let facts = Arc::new(ModuleFacts {
            serial: self.agent.next_serial(),
            runtime: self.index,
            path: found.path,
            base,
            precompiled: image.as_ref().map(pe::Image::code),
            mvid: OnceLock::new(),
            collectible: found.flags.contains(ModuleFlags::COLLECTIBLE),
        });
        let collectible = u32::from(facts.collectible);
        self.collectible.fetch_add(collectible, Ordering::Relaxed);
        let replaced = lock(&self.modules).insert(module.raw(), facts);
        self.forget(replaced.as_deref());
        if let Some(image) = image {
            self.agent.map.add_r2r(image, u64::from(self.index));
        }
    }

    /// A module's facts hold no longer.
    pub(super) fn forget(&self, facts: Option<&ModuleFacts>) {
        let collectible = facts.map_or(0, |facts| u32::from(facts.collectible));
        self.collectible.fetch_sub(collectible, Ordering::Relaxed);
    }

    pub(super) fn jit_started(&self, function: FunctionId<'_>) {
        // The program, or the runtime, may have loaded a library since the last look.
        self.agent.refresh_natives();
        if self.events().wants(Event::Jit) {
            events::jit::started(function);
        }
    }

    /// A compilation has ended.
    pub(super) fn jit_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        rejit: RejitId,
        status: Hresult,
        kind: MethodKind,
    ) {
        let wants = self.events().wants(Event::Jit);
        let now_ns = if wants { proc::now_ns() } else { 0 };
        let tier = if status.is_ok() {
            self.compiled(cx, function, rejit, kind)
        } else {
            None
        };
        if wants {
            events::jit::finished(self, cx, function, now_ns, tier);
        }
    }

    /// Learns of every body of a function that is not known yet.
    fn compiled<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        rejit: RejitId,
        kind: MethodKind,
    ) -> Option<Tier> {
        let info = cx.info();
        let mut tier = None;
        let mut starts = info
            .get_native_code_start_addresses(cx, function, rejit)
            .unwrap_or_default();
        if starts.is_empty()
            && let Ok(ranges) = info.get_code_info2(cx, function)
        {
            starts.extend(ranges.first().map(|range| range.start_address));
        }
        let time_ns = proc::now_ns();
        for &code_start in &starts {
            let start = code_start as u64;
            if let Some(region) = self.agent.map.lookup(start)
                && (region.start == start || region.kind == Kind::ReadyToRun)
            {
                continue;
            }
            let ranges = info.get_code_info4(cx, code_start).unwrap_or_default();
            let Some(range) = ranges
                .iter()
                .find(|range| range.start_address == code_start)
                .map(|range| start..start.saturating_add(range.size as u64))
            else {
                continue;
            };
            let (taken, owner) = self.take_now(cx, function, kind, start);
            let unwind = self.unwind_of(&range, function.raw() as u64);
            let of_this = self.tier(&unwind, kind, &starts);
            tier = Some(of_this);
            self.born(
                Body {
                    range: range.clone(),
                    runtime: self.index,
                    function: function.raw(),
                    code_start: start,
                    kind,
                    tier: of_this,
                    birth_ns: time_ns,
                    taken: taken.map(Arc::new),
                },
                owner,
                unwind,
            );
        }
        tier
    }

    /// The tier of a new body, given the starts of all bodies that its method has by now.
    fn tier(&self, unwind: &jit::Body, kind: MethodKind, starts: &[usize]) -> Tier {
        if kind != MethodKind::Il {
            // Never tiered (MethodDesc::DetermineAndSetIsEligibleForTieredCompilation).
            return Tier::Optimized;
        }
        let all = || {
            starts
                .iter()
                .filter_map(|start| self.agent.map.lookup(*start as u64))
        };
        let length = usize::try_from(unwind.end() - unwind.start()).map_or(0, |all| all.min(16));
        // SAFETY: the runtime has just published this code and keeps it at least until this
        // callback returns; `length` is within it.
        let code = unsafe { std::slice::from_raw_parts(unwind.start() as *const u8, length) };
        let is_earlier_step = |region: &Region| {
            region.kind == Kind::Jit && !self.agent.map.begins_on_a_frame(region.start)
        };
        tiers::of_body(tiers::Evidence {
            code,
            on_stack: unwind.begins_on_a_frame(),
            earlier: all().filter(is_earlier_step).count(),
            precompiled: all().any(|region| region.kind == Kind::ReadyToRun),
            instruments: self.instruments.load(Ordering::Relaxed),
        })
    }

    /// Makes a body known: to the agent thread, to the owner's unload, to the walker.
    fn born(&self, body: Body, owner: Owner, unwind: jit::Body) {
        let range = body.range.clone();
        let function = body.function;
        match owner {
            Owner::Runtime => {}
            Owner::Module(module) => lock(&self.unloadable)
                .by_module
                .entry(module)
                .or_default()
                .push(range.clone()),
            Owner::Function => lock(&self.unloadable)
                .by_function
                .entry(function)
                .or_default()
                .push(range.clone()),
        }
        self.agent.births.push(Change::Born(body));
        self.agent.map.add_jit_body(unwind, u64::from(self.index));
    }

    /// The unwind rules of a body that the runtime has just published.
    fn unwind_of(&self, range: &Range<u64>, function: u64) -> jit::Body {
        let length = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
        let known = self.headers_read.load(Ordering::Relaxed) >= HEADERS_TO_TRUST;
        // SAFETY: the code has just been published and stays until its unload callback; the
        // header before it belongs to the same allocation. The fast way is taken only after this
        // runtime's headers have been read in the checked way many times without a mismatch.
        unsafe {
            if known && let Ok(body) = jit::body_from_known_header(range.start, function) {
                return body;
            }
            match jit::body_from_header(range.start, function) {
                Ok(body) => {
                    self.headers_read.fetch_add(1, Ordering::Relaxed);
                    body
                }
                Err(_) => {
                    self.headers_read.store(0, Ordering::Relaxed);
                    jit::body_from_code(range.start, length)
                }
            }
        }
    }

    /// What must be taken now, and who takes the code away. Nothing for code that stays: the
    /// agent thread asks when a sample wants to know.
    fn take_now<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        kind: MethodKind,
        start: u64,
    ) -> (Option<Taken>, Owner) {
        if kind != MethodKind::Il {
            let taken = Taken {
                names: names::of_dynamic(cx, function),
                il_map: Box::default(),
            };
            return (Some(taken), Owner::Function);
        }
        if !self.any_collectible() {
            return (None, Owner::Runtime);
        }
        match names::collectible_owner(self, cx, function) {
            Some(module) => {
                let taken = Taken {
                    names: names::of_function(self, cx, function),
                    il_map: names::il_map(cx, start).unwrap_or_default(),
                };
                (Some(taken), Owner::Module(module))
            }
            None => (None, Owner::Runtime),
        }
    }

    pub(super) fn gone(&self, ranges: Vec<Range<u64>>) {
        let at_ns = proc::now_ns();
        for range in ranges {
            self.agent.map.remove_range(range.clone());
            self.agent.births.push(Change::Gone { range, at_ns });
        }
    }
}

/// Who takes a body's memory back.
enum Owner {
    /// Nobody: it stays as long as the runtime.
    Runtime,
    /// The unload of a module.
    Module(usize),
    /// `DynamicMethodUnloaded`.
    Function,
}
