//! Paths and requirements of the workloads, the compiled C# test programs of `workloads/`.

use std::path::PathBuf;

use crate::layout::{repository, target_dir};
use crate::runtime::Runtime;

/// The assemblies that a workload is compiled against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// .NET Core 3.1. Runs on every runtime.
    Core31,
    /// .NET 8, for APIs that older runtimes lack.
    Net8,
    /// The C# compiler's assemblies, which need .NET 8.
    Roslyn,
    /// ASP.NET Core of .NET 8. Not every runtime has it.
    AspNetCore,
}

/// The compilation of a workload's async methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncKind {
    /// All as state machines, for every runtime.
    StateMachine,
    /// All with runtime async, for .NET 11 and later.
    Runtime,
    /// Each according to its attribute, for .NET 11 and later.
    Mixed,
}

impl AsyncKind {
    /// The kinds that need runtime async.
    pub const WITH_RUNTIME_ASYNC: [AsyncKind; 2] = [AsyncKind::Runtime, AsyncKind::Mixed];

    /// The folder of the compiled program, inside the workload's folder.
    pub fn folder(self) -> &'static str {
        match self {
            AsyncKind::StateMachine => "",
            AsyncKind::Runtime => "runtime-async",
            AsyncKind::Mixed => "mixed-async",
        }
    }
}

/// Workloads that set-up compiles in each kind, if a runtime and a compiler have runtime async.
pub const OF_EACH_KIND: [&str; 8] = [
    "async",
    "asyncchains",
    "asyncpooled",
    "parked",
    "suspended",
    "tracedasync",
    "tracedtasks",
    "webserver",
];

/// One compiled workload.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Its folder's name under `workloads/`.
    pub name: String,
    /// The program.
    pub dll: PathBuf,
    /// Its portable PDB.
    pub pdb: PathBuf,
}

impl Workload {
    /// Returns the paths at which set-up puts the workload `name`. They may not exist.
    pub fn at(name: &str) -> Workload {
        Workload::of_kind(name, AsyncKind::StateMachine)
    }

    /// Returns the paths at which set-up puts the workload `name` with async methods of `kind`.
    /// They may not exist.
    pub fn of_kind(name: &str, kind: AsyncKind) -> Workload {
        let dir = target_dir().join("workloads").join(name);
        let dir = dir.join(kind.folder());
        Workload {
            name: name.to_owned(),
            dll: dir.join(format!("{name}.dll")),
            pdb: dir.join(format!("{name}.pdb")),
        }
    }

    /// Returns the assemblies that the workload is compiled against.
    pub fn needs(&self) -> Needs {
        match self.name.as_str() {
            "asyncpooled" => Needs::Net8,
            "roslyn" => Needs::Roslyn,
            "webserver" => Needs::AspNetCore,
            _ => Needs::Core31,
        }
    }

    /// Whether the workload can run on `runtime`.
    pub fn runs_on(&self, runtime: &Runtime) -> bool {
        match self.needs() {
            Needs::Core31 => true,
            Needs::Net8 | Needs::Roslyn => !runtime.is_core31(),
            Needs::AspNetCore => !runtime.is_core31() && runtime.aspnetcore.is_some(),
        }
    }
}

/// Returns the compiled workload `name`.
///
/// # Panics
/// When it has not been compiled.
pub fn workload(name: &str) -> Workload {
    workload_of_kind(name, AsyncKind::StateMachine)
}

/// Returns the compiled workload `name` with async methods of `kind`.
///
/// # Panics
/// When it has not been compiled.
pub fn workload_of_kind(name: &str, kind: AsyncKind) -> Workload {
    let workload = Workload::of_kind(name, kind);
    assert!(
        workload.dll.is_file(),
        "{}: the workload is not compiled. Run `cargo xtask setup` first.",
        workload.dll.display()
    );
    workload
}

/// Returns the names of all workloads in the repository, sorted.
///
/// # Errors
/// The error of reading the folder `workloads/`.
pub fn workload_names() -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(repository().join("workloads"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().join(format!("{name}.csproj")).is_file() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
