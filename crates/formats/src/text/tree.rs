//! The call tree, root first. Callees under half a percent are left out, and said so.

use std::io::{self, Write};

use profile::Profile;
use profile::ops::{self, By, Direction, Tree};

use super::report::Report;
use crate::visible::visible;
use crate::wording::percent;

/// A node that is to be written. An only callee stands right under its caller, at the same
/// place, or deep stacks would leave the page; several callees are branches.
struct Branch {
    node: u32,
    /// What is before its name.
    head: String,
    /// What is before the names of what it calls.
    below: String,
}

/// Methods of the report's event, merged; what the event is about above them, where rows are that.
pub(super) fn tree(profile: &Profile, report: &Report) -> Tree {
    let include = |sample: &_| report.selection.includes(sample);
    let tree = |profile| Tree::new(profile, By::Method, Direction::Callees, include);
    if report.by == By::Detail {
        tree(&ops::with_details(profile.clone()))
    } else {
        tree(profile)
    }
}

pub(super) fn write(profile: &Profile, report: &Report, out: &mut impl Write) -> io::Result<()> {
    let selection = report.selection;
    let tree = tree(profile, report);
    let whole = selection.total();
    let total = |node: u32| selection.weigh(tree.nodes[node as usize].total);
    let seen = |node: &u32| {
        let total = total(*node);
        total > 0 && total as f64 >= whole as f64 * 0.005
    };
    // Heaviest last: it is written next. Siblings come by value, and the weight may be samples.
    let below = |node: u32| -> Vec<u32> {
        let children = &tree.nodes[node as usize].children;
        let mut nodes: Vec<u32> = children.iter().rev().copied().filter(seen).collect();
        nodes.sort_by_key(|&node| total(node));
        nodes
    };
    writeln!(out, "total %  self %  call tree (callees from 0.5 %)")?;
    let branch = |callees: Vec<u32>, before: &str| -> Vec<Branch> {
        let several = callees.len() > 1;
        // The first of the list is written last.
        let head = |at: usize, node: u32| Branch {
            node,
            head: match (several, at) {
                (false, _) => before.to_owned(),
                (true, 0) => format!("{before}└ "),
                (true, _) => format!("{before}├ "),
            },
            below: match (several, at) {
                (false, _) => before.to_owned(),
                (true, 0) => format!("{before}  "),
                (true, _) => format!("{before}│ "),
            },
        };
        callees
            .into_iter()
            .enumerate()
            .map(|(at, node)| head(at, node))
            .collect()
    };
    let mut open = branch(below(0), "");
    while let Some(Branch {
        node,
        head,
        below: before,
    }) = open.pop()
    {
        // Recursion in a straight line is one line.
        let mut times = 1_u64;
        let mut last = node;
        let mut callees = below(last);
        while let [only] = callees[..]
            && tree.nodes[only as usize].group == tree.nodes[last as usize].group
            && selection.weigh(tree.nodes[last as usize].own) == 0
        {
            last = only;
            times += 1;
            callees = below(last);
        }
        let row = &tree.nodes[last as usize];
        writeln!(
            out,
            "{:>7}  {:>6}  {head}{}{}",
            percent(selection.weigh(row.total), whole).trim_end_matches(" %"),
            percent(selection.weigh(row.own), whole).trim_end_matches(" %"),
            visible(tree.label(row)),
            if times > 1 {
                format!("  × {times}")
            } else {
                String::new()
            },
        )?;
        open.extend(branch(callees, &before));
    }
    Ok(())
}
