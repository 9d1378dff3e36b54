//! `libsidewalk.so`: the agent of the crate `agent`, with the one function that a CLR looks for.
//!
//! Invariant: it exports that function and nothing else.

mod clocks;
mod in_place;
mod memory;

/// Sidewalk, with what it has freed given back when it leaves.
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
