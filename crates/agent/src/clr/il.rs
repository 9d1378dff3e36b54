//! Exception clauses of a method's IL body: whether the method catches anything.
//!
//! Format: ECMA-335, partition II, 25.4. Instructions are not decoded. Invariant: nothing outside
//! the bytes is read, and every loop advances in them.

/// Whether a body, header first, has a catch or filter clause; `None` if it is malformed.
pub(super) fn catches(il: &[u8]) -> Option<bool> {
    const MORE_SECTIONS: u8 = 0x08;
    const EXCEPTIONS: u8 = 0x01;
    const FAT: u8 = 0x40;
    const ANOTHER: u8 = 0x80;
    let byte = |at: usize| il.get(at).copied();
    let u16_at = |at: usize| Some(u16::from_le_bytes([byte(at)?, byte(at.checked_add(1)?)?]));
    let u32_at =
        |at: usize| Some(u32::from(u16_at(at)?) | u32::from(u16_at(at.checked_add(2)?)?) << 16);
    let flags = byte(0)?;
    match flags & 3 {
        // A tiny body has no clauses.
        2 => return Some(false),
        3 => {}
        _ => return None,
    }
    if flags & MORE_SECTIONS == 0 {
        return Some(false);
    }
    let header = usize::from(byte(1)? >> 4) * 4;
    let length = usize::try_from(u32_at(4)?).ok()?;
    let mut at = header.checked_add(length)?.checked_next_multiple_of(4)?;
    loop {
        let kind = byte(at)?;
        let (size, clause) = match kind & FAT {
            0 => (usize::from(byte(at + 1)?), 12),
            _ => (usize::try_from(u32_at(at)? >> 8).ok()?, 24),
        };
        let end = at.checked_add(size.max(4))?;
        if kind & EXCEPTIONS != 0 {
            // Clause flags: 0 for a type, 1 for a filter, 2 for finally, 4 for fault.
            let mut starts = (at + 4..end).step_by(clause);
            if starts.any(|start| u16_at(start).is_none_or(|flags| flags < 2)) {
                return Some(true);
            }
        }
        if kind & ANOTHER == 0 {
            return Some(false);
        }
        at = end.checked_next_multiple_of(4)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a fat body of three bytes of code, followed by these sections.
    fn fat(sections: &[u8]) -> Vec<u8> {
        let flags = if sections.is_empty() { 0x03 } else { 0x0b };
        let mut il = vec![flags, 0x30, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a, 0];
        il.extend_from_slice(sections);
        il
    }

    #[test]
    fn only_catch_and_filter_clauses_catch() {
        let small = |kind: u8, flags: u8| {
            let mut section = vec![kind, 16, 0, 0];
            section.extend([flags, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0]);
            section
        };
        let large = |flags: u8| {
            let mut section = vec![0x41, 28, 0, 0, flags, 0, 0, 0];
            section.extend([0; 20]);
            section
        };
        assert_eq!(catches(&[0x06, 0x2a]), Some(false));
        assert_eq!(catches(&fat(&[])), Some(false));
        for (clause, found) in [(0, true), (1, true), (2, false), (4, false)] {
            assert_eq!(catches(&fat(&small(0x01, clause))), Some(found));
            assert_eq!(catches(&fat(&large(clause))), Some(found));
        }
        let two = [small(0x81, 2), large(0)].concat();
        assert_eq!(catches(&fat(&two)), Some(true));
        // A truncated body never yields a clause that is not there.
        let whole = fat(&two);
        for length in 0..whole.len() - 24 {
            assert_ne!(catches(&whole[..length]), Some(false), "{length}");
        }
    }
}
