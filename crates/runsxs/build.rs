//! Link options of `runsxs`.

fn main() {
    // The CLRs' call of `mkfifo` finds the one in src/pipes.rs. Zig, by which releases are linked,
    // takes no names here: then all are found.
    let linker = std::env::var("RUSTC_LINKER").unwrap_or_default();
    if linker.contains("zigcc") {
        println!("cargo:rustc-link-arg-bins=-rdynamic");
    } else {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=mkfifo");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
