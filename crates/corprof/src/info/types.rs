//! Classes: loaded types with their type arguments.

use super::{call, complete, read_list};
use crate::context::{Context, Cx};
use crate::id::{ClassId, Id, ModuleId, Token};
use crate::runtime::{Info, Result};
use crate::sys::{CorElementType, Hresult};

/// Answer of `GetClassIDInfo2`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClassInfo<'rt> {
    /// Its module.
    pub module: Option<ModuleId<'rt>>,
    /// Its type definition.
    pub token: Token,
    /// The class that it derives from.
    pub parent: Option<ClassId<'rt>>,
    /// Its type arguments.
    pub type_args: Vec<Option<ClassId<'rt>>>,
}

/// Answer of `IsArrayClass`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArrayClass<'rt> {
    /// What the elements are.
    pub element_type: CorElementType,
    /// Class of the elements, where they have one.
    pub element_class: Option<ClassId<'rt>>,
    /// Number of dimensions.
    pub rank: u32,
}

impl<'rt> Info<'rt> {
    /// Module, token, parent and type arguments of a class (`GetClassIDInfo2`, asynchronous).
    /// `None`: the runtime has not got so far yet.
    ///
    /// # Errors
    /// `CORPROF_E_CLASSID_IS_ARRAY` for an array (see [`Info::is_array_class`]),
    /// `CORPROF_E_CLASSID_IS_COMPOSITE` for pointers and the like.
    pub fn get_class_id_info2<C: Context>(
        self,
        _: &Cx<'rt, C>,
        class: ClassId<'rt>,
    ) -> Result<Option<ClassInfo<'rt>>> {
        let (mut module, mut token, mut parent) = (0, 0, 0);
        let type_args = read_list(4, 0, |buffer, capacity, length| {
            Ok(call!(
                self,
                get_class_id_info2(
                    class.raw(),
                    &mut module,
                    &mut token,
                    &mut parent,
                    capacity,
                    length,
                    buffer,
                )
            ))
        });
        complete(type_args.map(|type_args| ClassInfo {
            module: Id::new(module),
            token: Token(token),
            parent: Id::new(parent),
            type_args: type_args.into_iter().map(Id::new).collect(),
        }))
    }

    /// Element and rank if the class is an array (`IsArrayClass`, asynchronous).
    ///
    /// # Errors
    /// What the runtime answers.
    pub fn is_array_class<C: Context>(
        self,
        _: &Cx<'rt, C>,
        class: ClassId<'rt>,
    ) -> Result<Option<ArrayClass<'rt>>> {
        let (mut element_type, mut element_class, mut rank) = (0, 0, 0);
        let answer = call!(
            self,
            is_array_class(
                class.raw(),
                &mut element_type,
                &mut element_class,
                &mut rank
            )
        );
        answer.ok()?;
        Ok((answer == Hresult::S_OK).then(|| ArrayClass {
            element_type: CorElementType(element_type),
            element_class: Id::new(element_class),
            rank,
        }))
    }
}
