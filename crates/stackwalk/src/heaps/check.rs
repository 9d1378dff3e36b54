//! Verifies a runtime's contract: compares its records with a body that is known otherwise.
//!
//! Verified records are read without a system call, so the layout must be true. A runtime with
//! another layout than its contract says, or a changed copy, would make walks read arbitrary
//! addresses. Invariants: everything here is read through the kernel. A contract that is wrong for
//! a body is rejected.

use std::ops::Range;

use super::{CHUNK_SHIFT, CodeHeaps, MAX_FRAGMENTS, reader};
use crate::own_memory::peek;

impl CodeHeaps {
    /// Whether the records contain this body at its first and last byte, for the method with this
    /// FunctionID, and are sound around it. The result is meaningless for a body that was unloaded
    /// in the meantime. Not in a signal handler.
    pub fn agree(&self, body: &Range<u64>, function: u64) -> bool {
        let found = |address| {
            let code = self.code_by(|_, at, buffer| peek(at, buffer), address);
            code.is_some_and(|code| code.start == body.start && code.function == function)
        };
        found(body.start)
            && found(body.end.wrapping_sub(1))
            && self.is_sound(body.start) == Some(true)
    }

    /// Whether all permanent ranges of the chunk are inside it, and the range of the address
    /// matches its section and has a heap. `None` if a record cannot be read.
    fn is_sound(&self, address: u64) -> Option<bool> {
        let peek = reader(peek);
        let word = |at: u64| {
            let mut buffer = [0; 8];
            Some(u64::from_le_bytes(*peek(at, &mut buffer).first_chunk()?))
        };
        let chunk = address >> CHUNK_SHIFT;
        let (mut next, may_go) = self.first_fragment(|_, at| word(at), address)?;
        for _ in 0..MAX_FRAGMENTS {
            // Memory that may be freed can contain anything by now, and is always read through the
            // kernel.
            if next == 0 || may_go || next & 1 != 0 {
                return Some(true);
            }
            let field = |offset| word(next.wrapping_add(offset));
            let (begin, end) = (field(self.fragment.begin)?, field(self.fragment.end)?);
            let lies_there =
                begin < end && begin >> CHUNK_SHIFT <= chunk && (end - 1) >> CHUNK_SHIFT >= chunk;
            if !lies_there {
                return Some(false);
            }
            if (begin..end).contains(&address) {
                let section = field(self.fragment.section)?;
                let of_section = |offset| word(section.wrapping_add(offset));
                let of_range = (
                    of_section(self.section.begin)?,
                    of_section(self.section.end)?,
                );
                let node = of_section(self.section.heap)?;
                let of_node = |offset| word(node.wrapping_add(offset));
                let (first, behind) = (of_node(self.node.start)?, of_node(self.node.end)?);
                let is_heap = begin <= first && first < behind && behind <= end;
                let is_gone = of_section(self.section.next_to_go)? != 0;
                if of_range != (begin, end) || !is_heap || is_gone {
                    return Some(false);
                }
            }
            next = field(self.fragment.next)?;
        }
        Some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heaps::ContractError;
    use crate::heaps::tests::{ELEVEN, FUNCTION, Runtime};

    /// All fields that are read of the descriptor, with the offsets of .NET 11.0.
    const FIELDS: [(&str, &str, u64); 14] = [
        ("RangeSectionMap", "TopLevelData", 0),
        ("RangeSectionFragment", "RangeBegin", 8),
        ("RangeSectionFragment", "RangeEndOpen", 16),
        ("RangeSectionFragment", "RangeSection", 24),
        ("RangeSectionFragment", "Next", 0),
        ("RangeSection", "RangeBegin", 0),
        ("RangeSection", "RangeEndOpen", 8),
        ("RangeSection", "HeapList", 40),
        ("RangeSection", "NextForDelete", 64),
        ("RealCodeHeader", "MethodDesc", 24),
        ("CodeHeapListNode", "StartAddress", 16),
        ("CodeHeapListNode", "EndAddress", 24),
        ("CodeHeapListNode", "MapBase", 32),
        ("CodeHeapListNode", "HeaderMap", 40),
    ];

    /// Returns the contract's text with another definition of a structure's field.
    fn doctored(structure: &str, field: &str, offset: u64, other: &str) -> String {
        let begin = ELEVEN.find(&format!("\"{structure}\":{{")).unwrap();
        let (before, rest) = ELEVEN.split_at(begin);
        let was = format!("\"{field}\":{offset}");
        assert!(
            rest.split('}').next().unwrap().contains(&was),
            "{structure}.{field}"
        );
        format!("{before}{}", rest.replacen(&was, other, 1))
    }

    fn runtimes() -> [Runtime; 2] {
        let parts = [(0, 20), (3, 90), (40, 1), (0, 200)];
        [Runtime::with(&parts, false), Runtime::with(&parts, true)]
    }

    fn bodies(runtime: &Runtime) -> impl Iterator<Item = (Range<u64>, u64)> {
        let base = runtime.code.as_ptr() as u64;
        let bodies = runtime.bodies.iter().enumerate();
        bodies.map(move |(number, (begin, length))| {
            let function = FUNCTION + number as u64 * 8;
            (base + begin..base + begin + length, function)
        })
    }

    #[test]
    fn true_contracts_agree_and_other_bodies_do_not() {
        for runtime in runtimes() {
            let heaps = runtime.by(ELEVEN).unwrap();
            for (body, function) in bodies(&runtime) {
                assert!(heaps.agree(&body, function));
                assert!(!heaps.agree(&body, function + 8));
                assert!(!heaps.agree(&(body.start + 8..body.end), function));
                assert!(!heaps.agree(&(body.start..body.end + 4096), function));
            }
            assert!(!heaps.agree(&(0x10_0000..0x10_0020), FUNCTION));
            assert!(!heaps.agree(&(0..0), FUNCTION));
        }
    }

    #[test]
    fn a_contract_without_a_field_is_refused() {
        let [runtime, _] = runtimes();
        for (structure, field, offset) in FIELDS {
            let text = doctored(structure, field, offset, "\"Other\":0");
            assert_eq!(runtime.by(&text), Err(ContractError::Missing(field)));
        }
        for (name, other) in [
            ("StubCodeBlockLast", "Other"),
            ("ExecutionManagerCodeRangeMapAddress", "Other"),
        ] {
            let text = ELEVEN.replace(name, other);
            assert_eq!(runtime.by(&text), Err(ContractError::Missing(name)));
        }
        // No address has that index; a wrong address.
        let text = ELEVEN.replace("[[36]", "[[64]");
        assert!(runtime.by(&text).is_err());
        let text = ELEVEN.replace("[[36]", "[[37]");
        let heaps = runtime.by(&text).unwrap();
        assert!(bodies(&runtime).all(|(body, function)| !heaps.agree(&body, function)));
    }

    /// With a field at another offset than the contract says, either some body is not found, or
    /// every result is the same as with the true contract.
    #[test]
    fn a_contract_with_a_field_elsewhere_does_not_agree() {
        for (structure, field, offset) in FIELDS {
            let mut agreed = 0;
            for other in (0..=64).step_by(8).filter(|other| *other != offset) {
                let text = doctored(structure, field, offset, &format!("\"{field}\":{other}"));
                let [stays, _] = runtimes();
                let (heaps, right) = (stays.by(&text).unwrap(), stays.by(ELEVEN).unwrap());
                if !bodies(&stays).all(|(body, function)| heaps.agree(&body, function)) {
                    continue;
                }
                agreed += 1;
                let base = stays.code.as_ptr() as u64;
                for address in base - 16..base + stays.code.len() as u64 * 8 + 16 {
                    let answer = heaps.code_at(address);
                    assert_eq!(answer, right.code_at(address), "{field} at {other}");
                }
            }
            // Most words of a permanent section are 0.
            let most = if field == "NextForDelete" { 4 } else { 1 };
            assert!(agreed <= most, "{field}: {agreed}");
        }
    }
}
