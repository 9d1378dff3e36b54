//! The table of IL opcodes: number, name, kind of operand, control flow.
//!
//! Source: ECMA-335 partition III and `src/coreclr/inc/opcode.def`.
//!
//! Invariant: every value of [`Opcode`] is an existing instruction.

use core::fmt;

/// Kind of the operand after an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperandKind {
    /// No operand.
    None,
    /// A signed byte.
    Int8,
    /// An unsigned byte, of a prefix.
    UInt8,
    /// Four bytes.
    Int32,
    /// Eight bytes.
    Int64,
    /// A `float`.
    Float32,
    /// A `double`.
    Float64,
    /// Number of an argument or a local, one byte.
    ShortVariable,
    /// Number of an argument or a local, two bytes.
    Variable,
    /// A metadata token.
    Token,
    /// Distance to another instruction, one byte.
    ShortTarget,
    /// Distance to another instruction, four bytes.
    Target,
    /// A count, then that many distances.
    Switch,
}

/// Control flow after an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// To the next one.
    Next,
    /// To the next one, through a debugger.
    Break,
    /// To the next one, after a call of a method.
    Call,
    /// A prefix of the next instruction.
    Prefix,
    /// To its target.
    Branch,
    /// To one of its targets or to the next one.
    Conditional,
    /// Out of the method, the handler or the filter.
    Return,
    /// To another method with the same arguments, without return.
    Jump,
    /// To a handler.
    Throw,
}

/// One instruction of the table.
#[derive(Clone, Copy)]
struct Row {
    /// Empty if the instruction does not exist.
    name: &'static str,
    operand: OperandKind,
    flow: Flow,
}

/// An IL instruction without its operand: its number, 0xfeNN for a two-byte opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opcode(u16);

/// First byte of two-byte opcodes.
pub(super) const TWO_BYTES: u8 = 0xfe;

/// Number of rows: one-byte opcodes, then two-byte opcodes.
const ROWS: usize = 512;

const fn row(opcode: u16) -> usize {
    let second = (opcode & 0xff) as usize;
    if opcode >> 8 == TWO_BYTES as u16 {
        256 + second
    } else {
        second
    }
}

macro_rules! opcodes {
    ($($name:ident $number:literal $text:literal $operand:ident $flow:ident;)*) => {
        impl Opcode {
            $(#[doc = concat!("`", $text, "`")] pub const $name: Self = Self($number);)*

            /// Every instruction, by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }

        static TABLE: [Row; ROWS] = {
            let none = Row { name: "", operand: OperandKind::None, flow: Flow::Next };
            let mut table = [none; ROWS];
            $(table[row($number)] = Row {
                name: $text,
                operand: OperandKind::$operand,
                flow: Flow::$flow,
            };)*
            table
        };
    };
}

#[rustfmt::skip]
opcodes! {
    NOP 0x00 "nop" None Next;
    BREAK 0x01 "break" None Break;
    LDARG_0 0x02 "ldarg.0" None Next;
    LDARG_1 0x03 "ldarg.1" None Next;
    LDARG_2 0x04 "ldarg.2" None Next;
    LDARG_3 0x05 "ldarg.3" None Next;
    LDLOC_0 0x06 "ldloc.0" None Next;
    LDLOC_1 0x07 "ldloc.1" None Next;
    LDLOC_2 0x08 "ldloc.2" None Next;
    LDLOC_3 0x09 "ldloc.3" None Next;
    STLOC_0 0x0a "stloc.0" None Next;
    STLOC_1 0x0b "stloc.1" None Next;
    STLOC_2 0x0c "stloc.2" None Next;
    STLOC_3 0x0d "stloc.3" None Next;
    LDARG_S 0x0e "ldarg.s" ShortVariable Next;
    LDARGA_S 0x0f "ldarga.s" ShortVariable Next;
    STARG_S 0x10 "starg.s" ShortVariable Next;
    LDLOC_S 0x11 "ldloc.s" ShortVariable Next;
    LDLOCA_S 0x12 "ldloca.s" ShortVariable Next;
    STLOC_S 0x13 "stloc.s" ShortVariable Next;
    LDNULL 0x14 "ldnull" None Next;
    LDC_I4_M1 0x15 "ldc.i4.m1" None Next;
    LDC_I4_0 0x16 "ldc.i4.0" None Next;
    LDC_I4_1 0x17 "ldc.i4.1" None Next;
    LDC_I4_2 0x18 "ldc.i4.2" None Next;
    LDC_I4_3 0x19 "ldc.i4.3" None Next;
    LDC_I4_4 0x1a "ldc.i4.4" None Next;
    LDC_I4_5 0x1b "ldc.i4.5" None Next;
    LDC_I4_6 0x1c "ldc.i4.6" None Next;
    LDC_I4_7 0x1d "ldc.i4.7" None Next;
    LDC_I4_8 0x1e "ldc.i4.8" None Next;
    LDC_I4_S 0x1f "ldc.i4.s" Int8 Next;
    LDC_I4 0x20 "ldc.i4" Int32 Next;
    LDC_I8 0x21 "ldc.i8" Int64 Next;
    LDC_R4 0x22 "ldc.r4" Float32 Next;
    LDC_R8 0x23 "ldc.r8" Float64 Next;
    DUP 0x25 "dup" None Next;
    POP 0x26 "pop" None Next;
    JMP 0x27 "jmp" Token Jump;
    CALL 0x28 "call" Token Call;
    CALLI 0x29 "calli" Token Call;
    RET 0x2a "ret" None Return;
    BR_S 0x2b "br.s" ShortTarget Branch;
    BRFALSE_S 0x2c "brfalse.s" ShortTarget Conditional;
    BRTRUE_S 0x2d "brtrue.s" ShortTarget Conditional;
    BEQ_S 0x2e "beq.s" ShortTarget Conditional;
    BGE_S 0x2f "bge.s" ShortTarget Conditional;
    BGT_S 0x30 "bgt.s" ShortTarget Conditional;
    BLE_S 0x31 "ble.s" ShortTarget Conditional;
    BLT_S 0x32 "blt.s" ShortTarget Conditional;
    BNE_UN_S 0x33 "bne.un.s" ShortTarget Conditional;
    BGE_UN_S 0x34 "bge.un.s" ShortTarget Conditional;
    BGT_UN_S 0x35 "bgt.un.s" ShortTarget Conditional;
    BLE_UN_S 0x36 "ble.un.s" ShortTarget Conditional;
    BLT_UN_S 0x37 "blt.un.s" ShortTarget Conditional;
    BR 0x38 "br" Target Branch;
    BRFALSE 0x39 "brfalse" Target Conditional;
    BRTRUE 0x3a "brtrue" Target Conditional;
    BEQ 0x3b "beq" Target Conditional;
    BGE 0x3c "bge" Target Conditional;
    BGT 0x3d "bgt" Target Conditional;
    BLE 0x3e "ble" Target Conditional;
    BLT 0x3f "blt" Target Conditional;
    BNE_UN 0x40 "bne.un" Target Conditional;
    BGE_UN 0x41 "bge.un" Target Conditional;
    BGT_UN 0x42 "bgt.un" Target Conditional;
    BLE_UN 0x43 "ble.un" Target Conditional;
    BLT_UN 0x44 "blt.un" Target Conditional;
    SWITCH 0x45 "switch" Switch Conditional;
    LDIND_I1 0x46 "ldind.i1" None Next;
    LDIND_U1 0x47 "ldind.u1" None Next;
    LDIND_I2 0x48 "ldind.i2" None Next;
    LDIND_U2 0x49 "ldind.u2" None Next;
    LDIND_I4 0x4a "ldind.i4" None Next;
    LDIND_U4 0x4b "ldind.u4" None Next;
    LDIND_I8 0x4c "ldind.i8" None Next;
    LDIND_I 0x4d "ldind.i" None Next;
    LDIND_R4 0x4e "ldind.r4" None Next;
    LDIND_R8 0x4f "ldind.r8" None Next;
    LDIND_REF 0x50 "ldind.ref" None Next;
    STIND_REF 0x51 "stind.ref" None Next;
    STIND_I1 0x52 "stind.i1" None Next;
    STIND_I2 0x53 "stind.i2" None Next;
    STIND_I4 0x54 "stind.i4" None Next;
    STIND_I8 0x55 "stind.i8" None Next;
    STIND_R4 0x56 "stind.r4" None Next;
    STIND_R8 0x57 "stind.r8" None Next;
    ADD 0x58 "add" None Next;
    SUB 0x59 "sub" None Next;
    MUL 0x5a "mul" None Next;
    DIV 0x5b "div" None Next;
    DIV_UN 0x5c "div.un" None Next;
    REM 0x5d "rem" None Next;
    REM_UN 0x5e "rem.un" None Next;
    AND 0x5f "and" None Next;
    OR 0x60 "or" None Next;
    XOR 0x61 "xor" None Next;
    SHL 0x62 "shl" None Next;
    SHR 0x63 "shr" None Next;
    SHR_UN 0x64 "shr.un" None Next;
    NEG 0x65 "neg" None Next;
    NOT 0x66 "not" None Next;
    CONV_I1 0x67 "conv.i1" None Next;
    CONV_I2 0x68 "conv.i2" None Next;
    CONV_I4 0x69 "conv.i4" None Next;
    CONV_I8 0x6a "conv.i8" None Next;
    CONV_R4 0x6b "conv.r4" None Next;
    CONV_R8 0x6c "conv.r8" None Next;
    CONV_U4 0x6d "conv.u4" None Next;
    CONV_U8 0x6e "conv.u8" None Next;
    CALLVIRT 0x6f "callvirt" Token Call;
    CPOBJ 0x70 "cpobj" Token Next;
    LDOBJ 0x71 "ldobj" Token Next;
    LDSTR 0x72 "ldstr" Token Next;
    NEWOBJ 0x73 "newobj" Token Call;
    CASTCLASS 0x74 "castclass" Token Next;
    ISINST 0x75 "isinst" Token Next;
    CONV_R_UN 0x76 "conv.r.un" None Next;
    UNBOX 0x79 "unbox" Token Next;
    THROW 0x7a "throw" None Throw;
    LDFLD 0x7b "ldfld" Token Next;
    LDFLDA 0x7c "ldflda" Token Next;
    STFLD 0x7d "stfld" Token Next;
    LDSFLD 0x7e "ldsfld" Token Next;
    LDSFLDA 0x7f "ldsflda" Token Next;
    STSFLD 0x80 "stsfld" Token Next;
    STOBJ 0x81 "stobj" Token Next;
    CONV_OVF_I1_UN 0x82 "conv.ovf.i1.un" None Next;
    CONV_OVF_I2_UN 0x83 "conv.ovf.i2.un" None Next;
    CONV_OVF_I4_UN 0x84 "conv.ovf.i4.un" None Next;
    CONV_OVF_I8_UN 0x85 "conv.ovf.i8.un" None Next;
    CONV_OVF_U1_UN 0x86 "conv.ovf.u1.un" None Next;
    CONV_OVF_U2_UN 0x87 "conv.ovf.u2.un" None Next;
    CONV_OVF_U4_UN 0x88 "conv.ovf.u4.un" None Next;
    CONV_OVF_U8_UN 0x89 "conv.ovf.u8.un" None Next;
    CONV_OVF_I_UN 0x8a "conv.ovf.i.un" None Next;
    CONV_OVF_U_UN 0x8b "conv.ovf.u.un" None Next;
    BOX 0x8c "box" Token Next;
    NEWARR 0x8d "newarr" Token Next;
    LDLEN 0x8e "ldlen" None Next;
    LDELEMA 0x8f "ldelema" Token Next;
    LDELEM_I1 0x90 "ldelem.i1" None Next;
    LDELEM_U1 0x91 "ldelem.u1" None Next;
    LDELEM_I2 0x92 "ldelem.i2" None Next;
    LDELEM_U2 0x93 "ldelem.u2" None Next;
    LDELEM_I4 0x94 "ldelem.i4" None Next;
    LDELEM_U4 0x95 "ldelem.u4" None Next;
    LDELEM_I8 0x96 "ldelem.i8" None Next;
    LDELEM_I 0x97 "ldelem.i" None Next;
    LDELEM_R4 0x98 "ldelem.r4" None Next;
    LDELEM_R8 0x99 "ldelem.r8" None Next;
    LDELEM_REF 0x9a "ldelem.ref" None Next;
    STELEM_I 0x9b "stelem.i" None Next;
    STELEM_I1 0x9c "stelem.i1" None Next;
    STELEM_I2 0x9d "stelem.i2" None Next;
    STELEM_I4 0x9e "stelem.i4" None Next;
    STELEM_I8 0x9f "stelem.i8" None Next;
    STELEM_R4 0xa0 "stelem.r4" None Next;
    STELEM_R8 0xa1 "stelem.r8" None Next;
    STELEM_REF 0xa2 "stelem.ref" None Next;
    LDELEM 0xa3 "ldelem" Token Next;
    STELEM 0xa4 "stelem" Token Next;
    UNBOX_ANY 0xa5 "unbox.any" Token Next;
    CONV_OVF_I1 0xb3 "conv.ovf.i1" None Next;
    CONV_OVF_U1 0xb4 "conv.ovf.u1" None Next;
    CONV_OVF_I2 0xb5 "conv.ovf.i2" None Next;
    CONV_OVF_U2 0xb6 "conv.ovf.u2" None Next;
    CONV_OVF_I4 0xb7 "conv.ovf.i4" None Next;
    CONV_OVF_U4 0xb8 "conv.ovf.u4" None Next;
    CONV_OVF_I8 0xb9 "conv.ovf.i8" None Next;
    CONV_OVF_U8 0xba "conv.ovf.u8" None Next;
    REFANYVAL 0xc2 "refanyval" Token Next;
    CKFINITE 0xc3 "ckfinite" None Next;
    MKREFANY 0xc6 "mkrefany" Token Next;
    LDTOKEN 0xd0 "ldtoken" Token Next;
    CONV_U2 0xd1 "conv.u2" None Next;
    CONV_U1 0xd2 "conv.u1" None Next;
    CONV_I 0xd3 "conv.i" None Next;
    CONV_OVF_I 0xd4 "conv.ovf.i" None Next;
    CONV_OVF_U 0xd5 "conv.ovf.u" None Next;
    ADD_OVF 0xd6 "add.ovf" None Next;
    ADD_OVF_UN 0xd7 "add.ovf.un" None Next;
    MUL_OVF 0xd8 "mul.ovf" None Next;
    MUL_OVF_UN 0xd9 "mul.ovf.un" None Next;
    SUB_OVF 0xda "sub.ovf" None Next;
    SUB_OVF_UN 0xdb "sub.ovf.un" None Next;
    ENDFINALLY 0xdc "endfinally" None Return;
    LEAVE 0xdd "leave" Target Branch;
    LEAVE_S 0xde "leave.s" ShortTarget Branch;
    STIND_I 0xdf "stind.i" None Next;
    CONV_U 0xe0 "conv.u" None Next;
    ARGLIST 0xfe00 "arglist" None Next;
    CEQ 0xfe01 "ceq" None Next;
    CGT 0xfe02 "cgt" None Next;
    CGT_UN 0xfe03 "cgt.un" None Next;
    CLT 0xfe04 "clt" None Next;
    CLT_UN 0xfe05 "clt.un" None Next;
    LDFTN 0xfe06 "ldftn" Token Next;
    LDVIRTFTN 0xfe07 "ldvirtftn" Token Next;
    LDARG 0xfe09 "ldarg" Variable Next;
    LDARGA 0xfe0a "ldarga" Variable Next;
    STARG 0xfe0b "starg" Variable Next;
    LDLOC 0xfe0c "ldloc" Variable Next;
    LDLOCA 0xfe0d "ldloca" Variable Next;
    STLOC 0xfe0e "stloc" Variable Next;
    LOCALLOC 0xfe0f "localloc" None Next;
    ENDFILTER 0xfe11 "endfilter" None Return;
    UNALIGNED 0xfe12 "unaligned." UInt8 Prefix;
    VOLATILE 0xfe13 "volatile." None Prefix;
    TAIL 0xfe14 "tail." None Prefix;
    INITOBJ 0xfe15 "initobj" Token Next;
    CONSTRAINED 0xfe16 "constrained." Token Prefix;
    CPBLK 0xfe17 "cpblk" None Next;
    INITBLK 0xfe18 "initblk" None Next;
    NO 0xfe19 "no." UInt8 Prefix;
    RETHROW 0xfe1a "rethrow" None Throw;
    SIZEOF 0xfe1c "sizeof" Token Next;
    REFANYTYPE 0xfe1d "refanytype" None Next;
    READONLY 0xfe1e "readonly." None Prefix;
}

impl Opcode {
    /// The instruction with this number; `None` if it does not exist.
    pub fn new(number: u16) -> Option<Self> {
        let opcode = Self(number);
        let prefixed = number >> 8 == u16::from(TWO_BYTES);
        ((prefixed || number < 0x100) && !opcode.row().name.is_empty()).then_some(opcode)
    }

    fn row(self) -> &'static Row {
        &TABLE[row(self.0)]
    }

    /// Number: one byte, or 0xfe and one more.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Name as an assembler writes it.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Kind of the operand.
    pub fn operand(self) -> OperandKind {
        self.row().operand
    }

    /// Control flow after the instruction.
    pub fn flow(self) -> Flow {
        self.row().flow
    }

    /// Size in bytes, without the operand.
    pub const fn size(self) -> u32 {
        if self.0 > 0xff { 2 } else { 1 }
    }

    /// For a branch with a one-byte distance, its four-byte form; otherwise `self`.
    #[must_use]
    pub const fn long_form(self) -> Self {
        match self.0 {
            short @ 0x2b..=0x37 => Self(short + 0x0d),
            0xde => Self(0xdd),
            _ => self,
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
