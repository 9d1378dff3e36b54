//! Scenario tests of method tracing: ReJIT requests, exact call counts, reverts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use control::{keys, reply, verb};
use corprof::il::{Body, Handler, Instruction, Operand};
use corprof::sys::Hresult;
use corprof::sys::rules::RuntimeVersion;
use fake_clr::{Call, FakeClr};

use crate::program::{END, Program, Shop, agent_threads, request, until};
use crate::recorded::{Recorded, Traced};

const REQUEST: &str = "RequestReJITWithInliners";
/// A request that leaves methods their own IL.
const RECOMPILE: &str = "RequestReJIT";

/// The token of a method.
fn token(clr: &FakeClr, function: usize) -> u64 {
    clr.function(function).unwrap().token.into()
}

/// ReJIT requests and reverts in order, with their method tokens.
fn changes(clr: &FakeClr) -> Vec<(&'static str, Vec<u64>)> {
    let calls = clr.journal().into_iter();
    let changes =
        calls.filter(|call| call.method.contains("ReJIT") || call.method == "RequestRevert");
    let by = |call: Call| {
        // A request turns its thread into a thread of the runtime.
        assert_eq!(call.thread, "sidewalk-trace", "{call:?}");
        (call.method, call.arguments)
    };
    changes
        .filter(|call| call.method != "GetReJITIDs")
        .map(by)
        .collect()
}

/// The probes in a method's IL, and its number.
struct Probes {
    enter: extern "C" fn(i32) -> i64,
    leave: extern "C" fn(i64, i32),
    fault: extern "C" fn(i64, i32),
    number: i32,
}

impl Probes {
    /// Reads the probes from IL; `None` if it has none.
    fn of(il: &[u8]) -> Option<Probes> {
        let body = Body::read(il).unwrap();
        let at = |label| body.position(label).unwrap();
        let handlers = body.clauses.iter();
        let handlers = handlers.filter(|clause| clause.handler == Handler::Fault);
        let handlers: Vec<_> = handlers
            .map(|clause| at(clause.handler_start)..at(clause.handler_end))
            .collect();
        let (mut plain, mut in_handlers, mut number) = (Vec::new(), Vec::new(), None);
        for (at, line) in body.lines.iter().enumerate() {
            let found = match line.instruction.operand() {
                Operand::Int64(address) => {
                    let is_in_handler = handlers.iter().any(|handler| handler.contains(&at));
                    let kind = if is_in_handler {
                        &mut in_handlers
                    } else {
                        &mut plain
                    };
                    kind.push(usize::try_from(*address).unwrap());
                    continue;
                }
                Operand::Int32(value) => Some(*value),
                Operand::Int8(value) => Some((*value).into()),
                _ => (0..=8).find(|value| line.instruction == Instruction::ldc_i4(*value)),
            };
            number = number.or(found);
        }
        let ([enter, leave], [fault]) = (&plain[..], &in_handlers[..]) else {
            assert_eq!((plain.len(), in_handlers.len()), (0, 0));
            return None;
        };
        // SAFETY: the agent wrote these addresses into the IL, for calls with these signatures.
        unsafe {
            Some(Probes {
                enter: std::mem::transmute::<usize, extern "C" fn(i32) -> i64>(*enter),
                leave: std::mem::transmute::<usize, extern "C" fn(i64, i32)>(*leave),
                fault: std::mem::transmute::<usize, extern "C" fn(i64, i32)>(*fault),
                number: number?,
            })
        }
    }

    fn call(&self, is_error: bool) {
        let began = (self.enter)(self.number);
        match is_error {
            false => (self.leave)(began, self.number),
            true => (self.fault)(began, self.number),
        }
    }
}

/// Calls a traced method. The first `errors` calls end with an exception.
fn call(shop: &Shop, function: usize, calls: usize, errors: usize) {
    shop.in_main(|| {
        let il = shop.clr.prepare_call(function);
        let probes = Probes::of(&il).expect("it has probes");
        for number in 0..calls {
            probes.call(number < errors);
        }
    });
}

fn traced(recorded: &Recorded) -> Vec<Traced> {
    recorded.traced.values().cloned().collect()
}

fn counted(name: &str, calls: u64, errors: u64) -> Traced {
    Traced {
        name: name.into(),
        refused: String::new(),
        calls,
        errors,
    }
}

#[test]
fn methods_are_traced_and_reverted_in_order() {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = &shop.clr;
    program.attach(clr);
    let mut recording = program.record("event=class-load;trace=1000000000:Shop.Cart.*");
    recording.until(|recorded| recorded.traced.len() == 2);
    let both = vec![token(clr, shop.main), token(clr, shop.add)];
    assert_eq!(changes(clr), [(REQUEST, both.clone())]);
    // The metadata that the new IL refers to is written before the request. It is never applied:
    // that breaks precompiled code of the module on .NET 11.0.0.
    let order: Vec<_> = clr.journal().into_iter().map(|call| call.method).collect();
    let at = |method| order.iter().position(|one| *one == method);
    assert!(at("GetModuleMetaData").unwrap() < at(REQUEST).unwrap());
    assert_eq!(at("ApplyMetaData"), None);

    call(&shop, shop.add, 7, 2);
    call(&shop, shop.main, 3, 0);
    call(&shop, shop.add, 1, 0);
    let recorded = recording.stop();
    recorded.assert_complete();
    assert_eq!(
        traced(&recorded),
        [
            counted("Shop.Cart.Main", 3, 0),
            counted("Shop.Cart.Add", 8, 2)
        ]
    );
    assert_eq!(
        changes(clr),
        [(REQUEST, both.clone()), ("RequestRevert", both)]
    );
    // The methods run their own IL again.
    for function in [shop.main, shop.add] {
        assert!(Probes::of(&clr.prepare_call(function)).is_none());
    }
    // A runtime refuses to detach a profiler that has used ReJIT.
    let left = program.ask(&request(verb::DETACH));
    assert_eq!(
        (left.verb.as_str(), left.get(keys::HOW)),
        (reply::OK, Some("idle"))
    );
    let why = left.get(keys::WHY).unwrap();
    assert!(why.starts_with("methods were traced in it"), "{why}");
    clr.shutdown();
    shop.assert_no_violations();
}

#[test]
fn no_lock_is_held_during_rejit_calls() {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = shop.clr.clone();
    let (main, add, thread) = (shop.main, shop.add, shop.clr.add_thread());
    // Another thread calls the method during the request and needs the new IL.
    let went_on = {
        let clr = clr.clone();
        move || {
            clr.on_thread(thread, || {
                assert!(
                    Probes::of(&clr.prepare_call(add)).is_some(),
                    "ready before it is asked for"
                );
                // For a method that is not traced.
                assert_eq!(clr.rejit_error(main), Hresult::S_OK);
                assert_eq!(clr.jit_compilation_started(main), Hresult::S_OK);
                assert_eq!(clr.jit_compilation_finished(main), Hresult::S_OK);
                assert_eq!(clr.thread_created(thread), Hresult::S_OK);
                assert_eq!(clr.thread_destroyed(thread), Hresult::S_OK);
            });
        }
    };
    clr.after(REQUEST, went_on);
    for method in ["GetILFunctionBody", "RequestRevert", "GetModuleMetaData"] {
        let (clr, thread) = (clr.clone(), clr.add_thread());
        let all = clr.clone();
        all.meanwhile(method, move || {
            clr.on_thread(thread, || {
                assert_eq!(clr.thread_created(thread), Hresult::S_OK);
                assert_eq!(clr.jit_compilation_finished(main), Hresult::S_OK);
                // The IL may be the old or the new one.
                let _il: Arc<[u8]> = clr.prepare_call(main);
                assert_eq!(clr.thread_destroyed(thread), Hresult::S_OK);
            });
        });
    }
    program.attach(&clr);
    let mut recording = program.record("event=class-load;trace=1000000000:Shop.Cart.Add");
    recording.until(|recorded| recorded.traced.len() == 1);
    recording.stop().assert_complete();
    assert_eq!(changes(&clr).len(), 2);
    clr.shutdown();
    shop.assert_no_violations();
}

/// Adds a module with `plain` methods `Many.Plain.M`, and `generic` ones of a generic type.
fn add_many(clr: &FakeClr, plain: usize, generic: usize) -> (Vec<u64>, Vec<u64>) {
    let module = clr.add_module("/app/many.dll");
    let tokens = |class: &str, count: usize| {
        let class = clr.add_named_class(module, class);
        let functions = (0..count).map(|_| clr.add_named_function(class, "M"));
        functions.map(|function| token(clr, function)).collect()
    };
    // In metadata the generic methods come first.
    let generic = tokens("Many.Generic`1", generic);
    (tokens("Many.Plain", plain), generic)
}

#[test]
fn methods_are_asked_for_in_small_requests() {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = &shop.clr;
    let (plain, generic) = add_many(clr, 200, 5);
    program.attach(clr);
    let mut recording = program.record("event=class-load;trace=1000000000:Many.*");
    recording.until(|recorded| recorded.traced.len() == 205);
    recording.stop().assert_complete();
    let changes = changes(clr);
    for kind in [REQUEST, "RequestRevert"] {
        let of_kind = changes.iter().filter(|(method, _)| *method == kind);
        let requests: Vec<_> = of_kind.map(|(_, tokens)| tokens.clone()).collect();
        // Generic methods come last and are never mixed with others: the runtime searches all
        // modules for their instances.
        assert_eq!(requests.concat(), [plain.clone(), generic.clone()].concat());
        assert!(
            requests.iter().all(|tokens| tokens.len() <= 64),
            "{requests:?}"
        );
        let first = requests.iter().find(|tokens| tokens.contains(&generic[0]));
        assert_eq!(first.unwrap()[0], generic[0]);
    }
    let of = |kind| changes.iter().find(|(method, _)| *method == kind).unwrap();
    assert_eq!(of(REQUEST).1, plain[..8]);
    clr.shutdown();
    shop.assert_no_violations();
}

#[test]
fn methods_are_requested_after_the_compilations_that_may_inline_them() {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = &shop.clr;
    program.attach(clr);
    clr.jit_compilation_started(shop.main);
    assert!(clr.may_inline(shop.main, shop.add));
    let mut recording = program.record("event=class-load;trace=1000000000:Shop.Cart.*");
    until("inlining is refused", || {
        !clr.may_inline(shop.main, shop.add)
    });
    // .NET 8 would crash at the end of this compilation if the method had been requested.
    assert_eq!(changes(clr), []);
    clr.jit_compilation_finished(shop.main);
    recording.until(|recorded| recorded.traced.len() == 2);
    until("inlining is allowed", || {
        clr.may_inline(shop.main, shop.add)
    });
    recording.stop().assert_complete();
    assert_eq!(changes(clr)[0].0, REQUEST);
    clr.shutdown();
    shop.assert_no_violations();
}

#[test]
fn a_recording_goes_on_while_a_request_takes_long() {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = &shop.clr;
    // It comes after the shop's module.
    add_many(clr, 1, 0);
    program.attach(clr);
    let (begun, go_on) = hold(clr, REQUEST);
    let mut recording = program
        .record("event=class-load;trace=1000000000:Shop.Cart.*;trace=1000000000:Many.Plain.*");
    begun.recv_timeout(END).unwrap();
    shop.until_subscribed();
    shop.load_class();
    recording.until(|recorded| !recorded.stacks().is_empty());
    let recorded = recording.stop();
    // The request is still in progress.
    drop(go_on);
    recorded.assert_complete();
    let notes = recorded.notes.join("\n");
    for recorded in [
        "1 modules were not searched for methods of --trace before the recording ended",
        "2 methods of --trace were not traced before the recording ended",
        "some traced methods do not have their own code back yet",
    ] {
        assert!(notes.contains(recorded), "{notes}");
    }
    for wrong in ["from their first call on", "no method of this name"] {
        assert!(!notes.contains(wrong), "{notes}");
    }
    let both = vec![token(clr, shop.main), token(clr, shop.add)];
    // One by one, because the request took long.
    clr.wait_for_calls("RequestRevert", 2);
    let [main, add] = both[..] else { panic!() };
    let reverts = [main, add].map(|token| ("RequestRevert", vec![token]));
    assert_eq!(changes(clr)[0], (REQUEST, both));
    assert_eq!(changes(clr)[1..], reverts);
    clr.shutdown();
    shop.assert_no_violations();
}

/// Keeps the next call of a method from returning. Returns a channel that receives when the call
/// begins, and one whose drop ends it.
fn hold(clr: &FakeClr, method: &'static str) -> (Receiver<()>, Sender<()>) {
    let (go_on, waits) = channel::<()>();
    let (tell, begun) = channel();
    clr.meanwhile(method, move || {
        tell.send(()).unwrap();
        let _dropped = waits.recv();
    });
    (begun, go_on)
}

/// A runtime that reports version 11, with `Shop.Cart.Load`, which returns a task.
fn net11() -> (Shop, usize) {
    let shop = Shop::new(RuntimeVersion::Net10, "/app/shop.dll");
    shop.clr.set_major(11);
    let load = shop.clr.add_task_function(shop.class, "Load");
    (shop, load)
}

#[test]
fn callers_that_were_not_recompiled_are_reported() {
    let (program, (shop, _)) = (Program::new(), net11());
    let clr = &shop.clr;
    let run = clr.add_runtime_async_function(shop.class, "Run");
    program.attach(clr);
    let (begun, go_on) = hold(clr, RECOMPILE);
    let recording = program.record("event=class-load;trace=1000000000:Shop.Cart.Load");
    begun.recv_timeout(END).unwrap();
    let recorded = recording.stop();
    drop(go_on);
    recorded.assert_complete();
    let notes = recorded.notes.join("\n");
    assert!(
        notes.contains("not all of that code was compiled again before the recording ended"),
        "{notes}"
    );
    clr.wait_for_calls("RequestRevert", 1);
    assert_eq!(recompiled(clr), [vec![token(clr, run)]]);
    clr.shutdown();
    shop.assert_no_violations();
}

/// The methods of each request that leaves them their own IL.
fn recompiled(clr: &FakeClr) -> Vec<Vec<u64>> {
    let calls = clr.calls_of(RECOMPILE).into_iter();
    calls.map(|call| call.arguments).collect()
}

#[test]
fn callers_stay_recompiled_while_an_earlier_session_is_reverted() {
    let (program, (shop, load)) = (Program::new(), net11());
    let clr = &shop.clr;
    // More methods than one request reverts, before those that matter.
    let many = clr.add_named_class(shop.module, "Shop.Many");
    let _many: Vec<_> = (0..70).map(|_| clr.add_named_function(many, "M")).collect();
    let home = clr.add_runtime_async_function(many, "Home");
    let jobs = clr.add_named_class(shop.module, "Jobs.Night");
    let run = clr.add_runtime_async_function(jobs, "Run");
    // It is reverted last.
    let generic = clr.add_named_class(shop.module, "Shop.Box`1");
    let last = clr.add_named_function(generic, "Get");
    program.attach(clr);
    let first = program.record_and_stay("event=class-load;trace=1000000000:Shop.*");
    clr.wait_for_calls(RECOMPILE, 1);
    let (begun, go_on) = hold(clr, "RequestRevert");
    first.stop().assert_complete();
    begun.recv_timeout(END).unwrap();

    let mut second = program.record("event=class-load;trace=1000000000:Shop.Cart.Load");
    // Its first round follows the command to the thread that reverts.
    second.until(|recorded| !recorded.runtimes.is_empty());
    drop(go_on);
    let [home_token, run_token, last] = [home, run, last].map(|function| token(clr, function));
    let is_reverted = |token: u64| {
        let reverts = clr.calls_of("RequestRevert");
        reverts.iter().any(|call| call.arguments.contains(&token))
    };
    until("the first session is reverted", || is_reverted(last));
    // `Home` had probes in the first session, `Run` was recompiled in both.
    assert_eq!(
        recompiled(clr),
        [vec![run_token], vec![home_token, run_token]]
    );
    assert!(!is_reverted(home_token) && !is_reverted(run_token));
    shop.in_main(|| {
        assert!(Probes::of(&clr.prepare_call(home)).is_none());
        assert!(Probes::of(&clr.prepare_call(load)).is_some());
    });
    second.stop().assert_complete();
    assert!(is_reverted(home_token) && is_reverted(run_token));
    clr.shutdown();
    shop.assert_no_violations();
}

#[test]
fn methods_that_have_code_are_asked_for_first() {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = &shop.clr;
    program.attach(clr);
    // The code from before the attach is known then.
    program.record_and_stay("event=class-load").stop();
    let add = |path| {
        let module = clr.add_module(path);
        let class = clr.add_named_class(module, "Late.Job");
        let generic = clr.add_named_class(module, "Late.Box`1");
        let functions = [class, class, generic, generic];
        let functions = functions.map(|of| clr.add_named_function(of, "M"));
        let [_, hot, _, hot_generic] = functions;
        clr.on_thread(shop.thread, || {
            assert_eq!(clr.module_load_finished(module), Hresult::S_OK);
            for function in [hot, hot_generic] {
                assert_eq!(clr.jit_compilation_finished(function), Hresult::S_OK);
            }
        });
        functions.map(|function| token(clr, function))
    };
    let (one, two) = (add("/app/one.dll"), add("/app/two.dll"));
    let mut recording = program.record("event=class-load;trace=1000000000:Late.*");
    recording.until(|recorded| recorded.traced.len() == 8);
    recording.stop().assert_complete();
    // Those with code of all modules come before all others, and generic ones last of each.
    let (hot, cold) = ([1, 3], [0, 2]);
    let order = [(one, hot), (two, hot), (one, cold), (two, cold)];
    let order: Vec<u64> = order
        .iter()
        .flat_map(|(functions, some)| some.map(|at| functions[at]))
        .collect();
    let requests = clr.calls_of(REQUEST).into_iter();
    let requests: Vec<_> = requests.flat_map(|call| call.arguments).collect();
    assert_eq!(requests, order);
    clr.shutdown();
    shop.assert_no_violations();
}

#[test]
fn a_module_that_is_loaded_does_not_wait_for_others() {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = &shop.clr;
    add_many(clr, 2000, 0);
    program.attach(clr);
    let (sender, receiver) = channel();
    let (other, thread) = (clr.clone(), clr.add_thread());
    clr.meanwhile(REQUEST, move || {
        let before = other.calls_of("GetModuleMetaData").len();
        std::thread::spawn({
            let other = other.clone();
            move || {
                let module = other.add_module("/app/late.dll");
                let class = other.add_named_class(module, "Many.Late");
                let run = other.add_named_function(class, "Run");
                let answer = other.on_thread(thread, || other.module_load_finished(module));
                sender.send((answer, token(&other, run))).unwrap();
            }
        });
        other.wait_for_calls("GetModuleMetaData", before + 1);
    });
    let mut recording =
        program.record("event=class-load;trace=1000000000:Many.*;trace_limit=10000");
    let (answer, late) = receiver.recv_timeout(END).unwrap();
    assert_eq!(answer, Hresult::S_OK);
    recording.until(|recorded| recorded.traced.len() == 2001);
    recording.stop().assert_complete();
    let requests = clr.calls_of(REQUEST);
    // Tokens of both modules may be equal, but only this request has a single method.
    let of_late = requests.iter().position(|call| call.arguments == [late]);
    assert!(of_late.unwrap() + 1 < requests.len());
    clr.shutdown();
    shop.assert_no_violations();
}

/// Calls `Add` until the agent writes a note about it. Returns the notes, the ReJIT requests and
/// reverts, and the method's token.
fn call_without_end(pattern: &str) -> (String, Vec<(&'static str, Vec<u64>)>, u64) {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = &shop.clr;
    program.attach(clr);
    let mut recording = program.record(&format!("event=class-load;trace=1000000000:{pattern}"));
    recording.until(|recorded| !recorded.traced.is_empty());
    let probes = shop.in_main(|| Probes::of(&clr.prepare_call(shop.add)).unwrap());
    let is_said = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_said.load(Ordering::Relaxed) {
                probes.call(false);
            }
        });
        recording.until(|recorded| !recorded.notes.is_empty());
        is_said.store(true, Ordering::Relaxed);
    });
    if pattern.contains('*') {
        clr.wait_for_calls("RequestRevert", 1);
    }
    let changes = changes(clr);
    let add = token(clr, shop.add);
    let recorded = recording.stop();
    recorded.assert_complete();
    clr.shutdown();
    shop.assert_no_violations();
    (recorded.notes.concat(), changes, add)
}

#[test]
fn a_method_that_is_called_all_the_time_is_left_out() {
    let (note, changes, add) = call_without_end("Shop.*");
    assert!(note.starts_with("Shop.Cart.Add was called "), "{note}");
    assert!(note.contains("counting stopped then"), "{note}");
    assert_eq!(changes[1..], [("RequestRevert", vec![add])]);
}

#[test]
fn a_method_that_was_named_is_traced_however_often_it_is_called() {
    let (note, changes, _) = call_without_end("Shop.Cart.Add");
    assert!(note.contains("trace what calls it instead"), "{note}");
    assert_eq!(changes.len(), 1);
}

#[test]
fn methods_of_a_module_are_traced_before_it_runs() {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = &shop.clr;
    program.attach(clr);
    let mut recording = program.record("event=class-load;trace=1000000000:Late.*");
    // The modules from before the session have been searched.
    recording.until(|recorded| !recorded.runtimes.is_empty());
    let run = shop.in_main(|| {
        let module = clr.add_module("/app/late.dll");
        let class = clr.add_named_class(module, "Late.Job");
        let run = clr.add_named_function(class, "Run");
        assert_eq!(clr.module_load_finished(module), Hresult::S_OK);
        // The request is made before the callback returns.
        assert_eq!(changes(clr), [(REQUEST, vec![token(clr, run)])]);
        run
    });
    call(&shop, run, 5, 0);
    let recorded = recording.stop();
    recorded.assert_complete();
    assert_eq!(traced(&recorded), [counted("Late.Job.Run", 5, 0)]);
    clr.shutdown();
    shop.assert_no_violations();
}

#[test]
fn a_module_that_is_reported_twice_is_traced_once() {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = &shop.clr;
    program.attach(clr);
    let (sender, receiver) = channel();
    let (other, module, thread) = (clr.clone(), shop.module, clr.add_thread());
    // The session enumerates the module while another thread reports it.
    clr.meanwhile(REQUEST, move || {
        let before = other.calls_of("GetModuleMetaData").len();
        std::thread::spawn({
            let other = other.clone();
            move || {
                let answer = other.on_thread(thread, || other.module_load_finished(module));
                sender.send(answer).unwrap();
            }
        });
        other.wait_for_calls("GetModuleMetaData", before + 1);
    });
    let recording = program.record("event=class-load;trace=1000000000:Shop.Cart.Add");
    assert_eq!(receiver.recv_timeout(END), Ok(Hresult::S_OK));
    call(&shop, shop.add, 6, 0);
    let recorded = recording.stop();
    recorded.assert_complete();
    assert_eq!(traced(&recorded), [counted("Shop.Cart.Add", 6, 0)]);
    let reverts = clr.calls_of("RequestRevert");
    assert_eq!(reverts.len(), 1);
    assert_eq!(reverts[0].arguments, [token(clr, shop.add)]);
    assert_eq!(recorded.notes, [""; 0]);
    clr.shutdown();
    shop.assert_no_violations();
}

#[test]
fn a_second_session_traces_again_and_counts_its_own_calls() {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = &shop.clr;
    program.attach(clr);
    let config = "event=class-load;trace=1000000000:Shop.Cart.Add";
    let (mut old, mut under_way) = (None, None);
    for calls in [4, 9] {
        let mut recording = program.record_and_stay(config);
        recording.until(|recorded| recorded.traced.len() == 1);
        call(&shop, shop.add, calls as usize, 1);
        let probes = Probes::of(&clr.prepare_call(shop.add)).unwrap();
        // A call that began in the previous session is not counted in this one.
        if let Some(began) = under_way.replace((probes.enter)(probes.number)) {
            (probes.leave)(began, probes.number);
        }
        let recorded = recording.stop();
        recorded.assert_complete();
        assert_eq!(traced(&recorded), [counted("Shop.Cart.Add", calls, 1)]);
        // A call in old code is not counted after the session's end.
        probes.call(false);
        let number = *old.get_or_insert(probes.number);
        assert_eq!(probes.number, number, "a method has its number for good");
    }
    let add = vec![token(clr, shop.add)];
    let each = [(REQUEST, add.clone()), ("RequestRevert", add)];
    assert_eq!(changes(clr), [&each[..], &each].concat());
    assert_eq!(agent_threads(), ["sidewalk", "sidewalk-trace"]);
    clr.shutdown();
    shop.assert_no_violations();
}

#[test]
fn methods_that_cannot_be_traced_are_reported() {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = &shop.clr;
    let plugin = clr.add_collectible_module("/app/plugin.dll");
    let class = clr.add_named_class(plugin, "Shop.Plugin");
    clr.add_named_function(class, "Run");
    let core = clr.add_module("/runtime/System.Private.CoreLib.dll");
    let class = clr.add_named_class(core, "Shop.Core");
    clr.add_named_function(class, "Deep");
    program.attach(clr);
    let mut recording = program.record(
        "event=class-load;trace=0:Shop.Core.Deep;trace=0:Shop.*;trace=0:Nowhere.*;trace_limit=1",
    );
    recording.until(|recorded| recorded.traced.len() == 2);
    let recorded = recording.stop();
    recorded.assert_complete();
    let traced = traced(&recorded).into_iter();
    let mut traced: Vec<_> = traced.map(|one| (one.name, one.refused)).collect();
    traced.sort();
    let of_core = "the runtime itself calls methods of System.Private.CoreLib";
    assert_eq!(
        traced,
        [
            ("Shop.Cart.Main".into(), String::new()),
            // Methods with an exact pattern are reported by name.
            ("Shop.Core.Deep".into(), of_core.to_owned()),
        ]
    );
    assert_eq!(
        recorded.notes,
        [
            "--trace Nowhere.*: no method of this name in the 3 modules searched (names are \
             Namespace.Type.Method, * is a wildcard)",
            "1 methods of --trace were not traced: 1 come first, and --trace-limit is 1",
            "1 methods of plugin.dll were not traced: its assembly can be unloaded, and the \
             runtime does not compile such code again",
        ]
    );
    clr.shutdown();
    shop.assert_no_violations();
}

#[test]
fn methods_of_two_runtimes_are_counted_apart() {
    let program = Program::new();
    let eight = Shop::new(RuntimeVersion::Net8, "/app/eight.dll");
    let ten = Shop::new(RuntimeVersion::Net10, "/app/ten.dll");
    program.attach(&eight.clr);
    program.attach(&ten.clr);
    let mut recording = program.record("event=class-load;trace=1000000000:Shop.Cart.Add");
    recording.until(|recorded| recorded.traced.len() == 2);
    call(&eight, eight.add, 3, 0);
    call(&ten, ten.add, 8, 0);
    let recorded = recording.stop();
    recorded.assert_complete();
    let mut traced = traced(&recorded);
    // Each runtime has its own thread for its requests.
    traced.sort_by_key(|one| one.calls);
    assert_eq!(
        traced,
        [
            counted("Shop.Cart.Add", 3, 0),
            counted("Shop.Cart.Add", 8, 0)
        ]
    );
    for shop in [&eight, &ten] {
        assert_eq!(changes(&shop.clr).len(), 2);
        shop.clr.shutdown();
        shop.assert_no_violations();
    }
}
