//! The file of a growing recording: appends blocks from agents and notes from the tool.
//!
//! Invariants: the file contains whole blocks only, even after a failed write. Only its owner can
//! read it.

use std::collections::{HashMap, HashSet};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use recording::{Block, BlockSplitter, ProcessKey, Record, Writer, file_header};
use tempfile::TempPath;

use crate::console::{Console, escaped};
use crate::output::open_resolved;

/// The destination of a session's blocks.
pub(super) trait BlockSink {
    /// Appends an agent's block.
    fn append_block(&mut self, block: &Block<'_>);

    /// Notes that the connection to a process has closed.
    fn disconnected(&mut self, _process: ProcessKey) {}

    /// The error that ended writing, if any. Nothing more is written after it.
    fn failure(&self) -> Option<&io::Error>;

    /// Number of bytes written.
    fn length(&self) -> u64;

    /// Remembers a note as seen by the user. Returns false if it was already.
    fn see_note(&mut self, text: &str) -> bool;

    /// Appends a note of the tool that the user has seen.
    fn note(&mut self, text: &str);

    /// Does what is due, and returns when to call it again.
    ///
    /// # Errors
    /// Those of the system.
    fn turn(&mut self, _console: &Console) -> Result<Option<Instant>> {
        Ok(None)
    }
}

/// A recording that is being written.
pub(super) struct Sink {
    file: File,
    path: PathBuf,
    /// Removes the file on drop, unless the recording was kept.
    temporary: Option<TempPath>,
    /// Length of the whole blocks in the file, in bytes.
    length: u64,
    blocks: u64,
    /// The sequence number of the next block of each process.
    next: HashMap<ProcessKey, u32>,
    failure: Option<io::Error>,
    /// Notes that the user has seen.
    seen_notes: HashSet<String>,
}

impl Sink {
    /// Records into the file at `path`, which exists and is not a link, and replaces its content.
    pub(super) fn at(path: &Path) -> Result<Self> {
        let open = || -> io::Result<File> {
            let file = open_resolved(path, true)?;
            // An existing file may have other permissions.
            if file.metadata()?.is_file() {
                file.set_permissions(Permissions::from_mode(0o600))?;
            }
            Ok(file)
        };
        let file = open().with_context(|| format!("cannot write {}", escaped(path)))?;
        Self::begin(file, path.to_owned(), None)
    }

    /// Records into a file in `folder` that is removed on drop unless it gets a name.
    pub(super) fn temporary_in(folder: &Path) -> Result<Self> {
        let (file, path) = tempfile::Builder::new()
            .prefix(".sidewalk-")
            .suffix(".swk")
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(folder)
            .with_context(|| format!("cannot write into {}", escaped(folder)))?
            .into_parts();
        Self::begin(file, path.to_path_buf(), Some(path))
    }

    fn begin(file: File, path: PathBuf, temporary: Option<TempPath>) -> Result<Self> {
        let mut sink = Self {
            file,
            path,
            temporary,
            length: 0,
            blocks: 0,
            next: HashMap::new(),
            failure: None,
            seen_notes: HashSet::new(),
        };
        let creator = concat!("sidewalk ", env!("CARGO_PKG_VERSION"));
        sink.append(&file_header(creator));
        match sink.failure.take() {
            None => Ok(sink),
            Some(error) => {
                Err(error).with_context(|| format!("cannot write {}", escaped(&sink.path)))
            }
        }
    }

    /// Gives a temporary file its name, and keeps it.
    pub(super) fn keep_as(&mut self, path: &Path) -> Result<()> {
        if let Some(temporary) = self.temporary.take() {
            temporary
                .persist(path)
                .map_err(|error| error.error)
                .with_context(|| format!("cannot write {}", escaped(path)))?;
            self.path = path.to_owned();
        }
        Ok(())
    }

    /// Removes the file, if nothing was recorded.
    pub(super) fn discard(self) {
        let is_file = self.file.metadata().is_ok_and(|file| file.is_file());
        if self.temporary.is_none() && is_file {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is removed when this is dropped.
    pub(super) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// Whether anything but the file's header was written.
    pub(super) fn has_blocks(&self) -> bool {
        self.blocks > 0
    }

    /// Appends whole blocks.
    pub(super) fn append_blocks(&mut self, bytes: &[u8]) {
        let mut splitter = BlockSplitter::new();
        splitter.feed(bytes);
        while let Ok(Some(block)) = splitter.next_block() {
            self.append_block(&block);
        }
    }

    /// Returns a writer that continues after the last block of `process`.
    pub(super) fn writer(&self, process: ProcessKey) -> Writer {
        let next = self.next.get(&process).copied().unwrap_or_default();
        Writer::resume(process, next)
    }

    /// Whether the user has seen a note.
    pub(super) fn has_seen_note(&self, text: &str) -> bool {
        self.seen_notes.contains(text)
    }

    /// Appends whole blocks made by the tool.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        if self.failure.is_some() {
            return;
        }
        match self.file.write_all(bytes) {
            Ok(()) => self.length += bytes.len() as u64,
            Err(error) => {
                // A partial block would only be reported as damage.
                let _ = self.file.set_len(self.length);
                self.failure = Some(error);
            }
        }
    }
}

impl BlockSink for Sink {
    fn append_block(&mut self, block: &Block<'_>) {
        self.next
            .insert(block.process, block.sequence.wrapping_add(1));
        self.append(block.bytes);
        self.blocks += 1;
    }

    fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn see_note(&mut self, text: &str) -> bool {
        self.seen_notes.insert(text.to_owned())
    }

    /// Appends it to the process that came first.
    fn note(&mut self, text: &str) {
        self.see_note(text);
        let Some(process) = self.next.keys().min().copied() else {
            return;
        };
        let mut writer = self.writer(process);
        let _ = writer.push(&Record::Note { text: text.into() });
        if let Some(block) = writer.take_block() {
            self.next
                .entry(process)
                .and_modify(|next| *next = next.wrapping_add(1));
            self.append(&block);
        }
    }
}
