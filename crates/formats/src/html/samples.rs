//! Encoding of samples for the page's script (`assets/decode.js` reads it): time, thread and stack.
//!
//! Varints. First the stacks that occur, the most frequent first, so that those have small numbers:
//! how many, then the node of each, and where samples have two stacks the other node of each. Then
//! each event: pairs of a thread's number plus one and its number of samples, ended by 0, and
//! columns over all of its samples, by thread and in a thread by time: steps of time (`tick`
//! nanoseconds each, from 0 in each thread), stacks, values (in units of `scale`; left out where
//! all are the same).
//!
//! The invariant: samples and values add up to those of the profile; only times are rounded, down.
//! Ten million samples are 13 MB of these bytes or so, and 8 MB when they are deflated, because a
//! column has few different numbers.

use std::collections::HashMap;

use profile::Profile;
use profile::model::{Event, Sample};
use profile::ops::{self, StackView};
use serde::Serialize;

use super::payload::varint;
use crate::select::{events, unit_name};

/// The facts about an event that the page needs before it reads its samples.
#[derive(Serialize)]
pub(super) struct EventHead {
    pub(super) name: &'static str,
    unit: &'static str,
    /// Values are multiples of this.
    scale: u64,
    /// The one value of all samples, in units of `scale`, where they are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    constant: Option<u64>,
    /// Threshold in the event's unit. Larger values are time in which a thread waited before the
    /// sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    lasts: Option<u64>,
}

/// Returns the resolution of times in nanoseconds. It is finer for fewer samples.
pub(super) fn tick(samples: usize, duration_ns: u64) -> u64 {
    let tick = match samples {
        ..0x1_0000 => 1_000,
        0x1_0000..0x10_0000 => 100_000,
        _ => 1_000_000,
    };
    // The page counts steps in 32 bits.
    let mut coarsest = tick;
    while duration_ns / coarsest >= 1 << 31 {
        coarsest *= 10;
    }
    coarsest
}

/// Appends all samples of `profile`. `of_stack` maps stacks to nodes.
pub(super) fn push(
    bytes: &mut Vec<u8>,
    profile: &Profile,
    of_stack: &[u32],
    views: [Option<StackView>; 2],
    (begin, tick): (u64, u64),
) -> Vec<EventHead> {
    let node = |sample: &Sample, stacks: StackView| {
        let logical = sample.logical.filter(|_| stacks == StackView::Logical);
        of_stack[logical.unwrap_or(sample.stack).0 as usize]
    };
    let pair = |sample: &Sample| views.map(|view| view.map_or(0, |stacks| node(sample, stacks)));
    let mut uses: HashMap<[u32; 2], u32> = HashMap::new();
    for sample in &profile.samples {
        *uses.entry(pair(sample)).or_default() += 1;
    }
    let mut stacks: Vec<([u32; 2], u32)> = uses.into_iter().collect();
    stacks.sort_unstable_by_key(|&(nodes, count)| (std::cmp::Reverse(count), nodes));
    varint(bytes, stacks.len() as u64);
    for (view, _) in views.iter().enumerate().filter(|(_, view)| view.is_some()) {
        for (nodes, _) in &stacks {
            varint(bytes, u64::from(nodes[view]));
        }
    }
    let ranks = stacks.iter().zip(0_u32..);
    let rank: HashMap<[u32; 2], u32> = ranks.map(|((nodes, _), at)| (*nodes, at)).collect();

    let at = |sample: &Sample| sample.time_ns.saturating_sub(begin) / tick;
    let of_event = |event: Event| {
        let taken = profile.samples.iter().filter(|s| s.event == event);
        let mut taken: Vec<&Sample> = taken.collect();
        taken.sort_by_key(|sample| (sample.thread, sample.time_ns));
        taken
    };
    events(profile)
        .into_iter()
        .map(|(event, _)| {
            let taken = of_event(event);
            for group in taken.chunk_by(|a, b| a.thread == b.thread) {
                varint(bytes, u64::from(group[0].thread.0) + 1);
                varint(bytes, group.len() as u64);
            }
            varint(bytes, 0);
            for group in taken.chunk_by(|a, b| a.thread == b.thread) {
                let mut before = 0;
                for sample in group {
                    varint(bytes, at(sample) - before);
                    before = at(sample);
                }
            }
            for sample in &taken {
                varint(bytes, u64::from(rank[&pair(sample)]));
            }
            let divide = |scale, sample: &&Sample| gcd(scale, sample.value);
            let scale = taken.iter().fold(0, divide).max(1);
            let first = taken.first().map_or(0, |sample| sample.value);
            let constant = taken.iter().all(|sample| sample.value == first);
            if !constant {
                for sample in &taken {
                    varint(bytes, sample.value / scale);
                }
            }
            EventHead {
                name: event.name(),
                unit: unit_name(event.unit()),
                scale,
                constant: constant.then_some(first / scale),
                lasts: ops::duration_threshold(profile, event),
            }
        })
        .collect()
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
