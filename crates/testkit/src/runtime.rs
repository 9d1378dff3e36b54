//! The .NET runtimes to test on, read from the file that `cargo xtask setup` writes.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::layout::target_dir;

/// The results of `cargo xtask setup` for tests, in `target/setup.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Setup {
    /// The runtimes to test on: the default one (.NET 8), the oldest one (.NET Core 3.1), then all
    /// others that set-up was given or found, by age.
    pub runtimes: Vec<Runtime>,
    /// Tools that only tests need. Set by `cargo xtask setup --all`.
    pub tools: Option<Tools>,
    /// The reader of processes and dumps, if it is there and a runtime can run it.
    #[serde(default)]
    pub dump_reader: Option<DumpReader>,
    /// A program published as a ReadyToRun composite image, if it is there.
    #[serde(default)]
    pub composite: Option<PathBuf>,
}

/// Microsoft's ClrMD, with a program around it that prints what it reads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DumpReader {
    /// The program.
    pub dll: PathBuf,
    /// Name of the runtime that runs it.
    pub runtime: String,
}

/// Tools that the acceptance tests need beside the runtimes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tools {
    /// The .NET 10 single-file app.
    pub app10: App10,
    /// The `go` executable, for `go tool pprof`.
    pub go: PathBuf,
    /// The `node` executable.
    pub node: PathBuf,
    /// The built site of speedscope, with its importer.
    pub speedscope: PathBuf,
}

/// One installed .NET runtime.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Runtime {
    /// Name of the runtime in test names: `net8` and `core31` for the two required ones, else from
    /// the version, such as `net10_0_14`, or `musl10_0_15` for musl.
    pub name: String,
    /// Version of the shared framework, such as `8.0.4`.
    pub version: String,
    /// The `dotnet` executable.
    pub dotnet: PathBuf,
    /// Version of Microsoft.AspNetCore.App beside it, if installed. The runtime can then run web
    /// servers.
    pub aspnetcore: Option<String>,
    /// Whether set-up has compiled workloads with runtime async for it. Needs .NET 11 or later and
    /// a compiler.
    #[serde(default)]
    pub runtime_async: bool,
    /// Whether dumps of its programs can be taken and read: it has `createdump` and
    /// `libmscordaccore.so`, and is no .NET Core 3.1.
    #[serde(default)]
    pub dumps: bool,
    /// Of .NET for musl: the folder of the libraries that it needs and this machine lacks, which is
    /// on the path of its programs.
    #[serde(default)]
    pub libraries: Option<PathBuf>,
}

/// A real third-party app with CoreCLR linked into its executable.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct App10 {
    /// Version of the CoreCLR inside, such as `10.0.12`.
    pub version: String,
    /// The executable.
    pub executable: PathBuf,
}

impl Setup {
    /// Path of this checkout's set-up file.
    pub fn path() -> PathBuf {
        target_dir().join("setup.json")
    }

    /// Returns the runtimes whose version begins with `only`, or all.
    pub fn of_version<'a>(&'a self, only: Option<&'a str>) -> impl Iterator<Item = &'a Runtime> {
        let all = self.runtimes.iter();
        all.filter(move |runtime| only.is_none_or(|only| runtime.version.starts_with(only)))
    }

    /// Reads this checkout's set-up file.
    ///
    /// # Errors
    /// A message with the command to run, if the file or something that it names is missing.
    pub fn read() -> Result<Setup, String> {
        let path = Self::path();
        let text = std::fs::read_to_string(&path).map_err(|e| advice(&path, &e.to_string()))?;
        let setup: Setup =
            serde_json::from_str(&text).map_err(|e| advice(&path, &e.to_string()))?;
        for runtime in &setup.runtimes {
            if !runtime.dotnet.is_file() {
                return Err(advice(&runtime.dotnet, "the runtime is gone"));
            }
        }
        Ok(setup)
    }
}

/// Returns the runtimes that a comma-separated list names.
fn chosen(all: Vec<Runtime>, names: &str) -> Vec<Runtime> {
    let names: Vec<&str> = names.split(',').collect();
    let chosen = |runtime: &Runtime| names.contains(&runtime.name.as_str());
    let chosen: Vec<Runtime> = all.into_iter().filter(chosen).collect();
    assert_eq!(chosen.len(), names.len(), "SIDEWALK_RUNTIMES={names:?}");
    chosen
}

fn advice(path: &Path, why: &str) -> String {
    format!("{}: {why}. Run `cargo xtask setup` first.", path.display())
}

impl Runtime {
    /// Returns the runtimes that tests run on: .NET 8, .NET Core 3.1, then the others of the
    /// set-up. `SIDEWALK_RUNTIMES` (names separated by commas) selects some of them, as in the
    /// default tier.
    ///
    /// # Panics
    /// When set-up has not been run.
    pub fn all() -> Vec<Runtime> {
        let setup = Setup::read().unwrap_or_else(|e| panic!("{e}"));
        assert!(
            !setup.runtimes.is_empty(),
            "{}",
            advice(&Setup::path(), "it lists no runtime")
        );
        match std::env::var("SIDEWALK_RUNTIMES") {
            Ok(names) => chosen(setup.runtimes, &names),
            Err(_) => setup.runtimes,
        }
    }

    /// Returns the default runtime, .NET 8.
    ///
    /// # Panics
    /// When set-up has not been run.
    pub fn net8() -> Runtime {
        Self::named("net8")
    }

    /// Returns the oldest supported runtime, .NET Core 3.1.
    ///
    /// # Panics
    /// When set-up has not been run.
    pub fn core31() -> Runtime {
        Self::named("core31")
    }

    /// Returns the runtime with this name in test names.
    ///
    /// # Panics
    /// When set-up has not been run, or has no runtime of that name.
    pub fn named(name: &str) -> Runtime {
        let setup = Setup::read().unwrap_or_else(|e| panic!("{e}"));
        let mut all = setup.runtimes.into_iter();
        all.find(|runtime| runtime.name == name).unwrap_or_else(|| {
            panic!(
                "{}",
                advice(&Setup::path(), &format!("no runtime called {name}"))
            )
        })
    }

    /// Whether this is .NET Core 3.1, whose libcoreclr has no frame pointers.
    pub fn is_core31(&self) -> bool {
        self.version.starts_with("3.1.")
    }

    /// Whether this is .NET for musl.
    pub fn is_musl(&self) -> bool {
        self.name.starts_with("musl")
    }

    /// The folder of the shared framework (`libcoreclr.so`, `System.Private.CoreLib.dll` and
    /// others).
    pub fn framework_dir(&self) -> PathBuf {
        self.root()
            .join("shared/Microsoft.NETCore.App")
            .join(&self.version)
    }

    /// The folder of ASP.NET Core's assemblies, if this runtime has them.
    pub fn aspnetcore_dir(&self) -> Option<PathBuf> {
        let folder = self.root().join("shared/Microsoft.AspNetCore.App");
        Some(folder.join(self.aspnetcore.as_ref()?))
    }

    /// The folder of the `dotnet` executable.
    pub fn root(&self) -> &Path {
        self.dotnet.parent().unwrap_or(Path::new("/"))
    }

    /// Returns a command that runs the managed program `dll` on exactly this runtime.
    pub fn command(&self, dll: &Path) -> Command {
        let mut command = Command::new(&self.dotnet);
        self.add_arguments(&mut command, dll);
        command
    }

    /// Appends `dotnet exec … dll` to a command line, for programs that start
    /// other programs.
    pub fn add_to(&self, command: &mut Command, dll: &Path) {
        command.arg(&self.dotnet);
        self.add_arguments(command, dll);
    }

    /// Returns the command of a program that came with the runtime (`createdump`).
    pub fn own_program(&self, name: &str) -> Command {
        let mut command = Command::new(self.framework_dir().join(name));
        self.add_libraries(&mut command);
        command
    }

    fn add_libraries(&self, command: &mut Command) {
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
    }

    fn add_arguments(&self, command: &mut Command, dll: &Path) {
        command
            .args(["exec", "--fx-version", &self.version])
            .arg(dll);
        // Needs no libicu and ignores settings from outside the repository.
        command
            .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
            .env("DOTNET_CLI_TELEMETRY_OPTOUT", "1")
            .env("DOTNET_NOLOGO", "1")
            .env_remove("DOTNET_STARTUP_HOOKS")
            .env_remove("CORECLR_ENABLE_PROFILING")
            .env_remove("CORECLR_PROFILER");
        self.add_libraries(command);
    }
}

impl Tools {
    /// Returns the tools that set-up installed.
    ///
    /// # Panics
    /// When `cargo xtask setup --all` has not been run.
    pub fn get() -> Tools {
        let setup = Setup::read().unwrap_or_else(|e| panic!("{e}"));
        match setup.tools {
            Some(tools) if tools.app10.executable.is_file() => tools,
            _ => panic!("the test tools are not there. Run `cargo xtask setup --all` first."),
        }
    }
}
