//! `sidewalk diff`: what has changed between recordings, and rules that end a build by it.
//!
//! Composition only: what differs by more than chance is `profile::ops::diff`'s to say, how it looks `formats::diff`'s.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use formats::diff::Shown;
use profile::Profile;
use profile::ops::{self, Question};

use crate::args::DiffArgs;
use crate::console::{Console, shown};
use crate::output::{Old, write_whole};
use crate::saved;

/// Exit code where a rule of `--fail-on` holds: neither a failure of ours nor wrong usage.
const CHANGED: u8 = 3;

/// Runs the verb.
pub(crate) fn run(args: &DiffArgs, console: &Console) -> Result<ExitCode> {
    let (before, after) = match &args.files[..] {
        [before, after] => (Some(before), Some(after)),
        _ => (None, None),
    };
    let side = |first: Option<&PathBuf>, more: &[PathBuf]| -> Result<Vec<(String, Profile)>> {
        let all = first.into_iter().chain(more);
        all.map(|path| {
            let size = args.view.limits.size.max_size;
            let profile = saved::load(path, size, args.view.names.signatures)?.profile;
            let profile = ops::seen_by(profile, args.view.stacks.stacks);
            Ok((shown(path), saved::viewed(profile, &args.view)?))
        })
        .collect()
    };
    let (profile, first_after) = ops::both(side(before, &args.before)?, side(after, &args.after)?);
    saved::check_event(&profile, args.event)?;
    let Some(event) = args.event.or_else(|| ops::main_event(&profile)) else {
        bail!("there are no samples in these recordings");
    };
    let question = Question {
        event,
        by: args.by,
        per: args.per,
        error: ops::ERROR,
    };
    let diff = ops::diff(&profile, first_after, question);
    let mut text = Vec::new();
    if args.json {
        formats::diff::json(&profile, &diff, question, &mut text)?;
    } else {
        let shown = Shown {
            top: args.top,
            all: args.all,
        };
        formats::diff::text(&profile, &diff, question, shown, &mut text)?;
    }
    match &args.output {
        None => saved::print(&String::from_utf8_lossy(&text))?,
        Some(path) => {
            write_whole(path, Old::Kept, |out| Ok(out.write_all(&text)?))?;
            console.note(format_args!("wrote {}", shown(path)));
        }
    }
    let mut code = ExitCode::SUCCESS;
    for rule in &args.fail_on {
        let mut rows = diff.rows.iter().filter(|row| rule.holds(row));
        if let Some(row) = rows.next() {
            let more = match rows.count() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let name = formats::visible(&row.group.label);
            console.warning(format_args!(
                "{} holds: {name}{more}",
                formats::visible(&rule.text)
            ));
            code = ExitCode::from(CHANGED);
        }
    }
    Ok(code)
}
