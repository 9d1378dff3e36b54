//! Unloaded code: it leaves the code map before its memory is reused, and keeps its names.

use corprof::sys::Hresult;

use crate::program::{CLASS_LOADS, Program, Shop};

#[test]
fn unloaded_code_keeps_its_name_when_its_memory_is_reused() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    let recording = program.record(CLASS_LOADS);
    shop.until_subscribed();
    let clr = &shop.clr;
    let mut addresses = Vec::new();
    for round in 0..3 {
        clr.on_thread(shop.thread, || {
            let module = clr.add_collectible_module(&format!("/app/plugin{round}.dll"));
            let class = clr.add_named_class(module, "Plugin.Entry");
            let run = clr.add_named_function(class, &format!("Run{round}"));
            addresses.push(clr.function(run).unwrap().bodies);
            assert_eq!(clr.module_load_finished(module), Hresult::S_OK);
            assert_eq!(clr.jit_compilation_finished(run), Hresult::S_OK);
            clr.call(run, || shop.load_class_here());
            assert_eq!(clr.module_unloaded(module), Hresult::S_OK);
        });
    }
    assert_eq!(addresses[0], addresses[2], "the memory is used again");
    let recorded = recording.stop();
    recorded.assert_complete();
    assert_eq!(
        recorded.stacks(),
        [
            "plugin0.dll!Plugin.Entry.Run0",
            "plugin1.dll!Plugin.Entry.Run1",
            "plugin2.dll!Plugin.Entry.Run2"
        ]
    );
    program.finish_detach(&[clr]);
    // The fake reports calls with ids of an unloaded module.
    shop.assert_no_violations();
}

#[test]
fn code_unloaded_between_sessions_is_not_in_the_next() {
    let (program, shop) = (Program::new(), Shop::net8());
    let clr = &shop.clr;
    let module = clr.add_collectible_module("/app/plugin.dll");
    let class = clr.add_named_class(module, "Plugin.Entry");
    let run = clr.add_named_function(class, "Run");
    program.attach(clr);
    let first = program.record_and_stay(CLASS_LOADS);
    shop.until_subscribed();
    clr.on_thread(shop.thread, || clr.call(run, || shop.load_class_here()));
    assert_eq!(first.stop().stacks(), ["plugin.dll!Plugin.Entry.Run"]);

    // Another method gets the memory between two sessions.
    let body = clr.function(run).unwrap().bodies;
    let next = clr.on_thread(shop.thread, || {
        assert_eq!(clr.module_unloaded(module), Hresult::S_OK);
        let next = clr.add_named_function(shop.class, "Next");
        assert_eq!(clr.jit_compilation_finished(next), Hresult::S_OK);
        next
    });
    assert_eq!(clr.function(next).unwrap().bodies, body);

    let second = program.record(CLASS_LOADS);
    shop.until_subscribed();
    clr.on_thread(shop.thread, || clr.call(next, || shop.load_class_here()));
    let second = second.stop();
    second.assert_complete();
    assert_eq!(second.stacks(), ["shop.dll!Shop.Cart.Next"]);
    program.finish_detach(&[clr]);
    shop.assert_no_violations();
}

#[test]
fn a_dynamic_method_is_named_even_if_it_is_unloaded_first() {
    let (program, shop) = (Program::new(), Shop::net8());
    program.attach(&shop.clr);
    let recording = program.record(CLASS_LOADS);
    shop.until_subscribed();
    let clr = &shop.clr;
    let in_one = |name: &str| {
        let emitted = clr.add_dynamic_function(shop.class, name);
        assert_eq!(clr.dynamic_compilation_finished(emitted), Hresult::S_OK);
        clr.call(emitted, || shop.load_class_here());
        emitted
    };
    clr.on_thread(shop.thread, || {
        for name in ["First", "Second", "Third"] {
            let emitted = in_one(name);
            assert_eq!(clr.dynamic_method_unloaded(emitted), Hresult::S_OK);
        }
        // A method without samples is not named.
        let unmet = clr.add_dynamic_function(shop.class, "Unmet");
        assert_eq!(clr.dynamic_compilation_finished(unmet), Hresult::S_OK);
        assert_eq!(clr.dynamic_method_unloaded(unmet), Hresult::S_OK);
        in_one("Fourth");
    });
    let recorded = recording.stop();
    recorded.assert_complete();
    assert_eq!(recorded.stacks(), ["First", "Second", "Third", "Fourth"]);
    assert_eq!(clr.calls_of("GetDynamicFunctionInfo").len() % 4, 0);
    program.finish_detach(&[clr]);
    shop.assert_no_violations();
}
