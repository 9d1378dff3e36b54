//! Writes a synthetic recording in memory, reads it back, imports it, and prints what that cost.
//!
//! `cargo run --release -p profile --example measure_import [MILLIONS]`

use std::time::Instant;

use profile::Import;
use recording::{
    Event, Frame, Item, ProcessKey, PushOutcome, Reader, Record, Tier, WalkEnd, Writer, file_header,
};

/// xorshift: the same recording every time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn main() {
    let millions: u64 = std::env::args()
        .nth(1)
        .map_or(1, |word| word.parse().expect("a number"));
    let samples = millions * 1_000_000;
    let (file, pushing) = write(samples);
    let per_sample = |nanoseconds: u128| nanoseconds as f64 / samples as f64;
    println!("{samples} samples, {} bytes", file.len());
    println!("{:.2} bytes a sample", file.len() as f64 / samples as f64);
    println!("writing {:.0} ns a sample", per_sample(pushing));

    let start = Instant::now();
    let mut reader = Reader::open(file.as_slice()).expect("a recording");
    let mut records = 0u64;
    while let Some(item) = reader.next_item().expect("memory can be read") {
        records += u64::from(matches!(item, Item::Record(..)));
    }
    println!(
        "reading {:.0} ns a sample, {records} records",
        per_sample(start.elapsed().as_nanos())
    );

    let before = resident();
    let start = Instant::now();
    let mut reader = Reader::open(file.as_slice()).expect("a recording");
    let mut import = Import::new();
    while let Some(item) = reader.next_item().expect("memory can be read") {
        import.item(&item);
    }
    let taken = start.elapsed().as_nanos();
    let profile = import.finish();
    let finished = start.elapsed().as_nanos();
    println!(
        "import {:.0} ns a sample, {:.0} of them to finish",
        per_sample(finished),
        per_sample(finished - taken)
    );
    println!(
        "profile {} MiB, {} stacks",
        (resident() - before) >> 20,
        profile.stacks.len()
    );

    let start = Instant::now();
    let rows = profile::ops::totals(&profile, profile::ops::GroupBy::Method, |_| true);
    println!(
        "totals {} ms, {} rows",
        start.elapsed().as_millis(),
        rows.len()
    );
}

/// 32 threads, 200,000 nodes of stacks, most samples in few of them.
fn write(samples: u64) -> (Vec<u8>, u128) {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut file = file_header("measure_import");
    let mut writer = Writer::new(ProcessKey(1));
    let mut push = |record: &Record<'_>, file: &mut Vec<u8>| {
        if writer.push(record) != PushOutcome::Added {
            writer.take_block_into(file);
        }
    };
    for thread in 0..32 {
        let name = format!(".NET TP Worker {thread}").into();
        push(
            &Record::Thread {
                thread,
                tid: 4000 + thread,
                name,
                managed: true,
                time_ns: 1,
            },
            &mut file,
        );
    }
    for method in 0..2_000 {
        let name = format!("Method{method}").into();
        push(
            &Record::Method {
                method,
                runtime: 0,
                kind: recording::MethodKind::Il,
                module: None,
                token: 0x0600_0000 + method,
                type_name: "Company.Product.Area.Type".into(),
                name,
            },
            &mut file,
        );
        let value = Frame::Managed {
            method,
            tier: Tier::Tier1,
            il_offset: Some(method % 100),
        };
        push(
            &Record::Frame {
                frame: method,
                value,
            },
            &mut file,
        );
    }
    for stack in 0..200_000u32 {
        // Mostly deeper, so that stacks are some 40 deep.
        let parent =
            (stack % 40 != 0).then(|| stack - 1 - (random.below(3) as u32).min(stack % 40 - 1));
        push(
            &Record::Stack {
                stack,
                parent,
                frame: random.below(2_000) as u32,
            },
            &mut file,
        );
    }
    let head = file.len();
    let start = Instant::now();
    for number in 0..samples {
        // 32 threads, each drained in turn, some samples at a time; a skewed choice of stacks.
        let thread = (number / 8 % 32) as u32;
        let range = 1 << (random.below(18) + 1);
        let sample = Record::Sample {
            thread,
            stack: random.below(range.min(200_000)) as u32,
            time_ns: 1_000_000_000
                + (number / 256 * 8 + number % 8) * 1_001_000
                + random.below(20_000),
            event: Event::Cpu,
            value: 1_001_001,
            end: WalkEnd::Root,
            detail: None,
            logical: None,
        };
        push(&sample, &mut file);
    }
    let spent = start.elapsed().as_nanos();
    writer.take_block_into(&mut file);
    eprintln!("definitions {head} bytes");
    (file, spent)
}

/// Resident memory of this process, bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
    let pages: u64 = status
        .split(' ')
        .nth(1)
        .expect("statm has fields")
        .parse()
        .expect("a number");
    pages * 4096
}
