//! `libsidewalk.so`: the agent (crate `agent`) with the entry point that a CLR calls.
//!
//! Invariant: the library exports that one function and nothing else.

mod clocks;
mod in_place;
mod memory;

/// The agent's library. Its freed memory is returned to the kernel when the agent detaches.
static SIDEWALK: agent::Library = agent::Library {
    main: |parts, first, cx| {
        let end = (agent::SIDEWALK.main)(parts, first, cx);
        memory::release_free_memory();
        end
    },
    ..agent::SIDEWALK
};

corprof::export_profiler!(|request| {
    memory::install_fork_handlers();
    agent::create(request, &SIDEWALK)
});
