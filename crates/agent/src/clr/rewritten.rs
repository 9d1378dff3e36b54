//! Methods whose IL differs from their file's: maps the new IL offsets to the file's.
//!
//! The runtime reports IL offsets of such code in the new IL. Debug information and other bodies of
//! the method use the file's. Invariant: a body that is not listed here has the file's IL.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use corprof::context::Synchronous;
use corprof::sys::CorIlMap;
use corprof::{Cx, FunctionId, ModuleId, RejitId, Token};

use super::{Clr, lock};
use crate::base::proc::{self, Mapping};
use crate::model::IlMap;

/// Pairs of new and old offset, sorted by the new one.
type Offsets = Arc<[(u32, u32)]>;

/// Maximum number of bodies of rewritten methods.
const MAX_BODIES: usize = 64 * 1024;

/// Stands for the versions of a method that hot reload has made. From .NET 11 on they have numbers,
/// which the runtime does not report. For a number that it does not know it lists the code of all
/// versions (`NativeCodeVersionIterator::Next`, src/coreclr/vm/codeversion.cpp). What is new in
/// that list, after the reported versions, is an update's code.
pub(super) const HOT_RELOADED: RejitId = RejitId(usize::MAX);

/// The assembly that a module's metadata defines, and its attribute that compilers write.
const ASSEMBLY: Token = Token(0x2000_0001);
const DEBUGGABLE: &str = "System.Diagnostics.DebuggableAttribute";

#[derive(Debug, Default)]
pub(super) struct Rewritten {
    /// Offsets of rewritten methods by module and token.
    methods: HashMap<(usize, u32), Offsets>,
    /// Offsets by the code start of the body.
    bodies: HashMap<u64, Offsets>,
    /// Bodies with IL from hot reload, for which the file's debug information has no entries.
    updated: HashSet<u64>,
}

impl Clr {
    /// Records the IL map of a method that is about to get other IL.
    pub(crate) fn rewrites(&self, module: usize, token: u32, map: &[CorIlMap]) {
        let mut offsets: Vec<(u32, u32)> = map
            .iter()
            .map(|entry| (entry.new_offset, entry.old_offset))
            .collect();
        offsets.sort_unstable();
        let mut rewritten = lock(&self.rewritten);
        rewritten.methods.insert((module, token), offsets.into());
    }

    /// Records a compiled body that may have other IL than its file's: it is not the method's first
    /// version, or the runtime has hot reload.
    ///
    /// The runtime keeps an update's IL outside of the file (`EditAndContinueModule::UpdateMethod`,
    /// src/coreclr/vm/encee.cpp), and from .NET 11 on as a version of the method.
    pub(super) fn note_il<'rt, C: Synchronous>(
        &self,
        cx: &Cx<'rt, C>,
        function: FunctionId<'rt>,
        version: RejitId,
        code_start: u64,
    ) {
        if version == RejitId::ORIGINAL && !self.is_modifiable() {
            return;
        }
        let info = cx.info();
        let Ok(Some(found)) = info.get_function_info2(cx, function) else {
            return;
        };
        let Some(module) = found.module else {
            return;
        };
        let is_updated = match version {
            RejitId::ORIGINAL => self.has_updated_il(cx, module, found.token),
            // No methods of such a module are traced.
            _ => self.may_be_updated(cx, module),
        };
        let mut rewritten = lock(&self.rewritten);
        // The address may have been another body's before.
        rewritten.updated.remove(&code_start);
        rewritten.bodies.remove(&code_start);
        let key = (module.raw(), found.token.0);
        if is_updated {
            if rewritten.updated.len() < MAX_BODIES {
                rewritten.updated.insert(code_start);
            }
        } else if version != RejitId::ORIGINAL
            && let Some(offsets) = rewritten.methods.get(&key).cloned()
            && rewritten.bodies.len() < MAX_BODIES
        {
            rewritten.bodies.insert(code_start, offsets);
        }
    }

    /// Whether a method's present IL is outside of its module's file.
    fn has_updated_il<'rt, C: Synchronous>(
        &self,
        cx: &Cx<'rt, C>,
        module: ModuleId<'rt>,
        method: Token,
    ) -> bool {
        let Some(facts) = self.module(module.raw()) else {
            return false;
        };
        let Ok(Some(il)) = cx.info().get_il_function_body_address(cx, module, method) else {
            return false;
        };
        let file = || mapped(&proc::mappings(), facts.base);
        is_outside_file(facts.mapped.get_or_init(file), il as u64)
    }

    /// Whether hot reload may change a module: where it is on, all that were compiled without
    /// optimisations, or that cannot be read (`Module::SetDebuggerInfoBits`,
    /// src/coreclr/vm/ceeload.cpp). Rows that others add to the metadata of such a module move what
    /// the next update refers to.
    pub(crate) fn may_be_updated<'rt, C: Synchronous>(
        &self,
        cx: &Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) -> bool {
        self.is_modifiable()
            && match cx.info().get_module_meta_data(cx, module) {
                Ok(Some(metadata)) => metadata
                    .get_custom_attribute_by_name(ASSEMBLY, DEBUGGABLE)
                    .map_or(true, |value| {
                        value.is_some_and(|value| is_unoptimized(&value))
                    }),
                _ => true,
            }
    }

    /// Whether a body's IL differs from its file's.
    pub(super) fn is_rewritten(&self, code_start: u64) -> bool {
        let rewritten = lock(&self.rewritten);
        rewritten.bodies.contains_key(&code_start) || rewritten.updated.contains(&code_start)
    }

    /// Returns a body's map with the offsets of the file's IL.
    pub(crate) fn in_own_il(&self, code_start: u64, mut map: IlMap) -> IlMap {
        let rewritten = lock(&self.rewritten);
        if rewritten.updated.contains(&code_start) {
            return IlMap::default();
        }
        let offsets = rewritten.bodies.get(&code_start).cloned();
        drop(rewritten);
        if let Some(offsets) = offsets {
            for (_, il) in &mut map {
                *il = old_offset(&offsets, *il);
            }
        }
        map
    }
}

/// Whether this value of the attribute switches optimisations off. Its fourth byte says so, by an
/// argument of its own or as bit 0x100 of the first (`Assembly::GetDebuggingCustomAttributes`,
/// src/coreclr/vm/assembly.cpp).
fn is_unoptimized(value: &[u8]) -> bool {
    value.get(3).is_some_and(|byte| byte & 1 != 0)
}

/// Returns the address ranges of the file mapped at `base`; empty if no file is mapped there.
fn mapped(mappings: &[Mapping], base: u64) -> Box<[Range<u64>]> {
    let inode = proc::mapping_of(mappings, base).map_or(0, |mapping| mapping.inode);
    let of_file = mappings
        .iter()
        .filter(|one| inode != 0 && one.inode == inode);
    of_file.map(|mapping| mapping.range.clone()).collect()
}

/// Whether IL is in none of these ranges. False if there are no ranges, as nothing is known then.
fn is_outside_file(file: &[Range<u64>], il: u64) -> bool {
    !file.is_empty() && !file.iter().any(|range| range.contains(&il))
}

/// Returns the old offset for a new one: that of the last entry at or before it; 0 for code
/// inserted before the first.
fn old_offset(offsets: &[(u32, u32)], new: u32) -> u32 {
    let before = offsets.partition_point(|(at, _)| *at <= new);
    let known = before.checked_sub(1).and_then(|at| offsets.get(at));
    known.map_or(0, |(_, old)| *old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn il_of_an_update_is_not_in_the_file() {
        let mapping = |start: u64, inode| Mapping {
            range: start..start + 0x1000,
            readable: true,
            executable: false,
            inode,
            name: String::new(),
        };
        // Sections of a file, the gap between them, and a heap.
        let mappings = [
            mapping(0x1000, 7),
            mapping(0x2000, 0),
            mapping(0x3000, 7),
            mapping(0x9000, 0),
        ];
        let file = mapped(&mappings, 0x1000);
        assert!(!is_outside_file(&file, 0x1800) && !is_outside_file(&file, 0x3fff));
        assert!(is_outside_file(&file, 0x9010));
        // An image built in memory.
        assert!(!is_outside_file(&mapped(&mappings, 0x9000), 0x9010));

        let clr = Clr::new(0);
        lock(&clr.rewritten).updated.insert(0x1000);
        assert!(clr.is_rewritten(0x1000));
        let map: IlMap = vec![(0, 0), (8, 20)].into();
        assert!(clr.in_own_il(0x1000, map.clone()).is_empty());
        assert_eq!(clr.in_own_il(0x2000, map.clone()), map);
    }

    #[test]
    fn debug_builds_may_be_updated() {
        // DebuggingModes 0x107 and 0x2, and the older form of two truth values.
        assert!(is_unoptimized(&[1, 0, 7, 1, 0, 0, 0, 0]));
        assert!(!is_unoptimized(&[1, 0, 2, 0, 0, 0, 0, 0]));
        assert!(is_unoptimized(&[1, 0, 1, 1, 0, 0]));
        assert!(!is_unoptimized(&[1, 0, 1, 0, 0, 0]) && !is_unoptimized(&[]));
    }

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
