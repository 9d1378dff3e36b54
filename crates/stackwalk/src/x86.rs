//! Decoder of the few x86-64 instructions that a walker must read: calls, epilogues, prologues.
//!
//! Input is code bytes; output is an unwind rule, a prologue, or a property of an instruction.
//! Invariant: an unknown instruction ends the decoding with a negative result, and every step
//! consumes at least one byte of the slice.

use crate::rule::{Cfa, Rule};
use crate::unwind_info::{Builder, CfaAddress, rule_at};
use std::ops::Range;

pub(crate) mod instruction;

/// `mov rax, [rbp]`, the first instruction of most OSR bodies, which take over another body's
/// frame.
pub(crate) const OSR_ENTRY: [u8; 4] = [0x48, 0x8b, 0x45, 0x00];

/// Whether `before`, the bytes that end at a return address, ends in a call.
pub(crate) fn ends_in_call(before: &[u8]) -> bool {
    let at = |back: usize| {
        before
            .len()
            .checked_sub(back)
            .and_then(|at| before.get(at))
            .copied()
    };
    // call rel32
    if at(5) == Some(0xe8) {
        return true;
    }
    // call r/m64 is FF /2. The length of its operand must be exactly the remaining bytes.
    (2..=7).any(|len| {
        let (Some(0xff), Some(modrm)) = (at(len), at(len - 1)) else {
            return false;
        };
        let (mode, register, rm) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let sib = mode != 3 && rm == 4;
        let no_base = sib && mode == 0 && len >= 3 && at(len - 2).is_some_and(|sib| sib & 7 == 5);
        let displacement = match mode {
            0 if rm == 5 || no_base => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        register == 2 && len == 2 + usize::from(sib) + displacement
    })
}

/// Returns the target of the direct call that ends at a return address. `before` are the bytes that
/// end there.
pub(crate) fn direct_call_target(before: &[u8], return_address: u64) -> Option<u64> {
    let [.., 0xe8, a, b, c, d] = before else {
        return None;
    };
    let offset = i32::from_le_bytes([*a, *b, *c, *d]);
    return_address.checked_add_signed(offset.into())
}

/// Maximum number of instructions in an epilogue: eight registers and what comes before and after.
const EPILOGUE_LIMIT: usize = 16;

/// Returns the rule in an epilogue: if the instructions from `ip` on do nothing but remove the
/// frame and leave, they give the location of the return address.
///
/// `code` are the bytes from `ip` to the end of the body and `body` its addresses. With
/// `tail_calls` a jump out of the body, or through a pointer, counts as leaving. Compilers other
/// than the CLR's also jump to a cold part of the same function with the frame in place, so for
/// their code it must be false.
pub(crate) fn epilogue(code: &[u8], ip: u64, body: &Range<u64>, tail_calls: bool) -> Option<Rule> {
    let (mut at, mut bp) = (CfaAddress::Sp(0), None);
    let mut rest = code;
    // A part of the frame was removed, so this is certainly an epilogue.
    let mut started = false;
    for _ in 0..EPILOGUE_LIMIT {
        let (len, down) = match *rest {
            // vzeroupper
            [0xc5, 0xf8, 0x77, ..] => (3, false),
            // add rsp, imm
            [0x48, 0x83, 0xc4, imm, ..] => {
                at = at.plus(imm.cast_signed().into());
                (4, true)
            }
            [0x48, 0x81, 0xc4, a, b, c, d, ..] => {
                at = at.plus(i32::from_le_bytes([a, b, c, d]).into());
                (7, true)
            }
            // lea rsp, [rbp + disp]; after `pop rbp` the register is no longer this frame's
            [0x48, 0x8d, 0x65, disp, ..] if bp.is_none() => {
                at = CfaAddress::Bp(disp.cast_signed().into());
                (4, true)
            }
            [0x48, 0x8d, 0xa5, a, b, c, d, ..] if bp.is_none() => {
                at = CfaAddress::Bp(i32::from_le_bytes([a, b, c, d]).into());
                (7, true)
            }
            // mov rsp, rbp
            [0x48, 0x8b, 0xe5, ..] | [0x48, 0x89, 0xec, ..] if bp.is_none() => {
                at = CfaAddress::Bp(0);
                (3, true)
            }
            // leave
            [0xc9, ..] if bp.is_none() => {
                bp = Some(CfaAddress::Bp(0));
                at = CfaAddress::Bp(8);
                (1, true)
            }
            // pop rbp
            [0x5d, ..] => {
                bp = Some(at);
                at = at.plus(8);
                (1, true)
            }
            // pop any other but rsp
            [0x58..=0x5b | 0x5e..=0x5f, ..] => {
                at = at.plus(8);
                (1, true)
            }
            [0x41, 0x58..=0x5f, ..] => {
                at = at.plus(8);
                (2, true)
            }
            // ret, ret imm, rep ret
            [0xc3 | 0xc2, ..] | [0xf3, 0xc3, ..] => return rule_at(at, bp),
            _ => {
                let leaves = tail_calls && is_tail_call(rest, ip, code, body, started);
                return leaves.then(|| rule_at(at, bp)).flatten();
            }
        };
        started |= down;
        rest = rest.get(len..)?;
    }
    None
}

/// Whether `rest`, a tail of the `code` that begins at `ip`, begins with a jump that leaves the
/// body for good.
fn is_tail_call(rest: &[u8], ip: u64, code: &[u8], body: &Range<u64>, started: bool) -> bool {
    let here = ip.wrapping_add(code.len().saturating_sub(rest.len()) as u64);
    let outside = |len: u64, displacement: i64| {
        let target = here.wrapping_add(len).wrapping_add_signed(displacement);
        !body.contains(&target)
    };
    match *rest {
        [0xeb, disp, ..] => outside(2, disp.cast_signed().into()),
        [0xe9, a, b, c, d, ..] => outside(5, i32::from_le_bytes([a, b, c, d]).into()),
        // jmp [rip + disp]: not used by switches
        [0xff, 0x25, ..] | [0x48, 0xff, 0x25, ..] => true,
        // With REX.W a jump through a register is marked as an epilogue's. Without it, the jump is
        // a switch, unless the frame is removed already.
        [0x48..=0x4f, 0xff, modrm, ..] => modrm >> 3 & 7 == 4,
        [0xff, modrm, ..] | [0x41, 0xff, modrm, ..] => started && modrm >> 3 & 7 == 4,
        _ => false,
    }
}

/// Whether `code`, which begins one byte before an instruction, reads as `pop rbp` and a jump: a
/// tail call, if the byte is no part of another instruction. A table that does not describe
/// epilogues is wrong there.
pub(crate) fn is_jump_after_pop(code: &[u8]) -> bool {
    match *code {
        [0x5d, 0xe9, ..] => true,
        // jmp r/m64, with or without a REX prefix
        [0x5d, 0xff, modrm, ..] | [0x5d, 0x41, 0xff, modrm, ..] => modrm >> 3 & 7 == 4,
        _ => false,
    }
}

/// Whether `code` is the start of the runtime's `OnHijackTripThread`
/// (vm/amd64/asmhelpers.S, the same on 3.1, 8 and 10): room for the return address, the saved
/// registers, the return values, and the address of all that for `OnHijackWorker`.
pub(crate) fn is_hijack_stub(code: &[u8]) -> bool {
    // push rax, rbp, rbx, r15, r14, r13, r12; since 9 also rcx; rdx, rax; mov rdi, rsp
    const SAVED: [u8; 11] = [
        0x50, 0x55, 0x53, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54,
    ];
    let rest = code.strip_prefix(&SAVED).unwrap_or_default();
    rest.strip_prefix(&[0x51])
        .unwrap_or(rest)
        .starts_with(&[0x52, 0x50, 0x48, 0x89, 0xe7])
}

/// Whether `code` is the start of the runtime's `RtlRestoreContext` as it is since .NET 9
/// (pal/src/arch/amd64/context2.S). It loads the registers of a `CONTEXT` and continues in that
/// frame.
pub(crate) fn restores_context(code: &[u8]) -> bool {
    // push rbp; mov r10, rdi; mov r11, rsi; test byte ptr [r10 + ContextFlags], CONTEXT_INTEGER
    code.starts_with(&[
        0x55, 0x49, 0x89, 0xfa, 0x49, 0x89, 0xf3, 0x41, 0xf6, 0x42, 0x30, 0x02,
    ])
}

/// The way back from a signal handler: mov rax, 15 (`rt_sigreturn`); syscall.
pub(crate) const SIGNAL_RETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// Where in it the system call is.
pub(crate) const SIGNAL_RETURN_CALL: u64 = 7;

/// Last instructions of code that continues in another frame, after it has set that frame's stack
/// and frame pointer: the preceding bytes, the instruction itself, and the register (by its DWARF
/// number) that holds the address.
const LANDINGS: [(&[u8], &[u8], u8); 2] = [
    // libgcc's `__builtin_eh_return`, of gcc 12 and later: mov rsp, rcx; pop rcx | jmp rcx
    (&[0x48, 0x89, 0xcc, 0x59], &[0xff, 0xe1], RCX),
    // `RtlRestoreContext` since .NET 9: mov rsp, [r10 + Rsp] | jmp rax
    (&[0x49, 0x8b, 0xa2, 0x98, 0, 0, 0], &[0xff, 0xe0], RAX),
];

/// Returns the register that holds the address at which the next instruction, which begins `code`,
/// continues in another frame. `before` gives the code from so many bytes before the instruction
/// on.
pub(crate) fn landing<'a>(code: &[u8], before: impl Fn(usize) -> &'a [u8]) -> Option<u8> {
    let found = LANDINGS
        .iter()
        .find(|(prior, now, _)| code.starts_with(now) && before(prior.len()).starts_with(prior));
    found.map(|(_, _, register)| *register)
}

/// Code that the JIT of .NET Core 3.1 puts before the allocation of a frame of three pages and more
/// (`genAllocLclFrame`, jit/codegencommon.cpp): the stack pointer goes down page by page, and back.
///
/// ```text
/// loop: lea rsp, [rsp - 4096]; test [rsp], rax; cmp rsp, rax; jge loop; lea rsp, [rax + N]
/// ```
///
/// `rax` is the stack pointer before it, less N.
const PROBE_LOOP: [u8; 20] = [
    0x48, 0x8d, 0xa4, 0x24, 0x00, 0xf0, 0xff, 0xff, 0x48, 0x85, 0x04, 0x24, 0x48, 0x3b, 0xe0, 0x7d,
    0xef, 0x48, 0x8d, 0xa0,
];
/// Offsets of its instructions.
const PROBE_STEPS: [usize; 5] = [0, 8, 12, 15, 17];

/// Returns N of a probe loop at the start of `code`.
fn probed(code: &[u8]) -> Option<i32> {
    let &[a, b, c, d, ..] = code.strip_prefix(&PROBE_LOOP)? else {
        return None;
    };
    Some(i32::from_le_bytes([a, b, c, d]))
}

/// Returns the rule for an instruction of managed code that has not run yet, at `ip` and `into`
/// bytes after the start of its function. In an epilogue, the rule follows from the remaining code
/// (`rest`: from `ip` to the function's end). Elsewhere it follows from the unwind codes and from
/// probe loops, which the unwind codes omit (`before`: as for [`in_probe_loop`]). A jump within
/// `body` does not leave it. Async-signal-safe.
pub(crate) fn interrupted<'a>(
    (ip, into): (u64, u32),
    body: &Range<u64>,
    rest: impl FnOnce() -> Option<&'a [u8]>,
    by_codes: impl FnOnce() -> Option<Rule>,
    before: impl Fn(usize) -> &'a [u8],
) -> Option<Rule> {
    if into > 0
        && let Some(rule) = epilogue(rest()?, ip, body, true)
    {
        return Some(rule);
    }
    Some(in_probe_loop(by_codes()?, before))
}

/// Returns the rule inside a probe loop, where `rule` is that of the code before it; elsewhere
/// `rule` itself. `before` gives the code from so many bytes before the instruction on.
fn in_probe_loop<'a>(rule: Rule, before: impl Fn(usize) -> &'a [u8]) -> Rule {
    let Rule::Frame {
        cfa: Cfa::Sp(offset),
        ra,
        bp,
        assumed,
    } = rule
    else {
        return rule;
    };
    // Nearly all code ends here. Three of the five instructions begin like this; one is a short
    // jump.
    let here = before(0);
    let likely = matches!(*here, [0x48, 0x8d | 0x85 | 0x3b, ..] | [0x7d, 0xef, ..]);
    let found = PROBE_STEPS
        .iter()
        .filter(|_| likely)
        .find_map(|step| probed(before(*step)));
    match found.and_then(|below| below.checked_add(offset)) {
        Some(offset) => Rule::Frame {
            cfa: Cfa::Other(RAX, offset),
            ra,
            bp,
            assumed,
        },
        None => rule,
    }
}

/// DWARF numbers of registers.
const RAX: u8 = 0;
const RCX: u8 = 2;

/// A prologue, decoded from the first instructions of a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Prologue {
    /// The prologue as UNWIND_INFO.
    pub(crate) info: Vec<u8>,
    /// The same without the set-up of `rbp`, as the JIT describes frames that do not need it.
    pub(crate) without_frame: Vec<u8>,
    /// Whether `rbp` is set up.
    pub(crate) framed: bool,
}

/// Decodes the prologue of a body that the CLR's JIT made, or returns `None` if its instructions
/// are not sufficient (OSR bodies build on a frame of another body).
pub(crate) fn prologue(code: &[u8]) -> Option<Prologue> {
    let mut builder = Builder::new();
    let (mut rest, mut end, mut framed) = (code, 0u8, false);
    let mut done = 0u8;
    let mut allocated = false;
    loop {
        let step = |len: usize| u8::try_from(len).ok().and_then(|len| done.checked_add(len));
        let len = match *rest {
            // push; after the allocation it is an argument, not a saved register
            [push @ 0x50..=0x57, ..] if !allocated => {
                builder.push(step(1)?, push - 0x50);
                1
            }
            [0x41, push @ 0x50..=0x57, ..] if !allocated => {
                builder.push(step(2)?, push - 0x50 + 8);
                2
            }
            // sub rsp, imm
            [0x48, 0x83, 0xec, imm @ 0..=0x7f, ..] if !allocated => {
                builder.alloc(step(4)?, imm.into());
                allocated = true;
                4
            }
            [0x48, 0x81, 0xec, a, b, c, d, ..] if !allocated => {
                builder.alloc(step(7)?, u32::from_le_bytes([a, b, c, d]));
                allocated = true;
                7
            }
            // vzeroupper
            [0xc5, 0xf8, 0x77, ..] => 3,
            // test [rsp - n], rax: touches a page of the frame to come
            [0x48, 0x85, 0x84, 0x24, _, _, _, 0xff, ..] if !allocated => 8,
            // lea rax, [rsp - n], followed by touching all pages down to there
            [0x48, 0x8d, 0x84, 0x24, _, _, _, 0xff, ..]
                if !allocated && rest.get(8..).and_then(probed).is_some() =>
            {
                8 + PROBE_LOOP.len() + 4
            }
            // lea r11, [rsp - n]; call JIT_StackProbe; mov rsp, r11: unchanged since .NET 5
            [
                0x4c,
                0x8d,
                0x9c,
                0x24,
                a,
                b,
                c,
                d,
                0xe8,
                _,
                _,
                _,
                _,
                0x49,
                0x8b,
                0xe3,
                ..,
            ] if !allocated => {
                let bytes = i32::from_le_bytes([a, b, c, d]).checked_neg()?;
                builder.alloc(step(16)?, u32::try_from(bytes).ok()?);
                allocated = true;
                16
            }
            // mov rbp, rsp
            [0x48, 0x8b, 0xec, ..] | [0x48, 0x89, 0xe5, ..] if !framed => {
                builder.set_frame(step(3)?, 0)?;
                framed = true;
                3
            }
            // lea rbp, [rsp + disp]
            [0x48, 0x8d, 0x6c, 0x24, disp @ 0..=0x7f, ..] if !framed => {
                builder.set_frame(step(5)?, disp.into())?;
                framed = true;
                5
            }
            [0x48, 0x8d, 0xac, 0x24, a, b, c, d, ..] if !framed => {
                builder.set_frame(step(8)?, u32::from_le_bytes([a, b, c, d]))?;
                framed = true;
                8
            }
            _ if done == 0 && rest.starts_with(&OSR_ENTRY) => return None,
            _ => break,
        };
        done = step(len)?;
        rest = rest.get(len..)?;
        if !matches!(len, 3) || framed {
            end = done;
        }
    }
    let without_frame = builder.clone().without_frame().finish(end)?;
    let info = builder.finish(end)?;
    Some(Prologue {
        info,
        without_frame,
        framed,
    })
}

#[cfg(test)]
mod tests;
