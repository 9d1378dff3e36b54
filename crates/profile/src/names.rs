//! Names that a user knows, made from those that metadata and files have.
//!
//! Pure functions on text. The invariant: a name that is not understood is shown as it is.

use recording::MethodKind;

use crate::model::FrameKind;

/// The name of all frames in the agent's own library.
pub const AGENT_FRAME: &str = "[sidewalk agent]";

/// A readable name for a method, from the names that metadata has
/// (see [`recording::Record::Method`]).
#[must_use]
pub fn method(_kind: MethodKind, type_name: &str, name: &str) -> String {
    if type_name.is_empty() {
        name.to_owned()
    } else {
        format!("{type_name}.{name}")
    }
}

/// Whether a file is part of the runtime or just native code.
#[must_use]
pub fn native_kind(path: &str) -> FrameKind {
    let file = path.rsplit('/').next().unwrap_or(path);
    let runtime = matches!(
        file,
        "libcoreclr.so"
            | "libclrjit.so"
            | "libclrgc.so"
            | "libclrgcexp.so"
            | "libclrinterpreter.so"
            | "libcoreclrtraceptprovider.so"
            | "libmscordaccore.so"
            | "libmscordbi.so"
            | "libhostfxr.so"
            | "libhostpolicy.so"
            | "libnethost.so"
            | "libdbgshim.so"
            | "dotnet"
    ) || (file.starts_with("libSystem.") || file.starts_with("System."))
        && file.ends_with(".Native.so")
        || file == "libSystem.Security.Cryptography.Native.OpenSsl.so"
        || file == "System.Security.Cryptography.Native.OpenSsl.so";
    if runtime {
        FrameKind::Runtime
    } else {
        FrameKind::Native
    }
}

/// Whether a file is the agent.
#[must_use]
pub fn is_agent(path: &str) -> bool {
    path.rsplit('/').next() == Some("libsidewalk.so")
}

/// Text in square brackets, once.
#[must_use]
pub fn bracketed(text: &str) -> String {
    if text.starts_with('[') && text.ends_with(']') {
        text.to_owned()
    } else {
        format!("[{text}]")
    }
}

/// Why a walk broke, from its pseudo frame: `[broken: no unwind rule]` gives `no unwind rule`.
#[must_use]
pub fn pseudo_reason(name: &str) -> &str {
    let text = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .unwrap_or(name);
    text.strip_prefix("broken: ").unwrap_or(text)
}
