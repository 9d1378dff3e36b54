//! Writes the macros that make one test for each runtime: `on_each_runtime!`, `on_each_web_runtime!`.
//!
//! The list is the set-up's (`target/setup.json`), so the tests of a runtime exist where the runtime
//! does, and nowhere else one that would have to be skipped. Without a set-up there are those of the
//! two runtimes that set-up always brings, and they say what to run.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::Value;

/// As `layout::target_dir` has it.
fn setup_file() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) if !dir.is_empty() => repository.join(dir),
        _ => repository.join("target"),
    };
    target.join("setup.json")
}

/// Names of all runtimes, and of those with ASP.NET Core.
fn names(setup: &Path) -> Option<(Vec<String>, Vec<String>)> {
    let setup: Value = serde_json::from_str(&fs::read_to_string(setup).ok()?).ok()?;
    let (mut all, mut web) = (Vec::new(), Vec::new());
    for runtime in setup["runtimes"].as_array()? {
        let name = runtime["name"].as_str()?.to_owned();
        if runtime["aspnetcore"].is_string() {
            web.push(name.clone());
        }
        all.push(name);
    }
    Some((all, web))
}

fn main() {
    let setup = setup_file();
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", setup.display());
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_DIR");
    let always = || (vec!["net8".to_owned(), "core31".to_owned()], Vec::new());
    let (all, web) = names(&setup).unwrap_or_else(always);
    let mut text = String::new();
    for (name, list) in [("on_each_runtime", all), ("on_each_web_runtime", web)] {
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
