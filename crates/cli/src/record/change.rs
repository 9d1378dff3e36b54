//! Changes the event set of a running session (`record --pid PID --change -e LIST`).
//!
//! Sends the request to the agent's control socket. Nothing is recorded here.
//! Invariant: the printed event set is the one in the agent's reply.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use control::{keys, reply, verb};
use diagnostics::Target;

use super::attach::{connect_to_agent, new_request, targets};
use crate::args::RecordArgs;
use crate::console::Console;

/// Changes the events in all named processes.
pub(super) fn run(args: &RecordArgs, console: &Console) -> Result<ExitCode> {
    let targets = targets(&args.pids)?;
    let events: Vec<_> = args.distinct_events().iter().map(|e| e.name()).collect();
    let mut code = ExitCode::SUCCESS;
    for target in &targets {
        match change(target, &events.join(","), console) {
            Err(error) if targets.len() > 1 => {
                console.error(&error);
                code = ExitCode::FAILURE;
            }
            other => other?,
        }
    }
    Ok(code)
}

fn change(target: &Target, events: &str, console: &Console) -> Result<()> {
    let pid = target.pid();
    let Some(stream) = connect_to_agent(target)? else {
        bail!("process {pid} is not being recorded, so there is nothing to change");
    };
    let reply = control::send(
        &stream,
        &new_request(verb::CHANGE).with(keys::EVENTS, events),
    )
    .and_then(|()| control::receive(&stream))
    .with_context(|| format!("the agent in process {pid} does not answer"))?;
    let why = reply.get(keys::WHY).unwrap_or_default();
    if reply.verb != reply::OK {
        bail!(
            "the events of process {pid} cannot be changed: {}",
            formats::visible(why)
        );
    }
    if !why.is_empty() {
        console.warning(format_args!("process {pid}: {}", formats::visible(why)));
    }
    console.note(format_args!(
        "events of process {pid} from now on: {}",
        formats::visible(reply.get(keys::EVENTS).unwrap_or_default())
    ));
    Ok(())
}
