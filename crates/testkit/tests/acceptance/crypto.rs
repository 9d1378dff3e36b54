//! `crypto`: most of the time in OpenSSL's assembler, whose unwind tables are
//! written in DWARF expressions.

use testkit::{Recorder, Runtime};

use crate::LOST_LIMIT;

on_each_runtime!(stacks_out_of_openssl_are_whole);

/// Maximum percentage of broken walks, on every runtime.
const BROKEN: f64 = 0.1;

fn stacks_out_of_openssl_are_whole(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "crypto", &["rounds=300"])
        .frequency(999)
        .run_complete();
    let inspected = recorded.inspect();
    println!("{}", inspected.json);
    inspected.assert_honest(BROKEN, LOST_LIMIT);
    let stacks = recorded.stacks();
    let total = stacks.total();
    assert!(total >= 2000, "{total} samples are too few");
    // Each kind of work was sampled, called from Main.
    for method in [
        "Workloads.Libcrypto.HashDirect",
        "Workloads.Libcrypto.EncryptDirect",
        "Workloads.Libcrypto.SignDirect",
        "Workloads.Crypto.Compress",
    ] {
        let with = stacks.with(method);
        assert!(with.total() >= 40, "{method}: {} samples", with.total());
        assert_eq!(
            with.with("Workloads.Crypto.Main").total(),
            with.total(),
            "{method}"
        );
    }
    let managed = recorded.answer.lines("managed") == [["True"]];
    assert!(
        managed || runtime.is_core31(),
        "no cryptography of the runtime's own"
    );
    if managed {
        let signed = stacks.with("Workloads.Crypto.Signer.SignManaged");
        assert!(signed.total() >= 100, "{} samples", signed.total());
    }
}
