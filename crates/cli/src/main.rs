//! The binary `sidewalk`.
fn main() {}
