//! Tests of each form of signature; `corpus` has the signatures of all methods.

use corprof::Token;
use corprof::il::{
    Convention, LocalSignature, MethodSignature, Primitive, ReadErrorKind, Type, TypeToken,
    read_compressed, read_compressed_signed, write_compressed, write_compressed_signed,
};

fn class(token: u32) -> TypeToken {
    TypeToken::new(Token(token)).unwrap()
}

/// The examples of ECMA-335 II.23.2.
#[test]
fn compressed_numbers() {
    let unsigned: [(u32, &[u8]); 8] = [
        (0x03, &[0x03]),
        (0x7f, &[0x7f]),
        (0x80, &[0x80, 0x80]),
        (0x2e57, &[0xae, 0x57]),
        (0x3fff, &[0xbf, 0xff]),
        (0x4000, &[0xc0, 0x00, 0x40, 0x00]),
        (0x1fff_ffff, &[0xdf, 0xff, 0xff, 0xff]),
        (0, &[0]),
    ];
    for (value, bytes) in unsigned {
        let mut out = Vec::new();
        assert!(write_compressed(value, &mut out));
        assert_eq!(out, bytes);
        assert_eq!(read_compressed(bytes), Ok((value, bytes.len())));
    }
    let signed: [(i32, &[u8]); 10] = [
        (3, &[0x06]),
        (-3, &[0x7b]),
        (64, &[0x80, 0x80]),
        (-64, &[0x01]),
        (8192, &[0xc0, 0x00, 0x40, 0x00]),
        (-8192, &[0x80, 0x01]),
        (268_435_455, &[0xdf, 0xff, 0xff, 0xfe]),
        (-268_435_456, &[0xc0, 0x00, 0x00, 0x01]),
        (-65, &[0xbf, 0x7f]),
        (-8193, &[0xdf, 0xff, 0xbf, 0xff]),
    ];
    for (value, bytes) in signed {
        let mut out = Vec::new();
        assert!(write_compressed_signed(value, &mut out));
        assert_eq!(out, bytes, "{value}");
        assert_eq!(read_compressed_signed(bytes), Ok((value, bytes.len())));
    }
    assert!(!write_compressed(1 << 29, &mut Vec::new()));
    assert!(!write_compressed_signed(1 << 28, &mut Vec::new()));
    let kind = |bytes: &[u8]| read_compressed(bytes).unwrap_err().kind;
    assert_eq!(kind(&[0xe0, 1, 2, 3]), ReadErrorKind::Number(0xe0));
    assert_eq!(kind(&[0xc0, 1, 2]), ReadErrorKind::Truncated);
}

#[test]
fn signatures_of_methods() {
    let int = || Type::INT32;
    let boxed = Box::new;
    let table: [(&[u8], MethodSignature); 12] = [
        (
            &[0x00, 0x00, 0x01],
            MethodSignature::new(Convention::Managed, Type::VOID, vec![]),
        ),
        // The probe's, as C.
        (
            &[0x01, 0x01, 0x0a, 0x08],
            MethodSignature::new(Convention::C, Type::INT64, vec![int()]),
        ),
        // Without a transition.
        (
            &[0x09, 0x01, 0x20, 0x15, 0x0a, 0x08],
            corprof::il::probe_signature(
                corprof::il::ProbeCall::CWithoutTransition(class(0x0100_0005)),
                Type::INT64,
                vec![int()],
            ),
        ),
        // T M<T, U>(U)
        (
            &[0x30, 0x02, 0x01, 0x1e, 0x00, 0x1e, 0x01],
            MethodSignature {
                has_this: true,
                generic_arity: Some(2),
                ..MethodSignature::new(
                    Convention::Managed,
                    Type::MethodParameter(0),
                    vec![Type::MethodParameter(1)],
                )
            },
        ),
        // ref readonly int of a property: a modifier before the reference.
        (
            &[0x20, 0x00, 0x1f, 0x0d, 0x10, 0x08],
            MethodSignature {
                has_this: true,
                ..MethodSignature::new(
                    Convention::Managed,
                    Type::Modified {
                        is_required: true,
                        modifier: class(0x0100_0003),
                        of: boxed(Type::ByRef(boxed(int()))),
                    },
                    vec![],
                )
            },
        ),
        // Dictionary<string, T>
        (
            &[0x00, 0x00, 0x15, 0x12, 0x09, 0x02, 0x0e, 0x13, 0x00],
            MethodSignature::new(
                Convention::Managed,
                Type::Generic {
                    is_value: false,
                    definition: class(0x0100_0002),
                    arguments: vec![Type::Primitive(Primitive::String), Type::TypeParameter(0)],
                },
                vec![],
            ),
        ),
        // int[,] with sizes 3 and lower bounds 0, -2
        (
            &[0x00, 0x00, 0x14, 0x08, 0x02, 0x01, 0x03, 0x02, 0x00, 0x7d],
            MethodSignature::new(
                Convention::Managed,
                Type::GeneralArray {
                    element: boxed(int()),
                    rank: 2,
                    sizes: vec![3],
                    lower_bounds: vec![0, -2],
                },
                vec![],
            ),
        ),
        // delegate* unmanaged[Cdecl]<int, void>
        (
            &[0x00, 0x01, 0x01, 0x1b, 0x01, 0x01, 0x01, 0x08],
            MethodSignature::new(
                Convention::Managed,
                Type::VOID,
                vec![Type::FunctionPointer(Box::new(MethodSignature::new(
                    Convention::C,
                    Type::VOID,
                    vec![int()],
                )))],
            ),
        ),
        // void*, int[][], a struct, TypedReference, nint
        (
            &[
                0x00, 0x05, 0x01, 0x0f, 0x01, 0x1d, 0x1d, 0x08, 0x11, 0x08, 0x16, 0x18,
            ],
            MethodSignature::new(
                Convention::Managed,
                Type::VOID,
                vec![
                    Type::Pointer(boxed(Type::VOID)),
                    Type::Array(boxed(Type::Array(boxed(int())))),
                    Type::ValueType(class(0x0200_0002)),
                    Type::Primitive(Primitive::TypedByRef),
                    Type::INT_PTR,
                ],
            ),
        ),
        // A call with one fixed argument of two.
        (
            &[0x05, 0x02, 0x01, 0x08, 0x41, 0x08],
            MethodSignature {
                sentinel: Some(1),
                ..MethodSignature::new(Convention::VarArg, Type::VOID, vec![int(), int()])
            },
        ),
        // An explicit `this`.
        (
            &[0x60, 0x01, 0x01, 0x12, 0x06],
            MethodSignature {
                has_this: true,
                explicit_this: true,
                ..MethodSignature::new(
                    Convention::Managed,
                    Type::VOID,
                    vec![Type::Class(class(0x1b00_0001))],
                )
            },
        ),
        // void modreq(IsExternalInit)
        (
            &[0x20, 0x01, 0x1f, 0x05, 0x01, 0x08],
            MethodSignature {
                has_this: true,
                ..MethodSignature::new(
                    Convention::Managed,
                    Type::Modified {
                        is_required: true,
                        modifier: class(0x0100_0001),
                        of: boxed(Type::VOID),
                    },
                    vec![int()],
                )
            },
        ),
    ];
    for (bytes, signature) in table {
        assert_eq!(MethodSignature::read(bytes).as_ref(), Ok(&signature));
        assert_eq!(signature.to_bytes(), bytes);
        for length in 0..bytes.len() {
            let error = MethodSignature::read(&bytes[..length]).unwrap_err();
            assert_eq!(error.kind, ReadErrorKind::Truncated);
        }
    }
    let init = MethodSignature::read(&[0x20, 0x01, 0x1f, 0x05, 0x01, 0x08]).unwrap();
    assert!(init.return_type.is_void());
}

#[test]
fn signatures_of_locals() {
    let bytes = [0x07, 0x03, 0x45, 0x10, 0x08, 0x1e, 0x00, 0x0e];
    let mut locals = LocalSignature::read(&bytes).unwrap();
    assert_eq!(
        locals.locals[0],
        Type::Pinned(Box::new(Type::ByRef(Box::new(Type::INT32))))
    );
    assert_eq!(locals.to_bytes(), bytes);
    assert_eq!(locals.append(Type::INT64), Some(3));
    assert_eq!(
        locals.to_bytes(),
        [0x07, 0x04, 0x45, 0x10, 0x08, 0x1e, 0x00, 0x0e, 0x0a]
    );
    assert_eq!(LocalSignature::default().to_bytes(), [0x07, 0x00]);
    // The count then needs a second byte.
    let mut many = LocalSignature {
        locals: vec![Type::INT32; 127],
    };
    many.append(Type::INT64);
    assert_eq!(many.to_bytes()[..3], [0x07, 0x80, 0x80]);
    assert_eq!(LocalSignature::read(&many.to_bytes()), Ok(many));
    let mut full = LocalSignature {
        locals: vec![Type::INT32; 0xffff],
    };
    assert_eq!(full.append(Type::INT32), None);
}

#[test]
fn bytes_that_are_no_signature() {
    use ReadErrorKind as Kind;
    let table: [(&[u8], usize, Kind); 9] = [
        (&[0x08, 0x00, 0x01], 0, Kind::Convention(0x08)),
        (&[0x80, 0x00, 0x01], 0, Kind::Convention(0x80)),
        (&[0x00, 0x00, 0x21], 2, Kind::ElementType(0x21)),
        (&[0x00, 0x00, 0x12, 0x03], 3, Kind::TypeToken(3)),
        (&[0x00, 0x00, 0x15, 0x08, 0x04], 3, Kind::ElementType(0x08)),
        (&[0x00, 0xff, 0x01], 1, Kind::Number(0xff)),
        (&[0x00, 0x00, 0x01, 0x00], 3, Kind::Trailing),
        (
            &[0x00, 0x01, 0x01, 0x41, 0x41, 0x08],
            4,
            Kind::ElementType(0x41),
        ),
        // 2²⁹ - 1 parameters without bytes.
        (&[0x00, 0xdf, 0xff, 0xff, 0xff, 0x01], 6, Kind::Truncated),
    ];
    for (bytes, offset, kind) in table {
        let error = MethodSignature::read(bytes).unwrap_err();
        assert_eq!((error.offset, error.kind), (offset, kind), "{bytes:02x?}");
    }
    let deep = [&[0x00, 0x00][..], &[0x0f; 100_000], &[0x01]].concat();
    let error = MethodSignature::read(&deep).unwrap_err();
    assert_eq!(error.kind, Kind::TooDeep);
    let functions = [0x1b, 0x00, 0x00].repeat(100_000);
    let error = MethodSignature::read(&[&[0x00, 0x00], &functions[..]].concat()).unwrap_err();
    assert_eq!(error.kind, Kind::TooDeep);
    assert_eq!(
        LocalSignature::read(&[0x06, 0x08]).unwrap_err().kind,
        Kind::Convention(0x06)
    );
    assert_eq!(TypeToken::new(Token(0x0600_0001)), None);
}
