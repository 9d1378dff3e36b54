//! Compiling `workloads/`.
//!
//! Workloads are compiled against the reference set of .NET Core 3.1, so that
//! one assembly runs on every supported runtime; those that need more
//! ([`Needs`]) against what they need. The compiler is the
//! SDK's where there is an SDK; else Roslyn from its package, run on .NET 8 and
//! called through Python. A workload is compiled again only when its sources,
//! the options or the compiler have changed.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::json;
use testkit::{Needs, Runtime, Setup, Workload};

use crate::fetch::{Cache, sha256};
use crate::process::run_quietly;
use crate::{runtimes, visual_basic};

/// Options of the compiler for each workload, beside its language, output, references and sources.
pub(crate) const COMMON: [&str; 7] = [
    "/noconfig",
    "/nologo",
    "/target:exe",
    "/optimize+",
    "/debug:portable",
    "/unsafe+",
    "/deterministic+",
];

/// The language of those that are made for each runtime.
const LANGUAGE: [&str; 2] = [
    "/langversion:10",
    // Newer assemblies than an older one asked for: a runtime takes them too.
    "/nowarn:1701,1702",
];

/// One assembly runs on 3.1 and later: it asks for 3.1 and accepts any newer.
const RUNTIME_CONFIG: &str = r#"{
  "runtimeOptions": {
    "tfm": "netcoreapp3.1",
    "framework": { "name": "Microsoft.NETCore.App", "version": "3.1.0" },
    "rollForward": "LatestMajor",
    "configProperties": { "System.Globalization.Invariant": true }
  }
}
"#;

/// A web server asks for both frameworks. The first one is that which `--fx-version` names.
const WEB_CONFIG: &str = r#"{
  "runtimeOptions": {
    "tfm": "net8.0",
    "rollForward": "LatestMajor",
    "frameworks": [
      { "name": "Microsoft.NETCore.App", "version": "8.0.0" },
      { "name": "Microsoft.AspNetCore.App", "version": "8.0.0" }
    ],
    "configProperties": { "System.Globalization.Invariant": true }
  }
}
"#;

const DRIVER: &str = include_str!("compile.py");

struct CompileJob {
    workload: Workload,
    sources: Vec<PathBuf>,
    /// In Visual Basic.
    libraries: Vec<PathBuf>,
    references: Vec<PathBuf>,
    stamp: String,
}

/// Compiles those of the named workloads that are out of date.
pub(crate) fn compile(
    cache: &Cache,
    own: &[PathBuf],
    setup: &Setup,
    names: &[String],
) -> Result<()> {
    let compiler = own
        .iter()
        .find_map(|root| Some((root, sdk_compiler(root)?)));
    let who = match &compiler {
        Some((_, csc)) => csc.to_string_lossy().into_owned(),
        None => DRIVER.to_owned(),
    };
    let mut jobs = Vec::new();
    for name in names {
        let sources = sources(name)?;
        let libraries = files_in(&folder_of_sources(name)?, "vb")?;
        let workload = Workload::at(name);
        let Some(references) = needed(cache, setup, workload.needs())? else {
            // One of an earlier set-up, with such a runtime, stays.
            eprintln!(
                "{name} is not compiled: no runtime with ASP.NET Core 8 or later is here (name one by --runtimes DIR)"
            );
            continue;
        };
        let all: Vec<&PathBuf> = sources.iter().chain(&libraries).collect();
        let stamp = stamp(&all, &references, &who)?;
        let current = fs::read_to_string(stamp_path(&workload)).is_ok_and(|s| s == stamp);
        if !current {
            jobs.push(CompileJob {
                workload,
                sources,
                libraries,
                references,
                stamp,
            });
        }
    }
    if jobs.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = jobs.iter().map(|j| j.workload.name.as_str()).collect();
    eprintln!("compiling workloads: {}", names.join(", "));
    let host = host(setup)?;
    for job in &jobs {
        fs::create_dir_all(folder(&job.workload))?;
        // No stamp while the files are being replaced.
        fs::remove_file(stamp_path(&job.workload)).ok();
    }
    for job in jobs.iter_mut().filter(|job| !job.libraries.is_empty()) {
        let (dotnet, vbc) = match &compiler {
            Some((root, csc)) => (root.join("dotnet"), csc.with_file_name("vbc.dll")),
            None => (host.root().join("dotnet"), cache.visual_basic()?),
        };
        let program = &job.workload.dll;
        let made = visual_basic::compile(&dotnet, &vbc, &job.libraries, &job.references, program)?;
        job.references.extend(made);
    }
    match compiler {
        Some((root, csc)) => with_sdk(root, &csc, &jobs)?,
        None => with_package(cache, &host, &jobs)?,
    }
    for job in &jobs {
        if job.workload.needs() == Needs::Roslyn {
            bring_roslyn(cache, setup, &job.workload)?;
        }
        fs::write(
            job.workload.dll.with_extension("runtimeconfig.json"),
            runtime_config(job.workload.needs()),
        )?;
        fs::write(stamp_path(&job.workload), &job.stamp)?;
    }
    Ok(())
}

/// Reference assemblies of a workload; `None` where no runtime has them.
fn needed(cache: &Cache, setup: &Setup, needs: Needs) -> Result<Option<Vec<PathBuf>>> {
    let found = match needs {
        Needs::Core31 => references(&oldest(setup)?.framework_dir())?,
        Needs::Net8 => references(&find(setup, "8.")?.framework_dir())?,
        Needs::Roslyn => {
            let mut all = references(&find(setup, "8.")?.framework_dir())?;
            all.extend(references(&cache.roslyn()?)?);
            all
        }
        Needs::AspNetCore => {
            // The oldest that has it: newer ones run what is compiled against it.
            let web = setup.runtimes.iter().find_map(|runtime| {
                let folder = runtime.aspnetcore_dir().filter(|_| !runtime.is_core31())?;
                Some((runtime, folder))
            });
            let Some((runtime, folder)) = web else {
                return Ok(None);
            };
            let mut all = references(&runtime.framework_dir())?;
            all.extend(references(&folder)?);
            all
        }
    };
    Ok(Some(found))
}

/// The frameworks that a workload asks for.
fn runtime_config(needs: Needs) -> &'static str {
    match needs {
        Needs::AspNetCore => WEB_CONFIG,
        Needs::Core31 | Needs::Net8 | Needs::Roslyn => RUNTIME_CONFIG,
    }
}

/// Puts the compiler beside the program that runs it, and the list of what it
/// is to compile against: the same assemblies on every runtime.
fn bring_roslyn(cache: &Cache, setup: &Setup, workload: &Workload) -> Result<()> {
    for assembly in references(&cache.roslyn()?)? {
        let name = assembly.file_name().unwrap_or_default();
        fs::copy(&assembly, folder(workload).join(name))
            .with_context(|| format!("cannot copy {}", assembly.display()))?;
    }
    let list: Vec<String> = references(&find(setup, "3.1.")?.framework_dir())?
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    fs::write(folder(workload).join("references.txt"), list.join("\n"))?;
    Ok(())
}

/// The runtime that the compiler runs on: .NET 8 where it is there.
fn host(setup: &Setup) -> Result<Runtime> {
    find(setup, "8.").or_else(|_| oldest(setup))
}

/// The oldest runtime: an assembly that asks for it runs on each newer one.
fn oldest(setup: &Setup) -> Result<Runtime> {
    let by_age = |a: &&Runtime, b: &&Runtime| runtimes::by_age(&a.version, &b.version);
    let oldest = setup.runtimes.iter().min_by(by_age);
    oldest.cloned().context("set-up found no runtime")
}

fn find(setup: &Setup, prefix: &str) -> Result<Runtime> {
    setup
        .runtimes
        .iter()
        .find(|r| r.version.starts_with(prefix))
        .cloned()
        .with_context(|| format!("no runtime {prefix}x"))
}

pub(crate) fn folder(workload: &Workload) -> &Path {
    workload.dll.parent().unwrap_or(Path::new("."))
}

pub(crate) fn stamp_path(workload: &Workload) -> PathBuf {
    folder(workload).join("stamp")
}

fn folder_of_sources(name: &str) -> Result<PathBuf> {
    Ok(testkit::repository()
        .canonicalize()?
        .join("workloads")
        .join(name))
}

/// The C# files of one workload: its own and those that all share.
pub(crate) fn sources(name: &str) -> Result<Vec<PathBuf>> {
    let mut files = files_in(&folder_of_sources(name)?, "cs")?;
    files.extend(files_in(&folder_of_sources("shared")?, "cs")?);
    files.sort();
    Ok(files)
}

fn files_in(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn stamp(sources: &[&PathBuf], references: &[PathBuf], compiler: &str) -> Result<String> {
    let basic = visual_basic::stamp();
    let mut all = format!(
        "{compiler}\n{COMMON:?}{LANGUAGE:?}\n{basic}\n{RUNTIME_CONFIG}\n{WEB_CONFIG}\n{references:?}\n"
    )
    .into_bytes();
    for path in sources {
        all.extend(path.to_string_lossy().bytes());
        all.push(b'\n');
        all.extend(fs::read(path)?);
    }
    Ok(sha256(&all))
}

/// The managed assemblies in a folder.
pub(crate) fn references(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let managed = [
            "System.",
            "Microsoft.",
            "mscorlib.",
            "netstandard.",
            "WindowsBase.",
        ]
        .iter()
        .any(|prefix| name.starts_with(prefix));
        if managed && name.ends_with(".dll") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn options(job: &CompileJob) -> Vec<String> {
    let fixed = COMMON.iter().chain(&LANGUAGE);
    let mut all: Vec<String> = fixed.map(|&o| o.to_owned()).collect();
    all.push(format!("/out:{}", job.workload.dll.display()));
    all.push(format!("/pdb:{}", job.workload.pdb.display()));
    all.extend(
        job.references
            .iter()
            .map(|r| format!("/reference:{}", r.display())),
    );
    all.extend(job.sources.iter().map(|s| s.display().to_string()));
    all
}

/// The compiler of the newest SDK in an installation.
pub(crate) fn sdk_compiler(root: &Path) -> Option<PathBuf> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = fs::read_dir(root.join("sdk"))
        .ok()?
        .flatten()
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let version = name
                .split(['.', '-'])
                .map_while(|part| part.parse().ok())
                .collect();
            (version, entry.path().join("Roslyn/bincore/csc.dll"))
        })
        .filter(|(_, csc)| csc.is_file())
        .collect();
    found.sort();
    found.pop().map(|(_, csc)| csc)
}

fn with_sdk(root: &Path, csc: &Path, jobs: &[CompileJob]) -> Result<()> {
    let dotnet = root.join("dotnet");
    for job in jobs {
        run_quietly(
            Command::new(&dotnet)
                .arg("exec")
                .arg(csc)
                .args(options(job))
                .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1"),
        )?;
    }
    Ok(())
}

fn with_package(cache: &Cache, host: &Runtime, jobs: &[CompileJob]) -> Result<()> {
    let roslyn = cache.roslyn()?;
    let modules = cache.pythonnet()?;
    let work = json!({
        "dotnet_root": host.root(),
        "runtime_version": host.version,
        "roslyn": roslyn,
        "jobs": jobs.iter().map(|job| json!({
            "out": job.workload.dll,
            "pdb": job.workload.pdb,
            "options": options(job),
        })).collect::<Vec<_>>(),
    });
    let mut child = Command::new("python3")
        .args(["-c", DRIVER])
        .env("PYTHONPATH", modules)
        .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot run python3")?;
    let mut input = child.stdin.take().context("python3 has no input")?;
    input.write_all(work.to_string().as_bytes())?;
    drop(input);
    let status = child.wait()?;
    if !status.success() {
        bail!("compiling the workloads failed ({status})");
    }
    Ok(())
}
