//! Benchmark of fast-path hooks: cost of an enter and leave pair above the bare calls.
//!
//! It includes the stubs, the context token and the catching of panics. `cargo bench -p fake-clr`.

use std::hint::black_box;
use std::time::Instant;

use corprof::context::{Async, Startup};
use corprof::elt::{FastHooks, FunctionMapper, HookCall};
use corprof::sys::rules::RuntimeVersion;
use corprof::{Callbacks, Cx, EventMaskHigh, EventMaskLow, Result};
use fake_clr::{FakeClr, Frame};

struct Empty;
impl FunctionMapper for Empty {}
impl FastHooks for Empty {
    fn enter<'rt>(&self, _: &mut Cx<'rt, Async>, call: &HookCall<'rt>) {
        black_box(call.tag);
    }
    fn leave<'rt>(&self, _: &mut Cx<'rt, Async>, call: &HookCall<'rt>) {
        black_box(call.tag);
    }
    fn tailcall<'rt>(&self, _: &mut Cx<'rt, Async>, _: &HookCall<'rt>) {}
}

struct Profiler;
impl Callbacks for Profiler {
    fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> Result<()> {
        let info = cx.info();
        info.set_event_mask2(cx, EventMaskLow::MONITOR_ENTERLEAVE, EventMaskHigh::empty())?;
        info.set_fast_hooks(cx, Empty)?;
        Ok(())
    }
}

/// Minimum of many rounds, in nanoseconds per call.
fn best(mut call: impl FnMut()) -> f64 {
    const CALLS: u32 = 100_000;
    (0..50)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
        })
        .fold(f64::MAX, f64::min)
}

fn main() {
    let clr = FakeClr::new(RuntimeVersion::Net8);
    let ids = clr.populate();
    if let Err(error) = clr.start(|_| Ok(Box::new(Profiler))) {
        panic!("{error}");
    }
    let frame = Frame {
        thread: ids.thread,
        function: ids.function,
    };
    let Some(code) = clr.hooked_code(frame) else {
        panic!("the function is not hooked");
    };
    let bare = best(|| code.bare());
    let hooked = best(|| code.enter_and_leave());
    println!(
        "enter + leave {hooked:.2} ns, bare calls {bare:.2} ns, above {:.2} ns",
        hooked - bare
    );
}
