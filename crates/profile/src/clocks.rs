//! Clocks of a profile: moves times, and puts processes of other time namespaces on one line.
//!
//! Invariant: differences between two times of a process stay as they are.

use crate::model::{LiveHeap, Process, ProcessId, Profile};

/// How far the wall clock may be corrected between the starts of two processes, nanoseconds.
const CORRECTION: i64 = 10_000_000_000;

/// Returns the offset from a process's clock to nanoseconds since 1970, if it is recorded.
pub(crate) fn wall_clock_offset(process: &Process) -> Option<i64> {
    let (wall, own) = (process.start_unix_ns, process.start_ns);
    (wall > 0).then(|| wall.cast_signed().wrapping_sub(own.cast_signed()))
}

/// Moves the processes of a recording that are in another time namespace than the first one to its
/// clock.
pub(crate) fn align(profile: &mut Profile) {
    let processes = &profile.processes;
    let known = |process: &Process| Some((process.start_ns, wall_clock_offset(process)?));
    let Some((start, first)) = processes.iter().find_map(known) else {
        return;
    };
    let shift = |process: &Process| {
        let shift = wall_clock_offset(process)?.wrapping_sub(first);
        // While a machine is suspended, its wall clock goes on and CLOCK_MONOTONIC does not.
        let was_suspended = shift > 0 && process.start_ns >= start;
        (shift.saturating_abs() > CORRECTION && !was_suspended).then_some(shift)
    };
    let shifts = processes.iter().map(|process| shift(process).unwrap_or(0));
    let shifts: Vec<i64> = shifts.collect();
    if shifts.iter().any(|shift| *shift != 0) {
        move_times(profile, |process| shifts[process.0 as usize]);
    }
}

/// Moves all times of each process by so many nanoseconds.
pub(crate) fn move_times(profile: &mut Profile, shift_of: impl Fn(ProcessId) -> i64) {
    let add = |time: &mut u64, shift| *time = time.saturating_add_signed(shift);
    for (process, id) in profile.processes.iter_mut().zip(0..) {
        let shift = shift_of(ProcessId(id));
        add(&mut process.start_ns, shift);
        add(&mut process.end_ns, shift);
    }
    for thread in &mut profile.threads {
        let shift = shift_of(thread.process);
        add(&mut thread.start_ns, shift);
        thread.end_ns.iter_mut().for_each(|time| add(time, shift));
    }
    for sample in &mut profile.samples {
        let process = profile.threads[sample.thread.0 as usize].process;
        add(&mut sample.time_ns, shift_of(process));
    }
    for pause in &mut profile.pauses {
        add(&mut pause.time_ns, shift_of(pause.process));
    }
    for heap in &mut profile.live {
        let shift = shift_of(heap.process);
        times_of(heap).for_each(|time| add(time, shift));
    }
}

/// Returns all times of a live heap.
fn times_of(heap: &mut LiveHeap) -> impl Iterator<Item = &mut u64> {
    let instants = heap.instants.iter_mut().map(|instant| &mut instant.time_ns);
    let collections = heap.collections.iter_mut().map(|(time_ns, _)| time_ns);
    let moments = heap.moments.iter_mut().map(|moment| &mut moment.time_ns);
    instants.chain(collections).chain(moments)
}
