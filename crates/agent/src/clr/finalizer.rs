//! Whether code of a CLR is being unloaded now, judged by the stack of its finalizer thread.
//!
//! Collectible assemblies and dynamic methods are unloaded by finalizers, managed methods that call
//! into the runtime (`LoaderAllocatorScout`, `DynamicResolver`, in System.Private.CoreLib). So
//! while it unloads, the finalizer thread has managed frames. Callbacks are not enough to know:
//! `ModuleUnloadStarted` comes when an unload begins, but none comes when it has ended, because
//! code is freed after `ModuleUnloadFinished` (`LoaderAllocator::GCLoaderAllocators`, which leads
//! to `ExecutionManager::Unload`, src/coreclr/vm/loaderallocator.cpp), and an unload that began
//! before the attach has none. Listing or querying code during an unload may crash the program.
//!
//! Invariant: the result *idle* was true at some moment of the call. Unloads that begin later have
//! their callback. Runs on the agent thread.

use stackwalk::{CodeKind, CodeMap, own_memory};

use crate::base::proc::{self, Blocked, Mapping};

/// A thread that has stayed in one wait for this long is at rest, whatever is on its stack. A
/// thread that unloads works, and waits in short polls; only its wait for the end of a collection
/// is no poll.
const STILL_NS: u64 = 1_000_000_000;
/// Maximum stack depth that is scanned, bytes. At rest the finalizer thread needs 4 to 8 KiB.
const MAX_DEPTH: u64 = 1 << 16;
/// Maximum number of remembered resting places. Two are known: the runtime's waits for work.
const MAX_PLACES: usize = 4;

/// A thread that may unload code.
#[derive(Debug)]
struct Watched {
    tid: u32,
    /// Places at which it was found at rest: stack pointer, program counter.
    rests: Vec<(u64, u64)>,
    /// Its last wait, and since when.
    last: Option<(Blocked, u64)>,
}

/// The finalizer thread of a CLR, or several candidates.
#[derive(Debug)]
pub(super) struct Finalizer {
    watched: Vec<Watched>,
}

impl Finalizer {
    /// Finds it among the managed threads of a CLR. From .NET 6 on the finalizer thread has a name.
    /// Before that it is the first thread that the CLR starts: the second of its threads, after the
    /// process's main thread or an unknown one.
    pub(super) fn among(threads: &[u32]) -> Finalizer {
        let named =
            |tid: &u32| proc::thread_name(*tid).is_some_and(|name| name == ".NET Finalizer");
        let mut found: Vec<u32> = threads.iter().copied().filter(named).collect();
        if found.is_empty() {
            let main = std::process::id();
            let mut by_age: Vec<(u64, u32)> = threads
                .iter()
                .filter(|tid| **tid != main)
                .filter_map(|tid| Some((proc::thread_start(*tid)?, *tid)))
                .collect();
            by_age.sort_unstable();
            let count = if threads.contains(&main) { 1 } else { 2 };
            found.extend(by_age.iter().take(count).map(|(_, tid)| *tid));
        }
        let watched = found.into_iter().map(|tid| Watched {
            tid,
            rests: Vec::new(),
            last: None,
        });
        Finalizer {
            watched: watched.collect(),
        }
    }

    /// Whether it is at rest now. False if that cannot be shown; a later call may succeed.
    pub(super) fn is_idle(&mut self, map: &CodeMap) -> bool {
        // Without a candidate nothing is known.
        !self.watched.is_empty() && self.watched.iter_mut().all(|one| one.is_idle(map))
    }
}

impl Watched {
    fn is_idle(&mut self, map: &CodeMap) -> bool {
        let now = proc::blocked(self.tid);
        // The thread waits for work on a futex, as PAL's events and the runtime's locks do.
        let waiting = now.filter(|now| now.syscall == libc::SYS_futex.cast_unsigned());
        let Some(now) = waiting else {
            self.last = None;
            return false;
        };
        let place = (now.stack_pointer, now.program_counter);
        if self.rests.contains(&place) {
            return true;
        }
        let now_ns = proc::now_ns();
        let since_ns = match &self.last {
            Some((last, since)) if *last == now => *since,
            _ => now_ns,
        };
        let is_idle = now_ns.saturating_sub(since_ns) >= STILL_NS
            || !has_managed_frame(self.tid, now.stack_pointer, map)
                // The words were its stack only if it has not run meanwhile.
                && proc::blocked(self.tid).as_ref() == Some(&now);
        self.last = Some((now, since_ns));
        if is_idle && self.rests.len() < MAX_PLACES {
            self.rests.push(place);
        }
        is_idle
    }
}

/// Whether a stack may contain a managed frame: an address in managed code after a word that points
/// up into the stack. A native function that was called by managed code and saves its frame
/// pointer, as all of libcoreclr does, leaves these. Finished calls leave such words too, so *no*
/// is certain and *yes* is not.
fn has_managed_frame(tid: u32, stack_pointer: u64, map: &CodeMap) -> bool {
    let mappings = proc::mappings();
    let Some(stack) = proc::mapping_of(&mappings, stack_pointer) else {
        return true;
    };
    let depth = stack.range.end.saturating_sub(stack_pointer);
    let mut bytes = vec![0; depth.min(MAX_DEPTH) as usize];
    let read = own_memory::peek(stack_pointer, &mut bytes);
    let (words, _) = read.as_chunks::<8>();
    let mut words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    match thread_block(&words, stack_pointer, tid) {
        Some(end) => words.truncate(end),
        None if read.len() as u64 != depth => return true,
        None => {}
    }
    words.array_windows().any(|[frame, address]| {
        let is_up = stack.range.contains(frame) && *frame > stack_pointer;
        is_up && is_managed(*address, &mappings, map)
    })
}

/// Index of the C library's block of a thread among the words from its stack pointer on: the end of
/// its stack. musl puts it there, and the mapping may go on behind it with memory of others.
///
/// The block begins with its own address and has the thread's id a few words further on (musl's
/// `struct pthread`, src/internal/pthread_impl.h). Glibc's has the id elsewhere; there the mapping
/// ends with the block.
fn thread_block(words: &[u64], stack_pointer: u64, tid: u32) -> Option<usize> {
    const MAX_WORDS: usize = 16;
    let has_id = |word: &u64| *word as u32 == tid || (*word >> 32) as u32 == tid;
    let begins = |&at: &usize| {
        words[at] == stack_pointer + 8 * at as u64 && words[at..].iter().take(MAX_WORDS).any(has_id)
    };
    // A pointer to itself beside the id may be on the stack too.
    (0..words.len()).rev().find(begins)
}

fn is_managed(word: u64, mappings: &[Mapping], map: &CodeMap) -> bool {
    let runs = proc::mapping_of(mappings, word).is_some_and(|mapping| mapping.executable);
    // ReadyToRun code of a module that was not reported yet is in a file too.
    runs && map
        .lookup(word)
        .is_none_or(|region| region.kind != CodeKind::Native)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn watched(tid: u32) -> Finalizer {
        Finalizer {
            watched: vec![Watched {
                tid,
                rests: Vec::new(),
                last: None,
            }],
        }
    }

    /// Returns a code map that knows the native code of this process, as an agent's does.
    fn map() -> &'static CodeMap {
        let map: &CodeMap = Box::leak(Box::new(CodeMap::new()));
        map.refresh_native(&mut |_| 0);
        map
    }

    fn until_idle(finalizer: &mut Finalizer, map: &CodeMap) -> u64 {
        let start = proc::now_ns();
        while !finalizer.is_idle(map) {
            assert!(proc::now_ns() - start < 10_000_000_000, "it never rests");
            std::thread::yield_now();
        }
        proc::now_ns() - start
    }

    /// Runs `look` on a thread that runs `does` until `look` is over; returns the finalizer used.
    fn look_at(
        does: impl FnOnce(&mpsc::Receiver<()>) + Send + 'static,
        look: impl FnOnce(&mut Finalizer),
    ) -> Finalizer {
        let (sender, receiver) = mpsc::channel();
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            sender.send(proc::own_tid()).unwrap();
            does(&stopped);
        });
        let mut finalizer = watched(receiver.recv().unwrap());
        look(&mut finalizer);
        drop(stop);
        thread.join().unwrap();
        finalizer
    }

    #[test]
    fn a_thread_that_waits_below_native_frames_rests() {
        let waits = |stopped: &mpsc::Receiver<()>| {
            let _end = stopped.recv();
        };
        let mut ended = look_at(waits, |finalizer| {
            until_idle(finalizer, map());
            assert!(finalizer.is_idle(map()));
        });
        assert!(!ended.is_idle(map()), "it has ended");
    }

    #[test]
    fn one_that_runs_does_not() {
        let runs = |stopped: &mpsc::Receiver<()>| {
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                std::hint::spin_loop();
            }
        };
        look_at(runs, |finalizer| {
            for _ in 0..1000 {
                assert!(!finalizer.is_idle(map()));
            }
        });
    }

    #[test]
    fn what_looks_like_a_managed_frame_must_stay_where_it_is_for_a_while() {
        // Executable memory that belongs to no known code.
        let code = libc::PROT_READ | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of one page.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, code, flags, -1, 0) } as u64;
        let waits = move |stopped: &mpsc::Receiver<()>| {
            let mut frame = [0, page + 8];
            frame[0] = &raw const frame as u64 + 64;
            std::hint::black_box(&frame);
            let _end = stopped.recv();
            std::hint::black_box(&frame);
        };
        look_at(waits, |finalizer| {
            assert!(until_idle(finalizer, map()) >= STILL_NS);
        });
    }

    #[test]
    fn a_stack_ends_where_the_block_of_its_thread_begins() {
        let (stack_pointer, tid) = (0x7f00_1000, 4711);
        let mut words = [0_u64; 64];
        // A pointer to itself is not yet a block, nor is the id.
        words[3] = stack_pointer + 8 * 3;
        words[30] = u64::from(tid);
        assert_eq!(thread_block(&words, stack_pointer, tid), None);
        words[40] = stack_pointer + 8 * 40;
        for id in [u64::from(tid), u64::from(tid) << 32 | 2] {
            words[46] = id;
            assert_eq!(thread_block(&words, stack_pointer, tid), Some(40));
        }
        assert_eq!(thread_block(&words, stack_pointer, tid + 1), None);
    }

    #[test]
    fn the_one_that_is_not_known_never_rests() {
        assert!(
            !Finalizer {
                watched: Vec::new()
            }
            .is_idle(map())
        );
        assert!(!watched(u32::MAX).is_idle(map()));
    }
}
