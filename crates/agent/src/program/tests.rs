//! A sampler for tests of this folder, which take no sample.

use sampler::{Config, Reader, Sampler, Scratch, WalkResult};

/// Starts a sampler whose walks find nothing.
pub(super) fn sampler() -> (&'static Sampler, Reader) {
    Sampler::start(Config::default(), no_walk).unwrap()
}

/// # Safety
/// No requirements.
unsafe extern "C" fn no_walk(
    _context: *const libc::ucontext_t,
    _stack_end: u64,
    _scratch: *mut Scratch,
    _out: *mut u64,
    _cap: usize,
) -> WalkResult {
    WalkResult {
        depth: 0,
        end: 0,
        reason: 0,
    }
}
