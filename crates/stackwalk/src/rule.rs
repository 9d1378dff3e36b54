//! Unwind rule: locations of a caller's registers relative to one frame, packed into 31 bits.
//!
//! Rules are found by `cfi`, `unwind_info`, `jit` and `pe`, and applied by `walk`. Invariant:
//! `Rule::unpack(rule.pack()?) == rule`, and a packed rule is never 0, so 0 can mean "empty" in the
//! rule cache.
//!
//! Only the instruction pointer, the stack pointer and the frame pointer are tracked. On x86-64 the
//! unwind tables of gcc, clang, glibc and the CLR's JIT need nothing else, except in a few
//! hand-written functions. So a rule fits into half a word, and a walk needs a few loads per frame.

/// A register that is known in every frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Base {
    Sp,
    Bp,
}

/// Location of the canonical frame address: the stack pointer of the caller after the return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cfa {
    /// `sp + offset`
    Sp(i32),
    /// `bp + offset`
    Bp(i32),
    /// `*(bp + offset)`: functions that realign their stack keep the address in a slot.
    Slot(i32),
    /// `*(register + at) + add`: OpenSSL's assembler keeps its caller's stack pointer in a slot.
    Word(Base, i32, i32),
    /// Another register, by its DWARF number, + offset. It is known in an interrupted frame, and in
    /// a caller if its callee has saved it.
    Other(u8, i32),
}

/// Location of the caller's frame pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bp {
    /// Still in the register.
    Same,
    /// At `CFA + offset`; the offset is negative.
    FromCfa(i32),
    /// At `bp + offset`, from this frame's own frame pointer.
    FromOwn(i32),
}

/// How the caller's registers are found from a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// No caller: the unwind table says that the return address is undefined.
    Root,
    /// The frame that the kernel made for a signal: the interrupted registers are in a `ucontext_t`
    /// at the stack pointer.
    SignalFrame,
    /// The stub that a hijacked method returns to (module `hijack`), which is never called. The
    /// stack pointer of the method's caller is `sp + offset`, and the word below it is where the
    /// return address was replaced. Not packed: each walk must check whether that word is the
    /// original return address again.
    HijackStub(i32),
    /// The table's row needs the frame's registers and memory (`cfi::evaluate`). Not packed.
    Evaluate,
    /// The next instruction jumps into another frame, whose stack pointer and frame pointer are in
    /// the registers already. Its target is in this register, by its DWARF number. Not packed,
    /// because the rule is valid for that instruction only.
    Landing(u8),
    /// An ordinary frame.
    Frame {
        /// Canonical frame address.
        cfa: Cfa,
        /// The return address is at `CFA + ra`: −8, except in some hand-written code.
        ra: i32,
        /// The caller's frame pointer.
        bp: Bp,
        /// Whether the rule is the frame-pointer convention instead of data about this code.
        assumed: bool,
    },
}

/// The rule after `push rbp; mov rbp, rsp`, used if no better one is known.
pub(crate) const FRAME_POINTER: Rule = Rule::Frame {
    cfa: Cfa::Bp(16),
    ra: -8,
    bp: Bp::FromCfa(-16),
    assumed: true,
};

/// The rule of a function that has pushed nothing: the return address is at the stack pointer.
pub(crate) const LEAF: Rule = Rule::Frame {
    cfa: Cfa::Sp(8),
    ra: -8,
    bp: Bp::Same,
    assumed: false,
};

// Bits: 0..3 kind, 3..19 CFA offset / 8 (signed), 19..30 frame-pointer field, 30 assumed. Kinds
// that read a word for the CFA: 3..14 its offset / 8, 14..19 the addend / 8 (both signed). Kind of
// another register: 3..7 its number, 7..19 the offset / 8 (signed).
const KIND_OTHER: u32 = 0;
const KIND_ROOT: u32 = 1;
const KIND_SP: u32 = 2;
const KIND_BP: u32 = 3;
const KIND_SIGNAL: u32 = 4;
const KIND_AT_BP: u32 = 5;
const KIND_WORD_SP: u32 = 6;
const KIND_WORD_BP: u32 = 7;
/// Number of bits in a packed rule.
pub(crate) const PACKED_BITS: u32 = 31;

/// A packed rule of the two usual kinds, `sp + offset` and `bp + offset`, unpacked without a branch
/// between the two.
#[derive(Clone, Copy)]
pub(crate) struct Usual(u32);

impl Usual {
    /// Unpacks a rule; `None` for another kind, and for 0.
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

    /// Returns the distance of the caller's frame pointer below the CFA. With [`Usual::same_bp`] it
    /// is that of the return address, a word that may be read as well.
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
    /// Packs the rule into [`PACKED_BITS`] bits; `None` if it does not fit.
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
            Rule::Frame { .. } | Rule::HijackStub(_) | Rule::Evaluate | Rule::Landing(_) => {
                return None;
            }
        };
        let (kind, where_from) = match cfa {
            Cfa::Sp(offset) => (KIND_SP, words(offset, 16)?),
            Cfa::Bp(offset) => (KIND_BP, words(offset, 16)?),
            Cfa::Slot(offset) => (KIND_AT_BP, words(offset, 16)?),
            Cfa::Word(base, at, add) => {
                let kind = match base {
                    Base::Sp => KIND_WORD_SP,
                    Base::Bp => KIND_WORD_BP,
                };
                (kind, words(at, 11)? | words(add, 5)? << 11)
            }
            Cfa::Other(register @ 0..16, offset) => {
                (KIND_OTHER, u32::from(register) | words(offset, 12)? << 4)
            }
            Cfa::Other(..) => return None,
        };
        // The field counts words below the CFA. For a slot's kind it is an offset from this frame's
        // bp, biased so that 0 still means "same register". For another register it is either.
        let field = match (bp, cfa) {
            (Bp::Same, _) => 0,
            (Bp::FromOwn(at), Cfa::Slot(_)) => words(at, 11)? ^ 1024,
            (Bp::FromOwn(at), Cfa::Other(..)) => words(at, 10)? | 1024,
            (Bp::FromCfa(at), Cfa::Other(..)) => words(at.checked_neg()?, 11)?,
            (Bp::FromCfa(at), Cfa::Sp(_) | Cfa::Bp(_) | Cfa::Word(..)) => {
                words(at.checked_neg()?, 12)?
            }
            _ => return None,
        };
        // Only "same register" is 0, and no slot is above the CFA.
        let below = matches!(bp, Bp::FromCfa(_));
        let limit = if matches!(cfa, Cfa::Other(..)) {
            1024
        } else {
            1 << 11
        };
        if (field == 0) != (bp == Bp::Same) || field >= 1 << 11 || below && field >= limit {
            return None;
        }
        let packed = kind | where_from << 3 | field << 19 | u32::from(assumed) << 30;
        // 0 means that there is no rule.
        (packed != 0).then_some(packed)
    }

    /// Inverse of [`Rule::pack`]. Any other value gives some rule or `None`, never a panic.
    #[inline]
    pub(crate) fn unpack(packed: u32) -> Option<Rule> {
        if packed == 0 {
            return None;
        }
        let offset = i32::from((packed >> 3) as u16 as i16) * 8;
        let field = packed >> 19 & 0x7ff;
        let assumed = packed >> 30 & 1 != 0;
        let below_cfa = if field == 0 {
            Bp::Same
        } else {
            Bp::FromCfa(field.cast_signed() * -8)
        };
        let word = |base| Cfa::Word(base, bytes(packed >> 3, 11), bytes(packed >> 14, 5));
        let (cfa, bp) = match packed & 7 {
            KIND_SP => (Cfa::Sp(offset), below_cfa),
            KIND_BP => (Cfa::Bp(offset), below_cfa),
            KIND_WORD_SP => (word(Base::Sp), below_cfa),
            KIND_WORD_BP => (word(Base::Bp), below_cfa),
            KIND_AT_BP if field == 0 => (Cfa::Slot(offset), Bp::Same),
            KIND_AT_BP => (Cfa::Slot(offset), Bp::FromOwn(bytes(field ^ 1024, 11))),
            KIND_OTHER => {
                let cfa = Cfa::Other((packed >> 3 & 15) as u8, bytes(packed >> 7, 12));
                if field & 1024 == 0 {
                    (cfa, below_cfa)
                } else {
                    (cfa, Bp::FromOwn(bytes(field, 10)))
                }
            }
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

/// Encodes an offset in words as a signed field of `bits` bits.
fn words(offset: i32, bits: u32) -> Option<u32> {
    let words = offset / 8;
    let fits = offset % 8 == 0 && (-(1 << (bits - 1))..1 << (bits - 1)).contains(&words);
    fits.then_some(words.cast_unsigned() & ((1 << bits) - 1))
}

/// Inverse of [`words`]. Bits above the field are ignored.
fn bytes(field: u32, bits: u32) -> i32 {
    ((field << (32 - bits)).cast_signed() >> (32 - bits)) * 8
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
            (any::<bool>(), -1100i32..1100, -20i32..20).prop_map(|(sp, at, add)| {
                Cfa::Word(if sp { Base::Sp } else { Base::Bp }, at * 8, add * 8)
            }),
            (any::<bool>(), any::<i32>(), any::<i32>()).prop_map(|(sp, at, add)| Cfa::Word(
                if sp { Base::Sp } else { Base::Bp },
                at,
                add
            )),
            (0u8..17, -2100i32..2100).prop_map(|(register, words)| Cfa::Other(register, words * 8)),
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
                    _ => return Err(TestCaseError::fail("not a usual rule")),
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
            // OpenSSL's assembler: in the body, in a prologue, in an epilogue.
            Rule::Frame {
                cfa: Cfa::Word(Base::Sp, 4096, 8),
                ra: -8,
                bp: Bp::FromCfa(-24),
                assumed: false,
            },
            Rule::Frame {
                cfa: Cfa::Word(Base::Sp, -8, 8),
                ra: -8,
                bp: Bp::FromCfa(-24),
                assumed: false,
            },
            Rule::Frame {
                cfa: Cfa::Other(0, 8),
                ra: -8,
                bp: Bp::Same,
                assumed: false,
            },
        ] {
            assert_eq!(rule.pack().and_then(Rule::unpack), Some(rule));
        }
    }
}
