//! Candidate paths of an ELF object's separate debug file.
//!
//! The caller that opens a candidate must compare build-ids.

use std::path::{Path, PathBuf};

/// Returns candidate paths, best first: by build-id, then by the name in `.gnu_debuglink`, in the
/// object's folder, in its `.debug` folder and under each debug folder.
pub(crate) fn candidates(
    object: &Path,
    build_id: &[u8],
    debug_link: Option<&str>,
    debug_folders: &[PathBuf],
) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let [first, rest @ ..] = build_id
        && !rest.is_empty()
    {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        for folder in debug_folders {
            found.push(
                folder
                    .join(".build-id")
                    .join(format!("{first:02x}"))
                    .join(format!("{rest}.debug")),
            );
        }
    }
    // The name comes from an untrusted file. It must be a file name, not a path.
    let link = debug_link
        .filter(|name| !name.is_empty() && !name.contains('/') && *name != "." && *name != "..");
    if let (Some(link), Some(folder)) = (link, object.parent()) {
        found.push(folder.join(link));
        found.push(folder.join(".debug").join(link));
        for debug in debug_folders {
            let below = folder.strip_prefix("/").unwrap_or(folder);
            found.push(debug.join(below).join(link));
        }
    }
    found.retain(|path| path != object);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_build_id_then_by_link() {
        let paths = candidates(
            Path::new("/opt/dotnet/libcoreclr.so"),
            &[0xab, 0x01, 0x0f],
            Some("libcoreclr.so.dbg"),
            &[PathBuf::from("/usr/lib/debug")],
        );
        let paths: Vec<_> = paths.iter().map(|p| p.to_str().unwrap()).collect();
        assert_eq!(
            paths,
            [
                "/usr/lib/debug/.build-id/ab/010f.debug",
                "/opt/dotnet/libcoreclr.so.dbg",
                "/opt/dotnet/.debug/libcoreclr.so.dbg",
                "/usr/lib/debug/opt/dotnet/libcoreclr.so.dbg",
            ]
        );
    }

    #[test]
    fn a_link_that_is_a_path_is_not_followed() {
        for link in ["../../etc/passwd", "/etc/passwd", "..", ""] {
            assert!(candidates(Path::new("/a/b.so"), &[], Some(link), &[]).is_empty());
        }
    }
}
