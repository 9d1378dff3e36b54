//! Macro that defines a function of the agent under the name of one of the C library's.
//!
//! A hidden symbol that is defined in this library takes every reference to the name within the
//! library, those of Rust's standard library too. The dynamic linker is not involved.

/// Defines a function under the name of a C library function, visible in this library only.
/// `no_mangle` would export the symbol, and a preloaded library's symbol would then take
/// precedence.
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
