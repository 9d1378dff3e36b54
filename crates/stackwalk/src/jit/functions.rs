//! The functions of a JITted body (main part and funclets): their offsets and their UNWIND_INFO.
//!
//! `unwind_info` interprets the UNWIND_INFO. Invariants: functions are sorted and disjoint. Most
//! bodies have one function that saves few registers and need no memory besides their own, so that
//! a body with its entry in the code map is one cache line.

/// A main function or funclet: part of a body with its own prologue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct JitFunction {
    /// Offsets from the body's start.
    pub(super) begin: u32,
    pub(super) end: u32,
    /// Position of its UNWIND_INFO in [`Functions::infos`].
    pub(super) info: u32,
}

/// Longest UNWIND_INFO that is stored in the body itself, bytes: nine codes.
const SHORT: usize = 22;

/// All functions of a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Functions {
    /// One function, which is the whole body, with the length and bytes of its UNWIND_INFO.
    One(u8, [u8; SHORT]),
    FunctionList(Box<FunctionList>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FunctionList {
    functions: Box<[JitFunction]>,
    infos: Box<[u8]>,
}

/// Collects a body's functions.
///
/// Nothing is allocated for a single one with a short UNWIND_INFO.
pub(super) struct FunctionsBuilder {
    /// The only function, which needs no other field.
    one: Option<Functions>,
    others: Vec<JitFunction>,
    infos: Vec<u8>,
    is_alone: bool,
}

impl FunctionsBuilder {
    /// Creates a builder for `count` functions.
    pub(super) const fn new(count: usize) -> Self {
        Self {
            one: None,
            others: Vec::new(),
            infos: Vec::new(),
            is_alone: count == 1,
        }
    }

    /// Adds the next function. They are sorted and disjoint, and the first begins where the body
    /// does.
    #[inline]
    pub(super) fn push(&mut self, begin: u32, end: u32, info: &[u8]) {
        let mut short = [0; SHORT];
        if self.is_alone
            && let Some(own) = short.get_mut(..info.len())
        {
            own.copy_from_slice(info);
            // At most SHORT.
            self.one = Some(Functions::One(info.len() as u8, short));
            return;
        }
        self.others.push(JitFunction {
            begin,
            end,
            info: self.infos.len() as u32,
        });
        self.infos.extend_from_slice(info);
    }
}

impl From<FunctionsBuilder> for Functions {
    #[inline]
    fn from(built: FunctionsBuilder) -> Functions {
        built.one.unwrap_or_else(|| {
            Functions::FunctionList(Box::new(FunctionList {
                functions: built.others.into(),
                infos: built.infos.into(),
            }))
        })
    }
}

impl Functions {
    /// Makes a body of `len` bytes without funclets.
    pub(super) fn one(len: u32, info: &[u8]) -> Self {
        let mut building = FunctionsBuilder::new(1);
        building.push(0, len, info);
        building.into()
    }

    /// Returns the function at `offset`, in a body of `len` bytes. Async-signal-safe.
    pub(super) fn at(&self, offset: u32, len: u32) -> Option<JitFunction> {
        let found = match self {
            Functions::One(..) => JitFunction {
                begin: 0,
                end: len,
                info: 0,
            },
            Functions::FunctionList(others) => {
                let all = &others.functions;
                let behind = all.partition_point(|function| function.begin <= offset);
                *all.get(behind.checked_sub(1)?)?
            }
        };
        (offset < found.end).then_some(found)
    }

    /// Returns the offsets at which they begin: the main part, then the funclets.
    pub(super) fn begins(&self) -> Vec<u32> {
        match self {
            Functions::One(..) => vec![0],
            Functions::FunctionList(others) => {
                others.functions.iter().map(|all| all.begin).collect()
            }
        }
    }

    /// Returns the UNWIND_INFOs of all functions, concatenated. Async-signal-safe.
    pub(super) fn infos(&self) -> &[u8] {
        match self {
            Functions::One(len, info) => info.get(..usize::from(*len)).unwrap_or_default(),
            Functions::FunctionList(others) => &others.infos,
        }
    }

    /// Returns the size of its heap memory, bytes, without the value itself.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Functions::One(..) => 0,
            Functions::FunctionList(others) => {
                size_of::<FunctionList>()
                    + size_of_val(&*others.functions)
                    + size_of_val(&*others.infos)
            }
        }
    }
}
