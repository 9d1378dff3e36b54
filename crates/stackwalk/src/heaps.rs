//! Code heaps of a runtime: finds the JITted body at an address in the runtime's own records.
//!
//! Walks use it for code that is not in the code map yet. A runtime from .NET 10 on exports the
//! layout of these records for debuggers (`contract`). The layout is verified with known code
//! before it is used (`check`). The records are a map of address ranges, a heap of code for each
//! range, and for each heap a map with a nibble for 32 bytes that gives the starts of code. Source:
//! dotnet/runtime `docs/design/datacontracts/ExecutionManager.md`, version 2, which .NET 11 calls
//! c1; `vm/codeman.h` (`RangeSectionMap`, `HeapList`), `inc/nibblemapmacros.h`. Unwinding the body
//! is the task of [`jit`](crate::jit).
//!
//! Invariants: only memory that the runtime keeps until its end is dereferenced. Memory that may be
//! freed is read through the kernel, so freed memory gives a wrong result and no fault. Every loop
//! is bounded. All is async-signal-safe except [`CodeHeaps::of_runtime`]. A result may be wrong:
//! the caller must verify it with the code header, as
//! [`jit::body_from_header`](crate::jit::body_from_header) does, and with the body's length.

mod check;
mod contract;
mod unreported;

use self::contract::Contract;
pub use self::contract::{ContractError, SYMBOL};
pub(crate) use self::unreported::UnreportedCode;
use crate::own_memory::{peek, read_in_place};

/// Known versions of the contract, each with the version of its descriptor: of .NET 10 and 11. Both
/// have the same meaning.
const VERSIONS: [(u64, &str); 2] = [(0, "2"), (2, "c1")];
/// Levels of the map of ranges, each of 256 entries. The lowest has an entry for each 128 KiB.
const LEVELS: u32 = 5;
const CHUNK_SHIFT: u32 = 17;
/// Maximum number of ranges that are read in one chunk.
const MAX_FRAGMENTS: usize = 256;

/// Location and layout of a runtime's code heap records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeHeaps {
    /// Address of the outermost table of the map of ranges.
    ranges: u64,
    fragment: Fragment,
    section: Section,
    node: Node,
    /// Offset of the method in a code header.
    header_method: u64,
    /// Highest value of the word before code that is a kind of stub, not a header.
    last_stub: u64,
}

/// Offsets in a fragment: the part of a range that is in one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fragment {
    begin: u64,
    end: u64,
    section: u64,
    next: u64,
}

/// Offsets in the section of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Section {
    begin: u64,
    end: u64,
    heap: u64,
    /// Offset of a word that is not 0 while the section is being freed.
    next_to_go: u64,
}

/// Offsets in the record of a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Node {
    start: u64,
    end: u64,
    base: u64,
    map: u64,
}

/// The body at an address, or shortly before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HeapCode {
    /// First address.
    pub start: u64,
    /// FunctionID of the body's method.
    pub function: u64,
    /// Whether it may be unloaded before its runtime ends, according to the map of ranges.
    pub may_go: bool,
}

impl CodeHeaps {
    /// Returns the heaps of the runtime whose contract descriptor ([`SYMBOL`]) is at this address.
    ///
    /// # Errors
    /// Why the heaps are unknown. In most cases the runtime is older.
    pub fn of_runtime(descriptor: u64) -> Result<CodeHeaps, ContractError> {
        let contract = Contract::at(descriptor)?;
        let manager = "ExecutionManager";
        let (of_text, version) = contract.version(manager)?;
        if !VERSIONS.contains(&(of_text, version.as_str())) {
            return Err(ContractError::Missing(manager));
        }
        let map = contract.pointer("ExecutionManagerCodeRangeMapAddress")?;
        let of_fragment = |field| contract.offset("RangeSectionFragment", field);
        let of_section = |field| contract.offset("RangeSection", field);
        let of_node = |field| contract.offset("CodeHeapListNode", field);
        Ok(CodeHeaps {
            ranges: map.wrapping_add(contract.offset("RangeSectionMap", "TopLevelData")?),
            fragment: Fragment {
                begin: of_fragment("RangeBegin")?,
                end: of_fragment("RangeEndOpen")?,
                section: of_fragment("RangeSection")?,
                next: of_fragment("Next")?,
            },
            section: Section {
                begin: of_section("RangeBegin")?,
                end: of_section("RangeEndOpen")?,
                heap: of_section("HeapList")?,
                next_to_go: of_section("NextForDelete")?,
            },
            node: Node {
                start: of_node("StartAddress")?,
                end: of_node("EndAddress")?,
                base: of_node("MapBase")?,
                map: of_node("HeaderMap")?,
            },
            header_method: contract.offset("RealCodeHeader", "MethodDesc")?,
            last_stub: contract.number("StubCodeBlockLast")?,
        })
    }

    /// Returns the body that begins last before `address`, if one is near. Async-signal-safe.
    pub fn code_at(&self, address: u64) -> Option<HeapCode> {
        self.code_by(read, address)
    }

    /// Finds the body by `read`, whose first argument says whether the memory may be freed.
    fn code_by(
        &self,
        read: impl Fn(bool, u64, &mut [u8]) -> &[u8],
        address: u64,
    ) -> Option<HeapCode> {
        let word = |may_go, at: u64| {
            let mut buffer = [0; 8];
            let read = read(may_go, at, &mut buffer).first_chunk::<8>()?;
            Some(u64::from_le_bytes(*read))
        };
        let (section, may_go) = self.section(word, address)?;
        let word = |at| word(may_go, at);
        let node = word(section.wrapping_add(self.section.heap)).filter(|node| *node != 0)?;
        let of_node = |offset| word(node.wrapping_add(offset));
        let (start, end) = (of_node(self.node.start)?, of_node(self.node.end)?);
        if !(start..end).contains(&address) {
            return None;
        }
        let (base, map) = (of_node(self.node.base)?, of_node(self.node.map)?);
        let peek = reader(|at, buffer| read(may_go, at, buffer));
        let start = base.wrapping_add(start_by(peek, map, address.checked_sub(base)?)?);
        let header = word(start.wrapping_sub(8)).filter(|header| *header > self.last_stub)?;
        Some(HeapCode {
            start,
            function: word(header.wrapping_add(self.header_method))?,
            may_go,
        })
    }

    /// Returns the pointer to the first range of the chunk of `address`, and whether the range may
    /// be freed.
    fn first_fragment(
        &self,
        word: impl Fn(bool, u64) -> Option<u64>,
        address: u64,
    ) -> Option<(u64, bool)> {
        // The lowest bit of a pointer to a table or a fragment says that all code there can be
        // unloaded. It may be freed during the read, so its memory may contain anything.
        let (mut next, mut may_go) = (self.ranges, false);
        for level in (0..LEVELS).rev() {
            may_go |= next & 1 != 0;
            let table = next & !1;
            let index = address >> (CHUNK_SHIFT + 8 * level) & 0xff;
            next = word(may_go, table.wrapping_add(index * 8)).filter(|next| *next != 0)?;
        }
        Some((next, may_go))
    }

    /// Returns the section of the range with this address, and whether the section may be freed.
    fn section(
        &self,
        word: impl Fn(bool, u64) -> Option<u64>,
        address: u64,
    ) -> Option<(u64, bool)> {
        let (mut next, mut may_go) = self.first_fragment(&word, address)?;
        for _ in 0..MAX_FRAGMENTS {
            may_go |= next & 1 != 0;
            let fragment = next & !1;
            if fragment == 0 {
                break;
            }
            let field = |offset| word(may_go, fragment.wrapping_add(offset));
            if (field(self.fragment.begin)?..field(self.fragment.end)?).contains(&address) {
                let section = field(self.fragment.section)?;
                // The section is being freed (`RangeSectionMap::RemoveRangeSection`).
                let goes =
                    may_go && word(true, section.wrapping_add(self.section.next_to_go))? != 0;
                return (!goes).then_some((section, may_go));
            }
            next = field(self.fragment.next)?;
        }
        None
    }
}

/// Determines the type of a closure for type inference.
pub(crate) fn reader<R: Fn(u64, &mut [u8]) -> &[u8]>(read: R) -> R {
    read
}

/// Reads memory of a runtime's records. Async-signal-safe.
pub(crate) fn read(may_go: bool, address: u64, buffer: &mut [u8]) -> &[u8] {
    if may_go {
        return peek(address, buffer);
    }
    // SAFETY: the runtime's contract says that these records are there, and that code, its header
    // and its map stay where `RangeSectionMap` does not mark them (`vm/codeman.h`,
    // `RangeSectionFragmentPointer`): it reads them itself like this.
    unsafe { read_in_place(address, buffer) }
}

/// Bytes of code for a nibble (a bucket), and for a unit of eight nibbles. Code begins at most once
/// in a bucket.
const BUCKET: u64 = 32;
const UNIT: u64 = 256;
/// Lowest value of a nibble that says that its unit is inside one body, and where that body begins.
/// Lower values give the start of code in the bucket, in steps of 4 bytes from 1 on.
const POINTER: u32 = 9;
const LAST_POINTER: u32 = 12;

/// Returns the start of the code that contains the byte at `offset`, in a heap with this map.
/// Offsets are from the heap's first byte.
fn start_by(peek: impl Fn(u64, &mut [u8]) -> &[u8], map: u64, offset: u64) -> Option<u64> {
    let unit = offset / UNIT;
    // Reads its unit and the unit before it at once.
    let (first, count) = match unit.checked_sub(1) {
        Some(before) => (before, 2),
        None => (0, 1),
    };
    let mut buffer = [0; 8];
    let wanted = buffer.get_mut(..count * 4)?;
    let (units, _) = peek(map.wrapping_add(first * 4), wanted).as_chunks::<4>();
    let mut units = units.iter().rev().map(|unit| u32::from_le_bytes(*unit));
    let own = units.next().filter(|_| units.len() + 1 == count)?;
    let base = unit * UNIT;
    let into = (offset % UNIT) as u32;
    start_in(own, base, into).or_else(|| start_in(units.next()?, base - UNIT, UNIT as u32 - 1))
}

/// Returns the start of code according to one unit, at the byte `into` of it or before.
fn start_in(unit: u32, base: u64, into: u32) -> Option<u64> {
    let last = unit & 0xf;
    if last >= POINTER {
        return (last <= LAST_POINTER)
            .then(|| u64::from(unit & !0xf) + u64::from(last - POINTER) * 4);
    }
    let slot = into / BUCKET as u32;
    let begins = |slot: u32| {
        let nibble = unit >> (28 - 4 * slot) & 0xf;
        (1..POINTER)
            .contains(&nibble)
            .then(|| slot * BUCKET as u32 + (nibble - 1) * 4)
    };
    let found = (0..=slot)
        .rev()
        .find_map(|slot| begins(slot).filter(|begin| *begin <= into))?;
    Some(base + u64::from(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heaps::contract::tests::Laid;
    use proptest::prelude::*;

    /// Returns the map that the runtime would write for bodies with these starts and lengths
    /// (`EEJitManager::NibbleMapSetUnlocked`).
    fn map_of(bodies: &[(u64, u64)], size: u64) -> Vec<u32> {
        let mut units = vec![0_u32; (size / UNIT + 1) as usize];
        for &(begin, length) in bodies {
            let unit = begin / UNIT;
            let slot = (begin % UNIT / BUCKET) as u32;
            let nibble = (begin % BUCKET / 4 + 1) as u32;
            units[unit as usize] |= nibble << (28 - 4 * slot);
            for unit in unit + 1.. {
                if (unit + 1) * UNIT > begin + length {
                    break;
                }
                units[unit as usize] = (begin as u32 & !0xf) + (begin as u32 >> 2 & 3) + POINTER;
            }
        }
        units
    }

    fn start(map: &[u32], offset: u64) -> Option<u64> {
        start_by(peek, map.as_ptr() as u64, offset)
    }

    #[test]
    fn the_example_of_the_runtimes_own_page() {
        let map = map_of(&[(304, 1024)], 4096);
        assert_eq!(map[1], 0x0500_0000);
        assert_eq!(map[2..5], [304 + 9; 3]);
        assert_eq!(map[5], 0);
        let starts = [303, 304, 306, 400, 600, 1300].map(|offset| start(&map, offset));
        let found = Some(304);
        assert_eq!(starts, [None, found, found, found, found, found]);
    }

    /// A heap with bodies, and all records that lead to it, in the test's memory, in the layout of
    /// .NET 10 and 11.
    pub(super) struct Runtime {
        pub(super) bodies: Vec<(u64, u64)>,
        _tables: Vec<Vec<u64>>,
        section: Vec<u64>,
        fragment: Vec<u64>,
        _map: Vec<u32>,
        pub(super) code: Vec<u64>,
        /// Address of the table that leads to the ranges.
        top: u64,
        contract: Box<Laid>,
    }

    pub(super) const FUNCTION: u64 = 0x7777_0000;

    /// The contracts of .NET 10.0 and .NET 11.0, reduced to the parts that are read and similar
    /// ones.
    const TEN: &str = r#"{"version":0,"types":{"RangeSectionMap":{"TopLevelData":0},
        "RangeSectionFragment":{"RangeBegin":8,"RangeEndOpen":16,"RangeSection":24,"Next":0},"RangeSection":{"RangeBegin":0,"RangeEndOpen":8,
        "HeapList":40,"NextForDelete":64},"RealCodeHeader":{"MethodDesc":24},"CodeHeapListNode":{"StartAddress":16,"EndAddress":24,"MapBase":32,"HeaderMap":40}},
        "globals":{"StubCodeBlockLast":["0xf","uint8"],"ExecutionManagerCodeRangeMapAddress":[[36],"pointer"]},
        "contracts":{"ExecutionManager":2}}"#;
    pub(super) const ELEVEN: &str = include_str!("heaps/tests/contract-11.0.json");

    impl Runtime {
        /// Makes a heap from gaps and lengths of bodies, in words. Before each body is a word for
        /// the header.
        fn of(parts: &[(u64, u64)]) -> Runtime {
            Runtime::with(parts, true)
        }

        /// As [`Runtime::of`]; with `may_go`, marked as code that can be unloaded.
        pub(super) fn with(parts: &[(u64, u64)], may_go: bool) -> Runtime {
            let mut bodies = Vec::new();
            let mut at = 8;
            for (gap, length) in parts {
                at += 32 + gap * 8;
                bodies.push((at, length * 8));
                at += length * 8;
            }
            let mut code = vec![0_u64; (at / 8) as usize];
            let base = code.as_ptr() as u64;
            let map = map_of(&bodies, at);
            let mut headers: Vec<u64> = Vec::new();
            for number in 0..bodies.len() as u64 {
                headers.extend([0, 0, 0, FUNCTION + number * 8, 0]);
            }
            for (number, (begin, _)) in bodies.iter().enumerate() {
                code[*begin as usize / 8 - 1] = headers.as_ptr() as u64 + number as u64 * 40;
            }
            let node = vec![0, 0, base + 8, base + at, base, map.as_ptr() as u64];
            let mut section = vec![base, base + at, 2, 0x10_0008, 0, node.as_ptr() as u64];
            section.extend([0; 3]);
            let (first_chunk, last_chunk) = (base >> CHUNK_SHIFT, (base + at) >> CHUNK_SHIFT);
            // The fragment of a heap that begins and ends in the chunk.
            let (before, section_at) = (first_chunk << CHUNK_SHIFT, section.as_ptr() as u64);
            let other = vec![0, before, before + 1, section_at];
            let mut tables = vec![node, headers];
            // The first range ends before and marks the next one's code as unloadable.
            let fragment = vec![0, base, base + at, section_at];
            let mark = u64::from(may_go);
            let next = fragment.as_ptr() as u64 | mark;
            let first = vec![next, before, before + 1, other.as_ptr() as u64];
            let chunks = first_chunk..=last_chunk;
            // All addresses must have the same path except for the lowest level.
            assert_eq!(chunks.start() >> 8, chunks.end() >> 8, "another place");
            let mut level = vec![0; 256];
            for chunk in chunks.clone() {
                level[chunk as usize & 0xff] = first.as_ptr() as u64;
            }
            tables.extend([other, first]);
            for up in 1..LEVELS {
                let mut above = vec![0; 256];
                // Marked like a table that was made for unloadable code.
                let mark = u64::from(may_go && up == 1);
                above[(base >> (CHUNK_SHIFT + 8 * up)) as usize & 0xff] =
                    level.as_ptr() as u64 | mark;
                tables.push(level);
                level = above;
            }
            let top = level.as_ptr() as u64;
            let contract = contract(TEN, top);
            tables.push(level);
            Runtime {
                bodies,
                _tables: tables,
                section,
                fragment,
                _map: map,
                code,
                top,
                contract,
            }
        }

        fn heaps(&self) -> CodeHeaps {
            CodeHeaps::of_runtime(self.contract.at()).unwrap()
        }

        /// Reads the heaps with another description of them.
        pub(super) fn by(&self, text: &str) -> Result<CodeHeaps, ContractError> {
            CodeHeaps::of_runtime(contract(text, self.top).at())
        }
    }

    fn contract(text: &str, top: u64) -> Box<Laid> {
        let mut pointers = [0x10_0008; 64];
        pointers[36] = top;
        Laid::of(text, &pointers)
    }

    /// Determines the type of a closure for type inference.
    fn any_reader<R: Fn(bool, u64, &mut [u8]) -> &[u8]>(read: R) -> R {
        read
    }

    #[test]
    fn what_net_11_says_of_itself_means_what_net_10_says() {
        let runtime = Runtime::of(&[(0, 20)]);
        assert_eq!(runtime.by(ELEVEN), runtime.by(TEN));
    }

    /// Reads the whole contracts of the runtimes that are set up.
    #[test]
    fn real_contracts_are_read() {
        for runtime in testkit::Runtime::all() {
            let file = std::fs::read(runtime.framework_dir().join("libcoreclr.so")).unwrap();
            let begin = b"{\"version\":";
            let places = file.windows(begin.len()).enumerate();
            let places = places.filter(|(_, bytes)| bytes == begin);
            let texts = places.filter_map(|(at, _)| {
                let text = file[at..].split(|byte| *byte == 0).next()?;
                std::str::from_utf8(text).ok()
            });
            let of_code = texts.filter(|text| text.contains("\"RealCodeHeader\""));
            let read: Vec<_> = of_code
                .map(|text| (text, contract(text, 0x10_0008)))
                .collect();
            let major = runtime.version.split('.').next().unwrap();
            let wanted = usize::from(major.parse::<u32>().unwrap() >= 10);
            assert_eq!(read.len(), wanted, "{}", runtime.version);
            for (text, laid) in read {
                let heaps = CodeHeaps::of_runtime(laid.at());
                assert!(heaps.is_ok(), "{}: {heaps:?} of {text}", runtime.version);
            }
        }
    }

    #[test]
    fn another_version_is_another_contract() {
        let runtime = Runtime::of(&[(0, 20)]);
        let missing = Err(ContractError::Missing("ExecutionManager"));
        let manager = |name: &str| format!("\"ExecutionManager\":{name}");
        for other in ["\"c2\"", "\"c10\"", "\"2\"", "2", "1", "[\"c1\"]", "\"\""] {
            let doctored = ELEVEN.replace(&manager("\"c1\""), &manager(other));
            assert_ne!(doctored, ELEVEN);
            assert_eq!(runtime.by(&doctored), missing, "{other}");
        }
        let doctored = TEN.replace(&manager("2"), &manager("\"c1\""));
        assert_eq!(runtime.by(&doctored), missing);
        // Another version of the descriptor, and no version.
        for other in ["\"version\":3", "\"version\":0", "\"other\":2"] {
            let doctored = ELEVEN.replace("\"version\":2", other);
            assert_eq!(runtime.by(&doctored), missing, "{other}");
        }
    }

    /// A fragment that is freed during the read may contain anything.
    #[test]
    fn what_a_fragment_leads_to_that_may_go_is_read_with_care() {
        let mut runtime = Runtime::of(&[(0, 20)]);
        let heaps = runtime.heaps();
        let at = runtime.code.as_ptr() as u64 + runtime.bodies[0].0;
        assert!(heaps.code_at(at).is_some());
        let fragments = runtime.fragment.as_mut_ptr();
        // SAFETY: in range.
        unsafe { fragments.add(3).write(0x10_0008) };
        assert_eq!(heaps.code_at(at), None);
        // SAFETY: in range.
        unsafe { fragments.copy_from([0x10_0008, 1, 2, 0x10_0008].as_ptr(), 4) };
        assert_eq!(heaps.code_at(at), None);
    }

    #[test]
    fn a_section_that_goes_has_no_code() {
        let mut runtime = Runtime::of(&[(0, 20)]);
        let heaps = runtime.heaps();
        let at = runtime.code.as_ptr() as u64 + runtime.bodies[0].0;
        runtime.section[8] = 1;
        assert_eq!(heaps.code_at(at), None);
    }

    #[test]
    fn a_stub_is_no_body() {
        let mut runtime = Runtime::of(&[(0, 20), (0, 20)]);
        let base = runtime.code.as_ptr() as u64;
        let (begin, _) = runtime.bodies[1];
        let at = base + begin + 3;
        assert!(runtime.heaps().code_at(at).is_some());
        runtime.code[begin as usize / 8 - 1] = 0xf;
        assert_eq!(runtime.heaps().code_at(at), None);
    }

    proptest! {
        #[test]
        fn each_byte_of_a_body_leads_to_its_begin(
            parts in prop::collection::vec((0_u64..40, 1_u64..200), 1..40),
            step in 1_usize..60,
        ) {
            let runtime = Runtime::of(&parts);
            let heaps = runtime.heaps();
            let base = runtime.code.as_ptr() as u64;
            for (number, (begin, length)) in runtime.bodies.iter().enumerate() {
                let wanted = HeapCode { start: base + begin, function: FUNCTION + number as u64 * 8, may_go: true };
                for offset in (*begin..begin + length).step_by(step).chain([begin + length - 1]) {
                    prop_assert_eq!(heaps.code_at(base + offset), Some(wanted));
                }
            }
            let last = base + runtime.code.len() as u64 * 8;
            prop_assert_eq!(heaps.code_at(base - 1), None);
            prop_assert_eq!(heaps.code_at(last), None);
        }

        /// Any content of the maps gives a body or none, without a fault.
        #[test]
        fn any_memory_makes_an_answer(words in prop::collection::vec(any::<u64>(), 64), address: u64) {
            let runtime = Runtime::of(&[(0, 20)]);
            let heaps = runtime.heaps();
            let memory = any_reader(|_, at: u64, buffer: &mut [u8]| {
                for (number, byte) in buffer.iter_mut().enumerate() {
                    let at = at.wrapping_add(number as u64);
                    *byte = (words[(at / 8 % 64) as usize] >> (at % 8 * 8)) as u8;
                }
                buffer
            });
            let _either = heaps.code_by(memory, address);
        }
    }
}
