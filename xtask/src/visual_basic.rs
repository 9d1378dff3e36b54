//! Compiling the Visual Basic of a workload: libraries beside its program, which is C#.
//!
//! The compiler is the SDK's where there is an SDK; else the one of .NET SDK 3.1, from its package.
//! Each folder gives two libraries, an optimised one and a debug one, because their state machines
//! differ.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::run_quietly;

/// Options of the compiler, beside output, references, sources and what tells the two libraries
/// apart.
const OPTIONS: [&str; 8] = [
    "/noconfig",
    "/nologo",
    "/target:library",
    "/debug:portable",
    "/deterministic+",
    "/nostdlib",
    "/langversion:15.5",
    // Nothing of `My`, which asks for Windows.
    "/define:_MyType=\"Empty\"",
];

/// End of the library's name, namespace of what is in it, how it is compiled.
const LIBRARIES: [(&str, &str, &str); 2] = [
    ("vb", "Workloads", "/optimize+"),
    ("vb.unoptimised", "Workloads.Unoptimised", "/optimize-"),
];

/// Inputs and options of a compilation, for its stamp.
pub(crate) fn stamp() -> String {
    format!("{OPTIONS:?}{LIBRARIES:?}")
}

/// Compiles `sources` against `references`, beside `program`; answers the libraries.
///
/// # Errors
/// The compiler's output.
pub(crate) fn compile(
    dotnet: &Path,
    compiler: &Path,
    sources: &[PathBuf],
    references: &[PathBuf],
    program: &Path,
) -> Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for (end, namespace, optimise) in LIBRARIES {
        let library = program.with_extension(format!("{end}.dll"));
        let mut command = Command::new(dotnet);
        command
            .args(["exec", "--roll-forward", "LatestMajor"])
            .arg(compiler)
            .args(OPTIONS)
            .arg(optimise)
            .arg(format!("/rootnamespace:{namespace}"))
            .arg(format!("/out:{}", library.display()));
        for reference in references {
            let name = reference.file_name().unwrap_or_default();
            let option = match name == "Microsoft.VisualBasic.Core.dll" {
                true => "vbruntime",
                false => "reference",
            };
            command.arg(format!("/{option}:{}", reference.display()));
        }
        command
            .args(sources)
            .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1");
        run_quietly(&mut command)?;
        made.push(library);
    }
    Ok(made)
}
