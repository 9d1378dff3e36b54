//! Tests of resolving without a CLR.
//!
//! The addresses are in method bodies that carry their names, in native code of this test, or
//! unknown.

use std::sync::Arc;

use corprof::AgentCx;
use recording::{Event, MethodKind, Tier};

use super::decoded::{DecodedRecording, listen};
use super::*;
use crate::base::waker::Waker;
use crate::clr::Registry;
use crate::clr::async_types::ClassNote;
use crate::model::chain::{ChainBegin, ChainEnd, ChainHead, Link, NO_STATE, Role};
use crate::model::phase::new_phase;
use crate::model::{CodeBody, CollectibleFacts, MethodNames, NATIVE_RUN};
use crate::program::code::{CODE_MAP, CodeChange};

/// Runs `write` on an agent thread, in a process without CLRs. Returns what was written.
fn record(
    write: impl FnOnce(&mut Recorder, &'static Program, &mut Runtimes<'_>) + Send + 'static,
) -> DecodedRecording {
    let (writer, phase) = new_phase();
    writer
        .change(&[crate::model::Phase::Idle], crate::model::Phase::Recording)
        .unwrap();
    let waker = Box::leak(Box::new(Waker::new()));
    let program: &'static Program = Box::leak(Box::new(Program::new(phase, waker)));
    let registry: &'static Registry = Box::leak(Box::new(Registry::new(phase)));
    let (channel, say, reads) = listen();
    let done = corprof::spawn_agent_thread("test", move |cx: &mut AgentCx| {
        let mut recorder = Recorder::default();
        recorder.new_epoch(channel);
        recorder.record(&Record::Thread {
            thread: 1,
            tid: 1,
            name: "t".into(),
            managed: false,
            time_ns: 0,
        });
        let mut runtimes = Runtimes::new(cx, registry, &[]);
        write(&mut recorder, program, &mut runtimes);
        recorder.close();
    });
    done.unwrap().join().unwrap();
    let decoded = reads.join().unwrap();
    drop(say);
    decoded
}

fn sample(time_ns: u64, frames: &[u64]) -> WalkedStack<'_> {
    WalkedStack {
        thread: 1,
        time_ns,
        value: 1,
        event: Event::Cpu,
        end: EndCode::ROOT_END,
        frames,
        detail: None,
    }
}

/// A method that may be unloaded, so its name is stored and no CLR is queried.
fn method(range: std::ops::Range<u64>, function: usize, name: &str, added_ns: u64) -> CodeChange {
    body(range, function, names("Shop.Cart", name, 7), added_ns)
}

fn names(type_name: &str, name: &str, token: u32) -> MethodNames {
    MethodNames {
        module: None,
        token,
        type_name: type_name.into(),
        name: name.into(),
    }
}

fn body(
    range: std::ops::Range<u64>,
    function: usize,
    names: MethodNames,
    added_ns: u64,
) -> CodeChange {
    CodeChange::Added(CodeBody {
        code_start: range.start,
        range,
        runtime: 0,
        function,
        kind: MethodKind::Il,
        tier: Tier::Optimized,
        added_ns,
        collectible: Some(Arc::new(CollectibleFacts {
            names: Some(names),
            il_map: Box::new([(0, 0), (16, 5)]),
        })),
    })
}

fn stacks(decoded: &DecodedRecording) -> Vec<Vec<&str>> {
    let samples = decoded.samples.iter();
    samples
        .map(|sample| sample.stack.iter().map(String::as_str).collect())
        .collect()
}

#[test]
fn what_is_known_is_written_once() {
    let decoded = record(|recorder, program, runtimes| {
        program.code.push([method(0x1000..0x1100, 1, "Add", 1)]);
        recorder.absorb_code(program);
        // A return address belongs to the call before it: IL 0 at its end, IL 5 behind it.
        for _ in 0..3 {
            recorder.sample(program, runtimes, sample(10, &[0x1010, 0x1020, NATIVE_RUN]));
        }
    });
    let expected = ["Shop.Cart.Add IL 0", "Shop.Cart.Add IL 5", "[native]"];
    assert_eq!(stacks(&decoded), [expected; 3]);
    assert_eq!((decoded.frames, decoded.stacks), (3, 3));
}

#[test]
fn memory_that_is_used_again_is_named_by_the_time_of_the_sample() {
    let decoded = record(|recorder, program, runtimes| {
        let removed = CodeChange::Removed {
            range: 0x1000..0x1100,
            at_ns: 50,
        };
        program.code.push([
            method(0x1000..0x1100, 1, "Old", 1),
            removed,
            // The FunctionID is reused too.
            method(0x1000..0x1080, 1, "New", 60),
        ]);
        recorder.absorb_code(program);
        recorder.sample(program, runtimes, sample(40, &[0x1041]));
        recorder.forget_removed(55);
        recorder.sample(program, runtimes, sample(70, &[0x1041]));
    });
    assert_eq!(
        stacks(&decoded),
        [["Shop.Cart.Old IL 5"], ["Shop.Cart.New IL 5"]]
    );
}

#[test]
fn what_a_stack_shares_with_the_last_one_is_what_it_was_then() {
    let decoded = record(|recorder, program, runtimes| {
        program.code.push([
            method(0x1000..0x1100, 1, "Root", 1),
            method(0x2000..0x2100, 2, "Old", 1),
        ]);
        recorder.absorb_code(program);
        let mut at = |time_ns, frames: &[u64]| {
            recorder.sample(program, runtimes, sample(time_ns, frames));
            if time_ns == 10 {
                program.code.push([method(0x3000..0x3100, 3, "Late", 11)]);
            }
            if time_ns == 40 {
                program.code.push([
                    CodeChange::Removed {
                        range: 0x2000..0x2100,
                        at_ns: 50,
                    },
                    method(0x2000..0x2100, 4, "New", 60),
                ]);
                recorder.absorb_code(program);
            }
            if time_ns == 70 {
                recorder.forget_removed(65);
            }
        };
        // The frame in the middle is not known yet.
        at(10, &[0x2001, 0x3001, 0x1001]);
        at(20, &[0x2001, 0x3001, 0x1001]);
        at(30, &[0x2021, 0x3001, 0x1001]);
        at(40, &[0x2021, 0x3001, 0x1001]);
        at(45, &[0x2021, 0x3001, 0x1001]);
        at(70, &[0x2021, 0x3001, 0x1001]);
        at(80, &[0x2021, 0x3001, 0x1001]);
        at(90, &[0x3001, 0x1001]);
    });
    let names: Vec<String> = stacks(&decoded)
        .iter()
        .map(|stack| stack.join(" ").replace("Shop.Cart.", ""))
        .collect();
    let expected = [
        "Old IL 0 0x3000 Root IL 0",
        "Old IL 0 Late IL 0 Root IL 0",
        "Old IL 5 Late IL 0 Root IL 0",
        "Old IL 5 Late IL 0 Root IL 0",
        "Old IL 5 Late IL 0 Root IL 0",
        "New IL 5 Late IL 0 Root IL 0",
        "New IL 5 Late IL 0 Root IL 0",
        "Late IL 0 Root IL 0",
    ];
    assert_eq!(names, expected);
}

#[test]
fn native_code_is_a_module_and_nobody_s_code_an_address() {
    let decoded = record(|recorder, program, runtimes| {
        // Only the first reader of a process gets its modules.
        program.natives.refresh();
        program.natives.announce_all();
        recorder.absorb_natives(program);
        let here = stacks as *const () as u64;
        assert!(CODE_MAP.lookup(here).is_some());
        recorder.sample(program, runtimes, sample(1, &[here + 1, 0x10]));
    });
    let stack = &decoded.samples[0].stack;
    assert_eq!(stack[1], "0xf");
    // Under plain `cargo test` another test may have been the first.
    if decoded
        .modules
        .iter()
        .any(|name| name.starts_with("agent-"))
    {
        assert!(stack[0].starts_with("agent-"), "{stack:?}");
    }
}

/// The code map has all facts about code that lives as long as its runtime: before and after the
/// round in which it was compiled, and for samples still queued when the runtime has ended.
#[test]
fn code_that_stays_is_known_without_being_queued_until_its_runtime_is_forgotten() {
    // A number that no other test uses.
    const RUNTIME: u8 = 77;
    let decoded = record(|recorder, program, runtimes| {
        let code: &'static [u8] = vec![0x90; 0x3000].leak();
        let at = code.as_ptr() as u64 + 0x1000;
        let stays = CodeBody {
            range: at..at + 0x100,
            runtime: RUNTIME,
            function: 0x1230,
            code_start: at,
            kind: MethodKind::Il,
            tier: Tier::Tier0,
            added_ns: 20,
            collectible: None,
        };
        // SAFETY: the range is within `code`, which is leaked.
        let unwind = || unsafe { stackwalk::jit::body_from_code(at, 0x100) };
        // The memory belonged to an earlier body, whose end was not reported.
        let CodeChange::Added(old) = method(at..at + 0x80, 2, "Old", 1) else {
            unreachable!()
        };
        program.code.added(old, unwind());
        recorder.sample(program, runtimes, sample(10, &[at + 0x41]));
        program.code.add_permanent(stays, unwind());
        let queued = program.code.queued();
        assert_eq!(queued, 1, "the end of the old one, and nothing of the new");
        recorder.absorb_code(program);
        recorder.sample(program, runtimes, sample(u64::MAX, &[at + 0x41]));
        // All that was queued before and is not read yet.
        recorder.sample(program, runtimes, sample(11, &[at + 0x41]));
        assert_eq!(program.code.runtime_in(&(at..at + 1)), Some(RUNTIME));

        let ended = Clr::new(RUNTIME);
        recorder.forget_runtime(program, &ended);
        assert_eq!(program.code.runtime_in(&(at..at + 1)), None);
        recorder.sample(
            program,
            runtimes,
            sample(crate::base::proc::now_ns() - 1, &[at + 0xc1]),
        );
        recorder.absorb_code(program);
        recorder.forget_removed(u64::MAX);
        recorder.sample(program, runtimes, sample(u64::MAX, &[at + 0xc1]));
    });
    let [old, stays] = ["Shop.Cart.Old IL 5", "stub managed code without a name"];
    let found = stacks(&decoded);
    assert_eq!(found[..4], [[old], [stays], [old], [stays]]);
    assert_ne!(found[4], [stays]);
}

/// If several threads call a method at once, one compiles it, and the others run it before that
/// thread reports it.
#[test]
fn a_method_that_runs_before_it_is_reported_is_no_stub_from_then_on() {
    let decoded = record(|recorder, program, runtimes| {
        // SAFETY: a new mapping, which is never unmapped; nothing in it is run.
        let memory = unsafe {
            let [access, flags] = [
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            ];
            libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0)
        };
        assert_ne!(memory, libc::MAP_FAILED);
        let at = memory as u64;
        let CodeChange::Added(add) = method(at..at + 0x100, 1, "Add", 1) else {
            unreachable!()
        };
        // SAFETY: the range is within the mapping.
        let unwind = unsafe { stackwalk::jit::body_from_code(at, 0x100) };
        program.code.added(add, unwind);
        let stack = [at + 0x411, at + 0x811, at + 0x11];
        recorder.sample(program, runtimes, sample(10, &stack));
        recorder.sample(program, runtimes, sample(20, &stack));
        program
            .code
            .push([method(at + 0x400..at + 0x500, 2, "Late", 25)]);
        recorder.absorb_code(program);
        recorder.sample(program, runtimes, sample(30, &stack));
        // This one was not reported.
        recorder.sample(program, runtimes, sample(10_000_000_000, &stack));
    });
    let add = "Shop.Cart.Add IL 5";
    let [stub, late] = ["stub runtime stub", "Shop.Cart.Late IL 5"];
    let expected = [
        [stub, stub, add],
        [stub, stub, add],
        [late, stub, add],
        [late, stub, add],
    ];
    assert_eq!(stacks(&decoded), expected);
}

#[test]
fn full_tables_start_again_and_what_follows_stands_by_itself() {
    let decoded = record(|recorder, program, runtimes| {
        for address in 0..150_000u64 {
            let stack = [0x4000_0001 + address * 16, 0x9001];
            recorder.sample(program, runtimes, sample(1, &stack));
        }
        assert!(recorder.memory() < 32 << 20, "{}", recorder.memory());
    });
    // `decoded` has checked that every number is defined before its use.
    assert_eq!(decoded.samples.len(), 150_000);
    assert_eq!(
        decoded.samples[149_999].stack[0],
        format!("{:#x}", 0x4000_0000 + 149_999 * 16)
    );
    assert!(decoded.frames > 150_000, "{}", decoded.frames);
}

#[test]
fn broken_stacks_are_counted_and_marked() {
    let decoded = record(|recorder, program, runtimes| {
        let broken = EndCode(EndCode::of(stackwalk::End::Broken(
            stackwalk::Reason::UnknownCode,
        )));
        for _ in 0..3 {
            let sample = WalkedStack {
                end: broken,
                ..sample(1, &[0x11])
            };
            recorder.sample(program, runtimes, sample);
        }
        recorder.write_broken();
    });
    assert_eq!(stacks(&decoded), [["0x10", "[broken: unknown code]"]; 3]);
}

#[test]
fn a_walk_that_reached_a_library_before_the_agent_is_broken_by_that_name() {
    let decoded = record(|recorder, program, runtimes| {
        let broken = EndCode(EndCode::of(stackwalk::End::Broken(
            stackwalk::Reason::UnknownCode,
        )));
        program.natives.refresh();
        // The walk ended in the C library, which had not been read then.
        let stack = [0x11, libc::getpid as *const () as u64 + 1];
        let sample = WalkedStack {
            end: broken,
            ..sample(1, &stack)
        };
        recorder.sample(program, runtimes, sample);
        recorder.write_broken();
    });
    let stacks = stacks(&decoded);
    assert_eq!(
        *stacks[0].last().unwrap(),
        "[broken: library not read yet]",
        "{stacks:?}"
    );
}

#[test]
fn an_exceptions_stack_begins_where_it_was_thrown() {
    let decoded = record(|recorder, program, runtimes| {
        let dispatch = MethodNames {
            module: None,
            token: 1,
            type_name: "System.Runtime.EH".into(),
            name: "RhThrowEx".into(),
        };
        let CodeChange::Added(mut body) = method(0x1000..0x1100, 1, "", 1) else {
            unreachable!()
        };
        body.collectible = Some(Arc::new(CollectibleFacts {
            names: Some(dispatch),
            il_map: Box::default(),
        }));
        program.code.push([
            CodeChange::Added(body),
            method(0x2000..0x2100, 2, "Thrower", 1),
        ]);
        recorder.absorb_code(program);
        let frames = [0x1011, 0x2001, 0x1021];
        let thrown = WalkedStack {
            event: Event::Exception,
            ..sample(10, &frames[..2])
        };
        recorder.sample(program, runtimes, thrown);
        recorder.sample(program, runtimes, sample(10, &frames[..2]));
    });
    let whole = ["System.Runtime.EH.RhThrowEx", "Shop.Cart.Thrower IL 0"];
    assert_eq!(stacks(&decoded), [&whole[1..], &whole[..]]);
}

const PAY: u64 = 0x10_0000;
const SHIP: u64 = 0x10_0100;
const ALL: u64 = 0x10_0200;
const RUN: u64 = 0x10_0500;
const UNWRAP: u64 = 0x10_0600;

/// The words of a chain of awaiters of `Pay`, which was resumed by `older` frames.
fn chain(first: u64, rest: &[(Role, u64, i32)], older: u16, end: ChainEnd) -> Vec<u64> {
    let all = [&[(Role::Task, first, -1)][..], rest].concat();
    let links = all.iter().map(|(role, table, state)| Link {
        role: *role,
        table: *table,
        state: *state,
    });
    let mut words: Vec<u64> = links.map(Link::pack).collect();
    let links = u16::try_from(words.len()).unwrap();
    let head = ChainHead {
        older,
        links,
        end,
        begin: ChainBegin::Method,
    };
    words.push(head.pack());
    words
}

/// Samples of `Charge`, which `Pay` calls after a dispatcher has resumed it.
fn chains(write: impl FnOnce(&mut dyn FnMut(&[u64], &[u64])) + Send + 'static) -> DecodedRecording {
    record(|recorder, program, runtimes| {
        let pay = names("Shop+<Pay>d__1", "MoveNext", 11);
        let task = "AsyncTaskMethodBuilder`1+AsyncStateMachineBox`1";
        program.code.push([
            method(0x1000..0x1100, 1, "Charge", 1),
            body(0x2000..0x2100, 2, pay.clone(), 1),
            body(0x3000..0x3100, 3, names(task, "MoveNext", 3), 1),
            body(
                0x4000..0x4100,
                4,
                names("Shop+<Other>d__2", "MoveNext", 12),
                1,
            ),
        ]);
        let tasks = "System.Threading.Tasks.Task";
        let queue = "System.Threading.ThreadPoolWorkQueue";
        let others = [
            names("System.Threading.ExecutionContext", "RunInternal", 5),
            names("Shop.Cart", "GetAsyncEnumerator", 6),
            names(tasks, "ExecuteWithThreadLocal", 7),
            names(queue, "Dispatch", 8),
            names(
                "System.Threading.Tasks.Task`1[System.Int64]",
                "InnerInvoke",
                9,
            ),
        ];
        let starts = (0x5000..).step_by(0x1000);
        let numbers = 5..;
        for ((names, start), number) in others.into_iter().zip(starts).zip(numbers) {
            let code = body(start..start + 0x100, number, names, 1);
            program.code.push([code]);
        }
        recorder.absorb_code(program);
        recorder.begin_chains(true);
        recorder.note_class(0, PAY, ClassNote::Method(pay));
        let ship = names("Shop+<Ship>d__4", "MoveNext", 14);
        recorder.note_class(0, SHIP, ClassNote::Method(ship));
        let all = "System.Threading.Tasks.Task+WhenAllPromise";
        recorder.note_class(0, ALL, ClassNote::Class(all.into()));
        for (table, class) in [(RUN, "Task`1[System.Int64]"), (UNWRAP, "UnwrapPromise`1")] {
            let class = format!("System.Threading.Tasks.{class}");
            recorder.note_class(0, table, ClassNote::Class(class));
        }
        write(&mut |frames, chain| {
            let words = [frames, chain].concat();
            recorder.sample(program, runtimes, sample(10, &words));
        });
        recorder.write_cut_chains();
    })
}

const CHARGE: &str = "Shop.Cart.Charge IL 5";
const PAY_FRAME: &str = "Shop+<Pay>d__1.MoveNext IL 5";
/// `Charge`, `Pay`, and the frames that resumed it.
const FRAMES: [u64; 3] = [0x1011, 0x2011, 0x3011];

#[test]
fn who_awaits_stands_in_the_place_of_who_resumed() {
    let decoded = chains(|write| {
        let rest = [
            (Role::Task, ALL, NO_STATE),
            (Role::Others, ALL, 2),
            (Role::Task, SHIP, 3),
        ];
        for end in [ChainEnd::Root, ChainEnd::TooDeep] {
            write(&FRAMES, &chain(PAY, &rest, 1, end));
        }
        // Its objects may have moved, so it is only known that it was resumed.
        let closed = ChainHead {
            older: 1,
            links: 0,
            end: ChainEnd::GateClosed,
            begin: ChainBegin::Method,
        };
        write(&FRAMES, &[closed.pack()]);
    });
    let resumer = "AsyncTaskMethodBuilder`1+AsyncStateMachineBox`1.MoveNext IL 5";
    assert_eq!(stacks(&decoded), [[CHARGE, PAY_FRAME, resumer]; 3]);
    let ship = "Shop+<Ship>d__4.MoveNext await 3";
    let logical = |at: usize| decoded.samples[at].logical.clone().unwrap();
    for (at, root) in [(0, "[not awaited]"), (1, "[async: too deep]")] {
        let expected = [CHARGE, PAY_FRAME, "[WhenAll]", "[+2 awaiters]", ship, root];
        assert_eq!(logical(at), expected);
    }
    assert_eq!(logical(2), [CHARGE, PAY_FRAME, "[async: gate closed]"]);
    let cut: std::collections::HashMap<String, u64> =
        [("too deep".into(), 1), ("gate closed".into(), 1)].into();
    assert_eq!(decoded.cut, cut);
}

#[test]
fn a_chain_that_is_not_its_method_s_is_not_shown() {
    let decoded = chains(|write| {
        // The object names another method than the frame.
        write(&FRAMES, &chain(SHIP, &[], 1, ChainEnd::Root));
        // A younger method was resumed, which the handler did not know.
        let younger = [0x1011, 0x4011, 0x3011, 0x2011, 0x3021];
        write(&younger, &chain(PAY, &[], 1, ChainEnd::Root));
        // One sample has one reason, the one in its mark.
        write(&younger, &chain(PAY, &[], 1, ChainEnd::Stale));
        write(&FRAMES, &chain(SHIP, &[], 1, ChainEnd::Stale));
        // More older frames than exist.
        write(&FRAMES, &chain(PAY, &[], 9, ChainEnd::Root));
    });
    // The stack ends where the callers are missing, with the reason.
    let logical: Vec<_> = decoded
        .samples
        .iter()
        .map(|sample| &sample.logical)
        .collect();
    let cut = |frames: &[&str]| Some(frames.iter().map(|one| (*one).to_owned()).collect());
    let mistaken: Option<Vec<String>> = cut(&[CHARGE, PAY_FRAME, "[async: not its method]"]);
    let younger = &decoded.samples[1].stack;
    let not_known = cut(&[&younger[0], &younger[1], "[async: method not known yet]"]);
    let expected = [&mistaken, &not_known, &not_known, &mistaken, &None];
    assert_eq!(logical, expected);
    assert_eq!(younger.len(), 5);
    let cut: std::collections::HashMap<String, u64> = [
        ("not its method".into(), 2),
        ("method not known yet".into(), 2),
    ]
    .into();
    assert_eq!(decoded.cut, cut);
}

#[test]
fn a_task_that_is_about_to_resume_its_method_has_who_awaits_that() {
    let begun = |end| ChainHead {
        older: 1,
        links: 2,
        end,
        begin: ChainBegin::Resumer,
    };
    let links = [(Role::Task, PAY), (Role::Task, SHIP)].map(|(role, table)| {
        let state = 3;
        Link { table, role, state }.pack()
    });
    let chain = [links[0], links[1], begun(ChainEnd::Root).pack()];
    let decoded = chains(move |write| {
        // In the task's own code, in its callees, and in the method, which the handler did not
        // know.
        write(&[0x3011], &chain);
        write(&[0x5011, 0x3011], &chain);
        write(&FRAMES, &chain);
        // The handler found nothing.
        write(&[0x5011, 0x3011], &[]);
    });
    let ship = "Shop+<Ship>d__4.MoveNext await 3";
    let pay = "Shop+<Pay>d__1.MoveNext await 3";
    let [run, task] = [
        "System.Threading.ExecutionContext.RunInternal IL 5",
        "AsyncTaskMethodBuilder`1+AsyncStateMachineBox`1.MoveNext IL 5",
    ];
    let between = "[async: between two methods]";
    let expected: [&[&str]; 4] = [
        &[task, pay, ship, "[not awaited]"],
        &[run, task, pay, ship, "[not awaited]"],
        &[CHARGE, PAY_FRAME, ship, "[not awaited]"],
        &[run, task, between],
    ];
    for (sample, expected) in decoded.samples.iter().zip(expected) {
        assert_eq!(sample.logical.as_deref().unwrap(), expected);
    }
    assert_eq!(decoded.cut, [("between two methods".into(), 1)].into());
}

#[test]
fn a_chain_whose_method_s_class_cannot_be_queried_is_not_known() {
    const GONE: u64 = 0x10_0500;
    let decoded = chains(|write| {
        write(&FRAMES, &chain(GONE, &[], 1, ChainEnd::Root));
        // Once for each.
        write(&FRAMES, &chain(GONE, &[], 1, ChainEnd::Stale));
    });
    let marks = decoded.samples.iter().map(|sample| sample.logical.clone());
    let marks: Vec<_> = marks.map(|logical| logical.unwrap()).collect();
    let cut = |mark| [CHARGE, PAY_FRAME, mark].map(str::to_owned).to_vec();
    let expected = ["[async: class not known yet]", "[async: stale link]"].map(cut);
    assert_eq!(marks, expected);
    let cut: std::collections::HashMap<String, u64> =
        [("class not known yet".into(), 1), ("stale link".into(), 1)].into();
    assert_eq!(decoded.cut, cut);
}

#[test]
fn a_root_whose_class_is_known_by_now_is_one() {
    const ROOT: u64 = 0x10_0300;
    const ITERATOR: u64 = 0x10_0400;
    const WAITS: u64 = 0x10_0600;
    use crate::program::chains::{LinkKind, TaskAt, prepare};
    let task = TaskAt {
        continuation: 0x20,
        flags: 0x34,
        state: 0,
    };
    let (state, machine) = (0x48, 0x40);
    let types = &prepare().types;
    types.learn(
        ROOT,
        LinkKind::Box {
            task,
            state,
            machine,
        },
    );
    types.learn(
        ITERATOR,
        LinkKind::Object {
            task,
            machine,
            state,
            promise: 0x20,
        },
    );
    types.learn(WAITS, LinkKind::Blocked);
    let decoded = chains(|write| {
        for last in [ROOT, ITERATOR, SHIP] {
            let rest = [(Role::Task, last, 0)];
            write(&FRAMES, &chain(PAY, &rest, 1, ChainEnd::Unknown));
        }
        // The handler stopped at it.
        for last in [ROOT, WAITS] {
            let rest = [(Role::Last, last, NO_STATE)];
            write(&FRAMES, &chain(PAY, &rest, 1, ChainEnd::Unknown));
        }
    });
    let roots: Vec<String> = decoded
        .samples
        .iter()
        .map(|sample| sample.logical.clone().unwrap().pop().unwrap())
        .collect();
    let unknown = "[async: class not known yet]";
    let waits = "[blocking wait]";
    assert_eq!(roots, ["[not awaited]", unknown, unknown, unknown, waits]);
    let waiting = decoded.samples.last().unwrap().logical.as_deref().unwrap();
    assert_eq!(waiting, [CHARGE, PAY_FRAME, waits]);
    assert_eq!(decoded.cut["class not known yet"], 3);
}

/// The handler ends a chain so where a continuation's class has no parent that is known. A program
/// died when its runtime was asked for that class.
#[test]
fn a_suspended_method_s_code_is_no_class() {
    record(|recorder, program, runtimes| {
        const AT: u64 = 0x2010;
        recorder.begin_chains(true);
        recorder.note_class(0, AT, ClassNote::Class("Shop.Cart".into()));
        let mut is_shown = |role| {
            let link = Link {
                table: AT,
                role,
                state: NO_STATE,
            };
            let look = &mut Lookup { program, runtimes };
            recorder.link_frame(look, 0, link, 10).is_some()
        };
        assert!(is_shown(Role::Last) && !is_shown(Role::Suspended));
    });
}

/// An iterator runs for the first time, or continues. Its state machine is in the heap both times,
/// so only its caller shows which. While the handler does not know the code that resumes, this is
/// undecided.
#[test]
fn what_an_iterator_s_chain_is_worth_is_shown_by_its_caller() {
    let decoded = chains(|write| {
        let mut words = chain(PAY, &[(Role::Task, SHIP, 3)], 1, ChainEnd::Root);
        let head = ChainHead {
            older: 1,
            links: 2,
            end: ChainEnd::Root,
            begin: ChainBegin::MethodIfResumed,
        };
        *words.last_mut().unwrap() = head.pack();
        for behind in [0x3011, 0x5011, 0x6011] {
            write(&[0x1011, 0x2011, behind], &words);
        }
        // No frame called it.
        *words.last_mut().unwrap() = ChainHead { older: 0, ..head }.pack();
        write(&[0x1011, 0x2011], &words);
    });
    let ship = "Shop+<Ship>d__4.MoveNext await 3";
    let whole = [CHARGE, PAY_FRAME, ship, "[not awaited]"].map(str::to_owned);
    let logical: Vec<_> = decoded
        .samples
        .iter()
        .map(|sample| &sample.logical)
        .collect();
    let whole = Some(whole.to_vec());
    assert_eq!(logical, [&whole, &whole, &None, &None]);
    assert_eq!(decoded.cut, [].into());
}

/// The first samples of a precompiled method have no chain, as the handler does not know it yet.
#[test]
fn a_resumed_method_that_the_handler_did_not_know_is_counted() {
    let decoded = chains(|write| {
        // Resumed, by its task and by the code that runs the task.
        write(&FRAMES, &[]);
        write(&[0x1011, 0x2011, 0x5011, 0x3011], &[]);
        // Called.
        write(&[0x1011, 0x2011, 0x6011], &[]);
        // The dispatcher itself, which is about to resume a method, and other code that it runs.
        write(&[0x5011, 0x3011], &[]);
        write(&[0x1011, 0x5011], &[]);
        // A task from the queue, and one that is run by a waiting thread.
        write(&[0x1011, 0x7011, 0x8011], &[]);
        write(&[0x1011, 0x7011, 0x6011], &[]);
    });
    let reasons = [
        ("method not known yet".into(), 3),
        ("between two methods".into(), 1),
    ];
    assert_eq!(decoded.cut, reasons.into());
    let mark = "[async: method not known yet]";
    let logical: Vec<_> = decoded
        .samples
        .iter()
        .map(|sample| &sample.logical)
        .collect();
    let cut = Some([CHARGE, PAY_FRAME, mark].map(str::to_owned).to_vec());
    let task = Some([CHARGE, mark].map(str::to_owned).to_vec());
    let dispatcher = [
        "System.Threading.ExecutionContext.RunInternal IL 5",
        "AsyncTaskMethodBuilder`1+AsyncStateMachineBox`1.MoveNext IL 5",
        "[async: between two methods]",
    ];
    let between = Some(dispatcher.map(str::to_owned).to_vec());
    let none = None;
    let expected = [&cut, &cut, &none, &between, &none, &task, &none];
    assert_eq!(logical, expected);
}

/// The delegate of `Task.Run` is no async method. Its caller is the method that awaits the task, if
/// the thread took the task from a queue.
#[test]
fn a_task_from_the_queue_was_called_by_who_awaits_it() {
    const INVOKE: u64 = 0x9011;
    const RUNS: u64 = 0x7011;
    const QUEUE: u64 = 0x8011;
    const WAITS: u64 = 0x6011;
    let decoded = chains(|write| {
        let of_task = |rest: &[(Role, u64, i32)], older| {
            let mut words = chain(RUN, rest, older, ChainEnd::Root);
            let head = ChainHead {
                older,
                links: u16::try_from(words.len() - 1).unwrap(),
                end: ChainEnd::Root,
                begin: ChainBegin::Task,
            };
            *words.last_mut().unwrap() = head.pack();
            words
        };
        let frames = [0x1011, INVOKE, RUNS, QUEUE];
        let ship = (Role::Task, SHIP, 3);
        write(&frames, &of_task(&[ship], 1));
        // An iterator that makes a task: its promise is awaited.
        write(
            &frames,
            &of_task(&[(Role::Task, UNWRAP, NO_STATE), ship], 1),
        );
        // Only the task.
        write(&frames[2..], &of_task(&[ship], 1));
        // Run by the waiting code, so the physical frames are its callers.
        write(&[0x1011, INVOKE, RUNS, WAITS], &of_task(&[ship], 1));
    });
    let ship = "Shop+<Ship>d__4.MoveNext await 3";
    let runs = "System.Threading.Tasks.Task.ExecuteWithThreadLocal IL 5";
    let logical: Vec<_> = decoded
        .samples
        .iter()
        .map(|sample| &sample.logical)
        .collect();
    let stack = |leaf: &str| {
        let frames = [leaf, "[Task.Run]", ship, "[not awaited]"];
        Some(frames.map(str::to_owned).to_vec())
    };
    assert_eq!(
        logical,
        [&stack(CHARGE), &stack(CHARGE), &stack(runs), &None]
    );
    assert_eq!(decoded.cut, [].into());
}

#[test]
fn waits_are_without_the_time_that_the_program_stood_still() {
    let mut recorder = Recorder::default();
    recorder.leave_out(100..200);
    recorder.leave_out(300..350);
    for (end, ns, running) in [
        (90, 50, 50),
        (150, 100, 50),
        (200, 100, 0),
        (250, 250, 150),
        (400, 400, 250),
        (320, 5, 0),
        (400, 0, 0),
        (10, 40, 40),
    ] {
        assert_eq!(recorder.running_ns(end, ns), running, "{end} {ns}");
    }
    for _ in 0..MAX_STANDSTILLS {
        recorder.leave_out(500..600);
    }
    assert_eq!(recorder.running_ns(250, 250), 250);
}
