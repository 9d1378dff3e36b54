//! Checks that a walk can unwind nearly all code of the installed libraries.

mod common;

use common::{Sum, libraries};
use std::path::{Path, PathBuf};

/// Maximum share of the described bytes of code that cannot be unwound, percent.
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
    // The runtimes that `cargo xtask` found, if it runs this test, and the downloaded ones.
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
