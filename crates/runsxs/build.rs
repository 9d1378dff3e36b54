//! Link options of `runsxs`.

fn main() {
    // Exports `mkfifo` of src/pipes.rs, so that calls of the CLRs find it. Zig, which links
    // releases, does not accept symbol names here, so all symbols are exported.
    let linker = std::env::var("RUSTC_LINKER").unwrap_or_default();
    if linker.contains("zigcc") {
        println!("cargo:rustc-link-arg-bins=-rdynamic");
    } else {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=mkfifo");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
