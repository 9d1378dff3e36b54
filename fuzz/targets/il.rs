//! Any bytes as a method body and as signatures: read, written and wrapped without a panic, and read
//! again as they were.
//!
//! The first byte says how many of the others are the method's signature and those of its locals.

#![no_main]

use corprof::Token;
use corprof::il::{Body, LocalSignature, MethodSignature, Probe, Probes, Type};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((lengths, rest)) = bytes.split_first() else {
        return;
    };
    let (signature, rest) = rest.split_at(rest.len().min(usize::from(lengths >> 4)));
    let (locals, rest) = rest.split_at(rest.len().min(usize::from(lengths & 15)));
    let signature = MethodSignature::read(signature);
    if let Ok(signature) = &signature {
        let again = MethodSignature::read(&signature.to_bytes());
        assert_eq!(again.as_ref(), Ok(signature));
    }
    let locals = LocalSignature::read(locals);
    if let Ok(locals) = &locals {
        let again = LocalSignature::read(&locals.to_bytes());
        assert_eq!(again.as_ref(), Ok(locals));
    }
    let Ok((body, length)) = Body::read_prefix(rest) else {
        return;
    };
    assert!(length <= rest.len());
    let written = body.write().expect("what was read can be written");
    let again = Body::read(written.bytes()).expect("what was written can be read");
    assert_eq!(again.lines, body.lines);
    assert_eq!(again.clauses, body.clauses);

    let probe = Probe::count_at(0x1000);
    let probes = Probes {
        enter: Probe::calli(0, &[1], 0x1000, Token(0x1100_0001)),
        leave: Probe::calli(1, &[], 0x1000, Token(0x1100_0002)),
        fault: Probe::calli(1, &[], 0x1000, Token(0x1100_0002)),
        token: Some(Type::INT64),
    };
    let signature = signature.unwrap_or_else(|_| MethodSignature::read(&[0, 0, 8]).unwrap());
    let wrapped = body
        .clone()
        .wrap(&signature, &locals.unwrap_or_default(), &probes);
    let new = match wrapped {
        Ok(wrapped) => wrapped.with_locals(Token(0x1100_0003)),
        Err(_) => body.clone().with_enter(&probe),
    };
    let written = new.write().expect("what was wrapped can be written");
    let again = Body::read(written.bytes()).expect("what was wrapped can be read");
    assert_eq!(again.lines.len(), new.lines.len());
    assert_eq!(written.offsets().len(), body.lines.len());
});
