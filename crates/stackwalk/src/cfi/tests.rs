//! Compares the interpreter with gimli: every row of every FDE of every module of this process.

use super::expression::tests::MadeUp;
use super::*;
use crate::native::{Loaded, NativeModule};
use gimli::{BaseAddresses, CfaRule as Cfa2, EhFrame, LittleEndian, RegisterRule, UnwindSection};
use proptest::prelude::*;

/// Returns the caller that gimli's row leads to: CFA, return address, `rbp`. `None` if there is
/// none.
fn by_gimli(
    row: &gimli::UnwindTableRow<usize>,
    section: &EhFrame<gimli::EndianSlice<'_, LittleEndian>>,
    frame: &MadeUp,
) -> Option<(u64, u64, u64)> {
    let register = |register: gimli::Register| frame.register(register.0.into());
    let value = |expression: &gimli::UnwindExpression<usize>, first| {
        let expression = expression.get(section).unwrap();
        expression::tests::by_gimli(expression.0.slice(), first, frame)
    };
    let cfa = match row.cfa() {
        Cfa2::RegisterAndOffset {
            register: base,
            offset,
        } => register(*base)?.wrapping_add_signed(*offset),
        Cfa2::Expression(expression) => value(expression, None)?,
    };
    let saved = |number, missing: RegisterRule<usize>| {
        let number = gimli::Register(number);
        Some(match row.register(number).unwrap_or(missing) {
            RegisterRule::Undefined | RegisterRule::SameValue => register(number)?,
            RegisterRule::Offset(at) => frame.word(cfa.wrapping_add_signed(at))?,
            RegisterRule::ValOffset(at) => cfa.wrapping_add_signed(at),
            RegisterRule::Register(other) => register(other)?,
            RegisterRule::Expression(e) => frame.word(value(&e, Some(cfa))?)?,
            RegisterRule::ValExpression(e) => value(&e, Some(cfa))?,
            RegisterRule::Constant(value) => value,
            _ => return None,
        })
    };
    Some((
        cfa,
        saved(16, RegisterRule::Undefined)?,
        saved(6, RegisterRule::SameValue)?,
    ))
}

/// Returns the caller that a rule leads to.
fn by_rule(rule: Rule, frame: &MadeUp) -> Option<(u64, u64, u64)> {
    let Rule::Frame { cfa, ra, bp, .. } = rule else {
        return None;
    };
    let at =
        |register, offset: i32| Some(frame.register(register)?.wrapping_add_signed(offset.into()));
    let cfa = match cfa {
        Cfa::Sp(offset) => at(RSP, offset)?,
        Cfa::Bp(offset) => at(RBP, offset)?,
        Cfa::Slot(offset) => frame.word(at(RBP, offset)?)?,
        Cfa::Word(base, offset, add) => {
            let base = if base == Base::Sp { RSP } else { RBP };
            (frame.word(at(base, offset)?)?).wrapping_add_signed(add.into())
        }
        Cfa::Other(register, offset) => at(register.into(), offset)?,
    };
    let word = |offset: i32| frame.word(cfa.wrapping_add_signed(offset.into()));
    let bp = match bp {
        Bp::Same => frame.register(RBP)?,
        Bp::FromCfa(offset) => word(offset)?,
        Bp::FromOwn(offset) => frame.word(at(RBP, offset)?)?,
    };
    Some((cfa, word(ra)?, bp))
}

/// Number of compared rows: by packed rules, by rules that do not pack, by evaluation, and rows
/// that neither gimli nor this crate can evaluate.
#[derive(Default, Debug)]
struct Count {
    packed: u32,
    unpacked: u32,
    evaluated: u32,
    roots: u32,
    signals: u32,
    unknown: u32,
}

fn compare(module: &NativeModule, code: &NativeCode, count: &mut Count) {
    let (section, bases) = eh_frame(code);
    let mut entries = section.entries(&bases);
    let mut context = gimli::UnwindContext::new();
    let mut state = RowProgram::new();
    while let Ok(Some(entry)) = entries.next() {
        let gimli::CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
        let mut body = [0; 32];
        let body = code.code_at(fde.initial_address(), &mut body);
        if crate::x86::is_hijack_stub(body) || crate::x86::restores_context(body) {
            // The table is wrong there.
            continue;
        }
        let mut rows = fde.rows(&section, &bases, &mut context).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            let (start, end) = (
                row.start_address(),
                row.end_address().min(fde.end_address()),
            );
            for ip in [start, start + (end - start) / 2, end.wrapping_sub(1)] {
                if start >= end {
                    continue;
                }
                let place = format!("{} {:#x}", module.path.display(), ip - module.bias);
                let rule = table_rule(code, ip, &mut state).unwrap().unwrap();
                assert!(state.until > ip && state.until <= end, "{place}");
                let ra = row.register(gimli::Register(16));
                if matches!(ra, None | Some(RegisterRule::Undefined)) {
                    assert_eq!(rule, Rule::Root, "{place}");
                    count.roots += 1;
                    continue;
                }
                let frame = MadeUp::at(ip);
                let theirs = by_gimli(row, &section, &frame);
                let evaluated = evaluate(code, &frame, &mut state);
                let ours = evaluated.map(|caller| (caller.cfa, caller.ip, caller.bp));
                assert_eq!(ours, theirs, "{place}");
                assert_eq!(
                    evaluated.map(|caller| caller.exact),
                    evaluated.map(|_| fde.is_signal_trampoline()),
                );
                if rule == Rule::SignalFrame {
                    // The walk reads them here.
                    let sp = frame.register(RSP).unwrap();
                    let saved = |register| frame.word(sp + 40 + 8 * register as u64).unwrap();
                    let context = [libc::REG_RSP, libc::REG_RIP, libc::REG_RBP].map(saved);
                    assert_eq!(Some(context.into()), theirs, "{place}");
                    count.signals += 1;
                    continue;
                }
                if rule == Rule::Evaluate {
                    count.evaluated += u32::from(theirs.is_some());
                    count.unknown += u32::from(theirs.is_none());
                    continue;
                }
                let mut ours = by_rule(rule, &frame);
                // A slot below the stack pointer was popped, which gcc does not record.
                if let (
                    Some(RegisterRule::Offset(at)),
                    Cfa2::RegisterAndOffset { register, offset },
                ) = (row.register(gimli::Register(6)), row.cfa())
                    && register.0 == 7
                    && offset + at < 0
                {
                    assert!(matches!(rule, Rule::Frame { bp: Bp::Same, .. }), "{place}");
                    ours = ours.map(|(cfa, ra, _)| (cfa, ra, theirs.unwrap().2));
                }
                assert_eq!(ours, theirs, "{place} {rule:?}");
                count.packed += u32::from(rule.pack().is_some());
                count.unpacked += u32::from(rule.pack().is_none());
            }
        }
    }
}

#[test]
fn every_row_is_what_gimli_says() {
    for (module, code) in modules() {
        let mut count = Count::default();
        compare(&module, &code, &mut count);
        println!("{} {count:?}", module.path.display());
        assert!(count.packed >= 10, "{count:?}");
        // Rules that do not pack are computed anew by each walk.
        assert!(
            count.unpacked + count.evaluated <= 30 + count.packed / 1000,
            "{count:?}"
        );
        assert_eq!(count.unknown, 0, "{count:?}");
    }
}

proptest! {
    /// Broken tables give some result without a panic.
    #[test]
    fn any_bytes_are_read_without_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 64..600),
        header in any::<bool>(),
        fde in 0u8..64,
        address in 0u64..1200,
    ) {
        if header {
            // A header whose table names an FDE inside.
            bytes[..12].copy_from_slice(&[1, 0x1b, 0x03, 0x3b, 0, 0, 0, 0, 1, 0, 0, 0]);
            bytes[12..20].copy_from_slice(&[0, 0, 0, 0, fde, 0, 0, 0]);
        }
        let code = NativeCode::of_bytes(&bytes, 0x1000);
        let mut state = RowProgram::new();
        let _ = rule(&code, 0x1000 + address, true, &mut state);
    }

    /// A program of any bytes in a sound FDE.
    #[test]
    fn any_program_is_run_without_panic(
        program in proptest::collection::vec(any::<u8>(), 0..200),
        offset in 0u64..4096,
    ) {
        let code = NativeCode::of_bytes(&fde_with_program(&program), 0x10000);
        let mut state = RowProgram::new();
        let _ = rule(&code, 0x20000 + offset, true, &mut state);
    }
}

/// A module at 0x10000 whose table has one FDE for 0x20000..0x21000 with this program.
fn fde_with_program(program: &[u8]) -> Vec<u8> {
    table(0x10000, b"zR", &[(0x20000, 0x1000, program)])
}

/// An `.eh_frame_hdr` at `avma` and, behind it, the CIE and the FDEs it names, sorted by start.
pub(crate) fn table(avma: u64, letters: &[u8], fdes: &[(u64, u32, &[u8])]) -> Vec<u8> {
    let word = |bytes: &mut Vec<u8>, value: u32| bytes.extend(value.to_le_bytes());
    let mut cie = vec![0, 0, 0, 0, 1];
    cie.extend(letters);
    // Code align 1, data align −8, return address 16, one byte of augmentation: pcrel sdata4.
    cie.extend([0, 1, 0x78, 16, 1, 0x1b]);
    // def_cfa rsp+8; offset ra at cfa-8.
    cie.extend([0x0c, 7, 8, 0x90, 1]);
    let cie_at = 12 + 8 * fdes.len();
    let mut at = cie_at + 4 + cie.len();
    let (mut index, mut entries) = (Vec::new(), Vec::new());
    for (start, len, program) in fdes {
        word(&mut index, (start - avma) as u32);
        word(&mut index, at as u32);
        word(&mut entries, 13 + program.len() as u32);
        word(&mut entries, (at + 4 - cie_at) as u32);
        word(&mut entries, (start - avma) as u32 - (at + 8) as u32);
        word(&mut entries, *len);
        entries.push(0);
        entries.extend(*program);
        at += 17 + program.len();
    }
    let mut bytes = vec![1, 0x1b, 0x03, 0x3b];
    word(&mut bytes, cie_at as u32 - 4);
    word(&mut bytes, fdes.len() as u32);
    bytes.extend(index);
    word(&mut bytes, cie.len() as u32);
    bytes.extend(cie);
    bytes.extend(entries);
    bytes
}

/// The stub that hijacked methods return to pushes the return address itself.
#[test]
fn the_return_address_of_the_hijack_stub_is_in_its_first_push() {
    // def_cfa_offset 16 after the first push, 120 after all
    let body = [
        0x50, 0x55, 0x53, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0x52, 0x50, 0x48, 0x89,
        0xe7,
    ];
    let code = function(&[0x41, 0x0e, 16, 0x51, 0x0e, 120], &body);
    let at = |offset: u64| table_rule(&code, 0x20000 + offset, &mut RowProgram::new());
    for (offset, cfa) in [(0, 0), (1, 8), (18, 112)] {
        assert_eq!(at(offset), Ok(Some(Rule::HijackStub(cfa))), "at {offset}");
    }
}

/// A module with one function at 0x20000: its table, its code.
fn function(program: &[u8], body: &[u8]) -> NativeCode {
    let mut bytes = fde_with_program(program);
    bytes.resize(0x10000, 0);
    bytes.extend(body);
    NativeCode::of_bytes(&bytes, 0x10000)
}

/// `RtlRestoreContext` of .NET 9 and 10, whose table takes `rbp` for its frame pointer.
#[test]
fn a_context_is_restored_in_a_frame_of_one_word() {
    let body = [
        0x55, // push rbp
        0x49, 0x89, 0xfa, 0x49, 0x89, 0xf3, // mov r10, rdi; mov r11, rsi
        0x41, 0xf6, 0x42, 0x30, 0x02, // test byte ptr [r10 + 0x30], 2
        0x49, 0x8b, 0xaa, 0xa0, 0, 0, 0, // mov rbp, [r10 + 0xa0]
        0x49, 0x8b, 0xa2, 0x98, 0, 0, 0, // mov rsp, [r10 + 0x98]
        0xff, 0xe0, // jmp rax
        0x5d, 0xc3, // pop rbp; ret
    ];
    // At 1: rbp at cfa-16, and the CFA would be rbp + 0.
    let code = function(&[0x41, 0x86, 2, 0x0c, 6, 0], &body);
    let frame = |cfa, bp| Rule::Frame {
        cfa: Cfa::Sp(cfa),
        ra: -8,
        bp,
        assumed: false,
    };
    let pushed = frame(16, Bp::FromCfa(-16));
    for (at, expected) in [
        (0, LEAF),
        (1, pushed),
        (7, pushed),
        (12, pushed),
        (19, pushed),
        (26, Rule::Landing(0)),
        (28, frame(16, Bp::FromCfa(-16))),
        (29, LEAF),
    ] {
        let found = rule(&code, 0x20000 + at, true, &mut RowProgram::new());
        assert_eq!(found, Ok(Some(expected)), "at {at}");
    }
    // A correct table is used as it is.
    let code = function(&[0x41, 0x0e, 16, 0x86, 2], &body);
    let found = rule(&code, 0x20012, true, &mut RowProgram::new());
    assert_eq!(found, Ok(Some(pushed)));
}

/// A jump behind `pop rbp`, whose table does not describe the epilogue; and jumps behind the same
/// byte in another instruction, as libclrjit of .NET 11 has one.
#[test]
fn a_jump_is_behind_a_pop_if_the_pop_is_an_instruction() {
    // At 1: CFA rsp+16, rbp at CFA−16; at 4: CFA rbp+16.
    let program = [0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6];
    let framed = Rule::Frame {
        cfa: Cfa::Bp(16),
        ra: -8,
        bp: Bp::FromCfa(-16),
        assumed: false,
    };
    // As many instructions before it as windows end within.
    let long = [0x48, 0xc7, 0xc0, 0, 0, 0, 0x5d].repeat(100);
    for (before, expected) in [
        (&[0x5d][..], LEAF),
        // pop r13; mov eax, imm; mov rax, imm
        (&[0x41, 0x5d], framed),
        (&[0xb8, 0, 0, 0, 0x5d], framed),
        (&[0x48, 0xc7, 0xc0, 0, 0, 0, 0x5d], framed),
        (&long, framed),
        (&[&long[..], &[0x5d]].concat(), LEAF),
    ] {
        for jump in [&[0xe9, 0, 1, 0, 0][..], &[0xff, 0xe0]] {
            let body = [&[0x55, 0x48, 0x89, 0xe5], before, jump].concat();
            let at = 0x20000 + 4 + before.len() as u64;
            let found = rule(&function(&program, &body), at, true, &mut RowProgram::new());
            assert_eq!(found, Ok(Some(expected)), "{body:x?}");
        }
    }
}

/// The last jump of code that continues in another frame: its table still describes the removed
/// frame.
#[test]
fn the_last_jump_of_an_unwinder_lands_in_another_frame() {
    // def_cfa rbp+16; offset rbp at cfa-16.
    const FRAMED: [u8; 5] = [0x0c, 6, 16, 0x86, 2];
    // mov rsp, rcx; pop rcx; jmp rcx
    let libgcc: &[u8] = &[0x48, 0x89, 0xcc, 0x59, 0xff, 0xe1];
    // mov rsp, [r10 + 0x98]; jmp rax
    let runtime: &[u8] = &[0x49, 0x8b, 0xa2, 0x98, 0, 0, 0, 0xff, 0xe0];
    for (body, at, register) in [(libgcc, 4, 2), (runtime, 7, 0)] {
        let code = function(&FRAMED, body);
        let found = |at, exact| rule(&code, 0x20000 + at, exact, &mut RowProgram::new());
        assert_eq!(
            found(at, true),
            Ok(Some(Rule::Landing(register))),
            "{body:x?}"
        );
        assert!(
            !matches!(found(at, false), Ok(Some(Rule::Landing(_)))),
            "a return address: {body:x?}"
        );
        // The same instruction after any other one is an ordinary jump.
        let mut other = body.to_vec();
        other[0] ^= 1;
        let code = function(&FRAMED, &other);
        let found = rule(&code, 0x20000 + at, true, &mut RowProgram::new());
        assert!(
            !matches!(found, Ok(Some(Rule::Landing(_)))),
            "{other:x?}: {found:?}"
        );
    }
}

#[test]
fn rows_of_hand_made_programs() {
    let frame = |cfa, bp| {
        Ok(Some(Rule::Frame {
            cfa,
            ra: -8,
            bp,
            assumed: false,
        }))
    };
    type Case = (&'static [u8], u64, Result<Option<Rule>, Unsupported>);
    let cases: &[Case] = &[
        (&[], 0, frame(Cfa::Sp(8), Bp::Same)),
        (&[], 0xfff, frame(Cfa::Sp(8), Bp::Same)),
        (&[], 0x1000, Ok(None)),
        // push rbp at 1
        (&[0x41, 0x0e, 16, 0x86, 2], 0, frame(Cfa::Sp(8), Bp::Same)),
        (
            &[0x41, 0x0e, 16, 0x86, 2],
            1,
            frame(Cfa::Sp(16), Bp::FromCfa(-16)),
        ),
        // mov rbp, rsp at 4
        (
            &[0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6],
            4,
            frame(Cfa::Bp(16), Bp::FromCfa(-16)),
        ),
        // A popped register keeps its slot in the table.
        (
            &[0x0e, 16, 0x86, 2, 0x41, 0x0e, 8],
            1,
            frame(Cfa::Sp(8), Bp::Same),
        ),
        // remember, change, restore
        (
            &[0x0a, 0x0e, 64, 0x41, 0x0b],
            0,
            frame(Cfa::Sp(64), Bp::Same),
        ),
        (
            &[0x0a, 0x0e, 64, 0x41, 0x0b],
            1,
            frame(Cfa::Sp(8), Bp::Same),
        ),
        // The return address is undefined.
        (&[0x07, 16], 5, Ok(Some(Rule::Root))),
        // CFA = *(rbp - 8), rbp at *rbp
        (
            &[0x0f, 3, 0x76, 0x78, 0x06, 0x10, 6, 2, 0x76, 0],
            0,
            frame(Cfa::Slot(-8), Bp::FromOwn(0)),
        ),
        // A state that was never remembered; nesting too deep.
        (&[0x0b], 0, Err(Unsupported)),
        (&[0x0a, 0x0a, 0x0a, 0x0a, 0x0a], 0, Err(Unsupported)),
        // Another register: an assembler's prologue; the dynamic linker's trampoline.
        (&[0x0c, 0, 8], 0, frame(Cfa::Other(0, 8), Bp::Same)),
        (&[0x0c, 3, 16], 0, frame(Cfa::Other(3, 16), Bp::Same)),
        // OpenSSL: the caller's stack pointer is at rsp + 152, one word below the CFA.
        (
            &[0x0f, 6, 0x77, 0x98, 0x01, 0x06, 0x23, 8, 0x86, 3],
            0,
            frame(Cfa::Word(Base::Sp, 152, 8), Bp::FromCfa(-24)),
        ),
        (
            &[0x0f, 6, 0x76, 0x98, 0x01, 0x06, 0x23, 8],
            0,
            frame(Cfa::Word(Base::Bp, 152, 8), Bp::Same),
        ),
        // … the same at rsp + 8 + 8 × r9.
        (
            &[0x0f, 10, 0x77, 8, 0x79, 0, 0x38, 0x1e, 0x22, 0x06, 0x23, 8],
            0,
            Ok(Some(Rule::Evaluate)),
        ),
        // rbp is an expression's value; it is in another register.
        (&[0x16, 6, 2, 0x76, 8], 0, Ok(Some(Rule::Evaluate))),
        (&[0x09, 6, 3], 0, Ok(Some(Rule::Evaluate))),
        // The linker's PLT, before and after the push.
        (
            &[
                0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22,
            ],
            0x10a,
            frame(Cfa::Sp(8), Bp::Same),
        ),
        (
            &[
                0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22,
            ],
            0x10b,
            frame(Cfa::Sp(16), Bp::Same),
        ),
    ];
    for (program, offset, expected) in cases {
        let code = NativeCode::of_bytes(&fde_with_program(program), 0x10000);
        assert_eq!(
            table_rule(&code, 0x20000 + offset, &mut RowProgram::new()),
            *expected,
            "{program:x?} {offset}"
        );
    }
}

/// At every `ret` that a linear sweep finds, the return address is on top of the stack, whatever
/// the table says.
#[test]
fn the_return_address_of_every_ret_is_on_top() {
    use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
    for (module, code) in modules() {
        let (section, bases) = eh_frame(&code);
        let mut entries = section.entries(&bases);
        let (mut rets, mut described, mut wrong) = (0, 0, 0);
        while let Ok(Some(entry)) = entries.next() {
            let gimli::CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
            let mut bytes = vec![0; fde.len() as usize];
            let bytes = code.code_at(fde.initial_address(), &mut bytes);
            let mut decoder =
                Decoder::with_ip(64, bytes, fde.initial_address(), DecoderOptions::NONE);
            let mut instruction = Instruction::default();
            while decoder.can_decode() {
                decoder.decode_out(&mut instruction);
                if instruction.is_invalid() {
                    break;
                }
                if instruction.mnemonic() != Mnemonic::Ret {
                    continue;
                }
                let ip = instruction.ip();
                rets += 1;
                described +=
                    u32::from(table_rule(&code, ip, &mut RowProgram::new()) == Ok(Some(LEAF)));
                wrong += u32::from(rule(&code, ip, true, &mut RowProgram::new()) != Ok(Some(LEAF)));
            }
        }
        println!(
            "{} rets {rets} right in the table {described}",
            module.path.display()
        );
        // The vdso, and modules without bytes, have no `ret`.
        assert!(rets > 0 && wrong == 0, "{wrong} of {rets}");
    }
}

/// This process's modules. The variable SIDEWALK_TEST_ELF (paths joined by colons) adds library
/// files, for a check of a whole runtime. `cargo xtask test` sets its runtimes'.
fn modules() -> impl Iterator<Item = (NativeModule, NativeCode)> {
    let (modules, gone) = Loaded::new().refresh();
    assert!(
        gone.is_empty() && modules.len() >= 4,
        "program, libc, ld.so, vdso"
    );
    let named = std::env::var_os("SIDEWALK_TEST_ELF").unwrap_or_default();
    let named: Vec<_> = std::env::split_paths(&named)
        .map(|path| path.to_owned())
        .collect();
    let named = named
        .into_iter()
        .filter(|path| !path.as_os_str().is_empty());
    modules
        .into_iter()
        .chain(named.map(|path| crate::native::open(&path).unwrap()))
}

/// Returns the module's `.eh_frame` in gimli's form.
fn eh_frame(code: &NativeCode) -> (EhFrame<gimli::EndianSlice<'_, LittleEndian>>, BaseAddresses) {
    let header = Cursor::new(code, code.eh_frame_hdr);
    let bases = BaseAddresses::default().set_eh_frame_hdr(code.eh_frame_hdr);
    let header = gimli::EhFrameHdr::new(header.bytes, LittleEndian)
        .parse(&bases, 8)
        .unwrap();
    let gimli::Pointer::Direct(eh_frame_at) = header.eh_frame_ptr() else {
        panic!()
    };
    let section = EhFrame::new(code.bytes_at(eh_frame_at), LittleEndian);
    (section, bases.set_eh_frame(eh_frame_at))
}

/// `UMThunkStub` of .NET Core 3.1: a rare path behind the `ret` has the row of the `ret`.
#[test]
fn a_call_behind_the_ret_has_the_frame_of_its_function() {
    // push rbp; mov rbp, rsp; …; pop rbp; ret; and code behind it.
    let program = [
        0x41, 0x0e, 16, 0x86, 2, // at 1: CFA rsp+16, rbp at CFA−16
        0x43, 0x0d, 6, // at 4: CFA rbp+16
        0x50, 0x0c, 7, 8, 0xc6, // at 20: CFA rsp+8, rbp as it was
    ];
    let code = NativeCode::of_bytes(&fde_with_program(&program), 0x10000);
    let mut state = RowProgram::new();
    let mut at = |offset: u64, exact| {
        rule(&code, 0x20000 + offset, exact, &mut state)
            .unwrap()
            .unwrap()
    };
    let framed = Rule::Frame {
        cfa: Cfa::Bp(16),
        ra: -8,
        bp: Bp::FromCfa(-16),
        assumed: false,
    };
    assert_eq!(at(10, false), framed);
    assert_eq!(at(40, false), framed, "a return address");
    assert_eq!(at(40, true), LEAF, "an instruction that may be the ret");
    assert_eq!(at(0, false), LEAF, "no frame was made before");
}
