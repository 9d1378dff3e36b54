//! Download of several files from several servers.
//!
//! A server that cannot be reached is skipped for the rest of the run. The caller's check runs
//! several times a second; when it says stop, downloads end and their partial files are kept for
//! the next run.

use std::collections::HashMap;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use symbolize::MissingFile;
use ureq::Agent;

use crate::download::download;
use crate::failure::Failure;
use crate::partial::PartialDownload;
use crate::{Limits, Server, folder};

/// A server may redirect a request so often.
const MAX_REDIRECTS: u32 = 5;
/// Files that are got at once.
const WORKERS: usize = 4;
/// How often whoever waits is asked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A request: files, servers and the folder.
pub struct Fetch {
    /// Asked in this order, until one has the file.
    pub servers: Vec<Server>,
    /// The folder of what servers gave.
    pub folder: PathBuf,
    /// Limits of the request.
    pub limits: Limits,
}

/// Where a file is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchedFrom {
    /// It was there.
    Cached,
    /// This server gave it; bytes.
    Downloaded(String, u64),
}

/// Result for one file.
#[derive(Debug)]
pub struct FileOutcome {
    /// The file.
    pub wanted: MissingFile,
    /// Where it is from, or what each server (by address) answered. A server that could not be
    /// reached for one file is not asked for others.
    pub result: Result<FetchedFrom, Vec<(String, Failure)>>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files that are done, whatever came of them.
    pub done: usize,
    /// Files in all.
    pub files: usize,
    /// Bytes that have come.
    pub bytes: u64,
}

/// Messages from workers.
enum WorkerMessage {
    Bytes(usize, u64),
    Done(usize, Result<FetchedFrom, Vec<(String, Failure)>>),
}

/// State that workers share.
struct FetchJob {
    wanted: Vec<MissingFile>,
    servers: Vec<(Server, Result<Agent, String>)>,
    down: Vec<AtomicBool>,
    folder: PathBuf,
    limits: Limits,
    next: AtomicUsize,
    stop: AtomicBool,
}

impl Fetch {
    /// Gets the files. `variable` reads the environment, for proxies; `watch` is called several
    /// times a second.
    pub fn run(
        &self,
        wanted: Vec<MissingFile>,
        variable: &dyn Fn(&str) -> Option<OsString>,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Vec<FileOutcome> {
        let settings = http_client::Settings {
            silence: self.limits.silence,
            redirects: MAX_REDIRECTS,
        };
        let servers = self.servers.iter().map(|server| {
            let client = http_client::client(server.at(), settings, variable);
            (server.clone(), client)
        });
        let work = Arc::new(FetchJob {
            servers: servers.collect(),
            down: self
                .servers
                .iter()
                .map(|_| AtomicBool::new(false))
                .collect(),
            folder: self.folder.clone(),
            limits: self.limits,
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            wanted,
        });
        let mut results: Vec<Option<Result<_, _>>> = work.wanted.iter().map(|_| None).collect();
        let (sender, messages) = mpsc::channel();
        for _ in 0..WORKERS.min(work.wanted.len()) {
            let (work, sender) = (Arc::clone(&work), sender.clone());
            // Not waited for when somebody wants no more: a server may keep it in a read.
            std::thread::spawn(move || work.run(&sender));
        }
        drop(sender);
        let mut progress = Progress {
            files: work.wanted.len(),
            ..Progress::default()
        };
        let mut bytes: HashMap<usize, u64> = HashMap::new();
        loop {
            match messages.recv_timeout(POLL_INTERVAL) {
                Ok(WorkerMessage::Bytes(file, count)) => drop(bytes.insert(file, count)),
                Ok(WorkerMessage::Done(file, result)) => {
                    if let Some(slot) = results.get_mut(file) {
                        *slot = Some(result);
                    }
                    progress.done += 1;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            progress.bytes = bytes.values().sum();
            if watch(progress).is_break() {
                work.stop.store(true, Ordering::Relaxed);
                break;
            }
        }
        let outcomes = work
            .wanted
            .iter()
            .zip(results)
            .map(|(wanted, result)| FileOutcome {
                wanted: wanted.clone(),
                result: result.unwrap_or_else(|| Err(vec![(String::new(), Failure::Stopped)])),
            });
        outcomes.collect()
    }
}

impl FetchJob {
    fn run(&self, sender: &Sender<WorkerMessage>) {
        loop {
            let file = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(wanted) = self.wanted.get(file) else {
                return;
            };
            let last = Mutex::new(0);
            let watch = |count: u64, _: Option<u64>| {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                // Not at each piece.
                if count.abs_diff(*last) > 1 << 18 {
                    *last = count;
                    let _ = sender.send(WorkerMessage::Bytes(file, count));
                }
                !self.stop.load(Ordering::Relaxed)
            };
            let result = self.fetch_file(wanted, &watch);
            if sender.send(WorkerMessage::Done(file, result)).is_err() {
                return;
            }
        }
    }

    fn fetch_file(
        &self,
        wanted: &MissingFile,
        watch: &dyn Fn(u64, Option<u64>) -> bool,
    ) -> Result<FetchedFrom, Vec<(String, Failure)>> {
        let destination = self.folder.join(wanted.relative_path());
        if symbolize::check(&destination, wanted).is_ok() {
            return Ok(FetchedFrom::Cached);
        }
        let opened = destination
            .parent()
            .map_or(Ok(()), folder::create)
            .map_err(Failure::Disk)
            .and_then(|()| PartialDownload::open(&destination));
        let mut partial = match opened {
            Ok(partial) => partial,
            Err(failure) => return Err(vec![(String::new(), failure)]),
        };
        let headers = checksums(wanted);
        let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let mut failures = Vec::new();
        let mut goes_on = false;
        for ((server, client), down) in self.servers.iter().zip(&self.down) {
            let Some(address) = server.address_of(wanted) else {
                continue;
            };
            if down.load(Ordering::Relaxed) {
                failures.push((server.address().to_owned(), Failure::Skipped));
                continue;
            }
            let client = match client {
                Ok(client) => client,
                Err(why) => {
                    let failure = match down.swap(true, Ordering::Relaxed) {
                        true => Failure::Skipped,
                        false => Failure::Unreachable(why.clone()),
                    };
                    failures.push((server.address().to_owned(), failure));
                    continue;
                }
            };
            let got = download(client, &address, &headers, &mut partial, self.limits, watch);
            let got = got
                .and_then(|()| symbolize::check(partial.path(), wanted).map_err(Failure::Refused));
            match got {
                Ok(()) => {
                    let bytes = partial.length();
                    return match partial.keep_as(&destination) {
                        Ok(()) => Ok(FetchedFrom::Downloaded(server.address().to_owned(), bytes)),
                        Err(error) => Err(vec![(String::new(), Failure::Disk(error))]),
                    };
                }
                Err(failure) => {
                    let was_down =
                        failure.is_server_failure() && down.swap(true, Ordering::Relaxed);
                    goes_on |= failure.is_resumable();
                    let ends = matches!(failure, Failure::Stopped | Failure::Disk(_));
                    let failure = if was_down { Failure::Skipped } else { failure };
                    failures.push((server.address().to_owned(), failure));
                    if ends {
                        break;
                    }
                }
            }
        }
        if goes_on && partial.length() > 0 {
            drop(partial);
        } else {
            partial.remove();
            // Not the folder of an id that nobody knows; one that has something in it stays.
            let _ = destination.parent().map(std::fs::remove_dir);
        }
        Err(failures)
    }
}

/// Checksums of a PDB for the request's header: some servers demand them beside the id.
fn checksums(wanted: &MissingFile) -> Vec<(&'static str, String)> {
    let MissingFile::Pdb { checksums, .. } = wanted else {
        return Vec::new();
    };
    if checksums.is_empty() {
        return Vec::new();
    }
    let all = checksums.iter().map(|(algorithm, sum)| {
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{algorithm}:{sum}")
    });
    let all: Vec<String> = all.collect();
    vec![
        ("SymbolChecksum", all.join(";")),
        ("SymbolChecksumValidationSupported", "1".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_made_is_told() {
        let fetch = Fetch {
            servers: Vec::new(),
            folder: PathBuf::from("/proc/none"),
            limits: Limits::default(),
        };
        let wanted = MissingFile::DebugFile {
            of: "/x.so".into(),
            build_id: vec![1; 20],
        };
        let outcomes = fetch.run(vec![wanted], &|_| None, &mut |_| ControlFlow::Continue(()));
        let Err(failures) = &outcomes[0].result else {
            panic!("{outcomes:?}");
        };
        let text = failures[0].1.to_string();
        assert!(
            text.contains("DEBUGINFOD_CACHE_PATH names another folder"),
            "{text}"
        );
    }
}
