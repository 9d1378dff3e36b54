//! The CLR Profiling API for Rust, with its call rules as types.
