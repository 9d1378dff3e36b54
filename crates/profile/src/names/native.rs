//! Tells native files of the runtime, and our own, from others.

use crate::model::FrameKind;

/// The name of all frames in the agent's own library.
pub const AGENT_FRAME: &str = "[sidewalk agent]";

/// Whether a file is part of the runtime, by its name. Single-file apps, whose executable contains
/// the runtime, are recognised by [`crate::Import`] instead.
#[must_use]
pub fn native_kind(path: &str) -> FrameKind {
    let file = file_name(path);
    let stem = file.strip_suffix(".so").unwrap_or(file);
    let library = matches!(
        stem,
        "libcoreclr"
            | "libclrjit"
            | "libclrgc"
            | "libclrgcexp"
            | "libclrinterpreter"
            | "libcoreclrtraceptprovider"
            | "libmscordaccore"
            | "libmscordbi"
            | "libdbgshim"
            | "libhostfxr"
            | "libhostpolicy"
            | "libnethost"
            | "dotnet"
            | "singlefilehost"
            | "apphost"
    );
    // libSystem.Native.so, libSystem.Security.Cryptography.Native.OpenSsl.so; before .NET 5 also
    // without `lib`.
    let shim = stem.strip_prefix("lib").unwrap_or(stem);
    let shim = shim.starts_with("System.")
        && (shim.ends_with(".Native") || shim.contains(".Native."))
        && file.ends_with(".so");
    if library || shim {
        FrameKind::Runtime
    } else {
        FrameKind::Native
    }
}

/// Whether a file is the agent: under a build name, or under the content-based name of an unpacked
/// or copied agent.
#[must_use]
pub fn is_agent(path: &str) -> bool {
    let stem = file_name(path).strip_suffix(".so");
    let rest = stem.and_then(|stem| stem.strip_prefix("libsidewalk"));
    rest.is_some_and(|rest| {
        let hash = rest.strip_prefix('-');
        let is_hash = |hash: &str| hash.bytes().all(|b| b.is_ascii_hexdigit());
        rest.is_empty() || rest == "-musl" || hash.is_some_and(is_hash)
    })
}

/// Returns the name without folders and without the kernel's suffix for deleted files.
fn file_name(path: &str) -> &str {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_native_files() {
        let runtime = [
            "/opt/dotnet/shared/Microsoft.NETCore.App/8.0.4/libcoreclr.so",
            "libclrjit.so",
            "libclrgc.so",
            "/opt/dotnet/dotnet",
            "/opt/dotnet/host/fxr/8.0.4/libhostfxr.so",
            "libhostpolicy.so",
            "libmscordaccore.so",
            "libSystem.Native.so",
            "libSystem.IO.Compression.Native.so",
            "libSystem.Security.Cryptography.Native.OpenSsl.so",
            "System.Net.Http.Native.so",
            "System.Security.Cryptography.Native.OpenSsl.so",
            "/opt/old/libcoreclr.so (deleted)",
        ];
        for path in runtime {
            assert_eq!(native_kind(path), FrameKind::Runtime, "{path}");
        }
        let native = [
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
            "libe_sqlite3.so",
            "[vdso]",
            "/srv/app/System.Native.dll",
            "/srv/libcoreclr.so/mine.so",
            "",
        ];
        for path in native {
            assert_eq!(native_kind(path), FrameKind::Native, "{path}");
        }
        assert!(is_agent("/opt/sidewalk/lib/libsidewalk.so"));
        assert!(is_agent("/opt/sidewalk/lib/libsidewalk-musl.so"));
        assert!(is_agent("/tmp/libsidewalk-0123456789abcdef.so (deleted)"));
        assert!(!is_agent("/opt/libsidewalk.so/other.so"));
        assert!(!is_agent("/opt/libsidewalk-tests.so"));
    }
}
