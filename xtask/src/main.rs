//! Set-up, demo, test, bench, dist.
fn main() {}
