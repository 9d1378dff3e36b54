//! Tests of each form of header, clause table and branch, and of each read error.

use corprof::Token;
use corprof::il::{
    Body, Clause, Handler, Instruction, Label, Opcode, Operand, OperandKind, ReadError,
    ReadErrorKind, WriteError,
};

/// A fat header with these flags, and the code.
fn fat(flags: u8, code: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x03 | flags, 0x30, 3, 0];
    bytes.extend_from_slice(&u32::try_from(code.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(&0x1100_0007u32.to_le_bytes());
    bytes.extend_from_slice(code);
    bytes
}

/// `code`, followed by a section.
fn with_section(code: &[u8], section: &[u8]) -> Vec<u8> {
    let mut bytes = fat(0x08, code);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend_from_slice(section);
    bytes
}

fn plain(opcode: Opcode) -> Instruction {
    Instruction::plain(opcode).unwrap()
}

fn nops(count: usize) -> Vec<Instruction> {
    vec![plain(Opcode::NOP); count]
}

#[test]
fn every_instruction_is_read_and_written() {
    assert_eq!(Opcode::ALL.len(), 219);
    for opcode in Opcode::ALL {
        let mut body = Body::new();
        let target = body.push(plain(Opcode::NOP));
        let operand = match opcode.operand() {
            OperandKind::None => Operand::None,
            OperandKind::Int8 => Operand::Int8(-3),
            OperandKind::UInt8 => Operand::UInt8(200),
            OperandKind::Int32 => Operand::Int32(i32::MIN),
            OperandKind::Int64 => Operand::Int64(i64::MAX - 1),
            OperandKind::Float32 => Operand::Float32(0x7fc0_1234),
            OperandKind::Float64 => Operand::Float64(0xfff8_0000_dead_beef),
            OperandKind::ShortVariable => Operand::Variable(255),
            OperandKind::Variable => Operand::Variable(0xfffe),
            OperandKind::Token => Operand::Token(Token(0x0a00_0123)),
            OperandKind::ShortTarget | OperandKind::Target => Operand::Target(target),
            OperandKind::Switch => Operand::Switch([target, target].into()),
        };
        let instruction = Instruction::new(*opcode, operand).unwrap();
        body.push(instruction.clone());
        body.push(plain(Opcode::RET));
        let written = body.write().unwrap();
        assert_eq!(u64::from(written.code_size()), 2 + instruction.size());
        let read = Body::read(written.bytes()).unwrap();
        assert_eq!(read.lines[1].instruction, instruction, "{opcode}");
        assert_eq!(Opcode::new(opcode.number()), Some(*opcode));
        // Truncation at any length is an error.
        for length in 0..written.bytes().len() {
            let error = Body::read(&written.bytes()[..length]).unwrap_err();
            assert_eq!(error.kind, ReadErrorKind::Truncated, "{opcode} {length}");
        }
    }
}

#[test]
fn an_operand_of_another_kind_is_refused() {
    assert_eq!(Instruction::new(Opcode::RET, Operand::Int8(1)), None);
    assert_eq!(Instruction::plain(Opcode::BR), None);
    assert_eq!(
        Instruction::new(Opcode::LDLOC_S, Operand::Variable(256)),
        None
    );
}

#[test]
fn the_shortest_form_is_taken() {
    let names = |instructions: &[Instruction]| {
        let names = instructions.iter().map(Instruction::to_string);
        names.collect::<Vec<_>>().join(" | ")
    };
    assert_eq!(
        names(&[-2, -1, 0, 8, 9, 127, 128, -128, -129].map(Instruction::ldc_i4)),
        "ldc.i4.s -2 | ldc.i4.m1 | ldc.i4.0 | ldc.i4.8 | ldc.i4.s 9 | ldc.i4.s 127 | ldc.i4 128 \
         | ldc.i4.s -128 | ldc.i4 -129"
    );
    assert_eq!(
        names(&[0, 3, 4, 255, 256].map(Instruction::stloc)),
        "stloc.0 | stloc.3 | stloc.s 4 | stloc.s 255 | stloc 256"
    );
}

#[test]
fn headers() {
    let tiny = [0x0a, 0x16, 0x2a];
    let body = Body::read(&tiny).unwrap();
    assert_eq!(
        (body.max_stack, body.locals, body.init_locals),
        (8, None, false)
    );
    assert_eq!(body.write().unwrap().bytes(), tiny);

    let with_locals = fat(0x10, &[0x16, 0x2a]);
    let body = Body::read(&with_locals).unwrap();
    assert_eq!(
        (body.max_stack, body.locals, body.init_locals),
        (3, Some(Token(0x1100_0007)), true)
    );
    assert_eq!(body.write().unwrap().bytes(), with_locals);

    // A header may have more words than this reader uses.
    let mut longer = fat(0, &[0x2a]);
    longer[1] = 0x40;
    longer.splice(12..12, [1, 2, 3, 4]);
    let (body, length) = Body::read_prefix(&longer).unwrap();
    assert_eq!((body.lines.len(), length), (1, 17));
}

#[test]
fn a_tiny_body_that_grows_gets_a_fat_header() {
    let header = |change: fn(&mut Body)| {
        let mut body = Body::read(&[0x06, 0x2a]).unwrap();
        change(&mut body);
        body.write().unwrap().bytes()[0] & 3
    };
    let (tiny, fat) = (2, 3);
    assert_eq!(header(|_| ()), tiny);
    assert_eq!(
        header(|body| assert!(body.insert_before(Label::END, nops(62)))),
        tiny
    );
    assert_eq!(
        header(|body| assert!(body.insert_before(Label::END, nops(63)))),
        fat
    );
    assert_eq!(header(|body| body.max_stack = 9), fat);
    assert_eq!(header(|body| body.init_locals = true), fat);
    assert_eq!(header(|body| body.locals = Some(Token(0x1100_0001))), fat);
}

/// A body with a clause of each kind, in lines of one byte, `pad` bytes longer.
fn with_clauses(pad: usize) -> Body {
    let mut body = Body::new();
    let label: Vec<Label> = (0..8).map(|_| body.push(plain(Opcode::NOP))).collect();
    assert!(body.insert_before(label[1], nops(pad)));
    let clause = |handler, from: usize| Clause {
        handler,
        try_start: label[0],
        try_end: label[from],
        handler_start: label[from],
        handler_end: label[from + 1],
    };
    body.clauses = vec![
        clause(Handler::Catch(Token(0x0100_0001)), 2),
        clause(Handler::Filter(label[2]), 3),
        clause(Handler::Finally, 5),
        Clause {
            handler_end: Label::END,
            ..clause(Handler::Fault, 6)
        },
    ];
    body
}

#[test]
fn clauses_are_small_while_they_can_be() {
    let section = |body: &Body| {
        let written = body.write().unwrap();
        let read = Body::read(written.bytes()).unwrap();
        let kinds = |body: &Body| -> Vec<_> {
            let kind = |clause: &Clause| core::mem::discriminant(&clause.handler);
            body.clauses.iter().map(kind).collect()
        };
        assert_eq!(kinds(&read), kinds(body));
        assert_eq!(read.clauses.last().unwrap().handler_end, Label::END);
        let at = (12 + written.code_size() as usize).next_multiple_of(4);
        (written.bytes()[at], written.bytes().len() - at)
    };
    assert_eq!(section(&with_clauses(0)), (0x01, 4 + 4 * 12));
    // The last range is six longer: 255, and one more.
    assert_eq!(section(&with_clauses(249)), (0x01, 4 + 4 * 12));
    assert_eq!(section(&with_clauses(250)), (0x41, 4 + 4 * 24));
    let mut forced = with_clauses(0);
    forced.fat_clauses = true;
    assert_eq!(section(&forced), (0x41, 4 + 4 * 24));
    // 20 fit into a byte with their header.
    let mut many = with_clauses(0);
    let last = *many.clauses.last().unwrap();
    many.clauses.resize(20, last);
    assert_eq!(section(&many), (0x01, 4 + 20 * 12));
    many.clauses.push(last);
    assert_eq!(section(&many), (0x41, 4 + 21 * 24));
    // An offset beyond 16 bits.
    let mut far = with_clauses(0);
    let first = far.lines[0].label;
    assert!(far.insert_before(first, nops(0x1_0000)));
    assert_eq!(section(&far), (0x41, 4 + 4 * 24));
}

/// `nop; leave.s 3; ret` with a `finally` over the `ret`, small.
const CLAUSE: [u8; 12] = [2, 0, 0, 0, 1, 1, 0, 2, 0, 0, 0, 0];
const CODE: [u8; 4] = [0x00, 0xde, 0x00, 0x2a];

#[test]
fn the_first_section_counts_as_for_the_clr() {
    let small = |kind: u8, size: u8, clauses: &[u8]| [&[kind, size, 0, 0], clauses].concat();
    let clauses = |section: &[u8]| Body::read(&with_section(&CODE, section)).unwrap().clauses;
    let one = clauses(&small(0x01, 16, &CLAUSE));
    assert_eq!(one.len(), 1);
    // The size without the header, as some compilers write it.
    assert_eq!(clauses(&small(0x01, 12, &CLAUSE)), one);
    // A second section is skipped.
    let two = [small(0x81, 16, &CLAUSE), small(0x01, 16, &CLAUSE)].concat();
    let (body, length) = Body::read_prefix(&with_section(&CODE, &two)).unwrap();
    assert_eq!((body.clauses, length), (one.clone(), 16 + 32));
    // A first section without clauses is skipped, with all after it.
    let other = [small(0x82, 8, &[1, 2, 3, 4]), small(0x01, 16, &CLAUSE)].concat();
    assert_eq!(clauses(&other), []);
    let mut fat = vec![0x41, 28, 0, 0];
    for value in [2u32, 0, 1, 1, 2, 0] {
        fat.extend_from_slice(&value.to_le_bytes());
    }
    assert_eq!(clauses(&fat), one);
}

#[test]
fn bytes_that_are_no_body() {
    use ReadErrorKind as Kind;
    let short = |code: &[u8]| [&[(code.len() as u8) << 2 | 2], code].concat();
    let clause = |at: usize, value: u8| {
        let mut clause = CLAUSE;
        clause[at] = value;
        with_section(&CODE, &[&[0x01, 16, 0, 0][..], &clause].concat())
    };
    let table: [(Vec<u8>, usize, Kind); 18] = [
        (vec![], 0, Kind::Truncated),
        (vec![0x01], 0, Kind::Header(0x01)),
        (vec![0x03, 0x20], 1, Kind::HeaderSize(2)),
        (fat(0, &[0x2a])[..11].to_vec(), 11, Kind::Truncated),
        (short(&[0x24]), 1, Kind::Opcode(0x24)),
        (short(&[0x00, 0xff]), 2, Kind::Opcode(0xff)),
        (short(&[0xfe, 0x08]), 1, Kind::Opcode(0xfe08)),
        (short(&[0xfe]), 2, Kind::Truncated),
        (short(&[0x00, 0x2b, 0x00]), 2, Kind::TargetOutside(3)),
        (short(&[0x2b, 0xfd]), 1, Kind::TargetOutside(-1)),
        (short(&[0x00, 0x2b, 0xff]), 2, Kind::InsideInstruction(2)),
        // A switch of 2³⁰ targets, and one of more targets than bytes.
        (short(&[0x45, 0, 0, 0, 0x40]), 6, Kind::Truncated),
        (short(&[0x45, 2, 0, 0, 0, 1, 0, 0, 0]), 10, Kind::Truncated),
        (
            with_section(&CODE, &[0x01, 3, 0, 0]),
            16,
            Kind::SectionSize(3),
        ),
        (clause(0, 8), 20, Kind::Clause(8)),
        (clause(2, 2), 20, Kind::InsideInstruction(2)),
        (clause(7, 9), 20, Kind::RangeOutside(10)),
        (with_section(&CODE, &[0x41, 100, 0, 0]), 20, Kind::Truncated),
    ];
    for (bytes, offset, kind) in table {
        let error = Body::read(&bytes).unwrap_err();
        assert_eq!(error, ReadError { offset, kind }, "{bytes:02x?}: {error}");
    }
}

#[test]
fn short_branches_become_long_when_they_have_to() {
    for (between, is_short) in [(127, true), (128, false)] {
        let mut body = Body::new();
        let branch = body.push(Instruction::br(Label::END));
        let last = body.push(plain(Opcode::RET));
        body.lines[0].instruction.targets_mut()[0] = last;
        assert!(body.insert_before(last, nops(between)));
        let read = Body::read(body.write().unwrap().bytes()).unwrap();
        let opcode = if is_short { Opcode::BR_S } else { Opcode::BR };
        assert_eq!(read.lines[0].instruction.opcode(), opcode);
        assert_eq!(
            read.lines[0].instruction.targets()[0],
            read.lines.last().unwrap().label
        );
        assert_eq!(body.position(branch), Some(0));
    }
    // A backward distance includes the branch itself.
    for (between, is_short) in [(126, true), (127, false)] {
        let mut body = Body::new();
        let first = body.push(plain(Opcode::NOP));
        assert!(body.insert_before(Label::END, nops(between - 1)));
        let target = Operand::Target(first);
        body.push(Instruction::new(Opcode::BRTRUE_S, target).unwrap());
        let read = Body::read(body.write().unwrap().bytes()).unwrap();
        let opcode = if is_short {
            Opcode::BRTRUE_S
        } else {
            Opcode::BRTRUE
        };
        assert_eq!(read.lines.last().unwrap().instruction.opcode(), opcode);
    }
}

/// Each branch reaches only while the branch inside it is short. All become long, from the inside
/// out, one per round.
#[test]
fn one_long_branch_makes_others_long() {
    for depth in [3usize, 40, 400] {
        let mut body = Body::new();
        let starts: Vec<Label> = (0..depth)
            .map(|_| body.push(Instruction::br(Label::END)))
            .collect();
        assert!(body.insert_before(Label::END, nops(126)));
        let ends: Vec<Label> = (0..depth).map(|_| body.push(plain(Opcode::NOP))).collect();
        for (index, start) in starts.iter().enumerate() {
            // A long inner branch, and the end of the outer one, add to the outer distance.
            let at = body.position(*start).unwrap();
            let to = ends[(depth - 1 - index).min(1)];
            body.lines[at].instruction.targets_mut()[0] = to;
        }
        let read = Body::read(body.write().unwrap().bytes()).unwrap();
        for (index, start) in starts.iter().enumerate() {
            let at = body.position(*start).unwrap();
            let target = body
                .position(body.lines[at].instruction.targets()[0])
                .unwrap();
            let there = &read.lines[index].instruction;
            assert_eq!(there.targets()[0], read.lines[target].label);
        }
        assert_eq!(read.lines.len(), body.lines.len());
    }
}

#[test]
fn lines_are_inserted_before_at_and_instead_of_others() {
    // nop; br.s 0; ret
    let original = Body::read(&[0x12, 0x00, 0x2b, 0xfd, 0x2a]).unwrap();
    let first = original.lines[0].label;
    let text = |body: &Body| {
        let read = Body::read(body.write().unwrap().bytes()).unwrap();
        let lines = read.lines.iter().map(|line| line.instruction.to_string());
        lines.collect::<Vec<_>>().join("; ")
    };
    let mut before = original.clone();
    assert!(before.insert_before(first, [plain(Opcode::DUP)]));
    assert_eq!(text(&before), "dup; nop; br.s L1; ret");
    let mut at = original.clone();
    assert!(at.insert_at(first, [plain(Opcode::DUP)]));
    assert_eq!(text(&at), "dup; nop; br.s L0; ret");
    let mut replaced = original.clone();
    assert!(replaced.replace(first, [plain(Opcode::DUP), plain(Opcode::POP)]));
    assert_eq!(text(&replaced), "dup; pop; br.s L0; ret");
    let mut retargeted = original.clone();
    retargeted.retarget(first, original.lines[2].label);
    assert_eq!(text(&retargeted), "nop; br.s L2; ret");
    // Map entries of inserted lines.
    let written = before.write().unwrap();
    assert_eq!(written.offsets(), [(0, 1), (1, 2), (3, 4)]);
    let old: Vec<_> = (0..5).map(|new| written.old_offset(new)).collect();
    assert_eq!(old, [None, Some(0), Some(1), Some(1), Some(3)]);
    assert_eq!(written.code_map()[2].new_offset, 4);
    // A label of another body.
    assert!(!before.replace(Label::END, [plain(Opcode::DUP)]));
}

#[test]
fn a_body_that_makes_no_sense_is_not_written() {
    let original = Body::read(&[0x12, 0x00, 0x2b, 0xfd, 0x2a]).unwrap();
    let first = original.lines[0].label;
    let mut without = original.clone();
    without.lines.remove(0);
    assert_eq!(without.write(), Err(WriteError::NoSuchLabel(first)));
    let mut twice = original.clone();
    twice.lines.push(original.lines[0].clone());
    assert_eq!(twice.write(), Err(WriteError::LabelTwice(first)));
    let mut outside = original.clone();
    outside.retarget(first, Label::END);
    assert_eq!(outside.write(), Err(WriteError::NoSuchLabel(Label::END)));
    let mut backwards = original.clone();
    let last = original.lines[2].label;
    backwards.clauses.push(Clause {
        handler: Handler::Fault,
        try_start: last,
        try_end: first,
        handler_start: first,
        handler_end: last,
    });
    assert_eq!(backwards.write(), Err(WriteError::Backwards(last)));
}
