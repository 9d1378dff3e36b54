//! Classes: loaded types with their type arguments.

use super::{call, complete, read_list};
use crate::context::{Context, Cx, RuntimeThread};
use crate::id::{ClassId, Id, ModuleId, Token};
use crate::runtime::{Info, Result};
use crate::sys::{CorElementType, Hresult};

/// Result of `GetClassIDInfo2`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClassInfo<'rt> {
    /// Module.
    pub module: Option<ModuleId<'rt>>,
    /// Type definition.
    pub token: Token,
    /// Base class.
    pub parent: Option<ClassId<'rt>>,
    /// Type arguments.
    pub type_args: Vec<Option<ClassId<'rt>>>,
}

/// Result of `IsArrayClass`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArrayClass<'rt> {
    /// Element type.
    pub element_type: CorElementType,
    /// Class of the elements, if they have one.
    pub element_class: Option<ClassId<'rt>>,
    /// Number of dimensions.
    pub rank: u32,
}

impl<'rt> Info<'rt> {
    /// Module, token, parent and type arguments of a class (`GetClassIDInfo2`, asynchronous).
    /// `None` if the runtime does not have the data yet.
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
        let type_args = read_list::<_, 4>(0, |buffer, capacity, length| {
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

    /// Element type and rank of an array class; `None` for other classes (`IsArrayClass`,
    /// asynchronous).
    ///
    /// # Errors
    /// The failure that the runtime reports.
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

    /// Module and token of a class (`GetClassIDInfo`, asynchronous). Prefer
    /// [`Info::get_class_id_info2`], which returns the type arguments. `None` if the runtime does
    /// not have the data yet.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_class_id_info<C: Context>(
        self,
        _: &Cx<'rt, C>,
        class: ClassId<'rt>,
    ) -> Result<Option<(Option<ModuleId<'rt>>, Token)>> {
        let (mut module, mut token) = (0, 0);
        complete(
            call!(
                self,
                get_class_id_info(class.raw(), &mut module, &mut token)
            )
            .ok()
            .map(|()| (Id::new(module), Token(token))),
        )
    }

    /// The class of a type without type parameters; loads it (`GetClassFromToken`, synchronous, may
    /// trigger a GC). `None` if the runtime does not have the data yet.
    ///
    /// # Errors
    /// `CORPROF_E_TYPE_IS_PARAMETERIZED` if the type has type parameters,
    /// `CORPROF_E_RUNTIME_UNINITIALIZED` in `Initialize`.
    pub fn get_class_from_token<C: RuntimeThread>(
        self,
        _: &mut Cx<'rt, C>,
        module: ModuleId<'rt>,
        token: Token,
    ) -> Result<Option<ClassId<'rt>>> {
        let mut class = 0;
        let answer = call!(
            self,
            get_class_from_token(module.raw(), token.0, &mut class)
        );
        Ok(complete(answer.ok())?.and_then(|()| Id::new(class)))
    }

    /// The class of a type with these type arguments; loads it (`GetClassFromTokenAndTypeArgs`,
    /// synchronous, may trigger a GC). `None` if the runtime does not have the data yet.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_class_from_token_and_type_args<C: RuntimeThread>(
        self,
        _: &mut Cx<'rt, C>,
        module: ModuleId<'rt>,
        token: Token,
        type_args: &[ClassId<'rt>],
    ) -> Result<Option<ClassId<'rt>>> {
        let raw: Vec<usize> = type_args.iter().map(|class| class.raw()).collect();
        let length = u32::try_from(raw.len()).map_err(|_| Hresult::E_INVALIDARG)?;
        let mut class = 0;
        let answer = call!(
            self,
            get_class_from_token_and_type_args(
                module.raw(),
                token.0,
                length,
                raw.as_ptr(),
                &mut class
            )
        );
        Ok(complete(answer.ok())?.and_then(|()| Id::new(class)))
    }
}
