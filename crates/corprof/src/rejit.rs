//! ReJIT: who may ask for methods to be compiled again, where from, and what the runtime is
//! answered.
//!
//! - [`enable_rejit`] sets the event mask, and gives the [`Rejit`]: only the main profiler of a
//!   runtime gets one, and the detach of this profiler is over with it.
//! - [`Rejit::spawn`] makes the thread that requests are made on ([`crate::Info::request_rejit`]):
//!   a request makes its thread one of the runtime's, so it is neither the profiler's own thread,
//!   which suspends the runtime, nor one of the program.
//! - The new IL is ready before it is asked for: [`PreparedBodies`] answers
//!   [`crate::Callbacks::get_rejit_parameters`], which the runtime calls on a thread of the program
//!   while others wait for it.
//!
//! The invariant: there is one [`Rejit`] for each mask that was set, and a request needs one.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;

use crate::context::{Callback, Context, Cx, MayTriggerGc, RejitThread};
use crate::id::{ModuleId, ModuleKey, Token};
use crate::objects::FunctionControl;
use crate::runtime::{Info, Result, Runtime};
use crate::sys::{CodegenFlags, CorIlMap, EventMaskHigh, EventMaskLow, Hresult, ModuleFlags};
use crate::thread::spawn_native_thread;

/// Why there is no ReJIT for this profiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RejitRefused {
    /// It is loaded for notifications, beside the runtime's main profiler, or the other flags of
    /// the mask are none that it may set.
    NotMain,
    /// It was attached, and `DOTNET_ProfAPI_RejitOnAttach` is 0.
    SwitchedOff,
    /// Another failure of the runtime.
    Other(Hresult),
}

impl fmt::Display for RejitRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMain => f.write_str("only the main profiler of a runtime has ReJIT"),
            Self::SwitchedOff => f.write_str("DOTNET_ProfAPI_RejitOnAttach=0 switches ReJIT off"),
            Self::Other(answer) => write!(f, "the runtime answers {answer}"),
        }
    }
}

impl std::error::Error for RejitRefused {}

/// Proof that this profiler is the main one of a runtime, and that its event mask has
/// [`EventMaskLow::ENABLE_REJIT`].
#[derive(Debug)]
pub struct Rejit {
    runtime: Runtime,
}

/// Sets the event masks, with what ReJIT needs: `ENABLE_REJIT`, and `MONITOR_JIT_COMPILATION`,
/// without which a method that is being compiled for the first time may miss its request.
///
/// **It ends [`Info::request_profiler_detach`] for good**: having set the flag once is enough
/// (`SetModifiedRejitState`, `src/coreclr/vm/eetoprofinterfaceimpl.cpp`), and clearing it does not
/// help. Set it when ReJIT is wanted, at any time, and not before.
///
/// # Errors
/// Why this profiler has no ReJIT.
pub fn enable_rejit<'rt, C: Context>(
    cx: &Cx<'rt, C>,
    low: EventMaskLow,
    high: EventMaskHigh,
) -> Result<Rejit, RejitRefused> {
    let info = cx.info();
    let low = low | EventMaskLow::ENABLE_REJIT | EventMaskLow::MONITOR_JIT_COMPILATION;
    info.set_event_mask2(cx, low, high)
        .map_err(|answer| match answer {
            // The answer to a notification profiler for a flag that is not on its list.
            Hresult::E_INVALIDARG => RejitRefused::NotMain,
            Hresult::CORPROF_E_REJIT_NOT_ENABLED => RejitRefused::SwitchedOff,
            answer => RejitRefused::Other(answer),
        })?;
    Ok(Rejit {
        runtime: info.runtime(),
    })
}

impl Rejit {
    /// The runtime that it is for.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Starts the thread that requests are made on. With the first request it becomes a thread of
    /// the runtime's: it is in `EnumThreads`, and a suspension waits for it while it is in a call.
    /// Signals are blocked on it as by [`crate::spawn_agent_thread`].
    ///
    /// # Errors
    /// The operating system's, when it makes no thread.
    pub fn spawn<R: Send + 'static>(
        self,
        name: &str,
        f: impl FnOnce(&mut RejitCx) -> R + Send + 'static,
    ) -> io::Result<JoinHandle<R>> {
        spawn_native_thread(name, move || {
            f(&mut RejitCx {
                rejit: self,
                not_send: PhantomData,
            })
        })
    }
}

/// Proof that the code runs on a thread of [`Rejit::spawn`].
#[derive(Debug)]
pub struct RejitCx {
    rejit: Rejit,
    not_send: PhantomData<*const ()>,
}

impl RejitCx {
    /// Runs `f` with the proof for the runtime, from which [`Cx::info`] makes the calls.
    pub fn enter<R>(&mut self, f: impl for<'rt> FnOnce(&mut Cx<'rt, RejitThread>) -> R) -> R {
        // SAFETY: this proof is not `Send` and was made on a thread of `Rejit::spawn`, which runs
        // no managed code: inside of no call it is in preemptive mode, and so may trigger a GC;
        // the runtime was initialised, as it gave the `Rejit`; `f` is generic over the brand.
        f(&mut unsafe { Cx::assert(&self.rejit.runtime) })
    }

    /// The [`Rejit`] that made this thread.
    pub fn rejit(&self) -> &Rejit {
        &self.rejit
    }
}

/// The interface of .NET 7, whose lookup of precompiled callers passes over those that are not
/// loaded.
const INLINERS_SAFE: u32 = 13;

impl<'rt> Info<'rt> {
    /// Whether [`Info::request_rejit_with_inliners`] cannot crash the program for this method:
    /// always from .NET 7 on; before, when the method is loaded and its module is not precompiled,
    /// as then no precompiled code has copies of it. Where it is not, [`Info::request_rejit`]
    /// leaves inlined copies as they are.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn inliners_are_safe<C: MayTriggerGc>(
        self,
        cx: &mut Cx<'rt, C>,
        module: ModuleId<'rt>,
        method: Token,
    ) -> Result<bool> {
        if self.interface_version() >= INLINERS_SAFE {
            return Ok(true);
        }
        let Some(about) = self.get_module_info2(cx, module)? else {
            return Ok(false);
        };
        if about.flags.intersects(ModuleFlags::NGEN) {
            return Ok(false);
        }
        Ok(matches!(
            self.get_function_from_token(cx, module, method),
            Ok(Some(_))
        ))
    }
}

/// New IL for a method, complete.
#[derive(Clone, Debug)]
pub struct PreparedBody {
    /// The body, header first ([`crate::il::Written::into_bytes`]).
    pub il: Box<[u8]>,
    /// How it maps to the original ([`crate::il::Written::code_map`]); may be empty.
    pub map: Box<[CorIlMap]>,
    /// How it is compiled.
    pub flags: CodegenFlags,
}

impl PreparedBody {
    /// A body as it was written.
    pub fn new(written: crate::il::Written) -> Self {
        Self {
            map: written.code_map().into(),
            il: written.into_bytes().into(),
            flags: CodegenFlags::empty(),
        }
    }

    /// Hands it over.
    ///
    /// # Errors
    /// The failure that the runtime reports. Taking no map is not a failure.
    pub fn answer(&self, control: &FunctionControl<'_>) -> Result<()> {
        if !self.flags.is_empty() {
            control.set_codegen_flags(self.flags)?;
        }
        control.set_il_function_body(&self.il)?;
        if !self.map.is_empty() {
            let _ = control.set_il_instrumented_code_map(&self.map);
        }
        Ok(())
    }
}

/// The bodies that were asked for, ready for [`crate::Callbacks::get_rejit_parameters`].
///
/// Its lock is held for a look into a table, never across a call of the runtime: threads of the
/// program may take it at any time.
#[derive(Debug, Default)]
pub struct PreparedBodies {
    bodies: RwLock<HashMap<(ModuleKey, Token), Arc<PreparedBody>>>,
}

impl PreparedBodies {
    /// Keeps a body for a method, in place of the one before. Do so before the request.
    pub fn insert(&self, module: ModuleKey, method: Token, body: PreparedBody) {
        let body = Arc::new(body);
        let mut bodies = self.bodies.write().unwrap_or_else(PoisonError::into_inner);
        bodies.insert((module, method), body);
    }

    /// Forgets a method's body: a request that is still open for it gets the original IL.
    pub fn remove(&self, module: ModuleKey, method: Token) {
        let mut bodies = self.bodies.write().unwrap_or_else(PoisonError::into_inner);
        bodies.remove(&(module, method));
    }

    /// Whether there is one for a method.
    pub fn contains(&self, module: ModuleKey, method: Token) -> bool {
        let bodies = self.bodies.read().unwrap_or_else(PoisonError::into_inner);
        bodies.contains_key(&(module, method))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        let bodies = self.bodies.read().unwrap_or_else(PoisonError::into_inner);
        bodies.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Answers `GetReJITParameters`; whether there was a body. The original IL is compiled
    /// otherwise.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn answer<'rt>(
        &self,
        cx: &Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        method: Token,
        control: &FunctionControl<'rt>,
    ) -> Result<bool> {
        let key = (cx.info().key(module), method);
        let bodies = self.bodies.read().unwrap_or_else(PoisonError::into_inner);
        let body = bodies.get(&key).cloned();
        drop(bodies);
        match body {
            Some(body) => body.answer(control).map(|()| true),
            None => Ok(false),
        }
    }
}
