//! Registers and stack to frames: native, managed, and back.
