//! Sets a separate environment for each CLR, which the CLR copies when it starts.
//!
//! The process's own list is never changed, because programs of running CLRs may be reading it.
//! Instead the pointer `environ` is switched to a complete new list, which is never freed.
//!
//! Invariant: at most one thread is in [`with_variables`] at a time, which restores the pointer at
//! its end.

use std::ffi::{CString, OsString, c_char};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::{Mutex, PoisonError};

unsafe extern "C" {
    /// The environment list of POSIX.
    static mut environ: *const *const c_char;
}

/// Runs `f` while the environment consists of `variables`. All threads of the process see it.
pub(crate) fn with_variables<R>(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    f: impl FnOnce() -> R,
) -> R {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = variables.into_iter().filter_map(|(name, value)| {
        let mut line = name.into_vec();
        line.push(b'=');
        line.extend(value.into_vec());
        CString::new(line).ok()
    });
    let mut list: Vec<*const c_char> = lines.map(|line| line.into_raw().cast_const()).collect();
    list.push(std::ptr::null());
    let list: &'static [*const c_char] = list.leak();
    // SAFETY: a word that every reader loads as a whole; both lists end with null and are never
    // freed or changed (no code here or in a CLR calls setenv). Only this function writes it, one
    // thread at a time.
    let before = unsafe {
        let before = (&raw const environ).read_volatile();
        (&raw mut environ).write_volatile(list.as_ptr());
        before
    };
    let result = f();
    // SAFETY: as above.
    unsafe { (&raw mut environ).write_volatile(before) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_the_chosen_one_and_then_the_old_one() {
        let before: Vec<_> = std::env::vars_os().collect();
        assert!(before.len() > 1);
        let chosen = vec![(OsString::from("ONLY"), OsString::from("this=that"))];
        let seen = with_variables(chosen.clone(), || std::env::vars_os().collect::<Vec<_>>());
        assert_eq!(seen, chosen);
        assert_eq!(std::env::vars_os().collect::<Vec<_>>(), before);
    }
}
