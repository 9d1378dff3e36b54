//! Releases of .NET that recording was tested on. Newer ones are recorded too, with a note.

/// Releases of .NET that recording supports.
pub(crate) const RUNTIMES: &str = "3.1, 5, 6, 7, 8, 9, 10, 11 (CoreCLR, Linux, x86-64)";
/// The newest tested release.
const NEWEST: (u32, u32) = (11, 0);

/// Returns the note to add to the version of a runtime that is newer than any tested one.
pub(crate) fn newer_than_tested(version: &str) -> Option<String> {
    let (major, minor) = NEWEST;
    (diagnostics::release(version)? > NEWEST)
        .then(|| format!("newer than the last version tested, {major}.{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_runtimes_are_known() {
        for version in ["3.1.23", "8.0.4", "10.0.14", "11.0.0", "11.0.99", "dev", ""] {
            assert_eq!(newer_than_tested(version), None, "{version}");
        }
        for version in ["11.1.0", "12.0.0-alpha.1.26418.1", "12.0.0"] {
            let newer = newer_than_tested(version).unwrap();
            assert_eq!(newer, "newer than the last version tested, 11.0");
        }
        let (major, minor) = NEWEST;
        let last = format!(" {major} (");
        assert!(minor == 0 && RUNTIMES.contains(&last), "{RUNTIMES}");
    }
}
