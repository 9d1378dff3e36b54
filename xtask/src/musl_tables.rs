//! musl's C library with unwind tables, as no distribution builds it: what the agent makes of code
//! without tables is held against them (`stackwalk`, module `synthesis`).
//!
//! Its sources are those that zig carries. They are not all of musl: zig has parts of it in its own
//! language. musl's assembler has no tables either way, so nothing is compared there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::fetch::Cache;
use crate::process::run_quietly;

/// Those of musl's own build that matter, with tables. Hidden functions are exported, because some
/// are missing, which a linker allows for those alone.
const FLAGS: [&str; 20] = [
    "-std=c99",
    "-nostdinc",
    "-ffreestanding",
    "-fno-strict-aliasing",
    "-fno-stack-protector",
    "-fomit-frame-pointer",
    "-fasynchronous-unwind-tables",
    "-fPIC",
    "-w",
    "-D_XOPEN_SOURCE=700",
    "-D__visibility__(which)=__unused__",
    "-Iarch/x86_64",
    "-Iarch/generic",
    "-Isrc/include",
    "-Isrc/internal",
    "-Iinclude",
    "-I../include/x86_64-linux-musl",
    "-I../include/generic-musl",
    "-shared",
    "-nostdlib",
];

/// Builds it below `folder` in four ways: distributions build it by gcc.
///
/// # Errors
/// Zig cannot be had, or a build fails.
pub(crate) fn build(folder: &Path) -> Result<Vec<PathBuf>> {
    let zig = Cache::open()?.zig()?;
    let musl = zig.musl();
    std::fs::create_dir_all(folder)?;
    let list = folder.join("sources");
    std::fs::write(&list, sources(&musl)?.join("\n"))?;
    let compilers = [
        ("gcc-Os", "-Os", Command::new("gcc")),
        ("gcc-O2", "-O2", Command::new("gcc")),
        ("gcc-O3", "-O3", Command::new("gcc")),
        ("clang-O2", "-O2", zig.cc()),
    ];
    let compile = |(name, optimised, mut compiler): (&str, &str, Command)| {
        let library = folder.join(name).with_extension("so");
        compiler.current_dir(&musl).arg(optimised).args(FLAGS);
        // Calls within the library are direct, as in musl.
        compiler.args(["-Wl,-Bsymbolic", "-Wl,-z,undefs", "-o"]);
        run_quietly(compiler.arg(&library).arg(format!("@{}", list.display())))?;
        Ok(library)
    };
    std::thread::scope(|scope| {
        let running = compilers.map(|compiler| scope.spawn(|| compile(compiler)));
        let built = running.into_iter().map(|one| one.join());
        built.map(|one| one.expect("it does not panic")).collect()
    })
}

/// Lists the library's sources. A file for the processor replaces the one for all.
fn sources(musl: &Path) -> Result<Vec<String>> {
    let mut own = BTreeSet::new();
    let mut common = BTreeSet::new();
    for part in std::fs::read_dir(musl.join("src"))? {
        let part = part?.file_name().into_string().unwrap_or_default();
        for (folder, found) in [("", &mut common), ("/x86_64", &mut own)] {
            let folder = format!("src/{part}{folder}");
            let Ok(files) = std::fs::read_dir(musl.join(&folder)) else {
                continue;
            };
            for file in files {
                let name = file?.file_name().into_string().unwrap_or_default();
                if let Some((stem, "c" | "s" | "S")) = name.rsplit_once('.') {
                    found.insert((format!("src/{part}/{stem}"), format!("{folder}/{name}")));
                }
            }
        }
    }
    let replaced: BTreeSet<String> = own.iter().map(|(stem, _)| stem.clone()).collect();
    common.retain(|(stem, _)| !replaced.contains(stem));
    Ok(common
        .into_iter()
        .chain(own)
        .map(|(_, file)| file)
        .collect())
}
