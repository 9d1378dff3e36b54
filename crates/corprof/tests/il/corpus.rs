//! Checks IL reader, writer and probes on every method body of real assemblies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use corprof::Token;
use corprof::il::{
    Body, Clause, Flow, Handler, Instruction, Label, LocalSignature, MethodSignature, Opcode,
    Operand, Probe, Probes, Refusal, Type,
};
use testkit::Runtime;

use crate::image::{Image, Method};

const ENTER: Token = Token(0x1100_fff1);
const LEAVE: Token = Token(0x1100_fff2);
pub(crate) const LOCALS: Token = Token(0x1100_fff3);

pub(crate) fn probes() -> Probes {
    Probes {
        enter: Probe::calli(0, &[12_345_678], 0x7fff_1234_5678, ENTER),
        leave: Probe::calli(1, &[], 0x7fff_1234_5700, LEAVE),
        fault: Probe::calli(1, &[], 0x7fff_1234_5800, LEAVE),
        token: Some(Type::INT64),
    }
}

/// Number of bodies, and reasons why some were not wrapped.
#[derive(Default, Debug)]
struct Sum {
    assemblies: usize,
    bodies: usize,
    clauses: usize,
    refused: BTreeMap<&'static str, usize>,
}

/// The `dll` files of these folders, once each.
fn assemblies(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in folders {
        let entries = std::fs::read_dir(folder).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "dll"));
    // Largest first, so that no thread starts a large file at the end.
    files.sort_by_key(|file| std::cmp::Reverse(std::fs::metadata(file).unwrap().len()));
    files
}

fn check(folders: &[PathBuf]) -> Sum {
    let files = assemblies(folders);
    let (next, sum) = (AtomicUsize::new(0), Mutex::new(Sum::default()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let probes = probes();
                while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check_assembly(file, &probes, &sum);
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap();
    println!("{sum:?}");
    sum
}

fn check_assembly(file: &Path, probes: &Probes, sum: &Mutex<Sum>) {
    let Some(image) = Image::open(file) else {
        return;
    };
    let mut own = Sum::default();
    for method in image.methods() {
        let place = || format!("{} {:#x}", file.display(), method.token);
        let refusal = check_method(&image, &method, probes, &mut own)
            .unwrap_or_else(|error| panic!("{}: {error}", place()));
        own.bodies += 1;
        if let Some(refusal) = refusal {
            *own.refused.entry(refusal.text()).or_default() += 1;
        }
    }
    let mut sum = sum.lock().unwrap();
    sum.assemblies += 1;
    sum.bodies += own.bodies;
    sum.clauses += own.clauses;
    for (refusal, count) in own.refused {
        *sum.refused.entry(refusal).or_default() += count;
    }
}

type Checked<T> = Result<T, Box<dyn std::error::Error>>;

/// Returns an error with this text if `is` is false.
fn ensure(is: bool, text: impl FnOnce() -> String) -> Checked<()> {
    if is { Ok(()) } else { Err(text().into()) }
}

fn check_method(
    image: &Image,
    method: &Method<'_>,
    probes: &Probes,
    sum: &mut Sum,
) -> Checked<Option<Refusal>> {
    let (body, length) = Body::read_prefix(method.body)?;
    sum.clauses += body.clauses.len();
    let written = body.write()?;
    ensure(written.bytes() == &method.body[..length], || {
        format!(
            "other bytes: {:02x?} for {:02x?}",
            written.bytes(),
            &method.body[..length]
        )
    })?;
    ensure(
        written.offsets().iter().all(|(old, new)| old == new),
        || "offsets moved".to_owned(),
    )?;

    let signature = MethodSignature::read(method.signature)?;
    ensure(signature.to_bytes() == method.signature, || {
        format!("another signature: {signature:?}")
    })?;
    let mut locals = LocalSignature::default();
    if let Some(token) = body.locals {
        let bytes = image.signature(token.0);
        locals = LocalSignature::read(bytes)?;
        ensure(locals.to_bytes() == bytes, || {
            format!("other locals: {locals:?}")
        })?;
    }

    if let Some(refusal) = body.refusal(&signature) {
        let enter = Probe::count_at(0x7fff_0000);
        let counted = Body::read(body.clone().with_enter(&enter).write()?.bytes())?;
        let added = enter.instructions().len();
        same_instructions(&body, &counted, added, &|index| index + added, None)?;
        same_clauses(&body, &counted, &|index| index + added, Label::END)?;
        return Ok(Some(refusal));
    }
    let wrapped = body.clone().wrap(&signature, &locals, probes)?;
    let returns = body.lines.iter().any(|line| is_ret(&line.instruction));
    let result = (returns && !signature.return_type.is_void()).then_some(());
    let new_locals = wrapped.locals().ok_or("no new locals")?;
    let old = locals.locals.len();
    ensure(new_locals.locals[..old] == locals.locals, || {
        "its own locals moved".to_owned()
    })?;
    let added = [Type::INT64, signature.return_type.clone()];
    ensure(
        new_locals.locals[old..] == added[..1 + usize::from(result.is_some())],
        || format!("wrong locals: {new_locals:?}"),
    )?;

    let written = wrapped.with_locals(LOCALS).write()?;
    let new = Body::read(written.bytes())?;
    let local = |number: usize| u16::try_from(old + number).unwrap();
    check_wrapped(
        &body,
        &new,
        probes,
        local(0),
        result.map(|()| local(1)),
        returns,
    )?;
    let moved: Vec<(u32, u32)> = written.offsets().to_vec();
    let expected = positions(
        &body,
        probes.enter.instructions().len() + 1,
        result.is_some(),
    );
    let expected = body.lines.iter().zip(expected).map(|(line, at)| {
        let new = new.lines[at].origin.unwrap();
        (line.origin.unwrap(), new)
    });
    ensure(moved.iter().copied().eq(expected), || {
        "a wrong map of offsets".to_owned()
    })?;
    Ok(None)
}

fn is_ret(instruction: &Instruction) -> bool {
    instruction.opcode() == Opcode::RET
}

/// Index of each old line in the new body, if `before` lines are put in front and each `ret`
/// becomes one instruction, or two.
fn positions(old: &Body, before: usize, result: bool) -> Vec<usize> {
    let mut at = before;
    let place = |line: &corprof::il::Line| {
        let here = at;
        at += 1 + usize::from(result && is_ret(&line.instruction));
        here
    };
    old.lines.iter().map(place).collect()
}

/// Index of the line with this label: in a body just read, labels are line numbers.
fn index(body: &Body, label: Label) -> usize {
    match label {
        Label::END => body.lines.len(),
        label => {
            let hint = body.lines.binary_search_by_key(&label, |line| line.label);
            hint.unwrap()
        }
    }
}

/// Checks that each old instruction is in the new body at its `place`, with targets at their
/// `place`. A `ret` may be replaced as `ends` accepts.
pub(crate) fn same_instructions(
    old: &Body,
    new: &Body,
    before: usize,
    place: &dyn Fn(usize) -> usize,
    ends: Option<(Option<u16>, usize)>,
) -> Checked<()> {
    ensure(old.lines.is_empty() || place(0) == before, || {
        "the body does not begin behind the probe".to_owned()
    })?;
    for (at, line) in old.lines.iter().enumerate() {
        let instruction = &line.instruction;
        let there = &new.lines[place(at)].instruction;
        let wrong = || format!("{at}: {instruction:?} became {there:?}");
        if let (true, Some((result, end))) = (is_ret(instruction), ends) {
            let mut leave = there;
            if let Some(result) = result {
                ensure(*there == Instruction::stloc(result), wrong)?;
                leave = &new.lines[place(at) + 1].instruction;
            }
            let is_leave = leave.opcode().long_form() == Opcode::LEAVE;
            ensure(is_leave && index(new, leave.targets()[0]) == end, wrong)?;
            continue;
        }
        ensure(
            there.opcode().long_form() == instruction.opcode().long_form(),
            wrong,
        )?;
        match (instruction.operand(), there.operand()) {
            (Operand::Target(_) | Operand::Switch(_), _) => {
                let targets = instruction.targets().iter().zip(there.targets());
                let mut targets =
                    targets.map(|(from, to)| place(index(old, *from)) == index(new, *to));
                ensure(
                    targets.all(|same| same)
                        && instruction.targets().len() == there.targets().len(),
                    wrong,
                )?;
            }
            (operand, other) => ensure(operand == other, wrong)?,
        }
    }
    Ok(())
}

/// Checks that the old clauses are the first of the new body. Ranges that ended at the end of the
/// old body end at `end`.
pub(crate) fn same_clauses(
    old: &Body,
    new: &Body,
    place: &dyn Fn(usize) -> usize,
    end: Label,
) -> Checked<()> {
    for (clause, there) in old.clauses.iter().zip(&new.clauses) {
        let mut clause = *clause;
        for label in clause.labels_mut() {
            *label = match *label {
                Label::END => end,
                label => new.lines[place(index(old, label))].label,
            };
        }
        ensure(clause == *there, || format!("{clause:?} became {there:?}"))?;
    }
    Ok(())
}

pub(crate) fn check_wrapped(
    old: &Body,
    new: &Body,
    probes: &Probes,
    token: u16,
    result: Option<u16>,
    returns: bool,
) -> Checked<()> {
    let at = positions(old, probes.enter.instructions().len() + 1, result.is_some());
    let code = |from: usize, instructions: &[Instruction]| {
        let there = new.lines[from..].iter().map(|line| &line.instruction);
        let there: Vec<_> = there.take(instructions.len()).collect();
        let same = there.iter().copied().eq(instructions);
        ensure(same, || {
            format!("at {from}: {there:?}, not {instructions:?}")
        })
    };
    let enter = [probes.enter.instructions(), &[Instruction::stloc(token)]].concat();
    code(0, &enter)?;
    let handler_at = at.last().unwrap()
        + 1
        + usize::from(result.is_some() && is_ret(&old.lines.last().unwrap().instruction));
    let handler = [
        &[Instruction::ldloc(token)],
        probes.fault.instructions(),
        &[Instruction::endfinally()],
    ]
    .concat();
    code(handler_at, &handler)?;
    let end_at = handler_at + handler.len();
    let mut end = Vec::new();
    if returns {
        end.push(Instruction::ldloc(token));
        end.extend_from_slice(probes.leave.instructions());
        end.extend(result.map(Instruction::ldloc));
        end.push(Instruction::ret());
    }
    code(end_at, &end)?;
    ensure(new.lines.len() == end_at + end.len(), || {
        "more than that".to_owned()
    })?;

    let place = |index: usize| at[index];
    same_instructions(old, new, enter.len(), &place, Some((result, end_at)))?;
    let handler_start = new.lines[handler_at].label;
    same_clauses(old, new, &place, handler_start)?;
    let ours = Clause {
        handler: Handler::Fault,
        try_start: new.lines[at[0]].label,
        try_end: handler_start,
        handler_start,
        handler_end: new.lines.get(end_at).map_or(Label::END, |line| line.label),
    };
    ensure(
        new.clauses.len() == old.clauses.len() + 1 && new.clauses.last() == Some(&ours),
        || format!("the last clause is {:?}", new.clauses.last()),
    )?;
    let kept = (new.init_locals, new.locals) == (old.init_locals, Some(LOCALS));
    ensure(kept && new.max_stack == old.max_stack.max(2), || {
        format!("a wrong header: {} {:?}", new.max_stack, new.locals)
    })?;
    let straight = |line: &corprof::il::Line| line.instruction.opcode().flow() != Flow::Return;
    ensure(new.lines[..at[0]].iter().all(straight), || {
        "the probe returns".to_owned()
    })
}

#[test]
fn every_body_of_the_frameworks_is_read_written_and_wrapped() {
    for runtime in Runtime::all() {
        let folders: Vec<PathBuf> = [runtime.framework_dir()]
            .into_iter()
            .chain(runtime.aspnetcore_dir())
            .collect();
        println!("{}", runtime.version);
        let sum = check(&folders);
        assert!(sum.assemblies > 100, "{sum:?}");
        assert!(sum.bodies > 80_000, "{sum:?}");
        assert!(sum.clauses > 5_000, "{sum:?}");
        let refused: usize = sum.refused.values().sum();
        assert!(refused * 1000 < sum.bodies, "{sum:?}");
    }
}

#[test]
fn every_body_of_a_large_program_is_read_written_and_wrapped() {
    let program = testkit::workload("roslyn").dll;
    let sum = check(&[program.parent().unwrap().to_owned()]);
    assert!(sum.assemblies >= 3 && sum.bodies > 40_000, "{sum:?}");
}
