//! Link options of `runsxs`.

fn main() {
    // The CLRs' call of `mkfifo` finds the one in src/pipes.rs.
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=mkfifo");
    println!("cargo:rerun-if-changed=build.rs");
}
