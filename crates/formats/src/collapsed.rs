//! Collapsed stacks: one line a stack, root first, frames split by `;`, then a space and a count.
//!
//! The input of flame graph tools. Lines are in the order of their frames, and no two have the same
//! stack. The counts add up to the samples (or the value) of the event. A name cannot end its frame
//! or its line, and cannot pass for a count: `;` becomes `:`, white space becomes one space, and
//! `_` before what looks like a number at the end of a frame.

use std::collections::BTreeMap;
use std::io::{self, Write};

use profile::Profile;
use profile::model::{Frame, FrameId, FrameKind, ThreadId, Tier};
use profile::ops::Weight;

use crate::check_size;
use crate::forest::{MergedStacks, NONE};
use crate::labels::{FrameKeys, Labels};
use crate::options::OutputOptions;
use crate::select::{Selection, with_details_shown};
use crate::visible::visible;

/// Writes one event of `profile` ([`OutputOptions::event`]) as collapsed stacks.
///
/// The subject of the event is the leaf of each stack, unless `details` is off.
///
/// Options: `weight` (default: samples for CPU time, else the value), `annotate`, `threads`,
/// `processes`. With `annotate`, a frame ends in what flame graph tools colour by: `_[j]`
/// optimized managed code, `_[0]` managed code that is not optimized, `_[r]` ReadyToRun, `_[i]`
/// inlined.
///
/// # Errors
/// Those of `out`, and `FileTooLarge` before anything is written.
pub fn write(profile: &Profile, options: &OutputOptions, mut out: impl Write) -> io::Result<()> {
    let profile = &*with_details_shown(profile, options);
    check_size(profile::ops::expanded_frames(profile))?;
    let labels = Labels::new(profile);
    let selection = Selection::new(profile, options, true);
    let text = |id| frame_text(&labels, profile, id, options.annotate);
    let keys = FrameKeys::new(profile, text);
    let names: Vec<String> = keys.first.iter().map(|&id| text(id)).collect();
    let merged = MergedStacks::new(profile, &keys.of_frame);

    // Writes the lines in order without storing them: they may be many times the size of the
    // profile.
    let mut children = merged.children();
    children.sort_by_key(|node| names[merged.nodes[node as usize].1 as usize].as_str());
    let mut in_order = Vec::with_capacity(merged.nodes.len());
    let mut place = vec![0_u32; merged.nodes.len()];
    children.preorder(|node| {
        place[node as usize] = in_order.len() as u32;
        in_order.push(node);
    });

    let prefixes: Vec<String> = (0..profile.threads.len() as u32)
        .map(|t| prefix(&labels, profile, ThreadId(t), options))
        .collect();
    let mut lines: BTreeMap<(&str, u32), u64> = BTreeMap::new();
    for sample in selection.samples(profile) {
        let node = merged.of_stack[sample.stack.0 as usize];
        let at = (
            prefixes[sample.thread.0 as usize].as_str(),
            place[node as usize],
        );
        let sum = lines.entry(at).or_default();
        *sum = sum.saturating_add(selection.weigh(Weight::of(sample.value)));
    }

    let mut path: Vec<&str> = Vec::new();
    for ((prefix, place), weight) in lines.into_iter().filter(|(_, weight)| *weight > 0) {
        path.clear();
        let mut node = in_order[place as usize];
        while node != NONE {
            let (parent, key) = merged.nodes[node as usize];
            path.push(&names[key as usize]);
            node = parent;
        }
        out.write_all(prefix.as_bytes())?;
        for (nth, frame) in path.iter().rev().enumerate() {
            out.write_all(if nth > 0 { b";" } else { b"" })?;
            out.write_all(frame.as_bytes())?;
        }
        writeln!(out, " {weight}")?;
    }
    out.flush()
}

/// The frames before the first one: process and thread, where they are asked for.
fn prefix(labels: &Labels<'_>, profile: &Profile, id: ThreadId, options: &OutputOptions) -> String {
    let thread = profile.thread(id);
    let mut prefix = String::new();
    if options.processes {
        prefix.push_str(&safe(&labels.process(thread.process)));
        prefix.push(';');
    }
    if options.threads {
        prefix.push_str(&safe(&format!(
            "{} (tid {})",
            visible(&thread.name),
            thread.tid
        )));
        prefix.push(';');
    }
    prefix
}

fn frame_text(labels: &Labels<'_>, profile: &Profile, id: FrameId, annotate: bool) -> String {
    let mut text = safe(labels.name(id));
    if annotate {
        text.push_str(annotation(profile.frame(id)));
    }
    text
}

fn annotation(frame: &Frame) -> &'static str {
    match (frame.kind, frame.tier) {
        _ if frame.inlined => "_[i]",
        (FrameKind::Managed, Tier::Tier0 | Tier::Tier0Instrumented | Tier::MinOpts) => "_[0]",
        (FrameKind::Managed, Tier::ReadyToRun) => "_[r]",
        (FrameKind::Managed, _) => "_[j]",
        _ => "",
    }
}

/// A name that cannot be read as anything but (part of) one frame.
fn safe(name: &str) -> String {
    let mut words = name.split_whitespace();
    let mut text = words.next().unwrap_or("[no name]").to_owned();
    let mut last = words.next();
    while let Some(word) = last {
        last = words.next();
        let count = last.is_none() && word.chars().all(|c| c.is_numeric() || c == '.');
        text.push(if count { '_' } else { ' ' });
        text.push_str(word);
    }
    text.replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::safe;

    #[test]
    fn names_cannot_end_frames_lines_or_pass_for_counts() {
        for (name, text) in [
            ("a;b", "a:b"),
            ("  a \t b\n", "a b"),
            ("Worker 12", "Worker_12"),
            ("Worker 12.5", "Worker_12.5"),
            ("12", "12"),
            ("operator new(unsigned long)", "operator new(unsigned long)"),
            (" ", "[no name]"),
        ] {
            assert_eq!(safe(name), text);
        }
    }
}
