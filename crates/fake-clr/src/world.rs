//! Contents of the fake runtime: modules, classes, functions, threads, objects of the script.
//!
//! Invariant: every id is unique among all runtimes of the process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use corprof::sys::ModuleFlags;

use crate::code::CodeHeap;
use crate::{FakeClr, Thread};

/// `public static void M()`
const SIGNATURE: [u8; 3] = [0x00, 0x00, 0x01];
/// A tiny header, and `ret`.
const IL: [u8; 2] = [0x06, 0x2a];
/// `public static Task M()`, of the only reference to a type: see `get_type_ref_props`.
const TASK_SIGNATURE: [u8; 4] = [0x00, 0x00, 0x12, 0x05];
/// A tiny header, `ldnull`, and `ret`.
const NULL_IL: [u8; 3] = [0x0a, 0x14, 0x2a];
/// `MethodImplAttributes.Async`.
const RUNTIME_ASYNC: u32 = 0x2000;

/// One function of the script.
#[derive(Clone, Debug)]
pub struct Function {
    /// Id.
    pub id: usize,
    /// Id of the module.
    pub module: usize,
    /// Id of the class.
    pub class: usize,
    /// Metadata token.
    pub token: u32,
    /// Code bodies.
    pub bodies: Vec<Range<usize>>,
    /// Bodies with new IL, by the number of the request (`ReJITID`).
    pub rejitted: Vec<(usize, Range<usize>)>,
    /// Name in the metadata.
    pub name: String,
    /// Signature blob.
    pub signature: Arc<[u8]>,
    /// Implementation flags.
    pub implementation: u32,
    /// IL, header first.
    pub il: Arc<[u8]>,
    /// Name of a dynamic method; `None` for other functions.
    pub dynamic: Option<String>,
}

/// One module of the script.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    pub(crate) path: String,
    pub(crate) flags: ModuleFlags,
    /// Signatures that were added to its metadata.
    pub(crate) signatures: Vec<Arc<[u8]>>,
}

/// One class of the script.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) module: usize,
    pub(crate) token: u32,
    pub(crate) name: String,
}

/// One item of each kind, for scripts that need any.
#[derive(Clone, Debug)]
pub struct Ids {
    /// A module.
    pub module: usize,
    /// A class of that module.
    pub class: usize,
    /// A function of that class.
    pub function: usize,
    /// A dynamic method.
    pub dynamic: usize,
    /// A managed thread.
    pub thread: Thread,
    /// An object of that class.
    pub object: usize,
    /// An address in the function's code.
    pub ip: usize,
}

pub(crate) struct ScriptThread {
    pub(crate) os_thread: u32,
    /// Frames, leaf first: function (0 for unmanaged) and address.
    pub(crate) stack: Vec<(usize, usize)>,
    /// Whether the thread holds a lock of the runtime, so that it cannot be walked.
    pub(crate) holds_runtime_lock: bool,
    /// Whether the leaf is code of the runtime, from which no transition leads to the first managed
    /// frame.
    pub(crate) in_runtime_code: bool,
}

pub(crate) struct World {
    number: usize,
    next: usize,
    /// Number of classes and of functions created so far.
    tokens: (u32, u32),
    pub(crate) domain: usize,
    pub(crate) assembly: usize,
    pub(crate) modules: BTreeMap<usize, Module>,
    pub(crate) classes: BTreeMap<usize, Class>,
    pub(crate) functions: BTreeMap<usize, Function>,
    pub(crate) threads: BTreeMap<Thread, ScriptThread>,
    pub(crate) objects: HashMap<usize, (usize, usize)>,
    pub(crate) heap: CodeHeap,
    /// Ids of removed items.
    gone: HashSet<usize>,
}

impl World {
    pub(crate) fn new(number: usize) -> Self {
        let mut world = Self {
            number,
            next: 0,
            tokens: (0, 0),
            domain: 0,
            assembly: 0,
            modules: BTreeMap::new(),
            classes: BTreeMap::new(),
            functions: BTreeMap::new(),
            threads: BTreeMap::new(),
            objects: HashMap::new(),
            heap: CodeHeap::new(),
            gone: HashSet::new(),
        };
        world.domain = world.next_id();
        world.assembly = world.next_id();
        world
    }

    /// Creates an id that looks like a pointer and encodes its runtime.
    pub(crate) fn next_id(&mut self) -> usize {
        self.next += 1;
        self.number << 40 | self.next << 8
    }

    /// Whether the number may be an id of this runtime.
    pub(crate) fn is_ours(&self, id: usize) -> bool {
        id >> 40 == self.number && (id >> 8) & 0xffff_ffff <= self.next
    }

    /// Whether the number is the id of a removed item.
    pub(crate) fn is_gone(&self, id: usize) -> bool {
        self.gone.contains(&id)
    }

    /// The function whose code is at an address, and the body.
    pub(crate) fn at(&self, ip: usize) -> Option<(&Function, Range<usize>)> {
        self.functions.values().find_map(|function| {
            let mut bodies = function.all_bodies();
            let body = bodies.find(|body| body.contains(&ip))?;
            Some((function, body.clone()))
        })
    }

    /// The newest body of a function, which a call runs.
    pub(crate) fn newest_body(&self, function: usize) -> Option<Range<usize>> {
        let function = self.functions.get(&function)?;
        function.all_bodies().last().cloned()
    }

    /// Removes an ended thread.
    pub(crate) fn remove_thread(&mut self, thread: Thread) {
        self.threads.remove(&thread);
        self.gone.insert(thread.0);
    }

    /// Removes a function and its code.
    pub(crate) fn remove_function(&mut self, function: usize) {
        if let Some(function) = self.functions.remove(&function) {
            self.gone.insert(function.id);
            for body in function.all_bodies() {
                self.heap.free(body.clone());
            }
        }
    }

    /// Removes a module and its contents.
    pub(crate) fn remove_module(&mut self, module: usize) {
        let of_it = self.functions.values();
        let of_it: Vec<_> = of_it.filter(|function| function.module == module).collect();
        for function in of_it.iter().map(|function| function.id).collect::<Vec<_>>() {
            self.remove_function(function);
        }
        let classes = self
            .classes
            .extract_if(.., |_, class| class.module == module);
        let classes: Vec<_> = classes.map(|(id, _)| id).collect();
        self.gone.extend(classes);
        self.modules.remove(&module);
        self.gone.insert(module);
    }
}

impl Function {
    /// Every body, newest last.
    fn all_bodies(&self) -> impl Iterator<Item = &Range<usize>> {
        let rejitted = self.rejitted.iter().map(|(_, body)| body);
        self.bodies.iter().chain(rejitted)
    }
}

impl FakeClr {
    /// Adds a module.
    pub fn add_module(&self, path: &str) -> usize {
        self.new_module(path, ModuleFlags::DISK)
    }

    /// Adds a module that can be unloaded.
    pub fn add_collectible_module(&self, path: &str) -> usize {
        self.new_module(path, ModuleFlags::DISK | ModuleFlags::COLLECTIBLE)
    }

    fn new_module(&self, path: &str, flags: ModuleFlags) -> usize {
        let world = &mut self.shared.lock().world;
        let id = world.next_id();
        let module = Module {
            path: path.to_owned(),
            flags,
            signatures: Vec::new(),
        };
        world.modules.insert(id, module);
        id
    }

    /// Adds a class to a module.
    pub fn add_class(&self, module: usize) -> usize {
        self.add_named_class(module, "Fake.Class")
    }

    /// Adds a class of this name, namespace first.
    pub fn add_named_class(&self, module: usize, name: &str) -> usize {
        let world = &mut self.shared.lock().world;
        let id = world.next_id();
        world.tokens.0 += 1;
        let class = Class {
            module,
            token: 0x0200_0000 + world.tokens.0,
            name: name.to_owned(),
        };
        world.classes.insert(id, class);
        id
    }

    /// Adds a function of a class, with one code body of 256 bytes.
    pub fn add_function(&self, class: usize) -> usize {
        self.new_function(class, "Method", None)
    }

    /// As [`FakeClr::add_function`], with this name.
    pub fn add_named_function(&self, class: usize, name: &str) -> usize {
        self.new_function(class, name, None)
    }

    /// Adds a function without metadata.
    pub fn add_dynamic_function(&self, class: usize, name: &str) -> usize {
        self.new_function(class, "", Some(name.to_owned()))
    }

    fn new_function(&self, class: usize, name: &str, dynamic: Option<String>) -> usize {
        let world = &mut self.shared.lock().world;
        let id = world.next_id();
        let code = world.heap.add(id, 0x100);
        let module = world.classes.get(&class).map_or(0, |class| class.module);
        world.tokens.1 += 1;
        let token = 0x0600_0000 + world.tokens.1;
        world.functions.insert(
            id,
            Function {
                id,
                module,
                class,
                token,
                bodies: vec![code],
                rejitted: Vec::new(),
                name: name.to_owned(),
                signature: SIGNATURE.into(),
                implementation: 0,
                il: IL.into(),
                dynamic,
            },
        );
        id
    }

    /// Adds a function that returns a `Task`.
    pub fn add_task_function(&self, class: usize, name: &str) -> usize {
        let function = self.add_named_function(class, name);
        self.edit(function, |function| {
            function.signature = TASK_SIGNATURE.into();
            function.il = NULL_IL.into();
        })
    }

    /// Adds a function that is compiled with runtime async.
    pub fn add_runtime_async_function(&self, class: usize, name: &str) -> usize {
        let function = self.add_named_function(class, name);
        self.edit(function, |function| {
            function.signature = TASK_SIGNATURE.into();
            function.implementation = RUNTIME_ASYNC;
        })
    }

    fn edit(&self, function: usize, edit: impl FnOnce(&mut Function)) -> usize {
        let mut state = self.shared.lock();
        state.world.functions.get_mut(&function).map(edit);
        function
    }

    /// Adds a code body to a function, as a higher tier does. Returns its first address.
    pub fn add_body(&self, function: usize) -> usize {
        let world = &mut self.shared.lock().world;
        let code = world.heap.add(function, 0x80);
        let start = code.start;
        if let Some(function) = world.functions.get_mut(&function) {
            function.bodies.push(code);
        }
        start
    }

    /// Current state of a function.
    pub fn function(&self, id: usize) -> Option<Function> {
        self.shared.lock().world.functions.get(&id).cloned()
    }

    /// Adds a managed thread that has not run yet.
    pub fn add_thread(&self) -> Thread {
        let world = &mut self.shared.lock().world;
        let thread = Thread(world.next_id());
        let os_thread = 1000 + world.threads.len() as u32;
        world.threads.insert(
            thread,
            ScriptThread {
                os_thread,
                stack: Vec::new(),
                holds_runtime_lock: false,
                in_runtime_code: false,
            },
        );
        thread
    }

    /// Sets a thread's stack: functions, leaf first, 0 for a run of unmanaged frames.
    pub fn set_stack(&self, thread: Thread, functions: &[usize]) {
        let world = &mut self.shared.lock().world;
        let stack = functions
            .iter()
            .map(|id| {
                let ip = world
                    .functions
                    .get(id)
                    .and_then(|function| function.bodies.first())
                    .map_or(0x1000, |body| body.start + 0x10);
                (*id, ip)
            })
            .collect();
        if let Some(thread) = world.threads.get_mut(&thread) {
            thread.stack = stack;
        }
    }

    /// Sets whether a thread holds a lock of the runtime, so that it cannot be walked.
    pub fn set_holds_runtime_lock(&self, thread: Thread, holds: bool) {
        if let Some(thread) = self.shared.lock().world.threads.get_mut(&thread) {
            thread.holds_runtime_lock = holds;
        }
    }

    /// Sets whether a thread's leaf is code of the runtime: then only a seed leads to its first
    /// managed frame.
    pub fn set_in_runtime_code(&self, thread: Thread, inside: bool) {
        if let Some(thread) = self.shared.lock().world.threads.get_mut(&thread) {
            thread.in_runtime_code = inside;
        }
    }

    /// Sets the operating system id of a thread.
    pub fn set_os_thread(&self, thread: Thread, number: u32) {
        if let Some(thread) = self.shared.lock().world.threads.get_mut(&thread) {
            thread.os_thread = number;
        }
    }

    /// Adds an object of a class.
    pub fn add_object(&self, class: usize, size: usize) -> usize {
        let world = &mut self.shared.lock().world;
        let id = world.next_id();
        world.objects.insert(id, (class, size));
        id
    }

    /// Adds one item of each kind.
    pub fn populate(&self) -> Ids {
        let module = self.add_module("/app/fake.dll");
        let class = self.add_class(module);
        let function = self.add_function(class);
        let dynamic = self.add_dynamic_function(class, "Emitted");
        let thread = self.add_thread();
        self.set_stack(thread, &[function, 0, function]);
        let object = self.add_object(class, 24);
        let ip = self
            .function(function)
            .and_then(|function| Some(function.bodies.first()?.start + 4))
            .unwrap_or_default();
        Ids {
            module,
            class,
            function,
            dynamic,
            thread,
            object,
            ip,
        }
    }
}
