//! What things are called in every output, so that a frame has the same name in all of them.
//!
//! The invariants: a label is [`visible`]; two frames that differ only in line, tier or address
//! share a method key; frames of different CLRs never do.

use std::collections::HashMap;

use profile::Profile;
use profile::model::{Frame, FrameId, FrameKind, ProcessId, RuntimeId, ThreadId, Tier};

use crate::visible::visible;

/// Names of one profile's frames, threads, processes and runtimes.
pub(crate) struct Labels<'p> {
    profile: &'p Profile,
    /// By [`RuntimeId`]: its version, numbered where a process has two of the same.
    runtimes: Vec<String>,
    /// Frames of several CLRs occur, so names say whose they are.
    several_runtimes: bool,
}

impl<'p> Labels<'p> {
    pub(crate) fn new(profile: &'p Profile) -> Self {
        let runtimes: Vec<String> = profile
            .runtimes
            .iter()
            .enumerate()
            .map(|(at, runtime)| {
                let same = |r: &&profile::model::Runtime| {
                    r.process == runtime.process && r.version == runtime.version
                };
                let version = visible(&runtime.version);
                if profile.runtimes.iter().filter(same).count() > 1 {
                    let before = profile.runtimes[..at].iter().filter(same).count();
                    format!("{version} #{}", before + 1)
                } else {
                    version.into_owned()
                }
            })
            .collect();
        let mut used = profile
            .frames
            .iter()
            .filter_map(|f| runtimes.get(f.runtime?.0 as usize));
        let first = used.next();
        let several_runtimes = used.any(|label| Some(label) != first);
        Self {
            profile,
            runtimes,
            several_runtimes,
        }
    }

    pub(crate) fn frame(&self, id: FrameId) -> &'p Frame {
        &self.profile.frames[id.0 as usize]
    }

    /// The name of a frame, with the CLR behind it where there are several.
    pub(crate) fn name(&self, frame: &Frame) -> String {
        let name = visible(&self.profile.strings[frame.name.0 as usize]);
        match self.runtime_of(frame) {
            Some(runtime) if self.several_runtimes => format!("{name} (CLR {runtime})"),
            _ => name.into_owned(),
        }
    }

    /// The version of the CLR a frame belongs to.
    pub(crate) fn runtime_of(&self, frame: &Frame) -> Option<&str> {
        frame.runtime.and_then(|r| self.runtime(r))
    }

    pub(crate) fn runtime(&self, id: RuntimeId) -> Option<&str> {
        self.runtimes.get(id.0 as usize).map(String::as_str)
    }

    /// Full path of a frame's module, as recorded.
    pub(crate) fn module_path(&self, frame: &Frame) -> Option<&'p str> {
        frame
            .module
            .and_then(|m| self.profile.modules.get(m.0 as usize))
            .map(|m| m.path.as_str())
    }

    /// File name of a frame's module.
    pub(crate) fn module(&self, frame: &Frame) -> Option<String> {
        let path = self.module_path(frame)?;
        Some(
            visible(
                path.rsplit('/')
                    .next()
                    .filter(|n| !n.is_empty())
                    .unwrap_or(path),
            )
            .into_owned(),
        )
    }

    /// Source file of a frame, full path.
    pub(crate) fn file(&self, frame: &Frame) -> Option<String> {
        frame
            .file
            .map(|f| visible(&self.profile.strings[f.0 as usize]).into_owned())
    }

    /// `Program.cs:42` behind the name, or the name alone where no line is known.
    pub(crate) fn name_and_line(&self, frame: &Frame) -> String {
        let name = self.name(frame);
        match self.file(frame) {
            Some(path) => {
                let file = path.rsplit(['/', '\\']).next().unwrap_or(&path);
                if frame.line > 0 {
                    format!("{name}  {file}:{}", frame.line)
                } else {
                    format!("{name}  {file}")
                }
            }
            None if frame.line > 0 => format!("{name}  :{}", frame.line),
            None => name,
        }
    }

    /// `name (tid 12)`, with the process where there are several.
    pub(crate) fn thread(&self, id: ThreadId) -> String {
        let thread = &self.profile.threads[id.0 as usize];
        let mut text = format!("{} (tid {})", visible(&thread.name), thread.tid);
        if self.profile.processes.len() > 1 {
            text.push_str(" of ");
            text.push_str(&self.process(thread.process));
        }
        text
    }

    /// `program (pid 12)`.
    pub(crate) fn process(&self, id: ProcessId) -> String {
        let Some(process) = self.profile.processes.get(id.0 as usize) else {
            return "[no process]".to_owned();
        };
        format!("{} (pid {})", visible(&process.name()), process.pid)
    }

    /// The command line of the first process.
    pub(crate) fn command(&self) -> String {
        let words = self
            .profile
            .processes
            .first()
            .map_or(&[][..], |p| &p.command);
        if words.is_empty() {
            return "unknown command".to_owned();
        }
        words
            .iter()
            .map(|w| visible(w).into_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// By frame: the number of its method, numbers dense in order of frames, and by method one of
    /// its frames.
    pub(crate) fn methods(&self) -> Keys {
        Keys::new(self.profile, |f| {
            (f.name, f.kind, self.module_path(f), self.runtime_of(f))
        })
    }

    /// As [`methods`](Self::methods), but lines of a method are told apart.
    pub(crate) fn lines(&self) -> Keys {
        Keys::new(self.profile, |f| {
            (
                f.name,
                f.kind,
                self.module_path(f),
                self.runtime_of(f),
                f.file,
                f.line,
            )
        })
    }
}

/// A partition of a profile's frames.
pub(crate) struct Keys {
    /// By [`FrameId`].
    pub(crate) of_frame: Vec<u32>,
    /// By key: its first frame.
    pub(crate) first: Vec<FrameId>,
}

impl Keys {
    pub(crate) fn new<K: std::hash::Hash + Eq>(
        profile: &Profile,
        key: impl Fn(&Frame) -> K,
    ) -> Self {
        let mut numbers: HashMap<K, u32> = HashMap::new();
        let mut first = Vec::new();
        let of_frame = profile
            .frames
            .iter()
            .enumerate()
            .map(|(at, frame)| {
                *numbers.entry(key(frame)).or_insert_with(|| {
                    first.push(FrameId(at as u32));
                    (first.len() - 1) as u32
                })
            })
            .collect();
        Self { of_frame, first }
    }
}

/// The word for a kind of frame.
pub(crate) const fn kind_name(kind: FrameKind) -> &'static str {
    match kind {
        FrameKind::Managed => "managed",
        FrameKind::Runtime => "runtime",
        FrameKind::Native => "native",
        FrameKind::Stub => "stub",
        FrameKind::Pseudo => "pseudo",
        FrameKind::Unknown => "unknown",
    }
}

/// The word for a tier; empty where it is not known.
pub(crate) const fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Unknown => "",
        Tier::Tier0 => "tier-0",
        Tier::Tier0Instrumented => "tier-0 instrumented",
        Tier::Tier1Instrumented => "tier-1 instrumented",
        Tier::Tier1 => "tier-1",
        Tier::Osr => "OSR",
        Tier::ReadyToRun => "ReadyToRun",
        Tier::Optimized => "optimized",
        Tier::MinOpts => "minimal optimization",
    }
}
