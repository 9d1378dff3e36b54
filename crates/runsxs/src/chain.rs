//! `--chain`: calls from CLR to CLR, through native code, to a given depth.
//!
//! One stack then holds frames of all CLRs in a known order: `Step` of the first CLR,
//! [`runsxs_chain_cross`], `Step` of the second, [`runsxs_chain_cross`], and so on; the last
//! `Step` burns. workloads/chain is the other half. Everything happens on one thread, which
//! every CLR comes to know.

use std::ffi::c_void;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::host::{Clr, set_signal_stack};
use crate::run::{Job, Starter};

/// The class and the method that begin each link.
const CLASS: &str = "Workloads.Chain";
const METHOD: &str = "Step";

/// How much the last link burns in one call; about 20 ms.
const ROUNDS: i32 = 1000;

type ChainStep =
    unsafe extern "C" fn(cross: *const c_void, chain: *const Chain, depth: i32, rounds: i32) -> i64;

/// Arguments of [`runsxs_chain_cross`].
struct Chain {
    depth: i32,
    steps: Vec<ChainStep>,
}

/// The native code between two CLRs. It is called at `depth` links before the last.
///
/// # Safety
/// `chain` is the one that [`run`] gave to the first step; called by a step, on its thread.
#[inline(never)]
// Not mangled: the same name in the symbol table and in the debug information.
// SAFETY: nobody else has a function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn runsxs_chain_cross(chain: *const Chain, depth: i32, rounds: i32) -> i64 {
    // SAFETY: the caller's promise; `run` keeps the chain until the first step has returned.
    let links = unsafe { &*chain };
    let at = usize::try_from(links.depth - depth).unwrap_or(0);
    let Some(step) = links.steps.get(at % links.steps.len().max(1)) else {
        return 0;
    };
    // SAFETY: a delegate for `Step` of a CLR that runs, with the arguments that it declares.
    let answer = unsafe { step(runsxs_chain_cross as *const c_void, chain, depth, rounds) };
    // There is something to do after the call, so this function keeps its frame.
    black_box(answer)
}

/// Calls through all CLRs for at least `time`, again and again.
///
/// # Errors
/// A CLR does not start, its program has no `Workloads.Chain.Step`, or the chain came back
/// with another number of links than it has.
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
            // SAFETY: the CLR made it for a static method that is declared with these types.
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
