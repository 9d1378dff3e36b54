//! What there is in the runtime: modules, classes, functions, threads, objects.
//!
//! The invariant: every id is a number that no other runtime of the process gives out.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::{FakeClr, Thread};

/// One function of the script.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its id.
    pub id: usize,
    /// Its module's id.
    pub module: usize,
    /// Its class's id.
    pub class: usize,
    /// Its metadata token.
    pub token: u32,
    /// Its code bodies.
    pub bodies: Vec<Range<usize>>,
    /// Its name, if it is a dynamic method.
    pub dynamic: Option<String>,
}

/// Something of each kind, for scripts that need any.
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

pub(crate) struct ThreadState {
    pub(crate) os_thread: u32,
    /// Leaf first: function (0 for unmanaged) and address.
    pub(crate) stack: Vec<(usize, usize)>,
    /// Whether it holds a lock of the runtime's, so that it cannot be walked.
    pub(crate) holds_runtime_lock: bool,
    /// Whether the runtime's own code is on top of its stack, from which no transition leads to the
    /// first managed frame.
    pub(crate) in_runtime_code: bool,
}

pub(crate) struct World {
    number: usize,
    next: usize,
    pub(crate) domain: usize,
    pub(crate) assembly: usize,
    pub(crate) modules: BTreeMap<usize, String>,
    pub(crate) classes: BTreeMap<usize, (usize, u32)>,
    pub(crate) functions: BTreeMap<usize, Function>,
    pub(crate) threads: BTreeMap<Thread, ThreadState>,
    pub(crate) objects: HashMap<usize, (usize, usize)>,
}

impl World {
    pub(crate) fn new(number: usize) -> Self {
        let mut world = Self {
            number,
            next: 0,
            domain: 0,
            assembly: 0,
            modules: BTreeMap::new(),
            classes: BTreeMap::new(),
            functions: BTreeMap::new(),
            threads: BTreeMap::new(),
            objects: HashMap::new(),
        };
        world.domain = world.next_id();
        world.assembly = world.next_id();
        world
    }

    /// A number that looks like a pointer and says which runtime it is of.
    pub(crate) fn next_id(&mut self) -> usize {
        self.next += 1;
        self.number << 40 | self.next << 8
    }

    /// Whether the number is one that this runtime could have given out.
    pub(crate) fn is_ours(&self, id: usize) -> bool {
        id >> 40 == self.number && (id >> 8) & 0xffff_ffff <= self.next
    }

    /// The function whose code is at an address, and the body.
    pub(crate) fn at(&self, ip: usize) -> Option<(&Function, Range<usize>)> {
        self.functions.values().find_map(|function| {
            let body = function.bodies.iter().find(|body| body.contains(&ip))?;
            Some((function, body.clone()))
        })
    }
}

impl FakeClr {
    /// A module.
    pub fn add_module(&self, path: &str) -> usize {
        let world = &mut self.shared.lock().world;
        let id = world.next_id();
        world.modules.insert(id, path.to_owned());
        id
    }

    /// A class of a module.
    pub fn add_class(&self, module: usize) -> usize {
        let world = &mut self.shared.lock().world;
        let id = world.next_id();
        let token = 0x0200_0001 + world.classes.len() as u32;
        world.classes.insert(id, (module, token));
        id
    }

    /// A function of a class with one code body of 256 bytes.
    pub fn add_function(&self, class: usize) -> usize {
        self.new_function(class, None)
    }

    /// A function without metadata.
    pub fn add_dynamic_function(&self, class: usize, name: &str) -> usize {
        self.new_function(class, Some(name.to_owned()))
    }

    fn new_function(&self, class: usize, dynamic: Option<String>) -> usize {
        let world = &mut self.shared.lock().world;
        let id = world.next_id();
        let code = world.next_id();
        let module = world.classes.get(&class).map_or(0, |(module, _)| *module);
        let token = 0x0600_0001 + world.functions.len() as u32;
        world.functions.insert(
            id,
            Function {
                id,
                module,
                class,
                token,
                #[expect(clippy::single_range_in_vec_init, reason = "one body")]
                bodies: vec![code..code + 0x100],
                dynamic,
            },
        );
        id
    }

    /// One more code body of a function, as a higher tier has it; its first address.
    pub fn add_body(&self, function: usize) -> usize {
        let world = &mut self.shared.lock().world;
        let code = world.next_id();
        if let Some(function) = world.functions.get_mut(&function) {
            function.bodies.push(code..code + 0x80);
        }
        code
    }

    /// A function as it is now.
    pub fn function(&self, id: usize) -> Option<Function> {
        self.shared.lock().world.functions.get(&id).cloned()
    }

    /// A managed thread that has not run yet.
    pub fn add_thread(&self) -> Thread {
        let world = &mut self.shared.lock().world;
        let thread = Thread(world.next_id());
        let os_thread = 1000 + world.threads.len() as u32;
        world.threads.insert(
            thread,
            ThreadState {
                os_thread,
                stack: Vec::new(),
                holds_runtime_lock: false,
                in_runtime_code: false,
            },
        );
        thread
    }

    /// Gives a thread a stack: functions, leaf first, 0 for a run of unmanaged frames.
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

    /// Says whether a thread holds a lock of the runtime's: then it cannot be walked.
    pub fn set_holds_runtime_lock(&self, thread: Thread, holds: bool) {
        if let Some(thread) = self.shared.lock().world.threads.get_mut(&thread) {
            thread.holds_runtime_lock = holds;
        }
    }

    /// Says whether the runtime's own code is on top of a thread's stack: then its first managed
    /// frame is found by a seed only.
    pub fn set_in_runtime_code(&self, thread: Thread, inside: bool) {
        if let Some(thread) = self.shared.lock().world.threads.get_mut(&thread) {
            thread.in_runtime_code = inside;
        }
    }

    /// Gives a thread the number that the operating system knows it by.
    pub fn set_os_thread(&self, thread: Thread, number: u32) {
        if let Some(thread) = self.shared.lock().world.threads.get_mut(&thread) {
            thread.os_thread = number;
        }
    }

    /// An object of a class.
    pub fn add_object(&self, class: usize, size: usize) -> usize {
        let world = &mut self.shared.lock().world;
        let id = world.next_id();
        world.objects.insert(id, (class, size));
        id
    }

    /// Something of each kind.
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
