//! Writes the recording: converts samples, threads, modules and methods to records for the tool.
//!
//! [`Recorder`] belongs to the agent thread and lives as long as that thread. It writes each
//! module, method, frame and stack once, before the first sample that refers to it, and each sample
//! as it arrives. The decision what is sampled is made elsewhere (`session`, `events`).
//!
//! Invariants: memory is bounded, since every table is emptied when one is full; numbers are not
//! reused. A new epoch ([`Recorder::new_epoch`]) refers to nothing that was written before it.

mod chains;
pub mod channel;
mod il_maps;
mod outlet;
mod resolve;
mod roles;
mod stacks;
mod stubs;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use recording::Record;

use self::chains::Chains;
use self::outlet::Outlet;
use self::resolve::{Lookup, NextNumbers, WrittenTables};
use self::stubs::Stubs;
use crate::clr::{Clr, Runtimes};
use crate::model::chain;
use crate::model::{CodeBody, EndCode, WalkedStack};
use crate::program::{CodeHistory, Program};

pub use self::channel::{Channel, Command};

/// Maximum number of standstills that are kept: samples are written within a second or two.
const MAX_STANDSTILLS: usize = 16;

/// The writer of the recording.
pub struct Recorder {
    outlet: Outlet,
    history: CodeHistory,
    written: WrittenTables,
    next: NextNumbers,
    stubs: Stubs,
    chains: Chains,
    /// The last times for which the program stood still, in order.
    standstills: VecDeque<Range<u64>>,
    /// Number of broken stacks by [`EndCode`], since the counters were last written.
    broken: Box<[u64; 256]>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder {
            outlet: Outlet::default(),
            history: CodeHistory::default(),
            written: WrittenTables::default(),
            next: NextNumbers::default(),
            stubs: Stubs::default(),
            chains: Chains::default(),
            standstills: VecDeque::new(),
            broken: Box::new([0; 256]),
        }
    }
}

impl Recorder {
    /// Begins an epoch: records go to `channel`, and nothing counts as written. The caller then
    /// writes the process, its runtimes, threads and modules.
    pub fn new_epoch(&mut self, channel: Channel) {
        self.outlet = Outlet::new(crate::base::proc::process_key(), channel);
        self.written.start_again();
        self.written.forget_natives();
        self.standstills.clear();
        self.broken.fill(0);
    }

    /// Leaves this time out of the waits that are written from now on: the program stood still.
    pub fn leave_out(&mut self, stood: Range<u64>) {
        if self.standstills.len() == MAX_STANDSTILLS {
            self.standstills.pop_front();
        }
        self.standstills.push_back(stood);
    }

    /// Returns the length of a time that ended at `end_ns` without those for which the program
    /// stood still.
    fn running_ns(&self, end_ns: u64, ns: u64) -> u64 {
        let begin_ns = end_ns.saturating_sub(ns);
        let stood = self.standstills.iter().map(|stood| {
            let end_ns = stood.end.min(end_ns);
            end_ns.saturating_sub(stood.start.max(begin_ns))
        });
        ns.saturating_sub(stood.sum())
    }

    /// Ends the session: sends the rest and closes the connection.
    pub fn close(&mut self) {
        self.outlet.close();
        self.written.start_again();
        self.written.forget_natives();
    }

    /// Applies the changes of code since the last call. Returns whether there were any.
    pub fn absorb_code(&mut self, program: &Program) -> bool {
        self.history.absorb(&program.code)
    }

    /// Returns the code that exists now.
    pub fn existing_code(&mut self, program: &Program) -> Vec<CodeBody> {
        self.absorb_code(program);
        let mut code = program.code.permanent_bodies(|_| true);
        code.extend(self.history.live().cloned());
        code
    }

    /// Returns the number of records written so far.
    pub fn records_written(&self) -> u64 {
        self.outlet.pushed()
    }

    /// Drops the code of a CLR that has ended, as its number is about to be reused.
    pub fn forget_runtime(&mut self, program: &Program, clr: &Clr) {
        self.absorb_code(program);
        self.forget_chains_of(clr.number());
        // Samples of it may still be queued.
        let permanent = program
            .code
            .permanent_bodies(|runtime| runtime == clr.number());
        self.history.learn(permanent);
        program.code.removed(self.history.of_runtime(clr.number()));
        program.code.runtime_removed(clr.number());
        for code in clr.images() {
            program.code.image_removed(code);
        }
    }

    /// Writes one sample, preceded by the entries that it is the first to need. Call after the
    /// runtimes have resumed, as they may be queried for names.
    pub fn sample(
        &mut self,
        program: &Program,
        runtimes: &mut Runtimes<'_>,
        mut sample: WalkedStack<'_>,
    ) {
        sample.end = end_of(program, &sample);
        self.count_broken(sample.end);
        self.make_room();
        self.write_sample(&mut Lookup { program, runtimes }, sample);
    }

    /// Counts the stack if it is broken.
    pub fn count_broken(&mut self, end: EndCode) {
        if end.reason().is_some()
            && let Some(count) = self.broken.get_mut(usize::from(end.0))
        {
            *count += 1;
        }
    }

    /// Writes the entries of a sample's stacks without a sample. They may be referred to for the
    /// rest of the session. `None` for an empty stack. Call after the runtimes have resumed, as
    /// [`Recorder::sample`].
    pub fn resolve(
        &mut self,
        program: &Program,
        runtimes: &mut Runtimes<'_>,
        sample: WalkedStack<'_>,
    ) -> Option<Resolved> {
        let end = end_of(program, &sample);
        self.make_room();
        let sample = WalkedStack { end, ..sample };
        let (stack, logical) = self.stacks_of(&mut Lookup { program, runtimes }, sample)?;
        Some(Resolved {
            stack,
            logical,
            end,
        })
    }

    /// Empties the tables if one is full. Call between two samples, as a sample refers to the
    /// entries written for it.
    pub fn make_room(&mut self) {
        if self.written.is_full() {
            self.written.start_again();
        }
    }

    /// Writes a record that stands for itself.
    pub fn record(&mut self, record: &Record<'_>) {
        self.outlet.push(record);
    }

    /// Writes a note for the user.
    pub fn note(&mut self, text: &str) {
        self.record(&Record::Note {
            text: Cow::Borrowed(text),
        });
    }

    /// Writes the number of lost samples.
    pub fn lost(&mut self, reason: Cow<'_, str>, count: u64) {
        if count > 0 {
            self.record(&Record::Lost { reason, count });
        }
    }

    /// Writes the number of broken stacks since the last call, by reason.
    pub fn write_broken(&mut self) {
        for (code, count) in (0u8..=255).zip(self.broken.iter_mut()) {
            if *count > 0
                && let Some(reason) = EndCode(code).reason()
            {
                self.outlet.push(&Record::Broken {
                    reason: Cow::Borrowed(reason),
                    count: std::mem::take(count),
                });
            }
        }
    }

    /// Sends the written records.
    pub fn flush(&mut self) {
        self.outlet.flush();
    }

    /// Returns the tool's command.
    pub fn command(&mut self) -> Command {
        self.outlet.command()
    }

    /// Returns the tool's descriptor for `poll`, or -1, which `poll` skips, if the tool has exited.
    pub fn fd(&self) -> i32 {
        self.outlet.fd()
    }

    /// Bytes held.
    pub fn memory(&self) -> u64 {
        self.tables_memory() + self.outlet.memory()
    }
}

#[cfg(test)]
pub(crate) mod decoded;

/// Numbers of the stacks of a sample that is written later.
#[derive(Clone, Copy, Debug)]
pub struct Resolved {
    /// The physical one.
    pub stack: u32,
    /// The logical stack, of the awaiting methods, if known.
    pub logical: Option<u32>,
    /// End of the walk.
    pub end: EndCode,
}

fn end_of(program: &Program, sample: &WalkedStack<'_>) -> EndCode {
    if sample.end.is_unknown_code() && is_native(program, sample) {
        return EndCode::NOT_READ_YET;
    }
    sample.end
}

/// Whether the frame at which a walk ended is a library's, as far as is known now.
fn is_native(program: &Program, sample: &WalkedStack<'_>) -> bool {
    let (frames, _) = chain::split(sample.frames);
    let region = frames.last().and_then(|word| {
        let address = word & stackwalk::ADDRESS;
        program.code.map().lookup(address)
    });
    region.is_some_and(|region| region.kind == stackwalk::CodeKind::Native)
}

#[cfg(test)]
mod tests;
