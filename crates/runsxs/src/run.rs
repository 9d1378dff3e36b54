//! Runs the programs: one after the other, or each on its own thread.
//!
//! All checks are made before the first CLR starts.
//!
//! Invariant: a program's failure does not stop the others.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::app::App;
use crate::args::{Args, Program};
use crate::chain;
use crate::compat::Compatibility;
use crate::host::{Clr, StartOptions, set_signal_stack};
use crate::lookup::{self, InstalledRuntime, LIBRARY};

/// Stack size in bytes of a thread that runs a program: the default of the main thread.
const STACK: usize = 8 << 20;

/// A program with its CLR.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) runtime: InstalledRuntime,
    pub(crate) app: App,
    words: Vec<String>,
}

/// Runs the programs and returns their common exit code.
///
/// # Errors
/// A check fails, before any CLR is started.
pub(crate) fn run(args: &Args) -> Result<u8> {
    let jobs: Vec<Job> = args.programs.iter().map(open_job).collect::<Result<_>>()?;
    check_files(&jobs)?;
    let compatibility = args.compat.map(Compatibility::new).transpose()?;
    let starter = Starter {
        fix_activation: args.fix_activation,
        compatibility,
    };
    if let Some(depth) = args.chain {
        return chain::run(&starter, &jobs, depth, args.burn);
    }
    let outcomes = if args.st {
        set_signal_stack()?;
        jobs.iter()
            .map(|job| run_one(&starter, job, || {}))
            .collect()
    } else {
        run_at_once(&starter, args.stagger, &jobs)?
    };
    Ok(exit_code(&jobs, outcomes))
}

fn open_job(program: &Program) -> Result<Job> {
    Ok(Job {
        runtime: lookup::find(&program.runtime)?,
        app: App::open(&program.app)?,
        words: program.words.clone(),
    })
}

/// Checks that each CLR has its own file, because the loader loads a file once, and a library holds
/// one CLR.
fn check_files(jobs: &[Job]) -> Result<()> {
    let mut seen = HashMap::new();
    for job in jobs {
        let path = job.runtime.folder.join(LIBRARY);
        let file =
            fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if seen.insert((file.dev(), file.ino()), ()).is_some() {
            bail!(
                "{} is named twice, and one file is one CLR to the loader.\nCopy the folder \
                 (cp -r {} COPY) and name the copy for the second program",
                path.display(),
                job.runtime.folder.display()
            );
        }
    }
    Ok(())
}

/// Runs each program on its own thread, all starting at once or `stagger` apart.
fn run_at_once(starter: &Starter, stagger: Duration, jobs: &[Job]) -> Result<Vec<Result<i32>>> {
    let ready = Barrier::new(jobs.len());
    thread::scope(|scope| {
        let threads = jobs
            .iter()
            .zip(0u32..)
            .map(|(job, place)| {
                let ready = &ready;
                thread::Builder::new()
                    .name(format!("runsxs-{place}"))
                    .stack_size(STACK)
                    .spawn_scoped(scope, move || {
                        let wait = || {
                            ready.wait();
                            thread::sleep(stagger.saturating_mul(place));
                        };
                        set_signal_stack()?;
                        run_one(starter, job, wait)
                    })
                    .context("cannot start a thread")
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(anyhow!("the thread of a program panicked")))
            })
            .collect())
    })
}

/// Settings for starting CLRs.
#[derive(Debug)]
pub(crate) struct Starter {
    fix_activation: bool,
    compatibility: Option<Compatibility>,
}

impl Starter {
    /// Starts a job's CLR.
    ///
    /// # Errors
    /// The CLR does not start.
    pub(crate) fn start(&self, job: &Job) -> Result<Clr> {
        let start = || {
            Clr::start(&StartOptions {
                runtime: &job.runtime,
                app: &job.app.path,
                properties: &job.app.properties,
            })
        };
        let clr = match &self.compatibility {
            Some(compatibility) => compatibility.start(&job.runtime, start),
            None => start(),
        }?;
        if self.fix_activation {
            activation::serve_all();
        }
        Ok(clr)
    }
}

/// Runs one program, from its CLR's start to its shutdown.
fn run_one(starter: &Starter, job: &Job, wait: impl FnOnce()) -> Result<i32> {
    wait();
    let clr = starter.start(job)?;
    let ran = clr.run(&job.app.path, &job.words);
    let last = clr.shut_down();
    let (code, last) = (ran?, last?);
    // `last` is set by Environment.ExitCode or a ProcessExit handler, for a Main without result.
    Ok(if code == 0 { last } else { code })
}

/// The first exit code that is not 0, in the given order.
fn exit_code(jobs: &[Job], outcomes: Vec<Result<i32>>) -> u8 {
    let mut first = 0;
    for (job, outcome) in jobs.iter().zip(outcomes) {
        let code = match outcome {
            Ok(code) => exit_byte(code),
            Err(error) => {
                eprintln!(
                    "runsxs: {} on {}: {error:#}",
                    job.app.path.display(),
                    job.runtime.name
                );
                1
            }
        };
        if first == 0 {
            first = code;
        }
    }
    first
}

/// The byte of an exit code that the kernel keeps, but never 0 for a non-zero code.
fn exit_byte(code: i32) -> u8 {
    match u8::try_from(code & 0xff) {
        Ok(0) if code != 0 => 1,
        Ok(code) => code,
        Err(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_that_is_not_0_stays_one() {
        for (code, kept) in [(0, 0), (7, 7), (256, 1), (-1, 255), (257, 1), (i32::MIN, 1)] {
            assert_eq!(exit_byte(code), kept, "{code}");
        }
    }
}
