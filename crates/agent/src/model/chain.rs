//! A chain of async methods as the handler leaves it: words behind those of the physical frames.
//!
//! One word for each link, youngest first, and a head behind them, which is the last word of the
//! sample: so the words of dispatcher and chain, which change least, stand where the ring shares
//! them between samples. It names nothing.
//!
//! Invariant: no word of a walk has the bit of the head, so the last word tells by itself whether a
//! sample has a chain.

/// The last word of a sample with a chain has it; beside [`stackwalk::EXACT`] and its kin, below
/// [`super::NATIVE_RUN`].
const HEAD: u64 = 1 << 59;
/// Where a method table is in memory of 47 bits, aligned to 8 bytes.
const TABLE: u64 = (1 << 47) - 8;
/// A link with this bit has an address of code in place of a method table, and no role.
const IS_CODE: u64 = 1 << 47;

/// Most links that are kept of a chain.
pub const MAX_LINKS: usize = 256;
/// Words that a chain needs behind a stack.
pub const CHAIN_WORDS: usize = MAX_LINKS + 1;

/// A state that is not known, or too large to be carried.
pub const NO_STATE: i32 = i16::MIN as i32;

/// The role of an object in a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A task: an async method, or a promise.
    Task = 0,
    /// An object between two tasks that is worth a label.
    Via = 1,
    /// The chain ends at it.
    Last = 2,
    /// More objects wait for the task before; so many others as the state says.
    Others = 3,
    /// A suspended method of runtime async, by an address in its code.
    Suspended = 4,
}

/// One object of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Its method table, which is its class's id; of a suspended method the address in its code.
    pub table: u64,
    /// The role of the object.
    pub role: Role,
    /// `<>1__state` of its state machine, or [`NO_STATE`].
    pub state: i32,
}

impl Link {
    /// As a word of a sample.
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

/// Why a chain ends where it does, or why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ChainEnd {
    /// The last one is not awaited (yet).
    Root = 0,
    /// A thread blocks until the last one is done.
    Blocked = 1,
    /// The object that waits for the last one is no async method.
    Other = 2,
    /// The method's task is done, and has forgotten who awaited it.
    Completing = 3,
    /// The awaiting method does not await any more.
    Stale = 4,
    /// There are more links than are kept.
    TooDeep = 5,
    /// Reading it took too long.
    TooSlow = 6,
    /// The runtime was stopping, or its objects were being moved.
    GateClosed = 7,
    /// The method was interrupted where nothing says where its object is.
    NotLive = 8,
    /// The value that should be its object is none.
    Strange = 9,
    /// Of the last object's class nothing was known yet.
    Unknown = 10,
}

impl ChainEnd {
    /// All of them.
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

    /// As recordings name it.
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

    /// Whether all is known that there is to know.
    pub const fn is_whole(self) -> bool {
        matches!(self, ChainEnd::Root | ChainEnd::Blocked | ChainEnd::Other)
    }

    fn of(code: u8) -> ChainEnd {
        let found = ChainEnd::ALL.iter().find(|end| **end as u8 == code);
        found.copied().unwrap_or(ChainEnd::Strange)
    }
}

/// The begin of a chain: its first link, and when it counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ChainBegin {
    /// The task of the method of the youngest frame that was resumed.
    Method = 0,
    /// The same, but only if the next older frame is of code that resumes async methods, which the
    /// handler did not know.
    MethodIfResumed = 1,
    /// The task that the thread runs, which is no async method's: only if a dispatcher runs it, as
    /// one that is run where it is waited for has its physical callers.
    Task = 2,
    /// The callers of the method of runtime async that the youngest of the older frames has
    /// resumed; where it has resumed none, those for whom it works.
    Dispatcher = 3,
    /// The task whose own code the youngest of the older frames is: it is about to resume its
    /// method, or has just done so, or has called it where no other source reported that method.
    Resumer = 4,
}

impl ChainBegin {
    /// All of them, by their codes.
    pub const ALL: [ChainBegin; 5] = [
        ChainBegin::Method,
        ChainBegin::MethodIfResumed,
        ChainBegin::Task,
        ChainBegin::Dispatcher,
        ChainBegin::Resumer,
    ];
}

/// The last word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainHead {
    /// Frames that are older than the resumed method's: who resumed it, and no callers.
    pub older: u16,
    /// Links before this word.
    pub links: u16,
    /// How the chain ends.
    pub end: ChainEnd,
    /// The begin of the chain.
    pub begin: ChainBegin,
}

impl ChainHead {
    /// As a word of a sample.
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

/// A sample's chain, as it was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chain<'a> {
    /// See [`ChainHead::older`].
    pub older: usize,
    /// The links, packed.
    pub links: &'a [u64],
    /// How it ends.
    pub end: ChainEnd,
    /// See [`ChainHead::begin`].
    pub begin: ChainBegin,
}

/// Returns the words behind a stack without its oldest `left_out` frames, as [`split`] finds them.
/// There are none if the method that was resumed was among those frames.
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

/// The words of a walk, and its chain if it has one.
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
        // A head that speaks of more links than there are words.
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
