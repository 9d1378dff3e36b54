//! The binaries of a release: agents for glibc 2.17 and for musl, and a static tool with both.
//!
//! Zig's linker, driven by cargo-zigbuild, has the symbols of each glibc, so what is linked against
//! 2.17 needs nothing newer, on whatever machine. The tool has musl inside and runs on every Linux.
//! Invariant: each binary is held to what it may need, and holds no path of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use object::read::elf::{Dyn as _, ElfFile64, ProgramHeader as _};
use object::{Object as _, ObjectSymbol as _, elf};

use xtask::fetch::Cache;
use xtask::musl::{self, Linking};
use xtask::process::run;

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Version of RHEL 7, Ubuntu 14.04 and Debian 8, the oldest that .NET Core 3.1 runs on.
const GLIBC: (u32, u32) = (2, 17);

/// Where they are.
pub(super) struct Built {
    pub(super) sidewalk: PathBuf,
    pub(super) runsxs: PathBuf,
}

/// Builds the agents, then the tool that carries them; in a target folder of their own. `time` is
/// the commit's, which `sidewalk --version --verbose` names.
pub(super) fn build(time: u64, commit: &str) -> Result<Built> {
    // No other process gets anything from the cache while it is open.
    let (zig, musl) = {
        let cache = Cache::open()?;
        (cache.zig()?, cache.musl()?)
    };
    let folder = testkit::target_dir().join("release-for-users");
    let places = places(musl.rust())?;
    let flags = remapped(&places);
    let release = |command: &mut Command| -> Result<()> {
        command
            .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
            .env("SOURCE_DATE_EPOCH", time.to_string())
            .env("SIDEWALK_COMMIT", commit);
        run(command)
    };
    let target = format!("{TARGET}.{}.{}", GLIBC.0, GLIBC.1);
    let mut on_glibc = zig.build(&target, &folder, &["libsidewalk", "runsxs"]);
    release(on_glibc.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}")))?;
    let built = folder.join(TARGET).join("release");
    let (agent, runsxs) = (built.join("libsidewalk.so"), built.join("runsxs"));
    for file in [&agent, &runsxs] {
        check_glibc(file)?;
        check_paths(file, &places)?;
    }
    check_agent(&agent)?;
    release(&mut musl.build(&folder, &["libsidewalk"], Linking::Library, &flags))?;
    let built = folder.join(musl::TARGET).join("release");
    let (agent_on_musl, sidewalk) = (built.join("libsidewalk.so"), built.join("sidewalk"));
    check_agent(&agent_on_musl)?;
    check_paths(&agent_on_musl, &places)?;
    let mut tool = musl.build(&folder, &["sidewalk"], Linking::Static, &flags);
    tool.env("SIDEWALK_CARRY", &agent)
        .env("SIDEWALK_CARRY_MUSL", &agent_on_musl);
    release(&mut tool)?;
    check_static(&sidewalk)?;
    check_paths(&sidewalk, &places)?;
    Ok(Built { sidewalk, runsxs })
}

/// Folders of this machine, and their names in binaries.
type Places = Vec<(PathBuf, &'static str)>;

/// Flags by which no path of this machine gets into a binary.
fn remapped(places: &Places) -> Vec<String> {
    let flags = places
        .iter()
        .map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()));
    flags.collect()
}

/// Folders of this machine that sources are in, and what they are called instead; the last one that
/// fits counts.
fn places(rust: &Path) -> Result<Places> {
    let repository = fs::canonicalize(testkit::repository())?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    Ok(vec![
        (
            home.context("neither CARGO_HOME nor HOME is set")?,
            "/cargo",
        ),
        (repository, "/sidewalk"),
        (fs::canonicalize(rust)?, "/rust"),
    ])
}

/// It needs no newer glibc, and nothing that no glibc was named for.
fn check_glibc(file: &Path) -> Result<()> {
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
    Ok(())
}

/// It has no path of this machine.
fn check_paths(file: &Path, places: &Places) -> Result<()> {
    let content = fs::read(file)?;
    for (path, _) in places {
        let path = path.display().to_string();
        if content
            .windows(path.len())
            .any(|part| part == path.as_bytes())
        {
            bail!("{} holds the path {path}", file.display());
        }
    }
    Ok(())
}

/// It needs no library and no loader.
fn check_static(file: &Path) -> Result<()> {
    let content = fs::read(file)?;
    let parsed = ElfFile64::<object::Endianness>::parse(&*content)?;
    let has_loader = parsed
        .elf_program_headers()
        .iter()
        .any(|header| header.p_type(parsed.endian()) == elf::PT_INTERP);
    if has_loader || parsed.imports()?.next().is_some() {
        bail!("{} is not static", file.display());
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
