//! Attributes generated code outside methods to the runtime that made it: precode, stubs, barriers.
//!
//! No callback reports such code (precode, dispatch stubs, write barriers), so its memory mapping
//! decides. A runtime keeps its stubs in the memory that holds its JITted code: a file of its own
//! (a memfd that it maps twice, .NET 7 on), or anonymous memory that it reserves in one piece.
//! Other anonymous code was made by another JIT in the process. Agent thread only. Invariant: if
//! the process has several CLRs and the memory does not identify one, none is named.

use std::collections::HashMap;
use std::ops::Range;

use crate::base::one_mapping::{self, MappingAnswer};
use crate::base::proc::{self, Mapping};

/// Minimum time between two reads of the process's mappings, nanoseconds.
const AGE_NS: u64 = 200_000_000;
/// Maximum number of mappings kept between two reads of all.
const MAX_MAPPINGS: usize = 64 * 1024;

/// Returns a runtime that has JITted code in an address range.
type RuntimeIn<'a> = &'a dyn Fn(&Range<u64>) -> Option<u8>;

/// The executable memory of the process that holds generated code.
#[derive(Debug, Default)]
pub(crate) struct Stubs {
    mappings: Vec<Mapping>,
    /// Runtime that has a body in a memfd, by the inode of the memfd.
    by_file: HashMap<u64, u8>,
    /// Anonymous mappings with a body: start and runtime, sorted by address.
    anonymous: Vec<(u64, u8)>,
    /// Contiguous anonymous memory, executable or reserved, sorted by address.
    runs: Vec<Range<u64>>,
    read_ns: u64,
}

/// The origin of an address without a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Generated {
    /// Code that this runtime made.
    By(u8),
    /// Code that an unidentified one of the runtimes made.
    ByARuntime,
    /// Code that something other than a runtime made.
    ByAnother,
    /// No generated code.
    No,
}

impl Generated {
    /// Whether a runtime made it.
    pub(crate) fn is_runtimes(self) -> bool {
        matches!(self, Generated::By(_) | Generated::ByARuntime)
    }
}

impl Stubs {
    /// Returns the runtime that made the code at `address`.
    pub(crate) fn of(&mut self, address: u64, runtime_in: RuntimeIn<'_>) -> Generated {
        let found = self.origin_of(address);
        if matches!(found, Generated::By(_)) {
            return found;
        }
        // Most likely a mapping that is newer than the last read of all.
        match one_mapping::at(address) {
            MappingAnswer::Unmapped => return Generated::No,
            MappingAnswer::In(mapping) if !is_wanted(&mapping) => return Generated::No,
            MappingAnswer::In(mapping) if self.mappings.len() < MAX_MAPPINGS => {
                self.refresh_mapping(mapping, runtime_in);
                let found = self.origin_of(address);
                if matches!(found, Generated::By(_)) {
                    return found;
                }
            }
            MappingAnswer::In(_) | MappingAnswer::Unknown => {}
        }
        let now = proc::now_ns();
        if now.saturating_sub(self.read_ns) <= AGE_NS {
            return found;
        }
        self.read_ns = now;
        self.take(proc::mappings(), runtime_in);
        self.origin_of(address)
    }

    /// Reads the present mappings.
    fn take(&mut self, mappings: Vec<Mapping>, runtime_in: RuntimeIn<'_>) {
        self.by_file.clear();
        self.anonymous.clear();
        self.runs.clear();
        for mapping in &mappings {
            self.join(mapping);
        }
        let wanted = mappings.into_iter().filter(is_wanted);
        self.mappings = wanted
            .inspect(|mapping| self.learn_owner(mapping, runtime_in))
            .collect();
    }

    /// Records the runtime of a mapping, if a body in it shows the runtime.
    fn learn_owner(&mut self, mapping: &Mapping, runtime_in: RuntimeIn<'_>) {
        let Some(runtime) = runtime_in(&mapping.range) else {
            return;
        };
        if mapping.inode == 0 {
            let start = mapping.range.start;
            let at = self.anonymous.partition_point(|(known, _)| *known < start);
            self.anonymous.insert(at, (start, runtime));
        } else {
            self.by_file.insert(mapping.inode, runtime);
        }
    }

    /// Enters one current mapping, in place of those that it overlaps.
    fn refresh_mapping(&mut self, mapping: Mapping, runtime_in: RuntimeIn<'_>) {
        let Range { start, end } = mapping.range;
        self.mappings
            .retain(|known| known.range.end <= start || known.range.start >= end);
        self.anonymous
            .retain(|(known, _)| !(start..end).contains(known));
        self.learn_owner(&mapping, runtime_in);
        self.join(&mapping);
        let at = self
            .mappings
            .partition_point(|known| known.range.start < start);
        self.mappings.insert(at, mapping);
    }

    /// Adds anonymous memory that is or may become code to the run that it adjoins.
    fn join(&mut self, mapping: &Mapping) {
        let is_data = mapping.readable && !mapping.executable;
        if mapping.inode != 0 || !mapping.name.is_empty() || is_data {
            return;
        }
        let Range { mut start, mut end } = mapping.range;
        let first = self.runs.partition_point(|run| run.end < start);
        let last = self.runs.partition_point(|run| run.start <= end);
        for run in self.runs.drain(first..last) {
            start = start.min(run.start);
            end = end.max(run.end);
        }
        self.runs.insert(first, start..end);
    }

    fn origin_of(&self, address: u64) -> Generated {
        let Some(mapping) = proc::mapping_of(&self.mappings, address) else {
            return Generated::No;
        };
        if mapping.inode != 0 {
            let owner = self.by_file.get(&mapping.inode).copied();
            return owner.map_or(Generated::ByARuntime, Generated::By);
        }
        // A runtime's reservation is one address range, so the nearest body in it decides.
        let next = self.runs.partition_point(|run| run.end <= address);
        let run = self.runs.get(next).filter(|run| run.contains(&address));
        let bodies = self.anonymous.iter().filter(|(start, _)| {
            let run = run.unwrap_or(&mapping.range);
            run.contains(start)
        });
        let nearest = bodies.min_by_key(|(start, _)| start.abs_diff(address));
        nearest.map_or(Generated::ByAnother, |(_, runtime)| Generated::By(*runtime))
    }
}

/// Whether generated code may be in it.
fn is_wanted(mapping: &Mapping) -> bool {
    mapping.executable && mapping.is_generated()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_shows_whose_a_stub_is() {
        let code = [(0x1000, 0), (0x8000, 1), (0x20000, 2)];
        let runtime_in = &|range: &Range<u64>| {
            let found = code.iter().find(|(start, _)| range.contains(start));
            found.map(|(_, runtime)| *runtime)
        };
        let mapping = |start, inode, name: &str| Mapping {
            range: start..start + 0x1000,
            readable: true,
            executable: true,
            inode,
            name: name.into(),
        };
        let memfd = "/memfd:doublemapper (deleted)";
        let mut stubs = Stubs::default();
        let mappings = vec![
            mapping(0x1000, 0, ""),
            Mapping {
                readable: false,
                executable: false,
                ..mapping(0x2000, 0, "")
            },
            mapping(0x3000, 0, ""),
            Mapping {
                executable: false,
                ..mapping(0x4000, 0, "")
            },
            mapping(0x5000, 0, ""),
            mapping(0x7000, 0, ""),
            mapping(0x8000, 0, ""),
            mapping(0x20000, 71, memfd),
            mapping(0x30000, 71, memfd),
            mapping(0x40000, 72, memfd),
            mapping(0x50000, 9, "/lib/libc.so.6"),
        ];
        stubs.take(mappings, runtime_in);
        for (address, found) in [
            (0x1800, Generated::By(0)),
            (0x2800, Generated::No),
            (0x3800, Generated::By(0)),
            (0x5800, Generated::ByAnother),
            (0x7800, Generated::By(1)),
            (0x30010, Generated::By(2)),
            (0x40010, Generated::ByARuntime),
            (0x50010, Generated::No),
            (0x60010, Generated::No),
        ] {
            assert_eq!(stubs.origin_of(address), found, "{address:#x}");
        }
        // A later mapping replaces those that it overlaps, and no other.
        stubs.refresh_mapping(mapping(0x50000, 71, memfd), runtime_in);
        stubs.refresh_mapping(mapping(0x7800, 0, ""), runtime_in);
        for (address, found) in [
            (0x50010, Generated::By(2)),
            (0x7010, Generated::No),
            (0x7810, Generated::By(1)),
            (0x8010, Generated::By(1)),
            (0x8810, Generated::No),
            (0x3800, Generated::By(0)),
            (0x30010, Generated::By(2)),
        ] {
            assert_eq!(stubs.origin_of(address), found, "{address:#x}");
        }
    }
}
