//! Finds runtimes, builds workloads, records, asserts shares (tests only).
