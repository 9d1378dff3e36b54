//! `cargo xtask setup`: runtimes and compiled workloads.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use testkit::{App10, Runtime, Setup, Tools};

use crate::fetch::{APP_10, CORE_3_1, Cache, NET_8, Wheel};
use crate::process::on_path;
use crate::workloads;

/// Does all set-up and says what there is. `all` brings the .NET 10 app too.
pub(crate) fn run(all: bool) -> Result<Setup> {
    let cache = Cache::open()?;
    let own = own_installation();
    let mut setup = Setup::default();
    for (band, wheel) in [("8.0.", &NET_8), ("3.1.", &CORE_3_1)] {
        let runtime = match own.as_deref().and_then(|root| installed(root, band)) {
            Some(runtime) => runtime,
            None => fetched(&cache, wheel, band)?,
        };
        eprintln!("runtime {}: {}", runtime.version, runtime.dotnet.display());
        setup.runtimes.push(runtime);
    }
    if all {
        setup.tools = Some(tools(&cache)?);
    } else if let Ok(before) = Setup::read() {
        // Not asked for, not taken away.
        setup.tools = before
            .tools
            .filter(|tools| tools.app10.executable.is_file());
    }
    workloads::compile(&cache, own.as_deref(), &setup)?;
    write(&setup)?;
    Ok(setup)
}

/// What only tests need.
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
    Ok(Tools {
        app10,
        go: cache.go()?,
        node: cache.node()?,
        speedscope: cache.speedscope()?,
    })
}

/// The user's own .NET: `DOTNET_ROOT`, else the folder of `dotnet` on PATH.
fn own_installation() -> Option<PathBuf> {
    let dotnet = match std::env::var_os("DOTNET_ROOT") {
        Some(root) if !root.is_empty() => PathBuf::from(root).join("dotnet"),
        _ => on_path("dotnet")?,
    };
    let dotnet = dotnet.canonicalize().ok()?;
    dotnet
        .is_file()
        .then(|| dotnet.parent().map(Path::to_path_buf))
        .flatten()
}

/// The newest runtime of a version band (`8.0.`) in an installation.
fn installed(root: &Path, band: &str) -> Option<Runtime> {
    let mut versions: Vec<(u32, String)> = fs::read_dir(root.join("shared/Microsoft.NETCore.App"))
        .ok()?
        .flatten()
        .filter(|entry| entry.path().join("libcoreclr.so").is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter_map(|name| Some((name.strip_prefix(band)?.parse().ok()?, name)))
        .collect();
    versions.sort();
    let (_, version) = versions.pop()?;
    Some(Runtime {
        version,
        dotnet: root.join("dotnet"),
    })
}

fn fetched(cache: &Cache, wheel: &Wheel, band: &str) -> Result<Runtime> {
    let root = cache.wheel(wheel)?;
    installed(&root, band).with_context(|| format!("{} holds no runtime {band}x", root.display()))
}

/// Writes the file that tests read; in one step, since tests may be running.
fn write(setup: &Setup) -> Result<()> {
    let path = Setup::path();
    let scratch = path.with_extension(format!("json.{}", std::process::id()));
    fs::create_dir_all(testkit::target_dir())?;
    fs::write(&scratch, serde_json::to_string_pretty(setup)?)?;
    fs::rename(&scratch, &path).with_context(|| format!("cannot write {}", path.display()))
}
