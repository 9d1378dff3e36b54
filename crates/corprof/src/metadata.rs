//! Reads a module's metadata: names, signatures, generic parameters.
//!
//! A wrapper of the runtime's `IMetaDataImport2`, which parses the metadata. [`MetadataEmit`]
//! writes metadata.
//!
//! Invariant: every result is a copy. No pointer into the runtime's memory leaves a method.

mod emit;

pub use emit::MetadataEmit;

use core::ffi::c_void;
use core::ptr::NonNull;

use crate::context::Brand;
use crate::id::Token;
use crate::info::{bytes, read_text, wide};
use crate::runtime::Result;
use crate::sys::{Guid, Hresult, IMetaDataImport2};

/// The metadata of one module, open for reading. It holds a COM reference. Its methods take the
/// metadata's lock. It cannot outlive the callback in which it was obtained, because the module
/// could be unloaded.
#[derive(Debug)]
pub struct MetadataImport<'rt> {
    pointer: NonNull<IMetaDataImport2>,
    brand: Brand<'rt>,
}

impl Drop for MetadataImport<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` took a reference, which is released here once.
        unsafe {
            let this = self.pointer.as_ptr();
            ((*(*this).vtbl).unknown.release)(this.cast());
        }
    }
}

/// Result of `GetTypeDefProps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TypeDefProps {
    /// Name with namespace; for a nested type the simple name only.
    pub name: String,
    /// Attributes (`CorTypeAttr`).
    pub attributes: u32,
    /// The base type: a definition, reference or specification; nil for none.
    pub extends: Token,
}

/// Result of `GetTypeRefProps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TypeRefProps {
    /// Scope: an assembly or module reference, or the reference to the enclosing type.
    pub scope: Token,
    /// Name with namespace.
    pub name: String,
}

/// Result of `GetMethodProps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MethodProps {
    /// Type that defines the method.
    pub class: Token,
    /// Name.
    pub name: String,
    /// Attributes (`CorMethodAttr`).
    pub attributes: u32,
    /// Signature blob.
    pub signature: Vec<u8>,
    /// Address of the IL relative to the image base; 0 for none.
    pub rva: u32,
    /// Implementation flags (`CorMethodImpl`).
    pub implementation: u32,
}

/// Result of `GetMemberRefProps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberRefProps {
    /// Type to which the member belongs.
    pub parent: Token,
    /// Name.
    pub name: String,
    /// Signature blob.
    pub signature: Vec<u8>,
}

/// Result of `GetMethodSpecProps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MethodSpecProps {
    /// The generic method.
    pub method: Token,
    /// Signature blob of the type arguments.
    pub signature: Vec<u8>,
}

/// Result of `GetGenericParamProps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GenericParamProps {
    /// Position, counted from 0.
    pub number: u32,
    /// Attributes (`CorGenericParamAttr`).
    pub attributes: u32,
    /// Type or method that declares the parameter.
    pub owner: Token,
    /// Name.
    pub name: String,
}

/// Result of `GetScopeProps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScopeProps {
    /// Name of the module.
    pub name: String,
    /// Module version id, made by the compiler.
    pub mvid: Guid,
}

/// Calls a slot of the metadata interface and evaluates to its result.
macro_rules! import {
    ($self:ident, $method:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: the object is live and has every slot of `IMetaDataImport2`, for which it was
        // queried; the pointers among the arguments are those of live locals of the types and
        // lengths that the contract names.
        unsafe { IMetaDataImport2::$method($self.pointer.as_ptr() $(, $arg)*) }
    };
}

impl<'rt> MetadataImport<'rt> {
    /// Takes over a reference; `None` when the pointer is null.
    ///
    /// # Safety
    /// `found` is null or a live `IMetaDataImport2` of the runtime `'rt`, with one reference that
    /// is passed to this function.
    pub(crate) unsafe fn new<T>(found: *mut T) -> Option<Self> {
        NonNull::new(found).map(|found| Self {
            pointer: found.cast(),
            brand: Brand::default(),
        })
    }

    /// Name and id of the module (`GetScopeProps`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_scope_props(&self) -> Result<ScopeProps> {
        let mut mvid = Guid::new("00000000-0000-0000-0000-000000000000");
        let name = read_text(|buffer, capacity, length| {
            Ok(import!(
                self,
                get_scope_props(buffer, capacity, length, &mut mvid)
            ))
        })?;
        Ok(ScopeProps { name, mvid })
    }

    /// Name, attributes and base of a type (`GetTypeDefProps`).
    ///
    /// # Errors
    /// The failure that the runtime reports, such as for a token of another table.
    pub fn get_type_def_props(&self, type_def: Token) -> Result<TypeDefProps> {
        let (mut attributes, mut extends) = (0, 0);
        let name = read_text(|buffer, capacity, length| {
            Ok(import!(
                self,
                get_type_def_props(
                    type_def.0,
                    buffer,
                    capacity,
                    length,
                    &mut attributes,
                    &mut extends,
                )
            ))
        })?;
        Ok(TypeDefProps {
            name,
            attributes,
            extends: Token(extends),
        })
    }

    /// The enclosing type of a nested type (`GetNestedClassProps`); `None` for a type that is not
    /// nested.
    ///
    /// # Errors
    /// The failure that the runtime reports, other than a missing record.
    pub fn get_nested_class_props(&self, nested: Token) -> Result<Option<Token>> {
        let mut enclosing = 0;
        match import!(self, get_nested_class_props(nested.0, &mut enclosing)) {
            Hresult::CLDB_E_RECORD_NOTFOUND => Ok(None),
            answer => answer.ok().map(|()| Some(Token(enclosing))),
        }
    }

    /// Scope and name of a type of another module (`GetTypeRefProps`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_type_ref_props(&self, type_ref: Token) -> Result<TypeRefProps> {
        let mut scope = 0;
        let name = read_text(|buffer, capacity, length| {
            Ok(import!(
                self,
                get_type_ref_props(type_ref.0, &mut scope, buffer, capacity, length)
            ))
        })?;
        Ok(TypeRefProps {
            scope: Token(scope),
            name,
        })
    }

    /// Class, name, signature and attributes of a method (`GetMethodProps`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_method_props(&self, method: Token) -> Result<MethodProps> {
        let (mut class, mut attributes, mut rva, mut implementation) = (0, 0, 0, 0);
        let mut signature = core::ptr::null();
        let mut signature_length = 0;
        let name = read_text(|buffer, capacity, length| {
            Ok(import!(
                self,
                get_method_props(
                    method.0,
                    &mut class,
                    buffer,
                    capacity,
                    length,
                    &mut attributes,
                    &mut signature,
                    &mut signature_length,
                    &mut rva,
                    &mut implementation,
                )
            ))
        })?;
        Ok(MethodProps {
            class: Token(class),
            name,
            attributes,
            // SAFETY: the blob is valid while the metadata is open, and `self` keeps it open.
            signature: unsafe { bytes(signature, signature_length) },
            rva,
            implementation,
        })
    }

    /// Parent, name and signature of a member of another module (`GetMemberRefProps`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_member_ref_props(&self, member: Token) -> Result<MemberRefProps> {
        let mut parent = 0;
        let mut signature = core::ptr::null();
        let mut signature_length = 0;
        let name = read_text(|buffer, capacity, length| {
            Ok(import!(
                self,
                get_member_ref_props(
                    member.0,
                    &mut parent,
                    buffer,
                    capacity,
                    length,
                    &mut signature,
                    &mut signature_length,
                )
            ))
        })?;
        Ok(MemberRefProps {
            parent: Token(parent),
            name,
            // SAFETY: the blob is valid while the metadata is open, and `self` keeps it open.
            signature: unsafe { bytes(signature, signature_length) },
        })
    }

    /// Method and arguments of an instance of a generic method (`GetMethodSpecProps`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_method_spec_props(&self, instance: Token) -> Result<MethodSpecProps> {
        let mut method = 0;
        let mut signature = core::ptr::null();
        let mut signature_length = 0;
        import!(
            self,
            get_method_spec_props(
                instance.0,
                &mut method,
                &mut signature,
                &mut signature_length,
            )
        )
        .ok()?;
        Ok(MethodSpecProps {
            method: Token(method),
            // SAFETY: the blob is valid while the metadata is open, and `self` keeps it open.
            signature: unsafe { bytes(signature, signature_length) },
        })
    }

    /// The signature of a type specification (`GetTypeSpecFromToken`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_type_spec_from_token(&self, type_spec: Token) -> Result<Vec<u8>> {
        let mut signature = core::ptr::null();
        let mut length = 0;
        import!(
            self,
            get_type_spec_from_token(type_spec.0, &mut signature, &mut length)
        )
        .ok()?;
        // SAFETY: the blob is valid while the metadata is open, and `self` keeps it open.
        Ok(unsafe { bytes(signature, length) })
    }

    /// The blob of a stand-alone signature (`GetSigFromToken`): of a method's locals or of a
    /// `calli`.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_sig_from_token(&self, signature: Token) -> Result<Vec<u8>> {
        let mut bytes_of = core::ptr::null();
        let mut length = 0;
        import!(
            self,
            get_sig_from_token(signature.0, &mut bytes_of, &mut length)
        )
        .ok()?;
        // SAFETY: the blob is valid while the metadata is open, and `self` keeps it open.
        Ok(unsafe { bytes(bytes_of, length) })
    }

    /// Every reference to a type of another module (`EnumTypeRefs`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enum_type_refs(&self) -> Result<Vec<Token>> {
        self.enumerate(|handle, buffer, capacity, fetched| {
            import!(self, enum_type_refs(handle, buffer, capacity, fetched))
        })
    }

    /// The generic parameters of a type or method (`EnumGenericParams`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enum_generic_params(&self, owner: Token) -> Result<Vec<Token>> {
        self.enumerate(|handle, buffer, capacity, fetched| {
            import!(
                self,
                enum_generic_params(handle, owner.0, buffer, capacity, fetched)
            )
        })
    }

    /// Position and name of a generic parameter (`GetGenericParamProps`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_generic_param_props(&self, param: Token) -> Result<GenericParamProps> {
        let (mut number, mut attributes, mut owner, mut reserved) = (0, 0, 0, 0);
        let name = read_text(|buffer, capacity, length| {
            Ok(import!(
                self,
                get_generic_param_props(
                    param.0,
                    &mut number,
                    &mut attributes,
                    &mut owner,
                    &mut reserved,
                    buffer,
                    capacity,
                    length,
                )
            ))
        })?;
        Ok(GenericParamProps {
            number,
            attributes,
            owner: Token(owner),
            name,
        })
    }

    /// Every type definition of the module (`EnumTypeDefs`), without `<Module>`.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enum_type_defs(&self) -> Result<Vec<Token>> {
        self.enumerate(|handle, buffer, capacity, fetched| {
            import!(self, enum_type_defs(handle, buffer, capacity, fetched))
        })
    }

    /// Every method of a type (`EnumMethods`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enum_methods(&self, type_def: Token) -> Result<Vec<Token>> {
        self.enumerate(|handle, buffer, capacity, fetched| {
            import!(
                self,
                enum_methods(handle, type_def.0, buffer, capacity, fetched)
            )
        })
    }

    /// The fields of a type that have this name (`EnumFieldsWithName`): at most one in ordinary
    /// metadata.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enum_fields_with_name(&self, type_def: Token, name: &str) -> Result<Vec<Token>> {
        let name = wide(name);
        self.enumerate(|handle, buffer, capacity, fetched| {
            import!(
                self,
                enum_fields_with_name(handle, type_def.0, name.as_ptr(), buffer, capacity, fetched)
            )
        })
    }

    /// Name of a module reference, such as the library of a P/Invoke (`GetModuleRefProps`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_module_ref_props(&self, module_ref: Token) -> Result<String> {
        read_text(|buffer, capacity, length| {
            Ok(import!(
                self,
                get_module_ref_props(module_ref.0, buffer, capacity, length)
            ))
        })
    }

    /// Import name and library of a P/Invoke method (`GetPinvokeMap`); `None` for another method.
    ///
    /// # Errors
    /// The failure that the runtime reports, other than a missing record.
    pub fn get_pinvoke_map(&self, method: Token) -> Result<Option<(String, Token)>> {
        let (mut flags, mut library) = (0, 0);
        let name = read_text(|buffer, capacity, length| {
            Ok(import!(
                self,
                get_pinvoke_map(method.0, &mut flags, buffer, capacity, length, &mut library)
            ))
        });
        match name {
            Err(Hresult::CLDB_E_RECORD_NOTFOUND) => Ok(None),
            Err(error) => Err(error),
            Ok(name) => Ok(Some((name, Token(library)))),
        }
    }

    /// The value blob of an item's custom attribute of this type (`GetCustomAttributeByName`);
    /// `None` if it has none.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_custom_attribute_by_name(
        &self,
        owner: Token,
        type_name: &str,
    ) -> Result<Option<Vec<u8>>> {
        let name = wide(type_name);
        let (mut value, mut length) = (core::ptr::null(), 0);
        let answer = import!(
            self,
            get_custom_attribute_by_name(owner.0, name.as_ptr(), &mut value, &mut length)
        );
        answer.ok()?;
        if answer == Hresult::S_FALSE {
            return Ok(None);
        }
        // SAFETY: the blob is valid while the metadata is open, and `self` keeps it open.
        Ok(Some(unsafe { bytes(value.cast(), length) }))
    }

    /// The raw interface, for calls without a method here. It is borrowed: add a reference to store
    /// it.
    pub fn as_raw(&self) -> NonNull<IMetaDataImport2> {
        self.pointer
    }

    fn enumerate(
        &self,
        mut next: impl FnMut(*mut *mut c_void, *mut u32, u32, *mut u32) -> Hresult,
    ) -> Result<Vec<Token>> {
        let mut handle = core::ptr::null_mut();
        let mut all = Vec::new();
        let result = loop {
            let mut block = [0u32; 32];
            let mut fetched = 0;
            let answer = next(
                &mut handle,
                block.as_mut_ptr(),
                block.len() as u32,
                &mut fetched,
            );
            if answer.is_err() {
                break Err(answer);
            }
            let Some(fetched) = block.get(..fetched as usize) else {
                break Err(Hresult::E_BOUNDS);
            };
            if fetched.is_empty() {
                break Ok(all);
            }
            all.extend(fetched.iter().copied().map(Token));
        };
        if !handle.is_null() {
            import!(self, close_enum(handle));
        }
        result
    }
}
