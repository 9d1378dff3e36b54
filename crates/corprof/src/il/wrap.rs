//! Puts probes around a method: at its begin, its normal return, and its exceptional exit.
//!
//! ```text
//!       enter ; stloc token
//! try { the body, each `ret` as [stloc result] ; leave END }
//! fault { ldloc token ; fault ; endfinally }
//! END:  ldloc token ; leave ; [ldloc result] ; ret
//! ```
//!
//! A probe is a short run of instructions, usually a call. If the result shows whether the call has
//! ended, as a task does, the code at END checks the result ([`Outcome`]).
//!
//! A `fault` runs for exceptions only, so a normal return passes no handler. The enter probe leaves
//! a value, the token, which is kept in a local. So the profiler needs no shadow stack, and
//! recursion and calls that began earlier are handled correctly. The enter probe is outside of the
//! `try`, so an exception in the probe is not reported as one of the method.
//!
//! Invariants: the body keeps all its instructions, their order and their branch targets; a branch
//! to the first instruction does not run the enter probe again; the clauses of the body are inside
//! the new clause, which is the last one.

use core::fmt;

use super::{
    Body, Clause, Flow, Handler, Instruction, Label, Line, LocalSignature, MethodSignature, Opcode,
    Type,
};
use crate::id::Token;

/// Instructions of a probe: straight-line code without branches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    instructions: Vec<Instruction>,
    max_stack: u16,
}

impl Probe {
    /// Creates a probe. `max_stack` is the depth that it needs on the evaluation stack, including
    /// its inputs.
    ///
    /// # Errors
    /// The first instruction that does not continue with the next one: a branch, `ret`, `throw`,
    /// `jmp`, an end of a handler, or `tail.`.
    pub fn new(instructions: Vec<Instruction>, max_stack: u16) -> Result<Self, NotStraight> {
        let goes_on = |one: &Instruction| {
            let on = matches!(
                one.opcode().flow(),
                Flow::Next | Flow::Call | Flow::Prefix | Flow::Break
            );
            on && one.opcode() != Opcode::TAIL
        };
        match instructions.iter().position(|one| !goes_on(one)) {
            Some(index) => Err(NotStraight(index)),
            None => Ok(Self {
                instructions,
                max_stack,
            }),
        }
    }

    /// `calli` of a native function, whose address is a constant in the code. Its arguments are the
    /// `on_stack` values that are already on the stack, then these numbers. The function must stay
    /// loaded for the life of the runtime.
    ///
    /// `signature` is the token of the function's signature in the method's module.
    /// [`probe_signature`] returns its bytes.
    pub fn calli(on_stack: u16, numbers: &[i32], function: usize, signature: Token) -> Self {
        let mut instructions: Vec<Instruction> = Vec::with_capacity(numbers.len() + 3);
        instructions.extend(numbers.iter().map(|number| Instruction::ldc_i4(*number)));
        instructions.extend([
            Instruction::ldc_i8(function as i64),
            Instruction::conv_i(),
            Instruction::calli(signature),
        ]);
        let numbers = u16::try_from(numbers.len()).unwrap_or(u16::MAX);
        Self {
            instructions,
            max_stack: on_stack.saturating_add(numbers).saturating_add(1),
        }
    }

    /// A probe that adds one to the 64-bit number at an address. It needs no metadata and makes no
    /// call. It is not atomic: concurrent threads lose counts.
    pub fn count_at(address: usize) -> Self {
        let plain = |opcode| Instruction::known(opcode, super::Operand::None);
        Self {
            instructions: vec![
                Instruction::ldc_i8(address as i64),
                Instruction::conv_i(),
                plain(Opcode::DUP),
                plain(Opcode::LDIND_I8),
                Instruction::ldc_i4(1),
                plain(Opcode::CONV_I8),
                plain(Opcode::ADD),
                plain(Opcode::STIND_I8),
            ],
            max_stack: 3,
        }
    }

    /// The instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Depth that the probe needs on the evaluation stack.
    pub fn max_stack(&self) -> u16 {
        self.max_stack
    }
}

/// Error: the instruction of a probe with this index does not continue with the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotStraight(pub usize);

impl fmt::Display for NotStraight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.0;
        write!(f, "instruction {index} of a probe does not go to the next")
    }
}

impl core::error::Error for NotStraight {}

/// Calling convention of a probe's native function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeCall {
    /// C, with a transition to preemptive mode as in a P/Invoke. Works on every CLR; the function
    /// may block.
    C,
    /// C without the transition (.NET 6 on), which costs a few instructions only. The function must
    /// return within about a microsecond, and must not block, take a lock, allocate or call the
    /// runtime. The token is a reference to
    /// `System.Runtime.CompilerServices.CallConvSuppressGCTransition`.
    CWithoutTransition(super::TypeToken),
    /// As a managed method, which on 64-bit Unix passes integers as C does. No contract guarantees
    /// this. The function has the obligations of [`ProbeCall::CWithoutTransition`].
    Managed,
}

/// The stand-alone signature of a probe's function, for `GetTokenFromSig`.
pub fn probe_signature(
    call: ProbeCall,
    return_type: Type,
    parameters: Vec<Type>,
) -> MethodSignature {
    use super::Convention;
    let (convention, return_type) = match call {
        ProbeCall::C => (Convention::C, return_type),
        ProbeCall::CWithoutTransition(modifier) => {
            let modified = Type::Modified {
                is_required: false,
                modifier,
                of: Box::new(return_type),
            };
            (Convention::Unmanaged, modified)
        }
        ProbeCall::Managed => (Convention::Managed, return_type),
    };
    MethodSignature::new(convention, return_type, parameters)
}

/// Probes around a method.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probes {
    /// Runs first. Leaves one value of the token's type on the stack, or nothing if `token` is
    /// `None`.
    pub enter: Probe,
    /// Runs before a normal return. Takes the token off the stack.
    pub leave: Probe,
    /// Runs when an exception leaves the method. Takes the token off the stack.
    pub fault: Probe,
    /// Type of the value that `enter` passes to `leave` and `fault`, such as [`Type::INT64`];
    /// `None` for no value.
    pub token: Option<Type>,
}

/// Probes at the return of a method whose result shows whether the call has ended, such as an async
/// method. They replace [`Probes::leave`].
///
/// ```text
/// END:  ldloc result ; has_ended ; brfalse ON
///       ldloc token ; ldloc result ; ended ; br RET
/// ON:   ldloc token ; ldloc result ; goes_on
/// RET:  ldloc result ; ret
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Whether the probes get the address of the result, because it is of a value type.
    pub by_address: bool,
    /// Converts the result to an `int32`, which is not 0 if the call has ended.
    pub has_ended: Probe,
    /// Runs if the call has ended. Takes the result, and below it the token, off the stack.
    pub ended: Probe,
    /// Runs if the call has not ended. Takes the same.
    pub goes_on: Probe,
}

/// Reason why a method cannot be wrapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The method has `jmp`, which is not allowed in a protected range.
    Jmp,
    /// The method has `tail.`, which is not allowed there either. Without it the stack would grow.
    Tail,
    /// The method has a variable number of arguments.
    VarArg,
    /// The method has the maximum number of locals.
    Locals,
    /// The method has no code.
    Empty,
}

impl Refusal {
    /// The reason in a few words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Jmp => "it jumps to another method (jmp)",
            Self::Tail => "it makes explicit tail calls, which would make the stack grow (tail.)",
            Self::VarArg => "it takes a variable number of arguments (vararg)",
            Self::Locals => "it has as many locals as a method can have",
            Self::Empty => "it has no code",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl core::error::Error for Refusal {}

/// A caution about wrapping a method: it can be wrapped, at some cost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Caution {
    /// The method never returns, and the JIT lays out its callers for that.
    NeverReturns,
    /// The method allocates on the stack, and the JIT optimises it less with a handler.
    Localloc,
    /// The method is so small that it is inlined; wrapped, it is not.
    Small,
}

impl Caution {
    /// The caution in a few words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NeverReturns => "it never returns",
            Self::Localloc => "it allocates on the stack",
            Self::Small => "it is inlined as it is, and would not be",
        }
    }
}

/// Maximum size in bytes of code that is always inlined (`ALWAYS_INLINE` of the JIT).
const SMALL: u32 = 16;

/// A wrapped body whose locals have no token yet.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Wrapped {
    body: Body,
    locals: Option<LocalSignature>,
}

impl Wrapped {
    /// The new signature of the locals, for which the caller gets a token (`GetTokenFromSig`);
    /// `None` if the locals are unchanged.
    pub fn locals(&self) -> Option<&LocalSignature> {
        self.locals.as_ref()
    }

    /// The body, with the token for [`Wrapped::locals`]. The token is ignored if that is `None`.
    pub fn with_locals(mut self, token: Token) -> Body {
        if self.locals.is_some() {
            self.body.locals = Some(token);
        }
        self.body
    }

    /// The body, still with the old token of its locals.
    pub fn body(&self) -> &Body {
        &self.body
    }
}

impl Body {
    /// The reason why [`Body::wrap`] would refuse the body; `None` if it would not.
    pub fn refusal(&self, signature: &MethodSignature) -> Option<Refusal> {
        use super::Convention::{NativeVarArg, VarArg};
        if self.lines.is_empty() {
            return Some(Refusal::Empty);
        }
        if matches!(signature.convention, VarArg | NativeVarArg) {
            return Some(Refusal::VarArg);
        }
        let refusal = |line: &Line| match line.instruction.opcode() {
            Opcode::JMP => Some(Refusal::Jmp),
            Opcode::TAIL => Some(Refusal::Tail),
            Opcode::ARGLIST => Some(Refusal::VarArg),
            _ => None,
        };
        self.lines.iter().find_map(refusal)
    }

    /// Cautions about wrapping the body.
    pub fn cautions(&self) -> Vec<Caution> {
        let has = |opcode| {
            let mut lines = self.lines.iter();
            lines.any(|line: &Line| line.instruction.opcode() == opcode)
        };
        let size: u64 = self.lines.iter().map(|line| line.instruction.size()).sum();
        let cautions = [
            (Caution::NeverReturns, !has(Opcode::RET)),
            (Caution::Localloc, has(Opcode::LOCALLOC)),
            (Caution::Small, size <= SMALL.into()),
        ];
        let cautions = cautions.into_iter().filter(|(_, is)| *is);
        cautions.map(|(caution, _)| caution).collect()
    }

    /// Puts one probe at the begin. This works for every method, for example to count calls of a
    /// method that [`Body::wrap`] refuses. The probe leaves nothing on the stack.
    pub fn with_enter(mut self, enter: &Probe) -> Self {
        self.max_stack = self.max_stack.max(enter.max_stack);
        let probe = self.fresh(enter.instructions.iter().cloned());
        self.lines.splice(..0, probe);
        self
    }

    /// Puts probes around the body. `signature` is that of the method, `locals` that of its locals,
    /// empty if it has none.
    ///
    /// The new size is that of the original and the probes, plus a few bytes for each `ret` and
    /// each branch that had to be lengthened.
    ///
    /// # Errors
    /// The reason why the method cannot be wrapped.
    pub fn wrap(
        self,
        signature: &MethodSignature,
        locals: &LocalSignature,
        probes: &Probes,
    ) -> Result<Wrapped, Refusal> {
        self.wrap_in(signature, locals, probes, None)
    }

    /// As [`Body::wrap`], for a method whose result shows whether the call has ended. A method that
    /// returns nothing is wrapped as usual.
    ///
    /// # Errors
    /// The reason why the method cannot be wrapped.
    pub fn wrap_asking(
        self,
        signature: &MethodSignature,
        locals: &LocalSignature,
        probes: &Probes,
        outcome: &Outcome,
    ) -> Result<Wrapped, Refusal> {
        self.wrap_in(signature, locals, probes, Some(outcome))
    }

    fn wrap_in(
        mut self,
        signature: &MethodSignature,
        locals: &LocalSignature,
        probes: &Probes,
        outcome: Option<&Outcome>,
    ) -> Result<Wrapped, Refusal> {
        if let Some(refusal) = self.refusal(signature) {
            return Err(refusal);
        }
        let Some(first) = self.lines.first().map(|line| line.label) else {
            return Err(Refusal::Empty);
        };
        let mut new_locals = locals.clone();
        let mut local = |of: Type| new_locals.append(of).ok_or(Refusal::Locals);
        let token = probes.token.clone().map(&mut local).transpose()?;
        let returns = self.lines.iter().any(|line| is_ret(&line.instruction));
        let result = match returns && !signature.return_type.is_void() {
            true => Some(local(signature.return_type.clone())?),
            false => None,
        };
        let has_new_locals = new_locals != *locals;

        let load = |local: Option<u16>| local.map(Instruction::ldloc);
        let enter = probes.enter.instructions.iter().cloned();
        let enter = self.fresh(enter.chain(token.map(Instruction::stloc)));
        let fault = probes.fault.instructions.iter().cloned();
        let fault = load(token).into_iter().chain(fault);
        let handler = self.fresh(fault.chain([Instruction::endfinally()]));
        let ret = load(result).into_iter().chain([Instruction::ret()]);
        let ret = self.fresh(ret);
        let mut end = match (outcome, result, ret.first().map(|line| line.label)) {
            (Some(outcome), Some(result), Some(ret)) => self.asking(outcome, token, result, ret),
            _ => {
                let leave = probes.leave.instructions.iter().cloned();
                self.fresh(load(token).into_iter().chain(leave))
            }
        };
        end.extend(ret);
        end.retain(|_| returns);

        // Neither is empty: the handler ends with `endfinally`, the end with `ret`.
        let handler_start = handler.first().map_or(Label::END, |line| line.label);
        let end_start = end.first().map_or(Label::END, |line| line.label);

        let original = core::mem::take(&mut self.lines);
        let mut lines = enter;
        lines.reserve(original.len() + handler.len() + end.len() + 16);
        for mut line in original {
            if !is_ret(&line.instruction) {
                lines.push(line);
                continue;
            }
            let leave = Instruction::leave(end_start);
            match result {
                None => {
                    line.instruction = leave;
                    lines.push(line);
                }
                Some(result) => {
                    line.instruction = Instruction::stloc(result);
                    lines.push(line);
                    let leave = self.line(leave);
                    lines.push(leave);
                }
            }
        }
        lines.extend(handler);
        lines.extend(end);
        self.lines = lines;

        // Clauses that ended at the end of the code now end where the new handler begins.
        for clause in &mut self.clauses {
            for label in clause.labels_mut().filter(|label| **label == Label::END) {
                *label = handler_start;
            }
        }
        self.clauses.push(Clause {
            handler: Handler::Fault,
            try_start: first,
            try_end: handler_start,
            handler_start,
            handler_end: end_start,
        });
        let needed = [&probes.enter, &probes.leave, &probes.fault].into_iter();
        let asking = outcome
            .map(|outcome| [&outcome.has_ended, &outcome.ended, &outcome.goes_on])
            .into_iter()
            .flatten();
        let needed = needed.chain(asking).map(|probe| probe.max_stack);
        self.max_stack = needed.fold(self.max_stack.max(1), u16::max);
        self.fat_header = true;
        Ok(Wrapped {
            body: self,
            locals: has_new_locals.then_some(new_locals),
        })
    }
}

impl Body {
    /// The code at END that checks the result, up to the return.
    fn asking(
        &mut self,
        outcome: &Outcome,
        token: Option<u16>,
        result: u16,
        ret: Label,
    ) -> Vec<Line> {
        let result = match outcome.by_address {
            true => Instruction::ldloca(result),
            false => Instruction::ldloc(result),
        };
        let on_stack = || {
            token
                .map(Instruction::ldloc)
                .into_iter()
                .chain([result.clone()])
        };
        let probe = |probe: &Probe| probe.instructions.clone();
        let goes_on = self.fresh(on_stack().chain(probe(&outcome.goes_on)));
        let on = goes_on.first().map_or(ret, |line| line.label);
        let asked = [result.clone()]
            .into_iter()
            .chain(probe(&outcome.has_ended));
        let asked = asked.chain([Instruction::brfalse(on)]).chain(on_stack());
        let ended = asked
            .chain(probe(&outcome.ended))
            .chain([Instruction::br(ret)]);
        let mut end = self.fresh(ended);
        end.extend(goes_on);
        end
    }
}

fn is_ret(instruction: &Instruction) -> bool {
    instruction.opcode() == Opcode::RET
}
