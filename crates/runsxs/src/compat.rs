//! `--compat`: emulates CLR 4's ProfilerCompatibilitySetting for several CLRs in one process.
//!
//! The setting determines whether an old profiler is loaded when an old and a new CLR are in the
//! process. CLR 4 documents it with a table of six rows. CoreCLR kept little more than the name
//! (3.1.23 and 8.0.4 crash under `PreventLoad`). So this module decides before each start whether
//! the CLR gets the profiler, through its environment. The old CLR, which does not have the
//! setting, is any of .NET Core 1 to 3. The new one is .NET 5 or later.
//!
//! Invariant: no CLR gets its own variable for the setting.

use std::ffi::{CString, OsString, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use corprof::sys::{Guid, Hresult, IClassFactory, ICorProfilerCallback11, IUnknown, Interface};

use crate::environ;
use crate::lookup::InstalledRuntime;

/// The values of CLR 4's ProfAPI_ProfilerCompatibilitySetting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Setting {
    /// The new CLR loads old profilers, unless an old CLR was there first
    #[value(name = "EnableV2Profiler")]
    Enable,
    /// The new CLR asks a profiler what it is and loads no old one
    #[value(name = "DisableV2Profiler")]
    Disable,
    /// The new CLR loads no profiler at all
    #[value(name = "PreventLoad")]
    Prevent,
}

/// Whether one CLR loads the profiler, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProfilerOutcome {
    /// Loaded by an old CLR, which does not have the setting.
    LoadedByOld,
    /// Loaded: not an old profiler.
    LoadedAsNew,
    /// Loaded: an old profiler, and old profilers are enabled.
    LoadedAsOld,
    /// Not loaded: it was queried for `ICorProfilerCallback3`, does not have it, and was released.
    Released,
    /// Not loaded, as `Released`: an old CLR has already loaded it.
    LeftToOld,
    /// Not loaded: it was not even queried.
    Prevented,
}

impl ProfilerOutcome {
    fn is_loaded(self) -> bool {
        matches!(
            self,
            ProfilerOutcome::LoadedByOld
                | ProfilerOutcome::LoadedAsNew
                | ProfilerOutcome::LoadedAsOld
        )
    }

    fn text(self) -> &'static str {
        match self {
            ProfilerOutcome::LoadedByOld => {
                "loads the profiler (an old CLR, which knows no such setting)"
            }
            ProfilerOutcome::LoadedAsNew => "loads the profiler (it has ICorProfilerCallback3)",
            ProfilerOutcome::LoadedAsOld => "loads the profiler (an old one, and such are enabled)",
            ProfilerOutcome::Released => {
                "does not load the profiler (asked it, it has no ICorProfilerCallback3, let it go; \
                 its library stays)"
            }
            ProfilerOutcome::LeftToOld => {
                "does not load the profiler (an old one that an old CLR has loaded)"
            }
            ProfilerOutcome::Prevented => "does not load the profiler (nor its library)",
        }
    }
}

/// The profiler in the environment, and whether an old CLR has started.
#[derive(Debug)]
pub(crate) struct Compatibility {
    setting: Setting,
    clsid: Guid,
    path: OsString,
    /// Whether an old CLR has started first.
    old_was_first: Mutex<bool>,
}

/// Prefixes of CORECLR_ENABLE_PROFILING and related variables.
const PREFIXES: [&str; 2] = ["CORECLR_", "DOTNET_"];

impl Compatibility {
    /// Reads the environment.
    ///
    /// # Errors
    /// The environment names no profiler.
    pub(crate) fn new(setting: Setting) -> Result<Compatibility> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let on = set("CORECLR_ENABLE_PROFILING").is_some_and(|value| value == "1");
        let clsid = set("CORECLR_PROFILER");
        let path = set("CORECLR_PROFILER_PATH_64").or_else(|| set("CORECLR_PROFILER_PATH"));
        let (Some(clsid), Some(path), true) = (clsid, path, on) else {
            anyhow::bail!(
                "--compat is about a profiler, and the environment asks for none: set \
                 CORECLR_ENABLE_PROFILING=1, CORECLR_PROFILER={{GUID}} and CORECLR_PROFILER_PATH"
            );
        };
        let clsid = Guid::parse(&clsid.to_string_lossy())
            .with_context(|| format!("CORECLR_PROFILER={} is no GUID", clsid.display()))?;
        Ok(Compatibility {
            setting,
            clsid,
            path,
            old_was_first: Mutex::new(false),
        })
    }

    /// Starts a CLR with `start`, with or without the profiler. CLRs start one after the other, in
    /// the order of the calls.
    ///
    /// # Errors
    /// Those of `start`, or the profiler cannot be queried.
    pub(crate) fn start<T>(
        &self,
        runtime: &InstalledRuntime,
        start: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut old_was_first = self
            .old_was_first
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_old = runtime.band.is_some_and(|(major, _)| major < 5);
        let fate = self.outcome(is_old, *old_was_first, || is_new(&self.path, &self.clsid))?;
        eprintln!("runsxs: {} {}", runtime.name, fate.text());
        let variables = std::env::vars_os().filter(|(name, _)| {
            let name = name.to_string_lossy();
            !is_setting(&name) && (fate.is_loaded() || !asks_for_profiler(&name))
        });
        // The lock is held until the CLR has started, because the decision for the next one depends
        // on it.
        let started = environ::with_variables(variables.collect::<Vec<_>>(), start);
        *old_was_first |= is_old && started.is_ok();
        started
    }

    /// The decision table.
    fn outcome(
        &self,
        is_old: bool,
        old_was_first: bool,
        is_new_profiler: impl FnOnce() -> Result<bool>,
    ) -> Result<ProfilerOutcome> {
        Ok(match self.setting {
            _ if is_old => ProfilerOutcome::LoadedByOld,
            Setting::Prevent => ProfilerOutcome::Prevented,
            _ if is_new_profiler()? => ProfilerOutcome::LoadedAsNew,
            Setting::Disable => ProfilerOutcome::Released,
            Setting::Enable if old_was_first => ProfilerOutcome::LeftToOld,
            Setting::Enable => ProfilerOutcome::LoadedAsOld,
        })
    }
}

fn is_setting(name: &str) -> bool {
    name.ends_with("_ProfAPI_ProfilerCompatibilitySetting")
}

fn asks_for_profiler(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest == "ENABLE_PROFILING" || rest.starts_with("PROFILER"))
    })
}

/// Whether a profiler has `ICorProfilerCallback3`. As CLR 4 did, it loads the library, creates an
/// instance and releases it. The library stays loaded.
fn is_new(path: &OsString, clsid: &Guid) -> Result<bool> {
    type GetClassObject =
        unsafe extern "system" fn(*const Guid, *const Guid, *mut *mut c_void) -> Hresult;
    let shown = path.display();
    let name = CString::new(path.as_bytes())?;
    // SAFETY: a NUL-terminated string; the profiler is responsible for its library's constructors.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
    ensure!(!library.is_null(), "cannot load the profiler {shown}");
    // SAFETY: the library is open, and stays so.
    let entry = unsafe { libc::dlsym(library, c"DllGetClassObject".as_ptr()) };
    ensure!(!entry.is_null(), "{shown} has no DllGetClassObject");
    let versions = ICorProfilerCallback11::VERSIONS;
    let (callback2, callback3) = (versions[1].iid, versions[2].iid);
    // SAFETY: the contract of a profiler's library: DllGetClassObject has this type and returns a
    // class factory, which returns a profiler. All pointers are valid, each object is used only if
    // the call before it succeeded, and each reference is released once.
    unsafe {
        let get: GetClassObject = std::mem::transmute(entry);
        let mut factory: *mut IClassFactory = std::ptr::null_mut();
        let iid = IClassFactory::IID;
        let answer = get(clsid, &raw const iid, (&raw mut factory).cast());
        ensure!(
            answer.is_ok() && !factory.is_null(),
            "{shown} has no class factory: {answer:?}"
        );
        let mut profiler: *mut IUnknown = std::ptr::null_mut();
        let answer = IClassFactory::create_instance(
            factory,
            std::ptr::null_mut(),
            &raw const callback2,
            (&raw mut profiler).cast(),
        );
        ((*(*factory).vtbl).unknown.release)(factory.cast());
        ensure!(
            answer.is_ok() && !profiler.is_null(),
            "{shown} makes no profiler: {answer:?}"
        );
        let mut newer: *mut IUnknown = std::ptr::null_mut();
        let table = (*profiler).vtbl;
        let answer = ((*table).query_interface)(
            profiler.cast(),
            &raw const callback3,
            (&raw mut newer).cast(),
        );
        let is_new = answer.is_ok() && !newer.is_null();
        if is_new {
            ((*(*newer).vtbl).release)(newer.cast());
        }
        ((*table).release)(profiler.cast());
        Ok(is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        use Setting::{Disable, Enable, Prevent};
        for (setting, is_old, old_was_first, is_new, fate) in [
            // The article's rows: V2, V4, then V4, V2.
            (Enable, true, false, false, ProfilerOutcome::LoadedByOld),
            (Enable, false, true, false, ProfilerOutcome::LeftToOld),
            (Enable, false, false, false, ProfilerOutcome::LoadedAsOld),
            (Disable, true, false, false, ProfilerOutcome::LoadedByOld),
            (Disable, false, true, false, ProfilerOutcome::Released),
            (Disable, false, false, false, ProfilerOutcome::Released),
            (Prevent, true, false, false, ProfilerOutcome::LoadedByOld),
            (Prevent, false, true, false, ProfilerOutcome::Prevented),
            (Prevent, false, false, false, ProfilerOutcome::Prevented),
            // A profiler of today.
            (Enable, false, true, true, ProfilerOutcome::LoadedAsNew),
            (Disable, false, false, true, ProfilerOutcome::LoadedAsNew),
            (Prevent, false, false, true, ProfilerOutcome::Prevented),
        ] {
            let compatibility = Compatibility {
                setting,
                clsid: Guid::new("176FBED1-A55C-4796-98CA-A9DA0EF883E7"),
                path: OsString::new(),
                old_was_first: Mutex::new(false),
            };
            let found = compatibility.outcome(is_old, old_was_first, || Ok(is_new));
            assert_eq!(found.unwrap(), fate, "{setting:?} {is_old} {old_was_first}");
        }
    }

    #[test]
    fn what_names_a_profiler_is_known() {
        for (name, asks, setting) in [
            ("CORECLR_ENABLE_PROFILING", true, false),
            ("CORECLR_PROFILER", true, false),
            ("CORECLR_PROFILER_PATH_64", true, false),
            ("DOTNET_PROFILER_PATH", true, false),
            ("COMPlus_ProfAPI_ProfilerCompatibilitySetting", false, true),
            ("DOTNET_ProfAPI_ProfilerCompatibilitySetting", false, true),
            ("SIDEWALK_SOCKET", false, false),
            ("PATH", false, false),
        ] {
            assert_eq!((asks_for_profiler(name), is_setting(name)), (asks, setting));
        }
    }
}
