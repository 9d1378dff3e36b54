//! A library's file is cut short while the program has it loaded, as installing it anew in place
//! does. The program no longer reads the library, and the agent must not either: reading beyond the
//! file's end raises SIGBUS.

use std::path::PathBuf;

use testkit::{Recorded, Recorder, Runtime, native_threads, workload};

on_each_runtime!(
    a_managed_library_is_cut_short_and_its_methods_go_on,
    a_precompiled_library_is_cut_short_while_it_is_on_the_stack,
);

// On musl the program itself ends: each new thread gets a copy of what each library has for it
// (`__copy_tls`), from the library's file.
on_each_runtime_for_glibc!(
    a_native_library_is_cut_short_and_another_one_is_loaded,
    a_native_library_is_cut_short_while_it_is_on_the_stack,
);

/// Records the program by CPU time, alone and with other events, and compares it with an unrecorded
/// run.
fn cut_short(runtime: &Runtime, mode: &str, library: PathBuf) -> Vec<Recorded> {
    let library = library.to_string_lossy();
    let program = Recorder::workload(runtime, "truncated", &["0.5", mode, &library])
        .environment("DOTNET_TieredCompilation", "0")
        .environment("COMPlus_TieredCompilation", "0");
    let bare = program.run_bare();
    let ways = [
        &["--event", "cpu"][..],
        &["--event", "cpu,wall,exception,gc"],
    ];
    let record = |way: &[&str]| {
        let program = program
            .clone()
            .options(["--frequency", "997", "--engine", "clocks"]);
        let recorded = program.options(way.iter().copied()).run_as(&bare);
        assert!(recorded.inspect().number("samples") > 20.0);
        recorded
    };
    ways.into_iter().map(record).collect()
}

fn a_managed_library_is_cut_short_and_its_methods_go_on(runtime: &Runtime) {
    cut_short(runtime, "managed", workload("leaf").dll);
}

fn a_precompiled_library_is_cut_short_while_it_is_on_the_stack(runtime: &Runtime) {
    let library = "System.Text.RegularExpressions.dll";
    cut_short(
        runtime,
        "precompiled",
        runtime.framework_dir().join(library),
    );
}

fn a_native_library_is_cut_short_and_another_one_is_loaded(runtime: &Runtime) {
    for recorded in cut_short(runtime, "native", native_threads()) {
        recorded.inspect().assert_honest(1.0, 0.5);
    }
}

fn a_native_library_is_cut_short_while_it_is_on_the_stack(runtime: &Runtime) {
    cut_short(runtime, "below", native_threads());
}
