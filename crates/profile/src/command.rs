//! Names of processes, made from their command lines.
//!
//! Most processes that a command of the SDK starts are called `dotnet`. They are distinguished by
//! what the host runs, by its command, and for some tools by the project.
//!
//! The host's grammar is that of dotnet/runtime, `src/native/corehost/fxr/command_line.cpp`:
//! `dotnet [exec] [OPTION VALUE]... APP.dll [ARG]...`, or `dotnet [OPTION]... COMMAND [ARG]...`.

/// Options of the host that take a value.
const WITH_VALUE: [&str; 8] = [
    "--additional-deps",
    "--additionalprobingpath",
    "--depsfile",
    "--fx-version",
    "--roll-forward",
    "--roll-forward-on-no-candidate-fx",
    "--runtimeconfig",
    "--sdk-path",
];

/// Maximum characters of an argument in a name.
const MAX_ARGUMENT: usize = 80;

/// Returns a readable name for a process from the words of its command line: the program without
/// folders, the app for `dotnet app.dll`, `dotnet build` for that SDK command, and a distinguishing
/// argument for tools that run many times. `None` if the command line is empty.
///
/// ```
/// # use profile::names::process;
/// assert_eq!(process(&["/usr/bin/dotnet", "bin/App.dll", "x.dll"]).unwrap(), "App.dll");
/// assert_eq!(process(&["dotnet", "build", "-p:Out=x.dll"]).unwrap(), "dotnet build");
/// assert_eq!(process(&["dotnet", "x/MSBuild.dll", "/nodemode:1"]).unwrap(), "MSBuild node");
/// ```
#[must_use]
pub fn process<W: AsRef<str>>(words: &[W]) -> Option<String> {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let (first, rest) = words.split_first()?;
    let program = file_name(first);
    if program.is_empty() {
        return None;
    }
    if program != "dotnet" && program != "corerun" {
        return Some(tool(program, &[], rest).unwrap_or_else(|| program.to_owned()));
    }
    let rest = match rest {
        ["exec", rest @ ..] => rest,
        rest => rest,
    };
    let mut at = 0;
    while let Some(word) = rest.get(at).filter(|word| word.starts_with('-')) {
        at += if WITH_VALUE.contains(word) { 2 } else { 1 };
    }
    let options = &rest[..at.min(rest.len())];
    let Some((&app, arguments)) = rest.get(at..).and_then(<[&str]>::split_first) else {
        return Some(program.to_owned());
    };
    let name = file_name(app);
    if !is_assembly(name) {
        return Some(format!("{program} {}", shortened(name)));
    }
    Some(tool(name, options, arguments).unwrap_or_else(|| name.to_owned()))
}

/// Returns the name of a tool that one command starts many times, or that belongs to an SDK
/// command. `options` are the host's options before it.
fn tool(file: &str, options: &[&str], arguments: &[&str]) -> Option<String> {
    if let Some(name) = value_of(arguments, "--benchmarkName") {
        return Some(format!("bdn: {}", shortened(name)));
    }
    let stem = stem(file);
    let of = |project: Option<&str>| match project {
        Some(project) => format!("{stem}: {}", shortened(file_name(project))),
        None => stem.to_owned(),
    };
    Some(match stem {
        "MSBuild" => {
            let mode = arguments.iter().find_map(|word| {
                let word = word.trim_start_matches(['/', '-']).to_ascii_lowercase();
                Some(word.strip_prefix("nodemode:")?.to_owned())
            });
            match mode.as_deref() {
                None => stem.to_owned(),
                Some("2") => "MSBuild task host".to_owned(),
                Some("8") => "MSBuild server".to_owned(),
                Some(_) => "MSBuild node".to_owned(),
            }
        }
        "testhost" | "testhost.x86" => {
            let config = value_of(options, "--runtimeconfig");
            let config = config.and_then(|path| path.strip_suffix(".runtimeconfig.json"));
            let config = config.filter(|path| !path.ends_with("/testhost"));
            of(value_of(arguments, "--testsourcepath")
                .map(self::stem)
                .or(config))
        }
        "vstest.console" => {
            // Its options may begin with a slash, as paths do.
            let mut files = arguments.iter().filter(|word| !word.contains(':'));
            of(files
                .find(|word| is_assembly(word))
                .map(|word| self::stem(word)))
        }
        "VBCSCompiler" | "csc" | "vbc" | "fsc" | "datacollector" => stem.to_owned(),
        _ => {
            let command = stem.strip_prefix("dotnet-").filter(|_| is_assembly(file))?;
            format!("dotnet {command}")
        }
    })
}

/// The word behind an option.
fn value_of<'a>(words: &[&'a str], option: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| *word == option)?;
    words.get(at + 1).copied()
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_assembly(path: &str) -> bool {
    let ending = path.rsplit('.').next().unwrap_or_default();
    ending.len() < path.len()
        && ["dll", "exe"]
            .iter()
            .any(|of| ending.eq_ignore_ascii_case(of))
}

/// A file's name without `.dll` or `.exe`.
fn stem(file: &str) -> &str {
    match file.rsplit_once('.') {
        Some((stem, _)) if is_assembly(file) => stem,
        _ => file,
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_ARGUMENT).collect()
}
