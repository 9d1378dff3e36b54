//! Encoding of an async chain (the awaiting methods behind a resumed one) in the words of a sample.
//!
//! The signal handler writes it after the words of the physical frames, without names. Each link is
//! one word, youngest first. The head follows as the sample's last word. The words of dispatcher
//! and chain change least, so they are placed where the ring buffer shares them between samples.
//!
//! Invariant: no word of a walk has the head's bit, so the last word shows whether a sample has a
//! chain.

/// Bit of the last word of a sample with a chain. It differs from [`stackwalk::EXACT`] and its kin,
/// and is below [`super::NATIVE_RUN`].
const HEAD: u64 = 1 << 59;
/// Bits of a method table's address: 47 bits of memory, aligned to 8 bytes.
const TABLE: u64 = (1 << 47) - 8;
/// Bit of a link with a code address in place of a method table; it has no role.
const IS_CODE: u64 = 1 << 47;

/// Maximum number of links of a chain.
pub const MAX_LINKS: usize = 256;
/// Maximum number of words of a chain.
pub const CHAIN_WORDS: usize = MAX_LINKS + 1;

/// A state that is unknown, or too large for a link.
pub const NO_STATE: i32 = i16::MIN as i32;

/// The role of an object in a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A task: an async method, or a promise.
    Task = 0,
    /// An object between two tasks that gets a label.
    Via = 1,
    /// The last object of the chain.
    Last = 2,
    /// Several objects wait for the task before; the state is the number of the others.
    Others = 3,
    /// A suspended method of runtime async, by an address in its code.
    Suspended = 4,
}

/// One object of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Its method table, which is its class's id; for a suspended method an address in its code.
    pub table: u64,
    /// The role of the object.
    pub role: Role,
    /// `<>1__state` of its state machine, or [`NO_STATE`].
    pub state: i32,
}

impl Link {
    /// Returns the word of a sample.
    pub fn pack(self) -> u64 {
        let state = i16::try_from(self.state).unwrap_or(i16::MIN);
        let object = match self.role {
            Role::Suspended => self.table & (IS_CODE - 1) | IS_CODE,
            role => self.table & TABLE | role as u64,
        };
        object | u64::from(state.cast_unsigned()) << 48
    }

    /// The inverse of [`Link::pack`].
    pub fn unpack(word: u64) -> Link {
        let (table, role) = match word & (IS_CODE | 3) {
            code if code & IS_CODE != 0 => (word & (IS_CODE - 1), Role::Suspended),
            0 => (word & TABLE, Role::Task),
            1 => (word & TABLE, Role::Via),
            2 => (word & TABLE, Role::Last),
            _ => (word & TABLE, Role::Others),
        };
        Link {
            table,
            role,
            state: i32::from(((word >> 48) as u16).cast_signed()),
        }
    }
}

/// Why a chain ends at its last link, or why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ChainEnd {
    /// The last method is not awaited (yet).
    Root = 0,
    /// A thread blocks until the last task is done.
    Blocked = 1,
    /// The object that waits for the last task is not an async method.
    Other = 2,
    /// The method's task is done, and no longer refers to its awaiter.
    Completing = 3,
    /// The awaiting method no longer awaits.
    Stale = 4,
    /// The chain has more than the maximum number of links.
    TooDeep = 5,
    /// Reading it took too long.
    TooSlow = 6,
    /// The runtime was suspending, or its objects were being moved.
    GateClosed = 7,
    /// The method was interrupted at an instruction for which its object's location is unknown.
    NotLive = 8,
    /// The value in place of its object is not an object.
    Strange = 9,
    /// The class of the last object was not known yet.
    Unknown = 10,
}

impl ChainEnd {
    /// All values.
    pub const ALL: [ChainEnd; 11] = [
        ChainEnd::Root,
        ChainEnd::Blocked,
        ChainEnd::Other,
        ChainEnd::Completing,
        ChainEnd::Stale,
        ChainEnd::TooDeep,
        ChainEnd::TooSlow,
        ChainEnd::GateClosed,
        ChainEnd::NotLive,
        ChainEnd::Strange,
        ChainEnd::Unknown,
    ];

    /// Returns the name in recordings.
    pub const fn name(self) -> &'static str {
        match self {
            ChainEnd::Root => "not awaited",
            ChainEnd::Blocked => "blocking wait",
            ChainEnd::Other => "no async method",
            ChainEnd::Completing => "just completed (awaiter no longer known)",
            ChainEnd::Stale => "stale link",
            ChainEnd::TooDeep => "too deep",
            ChainEnd::TooSlow => "too slow",
            ChainEnd::GateClosed => "gate closed",
            ChainEnd::NotLive => "no home",
            ChainEnd::Strange => "not its object",
            ChainEnd::Unknown => "class not known yet",
        }
    }

    /// Whether the chain is complete.
    pub const fn is_whole(self) -> bool {
        matches!(self, ChainEnd::Root | ChainEnd::Blocked | ChainEnd::Other)
    }

    fn of(code: u8) -> ChainEnd {
        let found = ChainEnd::ALL.iter().find(|end| **end as u8 == code);
        found.copied().unwrap_or(ChainEnd::Strange)
    }
}

/// Where a chain begins: its first link, and the condition under which the chain is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ChainBegin {
    /// The task of the youngest resumed method.
    Method = 0,
    /// As `Method`, but valid only if the next older frame is code that resumes async methods,
    /// which the handler did not know.
    MethodIfResumed = 1,
    /// The task that the thread runs, which is no async method's. Valid only if a dispatcher runs
    /// it: a task run by its waiter has its physical callers.
    Task = 2,
    /// The callers of the runtime-async method that the youngest of the older frames has resumed;
    /// if it has resumed none, the callers for which it works.
    Dispatcher = 3,
    /// The task to which the youngest of the older frames belongs. Its code is about to resume its
    /// method, has just done so, or called it without another source reporting that method.
    Resumer = 4,
}

impl ChainBegin {
    /// All values, by code.
    pub const ALL: [ChainBegin; 5] = [
        ChainBegin::Method,
        ChainBegin::MethodIfResumed,
        ChainBegin::Task,
        ChainBegin::Dispatcher,
        ChainBegin::Resumer,
    ];
}

/// The head of a chain: its last word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainHead {
    /// Number of frames older than the resumed method's. They resumed it and are not its callers.
    pub older: u16,
    /// Number of links before this word.
    pub links: u16,
    /// Why the chain ends.
    pub end: ChainEnd,
    /// The begin of the chain.
    pub begin: ChainBegin,
}

impl ChainHead {
    /// Returns the word of a sample.
    pub fn pack(self) -> u64 {
        let fields = u64::from(self.older) | u64::from(self.links) << 16;
        HEAD | fields | u64::from(self.end as u8) << 32 | u64::from(self.begin as u8) << 40
    }

    fn unpack(word: u64) -> Option<ChainHead> {
        if word & (HEAD | super::NATIVE_RUN) != HEAD {
            return None;
        }
        Some(ChainHead {
            older: word as u16,
            links: (word >> 16) as u16,
            end: ChainEnd::of((word >> 32) as u8),
            begin: *ChainBegin::ALL.get((word >> 40 & 7) as usize)?,
        })
    }
}

/// The chain of a sample, as the handler wrote it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chain<'a> {
    /// See [`ChainHead::older`].
    pub older: usize,
    /// The links, packed.
    pub links: &'a [u64],
    /// Why it ends.
    pub end: ChainEnd,
    /// See [`ChainHead::begin`].
    pub begin: ChainBegin,
}

/// Returns the chain's words after the oldest `left_out` frames were removed, as [`split`] expects
/// them. `None` if the resumed method was among those frames.
pub fn without_oldest(chain: Chain<'_>, left_out: usize) -> Option<impl Iterator<Item = u64>> {
    let older = chain.older.checked_sub(left_out)?;
    let head = ChainHead {
        older: u16::try_from(older).ok()?,
        links: u16::try_from(chain.links.len()).ok()?,
        end: chain.end,
        begin: chain.begin,
    };
    Some(chain.links.iter().copied().chain([head.pack()]))
}

/// Returns the words of a walk, and its chain if it has one.
pub fn split(words: &[u64]) -> (&[u64], Option<Chain<'_>>) {
    let Some((head, rest)) = words.split_last() else {
        return (words, None);
    };
    let Some(head) = ChainHead::unpack(*head) else {
        return (words, None);
    };
    let Some((frames, links)) = rest
        .len()
        .checked_sub(head.links.into())
        .and_then(|at| rest.split_at_checked(at))
    else {
        return (words, None);
    };
    let chain = Chain {
        older: usize::from(head.older),
        links,
        end: head.end,
        begin: head.begin,
    };
    (frames, Some(chain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stackwalk::{ADDRESS, BY_FRAME_POINTER, EXACT, HEURISTIC};

    #[test]
    fn links_are_what_they_were() {
        let code = Link {
            table: 0x7f12_3456_789b,
            role: Role::Suspended,
            state: NO_STATE,
        };
        assert_eq!(Link::unpack(code.pack()), code);
        for role in [Role::Task, Role::Via, Role::Last, Role::Others] {
            for state in [-2, -1, 0, 5, 32767, NO_STATE] {
                let link = Link {
                    table: 0x7f12_3456_7890,
                    role,
                    state,
                };
                assert_eq!(Link::unpack(link.pack()), link);
            }
        }
        let far = Link {
            table: 0x7f12_3456_7890,
            role: Role::Task,
            state: 40_000,
        };
        assert_eq!(Link::unpack(far.pack()).state, NO_STATE);
    }

    #[test]
    fn a_sample_is_split_where_its_chain_begins() {
        let all = ChainEnd::ALL.map(|end| ChainBegin::ALL.map(|begin| (end, begin)));
        for (end, begin) in all.into_iter().flatten() {
            let head = ChainHead {
                older: 3,
                links: 2,
                end,
                begin,
            };
            let words = [1, 2, 3, 4, 8, 16, head.pack()];
            let (frames, chain) = split(&words);
            assert_eq!(frames, [1, 2, 3, 4]);
            let chain = chain.unwrap();
            assert_eq!(
                (chain.older, chain.links, chain.end, chain.begin),
                (3, &words[4..6], end, begin)
            );
        }
    }

    #[test]
    fn a_chain_outlives_its_oldest_frames_and_not_its_own() {
        let head = ChainHead {
            older: 3,
            links: 2,
            end: ChainEnd::Root,
            begin: ChainBegin::MethodIfResumed,
        };
        let words = [1, 2, 3, 4, 8, 16, head.pack()];
        let (_, chain) = split(&words);
        let left_out = |count| without_oldest(chain.unwrap(), count).map(Vec::from_iter);
        assert_eq!(left_out(0).unwrap(), words[4..]);
        let head = ChainHead { older: 0, ..head };
        assert_eq!(left_out(3).unwrap(), [8, 16, head.pack()]);
        assert_eq!(left_out(4), None);
    }

    #[test]
    fn a_walk_without_a_chain_stays_whole() {
        let flags = [
            0,
            EXACT,
            BY_FRAME_POINTER,
            HEURISTIC,
            super::super::NATIVE_RUN,
        ];
        for flags in flags {
            let words = [1, ADDRESS | flags];
            assert_eq!(split(&words), (&words[..], None));
        }
        assert_eq!(split(&[]), (&[][..], None));
        // A head with more links than there are words.
        let head = ChainHead {
            older: 0,
            links: 9,
            end: ChainEnd::Root,
            begin: ChainBegin::Method,
        };
        let words = [1, head.pack()];
        assert_eq!(split(&words), (&words[..], None));
    }
}
