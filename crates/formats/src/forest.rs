//! Tree of the stacks that have samples, with equal-looking frames merged.
//!
//! Time is linear in the number of stacks. Nothing is recursive, because a stack may be thousands
//! of frames deep.

use std::collections::HashMap;

use profile::Profile;

/// No parent, or no node.
pub(crate) const NONE: u32 = u32::MAX;

/// The children of each node of a forest.
pub(crate) struct Children {
    /// By node: index of its first child in `list`, with one more entry at the end.
    start: Vec<u32>,
    list: Vec<u32>,
    roots: Vec<u32>,
}

impl Children {
    /// `parents`: parent by node, [`NONE`] for a root. A parent has a smaller index than its child.
    fn new(parents: &[(u32, u32)]) -> Self {
        let mut start = vec![0_u32; parents.len() + 1];
        let mut roots = Vec::new();
        for (at, &(parent, _)) in parents.iter().enumerate() {
            if parent == NONE {
                roots.push(at as u32);
            } else {
                start[parent as usize + 1] += 1;
            }
        }
        for at in 0..parents.len() {
            start[at + 1] += start[at];
        }
        let mut next = start.clone();
        let mut list = vec![0_u32; parents.len() - roots.len()];
        for (at, &(parent, _)) in parents.iter().enumerate().filter(|(_, (p, _))| *p != NONE) {
            list[next[parent as usize] as usize] = at as u32;
            next[parent as usize] += 1;
        }
        Self { start, list, roots }
    }

    /// Sorts the children of each node, and the roots, by `rank`.
    pub(crate) fn sort_by_key<K: Ord>(&mut self, mut rank: impl FnMut(u32) -> K) {
        self.roots.sort_by_key(|&node| rank(node));
        for range in self.start.windows(2) {
            self.list[range[0] as usize..range[1] as usize].sort_by_key(|&node| rank(node));
        }
    }

    /// Visits every node in preorder.
    pub(crate) fn preorder(&self, mut visit: impl FnMut(u32)) {
        let mut open: Vec<u32> = self.roots.iter().rev().copied().collect();
        while let Some(node) = open.pop() {
            visit(node);
            let range = self.start[node as usize] as usize..self.start[node as usize + 1] as usize;
            open.extend(self.list[range].iter().rev());
        }
    }
}

/// A forest of stacks in which frames with equal keys are the same frame.
pub(crate) struct MergedStacks {
    /// By node: parent ([`NONE`] at a root) and key; parents before children.
    pub(crate) nodes: Vec<(u32, u32)>,
    /// Node of each stack, or [`NONE`] for a stack without samples.
    pub(crate) of_stack: Vec<u32>,
}

impl MergedStacks {
    /// Merges what the sampled stacks and their callers are made of. `key` is by frame.
    pub(crate) fn new(profile: &Profile, key: &[u32]) -> Self {
        let stacks = &profile.stacks;
        let mut used = vec![false; stacks.len()];
        for sample in &profile.samples {
            for stack in std::iter::once(sample.stack).chain(sample.logical) {
                used[stack.0 as usize] = true;
            }
        }
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

    pub(crate) fn children(&self) -> Children {
        Children::new(&self.nodes)
    }
}
