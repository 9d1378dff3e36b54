//! Path of a process's control socket, computed the same way by the agent and the tool.
//!
//! The folder is the TMPDIR with which the process was started, or /tmp, as for the runtime's own
//! socket. The file name has the process id, as the process sees it, and the start time, so that a
//! process with a reused id has another socket.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The folder, from the environment at the process's start (`/proc/PID/environ`).
pub fn socket_folder(environment: &[u8]) -> PathBuf {
    let folder = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(b"TMPDIR="))
        .filter(|folder| folder.first() == Some(&b'/'));
    Path::new(OsStr::from_bytes(folder.unwrap_or(b"/tmp"))).to_owned()
}

/// The file name. `pid` is the process id in its own namespace.
pub fn socket_name(pid: u32, start_time: u64) -> String {
    format!("sidewalk-{pid}-{start_time}.sock")
}

/// Start time of a process, in ticks since the machine's start: field 22 of `/proc/PID/stat`.
pub fn start_time(stat: &[u8]) -> Option<u64> {
    // The second field is the program's name in brackets. It may contain any character, so search
    // for the last bracket.
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let rest = std::str::from_utf8(stat.get(after..)?).ok()?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// The socket of a process, as the process sees it. `proc` is its folder in /proc, `pid` its id in
/// its own namespace.
pub fn socket_path(proc: &Path, pid: u32) -> Option<PathBuf> {
    let stat = std::fs::read(proc.join("stat")).ok()?;
    let environment = std::fs::read(proc.join("environ")).unwrap_or_default();
    Some(socket_folder(&environment).join(socket_name(pid, start_time(&stat)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_that_of_the_process() {
        for (environment, folder) in [
            (&b"A=1\0TMPDIR=/var/tmp\0B=2\0"[..], "/var/tmp"),
            (b"XTMPDIR=/no\0", "/tmp"),
            (b"TMPDIR=\0", "/tmp"),
            (b"TMPDIR=relative\0", "/tmp"),
            (b"", "/tmp"),
        ] {
            assert_eq!(socket_folder(environment), Path::new(folder));
        }
    }

    #[test]
    fn a_program_may_be_called_anything() {
        let stat = b"7 (a) R 1 (b) S 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 4711 21 22";
        assert_eq!(start_time(stat), Some(4711));
        assert_eq!(start_time(b"7 (a) S 1"), None);
        let own = socket_path(Path::new("/proc/self"), 7).unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert!(
            name.starts_with("sidewalk-7-") && name.ends_with(".sock"),
            "{name}"
        );
    }
}
