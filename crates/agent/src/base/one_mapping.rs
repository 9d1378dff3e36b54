//! The memory mapping that contains one address, from a single kernel query.
//!
//! Linux 6.11 and later return it in a microsecond (`PROCMAP_QUERY` of `/proc/PID/maps`,
//! Documentation/filesystems/proc.rst; include/uapi/linux/fs.h). Reading all mappings takes a third
//! of a millisecond in a small program. Nothing is cached: on an older kernel each query fails
//! again. Invariant: a result is the kernel's at this moment.

use std::fs::File;
use std::os::fd::AsRawFd;

use super::proc::Mapping;

/// Maximum length of a mapping's name, bytes, including the terminating zero.
const NAME: usize = 256;

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const READABLE: u64 = 1;
const EXECUTABLE: u64 = 4;

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17;

/// The result of a query for an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MappingAnswer {
    /// The mapping that contains it.
    In(Mapping),
    /// No mapping contains it.
    Unmapped,
    /// Unknown, so all mappings must be read: the kernel is older than 6.11 or refuses the query,
    /// or the name is longer than any that a runtime uses.
    Unknown,
}

/// Returns the mapping of this process that contains `address`. Uses one descriptor during the
/// query. Must not be called in a signal handler.
pub fn at(address: u64) -> MappingAnswer {
    let Ok(maps) = File::open("/proc/self/maps") else {
        return MappingAnswer::Unknown;
    };
    let mut name = [0u8; NAME];
    let mut query = Query {
        size: size_of::<Query>() as u64,
        address,
        name_size: NAME as u32,
        name: name.as_mut_ptr() as u64,
        ..Query::default()
    };
    // SAFETY: the kernel writes to `query`, whose length is in `size`, and at most `name_size`
    // bytes to `name`; both live until it returns. A kernel that does not know the request writes
    // to neither.
    let asked = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    let name = if asked == 0 {
        // The size is 0 without a name, else that of the text with its zero.
        let length = (query.name_size as usize).saturating_sub(1);
        String::from_utf8_lossy(name.get(..length).unwrap_or_default()).into_owned()
    } else {
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::ENOENT) => return MappingAnswer::Unmapped,
            // A file with a long path; the kernel does not return the rest of the result.
            _ => return MappingAnswer::Unknown,
        }
    };
    MappingAnswer::In(Mapping {
        range: query.start..query.end,
        readable: query.rights & READABLE != 0,
        executable: query.rights & EXECUTABLE != 0,
        inode: query.inode,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::proc;

    /// Whether the kernel is Linux 6.11 or newer.
    fn is_answered() -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next().unwrap().parse::<u32>().unwrap();
        (next(), next()) >= (6, 11)
    }

    #[test]
    fn the_kernel_says_the_same_of_one_as_of_all() {
        let all = proc::mappings();
        let stack = 0u8;
        let addresses = [
            at as fn(u64) -> MappingAnswer as usize as u64,
            &raw const stack as u64,
        ];
        for address in addresses {
            let expected = proc::mapping_of(&all, address).unwrap();
            match at(address) {
                MappingAnswer::Unknown => assert!(!is_answered()),
                found => assert_eq!(found, MappingAnswer::In(expected.clone())),
            }
        }
        assert!(matches!(
            at(0),
            MappingAnswer::Unmapped | MappingAnswer::Unknown
        ));
    }
}
