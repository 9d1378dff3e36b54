//! One sample of an event, as a callback leaves it for the agent thread.

use std::sync::{Arc, OnceLock};

use recording::Event;

use crate::model::EndCode;

/// A sample: addresses, not frames; they are resolved as those of a CPU sample are.
#[derive(Debug)]
pub(crate) struct EventSample {
    pub(crate) event: Event,
    /// Kernel's id of the thread.
    pub(crate) tid: u32,
    /// CLOCK_MONOTONIC, nanoseconds; the end of what takes time.
    pub(crate) time_ns: u64,
    /// In the event's unit.
    pub(crate) value: u64,
    pub(crate) end: EndCode,
    /// Words of the walk, leaf first.
    pub(crate) frames: Box<[u64]>,
    /// What is counted under one name.
    pub(crate) name: Arc<str>,
    /// The rest.
    pub(crate) text: String,
    /// Who will catch it, for an exception.
    pub(crate) catcher: Option<Arc<Catcher>>,
}

/// The method that will catch an exception, set when the runtime has found it.
#[derive(Debug, Default)]
pub(crate) struct Catcher(OnceLock<Arc<str>>);

impl Catcher {
    /// The search has ended here. The first answer holds.
    pub(crate) fn found(&self, name: Arc<str>) {
        let _first = self.0.set(name);
    }

    /// Its name, once known.
    pub(crate) fn name(&self) -> Option<&str> {
        self.0.get().map(|name| &**name)
    }
}

impl EventSample {
    /// Memory that it holds, about.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<EventSample>() + size_of_val(&*self.frames) + self.text.len() + 64
    }

    /// The details' text, complete.
    pub(crate) fn full_text(&self) -> String {
        let Some(catcher) = &self.catcher else {
            return self.text.clone();
        };
        let outcome = match catcher.name() {
            Some(name) => format!("caught by {name}"),
            None => "unhandled by managed code".to_owned(),
        };
        if self.text.is_empty() {
            outcome
        } else {
            format!("{}; {outcome}", self.text)
        }
    }

    #[cfg(test)]
    pub(crate) fn for_test(event: Event, value: u64, frames: usize) -> EventSample {
        EventSample {
            event,
            tid: 1,
            time_ns: 0,
            value,
            end: EndCode(0),
            frames: vec![0; frames].into(),
            name: "x".into(),
            text: String::new(),
            catcher: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exceptions_text_says_what_became_of_it() {
        let mut sample = EventSample::for_test(Event::Exception, 1, 0);
        assert_eq!(sample.full_text(), "");
        let catcher = Arc::new(Catcher::default());
        sample.catcher = Some(Arc::clone(&catcher));
        assert_eq!(sample.full_text(), "unhandled by managed code");
        sample.text = "No way".to_owned();
        catcher.found("A.B".into());
        catcher.found("C.D".into());
        assert_eq!(sample.full_text(), "No way; caught by A.B");
    }
}
