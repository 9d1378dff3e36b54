//! Lock-wait events: how long a thread waited for a monitor held by another thread.
//!
//! Input: ContentionStop events (`event_pipe`), on the thread that waited.

use corprof::Cx;
use corprof::context::Callback;
use recording::Event;

use super::Origin;
use super::event_pipe::{KEYWORD_CONTENTION, LEVEL_INFORMATIONAL};
use super::source::{EventSource, Need, SourceQuery};

/// The source of lock-wait events.
pub(super) struct Contentions;

impl EventSource for Contentions {
    fn event(&self) -> Event {
        Event::Contention
    }

    fn need(&self, asked: SourceQuery<'_>) -> Result<Need, String> {
        if !asked.runtime.event_pipe {
            return Err(format!(
                "no contention samples of .NET {}: it does not report lock waits (.NET 5 and later do)",
                asked.runtime.version
            ));
        }
        Ok(Need {
            keywords: KEYWORD_CONTENTION,
            level: LEVEL_INFORMATIONAL,
            ..Need::nothing("ContentionStop event")
        })
    }
}

/// Handles a ContentionStop: a wait of so many nanoseconds has ended on this thread.
pub(super) fn waited<'rt>(
    origin: Origin<'_>,
    cx: &mut Cx<'rt, Callback>,
    managed: bool,
    waited_ns: u64,
) {
    let name = if managed {
        "managed lock"
    } else {
        "native lock"
    };
    origin.happened(cx, Event::Contention, waited_ns, |_| {
        (name.into(), String::new())
    });
}
