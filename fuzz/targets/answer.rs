//! What the target `answers` does, and what must hold; also a plain test over the corpus.

use diagnostics::{ProcessInfo, ProcessInfoVersion};

/// Reads bytes as an answer to each of the three commands.
///
/// # Panics
/// Something that must hold does not.
pub(crate) fn check(bytes: &[u8]) {
    for generation in [
        ProcessInfoVersion::First,
        ProcessInfoVersion::Second,
        ProcessInfoVersion::Third,
    ] {
        let Ok(Ok(info)) = ProcessInfo::read(bytes, generation) else {
            continue;
        };
        let texts = [
            Some(&info.command_line),
            Some(&info.os),
            Some(&info.arch),
            info.entry_assembly.as_ref(),
            info.version.as_ref(),
            info.rid.as_ref(),
        ];
        let length: usize = texts.into_iter().flatten().map(String::len).sum();
        // A UTF-16 unit, two bytes, is at most three bytes of UTF-8.
        assert!(length <= bytes.len() * 3 / 2, "{length} of {}", bytes.len());
    }
}
