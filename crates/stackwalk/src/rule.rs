//! How one frame leads to its caller: a rule, and its packed form of 31 bits.
//!
//! It is not the way to find a rule (`cfi`, `unwind_info`, `jit`, `pe`) and not the memory reads
//! that follow one (`walk`). The invariant: `Rule::unpack(rule.pack()?) == rule`, and a packed
//! rule is never 0, so 0 can mean "empty" in the rule cache.
//!
//! Only the instruction pointer, the stack pointer and the frame pointer are tracked: on x86-64
//! the unwind tables that gcc, clang, glibc and the CLR's JIT make need nothing else, except in a
//! few hand-written functions. That is what makes a rule fit into half a word, and a walk into a
//! few loads per frame.

/// Where the canonical frame address lies: the stack pointer of the caller after the return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cfa {
    /// `sp + offset`
    Sp(i32),
    /// `bp + offset`
    Bp(i32),
    /// `*(bp + offset)`: functions that realign their stack keep the address in a slot.
    Slot(i32),
}

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bp {
    /// Still in the register.
    Same,
    /// At `CFA + offset`; the offset is negative.
    FromCfa(i32),
    /// At `bp + offset` with this frame's own frame pointer.
    FromOwn(i32),
}

/// How to get from a frame to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// There is no caller: the unwind table says that the return address is undefined.
    Root,
    /// The frame that the kernel made for a signal: the interrupted registers lie in a
    /// `ucontext_t` at the stack pointer.
    SignalFrame,
    /// The stub that a hijacked method returns to (module `hijack`), which nobody called: the
    /// stack pointer of the method's caller is `sp + offset`, and the word below it is where the
    /// return address was replaced. Not packed: whether that word is the true return address
    /// again must be asked each time.
    HijackStub(i32),
    /// An ordinary frame.
    Frame {
        /// Canonical frame address.
        cfa: Cfa,
        /// The return address lies at `CFA + ra`; −8 but for some hand-written code.
        ra: i32,
        /// The caller's frame pointer.
        bp: Bp,
        /// The rule is the frame-pointer convention and not a fact about this code.
        assumed: bool,
    },
}

/// `push rbp; mov rbp, rsp`, where nothing better is known.
pub(crate) const FRAME_POINTER: Rule = Rule::Frame {
    cfa: Cfa::Bp(16),
    ra: -8,
    bp: Bp::FromCfa(-16),
    assumed: true,
};

/// A function that has pushed nothing: the return address is at the stack pointer.
pub(crate) const LEAF: Rule = Rule::Frame {
    cfa: Cfa::Sp(8),
    ra: -8,
    bp: Bp::Same,
    assumed: false,
};

// Bits: 0..3 kind, 3..19 CFA offset / 8 (signed), 19..30 frame-pointer field, 30 assumed.
const KIND_ROOT: u32 = 1;
const KIND_SP: u32 = 2;
const KIND_BP: u32 = 3;
const KIND_SIGNAL: u32 = 4;
const KIND_AT_BP: u32 = 5;
/// Number of bits in a packed rule.
pub(crate) const PACKED_BITS: u32 = 31;

/// A packed rule of the two usual kinds, `sp + offset` and `bp + offset`, taken apart without a
/// branch between the two.
#[derive(Clone, Copy)]
pub(crate) struct Usual(u32);

impl Usual {
    /// `None` for a rule of another kind, and for 0.
    #[inline(always)]
    pub(crate) fn new(packed: u32) -> Option<Self> {
        (packed & 6 == KIND_SP).then_some(Self(packed))
    }

    #[inline(always)]
    pub(crate) fn cfa(self, sp: u64, bp: u64) -> u64 {
        let base = if self.0 & 1 == 0 { sp } else { bp };
        base.wrapping_add_signed(i64::from((self.0 >> 3) as u16 as i16) * 8)
    }

    /// Whether the caller's frame pointer is still in the register.
    #[inline(always)]
    pub(crate) fn same_bp(self) -> bool {
        self.0 >> 19 & 0x7ff == 0
    }

    /// How far below the CFA the caller's frame pointer is. With [`Usual::same_bp`], where the
    /// return address is: a word that may be read as well.
    #[inline(always)]
    pub(crate) fn bp_below(self) -> u64 {
        u64::from((self.0 >> 19 & 0x7ff).max(1)) * 8
    }

    #[inline(always)]
    pub(crate) fn assumed(self) -> bool {
        self.0 >> 30 & 1 != 0
    }
}

impl Rule {
    /// The rule in [`PACKED_BITS`] bits, or `None` for one that does not fit.
    pub(crate) fn pack(self) -> Option<u32> {
        let (cfa, bp, assumed) = match self {
            Rule::Root => return Some(KIND_ROOT),
            Rule::SignalFrame => return Some(KIND_SIGNAL),
            Rule::Frame {
                cfa,
                ra: -8,
                bp,
                assumed,
            } => (cfa, bp, assumed),
            Rule::Frame { .. } | Rule::HijackStub(_) => return None,
        };
        let (kind, offset) = match cfa {
            Cfa::Sp(offset) => (KIND_SP, offset),
            Cfa::Bp(offset) => (KIND_BP, offset),
            Cfa::Slot(offset) => (KIND_AT_BP, offset),
        };
        if offset % 8 != 0 {
            return None;
        }
        let words = i16::try_from(offset / 8).ok()?;
        // For the deref kind the field is an offset from this frame's bp, biased so that 0 still
        // means "same register"; for the others it counts words below the CFA.
        let field = match (bp, cfa) {
            (Bp::Same, _) => 0,
            (Bp::FromCfa(at), Cfa::Sp(_) | Cfa::Bp(_)) if at % 8 == 0 => u32::try_from(-(at / 8))
                .ok()
                .filter(|words| (1..1 << 11).contains(words))?,
            (Bp::FromOwn(at), Cfa::Slot(_)) if at % 8 == 0 => u32::try_from(at / 8 + 1024)
                .ok()
                .filter(|words| (1..1 << 11).contains(words))?,
            _ => return None,
        };
        Some(kind | u32::from(words as u16) << 3 | field << 19 | u32::from(assumed) << 30)
    }

    /// The inverse of [`Rule::pack`]. Any other value gives some rule or `None`, never a panic.
    #[inline]
    pub(crate) fn unpack(packed: u32) -> Option<Rule> {
        let offset = i32::from((packed >> 3) as u16 as i16) * 8;
        let field = (packed >> 19 & 0x7ff) as i32;
        let assumed = packed >> 30 & 1 != 0;
        let below_cfa = if field == 0 {
            Bp::Same
        } else {
            Bp::FromCfa(field * -8)
        };
        let (cfa, bp) = match packed & 7 {
            KIND_SP => (Cfa::Sp(offset), below_cfa),
            KIND_BP => (Cfa::Bp(offset), below_cfa),
            KIND_AT_BP => (
                Cfa::Slot(offset),
                if field == 0 {
                    Bp::Same
                } else {
                    Bp::FromOwn((field - 1024) * 8)
                },
            ),
            KIND_ROOT => return Some(Rule::Root),
            KIND_SIGNAL => return Some(Rule::SignalFrame),
            _ => return None,
        };
        Some(Rule::Frame {
            cfa,
            ra: -8,
            bp,
            assumed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_rule() -> impl Strategy<Value = Rule> {
        let cfa = prop_oneof![
            any::<i32>().prop_map(Cfa::Sp),
            (-40000i32..40000).prop_map(|words| Cfa::Sp(words * 8)),
            (-40000i32..40000).prop_map(|words| Cfa::Bp(words * 8)),
            (-40000i32..40000).prop_map(|words| Cfa::Slot(words * 8)),
        ];
        let bp = prop_oneof![
            Just(Bp::Same),
            any::<i32>().prop_map(Bp::FromCfa),
            (-3000i32..3000).prop_map(|words| Bp::FromCfa(words * 8)),
            (-3000i32..3000).prop_map(|words| Bp::FromOwn(words * 8)),
        ];
        let ra = prop_oneof![9 => Just(-8), 1 => any::<i32>()];
        prop_oneof![
            1 => Just(Rule::Root),
            1 => Just(Rule::SignalFrame),
            1 => any::<i32>().prop_map(Rule::HijackStub),
            8 => (cfa, ra, bp, any::<bool>())
                .prop_map(|(cfa, ra, bp, assumed)| Rule::Frame { cfa, ra, bp, assumed }),
        ]
    }

    proptest! {
        #[test]
        fn packing_loses_nothing(rule in any_rule()) {
            if let Some(packed) = rule.pack() {
                prop_assert_ne!(packed, 0);
                prop_assert_eq!(packed >> PACKED_BITS, 0);
                prop_assert_eq!(Rule::unpack(packed), Some(rule));
            }
        }

        #[test]
        fn the_short_way_is_the_long_way(rule in any_rule(), sp in 0u64..1 << 60, bp in 0u64..1 << 60) {
            let usual = rule.pack().and_then(Usual::new);
            if let (Some(usual), Rule::Frame { cfa, bp: saved, assumed, .. }) = (usual, rule) {
                let (base, offset) = match cfa {
                    Cfa::Sp(offset) => (sp, offset),
                    Cfa::Bp(offset) => (bp, offset),
                    Cfa::Slot(_) => return Err(TestCaseError::fail("not a usual rule")),
                };
                prop_assert_eq!(usual.cfa(sp, bp), base.wrapping_add_signed(offset.into()));
                match saved {
                    Bp::Same => prop_assert!(usual.same_bp() && usual.bp_below() == 8),
                    Bp::FromCfa(at) => {
                        prop_assert!(!usual.same_bp());
                        prop_assert_eq!(usual.bp_below(), u64::from(at.unsigned_abs()));
                    }
                    Bp::FromOwn(_) => return Err(TestCaseError::fail("not a usual rule")),
                }
                prop_assert_eq!(usual.assumed(), assumed);
            } else {
                let other = !matches!(
                    rule.pack().and_then(Rule::unpack),
                    Some(Rule::Frame { cfa: Cfa::Sp(_) | Cfa::Bp(_), .. })
                );
                prop_assert!(other);
            }
        }

        #[test]
        fn unpacking_never_panics(packed: u32) {
            Rule::unpack(packed);
        }
    }

    #[test]
    fn usual_rules_pack() {
        for rule in [
            FRAME_POINTER,
            LEAF,
            Rule::Root,
            Rule::SignalFrame,
            Rule::Frame {
                cfa: Cfa::Sp(200_000),
                ra: -8,
                bp: Bp::FromCfa(-16),
                assumed: false,
            },
            Rule::Frame {
                cfa: Cfa::Slot(-8),
                ra: -8,
                bp: Bp::FromOwn(0),
                assumed: false,
            },
        ] {
            assert_eq!(rule.pack().and_then(Rule::unpack), Some(rule));
        }
    }
}
