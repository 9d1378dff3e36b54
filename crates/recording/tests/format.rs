//! The bytes themselves: what the page on the format says, and files of older versions.

use recording::{
    Event, Frame, Item, MethodKind, ModuleKind, ProcessKey, Reader, Record, Tier, WalkEnd, Writer,
    file_header,
};

/// The example of `docs/recording-format.md`, which is also an independent statement of the coding.
#[test]
fn the_example_of_the_documentation_is_what_is_written() {
    let mut file = file_header("sidewalk 0.1.0");
    let mut writer = Writer::new(ProcessKey(7));
    let (thread, name) = (0, "main".into());
    let _ = writer.push(&Record::Thread {
        thread,
        tid: 4242,
        name,
        managed: true,
        time_ns: 1_000,
    });
    let (event, end) = (Event::Wall, WalkEnd::Root);
    let _ = writer.push(&Record::Sample {
        thread,
        stack: 3,
        time_ns: 1_500,
        event,
        value: 10_000,
        end,
        detail: None,
        logical: None,
    });
    let _ = writer.push(&Record::End { time_ns: 1_400 });
    writer.take_block_into(&mut file);
    let rows = file.chunks(16).enumerate().map(|(row, bytes)| {
        let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:04x}  {}\n", row * 16, bytes.join(" "))
    });
    let dump: String = rows.collect();
    let page = include_str!("../../../docs/recording-format.md");
    assert!(page.contains(&dump), "the page does not show:\n{dump}");
}

/// One record of each kind and of each kind of frame, as version 1 knows them.
fn every_kind() -> Vec<Record<'static>> {
    let frame = |frame, value| Record::Frame { frame, value };
    vec![
        Record::Process {
            pid: 4242,
            parent: 1,
            command: "dotnet\0app.dll\0--café".into(),
            unix_ns: 1_700_000_000_000_000_000,
            time_ns: 123_456_789_012,
        },
        Record::Engine {
            engine: "perf task-clock".into(),
            walker: "signal".into(),
            event: Event::Cpu,
            interval_ns: 10_101_010,
            max_depth: 1024,
        },
        Record::Runtime {
            runtime: 0,
            version: "8.0.4".into(),
            recorded: true,
            refused_by: "".into(),
        },
        Record::Runtime {
            runtime: 1,
            version: "3.1.23".into(),
            recorded: false,
            refused_by: "".into(),
        },
        Record::Thread {
            thread: 0,
            tid: 4242,
            name: ".NET Main".into(),
            managed: true,
            time_ns: 123_456_790_000,
        },
        Record::Module {
            module: 0,
            kind: ModuleKind::Native,
            runtime: None,
            path: "/usr/lib/libc.so.6".into(),
            bias: 0x7F12_3456_7000,
            id_bytes: vec![1, 2, 3, 254, 255].into(),
            file_offset: 0,
        },
        Record::Module {
            module: 1,
            kind: ModuleKind::Managed,
            runtime: Some(0),
            path: "/srv/app.dll".into(),
            bias: 0x7F00_0000_0000,
            id_bytes: vec![7; 16].into(),
            file_offset: 4096,
        },
        Record::Method {
            method: 0,
            runtime: 0,
            kind: MethodKind::Il,
            module: Some(1),
            token: 0x0600_0001,
            type_name: "App.Box`1[System.Int32]".into(),
            name: "Open".into(),
        },
        Record::Method {
            method: 1,
            runtime: 0,
            kind: MethodKind::IlStub,
            module: None,
            token: 0,
            type_name: "".into(),
            name: "IL_STUB_PInvoke".into(),
        },
        frame(
            0,
            Frame::Native {
                module: 0,
                svma: 0x2_7CD0,
            },
        ),
        frame(
            1,
            Frame::Managed {
                method: 0,
                tier: Tier::Osr,
                il_offset: Some(0),
            },
        ),
        frame(
            2,
            Frame::Managed {
                method: 1,
                tier: Tier::Optimized,
                il_offset: None,
            },
        ),
        frame(
            3,
            Frame::Stub {
                runtime: 0,
                name: "write barrier".into(),
            },
        ),
        frame(4, Frame::Unknown { address: u64::MAX }),
        frame(
            5,
            Frame::Pseudo {
                text: "broken: no unwind rule".into(),
            },
        ),
        Record::Stack {
            stack: 0,
            parent: None,
            frame: 0,
        },
        Record::Stack {
            stack: 1,
            parent: Some(0),
            frame: 1,
        },
        Record::Stack {
            stack: 2,
            parent: Some(0),
            frame: 3,
        },
        Record::Sample {
            thread: 0,
            stack: 1,
            time_ns: 123_466_000_000,
            event: Event::Cpu,
            value: 10_101_010,
            end: WalkEnd::Root,
            detail: None,
            logical: None,
        },
        Record::Sample {
            thread: 0,
            stack: 2,
            time_ns: 123_465_000_000,
            event: Event::Alloc,
            value: 10_101_010,
            end: WalkEnd::Truncated,
            detail: None,
            logical: None,
        },
        Record::Sample {
            thread: 0,
            stack: 0,
            time_ns: 123_475_000_000,
            event: Event::ModuleLoad,
            value: 1,
            end: WalkEnd::Broken,
            detail: None,
            logical: None,
        },
        Record::Lost {
            reason: "ring full".into(),
            count: 3,
        },
        Record::Broken {
            reason: "no unwind rule".into(),
            count: 1,
        },
        Record::Stats {
            time_ns: 123_480_000_000,
            agent_cpu_ns: 1_000_000,
            target_cpu_ns: 24_000_000,
            agent_memory: 3 << 20,
            handler_ns: 5_000,
            // Later fields.
            due_ns: None,
            lost_ns: 0,
        },
        Record::Note {
            text: "a profiler was already set".into(),
        },
        Record::ThreadEnd {
            thread: 0,
            time_ns: 123_490_000_000,
            cpu_ns: 20_000_000,
        },
        Record::End {
            time_ns: 123_490_000_001,
        },
        Record::Symbol {
            frame: 0,
            name: "start".into(),
            file: "start.c".into(),
            line: 42,
        },
    ]
}

/// `golden/version-1.bin` was made by version 1's writer from [`every_kind`], one block for each
/// 16 records. It must stay readable for ever; never make it anew.
#[test]
fn a_file_of_version_1_is_read() {
    let file = include_bytes!("golden/version-1.bin");
    let mut reader = Reader::open(file.as_slice()).unwrap();
    assert_eq!(reader.creator(), "sidewalk 0.1.0");
    let mut records = Vec::new();
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            Item::Record(ProcessKey(0x1234_5678_9ABC), record) => records.push(record.into_owned()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(records, every_kind());
    assert_eq!(reader.next_sequence(ProcessKey(0x1234_5678_9ABC)), 2);
}

/// `golden/before-logical-stacks.bin` was made by the last writer that knew no logical stacks.
/// Samples with and without a detail end where theirs would be; never make it anew.
#[test]
fn samples_from_before_logical_stacks_have_none() {
    let file = include_bytes!("golden/before-logical-stacks.bin");
    let mut reader = Reader::open(file.as_slice()).unwrap();
    let mut decoded = Vec::new();
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            Item::Record(
                _,
                Record::Sample {
                    event,
                    detail,
                    logical,
                    ..
                },
            ) => decoded.push((event, detail, logical)),
            Item::Record(_, Record::Change { before, after, .. }) => {
                assert_eq!((before, after), (1, 5));
            }
            Item::Record(..) => {}
            other => panic!("{other:?}"),
        }
    }
    let none = [
        (Event::Cpu, None, None),
        (Event::Exception, Some(0), None),
        (Event::Exception, Some(u32::MAX), None),
    ];
    assert_eq!(decoded, none);
}

/// A sample without a logical stack is, to the byte, what it was before there were any.
#[test]
fn a_recording_without_logical_stacks_is_written_as_before() {
    let old = include_bytes!("golden/before-logical-stacks.bin");
    let mut reader = Reader::open(old.as_slice()).unwrap();
    let mut writer = Writer::new(ProcessKey(0x1234_5678_9ABC));
    while let Some(Item::Record(_, record)) = reader.next_item().unwrap() {
        let _ = writer.push(&record);
    }
    let mut file = file_header("sidewalk 0.1.0");
    writer.take_block_into(&mut file);
    assert_eq!(file, old);
}
