//! The call tree, root first. Callees under half a percent are left out, and said so.

use std::io::{self, Write};

use profile::Profile;

use super::report::Report;
use crate::forest::{Children, Count, Merged, NONE, own};
use crate::health::percent;
use crate::labels::{Keys, Labels};

/// A method in the tree.
pub(super) struct Node {
    /// Parent, [`NONE`] at a root. Parents before children.
    pub(super) parent: u32,
    pub(super) key: u32,
    pub(super) own: Count,
    pub(super) total: Count,
}

/// Stacks merged by method.
pub(super) struct Tree {
    pub(super) keys: Keys,
    pub(super) nodes: Vec<Node>,
    children: Children,
}

impl Tree {
    pub(super) fn new(profile: &Profile, labels: &Labels<'_>, report: &Report) -> Self {
        let keys = labels.methods();
        let own = own(profile, &report.selection);
        let merged = Merged::new(profile, |at| own[at].samples > 0, &keys.of_frame);
        let mut nodes: Vec<Node> = merged
            .own(&own)
            .into_iter()
            .zip(&merged.nodes)
            .map(|(own, &(parent, key))| Node {
                parent,
                key,
                own,
                total: own,
            })
            .collect();
        for at in (0..nodes.len()).rev() {
            if nodes[at].parent != NONE {
                let (parent, total) = (nodes[at].parent, nodes[at].total);
                nodes[parent as usize].total += total;
            }
        }
        let children = merged.children();
        Self {
            keys,
            nodes,
            children,
        }
    }
}

/// A line to be written.
struct Line {
    node: u32,
    indent: usize,
}

pub(super) fn write(profile: &Profile, report: &Report, out: &mut impl Write) -> io::Result<()> {
    let labels = Labels::new(profile);
    let tree = Tree::new(profile, &labels, report);
    let whole = report.selection.total();
    let seen = |node: &u32| {
        let total = tree.nodes[*node as usize].total.weight;
        total > 0 && total as f64 >= whole as f64 * 0.005
    };
    let sorted = |nodes: &[u32]| -> Vec<u32> {
        let mut nodes: Vec<u32> = nodes.iter().copied().filter(seen).collect();
        // Least first: the last one is written next.
        nodes.sort_by_key(|&n| (tree.nodes[n as usize].total.weight, std::cmp::Reverse(n)));
        nodes
    };
    writeln!(out, "total %  self %  call tree (callees from 0.5 %)")?;
    let mut open: Vec<Line> = sorted(tree.children.roots())
        .into_iter()
        .map(|node| Line { node, indent: 0 })
        .collect();
    while let Some(Line { node, indent }) = open.pop() {
        // Recursion in a straight line is one line.
        let mut times = 1_u64;
        let mut last = node;
        let mut below = sorted(tree.children.of(last));
        while let [only] = below[..]
            && tree.nodes[only as usize].key == tree.nodes[last as usize].key
            && tree.nodes[last as usize].own.weight == 0
        {
            last = only;
            times += 1;
            below = sorted(tree.children.of(last));
        }
        let row = &tree.nodes[last as usize];
        let name = labels.name(labels.frame(tree.keys.first[row.key as usize]));
        writeln!(
            out,
            "{:>7}  {:>6}  {:indent$}{name}{}",
            percent(row.total.weight, whole).trim_end_matches(" %"),
            percent(row.own.weight, whole).trim_end_matches(" %"),
            "",
            if times > 1 {
                format!("  × {times}")
            } else {
                String::new()
            },
        )?;
        // A callee that is the only one stays under its caller; else deep stacks leave the page.
        let indent = indent + if below.len() > 1 { 2 } else { 0 };
        open.extend(below.into_iter().map(|node| Line { node, indent }));
    }
    Ok(())
}
