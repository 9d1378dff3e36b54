//! How far a body of code has been compiled.
//!
//! The profiling API does not say. From .NET 5 on the runtime tells in an event, MethodLoad, that it
//! delivers in the process on the compiling thread just before the callback
//! `JITCompilationFinished`; for older runtimes the order of a method's bodies has to do. It is
//! not a reader of EventPipe streams: the event comes as its bare payload.

use corprof::info::EventPipeProviderConfig;
use recording::Tier;

/// The runtime's provider with its JIT keyword (0x10), at the level at which MethodLoad comes
/// without names (4, informational): src/coreclr/vm/ClrEtwAll.man.
pub(crate) const PROVIDER: EventPipeProviderConfig<'static> = EventPipeProviderConfig {
    name: "Microsoft-Windows-DotNETRuntime",
    keywords: 0x10,
    level: 4,
};

/// MethodLoad_V1/V2 and MethodLoadVerbose_V1/V2: the payload begins alike.
const METHOD_LOAD: [u32; 2] = [141, 143];

/// Code start and tier from a MethodLoad event's payload: MethodID u64, ModuleID u64,
/// MethodStartAddress u64, MethodSize u32, MethodToken u32, MethodFlags u32.
pub(crate) fn of_event(id: u32, payload: &[u8]) -> Option<(u64, Tier)> {
    if !METHOD_LOAD.contains(&id) {
        return None;
    }
    let start = u64::from_le_bytes(*payload.get(16..)?.first_chunk()?);
    let flags = u32::from_le_bytes(*payload.get(32..)?.first_chunk()?);
    // Bits 7 to 9 (MethodFlagsJitOptimizationTierShift, eventtrace.cpp) hold
    // NativeCodeVersion's JitOptimizationTier (eventtrace.h).
    let tier = match (flags >> 7) & 7 {
        1 => Tier::MinOpts,
        2 => Tier::Optimized,
        3 => Tier::Tier0,
        4 => Tier::Tier1,
        5 => Tier::Osr,
        6 => Tier::Tier0Instrumented,
        7 => Tier::Tier1Instrumented,
        _ => Tier::Unknown,
    };
    Some((start, tier))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(start: u64, flags: u32) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        bytes.extend(start.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(flags.to_le_bytes());
        bytes.extend([0; 10]);
        bytes
    }

    #[test]
    fn tier_is_in_bits_seven_to_nine() {
        for (flags, tier) in [
            (0x8 | 3 << 7, Tier::Tier0),
            (0x8 | 4 << 7, Tier::Tier1),
            (0x8 | 5 << 7, Tier::Osr),
            (0x8 | 6 << 7, Tier::Tier0Instrumented),
            (0x8, Tier::Unknown),
        ] {
            assert_eq!(of_event(141, &payload(0x7f00, flags)), Some((0x7f00, tier)));
        }
    }

    #[test]
    fn other_and_short_events_are_nothing() {
        assert_eq!(of_event(142, &payload(1, 0)), None);
        for length in 0..36 {
            assert_eq!(of_event(141, &payload(1, 0)[..length]), None);
        }
    }
}
