//! Link options of `liboracle.so`.

fn main() {
    // The CLR closes a profiler's library when it refuses or detaches it; our signal handler and
    // our thread must never find their code unmapped.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Every call is bound before the handler can run: lazy binding takes the loader's lock.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rerun-if-changed=build.rs");
}
