//! Fake metadata of a module: names and signatures of the script, and added signatures.
//!
//! Two COM objects, one for reading and one for writing.
//!
//! Invariant: every slot without an implementation returns `E_NOTIMPL`.

use core::arch::naked_asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use corprof::sys::{
    Guid, HCorEnum, Hresult, IMetaDataEmit2, IMetaDataEmit2Vtbl, IMetaDataImport2,
    IMetaDataImport2Vtbl, IUnknownVtbl, Interface, MdToken,
};

use crate::slots::{Answer, fill_only, put, text};
use crate::state::Shared;

/// Table of stand-alone signatures.
const SIGNATURES: u32 = 0x1100_0000;
/// The only reference to a type of another module.
const TASK: u32 = 0x0100_0001;

/// Layout of both objects.
#[repr(C)]
struct Metadata {
    vtbl: *const c_void,
    references: AtomicU32,
    clr: Arc<Shared>,
    module: usize,
}

/// The object that `GetModuleMetaData` returns.
pub(crate) fn open(clr: &Arc<Shared>, module: usize, iid: &Guid) -> Result<*mut c_void, Hresult> {
    let vtbl: *const c_void = if *iid == IMetaDataImport2::IID {
        core::ptr::from_ref(&*IMPORT).cast()
    } else if *iid == IMetaDataEmit2::IID {
        core::ptr::from_ref(&*EMIT).cast()
    } else {
        return Err(Hresult::E_NOINTERFACE);
    };
    let made = Box::new(Metadata {
        vtbl,
        references: AtomicU32::new(1),
        clr: Arc::clone(clr),
        module,
    });
    Ok(Box::into_raw(made).cast())
}

static IMPORT: LazyLock<IMetaDataImport2Vtbl> = LazyLock::new(|| {
    const SLOTS: usize = IMetaDataImport2::SLOTS;
    // SAFETY: every slot is a function pointer, and `not_implemented` may be called with any
    // arguments.
    let mut all: IMetaDataImport2Vtbl = unsafe {
        core::mem::transmute([not_implemented as unsafe extern "system" fn() -> Hresult; SLOTS])
    };
    all.unknown = UNKNOWN;
    all.close_enum = close_enum;
    all.enum_type_defs = enum_type_defs;
    all.enum_methods = enum_methods;
    all.enum_type_refs = enum_type_refs;
    all.enum_fields_with_name = enum_fields_with_name;
    all.get_scope_props = get_scope_props;
    all.get_type_def_props = get_type_def_props;
    all.get_type_ref_props = get_type_ref_props;
    all.get_nested_class_props = get_nested_class_props;
    all.get_method_props = get_method_props;
    all.get_sig_from_token = get_sig_from_token;
    all
});

static EMIT: LazyLock<IMetaDataEmit2Vtbl> = LazyLock::new(|| {
    const SLOTS: usize = IMetaDataEmit2::SLOTS;
    // SAFETY: as above.
    let mut all: IMetaDataEmit2Vtbl = unsafe {
        core::mem::transmute([not_implemented as unsafe extern "system" fn() -> Hresult; SLOTS])
    };
    all.unknown = UNKNOWN;
    all.get_token_from_sig = get_token_from_sig;
    all
});

const UNKNOWN: IUnknownVtbl = IUnknownVtbl {
    query_interface,
    add_ref,
    release,
};

/// Returns `E_NOTIMPL` for any arguments: the caller removes them from the stack, and no
/// callee-saved register changes.
#[unsafe(naked)]
unsafe extern "system" fn not_implemented() -> Hresult {
    naked_asm!("mov eax, 0x80004001", "ret")
}

unsafe extern "system" fn query_interface(
    _: *mut c_void,
    _: *const Guid,
    out: *mut *mut c_void,
) -> Hresult {
    // SAFETY: the caller passes a valid out-pointer.
    unsafe { *out = core::ptr::null_mut() };
    Hresult::E_NOINTERFACE
}

unsafe extern "system" fn add_ref(this: *mut c_void) -> u32 {
    // SAFETY: called through an object of this module.
    let references = unsafe { &(*this.cast::<Metadata>()).references };
    references.fetch_add(1, Ordering::Relaxed) + 1
}

unsafe extern "system" fn release(this: *mut c_void) -> u32 {
    // SAFETY: called through an object of this module; the caller owns a reference.
    let references = unsafe { &(*this.cast::<Metadata>()).references };
    let left = references.fetch_sub(1, Ordering::AcqRel) - 1;
    if left == 0 {
        // SAFETY: that was the last reference, and `open` created the object with `Box`.
        drop(unsafe { Box::from_raw(this.cast::<Metadata>()) });
    }
    left
}

/// An enumeration in progress.
struct Enumeration {
    tokens: Vec<u32>,
    next: usize,
}

/// Implements an `Enum…` method. The first call creates the list. Each call returns as many items
/// as fit.
///
/// # Safety
/// The contract of the `Enum…` methods.
unsafe fn enumerate(
    handle: *mut HCorEnum,
    tokens: impl FnOnce() -> Vec<u32>,
    (out, capacity, fetched): (*mut MdToken, u32, *mut u32),
) -> Hresult {
    // SAFETY: guaranteed by the caller; a handle that is not null is a list from the first call.
    let list = unsafe {
        if (*handle).is_null() {
            let tokens = tokens();
            *handle = Box::into_raw(Box::new(Enumeration { tokens, next: 0 })).cast();
        }
        &mut *(*handle).cast::<Enumeration>()
    };
    let rest = list.tokens.get(list.next..).unwrap_or_default();
    let some = rest.get(..capacity as usize).unwrap_or(rest);
    list.next += some.len();
    let _always = put(fetched, some.len() as u32).and_then(|()| fill_only(some, capacity, out));
    Hresult::S_OK
}

unsafe extern "system" fn close_enum(_: *mut IMetaDataImport2, handle: HCorEnum) {
    // SAFETY: null, or a list that `enumerate` created.
    drop((!handle.is_null()).then(|| unsafe { Box::from_raw(handle.cast::<Enumeration>()) }));
}

/// # Safety
/// `this` is an object of this module.
unsafe fn of<'a, T>(this: *mut T) -> &'a Metadata {
    // SAFETY: guaranteed by the caller.
    unsafe { &*this.cast::<Metadata>() }
}

fn answer(answer: Answer) -> Hresult {
    answer.err().unwrap_or(Hresult::S_OK)
}

unsafe extern "system" fn enum_type_defs(
    this: *mut IMetaDataImport2,
    handle: *mut HCorEnum,
    out: *mut MdToken,
    capacity: u32,
    fetched: *mut u32,
) -> Hresult {
    // SAFETY: called through this vtable, by the contract.
    unsafe {
        let own = of(this);
        let tokens = || {
            let state = own.clr.lock();
            let classes = state.world.classes.values();
            let of_it = classes.filter(|class| class.module == own.module);
            of_it.map(|class| class.token).collect()
        };
        enumerate(handle, tokens, (out, capacity, fetched))
    }
}

unsafe extern "system" fn enum_methods(
    this: *mut IMetaDataImport2,
    handle: *mut HCorEnum,
    class: MdToken,
    out: *mut MdToken,
    capacity: u32,
    fetched: *mut u32,
) -> Hresult {
    // SAFETY: called through this vtable, by the contract.
    unsafe {
        let own = of(this);
        let tokens = || {
            let state = own.clr.lock();
            let world = &state.world;
            let functions = world.functions.values().filter(|function| {
                let of = world.classes.get(&function.class);
                function.dynamic.is_none()
                    && function.module == own.module
                    && of.is_some_and(|of| of.token == class)
            });
            functions.map(|function| function.token).collect()
        };
        enumerate(handle, tokens, (out, capacity, fetched))
    }
}

unsafe extern "system" fn enum_type_refs(
    _: *mut IMetaDataImport2,
    handle: *mut HCorEnum,
    out: *mut MdToken,
    capacity: u32,
    fetched: *mut u32,
) -> Hresult {
    // SAFETY: called through this vtable, by the contract.
    unsafe { enumerate(handle, Vec::new, (out, capacity, fetched)) }
}

unsafe extern "system" fn enum_fields_with_name(
    _: *mut IMetaDataImport2,
    handle: *mut HCorEnum,
    _: MdToken,
    _: *const u16,
    out: *mut MdToken,
    capacity: u32,
    fetched: *mut u32,
) -> Hresult {
    // SAFETY: called through this vtable, by the contract.
    unsafe { enumerate(handle, Vec::new, (out, capacity, fetched)) }
}

unsafe extern "system" fn get_scope_props(
    this: *mut IMetaDataImport2,
    name: *mut u16,
    capacity: u32,
    length: *mut u32,
    mvid: *mut Guid,
) -> Hresult {
    // SAFETY: called through this vtable.
    let own = unsafe { of(this) };
    let id = Guid {
        data1: own.module as u32,
        data2: (own.module >> 32) as u16,
        data3: (own.module >> 48) as u16,
        data4: *b"fake-clr",
    };
    answer(put(mvid, id).and_then(|()| text("fake", capacity, length, name)))
}

unsafe extern "system" fn get_type_def_props(
    this: *mut IMetaDataImport2,
    token: MdToken,
    name: *mut u16,
    capacity: u32,
    length: *mut u32,
    flags: *mut u32,
    extends: *mut MdToken,
) -> Hresult {
    // SAFETY: called through this vtable.
    let own = unsafe { of(this) };
    let found = {
        let state = own.clr.lock();
        let mut classes = state.world.classes.values();
        let found = classes.find(|class| (class.module, class.token) == (own.module, token));
        found.map(|class| class.name.clone())
    };
    let Some(found) = found else {
        return Hresult::CLDB_E_RECORD_NOTFOUND;
    };
    answer(
        put(flags, 1)
            .and_then(|()| put(extends, 0))
            .and_then(|()| text(&found, capacity, length, name)),
    )
}

unsafe extern "system" fn get_type_ref_props(
    _: *mut IMetaDataImport2,
    token: MdToken,
    scope: *mut MdToken,
    name: *mut u16,
    capacity: u32,
    length: *mut u32,
) -> Hresult {
    if token != TASK {
        return Hresult::CLDB_E_RECORD_NOTFOUND;
    }
    let task = "System.Threading.Tasks.Task";
    answer(put(scope, 0).and_then(|()| text(task, capacity, length, name)))
}

unsafe extern "system" fn get_nested_class_props(
    _: *mut IMetaDataImport2,
    _: MdToken,
    _: *mut MdToken,
) -> Hresult {
    Hresult::CLDB_E_RECORD_NOTFOUND
}

unsafe extern "system" fn get_method_props(
    this: *mut IMetaDataImport2,
    token: MdToken,
    class: *mut MdToken,
    name: *mut u16,
    capacity: u32,
    length: *mut u32,
    attributes: *mut u32,
    signature: *mut *const u8,
    signature_length: *mut u32,
    rva: *mut u32,
    implementation: *mut u32,
) -> Hresult {
    /// Public and static.
    const ATTRIBUTES: u32 = 0x16;
    // SAFETY: called through this vtable.
    let own = unsafe { of(this) };
    let found = {
        let state = own.clr.lock();
        let world = &state.world;
        let mut functions = world.functions.values();
        let found =
            functions.find(|function| (function.module, function.token) == (own.module, token));
        found.map(|function| {
            let of = world.classes.get(&function.class);
            (of.map_or(0, |of| of.token), function.clone())
        })
    };
    let Some((of, found)) = found else {
        return Hresult::CLDB_E_RECORD_NOTFOUND;
    };
    answer((|| {
        put(class, of)?;
        put(attributes, ATTRIBUTES)?;
        // Lent: it lives as long as the function.
        put(signature, found.signature.as_ptr())?;
        put(signature_length, found.signature.len() as u32)?;
        put(rva, 0x2050)?;
        put(implementation, found.implementation)?;
        text(&found.name, capacity, length, name)
    })())
}

unsafe extern "system" fn get_sig_from_token(
    this: *mut IMetaDataImport2,
    token: MdToken,
    signature: *mut *const u8,
    length: *mut u32,
) -> Hresult {
    // SAFETY: called through this vtable.
    let own = unsafe { of(this) };
    let state = own.clr.lock();
    let module = state.world.modules.get(&own.module);
    let at = token.wrapping_sub(SIGNATURES + 1) as usize;
    let found = module.and_then(|module| module.signatures.get(at));
    let Some(found) = found else {
        return Hresult::CLDB_E_RECORD_NOTFOUND;
    };
    // Lent: it lives as long as the module.
    answer(put(signature, found.as_ptr()).and_then(|()| put(length, found.len() as u32)))
}

unsafe extern "system" fn get_token_from_sig(
    this: *mut IMetaDataEmit2,
    signature: *const u8,
    length: u32,
    token: *mut MdToken,
) -> Hresult {
    // SAFETY: called through this vtable, with a signature of that length.
    let (own, signature) = unsafe { (of(this), crate::state::rejit::list(signature, length)) };
    let mut state = own.clr.lock();
    let Some(module) = state.world.modules.get_mut(&own.module) else {
        return Hresult::CORPROF_E_DATAINCOMPLETE;
    };
    module.signatures.push(signature.into());
    answer(put(token, SIGNATURES + module.signatures.len() as u32))
}
