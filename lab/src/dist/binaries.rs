//! The binaries of a release: built for glibc 2.17 and held to it.
//!
//! Zig's linker, driven by cargo-zigbuild, has the symbols of each glibc, so what is linked against
//! 2.17 needs nothing newer, on whatever machine. Both come from PyPI, as versions that are named
//! here.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use object::read::elf::{Dyn as _, ElfFile64};
use object::{Object as _, ObjectSymbol as _, elf};

use xtask::fetch::Cache;
use xtask::process::run;

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Version of RHEL 7, Ubuntu 14.04 and Debian 8, the oldest that .NET Core 3.1 runs on.
const GLIBC: (u32, u32) = (2, 17);

/// Where they are.
pub(super) struct Built {
    pub(super) sidewalk: PathBuf,
    pub(super) runsxs: PathBuf,
}

/// Builds the agent, then the tool that carries it; in a target folder of their own. `time` is the
/// commit's, which `sidewalk --version --verbose` names.
pub(super) fn build(time: u64, commit: &str) -> Result<Built> {
    // No other process gets anything from the cache while it is open.
    let zig = Cache::open()?.zig()?;
    let folder = testkit::target_dir().join("release-for-users");
    let built = folder.join(TARGET).join("release");
    let agent = built.join("libsidewalk.so");
    let flags = remapped()?;
    let build = |packages: &[&str], carry: &Path| -> Result<()> {
        let target = format!("{TARGET}.{}.{}", GLIBC.0, GLIBC.1);
        let mut command = zig.build(&target, &folder, packages);
        command
            .env("CARGO_ENCODED_RUSTFLAGS", &flags)
            .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
            .env("SOURCE_DATE_EPOCH", time.to_string())
            .env("SIDEWALK_COMMIT", commit)
            .env("SIDEWALK_CARRY", carry);
        run(&mut command)
    };
    build(&["libsidewalk"], Path::new("no"))?;
    check_binary(&agent)?;
    check_agent(&agent)?;
    build(&["sidewalk", "runsxs"], &agent)?;
    let of = |name: &str| -> Result<PathBuf> {
        let file = built.join(name);
        check_binary(&file)?;
        Ok(file)
    };
    Ok(Built {
        sidewalk: of("sidewalk")?,
        runsxs: of("runsxs")?,
    })
}

/// Flags by which no path of this machine gets into a binary.
fn remapped() -> Result<OsString> {
    let mut flags = Vec::new();
    for (path, name) in places()? {
        flags.push(format!("--remap-path-prefix={}={name}", path.display()));
    }
    // The form in which a flag may have blanks.
    Ok(flags.join("\u{1f}").into())
}

/// Folders of this machine that sources are in, and what they are called instead; the last one that
/// fits counts.
fn places() -> Result<Vec<(PathBuf, &'static str)>> {
    let repository = fs::canonicalize(testkit::repository())?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    Ok(vec![
        (
            home.context("neither CARGO_HOME nor HOME is set")?,
            "/cargo",
        ),
        (repository, "/sidewalk"),
    ])
}

/// It needs no newer glibc, nothing that no glibc was named for, and has no path of this machine.
fn check_binary(file: &Path) -> Result<()> {
    let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let name = file.display();
    match diagnostics::newest_glibc(file) {
        Some(needed) if needed <= GLIBC => {}
        other => bail!("{name} needs glibc {other:?}, and {GLIBC:?} is what users have"),
    }
    let unknown = without_version(&content)?;
    if !unknown.is_empty() {
        bail!("{name} needs {unknown:?}, which glibc {GLIBC:?} has not");
    }
    for (path, _) in places()? {
        let path = path.display().to_string();
        if content
            .windows(path.len())
            .any(|part| part == path.as_bytes())
        {
            bail!("{name} holds the path {path}");
        }
    }
    Ok(())
}

/// Names that a library must have and for which the linker knew none: it does not load where there
/// is none.
fn without_version(content: &[u8]) -> Result<Vec<String>> {
    let file = ElfFile64::<object::Endianness>::parse(content)?;
    let sections = file.elf_section_table();
    let versions = sections
        .versions(file.endian(), content)?
        .context("no versions")?;
    let mut found = Vec::new();
    for symbol in file.dynamic_symbols() {
        if !symbol.is_undefined() || symbol.is_weak() || symbol.index().0 == 0 {
            continue;
        }
        let index = versions.version_index(file.endian(), symbol.index());
        if versions.version(index.index())?.is_none() {
            found.push(symbol.name()?.to_owned());
        }
    }
    Ok(found)
}

/// It stays mapped, is bound at once, and exports one function: see `crates/libsidewalk`.
fn check_agent(agent: &Path) -> Result<()> {
    let content = fs::read(agent)?;
    let file = ElfFile64::<object::Endianness>::parse(&*content)?;
    let endian = file.endian();
    let sections = file.elf_section_table();
    let (dynamic, _) = sections
        .dynamic(endian, &*content)?
        .context("no dynamic section")?;
    let flags = dynamic
        .iter()
        .find(|entry| entry.tag(endian) == elf::DT_FLAGS_1)
        .map_or(0, |entry| entry.val(endian));
    // `DF_1_NODELETE` and `DF_1_NOW`.
    let needed = 0x8 | 0x1;
    if flags & needed != needed {
        bail!("the agent's flags are {flags:#x}: it could be unmapped, or bound in a handler");
    }
    let defined = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition());
    let exports: Vec<&str> = defined
        .map(|symbol| symbol.name())
        .collect::<Result<_, _>>()?;
    if exports != ["DllGetClassObject"] {
        bail!("the agent exports {exports:?}");
    }
    Ok(())
}
