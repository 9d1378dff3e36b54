//! Queue of bodies for one server: in memory, or in a folder where they survive the tool.
//!
//! Invariants: number and size are bounded, and the oldest goes first. A file in the folder is a
//! whole body. Only one tool at a time has a queue's folder, which it locks.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::private::{is_temporary, make_private, temporary_in};

/// Maximum number and bytes of bodies in memory.
const IN_MEMORY: (usize, u64) = (64, 32 << 20);
/// Maximum number and bytes of bodies in a folder.
const IN_FOLDER: (usize, u64) = (4_096, 256 << 20);
/// Maximum number of tools that push to one server with one spool.
const MAX_TOOLS: u32 = 1_000;
/// Ending of a body's file.
const ENDING: &str = "body";

/// A queue.
pub(crate) struct Queue {
    waiting: VecDeque<Body>,
    bytes: u64,
    most: (usize, u64),
    folder: Option<SpoolFolder>,
}

/// A body and how often it was tried.
pub(crate) struct Body {
    content: Content,
    size: u64,
    pub(crate) tries: u32,
}

enum Content {
    Memory(Vec<u8>),
    File(PathBuf),
}

/// The folder of a queue.
struct SpoolFolder {
    path: PathBuf,
    /// Number of the next file.
    next: u64,
    /// Locked while the queue exists.
    _lock: File,
}

impl Body {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Reads the content.
    ///
    /// # Errors
    /// Its file is gone, or cannot be read.
    pub(crate) fn read(&self) -> io::Result<Cow<'_, [u8]>> {
        match &self.content {
            Content::Memory(content) => Ok(Cow::Borrowed(content)),
            Content::File(path) => fs::read(path).map(Cow::Owned),
        }
    }

    /// Removes the body: it has arrived, or never will.
    pub(crate) fn remove(self) {
        if let Content::File(path) = self.content {
            // If it stays, it is sent again after the next start.
            let _ = fs::remove_file(path);
        }
    }

    /// Whether it survives the tool.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.content, Content::File(_))
    }
}

impl Queue {
    /// A queue in memory.
    pub(crate) fn in_memory() -> Queue {
        Queue {
            waiting: VecDeque::new(),
            bytes: 0,
            most: IN_MEMORY,
            folder: None,
        }
    }

    /// The queue for this address in a spool, with the bodies that an earlier tool left.
    ///
    /// # Errors
    /// The spool cannot be read or written.
    pub(crate) fn in_spool(spool: &Path, address: &str) -> io::Result<Queue> {
        let folder = SpoolFolder::lock(spool, address)?;
        let mut left = Vec::new();
        for entry in fs::read_dir(&folder.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == ENDING) {
                left.push(path);
            } else if is_temporary(&path) {
                // A killed tool had it: this one alone has the folder.
                fs::remove_file(path)?;
            }
        }
        left.sort();
        let number = |path: &PathBuf| path.file_stem()?.to_str()?.parse::<u64>().ok();
        let next = left
            .iter()
            .filter_map(number)
            .max()
            .map_or(0, |last| last + 1);
        let mut queue = Queue {
            waiting: VecDeque::new(),
            bytes: 0,
            most: IN_FOLDER,
            folder: Some(SpoolFolder { next, ..folder }),
        };
        for path in left {
            let size = fs::metadata(&path)?.len();
            queue.push_back(Body {
                content: Content::File(path),
                size,
                tries: 0,
            });
        }
        Ok(queue)
    }

    /// Adds a new body. Returns how many old ones were dropped for it.
    pub(crate) fn add(&mut self, content: Vec<u8>) -> u64 {
        let size = content.len() as u64;
        let stored = self.folder.as_mut().map(|folder| folder.store(&content));
        let content = match stored {
            Some(Ok(path)) => Content::File(path),
            // A full disk does not stop it.
            Some(Err(_)) | None => Content::Memory(content),
        };
        self.push_back(Body {
            content,
            size,
            tries: 0,
        });
        let mut dropped = 0;
        while self.waiting.len() > self.most.0 || self.bytes > self.most.1 {
            let Some(oldest) = self.pop() else { break };
            oldest.remove();
            dropped += 1;
        }
        dropped
    }

    /// Adds a body behind the others.
    pub(crate) fn push_back(&mut self, body: Body) {
        self.bytes = self.bytes.saturating_add(body.size);
        self.waiting.push_back(body);
    }

    /// Number and bytes of the bodies.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.waiting.len() as u64, self.bytes)
    }

    /// Takes the oldest body.
    pub(crate) fn pop(&mut self) -> Option<Body> {
        let body = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(body.size);
        Some(body)
    }

    /// Empties the queue. Returns how many bodies stay in the folder, and how many are lost.
    pub(crate) fn end(&mut self) -> (u64, u64) {
        let (mut kept, mut lost) = (0, 0);
        while let Some(body) = self.pop() {
            match body.is_kept() {
                true => kept += 1,
                false => lost += 1,
            }
        }
        // Another tool may have it.
        self.folder = None;
        (kept, lost)
    }
}

impl SpoolFolder {
    /// Makes and locks a folder for an address: the first that no other tool has.
    fn lock(spool: &Path, address: &str) -> io::Result<SpoolFolder> {
        for number in 0..MAX_TOOLS {
            let path = spool.join(format!("{:016x}-{number}", hash(address)));
            make_private(&path)?;
            let lock = File::options()
                .create(true)
                .write(true)
                .truncate(false)
                .open(path.join("lock"))?;
            match lock.try_lock() {
                Ok(()) => {
                    return Ok(SpoolFolder {
                        path,
                        next: 0,
                        _lock: lock,
                    });
                }
                Err(fs::TryLockError::WouldBlock) => {}
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::Error::other("too many tools use this spool"))
    }

    fn store(&mut self, content: &[u8]) -> io::Result<PathBuf> {
        let mut file = temporary_in(&self.path)?;
        file.write_all(content)?;
        let path = self.path.join(format!("{:020}.{ENDING}", self.next));
        file.persist(&path).map_err(|error| error.error)?;
        self.next += 1;
        Ok(path)
    }
}

/// FNV-1a: the same in each version.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(queue: &mut Queue) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| queue.pop())
            .map(|body| body.read().unwrap().into_owned())
            .collect()
    }

    #[test]
    fn bodies_survive_and_order_is_kept() {
        let spool = tempfile::tempdir().unwrap();
        let path = spool.path().join("made");
        let mut queue = Queue::in_spool(&path, "http://a").unwrap();
        for body in [b"one", b"two"] {
            assert_eq!(queue.add(body.to_vec()), 0);
        }
        queue.pop().unwrap().remove();
        let folder = queue.folder.as_ref().unwrap().path.clone();
        assert_eq!(queue.end(), (1, 0));
        // A tool was killed while it wrote.
        let unfinished = temporary_in(&folder).unwrap().keep().unwrap().1;
        let mut queue = Queue::in_spool(&path, "http://a").unwrap();
        assert!(!unfinished.exists());
        queue.add(b"three".to_vec());
        // Another tool meanwhile, and another server.
        let mut second = Queue::in_spool(&path, "http://a").unwrap();
        let mut other = Queue::in_spool(&path, "http://b").unwrap();
        assert!(second.pop().is_none() && other.pop().is_none());
        assert_eq!(contents(&mut queue), [&b"two"[..], b"three"]);
    }

    #[test]
    fn the_oldest_are_dropped() {
        let spool = tempfile::tempdir().unwrap();
        for mut queue in [
            Queue::in_memory(),
            Queue::in_spool(spool.path(), "http://a").unwrap(),
        ] {
            queue.most = (3, 10);
            let dropped: Vec<u64> = [4, 4, 2, 1, 9].map(|size| queue.add(vec![7; size])).into();
            assert_eq!(dropped, [0, 0, 0, 1, 2]);
            let sizes: Vec<usize> = contents(&mut queue).iter().map(Vec::len).collect();
            assert_eq!(sizes, [1, 9]);
        }
        let files = fs::read_dir(spool.path().join(format!("{:016x}-0", hash("http://a"))));
        // Two bodies and the lock.
        assert_eq!(files.unwrap().count(), 3);
    }
}
