//! Where a process's control socket lies: one rule for both sides.
//!
//! The folder is the TMPDIR with which the process was started, or /tmp, as for the runtime's own
//! socket; the name has the process's number, as the process sees it, and when it was started, so
//! that a number that is used again does not find the socket of the one before.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The folder, from the environment that the process was started with (`/proc/PID/environ`).
pub fn socket_folder(environment: &[u8]) -> PathBuf {
    let folder = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(b"TMPDIR="))
        .filter(|folder| folder.first() == Some(&b'/'));
    Path::new(OsStr::from_bytes(folder.unwrap_or(b"/tmp"))).to_owned()
}

/// The file's name. `pid` is the process's number in its own namespace.
pub fn socket_name(pid: u32, start_time: u64) -> String {
    format!("sidewalk-{pid}-{start_time}.sock")
}

/// When a process was started, in ticks since the machine was: field 22 of `/proc/PID/stat`.
pub fn start_time(stat: &[u8]) -> Option<u64> {
    // The second field is the program's name, in which anything may stand but after its last
    // bracket.
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let rest = std::str::from_utf8(stat.get(after..)?).ok()?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// The socket of a process, as the process sees it: `proc` is its folder in /proc, `pid` its number
/// in its own namespace.
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
