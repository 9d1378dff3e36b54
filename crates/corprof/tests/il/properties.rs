//! Property tests of IL: random bytes and random instructions, as bodies and signatures.

use corprof::Token;
use corprof::il::{
    Body, Clause, Convention, Handler, Instruction, Label, LocalSignature, MethodSignature, Opcode,
    Operand, OperandKind, Primitive, Type, TypeToken,
};
use proptest::prelude::*;

use crate::corpus::{check_wrapped, probes, same_clauses, same_instructions};

/// An instruction whose targets are line numbers.
#[derive(Clone, Debug)]
struct Made {
    opcode: Opcode,
    value: u64,
    targets: Vec<prop::sample::Index>,
}

fn made() -> impl Strategy<Value = Made> {
    let targets = prop::collection::vec(any::<prop::sample::Index>(), 1..5);
    // A fifth are branches, so that enough short branches must become long.
    let every = prop::sample::select(Opcode::ALL);
    let short: Vec<Opcode> = Opcode::ALL
        .iter()
        .copied()
        .filter(|opcode| opcode.operand() == OperandKind::ShortTarget)
        .collect();
    let opcode = prop_oneof![4 => every, 1 => prop::sample::select(short)];
    (opcode, any::<u64>(), targets).prop_map(|(opcode, value, targets)| Made {
        opcode,
        value,
        targets,
    })
}

impl Made {
    fn instruction(&self, labels: &[Label]) -> Instruction {
        let value = self.value;
        let operand = match self.opcode.operand() {
            OperandKind::None => Operand::None,
            OperandKind::Int8 => Operand::Int8(value as i8),
            OperandKind::UInt8 => Operand::UInt8(value as u8),
            OperandKind::Int32 => Operand::Int32(value as i32),
            OperandKind::Int64 => Operand::Int64(value as i64),
            OperandKind::Float32 => Operand::Float32(value as u32),
            OperandKind::Float64 => Operand::Float64(value),
            OperandKind::ShortVariable => Operand::Variable(u16::from(value as u8)),
            OperandKind::Variable => Operand::Variable(value as u16),
            OperandKind::Token => Operand::Token(Token(value as u32)),
            OperandKind::ShortTarget | OperandKind::Target => {
                Operand::Target(*self.targets[0].get(labels))
            }
            OperandKind::Switch => {
                let targets = self.targets.iter().map(|target| *target.get(labels));
                Operand::Switch(targets.collect())
            }
        };
        Instruction::new(self.opcode, operand).unwrap()
    }
}

type MadeClause = (u8, u32, [prop::sample::Index; 5]);

fn body() -> impl Strategy<Value = Body> {
    let clause = (0..4u8, any::<u32>(), any::<[prop::sample::Index; 5]>());
    (
        prop::collection::vec(made(), 1..200),
        prop::collection::vec(clause, 0..25),
        any::<(u16, bool, bool, bool)>(),
        any::<Option<u32>>(),
    )
        .prop_map(|(code, clauses, header, locals)| {
            let mut body = Body::new();
            let nop = Instruction::plain(Opcode::NOP).unwrap();
            let labels: Vec<Label> = code.iter().map(|_| body.push(nop.clone())).collect();
            for (line, made) in body.lines.iter_mut().zip(&code) {
                line.instruction = made.instruction(&labels);
            }
            (
                body.max_stack,
                body.init_locals,
                body.fat_header,
                body.fat_clauses,
            ) = header;
            body.locals = locals.filter(|token| *token != 0).map(Token);
            let bounds = [&labels[..], &[Label::END]].concat();
            body.clauses = clauses
                .iter()
                .map(|made| clause_of(made, &bounds))
                .collect();
            body
        })
}

fn clause_of((kind, token, at): &MadeClause, bounds: &[Label]) -> Clause {
    let [a, b, c, d, filter] = at.map(|index| index.index(bounds.len()));
    let bound = |index: usize| bounds[index];
    Clause {
        handler: match kind {
            0 => Handler::Catch(Token(*token)),
            1 => Handler::Filter(bound(filter)),
            2 => Handler::Finally,
            _ => Handler::Fault,
        },
        try_start: bound(a.min(b)),
        try_end: bound(a.max(b)),
        handler_start: bound(c.min(d)),
        handler_end: bound(c.max(d)),
    }
}

fn type_token() -> impl Strategy<Value = TypeToken> {
    let table = prop::sample::select(&[0x01u32, 0x02, 0x1b]);
    (table, 0..0x100_0000u32)
        .prop_map(|(table, row)| TypeToken::new(Token(table << 24 | row)).unwrap())
}

fn a_type() -> impl Strategy<Value = Type> {
    let number = || 0..0x2000_0000u32;
    let leaf = prop_oneof![
        prop::sample::select(&[
            Primitive::Void,
            Primitive::Char,
            Primitive::Float64,
            Primitive::String,
            Primitive::TypedByRef,
            Primitive::UIntPtr,
            Primitive::Object,
        ])
        .prop_map(Type::Primitive),
        type_token().prop_map(Type::Class),
        type_token().prop_map(Type::ValueType),
        number().prop_map(Type::TypeParameter),
        number().prop_map(Type::MethodParameter),
    ];
    leaf.prop_recursive(6, 40, 5, move |inner| {
        let boxed = || inner.clone().prop_map(Box::new);
        let list = prop::collection::vec(inner.clone(), 0..5);
        prop_oneof![
            boxed().prop_map(Type::Pointer),
            boxed().prop_map(Type::ByRef),
            boxed().prop_map(Type::Array),
            boxed().prop_map(Type::Pinned),
            (any::<bool>(), type_token(), boxed()).prop_map(|(is_required, modifier, of)| {
                Type::Modified {
                    is_required,
                    modifier,
                    of,
                }
            }),
            (any::<bool>(), type_token(), list.clone()).prop_map(
                |(is_value, definition, arguments)| Type::Generic {
                    is_value,
                    definition,
                    arguments,
                }
            ),
            (
                boxed(),
                number(),
                prop::collection::vec(number(), 0..3),
                prop::collection::vec(-0x1000_0000..0x1000_0000i32, 0..3),
            )
                .prop_map(|(element, rank, sizes, lower_bounds)| Type::GeneralArray {
                    element,
                    rank,
                    sizes,
                    lower_bounds,
                }),
            (inner.clone(), list).prop_map(|(returns, parameters)| {
                let signature = MethodSignature::new(Convention::Unmanaged, returns, parameters);
                Type::FunctionPointer(Box::new(signature))
            }),
        ]
    })
}

fn method_signature() -> impl Strategy<Value = MethodSignature> {
    let convention = prop::sample::select(&[
        Convention::Managed,
        Convention::C,
        Convention::StdCall,
        Convention::VarArg,
        Convention::Unmanaged,
    ]);
    (
        (convention, any::<[bool; 2]>(), any::<Option<u8>>()),
        a_type(),
        prop::collection::vec(a_type(), 0..5),
        any::<Option<prop::sample::Index>>(),
    )
        .prop_map(
            |((convention, this, arity), returns, parameters, sentinel)| {
                let sentinel = sentinel.filter(|_| !parameters.is_empty());
                MethodSignature {
                    has_this: this[0],
                    explicit_this: this[1],
                    generic_arity: arity.map(u32::from),
                    sentinel: sentinel.map(|index| index.index(parameters.len())),
                    ..MethodSignature::new(convention, returns, parameters)
                }
            },
        )
}

/// Removes the forms that the writer chooses, for comparison with the body read back.
fn without_forms(mut body: Body) -> Body {
    body.fat_header = false;
    body.fat_clauses = false;
    body
}

proptest! {
    #[test]
    fn any_bytes_are_a_body_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        // Half of them get past the header.
        let fat = [&[0x0b, 0x30, 8, 0, (bytes.len() / 2) as u8, 0, 0, 0, 0, 0, 0, 0], &bytes[..]];
        for bytes in [bytes.clone(), fat.concat()] {
            match Body::read_prefix(&bytes) {
                Ok((body, length)) => {
                    prop_assert!(length <= bytes.len());
                    let written = body.write().unwrap();
                    let read = Body::read(written.bytes()).unwrap();
                    prop_assert_eq!(without_forms(read), without_forms(body));
                }
                Err(error) => prop_assert!(error.offset <= bytes.len(), "{}", error),
            }
        }
    }

    #[test]
    fn any_bytes_are_a_signature_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let locals = [&[0x07, 3], &bytes[..]].concat();
        if let Ok(locals) = LocalSignature::read(&locals) {
            prop_assert_eq!(LocalSignature::read(&locals.to_bytes()), Ok(locals));
        }
        if let Ok(method) = MethodSignature::read(&bytes) {
            prop_assert_eq!(MethodSignature::read(&method.to_bytes()), Ok(method));
        }
    }

    #[test]
    fn any_signature_is_read_as_it_was_written(method in method_signature(), local in a_type()) {
        let locals = LocalSignature { locals: vec![local, method.return_type.clone()] };
        prop_assert_eq!(LocalSignature::read(&locals.to_bytes()), Ok(locals));
        prop_assert_eq!(MethodSignature::read(&method.to_bytes()), Ok(method));
    }

    #[test]
    fn any_body_is_read_as_it_was_written(body in body()) {
        let written = body.write().unwrap();
        let read = Body::read(written.bytes()).unwrap();
        prop_assert_eq!(read.lines.len(), body.lines.len());
        same_instructions(&body, &read, 0, &|index| index, None).unwrap();
        same_clauses(&body, &read, &|index| index, Label::END).unwrap();
        // A body just read is written unchanged.
        prop_assert_eq!(read.write().unwrap().into_bytes(), written.into_bytes());
    }

    #[test]
    fn any_body_is_wrapped_or_refused(body in body(), method in method_signature()) {
        let locals = LocalSignature { locals: vec![Type::INT32; 3] };
        let probes = probes();
        match body.clone().wrap(&method, &locals, &probes) {
            Err(refusal) => prop_assert_eq!(body.refusal(&method), Some(refusal)),
            Ok(wrapped) => {
                let returns = body.lines.iter().any(|line| line.instruction.opcode() == Opcode::RET);
                let result = (returns && !method.return_type.is_void()).then_some(4);
                let written = wrapped.with_locals(crate::corpus::LOCALS).write().unwrap();
                let new = Body::read(written.bytes()).unwrap();
                check_wrapped(&body, &new, &probes, 3, result, returns).unwrap();
            }
        }
    }
}
