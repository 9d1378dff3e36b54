//! Timers, signals, and the ring from handler to agent.
