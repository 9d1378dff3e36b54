//! The decoder against iced-x86: over the code of libraries, and over any bytes.

use super::{Effect, decode};
use crate::native;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
};
use std::path::Path;

/// The difference between our decoding of an instruction and iced-x86's.
fn fault(code: &[u8], theirs: &Instruction, infos: &mut InstructionInfoFactory) -> Option<String> {
    let ours = decode(code)?;
    if usize::from(ours.length) != theirs.len() {
        return Some(format!("{} bytes, not {}", ours.length, theirs.len()));
    }
    let target = i64::from(theirs.near_branch64() as i32) - theirs.len() as i64;
    let target = target as i32;
    let flow = match theirs.flow_control() {
        FlowControl::ConditionalBranch => ours.effect == Effect::Branch(target),
        FlowControl::UnconditionalBranch => ours.effect == Effect::Jump(target),
        FlowControl::Call if theirs.is_call_near() => ours.effect == Effect::Call(target),
        FlowControl::IndirectCall => {
            matches!(
                ours.effect,
                Effect::CallThrough | Effect::CallOut(_) | Effect::Stop
            )
        }
        FlowControl::IndirectBranch => matches!(
            ours.effect,
            Effect::JumpThrough | Effect::JumpOut | Effect::Stop
        ),
        FlowControl::Return => {
            matches!(ours.effect, Effect::Return | Effect::Stop) || code.contains(&0x0f)
        }
        _ => true,
    };
    if !flow {
        return Some(format!(
            "{:?}, not {:?} {target}",
            ours.effect,
            theirs.flow_control()
        ));
    }
    // Returns of the kernel's, in 0F, are none of a program.
    if theirs.flow_control() != FlowControl::Next {
        return None;
    }
    let mut written = |register: Register| {
        let info = infos.info(theirs);
        (info.used_registers().iter()).any(|used| {
            used.register().full_register() == register
                && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
        })
    };
    let (sp, bp) = (written(Register::RSP), written(Register::RBP));
    let moved = theirs.stack_pointer_increment();
    let right = match ours.effect {
        Effect::None | Effect::Fill | Effect::Address(_) | Effect::StoreBp(_) => !sp && !bp,
        Effect::Move(by) if moved != 0 => moved == by && !bp,
        Effect::Move(_) | Effect::SpFromBp(_) => sp && !bp,
        Effect::PushBp => moved == -8 && !bp,
        Effect::PopBp => moved == 8 && bp,
        Effect::Leave => sp && bp,
        Effect::LoadBp(_) | Effect::BpFromSp(_) | Effect::BpZero | Effect::BpLost => bp && !sp,
        // More is lost than need be: of few, and without harm.
        Effect::SpLost => sp && !bp,
        Effect::BothLost => sp,
        Effect::Stop => true,
        _ => false,
    };
    (!right).then(|| format!("{:?}, but sp {sp} ({moved}), bp {bp}", ours.effect))
}

/// Compares an instruction; whether both know it.
fn compare(code: &[u8], infos: &mut InstructionInfoFactory, lenient: bool) -> (usize, bool) {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let theirs = decoder.decode();
    if theirs.is_invalid() {
        return (1, false);
    }
    let wrong = fault(code, &theirs, infos);
    // Of any bytes: what only reads a register may count as writing it.
    let wrong = wrong.filter(|wrong| !lenient || !wrong.contains("Lost, but"));
    let bytes = &code[..theirs.len()];
    assert!(
        wrong.is_none(),
        "{:?} {bytes:02x?}: {}",
        theirs.code(),
        wrong.unwrap()
    );
    (theirs.len(), decode(code).is_some())
}

#[test]
fn the_code_of_libraries_is_read_as_iced_reads_it() {
    let mut infos = InstructionInfoFactory::new();
    let system = Path::new("/usr/lib/x86_64-linux-gnu");
    let (mut all, mut unknown) = (0u64, Vec::new());
    for name in ["libc.so.6", "libstdc++.so.6", "libcrypto.so.3"] {
        let (_, code) = native::open(&system.join(name)).expect(name);
        for (start, end) in crate::cfi::functions(&code) {
            let mut rest = code.bytes_at(start);
            rest = &rest[..rest.len().min((end - start) as usize)];
            while !rest.is_empty() {
                let (length, known) = compare(rest, &mut infos, true);
                all += 1;
                let decodes = !Decoder::new(64, rest, DecoderOptions::NONE)
                    .decode()
                    .is_invalid();
                if !known && decodes {
                    unknown.push(rest[..length].to_vec());
                }
                rest = &rest[length..];
            }
        }
    }
    unknown.sort();
    unknown.dedup();
    assert!(all > 100_000, "{all} instructions");
    assert!(unknown.is_empty(), "{unknown:02x?}");
}

#[test]
fn any_bytes_are_read_as_iced_reads_them_or_not_at_all() {
    let mut infos = InstructionInfoFactory::new();
    let mut random = fastrand::Rng::with_seed(1);
    let mut known = 0u32;
    for opcode in 0..=0xffffu16 {
        for prefix in [
            &[][..],
            &[0x66],
            &[0xf2],
            &[0xf3],
            &[0x48],
            &[0x41],
            &[0x40],
            &[0x0f],
            &[0x0f, 0x38],
            &[0x0f, 0x3a],
            &[0x66, 0x0f],
            &[0xf3, 0x48, 0x0f],
            &[0xc5],
            &[0xc4],
            &[0x62],
            &[0x8f, 0xe8, 0x78],
            &[0x8f, 0xe9],
            &[0x8f, 0xea, 0x78],
            &[0x62, 0xf1, 0x7c],
            &[0x62, 0xf3, 0x7d],
            &[0x62, 0xf5],
            &[0xc4, 0xe2],
            &[0xc4, 0xe3, 0x78],
        ] {
            let mut code = [0u8; 20];
            random.fill(&mut code);
            code[..prefix.len()].copy_from_slice(prefix);
            code[prefix.len()..][..2].copy_from_slice(&opcode.to_le_bytes());
            known += u32::from(compare(&code, &mut infos, true).1);
        }
    }
    assert!(known > 500_000, "{known} known");
}
