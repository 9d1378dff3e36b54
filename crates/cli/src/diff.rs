//! `sidewalk diff`: shows changes between recordings, and fails a build by rules on them.
//!
//! `profile::ops::diff` decides which differences are significant. `formats::diff` formats them.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use formats::diff::RowSelection;
use profile::Profile;
use profile::ops::{self, DiffRequest};

use crate::args::{DiffArgs, DiffOutputFormat};
use crate::console::{Console, escaped};
use crate::output::{ExistingMode, write_whole};
use crate::saved;

/// Exit code if a rule of `--fail-on` holds, distinct from failure and wrong usage.
const CHANGED: u8 = 3;

/// Runs the verb.
pub(crate) fn run(args: &DiffArgs, console: &Console) -> Result<ExitCode> {
    let (before, after) = match &args.files[..] {
        [before, after] => (Some(before), Some(after)),
        _ => (None, None),
    };
    // A new method occurs in one recording only. So one recording with remaining samples is enough.
    let (mut is_left, mut nothing) = (false, None);
    let mut side = |first: Option<&PathBuf>, more: &[PathBuf]| -> Result<Vec<(String, Profile)>> {
        let all = first.into_iter().chain(more);
        all.map(|path| {
            let size = args.view.limits.size.max_size;
            let profile = saved::load(path, size, args.view.names.signatures)?;
            let profile = ops::with_stack_view(profile, args.view.stacks.stacks);
            let chosen = saved::filter_samples(profile, &args.view)?;
            is_left |= chosen.nothing_left.is_none();
            nothing = nothing.take().or(chosen.nothing_left);
            Ok((
                escaped(path),
                saved::trim_frames(chosen.profile, &args.view)?,
            ))
        })
        .collect()
    };
    let (profile, first_after) =
        ops::merge_sides(side(before, &args.before)?, side(after, &args.after)?);
    if let Some(why) = nothing.filter(|_| !is_left) {
        bail!("{why}");
    }
    saved::check_event(&profile, args.event, saved::THIS_RECORDING)?;
    let Some(event) = args.event.or_else(|| ops::main_event(&profile)) else {
        bail!("there are no samples in these recordings");
    };
    let request = DiffRequest {
        event,
        by: args.by,
        per: args.per,
        error: ops::ERROR,
    };
    let diff = ops::diff(&profile, first_after, request);
    let table = RowSelection {
        top: args.top,
        all: args.all,
    };
    let write = |format: DiffOutputFormat, out: &mut dyn Write| match format {
        DiffOutputFormat::Text => formats::diff::text(&profile, &diff, request, table, out),
        DiffOutputFormat::Json => formats::diff::json(&profile, &diff, request, out),
        DiffOutputFormat::Html => formats::diff::html(&profile, &diff, request, out),
    };
    for output in &args.outputs {
        write_whole(&output.path, ExistingMode::Kept, |out| {
            Ok(write(output.format, out)?)
        })
        .with_context(|| format!("cannot write {}", escaped(&output.path)))?;
        console.note(format_args!("wrote {}", escaped(&output.path)));
    }
    if args.json || args.outputs.is_empty() {
        let mut text = Vec::new();
        let format = if args.json {
            DiffOutputFormat::Json
        } else {
            DiffOutputFormat::Text
        };
        write(format, &mut text)?;
        saved::print(&String::from_utf8_lossy(&text))?;
    }
    let mut code = ExitCode::SUCCESS;
    for rule in &args.fail_on {
        let mut rows = diff.rows.iter().filter(|row| rule.is_exceeded(row));
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
