//! Clocks, read from the kernel: a preloaded library (libfaketime) may have replaced the functions
//! of the C library, and the agent's times are the kernel's.

use anyhow::{Context as _, Result};
use rustix::time::{ClockId, clock_gettime};

/// Returns the time of a clock in nanoseconds.
///
/// # Errors
/// It is before the clock's epoch.
pub(crate) fn kernel_ns(clock: ClockId) -> Result<u64> {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).context("a clock of the system is before its epoch")?;
    let rest = u64::try_from(now.tv_nsec)?;
    Ok(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}
