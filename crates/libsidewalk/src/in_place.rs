//! Functions of the agent's own in place of the C library's.
//!
//! A symbol that is defined in this library and hidden takes every reference to it, that of Rust's
//! library too, before the dynamic linker is asked.

/// A function of ours under the name of one of the C library's, seen by this library alone. Not
/// `no_mangle`, as such symbols are exported, and then those before it come first again.
macro_rules! in_place_of {
    ($name:literal, $own:path) => {
        std::arch::global_asm!(
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            "jmp {own}",
            concat!(".size ", $name, ", . - ", $name),
            own = sym $own,
        );
    };
}

pub(crate) use in_place_of;
