//! The functions of a JITted body, its main part and its funclets: where each begins, and its
//! UNWIND_INFO.
//!
//! `unwind_info` knows what these mean. Invariants: functions are sorted and disjoint; and most
//! bodies, of one function that saves few registers, have no memory beside their own, so that one
//! with its entry in the code map is one cache line.

/// A main function or funclet: part of a body with a prologue of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct JitFunction {
    /// Offsets from the body's start.
    pub(super) begin: u32,
    pub(super) end: u32,
    /// Where in [`Functions::infos`] its UNWIND_INFO begins.
    pub(super) info: u32,
}

/// The longest UNWIND_INFO that lies in the body itself: nine codes.
const SHORT: usize = 22;

/// All functions of a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Functions {
    /// One, which is the whole body, with so many bytes of UNWIND_INFO.
    One(u8, [u8; SHORT]),
    FunctionList(Box<FunctionList>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FunctionList {
    functions: Box<[JitFunction]>,
    infos: Box<[u8]>,
}

/// A body's functions, as known so far.
///
/// Nothing is allocated for one whose UNWIND_INFO is short.
pub(super) struct FunctionsBuilder {
    /// Of the only function: it needs no other word.
    one: Option<Functions>,
    others: Vec<JitFunction>,
    infos: Vec<u8>,
    is_alone: bool,
}

impl FunctionsBuilder {
    /// Of so many functions.
    pub(super) const fn new(count: usize) -> Self {
        Self {
            one: None,
            others: Vec::new(),
            infos: Vec::new(),
            is_alone: count == 1,
        }
    }

    /// The next: they are sorted and disjoint, and the first begins where the body does.
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
    /// A body of so many bytes without funclets.
    pub(super) fn one(len: u32, info: &[u8]) -> Self {
        let mut building = FunctionsBuilder::new(1);
        building.push(0, len, info);
        building.into()
    }

    /// The function that has this offset, in a body of so many bytes. Async-signal-safe.
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

    /// Offsets at which they begin: the main part, then the funclets.
    pub(super) fn begins(&self) -> Vec<u32> {
        match self {
            Functions::One(..) => vec![0],
            Functions::FunctionList(others) => {
                others.functions.iter().map(|all| all.begin).collect()
            }
        }
    }

    /// The UNWIND_INFOs of all, one behind the other. Async-signal-safe.
    pub(super) fn infos(&self) -> &[u8] {
        match self {
            Functions::One(len, info) => info.get(..usize::from(*len)).unwrap_or_default(),
            Functions::FunctionList(others) => &others.infos,
        }
    }

    /// Private memory behind it, itself not counted.
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
