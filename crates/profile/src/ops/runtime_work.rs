//! Label frames for the runtime's work (`[JIT compiler]`, `[GC]`), without the runtime's symbols.
//!
//! libcoreclr and libclrjit are shipped without symbols, so most of their frames are addresses.
//! Three facts are certain all the same: code of the JIT's library compiles, and code of a
//! standalone GC's library collects; the runtime's own threads, which run no managed code, do what
//! their names say; and the recording has the intervals in which a program thread collects
//! (`import::collected`). A label frame is inserted above such code, on the root side. Other
//! runtime code keeps its address. Invariant: samples, values and existing frames do not change.

use crate::builder::Builder;
use crate::model::{Frame, FrameId, FrameKind, Location, Profile, Stack, StackId};

/// Name of the label frame above the garbage collector's code.
pub(crate) const GC_FRAME: &str = "[GC]";

/// A kind of runtime work with its own label frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RuntimeWork {
    Compiling,
    Collecting,
    Tiering,
}

impl RuntimeWork {
    const ALL: [RuntimeWork; 3] = [
        RuntimeWork::Compiling,
        RuntimeWork::Collecting,
        RuntimeWork::Tiering,
    ];

    fn name(self) -> &'static str {
        match self {
            RuntimeWork::Compiling => "[JIT compiler]",
            RuntimeWork::Collecting => GC_FRAME,
            RuntimeWork::Tiering => "[tiered compilation]",
        }
    }

    /// Returns the work of all code in a file.
    fn of_file(name: &str) -> Option<RuntimeWork> {
        match name {
            "libclrjit.so" => Some(RuntimeWork::Compiling),
            "libclrgc.so" | "libclrgcexp.so" => Some(RuntimeWork::Collecting),
            _ => None,
        }
    }

    /// Returns the work of a runtime thread. The kernel keeps 15 bytes of a thread's name.
    fn of_thread(name: &str) -> Option<RuntimeWork> {
        match name {
            // The last is .NET Core 3.1's ".NET Background GC".
            ".NET Server GC" | ".NET BGC" | ".NET Background" | ".NET Background GC" => {
                Some(RuntimeWork::Collecting)
            }
            ".NET Tiered Com" | ".NET Tiered Compilation Worker" => Some(RuntimeWork::Tiering),
            // From .NET 11 on.
            ".NET Tiered JIT" => Some(RuntimeWork::Tiering),
            _ => None,
        }
    }
}

/// Facts about a stack of the original profile.
#[derive(Clone, Copy, Default)]
struct StackFacts {
    /// Whether it has managed code.
    is_managed: bool,
    /// The work that its frames since the last managed one are known to do.
    work: Option<RuntimeWork>,
    /// Whether the stack has a label frame already.
    is_marked: bool,
    /// The runtime frame nearest to the root.
    runtime: Option<FrameId>,
}

/// Whether the frame says already what the code below it does.
fn is_mark(profile: &Profile, frame: &Frame) -> bool {
    frame.location == Location::None && profile.string(frame.name) == GC_FRAME
}

/// The profile with a frame above code of which it is known what it does for the runtime.
#[must_use]
pub fn with_runtime_work(mut profile: Profile) -> Profile {
    let of_frame: Vec<Option<RuntimeWork>> = profile
        .frames
        .iter()
        .map(|frame| {
            if frame.kind != FrameKind::Runtime {
                return None;
            }
            if is_mark(&profile, frame) {
                return Some(RuntimeWork::Collecting);
            }
            RuntimeWork::of_file(profile.module(frame.module?).file_name())
        })
        .collect();
    let of_thread: Vec<Option<RuntimeWork>> = profile
        .threads
        .iter()
        .map(|thread| RuntimeWork::of_thread(&thread.name))
        .collect();
    if of_frame.iter().chain(&of_thread).all(Option::is_none) {
        return profile;
    }
    let stacks = std::mem::take(&mut profile.stacks);
    let mut samples = std::mem::take(&mut profile.samples);
    let mut known: Vec<StackFacts> = Vec::with_capacity(stacks.len());
    for stack in &stacks {
        let mut now = stack
            .parent
            .map_or(StackFacts::default(), |at| known[at.0 as usize]);
        let frame = profile.frame(stack.frame);
        match frame.kind {
            FrameKind::Managed => (now.is_managed, now.work) = (true, None),
            FrameKind::Runtime if is_mark(&profile, frame) => now.is_marked = true,
            FrameKind::Runtime => now.runtime = now.runtime.or(Some(stack.frame)),
            _ => {}
        }
        now.work = of_frame[stack.frame.0 as usize].or(now.work);
        known.push(now);
    }

    let mut rewrite = Rewrite {
        builder: Builder::from_profile(profile),
        stacks,
        known,
        moved: Default::default(),
    };
    for sample in &mut samples {
        let of_thread = of_thread[sample.thread.0 as usize];
        for stack in std::iter::once(&mut sample.stack).chain(&mut sample.logical) {
            let known = rewrite.known[stack.0 as usize];
            // A thread with managed code in it may do anything, whatever its name.
            let is_runtimes = !known.is_managed && !known.is_marked && known.runtime.is_some();
            *stack = rewrite.moved(*stack, of_thread.filter(|_| is_runtimes));
        }
    }
    let mut builder = rewrite.builder;
    builder.profile.samples = samples;
    builder.finish()
}

struct Rewrite {
    builder: Builder,
    stacks: Vec<Stack>,
    known: Vec<StackFacts>,
    /// By what stands at the root (nothing, or a kind of work), then by old stack.
    moved: [Vec<Option<StackId>>; 1 + RuntimeWork::ALL.len()],
}

impl Rewrite {
    /// The stack that is now in place of `old`, with `root` at its root.
    fn moved(&mut self, old: StackId, root: Option<RuntimeWork>) -> StackId {
        let list = root.map_or(0, |work| 1 + work as usize);
        if self.moved[list].is_empty() {
            self.moved[list] = vec![None; self.stacks.len()];
        }
        // From the leaf up to where it has been done already; deep stacks want no recursion.
        let mut path = Vec::new();
        let mut at = Some(old);
        let mut parent = None;
        while let Some(id) = at {
            parent = self.moved[list][id.0 as usize];
            if parent.is_some() {
                break;
            }
            path.push(id);
            at = self.stacks[id.0 as usize].parent;
        }
        if let (None, Some(work)) = (parent, root) {
            let leaf = self.known[old.0 as usize];
            parent = Some(self.mark(None, work, leaf.runtime));
        }
        for id in path.into_iter().rev() {
            let stack = self.stacks[id.0 as usize];
            let before = stack.parent.and_then(|at| self.known[at.0 as usize].work);
            let now = self.known[id.0 as usize].work;
            let marks_itself = is_mark(
                &self.builder.profile,
                self.builder.profile.frame(stack.frame),
            );
            let new = now.filter(|now| before != Some(*now) && root != Some(*now));
            if let Some(work) = new.filter(|_| !marks_itself) {
                parent = Some(self.mark(parent, work, Some(stack.frame)));
            }
            let new = self.builder.stack(parent, stack.frame);
            self.moved[list][id.0 as usize] = Some(new);
            parent = Some(new);
        }
        // `old` was in the path, or found.
        parent.unwrap_or(old)
    }

    /// A frame that says what the code below it does; it is of the same file and runtime as `like`.
    fn mark(
        &mut self,
        parent: Option<StackId>,
        work: RuntimeWork,
        like: Option<FrameId>,
    ) -> StackId {
        let frame = mark(&mut self.builder, work.name(), like);
        self.builder.stack(parent, frame)
    }
}

/// The frame that says what code below it does; of the same file and runtime as `like`.
pub(crate) fn mark(builder: &mut Builder, name: &str, like: Option<FrameId>) -> FrameId {
    let like = like.map(|id| builder.profile.frame(id));
    let (module, runtime) = like.map_or((None, None), |like| (like.module, like.runtime));
    let name = builder.string(name);
    builder.frame(Frame {
        module,
        runtime,
        ..Frame::new(name, FrameKind::Runtime)
    })
}
