//! `--chain`: calls from CLR to CLR through native code, to a given depth, on one thread.
//!
//! The stack then has frames of all CLRs in a known order: `Step` of the first CLR,
//! [`runsxs_chain_cross`], `Step` of the second, [`runsxs_chain_cross`], and so on. The last `Step`
//! burns CPU time. The managed half is in workloads/chain. The thread is registered with every CLR.

use std::ffi::c_void;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::host::{Clr, set_signal_stack};
use crate::run::{Job, Starter};

/// Class of the method that each link calls first.
const CLASS: &str = "Workloads.Chain";
const METHOD: &str = "Step";

/// Work of the last link in one call; about 20 ms.
const ROUNDS: i32 = 1000;

type ChainStep =
    unsafe extern "C" fn(cross: *const c_void, chain: *const Chain, depth: i32, rounds: i32) -> i64;

/// Arguments of [`runsxs_chain_cross`].
struct Chain {
    depth: i32,
    steps: Vec<ChainStep>,
}

/// The native code between two CLRs. `depth` is the number of links that follow.
///
/// # Safety
/// `chain` is the pointer that [`run`] passed to the first step; the caller is a step, on its
/// thread.
#[inline(never)]
// Not mangled: the same name in the symbol table and in the debug information.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn runsxs_chain_cross(chain: *const Chain, depth: i32, rounds: i32) -> i64 {
    // SAFETY: guaranteed by the caller; the chain lives in `run` until the first step has returned.
    let links = unsafe { &*chain };
    let at = usize::try_from(links.depth - depth).unwrap_or(0);
    let Some(step) = links.steps.get(at % links.steps.len().max(1)) else {
        return 0;
    };
    // SAFETY: a delegate for `Step` of a CLR that runs, with the arguments that it declares.
    let answer = unsafe { step(runsxs_chain_cross as *const c_void, chain, depth, rounds) };
    // Work after the call prevents a tail call, so this function keeps its frame.
    black_box(answer)
}

/// Calls through all CLRs repeatedly, for at least `time`.
///
/// # Errors
/// A CLR does not start, its program has no `Workloads.Chain.Step`, or the chain returned a wrong
/// number of links.
pub(crate) fn run(starter: &Starter, jobs: &[Job], depth: u16, time: Duration) -> Result<u8> {
    set_signal_stack()?;
    let clrs: Vec<Clr> = jobs
        .iter()
        .map(|job| starter.start(job))
        .collect::<Result<_>>()?;
    let steps: Vec<ChainStep> = clrs
        .iter()
        .zip(jobs)
        .map(|(clr, job)| {
            let step = clr.delegate(&job.app.path, CLASS, METHOD)?;
            // SAFETY: the CLR created the entry point for a static method with these types.
            Ok(unsafe { std::mem::transmute::<*mut c_void, ChainStep>(step.as_ptr()) })
        })
        .collect::<Result<_>>()?;
    let depth = i32::from(depth);
    let chain = Chain { depth, steps };
    let begin = Instant::now();
    let mut calls = 0u64;
    while begin.elapsed() < time {
        // SAFETY: the chain lives here until the call has returned, on this thread.
        let links = unsafe { runsxs_chain_cross(&raw const chain, depth, ROUNDS) };
        ensure!(
            links == i64::from(depth) + 1,
            "the chain came back with {links} links of {}",
            depth + 1
        );
        calls += 1;
    }
    eprintln!(
        "runsxs: {calls} calls through {} links on {}",
        depth + 1,
        jobs.iter()
            .map(|job| job.runtime.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    );
    for clr in clrs {
        clr.shut_down()?;
    }
    Ok(0)
}
