//! Finds the memory mapping of an address in `/proc/self/maps`, without allocating.
//!
//! It serves threads that were registered without a stack: their stack pointer is known, their
//! stack's bounds are not. It runs on the agent thread, not in the handler.

use core::ops::Range;

use crate::sys;

/// A mapping, with the end of the one below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) range: Range<u64>,
    /// End of the mapping below (0 if none).
    pub(crate) below: u64,
    /// Whether it is `[stack]`, the main thread's stack, which grows downwards.
    pub(crate) grows: bool,
}

/// Calls `each` for every mapping until it returns false. Returns false if the file cannot be read.
pub(crate) fn for_each(mut each: impl FnMut(&Mapping) -> bool) -> bool {
    // SAFETY: a NUL-terminated path.
    let fd = unsafe {
        libc::open(
            c"/proc/self/maps".as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return false;
    }
    let mut parser = Parser::default();
    let mut buffer = [0u8; 2048];
    let whole = loop {
        // SAFETY: `buffer` is writable for its length.
        let got = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        match usize::try_from(got) {
            Ok(0) => break true,
            Ok(len) => {
                let bytes = buffer.get(..len).unwrap_or(&[]);
                if !bytes.iter().all(|byte| parser.feed(*byte, &mut each)) {
                    break true;
                }
            }
            Err(_) if sys::errno() == libc::EINTR => {}
            Err(_) => break false,
        }
    };
    sys::close(fd);
    whole
}

/// Parses the file byte by byte. A line is `start-end perms offset dev inode   path`.
#[derive(Default)]
struct Parser {
    start: u64,
    end: u64,
    below: u64,
    /// 0: start, 1: end, 2..: the later fields.
    field: u8,
    blank: bool,
    /// Number of bytes of "[stack]" that the path has matched; 255 after a mismatch.
    matched: u8,
}

impl Parser {
    fn feed(&mut self, byte: u8, each: &mut impl FnMut(&Mapping) -> bool) -> bool {
        const STACK: &[u8] = b"[stack]";
        if byte == b'\n' {
            let mapping = Mapping {
                range: self.start..self.end,
                below: self.below,
                grows: usize::from(self.matched) == STACK.len(),
            };
            *self = Self {
                below: self.end,
                ..Self::default()
            };
            return each(&mapping);
        }
        match (self.field, byte) {
            (0, b'-') => self.field = 1,
            (0, digit) => self.start = self.start << 4 | hex(digit),
            (1, b' ') => self.field = 2,
            (1, digit) => self.end = self.end << 4 | hex(digit),
            // Fields 2 to 5, then the path.
            (2..=5, b' ') => self.blank = true,
            (2..=5, _) => {
                if self.blank {
                    self.blank = false;
                    self.field += 1;
                }
                if self.field == 6 {
                    self.path(byte, STACK);
                }
            }
            (_, byte) => self.path(byte, STACK),
        }
        true
    }

    fn path(&mut self, byte: u8, wanted: &[u8]) {
        self.matched = match wanted.get(usize::from(self.matched)) {
            Some(next) if *next == byte => self.matched + 1,
            _ => 255,
        };
    }
}

const fn hex(digit: u8) -> u64 {
    match digit {
        b'0'..=b'9' => (digit - b'0') as u64,
        b'a'..=b'f' => (digit - b'a') as u64 + 10,
        _ => 0,
    }
}

/// A thread whose stack is searched.
#[derive(Clone, Copy)]
pub(crate) struct StackSearch {
    pub(crate) sp: u64,
    /// Address of its control block.
    pub(crate) thread_pointer: u64,
    pub(crate) is_main: bool,
}

impl StackSearch {
    pub(crate) const NONE: Self = Self {
        sp: 0,
        thread_pointer: 0,
        is_main: false,
    };

    /// Returns the bounds of its stack, if this mapping contains it.
    ///
    /// The control block is at the top of a pthread's stack. The stack pointer may be on a
    /// coroutine's stack, and the kernel merges adjacent mappings. The main thread's control block
    /// is elsewhere, and its stack grows downwards on demand, so its low end is the end of the
    /// mapping below.
    pub(crate) fn stack_in(self, mapping: &Mapping) -> Option<Range<u64>> {
        let has = |address| mapping.range.contains(&address);
        if !self.is_main {
            return has(self.thread_pointer).then_some(mapping.range.start..self.thread_pointer);
        }
        if mapping.grows {
            return Some(mapping.below..mapping.range.end);
        }
        // For kernels that do not name it. A named mapping comes later in the file.
        has(self.sp).then(|| mapping.range.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<Mapping> {
        let mut parser = Parser::default();
        let mut found = Vec::new();
        for byte in text.bytes() {
            parser.feed(byte, &mut |m| {
                found.push(m.clone());
                true
            });
        }
        found
    }

    #[test]
    fn lines_are_understood() {
        let text = "55d0a000-55d0b000 r--p 00000000 fe:00 42                     /bin/a b\n\
            7f00dead0000-7f00deae0000 rw-p 00000000 00:00 0 \n\
            7ffc0b5a1000-7ffc0b5c2000 rw-p 00000000 00:00 0                  [stack]\n\
            7ffc0b5d0000-7ffc0b5d4000 r--p 00000000 00:00 0                  [stack]x\n";
        let found = parse(text);
        assert_eq!(found.len(), 4);
        assert_eq!(found[0].range, 0x55d0_a000..0x55d0_b000);
        assert_eq!(found[1].below, 0x55d0_b000);
        assert_eq!(
            found.iter().map(|m| m.grows).collect::<Vec<_>>(),
            [false, false, true, false]
        );
        assert_eq!(found[2].below, 0x7f00_deae_0000);
    }

    #[test]
    fn bounds_follow_from_mapping_and_control_block() {
        let plain = Mapping {
            range: 0x1000..0x9000,
            below: 0x800,
            grows: false,
        };
        let looking = |sp, thread_pointer, is_main| StackSearch {
            sp,
            thread_pointer,
            is_main,
        };
        let stack = Some(0x1000..0x7000);
        assert_eq!(looking(0x5000, 0x7000, false).stack_in(&plain), stack);
        // Stack pointers on a coroutine's stack: above, below, and in another mapping.
        for sp in [0x8000, 0x1800, 0xc000_0000] {
            assert_eq!(looking(sp, 0x7000, false).stack_in(&plain), stack);
        }
        assert_eq!(looking(0x5000, 0xa000, false).stack_in(&plain), None);
        let main = Mapping {
            grows: true,
            ..plain.clone()
        };
        let stack = Some(0x800..0x9000);
        assert_eq!(looking(0x5000, 0xffff_0000, true).stack_in(&main), stack);
        assert_eq!(looking(0x5, 0xffff_0000, true).stack_in(&main), stack);
        let unnamed = looking(0x5000, 0xffff_0000, true).stack_in(&plain);
        assert_eq!(unnamed, Some(0x1000..0x9000));
    }

    #[test]
    fn this_threads_stack_is_found() {
        let local = 0u8;
        let sp = &raw const local as u64;
        let mut found = None;
        assert!(for_each(|m| {
            if m.range.contains(&sp) {
                found = Some(m.clone());
            }
            true
        }));
        assert!(found.is_some_and(|m| m.below <= m.range.start));
    }
}
