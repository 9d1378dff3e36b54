//! Call tree as text, root first. Callees under 0.5 % are omitted, and their number is shown.

use std::io::{self, Write};

use profile::Profile;
use profile::ops::{self, Direction, GroupBy, Tree};

use super::report::Report;
use crate::visible::visible;
use crate::wording::percent;

/// A node to write. A single callee goes directly under its caller at the same indentation, so that
/// deep stacks fit the page. Several callees are drawn as branches.
struct Branch {
    node: u32,
    /// The text before its name.
    head: String,
    /// The text before the names of its callees.
    below: String,
}

/// Returns the merged call tree of the report's event, with the event's subjects as leaves if rows
/// are subjects.
pub(super) fn tree(profile: &Profile, report: &Report) -> Tree {
    let include = |sample: &_| report.selection.includes(sample);
    let tree = |profile| Tree::new(profile, GroupBy::Method, Direction::Callees, include);
    if report.by == GroupBy::Detail {
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
    // Sorted heaviest last, because the last is written next. Siblings are ordered by value, but
    // the weight may be samples.
    let below = |node: u32| -> Vec<u32> {
        let children = tree.children(node);
        let mut nodes: Vec<u32> = children.iter().rev().copied().filter(seen).collect();
        nodes.sort_by_key(|&node| total(node));
        nodes
    };
    writeln!(out, "total %  self %  call tree (callees from 0.5 %)")?;
    let branch = |callees: Vec<u32>, before: &str| -> Vec<Branch> {
        let several = callees.len() > 1;
        // The first entry of the list is written last.
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
        // Recursion in a straight line is one line, or as many as there are methods in it.
        let only = |node: u32| match below(node)[..] {
            [only] if selection.weigh(tree.nodes[node as usize].own) == 0 => Some(only),
            _ => None,
        };
        let Cycle { last, times } = find_cycle(&tree, node, only);
        for (at, &node) in last.iter().enumerate() {
            let row = &tree.nodes[node as usize];
            let again = match (times, last.len()) {
                (1, _) => String::new(),
                _ if at + 1 < last.len() => String::new(),
                (times, 1) => format!("  × {times}"),
                (times, 2) => format!("  × {times}, with the line above"),
                (times, several) => format!("  × {times}, with the {} lines above", several - 1),
            };
            writeln!(
                out,
                "{:>7}  {:>6}  {}{}{again}",
                percent(selection.weigh(row.total), whole).trim_end_matches(" %"),
                percent(selection.weigh(row.own), whole).trim_end_matches(" %"),
                if at == 0 { &head } else { &before },
                visible(tree.label(row)),
            )?;
        }
        let callees = last.last().map_or_else(Vec::new, |&node| below(node));
        open.extend(branch(callees, &before));
    }
    Ok(())
}

/// Methods that call each other in a circle without anything beside it.
struct Cycle {
    /// The nodes of its last time round, the caller first; one where there is no circle.
    last: Vec<u32>,
    /// How often it goes round.
    times: u64,
}

/// More methods than this in a circle are not looked for.
const MAX_CYCLE: usize = 8;

/// The shortest circle that begins at `node`; `only` is the one callee of a node with nothing
/// beside it.
fn find_cycle(tree: &Tree, node: u32, only: impl Fn(u32) -> Option<u32>) -> Cycle {
    let method = |node: u32| tree.nodes[node as usize].group;
    let chain = |from: u32| std::iter::successors(Some(from), |&node| only(node));
    let begin: Vec<u32> = chain(node).take(2 * MAX_CYCLE).collect();
    let is_repeated = |length: &usize| {
        begin.len() >= 2 * length
            && (0..*length).all(|at| method(begin[at]) == method(begin[at + length]))
    };
    let Some(length) = (1..=MAX_CYCLE).find(is_repeated) else {
        return Cycle {
            last: vec![node],
            times: 1,
        };
    };
    let mut last = Vec::new();
    let mut now = Vec::with_capacity(length);
    let mut times = 0;
    for (at, node) in chain(node).enumerate() {
        if method(node) != method(begin[at % length]) {
            break;
        }
        now.push(node);
        if now.len() == length {
            last = std::mem::take(&mut now);
            times += 1;
        }
    }
    Cycle { last, times }
}
