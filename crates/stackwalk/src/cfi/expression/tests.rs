//! Compares both evaluators of DWARF expressions with gimli.

use super::*;
use gimli::{EvaluationResult, LittleEndian, Location};
use proptest::prelude::*;

/// A frame whose registers and memory are computed from a seed.
pub(in crate::cfi) struct MadeUp(pub(in crate::cfi) u64);

impl MadeUp {
    /// Returns a frame with the instruction pointer `ip`.
    pub(in crate::cfi) fn at(ip: u64) -> Self {
        MadeUp(ip << 1 | 1)
    }

    fn mixed(&self, what: u64) -> u64 {
        let mut x = what.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.0;
        x ^= x >> 31;
        x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^ x >> 29
    }
}

impl CfiFrame for MadeUp {
    fn register(&self, register: u64) -> Option<u64> {
        match register {
            RETURN_ADDRESS if self.0 & 1 != 0 => Some(self.0 >> 1),
            _ => (register < 17).then(|| self.mixed(register) & 0x7fff_ffff_fff8),
        }
    }
    fn word(&self, address: u64) -> Option<u64> {
        Some(self.mixed(address))
    }
}

/// Returns the value of an expression according to gimli.
pub(in crate::cfi) fn by_gimli(bytes: &[u8], first: Option<u64>, frame: &MadeUp) -> Option<u64> {
    let reader = gimli::EndianSlice::new(bytes, LittleEndian);
    let encoding = gimli::Encoding {
        address_size: 8,
        format: gimli::Format::Dwarf32,
        version: 5,
    };
    let mut evaluation = gimli::Expression(reader).evaluation(encoding);
    evaluation.set_max_iterations(STEPS as u32);
    if let Some(first) = first {
        evaluation.set_initial_value(first);
    }
    let mut result = evaluation.evaluate().ok()?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = frame.register(register.0.into())?;
                evaluation.resume_with_register(gimli::Value::Generic(value))
            }
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let into = address % 8;
                let value = match size {
                    8 => frame.word(address)?,
                    _ if into + u64::from(size) > 8 => return None,
                    _ => frame.word(address - into)? >> (into * 8) & ((1 << (size * 8)) - 1),
                };
                evaluation.resume_with_memory(gimli::Value::Generic(value))
            }
            _ => return None,
        }
        .ok()?;
    }
    match evaluation.result()[..] {
        [
            gimli::Piece {
                location: Location::Address { address },
                ..
            },
        ] => Some(address),
        _ => None,
    }
}

fn by_us(bytes: &[u8], first: Option<u64>, frame: &MadeUp) -> Option<u64> {
    let (code, span) = placed(bytes);
    evaluate(&code, span, first, frame, &mut [0; DEPTH])
}

fn placed(bytes: &[u8]) -> (NativeCode, Span) {
    // Bytes after the expression, which do not belong to it.
    let mut module = bytes.to_vec();
    module.extend([0x30; 16]);
    let span = Span {
        at: 0x1000,
        len: bytes.len() as u64,
    };
    (NativeCode::of_bytes(&module, 0x1000), span)
}

fn uleb(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = value as u8 & 0x7f;
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

fn sleb(mut value: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = value as u8 & 0x7f;
        value >>= 7;
        if (value == 0 && low & 0x40 == 0) || (value == -1 && low & 0x40 != 0) {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// Generates operations that push a value.
fn pushes() -> impl Strategy<Value = Vec<u8>> {
    let with = |op: u8, bytes: Vec<u8>| [vec![op], bytes].concat();
    let small = prop_oneof![any::<i64>(), -300i64..300];
    prop_oneof![
        (0x30u8..0x50).prop_map(|op| vec![op]),
        any::<u8>().prop_map(move |value| with(8, vec![value])),
        any::<u8>().prop_map(move |value| with(9, vec![value])),
        any::<[u8; 2]>().prop_map(move |value| with(0x0a, value.to_vec())),
        any::<[u8; 2]>().prop_map(move |value| with(0x0b, value.to_vec())),
        any::<[u8; 4]>().prop_map(move |value| with(0x0c, value.to_vec())),
        any::<[u8; 4]>().prop_map(move |value| with(0x0d, value.to_vec())),
        any::<[u8; 8]>().prop_map(move |value| with(0x0e, value.to_vec())),
        any::<[u8; 8]>().prop_map(move |value| with(0x0f, value.to_vec())),
        any::<u64>().prop_map(move |value| with(0x10, uleb(value))),
        small.clone().prop_map(move |value| with(0x11, sleb(value))),
        (0x70u8..0x81, small.clone()).prop_map(move |(op, value)| with(op, sleb(value))),
        (0u64..18, small).prop_map(move |(register, value)| {
            with(0x92, [uleb(register), sleb(value)].concat())
        }),
    ]
}

/// Generates operations that need values.
fn works() -> impl Strategy<Value = Vec<u8>> {
    let plain = [
        0x06, 0x12, 0x13, 0x14, 0x16, 0x17, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x21,
        0x22, 0x24, 0x25, 0x26, 0x27, 0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e, 0x96,
    ];
    prop_oneof![
        8 => proptest::sample::select(plain.to_vec()).prop_map(|op| vec![op]),
        1 => (0u8..4).prop_map(|below| vec![0x15, below]),
        1 => any::<u64>().prop_map(|value| [vec![0x23], uleb(value)].concat()),
        1 => (1u8..10).prop_map(|size| vec![0x94, size]),
    ]
}

fn jumps() -> impl Strategy<Value = Vec<u8>> {
    (any::<bool>(), -20i16..20).prop_map(|(always, by)| {
        let [low, high] = by.to_le_bytes();
        vec![if always { 0x2f } else { 0x28 }, low, high]
    })
}

/// Ten bytes have room for 70 bits: a number with more than 64 is invalid.
#[test]
fn a_number_of_more_than_64_bits_is_none() {
    let ten = |first: u8, tenth: u8| [&[first | 0x80][..], &[0x80; 8], &[tenth]].concat();
    let longer = [vec![0x80; 10], vec![0]].concat();
    let numbers = [0, 1, 2, 0x3f, 0x40, 0x7e, 0x7f, 0x80, 0x81].map(|tenth| ten(5, tenth));
    for number in numbers.into_iter().chain([longer]) {
        for op in [0x10, 0x11] {
            let bytes = [vec![op], number.clone()].concat();
            let frame = MadeUp(0);
            let ours = by_us(&bytes, None, &frame);
            assert_eq!(ours, by_gimli(&bytes, None, &frame), "{bytes:x?}");
        }
    }
    let least = [vec![0x11], ten(0, 0x7f)].concat();
    assert_eq!(by_us(&least, None, &MadeUp(0)), Some(1 << 63));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Valid operations in any order.
    #[test]
    fn the_evaluator_is_gimli(
        first in proptest::option::of(any::<u64>()),
        begin in proptest::collection::vec(pushes(), 0..5),
        rest in proptest::collection::vec(prop_oneof![2 => pushes(), 5 => works()], 0..10),
        seed: u64,
    ) {
        let bytes = [begin, rest].concat().concat();
        let frame = MadeUp(seed);
        prop_assert_eq!(by_us(&bytes, first, &frame), by_gimli(&bytes, first, &frame), "{:x?}", bytes);
    }

    /// The same with jumps: a loop that pushes values may exceed the depth of ours.
    #[test]
    fn the_evaluator_is_gimli_where_it_jumps(
        begin in proptest::collection::vec(pushes(), 1..6),
        rest in proptest::collection::vec(prop_oneof![2 => pushes(), 4 => works(), 2 => jumps()], 0..14),
        seed: u64,
    ) {
        let bytes = [begin, rest].concat().concat();
        let frame = MadeUp(seed);
        match (by_us(&bytes, Some(seed), &frame), by_gimli(&bytes, Some(seed), &frame)) {
            (None, Some(_)) => {}
            (ours, theirs) => prop_assert_eq!(ours, theirs, "{:x?}", bytes),
        }
    }

    /// Any bytes: never a panic, and never another value.
    #[test]
    fn any_bytes_are_evaluated_without_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
        first in proptest::option::of(any::<u64>()),
        seed: u64,
    ) {
        let frame = MadeUp(seed);
        if let Some(value) = by_us(&bytes, first, &frame) {
            prop_assert_eq!(Some(value), by_gimli(&bytes, first, &frame), "{:x?}", bytes);
        }
    }

    /// An expression that uses no register has the value that the evaluator gives for any
    /// registers.
    #[test]
    fn a_symbolic_value_is_the_evaluated_one(
        begin in proptest::collection::vec(pushes(), 0..3),
        rest in proptest::collection::vec(prop_oneof![pushes(), works()], 0..5),
        seed: u64,
    ) {
        let bytes = [begin, rest].concat().concat();
        let frame = MadeUp(seed);
        let (code, span) = placed(&bytes);
        let ip = frame.register(RETURN_ADDRESS).unwrap();
        let at = |register, offset: i64| Some(frame.register(register)?.wrapping_add_signed(offset));
        if let Some(value) = symbolic(&code, span, ip) {
            let value = match value {
                Value::Constant(value) => Some(value.cast_unsigned()),
                Value::Register(register, offset) => at(register, offset),
                Value::Word(register, offset, addend) => {
                    at(register, offset).map(|at| frame.word(at).unwrap().wrapping_add_signed(addend))
                }
            };
            prop_assert_eq!(by_us(&bytes, None, &frame), value, "{:x?}", bytes);
        }
    }
}

#[test]
fn an_endless_loop_ends() {
    // lit0; skip -4
    assert_eq!(by_us(&[0x30, 0x2f, 0xfc, 0xff], None, &MadeUp(0)), None);
    // skip -3
    assert_eq!(by_us(&[0x2f, 0xfd, 0xff], Some(1), &MadeUp(0)), None);
}

#[test]
fn more_values_than_there_is_room_for_are_refused() {
    let full = vec![0x31; DEPTH];
    assert_eq!(by_us(&full, None, &MadeUp(0)), Some(1));
    assert_eq!(by_us(&full, Some(2), &MadeUp(0)), None);
}
