//! A written PE image, for tests of what reads the runtime's images in memory.

/// The machine of images for Linux on x86-64: AMD64, with the mark of the system.
const LINUX: u16 = 0x8664 ^ 0x7b79;
/// IMAGE_DIRECTORY_ENTRY_EXPORT, _EXCEPTION and _COM_DESCRIPTOR.
const EXPORTS: usize = 0;
const EXCEPTION: usize = 3;
const CLR: usize = 14;
/// IMAGE_SCN_MEM_EXECUTE.
const EXECUTABLE: u32 = 0x2000_0000;

/// Returns a PE image of 8 KiB in the runtime's layout: one code section from 0x200 on, with a
/// ReadyToRun header of this section, an export directory of this name, and optionally a
/// RUNTIME_FUNCTION.
pub fn small_image(section: (u32, &[u8]), name: &[u8], has_code: bool) -> Vec<u8> {
    let mut image = vec![0u8; 0x2000];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let (pe, optional) = (0x80usize, 0x98usize);
    put(0, b"MZ");
    put(0x3c, &(pe as u32).to_le_bytes());
    put(pe, b"PE\0\0");
    put(pe + 4, &LINUX.to_le_bytes());
    put(pe + 6, &1u16.to_le_bytes());
    put(pe + 20, &240u16.to_le_bytes());
    put(optional, &0x20bu16.to_le_bytes());
    put(optional + 56, &0x2000u32.to_le_bytes());
    put(optional + 60, &0x200u32.to_le_bytes());
    put(optional + 108, &16u32.to_le_bytes());
    let mut directory = |index: usize, rva: u32, size: u32| {
        put(optional + 112 + index * 8, &rva.to_le_bytes());
        put(optional + 116 + index * 8, &size.to_le_bytes());
    };
    directory(EXPORTS, 0x300, 40);
    directory(EXCEPTION, 0x400, u32::from(has_code) * 12);
    directory(CLR, 0x500, 72);
    // .text: virtual size, RVA, size and position in the file, and the flag that it is executable.
    let header = optional + 240;
    for (at, value) in [
        (8, 0x1e00u32),
        (12, 0x200),
        (16, 0x1e00),
        (20, 0x200),
        (36, EXECUTABLE),
    ] {
        put(header + at, &value.to_le_bytes());
    }
    put(0x300 + 12, &0x340u32.to_le_bytes());
    put(0x340, name);
    for (at, value) in [(0, 0x1000u32), (4, 0x1010), (8, 0x1100)] {
        put(0x400 + at, &value.to_le_bytes());
    }
    put(0x500 + 64, &0x600u32.to_le_bytes());
    put(0x600, b"RTR\0");
    put(0x604, &16u16.to_le_bytes());
    // Another section, followed by this one.
    let (kind, content) = section;
    for (at, value) in [
        (12, 2u32),
        (16, 100),
        (20, 0x700),
        (24, 4),
        (28, kind),
        (32, 0x800),
        (36, content.len() as u32),
    ] {
        put(0x600 + at, &value.to_le_bytes());
    }
    put(0x800, content);
    image
}
