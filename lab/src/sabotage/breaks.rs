//! Faults that `cargo xtask sabotage` seeds: for each area, a mistake that a programmer could make.
//!
//! `sabotage` applies them. To add one, give a text that occurs exactly once in its file, a
//! replacement that compiles, and tests of which at least one must fail.

/// One place to break.
pub(super) struct Break {
    /// The area, and what is wrong then.
    pub(super) what: &'static str,
    /// From the root of the repository.
    pub(super) file: &'static str,
    /// The text that is there, once, and the text in its place.
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    /// At least one of them must fail; those of the default tier are tried first.
    pub(super) tests: &'static [Test],
}

/// A test, and the binary that has it, by the names that nextest has for them.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Test {
    pub(super) binary: &'static str,
    pub(super) name: &'static str,
    pub(super) tier: TestTier,
}

/// The first tier that runs a test.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TestTier {
    Default,
    Full,
}

/// A test that the default tier runs.
const fn default(binary: &'static str, name: &'static str) -> Test {
    Test {
        binary,
        name,
        tier: TestTier::Default,
    }
}

/// A test that only the full tier runs.
const fn full(binary: &'static str, name: &'static str) -> Test {
    Test {
        binary,
        name,
        tier: TestTier::Full,
    }
}

/// All of them.
pub(super) const BREAKS: &[Break] = &[
    Break {
        what: "walker: a caller is looked up by its return address and not by its call",
        file: "crates/stackwalk/src/walk.rs",
        from: "        let lookup = ip.wrapping_sub(u64::from(!exact));\n        if",
        to: "        let lookup = ip;\n        if",
        tests: &[default(
            "stackwalk",
            "walk::tests::a_signal_frame_leads_to_the_interrupted_registers_on_the_other_stack",
        )],
    },
    Break {
        what: "walker: the frame that a signal interrupted is taken for a caller",
        file: "crates/stackwalk/src/walk.rs",
        from: "                    regs: to,\n                    flags: EXACT,",
        to: "                    regs: to,\n                    flags: 0,",
        tests: &[default(
            "stackwalk",
            "walk::tests::a_signal_frame_leads_to_the_interrupted_registers_on_the_other_stack",
        )],
    },
    Break {
        what: "walker: code of a file that was cut short is read",
        file: "crates/stackwalk/src/walk.rs",
        from: "        if entry.code.is_cut_short() {\n            return self.guess(here, Reason::CutShort);\n        }\n",
        to: "",
        tests: &[full(
            "testkit::acceptance",
            "truncated::a_native_library_is_cut_short_while_it_is_on_the_stack::core31",
        )],
    },
    Break {
        what: "rule cache: a rule found while its code went away is kept",
        file: "crates/stackwalk/src/map.rs",
        from: "        if self.epoch.load(Ordering::SeqCst) != epoch {\n            self.rules.forget(address);\n        }\n",
        to: "        let _ = epoch;\n",
        tests: &[default(
            "stackwalk",
            "map::tests::a_rule_of_removed_code_does_not_stay_in_the_cache",
        )],
    },
    Break {
        what: "rule cache: the last address of a large range is not forgotten",
        file: "crates/stackwalk/src/cache.rs",
        from: "if word != 0 && range.contains(&address) {",
        to: "if word != 0 && range.contains(&(address + 1)) {",
        tests: &[default(
            "stackwalk",
            "cache::tests::a_large_range_is_forgotten_whole_and_nothing_beside_it",
        )],
    },
    Break {
        what: "code map: a bucket that grows forgets how far its bodies reach",
        file: "crates/stackwalk/src/map/bucket.rs",
        from: "            end: AtomicU64::new(old.map_or(0, |old| old.end.load(Ordering::Relaxed))),",
        to: "            end: AtomicU64::new(0),",
        tests: &[default(
            "stackwalk",
            "map::tests::a_body_that_overlaps_one_of_a_full_bucket_takes_its_place",
        )],
    },
    Break {
        what: "code map: some body before an address is taken, not the nearest",
        file: "crates/stackwalk/src/map/bucket.rs",
        from: "last = if is_before { word.max(last) } else { last };",
        to: "last = if is_before { word } else { last };",
        tests: &[default(
            "stackwalk",
            "map::tests::behaves_like_a_list_of_ranges",
        )],
    },
    Break {
        what: "GcInfo: a runtime's version is wrong",
        file: "crates/stackwalk/src/gc_info/mod.rs",
        from: "            2..=8 => Some(Version::V2),\n            9 =>",
        to: "            2..=8 => Some(Version::V4),\n            9 =>",
        tests: &[default(
            "testkit::acceptance",
            "async_chains::chains::core31",
        )],
    },
    Break {
        what: "GcInfo: a change counts one instruction late",
        file: "crates/stackwalk/src/gc_info/mod.rs",
        from: "let later = self.changes & (u64::MAX << offset) & !(1 << offset);",
        to: "let later = self.changes & (u64::MAX << offset);",
        tests: &[default(
            "stackwalk",
            "gc_info::tests::written::what_is_written_is_read",
        )],
    },
    Break {
        what: "JIT unwind: a small allocation is eight bytes short",
        file: "crates/stackwalk/src/unwind_info.rs",
        from: "(ALLOC_SMALL, _) => Some(i64::from(info) * 8 + 8),",
        to: "(ALLOC_SMALL, _) => Some(i64::from(info) * 8),",
        tests: &[default(
            "stackwalk",
            "pe::tests::rules_of_real_images_are_true_at_every_instruction",
        )],
    },
    Break {
        what: "chains: a method that runs elsewhere is taken for one that awaits",
        file: "crates/agent/src/program/chains/reader.rs",
        from: "if !is_first && state == -1 {",
        to: "if !is_first && state == -2 {",
        tests: &[default(
            "agent",
            "program::chains::reader::tests::one_that_does_not_await_any_more_is_no_caller",
        )],
    },
    Break {
        what: "chains: the gate to the heap never closes",
        file: "crates/agent/src/program/chains/gate.rs",
        from: "        self.closed.store(true, Ordering::SeqCst);\n        self.closings",
        to: "        self.closings",
        tests: &[default(
            "agent",
            "program::chains::gate::tests::a_gate_is_closed_until_it_is_opened",
        )],
    },
    Break {
        what: "chains: a field is eight bytes off",
        file: "crates/agent/src/clr/async_types.rs",
        from: "    u16::try_from(found.offset).ok()\n",
        to: "    u16::try_from(found.offset + 8).ok()\n",
        tests: &[default(
            "testkit::acceptance",
            "async_chains::chains::core31",
        )],
    },
    Break {
        what: "chains: the home of a state machine is eight bytes off",
        file: "crates/agent/src/clr/async_types.rs",
        from: "            from_bp: home.offset,\n",
        to: "            from_bp: home.offset + 8,\n",
        tests: &[default(
            "testkit::acceptance",
            "async_chains::chains::core31",
        )],
    },
    Break {
        what: "GcInfo: an image of an unknown version is taken for one that is known",
        file: "crates/stackwalk/src/gc_info/mod.rs",
        from: "            11..=26 => Some(Version::V4),",
        to: "            11.. => Some(Version::V4),",
        tests: &[default(
            "stackwalk",
            "pe::tests::only_unwind_data_of_an_image_of_an_unknown_version_is_read",
        )],
    },
    Break {
        what: "chains: who awaits a suspended method is eight bytes off",
        file: "crates/agent/src/program/chains/reader.rs",
        from: "self.field(at, places.next)",
        to: "self.field(at, places.next + 8)",
        tests: &[default(
            "agent",
            "program::chains::reader::tests::callers_of_runtime_async_are_in_the_list_and_behind_its_task",
        )],
    },
    Break {
        what: "chains: the task that a dispatcher runs is ignored",
        file: "crates/agent/src/program/chains/reader.rs",
        from: "        match self.after(next, false) {\n            NextLink::Task(next) => self.read_waiting(next),\n",
        to: "        match self.after(next, false) {\n            NextLink::Task(_) => ChainEnd::Root,\n",
        tests: &[default(
            "agent",
            "program::chains::reader::tests::callers_of_runtime_async_are_in_the_list_and_behind_its_task",
        )],
    },
    Break {
        what: "chains: the parent of a continuation's class is ignored",
        file: "crates/agent/src/program/chains/types.rs",
        from: "            | LinkKind::Suspended(_)\n            | LinkKind::OfAwait { .. }\n            | LinkKind::Through(_)\n",
        to: "            | LinkKind::Through(_)\n",
        tests: &[default(
            "agent",
            "program::chains::reader::tests::callers_of_runtime_async_are_in_the_list_and_behind_its_task",
        )],
    },
    Break {
        what: "events: a sample whose place was taken is not counted",
        file: "crates/agent/src/events/queue.rs",
        from: "            Some(old) => {\n                kind.limited.count += 1;",
        to: "            Some(old) => {",
        tests: &[default(
            "agent",
            "events::queue::tests::what_is_kept_and_what_is_limited_is_everything",
        )],
    },
    Break {
        what: "events: a collection has its lowest generation",
        file: "crates/agent/src/events/gc.rs",
        from: ".rposition(|is| *is)",
        to: ".position(|is| *is)",
        tests: &[default(
            "agent",
            "events::gc::tests::a_background_collection_is_several",
        )],
    },
    Break {
        what: "events: a new mask takes back what cannot be taken back",
        file: "crates/agent/src/events/subscription.rs",
        from: "now.0.intersection(low_kept) | (wanted.low - low_kept)",
        to: "wanted.low - low_kept",
        tests: &[default(
            "agent",
            "events::subscription::tests::a_second_session_asks_for_its_own_events_and_keeps_what_cannot_be_taken_back",
        )],
    },
    Break {
        what: "attach: threads of a running program are not registered",
        file: "crates/agent/src/clr/catch_up.rs",
        from: "                && tid != 0\n",
        to: "                && tid == 0\n",
        tests: &[default(
            "agent::scenarios",
            "catch_up::code_modules_and_threads_from_before_attach_are_known",
        )],
    },
    Break {
        what: "detach: the runtimes that started with the agent are left, not the others",
        file: "crates/agent/src/clr/registry.rs",
        from: "clr.arrival() == LoadMode::Attached)",
        to: "clr.arrival() == LoadMode::Startup)",
        tests: &[default(
            "agent::scenarios",
            "attach::detach_after_a_recording_clears_masks_and_removes_the_socket",
        )],
    },
    Break {
        what: "tracing: methods are not reverted when a session ends",
        file: "crates/agent/src/trace/mod.rs",
        from: "            own.revert(events);\n",
        to: "            let _ = (&own, events);\n",
        tests: &[default(
            "agent::scenarios",
            "tracing::methods_are_traced_and_reverted_in_order",
        )],
    },
    Break {
        what: "live heap: objects that stay after thinning do not stand for the others",
        file: "crates/agent/src/events/live/table.rs",
        from: "                entry.bytes = entry.bytes.saturating_mul(2);\n",
        to: "",
        tests: &[default(
            "agent",
            "events::live::table::tests::what_is_too_much_is_thinned_out_and_the_sum_stays",
        )],
    },
    Break {
        what: "tracing: the longest call of a batch is told again in the next",
        file: "crates/agent/src/trace/table.rs",
        from: "batch.max_ns.max(shard.max_ns.swap(0, AcqRel))",
        to: "batch.max_ns.max(shard.max_ns.load(Acquire))",
        tests: &[default(
            "agent",
            "trace::table::tests::the_longest_call_is_that_of_its_batch",
        )],
    },
    Break {
        what: "tracing: a hole in the table of pending calls is not closed",
        file: "crates/agent/src/trace/pending.rs",
        from: "if from_home(hole) < from_home(next) {",
        to: "if from_home(hole) + 1 < from_home(next) {",
        tests: &[default(
            "agent",
            "trace::pending::tests::calls_that_want_one_place_are_found_in_any_order",
        )],
    },
    Break {
        what: "detach: an agent with a CLR on its way counts as deserted",
        file: "crates/agent/src/clr/registry.rs",
        from: "state.claimed.is_empty() && state.known.iter().all(",
        to: "state.known.iter().all(",
        tests: &[default(
            "agent",
            "clr::registry::tests::a_clr_that_has_ended_leaves_its_place_and_one_on_its_way_is_waited_for",
        )],
    },
    Break {
        what: "detach: a CLR that has ended keeps its place for hijacks",
        file: "crates/agent/src/clr/registry.rs",
        from: "            known.former = known.reach.take().map(|(clr, _)| clr);\n        }\n        state.free_place(number);\n",
        to: "            known.former = known.reach.take().map(|(clr, _)| clr);\n        }\n",
        tests: &[default(
            "agent",
            "clr::registry::tests::a_clr_that_has_ended_leaves_its_place_and_one_on_its_way_is_waited_for",
        )],
    },
    Break {
        what: "attach: a thread that ends while the agent catches up is not noted",
        file: "crates/agent/src/clr/catch_up.rs",
        from: "        if self.gate.is_catching_up() {\n",
        to: "        if !self.gate.is_catching_up() {\n",
        tests: &[default(
            "agent",
            "clr::catch_up::tests::threads_that_end_are_noted_while_the_past_is_not_known",
        )],
    },
    Break {
        what: "attach: code is listed while modules go",
        file: "crates/agent/src/clr/catch_up.rs",
        from: "(unloads.modules == 0 || unloads.last_ns < time_ns).then_some(unloads)",
        to: "(unloads.modules == 0 || unloads.last_ns > time_ns).then_some(unloads)",
        tests: &[default(
            "agent",
            "clr::catch_up::tests::code_is_asked_about_only_where_no_module_has_gone_since",
        )],
    },
    Break {
        what: "cost: CPU time of threads that ended is taken for unseen",
        file: "crates/agent/src/program/accounts.rs",
        from: "let known_ns = live_ns + agent_ns + strange_ns + self.ended_ns;",
        to: "let known_ns = live_ns + agent_ns + strange_ns;",
        tests: &[default(
            "agent",
            "program::accounts::tests::only_time_that_no_clock_shows_is_due_to_threads_that_ended",
        )],
    },
    Break {
        what: "settings: the interval's upper limit is in microseconds",
        file: "crates/agent/src/model/settings.rs",
        from: "settings.interval_ns = ns.clamp(100_000, 1_000_000_000);",
        to: "settings.interval_ns = ns.clamp(100_000, 1_000_000);",
        tests: &[default(
            "agent",
            "model::settings::tests::numbers_are_kept_within_their_limits",
        )],
    },
    Break {
        what: "sampled code: a body's end is forgotten too early",
        file: "crates/agent/src/program/history.rs",
        from: "removed.end_ns < drained_ns)",
        to: "removed.end_ns <= drained_ns)",
        tests: &[default(
            "agent",
            "program::history::tests::memory_used_again_keeps_old_samples_with_the_old_body",
        )],
    },
    Break {
        what: "short-lived threads: those that started long ago count",
        file: "crates/agent/src/program/threads/short_lived.rs",
        from: "self.started_before = if is_next { self.started } else { 0 };",
        to: "self.started_before = self.started;",
        tests: &[default(
            "agent",
            "program::threads::short_lived::tests::a_pause_ends_the_sampling_of_few",
        )],
    },
    Break {
        what: "IL: the stack that a probe needs is not counted",
        file: "crates/corprof/src/il/wrap.rs",
        from: "        self.max_stack = self.max_stack.max(enter.max_stack);\n",
        to: "",
        tests: &[default("corprof::il", "wraps::a_probe_needs_its_stack")],
    },
    Break {
        what: "codec: two kinds of records have each other's number",
        file: "crates/recording/src/codec.rs",
        from: "pub(crate) const KIND_LIMITED: u8 = 19;\npub(crate) const KIND_PAUSE: u8 = 20;",
        to: "pub(crate) const KIND_LIMITED: u8 = 20;\npub(crate) const KIND_PAUSE: u8 = 19;",
        tests: &[default(
            "recording",
            "codec::tests::records_of_later_kinds_are_the_bytes_of_the_table",
        )],
    },
    Break {
        what: "reader: a missing block is not reported",
        file: "crates/recording/src/reader.rs",
        from: "} else if header.sequence > expected {",
        to: "} else if header.sequence > expected + 1 {",
        tests: &[
            default(
                "recording::round_trip",
                "one_damaged_byte_costs_one_block_and_is_reported",
            ),
            default(
                "recording::round_trip",
                "a_record_longer_than_its_block_gives_up_the_block_only",
            ),
        ],
    },
    Break {
        what: "import: callers of an async method are folded in the wrong order",
        file: "crates/profile/src/import/logical.rs",
        from: "for own in [AsyncRole::Step, AsyncRole::Plain, AsyncRole::Entry] {",
        to: "for own in [AsyncRole::Entry, AsyncRole::Plain, AsyncRole::Step] {",
        tests: &[
            default(
                "profile::import",
                "only_the_own_frames_of_a_first_run_are_folded",
            ),
            default(
                "profile::import",
                "a_logical_stack_reads_as_the_source_does",
            ),
        ],
    },
    Break {
        what: "import: a stack in a lost block is not marked broken",
        file: "crates/profile/src/import/process.rs",
        from: "end: if stack.lost { WalkEnd::Broken } else { end },",
        to: "end,",
        tests: &[default(
            "profile::import",
            "what_a_lost_block_defined_becomes_a_lost_frame_and_is_counted",
        )],
    },
    Break {
        what: "names: lambdas are counted from 0",
        file: "crates/profile/src/names/compiler.rs",
        from: "u64::from(number) + 1)",
        to: "u64::from(number))",
        tests: &[default(
            "profile::names",
            "lambdas_closures_and_local_functions",
        )],
    },
    Break {
        what: "merge: the clock of a second recording is moved the wrong way",
        file: "crates/profile/src/merge.rs",
        from: "(added, merged) => added.wrapping_sub(merged),",
        to: "(added, merged) => merged.wrapping_sub(added),",
        tests: &[default(
            "profile::merge",
            "a_recording_stands_as_much_later_as_the_wall_clock_says",
        )],
    },
    Break {
        what: "diff: recursion counts a sample twice",
        file: "crates/profile/src/ops/diff.rs",
        from: "            if !seen.contains(&group) {\n",
        to: "            if seen.last() != Some(&group) {\n",
        tests: &[default(
            "profile::diff",
            "a_method_that_calls_itself_by_another_has_each_sample_once",
        )],
    },
    Break {
        what: "cost: the program's time includes the cost",
        file: "crates/formats/src/cost.rs",
        from: "health.target_cpu_ns.saturating_sub(cost.total_ns())",
        to: "health.target_cpu_ns",
        tests: &[default(
            "formats",
            "cost::tests::the_whole_is_held_against_the_program_without_it",
        )],
    },
    Break {
        what: "collapsed: stacks are written leaf first",
        file: "crates/formats/src/collapsed.rs",
        from: "path.iter().rev().enumerate()",
        to: "path.iter().enumerate()",
        tests: &[default("formats::snapshots", "collapsed")],
    },
    Break {
        what: "speedscope: neighbours of different stacks are joined",
        file: "crates/formats/src/speedscope.rs",
        from: "(Some(&last), Some(sum)) if last == sample.stack =>",
        to: "(Some(&last), Some(sum)) if last <= sample.stack =>",
        tests: &[default("formats::snapshots", "speedscope")],
    },
    Break {
        what: "firefox: the rest of an interval is dropped",
        file: "crates/formats/src/firefox/file.rs",
        from: "self.left = due - intervals * interval;",
        to: "self.left = 0;",
        tests: &[default("formats::totals", "firefox_weighs_time")],
    },
    Break {
        what: "html: a node's parent is one too far",
        file: "crates/formats/src/html/payload.rs",
        from: "            at as u64 - 1 - u64::from(parent)\n",
        to: "            at as u64 - u64::from(parent)\n",
        tests: &[default("formats", "html::payload::tests::payloads")],
    },
    Break {
        what: "pprof: the value of an event is its count",
        file: "crates/formats/src/pprof/mod.rs",
        from: "*amount = signed(sum.value);",
        to: "*amount = signed(sum.samples);",
        tests: &[default("formats", "pprof::tests::files")],
    },
    Break {
        what: "text: p99 is p90",
        file: "crates/formats/src/text/traced.rs",
        from: "const QUANTILES: [u64; 3] = [500, 900, 990];",
        to: "const QUANTILES: [u64; 3] = [500, 900, 900];",
        tests: &[default(
            "formats",
            "text::traced::tests::each_column_has_its_own_number",
        )],
    },
    Break {
        what: "sampler slot: CPU time of the thread before is not forgotten",
        file: "crates/sampler/src/slot.rs",
        from: "            &self.accounted_cpu,\n",
        to: "",
        tests: &[default(
            "sampler",
            "slot::tests::nothing_is_left_in_a_slot_of_the_thread_before",
        )],
    },
    Break {
        what: "ring buffer: one word too many is believed to be free",
        file: "crates/sampler/src/protocol.rs",
        from: "(len as u64 <= room).then_some(Reserved {",
        to: "(len as u64 <= room + 1).then_some(Reserved {",
        tests: &[
            default("sampler", "loom_model::a_full_ring_refuses"),
            default("sampler", "round_trip::samples_survive"),
        ],
    },
    Break {
        what: "sampler: a slot is freed while its handler runs",
        file: "crates/sampler/src/protocol.rs",
        from: "word & (LIVE | CLOSING | BUSY | ARMING) == LIVE | CLOSING",
        to: "word & (LIVE | CLOSING | ARMING) == LIVE | CLOSING",
        tests: &[default(
            "sampler",
            "loom_model::a_slot_is_freed_only_when_nobody_is_inside",
        )],
    },
    Break {
        what: "sampler: a tick stands for an interval of one thread only",
        file: "crates/sampler/src/handler.rs",
        from: "            value: self.value.saturating_mul(threads.into()),",
        to: "            value: self.value,",
        tests: &[default(
            "sampler",
            "handler::tests::a_tick_that_stands_for_threads_has_the_time_and_the_count_of_each",
        )],
    },
    Break {
        what: "cost: a tick sent by the agent is priced as the kernel's",
        file: "crates/sampler/src/price.rs",
        from: "signals * delivery_ns + sent * SENT_NS + clocks * by_clock",
        to: "signals * delivery_ns + clocks * SENT_NS + sent * by_clock",
        tests: &[default(
            "sampler",
            "price::tests::each_tick_costs_its_delivery_and_its_own_interrupt",
        )],
    },
    Break {
        what: "control: anybody may connect to the socket",
        file: "crates/control/src/socket.rs",
        from: "libc::fchmod(socket.as_raw_fd(), 0o600);",
        to: "libc::fchmod(socket.as_raw_fd(), 0o666);",
        tests: &[default(
            "control",
            "socket::tests::two_talk_and_the_file_is_gone_afterwards",
        )],
    },
    Break {
        what: "diagnostics: a text's final zero is not counted",
        file: "crates/diagnostics/src/protocol.rs",
        from: "let units = text.encode_utf16().count() + 1;",
        to: "let units = text.encode_utf16().count();",
        tests: &[default(
            "diagnostics",
            "protocol::tests::a_text_counts_its_zero",
        )],
    },
    Break {
        what: "attach: the class id comes before the timeout",
        file: "crates/diagnostics/src/client.rs",
        from: "        payload.extend_from_slice(&collection.to_le_bytes());\n        payload.extend_from_slice(&self.clsid);\n",
        to: "        payload.extend_from_slice(&self.clsid);\n        payload.extend_from_slice(&collection.to_le_bytes());\n",
        tests: &[default(
            "diagnostics",
            "client::tests::an_attach_is_what_the_runtime_reads",
        )],
    },
    Break {
        what: "symbolize: a function's first address is not its own",
        file: "crates/symbolize/src/elf.rs",
        from: "functions.partition_point(|f| f.start <= svma);\n    // Symbols may nest",
        to: "functions.partition_point(|f| f.start < svma);\n    // Symbols may nest",
        tests: &[default(
            "symbolize",
            "elf::tests::a_function_has_its_first_address_and_not_the_one_behind_it",
        )],
    },
    Break {
        what: "symbolize: a sequence point begins one instruction late",
        file: "crates/symbolize/src/portable_pdb.rs",
        from: "rev().find(|p| p.il_offset <= il_offset)",
        to: "rev().find(|p| p.il_offset < il_offset)",
        tests: &[default("symbolize::it", "managed::pdb_beside_the_module")],
    },
    Break {
        what: "symbol server: a PDB's key has its GUID's bytes in order",
        file: "crates/symbolserver/src/server.rs",
        from: "let order = [3, 2, 1, 0, 5, 4, 7, 6,",
        to: "let order = [0, 1, 2, 3, 4, 5, 6, 7,",
        tests: &[default(
            "symbolserver",
            "server::tests::keys_are_those_of_the_conventions",
        )],
    },
    Break {
        what: "command line: minutes are hours",
        file: "crates/cli/src/units.rs",
        from: "(\"m\", 60_000_000_000)",
        to: "(\"m\", 3_600_000_000_000)",
        tests: &[default("sidewalk", "units::tests::durations")],
    },
];
