//! Walks the stack of the calling thread, in a callback.
//!
//! This is the signal handler's walk, begun at registers that are captured here. The youngest
//! frames are removed: those of this library, and of the CLR's way from managed code to the
//! callback. If a session requests chains (the methods that await a resumed one), the chain follows
//! the frames, as in a sample (`model::chain`). The heap gate delays the collector for some
//! microseconds meanwhile, in any GC mode of the thread. This code does not run in a signal handler
//! and may allocate. It makes no call into the CLR, so any callback may use it.

use std::arch::asm;
use std::cell::RefCell;
use std::ops::Range;

use stackwalk::{ADDRESS, CodeKind, CodeMap, End, Reason, Region, Regs, Scratch, Stack};

use crate::base::proc;
use crate::model::EndCode;
use crate::model::chain::{self, CHAIN_WORDS};
use crate::program::chains::{self, finder::AsyncFrameFinder};
use crate::program::hijacks::HijackPlaces;

/// Room for this library's frames, in addition to those that are kept.
const OWN_FRAMES: usize = 64;

/// Per-thread state, kept between walks.
#[derive(Default)]
struct OwnWalkState {
    stack: Option<Range<u64>>,
    words: Vec<u64>,
    /// For [`AsyncFrameFinder::new`].
    inside: u32,
}

thread_local! {
    static OWN_WALK: RefCell<OwnWalkState> = RefCell::default();
}

/// Returns the calling thread's stack, leaf first, at most `max_depth` frames, and how the walk
/// ended. The chain of awaiting methods follows the frames, if there is one and a session requests
/// it. `hijacks` is the result of `Threads::own_hijacks`.
pub fn walk_here(
    map: &'static CodeMap,
    max_depth: u32,
    hijacks: HijackPlaces,
) -> (Box<[u64]>, EndCode) {
    let max_depth = max_depth as usize;
    OWN_WALK
        .try_with(|own| match own.try_borrow_mut() {
            Ok(mut own) => walk_into(map, max_depth, hijacks, &mut own),
            Err(_) => walk_into(map, max_depth, hijacks, &mut OwnWalkState::default()),
        })
        // The thread is ending and has destroyed its thread-local variables.
        .unwrap_or_else(|_| walk_into(map, max_depth, hijacks, &mut OwnWalkState::default()))
}

/// Returns the approximate stack pointer of the calling thread. Younger frames have lower
/// addresses.
#[inline]
pub fn stack_pointer() -> u64 {
    let here = 0u8;
    (&raw const here) as u64
}

#[inline(never)]
fn walk_into(
    map: &'static CodeMap,
    max_depth: usize,
    hijacks: HijackPlaces,
    own: &mut OwnWalkState,
) -> (Box<[u64]>, EndCode) {
    let tables = chains::tables_if_wanted();
    let room_for_chain = tables.map_or(0, |_| CHAIN_WORDS);
    own.words.resize(max_depth + OWN_FRAMES + room_for_chain, 0);
    if own.stack.is_none() {
        own.stack = proc::own_stack();
    }
    let (ip, sp, bp): (u64, u64, u64);
    // SAFETY: reads three registers. The instruction pointer is that of the next instruction, where
    // stack and frame pointer still are what the unwind table says for this function.
    unsafe {
        asm!(
            "lea {ip}, [rip]",
            "mov {sp}, rsp",
            "mov {bp}, rbp",
            ip = out(reg) ip,
            sp = out(reg) sp,
            bp = out(reg) bp,
            options(nomem, nostack, preserves_flags),
        );
    }
    let stack = match own.stack.clone() {
        Some(stack) if stack.contains(&sp) => Stack {
            low: 0,
            end: stack.end,
            alt: None,
        },
        thread => Stack {
            low: 0,
            end: thread.map_or(0, |stack| stack.end),
            alt: alternate_stack(),
        },
    };
    let mut scratch = Scratch::new();
    scratch.hijacks = hijacks;
    let regs = Regs { ip, sp, bp, all: 0 };
    let finder = tables.and_then(|tables| {
        AsyncFrameFinder::new(tables, map, 0, stack.end, &mut own.words, &mut own.inside)
    });
    // SAFETY: this thread has just captured the registers in this function, which has not returned;
    // its stack is mapped from the stack pointer to the end that the thread library (or the kernel,
    // for an alternate stack) names. The thread is in a callback of its runtime, so that its thread
    // object lives.
    let (walk, found) = unsafe {
        match finder {
            Some(mut finder) => {
                let walk = stackwalk::walk_into(map, regs, &stack, &mut scratch, &mut finder);
                (walk, finder.finish(walk.depth))
            }
            None => {
                let walk = stackwalk::walk(map, regs, &stack, &mut scratch, &mut own.words);
                (walk, walk.depth)
            }
        }
    };
    let (words, chain) = chain::split(own.words.get(..found).unwrap_or_default());
    let ours = map.lookup(ip).map(|region| region.start..region.end);
    let first = words
        .iter()
        .position(|word| {
            !ours
                .as_ref()
                .is_some_and(|at| at.contains(&(word & ADDRESS)))
        })
        .unwrap_or(words.len());
    let words = without_callback_frames(words.get(first..).unwrap_or_default(), |word| {
        map.lookup(word & ADDRESS)
    });
    let kept = words.get(..max_depth).unwrap_or(words);
    let end = if kept.len() < words.len() {
        End::Truncated
    } else if words.is_empty() {
        // Only frames of this library: the walk did not get beyond them.
        End::Broken(Reason::NoRule)
    } else {
        walk.end
    };
    let left_out = words.len() - kept.len();
    let chain = chain.and_then(|chain| chain::without_oldest(chain, left_out));
    // Of the final size, so that the result is allocated once.
    let links = chain.as_ref().map_or(0, |chain| chain.size_hint().0);
    let mut all = Vec::with_capacity(kept.len() + links);
    all.extend_from_slice(kept);
    all.extend(chain.into_iter().flatten());
    (all.into_boxed_slice(), EndCode(EndCode::of(end)))
}

/// Returns the stack without the frames between managed code and the callback, if the callback came
/// from managed code.
///
/// The first word is in the CLR's module, the caller of the callback. If the first managed frame
/// called that module too, all younger frames are the CLR's (including those of the compiler that
/// it calls). If it called other native code, that code called the CLR, and is kept.
fn without_callback_frames(words: &[u64], region: impl Fn(u64) -> Option<Region>) -> &[u64] {
    let Some(clr) = words.first().and_then(|word| region(*word)) else {
        return words;
    };
    let is_clr = |word: &u64| {
        (word & ADDRESS) >= clr.start && (word & ADDRESS) < clr.end && clr.kind == CodeKind::Native
    };
    let managed = words
        .iter()
        .position(|word| region(*word).is_some_and(|region| region.kind != CodeKind::Native));
    let beneath = match managed {
        Some(at) if words.get(..at).and_then(<[u64]>::last).is_some_and(is_clr) => at,
        Some(_) => words.iter().take_while(|word| is_clr(word)).count(),
        None => 0,
    };
    words.get(beneath..).unwrap_or(words)
}

/// Returns the alternate signal stack, if the thread runs on it now.
fn alternate_stack() -> Option<Range<u64>> {
    // SAFETY: all-zero is a valid stack_t.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: a query; a valid out-pointer.
    if unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) } != 0
        || stack.ss_flags & libc::SS_ONSTACK == 0
    {
        return None;
    }
    let start = stack.ss_sp as u64;
    Some(start..start.checked_add(stack.ss_size as u64)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    static MAP: CodeMap = CodeMap::new();

    #[test]
    fn the_clrs_frames_on_top_are_left_out() {
        // 1xx is the CLR, 2xx its compiler, 3xx a native library, 4xx managed code, 5xx a stub that
        // the map does not know.
        let region = |word: u64| {
            let start = word / 100 * 100;
            let kind = match start {
                100..400 => CodeKind::Native,
                400 => CodeKind::Jit,
                _ => return None,
            };
            Some(Region {
                kind,
                start,
                end: start + 100,
                user: 0,
            })
        };
        for (words, kept) in [
            (&[101, 102, 401, 402, 301][..], &[401, 402, 301][..]),
            (&[101, 201, 102, 401], &[401]),
            (&[101, 102, 301, 401], &[301, 401]),
            (&[101, 301, 102, 302], &[101, 301, 102, 302]),
            (&[101, 501, 102, 401], &[401]),
            (&[401, 101], &[401, 101]),
            (&[501, 101], &[501, 101]),
            (&[], &[]),
        ] {
            assert_eq!(without_callback_frames(words, region), kept, "{words:?}");
        }
    }

    #[inline(never)]
    fn deeper(depth: u32, max_depth: u32) -> (Box<[u64]>, EndCode) {
        if depth == 0 {
            return walk_here(&MAP, max_depth, HijackPlaces::default());
        }
        std::hint::black_box(deeper(depth - 1, max_depth))
    }

    #[test]
    fn a_walk_begins_outside_this_library_and_ends_at_the_root() {
        MAP.refresh_native(&mut |_| 0);
        let own = MAP.lookup(walk_here as *const () as u64).unwrap();
        // Here the test binary is "this library". The remaining frames are libc's.
        let (frames, end) = std::thread::spawn(|| deeper(5, 100)).join().unwrap();
        assert_eq!(end, EndCode(EndCode::of(End::Root)));
        assert!((1..5).contains(&frames.len()), "{frames:x?}");
        for word in &frames {
            assert!(!(own.start..own.end).contains(&(word & ADDRESS)));
        }
        let (frames, end) = std::thread::spawn(|| deeper(5, 1)).join().unwrap();
        assert_eq!(
            (frames.len(), end),
            (1, EndCode(EndCode::of(End::Truncated)))
        );
    }
}
