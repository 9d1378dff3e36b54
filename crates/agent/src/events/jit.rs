//! Compilation events: which method was compiled, for how long, and the stack that caused it.
//!
//! Runs in JIT callbacks on the compiling thread. A method's compilation can make the runtime run
//! code that must be compiled first, on the same thread. Each thread therefore has a stack of
//! compilations. The time of an inner one is not counted for the outer one too, so that times add
//! up.

use std::cell::RefCell;

use corprof::context::Callback;
use corprof::{Cx, FunctionId};
use recording::{Event, Tier};

use super::Origin;
use super::source::{EventSource, Need, SourceQuery};
use crate::base::proc;

/// Maximum depth of nested compilations.
const MAX_NESTED: usize = 64;

/// The source of compilation events.
pub(super) struct Compilations;

impl EventSource for Compilations {
    fn event(&self) -> Event {
        Event::Jit
    }

    fn need(&self, _: SourceQuery<'_>) -> Result<Need, String> {
        // Always reported.
        Ok(Need::nothing(
            "JITCompilationStarted to JITCompilationFinished",
        ))
    }
}

#[derive(Clone, Copy, Debug)]
struct Compilation {
    function: usize,
    start_ns: u64,
    /// Time of the compilations inside this one.
    inner_ns: u64,
}

#[derive(Debug, Default)]
struct NestedCompilations(Vec<Compilation>);

thread_local! {
    static RUNNING: RefCell<NestedCompilations> = const {
        RefCell::new(NestedCompilations(Vec::new()))
    };
}

impl NestedCompilations {
    fn begin(&mut self, function: usize, start_ns: u64) {
        if self.0.len() >= MAX_NESTED {
            self.0.clear();
        }
        self.0.push(Compilation {
            function,
            start_ns,
            inner_ns: 0,
        });
    }

    /// Ends a compilation and returns its own time.
    fn end(&mut self, function: usize, now_ns: u64) -> Option<u64> {
        let at = self.0.iter().rposition(|one| one.function == function)?;
        // Those above it ended without a callback: another thread finished the same method first.
        self.0.truncate(at + 1);
        let ended = self.0.pop()?;
        let whole_ns = now_ns.saturating_sub(ended.start_ns);
        if let Some(outer) = self.0.last_mut() {
            outer.inner_ns += whole_ns;
        }
        Some(whole_ns.saturating_sub(ended.inner_ns))
    }
}

/// Records the start of a compilation on this thread.
pub(crate) fn started(function: FunctionId<'_>) {
    let _thread_ends = RUNNING.try_with(|own| {
        if let Ok(mut own) = own.try_borrow_mut() {
            own.begin(function.raw(), proc::now_ns());
        }
    });
}

/// Records the end of a compilation, successful or not.
pub(crate) fn finished<'rt>(
    origin: Origin<'_>,
    cx: &mut Cx<'rt, Callback>,
    function: FunctionId<'rt>,
    compiled_ns: u64,
    tier: Option<Tier>,
) {
    let spent = RUNNING
        .try_with(|own| own.try_borrow_mut().ok()?.end(function.raw(), compiled_ns))
        .ok()
        .flatten();
    let Some(spent) = spent else { return };
    origin.happened(cx, Event::Jit, spent, |cx| {
        let method = origin.own.names.function(origin.clr, cx, function);
        let tier = tier.map_or("not compiled", tier_name);
        (format!("{method} ({tier})").into(), String::new())
    });
}

/// Returns a tier's name in docs/unwinding.md.
fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Unknown => "unknown tier",
        Tier::Tier0 => "tier 0",
        Tier::Tier0Instrumented => "tier 0 instrumented",
        Tier::Tier1Instrumented => "tier 1 instrumented",
        Tier::Tier1 => "tier 1",
        Tier::Osr => "OSR",
        Tier::ReadyToRun => "ReadyToRun",
        Tier::Optimized => "optimized",
        Tier::MinOpts => "minopts",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_within_each_other_add_up() {
        let mut all = NestedCompilations::default();
        all.begin(1, 0);
        all.begin(2, 10);
        all.begin(3, 20);
        assert_eq!(all.end(3, 25), Some(5));
        all.begin(9, 26);
        assert_eq!(all.end(2, 30), Some(15));
        assert_eq!(all.end(9, 31), None);
        assert_eq!(all.end(1, 100), Some(80));
        assert_eq!(all.end(1, 100), None);
    }
}
