//! Compiling workloads with runtime async (.NET 11 and later).
//!
//! The compiler is that of an SDK in the runtime's own root, or a folder `csharp-VERSION` with
//! `csc.dll` beside that root. A runtime without either has no such workloads, and no tests of
//! them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use testkit::{AsyncKind, Needs, OF_EACH_KIND, Runtime, Setup, Workload};

use crate::fetch::sha256;
use crate::process::run_quietly;
use crate::workloads::{COMMON, folder, references, sdk_compiler, sources, stamp_path};

/// The first version that has it.
const FIRST: u64 = 11;

/// The language of these workloads.
const LANGUAGE: [&str; 3] = [
    "/langversion:preview",
    "/features:runtime-async=on",
    "/define:RUNTIME_ASYNC",
];

/// Compiles what is out of date for each runtime that can run it and has a compiler, and notes it
/// there.
///
/// # Errors
/// A workload does not compile.
pub(crate) fn compile(setup: &mut Setup) -> Result<()> {
    for runtime in &mut setup.runtimes {
        let major = runtime
            .version
            .split('.')
            .next()
            .and_then(|text| text.parse().ok());
        if major < Some(FIRST) {
            continue;
        }
        let Some(compiler) = compiler(runtime.root()) else {
            eprintln!(
                "no workload is compiled with runtime async for {}: its root has no SDK, and there is no csharp-VERSION/csc.dll beside it",
                runtime.version
            );
            continue;
        };
        for name in OF_EACH_KIND {
            for kind in AsyncKind::WITH_RUNTIME_ASYNC {
                compile_one(runtime, &compiler, name, kind)?;
            }
        }
        runtime.runtime_async = true;
    }
    Ok(())
}

fn compiler(root: &Path) -> Option<PathBuf> {
    let beside = || {
        let folders = fs::read_dir(root.parent()?).ok()?.flatten();
        let named =
            folders.filter(|entry| entry.file_name().to_string_lossy().starts_with("csharp-"));
        let compilers = named.map(|entry| entry.path().join("csc.dll"));
        compilers.filter(|csc| csc.is_file()).max()
    };
    sdk_compiler(root).or_else(beside)
}

fn compile_one(runtime: &Runtime, compiler: &Path, name: &str, kind: AsyncKind) -> Result<()> {
    let workload = Workload::of_kind(name, kind);
    let mut frameworks = vec![(
        "Microsoft.NETCore.App",
        runtime.framework_dir(),
        &runtime.version,
    )];
    if workload.needs() == Needs::AspNetCore {
        let Some((folder, version)) = runtime.aspnetcore_dir().zip(runtime.aspnetcore.as_ref())
        else {
            return Ok(());
        };
        frameworks.push(("Microsoft.AspNetCore.App", folder, version));
    }
    let mut options: Vec<String> = COMMON
        .iter()
        .chain(&LANGUAGE)
        .map(|&option| option.to_owned())
        .collect();
    if kind == AsyncKind::Mixed {
        options.push("/define:MIXED".to_owned());
    }
    options.push(format!("/out:{}", workload.dll.display()));
    options.push(format!("/pdb:{}", workload.pdb.display()));
    for (_, folder, _) in &frameworks {
        let references = references(folder)?;
        options.extend(
            references
                .iter()
                .map(|path| format!("/reference:{}", path.display())),
        );
    }
    let sources = sources(name)?;
    options.extend(sources.iter().map(|path| path.display().to_string()));
    let config = config(&frameworks);
    let stamp = stamp(compiler, &options, &sources, &config)?;
    let stamp_path = stamp_path(&workload);
    if fs::read_to_string(&stamp_path).is_ok_and(|before| before == stamp) {
        return Ok(());
    }
    eprintln!(
        "compiling {name} ({}) for {}",
        kind.folder(),
        runtime.version
    );
    fs::create_dir_all(folder(&workload))?;
    // No stamp while the files are being replaced.
    fs::remove_file(&stamp_path).ok();
    run_quietly(runtime.command(compiler).args(&options))?;
    fs::write(workload.dll.with_extension("runtimeconfig.json"), config)?;
    fs::write(stamp_path, stamp)?;
    Ok(())
}

fn config(frameworks: &[(&str, PathBuf, &String)]) -> String {
    let frameworks: Vec<_> = frameworks
        .iter()
        .map(|(name, _, version)| serde_json::json!({ "name": name, "version": version }))
        .collect();
    let config = serde_json::json!({ "runtimeOptions": {
        "tfm": format!("net{FIRST}.0"),
        "rollForward": "LatestMajor",
        "frameworks": frameworks,
        "configProperties": { "System.Globalization.Invariant": true },
    } });
    format!("{config:#}\n")
}

fn stamp(compiler: &Path, options: &[String], sources: &[PathBuf], config: &str) -> Result<String> {
    let mut all = format!("{}\n{options:?}\n{config}", compiler.display()).into_bytes();
    for path in sources {
        all.extend(fs::read(path)?);
    }
    Ok(sha256(&all))
}
