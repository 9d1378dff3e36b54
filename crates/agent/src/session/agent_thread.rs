//! The agent thread: runs one session after the other, and sleeps in between.
//!
//! One per process. Without a session it wakes when a CLR starts or ends, when a client connects,
//! or when callbacks have queued many changes. Nothing is sampled then and no timer runs. The
//! thread ends when no CLR is left, after closing the control socket. A later attach starts another
//! one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Duration;

use control::{Message, keys, reply};
use corprof::{AgentCx, Hresult};
use sampler::Sampler;

use super::clients::{Client, Clients, Request, refused};
use super::{AgentEnd, AgentState, Begun, Session, begin};
use crate::base::{proc, waker};
use crate::clr::{Registry, Runtimes};
use crate::model::{Phase, Settings};
use crate::record::{Channel, Recorder};

/// Time in which the attaching tool must connect. It may have been killed.
const GRACE: Duration = Duration::from_secs(10);

/// Limit of descriptors below which a process counts as short of them.
const ROOMY: u64 = 256;

/// Time after which a runtime first checks that no thread is in the agent's callbacks. It then
/// repeats the check.
const EVACUATION: Duration = Duration::from_millis(300);

/// Runs until no CLR is left. First runs the session that has begun, if any.
pub fn main(
    agent: &'static AgentState,
    first: Option<(Begun, Channel)>,
    cx: &mut AgentCx,
) -> AgentEnd {
    let mut agent = Agent {
        agent,
        recorder: Recorder::default(),
        clients: Clients::default(),
        leaving: false,
        stay_reason: String::new(),
        expects: first.is_none(),
    };
    // If this fails, the program continues and no thread waits for the agent.
    let ran = catch_unwind(AssertUnwindSafe(|| agent.run(first, cx)));
    let Err(panic) = ran else {
        drop(agent);
        return AgentEnd::Away;
    };
    // Dropping a panic's payload may panic again.
    std::mem::forget(panic);
    let _again = catch_unwind(AssertUnwindSafe(|| {
        agent
            .recorder
            .note("Sidewalk's own thread failed here: the rest of this process was not recorded");
        agent.recorder.close();
    }));
    AgentEnd::Over
}

struct Agent {
    agent: &'static AgentState,
    recorder: Recorder,
    clients: Clients,
    /// Whether a CLR has been requested to detach the agent.
    leaving: bool,
    /// Reason why the agent did not detach after a request.
    stay_reason: String,
    /// Whether a tool has attached the agent and sent no request yet.
    expects: bool,
}

impl Agent {
    fn run(&mut self, first: Option<(Begun, Channel)>, cx: &mut AgentCx) {
        let arrived_ns = proc::now_ns();
        // Needed to notice clients while waiting on the control socket: see `wait`.
        let _unheard = Sampler::enable_waker();
        self.agent.waker.forward_to(Some(Sampler::wake_reader));
        if let Some((begun, channel)) = first {
            self.agent
                .set_recorded_by(format!("process {}", channel.peer()));
            // If descriptors are few, the control socket is not opened while the recording uses a
            // descriptor.
            let is_roomy = Sampler::descriptor_limit() >= ROOMY;
            if is_roomy {
                self.agent.control_socket.open_own();
            }
            self.session(begun, channel, cx);
            // Not opened twice: a program that exits has closed it.
            if !is_roomy {
                self.agent.control_socket.open_own();
            }
            self.leave(cx);
        }
        loop {
            waker::clear_handler_wake();
            Sampler::clear_waker();
            idle_round(self.agent, &mut self.recorder, cx);
            self.reply_detached();
            if self.try_to_leave() {
                return;
            }
            let requests = self.clients.poll(self.agent);
            if !requests.is_empty() {
                // A runtime may have been attached after the round above, together with the
                // request. Its catch-up must precede the answer.
                self.agent.catch_up(cx);
                for (request, client) in requests {
                    self.expects = false;
                    self.answer(request, client, cx);
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
        // The program may have closed the socket's descriptor.
        let _unheard = Sampler::enable_waker();
        let (control_socket, bell) = (self.agent.control_socket.fd(), Sampler::waker_fd());
        if control_socket < 0 || bell < 0 {
            self.agent.waker.wait(&[], timeout);
            return;
        }
        let mut fds = vec![control_socket, bell];
        fds.extend(self.clients.fds());
        self.agent.waker.wait(&fds, timeout);
    }

    fn session(&mut self, begun: Begun, channel: Channel, cx: &mut AgentCx) {
        Session::new(
            self.agent,
            begun,
            channel,
            &mut self.recorder,
            &mut self.clients,
        )
        .run(cx);
    }

    fn answer(&mut self, request: Request, mut client: Client, cx: &mut AgentCx) {
        // Of several clients at once, one may have got its request before.
        if self.leaving && matches!(request, Request::Record { .. }) {
            client.reply(&refused("the agent is leaving the process").with(keys::HOW, "leaving"));
            return;
        }
        match request {
            Request::Record { config, stay, who } => {
                let settings = Settings::parse(&config);
                let begun = match begin::begin(self.agent, settings) {
                    Ok(begun) => begun,
                    Err(error) => {
                        client.reply(&refused(&format!("no session can begin: {error:?}")));
                        return;
                    }
                };
                self.agent.set_recorded_by(who);
                client.reply(&Message::new(reply::OK));
                // If the client has disconnected, the session detects that.
                let _gone = client.channel.promote_to_tool();
                self.session(begun, client.channel, cx);
                if !stay {
                    self.leave(cx);
                }
            }
            // The session has just ended.
            Request::Change { .. } => client.reply(&refused("nobody records it")),
            Request::Leave => {
                self.leave(cx);
                self.clients.detach_requests.push(client);
            }
        }
    }

    /// Requests all attached CLRs to detach the agent. They do so later.
    fn leave(&mut self, cx: &mut AgentCx) {
        if self.leaving {
            return;
        }
        let known = self.agent.registry.known();
        let attached = self.agent.registry.attached();
        let mut runtimes = Runtimes::new(cx, &self.agent.registry, &known);
        self.stay_reason = reason_to_stay(&self.agent.registry);
        for number in attached {
            let asked = runtimes.with(number, |_, cx| {
                cx.info().request_profiler_detach(cx, EVACUATION)
            });
            match asked {
                // The CLR is shutting down.
                None => {}
                Some(Ok(()) | Err(Hresult::CORPROF_E_PROFILER_DETACHING)) => self.leaving = true,
                Some(Err(Hresult::CORPROF_E_IRREVERSIBLE_INSTRUMENTATION_PRESENT)) => {
                    self.stay_reason =
                        "methods were traced in it, and a runtime does not detach a profiler that \
                         has rewritten methods, even after their restoration"
                            .to_owned();
                }
                Some(Err(error)) => {
                    self.stay_reason = format!("its runtime refused to detach it ({error})")
                }
            }
        }
    }

    /// Replies to the clients that wait for the detach, once its outcome is known.
    fn reply_detached(&mut self) {
        let registry = &self.agent.registry;
        // One that is ending is gone after the next round.
        if self.leaving && (!registry.attached().is_empty() || registry.ending(|| ()).is_some()) {
            return;
        }
        self.leaving = false;
        if self.agent.registry.is_vacant() && !self.agent.is_started() {
            return;
        }
        let mut how = Message::new(reply::OK).with(keys::HOW, "left");
        if !self.agent.registry.running().is_empty() {
            how = Message::new(reply::OK)
                .with(keys::HOW, "idle")
                .with(keys::WHY, &self.stay_reason);
        }
        for mut client in self.clients.detach_requests.drain(..) {
            client.reply(&how);
        }
    }

    /// Whether no CLR is left to serve. Then closes the control socket, and the next attach starts
    /// another agent thread.
    fn try_to_leave(&mut self) -> bool {
        let mut runs = self
            .agent
            .runs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !self.agent.registry.is_vacant() || self.agent.is_started() {
            return false;
        }
        self.agent.program.threads.forget_threads();
        self.agent.program.natives.forget_all();
        self.agent.waker.forward_to(None);
        self.agent.control_socket.close();
        *runs = false;
        let how = Message::new(reply::OK).with(keys::HOW, "left");
        for mut client in self.clients.detach_requests.drain(..) {
            client.reply(&how);
        }
        true
    }
}

fn reason_to_stay(registry: &Registry) -> String {
    if registry.running().len() > registry.attached().len() {
        return "the runtime was started with it and cannot detach it".to_owned();
    }
    String::new()
}

/// Does the work outside sessions: runs the catch-up of attached CLRs, applies code changes, so
/// that the queue stays short, and releases CLRs that end.
pub(super) fn idle_round(agent: &AgentState, recorder: &mut Recorder, cx: &mut AgentCx) {
    agent.catch_up(cx);
    let now_ns = proc::now_ns();
    recorder.absorb_code(&agent.program);
    recorder.forget_removed(now_ns);
    agent.program.code.map().reclaim();
    if let Some(ending) = agent.registry.ending(|| {}) {
        for known in agent.registry.known() {
            if ending.numbers.contains(&known.number)
                && let Some((clr, _)) = &known.reach
            {
                recorder.forget_runtime(&agent.program, clr);
                recorder.absorb_code(&agent.program);
                recorder.forget_removed(proc::now_ns());
            }
        }
        for number in ending.numbers {
            agent.release_runtime(number);
        }
    }
    if agent.phase.get() == Phase::Idle {
        if agent.events.has_late_handles() {
            let known = agent.registry.known();
            let mut runtimes = Runtimes::new(cx, &agent.registry, &known);
            agent.events.release_handles(&mut runtimes);
        }
        for clr in agent.registry.take_ended() {
            recorder.forget_runtime(&agent.program, &clr);
        }
    }
}

/// Cleans up after the end of the agent thread, normal or by a fault: ends sampling and releases
/// all waiting threads.
pub fn clean_up(agent: &AgentState) {
    begin::stop(agent);
    agent.phases.leave();
    agent.control_socket.close();
    agent.registry.agent_thread_ended();
}
