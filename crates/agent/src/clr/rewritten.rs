//! Methods with other IL than that of their file: how the new offsets map to the old ones.
//!
//! The runtime tells lines of such code by the new IL; debug information and other bodies of the method speak of the old
//! one. Invariant: a body that is not known here is as its file has it.

use std::collections::HashMap;
use std::sync::Arc;

use corprof::context::Synchronous;
use corprof::sys::CorIlMap;
use corprof::{Cx, FunctionId};

use super::{Clr, lock};
use crate::model::IlMap;

/// New offsets with the old ones, by the new ones.
type Offsets = Arc<[(u32, u32)]>;

/// Most bodies that are known; each has a method that was rewritten.
const MAX_BODIES: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Rewritten {
    /// By module and token.
    methods: HashMap<(usize, u32), Offsets>,
    /// By the address at which the runtime knows the body.
    bodies: HashMap<u64, Offsets>,
}

impl Clr {
    /// A method is about to get other IL.
    pub(crate) fn rewrites(&self, module: usize, token: u32, map: &[CorIlMap]) {
        let mut offsets: Vec<(u32, u32)> = map
            .iter()
            .map(|entry| (entry.new_offset, entry.old_offset))
            .collect();
        offsets.sort_unstable();
        let mut rewritten = lock(&self.rewritten);
        rewritten.methods.insert((module, token), offsets.into());
    }

    /// A body was compiled that is not the method's first: it may be of other IL.
    pub(super) fn compiled_again<'rt, C: Synchronous>(
        &self,
        cx: &Cx<'rt, C>,
        function: FunctionId<'rt>,
        code_start: u64,
    ) {
        let Ok(Some(found)) = cx.info().get_function_info2(cx, function) else {
            return;
        };
        let Some(module) = found.module else {
            return;
        };
        let mut rewritten = lock(&self.rewritten);
        let key = (module.raw(), found.token.0);
        if let Some(offsets) = rewritten.methods.get(&key).cloned()
            && rewritten.bodies.len() < MAX_BODIES
        {
            rewritten.bodies.insert(code_start, offsets);
        }
    }

    /// Whether a body is of other IL than its file's.
    pub(super) fn is_rewritten(&self, code_start: u64) -> bool {
        lock(&self.rewritten).bodies.contains_key(&code_start)
    }

    /// A body's map with the offsets of the file's IL.
    pub(crate) fn in_own_il(&self, code_start: u64, mut map: IlMap) -> IlMap {
        let offsets = lock(&self.rewritten).bodies.get(&code_start).cloned();
        if let Some(offsets) = offsets {
            for (_, il) in &mut map {
                *il = old_offset(&offsets, *il);
            }
        }
        map
    }
}

/// The offset of what stands at a new one, or of the last before it that was there; 0 for what was put before the first.
fn old_offset(offsets: &[(u32, u32)], new: u32) -> u32 {
    let before = offsets.partition_point(|(at, _)| *at <= new);
    let known = before.checked_sub(1).and_then(|at| offsets.get(at));
    known.map_or(0, |(_, old)| *old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_those_of_the_file() {
        let clr = Clr::new(0);
        let entry = |old_offset, new_offset| CorIlMap {
            old_offset,
            new_offset,
            accurate: 1,
        };
        clr.rewrites(7, 0x0600_0001, &[entry(0, 20), entry(1, 24), entry(6, 30)]);
        let offsets = lock(&clr.rewritten).methods.values().next().cloned();
        lock(&clr.rewritten).bodies.insert(0x1000, offsets.unwrap());
        let map: IlMap = vec![(0, 0), (8, 20), (16, 27), (24, 99)].into();
        let own: IlMap = vec![(0, 0), (8, 0), (16, 1), (24, 6)].into();
        assert_eq!(clr.in_own_il(0x1000, map.clone()), own);
        assert_eq!(clr.in_own_il(0x2000, map.clone()), map);
    }
}
