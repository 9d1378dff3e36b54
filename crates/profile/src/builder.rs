//! Builder of profiles: adds strings, frames and stacks, each once.
//!
//! `import` uses it to read recordings. Invariant: equal items get equal ids, and a stack's parent
//! has the smaller id, because the parent is added first.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::model::{Detail, DetailId, Frame, FrameId, Profile, Stack, StackId, StringId};

/// A profile under construction.
///
/// ```
/// # use profile::{Builder, Profile};
/// let mut builder = Builder::new();
/// let name = builder.string("Program.Main");
/// assert_eq!(builder.string("Program.Main"), name);
/// let profile: Profile = builder.finish();
/// assert_eq!(profile.strings, ["Program.Main"]);
/// ```
#[derive(Default)]
pub struct Builder {
    /// The profile built so far. Callers add to `modules`, `threads`, `samples`… directly;
    /// `strings`, `frames`, `stacks` and `details` grow through the builder's methods only.
    pub profile: Profile,
    strings: HashTable<u32>,
    frames: HashTable<u32>,
    stacks: HashTable<u32>,
    details: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Builder {
    /// Returns a builder of an empty profile.
    #[must_use]
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Returns a builder that extends a profile.
    #[must_use]
    pub fn from_profile(profile: Profile) -> Builder {
        let mut builder = Builder {
            profile,
            ..Builder::default()
        };
        let Builder {
            profile,
            strings,
            frames,
            stacks,
            details,
            hasher,
        } = &mut builder;
        index(strings, &profile.strings, hasher);
        index(frames, &profile.frames, hasher);
        index(stacks, &profile.stacks, hasher);
        index(details, &profile.details, hasher);
        builder
    }

    /// Returns the id of a string, which is added if it is new.
    pub fn string(&mut self, text: &str) -> StringId {
        let hash = self.hasher.hash_one(text);
        let table = &mut self.profile.strings;
        if let Some(&id) = self.strings.find(hash, |&id| table[id as usize] == text) {
            return StringId(id);
        }
        let id = next_id(table.len());
        table.push(text.to_owned());
        let hasher = &self.hasher;
        let rehash = |&id: &u32| hasher.hash_one(table[id as usize].as_str());
        self.strings.insert_unique(hash, id, rehash);
        StringId(id)
    }

    /// The id of a frame.
    pub fn frame(&mut self, frame: Frame) -> FrameId {
        FrameId(intern(
            &mut self.frames,
            &mut self.profile.frames,
            frame,
            &self.hasher,
        ))
    }

    /// The id of a detail.
    pub fn detail(&mut self, detail: Detail) -> DetailId {
        DetailId(intern(
            &mut self.details,
            &mut self.profile.details,
            detail,
            &self.hasher,
        ))
    }

    /// The id of the stack in which `frame` was called from `parent`.
    pub fn stack(&mut self, parent: Option<StackId>, frame: FrameId) -> StackId {
        let stack = Stack { parent, frame };
        StackId(intern(
            &mut self.stacks,
            &mut self.profile.stacks,
            stack,
            &self.hasher,
        ))
    }

    /// The id of the stack with these frames, root first. `None` where there are none.
    pub fn stack_of(&mut self, frames: &[FrameId]) -> Option<StackId> {
        frames
            .iter()
            .fold(None, |parent, &frame| Some(self.stack(parent, frame)))
    }

    /// The finished profile, samples and pauses by time.
    #[must_use]
    pub fn finish(self) -> Profile {
        let mut profile = self.profile;
        if !profile.samples.is_sorted_by_key(|sample| sample.time_ns) {
            profile.samples.sort_by_key(|sample| sample.time_ns);
        }
        profile.pauses.sort_by_key(|pause| pause.time_ns);
        profile
    }
}

fn intern<T: Hash + Eq>(
    ids: &mut HashTable<u32>,
    table: &mut Vec<T>,
    value: T,
    hasher: &DefaultHashBuilder,
) -> u32 {
    let hash = hasher.hash_one(&value);
    if let Some(&id) = ids.find(hash, |&id| table[id as usize] == value) {
        return id;
    }
    let id = next_id(table.len());
    table.push(value);
    ids.insert_unique(hash, id, |&id| hasher.hash_one(&table[id as usize]));
    id
}

fn index<T: Hash + Eq>(ids: &mut HashTable<u32>, table: &[T], hasher: &DefaultHashBuilder) {
    for (id, value) in table.iter().enumerate() {
        let hash = hasher.hash_one(value);
        ids.insert_unique(hash, next_id(id), |&id| {
            hasher.hash_one(&table[id as usize])
        });
    }
}

/// Ids are 32 bits. A table with more rows needs more than 200 GB of recording before.
fn next_id(length: usize) -> u32 {
    u32::try_from(length).expect("a profile has fewer than 2^32 strings, frames and stacks")
}
