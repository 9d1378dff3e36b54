//! Objects, handles and the GC heap.
//!
//! Objects may be read only while they cannot move. So only callbacks in cooperative mode pass an
//! [`ObjectId`]. The runtime checks this too (`AllowObjectInspection`).

use core::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::{call, read_list};
use crate::context::{Cx, NativeThread, ObjectsStay, Synchronous};
use crate::id::{ClassId, Id, ObjectId, RuntimeIndex};
use crate::runtime::{Info, Result};
use crate::sys::{
    Bool, CorPrfGcGeneration, CorPrfGcGenerationRange, CorPrfHandleType, CorPrfNongcHeapRange,
    Hresult,
};

/// Result of `GetArrayObjectInfo`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArrayInfo {
    /// Length and lower bound of each dimension.
    pub dimensions: Vec<(u32, i32)>,
    /// Address of the elements.
    pub data: usize,
}

/// Result of `GetStringLayout2`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StringLayout {
    /// Offset of the length in a string, in bytes. The length is 32 bits, in UTF-16 units.
    pub length_offset: u32,
    /// Offset of the characters in a string, in bytes.
    pub buffer_offset: u32,
}

/// A GC handle to an object (`CreateHandle`). It can be stored. Free it with
/// [`Info::destroy_handle`].
#[derive(PartialEq, Eq, Debug)]
pub struct ObjectHandle {
    runtime: RuntimeIndex,
    raw: usize,
}

impl<'rt> Info<'rt> {
    /// The class of an object (`GetClassFromObject`, synchronous).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_class_from_object<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        object: ObjectId<'rt>,
    ) -> Result<ClassId<'rt>> {
        let mut class = 0;
        call!(self, get_class_from_object(object.raw(), &mut class)).ok()?;
        Id::new(class).ok_or(Hresult::E_FAIL)
    }

    /// The size of an object in bytes (`GetObjectSize2`, synchronous).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_object_size2<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        object: ObjectId<'rt>,
    ) -> Result<usize> {
        let mut size = 0;
        call!(self, get_object_size2(object.raw(), &mut size)).ok()?;
        Ok(size)
    }

    /// Dimensions and elements of an array (`GetArrayObjectInfo`, synchronous). `rank` is the
    /// number of dimensions, from [`Info::is_array_class`].
    ///
    /// # Errors
    /// `E_INVALIDARG` if the object is not an array, or has another rank.
    pub fn get_array_object_info<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        array: ObjectId<'rt>,
        rank: u32,
    ) -> Result<ArrayInfo> {
        let mut sizes = vec![0u32; rank as usize];
        let mut bounds = vec![0i32; rank as usize];
        let mut data = core::ptr::null_mut();
        call!(
            self,
            get_array_object_info(
                array.raw(),
                rank,
                sizes.as_mut_ptr(),
                bounds.as_mut_ptr(),
                &mut data,
            )
        )
        .ok()?;
        Ok(ArrayInfo {
            dimensions: sizes.into_iter().zip(bounds).collect(),
            data: data.addr(),
        })
    }

    /// The generation of an object, and that generation's range (`GetObjectGeneration`,
    /// synchronous).
    ///
    /// # Errors
    /// `E_FAIL` unless the garbage collection callbacks are enabled.
    pub fn get_object_generation<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        object: ObjectId<'rt>,
    ) -> Result<CorPrfGcGenerationRange> {
        let mut range = NO_RANGE;
        call!(self, get_object_generation(object.raw(), &mut range)).ok()?;
        Ok(range)
    }

    /// The ranges of all generations (`GetGenerationBounds`, synchronous).
    ///
    /// # Errors
    /// `E_FAIL` unless the garbage collection callbacks are enabled.
    pub fn get_generation_bounds<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
    ) -> Result<Vec<CorPrfGcGenerationRange>> {
        read_list::<_, 16>(NO_RANGE, |buffer, capacity, length| {
            Ok(call!(self, get_generation_bounds(capacity, length, buffer)))
        })
    }

    /// The ranges of the heap that is never collected (`GetNonGCHeapBounds`, .NET 8 on).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_non_gc_heap_bounds<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
    ) -> Result<Vec<CorPrfNongcHeapRange>> {
        const NONE: CorPrfNongcHeapRange = CorPrfNongcHeapRange {
            range_start: 0,
            range_length: 0,
            range_length_reserved: 0,
        };
        read_list::<_, 16>(NONE, |buffer, capacity, length| {
            Ok(call!(
                self,
                get_non_gc_heap_bounds(capacity, length, buffer)
            ))
        })
    }

    /// The addresses of the objects that are never collected and never move
    /// (`EnumerateNonGCObjects`, synchronous, .NET 8 on).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enumerate_non_gc_objects<C: Synchronous>(self, _: &Cx<'rt, C>) -> Result<Vec<usize>> {
        let mut enumerator = core::ptr::null_mut();
        call!(self, enumerate_non_gc_objects(&mut enumerator)).ok()?;
        // SAFETY: the runtime returned an enumerator and a reference to it.
        unsafe { super::enumerate::objects(enumerator) }
    }

    /// The addresses of everything that an object refers to (`EnumerateObjectReferences`,
    /// synchronous).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enumerate_object_references<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        object: ObjectId<'rt>,
    ) -> Result<Vec<usize>> {
        unsafe extern "system" fn collect(
            _root: usize,
            reference: *mut usize,
            all: *mut c_void,
        ) -> Bool {
            // SAFETY: `all` is the vector that was passed to the runtime below; `reference` is a
            // live field of the object.
            unsafe { (*all.cast::<Vec<usize>>()).push(*reference) };
            1
        }
        let mut all: Vec<usize> = Vec::new();
        call!(
            self,
            enumerate_object_references(object.raw(), Some(collect), (&raw mut all).cast())
        )
        .ok()?;
        Ok(all)
    }

    /// Calls `each` with the address of every object of the heap (`EnumerateGCHeapObjects`, .NET 10
    /// on) until `each` returns `false`. The runtime is suspended meanwhile.
    ///
    /// # Errors
    /// `CORPROF_E_SUSPENSION_IN_PROGRESS` if the runtime is suspending itself.
    pub fn enumerate_gc_heap_objects<C: NativeThread>(
        self,
        _: &mut Cx<'rt, C>,
        mut each: impl FnMut(usize) -> bool,
    ) -> Result<()> {
        type ObjectVisit<'f> = (
            &'f mut dyn FnMut(usize) -> bool,
            Option<Box<dyn std::any::Any + Send>>,
        );
        unsafe extern "system" fn visit(object: usize, state: *mut c_void) -> Bool {
            // SAFETY: the runtime passes back the pointer that it was given below.
            let (each, panic) = unsafe { &mut *state.cast::<ObjectVisit<'_>>() };
            match catch_unwind(AssertUnwindSafe(|| each(object))) {
                Ok(on) => on.into(),
                Err(thrown) => {
                    *panic = Some(thrown);
                    0
                }
            }
        }
        let mut state: ObjectVisit<'_> = (&mut each, None);
        let answer = call!(
            self,
            enumerate_gc_heap_objects(Some(visit), (&raw mut state).cast())
        );
        if let Some(thrown) = state.1 {
            resume_unwind(thrown);
        }
        answer.ok()
    }

    /// Whether an object is in a read-only segment (`IsFrozenObject`, synchronous).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn is_frozen_object<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        object: ObjectId<'rt>,
    ) -> Result<bool> {
        let mut frozen = 0;
        call!(self, is_frozen_object(object.raw(), &mut frozen)).ok()?;
        Ok(frozen != 0)
    }

    /// Minimum size of a large object, in bytes (`GetLOHObjectSizeThreshold`, synchronous).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_loh_object_size_threshold<C: Synchronous>(self, _: &Cx<'rt, C>) -> Result<u32> {
        let mut threshold = 0;
        call!(self, get_loh_object_size_threshold(&mut threshold)).ok()?;
        Ok(threshold)
    }

    /// Offsets of length and characters in a string (`GetStringLayout2`, synchronous).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_string_layout2<C: Synchronous>(self, _: &Cx<'rt, C>) -> Result<StringLayout> {
        let (mut length_offset, mut buffer_offset) = (0, 0);
        call!(
            self,
            get_string_layout2(&mut length_offset, &mut buffer_offset)
        )
        .ok()?;
        Ok(StringLayout {
            length_offset,
            buffer_offset,
        })
    }

    /// Creates a handle to an object (`CreateHandle`, synchronous, .NET 7 on).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn create_handle<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        object: ObjectId<'rt>,
        kind: CorPrfHandleType,
    ) -> Result<ObjectHandle> {
        let mut handle = core::ptr::null_mut();
        call!(self, create_handle(object.raw(), kind, &mut handle)).ok()?;
        Ok(ObjectHandle {
            runtime: self.index(),
            raw: handle.expose_provenance(),
        })
    }

    /// Creates a handle to an object whose address alone is known (`CreateHandle`, synchronous,
    /// .NET 7 on): an object that is being allocated on this thread, as reported by the runtime's
    /// allocation events.
    ///
    /// # Safety
    /// The thread is in cooperative mode in this callback. The object is at that address, created
    /// or about to be created by the allocation that the callback reports. No call that may trigger
    /// a collection has been made in this callback.
    ///
    /// # Errors
    /// The failure that the runtime reports; `E_INVALIDARG` for a null address.
    pub unsafe fn create_handle_at<C: Synchronous>(
        self,
        cx: &Cx<'rt, C>,
        address: usize,
        kind: CorPrfHandleType,
    ) -> Result<ObjectHandle> {
        let object = ObjectId::new(address).ok_or(Hresult::E_INVALIDARG)?;
        self.create_handle(cx, object, kind)
    }

    /// Frees a handle (`DestroyHandle`).
    ///
    /// Requires that no collection can be running. A collection reorders the blocks of the handle
    /// table without the lock that this call takes (`SegmentResortChains` and
    /// `SegmentRemoveFreeBlocks` of src/coreclr/gc/handletablecore.cpp). If both run at once the
    /// call may never return, and every thread that needs a handle waits for it. The runtime does
    /// not check this.
    ///
    /// # Errors
    /// `E_INVALIDARG` for a handle of another runtime; otherwise the failure that the runtime
    /// reports.
    pub fn destroy_handle<C: ObjectsStay>(
        self,
        _: &Cx<'rt, C>,
        handle: ObjectHandle,
    ) -> Result<()> {
        self.destroy(handle)
    }

    /// As [`Info::destroy_handle`], where the caller, not the context, excludes collections.
    ///
    /// # Safety
    /// No collection of this runtime is running, and none starts before this returns.
    ///
    /// # Errors
    /// As [`Info::destroy_handle`].
    pub unsafe fn destroy_handle_between_collections<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        handle: ObjectHandle,
    ) -> Result<()> {
        self.destroy(handle)
    }

    fn destroy(self, handle: ObjectHandle) -> Result<()> {
        if handle.runtime != self.index() {
            return Err(Hresult::E_INVALIDARG);
        }
        call!(
            self,
            destroy_handle(core::ptr::with_exposed_provenance_mut(handle.raw))
        )
        .ok()
    }

    /// The object of a handle (`GetObjectIDFromHandle`); `None` when it has been collected.
    ///
    /// # Errors
    /// `E_INVALIDARG` for a handle of another runtime; otherwise the failure that the runtime
    /// reports.
    pub fn get_object_id_from_handle<C: ObjectsStay>(
        self,
        _: &Cx<'rt, C>,
        handle: &ObjectHandle,
    ) -> Result<Option<ObjectId<'rt>>> {
        self.address_in(handle).map(ObjectId::new)
    }

    /// Whether a handle's object is still alive (`GetObjectIDFromHandle`). Where objects may move,
    /// the address itself would be useless.
    ///
    /// # Errors
    /// `E_INVALIDARG` for a handle of another runtime; otherwise the failure that the runtime
    /// reports.
    pub fn handle_has_object<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        handle: &ObjectHandle,
    ) -> Result<bool> {
        self.address_in(handle).map(|object| object != 0)
    }

    /// Current address of a handle's object; 0 if it has been collected.
    fn address_in(self, handle: &ObjectHandle) -> Result<usize> {
        if handle.runtime != self.index() {
            return Err(Hresult::E_INVALIDARG);
        }
        let mut object = 0;
        call!(
            self,
            get_object_id_from_handle(
                core::ptr::with_exposed_provenance_mut(handle.raw),
                &mut object
            )
        )
        .ok()?;
        Ok(object)
    }

    /// Collects every generation now, and waits for it (`ForceGC`).
    ///
    /// The runtime creates a `Thread` object for the calling thread, but still treats it as native.
    ///
    /// # Errors
    /// `CORPROF_E_NOT_YET_AVAILABLE` before the heap is initialised.
    pub fn force_gc<C: NativeThread>(self, _: &mut Cx<'rt, C>) -> Result<()> {
        call!(self, force_gc()).ok()
    }
}

const NO_RANGE: CorPrfGcGenerationRange = CorPrfGcGenerationRange {
    generation: CorPrfGcGeneration(0),
    range_start: 0,
    range_length: 0,
    range_length_reserved: 0,
};
