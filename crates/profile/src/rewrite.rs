//! Replacement of frames in all stacks, by a symbolizer's or by none.
//!
//! The caller chooses the frames. Invariants: no sample is dropped; a stack that would become empty
//! gets one pseudo frame.

use std::collections::HashMap;

use crate::builder::Builder;
use crate::model::{Frame, FrameId, FrameKind, Profile, StackId};

/// The replacement of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Replacement {
    /// These frames, innermost first, so the last one is the function and those before it are
    /// inlined into it. Names and files must be strings of the profile ([`Builder::string`]).
    Frames(Vec<Frame>),
    /// Nothing.
    Remove,
}

/// Returns the profile with some frames replaced in every stack.
///
/// Equal stacks are merged, unused frames are removed, and ids change. A stack without frames
/// becomes `[native]`.
#[must_use]
pub fn replace_frames(profile: Profile, replacements: &HashMap<FrameId, Replacement>) -> Profile {
    let mut profile = profile;
    let old_stacks = std::mem::take(&mut profile.stacks);
    let old_frames = std::mem::take(&mut profile.frames);
    let mut builder = Builder::from_profile(profile);
    let mut new_stacks: Vec<Option<StackId>> = Vec::with_capacity(old_stacks.len());
    for stack in &old_stacks {
        let parent = stack
            .parent
            .and_then(|parent| new_stacks[parent.0 as usize]);
        let new = match replacements.get(&stack.frame) {
            None => {
                let frame = builder.frame(old_frames[stack.frame.0 as usize].clone());
                Some(builder.stack(parent, frame))
            }
            Some(Replacement::Remove) => parent,
            Some(Replacement::Frames(frames)) => {
                frames.iter().rev().fold(parent, |parent, frame| {
                    let frame = builder.frame(frame.clone());
                    Some(builder.stack(parent, frame))
                })
            }
        };
        new_stacks.push(new);
    }
    let mut samples = std::mem::take(&mut builder.profile.samples);
    let mut moved = |stack: StackId| match new_stacks[stack.0 as usize] {
        Some(stack) => stack,
        None => {
            let name = builder.string("[native]");
            let frame = builder.frame(Frame::new(name, FrameKind::Pseudo));
            builder.stack(None, frame)
        }
    };
    for sample in &mut samples {
        sample.stack = moved(sample.stack);
        sample.logical = sample.logical.map(&mut moved);
    }
    builder.profile.samples = samples;
    builder.finish()
}
