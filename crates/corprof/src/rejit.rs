//! ReJIT (method recompilation): who may request it, on which thread, and with which IL.
//!
//! - [`enable_rejit`] sets the event mask and returns the [`Rejit`]. Only the main profiler of a
//!   runtime gets one. From then on this profiler cannot be detached.
//! - [`Rejit::spawn`] starts the thread for requests ([`crate::Info::request_rejit`]). A request
//!   gives its thread a `Thread` object of the runtime. So requests are made neither on the agent
//!   thread, which suspends the runtime, nor on a thread of the program.
//! - [`PreparedBodies`] holds the new IL, which must be ready before the request. It serves
//!   [`crate::Callbacks::get_rejit_parameters`], which the runtime calls on a thread of the program
//!   while other threads wait.
//!
//! Invariant: a request needs a [`Rejit`], and only a successful [`enable_rejit`] creates one.

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

/// Reason why this profiler cannot use ReJIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RejitRefused {
    /// The profiler is a notification profiler, or may not set the other flags of the mask.
    NotMain,
    /// The profiler was attached, and `DOTNET_ProfAPI_RejitOnAttach` is 0.
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

/// Sets the event masks, and adds the flags for ReJIT: `ENABLE_REJIT` and
/// `MONITOR_JIT_COMPILATION`. Without the latter a method that is being compiled for the first time
/// may miss its request.
///
/// **[`Info::request_profiler_detach`] is impossible from then on**, even if the flag is cleared
/// (`SetModifiedRejitState`, `src/coreclr/vm/eetoprofinterfaceimpl.cpp`). Call this at any time,
/// but only when ReJIT is needed.
///
/// # Errors
/// The reason why this profiler cannot use ReJIT.
pub fn enable_rejit<'rt, C: Context>(
    cx: &Cx<'rt, C>,
    low: EventMaskLow,
    high: EventMaskHigh,
) -> Result<Rejit, RejitRefused> {
    let info = cx.info();
    let low = low | EventMaskLow::ENABLE_REJIT | EventMaskLow::MONITOR_JIT_COMPILATION;
    info.set_event_mask2(cx, low, high)
        .map_err(|answer| match answer {
            // The result for a flag that a notification profiler may not set.
            Hresult::E_INVALIDARG => RejitRefused::NotMain,
            Hresult::CORPROF_E_REJIT_NOT_ENABLED => RejitRefused::SwitchedOff,
            answer => RejitRefused::Other(answer),
        })?;
    Ok(Rejit {
        runtime: info.runtime(),
    })
}

impl Rejit {
    /// The runtime to which requests go.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Starts the thread for requests. From its first request on it is a thread of the runtime:
    /// `EnumThreads` lists it, and a suspension waits for it while it is in a call. Signals are
    /// blocked on it as by [`crate::spawn_agent_thread`].
    ///
    /// # Errors
    /// The operating system's error if it cannot create a thread.
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
    /// Runs `f` with the context token of the runtime. [`Cx::info`] gives access to the calls.
    pub fn enter<R>(&mut self, f: impl for<'rt> FnOnce(&mut Cx<'rt, RejitThread>) -> R) -> R {
        // SAFETY: this token is not `Send` and was created on a thread of `Rejit::spawn`, which
        // runs no managed code. Outside of calls it is in preemptive mode, so it may trigger a GC.
        // The runtime was initialised before it gave the `Rejit`. `f` is generic over the brand.
        f(&mut unsafe { Cx::assert(&self.rejit.runtime) })
    }

    /// The [`Rejit`] that started this thread.
    pub fn rejit(&self) -> &Rejit {
        &self.rejit
    }
}

/// Interface version of .NET 7, whose search for precompiled callers skips those that are not
/// loaded.
const INLINERS_SAFE: u32 = 13;

impl<'rt> Info<'rt> {
    /// Whether [`Info::request_rejit_with_inliners`] is safe for this method. It always is from
    /// .NET 7 on. Before, it is safe if the method is loaded and its module is not precompiled,
    /// because no precompiled code has inlined copies then; otherwise it can crash the program.
    /// [`Info::request_rejit`] is the alternative, which leaves inlined copies as they are.
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

/// Complete new IL of a method.
#[derive(Clone, Debug)]
pub struct PreparedBody {
    /// The body, header first ([`crate::il::Written::into_bytes`]).
    pub il: Box<[u8]>,
    /// Map from the original IL ([`crate::il::Written::code_map`]); may be empty.
    pub map: Box<[CorIlMap]>,
    /// Flags of the compilation.
    pub flags: CodegenFlags,
}

impl PreparedBody {
    /// Takes a written body, with its map and without flags.
    pub fn new(written: crate::il::Written) -> Self {
        Self {
            map: written.code_map().into(),
            il: written.into_bytes().into(),
            flags: CodegenFlags::empty(),
        }
    }

    /// Passes the body to the runtime.
    ///
    /// # Errors
    /// The failure that the runtime reports. A refused map is not a failure.
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

/// The new bodies of requested methods, for [`crate::Callbacks::get_rejit_parameters`].
///
/// Its lock is held for a table look-up only, never across a call into the runtime, because threads
/// of the program may take it at any time.
#[derive(Debug, Default)]
pub struct PreparedBodies {
    bodies: RwLock<HashMap<(ModuleKey, Token), Arc<PreparedBody>>>,
}

impl PreparedBodies {
    /// Stores the body of a method and replaces an earlier one. Call it before the request.
    pub fn insert(&self, module: ModuleKey, method: Token, body: PreparedBody) {
        let body = Arc::new(body);
        let mut bodies = self.bodies.write().unwrap_or_else(PoisonError::into_inner);
        bodies.insert((module, method), body);
    }

    /// Removes a method's body. A pending request for the method then gets the original IL.
    pub fn remove(&self, module: ModuleKey, method: Token) {
        let mut bodies = self.bodies.write().unwrap_or_else(PoisonError::into_inner);
        bodies.remove(&(module, method));
    }

    /// Whether a method has a body.
    pub fn contains(&self, module: ModuleKey, method: Token) -> bool {
        let bodies = self.bodies.read().unwrap_or_else(PoisonError::into_inner);
        bodies.contains_key(&(module, method))
    }

    /// Number of bodies.
    pub fn len(&self) -> usize {
        let bodies = self.bodies.read().unwrap_or_else(PoisonError::into_inner);
        bodies.len()
    }

    /// Whether no method has a body.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Passes the body to the runtime in `GetReJITParameters`. Returns whether the method has a
    /// body; otherwise the runtime compiles the original IL.
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
