//! A folder, a server, and files whose ids are known: those of `symbolize`'s fixtures.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use symbolize::{LookupOptions, MissingFile, Symbolizer};
use symbolserver::testing::TestServer;
use symbolserver::{Failure, Fetch, FetchedFrom, FileOutcome, Limits, Server};
use tempfile::TempDir;

pub(crate) const BUILD_ID: &str = "3e7227435ef740fae4939a67d2ab5b2a9ac9a16d";
pub(crate) const TAG: &str = "\"first\"";

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../symbolize/tests/fixtures")
        .join(name)
}

pub(crate) fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).unwrap()
}

/// The missing files of a fixture that stands alone in a folder.
pub(crate) fn missing_of(name: &str, managed: bool) -> MissingFile {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::copy(fixture(name), &path).unwrap();
    let module = profile::model::Module {
        path: path.to_str().unwrap().to_owned(),
        managed,
        id_bytes: Vec::new(),
        bias: 0,
        file_offset: 0,
    };
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    symbolizer.missing(&module).unwrap().clone()
}

pub(crate) fn debug_file() -> MissingFile {
    let missing = missing_of("small.so", false);
    assert_eq!(missing.id(), BUILD_ID);
    missing
}

pub(crate) fn pdb() -> MissingFile {
    missing_of("Lines.dll", true)
}

/// Where debug files are in both protocols.
pub(crate) fn by_key() -> String {
    format!("/_.debug/elf-buildid-sym-{BUILD_ID}/_.debug")
}

pub(crate) fn by_build_id() -> String {
    format!("/buildid/{BUILD_ID}/debuginfo")
}

pub(crate) struct Scene {
    pub(crate) server: TestServer,
    pub(crate) folder: TempDir,
    pub(crate) limits: Limits,
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self {
            server: TestServer::new(),
            folder: tempfile::tempdir().unwrap(),
            limits: Limits {
                silence: Duration::from_millis(400),
                ..Limits::default()
            },
            environment: Vec::new(),
        }
    }

    pub(crate) fn fetch_from(
        &self,
        servers: Vec<Server>,
        wanted: Vec<MissingFile>,
    ) -> Vec<FileOutcome> {
        let fetch = Fetch {
            servers,
            folder: self.folder.path().to_owned(),
            limits: self.limits,
        };
        let variable = |name: &str| {
            let found = self.environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        fetch.run(wanted, &variable, &mut |_| ControlFlow::Continue(()))
    }

    /// Asks the server by debuginfod for small.so's debug file.
    pub(crate) fn fetch(&self) -> Result<FetchedFrom, Failure> {
        let server = Server::debuginfod(&self.server.address()).unwrap();
        let mut outcomes = self.fetch_from(vec![server], vec![debug_file()]);
        match outcomes.remove(0).result {
            Ok(fetched) => Ok(fetched),
            Err(mut failures) => {
                assert_eq!(failures.len(), 1, "{failures:?}");
                Err(failures.remove(0).1)
            }
        }
    }

    pub(crate) fn destination(&self) -> PathBuf {
        self.folder.path().join(BUILD_ID).join("debuginfo")
    }

    /// Every file below the folder.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.folder.path()).unwrap().flatten() {
            for file in std::fs::read_dir(entry.path()).unwrap().flatten() {
                found.push(file.file_name().into_string().unwrap());
            }
            found.push(entry.file_name().into_string().unwrap());
        }
        found.sort();
        found
    }

    /// Nothing was kept.
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.files(), [""; 0]);
    }
}
