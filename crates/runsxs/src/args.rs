//! Command-line arguments of `runsxs`: clap definitions, and the parsed form.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::compat::Setting;

/// Run programs on several CLRs in one process, each on its own thread at once
#[derive(Parser, Debug)]
#[command(
    name = "runsxs",
    version,
    override_usage = "runsxs [OPTIONS] VERSION|DIR APP.dll \"ARGS\" [VERSION|DIR APP.dll \"ARGS\"]...",
    after_help = "A CLR is named by a version or the beginning of one (3.1, 8.0.4), looked for in DOTNET_ROOT,
the dotnet on PATH, the usual folders and Sidewalk's cache, or by its folder: the one that holds
libcoreclr.so, or that of the dotnet program. ARGS are words as a shell has them; \"\" for none.

The exit code is that of the first program, in the order given, that did not end with 0; 1 when
something could not be run; 2 for a wrong command line.

Examples:
  runsxs --st 3.1 old.dll \"one two\" 8.0 new.dll \"\"
  sidewalk record -- runsxs 3.1 old.dll \"one two\" 8.0 new.dll \"\""
)]
struct Typed {
    /// One program after the other, on one thread; also /st
    #[arg(long)]
    st: bool,

    /// Start each program so long after the one before it: 200ms, 1.5s
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "st")]
    stagger: Option<Duration>,

    /// Leave the activation signal to the CLR that was loaded last, to show what that does
    #[arg(long)]
    no_activation_fix: bool,

    /// Play CLR 4's ProfilerCompatibilitySetting: decide for each CLR whether it loads the profiler
    /// that the environment asks for, and say so
    #[arg(long, value_name = "SETTING", ignore_case = true)]
    compat: Option<Setting>,

    /// Call from CLR to CLR, DEPTH times, through native code, and burn in the last one: each
    /// APP.dll has a `static long Workloads.Chain.Step` (workloads/chain), ARGS are not used
    #[arg(
        long,
        value_name = "DEPTH",
        value_parser = clap::value_parser!(u16).range(1..=500),
        conflicts_with_all = ["st", "stagger"]
    )]
    chain: Option<u16>,

    /// How long --chain goes on
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s", requires = "chain")]
    burn: Duration,

    /// VERSION|DIR APP.dll "ARGS", for each CLR
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    programs: Vec<OsString>,
}

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    /// One after the other on one thread.
    pub(crate) st: bool,
    pub(crate) stagger: Duration,
    /// Serve all CLRs by one handler of the activation signal.
    pub(crate) fix_activation: bool,
    pub(crate) compat: Option<Setting>,
    /// Number of calls from CLR to CLR, instead of running programs.
    pub(crate) chain: Option<u16>,
    pub(crate) burn: Duration,
    pub(crate) programs: Vec<Program>,
}

/// A program and its runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Version or folder.
    pub(crate) runtime: OsString,
    pub(crate) app: PathBuf,
    pub(crate) words: Vec<String>,
}

/// Options with a value.
const VALUED: [&str; 4] = ["--stagger", "--compat", "--chain", "--burn"];

/// Parses a command line, whose first word is the program's name.
///
/// # Errors
/// clap's error, with exit code and message; also for help.
pub(crate) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Args, clap::Error> {
    // Accepts the article's spelling `/st`, only at the position of an option.
    let (mut is_option, mut is_value) = (true, true);
    let line = line.into_iter().map(|word| {
        is_option &= is_value || word.to_string_lossy().starts_with(['-', '/']);
        is_value = is_option && VALUED.iter().any(|option| word == *option);
        if is_option && word == "/st" {
            "--st".into()
        } else {
            word
        }
    });
    let typed = Typed::try_parse_from(line)?;
    let wrong = |kind, text: String| Typed::command().error(kind, text);
    if !typed.programs.len().is_multiple_of(3) {
        return Err(wrong(
            ErrorKind::WrongNumberOfValues,
            format!(
                "each CLR takes three words, VERSION|DIR APP.dll \"ARGS\": there are {} words",
                typed.programs.len()
            ),
        ));
    }
    let programs = typed.programs.chunks_exact(3).map(|words| {
        let [runtime, app, text] = words else {
            unreachable!("chunks of three")
        };
        let text = text.to_str().ok_or_else(|| {
            let shown = text.display();
            wrong(
                ErrorKind::InvalidUtf8,
                format!("the arguments {shown} are no text"),
            )
        })?;
        Ok(Program {
            runtime: runtime.clone(),
            app: app.into(),
            words: split(text).map_err(|why| wrong(ErrorKind::ValueValidation, why))?,
        })
    });
    Ok(Args {
        st: typed.st,
        stagger: typed.stagger.unwrap_or_default(),
        fix_activation: !typed.no_activation_fix,
        compat: typed.compat,
        chain: typed.chain,
        burn: typed.burn,
        programs: programs.collect::<Result<_, clap::Error>>()?,
    })
}

/// Parses `1.5s` or `200ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(""), 1.0),
    };
    number
        .parse::<f64>()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number * unit).ok())
        .ok_or_else(|| format!("`{text}` is no time such as 200ms or 1.5s"))
}

/// Splits a text into words as a shell does: at spaces, with quotes and backslashes.
fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (' ' | '\t' | '\n', None) => words.extend(word.take()),
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (_, Some(open)) if letter == open => quote = None,
            ('\\', None | Some('"')) => {
                let next = letters.next().ok_or("a backslash at the end")?;
                word.get_or_insert_default().push(next);
            }
            _ => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err(format!("a quote is open in: {text}"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> Result<Args, clap::Error> {
        parse(
            std::iter::once("runsxs")
                .chain(words.iter().copied())
                .map(Into::into),
        )
    }

    #[test]
    fn clap_finds_no_contradiction() {
        Typed::command().debug_assert();
    }

    #[test]
    fn programs_come_in_threes_and_the_articles_option_is_one() {
        let args = line(&[
            "--compat",
            "preventload",
            "/st",
            "3.1",
            "a.dll",
            "-x '/st now'",
            "/opt/clr",
            "/st",
            "",
        ])
        .unwrap();
        assert!(args.st && args.fix_activation);
        assert_eq!(args.compat, Some(Setting::Prevent));
        assert_eq!(args.stagger, Duration::ZERO);
        assert_eq!(
            args.programs,
            [
                Program {
                    runtime: "3.1".into(),
                    app: "a.dll".into(),
                    words: vec!["-x".into(), "/st now".into()],
                },
                Program {
                    runtime: "/opt/clr".into(),
                    app: "/st".into(),
                    words: vec![],
                }
            ]
        );
        assert!(!line(&["--stagger", "20ms", "8", "a", "--st"]).unwrap().st);
    }

    #[test]
    fn a_wrong_line_says_why() {
        for (words, why) in [
            (&[][..], "required"),
            (&["8.0", "a.dll"], "there are 2 words"),
            (&["8.0", "a.dll", "'x"], "quote is open"),
            (&["--stagger", "soon", "8.0", "a.dll", ""], "no time"),
            (&["--sst", "8.0", "a.dll", ""], "unexpected"),
        ] {
            let error = line(words).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(why), "{words:?}: {error}");
        }
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        for (text, words) in [
            ("", &[][..]),
            ("  a  b ", &["a", "b"]),
            ("a'b c'd", &["ab cd"]),
            (r#""" "x\"y" '\'"#, &["", "x\"y", "\\"]),
            (r"a\ b", &["a b"]),
        ] {
            assert_eq!(split(text).unwrap(), words, "{text}");
        }
        assert!(split("\\").is_err());
    }
}
