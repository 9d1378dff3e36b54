//! Link options of `liboracle.so`.

fn main() {
    // The CLR unloads a profiler's library when it refuses or detaches the profiler. The code of
    // the signal handler and the agent thread must stay mapped.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Binds every call before the signal handler can run, because lazy binding takes the loader's
    // lock.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rerun-if-changed=build.rs");
}
