//! Classes and modules, when the runtime has loaded them.

use corprof::context::Callback;
use corprof::{ClassId, Cx};
use recording::Event;

use crate::clr::Clr;

/// `ClassLoadFinished`.
pub(crate) fn class<'rt>(clr: &Clr, cx: &mut Cx<'rt, Callback>, class: ClassId<'rt>) {
    let events = clr.events();
    if let Some(place) = events.offer(Event::ClassLoad, 1) {
        let name = clr.names().class(cx, class);
        let sample = events.sample(clr, cx, Event::ClassLoad, 1, name, String::new());
        events.push(place, sample);
    }
}

/// `ModuleLoadFinished`; the path is empty for a module that was made in memory.
pub(crate) fn module<'rt>(clr: &Clr, cx: &mut Cx<'rt, Callback>, path: &str) {
    let events = clr.events();
    if let Some(place) = events.offer(Event::ModuleLoad, 1) {
        let (name, text) = if path.is_empty() {
            ("in memory", "")
        } else {
            (path.rsplit('/').next().unwrap_or(path), path)
        };
        let sample = events.sample(clr, cx, Event::ModuleLoad, 1, name.into(), text.to_owned());
        events.push(place, sample);
    }
}
