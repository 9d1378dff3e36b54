//! Fields: layout of instances and where statics are.

use core::ffi::c_void;

use super::{call, complete};
use crate::context::{Context, Cx, Synchronous};
use crate::id::{AppDomainId, ClassId, ThreadId, Token};
use crate::runtime::{Info, Result};
use crate::sys::{CorFieldOffset, CorPrfStaticType, Hresult};

/// Answer of `GetClassLayout`.
#[derive(Clone, Debug)]
pub struct ClassLayout {
    /// Size of an instance in bytes; for a reference type with its header.
    pub size: u32,
    /// Offset of each field of its own, in bytes.
    pub fields: Vec<CorFieldOffset>,
}

impl<'rt> Info<'rt> {
    /// Size of a class and offsets of the fields that it adds (`GetClassLayout`, asynchronous).
    /// `None`: the runtime has not got so far yet.
    ///
    /// # Errors
    /// `E_INVALIDARG` for arrays and strings.
    pub fn get_class_layout<C: Context>(
        self,
        _: &Cx<'rt, C>,
        class: ClassId<'rt>,
    ) -> Result<Option<ClassLayout>> {
        const NONE: CorFieldOffset = CorFieldOffset {
            rid_of_field: 0,
            offset: 0,
        };
        // With a buffer the runtime says how many it filled in, without one how many there are.
        let (mut count, mut size) = (0, 0);
        let counted = call!(
            self,
            get_class_layout(class.raw(), core::ptr::null_mut(), 0, &mut count, &mut size)
        );
        let layout = counted.ok().and_then(|()| {
            let mut fields = vec![NONE; count as usize];
            if count != 0 {
                let mut filled = 0;
                call!(
                    self,
                    get_class_layout(
                        class.raw(),
                        fields.as_mut_ptr(),
                        count,
                        &mut filled,
                        &mut size
                    )
                )
                .ok()?;
                fields.truncate(filled as usize);
            }
            Ok(ClassLayout { size, fields })
        });
        complete(layout)
    }

    /// Where in a boxed value the value is, in bytes (`GetBoxClassLayout`, synchronous).
    ///
    /// # Errors
    /// `E_INVALIDARG` when it is no value type.
    pub fn get_box_class_layout<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        class: ClassId<'rt>,
    ) -> Result<u32> {
        let mut offset = 0;
        call!(self, get_box_class_layout(class.raw(), &mut offset)).ok()?;
        Ok(offset)
    }

    /// Kind of a static field (`GetStaticFieldInfo`, synchronous).
    /// `None`: the runtime has not got so far yet.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_static_field_info<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        class: ClassId<'rt>,
        field: Token,
    ) -> Result<Option<CorPrfStaticType>> {
        let mut kind = CorPrfStaticType::FIELD_NOT_A_STATIC;
        complete(
            call!(self, get_static_field_info(class.raw(), field.0, &mut kind))
                .ok()
                .map(|()| kind),
        )
    }

    /// Address of a static that is part of the image (`GetRVAStaticAddress`, synchronous).
    /// `None`: the class has not been initialised yet.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_rva_static_address<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        class: ClassId<'rt>,
        field: Token,
    ) -> Result<Option<usize>> {
        address_of(|address| {
            Ok(call!(
                self,
                get_rva_static_address(class.raw(), field.0, address)
            ))
        })
    }

    /// Address of an ordinary static (`GetAppDomainStaticAddress`, synchronous).
    /// `None`: the class has not been initialised yet.
    ///
    /// # Errors
    /// `CORPROF_E_LITERALS_HAVE_NO_ADDRESS` for a constant.
    pub fn get_app_domain_static_address<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        class: ClassId<'rt>,
        field: Token,
        domain: AppDomainId<'rt>,
    ) -> Result<Option<usize>> {
        address_of(|address| {
            Ok(call!(
                self,
                get_app_domain_static_address(class.raw(), field.0, domain.raw(), address)
            ))
        })
    }

    /// Address of a thread's static, in the thread's domain (`GetThreadStaticAddress`,
    /// synchronous). `None`: the class has not been initialised yet.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_thread_static_address<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        class: ClassId<'rt>,
        field: Token,
        thread: ThreadId<'rt>,
    ) -> Result<Option<usize>> {
        address_of(|address| {
            Ok(call!(
                self,
                get_thread_static_address(class.raw(), field.0, thread.raw(), address)
            ))
        })
    }

    /// Address of a thread's static (`GetThreadStaticAddress2`, synchronous).
    /// `None`: the class has not been initialised yet.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_thread_static_address2<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        class: ClassId<'rt>,
        field: Token,
        domain: AppDomainId<'rt>,
        thread: ThreadId<'rt>,
    ) -> Result<Option<usize>> {
        address_of(|address| {
            Ok(call!(
                self,
                get_thread_static_address2(
                    class.raw(),
                    field.0,
                    domain.raw(),
                    thread.raw(),
                    address
                )
            ))
        })
    }
}

/// The address of a static, which `ask` has the runtime write. `None`: the class has not been
/// initialised yet.
fn address_of(ask: impl FnOnce(&mut *mut c_void) -> Result<Hresult>) -> Result<Option<usize>> {
    let mut address: *mut c_void = core::ptr::null_mut();
    let answer = ask(&mut address)?.ok();
    complete(answer.map(|()| address.addr()))
}
