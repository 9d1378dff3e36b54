//! `cargo xtask setup`: runtimes and compiled workloads.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use testkit::{App10, Runtime, Setup, Tools, find_chromium};

use crate::fetch::{APP_10, CORE_3_1, Cache, NET_8, Wheel};
use crate::process::{on_path, run_quietly};
use crate::{musl, runtime_async, runtimes, unpacked, workloads};

/// How much a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One runtime and the sample program.
    Demo,
    /// Two runtimes at least, and all of `workloads/`.
    Workloads,
    /// The same, and the programs that only tests need.
    Tests,
}

/// Sets up what `scope` needs and prints it. `named` are the dotnet roots of `--runtimes`.
///
/// # Errors
/// A package cannot be fetched, a root holds no runtime, or a workload does not compile.
pub fn run(scope: Scope, named: &[PathBuf]) -> Result<Setup> {
    let cache = Cache::open()?;
    let own = runtimes::own_roots();
    let mut setup = Setup {
        runtimes: runtimes(&cache, scope, &own, named)?,
        tools: None,
        dump_reader: None,
        composite: None,
    };
    for runtime in &setup.runtimes {
        let web = match &runtime.aspnetcore {
            Some(version) => format!(" with ASP.NET Core {version}"),
            None => String::new(),
        };
        eprintln!(
            "runtime {}{web}: {}",
            runtime.version,
            runtime.dotnet.display()
        );
    }
    for runtime in &setup.runtimes {
        if let Some(libraries) = &runtime.libraries {
            musl::link(libraries)?;
        }
    }
    match scope {
        Scope::Demo => {
            workloads::compile(&cache, &own, &setup, &[DEMO.to_owned()])?;
            return Ok(setup);
        }
        Scope::Workloads => {
            // The tools of an earlier set-up stay.
            setup.tools = Setup::read()
                .ok()
                .and_then(|before| before.tools)
                .filter(|tools| tools.app10.executable.is_file());
        }
        Scope::Tests => setup.tools = Some(tools(&cache)?),
    }
    workloads::compile(&cache, &own, &setup, &testkit::workload_names()?)?;
    runtime_async::compile(&mut setup)?;
    unpacked::find(&mut setup);
    write(&setup)?;
    Ok(setup)
}

/// The sample program of the demo.
pub const DEMO: &str = "shares";

/// Parts that only tests need.
fn tools(cache: &Cache) -> Result<Tools> {
    let app = cache.wheel(&APP_10)?;
    let app10 = App10 {
        version: "10.0.12".to_owned(),
        executable: app.join(APP_10.executable),
    };
    eprintln!(
        "app on .NET {}: {}",
        app10.version,
        app10.executable.display()
    );
    browser()?;
    readers()?;
    cache.nextest()?;
    Ok(Tools {
        app10,
        go: cache.go()?,
        node: cache.node()?,
        speedscope: cache.speedscope()?,
    })
}

/// The runtimes: one of .NET 8 and one of .NET Core 3.1, then the others by age. The demo takes one
/// of .NET 8 or later.
fn runtimes(
    cache: &Cache,
    scope: Scope,
    own: &[PathBuf],
    named: &[PathBuf],
) -> Result<Vec<Runtime>> {
    // A mistake in what the user named must not cost a download.
    let mut others = Vec::new();
    for root in named {
        others.extend(runtimes::of_named(root)?);
    }
    others.extend(own.iter().flat_map(|root| runtimes::of_own(root)));
    others.sort_by(|a, b| runtimes::by_age(&a.version, &b.version));
    others.dedup_by(|a, b| a.version == b.version && a.is_musl() == b.is_musl());
    if scope == Scope::Demo {
        return match others.pop().filter(|newest| !newest.is_core31()) {
            Some(newest) => Ok(vec![newest]),
            None => Ok(vec![fetched(cache, &NET_8, "8.0.")?]),
        };
    }
    let mut all: Vec<Runtime> = Vec::new();
    for (name, band, wheel) in [("net8", "8.0.", &NET_8), ("core31", "3.1.", &CORE_3_1)] {
        let installed = own.iter().find_map(|root| runtimes::newest(root, band));
        let runtime = match installed {
            Some(runtime) => runtime,
            None => fetched(cache, wheel, band)?,
        };
        all.push(Runtime {
            name: name.to_owned(),
            ..runtime
        });
    }
    let is_known = |other: &Runtime| all.iter().any(|known| known.version == other.version);
    others.retain(|other| other.is_musl() || !is_known(other));
    all.extend(others);
    Ok(all)
}

/// Chromium, for the tests of the page: the machine's own, else Debian's where we may install it.
fn browser() -> Result<()> {
    if find_chromium().is_none() {
        install(&["chromium"])?;
    }
    let chromium = find_chromium().context("chromium was installed and is not on PATH")?;
    eprintln!("browser: {}", chromium.display());
    Ok(())
}

/// Shells and `man` to try completions and manual pages in, where they are missing.
fn readers() -> Result<()> {
    let programs = [("zsh", "zsh"), ("mandoc", "mandoc"), ("man", "man-db")];
    let missing = programs.iter().filter(|(name, _)| on_path(name).is_none());
    let packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    install(&packages)
}

/// Installs Debian's packages.
fn install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    let is_root = run_quietly(Command::new("id").arg("-u"))?.trim() == "0";
    if !is_root || on_path("apt-get").is_none() {
        bail!("{names} missing on PATH, and only root can install it: apt-get install {names}");
    }
    eprintln!("installing Debian's {names}");
    run_quietly(Command::new("apt-get").args(["update", "-qq"]))?;
    run_quietly(
        Command::new("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
    .map(drop)
}

fn fetched(cache: &Cache, wheel: &Wheel, band: &str) -> Result<Runtime> {
    let root = cache.wheel(wheel)?;
    let runtime = runtimes::newest(&root, band)
        .with_context(|| format!("{} holds no runtime {band}x", root.display()))?;
    // Some packages do not say that it is a program.
    let createdump = runtime.framework_dir().join("createdump");
    if createdump.is_file() {
        fs::set_permissions(&createdump, Permissions::from_mode(0o755))?;
    }
    Ok(runtime)
}

/// Writes the file that tests read; in one step, since tests may be running, and only if it says
/// something new, since testkit is built anew for it.
fn write(setup: &Setup) -> Result<()> {
    let path = Setup::path();
    let text = serde_json::to_string_pretty(setup)?;
    if fs::read_to_string(&path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    let scratch = path.with_extension(format!("json.{}", std::process::id()));
    fs::create_dir_all(testkit::target_dir())?;
    fs::write(&scratch, text)?;
    fs::rename(&scratch, &path).with_context(|| format!("cannot write {}", path.display()))
}
