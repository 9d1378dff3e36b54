//! Basics for all other modules: kernel facts, the waker, random numbers, a metadata reader.
//!
//! No module here handles CLRs, samples or records.

pub mod metadata;
pub mod numbers;
pub mod one_mapping;
pub mod proc;
pub mod processor;
pub mod random;
pub mod waker;
