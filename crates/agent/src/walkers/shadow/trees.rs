//! Writes the growth of the threads' call trees to the recording, as samples.
//!
//! Agent thread only. A tree's node becomes a stack of the recording when it is first read. From
//! then on only the increase of its counters is written, as one sample for the calls and one for
//! the time. A node's counters are written by its own thread and read here one by one. So the
//! values of a running thread may be from slightly different instants; after its end they are
//! exact.
//!
//! Invariant: each part of a counter is written once.

use std::borrow::Cow;
use std::sync::atomic::Ordering::{self, Relaxed};

use recording::{Event, Frame, MethodKind, Record, Tier, WalkEnd};

use crate::base::numbers::NumberMap;
use crate::base::proc;
use crate::clr::Runtimes;
use crate::hooks::ShadowStacks;
use crate::hooks::stack::{NO_METHOD, NO_ROOM, ROOT, ShadowStack, TRUNCATED};
use crate::program::Program;
use crate::record::Recorder;

/// The part of a node that has been written.
#[derive(Clone, Copy, Debug, Default)]
struct WrittenNode {
    /// Number of the stack in the recording; not used for the root.
    stack: u32,
    truncated: bool,
    calls: u64,
    ns: u64,
}

#[derive(Debug)]
struct Tree {
    shadow: &'static ShadowStack,
    thread: u32,
    nodes: Vec<WrittenNode>,
    ended: bool,
}

/// All trees.
pub(super) struct Trees {
    /// By serial number of the shadow stack.
    trees: NumberMap<u32, Tree>,
    namer: Namer,
}

/// Makes the recording's stacks of nodes.
struct Namer {
    stacks: &'static ShadowStacks,
    /// Frame numbers by method number.
    frames: NumberMap<u32, u32>,
}

/// The parts that the trees need to write.
pub(super) struct TreeWriter<'a, 'r> {
    pub(super) recorder: &'a mut Recorder,
    pub(super) program: &'a Program,
    pub(super) runtimes: &'a mut Runtimes<'r>,
}

/// A CPU tick, from the signal handler.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuMoment {
    pub(super) thread: u32,
    /// [`crate::hooks::own_word`] at the tick.
    pub(super) word: u64,
    pub(super) event: Event,
    pub(super) time_ns: u64,
    pub(super) value: u64,
}

impl Trees {
    pub(super) fn new(stacks: &'static ShadowStacks) -> Trees {
        Trees {
            trees: NumberMap::default(),
            namer: Namer {
                stacks,
                frames: NumberMap::default(),
            },
        }
    }

    /// Notes that a thread has ended. Its last samples are in the ring buffers.
    pub(super) fn thread_ended(&mut self, thread: u32) {
        self.add_new_threads();
        for tree in self.trees.values_mut() {
            tree.ended |= tree.thread == thread;
        }
    }

    /// Adds the trees of new threads.
    fn add_new_threads(&mut self) {
        for shadow in self.namer.stacks.take_begun() {
            self.trees.insert(
                shadow.serial.load(Ordering::Acquire),
                Tree {
                    shadow,
                    thread: shadow.thread.load(Relaxed),
                    nodes: Vec::new(),
                    ended: false,
                },
            );
        }
    }

    /// Writes a sample of the call that ran at a CPU tick.
    pub(super) fn sample(&mut self, writer: &mut TreeWriter<'_, '_>, moment: CpuMoment) {
        let (serial, node) = ((moment.word >> 32) as u32, moment.word as u32);
        if !self.trees.contains_key(&serial) {
            self.add_new_threads();
        }
        let tree = self.trees.get_mut(&serial);
        let seen = tree
            .filter(|tree| tree.thread == moment.thread && node != ROOT)
            .and_then(|tree| {
                self.namer.name_nodes(writer, tree);
                tree.nodes.get(node as usize).copied()
            });
        let (stack, end) = match seen {
            Some(seen) => (seen.stack, end_of(seen)),
            None => {
                let text = Cow::Borrowed("no managed method");
                let frame = writer.recorder.frame(Frame::Pseudo { text });
                let stack = writer.recorder.stack_of(None, frame);
                (stack, WalkEnd::Root)
            }
        };
        writer.recorder.record(&Record::Sample {
            thread: moment.thread,
            stack,
            time_ns: moment.time_ns,
            event: moment.event,
            value: moment.value,
            end,
            detail: None,
            logical: None,
        });
    }

    /// Writes the rest of the trees of ended threads, and releases the trees. All samples of these
    /// threads must have been passed to [`Trees::sample`].
    pub(super) fn drained(&mut self, writer: &mut TreeWriter<'_, '_>) {
        let namer = &mut self.namer;
        self.trees.retain(|_, tree| {
            if tree.ended {
                namer.write(writer, tree, true);
                namer.stacks.release(tree.shadow);
            }
            !tree.ended
        });
        namer.stacks.reclaim();
    }

    /// Writes the growth of the trees. `last`: this is the last write, so calls that have not
    /// returned get the time up to now.
    pub(super) fn flush(&mut self, writer: &mut TreeWriter<'_, '_>, last: bool) {
        self.namer.stacks.methods.begin_reading();
        self.add_new_threads();
        for tree in self.trees.values_mut() {
            self.namer.write(writer, tree, last);
        }
        for number in self.namer.stacks.methods.end_reading() {
            self.namer.frames.remove(&number);
        }
    }

    /// Takes the numbers of methods and threads for which there was no room since the last call.
    pub(super) fn lost(&mut self) -> [(&'static str, u64); 2] {
        let stacks = self.namer.stacks;
        [
            ("no shadow stack", stacks.take_calls_without_stack()),
            ("too many methods to hook", stacks.methods.take_refused()),
        ]
    }

    /// Returns the bytes held, including the threads' own memory.
    pub(super) fn memory(&self) -> u64 {
        let of_tree = |tree: &Tree| {
            tree.shadow.memory() + (tree.nodes.capacity() * size_of::<WrittenNode>()) as u64
        };
        let trees: u64 = self.trees.values().map(of_tree).sum();
        trees + self.namer.stacks.methods.memory() + (self.namer.frames.capacity() * 9) as u64
    }
}

impl Namer {
    /// Writes the stacks of new nodes.
    fn name_nodes(&mut self, writer: &mut TreeWriter<'_, '_>, tree: &mut Tree) {
        let ready = tree.shadow.nodes_ready();
        let known = u32::try_from(tree.nodes.len()).unwrap_or(u32::MAX);
        for number in known..ready {
            let Some(node) = tree.shadow.node(number) else {
                return;
            };
            let method = node.method.load(Relaxed);
            let parent = node.parent.load(Relaxed);
            let mut seen = WrittenNode::default();
            if method != NO_METHOD {
                let frame = self.frame(writer, method);
                let above = tree
                    .nodes
                    .get(parent as usize)
                    .filter(|_| parent != ROOT)
                    .map(|above| above.stack);
                seen.stack = writer.recorder.stack_of(above, frame);
                seen.truncated = method == TRUNCATED;
            }
            tree.nodes.push(seen);
        }
    }

    fn frame(&mut self, writer: &mut TreeWriter<'_, '_>, method: u32) -> u32 {
        if let Some(frame) = self.frames.get(&method) {
            return *frame;
        }
        let value = match method {
            TRUNCATED => Frame::Pseudo {
                text: Cow::Borrowed("truncated"),
            },
            NO_ROOM => Frame::Pseudo {
                text: Cow::Borrowed("call tree full"),
            },
            number => self.managed(writer, number),
        };
        let frame = writer.recorder.frame(value);
        self.frames.insert(method, frame);
        frame
    }

    fn managed(&self, writer: &mut TreeWriter<'_, '_>, number: u32) -> Frame<'static> {
        let Some(method) = self.stacks.methods.take(number) else {
            return unnamed(0);
        };
        let runtime = method.runtime;
        let known = match method.names {
            Some(names) => Some(writer.recorder.method(runtime, MethodKind::Il, &names)),
            None if method.unloadable => None,
            None => {
                let (program, runtimes) = (writer.program, &mut *writer.runtimes);
                writer
                    .recorder
                    .method_of(program, runtimes, runtime, method.function)
            }
        };
        match known {
            Some(method) => Frame::Managed {
                method,
                // Calls of all bodies of the method.
                tier: Tier::Unknown,
                il_offset: None,
            },
            None => unnamed(runtime),
        }
    }

    /// Writes the growth of a tree. `last`: includes the running call's time up to now.
    fn write(&mut self, writer: &mut TreeWriter<'_, '_>, tree: &mut Tree, last: bool) {
        self.name_nodes(writer, tree);
        let clock = &self.stacks.clock;
        let rate = clock.rate();
        let time_ns = proc::now_ns();
        let running = (last && self.stacks.timed).then(|| {
            let since = tree.shadow.charged();
            (tree.shadow.current(), clock.now().saturating_sub(since))
        });
        for (number, seen) in (0u32..).zip(&mut tree.nodes) {
            // Time outside every method belongs to no method.
            if number == ROOT {
                continue;
            }
            let Some(node) = tree.shadow.node(number) else {
                return;
            };
            let calls = node.calls.load(Relaxed);
            let extra = running.filter(|(node, _)| *node == number);
            let ticks = node.ticks.load(Relaxed) + extra.map_or(0, |(_, ticks)| ticks);
            let ns = rate.ns(ticks);
            for (event, now, before) in
                [(Event::Call, calls, seen.calls), (Event::Wall, ns, seen.ns)]
            {
                if now > before {
                    writer.recorder.record(&Record::Sample {
                        thread: tree.thread,
                        stack: seen.stack,
                        time_ns,
                        event,
                        value: now - before,
                        end: end_of(*seen),
                        detail: None,
                        logical: None,
                    });
                }
            }
            seen.calls = calls;
            seen.ns = seen.ns.max(ns);
        }
    }
}

impl Drop for Trees {
    /// Releases the trees at the end of the session. A thread's next hook in another session begins
    /// a new tree.
    fn drop(&mut self) {
        self.add_new_threads();
        for tree in self.trees.values() {
            self.namer.stacks.release(tree.shadow);
        }
    }
}

fn end_of(seen: WrittenNode) -> WalkEnd {
    if seen.truncated {
        WalkEnd::Truncated
    } else {
        WalkEnd::Root
    }
}

fn unnamed(runtime: u8) -> Frame<'static> {
    Frame::Stub {
        runtime,
        name: Cow::Borrowed("managed code without a name"),
    }
}
