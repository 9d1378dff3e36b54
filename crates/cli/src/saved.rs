//! Verbs on existing recordings (`report`, `convert`, `inspect`), and loading for other verbs.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use formats::{Format, OutputOptions};
use profile::{Import, Profile, Totals};
use recording::{Event, Reader};
use symbolize::SymbolSource;

use crate::args::{ConvertArgs, InspectArgs, NativeFrames, ReportArgs, TimeRange, View};
use crate::console::{Console, escaped};
use crate::filter_args::FilteredProfile;
use crate::names;
use crate::output::{Destination, ExistingMode, OutputKind, write_whole};
use crate::sources;

/// Maximum number of notes on a recording that are printed. The rest is only counted.
const MAX_NOTES: usize = 5;

/// Reads the recording at `path` and names its frames.
///
/// # Errors
/// The file cannot be read, or is not a recording. A damaged recording is read as far as possible,
/// and its notes report the damage.
pub(crate) fn load(path: &Path, size: Option<u64>, signatures: bool) -> Result<Profile> {
    let mut profile = read_for_lookup(path, size)?;
    let options = symbolize::LookupOptions {
        signatures,
        ..names::options()
    };
    symbolize::symbolize(&mut profile, &options);
    Ok(profile)
}

/// Reads the recordings at `paths` as one and names their frames.
///
/// # Errors
/// As [`load`], for the first that cannot be read.
pub(crate) fn load_all(paths: &[PathBuf], size: Option<u64>, signatures: bool) -> Result<Profile> {
    let mut all = Vec::with_capacity(paths.len());
    for path in paths {
        let name = escaped(path).to_string();
        all.push((name, load(path, size, signatures)?));
    }
    Ok(profile::merge(all))
}

/// Reads the recording at `path`, with the names that it contains.
///
/// # Errors
/// As [`load`].
pub(crate) fn read(path: &Path, size: Option<u64>) -> Result<Profile> {
    read_with(path, size, Import::read)
}

/// As [`read`], for callers that look names up.
///
/// # Errors
/// As [`load`].
pub(crate) fn read_for_lookup(path: &Path, size: Option<u64>) -> Result<Profile> {
    read_with(path, size, Import::read_with_locations)
}

/// Reads the totals of the recording at `path`, with little memory.
///
/// # Errors
/// As [`load`].
pub(crate) fn totals(path: &Path, size: Option<u64>) -> Result<Totals> {
    read_with(path, size, Import::totals)
}

fn read_with<T>(
    path: &Path,
    size: Option<u64>,
    import: fn(Reader<BufReader<File>>) -> io::Result<T>,
) -> Result<T> {
    let read = || -> Result<T> {
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            bail!("it is a folder");
        }
        let mut reader = Reader::open(BufReader::with_capacity(1 << 16, file))?;
        if let Some(size) = size {
            reader = reader.with_unpack_limit(size);
        }
        import(reader).map_err(|error| match error.kind() {
            // From our own limit: the file system does not refuse to read.
            io::ErrorKind::FileTooLarge => {
                anyhow!("{error}.\nIf it is one of yours, say --max-size 1g to read it")
            }
            _ => error.into(),
        })
    };
    read().with_context(|| format!("cannot read {}", escaped(path)))
}

/// Removes native frames, unless they are wanted.
pub(crate) fn apply_native(profile: Profile, native: &NativeFrames) -> Profile {
    if native.is_shown() {
        profile
    } else {
        profile::ops::without_native(profile)
    }
}

/// Applies the view that the user chose: signatures in names, the chosen times, processes, threads
/// and stacks, native frames, and the maximum depth from the leaf.
///
/// # Errors
/// The range of time is empty, nothing is left, or stacks cannot be cut.
pub(crate) fn apply_view(profile: Profile, view: &View, event: Option<Event>) -> Result<Profile> {
    let profile = trim_frames(filter_samples(profile, view)?.some()?, view)?;
    if view.filter.is_any_given() {
        check_event(&profile, event, "what is left of this recording")?;
    }
    Ok(profile)
}

/// The first part of [`apply_view`]: selects samples.
pub(crate) fn filter_samples(profile: Profile, view: &View) -> Result<FilteredProfile> {
    let profile = match view.names.signatures {
        true => profile::ops::with_signatures(profile),
        false => profile,
    };
    let profile = restrict_to_range(profile, &view.range)?;
    let profile = profile::ops::with_runtime_work(profile);
    Ok(view.filter.apply(profile, view.stacks.stacks))
}

/// The second part of [`apply_view`]: selects frames.
pub(crate) fn trim_frames(profile: Profile, view: &View) -> Result<Profile> {
    let profile = apply_native(profile, &view.native);
    match view.limits.max_depth {
        Some(depth) => profile::ops::cut(profile, depth).map_err(anyhow::Error::msg),
        None => Ok(profile),
    }
}

/// Keeps only samples in a range of time.
///
/// # Errors
/// The range is empty.
fn restrict_to_range(profile: Profile, range: &TimeRange) -> Result<Profile> {
    if range.from.is_none() && range.to.is_none() {
        return Ok(profile);
    }
    if let (Some(from), Some(to)) = (range.from, range.to)
        && from >= to
    {
        bail!("--from must be before --to");
    }
    let begin = profile::ops::begin_ns(&profile);
    let at = |offset: Duration| {
        begin.saturating_add(u64::try_from(offset.as_nanos()).unwrap_or(u64::MAX))
    };
    let filter = profile::ops::Filter {
        from_ns: range.from.map(at),
        until_ns: range.to.map(at),
        ..profile::ops::Filter::default()
    };
    Ok(filter.apply(profile))
}

/// Prints on stderr the recording's notes for readers of the results.
pub(crate) fn print_notes(profile: &Profile, console: &Console) {
    let notes = &profile.health.notes;
    for note in notes.iter().take(MAX_NOTES) {
        console.warning(formats::visible(note));
    }
    if notes.len() > MAX_NOTES {
        let more = notes.len() - MAX_NOTES;
        console.warning(format_args!("{more} more such notes: see sidewalk inspect"));
    }
}

/// Prints how much of a recording was selected, unless all of it was.
pub(crate) fn print_filter_note(profile: &Profile, view: &View, console: &Console) {
    let made = view.filter.is_any_given();
    if let Some(note) = profile.health.notes.first().filter(|_| made) {
        console.note(formats::visible(note));
    }
}

/// Runs `sidewalk report`.
pub(crate) fn report(args: &ReportArgs) -> Result<()> {
    let view = &args.view;
    let profile = load_all(
        &args.files,
        view.limits.size.max_size,
        view.names.signatures,
    )?;
    check_event(&profile, args.event, THIS_RECORDING)?;
    // The report contains the notes.
    let profile = apply_view(profile, view, args.event)?;
    let profile = profile::ops::with_stack_view(profile, view.stacks.stacks);
    let options = OutputOptions {
        event: args.event,
        top: args.top,
        tree: args.tree,
        by: args.by,
        sort: args.sort,
        stacks: view.stacks.stacks,
        json: args.json,
        ..OutputOptions::default()
    };
    print_report(&profile, &options)
}

/// The name of the recording in messages of [`check_event`].
pub(crate) const THIS_RECORDING: &str = "this recording";

/// Checks that the recording has samples of the requested event.
///
/// # Errors
/// The recording, named `of` in the message, has no such samples.
pub(crate) fn check_event(profile: &Profile, requested: Option<Event>, of: &str) -> Result<()> {
    let Some(requested) = requested else {
        return Ok(());
    };
    let events = profile::ops::events(profile);
    if events.iter().any(|(event, _)| *event == requested) {
        return Ok(());
    }
    let names: Vec<_> = events.iter().map(|(event, _)| event.name()).collect();
    let has = match &names[..] {
        [] => "no samples at all".to_owned(),
        names => format!("samples of {}", names.join(", ")),
    };
    bail!(
        "there are no {} samples in {of}; it has {has}",
        requested.name()
    )
}

/// Prints the report on stdout.
fn print_report(profile: &Profile, options: &OutputOptions) -> Result<()> {
    print(&report_text(profile, options)?)
}

/// Returns the report.
pub(crate) fn report_text(profile: &Profile, options: &OutputOptions) -> Result<String> {
    let mut text = Vec::new();
    formats::text::write(profile, options, &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Prints a text on stdout, which may be a terminal. Escapes control characters that `formats`
/// should have escaped but has not.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(formats::visible_lines(text).as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Runs `sidewalk convert`.
pub(crate) fn convert(args: &ConvertArgs, console: &Console) -> Result<()> {
    for output in &args.outputs {
        output.check_writable()?;
    }
    // The page has a switch for signatures.
    let has_page = args
        .outputs
        .iter()
        .any(|output| output.kind == OutputKind::Converted(Format::Html));
    let view = &args.view;
    let profile = load_all(
        &args.files,
        view.limits.size.max_size,
        has_page || view.names.signatures,
    )?;
    check_event(&profile, args.event, THIS_RECORDING)?;
    print_notes(&profile, console);
    let mut profile = apply_view(profile, view, args.event)?;
    if !has_page {
        // Only the page shows both stacks of a sample. Other outputs would copy the profile.
        profile = profile::ops::with_stack_view(profile, view.stacks.stacks);
    }
    print_filter_note(&profile, view, console);
    let options = OutputOptions {
        event: args.event,
        stacks: view.stacks.stacks,
        sources: match args.text.sources {
            true => sources::read(&profile),
            false => Default::default(),
        },
        ..OutputOptions::default()
    };
    write_outputs(&profile, &options, &args.outputs, console)
}

/// Writes the converted files among `outputs`. A failure does not prevent the other files.
///
/// # Errors
/// The first failure.
pub(crate) fn write_outputs(
    profile: &Profile,
    options: &OutputOptions,
    outputs: &[Destination],
    console: &Console,
) -> Result<()> {
    let mut first_failure = None;
    for output in outputs {
        let OutputKind::Converted(format) = output.kind else {
            continue;
        };
        let written = write_whole(&output.path, ExistingMode::Kept, |out| {
            Ok(formats::write(format, profile, options, out)?)
        });
        match written {
            Ok(()) if output.is_stdout() => {}
            Ok(()) => console.note(format_args!("wrote {}", escaped(&output.path))),
            Err(error) => {
                let error = error.context(format!("cannot write {}", escaped(&output.path)));
                if first_failure.is_none() {
                    first_failure = Some(error);
                } else {
                    console.error(&error);
                }
            }
        }
    }
    first_failure.map_or(Ok(()), Err)
}

/// Runs `sidewalk inspect`.
pub(crate) fn inspect(args: &InspectArgs) -> Result<()> {
    let Totals {
        mut profile,
        counts,
    } = totals(&args.file, args.size.max_size)?;
    let looked_up = symbolize::symbolize(&mut profile, &names::options());
    let text = if args.json {
        formats::inspect_json(&profile, &counts) + "\n"
    } else {
        let text = formats::inspect_text(&profile, &counts);
        // The honest line must be the last one.
        let honest = formats::honest_line(&profile.health);
        let body = text.trim_end().strip_suffix(&honest).unwrap_or(&text);
        format!("{body}{}{honest}\n", unnamed(&looked_up))
    };
    print(&text)
}

/// Lines about the modules in which functions or lines could not be named, and why.
fn unnamed(looked_up: &symbolize::LookupReport) -> String {
    let mut text = String::new();
    // A single-file app has a hundred modules that exist in no file of their own.
    let mut without_file: Vec<(&str, u64)> = Vec::new();
    for module in &looked_up.modules {
        let missing = module.lookups.saturating_sub(module.found);
        let why = match &module.source {
            _ if missing == 0 => continue,
            // Most modules of the framework have no PDB, but their methods have names.
            SymbolSource::NoSymbols if module.managed => continue,
            SymbolSource::Pdb(_) | SymbolSource::EmbeddedPdb => continue,
            SymbolSource::PdbOfOtherBuild(path) => {
                format!("{} belongs to another build", escaped(path))
            }
            SymbolSource::Changed => "the file has changed since it was recorded".to_owned(),
            SymbolSource::Unreadable(_) if !Path::new(&module.path).exists() => {
                without_file.push((&module.path, missing));
                continue;
            }
            SymbolSource::Unreadable(why) => why.clone(),
            SymbolSource::ExportsOnly | SymbolSource::NoSymbols => {
                "it has no symbols, and no debug file was found".to_owned()
            }
            _ => "not in its symbols".to_owned(),
        };
        let what = if module.managed { "line" } else { "place" };
        let what = formats::plural(missing, what);
        text.push_str(&format!(
            "unnamed     {what} in {}: {}\n",
            formats::visible(&module.path),
            formats::visible(&why)
        ));
    }
    if let [(first, _), others @ ..] = &without_file[..] {
        let missing: u64 = without_file.iter().map(|(_, missing)| missing).sum();
        let more = match others.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let what = match missing {
            1 => "1 place or line".to_owned(),
            many => format!("{many} places or lines"),
        };
        text.push_str(&format!(
            "unnamed     {what} in {}{more}: there is no such file here\n",
            formats::visible(first)
        ));
    }
    text
}
