//! Tests of calls and epilogues byte by byte, and with any bytes.

use super::*;
use crate::rule::{Bp, Cfa};
use proptest::prelude::*;

#[test]
fn only_a_direct_call_has_a_target() {
    let code = [0x90, 0xe8, 0xf0, 0xff, 0xff, 0xff];
    assert_eq!(direct_call_target(&code, 0x1000), Some(0xff0));
    assert_eq!(direct_call_target(&code[2..], 0x1000), None);
    assert_eq!(direct_call_target(&[0, 0, 0, 0xff, 0xd0], 0x1000), None);
}

#[test]
fn calls_are_recognised_by_their_whole_length() {
    let calls: &[&[u8]] = &[
        &[0xe8, 1, 2, 3, 4],
        &[0xff, 0xd0],
        &[0x41, 0xff, 0xd3],
        &[0xff, 0x15, 1, 2, 3, 4],
        &[0xff, 0x50, 0x30],
        &[0xff, 0x90, 1, 2, 3, 4],
        &[0xff, 0x14, 0x24],
        &[0xff, 0x54, 0x24, 8],
        &[0xff, 0x94, 0x24, 1, 2, 3, 4],
        &[0xff, 0x14, 0x25, 1, 2, 3, 4],
        &[0x48, 0xff, 0x10],
    ];
    for call in calls {
        let mut bytes = vec![0x90; 8];
        bytes.extend(*call);
        assert!(ends_in_call(&bytes[bytes.len() - 8..]), "{call:x?}");
        // iced decodes it as one instruction too, a call.
        let mut decoder = iced_x86::Decoder::new(64, call, 0);
        let instruction = decoder.decode();
        assert_eq!(
            (instruction.mnemonic(), instruction.len()),
            (iced_x86::Mnemonic::Call, call.len())
        );
    }
    let others: &[&[u8]] = &[
        &[],
        &[0xd0],
        &[0xff, 0xe0],
        &[0xff, 0x25, 1, 2, 3, 4],
        &[0xff, 0x15, 1, 2, 3],
        &[0xff, 0x50],
        &[0xff, 0x70, 0x30],
        &[0xe9, 1, 2, 3, 4],
        &[0x90, 0x90, 0x90],
    ];
    for other in others {
        assert!(!ends_in_call(other), "{other:x?}");
    }
}

fn sp(offset: i32, bp: Bp) -> Option<Rule> {
    Some(Rule::Frame {
        cfa: Cfa::Sp(offset),
        ra: -8,
        bp,
        assumed: false,
    })
}

fn bp(offset: i32, bp: Bp) -> Option<Rule> {
    Some(Rule::Frame {
        cfa: Cfa::Bp(offset),
        ra: -8,
        bp,
        assumed: false,
    })
}

#[test]
fn epilogues_say_where_the_return_address_is() {
    let saved = |at| Bp::FromCfa(at);
    let cases: &[(&[u8], Option<Rule>)] = &[
        (&[0xc3], sp(8, Bp::Same)),
        (&[0xf3, 0xc3], sp(8, Bp::Same)),
        (&[0xc2, 8, 0], sp(8, Bp::Same)),
        (&[0x5d, 0xc3], sp(16, saved(-16))),
        (&[0x5b, 0x5d, 0xc3], sp(24, saved(-16))),
        (&[0x5d, 0x41, 0x5c, 0xc3], sp(24, saved(-24))),
        (&[0xc9, 0xc3], bp(16, saved(-16))),
        (&[0x48, 0x83, 0xc4, 0x20, 0x5d, 0xc3], sp(48, saved(-16))),
        (&[0x48, 0x81, 0xc4, 0, 1, 0, 0, 0xc3], sp(264, Bp::Same)),
        (
            &[0x48, 0x8d, 0x65, 0xf0, 0x5b, 0x41, 0x5e, 0x5d, 0xc3],
            bp(16, saved(-16)),
        ),
        (
            &[0x48, 0x8d, 0xa5, 0, 0xff, 0xff, 0xff, 0x5d, 0xc3],
            bp(-240, saved(-16)),
        ),
        (&[0x48, 0x89, 0xec, 0x5d, 0xc3], bp(16, saved(-16))),
        (&[0xc5, 0xf8, 0x77, 0x5d, 0xc3], sp(16, saved(-16))),
        // Tail calls: out of the body, through a cell, marked by REX.W, after the frame was
        // removed.
        (&[0x5d, 0xe9, 0, 1, 0, 0], sp(16, saved(-16))),
        (&[0xe9, 0, 1, 0, 0], sp(8, Bp::Same)),
        (&[0xeb, 0x40], sp(8, Bp::Same)),
        (&[0xff, 0x25, 0, 0, 0, 0], sp(8, Bp::Same)),
        (&[0x48, 0xff, 0xe0], sp(8, Bp::Same)),
        (&[0x58, 0xff, 0xe0], sp(16, Bp::Same)),
        // No epilogue: a jump inside the body, a switch, anything else, an end without a ret.
        (&[0xe9, 2, 0, 0, 0], None),
        (&[0xeb, 0xfe], None),
        (&[0xff, 0xe0], None),
        (&[0x48, 0x8b, 0x07, 0xc3], None),
        (&[0x5c, 0xc3], None),
        (&[0x5d], None),
        (&[], None),
        // After `pop rbp` the register is no longer this frame's.
        (&[0x5d, 0xc9, 0xc3], None),
    ];
    let body = 0x1000..0x1010;
    for (code, expected) in cases {
        assert_eq!(epilogue(code, 0x1000, &body, true), *expected, "{code:x?}");
    }
    // Without tail calls a jump is never an epilogue.
    assert_eq!(
        epilogue(&[0x5d, 0xe9, 0, 1, 0, 0], 0x1000, &body, false),
        None
    );
    assert!(is_jump_after_pop(&[0x5d, 0xe9, 0, 1, 0, 0]));
    assert!(is_jump_after_pop(&[0x5d, 0xff, 0x25, 0, 0, 0, 0]));
    assert!(!is_jump_after_pop(&[0x5d, 0xff, 0xd0]) && !is_jump_after_pop(&[0x90, 0xe9]));
}

#[test]
fn the_hijack_stub_is_recognised() {
    let stub = |middle: &[u8]| {
        let mut code = vec![
            0x50, 0x55, 0x53, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54,
        ];
        code.extend(middle);
        code.extend([0x52, 0x50, 0x48, 0x89, 0xe7, 0x48, 0x8d]);
        code
    };
    assert!(is_hijack_stub(&stub(&[])) && is_hijack_stub(&stub(&[0x51])));
    assert!(!is_hijack_stub(&stub(&[0x90])) && !is_hijack_stub(&stub(&[])[1..]));
    assert!(!is_hijack_stub(&[]));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(
        code in proptest::collection::vec(any::<u8>(), 0..40),
        ip: u64,
        start in 0u64..1 << 47,
    ) {
        let body = start..start + 100;
        let _ = (epilogue(&code, ip, &body, true), epilogue(&code, ip, &body, false));
        let _ = (prologue(&code), ends_in_call(&code), is_jump_after_pop(&code), is_hijack_stub(&code));
    }

    /// Any sequence of the instructions that prologues are made of.
    #[test]
    fn any_prologue_gives_unwind_info_that_parses(
        parts in proptest::collection::vec(
            prop_oneof![
                Just(&[0x55u8][..]), Just(&[0x41, 0x56][..]), Just(&[0x53][..]),
                Just(&[0x48, 0x83, 0xec, 0x18][..]), Just(&[0x48, 0x81, 0xec, 0, 0, 9, 0][..]),
                Just(&[0x48, 0x8b, 0xec][..]), Just(&[0x48, 0x8d, 0x6c, 0x24, 0x20][..]),
                Just(&[0x48, 0x8d, 0xac, 0x24, 0, 8, 0, 0][..]), Just(&[0xc5, 0xf8, 0x77][..]),
            ],
            0..60,
        ),
    ) {
        if let Some(prologue) = prologue(&parts.concat()) {
            let info = crate::unwind_info::UnwindInfo::parse(&prologue.info);
            prop_assert_eq!(info.map(|info| info.len), Some(prologue.info.len()));
        }
    }
}
