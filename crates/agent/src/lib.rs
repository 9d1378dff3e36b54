//! The agent that the CLR loads: libsidewalk.so.
