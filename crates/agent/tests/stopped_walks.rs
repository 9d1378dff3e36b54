//! Test of the agent in a scripted CLR (`fake-clr`) that refuses to walk a thread.
//!
//! A real CLR does so at unpredictable moments. This file has one test, because the agent exists
//! once per process and is configured by the environment.

use std::collections::BTreeMap;
use std::io::{Cursor, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};

use corprof::sys::Hresult;
use corprof::sys::rules::RuntimeVersion;
use fake_clr::FakeClr;
use recording::{Item, Reader, Record, file_header};

corprof::export_profiler!(|request| agent::create(request, &agent::SIDEWALK));

/// The agent's records so far.
#[derive(Default)]
struct Counted {
    stops: u32,
    lost: BTreeMap<String, u64>,
    /// Number of frames of each stack.
    stacks: BTreeMap<u32, usize>,
    /// Number of frames and value of each sample of the tested thread.
    samples: Vec<(usize, u64)>,
}

/// Reads the recording until `enough` holds.
fn read_until(
    reader: &mut Reader<impl std::io::Read>,
    recorded: &mut Counted,
    tid: u32,
    threads: &mut BTreeMap<u32, u32>,
    enough: impl Fn(&Counted) -> bool,
) {
    while !enough(recorded) {
        let Some(item) = reader.next_item().unwrap() else {
            panic!("the agent has closed the line");
        };
        match item {
            Item::Record(_, Record::Pause { .. }) => recorded.stops += 1,
            Item::Record(_, Record::Lost { reason, count }) => {
                *recorded.lost.entry(reason.into_owned()).or_default() += count;
            }
            Item::Record(_, Record::Thread { thread, tid, .. }) => {
                threads.insert(thread, tid);
            }
            Item::Record(_, Record::Stack { stack, parent, .. }) => {
                let deep = parent.map_or(0, |parent| recorded.stacks[&parent]);
                recorded.stacks.insert(stack, deep + 1);
            }
            Item::Record(
                _,
                Record::Sample {
                    thread,
                    stack,
                    value,
                    ..
                },
            ) if threads.get(&thread) == Some(&tid) => {
                recorded.samples.push((recorded.stacks[&stack], value));
            }
            Item::Damage(damage) => panic!("{damage:?}"),
            _ => {}
        }
    }
}

fn own_tid() -> u32 {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Rule 16: a thread that holds a lock of the CLR is not walked. The CLR continues at once, the
/// refusal is counted, and the walk is retried a bounded number of times. The elapsed time is added
/// to the first stack that is available.
#[test]
fn rule_16_a_refused_walk_is_counted_and_made_up_for() {
    let folder = std::env::temp_dir().join(format!("sidewalk-stopped-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    // SAFETY: the only test of this binary; its only other thread waits for this one.
    unsafe {
        std::env::set_var("SIDEWALK_SOCKET", &socket);
        std::env::set_var(
            "SIDEWALK_CONFIG",
            "event=wall;interval_ns=50000000;walker=suspend",
        );
    }
    let tool = std::thread::spawn(move || -> UnixStream {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"G").unwrap();
        stream
    });

    let clr = FakeClr::new(RuntimeVersion::Net8);
    let ids = clr.populate();
    let tid = own_tid();
    clr.set_os_thread(ids.thread, tid);
    clr.set_holds_runtime_lock(ids.thread, true);
    // SAFETY: the function that a CLR calls.
    unsafe { clr.start_library(DllGetClassObject) }.unwrap();
    let mut line = tool.join().unwrap();
    let told_of = clr.on_thread(ids.thread, || {
        (
            clr.thread_created(ids.thread),
            clr.thread_assigned_to_os_thread(ids.thread),
        )
    });
    assert_eq!(told_of, (Hresult::S_OK, Hresult::S_OK));

    let stream = Cursor::new(file_header("test")).chain(line.try_clone().unwrap());
    let mut reader = Reader::open(stream).unwrap();
    let (mut recorded, mut threads) = (Counted::default(), BTreeMap::new());
    let unsafe_now = "the runtime cannot walk this thread now";
    read_until(&mut reader, &mut recorded, tid, &mut threads, |recorded| {
        recorded.lost.contains_key(unsafe_now)
    });
    // Three tries in each tick and no others: no tick gave a sample.
    let ticks = recorded.lost[unsafe_now];
    assert!(ticks >= 1);
    assert!(
        u64::from(recorded.stops) >= 3 * ticks,
        "{} stops in {ticks} ticks",
        recorded.stops
    );
    assert_eq!(recorded.samples, []);

    clr.set_holds_runtime_lock(ids.thread, false);
    read_until(&mut reader, &mut recorded, tid, &mut threads, |recorded| {
        !recorded.samples.is_empty()
    });
    // The stack of the script, and all the time since the first try: more than the lost ticks took.
    let (frames, value) = recorded.samples[0];
    assert_eq!(frames, 3);
    assert!(
        value >= ticks.saturating_sub(1) * 50_000_000,
        "{value} ns for {ticks} ticks"
    );

    line.write_all(b"S").unwrap();
    let mut rest = Vec::new();
    line.read_to_end(&mut rest).unwrap();
    assert!(!clr.is_suspended(), "the CLR goes on after each stop");
    assert_eq!((clr.unsupported(), clr.deadlocks()), (0, 0));
    assert!(clr.crashes().is_empty(), "{:?}", clr.crashes());
    std::fs::remove_dir_all(folder).unwrap();
}
