//! A server, and the addresses of its files. Nothing is sent here.
//!
//! Invariant: an address is the server's own plus parts that are digits or percent-encoded, so no
//! name in a module can lead elsewhere on the server.

use std::fmt::Write as _;

use http_client::Address;
use symbolize::MissingFile;

/// Protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// Microsoft's: debug files and PDBs, by keys.
    SymbolStore,
    /// debuginfod: debug files by build-id.
    Debuginfod,
}

/// A symbol server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    protocol: Protocol,
    /// Without a slash at its end.
    address: Address,
}

/// A build-id has this many bytes in a key, or more.
const BUILD_ID_IN_KEY: usize = 20;
/// Longer names of PDBs are asked of nobody.
const LONGEST_NAME: usize = 255;

impl Server {
    /// One that speaks as Microsoft's does.
    ///
    /// # Errors
    /// It is no address; the text says why.
    pub fn symbol_store(address: &str) -> Result<Self, String> {
        Self::new(Protocol::SymbolStore, address)
    }

    /// One that speaks debuginfod.
    ///
    /// # Errors
    /// It is no address; the text says why.
    pub fn debuginfod(address: &str) -> Result<Self, String> {
        Self::new(Protocol::Debuginfod, address)
    }

    fn new(protocol: Protocol, address: &str) -> Result<Self, String> {
        Address::parse(address)?;
        let address = Address::parse(address.trim_end_matches('/'))?;
        if address.as_str().contains('?') {
            return Err("it is not the address of a server".into());
        }
        Ok(Self { protocol, address })
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> &str {
        self.address.as_str()
    }

    /// Its address.
    pub(crate) fn at(&self) -> &Address {
        &self.address
    }

    /// Where it has this file, if it has such files.
    pub(crate) fn address_of(&self, wanted: &MissingFile) -> Option<String> {
        let path = match (self.protocol, wanted) {
            (Protocol::Debuginfod, MissingFile::DebugFile { .. }) => {
                format!("buildid/{}/debuginfo", wanted.id())
            }
            (Protocol::Debuginfod, MissingFile::Pdb { .. }) => return None,
            (Protocol::SymbolStore, MissingFile::DebugFile { .. }) => {
                let id = format!("{:0<width$}", wanted.id(), width = 2 * BUILD_ID_IN_KEY);
                format!("_.debug/elf-buildid-sym-{id}/_.debug")
            }
            (Protocol::SymbolStore, MissingFile::Pdb { name, id, .. }) => {
                let name = encoded(name)?;
                format!("{name}/{}FFFFFFFF/{name}", guid(id)?)
            }
        };
        Some(format!("{}/{path}", self.address()))
    }
}

/// A file's name as a part of an address; `None` for what is no name.
fn encoded(name: &str) -> Option<String> {
    if name.is_empty() || name.len() > LONGEST_NAME || matches!(name, "." | "..") {
        return None;
    }
    let mut encoded = String::with_capacity(name.len());
    for byte in name.to_lowercase().bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b'~' => encoded.push(byte.into()),
            // To a `String`, it does not fail.
            _ => drop(write!(encoded, "%{byte:02x}")),
        }
    }
    Some(encoded)
}

/// The GUID that a PDB's id begins with: three little-endian numbers, then bytes.
fn guid(id: &[u8]) -> Option<String> {
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let mut text = String::new();
    for at in order {
        write!(text, "{:02x}", id.get(at)?).ok()?;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pdb(name: &str) -> MissingFile {
        let mut id = [0; 20];
        let guid = [
            0xf6, 0x72, 0x7b, 0x49, 0x0a, 0x39, 0xfc, 0x44, 0x87, 0x8e, 0x5a, 0x2d, 0x63, 0xb6,
            0xcc, 0x4b,
        ];
        id[..16].copy_from_slice(&guid);
        MissingFile::Pdb {
            of: "/app/foo.dll".into(),
            name: name.into(),
            id,
            checksums: Vec::new(),
        }
    }

    fn debug_file(build_id: &[u8]) -> MissingFile {
        MissingFile::DebugFile {
            of: "/app/foo.so".into(),
            build_id: build_id.into(),
        }
    }

    /// The examples of the key conventions.
    #[test]
    fn keys_are_those_of_the_conventions() {
        let server = Server::symbol_store("https://symbols.example/store/").unwrap();
        let build_id = [
            0x18, 0x0a, 0x37, 0x3d, 0x6a, 0xfb, 0xab, 0xf0, 0xeb, 0x1f, 0x09, 0xbe, 0x1b, 0xc4,
            0x5b, 0xd7, 0x96, 0xa7, 0x10, 0x85,
        ];
        for (wanted, key) in [
            (
                debug_file(&build_id),
                "_.debug/elf-buildid-sym-180a373d6afbabf0eb1f09be1bc45bd796a71085/_.debug",
            ),
            (
                debug_file(&build_id[..16]),
                "_.debug/elf-buildid-sym-180a373d6afbabf0eb1f09be1bc45bd700000000/_.debug",
            ),
            (
                pdb("Foo.pdb"),
                "foo.pdb/497b72f6390a44fc878e5a2d63b6cc4bFFFFFFFF/foo.pdb",
            ),
        ] {
            let expected = format!("https://symbols.example/store/{key}");
            assert_eq!(server.address_of(&wanted), Some(expected));
        }
    }

    #[test]
    fn debuginfod_is_asked_for_debug_files_alone() {
        let server = Server::debuginfod("http://localhost:8002").unwrap();
        assert_eq!(
            server.address_of(&debug_file(&[0xab, 1])).as_deref(),
            Some("http://localhost:8002/buildid/ab01/debuginfo")
        );
        assert_eq!(server.address_of(&pdb("foo.pdb")), None);
        assert_eq!(server.at().host(), "localhost");
    }

    #[test]
    fn a_pdbs_name_leads_nowhere_else() {
        let server = Server::symbol_store("http://[::1]:80").unwrap();
        assert_eq!(server.at().host(), "::1");
        for name in ["", ".", "..", &"x".repeat(256)] {
            assert_eq!(server.address_of(&pdb(name)), None, "{name}");
        }
        for (name, part) in [
            ("a/../../b", "a%2f..%2f..%2fb"),
            ("a b?c#d%41", "a%20b%3fc%23d%2541"),
            ("x\r\ny: z", "x%0d%0ay%3a%20z"),
        ] {
            let address = server.address_of(&pdb(name)).unwrap();
            assert!(
                address.starts_with(&format!("http://[::1]:80/{part}/")),
                "{address}"
            );
        }
    }

    #[test]
    fn what_is_no_server_is_told() {
        for (address, why) in [
            ("ftp://x", "begin with"),
            ("localhost:80", "begin with"),
            ("https://", "no host"),
            ("https:///x", "no host"),
            ("https://me:secret@x/", "user name"),
            ("https://x/?a=", "not the address"),
            ("https://x/a b", "not the address"),
        ] {
            let error = Server::debuginfod(address).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
    }
}
