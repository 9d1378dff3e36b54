//! `cargo xtask dist --try`: each package installed where nothing else is, and a program recorded
//! by it.
//!
//! Needs root and debootstrap, for a Debian with an older glibc than ours (bullseye has 2.31) and
//! nothing but that and libstdc++, which .NET needs. The try passes if the profile has the
//! program's methods.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use testkit::{Runtime, Setup, workload};

use super::only;
use xtask::process::{on_path, run_quietly};

const SUITE: &str = "bullseye";

/// Tries what lies in `target/dist`.
pub(super) fn run(dist: &Path) -> Result<()> {
    let setup = Setup::read().map_err(anyhow::Error::msg)?;
    let runtime = setup.runtimes.first().context("there is no runtime")?;
    let root = Root::new(runtime)?;
    let archive = only(dist, ".tar.gz")?;
    let name = archive.trim_end_matches(".tar.gz");
    fs::copy(dist.join(&archive), root.path.join("opt").join(&archive))?;
    root.run(&format!("cd /opt && tar xzf {archive}"))?;
    root.record(&format!("/opt/{name}/sidewalk"), "archive")?;
    let deb = only(dist, ".deb")?;
    fs::copy(dist.join(&deb), root.path.join("opt").join(&deb))?;
    root.run(&format!("dpkg -i /opt/{deb}"))?;
    root.record("sidewalk", "deb")?;
    root.run("dpkg -r sidewalk")?;
    wheel(dist, runtime)?;
    tool(dist)
}

/// A Debian of its own.
struct Root {
    path: PathBuf,
    dotnet: PathBuf,
    program: PathBuf,
}

impl Root {
    fn new(runtime: &Runtime) -> Result<Self> {
        let path = testkit::target_dir().join("dist-root");
        if !path.join("done").exists() {
            if path.exists() {
                fs::remove_dir_all(&path)?;
            }
            on_path("debootstrap").context("debootstrap is not installed")?;
            eprintln!("making a Debian {SUITE} in {}", path.display());
            run_quietly(
                Command::new("debootstrap")
                    .args(["--variant=minbase", "--include=libstdc++6", SUITE])
                    .arg(&path),
            )?;
            fs::write(path.join("done"), "")?;
        }
        for folder in ["dotnet", "program"] {
            fs::create_dir_all(path.join(folder))?;
        }
        let folder = |file: &Path| file.parent().map(Path::to_owned).context("no folder");
        Ok(Self {
            path,
            dotnet: folder(&runtime.dotnet)?,
            program: folder(&workload("shares").dll)?,
        })
    }

    /// Runs a line of shell inside, with the runtime and the program.
    fn run(&self, line: &str) -> Result<String> {
        let script = "mount --make-rprivate / && mount --bind \"$1\" \"$3/dotnet\" && mount --bind \"$2\" \
                      \"$3/program\" && mount -t proc proc \"$3/proc\" && exec chroot \"$3\" sh -ec \"$4\"";
        run_quietly(
            Command::new("unshare")
                .args(["--mount", "--pid", "--fork", "sh", "-ec", script, "sh"])
                .args([&self.dotnet, &self.program, &self.path])
                .arg(line)
                .env_clear()
                .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
                .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1"),
        )
    }

    fn record(&self, sidewalk: &str, what: &str) -> Result<()> {
        self.run(&format!(
            "rm -f /tmp/flame.*; {sidewalk} record -o /tmp/flame.html -o /tmp/flame.collapsed -- \
             /dotnet/dotnet /program/shares.dll"
        ))?;
        check_recording(&self.path.join("tmp"), what)
    }
}

/// The picture has what the program does.
fn check_recording(folder: &Path, what: &str) -> Result<()> {
    let stacks = fs::read_to_string(folder.join("flame.collapsed"))?;
    // The page's content is packed, so only its form is checked.
    let page = fs::read_to_string(folder.join("flame.html"))?;
    if !page.trim_end().ends_with("</html>") {
        bail!("{what}: flame.html is no whole page");
    }
    for method in ["BurnHalf", "BurnQuarter", "BurnFifth"] {
        let name = format!("Workloads.Shares.{method}");
        if !stacks.contains(&name) {
            bail!("{what}: {name} is not in the picture");
        }
    }
    eprintln!("{what}: recorded, {} bytes of page", page.len());
    Ok(())
}

fn wheel(dist: &Path, runtime: &Runtime) -> Result<()> {
    let folder = testkit::target_dir().join("dist-venv");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    run_quietly(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let mut pip = Command::new(folder.join("bin/pip"));
    pip.args(["install", "--no-index", "--quiet", "--find-links"]);
    run_quietly(pip.arg(dist).arg("sidewalk"))?;
    let program = runtime.command(&workload("shares").dll);
    let mut record = Command::new(folder.join("bin/sidewalk"));
    record
        .args(["record", "-o", "flame.html", "-o", "flame.collapsed", "--"])
        .arg(program.get_program())
        .args(program.get_args())
        .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
        .current_dir(&folder);
    run_quietly(&mut record)?;
    check_recording(&folder, "wheel")
}

/// Only where there is an SDK; else the tests hold the packages' parts.
fn tool(dist: &Path) -> Result<()> {
    let sdks = Command::new("dotnet").arg("--list-sdks").output();
    if !sdks.is_ok_and(|output| output.status.success() && !output.stdout.is_empty()) {
        eprintln!("NuGet packages: no SDK on PATH, not installed");
        return Ok(());
    }
    let folder = testkit::target_dir().join("dist-tool");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let mut install = Command::new("dotnet");
    install.args(["tool", "install", "sidewalk", "--tool-path"]);
    run_quietly(install.arg(&folder).arg("--add-source").arg(dist))?;
    let version = run_quietly(Command::new(folder.join("sidewalk")).arg("--version"))?;
    eprintln!("NuGet packages: {}", version.trim());
    Ok(())
}
