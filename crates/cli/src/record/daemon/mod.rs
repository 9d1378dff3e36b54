//! `sidewalk agent`: records the .NET processes of a machine, as a configuration says, until it is
//! told to end.
//!
//! One recording after the other, each with all processes: the next begins when the configuration
//! is read again (SIGHUP). Intervals, pushes and files are those of `record --every`.
//! Invariants: nothing is recorded by a configuration that is not right as a whole. When it ends,
//! the agent has left every process.

mod config;
mod facts;
mod finder;
mod service;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use diagnostics::Target;
use nix::sys::signal::Signal;
use rustix::process::{Resource, getrlimit, setrlimit};

pub(super) use finder::Finder;

use self::config::AgentConfig;
use self::facts::ProcessFacts;
use super::agent_library::EmbeddedAgents;
use super::attach::{self, DetachOutcome};
use super::session::{EndReason, Session};
use super::signals::Signals;
use super::store::{self, Store};
use crate::args::AgentArgs;
use crate::console::{Console, escaped};
use crate::running;

/// Number of processes that are left at the same time.
const LEFT_AT_ONCE: usize = 16;

/// Runs the verb.
///
/// # Errors
/// The configuration cannot be used, or the outputs cannot be written.
pub(crate) fn run(
    args: &AgentArgs,
    embedded: EmbeddedAgents,
    console: &Console,
) -> Result<ExitCode> {
    let mut config = Arc::new(AgentConfig::read(&args.config)?);
    if args.check {
        return check(&config).map(|()| ExitCode::SUCCESS);
    }
    raise_descriptor_limit();
    let signals = Signals::take().context("cannot take signals over")?;
    loop {
        let (ended, joined) = record(&config, embedded, &signals, console)?;
        if ended != EndReason::Duration {
            service::stopping();
            leave(joined, console);
            return Ok(ExitCode::SUCCESS);
        }
        service::reloading();
        match AgentConfig::read(&args.config) {
            Ok(new) => config = Arc::new(new),
            Err(error) => {
                console.error(&error.context("the configuration stays as it was"));
            }
        }
        let unwanted = joined.into_iter().filter(|target| {
            let rule = config.rule_for(&ProcessFacts::of(target));
            rule.is_none_or(|(_, rule)| rule.configuration.is_none())
        });
        leave(unwanted.collect(), console);
    }
}

/// Records until a signal. Returns how it ended, and the processes that the agent was loaded into.
fn record(
    config: &Arc<AgentConfig>,
    embedded: EmbeddedAgents,
    signals: &Signals,
    console: &Console,
) -> Result<(EndReason, Vec<Target>)> {
    store::check_outputs(&config.args)?;
    let mut store = Store::prepare(&config.args)?;
    store.begin(&config.args, &name(), console);
    let mut session = Session::without_command(signals, console);
    session.end_signal = Some(Signal::SIGHUP);
    session.prints_notes = true;
    session.finder = Some(Finder::start(Arc::clone(config), embedded)?);
    let ended = session.record(store.blocks()?, None)?;
    let finder = session.finder.take();
    // Closes the remaining streams.
    drop(session);
    let joined = finder.map_or_else(Vec::new, |finder| finder.finish(console));
    if let Store::Intervals(rotation) = store
        && let Err(error) = rotation.finish(console)
    {
        console.error(&error);
    }
    Ok((ended, joined))
}

/// First part of the names of files: this machine's.
fn name() -> String {
    let name = rustix::system::uname();
    let host = name.nodename().to_string_lossy().into_owned();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    format!("sidewalk-{}.swk", host.replace(|c| !is_plain(c), "_"))
}

/// Makes the agent detach from these processes.
fn leave(targets: Vec<Target>, console: &Console) {
    let idle = running::at_once(targets, LEFT_AT_ONCE, |target| {
        match attach::detach(&target) {
            outcome @ DetachOutcome::Idle(_) => Some((target.pid(), outcome)),
            DetachOutcome::Detached | DetachOutcome::Unknown => None,
        }
    });
    for (pid, outcome) in idle {
        attach::report_detach(pid, &outcome, console);
    }
}

/// Each recorded process takes a few descriptors.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With fewer of them, fewer processes are recorded, and the others are named.
    let _refused = setrlimit(Resource::Nofile, limit);
}

/// Prints which of the running processes would be recorded.
fn check(config: &AgentConfig) -> Result<()> {
    let mut lines = Vec::new();
    for target in running::targets()? {
        let facts = ProcessFacts::of(&target);
        let decision = match config.rule_for(&facts) {
            None => "no rule: not recorded".to_owned(),
            Some((at, rule)) => match rule.configuration {
                None => format!("rule {}: not recorded", at + 1),
                Some(_) => format!("rule {}: recorded", at + 1),
            },
        };
        lines.push((target.pid(), escaped(&facts.name), decision));
    }
    lines.sort_unstable();
    let mut text = String::from("The configuration is right. Running .NET processes:\n");
    for (pid, name, decision) in &lines {
        text.push_str(&format!("{pid:>8}  {name}: {decision}\n"));
    }
    if lines.is_empty() {
        text.push_str("     none\n");
    }
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
