//! Appends names of native functions and lines of managed ones to a finished recording.
//!
//! The recording can then be read where the program's files are not available.
//! Invariant: the agents' data is left unchanged.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::BufReader;

use anyhow::Result;
use profile::model::Module;
use recording::{Frame, Item, ModuleKind, ProcessKey, Reader, Record, Writer};
use symbolize::{NativeSymbol, Symbolizer};

use super::sink::Sink;
use crate::names;

/// Frames of one process whose names or lines can be looked up, as defined in the recording.
#[derive(Default)]
struct Lookups {
    modules: HashMap<u32, Module>,
    /// Method id to (module, token).
    methods: HashMap<u32, (u32, u32)>,
    frames: Vec<(u32, CodeLocation)>,
    /// Frames that already have a symbol.
    done: HashSet<u32>,
}

/// The location of a frame's code.
enum CodeLocation {
    Native { module: u32, svma: u64 },
    Managed { method: u32, il_offset: u32 },
    Await { method: u32, state: i32 },
}

/// Looks up every frame of a recording and appends the results.
///
/// # Errors
/// The recording cannot be read back.
pub(super) fn append_to(sink: &mut Sink) -> Result<()> {
    append(sink, &mut Symbolizer::new(names::options()))
}

/// As [`append_to`], with a symbolizer that keeps what it has looked up.
///
/// # Errors
/// The recording cannot be read back.
pub(super) fn append(sink: &mut Sink, symbolizer: &mut Symbolizer) -> Result<()> {
    let processes = read(sink)?;
    let mut opened = HashSet::new();
    let modules = processes.iter().flat_map(|(process, lookups)| {
        let places = lookups.frames.iter();
        places.filter_map(move |(frame, place)| match place {
            CodeLocation::Native { module, .. } if !lookups.done.contains(frame) => {
                Some((process, module, lookups.modules.get(module)?))
            }
            _ => None,
        })
    });
    let modules: Vec<&Module> = modules
        .filter(|(process, id, _)| opened.insert((*process, *id)))
        .map(|(.., module)| module)
        .collect();
    symbolizer.open(&modules);
    for (process, lookups) in &processes {
        let mut writer = sink.writer(*process);
        let mut blocks = Vec::new();
        for (frame, place) in &lookups.frames {
            if lookups.done.contains(frame) {
                continue;
            }
            match *place {
                CodeLocation::Native { module, svma } => {
                    let Some(module) = lookups.modules.get(&module) else {
                        continue;
                    };
                    let found = symbolizer.native(module, svma);
                    for NativeSymbol { name, file, line } in found {
                        push(&mut writer, &mut blocks, *frame, name, file, *line);
                    }
                    // Without symbols, the function's start at least merges samples in one function
                    // into one row. A reader with symbols looks the start up.
                    if found.is_empty()
                        && let Some(name) = symbolizer.unnamed(module, svma)
                    {
                        push(&mut writer, &mut blocks, *frame, &name, "", 0);
                    }
                }
                CodeLocation::Managed { method, .. } | CodeLocation::Await { method, .. } => {
                    let Some((module, token)) = lookups.methods.get(&method) else {
                        continue;
                    };
                    let Some(module) = lookups.modules.get(module) else {
                        continue;
                    };
                    let found = match *place {
                        CodeLocation::Await { state, .. } => {
                            symbolizer.await_line(module, *token, state)
                        }
                        CodeLocation::Managed { il_offset, .. } => {
                            symbolizer.managed_line(module, *token, il_offset)
                        }
                        CodeLocation::Native { .. } => None,
                    };
                    if let Some(found) = found {
                        let (file, line) = (&found.file, found.line);
                        push(&mut writer, &mut blocks, *frame, "", file, line);
                    }
                }
            }
        }
        writer.take_block_into(&mut blocks);
        sink.append(&blocks);
    }
    Ok(())
}

fn read(sink: &Sink) -> Result<Vec<(ProcessKey, Lookups)>> {
    let file = File::open(sink.path())?;
    let mut reader =
        Reader::open(BufReader::with_capacity(1 << 16, file))?.with_unpack_limit(u64::MAX);
    let mut processes: HashMap<ProcessKey, Lookups> = HashMap::new();
    while let Some(item) = reader.next_item()? {
        let Item::Record(process, record) = item else {
            continue;
        };
        match record {
            Record::Module {
                module,
                kind,
                path,
                bias,
                id_bytes,
                file_offset,
                ..
            } => {
                let known = Module {
                    path: path.into_owned(),
                    managed: kind == ModuleKind::Managed,
                    id_bytes: id_bytes.into_owned(),
                    bias,
                    file_offset,
                };
                let lookups = processes.entry(process).or_default();
                lookups.modules.insert(module, known);
            }
            Record::Method {
                method,
                module: Some(module),
                token,
                ..
            } => {
                let lookups = processes.entry(process).or_default();
                lookups.methods.insert(method, (module, token));
            }
            Record::Frame { frame, value } => {
                let place = match value {
                    Frame::Native { module, svma } => CodeLocation::Native { module, svma },
                    Frame::Managed {
                        method,
                        il_offset: Some(il_offset),
                        ..
                    } => CodeLocation::Managed { method, il_offset },
                    Frame::Async { method, state } => CodeLocation::Await { method, state },
                    _ => continue,
                };
                let lookups = processes.entry(process).or_default();
                lookups.frames.push((frame, place));
            }
            Record::Symbol { frame, .. } => {
                processes.entry(process).or_default().done.insert(frame);
            }
            _ => {}
        }
    }
    let mut processes: Vec<_> = processes.into_iter().collect();
    processes.sort_by_key(|(process, _)| *process);
    Ok(processes)
}

fn push(writer: &mut Writer, blocks: &mut Vec<u8>, frame: u32, name: &str, file: &str, line: u32) {
    let record = Record::Symbol {
        frame,
        name: name.into(),
        file: file.into(),
        line,
    };
    writer.push_into(&record, blocks);
}
