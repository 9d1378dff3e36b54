//! IL rewriting of async methods: adds probes where the task that a method has returned completes.
//!
//! A compiler makes two methods of one. The method with its name (the kickoff) creates a state
//! machine, lets a builder start it and returns the builder's task. `MoveNext` of the state machine
//! has the written code. At its end it calls the builder's `SetResult` or `SetException`, which
//! completes the task. Both are recognised by their IL, for any compiler, as the builders' names
//! and methods are part of the framework. Invariants: `MoveNext` reads the task only if it was
//! resumed: only then a task certainly exists, and reading it creates none. Code that does not look
//! as expected stays unchanged.

use std::collections::HashMap;

use corprof::il::{
    Body, Instruction, LocalSignature, MethodSignature, Opcode, Operand, Outcome, Probe, Type,
    TypeToken,
};
use corprof::{MetadataEmit, MetadataImport, Token};

use super::{describe_error, probes};

const SERVICES: &str = "System.Runtime.CompilerServices.";
const TASK: &str = "System.Threading.Tasks.Task";
const VALUE_TASK: &str = "System.Threading.Tasks.ValueTask";
const TASK_OF: &str = "System.Threading.Tasks.Task`1";
/// Field names of C# and Visual Basic.
const STATES: [&str; 2] = ["<>1__state", "$State"];
const BUILDERS: [&str; 2] = ["<>t__builder", "$Builder"];
/// The state machine's method with the written code.
pub(super) const MOVE_NEXT: &str = "MoveNext";
/// Additional evaluation stack slots that a state machine's `MoveNext` needs.
const MORE_STACK: u16 = 4;

/// The kickoff method of an async method.
#[derive(Clone, Debug)]
pub(super) struct Kickoff {
    /// The type of its state machine.
    machine: Token,
    /// Its `MoveNext`.
    pub(super) move_next: Token,
    /// The builder's type.
    builder: String,
    /// Signature of the builder's property `Task`.
    get_task: MethodSignature,
    /// Whether the task is a `ValueTask`.
    is_value: bool,
}

/// Tokens of the probes' signatures, in one module.
#[derive(Clone, Copy, Debug)]
pub(super) struct AsyncSignatures {
    /// `(long, int, int)`
    pub(super) left: Token,
    /// `(int, int, int)`
    pub(super) completes: Token,
}

/// Reader and writer of a module's metadata.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModuleMetadata<'a, 'rt> {
    pub(super) import: &'a MetadataImport<'rt>,
    pub(super) emit: &'a MetadataEmit<'rt>,
}

/// Returns the token of an instruction, if it has one.
fn token_of(instruction: &Instruction) -> Option<Token> {
    match instruction.operand() {
        Operand::Token(token) => Some(*token),
        _ => None,
    }
}

fn is(instruction: &Instruction, opcode: Opcode) -> bool {
    instruction.opcode() == opcode
}

/// Name of a type, and its instantiation if it is generic.
fn named(import: &MetadataImport<'_>, class: Token) -> Option<(String, Option<Type>)> {
    match class.table() {
        Token::TYPE_REF => Some((import.get_type_ref_props(class).ok()?.name, None)),
        Token::TYPE_DEF => Some((import.get_type_def_props(class).ok()?.name, None)),
        Token::TYPE_SPEC => {
            let bytes = import.get_type_spec_from_token(class).ok()?;
            let Ok(whole @ Type::Generic { definition, .. }) = Type::of_specification(&bytes)
            else {
                return None;
            };
            let definition = definition.token();
            (definition.table() != Token::TYPE_SPEC)
                .then(|| named(import, definition))?
                .map(|(name, _)| (name, Some(whole)))
        }
        _ => None,
    }
}

/// Type and name of a method of another module.
fn member(import: &MetadataImport<'_>, method: Token) -> Option<(Token, String, Vec<u8>)> {
    if method.table() != Token::MEMBER_REF {
        return None;
    }
    let props = import.get_member_ref_props(method).ok()?;
    Some((props.parent, props.name, props.signature))
}

/// Returns the type definition of a type.
fn definition(of: &Type) -> Option<Token> {
    let token = match of {
        Type::Class(class) | Type::ValueType(class) => class.token(),
        Type::Generic { definition, .. } => definition.token(),
        _ => return None,
    };
    (token.table() == Token::TYPE_DEF).then_some(token)
}

/// Whether a type is one of the framework's tasks, which runtime-async code awaits without a task.
pub(super) fn is_task(import: &MetadataImport<'_>, of: &Type) -> bool {
    awaited(import, of).is_some()
}

/// Returns the result type of awaiting a task of the framework: `T` for a `Task<T>`, void for a
/// `Task`. Code compiled with runtime async returns that type.
pub(super) fn awaited(import: &MetadataImport<'_>, of: &Type) -> Option<Type> {
    let (token, result) = match of {
        Type::Class(class) | Type::ValueType(class) => (class.token(), None),
        Type::Generic {
            definition,
            arguments,
            ..
        } => (definition.token(), Some(arguments.first()?)),
        _ => return None,
    };
    let (name, _) = named(import, token)?;
    match (name.trim_end_matches("`1"), result) {
        (TASK | VALUE_TASK, None) => Some(Type::VOID),
        (TASK | VALUE_TASK, Some(result)) => Some(result.clone()),
        _ => None,
    }
}

/// Returns the state machine that a method starts, or `None` for a method that is not async. An
/// error is the reason, for users, why its end cannot be observed.
pub(super) fn kickoff(
    import: &MetadataImport<'_>,
    body: &Body,
    runtime: u16,
) -> Option<Result<Kickoff, String>> {
    let calls = body.lines.iter().map(|line| &line.instruction);
    let calls: Vec<Token> = calls
        .filter(|one| is(one, Opcode::CALL))
        .filter_map(token_of)
        .collect();
    let (machine, builder) = calls.iter().find_map(|call| started(import, *call))?;
    let methods = import.enum_methods(machine).ok()?;
    let move_next = methods.into_iter().find(|method| {
        let props = import.get_method_props(*method);
        props.is_ok_and(|props| props.name == MOVE_NEXT && props.rva != 0)
    })?;
    // Since .NET 6 a `ValueTask` always wraps a task, unless the method names another builder.
    let may_be_pooled = runtime == 5;
    let is_value = match builder.strip_prefix(SERVICES)?.trim_end_matches("`1") {
        "AsyncTaskMethodBuilder" => false,
        "AsyncValueTaskMethodBuilder" if may_be_pooled => {
            return Some(Err("in .NET 5 it may have no task".into()));
        }
        "AsyncValueTaskMethodBuilder" => true,
        "AsyncVoidMethodBuilder" => return Some(Err("it returns no task (async void)".into())),
        other => return Some(Err(format!("its builder is {other}"))),
    };
    let get_task = calls.iter().find_map(|call| {
        let (class, name, signature) = member(import, *call)?;
        (name == "get_Task" && named(import, class)?.0 == builder).then_some(signature)
    });
    let Some(Ok(get_task)) = get_task.map(|bytes| MethodSignature::read(&bytes)) else {
        return Some(Err(
            "its code does not have the form that compilers emit".into()
        ));
    };
    Some(Ok(Kickoff {
        machine,
        move_next,
        builder,
        get_task,
        is_value,
    }))
}

/// Returns the state machine and the name of the builder's type, if an instance of a generic method
/// starts a state machine.
fn started(import: &MetadataImport<'_>, call: Token) -> Option<(Token, String)> {
    if call.table() != Token::METHOD_SPEC {
        return None;
    }
    let instance = import.get_method_spec_props(call).ok()?;
    let (class, name) = match instance.method.table() {
        Token::METHOD_DEF => {
            let props = import.get_method_props(instance.method).ok()?;
            (props.class, props.name)
        }
        _ => {
            let (class, name, _) = member(import, instance.method)?;
            (class, name)
        }
    };
    if name != "Start" {
        return None;
    }
    let arguments = Type::of_instance(&instance.signature).ok()?;
    let machine = arguments.first().and_then(definition)?;
    let (builder, _) = named(import, class)?;
    is_machine(import, machine).then_some((machine, builder))
}

/// Whether a type is the state machine of an async method.
fn is_machine(import: &MetadataImport<'_>, class: Token) -> bool {
    let has = |names: [&str; 2]| {
        let mut names = names.into_iter();
        names.any(|name| {
            let fields = import.enum_fields_with_name(class, name);
            fields.is_ok_and(|fields| !fields.is_empty())
        })
    };
    has(STATES) && has(BUILDERS)
}

/// Whether a method is one that a compiler has generated for an async method, other than the
/// kickoff.
pub(super) fn is_machinery(import: &MetadataImport<'_>, class: Token, method: &str) -> bool {
    matches!(method, MOVE_NEXT | "SetStateMachine") && is_machine(import, class)
}

impl Kickoff {
    /// Makes the probes with which the end of the first half queries its task, of the type
    /// `returns`.
    pub(super) fn outcome(
        &self,
        metadata: ModuleMetadata<'_, '_>,
        returns: &Type,
        signatures: AsyncSignatures,
        number: i32,
    ) -> Result<Outcome, String> {
        let tasks = TaskTypes::of(metadata, &self.get_task.return_type, returns)?;
        let probe = |ask: Vec<Instruction>, function: extern "C" fn(i64, i32, i32)| {
            let call = Probe::calli(3, &[number], function as usize, signatures.left);
            let all = ask.into_iter().chain(call.instructions().iter().cloned());
            straight(all.collect(), call.max_stack())
        };
        let own = |name| tasks.own(metadata, name);
        Ok(Outcome {
            by_address: self.is_value,
            has_ended: straight(vec![own("get_IsCompleted")?], 1)?,
            ended: probe(
                vec![own("get_IsCompletedSuccessfully")?],
                probes::leave_completed,
            )?,
            goes_on: probe(tasks.id(metadata)?, probes::leave_pending)?,
        })
    }

    /// Adds probes to `MoveNext` that report when it completes a task that was returned.
    pub(super) fn complete(
        &self,
        metadata: ModuleMetadata<'_, '_>,
        body: &mut Body,
        locals: &mut LocalSignature,
        signatures: AsyncSignatures,
        number: i32,
    ) -> Result<(), String> {
        let odd = || "its state machine does not have the form that compilers emit".to_owned();
        let full = || "it has as many locals as a method can have".to_owned();
        let import = metadata.import;
        let first = body.lines.first().map(|line| line.label).ok_or_else(odd)?;
        let state = self
            .field(import, body, Opcode::LDFLD, STATES)
            .ok_or_else(odd)?;
        let builder = self
            .field(import, body, Opcode::LDFLDA, BUILDERS)
            .ok_or_else(odd)?;
        let ends = self.ends(import, body, builder).ok_or_else(odd)?;
        let (_, class, _) = ends
            .iter()
            .find(|(.., is_error)| *is_error)
            .ok_or_else(odd)?;

        let emit = metadata.emit;
        let get_task = emit.define_member_ref(*class, "get_Task", &self.get_task.to_bytes());
        let get_task = Instruction::call(get_task.map_err(describe_error)?);
        let returns = match (&self.get_task.return_type, named(import, *class)) {
            // The builder of a `T` has the task of a `T`.
            (
                Type::Generic {
                    is_value,
                    definition,
                    ..
                },
                Some((_, Some(Type::Generic { arguments, .. }))),
            ) => Type::Generic {
                is_value: *is_value,
                definition: *definition,
                arguments,
            },
            (returns, _) => returns.clone(),
        };
        let tasks = TaskTypes::of(metadata, &self.get_task.return_type, &returns)?;
        let was_resumed = locals.append(Type::INT32).ok_or_else(full)?;
        let mut ask = vec![
            Instruction::ldarg(0),
            Instruction::ldflda(builder),
            get_task,
        ];
        if self.is_value {
            let task = locals.append(returns).ok_or_else(full)?;
            ask.extend([Instruction::stloc(task), Instruction::ldloca(task)]);
        }
        ask.extend(tasks.id(metadata)?);

        for (label, _, is_error) in ends {
            let function = probes::completes as extern "C" fn(i32, i32, i32);
            let numbers = [i32::from(is_error), number];
            let call = Probe::calli(1, &numbers, function as usize, signatures.completes);
            let instructions = ask.iter().chain(call.instructions()).cloned();
            // -1 before the first run, from 0 on the await at which it is suspended.
            let condition = [
                Instruction::ldloc(was_resumed),
                Instruction::ldc_i4(-1),
                Instruction::cgt(),
            ];
            body.insert_at_if(label, condition, instructions);
        }
        let remember = [
            Instruction::ldarg(0),
            Instruction::ldfld(state),
            Instruction::stloc(was_resumed),
        ];
        body.insert_before(first, remember);
        body.max_stack = body.max_stack.saturating_add(MORE_STACK);
        Ok(())
    }

    /// Returns the field of the state machine that its code loads.
    fn field(
        &self,
        import: &MetadataImport<'_>,
        body: &Body,
        load: Opcode,
        names: [&str; 2],
    ) -> Option<Token> {
        let of_name = |name: &&str| import.enum_fields_with_name(self.machine, name).ok();
        let defined: Vec<Token> = names.iter().filter_map(of_name).flatten().collect();
        let is_it = |field: Token| match field.table() {
            Token::MEMBER_REF => import.get_member_ref_props(field).is_ok_and(|props| {
                names.contains(&props.name.as_str())
                    && named(import, props.parent)
                        .and_then(|(_, whole)| definition(&whole?))
                        .is_some_and(|machine| machine == self.machine)
            }),
            _ => defined.contains(&field),
        };
        let pairs = body.lines.windows(2).filter_map(|pair| {
            let [this, field] = pair else { return None };
            let loads = is(&this.instruction, Opcode::LDARG_0) && is(&field.instruction, load);
            loads.then(|| token_of(&field.instruction)).flatten()
        });
        let mut seen = HashMap::new();
        pairs
            .into_iter()
            .find(|field| *seen.entry(*field).or_insert_with(|| is_it(*field)))
    }

    /// Returns the calls that complete the builder: the call, the builder's type, and whether it is
    /// by an exception. `None` if a call is in an unexpected place.
    fn ends(
        &self,
        import: &MetadataImport<'_>,
        body: &Body,
        builder: Token,
    ) -> Option<Vec<(corprof::il::Label, Token, bool)>> {
        let mut seen: HashMap<Token, Option<(Token, bool)>> = HashMap::new();
        let classify = |call: Token| {
            let (class, name, _) = member(import, call)?;
            let is_error = match name.as_str() {
                "SetResult" => false,
                "SetException" => true,
                _ => return None,
            };
            (named(import, class)?.0 == self.builder).then_some((class, is_error))
        };
        let mut ends = Vec::new();
        for (at, line) in body.lines.iter().enumerate() {
            if !is(&line.instruction, Opcode::CALL) {
                continue;
            }
            let call = token_of(&line.instruction)?;
            let Some((class, is_error)) = *seen.entry(call).or_insert_with(|| classify(call))
            else {
                continue;
            };
            // `this.builder`, followed by the argument of the call, if any.
            let is_own = |back: usize| {
                let at = at.checked_sub(back)?;
                let pair = [body.lines.get(at)?, body.lines.get(at + 1)?];
                let [this, field] = pair.map(|line| &line.instruction);
                let is_own = is(this, Opcode::LDARG_0)
                    && is(field, Opcode::LDFLDA)
                    && token_of(field) == Some(builder);
                is_own.then_some(())
            };
            is_own(2).or_else(|| is_own(3))?;
            ends.push((line.label, class, is_error));
        }
        Some(ends)
    }
}

/// Instructions without a branch.
fn straight(instructions: Vec<Instruction>, max_stack: u16) -> Result<Probe, String> {
    Probe::new(instructions, max_stack).map_err(|error| error.to_string())
}

/// Tokens and locals for reading a task's properties, in the code of one method.
#[derive(Clone, Copy, Debug)]
struct TaskTypes {
    /// The queried type: `Task`, or an instance of `ValueTask`.
    own: Token,
    task: Token,
    /// For a `ValueTask`: whether it has a result.
    value: Option<bool>,
}

impl TaskTypes {
    /// `property` is the type of the builder's property, `returns` the same in terms of the method.
    fn of(
        metadata: ModuleMetadata<'_, '_>,
        property: &Type,
        returns: &Type,
    ) -> Result<TaskTypes, String> {
        let (beside, value) = match property {
            Type::Class(class) => (class.token(), None),
            Type::ValueType(class) => (class.token(), Some(false)),
            Type::Generic {
                is_value,
                definition,
                ..
            } => (definition.token(), is_value.then_some(true)),
            _ => return Err("its builder's task is of an unknown type".to_owned()),
        };
        let task = match property {
            Type::Class(_) => beside,
            _ => type_ref(metadata, TASK, beside)?,
        };
        let own = match (value, returns) {
            (None, _) => task,
            (Some(_), Type::ValueType(class)) => class.token(),
            (Some(_), whole) => {
                let spec = metadata.emit.get_token_from_type_spec(&whole.to_bytes());
                spec.map_err(describe_error)?
            }
        };
        Ok(TaskTypes { own, task, value })
    }

    /// Returns a `bool` property of the task.
    fn own(&self, metadata: ModuleMetadata<'_, '_>, name: &str) -> Result<Instruction, String> {
        let boolean = Type::Primitive(corprof::il::Primitive::Boolean);
        let method = self.method(metadata, self.own, name, boolean)?;
        Ok(match self.value {
            Some(_) => Instruction::call(method),
            None => Instruction::callvirt(method),
        })
    }

    /// Returns the instructions that convert a task, or the address of a value task, to the task's
    /// id.
    fn id(&self, metadata: ModuleMetadata<'_, '_>) -> Result<Vec<Instruction>, String> {
        let mut all = Vec::new();
        if let Some(has_result) = self.value {
            // The task inside it, as its builder makes no others.
            let token = |token| TypeToken::new(token).ok_or("that is no type".to_owned());
            let returns = match has_result {
                false => Type::Class(token(self.task)?),
                true => Type::Generic {
                    is_value: false,
                    definition: token(type_ref(metadata, TASK_OF, self.task)?)?,
                    arguments: vec![Type::TypeParameter(0)],
                },
            };
            let as_task = self.method(metadata, self.own, "AsTask", returns)?;
            all.push(Instruction::call(as_task));
        }
        let id = self.method(metadata, self.task, "get_Id", Type::INT32)?;
        all.push(Instruction::callvirt(id));
        Ok(all)
    }

    fn method(
        &self,
        metadata: ModuleMetadata<'_, '_>,
        class: Token,
        name: &str,
        returns: Type,
    ) -> Result<Token, String> {
        let mut signature =
            MethodSignature::new(corprof::il::Convention::Managed, returns, Vec::new());
        signature.has_this = true;
        let found = metadata
            .emit
            .define_member_ref(class, name, &signature.to_bytes());
        found.map_err(describe_error)
    }
}

/// Returns a reference to a type of the framework, in the assembly of an existing reference.
fn type_ref(metadata: ModuleMetadata<'_, '_>, name: &str, beside: Token) -> Result<Token, String> {
    let scope_of = |class: Token| {
        metadata
            .import
            .get_type_ref_props(class)
            .map_err(describe_error)
    };
    let beside = scope_of(beside)?.scope;
    let (mut found, mut of_objects) = (None, None);
    for class in metadata.import.enum_type_refs().map_err(describe_error)? {
        let props = scope_of(class)?;
        if props.name == name && (found.is_none() || props.scope == beside) {
            found = Some(class);
        }
        if props.name == "System.Object" {
            of_objects = Some(props.scope);
        }
    }
    match found {
        Some(found) => Ok(found),
        // `ValueTask` may come from an assembly that has no `Task`.
        None => metadata
            .emit
            .define_type_ref_by_name(of_objects.unwrap_or(beside), name)
            .map_err(describe_error),
    }
}
