//! Compile-fail tests: code that breaks a call rule does not compile, with a message in CLR terms.
//!
//! Each file `ui/rule_NN_*.rs` breaks rule NN of docs/rules.md.

use std::collections::BTreeSet;

/// Generates a test for each rule, and the list of rules.
macro_rules! rules {
    ($($number:literal $test:ident,)+) => {
        $(
            #[test]
            fn $test() {
                let files = concat!("tests/ui/rule_", $number, "_*.rs");
                trybuild::TestCases::new().compile_fail(files);
            }
        )+
        const RULES: &[&str] = &[$($number),+];
    };
}

rules! {
    "01" rule_01_proofs_are_neither_forged_nor_kept_nor_moved,
    "02" rule_02_nothing_is_called_in_a_signal_handler_and_no_walk_is_made_without_its_flag,
    "03" rule_03_a_fast_path_hook_is_asynchronous_and_set_in_initialize,
    "04" rule_04_an_agent_threads_proof_is_made_by_the_spawner_and_stays_there,
    "05" rule_05_a_frame_callback_is_as_synchronous_as_its_walk,
    "06" rule_06_nothing_triggers_a_collection_in_a_collection,
    "11" rule_11_a_frames_info_is_not_kept,
    "16" rule_16_nothing_that_takes_a_lock_of_the_runtimes_is_called_while_it_is_suspended,
    "17" rule_17_no_own_lock_is_taken_or_held_while_the_runtime_is_suspended,
    "18" rule_18_a_thread_that_runs_managed_code_suspends_nothing,
    "20" rule_20_no_lock_is_held_during_a_call_that_may_trigger_a_collection,
    "27" rule_27_an_id_of_one_runtime_is_not_given_to_another,
    "32" rule_32_methods_are_compiled_again_by_the_main_profiler_on_a_thread_of_its_own,
    "33" rule_33_a_handle_is_given_back_where_no_collection_can_be_under_way,
}

#[test]
fn every_broken_rule_is_tried() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ui");
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let number = name
            .strip_prefix("rule_")
            .and_then(|rest| rest.split_once('_'));
        numbers.insert(
            number
                .unwrap_or_else(|| panic!("{name} is of no rule"))
                .0
                .to_owned(),
        );
    }
    assert_eq!(
        numbers,
        RULES.iter().map(|rule| (*rule).to_owned()).collect()
    );
}
