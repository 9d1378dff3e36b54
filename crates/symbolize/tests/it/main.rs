//! Lookups in real files: fixtures whose answers are known, this program, and damaged files.

mod common;
mod elf;
mod hostile;
mod managed;
mod own_program;
mod profiles;
