//! Table of the acceptance tests in the default tier, the quick one of the two tiers of tests.
//!
//! All others are only in the full tier. docs/testing-full.md and docs/testing-commands.md list for
//! each of them what covers it in the default tier. The acceptance module `testing` compares the
//! pages with this table. Tiers of compiled code are in `recording::Tier`.

/// Acceptance tests of the default tier: a module, or one test of it. Tests that exist for each
/// runtime run on the oldest and the newest one.
///
/// Each must pass on a busy machine. Its assertions are exact counts, bounds from the number of
/// samples ([`crate::chance`]) or an order of events.
pub const SMOKE: &[&str] = &[
    "async_chains::chains",
    "attach::a_second_tool_hears_who_records",
    "attach::a_tool_that_is_killed_leaves_a_program_that_can_be_recorded_again",
    "attach::no_file_of_a_module_is_mapped_again",
    "bad_input",
    "callers::leaf",
    "command_line",
    "deep::deep_is_whole",
    "doctor::a_running_program_is_fit",
    "dump::a_deadlock_shows_both_threads_and_where_they_wait",
    "events::collections",
    "events::compilations_and_loads",
    "events::contention",
    "events::exceptions",
    "exports",
    "house",
    "list::a_running_program_is_listed",
    "live::what_is_kept_and_what_is_dropped",
    "mixed",
    "names::generics",
    "outputs",
    "pages",
    "prose",
    "refusals",
    "rules",
    "shadow::rule_21_shadow_counts_every_call_of_a_known_tree",
    "shares::shares",
    "side_by_side::a_chain_through_both_is_the_known_stack",
    "stress::nullref",
    "testing",
    "tiers::tiers_are_those_of_the_perf_map",
    "traced_async::calls_are_counted_and_timed_to_their_end",
    "tracing::calls_are_counted_and_timed",
    "versions",
    "walkers::rule_15_the_holes_of_the_articles_stack_are_filled",
];

/// Whether a test, by its name without the runtime, is in the default tier.
pub fn is_smoke(test: &str) -> bool {
    SMOKE.iter().any(|smoke| {
        let rest = test.strip_prefix(smoke);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    })
}
