//! Tests of the GcInfo decoder with written data and with core libraries of real runtimes.

mod corelib;
mod written;

use super::*;
use corelib::CoreLib;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, Register};

/// Another version, with which the bytes are misread.
fn other(version: Version) -> Version {
    match version {
        Version::V2 | Version::V3 => Version::V4,
        Version::V4 => Version::V3,
    }
}

/// An unknown version is not read as the newest known one.
#[test]
fn the_versions_of_runtimes_and_images_are_known_or_refused() {
    let runtimes = [1, 8, 9, 10, 11, 12, u32::MAX].map(Version::of_runtime);
    let (v2, v3, v4) = (Some(Version::V2), Some(Version::V3), Some(Version::V4));
    assert_eq!(runtimes, [None, v2, v3, v4, v4, None, None]);
    let images = [1, 2, 10, 11, 16, 26, 27, u32::MAX].map(Version::of_image);
    assert_eq!(images, [None, v3, v3, v4, v4, v4, None, None]);
}

fn code<'a>(lib: &'a CoreLib, start: u64, info: &GcInfo<'_>) -> &'a [u8] {
    &lib.image.bytes_at(start)[..info.code_length() as usize]
}

/// Offsets of the return addresses of all calls.
fn returns(code: &[u8]) -> Vec<u32> {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut returns = Vec::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let flow = instruction.flow_control();
        if matches!(flow, FlowControl::Call | FlowControl::IndirectCall) {
            returns.push(instruction.next_ip() as u32);
        }
    }
    returns
}

/// Decodes all methods. The recorded length is right and each safe point is behind a call only if
/// every number before was decoded correctly. Another version's decoder rejects the same bytes.
#[test]
fn all_methods_of_real_core_libraries_are_read() {
    for lib in corelib::all() {
        let (mut points, mut wrong, mut refused, mut elsewhere) = (0, 0, 0, 0);
        assert!(lib.methods.len() > 15_000, "{}", lib.version);
        for method in &lib.methods {
            let info = lib.image.gc_info(method.start);
            let info = info.unwrap_or_else(|error| panic!("{}: {error:?}", method.name));
            info.check().unwrap();
            let adjustment = info.version().return_adjustment();
            let off = |adjustment: u32| {
                let returns = returns(code(&lib, method.start, &info));
                let points = info.safe_points().iter();
                points
                    .filter(|point| !returns.contains(&(**point + adjustment)))
                    .count()
            };
            wrong += off(adjustment);
            elsewhere += off(1 - adjustment);
            points += info.safe_points().len();

            let version = other(info.version());
            let read = decode(&*info.bytes, version, info.code_length());
            refused += usize::from(read.and_then(|info| info.check()).is_err());
        }
        let methods = lib.methods.len();
        println!("{}: {methods} methods, {points} safe points", lib.version);
        assert!(points > 20_000, "{}: {points}", lib.version);
        assert_eq!(wrong, 0, "{}: not behind a call", lib.version);
        assert_eq!(
            elsewhere, points,
            "{}: the other version's rule",
            lib.version
        );
        let percent = refused * 100 / methods;
        assert!(percent >= 99, "{}: {percent} % refused", lib.version);
    }
}

/// State machines: a struct or a class keeps `this` in one slot, from the prologue to the end of
/// its try block.
#[test]
fn state_machines_of_real_core_libraries_have_one_home_for_this() {
    for lib in corelib::with_state_machines() {
        let (mut structs, mut classes, mut others, mut less) = (0, 0, 0, Vec::new());
        for method in &lib.methods {
            if method.name != "MoveNext" || !method.type_name.contains(">d__") {
                continue;
            }
            let info = lib.image.gc_info(method.start).unwrap();
            let homes = lib.image.this_homes(method.start, &info).unwrap();
            let Some(home) = homes.first().filter(|home| home.stored) else {
                // No try block: an iterator.
                others += 1;
                continue;
            };
            assert_eq!(info.frame_register(), Some(5));
            assert!(
                home.tracked && !info.interruptible().is_empty(),
                "{}",
                method.type_name
            );
            assert!(homes[1..].iter().all(|other| !other.stored));
            *(if home.interior {
                &mut structs
            } else {
                &mut classes
            }) += 1;
            assert_eq!(stored(code(&lib, method.start, &info)), Some(home.offset));

            let first = home.live.first().unwrap().start;
            assert_eq!(first, info.interruptible()[0].start, "{}", method.type_name);
            assert!(home.live.len() <= MAX_LIVE && home.live.is_sorted_by(|a, b| a.end < b.start));
            let lives: u32 = home.live.iter().map(|live| live.end - live.start).sum();
            let all = info.interruptible_length();
            if f64::from(lives) < f64::from(all) * 0.6 {
                less.push((&method.type_name, lives, all));
            }
            // Homes of the object's or struct's own kind are unambiguous: others of that kind are
            // short-lived.
            for other in homes[1..]
                .iter()
                .filter(|other| other.interior == home.interior)
            {
                let other: u32 = other.live.iter().map(|live| live.end - live.start).sum();
                assert!(!home.interior || other * 8 < lives, "{}", method.type_name);
            }
        }
        println!(
            "{}: {structs} structs, {classes} classes, {others} without",
            lib.version
        );
        assert!(
            structs >= 10 && structs > classes + others,
            "{structs} structs"
        );
        // Live to the end of the try block, so for most of the code.
        assert!(less.is_empty(), "{less:?}");
    }
}

/// Returns the slot in which the prologue stores its first argument, decoded by iced, by way of any
/// register.
fn stored(code: &[u8]) -> Option<i32> {
    let mut holders = vec![Register::RDI];
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    for _ in 0..64 {
        let instruction = decoder.decode();
        if instruction.mnemonic() != Mnemonic::Mov {
            continue;
        }
        let (to, from) = (instruction.op0_register(), instruction.op1_register());
        if !holders.contains(&from) {
            holders.retain(|holder| *holder != to);
        } else if to != Register::None {
            holders.push(to);
        } else if instruction.memory_base() == Register::RBP {
            return Some(instruction.memory_displacement64() as i32);
        }
    }
    None
}
