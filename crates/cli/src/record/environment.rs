//! Environment variables that load the agent into the recorded program's runtimes.
//!
//! The runtime loads one profiler, named by the environment (src/coreclr/vm/profilinghelper.cpp of
//! dotnet/runtime, `LoadProfilerForCurrentProcess`). Since .NET 6 it also loads notification
//! profilers, which get callbacks and change nothing.
//! Invariant: a profiler set by the user or another tool is never replaced without
//! `--replace-profiler`. The agent is loaded beside it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use control::{LoadMode, ProfilerSlot, class_of, clsid_text};

use crate::args::RecordArgs;
use crate::console::escaped;
use crate::units;

/// CLSID of the agent, in the format of `CORECLR_PROFILER`.
pub const AGENT_CLSID: &str = "{5D3E9A1C-7B42-4F6E-9C05-2A1B8E47D630}";

/// Prefixes of the profiler variables. .NET 11 also reads the prefix of its other settings.
const PREFIXES: [&str; 2] = ["CORECLR", "DOTNET"];
/// Notification profilers: `PATH={CLSID};…`. The first has priority over the second on x86-64.
const NOTIFICATION_PATHS: [&str; 2] = [
    "CORECLR_NOTIFICATION_PROFILERS_64",
    "CORECLR_NOTIFICATION_PROFILERS",
];
/// Notification profilers are disabled unless this is 1.
const NOTIFICATION_ENABLED: &str = "CORECLR_ENABLE_NOTIFICATION_PROFILERS";
/// These have priority over `_PROFILER_PATH` on x86-64.
const PATHS: [&str; 2] = ["PROFILER_PATH_64", "PROFILER_PATH"];
/// If any of these is 0, .NET 8 and later load no profiler.
const DIAGNOSTICS: [&str; 4] = [
    "DOTNET_EnableDiagnostics",
    "COMPlus_EnableDiagnostics",
    "DOTNET_EnableDiagnostics_Profiler",
    "COMPlus_EnableDiagnostics_Profiler",
];

/// Settings that prevent recording.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Obstacles {
    /// `CLSID (path)` of the profiler in the environment.
    profiler: Option<String>,
    /// Whether that is our own: the command runs under another `sidewalk record`.
    is_own: bool,
    /// A variable that forbids profilers, with its value.
    forbidden: Option<(&'static str, String)>,
}

impl Obstacles {
    /// Reads an environment.
    pub(super) fn find(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let text = |name: &str| variable(name).map(escaped);
        let mut found = Self::default();
        for prefix in PREFIXES {
            let enabled = text(&format!("{prefix}_ENABLE_PROFILING"));
            if found.profiler.is_some() || enabled.as_deref().and_then(number) != Some(1) {
                continue;
            }
            let Some(clsid) = text(&format!("{prefix}_PROFILER")) else {
                continue;
            };
            let path = PATHS
                .iter()
                .find_map(|path| text(&format!("{prefix}_{path}")));
            found.is_own = clsid.eq_ignore_ascii_case(AGENT_CLSID);
            found.profiler = Some(match path {
                Some(path) => format!("{clsid} ({path})"),
                None => clsid,
            });
        }
        found.forbidden = DIAGNOSTICS.iter().find_map(|name| {
            let value = text(name)?;
            (number(&value) == Some(0)).then_some((*name, value))
        });
        found
    }

    /// Whether another profiler stays the main profiler.
    pub(super) fn is_beside(&self, replace: bool) -> bool {
        self.profiler.is_some() && !self.is_own && !replace
    }

    /// Returns the warnings to print before recording.
    ///
    /// # Errors
    /// Settings prevent recording, and the user has not given `--replace-profiler`.
    pub(super) fn check(&self, replace: bool) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        match &self.profiler {
            Some(_) if self.is_own => warnings.push(
                "this command already runs under another sidewalk record; \
                 that one will not record its processes"
                    .to_owned(),
            ),
            Some(profiler) if replace => {
                warnings.push(format!(
                    "the profiler {profiler} is replaced for this command"
                ));
            }
            Some(profiler) => warnings.push(format!(
                "the environment asks for the profiler {profiler}: the program is recorded beside it \
                 (.NET 6 and later; --replace-profiler records without it)"
            )),
            None => {}
        }
        match &self.forbidden {
            Some((name, value)) if replace => {
                warnings.push(format!("{name}={value} is unset for this command"));
            }
            Some((name, value)) => bail!(
                "{name}={value} keeps .NET 8 and later from loading a profiler.\n\
                 Start sidewalk with env -u {name}, or say --replace-profiler to unset it for \
                 this command"
            ),
            None => {}
        }
        Ok(warnings)
    }
}

/// Parses a runtime setting, a hexadecimal number.
fn number(value: &str) -> Option<u32> {
    let digits = value.trim();
    let digits = digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"))
        .unwrap_or(digits);
    u32::from_str_radix(digits, 16).ok()
}

/// The agent's configuration for a dump.
pub(super) const DUMP: &str = "event=wall;dump=1";
/// The agent's configuration for a dump with the stacks of suspended async methods.
pub(super) const DUMP_ASYNC: &str = "event=wall;dump=1;suspended=1";

/// Returns the agent's configuration. Limits that were not given keep the agent's defaults.
pub(super) fn configuration(args: &RecordArgs) -> String {
    let interval = args
        .interval
        .unwrap_or_else(|| units::interval_of(args.frequency));
    let events: Vec<_> = args.distinct_events().iter().map(|e| e.name()).collect();
    if args.dump {
        return format!(
            "{DUMP};max_depth={};runtimes={}",
            args.max_depth, args.runtimes
        );
    }
    let mut settings_text = format!(
        "event={};interval_ns={interval};max_depth={};runtimes={};engine={};walker={}",
        events.join(","),
        args.max_depth,
        args.runtimes,
        args.engine,
        args.walker
    );
    if args.chains() {
        settings_text.push_str(";async=1");
    }
    if let Some(methods) = args.find_code() {
        settings_text.push_str(&format!(";find_code={methods}"));
    }
    if let Some(bytes) = args.alloc_interval {
        settings_text.push_str(&format!(";alloc_interval={bytes}"));
    }
    if let Some(interval) = args.live_interval {
        settings_text.push_str(&format!(";live_interval_ns={}", interval.as_nanos()));
    }
    if let Some(limit) = args.event_limit {
        settings_text.push_str(&format!(";event_limit={limit}"));
    }
    for units::Traced { pattern, min_ns } in &args.trace {
        let pattern = pattern.replace('%', "%25").replace(';', "%3b");
        settings_text.push_str(&format!(";trace={min_ns}:{pattern}"));
    }
    if let Some(limit) = args.trace_limit {
        settings_text.push_str(&format!(";trace_limit={limit}"));
    }
    settings_text
}

/// Makes runtimes below `command` load `agent` and connect to `socket`. With `beside`, their main
/// profiler stays; otherwise the agent replaces it. The agent is a notification profiler in any
/// case, because a child may set another main profiler.
pub(super) fn prepare(
    command: &mut Command,
    agent: &Path,
    socket: &Path,
    configuration: &str,
    beside: bool,
) {
    if !beside {
        set_main_profiler(command, agent);
    }
    add_notification_profiler(command, agent, |name| std::env::var_os(name));
    for name in DIAGNOSTICS {
        if std::env::var(name).is_ok_and(|value| number(&value) == Some(0)) {
            command.env_remove(name);
        }
    }
    command
        .env("SIDEWALK_SOCKET", socket)
        .env("SIDEWALK_CONFIG", configuration);
}

fn set_main_profiler(command: &mut Command, agent: &Path) {
    for path in PATHS {
        command.env_remove(format!("CORECLR_{path}"));
    }
    for name in ["ENABLE_PROFILING", "PROFILER"].iter().chain(&PATHS) {
        command.env_remove(format!("DOTNET_{name}"));
    }
    command
        .env("CORECLR_ENABLE_PROFILING", "1")
        .env("CORECLR_PROFILER", AGENT_CLSID)
        .env("CORECLR_PROFILER_PATH", agent);
}

/// Adds the agent after any other notification profilers.
fn add_notification_profiler(
    command: &mut Command,
    agent: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) {
    let [first, second] = NOTIFICATION_PATHS;
    let enabled = variable(NOTIFICATION_ENABLED).and_then(|value| number(&escaped(value)));
    let (name, before) = match variable(first) {
        Some(before) => (first, Some(before)),
        None => (second, variable(second)),
    };
    // Disabled profilers stay disabled.
    let before = before.filter(|_| enabled == Some(1)).unwrap_or_default();
    let ours = clsid_text(class_of(LoadMode::Startup, ProfilerSlot::Notification));
    let mut list = OsString::new();
    for entry in before.as_bytes().split(|byte| *byte == b';') {
        // Drops the entry of an outer recording of this tool: a runtime would load the agent twice.
        if !entry.is_empty() && !entry.ends_with(ours.as_bytes()) {
            list.push(OsStr::from_bytes(entry));
            list.push(";");
        }
    }
    list.push(agent);
    list.push("=");
    list.push(ours);
    // Runtimes before 11 drop an entry without this separator.
    list.push(";");
    command.env(name, list).env(NOTIFICATION_ENABLED, "1");
}

/// Returns why a runtime with this environment does not load the agent, although [`prepare`]
/// prepared the command: the environment was changed since. `None` if that is not the reason.
/// `version` is the runtime's, if known.
pub(super) fn why_not_loaded(
    variable: &dyn Fn(&str) -> Option<OsString>,
    version: Option<(u32, u32)>,
) -> Option<String> {
    let found = Obstacles::find(variable);
    if let Some((name, value)) = found.forbidden {
        return Some(format!(
            "{name}={value} keeps its runtime from loading a profiler"
        ));
    }
    let ours = clsid_text(class_of(LoadMode::Startup, ProfilerSlot::Notification));
    let is_listed = NOTIFICATION_PATHS.iter().any(|name| {
        variable(name).is_some_and(|list| escaped(list).to_ascii_uppercase().contains(&ours))
    });
    let takes_several = version.is_none_or(|version| version >= (6, 0));
    if found.is_own || (is_listed && takes_several) {
        return None;
    }
    let why_alone = if is_listed {
        ", and .NET before 6 supports only one"
    } else {
        ""
    };
    if let Some(clsid) = PREFIXES
        .iter()
        .find_map(|prefix| variable(&format!("{prefix}_PROFILER")))
        .filter(|_| found.profiler.is_some())
    {
        let clsid = escaped(clsid);
        return Some(format!(
            "it has another profiler (CORECLR_PROFILER={clsid}){why_alone}"
        ));
    }
    let enabled = variable("CORECLR_ENABLE_PROFILING")?;
    (number(&escaped(&enabled)) != Some(1)).then(|| {
        let value = escaped(enabled);
        format!("CORECLR_ENABLE_PROFILING={value} keeps its runtime from loading a profiler")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn obstacles(environment: &[(&str, &str)]) -> Obstacles {
        Obstacles::find(|name| {
            let (_, value) = environment.iter().find(|(known, _)| *known == name)?;
            Some(value.into())
        })
    }

    #[test]
    fn nothing_in_the_way() {
        for environment in [
            &[][..],
            &[
                ("CORECLR_ENABLE_PROFILING", "0"),
                ("CORECLR_PROFILER", "{X}"),
            ],
            &[
                ("CORECLR_PROFILER", "{X}"),
                ("CORECLR_PROFILER_PATH", "/x.so"),
            ],
            &[("CORECLR_ENABLE_PROFILING", "1")],
            &[("DOTNET_EnableDiagnostics", "1")],
            &[("DOTNET_EnableDiagnostics_Debugger", "0")],
        ] {
            assert_eq!(
                obstacles(environment),
                Obstacles::default(),
                "{environment:?}"
            );
        }
    }

    #[test]
    fn another_profiler() {
        let found = obstacles(&[
            ("CORECLR_ENABLE_PROFILING", "0x1"),
            ("CORECLR_PROFILER", "{846F5F1C-F9AE-4B07-969E-05C26BC060D8}"),
            ("CORECLR_PROFILER_PATH", "/opt/old.so"),
            ("CORECLR_PROFILER_PATH_64", "/opt/apm.so"),
        ]);
        assert!(found.is_beside(false) && !found.is_beside(true));
        for (replace, word) in [(false, "beside"), (true, "replaced")] {
            let message = found.check(replace).unwrap().join("");
            assert!(message.contains("{846F5F1C-F9AE-4B07-969E-05C26BC060D8} (/opt/apm.so)"));
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn beside_others_each_entry_is_ended() {
        for (environment, name, expected) in [
            (
                &[(NOTIFICATION_PATHS[1], "/off.so={A};")][..],
                NOTIFICATION_PATHS[1],
                "/x/libsidewalk.so={5D3E9A1C-7B42-4F6E-9C05-2A1B8E47D631};",
            ),
            (
                &[
                    (
                        NOTIFICATION_PATHS[1],
                        "/o.so={5D3E9A1C-7B42-4F6E-9C05-2A1B8E47D631};/a.so={A}",
                    ),
                    (NOTIFICATION_ENABLED, "1"),
                ],
                NOTIFICATION_PATHS[1],
                "/a.so={A};/x/libsidewalk.so={5D3E9A1C-7B42-4F6E-9C05-2A1B8E47D631};",
            ),
            (
                &[
                    (NOTIFICATION_PATHS[1], "/a.so={A};"),
                    (NOTIFICATION_PATHS[0], "/b.so={B};"),
                    (NOTIFICATION_ENABLED, "0x1"),
                ],
                NOTIFICATION_PATHS[0],
                "/b.so={B};/x/libsidewalk.so={5D3E9A1C-7B42-4F6E-9C05-2A1B8E47D631};",
            ),
        ] {
            let mut command = Command::new("x");
            add_notification_profiler(&mut command, Path::new("/x/libsidewalk.so"), |name| {
                let (_, value) = environment.iter().find(|(known, _)| *known == name)?;
                Some(value.into())
            });
            let set: Vec<_> = command.get_envs().collect();
            assert!(
                set.contains(&(name.as_ref(), Some(expected.as_ref()))),
                "{set:?}"
            );
        }
    }

    #[test]
    fn why_a_child_does_not_load_the_agent() {
        let other = "{846F5F1C-F9AE-4B07-969E-05C26BC060D8}";
        let ours = "/x/libsidewalk.so={5D3E9A1C-7B42-4F6E-9C05-2A1B8E47D631};";
        let enabled = ("CORECLR_ENABLE_PROFILING", "1");
        for (environment, version, expected) in [
            (
                &[enabled, ("CORECLR_PROFILER", AGENT_CLSID)][..],
                (8, 0),
                None,
            ),
            (
                &[
                    enabled,
                    ("CORECLR_PROFILER", other),
                    (NOTIFICATION_PATHS[1], ours),
                ],
                (8, 0),
                None,
            ),
            (
                &[
                    enabled,
                    ("CORECLR_PROFILER", other),
                    (NOTIFICATION_PATHS[1], ours),
                ],
                (3, 1),
                Some(".NET before 6 supports only one"),
            ),
            (
                &[enabled, ("CORECLR_PROFILER", other)],
                (8, 0),
                Some("(CORECLR_PROFILER={846F5F1C-F9AE-4B07-969E-05C26BC060D8})"),
            ),
            (
                &[
                    ("CORECLR_ENABLE_PROFILING", "0"),
                    (NOTIFICATION_PATHS[1], ours),
                ],
                (3, 1),
                Some("CORECLR_ENABLE_PROFILING=0"),
            ),
            (
                &[
                    ("CORECLR_ENABLE_PROFILING", "0"),
                    (NOTIFICATION_PATHS[1], ours),
                ],
                (8, 0),
                None,
            ),
            (
                &[("DOTNET_EnableDiagnostics", "0")],
                (8, 0),
                Some("DOTNET_EnableDiagnostics=0"),
            ),
            (&[], (8, 0), None),
        ] {
            let variable = |name: &str| {
                let (_, value) = environment.iter().find(|(known, _)| *known == name)?;
                Some(value.into())
            };
            let message = why_not_loaded(&variable, Some(version));
            match expected {
                None => assert_eq!(message, None, "{environment:?}"),
                Some(part) => assert!(message.unwrap().contains(part), "{environment:?}"),
            }
        }
    }

    #[test]
    fn our_own_profiler_is_no_reason_to_refuse() {
        let found = obstacles(&[
            ("CORECLR_ENABLE_PROFILING", "1"),
            ("CORECLR_PROFILER", &AGENT_CLSID.to_lowercase()),
        ]);
        assert_eq!(found.check(false).unwrap().len(), 1);
    }

    #[test]
    fn profilers_forbidden() {
        for name in DIAGNOSTICS {
            let found = obstacles(&[(name, "0")]);
            let refusal = found.check(false).unwrap_err().to_string();
            assert!(refusal.contains(&format!("{name}=0")), "{refusal}");
            assert_eq!(found.check(true).unwrap().len(), 1);
        }
    }
}
