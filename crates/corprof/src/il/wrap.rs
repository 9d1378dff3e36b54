//! Puts probes around a method: at its begin, at its normal return, and where an exception leaves
//! it.
//!
//! ```text
//!       enter ; stloc token
//! try { the body, each `ret` as [stloc result] ; leave END }
//! fault { ldloc token ; fault ; endfinally }
//! END:  ldloc token ; leave ; [ldloc result] ; ret
//! ```
//!
//! Where the result says whether the call has ended, as a task does, the end asks it ([`Outcome`]).
//!
//! A `fault` runs for exceptions only, so a normal return goes through no handler. What the enter
//! probe leaves on the stack is kept in a local: it needs no stack of the profiler's own, and is
//! right in recursion and in calls that had begun before. The enter probe stands outside, so that
//! an exception of its own is no exception of the method.
//!
//! The invariants: every instruction of the body is there in its order, with its branches to the
//! same instructions; what branches to the first one does not run the enter probe again; the
//! clauses of the body are inside of ours, which is the last one.

use core::fmt;

use super::{
    Body, Clause, Flow, Handler, Instruction, Label, Line, LocalSignature, MethodSignature, Opcode,
    Type,
};
use crate::id::Token;

/// Instructions of a probe: straight on, from the first to behind the last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    instructions: Vec<Instruction>,
    max_stack: u16,
}

impl Probe {
    /// A probe that needs so much of the evaluation stack, with what it is given on it.
    ///
    /// # Errors
    /// The first instruction that goes elsewhere than to the next one: a branch, `ret`, `throw`,
    /// `jmp`, an end of a handler. `tail.` is one too.
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

    /// `calli` of a native function with the address as a constant in the code; what the function
    /// takes are these numbers behind what is on the stack already (`on_stack` values). The
    /// function must stay where it is for as long as the runtime lives.
    ///
    /// `signature` is the token of the function's signature in the method's module:
    /// [`probe_signature`] has its bytes.
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

    /// Adds one to the 64-bit number at an address. It needs nothing in the module's metadata,
    /// calls nothing, and is not atomic: threads that count at once lose counts.
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

    /// Its instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// How much of the evaluation stack it needs.
    pub fn max_stack(&self) -> u16 {
        self.max_stack
    }
}

/// An instruction of a probe, by its index, goes elsewhere than to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotStraight(pub usize);

impl fmt::Display for NotStraight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.0;
        write!(f, "instruction {index} of a probe does not go to the next")
    }
}

impl core::error::Error for NotStraight {}

/// How a probe's native function is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeCall {
    /// As C, by a call that leaves managed code as a P/Invoke does: every CLR, may block.
    C,
    /// As C without leaving managed code (.NET 6 on): a few instructions, but the function must
    /// return within about a microsecond, block nowhere, take no lock, allocate nothing and not
    /// call the runtime. The token is that of a reference to
    /// `System.Runtime.CompilerServices.CallConvSuppressGCTransition`.
    CWithoutTransition(super::TypeToken),
    /// As a managed method, which on 64-bit Unix takes whole numbers as C does. No contract says
    /// so. The function's obligations are those of [`ProbeCall::CWithoutTransition`].
    Managed,
}

/// The signature of a probe's function: a stand-alone signature for `GetTokenFromSig`.
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
    /// Runs first. It leaves one value of the token's type on the stack, or nothing where there is
    /// no token.
    pub enter: Probe,
    /// Runs before a normal return. It takes the token off the stack.
    pub leave: Probe,
    /// Runs when an exception leaves the method. It takes the token off the stack.
    pub fault: Probe,
    /// The type of what `enter` tells the others, such as [`Type::INT64`]; `None` for nothing.
    pub token: Option<Type>,
}

/// For a method whose result says whether the call has ended, as that of an async method does: what
/// runs in place of [`Probes::leave`], which is not used.
///
/// ```text
/// END:  ldloc result ; has_ended ; brfalse ON
///       ldloc token ; ldloc result ; ended ; br RET
/// ON:   ldloc token ; ldloc result ; goes_on
/// RET:  ldloc result ; ret
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The result is of a value type: probes are given its address.
    pub by_address: bool,
    /// From the result to an `int32`, which is not 0 where the call has ended.
    pub has_ended: Probe,
    /// It has: takes the result, and below it the token, off the stack.
    pub ended: Probe,
    /// It has not: takes the same.
    pub goes_on: Probe,
}

/// Why a method is left as it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// It has `jmp`, which is not allowed in a protected range.
    Jmp,
    /// It has `tail.`, which is not allowed there either, and without which the stack would grow.
    Tail,
    /// It has a variable number of arguments.
    VarArg,
    /// It has as many locals as a method can have.
    Locals,
    /// It has no code.
    Empty,
}

impl Refusal {
    /// Why, in a few words.
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
    /// It never returns: code that calls it is laid out for that.
    NeverReturns,
    /// It allocates on the stack: it is compiled less well with a handler.
    Localloc,
    /// It is so small that it is inlined, and is not any more.
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

/// Code that is inlined whatever else (`ALWAYS_INLINE` of the JIT).
const SMALL: u32 = 16;

/// A wrapped body whose locals have no token yet.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Wrapped {
    body: Body,
    locals: Option<LocalSignature>,
}

impl Wrapped {
    /// The signature to ask the module's metadata for a token of (`GetTokenFromSig`); `None` when
    /// the locals are those of the original.
    pub fn locals(&self) -> Option<&LocalSignature> {
        self.locals.as_ref()
    }

    /// The body, with the token that [`Wrapped::locals`] has got. It is not used when there is
    /// none.
    pub fn with_locals(mut self, token: Token) -> Body {
        if self.locals.is_some() {
            self.body.locals = Some(token);
        }
        self.body
    }

    /// The body as it is but for the token of its locals.
    pub fn body(&self) -> &Body {
        &self.body
    }
}

impl Body {
    /// Whether [`Body::wrap`] would leave it as it is, and why.
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

    /// Cautions about wrapping it.
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

    /// Puts a probe at the begin, and nothing else: what can be done with every method, such as
    /// counting calls of one that [`Body::wrap`] refuses. The probe leaves nothing on the stack.
    pub fn with_enter(mut self, enter: &Probe) -> Self {
        self.max_stack = self.max_stack.max(enter.max_stack);
        let probe = self.fresh(enter.instructions.iter().cloned());
        self.lines.splice(..0, probe);
        self
    }

    /// Puts probes around the body. `signature` is the method's own, `locals` that of its locals:
    /// empty for a body that has none.
    ///
    /// The size of a wrapped body is that of the original, of the probes, and a few bytes for each
    /// `ret` and each branch that is too short now.
    ///
    /// # Errors
    /// Why it is not done.
    pub fn wrap(
        self,
        signature: &MethodSignature,
        locals: &LocalSignature,
        probes: &Probes,
    ) -> Result<Wrapped, Refusal> {
        self.wrap_in(signature, locals, probes, None)
    }

    /// As [`Body::wrap`], for a method whose result is asked whether the call has ended. A method
    /// that returns nothing has none: it is wrapped as usual.
    ///
    /// # Errors
    /// Why it is not done.
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

        // Neither is empty: the handler has its end, and the end its `ret`.
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

        // Clauses that ended with the code end where ours begins.
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
    /// The end of a method whose result is asked, to where it returns.
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
