//! Hosting of one CLR: loads its library, starts it, runs a program, shuts it down.
//!
//! All unsafe code of hosting is in this module. src/coreclr/hosts/inc/coreclrhost.h documents the
//! hosting functions, which have not changed since 3.1.
//!
//! Invariant: a [`Clr`] is started once. [`Clr::shut_down`] consumes it, so no call can follow.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use anyhow::{Context, Result, bail, ensure};

use crate::lookup::{InstalledRuntime, LIBRARY};

type Initialize = unsafe extern "C" fn(
    exe_path: *const c_char,
    friendly_name: *const c_char,
    property_count: c_int,
    keys: *const *const c_char,
    values: *const *const c_char,
    host: *mut *mut c_void,
    domain: *mut c_uint,
) -> c_int;
type ExecuteAssembly = unsafe extern "C" fn(
    host: *mut c_void,
    domain: c_uint,
    argc: c_int,
    argv: *const *const c_char,
    assembly: *const c_char,
    exit_code: *mut c_uint,
) -> c_int;
type Shutdown =
    unsafe extern "C" fn(host: *mut c_void, domain: c_uint, exit_code: *mut c_int) -> c_int;

type CreateDelegate = unsafe extern "C" fn(
    host: *mut c_void,
    domain: c_uint,
    assembly: *const c_char,
    class: *const c_char,
    method: *const c_char,
    delegate: *mut *mut c_void,
) -> c_int;

/// The hosting functions of one libcoreclr.so, which stays loaded: a CLR cannot be unloaded.
#[derive(Debug)]
struct Functions {
    initialize: Initialize,
    execute_assembly: ExecuteAssembly,
    create_delegate: CreateDelegate,
    shutdown: Shutdown,
}

/// A running CLR.
#[derive(Debug)]
pub(crate) struct Clr {
    name: String,
    functions: Functions,
    host: *mut c_void,
    domain: c_uint,
}

/// Options for starting a CLR for a program.
#[derive(Debug)]
pub(crate) struct StartOptions<'a> {
    pub(crate) runtime: &'a InstalledRuntime,
    pub(crate) app: &'a Path,
    /// From the program's runtimeconfig.json.
    pub(crate) properties: &'a [(String, String)],
}

impl Functions {
    fn load(runtime: &InstalledRuntime) -> Result<Functions> {
        let path = runtime.folder.join(LIBRARY);
        let name = text(path.as_os_str().as_bytes())?;
        // SAFETY: a NUL-terminated string; the CLR is responsible for its library's constructors.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        ensure!(
            !library.is_null(),
            "cannot load {}: {}",
            path.display(),
            loader_error()
        );
        let find = |symbol: &CStr| {
            // SAFETY: the library is open and stays so; `symbol` is a string.
            let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
            ensure!(
                !found.is_null(),
                "{} has no {}: it is no CLR that can be hosted",
                path.display(),
                symbol.to_string_lossy()
            );
            Ok(found)
        };
        // SAFETY: the header named above declares these with the types above.
        unsafe {
            Ok(Functions {
                initialize: std::mem::transmute::<*mut c_void, Initialize>(find(
                    c"coreclr_initialize",
                )?),
                execute_assembly: std::mem::transmute::<*mut c_void, ExecuteAssembly>(find(
                    c"coreclr_execute_assembly",
                )?),
                create_delegate: std::mem::transmute::<*mut c_void, CreateDelegate>(find(
                    c"coreclr_create_delegate",
                )?),
                shutdown: std::mem::transmute::<*mut c_void, Shutdown>(find(
                    c"coreclr_shutdown_2",
                )?),
            })
        }
    }
}

impl Clr {
    /// Loads and starts a CLR, which copies the current environment.
    ///
    /// # Errors
    /// The library cannot be loaded, or the CLR refuses, with its HRESULT.
    pub(crate) fn start(start: &StartOptions<'_>) -> Result<Clr> {
        let runtime = start.runtime;
        let functions = Functions::load(runtime)?;
        let exe = std::env::current_exe().context("cannot find the path of runsxs itself")?;
        let exe = text(exe.as_os_str().as_bytes())?;
        let friendly = start.app.file_stem().unwrap_or_default();
        let friendly = text(friendly.as_bytes())?;
        let properties = properties(start)?;
        let keys: Vec<*const c_char> = properties.iter().map(|(key, _)| key.as_ptr()).collect();
        let values: Vec<*const c_char> = properties.iter().map(|(_, v)| v.as_ptr()).collect();
        let mut host = std::ptr::null_mut();
        let mut domain = 0;
        // SAFETY: strings and arrays of the stated numbers of strings, all alive during the call
        // and copied by the CLR; two valid out-pointers.
        let answer = unsafe {
            (functions.initialize)(
                exe.as_ptr(),
                friendly.as_ptr(),
                c_int::try_from(properties.len())?,
                keys.as_ptr(),
                values.as_ptr(),
                &raw mut host,
                &raw mut domain,
            )
        };
        ensure!(
            answer >= 0,
            "the CLR {} did not start: HRESULT {answer:#010x}",
            runtime.name
        );
        Ok(Clr {
            name: runtime.name.clone(),
            functions,
            host,
            domain,
        })
    }

    /// Runs a program to the end of its `Main`, on this thread. Returns its exit code.
    ///
    /// # Errors
    /// The CLR cannot run the program. (An unhandled exception of the program ends the process.)
    pub(crate) fn run(&self, app: &Path, words: &[String]) -> Result<i32> {
        let assembly = text(app.as_os_str().as_bytes())?;
        let words: Vec<CString> = words
            .iter()
            .map(|word| text(word.as_bytes()))
            .collect::<Result<_>>()?;
        let argv: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
        let mut code = 0;
        // SAFETY: host and domain come from the CLR; the strings and the array of the stated number
        // are alive during the call; the out-pointer is valid.
        let answer = unsafe {
            (self.functions.execute_assembly)(
                self.host,
                self.domain,
                c_int::try_from(argv.len())?,
                argv.as_ptr(),
                assembly.as_ptr(),
                &raw mut code,
            )
        };
        if answer < 0 {
            bail!(
                "{} could not be run on {}: HRESULT {answer:#010x}",
                app.display(),
                self.name
            );
        }
        Ok(code.cast_signed())
    }

    /// Returns a native entry point of a static method of a program's assembly, valid until the CLR
    /// is shut down.
    ///
    /// # Errors
    /// The CLR's HRESULT if the method does not exist.
    pub(crate) fn delegate(
        &self,
        app: &Path,
        class: &str,
        method: &str,
    ) -> Result<NonNull<c_void>> {
        let assembly = text(app.file_stem().unwrap_or_default().as_bytes())?;
        let (class_text, method_text) = (text(class.as_bytes())?, text(method.as_bytes())?);
        let mut found = std::ptr::null_mut();
        // SAFETY: host and domain come from the CLR; the strings are alive during the call; the
        // out-pointer is valid.
        let answer = unsafe {
            (self.functions.create_delegate)(
                self.host,
                self.domain,
                assembly.as_ptr(),
                class_text.as_ptr(),
                method_text.as_ptr(),
                &raw mut found,
            )
        };
        NonNull::new(found)
            .filter(|_| answer >= 0)
            .with_context(|| {
                format!(
                    "{} has no static {class}.{method} that can be called: HRESULT {answer:#010x}",
                    app.display()
                )
            })
    }

    /// Shuts the CLR down: finalizers and `ProcessExit` handlers run, and profilers are notified.
    /// Its library and threads remain. Returns the exit code that was set, if any.
    ///
    /// # Errors
    /// The CLR's HRESULT.
    pub(crate) fn shut_down(self) -> Result<i32> {
        let mut code = 0;
        // SAFETY: host and domain come from the CLR and are not used again, as `self` is consumed.
        let answer = unsafe { (self.functions.shutdown)(self.host, self.domain, &raw mut code) };
        ensure!(
            answer >= 0,
            "the CLR {} did not shut down: HRESULT {answer:#010x}",
            self.name
        );
        Ok(code)
    }
}

/// Sets an alternate signal stack for the calling thread, large enough for the nested handlers of
/// several CLRs.
///
/// A CLR keeps a thread's existing alternate stack. That of Rust's threads has 8 KiB, of which .NET
/// 8 uses 7 before it calls the handler of .NET Core 3.1 for a fault.
///
/// # Errors
/// The system's error.
pub(crate) fn set_signal_stack() -> Result<()> {
    const SIZE: usize = 256 << 10;
    // SAFETY: a new mapping, which no other code uses and which is never freed, because signals may
    // arrive until the thread's end.
    let stack = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
            -1,
            0,
        )
    };
    ensure!(
        stack != libc::MAP_FAILED,
        "no memory for a signal stack: {}",
        std::io::Error::last_os_error()
    );
    let stack = libc::stack_t {
        ss_sp: stack,
        ss_flags: 0,
        ss_size: SIZE,
    };
    // SAFETY: the mapping above; the thread is not in a signal handler.
    let answer = unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) };
    ensure!(
        answer == 0,
        "cannot set a signal stack: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

/// Properties for the CLR, as hostpolicy passes them
/// (docs/design/features/host-runtime-information.md).
fn properties(start: &StartOptions<'_>) -> Result<Vec<(CString, CString)>> {
    let framework = start.runtime.folder.as_path();
    let own = start.app.parent().unwrap_or(Path::new("/"));
    let mut assemblies = assemblies(framework)?;
    let known: Vec<_> = assemblies
        .iter()
        .filter_map(|path| path.file_name().map(ToOwned::to_owned))
        .collect();
    assemblies.extend(self::assemblies(own)?.into_iter().filter(|path| {
        path.file_name()
            .is_some_and(|n| !known.iter().any(|k| k == n))
    }));
    let list = |paths: &[&Path]| {
        let parts: Vec<&[u8]> = paths.iter().map(|p| p.as_os_str().as_bytes()).collect();
        parts.join(&b':')
    };
    let assemblies: Vec<&Path> = assemblies.iter().map(PathBuf::as_path).collect();
    let base = own.join("");
    let mut all = vec![
        (&b"TRUSTED_PLATFORM_ASSEMBLIES"[..], list(&assemblies)),
        (b"NATIVE_DLL_SEARCH_DIRECTORIES", list(&[own, framework])),
        (b"APP_PATHS", list(&[own])),
        (b"APP_CONTEXT_BASE_DIRECTORY", list(&[&base])),
    ];
    all.extend(
        start
            .properties
            .iter()
            .map(|(key, value)| (key.as_bytes(), value.clone().into_bytes())),
    );
    all.into_iter()
        .map(|(key, value)| Ok((text(key)?, text(&value)?)))
        .collect()
}

fn assemblies(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "dll"))
        .collect();
    files.sort();
    Ok(files)
}

fn text(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes)
        .with_context(|| format!("a zero byte in {:?}", String::from_utf8_lossy(bytes)))
}

fn loader_error() -> String {
    // SAFETY: `dlerror` has no preconditions; its result is valid until the thread's next call of
    // the loader.
    unsafe {
        let error = libc::dlerror();
        if error.is_null() {
            return "no reason given".to_owned();
        }
        CStr::from_ptr(error).to_string_lossy().into_owned()
    }
}
