//! Grouping of frames into the rows of a report.
//!
//! Invariant: a frame is in exactly one group; groups are ordered by their first frame in the
//! profile.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::model::{DetailId, Frame, FrameId, FrameKind, ModuleId, Profile, RuntimeId, StringId};

/// Criterion by which a report groups frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum GroupBy {
    /// Frames of one method (or native function), whatever line, tier and address.
    #[default]
    Method,
    /// Frames of one line of one method.
    Line,
    /// Frames of one file of code.
    Module,
    /// Frames of one CLR version; native frames are one group.
    Runtime,
    /// Samples of one thread.
    Thread,
    /// Samples of one event.
    Event,
    /// Samples of one event with the same subject: a type of exception, of object…
    Detail,
    /// Samples of one process.
    Process,
    /// Samples of one recording, in a profile of several.
    Recording,
}

impl GroupBy {
    /// Every choice, in the order in which help texts name them.
    pub const ALL: [GroupBy; 9] = [
        GroupBy::Method,
        GroupBy::Line,
        GroupBy::Module,
        GroupBy::Thread,
        GroupBy::Runtime,
        GroupBy::Event,
        GroupBy::Detail,
        GroupBy::Process,
        GroupBy::Recording,
    ];

    /// Returns the choice's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            GroupBy::Method => "method",
            GroupBy::Line => "line",
            GroupBy::Module => "module",
            GroupBy::Runtime => "runtime",
            GroupBy::Thread => "thread",
            GroupBy::Event => "event",
            GroupBy::Detail => "detail",
            GroupBy::Process => "process",
            GroupBy::Recording => "recording",
        }
    }

    /// Returns the choice with this [`name`](GroupBy::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<GroupBy> {
        GroupBy::ALL.into_iter().find(|by| by.name() == name)
    }
}

/// One row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// The text to show: unique enough to read, not to look up by.
    pub label: String,
    /// Kind of its frames; `None` where the group is not of frames.
    pub kind: Option<FrameKind>,
    /// Its first frame, to look up file, line, module and runtime; `None` where the group is not
    /// of frames.
    pub frame: Option<FrameId>,
    /// Module of its frames, where that is one.
    pub module: Option<ModuleId>,
    /// Its first detail, where the group is of details; others have the same event and name.
    pub detail: Option<DetailId>,
}

/// All frames of a profile, grouped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Groups {
    /// The groups.
    pub groups: Vec<Group>,
    /// For each frame, the index of its group.
    pub of_frame: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum GroupKey {
    Method(MethodKey),
    Line(MethodKey, Option<StringId>, u32),
    Module(Option<ModuleId>, Option<FrameKind>, Option<u32>),
    Runtime(Option<u32>, Option<FrameKind>),
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct MethodKey {
    name: StringId,
    kind: FrameKind,
    module: Option<ModuleId>,
    runtime: Option<u32>,
}

impl Groups {
    /// Groups the frames. `by` a thing that is not of frames (thread, event, detail, process,
    /// recording) makes one group of all.
    #[must_use]
    pub fn new(profile: &Profile, by: GroupBy) -> Groups {
        let Runtimes {
            labels,
            of: version,
            several: tell_apart,
        } = Runtimes::new(profile);
        let folders = if tell_apart {
            folders(profile)
        } else {
            HashMap::new()
        };

        let mut groups = Groups {
            groups: Vec::new(),
            of_frame: Vec::new(),
        };
        let mut known: HashMap<GroupKey, u32> = HashMap::new();
        for (id, frame) in profile.frames.iter().enumerate() {
            let runtime = frame.runtime.map(|runtime| version[runtime.0 as usize]);
            let key = group_key(frame, by, runtime, tell_apart);
            let next = groups.groups.len() as u32;
            let group = *known.entry(key).or_insert(next);
            if group == next {
                let suffix = frame.runtime.filter(|_| tell_apart);
                let of = |runtime: RuntimeId| labels[version[runtime.0 as usize] as usize].as_str();
                let folder = || folders.get(&frame.module?).copied();
                let suffix = suffix.map(of).or_else(folder);
                groups.groups.push(Group {
                    label: label_of(profile, frame, key, suffix, frame.runtime.map(of)),
                    kind: kind_of(frame, key),
                    frame: Some(FrameId(id as u32)),
                    module: match key {
                        GroupKey::Runtime(..) | GroupKey::All => None,
                        _ => frame.module,
                    },
                    detail: None,
                });
            }
            groups.of_frame.push(group);
        }
        groups
    }

    /// The group of a frame.
    #[must_use]
    pub fn of(&self, frame: FrameId) -> u32 {
        self.of_frame[frame.0 as usize]
    }
}

/// The folder of each native file of whose name there are several, such as the `libcoreclr.so` of
/// each CLR: `8.0.4`.
fn folders(profile: &Profile) -> HashMap<ModuleId, &str> {
    let native = || {
        let modules = profile.modules.iter().enumerate();
        modules.filter(|(_, module)| !module.managed)
    };
    let mut paths: HashMap<&str, BTreeSet<&str>> = HashMap::new();
    for (_, module) in native() {
        paths
            .entry(module.file_name())
            .or_default()
            .insert(&module.path);
    }
    let several = native().filter(|(_, module)| paths[module.file_name()].len() > 1);
    let folder = several.filter_map(|(id, module)| {
        let folder = module
            .path
            .rsplit('/')
            .nth(1)
            .filter(|folder| !folder.is_empty());
        Some((ModuleId(id as u32), folder?))
    });
    folder.collect()
}

fn group_key(frame: &Frame, by: GroupBy, runtime: Option<u32>, tell_apart: bool) -> GroupKey {
    let method = MethodKey {
        name: frame.name,
        kind: frame.kind,
        module: frame.module,
        runtime,
    };
    // Frames without a module are told apart by their kind.
    let kind = Some(frame.kind);
    match by {
        GroupBy::Method => GroupKey::Method(method),
        GroupBy::Line => GroupKey::Line(method, frame.file, frame.line),
        GroupBy::Module => GroupKey::Module(
            frame.module,
            kind.filter(|_| frame.module.is_none()),
            // Two CLRs may run the same file.
            runtime.filter(|_| tell_apart),
        ),
        GroupBy::Runtime => match frame.kind {
            FrameKind::Native | FrameKind::Runtime => {
                GroupKey::Runtime(None, Some(FrameKind::Native))
            }
            _ => GroupKey::Runtime(runtime, kind.filter(|_| runtime.is_none())),
        },
        GroupBy::Thread
        | GroupBy::Event
        | GroupBy::Detail
        | GroupBy::Process
        | GroupBy::Recording => GroupKey::All,
    }
}

fn kind_of(frame: &Frame, key: GroupKey) -> Option<FrameKind> {
    match key {
        GroupKey::Runtime(Some(_), _) => Some(FrameKind::Managed),
        GroupKey::Runtime(None, kind) => kind,
        GroupKey::All => None,
        _ => Some(frame.kind),
    }
}

fn label_of(
    profile: &Profile,
    frame: &Frame,
    key: GroupKey,
    suffix: Option<&str>,
    runtime: Option<&str>,
) -> String {
    let without_code = || match frame.kind {
        FrameKind::Managed => "[dynamic code]",
        FrameKind::Stub => "[stubs]",
        FrameKind::Pseudo => "[not walked]",
        FrameKind::Unknown => "[unknown]",
        FrameKind::Detail => "[details]",
        FrameKind::Async => "[async]",
        FrameKind::Native | FrameKind::Runtime => "[native]",
    };
    let mut label = match key {
        GroupKey::Method(_) => profile.string(frame.name).to_owned(),
        GroupKey::Line(_, file, line) => {
            let mut label = profile.string(frame.name).to_owned();
            if let Some(file) = file {
                let file = profile.string(file);
                let file = file.rsplit(['/', '\\']).next().unwrap_or(file);
                label.push_str(&format!(" ({file}:{line})"));
            }
            label
        }
        GroupKey::Module(Some(module), ..) => profile.module(module).file_name().to_owned(),
        GroupKey::Module(None, ..) => without_code().to_owned(),
        GroupKey::Runtime(..) => {
            let runtime = runtime.map(|runtime| format!(".NET {runtime}"));
            return runtime.unwrap_or_else(|| without_code().to_owned());
        }
        GroupKey::All => return "all".to_owned(),
    };
    if let Some(suffix) = suffix {
        label.push_str(&format!(" [{suffix}]"));
    }
    label
}

/// The CLRs by which the frames of a profile are told apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runtimes {
    /// The names of CLRs, each name once, in order: those of one version in several processes are
    /// one.
    pub labels: Vec<String>,
    /// By [`RuntimeId`]: index into `labels`.
    pub of: Vec<u32>,
    /// Frames are of more than one of them: names say of which.
    pub several: bool,
}

impl Runtimes {
    /// Those of a profile.
    #[must_use]
    pub fn new(profile: &Profile) -> Runtimes {
        let each = runtime_labels(profile);
        let distinct: BTreeSet<&String> = each.iter().collect();
        let labels: Vec<String> = distinct.into_iter().cloned().collect();
        let index = |label| labels.binary_search(label).unwrap_or_default() as u32;
        let of: Vec<u32> = each.iter().map(index).collect();
        let frames = profile.frames.iter().filter_map(|frame| frame.runtime);
        let used: BTreeSet<u32> = frames.map(|runtime| of[runtime.0 as usize]).collect();
        let several = used.len() > 1;
        Runtimes {
            labels,
            of,
            several,
        }
    }

    /// The CLR that a frame's name tells it apart by: index into `labels`.
    #[must_use]
    pub fn label_index(&self, frame: &Frame) -> Option<u32> {
        let runtime = frame.runtime.filter(|_| self.several)?;
        Some(self.of[runtime.0 as usize])
    }
}

/// The name of each runtime of the profile: its version, with a number behind where one process has
/// several of the same version.
#[must_use]
pub fn runtime_labels(profile: &Profile) -> Vec<String> {
    let each = profile.runtimes.iter().enumerate().map(|(index, runtime)| {
        let before = &profile.runtimes[..index];
        let same = before
            .iter()
            .filter(|other| other.process == runtime.process && other.version == runtime.version);
        match same.count() {
            0 => runtime.version.clone(),
            count => format!("{} #{}", runtime.version, count + 1),
        }
    });
    each.collect()
}
