//! `sidewalk dump`: prints the stack and state of each thread of a process, or of a saved dump.
//!
//! A dump is a recording like any other. `record::dump` makes it and `formats` prints it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use profile::ops::StackView;

use crate::args::DumpArgs;
use crate::console::{Console, escaped};
use crate::record::EmbeddedAgents;
use crate::{record, saved};

/// Runs the verb.
pub(crate) fn run(args: &DumpArgs, embedded: EmbeddedAgents, console: &Console) -> Result<()> {
    let file = Path::new(&args.what);
    let profile = if is_recording(file) {
        if args.output.is_some() || args.stay || args.suspended {
            bail!(
                "--output, --stay and --async need a process; {} is a recording",
                escaped(file)
            );
        }
        saved::load(file, args.size.max_size, false)?
    } else {
        let word = args.what.to_str().with_context(|| {
            format!(
                "{} is no process, and no recording that can be read",
                escaped(file)
            )
        })?;
        record::dump(word, args, embedded, console)?
    };
    if !formats::has_dump(&profile) {
        bail!(
            "{} has no dump: it holds samples; sidewalk report shows them",
            escaped(file)
        );
    }
    let profile = args.filter.apply(profile, StackView::Logical).some()?;
    let profile = saved::apply_native(profile, &args.native);
    saved::print(&if args.json {
        formats::dump_json(&profile) + "\n"
    } else {
        formats::dump_text(&profile)
    })
}

/// Whether the argument is a recording. A number is always a process. A name is a process too if
/// the file of that name is the program itself.
fn is_recording(what: &Path) -> bool {
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    let is_program = || {
        let mut begin = [0; 4];
        let file = File::open(what);
        file.and_then(|mut file| file.read_exact(&mut begin))
            .is_ok()
            && begin == *b"\x7fELF"
    };
    !what.to_str().is_some_and(is_number)
        && (what.is_file() && !is_program() || what.extension().is_some_and(|of| of == "swk"))
}
