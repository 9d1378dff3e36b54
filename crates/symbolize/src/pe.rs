//! Debug information of a .NET module (a PE file).
//!
//! The module may lie inside another file (single-file apps). A ReadyToRun image for Linux has
//! the machine field xored with the operating system's number, so the machine is not looked at.

use std::io::Read;

use object::LittleEndian as LE;
use object::pe::{
    DebugType, IMAGE_DEBUG_TYPE_CODEVIEW, IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR,
    IMAGE_DIRECTORY_ENTRY_DEBUG, ImageDebugDirectory, ImageNtHeaders32, ImageNtHeaders64,
};
use object::read::pe::{ImageNtHeaders, PeFile};
use object::read::{ReadCacheRange, ReadRef};

use crate::file::{ByteSource, PartialFile};
use crate::metadata::{Bytes, Metadata};

/// `IMAGE_DEBUG_TYPE` 17: a portable PDB inside the module.
const EMBEDDED_PORTABLE_PDB: DebugType = DebugType(17);
/// `IMAGE_DEBUG_TYPE` 19: the checksum of the PDB.
const PDB_CHECKSUM: DebugType = DebugType(19);
/// Minor version of a CodeView entry that names a portable PDB: "PM".
const PORTABLE: u16 = 0x504d;
/// Maximum number of debug entries, more than any compiler writes.
const MAX_ENTRIES: usize = 64;
const MAX_ENTRIES_SIZE: u32 = (MAX_ENTRIES * size_of::<ImageDebugDirectory>()) as u32;
/// Size of the part of `IMAGE_COR20_HEADER` that is read, in bytes.
const COR20_HEADER: u32 = 16;
/// Maximum size of metadata that is read, in bytes.
const LARGEST_METADATA: u32 = 256 << 20;
/// Maximum size of embedded PDBs that are unpacked, in bytes.
const LARGEST_PDB: u64 = 256 << 20;

/// The 20 bytes that identify the portable PDB of a module: GUID and stamp.
pub type PdbId = [u8; 20];

/// A module's debug information.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ModuleDebug {
    /// Module version id, as in metadata.
    pub(crate) mvid: Option<[u8; 16]>,
    /// Path and id of its portable PDB.
    pub(crate) code_view: Option<(String, PdbId)>,
    /// A portable PDB inside the module, unpacked.
    pub(crate) embedded: Option<Vec<u8>>,
    /// Checksums of the PDB: name of the algorithm, checksum.
    pub(crate) checksums: Vec<(String, Vec<u8>)>,
}

impl ModuleDebug {
    /// Reads the headers and debug entries of `file`.
    ///
    /// # Errors
    /// The file is not a readable PE file. The text is the reason.
    pub(crate) fn read(file: &PartialFile) -> Result<Self, String> {
        let data = file.range();
        let text = |error: object::Error| error.to_string();
        let magic = object::read::pe::optional_header_magic(data).map_err(text)?;
        if magic == object::pe::IMAGE_NT_OPTIONAL_HDR64_MAGIC {
            Self::from_pe(&PeFile::<ImageNtHeaders64, _>::parse(data).map_err(text)?)
        } else {
            Self::from_pe(&PeFile::<ImageNtHeaders32, _>::parse(data).map_err(text)?)
        }
    }

    /// Reads the whole metadata of `file`.
    pub(crate) fn metadata(file: &PartialFile) -> Option<&[u8]> {
        let data = file.range();
        if object::read::pe::optional_header_magic(data).ok()?
            == object::pe::IMAGE_NT_OPTIONAL_HDR64_MAGIC
        {
            Self::metadata_of(&PeFile::<ImageNtHeaders64, _>::parse(data).ok()?)
        } else {
            Self::metadata_of(&PeFile::<ImageNtHeaders32, _>::parse(data).ok()?)
        }
    }

    fn metadata_of<'a, H: ImageNtHeaders>(
        pe: &PeFile<'a, H, ReadCacheRange<'a, ByteSource>>,
    ) -> Option<&'a [u8]> {
        let sections = pe.section_table();
        let read = |address: u32, size: u32| {
            let (offset, available) = sections
                .iter()
                .find_map(|section| section.pe_file_range_at(address))?;
            pe.data()
                .read_bytes_at(offset.into(), size.min(available).into())
                .ok()
        };
        let directory = pe
            .data_directories()
            .get(IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR)?;
        let mut header = Bytes(read(directory.virtual_address.get(LE), COR20_HEADER)?);
        header.take(8);
        let (address, size) = (header.u32()?, header.u32()?);
        if size > LARGEST_METADATA {
            return None;
        }
        read(address, size)
    }

    fn from_pe<'a, H: ImageNtHeaders>(
        pe: &PeFile<'a, H, ReadCacheRange<'a, ByteSource>>,
    ) -> Result<Self, String> {
        let data = pe.data();
        let sections = pe.section_table();
        let directories = pe.data_directories();
        let mut found = Self::default();

        // Not by `directory.data`, which reads to the end of the section: ten megabytes in CoreLib.
        let read = |address: u32, size: u32| {
            let (offset, available) = sections
                .iter()
                .find_map(|section| section.pe_file_range_at(address))?;
            data.read_bytes_at(offset.into(), size.min(available).into())
                .ok()
        };
        if let Some(directory) = directories.get(IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR)
            && let Some(header) = read(directory.virtual_address.get(LE), COR20_HEADER)
        {
            // IMAGE_COR20_HEADER: size, versions, then the metadata directory.
            let mut header = Bytes(header);
            header.take(8);
            if let (Some(address), Some(size)) = (header.u32(), header.u32()) {
                let part = |offset: usize, length: usize| {
                    let address = address.checked_add(u32::try_from(offset).ok()?)?;
                    read(address, u32::try_from(length).ok()?)
                };
                found.mvid = Metadata::parse_module(usize::try_from(size).unwrap_or(0), part)
                    .and_then(|metadata| metadata.module_version_id());
            }
        }

        let Some(directory) = directories.get(IMAGE_DIRECTORY_ENTRY_DEBUG) else {
            return Ok(found);
        };
        let size = directory.size.get(LE).min(MAX_ENTRIES_SIZE);
        let entries = read(directory.virtual_address.get(LE), size)
            .ok_or_else(|| "the debug directory cannot be read".to_owned())?;
        let count = (entries.len() / size_of::<ImageDebugDirectory>()).min(MAX_ENTRIES);
        let (entries, _) = object::pod::slice_from_bytes::<ImageDebugDirectory>(entries, count)
            .map_err(|()| "the debug directory cannot be read".to_owned())?;
        for entry in entries {
            let content = |limit: u64| {
                let size = u64::from(entry.size_of_data.get(LE));
                if size > limit {
                    return None;
                }
                data.read_bytes_at(entry.pointer_to_raw_data.get(LE).into(), size)
                    .ok()
            };
            match entry.typ.get(LE) {
                IMAGE_DEBUG_TYPE_CODEVIEW if entry.minor_version.get(LE) == PORTABLE => {
                    found.code_view = content(1 << 16)
                        .and_then(|bytes| code_view(bytes, entry.time_date_stamp.get(LE)));
                }
                PDB_CHECKSUM => found.checksums.extend(content(1 << 10).and_then(checksum)),
                EMBEDDED_PORTABLE_PDB => {
                    found.embedded = content(LARGEST_PDB).and_then(unpack);
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

fn code_view(bytes: &[u8], stamp: u32) -> Option<(String, PdbId)> {
    let mut cursor = Bytes(bytes);
    if cursor.take(4)? != b"RSDS" {
        return None;
    }
    let guid = cursor.take(16)?;
    cursor.u32()?;
    let length = cursor.0.iter().position(|byte| *byte == 0)?;
    let path = String::from_utf8_lossy(cursor.0.get(..length)?).into_owned();
    let mut id = [0; 20];
    id[..16].copy_from_slice(guid);
    id[16..].copy_from_slice(&stamp.to_le_bytes());
    Some((path, id))
}

/// The algorithm's name, a zero, the sum.
fn checksum(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(bytes.get(..end)?).ok()?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_name.then(|| {
        (
            name.to_owned(),
            bytes.get(end + 1..).unwrap_or_default().to_vec(),
        )
    })
}

/// `MPDB`, the unpacked size, then raw deflate.
fn unpack(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut cursor = Bytes(bytes);
    if cursor.take(4)? != b"MPDB" {
        return None;
    }
    let size = u64::from(cursor.u32()?);
    if size > LARGEST_PDB {
        return None;
    }
    let mut unpacked = Vec::new();
    flate2::read::DeflateDecoder::new(cursor.0)
        .take(size)
        .read_to_end(&mut unpacked)
        .ok()?;
    (u64::try_from(unpacked.len()) == Ok(size)).then_some(unpacked)
}
