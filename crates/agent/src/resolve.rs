//! Addresses to frames, frames to stacks: what a sample becomes in the recording.
//!
//! Agent thread only. It asks who holds an address (bodies, code map), asks the runtimes for names
//! once per method (`names`), and writes each module, method, frame and stack once, before the
//! first sample that needs it. It keeps no samples.
//!
//! Invariant: memory is bounded. Every table here is emptied when it reaches its limit; numbering
//! goes on, so the recording stays readable and only says some things twice.

use std::borrow::Cow;
use std::collections::HashSet;

use corprof::{Cx, FunctionId, FunctionKey, RejitId, RuntimeIndex};
use recording::{Event, Frame, MethodKind, ModuleKind, Record, Tier, WalkEnd};
use stackwalk::{ADDRESS, BY_FRAME_POINTER, EXACT, Kind};

use crate::agent::{Agent, NativeNews};
use crate::bodies::{Births, Bodies, Body, IlMap, Names};
use crate::clr::ModuleFacts;
use crate::drain::Runtimes;
use crate::intern::{NumberMap, Stacks};
use crate::names;
use crate::outlet::Outlet;
use crate::stubs::{Generated, Stubs};
use crate::walkers::NATIVE_RUN;

/// Most addresses whose frame is remembered: 24 bytes each, so about 1.5 MiB.
const MAX_ADDRESSES: usize = 64 * 1024;
/// Most frames remembered by value.
const MAX_FRAMES: usize = 64 * 1024;
/// Most IL maps kept.
const MAX_IL_MAPS: usize = 4096;
/// Most methods and modules remembered.
const MAX_METHODS: usize = 64 * 1024;
/// How far from the leaf the runtime's exception handling is looked for, frames.
const MAX_DISPATCH: usize = 24;

/// The state of resolution.
pub(crate) struct Resolver {
    agent: &'static Agent,
    bodies: Bodies,
    /// Lookup address to frame number.
    by_address: NumberMap<u64, u32>,
    frames: std::collections::HashMap<Frame<'static>, u32>,
    next_frame: u32,
    stacks: Stacks,
    methods: NumberMap<(u32, usize), u32>,
    next_method: u32,
    /// Methods of the runtime's managed exception handling, and frames of them. A few dozen.
    dispatch_methods: HashSet<u32>,
    dispatch_frames: HashSet<u32>,
    /// Serial of [`ModuleFacts`] to module number.
    managed_modules: NumberMap<u64, u32>,
    /// ReadyToRun functions by their start: method, and where its code map begins.
    precompiled: NumberMap<u64, (u32, u64)>,
    native_bias: NumberMap<u32, u64>,
    il_maps: NumberMap<u64, IlMap>,
    stubs: Stubs,
    chain: Vec<u32>,
}

/// How a walk ended, from the word that the walk function gave the sampler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct EndCode(pub(crate) u8);

impl EndCode {
    const ROOT: u8 = 0;
    const TRUNCATED: u8 = 1;
    const BROKEN: u8 = 2;

    /// The stack is whole.
    pub(crate) const ROOT_END: EndCode = EndCode(Self::ROOT);
    /// It was cut.
    pub(crate) const TRUNCATED_END: EndCode = EndCode(Self::TRUNCATED);

    /// For the handler.
    pub(crate) fn of(end: stackwalk::End) -> u8 {
        match end {
            stackwalk::End::Root => Self::ROOT,
            stackwalk::End::Truncated => Self::TRUNCATED,
            stackwalk::End::Broken(reason) => Self::BROKEN + reason as u8,
        }
    }

    fn end(self) -> WalkEnd {
        match self.0 {
            Self::ROOT => WalkEnd::Root,
            Self::TRUNCATED => WalkEnd::Truncated,
            _ => WalkEnd::Broken,
        }
    }

    /// The reason, if broken.
    pub(crate) fn reason(self) -> Option<&'static str> {
        let code = self.0.checked_sub(Self::BROKEN)?;
        Some(
            stackwalk::Reason::ALL
                .iter()
                .find(|reason| **reason as u8 == code)
                .map_or("unknown reason", |reason| reason.name()),
        )
    }

    fn pseudo(self) -> Option<Cow<'static, str>> {
        match self.0 {
            Self::ROOT => None,
            Self::TRUNCATED => Some(Cow::Borrowed("truncated")),
            _ => Some(Cow::Owned(format!("broken: {}", self.reason()?))),
        }
    }
}

/// A sample as the sampler gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawSample<'a> {
    pub(crate) thread: u32,
    pub(crate) time_ns: u64,
    pub(crate) value: u64,
    pub(crate) event: Event,
    pub(crate) end: EndCode,
    pub(crate) frames: &'a [u64],
    /// What the event is about, told before.
    pub(crate) detail: Option<u32>,
}

impl Resolver {
    pub(crate) fn new(agent: &'static Agent) -> Resolver {
        Resolver {
            agent,
            bodies: Bodies::default(),
            by_address: NumberMap::default(),
            frames: std::collections::HashMap::new(),
            next_frame: 0,
            stacks: Stacks::default(),
            methods: NumberMap::default(),
            next_method: 0,
            dispatch_methods: HashSet::new(),
            dispatch_frames: HashSet::new(),
            managed_modules: NumberMap::default(),
            precompiled: NumberMap::default(),
            native_bias: NumberMap::default(),
            il_maps: NumberMap::default(),
            stubs: Stubs::default(),
            chain: Vec::new(),
        }
    }

    /// Takes in the bodies that came and went since the last call.
    pub(crate) fn absorb(&mut self, births: &Births) {
        self.bodies.absorb(births);
    }

    /// Everything sampled before `drained_ns` has been given to [`Resolver::sample`]: forgets the
    /// code that had gone by then.
    pub(crate) fn forget_dead(&mut self, drained_ns: u64) {
        let gone = self.bodies.forget_dead(drained_ns);
        if gone.is_empty() {
            return;
        }
        for body in &gone {
            self.il_maps.remove(&body.code_start);
            // A FunctionID may be given out again after an unload.
            if body.taken.is_some() {
                self.methods
                    .remove(&(u32::from(body.runtime), body.function));
            }
        }
        self.by_address
            .retain(|address, _| !gone.iter().any(|body| body.range.contains(address)));
    }

    /// Takes in the native modules that came and went since the last call.
    pub(crate) fn absorb_natives(&mut self, outlet: &mut Outlet) {
        for news in self.agent.take_natives() {
            match news {
                NativeNews::Loaded(number, module) => {
                    self.native_bias.insert(number, module.bias);
                    outlet.push(&Record::Module {
                        module: number,
                        kind: ModuleKind::Native,
                        runtime: None,
                        path: Cow::Owned(module.path.to_string_lossy().into_owned()),
                        bias: module.bias,
                        id_bytes: Cow::Borrowed(&module.build_id),
                        file_offset: 0,
                    });
                }
                // Its addresses may mean something else from now on.
                NativeNews::Unloaded(module) => self
                    .by_address
                    .retain(|address, _| !module.range.contains(address)),
            }
        }
    }

    /// Writes one sample, and before it whatever it is the first to need.
    pub(crate) fn sample(
        &mut self,
        outlet: &mut Outlet,
        runtimes: &mut Runtimes<'_>,
        births: &Births,
        sample: RawSample<'_>,
    ) {
        let mut chain = std::mem::take(&mut self.chain);
        chain.clear();
        if let Some(text) = sample.end.pseudo() {
            chain.push(self.frame(outlet, Frame::Pseudo { text }));
        }
        let words = if sample.event == Event::Exception {
            self.beneath_dispatch(outlet, runtimes, births, &sample)
        } else {
            sample.frames
        };
        for word in words.iter().rev() {
            if word & NATIVE_RUN != 0 {
                let text = Cow::Borrowed("native");
                chain.push(self.frame(outlet, Frame::Pseudo { text }));
                continue;
            }
            chain.push(self.address(outlet, runtimes, births, *word, sample.time_ns));
            if word & BY_FRAME_POINTER != 0 {
                // The next frame's code had no rule, so one between the two may be missing.
                let text = Cow::Borrowed("by frame pointer");
                chain.push(self.frame(outlet, Frame::Pseudo { text }));
            }
        }
        let stack = self
            .stacks
            .intern(chain.iter().copied(), |stack, parent, frame| {
                outlet.push(&Record::Stack {
                    stack,
                    parent,
                    frame,
                });
            });
        self.chain = chain;
        if let Some(stack) = stack {
            outlet.push(&Record::Sample {
                thread: sample.thread,
                stack,
                time_ns: sample.time_ns,
                event: sample.event,
                value: sample.value,
                end: sample.end.end(),
                detail: sample.detail,
            });
        }
    }

    /// The stack of an exception without the frames on top that the runtime's managed exception
    /// handling put there (.NET 9 on: System.Runtime.EH), and its way from the one who threw.
    fn beneath_dispatch<'a>(
        &mut self,
        outlet: &mut Outlet,
        runtimes: &mut Runtimes<'_>,
        births: &Births,
        sample: &RawSample<'a>,
    ) -> &'a [u64] {
        let mut beneath = 0;
        for (word, next) in sample.frames.iter().take(MAX_DISPATCH).zip(1..) {
            let frame = self.address(outlet, runtimes, births, *word, sample.time_ns);
            if self.dispatch_frames.contains(&frame) {
                beneath = next;
            }
        }
        let rest = sample.frames.get(beneath..).unwrap_or_default();
        let native = rest.iter().take_while(|word| {
            let region = self.agent.map.lookup(**word & ADDRESS);
            beneath > 0 && region.is_some_and(|region| region.kind == Kind::Native)
        });
        match rest.get(native.count()..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => sample.frames,
        }
    }

    /// The frame of one word of a walk.
    fn address(
        &mut self,
        outlet: &mut Outlet,
        runtimes: &mut Runtimes<'_>,
        births: &Births,
        word: u64,
        time_ns: u64,
    ) -> u32 {
        let address = word & ADDRESS;
        let lookup = if word & EXACT != 0 {
            address
        } else {
            address.saturating_sub(1)
        };
        let contested = self.bodies.is_contested(lookup);
        if !contested && let Some(frame) = self.by_address.get(&lookup) {
            return *frame;
        }
        let value = self.look_up(outlet, runtimes, births, lookup, time_ns);
        // An unknown address may be known a moment later.
        let keep = !contested && !matches!(value, Frame::Unknown { .. });
        let frame = self.frame(outlet, value);
        if keep {
            if self.by_address.len() >= MAX_ADDRESSES {
                self.by_address.clear();
            }
            self.by_address.insert(lookup, frame);
        }
        frame
    }

    /// The number of a frame.
    pub(crate) fn frame(&mut self, outlet: &mut Outlet, value: Frame<'static>) -> u32 {
        if let Some(frame) = self.frames.get(&value) {
            return *frame;
        }
        if self.frames.len() >= MAX_FRAMES {
            self.frames.clear();
        }
        let frame = self.next_frame;
        self.next_frame = self.next_frame.wrapping_add(1);
        if let Frame::Managed { method, .. } = &value
            && self.dispatch_methods.contains(method)
        {
            self.dispatch_frames.insert(frame);
        }
        outlet.push(&Record::Frame {
            frame,
            value: value.clone(),
        });
        self.frames.insert(value, frame);
        frame
    }

    /// The number of the stack `frame` called from the stack `above`, which stays its own.
    pub(crate) fn stack(&mut self, outlet: &mut Outlet, above: Option<u32>, frame: u32) -> u32 {
        self.stacks.child(above, frame, |stack, parent, frame| {
            outlet.push(&Record::Stack {
                stack,
                parent,
                frame,
            });
        })
    }

    /// The number of a method that stays as long as its runtime; `None` where nobody knows its
    /// names.
    pub(crate) fn method_of(
        &mut self,
        outlet: &mut Outlet,
        runtimes: &mut Runtimes<'_>,
        runtime: u8,
        function: usize,
    ) -> Option<u32> {
        let key = (u32::from(runtime), function);
        if let Some(known) = self.methods.get(&key) {
            return Some(*known);
        }
        let names = runtimes.with(runtime, |clr, cx| {
            let function = function_id(cx, runtime, function)?;
            names::of_function(clr, cx, function)
        })??;
        let method = self.method(outlet, runtime, MethodKind::Il, &names);
        self.remember_method(key, method);
        Some(method)
    }

    fn look_up(
        &mut self,
        outlet: &mut Outlet,
        runtimes: &mut Runtimes<'_>,
        births: &Births,
        lookup: u64,
        time_ns: u64,
    ) -> Frame<'static> {
        let mut body = self.bodies.at(lookup, time_ns).cloned();
        if body.is_none() && self.bodies.absorb(births) {
            // It was compiled after this round of draining began.
            body = self.bodies.at(lookup, time_ns).cloned();
        }
        if let Some(body) = body {
            return self.managed(outlet, runtimes, &body, lookup);
        }
        match self.agent.map.lookup(lookup) {
            Some(region) if region.kind == Kind::ReadyToRun => {
                let runtime = u8::try_from(region.user).unwrap_or(u8::MAX);
                self.ready_to_run(outlet, runtimes, runtime, lookup)
            }
            Some(region) if region.kind == Kind::Native => {
                let module = u32::try_from(region.user).unwrap_or(u32::MAX);
                if !self.native_bias.contains_key(&module) {
                    // A callback found it after this round of draining began.
                    self.absorb_natives(outlet);
                }
                match self.native_bias.get(&module) {
                    Some(bias) => Frame::Native {
                        module,
                        svma: lookup.wrapping_sub(*bias),
                    },
                    None => Frame::Unknown { address: lookup },
                }
            }
            _ => self.stub(runtimes, lookup),
        }
    }

    fn managed(
        &mut self,
        outlet: &mut Outlet,
        runtimes: &mut Runtimes<'_>,
        body: &Body,
        lookup: u64,
    ) -> Frame<'static> {
        let key = (u32::from(body.runtime), body.function);
        let known = self.methods.get(&key).copied();
        let method = known.or_else(|| {
            let names = match &body.taken {
                Some(taken) => taken.names.clone()?,
                None => runtimes.with(body.runtime, |clr, cx| {
                    let function = function_id(cx, body.runtime, body.function)?;
                    names::of_function(clr, cx, function)
                })??,
            };
            let method = self.method(outlet, body.runtime, body.kind, &names);
            self.remember_method(key, method);
            Some(method)
        });
        match method {
            Some(method) => Frame::Managed {
                method,
                tier: body.tier,
                il_offset: match &body.taken {
                    Some(taken) => il_at(&taken.il_map, body.code_start, lookup),
                    None => self.il_offset(runtimes, body.runtime, body.code_start, lookup),
                },
            },
            None => Frame::Stub {
                runtime: body.runtime,
                name: Cow::Borrowed("managed code without a name"),
            },
        }
    }

    fn ready_to_run(
        &mut self,
        outlet: &mut Outlet,
        runtimes: &mut Runtimes<'_>,
        runtime: u8,
        lookup: u64,
    ) -> Frame<'static> {
        let start = self.agent.map.r2r_function_start(lookup).unwrap_or(lookup);
        let known = self.precompiled.get(&start).copied();
        let found = known.or_else(|| {
            let (function, code_start, names) = runtimes.with(runtime, |clr, cx| {
                // Code of a ReadyToRun image is never freed, so the lookup cannot race with it
                // (ReadyToRun code is not used for collectible assemblies: ReadyToRunInfo).
                let info = cx.info();
                let ip = usize::try_from(lookup).ok()?;
                let function = info.get_function_from_ip(cx, ip).ok()?;
                let names = names::of_function(clr, cx, function)?;
                // The method's own start, where `start` may be that of a funclet.
                let starts = info
                    .get_native_code_start_addresses(cx, function, RejitId::ORIGINAL)
                    .unwrap_or_default();
                let code_start = starts
                    .into_iter()
                    .filter(|at| *at <= ip)
                    .max()
                    .map_or(start, |at| at as u64);
                Some((function.raw(), code_start, names))
            })??;
            let key = (u32::from(runtime), function);
            let method = match self.methods.get(&key) {
                Some(method) => *method,
                None => {
                    let method = self.method(outlet, runtime, MethodKind::Il, &names);
                    self.remember_method(key, method);
                    method
                }
            };
            if self.precompiled.len() >= MAX_METHODS {
                self.precompiled.clear();
            }
            self.precompiled.insert(start, (method, code_start));
            Some((method, code_start))
        });
        match found {
            Some((method, code_start)) => Frame::Managed {
                method,
                tier: Tier::ReadyToRun,
                il_offset: self.il_offset(runtimes, runtime, code_start, lookup),
            },
            // Delay-load helpers and method entry stubs of the image.
            None => Frame::Stub {
                runtime,
                name: Cow::Borrowed("ReadyToRun stub"),
            },
        }
    }

    fn remember_method(&mut self, key: (u32, usize), method: u32) {
        if self.methods.len() >= MAX_METHODS {
            self.methods.clear();
        }
        self.methods.insert(key, method);
    }

    /// Writes a method; its number.
    pub(crate) fn method(
        &mut self,
        outlet: &mut Outlet,
        runtime: u8,
        kind: MethodKind,
        names: &Names,
    ) -> u32 {
        let module = names
            .module
            .as_deref()
            .map(|facts| self.managed_module(outlet, facts));
        let method = self.next_method;
        self.next_method = self.next_method.wrapping_add(1);
        let kind = if kind == MethodKind::Dynamic && names.name.starts_with("IL_STUB") {
            MethodKind::IlStub
        } else {
            kind
        };
        if names.type_name == "System.Runtime.EH" {
            self.dispatch_methods.insert(method);
        }
        outlet.push(&Record::Method {
            method,
            runtime,
            kind,
            module,
            token: names.token,
            type_name: Cow::Borrowed(&names.type_name),
            name: Cow::Borrowed(&names.name),
        });
        method
    }

    fn managed_module(&mut self, outlet: &mut Outlet, facts: &ModuleFacts) -> u32 {
        if let Some(number) = self.managed_modules.get(&facts.serial) {
            return *number;
        }
        if self.managed_modules.len() >= MAX_METHODS {
            self.managed_modules.clear();
        }
        let number = self.agent.next_module();
        self.managed_modules.insert(facts.serial, number);
        outlet.push(&Record::Module {
            module: number,
            kind: ModuleKind::Managed,
            runtime: Some(facts.runtime),
            path: Cow::Borrowed(&facts.path),
            bias: facts.base,
            id_bytes: Cow::Borrowed(facts.mvid.get().map_or(&[], |mvid| mvid.as_slice())),
            file_offset: 0,
        });
        number
    }

    /// The IL offset of an address in the body that starts at `code_start`.
    fn il_offset(
        &mut self,
        runtimes: &mut Runtimes<'_>,
        runtime: u8,
        code_start: u64,
        lookup: u64,
    ) -> Option<u32> {
        if !self.il_maps.contains_key(&code_start) {
            if self.il_maps.len() >= MAX_IL_MAPS {
                self.il_maps.clear();
            }
            let map = runtimes
                .with(runtime, |_, cx| names::il_map(cx, code_start))
                .flatten()
                .unwrap_or_default();
            self.il_maps.insert(code_start, map);
        }
        il_at(self.il_maps.get(&code_start)?, code_start, lookup)
    }

    /// Code that is no method: something that the runtime generated, or nothing we know.
    fn stub(&mut self, runtimes: &Runtimes<'_>, lookup: u64) -> Frame<'static> {
        let runtime = match self.stubs.of(lookup, &self.bodies) {
            Generated::By(runtime) => Some(runtime),
            Generated::BySomebody => runtimes.only(),
            Generated::No => None,
        };
        match runtime {
            Some(runtime) => Frame::Stub {
                runtime,
                name: Cow::Borrowed("runtime stub"),
            },
            None => Frame::Unknown { address: lookup },
        }
    }

    /// Bytes held.
    pub(crate) fn memory(&self) -> u64 {
        let bodies = self.bodies.len() * (size_of::<Body>() + 16);
        let addresses = self.by_address.capacity() * 17;
        let frames = self.frames.capacity() * (size_of::<Frame<'static>>() + 5);
        let maps: usize = self.il_maps.values().map(|map| map.len() * 8 + 40).sum();
        let methods = (self.methods.capacity() + self.precompiled.capacity()) * 25;
        (bodies + addresses + frames + maps + methods) as u64 + self.stacks.memory()
    }
}

/// The IL offset at an address: that of the nearest entry at or before it.
fn il_at(map: &IlMap, code_start: u64, lookup: u64) -> Option<u32> {
    let offset = u32::try_from(lookup.checked_sub(code_start)?).ok()?;
    let next = map.partition_point(|(native, _)| *native <= offset);
    map.get(next.checked_sub(1)?).map(|(_, il)| *il)
}

fn function_id<'rt, C>(cx: &Cx<'rt, C>, runtime: u8, raw: usize) -> Option<FunctionId<'rt>> {
    // SAFETY: the id came from a callback of this runtime (`Body::function`), and code that may be
    // unloaded brings its names along, so it is asked about here only while it lives.
    let key = unsafe { FunctionKey::from_parts(RuntimeIndex(u32::from(runtime)), raw) }?;
    cx.info().id(key)
}
