//! The interpreter against gimli: every row of every FDE of every module of this process.

use super::*;
use crate::native::{Loaded, NativeModule};
use gimli::{BaseAddresses, CfaRule as Cfa2, EhFrame, LittleEndian, RegisterRule, UnwindSection};
use proptest::prelude::*;

/// gimli's row as a [`Rule`], or what it is instead.
fn oracle(
    row: &gimli::UnwindTableRow<usize>,
    section: &EhFrame<gimli::EndianSlice<'_, LittleEndian>>,
    ip: u64,
) -> Option<Result<Rule, Unsupported>> {
    let ra = row
        .register(gimli::Register(16))
        .unwrap_or(RegisterRule::Undefined);
    if matches!(ra, RegisterRule::Undefined) {
        return Some(Ok(Rule::Root));
    }
    // What takes an expression is judged by known forms only.
    let expression = |expression: &gimli::UnwindExpression<usize>| {
        expression.get(section).unwrap().0.slice().to_vec()
    };
    let (cfa, base) = match row.cfa() {
        Cfa2::RegisterAndOffset { register, offset } => {
            let offset32 = i32::try_from(*offset).ok()?;
            match register.0 {
                7 => (Cfa::Sp(offset32), *offset),
                6 => (Cfa::Bp(offset32), *offset),
                _ => return Some(Err(Unsupported)),
            }
        }
        Cfa2::Expression(e) => match expression(e)[..] {
            // breg6 -8; deref
            [0x76, 0x78, 0x06] => (Cfa::Slot(-8), 0),
            // The linker's PLT: breg7 8; breg16 0; lit15; and; lit10 or 11; ge; lit3; shl; plus
            [0x77, 8, 0x80, 0, 0x3f, 0x1a, lit, 0x2a, 0x33, 0x24, 0x22] => {
                let pushed = i32::from(ip & 15 >= u64::from(lit) - 0x30) * 8;
                (Cfa::Sp(8 + pushed), 0)
            }
            _ => return None,
        },
    };
    let RegisterRule::Offset(ra) = ra else {
        return None;
    };
    let bp = match row
        .register(gimli::Register(6))
        .unwrap_or(RegisterRule::SameValue)
    {
        RegisterRule::Undefined | RegisterRule::SameValue => Bp::Same,
        RegisterRule::Offset(at) if matches!(cfa, Cfa::Sp(_)) && base + at < 0 => Bp::Same,
        RegisterRule::Offset(at) => Bp::FromCfa(at as i32),
        RegisterRule::Expression(e) => match expression(&e)[..] {
            [0x76, 0] => match cfa {
                Cfa::Bp(base) => Bp::FromCfa(-base),
                _ => Bp::FromOwn(0),
            },
            _ => return None,
        },
        _ => return Some(Err(Unsupported)),
    };
    Some(Ok(Rule::Frame {
        cfa,
        ra: ra as i32,
        bp,
        assumed: false,
    }))
}

/// Rows that were compared, rows that the oracle does not judge, rows that do not pack.
#[derive(Default, Debug)]
struct Count {
    same: u32,
    unjudged: u32,
    unsupported: u32,
    unpacked: u32,
}

fn compare(module: &NativeModule, code: &NativeCode, count: &mut Count) {
    let (section, bases) = eh_frame(code);
    let mut entries = section.entries(&bases);
    let mut context = gimli::UnwindContext::new();
    let mut state = State::new();
    while let Ok(Some(entry)) = entries.next() {
        let gimli::CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
        let mut rows = fde.rows(&section, &bases, &mut context).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            let (start, end) = (
                row.start_address(),
                row.end_address().min(fde.end_address()),
            );
            for ip in [start, start + (end - start) / 2, end - 1] {
                if start >= end {
                    continue;
                }
                let ours = table_rule(code, ip, &mut state);
                if crate::x86::is_hijack_stub(code.bytes_at(fde.initial_address())) {
                    // The table is wrong there.
                    continue;
                }
                if fde.is_signal_trampoline() {
                    assert_eq!(ours, Ok(Some(Rule::SignalFrame)));
                    continue;
                }
                match oracle(row, &section, ip) {
                    None => count.unjudged += 1,
                    Some(Err(_)) => {
                        assert_eq!(ours, Err(Unsupported), "{} {ip:#x}", module.path.display());
                        count.unsupported += 1;
                    }
                    Some(Ok(theirs)) => {
                        let place = ip - module.bias;
                        assert_eq!(
                            ours,
                            Ok(Some(theirs)),
                            "{} {place:#x}",
                            module.path.display()
                        );
                        count.same += 1;
                        count.unpacked += u32::from(theirs.pack().is_none());
                    }
                }
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
        assert!(count.same >= 10, "{count:?}");
        // libgcc's eh_return, and hand-written code of the C library.
        assert!(
            count.unjudged + count.unsupported <= 30 + count.same / 1000,
            "{count:?}"
        );
        assert!(count.unpacked <= 3 + count.same / 1000, "{count:?}");
    }
}

proptest! {
    /// Broken tables give some answer.
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
        let code = NativeCode::of_bytes(bytes, 0x1000);
        let mut state = State::new();
        let _ = rule(&code, 0x1000 + address, true, &mut state);
    }

    /// A program of any bytes in a sound FDE.
    #[test]
    fn any_program_is_run_without_panic(
        program in proptest::collection::vec(any::<u8>(), 0..200),
        offset in 0u64..4096,
    ) {
        let code = NativeCode::of_bytes(fde_with_program(&program), 0x10000);
        let mut state = State::new();
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
    let mut bytes = fde_with_program(&[0x41, 0x0e, 16, 0x51, 0x0e, 120]);
    bytes.resize(0x10000, 0);
    bytes.extend([
        0x50, 0x55, 0x53, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54,
    ]);
    bytes.extend([0x52, 0x50, 0x48, 0x89, 0xe7]);
    let code = NativeCode::of_bytes(bytes, 0x10000);
    let at = |offset: u64| table_rule(&code, 0x20000 + offset, &mut State::new());
    for (offset, cfa) in [(0, 0), (1, 8), (18, 112)] {
        assert_eq!(at(offset), Ok(Some(Rule::HijackStub(cfa))), "at {offset}");
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
        // A register that is not tracked; a state that was never remembered; nesting too deep.
        (&[0x0c, 3, 16], 0, Err(Unsupported)),
        (&[0x0b], 0, Err(Unsupported)),
        (&[0x0a, 0x0a, 0x0a, 0x0a, 0x0a], 0, Err(Unsupported)),
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
        let code = NativeCode::of_bytes(fde_with_program(program), 0x10000);
        assert_eq!(
            table_rule(&code, 0x20000 + offset, &mut State::new()),
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
            let bytes = code.bytes_at(fde.initial_address());
            let Some(bytes) = bytes.get(..fde.len() as usize) else {
                continue;
            };
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
                described += u32::from(table_rule(&code, ip, &mut State::new()) == Ok(Some(LEAF)));
                wrong += u32::from(rule(&code, ip, true, &mut State::new()) != Ok(Some(LEAF)));
            }
        }
        println!(
            "{} rets {rets} right in the table {described}",
            module.path.display()
        );
        // The vdso, and what has no bytes.
        assert!(rets > 0 && wrong == 0, "{wrong} of {rets}");
    }
}

/// This process's modules. More libraries, as files, can be named for a look at a whole runtime:
/// SIDEWALK_TEST_ELF, paths joined by colons; `cargo xtask test` names its runtimes'.
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

/// The module's `.eh_frame` as gimli has it.
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
    let code = NativeCode::of_bytes(fde_with_program(&program), 0x10000);
    let mut state = State::new();
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
