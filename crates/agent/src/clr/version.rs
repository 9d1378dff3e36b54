//! The version of a CLR.
//!
//! GetRuntimeInformation returns it from .NET 5 on. .NET Core 3.1 returns 4.0.30319, as every CLR
//! since .NET Framework 4; its true version is the name of the folder it was loaded from.

use std::ffi::CStr;
use std::path::Path;

use corprof::Info;

/// Returns the version of a CLR, such as `8.0.4`, from the result of GetRuntimeInformation.
pub fn of_runtime(info: Info<'_>, major: u16, minor: u16, build: u16) -> String {
    if (major, minor) != (4, 0) {
        return format!("{major}.{minor}.{build}");
    }
    library_of(info)
        .and_then(|path| of_folder(Path::new(&path)))
        // A self-contained app has no such folder. Of the supported versions only 3.x reports 4.0.
        .unwrap_or_else(|| "3.x".to_owned())
}

/// Returns the version of the CLR that is calling, before its interface is available: the name of
/// the folder of its library. Takes the loader's lock and may load libgcc, so it must not run in a
/// signal handler.
pub fn of_caller() -> String {
    const DEPTH: usize = 64;
    let mut frames = [std::ptr::null_mut(); DEPTH];
    // SAFETY: `frames` has room for `DEPTH` addresses. The stack above is the loader's, the agent's
    // and the CLR's, all of it with unwind tables.
    let found = unsafe { libc::backtrace(frames.as_mut_ptr(), DEPTH as i32) };
    frames
        .iter()
        .take(usize::try_from(found).unwrap_or(0))
        .filter_map(|address| library_at(*address))
        .find(|path| path.ends_with("/libcoreclr.so"))
        .and_then(|path| of_folder(Path::new(&path)))
        .unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the path of the file that contains the runtime's interface.
fn library_of(info: Info<'_>) -> Option<String> {
    let (interface, _) = info.as_raw()?;
    // SAFETY: a COM object begins with a pointer to its table, and the object lives as long as
    // the runtime.
    let table = unsafe { interface.cast::<*const libc::c_void>().read() };
    library_at(table.cast())
}

/// Returns the address of the runtime's description of its own structures
/// ([`stackwalk::heaps::SYMBOL`]); `None` if it has none.
pub(crate) fn contract_of(info: Info<'_>) -> Option<u64> {
    let path = std::ffi::CString::new(library_of(info)?).ok()?;
    activation::symbol_of(&path, stackwalk::heaps::SYMBOL).map(|symbol| symbol as u64)
}

/// Returns the path of the file that contains an address.
fn library_at(address: *const libc::c_void) -> Option<String> {
    // SAFETY: all-zero is a valid Dl_info.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address is valid input; `found` is valid for writes. Called in `CreateInstance`
    // and `Initialize`, not in a signal handler.
    if unsafe { libc::dladdr(address, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: on success `dli_fname` is a string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(name.to_string_lossy().into_owned())
}

/// Returns a version from a path: `…/Microsoft.NETCore.App/3.1.23/libcoreclr.so` is 3.1.23.
fn of_folder(library: &Path) -> Option<String> {
    let folder = library.parent()?.file_name()?.to_str()?;
    let number = folder.split('-').next()?;
    let parts = number.split('.').map(str::parse::<u16>);
    (parts.clone().count() == 3 && parts.into_iter().all(|part| part.is_ok()))
        .then(|| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_names_the_version() {
        for (path, version) in [
            (
                "/usr/share/dotnet/shared/Microsoft.NETCore.App/3.1.23/libcoreclr.so",
                Some("3.1.23"),
            ),
            ("/x/3.1.0-preview1/libcoreclr.so", Some("3.1.0-preview1")),
            ("/home/me/app/libcoreclr.so", None),
            ("/app/1.2/libcoreclr.so", None),
            ("libcoreclr.so", None),
        ] {
            assert_eq!(of_folder(Path::new(path)).as_deref(), version, "{path}");
        }
    }
}
