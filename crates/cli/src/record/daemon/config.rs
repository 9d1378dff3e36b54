//! The configuration file of `sidewalk agent`.
//!
//! Invariant: options are those of `sidewalk record`, parsed and checked as there. This module only
//! says which of them may stand where.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Arg, CommandFactory as _};
use serde::Deserialize;
use toml::{Table, Value};

use super::super::environment;
use super::facts::ProcessFacts;
use crate::args::{self, Cli, Command as Verb, OptionScope, RecordArgs};
use crate::console::escaped;
use crate::filter_args::NamePattern;

/// A configuration that has been checked.
pub(super) struct AgentConfig {
    /// The options of all processes: intervals and places.
    pub(super) args: RecordArgs,
    /// In their order: the first that matches a process decides.
    pub(super) rules: Vec<Rule>,
}

/// A rule for some processes.
pub(super) struct Rule {
    name: Option<NamePattern>,
    user: Option<NamePattern>,
    cgroup: Option<NamePattern>,
    environment: Vec<(String, NamePattern)>,
    /// The configuration of the agents in them, in the format of `SIDEWALK_CONFIG`. `None` if they
    /// are not recorded.
    pub(super) configuration: Option<Arc<str>>,
}

/// The file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    options: Table,
    #[serde(default)]
    process: Vec<ProcessTable>,
}

/// A `[[process]]` of the file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct ProcessTable {
    name: Option<String>,
    user: Option<String>,
    cgroup: Option<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    record: Option<bool>,
    #[serde(default)]
    options: Table,
}

impl AgentConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// It cannot be read, or something in it is wrong; the text says what.
    pub(super) fn read(path: &Path) -> Result<AgentConfig> {
        let shown = escaped(path);
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        AgentConfig::parse(&text).with_context(|| format!("{shown} cannot be used"))
    }

    fn parse(text: &str) -> Result<AgentConfig> {
        let file: ConfigFile =
            toml::from_str(text).map_err(|error| anyhow!("{}", error.to_string().trim_end()))?;
        let args = record_args(&file.options).context("[options]")?;
        if args.every().is_none() {
            bail!(
                "it names no place for profiles: give [options] push = \"URL\", or every and output"
            );
        }
        let mut tables = file.process;
        if tables.is_empty() {
            // Without rules all processes are recorded.
            tables.push(ProcessTable::default());
        }
        let mut rules = Vec::new();
        for (at, table) in tables.into_iter().enumerate() {
            let rule = Rule::new(table, &file.options);
            rules.push(rule.with_context(|| format!("[[process]] number {}", at + 1))?);
        }
        Ok(AgentConfig { args, rules })
    }

    /// The rule that decides about a process, by its number.
    pub(super) fn rule_for(&self, facts: &ProcessFacts) -> Option<(usize, &Rule)> {
        let mut rules = self.rules.iter().enumerate();
        rules.find(|(_, rule)| rule.is_match(facts))
    }
}

impl Rule {
    fn new(table: ProcessTable, common: &Table) -> Result<Rule> {
        let parse = |text: String| NamePattern::parse(&text).map_err(anyhow::Error::msg);
        let variables = table.environment.into_iter();
        let variables = variables.map(|(name, value)| Ok((name, parse(value)?)));
        let configuration = match table.record.unwrap_or(true) {
            true => {
                // Their names, before they are mixed with those of all processes.
                words(&table.options, OptionScope::Process).context("options")?;
                let mut all = common.clone();
                all.extend(table.options);
                let args = record_args(&all).context("options")?;
                Some(environment::configuration(&args).into())
            }
            false if table.options.is_empty() => None,
            false => bail!("options have no effect where record is false"),
        };
        Ok(Rule {
            name: table.name.map(parse).transpose()?,
            user: table.user.map(parse).transpose()?,
            cgroup: table.cgroup.map(parse).transpose()?,
            environment: variables.collect::<Result<_>>()?,
            configuration,
        })
    }

    fn is_match(&self, facts: &ProcessFacts) -> bool {
        let fits = |wanted: &Option<NamePattern>, value: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted.is_match(value))
        };
        let is_in = |group: &String| fits(&self.cgroup, group);
        fits(&self.name, &facts.name)
            && fits(&self.user, &facts.user)
            && (self.cgroup.is_none() || facts.cgroups.iter().any(is_in))
            && self.environment.iter().all(|(name, wanted)| {
                facts
                    .variable(name)
                    .is_some_and(|value| wanted.is_match(value))
            })
    }
}

/// Returns the arguments of a recording with these options.
fn record_args(options: &Table) -> Result<RecordArgs> {
    // A recording needs a process; which ones they are is found later.
    let mut line = ["sidewalk", "record", "--pid", "0"]
        .map(OsString::from)
        .to_vec();
    line.extend(words(options, OptionScope::Recording)?);
    match crate::parse(&line).map(|cli| cli.command) {
        Ok(Verb::Record(args)) => Ok(*args),
        Ok(_) => bail!("these are no options of a recording"),
        Err(error) => {
            let text = error.to_string();
            // Usage and hints about the command line follow an empty line.
            let text = text.split("\n\n").next().unwrap_or_default();
            bail!("{}", text.trim().trim_start_matches("error: "))
        }
    }
}

/// Returns options as words of a command line.
///
/// # Errors
/// `record` has no such option, or it may not be given here.
fn words(options: &Table, scope: OptionScope) -> Result<Vec<OsString>> {
    let cli = Cli::command();
    let record = cli.find_subcommand("record").into_iter();
    let known: Vec<&Arg> = record.flat_map(clap::Command::get_arguments).collect();
    let mut words = Vec::new();
    for (name, value) in options {
        let option = known.iter().find(|arg| arg.get_long() == Some(name));
        match option.and_then(|option| args::scope_of(option)) {
            Some(OptionScope::Process) => {}
            Some(OptionScope::Recording) if scope == OptionScope::Recording => {}
            Some(OptionScope::Recording) => {
                bail!("{name} is for all processes: it belongs to [options]")
            }
            None => bail!("{name} is no option of sidewalk record that sidewalk agent has"),
        }
        let values = match value {
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        for value in values {
            let text = match value {
                Value::Boolean(true) => {
                    words.push(format!("--{name}").into());
                    continue;
                }
                Value::Boolean(false) => continue,
                Value::String(text) => text.clone(),
                Value::Integer(number) => number.to_string(),
                Value::Float(number) => number.to_string(),
                _ => bail!("{name} is no text, number or list of them"),
            };
            words.push(format!("--{name}={text}").into());
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str, user: &str, cgroup: &str, variables: &[(&str, &str)]) -> ProcessFacts {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        ProcessFacts {
            name: name.to_owned(),
            user: user.to_owned(),
            cgroups: vec!["/".to_owned(), cgroup.to_owned()],
            variables: variables.collect(),
        }
    }

    const FILE: &str = r#"
        [options]
        push = ["file:///var/profiles", "otlp+http://collector:4318"]
        frequency = 19

        [[process]]
        user = "postgres"
        record = false

        [[process]]
        name = "Shop.*"
        environment = { STAGE = "canary*" }
        options = { frequency = 99, event = "cpu,alloc", alloc-interval = "1m" }

        [[process]]
        cgroup = "*/kubepods*"
        options = { no-async-stacks = true, trace = ["A.*", "B.*:5ms"] }

        [[process]]
        name = "shop.dll"
    "#;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let config = AgentConfig::parse(FILE).unwrap();
        assert_eq!(config.args.pushes.len(), 2);
        let rule = |facts: &ProcessFacts| config.rule_for(facts).map(|(at, _)| at);
        for (facts, expected) in [
            (facts("Shop.Api", "postgres", "/", &[]), Some(0)),
            (
                facts("Shop.Api.dll", "a", "/x", &[("STAGE", "canary-2")]),
                Some(1),
            ),
            (facts("Shop.Api", "a", "/x", &[("STAGE", "prod")]), None),
            (facts("Shop.Api", "a", "/x", &[]), None),
            (facts("Shop.Api", "a", "/kubepods/pod7", &[]), Some(2)),
            (facts("Shop.dll", "a", "/", &[]), Some(3)),
        ] {
            assert_eq!(rule(&facts), expected, "{}", facts.name);
        }
        let configurations = config.rules.iter();
        let configurations: Vec<_> = configurations
            .map(|rule| rule.configuration.as_deref().unwrap_or("not recorded"))
            .collect();
        insta::assert_snapshot!(configurations.join("\n"), @r"
        not recorded
        event=cpu,alloc;interval_ns=10101010;max_depth=1024;runtimes=all;engine=auto;walker=signal;async=1;find_code=3000;alloc_interval=1048576
        event=cpu;interval_ns=52631578;max_depth=1024;runtimes=all;engine=auto;walker=signal;find_code=3000;trace=0:A.*;trace=5000000:B.*
        event=cpu;interval_ns=52631578;max_depth=1024;runtimes=all;engine=auto;walker=signal;async=1;find_code=3000
        ");
    }

    #[test]
    fn without_rules_all_are_recorded() {
        let config = AgentConfig::parse("[options]\npush = 'file:///p'").unwrap();
        let (_, rule) = config.rule_for(&facts("x", "y", "/", &[])).unwrap();
        assert!(rule.configuration.is_some());
    }

    #[test]
    fn errors_say_where_and_how() {
        let push = "[options]\npush = 'file:///p'\n";
        let texts = [
            "",
            "options = 7",
            "[options]\npush = 'ftp://x'",
            "[options]\npush = 'https://me:secret@x'",
            "[options]\nfrequency = 0\npush = 'file:///p'",
            "[options]\npid = 7\npush = 'file:///p'",
            "[options]\nevery = '1s'\noutput = 'x.swk'",
            "[options]\npush = { url = 'x' }",
            &format!("{push}[[process]]\nnames = 'x'"),
            &format!("{push}[[process]]\nname = ''"),
            &format!("{push}[[process]]\noptions = {{ push = 'file:///q' }}"),
            &format!("{push}[[process]]\nrecord = false\noptions = {{ frequency = 9 }}"),
            &format!("{push}[[process]]\noptions = {{ alloc-interval = '1m' }}"),
        ]
        .map(|text| {
            let error = AgentConfig::parse(text).err().unwrap();
            format!("{error:#}").replace('\n', "\\n")
        });
        insta::assert_snapshot!(texts.join("\n"), @r#"
        it names no place for profiles: give [options] push = "URL", or every and output
        TOML parse error at line 1, column 11\n  |\n1 | options = 7\n  |           ^\ninvalid type: integer `7`, expected a map
        [options]: invalid value 'ftp://x' for '--push <URL>': expected file:///FOLDER, otlp+http(s)://HOST:PORT, pyroscope+http(s)://HOST:PORT or pprof+http(s)://HOST:PORT/PATH
        [options]: a password in an address is seen by all users of the machine: use --push-token-file or --push-header-file
        [options]: invalid value '0' for '--frequency <HZ>': 0 is not in 1..=10000
        [options]: pid is no option of sidewalk record that sidewalk agent has
        [options]: --every takes 10s to 1h: shorter intervals cost too much, longer ones come too late
        [options]: push is no text, number or list of them
        TOML parse error at line 4, column 1\n  |\n4 | names = 'x'\n  | ^^^^^\nunknown field `names`, expected one of `name`, `user`, `cgroup`, `environment`, `record`, `options`
        [[process]] number 1: expected a name or a number
        [[process]] number 1: options: push is for all processes: it belongs to [options]
        [[process]] number 1: options have no effect where record is false
        [[process]] number 1: options: --alloc-interval applies to alloc and live events: add one to --event
        "#);
    }
}
