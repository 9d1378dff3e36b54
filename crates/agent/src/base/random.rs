//! Random numbers: for choosing samples and moments, not for secrets.
//!
//! Invariant: a step neither locks nor allocates; each user keeps a state of its own.

/// The next number of a state, which must not be 0: Marsaglia's xorshift64*.
pub fn next_random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_F491_4F6C_DD1D)
}
