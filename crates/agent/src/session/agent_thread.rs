//! The agent thread: one session after the other, and sleep in between.
//!
//! One per process. Without a session it wakes when a CLR comes or ends, when a client connects, or
//! when the callbacks have queued so much that it should be taken in: nothing is sampled, no timer
//! runs. It ends when no CLR is left, with the door closed; who comes to the process again starts
//! another one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Duration;

use control::{Message, answer, keys};
use corprof::{AgentCx, Hresult};
use sampler::Sampler;

use super::visitors::{Request, Visitor, Visitors, refused};
use super::{Begun, End, Parts, Session, begin};
use crate::base::{proc, wake};
use crate::clr::{Registry, Runtimes};
use crate::model::{Phase, Settings};
use crate::record::{Channel, Recorder};

/// How long whoever attached us has to come to the door. He may have been killed.
const GRACE: Duration = Duration::from_secs(10);

/// A process with a lower limit of descriptors has few of them.
const ROOMY: u64 = 256;

/// After how long a runtime is to look whether it is out of our callbacks (it looks no earlier, and
/// again and again).
const EVACUATION: Duration = Duration::from_millis(300);

/// Stays until no CLR is left; first runs the session that has begun, if one has.
pub fn main(parts: &'static Parts, first: Option<(Begun, Channel)>, cx: &mut AgentCx) -> End {
    let mut agent = Agent {
        parts,
        recorder: Recorder::default(),
        visitors: Visitors::default(),
        leaving: false,
        stays: String::new(),
        expects: first.is_none(),
    };
    // If anything in there fails, the program goes on and no thread waits for us.
    let ran = catch_unwind(AssertUnwindSafe(|| agent.run(first, cx)));
    let Err(panic) = ran else {
        drop(agent);
        return End::Away;
    };
    // Dropping a panic's payload may panic again.
    std::mem::forget(panic);
    let _again = catch_unwind(AssertUnwindSafe(|| {
        agent
            .recorder
            .note("Sidewalk's own thread failed here: the rest of this process was not recorded");
        agent.recorder.close();
    }));
    End::Over
}

struct Agent {
    parts: &'static Parts,
    recorder: Recorder,
    visitors: Visitors,
    /// Some CLR has been asked to let us go.
    leaving: bool,
    /// Why we are still there after we were to leave.
    stays: String,
    /// We were sent here, and whoever sent us has not said what for.
    expects: bool,
}

impl Agent {
    fn run(&mut self, first: Option<(Begun, Channel)>, cx: &mut AgentCx) {
        let arrived_ns = proc::now_ns();
        // Without it no client is heard while we wait at the door: see `wait`.
        let _unheard = Sampler::open_bell();
        self.parts.wake.also_by(Some(Sampler::ring));
        if let Some((begun, channel)) = first {
            self.parts
                .set_recorded_by(format!("process {}", channel.peer()));
            // Where descriptors are few, the one of the door is the program's while the recording
            // has one.
            let is_roomy = Sampler::descriptor_limit() >= ROOMY;
            if is_roomy {
                self.parts.door.open_own();
            }
            self.session(begun, channel, cx);
            // Not again: a program that exits has closed it.
            if !is_roomy {
                self.parts.door.open_own();
            }
            self.leave(cx);
        }
        loop {
            wake::hear_call();
            Sampler::hush_bell();
            idle_round(self.parts, &mut self.recorder, cx);
            self.say_farewell();
            if self.goes() {
                return;
            }
            let requests = self.visitors.look(self.parts);
            if !requests.is_empty() {
                // A runtime may have arrived after the round above, together with the request. Its
                // past must be known before the answer.
                self.parts.catch_up(cx);
                for (request, visitor) in requests {
                    self.expects = false;
                    self.answer(request, visitor, cx);
                }
                continue;
            }
            let left_ns = (arrived_ns + GRACE.as_nanos() as u64).saturating_sub(proc::now_ns());
            if self.expects && left_ns == 0 {
                self.expects = false;
                self.leave(cx);
            }
            self.wait(self.expects.then(|| Duration::from_nanos(left_ns)));
        }
    }

    fn wait(&self, timeout: Option<Duration>) {
        // A program may have closed it.
        let _unheard = Sampler::open_bell();
        let (door, bell) = (self.parts.door.fd(), Sampler::bell_fd());
        if door < 0 || bell < 0 {
            self.parts.wake.wait(&[], timeout);
            return;
        }
        let mut fds = vec![door, bell];
        fds.extend(self.visitors.fds());
        self.parts.wake.wait(&fds, timeout);
    }

    fn session(&mut self, begun: Begun, channel: Channel, cx: &mut AgentCx) {
        Session::new(
            self.parts,
            begun,
            channel,
            &mut self.recorder,
            &mut self.visitors,
        )
        .run(cx);
    }

    fn answer(&mut self, request: Request, mut visitor: Visitor, cx: &mut AgentCx) {
        // Of several who came at once, one may have got what he wanted.
        if self.leaving && matches!(request, Request::Record { .. }) {
            visitor.tell(&refused("the agent is leaving the process").with(keys::HOW, "leaving"));
            return;
        }
        match request {
            Request::Record { config, stay, who } => {
                let settings = Settings::parse(&config);
                let begun = match begin::begin(self.parts, settings) {
                    Ok(begun) => begun,
                    Err(error) => {
                        visitor.tell(&refused(&format!("no session can begin: {error:?}")));
                        return;
                    }
                };
                self.parts.set_recorded_by(who);
                visitor.tell(&Message::new(answer::OK));
                // Where he is gone, the session finds that out by itself.
                let _gone = visitor.channel.becomes_tool();
                self.session(begun, visitor.channel, cx);
                if !stay {
                    self.leave(cx);
                }
            }
            // It has just ended.
            Request::Change { .. } => visitor.tell(&refused("nobody records it")),
            Request::Leave => {
                self.leave(cx);
                self.visitors.farewells.push(visitor);
            }
        }
    }

    /// Asks the CLRs that we came to while they ran to let us go. They do so later.
    fn leave(&mut self, cx: &mut AgentCx) {
        if self.leaving {
            return;
        }
        let known = self.parts.registry.known();
        let attached = self.parts.registry.attached();
        let mut runtimes = Runtimes::new(cx, &self.parts.registry, &known);
        self.stays = why_we_stay(&self.parts.registry);
        for number in attached {
            let asked = runtimes.with(number, |_, cx| {
                cx.info().request_profiler_detach(cx, EVACUATION)
            });
            match asked {
                // It is on its way out of its own accord.
                None => {}
                Some(Ok(()) | Err(Hresult::CORPROF_E_PROFILER_DETACHING)) => self.leaving = true,
                Some(Err(Hresult::CORPROF_E_IRREVERSIBLE_INSTRUMENTATION_PRESENT)) => {
                    self.stays =
                        "methods were traced in it, and a runtime lets nobody go who has rewritten methods, \
                         though they are as they were"
                            .to_owned();
                }
                Some(Err(error)) => {
                    self.stays = format!("its runtime does not let it go ({error})")
                }
            }
        }
    }

    /// Tells those who wait for it that we stay.
    fn say_farewell(&mut self) {
        if self.leaving && !self.parts.registry.attached().is_empty() {
            return;
        }
        self.leaving = false;
        if self.parts.registry.is_deserted() && !self.parts.is_started() {
            return;
        }
        let mut how = Message::new(answer::OK).with(keys::HOW, "left");
        if !self.parts.registry.running().is_empty() {
            how = Message::new(answer::OK)
                .with(keys::HOW, "idle")
                .with(keys::WHY, &self.stays);
        }
        for mut visitor in self.visitors.farewells.drain(..) {
            visitor.tell(&how);
        }
    }

    /// Whether no CLR is left to look after: then the door is closed, and the next arrival starts
    /// another agent thread.
    fn goes(&mut self) -> bool {
        let mut runs = self
            .parts
            .runs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !self.parts.registry.is_deserted() || self.parts.is_started() {
            return false;
        }
        self.parts.program.threads.forget_strangers();
        self.parts.program.natives.forget_all();
        self.parts.wake.also_by(None);
        self.parts.door.close();
        *runs = false;
        let how = Message::new(answer::OK).with(keys::HOW, "left");
        for mut visitor in self.visitors.farewells.drain(..) {
            visitor.tell(&how);
        }
        true
    }
}

fn why_we_stay(registry: &Registry) -> String {
    if registry.running().len() > registry.attached().len() {
        return "the runtime was started with it, and does not let it go".to_owned();
    }
    String::new()
}

/// Does the work without a session: CLRs that we have come to are asked for their past, code is
/// taken in, so that the queue stays short, and CLRs that end are let go.
pub(super) fn idle_round(parts: &Parts, recorder: &mut Recorder, cx: &mut AgentCx) {
    parts.catch_up(cx);
    let now_ns = proc::now_ns();
    recorder.absorb_code(&parts.program);
    recorder.forget_removed(now_ns);
    parts.program.code.map().reclaim();
    if let Some(ending) = parts.registry.ending(|| {}) {
        for known in parts.registry.known() {
            if ending.numbers.contains(&known.number)
                && let Some((clr, _)) = &known.reach
            {
                recorder.forget_runtime(&parts.program, clr);
                recorder.absorb_code(&parts.program);
                recorder.forget_removed(proc::now_ns());
            }
        }
        for number in ending.numbers {
            parts.let_go(number);
        }
    }
    if parts.phase.get() == Phase::Idle {
        if parts.events.has_late_handles() {
            let known = parts.registry.known();
            let mut runtimes = Runtimes::new(cx, &parts.registry, &known);
            parts.events.give_back_handles(&mut runtimes);
        }
        for clr in parts.registry.take_former() {
            recorder.forget_runtime(&parts.program, &clr);
        }
    }
}

/// Cleans up after the agent thread, which has ended by itself or by a fault: nothing is sampled
/// any more, and no thread waits.
pub fn ended(parts: &Parts) {
    begin::stop(parts);
    parts.phases.leave();
    parts.door.close();
    parts.registry.agent_thread_ended();
}
