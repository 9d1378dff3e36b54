//! Puts the names of native functions into a finished recording, so that it can be read where the
//! program's files are not.
//!
//! It only appends: what the agents sent stays as it was.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::BufReader;

use anyhow::Result;
use profile::model::Module;
use recording::{Frame, Item, ModuleKind, ProcessKey, Pushed, Reader, Record, Writer};
use symbolize::{NativeSymbol, Options, Symbolizer};

use super::sink::Sink;

/// Native frames of one process, as the recording defines them.
#[derive(Default)]
struct Natives {
    modules: HashMap<u32, Module>,
    /// (frame, module, svma).
    frames: Vec<(u32, u32, u64)>,
    /// Frames that have a symbol already.
    named: HashSet<u32>,
}

/// Looks up every native frame of the recording and appends what was found.
///
/// # Errors
/// The recording cannot be read back.
pub(super) fn append(sink: &mut Sink) -> Result<()> {
    let natives = read(sink)?;
    let mut symbolizer = Symbolizer::new(Options::default());
    for (process, natives) in natives {
        let mut writer = sink.writer(process);
        let mut blocks = Vec::new();
        for (frame, module, svma) in &natives.frames {
            let Some(module) = natives.modules.get(module) else {
                continue;
            };
            if natives.named.contains(frame) {
                continue;
            }
            for symbol in symbolizer.native(module, *svma) {
                push(&mut writer, &mut blocks, *frame, symbol);
            }
        }
        writer.take_block_into(&mut blocks);
        sink.append(&blocks);
    }
    Ok(())
}

fn read(sink: &Sink) -> Result<Vec<(ProcessKey, Natives)>> {
    let file = File::open(sink.path())?;
    let mut reader = Reader::open(BufReader::with_capacity(1 << 16, file))?;
    let mut natives: HashMap<ProcessKey, Natives> = HashMap::new();
    while let Some(item) = reader.next_item()? {
        let Item::Record(process, record) = item else {
            continue;
        };
        match record {
            Record::Module {
                module,
                kind: ModuleKind::Native,
                path,
                bias,
                id_bytes,
                file_offset,
                ..
            } => {
                let known = Module {
                    path: path.into_owned(),
                    managed: false,
                    id_bytes: id_bytes.into_owned(),
                    bias,
                    file_offset,
                };
                natives
                    .entry(process)
                    .or_default()
                    .modules
                    .insert(module, known);
            }
            Record::Frame {
                frame,
                value: Frame::Native { module, svma },
            } => {
                let frames = &mut natives.entry(process).or_default().frames;
                frames.push((frame, module, svma));
            }
            Record::Symbol { frame, .. } => {
                natives.entry(process).or_default().named.insert(frame);
            }
            _ => {}
        }
    }
    let mut natives: Vec<_> = natives.into_iter().collect();
    natives.sort_by_key(|(process, _)| *process);
    Ok(natives)
}

fn push(writer: &mut Writer, blocks: &mut Vec<u8>, frame: u32, symbol: &NativeSymbol) {
    let record = Record::Symbol {
        frame,
        name: symbol.name.as_str().into(),
        file: symbol.file.as_str().into(),
        line: symbol.line,
    };
    match writer.push(&record) {
        Pushed::Kept => {}
        Pushed::FlushDue => {
            writer.take_block_into(blocks);
        }
        Pushed::Refused => {
            writer.take_block_into(blocks);
            // An empty block has room for any record.
            let _ = writer.push(&record);
        }
    }
}
