//! Labels of frames, modules and processes, the same in every output.
//!
//! Labels are the names of [`profile::ops`], made [`visible`]. Invariant: two frames that differ
//! only in line, tier or address have one label; frames of different CLRs have different ones.

use std::collections::HashMap;
use std::hash::Hash;

use profile::Profile;
use profile::model::{Frame, FrameId, FrameKind, Location, ModuleId, ProcessId, Tier};
use profile::ops::{GroupBy, Groups};

use crate::visible::visible;
use crate::wording::shortened;

/// Names of one profile's frames, modules and processes.
pub(crate) struct Labels<'p> {
    profile: &'p Profile,
    /// By group of [`GroupBy::Method`].
    names: Vec<String>,
    group_of_frame: Vec<u32>,
}

impl<'p> Labels<'p> {
    pub(crate) fn new(profile: &'p Profile) -> Self {
        let Groups { groups, of_frame } = Groups::new(profile, GroupBy::Method);
        let names = groups
            .iter()
            .map(|group| visible(&group.label).into_owned())
            .collect();
        Self {
            profile,
            names,
            group_of_frame: of_frame,
        }
    }

    /// Returns the name of a frame, with its CLR appended if there are several.
    pub(crate) fn name(&self, frame: FrameId) -> &str {
        &self.names[self.method(frame) as usize]
    }

    /// Returns the number of a frame's method.
    pub(crate) fn method(&self, frame: FrameId) -> u32 {
        self.group_of_frame[frame.0 as usize]
    }

    /// Returns the full path of a module.
    pub(crate) fn module_path(&self, module: ModuleId) -> String {
        visible(&self.profile.module(module).path).into_owned()
    }

    /// Returns the text of a frame that is an event's subject.
    pub(crate) fn text(&self, frame: &Frame) -> Option<String> {
        let Location::Detail(detail) = frame.location else {
            return None;
        };
        let text = self.profile.string(self.profile.detail(detail).text);
        (!text.is_empty()).then(|| visible(text).into_owned())
    }

    /// Returns the full path of a frame's source file.
    pub(crate) fn file(&self, frame: &Frame) -> Option<String> {
        frame
            .file
            .map(|f| visible(self.profile.string(f)).into_owned())
    }

    /// `program (pid 12)`.
    pub(crate) fn process(&self, id: ProcessId) -> String {
        let process = self.profile.process(id);
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
        command_line(words)
    }

    /// The title that was asked for, else the command line.
    pub(crate) fn title(&self, given_title: Option<&str>) -> String {
        given_title.map_or_else(|| self.command(), |title| visible(title).into_owned())
    }
}

/// Formats a command line as one line, cut at a length that people can read.
pub fn command_line(words: &[String]) -> String {
    const MAX_COMMAND_LINE: usize = 300;
    let words: Vec<_> = words.iter().map(|word| visible(word)).collect();
    shortened(&words.join(" "), MAX_COMMAND_LINE)
}

/// A partition of a profile's frames.
pub(crate) struct FrameKeys {
    /// By [`FrameId`].
    pub(crate) of_frame: Vec<u32>,
    /// By key: its first frame.
    pub(crate) first: Vec<FrameId>,
}

impl FrameKeys {
    pub(crate) fn new<K: Hash + Eq>(profile: &Profile, key: impl Fn(FrameId) -> K) -> Self {
        let mut numbers: HashMap<K, u32> = HashMap::new();
        let mut first = Vec::new();
        let of_frame = (0..profile.frames.len())
            .map(|at| {
                let frame = FrameId(at as u32);
                *numbers.entry(key(frame)).or_insert_with(|| {
                    first.push(frame);
                    (first.len() - 1) as u32
                })
            })
            .collect();
        Self { of_frame, first }
    }
}

/// Versions of the CLRs that were recorded, each once.
pub(crate) fn runtime_versions(profile: &Profile) -> Vec<String> {
    let recorded = profile.runtimes.iter().filter(|r| r.recorded);
    let mut versions: Vec<String> = recorded.map(|r| visible(&r.version).into_owned()).collect();
    versions.sort();
    versions.dedup();
    versions
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
        FrameKind::Detail => "detail",
        FrameKind::Async => "async",
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
