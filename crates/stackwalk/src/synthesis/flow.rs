//! Heights and saved frame pointers, from block to block.
//!
//! A fact at one end of an edge between blocks holds at the other, in both directions: a
//! table of cases behind an indirect jump is known by where its blocks go on or return. What
//! follows a call counts less, as the callee may not return. A part of the code that contradicts
//! itself is unknown as a whole. The blocks are numbered as they are made, and every number of one
//! in here is in range.

use super::{Effect, Listing, State, Step};
use std::cell::Cell;
use std::ops::Range;

mod heights;

/// The caller's frame pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Saved {
    /// Nothing is known of it.
    Unknown,
    /// In the register.
    Callers,
    /// So many bytes below the CFA.
    Slot(i32),
    /// Overwritten, or two ways say different things.
    Lost,
    /// There is no caller.
    Root,
}

impl Saved {
    /// How far below the CFA its slot is; 0 if it is in none.
    pub(super) fn below(self) -> i32 {
        if let Saved::Slot(below) = self {
            below
        } else {
            0
        }
    }
}

/// The content of the frame pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Frame {
    Unknown,
    /// CFA − so much.
    At(i32),
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Taken by a jump, or by going on.
    Jump,
    /// Taken if the callee returns.
    Call,
    /// The stack pointer behind it is another one.
    Cut,
    /// Taken by a jump to a function, or by going on there.
    Tail,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    from: u32,
    to: u32,
    kind: Kind,
}

/// Instructions that run one after the other.
struct Block {
    steps: Range<usize>,
    /// The change of the height.
    added: i32,
    /// The lowest height in it, from that at its start.
    lowest: i32,
    /// It returns, or jumps to another function as if it had.
    leaves: bool,
}

/// Blocks whose heights are known from one another.
#[derive(Clone, Copy, Default)]
struct Part {
    /// The height at which its first block begins.
    base: Option<i32>,
    lowest: i32,
    is_contradictory: bool,
}

/// No code that is not contradictory has a higher frame.
const HIGHEST: i32 = 1 << 24;
/// How often all blocks or calls are gone through at most; musl takes an eighth of it.
const MOST_ROUNDS: u32 = 400;

pub(super) struct Flow<'a> {
    listing: &'a Listing,
    blocks: Vec<Block>,
    /// By the block that they leave.
    edges: Vec<Edge>,
    leaving: Vec<u32>,
    /// By the block that they enter.
    entering: Vec<Edge>,
    entered: Vec<u32>,
    /// Possible starts of functions: no call returns to them.
    begins: Vec<bool>,
    part: Vec<u32>,
    /// The height at a block's start, from that of its part.
    relative: Vec<i32>,
    parts: Vec<Part>,
    saved: Vec<(Saved, Saved)>,
    frames: Vec<Frame>,
    /// Rounds that are left.
    rounds: Cell<u32>,
}

/// The height after an instruction.
fn after(height: i32, effect: Effect) -> i32 {
    match effect {
        Effect::Move(by) => height.saturating_sub(by),
        Effect::PushBp => height.saturating_add(8),
        Effect::PopBp => height.saturating_sub(8),
        _ => height,
    }
}

/// Whether the stack pointer is another one after it.
fn cuts(effect: Effect) -> bool {
    matches!(
        effect,
        Effect::SpLost | Effect::BothLost | Effect::SpFromBp(_) | Effect::Leave
    )
}

impl<'a> Flow<'a> {
    pub(super) fn of(listing: &'a Listing) -> Self {
        let mut flow = Self {
            listing,
            blocks: Vec::new(),
            edges: Vec::new(),
            leaving: Vec::new(),
            entering: Vec::new(),
            entered: Vec::new(),
            begins: Vec::new(),
            part: Vec::new(),
            relative: Vec::new(),
            parts: Vec::new(),
            saved: Vec::new(),
            frames: Vec::new(),
            rounds: Cell::new(MOST_ROUNDS),
        };
        flow.divide();
        flow.find_heights();
        flow.find_saved();
        flow.forget_false_roots();
        flow.find_frames();
        flow
    }

    /// Reports the known state before each instruction.
    pub(super) fn each(&self, tell: &mut dyn FnMut(&Step, State)) {
        for (number, block) in self.blocks.iter().enumerate() {
            let mut height = self.height(number);
            let (mut saved, behind) = self.saved[number];
            // A thread's first function shares no block with who makes the thread.
            let becomes_root = self.becomes_root(number);
            let mut frame = self.frames[number];
            for step in &self.listing.steps[block.steps.clone()] {
                let state = State {
                    height,
                    frame,
                    saved: if becomes_root { Saved::Root } else { saved },
                };
                tell(step, state);
                saved = self.saved_after(saved, step.effect, height, number);
                if behind == Saved::Lost && saved == Saved::Root {
                    saved = Saved::Lost;
                }
                frame = frame_after(frame, step.effect, height);
                height = height.map(|height| after(height, step.effect));
            }
        }
    }

    /// Divides the code into blocks, with edges between them.
    fn divide(&mut self) {
        let Listing {
            steps,
            starts,
            candidates,
            length,
        } = self.listing;
        let mut leads = vec![false; steps.len() + 1];
        let mut follows_last = true;
        let mut begins = vec![false; steps.len() + 1];
        for at in starts.iter().chain(candidates) {
            if let Some(index) = self.listing.index(*at) {
                (leads[index], begins[index]) = (true, true);
            }
        }
        for (index, step) in steps.iter().enumerate() {
            leads[index] |= follows_last;
            // A function by its first instructions.
            if follows_last && step.effect == Effect::PushBp {
                let mut next = steps[index + 1..].iter().map(|next| next.effect);
                let next = next.find(|next| !matches!(next, Effect::None | Effect::Address(_)));
                begins[index] |= next == Some(Effect::BpFromSp(0));
            }
            follows_last = match step.effect {
                // The called function may not return.
                Effect::Call(_) | Effect::CallOut(_) | Effect::CallThrough => true,
                Effect::Fill => follows_last,
                _ => step.is_last(),
            };
            match step.effect {
                Effect::Jump(offset) | Effect::Branch(offset) => {
                    let target = step.target(offset, *length);
                    if let Some(target) = target.and_then(|at| self.listing.index(at)) {
                        leads[target] = true;
                    }
                    leads[index + 1] = true;
                }
                effect if cuts(effect) => leads[index + 1] = true,
                _ => {}
            }
        }
        let mut block_of = vec![u32::MAX; steps.len()];
        let mut first = 0;
        leads[steps.len()] = !steps.is_empty();
        for (index, leads) in leads.iter().enumerate().skip(1) {
            if *leads {
                block_of[first] = self.blocks.len() as u32;
                self.begins.push(begins[first]);
                self.blocks.push(block(steps, first..index));
                first = index;
            }
        }
        for number in 0..self.blocks.len() {
            self.connect(number, &block_of);
        }
        // They are in order of the blocks that they leave.
        self.leaving = offsets(self.blocks.len(), self.edges.iter().map(|edge| edge.from));
        let starts: Vec<bool> = self
            .blocks
            .iter()
            .map(|block| self.is_start(block))
            .collect();
        let mut moves = vec![false; self.blocks.len()];
        for edge in self.edges.iter().filter(|edge| self.moves(edge)) {
            (moves[edge.from as usize], moves[edge.to as usize]) = (true, true);
        }
        for edge in &mut self.edges {
            if moves[edge.from as usize] || moves[edge.to as usize] {
                edge.kind = Kind::Cut;
            } else if edge.kind == Kind::Jump && starts[edge.to as usize] {
                edge.kind = Kind::Tail;
            }
        }
        self.entering = self.edges.clone();
        self.entering.sort_by_key(|edge| edge.to);
        self.entered = offsets(self.blocks.len(), self.entering.iter().map(|edge| edge.to));
    }

    /// Adds the edges that leave a block.
    fn connect(&mut self, number: usize, block_of: &[u32]) {
        let block = &self.blocks[number];
        let last = self.listing.steps[block.steps.end - 1];
        let next = block_of.get(block.steps.end).copied();
        let target = |offset| {
            let at = last.target(offset, self.listing.length)?;
            Some(block_of[self.listing.index(at)?])
        };
        let (next_kind, target) = match last.effect {
            Effect::Jump(offset) => (None, target(offset)),
            Effect::Branch(offset) => (Some(Kind::Jump), target(offset)),
            Effect::Call(_) | Effect::CallOut(_) | Effect::CallThrough => (Some(Kind::Call), None),
            effect if cuts(effect) => (Some(Kind::Cut), None),
            _ if last.is_last() || self.is_padding(number) => (None, None),
            _ => (Some(Kind::Jump), None),
        };
        let from = number as u32;
        let jump = target.map(|to| (to, Kind::Jump));
        let edges = jump.into_iter().chain(next.zip(next_kind));
        self.edges
            .extend(edges.map(|(to, kind)| Edge { from, to, kind }));
    }

    /// Whether an edge is in a loop of one or two blocks in which the stack pointer is another one
    /// each time.
    fn moves(&self, edge: &Edge) -> bool {
        let added = |block: u32| self.blocks[block as usize].added;
        let is_jump = |edge: &Edge| edge.kind == Kind::Jump;
        let mut back = self.edges_from(edge.to as usize).iter();
        is_jump(edge)
            && if edge.to == edge.from {
                added(edge.to) != 0
            } else {
                back.any(|back| back.to == edge.from && is_jump(back))
                    && added(edge.to).saturating_add(added(edge.from)) != 0
            }
    }

    /// Whether a block fills the gap before a function: what is called before it does not return,
    /// as what a program's first instructions call.
    fn is_padding(&self, number: usize) -> bool {
        let steps = &self.listing.steps[self.blocks[number].steps.clone()];
        let begins = self.begins.get(number + 1);
        begins == Some(&true) && steps.iter().all(|step| step.effect == Effect::Fill)
    }

    /// Whether a function begins with a block for certain.
    fn is_start(&self, block: &Block) -> bool {
        let at = self.listing.steps[block.steps.start].at;
        self.listing.starts.binary_search(&at).is_ok()
    }

    fn edges_from(&self, block: usize) -> &[Edge] {
        &self.edges[self.leaving[block] as usize..self.leaving[block + 1] as usize]
    }

    fn edges_to(&self, block: usize) -> &[Edge] {
        &self.entering[self.entered[block] as usize..self.entered[block + 1] as usize]
    }

    /// The height at which a block begins.
    fn height(&self, block: usize) -> Option<i32> {
        let part = &self.parts[self.part[block] as usize];
        let base = part.base.filter(|_| !part.is_contradictory)?;
        Some(base.saturating_add(self.relative[block]))
    }

    /// The height at which a block ends, unless its last instruction changes the stack pointer to
    /// another one.
    fn height_behind(&self, block: usize) -> Option<i32> {
        Some(self.height(block)?.saturating_add(self.blocks[block].added))
    }

    /// Whether what is known of the frame pointer passes along an edge.
    fn passes(&self, edge: &Edge) -> bool {
        let part = |block: u32| &self.parts[self.part[block as usize] as usize];
        let sound = !part(edge.from).is_contradictory && !part(edge.to).is_contradictory;
        let (from, to) = (edge.from as usize, edge.to as usize);
        sound
            && match edge.kind {
                Kind::Jump | Kind::Cut => true,
                Kind::Tail => self.height_behind(from) == Some(8),
                Kind::Call => {
                    !self.begins[to]
                        && (self.height_behind(from) == self.height(to)
                            || self
                                .saved
                                .get(from)
                                .is_some_and(|saved| saved.1 == Saved::Root))
                }
            }
    }

    /// The height behind a block whose last instruction makes the stack pointer another one.
    fn height_behind_cut(&self, block: usize) -> Option<i32> {
        let edge = self.edges_from(block).first()?;
        self.height(edge.to as usize)
    }

    /// Where the caller's frame pointer is after an instruction of a block.
    fn saved_after(
        &self,
        saved: Saved,
        effect: Effect,
        height: Option<i32>,
        block: usize,
    ) -> Saved {
        match (effect, saved) {
            (_, Saved::Root | Saved::Lost | Saved::Unknown) => saved,
            (Effect::PushBp, Saved::Callers) => {
                in_slot(height.map(|height| height.saturating_add(8)))
            }
            (Effect::StoreBp(at), Saved::Callers) => {
                in_slot(height.map(|height| height.saturating_sub(at)))
            }
            (Effect::PopBp, Saved::Slot(below)) => match height {
                Some(height) if height == below => Saved::Callers,
                Some(_) => saved,
                None => Saved::Unknown,
            },
            (Effect::LoadBp(at), Saved::Slot(below)) => match height {
                Some(height) if height.saturating_sub(at) == below => Saved::Callers,
                Some(_) => saved,
                None => Saved::Unknown,
            },
            (Effect::Leave, Saved::Slot(below)) => match self.height_behind_cut(block) {
                Some(height) if height.saturating_add(8) == below => Saved::Callers,
                Some(_) => Saved::Lost,
                None => Saved::Unknown,
            },
            (Effect::BpZero, Saved::Callers) => Saved::Root,
            (
                Effect::BpLost
                | Effect::BothLost
                | Effect::BpFromSp(_)
                | Effect::PopBp
                | Effect::LoadBp(_)
                | Effect::Leave,
                Saved::Callers,
            ) => Saved::Lost,
            _ => saved,
        }
    }

    /// Where it is before an instruction of a block, from where it is after.
    fn saved_before(
        &self,
        saved: Saved,
        effect: Effect,
        height: Option<i32>,
        block: usize,
    ) -> Saved {
        let height_behind = height.map(|height| after(height, effect));
        match (effect, saved) {
            (Effect::PushBp, Saved::Slot(below)) if height_behind == Some(below) => Saved::Callers,
            (Effect::StoreBp(at), Saved::Slot(below))
                if height.is_some_and(|height| height.saturating_sub(at) == below) =>
            {
                Saved::Callers
            }
            (Effect::PopBp, Saved::Callers) => in_slot(height),
            (Effect::LoadBp(at), Saved::Callers) => {
                in_slot(height.map(|height| height.saturating_sub(at)))
            }
            (Effect::Leave, Saved::Callers) => in_slot(
                self.height_behind_cut(block)
                    .map(|height| height.saturating_add(8)),
            ),
            (_, Saved::Slot(_)) => saved,
            (
                Effect::BpLost
                | Effect::BothLost
                | Effect::BpFromSp(_)
                | Effect::BpZero
                | Effect::PopBp
                | Effect::LoadBp(_),
                _,
            ) => Saved::Unknown,
            (_, Saved::Root | Saved::Lost) => Saved::Unknown,
            _ => saved,
        }
    }

    /// The instructions of a block, each with the height before it.
    fn steps(&self, block: usize, each: &mut Vec<(Effect, Option<i32>)>) {
        let mut height = self.height(block);
        each.clear();
        for step in &self.listing.steps[self.blocks[block].steps.clone()] {
            each.push((step.effect, height));
            height = height.map(|height| after(height, step.effect));
        }
    }

    /// Collects the blocks at one end of those edges by which something passes.
    fn collect_near(&self, edges: &[Edge], end: impl Fn(&Edge) -> u32, near: &mut Vec<usize>) {
        let passed = edges.iter().filter(|edge| self.passes(edge));
        near.clear();
        near.extend(passed.map(|edge| end(edge) as usize));
    }

    fn find_saved(&mut self) {
        let count = self.blocks.len();
        self.saved = vec![(Saved::Unknown, Saved::Unknown); count];
        let (mut waiting, mut steps, mut near) = (Vec::new(), Vec::new(), Vec::new());
        for block in 0..count {
            let part = &self.parts[self.part[block] as usize];
            if part.is_contradictory {
                continue;
            }
            if self.begins[block] && self.height(block) == Some(8) {
                let steps = &self.listing.steps[self.blocks[block].steps.clone()];
                let first = steps.iter().find(|step| step.effect != Effect::None);
                let is_root = first.is_some_and(|step| step.effect == Effect::BpZero);
                self.saved[block].0 = if is_root { Saved::Root } else { Saved::Callers };
                waiting.push(block);
            }
            if self.blocks[block].leaves {
                self.saved[block].1 = Saved::Callers;
                waiting.push(block);
            }
        }
        while let Some(block) = waiting.pop() {
            self.steps(block, &mut steps);
            let (before, behind) = self.saved[block];
            let forward = steps.iter().fold(before, |saved, (effect, height)| {
                self.saved_after(saved, *effect, *height, block)
            });
            let backward = steps.iter().rev().fold(behind, |saved, (effect, height)| {
                self.saved_before(saved, *effect, *height, block)
            });
            let merged = (merge(before, backward), merge(behind, forward));
            self.saved[block] = merged;
            self.collect_near(self.edges_from(block), |edge| edge.to, &mut near);
            for &next in &near {
                let merged = merge(self.saved[next].0, merged.1);
                if merged != self.saved[next].0 {
                    self.saved[next].0 = merged;
                    waiting.push(next);
                }
            }
            self.collect_near(self.edges_to(block), |edge| edge.from, &mut near);
            for &prior in &near {
                let merged = merge(self.saved[prior].1, merged.0);
                if merged != self.saved[prior].1 {
                    self.saved[prior].1 = merged;
                    waiting.push(prior);
                }
            }
        }
    }

    /// Whether there is no caller from somewhere in a block on.
    fn becomes_root(&self, block: usize) -> bool {
        let steps = &self.listing.steps[self.blocks[block].steps.clone()];
        self.saved[block].1 == Saved::Root && steps.iter().any(|step| step.effect == Effect::BpZero)
    }

    /// Takes back roots from which the code returns: it had kept the frame pointer elsewhere.
    fn forget_false_roots(&mut self) {
        let mut waiting = Vec::new();
        for (number, block) in self.blocks.iter().enumerate() {
            let (before, behind) = self.saved[number];
            let out = self
                .edges_from(number)
                .iter()
                .filter(|edge| self.passes(edge));
            let mut next = out.map(|edge| self.saved[edge.to as usize].0);
            let is_false = block.leaves && before == Saved::Root
                || behind == Saved::Root && next.any(|next| next != Saved::Root)
                || behind == Saved::Lost && before == Saved::Root;
            if is_false {
                waiting.push(number);
            }
        }
        while let Some(block) = waiting.pop() {
            self.saved[block].1 = Saved::Lost;
            if self.saved[block].0 == Saved::Root {
                self.saved[block].0 = Saved::Lost;
                let into = self.edges_to(block).iter().map(|edge| edge.from as usize);
                waiting.extend(into.filter(|from| self.saved[*from].1 == Saved::Root));
            }
        }
    }

    fn find_frames(&mut self) {
        let count = self.blocks.len();
        self.frames = vec![Frame::Unknown; count];
        let (mut steps, mut near) = (Vec::new(), Vec::new());
        let mut waiting: Vec<usize> = (0..count).collect();
        for block in 0..count {
            if self.begins[block] && self.height(block) == Some(8) {
                self.frames[block] = Frame::Other;
            }
        }
        while let Some(block) = waiting.pop() {
            self.steps(block, &mut steps);
            let behind = steps
                .iter()
                .fold(self.frames[block], |frame, (effect, height)| {
                    frame_after(frame, *effect, *height)
                });
            self.collect_near(self.edges_from(block), |edge| edge.to, &mut near);
            for &next in &near {
                let merged = match (self.frames[next], behind) {
                    (Frame::Unknown, frame) | (frame, Frame::Unknown) => frame,
                    (known, frame) if known == frame => known,
                    _ => Frame::Other,
                };
                if merged != self.frames[next] {
                    self.frames[next] = merged;
                    waiting.push(next);
                }
            }
        }
    }
}

/// Where the edges of each block begin, of edges that are in order of these blocks.
fn offsets(blocks: usize, edges: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut offsets = vec![0; blocks + 1];
    for block in edges {
        offsets[block as usize + 1] += 1;
    }
    for block in 0..blocks {
        offsets[block + 1] += offsets[block];
    }
    offsets
}

/// In a slot so far below the CFA, which is below the return address.
fn in_slot(below: Option<i32>) -> Saved {
    match below {
        Some(below @ 16..) => Saved::Slot(below),
        _ => Saved::Unknown,
    }
}

/// The facts of two ways, combined.
fn merge(known: Saved, news: Saved) -> Saved {
    match (known, news) {
        (Saved::Unknown, saved) | (saved, Saved::Unknown) => saved,
        (known, news) if known == news => known,
        _ => Saved::Lost,
    }
}

/// The content of the frame pointer after an instruction.
fn frame_after(frame: Frame, effect: Effect, height: Option<i32>) -> Frame {
    match effect {
        Effect::BpFromSp(above) => height.map_or(Frame::Other, |height| {
            Frame::At(height.saturating_sub(above))
        }),
        Effect::PopBp
        | Effect::LoadBp(_)
        | Effect::Leave
        | Effect::BpZero
        | Effect::BpLost
        | Effect::BothLost => Frame::Other,
        _ => frame,
    }
}

/// Describes a block of these instructions.
fn block(all: &[Step], steps: Range<usize>) -> Block {
    let (mut added, mut lowest, mut is_root) = (0, 0, false);
    for step in &all[steps.clone()] {
        added = after(added, step.effect);
        // A function without a caller may use all of its stack.
        is_root |= step.effect == Effect::BpZero;
        lowest = if is_root { lowest } else { lowest.min(added) };
    }
    let last = all[steps.end - 1].effect;
    Block {
        steps,
        added,
        lowest,
        leaves: matches!(last, Effect::Return | Effect::JumpOut),
    }
}
