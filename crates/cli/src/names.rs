//! Options for the lookup of names and lines: which kinds, and from which places.
//!
//! The places are beside the executed files, the distributions' folders of debug files, and the
//! folder of files fetched from servers. No server is contacted here.

use std::path::PathBuf;

/// Returns the lookup options for all verbs: kinds of names and lines, and their places.
pub(crate) fn options() -> symbolize::LookupOptions {
    symbolize::LookupOptions {
        fetched: fetched_folder(),
        ..symbolize::LookupOptions::default()
    }
}

/// The folder of files fetched from symbol servers.
pub(crate) fn fetched_folder() -> Option<PathBuf> {
    symbolserver::find_folder(|name| std::env::var_os(name))
}
