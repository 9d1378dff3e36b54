//! The C library that a program will run on, before it is started.
//!
//! By the loader that its file names (`PT_INTERP`), or that of the interpreter of a script. Not by
//! what it loads later: a process that runs is surveyed. Nothing is started.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::read::elf::{ElfFile64, ProgramHeader as _};

use crate::survey::{Libc, is_musl};

/// As many scripts may name one another before the kernel gives up (`exec_binprm`).
const MOST_SCRIPTS: usize = 5;
/// Bytes of a script's first line that the kernel reads (`BINPRM_BUF_SIZE`).
const FIRST_LINE: u64 = 256;
/// Where the ABI of x86-64 has glibc's loader.
const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2";
/// The place of musl's.
const MUSL: &str = "/lib/ld-musl-x86_64.so.1";

/// The C library of the program in a file; where its file does not tell (it is linked statically,
/// or cannot be read), that of the machine.
pub fn libc_of_program(file: &Path) -> Libc {
    let loader = loader_of(file, MOST_SCRIPTS, &|program| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
        places.find(|place| place.is_file())
    });
    match loader {
        Some(loader) => libc_of_loader(&loader),
        None => libc_of_machine(),
    }
}

/// The C library that programs on this machine mostly run on.
pub fn libc_of_machine() -> Libc {
    match !Path::new(GLIBC).exists() && Path::new(MUSL).exists() {
        true => Libc::Musl,
        false => Libc::Glibc(None),
    }
}

/// Where a C library's loader is, which is also a program.
pub fn loader(libc: Libc) -> &'static str {
    match libc {
        Libc::Glibc(_) => GLIBC,
        Libc::Musl => MUSL,
    }
}

fn libc_of_loader(loader: &Path) -> Libc {
    let name = loader.file_name().unwrap_or_default().as_bytes();
    match is_musl(name) {
        true => Libc::Musl,
        false => Libc::Glibc(None),
    }
}

/// The loader that a program's file names, through at most so many scripts; `find` looks for a
/// program by its name.
fn loader_of(
    file: &Path,
    scripts: usize,
    find: &dyn Fn(&OsStr) -> Option<PathBuf>,
) -> Option<PathBuf> {
    let mut start = Vec::new();
    let open = File::open(file).ok()?;
    (&open).take(FIRST_LINE).read_to_end(&mut start).ok()?;
    let Some(line) = start.strip_prefix(b"#!") else {
        return interpreter_of(open);
    };
    let line = line.split(|byte| *byte == b'\n').next()?;
    let words = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
    let mut words = words.filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    let mut interpreter = PathBuf::from(words.next()?);
    if interpreter.ends_with("env") {
        // `env -S NAME=VALUE program`
        let is_program =
            |word: &&OsStr| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'=');
        interpreter = find(words.find(is_program)?)?;
    }
    loader_of(&interpreter, scripts.checked_sub(1)?, find)
}

/// `PT_INTERP` of an executable.
fn interpreter_of(file: File) -> Option<PathBuf> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<object::Endianness, _>::parse(&cache).ok()?;
    let endian = elf.endian();
    let headers = elf.elf_program_headers().iter();
    let mut found = headers.filter_map(|header| header.interpreter(endian, &cache).ok()?);
    Some(PathBuf::from(OsStr::from_bytes(found.next()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_program_names_its_loader_and_a_script_that_of_its_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let expected = loader_of(&own, 1, &|_| None).unwrap();
        assert!(expected.is_absolute(), "{expected:?}");
        let script = |name: &str, line: &str| {
            let path = folder.path().join(name);
            fs::write(&path, line).unwrap();
            path
        };
        let direct = script("direct", &format!("#! {} -x\nexit", own.display()));
        let found = script("found", "#!/usr/bin/env -S A=1 direct\n");
        let find = |name: &OsStr| Some(folder.path().join(name));
        assert_eq!(loader_of(&direct, 2, &find).as_ref(), Some(&expected));
        assert_eq!(loader_of(&found, 2, &find), Some(expected));
        // A script that is its own interpreter, no program at all, and nothing.
        let endless = folder.path().join("endless");
        fs::write(&endless, format!("#!{}\n", endless.display())).unwrap();
        assert_eq!(loader_of(&endless, 5, &find), None);
        assert_eq!(loader_of(&script("text", "text"), 5, &find), None);
        assert_eq!(loader_of(&folder.path().join("nothing"), 5, &find), None);
    }

    #[test]
    fn a_loader_is_that_of_one_library() {
        assert_eq!(libc_of_loader(Path::new(MUSL)), Libc::Musl);
        assert_eq!(libc_of_loader(Path::new(GLIBC)), Libc::Glibc(None));
    }
}
