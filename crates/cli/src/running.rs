//! Finds the .NET processes that are visible to the tool.
//!
//! No process is queried. The information comes from `/proc` and the names of sockets.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};
use diagnostics::{Error, Survey, Target};

/// Maximum number of command line bytes that are read.
const MAX_COMMAND: u64 = 64 << 10;

/// Returns .NET processes with their command lines, by process id.
pub(crate) fn commands() -> Result<Vec<(u32, String)>> {
    let targets = targets()?;
    let mut found: Vec<_> = targets
        .iter()
        .map(|target| (target.pid(), formats::command_line(&command(target))))
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Returns the ids of all processes, in order.
///
/// # Errors
/// They cannot be listed now, for example without a free descriptor.
pub(crate) fn pids() -> io::Result<BTreeSet<u32>> {
    let names = fs::read_dir("/proc")?.flatten();
    let names = names.map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse().ok());
    Ok(pids.collect())
}

/// Applies `each` to these processes, so many at a time: a process that is stuck does not hold up
/// the others. Returns the results that there are, in no order.
pub(crate) fn at_once<T: Send>(
    targets: Vec<Target>,
    count: usize,
    each: impl Fn(Target) -> Option<T> + Sync,
) -> Vec<T> {
    let left = Mutex::new(targets);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                while let Some(target) = left.lock().ok().and_then(|mut left| left.pop()) {
                    if let Some(result) = each(target)
                        && let Ok(mut results) = results.lock()
                    {
                        results.push(result);
                    }
                }
            });
        }
    });
    results.into_inner().unwrap_or_default()
}

/// Returns all visible .NET processes.
pub(crate) fn targets() -> Result<Vec<Target>> {
    let named = named_in_sockets(&std::env::temp_dir()).chain(named_in_sockets(Path::new("/tmp")));
    let named: HashSet<(u32, u64)> = named.collect();
    let mut targets = Vec::new();
    let processes = procfs::process::all_processes().context("cannot read /proc")?;
    for process in processes.flatten() {
        let Ok(pid) = u32::try_from(process.pid()) else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        // A process that has ended meanwhile is skipped.
        let Ok(target) = Target::new(pid) else {
            continue;
        };
        let is_dotnet = match Survey::of(&target) {
            Ok(found) => found.is_native_aot || !found.runtimes.is_empty(),
            // Another user's process, which has made a diagnostics socket.
            Err(Error::Denied { .. } | Error::Privileged { .. }) => {
                let started = process.stat().map(|stat| stat.starttime);
                started.is_ok_and(|started| named.contains(&(pid, started)))
            }
            Err(_) => false,
        };
        if is_dotnet {
            targets.push(target);
        }
    }
    Ok(targets)
}

/// The process ids in names of diagnostics sockets, with the start times of the processes. Socket
/// files stay behind, and ids are reused.
fn named_in_sockets(folder: &Path) -> impl Iterator<Item = (u32, u64)> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let rest = name.strip_prefix("dotnet-diagnostic-")?;
        let (pid, started) = rest.strip_suffix("-socket")?.split_once('-')?;
        Some((pid.parse().ok()?, started.parse().ok()?))
    })
}

/// The words of a process's command line. The process can write anything there.
pub(crate) fn command(target: &Target) -> Vec<String> {
    let mut bytes = Vec::new();
    if let Ok(file) = target.process().open_relative("cmdline") {
        // An unreadable command line counts as empty.
        let _ = file.take(MAX_COMMAND).read_to_end(&mut bytes);
    }
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    bytes
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// The name of a user, or the number.
pub(crate) fn user_name(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(uid.into());
    match user {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// The container's id in a component of a control group's path: 64 hexadecimal digits, perhaps
/// behind `docker-` or `cri-containerd:` and before `.scope`.
pub(crate) fn container_id(component: &str) -> Option<&str> {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let id = name.rsplit(['-', ':']).next().unwrap_or(name);
    (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_name_processes() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "dotnet-diagnostic-77-123-socket",
            "dotnet-diagnostic-x-1-socket",
            "other",
        ] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let named: Vec<(u32, u64)> = named_in_sockets(folder.path()).collect();
        assert_eq!(named, [(77, 123)]);
    }
}
