//! Heights of blocks, and which callees return.
//!
//! Blocks that jumps connect are one part, whose heights follow from any of them. A part is
//! contradictory where two ways to it differ.

use super::{Edge, Effect, Flow, HIGHEST, Kind, Part};

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
        while let Some(calls) = self.calls_that_return() {
            if !self.go_on(&calls, &mut late) {
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
    fn callee(&self, edge: &Edge) -> Option<i64> {
        let call = self.listing.steps[self.blocks[edge.from as usize].steps.end - 1];
        match call.effect {
            Effect::Call(offset) | Effect::CallOut(offset) => {
                Some(i64::from(call.end()) + i64::from(offset))
            }
            _ => None,
        }
    }

    /// Edges behind calls of what returns, as far as is known. A callee does if it comes to a
    /// return; one that jumps out of the code must have been seen to, at another call: what follows
    /// there is reached by nothing else, and its height fits. `None`: that takes too long to say.
    fn calls_that_return(&self) -> Option<Vec<Edge>> {
        let calls = self.edges.iter().copied();
        let calls: Vec<Edge> = calls.filter(|edge| edge.kind == Kind::Call).collect();
        let (mut returns, mut never) = (Vec::new(), Vec::new());
        for edge in &calls {
            let Some(callee) = self.callee(edge) else {
                continue;
            };
            let from = self.height_behind(edge.from as usize);
            match from.zip(self.height(edge.to as usize)) {
                _ if self.begins[edge.to as usize] => never.push(callee),
                Some((from, to)) if from != to => never.push(callee),
                // A block that is jumped to from elsewhere most likely has the same height by
                // chance.
                Some(_) if self.only_follows(edge) => returns.push(callee),
                _ => {}
            }
        }
        let has = |sorted: &[i64], callee: Option<i64>| {
            callee.is_some_and(|callee| sorted.binary_search(&callee).is_ok())
        };
        // A function that ends only in calls that never return does not return either.
        loop {
            if !self.may_go_on() {
                return None;
            }
            never.sort_unstable();
            never.dedup();
            let ends = self.comes_to(
                |effect| !matches!(effect, Effect::Stop),
                |callee| !has(&never, callee),
            );
            let dead = self.callees(&calls, |block| !ends[block]);
            if dead.iter().all(|callee| has(&never, Some(*callee))) {
                break;
            }
            never.extend(dead);
        }
        let mut count = 0;
        loop {
            if !self.may_go_on() {
                return None;
            }
            returns.sort_unstable();
            returns.dedup();
            if returns.len() == count {
                break;
            }
            count = returns.len();
            let comes = self.comes_to(
                |effect| effect == Effect::Return,
                |callee| callee.is_none() || has(&returns, callee) && !has(&never, callee),
            );
            returns.extend(self.callees(&calls, |block| comes[block]));
        }
        let goes_on = |edge: &Edge| {
            let callee = self.callee(edge);
            !self.begins[edge.to as usize]
                && !has(&never, callee)
                && (callee.is_none() || has(&returns, callee))
        };
        Some(calls.into_iter().filter(goes_on).collect())
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

    /// Those callees of calls whose first block is so.
    fn callees(&self, calls: &[Edge], is_so: impl Fn(usize) -> bool) -> Vec<i64> {
        let is_so = |callee: &i64| {
            let block = u32::try_from(*callee).ok().and_then(|at| self.block_at(at));
            block.is_some_and(&is_so)
        };
        calls
            .iter()
            .filter_map(|edge| self.callee(edge))
            .filter(is_so)
            .collect()
    }

    /// Whether each block comes to an end of this kind, where calls go on that `passes`.
    fn comes_to(
        &self,
        is_end: impl Fn(Effect) -> bool,
        passes: impl Fn(Option<i64>) -> bool,
    ) -> Vec<bool> {
        let mut comes = vec![false; self.blocks.len()];
        let is_seed = |block: &usize| {
            let last = self.listing.steps[self.blocks[*block].steps.end - 1];
            self.edges_from(*block).is_empty() && is_end(last.effect)
        };
        let mut waiting: Vec<usize> = (0..self.blocks.len()).filter(is_seed).collect();
        while let Some(block) = waiting.pop() {
            if !std::mem::replace(&mut comes[block], true) {
                let into = self.edges_to(block).iter().filter(|edge| {
                    edge.kind != Kind::Call || !self.begins[block] && passes(self.callee(edge))
                });
                waiting.extend(into.map(|edge| edge.from as usize));
            }
        }
        comes
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
        let mut waiting = Vec::new();
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
                let near: Vec<_> = out.chain(into).collect();
                for (_, other, height) in near
                    .into_iter()
                    .filter(|(edge, ..)| edge.kind == Kind::Jump)
                {
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
