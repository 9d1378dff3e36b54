//! An IL instruction with its operand. The operand of a branch is the label of its target.
//!
//! Invariant: the operand of an [`Instruction`] is of the kind of its opcode.

use super::{Opcode, OperandKind};
use crate::id::Token;

/// Identifies a line of a [`super::Body`], even after it moved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Label(pub(super) u32);

impl Label {
    /// The position after the last line, at which a range may end.
    pub const END: Self = Self(u32::MAX);
}

/// Operand of an instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operand {
    /// Nothing.
    None,
    /// Operand of `ldc.i4.s`.
    Int8(i8),
    /// Operand of `unaligned.` and `no.`.
    UInt8(u8),
    /// Operand of `ldc.i4`.
    Int32(i32),
    /// Operand of `ldc.i8`.
    Int64(i64),
    /// Bits of the operand of `ldc.r4`, so that each NaN is preserved.
    Float32(u32),
    /// Bits of the operand of `ldc.r8`.
    Float64(u64),
    /// Number of an argument or of a local.
    Variable(u16),
    /// Token of a type, a member, a string or a signature.
    Token(Token),
    /// Target of a branch.
    Target(Label),
    /// Targets of a `switch`.
    Switch(Box<[Label]>),
}

/// An opcode and its operand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instruction {
    opcode: Opcode,
    operand: Operand,
}

impl Instruction {
    /// Creates an instruction; `None` if the operand is not of the opcode's kind, or does not fit
    /// into its short form.
    pub fn new(opcode: Opcode, operand: Operand) -> Option<Self> {
        let fits = match (opcode.operand(), &operand) {
            (OperandKind::ShortVariable, Operand::Variable(number)) => *number < 0x100,
            (OperandKind::None, Operand::None)
            | (OperandKind::Int8, Operand::Int8(_))
            | (OperandKind::UInt8, Operand::UInt8(_))
            | (OperandKind::Int32, Operand::Int32(_))
            | (OperandKind::Int64, Operand::Int64(_))
            | (OperandKind::Float32, Operand::Float32(_))
            | (OperandKind::Float64, Operand::Float64(_))
            | (OperandKind::Variable, Operand::Variable(_))
            | (OperandKind::Token, Operand::Token(_))
            | (OperandKind::ShortTarget | OperandKind::Target, Operand::Target(_))
            | (OperandKind::Switch, Operand::Switch(_)) => true,
            _ => false,
        };
        fits.then_some(Self { opcode, operand })
    }

    /// Creates an instruction whose operand is already checked.
    pub(super) const fn known(opcode: Opcode, operand: Operand) -> Self {
        Self { opcode, operand }
    }

    /// Creates an instruction without operand; `None` if the opcode has an operand.
    pub fn plain(opcode: Opcode) -> Option<Self> {
        Self::new(opcode, Operand::None)
    }

    /// `ldc.i4`, in the shortest of its forms.
    pub fn ldc_i4(value: i32) -> Self {
        match value {
            -1..=8 => {
                const SHORT: [Opcode; 10] = [
                    Opcode::LDC_I4_M1,
                    Opcode::LDC_I4_0,
                    Opcode::LDC_I4_1,
                    Opcode::LDC_I4_2,
                    Opcode::LDC_I4_3,
                    Opcode::LDC_I4_4,
                    Opcode::LDC_I4_5,
                    Opcode::LDC_I4_6,
                    Opcode::LDC_I4_7,
                    Opcode::LDC_I4_8,
                ];
                Self::known(SHORT[(value + 1) as usize], Operand::None)
            }
            -128..=127 => Self::known(Opcode::LDC_I4_S, Operand::Int8(value as i8)),
            _ => Self::known(Opcode::LDC_I4, Operand::Int32(value)),
        }
    }

    /// `ldc.i8`. Followed by [`Self::conv_i`], it loads an address.
    pub fn ldc_i8(value: i64) -> Self {
        Self::known(Opcode::LDC_I8, Operand::Int64(value))
    }

    /// `conv.i`
    pub fn conv_i() -> Self {
        Self::known(Opcode::CONV_I, Operand::None)
    }

    /// `ldloc`, in the shortest of its forms.
    pub fn ldloc(local: u16) -> Self {
        const SHORT: [Opcode; 4] = [
            Opcode::LDLOC_0,
            Opcode::LDLOC_1,
            Opcode::LDLOC_2,
            Opcode::LDLOC_3,
        ];
        Self::variable(local, &SHORT, Opcode::LDLOC_S, Opcode::LDLOC)
    }

    /// `stloc`, in the shortest of its forms.
    pub fn stloc(local: u16) -> Self {
        const SHORT: [Opcode; 4] = [
            Opcode::STLOC_0,
            Opcode::STLOC_1,
            Opcode::STLOC_2,
            Opcode::STLOC_3,
        ];
        Self::variable(local, &SHORT, Opcode::STLOC_S, Opcode::STLOC)
    }

    /// `ldloca`, in the shortest of its forms.
    pub fn ldloca(local: u16) -> Self {
        match local {
            0..0x100 => Self::known(Opcode::LDLOCA_S, Operand::Variable(local)),
            _ => Self::known(Opcode::LDLOCA, Operand::Variable(local)),
        }
    }

    /// `ldarg`, in the shortest of its forms.
    pub fn ldarg(argument: u16) -> Self {
        const SHORT: [Opcode; 4] = [
            Opcode::LDARG_0,
            Opcode::LDARG_1,
            Opcode::LDARG_2,
            Opcode::LDARG_3,
        ];
        Self::variable(argument, &SHORT, Opcode::LDARG_S, Opcode::LDARG)
    }

    fn variable(number: u16, shortest: &[Opcode; 4], short: Opcode, long: Opcode) -> Self {
        match shortest.get(usize::from(number)) {
            Some(opcode) => Self::known(*opcode, Operand::None),
            None if number < 0x100 => Self::known(short, Operand::Variable(number)),
            None => Self::known(long, Operand::Variable(number)),
        }
    }

    /// `calli` with this signature (token of a stand-alone signature).
    pub fn calli(signature: Token) -> Self {
        Self::known(Opcode::CALLI, Operand::Token(signature))
    }

    /// `call` of this method.
    pub fn call(method: Token) -> Self {
        Self::known(Opcode::CALL, Operand::Token(method))
    }

    /// `callvirt` of this method.
    pub fn callvirt(method: Token) -> Self {
        Self::known(Opcode::CALLVIRT, Operand::Token(method))
    }

    /// `ldfld`: a field's value.
    pub fn ldfld(field: Token) -> Self {
        Self::known(Opcode::LDFLD, Operand::Token(field))
    }

    /// `ldflda`: a field's address.
    pub fn ldflda(field: Token) -> Self {
        Self::known(Opcode::LDFLDA, Operand::Token(field))
    }

    /// `cgt`: 1 if the first of the two values on the stack is greater than the second, else 0.
    pub fn cgt() -> Self {
        Self::known(Opcode::CGT, Operand::None)
    }

    /// `brfalse`, written in its short form if the target is near.
    pub fn brfalse(target: Label) -> Self {
        Self::known(Opcode::BRFALSE_S, Operand::Target(target))
    }

    /// `br`, written in its short form if the target is near.
    pub fn br(target: Label) -> Self {
        Self::known(Opcode::BR_S, Operand::Target(target))
    }

    /// `leave`, written in its short form if the target is near.
    pub fn leave(target: Label) -> Self {
        Self::known(Opcode::LEAVE_S, Operand::Target(target))
    }

    /// `ret`
    pub fn ret() -> Self {
        Self::known(Opcode::RET, Operand::None)
    }

    /// `endfinally`, which also ends a fault handler.
    pub fn endfinally() -> Self {
        Self::known(Opcode::ENDFINALLY, Operand::None)
    }

    /// The opcode. A short branch may be written in its long form.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The operand.
    pub fn operand(&self) -> &Operand {
        &self.operand
    }

    /// The branch targets.
    pub fn targets(&self) -> &[Label] {
        match &self.operand {
            Operand::Target(target) => core::slice::from_ref(target),
            Operand::Switch(targets) => targets,
            _ => &[],
        }
    }

    /// The branch targets, for changing them.
    pub fn targets_mut(&mut self) -> &mut [Label] {
        match &mut self.operand {
            Operand::Target(target) => core::slice::from_mut(target),
            Operand::Switch(targets) => targets,
            _ => &mut [],
        }
    }

    /// Size in bytes in this form.
    pub fn size(&self) -> u64 {
        let operand = match &self.operand {
            Operand::None => 0,
            Operand::Int8(_) | Operand::UInt8(_) => 1,
            Operand::Variable(_) => match self.opcode.operand() {
                OperandKind::ShortVariable => 1,
                _ => 2,
            },
            Operand::Int32(_) | Operand::Float32(_) | Operand::Token(_) => 4,
            Operand::Int64(_) | Operand::Float64(_) => 8,
            Operand::Target(_) => match self.opcode.operand() {
                OperandKind::ShortTarget => 1,
                _ => 4,
            },
            Operand::Switch(targets) => 4 + 4 * targets.len() as u64,
        };
        u64::from(self.opcode.size()) + operand
    }
}
