//! Resolves addresses to frames and frames to stacks, and writes each of them once.
//!
//! Agent thread only. An address is looked up among method bodies and in the code map; names are
//! queried from the runtimes once per method (`names`). Each module, method, frame and stack is
//! written before the first sample that refers to it. Samples are not kept.
//!
//! Invariant: memory is bounded. Every table is emptied when it reaches its limit. Numbers are not
//! reused, so the recording stays readable and only repeats some entries.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use corprof::context::AgentThread;
use corprof::{Cx, FunctionId, FunctionKey, RejitId};
use recording::{Event, Frame, MethodKind, ModuleKind, Record, Tier};
use stackwalk::{ADDRESS, BY_FRAME_POINTER, CodeKind, HEURISTIC, Region, lookup_address};

use super::Recorder;
use super::il_maps::IlMaps;
use super::roles::Roles;
use super::stacks::Stacks;
use super::stubs::Generated;
use crate::base::numbers::NumberMap;
use crate::clr::{Clr, Runtimes, async_types, names};
use crate::model::chain;
use crate::model::{CodeBody, ManagedModule, MethodNames, NATIVE_RUN, WalkedStack};
use crate::program::code::{CodeLifetime, Owner, can_query_runtime, permanent_body};
use crate::program::natives::NativeChange;
use crate::program::{Program, chains};

/// Maximum number of addresses with a cached frame: 24 bytes each, so about 1.5 MiB.
const MAX_ADDRESSES: usize = 64 * 1024;
/// Maximum number of frames cached by value.
const MAX_FRAMES: usize = recording::limits::FRAMES;
/// Maximum number of cached methods and modules.
const MAX_METHODS: usize = recording::limits::METHODS;
/// Maximum number of frames from the leaf to the runtime's exception handling, or to code that
/// reports an event.
const MAX_DISPATCH: usize = 24;

/// Name of code to which a wrong unwind table led ([`can_query_runtime`]).
const STRAY: &str = "ReadyToRun code behind no call";

/// Name of code that belongs to no reported method.
const STUB: &str = "runtime stub";
/// Time after its first sample in which such code may still be reported as a method's, in
/// nanoseconds. If several threads call a method at once, one compiles it. The others run it before
/// that thread reports it (`MethodDesc::JitCompileCodeLockedEventWrapper`), on a busy machine long
/// before.
const YOUNG_NS: u64 = 5_000_000_000;

/// Numbers of the entries that were written to the recording, by their content.
///
/// Numbers are never reused in a process, so emptying a table only means that some entries are
/// written twice. The tables refer to each other's numbers, so they are emptied together.
#[derive(Debug, Default)]
pub(super) struct WrittenTables {
    /// Lookup address to frame number.
    by_address: NumberMap<u64, u32>,
    /// Lookup addresses in code that may still be reported as a method's, with the time of their
    /// first sample.
    young: NumberMap<u64, u64>,
    frames: HashMap<Frame<'static>, u32>,
    stacks: Stacks,
    methods: NumberMap<(u32, usize), u32>,
    /// Dynamic methods by runtime and name.
    dynamic_methods: HashMap<(u8, String), u32>,
    /// Methods written since the tables were empty, unloaded ones too ([`recording::limits`]).
    numbered_methods: usize,
    /// Roles of methods that have any, and of their frames.
    method_roles: NumberMap<u32, Roles>,
    frame_roles: NumberMap<u32, Roles>,
    /// Methods of tasks of async methods, by runtime and method table.
    pub(super) chain_methods: NumberMap<(u32, u64), u32>,
    /// Modules and tokens of the `MoveNext` methods, and of frames of them.
    pub(super) tokens: NumberMap<u32, (Option<u32>, u32)>,
    pub(super) frame_tokens: NumberMap<u32, (Option<u32>, u32)>,
    /// Serial of [`ManagedModule`] to module number.
    managed_modules: NumberMap<u64, u32>,
    /// Number of a loaded native module to its module number and bias.
    native_modules: NumberMap<u32, (u32, u64)>,
    /// ReadyToRun functions by their start: method, and where its code map begins.
    precompiled: NumberMap<u64, (u32, u64)>,
    il_maps: IlMaps,
    last: LastStack,
}

/// The last written stack, from the root to the first unknown address.
#[derive(Debug, Default)]
struct LastStack {
    /// Frame in place of the root, if the walk did not reach the root.
    end: Option<Cow<'static, str>>,
    /// Root first.
    words: Vec<u64>,
    /// The stack up to each word.
    stacks: Vec<u32>,
}

/// The next free numbers of written entries.
#[derive(Debug, Default)]
pub(super) struct NextNumbers {
    frame: u32,
    method: u32,
    module: u32,
}

impl WrittenTables {
    /// Whether a table has reached its limit.
    pub(super) fn is_full(&self) -> bool {
        self.by_address.len() >= MAX_ADDRESSES
            || self.young.len() >= MAX_ADDRESSES
            || self.frames.len() >= MAX_FRAMES
            || self.numbered_methods >= MAX_METHODS
            || self.managed_modules.len() >= MAX_METHODS
            || self.precompiled.len() >= MAX_METHODS
    }

    /// Drops the entries that can be written again when needed. Native modules remain, as they are
    /// written only when loaded.
    pub(super) fn start_again(&mut self) {
        let native_modules = std::mem::take(&mut self.native_modules);
        let stacks = std::mem::take(&mut self.stacks);
        *self = WrittenTables {
            native_modules,
            stacks: stacks.emptied(),
            ..WrittenTables::default()
        };
    }

    /// Drops native modules, so that they are written again.
    pub(super) fn forget_natives(&mut self) {
        self.native_modules = NumberMap::default();
    }

    /// Whether an address of no method's was sampled for the first time not long before this
    /// sample.
    fn is_young(&mut self, lookup: u64, time_ns: u64) -> bool {
        let first = *self.young.entry(lookup).or_insert(time_ns);
        let young = time_ns.saturating_sub(first) < YOUNG_NS;
        if !young {
            self.young.remove(&lookup);
        }
        young
    }

    /// Returns the roles of a frame's method.
    pub(super) fn roles_of(&self, frame: u32) -> Roles {
        self.frame_roles.get(&frame).copied().unwrap_or_default()
    }

    fn memory(&self) -> u64 {
        let addresses = (self.by_address.capacity() + self.young.capacity()) * 17;
        let frames = self.frames.capacity() * (size_of::<Frame<'static>>() + 5);
        let maps = self.il_maps.memory();
        let dynamic = self.dynamic_methods.keys().map(|(_, name)| name.len() + 48);
        let methods =
            (self.methods.capacity() + self.precompiled.capacity()) * 25 + dynamic.sum::<usize>();
        (addresses + frames + maps + methods) as u64 + self.stacks.memory()
    }
}

/// Tables for the look-up of addresses.
pub(super) struct Lookup<'a, 'r> {
    pub(super) program: &'a Program,
    pub(super) runtimes: &'a mut Runtimes<'r>,
}

impl Recorder {
    /// Drops the code that was removed before `drained_ns`. All samples taken before that must have
    /// been passed to [`Recorder::sample`].
    pub fn forget_removed(&mut self, drained_ns: u64) {
        let mut gone = self.history.forget_removed(drained_ns);
        if gone.is_empty() {
            return;
        }
        self.written.last = LastStack::default();
        for body in &gone {
            self.written.il_maps.remove(body.code_start);
            // A FunctionID may be reused after an unload.
            if body.collectible.is_some() {
                let key = (u32::from(body.runtime), body.function);
                self.written.methods.remove(&key);
            }
        }
        gone.sort_unstable_by_key(|body| body.range.start);
        // Two bodies may have occupied the same memory, one after the other.
        let mut ranges: Vec<Range<u64>> = Vec::with_capacity(gone.len());
        for body in gone {
            match ranges.last_mut() {
                Some(last) if body.range.start <= last.end => {
                    last.end = last.end.max(body.range.end);
                }
                _ => ranges.push(body.range),
            }
        }
        self.written.by_address.retain(|address, _| {
            let next = ranges.partition_point(|range| range.start <= *address);
            let before = next.checked_sub(1).and_then(|at| ranges.get(at));
            !before.is_some_and(|range| range.contains(address))
        });
    }

    /// Applies the loads and unloads of native modules since the last call.
    pub fn absorb_natives(&mut self, program: &Program) {
        for change in program.natives.take_changes() {
            match change {
                NativeChange::Loaded(native, module) => {
                    let number = self.next_module();
                    self.written
                        .native_modules
                        .insert(native, (number, module.bias));
                    self.outlet.push(&Record::Module {
                        module: number,
                        kind: ModuleKind::Native,
                        runtime: None,
                        path: Cow::Owned(module.path.to_string_lossy().into_owned()),
                        bias: module.bias,
                        id_bytes: Cow::Borrowed(&module.build_id),
                        file_offset: 0,
                    });
                }
                // Its addresses may be reused from now on.
                NativeChange::Unloaded(native, module) => {
                    self.written.native_modules.remove(&native);
                    self.written.last = LastStack::default();
                    self.written
                        .by_address
                        .retain(|address, _| !module.range.contains(address));
                }
            }
        }
    }

    fn next_module(&mut self) -> u32 {
        let number = self.next.module;
        self.next.module = number.wrapping_add(1);
        number
    }

    /// Writes one sample, and before it whatever it is the first to need.
    pub(super) fn write_sample(&mut self, look: &mut Lookup<'_, '_>, sample: WalkedStack<'_>) {
        if let Some((stack, logical)) = self.stacks_of(look, sample) {
            let value = match sample.event {
                Event::Wall | Event::Contention => self.running_ns(sample.time_ns, sample.value),
                _ => sample.value,
            };
            self.outlet.push(&Record::Sample {
                thread: sample.thread,
                stack,
                time_ns: sample.time_ns,
                event: sample.event,
                value,
                end: sample.end.end(),
                detail: sample.detail,
                logical,
            });
        }
    }

    /// Returns the numbers of a sample's stack and of its logical stack, if any. `None` for an
    /// empty stack. First writes the entries that they refer to.
    pub(super) fn stacks_of(
        &mut self,
        look: &mut Lookup<'_, '_>,
        sample: WalkedStack<'_>,
    ) -> Option<(u32, Option<u32>)> {
        let (frames, chain) = chain::split(sample.frames);
        let sample = WalkedStack { frames, ..sample };
        let words = match sample.event {
            Event::Exception => self.without_runtime_frames(Roles::DISPATCH, look, &sample),
            Event::Contention => self.without_runtime_frames(Roles::EVENT_SOURCE, look, &sample),
            _ => sample.frames,
        };
        let stack = self.stack(look, words, &sample);
        let logical = match chain {
            Some(chain) => self.logical(look, words, chain, &sample),
            None => self.cut_if_resumed(look, words, &sample),
        };
        stack.map(|stack| (stack, logical))
    }

    /// Returns the number of a walk's stack, or `None` for an empty one. The part shared with the
    /// last stack, from the root on, is not looked up again.
    fn stack(
        &mut self,
        look: &mut Lookup<'_, '_>,
        words: &[u64],
        sample: &WalkedStack<'_>,
    ) -> Option<u32> {
        let mut last = std::mem::take(&mut self.written.last);
        let end = sample.end.pseudo();
        if end != last.end || self.history.is_any_contested() {
            last = LastStack::default();
        }
        last.end = end;
        let same = last.words.iter().zip(words.iter().rev());
        let same = same.take_while(|(last, word)| *last == *word).count();
        last.words.truncate(same);
        last.stacks.truncate(same);
        let mut stack = last.stacks.last().copied();
        if stack.is_none()
            && let Some(text) = last.end.clone()
        {
            stack = Some(self.push_frame(None, Frame::Pseudo { text }));
        }
        let mut all_known = true;
        let callees = words.iter().rev().skip(same + 1).map(Some).chain([None]);
        for (word, callee) in words.iter().rev().skip(same).zip(callees) {
            if word & NATIVE_RUN != 0 {
                let text = Cow::Borrowed("native");
                stack = Some(self.push_frame(stack, Frame::Pseudo { text }));
            } else {
                let (frame, is_known) = self.address(look, *word, sample.time_ns);
                all_known &= is_known;
                stack = Some(self.stack_of(stack, frame));
                let mark = if word & BY_FRAME_POINTER != 0 {
                    // The next frame's code had no rule, so one between the two may be missing.
                    Some("by frame pointer")
                } else if word & HEURISTIC != 0 {
                    // The result depends on the callee, which may differ in the next sample.
                    all_known = false;
                    let is_stub = callee.is_none_or(|callee| self.is_stub(look, *callee));
                    (!is_stub).then_some("guess")
                } else {
                    None
                };
                if let Some(text) = mark {
                    let text = Cow::Borrowed(text);
                    stack = Some(self.push_frame(stack, Frame::Pseudo { text }));
                }
            }
            if all_known && let Some(stack) = stack {
                last.words.push(*word);
                last.stacks.push(stack);
            }
        }
        self.written.last = last;
        stack
    }

    /// Returns the number of the stack of a frame, called from the stack `above`.
    pub(super) fn push_frame(&mut self, above: Option<u32>, frame: Frame<'static>) -> u32 {
        let frame = self.frame(frame);
        self.stack_of(above, frame)
    }

    /// Returns the stack of an event without the youngest frames, in which the runtime's managed
    /// code handles or reports it (exceptions from .NET 9 on: System.Runtime.EH), and without the
    /// native frames between.
    fn without_runtime_frames<'a>(
        &mut self,
        roles: Roles,
        look: &mut Lookup<'_, '_>,
        sample: &WalkedStack<'a>,
    ) -> &'a [u64] {
        let mut beneath = 0;
        for (word, next) in sample.frames.iter().take(MAX_DISPATCH).zip(1..) {
            let (frame, _) = self.address(look, *word, sample.time_ns);
            if self.written.roles_of(frame).has(roles) {
                beneath = next;
            }
        }
        let rest = sample.frames.get(beneath..).unwrap_or_default();
        let native = rest.iter().take_while(|word| {
            let region = look.program.code.map().lookup(**word & ADDRESS);
            beneath > 0 && region.is_some_and(|region| region.kind == CodeKind::Native)
        });
        match rest.get(native.count()..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => sample.frames,
        }
    }

    /// Returns the frame of one word of a walk, and whether the result for the address may be
    /// cached.
    pub(super) fn address(
        &mut self,
        look: &mut Lookup<'_, '_>,
        word: u64,
        time_ns: u64,
    ) -> (u32, bool) {
        let lookup = lookup_address(word);
        let contested = self.history.is_contested(lookup);
        if !contested && let Some(frame) = self.written.by_address.get(&lookup) {
            return (*frame, true);
        }
        let value = self.look_up(look, word, time_ns);
        // An unknown address may soon become known, and a thread may be interrupted at an address
        // to which a stray led.
        let may_change = match &value {
            Frame::Unknown { .. } => true,
            Frame::Stub { name, .. } => {
                name == STRAY || name == STUB && self.written.is_young(lookup, time_ns)
            }
            Frame::Pseudo { .. } => self.written.is_young(lookup, time_ns),
            _ => false,
        };
        let keep = !contested && !may_change;
        let frame = self.frame(value);
        if keep {
            self.written.by_address.insert(lookup, frame);
        }
        (frame, keep)
    }

    /// Returns the number of a frame.
    pub fn frame(&mut self, value: Frame<'static>) -> u32 {
        if let Some(frame) = self.written.frames.get(&value) {
            return *frame;
        }
        let frame = self.next.frame;
        self.next.frame = self.next.frame.wrapping_add(1);
        if let Frame::Managed { method, .. } = &value {
            if let Some(roles) = self.written.method_roles.get(method) {
                self.written.frame_roles.insert(frame, *roles);
            }
            if let Some(token) = self.written.tokens.get(method) {
                self.written.frame_tokens.insert(frame, *token);
            }
        }
        self.outlet.push(&Record::Frame {
            frame,
            value: value.clone(),
        });
        self.written.frames.insert(value, frame);
        frame
    }

    /// Returns the number of the stack with the leaf `frame`, called from the stack `above`, which
    /// keeps its number.
    pub fn stack_of(&mut self, above: Option<u32>, frame: u32) -> u32 {
        self.written
            .stacks
            .child(above, frame, |stack, parent, frame| {
                self.outlet.push(&Record::Stack {
                    stack,
                    parent,
                    frame,
                });
            })
    }

    /// Returns the number of a method that lives as long as its runtime. `None` if its name is not
    /// known.
    pub fn method_of(
        &mut self,
        program: &Program,
        runtimes: &mut Runtimes<'_>,
        runtime: u8,
        function: usize,
    ) -> Option<u32> {
        let look = &mut Lookup { program, runtimes };
        let key = (u32::from(runtime), function);
        if let Some(known) = self.written.methods.get(&key) {
            return Some(*known);
        }
        let names = look.runtimes.with(runtime, |clr, cx| {
            let function = function_id(cx, function)?;
            names::of_function(clr, cx, function)
        })??;
        let method = self.method(runtime, MethodKind::Il, &names);
        self.remember_method(key, method);
        Some(method)
    }

    fn look_up(&mut self, look: &mut Lookup<'_, '_>, word: u64, time_ns: u64) -> Frame<'static> {
        let lookup = lookup_address(word);
        if let Some(body) = self.history.at(lookup, time_ns).cloned() {
            return self.managed(look, &body, lookup);
        }
        let region = look.program.code.map().lookup(lookup);
        if let Some(body) = self.late_body(look, region.as_ref(), lookup, time_ns) {
            return self.managed(look, &body, lookup);
        }
        match region {
            Some(region) if region.kind == CodeKind::ReadyToRun => {
                let runtime = Owner::of_word(region.user).runtime;
                self.ready_to_run(look, runtime, word)
            }
            Some(region) if region.kind == CodeKind::Native => {
                let native = u32::try_from(region.user).unwrap_or(u32::MAX);
                if !self.written.native_modules.contains_key(&native) {
                    // A callback reported it after this drain began.
                    self.absorb_natives(look.program);
                }
                match self.written.native_modules.get(&native) {
                    Some((module, bias)) => Frame::Native {
                        module: *module,
                        svma: lookup.wrapping_sub(*bias),
                    },
                    None => Frame::Unknown { address: lookup },
                }
            }
            Some(region) => self.jitted(look, &region, lookup, time_ns),
            None if can_query_runtime(look.program.code.map(), word)
                && look.runtimes.discover(look.program, lookup) =>
            {
                match look.program.code.map().lookup(lookup) {
                    Some(region) => self.jitted(look, &region, lookup, time_ns),
                    None => self.stub(look, lookup),
                }
            }
            None => self.stub(look, lookup),
        }
    }

    /// Returns the frame of a JITted body that is in the code map and was not in the history.
    fn jitted(
        &mut self,
        look: &mut Lookup<'_, '_>,
        region: &Region,
        lookup: u64,
        time_ns: u64,
    ) -> Frame<'static> {
        let owner = Owner::of_word(region.user);
        if matches!(owner.body, CodeLifetime::Unnamed(_)) {
            let program = look.program;
            let name = |clr: &Arc<Clr>, cx: &mut Cx<'_, AgentThread>| {
                clr.name_dynamic(program, cx, lookup);
            };
            look.runtimes.with(owner.runtime, name);
        }
        match self.late_body(look, Some(region), lookup, time_ns) {
            Some(body) => self.managed(look, &body, lookup),
            None => self.stub(look, lookup),
        }
    }

    /// Returns a body that was not in the history: it was compiled after this drain began, or the
    /// code map's region contains all facts about it.
    fn late_body(
        &mut self,
        look: &Lookup<'_, '_>,
        region: Option<&Region>,
        lookup: u64,
        time_ns: u64,
    ) -> Option<CodeBody> {
        // After the map was read: another body may have held the address when the sample was taken.
        // Its removal was queued before this body was in the map.
        let has_news = self.history.absorb(&look.program.code);
        let queued = has_news.then(|| self.history.at(lookup, time_ns).cloned());
        queued.flatten().or_else(|| permanent_body(region?))
    }

    fn managed(
        &mut self,
        look: &mut Lookup<'_, '_>,
        body: &CodeBody,
        lookup: u64,
    ) -> Frame<'static> {
        let method = match &body.collectible {
            Some(facts) if body.kind == MethodKind::Dynamic => facts
                .names
                .as_ref()
                .map(|names| self.dynamic_method(body.runtime, names)),
            _ => self.method_with_metadata(look, body),
        };
        match method {
            Some(method) => Frame::Managed {
                method,
                tier: body.tier,
                il_offset: match &body.collectible {
                    Some(facts) => il_at(&facts.il_map, body.code_start, lookup),
                    None => {
                        let jitted = Some(body.function);
                        self.il_offset(look, body.runtime, jitted, body.code_start, lookup)
                    }
                },
            },
            None => Frame::Stub {
                runtime: body.runtime,
                name: Cow::Borrowed("managed code without a name"),
            },
        }
    }

    /// Returns the method of an IL body. `None` if its name is not known.
    fn method_with_metadata(&mut self, look: &mut Lookup<'_, '_>, body: &CodeBody) -> Option<u32> {
        let key = (u32::from(body.runtime), body.function);
        if let Some(known) = self.written.methods.get(&key) {
            return Some(*known);
        }
        let names = match &body.collectible {
            Some(facts) => facts.names.clone()?,
            None => look.runtimes.with(body.runtime, |clr, cx| {
                let function = function_id(cx, body.function)?;
                names::of_function(clr, cx, function)
            })??,
        };
        let method = self.method(body.runtime, body.kind, &names);
        self.remember_method(key, method);
        Some(method)
    }

    /// Returns the method that represents all dynamic methods of this name. They have no other
    /// identity, and their ids are reused at once.
    fn dynamic_method(&mut self, runtime: u8, names: &MethodNames) -> u32 {
        let key = (runtime, names.name.clone());
        if let Some(known) = self.written.dynamic_methods.get(&key) {
            return *known;
        }
        let method = self.method(runtime, MethodKind::Dynamic, names);
        self.written.dynamic_methods.insert(key, method);
        method
    }

    fn ready_to_run(
        &mut self,
        look: &mut Lookup<'_, '_>,
        runtime: u8,
        word: u64,
    ) -> Frame<'static> {
        let lookup = lookup_address(word);
        let map = look.program.code.map();
        let start = map.r2r_function_start(lookup).unwrap_or(lookup);
        let known = self.written.precompiled.get(&start).copied();
        if known.is_none() && is_cut_short(look, runtime, lookup) {
            // The runtime would search memory that no longer exists.
            return Frame::Stub {
                runtime,
                name: Cow::Borrowed("ReadyToRun code of a file that was cut short"),
            };
        }
        if known.is_none() && !can_query_runtime(map, word) {
            return Frame::Stub {
                runtime,
                name: Cow::Borrowed(STRAY),
            };
        }
        let found = known.or_else(|| {
            let (function, code_start, names) = look.runtimes.with(runtime, |clr, cx| {
                // Code of a ReadyToRun image is never freed, so the lookup cannot race with it
                // (ReadyToRun code is not used for collectible assemblies: ReadyToRunInfo).
                let info = cx.info();
                let ip = usize::try_from(lookup).ok()?;
                let function = info.get_function_from_ip(cx, ip).ok()?;
                let names = names::of_function(clr, cx, function)?;
                // Start of the method; `start` may be that of a funclet.
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
            let method = match self.written.methods.get(&key) {
                Some(method) => *method,
                None => {
                    let method = self.method(runtime, MethodKind::Il, &names);
                    self.remember_method(key, method);
                    method
                }
            };
            self.written.precompiled.insert(start, (method, code_start));
            if let Some(tables) =
                chains::tables_if_wanted().filter(|_| async_types::is_of_chains(&names))
            {
                let learned = look.runtimes.with(runtime, |clr, cx| {
                    clr.learn_precompiled(cx, tables, function, code_start)
                });
                self.chains.has_learned |= learned == Some(true);
            }
            Some((method, code_start))
        });
        match found {
            Some((method, code_start)) => Frame::Managed {
                method,
                tier: Tier::ReadyToRun,
                il_offset: self.il_offset(look, runtime, None, code_start, lookup),
            },
            // Delay-load helpers and method entry stubs of the image.
            None => Frame::Stub {
                runtime,
                name: Cow::Borrowed("ReadyToRun stub"),
            },
        }
    }

    fn remember_method(&mut self, key: (u32, usize), method: u32) {
        self.written.methods.insert(key, method);
    }

    /// Writes a method; its number.
    pub fn method(&mut self, runtime: u8, kind: MethodKind, names: &MethodNames) -> u32 {
        let module = names
            .module
            .as_deref()
            .map(|facts| self.managed_module(facts));
        let method = self.next.method;
        self.next.method = self.next.method.wrapping_add(1);
        self.written.numbered_methods += 1;
        let kind = if kind == MethodKind::Dynamic && names.name.starts_with("IL_STUB") {
            MethodKind::IlStub
        } else {
            kind
        };
        let roles = Roles::of(names);
        if !roles.is_empty() {
            self.written.method_roles.insert(method, roles);
        }
        if names.name == "MoveNext" {
            self.written.tokens.insert(method, (module, names.token));
        }
        self.outlet.push(&Record::Method {
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

    fn managed_module(&mut self, facts: &ManagedModule) -> u32 {
        if let Some(number) = self.written.managed_modules.get(&facts.serial) {
            return *number;
        }
        let number = self.next_module();
        self.written.managed_modules.insert(facts.serial, number);
        self.outlet.push(&Record::Module {
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

    /// Returns the IL offset of an address in the body that starts at `code_start`, of a JITted
    /// function or of ReadyToRun code.
    fn il_offset(
        &mut self,
        look: &mut Lookup<'_, '_>,
        runtime: u8,
        jitted: Option<usize>,
        code_start: u64,
        lookup: u64,
    ) -> Option<u32> {
        if let Some(map) = self.written.il_maps.get(code_start) {
            return il_at(map, code_start, lookup);
        }
        let map = look
            .runtimes
            .with(runtime, |clr, cx| match jitted {
                Some(function) => clr.il_map(cx, function, code_start),
                None => clr.precompiled_il_map(cx, look.program.code.map(), code_start),
            })
            .unwrap_or_default();
        self.written.il_maps.insert(code_start, &map);
        il_at(&map, code_start, lookup)
    }

    /// Returns the frame of code outside methods: generated by the runtime, or unknown.
    fn stub(&mut self, look: &Lookup<'_, '_>, lookup: u64) -> Frame<'static> {
        let runtime = match self.generated(look, lookup) {
            Generated::By(runtime) => Some(runtime),
            Generated::ByARuntime => look.runtimes.only_recorded(),
            Generated::ByAnother => {
                return Frame::Pseudo {
                    text: Cow::Borrowed("generated code"),
                };
            }
            Generated::No => None,
        };
        match runtime {
            Some(runtime) => Frame::Stub {
                runtime,
                name: Cow::Borrowed(STUB),
            },
            None => Frame::Unknown { address: lookup },
        }
    }

    /// Whether the frame of a word is in code that a runtime makes between methods. Such code keeps
    /// the return address on top of the stack, so that its caller is certain.
    fn is_stub(&mut self, look: &Lookup<'_, '_>, word: u64) -> bool {
        let lookup = lookup_address(word);
        match look.program.code.map().lookup(lookup) {
            Some(region) => region.kind != CodeKind::Native,
            None => self.generated(look, lookup).is_runtimes(),
        }
    }

    /// Returns the origin of the code at an address outside all bodies.
    fn generated(&mut self, look: &Lookup<'_, '_>, lookup: u64) -> Generated {
        let runtime_in = |range: &Range<u64>| look.program.code.runtime_in(range);
        self.stubs.of(lookup, &runtime_in)
    }

    /// Returns the bytes held by the written entries and the history.
    pub(super) fn tables_memory(&self) -> u64 {
        self.history.memory() + self.written.memory()
    }
}

/// Returns the IL offset at an address: that of the nearest entry at or before it.
fn il_at(map: &[(u32, u32)], code_start: u64, lookup: u64) -> Option<u32> {
    let offset = u32::try_from(lookup.checked_sub(code_start)?).ok()?;
    let next = map.partition_point(|(native, _)| *native <= offset);
    map.get(next.checked_sub(1)?).map(|(_, il)| *il)
}

fn function_id<'rt, C>(cx: &Cx<'rt, C>, raw: usize) -> Option<FunctionId<'rt>> {
    // SAFETY: the id came from a callback of this runtime (`CodeBody::function`, and
    // `Runtimes::with` asks the one of that number), and code that may be unloaded has its names
    // stored, so this query is made only while the code lives.
    let key = unsafe { FunctionKey::from_parts(cx.info().index(), raw) }?;
    cx.info().id(key)
}

/// As [`Clr::is_cut_short_at`], but also if the runtime cannot be reached.
fn is_cut_short(look: &mut Lookup<'_, '_>, runtime: u8, address: u64) -> bool {
    let map = look.program.code.map();
    let found = look
        .runtimes
        .with(runtime, |clr, _| clr.is_cut_short_at(map, address));
    found.unwrap_or_else(|| map.is_cut_short(address))
}
