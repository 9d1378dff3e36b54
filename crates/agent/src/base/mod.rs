//! Basics that every floor above needs and no other knows: the kernel's facts, waking, random
//! numbers, a reader of a file format.
//!
//! Nothing here knows a CLR, a sample or a recording.

pub mod metadata;
pub mod numbers;
pub mod one_mapping;
pub mod proc;
pub mod processor;
pub mod random;
pub mod waker;
