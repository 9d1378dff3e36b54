//! Collapsed stacks: one line a stack, root first, frames split by `;`, then a space and a count.
//!
//! What flame graph tools read. Lines are sorted, and no two have the same stack. The counts add
//! up to the samples (or the value) of the event. A name cannot end its frame or its line, and
//! cannot pass for a count: `;` becomes `:`, white space becomes one space, and `_` before what
//! looks like a number at the end of a frame.

use std::collections::BTreeMap;
use std::io::{self, Write};

use profile::Profile;
use profile::model::{Frame, FrameId, FrameKind, StackId, ThreadId, Tier};
use profile::ops::Weight;

use crate::labels::Labels;
use crate::options::Options;
use crate::select::Selection;
use crate::visible::visible;

/// Writes one event of `profile` ([`Options::event`]) as collapsed stacks.
///
/// Options: `weight` (default: samples for CPU time, else the value), `annotate`, `threads`,
/// `processes`. With `annotate`, a frame ends in what flame graph tools colour by: `_[j]`
/// optimized managed code, `_[0]` managed code that is not optimized, `_[r]` ReadyToRun, `_[i]`
/// inlined.
///
/// # Errors
/// Those of `out`.
pub fn write(profile: &Profile, options: &Options, mut out: impl Write) -> io::Result<()> {
    let labels = Labels::new(profile);
    let selection = Selection::new(profile, options, true);
    let names: Vec<String> = (0..profile.frames.len() as u32)
        .map(|id| frame_text(&labels, profile, FrameId(id), options.annotate))
        .collect();

    // Stacks of one thread (or of all) first, so that a line's text is made once.
    let mut own: BTreeMap<(Option<u32>, u32), u64> = BTreeMap::new();
    for sample in selection.samples(profile) {
        let split = options.threads || options.processes;
        let thread = split.then_some(sample.thread.0);
        let weight = own.entry((thread, sample.stack.0)).or_default();
        *weight = weight.saturating_add(selection.weigh(Weight::of(sample.value)));
    }

    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for ((thread, stack), weight) in own {
        if weight == 0 {
            continue;
        }
        let frames: Vec<&str> = profile
            .frames_of(StackId(stack))
            .map(|f| names[f.0 as usize].as_str())
            .collect();
        let mut line = String::new();
        if let Some(thread) = thread.map(ThreadId) {
            if options.processes {
                let process = profile.threads[thread.0 as usize].process;
                line.push_str(&safe(&labels.process(process)));
                line.push(';');
            }
            if options.threads {
                let thread = &profile.threads[thread.0 as usize];
                let name = format!("{} (tid {})", visible(&thread.name), thread.tid);
                line.push_str(&safe(&name));
                line.push(';');
            }
        }
        for (nth, frame) in frames.iter().rev().enumerate() {
            if nth > 0 {
                line.push(';');
            }
            line.push_str(frame);
        }
        let sum = lines.entry(line).or_default();
        *sum = sum.saturating_add(weight);
    }
    for (line, weight) in lines {
        writeln!(out, "{line} {weight}")?;
    }
    out.flush()
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
