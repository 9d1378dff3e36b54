//! Tests of the code map, alone and with concurrent writers and readers.

use super::*;
use crate::{End, Regs, Scratch, Stack};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};

fn body(start: u64, len: u32) -> jit::Body {
    jit::Body::at(start, len)
}

#[derive(Clone, Debug)]
enum Step {
    Add(u64, u32),
    Remove(u64),
    Take(u64),
    RemoveOdd,
    RemoveRange(u64, u64),
    Look(u64),
    LookIn(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few enough addresses that bodies overlap, many enough that chunks and tables grow.
    let at =
        || (0u64..40, 0u64..64).prop_map(|(chunk, at)| 0x10_0000_0000 + chunk * 0x8000 + at * 64);
    let len = prop_oneof![8 => 1u32..300, 1 => 1u32..200_000];
    let step = prop_oneof![
        5 => (at(), len).prop_map(|(at, len)| Step::Add(at, len)),
        2 => at().prop_map(Step::Remove),
        2 => at().prop_map(Step::Take),
        1 => Just(Step::RemoveOdd),
        1 => (at(), 0u64..100_000).prop_map(|(at, len)| Step::RemoveRange(at, at + len)),
        4 => at().prop_map(Step::Look),
        2 => (at(), 1u64..100_000).prop_map(|(at, len)| Step::LookIn(at, at + len)),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    /// The map behaves like a simple model.
    #[test]
    fn behaves_like_a_list_of_ranges(steps in steps()) {
        let map = Box::new(CodeMap::new());
        let mut model = BTreeMap::<u64, (u64, u64)>::new();
        for (user, step) in (0u64..).zip(steps) {
            match step {
                Step::Add(start, len) => {
                    let end = start + u64::from(len);
                    let before = model.len();
                    model.retain(|at, (stop, _)| *stop <= start || *at >= end);
                    let replaced = before - model.len();
                    model.insert(start, (end, user));
                    prop_assert_eq!(map.replace_jit_bodies(body(start, len), user), Some(replaced));
                }
                Step::Remove(start) => {
                    prop_assert_eq!(map.remove(start), model.remove(&start).is_some());
                }
                Step::Take(start) => {
                    let found = map.take_jit_body(start, |_| true);
                    let found = found.map(|taken| (taken.region.end, taken.region.user));
                    prop_assert_eq!(found, model.remove(&start));
                }
                Step::RemoveOdd => {
                    let before = model.len();
                    model.retain(|_, (_, user)| user.is_multiple_of(2));
                    let removed = map.remove_jit_bodies(|user| !user.is_multiple_of(2));
                    prop_assert_eq!(removed, before - model.len());
                }
                Step::RemoveRange(start, end) => {
                    let before = model.len();
                    model.retain(|at, (stop, _)| *stop <= start || *at >= end);
                    prop_assert_eq!(map.remove_range(start..end), before - model.len());
                }
                Step::Look(address) => {
                    let found = map.lookup(address).map(|region| (region.start, region.end, region.user));
                    let expected = model.range(..=address).next_back();
                    let expected = expected.filter(|(_, (end, _))| address < *end);
                    prop_assert_eq!(found, expected.map(|(start, (end, user))| (*start, *end, *user)));
                    let begins = map.at_start(address).map(|region| region.user);
                    prop_assert_eq!(begins, model.get(&address).map(|(_, user)| *user));
                }
                Step::LookIn(start, end) => {
                    let found = map.jit_body_in(&(start..end)).map(|found| (found.start, found.user));
                    let is_in = |(at, (stop, _)): &(&u64, &(u64, u64))| **at < end && *stop > start;
                    let expected: Vec<_> = model.iter().filter(is_in).map(|(at, (_, user))| (*at, *user)).collect();
                    prop_assert_eq!(found.is_some(), !expected.is_empty());
                    prop_assert!(found.is_none_or(|found| expected.contains(&found)));
                }
            }
            prop_assert_eq!(map.memory().jit_bodies, model.len());
        }
        let mut all = BTreeMap::new();
        map.each_jit_body(|region| {
            let again = all.insert(region.start, (region.end, region.user));
            assert_eq!(again, None, "each is met once");
        });
        prop_assert_eq!(all, model);
        prop_assert_eq!(map.reclaim(), 0);
        map.remove_range(0..ADDRESS_LIMIT);
        prop_assert_eq!(map.reclaim(), 0);
        // The table of chunks and the map itself remain.
        let left = map.memory();
        prop_assert_eq!((left.jit_bodies, left.retired_bytes), (0, 0));
        prop_assert!(left.bytes <= size_of::<CodeMap>() + 64 * 1024, "{left:?}");
    }
}

/// A module may be in the chunk of JITted code, in other pages.
#[test]
fn a_start_is_of_a_body_or_of_a_module() {
    const CHUNK: u64 = 0x10_0000_0000;
    let map = Box::new(CodeMap::new());
    assert!(map.add_jit_body(body(CHUNK - 64, 128), 1));
    assert!(map.add_jit_body(body(CHUNK + 256, 64), 2));
    let native = crate::native::NativeCode::of_bytes(&[], CHUNK + 0x1000);
    assert!(map.add_native(CHUNK + 0x1000..CHUNK + 0x9000, native));
    for (at, found) in [
        (CHUNK - 64, Some((CodeKind::Jit, 1))),
        (CHUNK - 32, None),
        (CHUNK, None),
        (CHUNK + 256, Some((CodeKind::Jit, 2))),
        (CHUNK + 260, None),
        (CHUNK + 0x800, None),
        (CHUNK + 0x1000, Some((CodeKind::Native, 0))),
        (CHUNK + 0x1010, Some((CodeKind::Native, 0))),
        (CHUNK + 0x8ff0, Some((CodeKind::Native, 0))),
        (CHUNK + 0x9000, None),
        (u64::MAX, None),
    ] {
        let region = map.at_start(at);
        assert_eq!(
            region.map(|region| (region.kind, region.user)),
            found,
            "{at:#x}"
        );
    }
}

#[test]
fn what_cannot_be_code_is_refused() {
    let map = Box::new(CodeMap::new());
    for (start, len) in [
        (0, 10),
        (0x100, 10),
        (0x10_0000, 0),
        (ADDRESS_LIMIT - 5, 10),
        (u64::MAX - 20, 10),
    ] {
        assert!(!map.add_jit_body(body(start, len), 0), "{start:#x}+{len}");
    }
    assert_eq!(map.memory().jit_bodies, 0);
}

#[test]
fn many_bodies_cost_little_memory() {
    let map = Box::new(CodeMap::new());
    let before = map.memory().bytes;
    for n in 0..20_000u64 {
        assert!(map.add_jit_body(body(0x7f00_0000_0000 + n * 320, 256), n));
    }
    assert_eq!(map.reclaim(), 0);
    let each = (map.memory().bytes - before) / 20_000;
    println!("{each} bytes a body");
    assert!(each <= 250, "{each} bytes a body");
    assert_eq!(
        map.lookup(0x7f00_0000_0000 + 320 * 777 + 255).unwrap().user,
        777
    );
    assert_eq!(map.lookup(0x7f00_0000_0000 + 320 * 777 + 256), None);
}

/// New bodies use the memory of removed ones. If many were removed, their memory is returned.
#[test]
fn memory_of_bodies_is_used_again_and_given_back() {
    let at = |n: u64| 0x7f00_0000_0000 + n * 320;
    let map = Box::new(CodeMap::new());
    let add = |n| assert!(map.add_jit_body(body(at(n), 256), n));
    (0..5_000).for_each(add);
    // Memory of removed bodies is kept, and reused for new ones.
    let full = map.memory().bytes;
    for n in 0..50_000 {
        assert!(map.remove(at(n)), "{n}");
        add(n + 5_000);
    }
    assert_eq!(map.reclaim(), 0);
    let churned = map.memory().bytes;
    // The table of chunks may grow once. Places are retired in tens until walks have ended.
    assert!(churned < full + (256 << 10), "{full} and then {churned}");
    for n in 50_000..55_000 {
        assert_eq!(map.lookup(at(n)).map(|region| region.user), Some(n));
    }
    let reader = map.grace.enter();
    assert_eq!(map.remove_range(0..ADDRESS_LIMIT), 5_000);
    assert!(map.memory().bytes > full / 2, "a walk may have them all");
    drop(reader);
    assert!(map.quiesce(10));
    let left = map.memory();
    println!("{full} bytes, then {left:?}");
    assert!(left.bytes < size_of::<CodeMap>() + full / 4, "{left:?}");
    add(1);
    assert_eq!(map.lookup(at(1)).map(|region| region.user), Some(1));
    // A remaining body does not prevent freeing the memory of all others.
    (2..5_000).for_each(add);
    assert_eq!(map.remove_range(at(2)..ADDRESS_LIMIT), 4_998);
    assert!(map.quiesce(10));
    let left = map.memory();
    assert!(left.bytes < size_of::<CodeMap>() + full / 4, "{left:?}");
    assert_eq!(map.lookup(at(1)).map(|region| region.user), Some(1));
}

/// Concurrent walks, look-ups and changes: a reader sees a whole region or none, and its parts are
/// consistent.
#[test]
fn readers_never_see_half_a_change() {
    // Real code, so that walks may read it: each body is `push rbp; mov rbp, rsp; call rax; …`.
    const LEN: usize = 64;
    const BODIES: usize = 300;
    let code: &'static [u8] = {
        let mut bytes = vec![0x90u8; LEN * BODIES];
        for body in bytes.chunks_mut(LEN) {
            body[..6].copy_from_slice(&[0x55, 0x48, 0x8b, 0xec, 0xff, 0xd0]);
            body[LEN - 2..].copy_from_slice(&[0x5d, 0xc3]);
        }
        bytes.leak()
    };
    let base = code.as_ptr() as u64;
    let map = Box::new(CodeMap::new());
    let (stop, walks) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for seed in 1..=2usize {
            let (map, stop, walks) = (&map, &stop, &walks);
            scope.spawn(move || {
                let mut scratch = Scratch::new();
                let mut random = seed;
                while !stop.load(Ordering::Relaxed) {
                    random = random
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    let index = (random >> 33) % BODIES;
                    let address = base + (index * LEN) as u64 + 6;
                    if let Some(region) = map.lookup(address) {
                        assert_eq!(region.user & 0xffff, index as u64);
                        assert_eq!(
                            (region.start, region.end),
                            (address - 6, address - 6 + LEN as u64)
                        );
                    }
                    // Three frames: rbp chain and return addresses into this code.
                    let mut words = [0u64; 8];
                    let at = words.as_ptr() as u64;
                    words[0] = at + 32;
                    words[1] = base + ((index + 1) % BODIES * LEN) as u64 + 6;
                    (words[4], words[5]) = (0, 0);
                    let regs = Regs {
                        ip: address,
                        sp: at,
                        bp: at,
                        all: 0,
                    };
                    let stack = Stack {
                        low: 0,
                        end: at + 64,
                        alt: None,
                    };
                    let mut out = [0; 8];
                    // SAFETY: the stack is `words`, which outlives the walk.
                    let walk = unsafe { crate::walk(map, regs, &stack, &mut scratch, &mut out) };
                    // Two frames to the end while the code is known; less only if it is not.
                    assert!(matches!(walk.end, End::Root | End::Broken(_)), "{walk:?}");
                    if walk.depth == 2 {
                        assert_eq!(out[1] & crate::ADDRESS, words[1]);
                    }
                    walks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut generation = 0u64;
        while walks.load(Ordering::Relaxed) < 30_000 || generation < 60 {
            generation += 1;
            for index in 0..BODIES as u64 {
                let start = base + index * LEN as u64;
                if (index + generation).is_multiple_of(3) {
                    map.remove(start);
                } else {
                    // SAFETY: the code lives forever.
                    let body = unsafe { jit::body_from_code(start, LEN as u32) };
                    assert!(map.add_jit_body(body, index | generation << 16));
                }
            }
            map.reclaim();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(map.quiesce(10));
    assert_eq!(map.memory().retired_bytes, 0);
}

#[test]
fn a_rule_of_removed_code_does_not_stay_in_the_cache() {
    let map = Box::new(CodeMap::new());
    let start = 0x7f00_0000_0000;
    map.add_jit_body(body(start, 100), 1);
    let epoch = map.epoch();
    let reader = map.grace.enter();
    let entry = map.find(&reader, start).unwrap();
    map.keep_rule(entry, start + 5, 9, epoch);
    assert_eq!(map.rules.get(start + 5), Some(9));
    map.remove(start);
    assert_eq!(map.rules.get(start + 5), None);
    // A walk that found the body before its removal, and caches its rule after it.
    map.keep_rule(entry, start + 5, 9, epoch);
    assert_eq!(map.rules.get(start + 5), None);
}

#[test]
fn a_body_says_whether_a_walk_reached_it() {
    let map = Box::new(CodeMap::new());
    let (start, other) = (0x7f00_0000_0000, 0x7f00_0000_0100);
    for (start, user) in [(start, 6), (other, 7)] {
        assert!(map.add_jit_body(body(start, 100), user));
    }
    {
        let reader = map.grace.enter();
        map.find(&reader, other + 50).unwrap().mark_walked();
    }
    assert_eq!(map.take_jit_body(start, |user| user == 7), None);
    assert_eq!(map.take_jit_body(other + 1, |_| true), None);
    for (start, was_walked) in [(start, false), (other, true)] {
        assert_eq!(
            map.take_jit_body(start, |_| true).unwrap().was_walked,
            was_walked
        );
        assert_eq!(map.lookup(start), None);
    }
    // The memory of an entry is reused; its marks are not.
    assert!(map.quiesce(10));
    assert!(map.add_jit_body(body(other, 100), 8));
    assert!(!map.take_jit_body(other, |_| true).unwrap().was_walked);
}

/// A bucket grows with its seventeenth body, which is before all others here.
#[test]
fn a_body_that_overlaps_one_of_a_full_bucket_takes_its_place() {
    let map = Box::new(CodeMap::new());
    let chunk = 0x7f00_0000_0000;
    for number in (1..=16).chain([0]) {
        let start = chunk + number * 0x40;
        assert_eq!(map.replace_jit_bodies(body(start, 0x40), number), Some(0));
    }
    let last = chunk + 16 * 0x40;
    assert_eq!(map.replace_jit_bodies(body(last + 0x10, 0x10), 17), Some(1));
    assert_eq!(map.lookup(last), None);
    assert_eq!(map.memory().jit_bodies, 17);
}
