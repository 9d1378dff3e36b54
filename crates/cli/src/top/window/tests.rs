use profile::testing::{INTERVAL, Scene};
use recording::{PushOutcome, Tier, WalkEnd, Writer};

use super::*;

const SECOND: u64 = 1_000_000_000;
/// The instant at which scenes begin.
const START: u64 = 5 * SECOND;

/// Returns a window with a whole scene, in blocks as an agent sends them.
pub(crate) fn window_of(scene: &Scene, length_ns: u64) -> Window {
    let mut window = Window::new(length_ns, START).unwrap();
    let (process, _) = scene.records().first().unwrap();
    let mut writer = Writer::new(*process);
    for (index, (_, record)) in scene.records().iter().enumerate() {
        assert_eq!(writer.push(record), PushOutcome::Added);
        if index % 7 == 0 {
            window.block(&writer.take_block().unwrap()).unwrap();
        }
    }
    if let Some(block) = writer.take_block() {
        window.block(&block).unwrap();
    }
    window
}

/// 3 s of a program: Main calls Hash (2 s, then 0.5 s) and Parse (0.5 s), a second thread
/// allocates.
pub(crate) fn scene() -> Scene {
    let mut scene = Scene::new(4242, &["dotnet", "shop.dll"]);
    let runtime = scene.runtime("8.0.33");
    let module = scene.managed_module(runtime, "/nowhere/shop.dll");
    let mut frame = |name| {
        let method = scene.method(runtime, module, "Shop.Cart", name);
        scene.managed(method, Tier::Tier1, 0)
    };
    let (main, hash, parse, fill) = (frame("Main"), frame("Hash"), frame("Parse"), frame("Fill"));
    let first = scene.thread(4242, "shop", true);
    let second = scene.thread(4243, "filler", true);
    let hashing = scene.stack(&[main, hash]);
    let parsing = scene.stack(&[main, parse]);
    let recursive = scene.stack(&[main, parse, parse]);
    let filling = scene.stack(&[fill]);
    scene.samples(first, hashing, 200);
    scene.samples(first, hashing, 50);
    scene.samples(first, parsing, 25);
    scene.samples(first, recursive, 25);
    scene.sample(second, filling, Event::Alloc, 3 << 20, WalkEnd::Root);
    scene.sample(
        second,
        filling,
        Event::Contention,
        SECOND / 4,
        WalkEnd::Root,
    );
    scene.sample(second, filling, Event::Exception, 1, WalkEnd::Root);
    scene.sample(second, filling, Event::Gc, SECOND / 100, WalkEnd::Root);
    scene
}

fn method<'p>(content: &'p WindowContent, name: &str) -> &'p MethodRow {
    let mut rows = content.methods.iter();
    rows.find(|row| row.name == name)
        .unwrap_or_else(|| panic!("no {name} in {content:?}"))
}

#[test]
fn what_is_older_than_the_window_is_not_in_it() {
    let mut window = window_of(&scene(), SECOND);
    let content = window.content(START + 3 * SECOND);
    assert_eq!(content.span_ns, SECOND);
    assert_eq!(
        content.samples, 101,
        "one at the very beginning of the window"
    );
    assert_eq!(content.cpu, SECOND + INTERVAL);
    let hash = method(&content, "Shop.Cart.Hash");
    assert_eq!(
        (hash.own, hash.total),
        (SECOND / 2 + INTERVAL, SECOND / 2 + INTERVAL)
    );
    let main = method(&content, "Shop.Cart.Main");
    assert_eq!((main.own, main.total), (0, SECOND + INTERVAL));
    // A sleeping program sends nothing, and the window moves on.
    let later = window.content(START + 10 * SECOND);
    assert_eq!((later.cpu, later.samples), (0, 0));
    assert!(later.methods.is_empty() && later.threads.is_empty());
}

#[test]
fn recursion_is_counted_once_and_the_first_second_is_not_diluted() {
    let mut window = window_of(&scene(), 60 * SECOND);
    let content = window.content(START + 4 * SECOND);
    assert_eq!(
        content.span_ns,
        4 * SECOND,
        "not the minute that it may become"
    );
    let parse = method(&content, "Shop.Cart.Parse");
    assert_eq!((parse.own, parse.total), (SECOND / 8, SECOND / 8));
    assert_eq!(method(&content, "Shop.Cart.Hash").own, SECOND * 5 / 8);
}

#[test]
fn events_are_rates_and_belong_to_their_threads() {
    let mut window = window_of(&scene(), 60 * SECOND);
    let content = window.content(START + 4 * SECOND);
    assert_eq!(content.allocated, (3 << 20) / 4);
    assert_eq!((content.collections, content.paused), (1, SECOND / 400));
    assert_eq!((content.waits, content.waited), (1, SECOND / 16));
    assert_eq!(content.exceptions, 1);
    assert_eq!(content.runtimes, ["8.0.33"]);
    assert_eq!(content.processes, ["4242 dotnet shop.dll"]);
    let mut threads = content.threads.clone();
    threads.sort_by_key(|row| row.tid);
    let [shop, filler] = threads.as_slice() else {
        panic!("{threads:?}")
    };
    assert_eq!(
        (shop.cpu, &*shop.hottest),
        (SECOND * 3 / 4, "Shop.Cart.Hash")
    );
    assert_eq!(
        (filler.allocated, filler.waited),
        ((3 << 20) / 4, SECOND / 16)
    );
}
