//! The classes by which a runtime is told to make the agent: how it comes, and into which of the
//! runtime's slots.
//!
//! `CreateInstance` and `LoadAsNotificationOnly` are asked before a profiler hears of anything
//! else, so both must be in the class.

/// How the agent comes to a runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// With the runtime, named by its environment.
    Startup,
    /// While it runs, by the attach command.
    Attached,
}

/// Where a runtime keeps a profiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// The one main profiler.
    Main,
    /// Beside the main one (.NET 6 on): it hears, and changes nothing.
    Notification,
}

/// The class that comes at start-up, into the main slot; the others differ in the last byte. Bytes
/// as a GUID has them in memory.
pub const BASE: [u8; 16] = [
    0x1c, 0x9a, 0x3e, 0x5d, 0x42, 0x7b, 0x6e, 0x4f, 0x9c, 0x05, 0x2a, 0x1b, 0x8e, 0x47, 0xd6, 0x30,
];

/// The class of an arrival.
pub const fn class_of(arrival: Arrival, slot: Slot) -> [u8; 16] {
    let mut class = BASE;
    class[15] = last_byte(arrival, slot);
    class
}

const fn last_byte(arrival: Arrival, slot: Slot) -> u8 {
    let arrival = match arrival {
        Arrival::Startup => 0,
        Arrival::Attached => 2,
    };
    let slot = match slot {
        Slot::Main => 0,
        Slot::Notification => 1,
    };
    BASE[15] + arrival + slot
}

impl Arrival {
    /// Arrival and slot by the last byte of a class. A strange byte means start-up, in the main
    /// slot.
    pub const fn from_last_byte(byte: u8) -> (Arrival, Slot) {
        match byte.wrapping_sub(BASE[15]) {
            1 => (Arrival::Startup, Slot::Notification),
            2 => (Arrival::Attached, Slot::Main),
            3 => (Arrival::Attached, Slot::Notification),
            _ => (Arrival::Startup, Slot::Main),
        }
    }
}

/// `{5D3E9A1C-7B42-4F6E-9C05-2A1B8E47D630}`.
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
        for arrival in [Arrival::Startup, Arrival::Attached] {
            for slot in [Slot::Main, Slot::Notification] {
                let class = class_of(arrival, slot);
                assert_eq!(Arrival::from_last_byte(class[15]), (arrival, slot));
                seen.push(clsid_text(class));
            }
        }
        assert_eq!(seen[0], "{5D3E9A1C-7B42-4F6E-9C05-2A1B8E47D630}");
        seen.dedup();
        assert_eq!(seen.len(), 4);
        assert_eq!(Arrival::from_last_byte(7), (Arrival::Startup, Slot::Main));
    }
}
