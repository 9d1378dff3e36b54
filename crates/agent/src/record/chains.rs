//! Chains (the awaiting methods behind a resumed one) in the recording, as a logical stack.
//!
//! Input: the method tables and states that the handler stores behind a sample's frames
//! (`model::chain`). Output: a second stack, in which the named methods replace the dispatcher's
//! frames. Classes that are discovered here are entered into the handler's tables. Agent thread
//! only. The chain itself is read in `program::chains`.
//!
//! Invariants: a chain is written only if its first link is the method of the frame that it is
//! attached to and no younger frame was resumed. Every incomplete chain is counted by its reason,
//! and its logical stack ends in a mark with that reason. Memory is bounded by the classes that
//! occur in chains, and by the limits of `written`.

use std::borrow::Cow;
use std::collections::HashMap;

use recording::{Event, Frame, MethodKind, Record, WalkEnd};
use stackwalk::{CodeKind, EXACT, lookup_address};

use super::Recorder;
use super::resolve::Lookup;
use super::roles::Roles;
use crate::clr::Runtimes;
use crate::clr::async_types::{self, ClassNote};
use crate::model::WalkedStack;
use crate::model::chain::{self, Chain, ChainBegin, ChainEnd, Link, NO_STATE, Role};
use crate::program::code::Owner;
use crate::program::{Program, chains};

/// Reasons for a missing chain that the agent thread determines.
const NOT_KNOWN: &str = "method not known yet";
const MISTAKEN: &str = "not its method";
const BETWEEN: &str = "between two methods";

/// A number that no thread of the process has.
const NO_THREAD: u32 = u32::MAX;

/// Maximum number of classes whose names are kept.
const MAX_NOTES: usize = 16 * 1024;
/// Maximum number of frames between the one that runs a task and the dispatcher.
const MAX_TO_DISPATCHER: usize = 3;

/// The known facts about chains. They are valid for the process; the counters are per session.
#[derive(Debug, Default)]
pub(super) struct Chains {
    /// Whether the session records chains.
    wanted: bool,
    /// The names of objects of a class, by runtime and method table.
    notes: HashMap<(u8, u64), ClassNote>,
    /// Number of incomplete chains since the counters were last written, by [`ChainEnd`].
    cut: [u64; ChainEnd::ALL.len()],
    /// Number of chains whose youngest resumed method the handler did not know (`not_known`), or
    /// whose object names another method (`mistaken`).
    not_known: u64,
    mistaken: u64,
    /// Number of samples in the runtime's own code, just before or after it resumed a method.
    between: u64,
    /// Whether a class or a precompiled method was learned since [`Recorder::take_learned`].
    pub(super) has_learned: bool,
}

impl Recorder {
    /// Begins a session. `wanted`: whether it records chains.
    pub fn begin_chains(&mut self, wanted: bool) {
        self.chains.wanted = wanted;
        self.chains.cut.fill(0);
        self.chains.not_known = 0;
        self.chains.mistaken = 0;
        self.chains.between = 0;
    }

    /// Enters the async methods among the code that existed before the session into the handler's
    /// tables, if the session records chains. Call after that code is in the history and before the
    /// first sample: a sample in unknown code has no chain, and no mark.
    pub fn learn_async_bodies(&mut self, program: &Program, runtimes: &mut Runtimes<'_>) {
        let Some(tables) = chains::tables_if_wanted() else {
            return;
        };
        for body in program.code.permanent_bodies(|_| true) {
            runtimes.with(body.runtime, |clr, cx| clr.learn_body(cx, tables, &body));
        }
        for body in self.history.live() {
            runtimes.with(body.runtime, |clr, cx| {
                clr.learn_earlier_body(cx, tables, body)
            });
        }
    }

    /// Whether samples have taught the handler a class or a precompiled method of chains since the
    /// last call.
    pub fn take_learned(&mut self) -> bool {
        std::mem::take(&mut self.chains.has_learned)
    }

    /// Drops the entries of a runtime that has ended.
    pub(super) fn forget_chains_of(&mut self, runtime: u8) {
        if let Some(tables) = chains::tables() {
            tables.bodies.forget(runtime);
        }
        self.chains.notes.retain(|(of, _), _| *of != runtime);
    }

    /// Stores a CLR's note of a class.
    #[cfg(test)]
    pub(super) fn note_class(&mut self, runtime: u8, table: u64, note: ClassNote) {
        self.chains.notes.insert((runtime, table), note);
    }

    /// Writes the number of incomplete chains since the last call, by reason.
    pub fn write_cut_chains(&mut self) {
        for (end, count) in ChainEnd::ALL.iter().zip(self.chains.cut.iter_mut()) {
            if *count > 0 {
                self.outlet.push(&Record::AsyncCut {
                    reason: Cow::Borrowed(end.name()),
                    count: std::mem::take(count),
                });
            }
        }
        for (reason, count) in [
            (NOT_KNOWN, &mut self.chains.not_known),
            (MISTAKEN, &mut self.chains.mistaken),
            (BETWEEN, &mut self.chains.between),
        ] {
            if *count > 0 {
                self.outlet.push(&Record::AsyncCut {
                    reason: Cow::Borrowed(reason),
                    count: std::mem::take(count),
                });
            }
        }
    }

    /// Returns the logical stack of a sample that should have a chain and has none: a `MoveNext`
    /// was resumed, or a task was taken from a queue, in code that the handler did not know yet.
    /// The stack ends where the callers are missing.
    pub(super) fn cut_if_resumed(
        &mut self,
        look: &mut Lookup<'_, '_>,
        words: &[u64],
        sample: &WalkedStack<'_>,
    ) -> Option<u32> {
        if !self.chains.wanted {
            return None;
        }
        let mut is_body = false;
        let mut between = None;
        for (word, next) in words.iter().zip(1..) {
            let (frame, _) = self.address(look, *word, sample.time_ns);
            let roles = self.written.roles_of(frame);
            let is_resumer = roles.has(Roles::RESUMER);
            if roles.has(Roles::OWN_RESUMER) && between.is_none() {
                between = Some(next);
            }
            let older = words.get(next..).filter(|_| roles.has(Roles::RUNNER));
            let is_run = older.is_some_and(|older| self.is_dispatched(look, older, sample.time_ns));
            let younger = words
                .get(..next - 1)
                .filter(|_| roles.has(Roles::CONTINUER));
            let continued = younger
                .and_then(|younger| self.without_resume_stubs(look, younger, sample.time_ns));
            let end = match is_run {
                true => Some(next),
                false => (is_body && is_resumer).then_some(next - 1),
            };
            let run = end.and_then(|end| words.get(..end));
            let run = run.map(|frames| self.without_task_s_own(look, frames, sample.time_ns));
            if let Some(frames) = continued.or(run) {
                self.chains.not_known += 1;
                return self.cut_at(look, frames, NOT_KNOWN, sample.time_ns);
            }
            is_body = !is_resumer && self.written.frame_tokens.contains_key(&frame);
        }
        let frames = words.get(..between?)?;
        self.chains.between += 1;
        self.cut_at(look, frames, BETWEEN, sample.time_ns)
    }

    /// Returns the logical stack of these frames, whose callers are missing for this reason.
    fn cut_at(
        &mut self,
        look: &mut Lookup<'_, '_>,
        frames: &[u64],
        reason: &str,
        time_ns: u64,
    ) -> Option<u32> {
        let text = Cow::Owned(format!("async: {reason}"));
        let mut stack = Some(self.push_frame(None, Frame::AsyncMark { text }));
        for word in frames.iter().rev() {
            let (frame, _) = self.address(look, *word, time_ns);
            stack = Some(self.stack_of(stack, frame));
        }
        stack
    }

    /// Returns the number of the logical stack of a sample with these frames and this chain.
    pub(super) fn logical(
        &mut self,
        look: &mut Lookup<'_, '_>,
        words: &[u64],
        chain: Chain<'_>,
        sample: &WalkedStack<'_>,
    ) -> Option<u32> {
        let callers = words.len().checked_sub(chain.older)?;
        let (frames, older) = words.split_at_checked(callers)?;
        let mut frames = frames;
        let mut is_own = false;
        match chain.begin {
            ChainBegin::Method => {}
            ChainBegin::MethodIfResumed => {
                let (behind, _) = self.address(look, *older.first()?, sample.time_ns);
                if !self.written.roles_of(behind).has(Roles::RESUMER) {
                    return None;
                }
            }
            ChainBegin::Task if !self.is_dispatched(look, older, sample.time_ns) => {
                // A younger method may still have been resumed, by code that the handler did not
                // know.
                return self.cut_if_resumed(look, words, sample);
            }
            ChainBegin::Task => {}
            ChainBegin::Dispatcher => {
                // If it has resumed no method, its own work is done for the awaiting methods.
                let with_it = words.get(..callers + 1)?;
                let resumed = self.without_resume_stubs(look, frames, sample.time_ns);
                frames = resumed.unwrap_or(with_it);
            }
            ChainBegin::Resumer => {
                let with_it = words.get(..callers + 1)?;
                let called = self.without(look, (frames, Roles::RESUMER), sample.time_ns);
                let runtime = self.runtime_of(look, *with_it.last()?, sample.time_ns)?;
                let first = Link::unpack(*chain.links.first()?);
                let said = self.link_frame(look, runtime, first, sample.time_ns);
                let called_last = called
                    .last()
                    .map(|word| self.address(look, *word, sample.time_ns).0);
                is_own =
                    !called_last.is_some_and(|frame| self.is_same_method(frame, said.as_ref()));
                frames = if is_own { with_it } else { called };
            }
        }
        let resumed = *frames.last()?;
        let runtime = self.runtime_of(look, resumed, sample.time_ns);
        let end = match runtime {
            Some(runtime) => self.end_by_now(look, runtime, chain, sample.time_ns),
            None => chain.end,
        };
        // Counted once, by the reason in its mark.
        if let Some(resumer) = self.younger_resumer(look, frames, sample.time_ns) {
            let called = frames.get(..resumer)?;
            let is_method = called.iter().any(|word| {
                let (frame, _) = self.address(look, *word, sample.time_ns);
                let roles = self.written.roles_of(frame);
                roles.has(Roles::MACHINE) || roles.has(Roles::RESUME_STUB)
            });
            if !is_method {
                self.chains.between += 1;
                return self.cut_at(look, frames.get(..=resumer)?, BETWEEN, sample.time_ns);
            }
            self.chains.not_known += 1;
            let without = self.without_resume_stubs(look, called, sample.time_ns);
            return self.cut_at(look, without.unwrap_or(called), NOT_KNOWN, sample.time_ns);
        }
        let Some(runtime) = runtime else {
            self.count_cut(end);
            return None;
        };
        let links: Vec<Link> = chain.links.iter().map(|word| Link::unpack(*word)).collect();
        let (first, rest) = match links.split_first() {
            Some((first, rest)) if chain.begin != ChainBegin::Dispatcher && !is_own => {
                (Some(*first), rest)
            }
            // It was resumed, and nothing else is known; or its task was about to resume it.
            _ => (None, &links[..]),
        };
        let of_task = chain.begin == ChainBegin::Task;
        if let Some(first) = first.filter(|_| !of_task) {
            let said = self.link_frame(look, runtime, first, sample.time_ns);
            let (frame, _) = self.address(look, resumed, sample.time_ns);
            if !self.is_same_method(frame, said.as_ref()) {
                let reason = match said {
                    Some(Frame::Async { .. }) => {
                        self.chains.mistaken += 1;
                        MISTAKEN
                    }
                    // No runtime could be queried, as something has been unloaded meanwhile.
                    _ if end.is_whole() => {
                        self.count_cut(ChainEnd::Unknown);
                        ChainEnd::Unknown.name()
                    }
                    _ => {
                        self.count_cut(end);
                        end.name()
                    }
                };
                return self.cut_at(look, frames, reason, sample.time_ns);
            }
        }
        self.count_cut(end);
        let mut stack = self.linked(look, runtime, (rest, end), sample.time_ns);
        if of_task {
            if let Some(text) = first.and_then(|first| {
                let next = rest.first().copied();
                self.run_as(look, runtime, first, next, sample.time_ns)
            }) {
                stack = Some(self.push_frame(stack, Frame::AsyncMark { text }));
            }
            frames = self.without_task_s_own(look, frames, sample.time_ns);
        }
        for word in frames.iter().rev() {
            let (frame, _) = self.address(look, *word, sample.time_ns);
            stack = Some(self.stack_of(stack, frame));
        }
        stack
    }

    /// Returns the number of the stack of these links, with the mark of how the oldest one ends.
    fn linked(
        &mut self,
        look: &mut Lookup<'_, '_>,
        runtime: u8,
        (links, end): (&[Link], ChainEnd),
        time_ns: u64,
    ) -> Option<u32> {
        let mark = match end {
            ChainEnd::Root if self.is_worker(look, runtime, links.last().copied(), time_ns) => {
                Some(Cow::Borrowed("Parallel.ForEachAsync"))
            }
            ChainEnd::Root | ChainEnd::Blocked => Some(Cow::Borrowed(end.name())),
            // The last link contains it.
            ChainEnd::Other => None,
            end => Some(Cow::Owned(format!("async: {}", end.name()))),
        };
        let mut stack = None;
        if let Some(text) = mark {
            stack = Some(self.push_frame(stack, Frame::AsyncMark { text }));
        }
        let links = match links.split_last() {
            // The mark says that a thread waits.
            Some((last, others)) if end == ChainEnd::Blocked && last.role == Role::Last => others,
            _ => links,
        };
        for link in links.iter().rev() {
            if link.role == Role::Suspended {
                let (frame, _) = self.address(look, link.table | EXACT, time_ns);
                if !self.written.roles_of(frame).has(Roles::OF_AWAIT) {
                    stack = Some(self.stack_of(stack, frame));
                }
            } else if let Some(frame) = self.link_frame(look, runtime, *link, time_ns) {
                stack = Some(self.push_frame(stack, frame));
            }
        }
        stack
    }

    /// Whether a link is a worker that is not awaited.
    fn is_worker(
        &mut self,
        look: &mut Lookup<'_, '_>,
        runtime: u8,
        link: Option<Link>,
        time_ns: u64,
    ) -> bool {
        let Some(link) = link else {
            return false;
        };
        if link.role == Role::Suspended {
            let (frame, _) = self.address(look, link.table | EXACT, time_ns);
            return self.written.roles_of(frame).has(Roles::WORKER);
        }
        let _named = self.link_frame(look, runtime, link, time_ns);
        let note = self.chains.notes.get(&(runtime, link.table));
        matches!(note, Some(ClassNote::Method(names)) if async_types::is_worker(names))
    }

    /// Writes a sample for the suspended methods that share this chain, read at `time_ns`.
    pub fn suspended(
        &mut self,
        program: &Program,
        runtimes: &mut Runtimes<'_>,
        (runtime, words): (u8, &[u64]),
        (time_ns, value): (u64, u64),
    ) {
        self.make_room();
        let look = &mut Lookup { program, runtimes };
        let (_, Some(chain)) = chain::split(words) else {
            return;
        };
        let links: Vec<Link> = chain.links.iter().map(|word| Link::unpack(*word)).collect();
        let mut end = self.end_by_now(look, runtime, chain, time_ns);
        if let (ChainEnd::Unknown, Some(last)) = (end, links.last())
            && last.role == Role::Last
        {
            // Looking up its name also enters its class.
            let _named = self.link_frame(look, runtime, *last, time_ns);
            if chains::prepare().types.get(last.table) == Some(chains::LinkKind::Other) {
                end = ChainEnd::Other;
            }
        }
        let Some(stack) = self.linked(look, runtime, (&links, end), time_ns) else {
            return;
        };
        self.outlet.push(&Record::Sample {
            thread: NO_THREAD,
            stack,
            time_ns,
            event: Event::Suspended,
            value,
            end: WalkEnd::Root,
            detail: None,
            logical: Some(stack),
        });
    }

    /// Writes the pseudo-thread of samples of suspended methods, which have no thread.
    pub fn no_thread(&mut self, time_ns: u64) {
        self.outlet.push(&Record::Thread {
            thread: NO_THREAD,
            tid: 0,
            name: Cow::Borrowed("suspended async methods"),
            managed: true,
            time_ns,
        });
    }

    /// Whether the task that the callee of these frames runs was taken from a queue.
    fn is_dispatched(&mut self, look: &mut Lookup<'_, '_>, older: &[u64], time_ns: u64) -> bool {
        older.iter().take(MAX_TO_DISPATCHER).any(|word| {
            let (frame, _) = self.address(look, *word, time_ns);
            self.written.roles_of(frame).has(Roles::DISPATCHER)
        })
    }

    /// Returns the label of a task that a thread runs, unless the next one already has it.
    fn run_as(
        &mut self,
        look: &mut Lookup<'_, '_>,
        runtime: u8,
        task: Link,
        next: Option<Link>,
        time_ns: u64,
    ) -> Option<Cow<'static, str>> {
        const RUN: &str = "Task.Run";
        if let Some(next) = next
            && let Some(Frame::AsyncMark { text }) = self.link_frame(look, runtime, next, time_ns)
            && text == RUN
        {
            return None;
        }
        let _named = self.link_frame(look, runtime, task, time_ns);
        match self.chains.notes.get(&(runtime, task.table))? {
            ClassNote::Class(name) if name.starts_with("System.Threading.Tasks.Continuation") => {
                Some(Cow::Borrowed("ContinueWith"))
            }
            ClassNote::Class(_) => Some(Cow::Borrowed(RUN)),
            ClassNote::Method(_) => None,
        }
    }

    /// Returns the frames without the oldest ones that have this role.
    fn without<'w>(
        &mut self,
        look: &mut Lookup<'_, '_>,
        (frames, role): (&'w [u64], Roles),
        time_ns: u64,
    ) -> &'w [u64] {
        let mut rest = frames;
        while let Some((last, younger)) = rest.split_last() {
            let (frame, _) = self.address(look, *last, time_ns);
            if !self.written.roles_of(frame).has(role) {
                break;
            }
            rest = younger;
        }
        rest
    }

    /// Returns the frames without the oldest ones that are a task's own, but at least one.
    fn without_task_s_own<'w>(
        &mut self,
        look: &mut Lookup<'_, '_>,
        frames: &'w [u64],
        time_ns: u64,
    ) -> &'w [u64] {
        let rest = self.without(look, (frames, Roles::OF_TASK), time_ns);
        frames.get(..rest.len().max(1)).unwrap_or_default()
    }

    /// Returns the frames without the oldest ones that are resume stubs. `None` if there is no such
    /// frame, or none that it resumes.
    fn without_resume_stubs<'w>(
        &mut self,
        look: &mut Lookup<'_, '_>,
        frames: &'w [u64],
        time_ns: u64,
    ) -> Option<&'w [u64]> {
        let rest = self.without(look, (frames, Roles::RESUME_STUB), time_ns);
        (rest.len() < frames.len() && !rest.is_empty()).then_some(rest)
    }

    /// Counts a chain with this end, unless it is complete.
    fn count_cut(&mut self, end: ChainEnd) {
        if !end.is_whole()
            && let Some(count) = self.chains.cut.get_mut(end as usize)
        {
            *count += 1;
        }
    }

    /// Returns how a chain ended, with what is known now about the class at which the handler
    /// stopped: a task that nothing awaits is the root, and so is the mark of a thread that waits.
    /// An exception is an async iterator's task: its state machine refers to what waits for the
    /// next value.
    fn end_by_now(
        &mut self,
        look: &mut Lookup<'_, '_>,
        runtime: u8,
        chain: Chain<'_>,
        time_ns: u64,
    ) -> ChainEnd {
        let last = chain.links.last().map(|word| Link::unpack(*word));
        let Some(last) = last.filter(|_| chain.end == ChainEnd::Unknown) else {
            return chain.end;
        };
        // Looking up its name also enters the class.
        let _named = self.link_frame(look, runtime, last, time_ns);
        match (last.role, chains::prepare().types.get(last.table)) {
            (Role::Task, Some(chains::LinkKind::Task(_) | chains::LinkKind::Box { .. }))
            | (Role::Task, Some(chains::LinkKind::Object { promise: 0, .. })) => ChainEnd::Root,
            (Role::Last, Some(chains::LinkKind::Blocked)) => ChainEnd::Blocked,
            _ => chain.end,
        }
    }

    /// Returns the index of the youngest frame, before the last one, of code that resumes async
    /// methods. If there is one, the last frame is not the youngest resumed one.
    fn younger_resumer(
        &mut self,
        look: &mut Lookup<'_, '_>,
        frames: &[u64],
        time_ns: u64,
    ) -> Option<usize> {
        let younger = frames.split_last().map_or(&[][..], |(_, younger)| younger);
        let mut is_stub = false;
        younger.iter().position(|word| {
            let (frame, _) = self.address(look, *word, time_ns);
            let roles = self.written.roles_of(frame);
            let is_it = roles.has(Roles::OWN_RESUMER) || is_stub && roles.has(Roles::CONTINUER);
            is_stub = roles.has(Roles::RESUME_STUB);
            is_it
        })
    }

    /// Returns the runtime whose code is at a word of a walk.
    fn runtime_of(&self, look: &Lookup<'_, '_>, word: u64, time_ns: u64) -> Option<u8> {
        let lookup = lookup_address(word);
        if let Some(body) = self.history.at(lookup, time_ns) {
            return Some(body.runtime);
        }
        let region = look.program.code.map().lookup(lookup)?;
        (region.kind != CodeKind::Native).then(|| Owner::of_word(region.user).runtime)
    }

    /// Returns the frame in the recording of a link that is an object, or `None` for one that is
    /// not worth showing. A suspended method has an address in its code in place of a class.
    pub(super) fn link_frame(
        &mut self,
        look: &mut Lookup<'_, '_>,
        runtime: u8,
        link: Link,
        time_ns: u64,
    ) -> Option<Frame<'static>> {
        if link.role == Role::Suspended {
            return None;
        }
        if link.role == Role::Others {
            let text = Cow::Owned(format!("+{} awaiters", link.state));
            return Some(Frame::AsyncMark { text });
        }
        let key = (runtime, link.table);
        let known = (u32::from(runtime), link.table);
        if let Some(method) = self.written.chain_methods.get(&known) {
            return Some(Frame::Async {
                method: *method,
                state: state_of(link),
            });
        }
        if !self.chains.notes.contains_key(&key) {
            let tables = chains::prepare();
            let is_new = tables.types.get(link.table).is_none();
            let note = look.runtimes.with(runtime, |clr, cx| {
                clr.learn_sampled_class(cx, &tables.types, link.table, time_ns)
            });
            let Some(note) = note.flatten() else {
                let text = Cow::Borrowed("async: class that may be unloaded");
                return Some(Frame::AsyncMark { text });
            };
            if self.chains.notes.len() >= MAX_NOTES {
                self.chains.notes.clear();
            }
            self.chains.notes.insert(key, note);
            self.chains.has_learned |= is_new;
        }
        match self.chains.notes.get(&key)?.clone() {
            ClassNote::Method(names) => {
                let method = self.method(runtime, MethodKind::Il, &names);
                self.written.chain_methods.insert(known, method);
                Some(Frame::Async {
                    method,
                    state: state_of(link),
                })
            }
            ClassNote::Class(name) => {
                let text = label(&name, link.role)?;
                Some(Frame::AsyncMark { text })
            }
        }
    }

    /// Whether a managed frame and an async one are of the same method.
    fn is_same_method(&self, frame: u32, said: Option<&Frame<'static>>) -> bool {
        let Some(Frame::Async { method, .. }) = said else {
            return false;
        };
        let tokens = &self.written.tokens;
        let here = self.written.frame_tokens.get(&frame);
        here.is_some() && here == tokens.get(method)
    }
}

fn state_of(link: Link) -> i32 {
    match link.state {
        NO_STATE => i32::MIN,
        state => state,
    }
}

/// Label of an object between two methods.
fn label(class: &str, role: Role) -> Option<Cow<'static, str>> {
    const PROMISES: [(&str, &str); 9] = [
        ("UnwrapPromise", "Task.Run"),
        ("WhenAllPromise", "WhenAll"),
        ("CompleteOnInvokePromise", "WhenAny"),
        ("WhenAnyPromise", "WhenAny"),
        ("CancellationPromise", "WaitAsync"),
        ("WhenEachState", "WhenEach"),
        ("DelayPromise", "Delay"),
        ("ContinueWithTaskContinuation", "ContinueWith"),
        ("StandardTaskContinuation", "ContinueWith"),
    ];
    let plain = class.split('[').next().unwrap_or(class);
    let own = plain.rsplit(['.', '+']).next().unwrap_or(plain);
    let own = own.split('`').next().unwrap_or(own);
    if let Some((_, text)) = PROMISES.iter().find(|(name, _)| own.ends_with(name)) {
        return Some(Cow::Borrowed(text));
    }
    match role {
        // The task of a `ContinueWith` has a frame already, a plain task has no information, and
        // runtime-async methods are links of their own.
        Role::Task
            if matches!(own, "Task" | "RuntimeAsyncTask") || own.starts_with("Continuation") =>
        {
            None
        }
        _ => Some(Cow::Owned(own.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_have_the_names_of_who_makes_them() {
        for (class, role, expected) in [
            (
                "System.Threading.Tasks.UnwrapPromise`1",
                Role::Task,
                Some("Task.Run"),
            ),
            (
                "System.Threading.Tasks.Task+WhenAllPromise",
                Role::Task,
                Some("WhenAll"),
            ),
            (
                "System.Threading.Tasks.Task+WhenAllPromise`1",
                Role::Task,
                Some("WhenAll"),
            ),
            (
                "System.Threading.Tasks.Task+TwoTaskWhenAnyPromise`1",
                Role::Task,
                Some("WhenAny"),
            ),
            ("System.Threading.Tasks.Task", Role::Task, None),
            ("System.Threading.Tasks.Task`1", Role::Task, None),
            (
                "System.Threading.Tasks.ContinueWithTaskContinuation",
                Role::Via,
                Some("ContinueWith"),
            ),
            (
                "Shop.Awaiter+<>c__DisplayClass1_0",
                Role::Last,
                Some("<>c__DisplayClass1_0"),
            ),
            ("Shop.Own`2[System.Int32,A.B]", Role::Last, Some("Own")),
        ] {
            assert_eq!(label(class, role).as_deref(), expected, "{class}");
        }
    }
}
