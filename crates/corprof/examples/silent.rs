//! A profiler that is told and does nothing: what the runtime's own telling costs, and so the least
//! that a profiler costs that asks for the same.
//!
//! It asks for what every profiler needs that names code: methods compiled, modules loaded,
//! threads, and where the runtime knows of them dynamic methods that go. `cargo xtask bench` holds
//! Sidewalk against it. It keeps nothing and has no thread of its own.
//!
//! ```sh
//! cargo build --release -p corprof --example silent
//! CORECLR_ENABLE_PROFILING=1 \
//! CORECLR_PROFILER={0B1A3A52-5C0E-4E0B-9E6F-7C6A1D2F4B11} \
//! CORECLR_PROFILER_PATH=$PWD/target/release/examples/libsilent.so dotnet app.dll
//! ```

use corprof::context::Startup;
use corprof::{Callbacks, ClassRequest, Cx, EventMaskHigh, EventMaskLow, Guid, Hresult, Result};

const CLSID: Guid = Guid::new("0B1A3A52-5C0E-4E0B-9E6F-7C6A1D2F4B11");

corprof::export_profiler!(create);

fn create(request: &ClassRequest) -> Result<Box<dyn Callbacks>> {
    if request.clsid != CLSID {
        return Err(Hresult::CLASS_E_CLASSNOTAVAILABLE);
    }
    Ok(Box::new(Silent))
}

struct Silent;

impl Callbacks for Silent {
    fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> Result<()> {
        cx.info().set_event_mask2(
            cx,
            EventMaskLow::MONITOR_JIT_COMPILATION
                | EventMaskLow::MONITOR_MODULE_LOADS
                | EventMaskLow::MONITOR_THREADS,
            EventMaskHigh::MONITOR_DYNAMIC_FUNCTION_UNLOADS,
        )
    }
}
