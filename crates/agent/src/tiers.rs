//! How far a body of code has been compiled.
//!
//! The profiling API does not say, and the runtime's MethodLoad event, which does, is not
//! delivered to a session of the profiler's own (tried on 8.0.4). What can be known is told by
//! the order of a method's bodies and by the shape of the code: unoptimised code always makes a
//! frame and never saves a register but `rbp`, because it keeps nothing in registers
//! (src/coreclr/jit: `lvaEnregMultiRegVars`, `rpMustCreateEBPFrame`); a body entered in the middle
//! of a loop begins by reading the frame of the one it replaces.
//!
//! It is a reading of evidence: a small optimised method that has a frame and saves nothing looks
//! like tier-0 where it is the method's first body. docs/unwinding.md says so to users.

use recording::Tier;

/// What is known of a body when it appears.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Evidence<'a> {
    /// Its first bytes.
    pub(crate) code: &'a [u8],
    /// JITted bodies that its method had before.
    pub(crate) earlier_jitted: usize,
    /// The method has ReadyToRun code.
    pub(crate) precompiled: bool,
    /// The runtime collects profiles in instrumented tiers (.NET 8 on).
    pub(crate) instruments: bool,
}

/// The likeliest tier of a body of IL code.
pub(crate) fn of_body(evidence: Evidence<'_>) -> Tier {
    let later = evidence.earlier_jitted > 0;
    match shape(evidence.code) {
        Shape::OnStackReplacement => Tier::Osr,
        Shape::Unoptimized if evidence.precompiled => Tier::Tier1,
        Shape::Unoptimized if later && evidence.instruments => Tier::Tier0Instrumented,
        Shape::Unoptimized if later => Tier::Tier1,
        Shape::Unoptimized => Tier::Tier0,
        // Hot ReadyToRun code is instrumented first, then optimised with what was learnt
        // (docs/design/features/DynamicPgo-InstrumentedTiers.md).
        Shape::Optimized if evidence.precompiled && evidence.instruments && !later => {
            Tier::Tier1Instrumented
        }
        Shape::Optimized if later || evidence.precompiled => Tier::Tier1,
        Shape::Optimized => Tier::Optimized,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Unoptimized,
    Optimized,
    OnStackReplacement,
}

fn shape(code: &[u8]) -> Shape {
    match code {
        // mov rax, [rbp]; push rax; mov rbp, rsp
        [0x48, 0x8b, 0x45, 0x00, 0x50, 0x48, 0x8b, 0xec, ..] => Shape::OnStackReplacement,
        // push rbp, then another register: rbx, or r12 to r15.
        [0x55, 0x53, ..] | [0x55, 0x41, 0x54..=0x57, ..] => Shape::Optimized,
        // push rbp, then `mov rbp, rsp` or `sub rsp, …`.
        [0x55, 0x48, 0x8b, 0xec, ..] | [0x55, 0x48, 0x81 | 0x83, 0xec, ..] => Shape::Unoptimized,
        _ => Shape::Optimized,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_shape_make_the_tier() {
        let framed = [0x55, 0x48, 0x83, 0xec, 0x10, 0x48, 0x8d, 0x6c].as_slice();
        let saving = [0x55, 0x41, 0x57, 0x41, 0x56, 0x53].as_slice();
        let frameless = [0x50, 0xff, 0x15].as_slice();
        let osr = [0x48, 0x8b, 0x45, 0x00, 0x50, 0x48, 0x8b, 0xec].as_slice();
        for (code, earlier_jitted, precompiled, instruments, tier) in [
            (framed, 0, false, true, Tier::Tier0),
            (framed, 1, false, true, Tier::Tier0Instrumented),
            (framed, 1, false, false, Tier::Tier1),
            (saving, 2, false, true, Tier::Tier1),
            (saving, 0, false, true, Tier::Optimized),
            (frameless, 0, true, true, Tier::Tier1Instrumented),
            (frameless, 1, true, true, Tier::Tier1),
            (frameless, 0, true, false, Tier::Tier1),
            (osr, 1, false, true, Tier::Osr),
            (&[], 0, false, true, Tier::Optimized),
        ] {
            let evidence = Evidence {
                code,
                earlier_jitted,
                precompiled,
                instruments,
            };
            assert_eq!(of_body(evidence), tier, "{evidence:?}");
        }
    }
}
