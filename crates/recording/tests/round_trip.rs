//! Round trips: property tests over all records, cut and damaged anywhere.

use std::borrow::Cow;

use proptest::prelude::*;
use recording::{
    Block, BlockSplitter, CostPart, DamageReason, Event, Frame, Item, MAX_BLOCK, MAX_STRING,
    MethodKind, ModuleKind, ProcessKey, PushOutcome, Reader, Record, SYNC, Tier, WalkEnd, Writer,
    file_header,
};

fn text() -> impl Strategy<Value = Cow<'static, str>> {
    prop_oneof![
        4 => "[ -~]{0,12}".prop_map(Cow::Owned),
        1 => ".{0,40}".prop_map(Cow::Owned),
    ]
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        0..300u64,
        1_000_000..1_000_000_000u64,
        any::<u64>(),
        Just(u64::MAX)
    ]
}

fn id() -> impl Strategy<Value = u32> {
    prop_oneof![0..10u32, 0..100_000u32, any::<u32>(), Just(u32::MAX)]
}

fn tier() -> impl Strategy<Value = Tier> {
    prop::sample::select(&Tier::ALL[..])
}

fn frame() -> impl Strategy<Value = Frame<'static>> {
    prop_oneof![
        (id(), tier(), proptest::option::of(id())).prop_map(|(method, tier, il_offset)| {
            Frame::Managed {
                method,
                tier,
                il_offset,
            }
        }),
        (id(), number()).prop_map(|(module, svma)| Frame::Native { module, svma }),
        (any::<u8>(), text()).prop_map(|(runtime, name)| Frame::Stub { runtime, name }),
        number().prop_map(|address| Frame::Unknown { address }),
        text().prop_map(|text| Frame::Pseudo { text }),
        (id(), any::<i32>()).prop_map(|(method, state)| Frame::Async { method, state }),
        text().prop_map(|text| Frame::AsyncMark { text }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    (0..13u8).prop_map(|code| Event::from_code(code).unwrap())
}

fn record() -> impl Strategy<Value = Record<'static>> {
    let (detail, logical) = (proptest::option::of(id()), proptest::option::of(id()));
    let stacks = (id(), logical);
    let sample = (id(), stacks, number(), event(), number(), 0..3u8, detail).prop_map(
        |(thread, (stack, logical), time_ns, event, value, end, detail)| {
            let end = WalkEnd::from_code(end);
            Record::Sample {
                thread,
                stack,
                time_ns,
                event,
                value,
                end,
                detail,
                logical,
            }
        },
    );
    let module = (
        (
            id(),
            any::<bool>(),
            proptest::option::of(any::<u8>()),
            text(),
        ),
        (
            number(),
            proptest::collection::vec(any::<u8>(), 0..20),
            number(),
        ),
    );
    let module = module.prop_map(
        |((module, managed, runtime, path), (bias, bytes, file_offset))| {
            let kind = if managed {
                ModuleKind::Managed
            } else {
                ModuleKind::Native
            };
            let id_bytes = Cow::Owned(bytes);
            Record::Module {
                module,
                kind,
                runtime,
                path,
                bias,
                id_bytes,
                file_offset,
            }
        },
    );
    let method = (
        (id(), any::<u8>(), 0..3u8, proptest::option::of(id())),
        (id(), text(), text()),
    );
    let method = method.prop_map(
        |((method, runtime, kind, module), (token, type_name, name))| {
            let kind = MethodKind::from_code(kind);
            Record::Method {
                method,
                runtime,
                kind,
                module,
                token,
                type_name,
                name,
            }
        },
    );
    prop_oneof![
        8 => sample,
        4 => (id(), proptest::option::of(id()), id())
            .prop_map(|(stack, parent, frame)| Record::Stack { stack, parent, frame }),
        4 => (id(), frame()).prop_map(|(frame, value)| Record::Frame { frame, value }),
        1 => module,
        1 => method,
        1 => (id(), id(), text(), number(), number()).prop_map(
            |(pid, parent, command, unix_ns, time_ns)| {
                Record::Process { pid, parent, command, unix_ns, time_ns }
            }
        ),
        1 => (text(), text(), event(), number(), id()).prop_map(
            |(engine, walker, event, interval_ns, max_depth)| {
                Record::Engine { engine, walker, event, interval_ns, max_depth }
            }
        ),
        1 => (any::<u8>(), text(), any::<bool>(), text()).prop_map(
            |(runtime, version, recorded, refused_by)| {
                Record::Runtime { runtime, version, recorded, refused_by }
            }
        ),
        1 => (id(), id(), text(), any::<bool>(), number()).prop_map(
            |(thread, tid, name, managed, time_ns)| {
                Record::Thread { thread, tid, name, managed, time_ns }
            }
        ),
        1 => (id(), number(), number())
            .prop_map(|(thread, time_ns, cpu_ns)| Record::ThreadEnd { thread, time_ns, cpu_ns }),
        1 => (text(), number()).prop_map(|(reason, count)| Record::Lost { reason, count }),
        1 => (text(), number()).prop_map(|(reason, count)| Record::Broken { reason, count }),
        1 => (text(), number()).prop_map(|(reason, count)| Record::AsyncCut { reason, count }),
        1 => (number(), number(), number(), number(), number(), number(), number()).prop_map(
            |(time_ns, agent_cpu_ns, target_cpu_ns, agent_memory, handler_ns, due, lost_ns)| {
                let due_ns = due.checked_sub(1);
                Record::Stats {
                    time_ns, agent_cpu_ns, target_cpu_ns, agent_memory, handler_ns, due_ns, lost_ns,
                }
            }
        ),
        1 => (text(), number(), number())
            .prop_map(|(reason, threads, cpu_ns)| Record::Unseen { reason, threads, cpu_ns }),
        1 => (0..3u8, any::<bool>(), number(), number(), text()).prop_map(
            |(part, modelled, count, cpu_ns, name)| {
                let part = CostPart::from_code(part).unwrap();
                Record::Cost { part, modelled, count, cpu_ns, name }
            }
        ),
        1 => (id(), number(), any::<u8>(), proptest::option::of(0..u32::MAX), text(), text()).prop_map(
            |(thread, time_ns, state, syscall, wait, missing)| {
                Record::ThreadState { thread, time_ns, state, syscall, wait, missing }
            }
        ),
        1 => ((id(), any::<u8>(), id(), number()), (text(), text(), text(), text())).prop_map(
            |((traced, runtime, token, min_ns), (module, type_name, name, refused))| {
                Record::Traced { traced, runtime, token, min_ns, module, type_name, name, refused }
            }
        ),
        1 => (
            (id(), number(), number()),
            (number(), number()),
            proptest::collection::vec((id(), number()), 0..20),
        ).prop_map(|((traced, time_ns, errors), (sum_ns, max_ns), buckets)| {
            let buckets = Cow::Owned(buckets);
            Record::Calls { traced, time_ns, errors, sum_ns, max_ns, buckets }
        }),
        1 => (
            (id(), id(), id(), proptest::option::of(id())),
            (number(), 0..3u8, proptest::option::of(0..u32::MAX)),
            (number(), number(), number()),
        ).prop_map(|((allocation, thread, stack, logical), (time_ns, end, detail), (bytes, size, collections))| {
            let end = WalkEnd::from_code(end);
            let logical = logical.filter(|id| *id != u32::MAX);
            Record::Survivor {
                allocation, thread, stack, logical, time_ns, end, bytes, size, collections, detail,
            }
        }),
        1 => (number(), proptest::collection::vec(id(), 0..20)).prop_map(|(time_ns, ids)| {
            Record::Gone { time_ns, allocations: Cow::Owned(ids) }
        }),
        1 => (number(), proptest::collection::vec(id(), 0..20)).prop_map(|(time_ns, ids)| {
            Record::Thinned { time_ns, allocations: Cow::Owned(ids) }
        }),
        1 => (number(), number())
            .prop_map(|(time_ns, collections)| Record::Instant { time_ns, collections }),
        1 => (id(), number(), number())
            .prop_map(|(thread, time_ns, ns)| Record::Collected { thread, time_ns, ns }),
        1 => text().prop_map(|text| Record::Note { text }),
        1 => number().prop_map(|time_ns| Record::End { time_ns }),
        1 => (id(), text(), text(), id())
            .prop_map(|(frame, name, file, line)| Record::Symbol { frame, name, file, line }),
        1 => (id(), event(), text(), text())
            .prop_map(|(detail, event, name, text)| Record::Detail { detail, event, name, text }),
        1 => (event(), text(), text(), number()).prop_map(|(event, source, walker, interval)| {
            Record::Source { event, source, walker, interval }
        }),
        1 => (event(), number(), number())
            .prop_map(|(event, count, value)| Record::Limited { event, count, value }),
        1 => (number(), id(), id())
            .prop_map(|(time_ns, before, after)| Record::Change { time_ns, before, after }),
        1 => (number(), number(), number()).prop_map(|(time_ns, stopping_ns, stopped_ns)| {
            Record::Pause { time_ns, stopping_ns, stopped_ns }
        }),
    ]
}

/// Blocks of two processes, interleaved, each with the records it holds.
type Blocks = Vec<(ProcessKey, Vec<Record<'static>>)>;

fn blocks() -> impl Strategy<Value = Blocks> {
    let block = (0..2u64, proptest::collection::vec(record(), 1..12));
    proptest::collection::vec(
        block.prop_map(|(key, records)| (ProcessKey(key), records)),
        0..8,
    )
}

/// The file, and the offset of each block's end.
fn write(blocks: &Blocks) -> (Vec<u8>, Vec<usize>) {
    let mut file = file_header("round_trip");
    let mut writers = [Writer::new(ProcessKey(0)), Writer::new(ProcessKey(1))];
    let mut ends = Vec::new();
    for (process, records) in blocks {
        let writer = &mut writers[process.0 as usize];
        for record in records {
            assert_eq!(writer.push(record), PushOutcome::Added);
        }
        assert!(writer.take_block_into(&mut file));
        ends.push(file.len());
    }
    (file, ends)
}

type Records = Vec<(ProcessKey, Record<'static>)>;

fn read(file: &[u8]) -> (Records, Vec<recording::Damage>) {
    let (mut records, mut damages) = (Vec::new(), Vec::new());
    let mut reader = Reader::open(file).unwrap();
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            Item::Record(process, record) => records.push((process, record.into_owned())),
            Item::Newer(process) => panic!("{process:?} has newer records"),
            Item::Damage(damage) => damages.push(damage),
        }
    }
    (records, damages)
}

fn flat(blocks: &[(ProcessKey, Vec<Record<'static>>)]) -> Records {
    let each = |(process, records): &(ProcessKey, Vec<Record<'static>>)| {
        records
            .iter()
            .map(|record| (*process, record.clone()))
            .collect::<Vec<_>>()
    };
    blocks.iter().flat_map(each).collect()
}

proptest! {
    #[test]
    fn what_is_written_is_read(blocks in blocks()) {
        let (file, _) = write(&blocks);
        let (records, damages) = read(&file);
        prop_assert_eq!(records, flat(&blocks));
        prop_assert_eq!(damages, vec![]);
    }

    #[test]
    fn a_file_cut_anywhere_opens_up_to_its_last_whole_block(
        blocks in blocks(),
        cut in any::<prop::sample::Index>(),
    ) {
        let (file, ends) = write(&blocks);
        let header = file_header("round_trip").len();
        let cut = header + cut.index(file.len() - header + 1);
        let whole = ends.iter().filter(|end| **end <= cut).count();
        let (records, damages) = read(&file[..cut]);
        prop_assert_eq!(records, flat(&blocks[..whole]));
        let last_end = ends[..whole].last().copied().unwrap_or(header);
        if last_end == cut {
            prop_assert_eq!(damages, vec![]);
        } else {
            prop_assert_eq!(damages.len(), 1);
            prop_assert_eq!(damages[0].reason, DamageReason::Truncated);
            prop_assert_eq!(damages[0].offset, last_end as u64);
            prop_assert_eq!(damages[0].length, (cut - last_end) as u64);
        }
    }

    #[test]
    fn one_damaged_byte_costs_one_block_and_is_reported(
        blocks in blocks(),
        place in any::<prop::sample::Index>(),
        flip in 1..=255u8,
    ) {
        let (mut file, ends) = write(&blocks);
        let header = file_header("round_trip").len();
        prop_assume!(file.len() > header);
        let place = header + place.index(file.len() - header);
        file[place] ^= flip;
        let hit = ends.iter().filter(|end| **end <= place).count();
        let mut others = blocks.clone();
        others.remove(hit);
        let (records, damages) = read(&file);
        prop_assert_eq!(records, flat(&others));
        let start = if hit == 0 { header } else { ends[hit - 1] };
        prop_assert_eq!(damages[0].offset, start as u64);
        prop_assert_eq!(damages[0].length, (ends[hit] - start) as u64);
        prop_assert!(matches!(damages[0].reason, DamageReason::Corrupt | DamageReason::Truncated));
        // A later block of the same process says that one is missing.
        let process = blocks[hit].0;
        let later = blocks[hit + 1..].iter().any(|(other, _)| *other == process);
        prop_assert_eq!(damages.len(), if later { 2 } else { 1 });
        if later {
            prop_assert_eq!(damages[1].reason, DamageReason::MissingBlocks(1));
            prop_assert_eq!(damages[1].process, Some(process));
        }
    }

    #[test]
    fn any_bytes_are_read_to_the_end(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let mut file = file_header("");
        file.extend_from_slice(&bytes);
        let (_, damages) = read(&file);
        // Random bytes hold no block: each one of them is accounted for.
        let lost: u64 = damages.iter().map(|damage| damage.length).sum();
        prop_assert_eq!(lost, bytes.len() as u64);
        if let Ok(mut reader) = Reader::open(bytes.as_slice()) {
            while reader.next_item().unwrap().is_some() {}
        }
    }

    #[test]
    fn any_bytes_inside_a_whole_block_are_read_to_the_end(
        bytes in proptest::collection::vec(any::<u8>(), 1..600),
    ) {
        let file = [file_header(""), raw_block(&bytes)].concat();
        let mut reader = Reader::open(file.as_slice()).unwrap();
        while reader.next_item().unwrap().is_some() {}
    }

    #[test]
    fn the_splitter_finds_the_same_blocks_however_they_arrive(
        blocks in blocks(),
        sizes in proptest::collection::vec(1..200usize, 1..20),
    ) {
        let (file, ends) = write(&blocks);
        let header = file_header("round_trip").len();
        let mut wire = &file[header..];
        let mut splitter = BlockSplitter::new();
        let mut sizes = sizes.iter().cycle();
        let mut found = Vec::new();
        let mut joined = Vec::new();
        while !wire.is_empty() {
            let (part, rest) = wire.split_at((*sizes.next().unwrap()).min(wire.len()));
            splitter.feed(part);
            wire = rest;
            while let Some(Block { process, sequence: _, is_end, has_note, bytes }) =
                splitter.next_block().unwrap()
            {
                found.push((process, is_end, has_note));
                joined.extend_from_slice(bytes);
            }
        }
        let is_end = |record: &Record<'_>| matches!(record, Record::End { .. });
        let is_note = |record: &Record<'_>| matches!(record, Record::Note { .. });
        let flags = |records: &[Record<'_>]| {
            (records.iter().any(is_end), records.iter().any(is_note))
        };
        let expected: Vec<_> = blocks
            .iter()
            .map(|(key, records)| (*key, flags(records).0, flags(records).1))
            .collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(joined.as_slice(), &file[header..]);
        prop_assert_eq!(splitter.pending(), 0);
        prop_assert_eq!(ends.len(), blocks.len());
    }
}

/// A block around bytes that no writer wrote, with right checksums.
fn raw_block(records: &[u8]) -> Vec<u8> {
    let mut block = SYNC.to_vec();
    block.extend_from_slice(&[1, 0, 0, 0]);
    block.extend_from_slice(&(records.len() as u32).to_le_bytes());
    block.extend_from_slice(&(records.len() as u32).to_le_bytes());
    block.extend_from_slice(&7u64.to_le_bytes());
    block.extend_from_slice(&0u32.to_le_bytes());
    block.extend_from_slice(&crc32fast::hash(records).to_le_bytes());
    block.extend_from_slice(&crc32fast::hash(&block).to_le_bytes());
    block.extend_from_slice(records);
    block
}

/// All tiers are listed, by code, and their codes are read.
#[test]
fn tiers_by_code() {
    // By a match, so that a new tier does not compile until it has its place here.
    let next = |tier| match tier {
        Tier::Unknown => Some(Tier::Tier0),
        Tier::Tier0 => Some(Tier::Tier0Instrumented),
        Tier::Tier0Instrumented => Some(Tier::Tier1Instrumented),
        Tier::Tier1Instrumented => Some(Tier::Tier1),
        Tier::Tier1 => Some(Tier::Osr),
        Tier::Osr => Some(Tier::ReadyToRun),
        Tier::ReadyToRun => Some(Tier::Optimized),
        Tier::Optimized => Some(Tier::MinOpts),
        Tier::MinOpts => None,
    };
    let all: Vec<Tier> = std::iter::successors(Some(Tier::Unknown), |tier| next(*tier)).collect();
    assert_eq!(all, Tier::ALL);
    for code in 0..=u8::MAX {
        let tier = Tier::from_code(code);
        match all.get(usize::from(code)) {
            Some(known) => assert_eq!((tier, tier as u8), (*known, code)),
            None => assert_eq!(tier, Tier::Unknown),
        }
    }
}

#[test]
fn records_of_a_newer_version_are_passed_over() {
    // Kind 100 of three bytes; a note with a field more than we know; a frame of kind 9.
    let bytes = [100, 3, 1, 2, 3, 14, 4, 2, b'h', b'i', 77, 0xB2, 0, 9];
    let file = [file_header(""), raw_block(&bytes)].concat();
    let mut reader = Reader::open(file.as_slice()).unwrap();
    let process = ProcessKey(7);
    assert_eq!(reader.next_item().unwrap(), Some(Item::Newer(process)));
    let note = Record::Note { text: "hi".into() };
    assert_eq!(
        reader.next_item().unwrap(),
        Some(Item::Record(process, note))
    );
    let value = Frame::Pseudo {
        text: "a kind of frame of a newer version".into(),
    };
    let frame = Record::Frame { frame: 0, value };
    assert_eq!(
        reader.next_item().unwrap(),
        Some(Item::Record(process, frame))
    );
    assert_eq!(reader.next_item().unwrap(), None);
}

#[test]
fn a_record_longer_than_its_block_gives_up_the_block_only() {
    let mut writer = Writer::new(ProcessKey(8));
    let _ = writer.push(&Record::Note {
        text: "next".into(),
    });
    let next = writer.take_block().unwrap();
    let file = [
        file_header(""),
        raw_block(&[14, 3, 2, b'o', b'k', 14, 99, 1]),
        next,
    ]
    .concat();
    let (records, damages) = read(&file);
    let note = |text: &'static str| Record::Note { text: text.into() };
    assert_eq!(
        records,
        [(ProcessKey(7), note("ok")), (ProcessKey(8), note("next"))]
    );
    assert_eq!(damages.len(), 1);
    assert_eq!(damages[0].reason, DamageReason::Malformed);
    assert_eq!(damages[0].process, Some(ProcessKey(7)));
}

#[test]
fn a_full_writer_refuses_and_loses_nothing() {
    let mut writer = Writer::new(ProcessKey(1));
    let sample = |number: u64| Record::Sample {
        thread: 1,
        stack: number as u32,
        time_ns: number * 1_000_000,
        event: Event::Cpu,
        value: 10_000_000,
        end: WalkEnd::Root,
        detail: None,
        logical: None,
    };
    let mut kept = 0;
    let mut due_at = None;
    loop {
        match writer.push(&sample(kept)) {
            PushOutcome::Added => {}
            PushOutcome::FlushDue => {
                due_at.get_or_insert(writer.pending());
            }
            PushOutcome::Full => break,
        }
        kept += 1;
    }
    assert!(due_at.unwrap() >= recording::FLUSH_AT && due_at.unwrap() < recording::FLUSH_AT + 100);
    assert!(writer.pending() <= MAX_BLOCK);
    let mut file = file_header("");
    assert!(writer.take_block_into(&mut file));
    assert_eq!(writer.push(&sample(kept)), PushOutcome::Added);
    assert!(writer.take_block_into(&mut file));
    assert!(!writer.take_block_into(&mut file));
    let (records, damages) = read(&file);
    assert_eq!(damages, []);
    let expected: Vec<_> = (0..=kept)
        .map(|number| (ProcessKey(1), sample(number)))
        .collect();
    assert_eq!(records, expected);
}

#[test]
fn long_strings_are_cut_and_the_block_stays_bounded() {
    let long: String = "é".repeat(MAX_STRING);
    let mut writer = Writer::new(ProcessKey(1));
    let method = Record::Method {
        method: 0,
        runtime: 0,
        kind: MethodKind::Il,
        module: None,
        token: 0,
        type_name: long.as_str().into(),
        name: long.as_str().into(),
    };
    while writer.push(&method) != PushOutcome::Full {}
    assert!(writer.pending() <= MAX_BLOCK);
    let file = [file_header(""), writer.take_block().unwrap()].concat();
    let (records, _) = read(&file);
    assert!(matches!(
        &records[0].1,
        Record::Method { type_name, name, .. }
            if type_name.len() == MAX_STRING && long.starts_with(name.as_ref())
    ));
}

#[test]
fn what_is_no_recording_is_said() {
    for bytes in [&b""[..], b"\x89SWREC\r\n", b"hello, world, this is text"] {
        let error = Reader::open(bytes).err().unwrap();
        assert_eq!(error.to_string(), "not a sidewalk recording");
    }
    let mut newer = file_header("");
    newer[8] = 2;
    let error = Reader::open(newer.as_slice()).err().unwrap().to_string();
    assert!(error.contains("format version 2"), "{error}");
}

#[test]
fn a_declared_length_beyond_the_limit_is_damage_not_memory() {
    let mut block = raw_block(b"");
    block[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let checksum = crc32fast::hash(&block[..36]);
    block[36..40].copy_from_slice(&checksum.to_le_bytes());
    let (records, damages) = read(&[file_header(""), block].concat());
    assert_eq!((records.len(), damages.len()), (0, 1));
    assert_eq!(damages[0].reason, DamageReason::Corrupt);
}
