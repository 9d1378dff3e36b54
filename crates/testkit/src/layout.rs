//! Paths of the repository, its target folder, the build results in it, and the cache of downloads.

use std::env;
use std::path::{Path, PathBuf};

/// The root of the repository that this crate was compiled in.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Cargo's target folder (`CARGO_TARGET_DIR`, else `target` in the repository).
pub fn target_dir() -> PathBuf {
    let path = match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) if !dir.is_empty() => repository().join(dir),
        _ => repository().join("target"),
    };
    path.canonicalize().unwrap_or(path)
}

/// The folder of the `sidewalk` binary and the agent under test: `SIDEWALK_BIN_DIR`, else the
/// folder of the profile `SIDEWALK_PROFILE` (`debug` or `release`) in the target folder, else
/// `target/debug`.
///
/// `cargo xtask` sets the profile: the default tier of tests loads the development build, the full
/// tier and everything that is measured the release build.
pub fn profile_dir() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = set("SIDEWALK_BIN_DIR") {
        return PathBuf::from(folder);
    }
    target_dir().join(set("SIDEWALK_PROFILE").unwrap_or_else(|| "debug".into()))
}

/// The folder of what `cargo xtask` builds for musl.
pub fn musl_dir() -> PathBuf {
    target_dir().join("musl")
}

/// Whether the programs under test are on musl (`cargo xtask … --libc musl`).
pub fn is_on_musl() -> bool {
    profile_dir() == musl_dir()
}

/// The cache of fetched runtimes and compilers, shared by all checkouts of one
/// user: `SIDEWALK_CACHE`, else `$XDG_CACHE_HOME/sidewalk`, else
/// `~/.cache/sidewalk`, else a folder in the target folder.
pub fn cache_dir() -> PathBuf {
    let set = |name: &str| {
        env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    set("SIDEWALK_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("sidewalk")))
        .or_else(|| set("HOME").map(|d| d.join(".cache").join("sidewalk")))
        .unwrap_or_else(|| target_dir().join("cache"))
}

/// A folder that CI unpacks beside the runtimes (`.ci/run`), if it is there: programs that no
/// registry of packages has.
pub fn unpacked(name: &str) -> Option<PathBuf> {
    let folder = cache_dir().join("runtimes").join(name);
    folder.is_dir().then_some(folder)
}

/// The `sidewalk` command under test.
///
/// # Panics
/// When it has not been built.
pub fn sidewalk() -> PathBuf {
    built("sidewalk")
}

/// The agent under test, `libsidewalk.so`.
///
/// # Panics
/// When it has not been built.
pub fn agent() -> PathBuf {
    built("libsidewalk.so")
}

/// The variable that names the agent under test to the tool.
pub fn agent_variable() -> &'static str {
    match is_on_musl() {
        true => "SIDEWALK_AGENT_MUSL",
        false => "SIDEWALK_AGENT",
    }
}

/// The oracle, `liboracle.so`: a test profiler that compares the agent's walkers.
///
/// # Panics
/// When it has not been built.
pub(crate) fn oracle() -> PathBuf {
    built("liboracle.so")
}

/// The `runsxs` command under test.
///
/// # Panics
/// When it has not been built.
pub fn runsxs() -> PathBuf {
    built("runsxs")
}

/// The old profiler of the tests, `libv2_agent.so`.
///
/// # Panics
/// When it has not been built.
pub fn v2_agent() -> PathBuf {
    built("libv2_agent.so")
}

/// The preload library that makes signal stacks smaller, `libtight_stacks.so`.
///
/// # Panics
/// When it has not been built.
pub(crate) fn tight_stacks() -> PathBuf {
    built("libtight_stacks.so")
}

/// The preload library that speeds up CPU-time clocks, `libfast_clocks.so`.
///
/// # Panics
/// When it has not been built.
pub fn fast_clocks() -> PathBuf {
    built("libfast_clocks.so")
}

/// The allocator preloaded before the C library's, `libwatched_malloc.so`.
///
/// # Panics
/// When it has not been built.
pub fn watched_malloc() -> PathBuf {
    built("libwatched_malloc.so")
}

/// The library that creates native threads, `libnative_threads.so`.
///
/// # Panics
/// When it has not been built.
pub fn native_threads() -> PathBuf {
    built("libnative_threads.so")
}

fn built(name: &str) -> PathBuf {
    let path = profile_dir().join(name);
    assert!(
        path.is_file(),
        "{} is not built. Run `cargo build --workspace` first (`cargo xtask test` builds it).",
        path.display()
    );
    path
}

/// Names of Chromium's executable.
const CHROMIUM: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Chromium's executable, if PATH has one.
pub fn find_chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut places = CHROMIUM
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    places.find(|place| place.is_file())
}

/// Chromium's executable, for the tests of the HTML page.
///
/// # Panics
/// When PATH has none.
pub fn chromium() -> PathBuf {
    find_chromium().unwrap_or_else(|| {
        panic!(
            "no Chromium on PATH ({}). `cargo xtask setup --all` installs Debian's when it is root.",
            CHROMIUM.join(", ")
        )
    })
}
