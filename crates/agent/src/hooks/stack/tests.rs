//! Tests of the shadow stack with made-up stack pointers.

use super::*;

const DEPTH: u32 = 8;

fn shadow(max_depth: u32, timed: bool) -> ShadowStack {
    let shadow = ShadowStack::reserve(max_depth, timed).expect("memory for a shadow stack");
    shadow.begin(1, 0, 1, 0);
    shadow
}

/// Returns the path of each node, root first, with its count.
fn paths(shadow: &ShadowStack) -> Vec<(Vec<u32>, u64)> {
    let mut all: Vec<_> = (FULL + 1..shadow.nodes_ready())
        .map(|number| {
            let mut path = Vec::new();
            let mut at = number;
            while at != ROOT {
                let node = shadow.node(at).unwrap();
                path.insert(0, node.method.load(Relaxed));
                at = node.parent.load(Relaxed);
            }
            let calls = shadow.node(number).unwrap().calls.load(Relaxed);
            (path, calls)
        })
        .collect();
    all.sort();
    all
}

impl ShadowStack {
    fn enter(&self, method: u32, function: usize, caller: usize, now: u64) {
        self.enter_as(method, 0, function, caller, now);
    }
}

#[test]
fn calls_are_counted_by_path() {
    let shadow = shadow(DEPTH, false);
    shadow.enter(10, 100, 9000, 0);
    for _ in 0..3 {
        shadow.enter(11, 110, 8000, 0);
        shadow.enter(12, 120, 7000, 0);
        shadow.leave(120, 7000, 0);
        shadow.leave(110, 8000, 0);
    }
    shadow.leave(100, 9000, 0);
    shadow.enter(12, 120, 9000, 0);
    shadow.leave(120, 9000, 0);
    let expected = [
        (vec![10], 1),
        (vec![10, 11], 3),
        (vec![10, 11, 12], 3),
        (vec![12], 1),
    ];
    assert_eq!(paths(&shadow), expected);
    assert_eq!(shadow.current(), ROOT);
    assert_eq!(shadow.healed.load(Relaxed), 0);
}

#[test]
fn an_exception_takes_frames_away_and_its_catcher_goes_on() {
    let shadow = shadow(DEPTH, false);
    shadow.enter(1, 100, 9000, 0);
    shadow.enter(2, 200, 8000, 0);
    shadow.enter(3, 300, 7000, 0);
    shadow.thrown();
    shadow.unwind_begins(300, 0);
    shadow.unwind_ends(0);
    // A method without hooks is between.
    shadow.unwind_begins(999, 0);
    shadow.unwind_ends(0);
    shadow.unwind_begins(200, 0);
    shadow.unwind_ends(0);
    shadow.unwind_begins(100, 0);
    shadow.caught(100, 0);
    shadow.enter(4, 400, 8000, 0);
    shadow.leave(400, 8000, 0);
    shadow.leave(100, 9000, 0);
    let expected = [
        (vec![1], 1),
        (vec![1, 2], 1),
        (vec![1, 2, 3], 1),
        (vec![1, 4], 1),
    ];
    assert_eq!(paths(&shadow), expected);
    assert_eq!(shadow.current(), ROOT);
    assert_eq!(shadow.healed.load(Relaxed), 0);
}

#[test]
fn a_frame_whose_end_was_not_reported_is_found_gone() {
    let shadow = shadow(DEPTH, false);
    shadow.enter(1, 100, 9000, 0);
    shadow.enter(2, 200, 8000, 0);
    shadow.enter(3, 300, 7000, 0);
    // As after longjmp: the stack is shorter.
    shadow.enter(4, 400, 8000, 0);
    shadow.leave(400, 8000, 0);
    shadow.leave(100, 9000, 0);
    assert!(paths(&shadow).contains(&(vec![1, 4], 1)));
    assert_eq!(shadow.current(), ROOT);
    assert_eq!(shadow.healed.load(Relaxed), 2);
}

#[test]
fn what_is_deeper_than_allowed_is_counted_as_truncated() {
    let shadow = shadow(2, false);
    for (depth, caller) in (0u32..5).zip((0..5usize).map(|depth| 9000 - 100 * depth)) {
        shadow.enter(depth, 100 + depth as usize, caller, 0);
    }
    for depth in (0u32..5).rev() {
        shadow.leave(100 + depth as usize, 9000 - 100 * depth as usize, 0);
    }
    let expected = [(vec![0], 1), (vec![0, 1], 1), (vec![0, 1, TRUNCATED], 3)];
    assert_eq!(paths(&shadow), expected);
    assert_eq!(shadow.current(), ROOT);
}

#[test]
fn time_goes_to_what_ran() {
    let shadow = shadow(DEPTH, true);
    shadow.enter(1, 100, 9000, 10);
    shadow.enter(2, 200, 8000, 15);
    shadow.leave(200, 8000, 40);
    shadow.leave(100, 9000, 42);
    let ticks: Vec<u64> = (FULL + 1..shadow.nodes_ready())
        .map(|number| shadow.node(number).unwrap().ticks.load(Relaxed))
        .collect();
    assert_eq!(ticks, [5 + 2, 25]);
}

#[test]
fn a_tree_grows_past_its_first_index() {
    let shadow = shadow(DEPTH, false);
    let many = 4 * FIRST_INDEX;
    for round in 0..2 {
        for method in 0..many {
            shadow.enter(method, 100, 9000, 0);
            shadow.leave(100, 9000, 0);
        }
        let all = paths(&shadow);
        assert_eq!(all.len(), many as usize);
        assert!(all.iter().all(|(_, calls)| *calls == round + 1));
    }
}

#[test]
fn a_resumption_is_no_call() {
    let shadow = shadow(DEPTH, false);
    let dispatch = |caller| shadow.enter_as(9, RESUMES, 900, caller, 0);
    dispatch(9000);
    for _ in 0..3 {
        // It calls another method, and no hook reports that both are suspended.
        shadow.enter_as(1, ASYNC, 100, 8000, 0);
        shadow.enter_as(2, ASYNC, 200, 7000, 0);
    }
    // A call by the dispatcher itself.
    shadow.enter(3, 300, 8000, 0);
    shadow.leave(300, 8000, 0);
    shadow.leave(900, 9000, 0);
    let expected = [
        (vec![9], 1),
        (vec![9, 1], 0),
        (vec![9, 1, 2], 3),
        (vec![9, 3], 1),
    ];
    assert_eq!(paths(&shadow), expected);
    assert_eq!(shadow.current(), ROOT);
}
