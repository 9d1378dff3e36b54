//! Heights of blocks, and which callees return.
//!
//! Blocks that jumps connect are one part, whose heights follow from any of them. A part is
//! contradictory where two ways to it differ.

use super::{Edge, Effect, Flow, HIGHEST, Kind, Part};

/// The calls, with numbers of what they call.
struct Calls {
    /// The edges behind them.
    edges: Vec<Edge>,
    /// By the block that a call ends; `None` if the callee is not known.
    callees: Vec<Option<usize>>,
    /// The first block of each callee; `None` if it is elsewhere.
    blocks: Vec<Option<usize>>,
}

impl Calls {
    fn callee(&self, edge: &Edge) -> Option<usize> {
        self.callees[edge.from as usize]
    }
}

impl Flow<'_> {
    /// Finds the height at each block's start.
    pub(super) fn find_heights(&mut self) {
        self.find_parts();
        for block in 0..self.blocks.len() {
            if self.blocks[block].leaves {
                self.settle(block, 8_i32.saturating_sub(self.blocks[block].added));
            }
        }
        for block in 0..self.blocks.len() {
            if self.is_start(&self.blocks[block]) {
                self.settle(block, 8);
            }
        }
        // Its frame is gone.
        let tails: Vec<Edge> = self
            .edges
            .iter()
            .copied()
            .filter(|edge| edge.kind == Kind::Tail)
            .collect();
        for edge in tails {
            let from = edge.from as usize;
            self.settle(from, 8_i32.saturating_sub(self.blocks[from].added));
        }
        // The facts so far do not depend on whether callees return.
        let mut late = vec![false; self.parts.len()];
        let calls = self.calls();
        while let Some(edges) = self.calls_that_return(&calls) {
            if !self.go_on(&edges, &mut late) {
                break;
            }
        }
    }

    /// Goes on behind calls that return, and before them; whether anything new is known.
    fn go_on(&mut self, calls: &[Edge], late: &mut [bool]) -> bool {
        let mut is_new = false;
        while self.may_go_on() {
            let mut more = false;
            for edge in calls {
                more |= self.offer(edge.to, self.height_behind(edge.from as usize), late);
            }
            is_new |= more;
            if !more {
                break;
            }
        }
        for edge in calls.iter().rev() {
            let height = self.height(edge.to as usize);
            let added = self.blocks[edge.from as usize].added;
            let height = height.map(|height| height.saturating_sub(added));
            is_new |= self.offer(edge.from, height, late);
        }
        if !is_new {
            for block in 0..self.blocks.len() {
                if self.begins[block] {
                    is_new |= self.offer(block as u32, Some(8), late);
                }
            }
        }
        for edge in calls {
            let heights = self
                .height_behind(edge.from as usize)
                .zip(self.height(edge.to as usize));
            let part = self.part[edge.to as usize] as usize;
            if late[part] && heights.is_some_and(|(from, to)| from != to) {
                self.parts[part].is_contradictory = true;
            }
        }
        is_new
    }

    /// The callee, where the call says which; a word that holds one is known by its place.
    fn callee_place(&self, edge: &Edge) -> Option<i64> {
        let call = self.listing.steps[self.blocks[edge.from as usize].steps.end - 1];
        match call.effect {
            Effect::Call(offset) | Effect::CallOut(offset) => {
                Some(i64::from(call.end()) + i64::from(offset))
            }
            _ => None,
        }
    }

    /// Numbers the callees.
    fn calls(&self) -> Calls {
        let edges = self.edges.iter().copied();
        let edges: Vec<Edge> = edges.filter(|edge| edge.kind == Kind::Call).collect();
        let known = edges.iter().filter_map(|edge| self.callee_place(edge));
        let mut places: Vec<i64> = known.collect();
        places.sort_unstable();
        places.dedup();
        let mut callees = vec![None; self.blocks.len()];
        for edge in &edges {
            let place = self.callee_place(edge);
            callees[edge.from as usize] = place.and_then(|at| places.binary_search(&at).ok());
        }
        let block = |at: &i64| u32::try_from(*at).ok().and_then(|at| self.block_at(at));
        Calls {
            edges,
            callees,
            blocks: places.iter().map(block).collect(),
        }
    }

    /// Edges behind calls of what returns, as far as is known. A callee does if it comes to a
    /// return; one that jumps out of the code must have been seen to, at another call: what follows
    /// there is reached by nothing else, and its height fits. `None`: that takes too long to say.
    fn calls_that_return(&self, calls: &Calls) -> Option<Vec<Edge>> {
        let mut returns = vec![false; calls.blocks.len()];
        let mut never = returns.clone();
        for edge in &calls.edges {
            let Some(callee) = calls.callee(edge) else {
                continue;
            };
            let from = self.height_behind(edge.from as usize);
            match from.zip(self.height(edge.to as usize)) {
                _ if self.begins[edge.to as usize] => never[callee] = true,
                Some((from, to)) if from != to => never[callee] = true,
                // A block that is jumped to from elsewhere most likely has the same height by
                // chance.
                Some(_) if self.only_follows(edge) => returns[callee] = true,
                _ => {}
            }
        }
        // A function that ends only in calls that never return does not return either.
        let mut ends: Vec<bool> = calls.blocks.iter().map(Option::is_none).collect();
        let is_end = |effect| !matches!(effect, Effect::Stop | Effect::Fill);
        self.mark(calls, is_end, &never, &mut ends)?;
        for (never, ends) in never.iter_mut().zip(&ends) {
            *never |= !ends;
        }
        let is_return = |effect| effect == Effect::Return;
        self.mark(calls, is_return, &never, &mut returns)?;
        let edges = calls.edges.iter().copied();
        Some(
            edges
                .filter(|edge| self.goes_on(calls, edge, &never, &returns))
                .collect(),
        )
    }

    /// Whether an edge is taken, if the callees that are marked return, and those of `never` do
    /// not.
    fn goes_on(&self, calls: &Calls, edge: &Edge, never: &[bool], marks: &[bool]) -> bool {
        let passes = |callee: usize| marks[callee] && !never[callee];
        let is_call = edge.kind == Kind::Call;
        !is_call || !self.begins[edge.to as usize] && calls.callee(edge).is_none_or(passes)
    }

    /// Marks the callees that come to an end of this kind. `None`: that takes too long.
    fn mark(
        &self,
        calls: &Calls,
        is_end: impl Fn(Effect) -> bool,
        never: &[bool],
        marks: &mut [bool],
    ) -> Option<()> {
        let mut comes = vec![false; self.blocks.len()];
        let is_seed = |block: &usize| {
            let last = self.listing.steps[self.blocks[*block].steps.end - 1];
            self.edges_from(*block).is_empty() && is_end(last.effect)
        };
        let mut waiting: Vec<usize> = (0..self.blocks.len()).filter(is_seed).collect();
        while self.may_go_on() {
            while let Some(block) = waiting.pop() {
                if !std::mem::replace(&mut comes[block], true) {
                    let into = self.edges_to(block).iter();
                    let into = into.filter(|edge| self.goes_on(calls, edge, never, marks));
                    waiting.extend(into.map(|edge| edge.from as usize));
                }
            }
            let mut is_new = false;
            for (mark, block) in marks.iter_mut().zip(&calls.blocks) {
                is_new |= block.is_some_and(|block| comes[block]) && !std::mem::replace(mark, true);
            }
            if !is_new {
                return Some(());
            }
            let behind = calls.edges.iter().filter(|edge| comes[edge.to as usize]);
            let behind = behind.filter(|edge| self.goes_on(calls, edge, never, marks));
            waiting.extend(behind.map(|edge| edge.from as usize));
        }
        None
    }

    /// Takes one of the rounds that are left.
    fn may_go_on(&self) -> bool {
        let left = self.rounds.get();
        self.rounds.set(left.saturating_sub(1));
        left > 0
    }

    /// Whether what follows a call is reached by nothing else, and no gap lies between.
    fn only_follows(&self, edge: &Edge) -> bool {
        let to = edge.to as usize;
        let first = self.listing.steps[self.blocks[to].steps.start].effect;
        first != Effect::Fill && self.edges_to(to).len() == 1
    }

    fn block_at(&self, at: u32) -> Option<usize> {
        let index = self.listing.index(at)?;
        self.blocks
            .binary_search_by_key(&index, |block| block.steps.start)
            .ok()
    }

    /// Gathers the blocks that jumps and going on connect.
    fn find_parts(&mut self) {
        let count = self.blocks.len();
        self.part = vec![u32::MAX; count];
        self.relative = vec![0; count];
        let (mut waiting, mut near) = (Vec::new(), Vec::new());
        for first in 0..count {
            if self.part[first] != u32::MAX {
                continue;
            }
            let number = self.parts.len() as u32;
            let mut part = Part::default();
            self.part[first] = number;
            waiting.push(first);
            while let Some(block) = waiting.pop() {
                let here = self.relative[block];
                let lowest = here.saturating_add(self.blocks[block].lowest);
                part.lowest = part.lowest.min(lowest);
                part.is_contradictory |= !(-HIGHEST..HIGHEST).contains(&here) || lowest < -HIGHEST;
                let behind = here.saturating_add(self.blocks[block].added);
                let out = self
                    .edges_from(block)
                    .iter()
                    .map(|edge| (*edge, edge.to, behind));
                let into = self.edges_to(block).iter().map(|edge| {
                    let added = self.blocks[edge.from as usize].added;
                    (*edge, edge.from, here.saturating_sub(added))
                });
                near.clear();
                near.extend(out.chain(into).filter(|(edge, ..)| edge.kind == Kind::Jump));
                for &(_, other, height) in &near {
                    let other = other as usize;
                    if self.part[other] == u32::MAX {
                        (self.part[other], self.relative[other]) = (number, height);
                        waiting.push(other);
                    }
                    part.is_contradictory |= self.relative[other] != height;
                }
            }
            self.parts.push(part);
        }
    }

    /// A block begins at this height for certain.
    fn settle(&mut self, block: usize, height: i32) {
        let base = height.saturating_sub(self.relative[block]);
        let part = &mut self.parts[self.part[block] as usize];
        // Below the return address there is no frame.
        part.is_contradictory |=
            part.base.is_some_and(|known| known != base) || part.lowest.saturating_add(base) < 8;
        part.base = Some(base);
    }

    /// A block seems to begin at this height; whether that is news.
    fn offer(&mut self, block: u32, height: Option<i32>, late: &mut [bool]) -> bool {
        let part = self.part[block as usize] as usize;
        let Some(height) = height else { return false };
        if self.parts[part].base.is_some() || self.parts[part].is_contradictory {
            return false;
        }
        late[part] = true;
        self.settle(block as usize, height);
        true
    }
}
