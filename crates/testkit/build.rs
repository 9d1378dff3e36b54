//! Writes the macros that make one test for each runtime: `on_each_runtime!`,
//! `on_each_web_runtime!`, `on_each_runtime_async!`.
//!
//! The list is the set-up's (`target/setup.json`), so the tests of a runtime exist where the
//! runtime does, and nowhere else one that would have to be skipped. Without a set-up there are
//! those of the two runtimes that set-up always brings, and they say what to run.

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

/// Each macro, and the names of the runtimes that it is for.
type Macros = [(&'static str, Vec<String>); 3];

fn macros(setup: &Path) -> Option<Macros> {
    let setup: Value = serde_json::from_str(&fs::read_to_string(setup).ok()?).ok()?;
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
            "on_each_web_runtime",
            named(|runtime| runtime["aspnetcore"].is_string())?,
        ),
        (
            "on_each_runtime_async",
            named(|runtime| runtime["runtime_async"] == true)?,
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
            ("on_each_runtime", both),
            ("on_each_web_runtime", Vec::new()),
            ("on_each_runtime_async", Vec::new()),
        ]
    };
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
