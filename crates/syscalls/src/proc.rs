//! Reads files of `/proc` without allocating.

use core::str::FromStr;

/// Reads the beginning of a file. Empty if it cannot be read.
pub fn read_file<'a>(path: &core::ffi::CStr, into: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: a string; the descriptor is ours and closed below.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return &[];
    }
    // SAFETY: so many writable bytes.
    let read = unsafe { libc::read(fd, into.as_mut_ptr().cast(), into.len()) };
    // SAFETY: opened above, and it has no other owner.
    unsafe { libc::close(fd) };
    into.get(..usize::try_from(read).unwrap_or(0))
        .unwrap_or(&[])
}

/// Returns the value of the line of a `status` file that begins with `name` (with its colon). Empty
/// if there is no such line, or if it is cut off.
pub fn field<'a>(status: &'a [u8], name: &[u8]) -> &'a [u8] {
    let mut lines = status.split_inclusive(|byte| *byte == b'\n');
    let line = lines.find(|line| line.starts_with(name) && line.ends_with(b"\n"));
    let value = line.and_then(|line| line.get(name.len()..));
    value.unwrap_or(&[]).trim_ascii()
}

/// Parses a decimal number.
pub fn decimal<Number: FromStr>(digits: &[u8]) -> Option<Number> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_all_of_its_line() {
        let status = b"Name:\tSigQ:\nSigQ:\t3/7823\nSigPnd:\t00000000000000";
        assert_eq!(field(status, b"SigQ:"), b"3/7823");
        assert_eq!(field(status, b"SigPnd:"), b"");
        assert_eq!(field(status, b"Seccomp:"), b"");
    }
}
