//! Totals of how much code libraries' unwind tables can unwind, for the test and the example.

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use stackwalk::survey::{LeaveMethod, survey};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Totals of one library, or of all, in bytes of code (except `calls`).
#[derive(Clone, Default, Debug)]
pub(crate) struct Sum {
    /// Size of the executable segments.
    pub(crate) all: u64,
    /// Bytes by method of leaving.
    pub(crate) ways: BTreeMap<LeaveMethod, u64>,
    /// Number of call instructions in rows of [`LeaveMethod::Register`]. The callers' frames are
    /// found only if the callee has preserved the register.
    pub(crate) calls: u64,
}

impl Sum {
    /// Surveys the library at `path`; `None` if it has no unwind tables.
    pub(crate) fn of(path: &Path) -> Option<Sum> {
        let mut sum = Sum::default();
        sum.all = survey(path, &mut |row| {
            *sum.ways.entry(row.way).or_default() += row.range.end - row.range.start;
            if row.way == LeaveMethod::Register {
                let decoder = Decoder::with_ip(64, row.code, row.range.start, DecoderOptions::NONE);
                sum.calls += decoder
                    .into_iter()
                    .filter(|instruction| {
                        matches!(
                            instruction.flow_control(),
                            FlowControl::Call | FlowControl::IndirectCall
                        )
                    })
                    .map(|call| call.len() as u64)
                    .sum::<u64>();
            }
        })?;
        Some(sum)
    }

    pub(crate) fn add(&mut self, other: &Sum) {
        self.all += other.all;
        self.calls += other.calls;
        for (way, bytes) in &other.ways {
            *self.ways.entry(*way).or_default() += bytes;
        }
    }

    pub(crate) fn way(&self, way: LeaveMethod) -> u64 {
        self.ways.get(&way).copied().unwrap_or(0)
    }

    /// Returns the number of bytes that the tables describe.
    pub(crate) fn described(&self) -> u64 {
        self.ways.values().sum()
    }

    /// Returns the number of bytes at which a walk ends: the table is malformed or unsupported.
    /// Includes calls out of frames that are in a register.
    pub(crate) fn not_walked(&self) -> u64 {
        self.way(LeaveMethod::Malformed) + self.way(LeaveMethod::UnknownExpression) + self.calls
    }
}

/// Surveys all libraries in these folders and below, each file once. The name is the file's.
pub(crate) fn libraries(folders: &[PathBuf]) -> Vec<(PathBuf, Sum)> {
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    let mut folders = folders.to_vec();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            let library = name.ends_with(".so") || name.contains(".so.");
            let Some(file) = path.canonicalize().ok().filter(|_| library) else {
                continue;
            };
            if seen.insert(file.clone())
                && let Some(sum) = Sum::of(&file)
            {
                found.push((file, sum));
            }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}
