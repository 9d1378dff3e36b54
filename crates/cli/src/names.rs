//! Where names and lines are looked up: beside the files that ran, where distributions put debug files, and
//! in the folder of what servers gave. Nobody is asked for anything here.

use std::path::PathBuf;

/// What to look up and where, as users have it.
pub(crate) fn options() -> symbolize::Options {
    symbolize::Options {
        fetched: fetched(),
        ..symbolize::Options::default()
    }
}

/// The folder of what symbol servers gave.
pub(crate) fn fetched() -> Option<PathBuf> {
    symbolserver::find_folder(|name| std::env::var_os(name))
}
