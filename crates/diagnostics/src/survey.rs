//! Facts about the runtimes in a process, from its mappings, executable and environment.
//!
//! No process is queried, so a survey also works for a stopped process.
//! Invariant: a fact that was not found is `None` or empty. A file that was moved or deleted counts
//! as it did when it was mapped.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol};

use crate::target::{denied, failed};
use crate::{Error, Target};

/// The facts found about a process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// The CLRs, by their libraries.
    pub runtimes: Vec<LoadedRuntime>,
    /// Whether the program was compiled ahead of time, without a CLR.
    pub is_native_aot: bool,
    /// The C library of the process.
    pub libc: Option<Libc>,
    /// The profiler that the environment names and that the process has loaded.
    pub profiler: Option<Profiler>,
    /// Paths of our libraries that the process has loaded, in its own view. They stay mapped after
    /// the agent has detached.
    pub agents: Vec<PathBuf>,
    /// Whether the environment names our agent, the process has loaded it, and the agent's thread
    /// runs. If no tool replied at the start, the agent has left the profiler's place to the next
    /// profiler.
    pub is_recorded_from_its_start: bool,
    /// The setting that disables the diagnostics socket, as `NAME=VALUE`.
    pub diagnostics_off: Option<String>,
    /// The setting that suspends the first runtime at its start until it is resumed, as
    /// `NAME=VALUE`. A survey cannot see whether it has been resumed.
    pub suspended_at_start: Option<String>,
}

/// A CLR in a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadedRuntime {
    /// Path in the process's view: `libcoreclr.so`, or the program that the CLR is linked into.
    pub library: PathBuf,
    /// The version, if the path contains one (a shared framework).
    pub version: Option<String>,
}

/// A C library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Libc {
    /// glibc, with its newest symbol version, such as (2, 36), if it could be read.
    Glibc(Option<(u32, u32)>),
    /// musl (Alpine).
    Musl,
}

/// A profiler that the environment names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profiler {
    /// `CORECLR_PROFILER`.
    pub clsid: String,
    /// The library.
    pub library: String,
}

/// .NET 11 also reads the variables with the prefix of its other settings.
const PREFIXES: [&str; 2] = ["CORECLR", "DOTNET"];
/// The prefixes of the names of other settings.
const PREFIXES_OF_SETTINGS: [&str; 2] = ["DOTNET", "COMPlus"];
const PATHS: [&str; 2] = ["PROFILER_PATH_64", "PROFILER_PATH"];
/// If one of these is 0, the runtime makes no socket.
const SWITCHES: [&str; 4] = [
    "DOTNET_EnableDiagnostics",
    "COMPlus_EnableDiagnostics",
    "DOTNET_EnableDiagnostics_IPC",
    "COMPlus_EnableDiagnostics_IPC",
];
/// Name of the agent's thread.
const AGENT_THREAD: &str = "sidewalk";
/// A program with a CLR linked in exports this (src/native/corehost/apphost/static of
/// dotnet/runtime).
const SINGLE_FILE: &[u8] = b"DotNetRuntimeInfo";
/// A native AOT program exports this (src/coreclr/nativeaot/Runtime/DebugHeader.cpp).
const NATIVE_AOT: &[u8] = b"DotNetRuntimeDebugHeader";

impl Survey {
    /// Surveys a process.
    ///
    /// # Errors
    /// The process has ended, or its files in `/proc` may not be read.
    pub fn of(target: &Target) -> Result<Self, Error> {
        let pid = target.pid();
        let mut maps = Vec::new();
        target
            .process()
            .open_relative("maps")
            .map_err(|error| failed(pid, error))?
            .read_to_end(&mut maps)
            .map_err(|error| read_failure(pid, error))?;
        if maps.is_empty() && is_exiting(target) {
            return Err(Error::Ending { pid });
        }
        let files = mapped_files(&maps);
        let mut found = Self::from(&files, |name| target.variable(name));
        if found.runtimes.is_empty()
            && let Ok(program) = target.process().exe()
        {
            match program_kind(Path::new(&format!("/proc/{pid}/exe"))) {
                ProgramKind::SingleFile => found.runtimes.push(LoadedRuntime {
                    library: program,
                    version: None,
                }),
                ProgramKind::NativeAot => found.is_native_aot = true,
                ProgramKind::Other => {}
            }
        }
        // This needs the names of the threads, which are many files. So they are read only if
        // needed.
        found.is_recorded_from_its_start =
            found.is_recorded_from_its_start && target.has_thread(AGENT_THREAD) != Some(false);
        if let Some(Libc::Glibc(version)) = &mut found.libc
            && let Some(file) = files.iter().find(|file| is_glibc(name_of(file)))
        {
            *version = newest_glibc(&target.path_from_here(file));
        }
        Ok(found)
    }

    fn from(files: &[PathBuf], variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let named = |is: &dyn Fn(&[u8]) -> bool| -> Vec<PathBuf> {
            let files = files.iter().filter(|file| is(name_of(file)));
            files.cloned().collect()
        };
        let runtimes = named(&|name| name == b"libcoreclr.so").into_iter();
        let libc = if files.iter().any(|file| is_musl(name_of(file))) {
            Some(Libc::Musl)
        } else {
            let is_there = files.iter().any(|file| is_glibc(name_of(file)));
            is_there.then_some(Libc::Glibc(None))
        };
        let is_agent = |name: &[u8]| name.starts_with(b"libsidewalk") && name.ends_with(b".so");
        let agents = named(&is_agent);
        let is_own = |profiler: &Profiler| is_agent(name_of(Path::new(&profiler.library)));
        let loaded = profiler(&variable).filter(|profiler| {
            let name = name_of(Path::new(&profiler.library));
            // The environment may name a link to our library (`LibraryLinks`).
            let is_it = |file: &PathBuf| name_of(file) == name;
            files.iter().any(is_it) || (is_own(profiler) && !agents.is_empty())
        });
        Self {
            runtimes: runtimes.map(LoadedRuntime::at).collect(),
            is_native_aot: false,
            libc,
            is_recorded_from_its_start: loaded.as_ref().is_some_and(is_own),
            profiler: loaded.filter(|profiler| !is_own(profiler)),
            agents,
            diagnostics_off: diagnostics_switch(&variable),
            suspended_at_start: suspended_at_start(&variable),
        }
    }

    /// The version of the oldest CLR, if any path contains one.
    pub fn version(&self) -> Option<&str> {
        let versions = self.runtimes.iter().filter_map(|r| r.version.as_deref());
        versions.min_by_key(|version| release(version))
    }
}

impl LoadedRuntime {
    /// `…/Microsoft.NETCore.App/8.0.4/libcoreclr.so`.
    fn at(library: PathBuf) -> Self {
        let mut folders = library.iter().rev().skip(1);
        let version = folders.next().map(|v| v.to_string_lossy().into_owned());
        let is_framework = folders.next() == Some(OsStr::new("Microsoft.NETCore.App"));
        Self {
            version: version.filter(|_| is_framework),
            library,
        }
    }
}

/// The release of a version: `(3, 1)` of `3.1.23`.
pub fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-']);
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?.parse().ok()?;
    Some((major, minor))
}

fn read_failure(pid: u32, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => denied(pid, "its mappings may not be read"),
        _ if error.raw_os_error() == Some(nix::libc::ESRCH) => Error::NoProcess { pid },
        _ => Error::Os {
            what: format!("cannot read the mappings of process {pid}"),
            source: error,
        },
    }
}

fn name_of(file: &Path) -> &[u8] {
    file.file_name().map(OsStr::as_bytes).unwrap_or_default()
}

/// Whether this is the name of musl, of which loader and library are one file: `libc.so` where the
/// loader's name is a link to it, as on Debian. glibc has no library of that name.
pub(crate) fn is_musl(name: &[u8]) -> bool {
    name.starts_with(b"ld-musl-") || name.starts_with(b"libc.musl-") || name == b"libc.so"
}

fn is_glibc(name: &[u8]) -> bool {
    name == b"libc.so.6" || (name.starts_with(b"libc-2.") && name.ends_with(b".so"))
}

/// Files of `/proc/PID/maps`, each once. A parser of complete lines would fail: a name may not be
/// UTF-8, and has its line ends as `\012`.
pub(crate) fn mapped_files(maps: &[u8]) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for line in maps.split(|byte| *byte == b'\n') {
        // Five fields and the name. Blanks follow the fifth field, and the name may contain some.
        let Some(start) = line.iter().position(|byte| *byte == b'/') else {
            continue;
        };
        let (fields, name) = line.split_at(start);
        let fields = fields
            .split(|byte| *byte == b' ')
            .filter(|field| !field.is_empty());
        let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
        let file = Path::new(OsStr::from_bytes(name));
        if fields.count() == 5 && files.last().is_none_or(|last| last != file) {
            files.push(file.to_owned());
        }
    }
    files.sort();
    files.dedup();
    files
}

fn profiler(variable: impl Fn(&str) -> Option<OsString>) -> Option<Profiler> {
    let text = |name: String| Some(variable(&name)?.to_string_lossy().into_owned());
    PREFIXES.iter().find_map(|prefix| {
        let enabled = text(format!("{prefix}_ENABLE_PROFILING"))?;
        if number(&enabled) != Some(1) {
            return None;
        }
        let clsid = text(format!("{prefix}_PROFILER"))?;
        let library = PATHS
            .iter()
            .find_map(|path| text(format!("{prefix}_{path}")))?;
        Some(Profiler { clsid, library })
    })
}

fn diagnostics_switch(variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    SWITCHES.iter().find_map(|name| {
        let value = variable(name)?.to_string_lossy().into_owned();
        (number(&value) == Some(0)).then(|| format!("{name}={value}"))
    })
}

/// Reads the settings like `ds-ipc.c` of dotnet/runtime: ports given by `DiagnosticPorts` suspend
/// the runtime unless they contain `nosuspend`.
fn suspended_at_start(variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let given = |setting: &str| {
        PREFIXES_OF_SETTINGS.iter().find_map(|prefix| {
            let name = format!("{prefix}_{setting}");
            let value = variable(&name)?.to_string_lossy().into_owned();
            Some((name, value))
        })
    };
    let own = given("DefaultDiagnosticPortSuspend");
    let own = own.filter(|(_, value)| number(value).is_some_and(|number| number != 0));
    let ports = given("DiagnosticPorts").filter(|(_, value)| {
        let mut ports = value.split(';').filter(|port| !port.trim().is_empty());
        ports.any(|port| !port.split(',').any(|tag| tag.trim() == "nosuspend"))
    });
    let (name, value) = own.or(ports)?;
    Some(format!("{name}={value}"))
}

/// Whether the kernel is ending a process. Kernel threads have no memory either.
fn is_exiting(target: &Target) -> bool {
    /// `PF_EXITING` of include/linux/sched.h.
    const EXITING: u32 = 0x4;
    let flags = target.process().stat().map(|stat| stat.flags);
    flags.map_or(true, |flags| flags & EXITING != 0)
}

/// Parses a runtime setting, a hexadecimal number.
fn number(value: &str) -> Option<u32> {
    let digits = value.trim();
    let digits = digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"));
    u32::from_str_radix(digits.unwrap_or(value.trim()), 16).ok()
}

/// Determines the kind of a program from its exports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProgramKind {
    SingleFile,
    NativeAot,
    Other,
}

/// Whether a program was compiled ahead of time, without a CLR that could load a profiler.
pub fn is_native_aot(program: &Path) -> bool {
    program_kind(program) == ProgramKind::NativeAot
}

fn program_kind(program: &Path) -> ProgramKind {
    let Ok(file) = File::open(program) else {
        return ProgramKind::Other;
    };
    let cache = ReadCache::new(file);
    let Ok(elf) = ElfFile64::<object::Endianness, _>::parse(&cache) else {
        return ProgramKind::Other;
    };
    let exported = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition());
    kind_from_exports(exported.filter_map(|symbol| symbol.name_bytes().ok()))
}

fn kind_from_exports<'a>(exported: impl Iterator<Item = &'a [u8]>) -> ProgramKind {
    let mut kind = ProgramKind::Other;
    for name in exported {
        if name == SINGLE_FILE {
            return ProgramKind::SingleFile;
        }
        if name == NATIVE_AOT {
            kind = ProgramKind::NativeAot;
        }
    }
    kind
}

/// The newest glibc symbol version that a file provides (a libc) or needs (any other file).
pub fn newest_glibc(file: &Path) -> Option<(u32, u32)> {
    let cache = ReadCache::new(File::open(file).ok()?);
    let elf = ElfFile64::<object::Endianness, _>::parse(&cache).ok()?;
    let names = elf.section_by_name(".dynstr")?.data().ok()?;
    let versions = names.split(|byte| *byte == 0).filter_map(|name| {
        let name = std::str::from_utf8(name.strip_prefix(b"GLIBC_")?).ok()?;
        release(name)
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
55e0c7a00000-55e0c7a10000 r--p 00000000 08:01 131 /usr/share/dotnet/dotnet
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 
7f1000000000-7f1000700000 r-xp 00000000 08:01 132                        /usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.4/libcoreclr.so (deleted)
7f1000700000-7f1000800000 r--p 00700000 08:01 132                        /usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.4/libcoreclr.so (deleted)
7f2000000000-7f2000100000 rw-s 00000000 00:01 2049                       /memfd:doublemapper (deleted)
7f3000000000-7f3000100000 r--p 00000000 08:01 140                        /srv/a b\\012/caf\xe9.dll
7f4000000000-7f4000100000 r--p 00000000 08:01 141                        /lib/x86_64-linux-gnu/libc.so.6
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
7f5000000000-7f5000021000 rw-p 00000000 00:00 0                          [anon: /lib/ld-musl-x86_64.so.1]
";

    fn survey(maps: &[u8], environment: &[(&str, &str)]) -> Survey {
        Survey::from(&mapped_files(maps), |name| {
            let (_, value) = environment.iter().find(|(known, _)| *known == name)?;
            Some(value.into())
        })
    }

    #[test]
    fn a_shared_framework_has_its_version_in_its_path() {
        let found = survey(MAPS, &[]);
        assert_eq!(found.version(), Some("8.0.4"));
        assert_eq!(found.libc, Some(Libc::Glibc(None)));
        assert_eq!(found.runtimes.len(), 1);
        let own = b"7f10-7f20 r-xp 00000000 08:01 132 /app/8.0.4/libcoreclr.so\n";
        let found = survey(own, &[]);
        assert_eq!(
            found.runtimes[0].library,
            Path::new("/app/8.0.4/libcoreclr.so")
        );
        assert_eq!(found.version(), None);
    }

    #[test]
    fn names_of_mapped_files_are_bytes() {
        let files = mapped_files(MAPS);
        let odd = OsStr::from_bytes(b"/srv/a b\\012/caf\xe9.dll");
        assert!(files.contains(&PathBuf::from(odd)), "{files:?}");
        assert_eq!(files.len(), 5, "{files:?}");
    }

    #[test]
    fn musl_is_seen() {
        for library in ["ld-musl-x86_64.so.1", "x86_64-linux-musl/libc.so"] {
            let maps = format!(
                "7f10-7f20 r-xp 00000000 08:01 132 /lib/{library}\n\
                 7f20-7f30 r-xp 00000000 08:01 133 /x/8.0.4/libcoreclr.so\n"
            );
            assert_eq!(survey(maps.as_bytes(), &[]).libc, Some(Libc::Musl));
        }
        assert_eq!(survey(b"", &[]).libc, None);
    }

    #[test]
    fn another_profiler_counts_if_it_is_loaded() {
        let environment = [
            ("CORECLR_ENABLE_PROFILING", "1"),
            ("CORECLR_PROFILER", "{846F5F1C-F9AE-4B07-969E-05C26BC060D8}"),
            ("CORECLR_PROFILER_PATH", "/opt/apm/apm.so"),
        ];
        assert_eq!(survey(MAPS, &environment).profiler, None);
        let loaded = [MAPS, b"7f10-7f20 r-xp 00000000 08:01 150 /opt/apm/apm.so\n"].concat();
        let found = survey(&loaded, &environment).profiler.unwrap();
        assert_eq!(found.library, "/opt/apm/apm.so");
        assert_eq!(survey(&loaded, &environment[1..]).profiler, None);
        let own = [
            environment[0],
            environment[1],
            ("CORECLR_PROFILER_PATH", "/x/libsidewalk.so"),
        ];
        let loaded = [
            MAPS,
            b"7f10-7f20 r-xp 00000000 08:01 150 /x/libsidewalk.so\n",
        ]
        .concat();
        let found = survey(&loaded, &own);
        assert!(
            found.is_recorded_from_its_start && found.profiler.is_none(),
            "{found:?}"
        );
        assert_eq!(found.agents, [Path::new("/x/libsidewalk.so")]);
        let linked = [
            environment[0],
            environment[1],
            ("CORECLR_PROFILER_PATH", "/x/links-1/$LIB/libsidewalk.so"),
        ];
        let loaded = [
            MAPS,
            b"7f10-7f20 r-xp 00000000 08:01 150 /x/libsidewalk-01.so\n",
        ]
        .concat();
        let found = survey(&loaded, &linked);
        assert!(
            found.is_recorded_from_its_start && found.profiler.is_none(),
            "{found:?}"
        );
        assert!(!survey(MAPS, &linked).is_recorded_from_its_start);
    }

    #[test]
    fn diagnostics_switched_off() {
        for (environment, off) in [
            (&[("DOTNET_EnableDiagnostics", "0")][..], true),
            (&[("COMPlus_EnableDiagnostics", "0x0")], true),
            (&[("DOTNET_EnableDiagnostics_IPC", "0")], true),
            (&[("DOTNET_EnableDiagnostics", "1")], false),
            // Only loading at start.
            (&[("DOTNET_EnableDiagnostics_Profiler", "0")], false),
        ] {
            let found = survey(MAPS, environment).diagnostics_off;
            assert_eq!(found.is_some(), off, "{environment:?}");
        }
    }

    #[test]
    fn suspended_at_its_start() {
        for (environment, is) in [
            (&[("DOTNET_DefaultDiagnosticPortSuspend", "1")][..], true),
            (&[("COMPlus_DefaultDiagnosticPortSuspend", "1")], true),
            (&[("DOTNET_DefaultDiagnosticPortSuspend", "0")], false),
            (&[("DOTNET_DiagnosticPorts", "/tmp/a.sock")], true),
            (&[("DOTNET_DiagnosticPorts", "/tmp/a.sock,suspend")], true),
            (
                &[("DOTNET_DiagnosticPorts", "a,nosuspend;b,listen,nosuspend;")],
                false,
            ),
            (&[("DOTNET_DiagnosticPorts", "a,nosuspend;b")], true),
            (&[], false),
        ] {
            let found = survey(MAPS, environment).suspended_at_start;
            assert_eq!(found.is_some(), is, "{environment:?}");
        }
    }

    #[test]
    fn kinds_of_programs() {
        let kind = |names: &[&str]| kind_from_exports(names.iter().map(|name| name.as_bytes()));
        assert_eq!(
            kind(&["main", "DotNetRuntimeInfo"]),
            ProgramKind::SingleFile
        );
        assert_eq!(
            kind(&[
                "DotNetRuntimeDebugHeader",
                "DotNetRuntimeContractDescriptor"
            ]),
            ProgramKind::NativeAot
        );
        assert_eq!(kind(&["main"]), ProgramKind::Other);
        assert_eq!(
            program_kind(&std::env::current_exe().unwrap()),
            ProgramKind::Other
        );
    }

    #[test]
    fn a_files_glibc_is_read() {
        let ours = newest_glibc(&std::env::current_exe().unwrap()).unwrap();
        assert!(ours >= (2, 17), "{ours:?}");
        let own = Target::new(std::process::id()).unwrap();
        let Some(Libc::Glibc(Some(libc))) = Survey::of(&own).unwrap().libc else {
            panic!("tests run on glibc");
        };
        assert!(libc >= ours, "{libc:?} runs {ours:?}");
    }

    #[test]
    fn releases() {
        for (version, expected) in [
            ("3.1.23", Some((3, 1))),
            ("10.0.0-rc.1.25451.107", Some((10, 0))),
            ("8.0", Some((8, 0))),
            ("8", None),
            ("", None),
        ] {
            assert_eq!(release(version), expected, "{version}");
        }
        assert!(release("10.0.1") > release("3.1.23"));
    }
}
