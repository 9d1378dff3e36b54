//! Test oracle for managed code: simulates a function's instructions to find the frame after each.
//!
//! The result is compared with the unwind rule at each instruction. It decodes instructions with
//! iced-x86, not with `x86`, and uses unwind codes only for the prologue's length.

use crate::rule::{Bp, Cfa, Rule};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

/// The value that `rbp` holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RbpValue {
    /// The caller's value.
    Callers,
    /// The address CFA + offset.
    At(i64),
    /// Any value.
    Other,
}

/// State of a frame after an instruction. All addresses are relative to the CFA.
#[derive(Clone, Copy, Debug)]
struct FrameState {
    /// `None` if the function has moved it by an amount that is not in the code.
    sp: Option<i64>,
    bp: RbpValue,
    /// Address at which the caller's `rbp` was pushed.
    saved: Option<i64>,
    r11: Option<i64>,
    rax: Option<i64>,
}

/// Findings about one function.
#[derive(Default, Debug)]
pub(crate) struct Verdict {
    /// Number of instructions whose rule was checked.
    pub(crate) checked: u32,
    /// Number of instructions at which the stack pointer cannot be determined from the code.
    pub(crate) unjudged: u32,
    /// The wrong rules: offset and text of the instruction, the state, and the rule.
    pub(crate) wrong: Vec<(u64, String)>,
}

/// Checks `rule(address, exact)` at every instruction of a function at `start` with the bytes
/// `code`, and at every return address in it.
pub(crate) fn check(
    code: &[u8],
    start: u64,
    prologue_len: u32,
    rule: impl Fn(u64, bool) -> Option<Rule>,
) -> Verdict {
    let mut verdict = Verdict::default();
    let mut state = FrameState {
        sp: Some(-8),
        bp: RbpValue::Callers,
        saved: None,
        r11: None,
        rax: None,
    };
    if code.starts_with(&[0x48, 0x8b, 0x45, 0x00]) {
        // An OSR body begins on the frame of another body, whose size only its unwind codes give.
        // The check is that every instruction is consistent with it.
        if let Some(Rule::Frame {
            cfa: Cfa::Sp(offset),
            bp: Bp::FromCfa(-16),
            ..
        }) = rule(start, true)
        {
            let sp = Some(-i64::from(offset));
            state = FrameState {
                sp,
                bp: RbpValue::At(-16),
                saved: Some(-16),
                r11: None,
                rax: None,
            };
        }
    }
    let mut body = None;
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        // Padding and data after the code.
        if instruction.is_invalid() || instruction.code() == Code::Int3 {
            break;
        }
        // 3.1 does not put the set-up of rbp into the codes if the frame does not need it.
        let sets_frame = matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Mov)
            && instruction.op0_register() == Register::RBP;
        let sets_frame = sets_frame || instruction.mnemonic() == Mnemonic::Vzeroupper;
        let begun = instruction.ip() >= start + u64::from(prologue_len);
        if body.is_none() && begun && !sets_frame {
            body = Some(state);
        }
        verdict.judge(&instruction, &state, rule(instruction.ip(), true), start);
        let flow = instruction.flow_control();
        if matches!(flow, FlowControl::Call | FlowControl::IndirectCall) {
            verdict.judge(
                &instruction,
                &state,
                rule(instruction.next_ip() - 1, false),
                start,
            );
        }
        step(&instruction, &mut state);
        if matches!(
            flow,
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        ) && let Some(body) = body
        {
            state = body;
        }
    }
    verdict
}

impl Verdict {
    fn judge(
        &mut self,
        instruction: &Instruction,
        state: &FrameState,
        rule: Option<Rule>,
        start: u64,
    ) {
        let right = match rule {
            Some(Rule::Frame {
                cfa,
                ra: -8,
                bp,
                assumed: false,
            }) => {
                let cfa = match (cfa, state.sp, state.bp) {
                    (Cfa::Sp(offset), Some(sp), _) => sp + i64::from(offset) == 0,
                    (Cfa::Bp(offset), _, RbpValue::At(at)) => at + i64::from(offset) == 0,
                    (Cfa::Other(0, offset), ..) => {
                        state.rax.is_some_and(|rax| rax + i64::from(offset) == 0)
                    }
                    (Cfa::Sp(_), None, RbpValue::Callers | RbpValue::Other) => {
                        self.unjudged += 1;
                        return;
                    }
                    _ => false,
                };
                let bp = match bp {
                    Bp::Same => state.bp == RbpValue::Callers,
                    Bp::FromCfa(at) => {
                        let at = i64::from(at);
                        state.saved == Some(at) && state.sp.is_none_or(|sp| at >= sp)
                    }
                    Bp::FromOwn(_) => false,
                };
                cfa && bp
            }
            _ => false,
        };
        self.checked += 1;
        if !right {
            let code = instruction.code();
            let text = format!("{code:?} {state:?} {rule:?}");
            self.wrong.push((instruction.ip() - start, text));
        }
    }
}

fn step(instruction: &Instruction, state: &mut FrameState) {
    use Register::{R11, RAX, RBP, RSP};
    let register = |index: u32| {
        (instruction.op_count() > index && instruction.op_kind(index) == OpKind::Register)
            .then(|| instruction.op_register(index))
    };
    let value = |register: Register, state: &FrameState| match register {
        RSP => state.sp,
        RBP => match state.bp {
            RbpValue::At(at) => Some(at),
            _ => None,
        },
        R11 => state.r11,
        RAX => state.rax,
        _ => None,
    };
    // base + displacement of a memory operand without an index
    let address = |state: &FrameState| {
        let displacement = instruction.memory_displacement64().cast_signed();
        (instruction.memory_index() == Register::None)
            .then(|| value(instruction.memory_base(), state))
            .flatten()
            .map(|base| base + displacement)
    };
    let immediate = || instruction.try_immediate(1).ok().map(u64::cast_signed);
    let set = |state: &mut FrameState, register: Register, new: Option<i64>| match register {
        RSP => state.sp = new,
        RBP => state.bp = new.map_or(RbpValue::Other, RbpValue::At),
        R11 => state.r11 = new,
        RAX => state.rax = new,
        _ => {}
    };
    // Any other instruction that writes it, or may.
    if instruction.mnemonic() != Mnemonic::Lea
        && !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test)
        && (instruction.flow_control() == FlowControl::Call
            || register(0).is_some_and(|to| to.full_register() == RAX))
    {
        state.rax = None;
    }
    match (instruction.mnemonic(), register(0)) {
        (Mnemonic::Push, pushed) => {
            state.sp = state.sp.map(|sp| sp - 8);
            if pushed == Some(RBP) && state.bp == RbpValue::Callers && state.saved.is_none() {
                state.saved = state.sp;
            }
        }
        (Mnemonic::Pop, popped) => {
            if popped == Some(RBP) {
                let own = state.saved.is_some() && (state.sp == state.saved || state.sp.is_none());
                state.bp = if own {
                    RbpValue::Callers
                } else {
                    RbpValue::Other
                };
            }
            state.sp = state.sp.map(|sp| sp + 8);
        }
        (Mnemonic::Sub | Mnemonic::Add, Some(to @ (RSP | RBP | R11))) => {
            let sign = if instruction.mnemonic() == Mnemonic::Add {
                1
            } else {
                -1
            };
            let old = value(to, state);
            set(
                state,
                to,
                old.zip(immediate()).map(|(old, by)| old + sign * by),
            );
        }
        (Mnemonic::Lea, Some(to @ (RSP | RBP | R11 | RAX))) => {
            let at = address(state);
            set(state, to, at);
        }
        (Mnemonic::Mov, Some(to @ (RSP | RBP | R11))) => {
            let from = register(1).and_then(|from| value(from, state));
            set(state, to, from);
        }
        (Mnemonic::Leave, _) => {
            let RbpValue::At(at) = state.bp else { return };
            state.sp = Some(at + 8);
            state.bp = if state.saved == Some(at) {
                RbpValue::Callers
            } else {
                RbpValue::Other
            };
        }
        // Calls, returns, comparisons and stores do not move it.
        (Mnemonic::Call | Mnemonic::Ret | Mnemonic::Cmp | Mnemonic::Test, _) => {}
        (_, Some(to @ (RSP | RBP | R11))) => set(state, to, None),
        _ => {}
    }
}
