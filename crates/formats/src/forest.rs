//! Adding up samples along stacks.
//!
//! Linear in stacks whatever their depth, and never recursive: a stack may be thousands deep.

use std::collections::HashMap;
use std::ops::AddAssign;

use profile::Profile;
use profile::model::StackId;

use crate::select::Selection;

/// No parent.
pub(crate) const NONE: u32 = u32::MAX;

/// How much.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Count {
    pub(crate) samples: u64,
    /// In the selection's unit.
    pub(crate) weight: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.samples = self.samples.saturating_add(other.samples);
        self.weight = self.weight.saturating_add(other.weight);
    }
}

/// By stack: the samples whose leaf it is.
pub(crate) fn own(profile: &Profile, selection: &Selection) -> Vec<Count> {
    let mut own = vec![Count::default(); profile.stacks.len()];
    for sample in selection.samples(profile) {
        own[sample.stack.0 as usize] += Count {
            samples: 1,
            weight: selection.weigh(sample),
        };
    }
    own
}

/// By stack: its own and those of all stacks that it is a caller of.
pub(crate) fn with_callees(profile: &Profile, own: &[Count]) -> Vec<Count> {
    let mut totals = own.to_vec();
    for at in (0..totals.len()).rev() {
        if let Some(StackId(parent)) = profile.stacks[at].parent {
            let child = totals[at];
            totals[parent as usize] += child;
        }
    }
    totals
}

/// Self and total of one row of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SelfTotal {
    pub(crate) own: Count,
    pub(crate) total: Count,
}

/// Self and total of each key. `key` maps frames to `0..keys`, or to nothing: then what is the
/// frame's own counts for the nearest caller that has a key. A recursive key counts once a stack.
/// The second result is what belongs to no key at all.
pub(crate) fn tally(
    profile: &Profile,
    own: &[Count],
    key: &[Option<u32>],
    keys: usize,
) -> (Vec<SelfTotal>, Count) {
    let stacks = &profile.stacks;
    let mut rows = vec![SelfTotal::default(); keys];
    let mut nobody = Count::default();
    let mut nearest: Vec<Option<u32>> = Vec::with_capacity(stacks.len());
    for (at, stack) in stacks.iter().enumerate() {
        let near = key[stack.frame.0 as usize]
            .or_else(|| stack.parent.and_then(|p| nearest[p.0 as usize]));
        match near {
            Some(k) => rows[k as usize].own += own[at],
            None => nobody += own[at],
        }
        nearest.push(near);
    }

    let totals = with_callees(profile, own);
    let children = Children::new(stacks.len(), |at| stacks[at].parent.map(|p| p.0));
    // How often each key is on the path from the root to here.
    let mut open = vec![0_u32; keys];
    children.walk(|at, enter| {
        let Some(k) = key[stacks[at].frame.0 as usize] else {
            return;
        };
        let k = k as usize;
        if enter {
            if open[k] == 0 {
                rows[k].total += totals[at];
            }
            open[k] += 1;
        } else {
            open[k] -= 1;
        }
    });
    (rows, nobody)
}

/// The children of each node of a forest.
pub(crate) struct Children {
    /// By node, and one more at the end: where its children begin in `list`.
    start: Vec<u32>,
    list: Vec<u32>,
    roots: Vec<u32>,
}

impl Children {
    /// `parent` of nodes `0..nodes`; any parent is smaller than its child.
    pub(crate) fn new(nodes: usize, parent: impl Fn(usize) -> Option<u32>) -> Self {
        let mut start = vec![0_u32; nodes + 1];
        let mut roots = Vec::new();
        for at in 0..nodes {
            match parent(at) {
                Some(p) => start[p as usize + 1] += 1,
                None => roots.push(at as u32),
            }
        }
        for at in 0..nodes {
            start[at + 1] += start[at];
        }
        let mut next = start.clone();
        let mut list = vec![0_u32; nodes - roots.len()];
        for at in 0..nodes {
            if let Some(p) = parent(at) {
                list[next[p as usize] as usize] = at as u32;
                next[p as usize] += 1;
            }
        }
        Self { start, list, roots }
    }

    pub(crate) fn of(&self, node: u32) -> &[u32] {
        &self.list[self.start[node as usize] as usize..self.start[node as usize + 1] as usize]
    }

    pub(crate) fn roots(&self) -> &[u32] {
        &self.roots
    }

    /// Visits every node in preorder: `visit(node, true)` before its children, `(node, false)`
    /// behind them.
    pub(crate) fn walk(&self, mut visit: impl FnMut(usize, bool)) {
        let mut open: Vec<(u32, bool)> = self.roots.iter().rev().map(|&r| (r, true)).collect();
        while let Some((node, enter)) = open.pop() {
            visit(node as usize, enter);
            if enter {
                open.push((node, false));
                open.extend(self.of(node).iter().rev().map(|&c| (c, true)));
            }
        }
    }
}

/// Stacks in which frames of one key are the same frame.
pub(crate) struct Merged {
    /// By node: parent ([`NONE`] at a root) and key; parents before children.
    pub(crate) nodes: Vec<(u32, u32)>,
    /// By stack: its node; [`NONE`] for a stack that no sample needs.
    pub(crate) of_stack: Vec<u32>,
}

impl Merged {
    /// Merges what the stacks in `needed` (and their callers) are made of.
    pub(crate) fn new(profile: &Profile, needed: impl Fn(usize) -> bool, key: &[u32]) -> Self {
        let stacks = &profile.stacks;
        let mut used: Vec<bool> = (0..stacks.len()).map(needed).collect();
        for at in (0..stacks.len()).rev() {
            if let (true, Some(parent)) = (used[at], stacks[at].parent) {
                used[parent.0 as usize] = true;
            }
        }
        let mut nodes = Vec::new();
        let mut known: HashMap<(u32, u32), u32> = HashMap::new();
        let mut of_stack = vec![NONE; stacks.len()];
        for (at, stack) in stacks.iter().enumerate().filter(|(at, _)| used[*at]) {
            let parent = stack.parent.map_or(NONE, |p| of_stack[p.0 as usize]);
            let node = (parent, key[stack.frame.0 as usize]);
            of_stack[at] = *known.entry(node).or_insert_with(|| {
                nodes.push(node);
                (nodes.len() - 1) as u32
            });
        }
        Self { nodes, of_stack }
    }

    /// What is each stack's own, added up by node.
    pub(crate) fn own(&self, own: &[Count]) -> Vec<Count> {
        let mut sums = vec![Count::default(); self.nodes.len()];
        for (at, count) in own.iter().enumerate() {
            if let Some(sum) = sums.get_mut(self.of_stack[at] as usize) {
                *sum += *count;
            }
        }
        sums
    }

    pub(crate) fn children(&self) -> Children {
        Children::new(self.nodes.len(), |at| {
            Some(self.nodes[at].0).filter(|&p| p != NONE)
        })
    }
}
