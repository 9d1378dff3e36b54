//! Class and module load events: samples of `ClassLoadFinished` and `ModuleLoadFinished`.
//!
//! Runs in these callbacks, on the thread that loads. `clr::code` registers the modules themselves.

use corprof::context::Callback;
use corprof::{ClassId, Cx, EventMaskLow};
use recording::Event;

use super::Origin;
use super::source::{EventSource, Need, SourceQuery};

/// The source of module loads.
pub(super) struct ModuleLoads;

impl EventSource for ModuleLoads {
    fn event(&self) -> Event {
        Event::ModuleLoad
    }

    fn need(&self, _: SourceQuery<'_>) -> Result<Need, String> {
        // Always reported.
        Ok(Need::nothing("ModuleLoadFinished callback"))
    }
}

/// The source of class loads.
pub(super) struct ClassLoads;

impl EventSource for ClassLoads {
    fn event(&self) -> Event {
        Event::ClassLoad
    }

    fn need(&self, _: SourceQuery<'_>) -> Result<Need, String> {
        Ok(Need {
            low: EventMaskLow::MONITOR_CLASS_LOADS,
            ..Need::nothing("ClassLoadFinished callback")
        })
    }
}

/// `ClassLoadFinished`.
pub(crate) fn class<'rt>(origin: Origin<'_>, cx: &mut Cx<'rt, Callback>, class: ClassId<'rt>) {
    origin.happened(cx, Event::ClassLoad, 1, |cx| {
        (origin.own.names.class(origin.clr, cx, class), String::new())
    });
}

/// `ModuleLoadFinished`; the path is empty for a module created in memory.
pub(crate) fn module<'rt>(origin: Origin<'_>, cx: &mut Cx<'rt, Callback>, path: &str) {
    origin.happened(cx, Event::ModuleLoad, 1, |_| {
        let name = if path.is_empty() {
            "in memory"
        } else {
            path.rsplit('/').next().unwrap_or(path)
        };
        (name.into(), path.to_owned())
    });
}
