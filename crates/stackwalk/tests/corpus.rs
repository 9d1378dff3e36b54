//! The unwind tables of the libraries that are installed: a walk ends at next to none of their
//! code.

mod common;

use common::{Sum, libraries};
use std::path::{Path, PathBuf};

/// Of the described bytes of code; percent.
const LIMIT: f64 = 0.01;

#[test]
fn nearly_all_code_of_installed_libraries_can_be_walked() {
    let system = Path::new("/usr/lib/x86_64-linux-gnu");
    for (library, package) in [
        ("libcrypto.so.3", "libssl3"),
        ("libssl.so.3", "libssl3"),
        ("libc.so.6", "libc6"),
    ] {
        assert!(
            system.join(library).is_file(),
            "no {library}: install Debian's package {package}"
        );
    }
    // The runtimes that `cargo xtask` has found, if this is run by it, and those that were fetched.
    let mut folders = vec![system.to_path_buf()];
    for variable in ["SIDEWALK_CACHE", "DOTNET_ROOT"] {
        folders.extend(std::env::var_os(variable).map(PathBuf::from));
    }
    folders.extend(std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/sidewalk")));
    let named = std::env::var_os("SIDEWALK_TEST_ELF").unwrap_or_default();
    folders.extend(std::env::split_paths(&named).filter_map(|file| Some(file.parent()?.into())));
    let found = libraries(&folders);
    let mut all = Sum::default();
    for (path, sum) in &found {
        all.add(sum);
        if sum.not_walked() > 0 {
            println!("{}: {} bytes, {sum:?}", path.display(), sum.not_walked());
        }
    }
    println!("{} libraries: {all:?}", found.len());
    assert!(all.described() > 5 << 20, "too little code: {all:?}");
    let percent = all.not_walked() as f64 * 100.0 / all.described() as f64;
    assert!(percent <= LIMIT, "{percent:.4} % of the code: {all:?}");
}
