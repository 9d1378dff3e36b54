//! Tests of the COM object that a CLR gets, called as a CLR calls it.

use core::ffi::c_void;
use core::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use corprof::context::{Callback, NoTrigger, Startup};
use corprof::sys::*;
use corprof::{Callbacks, ClassRequest, Cx, FunctionId, FunctionKey, Runtime};

static FUNCTION: OnceLock<FunctionKey> = OnceLock::new();
static RUNTIME: OnceLock<Runtime> = OnceLock::new();
static CALLS: AtomicU32 = AtomicU32::new(0);

struct Profiler;

impl Callbacks for Profiler {
    fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> corprof::Result<()> {
        let info = cx.info();
        assert_eq!(info.interface_version(), 11);
        info.set_event_mask2(cx, EventMaskLow::MONITOR_THREADS, EventMaskHigh::BASIC_GC)?;
        RUNTIME.set(info.runtime()).ok();
        Ok(())
    }
    fn jit_compilation_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        _: bool,
    ) -> corprof::Result<()> {
        FUNCTION.set(cx.info().key(function)).ok();
        Ok(())
    }
    fn garbage_collection_started<'rt>(
        &self,
        _: &mut Cx<'rt, NoTrigger>,
        generations: &[bool],
        _: CorPrfGcReason,
    ) -> corprof::Result<()> {
        assert_eq!(generations, [true, false], "a panic for the test");
        CALLS.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A fake `ICorProfilerInfo11`, with the slots that the test needs.
#[repr(C)]
struct Info {
    vtbl: *const [usize; 115],
    masks: (AtomicU32, AtomicU32),
}

unsafe extern "system" fn query(
    this: *mut c_void,
    iid: *const Guid,
    out: *mut *mut c_void,
) -> Hresult {
    // SAFETY: the caller is `corprof`, which passes valid pointers.
    unsafe {
        let known = ICorProfilerInfo15::VERSIONS[..11]
            .iter()
            .any(|version| version.iid == *iid);
        *out = if known { this } else { null_mut() };
        if known {
            Hresult::S_OK
        } else {
            Hresult::E_NOINTERFACE
        }
    }
}
unsafe extern "system" fn references(_: *mut c_void) -> u32 {
    1
}
unsafe extern "system" fn set_event_mask2(this: *mut c_void, low: u32, high: u32) -> Hresult {
    // SAFETY: `this` is the test's own object.
    let info = unsafe { &*this.cast::<Info>() };
    info.masks.0.store(low, Ordering::Relaxed);
    info.masks.1.store(high, Ordering::Relaxed);
    Hresult::S_OK
}
fn unexpected() -> ! {
    std::process::abort()
}

#[test]
fn a_profiler_from_the_factory_to_a_panic() {
    let mut factory: *mut c_void = null_mut();
    let clsid = Guid::new("{846F5F1C-F9AE-4B07-969E-05C26BC060D8}");
    let constructor = |request: &ClassRequest| -> corprof::Result<Box<dyn Callbacks>> {
        assert_eq!(
            request.clsid,
            Guid::new("846f5f1c-f9ae-4b07-969e-05c26bc060d8")
        );
        Ok(Box::new(Profiler))
    };
    // SAFETY: valid pointers throughout, used as a CLR uses them.
    unsafe {
        assert_eq!(
            corprof::class_object(&clsid, &IClassFactory::IID, &mut factory, constructor),
            Hresult::S_OK
        );
        let factory = factory.cast::<IClassFactory>();
        let mut profiler: *mut c_void = null_mut();
        let callback2 = ICorProfilerCallback11::VERSIONS[1].iid;
        assert_eq!(
            IClassFactory::create_instance(
                factory,
                null_mut(),
                &ICorProfilerInfo15::IID,
                &mut profiler
            ),
            Hresult::E_NOINTERFACE
        );
        assert_eq!(
            IClassFactory::create_instance(factory, null_mut(), &callback2, &mut profiler),
            Hresult::S_OK
        );
        ((*(*factory).vtbl).unknown.release)(factory.cast());
        let profiler = profiler.cast::<ICorProfilerCallback11>();
        let unknown = &(*(*profiler).vtbl).unknown;

        for version in ICorProfilerCallback11::VERSIONS {
            let mut same = null_mut();
            assert_eq!(
                (unknown.query_interface)(profiler.cast(), &version.iid, &mut same),
                Hresult::S_OK
            );
            assert_eq!(same, profiler.cast());
            (unknown.release)(profiler.cast());
        }
        let mut other = profiler.cast();
        assert_eq!(
            (unknown.query_interface)(profiler.cast(), &ICorProfilerInfo15::IID, &mut other),
            Hresult::E_NOINTERFACE
        );
        assert!(other.is_null());

        // No callback is forwarded before `Initialize`.
        let collected: [Bool; 2] = [1, 0];
        let started = |generations: &[Bool]| {
            ICorProfilerCallback11::garbage_collection_started(
                profiler,
                generations.len() as i32,
                generations.as_ptr(),
                CorPrfGcReason::INDUCED,
            )
        };
        assert_eq!(started(&collected), Hresult::S_OK);
        assert_eq!(CALLS.load(Ordering::Relaxed), 0);

        let mut slots = [unexpected as fn() -> ! as usize; 115];
        slots[0] = query as *const () as usize;
        slots[1] = references as *const () as usize;
        slots[2] = references as *const () as usize;
        slots[82] = set_event_mask2 as *const () as usize;
        let mut info = Info {
            vtbl: &slots,
            masks: Default::default(),
        };
        let raw = (&raw mut info).cast::<IUnknown>();
        assert_eq!(
            ICorProfilerCallback11::initialize(profiler, null_mut()),
            Hresult::E_POINTER
        );
        assert_eq!(
            ICorProfilerCallback11::initialize(profiler, raw),
            Hresult::S_OK
        );
        assert_eq!(info.masks.0.load(Ordering::Relaxed), 0x200);
        assert_eq!(info.masks.1.load(Ordering::Relaxed), 0x10);

        assert_eq!(started(&collected), Hresult::S_OK);
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        let runtime = RUNTIME.get().unwrap();
        assert_eq!(runtime.panics(), 0);
        assert_eq!(started(&[]), Hresult::E_FAIL);
        assert_eq!(runtime.panics(), 1);

        assert_eq!(
            ICorProfilerCallback11::jit_compilation_started(profiler, 0x1234, 1),
            Hresult::S_OK
        );
        assert_eq!(FUNCTION.get().unwrap().raw(), 0x1234);
        // 0 is not a function.
        assert_eq!(
            ICorProfilerCallback11::jit_compilation_started(profiler, 0, 1),
            Hresult::E_INVALIDARG
        );
        let mut inline: Bool = -1;
        assert_eq!(
            ICorProfilerCallback11::jit_inlining(profiler, 1, 2, &mut inline),
            Hresult::S_OK
        );
        assert_eq!(inline, 1);
        assert_eq!((unknown.release)(profiler.cast()), 0);
    }
}

/// CLRs that start at the same moment call the factory on several threads at once.
#[test]
fn each_of_many_instances_at_once_has_a_number_of_its_own() {
    static SEEN: std::sync::Mutex<Vec<u32>> = std::sync::Mutex::new(Vec::new());
    const THREADS: usize = 8;
    const EACH: usize = 100;
    let constructor = |request: &ClassRequest| -> corprof::Result<Box<dyn Callbacks>> {
        SEEN.lock().unwrap().push(request.runtime.0);
        Ok(Box::new(Profiler))
    };
    let ready = std::sync::Barrier::new(THREADS);
    let make = || {
        ready.wait();
        for _ in 0..EACH {
            let clsid = Guid::new("{846F5F1C-F9AE-4B07-969E-05C26BC060D8}");
            let callback2 = ICorProfilerCallback11::VERSIONS[1].iid;
            let (mut factory, mut profiler) = (null_mut(), null_mut());
            // SAFETY: valid pointers throughout, used as a CLR uses them.
            unsafe {
                let answer =
                    corprof::class_object(&clsid, &IClassFactory::IID, &mut factory, constructor);
                assert_eq!(answer, Hresult::S_OK);
                let factory = factory.cast::<IClassFactory>();
                let answer =
                    IClassFactory::create_instance(factory, null_mut(), &callback2, &mut profiler);
                assert_eq!(answer, Hresult::S_OK);
                ((*(*factory).vtbl).unknown.release)(factory.cast());
                let profiler = profiler.cast::<ICorProfilerCallback11>();
                ((*(*profiler).vtbl).unknown.release)(profiler.cast());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(make);
        }
    });
    let mut seen = std::mem::take(&mut *SEEN.lock().unwrap());
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), THREADS * EACH);
}
