//! Messages to the service manager (systemd), where there is one.
//!
//! Invariant: without one, or if it does not listen, nothing happens.

use sd_notify::NotifyState;

fn notify(states: &[NotifyState<'_>]) {
    // The work goes on without the service manager.
    let _unheard = sd_notify::notify(states);
}

/// The agent has looked for processes once.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// The agent works, and records so many processes.
pub(super) fn alive(processes: usize) {
    let recorded = formats::plural(processes as u64, "process");
    let status = format!("recording {recorded}");
    notify(&[NotifyState::Watchdog, NotifyState::Status(&status)]);
}

/// The configuration is being read again. [`ready`] follows.
pub(super) fn reloading() {
    let now = NotifyState::monotonic_usec_now();
    let states = [NotifyState::Reloading].into_iter().chain(now.ok());
    notify(&states.collect::<Vec<_>>());
}

/// The agent ends.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}
