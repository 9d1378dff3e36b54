//! Layout of the register context of the PAL (`CONTEXT` of `pal.h`) on x86-64.
//!
//! The PAL is the runtime's platform layer. Only the start of the structure has named fields,
//! because its size grows from version to version. The runtime does not check the size that it
//! gets.
//!
//! Invariant: [`ContextAmd64`] is at least as large as the structure of any version.

/// `ContextFlags` for x86-64.
pub const CONTEXT_AMD64: u32 = 0x0010_0000;
/// `Rip`, `Rsp`, `Rbp`, flags and segments are valid.
pub const CONTEXT_CONTROL: u32 = CONTEXT_AMD64 | 1;
/// The other integer registers are valid.
pub const CONTEXT_INTEGER: u32 = CONTEXT_AMD64 | 2;
/// The data segments are valid.
pub const CONTEXT_SEGMENTS: u32 = CONTEXT_AMD64 | 4;
/// The floating-point registers are valid.
pub const CONTEXT_FLOATING_POINT: u32 = CONTEXT_AMD64 | 8;
/// Control, integer and floating-point registers are valid.
pub const CONTEXT_FULL: u32 = CONTEXT_CONTROL | CONTEXT_INTEGER | CONTEXT_FLOATING_POINT;

/// A register context, at least as large as that of any version of the runtime.
///
/// Source: `pal.h`, `_CONTEXT` under `HOST_AMD64`.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug)]
pub struct ContextAmd64 {
    home: [u64; 6],
    /// Valid parts: `CONTEXT_*`.
    pub context_flags: u32,
    /// SSE control and status.
    pub mx_csr: u32,
    segments: [u16; 6],
    /// Flags.
    pub eflags: u32,
    debug: [u64; 6],
    /// Register.
    pub rax: u64,
    /// Register.
    pub rcx: u64,
    /// Register.
    pub rdx: u64,
    /// Register.
    pub rbx: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Frame pointer.
    pub rbp: u64,
    /// Register.
    pub rsi: u64,
    /// Register.
    pub rdi: u64,
    /// Register.
    pub r8: u64,
    /// Register.
    pub r9: u64,
    /// Register.
    pub r10: u64,
    /// Register.
    pub r11: u64,
    /// Register.
    pub r12: u64,
    /// Register.
    pub r13: u64,
    /// Register.
    pub r14: u64,
    /// Register.
    pub r15: u64,
    /// Instruction pointer.
    pub rip: u64,
    rest: [u64; 480],
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(ContextAmd64, context_flags) == 0x30);
    assert!(offset_of!(ContextAmd64, mx_csr) == 0x34);
    assert!(offset_of!(ContextAmd64, eflags) == 0x44);
    assert!(offset_of!(ContextAmd64, rax) == 0x78);
    assert!(offset_of!(ContextAmd64, rcx) == 0x80);
    assert!(offset_of!(ContextAmd64, rdx) == 0x88);
    assert!(offset_of!(ContextAmd64, rbx) == 0x90);
    assert!(offset_of!(ContextAmd64, rsp) == 0x98);
    assert!(offset_of!(ContextAmd64, rbp) == 0xa0);
    assert!(offset_of!(ContextAmd64, rsi) == 0xa8);
    assert!(offset_of!(ContextAmd64, rdi) == 0xb0);
    assert!(offset_of!(ContextAmd64, r8) == 0xb8);
    assert!(offset_of!(ContextAmd64, r15) == 0xf0);
    assert!(offset_of!(ContextAmd64, rip) == 0xf8);
    assert!(offset_of!(ContextAmd64, rest) == 0x100);
    assert!(size_of::<ContextAmd64>() == 4096);
};

impl ContextAmd64 {
    /// All zeros: no part is valid.
    pub const ZERO: Self = Self {
        home: [0; 6],
        context_flags: 0,
        mx_csr: 0,
        segments: [0; 6],
        eflags: 0,
        debug: [0; 6],
        rax: 0,
        rcx: 0,
        rdx: 0,
        rbx: 0,
        rsp: 0,
        rbp: 0,
        rsi: 0,
        rdi: 0,
        r8: 0,
        r9: 0,
        r10: 0,
        r11: 0,
        r12: 0,
        r13: 0,
        r14: 0,
        r15: 0,
        rip: 0,
        rest: [0; 480],
    };
}

impl Default for ContextAmd64 {
    fn default() -> Self {
        Self::ZERO
    }
}
