//! Generates the macros that make one test for each runtime.
//!
//! They are `on_each_runtime!`, `on_each_runtime_for_glibc!`, `on_each_web_runtime!`,
//! `on_each_runtime_async!` and `on_each_dumped_runtime!`. Tests of the composite program are
//! compiled if it is there (`cfg(composite)`).
//!
//! The list of runtimes comes from the set-up file (`target/setup.json`), so no test for a missing
//! runtime exists that would have to be skipped. Without a set-up file the list has the two
//! required runtimes, whose tests fail with the command to run.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::Value;

/// Path of the set-up file, in the same folder as `layout::target_dir`.
fn setup_file() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) if !dir.is_empty() => repository.join(dir),
        _ => repository.join("target"),
    };
    target.join("setup.json")
}

/// Each macro with the names of its runtimes.
type Macros = [(&'static str, Vec<String>); 5];

fn read(setup: &Path) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(setup).ok()?).ok()
}

fn macros(setup: &Value) -> Option<Macros> {
    let can_read = setup["dump_reader"].is_object();
    let runtimes = setup["runtimes"].as_array()?;
    let named = |is_wanted: fn(&Value) -> bool| {
        let wanted = runtimes.iter().filter(|runtime| is_wanted(runtime));
        wanted
            .map(|runtime| Some(runtime["name"].as_str()?.to_owned()))
            .collect::<Option<Vec<String>>>()
    };
    Some([
        ("on_each_runtime", named(|_| true)?),
        (
            "on_each_runtime_for_glibc",
            named(|runtime| {
                let name = runtime["name"].as_str();
                name.is_none_or(|name| !name.starts_with("musl"))
            })?,
        ),
        (
            "on_each_web_runtime",
            named(|runtime| runtime["aspnetcore"].is_string())?,
        ),
        (
            "on_each_runtime_async",
            named(|runtime| runtime["runtime_async"] == true)?,
        ),
        (
            "on_each_dumped_runtime",
            named(|runtime| runtime["dumps"] == true)?
                .into_iter()
                .filter(|_| can_read)
                .collect(),
        ),
    ])
}

fn main() {
    let setup = setup_file();
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", setup.display());
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_DIR");
    let always = || {
        let both = vec!["net8".to_owned(), "core31".to_owned()];
        [
            ("on_each_runtime", both.clone()),
            ("on_each_runtime_for_glibc", both),
            ("on_each_web_runtime", Vec::new()),
            ("on_each_runtime_async", Vec::new()),
            ("on_each_dumped_runtime", Vec::new()),
        ]
    };
    let setup = read(&setup).unwrap_or_default();
    println!("cargo::rustc-check-cfg=cfg(composite)");
    if setup["composite"].is_string() {
        println!("cargo::rustc-cfg=composite");
    }
    let mut text = String::new();
    for (name, list) in macros(&setup).unwrap_or_else(always) {
        let list = list.join(", ");
        writeln!(
            text,
            "#[allow(unused_macros, reason = \"made for all tests\")]\n\
             macro_rules! {name} {{\n    \
                 ($($test:ident),+ $(,)?) => {{ $(tests_of! {{ $test: {list} }})+ }};\n\
             }}"
        )
        .expect("a string takes all");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("on_each_runtime.rs"), text).expect("OUT_DIR can be written");
}
