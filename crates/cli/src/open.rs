//! `sidewalk open`, and `record --open`: shows a recording's HTML page in a browser.
//!
//! `formats::html` makes the page.
//! Invariants: only its owner can read the page's file, and no other user can have made that file
//! before. The path is printed, whether or not a browser opens.

use std::env::{self, var_os};
use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use formats::OutputOptions;
use profile::Profile;

use crate::args::OpenArgs;
use crate::console::{Console, escaped};
use crate::saved;
use crate::sources;

/// Runs the verb.
pub(crate) fn run(args: &OpenArgs, console: &Console) -> Result<()> {
    let size = args.view.limits.size.max_size;
    // The page has a switch for signatures.
    let profile = saved::load_all(&args.files, size, true)?;
    saved::check_event(&profile, args.event, saved::THIS_RECORDING)?;
    saved::print_notes(&profile, console);
    let profile = saved::apply_view(profile, &args.view, args.event)?;
    saved::print_filter_note(&profile, &args.view, console);
    let options = OutputOptions {
        event: args.event,
        stacks: args.view.stacks.stacks,
        sources: match args.text.sources {
            true => sources::read(&profile),
            false => Default::default(),
        },
        ..OutputOptions::default()
    };
    let (path, opened) = page(&profile, &options)?;
    match opened {
        Ok(()) => console.note(format_args!("opened {}", escaped(&path))),
        Err(why) => {
            console.note(format_args!("{why}: open this file in a browser"));
            saved::print(&format!("{}\n", escaped(&path)))?;
        }
    }
    Ok(())
}

/// Opens the page at the end of `record --open`. Stdout belongs to the recorded program.
pub(crate) fn after_recording(profile: &Profile, console: &Console) -> Result<()> {
    let (path, opened) = page(profile, &OutputOptions::default())?;
    match opened {
        Ok(()) => console.note(format_args!("opened {}", escaped(&path))),
        Err(why) => {
            console.warning(format_args!("{why}: open {} in a browser", escaped(&path)));
        }
    }
    Ok(())
}

/// Writes the page into a file of its own and opens it in a browser. Returns the path, and why no
/// browser was started.
///
/// # Errors
/// The file cannot be written.
fn page(profile: &Profile, options: &OutputOptions) -> Result<(PathBuf, Result<(), String>)> {
    let path = write(profile, options)
        .with_context(|| format!("cannot write a page into {}", escaped(env::temp_dir())))?;
    let opened = start_browser(&path);
    Ok((path, opened))
}

fn write(profile: &Profile, options: &OutputOptions) -> io::Result<PathBuf> {
    let file = tempfile::Builder::new()
        .prefix("sidewalk-")
        .suffix(".html")
        .tempfile()?;
    let mut out = BufWriter::new(file.as_file());
    formats::html::write(profile, options, &mut out)?;
    out.flush()?;
    drop(out);
    Ok(file.into_temp_path().keep()?)
}

/// Starts the browser without waiting for it: some browsers return only when the window is closed.
fn start_browser(path: &Path) -> Result<(), String> {
    let has = |name: &str| var_os(name).is_some_and(|value| !value.is_empty());
    if !has("DISPLAY") && !has("WAYLAND_DISPLAY") {
        return Err("there is no display".to_owned());
    }
    let browser = var_os("BROWSER").filter(|browser| !browser.is_empty());
    let browser = browser.unwrap_or_else(|| OsString::from("xdg-open"));
    let started = Command::new(&browser)
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C at our terminal must not reach the browser.
        .process_group(0)
        .spawn();
    match started {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{} does not start ({error})", escaped(&browser))),
    }
}
