//! Reproducible archives: files ordered by name, with one time for all and no owner.
//!
//! Invariant: the same files give the same bytes.

use std::collections::BTreeMap;
use std::io::{Cursor, Write};

use anyhow::Result;
use flate2::{Compression, GzBuilder};
use zip::write::SimpleFileOptions;

/// A file in an archive.
pub(super) struct FileEntry {
    pub(super) content: Vec<u8>,
    pub(super) is_executable: bool,
}

/// Files by their paths in an archive.
#[derive(Default)]
pub(super) struct FileTree(pub(super) BTreeMap<String, FileEntry>);

impl FileTree {
    pub(super) fn add(&mut self, path: impl Into<String>, content: impl Into<Vec<u8>>) {
        self.insert(path.into(), content.into(), false);
    }

    pub(super) fn add_program(&mut self, path: impl Into<String>, content: impl Into<Vec<u8>>) {
        self.insert(path.into(), content.into(), true);
    }

    fn insert(&mut self, path: String, content: Vec<u8>, is_executable: bool) {
        let file = FileEntry {
            content,
            is_executable,
        };
        self.0.insert(path, file);
    }
}

/// A `tar.gz`, with the folders that lead to each file. `time`: of all of them, seconds since 1970.
pub(super) fn tar_gz(tree: &FileTree, time: u64) -> Result<Vec<u8>> {
    let gz = GzBuilder::new().write(Vec::new(), Compression::best());
    let mut tar = tar::Builder::new(gz);
    let mut made = std::collections::BTreeSet::new();
    let mut header = |path: &str, mode: u32, kind: tar::EntryType, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        header.set_mtime(time);
        header.set_uid(0);
        header.set_gid(0);
        header.set_username("root")?;
        header.set_groupname("root")?;
        tar.append_data(&mut header, path, content)
    };
    for (path, file) in &tree.0 {
        for (end, _) in path.match_indices('/') {
            let folder = &path[..=end];
            if folder != "./" && made.insert(folder.to_owned()) {
                header(folder, 0o755, tar::EntryType::Directory, &[])?;
            }
        }
        let mode = if file.is_executable { 0o755 } else { 0o644 };
        header(path, mode, tar::EntryType::Regular, &file.content)?;
    }
    Ok(tar.into_inner()?.finish()?)
}

/// A zip, as wheels and NuGet's packages are.
pub(super) fn zip(tree: &FileTree) -> Result<Vec<u8>> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (path, file) in &tree.0 {
        let mode = if file.is_executable { 0o755 } else { 0o644 };
        let options = SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Deflated)
            // The first day that a zip can have.
            .last_modified_time(zip::DateTime::default())
            .unix_permissions(mode);
        zip.start_file(path.as_str(), options)?;
        zip.write_all(&file.content)?;
    }
    Ok(zip.finish()?.into_inner())
}

/// An `ar` archive, as a `.deb` is: a line for each member, contents at even places.
pub(super) fn ar(members: &[(&str, Vec<u8>)], time: u64) -> Vec<u8> {
    let mut out = b"!<arch>\n".to_vec();
    for (name, content) in members {
        let size = content.len();
        out.extend(
            format!(
                "{name:<16}{time:<12}{:<6}{:<6}{:<8}{size:<10}`\n",
                0, 0, "100644"
            )
            .bytes(),
        );
        out.extend(content);
        if size % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}
