//! Adds the names and lines that were looked up to a profile.
//!
//! Inlined callees become frames of their own, so stacks grow. Stacks are rebuilt in order, which
//! keeps the model's invariant: a parent's index is smaller than its child's.

use std::collections::{HashMap, HashSet};

use profile::Profile;
use profile::model::{Frame, FrameId, Location, Module, Stack, StackId, StringId};

use crate::{LookupOptions, LookupReport, Symbolizer};

/// Looks up every frame of `profile` that still has a location: native frames get names, lines
/// and inlined callees, managed frames get lines.
pub fn symbolize(profile: &mut Profile, options: &LookupOptions) -> LookupReport {
    let mut symbolizer = Symbolizer::new(options.clone());
    if options.native {
        let looked_up = profile
            .frames
            .iter()
            .filter_map(|frame| match frame.location {
                Location::Svma(_) => {
                    let module = profile.modules.get(frame.module?.0 as usize)?;
                    let name = profile.strings.get(frame.name.0 as usize)?;
                    // Named functions are looked up only if more than a name is wanted.
                    (!is_named(name, module)).then_some(module)
                }
                _ => None,
            });
        symbolizer.open(&distinct(looked_up));
    }
    let mut strings = StringInterner::new(std::mem::take(&mut profile.strings));

    // Replacements of each old frame, innermost first. Never empty.
    let mut frames: Vec<Frame> = Vec::with_capacity(profile.frames.len());
    let mut interned: HashMap<Frame, FrameId> = HashMap::with_capacity(profile.frames.len());
    let mut replacement: Vec<Vec<FrameId>> = Vec::with_capacity(profile.frames.len());
    for frame in &profile.frames {
        let expanded = expand(frame, profile, options, &mut symbolizer, &mut strings);
        let ids = expanded.into_iter().map(|frame| {
            *interned.entry(frame).or_insert_with_key(|frame| {
                frames.push(frame.clone());
                FrameId(index(frames.len() - 1))
            })
        });
        replacement.push(ids.collect());
    }

    let mut stacks: Vec<Stack> = Vec::with_capacity(profile.stacks.len());
    let mut known: HashMap<Stack, StackId> = HashMap::with_capacity(profile.stacks.len());
    let mut moved: Vec<StackId> = Vec::with_capacity(profile.stacks.len());
    for stack in &profile.stacks {
        let mut parent = stack.parent.map(|old| moved[old.0 as usize]);
        for frame in replacement[stack.frame.0 as usize].iter().rev() {
            let new = Stack {
                parent,
                frame: *frame,
            };
            let id = *known.entry(new).or_insert_with(|| {
                stacks.push(new);
                StackId(index(stacks.len() - 1))
            });
            parent = Some(id);
        }
        // Every replacement has at least one frame, so there is a stack.
        moved.push(parent.unwrap_or(StackId(0)));
    }
    for sample in &mut profile.samples {
        sample.stack = moved[sample.stack.0 as usize];
        sample.logical = sample.logical.map(|stack| moved[stack.0 as usize]);
    }
    profile.frames = frames;
    profile.stacks = stacks;
    profile.strings = strings.all;
    symbolizer.report()
}

/// Each module once.
fn distinct<'m>(modules: impl Iterator<Item = &'m Module>) -> Vec<&'m Module> {
    let mut seen = HashSet::new();
    modules
        .filter(|module| seen.insert(std::ptr::from_ref(*module)))
        .collect()
}

/// The frames that stand for `frame`, innermost first.
fn expand(
    frame: &Frame,
    profile: &Profile,
    options: &LookupOptions,
    symbolizer: &mut Symbolizer,
    strings: &mut StringInterner,
) -> Vec<Frame> {
    let module = frame
        .module
        .and_then(|id| profile.modules.get(id.0 as usize));
    match (frame.location, module) {
        (Location::Svma(svma), Some(module)) if options.native => {
            // The recording may have a name and no line; the lines may have been fetched since.
            let is_named = is_named(&strings.all[frame.name.0 as usize], module);
            if is_named && !symbolizer.is_fetched(module) {
                return vec![Frame {
                    location: Location::None,
                    ..frame.clone()
                }];
            }
            let symbols = symbolizer.native(module, svma);
            let outermost = symbols.len().saturating_sub(1);
            let expanded: Vec<Frame> = symbols
                .iter()
                .enumerate()
                .map(|(position, symbol)| Frame {
                    name: strings.intern(&symbol.name),
                    file: (!symbol.file.is_empty()).then(|| strings.intern(&symbol.file)),
                    line: symbol.line,
                    inlined: position < outermost,
                    location: Location::None,
                    ..frame.clone()
                })
                .collect();
            match expanded.is_empty() {
                false => expanded,
                true if is_named => vec![Frame {
                    location: Location::None,
                    ..frame.clone()
                }],
                true => vec![unnamed(frame, module, svma, symbolizer, strings)],
            }
        }
        (Location::None, Some(module)) if options.native && !module.managed => {
            let name = &strings.all[frame.name.0 as usize];
            let found = start_from_name(name, module)
                .and_then(|start| symbolizer.native(module, start).last());
            vec![match found {
                // The place in the function is not known any more, so neither are the line and
                // what was inlined there.
                Some(symbol) => Frame {
                    name: strings.intern(&symbol.name),
                    ..frame.clone()
                },
                None => frame.clone(),
            }]
        }
        (Location::Il { token, offset }, Some(module)) => {
            let mut named = frame.clone();
            if options.signatures
                && let Some(found) = symbolizer.signature(module, token)
            {
                named.signature = Some(strings.intern(&found));
            }
            if options.managed_lines
                && offset != u32::MAX
                && let Some(found) = symbolizer.managed_line(module, token, offset)
            {
                named.file = Some(strings.intern(&found.file));
                named.line = found.line;
                named.location = Location::None;
            }
            vec![named]
        }
        (Location::Await { token, state }, Some(module)) => {
            let mut named = frame.clone();
            if options.managed_lines
                && let Some(found) = symbolizer.await_line(module, token, state)
            {
                named.file = Some(strings.intern(&found.file));
                named.line = found.line;
            }
            // The location stays: that it waits is told from it.
            vec![named]
        }
        _ => vec![frame.clone()],
    }
}

/// Name of a function without a name: its file and where it starts.
#[must_use]
pub fn unnamed_function_name(module: &Module, start: u64) -> String {
    format!("{}+{start:#x}", module.file_name())
}

/// Name of code of which nothing is known but its file.
pub(crate) fn unnamed_code_name(module: &Module) -> String {
    format!("{} (no symbols)", module.file_name())
}

/// Whether a name is none that stands for a missing one.
fn is_named(name: &str, module: &Module) -> bool {
    start_from_name(name, module).is_none() && name != unnamed_code_name(module)
}

/// The start in a name that [`unnamed_function_name`] made, when the program was recorded: perhaps
/// there are symbols now.
fn start_from_name(name: &str, module: &Module) -> Option<u64> {
    let start = name.strip_prefix(module.file_name())?.strip_prefix("+0x")?;
    u64::from_str_radix(start, 16).ok()
}

/// A frame without symbols. A place in its function's first byte where that can be told: samples in
/// one function are one row of a table then.
fn unnamed(
    frame: &Frame,
    module: &Module,
    svma: u64,
    symbolizer: &mut Symbolizer,
    strings: &mut StringInterner,
) -> Frame {
    // Where the file is not here, the recorder may have told.
    let Some(name) = symbolizer.unnamed(module, svma) else {
        let recorded = start_from_name(&strings.all[frame.name.0 as usize], module);
        return Frame {
            location: recorded.map_or(Location::None, Location::Svma),
            ..frame.clone()
        };
    };
    Frame {
        location: start_from_name(&name, module).map_or(Location::None, Location::Svma),
        name: strings.intern(&name),
        ..frame.clone()
    }
}

/// Ids are 32 bits wide in the model; memory ends long before they do.
fn index(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

struct StringInterner {
    all: Vec<String>,
    ids: HashMap<String, StringId>,
}

impl StringInterner {
    fn new(all: Vec<String>) -> Self {
        let ids = all
            .iter()
            .enumerate()
            .map(|(id, text)| (text.clone(), StringId(index(id))))
            .collect();
        Self { all, ids }
    }

    fn intern(&mut self, text: &str) -> StringId {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = StringId(index(self.all.len()));
        self.all.push(text.to_owned());
        self.ids.insert(text.to_owned(), id);
        id
    }
}
