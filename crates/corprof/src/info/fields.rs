//! Fields: layout of instances, and addresses of static fields.

use core::ffi::c_void;

use super::{call, complete};
use crate::context::{Context, Cx, Synchronous};
use crate::id::{AppDomainId, ClassId, ThreadId, Token};
use crate::runtime::{Info, Result};
use crate::sys::{CorFieldOffset, CorPrfStaticType, Hresult};

/// Result of `GetClassLayout`.
#[derive(Clone, Debug)]
pub struct ClassLayout {
    /// Size of an instance in bytes, including the header for a reference type.
    pub size: u32,
    /// Offset in bytes of each field that the class itself declares.
    pub fields: Vec<CorFieldOffset>,
}

impl<'rt> Info<'rt> {
    /// Size of a class and offsets of the fields that it adds (`GetClassLayout`, asynchronous).
    /// `None` if the runtime does not have the data yet.
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
        // With a buffer the runtime returns the number of fields it filled in; without one, their
        // total number.
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

    /// Offset of the value in a boxed value, in bytes (`GetBoxClassLayout`, synchronous).
    ///
    /// # Errors
    /// `E_INVALIDARG` if the class is not a value type.
    pub fn get_box_class_layout<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        class: ClassId<'rt>,
    ) -> Result<u32> {
        let mut offset = 0;
        call!(self, get_box_class_layout(class.raw(), &mut offset)).ok()?;
        Ok(offset)
    }

    /// Kind of a static field (`GetStaticFieldInfo`, synchronous). `None` if the runtime does not
    /// have the data yet.
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

    /// Address of a static field that is part of the image (`GetRVAStaticAddress`, synchronous).
    /// `None` if the class is not initialised yet.
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

    /// Address of an ordinary static field (`GetAppDomainStaticAddress`, synchronous). `None` if
    /// the class is not initialised yet.
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

    /// Address of a thread-static field, in the thread's domain (`GetThreadStaticAddress`,
    /// synchronous). `None` if the class is not initialised yet.
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

    /// Address of a thread-static field (`GetThreadStaticAddress2`, synchronous). `None` if the
    /// class is not initialised yet.
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

/// Returns the address that `ask` gets from the runtime. `None` if the class is not initialised
/// yet.
fn address_of(ask: impl FnOnce(&mut *mut c_void) -> Result<Hresult>) -> Result<Option<usize>> {
    let mut address: *mut c_void = core::ptr::null_mut();
    let answer = ask(&mut address)?.ok();
    complete(answer.map(|()| address.addr()))
}
