//! Categories of frames: the Firefox Profiler colours by them.

use profile::Profile;
use profile::model::{Frame, FrameKind, Tier};
use profile::ops::Runtimes;
use serde::Serialize;

use super::is_marker;
use crate::labels::{kind_name, tier_name};
use crate::visible::visible;

/// Indices of a category and of its subcategory. Both have `Other` at 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct CategoryPair {
    pub(super) category: u16,
    pub(super) subcategory: u16,
}

/// A category, as in the file.
#[derive(Serialize)]
pub(super) struct Category {
    name: String,
    color: &'static str,
    subcategories: Vec<&'static str>,
}

/// One category for each kind of frame; tiers are subcategories of managed code. Where frames of
/// several CLRs occur, managed code and stubs of each are a category of their own.
pub(super) struct Categories {
    pub(super) list: Vec<Category>,
    runtimes: Runtimes,
    kinds: Vec<(FrameKind, u16)>,
    /// By the CLR that frames are told apart by; `None` is code of no CLR, or of the only one.
    managed: Vec<(Option<u32>, u16)>,
    stubs: Vec<(u32, u16)>,
    /// Of markers.
    pub(super) events: u16,
}

/// Colours of managed code by CLR, the first where there is one.
const MANAGED: [&str; 4] = ["green", "yellow", "lightgreen", "brown"];

impl Categories {
    pub(super) fn new(profile: &Profile) -> Self {
        let mut categories = Self {
            list: Vec::new(),
            runtimes: Runtimes::new(profile),
            kinds: Vec::new(),
            managed: Vec::new(),
            stubs: Vec::new(),
            events: 0,
        };
        categories.add("Other", "grey");
        let all = categories.add_managed(kind_name(FrameKind::Managed), MANAGED[0]);
        categories.managed.push((None, all));
        if categories.runtimes.several {
            let labels = categories.runtimes.labels.clone();
            for (at, label) in (0..).zip(&labels) {
                let name = |kind| format!("{} [{}]", kind_name(kind), visible(label));
                let color = MANAGED[at as usize % MANAGED.len()];
                let managed = categories.add_managed(&name(FrameKind::Managed), color);
                categories.managed.push((Some(at), managed));
                let stub = categories.add(&name(FrameKind::Stub), "purple");
                categories.stubs.push((at, stub));
            }
        }
        let has_async = profile.frames.iter().any(|f| f.kind == FrameKind::Async);
        let kinds = [
            (FrameKind::Runtime, "blue"),
            (FrameKind::Native, "orange"),
            (FrameKind::Stub, "purple"),
            (FrameKind::Pseudo, "red"),
            (FrameKind::Unknown, "grey"),
            (FrameKind::Detail, "magenta"),
            (FrameKind::Async, "lightblue"),
        ];
        for (kind, color) in kinds {
            // Nothing is about anything in most profiles, and nothing awaits in many.
            let is_used = match kind {
                FrameKind::Detail => !profile.details.is_empty(),
                FrameKind::Async => has_async,
                _ => true,
            };
            if is_used {
                let category = categories.add(kind_name(kind), color);
                categories.kinds.push((kind, category));
            }
        }
        let has_markers = !profile.pauses.is_empty()
            || profile.samples.iter().any(|sample| is_marker(sample.event));
        if has_markers {
            categories.events = categories.add("events", "magenta");
        }
        categories
    }

    fn add(&mut self, name: &str, color: &'static str) -> u16 {
        self.list.push(Category {
            name: name.to_owned(),
            color,
            subcategories: vec!["Other"],
        });
        (self.list.len() - 1) as u16
    }

    /// Adds a category whose subcategories are the known tiers.
    fn add_managed(&mut self, name: &str, color: &'static str) -> u16 {
        let category = self.add(name, color);
        let tiers = known_tiers().map(tier_name);
        self.list[usize::from(category)].subcategories.extend(tiers);
        category
    }

    pub(super) fn of(&self, frame: &Frame) -> CategoryPair {
        let runtime = self.runtimes.label_index(frame);
        let (category, subcategory) = match frame.kind {
            FrameKind::Managed => {
                let of_runtime = self.managed.iter().find(|(of, _)| *of == runtime);
                let tier = known_tiers().position(|tier| tier == frame.tier);
                (of_runtime.map(|(_, category)| *category), tier)
            }
            FrameKind::Stub if runtime.is_some() => {
                let of_runtime = self.stubs.iter().find(|(of, _)| Some(*of) == runtime);
                (of_runtime.map(|(_, category)| *category), None)
            }
            kind => {
                let of_kind = self.kinds.iter().find(|(of, _)| *of == kind);
                (of_kind.map(|(_, category)| *category), None)
            }
        };
        category.map_or_else(CategoryPair::default, |category| CategoryPair {
            category,
            subcategory: subcategory.map_or(0, |at| at as u16 + 1),
        })
    }
}

/// The tiers that are subcategories, in their order.
fn known_tiers() -> impl Iterator<Item = Tier> {
    Tier::ALL.into_iter().filter(|tier| *tier != Tier::Unknown)
}
