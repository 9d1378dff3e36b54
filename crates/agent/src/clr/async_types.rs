//! Describes a CLR's async methods for the handler: object kinds in async chains, and their code.
//!
//! An async chain is the awaiting methods behind a resumed one. Input: documented calls
//! (`GetClassIDInfo2`, `GetClassLayout`) and metadata; offsets are the runtime's own, never
//! constants of the agent. Output: the handler's tables (`program::chains`), and names for the
//! recorder. Runs on the agent thread, except calls that only the program's threads may make.
//!
//! Invariant: nothing that can be unloaded is added, as the handler would still use it afterwards.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use corprof::context::{AgentThread, RuntimeThread, Synchronous};
use corprof::info::ClassInfo;
use corprof::{ClassId, ClassKey, Cx, FunctionId, FunctionKey, ModuleId, ModuleKey, Token};
use recording::MethodKind;
use stackwalk::gc_info::{self, ReferencePlace, SlotBase};
use stackwalk::{jit, own_memory, pe};

use super::{Clr, lock, names};
use crate::base::metadata::Metadata;
use crate::model::{CodeBody, ManagedModule, MethodNames};
use crate::program::chains::{
    self, AsyncBody, ChainTables, CodeRole, HeldIn, HeldTask, LinkKind, MachineHome, ObjectAt,
    SuspendedAt, TaskAt, Types, reader, types,
};

/// Maximum number of base classes in a lineage.
const MAX_PARENTS: usize = 8;

const TASK: &str = "System.Threading.Tasks.Task";
const OBJECT: &str = "System.Object";
const PROMISE: &str = "<>v__promiseOfValueOrEnd";
/// A nested class, so no derived class has this name.
const BOX: &str = "+AsyncStateMachineBox`1";
/// Its methods work for a task without being awaited for it. Their argument holds that task.
const WORKERS: &str = "System.Threading.Tasks.Parallel+";
const WORK: &str = "o";
const SOURCE: &str = "System.Threading.Tasks.TaskCompletionSource";
/// State of tasks that are awaited in the order in which they end (.NET 9 on). It is the tasks'
/// continuation, and holds the method that awaits the next one.
const WHEN_EACH: &str = "System.Threading.Tasks.Task+WhenEachState";
/// A box without a task, and the class with the field for its awaiter.
const POOLED: &str = "PoolingAsyncValueTaskMethodBuilder`1+StateMachineBox`1";
const POOLED_SOURCE: &str = "PoolingAsyncValueTaskMethodBuilder`1+StateMachineBox";
const AWAIT: &str = "System.Threading.Tasks.AwaitTaskContinuation";
const LIST: &str = "System.Collections.Generic.List`1";
/// `miAsync`, of methods compiled with runtime async: the IL returns a `T` although the signature
/// has `Task<T>`.
pub const IS_RUNTIME_ASYNC: u32 = 0x2000;
/// Base class of a suspended method of runtime async (.NET 11 on).
const SUSPENDED: &str = "System.Runtime.CompilerServices.Continuation";
/// The continuation for an await of a task.
const OF_AWAIT: &str = "System.Runtime.CompilerServices.RuntimeAsyncTaskContinuation";
/// The class that describes how a suspended method resumes, and where its code is.
const RESUME: &str = "System.Runtime.CompilerServices.ResumeInfo";
/// The task of methods of runtime async.
pub const RUNTIME_TASK: &str = "System.Runtime.CompilerServices.AsyncHelpers+RuntimeAsyncTask`1";
/// The structure that the dispatcher of such a task has on the stack.
const DISPATCHED: &str = "System.Runtime.CompilerServices.AsyncDispatcherInfo";

/// A compiler's names for the fields of its state machines.
#[derive(Clone, Copy, Debug)]
struct MachineFields {
    /// Field with the builder, or with the structure that contains it.
    builder: &'static str,
    /// Whether that field is the builder itself.
    is_builder: bool,
    state: &'static str,
}

/// C#, Visual Basic, and F#. F# uses `ResumableStateMachine` of FSharp.Core, of which the compiler
/// makes structs in the program. Its builder is `MethodBuilder` of `TaskStateMachineData`, which no
/// state machine's own type names.
const FIELDS: [MachineFields; 3] = [
    MachineFields {
        builder: "<>t__builder",
        is_builder: true,
        state: "<>1__state",
    },
    MachineFields {
        builder: "$Builder",
        is_builder: true,
        state: "$State",
    },
    MachineFields {
        builder: "Data",
        is_builder: false,
        state: "ResumptionPoint",
    },
];

impl MachineFields {
    /// Returns the fields of the type of a TypeDef token, if it is a state machine.
    fn of(metadata: &Metadata, token: u32) -> Option<MachineFields> {
        let has = |name| metadata.field(token, name).is_some();
        let mut all = FIELDS.into_iter();
        all.find(|fields| has(fields.builder) && has(fields.state))
    }
}

/// Returns the offset of a class's state field, for any known compiler.
fn state_of<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    class: ClassId<'rt>,
    info: &ClassInfo<'rt>,
) -> Option<u16> {
    let facts = clr.module(info.module?.raw())?;
    let fields = MachineFields::of(facts.metadata()?, info.token.0)?;
    field_of(clr, cx, class, info, fields.state)
}

/// Classes registered before a sample contains them, as nearly every chain has them:
/// `List<object>`, and the others.
const EXPECTED: [&str; 12] = [
    LIST,
    OBJECT,
    TASK,
    "System.Action",
    AWAIT,
    "System.Threading.Tasks.ContinueWithTaskContinuation",
    "System.Threading.Tasks.StandardTaskContinuation",
    "System.Runtime.CompilerServices.AsyncMethodBuilderCore+ContinuationWrapper",
    "System.Threading.Tasks.Task+SetOnInvokeMres",
    SOURCE,
    SUSPENDED,
    OF_AWAIT,
];

/// Whether the expected classes are registered.
const EXPECTED_NOT_YET: u8 = 0;
const EXPECTED_WANTED: u8 = 1;
const EXPECTED_DONE: u8 = 2;

/// Facts about runtime async from the metadata of a runtime's library.
#[derive(Clone, Copy, Default, Debug)]
pub struct RuntimeAsync {
    /// Whether the library has runtime async.
    is_there: bool,
    /// Offset of `DiagnosticIP` in a `ResumeInfo`.
    code: Option<u16>,
    /// Whether a dispatcher's structure on the stack has the expected layout.
    is_dispatched: bool,
}

impl RuntimeAsync {
    /// Reads all type names of the library.
    fn of(library: &Metadata) -> RuntimeAsync {
        let [suspended, resume, dispatched] = library.types_named([SUSPENDED, RESUME, DISPATCHED]);
        let place = |token: Option<u32>, first, other| place_in_row(library, token?, first, other);
        let code = place(resume, "Resume", "DiagnosticIP");
        let dispatched =
            ["NextContinuation", "CurrentTask"].map(|field| place(dispatched, "Next", field));
        RuntimeAsync {
            is_there: suspended.is_some(),
            code: code.and_then(|code| u16::try_from(code).ok()),
            is_dispatched: dispatched == [Some(8), Some(16)],
        }
    }
}

/// The label of a class in a chain.
#[derive(Clone, Debug)]
pub enum ClassNote {
    /// An async method's task: the compiled method, `MoveNext` of its state machine.
    Method(MethodNames),
    /// Another class, by its name.
    Class(String),
}

/// A class and its base classes, nearest first.
struct Lineage<'rt> {
    classes: Vec<(ClassId<'rt>, ClassInfo<'rt>, String)>,
}

impl<'rt> Lineage<'rt> {
    fn of<C: Synchronous>(clr: &Clr, cx: &Cx<'rt, C>, class: ClassId<'rt>) -> Lineage<'rt> {
        let mut classes = Vec::new();
        let mut next = Some(class);
        while let Some(class) = next
            && classes.len() < MAX_PARENTS
            && let Ok(Some(info)) = cx.info().get_class_id_info2(cx, class)
            && let Some(module) = info.module
            && let Some(name) = names::type_of_token(clr, cx, module, info.token)
        {
            next = info.parent;
            classes.push((class, info, name));
        }
        Lineage { classes }
    }

    fn own_name(&self) -> &str {
        self.classes.first().map_or("", |(_, _, name)| name)
    }

    /// Returns the facts about runtime async from the runtime's library, which has the root of
    /// every lineage.
    fn runtime_async(&self, clr: &Clr) -> RuntimeAsync {
        let root = self.classes.last().filter(|(_, _, name)| name == OBJECT);
        let facts = root.and_then(|(_, info, _)| clr.module(info.module?.raw()));
        let metadata = facts.as_ref().and_then(|facts| facts.metadata());
        metadata.map_or(RuntimeAsync::default(), |metadata| {
            clr.runtime_async(metadata)
        })
    }

    fn find(
        &self,
        is_it: impl Fn(&str) -> bool,
    ) -> Option<&(ClassId<'rt>, ClassInfo<'rt>, String)> {
        self.classes.iter().find(|(_, _, name)| is_it(name))
    }

    /// Returns the offset of a field that the class of this name in the lineage declares.
    fn field<C: Synchronous>(
        &self,
        clr: &Clr,
        cx: &Cx<'rt, C>,
        name: &str,
        field: &str,
    ) -> Option<u16> {
        let (class, info, _) = self.find(|known| known == name)?;
        field_of(clr, cx, *class, info, field)
    }
}

/// Returns the offset of a field that a class declares: in an object, or in a value.
fn field_of<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    class: ClassId<'rt>,
    info: &ClassInfo<'rt>,
    field: &str,
) -> Option<u16> {
    let (_, token) = names::class_and_field(clr, cx, (info.module?, info.token), field)?;
    let token = token?;
    let layout = cx.info().get_class_layout(cx, class).ok()??;
    let found = layout
        .fields
        .iter()
        .find(|known| known.rid_of_field == token)?;
    u16::try_from(found.offset).ok()
}

/// Returns the role of a class's objects in a chain, and their label.
fn describe<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    line: &Lineage<'rt>,
) -> (LinkKind, ClassNote) {
    let own = line.own_name();
    let named = || ClassNote::Class(own.to_owned());
    let or_other = |kind: Option<LinkKind>| kind.unwrap_or(LinkKind::Other);
    let through = |class: &str, field: &str| {
        let place = line.field(clr, cx, class, field);
        or_other(place.map(LinkKind::Through))
    };
    match own {
        OBJECT => return (LinkKind::Sentinel, named()),
        // By `Wait`, and by `WaitAll`.
        "System.Threading.Tasks.Task+SetOnInvokeMres"
        | "System.Threading.Tasks.Task+SetOnCountdownMres" => return (LinkKind::Blocked, named()),
        "System.Action" => {
            let target = line.field(clr, cx, "System.Delegate", "_target");
            return (or_other(target.map(LinkKind::Action)), named());
        }
        "System.Runtime.CompilerServices.AsyncMethodBuilderCore+ContinuationWrapper" => {
            return (through(own, "_continuation"), named());
        }
        WHEN_EACH => {
            let source = line.field(clr, cx, WHEN_EACH, "_waitForNextCompletedTask");
            let state = source.and_then(|source| source.checked_add(reader::PROMISE_STATE as u16));
            return (or_other(state.map(LinkKind::Through)), named());
        }
        LIST => {
            let items = line.field(clr, cx, LIST, "_items");
            let size = line.field(clr, cx, LIST, "_size");
            let kind = items
                .zip(size)
                .map(|(items, size)| LinkKind::List { items, size });
            return (or_other(kind), named());
        }
        _ => {}
    }
    if line.find(|name| name == SOURCE).is_some() {
        return (through(SOURCE, "_task"), named());
    }
    if line.find(|name| name == AWAIT).is_some() {
        return (through(AWAIT, "m_action"), named());
    }
    let holders = ["ContinueWithTaskContinuation", "StandardTaskContinuation"];
    for holder in holders.map(|name| format!("System.Threading.Tasks.{name}")) {
        if let Some(place) = line.field(clr, cx, &holder, "m_task") {
            return (LinkKind::ContinueWith(place), named());
        }
    }
    if line.find(|name| name == SUSPENDED).is_some() {
        return (or_other(suspended(clr, cx, line)), named());
    }
    if own.ends_with(POOLED) {
        return pooled(clr, cx, line).unwrap_or_else(|| (LinkKind::Other, named()));
    }
    let task = || {
        Some(TaskAt {
            continuation: line.field(clr, cx, TASK, "m_continuationObject")?,
            flags: line.field(clr, cx, TASK, "m_stateFlags")?,
            state: match line.runtime_async(clr).is_there {
                true => line.field(clr, cx, TASK, "m_stateObject")?,
                false => 0,
            },
        })
    };
    let Some(task) = line.find(|name| name == TASK).and_then(|_| task()) else {
        return (LinkKind::Other, named());
    };
    if own == RUNTIME_TASK {
        return (LinkKind::Runtime(task), named());
    }
    machine_of(clr, cx, line, task).unwrap_or_else(|| (LinkKind::Task(task), named()))
}

/// Returns the link kind of a suspended method of runtime async.
fn suspended<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    line: &Lineage<'rt>,
) -> Option<LinkKind> {
    let suspended = SuspendedAt {
        next: line.field(clr, cx, SUSPENDED, "Next")?,
        resume: line.field(clr, cx, SUSPENDED, "ResumeInfo")?,
        code: line.runtime_async(clr).code?,
    };
    Some(match line.field(clr, cx, OF_AWAIT, "RuntimeAsyncTask") {
        Some(task) => LinkKind::OfAwait { suspended, task },
        None => LinkKind::Suspended(suspended),
    })
}

/// Returns the bytes from one field of a value to a later one, if all fields are words in the order
/// of their declaration.
fn place_in_row(metadata: &Metadata, token: u32, first: &str, other: &str) -> Option<u32> {
    let first = metadata.field(token, first)?;
    metadata
        .field(token, other)?
        .checked_sub(first)?
        .checked_mul(8)
}

/// Returns the state machine that a task of an async method holds.
fn machine_of<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    line: &Lineage<'rt>,
    task: TaskAt,
) -> Option<(LinkKind, ClassNote)> {
    let (holder, info, _) = line.find(|name| name.ends_with(BOX))?;
    let machine = (*info.type_args.last()?)?;
    let place = field_of(clr, cx, *holder, info, "StateMachine")?;
    let of = cx.info().get_class_id_info2(cx, machine).ok()??;
    let note = moves(clr, cx, machine, &of)?;
    let state = state_of(clr, cx, machine, &of);
    let work = match is_worker(&note) {
        true => field_of(clr, cx, machine, &of, WORK),
        false => None,
    };
    let kind = match (state, work) {
        (Some(state), Some(work)) if is_value(clr, cx, &of) => LinkKind::Worker {
            task,
            state: place.checked_add(state)?,
            machine: place,
            work: place.checked_add(work)?,
        },
        (Some(state), None) if is_value(clr, cx, &of) => LinkKind::Box {
            task,
            state: place.checked_add(state)?,
            machine: place,
        },
        (Some(state), _) => LinkKind::Object {
            task,
            machine: place,
            state,
            promise: field_of(clr, cx, machine, &of, PROMISE).unwrap_or(0),
        },
        (None, _) => LinkKind::Task(task),
    };
    Some((kind, ClassNote::Method(note)))
}

/// Returns the state machine in a box without a task.
fn pooled<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    line: &Lineage<'rt>,
) -> Option<(LinkKind, ClassNote)> {
    let (holder, info, _) = line.classes.first()?;
    let machine = (*info.type_args.last()?)?;
    let place = field_of(clr, cx, *holder, info, "StateMachine")?;
    let of = cx.info().get_class_id_info2(cx, machine).ok()??;
    let state = state_of(clr, cx, machine, &of)?;
    let (source, its_info, _) = line.find(|name| name.ends_with(POOLED_SOURCE))?;
    let kind = is_value(clr, cx, &of).then_some(LinkKind::Pooled {
        machine: place,
        state: place.checked_add(state)?,
        promise: field_of(clr, cx, *source, its_info, "_valueTaskSource")?,
    })?;
    Some((kind, ClassNote::Method(moves(clr, cx, machine, &of)?)))
}

/// Returns `MoveNext` of a state machine.
fn moves<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    machine: ClassId<'rt>,
    info: &ClassInfo<'rt>,
) -> Option<MethodNames> {
    let facts = clr.module(info.module?.raw())?;
    let token = facts.metadata()?.method_named(info.token.0, "MoveNext")?;
    Some(MethodNames {
        module: Some(facts),
        token,
        type_name: names::of_class(clr, cx, machine),
        name: "MoveNext".to_owned(),
    })
}

/// Whether a class is a value type.
fn is_value<'rt, C: Synchronous>(clr: &Clr, cx: &Cx<'rt, C>, info: &ClassInfo<'rt>) -> bool {
    let parent = info.parent.map(|parent| Lineage::of(clr, cx, parent));
    parent.is_some_and(|parent| parent.own_name() == "System.ValueType")
}

/// Registers a class of a sampled object. Returns `None` if the class can be unloaded or is
/// unknown.
fn learn_class<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    types: &Types,
    class: ClassId<'rt>,
) -> Option<ClassNote> {
    let info = cx.info();
    if let Ok(Some(_)) = info.is_array_class(cx, class) {
        types.learn(class.raw() as u64, LinkKind::Other);
        return Some(ClassNote::Class(names::of_class(clr, cx, class)));
    }
    if clr.any_collectible() && names::collectible_class(clr, cx, class, 0).is_some() {
        return None;
    }
    let line = Lineage::of(clr, cx, class);
    if line.classes.is_empty() {
        return None;
    }
    let (kind, note) = describe(clr, cx, &line);
    learn_lineage(clr, cx, types, (line, kind));
    Some(note)
}

/// Registers a class of this kind, and its base classes.
fn learn_lineage<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    types: &Types,
    (line, kind): (Lineage<'rt>, LinkKind),
) {
    if let Some((class, ..)) = line.classes.first() {
        types.learn(class.raw() as u64, kind);
    }
    check_parent_layout(types, &line);
    // Base classes identify other classes.
    let mut rest = line;
    while rest.classes.len() > 1 {
        rest.classes.remove(0);
        if let Some((parent, ..)) = rest.classes.first()
            && types.get(parent.raw() as u64).is_none()
        {
            let (kind, _) = describe(clr, cx, &rest);
            types.learn(parent.raw() as u64, kind);
        }
    }
}

/// Checks whether method tables refer to their parents' as expected.
fn check_parent_layout(types: &Types, line: &Lineage<'_>) {
    let as_said = line.classes.iter().all(|(class, info, _)| {
        let mut word = [0u8; 8];
        let at = class.raw() as u64 + types::PARENT;
        let read = own_memory::peek(at, &mut word).len() == 8;
        let parent = info.parent.map_or(0, |parent| parent.raw() as u64);
        read && u64::from_le_bytes(word) == parent
    });
    if !as_said {
        types.forbid_parents();
    } else if line.classes.len() > 1 {
        types.set_parents();
    }
}

impl Clr {
    /// Returns the facts about runtime async from the metadata of the runtime's library. Read once.
    fn runtime_async(&self, library: &Metadata) -> RuntimeAsync {
        *self.runtime_async.get_or_init(|| RuntimeAsync::of(library))
    }

    /// Whether [`Clr::learn_expected`] has something to do.
    pub(crate) fn expects(&self) -> bool {
        self.expected.load(Ordering::Relaxed) == EXPECTED_WANTED
    }

    /// Registers the expected classes, once the first body of async chains was registered. Called
    /// in a callback on a program thread. It loads classes that are not loaded yet, which crashes a
    /// runtime on a thread that it does not know (seen on 8.0.33).
    pub(crate) fn learn_expected<C: RuntimeThread>(&self, cx: &mut Cx<'_, C>) {
        let (wanted, done) = (EXPECTED_WANTED, EXPECTED_DONE);
        let order = Ordering::Relaxed;
        if self.expected.load(order) != wanted
            || self
                .expected
                .compare_exchange(wanted, done, order, order)
                .is_err()
        {
            return;
        }
        let found = self.core_library().and_then(|(module, facts)| {
            let module = module_id(cx, module)?;
            facts.metadata().is_some().then_some((module, facts))
        });
        let Some((module, facts)) = found else {
            return;
        };
        let Some(metadata) = facts.metadata() else {
            return;
        };
        let tables = chains::prepare();
        let [list, object, others @ ..] = metadata.types_named(EXPECTED);
        let mut learn = |token: Option<u32>| {
            let class = cx.info().get_class_from_token(cx, module, Token(token?));
            let class = class.ok()??;
            learn_class(self, cx, &tables.types, class);
            Some(class)
        };
        let object = learn(object);
        for token in others {
            // Some versions lack some of them.
            learn(token);
        }
        if let Some(object) = object
            && let Some(list) = list
            && let Ok(Some(list)) =
                cx.info()
                    .get_class_from_token_and_type_args(cx, module, Token(list), &[object])
        {
            learn_class(self, cx, &tables.types, list);
        }
    }

    /// Registers a precompiled method that starts at `start`, if it is an async one. No callback
    /// reports such code, so this is called when a sample first contains it.
    pub(crate) fn learn_precompiled<C: Synchronous>(
        &self,
        cx: &Cx<'_, C>,
        tables: &ChainTables,
        function: usize,
        start: u64,
    ) -> bool {
        // SAFETY: the runtime has just reported this function for an address in one of its images.
        let key = unsafe { FunctionKey::from_parts(cx.info().index(), function) };
        let Some(function) = key.and_then(|key| cx.info().id(key)) else {
            return false;
        };
        let Some(machine) = machine_that_moves(self, cx, &tables.types, function) else {
            return false;
        };
        let precompiled = || {
            let found = cx.info().get_function_info2(cx, function).ok()??;
            let facts = self.module(found.module?.raw())?;
            if facts.is_cut_short() {
                return None;
            }
            let is_own = (facts.precompiled.as_ref()).is_some_and(|code| code.contains(&start));
            let base = match is_own {
                true => facts.base,
                false => self.composite_at(start)?,
            };
            // SAFETY: the runtime keeps the image of a module with precompiled code, and a
            // composite one, laid out by section. Neither can be unloaded.
            let image = unsafe { pe::r2r_image(base) }.ok()?;
            let info = image.gc_info(start).ok()?;
            let homes = machine.homes(&info, || image.this_homes(start, &info).ok());
            let range = start..start + u64::from(info.code_length());
            Some((range, homes, machine.held(&info)))
        };
        let Some((range, homes, held)) = precompiled() else {
            return false;
        };
        self.add_body(tables, range, &machine, homes, held)
    }

    /// Registers the class of a method table in a sample taken at `time_ns`. Returns `None` if it
    /// may have been unloaded since, or can be.
    pub(crate) fn learn_sampled_class(
        &self,
        cx: &mut Cx<'_, AgentThread>,
        types: &Types,
        table: u64,
        time_ns: u64,
    ) -> Option<ClassNote> {
        // No module is unloaded while this is held, and none was since `time_ns`.
        let _no_unload_begins = self.gate.hold_unless_unloaded_since(time_ns)?;
        // SAFETY: the first word of an object alive at `time_ns` is its class's id
        // (`GetClassFromObject`), and no class of this runtime was unloaded since.
        let key = unsafe { ClassKey::from_parts(cx.info().index(), usize::try_from(table).ok()?) };
        let class = cx.info().id(key?)?;
        learn_class(self, cx, types, class)
    }

    /// Registers the classes of heap objects at `time_ns` that belong to chains, unless an earlier
    /// survey has found them. Each comes with the word at which its parent is expected.
    pub(crate) fn learn_heap_classes(
        &self,
        cx: &mut Cx<'_, AgentThread>,
        types: &Types,
        found: &[(u64, u64)],
        time_ns: u64,
    ) {
        let found = lock(&self.asked_classes).new_among(found, time_ns, |since_ns| {
            self.gate.hold_unless_unloaded_since(since_ns).is_none()
        });
        let mut parents = Vec::new();
        for (table, parent) in found {
            let is_new = types.get(table).is_none();
            if is_new && self.learn_heap_class(cx, types, table, time_ns) == Some(false) {
                parents.push(parent);
            }
        }
        // Continuations of runtime async have unnamed classes, so their parents are registered.
        parents.sort_unstable();
        parents.dedup();
        let parents = parents.into_iter().filter(|_| types.has_parents());
        for parent in parents.filter(|parent| *parent != 0 && types.get(*parent).is_none()) {
            self.learn_heap_class(cx, types, parent, time_ns);
        }
    }

    /// Returns whether the class of a method table has a name; `None` if it may have been unloaded.
    /// Registers it only if it belongs to chains, as the table cannot hold a whole heap's classes.
    fn learn_heap_class(
        &self,
        cx: &mut Cx<'_, AgentThread>,
        types: &Types,
        table: u64,
        time_ns: u64,
    ) -> Option<bool> {
        let _no_unload_begins = self.gate.hold_unless_unloaded_since(time_ns)?;
        // SAFETY: the first word of an object alive at `time_ns` is its class's id, or that of its
        // base class, and no class of this runtime was unloaded since.
        let key = unsafe { ClassKey::from_parts(cx.info().index(), usize::try_from(table).ok()?) };
        let class = cx.info().id(key?)?;
        if let Ok(Some(_)) = cx.info().is_array_class(cx, class) {
            return Some(true);
        }
        if self.any_collectible() && names::collectible_class(self, cx, class, 0).is_some() {
            return Some(true);
        }
        let line = Lineage::of(self, cx, class);
        if line.classes.is_empty() {
            return Some(false);
        }
        let (kind, _) = describe(self, cx, &line);
        if kind != LinkKind::Other {
            learn_lineage(self, cx, types, (line, kind));
        } else if !types.has_parents() {
            check_parent_layout(types, &line);
        }
        Some(true)
    }

    /// Registers a body from before the session, if it is an async method's. Refused if any module
    /// was unloaded since the body was added. Code of a permanent module is unloaded with a
    /// collectible type argument, which no callback reports.
    pub(crate) fn learn_earlier_body(
        &self,
        cx: &Cx<'_, AgentThread>,
        tables: &ChainTables,
        body: &CodeBody,
    ) -> bool {
        let none_goes = self.gate.hold_unless_unloaded_since(body.added_ns);
        none_goes.is_some() && self.learn_body(cx, tables, body)
    }

    /// Registers a body if it is an async method's, and returns whether it is. Called in the
    /// callback that reports the body, so that hardly any sample comes before.
    pub(crate) fn learn_body<C: Synchronous>(
        &self,
        cx: &Cx<'_, C>,
        tables: &ChainTables,
        body: &CodeBody,
    ) -> bool {
        if body.kind != MethodKind::Il || body.collectible.is_some() {
            return false;
        }
        // SAFETY: the id came from a callback of this runtime, and the code cannot be unloaded.
        let key = unsafe { FunctionKey::from_parts(cx.info().index(), body.function) };
        let Some(function) = key.and_then(|key| cx.info().id(key)) else {
            return false;
        };
        let Some(machine) = machine_that_moves(self, cx, &tables.types, function) else {
            return false;
        };
        let version = version(cx);
        // SAFETY: the runtime published this body, and never unloads it.
        let read =
            |version| unsafe { jit::gc_info(body.code_start, body.function as u64, version) }.ok();
        let read = version.and_then(read);
        let homes = read.as_ref().map_or(Vec::new(), |(code, info)| {
            machine.homes(info, || code.this_homes(info).ok())
        });
        let held = read.map_or(Vec::new(), |(_, info)| machine.held(&info));
        self.add_body(tables, body.range.clone(), &machine, homes, held)
    }

    fn add_body(
        &self,
        tables: &ChainTables,
        range: Range<u64>,
        machine: &StateMachine,
        homes: Vec<MachineHome>,
        held: Vec<HeldTask>,
    ) -> bool {
        let Some(gate) = self.place() else {
            return false;
        };
        // Precompiled code triggers this too: it may run tasks in a program that compiles no async
        // method.
        let order = Ordering::Relaxed;
        let (not_yet, wanted) = (EXPECTED_NOT_YET, EXPECTED_WANTED);
        let _if_first = self
            .expected
            .compare_exchange(not_yet, wanted, order, order);
        tables.bodies.add(AsyncBody {
            code: machine.code,
            range,
            gate,
            runtime: self.number(),
            // Without homes the handler knows that the state machine cannot be found.
            homes: homes.into(),
            held: held.into(),
            class: machine.class,
            builder: machine.builder,
            task_found_at: AtomicU32::new(0),
            object: machine.object,
            is_gone: AtomicBool::new(false),
        })
    }

    fn core_library(&self) -> Option<(usize, Arc<ManagedModule>)> {
        let modules = lock(&self.modules);
        let is_it =
            |facts: &Arc<ManagedModule>| facts.path.ends_with("/System.Private.CoreLib.dll");
        let mut found = modules.iter().filter(|(_, facts)| is_it(facts));
        found
            .next()
            .map(|(module, facts)| (*module, Arc::clone(facts)))
    }
}

fn module_id<'rt, C>(cx: &Cx<'rt, C>, raw: usize) -> Option<ModuleId<'rt>> {
    // SAFETY: the runtime's core library, which a callback reported, is never unloaded.
    let key = unsafe { ModuleKey::from_parts(cx.info().index(), raw) }?;
    cx.info().id(key)
}

/// The facts about a state machine that its code needs; also used for other roles without one.
struct StateMachine {
    code: CodeRole,
    builder: Option<u16>,
    /// Facts about a state machine that is an object.
    object: Option<ObjectAt>,
    /// Whether its frames may have the task that they resume.
    has_task: bool,
    /// The class of that task, if it is this method's class; else 0.
    class: u64,
}

impl StateMachine {
    /// Creates one with its role alone.
    fn of(code: CodeRole) -> StateMachine {
        StateMachine {
            code,
            builder: None,
            object: None,
            has_task: false,
            class: 0,
        }
    }

    /// Returns the homes (stack slots) from `find` that fit such a state machine. For a
    /// dispatcher's body, returns those from this GcInfo that may hold what it runs.
    fn homes(
        &self,
        info: &gc_info::GcInfo<'_>,
        find: impl FnOnce() -> Option<Vec<gc_info::Home>>,
    ) -> Vec<MachineHome> {
        match self.code {
            CodeRole::Resumer | CodeRole::TaskHolder | CodeRole::Promise => return Vec::new(),
            CodeRole::Dispatcher => {
                let anywhere = 0..info.code_length();
                let pairs = gc_info::untracked_pairs(info).into_iter();
                let homes = pairs.map(|from_bp| MachineHome {
                    from_bp,
                    live: [anywhere.clone()].into(),
                    is_guess: true,
                });
                return homes.collect();
            }
            CodeRole::OfValue | CodeRole::OfObject | CodeRole::OfTask => {}
        }
        let found = find().unwrap_or_default();
        // A value's address is an interior pointer.
        let of_values = self.code != CodeRole::OfObject;
        let fit = found.into_iter();
        let fit = fit.filter(|home| home.interior == of_values || !home.tracked);
        let homes = fit.map(|home| MachineHome {
            from_bp: home.offset,
            live: home.live.into(),
            is_guess: !home.tracked,
        });
        homes.collect()
    }

    /// Returns where frames of a task's own code may hold the task during a call.
    fn held(&self, info: &gc_info::GcInfo<'_>) -> Vec<HeldTask> {
        let returns = if self.has_task {
            gc_info::live_at_returns(info).unwrap_or_default()
        } else {
            Vec::new()
        };
        let by_rbp = info.frame_register() == Some(RBP);
        let places = returns.into_iter().filter_map(|(at, slot)| {
            let place = match slot.place {
                ReferencePlace::Register(register) => HeldIn::Register(register),
                ReferencePlace::Stack {
                    base: SlotBase::FrameRegister,
                    offset,
                } if by_rbp => HeldIn::FromBp(offset),
                ReferencePlace::Stack { .. } => return None,
            };
            Some(HeldTask { at, place })
        });
        places.take(MAX_HELD).collect()
    }
}

/// Maximum number of places in a body at which it may have its task.
const MAX_HELD: usize = 64;
/// `rbp` in the numbering of the instruction set.
const RBP: u8 = 5;

/// `Task`'s method by which schedulers run it. It has a reference to the thread's `t_currentTask`,
/// which it restores at its end.
const RUNS_TASKS: &str = "ExecuteWithThreadLocal";

/// Methods of an async method's task that lead to its `MoveNext`, and `MoveNext` itself.
const RESUMERS: [&str; 6] = [
    "MoveNext",
    "ExecutionContextCallback",
    "ExecuteFromThreadPool",
    // Since .NET 11; the last two while a listener follows the AsyncProfilerEventSource.
    "ExecuteDirectly",
    "InstrumentedMoveNext",
    "MoveNextAsDispatcher",
];

/// Whether a method calls `MoveNext` of suspended async methods. Its type's name includes its
/// arguments.
pub fn is_resumer(names: &MethodNames) -> bool {
    let plain = names.type_name.split('[').next().unwrap_or_default();
    resumes(plain, &names.name)
}

/// Whether a method calls `MoveNext` of suspended async methods and of no others.
fn resumes(type_name: &str, name: &str) -> bool {
    type_name.ends_with("StateMachineBox`1") && RESUMERS.contains(&name)
        || type_name == "System.Threading.ExecutionContext" && name.starts_with("Run")
}

/// Whether a method dispatches continuations of runtime async. Its type's name includes its
/// arguments.
pub fn dispatches_continuations(names: &MethodNames) -> bool {
    DISPATCHES.contains(&names.name.as_str()) && names.type_name.starts_with(RUNTIME_TASK)
}

/// Whether a method is the runtime's, between a dispatcher of continuations and the method that it
/// resumes: each method's stub, and the method before it while a listener follows the
/// AsyncProfilerEventSource.
pub fn resumes_continuation(names: &MethodNames) -> bool {
    names.name == "IL_STUB_AsyncResume"
        || matches!(
            names.type_name.as_str(),
            "System.Runtime.CompilerServices.AsyncProfiler+ContinuationWrapper"
                | "System.Runtime.CompilerServices.AsyncHelpers+RuntimeAsyncInstrumentationHelpers"
        )
}

/// Whether a method belongs to the runtime's library and is suspended with the method that awaits
/// its task. Such are `AsyncHelpers.Await` and, in unoptimised code, `Task.Run`.
pub fn is_of_await(names: &MethodNames) -> bool {
    let plain = names.type_name.split('[').next().unwrap_or_default();
    matches!(
        plain,
        "System.Threading.Tasks.Task"
            | "System.Threading.Tasks.Task`1"
            | "System.Runtime.CompilerServices.AsyncHelpers"
    )
}

/// Whether a method is one of a task's frames between the caller that runs the task and the code it
/// runs.
pub fn is_of_task(names: &MethodNames) -> bool {
    let plain = names.type_name.split('[').next().unwrap_or_default();
    let own = plain
        .strip_prefix("System.Threading.Tasks.")
        .unwrap_or_default();
    own == "Task"
        || own == "Task`1"
        || own.starts_with("Task+<>c")
        || own.starts_with("Continuation")
        || is_resumer(names)
}

/// Whether a method works for a task without being awaited for it.
pub fn is_worker(names: &MethodNames) -> bool {
    names.type_name.starts_with(WORKERS)
}

/// Whether a method is the one by which schedulers run tasks.
pub fn runs_tasks(names: &MethodNames) -> bool {
    names.name == RUNS_TASKS && names.type_name == TASK
}

/// Whether a method takes tasks from a queue and runs them, so that no older frame has called them.
pub fn dispatches(names: &MethodNames) -> bool {
    match names.type_name.as_str() {
        "System.Threading.ThreadPoolWorkQueue" => names.name.starts_with("Dispatch"),
        // Tasks with their own threads.
        "System.Threading.Tasks.ThreadPoolTaskScheduler" => names.name == "LongRunningThreadWork",
        "System.Threading.Tasks.ThreadPoolTaskScheduler+<>c" => true,
        _ => false,
    }
}

/// Whether precompiled code of a method of this name, type arguments included, may belong to
/// chains.
pub fn is_of_chains(names: &MethodNames) -> bool {
    names.name == "MoveNext"
        || is_resumer(names)
        || runs_tasks(names)
        || dispatches_continuations(names)
        || names.type_name == OF_AWAIT
        || is_promise(&names.type_name, &names.name)
}

/// Methods of a runtime-async task that run the suspended methods, each called by the method that
/// the previous one awaits. The second is used while there is a listener.
const DISPATCHES: [&str; 2] = ["DispatchContinuations", "InstrumentedDispatchContinuations"];

/// Methods into which a task's own may be inlined, if the compiler has a profile of what they call.
const TASK_HOLDERS: [(&str, &str); 3] = [
    ("System.Threading.ThreadPoolWorkQueue", "Dispatch"),
    (AWAIT, "RunOrScheduleAction"),
    (TASK, "RunContinuations"),
];

/// Whether a method is the promise's that a task runs when it is done.
fn is_promise(type_name: &str, name: &str) -> bool {
    name == "Invoke"
        && type_name.starts_with("System.Threading.Tasks.")
        && type_name.contains("Promise")
}

/// Prefixes of the own names of all methods of chains.
const OF_CHAINS: [&str; 9] = [
    "Invoke",
    RESUMERS[0],
    "Execut",
    "InstrumentedMoveNext",
    "Run",
    "Dispatch",
    RUNS_TASKS,
    DISPATCHES[1],
    // Method of `OF_AWAIT`.
    "Initialize",
];

/// Returns the state machine whose `MoveNext` a function is, or the role of another method of
/// chains.
fn machine_that_moves<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    types: &Types,
    function: FunctionId<'rt>,
) -> Option<StateMachine> {
    let found = cx.info().get_function_info2(cx, function).ok()??;
    let facts = clr.module(found.module?.raw())?;
    // The name alone first: this runs for each compiled method.
    let own = facts.metadata()?;
    if own.begins_wanted(found.token.0, OF_CHAINS) == Some(false) {
        return None;
    }
    let method = own.method(found.token.0)?;
    if method.name == RUNS_TASKS {
        return (method.type_name == TASK).then(|| StateMachine::of(CodeRole::OfTask));
    }
    if method.type_name == OF_AWAIT {
        // Nearly every chain has objects of it, and it may have been loaded before the session.
        if let Some(class) = found.class {
            learn_class(clr, cx, types, class);
        }
        return None;
    }
    if method.type_name == RUNTIME_TASK && DISPATCHES.contains(&method.name.as_str()) {
        if !clr.runtime_async(own).is_dispatched {
            return None;
        }
        if let Some(class) = found.class {
            learn_class(clr, cx, types, class);
        }
        return Some(StateMachine::of(CodeRole::Dispatcher));
    }
    if resumes(&method.type_name, &method.name) {
        let is_box = method.type_name.ends_with(BOX) || method.type_name.ends_with(POOLED);
        if let Some(class) = found.class.filter(|_| is_box) {
            // Samples will contain objects of it.
            learn_class(clr, cx, types, class);
        }
        let has_task = method.type_name.ends_with(BOX);
        let class = found.class.filter(|_| has_task);
        return Some(StateMachine {
            has_task,
            class: class.map_or(0, |class| class.raw() as u64),
            ..StateMachine::of(CodeRole::Resumer)
        });
    }
    if is_promise(&method.type_name, &method.name) {
        return Some(StateMachine {
            class: found.class.map_or(0, |class| class.raw() as u64),
            ..StateMachine::of(CodeRole::Promise)
        });
    }
    if TASK_HOLDERS.contains(&(method.type_name.as_str(), method.name.as_str())) {
        return Some(StateMachine {
            has_task: true,
            ..StateMachine::of(CodeRole::TaskHolder)
        });
    }
    if method.name != "MoveNext" {
        return None;
    }
    let fields = MachineFields::of(own, own.owner(found.token.0)?)?;
    let exact = found.class.and_then(|class| {
        let info = cx.info().get_class_id_info2(cx, class).ok()??;
        let builder = field_of(clr, cx, class, &info, fields.builder)?;
        let object = || {
            Some(ObjectAt {
                state: field_of(clr, cx, class, &info, fields.state)?,
                promise: field_of(clr, cx, class, &info, PROMISE).unwrap_or(0),
            })
        };
        let (code, object) = match is_value(clr, cx, &info) {
            true => (CodeRole::OfValue, None),
            false => (CodeRole::OfObject, object()),
        };
        Some(StateMachine {
            builder: fields.is_builder.then_some(builder),
            object,
            ..StateMachine::of(code)
        })
    });
    // The runtime does not report the class of code that several types share.
    Some(exact.unwrap_or(StateMachine::of(CodeRole::OfValue)))
}

/// Returns the encoding of GcInfo by a runtime's own compiler.
fn version<C: Synchronous>(cx: &Cx<'_, C>) -> Option<gc_info::Version> {
    let major = cx.info().get_runtime_information(cx).ok()?.major;
    gc_info::Version::of_runtime(major.into())
}
