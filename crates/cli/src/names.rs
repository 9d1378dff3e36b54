//! Places where names and lines are looked up: beside the files that ran, where distributions put
//! debug files, and in the folder of files fetched from servers. No server is contacted here.

use std::path::PathBuf;

/// Returns the lookup options that users get: kinds of names and lines, and their places.
pub(crate) fn options() -> symbolize::LookupOptions {
    symbolize::LookupOptions {
        fetched: fetched_folder(),
        ..symbolize::LookupOptions::default()
    }
}

/// The folder of what symbol servers gave.
pub(crate) fn fetched_folder() -> Option<PathBuf> {
    symbolserver::find_folder(|name| std::env::var_os(name))
}
