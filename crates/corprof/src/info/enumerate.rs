//! Reads the runtime's COM enumerators to their end.

use core::ffi::c_void;

use crate::runtime::Result;
use crate::sys::{
    CorPrfFunction, CorPrfMethod, Hresult, ICorProfilerFunctionEnum, ICorProfilerMethodEnum,
    ICorProfilerModuleEnum, ICorProfilerObjectEnum, ICorProfilerThreadEnum, IUnknownVtbl,
};

/// Releases the enumerator when dropped.
struct Released(*mut c_void);

impl Drop for Released {
    fn drop(&mut self) {
        // SAFETY: a live COM object, whose first field is a pointer to a vtable that starts with
        // `IUnknown`'s; this value owns the reference.
        unsafe {
            let vtbl = *self.0.cast::<*const IUnknownVtbl>();
            ((*vtbl).release)(self.0);
        }
    }
}

macro_rules! enumerators {
    ($($name:ident: $interface:ident of $item:ty = $empty:expr;)*) => { $(
        /// Reads everything and releases the enumerator.
        ///
        /// # Safety
        /// `this` is a live enumerator, with a reference that this function takes.
        pub(crate) unsafe fn $name(this: *mut $interface) -> Result<Vec<$item>> {
            if this.is_null() {
                return Err(Hresult::E_POINTER);
            }
            let _released = Released(this.cast());
            let mut all: Vec<$item> = Vec::new();
            loop {
                let mut block = [$empty; 64];
                let mut fetched = 0;
                // SAFETY: the enumerator is live; the block has the stated length.
                let answer = unsafe {
                    $interface::next(this, block.len() as u32, block.as_mut_ptr(), &mut fetched)
                };
                answer.ok()?;
                let fetched = block.get(..fetched as usize).ok_or(Hresult::E_BOUNDS)?;
                all.extend_from_slice(fetched);
                // S_FALSE: fewer items than requested, so this is the end.
                if answer == Hresult::S_FALSE || fetched.is_empty() {
                    return Ok(all);
                }
            }
        }
    )* };
}

/// Fills `into` up to its capacity, without allocating, and releases the enumerator. Returns
/// whether all items fit.
///
/// # Safety
/// `this` is a live enumerator, with a reference that this function takes.
pub(crate) unsafe fn threads_into<T>(
    this: *mut ICorProfilerThreadEnum,
    into: &mut Vec<T>,
    item: impl Fn(usize) -> Option<T>,
) -> Result<bool> {
    if this.is_null() {
        return Err(Hresult::E_POINTER);
    }
    let _released = Released(this.cast());
    loop {
        let mut block = [0usize; 64];
        let mut fetched = 0;
        // SAFETY: the enumerator is live; the block has the stated length.
        let answer = unsafe {
            ICorProfilerThreadEnum::next(this, block.len() as u32, block.as_mut_ptr(), &mut fetched)
        };
        answer.ok()?;
        let fetched = block.get(..fetched as usize).ok_or(Hresult::E_BOUNDS)?;
        for found in fetched.iter().filter_map(|raw| item(*raw)) {
            if into.len() == into.capacity() {
                return Ok(false);
            }
            into.push(found);
        }
        // S_FALSE: fewer items than requested, so this is the end.
        if answer == Hresult::S_FALSE || fetched.is_empty() {
            return Ok(true);
        }
    }
}

enumerators! {
    functions: ICorProfilerFunctionEnum of CorPrfFunction = CorPrfFunction { function_id: 0, rejit_id: 0 };
    modules: ICorProfilerModuleEnum of usize = 0usize;
    threads: ICorProfilerThreadEnum of usize = 0usize;
    objects: ICorProfilerObjectEnum of usize = 0usize;
    methods: ICorProfilerMethodEnum of CorPrfMethod = CorPrfMethod { module_id: 0, method_id: 0 };
}
