//! HRESULTs with which a runtime refuses a command, with their meaning and advice.
//!
//! Names are those of `corerror.h` and `winerror.h`. Which values occur, and why, was read in
//! `ds-profiler-protocol.c`, `ds-server.c`, `profilinghelper.cpp` and `eetoprofinterfaceimpl.cpp`
//! of dotnet/runtime.
//! Invariant: a value without a name is shown as its number.

use std::fmt;

/// A HRESULT with which a runtime refuses.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RefusalCode(pub u32);

macro_rules! answers {
    ($($constant:ident = $bits:literal $name:literal $advice:literal,)*) => {
        impl RefusalCode {
            $(
                #[doc = concat!("`", $name, "`: ", $advice, ".")]
                pub const $constant: Self = Self($bits);
            )*
        }
        const KNOWN: &[(RefusalCode, &str, &str)] = &[$((RefusalCode::$constant, $name, $advice),)*];
    };
}

answers! {
    NOT_YET_AVAILABLE = 0x8013_135b "CORPROF_E_NOT_YET_AVAILABLE"
        "the runtime is still starting; try again when the program runs",
    PROFILER_DETACHING = 0x8013_1367 "CORPROF_E_PROFILER_DETACHING"
        "a profiler is still detaching from the process; try again in a few seconds",
    NOT_ATTACHABLE = 0x8013_1368 "CORPROF_E_PROFILER_NOT_ATTACHABLE"
        "the library cannot be attached as it is: it is of another version than the tool",
    UNRECOGNIZED_PIPE_MSG_FORMAT = 0x8013_1369 "CORPROF_E_UNRECOGNIZED_PIPE_MSG_FORMAT"
        "the runtime does not know this form of the message; it may be newer than this tool",
    ALREADY_ACTIVE = 0x8013_136a "CORPROF_E_PROFILER_ALREADY_ACTIVE"
        "another profiler is in the process, and this runtime supports only one",
    INCOMPATIBLE_WITH_TRIGGER = 0x8013_136b "CORPROF_E_PROFILEE_INCOMPATIBLE_WITH_TRIGGER"
        "the runtime and the library are of kinds that do not fit",
    CALLBACK3_REQUIRED = 0x8013_136e "CORPROF_E_CALLBACK3_REQUIRED"
        "the library is too old to be attached",
    UNSUPPORTED_FOR_ATTACHING = 0x8013_136f "CORPROF_E_UNSUPPORTED_FOR_ATTACHING_PROFILER"
        "this runtime allows some of these events only in a program started with the agent; record \
         fewer events, or use sidewalk record -- COMMAND",
    IRREVERSIBLE_INSTRUMENTATION = 0x8013_1370 "CORPROF_E_IRREVERSIBLE_INSTRUMENTATION_PRESENT"
        "a profiler has changed code permanently and cannot detach",
    RUNTIME_UNINITIALIZED = 0x8013_1371 "CORPROF_E_RUNTIME_UNINITIALIZED"
        "the runtime is ending, or has not started; try again if the program continues",
    IMMUTABLE_FLAGS_SET = 0x8013_1372 "CORPROF_E_IMMUTABLE_FLAGS_SET"
        "a profiler has settings that cannot be undone and cannot detach",
    NOT_YET_INITIALIZED = 0x8013_1373 "CORPROF_E_PROFILER_NOT_YET_INITIALIZED"
        "the profiler is still being attached; try again",
    CANCEL_ACTIVATION = 0x8013_1375 "CORPROF_E_PROFILER_CANCEL_ACTIVATION"
        "the library refused to attach to this process",
    CONCURRENT_GC = 0x8013_1376 "CORPROF_E_CONCURRENT_GC_NOT_PROFILABLE"
        "the program's background collections forbid this event after attaching",
    DEBUGGING_DISABLED = 0x8013_1378 "CORPROF_E_DEBUGGING_DISABLED"
        "debugging is switched off in the process",
    TIMEOUT_OF_CONCURRENT_GC = 0x8013_1379 "CORPROF_E_TIMEOUT_WAITING_FOR_CONCURRENT_GC"
        "a background collection did not end in time; try again",
    BAD_ENCODING = 0x8013_1384 "CORDIAGIPC_E_BAD_ENCODING"
        "the runtime does not understand the message; it may be newer than this tool",
    UNKNOWN_COMMAND = 0x8013_1385 "CORDIAGIPC_E_UNKNOWN_COMMAND"
        "this runtime is too old for the command",
    UNKNOWN_MAGIC = 0x8013_1386 "CORDIAGIPC_E_UNKNOWN_MAGIC"
        "the runtime speaks another protocol; it may be newer than this tool",
    UNKNOWN_ERROR = 0x8013_1387 "CORDIAGIPC_E_UNKNOWN_ERROR"
        "the runtime does not say why",
    NOT_SUPPORTED = 0x8013_1515 "COR_E_NOTSUPPORTED"
        "this runtime was built without it",
    LIBRARY_NOT_LOADED = 0x8007_007e "ERROR_MOD_NOT_FOUND"
        "the process could not load the library: it is not there in the process's own view of \
         files (a container, another user's home), is on a file system mounted noexec, or needs \
         another C library; sidewalk doctor PID says which",
    NO_ENTRY_POINT = 0x8007_007f "ERROR_PROC_NOT_FOUND"
        "the library was loaded but is no profiler",
    BAD_FORMAT = 0x8007_00c1 "ERROR_BAD_EXE_FORMAT"
        "the library is for another kind of processor",
    FILE_NOT_FOUND = 0x8007_0002 "ERROR_FILE_NOT_FOUND"
        "the process does not find the library",
    ACCESS_DENIED = 0x8007_0005 "E_ACCESSDENIED"
        "the process's user may not read the library",
    OUT_OF_MEMORY = 0x8007_000e "E_OUTOFMEMORY"
        "the process is out of memory",
    INVALID_ARGUMENT = 0x8007_0057 "E_INVALIDARG"
        "the runtime does not take these settings",
    CLASS_NOT_AVAILABLE = 0x8004_0111 "CLASS_E_CLASSNOTAVAILABLE"
        "the library was loaded but is not the agent of this tool",
    CLASS_NOT_REGISTERED = 0x8004_0154 "REGDB_E_CLASSNOTREG"
        "the library was loaded but is not the agent of this tool",
    NOT_IMPLEMENTED = 0x8000_4001 "E_NOTIMPL"
        "this runtime cannot do it",
    NO_INTERFACE = 0x8000_4002 "E_NOINTERFACE"
        "the runtime is too old for the library, or the library for it",
    FAIL = 0x8000_4005 "E_FAIL"
        "the runtime does not say why; its standard error may",
    FILTERED = 0xa053_0001 "SIDEWALK_E_FILTERED"
        "a system call filter (seccomp) would end the program for a call that the agent needs \
         (docs/filters.md lists them); let the filter allow it or return an error",
    UNEXPECTED = 0x8000_ffff "E_UNEXPECTED"
        "the runtime had an unexpected error",
}

impl RefusalCode {
    /// The name, if the value is known to occur.
    pub fn name(self) -> Option<&'static str> {
        self.known().map(|(name, _)| name)
    }

    /// Returns the meaning of the value here, with advice.
    pub fn advice(self) -> &'static str {
        self.known()
            .map_or("the tool does not know this answer", |(_, advice)| advice)
    }

    fn known(self) -> Option<(&'static str, &'static str)> {
        KNOWN
            .iter()
            .find(|(answer, ..)| *answer == self)
            .map(|(_, name, advice)| (*name, *advice))
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#010x})", self.0),
            None => write!(f, "{:#010x}", self.0),
        }
    }
}

impl fmt::Debug for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_is_there_once_and_fits_a_sentence() {
        for (at, (answer, name, advice)) in KNOWN.iter().enumerate() {
            assert!(answer.0 >> 31 == 1, "{name} is no failure");
            assert!(!advice.ends_with('.') && !advice.contains("  "), "{name}");
            for (other, other_name, _) in &KNOWN[at + 1..] {
                assert!(other != answer && other_name != name, "{name} twice");
            }
        }
    }

    #[test]
    fn an_answer_without_a_name_is_its_number() {
        assert_eq!(RefusalCode(0x8013_9999).to_string(), "0x80139999");
        assert_eq!(
            RefusalCode::ALREADY_ACTIVE.to_string(),
            "CORPROF_E_PROFILER_ALREADY_ACTIVE (0x8013136a)"
        );
    }
}
