//! Stack depths, and cutting of stacks to a maximum depth.
//!
//! A recording stores a stack as a frame and the stack of its caller. So a chain of a hundred
//! thousand frames with a sample on each is small, but has five thousand million frames in a format
//! that writes each stack out. Invariant: [`cut`] makes no more nodes than its documented limit.

use std::collections::HashSet;

use crate::builder::Builder;
use crate::model::{Frame, FrameKind, Profile, Stack, StackId};

/// Maximum number of nodes that [`cut`] creates: half a gigabyte.
const MAX_NODES: u64 = 1 << 25;

/// Name of the root frame of a stack that was cut, by [`cut`] or when it was sampled.
const TRUNCATED: &str = "[truncated]";

/// Returns the number of frames of each stack.
#[must_use]
pub fn depths(profile: &Profile) -> Vec<u32> {
    let mut depths: Vec<u32> = Vec::with_capacity(profile.stacks.len());
    for stack in &profile.stacks {
        let above = stack.parent.map_or(0, |parent| depths[parent.0 as usize]);
        depths.push(above.saturating_add(1));
    }
    depths
}

/// Returns the number of frames of all stacks with samples, counting a stack once for each of its
/// threads.
#[must_use]
pub fn expanded_frames(profile: &Profile) -> u64 {
    let depths = depths(profile);
    let mut seen = HashSet::new();
    let mut sum = 0_u64;
    for sample in &profile.samples {
        if seen.insert((sample.thread, sample.stack)) {
            sum = sum.saturating_add(u64::from(depths[sample.stack.0 as usize]));
        }
    }
    sum
}

/// Returns the profile with at most `depth` frames of each stack, those next to the leaf. Deeper
/// stacks get the root `[truncated]`. Samples and `health` (of the recording) are unchanged.
///
/// # Errors
/// The result would exceed the maximum number of nodes.
pub fn cut(mut profile: Profile, depth: u32) -> Result<Profile, String> {
    let depth = depth.max(1);
    let depths = depths(&profile);
    if depths.iter().all(|&deep| deep <= depth) {
        return Ok(profile);
    }
    let old = std::mem::take(&mut profile.stacks);
    let samples = std::mem::take(&mut profile.samples);
    let mut builder = Builder::from_profile(profile);
    let name = builder.string(TRUNCATED);
    let truncated = builder.frame(Frame::new(name, FrameKind::Pseudo));
    // Parents precede children, and the parents of a stack within the limit are within it.
    let mut new: Vec<Option<StackId>> = Vec::with_capacity(old.len());
    for (stack, &deep) in old.iter().zip(&depths) {
        let parent = stack.parent.and_then(|parent| new[parent.0 as usize]);
        new.push((deep <= depth).then(|| builder.stack(parent, stack.frame)));
    }
    let mut made = 0_u64;
    let mut frames = Vec::with_capacity(depth as usize);
    let mut shortened = |builder: &mut Builder, stack: StackId| -> Result<StackId, String> {
        if let Some(known) = new[stack.0 as usize] {
            return Ok(known);
        }
        made = made.saturating_add(u64::from(depth));
        if made > MAX_NODES {
            return Err(format!(
                "stacks cut to {depth} frames are still too many to hold: cut them shorter"
            ));
        }
        frames.clear();
        let mut next = Some(stack);
        while let Some(Stack { parent, frame }) = next.map(|id| old[id.0 as usize])
            && frames.len() < depth as usize
        {
            frames.push(frame);
            next = parent;
        }
        let root = builder.stack(None, truncated);
        let cut = frames
            .iter()
            .rev()
            .fold(root, |parent, &frame| builder.stack(Some(parent), frame));
        new[stack.0 as usize] = Some(cut);
        Ok(cut)
    };
    let mut samples = samples;
    for sample in &mut samples {
        sample.stack = shortened(&mut builder, sample.stack)?;
        if let Some(logical) = sample.logical {
            sample.logical = Some(shortened(&mut builder, logical)?);
        }
    }
    builder.profile.samples = samples;
    Ok(builder.finish())
}
