//! Class ids of the agent: each encodes start-up or attach, and main or notification profiler.
//!
//! The runtime creates the agent by its class id. It calls `CreateInstance` and
//! `LoadAsNotificationOnly` before it passes any other information, so the class id must contain
//! both facts.

/// How the agent is loaded into a runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadMode {
    /// At the runtime's start, named in its environment.
    Startup,
    /// Into a running runtime, by the attach command.
    Attached,
}

/// The runtime's place for a profiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProfilerSlot {
    /// The one main profiler.
    Main,
    /// A notification profiler beside the main one (.NET 6 on), which may not change code.
    Notification,
}

/// Class id for start-up and the main slot, in the memory layout of a GUID. The other class ids
/// differ in the last byte.
pub const BASE: [u8; 16] = [
    0x1c, 0x9a, 0x3e, 0x5d, 0x42, 0x7b, 0x6e, 0x4f, 0x9c, 0x05, 0x2a, 0x1b, 0x8e, 0x47, 0xd6, 0x30,
];

/// The class id of an load_mode and a slot.
pub const fn class_of(load_mode: LoadMode, slot: ProfilerSlot) -> [u8; 16] {
    let mut class = BASE;
    class[15] = last_byte(load_mode, slot);
    class
}

const fn last_byte(load_mode: LoadMode, slot: ProfilerSlot) -> u8 {
    let load_mode = match load_mode {
        LoadMode::Startup => 0,
        LoadMode::Attached => 2,
    };
    let slot = match slot {
        ProfilerSlot::Main => 0,
        ProfilerSlot::Notification => 1,
    };
    BASE[15] + load_mode + slot
}

impl LoadMode {
    /// Returns load mode and slot by the last byte of a class. An unknown byte means start-up, in
    /// the main slot.
    pub const fn from_last_byte(byte: u8) -> (LoadMode, ProfilerSlot) {
        match byte.wrapping_sub(BASE[15]) {
            1 => (LoadMode::Startup, ProfilerSlot::Notification),
            2 => (LoadMode::Attached, ProfilerSlot::Main),
            3 => (LoadMode::Attached, ProfilerSlot::Notification),
            _ => (LoadMode::Startup, ProfilerSlot::Main),
        }
    }
}

/// Formats a class id: `{5D3E9A1C-7B42-4F6E-9C05-2A1B8E47D630}`.
pub fn clsid_text(class: [u8; 16]) -> String {
    let [a, b, c, d, e, f, g, h, rest @ ..] = class;
    let [i, j, tail @ ..] = rest;
    let tail: String = tail.iter().map(|byte| format!("{byte:02X}")).collect();
    format!("{{{d:02X}{c:02X}{b:02X}{a:02X}-{f:02X}{e:02X}-{h:02X}{g:02X}-{i:02X}{j:02X}-{tail}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_arrival_has_a_class_of_its_own() {
        let mut seen = Vec::new();
        for load_mode in [LoadMode::Startup, LoadMode::Attached] {
            for slot in [ProfilerSlot::Main, ProfilerSlot::Notification] {
                let class = class_of(load_mode, slot);
                assert_eq!(LoadMode::from_last_byte(class[15]), (load_mode, slot));
                seen.push(clsid_text(class));
            }
        }
        assert_eq!(seen[0], "{5D3E9A1C-7B42-4F6E-9C05-2A1B8E47D630}");
        seen.dedup();
        assert_eq!(seen.len(), 4);
        assert_eq!(
            LoadMode::from_last_byte(7),
            (LoadMode::Startup, ProfilerSlot::Main)
        );
    }
}
