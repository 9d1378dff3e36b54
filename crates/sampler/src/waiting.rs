//! Finds the stacks of threads that wait in the kernel, without waking them.
//!
//! For threads that were registered without the bounds of their stacks; it runs outside of the
//! handler. The kernel reports the stack pointer of such a thread, and the address of its list of
//! robust mutexes, which is in the control block at the upper end of the stack. If the two are not
//! in one mapping, as on a coroutine's stack, [`Sampler::probe_stack`] must be used instead.
//! Invariant: no signal is sent.

use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::maps::{self, Mapping, StackSearch};
use crate::protocol::LIVE;
use crate::sampler::{self, Sampler, SlotId};
use crate::sys;

/// Maximum number of threads that are searched in one reading of the maps file.
const BATCH: usize = 64;

impl Sampler {
    /// Finds the stacks of those of these threads that wait in a system call, starts to sample
    /// these, and calls `settled` for each. Reads `/proc/self/maps` once for some dozens of them.
    pub fn settle_waiting(&self, slots: &[SlotId], mut settled: impl FnMut(SlotId)) {
        for batch in slots.chunks(BATCH) {
            let mut found = [const { None }; BATCH];
            for (place, id) in found.iter_mut().zip(batch) {
                *place = WaitingThread::of(*id);
            }
            if found.iter().all(Option::is_none) {
                continue;
            }
            maps::for_each(|mapping| {
                for thread in found.iter_mut().flatten() {
                    thread.read_stack_from(mapping);
                }
                true
            });
            for WaitingThread { id, stack, .. } in found.into_iter().flatten() {
                if !stack.is_empty() && sampler::set_stack(id, stack).is_ok() {
                    settled(id);
                }
            }
        }
    }
}

/// A thread that waits in the kernel.
struct WaitingThread {
    id: SlotId,
    stack_pointer: u64,
    control_block: u64,
    /// Its stack; empty until it is found.
    stack: Range<u64>,
}

impl WaitingThread {
    fn of(id: SlotId) -> Option<WaitingThread> {
        let slot = id.slot()?;
        let (generation, flags) = slot.gate.peek();
        if generation != id.generation() || flags & LIVE == 0 {
            return None;
        }
        let tid = slot.tid.load(Ordering::Relaxed);
        let (stack_pointer, _) = sys::waits_at(tid)?;
        Some(WaitingThread {
            id,
            stack_pointer,
            control_block: sys::robust_list_of(tid)?,
            stack: 0..0,
        })
    }

    fn read_stack_from(&mut self, mapping: &Mapping) {
        let (sp, block) = (self.stack_pointer, self.control_block);
        let is_main = mapping.grows && (mapping.below..mapping.range.end).contains(&sp);
        let is_in = mapping.range.contains(&sp) && mapping.range.contains(&block) && sp < block;
        let looking = StackSearch {
            sp,
            thread_pointer: block,
            is_main,
        };
        if (is_main || is_in)
            && let Some(stack) = looking.stack_in(mapping)
        {
            self.stack = stack;
        }
    }
}
