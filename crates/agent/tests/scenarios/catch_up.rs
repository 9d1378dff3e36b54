//! Scenario tests of the catch-up after attach: code, modules and threads that existed before, some
//! of which end meanwhile.

use std::sync::mpsc::{TryRecvError, channel};

use corprof::sys::Hresult;
use corprof::sys::rules::RuntimeVersion;
use fake_clr::FakeClr;

use crate::program::{CLASS_LOADS, END, Program, Shop, own_tid, until};
use crate::recorded::Recorded;

/// Number of calls of one method.
fn count(clr: &FakeClr, method: &str) -> usize {
    clr.calls_of(method).len()
}

/// Records one class load in the last of these functions. Each calls the next.
fn record_in(program: &Program, shop: &Shop, functions: &[usize]) -> Recorded {
    let recording = program.record(CLASS_LOADS);
    shop.until_subscribed();
    fn nest(shop: &Shop, functions: &[usize]) {
        match functions {
            [] => shop.load_class_here(),
            [first, rest @ ..] => shop.clr.call(*first, || nest(shop, rest)),
        }
    }
    shop.clr.on_thread(shop.thread, || nest(shop, functions));
    recording.stop()
}

#[test]
fn code_modules_and_threads_from_before_attach_are_known() {
    let (program, shop) = (Program::new(), Shop::net8());
    let other = shop.clr.add_module("/app/other.dll");
    let class = shop.clr.add_named_class(other, "Other.Tools");
    let tool = shop.clr.add_named_function(class, "Use");
    // The catch-up registers all bodies of a method.
    shop.clr.add_body(tool);
    shop.clr.add_body(tool);
    program.attach(&shop.clr);
    let recorded = record_in(&program, &shop, &[shop.main, tool, shop.add]);
    recorded.assert_complete();
    assert_eq!(
        recorded.stacks(),
        ["shop.dll!Shop.Cart.Add < other.dll!Other.Tools.Use < shop.dll!Shop.Cart.Main"]
    );
    assert_eq!(recorded.samples[0].tid, own_tid());
    assert_eq!(recorded.samples[0].detail, "Shop.Cart");
    let mut modules = recorded.modules.clone();
    modules.sort();
    assert_eq!(
        modules,
        [(0, "/app/other.dll".into()), (0, "/app/shop.dll".into())]
    );
    // Known before any sample: none of it had to be discovered.
    assert_eq!(count(&shop.clr, "GetFunctionFromIP3"), 0);
    // `EnumJITedFunctions2` crashes .NET Core 3.1 while a module unloads.
    assert_eq!(count(&shop.clr, "EnumJITedFunctions"), 1);
    assert_eq!(count(&shop.clr, "EnumJITedFunctions2"), 0);
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}

#[test]
fn a_dynamic_method_from_before_attach_is_discovered_by_a_sample() {
    let (program, shop) = (Program::new(), Shop::net8());
    let emitted = shop.clr.add_dynamic_function(shop.class, "Emitted");
    program.attach(&shop.clr);
    let recorded = record_in(&program, &shop, &[shop.main, emitted]);
    recorded.assert_complete();
    assert_eq!(recorded.stacks(), ["Emitted < shop.dll!Shop.Cart.Main"]);
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}

#[test]
fn a_thread_that_ends_during_enumeration_is_skipped() {
    let (program, shop) = (Program::new(), Shop::net8());
    let brief = shop.clr.add_thread();
    shop.clr.set_os_thread(brief, 1 << 22);
    let clr = shop.clr.clone();
    // The thread is in the list and ends before `GetThreadInfo`.
    shop.clr.after("EnumThreads", move || {
        assert_eq!(clr.thread_destroyed(brief), Hresult::S_OK);
    });
    program.attach(&shop.clr);
    let recorded = record_in(&program, &shop, &[shop.main]);
    recorded.assert_complete();
    let tids: Vec<u32> = recorded.threads.values().map(|known| known.0).collect();
    assert!(
        tids.contains(&own_tid()) && !tids.contains(&(1 << 22)),
        "{tids:?}"
    );
    program.finish_detach(&[&shop.clr]);
    // The fake reports calls with the id of an ended thread.
    shop.assert_no_violations();
}

/// Whether a thread is in a futex wait, as a thread that waits for a lock is.
fn waits_for_a_lock(tid: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall"));
    call.is_ok_and(|call| call.starts_with(&format!("{} ", libc::SYS_futex)))
}

#[test]
fn a_module_unload_waits_for_the_catch_up() {
    let (program, shop) = (Program::new(), Shop::net8());
    let module = shop.clr.add_collectible_module("/app/plugin.dll");
    let class = shop.clr.add_named_class(module, "Plugin.Entry");
    // More methods than one batch of the catch-up.
    for number in 0..200 {
        shop.clr
            .add_named_function(class, &format!("Method{number}"));
    }
    let clr = shop.clr.clone();
    let (sender, receiver) = channel();
    // The functions are enumerated, and none has been queried.
    shop.clr.after("EnumJITedFunctions", move || {
        let (say, said) = channel();
        let unloads = std::thread::spawn(move || {
            say.send(own_tid()).unwrap();
            sender.send(clr.module_unloaded(module)).unwrap();
        });
        let tid = said.recv().unwrap();
        // The call does not wait for this thread, which waits for the agent.
        until("the unload waits, or is over", || {
            unloads.is_finished() || waits_for_a_lock(tid)
        });
    });
    program.attach(&shop.clr);
    let recorded = record_in(&program, &shop, &[shop.main]);
    assert_eq!(receiver.recv_timeout(END), Ok(Hresult::S_OK));
    recorded.assert_complete();
    assert_eq!(recorded.stacks(), ["shop.dll!Shop.Cart.Main"]);
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}

#[test]
fn code_is_discovered_by_samples_if_the_catch_up_gives_up() {
    let program = Program::new();
    let shop = Shop::new(RuntimeVersion::Net8, "/app/shop.dll");
    let (begin, begun) = channel::<()>();
    let (end, ended) = channel::<()>();
    // A busy finalizer thread may be unloading code.
    std::thread::scope(|scope| {
        let finalizer = &shop.finalizer;
        scope.spawn(move || {
            finalizer.run(move || {
                begin.send(()).unwrap();
                while ended.try_recv() == Err(TryRecvError::Empty) {
                    std::thread::yield_now();
                }
            });
        });
        begun.recv().unwrap();
        program.attach(&shop.clr);
        let mut recording = program.record(CLASS_LOADS);
        recording.until(|recorded| !recorded.notes.is_empty());
        end.send(()).unwrap();
        // The agent retries at each sample until the finalizer thread is idle.
        let mut taken = 0;
        until("code is found", || {
            shop.load_class();
            taken += 1;
            recording.until(|recorded| recorded.samples.len() == taken);
            let last = recording.records.samples.last();
            last.is_some_and(|last| last.managed == ["shop.dll!Shop.Cart.Main"])
        });
        let recorded = recording.stop();
        assert_eq!(
            recorded.notes,
            [
                "methods that .NET 8.0.0 compiled before the attach are named at their first \
                 sample, because the program unloaded code whenever its methods were listed"
            ]
        );
    });
    program.finish_detach(&[&shop.clr]);
    shop.assert_no_violations();
}
