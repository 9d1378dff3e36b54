//! Hijacked returns: recovers a return address that the runtime replaced on the stack.
//!
//! To stop a thread that runs managed code the runtime may replace the method's return address by
//! that of a stub (`OnHijackTripThread`). It stores the original and its stack slot in its thread
//! object: `m_pvHJRetAddr` and `m_ppvHJRetAddrPtr`, two adjacent words (vm/threads.h,
//! `Thread::HijackThread` in vm/threadsuspend.cpp; 3.1 to 10). A walk that reaches the stub reads
//! them.
//!
//! The caller of the walk knows the thread and sets the addresses of those two words in
//! [`Scratch::hijacks`](super::Scratch::hijacks). Invariant: they are used for one slot at a time,
//! and only if they name that very slot and an address behind a call. Stale or foreign words change
//! nothing.

use super::{Bp, Here, LEAF_RA, Load, Reason, Step, To, Walker};
use crate::map::RegionCode;
use crate::{cfi, own_memory, x86};

/// Maximum number of runtimes whose replaced return addresses are known per thread.
pub const HIJACKS: usize = 4;

/// The value that the constructor of a thread object writes into both words (`Thread::Thread` in
/// vm/threads.cpp, 3.1 to 10).
const UNSET: u64 = 0xcccc_cccc_cccc_cccc;

/// Searched length of a thread object, bytes. It has 2,400 to 3,000.
const REACH: usize = 4096;

/// Returns the offset at which a thread object stores a replaced return address: bytes from the
/// object's start to `m_pvHJRetAddr`, which `m_ppvHJRetAddrPtr` follows.
///
/// `thread` is a thread object that has never run managed code (a ThreadID in `ThreadCreated` or
/// `ThreadAssignedToOSThread`). Only then can both words be distinguished from all others. `None`
/// if it does not have that form. Reads by a system call that does not fault; not for a handler.
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
    /// Returns the original return address of the word at `slot`, if a runtime has replaced it.
    fn replaced(&self, slot: u64) -> Option<u64> {
        self.scratch
            .hijacks
            .iter()
            .filter(|place| **place != 0)
            .find_map(|&place| {
                // SAFETY: two aligned words that stay readable for the walk, as its caller
                // guarantees (`Scratch::hijacks`).
                let (address, at) = unsafe {
                    (
                        self.memory.load(place),
                        self.memory.load(place.wrapping_add(8)),
                    )
                };
                (at == slot && self.map.is_behind_call(address)).then_some(address)
            })
    }

    /// Steps from a return address that is the hijack stub's start. `lookup` is the byte before it.
    /// `None` if it is the return address of a real call.
    pub(super) fn step_hijacked(&mut self, here: Here, lookup: u64) -> Option<Step> {
        // The followed return address is just below the stack pointer it led to.
        if let Some(ip) = self.replaced(here.sp.wrapping_sub(8)) {
            return Some(Step::Instead(ip));
        }
        // The byte before the stub is not part of a call, so the rule there is that of another
        // function.
        let called = self.map.is_behind_call(lookup.wrapping_add(1));
        (!called).then(|| self.guess(here, Reason::NoRule))
    }

    /// Steps to the caller of the stub itself; see `Rule::HijackStub`.
    pub(super) fn leave_hijack_stub(&mut self, here: Here, offset: i32) -> Step {
        let cfa = here.sp.checked_add_signed(offset.into());
        let slot = cfa.and_then(|cfa| cfa.checked_sub(8));
        // Until `OnHijackWorker` has restored the return address, its slot holds the method's
        // return value.
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

/// Whether the hijack stub begins after the byte at `lookup`. No rule may be cached for such an
/// address: it belongs to the function before the stub, whose last instruction may be sampled too.
pub(crate) fn is_before_stub(code: &RegionCode, lookup: u64) -> bool {
    match code {
        RegionCode::Native(_, code) => {
            let behind = lookup.wrapping_add(1);
            // The stub has a table, so its code need not be read in most cases.
            cfi::begins_at(code, behind) && x86::is_hijack_stub(code.code_at(behind, &mut [0; 32]))
        }
        RegionCode::Jit(_) | RegionCode::ReadyToRun(_) => false,
    }
}

#[cfg(test)]
pub(super) mod tests;
