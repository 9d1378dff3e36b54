//! Baseline profiler: enables callbacks and does nothing, to measure their cost in the runtime.
//!
//! It enables the callbacks that every profiler needs to resolve code: compiled methods, loaded
//! modules, threads and, if the runtime supports it, unloaded dynamic methods. No profiler with
//! these callbacks can cost less. `cargo xtask bench` compares Sidewalk with it. It has no state
//! and no thread.
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
