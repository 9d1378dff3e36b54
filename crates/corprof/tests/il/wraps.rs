//! Tests of the code around a wrapped method, and of methods that cannot be wrapped.

use corprof::Token;
use corprof::il::{
    Body, Caution, Instruction, LocalSignature, MethodSignature, NotStraight, Opcode, Outcome,
    Probe, Probes, Refusal, Type,
};

const VOID: &[u8] = &[0x00, 0x00, 0x01];
const INT: &[u8] = &[0x00, 0x00, 0x08];

fn probes() -> Probes {
    Probes {
        enter: Probe::calli(0, &[7], 0x1000, Token(0x1100_0001)),
        leave: Probe::calli(1, &[], 0x2000, Token(0x1100_0002)),
        fault: Probe::calli(1, &[], 0x3000, Token(0x1100_0002)),
        token: Some(Type::INT64),
    }
}

fn tiny(code: &[u8]) -> Body {
    Body::read(&[&[(code.len() as u8) << 2 | 2], code].concat()).unwrap()
}

/// Wraps the body, writes it and returns the listing of what was read back.
fn wrap(body: Body, signature: &[u8], locals: &[Type]) -> Result<String, Refusal> {
    let signature = MethodSignature::read(signature).unwrap();
    let locals = LocalSignature {
        locals: locals.to_vec(),
    };
    let wrapped = body.wrap(&signature, &locals, &probes())?;
    let written = wrapped.with_locals(Token(0x1100_0009)).write().unwrap();
    Ok(Body::read(written.bytes()).unwrap().to_string())
}

#[test]
fn a_method_with_a_result_and_two_returns() {
    // ldarg.0; brtrue.s 5; ldc.i4.1; ret; 5: ldc.i4.2; ret
    let body = tiny(&[0x02, 0x2d, 0x02, 0x17, 0x2a, 0x18, 0x2a]);
    assert_eq!(
        wrap(body, &[0x20, 0x00, 0x08], &[]).unwrap(),
        "\
maxstack 8, locals 0x11000009
L0: ldc.i4.7
L1: ldc.i8 0x1000
L2: conv.i
L3: calli 0x11000001
L4: stloc.0
L5: ldarg.0
L6: brtrue.s L10
L7: ldc.i4.1
L8: stloc.1
L9: leave.s L18
L10: ldc.i4.2
L11: stloc.1
L12: leave.s L18
L13: ldloc.0
L14: ldc.i8 0x3000
L15: conv.i
L16: calli 0x11000002
L17: endfinally
L18: ldloc.0
L19: ldc.i8 0x2000
L20: conv.i
L21: calli 0x11000002
L22: ldloc.1
L23: ret
try L5 to L13 fault L13 to L18
"
    );
}

#[test]
fn a_loop_to_the_first_instruction_does_not_enter_again() {
    // nop; ldarg.0; brtrue.s 0; ret
    let text = wrap(tiny(&[0x00, 0x02, 0x2d, 0xfc, 0x2a]), VOID, &[Type::INT32]).unwrap();
    assert!(text.contains("L4: stloc.1\nL5: nop\nL6: ldarg.0\nL7: brtrue.s L5\nL8: leave.s L14\n"));
    assert!(
        text.ends_with("L17: calli 0x11000002\nL18: ret\ntry L5 to L9 fault L9 to L14\n"),
        "{text}"
    );
}

#[test]
fn clauses_stay_inside_of_ours() {
    // try { leave.s 3 } finally { endfinally }, to the end of the code, without a return.
    let mut code = vec![0x0b, 0x30, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0];
    code.extend_from_slice(&[0xde, 0xfe, 0xdc, 0x00]);
    code.extend_from_slice(&[0x01, 16, 0, 0, 2, 0, 0, 0, 2, 2, 0, 1, 0, 0, 0, 0]);
    let text = wrap(Body::read(&code).unwrap(), VOID, &[]).unwrap();
    assert!(
        text.ends_with(
            "L5: leave.s L5\nL6: endfinally\nL7: ldloc.0\nL8: ldc.i8 0x3000\nL9: conv.i\n\
             L10: calli 0x11000002\nL11: endfinally\n\
             try L5 to L6 finally L6 to L7\ntry L5 to L7 fault L7 to end\n"
        ),
        "{text}"
    );
    // The method never returns, so it has no `ret`.
    assert!(!text.contains("ret"), "{text}");
}

#[test]
fn without_a_token_no_local_is_needed() {
    let probes = Probes {
        enter: Probe::count_at(0x100),
        leave: Probe::count_at(0x108),
        fault: Probe::count_at(0x110),
        token: None,
    };
    let signature = MethodSignature::read(VOID).unwrap();
    let wrapped = tiny(&[0x2a])
        .wrap(&signature, &LocalSignature::default(), &probes)
        .unwrap();
    assert_eq!(wrapped.locals(), None);
    let body = wrapped.with_locals(Token(0x1100_0009));
    assert_eq!((body.locals, body.max_stack), (None, 8));
}

#[test]
fn a_probe_needs_its_stack() {
    let mut body = tiny(&[0x2a]);
    body.max_stack = 0;
    let counted = body.clone().with_enter(&Probe::count_at(0x100));
    assert_eq!(counted.max_stack, 3);
    assert_eq!(counted.lines.len(), 9);
    let signature = MethodSignature::read(VOID).unwrap();
    let wrapped = body.wrap(&signature, &LocalSignature::default(), &probes());
    assert_eq!(wrapped.unwrap().body().max_stack, 2);
}

#[test]
fn refusals() {
    let refuse = |code: &[u8], signature| wrap(tiny(code), signature, &[]).unwrap_err();
    // jmp; tail. call, ret; arglist, pop, ret
    assert_eq!(refuse(&[0x27, 1, 0, 0, 6], VOID), Refusal::Jmp);
    let tail = [0xfe, 0x14, 0x28, 1, 0, 0, 6, 0x2a];
    assert_eq!(refuse(&tail, VOID), Refusal::Tail);
    assert_eq!(refuse(&[0xfe, 0x00, 0x26, 0x2a], VOID), Refusal::VarArg);
    assert_eq!(refuse(&[0x2a], &[0x05, 0x00, 0x01]), Refusal::VarArg);
    assert_eq!(refuse(&[], VOID), Refusal::Empty);
    let full = vec![Type::INT32; 0xffff];
    assert_eq!(wrap(tiny(&[0x2a]), VOID, &full), Err(Refusal::Locals));
    // One local is left, and two are needed.
    assert_eq!(
        wrap(tiny(&[0x16, 0x2a]), INT, &full[1..]),
        Err(Refusal::Locals)
    );
    assert!(wrap(tiny(&[0x2a]), VOID, &full[1..]).is_ok());
}

#[test]
fn cautions() {
    assert_eq!(
        tiny(&[0x14, 0x7a]).cautions(),
        [Caution::NeverReturns, Caution::Small]
    );
    let code = [&[0x00; 20][..], &[0x16, 0xfe, 0x0f, 0x26, 0x2a]].concat();
    assert_eq!(tiny(&code).cautions(), [Caution::Localloc]);
}

#[test]
fn a_probe_goes_straight_on() {
    let ret = Instruction::ret();
    let nop = Instruction::plain(Opcode::NOP).unwrap();
    assert_eq!(Probe::new(vec![nop.clone(), ret], 0), Err(NotStraight(1)));
    let tail = Instruction::plain(Opcode::TAIL).unwrap();
    assert_eq!(Probe::new(vec![tail], 0), Err(NotStraight(0)));
    assert!(Probe::new(vec![nop.clone(), nop], 1).is_ok());
}

#[test]
fn a_method_whose_result_says_whether_it_has_ended() {
    let call = |method| Probe::new(vec![Instruction::callvirt(Token(method))], 1).unwrap();
    let probe = |function| Probe::calli(2, &[], function, Token(0x1100_0002));
    let mut outcome = Outcome {
        by_address: false,
        has_ended: call(0x0a00_0001),
        ended: probe(0x4000),
        goes_on: probe(0x5000),
    };
    let signature = MethodSignature::read(&[0x00, 0x00, 0x1c]).unwrap();
    let locals = LocalSignature::default();
    let asking = |body: Body, signature: &MethodSignature, outcome: &Outcome| {
        let wrapped = body.wrap_asking(signature, &locals, &probes(), outcome);
        let written = wrapped.unwrap().with_locals(Token(0x1100_0009)).write();
        Body::read(written.unwrap().bytes()).unwrap().to_string()
    };
    // ldnull; ret
    let text = asking(tiny(&[0x14, 0x2a]), &signature, &outcome);
    assert!(
        text.contains(
            "L13: ldloc.1\nL14: callvirt 0x0a000001\nL15: brfalse.s L22\n\
             L16: ldloc.0\nL17: ldloc.1\nL18: ldc.i8 0x4000\nL19: conv.i\nL20: calli 0x11000002\nL21: br.s L27\n\
             L22: ldloc.0\nL23: ldloc.1\nL24: ldc.i8 0x5000\nL25: conv.i\nL26: calli 0x11000002\n\
             L27: ldloc.1\nL28: ret\n"
        ),
        "{text}"
    );
    outcome.by_address = true;
    let text = asking(tiny(&[0x14, 0x2a]), &signature, &outcome);
    assert_eq!(text.matches("ldloca.s 1").count(), 3, "{text}");
    // A method that returns nothing has no result to check.
    let void = MethodSignature::read(VOID).unwrap();
    assert_eq!(
        asking(tiny(&[0x2a]), &void, &outcome),
        wrap(tiny(&[0x2a]), VOID, &[]).unwrap()
    );
}

#[test]
fn what_is_inserted_on_a_condition_is_not_passed_by() {
    // 0: ldarg.0; brtrue.s 4; nop; 4: call; ret
    let mut body = tiny(&[0x02, 0x2d, 0x01, 0x00, 0x28, 1, 0, 0, 6, 0x2a]);
    let call = body.lines[3].label;
    let load = [Instruction::ldloc(2)];
    assert!(body.insert_at_if(call, load, [Instruction::call(Token(0x0600_0002))]));
    assert!(!body.insert_at_if(call, [], [Instruction::ret()]));
    let written = body.write().unwrap();
    assert_eq!(
        Body::read(written.bytes()).unwrap().to_string(),
        "maxstack 8\nL0: ldarg.0\nL1: brtrue.s L3\nL2: nop\nL3: ldloc.2\nL4: brfalse.s L6\nL5: call 0x06000002\n\
         L6: call 0x06000001\nL7: ret\n"
    );
}

#[test]
fn instances_and_specifications_are_read() {
    // AsyncTaskMethodBuilder`1<!!0>.Start<valuetype 0x02000005<!!0>>
    let bytes = [0x0a, 0x01, 0x15, 0x11, 0x14, 0x01, 0x1e, 0x00];
    let arguments = Type::of_instance(&bytes).unwrap();
    assert_eq!(arguments.len(), 1);
    assert_eq!(arguments[0].to_bytes(), bytes[2..]);
    assert_eq!(
        Type::of_specification(&bytes[2..]),
        Ok(arguments[0].clone())
    );
    assert!(Type::of_instance(&bytes[1..]).is_err());
    assert!(Type::of_specification(&bytes[2..7]).is_err());
}
