//! Classes and modules, when the runtime has loaded them.

use corprof::context::Callback;
use corprof::{ClassId, Cx};
use recording::Event;

use crate::clr::Clr;

/// `ClassLoadFinished`.
pub(crate) fn class<'rt>(clr: &Clr, cx: &mut Cx<'rt, Callback>, class: ClassId<'rt>) {
    clr.events().happened(clr, cx, Event::ClassLoad, 1, |cx| {
        (clr.names().class(cx, class), String::new())
    });
}

/// `ModuleLoadFinished`; the path is empty for a module that was made in memory.
pub(crate) fn module<'rt>(clr: &Clr, cx: &mut Cx<'rt, Callback>, path: &str) {
    clr.events().happened(clr, cx, Event::ModuleLoad, 1, |_| {
        let name = if path.is_empty() {
            "in memory"
        } else {
            path.rsplit('/').next().unwrap_or(path)
        };
        (name.into(), path.to_owned())
    });
}
