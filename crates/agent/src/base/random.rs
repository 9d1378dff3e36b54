//! Pseudo-random numbers, to choose samples and moments. Not for secrets.
//!
//! Invariant: a step neither locks nor allocates. Each user has its own state.

/// Returns the next number of a state, which must not be 0: Marsaglia's xorshift64*.
pub fn next_random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_F491_4F6C_DD1D)
}
