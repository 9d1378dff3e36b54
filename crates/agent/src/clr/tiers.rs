//! The tier of a method body, inferred from the order and shape of the method's code.
//!
//! The profiling API does not report tiers. The runtime's MethodLoad event does, but is not
//! delivered to a profiler's own session (tried on 8.0.4). The evidence is the order of a method's
//! bodies and the shape of the code. Unoptimised code always sets up a frame and saves no register
//! but `rbp`, because it keeps nothing in registers (src/coreclr/jit: `lvaEnregMultiRegVars`,
//! `rpMustCreateEBPFrame`), or only `rbx` besides (one body of 200 on 8.0). A body entered in the
//! middle of a loop begins by reading the frame of the body it replaces.
//!
//! Limits: a small optimised method with a frame and no saved register looks like tier-0 if it is
//! the method's first body. It looks like an instrumented tier if profiles are disabled by
//! `runtimeconfig.json` alone. docs/names.md documents this for users.

use recording::Tier;

/// A runtime's tiering mode for hot code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Tiering {
    /// All code is optimised at once.
    Off = 0,
    /// Hot code is recompiled, optimised.
    #[default]
    Plain = 1,
    /// An instrumented tier collects a profile before that (.NET 8 on).
    Instrumented = 2,
}

impl Tiering {
    /// Returns the mode from its number.
    pub fn of(number: u8) -> Tiering {
        match number {
            0 => Tiering::Off,
            2 => Tiering::Instrumented,
            _ => Tiering::Plain,
        }
    }
}

/// The evidence about a body when it is compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Evidence<'a> {
    /// The first bytes of its code.
    pub code: &'a [u8],
    /// Whether it is entered in the middle of a loop, on the frame of the body that it replaces.
    pub on_stack: bool,
    /// Number of JITted bodies that its method had before. Bodies entered in the middle of a loop
    /// are excluded, as they are no step from tier to tier.
    pub earlier: usize,
    /// Whether the method has ReadyToRun code.
    pub precompiled: bool,
    /// The runtime's tiering mode.
    pub tiering: Tiering,
}

/// Returns the likeliest tier of a body of IL code.
///
/// A method goes from tier 0 or ReadyToRun code to an instrumented tier, if there is one, and then
/// to tier 1 (src/coreclr/vm/tieredcompilation.cpp,
/// `TieredCompilationManager::AsyncPromoteToTier1`;
/// docs/design/features/DynamicPgo-InstrumentedTiers.md). The third body is therefore tier 1
/// whatever its shape, as small optimised methods look unoptimised.
pub fn of_body(evidence: Evidence<'_>) -> Tier {
    let Evidence {
        code,
        on_stack,
        earlier,
        precompiled,
        tiering,
    } = evidence;
    let instruments = tiering == Tiering::Instrumented;
    match (shape(code), earlier) {
        _ if on_stack => Tier::Osr,
        _ if tiering == Tiering::Off => Tier::Optimized,
        (_, 0) if precompiled && instruments => Tier::Tier1Instrumented,
        _ if precompiled => Tier::Tier1,
        (Shape::Unoptimized, 0) => Tier::Tier0,
        (Shape::Either, 0) if instruments => Tier::Tier0,
        (Shape::Optimized | Shape::Either, 0) => Tier::Optimized,
        (Shape::Unoptimized | Shape::Either, 1) if instruments => Tier::Tier0Instrumented,
        _ => Tier::Tier1,
    }
}

/// Returns the tiering mode of a runtime of this version, as far as this process's environment
/// determines it (`TieredCompilation`, `TieredPGO`, src/coreclr/inc/clrconfignames.h,
/// clrconfigvalues.h; numbers are hex).
pub fn tiering(major: u16) -> Tiering {
    let is_zero = |name: String| {
        std::env::var(name).is_ok_and(|value| {
            let digits = value.trim().trim_start_matches("0x");
            !digits.is_empty() && digits.bytes().all(|digit| digit == b'0')
        })
    };
    let is_off = |what: &str| {
        let mut prefixes = ["DOTNET_", "COMPlus_"].iter();
        prefixes.any(|prefix| is_zero(format!("{prefix}{what}")))
    };
    if is_off("TieredCompilation") {
        Tiering::Off
    } else if major >= 8 && !is_off("TieredPGO") {
        Tiering::Instrumented
    } else {
        Tiering::Plain
    }
}

/// Whether this process's environment allows hot reload to change methods (`MODIFIABLE_ASSEMBLIES`,
/// src/coreclr/inc/clrconfignames.h; without it `MetadataUpdater.ApplyUpdate` refuses).
pub fn is_modifiable() -> bool {
    let names = [
        "DOTNET_MODIFIABLE_ASSEMBLIES",
        "COMPlus_MODIFIABLE_ASSEMBLIES",
    ];
    let is_debug = |value: String| value.eq_ignore_ascii_case("debug");
    names
        .iter()
        .any(|name| std::env::var(name).is_ok_and(is_debug))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Unoptimized,
    Optimized,
    /// Nearly always unoptimised if profiles are collected: optimised bodies then come third, or
    /// after ReadyToRun code.
    Either,
}

fn shape(code: &[u8]) -> Shape {
    match code {
        // push rbp, push rbx, sub rsp, …: no other saved register.
        [0x55, 0x53, 0x48, 0x81 | 0x83, 0xec, ..] => Shape::Either,
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
        let with_rbx = [0x55, 0x53, 0x48, 0x83, 0xec, 0x58].as_slice();
        let frameless = [0x50, 0xff, 0x15].as_slice();
        for (code, earlier, precompiled, instruments, tier) in [
            (framed, 0, false, true, Tier::Tier0),
            (framed, 1, false, true, Tier::Tier0Instrumented),
            (framed, 2, false, true, Tier::Tier1),
            (framed, 1, false, false, Tier::Tier1),
            (saving, 1, false, true, Tier::Tier1),
            (saving, 2, false, true, Tier::Tier1),
            (saving, 0, false, true, Tier::Optimized),
            (framed, 0, true, true, Tier::Tier1Instrumented),
            (framed, 1, true, true, Tier::Tier1),
            (with_rbx, 0, false, true, Tier::Tier0),
            (with_rbx, 1, false, true, Tier::Tier0Instrumented),
            (with_rbx, 2, false, true, Tier::Tier1),
            (with_rbx, 0, false, false, Tier::Optimized),
            (with_rbx, 1, false, false, Tier::Tier1),
            (with_rbx, 0, true, true, Tier::Tier1Instrumented),
            (frameless, 0, true, true, Tier::Tier1Instrumented),
            (frameless, 1, true, true, Tier::Tier1),
            (frameless, 0, true, false, Tier::Tier1),
            (framed, 1, false, true, Tier::Osr),
            (frameless, 2, true, true, Tier::Osr),
            (&[], 0, false, true, Tier::Optimized),
        ] {
            let evidence = Evidence {
                code,
                on_stack: tier == Tier::Osr,
                earlier,
                precompiled,
                tiering: if instruments {
                    Tiering::Instrumented
                } else {
                    Tiering::Plain
                },
            };
            assert_eq!(of_body(evidence), tier, "{evidence:?}");
            let at_once = Evidence {
                tiering: Tiering::Off,
                ..evidence
            };
            let other = if evidence.on_stack {
                tier
            } else {
                Tier::Optimized
            };
            assert_eq!(of_body(at_once), other, "{at_once:?}");
        }
    }
}
