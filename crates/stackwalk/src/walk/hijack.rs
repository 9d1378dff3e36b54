//! Hijacked returns: a return address that the runtime has replaced on the stack.
//!
//! To stop a thread that runs managed code the runtime may put the address of a stub
//! (`OnHijackTripThread`) where the method's return address is, and keeps the true one, and where
//! it was, in its thread object: `m_pvHJRetAddr` and `m_ppvHJRetAddrPtr`, two words side by side
//! (vm/threads.h, `Thread::HijackThread` in vm/threadsuspend.cpp; 3.1 to 10). A walk that meets
//! the stub looks there.
//!
//! It does not know which thread it walks: whoever does puts the places of those two words into
//! [`Scratch::hijacks`](super::Scratch::hijacks). The invariant: they are asked about one slot at
//! a time and believed only if they name that very slot and an address behind a call; so stale
//! or foreign words change nothing.

use super::{Bp, Here, LEAF_RA, Load, Reason, Step, To, Walker};
use crate::map::RegionCode;
use crate::{cfi, own_memory, x86};

/// How many runtimes can keep a return address of one thread.
pub const HIJACKS: usize = 4;

/// The value that the constructor of a thread object writes into both words (`Thread::Thread` in
/// vm/threads.cpp, 3.1 to 10).
const UNSET: u64 = 0xcccc_cccc_cccc_cccc;

/// How far into a thread object is looked. It has 2,400 to 3,000 bytes.
const REACH: usize = 4096;

/// Where in a thread object the runtime keeps a replaced return address: bytes from the object's
/// start to `m_pvHJRetAddr`, behind which lies `m_ppvHJRetAddrPtr`.
///
/// `thread` is a thread object that has never run managed code, which is when both words can be
/// told from all others: a ThreadID in `ThreadCreated` or `ThreadAssignedToOSThread`. `None` where
/// it does not look like one. Reads by a system call that does not fault; not for a handler.
pub fn hijack_offset(thread: u64) -> Option<u64> {
    let mut bytes = [0; REACH];
    let words: Vec<u64> = (own_memory::peek(thread, &mut bytes).as_chunks().0.iter())
        .map(|word| u64::from_ne_bytes(*word))
        .collect();
    let first = words.iter().position(|word| *word == UNSET)?;
    let run = words.iter().skip(first).take_while(|word| **word == UNSET);
    (run.count() == 2).then_some(first as u64 * 8)
}

impl<M: Load> Walker<'_, M> {
    /// The return address that belongs into the word at `slot`, if a runtime says that it has
    /// replaced that one.
    fn replaced(&self, slot: u64) -> Option<u64> {
        self.scratch
            .hijacks
            .iter()
            .filter(|place| **place != 0)
            .find_map(|&place| {
                // SAFETY: two aligned words that stay readable for the walk, as its caller has
                // vouched for (`Scratch::hijacks`).
                let (address, at) = unsafe {
                    (
                        self.memory.load(place),
                        self.memory.load(place.wrapping_add(8)),
                    )
                };
                (at == slot && self.map.is_behind_call(address)).then_some(address)
            })
    }

    /// The step from a return address that is the hijack stub's start, where `lookup` is the byte
    /// before. `None` if it is the return address of a call after all.
    pub(super) fn step_hijacked(&mut self, here: Here, lookup: u64) -> Option<Step> {
        // The return address that was followed lies below the stack pointer it led to.
        if let Some(ip) = self.replaced(here.sp.wrapping_sub(8)) {
            return Some(Step::Instead(ip));
        }
        // Nothing before the stub has called: the rule there is that of another function.
        let called = self.map.is_behind_call(lookup.wrapping_add(1));
        (!called).then(|| self.guess(here, Reason::NoRule))
    }

    /// The caller of the stub itself; see `Rule::HijackStub`.
    pub(super) fn leave_hijack_stub(&mut self, here: Here, offset: i32) -> Step {
        let cfa = here.sp.checked_add_signed(offset.into());
        let slot = cfa.and_then(|cfa| cfa.checked_sub(8));
        // Until `OnHijackWorker` has put the return address back, its place holds what the method
        // returned.
        if let (Some(sp), Some(slot)) = (cfa, slot)
            && let Some(ip) = self.replaced(slot)
        {
            self.window.low = sp;
            let regs = To {
                ip,
                sp,
                bp: here.bp,
            };
            return Step::To { regs, flags: 0 };
        }
        self.caller_at(here, cfa, LEAF_RA, Bp::Same, 0)
            .unwrap_or_else(|| {
                self.guess(
                    Here {
                        exact: true,
                        ..here
                    },
                    Reason::NoRule,
                )
            })
    }
}

/// Whether the hijack stub begins behind the byte at `lookup`. No rule for such an address may be
/// kept: it is that of the function before the stub, whose last instruction may be sampled too.
pub(crate) fn is_before_stub(code: &RegionCode, lookup: u64) -> bool {
    match code {
        RegionCode::Native(_, code) => {
            let behind = lookup.wrapping_add(1);
            // The stub has a table: mostly its code need not be looked at.
            cfi::begins_at(code, behind) && x86::is_hijack_stub(code.code_at(behind, &mut [0; 32]))
        }
        RegionCode::Jit(_) | RegionCode::ReadyToRun(_) => false,
    }
}

#[cfg(test)]
pub(super) mod tests;
