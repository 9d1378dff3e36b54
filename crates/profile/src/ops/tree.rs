//! Merged call tree, which a flame graph draws.
//!
//! Invariants: node 0 is the root and represents all samples; a parent has the smaller index; a
//! node's total is its self weight plus its children's totals; siblings are ordered by weight, then
//! by label.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::Weight;
use super::group::{Group, GroupBy, Groups};
use crate::model::{Profile, Sample};

/// Direction of a call tree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Direction {
    /// From thread roots to leaves. The children of a node are its callees.
    #[default]
    Callees,
    /// From leaves to thread roots. The children of a node are its callers.
    Callers,
}

/// A node of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Index into [`Tree::groups`]; `None` for the root.
    pub group: Option<u32>,
    /// The parent node, `None` for the root.
    pub parent: Option<u32>,
    /// Samples that end here.
    pub own: Weight,
    /// Samples that end here or below.
    pub total: Weight,
}

/// A merged call tree.
///
/// ```
/// # use profile::ops::{Direction, GroupBy, Tree};
/// let profile = profile::testing::tiny().profile();
/// let tree = Tree::new(&profile, GroupBy::Method, Direction::Callees, |_| true);
/// assert_eq!(tree.root().total.samples, 100);
/// let heaviest = &tree.nodes[tree.children(0)[0] as usize];
/// assert_eq!(tree.label(heaviest), "start_thread");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    /// The groups of the nodes.
    pub groups: Vec<Group>,
    /// The nodes, root first.
    pub nodes: Vec<Node>,
    /// By node: where its children begin in `children`, with one more entry at the end.
    first_child: Vec<u32>,
    /// The children of each node, heaviest first.
    children: Vec<u32>,
}

impl Tree {
    /// Returns the tree of the samples selected by `include`. Select one event: sums over several
    /// have no meaning.
    ///
    /// When grouped by module or runtime, adjacent frames of one group become one node.
    #[must_use]
    pub fn new(
        profile: &Profile,
        by: GroupBy,
        direction: Direction,
        include: impl Fn(&Sample) -> bool,
    ) -> Tree {
        let Groups { groups, of_frame } = Groups::new(profile, by);
        let mut own = vec![Weight::default(); profile.stacks.len()];
        for sample in profile.samples.iter().filter(|sample| include(sample)) {
            own[sample.stack.0 as usize] += Weight::of(sample.value);
        }
        let mut growing = Growing {
            nodes: vec![Node::new(None, None)],
            known: HashMap::new(),
            merge_runs: matches!(by, GroupBy::Module | GroupBy::Runtime),
        };
        match direction {
            Direction::Callees => growing.callees(profile, &of_frame, &own),
            Direction::Callers => growing.callers(profile, &of_frame, &own),
        }
        Tree::summed(groups, growing.nodes)
    }

    /// The node that stands for all samples.
    #[must_use]
    pub fn root(&self) -> &Node {
        &self.nodes[0]
    }

    /// The children of a node, heaviest first.
    #[must_use]
    pub fn children(&self, node: u32) -> &[u32] {
        let range = &self.first_child[node as usize..node as usize + 2];
        &self.children[range[0] as usize..range[1] as usize]
    }

    /// The text to show for a node; `all` for the root.
    #[must_use]
    pub fn label(&self, node: &Node) -> &str {
        node.group
            .map_or("all", |group| self.groups[group as usize].label.as_str())
    }

    /// Goes through the tree depth first, in the order of siblings, without recursion.
    /// `visit(index, depth)` says whether to go below; the root has depth 0.
    pub fn walk(&self, mut visit: impl FnMut(u32, usize) -> bool) {
        let mut waiting = vec![(0u32, 0usize)];
        while let Some((index, depth)) = waiting.pop() {
            if visit(index, depth) {
                waiting.extend(
                    self.children(index)
                        .iter()
                        .rev()
                        .map(|&child| (child, depth + 1)),
                );
            }
        }
    }

    /// Adds totals and children to nodes that have their own weights.
    fn summed(groups: Vec<Group>, mut nodes: Vec<Node>) -> Tree {
        for index in (1..nodes.len()).rev() {
            let node = &mut nodes[index];
            let own = node.own;
            node.total += own;
            let (total, parent) = (node.total, node.parent.unwrap_or(0) as usize);
            nodes[parent].total += total;
        }
        let own = nodes[0].own;
        nodes[0].total += own;
        let ranks = ranks(&groups);
        let mut children: Vec<u32> = (1..nodes.len() as u32).collect();
        children.sort_unstable_by_key(|&index| {
            let node = &nodes[index as usize];
            let rank = node.group.map(|group| ranks[group as usize]);
            // Siblings are of different groups, so no two of them are equal.
            (node.parent, Reverse(node.total), rank)
        });
        let mut first_child = vec![0; nodes.len() + 1];
        for node in &nodes[1..] {
            first_child[node.parent.unwrap_or(0) as usize + 1] += 1;
        }
        for node in 0..nodes.len() {
            first_child[node + 1] += first_child[node];
        }
        Tree {
            groups,
            nodes,
            first_child,
            children,
        }
    }
}

/// For each group its place by label, then by index: the order of nodes of the same weight.
fn ranks(groups: &[Group]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..groups.len() as u32).collect();
    order.sort_by_key(|&group| groups[group as usize].label.as_str());
    let mut ranks = vec![0; groups.len()];
    for (rank, group) in (0..).zip(order) {
        ranks[group as usize] = rank;
    }
    ranks
}

impl Node {
    fn new(group: Option<u32>, parent: Option<u32>) -> Node {
        Node {
            group,
            parent,
            own: Weight::default(),
            total: Weight::default(),
        }
    }
}

struct Growing {
    nodes: Vec<Node>,
    known: HashMap<(u32, u32), u32>,
    merge_runs: bool,
}

impl Growing {
    fn child(&mut self, parent: u32, group: u32) -> u32 {
        if self.merge_runs && self.nodes[parent as usize].group == Some(group) {
            return parent;
        }
        let next = self.nodes.len() as u32;
        let node = *self.known.entry((parent, group)).or_insert(next);
        if node == next {
            self.nodes.push(Node::new(Some(group), Some(parent)));
        }
        node
    }

    fn callees(&mut self, profile: &Profile, of_frame: &[u32], own: &[Weight]) {
        // Parents come before children: backwards to see which stacks are used at all, forwards
        // to make their nodes.
        let mut used: Vec<bool> = own.iter().map(|weight| weight.samples > 0).collect();
        for (index, stack) in profile.stacks.iter().enumerate().rev() {
            if let (true, Some(parent)) = (used[index], stack.parent) {
                used[parent.0 as usize] = true;
            }
        }
        let mut node_of: Vec<u32> = vec![0; profile.stacks.len()];
        for (index, stack) in profile.stacks.iter().enumerate() {
            if used[index] {
                let parent = stack.parent.map_or(0, |parent| node_of[parent.0 as usize]);
                node_of[index] = self.child(parent, of_frame[stack.frame.0 as usize]);
                self.nodes[node_of[index] as usize].own += own[index];
            }
        }
    }

    fn callers(&mut self, profile: &Profile, of_frame: &[u32], own: &[Weight]) {
        for (index, weight) in own
            .iter()
            .enumerate()
            .filter(|(_, weight)| weight.samples > 0)
        {
            let mut node = 0;
            let mut next = Some(index);
            while let Some(stack) = next.map(|index| profile.stacks[index]) {
                node = self.child(node, of_frame[stack.frame.0 as usize]);
                next = stack.parent.map(|parent| parent.0 as usize);
            }
            self.nodes[node as usize].own += *weight;
        }
    }
}
